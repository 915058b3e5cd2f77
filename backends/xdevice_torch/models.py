"""Moves PyTorch's modules and optimizers in place, and moves objects of other types that contain tensors.

Facts about PyTorch that the code depends on:
- Some modules, such as those of torchmetrics, have tensors that are neither parameters nor buffers, and move these
  tensors in their own `_apply` or `to`. So xdevice also moves modules without parameters and buffers, and considers
  these tensors when it determines where a module is.
- If two modules share a buffer, `Module.to` creates a new tensor in each module, so the buffer
  is no longer shared.
- The `batch_sizes` of a `PackedSequence` stay on the CPU when its other tensors move.
- `weight_norm`, `spectral_norm` and `prune` add an attribute to a module, and recompute it from the module's parameters
  before each call. PyTorch refuses to copy such an attribute, because it is the result of recorded operations.
- TorchScript stores its tensors in C++, where their contents can be replaced, but not the tensors themselves. So a
  tensor cannot move to a device that stores tensors differently, such as a virtual GPU or meta. The tensors of a frozen
  ScriptModule are in its code.
"""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from xdevice.contract import Way
from xdevice.contract.models import Models
from xdevice.errors import NotBuiltError, UnsupportedError

from . import staging
from .private import private
from .trees import leaves, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives

_KEPT = frozenset(vars(Module()))
"""The names of the attributes that every `Module` has."""
_CACHES: Final = "transformers.cache_utils"
"""The Python module that defines the caches of Hugging Face's models. Such a cache is a plain
object in the output of a model."""

_GRAPHS: Final = "torch_geometric.data."
"""The prefix of the Python modules that define the graphs of PyG (PyTorch Geometric) and their batches."""
_BOOKKEEPING: Final = ("_slice_dict", "_inc_dict")
"""The attributes of a PyG batch that are always on the host, wherever the batch's graphs are."""

_EXPORTED: Final = "torch.export.exported_program"
"""The Python module that defines PyTorch's exported programs."""
_INSTEAD_OF_EXPORTED: Final = (
    "its graph refers to fixed devices; create a program for another device with "
    "torch.export.passes.move_to_device_pass(program, device)"
)


_pre_hooks = private.field("torch.nn.Module._forward_pre_hooks")
_tensor_name = private.field("torch.nn.utils.prune.BasePruningMethod._tensor_name")
_own_apply = private.field("torch.nn.Module._apply")
_APPLY: Final = private["torch.nn.Module._apply"]
"""The method with which `Module.to` moves parameters and buffers. A class that overrides this
method moves additional tensors."""
_NODES: Final = private["torch.utils._pytree.SUPPORTED_NODES"]
"""Maps each type that is registered with PyTorch's pytrees to the functions that flatten and rebuild an object of this
type."""
# read when this module is loaded, because virtual GPUs replace the property later
_set_contents: Final = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def named_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a (name, tensor) pair for each tensor that moves with a module or an optimizer. If a module has no
    tensors, but its class has a property `device`, yields the pair of the name "device" and an empty tensor on that
    device."""
    if not isinstance(model, Module):
        for number, state in enumerate(_states(model)):
            yield from _tensors(state, f"state[{number}]")
        return
    # a tensor that is also a parameter or buffer is yielded only once
    ids: set[int] = set()
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        ids.add(id(x))
        yield name, x
    for name, x in _attribute_tensors(model):
        if id(x) not in ids:
            ids.add(id(x))
            yield name, x
    if not ids and isinstance(device := _own_device(model), torch.device):
        yield "device", torch.empty(0, device=device)


def _own_device(model: Module) -> Any:
    """Returns the value of a module's property `device`. A module without tensors may use this property to report its
    device. Returns None if the module's class has no property `device`."""
    # only a property is used, because a plain attribute `device` does not change when the
    # module is moved
    return (
        getattr(model, "device", None)
        if isinstance(getattr(type(model), "device", None), property)
        else None
    )


