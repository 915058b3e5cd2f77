"""Blocking mode, in which every operation finishes, or raises its error, before the program's next line runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Blocking(Primitives):
    """The capability of waiting after each operation. Waiting does not change any result. `with blocking():` blocks may
    overlap; the mode ends when the last of these blocks ends."""

    needs: ClassVar[tuple[str, ...]] = ("blocking",)

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager for blocking mode. Inside its block, every operation of this thread is completed
        before the next line runs. If possible, this applies to all threads. The context manager does nothing if the
        framework's operations always complete at once. Raises `UnsupportedError` if there is no way to wait after each
        operation."""
        raise self.unsupported(
            "blocking mode", "call xdevice.sync() after the line in question"
        )
