"""One fault at a time in how several processes work: each function plants one, in the process of a rank.

And what ranks do to notice those that neither a failure of `process_failures.py` nor a case of `world_cases.py` meets.
"""

from __future__ import annotations

import os
import re
import time

import numpy as np
from helpers.process_failures import LATE, met, report

import xdevice
import xdevice_torch.distributed.processes
from xdevice.distributed import (
    carrying,
    control,
    exits,
    gradients,
    hub,
    liveness,
    runner,
    session,
    signatures,
)


def _rank():
    return int(os.environ["XDEVICE_RANK"])


# what the ranks say


def no_vote():
    made = session.Session.__init__
    session.Session.__init__ = lambda self, options: made(self, options._replace(check=False))


def _told(change):
    said = session.Session.agree_on_call
    session.Session.agree_on_call = lambda self, call, own=None: said(self, change(call), own)


def no_operation():
    _told(lambda call: re.sub(r"^(all_reduce) \w+", r"\1", call))


def no_verb():
    _told(lambda call: re.sub(r"^[^:]*", "verb", call))


def _signed(change):
    signature = signatures.signature
    signatures.signature = lambda *given: change(signature(*given))


def no_dtype():
    _signed(lambda text: re.sub(r"\w*\d+ \[", "[", text))


def no_shape():
    _signed(lambda text: re.sub(r"\[.*?\]", "", text))


def no_weight():
    agree = session.Session.agree_on_call
    session.Session.agree_on_call = lambda self, call, own=None: agree(self, call, own) and None


# what goes through the engine


def narrow():
    summed = carrying.Carrier.reduce

    def narrowed(self, y, dtype, *given):
        found = summed(self, y, dtype, *given)
        return found.float().double() if dtype == "float64" else found

    carrying.Carrier.reduce = narrowed


def half():
    carrying._SUMMED_AS.clear()


def root_is_0():
    broadcast = carrying.Carrier.broadcast
    carrying.Carrier.broadcast = lambda self, held, root: broadcast(self, held, 0)


def padded():
    def gathered(self, held, lengths):
        y = self.read_only(held)
        if lengths is not None:
            y = self._pad(y, carrying.dtype_of(held), max(lengths))
        return self._to_framework(self.backend.join(self.engine.all_gather(y)), held.backend)

    carrying.Carrier.all_gather = gathered


def inputs_are_lost():
    """As MXNet's key-value store does."""
    send = carrying.Carrier.all_gather

    def gathered(self, held, lengths):
        found = send(self, held, lengths)
        held.value[...] = 0
        return found

    carrying.Carrier.all_gather = gathered


# failures


def deaf():
    end = hub.Hub._end
    hub.Hub._end = lambda self, rank, why, text: (
        None if why == "died" else end(self, rank, why, text)
    )


def nobody_is_told():
    control.Line.fail = lambda self, why, text: None


def nobody_is_late():
    liveness.Liveness.has_moved = lambda self: True


def at_once_late():
    liveness.Liveness.has_moved = lambda self: False


def exit_hooks_run():
    exits.skip_exit_hooks = lambda error: None


def errors_are_swallowed():
    def result(self):
        found, self._result, self._error = self._result, None, None
        return found

    runner.Runner.result = result
    # in the program's own thread it would not be swallowed
    xdevice_torch.distributed.processes.TorchEngine.in_steps = ()


def open_again():
    require_ready = session.Session.require_ready

    def forgets(self, verb, *given):
        if self._line is not None:
            self._line.failure = None
        return require_ready(self, verb, *given)

    session.Session.require_ready = forgets


def first_waits_for_nobody():
    vote = control.Line.vote
    control.Line.vote = lambda self, call, payload="": (
        [] if call == "first" else vote(self, call, payload)
    )


# gradients on their way


def not_divided():
    xdevice_torch.distributed.processes.TorchEngine.over = lambda self, x, divisor: x


def after_the_pass():
    gradients._Sending.record_and_send = lambda self, i, gradient: None


def nobody_asks_for_nones():
    record_unreported = gradients._Sending.record_unreported
    gradients._Sending.record_unreported = lambda self, rows: (
        record_unreported(self, rows) and []
    )


def old_plans_are_kept():
    make = gradients._plan_for

    def keep(session, verb, backend, model, *given):
        plans = session.plans.get(model, {})
        return plans[verb][1] if verb in plans else make(session, verb, backend, model, *given)

    gradients._plan_for = keep


def means_are_lost():
    gradients._require_written = lambda *given: None


# who belongs here


def no_secret():
    control.is_proof = lambda *given: True


def one_world_is_as_good_as_another():
    made = control.Terms.__new__
    control.Terms.__new__ = lambda cls, key, run, world, size: made(cls, key, run, 1, size)


# cases


def engine_fails():
    """The engine of rank 1 fails in the middle; both have to say so."""
    with met() as world:
        if world.rank == 1:

            def broken(x, op):
                raise RuntimeError("the cable is cut")

            world._session._carrier.engine.all_reduce = broken
        world.all_reduce(xdevice.ones(3))
    report(good=True)


def secrets_differ():
    os.environ["XDEVICE_TOKEN"] = f"secret {_rank()}"
    with met(join_timeout=LATE):
        report(good=True)


def a_late_comer_of_another_world():
    """As one that was stopped while the others ended their world and began another one."""
    hub._worlds = _rank()
    with met(join_timeout=LATE):
        report(good=True)


def waits_in_first():
    with met() as world:
        with world.first() as is_first:
            if is_first:
                time.sleep(0.3)
            report(at=time.monotonic())
        world.barrier()


def float64_is_kept():
    with met() as world:
        third = world.all_reduce(np.full(2, 1 / 3))
        report(good=bool((third == 2 / 3).all()))


def halves_are_added_as_float32():
    with met() as world:
        report(good=world.all_reduce(np.full(2, 4e4, "float16"), "mean").tolist() == [4e4, 4e4])


def inputs_stay():
    with met() as world:
        x = np.ones(2)
        world.all_gather(x)
        report(good=x.tolist() == [1, 1])


def only_planted():
    report(good=True)
