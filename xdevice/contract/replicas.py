"""Tensors on several devices of one process: how they are split and joined, copied to each
device, and summed over all devices."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device


class Replicas(Primitives):
    """The capability of using several devices in one program. Gradients flow through `split` and `join`, and through no
    other method here.

    - The result of a reduction is bit for bit the same on each device.
    - If tensors can be written into, a reduction writes its result into them; otherwise it makes new tensors.
    """

    needs: ClassVar[tuple[str, ...]] = ("join", "leaf", "total")

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Returns parts of `x` with these sizes along its first axis, on the device of `x`; they may be views of `x`.
        Gradients flow."""
        # the index after each part
        ends = list(accumulate(sizes))
        return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def join(self, parts: list[Any]) -> Any:
        """Returns the parts joined along their first axis, in new storage; parts without axes
        become a vector. The parts are on one device, have one dtype, and differ at most in the
        length of that axis. Gradients flow."""
        raise self.unsupported("gather", "its adapter must override Backend.join()")

    def leaf(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on `device`, in new storage. No gradient flows from the copy to `x`. If the dtype has
        gradients, they can be taken with respect to the copy, and on frameworks that mark such tensors, the copy is
        marked (`requires_grad`). The copy of a parameter is a parameter, and is marked only if `x` is."""
        raise self.unsupported("replicate", "its adapter must override Backend.leaf()")

    def can_write(self, x: Any) -> bool:
        """Whether `write` can write into this tensor."""
        return False

    def memory_of(self, x: Any) -> tuple[int, tuple[int, ...]] | None:
        """Returns the memory into which `write` writes: the address of the first element of a
        dense tensor, and its strides in bytes. If the framework allocates a tensor's memory
        only when it computes the values, the method waits for this tensor, and for nothing
        else, because the address may change until then. Returns None if in this framework no
        two writable tensors can share memory."""
        return None

    def write(self, x: Any, value: Any) -> None:
        """Writes values into the memory of `x`, which is a tensor or a model that is one
        variable. `value` is a tensor of the same shape and dtype on the same device, and `x`
        never becomes an alias of it. The write is not recorded for gradients, and `x` keeps its
        flags (`requires_grad`)."""
        raise self.unsupported(
            "writing into a tensor", "use the new tensor instead of the old one"
        )

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """Returns the sum of one or more tensors on one device, or their mean if `mean` is True, in new storage. The
        tensors are added in the order given, and nothing is recorded for gradients. 16-bit floats are added as
        float32, and rounded once. `tensors` can be iterated over only once."""
        raise self.unsupported("all_reduce", "its adapter must override Backend.total()")

    def all_reduce(self, tensors: list[Any], mean: bool) -> list[Any]:
        """Returns the sum of two or more dense tensors, or their mean if `mean` is True, as a list with one result for
        each tensor, on that tensor's device. All results are the same bit for bit. The tensors differ only in device
        and values. If a tensor can be written into, the result is written into it; otherwise it is a new tensor. The
        data does not go through the host if the devices can reach each other."""
        first = self.device_of(tensors[0])
        # a generator, so that only one moved tensor is in memory at a time
        total = self.total(
            (x if self.device_of(x) is first else self.move(x, first) for x in tensors), mean
        )
        return [self._holding(x, total) for x in tensors]

    def _holding(self, x: Any, value: Any) -> Any:
        """Returns `x` with `value` written into it; if `x` cannot be written into, returns a
        copy of `value` on the device of `x`."""
        device = self.device_of(x)
        if not self.can_write(x):
            return self.copy(value, device)
        self.write(x, value if self.device_of(value) is device else self.move(value, device))
        return x


def add_up(total: Any, rest: Iterable[Any], mean: bool) -> Any:
    """Returns the sum of tensors, or their mean: the part of `Replicas.total` that is the same
    in all adapters. `total` is the first tensor, in storage of its own and in the dtype of the
    sum. The tensors of `rest` are added to it in the order given, in place if the framework's
    tensors can be written into."""
    count = 1
    for x in rest:
        total += x
        count += 1
    if mean:
        total /= count
    return total
