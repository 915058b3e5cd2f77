"""Moves Gluon's models (Blocks, Parameters, ParameterDicts and Trainers) in place, and copies models.

The code depends on these facts about Gluon:
- `Parameter.reset_ctx` drops the gradient, copies through cpu:0, and creates legacy arrays or
  `mx.np` arrays, depending on the NumPy flag of the calling thread. It is therefore used only for
  parameters without values, or with replicas on several devices.
- A Trainer contains contexts (devices) and the optimizer's state, which must be moved too. The
  optimizer counts its steps separately for each device index, so the counts are copied to the new
  index. Otherwise, Adam would restart on the new device.
- With `static_alloc`, a compiled graph keeps its arrays. If its model is moved to another device and back, the graph
  would silently train arrays that no longer belong to the model. A move therefore deletes the compiled graphs.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import mxnet as mx
from mxnet.gluon import Block, HybridBlock, Parameter, ParameterDict, Trainer
from mxnet.gluon.parameter import DeferredInitializationError

from xdevice.contract import Way
from xdevice.contract.models import Models
from xdevice.errors import NotBuiltError, UnsupportedError

from . import trainers
from .private import private

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from xdevice.base.devices import Device

TYPES: Final = (Block, Parameter, ParameterDict, Trainer)
"""The types whose objects xdevice treats as models, because they contain parameters or an optimizer's state."""


def _names_in_every_block() -> frozenset[str]:
    """Returns the names of the attributes that every block has, even a block without layers."""
    # MXNet does not number blocks that have a prefix, so the program's first block still gets
    # the number 0
    blocks = (Block(prefix=""), HybridBlock(prefix=""))
    names = frozenset(name for block in blocks for name in vars(block))
    # a block and its scope refer to each other, so both would exist until the next garbage
    # collection, and `semantics` would mistake them for blocks of a legacy program
    for block in blocks:
        vars(block).clear()
    return names


_KEPT: Final = _names_in_every_block()
"""The names of the attributes that every block has."""
# each of these reads an attribute or a method of a Gluon object. `_arrays` returns the list of
# a parameter's arrays, one for each device, or None before the parameter is initialized.
# `_init_data(parameter)(array, contexts)` initializes a parameter on these contexts with the
# values of an array
_arrays = private.field("mxnet.gluon.Parameter._data")
_init_data = private.field("mxnet.gluon.Parameter._init_impl")
_trainer = private.field("mxnet.gluon.Parameter._trainer")
_is_fresh = private.field("mxnet.nd.NDArray._fresh_grad")
_clear_compiled = private.field("mxnet.gluon.HybridBlock._clear_cached_op")
_named = private.field("mxnet.gluon.Block._collect_params_with_prefix")
_kvstore_params = private.field("mxnet.gluon.Trainer._kvstore_params")
_reset_store = private.field("mxnet.gluon.Trainer._reset_kvstore")


