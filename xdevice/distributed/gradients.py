"""Averages gradients over the ranks. `average_gradients` averages gradients that have already
been computed; `averaging` sends the first gradients while the backward pass computes the next
ones. Many small gradients are sent as a few long vectors, called buckets, each of one dtype.

In `averaging` the ranks vote twice: before the block, on the parameters, and after the block,
on the parameters that have no gradient. If a rank raises an error between the two votes, it
reports the error to the other ranks over the control connection. Gradients that the framework
does not report during the pass are sent after the pass. All ranks send every bucket whole and
in the same order, with zeros for gradients that are None. The engine therefore remains usable if the second vote fails.

Comparing and sorting a few hundred parameters in each training step would take time, so a `Plan` stores the buckets of
a model between steps.
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
"""If this key is in `Session.plans[model]`, the ranks have compared the weights of the model."""


def average_gradients(session: Session, model_or_gradients: Any, weight: float | None) -> Any:
    """Does the work of `World.average_gradients`: checks the arguments, votes on them, sends
    the gradients in buckets, and writes the means. `weight` is the weight of this rank's
    gradients, or None if all ranks have equal weights."""
    # checked before the vote, so that an invalid weight changes nothing on any rank
    own_weight = None if weight is None else weight_of(weight)
    backend = backend_of_model(model_or_gradients)
    # pairs of a name and a gradient, or None for a gradient that is missing
    named = (
        _gradients_in_container(model_or_gradients)
        if backend is None
        else _gradients_of_model(backend, model_or_gradients)
    )
    operands = [operand for _, operand in named if operand is not None]
    session.require_ready("average_gradients")
    # a gradient that occurs in several places is sent once
    unique = list({id(operand.value): operand for operand in operands}.values())
    if backend is None:
        session.require_supported(unique, "average_gradients", op="mean")
        plan = Plan(unique)
    else:
        plan = _plan_for(session, "average_gradients", backend, model_or_gradients, unique)
    # a world of one has nothing to average, but refuses a weight of 0, as a larger world does. `str`, which returns "",
    # replaces the function that describes the call, because nothing is sent
    if session.size == 1:
        session.agree_on_call(str, own_weight)
        return model_or_gradients
    carrier = session.carrier

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        # the plan contains each gradient only once, but the ranks must also agree on which
        # gradients are the same tensor
        text = plan.text if len(unique) == len(operands) else signatures(operands)
        # a rank that lacks a gradient might send one bucket fewer, so the ranks vote on which gradients are None
        nones = "".join(f"; {name} None" for name, operand in named if operand is None)
        # the first vote on a model also includes a checksum of its parameters, because equal
        # gradients do not make models equal if their first weights were different
        checksum = (
            "" if backend is None else _first_weights_text(session, backend, model_or_gradients)
        )
        return f"average_gradients{_weight_text(own_weight)}: {text}{nones}{checksum}"

    # runs after the vote, which sets `weight_and_total`
    def job() -> dict[int, Any]:
        """Averages the gradients, and returns a dict that maps the `id` of each gradient to its mean."""
        # starts to send all buckets before it waits for the first, so that some are sent while
        # others are packed
        sent = []
        for bucket in plan.buckets:
            gradients = [unique[i] for i in bucket.indices]
            sent.append((gradients, _start_mean(carrier, bucket, gradients, weight_and_total)))
        means: dict[int, Any] = {}
        for gradients, wait in sent:
            means.update(carrier.write_back_all(gradients, wait()))
        return means

    # from here on the other ranks take part, so an error closes the world on all ranks
    with session.exclusive("average_gradients"):
        weight_and_total = session.agree_on_call(describe_call, own_weight)
        # the ranks' first weights are equal, so later votes need no checksum
        if backend is not None:
            session.plans[model_or_gradients][_COMPARED] = True
        # the engine computes a mean as it computes the sum of `all_reduce`
        means = session.call_engine("all_reduce", describe_call, job, operands)
    if backend is not None:
        # if a mean were in a new tensor, the model would not use it, and would be trained
        # without the other ranks
        _require_written(
            unique, means, "pass the gradients instead of the model, and use the return value"
        )
        return model_or_gradients
    return rebuilt(
        model_or_gradients, operands, [means[id(operand.value)] for operand in operands]
    )


def backend_of_model(x: Any) -> Backend | None:
    """Returns the backend of the model `x`. Returns None if `x` is not a model, or if it is a single TensorFlow
    variable. Other modules treat such a variable as a model, but here it is a gradient.
    """
    owner = registry.owner_and_kind(type(x))
    if owner is None or owner.kind != "model" or owner.backend.tensor_of(x) is not None:
        return None
    return owner.backend


def _gradients_of_model(backend: Backend, model: Any) -> list[tuple[str, Operand | None]]:
    """Returns the name and the gradient of each trainable parameter of a model, in the model's order. The gradient is
    None if the parameter has no gradient. Raises `NotATensorError` if the model has no trainable parameters."""
    rows = [
        (name, None if gradient is None else Operand(name, gradient, backend, "tensor"))
        for name, _, gradient in backend.gradients(model)
    ]
    if not rows:
        raise NotATensorError(
            f"{shown(model)} has no trainable parameters, so there are no gradients to average"
        )
    return rows


def _gradients_in_container(x: Any) -> list[tuple[str, Operand | None]]:
    """Returns a pair of a path and an operand for each gradient in a container. The operand is
    None for a missing gradient. The pairs are sorted by path, because two ranks may have filled
    a dict in different orders. Raises `NotATensorError` if the container is empty, or contains
    anything except tensors and None. Raises `UnsupportedError` for a sparse array."""
    name = "gradients" if registry.owner_and_kind(type(x)) is None else "gradient"
    pairs = sorted(
        (name + leaf.path, leaf.value) for leaf in dense_leaves(x, name, "average_gradients")
    )
    if not pairs:
        raise NotATensorError(
            f"{shown(x)} contains no gradients; pass a model, or a container of gradients"
        )
    return [
        (name, None if value is None else _as_operand(name, value)) for name, value in pairs
    ]


def _as_operand(name: str, value: Any) -> Operand:
    """Returns the operand for `value`, a gradient or a parameter. Errors refer to it as `name`.
    Raises `NotATensorError` if `value` is not a tensor."""
    owner = registry.owner_and_kind(type(value))
    # this excludes models, except a single variable
    if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
        raise NotATensorError(
            f"{name} is {shown(value)} of type {type(value).__qualname__}, but a gradient must be a tensor or None"
        )
    return Operand(name, value, *owner)


class Plan:
    """The assignment of gradients to buckets, and the string that describes the gradients in a vote. The plan does not
    refer to the gradients themselves, because it would then keep them in memory after the program has set them to None.
    Instead, it identifies each gradient by its number, which is its index in the list of all gradients."""

    def __init__(self, operands: list[Operand]) -> None:
        self.assign_buckets(operands, missing=[])

    def assign_buckets(self, operands: list[Operand], missing: list[int]) -> None:
        """Assigns gradients with the dtypes and shapes of `operands` to buckets. `missing` contains the numbers of the
        gradients that were None in the previous step. The buckets of these gradients come last, because a bucket is
        sent only after all buckets before it."""
        self.missing = missing
        """The numbers of the gradients that were None in the last step."""
        present = [i for i in range(len(operands)) if i not in set(missing)]
        self.buckets = [*buckets_of(operands, present), *buckets_of(operands, missing)]
        """The buckets, in the order in which they are sent."""
        self.bucket_numbers = {
            i: number for number, bucket in enumerate(self.buckets) for i in bucket.indices
        }
        """Maps the number of each gradient to the index of its bucket in `buckets`."""
        # the ranks compare this string, so they also notice if their buckets are in different orders
        self.text = signatures(operands) + "".join(
            f"; {operands[i].name} last" for i in missing
        )


def _facts_of(backend: Backend, name: str, x: Any) -> tuple[Any, ...]:
    """Returns the facts about a tensor that determine how it is sent: its name, whether it is
    dense, its dtype, its shape and its device."""
    return name, backend.is_dense(x), x.dtype, tuple(x.shape), backend.device_of(x)


def _plan_for(
    session: Session, verb: str, backend: Backend, model: Any, operands: list[Operand]
) -> Plan:
    """Returns the plan for `operands`, the parameters or gradients of a model. This is the plan
    of the previous step if the names, dtypes, shapes and devices of the operands have not
    changed, and otherwise a new plan. `verb` is "averaging" or "average_gradients". Raises an
    error if an operand cannot be averaged."""
    # these facts change if a layer was frozen, moved or resized since the last step
    facts = [_facts_of(operand.backend, operand.name, operand.value) for operand in operands]
    # the dict refers to the model weakly, so the model's plans are deleted together with the model
    plans = session.plans.setdefault(model, {})
    # the plan of each verb is stored together with the facts for which it was created
    if verb not in plans or plans[verb][0] != facts:
        session.require_supported(operands, "all_reduce", op="mean")
        unlisted.refuse(backend, model, verb=f"{verb} of", only_trained=True)
        plans[verb] = facts, Plan(operands)
    plan: Plan = plans[verb][1]
    return plan


def _first_weights_text(session: Session, backend: Backend, model: Any) -> str:
    """Returns a string with a checksum of a model's trainable parameters for the first vote on the model, and "" for
    later votes. If the ranks began with different weights, they would train different models, even with the same
    gradients."""
    if _COMPARED in session.plans.get(model, {}):
        return ""
    checksum = 0
    for _, variable, _ in backend.gradients(model):
        # a checksum of 32 bits is long enough to detect different weights, and short enough for a vote
        checksum = zlib.crc32(creation.to_numpy(variable).tobytes(), checksum)
    return f"; first weights with checksum {checksum:08x} (world.broadcast(model) makes the weights equal on all ranks)"


def _start_mean(
    carrier: Carrier, bucket: Bucket, gradients: list[Operand], weight: Weight | None
) -> Callable[[], Any]:
    """Starts to average the gradients of a bucket over the ranks. Returns a function that waits
    for the means, and returns the means in one vector. `weight` is the result of
    `Session.agree_on_call`."""
    return carrier.start_mean(carrier.pack(gradients), bucket.dtype, weight)


def _require_written(gradients: list[Operand], means: dict[int, Any], instead: str) -> None:
    """Raises `ArgumentError` if a mean was not written to its gradient: the model would then use its own gradient, and
    the ranks would diverge. `means` maps the `id` of each gradient to its mean, and `instead` is the part of the
    message that tells the user what to do instead."""
    for operand in gradients:
        if means[id(operand.value)] is not operand.value:
            raise ArgumentError(
                f"the gradient of {operand.name} cannot be overwritten; {instead}"
            )


# during the backward pass


@contextmanager
def averaging(session: Session, model: Any, weight: float | None) -> Iterator[None]:
    """Does the work of the block `World.averaging`: votes, makes the framework report each
    gradient of the backward pass, and sends each bucket when it is full. `weight` is the weight
    of this rank's gradients, or None if all ranks have equal weights."""
    own_weight = None if weight is None else weight_of(weight)
    backend = backend_of_model(model)
    if backend is None:
        raise NotATensorError(
            f"averaging() expects a model, not {shown(model)}; to average gradients, call average_gradients()"
        )
    parameters = [_as_operand(name, variable) for name, variable, _ in backend.gradients(model)]
    if not parameters:
        raise NotATensorError(
            f"{shown(model)} has no trainable parameters, and so no gradients to average; remove the averaging() block"
        )
    session.require_ready("averaging")
    plan = _plan_for(session, "averaging", backend, model, parameters)

    def describe_call() -> str:
        """Returns the string that describes this call. The string must be the same on all ranks."""
        checksum = _first_weights_text(session, backend, model)
        return f"averaging{_weight_text(own_weight)}: {plan.text}{checksum}"

    # an error that every rank raises. It is raised only after the block of `exclusive`, because
    # inside that block it would close the world
    refused: Exception | None = None
    with session.exclusive("averaging"):
        weight_and_total = session.agree_on_call(describe_call, own_weight)
        # the ranks' first weights are equal, so later votes need no checksum
        session.plans[model][_COMPARED] = True
        sending = _Sending(session, plan, parameters, weight_and_total)
        with session.forbid_collectives("averaging() while its gradients were being sent"):
            stop_watching = backend.watch_gradients(
                [parameter.value for parameter in parameters], sending.record_and_send
            )
            try:
                yield
            except BaseException:
                # a framework may have replaced the error of `sending.record_and_send` with its own
                if sending.error is not None:
                    raise sending.error from None
                raise
            finally:
                # from now on, the framework reports no more gradients
                stop_watching()
        refused = _end_averaging(
            session, backend, model, sending, describe_call, _weight_text(own_weight)
        )
    if refused is not None:
        raise refused