def _attribute_tensors(model: Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Searches the attributes of each submodule whose class overrides PyTorch's `_apply`, because such a submodule may
    move more than its parameters and buffers. Yields a (name, tensor) pair for each tensor in these attributes."""
    for path, module in model.named_modules():
        if _own_apply(type(module)) is not _APPLY:
            attributes = {
                name: value for name, value in vars(module).items() if name not in _KEPT
            }
            for name, x in _tensors(attributes, path, dot="."):
                # the path of the model itself is "", so its names begin with a dot
                yield name.removeprefix("."), x


def _tensors(value: Any, name: str, dot: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a (name, tensor) pair for each tensor in `value`, which is a tensor, or consists of nested dicts (or
    `_MovingState`s), lists and tuples. `name` is the name of `value`. Keys are appended to the name as "['key']" and
    indices as "[1]". If `dot` is ".", the keys of `value` itself are appended as ".key"."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict | _MovingState):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if dot else f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}[{number}]")


def move(model: Any, native: torch.device) -> Any:
    """Moves a module or an optimizer to a device in place. Returns `model`, or another object if the module's own `to`
    returns one."""
    if isinstance(model, Module):
        _refuse_script(model, native)
        _refuse_meta(model, native)
        # `to` creates a new tensor in each module that has the buffer, so the buffers are
        # shared again afterwards
        shared = _shared_buffers(model)
        with staging.moving_modules(model, native):
            moved = model.to(native)
        # the tensor at the first place replaces the tensors at the other places
        for places in shared:
            first = getattr(*places[0])
            for module, name in places[1:]:
                setattr(module, name, first)
        return moved
    _refuse_outside_of_state(model)
    entries = [(state, key, x) for state in _states(model) for key, x in state.items()]
    # everything is checked before the first tensor moves
    for _, key, x in entries:
        _refuse_unknown(key, x)
    for state, key, x in entries:
        state[key] = _moved(x, native)
    for group in model.param_groups:
        # a learning rate may be a tensor. On the host it works with parameters on any device,
        # but on another GPU it does not, so it is moved
        group.update(
            (key, x.to(native))
            for key, x in group.items()
            if isinstance(x, torch.Tensor) and not x.is_cpu
        )
    return model


@contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """A block in which inference mode is disabled, because tensors that are created in inference mode cannot be trained
    later. If inference mode was enabled before, no operation in the block is recorded for gradients."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def copied(model: Module, native: torch.device) -> Any:
    """Returns a copy of a module on a device. The copy shares no memory with the module. Raises
    `UnsupportedError` if PyTorch cannot copy or move the module."""
    _refuse_script(model, native)
    # `deepcopy` uses the object in its memo, if there is one, instead of copying the original
    memo = {id(x): x.detach().clone() for x in _recorded_results(model)}
    try:
        # otherwise the copies of TorchScript's tensors would be results of recorded operations,
        # and could not be trained
        with torch.no_grad():
            twin = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError) as error:
        raise UnsupportedError(
            f"torch cannot copy this {type(model).__name__} ({error}); build a second model, and load the values "
            f"into it: other.load_state_dict(model.state_dict())"
        ) from error
    for old, new in zip(model.parameters(), twin.parameters(), strict=True):
        # a submodule's `__deepcopy__` may return the submodule itself
        if new is old:
            raise UnsupportedError(
                f"torch cannot copy this {type(model).__name__}: one of its modules returns itself from __deepcopy__; "
                f"build a second model, and load the values into it: other.load_state_dict(model.state_dict())"
            )
        # under `no_grad`, the copies of TorchScript's tensors have lost this flag
        if new.requires_grad is not old.requires_grad:
            new.requires_grad_(old.requires_grad)
    return move(twin, native)


def _recomputed_names(module: Module) -> Iterator[str]:
    """Yields the names of the attributes that `weight_norm`, `spectral_norm` and `prune`
    recompute before each call of `module`."""
    for hook in _pre_hooks(module).values():
        # the hooks of the two norms store the name in `name`, and those of `prune` in
        # `_tensor_name`; a function, as which programs usually write their hooks, has neither
        name = getattr(hook, "name", None) or _tensor_name.get(hook)
        if isinstance(name, str):
            yield name


def _recorded_results(model: Module) -> Iterator[torch.Tensor]:
    """Yields each tensor of a module that is the result of recorded operations. `copy.deepcopy` refuses to copy such
    tensors."""
    for module in model.modules():
        # parameters are never results, and each submodule is handled in an iteration of its
        # own, but a buffer may be a result
        attributes = {
            name: value
            for name, value in vars(module).items()
            if name not in _KEPT or name == "_buffers"
        }
        yield from (x for _, x in _tensors(attributes, "") if not x.is_leaf)


