"""Every error that xdevice raises by name. Each says what came, what was expected, and how to mend it."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any


class XDeviceError(Exception):
    """The base of all errors of xdevice. Each can be copied and pickled, with its attributes and notes."""

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = super().__reduce__()  # OSError and ImportError have attributes of their own
        cls, args, *state = reduced
        return _anew, (cls, args), *state


def _anew(cls: type[XDeviceError], args: tuple[Any, ...]) -> XDeviceError:
    """Without the `__init__` of a class that takes more than its message: pickle gives it the message alone."""
    error = cls.__new__(cls, *args)
    super(XDeviceError, error).__init__(*args)
    return error


def shown(x: object, most: int | None = 100) -> str:
    """What stands for an object in an error: the start of its `repr`, or Python's own where that raises."""
    try:
        return repr(x)[:most]
    except Exception:
        return object.__repr__(x)


class BackendNotFoundError(XDeviceError, LookupError):
    """A backend name that is unknown, or whose framework is not installed."""


class BackendImportError(XDeviceError, ImportError):
    """A framework that is installed but does not import, or is too old. The cause is chained."""


class BackendConflictError(XDeviceError):
    """Two installed adapters claim one backend name."""


class ContractError(XDeviceError, TypeError):
    """An adapter that does not keep the contract of `xdevice.contract.Backend`."""


class DeviceError(XDeviceError, ValueError):
    """A text or number that is no device."""


class DeviceTypeError(DeviceError, TypeError):
    """An object that is neither a device nor the spelling of one."""


class DeviceNotFoundError(XDeviceError, LookupError):
    """A device that does not exist on the backend. Nothing was allocated."""


class BackendMismatchError(XDeviceError, TypeError):
    """Tensors that should be of one framework are of several."""


class DeviceMismatchError(XDeviceError, RuntimeError):
    """Tensors that should be on one device are on several."""


class NotATensorError(XDeviceError, TypeError):
    """An object that is no tensor, no model and no container."""


class NotBuiltError(XDeviceError, RuntimeError):
    """A model that has no variables yet: build it first, then move it."""


class ContainerError(XDeviceError, ValueError):
    """A container that contains itself, is nested too deep, cannot be rebuilt, is not built as another
    is, or gives two tensors one name in a file, or one that UTF-8 lacks."""


class DTypeError(XDeviceError, TypeError):
    """Data or a dtype that the backend cannot hold without changing it, or that does not fit what is asked for."""


class StateError(XDeviceError, ValueError):
    """Named tensors, of a file or of another model, that do not fit the variables they should go into, or whose layouts
    nobody has told. Nothing was written."""


class SettingError(XDeviceError, ValueError):
    """A variable of the environment, such as XDEVICE_BLOCKING, that holds what it cannot mean."""


class LaunchError(XDeviceError, ValueError):
    """A launcher's variable that holds no number of a process."""


class FileFormatError(XDeviceError, ValueError):
    """A file that is no safetensors file, or a damaged one."""


class FilePathError(XDeviceError, OSError):
    """A path that no file of tensors can be read from or written to. What was there is there still, unless it says that
    the file is written."""


class MissingFileError(FilePathError, FileNotFoundError):
    """A file to be read, or the folder of one to be written, that does not exist."""


class TimingError(XDeviceError, RuntimeError):
    """A time that cannot be read: of a timer that is not running, or an event that was not recorded."""


class CaptureError(XDeviceError, RuntimeError):
    """A task whose work cannot be recorded as a graph. Nothing of it is replayed."""


class NotATaskError(XDeviceError, TypeError):
    """What was given to `parallel` or `measure` cannot be called. Nothing has started."""


class NotIterableError(XDeviceError, TypeError):
    """What was given to `prefetch` cannot be iterated."""


class DepthError(XDeviceError, ValueError):
    """The depth of `prefetch` is no int of 1 or more."""


class CountError(XDeviceError, ValueError):
    """A number of calls that `measure` cannot make, of virtual GPUs that there cannot be, or of devices: none."""


class ShapeError(XDeviceError, ValueError, TypeError):
    """Sizes that are no shape, or a shape that does not fit."""


class OpError(XDeviceError, ValueError):
    """An operation that `all_reduce` does not have."""


class UnsupportedError(XDeviceError, NotImplementedError):
    """A thing that this backend cannot do. The message says what to use instead."""


class SharingError(XDeviceError, BufferError):
    """`copy=False` was said, and the memory cannot be shared. The cause is chained."""


class ScopeError(XDeviceError, RuntimeError):
    """A block that is left where it was not entered, in another thread or task, or that lets another task run inside
    of it although the framework keeps one device for all tasks of a thread."""


class TransferError(XDeviceError, RuntimeError):
    """A transfer inside of `transfers("forbid")`; `record`, a `Record` of `transfers`, says which, and on
    which line. It was not made."""

    def __init__(self, message: str, record: Any) -> None:
        super().__init__(message)
        self.record = record


class ParityError(XDeviceError, AssertionError):
    """Two values that should hold the same numbers do not; `comparison`, an `xdevice.Comparison`, says where and by how
    much."""

    def __init__(self, message: str, comparison: Any) -> None:
        super().__init__(message)
        self.comparison = comparison


class ToleranceError(XDeviceError, ValueError):
    """A tolerance that is negative or no number."""


class RecordingError(XDeviceError, ValueError):
    """A recording that cannot be written or read: a name or value that cannot be kept, or a folder without one."""