def _weight_text(own: float | None) -> str:
    """Returns the text that is added to a vote if this rank has a weight. `own` is the weight; without a weight, `own`
    is None, and the result is "".
    """
    return (
        ""
        if own is None
        else " weighted (a rank with weight=0 must also compute gradients, of any batch)"
    )


def _end_averaging(
    session: Session,
    backend: Backend,
    model: Any,
    sending: _Sending,
    describe_call: Callable[[], str],
    weight_text: str,
) -> Exception | None:
    """Ends a block of `averaging`: votes on the list of parameters without a gradient, sends the remaining gradients,
    and writes the means. `sending` has recorded the gradients of the block. `describe_call` returns the text of the
    first vote, and `weight_text` is the result of `_weight_text`. Returns None if the means were written. Otherwise
    returns an error that all ranks must raise. Raises `CollectiveMismatchError` if the votes differ.
    """
    plan, parameters = sending.plan, sending.parameters
    missing = sending.record_unreported(list(backend.gradients(model)))
    refused = sending.refused
    if changed := sending.first_changed():
        refused = ArgumentError(
            f"{changed} was changed in the block of averaging(), before the ranks' gradients were averaged, so the "
            "ranks would diverge; run only the backward pass in the block, and clip gradients and step after the block"
        )
    # this part of the vote names the parameters that have no gradient after the pass
    nones = f"{weight_text}{''.join(f'; {parameters[i].name} None' for i in missing)}"
    # on a rank that refuses a gradient, the error replaces this part
    outcome = nones if refused is None else f"; {refused}"
    try:
        session.agree_on_call(lambda: f"averaging, after the backward pass{outcome}")
    # still waits for the buckets that are being sent, because otherwise the engine would
    # confuse them with the buckets of the next call
    except CollectiveMismatchError:
        session.call_engine(
            "all_reduce", describe_call, sending.finish_without_writing, parameters
        )
        raise
    session.call_engine(
        "all_reduce",
        describe_call,
        sending.finish_and_write if refused is None else sending.finish_without_writing,
        parameters,
    )
    # all ranks have just agreed on which gradients are missing, so all of them rearrange their
    # buckets in the same way
    if session.options.check and refused is None and missing != plan.missing:
        plan.assign_buckets(parameters, missing)
    return refused


