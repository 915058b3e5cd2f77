"""Moves TensorFlow's and Keras's models in place, and copies them.

Rules for this module, and why:

- A move keeps the `tf.Variable` objects, and swaps only the handle (TensorFlow's reference to
  the memory) inside each. Optimizers look variables up by `_unique_id`, and if the `_value` of
  a Keras variable were replaced, training would silently change a variable that the model no
  longer uses.
- A `tf.function` that was traced before the move has captured the old handle, and would compute
  with the old value. So the function is given the new handle. A tf.data pipeline keeps handles
  where Python cannot replace them, so moving a variable that a pipeline reads is refused.
- A copy is made object by object, because Keras copies by saving and loading, which fails for
  subclasses that are not registered and loses metrics. Keras keeps `id`s of objects in three
  places; the copy gets the ids of its own objects.
- A `tf.Module` puts a wrapper around each list that is its attribute. If an item is assigned,
  the wrapper compares the old item with the new one, which tensors refuse, and can no longer be
  saved. So a changed list gets a new wrapper.
"""

from __future__ import annotations

import copy
import gc
import operator
import re
import sys
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import keras
import tensorflow as tf

from xdevice.contract import Way
from xdevice.contract.models import Models
from xdevice.errors import UnsupportedError

from . import names, parts
from .private import private

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from xdevice.base.devices import Device

_Memo = dict[int, Any]
"""By the `id` of an old object: the object that takes its place in a moved or copied model."""

_handle = private.field(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable._handle"
)
_unique_id = private.field(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable._unique_id"
)
# a function in a tf.data pipeline, such as that of `map`
_Stage = private["tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper"]
_clone = private.field("tensorflow.__internal__.function.Function._clone")
# a context manager in which Keras does not notice what is added to the lists of its layers
_untracked = private["keras.src.utils.tracking.DotNotTrackScope"]
# Keras's record of what a layer has been given, and its attribute with the `id`s of these
# objects
_Tracker, _STORED = private.place("keras.src.utils.tracking.Tracker.stored_ids")

TYPES = (
    tf.Variable, tf.Module, tf.random.Generator,
    keras.Layer, keras.Variable, keras.optimizers.Optimizer, keras.Metric,
)  # fmt: skip
"""The types whose objects xdevice treats as models: they own variables, and are moved in
place."""

_LOADED: Final = "tensorflow.python.saved_model.load"
"""The module in whose functions `tf.saved_model.load` makes a type for each object that it
loads."""
_Trace = tf.types.experimental.ConcreteFunction


def is_model(cls: type) -> bool:
    """Whether xdevice treats objects of a type as models."""
    return issubclass(cls, TYPES) or _is_loaded(cls)


def _is_loaded(cls: type) -> bool:
    """Whether a type was made by `tf.saved_model.load` for an object that it has loaded."""
    return cls.__module__ == _LOADED and issubclass(cls, tf.__internal__.tracking.AutoTrackable)


# moving


def move(model: Any, device: Device, backend: Models) -> None:
    """Moves a model to `device` in place: every variable, and every other tensor that the model
    holds. Raises `UnsupportedError`, before anything has moved, for a variable that a strategy,
    a graph or a tf.data pipeline uses."""
    private.require("models")
    native = backend.to_native(device)
    moving = [
        variable
        for _, variable in parts.variables(model)
        # `native`, without its slash, is compared with the end of the variable's long name,
        # which begins with a job that differs in a cluster
        if not variable.device.endswith(native[1:])
    ]
    for variable in moving:
        _require_plain(variable, backend)
    traces = _traces_of(moving, backend)
    handles = [(variable.handle, _swap(variable, native)) for variable in moving]
    moved: _Memo = {id(old): new for old, new in handles}
    for holder, key, value in parts.constants(model):
        if not value.device.endswith(native[1:]):
            if id(value) not in moved:
                moved[id(value)] = backend.move(value, device)
            # a tuple cannot be changed: the loop below replaces it
            if not isinstance(holder, tuple):
                holder[key] = moved[id(value)]
    for holder, key, value in parts.tuples(model):
        new = _replaced(value, moved)
        if new is not value:
            holder[key] = new
    # last, because a trace may have captured any of the handles and tensors that were replaced
    for trace in traces:
        trace.set_external_captures(
            [moved.get(id(capture), capture) for capture in _captures(trace)]
        )


