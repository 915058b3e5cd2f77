"""Measures what rounding alone does to each recorded value, its noise.

The script runs five more times on the reference backend: once in float64, and four times with the numbers that it
starts from moved by an ULP. The noise of a leaf is the largest difference that such a run makes to an element of the
leaf. An error of up to `8 * noise + 2 * 2**-23 * max|expected|` is allowed. With one moved run instead of four, correct
runs were reported as faulty.

A single number, such as a loss, may by chance be the same in all runs. So the largest difference in all steps of a name
so far counts, as a share of the largest number. The numbers are moved only once, at the beginning of a run, while
another framework rounds differently in each step, so at step k the noise is multiplied by k + 1. In eight steps of a
VAE, trained by the Adam of PyTorch and of Paddle, errors of correct runs grew to 1.5 times the allowed error without
that factor, and to 0.3 times with it.
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
    """The noise of each leaf: by the name and step of the recorded value, and then by the path of the leaf in it."""

VARIANTS: Final = (floats.FLOAT64, *(f"{floats.JITTER}{number}" for number in (1, 2, 3, 4)))
"""The values of XDEVICE_FLOATS for the further runs of the reference backend: one run for each."""
_REDRAWN: Final = 1e-2, 100.0
"""In the first step, float64 does not change a value by more than this share of its largest number, which is also more
than so many times what the moved runs do: a framework's own generator draws other numbers in float64."""


def measure(reference: Sequence[RecordedCall], variants: Mapping[str, Sequence[RecordedCall]]) -> Noise:
    """Returns the noise of each recorded leaf, which grows with the largest difference between the reference's usual
    run and its further runs, `variants`.

    Raises:
        RecordingError: a run recorded other names, steps, leaves or shapes than the reference, or drew other numbers.
    """
    noise: dict[tuple[str, int], dict[str, float]] = {}
    most: dict[tuple[str, str], float] = {}
    others = {variant: {(entry.name, entry.step): entry for entry in entries} for variant, entries in variants.items()}
    for entry in reference:
        key = entry.name, entry.step
        usual = entry.read()
        largest = dict.fromkeys(ways(usual), 0.0)
        by_run: dict[str, float] = {}
        for variant, entries in others.items():
            other = entries[key].read() if key in entries else []
            if [(leaf.path, leaf.shape) for leaf in other] != [(leaf.path, leaf.shape) for leaf in usual]:
                raise RecordingError(
                    f"cannot calibrate: {entry.name}, step {entry.step}, has other leaves or shapes, or is missing, in "
                    f"the run {variant} of the reference, so that rounding alone decides what is recorded"
                )
            apart = [_difference(one, two) for one, two in zip(other, usual, strict=True)]
            by_run[variant] = max(apart, default=0.0)
            largest = {way: max(known, new) for (way, known), new in zip(largest.items(), apart, strict=True)}
        if entry.step == 0:
            _refuse_redrawn(entry, usual, by_run)
        noise[key] = {}
        for (way, difference), leaf in zip(largest.items(), usual, strict=True):
            size = _size(leaf.value, 0) if leaf.is_number else 0.0
            share = difference / size if size else 0.0
            most[entry.name, way] = share = max(share, most.get((entry.name, way), 0.0))
            noise[key][way] = max(difference, share * size) * (entry.step + 1)
    return noise


def _refuse_redrawn(entry: RecordedCall, usual: Sequence[Reading], by_run: dict[str, float]) -> None:
    share, times = _REDRAWN
    wide = by_run.pop(floats.FLOAT64, 0.0)
    size = max((_size(leaf.value, 0) for leaf in usual if leaf.is_number), default=0.0)
    if wide > share * size and wide > times * max(by_run.values(), default=0.0):
        raise RecordingError(
            f"cannot calibrate: {entry.name}, step {entry.step}, is off by {wide:.2g} in the run in float64 of the "
            "reference, which is more than rounding: a framework's own generator draws other numbers in float64. Take "
            "first weights from xdevice.random, xdevice.load or a checkpoint"
        )


def moved_nothing(reference: Sequence[RecordedCall], variants: Mapping[str, Sequence[RecordedCall]]) -> bool:
    """Whether the runs with moved numbers recorded the same numbers as the reference's usual run, so that they measure
    nothing."""
    jittered = {variant: entries for variant, entries in variants.items() if variant.startswith(floats.JITTER)}
    return not any(any(leaves.values()) for leaves in measure(reference, jittered).values())


def _difference(one: Reading, two: Reading) -> float:
    """The largest difference between elements of two leaves, among the elements whose difference is finite. Infinities
    are left to the comparison of the leaves."""
    if not (one.is_number and two.is_number):
        return 0.0
    return _size(one.value, two.value)


def _size(one: Any, two: Any) -> float:
    a, b = numpy.asarray(one), numpy.asarray(two)
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    with numpy.errstate(all="ignore"):
        size = abs(a.astype(wide) - b.astype(wide))
    return float(size.max(where=numpy.isfinite(size), initial=0.0))
