"""Explains differences in the values of a run that have a known cause: gradients that are zero except for rounding, and
the variance that a batch norm keeps."""

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
"""A leaf whose numbers are at most this share of the record's largest number may be rounding alone: the gradient of a
convolution's bias before a batch norm was measured at 1e-8."""
_ROUNDING: Final = 2.0**-23
"""The same for one element of a leaf."""
_UNBIASED: Final = (
    "\n  note      PyTorch's batch norms keep the unbiased variance of each batch, n / (n - 1) times what other "
    "frameworks keep"
)


Element = tuple[str, tuple[int, ...]]
"""A leaf's path without brackets, and the index of one element in it."""


def element_of(comparison: Comparison) -> Element:
    """The element that is the furthest off."""
    return _without_brackets(comparison.leaf), comparison.worst or ()


def vanishing(calls: Sequence[RecordedCall], wanted: Collection[Element]) -> dict[Element, str]:
    """A note for each wanted element that is much smaller than the other numbers of one of the reference's records, or
    whose leaf is. The first record with such an element counts."""
    notes: dict[Element, str] = {}
    for call in calls:
        arrays = {
            _without_brackets(leaf.path): leaf.value for leaf in call.read() if _is_float(leaf)
        }
        largest = max(map(_size, arrays.values()), default=0.0)
        for path, place in wanted:
            array = arrays.get(path)
            # another record may have a leaf of this name with another shape
            if (
                array is None
                or len(place) != array.ndim
                or not all(map(lt, place, array.shape))
            ):
                continue
            for size, share in ((_size(array), _VANISHING), (_size(array[place]), _ROUNDING)):
                # exact zeros are no rounding, and need no note
                if 0.0 < size <= share * largest and (path, place) not in notes:
                    notes[path, place] = (
                        f"\n  note      {call.name}, step {call.step}, has at most {size:.2g} there, and {largest:.2g} "
                        f"elsewhere: if these are gradients, this one is zero but for rounding, as those of a bias "
                        f"before a norm and of the key's bias in attention are. Adam makes whole steps of it. Compare "
                        f"without it, make the layer without a bias, or run with --calibrate, which allows for it"
                    )
    return notes


def explain(comparison: Comparison, notes: Mapping[Element, str]) -> Comparison:
    """The comparison, with a note in its text if the difference may have such a cause. `notes` is from `vanishing`."""
    if comparison.problem != "values":
        return comparison
    usual = _UNBIASED if _without_brackets(comparison.leaf).endswith(VARIANCE) else ""
    return comparison._replace(text=comparison.text + notes.get(element_of(comparison), usual))


def unchanged_on_one_side(path: str, pairs: list[tuple[RecordedCall, RecordedCall]]) -> str:
    """A note if a leaf has the same numbers in two records of one program, and other numbers in those of the other.
    `pairs` has the two records of each program."""
    # of each program, whether the leaf's numbers differ between its two records
    changed = [
        not numpy.array_equal(
            *({leaf.path: leaf.value for leaf in call.read()}[path] for call in pair)
        )
        for pair in pairs
    ]
    # both train it, or neither does
    if changed[0] == changed[1]:
        return ""
    still = ("actual", "expected")[changed.index(False)]
    return (
        f"\n  note      it has not changed since step 0 in {still}, and has in the other: it may be frozen there, or "
        f"not given to the optimizer"
    )


def is_statistic(path: str) -> bool:
    """Whether a leaf has the name of a mean or variance that a batch norm keeps."""
    return _without_brackets(path).endswith((MEAN, VARIANCE))


def _without_brackets(path: str) -> str:
    return path.strip("[]'\"")


def _is_float(leaf: HostLeaf) -> bool:
    value = leaf.value
    return isinstance(value, numpy.ndarray) and value.dtype.kind in "fc" and value.size > 0


def _size(array: Any) -> float:
    size = float(abs(array).max())
    # an infinity would make every other leaf look negligible
    return size if math.isfinite(size) else 0.0
