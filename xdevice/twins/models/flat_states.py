"""Reads a state, which is a flat dict of tensors, as a `Twin`. If necessary, the state is first extracted from a file,
or from a dict that a training program saved. Prefixes and other additions of wrappers are removed from the names."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.twins.contract import dialects, layouts
from xdevice.twins.weights.added_parameters import advice_on_added, require_merged_lora
from xdevice.twins.weights.checkpoints import open_checkpoint
from xdevice.twins.weights.disk import path_text
from xdevice.twins.weights.format import FileTensor, Header, OpenedTensor
from xdevice.twins.weights.nested import find_state

from . import recognition
from .reading import (
    Twin,
    expand_kinds,
    is_skipped,
    layer_of_single,
    paths_in,
    some_of,
    with_shape_settings,
    without_owner,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.twins.contract.dialects import PartsOf
    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Request
    from .state import State

_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The names that PyTorch's wrappers (`torch.compile`, FSDP, activation checkpointing) add to the paths of layers."""
# the weights and biases of a plain dict: w or b, then a number ("W1"), an underscore and a name ("b_out"), or nothing
_NUMBERED: Final = re.compile(r"(?P<letter>[wWbB])(?:_(?=\w))?(?P<suffix>(?<=_)\w+|\d*)")
_TAKEN: Final = "read only the state under {!r}"


@contextmanager
def opened(path: str | os.PathLike[str], done: list[str]) -> Iterator[Header]:
    """Opens the checkpoint (a file or a folder) at `path`, and yields its contents. The values of tensors are read only
    when they are needed, so all values must be read inside the block. If the state is only part of the file, adds a
    line about this to `done`. Raises `MissingFileError`, `FilePathError`, `FileFormatError` or `UnsupportedError` if
    there are no readable weights at the path."""
    with open_checkpoint(path_text(path, "convert_state")) as header:
        # a file may also contain an optimizer and counters, so the user should know which part was read
        if header.key:
            done.append(_TAKEN.format(header.key))
        yield header


def _plain_state(source: Any, paths: Collection[str], done: list[str]) -> Mapping[str, Any]:
    """Returns the flat dict of tensors in `source`, with the names that the dialects use. `paths` contains paths of
    layers. Names are also changed if more of these paths match as a result. A line for each change is added to `done`.
    Raises `NotATensorError` if `source` is not a container of tensors, and `StateError` if it contains several
    states."""
    # a single tensor, for example
    if registry.owner_and_kind(type(source)) is not None:
        raise NotATensorError(
            f"expected a model, or a flat dict of named tensors, not {shown(source, 60)} of type "
            f"{type(source).__qualname__}"
        )
    nested = find_state(source, "the source")
    if nested.key:
        done.append(_TAKEN.format(nested.key))
    elif nested.left:
        done.append(f"left out {some_of(nested.left)}, which are not tensors of the state")
    # first the changes that need no target (wrappers, plain dicts, cells of linen), then changes that depend on paths
    state = _with_cells(plain_names(_unwrapped(nested.state, done), done), done)
    return _renamed(_with_lists(state, paths, done), paths, done)


def _with_lists(
    source: Mapping[str, Any], paths: Collection[str], done: list[str]
) -> Mapping[str, Any]:
    """Renames the items of lists from Flax's form, such as `blocks_0`, to the form `blocks.0`. Returns the renamed
    state, and adds a line to `done`. Returns the state unchanged if no more of `paths` would match."""
    new = {name: re.sub(r"_(\d+)(?=\.)", r".\1", name) for name in source}
    # if two names became equal, a tensor would be lost; if no more paths match, the names may be right already
    if len(set(new.values())) < len(new) or _count_matching(
        new.values(), paths
    ) <= _count_matching(source, paths):
        return source
    count = sum(name != new_name for name, new_name in new.items())
    done.append(f"read the numbers in {_count_text(count)} as indices of lists")
    return {new[name]: value for name, value in source.items()}


