"""Passes tensors through an engine: converts them to the engine's framework and back. Also implements the operations
that engines lack: means, weighted means, and sums of 16-bit floats that are rounded only once.

If a tensor can be written in place, the result is written to it. No copy is needed if the engine's framework can use
the tensor's memory. Otherwise a new tensor is created. No function of this module votes, because the ranks have already
voted on the call.
"""

from __future__ import annotations

import sys
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base.dtypes import FLOATS, SHORT_FLOATS
from xdevice.errors import (
    ArgumentError,
    DeviceMismatchError,
    DTypeError,
    SharingError,
    UnsupportedError,
    shown,
)
from xdevice.math.arithmetic.namespace import array_namespace
from xdevice.replicas.operands import (
    dtype_of,
    nbytes_of,
    read,
    refuse_sparse,
    refuse_symbol,
    require_summable,
    shape_of,
)
from xdevice.tensors.conversion import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.distributed.contract.processes import Engine
    from xdevice.replicas.operands import Operand

OPS: Final = ("sum", "mean", "max", "min")
"""The names of the reductions."""
_MAX_WEIGHT: Final = sys.float_info.max
"""The largest allowed weight: the largest finite float."""
BUCKET_BYTES: Final = 25 * 2**20
"""The maximum size of a bucket, in bytes. A larger gradient has a bucket of its own. PyTorch's
DDP uses the same size."""
FIRST_BUCKET_BYTES: Final = 2**20
"""The maximum size of the first bucket of each kind (backend, dtype and device), in bytes. The
first bucket is small so that it is sent early."""
_SMALL_BYTES: Final = 2**16
"""The maximum size, in bytes, of a tensor that is sent together with other tensors in one call
of `all_reduce` or `broadcast`."""
_PACKABLE: Final = (*FLOATS, "int32", "int64")
"""The dtypes of the tensors that the backend of every engine can join into one vector."""
_SUMMED_AS: Final = {"float16": "float32", "bfloat16": "float32"}
"""Maps each 16-bit float dtype to the dtype in which its values are summed."""


def require_reducible(operand: Operand, op: str) -> None:
    """Raises `DTypeError` if tensors with the dtype of `operand` cannot be reduced by `op`, which is one of `OPS`."""
    dtype = dtype_of(operand)
    # unlike a sum, a maximum needs an order, which complex numbers do not have
    if op in ("max", "min"):
        if dtype.startswith("complex"):
            raise DTypeError(
                f"{operand.name} has dtype {dtype}, which {op} does not support: complex numbers have no order"
            )
        if dtype in SHORT_FLOATS:
            raise DTypeError(
                f"{operand.name} has dtype {dtype}, which {op} does not support; cast the tensor to float16 first"
            )
        return
    require_summable(operand, op)


def require_sendable_dtype(operand: Operand, op: str | None) -> None:
    """Raises `DTypeError` if tensors with the dtype of `operand` cannot be reduced by `op`. If `op` is None, raises
    `DTypeError` if no engine can send tensors with this dtype.
    """
    if op is not None:
        require_reducible(operand, op)
    elif (dtype := dtype_of(operand)) in SHORT_FLOATS:
        raise DTypeError(
            f"{operand.name} has dtype {dtype}, which no engine supports; cast to float16, or send the bytes as uint8"
        )


def require_sendable(operand: Operand, verb: str, own_device: Callable[[], Device]) -> None:
    """Raises an error if no engine can accept this tensor: if it is symbolic or sparse, or if
    it is on a GPU other than `own_device()`, the device of this process. `verb` is the name of
    the collective, for the error."""
    if operand.kind != "model":
        refuse_symbol(operand)
        refuse_sparse(operand, verb)
    x = read(operand)
    # raises an error inside `torch.func.grad`, where other objects replace the tensors
    operand.backend.detached(x)
    tensor_device = operand.backend.device_of(x)
    # `own_device` is not called for a tensor on the CPU, because the call may import a
    # framework that the program has not imported
    if tensor_device.kind != "cpu" and tensor_device is not (device := own_device()):
        raise DeviceMismatchError(
            f"{operand.name} is on {tensor_device}, but this process works on {device} (world.device); move the tensor "
            "there"
        )


class Bucket(NamedTuple):
    """A group of gradients that are sent together, in one vector."""

    dtype: str
    indices: list[int]
    """The indices of these gradients in the list of all gradients."""


