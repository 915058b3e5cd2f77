"""Reads the variables of bound modules of Flax's linen, and finds the layers to which these variables belong.

Facts that the code depends on:
- A module of linen contains no values. `module.bind(variables)` returns a module that contains values. That module
  refers to the dicts in `variables`, but it copies the dicts of collections that are declared mutable.
- Most modules create new layers in each call, and a call requires inputs. Therefore the kind of a layer is recognized
  by the names and shapes of its parameters, and the settings of the layer are unknown.
- The cell of an LSTM or GRU has two kernels for each gate: one for the inputs and one for the state. For the inputs of
  an LSTM, these are the kernels `ii`, `if`, `ig` and `io`. Here the kernels for the inputs are joined into one variable
  with nnx's name. The kernels for the state are joined in the same way, and so are the four biases of a GRU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import jax

from xdevice.errors import NotBuiltError
from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract.layouts import Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from contextlib import AbstractContextManager

# the collections of Flax's own layers
_COLLECTIONS: Final = ("params", "batch_stats")
_TEMPORARY: Final = ("intermediates", "perturbations", "cache")
"""The collections of values that each run creates anew."""
# the linear layers inside an attention
_PROJECTIONS: Final = ("query", "key", "value", "out")


def is_linen(x: object) -> bool:
    """Whether an object is a module of Flax's linen."""
    library: Any = sys.modules.get("flax.linen")
    return library is not None and isinstance(x, library.Module)


def is_frozen(module: Any) -> bool:
    """Whether a bound module has a collection that cannot be written because it is not a dict, such as a FrozenDict."""
    return any(not isinstance(module.variables[name], dict) for name in module.variables)


def copied(module: Any) -> Any:
    """Returns a bound module with the same variables and random keys. The first call of a bound module runs its
    `setup()`. Every later call uses the arrays that `setup()` has read, even if `load` has replaced them in the
    meantime."""
    scope = module.scope
    if scope is None:
        return module
    keys = {name: key.as_jax_rng() for name, key in scope.rngs.items()}
    return module.clone(parent=None).bind(module.variables, rngs=keys, mutable=scope.mutable)


def arrays(module: Any) -> Iterator[tuple[str, jax.Array, Callable[[jax.Array], None]]]:
    """Yields three things for each array of a bound module: its name, its value, and a function that replaces the
    value. The arrays of a cell's gates are joined. Raises `NotBuiltError` for a module that is not bound."""
    groups = _groups(module)
    cells = _cells(groups)
    joined: set[str] = set()
    for path, leaves in groups.items():
        # the layer may be inside a cell, the module at `owner`
        owner, _, layer_name = path.rpartition(".")
        if _is_gate(layer_name, cells.get(owner)):
            # all gates of a cell are yielded at the place of the first gate
            if owner not in joined:
                yield from _joined(owner, cells[owner], groups)
            joined.add(owner)
            continue
        for name, holder in leaves.items():
            yield layouts.join(path, name), holder[name], _writer_into([holder], name)


def _joined(
    cell: str, kind: str, groups: Mapping[str, Any]
) -> Iterator[tuple[str, jax.Array, Callable[[jax.Array], None]]]:
    """Yields three things for each joined array of a cell's gates: its name, its value, and a function that replaces
    the value. `cell` is the cell's path, `kind` is "lstm" or "gru", and `groups` is the result of `_groups`."""
    for name, gates in dialects.LINEN_CELLS[kind].items():
        # `name` may be "dense_i.kernel", for example, which joins "ii.kernel", "if.kernel" and so on
        array_name = name.rpartition(".")[2]
        holders = [
            groups[layouts.join(cell, gate.partition(".")[0])][array_name] for gate in gates
        ]
        # this is a new array, so the function that is yielded with it writes into the arrays of the gates
        joined_array = jax.numpy.concatenate(
            [holder[array_name] for holder in holders], axis=-1
        )
        yield layouts.join(cell, name), joined_array, _writer_into(holders, array_name)


def layers(module: Any) -> Iterator[Layer]:
    """Yields the layers of a bound module whose kind follows from the names and shapes of their parameters. These
    layers have only the settings that names and shapes reveal. Raises `NotBuiltError` for a module that is not
    bound."""
    groups = _groups(module)
    cells = _cells(groups)
    # the paths of the cells that were yielded
    listed: set[str] = set()
    # the collections that the user has defined, in which names do not reveal the kind of a layer
    own_collections = module.variables.keys() - {*_COLLECTIONS, *_TEMPORARY}
    for path, leaves in groups.items():
        # the layer may be inside a cell or an attention, the module at `owner`
        owner, _, layer_name = path.rpartition(".")
        if path.partition(".")[0] in own_collections:
            continue
        if _is_gate(layer_name, cells.get(owner)):
            # all gates of a cell are one layer
            if owner not in listed:
                yield _cell_layer(owner, cells[owner])
            listed.add(owner)
        elif layer_name in _PROJECTIONS and _is_attention(owner, groups):
            # all four projections are one layer, which is yielded at the place of the query
            if layer_name == "query":
                heads, size = leaves["kernel"]["kernel"].shape[1:]
                yield Layer(
                    owner,
                    layouts.ATTENTION,
                    dialects.projections(heads, size, output="out"),
                    {},
                )
        elif kind := _kind_of(layer_name, leaves):
            yield Layer(path, kind, dialects.flax(kind, {}), {})


