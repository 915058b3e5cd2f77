"""Seeds MXNet's generators, and makes MXNet choose deterministic kernels."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import mxnet as mx

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE: Final = "MXNET_ENFORCE_DETERMINISM"


class MxnetReproducibility(Reproducibility):
    """Implements the capability `Reproducibility` for MXNet. `xdevice.math.contract.reproducibility` documents its
    methods."""

    def seed_generators(self, n: int) -> None:
        """Seeds MXNet's default generators on all devices."""
        mx.random.seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """Opens a block in which MXNet chooses deterministic kernels. For this purpose, sets an environment variable
        that MXNet reads. Yields an empty list, because no kernel remains nondeterministic."""
        value_before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = "1"
        try:
            yield []
        finally:
            if value_before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = value_before
