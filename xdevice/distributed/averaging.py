"""`averaging`: gradients travel to the other ranks while the backward pass computes the next ones.

The ranks vote twice: before the block on the parameters, and after it on which of them have no gradient. A rank that
raises in between tells the others over the control connection. What the framework does not tell during the pass is sent
after it. Every bucket is sent whole, on all ranks and in the same order, with zeros for gradients that are None; so the
engine stays usable if the second vote fails.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xdevice.errors import ArgumentError, CollectiveMismatchError, NotATensorError, ScopeError, shown
from xdevice.replicas.operands import Operand, dtype_of, shape_of

from . import carrying, gradients
from .collectives import require_weight
from .gradients import as_operand
from .telling import signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.contract import Backend

    from .carrying import Carrier, Weight
    from .session import Session


@contextmanager
def averaging(session: Session, model: Any, weight: float | None) -> Iterator[None]:
    own = None if weight is None else carrying.weight_of(weight)
    backend = gradients.backend_of_model(model)
    if backend is None:
        raise NotATensorError(f"averaging takes a model, not {shown(model)}; average_gradients takes gradients")
    variables = [as_operand(name, variable) for name, variable, _ in backend.gradients(model)]
    if not variables:
        raise NotATensorError(f"no parameter of {shown(model)} is trained, so that it will have no gradient")
    if session.size == 1:
        require_weight(own)
        yield
        return
    carrier = session.ready("averaging")
    for one in variables:
        carrier.require(one, "all_reduce", "mean")

    def call() -> str:
        return f"averaging{' weighted' if own is not None else ''}: {signatures(variables)}"

    with session.alone("averaging"):
        sending = _Sending(carrier, variables, session.agree(call, own))
        with session.inside("averaging(), whose gradients may be on their way"):
            end = backend.watch_gradients([one.value for one in variables], sending.ready)
            try:
                yield
            except BaseException:
                if sending.error is not None:
                    raise sending.error from None
                raise
            finally:
                end()
        _finish(session, backend, model, sending, call)


def _finish(session: Session, backend: Backend, model: Any, sending: _Sending, call: Callable[[], str]) -> None:
    missing = sending.fill_up([gradient for _, _, gradient in backend.gradients(model)])
    try:
        session.agree(lambda: f"averaging, after the backward pass{''.join(f'; {name} None' for name in missing)}")
    except CollectiveMismatchError:
        session.call("all_reduce", call, sending.drop, sending.variables)
        raise
    session.call("all_reduce", call, sending.finish, sending.variables)


class _Sending:
    """The gradients of one backward pass on their way, by the numbers of their variables."""

    def __init__(self, carrier: Carrier, variables: list[Operand], weight: Weight | None) -> None:
        self.variables = variables
        self.error: BaseException | None = None
        """What `ready` has raised. Paddle raises a SystemError in its place."""
        self._carrier, self._weight = carrier, weight
        self._buckets = [[i for i, _ in rows] for rows in gradients.fill(list(enumerate(variables)))]
        self._bucket_of = {i: number for number, bucket in enumerate(self._buckets) for i in bucket}
        self._lacking = [len(bucket) for bucket in self._buckets]
        self._found: dict[int, Operand] = {}
        self._sent: list[tuple[list[Operand], Callable[[], Any]]] = []
        self._lock = threading.Lock()

    def ready(self, i: int, gradient: Any) -> None:
        """Takes a gradient during the backward pass, in any thread, and starts the buckets whose turn it is."""
        with self._lock:
            try:
                self._take(i, gradient)
                while len(self._sent) < len(self._buckets) and not self._lacking[len(self._sent)]:
                    self._start()
            except BaseException as error:
                self.error = error
                raise

    def fill_up(self, found: list[Any]) -> list[str]:
        """Takes the gradients that came without a word. Returns the names of the variables that have none."""
        if len(found) != len(self.variables):
            raise ArgumentError(f"the model had {len(self.variables)} trained parameters, and now has {len(found)}")
        for i, gradient in enumerate(found):
            if gradient is not None and i not in self._found:
                self._take(i, gradient)
        return [one.name for i, one in enumerate(self.variables) if i not in self._found]

    def finish(self) -> None:
        """Waits for the means, and writes them into the gradients."""
        self._start_all()
        for bucket, wait in self._sent:
            gradients.place(self._carrier, bucket, wait())

    def drop(self) -> None:
        """Waits for the means and forgets them."""
        self._start_all()
        for _, wait in self._sent:
            wait()

    def _take(self, i: int, gradient: Any) -> None:
        variable = self.variables[i]
        if i in self._found:
            raise ScopeError(
                f"{variable.name} got a gradient twice in one block of averaging(), and the first may be on its way: "
                "run one backward pass in the block, and those before whose gradients add up outside of it"
            )
        held = as_operand(variable.name, gradient)
        self._carrier.require(held, "all_reduce", "mean")
        if (dtype_of(held), shape_of(held)) != (dtype_of(variable), shape_of(variable)):
            raise ArgumentError(
                f"the gradient of {variable.name} is {dtype_of(held)} {list(shape_of(held))}, expected "
                f"{dtype_of(variable)} {list(shape_of(variable))} as the parameter; use average_gradients"
            )
        if not held.backend.can_write(held.backend.detached(gradient)):
            raise ArgumentError(f"the gradient of {variable.name} cannot be written; use average_gradients")
        self._found[i] = held
        self._lacking[self._bucket_of[i]] -= 1

    def _start_all(self) -> None:
        while len(self._sent) < len(self._buckets):
            self._start()

    def _start(self) -> None:
        bucket = [self._found.get(i) or _zeros(self.variables[i]) for i in self._buckets[len(self._sent)]]
        self._sent.append((bucket, gradients.start(self._carrier, bucket, self._weight)))


def _zeros(variable: Operand) -> Operand:
    backend = variable.backend
    zeros = backend.full(shape_of(variable), 0.0, backend.device_of(variable.value), dtype_of(variable))
    return Operand(variable.name, zeros, backend, "tensor")