def buckets_of(operands: list[Operand], indices: Sequence[int]) -> list[Bucket]:
    """Assigns operands to buckets, and returns the buckets. `indices` contains the indices of the operands to assign.
    All operands of a bucket have the same dtype, backend and device, and the buckets are the same on all ranks. The
    last operands come first, because a backward pass computes their gradients first.
    """
    buckets: list[Bucket] = []
    # gradients of several kinds (backend, dtype and device) may alternate, so each kind has a bucket that is being
    # filled: maps the kind to this bucket, its size, and its maximum size
    filling: dict[tuple[Any, ...], tuple[Bucket, int, int]] = {}
    for i in reversed(indices):
        operand = operands[i]
        dtype = dtype_of(operand)
        kind = operand.backend.name, dtype, operand.backend.device_of(read(operand))
        size = nbytes_of(operand)
        # an empty bucket means that the kind has no bucket yet
        bucket, used, limit = filling.get(kind, (Bucket(dtype, []), 0, FIRST_BUCKET_BYTES))
        if not bucket.indices or used + size > limit:
            # only the first bucket of a kind is small; later ones have the full size
            limit = BUCKET_BYTES if bucket.indices else limit
            bucket, used = Bucket(dtype, []), 0
            buckets.append(bucket)
        bucket.indices.append(i)
        filling[kind] = bucket, used + size, limit
    return buckets


def _is_small(operand: Operand) -> bool:
    """Whether a tensor is sent together with other tensors, in one vector."""
    return dtype_of(operand) in _PACKABLE and 0 < nbytes_of(operand) <= _SMALL_BYTES


def _is_empty(operand: Operand) -> bool:
    """Whether a tensor has no elements. Such a tensor is not passed to any engine, because
    several engines crash or hang on it."""
    return 0 in shape_of(operand)


def _cast(y: Any, dtype: str) -> Any:
    """Returns `y`, a tensor of any framework, cast to `dtype`."""
    return array_namespace(y).astype(y, dtype)


def _reshaped(y: Any, shape: tuple[int, ...]) -> Any:
    """Returns `y`, a tensor of any framework, reshaped to `shape`."""
    return array_namespace(y).reshape(y, shape)


class Weight(NamedTuple):
    """The weight of this rank's tensors in a mean (`own`), and the sum of the weights of all ranks (`total`)."""

    own: float
    total: float


def weight_of(value: Any) -> float:
    """Returns the argument `weight` of a collective as a float. Raises `ArgumentError` if it is
    not a finite, non-negative number."""
    # the comparison with the largest float excludes infinity, and also NaN, for which every
    # comparison is False
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= _MAX_WEIGHT:  # type: ignore[operator]
        raise ArgumentError(
            f"weight must be a finite, non-negative number, such as the number of samples, not {shown(value)}"
        )
    return float(value)


