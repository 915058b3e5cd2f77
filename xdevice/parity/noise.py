"""What rounding alone does to each recorded value: the reference again, in float64, and with numbers moved by an ULP.

The rule is `8 * noise + 2 * 2**-23 * max|expected|`, where the noise of a leaf is the largest difference that a run
made to an element of it. Four moved runs are the fewest that were enough: with one, honest runs were reported.

A single number, as a loss is, may stay as it is in five runs by chance. So the largest difference of a name's steps so
far counts, as a share of the largest number. And the runs are moved once, at their beginning, where another framework
rounds differently at each step, so it counts k + 1 times at step k: in eight steps of a VAE, trained by the Adam of
PyTorch and of Paddle, honest errors grew to 1.5 of what is allowed without that, and are at most 0.3 with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.base import floats
from xdevice.errors import RecordingError

from .structures import ways

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .readings import Reading
    from .recording import RecordedCall

    Noise = Mapping[tuple[str, int], Mapping[str, float]]
    """By name and step, then by leaf."""

VARIANTS: Final = (floats.FLOAT64, *(f"{floats.JITTER}{number}" for number in (1, 2, 3, 4)))
"""Which runs there are beside the usual one: values of XDEVICE_FLOATS."""


def measure(reference: Sequence[RecordedCall], variants: Mapping[str, Sequence[RecordedCall]]) -> Noise:
    """What rounding does to each leaf, by the differences between the reference and its other runs.

    Raises:
        RecordingError: a run recorded other names, steps, leaves or shapes than the reference.
    """
    noise: dict[tuple[str, int], dict[str, float]] = {}
    most: dict[tuple[str, str], float] = {}
    others = {variant: {(entry.name, entry.step): entry for entry in entries} for variant, entries in variants.items()}
    for entry in reference:
        key = entry.name, entry.step
        usual = entry.read()
        largest = dict.fromkeys(ways(usual), 0.0)
        for variant, entries in others.items():
            other = entries[key].read() if key in entries else []
            if [(leaf.path, leaf.shape) for leaf in other] != [(leaf.path, leaf.shape) for leaf in usual]:
                raise RecordingError(
                    f"cannot calibrate: {entry.name}, step {entry.step}, has other leaves or shapes, or is missing, in "
                    f"the run {variant} of the reference, so that rounding alone decides what is recorded"
                )
            for way, one, two in zip(largest, other, usual, strict=True):
                largest[way] = max(largest[way], _difference(one, two))
        noise[key] = {}
        for (way, difference), leaf in zip(largest.items(), usual, strict=True):
            size = _largest(leaf)
            share = difference / size if size else 0.0
            most[entry.name, way] = share = max(share, most.get((entry.name, way), 0.0))
            noise[key][way] = max(difference, share * size) * (entry.step + 1)
    return noise


def moved_nothing(reference: Sequence[RecordedCall], variants: Mapping[str, Sequence[RecordedCall]]) -> bool:
    """Whether the runs with moved numbers recorded the reference's own: then they say nothing of rounding."""
    jittered = {variant: entries for variant, entries in variants.items() if variant.startswith(floats.JITTER)}
    return not any(any(leaves.values()) for leaves in measure(reference, jittered).values())


def _difference(one: Reading, two: Reading) -> float:
    """The largest of two leaves, where both are finite: an infinity is what the comparison itself sees."""
    if not (one.is_number and two.is_number):
        return 0.0
    return _size(one.value, two.value)


def _largest(one: Reading) -> float:
    return _size(one.value, 0) if one.is_number else 0.0


def _size(one: Any, two: Any) -> float:
    a, b = numpy.asarray(one), numpy.asarray(two)
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    with numpy.errstate(all="ignore"):
        size = abs(a.astype(wide) - b.astype(wide))
    return float(size.max(where=numpy.isfinite(size), initial=0.0))
