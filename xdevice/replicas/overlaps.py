"""Finds tensors that share memory. Only addresses are compared, so this works for the memory of every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Block(NamedTuple):
    """The memory of a tensor: the address of its first element, its strides in bytes, its shape, and the `width` of an
    element in bytes. Errors refer to the tensor as `name`."""

    name: str
    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    width: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Lets NumPy treat the memory as an array, to compare addresses. The memory is not read."""
        return {
            # True: read-only
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
            # elements without a type, of this many bytes
            "typestr": f"|V{self.width}",
            "version": 3,
        }

    @property
    def first(self) -> int:
        """The address of the lowest byte."""
        # a negative stride leads to lower addresses
        return self.address + sum(step for step in self._steps() if step < 0)

    @property
    def last(self) -> int:
        """The address of the highest byte."""
        return self.address + sum(step for step in self._steps() if step > 0) + self.width - 1

    def _steps(self) -> list[int]:
        """Returns the distance in bytes between the first and the last element along each axis."""
        return [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]


def first_overlap(blocks: Iterable[Block]) -> tuple[Block, Block] | None:
    """Returns two blocks that share a byte; None if no two blocks do."""
    # the blocks are sorted by their lowest bytes, so that each one is compared only with blocks that begin before it
    # ends
    sorted_blocks = sorted(blocks, key=lambda block: block.first)
    for i, block in enumerate(sorted_blocks):
        for other in sorted_blocks[i + 1 :]:
            if other.first > block.last:
                break
            if _overlap(block, other):
                return block, other
    return None


def _overlap(first: Block, second: Block) -> bool:
    """Whether the blocks `first` and `second` share a byte. Two columns of a matrix share no byte, although their bytes
    alternate. Also True if NumPy would take too long to decide."""
    import numpy

    try:
        return numpy.shares_memory(first, second, max_work=100_000)
    # the module `numpy.exceptions` is new in NumPy 1.25
    except getattr(numpy, "exceptions", numpy).TooHardError:
        return True
