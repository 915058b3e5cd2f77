"""Explains differences in the values of a run that have a known cause other than a fault: gradients that are zero but
for rounding, and the variance that a batch norm keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.twins.contract.layouts import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .comparison import Comparison
    from .host_leaves import HostLeaf
    from .record_files import RecordedCall

_VANISHING: Final = 1e-5
"""A leaf whose numbers are at most this share of the record's largest number may be rounding alone: the gradient of a
convolution's bias before a batch norm was seen at 1e-8."""
_UNBIASED: Final = (
    "\n  note      PyTorch's batch norms keep the unbiased variance of each batch, n / (n - 1) times what other "
    "frameworks keep"
)


def vanishing(calls: Sequence[RecordedCall]) -> dict[str, str]:
    """A note for each leaf that the reference has recorded and that is much smaller than the others of its record,
    by its path without brackets. If several records have such a leaf, the note is about the first."""
    notes: dict[str, str] = {}
    for call in calls:
        sizes = {_without_brackets(leaf.path): _size(leaf) for leaf in call.read()}
        largest = max(sizes.values(), default=0.0)
        for path, size in sizes.items():
            # exact zeros are no rounding, and need no note
            if 0.0 < size <= _VANISHING * largest and path not in notes:
                notes[path] = (
                    f"\n  note      {call.name}, step {call.step}, has at most {size:.2g} there, and {largest:.2g} "
                    f"elsewhere: if these are gradients, this one is zero but for rounding, as those of a bias before "
                    f"a norm and of the key's bias in attention are. Adam makes whole steps of it. Compare without it, "
                    f"or make the layer without a bias"
                )
    return notes


def explain(comparison: Comparison, notes: Mapping[str, str]) -> Comparison:
    """The comparison, its text with a note if the difference may have such a cause. `notes` is from `vanishing`."""
    if comparison.problem != "values":
        return comparison
    path = _without_brackets(comparison.leaf)
    note = notes.get(path, _UNBIASED if path.endswith(VARIANCE) else "")
    return comparison._replace(text=comparison.text + note)


def is_statistic(path: str) -> bool:
    """Whether a leaf has the name of a mean or variance that a batch norm keeps."""
    return _without_brackets(path).endswith((MEAN, VARIANCE))


def _without_brackets(path: str) -> str:
    return path.strip("[]'\"")


def _size(leaf: HostLeaf) -> float:
    value: Any = leaf.value
    if not isinstance(value, numpy.ndarray) or value.dtype.kind not in "fc" or not value.size:
        return 0.0
    size = float(abs(value).max())
    return size if math.isfinite(size) else 0.0
