"""Averages gradients over the ranks. `average_gradients` takes gradients that are there already; `averaging` sends them
while others are still computed. Many small gradients are sent as a few long vectors, called buckets, each of one dtype.

In `averaging` the ranks vote twice: before the block on the parameters, and after it on which of them have no gradient.
A rank that raises in between tells the others over the control connection. Gradients that the framework does not report
during the pass are sent after it. Every bucket is sent whole, on all ranks and in the same order, with zeros for
gradients that are None; so the engine stays usable if the second vote fails.

A training step does this for each of some hundred parameters, so the facts about a model are kept in a `Plan`.
"""

from __future__ import annotations

import threading
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    CollectiveMismatchError,
    NotATensorError,
    ScopeError,
    XDeviceError,
    shown,
)
from xdevice.replicas.operands import Operand, dense_leaves, dtype_of, rebuilt, shape_of
from xdevice.tensors import creation, unlisted

from .carrying import Bucket, buckets_of, weight_of
from .signatures import signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.contract import Backend

    from .carrying import Carrier, Weight
    from .session import Session

_COMPARED: Final = "weights"
"""The key in the plans of a model which says that its weights were compared."""


def average_gradients(session: Session, model_or_gradients: Any, weight: float | None) -> Any:
    """Checks what `World.average_gradients` was given, votes on it, sends the gradients in buckets, and writes the
    means."""
    # before the vote, like the argument of every verb: a wrong weight must change nothing on any rank
    own = None if weight is None else weight_of(weight)
    backend = network_backend(model_or_gradients)
    rows = (
        _rows_in(model_or_gradients)
        if backend is None
        else _rows_of(backend, model_or_gradients)
    )
    operands = [operand for _, operand in rows if operand is not None]
    session.ready("average_gradients")
    # a gradient that is in several places travels once
    unique = list({id(operand.value): operand for operand in operands}.values())
    if backend is None:
        session.require(unique, "average_gradients", "mean")
        plan = Plan(unique)
    else:
        plan = _plan(session, "average_gradients", backend, model_or_gradients, unique)
    # a world of one has nothing to average; it checks its arguments as two would
    if session.size == 1:
        session.agree(str, own)
        return model_or_gradients
    carrier = session.carrier

    def call() -> str:
        # the plan has each gradient once; the vote must also compare which gradients are one tensor
        text = plan.text if len(unique) == len(operands) else signatures(operands)
        # a rank that lacks a gradient would send one bucket fewer, so the ranks vote on which are None
        nones = "".join(f"; {name} None" for name, operand in rows if operand is None)
        weights = (
            "" if backend is None else _first_weights(session, backend, model_or_gradients)
        )
        return f"average_gradients{_weighted(own)}: {text}{nones}{weights}"

    def job() -> dict[int, Any]:
        # all buckets are started before the first is waited for, so that they travel while others are packed
        sent = []
        for bucket in plan.buckets:
            gradients = [unique[i] for i in bucket.indices]
            sent.append((gradients, _start(carrier, bucket, gradients, total)))
        means: dict[int, Any] = {}
        for gradients, wait in sent:
            means.update(carrier.place_all(gradients, wait()))
        return means

    # from here on the other ranks are involved: an error closes the world on all of them
    with session.alone("average_gradients"):
        total = session.agree(call, own)
        if backend is not None:
            session.plans[model_or_gradients][_COMPARED] = True
        means = session.call("all_reduce", call, job, operands)
    if backend is not None:
        # a model that keeps a different gradient from the one it was given would go on training without the other ranks
        _require_written(unique, means, "pass the gradients, and use the result")
        return model_or_gradients
    return rebuilt(
        model_or_gradients, operands, [means[id(operand.value)] for operand in operands]
    )


def network_backend(x: Any) -> Backend | None:
    """The backend of the model `x`; None if `x` is no model, or a model that is one variable."""
    owner = registry.kind_of(type(x))
    if owner is None or owner.kind != "model" or owner.backend.tensor_of(x) is not None:
        return None
    return owner.backend


def _rows_of(backend: Backend, model: Any) -> list[tuple[str, Operand | None]]:
    """The names and gradients of a model's trained parameters, in its order; None if a parameter has no gradient."""
    rows = [
        (name, None if gradient is None else Operand(name, gradient, backend, "tensor"))
        for name, _, gradient in backend.gradients(model)
    ]
    if not rows:
        raise NotATensorError(f"{shown(model)} holds no gradient")
    return rows


