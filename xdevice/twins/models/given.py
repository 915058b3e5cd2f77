"""What `convert_state` takes beside a model and a flat dict: a file, a training program's checkpoint, names that a
wrapper has lengthened; and the layers that it leaves out."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry
from xdevice.errors import ArgumentError, StateError, shown
from xdevice.twins.weights.checkpoints import is_state, open_checkpoint, state_in
from xdevice.twins.weights.disk import path_text

from .sides import Side, is_skipped, some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names that PyTorch's wrappers put into the paths of layers: `torch.compile`, FSDP, checkpointing of activations."""

_TAKEN: Final = "took the state under {!r}, and nothing beside it"


@contextmanager
def opened(source: Any, done: list[str]) -> Iterator[Any]:
    """Yields `source` itself, or what the file or folder of that path holds, by name. Values of a file are read one by
    one, when they are asked for. `done` gets a line if the file holds more than that."""
    if not isinstance(source, str | os.PathLike):
        yield source
        return
    with open_checkpoint(path_text(source, "convert_state")) as header:
        done += [_TAKEN.format(header.key)] * bool(header.key)
        yield {**header.entries, **{name: header.entries[first] for name, first in header.shared.items()}}


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
    found = {name: ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in source}
    if len(set(found.values())) < len(found) or list(found) == list(found.values()):
        return source
    words = [word for word in _WRAPPERS if any(word in name.split(".") for name in found)]
    done.append(f"took {' and '.join(words)} off {sum(one != other for one, other in found.items())} names")
    return {found[name]: value for name, value in source.items()}


def _renamed(source: Mapping[str, Any], paths: Collection[str], done: list[str]) -> Mapping[str, Any]:
    """The state with a word taken off the beginning of its names, or put before them, if more of `paths` are in it so:
    "module." of a data-parallel model, "model." of a training program, the name of a backbone."""
    best, words = _count(source, paths), ("", "")
    for tried in (*((start, "") for start in _starts(source)), *(("", start) for start in _starts(paths))):
        found = _count(_with_words(source, *tried), paths)
        if found > best:
            best, words = found, tried
    if words == ("", ""):
        return source
    renamed = _with_words(source, *words)
    count = sum(name not in source for name in renamed)
    done.append(f"took {words[0]!r} off {count} names" if words[0] else f"put {words[1]!r} before {count} names")
    return dict(zip(renamed, source.values(), strict=True))


def _starts(names: Collection[str]) -> list[str]:
    """The beginnings, up to a dot, that at least half of the names have."""
    counted = Counter(name[: end + 1] for name in names for end in _ends(name) if end < len(name))
    return [start for start, count in counted.items() if 2 * count >= len(names)]


def _with_words(source: Iterable[str], off: str, on: str) -> list[str]:
    names = [on + name.removeprefix(off) for name in source]
    return names if len(set(names)) == len(names) else []


def _count(names: Iterable[str], paths: Collection[str]) -> int:
    """How many of `paths` are paths in these names."""
    found = {name[:end] for name in names for end in _ends(name)}
    return sum(path in found for path in paths)


def _ends(name: str) -> Iterator[int]:
    yield len(name)
    end = name.rfind(".")
    while end > 0:
        yield end
        end = name.rfind(".", 0, end)


# layers left out


def check_skip(skip: Any) -> tuple[str, ...]:
    if isinstance(skip, str) or not all(isinstance(path, str) for path in skip):
        raise ArgumentError(f'skip= takes a list of paths, such as ["fc"], not {shown(skip)}')
    return tuple(path.replace("/", ".") for path in skip)


def without(side: Side, skip: Sequence[str]) -> Side:
    """The side without the layers and parameters at the paths of `skip`."""
    return (
        side
        if not skip
        else side._replace(
            layers=[layer for layer in side.layers if not any(is_skipped(part.name, skip) for part in layer.parts)],
            unknown=[name for name in side.unknown if not is_skipped(name, skip)],
        )
    )


def require_used(skip: Sequence[str], sides: Sequence[Side]) -> None:
    names = [name for side in sides for name in side.variables]
    for path in skip:
        if not any(is_skipped(name, (path,)) for name in names):
            every = dict.fromkeys(layer.path for side in sides for layer in side.layers)
            raise StateError(f"skip= says {path!r}, where neither model has parameters; layers are {some_of(every)}")
