"""Passes tensors through an engine: converts them to the engine's framework and back, and adds the operations that
engines lack: means, weighted means, and sums of 16-bit floats that are rounded once.

A tensor that can be written in place receives the result, without a copy if the engine's
framework can use its memory. For any other tensor a new one is made. Nothing here is voted on,
because the ranks have already voted on the call.
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
    bytes_of,
    check_sum,
    dtype_of,
    read,
    refuse_sparse,
    refuse_symbol,
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
"""The operations by which tensors are reduced."""
_MAX_WEIGHT: Final = sys.float_info.max
"""The largest weight that is allowed: the largest finite float."""
BUCKET_BYTES: Final = 25 * 2**20
"""The most bytes in a bucket. A gradient with more bytes has a bucket to itself. PyTorch's DDP
uses the same size."""
FIRST_BUCKET_BYTES: Final = 2**20
"""The most bytes in the first bucket of each kind, which is small so that it is sent early."""
_SMALL_BYTES: Final = 2**16
"""The most bytes of a tensor that is sent together with others in one call of `all_reduce` or
`broadcast`."""
_JOINED: Final = (*FLOATS, "int32", "int64")
"""The dtypes of tensors that every engine's backend can join to one vector."""
_WIDE: Final = {"float16": "float32", "bfloat16": "float32"}
"""The dtype in which floats of each 16-bit dtype are summed."""


def check_op(operand: Operand, op: str) -> None:
    """Raises `DTypeError` if the tensor's dtype cannot be reduced by `op`, one of `OPS`."""
    dtype = dtype_of(operand)
    # a maximum needs an order, which complex numbers lack, and a sum does not
    if op in ("max", "min"):
        if dtype.startswith("complex"):
            raise DTypeError(
                f"{operand.name} is {dtype}, for which there is no {op}: complex numbers have no order"
            )
        if dtype in SHORT_FLOATS:
            raise DTypeError(
                f"{operand.name} is {dtype}, for which there is no {op}; cast it to float16 first"
            )
        return
    check_sum(operand, op)


def require_dtype(operand: Operand, op: str | None) -> None:
    """Raises `DTypeError` if the tensor's dtype cannot be reduced by `op`, or, with None, if no
    engine can send it."""
    if op is not None:
        check_op(operand, op)
    elif (dtype := dtype_of(operand)) in SHORT_FLOATS:
        raise DTypeError(
            f"{operand.name} is {dtype}, which no engine supports; cast it to float16, or send its bytes as uint8"
        )


def require_here(operand: Operand, verb: str, own_device: Callable[[], Device]) -> None:
    """Raises an error if no engine can take this tensor: if it is symbolic or sparse, or on a
    GPU other than `own_device()`, the device of this process. `verb` is the name of the
    collective, for the error."""
    if operand.kind != "model":
        refuse_symbol(operand)
        refuse_sparse(operand, verb)
    x = read(operand)
    # raises an error inside `torch.func.grad`, where other objects take the place of tensors
    operand.backend.detached(x)
    tensor_device = operand.backend.device_of(x)
    # `own_device` is not called for a tensor on the CPU, because the call may import a
    # framework that the program has not imported
    if tensor_device.kind != "cpu" and tensor_device is not (device := own_device()):
        raise DeviceMismatchError(
            f"{operand.name} is on {tensor_device}, but this process works on {device} (world.device); move it there"
        )


class Bucket(NamedTuple):
    """The gradients that are sent together, in one vector."""

    dtype: str
    indices: list[int]
    """The indices of the gradients in the list of all gradients."""


def buckets_of(operands: list[Operand], indices: Sequence[int]) -> list[Bucket]:
    """Returns the buckets for the `operands` with these indices. Each bucket has one dtype,
    backend and device, and the buckets are the same on all ranks. The last operands come first,
    because a backward pass computes their gradients first."""
    buckets: list[Bucket] = []
    # for each kind, the bucket that is not full yet, its bytes, and the most bytes that it may
    # have
    filling: dict[tuple[Any, ...], tuple[Bucket, int, int]] = {}
    for i in reversed(indices):
        operand = operands[i]
        dtype = dtype_of(operand)
        kind = operand.backend.name, dtype, operand.backend.device_of(read(operand))
        size = bytes_of(operand)
        bucket, used, most = filling.get(kind, (Bucket(dtype, []), 0, FIRST_BUCKET_BYTES))
        # this kind has no bucket yet, or its bucket has no room for the operand
        if not bucket.indices or used + size > most:
            # only the first bucket of a kind is small; later ones have the full size
            most = BUCKET_BYTES if bucket.indices else most
            bucket, used = Bucket(dtype, []), 0
            buckets.append(bucket)
        bucket.indices.append(i)
        # gradients of several dtypes may alternate, so each kind keeps a bucket that is being filled
        filling[kind] = bucket, used + size, most
    return buckets


