"""The collectives on containers of tensors. Each collective checks its argument, votes with the other ranks on the
call, calls the engine, and rebuilds the container with the results.

The whole argument is checked before anything is sent to the other ranks. In a world of one, the
argument is only checked and returned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry
from xdevice.errors import ArgumentError, ShapeError, shown
from xdevice.replicas.operands import (
    Operand,
    leaves_in,
    length_of,
    rebuilt,
    refuse_overlaps,
    require_built,
    shape_of,
    sizes_of_parts,
    summands_in,
    tensors_in,
)
from xdevice.tensors import unlisted

from . import carrying
from .carrying import OPS
from .signatures import non_tensors_text, overlap_text, signatures

if TYPE_CHECKING:
    from xdevice.contract import Backend

    from .session import Session

_checked: dict[tuple[type, Any, str], Backend] = {}
"""Maps the type and dtype of a tensor, together with an operation, to the tensor's backend. An entry means that such a
tensor has passed the checks of a collective in a world of one. Later calls skip most of these checks, so a collective
takes only a microsecond or two. In such a world, the checks would take most of the time."""
_NO_REDUCTION: Final = "none"
"""The operation in the keys of `_checked` for collectives that do not reduce."""


def all_reduce(session: Session, x: Any, op: str, weight: float | None) -> Any:
    """Does the work of `World.all_reduce`: checks the arguments, votes on them, and reduces
    each tensor. Many small tensors are reduced in one call of the engine. `weight` is the
    weight of this rank in a mean, or None if all ranks have equal weights."""
    _require_op("all_reduce", op)
    # a world of one returns its argument
    if (
        session.is_ready_world_of_one
        and _is_checked(session, x, op)
        and (weight is None or (op == "mean" and _is_positive_weight(weight)))
    ):
        return x
    own_weight = None if weight is None else carrying.weight_of(weight)
    # weights make no sense for a sum, maximum or minimum
    if own_weight is not None and op != "mean":
        raise ArgumentError(f"a weight is allowed only with op='mean', but op is {shown(op)}")
    x = registry.as_array(x)
    operands = _sorted_by_path(_summands(x))
    session.require_ready("all_reduce", operands, op)
    # if two tensors shared memory, writing the result for the first would change the second
    # before the second is sent
    if len(operands) > 1:
        refuse_overlaps(operands)
    if session.size == 1:
        # refuses a weight of 0, as a larger world does. `str`, which returns "", replaces the
        # function that describes the call, because nothing is sent
        session.agree_on_call(str, own_weight)
        _remember_checked(x, op)
        return x
    carrier, unique = session.carrier, _without_repeats(operands)

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        return f"all_reduce {op}{' weighted' if own_weight is not None else ''}: {signatures(operands)}"

    # runs after the vote, which sets `weight_and_total`
    def job() -> dict[int, Any]:
        """Reduces the tensors, and returns a dict that maps the `id` of each tensor to its result."""
        return carrier.run_one_by_one_or_packed(
            unique,
            run_one=lambda operand: carrier.all_reduce(operand, op, weight_and_total),
            run_packed=lambda vector, dtype: carrier.reduce(
                vector, dtype, op, weight_and_total, verb="all_reduce"
            ),
        )

    with session.exclusive("all_reduce"):
        weight_and_total = session.agree_on_call(describe_call, own_weight)
        new = session.call_engine("all_reduce", describe_call, job, unique)
    return _replaced(x, operands, new)


def broadcast(session: Session, x: Any, root: int) -> Any:
    """Does the work of `World.broadcast`: checks the arguments, votes on them, and sends each variable and tensor. Many
    small variables and tensors are sent in one call of the engine. `root` is the rank whose values all ranks receive.
    """
    session.require_rank(root, "root")
    if session.is_ready_world_of_one and _is_checked(session, x, _NO_REDUCTION):
        return x
    x = registry.as_array(x)
    operands = _sorted_by_path(leaves_in(x, name="x", verb="broadcast"))
    # raises the error for a container without tensors
    if not operands:
        tensors_in(x, name="x", verb="broadcast")
    require_built(operands)
    # each model is replaced by its variables, which are sent like tensors
    variables = [variable for operand in operands for variable in _variables(operand)]
    session.require_ready("broadcast", variables)
    if session.size == 1:
        _remember_checked(x, _NO_REDUCTION)
        return x
    carrier, unique = session.carrier, _without_repeats(variables)

    # the tensors of an optimizer are sent, but its numbers, such as the learning rate, are only compared
    settings = "".join(
        f"; {operand.name} {text}"
        for operand in operands
        if operand.kind == "model" and (text := operand.backend.hyperparameters(operand.value))
    )

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        tensors = f"{signatures(variables)}{overlap_text(variables)}"
        return f"broadcast from {root}: {tensors}{non_tensors_text(x)}{settings}"

    def job() -> dict[int, Any]:
        """Sends the tensors, and returns a dict that maps the `id` of each tensor to its result."""
        return carrier.run_one_by_one_or_packed(
            unique,
            run_one=lambda operand: carrier.broadcast(operand, root),
            run_packed=lambda vector, _: carrier.engine.broadcast(vector, root),
        )

    return _replaced(
        x, operands, session.agree_and_call("broadcast", describe_call, job, unique)
    )


def all_gather(session: Session, x: Any, even: bool) -> Any:
    """Does the work of `World.all_gather`: checks the arguments, votes on them, and gathers the
    tensors one by one. `even` is True if the first axis of each tensor has the same length on all ranks."""
    if session.is_ready_world_of_one and _is_checked(session, x, _NO_REDUCTION):
        return x
    x = registry.as_array(x)
    operands = _sorted_by_path(tensors_in(x, name="x", verb="all_gather"))
    session.require_ready("all_gather", operands)
    if session.size == 1:
        # a 0-d tensor becomes a vector with one number for each rank, even if there is only one rank
        scalars = [operand for operand in operands if not shape_of(operand)]
        _remember_checked(x, _NO_REDUCTION)
        return _replaced(
            x,
            operands,
            {id(scalar.value): scalar.backend.join([scalar.value]) for scalar in scalars},
        )
    carrier = session.carrier
    # for each tensor, whether the length of its first axis may differ between the ranks; a 0-d tensor has no such axis
    uneven = [not even and bool(shape_of(operand)) for operand in operands]

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        return f"all_gather: {signatures(operands, uneven)}{non_tensors_text(x)}"

    with session.exclusive("all_gather"):
        # for each tensor, the lengths of its first axis on all ranks, or None if this length is the same on all ranks
        lengths: list[list[int] | None] = [None] * len(operands)
        if any(uneven):
            lengths = _exchange_lengths(session, describe_call(), operands)
        else:
            session.agree_on_call(describe_call)
        gathered = session.call_engine(
            "all_gather",
            describe_call,
            lambda: list(map(carrier.all_gather, operands, lengths)),
            # `call_engine` allows time for the size of these tensors, and each rank receives the tensors of all ranks
            operands * session.size,
        )
    return rebuilt(x, operands, gathered)


def _exchange_lengths(
    session: Session, call: str, operands: list[Operand]
) -> list[list[int] | None]:
    """Votes on `call`, the string that describes the call, and in the same vote exchanges the
    lengths of the tensors' first axes. Returns a list with one item for each tensor: the
    lengths of its first axis on all ranks, or None if it is a 0-d tensor."""
    # an item is (length,) for a tensor, or () for a 0-d tensor
    own_lengths = [shape_of(operand)[:1] for operand in operands]
    lengths_of_ranks = [
        json.loads(text) for text in session.vote(call, json.dumps(own_lengths))
    ]
    return [
        [lengths[i][0] for lengths in lengths_of_ranks] if own_lengths[i] else None
        for i in range(len(operands))
    ]


def reduce_scatter(session: Session, x: Any, op: str) -> Any:
    """Does the work of `World.reduce_scatter`: checks the arguments, votes on them, and reduces
    the tensors one by one."""
    _require_op("reduce_scatter", op)
    if session.is_ready_world_of_one and _is_checked(session, x, op):
        return x
    x = registry.as_array(x)
    operands = _sorted_by_path(_summands(x))
    for operand in operands:
        carrying.require_reducible(operand, op)
        length = length_of([operand])
        # each rank gets an equal part, because engines do not support parts of different lengths
        if length % session.size:
            raise ShapeError(
                f"{operand.name} has a first axis of length {length}, which cannot be divided "
                f"evenly among {session.size} ranks"
            )
    session.require_ready("reduce_scatter", operands, op)
    if session.size == 1:
        _remember_checked(x, op)
        return x
    carrier = session.carrier

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        return f"reduce_scatter {op}: {signatures(operands)}"

    new = session.agree_and_call(
        "reduce_scatter",
        describe_call,
        lambda: [carrier.reduce_scatter(operand, op) for operand in operands],
        operands,
    )
    return rebuilt(x, operands, new)


def send(session: Session, x: Any, to: int) -> None:
    """Does the work of `World.send`."""
    _send_or_receive(session, "send", x, partner=to, name="to")


def recv(session: Session, like: Any, source: int) -> Any:
    """Does the work of `World.recv`: returns the tensors with the received values."""
    return _send_or_receive(session, "recv", like, partner=source, name="source")


def _send_or_receive(session: Session, verb: str, x: Any, partner: int, name: str) -> Any:
    """Sends or receives the tensors in `x`. `verb` is "send" or "recv", `partner` is the rank at
    the other end, and `name` is the name of the argument that contains this rank, for errors.
    Returns None for "send", and the tensors with the received values for "recv"."""
    session.require_rank(partner, name)
    if partner == session.rank:
        raise ArgumentError(
            f"{name}={partner} is the calling rank itself; {verb} requires a different rank"
        )
    x = registry.as_array(x)
    operands = _sorted_by_path(tensors_in(x, name="x", verb=verb))
    session.require_ready(verb, operands)
    carrier = session.carrier
    # the string that must be the same on both ranks
    contents = signatures(operands) + non_tensors_text(x)

    def describe_call() -> str:
        """Returns the string that describes this call. The hub receives the string only if the call takes a long
        time."""
        return f"{verb} with rank {partner}: {contents}"

    # without `agree_on_call`, because the other ranks of the world take no part in this call
    with session.exclusive(verb):
        # the two ranks vote even with check=False, because otherwise a rank whose partner
        # expects a different tensor would hang in the engine
        session.line.vote_on_pair(verb, partner, contents)
        if verb == "send":
            session.call_engine(
                "send", describe_call, lambda: carrier.send(operands, partner), operands
            )
            return None
        new = session.call_engine(
            "recv",
            describe_call,
            lambda: [carrier.recv(operand, partner) for operand in operands],
            operands,
        )
    return rebuilt(x, operands, new)


def split_batch(session: Session, x: Any, even: bool) -> Any:
    """Does the work of `World.split_batch`: returns this rank's part of each tensor. Nothing is
    sent, so there is no vote."""
    if session.is_ready_world_of_one and _is_checked(session, x, _NO_REDUCTION):
        return x
    x = registry.as_array(x)
    operands = tensors_in(x, name="x", verb="split")
    sizes = sizes_of_parts(length_of(operands), session.size, even, what="ranks")
    # not `require_ready`, which would also check the requirements of the engine, but nothing is sent here
    session.require_open("split_batch")
    if session.size == 1:
        _remember_checked(x, _NO_REDUCTION)
        return x
    # a tensor that occurs twice in the container is still one tensor in the result
    unique = _without_repeats(operands)
    parts = {
        id(operand.value): operand.backend.split(operand.value, sizes)[session.rank]
        for operand in unique
    }
    return _replaced(x, operands, parts)


# checking the arguments


def _require_op(verb: str, op: str) -> None:
    """Raises `ArgumentError` if `op` is not the name of a reduction."""
    if op not in OPS:
        raise ArgumentError(f"{verb}: op must be one of {', '.join(OPS)}, not {shown(op)}")


def _summands(x: Any) -> list[Operand]:
    """Returns the tensors in `x`, which is a tensor or a container. Raises an error if a container has no tensor, or
    contains anything other than dense tensors, such as None, a number or a sparse tensor. A single tensor is not
    checked here, because `Session.require_ready` checks all operands."""
    owner = registry.owner_and_kind(type(x))
    # in the usual case, a single tensor, no container is walked
    if owner is not None and owner.kind == "tensor":
        return [Operand("x", x, *owner)]
    operands = summands_in(x, name="x", who="this rank")
    # raises the error for a container without tensors
    if not operands:
        tensors_in(x, name="x", verb="all_reduce")
    return operands


def _variables(operand: Operand) -> list[Operand]:
    """Returns the operands to send in place of `operand`. For a model, returns each of its variables once, including
    the variables of layers that the framework does not list. For a tensor, returns only `operand` itself.
    """
    backend = operand.backend
    # a TensorFlow variable is treated as a model, but consists of one tensor
    if operand.kind != "model" or backend.tensor_of(operand.value) is not None:
        return [operand]
    # the model itself has the path "", and each model that the framework does not list has its own path
    models = unlisted.WholeModel(backend, operand.value).models
    # the keys are the `id`s of the variables, so a shared variable is listed once
    unique = {
        id(value): (f"{path}.{name}".lstrip("."), value)
        for path, owner, model in models
        for name, value in owner.variables(model)
    }
    return [
        Operand(
            f"{operand.name}.{name}",
            value,
            # `owner_and_kind` never returns None here, because a variable is a tensor or a `tf.Variable`
            *(registry.owner_and_kind(type(value)) or (backend, "tensor")),
        )
        for name, value in unique.values()
    ]


def _sorted_by_path(operands: list[Operand]) -> list[Operand]:
    """Returns the operands, sorted by their paths in the container, because two ranks may have
    filled a dict in different orders."""
    return sorted(operands, key=lambda operand: operand.name) if len(operands) > 1 else operands


def _without_repeats(operands: list[Operand]) -> list[Operand]:
    """Returns one operand for each distinct value. Values are compared by identity."""
    return list({id(operand.value): operand for operand in operands}.values())


def _replaced(x: Any, operands: list[Operand], new: dict[int, Any]) -> Any:
    """Returns the container `x` with some values replaced. `new` maps the `id` of each old
    value to the new value. Operands whose value is not in `new` remain unchanged. Returns `x`
    itself if `new` is empty."""
    if not new:
        return x
    return rebuilt(
        x, operands, [new.get(id(operand.value), operand.value) for operand in operands]
    )


# collectives in a world of one process, without the full checks


def _is_checked(session: Session, x: Any, op: str) -> bool:
    """Whether a world of one can return `x` without the full checks. Another tensor of the same type and dtype must
    have passed the full checks. `x` itself must be dense, have a first axis, and be on the CPU or on the device of the
    session.
    """
    backend = _checked.get((type(x), getattr(x, "dtype", None), op))
    # for a tensor without a first axis, `all_gather` returns a vector, and `split_batch` raises an error
    if backend is None or not backend.is_dense(x) or not len(x.shape):
        return False
    # raises an error inside `torch.func.grad`, where other objects replace the tensors
    backend.detached(x)
    device = backend.device_of(x)
    return device.kind == "cpu" or device is session.device


def _remember_checked(x: Any, op: str) -> None:
    """Records that `x` has passed the full checks for `op`, if `x` is a tensor and not a container."""
    owner = registry.owner_and_kind(type(x))
    if owner is not None and owner.kind == "tensor":
        _checked[type(x), x.dtype, op] = owner.backend


def _is_positive_weight(weight: object) -> bool:
    """Whether a weight is a finite number above 0, which every rank accepts."""
    return type(weight) in (int, float) and 0 < weight < float("inf")  # type: ignore[operator]
