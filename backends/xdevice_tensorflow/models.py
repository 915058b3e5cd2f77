"""Moves TensorFlow's and Keras's models in place, and copies them.

Rules for this module, and the reasons for them:

- A move keeps the `tf.Variable` objects, and replaces only the handle (TensorFlow's reference to the memory) in each.
  Optimizers look variables up by `_unique_id`. If the `_value` of a Keras variable were replaced, training would
  silently change a variable that the model no longer uses.
- A `tf.function` that was traced before the move has captured the old handle, and would compute
  with the old value. So its captured handle is replaced, too. A tf.data pipeline stores handles
  where Python cannot replace them, so a variable that a pipeline reads cannot be moved.
- A copy is made object by object. Keras itself copies a model by saving and loading it, which
  fails for subclasses that are not registered, and loses metrics. Keras stores the `id`s of
  objects in three places; in the copy, these are the `id`s of the copied objects.
- A `tf.Module` wraps each list that is one of its attributes. If an item of the wrapper is assigned, the wrapper
  compares the old item with the new one. This comparison fails for tensors, and after an assignment the wrapper can no
  longer be saved. So a list that changes gets a new wrapper.
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
"""Maps the `id` of an old object to the object that replaces it in a moved or copied model."""

_handle = private.field(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable._handle"
)
_unique_id = private.field(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable._unique_id"
)
# a function in a tf.data pipeline, such as that of `map`
_Stage = private["tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper"]
_clone = private.field("tensorflow.__internal__.function.Function._clone")
# a context manager; in its block, Keras does not track objects that are added to the lists of
# its layers
_untracked = private["keras.src.utils.tracking.DotNotTrackScope"]
# the class of Keras's record of the objects that a layer tracks, and the name of its attribute
# with the `id`s of these objects
_Tracker, _STORED = private.place("keras.src.utils.tracking.Tracker.stored_ids")

TYPES = (
    tf.Variable, tf.Module, tf.random.Generator,
    keras.Layer, keras.Variable, keras.optimizers.Optimizer, keras.Metric,
)  # fmt: skip
"""The types whose objects xdevice treats as models. They own variables, and are moved in
place."""

_LOADED: Final = "tensorflow.python.saved_model.load"
"""The module in which `tf.saved_model.load` creates a type for each object that it loads."""
_Trace = tf.types.experimental.ConcreteFunction


def is_model(cls: type) -> bool:
    """Whether xdevice treats objects of a type as models."""
    return issubclass(cls, TYPES) or _is_loaded(cls)


def _is_loaded(cls: type) -> bool:
    """Whether a type was created by `tf.saved_model.load` for a loaded object."""
    return cls.__module__ == _LOADED and issubclass(cls, tf.__internal__.tracking.AutoTrackable)


# moving


def move(model: Any, device: Device, backend: Models) -> None:
    """Moves a model to `device` in place: every variable, and every other tensor that the model contains. Raises
    `UnsupportedError` and moves nothing if a strategy, a graph or a tf.data pipeline uses one of the variables."""
    private.require_names_for("models")
    native = backend.to_native(device)
    moving = [
        variable
        for _, variable in parts.variables(model)
        # `native`, without its slash, is compared with the end of the long name of the
        # variable's device. The beginning of this name, the job, is different in a cluster
        if not variable.device.endswith(native[1:])
    ]
    for variable in moving:
        _require_plain(variable, backend)
    traces = _traces_of(moving, backend)
    # in each pair, the old handle is read before `_replace_handle` replaces it
    handles = [(variable.handle, _replace_handle(variable, native)) for variable in moving]
    moved: _Memo = {id(old): new for old, new in handles}
    for holder, key, value in parts.constants(model):
        if not value.device.endswith(native[1:]):
            if id(value) not in moved:
                moved[id(value)] = backend.move(value, device)
            # a tuple cannot be changed, so the loop below replaces it
            if not isinstance(holder, tuple):
                holder[key] = moved[id(value)]
    for holder, key, value in parts.tuples(model):
        new = _replaced(value, moved)
        if new is not value:
            holder[key] = new
    # last, because a trace may have captured any of the replaced handles and tensors
    for trace in traces:
        trace.set_external_captures(
            [moved.get(id(capture), capture) for capture in _captures(trace)]
        )


def _replaced(value: Any, moved: _Memo) -> Any:
    """Returns the object that replaces `value` after a move. `moved` maps the `id` of each old object to the new
    object. If `value` was not moved, returns `value` itself. A tuple that contains moved tensors is rebuilt with the
    new tensors."""
    if not isinstance(value, tuple):
        return moved.get(id(value), value)
    children = [_replaced(child, moved) for child in value]
    if all(map(operator.is_, children, value)):
        return value
    if type(value) is _WRAPPED_TUPLE:
        return _rewrapped_tuple(value, children)
    cls: Any = type(value)
    # the class of a named tuple expects separate arguments; its method `_make` accepts a list
    return cls._make(children) if hasattr(cls, "_make") else cls(children)


def _traces_of(moving: list[tf.Variable], backend: Models) -> list[Any]:
    """Returns all traced functions in the process that have captured one of the variables in `moving`. Raises
    `UnsupportedError` if a tf.data pipeline reads one of these variables."""
    # two references to a handle are not those of a trace: one is in the variable, and one is
    # the argument of `getrefcount`. If a handle has more references, all objects of the process
    # are searched, because there may be no other way to reach the traced function. The search
    # takes long, so it is skipped if no handle has more references
    handles = {
        id(variable.handle) for variable in moving if sys.getrefcount(_handle(variable)) > 2
    }
    if not handles:
        return []
    traces, are_piped = _traces_that_captured(handles)
    if are_piped:
        gc.collect()  # an exhausted pipeline may be alive only because of reference cycles
        traces, are_piped = _traces_that_captured(handles)
    if are_piped:
        raise backend.unsupported(
            "moving a variable that a tf.data pipeline reads",
            "move the variable before creating the pipeline, or first delete the pipeline and its iterators",
        )
    return traces


def _traces_that_captured(handles: set[int]) -> tuple[list[Any], bool]:
    """Returns two values: the traced functions that have captured a handle whose `id` is in `handles`, and whether a
    tf.data pipeline uses one of these functions."""
    everything = gc.get_objects()
    # `issubclass` is called once for each type, because calling `isinstance` for each of the
    # many objects would be slow
    kinds = {cls for cls in set(map(type, everything)) if issubclass(cls, (_Trace, _Stage))}
    candidates = [obj for obj in everything if type(obj) in kinds]
    traces = [
        obj
        for obj in candidates
        if isinstance(obj, _Trace) and not handles.isdisjoint(map(id, _captures(obj)))
    ]
    piped = [obj.function for obj in candidates if isinstance(obj, _Stage)]
    return traces, any(function is trace for function in piped for trace in traces)


def _captures(trace: Any) -> list[Any]:
    """Returns the objects that a trace has captured. For a deferred capture, which is a function, returns the function
    itself. `captured_inputs` would return the value of this function instead."""
    graph = trace.graph
    # the values of the deferred captures come last in `captured_inputs`
    return [
        *trace.captured_inputs[: len(graph.external_captures)],
        *graph.deferred_external_captures,
    ]


def _require_plain(variable: tf.Variable, backend: Models) -> None:
    """Raises `UnsupportedError` for a variable without its own eager handle. Such a variable belongs to a tf.distribute
    strategy or to a graph."""
    # a variable of a strategy has no `_handle` of its own; its `handle` is that of a replica.
    # In a graph, the handle is a symbolic tensor, which has no backing device
    if not hasattr(vars(variable).get("_handle"), "backing_device"):
        raise backend.unsupported(
            f"moving a variable of type {type(variable).__name__}",
            "leave the variable on the device that the tf.distribute strategy or the graph has chosen",
        )


def _replace_handle(variable: tf.Variable, native: str) -> Any:
    """Allocates new memory for a variable on a device, copies the value, and returns the new
    handle. The variable stays the same object."""
    old = variable.handle
    # a temporary variable allocates the memory, and only its handle is kept
    with tf.device(native):
        new = tf.Variable(
            variable.read_value(), trainable=False, dtype=variable.dtype, shape=variable.shape
        ).handle
    vars(new).update(vars(old))  # the attributes that the variable has set on its handle
    _handle.set(variable, new)
    # the graphs of traces keep the old handle alive, so an empty value is assigned to free its
    # memory now
    tf.raw_ops.AssignVariableOp(resource=old, value=tf.constant([], variable.dtype))
    return new


# copying


def duplicate(model: Any, device: Device, backend: Models) -> Any:
    """Returns a copy of a model on `device` that shares no storage with the model. Raises
    `UnsupportedError` if the model cannot be copied."""
    private.require_names_for("models")
    old_variables = parts.variables(model)
    for _, variable in old_variables:
        _require_plain(variable, backend)
    try:
        # when an item is added to one of Keras's lists, the list registers the item with its
        # layer, which must not happen while the list is copied
        with backend.scope(device), _untracked():
            # symbolic tensors cannot be copied, so the copy has the same symbolic tensors as
            # the model
            memo = {id(value): value for value in parts.stored_symbols(model)}
            memo |= {
                id(value): backend.copy(value, device) for _, _, value in parts.constants(model)
            }
            copied = _duplicate(model, memo)
    # this runs the code of the model's own classes, which may raise any error
    except Exception as error:
        raise _refusal(model, f"{type(error).__name__}: {error}", backend) from error
    # compares the numbers of variables, to check that nothing is lost: a class may store variables in
    # a way that this module does not support
    if len(parts.variables(copied)) != len(old_variables):
        raise _refusal(model, "the copy has a different number of variables", backend)
    return copied


def _refusal(model: Any, why: str, backend: Models) -> UnsupportedError:
    """Returns the error for a model that cannot be copied. The message contains the reason,
    `why`."""
    return backend.unsupported(
        f"copying this {type(model).__name__} ({why})",
        "build a second model inside `with device:`, and set its weights: other.set_weights(model.get_weights())",
    )


def _duplicate(model: Any, memo: _Memo) -> Any:
    """Returns a copy of a model. All parts are created before any attribute is copied, because the parts contain
    circular references to each other. `memo` maps the `id`s of objects that have already been copied to their copies;
    the copies of all parts are added."""
    owned = parts.owned(model)
    # pairs of a part and its copy, for parts whose attributes have to be copied
    pairs = []
    # maps the `_unique_id` of each variable to that of its copy
    keys: dict[str, str] = {}
    # first, copy each part without its attributes, so that the other copies can refer to it
    for part in owned:
        if isinstance(part, tf.Variable):
            memo[id(part)] = _new_variable(part)
            keys[_unique_id(part)] = _unique_id(memo[id(part)])
        elif isinstance(part, parts.SHARED):
            memo[id(part)] = part
        # the functions are copied below
        elif not isinstance(part, FunctionType | parts.TRACED_FUNCTION):
            cls: Any = type(part)
            memo[id(part)] = cls.__new__(cls)
            pairs.append((part, memo[id(part)]))
    _keep_foreign(pairs, memo)
    # then, copy functions whose closures contain parts, and each tf.function that was created
    # from such a function
    for part in owned:
        if isinstance(part, FunctionType):
            memo[id(part)] = _rebound(part, memo)
    for part in owned:
        if isinstance(part, parts.TRACED_FUNCTION):
            memo[id(part)] = _clone(part)(_rebound_inner(part.python_function, memo))
    # then, copy the attributes, in which each part is replaced with its copy
    for part, new in pairs:
        state = {
            key: None if key in parts.TRACES else _copied(value, memo)
            for key, value in vars(part).items()
        }
        new.__dict__.clear()
        new.__dict__.update(state)
    # last, replace the `id`s that parts store, now that all objects of the copy exist
    for _, new in pairs:
        _renew_ids(new, memo, keys)
    return memo[id(model)]


def _new_variable(variable: tf.Variable) -> tf.Variable:
    """Returns a new variable with the same values and settings."""
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
    """Returns a copy of an attribute's value. If `memo` contains a copy of the value, returns this copy. Otherwise,
    returns a deep copy in which copies from `memo` replace the old objects."""
    # look into `memo` first, because since Python 3.14, deepcopy returns functions as they are,
    # even if `memo` has a copy
    return memo[id(value)] if id(value) in memo else copy.deepcopy(value, memo)


def _rebound(function: FunctionType, memo: _Memo) -> FunctionType:
    """Returns the function that replaces `function` in the copied model. If the closure of `function` refers to parts
    of the old model, this is a new function whose closure refers to the copies in `memo`. Otherwise, it is `function`
    itself."""
    closure = function.__closure__ or ()
    # an empty cell, which equals a new cell, has no contents that could be read: its name has not been
    # assigned yet
    values = [cell.cell_contents for cell in closure if cell != CellType()]
    # a closure may contain a part itself, or a bound method of a part
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
    """Returns the Python function inside a `tf.function`, adapted to the copied model. `memo` contains the parts of the
    copied model. Raises TypeError if `function` is a wrapper around a method, which is the case for methods that
    `tf.function` decorates."""
    # the first result is the list of wrappers around the function
    if tf.__internal__.decorator.unwrap(function)[0]:
        raise TypeError(
            "one of its attributes is a method wrapped in tf.function, which still refers to the old model"
        )
    return (
        _rebound(function, memo) if type(function) is FunctionType else _copied(function, memo)
    )


def _keep_foreign(pairs: list[tuple[Any, Any]], memo: _Memo) -> None:
    """Other models may call parts of this model in their graphs. Keeps the adjacent layers in these graphs from being
    copied together with the parts: adds each such layer to `memo` as its own copy. `pairs` contains each part with its
    copy."""
    for part, _ in pairs:
        for node in _nodes(part):
            for neighbour in (node, *node.parent_nodes):
                # a layer that is itself a part is already in `memo`, with its copy
                memo.setdefault(id(neighbour.operation), neighbour.operation)


def _nodes(part: Any) -> list[Any]:
    """Returns the nodes of `part` in the graphs of functional models: the nodes for the calls of `part`, and the nodes
    for the calls that use the results. Returns an empty list if `part` is neither a layer nor a function."""
    lists = vars(part).values() if isinstance(part, keras.Operation) else ()
    return [
        node
        for nodes in lists
        if isinstance(nodes, list)
        for node in nodes
        if hasattr(node, "parent_nodes")
    ]


def _renew_ids(new: Any, memo: _Memo, keys: dict[str, str]) -> None:
    """Replaces the ids of old objects in the copy `new` with the ids of the copied objects. Such ids are in the tracker
    of `new`, in the keys of a functional model's nodes, and in the keys of an optimizer's variables. `memo` maps old
    objects to their copies, and `keys` maps the id of each variable to the new id."""
    has_keys = isinstance(new, keras.Function | keras.optimizers.Optimizer)
    for value in vars(new).values():
        if isinstance(value, _Tracker):
            # `config` maps each name to a pair: a function that tells which objects are tracked, and the list of
            # these objects
            setattr(
                value,
                _STORED,
                {name: set(map(id, store)) for name, (_, store) in value.config.items()},
            )
        elif has_keys and isinstance(value, set | dict):
            renewed = {key: _renewed(key, memo, keys) for key in value}
            # no key contains an id, so this set or dict has another purpose
            if list(renewed) == list(renewed.values()):
                continue
            if isinstance(value, dict):
                content: Any = {renewed[key]: entry for key, entry in value.items()}
            else:
                content = set(renewed.values())
            value.clear()
            value.update(content)


def _renewed(key: Any, memo: _Memo, keys: dict[str, str]) -> Any:
    """Returns the key that replaces `key` in the copy. The key of a variable is looked up in
    `keys`. The key of a node begins with the `id` of a layer, which is replaced with the `id`
    of the layer's copy. Any other key is returned as it is."""
    number = re.match(r"\d+", key) if isinstance(key, str) else None
    if number is None or int(number[0]) not in memo:
        return keys.get(key, key)
    return f"{id(memo[int(number[0])])}{key[number.end() :]}"


