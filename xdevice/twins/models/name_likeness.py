"""Scores how similar the names of two layers are. Programs name layers differently: q_proj in one model may be query in
another, and enc.fc1 may be encoder.dense_1."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final

from .reading import last_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ALIKE: Final = (
    ("fc", "dense", "linear", "lin", "affine", "ip"),
    ("conv", "convolution", "cnn"),
    ("norm", "bn", "ln", "gn", "batchnorm", "layernorm", "normalization", "batchnormalization", "layernormalization"),
    ("attn", "attention", "att", "mha", "attend"),
    ("ffn", "mlp", "feedforward", "intermediate", "ff"),
    ("q", "query", "queries", "wq"),
    ("k", "key", "keys", "wk"),
    ("v", "value", "values", "val", "wv"),
    ("o", "out", "output", "wo", "outputs"),
    ("i", "in", "input", "inputs", "inp"),
    ("down", "downsample", "shortcut", "skip", "identity", "residual", "res"),
    ("head", "classifier", "classification", "predictions", "logits", "top"),
    ("mu", "mean", "loc"),
    ("logvar", "var", "sigma", "std", "scale", "logsigma"),
    ("gen", "generator", "g"),
    ("disc", "discriminator", "critic", "d"),
    ("enc", "encoder", "encode", "e"),
    ("dec", "decoder", "decode", "d"),
    ("enc", "encoder", "src", "source"),
    ("dec", "decoder", "tgt", "trg", "target"),
    ("src", "source"),
    ("tgt", "trg", "target"),
    ("fwd", "forward", "fw"),
    ("bwd", "backward", "bw", "reverse"),
    ("left", "lhs"),
    ("right", "rhs"),
    ("wte", "tok", "token", "word", "words"),
    ("wpe", "pos", "position", "positional", "positions"),
    ("img", "image", "visual", "vision"),
    ("txt", "text", "language"),
)  # fmt: skip
"""Groups of words that have the same meaning in the names of layers."""
_OF_ANY: Final = frozenset(
    {
        *_ALIKE[0], *_ALIKE[1], *_ALIKE[2], "layer", "layers", "block", "blocks", "blk", "stage", "stages", "features",
        "module", "modules", "net", "model", "body", "unit", "cell", "func", "sequential", "seq", "proj", "weight",
    }
)  # fmt: skip
"""Words that name the kind of a layer, but do not distinguish it from other layers of the model. They are ignored when
names are compared."""
# the indices of the groups that contain each word
_GROUPS: Final = {
    word: {number for number, words in enumerate(_ALIKE) if word in words}
    for word in chain.from_iterable(_ALIKE)
}
# a run of capitals, or a run of letters of which only the first may be a capital: "QKVProj" is QKV and Proj
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@cache
def _words(path: str) -> frozenset[str]:
    """Returns the words in a path, in lowercase. These are each whole name in the path, and the fragments between its
    digits, underscores and capitals: "block1_q" contains "q". Names that are numbers are left out."""
    names = path.split(".")
    parts = [part.lower() for name in names for part in _WORD.findall(name)]
    return frozenset({*parts, *(name.lower() for name in names if not name.isdigit())})


@cache
def likeness(one: str, other: str) -> int:
    """Returns a non-negative score for the words that two paths share, including synonyms and abbreviations. The last
    name counts twice, because it distinguishes the layers of a block."""
    ours, theirs = last_name(one), last_name(other)
    return _likeness_of_names(_words(one), _words(other)) + _likeness_of_names(
        _words(ours), _words(theirs)
    )


def _likeness_of_names(ours: Iterable[str], theirs: Iterable[str]) -> int:
    """Returns a score for two sets of words. Each word in `ours` adds its best score (0 to 2) with any word in
    `theirs`. Words in `_OF_ANY` are ignored."""
    telling = [word for word in ours if word not in _OF_ANY]
    return sum(
        max(
            (_likeness_of_words(word, other) for other in theirs if other not in _OF_ANY),
            default=0,
        )
        for word in telling
    )


@cache
def _likeness_of_words(one: str, other: str) -> int:
    """Returns a score for two words: 2 if they mean the same, 1 if one may abbreviate the other, otherwise 0."""
    if one == other:
        return 2
    if one in _GROUPS or other in _GROUPS:
        # d may mean decoder or discriminator, so one group in common is enough
        if _GROUPS.get(one, set()) & _GROUPS.get(other, set()):
            return 2
        # words of different groups have different meanings, even if one contains the letters of the other, as `main`
        # contains `in`
        if one in _GROUPS and other in _GROUPS:
            return 0
    # an abbreviation scores half as much as a synonym, because it is ambiguous: ctx may be context or contextual
    short, long = sorted((one, other), key=len)
    # a single letter would abbreviate half of all words
    return int(
        1 < len(short) < len(long) and short[:1] == long[:1] and _is_subsequence(short, long)
    )


def _is_subsequence(short: str, long: str) -> bool:
    """Whether `long` contains the letters of `short` in the same order. For example, "target" contains the letters of
    "tgt"."""
    # all letters share one iterator: `in` advances it, so each search starts after the letter that was found last
    letters = iter(long)
    return all(letter in letters for letter in short)


@cache
def _stem(path: str) -> tuple[str, tuple[int, ...]]:
    """Returns the stem of a path and the numbers in the path. The stem is the path without the numbers. The paths fc1
    and fc2 have the same stem, and so do dense and dense_1."""
    numbers = tuple(map(int, re.findall(r"\d+", path)))
    return re.sub(r"_?\d+", "", path), numbers


def crossings(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the pairs of indices (i, j) for which the names would match better if `theirs[i]` and `theirs[j]` were
    exchanged. `ours[i]` is currently the counterpart of `theirs[i]`. For example, returns [(0, 1)] if q, k, o are
    paired with k, q, out, or if fc1, fc2 are paired with dense_2, dense_1."""
    return [
        (one, two)
        for one, two in combinations(range(len(ours)), 2)
        if _would_fit_better_exchanged(ours[one], ours[two], theirs[one], theirs[two])
    ]


