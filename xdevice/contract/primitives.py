"""The part of the contract that every adapter must provide: the devices and the tensors of a framework. The other parts
of the contract are capabilities, which a framework may lack.

The core (the packages of xdevice that call the adapters) implements the rules that are the same for all frameworks. It
guarantees to an adapter that

- a `device` that is passed to a method exists on this backend; only `to_native` and `describe_missing` may get a device
  that does not exist, and `from_native` may get the framework's object for such a device;
- `move` is called only for a symbol (see `Kind`), for a tensor that is not on the device, or for a tensor for which
  `device_of` raises `UnsupportedError` (a tensor on several devices or on a device that the adapter does not know);
- `move_model` is called only if `is_all_on` returns False;
- `device_of` and `wait` are called only for tensors;
- a `dtype` that is passed to a method is one of the adapter's `dtypes`, and the device does not lack it (see `lacks`);
- an adapter need not handle containers, the fallback to the CPU, spellings of devices, or the wording of errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from xdevice.base import devices
from xdevice.base.devices import Device
from xdevice.errors import DeviceNotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from .private import Names

Kind = Literal["tensor", "symbol", "model"]
"""The kinds of a framework's types. Moving a tensor returns a new object; moving a model moves its variables in place.
A symbol takes the place of a tensor while a function is traced: the symbol has no device yet, and each of its moves is
recorded."""


class DeviceInfo(NamedTuple):
    """The name of a device, and its memory in bytes. The memory is None if the framework does not report it."""

    name: str
    memory: int | None


VIRTUAL_GPU = DeviceInfo("virtual GPU (host memory)", None)
"""The description of a virtual GPU."""


class Memory(NamedTuple):
    """The sizes in bytes of a device's memory, and the device's name. A size is None if the framework does not report
    it."""

    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    """The bytes that this process has allocated through the framework."""
    peak: int | None = None
    """The maximum of `allocated` since the program started, or since the last call of `reset_peak_memory_stats`."""
    pinned: int = 0
    """For the CPU only: the bytes of page-locked memory that xdevice reserves for copies to and from GPUs."""
    name: str = ""
    """The framework's name for the device, such as "NVIDIA H200"."""


class Way(NamedTuple):
    """The way in which an object that is neither a tensor nor a model is searched for tensors, or moved.
    `xdevice.register_container` creates a `Way` from its arguments, and an adapter's `container_way` returns a `Way`
    for a type that is registered with the framework. If no field is set, the attributes of the object are walked."""

    flatten: Callable[[Any], Any] | None = None
    """A function that returns the contents of an object, as a dict or a list."""
    rebuild: Callable[[Any, Any], Any] | None = None
    """`rebuild(old, contents)` returns an object like `old` with other contents. `contents` has the form that `flatten`
    returns."""
    move: Callable[[Any, Device], Any] | None = None
    """`move(x, device)` moves the object to a device, and returns `x` itself or a new object."""
    copy: Callable[[Any, Device], Any] | None = None
    """`copy(x, device)` returns a copy on a device, in new storage. If this field is None, `copy.deepcopy` and then
    `move` are called."""
    tensors: Callable[[Any], Iterable[tuple[str, Any]]] | None = None
    """For an object that moves itself: a function that returns the tensors that determine the object's device, each
    with the path from the object to the tensor, such as ".x". If this field is None, all tensors that can be found in
    the object determine the device."""
    stays: tuple[str, ...] = ()
    """The names of attributes, at any depth, whose tensors are deliberately not moved. An example is the index tensors
    that PyG's `Batch` stores on the host. These tensors do not determine the object's device."""
    instead: str = ""
    """For an object that can be neither walked nor moved: advice on what to do instead. The error ends with this
    text."""
    dense: str = ""
    """For a sparse or packed array, whose indices and lengths are tensors too: advice on how to make it dense. Such an
    object can be moved and copied, but not split, joined or summed tensor by tensor. An error about such an operation
    ends with this text."""


