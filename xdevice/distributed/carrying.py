"""Takes one tensor through an engine: converts it to the engine's framework and back, and computes what engines do not:
means, weights, sums of 16-bit floats.

A tensor that can be written in place receives the result, without a copy if the engine's framework can use its memory;
for any other a new tensor is made. Nothing here asks the other ranks: they have already voted on the call.
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
_MOST: Final = sys.float_info.max
MOST: Final = 25 * 2**20
"""The most bytes in a bucket. A gradient with more bytes has a bucket to itself. PyTorch's DDP has the same size."""
MOST_IN_FIRST: Final = 2**20
"""The most bytes in the first bucket of each kind, which is small so that it travels early."""
_SMALL: Final = 2**16
"""The most bytes of a tensor that travels with others in one call of `all_reduce` or `broadcast`."""
_JOINED: Final = (*FLOATS, "int32", "int64")
"""The dtypes that the backends of all engines join."""
_WIDE: Final = {"float16": "float32", "bfloat16": "float32"}
"""The dtype in which floats of each 16-bit dtype are summed."""


def check_op(operand: Operand, op: str) -> None:
    """Raises `DTypeError` if the tensor's dtype cannot be reduced by `op`."""
    dtype = dtype_of(operand)
    # a maximum needs an order, a sum does not; so each has its own dtypes
    if op in ("max", "min"):
        if dtype.startswith("complex"):
            raise DTypeError(
                f"{operand.name} is {dtype}, which has no {op}: complex numbers have no order"
            )
        if dtype in SHORT_FLOATS:
            raise DTypeError(
                f"{operand.name} is {dtype}, which has no {op}; make it float16 first"
            )
        return
    check_sum(operand, op)


def require_dtype(operand: Operand, op: str | None) -> None:
    """Raises `DTypeError` if no engine takes tensors of this dtype, or if it cannot be reduced by `op`."""
    if op is not None:
        check_op(operand, op)
    elif (dtype := dtype_of(operand)) in SHORT_FLOATS:
        raise DTypeError(
            f"{operand.name} is {dtype}, which no engine takes; make it float16, or send its bytes as uint8"
        )


def require_here(operand: Operand, verb: str, own_device: Callable[[], Device]) -> None:
    """Raises an error if no engine could take this tensor from a process whose device is `own_device()`. That function
    is called only for a tensor on a GPU: it may need a framework that a program on the CPU has not imported."""
    if operand.kind != "model":
        refuse_symbol(operand)
        refuse_sparse(operand, verb)
    x = read(operand)
    operand.backend.detached(x)  # raises for the stand-ins for tensors inside torch.func.grad
    place = operand.backend.device_of(x)
    if place.kind != "cpu" and place is not (device := own_device()):
        raise DeviceMismatchError(
            f"{operand.name} is on {place}, and this process works on {device}, as world.device says; move it"
        )


class Bucket(NamedTuple):
    """The numbers of gradients that travel together."""

    dtype: str
    indices: list[int]
    """Which of the gradients, as indices into the list of all."""


def buckets_of(operands: list[Operand], indices: Sequence[int]) -> list[Bucket]:
    """The `operands` with these indices in buckets of one dtype, backend and device each, the same on all ranks. The
    last tensors come first, because a backward pass computes their gradients first."""
    buckets: list[Bucket] = []
    filling: dict[tuple[Any, ...], tuple[Bucket, int, int]] = {}
    for i in reversed(indices):
        operand = operands[i]
        dtype = dtype_of(operand)
        kind = operand.backend.name, dtype, operand.backend.device_of(read(operand))
        size = bytes_of(operand)
        bucket, used, most = filling.get(kind, (Bucket(dtype, []), 0, MOST_IN_FIRST))
        if not bucket.indices or used + size > most:
            # only the first bucket of a kind is small; later ones have the full size
            most = MOST if bucket.indices else most
            bucket, used = Bucket(dtype, []), 0
            buckets.append(bucket)
        bucket.indices.append(i)
        # gradients of several dtypes may alternate, so each kind keeps a bucket that is being filled
        filling[kind] = bucket, used + size, most
    return buckets


def _is_small(operand: Operand) -> bool:
    return dtype_of(operand) in _JOINED and 0 < bytes_of(operand) <= _SMALL