# the wrappers of lists and tuples


def _type_in_modules(x: Any) -> type:
    """Returns the type that a `tf.Module` uses to wrap values like `x`. TensorFlow has no public names for these
    types."""
    module: Any = tf.Module()
    module.x = x
    return type(module.x)


# a tuple is wrapped only if it contains a list or a dict
_WRAPPED_LIST, _WRAPPED_TUPLE = _type_in_modules([]), _type_in_modules(([],))


def _rewrapped_tuple(old: Any, children: list[Any]) -> Any:
    """Returns a new wrapper with the items `children`. `old` is the wrapper of a tuple or of a
    named tuple; the new tuple has the same type."""
    cls: Any = type(old.__wrapped__)
    return type(old)(cls._make(children) if hasattr(cls, "_make") else cls(children))


class TensorflowModels(Models):
    """Handles TensorFlow's and Keras's models."""

    if TYPE_CHECKING:
        # methods of the backend, of which this class is a base

        def _place(self, name: str) -> Device: ...

        def _refuse_models_here(self) -> None: ...

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields a (name, device) pair for each variable of a model, and for each other tensor that the model contains.
        The variables of metrics and optimizers are left out, unless the model has no other variables."""
        weights = parts.weights(model)
        for name, variable in weights:
            # the device of the variable, not that of its memory, because the memory of an int32
            # variable "on" a GPU is always on the host (tensorflow/tensorflow#59803)
            yield name, self._place(variable.device)
        for _, key, value in parts.constants(model):
            yield str(key), self._place(value.device)

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether all variables and all other tensors of a model are on `device`. The variables of metrics and
        optimizers are included."""
        if any(
            self._place(variable.device) is not device for _, variable in parts.variables(model)
        ):
            return False
        return all(
            self._place(value.device) is device for _, _, value in parts.constants(model)
        )

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Returns the name and the `tf.Variable` of each variable of a model, except the
        variables of its optimizer, metrics and random seeds. Raises `NotBuiltError` if the
        model does not have its variables yet."""
        return names.variables(model)

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Returns ("", part, keys) for each part of a model that has attributes. `keys` are the
        names of the attributes that xdevice's core need not search for tensors."""
        return parts.attributes(model)

    def move_model(self, model: Any, device: Device) -> None:
        """Moves a model in place. Raises `UnsupportedError` inside a `tf.function` or a
        strategy, and for a variable that cannot be moved."""
        self._refuse_models_here()
        move(model, device, self)

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a model on `device`. Raises `UnsupportedError` for an optimizer,
        for the result of `tf.saved_model.load`, and for a model that cannot be copied."""
        self._refuse_models_here()
        if isinstance(model, keras.optimizers.Optimizer):
            raise self.no_copy_of_optimizer(
                "copy the compiled model that owns the optimizer, or make a new optimizer for the copied model, call "
                "new.build(copied.trainable_variables), and assign each value of old.variables to new.variables"
            )
        if any(_is_loaded(type(part)) for part in parts.owned(model)):
            raise self.unsupported(
                "copying the result of tf.saved_model.load, because its functions always use the original variables",
                "load the model again inside `with device:`",
            )
        return duplicate(model, device, self)

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns everything that a model owns, such as layers and variables, in a fixed
        order."""
        return parts.owned_if_built(model)

    def tensor_of(self, model: Any) -> Any | None:
        """Returns the value of a variable, on the variable's device. Returns None for any other
        model."""
        variable = parts.tf_variable(model) if isinstance(model, keras.Variable) else model
        if not isinstance(variable, tf.Variable):
            return None
        # without this scope, TensorFlow would copy the value to the device of the current scope
        with tf.device(variable.device):
            return variable.read_value()

    def container_way(self, x: Any) -> Way | None:
        """Returns a `Way` to walk and rebuild `x` if `x` is an `ExtensionType`, or the wrapper of a list or tuple in a
        `tf.Module`. Returns None for any other object."""
        # a `Way` without arguments means that the attributes of the object are walked
        if isinstance(x, tf.experimental.ExtensionType):
            return Way()
        # the children are in a list, which the wrapper of a list accepts. The wrapper of a
        # tuple accepts only a tuple or named tuple, which `_rewrapped_tuple` creates
        if type(x) is _WRAPPED_LIST:
            return Way(list, lambda old, children: type(old)(children))
        return Way(list, _rewrapped_tuple) if type(x) is _WRAPPED_TUPLE else None