class _Sending:
    """Sends the gradients of one backward pass. Each gradient is identified by its number, which is the index of its
    parameter in `parameters`.

    Args:
        session: this process's session.
        plan: the buckets.
        parameters: the trainable parameters of the model.
        weight: the weight of this rank and the sum of all weights, or None if the weights are equal.
    """

    def __init__(
        self, session: Session, plan: Plan, parameters: list[Operand], weight: Weight | None
    ) -> None:
        self.session, self.plan, self.parameters = session, plan, parameters
        self.error: BaseException | None = None
        """The error that `record_and_send` has raised, or None. It is stored because Paddle replaces it
        with a SystemError."""
        self.refused: XDeviceError | None = None
        """The error for a gradient that cannot be averaged, or None. It is raised after the
        pass, when all ranks know about it."""
        self._weight = weight
        self._lacking = [len(bucket.indices) for bucket in plan.buckets]
        """The number of gradients that each bucket still lacks."""
        self._gradients: dict[int, Any] = {}
        """The gradients that were recorded, by their numbers."""
        self._sent: list[tuple[list[Operand], Callable[[], Any]]] = []
        """For each bucket that was started: its gradients, and the function that waits for their means."""
        self._writes_at_start = [_times_written(parameter) for parameter in parameters]
        """How many times each parameter had been written when the block began; None if the framework does not count
        writes."""
        self._writes_when_taken: dict[int, int | None] = {}
        """How many times each gradient had been written when it was recorded."""
        # PyTorch runs a backward pass in several threads, one for each device
        self._lock = threading.Lock()

    def record_and_send(self, i: int, gradient: Any) -> None:
        """Records the gradient with the number `i` during the backward pass, and starts to send
        the full buckets, in their order. The framework may call this in any thread."""
        with self._lock:
            try:
                self._record(i, gradient)
                self._start_buckets(only_full=True)
            except BaseException as error:
                self.error = error
                raise

    def record_unreported(self, rows: list[tuple[str, Any, Any | None]]) -> list[int]:
        """Records the gradients that the framework has not reported. `rows` contains, for each trainable parameter, its
        name, its variable, and its gradient or None. Returns the numbers of the parameters without a gradient. Returns
        [] if the framework has reported every gradient, or if a gradient was refused. Raises `ArgumentError` if the
        variables in `rows` are not the parameters with which the block began."""
        # either every gradient was reported, or no mean will be written
        if not any(self._lacking) or self.refused is not None:
            return []
        parameters = self.parameters
        # compares the variables by identity, because the gradients of new variables with the
        # same names must not be averaged
        if [id(variable) for _, variable, _ in rows] != [
            id(parameter.value) for parameter in parameters
        ]:
            raise ArgumentError(
                "the model has different trainable parameters than at the start of the block of averaging(); add, "
                "remove or freeze parameters outside the block"
            )
        for i, (_, _, gradient) in enumerate(rows):
            if gradient is not None and i not in self._gradients:
                self._record(i, gradient)
        return [i for i in range(len(parameters)) if i not in self._gradients]

    def first_changed(self) -> str:
        """Returns the name of the first parameter that was written since the block began. If there is no such
        parameter, looks for a gradient that was written after it was recorded. Returns "the gradient of", followed by
        the name of its parameter, for the first such gradient. Returns "" if nothing was written, or if the framework
        does not count writes.
        """
        for i, parameter in enumerate(self.parameters):
            if _times_written(parameter) != self._writes_at_start[i]:
                return parameter.name
        # the gradients are checked too, because the means would overwrite the values that the
        # program has written
        for i, count in self._writes_when_taken.items():
            name, _, backend, _ = self.parameters[i]
            if backend.times_written(self._gradients[i]) != count:
                return f"the gradient of {name}"
        return ""

    def finish_and_write(self) -> None:
        """Sends the remaining buckets, waits for the means of all buckets, and writes the means
        to the gradients. Raises `ArgumentError` if a gradient cannot be written."""
        self._start_buckets(only_full=False)
        for gradients, wait in self._sent:
            means = self.session.carrier.write_back_all(gradients, wait())
            _require_written(gradients, means, "use average_gradients")

    def finish_without_writing(self) -> None:
        """Sends the remaining buckets, waits for the means of all buckets, and writes nothing.
        All ranks must wait, because all have started the same buckets."""
        self._start_buckets(only_full=False)
        for _, wait in self._sent:
            wait()

    def _record(self, i: int, gradient: Any) -> None:
        """Records the gradient with the number `i`. If the gradient cannot be averaged, stores
        the error in `refused` until after the pass, because an error that is raised here would
        end only this rank. Raises `ScopeError` if the gradient is reported a second time."""
        if i in self._gradients:
            raise ScopeError(
                f"{self.parameters[i].name} got a gradient twice in one block of averaging(), and the first gradient "
                "may already have been sent: run only one backward pass in the block; to accumulate gradients, run the "
                "earlier passes before the block"
            )
        try:
            self._require_alike(i, gradient)
        except XDeviceError as error:
            self.refused = self.refused or error
            return
        self._gradients[i] = gradient
        self._writes_when_taken[i] = self.parameters[i].backend.times_written(gradient)
        self._lacking[self.plan.bucket_numbers[i]] -= 1

    def _require_alike(self, i: int, gradient: Any) -> None:
        """Raises an error if the gradient with the number `i` is None or not dense, or if it differs from its parameter
        in dtype, shape or device.
        """
        name, parameter, backend, _ = self.parameters[i]
        if gradient is None:
            raise ArgumentError(
                f"a hook has removed the gradient of {name} in the block of averaging(); clear the gradient after the "
                "block"
            )
        if _facts_of(backend, name, gradient) == _facts_of(backend, name, parameter):
            return
        operand = _as_operand(name, gradient)
        # if the gradient is sparse, for example, this call raises an error that says so
        self.session.require_supported([operand], "all_reduce", op="mean")
        actual, expected = (
            f"{dtype_of(tensor)} {list(shape_of(tensor))}"
            for tensor in (operand, self.parameters[i])
        )
        raise ArgumentError(
            f"the gradient of {name} is {actual} on {backend.device_of(gradient)}, but the parameter is {expected} on "
            f"{backend.device_of(parameter)}; call average_gradients() instead"
        )

    def _start_buckets(self, only_full: bool) -> None:
        """Starts to send all remaining buckets, in their order. With `only_full`, stops at the
        first bucket that still lacks a gradient."""
        # a world of one sends nothing
        buckets = self.plan.buckets if self.session.size > 1 else []
        # every rank sends the buckets in the order of the plan, because engines match the calls
        # of the ranks by their order. The first buckets of the plan have been sent already
        for number in range(len(self._sent), len(buckets)):
            if only_full and self._lacking[number]:
                return
            bucket = buckets[number]
            gradients = [self._gradient_or_zeros(i) for i in bucket.indices]
            self._sent.append(
                (gradients, _start_mean(self.session.carrier, bucket, gradients, self._weight))
            )

    def _gradient_or_zeros(self, i: int) -> Operand:
        """Returns the gradient with the number `i`. If the parameter has no gradient, returns
        zeros with the shape and dtype of the parameter."""
        parameter = self.parameters[i]
        gradient = self._gradients.get(i)
        if gradient is None:
            backend = parameter.backend
            device = backend.device_of(parameter.value)
            # a tensor of zeros, so that every rank sends buckets of the same length
            gradient = backend.full(shape_of(parameter), 0.0, device, dtype_of(parameter))
        return Operand(parameter.name, gradient, parameter.backend, "tensor")


def _times_written(parameter: Operand) -> int | None:
    """Returns how many times a parameter has been written in place, or None if the framework does not count writes."""
    count: int | None = parameter.backend.times_written(parameter.value)
    return count
