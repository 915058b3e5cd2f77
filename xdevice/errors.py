"""All error classes of xdevice. Each message says what was passed, what was expected, and how to fix the error.

    XDeviceError
     ├── ArgumentError             ValueError, TypeError   an argument that a function does not accept
     │    ├── NotATensorError                              not a tensor, a model or a container
     │    ├── DeviceError                                  neither a device nor the spelling of a device
     │    ├── ShapeError                                   not a shape, or one that does not fit
     │    └── SettingError                                 an environment variable with an invalid value
     │         └── LaunchError                             processes that cannot work together as they were started
     ├── ContainerError            ValueError              a container that cannot be taken apart and rebuilt
     ├── DTypeError                TypeError               data or a dtype that the backend cannot represent
     ├── NotBuiltError             RuntimeError            a model that does not have its variables yet
     ├── StateError                ValueError              weights that do not fit the model
     ├── DeviceNotFoundError       LookupError             a device that does not exist here
     ├── DeviceMismatchError       RuntimeError            tensors on several devices
     ├── BackendNotFoundError      LookupError             a backend that is unknown or not installed
     ├── BackendImportError        ImportError             a framework that cannot be imported, or is too old
     ├── ContractError             TypeError               an adapter that breaks the contract
     ├── UnsupportedError          NotImplementedError     something that this backend cannot do
     ├── SharingError              BufferError             memory that cannot be shared
     ├── CaptureError              RuntimeError            work that cannot be recorded as a graph
     ├── TransferError             RuntimeError            a transfer in a block that forbids transfers
     ├── PeerError                 ConnectionError         another process that failed or did not join
     ├── CollectiveMismatchError   ValueError              processes whose collective calls differ
     ├── ScopeError                RuntimeError            a block exited in a thread or task that did not enter it
     ├── TimingError               RuntimeError            a time that cannot be read
     ├── ParityError               AssertionError          two results that should be equal, but differ
     ├── RecordingError            ValueError              a recording that cannot be written or read
     ├── FileFormatError           ValueError              a file that is not in the safetensors format
     └── FilePathError             OSError                 a path that cannot be read or written
          └── MissingFileError     FileNotFoundError       a file or folder that does not exist

The middle column names the built-in classes from which a class, and every class below it in the tree, also inherits:
`except ValueError` catches a `DeviceError`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class XDeviceError(Exception):
    """The base class of all errors of xdevice. Each error can be copied and pickled together with its attributes and
    notes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # `reduced` is (class, arguments, state, ...). Pickle would call the class, whose `__init__` may
        # need other arguments, so pickle gets `_restored` to call instead. The rest of the tuple is
        # unchanged, because OSError and ImportError store attributes such as `filename` and `path` in it
        reduced: Any = super().__reduce__()
        cls, args, *state = reduced
        return _restored, (cls, args), *state


def _restored(cls: type[XDeviceError], args: tuple[Any, ...]) -> XDeviceError:
    """Returns an error of the class `cls` with the arguments `args`, which every Python exception stores in its
    attribute `args`. Does not call the class's own `__init__`, which may need more arguments, as `PeerError`'s does."""
    # `__new__` gets the arguments too, because OSError sets its attributes there; the `__init__` of the
    # built-in base class, called below, sets `args`
    error = cls.__new__(cls, *args)
    super(XDeviceError, error).__init__(*args)
    return error


def shown(x: object, limit: int | None = 100) -> str:
    """Returns the string that represents an object in an error message: the first `limit` characters of its `repr`, or
    the whole `repr` if `limit` is None. If the object's own `repr` raises an error, returns Python's default `repr`."""
    try:
        return repr(x)[:limit]
    except Exception:
        return object.__repr__(x)


def set_on_error(error: BaseException, name: str, value: object) -> None:
    """Sets the attribute `name` of an exception, even if the exception's class forbids this, as a frozen dataclass
    does. Does nothing if the attribute cannot be set at all."""
    try:
        object.__setattr__(error, name, value)
    # the attribute may be a property without a setter, for example; an error raised here would hide the
    # exception itself
    except Exception:
        return


def note(error: BaseException, text: str) -> None:
    """Adds a note to an exception, even if the exception has no method `add_note`."""
    try:
        error.add_note(text)
    except Exception:  # Python 3.10 has no `add_note`, but pytest and IPython show `__notes__`
        before = vars(error).get("__notes__", [])
        set_on_error(
            error, "__notes__", [*(before if isinstance(before, list) else [before]), text]
        )