def _rows_in(x: Any) -> list[tuple[str, Operand | None]]:
    """The gradients in a container, with their paths as names, sorted by them, because two ranks may have filled a dict
    in different orders."""
    name = "gradients" if registry.kind_of(type(x)) is None else "gradient"
    pairs = sorted(
        (name + leaf.path, leaf.value) for leaf in dense_leaves(x, name, "average_gradients")
    )
    if not pairs:
        raise NotATensorError(f"{shown(x)} holds no gradient")
    return [
        (name, None if value is None else _as_operand(name, value)) for name, value in pairs
    ]


def _as_operand(name: str, value: Any) -> Operand:
    owner = registry.kind_of(type(value))
    if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
        raise NotATensorError(
            f"{name} is {shown(value)} of type {type(value).__qualname__}, expected a gradient: a tensor or None"
        )
    return Operand(name, value, *owner)


class Plan:
    """Into which buckets gradients go, by their numbers, and the text for them, on which the ranks vote. It does not
    keep the gradients, which would be a second copy of them after they are set to None."""

    def __init__(self, operands: list[Operand]) -> None:
        self.arrange(operands, [])

    def arrange(self, operands: list[Operand], missing: list[int]) -> None:
        """Sorts gradients like `operands` into buckets. Those that were missing in the step before come last, because a
        bucket waits for all before it."""
        self.missing = missing
        others = [i for i in range(len(operands)) if i not in set(missing)]
        self.buckets = [*buckets_of(operands, others), *buckets_of(operands, missing)]
        self.bucket_numbers = {
            i: number for number, bucket in enumerate(self.buckets) for i in bucket.indices
        }
        self.text = signatures(operands) + "".join(
            f"; {operands[i].name} last" for i in missing
        )


def _facts_of(backend: Backend, name: str, x: Any) -> tuple[Any, ...]:
    return name, backend.is_dense(x), x.dtype, tuple(x.shape), backend.device_of(x)


def _plan(
    session: Session, verb: str, backend: Backend, model: Any, operands: list[Operand]
) -> Plan:
    """The plan for a model's parameters or gradients: that of the step before, if they are what they were then."""
    # a layer that was frozen, moved or resized since the last step changes these facts
    facts = [_facts_of(operand.backend, operand.name, operand.value) for operand in operands]
    # by the model, weakly: a model that is gone takes its plans along
    plans = session.plans.setdefault(model, {})
    if verb not in plans or plans[verb][0] != facts:
        session.require(operands, "all_reduce", "mean")
        unlisted.refuse(backend, model, f"{verb} of", only_trained=True)
        plans[verb] = facts, Plan(operands)
    plan: Plan = plans[verb][1]
    return plan


def _first_weights(session: Session, backend: Backend, model: Any) -> str:
    """A checksum of a model's trained parameters, for the first vote on the model: ranks that begin with other weights
    train apart, whatever gradients they share. "" in later votes."""
    if _COMPARED in session.plans.get(model, {}):
        return ""
    checksum = 0
    for _, variable, _ in backend.gradients(model):
        # a checksum finds different weights well enough, and is short enough for a vote
        checksum = zlib.crc32(creation.to_numpy(variable).tobytes(), checksum)
    return (
        f"; first weights {checksum:08x}, which world.broadcast(model) makes equal on all ranks"
    )


def _start(
    carrier: Carrier, bucket: Bucket, gradients: list[Operand], weight: Weight | None
) -> Callable[[], Any]:
    """Starts to average the gradients of a bucket over the ranks. Returns a function that waits for their means, and
    returns these in one vector."""
    return carrier.start_mean(carrier.pack(gradients), bucket.dtype, weight)


def _require_written(gradients: list[Operand], placed: dict[int, Any], instead: str) -> None:
    """Raises an error if a mean is in a new tensor: the model would keep its own gradient, and the ranks would
    diverge."""
    for operand in gradients:
        if placed[id(operand.value)] is not operand.value:
            raise ArgumentError(f"the gradient of {operand.name} cannot be written; {instead}")


# during the backward pass