def _refuse_script(model: Module, native: torch.device) -> None:
    """Raises `UnsupportedError` if the model is, or contains, a ScriptModule that PyTorch
    cannot move to the device `native`."""
    for path, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            continue
        name = f"the ScriptModule {path or type(model).__name__}"
        if any(x.device != native for x in _constants(module)):
            raise UnsupportedError(
                f"torch cannot move {name}, because torch.jit.freeze has put its tensors into its code; move the "
                f"module before freezing it"
            )
        # tries this with an empty tensor first, because PyTorch would fail halfway through the move
        target = torch.empty(0, device=native)
        if not all(
            _takes_contents(x, target) for x in (*module.parameters(), *module.buffers())
        ):
            raise UnsupportedError(
                f"torch cannot move {name} to {native}; move the module before torch.jit.script or torch.jit.trace"
            )


def _refuse_meta(model: Module, native: torch.device) -> None:
    """Raises `UnsupportedError` if the target device `native` is not meta, but a tensor of the module is on meta, and
    so has no values. A module with its own `to` attribute is not checked."""
    # the library accelerate replaces the model's `to`; the error of its replacement says where
    # the values are
    if native.type == "meta" or "to" in vars(model):
        return
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if x.is_meta:
            raise UnsupportedError(
                f"torch cannot move {name} of this {type(model).__name__}, because this tensor is on the meta device "
                f"and has no values; first allocate memory with model.to_empty(device=...), and then load the values"
            )


