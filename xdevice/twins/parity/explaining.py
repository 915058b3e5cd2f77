"""Explains differences with a known cause: gradients that are zero except for rounding, weights that only one program
trains, and the variance that a batch norm stores."""

from __future__ import annotations

import math
from operator import lt
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.twins.contract.layouts import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .comparison import Comparison
    from .host_leaves import HostLeaf
    from .record_files import RecordedCall

_VANISHING: Final = 1e-5
"""A leaf whose numbers are at most this fraction of the record's largest number may consist only of rounding errors.
The fraction measured for the gradient of a convolution's bias before a batch norm was 1e-8."""
_ROUNDING: Final = 2.0**-23
"""The same as `_VANISHING`, but for one element instead of a whole leaf. It is the distance from 1 to the next float32
number."""
_UNBIASED: Final = (
    "\n  note      PyTorch's batch norms store the unbiased variance of each batch, n / (n - 1) times the variance "
    "that other frameworks store"
)


Element = tuple[str, tuple[int, ...]]
"""A leaf's path without brackets, and the index of one element in it."""


def element_of(comparison: Comparison) -> Element:
    """Returns the element with the largest error according to a comparison; its index is () if the comparison names no
    element."""
    return _without_brackets(comparison.leaf), comparison.worst or ()


def notes_on_vanishing(
    calls: Sequence[RecordedCall], wanted: Collection[Element]
) -> dict[Element, str]:
    """Returns a note for each element in `wanted` that may be nothing but a rounding error. This is the case if the
    element or its whole leaf is much smaller than the largest number of a record. `calls` are the records of the
    reference; each note is based on the first record in which the element is that small. Other elements are left
    out."""
    notes: dict[Element, str] = {}
    for call in calls:
        arrays = {
            _without_brackets(leaf.path): leaf.value for leaf in call.read() if _is_float(leaf)
        }
        # the largest absolute value in this record
        largest = max(map(_largest, arrays.values()), default=0.0)
        for path, index in wanted:
            array = arrays.get(path)
            # this record may lack the leaf, or the shape of the leaf may have no such index
            if (
                array is None
                or len(index) != array.ndim
                or not all(map(lt, index, array.shape))
            ):
                continue
            for size, fraction in (
                (_largest(array), _VANISHING),
                (_largest(array[index]), _ROUNDING),
            ):
                # an exact zero is not the result of rounding; the note of an earlier record is kept
                if 0.0 < size <= fraction * largest and (path, index) not in notes:
                    notes[path, index] = (
                        f"\n  note      {call.name}, step {call.step}, has at most {size:.2g} there, and "
                        f"{largest:.2g} elsewhere: if these are gradients, this gradient is zero except for rounding, "
                        f"like the gradients of a bias before a norm and of the key's bias in attention. Adam turns "
                        f"such a gradient into full steps. Leave it out, build the layer without a bias, or run with "
                        f"--calibrate"
                    )
    return notes


def explain(comparison: Comparison, notes: Mapping[Element, str]) -> Comparison:
    """Adds a note to the text of a comparison if the values differ for a known reason, and returns the comparison. The
    note is the entry for the element in `notes`, the result of `notes_on_vanishing`. If there is no entry, and the leaf
    is the variance of a batch norm, the note is about this variance. Any other comparison is returned unchanged."""
    if comparison.problem != "values":
        return comparison
    default = _UNBIASED if _without_brackets(comparison.leaf).endswith(VARIANCE) else ""
    return comparison._replace(
        text=comparison.text + notes.get(element_of(comparison), default)
    )


def note_on_unchanged(path: str, pairs: list[tuple[RecordedCall, RecordedCall]]) -> str:
    """Returns a note if a leaf, such as a weight, has changed since step 0 in only one of the two programs; otherwise
    "". `pairs` contains a pair of records for each program: the record of step 0, and the record of the step to
    explain. The actual program comes first."""
    # for each program, whether the leaf's numbers differ between its two records
    changed = [
        not numpy.array_equal(
            *({leaf.path: leaf.value for leaf in call.read()}[path] for call in pair)
        )
        for pair in pairs
    ]
    # either both programs train the leaf, or neither does
    if changed[0] == changed[1]:
        return ""
    unchanged_side = ("actual", "expected")[changed.index(False)]
    return (
        f"\n  note      it has not changed since step 0 in {unchanged_side}, although it has changed in the other "
        f"program; it may be frozen there, or missing from the optimizer"
    )


def is_statistic(path: str) -> bool:
    """Whether a leaf has the name of a mean or variance that a batch norm stores."""
    return _without_brackets(path).endswith((MEAN, VARIANCE))


def _without_brackets(path: str) -> str:
    """Returns a path without the brackets and quotes at its ends: `w` for `['w']`."""
    return path.strip("[]'\"")


def _is_float(leaf: HostLeaf) -> bool:
    """Whether a leaf is a non-empty array of float or complex numbers."""
    value = leaf.value
    return isinstance(value, numpy.ndarray) and value.dtype.kind in "fc" and value.size > 0


def _largest(array: Any) -> float:
    """Returns the largest absolute value in an array; 0 if that value is not finite."""
    size = float(abs(array).max())
    # an infinity would make every other leaf look negligible
    return size if math.isfinite(size) else 0.0
