"""`average_gradients`: averages gradients over the ranks. Many small gradients are sent as a few long vectors, called
buckets, each of one dtype and of 25 MB at most."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base.dtypes import host_dtype
from xdevice.core import registry
from xdevice.errors import NotATensorError, shown
from xdevice.replicas.operands import Operand, dense_leaves, dtype_of, read, rebuilt, shape_of

from . import carrying
from .collectives import require_weight
from .telling import signatures

if TYPE_CHECKING:
    from .carrying import Carrier, Weight
    from .session import Session

MOST: Final = 25 * 2**20
"""The most bytes in a bucket. A gradient with more bytes has a bucket to itself."""


class Gradient(NamedTuple):
    """A gradient's name, and the gradient with its backend; None if the parameter has no gradient."""

    name: str
    held: Operand | None


def average_gradients(session: Session, model_or_gradients: Any, weight: float | None) -> Any:
    own = None if weight is None else carrying.weight_of(weight)
    if session.size == 1:
        require_weight(own)
        return model_or_gradients
    gradients = sorted(gradients_in(model_or_gradients), key=lambda one: one.name)
    found = [one.held for one in gradients if one.held is not None]
    carrier = session.ready("average_gradients")
    for held in found:
        carrier.require(held, "all_reduce", "mean")

    def call() -> str:
        nones = "".join(f"; {one.name} None" for one in gradients if one.held is None)
        return f"average_gradients{' weighted' if own is not None else ''}: {signatures(found)}{nones}"

    with session.alone("average_gradients"):
        total = session.agree(call, own)
        buckets = fill(found)
        rows = session.call("all_reduce", call, lambda: [average(carrier, one, total) for one in buckets], found)
    new = {key: value for row in rows for key, value in row.items()}
    if registry.kind_of(type(model_or_gradients)) is not None and id(model_or_gradients) not in new:
        return model_or_gradients
    return rebuilt(model_or_gradients, found, [new[id(held.value)] for held in found])


def gradients_in(x: Any) -> list[Gradient]:
    """The gradients of the model `x`, or of the container `x`, in their order."""
    found = registry.kind_of(type(x))
    if found is not None and found.kind == "model" and found.backend.tensor_of(x) is None:
        pairs: list[tuple[str, Any]] = list(found.backend.gradients(x))
    else:
        name = "gradients" if found is None else "gradient"
        pairs = [(name + leaf.path, leaf.value) for leaf in dense_leaves(x, name, "average_gradients")]
    if not pairs:
        raise NotATensorError(f"{shown(x)} holds no gradient")
    return [Gradient(name, None if value is None else _as_operand(name, value)) for name, value in pairs]


def _as_operand(name: str, value: Any) -> Operand:
    owner = registry.kind_of(type(value))
    if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
        raise NotATensorError(
            f"{name} is {shown(value)} of type {type(value).__qualname__}, expected a gradient: a tensor or None"
        )
    return Operand(name, value, *owner)


def fill(gradients: list[Operand]) -> list[list[Operand]]:
    """Sorts the gradients into buckets of one dtype, backend and device, the same on all ranks. A gradient that comes
    twice is in one bucket once."""
    buckets: list[list[Operand]] = []
    open_ones: dict[tuple[Any, ...], tuple[list[Operand], int]] = {}
    for held in {id(held.value): held for held in gradients}.values():
        kind = held.backend.name, dtype_of(held), held.backend.device_of(read(held))
        size = prod(shape_of(held)) * host_dtype(kind[1]).itemsize
        bucket, used = open_ones.get(kind, ([], 0))
        if not bucket or used + size > MOST:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(held)
        open_ones[kind] = bucket, used + size
    return buckets


def average(carrier: Carrier, bucket: list[Operand], weight: Weight | None) -> dict[int, Any]:
    """Averages the gradients of a bucket over the ranks. Returns the means by the gradients' `id`: the gradient itself,
    with the mean written into it, or a new tensor if the gradient cannot be written."""
    if len(bucket) == 1:
        return {id(bucket[0].value): carrier.all_reduce(bucket[0], "mean", weight)}
    engine, backend = carrier.engine, carrier.backend
    flat = [engine.reshaped(carrier.read_only(held), (-1,)) for held in bucket]
    total = carrier.reduce(backend.join(flat), dtype_of(bucket[0]), "mean", weight, "all_reduce")
    parts = backend.split(total, [prod(shape_of(held)) for held in bucket])
    return {
        id(held.value): carrier.place(held, engine.reshaped(part, shape_of(held)))
        for held, part in zip(bucket, parts, strict=True)
    }