def _takes_contents(x: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether PyTorch can replace the contents of `x` with the contents of `target`, as it does when it moves a
    ScriptModule. This function does not change `x`."""
    try:
        _set_contents(x.detach(), target)
    except RuntimeError:
        return False
    return True


def _constants(module: torch.jit.ScriptModule) -> list[torch.Tensor]:
    """Returns the tensors in the code of a frozen ScriptModule. Returns an empty list if the
    module has parameters or buffers, or has no code."""
    # a frozen module no longer has parameters or buffers; a module without a `forward` has no graph
    if next(iter(module.state_dict().values()), None) is not None or not hasattr(
        module, "inlined_graph"
    ):
        return []
    # stored in a variable, because its nodes do not keep the graph alive
    graph: Any = module.inlined_graph
    nodes = graph.findAllNodes("prim::Constant")
    # "t" is the kind that TorchScript reports for an attribute that is a tensor
    return [
        node.t("value")
        for node in nodes
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    ]


def _shared_buffers(model: Module) -> list[list[tuple[Module, str]]]:
    """Returns one list for each buffer that occurs more than once in a model. The list contains one pair for each
    occurrence: the submodule, and the name of the buffer in this submodule."""
    places: dict[int, list[tuple[Module, str]]] = {}
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            places.setdefault(id(buffer), []).append((module, name))
    return [group for group in places.values() if len(group) > 1]


class _MovingState:
    """A view of the state that an optimizer stores for one parameter. The view omits the step counter if this counter
    stays on the host. Setting an item changes the optimizer's own state."""

    def __init__(self, state: dict[str, Any], with_step: bool) -> None:
        self._state = state
        self._with_step = with_step

    def items(self) -> list[tuple[str, Any]]:
        """Returns the entries of the state that move with the parameter."""
        return [
            (key, value)
            for key, value in self._state.items()
            if key != "step" or self._with_step
        ]

    def __setitem__(self, key: str, value: Any) -> None:
        """Sets an entry of the optimizer's own state."""
        self._state[key] = value


def _states(optimizer: torch.optim.Optimizer) -> list[_MovingState]:
    """Returns the state that an optimizer stores for each parameter. The step counters are
    omitted, because PyTorch stores them on the host. If any parameter group is fused or
    capturable, the counters of all groups are included."""
    with_step = any(
        group.get("fused") or group.get("capturable") for group in optimizer.param_groups
    )
    return [_MovingState(state, with_step) for state in optimizer.state.values()]


def _moved(value: Any, native: torch.device) -> Any:
    """Returns `value`, an entry of an optimizer's state, with all its tensors on the device `native`. An entry may be a
    list, because LBFGS stores its history in lists."""
    return replaced(torch.Tensor, lambda x: x.to(native), value)


def _refuse_outside_of_state(optimizer: torch.optim.Optimizer) -> None:
    """Raises `UnsupportedError` if the optimizer has tensors or other optimizers in its
    attributes, because these would not be moved."""
    # the parameters belong to the model, and move with it
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    # "state" and "param_groups" are moved; a learning rate in "defaults" may be a tensor, but
    # need not move
    names = ("state", "param_groups", "defaults")
    attributes = {name: value for name, value in vars(optimizer).items() if name not in names}
    for x in leaves(attributes):
        if isinstance(x, torch.Tensor | torch.optim.Optimizer) and id(x) not in parameters:
            raise UnsupportedError(
                f"torch cannot move this {type(optimizer).__name__}, because it stores an object of type "
                f"{type(x).__name__} outside its state; create the optimizer after moving the model, and load the "
                f"state with load_state_dict()"
            )


def _refuse_unknown(key: str, value: Any) -> None:
    """Raises `UnsupportedError` if `value` is or contains an object with attributes, because tensors in these
    attributes would not be moved. `value` is the entry `key` of an optimizer's state."""
    for leaf in leaves(value):
        # a function also has a `__dict__`, but stores no state there
        if (
            not isinstance(leaf, torch.Tensor)
            and hasattr(leaf, "__dict__")
            and not callable(leaf)
        ):
            raise UnsupportedError(
                f"torch cannot move this optimizer: its state {key!r} contains a {type(leaf).__qualname__}, which may "
                f"contain tensors; store tensors directly in the state, or in lists, tuples or dicts in the state"
            )


# objects that are neither tensors nor models


def _exported(x: Any) -> list[tuple[str, Any]]:
    """Returns a (path, tensor) pair for each tensor of an exported program. A path is, for example,
    ".constants['scale']"."""
    dicts = {"state_dict": x.state_dict, "constants": x.constants}
    return [
        (f".{name}[{key!r}]", value)
        for name, tensors in dicts.items()
        for key, value in tensors.items()
    ]


def _inside(x: Any) -> list[tuple[str, Any]]:
    """Returns a (path, tensor) pair for each tensor in `x`, a storage or a future. Neither a storage nor a future can
    be moved. The path is "" for a storage, and begins with ".value()" for a future. Returns an empty list for a future
    that is not done or has failed."""
    if isinstance(x, torch.jit.Future):
        with suppress(Exception):  # if the future has failed, `value` raises its error
            return [*_tensors(x.value(), ".value()")] if x.done() else []
        return []
    # PyTorch warns about typed storages only once, when the program creates its first one, so
    # there is no warning here
    storage = x.untyped() if isinstance(x, torch.TypedStorage) else x
    return [("", torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))]


def _way_of_packed_sequence(backend: Primitives) -> Way:
    """Returns the `Way` in which a packed sequence is moved and copied. Its batch sizes stay on
    the host, where PyTorch needs them."""

    def copy(x: PackedSequence, device: Device) -> PackedSequence:
        """Returns a copy of a packed sequence on a device. The copy shares no memory with the original."""
        parts: list[Any] = [part if part is None else part.clone() for part in x]
        twin = type(x)(*parts)
        return twin.to(backend.to_native(device))

    def tensors(x: PackedSequence) -> list[tuple[str, Any]]:
        """Returns the path and the tensor of each part of a packed sequence that determines the device of the sequence.
        The batch sizes are omitted."""
        return [
            (f".{name}", part)
            for name, part in x._asdict().items()
            if part is not None and name != "batch_sizes"
        ]

    return Way(
        move=lambda x, device: x.to(backend.to_native(device)),
        copy=copy,
        tensors=tensors,
        dense="make it dense first: torch.nn.utils.rnn.pad_packed_sequence(x)",
    )


