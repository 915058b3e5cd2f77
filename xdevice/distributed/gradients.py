"""Averages gradients over the ranks: those that are there, by `average_gradients`; `averaging` sends them while others
are still computed. Many small gradients are sent as a few long vectors, called buckets, each of one dtype."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base.dtypes import host_dtype
from xdevice.core import registry
from xdevice.errors import NotATensorError, shown
from xdevice.replicas.operands import Operand, dense_leaves, dtype_of, read, rebuilt, shape_of

from . import carrying
from .collectives import require_weight
from .signatures import signatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend

    from .carrying import Carrier, Weight
    from .session import Session

MOST: Final = 25 * 2**20
"""The most bytes in a bucket. A gradient with more bytes has a bucket to itself."""
MOST_IN_FIRST: Final = 2**20
"""The most bytes in the first bucket of each kind, which is small so that it travels early."""


class Gradient(NamedTuple):
    """A gradient's name, and the gradient with its backend; None if the parameter has no gradient."""

    name: str
    held: Operand | None


def average_gradients(session: Session, model_or_gradients: Any, weight: float | None) -> Any:
    own = None if weight is None else carrying.weight_of(weight)
    if session.size == 1:
        require_weight(own)
        return model_or_gradients
    gradients = gradients_in(model_or_gradients)
    found = [one.held for one in gradients if one.held is not None]
    carrier = session.ready("average_gradients")
    for held in found:
        carrier.require(held, "all_reduce", "mean")

    def call() -> str:
        nones = "".join(f"; {one.name} None" for one in gradients if one.held is None)
        return f"average_gradients{' weighted' if own is not None else ''}: {signatures(found)}{nones}"

    def job() -> list[dict[int, Any]]:
        each_once = [(0, held) for held in {id(held.value): held for held in found}.values()]
        buckets = [[held for _, held in rows] for rows in fill(each_once)]
        sent = [(bucket, start(carrier, bucket, total)) for bucket in buckets]
        return [place(carrier, bucket, finish()) for bucket, finish in sent]

    with session.alone("average_gradients"):
        total = session.agree(call, own)
        rows = session.call("all_reduce", call, job, found)
    new = {key: value for row in rows for key, value in row.items()}
    if registry.kind_of(type(model_or_gradients)) is not None and id(model_or_gradients) not in new:
        return model_or_gradients
    return rebuilt(model_or_gradients, found, [new[id(held.value)] for held in found])


def gradients_in(x: Any) -> list[Gradient]:
    """The gradients of the model `x` in its order, or of the container `x` by their paths, because two ranks may have
    filled a dict in different orders."""
    backend = backend_of_network(x)
    if backend is not None:
        pairs = [(name, gradient) for name, _, gradient in backend.gradients(x)]
    else:
        name = "gradients" if registry.kind_of(type(x)) is None else "gradient"
        pairs = sorted((name + leaf.path, leaf.value) for leaf in dense_leaves(x, name, "average_gradients"))
    if not pairs:
        raise NotATensorError(f"{shown(x)} holds no gradient")
    return [Gradient(name, None if value is None else as_operand(name, value)) for name, value in pairs]


def backend_of_network(x: Any) -> Backend | None:
    """The backend of the model `x`; None if `x` is no model, or a model that is one variable."""
    found = registry.kind_of(type(x))
    is_model = found is not None and found.kind == "model" and found.backend.tensor_of(x) is None
    return found.backend if found is not None and is_model else None


def as_operand(name: str, value: Any) -> Operand:
    owner = registry.kind_of(type(value))
    if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
        raise NotATensorError(
            f"{name} is {shown(value)} of type {type(value).__qualname__}, expected a gradient: a tensor or None"
        )
    return Operand(name, value, *owner)


def fill(tensors: list[tuple[Any, Operand]]) -> list[list[tuple[Any, Operand]]]:
    """Sorts tensors, each with any key, into buckets of one dtype, backend and device, the same on all ranks. The last
    tensors come first, because a backward pass computes their gradients first."""
    buckets: list[list[tuple[Any, Operand]]] = []
    open_ones: dict[tuple[Any, ...], tuple[list[tuple[Any, Operand]], int, int]] = {}
    for key, held in reversed(tensors):
        kind = held.backend.name, dtype_of(held), held.backend.device_of(read(held))
        size = prod(shape_of(held)) * host_dtype(kind[1]).itemsize
        bucket, used, most = open_ones.get(kind, ([], 0, MOST_IN_FIRST))
        if not bucket or used + size > most:
            most = MOST if bucket else most
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append((key, held))
        open_ones[kind] = bucket, used + size, most
    return buckets


def start(carrier: Carrier, bucket: list[Operand], weight: Weight | None) -> Callable[[], Any]:
    """Starts to average the gradients of a bucket over the ranks. Returns a function that waits for their means, and
    returns these in one vector."""
    return carrier.start_mean(carrier.pack(bucket), dtype_of(bucket[0]), weight)


def place(carrier: Carrier, bucket: list[Operand], means: Any) -> dict[int, Any]:
    """Writes the means into the gradients of a bucket. Returns them by the gradients' `id`: the gradient itself, or a
    new tensor if the gradient cannot be written."""
    if carrier.unpack(means, bucket):
        return {id(held.value): held.value for held in bucket}
    engine = carrier.engine
    parts = carrier.backend.split(means, [prod(shape_of(held)) for held in bucket])
    return {
        id(held.value): carrier.place(held, engine.reshaped(part, shape_of(held)))
        for held, part in zip(bucket, parts, strict=True)
    }