def _cell_layer(path: str, kind: str) -> Layer:
    """Returns the layer of the cell at `path`, whose kind is "lstm" or "gru"."""
    # an RNN stores its cell under the name "cell", and is the layer; a cell with another name is the layer itself
    layer_path = path.removesuffix(".cell")
    prefix = "" if layer_path == path else "cell."
    parts = tuple(
        part._replace(name=prefix + part.name.removeprefix("cell."))
        for part in dialects.FLAX_CELLS[kind]
    )
    # a cell is one layer in one direction
    settings = {"layers": 1, "bidirectional": False, "projection": 0}
    return Layer(layer_path, kind, parts, settings)


def intercepting(
    layer_paths: Container[str], run: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Returns a context manager. In its block, calls of the layers at `layer_paths` are passed to `run(layer, path,
    arguments, go)`, which makes the call. Calls in a `scan`, such as those of a recurrent cell, are excluded, because
    they have no values."""

    def intercept(go: Callable[..., Any], args: Any, kwargs: Any, call: Any) -> Any:
        """Makes a call of a module's method. Linen passes the call to this function instead of making the call
        itself."""
        path = ".".join(call.module.path)
        is_traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs)))
        # a call of any other method of a layer is not a call of the layer
        if is_traced or call.method_name != "__call__" or path not in layer_paths:
            return go(*args, **kwargs)
        return run(
            call.module,
            path,
            (args, kwargs),
            lambda arguments: go(*arguments[0], **arguments[1]),
        )

    library: Any = sys.modules["flax.linen"]
    blocks: AbstractContextManager[None] = library.intercept_methods(intercept)
    return blocks


def _kind_of(name: str, leaves: Mapping[str, Any]) -> str:
    """Returns the kind of the layer with this name and these parameters, or "" if name and parameters do not determine
    the kind. `leaves` maps the name of each parameter to the dict that contains the parameter under this name."""
    names = set(leaves)
    if names == {"embedding"}:
        return "embedding"
    if "kernel" in names and names <= {"kernel", "bias"}:
        # the kernel of a transposed convolution has the same form, so only Flax's usual names distinguish the two kinds
        convolution = "conv_transpose" if name.startswith("ConvTranspose") else "conv"
        return "linear" if leaves["kernel"]["kernel"].ndim == 2 else convolution
    # statistics are in a separate collection, but at the same path
    if {"mean", "var"} <= names <= {"mean", "var", "scale", "bias"}:
        return "batch_norm"
    if "scale" in names and names <= {"scale", "bias"}:
        # a group norm and a layer norm have the same parameters
        if name.lower().startswith(("group", "gn")):
            return "group_norm"
        return "layer_norm" if "bias" in names else "rms_norm"
    return ""


def _cells(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the kind of each recurrent cell, "lstm" or "gru", by the path of the cell."""
    names = {layouts.join(path, name) for path, leaves in groups.items() for name in leaves}
    return dict(dialects.linen_cells(names))


def _is_gate(name: str, kind: str | None) -> bool:
    """Whether a module of this name is a gate of a cell of this kind, "lstm" or "gru". `kind` is None for a module
    outside a cell, and the result is then False."""
    return kind is not None and any(
        # the name of an array begins with that of its gate: "ii.kernel"
        name == array.partition(".")[0]
        for arrays in dialects.LINEN_CELLS[kind].values()
        for array in arrays
    )


def _is_attention(owner: str, groups: Mapping[str, Any]) -> bool:
    """Whether the module at the path `owner` is an attention. An attention has all four projections, and their kernels
    have an axis for the heads."""
    projections = [groups.get(layouts.join(owner, name), {}) for name in _PROJECTIONS]
    return all(
        "kernel" in leaves and leaves["kernel"]["kernel"].ndim == 3 for leaves in projections
    )


def _groups(module: Any) -> dict[str, dict[str, Any]]:
    """Returns a nested dict. The outer keys are the paths of layers, and the inner keys are the names of a layer's
    arrays. Each value is the dict that contains the array under the same name. Raises `NotBuiltError` for a module that
    is not bound."""
    if module.scope is None:
        raise NotBuiltError(
            f"the linen module {type(module).__qualname__} contains no parameters; pass module.bind(variables) instead"
        )
    groups: dict[str, dict[str, Any]] = {}
    for collection, values in module.variables.items():
        if collection not in _TEMPORARY:
            # paths in any other collection begin with the name of the collection, because they may also occur in these
            # two
            _add_arrays("" if collection in _COLLECTIONS else collection, values, groups)
    return groups


def _add_arrays(
    path: str, nested: Mapping[str, Any], groups: dict[str, dict[str, Any]]
) -> None:
    """Adds the arrays in `nested` to `groups`, which `_groups` will return. `nested` is a dict of arrays and dicts at
    the path `path`."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            _add_arrays(layouts.join(path, name), value, groups)
        else:
            # the dict itself is stored, so that a writer can put a new array into it
            groups.setdefault(path, {})[name] = nested


def _writer_into(holders: list[Any], name: str) -> Callable[[jax.Array], None]:
    """Returns a function that divides a value along its last axis into equal parts. The function writes one part into
    each dict in `holders`, under the key `name`."""

    def write(value: jax.Array) -> None:
        """Divides the value, and writes the parts."""
        parts = [value] if len(holders) == 1 else jax.numpy.split(value, len(holders), axis=-1)
        for holder, part in zip(holders, parts, strict=True):
            holder[name] = part

    return write