@contextmanager
def averaging(session: Session, model: Any, weight: float | None) -> Iterator[None]:
    """The block of `World.averaging`: votes, has the framework report each gradient of the pass, and sends each bucket
    once it is full."""
    own = None if weight is None else weight_of(weight)
    backend = network_backend(model)
    if backend is None:
        raise NotATensorError(
            f"averaging takes a model, not {shown(model)}; average_gradients takes gradients"
        )
    parameters = [_as_operand(name, variable) for name, variable, _ in backend.gradients(model)]
    if not parameters:
        raise NotATensorError(
            f"no parameter of {shown(model)} is trained, so that it will have no gradient"
        )
    session.ready("averaging")
    plan = _plan(session, "averaging", backend, model, parameters)

    def call() -> str:
        weights = _first_weights(session, backend, model)
        return f"averaging{_weighted(own)}: {plan.text}{weights}"

    # raised after the block of `alone`, because every rank raises it and the world stays open
    refused: Exception | None = None
    with session.alone("averaging"):
        total = session.agree(call, own)
        session.plans[model][_COMPARED] = True
        sending = _Sending(session, plan, parameters, total)
        with session.inside("averaging(), whose gradients may be on their way"):
            end = backend.watch_gradients(
                [parameter.value for parameter in parameters], sending.ready
            )
            try:
                yield
            except BaseException:
                # a framework may have replaced the error of the hook by one of its own
                if sending.error is not None:
                    raise sending.error from None
                raise
            finally:
                end()
        refused = _end(session, backend, model, sending, call, _weighted(own))
    if refused is not None:
        raise refused


def _weighted(own: float | None) -> str:
    return (
        ""
        if own is None
        else " weighted (with weight=0, by the gradients of any batch, not by None)"
    )


def _end(
    session: Session,
    backend: Backend,
    model: Any,
    sending: _Sending,
    call: Callable[[], str],
    weighted: str,
) -> Exception | None:
    """Sends the gradients that the pass has left, and votes on which parameters have no gradient before any is written.
    Returns an error that all ranks are to raise."""
    plan, parameters = sending.plan, sending.parameters
    missing = sending.fill_up(list(backend.gradients(model)))
    refused = sending.refused
    if changed := sending.first_changed():
        refused = ArgumentError(
            f"{changed} was written in the block of averaging(), before the ranks' gradients were averaged, so that "
            "the ranks would diverge; only the backward pass belongs in the block: clip gradients and step after it"
        )
    # after the pass it is known which parameters have no gradient
    nones = f"{weighted}{''.join(f'; {parameters[i].name} None' for i in missing)}"
    try:
        session.agree(
            lambda: (
                f"averaging, after the backward pass{nones if refused is None else f'; {refused}'}"
            )
        )
    # the buckets on their way are waited for even so, or the engine would mix them with the next call's
    except CollectiveMismatchError:
        session.call("all_reduce", call, sending.drop, parameters)
        raise
    session.call(
        "all_reduce", call, sending.finish if refused is None else sending.drop, parameters
    )
    # all ranks have just voted on the same missing ones, so all rearrange alike
    if session.options.check and refused is None and missing != plan.missing:
        plan.arrange(parameters, missing)
    return refused


