"""`averaging`: gradients travel to the other ranks while the backward pass computes the next ones.

The ranks vote twice: before the block on the parameters, and after it on which of them have no gradient. A rank that
raises in between tells the others over the control connection. What the framework does not tell during the pass is sent
after it. Every bucket is sent whole, on all ranks and in the same order, with zeros for gradients that are None; so the
engine stays usable if the second vote fails.

A training step does this for each of some hundred parameters, so what is known of a model is kept in a `Plan`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xdevice.errors import ArgumentError, CollectiveMismatchError, NotATensorError, ScopeError, shown
from xdevice.replicas.operands import Operand, dtype_of, shape_of

from . import carrying, gradients
from .collectives import require_weight
from .signatures import signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xdevice.contract import Backend

    from .carrying import Carrier, Weight
    from .session import Session


@contextmanager
def averaging(session: Session, model: Any, weight: float | None) -> Iterator[None]:
    own = None if weight is None else carrying.weight_of(weight)
    backend = gradients.backend_of_network(model)
    if backend is None:
        raise NotATensorError(f"averaging takes a model, not {shown(model)}; average_gradients takes gradients")
    rows = [(name, variable) for name, variable, _ in backend.gradients(model)]
    if not rows:
        raise NotATensorError(f"no parameter of {shown(model)} is trained, so that it will have no gradient")
    if session.size == 1:
        require_weight(own)
        yield
        return
    plan = _plan(session, session.ready("averaging"), backend, model, rows)

    def call() -> str:
        return f"averaging{' weighted' if own is not None else ''}: {plan.told}"

    with session.alone("averaging"):
        sending = _Sending(plan, session.agree(call, own))
        with session.inside("averaging(), whose gradients may be on their way"):
            end = backend.watch_gradients(plan.variables, sending.ready)
            try:
                yield
            except BaseException:
                if sending.error is not None:
                    raise sending.error from None
                raise
            finally:
                end()
        _finish(session, model, sending, call)


def _finish(session: Session, model: Any, sending: _Sending, call: Callable[[], str]) -> None:
    plan = sending.plan
    missing = sending.fill_up(model)
    nones = "".join(f"; {plan.operands[i].name} None" for i in missing)
    try:
        session.agree(lambda: f"averaging, after the backward pass{nones}")
    except CollectiveMismatchError:
        session.call("all_reduce", call, sending.drop, plan.operands)
        raise
    session.call("all_reduce", call, sending.finish, plan.operands)
    if session.options.check and missing != plan.missing:
        plan.put_last(missing)


class Plan:
    """What is known of a model's trained parameters, and into which buckets their gradients go, by their numbers."""

    def __init__(self, carrier: Carrier, backend: Backend, rows: list[tuple[str, Any]], marks: list[Any]) -> None:
        self.carrier, self.backend, self.marks = carrier, backend, marks
        self.variables = [variable for _, variable in rows]
        self.operands = [gradients.as_operand(*row) for row in rows]
        for one in self.operands:
            carrier.require(one, "all_reduce", "mean")
        self.put_last([])

    def put_last(self, missing: Sequence[int]) -> None:
        """Sorts the gradients into buckets. Those that were missing in the step before come last, because a bucket
        waits for all before it."""
        self.missing = missing
        late = [(i, self.operands[i]) for i in missing]
        others = [row for row in enumerate(self.operands) if row[0] not in set(missing)]
        buckets = [*gradients.fill(others), *gradients.fill(late)]
        self.buckets = [[i for i, _ in bucket] for bucket in buckets]
        self.bucket_of = {i: number for number, bucket in enumerate(self.buckets) for i in bucket}
        self.told = signatures(self.operands) + "".join(f"; {one.name} last" for _, one in late)

    def require(self, i: int, gradient: Any) -> None:
        """Raises if the gradient is not dense, or not like its parameter."""
        if self.backend.is_dense(gradient) and _mark(self.backend, gradient) == self.marks[i][2:]:
            return
        name = self.operands[i].name
        held = gradients.as_operand(name, gradient)
        self.carrier.require(held, "all_reduce", "mean")
        found, wanted = (f"{dtype_of(one)} {list(shape_of(one))}" for one in (held, self.operands[i]))
        raise ArgumentError(
            f"the gradient of {name} is {found}, on {self.backend.device_of(gradient)}, expected {wanted} on "
            f"{self.backend.device_of(self.variables[i])}, as the parameter; use average_gradients"
        )


