"""Memory of a framework, read by NumPy where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np


class _Exported:
    """A capsule as what `numpy.from_dlpack` takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


def as_numpy(capsule: Any) -> np.ndarray[Any, Any]:
    """The memory of an unversioned DLPack capsule on the CPU, for reading; it lives as long as the array."""
    return np.from_dlpack(_Exported(capsule))
