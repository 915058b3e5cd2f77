"""Composes the error messages about layers that cannot be paired. The messages say what the user can do, and name only
a few layers if there are many."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.errors import listed

from .name_likeness import guess_pairs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Signature

MOST: Final = 1500
"""The maximum number of characters in an error message."""
# the maximum numbers of items in a message: breaks in the order, layers of one model at a break, layers whose
# parameters are named, and pairs in the guess for names=
_BREAKS: Final = 6
_A_SIDE: Final = 4
_NAMED: Final = 3
_GUESSES: Final = 8


class Unpaired(NamedTuple):
    """The layers of one twin that have not been paired yet, each with its signature."""

    name: str
    """The name of the twin's backend."""
    with_signatures: list[tuple[Layer, Signature]]
    """The layers in the order in which the model defines them, each with its signature."""

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order."""
        return [layer for layer, _ in self.with_signatures]

    @property
    def paths(self) -> list[str]:
        """The paths of the layers, in order."""
        return [layer.path for layer, _ in self.with_signatures]

    @property
    def signatures(self) -> list[Signature]:
        """The signatures of the layers, in order."""
        return [signature for _, signature in self.with_signatures]

    def only(self, signatures: Container[Signature]) -> Unpaired:
        """Returns the layers that have one of these signatures."""
        return self._replace(
            with_signatures=[pair for pair in self.with_signatures if pair[1] in signatures]
        )


class _Break(NamedTuple):
    """A break: a place where the order of the layers differs between two models."""

    before: str
    """The path, in the source, of the last layer before that place; "" at the beginning."""
    ours: list[str]
    """The layers that the source has at that place, as strings."""
    theirs: list[str]
    """The layers that the target has at that place, as strings."""
    paths: list[str]
    """The paths of the layers in `ours`."""


def crossing_message(
    ours: Unpaired, theirs: Unpaired, places: Sequence[int], likely: Names
) -> str:
    """Returns the error message for layers of the same kind and shape whose names contradict their order. `ours`
    contains the layers of the source, and `theirs` contains the layers of the target. `places` contains the indices of
    the doubtful layers in both lists. `likely` is a guess for `names=`."""
    head = (
        f"these parameters of {ours.name} fit several parameters of {theirs.name}, and the names contradict their "
        f"order: {_some_parameters(ours, places)} may correspond to {_some_parameters(theirs, places)}"
    )
    return _cut(head, _advice_on_names(likely))


def unclear_message(ours: Unpaired, theirs: Unpaired, signatures: Sequence[Signature]) -> str:
    """Returns the error message for two models whose layers are in different orders, so that it is not clear which
    layers correspond. The message names the breaks, which are the places where the orders differ. `ours` contains the
    layers of the source, and `theirs` contains the layers of the target. `signatures` contains the kinds and shapes
    that several layers share."""
    source_name, target_name = ours.name, theirs.name
    # how many layers are in the same order, and where the orders differ
    common, breaks = _breaks(ours, theirs)
    head = (
        f"these parameters of {source_name} fit several parameters of {target_name}: "
        f"{_some_parameters(ours.only(signatures))} may correspond to "
        f"{_some_parameters(theirs.only(signatures))}. {common} of "
        f"{len(ours.layers)} layers of {source_name} and {len(theirs.layers)} of {target_name} come in the same order, "
        f"with {len(breaks)} {'break' if len(breaks) == 1 else 'breaks'}"
    )
    lines = [_line(place, source_name, target_name) for place in breaks[:_BREAKS]]
    if len(breaks) > _BREAKS:
        lines.append(f"and {len(breaks) - _BREAKS} more")
    # models with different numbers of layers of a kind cannot be paired completely, so no guess is given
    if lacking := _lacking(ours, theirs):
        end = "names= cannot pair all layers, and inputs= can do so only if the surplus layers are never called"
        end += "".join(f"; but {text}" for text in _rows_left(ours, theirs))
        return _cut(head, f"These are different architectures: {lacking}; {end}", lines)
    # only layers of the same kind and shape can correspond, so names are compared only among such layers
    likely: dict[str, str] = {}
    for signature in signatures:
        likely |= guess_pairs(ours.only([signature]).paths, theirs.only([signature]).paths)
    # layers at a break come first in the guess, because names= must contain these layers
    at_breaks = {path for place in breaks for path in place.paths}
    return _cut(
        head,
        _advice_on_names(
            dict(sorted(likely.items(), key=lambda pair: pair[0] not in at_breaks))
        ),
        lines,
    )


def _rows_left(ours: Unpaired, theirs: Unpaired) -> Iterator[str]:
    """Yields advice about embeddings that have no counterpart because they have more rows in one model than in the
    other (see `advice_on_rows`)."""
    # for each model, the embeddings whose shape does not occur in the other model, each with the shape of its weight
    ours_left, theirs_left = (
        {
            layer.path: (layer, signature[-1])
            for layer, signature in twin.with_signatures
            if layer.kind == "embedding" and signature not in other.signatures
        }
        for twin, other in ((ours, theirs), (theirs, ours))
    )
    for source_path, target_path in guess_pairs(list(ours_left), list(theirs_left)).items():
        if text := advice_on_rows(*ours_left[source_path], *theirs_left[target_path]):
            yield text


def advice_on_rows(one: Layer, ours: Any, other: Layer, theirs: Any) -> str:
    """Returns advice on how to pair two embeddings of equal width but with different numbers of rows; "" for any other
    two layers. `one` is a layer of the source, and `ours` is the shape of its weight. `other` is a layer of the target,
    and `theirs` is the shape of its weight."""
    if (
        one.kind != "embedding"
        or other.kind != "embedding"
        or ours[1:] != theirs[1:]
        or ours == theirs
    ):
        return ""
    # the additional rows are assumed to come first, like the two unused positions of BART and OPT
    more = ours[0] - theirs[0]
    source_path, target_path = one.path, other.path
    # a slice is added to the path of the embedding with more rows, such as "embed[2:]", so that names= leaves out its
    # first rows
    if more > 0:
        source_path = f"{source_path}[{more}:]"
    else:
        target_path = f"{target_path}[{-more}:]"
    return f"names={{{source_path!r}: {target_path!r}}} leaves out the first {abs(more)} rows"


def _breaks(ours: Unpaired, theirs: Unpaired) -> tuple[int, list[_Break]]:
    """Returns the number of layers that are in the same order in both models, and the places where the orders
    differ."""
    # signatures are replaced by numbers, because `SequenceMatcher` compares hashable items quickly
    numbers: dict[Signature, int] = {}
    source_numbers, target_numbers = (
        [numbers.setdefault(signature, len(numbers)) for signature in twin.signatures]
        for twin in (ours, theirs)
    )
    common, breaks = 0, []
    # without autojunk, which ignores frequent items of a long sequence, such as the repeated layers of a deep model. An
    # opcode covers the source's layers `start:end` and the target's layers `first:last`; the tag "equal" means that
    # these have the same signatures
    for tag, start, end, first, last in SequenceMatcher(
        None, source_numbers, target_numbers, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            common += end - start
            continue
        before = ours.paths[start - 1] if start else ""
        breaks.append(
            _Break(
                before=before,
                ours=_texts(ours.with_signatures[start:end]),
                theirs=_texts(theirs.with_signatures[first:last]),
                paths=ours.paths[start:end],
            )
        )
    return common, breaks


def _texts(layers: Iterable[tuple[Layer, Signature]]) -> list[str]:
    """Returns a string for each layer, with its path, kind and shape, for use in a message."""
    return [f"{layer.path} {' '.join(map(str, signature))}" for layer, signature in layers]


def _line(place: _Break, source_name: str, target_name: str) -> str:
    """Returns a line of an error message about one break in the order. `source_name` and `target_name` are the names of
    the backends."""
    where = f"after {place.before}" if place.before else "at the beginning"
    sides = [
        f"{name} has {listed(layers, _A_SIDE)}"
        for name, layers in ((source_name, place.ours), (target_name, place.theirs))
        if layers
    ]
    return f"{where}, {'; '.join(sides)}"


def _lacking(ours: Unpaired, theirs: Unpaired) -> str:
    """Returns a message about the kinds of layers that each model lacks, such as "jax lacks 2 linear of torch". Returns
    "" if both models have the same number of layers of each kind and shape."""
    texts = []
    # in both directions, because each model may have layers that the other model lacks
    for twin, other in ((ours, theirs), (theirs, ours)):
        extra = Counter(twin.signatures) - Counter(other.signatures)
        kinds = Counter(str(signature[0]) for signature in extra.elements())
        if kinds:
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            texts.append(f"{other.name} lacks {counts} of {twin.name}")
    return " and ".join(texts)


def _some_parameters(twin: Unpaired, places: Iterable[int] | None = None) -> str:
    """Returns a string with the first two parameter names of each of the first three layers in `twin`. With `places`,
    only the layers at these indices are considered."""
    layers = twin.layers if places is None else [twin.layers[place] for place in places]
    return listed(
        (", ".join(part.name for part in layer.parts[:2]) for layer in layers), _NAMED
    )


def _advice_on_names(likely: Names) -> str:
    """Returns the advice to pass `names=` or `inputs=`. It includes the first pairs of the guess `likely`."""
    guesses = ", ".join(f"{one!r}: {other!r}" for one, other in list(likely.items())[:_GUESSES])
    more = ", ..." if len(likely) > _GUESSES else ""
    return (
        f"Say which layer is which: names={{{guesses}{more}}} (a guess from the names; the error's attribute "
        f"`pairs` has the whole dict), or give one batch as inputs="
    )


def _cut(head: str, end: str, lines: Sequence[str] = ()) -> str:
    """Returns a message of at most `MOST` characters. It consists of `head`, `end` (the advice) and as many of `lines`
    as fit. If `head` or `end` is longer than half of `MOST`, it is truncated to that length."""
    # 2 fewer, for the full stop and the space between `head` and `end`
    text = f"{_at_most(head, MOST // 2)}. {_at_most(end, MOST // 2 - 2)}"
    for line in lines:
        # the lines come last, because a message that lacks some of them still says what to do
        # 3 more, for the line break and the indent
        if len(text) + len(line) + 3 > MOST:
            break
        text += f"\n  {line}"
    return text


def _at_most(text: str, most: int) -> str:
    """Returns `text`, truncated to at most `most` characters. A truncated text ends with dots."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."