def _would_fit_better_exchanged(one: str, two: str, first: str, second: str) -> bool:
    """Whether the names would match better if two counterparts were exchanged. The paths `one` and `two` of the source
    currently have the counterparts `first` and `second` in the target."""
    stem, numbers = _stem(one)
    other_stem, other_numbers = _stem(two)
    target_stem, target_numbers = _stem(first)
    other_target_stem, other_target_numbers = _stem(second)
    # three conditions: the two names of the source differ only in their numbers, so do the two names of the target, and
    # the two models have no name in common. In that case the numbers show the order of the layers
    if (
        stem == other_stem
        and target_stem == other_target_stem
        and not _last_names(one, two) & _last_names(first, second)
    ):
        return (numbers < other_numbers) != (target_numbers < other_target_numbers)
    return likeness(one, second) + likeness(two, first) > likeness(one, first) + likeness(
        two, second
    )


def _last_names(*paths: str) -> set[str]:
    """Returns the last name of each path, except for names that are numbers."""
    return {last_name(path) for path in paths if not last_name(path).isdigit()}


def guess_pairs(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """Returns the counterparts that the names suggest, as a dict from paths in `ours` to paths in `theirs`. If several
    paths match equally well, the one with the nearest position is chosen. If one list is longer, its remaining paths
    are left out."""
    ranked = sorted(
        (-likeness(one, other), abs(place - other_place), one, other)
        for place, one in enumerate(ours)
        for other_place, other in enumerate(theirs)
    )
    pairs: dict[str, str] = {}
    taken: set[str] = set()
    # greedy, with the most similar pair first: the sum of all scores may not be the best, but this is only a guess that
    # a user confirms with names=
    for _, _, one, other in ranked:
        if one not in pairs and other not in taken:
            pairs[one] = other
            taken.add(other)
    return {one: pairs[one] for one in ours if one in pairs}
