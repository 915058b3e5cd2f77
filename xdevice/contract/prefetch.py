"""Copying in the background, ahead of what is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device


class Prefetch(Primitives):
    """Copies to a device while the device computes, and iterating over the loaders whose batches are copied."""

    needs: ClassVar[tuple[str, ...]] = ("stage",)

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy a tensor, or a NumPy array as a tensor, from the host to a device through pinned memory where
        the framework has it. The copy is ordered on this thread's current stream. On return `x` has been read, so that
        its owner may write into it, and the result is not an alias of what can be written into."""
        raise self.unsupported("copying in the background", "override Backend.stage()")

    def iterate(self, source: Any) -> Iterator[Any]:
        """An iterator over a loader of this framework that raises what the loader's own code raised and never hangs;
        its `close()`, if it has one, ends its threads and processes. May be advanced in another thread."""
        return iter(source)
