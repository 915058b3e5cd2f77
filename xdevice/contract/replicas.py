"""Tensors on several devices of one process: splitting and joining them, copying them to each device, and adding them
up over all devices."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device


class Replicas(Primitives):
    """The capability of using several devices in one program. Among the methods below, only `split` and `join` let
    gradients flow.

    - The result of a reduction is identical, bit for bit, on all devices.
    - If a tensor can be written into, a reduction writes its result into that tensor; otherwise it creates a new
      tensor.
    """

    needs: ClassVar[tuple[str, ...]] = ("join", "leaf", "total")

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Returns parts of `x` with these sizes along the first axis, on the device of `x`. The parts may be views of
        `x`. Gradients flow."""
        # the index at which each part ends
        ends = list(accumulate(sizes))
        return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def join(self, parts: list[Any]) -> Any:
        """Joins the parts along their first axis, and returns the result in new storage. 0-d parts become a vector. The
        parts are on the same device, have the same dtype, and differ at most in the length of the first axis. Gradients
        flow."""
        raise self.unsupported("gather", "its adapter must override Backend.join()")

    def leaf(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on `device`, in new storage. No gradient flows from the copy to `x`. If tensors of this
        dtype can have gradients, gradients with respect to the copy can be computed. If the framework has a flag for
        this (`requires_grad`), the flag is set on the copy. The copy of a parameter is a parameter, and has the flag
        only if `x` has it."""
        raise self.unsupported("replicate", "its adapter must override Backend.leaf()")

    def can_write(self, x: Any) -> bool:
        """Whether `write` can write into this tensor."""
        return False

    def memory_of(self, x: Any) -> tuple[int, tuple[int, ...]] | None:
        """Returns the memory into which `write` writes: the address of the first element of a dense tensor, and its
        strides in bytes. Some frameworks allocate a tensor's memory only when they compute its values, and the address
        may change until then. In this case the method waits for the values of this tensor, but for nothing else.
        Returns None if two writable tensors can never share memory in this framework."""
        return None

    def write(self, x: Any, value: Any) -> None:
        """Writes values into the memory of `x`, which is a tensor, or a model that is itself one variable. `value` is a
        tensor of the same shape and dtype on the same device, and `x` never becomes an alias of `value`. The write is
        not recorded for gradients, and `x` keeps its flags (`requires_grad`)."""
        raise self.unsupported(
            "writing into a tensor", "use the new tensor instead of the old one"
        )

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """Returns the sum of one or more tensors on the same device, or the mean if `mean` is True, in new storage. The
        tensors are added in the given order, and nothing is recorded for gradients. 16-bit floats are added as float32,
        and the sum is rounded once. `tensors` can be iterated over only once."""
        raise self.unsupported("all_reduce", "its adapter must override Backend.total()")

    def all_reduce(self, tensors: list[Any], mean: bool) -> list[Any]:
        """Computes the sum of two or more dense tensors, or the mean if `mean` is True. Returns a list with one result
        for each tensor, on that tensor's device. All results are identical, bit for bit. The tensors differ only in
        device and values. If a tensor can be written into, its result is written into it; otherwise the result is a new
        tensor. The data does not go through the host if the devices can reach each other."""
        # the tensors are added up on the device of the first one
        place = self.device_of(tensors[0])
        # a generator, so that at most one moved tensor is in memory at a time
        total = self.total(
            (x if self.device_of(x) is place else self.move(x, place) for x in tensors), mean
        )
        return [self._holding(x, total) for x in tensors]

    def _holding(self, x: Any, value: Any) -> Any:
        """Writes `value` into `x`, and returns `x`. If `x` cannot be written into, returns a copy of `value` on the
        device of `x`."""
        device = self.device_of(x)
        if not self.can_write(x):
            return self.copy(value, device)
        self.write(x, value if self.device_of(value) is device else self.move(value, device))
        return x


def add_up(total: Any, rest: Iterable[Any], mean: bool) -> Any:
    """Returns the sum of tensors, or their mean if `mean` is True. This is the part of `Replicas.total` that is the
    same in all adapters. `total` is the first tensor, in its own storage and in the dtype of the sum. The tensors of
    `rest` are added to `total` in the given order, in place if the framework's tensors can be written into."""
    count = 1
    for x in rest:
        total += x
        count += 1
    if mean:
        total /= count
    return total