class _Sending:
    """The gradients of one backward pass that are being sent, by the numbers of their parameters."""

    def __init__(
        self, session: Session, plan: Plan, parameters: list[Operand], weight: Weight | None
    ) -> None:
        self.session, self.plan, self.parameters = session, plan, parameters
        self.error: BaseException | None = None
        """The error that `ready` has raised. Paddle raises a SystemError in its place."""
        self.refused: XDeviceError | None = None
        """The error of a gradient that cannot be averaged. It is raised after the pass, when all ranks know of it."""
        self._weight = weight
        self._lacking = [len(bucket.indices) for bucket in plan.buckets]
        self._gradients: dict[int, Any] = {}
        self._sent: list[tuple[list[Operand], Callable[[], Any]]] = []
        self._times_written = [_times_written(parameter) for parameter in parameters]
        self._times_sent: dict[int, int | None] = {}
        # PyTorch runs a backward pass in a thread for each device
        self._lock = threading.Lock()

    def ready(self, i: int, gradient: Any) -> None:
        """Takes a gradient during the backward pass, in any thread, and starts the buckets whose turn it is."""
        with self._lock:
            try:
                self._take(i, gradient)
                self._start(only_full=True)
            except BaseException as error:
                self.error = error
                raise

    def fill_up(self, rows: list[tuple[str, Any, Any | None]]) -> list[int]:
        """Takes the gradients that the framework has not reported, from the names, variables and gradients of the
        model. Returns the numbers of the parameters that have none."""
        # every gradient has come, or the step is lost already
        if not any(self._lacking) or self.refused is not None:
            return []
        parameters = self.parameters
        # by identity: other variables under the same names would be averaged with the wrong ones
        if [id(variable) for _, variable, _ in rows] != [
            id(parameter.value) for parameter in parameters
        ]:
            raise ArgumentError(
                "the trained parameters of the model changed in the block of averaging()"
            )
        for i, (_, _, gradient) in enumerate(rows):
            if gradient is not None and i not in self._gradients:
                self._take(i, gradient)
        return [i for i in range(len(parameters)) if i not in self._gradients]

    def first_changed(self) -> str:
        """The name of the first parameter, or gradient that is being sent, that was written since; "" if there is none,
        or if the framework does not count writes."""
        for i, parameter in enumerate(self.parameters):
            if _times_written(parameter) != self._times_written[i]:
                return parameter.name
        # also the gradients that travel: the engine would overwrite what the program has written
        for i, count in self._times_sent.items():
            name, _, backend, _ = self.parameters[i]
            if backend.times_written(self._gradients[i]) != count:
                return f"the gradient of {name}"
        return ""

    def finish(self) -> None:
        """Waits for the means, and writes them into the gradients."""
        self._start(only_full=False)
        for gradients, wait in self._sent:
            placed = self.session.carrier.place_all(gradients, wait())
            _require_written(gradients, placed, "use average_gradients")

    def drop(self) -> None:
        """Waits for the means and forgets them."""
        self._start(only_full=False)
        for _, wait in self._sent:
            wait()

    def _take(self, i: int, gradient: Any) -> None:
        """Notes a gradient that is there. One that cannot be averaged is kept as an error for after the pass: raised
        here, it would end this rank alone."""
        if i in self._gradients:
            raise ScopeError(
                f"{self.parameters[i].name} got a gradient twice in one block of averaging(), and the first may be "
                "on its way: run one backward pass in the block, and those whose gradients add up to it before the "
                "block"
            )
        try:
            self._require_alike(i, gradient)
        except XDeviceError as error:
            self.refused = self.refused or error
            return
        self._gradients[i] = gradient
        self._times_sent[i] = self.parameters[i].backend.times_written(gradient)
        self._lacking[self.plan.bucket_numbers[i]] -= 1

    def _require_alike(self, i: int, gradient: Any) -> None:
        """Raises if the gradient is not dense, or not like its parameter."""
        name, parameter, backend, _ = self.parameters[i]
        if gradient is None:
            raise ArgumentError(
                f"a hook has taken the gradient of {name} away in averaging(); clear gradients after it"
            )
        if _facts_of(backend, name, gradient) == _facts_of(backend, name, parameter):
            return
        operand = _as_operand(name, gradient)
        self.session.require([operand], "all_reduce", "mean")
        own, expected = (
            f"{dtype_of(one)} {list(shape_of(one))}" for one in (operand, self.parameters[i])
        )
        raise ArgumentError(
            f"the gradient of {name} is {own}, on {backend.device_of(gradient)}, expected {expected} on "
            f"{backend.device_of(parameter)}, as the parameter; use average_gradients"
        )

    def _start(self, only_full: bool) -> None:
        """Starts all remaining buckets, or only the first ones that lack no gradient."""
        buckets = self.plan.buckets if self.session.size > 1 else []
        # in the plan's order on every rank, since engines match calls by their order
        while len(self._sent) < len(buckets) and not (
            only_full and self._lacking[len(self._sent)]
        ):
            bucket = buckets[len(self._sent)]
            gradients = [self._gradient(i) for i in bucket.indices]
            self._sent.append(
                (gradients, _start(self.session.carrier, bucket, gradients, self._weight))
            )

    def _gradient(self, i: int) -> Operand:
        """The gradient of a parameter, or zeros if it has none."""
        parameter = self.parameters[i]
        gradient = self._gradients.get(i)
        if gradient is None:
            backend = parameter.backend
            device = backend.device_of(parameter.value)
            # zeros, so that every rank sends buckets of the same length
            gradient = backend.full(shape_of(parameter), 0.0, device, dtype_of(parameter))
        return Operand(parameter.name, gradient, parameter.backend, "tensor")


def _times_written(parameter: Operand) -> int | None:
    count: int | None = parameter.backend.times_written(parameter.value)
    return count
