"""`batches`: what is trained on, a few rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.errors import ArgumentError, shown
from xdevice.math import random
from xdevice.replicas.operands import length_of, rebuilt, tensors_in
from xdevice.tensors.creation import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from xdevice.replicas.operands import Operand


def batches(arrays: Any, size: int, *, shuffle: bool = False, drop_last: bool = False) -> Iterator[Any]:
    """Yields parts of `size` rows, in order or shuffled: `for x, y in xdevice.math.batches((x, y), 32):`.

    Young: it may change in a minor version.

    Args:
        arrays: a tensor, or a container of tensors that are all as long along the first axis. Each batch is a container
            of the same type; what is no tensor is in every batch.
        size: 1 or more. The last batch may be shorter.
        shuffle: in the order of `xdevice.random.permutation`, drawn at this call: seeded, the same on every backend.
        drop_last: leave out a last batch that is shorter.

    Raises, at the call:
        ArgumentError: a size that is no int of 1 or more. ShapeError: a tensor without a first axis, or of another
            length than the others. NotATensorError: no tensor, or a model.
        UnsupportedError: a sparse tensor; shuffling inside a function that is traced.

    Costs a copy of the rows; without `shuffle` a view of them on PyTorch, Paddle, MXNet and NumPy, elsewhere a copy of
    `arrays` at the first batch. `xdevice.prefetch` takes it.

    Example:
        >>> [tuple(x.shape) for x in xdevice.math.batches(xdevice.ones(5, 2), 2)]
        [(2, 2), (2, 2), (1, 2)]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"batches takes a size of 1 or more, not {shown(size)} of type {type(size).__qualname__}")
    operands = tensors_in(arrays, "arrays", "split into batches")
    length = length_of(operands)
    # drawn at the call: a generator would draw when it is first asked
    order = to_numpy(random.permutation(length, "cpu", "int32")) if shuffle else None
    sizes = [min(size, length - start) for start in range(0, length, size)]
    if drop_last and sizes and sizes[-1] < size:
        del sizes[-1]
    return _batches(arrays, operands, length, sizes, order)


def _batches(
    arrays: Any, operands: list[Operand], length: int, sizes: list[int], order: np.ndarray[Any, Any] | None
) -> Iterator[Any]:
    if not sizes:
        return
    if order is None:
        # `split` takes lengths that add up to the whole
        rest = length - sum(sizes)
        parts = [operand.backend.split(operand.value, [*sizes, *[rest] * bool(rest)]) for operand in operands]
        for i in range(len(sizes)):
            yield rebuilt(arrays, operands, [part[i] for part in parts])
        return
    start = 0
    for size in sizes:
        rows = order[start : start + size]
        yield rebuilt(arrays, operands, [_taken(operand, rows) for operand in operands])
        start += size


def _taken(operand: Operand, rows: np.ndarray[Any, Any]) -> Any:
    kernels = operand.backend.namespace()
    return kernels.take(operand.value, kernels.constant(rows, operand.value), 0)