def _replaced(value: Any, moved: _Memo) -> Any:
    """Returns the object that takes the place of `value` after a move: the object that `moved`
    has for its `id`, or `value` itself if there is none. A tuple with tensors that have moved
    is rebuilt with the new tensors."""
    if not isinstance(value, tuple):
        return moved.get(id(value), value)
    children = [_replaced(child, moved) for child in value]
    if all(map(operator.is_, children, value)):
        return value
    if type(value) is _WRAPPED_TUPLE:
        return _rewrapped_tuple(value, children)
    cls: Any = type(value)
    # a named tuple takes its fields one by one, except in `_make`
    return cls._make(children) if hasattr(cls, "_make") else cls(children)


def _traces_of(moving: list[tf.Variable], backend: Models) -> list[Any]:
    """Returns the traced functions, anywhere in the process, that have captured one of the variables `moving`. Raises
    `UnsupportedError` if a tf.data pipeline reads one of the variables."""
    # two references are not those of a trace: the variable's own, and that of the argument of
    # `getrefcount`. If there are more, all objects of the process are searched, because the
    # traced function may be held by code that nothing else leads to. The search takes long, so
    # it is left out if no handle has more
    handles = {
        id(variable.handle) for variable in moving if sys.getrefcount(_handle(variable)) > 2
    }
    if not handles:
        return []
    traces, are_piped = _capturing(handles)
    if are_piped:
        gc.collect()  # an exhausted pipeline may be kept alive by reference cycles only
        traces, are_piped = _capturing(handles)
    if are_piped:
        raise backend.unsupported(
            "moving a variable that a tf.data pipeline reads",
            "move it before making the pipeline, or first delete the pipeline and its iterators",
        )
    return traces


def _capturing(handles: set[int]) -> tuple[list[Any], bool]:
    """Returns the traced functions that have captured one of the handles with these `id`s, and
    whether a tf.data pipeline uses one of these functions."""
    everything = gc.get_objects()
    # `issubclass` once for each type, because `isinstance` for each of the many objects is slow
    kinds = {cls for cls in set(map(type, everything)) if issubclass(cls, (_Trace, _Stage))}
    candidates = [obj for obj in everything if type(obj) in kinds]
    traces = [
        obj
        for obj in candidates
        if isinstance(obj, _Trace) and not handles.isdisjoint(map(id, _captures(obj)))
    ]
    return traces, any(
        obj.function is trace
        for obj in candidates
        if isinstance(obj, _Stage)
        for trace in traces
    )


def _captures(trace: Any) -> list[Any]:
    """Returns the objects that a trace has captured. Among them are captured functions
    (deferred captures), which TensorFlow's `captured_inputs` would call."""
    graph = trace.graph
    return [
        *trace.captured_inputs[: len(graph.external_captures)],
        *graph.deferred_external_captures,
    ]


def _require_plain(variable: tf.Variable, backend: Models) -> None:
    """Raises `UnsupportedError` for a variable that has no eager handle of its own: a variable
    of a tf.distribute strategy or in a graph."""
    # a variable of a strategy has no `_handle` of its own, while its `handle` is that of one
    # replica; in a graph, the handle is a symbol, which has no backing device
    if not hasattr(vars(variable).get("_handle"), "backing_device"):
        raise backend.unsupported(
            f"moving a variable of type {type(variable).__name__}",
            "use it where its tf.distribute strategy or its graph has put it",
        )


def _swap(variable: tf.Variable, native: str) -> Any:
    """Gives a variable new memory on a device, and returns the new handle to it. The variable
    stays the same object."""
    old = variable.handle
    # a second variable makes the memory, and only its handle is kept
    with tf.device(native):
        new = tf.Variable(
            variable.read_value(), trainable=False, dtype=variable.dtype, shape=variable.shape
        ).handle
    vars(new).update(vars(old))  # what the variable has written on its handle
    _handle.set(variable, new)
    # graphs of traces keep the old handle alive: an empty value frees its memory now
    tf.raw_ops.AssignVariableOp(resource=old, value=tf.constant([], variable.dtype))
    return new


