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
        """Seeds all default random generators of the framework, on every device, with the int
        `n` (0 to 2**32 - 1)."""
        raise self.unsupported(
            "seeding its generators", "seed them with the framework's own function"
        )

    def deterministic(self) -> AbstractContextManager[list[str]]:
        """Returns a context manager. In its block the framework chooses deterministic kernels;
        afterwards, also after an error, it has its former settings. `as` gives a list with one
        line for each thing that stays nondeterministic, which also says how to make it
        deterministic. An empty list means that everything is deterministic."""
        raise self.unsupported(
            "deterministic kernels", "turn them on with the framework's own settings"
        )
