"""Implements seeds and deterministic kernels on JAX."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAG: Final = "--xla_gpu_deterministic_ops=true"


class JaxReproducibility(Reproducibility):
    """Implements the capability `Reproducibility` for JAX. `xdevice.math.contract.reproducibility` documents its
    methods."""

    def seed_generators(self, n: int) -> None:
        """Does nothing, because JAX has no global generators: a program seeds its own keys."""

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """Opens a block that changes nothing. Yields a list with a line about the missing flag if sums on a GPU remain
        nondeterministic, otherwise an empty list."""
        # XLA reads the flags when JAX starts, so the block cannot set the flag, and can only report that it is missing
        needs_flag = (
            self.count("gpu")
            and not self.virtual
            and _FLAG not in os.environ.get("XLA_FLAGS", "")
        )
        yield (
            [f"sums on a GPU: add {_FLAG} to XLA_FLAGS before JAX starts"] if needs_flag else []
        )