# copying


def duplicate(model: Any, device: Device, backend: Models) -> Any:
    """Returns a copy of a model on `device`, which shares no storage with it. Raises
    `UnsupportedError` if the model has something that cannot be copied."""
    private.require("models")
    before = parts.variables(model)
    for _, variable in before:
        _require_plain(variable, backend)
    try:
        # Keras's lists register items with their layer as they are added, which must not happen
        # while a list is copied
        with backend.scope(device), _untracked():
            # symbolic tensors cannot be copied, and the copy keeps those of the model
            memo = {id(value): value for value in parts.traced(model)}
            memo |= {
                id(value): backend.copy(value, device) for _, _, value in parts.constants(model)
            }
            copied = _duplicate(model, memo)
    # the code of the model's own classes runs here, and may raise anything
    except Exception as error:
        raise _refusal(model, f"{type(error).__name__}: {error}", backend) from error
    # nothing may be lost: a class may keep variables in a way that this module does not know
    if len(parts.variables(copied)) != len(before):
        raise _refusal(model, "the copy has different variables", backend)
    return copied


def _refusal(model: Any, why: str, backend: Models) -> UnsupportedError:
    """Returns the error for a model that cannot be copied. Its message contains the reason
    `why`."""
    return backend.unsupported(
        f"copying this {type(model).__name__} ({why})",
        "build a second model in `with device:` and set its weights: other.set_weights(model.get_weights())",
    )


def _duplicate(model: Any, memo: _Memo) -> Any:
    """Returns a copy of a model. The copies of all its parts are made before any attribute is copied, because the
    parts refer to each other in circles. `memo` has objects that were copied before, with their copies, and gets those
    of all parts."""
    owned = parts.owned(model)
    # each part and its copy, if attributes have to be copied
    pairs = []
    # the `_unique_id` of each variable, and that of its copy
    keys: dict[str, str] = {}
    # first a copy of each part without attributes, so that the others can refer to it
    for part in owned:
        if isinstance(part, tf.Variable):
            memo[id(part)] = _new_variable(part)
            keys[_unique_id(part)] = _unique_id(memo[id(part)])
        elif isinstance(part, parts.SHARED):
            memo[id(part)] = part
        elif not isinstance(part, FunctionType | parts.TRACED_FUNCTION):
            cls: Any = type(part)
            memo[id(part)] = cls.__new__(cls)
            pairs.append((part, memo[id(part)]))
    _keep_foreign(pairs, memo)
    # then functions whose closures hold parts, and the tf.functions that were made of such
    for part in owned:
        if isinstance(part, FunctionType):
            memo[id(part)] = _rebound(part, memo)
    for part in owned:
        if isinstance(part, parts.TRACED_FUNCTION):
            memo[id(part)] = _clone(part)(_rebound_inner(part.python_function, memo))
    # then the attributes, in which each part is replaced by its copy
    for part, new in pairs:
        state = {
            key: None if key in parts.TRACES else _copied(value, memo)
            for key, value in vars(part).items()
        }
        new.__dict__.clear()
        new.__dict__.update(state)
    # last the `id`s that parts keep, now that all objects of the copy exist
    for _, new in pairs:
        _renew_ids(new, memo, keys)
    return memo[id(model)]


def _new_variable(variable: tf.Variable) -> tf.Variable:
    """Returns a new variable with the values and the settings of another one."""
    return tf.Variable(
        tf.raw_ops.DeepCopy(x=variable.read_value()),
        trainable=variable.trainable,
        name=variable.name.partition(":")[0],
        dtype=variable.dtype,
        shape=variable.shape,
        constraint=variable.constraint,
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
    )


def _copied(value: Any, memo: _Memo) -> Any:
    """Returns the copy of an attribute's value: the copy that `memo` has or, if it has none, a deep copy, in which the
    copies in `memo` take the place of their originals."""
    # the memo first: from Python 3.14, deepcopy returns functions as they are without looking
    # into it
    return memo[id(value)] if id(value) in memo else copy.deepcopy(value, memo)


