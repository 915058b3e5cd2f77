"""Copying batches to a device in the background, while the device computes with earlier batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device


class Prefetch(Primitives):
    """The capability to copy batches to a device while the device computes, and to iterate over the framework's
    loaders."""

    needs: ClassVar[tuple[str, ...]] = ("stage",)

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy a tensor or a NumPy array to a device, and returns the new tensor. The copy is part of the
        work in this thread's current stream, and goes through pinned memory if the framework supports this. When the
        method returns, `x` has been read, so the owner of `x` may write into it. The new tensor shares no memory that
        others can write into, donate or delete."""
        raise self.unsupported(
            "copying in the background", "its adapter must override Backend.stage()"
        )

    def iterate(self, source: Any) -> Iterator[Any]:
        """Returns an iterator over `source`, a loader of this framework. The iterator raises
        the errors of the user's code in the loader, never hangs, and may be advanced in another
        thread. Its method `close`, if it has one, ends the loader's threads and processes."""
        return iter(source)
