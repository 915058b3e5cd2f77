"""The part of the contract that every adapter must provide: the devices and the tensors of a framework. The other
modules of this folder are capabilities, which a framework may lack.

The rules that are the same for all frameworks are not in adapters but in the core, the packages
of xdevice that call the adapters. The core promises an adapter that

- a `device` passed to a method exists on this backend; only `to_native` and `describe_missing` may get a device that
  does not exist, and `from_native` may get the framework's object for such a device;
- `move` is called only for a symbol (see `Kind`), for a tensor that is not on the device, or for a tensor for which
  `device_of` raises `UnsupportedError`, because it is on several devices or on one that the adapter does not know.
  `move_model` is called only if `is_all_on` returns False, `device_of` and `wait` only for tensors;
- a `dtype` passed to a method is one of the adapter's `dtypes`, and not one that the device `lacks`;
- an adapter need not handle containers, the fallback to the CPU, spellings of devices, or the
  texts of errors.
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
"""The kinds of a framework's types. A move returns a new object for a tensor, and moves the
variables of a model in place. A symbol takes the place of a tensor while a function is traced:
it has no device yet, and every move of it is recorded."""


class DeviceInfo(NamedTuple):
    """The name of a device, and its memory in bytes; None if the framework does not report the memory."""

    name: str
    memory: int | None


VIRTUAL_GPU = DeviceInfo("virtual GPU (host memory)", None)
"""The description of a virtual GPU."""


class Memory(NamedTuple):
    """The bytes of a device's memory; a field is None if the framework does not report it."""

    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    """The bytes that this process has allocated through the framework."""
    peak: int | None = None
    """The maximum of `allocated` since the start, or since `reset_peak_memory_stats`."""
    pinned: int = 0
    """For the CPU only: the page-locked bytes that xdevice keeps for copies to and from
    GPUs."""
    name: str = ""
    """The framework's name of the device, such as "NVIDIA H200"."""


class Way(NamedTuple):
    """How an object that is neither a tensor nor a model is searched for tensors, or moved.
    `xdevice.register_container` makes a `Way` from its arguments; an adapter's `container_way`
    returns one for types that are registered with its framework. If no field is set, the
    attributes of the object are walked."""

    flatten: Callable[[Any], Any] | None = None
    """Returns the contents of an object, as a dict or a list."""
    rebuild: Callable[[Any, Any], Any] | None = None
    """`rebuild(old, contents)` returns an object like `old` with other contents, in the form
    that `flatten` returns."""
    move: Callable[[Any, Device], Any] | None = None
    """`move(x, device)` returns the object on a device: `x` itself or a new one."""
    copy: Callable[[Any, Device], Any] | None = None
    """`copy(x, device)` returns a copy on a device, in new storage. If it is None,
    `copy.deepcopy` and then `move` are called."""
    tensors: Callable[[Any], Iterable[tuple[str, Any]]] | None = None
    """For an object that moves itself: returns the tensors that decide on which device it is,
    each with the path from the object to the tensor, such as ".x". If it is None, all tensors
    that can be found in the object decide."""
    stays: tuple[str, ...] = ()
    """The attributes, at any depth, whose tensors a move leaves on their device by design, such
    as the index tensors that PyG's `Batch` keeps on the host. They do not decide on which
    device the object is."""
    instead: str = ""
    """For an object that can be neither walked nor moved: advice on what to do instead, the end
    of the error."""
    dense: str = ""
    """For a sparse or packed array, whose indices and lengths are tensors too: advice on how to
    make it dense. Such an object can be moved and copied, but not split, joined or summed
    tensor by tensor; the error ends with this text."""