def _is_small(operand: Operand) -> bool:
    """Whether a tensor is sent together with others, in one vector."""
    return dtype_of(operand) in _JOINED and 0 < bytes_of(operand) <= _SMALL_BYTES


def _is_empty(operand: Operand) -> bool:
    """Whether a tensor has no elements. No engine gets such a tensor, because several engines
    crash or hang on it."""
    return 0 in shape_of(operand)


def _cast(y: Any, dtype: str) -> Any:
    """Returns a tensor of any framework in another dtype."""
    return array_namespace(y).astype(y, dtype)


def _reshaped(y: Any, shape: tuple[int, ...]) -> Any:
    """Returns a tensor of any framework in another shape."""
    return array_namespace(y).reshape(y, shape)


class Weight(NamedTuple):
    """The weight of this rank's tensors in a mean, and the sum of all ranks' weights."""

    own: float
    total: float


def weight_of(value: Any) -> float:
    """Returns the argument `weight` of a collective as a float. Raises `ArgumentError` if it is
    not a finite number of 0 or more."""
    # the comparison with the largest float refuses infinity, and NaN, which compares as False
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= _MAX_WEIGHT:  # type: ignore[operator]
        raise ArgumentError(
            f"weight must be a finite number of 0 or more, such as the number of samples, not {shown(value)}"
        )
    return float(value)


