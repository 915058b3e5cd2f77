"""Blocking mode: every operation has finished, or has raised its error, before the program's next line runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Blocking(Primitives):
    """The capability of waiting after each operation, which changes no result. `with blocking():` blocks may overlap;
    the mode ends when the last of them exits."""

    needs: ClassVar[tuple[str, ...]] = ("blocking",)

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside the block every operation is completed before the next line runs, in this
        thread, and in all threads if the framework can do that. Does nothing if the framework's operations always
        complete at once; raises `UnsupportedError` if nothing can make them complete."""
        raise self.unsupported(
            "blocking mode", "call xdevice.sync() after the line in question"
        )
