"""Names the variables of TensorFlow's and Keras's models. If a model is built again, its
variables get the same names.

How names are assigned:

- Keras's own `path` cannot be used. Keras numbers the layers of the whole process (dense, dense_1, ...), so the paths
  differ if a model is built a second time. Instead, a layer keeps its Keras name without this number, and is numbered
  among the layers of its parent, as in Keras's own files.
- All other objects are named after the attributes that contain them, as in TensorFlow's
  checkpoints.
- Some variables are found only by `parts.owned_if_built`, the search that is used to move models. These variables are
  named by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from xdevice.errors import NotBuiltError

from . import parts
from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_trainable = private.field("keras.Layer._trainable_variables")
_non_trainable = private.field("keras.Layer._non_trainable_variables")
_NO_STATE = (keras.optimizers.Optimizer, keras.Metric, keras.random.SeedGenerator)
"""The types of objects whose variables are left out of the state dict of a Keras model. The state dicts of other
frameworks do not contain such variables."""
_Named = tuple[str, Any]
"""A pair of the name of an object and the object itself."""


def variables(model: Any) -> list[tuple[str, tf.Variable]]:
    """Returns the name and the `tf.Variable` of each variable of a model, an optimizer or a
    metric. For a model, the variables of its optimizer, its metrics and its random seeds are
    left out. Raises `NotBuiltError` if the model or optimizer does not have its variables
    yet."""
    if isinstance(model, keras.optimizers.Optimizer):
        if not model.built:
            raise NotBuiltError(
                "the optimizer has no state yet; build it first: optimizer.build(model.trainable_variables)"
            )
        # named by numbers, as in Keras's own files, because the paths contain those of the
        # parameters, which differ between processes
        owned_by_optimizer: list[tuple[str, Any]] = [
            (str(i), parts.tf_variable(x)) for i, x in enumerate(model.variables)
        ]
        return owned_by_optimizer
    # for a metric too, because it may contain layers, which must have their variables
    owned = parts.owned_if_built(model, without=_NO_STATE)
    if isinstance(model, keras.Metric):
        return _unique(
            (variable.name, parts.tf_variable(variable)) for variable in model.variables
        )
    # contains a shared variable once for each of its names
    named = list(_walk(model, name="", above=()))
    reached = {id(variable) for _, variable in named}
    # variables that `_walk` does not reach, such as those in a set or in a loss, are named by their paths
    names = {
        id(parts.tf_variable(part)): part.path
        for part in owned
        if isinstance(part, keras.Variable)
    }
    missed = [
        part for part in owned if isinstance(part, tf.Variable) and id(part) not in reached
    ]
    # without a Keras variable, the name is that of the `tf.Variable` itself, to which TensorFlow appends ":0"
    named += [(names.get(id(part), part.name.partition(":")[0]), part) for part in missed]
    return _unique(named)


def _walk(thing: Any, name: str, above: tuple[int, ...]) -> Iterator[_Named]:
    """Yields a (name, variable) pair for each variable in `thing`. A shared variable is yielded once for each of its
    names. `name` is the name of `thing`, and `above` contains the `id`s of the objects that contain `thing`."""
    # otherwise, the search would never end if a part refers to the model that contains it
    if id(thing) in above:
        return
    if isinstance(thing, tf.Variable):
        yield name, thing
    elif isinstance(thing, keras.Variable):
        yield name, parts.tf_variable(thing)
    elif not isinstance(thing, _NO_STATE):
        prefix = f"{name}/" if name else ""
        for inner, child in _children(thing):
            yield from _walk(child, prefix + inner, (*above, id(thing)))


def layers(model: Any) -> Iterator[tuple[str, keras.Layer]]:
    """Yields (path, layer) for each layer of a model, without duplicates. The path is the
    common beginning of the names of the layer's variables, with dots instead of slashes."""
    visited: set[int] = set()
    return ((name.replace("/", "."), layer) for name, layer in _layers(model, "", visited))


def _layers(thing: Any, name: str, visited: set[int]) -> Iterator[_Named]:
    """Yields (name, layer) for every layer in `thing`, including `thing` itself. `name` is the
    name of `thing`. Objects whose `id` is in `visited` are skipped; the `id`s of all other
    objects are added to `visited`."""
    if id(thing) in visited or isinstance(thing, (tf.Variable, keras.Variable, *_NO_STATE)):
        return
    visited.add(id(thing))
    if isinstance(thing, keras.Layer):
        yield name, thing
    prefix = f"{name}/" if name else ""
    for inner, child in _children(thing):
        yield from _layers(child, prefix + inner, visited)


def _children(thing: Any) -> Iterable[_Named]:
    """Returns the objects that a layer, module, list or dict contains directly, with unique
    names."""
    if isinstance(thing, keras.Layer):
        own_variables = [
            (variable.name, variable)
            for variable in (*_trainable(thing), *_non_trainable(thing))
        ]
        layers = [(_name_without_number(layer), layer) for layer in parts.layers_in(thing)]
        return _unique([*own_variables, *layers, *_foreign(thing)])
    if isinstance(thing, dict):
        return [(str(key), value) for key, value in thing.items()]
    if isinstance(thing, list | tuple):
        return [(str(number), value) for number, value in enumerate(thing)]
    return (
        _attributes(thing)
        if isinstance(thing, tf.Module | tf.__internal__.tracking.AutoTrackable)
        else ()
    )


def _attributes(thing: Any) -> list[_Named]:
    """Returns the names and values of the attributes that the program has set on an object."""
    # the names of TensorFlow's own attributes begin with "_self_"
    return [
        (name, value) for name, value in vars(thing).items() if not name.startswith("_self_")
    ]


def _foreign(layer: keras.Layer) -> list[_Named]:
    """Returns the attributes of a Keras layer that are, or directly contain, a `tf.Variable` or
    a `tf.Module`. Keras does not track these objects."""
    kinds = (tf.Variable, tf.Module)
    return [(name, value) for name, value in _attributes(layer) if _holds(value, kinds)]


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is an object of one of these types, or a dict, list or tuple that
    directly contains such an object."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(isinstance(inner, kinds) for inner in value)
    return isinstance(value, kinds)


def _name_without_number(layer: keras.Layer) -> str:
    """Returns the name of a layer without the number that Keras appended: "dense" for
    "dense_3"."""
    base, _, number = layer.name.rpartition("_")
    # without the number, the name must end with the name of the class: "dense_3" is a Dense,
    # and "forward_lstm_3" is the LSTM in a Bidirectional. In any other name, the program itself
    # has chosen the number
    is_numbered = number.isdigit() and base.replace("_", "").endswith(
        type(layer).__name__.lower()
    )
    return base if is_numbered else str(layer.name)


def _unique(named: Iterable[_Named]) -> list[_Named]:
    """Returns the (name, object) pairs with unique names: if an earlier pair has the same name, a number is appended to
    the name."""
    taken: set[str] = set()
    unique = []
    for name, value in named:
        free, number = name, 0
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        unique.append((free, value))
    return unique
