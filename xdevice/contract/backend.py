"""What an adapter must provide: the abstract class `Backend`, and the check made when one is registered.

The rules that are the same for all frameworks are not here but in the core, the rooms above this one. It promises an
adapter that

- a `device` handed to it exists on this backend, except in `to_native` and `from_native`;
- `move` is called only for a symbol, or for a tensor that is not on the device, or for which `device_of` raises
  `UnsupportedError` because it is spread over several; `move_model` only if `is_all_on` says no; `device_of` and
  `wait` only for tensors;
- a `dtype` handed to it is one of its `dtypes`;
- containers, fallback, device spellings and error texts are the core's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from xdevice.base import devices
from xdevice.base.devices import Device
from xdevice.errors import ContractError, DeviceNotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from .calls import Around, Call
    from .dlpack import Lent
    from .layouts import Layer, Part
    from .optimizers import Optimizer
    from .processes import Engine, Group
    from .samples import Samples

Kind = Literal["tensor", "symbol", "model"]
"""What a framework's type is: a tensor, which moves to a new object; a symbol, which stands for a tensor while a
function is traced, so that it has no device yet and every move is recorded; a model, whose variables move in place."""


class DeviceInfo(NamedTuple):
    """What people want to know of a device: its name, and its memory in bytes where the framework tells."""

    name: str
    memory: int | None


VIRTUAL_GPU = DeviceInfo("virtual GPU (host memory)", None)
"""What `describe` says of a virtual GPU."""


class Memory(NamedTuple):
    """Bytes of a device's memory; None where the framework does not tell."""

    total: int | None
    free: int | None
    allocated: int | None
    """By this process, through the framework."""
    peak: int | None
    """The most that `allocated` has been since the start or `reset_peak`."""
    pinned: int = 0
    """Page-locked bytes of the host that xdevice keeps for copies to and from GPUs; only asked of the CPU."""


class Takes(NamedTuple):
    """What memory of another framework a framework can work in: in any other it gives wrong values or crashes."""

    alignment: int = 1
    """Its first byte is at a multiple of this many bytes."""
    strides: Literal["any", "forward", "compact"] = "any"
    """"forward": none is negative. "compact": those of C order."""
    labels: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """The dtypes that it labels differently from DLPack: its code and bits, by name."""


class Transfer(NamedTuple):
    """One read by the host, or one copy between devices, that a program has made."""

    backend: str
    kind: Literal["read", "move"]
    how: str
    """The call that made it: "item", "numpy", "print", "to_device", ..."""
    source: Device
    destination: Device
    nbytes: int
    physical: bool
    """False for a read on the CPU, which moves nothing there and would on a GPU."""


class Way(NamedTuple):
    """How an object that is neither a tensor nor a model is walked or moved: what `xdevice.register` is told of its
    type, or what an adapter knows of types registered with its framework. If nothing is stated, its attributes are
    walked."""

    flatten: Callable[[Any], Any] | None = None
    """What is in it, as a dict or a list."""
    rebuild: Callable[[Any, Any], Any] | None = None
    """Another one like it, with this in it: a dict or a list as `flatten` gives."""
    move: Callable[[Any, Device], Any] | None = None
    """The object on a device: itself or a new one."""
    copy: Callable[[Any, Device], Any] | None = None
    """A copy of it on a device, in new storage; left out, `copy.deepcopy` and then `move`."""
    tensors: Callable[[Any], Iterable[tuple[str, Any]]] | None = None
    """Of an object that moves itself, the tensors that tell where it is, by what is written behind its name to get at
    them; left out, all that can be seen in it."""