def _is_empty(operand: Operand) -> bool:
    """Whether a tensor has no elements: no engine is given such a tensor, because several crash or hang."""
    return 0 in shape_of(operand)


def _as(y: Any, dtype: str) -> Any:
    return array_namespace(y).astype(y, dtype)


def _reshaped(y: Any, shape: tuple[int, ...]) -> Any:
    return array_namespace(y).reshape(y, shape)


class Weight(NamedTuple):
    """The weight of this rank's tensors in a mean, and the sum of all ranks' weights."""

    own: float
    total: float


def weight_of(value: Any) -> float:
    # the comparison with the largest float refuses infinity, and NaN, which compares as False
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= _MOST:  # type: ignore[operator]
        raise ArgumentError(
            f"weight must be a number that is not negative, such as the number of samples, not {shown(value)}"
        )
    return float(value)


class Carrier:
    """An engine, together with the backend whose tensors it takes. It runs one collective on one tensor of any backend.
    A `Session` makes it."""

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        size: int,
        device: Device,
        copying: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.backend = backend
        self.engine = engine
        self.size = size
        self.device = device
        self._copying = copying
        self._admitted: set[tuple[str, Any, str, str | None]] = set()

    def require_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Raises if the engine cannot take this tensor's dtype for the method `verb`."""
        # the answer depends on nothing else, and a training step asks for the same few dtypes again and again
        key = operand.backend.name, read(operand).dtype, verb, op
        if key not in self._admitted:
            self._require_dtype(operand, verb, op)
            self._admitted.add(key)

    def _require_dtype(self, operand: Operand, verb: str, op: str | None) -> None:
        """Raises if the engine, or the framework whose tensors it takes, lacks this dtype for the method `verb`."""
        require_dtype(operand, op)
        dtype, target = dtype_of(operand), self.backend
        reason = (
            target.dtype_refusal(dtype)
            if dtype in target.dtypes
            else f"{target.name} does not have it"
        )
        if reason is not None:
            raise DTypeError(
                f"{operand.name} is {dtype}, which the engine {self.engine.name} cannot take: {reason}; choose another "
                "engine: xdevice.distributed.processes(engine=...), or another dtype"
            )
        # a broadcast sends the bits as they are; only a reduction widens them
        sent_as = _WIDE.get(dtype, dtype) if op else dtype
        why = self.engine.refusal(verb, "sum" if op == "mean" else op, sent_as)
        if why is not None:
            raise UnsupportedError(
                f"the engine {self.engine.name} does not support {verb}{f' by {op}' if op else ''} of {dtype}, which "
                f"{operand.name} is: {why}; choose another engine: "
                "xdevice.distributed.processes(engine=...), or another dtype"
            )

    # verbs

    def one_by_one_or_packed(
        self,
        operands: list[Operand],
        one: Callable[[Operand], Any],
        packed: Callable[[Any, str], Any],
    ) -> dict[int, Any]:
        """The results for operands by their `id`. `one` computes them one by one. For many small ones `packed` does,
        which takes a vector of several and its dtype, because a call of an engine takes 0.2 to 2 ms, however small its
        tensor is."""
        small = [i for i, operand in enumerate(operands) if _is_small(operand)]
        new = {}
        # a single small tensor gains nothing from being packed
        for bucket in buckets_of(operands, small) if len(small) > 1 else ():
            own = [operands[i] for i in bucket.indices]
            new.update(self.place_all(own, packed(self.pack(own), bucket.dtype)))
        rest = (operand for operand in operands if id(operand.value) not in new)
        return new | {id(operand.value): one(operand) for operand in rest}

    def all_reduce(self, operand: Operand, op: str, weight: Weight | None) -> Any:
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        total = self.reduce(y, dtype_of(operand), op, weight, "all_reduce")
        return self._store(operand, y, is_shared, total)

    def reduce_scatter(self, operand: Operand, op: str) -> Any:
        y, is_shared = self._as_writable(operand)
        if _is_empty(operand):
            lengths = [shape_of(operand)[0] // self.size] * self.size
            return self._to_framework(self.backend.split(y, lengths)[0], operand.backend)
        # the engine may write into y, and this verb must leave the caller's tensor as it is
        if is_shared:
            y = self.backend.copy(y, self.backend.device_of(y))
        part = self.reduce(y, dtype_of(operand), op, None, "reduce_scatter")
        return self._to_framework(part, operand.backend)

    def start_mean(self, y: Any, dtype: str, weight: Weight | None) -> Callable[[], Any]:
        """Starts the mean of `y` over the ranks, and returns a function that waits for it and returns it; an engine
        that does one thing at a time computes it then. `y` is as in `reduce`."""
        # several engines crash or hang on tensors without elements, and there is nothing to average
        if 0 in y.shape:
            return lambda: y
        engine, divisor = self.engine, weight.total if weight is not None else self.size
        y = self._summand(y, dtype, weight)
        # None from an engine that cannot work in the background: then the mean is computed when it is waited for
        wait = engine.start_mean(y, divisor) or (
            lambda: engine.over(engine.all_reduce(y, "sum"), divisor)
        )
        return (lambda: _as(wait(), dtype)) if dtype in _WIDE else wait

    def reduce(self, y: Any, dtype: str, op: str, weight: Weight | None, verb: str) -> Any:
        """The sum, mean, max or min of `y` over the ranks. `y` is a tensor of the engine's framework, and may be
        overwritten."""
        engine = self.engine
        y = self._summand(y, dtype, weight)
        if op in ("max", "min") and dtype in FLOATS:
            result = self._extreme(y, op, getattr(engine, verb))
        else:
            result = getattr(engine, verb)(y, "sum" if op == "mean" else op)
        if op == "mean":
            # once, after the sum: to divide the part of each rank would round as often as there are ranks
            result = engine.over(result, weight.total if weight is not None else self.size)
        return _as(result, dtype) if dtype in _WIDE else result

    def _summand(self, y: Any, dtype: str, weight: Weight | None) -> Any:
        wide = _WIDE.get(dtype)
        # a sum of 16-bit floats would be rounded at each rank, in an order that engines choose
        if wide is not None:
            y = _as(y, wide)
        return y if weight is None else self._multiply(y, wide or dtype, weight.own)

    def _extreme(self, y: Any, op: str, reduce: Callable[[Any, str], Any]) -> Any:
        """The max or min over the ranks, NaN if any rank has NaN, as NumPy's are. This takes two reductions, because
        engines lose NaN in some orders of ranks: gloo's max of 0, NaN and 2 on three ranks is 0."""
        xp = array_namespace(y)
        is_nan = xp.isnan(y)
        has_nan = reduce(xp.astype(is_nan, y.dtype), "max")
        extreme = reduce(xp.where(is_nan, xp.zeros_like(y), y), op)
        return xp.where(has_nan > 0, xp.full_like(extreme, float("nan")), extreme)

    def _multiply(self, y: Any, dtype: str, own: float) -> Any:
        if own == 0:  # the mean of no samples is NaN in many frameworks, and NaN times 0 too
            return self.backend.full(tuple(y.shape), 0.0, self.backend.device_of(y), dtype)
        return self.engine.times(y, own)

    def broadcast(self, operand: Operand, root: int) -> Any:
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store(operand, y, is_shared, self.engine.broadcast(y, root))

    def all_gather(self, operand: Operand, lengths: list[int] | None) -> Any:
        """Returns the tensors of all ranks, joined along the first axis. `lengths` are those of that axis by rank, if
        they may differ: shorter tensors travel padded, because engines take one shape only."""
        y = self.read_only(operand)
        if lengths is None:
            parts = self._gathered(y)
        else:
            longest = max(lengths)
            parts = self._gathered(self._pad(y, dtype_of(operand), longest))
            pairs = zip(parts, lengths, strict=True)
            parts = [
                self.backend.split(part, [n, longest - n])[0] if n < longest else part
                for part, n in pairs
            ]
        return self._to_framework(self.backend.join(parts), operand.backend)

    def _gathered(self, y: Any) -> list[Any]:
        return [y] * self.size if 0 in y.shape else self.engine.all_gather(y)

    def _pad(self, y: Any, dtype: str, longest: int) -> Any:
        length, *rest = y.shape
        if length == longest:
            return y
        more = self.backend.full((longest - length, *rest), 0, self.backend.device_of(y), dtype)
        return self.backend.join([y, more])

    def send(self, operands: list[Operand], to: int) -> None:
        for operand in operands:
            if not _is_empty(operand):
                self.engine.send(self.read_only(operand), to)

    def recv(self, operand: Operand, source: int) -> Any:
        if _is_empty(operand):
            return operand.value
        y, is_shared = self._as_writable(operand)
        return self._store(operand, y, is_shared, self.engine.recv(y, source))

    # in and out

    def read_only(self, operand: Operand) -> Any:
        """The operand, the caller's tensor, as a tensor of the engine's framework. The two may share memory, so the
        result must not be written."""
        x = read(operand)
        # the framework may still be computing the values, and the engine reads the memory at once
        operand.backend.finish(x)
        return convert(x, self.backend)

    def _as_writable(self, operand: Operand) -> tuple[Any, bool]:
        """The operand, the caller's tensor, as a tensor of the engine's framework that may be written, and whether the
        two share memory."""
        backend, x = operand.backend, read(operand)
        backend.finish(x)
        plain = backend.detached(x)
        # a NumPy array that is read-only, or a tensor of JAX, whose tensors are never written
        if not backend.can_write(plain):
            return self._copy_of(plain), False
        if backend is self.backend:
            return plain, True
        try:
            return convert(plain, self.backend, copy=False), True
        # the two frameworks cannot share this memory, by its layout or its device
        except SharingError:
            return self._copy_of(plain), False

    def _copy_of(self, x: Any) -> Any:
        return self._copying(lambda: convert(x, self.backend, copy=True))

    def _store(self, operand: Operand, y: Any, is_shared: bool, new: Any) -> Any:
        """Returns the result of a collective to the caller: the caller's tensor with the new values in it, or a new
        tensor if the caller's cannot be written. `y` and `is_shared` are what `_as_writable` returned, and `new` is
        the engine's result."""
        if is_shared:
            if new is not y:
                self.backend.write(y, new)
            return operand.value
        return self.place(operand, new)

    def pack(self, operands: list[Operand]) -> Any:
        """The elements of the operands as one new vector of the engine's framework."""
        own = self._native_values(operands)
        # in one call of the engine's framework, if it has one for many tensors
        packed = None if own is None else self.engine.pack(own)
        if packed is not None:
            return packed
        # the operands belong to a different framework than the engine, or the engine packs nothing
        return self.backend.join(
            [_reshaped(self.read_only(operand), (-1,)) for operand in operands]
        )

    def unpack(self, vector: Any, operands: list[Operand]) -> bool:
        """Writes the elements of a vector of the engine into the operands, if the engine can do so in one call. Returns
        whether it has."""
        own = self._native_values(operands)
        return (
            own is not None
            and all(map(self.backend.can_write, own))
            and self.engine.unpack(vector, own)
        )

    def place_all(self, operands: list[Operand], new: Any) -> dict[int, Any]:
        """Writes the elements of a vector of the engine into the operands. Returns them by their `id`: the operand
        itself, or a new tensor if it cannot be written."""
        if self.unpack(new, operands):
            return {id(operand.value): operand.value for operand in operands}
        parts = self.backend.split(new, [prod(shape_of(operand)) for operand in operands])
        return {
            id(operand.value): self.place(operand, _reshaped(part, shape_of(operand)))
            for operand, part in zip(operands, parts, strict=True)
        }

    def _native_values(self, operands: list[Operand]) -> list[Any] | None:
        """The operands, if all are tensors of the engine's framework."""
        if any(
            operand.backend is not self.backend or operand.kind == "model"
            for operand in operands
        ):
            return None
        return [operand.value for operand in operands]

    def place(self, operand: Operand, new: Any) -> Any:
        """Writes `new`, a tensor of the engine's framework, into the operand, the caller's tensor, and returns that. If
        the operand cannot be written, returns `new`, converted to the operand's framework."""
        back = self._to_framework(new, operand.backend)
        if operand.kind != "model" and not operand.backend.can_write(
            operand.backend.detached(operand.value)
        ):
            return back
        operand.backend.write(operand.value, back)
        return operand.value

    def _to_framework(self, new: Any, backend: Backend) -> Any:
        return new if backend is self.backend else convert(new, backend)
