"""Blocking: an operation is done, and has failed if it fails, before the next line runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Blocking(Primitives):
    """Waiting after each operation, which changes no result. Blocks may overlap; the last one to end ends the mode."""

    needs: ClassVar[tuple[str, ...]] = ("blocking",)

    def blocking(self) -> AbstractContextManager[Any]:
        """Every operation inside the block completes before the next line runs, in this thread, and in all threads if
        the framework can do that. Does nothing if operations always complete, and raises `UnsupportedError` if nothing
        can make them."""
        raise self.unsupported("blocking mode", "call xdevice.sync() after the line in question")
