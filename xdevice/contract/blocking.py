"""Blocking: an operation is done, and has failed if it fails, before the next line runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Blocking(Primitives):
    """Waiting after each operation. Results are those without; blocks may overlap, and the last one to end ends it."""

    needs: ClassVar[tuple[str, ...]] = ("blocking",)

    def blocking(self) -> AbstractContextManager[Any]:
        """Every operation inside completes before the next line runs; in this thread, and in all where it can. Does
        nothing where that is so anyway, and raises `UnsupportedError` where nothing can make an operation complete."""
        raise self.unsupported("blocking mode", "call xdevice.sync() after the line in question")