def _rebound(function: FunctionType, memo: _Memo) -> FunctionType:
    """Returns a function of the copied model: `function` itself, or, if its closure refers to parts of the old model,
    a new function whose closure refers to the parts of the copy, which are in `memo`."""
    closure = function.__closure__ or ()
    # an empty cell, which has no contents to read, belongs to a name that is not assigned yet
    values = [cell.cell_contents for cell in closure if cell != CellType()]
    # a closure holds a part itself, or a bound method of a part
    if not any(id(getattr(value, "__self__", value)) in memo for value in values):
        return function
    cells = tuple(
        cell if cell == CellType() else CellType(_copied(cell.cell_contents, memo))
        for cell in closure
    )
    new = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__qualname__ = function.__qualname__
    new.__dict__.update({key: _copied(value, memo) for key, value in function.__dict__.items()})
    return new


def _rebound_inner(function: Any, memo: _Memo) -> Any:
    """Returns the Python function of a `tf.function` for the copied model, whose parts are in `memo`. Raises TypeError
    if `function` is a wrapper around a method, as for a method that `tf.function` decorates."""
    if tf.__internal__.decorator.unwrap(function)[0]:
        raise TypeError(
            "it keeps as an attribute a method that is a tf.function, which refers to the old model only weakly"
        )
    return (
        _rebound(function, memo) if type(function) is FunctionType else _copied(function, memo)
    )


def _keep_foreign(pairs: list[tuple[Any, Any]], memo: _Memo) -> None:
    """Adds the layers of other models to `memo` as their own copies, if their graphs also call
    a part of this model: otherwise these layers would be copied with the part. `pairs` has each
    part and its copy."""
    for part, _ in pairs:
        for node in _nodes(part):
            for neighbour in (node, *node.parent_nodes):
                memo.setdefault(id(neighbour.operation), neighbour.operation)


def _nodes(part: Any) -> list[Any]:
    """Returns the nodes of `part`, a layer or function, in the graphs of functional models: the
    nodes of its calls, and of the calls that follow these. Returns an empty list for any other
    object."""
    lists = vars(part).values() if isinstance(part, keras.Operation) else ()
    return [
        node
        for nodes in lists
        if isinstance(nodes, list)
        for node in nodes
        if hasattr(node, "parent_nodes")
    ]


def _renew_ids(new: Any, memo: _Memo, keys: dict[str, str]) -> None:
    """Replaces, in the copy `new`, the ids of the old model's objects by the ids of its own objects: in its tracker,
    in the keys of a functional model's nodes, and in the keys of an optimizer's variables. `memo` has the copies of
    the old objects, and `keys` the new id of each variable."""
    has_keys = isinstance(new, keras.Function | keras.optimizers.Optimizer)
    for value in vars(new).values():
        if isinstance(value, _Tracker):
            setattr(
                value,
                _STORED,
                {name: set(map(id, store)) for name, (_, store) in value.config.items()},
            )
        elif has_keys and isinstance(value, set | dict):
            renewed = {key: _renewed(key, memo, keys) for key in value}
            # no key has an id in it: this set or dict is of another kind
            if list(renewed) == list(renewed.values()):
                continue
            if isinstance(value, dict):
                content: Any = {renewed[key]: entry for key, entry in value.items()}
            else:
                content = set(renewed.values())
            value.clear()
            value.update(content)


def _renewed(key: Any, memo: _Memo, keys: dict[str, str]) -> Any:
    """Returns a key of the copy with the new id. A variable's key is looked up in `keys`; in a
    node's key, which begins with the `id` of a layer, the `id` becomes that of the layer's
    copy. Any other key is returned as it is."""
    number = re.match(r"\d+", key) if isinstance(key, str) else None
    if number is None or int(number[0]) not in memo:
        return keys.get(key, key)
    return f"{id(memo[int(number[0])])}{key[number.end() :]}"


# the wrappers of lists and tuples


def _type_in_modules(x: Any) -> type:
    """Returns the type of the wrapper that a `tf.Module` puts around a value like `x`.
    TensorFlow has no public names for these types."""
    module: Any = tf.Module()
    module.x = x
    return type(module.x)


