"""Measures the noise of each recorded value, which is the effect of rounding alone on the value.

The script runs five more times on the reference backend: once in float64, and four times with its initial numbers moved
by an ULP. The noise of a leaf is the largest change of one of its elements in any of these runs. An error of up to
`8 * noise + 2 * 2**-23 * max|expected|` is allowed. With only one run with moved numbers instead of four, correct runs
were reported as faulty.

A single number, such as a loss, may by chance be the same in all runs. Therefore the noise, relative to the largest
number of the leaf, is at least as large as at any earlier step of the same name. The noise at step k is multiplied by k
+ 1, because another framework rounds differently at each step, whereas the numbers are moved only once, at the
beginning of a run. When a VAE was trained for eight steps with the Adam of PyTorch and of Paddle, errors of correct
runs grew to 1.5 times the allowed error without this factor, and to 0.3 times with this factor.
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
    """The noise of each leaf. The outer key is the name and step of the recorded value, and the inner key is the leaf's
    path in the value."""

VARIANTS: Final = (floats.FLOAT64, *(f"{floats.JITTER}{number}" for number in (1, 2, 3, 4)))
"""The values of XDEVICE_FLOATS for the calibration runs of the reference backend, one run for each value."""
_REDRAWN: Final = 1e-2, 100.0
"""Two limits for the effect of rounding in the first step: a fraction of the largest number, and a multiple of the
change in the runs with moved numbers. If the float64 run differs from the usual run by more than both limits, a
framework's random generator must have drawn different numbers in float64."""


def measure_noise(reference: Calls, variants: Mapping[str, Calls]) -> Noise:
    """Returns the noise of each recorded leaf at each step. The noise is measured by comparing the reference's usual
    run, `reference`, with its calibration runs, `variants` (see the module's docstring).

    Raises:
        RecordingError: if a run recorded different names, steps, leaves or shapes from the reference, or if it drew
            different random numbers.
    """
    noise: dict[tuple[str, int], dict[str, float]] = {}
    # the largest difference in any step so far, as a fraction of the leaf's largest number, by name and path of the
    # leaf
    worst_fractions: dict[tuple[str, str], float] = {}
    # the values of each calibration run: by the variant, and then by name and step
    calls_by_key = {
        variant: {call.key: call for call in calls} for variant, calls in variants.items()
    }
    for call in reference:
        leaves = call.read()
        differences = {
            variant: _differences(call, leaves, calls.get(call.key), variant)
            for variant, calls in calls_by_key.items()
        }
        # checked only in the first step, because later, rounding errors may have become as large as the effect of other
        # random numbers
        if call.step == 0:
            _refuse_redrawn(call, leaves, differences)
        # a record without leaves gets an entry too, so that a lookup by its key succeeds
        noise[call.key] = {}
        # for each leaf, the largest difference in any of the runs
        largest = map(max, zip(*differences.values(), strict=True))
        for path, leaf, difference in zip(unique_paths(leaves), leaves, largest, strict=True):
            # a loss may by chance be equal in all runs, so the largest fraction so far is used
            size = _largest(leaf)
            fraction = max(
                difference / size if size else 0.0, worst_fractions.get((call.name, path), 0.0)
            )
            worst_fractions[call.name, path] = fraction
            # multiplied by the number of steps, because the numbers were moved only once, but another framework rounds
            # differently in each step
            noise[call.key][path] = max(difference, fraction * size) * (call.step + 1)
    return noise


def _differences(
    call: RecordedCall, usual: list[HostLeaf], other: RecordedCall | None, variant: str
) -> list[float]:
    """Returns, for each leaf of a recorded value, the largest difference between the reference's usual run and its run
    `variant`. `other` is the value recorded in the run `variant`. Raises `RecordingError` if `other` is None or has
    different leaves."""
    leaves = other.read() if other is not None else []
    if [(leaf.path, leaf.shape) for leaf in leaves] != [
        (leaf.path, leaf.shape) for leaf in usual
    ]:
        raise RecordingError(
            f"cannot calibrate: {call.name}, step {call.step}, has different leaves or shapes, or is missing, in "
            f"the run {variant} of the reference: rounding alone changes what the script records; make the script "
            f"record the same values in every run"
        )
    # strings and None have no distance; the comparison of the leaves handles such values
    return [
        _largest_difference(ours.value, theirs.value)
        if ours.is_number and theirs.is_number
        else 0.0
        for ours, theirs in zip(leaves, usual, strict=True)
    ]


def _refuse_redrawn(
    call: RecordedCall, usual: list[HostLeaf], differences: Mapping[str, list[float]]
) -> None:
    """Raises `RecordingError` if a value of the first step differs too much between the float64 run and the usual run.
    `differences` maps each variant to the differences of the value's leaves."""
    fraction, multiple = _REDRAWN
    in_float64 = max(differences.get(floats.FLOAT64, ()), default=0.0)
    in_moved_runs = max(
        (
            difference
            for variant, leaf_differences in differences.items()
            if variant != floats.FLOAT64
            for difference in leaf_differences
        ),
        default=0.0,
    )
    # both limits must be exceeded, because an unstable model changes as much in the moved runs
    if (
        in_float64 > fraction * max(map(_largest, usual), default=0.0)
        and in_float64 > multiple * in_moved_runs
    ):
        raise RecordingError(
            f"cannot calibrate: {call.name}, step {call.step}, is off by {in_float64:.2g} in the reference's run in "
            f"float64, which is more than rounding can cause. A framework's own generator draws different numbers in "
            f"float64: take initial weights from xdevice.random, xdevice.load or a checkpoint"
        )


def jitter_changes_nothing(reference: Calls, variants: Mapping[str, Calls]) -> bool:
    """Whether the runs with moved numbers recorded exactly the numbers of the reference's usual run, so that no noise
    was measured."""
    # the run in float64 always differs, so it is left out
    jittered = {
        variant: calls
        for variant, calls in variants.items()
        if variant.startswith(floats.JITTER)
    }
    return not any(
        any(leaves.values()) for leaves in measure_noise(reference, jittered).values()
    )


def _largest(leaf: HostLeaf) -> float:
    """Returns the largest finite absolute value in a leaf; 0 for a string or None."""
    return _largest_difference(leaf.value, 0) if leaf.is_number else 0.0


def _largest_difference(first: Any, second: Any) -> float:
    """Returns the largest absolute difference between corresponding elements of two arrays, or between the elements of
    an array and a number. Differences that are not finite are ignored. Returns 0 if no difference is finite."""
    a, b = numpy.asarray(first), numpy.asarray(second)
    # in float32, the difference itself would be rounded
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    # infinities give NaN or an infinity, which is ignored below
    with numpy.errstate(all="ignore"):
        size = abs(a.astype(wide) - b.astype(wide))
    return float(size.max(where=numpy.isfinite(size), initial=0.0))