class Carrier:
    """Runs collectives on tensors of any backend. A carrier consists of an engine and a backend; the engine accepts the
    tensors of this backend. A `Session` creates the carrier.

    Args:
        backend: the backend of the engine's framework.
        engine: the engine.
        size: the number of ranks.
        device: the device of this process.
        run_copy: calls a function that copies a tensor, possibly in another thread, and returns the function's result.
    """

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        size: int,
        device: Device,
        run_copy: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.backend = backend
        self.engine = engine
        self.size = size
        self.device = device
        self._run_copy = run_copy
        self._admitted: set[tuple[str, Any, str, str | None]] = set()
        """The keys, computed in `require_supported_dtype`, of the calls that have passed the check."""

    def require_supported_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Raises `DTypeError` or `UnsupportedError` if the engine's method `verb` does not
        support this tensor's dtype. `op` is the name of the reduction, or None if the method
        does not reduce."""
        # the result depends only on these four values, and each training step needs the same few results
        key = operand.backend.name, read(operand).dtype, verb, op
        if key not in self._admitted:
            self._require_supported_dtype(operand, verb, op)
            self._admitted.add(key)

    def _require_supported_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Checks a tensor for `require_supported_dtype`. Raises `DTypeError` if no engine supports the
        tensor's dtype for `op`, or if the framework of this engine lacks the dtype. Raises
        `UnsupportedError` if only the engine itself refuses the dtype."""
        require_sendable_dtype(operand, op)
        dtype, target = dtype_of(operand), self.backend
        reason = (
            target.dtype_refusal(dtype)
            if dtype in target.dtypes
            else f"{target.name} has no such dtype"
        )
        if reason is not None:
            raise DTypeError(
                f"{operand.name} has dtype {dtype}, which the engine {self.engine.name} does not support: {reason}; "
                "choose another engine with xdevice.distributed.processes(engine=...), or another dtype"
            )
        # a reduction casts 16-bit floats first; other methods send the bits as they are
        sent_as = _SUMMED_AS.get(dtype, dtype) if op else dtype
        why = self.engine.refusal(verb, "sum" if op == "mean" else op, sent_as)
        if why is not None:
            raise UnsupportedError(
                f"the engine {self.engine.name} does not support {verb}{f' by {op}' if op else ''} of {dtype}, the "
                f"dtype of {operand.name}: {why}; choose another engine with "
                "xdevice.distributed.processes(engine=...), or another dtype"
            )

    # the collectives, on one or several operands

    def run_one_by_one_or_packed(
        self,
        operands: list[Operand],
        run_one: Callable[[Operand], Any],
        run_packed: Callable[[Any, str], Any],
    ) -> dict[int, Any]:
        """Runs a collective on several operands, and returns a dict that maps the `id` of each
        operand's value to the result.

        `run_one` is called with an operand, and returns its result. If there are several small operands, `run_packed`
        is called with two arguments: a vector that contains the elements of several operands, and the dtype of the
        vector. `run_packed` returns the vector of the results. This saves time because a call of an engine takes 0.2 to
        2 ms even for a very small tensor.
        """
        small = [i for i, operand in enumerate(operands) if _is_small(operand)]
        results = {}
        # packing a single small tensor would save no time
        for bucket in buckets_of(operands, small) if len(small) > 1 else ():
            bucketed = [operands[i] for i in bucket.indices]
            vector = run_packed(self.pack(bucketed), bucket.dtype)
            results.update(self.write_back_all(bucketed, vector))
        for operand in operands:
            if id(operand.value) not in results:
                results[id(operand.value)] = run_one(operand)
        return results

    def all_reduce(self, operand: Operand, op: str, weight: Weight | None) -> Any:
        """Returns the sum, mean, max or min (`op`) of an operand over the ranks. The result is written to the caller's
        tensor, which is returned; if that tensor cannot be written, a new tensor is returned. `weight` is used for a
        mean; None means that all ranks have equal weights."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        total = self.reduce(y, dtype_of(operand), op, weight, verb="all_reduce")
        return self._store_result(operand, y, is_shared, total)

    def reduce_scatter(self, operand: Operand, op: str) -> Any:
        """Reduces an operand over the ranks, and returns this rank's part of the result along
        the first axis, as a new tensor."""
        y, is_shared = self._as_writable(operand)
        if _is_empty(operand):
            lengths = [shape_of(operand)[0] // self.size] * self.size
            return self._to_framework(self.backend.split(y, lengths)[0], operand.backend)
        # the engine may write to `y`, but this collective must not change the caller's tensor
        if is_shared:
            y = self.backend.copy(y, self.backend.device_of(y))
        part = self.reduce(y, dtype_of(operand), op, weight=None, verb="reduce_scatter")
        return self._to_framework(part, operand.backend)

    def start_mean(self, y: Any, dtype: str, weight: Weight | None) -> Callable[[], Any]:
        """Starts to compute the mean of `y` over the ranks, and returns a function that waits for the mean and returns
        it. If the engine can run only one operation at a time, the returned function computes the mean when it is
        called. `y` and `dtype` have the same meaning as in `reduce`.
        """
        # a tensor without elements is not passed to the engine, because several engines crash
        # or hang on it
        if 0 in y.shape:
            return lambda: y
        engine, divisor = self.engine, weight.total if weight is not None else self.size
        y = self._summand(y, dtype, weight)
        # `start_mean` of an engine that cannot work in the background returns None; the mean is then computed when the
        # caller waits for it
        wait = engine.start_mean(y, divisor) or (
            lambda: engine.over(engine.all_reduce(y, "sum"), divisor)
        )
        return (lambda: _cast(wait(), dtype)) if dtype in _SUMMED_AS else wait

    def reduce(self, y: Any, dtype: str, op: str, weight: Weight | None, verb: str) -> Any:
        """Returns the sum, mean, max or min (`op`) of `y` over the ranks. `y` is a tensor of
        the engine's framework, and may be overwritten. `dtype` is the name of its dtype, and
        `verb` is the name of the engine's method: "all_reduce" or "reduce_scatter"."""
        engine = self.engine
        y = self._summand(y, dtype, weight)
        if op in ("max", "min") and dtype in FLOATS:
            result = self._extreme(y, op, getattr(engine, verb))
        else:
            result = getattr(engine, verb)(y, "sum" if op == "mean" else op)
        if op == "mean":
            # the sum is divided, so that the division rounds once; dividing the summands on
            # each rank would round once per rank
            result = engine.over(result, weight.total if weight is not None else self.size)
        return _cast(result, dtype) if dtype in _SUMMED_AS else result

    def _summand(self, y: Any, dtype: str, weight: Weight | None) -> Any:
        """Returns `y`, prepared for a reduction by the engine. Casts 16-bit floats to float32, and multiplies the
        tensor by this rank's weight if there is one.
        """
        wide = _SUMMED_AS.get(dtype)
        # a sum of 16-bit floats would be rounded once for each rank, in an order that depends
        # on the engine
        if wide is not None:
            y = _cast(y, wide)
        return y if weight is None else self._multiply(y, wide or dtype, weight.own)

    def _extreme(self, y: Any, op: str, reduce: Callable[[Any, str], Any]) -> Any:
        """Returns the max or min of `y` over the ranks. As in NumPy, the result is NaN where any rank has NaN. `reduce`
        is the engine's method. It is called twice, because engines lose NaN in some orders of the ranks: with 0, NaN
        and 2 on three ranks, gloo's max is 0."""
        xp = array_namespace(y)
        is_nan = xp.isnan(y)
        has_nan = reduce(xp.astype(is_nan, y.dtype), "max")
        extreme = reduce(xp.where(is_nan, xp.zeros_like(y), y), op)
        return xp.where(has_nan > 0, xp.full_like(extreme, float("nan")), extreme)

    def _multiply(self, y: Any, dtype: str, own: float) -> Any:
        """Returns `y` times `own`, the weight of this rank. If the weight is 0, the result is 0
        everywhere, even where `y` is NaN. `dtype` is the name of the dtype of `y`."""
        # NaN times 0 is NaN, and `y` may contain NaN: in many frameworks, the mean over no
        # samples is NaN
        if own == 0:
            return self.backend.full(tuple(y.shape), 0.0, self.backend.device_of(y), dtype)
        return self.engine.times(y, own)

    def broadcast(self, operand: Operand, root: int) -> Any:
        """Returns the values that the operand has on the rank `root`. Writes them to the caller's tensor or to a new
        tensor, as `all_reduce` does."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store_result(operand, y, is_shared, self.engine.broadcast(y, root))

    def all_gather(self, operand: Operand, lengths: list[int] | None) -> Any:
        """Returns the tensors of all ranks, joined along the first axis, as a new tensor.
        `lengths` contains the length of that axis on each rank, or is None if the lengths are
        equal. Shorter tensors are padded before they are sent, because engines need the same
        shape on all ranks."""
        y = self.read_only(operand)
        if lengths is None:
            parts = self._gathered(y)
        else:
            longest = max(lengths)
            parts = self._gathered(self._pad(y, dtype_of(operand), longest))
            pairs = zip(parts, lengths, strict=True)
            # removes the padding
            parts = [
                self.backend.split(part, [n, longest - n])[0] if n < longest else part
                for part, n in pairs
            ]
        return self._to_framework(self.backend.join(parts), operand.backend)

    def _gathered(self, y: Any) -> list[Any]:
        """Returns a list with the `y` of each rank, in the order of the ranks. `y` has the same
        shape on all ranks. Tensors without elements are not sent."""
        return [y] * self.size if 0 in y.shape else self.engine.all_gather(y)

    def _pad(self, y: Any, dtype: str, longest: int) -> Any:
        """Returns `y`, padded with zeros so that its first axis has the length `longest`."""
        length, *rest = y.shape
        if length == longest:
            return y
        more = self.backend.full((longest - length, *rest), 0, self.backend.device_of(y), dtype)
        return self.backend.join([y, more])

    def send(self, operands: list[Operand], to: int) -> None:
        """Sends operands to the rank `to`, one after the other."""
        for operand in operands:
            if not _is_empty(operand):
                self.engine.send(self.read_only(operand), to)

    def recv(self, operand: Operand, source: int) -> Any:
        """Returns the values that the rank `source` sends. Writes them to the caller's tensor or to a new tensor, as
        `all_reduce` does."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store_result(operand, y, is_shared, self.engine.recv(y, source))

    # converting tensors to the engine's framework and back

    def read_only(self, operand: Operand) -> Any:
        """Returns the caller's tensor, converted to the engine's framework. The two tensors may
        share memory, so the result must not be written."""
        x = read(operand)
        # waits until the framework has computed the values, because the engine reads the memory at once
        operand.backend.finish(x)
        return convert(x, self.backend)

    def _as_writable(self, operand: Operand) -> tuple[Any, bool]:
        """Returns a tensor of the engine's framework with the values of the caller's tensor, and whether the two
        tensors share memory. The returned tensor may be written.
        """
        backend, x = operand.backend, read(operand)
        backend.finish(x)
        plain = backend.detached(x)
        # such as a JAX array, or a read-only NumPy array
        if not backend.can_write(plain):
            return self._copy_of(plain), False
        if backend is self.backend:
            return plain, True
        try:
            return convert(plain, self.backend, copy=False), True
        # the two frameworks cannot share this memory, because of its layout or its device
        except SharingError:
            return self._copy_of(plain), False

    def _copy_of(self, x: Any) -> Any:
        """Returns a copy of `x`, a tensor of any framework, as a tensor of the engine's framework."""
        return self._run_copy(lambda: convert(x, self.backend, copy=True))

    def _store_result(self, operand: Operand, y: Any, is_shared: bool, new: Any) -> Any:
        """Returns the result of a collective: the caller's tensor with the new values, or a new tensor if the caller's
        tensor cannot be written. `y` and `is_shared` are the results of `_as_writable`, and `new` is the result of the
        engine.
        """
        if is_shared:
            # the engine may already have written to `y`, and thereby to the caller's tensor
            if new is not y:
                self.backend.write(y, new)
            return operand.value
        return self.write_back(operand, new)

    def pack(self, operands: list[Operand]) -> Any:
        """Returns a new vector of the engine's framework with the elements of the operands, one
        operand after the other."""
        values = self._native_values(operands)
        # the engine may be able to pack the values in one call of its framework
        packed = None if values is None else self.engine.pack(values)
        if packed is not None:
            return packed
        # the operands belong to a different framework than the engine, or the engine does not pack tensors
        return self.backend.join(
            [_reshaped(self.read_only(operand), (-1,)) for operand in operands]
        )

    def unpack(self, vector: Any, operands: list[Operand]) -> bool:
        """Writes the elements of `vector`, a tensor of the engine's framework, to the operands,
        if the engine can do so in one call. Returns False if nothing was written."""
        values = self._native_values(operands)
        return (
            values is not None
            and all(map(self.backend.can_write, values))
            and self.engine.unpack(vector, values)
        )

    def write_back_all(self, operands: list[Operand], new: Any) -> dict[int, Any]:
        """Writes the elements of `new`, a vector of the engine's framework, to the operands.
        Returns a dict that maps the `id` of each operand's value to the value itself, or to a
        new tensor if the value cannot be written."""
        if self.unpack(new, operands):
            return {id(operand.value): operand.value for operand in operands}
        parts = self.backend.split(new, [prod(shape_of(operand)) for operand in operands])
        return {
            id(operand.value): self.write_back(operand, _reshaped(part, shape_of(operand)))
            for operand, part in zip(operands, parts, strict=True)
        }

    def _native_values(self, operands: list[Operand]) -> list[Any] | None:
        """Returns the values of the operands if all operands are tensors of the engine's
        framework, and otherwise None."""
        # a variable, such as a TensorFlow variable, is an operand of the kind "model", and not a tensor
        if any(
            operand.backend is not self.backend or operand.kind == "model"
            for operand in operands
        ):
            return None
        return [operand.value for operand in operands]

    def write_back(self, operand: Operand, new: Any) -> Any:
        """Writes `new`, a tensor of the engine's framework, to the caller's tensor, and returns the caller's tensor. If
        the caller's tensor cannot be written, returns `new`, converted to the framework of the caller's tensor."""
        back = self._to_framework(new, operand.backend)
        # a variable, such as a TensorFlow variable, has the kind "model" and can always be written
        if operand.kind != "model" and not operand.backend.can_write(
            operand.backend.detached(operand.value)
        ):
            return back
        operand.backend.write(operand.value, back)
        return operand.value

    def _to_framework(self, new: Any, backend: Backend) -> Any:
        """Returns `new`, a tensor of the engine's framework, as a tensor of `backend`. The two
        tensors may share memory."""
        return new if backend is self.backend else convert(new, backend)
