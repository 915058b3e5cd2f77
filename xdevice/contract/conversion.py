"""Sharing memory with tensors of another framework, and with arrays. `dlpack` beside it reads and relabels capsules."""

from __future__ import annotations

from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from xdevice.base import devices

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    import numpy as np

    from xdevice.base.devices import Device

    from .dlpack import Lent


ALIGNMENT: Final = 64
"""Memory that others are to take over begins at a multiple of so many bytes: on any other memory TensorFlow's first
operation crashes the process, and JAX makes a copy."""


class Takes(NamedTuple):
    """What memory of another framework a framework can work in: in any other it gives wrong values or crashes."""

    alignment: int = 1
    """Its first byte is at a multiple of this many bytes."""
    strides: Literal["any", "forward", "compact"] = "any"
    """"forward": none is negative. "compact": those of C order."""
    labels: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """The dtypes that it labels differently from DLPack: its code and bits, by name."""


def aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """New memory of so many bytes that begins at a multiple of `ALIGNMENT`; NumPy's own does so only by chance."""
    import numpy

    memory = numpy.empty(nbytes + ALIGNMENT, "uint8")
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


class Conversion(Primitives):
    """Lending the memory of a tensor, and taking memory over. Without it tensors are copied through the host.

    - A capsule keeps the memory alive that it describes, and describes values that are there.
    - What is adopted is the memory itself: what one framework writes, the other one reads.
    - Arrays of NumPy's go in by `from_buffer` and come out by `to_numpy` and `peek`; without the capability, as copies.
    """

    needs: ClassVar[tuple[str, ...]] = ("export", "takes", "adopt")

    def takes(self) -> Takes | None:
        """What memory `adopt` can take over; None if it cannot take over any."""
        return None

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of a device in place: the host's, and that of a real GPU."""
        return device is devices.CPU or (device.kind == "gpu" and not self.virtual)

    def detached(self, x: Any) -> Any:
        """`x` in the same memory without its gradient; `x` itself if it asks for none. Raises `UnsupportedError` for
        what is not a dense tensor."""
        return x

    def finish(self, x: Any) -> None:
        """Waits for work on the memory of `x` that another framework could not know of, and raises its error."""
        self.wait(x)

    def lending(self, x: Any) -> AbstractContextManager[Any]:
        """A block that is open while another framework takes over the memory of `x`."""
        return nullcontext()

    def memory_layout(self, x: Any) -> tuple[int, bool, bool] | None:
        """The address of a detached tensor, whether it is in C order, and whether no stride is negative, if the
        framework tells these faster than a capsule does. With None the core exports a capsule and reads that."""
        return None

    def export(self, x: Any) -> Any:
        """An unversioned DLPack capsule of a detached tensor that keeps its memory alive. Raises `BufferError` where
        the capsule would not describe the values, or the memory must not be given away."""
        raise self.unsupported("sharing its memory", "its tensors are copied through the host")

    def compact(self, x: Any) -> Any:
        """A copy of a detached tensor on its device that any framework can take over: in C order, at a multiple
        of `ALIGNMENT`. Asked of NumPy's adapter for everything on cpu:0."""
        return self.copy(x, self.device_of(x))

    def adopt(self, lent: Lent, dtype: str) -> Any:
        """A tensor in the memory of another framework, which `takes` allows: `lent.capsule` is consumed, or `lent` as
        an array of DLPack's protocol."""
        raise self.unsupported("taking memory over", "tensors are copied to it through the host")

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor on cpu:0 of an array's dtype and values that takes its memory over where the framework can. The
        array is not empty, C-contiguous, begins at a multiple of `ALIGNMENT`, and is used by nobody else."""
        return self.from_numpy(array, devices.CPU)

    def gives_away(self, x: Any) -> bool:
        """Whether `to_numpy` of this tensor gives memory that neither the framework nor anybody else keeps. Otherwise
        the core copies it before a user may write into it; read-only memory it always copies."""
        return False

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        """The values on the host for a caller that reads them at once and keeps nothing: `to_numpy` without the copy
        that the framework makes of memory that NumPy could read."""
        return self.to_numpy(x)

    def dtype_refusal(self, dtype: str) -> str | None:
        """Why one of the `dtypes` would be narrowed as the framework is set up now, and what to do about it; None if it
        would not."""
        return None
