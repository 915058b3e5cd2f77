"""The part of the contract by which a framework shares memory with tensors of other frameworks and with NumPy arrays.
The module `dlpack` next to this one reads and corrects the DLPack capsules that describe such memory."""

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
"""Memory that is meant for other frameworks begins at a multiple of this number of bytes. With any other memory,
TensorFlow's first operation crashes the process, and JAX makes a copy."""

# arrays with fewer than `_LARGE` elements are copied at once, larger arrays in strips of `_STRIP`
# columns
_LARGE: Final = 1 << 20
_STRIP: Final = 16


class Takes(NamedTuple):
    """Describes the memory of other frameworks in which this framework can compute. With any other memory, the
    framework computes wrong values or crashes. `Conversion.takes` returns a `Takes`."""

    alignment: int = 1
    """The memory must begin at a multiple of this number of bytes."""
    strides: Literal["any", "forward", "compact"] = "any"
    """The strides that are allowed. "any": all strides; "forward": no negative strides; "compact": only the strides of
    C order."""
    labels: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """Maps the name of each dtype that the framework labels differently from DLPack to the framework's own code and
    number of bits."""


def aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """Returns an array of `nbytes` new bytes whose memory begins at a multiple of `ALIGNMENT`.
    Memory that NumPy allocates begins at such a multiple only by chance."""
    import numpy

    memory = numpy.empty(nbytes + ALIGNMENT, "uint8")
    # the distance from the first byte to the next multiple
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def copy_in_c_order(
    array: np.ndarray[Any, Any], room: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Returns a copy of an array in C order. The copy is in the memory of `room`, an array of at least as many bytes;
    if `room` is None, the copy is in new memory from `aligned`."""
    buffer = aligned(array.nbytes) if room is None else room[: array.nbytes]
    copy: np.ndarray[Any, Any] = buffer.view(array.dtype).reshape(array.shape)
    if array.size < _LARGE or array.flags.c_contiguous:
        copy[...] = array
        return copy
    # NumPy takes 25 times as long to transpose a matrix of 64 MB as to copy it, but only 8 times as
    # long in strips of columns
    for first in range(0, array.shape[-1], _STRIP):
        copy[..., first : first + _STRIP] = array[..., first : first + _STRIP]
    return copy


class Conversion(Primitives):
    """The capability of sharing memory: lending the memory of a tensor to another framework, and creating a tensor in
    memory that another framework lends. If an adapter lacks this capability, its tensors are copied through the host.

    - The capsule that `export` returns describes the memory that contains the tensor's values, and keeps this memory
      alive.
    - The tensor that `adopt` returns uses the lent memory itself: each framework reads the values that the other one
      writes.
    - `from_buffer` turns NumPy arrays into tensors, and `to_numpy` and `peek` turn tensors into arrays. Without this
      capability, these methods copy the values.
    """

    needs: ClassVar[tuple[str, ...]] = ("export", "takes", "adopt")

    def takes(self) -> Takes | None:
        """Returns a description of the memory in which `adopt` can create tensors; None if `adopt` cannot use another
        framework's memory at all."""
        return None

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of this device in place. By default, they can use the memory of
        the host and of real GPUs, but not of virtual GPUs."""
        return device is devices.CPU or (device.kind == "gpu" and not self.virtual)

    def detached(self, x: Any) -> Any:
        """Returns a tensor in the same memory as `x` that is not part of a gradient computation, or `x` itself if `x`
        requires no gradient. Raises `UnsupportedError` if `x` is not a dense tensor."""
        return x

    def finish(self, x: Any) -> None:
        """Waits until all work on the memory of `x` is done, because another framework would not wait for this work. If
        the work has failed, raises its error."""
        self.wait(x)

    def lending(self, x: Any) -> AbstractContextManager[Any]:
        """Returns a context manager that the core enters while it exports the memory of `x` and
        another framework adopts it. In PyTorch, the context manager makes the GPU of `x` the current one."""
        return nullcontext()

    def memory_layout(self, x: Any) -> tuple[int, bool, bool] | None:
        """Returns the address of a detached tensor, whether the tensor is in C order, and whether none of its strides
        is negative. Returns None if the framework has no fast way to determine these facts; the core then reads them
        from a DLPack capsule."""
        return None

    def export(self, x: Any) -> Any:
        """Returns an unversioned DLPack capsule for a detached tensor. The capsule keeps the tensor's memory alive.
        Raises `BufferError` if a capsule cannot describe the values, or if the memory must not be shared."""
        raise self.unsupported("sharing its memory", "its tensors are copied through the host")

    def compact(self, x: Any) -> Any:
        """Returns a copy of a detached tensor, on the same device, that any framework can adopt: in C order, and
        beginning at a multiple of `ALIGNMENT`. For tensors on cpu:0, whatever their framework, the core calls only the
        NumPy adapter's method."""
        return self.copy(x, self.device_of(x))

    def adopt(self, lent: Lent, dtype: str) -> Any:
        """Returns a tensor of `dtype` in the memory that `lent` describes. This memory meets the conditions that
        `takes` returned. The method must consume either `lent.capsule` or `lent` itself. The framework's `from_dlpack`
        accepts `lent` as it accepts an array."""
        raise self.unsupported(
            "using the memory of other frameworks", "tensors are copied to it through the host"
        )

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns a tensor on cpu:0 with the dtype and values of an array, in the array's own memory if the framework
        supports that. The array is not empty, is C-contiguous, begins at a multiple of `ALIGNMENT`, and is not used by
        anything else."""
        return self.from_numpy(array, devices.CPU)

    def gives_away(self, x: Any) -> bool:
        """Whether nothing else, neither the framework nor another array, uses the memory of the array that
        `to_numpy(x)` returns. If the result is False, or the array is read-only, the core copies the array before a
        user may write into it."""
        return False

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of `x` on the host, for a caller that reads the values at once and does not keep the
        array. Override this method if `to_numpy` makes a copy although NumPy could read the tensor's own memory."""
        return self.to_numpy(x)

    def dtype_refusal(self, dtype: str) -> str | None:
        """Returns the reason why the framework, with its current settings, would replace `dtype` by a narrower dtype.
        The text includes advice on what to do. Returns None if the framework would not replace `dtype`. `dtype` is one
        of the adapter's `dtypes`. JAX, for example, has 64-bit dtypes only if jax_enable_x64 is set."""
        return None
