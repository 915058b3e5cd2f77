"""What every adapter must provide: the devices and tensors of a framework. The capabilities stand beside it.

The rules that are the same for all frameworks are not here but in the core, the rooms above this one. It promises an
adapter that

- a `device` handed to it exists on this backend, except in `to_native` and `from_native`;
- `move` is called only for a symbol, or for a tensor that is not on the device, or for which `device_of` raises
  `UnsupportedError` because it is in no one place, or in one that the adapter does not know; `move_model` only if
  `is_all_on` says no; `device_of` and `wait` only for tensors;
- a `dtype` handed to it is one of its `dtypes`, and none that the device `lacks`;
- containers, fallback, device spellings and error texts are the core's business.
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

    from .samples import Samples

Kind = Literal["tensor", "symbol", "model"]
"""What a framework's type is: a tensor, which moves to a new object; a symbol, which stands for a tensor while a
function is traced, so that it has no device yet and every move is recorded; a model, whose variables move in place."""


class DeviceInfo(NamedTuple):
    """The name of a device, and its memory in bytes where the framework tells."""

    name: str
    memory: int | None


VIRTUAL_GPU = DeviceInfo("virtual GPU (host memory)", None)
"""What `describe` says of a virtual GPU."""


class Memory(NamedTuple):
    """Bytes of a device's memory; None where the framework does not tell."""

    total: int | None
    free: int | None
    allocated: int | None
    """The bytes that this process has allocated through the framework."""
    peak: int | None
    """The most that `allocated` has been since the start or `reset_peak`."""
    pinned: int = 0
    """Page-locked bytes of the host that xdevice keeps for copies to and from GPUs; only asked of the CPU."""


class Way(NamedTuple):
    """How an object that is neither a tensor nor a model is walked or moved: what `xdevice.register` is told of its
    type, or what an adapter knows of types registered with its framework. If nothing is stated, its attributes are
    walked."""

    flatten: Callable[[Any], Any] | None = None
    """What is in it, as a dict or a list."""
    rebuild: Callable[[Any, Any], Any] | None = None
    """Makes an object like the first argument that holds the second, a dict or a list as `flatten` gives it."""
    move: Callable[[Any, Device], Any] | None = None
    """The object on a device: itself or a new one."""
    copy: Callable[[Any, Device], Any] | None = None
    """A copy of it on a device, in new storage; left out, `copy.deepcopy` and then `move`."""
    tensors: Callable[[Any], Iterable[tuple[str, Any]]] | None = None
    """For an object that moves itself: the tensors that tell where it is, each with the suffix that reaches it from the
    object, such as ".x"; left out, all tensors that can be seen in it."""
    instead: str = ""
    """Of an object that can be neither walked nor moved, what to do instead: the end of the error that says so."""
    dense: str = ""
    """Of a sparse or packed array, whose indices and lengths are tensors too: how to make it dense. It is moved and
    copied, and not cut, joined or summed by its parts; this is the end of the error that says so."""


