"""`batches`: splits training data into batches of a few rows."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from xdevice.containers import trees
from xdevice.errors import ArgumentError, shown
from xdevice.math import random
from xdevice.replicas.operands import length_of, rebuilt, tensors_in
from xdevice.tensors.creation import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from xdevice.replicas.operands import Operand


def batches(
    arrays: Any, size: int, *, shuffle: bool = False, drop_last: bool = False
) -> Batches:
    """Returns an iterable of batches of `size` rows, in order or shuffled: `for x, y in xdevice.math.batches((x, y),
    32):`. Each loop over the result begins again at the first batch. Experimental: it may change in a minor version.

    Args:
        arrays: a tensor, or a container of tensors of equal length along the first axis. Each batch is a container of
            the same type, with some rows of each tensor, and with all other values unchanged. Changes that are made to
            the container after this call have no effect.
        size: the number of rows of each batch, at least 1. The last batch may be shorter.
        shuffle: whether to return the rows in a random order, which is drawn with `xdevice.random.permutation`. The
            order for the first loop is drawn at this call, and each later loop draws a new order. With a seed, the
            order is the same on every backend.
        drop_last: whether to leave out a last batch that is shorter than `size`.

    Raises the following errors at the call, before the first batch:
        ArgumentError: `size` is not a positive int. ShapeError: a tensor has no axes, or the lengths differ.
        NotATensorError: `arrays` contains no tensor, or contains a model. UnsupportedError: a tensor is sparse; or
            `shuffle` is True while a function is traced.

    With `shuffle`, each batch is a copy of its rows. Without `shuffle`, each batch is a view on PyTorch, Paddle,
    MXNet and NumPy. On other backends, all of `arrays` is copied when the first batch is produced. `xdevice.prefetch`
    accepts the result.

    Example:
        >>> [tuple(x.shape) for x in xdevice.math.batches(xdevice.ones(5, 2), 2)]
        [(2, 2), (2, 2), (1, 2)]
    """
    # NumPy's ints are `Integral`, too
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise ArgumentError(
            f"batches: size must be a positive int, not {shown(size)} of type {type(size).__qualname__}"
        )
    size = int(size)
    operands = tensors_in(arrays, "arrays", "split into batches")
    length = length_of(operands)
    # the number of rows of each batch
    sizes = [min(size, length - start) for start in range(0, length, size)]
    if drop_last and sizes and sizes[-1] < size:
        del sizes[-1]
    # rebuilt with new containers, because the program may later put other tensors into
    # `arrays`, and those would not be split
    tree = trees.Tree(arrays)
    arrays = trees.rebuild(tree.walk, tree.leaves, touched=set(map(id, tree.leaves)))
    return Batches(arrays, operands, length, sizes, shuffle)


class Batches:
    """The result of `batches`, an iterable. `len()` returns the number of batches, and each loop begins at the first
    batch."""

    def __init__(
        self, arrays: Any, operands: list[Operand], length: int, sizes: list[int], shuffle: bool
    ) -> None:
        self._arrays = arrays
        self._operands = operands
        self._length = length
        self._sizes = sizes
        self._shuffle = shuffle
        # drawn at the call, because a loop may run in another thread, or after the block `with
        # seed(n):` has ended
        self._order = self._draw() if shuffle else None

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Any]:
        if not self._shuffle:
            return self._in_order()
        # the first loop uses the order drawn at the call, and each further loop draws a new one
        order, self._order = self._order, None
        return self._shuffled(self._draw() if order is None else order)

    def _draw(self) -> np.ndarray[Any, Any]:
        """Returns the indices of all rows in a new random order."""
        order: np.ndarray[Any, Any] = to_numpy(
            random.permutation(self._length, device="cpu", dtype="int32")
        )
        return order

    def _in_order(self) -> Iterator[Any]:
        """Yields the batches in the original order. All tensors are split before the first batch is yielded."""
        if not self._sizes:
            return
        lengths = list(self._sizes)
        # `split` requires lengths that add up to the number of all rows, so the rows that
        # `drop_last` leaves out are split off too
        dropped = self._length - sum(self._sizes)
        if dropped:
            lengths.append(dropped)
        split = [operand.backend.split(operand.value, lengths) for operand in self._operands]
        for i in range(len(self._sizes)):
            yield rebuilt(self._arrays, self._operands, [tensors[i] for tensors in split])

    def _shuffled(self, order: np.ndarray[Any, Any]) -> Iterator[Any]:
        """Yields the batches, with the rows in the order of the indices `order`. Each batch is copied when the loop
        reaches it."""
        start = 0
        for size in self._sizes:
            rows = order[start : start + size]
            yield rebuilt(
                self._arrays,
                self._operands,
                [_rows_at(operand, rows) for operand in self._operands],
            )
            start += size


def _rows_at(operand: Operand, rows: np.ndarray[Any, Any]) -> Any:
    """Returns a new tensor on the operand's device, which contains the operand's rows at the indices `rows`."""
    kernels = operand.backend.namespace()
    return kernels.take(operand.value, kernels.constant(rows, operand.value), 0)
