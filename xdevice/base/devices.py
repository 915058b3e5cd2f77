"""The class `Device`, and every accepted spelling of a device."""

from __future__ import annotations

from _thread import allocate_lock  # threading imports more modules

from xdevice.errors import DeviceError, shown

from . import forks

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Final, NoReturn

KINDS: Final = {"cpu", "gpu", "tpu", "meta"}
"""The device kinds that a string may name. The registration of a backend adds the backend's own kinds."""

HARDWARE: Final = {
    "cuda",
    "rocm",
    "hip",
    "mps",
    "xpu",
    "npu",
    "hpu",
    "mtia",
    "mlu",
    "musa",
    "gcu",
    "neuron",
}
"""Names for `gpu:i` that each mean one kind of hardware. An adapter adds the names of its framework's plugins."""
# the list of spellings at the end of most errors about a device
_ACCEPTED: Final = (
    'a Device, "cpu", "gpu", "gpu:1", "cuda:1", "GPU:1", "/GPU:1", '
    '"/job:localhost/replica:0/task:0/device:GPU:1", "gpu(1)", "mps", "xpu:0", or a framework\'s own device object'
)
# A kind, and an index of at most six digits without leading zeros: "gpu", "gpu:1", "gpu(1)". The
# prefixes come from TensorFlow's long names and from Paddle's `Place(gpu:1)`, whose parenthesis must
# be closed again.
_SPELLING: Final = (
    r"(?:/job:localhost/replica:0/task:0)?/?(?:device:|physical_device:|(?P<place>place\())?"
    r"(?P<kind>[a-z]+)"
    r"(?::(?P<index>0|[1-9][0-9]{0,5})|\((?P<ordinal>0|[1-9][0-9]{0,5})\))?(?(place)\))"
)


class CoreFunctions:
    """Functions that need the backends, which only `core` knows. The modules `registry`, `selection` and `scopes` of
    `core` set these attributes when they are imported."""

    to_native: Callable[[Device], Any]
    from_native: Callable[[object], Device | None]
    enter: Callable[[Device], None]
    leave: Callable[[Device, BaseException | None], None]


core_functions: Final = CoreFunctions()


