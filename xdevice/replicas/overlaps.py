"""Finds tensors that share memory among those that will be written. Only addresses are compared, so it works for any
device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Block(NamedTuple):
    """The memory of a tensor: where its elements are. Each element has `width` bytes; strides are in bytes."""

    name: str
    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    width: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Lets NumPy treat the memory as an array, to compare addresses. The memory is not read."""
        return {
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.width}",
            "version": 3,
        }

    @property
    def first(self) -> int:
        return self.address + sum(step for step in self._steps() if step < 0)

    @property
    def last(self) -> int:
        return self.address + sum(step for step in self._steps() if step > 0) + self.width - 1

    def _steps(self) -> list[int]:
        return [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]


def first_overlap(blocks: Iterable[Block]) -> tuple[Block, Block] | None:
    """The first two of these blocks that share a byte; None if no two do."""
    row = sorted(blocks, key=lambda block: block.first)
    for i, one in enumerate(row):
        for other in row[i + 1 :]:
            if other.first > one.last:
                break
            if _overlap(one, other):
                return one, other
    return None


def _overlap(one: Block, other: Block) -> bool:
    """Whether two blocks share a byte. Two columns of a matrix do not, though their bytes alternate. True if NumPy
    would take too long to find out."""
    import numpy

    try:
        return numpy.shares_memory(one, other, max_work=100_000)
    except getattr(numpy, "exceptions", numpy).TooHardError:
        return True