def _with_cells(source: Mapping[str, Any], done: list[str]) -> Mapping[str, Any]:
    """Joins the gates of each recurrent cell of Flax's linen into one array, and returns the resulting state. Flax's
    nnx stores one array for all gates, whereas linen stores one array for each gate. A line for each such cell is added
    to `done`."""
    # by the name of each gate's array, the name of the joined array and the names of all gates in it
    joins: dict[str, tuple[str, list[str]]] = {}
    for path, kind in dialects.linen_cells(source):
        # the parts of a Flax layer (`dialects.FLAX_CELLS`) are in a module named `cell`, as in nnx
        cell = path if path.rpartition(".")[2] == "cell" else layouts.join(path, "cell")
        for name, gate_names in dialects.LINEN_CELLS[kind].items():
            gates = [layouts.join(path, gate) for gate in gate_names]
            joins |= dict.fromkeys(gates, (layouts.join(cell, name), gates))
        done.append(f"joined the gates of {path or 'the state'}, a {kind} of Flax's linen")
    new: dict[str, Any] = {}
    # an array that is not a gate keeps its name; the first gate of a cell adds the joined array, at the gate's place
    for name, value in source.items():
        joined, gates = joins.get(name, (name, []))
        if joined not in new:
            new[joined] = _concatenated([source[gate] for gate in gates]) if gates else value
    return new


def _concatenated(tensors: Sequence[Any]) -> Any:
    """Returns the tensors joined along their last axis. The result is on the device of the first tensor. If the tensors
    are in a file, the result is an `OpenedTensor` with values in memory."""
    # tensors of a file have no framework yet, so they are joined by NumPy
    first = tensors[0]
    if isinstance(first, FileTensor):
        x = np.concatenate([tensor.read() for tensor in tensors], axis=-1)
        return OpenedTensor(
            first.dtype, x.shape, x.nbytes, backend=registry.load("numpy"), value=x
        )
    # `_backend_of` expects a state, so the tensor is passed as a state of one tensor
    backend = _backend_of({"": first})
    x = np.concatenate([backend.peek(tensor) for tensor in tensors], axis=-1)
    return backend.from_numpy(x, backend.device_of(first))


def plain_names(source: Mapping[str, Any], done: list[str]) -> Mapping[str, Any]:
    """Returns the state with two kinds of names replaced by names that the dialects use. The slashes in Haiku's paths
    become dots: `mlp/~/linear.w` becomes `mlp.linear.w`. The names in plain dicts and tuples become Haiku's names: for
    example, `w1` becomes `1.w`, `fc.0` becomes `fc.w`, and `norm.g` becomes `norm.scale`. A line is added to `done` if
    names were changed. If two names would become equal, the state is returned unchanged."""
    new = {name: name for name in source}
    # paths of Haiku
    if any("/~" in name for name in source):
        new = {name: re.sub("/(~/?)?", ".", name) for name in source}
    # by the path of each module, a dict from the last names of its tensors to their full names in `source`
    groups: dict[str, dict[str, str]] = {}
    for name, new_name in new.items():
        owner, _, leaf = new_name.rpartition(".")
        groups.setdefault(owner, {})[leaf] = name
    for owner, leaves in groups.items():
        shapes = {leaf: tuple(source[name].shape) for leaf, name in leaves.items()}
        for leaf, new_leaf in _new_leaves(shapes).items():
            new[leaves[leaf]] = layouts.join(owner, new_leaf)
    changed = {name: new_name for name, new_name in new.items() if name != new_name}
    # of two tensors with the same name, one would be lost
    if not changed or len(set(new.values())) < len(new):
        return source
    name, new_name = next(iter(changed.items()))
    more = f", and {len(changed) - 1} more in the same way" if len(changed) > 1 else ""
    done.append(f"read {name} as {new_name}{more}")
    return {new[name]: value for name, value in source.items()}


