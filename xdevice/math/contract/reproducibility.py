"""Seeding a framework's own generators, and choosing kernels that produce the same bits in each run."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Reproducibility(Primitives):
    """The capability to repeat a computation with exactly the same bits."""

    needs: ClassVar[tuple[str, ...]] = ("seed_generators", "deterministic")

    def seed_generators(self, n: int) -> None:
        """Seeds all default random generators of the framework, on every device, with the int
        `n` (0 to 2**32 - 1)."""
        raise self.unsupported(
            "seeding its generators", "seed the generators with the framework's own function"
        )

    def deterministic(self) -> AbstractContextManager[list[str]]:
        """Returns a context manager. Inside its block, the framework chooses deterministic kernels. After the block,
        even if there was an error, the former settings are restored. The value after `as` is a list of strings. Each
        string describes something that stays nondeterministic, and says how to make it deterministic. If the list is
        empty, everything is deterministic."""
        raise self.unsupported(
            "deterministic kernels",
            "enable deterministic kernels with the framework's own settings",
        )