class Primitives(ABC):
    """One framework, seen through the primitives that the core is written on.

    A subclass states the class attributes, then the methods in this order. `x` is a tensor of the framework, and in
    `move` and `copy` it may be a symbol.
    """

    name: ClassVar[str]
    """The name users select it by."""
    modules: ClassVar[tuple[str, ...]]
    """The top-level modules whose types belong to it."""
    minimum: ClassVar[tuple[int, ...]]
    """The oldest version of the framework that works."""
    dtypes: ClassVar[frozenset[str]]
    """The dtypes that it supports, by NumPy's names, and "bfloat16"."""
    dtype_names: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """Its own dtype objects and their names in `dtypes`, if their `name` or text is not that name: {half: "float16"}.
    Left out, `x.dtype` is read as `xdevice.base.dtypes.dtype_name` reads it."""
    short_floats: frozenset[str] = frozenset()
    """The 8-bit floats, by ml_dtypes's names, that `from_numpy`, `to_numpy` and `move` also take; nothing else does."""
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "gpu")
    """The device kinds it may have, in the order in which they are listed."""
    guests: ClassVar[tuple[str, ...]] = ()
    """Libraries over several frameworks whose models it can move when they run on it: ("keras",)."""
    moves_by: ClassVar[str | None] = None
    """The method by which objects of libraries around the framework move themselves to a native device: "to"."""
    releases_under_lock: ClassVar[bool] = False
    """Whether it holds a lock while it releases memory: `xdevice.contract.dlpack` says what is done about it."""
    refusal: str | None = None
    """Why it cannot be used in this process any more; set by the core in a forked child."""
    virtual: int = 0
    """The number of its GPUs if they are virtual, else 0; set by the core after `make_virtual_gpus`."""
    answered: frozenset[str] = frozenset()
    """The words for hardware that it has answered to, so that it is not asked again: which accelerator `gpu:i` is does
    not change, unless its GPUs become virtual, which answer to every word. Kept by `answers_to`."""
    most_axes: int = 64
    """How many axes a tensor may have; values come through NumPy, which does not allow more."""
    longest_axis: int = 2**63 - 1
    """How many elements a tensor may have along one axis."""
    most_virtual_gpus: int | None = None
    """How many virtual GPUs the framework can have at most, if there is a limit; the core does not ask for more."""

    # the framework

    @property
    @abstractmethod
    def framework(self) -> ModuleType:
        """The framework's top-level module, already imported."""

    @property
    def version(self) -> str:
        """The framework's version, as it states it."""
        return str(self.framework.__version__)

    @abstractmethod
    def classify(self, cls: type) -> Kind | None:
        """Whether objects of this type are tensors, symbols, models, or none of these. Asked once per type."""

    # devices

    @abstractmethod
    def count(self, kind: str) -> int:
        """How many devices of a kind there are, without starting one: 0 of any kind that it does not know."""

    @abstractmethod
    def describe(self, device: Device) -> DeviceInfo:
        """Name and memory of a device, `VIRTUAL_GPU` for a virtual one. May start it."""

    def hardware(self) -> frozenset[str]:
        """The words for the hardware that `gpu:i` is, of `devices.HARDWARE`: "cuda"; empty, it answers to each."""
        return frozenset()

    def lacks(self, device: Device) -> frozenset[str]:
        """The dtypes that the framework has and tensors on this device cannot have, as float64 on Apple's GPUs: nothing
        of such a dtype is made or moved there. Asked at each move to another device than cpu:0, which lacks nothing; it
        may start the device where nothing else tells."""
        return frozenset()

    def is_started(self, device: Device) -> bool:
        """Whether this process has used a GPU: asking anything else about one that it has not used starts it."""
        return True

    @abstractmethod
    def to_native(self, device: Device) -> Any:
        """The framework's own object for a device."""

    def describe_missing(self, device: Device) -> Any:
        """The framework's own object for a device that is not here, where it makes one without asking the hardware."""
        raise self.unsupported(
            f"a native object for {device}, which is not here",
            f"keep xdevice.device({str(device)!r}), and take its .native where the device exists",
        )

    @abstractmethod
    def from_native(self, native: Any) -> Device | None:
        """The device of a framework's own object; None if that object is not a device."""

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Makes the framework's own creation functions place on `device`, and restores."""

    # tensors

    @abstractmethod
    def device_of(self, x: Any) -> Device:
        """Where the memory of `x` is. It has to be as fast as possible: every verb calls it. Raises `UnsupportedError`
        for what is spread over several devices, and on a device of a kind that is not one of its `kinds`."""

    def probe(self, cls: type) -> Callable[[Any], Device]:
        """`device_of` for tensors of just this type, where that can be told faster. Asked once per type."""
        return self.device_of

    def devices_of(self, cls: type, tensors: Sequence[Any]) -> set[Device]:
        """Where tensors of just this type are, one or more: each device once. Raises what `device_of` raises."""
        return set(map(self.device_of, tensors))

    @abstractmethod
    def move(self, x: Any, device: Device) -> Any:
        """`x` on a device other than its own: same values, dtype, shape, `requires_grad`; gradients flow."""

    def move_all(self, tensors: Sequence[Any], device: Device) -> list[Any]:
        """Different tensors, none of which is on the device, there: what `move` gives for each."""
        return [self.move(x, device) for x in tensors]

    def start_move(self, x: Any, device: Device) -> Any:
        """As `move`, but the values may arrive later: whatever reads them waits for them first, `wait` of the result
        and `synchronize` of both devices do. What `x` is read from may not be written until then."""
        return self.move(x, device)

    @abstractmethod
    def copy(self, x: Any, device: Device) -> Any:
        """New storage on `device`, also on the same one: never an alias of `x`; gradients flow."""

    @abstractmethod
    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device (None: on all), and raises the errors of that work."""

    @abstractmethod
    def wait(self, x: Any) -> None:
        """Waits until `x` is computed, and raises the error of its computation."""

    # values

    @abstractmethod
    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """A new tensor of the array's dtype and values; never an alias of it."""

    @abstractmethod
    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """The values on the host, whatever the device, dtype or gradient; it may share the memory of `x`. Raises
        `UnsupportedError` for what NumPy has no array for, and says what to read instead."""

    @abstractmethod
    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """A tensor filled with one value, made on the device."""

    @abstractmethod
    def rand(self, shape: tuple[int, ...], device: Device, dtype: str) -> Any:
        """Uniform in [0, 1), made on the device where the framework can, by its own generator and seed."""

    def tracing(self) -> str | None:
        """What is tracing the function that runs now, such as "jax.jit": what is drawn on the host there is drawn once,
        and is the same at each call. None if nothing is, and where Python runs at each call."""
        return None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        """Calls a function of NumPy's as it is, where a compiler would make the framework's own operations of it."""
        return function()

    # containers

    def container_way(self, x: Any) -> Way | None:
        """How to walk or move an object of a type that the framework knows without it being a tensor or a model (a
        registered pytree); None for any other. The same for all objects of a type. Of a tensor, where the framework
        has host memory only: what objects it is made of; None for one of numbers."""
        return None

    # several devices

    def is_dense(self, x: Any) -> bool:
        """Whether a tensor is one block of numbers in memory: False for the sparse, the ragged and the masked ones, and
        for what is made of other tensors, as a sharded one is."""
        return True

    def is_host_bound(self, x: Any) -> bool:
        """Whether a tensor cannot be anywhere but on the host, as one of texts. In a container it stays there."""
        return False

    # memory

    def memory(self, device: Device) -> Memory:
        """Total, free, allocated and peak bytes of a device; None for what the framework does not tell."""
        raise self.unsupported("memory()", "override Backend.memory()")

    def reset_peak(self, device: Device) -> None:
        """Resets the peak to what is allocated now."""
        raise self.unsupported("resetting the peak of memory", "read xdevice.memory(device).allocated instead")

    # what people ask

    def why_no_gpu(self) -> str:
        """Why `count("gpu")` is 0 here, in a few words, for `xdevice info`."""
        return "no GPU is visible"

    # the process

    def on_choice(self) -> None:  # noqa: B027  # most frameworks need not be told
        """Called where the program chooses this backend, by `use`, `set_backend` or XDEVICE_BACKEND, in the thread that
        does; for the variable also when the program imports the framework."""

    def after_fork(self) -> str | None:
        """Called in a forked child. Why this backend cannot be used there, or None."""
        return None

    def samples(self) -> Samples:
        """What the conformance suite needs beside the contract: a network, a gradient, a second device."""
        raise self.unsupported("samples", "override Backend.samples() to run the conformance suite")

    # the same for every backend

    @property
    def is_host_only(self) -> bool:
        """Whether its tensors can only be in host memory: in a container with tensors of other backends they are data,
        like numbers."""
        return self.kinds == ("cpu",)

    def devices(self) -> tuple[Device, ...]:
        """Every device that exists."""
        return tuple(devices.of(kind, index) for kind in self.kinds for index in range(self.count(kind)))

    def has(self, device: Device) -> bool:
        """Whether the device exists, and is the hardware that it names."""
        if device.kind not in self.kinds or device.index >= self.count(device.kind):
            return False
        return type(device) is Device or self.answers_to(device)

    def require(self, device: Device) -> Device:
        """The device under its plain name: `gpu:1` for `cuda:1`. Raises `DeviceNotFoundError` unless it exists, and is
        the hardware that its name says."""
        if self.has(device):
            return device if type(device) is Device else devices.plain(device)
        there = ", ".join(map(str, self.devices()))
        hint = f"; xdevice.try_gpu({device.index}) falls back to cpu:0" if device.kind == "gpu" else ""
        if device.kind == "gpu" and self.count("tpu"):
            hint = "; it computes on tpu:0, which xdevice.try_gpu() gives"
        if self.is_host_only:
            hint = (
                f"; where the selected backend has it, xdevice.tensor(x, device={str(device)!r}) makes a tensor of an "
                f"array, and xdevice.convert(x, 'torch') makes one of another framework"
            )
        name = str(device)
        if type(device) is devices.Named and self.count("gpu"):
            name = f"{device.word}:{device.index}"
            hint = f", where gpu:i is {' or '.join(sorted(self.hardware()))}; write {device} for whatever there is"
        raise DeviceNotFoundError(f"{name} does not exist on {self.name}, which has {there}{hint}")

    def answers_to(self, device: Device) -> bool:
        """Whether a device, here or not, is named by a word for the hardware that `gpu:i` is, or by none."""
        if type(device) is not devices.Named or device.word in self.answered:
            return True
        words = frozenset() if self.virtual else self.hardware()
        if words and device.word not in words:
            return False
        self.answered |= {device.word}
        return True

    def refuse_if_frozen(self, draw: str, instead: str = "draw outside and pass the numbers in") -> None:
        """Raises `UnsupportedError` in a traced function, where a draw would give the same numbers at each call."""
        by = self.tracing()
        if by is not None:
            raise self.unsupported(
                f"{draw} inside a function that {by} traces: it would draw once, while tracing, and give the same "
                f"numbers at every call",
                instead,
            )

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        """The error to raise for a capability that this backend lacks: "models", "copying a sparse tensor"."""
        return UnsupportedError(f"{self.name} does not support {what}; {instead}")

    def __repr__(self) -> str:
        return f"<xdevice backend {self.name} {self.version}>"
