"""Finds the objects that TensorFlow's and Keras's models own: layers, variables, optimizers,
constants."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from xdevice.errors import NotBuiltError

from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

layers_in = private.field("keras.Layer._layers")
nodes_of = private.field("keras.Operation._inbound_nodes")

TRACES = ("train_function", "test_function", "predict_function")
"""The attributes in which Keras stores the functions that it has traced for `fit`, `evaluate`
and `predict`. If such an attribute is None, Keras creates the function again."""
TRACED_FUNCTION = type(tf.function(lambda: None))
"""The type of the objects that `tf.function` returns. TensorFlow has no public name for this type."""
SHARED = (
    tf.distribute.Strategy,
    ModuleType,
    type(getattr(keras.layers.Resizing(1, 1, name="-"), "backend", None)),
)
"""The types of objects to which a model refers, but which it does not own. So a copy of the model refers to the same
objects. The last type is the type of Keras's switch between backends. Layers for images refer to this switch, and
`copy` cannot copy the switch."""

_OWNING = (
    tf.__internal__.tracking.AutoTrackable, keras.Operation, keras.Variable, keras.optimizers.Optimizer, keras.Metric,
    keras.Loss, keras.random.SeedGenerator,
)  # fmt: skip
"""The types of objects that may own variables, and whose attributes are therefore searched."""
_LEAVES = (tf.Variable, TRACED_FUNCTION, FunctionType, *SHARED)
"""The types of objects that are parts of a model, but are not searched for more parts."""
_MADE_LATER = (keras.optimizers.Optimizer, keras.Metric)
"""The types of parts whose variables `fit` creates, on the default device."""
_BUILDS_NOTHING = (keras.Layer.build, keras.Model.build, keras.Sequential.build)
"""The `build` methods of Keras's base classes. A layer that inherits such a method creates no
variables itself when it is built, so it need not be built before it is moved."""


def tf_variable(variable: Any) -> tf.Variable | None:
    """Returns the `tf.Variable` in a Keras variable, or None if the Keras variable does not
    have it yet. A `tf.Variable` is returned as it is. The public attribute `value` is not used,
    because inside a layer with mixed precision, it is cast to another dtype."""
    if isinstance(variable, tf.Variable):
        return variable
    return next((x for x in vars(variable).values() if isinstance(x, tf.Variable)), None)


def variables(model: Any) -> list[tuple[str, tf.Variable]]:
    """Returns the name and the `tf.Variable` of each variable of a model, including those of
    its optimizer, its metrics and its random seeds."""
    return _named(owned_if_built(model))


def _named(parts: list[Any]) -> list[tuple[str, tf.Variable]]:
    """Returns each `tf.Variable` in `parts` with a name: the path of the Keras variable that contains the
    `tf.Variable`. Without a Keras variable, the name is the name of the `tf.Variable` itself."""
    names = {
        id(tf_variable(part)): part.path for part in parts if isinstance(part, keras.Variable)
    }
    tf_variables = [part for part in parts if isinstance(part, tf.Variable)]
    return [
        # TensorFlow appends ":0" to names
        (names.get(id(variable), variable.name.partition(":")[0]), variable)
        for variable in tf_variables
    ]


def weights(model: Any) -> list[tuple[str, tf.Variable]]:
    """Returns the name and the `tf.Variable` of each variable that determines the device of a
    model. The variables of metrics and optimizers are included only if the model has no other
    variables, because `fit` creates them on the default device."""
    parts = owned_if_built(model, without=_MADE_LATER)
    # the model is itself an optimizer or a metric, or has no weights
    if not any(isinstance(part, tf.Variable) for part in parts):
        return variables(model)
    return _named(parts)


def constants(model: Any) -> list[tuple[Any, Any, Any]]:
    """Returns the tensors that a model contains besides its variables, as attributes or in lists, dicts and tuples.
    Each tensor is returned as (holder, key, tensor). The holder is the dict, list or tuple that contains the tensor as
    `holder[key]`. Strings and handles are left out, because they cannot be moved."""
    # only types of eager tensors have a backing device
    return [
        (holder, key, value)
        for holder, key, value in _attributes(model)
        if hasattr(type(value), "backing_device")
        and value.dtype not in (tf.string, tf.resource, tf.variant)
    ]


def tuples(model: Any) -> list[tuple[Any, Any, Any]]:
    """Returns the tuples that a model contains as attributes or in lists and dicts, except tuples inside other tuples.
    Each tuple is returned as (holder, key, tuple). The holder is the dict or list that contains the tuple as
    `holder[key]`. If a tensor in a tuple is moved, the tuple has to be replaced, because tuples cannot be changed."""
    return [
        (holder, key, value)
        for holder, key, value in _attributes(model)
        if isinstance(value, tuple) and not isinstance(holder, tuple)
    ]


def attributes(model: Any) -> list[tuple[str, Any, frozenset[str]]]:
    """Returns ("", part, keys) for each part of a model that has attributes. `keys` are the
    names of the attributes that this module searches for tensors; the core searches all other
    attributes."""
    parts = [part for part in owned(model) if isinstance(part, _OWNING)]
    return [
        (
            "",
            part,
            frozenset(key for key, value in vars(part).items() if _is_searched(value)),
        )
        for part in parts
    ]


def _is_searched(value: Any) -> bool:
    """Whether the value of an attribute is a container, a tensor, or a part of a model. False for a foreign
    container, which this module searches for parts, but not for tensors."""
    cls: Any = type(value)
    return (
        isinstance(value, dict | list | tuple)
        or hasattr(cls, "backing_device")
        or _role(cls) not in (None, "foreign")
    )


def stored_symbols(model: Any) -> list[Any]:
    """Returns the symbolic tensors that a model has stored during a trace, such as a loss. A
    copy of the model has the same symbolic tensors."""
    return [
        value
        for _, _, value in _attributes(model)
        if isinstance(value, tf.__internal__.SymbolicTensor)
    ]


def _attributes(model: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yields (holder, key, value) for each attribute of the parts of a model. If an attribute
    is a dict, list or tuple, its items are yielded in the same way, at any depth. Tuples are
    also yielded themselves, but dicts and lists are not."""
    visited: set[int] = set()
    holders = [vars(part) for part in owned(model) if isinstance(part, _OWNING)]
    while holders:
        holder = holders.pop()
        if id(holder) in visited:
            continue
        visited.add(id(holder))
        # copied into a list, because the caller may change the holder during its loop
        for key, value in list(
            holder.items() if isinstance(holder, dict) else enumerate(holder)
        ):
            if isinstance(value, dict | list | tuple):
                holders.append(value)
            if not isinstance(value, dict | list):
                yield holder, key, value


