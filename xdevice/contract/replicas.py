"""Tensors on several devices: splitting, joining, copying to each, and reducing over all."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device


class Replicas(Primitives):
    """One program on several devices. Gradients flow through `split` and `join`, and through nothing else here.

    - What is reduced is bit for bit the same on each device.
    - Where tensors can be written, a result is in their memory; else it is a new tensor.
    """

    needs: ClassVar[tuple[str, ...]] = ("join", "leaf", "total")

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Parts of `x` of these sizes along its first axis, where `x` is; they may be views of it; gradients flow."""
        ends = list(accumulate(sizes))
        return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def join(self, parts: list[Any]) -> Any:
        """New storage for the parts along the first axis, numbers as a vector. They are on one device, of one dtype,
        and alike but for their length; gradients flow."""
        raise self.unsupported("gather", "override Backend.join()")

    def leaf(self, x: Any, device: Device) -> Any:
        """What one differentiates with respect to: a copy of `x` on `device`, in storage of its own, with no gradient
        link to `x`, requiring its gradient if it holds floats. A parameter is a parameter again, with its flags."""
        raise self.unsupported("replicate", "override Backend.leaf()")

    def can_write(self, x: Any) -> bool:
        """Whether `write` works for this tensor."""
        return False

    def memory_of(self, x: Any) -> tuple[int, tuple[int, ...]] | None:
        """Where `write` writes: address of the first element and strides in bytes of a dense tensor. Waits for the
        tensor, and for nothing else, where the framework makes its memory with its values: an address that is asked
        for before may not be the one. None where no two tensors can share memory that is written."""
        return None

    def write(self, x: Any, value: Any) -> None:
        """Puts values into the memory of a tensor, or of a model that is one variable: `value` is a tensor of the same
        shape and dtype on the same device, and never aliased. Not recorded for gradients; flags stay."""
        raise self.unsupported("tensors that can be written", "use the new tensor instead of the old one")

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """The sum or mean of tensors of one device, in new storage, added in their order; not recorded for gradients.
        16-bit floats are added as float32, and rounded once. `tensors` is one or more, and can be walked only once."""
        raise self.unsupported("all_reduce", "override Backend.total()")

    def all_reduce(self, tensors: list[Any], mean: bool) -> list[Any]:
        """Gives each of two or more dense tensors, alike but for their devices, the sum or mean of all, bit for bit the
        same: in place where it can be written, else as a new one. Never through the host if devices reach each other.
        """
        first = self.device_of(tensors[0])
        total = self.total((x if self.device_of(x) is first else self.move(x, first) for x in tensors), mean)
        return [self._given(x, total) for x in tensors]

    def _given(self, x: Any, value: Any) -> Any:
        """`x` with these values, or a new tensor of them where `x` is."""
        device = self.device_of(x)
        if not self.can_write(x):
            return self.copy(value, device)
        self.write(x, value if self.device_of(value) is device else self.move(value, device))
        return x


def add_up(total: Any, rest: Iterable[Any], mean: bool) -> Any:
    """The loop of `total`, the same in every framework: `total`, in storage of its own and in the dtype to add in, with
    the rest added in their order; divided by their number for the mean. In place where tensors can be written."""
    count = 1
    for x in rest:
        total += x
        count += 1
    if mean:
        total /= count
    return total