def places(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the context (device) of each variable of a model. A parameter on several devices is yielded
    once for each device. For a Trainer, yields the contexts in the Trainer's list, and the context of each array of
    the optimizer's state."""
    if isinstance(model, Trainer):
        yield from (
            (f"contexts[{i}]", native) for i, native in enumerate(trainers.contexts(model))
        )
        parameters = trainers.parameters(model)
        for index, state in trainers.updater(model).states.items():
            yield from (
                (f"state of {parameters[index].name}", array.ctx)
                for array in trainers.arrays(state)
            )
        return
    for name, parameter in _parameters(model):
        yield from ((name, native) for native in _contexts(name, parameter))


def variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each variable of a Block, Parameter or ParameterDict. The names are those that
    `save_parameters` uses; for a Parameter, the name is ""."""
    if isinstance(model, Parameter):
        yield "", _value(model.name, model)
        return
    for name, parameter in (_named(model)() if isinstance(model, Block) else model).items():
        yield name, _value(name, parameter)


def array_of(model: Any) -> Any | None:
    """Returns the array of a Parameter, or None for any other object."""
    return _value(model.name, model) if isinstance(model, Parameter) else None


def _value(name: str, parameter: Any) -> Any:
    """Returns the array of a parameter. Raises `NotBuiltError` if the parameter has no array
    yet, and `UnsupportedError` if it has arrays on several devices."""
    contexts = _contexts(name, parameter)
    if len(contexts) > 1:
        raise UnsupportedError(
            f"{name} has a separate value on each of {', '.join(map(str, contexts))}; first move the model to one "
            f"device with xdevice.to_device"
        )
    try:
        return parameter.data()
    except DeferredInitializationError as error:
        raise _unshaped(name) from error


def _unshaped(name: str) -> NotBuiltError:
    """Returns the error for a parameter whose shape will be determined by the first batch."""
    return NotBuiltError(
        f"{name} has no shape yet; build the model first: call it once on data"
    )


def move(model: Any, native: Any) -> None:
    """Moves the parameters of a model to the context `native`, together with the state of the Trainers to which they
    belong. If `model` is a Trainer, only its state is moved. Raises `UnsupportedError` for a Trainer that cannot be
    moved, before anything is moved."""
    if isinstance(model, Trainer):
        _refuse_fixed_store(model)
        _require_parameters(model, native)
        # the state of every parameter is moved to `native`, and the next steps run there
        _move_state(model, [native] * len(trainers.parameters(model)), contexts=[native])
        return
    moving = [
        parameter
        for name, parameter in _parameters(model)
        if _contexts(name, parameter) != [native]
    ]
    # each Trainer occurs only once, although many parameters may belong to it
    owners = {
        id(trainer): trainer for trainer in map(_trainer, moving) if trainer is not None
    }.values()
    for trainer in owners:
        _refuse_fixed_store(trainer)
    for parameter in moving:
        # the second argument is the source of the values, which is the same parameter
        _put_on(parameter, parameter, native)
    for trainer in owners:
        _move_state_after(trainer)
    if moving and isinstance(model, Block):
        model.apply(_forget_compiled)


def copied(model: Any, native: Any) -> Any:
    """Returns a copy of a model on the context `native`, with values and gradients, but without a Trainer. Parameters
    that are shared in the model are also shared in the copy. Raises `NotBuiltError` for a parameter that is not
    initialized."""
    memo: dict[int, Any] = {}
    for name, parameter in _parameters(model):
        # raises `NotBuiltError` for a parameter that is not initialized
        _contexts(name, parameter)
        # in the copy, the Trainer is replaced by None
        memo[id(_trainer(parameter))] = None
        memo[id(parameter)] = _copied(parameter, native)
    if isinstance(model, Block):
        model.apply(lambda block: _spare_compiled(block, memo))
    with mx.util.np_shape(True):
        return copy.deepcopy(model, memo)


def _copied(parameter: Any, native: Any) -> Any:
    """Returns a copy of a parameter on the context `native`, without a Trainer."""
    new = copy.copy(parameter)
    _trainer.set(new, None)
    _put_on(new, parameter, native)
    return new


def _parameters(model: Any) -> list[tuple[str, Any]]:
    """Returns the names and the parameters of a Block, Parameter or ParameterDict."""
    if isinstance(model, Parameter):
        return [(model.name, model)]
    return list((model.collect_params() if isinstance(model, Block) else model).items())


def _contexts(name: str, parameter: Any) -> list[Any]:
    """Returns a list of the contexts on which a parameter is, or will be once its shape is known. Raises
    `NotBuiltError` if the parameter is not initialized. `name` is the parameter's name in the error."""
    try:
        return list(parameter.list_ctx())
    except RuntimeError as error:
        raise NotBuiltError(
            f"the parameter {name} is not initialized, so there is nothing to move yet; call initialize() first"
        ) from error


def _put_on(parameter: Any, source: Any, native: Any) -> None:
    """Moves `parameter` to the context `native`, with the values and the gradient of `source`. `source` is `parameter`
    itself or, if `parameter` is a shallow copy, the original parameter; both refer to the same arrays."""
    arrays = _arrays(source)
    # a parameter whose initialization is deferred has no arrays, and a parameter with replicas
    # has several; MXNet's `reset_ctx` handles both cases
    if arrays is None or len(arrays) > 1:
        _reset(parameter, native)
        return
    gradient = source.grad() if source.grad_req != "null" else None
    with _arrays_like(arrays[0]):
        _init_data(parameter)(arrays[0], [native])
        if gradient is not None:
            # copied as legacy arrays, because an imported block has legacy values and `mx.np`
            # gradients
            gradient.as_nd_ndarray().copyto(parameter.grad().as_nd_ndarray())
            # a Trainer refuses gradients that no backward pass has computed since the last step
            _is_fresh.set(_arrays(parameter)[0], _is_fresh(arrays[0]))


def _reset(parameter: Any, native: Any) -> None:
    """Moves a parameter to the context `native` with MXNet's `reset_ctx`. A deferred initialization remains deferred,
    replicas on several devices are averaged, and gradients become zero."""
    arrays = _arrays(parameter)
    with _arrays_like(arrays[0] if arrays else None):
        parameter.reset_ctx(native)


@contextmanager
def _arrays_like(array: Any) -> Iterator[None]:
    """Opens a block in which Gluon creates arrays of the same kind as `array`: `mx.np` arrays if `array` is an `mx.np`
    array, and otherwise legacy arrays (including if `array` is None). Nothing is recorded for gradients in the
    block."""
    with (
        mx.autograd.pause(),
        mx.util.np_shape(True),
        mx.util.np_array(isinstance(array, mx.np.ndarray)),
    ):
        yield


def _forget_compiled(block: Any) -> None:
    """Deletes the compiled graph of a block, because the graph keeps the arrays that the block had before a move."""
    if isinstance(block, HybridBlock):
        _clear_compiled(block)()


def _spare_compiled(block: Any, memo: dict[int, Any]) -> None:
    """Prepares `memo`, the memo of `copy.deepcopy`, so that a block's compiled graph is not copied. The graph cannot
    be copied; in the copy of the block, it is compiled again when needed."""
    memo.update(
        (id(value), None) for value in vars(block).values() if isinstance(value, mx.nd.CachedOp)
    )


# Trainers


def _refuse_fixed_store(trainer: Any) -> None:
    """Raises `UnsupportedError` if a Trainer has state that cannot be moved. Also raises this error if the program
    created the Trainer's key-value store, or if the store is distributed over machines."""
    private.require_names_for("optimizers")
    store = trainers.store(trainer)
    # after a move, the Trainer creates a new store (`_move_state`). It cannot replace a store
    # that the program passed to it, and a distributed store is shared with other machines
    if store is not None and (
        store is _kvstore_params(trainer)["kvstore"] or "dist" in store.type
    ):
        raise UnsupportedError(
            f"mxnet cannot move a Trainer that already uses a key-value store of type {store.type!r}; create the "
            f"Trainer after moving the model, or with kvstore=None"
        )
    for state in trainers.updater(trainer).states.values():
        tuple(trainers.arrays(state))  # raises for state that cannot be moved


def _require_parameters(trainer: Any, native: Any) -> None:
    """Raises `UnsupportedError` for a Trainer with parameters that are not on `native`. These parameters cannot be
    moved with the Trainer. The move would have to delete the compiled graphs of their blocks, to which the Trainer has
    no reference."""
    for parameter in trainers.parameters(trainer):
        places = _contexts(parameter.name, parameter)
        if places != [native]:
            raise UnsupportedError(
                f"mxnet cannot move a Trainer to {native} while its parameter {parameter.name} is on "
                f"{', '.join(map(str, places))}; move the model instead, which also moves its Trainer: "
                f"xdevice.to_device(net, ...)"
            )


def _move_state_after(trainer: Any) -> None:
    """Moves the state of a Trainer to the devices on which its parameters are now."""
    contexts = [list(parameter.list_ctx()) for parameter in trainers.parameters(trainer)]
    targets = [parameter_contexts[0] for parameter_contexts in contexts]
    # a Trainer has a single list of contexts for all its parameters. While only some of several
    # networks have been moved, the list remains unchanged
    are_together = all(parameter_contexts == contexts[0] for parameter_contexts in contexts)
    _move_state(trainer, targets, contexts=contexts[0] if are_together else None)


def _move_state(trainer: Any, targets: list[Any], contexts: list[Any] | None) -> None:
    """Moves a Trainer's state. For each index i, moves the state of the parameter with this index to the context
    `targets[i]`. If `contexts` is not None, it becomes the Trainer's list of contexts."""
    updater = trainers.updater(trainer)
    with mx.autograd.pause(), mx.util.np_shape(True):
        for index, state in updater.states.items():
            updater.states[index] = _state_on(state, targets[index])
    # the optimizer counts its steps separately for each device index, so the counts are copied
    # to the new device
    optimizer = trainer.optimizer
    for target in targets:
        trainers.counts(optimizer).setdefault(target.device_id, {}).update(
            trainers.steps(optimizer)
        )
    if contexts is not None:
        # the key-value store contains arrays on the old devices; the next step creates another
        # store
        _reset_store(trainer)()
        trainers.contexts.set(trainer, list(contexts))
        trainers.updaters.set(trainer, [updater])


def _state_on(state: Any, native: Any) -> Any:
    """Returns `state`, the optimizer's state for one parameter, with its arrays moved to the context `native`."""
    if isinstance(state, mx.nd.NDArray):
        return state if state.ctx == native else state.copyto(native)
    if isinstance(state, list | tuple):
        return type(state)(_state_on(part, native) for part in state)
    # None, a number or a string: `trainers.arrays` has raised for any other object
    return state


class MxnetModels(Models):
    """Handles Gluon's models and Trainers."""

    lists_layers = "gluon.nn.Sequential, or register it with register_child()"

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each variable, and of each array of a Trainer's
        state."""
        for name, native in places(model):
            place = self.from_native(native)
            assert place is not None  # it is None only for objects that are not contexts
            yield name, place

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` for a model with a parameter that has no values yet."""
        if not isinstance(model, Trainer):
            for name, parameter in _parameters(model):
                # raises `NotBuiltError` for a parameter that is not initialized
                _contexts(name, parameter)
                if _arrays(parameter) is None:
                    raise _unshaped(name)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yields the name and the array of each variable of a model, or of a Trainer's
        state."""
        return (
            trainers.variables(model)
            if isinstance(model, mx.gluon.Trainer)
            else variables(model)
        )

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Returns a list of tuples (name, block, names of Gluon's own attributes), one for a block and one for each
        block in it. The name of the block itself is "". For other models, the list is empty."""
        blocks: list[Any] = []
        if isinstance(model, Block):
            model.apply(blocks.append)
        return [("" if block is model else block.name, block, _KEPT) for block in blocks]

    def move_held(self, x: Any, device: Device) -> Any:
        """Returns `x` itself if it is already on the device, and otherwise a copy on the device. The copy has a
        gradient of zeros if `x` has a gradient."""
        if self.device_of(x) is device:
            return x
        with mx.autograd.pause():
            moved = self.move(x, device)
        if x.grad is not None:
            moved.attach_grad()
        return moved

    def move_model(self, model: Any, device: Device) -> None:
        """Moves a model in place, together with the state of its Trainers."""
        private.require_names_for("models")
        move(model, self.to_native(device))

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a model on a device. Raises `UnsupportedError` for a Trainer."""
        if isinstance(model, mx.gluon.Trainer):
            raise self.no_copy_of_optimizer(
                "copy the model, create a Trainer for the copy, and transfer its state: save_states(), load_states()"
            )
        private.require_names_for("models")
        return copied(model, self.to_native(device))

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns the parts of a model to which a program may refer: its blocks, its parameters, and the arrays of
        these parameters. For a Trainer, the list is empty, because its parameters are parts of a model, and do not move
        with the Trainer."""
        blocks: list[Any] = []
        if isinstance(model, Block):
            model.apply(blocks.append)
        parameters = (
            []
            if isinstance(model, Trainer)
            else [parameter for _, parameter in _parameters(model)]
        )
        arrays = [array for parameter in parameters for array in _arrays(parameter) or ()]
        return [*blocks, *parameters, *arrays]

    def container_way(self, x: Any) -> Way | None:
        """Returns a `Way` without fields if `x` is a batch of one of MXNet's iterators. Such a `Way` tells xdevice to
        walk the attributes of the batch. Returns None for any other object."""
        return Way() if isinstance(x, mx.io.DataBatch) else None

    def tensor_of(self, model: Any) -> Any | None:
        """Returns the array of a Parameter, or None for any other model."""
        return array_of(model)

    def gradients(self, model: Any) -> Iterable[tuple[str, Any, Any | None]]:
        """Yields the name, the array and the gradient of each trainable parameter of a block.
        Before the first backward pass, the gradients are zeros. Raises `UnsupportedError` for a model that is not a
        block."""
        if not isinstance(model, Block):
            raise UnsupportedError(
                f"mxnet stores no gradients in an object of type {type(model).__qualname__}; pass the block instead"
            )
        for name, parameter in _named(model)().items():
            if parameter.grad_req != "null":
                yield name, _value(name, parameter), parameter.grad()