class Backend(ABC):
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
    @abstractmethod
    def version(self) -> str:
        """The framework's version, as it states it."""

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

    def is_started(self, device: Device) -> bool:
        """Whether this process has used a GPU: asking anything else about one that it has not used starts it."""
        return True

    @abstractmethod
    def to_native(self, device: Device) -> Any:
        """The framework's own object for a device."""

    @abstractmethod
    def from_native(self, native: Any) -> Device | None:
        """The device of a framework's own object; None if that object is not a device."""

    @abstractmethod
    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Makes the framework's own creation functions place on `device`, and restores."""

    # tensors

    @abstractmethod
    def device_of(self, x: Any) -> Device:
        """Where the memory of `x` is. It has to be as fast as possible: every verb calls it."""

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

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor on cpu:0 of an array's dtype and values that takes its memory over where the framework can. The
        array is not empty, C-contiguous, begins at a multiple of `alignment.ALIGNMENT`, and is nobody else's."""
        return self.from_numpy(array, devices.CPU)

    @abstractmethod
    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """The values on the host, whatever the device, dtype or gradient; it may share the memory of `x`. Raises
        `UnsupportedError` for what NumPy has no array for, and says what to read instead."""

    def gives_away(self, x: Any) -> bool:
        """Whether `to_numpy` of this tensor gives memory that neither the framework nor anybody else keeps. Otherwise
        the core copies it before a user may write into it; read-only memory it always copies."""
        return False

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        """The values on the host for a caller that reads them at once and keeps nothing: `to_numpy` without the copy
        that the framework makes of memory that NumPy could read."""
        return self.to_numpy(x)

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

    # arithmetic

    def namespace(self) -> Any:
        """The kernels that `xdevice.array_namespace` is made of, as a module or object; `xdevice.contract.arithmetic`
        says which, and what they are promised."""
        raise self.unsupported("array namespace", "compute with the framework's own functions")

    def nn(self) -> Any:
        """The kernels that `xdevice.nn` is made of, as a module or object; `xdevice.contract.nn` says which, and what
        they are promised. For a backend with a namespace."""
        raise self.unsupported("neural-network functions", "compute with the framework's own functions")

    def value_and_grad(
        self, leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        """Calls `call` once, on tensors that stand for `leaves`, which are dense and of floats, or symbols: it gives a
        loss, which is one float, and a list of anything. Returns the loss, its gradient for each leaf, and the list. A
        gradient is dense, with the leaf's shape, dtype and device; None, or zeros, where the loss does not depend on
        the leaf, and None for all if it depends on none.

        Two leaves may be one object, and are two inputs. Leaves, and what else the loss depends on, keep their flags
        and gradients, also when `call` raises. Recording is on inside, whatever the caller has switched off. What is
        returned is detached, unless `nested` says that a gradient is asked for of what is computed from it, or a leaf
        is the result of recorded work: then gradients flow on through it, or it raises `UnsupportedError`."""
        raise self.unsupported(
            "gradients", "choose a backend that does: XDEVICE_BACKEND=torch, tensorflow, paddle, mxnet or jax"
        )

    def update(self, leaves: list[Any], grads: list[Any], rule: Callable[[Any, Any], Any], nested: bool) -> list[Any]:
        """`rule(leaf, gradient)` for each pair, on the leaf's device, not recorded for gradients unless `nested`. What
        the rule gets is not memory of `leaves` and `grads`, where tensors can be written."""
        own = [[self.copy(x, self.device_of(x)) for x in pair] for pair in zip(leaves, grads, strict=True)]
        return [rule(*pair) for pair in own]

    # sharing memory with another framework: what is not said here goes through the host

    def takes(self) -> Takes | None:
        """What memory `adopt` can take over; None if it cannot take over any."""
        return None

    def dtype_refusal(self, dtype: str) -> str | None:
        """Why one of the `dtypes` would be narrowed as the framework is set up now, and what to do about it; None if it
        would not."""
        return None

    def shares(self, device: Device) -> bool:
        """Whether the memory of a device is where other frameworks look for it: the host's, or that of a real GPU."""
        return device is devices.CPU or (device.kind == "gpu" and not self.virtual)

    def detached(self, x: Any) -> Any:
        """`x` in the same memory without its gradient; `x` itself if it asks for none. Raises `UnsupportedError` for
        what is not a dense tensor."""
        return x

    def finish(self, x: Any) -> None:
        """Waits for work on the memory of `x` that another framework could not know of, and raises its error."""
        self.wait(x)

    def lending(self, x: Any) -> AbstractContextManager[Any]:
        """Entered while another framework takes over the memory of `x`."""
        return nullcontext()

    def memory_layout(self, x: Any) -> tuple[int, bool, bool] | None:
        """Of a detached tensor: its address in bytes, whether it is in C order, whether no stride is negative; where
        the framework tells it faster than a capsule does. With None, a capsule is exported and looked at."""
        return None

    def export(self, x: Any) -> Any:
        """An unversioned DLPack capsule of a detached tensor that keeps its memory alive. Raises `BufferError` where
        the capsule would not describe the values, or the memory must not be given away."""
        raise self.unsupported("sharing its memory", "its tensors are copied through the host")

    def compact(self, x: Any) -> Any:
        """A copy of a detached tensor on its device that any framework can take over: in C order, at a multiple
        of `alignment.ALIGNMENT`. Asked of NumPy's adapter for everything on cpu:0."""
        return self.copy(x, self.device_of(x))

    def adopt(self, lent: Lent, dtype: str) -> Any:
        """A tensor in the memory of another framework, which `takes` allows: `lent.capsule` is consumed, or `lent` as
        an array of DLPack's protocol."""
        raise self.unsupported("taking memory over", "tensors are copied to it through the host")

    # models, where the framework has them

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Name and device of each variable that says where a model is; raises `NotBuiltError` if the
        model has not been built yet."""
        raise self.unsupported("models", "put the parameters into a dict: it moves as a container")

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` for a model with a variable that has no values yet: each copy would draw its own."""
        for _ in self.model_devices(model):
            pass

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether `move_model` has nothing to do. A model may own more than the variables that say where it is,
        metrics for instance, and one without variables may hold tensors that its framework does not list."""
        places = [place for _, place in self.model_devices(model)]
        return bool(places) and all(place is device for place in places)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Name and value of each variable, as the framework's own state dict has them: with running statistics, but
        without unsaved buffers or an optimizer that the model owns; a shared one under each of its names, as one
        object. An optimizer gives its state, a lone variable the name "". Names are unique, and for a model the same
        whenever it is built in the same way. A value is what `device_of` and `to_numpy` take: a tensor, or a
        `tf.Variable`. Raises `NotBuiltError` if the model has not been built yet."""
        raise self.unsupported("models", "put the parameters into a dict: it is a container")

    def state_to_come(self, optimizer: Any, names: Sequence[str]) -> Mapping[str, Any]:
        """Tensors for the state that an optimizer makes only in its first step, by their names: all of the state of
        each parameter that `names` mentions and that does not have any yet. The optimizer owns it after `take_state`,
        and computes as before until then. Empty for any other model."""
        return {}

    def take_state(self, optimizer: Any, state: Mapping[str, Any]) -> None:  # noqa: B027  # most have none to take
        """Called by `load` after it has written into the variables of a model and into its `state_to_come`."""

    def optimizer(self, optimizer: Any) -> Optimizer:
        """What an optimizer computes, in PyTorch's terms: `xdevice.contract.optimizers` has the kinds and settings.
        Asked of any object of the framework's; raises `UnsupportedError` by name for a class whose formula is not
        among them, and for a subclass, which may compute anything."""
        raise self.unsupported(
            f"reading what a {type(optimizer).__qualname__} computes", "compare its settings by hand"
        )

    def layers(self, model: Any) -> Iterable[Layer]:
        """The layers of a model whose kind `layouts` knows, each once, in the order of their definition: their
        parts have the names of `variables`. Layers without parameters, or of another kind, are left out."""
        raise self.unsupported("layers of models", "give the parameters as a dict, and their kinds")

    def parts(self, kind: str, settings: Mapping[str, object]) -> Sequence[Part]:
        """The parts that a layer of a kind may have: PyTorch's own, unless said otherwise. `settings` are those of a
        layer of any framework, and may be incomplete."""
        from . import layouts

        return layouts.parts(kind, settings)

    def operations(self, model: Any) -> Iterable[Layer]:
        """The layers without parameters, which have no parts, among those of `layers`, each once, in the order of their
        definition: kinds and settings are those that `xdevice.contract.operations` lists, paths those of `calls`, and
        `line` says which of them nothing comes between. What a function does is not seen. A layer of a class from
        outside of the framework that says by itself what it computes is one of kind "other", or has one behind it."""
        raise self.unsupported("settings of layers without parameters", "compare them yourself")

    def calls(self, model: Any) -> AbstractContextManager[list[Call]]:
        """A list that gets each call of a layer of a model as it ends, while the block is open, in this thread or task
        and in those that `xdevice.parallel` starts. Layers with the parameters that `layers` knows are seen whatever
        children they have, other layers only if they have none. Raises `UnsupportedError` for a model whose layers a
        compiler has hidden, `NotBuiltError` if it has not been built yet. Afterwards nothing is left on the model."""
        raise self.unsupported("seeing the calls of layers", "compare what the model returns")

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """While the block is open, each call of a model that is not made inside of another one's call is
        `around(model, arguments, call)`, in any thread: `call` makes it, `around` returns what it is to return. A layer
        or a loss that is called by itself is a model too."""
        raise self.unsupported("seeing the calls of models", "name the model")

    def infer(self, model: Any, inputs: tuple[Any, ...]) -> Any:
        """What a model returns in evaluation mode, not recorded for gradients. It keeps its own mode."""
        raise self.unsupported("calling models", "call the model")

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the images that a model takes have their channels behind rows and columns; None if nothing says."""
        return None

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves every variable in place, with the state of an optimizer that the model owns. What it returns, if not
        None, replaces the model."""
        raise self.unsupported("models", "put the parameters into a dict: it moves as a container")

    def copy_model(self, model: Any, device: Device) -> Any:
        """A new model on `device` that shares no storage with this one."""
        raise self.unsupported("models", "put the parameters into a dict: it moves as a container")

    def model_parts(self, model: Any) -> Iterable[Any]:
        """The parts of a model that a user may hold beside it: its variables, as the model hands them out, and its
        submodels. A copy has as many, in the same order, so that `copy_to` can match them."""
        return ()

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces the model's tensors that have these `id`s: what two models share stays shared, where a move makes
        new tensors of some."""
        raise self.unsupported("models that share tensors", "override Backend.rebind()")

    # what is neither a tensor nor a model

    def way_into(self, x: Any) -> Way | None:
        """How to walk or move an object of a type that the framework knows without it being a tensor or a model (a
        registered pytree); None for any other. The same for all objects of a type. Of a tensor, where the framework
        has host memory only: what objects it is made of; None for one of numbers."""
        return None

    # several devices

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Parts of `x` of these sizes along its first axis, where `x` is; they may be views of it; gradients flow."""
        ends = list(accumulate(sizes))
        return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def join(self, parts: list[Any]) -> Any:
        """New storage for the parts along the first axis, numbers as a vector. They are on one device, of one dtype,
        and alike but for their length; gradients flow."""
        raise self.unsupported("gather", "override Backend.join()")

    def leaf(self, x: Any, device: Device) -> Any:
        """What one differentiates with respect to: a copy of `x` on `device`, in storage of its own, with no gradient
        link to `x`, requiring its gradient if it holds floats. A parameter is a parameter again, with its flags."""
        raise self.unsupported("replicate", "override Backend.leaf()")

    def is_dense(self, x: Any) -> bool:
        """Whether a tensor is one block of numbers: False for the sparse, the ragged and the masked ones."""
        return True

    def tensor_of(self, model: Any) -> Any | None:
        """The tensor, to be read, of a model that is one variable (`tf.Variable`, a Gluon `Parameter`); else None."""
        return None

    def can_write(self, x: Any) -> bool:
        """Whether `write` works for this tensor."""
        return False

    def memory_of(self, x: Any) -> tuple[int, tuple[int, ...]] | None:
        """Where `write` writes: address of the first element and strides in bytes of a dense tensor, without starting
        or waiting for anything. None where no two tensors can share memory that is written."""
        return None

    def write(self, x: Any, value: Any) -> None:
        """Puts values into the memory of a tensor, or of a model that is one variable: `value` is a tensor of the same
        shape and dtype on the same device, and never aliased. Not recorded for gradients; flags stay."""
        raise self.unsupported("tensors that can be written", "use the new tensor instead of the old one")

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """The sum or mean of tensors of one device, in new storage, added in their order; not recorded for gradients.
        16-bit floats are added as float32, and rounded once. `tensors` is one or more, and can be walked only once."""
        raise self.unsupported("all_reduce", "override Backend.total()")

    def all_reduce(self, tensors: list[Any], mean: bool) -> list[Any]:
        """Gives each of two or more dense tensors, alike but for their devices, the sum or mean of all, bit for bit the
        same: in place where it can be written, else as a new one. Never through the host if devices reach each other.
        """
        first = self.device_of(tensors[0])
        total = self.total((x if self.device_of(x) is first else self.move(x, first) for x in tensors), mean)
        return [self._given(x, total) for x in tensors]

    def _given(self, x: Any, value: Any) -> Any:
        """`x` with these values, or a new tensor of them where `x` is."""
        device = self.device_of(x)
        if not self.can_write(x):
            return self.copy(value, device)
        self.write(x, value if self.device_of(value) is device else self.move(value, device))
        return x

    # several processes, where the framework has an engine for them

    def engines(self) -> Sequence[str]:
        """The engines that could be started here, the best first, as names for `start_engine`: "gloo". Imports and
        starts nothing that the adapter has not."""
        return ()

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts one of the `engines` for this process of a group: all its processes call it at the same time, and may
        tell each other addresses by `group.exchange`. Listens where `group.host` is, and nowhere else."""
        raise self.unsupported(f"an engine {name!r} for several processes", "choose engine='auto', which takes PyTorch")

    def why_no_engine(self) -> str:
        """Why `engines` is empty here, in a few words, for who asks for one by name."""
        return "it has no engine here"

    def gradients(self, model: Any) -> Iterable[tuple[str, Any | None]]:
        """Name and gradient of each variable of a model that is trained, in an order that is the same in each process;
        None where it has none yet. Raises `UnsupportedError` where the framework keeps gradients apart from models."""
        raise self.unsupported("gradients that a model keeps", "pass the gradients as a list or a dict")

    # streams and events, where the framework has them

    def new_stream(self, device: Device) -> Any:
        """A new stream of work on a device."""
        raise self.unsupported("streams", "it orders its work by itself; xdevice.parallel() runs tasks side by side")

    def current_stream(self, device: Device) -> Any:
        """The stream that this thread's work on a device goes to."""
        raise self.unsupported("streams", "it orders its work by itself; xdevice.parallel() runs tasks side by side")

    def stream_scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Sends this thread's work to a stream inside the block."""
        raise self.unsupported("streams", "it orders its work by itself; xdevice.parallel() runs tasks side by side")

    def stream_wait(self, stream: Any, event: Any) -> None:
        """Makes later work of a stream wait for an event; the host goes on."""
        raise self.unsupported("streams", "it orders its work by itself; xdevice.parallel() runs tasks side by side")

    def new_event(self, device: Device) -> Any:
        """A new event that can be timed."""
        raise self.unsupported("events", "xdevice.Timer waits for the device and reads the host's clock")

    def require_events(self, device: Device) -> None:
        """Raises `UnsupportedError` where a device has no events. To be overridden where `new_event` starts it."""
        self.new_event(device)

    def record(self, event: Any, stream: Any) -> None:
        """Marks the point that a stream's work has reached."""
        raise self.unsupported("events", "xdevice.Timer waits for the device and reads the host's clock")

    def wait_event(self, event: Any) -> None:
        """Waits on the host until a recorded event has happened."""
        raise self.unsupported("events", "xdevice.Timer waits for the device and reads the host's clock")

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds of device time between two events that have happened."""
        raise self.unsupported("events", "xdevice.Timer waits for the device and reads the host's clock")

    def keep_for(self, x: Any, stream: Any) -> None:  # noqa: B027  # nothing to do where nothing is given away
        """Tells the allocator that a stream uses `x`, whose memory is then kept until that stream is done."""

    # graphs of recorded work, where the framework has them

    compiler: ClassVar[str] = ""
    """What takes Python out of a repeated function in the framework's own way: "tf.function"."""

    def new_graph(self, device: Device) -> Any:
        """A graph of work on a device, without any work yet."""
        raise self.no_graphs()

    def only_on(self, device: Device) -> AbstractContextManager[Any]:
        """Raises `DeviceMismatchError` for work of this thread inside that reads, makes or writes what is elsewhere."""
        raise self.no_graphs()

    def capture(self, graph: Any, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls a task and records the work that it gives to a stream in a graph, instead of doing it. Gives its
        result without gradients, whose memory each replay writes anew. What the work reads lives as long as the graph.
        Raises the framework's errors for what cannot be recorded; then all is as before."""
        raise self.no_graphs()

    def replay(self, graph: Any) -> None:
        """Does the work of a graph on this thread's current stream."""
        raise self.no_graphs()

    # threads

    threads: Literal["many", "one"] = "many"
    """Whether tasks may run in a thread each, or must share one enqueueing thread. Either way methods are called in any
    thread: an adapter whose framework is for one at a time holds a lock."""

    stream_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """Whether `stream_scope` sends the work of its own thread to a stream, or that of all threads."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads the calling thread's state (device scope, gradient mode, autocast, recording, ...) and gives a function
        that makes a context manager of it for another thread. What threads may not do at once is serialised inside.
        If it has an attribute `rejoin`, that is called in the first thread when the other one has given a result."""
        return nullcontext

    # copying in the background

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy a tensor, or a NumPy array as a tensor, from the host to a device through pinned memory where
        the framework has it. The copy is ordered on this thread's current stream. On return `x` has been read, so that
        its owner may write into it, and the result is not an alias of what can be written into."""
        raise self.unsupported("copying in the background", "override Backend.stage()")

    def iterate(self, source: Any) -> Iterator[Any]:
        """An iterator over a loader of this framework that raises what the loader's own code raised and never hangs;
        its `close()`, if it has one, ends its threads and processes. May be advanced in another thread."""
        return iter(source)

    # seeing asynchrony

    def blocking(self) -> AbstractContextManager[Any]:
        """Every operation inside completes before the next line runs; in this thread, and in all where it can. Does
        nothing where that is so anyway, and raises `UnsupportedError` where nothing can make an operation complete."""
        raise self.unsupported("blocking mode", "call xdevice.sync() after the line in question")

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        """Calls `report` for every read by the host and every implicit copy between devices, by hooks that are removed
        afterwards. `xdevice.contract.hooks` sets them."""
        raise self.unsupported("watching transfers", "unload it, or build its watch() on xdevice.contract.hooks")

    # memory

    def memory(self, device: Device) -> Memory:
        """Total, free, allocated and peak bytes of a device; None for what the framework does not tell."""
        raise self.unsupported("memory()", "override Backend.memory()")

    def reset_peak(self, device: Device) -> None:
        """Resets the peak to what is allocated now."""
        raise self.unsupported("resetting the peak of memory", "read xdevice.memory(device).allocated instead")

    # virtual GPUs, where the framework can have them

    def why_no_virtual_gpus(self) -> str | None:
        """Why it cannot have virtual GPUs, or not any more, and what to do about it; None if it can."""
        return "its adapter does not have make_virtual_gpus()"

    def make_virtual_gpus(self, n: int) -> None:
        """Makes `n` other devices of the framework, in host memory, its gpu:0 to gpu:{n-1}, and leaves cpu:0 as the
        only CPU. Real GPUs are hidden from then on. A second adapter may ask again for the same number."""
        raise self.unsupported("virtual GPUs", "leave XDEVICE_VIRTUAL_GPUS unset for it")

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Makes float64 what the framework makes float32 where the program names no dtype, for the whole process."""
        raise self.unsupported("a run in float64", "leave it out of xdevice parity --float64")

    # what people ask

    def why_no_gpu(self) -> str:
        """Why `count("gpu")` is 0 here, in a few words, for `xdevice info`."""
        return "no GPU is visible"

    # the process

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
        """Whether the device exists."""
        return device.kind in self.kinds and device.index < self.count(device.kind)

    def require(self, device: Device) -> None:
        """Raises `DeviceNotFoundError` unless the device exists."""
        if self.has(device):
            return
        there = ", ".join(map(str, self.devices()))
        hint = f"; xdevice.try_gpu({device.index}) falls back to cpu:0" if device.kind == "gpu" else ""
        if self.is_host_only:
            hint = (
                f"; where the selected backend has it, xdevice.tensor(x, device={str(device)!r}) makes a tensor of an "
                f"array, and xdevice.convert(x, 'torch') makes one of another framework"
            )
        raise DeviceNotFoundError(f"{device} does not exist on {self.name}, which has {there}{hint}")

    def refuse_if_frozen(self, draw: str, instead: str = "draw outside and pass the numbers in") -> None:
        """Raises `UnsupportedError` in a traced function, where a draw would give the same numbers at each call."""
        by = self.tracing()
        if by is not None:
            raise self.unsupported(
                f"{draw} inside a function that {by} traces: it would draw once, while tracing, and give the same "
                f"numbers at every call",
                instead,
            )

    def no_graphs(self) -> UnsupportedError:
        """The error to raise where a device has no graphs."""
        cheaper = f", which {self.compiler} makes cheaper" if self.compiler else ""
        return self.unsupported("graphs of recorded work here", f"call the function itself{cheaper}")

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        """The error to raise for a capability that this backend lacks: "models", "copying a sparse tensor"."""
        return UnsupportedError(f"{self.name} does not support {what}; {instead}")

    def no_copy_of_optimizer(self, instead: str) -> UnsupportedError:
        """The error to raise in `copy_model` for an optimizer."""
        return self.unsupported("copying an optimizer, which belongs to its parameters", instead)

    def __repr__(self) -> str:
        return f"<xdevice backend {self.name} {self.version}>"


_STATED = ("name", "modules", "minimum", "dtypes")


def check(cls: object, claimed: str, source: str) -> type[Backend]:
    """The class, if it keeps the contract; else `ContractError` naming adapter, method and signature."""
    import inspect

    if not (inspect.isclass(cls) and issubclass(cls, Backend)):
        raise ContractError(f"{source} is not a subclass of xdevice.contract.Backend: {cls!r}")
    wrong = [f"does not state the class attribute {name!r}" for name in _STATED if not hasattr(cls, name)]
    wrong += [f"lacks the method {_signature(name)}" for name in sorted(cls.__abstractmethods__)]
    wrong += [
        f"defines {name}{inspect.signature(mine)}, expected {_signature(name)}"
        for name, mine in vars(cls).items()
        if name in vars(Backend) and not name.startswith("_") and _arity(mine) != _arity(vars(Backend)[name])
    ]
    if not wrong and cls.name != claimed:
        wrong = [f"calls itself {cls.name!r}"]
    if wrong:
        raise ContractError(f"the adapter {claimed!r} ({source}) " + "; ".join(wrong))
    return cls


def _signature(name: str) -> str:
    import inspect

    wanted = getattr(Backend, name)
    return f"{name} (a property)" if isinstance(wanted, property) else f"{name}{inspect.signature(wanted)}"


def _arity(function: Any) -> list[str]:
    import inspect

    if not inspect.isfunction(function):
        return []
    return [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
