"""Faults of threads, of copies in the background, and of what is told of transfers and memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np

import xdevice
from xdevice.base import devices

from .planting import (
    HOMES,
    flat,
    forget_nans,
    native,
    swap,
    through,
    toy,
    wrong,
)

swap(
    "computes_on",
    "says that results are on the device of the enclosing scope",
    "results_are_where_the_adapter_says",
    lambda *_: "scope",
)
swap(
    "scope_reach",
    "says that scopes belong to the process",
    "a_scope_holds_for_one_thread",
    lambda *_: "process",
)

_STATE_CARRIES = "parallel_carries_the_callers_state"
_MODES = "parallel_carries_the_frameworks_modes"


@wrong("threads", 'is neither "many" nor "one"', "keeps_the_contract", HOMES[:1])
def threads_is_neither_of_the_two(adapter, patch, suite):
    patch.setattr(adapter, "threads", "several")


@wrong(
    "threads",
    'is "many" although only one thread may work',
    "tasks_of_many_threads_work",
    raises=(RuntimeError,),
)
def threads_says_many_where_only_one_may_work(adapter, patch, suite):
    first = threading.get_ident()
    launch = toy()._launch

    def one_thread(*given):
        if threading.get_ident() != first:
            raise toy().ToyError("this framework is used by one thread")
        return launch(*given)

    patch.setattr(toy(), "_launch", one_thread)


@wrong(
    "threads", "lets threads run at once although only one may work", "eight_threads_at_once"
)
def threads_lets_threads_meet_where_only_one_may_work(adapter, patch, suite):
    copy, told = adapter.copy, SimpleNamespace()

    def meeting(x, device):
        told.x = x
        time.sleep(0.001)
        return copy(told.x, device)

    patch.setattr(adapter, "copy", meeting)


swap(
    "thread_state",
    "carries nothing",
    _STATE_CARRIES,
    lambda _, adapter: lambda: contextlib.nullcontext,
)
swap(
    "thread_state",
    "carries only the device, not the gradient mode",
    _MODES,
    lambda _, adapter: lambda: _state_of("place"),
)
swap(
    "thread_state",
    "carries only the gradient mode, not the device",
    _STATE_CARRIES,
    lambda _, adapter: lambda: _state_of("grad"),
)
swap(
    "thread_state",
    "reads the state when it is entered, not before",
    _MODES,
    lambda thread_state, adapter: lambda: lambda: thread_state()(),
)
swap("thread_state", "stays in the thread", _MODES, lambda _, adapter: lambda: _staying())


def _state_of(name):
    value = getattr(toy().state, name)
    return lambda: toy()._with(**{name: value})


def _staying():
    grad, place = toy().state.grad, toy().state.place

    @contextlib.contextmanager
    def state():
        toy().state.grad, toy().state.place = grad, place
        yield

    return state


_STAGED = "staged_memory_is_nobody_elses"
_PREFETCHED = "prefetch_gives_every_batch_as_it_was"
swap(
    "stage",
    "reads its source later",
    _STAGED,
    lambda _, adapter: lambda x, device: _later(x, native(adapter, device)),
)
swap(
    "stage",
    "returns the tensor itself if it is already on the device",
    _STAGED,
    lambda stage, adapter: (
        lambda x, device: (
            x if getattr(x, "place", None) == native(adapter, device) else stage(x, device)
        )
    ),
    HOMES[:1],
)
swap(
    "stage",
    "aliases a NumPy array on the CPU",
    _STAGED,
    lambda stage, adapter: (
        lambda x, device: (
            toy().borrowed(x)
            if isinstance(x, np.ndarray) and device is devices.CPU
            else stage(x, device)
        )
    ),
    HOMES[:1],
)
swap(
    "stage",
    "stays on the host",
    _PREFETCHED,
    lambda stage, adapter: lambda x, device: stage(x, devices.CPU),
)
swap(
    "stage",
    "converts through float32",
    _PREFETCHED,
    lambda stage, adapter: lambda x, device: through("float32")(stage(x, device)),
)
swap(
    "stage",
    "turns all NaNs into the same NaN",
    _PREFETCHED,
    lambda stage, adapter: lambda x, device: forget_nans(stage(x, device)),
)
swap(
    "stage",
    "flattens numbers into vectors",
    _PREFETCHED,
    lambda stage, adapter: lambda x, device: flat(stage(x, device)),
)
swap(
    "stage",
    "reads its source after the source was overwritten",
    "prefetch_has_read_its_source_when_it_goes_on",
    lambda _, adapter: lambda x, device: _later(x, native(adapter, device)),
)


def _later(x, place):
    values = x if isinstance(x, np.ndarray) else x._values
    return toy()._op(lambda: values, [], values.shape, values.dtype, [], place)


_LOADER = "a_loader_of_the_framework_is_iterated"
swap(
    "iterate",
    "does not end the loader's threads",
    _LOADER,
    lambda _, adapter: lambda source: _generator_over(source),
)
swap(
    "iterate",
    "raises the loader's wrapped error",
    _LOADER,
    lambda _, adapter: lambda source: iter(source),
    raises=(RuntimeError,),
)
swap(
    "iterate",
    "ends without an error if the source fails",
    _LOADER,
    lambda iterate, adapter: lambda source: _until_error(iterate(source)),
)
swap(
    "iterate",
    "drops the last batch",
    _LOADER,
    lambda iterate, adapter: lambda source: _but_last(iterate(source)),
)


def _generator_over(source):
    yield from iter(source)


def _until_error(batches):
    try:
        yield from batches
    except Exception:
        return
    finally:
        batches.close()


def _but_last(batches):
    try:
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
    finally:
        batches.close()


_BLOCKS = "blocking_leaves_nothing_under_way"


@wrong("blocking", "declines and does not say what to do instead", _BLOCKS)
def blocking_declines_and_does_not_say_what_to_do_instead(adapter, patch, suite):
    def decline():
        raise xdevice.errors.UnsupportedError("toyframe does not support blocking mode")

    patch.setattr(adapter, "blocking", decline)


swap("blocking", "does nothing", _BLOCKS, lambda _, adapter: lambda: contextlib.nullcontext())


@wrong("blocking", "stays active after its block", _BLOCKS)
def blocking_stays_on(adapter, patch, suite):
    patch.setattr(toy().state, "blocking", False)

    class Staying:
        def __enter__(self):
            toy().state.blocking = True

        def __exit__(self, *_):
            pass

    patch.setattr(adapter, "blocking", Staying)


@wrong("blocking", "ends with the inner block", _BLOCKS)
def blocking_ends_with_the_inner_block(adapter, patch, suite):
    class Switch:
        def __enter__(self):
            toy().state.blocking = True

        def __exit__(self, *_):
            toy().state.blocking = False

    patch.setattr(adapter, "blocking", Switch)


swap(
    "blocking",
    "raises no errors",
    "blocking_raises_errors_at_their_line",
    lambda _, adapter: lambda: contextlib.nullcontext(),
    HOMES[:1],
)


@contextlib.contextmanager
def _watching_nothing(report):
    yield


def _watch_with(change):
    def make(watch, adapter):
        return lambda report: watch(lambda transfer: change(report, transfer))

    return make


_READS = "reads_are_seen"
_SEES_MOVES = "moves_are_seen"
swap("watch", "sees nothing", _READS, lambda _, adapter: _watching_nothing)
swap(
    "watch",
    "sees xdevice's own reads only",
    _READS,
    lambda _, adapter: lambda report: _verbs_only(adapter, report),
)
swap(
    "watch",
    "reports each transfer twice",
    _READS,
    _watch_with(lambda report, t: (report(t), report(t))),
)
swap(
    "watch",
    "reports every source as cpu:0",
    _SEES_MOVES,
    _watch_with(
        lambda report, t: report(t._replace(source=devices.CPU, destination=devices.CPU))
    ),
)
swap(
    "watch",
    "counts elements instead of bytes",
    _SEES_MOVES,
    _watch_with(lambda report, t: report(t._replace(nbytes=t.nbytes // 4))),
)
swap(
    "watch",
    "reports reads only",
    _SEES_MOVES,
    _watch_with(lambda report, t: report(t) if t.kind == "read" else None),
)
swap(
    "watch",
    "reports after the read",
    "a_forbidden_transfer_does_not_happen",
    lambda _, adapter: lambda report: _late(adapter, report),
)


@wrong("watch", "leaves its hooks in place", "a_forbidden_transfer_does_not_happen")
def watch_leaves_its_hooks(adapter, patch, suite):
    patch.setattr(toy().ToyArray, "__float__", toy().ToyArray.__float__)
    patch.setattr(adapter, "watch", lambda report: _left(adapter, report))


@contextlib.contextmanager
def _verbs_only(adapter, report):
    from xdevice.performance.contract.hooks import Hooks

    with Hooks(adapter, report, lambda x: x._values.nbytes) as hooks:
        hooks.verbs()
        yield


@contextlib.contextmanager
def _late(adapter, report):
    """Reports are kept until the block ends, so nothing is forbidden."""
    told = []
    with type(adapter).watch(adapter, told.append):
        yield


@contextlib.contextmanager
def _left(adapter, report):
    original = vars(toy().ToyArray)["__float__"]
    with type(adapter).watch(adapter, report):
        yield
    toy().ToyArray.__float__ = lambda self: original(self)


_MEMORY = "memory_is_told"


def _memory(change):
    return lambda memory, adapter: lambda device: change(memory(device))


swap("memory", "counts nothing", _MEMORY, _memory(lambda m: m._replace(allocated=0)))
swap(
    "memory",
    "counts elements instead of bytes",
    _MEMORY,
    _memory(lambda m: m._replace(allocated=m.allocated // 4)),
)
swap(
    "memory",
    "counts kilobytes",
    _MEMORY,
    _memory(lambda m: m._replace(allocated=m.allocated // 1024, peak=m.peak // 1024)),
)
swap(
    "memory",
    "reports the memory of another device",
    _MEMORY,
    lambda memory, adapter: (
        lambda device: memory(devices.of("gpu", 1) if device.index == 0 else devices.CPU)
    ),
    HOMES,
)
swap(
    "memory",
    "reports more free memory than exists",
    _MEMORY,
    _memory(lambda m: m._replace(free=m.total + 1)),
)
swap(
    "memory",
    "reports a peak below the current use",
    _MEMORY,
    _memory(lambda m: m._replace(peak=0)),
)


@wrong("memory", "never reports freed memory as free", _MEMORY)
def memory_never_forgets(adapter, patch, suite):
    memory, seen = adapter.memory, defaultdict(int)

    def highest(device):
        now = memory(device)
        seen[device] = max(seen[device], now.allocated)
        return now._replace(allocated=seen[device], peak=max(now.peak, seen[device]))

    patch.setattr(adapter, "memory", highest)


swap("reset_peak", "does nothing", _MEMORY, lambda _, adapter: lambda device: None)
