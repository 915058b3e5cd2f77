"""The messages of the errors about layers that cannot be paired: they say what to do, and name only a few of many
layers."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.errors import listed

from .likeness import guess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.contract.layouts import Layer

    from .sides import Side

MOST: Final = 1500
"""How many characters an error message may have."""
_BREAKS: Final = 6
_A_SIDE: Final = 4
_NAMED: Final = 3
_GUESSES: Final = 8


class _Break(NamedTuple):
    """A place where the layers of two models stop coming in the same order: the last layer before that place, and the
    layers that each model has there."""

    behind: str
    ours: list[str]
    theirs: list[str]
    paths: list[str]


def crossing(source: Side, ours: list[Layer], target: Side, theirs: list[Layer], likely: Mapping[str, str]) -> str:
    """The error message for layers of one kind and shape whose names contradict their order."""
    here, there = source.backend.name, target.backend.name
    head = (
        f"these parameters of {here} fit more than one of {there}, and the names contradict their order: "
        f"{listed(map(_parameters, ours), _NAMED)} may be {listed(map(_parameters, theirs), _NAMED)}"
    )
    return _cut(head, _ways_out(likely))


def unclear(
    source: Side,
    left: Sequence[Layer],
    ours: Sequence[Any],
    target: Side,
    right: Sequence[Layer],
    theirs: Sequence[Any],
    which: Sequence[Any],
) -> str:
    """The error message for several layers of one kind and shape, in models whose layers come in different orders."""
    here, there = source.backend.name, target.backend.name
    of_ours = [layer for layer, found in zip(left, ours, strict=True) if found in which]
    of_theirs = [layer for layer, found in zip(right, theirs, strict=True) if found in which]
    common, breaks = _breaks(left, ours, right, theirs)
    head = (
        f"these parameters of {here} fit more than one of {there}: {listed(map(_parameters, of_ours), _NAMED)} may be "
        f"{listed(map(_parameters, of_theirs), _NAMED)}. {common} of {len(left)} layers of {here} and {len(right)} of "
        f"{there} come in one order, with {len(breaks)} {'break' if len(breaks) == 1 else 'breaks'}"
    )
    lines = [_line(one, here, there) for one in breaks[:_BREAKS]]
    lines += [f"and {len(breaks) - _BREAKS} more"] * (len(breaks) > _BREAKS)
    lacking = _lacking(Counter(ours), Counter(theirs), here, there)
    if lacking:
        end = "names= cannot make them one, and inputs= only if what is left over is never called"
        end += "".join(f"; but {text}" for text in _rows_left(left, ours, right, theirs))
        return _cut(head, f"These are different architectures: {lacking}; {end}", lines)
    likely: dict[str, str] = {}
    for found in which:
        likely |= guess(
            [layer.path for layer, own in zip(left, ours, strict=True) if own == found],
            [layer.path for layer, own in zip(right, theirs, strict=True) if own == found],
        )
    broken = {name for one in breaks for name in one.paths}  # these come first: names= must say what they are
    return _cut(head, _ways_out(dict(sorted(likely.items(), key=lambda pair: pair[0] not in broken))), lines)


def _rows_left(
    left: Sequence[Layer], ours: Sequence[Any], right: Sequence[Layer], theirs: Sequence[Any]
) -> Iterator[str]:
    """`of_rows` of the layers that the other side lacks."""
    one = {layer.path: (layer, own[-1]) for layer, own in zip(left, ours, strict=True) if own not in theirs}
    other = {layer.path: (layer, own[-1]) for layer, own in zip(right, theirs, strict=True) if own not in ours}
    tables = [[path for path, (layer, _) in side.items() if layer.kind == "embedding"] for side in (one, other)]
    for here, there in guess(*tables).items():
        yield from filter(None, [of_rows(*one[here], *other[there])])


def of_rows(one: Layer, ours: Any, other: Layer, theirs: Any) -> str:
    """How to make one of two embeddings of one width, of which one has more rows; "" for other layers."""
    if one.kind != "embedding" or other.kind != "embedding" or ours[1:] != theirs[1:] or ours == theirs:
        return ""
    here, there = one.path, other.path
    more = ours[0] - theirs[0]
    here, there = (f"{here}[{more}:]", there) if more > 0 else (here, f"{there}[{-more}:]")
    return f"names={{{here!r}: {there!r}}} leaves out the first {abs(more)} rows"


def _breaks(left: Sequence[Layer], ours: Sequence[Any], right: Sequence[Layer], theirs: Sequence[Any]) -> Any:
    """Counts the layers that come in the same order in both models, and finds the places where the orders differ. Only
    the error message uses this."""
    numbers: dict[Any, int] = {}
    one, other = ([numbers.setdefault(found, len(numbers)) for found in side] for side in (ours, theirs))
    codes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    common = sum(end - start for how, start, end, _, _ in codes if how == "equal")
    found = [
        _Break(
            left[start - 1].path if start else "",
            [_show(layer, shape) for layer, shape in zip(left[start:end], ours[start:end], strict=True)],
            [_show(layer, shape) for layer, shape in zip(right[first:last], theirs[first:last], strict=True)],
            [layer.path for layer in left[start:end]],
        )
        for how, start, end, first, last in codes
        if how != "equal"
    ]
    return common, found


def _show(layer: Layer, signature: Any) -> str:
    return f"{layer.path} {' '.join(map(str, signature))}"


def _line(one: _Break, here: str, there: str) -> str:
    where = f"behind {one.behind}" if one.behind else "at the beginning"
    sides = [f"{name} has {listed(own, _A_SIDE)}" for name, own in ((here, one.ours), (there, one.theirs)) if own]
    return f"{where}, {'; '.join(sides)}"


def _lacking(ours: Counter[Any], theirs: Counter[Any], here: str, there: str) -> str:
    parts = []
    for name, other, extra in ((here, there, ours - theirs), (there, here, theirs - ours)):
        if extra:
            kinds: Counter[str] = Counter()
            for found, count in extra.items():
                kinds[str(found[0])] += count
            parts.append(f"{other} lacks {', '.join(f'{n} {kind}' for kind, n in kinds.items())} of {name}")
    return " and ".join(parts)


def _parameters(layer: Layer) -> str:
    return ", ".join(part.name for part in layer.parts[:2])


def names_of(layers: Iterable[Layer]) -> str:
    return ", ".join(part.name for layer in layers for part in layer.parts)


def _ways_out(likely: Mapping[str, str]) -> str:
    told = ", ".join(f"{one!r}: {other!r}" for one, other in list(likely.items())[:_GUESSES])
    more = ", ..." if len(likely) > _GUESSES else ""
    return (
        f"Say which layer is which: names={{{told}{more}}} (a guess by their names; the error's `pairs` is all of it, "
        "a dict for names=), or give one batch as inputs="
    )


def _cut(head: str, end: str, lines: Sequence[str] = ()) -> str:
    """Joins `head`, `end` (what to do) and as many of the lines as fit into `MOST` characters."""
    text = f"{_at_most(head, MOST // 2)}. {_at_most(end, MOST // 2 - 2)}"
    for line in lines:
        if len(text) + len(line) + 3 > MOST:
            break
        text += f"\n  {line}"
    return text


def _at_most(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."