def listed(names: Iterable[object], limit: int) -> str:
    """Returns a string that lists names in an error message: the first `limit` names, separated by commas, and the
    number of remaining names ("a, b and 3 more")."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:limit]) + (
        f" and {len(texts) - limit} more" if len(texts) > limit else ""
    )


class ArgumentError(XDeviceError, ValueError, TypeError):
    """An argument that a function does not accept: it has the wrong type, is out of range, or is not one of the listed
    values."""


class NotATensorError(ArgumentError):
    """An object that is not a tensor, a model or a container."""


class DeviceError(ArgumentError):
    """A string, number or other object that does not name a device."""


class ShapeError(ArgumentError):
    """Sizes that do not form a shape, or a shape that does not fit."""


class SettingError(ArgumentError):
    """An environment variable, such as XDEVICE_BLOCKING or LOCAL_RANK, that has an invalid value."""


class LaunchError(SettingError):
    """The processes cannot work together as they were started. Possible reasons: the variables that a launcher
    (torchrun, mpirun) set for this process are incomplete or contradict each other; no engine can move tensors between
    the processes; or the call is not inside `with xdevice.distributed.processes():`."""


class BackendNotFoundError(XDeviceError, LookupError):
    """A backend name that is unknown, or whose framework is not installed."""


class BackendImportError(XDeviceError, ImportError):
    """A framework that is installed but cannot be imported, or is too old. The error that caused this one is
    chained."""


class ContractError(XDeviceError, TypeError):
    """An adapter that breaks the contract of `xdevice.contract.Backend`, or that claims the
    name of another adapter."""


class DeviceNotFoundError(XDeviceError, LookupError):
    """A device that the backend does not have. Nothing was allocated."""


class DeviceMismatchError(XDeviceError, RuntimeError):
    """Tensors that should be on the same device are on different devices."""


class NotBuiltError(XDeviceError, RuntimeError):
    """A model that does not have its variables yet: build it first, then move it."""


class ContainerError(XDeviceError, ValueError):
    """A container that contains itself, is nested too deeply, cannot be rebuilt, or differs in
    structure from another container. Also raised for a container that cannot be saved, because two of its tensors would
    have the same name in the file, or because a name cannot be encoded as UTF-8."""


class DTypeError(XDeviceError, TypeError):
    """Data or a dtype that the backend or the device cannot represent exactly, or that does not match the requested
    dtype."""


class StateError(XDeviceError, ValueError):
    """Named tensors, from a file or another model, that do not fit their target variables, or whose layout is unknown.
    Nothing was written.

    Attributes:
        pairs: if some layers could not be paired, a guess at which layer of the source corresponds to which layer of
            the target; otherwise empty. The guess maps paths to paths, and can be passed as `names=`.
    """

    def __init__(self, text: str = "", pairs: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.pairs = dict(pairs or {})


class FileFormatError(XDeviceError, ValueError):
    """A file that is not in the safetensors format, or is damaged."""


class FilePathError(XDeviceError, OSError):
    """A path from which tensors cannot be read, or to which tensors cannot be written. The file is unchanged, unless
    the message says that it was written."""


class MissingFileError(FilePathError, FileNotFoundError):
    """A file to be read does not exist, or the folder of a file to be written does not exist."""


class TimingError(XDeviceError, RuntimeError):
    """A time that cannot be read, because the timer is not running or the event was not recorded."""


class CaptureError(XDeviceError, RuntimeError):
    """A task whose work cannot be recorded as a graph. The part that was recorded is never replayed."""


class UnsupportedError(XDeviceError, NotImplementedError):
    """Something that this backend cannot do. The message says what to use instead."""


class SharingError(XDeviceError, BufferError):
    """The caller passed `copy=False`, but the memory cannot be shared. The error that caused this one is chained."""


class ScopeError(XDeviceError, RuntimeError):
    """A `with` block was exited in a different thread or task from the one that entered it. Also raised if a task waits
    inside a block (`await`): other tasks of the thread then run, and they share the framework's current device."""


class TransferError(XDeviceError, RuntimeError):
    """A transfer inside `transfers("disallow")`, which was stopped before it began. `record`, a `Record` of
    `transfers`, describes the transfer and names the line of the program that requested it."""

    def __init__(self, message: str, record: Any) -> None:
        super().__init__(message)
        self.record = record


class TransferWarning(UserWarning):
    """Warns of a transfer inside `transfers("warn")`, at the line of the user's code that caused the transfer.

    Experimental: it may change in a minor version.
    """


class PeerError(XDeviceError, ConnectionError):
    """Another process has failed, or did not join. `rank` is the rank of that process, and `why` is "died", "raised",
    "late", "silent", "left" or "never joined". The world is closed: from now on, each of the world's functions raises
    the same error at once."""

    def __init__(self, message: str, rank: int, why: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.why = why


class CollectiveMismatchError(XDeviceError, ValueError):
    """The processes do not call the same function with the same operation, dtypes and shapes. `calls` contains a
    description of each process's call, in order of rank. Nothing was sent or written, and the world can still be
    used."""

    def __init__(self, message: str, calls: tuple[str, ...]) -> None:
        super().__init__(message)
        self.calls = calls


class ParityError(XDeviceError, AssertionError):
    """Two values that should contain the same numbers differ. `comparison`, an `xdevice.parity.Comparison`, says where
    and by how much they differ."""

    def __init__(self, message: str, comparison: Any) -> None:
        super().__init__(message)
        self.comparison = comparison


class RecordingError(XDeviceError, ValueError):
    """A recording cannot be written or read, for example because a name or a value cannot be stored, or because the
    folder contains no recording."""