# a tuple is wrapped only if it contains a list or a dict
_WRAPPED_LIST, _WRAPPED_TUPLE = _type_in_modules([]), _type_in_modules(([],))


def _rewrapped_tuple(old: Any, children: list[Any]) -> Any:
    """Returns a new wrapper with the items `children`. `old` is the wrapper of a tuple, or of a
    named tuple, whose type the new tuple gets."""
    cls: Any = type(old.__wrapped__)
    return type(old)(cls._make(children) if hasattr(cls, "_make") else cls(children))


class TensorflowModels(Models):
    """The capability of handling TensorFlow's and Keras's models."""

    if TYPE_CHECKING:
        # methods of the backend, of which this class is a base

        def _place(self, name: str) -> Device: ...

        def _refuse_models_here(self) -> None: ...

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each variable of a model, and of each other tensor
        that the model holds. The variables of the model's metrics and optimizers are left out,
        unless the model has no others."""
        weights = parts.weights(model)
        for name, variable in weights:
            # the variable's device, not its memory's, which for int32 "on" a GPU is always on
            # the host (tensorflow/tensorflow#59803)
            yield name, self._place(variable.device)
        for _, key, value in parts.constants(model):
            yield str(key), self._place(value.device)

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether all variables of a model, including those of its metrics and optimizers, and
        all other tensors that the model holds are on `device`."""
        if any(
            self._place(variable.device) is not device for _, variable in parts.variables(model)
        ):
            return False
        return all(
            self._place(value.device) is device for _, _, value in parts.constants(model)
        )

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Returns the name and the `tf.Variable` of each variable of a model, without those of
        its optimizer and metrics. Raises `NotBuiltError` if the model does not have its
        variables yet."""
        return names.variables(model)

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Returns ("", part, keys) for each part of a model that has attributes. `keys` are the
        names of the attributes that xdevice's core need not search for tensors."""
        return parts.attributes(model)

    def move_model(self, model: Any, device: Device) -> None:
        """Moves a model in place. Raises `UnsupportedError` inside a `tf.function` or a
        strategy, and for a variable that cannot move."""
        self._refuse_models_here()
        move(model, device, self)

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a model on `device`. Raises `UnsupportedError` for an optimizer,
        for the result of `tf.saved_model.load`, and for a model that cannot be copied."""
        self._refuse_models_here()
        if isinstance(model, keras.optimizers.Optimizer):
            raise self.no_copy_of_optimizer(
                "copy the compiled model that owns it, or make an optimizer for the copied model, call "
                "new.build(copied.trainable_variables), and assign each value of old.variables to new.variables"
            )
        if any(_is_loaded(type(part)) for part in parts.owned(model)):
            raise self.unsupported(
                "copying the result of tf.saved_model.load, whose functions belong to its variables",
                "load it again inside `with device:`",
            )
        return duplicate(model, device, self)

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns everything that a model owns, such as layers and variables, in a fixed
        order."""
        return parts.built(model)

    def tensor_of(self, model: Any) -> Any | None:
        """Returns the value of a variable, on the variable's device; None for any other
        model."""
        variable = parts.tf_variable(model) if isinstance(model, keras.Variable) else model
        if not isinstance(variable, tf.Variable):
            return None
        # without this scope TensorFlow would copy the value to the device of the current scope
        with tf.device(variable.device):
            return variable.read_value()

    def container_way(self, x: Any) -> Way | None:
        """Returns how to walk and rebuild an `ExtensionType`, or the wrapper that `tf.Module` puts around a list or a
        tuple; None for any other object."""
        # a `Way` without fields means that the attributes of the object are walked
        if isinstance(x, tf.experimental.ExtensionType):
            return Way()
        # the children come as a list, which is what the wrapper of a list takes; the wrapper of
        # a tuple takes only a tuple, perhaps a named one, which `_rewrapped_tuple` makes
        if type(x) is _WRAPPED_LIST:
            return Way(list, lambda old, children: type(old)(children))
        return Way(list, _rewrapped_tuple) if type(x) is _WRAPPED_TUPLE else None