def owned_if_built(model: Any, without: tuple[type, ...] = ()) -> list[Any]:
    """Returns the result of `owned`: everything that a model owns, except objects of the types in `without` and
    everything that such objects own. Raises `NotBuiltError` if the model does not have its variables yet."""
    parts = owned(model, without)
    _require_built(model, parts)
    return parts


def owned(model: Any, without: tuple[type, ...] = ()) -> list[Any]:
    """Returns everything that a model owns (layers, variables, optimizers, ...), without duplicates, in the order of
    the attributes. Objects of the types in `without`, and everything that these objects own, are left out."""
    parts: list[Any] = []
    visited: dict[int, Any] = {}
    stack = [model]
    while stack:
        thing = stack.pop()
        if id(thing) in visited:
            continue
        # not `type(thing)`, because a `tf.Module` wraps tuples and dicts, and the `__class__`
        # of a wrapper is the class of the wrapped object
        role = _role(thing.__class__)
        if role is None or (isinstance(thing, without) and thing is not model):
            continue
        # the object itself is stored, because an `id` is unique only as long as its object
        # exists
        visited[id(thing)] = thing
        if role in ("leaf", "owner"):
            parts.append(thing)
        children: Iterable[Any] = ()
        if role == "owner":
            children = _children(thing)
        elif role == "foreign":
            children = _inside(thing)
        elif role != "leaf":
            children = thing.values() if role == "dict" else thing
        # reversed, so that the first child is taken from the stack first
        stack.extend(reversed(list(children)))
    return parts


@functools.lru_cache(1024)
def _role(cls: type) -> str | None:
    """Returns how `owned` treats objects of a type. A "leaf" is a part that is not searched, and an "owner" is a part
    whose attributes are searched. A "dict", "list" or "foreign" container is not a part, but its contents are searched;
    the core searches a foreign container for tensors. Returns None for a type that is ignored."""
    # the order matters, because the first role that matches is returned
    roles = (
        ("leaf", _LEAVES),
        ("owner", _OWNING),
        ("dict", dict),
        ("list", (list, tuple, set)),
        ("foreign", (functools.partial, deque)),
    )
    role = next((role for role, types in roles if issubclass(cls, types)), None)
    return "foreign" if role is None and is_dataclass(cls) else role


def _inside(container: Any) -> Iterable[Any]:
    """Returns the contents of a partial, a deque or a dataclass. Layers in these containers are parts, because
    otherwise Keras would copy the layers by saving them."""
    if isinstance(container, functools.partial):
        return container.func, *container.args, *container.keywords.values()
    if isinstance(container, deque):
        return container
    return [getattr(container, field.name, None) for field in fields(container)]


def _children(owner: Any) -> list[Any]:
    """Returns the values of an object's attributes. Values that the object does not own are
    left out: traced functions, which Keras creates again when they are needed, and an
    optimizer's list of the model's variables."""
    values = [value for name, value in vars(owner).items() if name not in TRACES]
    if not isinstance(owner, keras.optimizers.Optimizer):
        return values
    # an optimizer's list of the model's variables is recognized because it contains a variable that the optimizer does
    # not own
    own_ids = set(map(id, owner.variables))
    return [
        value
        for value in values
        if not (isinstance(value, list) and _has_others(value, own_ids))
    ]


def _has_others(values: list[Any], own_ids: set[int]) -> bool:
    """Whether a list contains a variable whose `id` is not in `own_ids`."""
    return any(
        isinstance(value, tf.Variable | keras.Variable) and id(value) not in own_ids
        for value in values
    )


def _require_built(model: Any, parts: list[Any]) -> None:
    """Raises `NotBuiltError` if a model is not built, and a layer among its parts does not have its
    variables yet."""
    # a model that has been built may contain layers that are not built, because it never calls
    # them
    if getattr(model, "built", False):
        return
    for part in parts:
        # the layers in a layer are also parts, so a layer that only calls other layers is
        # skipped
        if (
            isinstance(part, keras.Layer)
            and not part.built
            and type(part).build not in _BUILDS_NOTHING
        ):
            raise NotBuiltError(
                f"the layer {part.name!r} of {type(model).__name__} has no variables yet; build it first: call the "
                f"model once on data, or model.build(input_shape)"
            )
