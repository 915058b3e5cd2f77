"""Measures the effect of rounding alone on each recorded value, its noise.

The script runs five more times on the reference backend: once in float64, and four times with its initial numbers moved
by an ULP. The noise of a leaf is the largest difference that such a run makes to an element of the leaf. An error of up
to `8 * noise + 2 * 2**-23 * max|expected|` is allowed. With one moved run instead of four, correct runs were reported
as faulty.

A single number, such as a loss, may by chance be the same in all runs. So for each name, the largest difference in any
step so far counts, as a share of the largest number. The numbers are moved only once, at the beginning of a run, while
another framework rounds differently in each step, so at step k the noise is multiplied by k + 1. In eight steps of a
VAE, trained by the Adam of PyTorch and of Paddle, errors of correct runs grew to 1.5 times the allowed error without
that factor, and to 0.3 times with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.base import floats
from xdevice.errors import RecordingError

from .host_leaves import unique_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .host_leaves import HostLeaf
    from .record_files import RecordedCall

    Calls = Sequence[RecordedCall]
    """All recorded values of one run."""
    Noise = Mapping[tuple[str, int], Mapping[str, float]]
    """The noise of each leaf, by the name and step of the recorded value, and then by the leaf's path in that value."""

VARIANTS: Final = (floats.FLOAT64, *(f"{floats.JITTER}{number}" for number in (1, 2, 3, 4)))
"""The values of XDEVICE_FLOATS for the further runs of the reference backend: one run for each."""
_REDRAWN: Final = 1e-2, 100.0
"""The limits of what rounding does in the first step. If the run in float64 is further from the usual run than this
share of the largest number, and also than this many times the change in the moved runs, then a framework's own
generator has drawn other numbers in float64."""


def measure(reference: Calls, variants: Mapping[str, Calls]) -> Noise:
    """Returns the noise of each recorded leaf at each step, measured by comparing the reference's usual run,
    `reference`, with its further runs, `variants` (see the top of this file).

    Raises:
        RecordingError: if a run recorded other names, steps, leaves or shapes than the reference, or if it drew
            other random numbers.
    """
    noise: dict[tuple[str, int], dict[str, float]] = {}
    worst_shares: dict[tuple[str, str], float] = {}
    others = {
        variant: {call.key: call for call in calls} for variant, calls in variants.items()
    }
    for call in reference:
        leaves = call.read()
        differences = {
            variant: _differences(call, leaves, calls.get(call.key), variant)
            for variant, calls in others.items()
        }
        # only in the first step: later, rounding errors may have grown as large as the
        # difference that other random numbers make
        if call.step == 0:
            _refuse_redrawn(call, leaves, differences)
        # also for a record without leaves, so that a lookup by its key succeeds
        noise[call.key] = {}
        # for each leaf, the largest difference in any of the runs
        largest = map(max, zip(*differences.values(), strict=True))
        for path, leaf, difference in zip(unique_paths(leaves), leaves, largest, strict=True):
            # a loss may by chance be equal in all runs, so the largest share so far counts
            size = _largest(leaf)
            share = max(
                difference / size if size else 0.0, worst_shares.get((call.name, path), 0.0)
            )
            worst_shares[call.name, path] = share
            # times the steps: the numbers were moved once, and another framework rounds in each step
            noise[call.key][path] = max(difference, share * size) * (call.step + 1)
    return noise


def _differences(
    call: RecordedCall, usual: list[HostLeaf], other: RecordedCall | None, variant: str
) -> list[float]:
    """For each leaf of a recorded value, the largest difference between the reference's usual run and its run
    `variant`. `other` is the value in that run. Raises `RecordingError` if `other` is None or has other leaves."""
    leaves = other.read() if other is not None else []
    if [(leaf.path, leaf.shape) for leaf in leaves] != [
        (leaf.path, leaf.shape) for leaf in usual
    ]:
        raise RecordingError(
            f"cannot calibrate: {call.name}, step {call.step}, has different leaves or shapes, or is missing, in "
            f"the run {variant} of the reference: rounding alone changes what the script records; make it record the "
            f"same values in every run"
        )
    # texts and None have no distance: the comparison of the leaves handles them
    return [
        _largest_difference(ours.value, theirs.value)
        if ours.is_number and theirs.is_number
        else 0.0
        for ours, theirs in zip(leaves, usual, strict=True)
    ]


def _refuse_redrawn(
    call: RecordedCall, usual: list[HostLeaf], differences: Mapping[str, list[float]]
) -> None:
    """Raises `RecordingError` if the run in float64 is too far from the usual run in a value of the first step.
    `differences` maps each variant to the differences of the value's leaves."""
    share, times = _REDRAWN
    in_float64 = max(differences.get(floats.FLOAT64, ()), default=0.0)
    moved = max(
        (
            x
            for variant, leaf_differences in differences.items()
            if variant != floats.FLOAT64
            for x in leaf_differences
        ),
        default=0.0,
    )
    # both limits, because an unstable model changes as much in the moved runs
    if (
        in_float64 > share * max(map(_largest, usual), default=0.0)
        and in_float64 > times * moved
    ):
        raise RecordingError(
            f"cannot calibrate: {call.name}, step {call.step}, is off by {in_float64:.2g} in the run in float64 of the "
            f"reference, which is more than rounding, because a framework's own generator draws different numbers "
            f"in float64. Take initial weights from xdevice.random, xdevice.load or a checkpoint"
        )


def moved_nothing(reference: Calls, variants: Mapping[str, Calls]) -> bool:
    """Whether the runs with moved numbers recorded the same numbers as the reference's usual run, so that they measure
    nothing."""
    # the run in float64 always differs, so it shows nothing
    jittered = {
        variant: calls
        for variant, calls in variants.items()
        if variant.startswith(floats.JITTER)
    }
    return not any(any(leaves.values()) for leaves in measure(reference, jittered).values())


def _largest(leaf: HostLeaf) -> float:
    """The largest finite absolute value in a leaf; 0 for a text or None."""
    return _largest_difference(leaf.value, 0) if leaf.is_number else 0.0


def _largest_difference(first: Any, second: Any) -> float:
    """The largest absolute difference between corresponding elements of two arrays, or of an array and a number.
    Differences that are not finite are ignored; 0 if no other is left."""
    a, b = numpy.asarray(first), numpy.asarray(second)
    # a difference of two float32 numbers would itself be rounded
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    # infinities give NaN or an infinity, which does not count below
    with numpy.errstate(all="ignore"):
        size = abs(a.astype(wide) - b.astype(wide))
    return float(size.max(where=numpy.isfinite(size), initial=0.0))