class Carrier:
    """Runs collectives on tensors of any backend: an engine, together with the backend whose
    tensors it takes. A `Session` makes it.

    Args:
        backend: the backend of the engine's framework.
        engine: the engine.
        size: the number of ranks.
        device: the device of this process.
        run_copy: calls a function that makes a copy, perhaps in another thread, and returns its result.
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
        """The keys of `require_dtype` that have passed the check."""

    def require_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Raises `DTypeError` or `UnsupportedError` if the engine's method `verb` cannot take
        this tensor's dtype. `op` is the operation of a method that reduces, or None."""
        # the result depends on these four only, and each training step needs the same few
        # results
        key = operand.backend.name, read(operand).dtype, verb, op
        if key not in self._admitted:
            self._require_dtype(operand, verb, op)
            self._admitted.add(key)

    def _require_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Does the check of `require_dtype`. Raises `DTypeError` if all engines, or the
        framework of this engine, lack the tensor's dtype for `op`, and `UnsupportedError` if
        this engine itself refuses the dtype."""
        require_dtype(operand, op)
        dtype, target = dtype_of(operand), self.backend
        reason = (
            target.dtype_refusal(dtype)
            if dtype in target.dtypes
            else f"{target.name} does not support it"
        )
        if reason is not None:
            raise DTypeError(
                f"{operand.name} is {dtype}, which the engine {self.engine.name} cannot take: {reason}; choose another "
                "engine with xdevice.distributed.processes(engine=...), or another dtype"
            )
        # a reduction casts 16-bit floats first; other methods send the bits as they are
        sent_as = _WIDE.get(dtype, dtype) if op else dtype
        why = self.engine.refusal(verb, "sum" if op == "mean" else op, sent_as)
        if why is not None:
            raise UnsupportedError(
                f"the engine {self.engine.name} does not support {verb}{f' by {op}' if op else ''} of {dtype}, the "
                f"dtype of {operand.name}: {why}; choose another engine with "
                "xdevice.distributed.processes(engine=...), or another dtype"
            )

    # the collectives, on one or several operands

    def one_by_one_or_packed(
        self,
        operands: list[Operand],
        run_one: Callable[[Operand], Any],
        run_packed: Callable[[Any, str], Any],
    ) -> dict[int, Any]:
        """Runs a collective on several operands, and returns the results by the `id` of the
        operands' values.

        `run_one` gets an operand, and returns its result. If there are several small operands,
        `run_packed` gets a vector with the elements of several, and its dtype, and returns the
        vector of the results. A call of an engine takes 0.2 to 2 ms, however small its tensor
        is.
        """
        small = [i for i, operand in enumerate(operands) if _is_small(operand)]
        new = {}
        # a single small tensor gains nothing from being packed
        for bucket in buckets_of(operands, small) if len(small) > 1 else ():
            bucketed = [operands[i] for i in bucket.indices]
            new.update(
                self.write_back_all(bucketed, run_packed(self.pack(bucketed), bucket.dtype))
            )
        rest = (operand for operand in operands if id(operand.value) not in new)
        return new | {id(operand.value): run_one(operand) for operand in rest}

    def all_reduce(self, operand: Operand, op: str, weight: Weight | None) -> Any:
        """Returns the sum, mean, max or min (`op`) of an operand over the ranks: the caller's
        tensor with the result in it, or a new tensor if the caller's cannot be written.
        `weight` is for a mean; None gives all ranks equal weights."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        total = self.reduce(y, dtype_of(operand), op, weight, "all_reduce")
        return self._store(operand, y, is_shared, total)

    def reduce_scatter(self, operand: Operand, op: str) -> Any:
        """Returns this rank's part of the reduction of an operand, along the first axis, as a
        new tensor."""
        y, is_shared = self._as_writable(operand)
        if _is_empty(operand):
            lengths = [shape_of(operand)[0] // self.size] * self.size
            return self._to_framework(self.backend.split(y, lengths)[0], operand.backend)
        # the engine may write into `y`, but this collective must not change the caller's tensor
        if is_shared:
            y = self.backend.copy(y, self.backend.device_of(y))
        part = self.reduce(y, dtype_of(operand), op, None, "reduce_scatter")
        return self._to_framework(part, operand.backend)

    def start_mean(self, y: Any, dtype: str, weight: Weight | None) -> Callable[[], Any]:
        """Starts the mean of `y` over the ranks, and returns a function that waits for the mean
        and returns it. An engine that can do only one thing at a time computes the mean in that
        function. `y` is as in `reduce`."""
        # no engine gets a tensor without elements, because several crash or hang on it
        if 0 in y.shape:
            return lambda: y
        engine, divisor = self.engine, weight.total if weight is not None else self.size
        y = self._summand(y, dtype, weight)
        # `start_mean` of an engine that cannot work in the background returns None
        wait = engine.start_mean(y, divisor) or (
            lambda: engine.over(engine.all_reduce(y, "sum"), divisor)
        )
        return (lambda: _cast(wait(), dtype)) if dtype in _WIDE else wait

    def reduce(self, y: Any, dtype: str, op: str, weight: Weight | None, verb: str) -> Any:
        """Returns the sum, mean, max or min (`op`) of `y` over the ranks. `y` is a tensor of
        the engine's framework, and may be overwritten. `dtype` is the name of its dtype, and
        `verb` the name of the engine's method, "all_reduce" or "reduce_scatter"."""
        engine = self.engine
        y = self._summand(y, dtype, weight)
        if op in ("max", "min") and dtype in FLOATS:
            result = self._extreme(y, op, getattr(engine, verb))
        else:
            result = getattr(engine, verb)(y, "sum" if op == "mean" else op)
        if op == "mean":
            # after the sum, so that it is rounded once: dividing on each rank would round once
            # for each rank
            result = engine.over(result, weight.total if weight is not None else self.size)
        return _cast(result, dtype) if dtype in _WIDE else result

    def _summand(self, y: Any, dtype: str, weight: Weight | None) -> Any:
        """Returns `y` as the engine reduces it: 16-bit floats as float32, and times this rank's
        weight."""
        wide = _WIDE.get(dtype)
        # a sum of 16-bit floats would be rounded once for each rank, in an order that depends
        # on the engine
        if wide is not None:
            y = _cast(y, wide)
        return y if weight is None else self._multiply(y, wide or dtype, weight.own)

    def _extreme(self, y: Any, op: str, reduce: Callable[[Any, str], Any]) -> Any:
        """Returns the max or min of `y` over the ranks, which is NaN if any rank has NaN, as in
        NumPy. `reduce` is the engine's method. It is called twice, because engines lose NaN in
        some orders of ranks: gloo's max of 0, NaN and 2 on three ranks is 0."""
        xp = array_namespace(y)
        is_nan = xp.isnan(y)
        has_nan = reduce(xp.astype(is_nan, y.dtype), "max")
        extreme = reduce(xp.where(is_nan, xp.zeros_like(y), y), op)
        return xp.where(has_nan > 0, xp.full_like(extreme, float("nan")), extreme)

    def _multiply(self, y: Any, dtype: str, own: float) -> Any:
        """Returns `y` times `own`, the weight of this rank; with the weight 0, zeros, even
        where `y` is NaN. `dtype` is the name of the dtype of `y`."""
        # `y` may be NaN, as the mean of no samples is in many frameworks, and NaN times 0 is
        # NaN
        if own == 0:
            return self.backend.full(tuple(y.shape), 0.0, self.backend.device_of(y), dtype)
        return self.engine.times(y, own)

    def broadcast(self, operand: Operand, root: int) -> Any:
        """Returns the values of the rank `root`, in the caller's tensor or in a new one, like
        `all_reduce`."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store(operand, y, is_shared, self.engine.broadcast(y, root))

    def all_gather(self, operand: Operand, lengths: list[int] | None) -> Any:
        """Returns the tensors of all ranks, joined along the first axis, as a new tensor.
        `lengths` has the length of that axis on each rank; it is None if the lengths are equal.
        Shorter tensors are padded before they are sent, because engines need one shape on all
        ranks."""
        y = self.read_only(operand)
        if lengths is None:
            parts = self._gathered(y)
        else:
            longest = max(lengths)
            parts = self._gathered(self._pad(y, dtype_of(operand), longest))
            pairs = zip(parts, lengths, strict=True)
            # without the padding
            parts = [
                self.backend.split(part, [n, longest - n])[0] if n < longest else part
                for part, n in pairs
            ]
        return self._to_framework(self.backend.join(parts), operand.backend)

    def _gathered(self, y: Any) -> list[Any]:
        """Returns a list with the `y` of each rank, in the order of the ranks. All have the
        same shape. Tensors without elements are not sent."""
        return [y] * self.size if 0 in y.shape else self.engine.all_gather(y)

    def _pad(self, y: Any, dtype: str, longest: int) -> Any:
        """Returns `y` with zeros appended, so that its first axis has the length `longest`."""
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
        """Returns the values that the rank `source` sends, in the caller's tensor or in a new
        one, like `all_reduce`."""
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store(operand, y, is_shared, self.engine.recv(y, source))

    # converting tensors to the engine's framework and back

    def read_only(self, operand: Operand) -> Any:
        """Returns the caller's tensor as a tensor of the engine's framework. The two may share
        memory, so the result must not be written."""
        x = read(operand)
        # waits, because the framework may still be computing the values, and the engine reads
        # the memory at once
        operand.backend.finish(x)
        return convert(x, self.backend)

    def _as_writable(self, operand: Operand) -> tuple[Any, bool]:
        """Returns a tensor of the engine's framework that has the values of the caller's tensor and may be written,
        and whether the two share memory."""
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
        """Returns a copy of a tensor of any framework as a tensor of the engine's framework."""
        return self._run_copy(lambda: convert(x, self.backend, copy=True))

    def _store(self, operand: Operand, y: Any, is_shared: bool, new: Any) -> Any:
        """Returns the result of a collective: the caller's tensor with the new values in it, or
        a new tensor if the caller's cannot be written. `_as_writable` has returned `y` and
        `is_shared`, and the engine has returned `new`."""
        if is_shared:
            # the engine may have written into `y`, and so into the caller's tensor, already
            if new is not y:
                self.backend.write(y, new)
            return operand.value
        return self.write_back(operand, new)

    def pack(self, operands: list[Operand]) -> Any:
        """Returns the elements of the operands, one operand after the other, as one new vector
        of the engine's framework."""
        values = self._native_values(operands)
        # the engine may pack them in one call of its framework
        packed = None if values is None else self.engine.pack(values)
        if packed is not None:
            return packed
        # the operands belong to a different framework than the engine, or the engine packs nothing
        return self.backend.join(
            [_reshaped(self.read_only(operand), (-1,)) for operand in operands]
        )

    def unpack(self, vector: Any, operands: list[Operand]) -> bool:
        """Writes the elements of a vector of the engine's framework into the operands, if the
        engine can do so in one call. Returns False if nothing was written."""
        values = self._native_values(operands)
        return (
            values is not None
            and all(map(self.backend.can_write, values))
            and self.engine.unpack(vector, values)
        )

    def write_back_all(self, operands: list[Operand], new: Any) -> dict[int, Any]:
        """Writes the elements of `new`, a vector of the engine's framework, into the operands.
        Returns a dict from the `id` of each operand's value to the value itself, or to a new
        tensor if the value cannot be written."""
        if self.unpack(new, operands):
            return {id(operand.value): operand.value for operand in operands}
        parts = self.backend.split(new, [prod(shape_of(operand)) for operand in operands])
        return {
            id(operand.value): self.write_back(operand, _reshaped(part, shape_of(operand)))
            for operand, part in zip(operands, parts, strict=True)
        }

    def _native_values(self, operands: list[Operand]) -> list[Any] | None:
        """Returns the values of the operands if all of them are tensors of the engine's
        framework, and otherwise None."""
        # a variable, such as TensorFlow's, is an operand of the kind "model", and not a tensor
        if any(
            operand.backend is not self.backend or operand.kind == "model"
            for operand in operands
        ):
            return None
        return [operand.value for operand in operands]

    def write_back(self, operand: Operand, new: Any) -> Any:
        """Writes `new`, a tensor of the engine's framework, into the caller's tensor, and returns the latter. If the
        caller's tensor cannot be written, converts `new` to its framework and returns that instead."""
        back = self._to_framework(new, operand.backend)
        # a variable, such as TensorFlow's, whose kind is "model", can always be written
        if operand.kind != "model" and not operand.backend.can_write(
            operand.backend.detached(operand.value)
        ):
            return back
        operand.backend.write(operand.value, back)
        return operand.value

    def _to_framework(self, new: Any, backend: Backend) -> Any:
        """Returns a tensor of the engine's framework as a tensor of `backend`. The two may
        share memory."""
        return new if backend is self.backend else convert(new, backend)