def _new_leaves(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns a dict from the names of the tensors in one module to Haiku's names for these tensors. Tensors that keep
    their names are left out. `shapes` maps the name of each tensor in the module to its shape."""
    # three conditions: the names are the indices of a tuple; the first item has several axes, like a weight; the second
    # item is a vector, like a bias, or is missing
    if (
        shapes.keys() <= {"0", "1"}
        and len(shapes.get("0", ())) > 1
        and len(shapes.get("1", (1,))) == 1
    ):
        # as in JAX's stax
        return {"0": "w", "1": "b"} if len(shapes) == 2 else {"0": "w"}
    # the gain and the bias of a norm, which are both vectors
    is_norm = shapes.keys() == {"g", "b"} and all(len(shape) == 1 for shape in shapes.values())
    if is_norm:
        return {"g": "scale", "b": "offset"}
    numbered = {last: match for last in shapes if (match := _NUMBERED.fullmatch(last))}
    # "b2" is the name of a bias only if there is a "w2"
    weights = {match["suffix"] for match in numbered.values() if match["letter"] in "wW"}
    # a name without a number is changed only if it is a capital letter: "w" and "b" are already Haiku's names
    return {
        last: layouts.join(match["suffix"], match["letter"].lower())
        for last, match in numbered.items()
        if match["suffix"] in weights and (match["suffix"] or last.isupper())
    }


def _unwrapped(source: Mapping[str, Any], done: list[str]) -> Mapping[str, Any]:
    """Returns the state without the names that PyTorch's wrappers add to paths, and adds a line to `done`. Returns the
    state unchanged if there are no such names, or if two names would become equal."""
    plain = {
        name: ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        for name in source
    }
    wrapped = [name for name in source if name != plain[name]]
    # two names would become equal if a model and its wrapped form are in one state
    if not wrapped or len(set(plain.values())) < len(plain):
        return source
    wrappers = [word for word in _WRAPPERS if any(word in name.split(".") for name in wrapped)]
    done.append(f"removed {' and '.join(wrappers)} from {_count_text(len(wrapped))}")
    return {plain[name]: value for name, value in source.items()}


def _renamed(
    source: Mapping[str, Any], paths: Collection[str], done: list[str]
) -> Mapping[str, Any]:
    """Removes one prefix from the names of the state, or adds one to all names, so that more of `paths` match. Returns
    the renamed state, and adds a line to `done`. Returns the state unchanged if no prefix makes more of `paths` match.
    Examples of prefixes are "module." of a data-parallel model, "model." of a training program, and the name of a
    backbone."""
    # the prefix to remove and the prefix to add; at least one of the two is ""
    best, most = ("", ""), _count_matching(source, paths)
    # both directions are tried: a state may have a prefix that the target's paths lack, or lack a prefix that these
    # paths have
    candidates = [(start, "") for start in _starts(source)] + [
        ("", start) for start in _starts(paths)
    ]
    for removed, added in candidates:
        count = _count_matching(_with_prefix(source, removed, added), paths)
        # if no more paths match, the names stay unchanged
        if count > most:
            best, most = (removed, added), count
    if best == ("", ""):
        return source
    removed, added = best
    names = _with_prefix(source, removed, added)
    count = sum(name not in source for name in names)
    done.append(
        f"removed {removed!r} from {_count_text(count)}"
        if removed
        else f"added {added!r} in front of {_count_text(count)}"
    )
    return dict(zip(names, source.values(), strict=True))


def _count_text(count: int) -> str:
    """Returns "1 name", "2 names" and so on."""
    return f"{count} name{'' if count == 1 else 's'}"


def _starts(names: Collection[str]) -> list[str]:
    """Returns the prefixes that at least half of the names have. Each prefix ends with a dot."""
    counts = Counter(
        prefix + "." for name in names for prefix in paths_in(name) if prefix != name
    )
    # half is enough, because a head that was added later does not have the prefix
    return [prefix for prefix, count in counts.items() if 2 * count >= len(names)]


def _with_prefix(names: Iterable[str], removed: str, added: str) -> list[str]:
    """Returns the names with one prefix removed and another one added. Returns [] if two names would become equal; in
    that case, no path matches."""
    new = [added + name.removeprefix(removed) for name in names]
    return new if len(set(new)) == len(new) else []


def _count_matching(names: Iterable[str], paths: Collection[str]) -> int:
    """Returns the number of paths in `paths` that match. A path matches if it is one of `names`, or if it is the path
    of a module that contains one of `names`."""
    matching = {path for name in names for path in paths_in(name)}
    return sum(path in matching for path in paths)


# reading a state as a `Twin`


def read_state(source: Any, target: Twin | None, request: Request, state: State) -> Twin:
    """Returns `source`, a dict of tensors or the contents of a file (a `Header`), as a `Twin`. The kind of a layer
    comes from `kinds=`, or from the layer at the same path in `target`, the model passed as `like=`. If there is a
    target, the kinds of all other layers are recognized by names and shapes. Records the steps taken and all remaining
    uncertainties in `state`.

    Raises:
        NotATensorError: if `source` is neither a container of tensors of one framework nor a
            `Header`.
        ArgumentError: if `layout=` is not the name of a dialect.
        StateError: if the kind or the layout of a tensor is unknown or does not fit; if `source` contains several
            states, or no layer of `target`; or if only one of `source` and `target` has LoRA parameters.
    """
    # first the tensors, with the names that the target or the user expects
    header = source if isinstance(source, Header) else None
    # the paths in names= and kinds= do not have a wrapper's prefix, so they show which prefix to remove
    paths = {*request.names, *request.kinds, *(target.by_path if target is not None else ())}
    tensors = _plain_state(header.by_name() if header else source, paths, state.done)
    if target is not None:
        tensors = _with_ties(tensors, target, header.remarks if header else {}, state.done)
        # LoRA's parameters would otherwise be reported one by one as tensors without a layer
        require_merged_lora(tensors, target.variables)
    backend = _backend_of(tensors)
    variables = {name: _tensor(backend, value) for name, value in tensors.items()}
    # then the kinds of the layers that are known by their paths
    stated = expand_kinds(request.kinds, variables, sequence=None)
    # names= reversed: the path in the state, by the path in the target
    source_path_of = {
        target_path: source_path for source_path, target_path in request.names.items()
    }
    # the kinds of the target's layers, by the path in the state
    by_like = (
        {}
        if target is None
        else {source_path_of.get(layer.path, layer.path): layer.kind for layer in target.layers}
    )
    # kinds= overrides the target
    kinds = {
        path: kind
        for path, kind in {**by_like, **stated}.items()
        if not is_skipped(path, request.skip)
    }
    # then the dialect that fits best, and with it the layers: the framework that wrote the file, or the framework of
    # the tensors, limits the possible dialects
    origin = header.origin if header else backend.name
    possible = recognition.possible_dialects(origin, request.layout)
    best = recognition.readings(possible, variables, kinds, target, source_path_of)
    # a dict, or a file of NumPy or JAX arrays, is assumed to be laid out as in PyTorch unless its names show another
    # dialect
    is_torch_assumed = header is None or origin in ("numpy", "jax")
    reading = recognition.chosen_reading(best, is_torch_assumed)
    _require_stated(reading, stated, possible[reading.dialect], variables)
    # raises if shapes do not fit; this comes first, because the errors below would hide the cause
    read_layers = [with_shape_settings(layer, variables) for layer in reading.layers]
    # without a target, only kinds= says what a layer is, and a recognized kind is only a guess
    layers = [
        layer
        for layer in read_layers
        if (target is not None or layer.path in kinds)
        and not is_skipped(layer.path, request.skip)
    ]
    # last everything that remains unclear, as errors or as lines in `state`. With a target, the tensors that belong to
    # none of these layers are paired one by one
    unknown = {
        name: x
        for name, x in without_owner(variables, layers).items()
        if not is_skipped(name, request.skip)
    }
    _require_known(reading, layers, unknown, variables, target)
    if by_names := [layer.path for layer in layers if layer.path not in kinds]:
        state.differences.append(
            f"not compared: the kinds of {some_of(by_names)}, and which of the layers of the same kind and shape "
            "correspond: both are inferred only from names, shapes and order"
        )
    # a user expects the layout of PyTorch or of the tensors' own framework; any other layout is reported
    if reading.dialect not in ("torch", backend.name):
        state.done.append(f"read the parameters in the layout of {reading.dialect}")
    return Twin(
        backend, layers, variables, [layer_of_single(name, x) for name, x in unknown.items()]
    )


def _require_stated(
    reading: recognition.Reading, stated: Names, parts_of: PartsOf, variables: Mapping[str, Any]
) -> None:
    """Raises `StateError` if `kinds=` contains a layer that the state lacks. `stated` contains the kinds in `kinds=`,
    by path. `parts_of` returns the parts of a layer in the dialect of `reading`."""
    for path in reading.lacking:
        if path in stated:
            names = [layouts.join(path, part.name) for part in parts_of(stated[path], {})]
            raise StateError(
                f"kinds= gives {shown(path)} the kind {stated[path]}, but the state has no {' or '.join(names)}; it "
                f"has {some_of(variables)}"
            )


def _require_known(
    reading: recognition.Reading,
    layers: Sequence[Layer],
    unknown: Mapping[str, Any],
    variables: Mapping[str, Any],
    target: Twin | None,
) -> None:
    """Raises `StateError` if there is no target and the kind of a tensor is unknown, if the names and shapes of a layer
    fit several kinds, or if there is a target and the state contains none of its layers. `variables` contains the
    tensors of the state, and `unknown` contains those that belong to none of `layers`."""
    if target is None and unknown:
        instead = advice_on_added(unknown) or (
            f"pass the model instead of its state, or a model of the target as like=. Or pass the kinds of these "
            f"parameters: names and shapes suggest {recognition.suggested_kinds(unknown, reading)}. Or leave the "
            f"parameters out with skip="
        )
        raise StateError(
            f"the kinds of these parameters are unknown: {some_of(unknown)}; {instead}"
        )
    doubtful = [layer for layer in layers if layer.path in reading.doubts]
    if doubtful:
        path = doubtful[0].path
        more = (
            f", nor the kinds of {len(doubtful) - 1} more layers" if len(doubtful) > 1 else ""
        )
        names = [part.name for layer in doubtful for part in layer.parts]
        raise StateError(
            f"{shown(path)} may be {' or '.join(reading.doubts[path])}: names and shapes do not determine its kind"
            f"{more}. Pass the model instead of its state, or pass the kind; a guess is "
            f"{recognition.suggested_kinds(names, reading)}"
        )
    # a target that consists of single tensors only has no layers that the state could lack
    if target is not None and target.layers and not layers:
        raise StateError(
            f"the state contains no layer of like=: like= contains {some_of(target.variables)}, and the state contains "
            f"{some_of(variables)}; "
            f"{advice_on_added(unknown) or 'say which layer is which with names= or kinds=, or pass the model itself'}"
        )


def _with_ties(
    source: Mapping[str, Any], target: Twin, remarks: Names, done: list[str]
) -> Mapping[str, Any]:
    """Returns the state with the missing names of tied weights added. A file stores a tied weight under only one of its
    names. A name of a variable in the model `target` is added if the variable is tied to a variable in the state. A
    name is also added if `remarks`, a dict from the file, maps it to a name in the state. A line is added to `done` if
    names were added."""
    # for each variable of the target that the state has, its name by its `id`
    firsts: dict[int, str] = {}
    for name, value in target.variables.items():
        if name in source:
            # a tied weight is one object in the target, under all of its names
            firsts.setdefault(id(value), name)
    missing = {}
    for name, value in target.variables.items():
        for first in (firsts.get(id(value)), remarks.get(name)):
            # the second one replaces the first, so that what the file says decides
            if name not in source and first is not None and first in source:
                missing[name] = first
    if missing:
        done.append(
            f"copied {some_of(dict.fromkeys(missing.values()))} to {some_of(missing)}, because they are tied"
        )
    return {**source, **{name: source[first] for name, first in missing.items()}}


def _backend_of(state: Mapping[str, Any]) -> Backend:
    """Returns the backend of the tensors in a state, or NumPy's backend if the tensors are in a file or the state is
    empty. Raises `NotATensorError` if the tensors belong to several backends."""
    owners = filter(None, (registry.owner_and_kind(type(value)) for value in state.values()))
    backends = {owner.backend.name: owner.backend for owner in owners}
    if len(backends) > 1:
        raise NotATensorError(
            f"all tensors in a state must belong to the same framework, but these belong to {', '.join(backends)}"
        )
    return next(iter(backends.values()), None) or registry.load("numpy")


def _tensor(backend: Backend, value: Any) -> Any:
    """Returns the tensor of a variable that is outside any model, such as a Gluon `Parameter`. The registry treats such
    a variable as a model, and the backend lists its tensor under the name "". Returns any other value unchanged."""
    owner = registry.owner_and_kind(type(value))
    return (
        dict(backend.variables(value))[""]
        if owner is not None and owner.kind == "model"
        else value
    )
