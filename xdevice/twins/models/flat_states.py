"""Reads a state, a flat dict of tensors, as a `Twin`; first what is around it is taken off: a file, a training
program's dict, names that a wrapper has lengthened."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.twins.contract import layouts
from xdevice.twins.weights.added_parameters import advice
from xdevice.twins.weights.checkpoints import is_state, open_checkpoint, state_in
from xdevice.twins.weights.disk import path_text
from xdevice.twins.weights.format import FileTensor

from .reading import Twin, declared_layer, is_skipped, some_of, spelled_out, without_owner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend

    from .reading import Names

_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names that PyTorch's wrappers put into the paths of layers: `torch.compile`, FSDP, checkpointing of activations."""
_TAKEN: Final = "took the state under {!r}, and nothing beside it"


@contextmanager
def opened(path: str | os.PathLike[str], done: list[str]) -> Iterator[dict[str, Any]]:
    """Yields what the file or folder of that path holds, by name. The values are read one by one, when they are asked
    for. `done` gets a line if the file holds more than that."""
    with open_checkpoint(path_text(path, "convert_state")) as header:
        if header.key:
            done.append(_TAKEN.format(header.key))
        yield header.by_name()


def state_of(source: Any, paths: Collection[str], done: list[str]) -> Any:
    """The flat dict in `source`, with its names as the layers at `paths` have them. `done` gets a line for each thing
    that was done for that."""
    if not isinstance(source, dict) or registry.kind_of(type(source)) is not None:
        return source
    if not is_state(source) and any(isinstance(value, dict) for value in source.values()):
        source, key = state_in(source, "the source")
        done.append(_TAKEN.format(key))
    return _renamed(_unwrapped(source, done), paths, done)


def _unwrapped(source: Mapping[str, Any], done: list[str]) -> Mapping[str, Any]:
    plain = {name: ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in source}
    longer = [name for name in source if name != plain[name]]
    # two names would become one where a model and its wrapped form are in one state
    if not longer or len(set(plain.values())) < len(plain):
        return source
    words = [word for word in _WRAPPERS if any(word in name.split(".") for name in longer)]
    done.append(f"took {' and '.join(words)} off {len(longer)} names")
    return {plain[name]: value for name, value in source.items()}


def _renamed(source: Mapping[str, Any], paths: Collection[str], done: list[str]) -> Mapping[str, Any]:
    """The state with a word taken off the beginning of its names, or put before them, if more of `paths` are in it so:
    "module." of a data-parallel model, "model." of a training program, the name of a backbone."""
    best, most = ("", ""), _count(source, paths)
    candidates = [(start, "") for start in _starts(source)] + [("", start) for start in _starts(paths)]
    for off, on in candidates:
        count = _count(_with_words(source, off, on), paths)
        # only for more: where nothing is gained, names stay as they came
        if count > most:
            best, most = (off, on), count
    if best == ("", ""):
        return source
    off, on = best
    names = _with_words(source, off, on)
    count = sum(name not in source for name in names)
    done.append(f"took {off!r} off {count} names" if off else f"put {on!r} before {count} names")
    return dict(zip(names, source.values(), strict=True))


def _starts(names: Collection[str]) -> list[str]:
    """The beginnings, up to a dot, that at least half of the names have."""
    counts = Counter(start + "." for name in names for start in _paths_in(name) if start != name)
    # a head that was added later does not have the word
    return [start for start, count in counts.items() if 2 * count >= len(names)]


def _with_words(names: Iterable[str], off: str, on: str) -> list[str]:
    """The names with a word taken off and another put before them; none if two would be equal."""
    new = [on + name.removeprefix(off) for name in names]
    return new if len(set(new)) == len(new) else []


def _count(names: Iterable[str], paths: Collection[str]) -> int:
    """How many of `paths` are paths in these names."""
    every = {path for name in names for path in _paths_in(name)}
    return sum(path in every for path in paths)


def _paths_in(name: str) -> Iterator[str]:
    """A name, and its beginnings up to each dot, the longest first."""
    yield name
    while (end := name.rfind(".")) > 0:
        name = name[:end]
        yield name


# the tensors


def read_state(source: Any, kinds: Names, skip: Sequence[str]) -> Twin:
    """Reads a flat dict of tensors, whose layers have the kinds that `kinds` says.

    Raises:
        NotATensorError: it is no such dict. StateError: nothing says what a tensor is.
    """
    backend = _backend_of(source)
    variables = {name: _tensor(backend, value) for name, value in source.items()}
    layers = []
    for path, kind in spelled_out(kinds, variables, None).items():
        if is_skipped(path, skip):
            continue
        layer = declared_layer(backend, path, kind, variables)
        if layer is None:
            names = [layouts.join(path, part.name) for part in backend.parts(kind, {})]
            raise StateError(
                f"kinds says that {shown(path)} is a {kind}, and the state has no {' or '.join(names)}; it has "
                f"{some_of(variables)}"
            )
        layers.append(layer)
    unknown = [name for name in without_owner(variables, layers) if not is_skipped(name, skip)]
    if unknown:
        instead = advice(unknown) or (
            "give the model instead of its state, a model of the target as like=, or "
            "kinds={'path.to.layer': 'linear'}, 'same' for a single tensor; skip= leaves them out"
        )
        raise StateError(f"nothing says what these parameters are: {some_of(unknown)}; {instead}")
    return Twin(backend, layers, variables, [])


def _backend_of(source: Any) -> Backend:
    if not isinstance(source, dict):
        raise NotATensorError(
            f"expected a model, or a flat dict of named tensors, not {shown(source, 60)} of type "
            f"{type(source).__qualname__}"
        )
    backends = {}
    for name, value in source.items():
        if isinstance(value, FileTensor):
            continue
        owner = registry.kind_of(type(value))
        if owner is None or owner.kind == "symbol" or not isinstance(name, str):
            raise NotATensorError(
                f"{shown(name)} is a {type(value).__qualname__}, not a named tensor: expected a flat dict"
            )
        backends[owner.backend.name] = owner.backend
    if len(backends) > 1:
        raise NotATensorError(f"the tensors of one state are of one framework, not of {', '.join(backends)}")
    return next(iter(backends.values()), None) or registry.load("numpy")


def _tensor(backend: Backend, value: Any) -> Any:
    """The tensor in `value`, which is a tensor or a single variable. A variable counts as a model, and its tensor has
    the name "" there."""
    owner = registry.kind_of(type(value))
    return dict(backend.variables(value))[""] if owner is not None and owner.kind == "model" else value


def kinds_by_like(kinds: Names, wanted: Twin | None, names: Names) -> Names:
    """The kind of each layer by its path in the source: from the user's `kinds`, or else from the target's layer at the
    same path."""
    if wanted is None:
        return kinds
    back = {there: here for here, there in names.items()}
    return {**{back.get(layer.path, layer.path): layer.kind for layer in wanted.layers}, **kinds}