class Device:
    """A device that stores tensors: a kind and an index, which are the same on every framework.

    Immutable and hashable. Compare a device with another device or a string by `==`: `cuda:1` and `gpu:1` are equal.
    `gpu` is the backend's accelerator, whatever hardware that is. "cuda", "rocm", "mps", "xpu", "npu", "hpu" and the
    name of a plugin each mean one kind of hardware: a backend refuses such a name if its `gpu:i` is different hardware.
    Virtual GPUs accept every name.

    | backend | `Device("gpu:1").native` | `Device("cpu").native` |
    |---|---|---|
    | torch | `torch.device("cuda:1")` | `torch.device("cpu")` |
    | tensorflow | `"/GPU:1"` | `"/CPU:0"` |
    | mxnet | `mx.gpu(1)` | `mx.cpu(0)` |
    | paddle | `paddle.CUDAPlace(1)` | `paddle.CPUPlace()` |
    | jax | `jax.devices("gpu")[1]` | `jax.devices("cpu")[0]` |
    | numpy | none | `"cpu"` |

    Raises:
        DeviceError: if `spec` does not name a device, for instance a bare int. There is no silent fallback.

    Example:
        >>> Device("cuda:1"), Device("gpu:1") == Device("cuda:1") == Device("/GPU:1")
        (Device('gpu:1'), True)
        >>> Device("gpu:1").kind, Device("gpu:1").index
        ('gpu', 1)
    """

    __slots__ = ("__weakref__", "_text", "index", "kind")

    def __init_subclass__(cls) -> None:
        # `Named`, below, is the only subclass; `parse` and `==` rely on that
        if cls.__module__ != __name__:
            raise TypeError(
                "Device cannot be subclassed, because equal devices must be the same object"
            )

    kind: str
    index: int
    _text: str

    def __new__(cls, spec: object = "cpu") -> Device:
        return parse(spec)

    @property
    def native(self) -> Any:
        """The selected backend's own object for this device (see the table in the docstring of `Device`).

        Raises:
            DeviceNotFoundError: if the selected backend lacks the device.
        """
        return core_functions.to_native(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            try:
                other = parse(other)
            # any string may be compared with a device, as in `device in ["sgd", "gpu:0"]`
            except DeviceError:
                return False
        # devices are interned, so equal devices are the same object, once `without_hardware_name` has turned
        # `cuda:1` into `gpu:1`
        return self is (without_hardware_name(other) if isinstance(other, Device) else other)

    __hash__ = object.__hash__  # a function in Python would slow every look-up by a device

    def __enter__(self) -> Device:
        """Makes this the default device inside the block, for xdevice's creation functions and for those of the
        selected framework.

        Blocks can be nested, and apply only to the current thread. An exception also ends a block. Paddle has one
        current device for the whole process, so a block affects Paddle's own creation functions in other threads too,
        but never xdevice's.

        An asyncio task must not `await` inside the block, because the other tasks of the thread would use this device.
        If it does, the block ends at the `await`, and exiting the block raises `ScopeError`. Exiting a block that
        another thread or task has entered also raises `ScopeError`, and changes nothing.
        """
        core_functions.enter(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        core_functions.leave(self, exc)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Device({self._text!r})"

    # through `of`, so that unpickling or copying a device returns the interned device
    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return of, (self.kind, self.index)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Device is immutable: cannot set {name!r} of {self!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Device is immutable: cannot delete {name!r} of {self!r}")


class Named(Device):
    """`gpu:i`, named by a word for its hardware, such as `cuda:1`. Equals `gpu:i`. A backend's `require` replaces it by
    `gpu:i`, or raises an error if the backend's GPUs are different hardware."""

    __slots__ = ("plain", "word")

    plain: Device
    word: str

    def __eq__(self, other: object) -> bool:
        return self.plain == other

    def __hash__(self) -> int:
        return hash(self.plain)

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return named, (self.word, self.index)


def named(word: str, index: int = 0) -> Device:
    """Returns `gpu:index`, named by a word from `HARDWARE`: `named("cuda", 1)` is `cuda:1`."""
    plain = of("gpu", index)
    return _new_device(Named, kind="gpu", index=index, _text=str(plain), plain=plain, word=word)


def _new_device(cls: type[Device], **attributes: object) -> Device:
    """Returns a new `Device` with these attributes. No other function sets the attributes of a device."""
    device = object.__new__(cls)
    # the class's own `__setattr__` raises an error, because devices are immutable
    for name, value in attributes.items():
        object.__setattr__(device, name, value)
    return device


def without_hardware_name(device: Device) -> Device:
    """Returns the device without the name of its hardware, as `device_of` would: `gpu:1` for `cuda:1`."""
    return device.plain if type(device) is Named else device


# the interned devices, by kind and index; the second dict is created when it is first needed
_interned: dict[tuple[str, int], Device] = {}
_interned_weakly: Any = None
_lock = forks.unlocked_in_child(allocate_lock())
_MOST_KEPT: Final = 1024
"""A device with this index or a higher one, which no machine has, is interned only while something refers to it.
Otherwise a program that names more and more devices would fill the memory."""
by_spelling: Final[dict[str, Device]] = {}
"""The device of each string that was parsed or registered by `register_spelling`."""


def of(kind: str, index: int = 0) -> Device:
    """Returns the `Device` with this kind and index. The same arguments always return the same object. This function is
    meant for adapters, and does not check whether the kind is known."""
    device = _interned.get((kind, index))
    if device is None:
        device = _new_device(Device, kind=kind, index=index, _text=f"{kind}:{index}")
        if index >= _MOST_KEPT:
            return _intern_weakly(device)
        # `setdefault` is atomic, so two threads that call it at once get the same device
        device = _interned.setdefault((kind, index), device)
    return device


def _intern_weakly(device: Device) -> Device:
    """Returns the interned device that equals `device`. If there is no such device yet, interns and returns `device`
    itself. The device is interned only as long as something refers to it."""
    global _interned_weakly
    with _lock:
        # imported only here, because hardly any program names such a device
        if _interned_weakly is None:
            from weakref import WeakValueDictionary

            _interned_weakly = WeakValueDictionary()
        interned: Device = _interned_weakly.setdefault((device.kind, device.index), device)
        return interned


CPU: Final = of("cpu")


def parse(spec: object) -> Device:
    """Returns the device that `spec` names. `spec` is a spelling or a framework's own device object; see
    `xdevice.device`. Raises `DeviceError` for any other object."""
    # the most frequent cases come first, because most calls of `to_device` call this function
    if type(spec) is Device:
        return spec
    if type(spec) is str:
        return by_spelling.get(spec) or _parse_text(spec)
    if type(spec) is Named:
        return spec
    # an instance of a subclass of str, which may define its own hash and comparison
    if isinstance(spec, str):
        return _parse_text(str(spec))
    if spec is None or isinstance(spec, bool | int | float):
        raise DeviceError(
            f"{shown(spec)} is not a device; accepted: {_ACCEPTED}{_index_hint(spec)}"
        )
    if type(spec) in (list, tuple):  # a framework's own device object may be a named tuple
        raise DeviceError(
            f"{shown(spec)} is a {type(spec).__qualname__}, but one device was expected; for several devices, "
            "use xdevice.parallel.replicate(x, devices) for a model or parameters, "
            "xdevice.parallel.broadcast(x, devices) for a tensor, or xdevice.split_batch(x, devices) for a batch"
        )
    return _parse_native(spec)


def register_spelling(text: str, device: Device) -> None:
    """Registers a string as a spelling of a device. The adapter for TensorFlow, for example,
    registers the names of the logical CPUs that are its virtual GPUs."""
    by_spelling[text] = device


def _index_hint(spec: object) -> str:
    """If `spec` is a bare int, which PyTorch accepts as the index of a GPU, returns advice for the end of the error.
    Returns "" for any other object."""
    # not `isinstance`, because True is an int too
    if type(spec) is int and spec >= 0:
        return f". For GPU {spec}, write xdevice.gpu({spec})"
    return ""


def _parse_text(text: str) -> Device:
    """Returns the device that a string names, and caches the result. Raises `DeviceError` if the string names no
    device."""
    import re

    # ASCII only, because in Unicode the Kelvin sign would match a "k"
    match = re.fullmatch(_SPELLING, text, re.IGNORECASE | re.ASCII)
    if match is None:
        # frequent mistakes: "gpu1", "gpu 1", "gpu-1", "gpu_1"
        mistake = re.fullmatch(r"([a-z]+)[ _.-]?([0-9]{1,5})", text, re.IGNORECASE | re.ASCII)
        hint = f" (did you mean '{mistake[1].lower()}:{mistake[2]}'?)" if mistake else ""
        raise DeviceError(f"{shown(text)} is not a device{hint}; accepted: {_ACCEPTED}")
    name = match["kind"].lower()
    if name not in KINDS and name not in HARDWARE:
        raise DeviceError(
            f"{shown(text)} is not a device: there is no kind of device called {shown(name)}{_nearest(name)}; "
            f"accepted: {_ACCEPTED}"
        )
    index = int(match["index"] or match["ordinal"] or 0)
    device = of(name, index) if name in KINDS else named(name, index)
    # without both limits, a program that keeps using new strings would fill the memory
    if len(by_spelling) < 1024 and device.index < _MOST_KEPT:
        by_spelling[text] = device
    return device


def _nearest(name: str) -> str:
    """Returns a hint ("did you mean ...?") for an error message, with the known name of a device that is most similar
    to `name`. Returns "" if no name is similar."""
    import difflib

    close = difflib.get_close_matches(name, sorted(KINDS | HARDWARE), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _parse_native(spec: object) -> Device:
    """Returns the device that a framework's own device object names. Raises `DeviceError` for
    any other object."""
    device = core_functions.from_native(spec)
    if device is None:
        raise DeviceError(
            f"{shown(spec)} of type {type(spec).__qualname__} is not a device; accepted: {_ACCEPTED}"
        )
    return device