class Primitives(ABC):
    """The methods that every adapter must implement for its framework: those for devices and
    tensors, on which everything else is built.

    A subclass states the class attributes, then the methods in this order. An argument `x` is a tensor of the
    framework; in `move` and `copy` it may also be a symbol (see `Kind`).
    """

    name: ClassVar[str]
    """The name by which users select the backend."""
    modules: ClassVar[tuple[str, ...]]
    """The top-level modules of the framework: their types belong to this backend."""
    minimum: ClassVar[tuple[int, ...]]
    """The oldest version of the framework that works."""
    dtypes: ClassVar[frozenset[str]]
    """The dtypes that the framework supports, by NumPy's names, and "bfloat16"."""
    dtype_names: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """The framework's dtype objects with their names in `dtypes`, such as {half: "float16"}.
    Only needed if neither the attribute `name` nor the text of an object is that name; see
    `xdevice.base.dtypes.dtype_name`."""
    opaque: tuple[type, ...] = ()
    """Types of the framework whose objects have arrays for internal use only, such as random
    generators. They are not searched for tensors."""
    short_floats: frozenset[str] = frozenset()
    """The 8-bit floats, by ml_dtypes's names, that `from_numpy`, `to_numpy` and `move` accept
    in addition to `dtypes`; no other method does."""
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "gpu")
    """The kinds of devices that the framework may have, in the order in which they are listed."""
    guests: ClassVar[tuple[str, ...]] = ()
    """Libraries over several frameworks whose models the adapter can move when they run on its framework:
    ("keras",)."""
    moves_by: ClassVar[str | None] = None
    """The name of the method by which objects of libraries around the framework move themselves to a native device:
    "to"."""
    private_names: ClassVar[Names | None] = None
    """The private names of the framework that the adapter needs: `xdevice info` lists those that are absent."""
    is_compiling: ClassVar[staticmethod[[], bool] | None] = None
    """A static method that quickly returns whether the framework is compiling, which is when
    `eagerly` has an effect. None if there is no quick way."""
    releases_under_lock: ClassVar[bool] = False
    """Whether the framework holds its own lock while it releases memory, which could cause
    deadlocks; see `hand_over` in `xdevice.contract.dlpack`."""
    refusal: str | None = None
    """Why the backend cannot be used in this process any more; set by the core in a forked child."""
    virtual: int = 0
    """The number of the backend's GPUs if they are virtual, else 0; set by the core after `make_virtual_gpus`."""
    answered: frozenset[str] = frozenset()
    """A cache of the words for hardware for which `answers_to` returned True. They stay valid,
    because the accelerator that `gpu:i` means does not change, unless GPUs become virtual, and
    then every word is valid."""
    computes_on: ClassVar[Literal["operands", "scope"]] = "operands"
    """On which device the framework's operations compute. "operands": on the device of their
    operands. "scope": on the device of the innermost `scope`, or on the framework's default
    device outside any, whatever the devices of the operands. Then a process that has its own
    GPU is in the scope of that GPU, and errors for tensors on two devices say where operations
    compute."""
    most_axes: int = 64
    """How many axes a tensor may have at most; values pass through NumPy, which allows 64."""
    longest_axis: int = 2**63 - 1
    """How many elements a tensor may have along one axis."""
    most_virtual_gpus: int | None = None
    """How many virtual GPUs the framework can have at most, if there is a limit; the core does not ask for more."""

    # hooks: the framework itself

    @property
    @abstractmethod
    def framework(self) -> ModuleType:
        """The framework's top-level module, already imported."""

    @property
    def version(self) -> str:
        """The framework's version, as the framework itself states it."""
        return str(self.framework.__version__)

    @abstractmethod
    def classify(self, cls: type) -> Kind | None:
        """Returns what objects of this type are: tensors, symbols or models; None if they are none of these. Called
        once per type."""

    # hooks: devices

    @abstractmethod
    def count(self, kind: str) -> int:
        """Returns how many devices of a kind there are, without initializing any of them; 0 for a kind that the adapter
        does not know."""

    @abstractmethod
    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name and the memory of a device; `VIRTUAL_GPU` for a virtual GPU. May initialize the device."""

    def hardware(self) -> frozenset[str]:
        """Returns the words from `devices.HARDWARE` that mean the hardware of `gpu:i` on this
        machine, such as "cuda". If the set is empty, every word is accepted as a name of
        `gpu:i`."""
        return frozenset()

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns those dtypes of the framework that tensors on this device cannot have, such as float64 on Apple's
        GPUs. The core makes no tensor of such a dtype there, and moves none there. Called at each move to another
        device than cpu:0, which lacks no dtype. May initialize the device if there is no other way to know."""
        return frozenset()

    def is_float32_default(self, device: Device) -> bool:
        """Whether floats on this device are float32 unless a dtype is named, whatever XDEVICE_FLOATS says."""
        return False

    def is_started(self, device: Device) -> bool:
        """Whether this process has used (initialized) a GPU. The core calls it first, because
        other calls about an unused GPU, such as for its memory, would initialize it."""
        return True

    @abstractmethod
    def to_native(self, device: Device) -> Any:
        """Returns the framework's own object for a device."""

    def describe_missing(self, device: Device) -> Any:
        """Returns the framework's own object for a device that does not exist here, if the
        framework can make one for a device without using it; otherwise raises
        `UnsupportedError`."""
        raise self.unsupported(
            f"a native object for {device}, which does not exist here",
            f"use xdevice.device({str(device)!r}), and read its attribute `native` on a machine that has the device",
        )

    @abstractmethod
    def from_native(self, native: Any) -> Device | None:
        """Returns the device that a framework's own object names; None if that object is not a device."""

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager that makes the framework's own creation functions place tensors on `device`, and
        restores the previous device at its end."""

    # hooks: tensors

    @abstractmethod
    def device_of(self, x: Any) -> Device:
        """Returns the device on which the memory of `x` is. It must be as fast as possible, because nearly every
        function of xdevice calls it. Raises `UnsupportedError` for a tensor that is spread over several devices, or
        that is on a device of a kind that is not in `kinds`."""

    def probe(self, cls: type) -> Callable[[Any], Device]:
        """Returns a function that does what `device_of` does for tensors of exactly this type,
        and may be faster. Called once per type."""
        return self.device_of

    def devices_of(self, cls: type, tensors: Sequence[Any]) -> set[Device]:
        """Returns the set of devices on which one or more tensors of exactly this type are. Raises `UnsupportedError`
        if one of them is spread over several devices, or is on a device of a kind that is not in `kinds`."""
        return set(map(self.device_of, tensors))

    @abstractmethod
    def move(self, x: Any, device: Device) -> Any:
        """Returns `x` on a device other than its own, with the same values, dtype, shape and `requires_grad`. Gradients
        flow."""

    def move_all(self, tensors: Sequence[Any], device: Device) -> list[Any]:
        """Moves several tensors, and returns what `move` would return for each. The tensors are
        different objects, and none of them is on `device` yet."""
        return [self.move(x, device) for x in tensors]

    def start_move(self, x: Any, device: Device) -> Any:
        """Does what `move` does, but may return before the values have arrived. Every operation
        that reads the result must wait for them, and so must `wait` for the result, and
        `synchronize` for either device. Until then nobody may write into the memory of `x`."""
        return self.move(x, device)

    @abstractmethod
    def copy(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage on `device`, which may be the device of `x`; never an alias of `x`.
        Gradients flow."""

    @abstractmethod
    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device (None: on all), and raises the errors of that work."""

    @abstractmethod
    def wait(self, x: Any) -> None:
        """Waits until `x` is computed, and raises the error of its computation."""

    # hooks: values on the host, and compilers that trace

    @abstractmethod
    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """Returns a new tensor on `device` with the dtype and the values of an array; never an alias of the array."""

    @abstractmethod
    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as an array, whatever the device, the dtype or the gradient
        of `x`; the array may share the memory of `x`. Raises `UnsupportedError` for a tensor
        that no array can represent; the message says what to read instead."""

    @abstractmethod
    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """Returns a tensor filled with one value, made on the device itself."""

    def tracing(self) -> str | None:
        """Returns the name of the compiler that traces the function that runs now, such as "jax.jit". Random numbers
        that are drawn on the host while a function is traced are the same at each later call. None if nothing traces,
        or if Python code runs again at each call."""
        return None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        """Returns `function()`, called outside the framework's compiler. Inside, the compiler
        would replace the NumPy functions that it calls by the framework's own operations."""
        return function()

    # hooks: containers

    def container_way(self, x: Any) -> Way | None:
        """Returns how to walk or move an object that is neither a tensor nor a model, but whose
        type is registered with the framework (a pytree); None for any other object. The result
        must be the same for all objects of a type. If the adapter has `is_host_only`, the core
        calls the method for tensors, too: for an array of Python objects the method returns how
        to get these objects, and for an array of numbers None."""
        return None

    # hooks: the form of a tensor

    def is_dense(self, x: Any) -> bool:
        """Whether a tensor is one block of numbers in memory. False for sparse, ragged and masked tensors, and for a
        tensor that is made of other tensors, as a sharded one is."""
        return True

    def is_host_bound(self, x: Any) -> bool:
        """Whether a tensor cannot leave the host: a tensor of strings, for example. When a container is moved, such a
        tensor stays on the host."""
        return False

    # hooks: the framework's trees

    def register_tree_node(  # noqa: B027  # most frameworks have no trees
        self, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]
    ) -> None:
        """Registers a type with the framework's own trees (pytrees), if it has any and the type
        is not registered yet. `flatten(x)` returns the children and the static part of an
        object; `unflatten(static, children)` makes an object from these."""

    # hooks: memory

    def memory(self, device: Device) -> Memory:
        """Returns the total, free, allocated and peak bytes of a device; each is None if the
        framework does not report it."""
        raise self.unsupported("memory()", "its adapter must override Backend.memory()")

    def empty_cache(self, device: Device) -> None:
        """Releases the memory that the framework keeps for its next tensors on a real device
        other than the CPU."""
        raise self.unsupported(
            "releasing memory before the process ends",
            "limit its memory before the process starts",
        )

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of a device's memory to the bytes that are allocated now."""
        raise self.unsupported(
            "resetting the peak memory", "read xdevice.memory(device).allocated instead"
        )

    # hooks: texts for users

    def why_no_gpu(self) -> str:
        """Returns why `count("gpu")` is 0 here, in a few words, for `xdevice info`."""
        return "no GPU is visible"

    # hooks: the process

    def on_choice(self) -> None:  # noqa: B027  # most frameworks have nothing to do here
        """Called when the program chooses this backend with `use_backend`, `set_backend` or
        XDEVICE_BACKEND, in the thread that chooses it. If the variable names this backend, also
        called when the program imports the framework."""

    def after_fork(self) -> str | None:
        """Called in a forked child. Returns why this backend cannot be used there, or None if it can."""
        return None

    def default_to_float64(self) -> None:
        """Makes float64 the framework's default dtype of floats, in the whole process."""
        raise self.unsupported(
            "runs in float64", "exclude this backend when you run xdevice parity --float64"
        )

    # not hooks: the same for every backend

    @property
    def is_host_only(self) -> bool:
        """Whether the tensors of this backend can only be in host memory. In a container with
        tensors of other backends they are data, like numbers, and are not moved."""
        return self.kinds == ("cpu",)

    def devices(self) -> tuple[Device, ...]:
        """Returns every device of this backend that exists here."""
        return tuple(
            devices.of(kind, index) for kind in self.kinds for index in range(self.count(kind))
        )

    def has(self, device: Device) -> bool:
        """Whether the device exists here. For a device that was named by its hardware (`cuda:1`), also whether it is
        that hardware."""
        if device.kind not in self.kinds or device.index >= self.count(device.kind):
            return False
        return type(device) is Device or self.answers_to(device)

    def require(self, device: Device) -> Device:
        """Returns the device under its plain name: `gpu:1` for `cuda:1`. Raises
        `DeviceNotFoundError` if it does not exist, or if it is not the hardware that its name
        says; `SettingError` instead if XDEVICE_VIRTUAL_GPUS, which was set after the backend
        was loaded, requests GPUs that it does not have."""
        if self.has(device):
            return device if type(device) is Device else devices.plain(device)
        # the program may expect a virtual GPU, because it has set the variable too late
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
        """Whether the name of a device is valid on this backend, even if the device does not exist: a plain name
        (`gpu:1`), or one with a word for the hardware that `gpu:i` is here (`cuda:1`)."""
        if type(device) is not devices.Named or device.word in self.answered:
            return True
        # virtual GPUs, and GPUs of unknown hardware, accept every word
        words = frozenset() if self.virtual else self.hardware()
        if words and device.word not in words:
            return False
        self.answered |= {device.word}
        return True

    def refuse_if_frozen(self, draw: str) -> None:
        """Raises `UnsupportedError` while a compiler traces a function, which would return the
        same random numbers at each call. `draw` is the text that names the draw in the
        message."""
        compiler = self.tracing()
        if compiler is not None:
            raise self.unsupported(
                f"{draw} inside a function that {compiler} traces: the numbers would be drawn once, during tracing, "
                f"and be the same in every call",
                "draw the numbers outside and pass them in",
            )

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        """Returns the error to raise for something that this backend does not support (`what`: "models", "copying a
        sparse tensor"); `instead` says what to do."""
        return UnsupportedError(f"{self.name} does not support {what}; {instead}")

    def __repr__(self) -> str:
        return f"<xdevice backend {self.name} {self.version}>"
