"""The collectives on containers of tensors: each checks its argument, votes with the other ranks on the call, calls the
engine, and rebuilds the container around the results.

The whole argument is checked before the other ranks are told anything. In a world of one, it is checked and returned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xdevice.core import registry
from xdevice.errors import ArgumentError, ShapeError, shown
from xdevice.replicas import operands
from xdevice.replicas.operands import Operand, rebuilt

from . import carrying
from .carrying import OPS
from .session import NO_WEIGHT
from .signatures import overlap, signatures, unsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Session

_known: set[tuple[type, Any, str]] = set()
"""The types of tensors, dtypes and operations that have passed the checks of a collective in a world of one rank. They
are not checked again, because in such a world the checks take most of the time."""


def all_reduce(session: Session, x: Any, op: str, weight: float | None) -> Any:
    if session.size == 1 and _is_known(x, op) and (weight is None or (op == "mean" and _is_plain(weight))):
        return x
    _require_op("all_reduce", op)
    own = None if weight is None else carrying.weight_of(weight)
    if own is not None and op != "mean":
        raise ArgumentError(f"a weight counts in op='mean', and op is {shown(op)}")
    x = registry.as_array(x)
    found = _sort(_summands(x))
    if session.size == 1:
        for held in found:
            operands.refuse_sparse(held, "all_reduce")
            carrying.check_op(held, op)
        require_weight(own)
        _know(x, op)
        return x
    carrier = session.ready("all_reduce", found, op)
    if len(found) > 1:
        operands.refuse_overlaps(found)

    def call() -> str:
        return f"all_reduce {op}{' weighted' if own is not None else ''}: {signatures(found)}"

    with session.alone("all_reduce"):
        total = session.agree(call, own)
        if len(found) == 1:
            new = session.call("all_reduce", call, lambda: carrier.all_reduce(found[0], op, total), found)
            return x if new is x else rebuilt(x, found, [new])
        unique = _each_once(found)
        rows = session.call(
            "all_reduce", call, lambda: _map(unique, lambda h: carrier.all_reduce(h, op, total)), unique
        )
    return rebuilt(x, found, [rows[id(held.value)] for held in found])


def broadcast(session: Session, x: Any, root: int) -> Any:
    session.require_rank(root, "root")
    if session.size == 1 and _is_known(x, "all_gather"):
        return x
    x = registry.as_array(x)
    found = _sort(operands.leaves_in(x, "x", "broadcast"))
    if not found:
        operands.tensors_in(x, "x", "broadcast")
    operands.require_built(found)
    if session.size == 1:
        for held in found:
            if held.kind != "model":
                operands.refuse_sparse(held, "broadcast")
        _know(x, "all_gather")
        return x
    parts = [part for held in found for part in _variables(held)]
    carrier = session.ready("broadcast", parts)
    unique = _each_once(parts)

    def call() -> str:
        return f"broadcast from {root}: {signatures(parts)}{overlap(parts)}{unsent(x)}"

    new = session.agree_and_call("broadcast", call, lambda: _map(unique, lambda h: carrier.broadcast(h, root)), unique)
    return rebuilt(x, found, [new.get(id(held.value), held.value) for held in found])


def all_gather(session: Session, x: Any, even: bool) -> Any:
    if session.size == 1 and _is_known(x, "all_gather"):
        return x
    x = registry.as_array(x)
    found = _sort(operands.tensors_in(x, "x", "all_gather"))
    for held in found:
        operands.refuse_symbol(held)
    if session.size == 1:
        numbers = [held for held in found if not operands.shape_of(held)]
        new = {id(held.value): held.backend.join([held.value]) for held in numbers}
        _know(x, "all_gather")
        return rebuilt(x, found, [new.get(id(held.value), held.value) for held in found]) if new else x
    carrier = session.ready("all_gather", found)
    uneven = [not even and bool(operands.shape_of(held)) for held in found]

    def call() -> str:
        return f"all_gather: {signatures(found, uneven)}{unsent(x)}"

    with session.alone("all_gather"):
        lengths: list[list[int] | None] = [None] * len(found)
        if any(uneven):
            lengths = _exchange_lengths(session, call(), found)
        else:
            session.agree(call)
        rows = list(zip(found, lengths, strict=True))
        new_ones = session.call(
            "all_gather", call, lambda: [carrier.all_gather(*row) for row in rows], found * session.size
        )
    return rebuilt(x, found, new_ones)


def _exchange_lengths(session: Session, call: str, found: list[Operand]) -> list[list[int] | None]:
    """For each tensor, the lengths of its first axis on all ranks, which are exchanged in the vote; None for a 0-d
    tensor."""
    own = [operands.shape_of(held)[:1] for held in found]
    rows = [json.loads(text) for text in session.vote(call, json.dumps(own))]
    return [[row[i][0] for row in rows] if own[i] else None for i in range(len(found))]


def reduce_scatter(session: Session, x: Any, op: str) -> Any:
    if session.size == 1 and _is_known(x, op):
        return x
    _require_op("reduce_scatter", op)
    x = registry.as_array(x)
    found = _sort(_summands(x))
    for held in found:
        carrying.check_op(held, op)
        length = operands.length_of([held])
        if length % session.size:
            raise ShapeError(
                f"{held.name} has {length} along its first axis, which {session.size} ranks do not divide evenly"
            )
    if session.size == 1:
        _know(x, op)
        return x
    carrier = session.ready("reduce_scatter", found, op)

    def call() -> str:
        return f"reduce_scatter {op}: {signatures(found)}"

    new = session.agree_and_call(
        "reduce_scatter", call, lambda: [carrier.reduce_scatter(held, op) for held in found], found
    )
    return rebuilt(x, found, new)


def send(session: Session, x: Any, to: int) -> None:
    _pair(session, "send", x, to, "to")


def recv(session: Session, like: Any, source: int) -> Any:
    return _pair(session, "recv", like, source, "source")


def _pair(session: Session, verb: str, x: Any, other: int, name: str) -> Any:
    session.require_rank(other, name)
    if other == session.rank:
        raise ArgumentError(f"{name} is {other}, which is this rank; {verb} is between two")
    x = registry.as_array(x)
    found = _sort(operands.tensors_in(x, "x", verb))
    carrier = session.ready(verb, found)
    what = signatures(found) + unsent(x)

    def call() -> str:
        return f"{verb} with rank {other}: {what}"

    with session.alone(verb):
        session.line.pair(verb, other, what)
        if verb == "send":
            session.call("send", call, lambda: carrier.send(found, other), found)
            return None
        new = session.call("recv", call, lambda: [carrier.recv(held, other) for held in found], found)
    return rebuilt(x, found, new)


def split_batch(session: Session, x: Any, even: bool) -> Any:
    if session.size == 1 and _is_known(x, "all_gather"):
        return x
    x = registry.as_array(x)
    found = operands.tensors_in(x, "x", "split")
    sizes = operands.sizes_of(operands.length_of(found), session.size, even, "ranks")
    if session.size == 1:
        _know(x, "all_gather")
        return x
    session.require_open("split_batch")
    parts = _map(found, lambda held: held.backend.split(held.value, sizes)[session.rank])
    return rebuilt(x, found, [parts[id(held.value)] for held in found])


# checking the arguments


def _require_op(verb: str, op: str) -> None:
    if op not in OPS:
        raise ArgumentError(f"{verb} makes one of {', '.join(OPS)}, not {shown(op)}")


def require_weight(total: float | None) -> None:
    if total == 0:
        raise ArgumentError(NO_WEIGHT)


def _summands(x: Any) -> list[Operand]:
    owner = registry.kind_of(type(x))
    if owner is not None and owner.kind == "tensor":
        return [Operand("x", x, *owner)]
    found = operands.summands_in(x, "x", "this rank")
    if not found:
        operands.tensors_in(x, "x", "all_reduce")
    return found


def _variables(held: Operand) -> list[Operand]:
    """What to send for `held`: the variables of a model, each once; for a tensor, `held` itself."""
    backend = held.backend
    if held.kind != "model" or backend.tensor_of(held.value) is not None:
        return [held]
    unique = {id(value): (name, value) for name, value in backend.variables(held.value)}
    return [
        Operand(f"{held.name}.{name}", value, *(registry.kind_of(type(value)) or (backend, "tensor")))
        for name, value in unique.values()
    ]


def _sort(found: list[Operand]) -> list[Operand]:
    """The tensors and models to send, sorted by their paths, because two ranks may have filled a dict in different
    orders."""
    return sorted(found, key=lambda held: held.name) if len(found) > 1 else found


def _each_once(found: list[Operand]) -> list[Operand]:
    return list({id(held.value): held for held in found}.values())


def _map(parts: list[Operand], one: Callable[[Operand], Any]) -> dict[int, Any]:
    return {id(held.value): one(held) for held in _each_once(parts)}


# a world of one


def _is_known(x: Any, what: str) -> bool:
    return (type(x), getattr(x, "dtype", None), what) in _known and len(x.shape) > 0


def _know(x: Any, what: str) -> None:
    owner = registry.kind_of(type(x))
    if owner is not None and owner.kind == "tensor":
        _known.add((type(x), x.dtype, what))


def _is_plain(weight: object) -> bool:
    return type(weight) in (int, float) and 0 < weight < float("inf")  # type: ignore[operator]