class TorchModels(Models):
    """The hooks that list, move and copy the tensors of PyTorch's modules and optimizers. Another hook returns how to
    walk or move containers that PyTorch and libraries based on PyTorch define."""

    lists_layers = "torch.nn.ModuleList, ModuleDict or ParameterList"
    _places: dict[torch.device, Device]
    """Maps each `torch.device` to its `Device`."""

    # models

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Returns the name and the device of each tensor that moves with a module or an optimizer."""
        places = self._places
        return [(name, places[variable.device]) for name, variable in named_tensors(model)]

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` if a parameter or buffer of a lazy module has no shape yet."""
        for name, variable in named_tensors(model):
            if torch.nn.parameter.is_lazy(variable):
                raise NotBuiltError(
                    f"{name} has no shape yet; build the model first: call it once on data"
                )

    def variables(self, model: Any) -> Iterable[tuple[str, torch.Tensor]]:
        """Returns the names and tensors of a module's state dict, or of an optimizer's state.
        Raises `NotBuiltError` if a lazy parameter has no shape yet. Raises `UnsupportedError`
        for extra state that is not a tensor or that could not be loaded."""
        if isinstance(model, torch.optim.Optimizer):
            return optimizer_state(model, self)
        # with `keep_vars`, the dict contains the parameters themselves, and not detached tensors
        state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
        for name, value in state.items():
            # only the extra state of a module may be anything other than a tensor
            if not isinstance(value, torch.Tensor):
                raise self.unsupported(
                    f"listing {name} of this model, because its value is not a tensor",
                    "save the result of get_extra_state() yourself",
                )
            if torch.nn.parameter.is_lazy(value):
                raise NotBuiltError(
                    f"{name} has no shape yet; build the model first: call it once on data"
                )
        from . import extra_state

        # extra state that is a tensor is listed if it can be loaded again
        extra_names = [name for name in state if name.rpartition(".")[2] == extra_state.NAME]
        lost_name = extra_state.first_lost_key(model, extra_names) if extra_names else None
        if lost_name is not None:
            raise self.unsupported(
                f"listing {lost_name} of this model, because its module has no set_extra_state() to load it",
                "define this method in the module",
            )
        return state.items()

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Returns a list with one tuple for a model and for each of its submodules: the path, the module, and the names
        of the attributes that xdevice need not search for tensors. Returns an empty list for an optimizer."""
        modules = model.named_modules() if isinstance(model, Module) else ()
        # attributes that a hook recomputes before each call need not move
        return [
            (
                path,
                module,
                _KEPT.union(_recomputed_names(module)) if _pre_hooks(module) else _KEPT,
            )
            for path, module in modules
        ]

    def parameters_of(self, model: Any) -> Iterable[torch.Tensor]:
        """Returns the parameters that an optimizer updates. They belong to a module and do not move with the optimizer.
        Returns an empty list for a module, whose parameters are among its `variables`."""
        groups = model.param_groups if isinstance(model, torch.optim.Optimizer) else ()
        return [p for group in groups for p in group["params"]]

    def move_held(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns `x`, a tensor in an attribute of a module, on a device. A leaf that requires a
        gradient is moved in place and returned, because an optimizer may refer to it. Any other tensor is copied,
        unless it is already on the device."""
        if self._places[x.device] is device:
            return x
        if not (x.requires_grad and x.is_leaf):
            copy: torch.Tensor = self.move(x, device)
            return copy
        # PyTorch refuses a gradient on a different device than its tensor, so the gradient is
        # removed during the move
        gradient, x.grad = x.grad, None
        x.data = self.move(x.detach(), device)
        if gradient is not None:
            x.grad = self.move(gradient, device)
        return x

    def is_parameter(self, x: torch.Tensor) -> bool:
        """Whether `x` is a `torch.nn.Parameter`, the type that modules list among their parameters."""
        return isinstance(x, torch.nn.Parameter)

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves a module or an optimizer in place. Returns `model`, or another object if the
        module's own `to` returns one."""
        with _outside_inference_mode():
            return move(model, self.to_native(device))

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a module on a device. The copy shares no memory with the module.
        Raises `UnsupportedError` for an optimizer."""
        if isinstance(model, torch.nn.Module):
            with _outside_inference_mode():
                return copied(model, self.to_native(device))
        raise self.no_copy_of_optimizer(
            "copy the model, make an optimizer for the copy, and load the state with load_state_dict()"
        )

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns a list of the module itself and all its submodules, parameters and buffers. Returns an empty list for
        an optimizer."""
        return (
            [*model.modules(), *model.parameters(), *model.buffers()]
            if isinstance(model, Module)
            else []
        )

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces buffers of a model. `new` maps the `id` of each old buffer to the tensor that replaces this buffer.
        Parameters are never replaced, because they remain the same objects when PyTorch moves them."""
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                if id(buffer) in new:
                    setattr(module, name, new[id(buffer)])

    def gradients(
        self, model: torch.nn.Module
    ) -> Iterable[tuple[str, torch.Tensor, torch.Tensor | None]]:
        """Returns the name, the tensor and the gradient of each trainable parameter of a module. The gradient is None
        if it has not been computed. Raises `UnsupportedError` for an optimizer."""
        if not isinstance(model, torch.nn.Module):
            raise self.unsupported(
                f"reading gradients of {type(model).__qualname__} objects", "pass the model"
            )
        return [(name, p, p.grad) for name, p in model.named_parameters() if p.requires_grad]

    # containers

    def register_tree_node(
        self, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]
    ) -> None:
        """Registers the class `cls` with PyTorch's pytrees. Does nothing if the class is already registered, or if this
        version of PyTorch lacks the function. `flatten(x)` returns the children of an object and its static part
        (everything else); `unflatten(static, children)` rebuilds an object from these two parts."""
        register = private.get("torch.utils._pytree.register_pytree_node")
        # PyTorch refuses a type that is already registered, and passes the two arguments in the opposite order
        if register is not None and cls not in _NODES:
            register(cls, flatten, lambda children, static: unflatten(static, children))

    def container_way(self, x: Any) -> Way | None:
        """Returns how `x` is walked or moved if it is a packed sequence, a learning-rate scheduler, a storage, a
        future, a TensorDict, a cache of transformers, a graph of PyG, an exported program, or an object of a type that
        is registered with PyTorch's pytrees. Returns None for any other object."""
        # tested before tuples, because a packed sequence is a named tuple
        if isinstance(x, PackedSequence):
            return _way_of_packed_sequence(self)
        # the core walks tuples itself, although named tuples are registered with PyTorch's pytrees
        if isinstance(x, tuple):
            return None
        # the learning rates in a scheduler do not move, because they work with any device
        if isinstance(x, torch.optim.lr_scheduler.LRScheduler):
            return Way(tensors=lambda x: [(".optimizer", x.optimizer)])
        if isinstance(x, torch.UntypedStorage | torch.TypedStorage | torch.jit.Future):
            return Way(tensors=_inside)
        if "tensordict" in sys.modules:
            from . import tensordicts

            collection = tensordicts.container_way(x, self)
            if collection is not None:
                return collection
        # compares names of modules, because importing these libraries takes long; subclasses
        # defined by users are recognized too
        modules = {base.__module__ for base in type(x).__mro__}
        # a `Way` without fields means that the attributes of the object are walked
        if _CACHES in modules:
            return Way()
        if any(module.startswith(_GRAPHS) for module in modules):
            return Way(move=lambda x, device: x.to(self.to_native(device)), stays=_BOOKKEEPING)
        if _EXPORTED in modules:
            return Way(tensors=_exported, instead=_INSTEAD_OF_EXPORTED)
        node = _NODES.get(type(x))
        if node is None:
            return None

        def rebuild(old: Any, children: list[Any]) -> Any:
            """Returns an object like `old` with different children."""
            # the second result of `flatten_fn` is the static part of the object
            return node.unflatten_fn(children, node.flatten_fn(old)[1])

        return Way(lambda x: list(node.flatten_fn(x)[0]), rebuild)


def optimizer_state(
    optimizer: torch.optim.Optimizer, backend: Models
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name, such as "0.exp_avg", and the tensor of each part of an optimizer's state. Raises
    `UnsupportedError` for a part that is neither a tensor nor None."""
    for name, value in _named(optimizer.state_dict()["state"]):
        if isinstance(value, torch.Tensor):
            yield name, value
        elif value is not None:
            raise backend.unsupported(
                f"reading the state of this {type(optimizer).__name__}, because its {name} is {value!r:.40}, not a "
                f"tensor",
                "use torch.save(optimizer.state_dict(), path) and optimizer.load_state_dict(torch.load(path))",
            )


def _named(state: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yields a name and a value for each value in the nested dicts and lists of an optimizer's
    state. The name consists of the keys that lead to the value, joined by dots."""
    if not isinstance(state, dict | list):
        yield prefix, state
        return
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        yield from _named(value, f"{prefix}.{key}" if prefix else str(key))
