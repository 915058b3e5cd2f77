"""Seeds of a framework's own generators, and kernels that give the same bits each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Reproducibility(Primitives):
    """The capability of repeating a computation bit by bit."""

    needs: ClassVar[tuple[str, ...]] = ("seed_generators", "deterministic")

    def seed_generators(self, n: int) -> None:
        """Seeds all generators that the framework has by default, on every device. `n` is below 2**32."""
        raise self.unsupported(
            "seeding its generators", "seed them by the framework's own function"
        )

    def deterministic(self) -> AbstractContextManager[list[str]]:
        """A block in which the framework chooses deterministic kernels, and after which it has its former settings.
        `as` gives a line for each thing that stays nondeterministic, and how to make it deterministic."""
        raise self.unsupported("deterministic kernels", "ask the framework for them")
