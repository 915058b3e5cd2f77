"""Explains differences in the values of a run that have a known cause other than a fault: gradients that are zero but
for rounding, and the variance that a batch norm keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from xdevice.twins.contract.layouts import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .comparison import Comparison
    from .readings import Reading
    from .recording import RecordedCall

_VANISHING: Final = 1e-5
"""A leaf whose numbers are at most this share of the record's largest number may be rounding alone: the gradient of a
convolution's bias before a batch norm was seen at 1e-8."""
_UNBIASED: Final = (
    "\n  note      PyTorch's batch norms keep the unbiased variance of each batch, n / (n - 1) times what other "
    "frameworks keep"
)


class Vanishing(NamedTuple):
    """A recorded leaf that is much smaller than the other leaves of its record."""

    name: str
    step: int
    size: float
    largest: float

    def __str__(self) -> str:
        return (
            f"\n  note      {self.name}, step {self.step}, has at most {self.size:.2g} there, and {self.largest:.2g} "
            f"elsewhere: if these are gradients, this one is zero but for rounding, as those of a bias before a norm "
            f"and of the key's bias in attention are. Adam makes whole steps of it. Compare without it, or make the "
            f"layer without a bias"
        )


def vanishing(entries: Sequence[RecordedCall]) -> dict[str, Vanishing]:
    """The leaves of the reference's records that are much smaller than the others beside them, by their paths without
    brackets. The first record of each counts."""
    found: dict[str, Vanishing] = {}
    for entry in entries:
        sizes = {_plain(leaf.path): _size(leaf) for leaf in entry.read()}
        largest = max(sizes.values(), default=0.0)
        for path, size in sizes.items():
            if 0.0 < size <= _VANISHING * largest:
                found.setdefault(path, Vanishing(entry.name, entry.step, size, largest))
    return found


def explain(comparison: Comparison, known: Mapping[str, Vanishing]) -> Comparison:
    """The comparison, its text with a note if the difference may have such a cause. `known` is from `vanishing`."""
    if comparison.problem != "values":
        return comparison
    path = _plain(comparison.leaf)
    note = str(known[path]) if path in known else _UNBIASED if path.endswith(VARIANCE) else ""
    return comparison._replace(text=f"{comparison.text}{note}")


def is_statistic(path: str) -> bool:
    """Whether a leaf has the name of a mean or variance that a batch norm keeps."""
    return _plain(path).endswith((MEAN, VARIANCE))


def _plain(path: str) -> str:
    return path.strip("[]'\"")


def _size(leaf: Reading) -> float:
    value: Any = leaf.value
    if not isinstance(value, numpy.ndarray) or value.dtype.kind not in "fc" or not value.size:
        return 0.0
    size = float(abs(value).max())
    return size if math.isfinite(size) else 0.0