def _plan(session: Session, carrier: Carrier, backend: Backend, model: Any, rows: list[tuple[str, Any]]) -> Plan:
    """The plan for the model: the one of the step before, if its parameters are what they were then."""
    marks = [(name, id(variable), *_mark(backend, variable)) for name, variable in rows]
    plan: Plan | None = session.plans.get(model)
    if plan is None or plan.marks != marks:
        plan = session.plans[model] = Plan(carrier, backend, rows, marks)
    return plan


def _mark(backend: Backend, x: Any) -> tuple[Any, ...]:
    return x.dtype, x.shape, backend.device_of(x)


class _Sending:
    """The gradients of one backward pass on their way, by the numbers of their parameters."""

    def __init__(self, plan: Plan, weight: Weight | None) -> None:
        self.plan = plan
        self.error: BaseException | None = None
        """What `ready` has raised. Paddle raises a SystemError in its place."""
        self._weight = weight
        self._lacking = [len(bucket) for bucket in plan.buckets]
        self._found: dict[int, Any] = {}
        self._sent: list[tuple[list[Operand], Callable[[], Any]]] = []
        self._lock = threading.Lock()

    def ready(self, i: int, gradient: Any) -> None:
        """Takes a gradient during the backward pass, in any thread, and starts the buckets whose turn it is."""
        with self._lock:
            try:
                self._take(i, gradient)
                while len(self._sent) < len(self._lacking) and not self._lacking[len(self._sent)]:
                    self._start()
            except BaseException as error:
                self.error = error
                raise

    def fill_up(self, model: Any) -> list[int]:
        """Takes the gradients that came without a word. Returns the numbers of the parameters that have none."""
        if not any(self._lacking):
            return []
        plan = self.plan
        now = list(plan.backend.gradients(model))
        if [id(variable) for _, variable, _ in now] != [id(variable) for variable in plan.variables]:
            raise ArgumentError("the trained parameters of the model changed in the block of averaging()")
        for i, (_, _, gradient) in enumerate(now):
            if gradient is not None and i not in self._found:
                self._take(i, gradient)
        return [i for i in range(len(plan.operands)) if i not in self._found]

    def finish(self) -> None:
        """Waits for the means, and writes them into the gradients."""
        self._start_all()
        for bucket, wait in self._sent:
            new = gradients.place(self.plan.carrier, bucket, wait())
            for held in bucket:
                if new[id(held.value)] is not held.value:
                    raise ArgumentError(f"the gradient of {held.name} cannot be written; use average_gradients")

    def drop(self) -> None:
        """Waits for the means and forgets them."""
        self._start_all()
        for _, wait in self._sent:
            wait()

    def _take(self, i: int, gradient: Any) -> None:
        if i in self._found:
            raise ScopeError(
                f"{self.plan.operands[i].name} got a gradient twice in one block of averaging(), and the first may be "
                "on its way: run one backward pass in the block, and those whose gradients add up to it before the "
                "block"
            )
        self.plan.require(i, gradient)
        self._found[i] = gradient
        self._lacking[self.plan.bucket_of[i]] -= 1

    def _start_all(self) -> None:
        while len(self._sent) < len(self._lacking):
            self._start()

    def _start(self) -> None:
        plan = self.plan
        bucket = [self._operand(i) for i in plan.buckets[len(self._sent)]]
        self._sent.append((bucket, gradients.start(plan.carrier, bucket, self._weight)))

    def _operand(self, i: int) -> Operand:
        name, variable, backend, _ = self.plan.operands[i]
        gradient = self._found.get(i)
        if gradient is None:
            shape, dtype = shape_of(self.plan.operands[i]), dtype_of(self.plan.operands[i])
            gradient = backend.full(shape, 0.0, backend.device_of(variable), dtype)
        return Operand(name, gradient, backend, "tensor")