class Primitives(ABC):
    """The methods for devices and tensors, on which everything else is built. Every adapter must implement the abstract
    methods for its framework.

    A subclass defines the class attributes first, and then the methods in this order. An argument `x` is a tensor of
    the framework; in `move` and `copy`, `x` may also be a symbol (see `Kind`).
    """

    name: ClassVar[str]
    """The name by which users select the backend."""
    modules: ClassVar[tuple[str, ...]]
    """The top-level modules of the framework. Their types belong to this backend."""
    minimum: ClassVar[tuple[int, ...]]
    """The oldest version of the framework that works."""
    dtypes: ClassVar[frozenset[str]]
    """The names of the dtypes that the framework supports: NumPy's names, and "bfloat16"."""
    dtype_names: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """A mapping from the framework's dtype objects to their names in `dtypes`, such as {half: "float16"}. An object is
    needed here only if neither its attribute `name` nor its `str` is its name in `dtypes`; see
    `xdevice.base.dtypes.dtype_name`."""
    opaque: tuple[type, ...] = ()
    """Types of the framework whose objects contain arrays for internal use only, such as random generators. These
    objects are not searched for tensors."""
    short_floats: frozenset[str] = frozenset()
    """The 8-bit floats, by their names in ml_dtypes, that `from_numpy`, `to_numpy` and `move` accept in addition to
    `dtypes`. No other method accepts these dtypes."""
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "gpu")
    """The kinds of devices that the framework may have, in the order in which they are listed."""
    guests: ClassVar[tuple[str, ...]] = ()
    """The libraries that run on several frameworks, such as ("keras",). The adapter can move their models if they run
    on this framework."""
    moves_by: ClassVar[str | None] = None
    """The name of the method, such as "to", with which objects of libraries based on the framework move themselves to a
    native device. None if the libraries have no such method in common."""
    private_names: ClassVar[Names | None] = None
    """The private names of the framework that the adapter needs. `xdevice info` lists the names that are absent."""
    is_compiling: ClassVar[staticmethod[[], bool] | None] = None
    """A static method that quickly determines whether the framework is compiling, because `eagerly` has an effect only
    then. None if there is no quick way."""
    releases_under_lock: ClassVar[bool] = False
    """Whether the framework holds its own lock while it releases memory, which can cause deadlocks; see `hand_over` in
    `xdevice.contract.dlpack`."""
    refusal: str | None = None
    """The reason why the backend cannot be used in this process, or None if it can be used. The core sets this
    attribute in a forked child."""
    virtual: int = 0
    """The number of the backend's GPUs if these are virtual, otherwise 0. The core sets this attribute after
    `make_virtual_gpus`."""
    answered: frozenset[str] = frozenset()
    """A cache of the names of hardware, such as "cuda", for which `answers_to` returned True. These names stay valid,
    because the accelerator that `gpu:i` means changes only if the GPUs become virtual, and then every name is valid."""
    computes_on: ClassVar[Literal["operands", "scope"]] = "operands"
    """The device on which the framework's operations compute. "operands": the device of their operands. "scope": the
    device of the innermost `scope` or, outside any scope, the framework's default device, even if the operands are on
    other devices. In the case "scope", a process that has its own GPU works in the scope of that GPU. An error about
    tensors on two devices then says on which device operations compute."""
    most_axes: int = 64
    """The maximum number of axes of a tensor. The default is NumPy's limit, because values pass through NumPy."""
    longest_axis: int = 2**63 - 1
    """The maximum number of elements of a tensor along one axis."""
    most_virtual_gpus: int | None = None
    """The maximum number of virtual GPUs of the framework, which the core does not exceed; None if there is no
    limit."""

    # hooks: the framework itself

    @property
    @abstractmethod
    def framework(self) -> ModuleType:
        """The framework's top-level module, already imported."""

    @property
    def version(self) -> str:
        """The framework's version, as the framework itself reports it."""
        return str(self.framework.__version__)

    @abstractmethod
    def classify(self, cls: type) -> Kind | None:
        """Returns the kind of the objects of this type: "tensor", "symbol" or "model"; None if they are none of these.
        Called once per type."""

    # hooks: devices

    @abstractmethod
    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind, without initializing any device; 0 for a kind that the adapter does
        not know."""

    @abstractmethod
    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name and the memory of a device; `VIRTUAL_GPU` for a virtual GPU. May initialize the device."""

    def hardware(self) -> frozenset[str]:
        """Returns the words from `devices.HARDWARE` that mean the hardware of `gpu:i` on this
        machine, such as "cuda". If the set is empty, every word is accepted as a name of
        `gpu:i`."""
        return frozenset()

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns the dtypes of the framework that tensors on this device cannot have, such as float64 on Apple's GPUs.
        The core neither creates tensors of such a dtype on the device nor moves them there. Called at each move to a
        device other than cpu:0, which lacks no dtype. May initialize the device if there is no other way to determine
        the dtypes."""
        return frozenset()

    def is_float32_default(self, device: Device) -> bool:
        """Whether floats on this device are float32 if no dtype is named, even if XDEVICE_FLOATS requests float64."""
        return False

    def is_started(self, device: Device) -> bool:
        """Whether this process has used (initialized) a GPU. The core calls this method before other methods, because
        reading a property of an unused GPU, such as the size of its memory, would initialize the GPU."""
        return True

    @abstractmethod
    def to_native(self, device: Device) -> Any:
        """Returns the framework's own object for a device."""

    def describe_missing(self, device: Device) -> Any:
        """Returns the framework's own object for a device that does not exist here. Raises `UnsupportedError` if the
        framework cannot create such an object without using the device."""
        raise self.unsupported(
            f"a native object for {device}, which does not exist here",
            f"use xdevice.device({str(device)!r}), and read its attribute `native` on a machine that has the device",
        )

    @abstractmethod
    def from_native(self, native: Any) -> Device | None:
        """Returns the device that `native`, an object of the framework, names; None if the object does not name a
        device."""

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside its block, the framework's own creation functions place tensors on
        `device`; at its end, the previous device is restored."""

    # hooks: tensors

    @abstractmethod
    def device_of(self, x: Any) -> Device:
        """Returns the device on which the memory of `x` is. This method must be as fast as possible, because nearly
        every function of xdevice calls it. Raises `UnsupportedError` for a tensor that is spread over several devices,
        or is on a device of a kind that is not in `kinds`."""

    def probe(self, cls: type) -> Callable[[Any], Device]:
        """Returns a function that returns the same as `device_of` for tensors of exactly this type, and may be faster.
        Called once per type."""
        return self.device_of

    def devices_of(self, cls: type, tensors: Sequence[Any]) -> set[Device]:
        """Returns the set of the devices of `tensors`, which are one or more tensors of exactly this type. Raises
        `UnsupportedError` if one of the tensors is spread over several devices, or is on a device of a kind that is not
        in `kinds`."""
        return set(map(self.device_of, tensors))

    @abstractmethod
    def move(self, x: Any, device: Device) -> Any:
        """Returns `x` on a device other than its own, with the same values, dtype, shape and `requires_grad`. Gradients
        flow."""

    def move_all(self, tensors: Sequence[Any], device: Device) -> list[Any]:
        """Moves several tensors, and returns a list of the results that `move` would return. The tensors are different
        objects, and none of them is on `device` yet."""
        return [self.move(x, device) for x in tensors]

    def start_move(self, x: Any, device: Device) -> Any:
        """Moves `x` like `move`, but may return before the values have arrived. Every operation that reads the result
        must wait for the values. A call of `wait` for the result, or of `synchronize` for either device, must wait for
        the values, too. Until the values have arrived, nothing may write into the memory of `x`."""
        return self.move(x, device)

    @abstractmethod
    def copy(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage on `device`, which may be the device of `x`. The result is never an
        alias of `x`. Gradients flow."""

    @abstractmethod
    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device, or on all devices if `device` is None, and raises the errors of that work."""

    @abstractmethod
    def wait(self, x: Any) -> None:
        """Waits until `x` is computed. If the computation has failed, raises its error."""

    # hooks: values on the host, and compilers that trace

    @abstractmethod
    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """Returns a new tensor on `device` with the dtype and the values of an array. The tensor is never an alias of
        the array."""

    @abstractmethod
    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as an array, whatever the device, the dtype or the gradient of `x`. The array may
        share the memory of `x`. Raises `UnsupportedError` for a tensor that no array can represent; the message says
        what to read instead."""

    @abstractmethod
    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """Returns a tensor that is filled with one value. The tensor is created on the device itself."""

    def tracing(self) -> str | None:
        """Returns the name of the compiler that is tracing the running function, such as "jax.jit". Returns None if no
        function is being traced, or if Python code runs again at each call of the compiled function. Random numbers
        that are drawn on the host during tracing are the same in each later call."""
        return None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        """Calls `function` outside the framework's compiler, and returns its result. Otherwise the compiler would
        replace the NumPy functions that `function` calls by the framework's own operations."""
        return function()

    # hooks: containers

    def container_way(self, x: Any) -> Way | None:
        """Returns the `Way` to walk or move an object that is neither a tensor nor a model, but whose type is
        registered with the framework (a pytree). Returns None for any other object. The result must be the same for all
        objects of a type. If `is_host_only` is True, the core calls this method for tensors too: for an array of Python
        objects, the `Way` leads to these objects; for an array of numbers, the result is None."""
        return None

    # hooks: the form of a tensor

    def is_dense(self, x: Any) -> bool:
        """Whether a tensor is one block of numbers in memory. False for sparse, ragged and masked tensors, and for a
        tensor that consists of other tensors, such as a sharded tensor."""
        return True

    def is_host_bound(self, x: Any) -> bool:
        """Whether a tensor, such as a tensor of strings, cannot leave the host. When a container is moved, such a
        tensor stays on the host."""
        return False

    # hooks: the framework's trees

    def register_tree_node(  # noqa: B027  # most frameworks have no trees
        self, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]
    ) -> None:
        """Registers a type with the framework's own trees (pytrees). Does nothing if the framework has no trees, or if
        the type is already registered. `flatten(x)` returns the children and the static part of an object;
        `unflatten(static, children)` creates an object from the static part and the children."""

    # hooks: memory

    def memory(self, device: Device) -> Memory:
        """Returns the total, free, allocated and peak bytes of a device. A value is None if the framework does not
        report it."""
        raise self.unsupported("memory()", "its adapter must override Backend.memory()")

    def empty_cache(self, device: Device) -> None:
        """Releases the memory that the framework has reserved for its next tensors on a device. `device` is a real
        device other than the CPU."""
        raise self.unsupported(
            "releasing memory before the process ends",
            "limit the framework's memory before the process starts",
        )

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of a device's memory to the number of bytes that are allocated now."""
        raise self.unsupported(
            "resetting the peak memory", "read xdevice.memory(device).allocated instead"
        )

    # hooks: texts for users

    def why_no_gpu(self) -> str:
        """Returns a few words for `xdevice info` that say why `count("gpu")` is 0 here."""
        return "no GPU is visible"

    # hooks: the process

    def on_choice(self) -> None:  # noqa: B027  # most frameworks have nothing to do here
        """Called when the program chooses this backend with `use_backend`, `set_backend` or XDEVICE_BACKEND, in the
        thread that makes the choice. If XDEVICE_BACKEND names this backend, also called when the program imports the
        framework."""

    def after_fork(self) -> str | None:
        """Returns the reason why this backend cannot be used in a forked child, or None if it can be used. Called in
        the child."""
        return None

    def default_to_float64(self) -> None:
        """Makes float64 the framework's default float dtype in the whole process."""
        raise self.unsupported(
            "runs in float64", "exclude this backend when you run xdevice parity --float64"
        )

    # not hooks: the same for every backend

    @property
    def is_host_only(self) -> bool:
        """Whether the tensors of this backend can only be in host memory. In a container with tensors of other
        backends, such tensors are treated as data, like numbers, and are not moved."""
        return self.kinds == ("cpu",)

    def devices(self) -> tuple[Device, ...]:
        """Returns every device of this backend that exists here."""
        return tuple(
            devices.of(kind, index) for kind in self.kinds for index in range(self.count(kind))
        )

    def has(self, device: Device) -> bool:
        """Whether the device exists here. If the device was named by its hardware (`cuda:1`), the backend's GPUs must
        also be that hardware."""
        if device.kind not in self.kinds or device.index >= self.count(device.kind):
            return False
        return type(device) is Device or self.answers_to(device)

    def require(self, device: Device) -> Device:
        """Returns the device without the name of its hardware: `gpu:1` for `cuda:1`. Raises `DeviceNotFoundError` if
        the device does not exist, or is not the hardware that its name specifies. Raises `SettingError` instead if
        XDEVICE_VIRTUAL_GPUS was set after the backend was loaded, and the backend has different GPUs."""
        if self.has(device):
            return device if type(device) is Device else devices.without_hardware_name(device)
        # the program may expect a virtual GPU, but may have set the variable too late
        if device.kind == "gpu":
            from . import environment

            environment.refuse_too_late(self)  # type: ignore[arg-type]
        # a later case replaces the hint of an earlier one
        existing = ", ".join(map(str, self.devices()))
        hint = (
            f"; xdevice.try_gpu({device.index}) falls back to cpu:0"
            if device.kind == "gpu"
            else ""
        )
        if device.kind == "gpu" and self.count("tpu"):
            hint = "; the backend computes on tpu:0, which xdevice.try_gpu() returns"
        if self.is_host_only:
            hint = (
                f"; to put an array on this device, select another backend and call "
                f"xdevice.tensor(x, device={str(device)!r}), or convert it with xdevice.convert(x, 'torch')"
            )
        name = str(device)
        if type(device) is devices.Named and self.count("gpu"):
            name = f"{device.word}:{device.index}"
            hint = f"; each gpu:i is {' or '.join(sorted(self.hardware()))}; write {device} for a GPU of any vendor"
        raise DeviceNotFoundError(
            f"{name} does not exist on {self.name}, which has {existing}{hint}"
        )

    def answers_to(self, device: Device) -> bool:
        """Whether the name of a device is valid on this backend, even if the device does not exist. Valid names are
        `gpu:1` and names of the hardware that `gpu:i` is here, such as `cuda:1`."""
        if type(device) is not devices.Named or device.word in self.answered:
            return True
        # virtual GPUs, and GPUs of unknown hardware, accept every word
        words = frozenset() if self.virtual else self.hardware()
        if words and device.word not in words:
            return False
        self.answered |= {device.word}
        return True

    def refuse_if_frozen(self, draw: str) -> None:
        """Raises `UnsupportedError` while a compiler traces a function, because the compiled function would return the
        same random numbers in each call. `draw` is the name of the random function in the message."""
        compiler = self.tracing()
        if compiler is not None:
            raise self.unsupported(
                f"{draw} inside a function that {compiler} traces: the numbers would be drawn once, during tracing, "
                f"and be the same in every call",
                "draw the numbers outside and pass them in",
            )

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        """Returns the error to raise for something that this backend does not support. `what` names it ("models",
        "copying a sparse tensor"), and `instead` says what to do instead."""
        return UnsupportedError(f"{self.name} does not support {what}; {instead}")

    def __repr__(self) -> str:
        return f"<xdevice backend {self.name} {self.version}>"
