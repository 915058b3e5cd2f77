"""Faults of streams and events."""

from __future__ import annotations

import contextlib
import functools

from xdevice.base import devices

from .planting import (
    GPU,
    HOMES,
    child,
    native,
    swap,
    toy,
    wrong,
)


def _refusing(what):
    """A method that declines."""

    def make(original, adapter):
        def refuse(*given):
            raise adapter.unsupported(what, "use something else")

        return refuse

    return make


_BLOCK = "a_stream_holds_the_work_of_its_block"
_ORDERED = "streams_wait_for_each_other"
_HAPPENS = "an_event_happens_when_the_work_before_it_is_done"
swap(
    "new_stream",
    "returns the current stream",
    _BLOCK,
    lambda _, adapter: lambda device: adapter.current_stream(device),
    GPU,
)


swap(
    "new_stream",
    "returns the same stream each time",
    _BLOCK,
    lambda new, adapter: functools.cache(new),
    GPU,
)
swap(
    "current_stream",
    "always returns the default stream",
    _BLOCK,
    lambda _, adapter: (
        lambda device: toy()._defaults.setdefault(
            native(adapter, device), toy().current_stream(native(adapter, device))
        )
    ),
    GPU,
)
swap(
    "current_stream",
    "returns the stream of another GPU",
    "parallel_gives_results_that_are_ready",
    lambda current, adapter: lambda device: current(devices.of("gpu", 1 - device.index)),
    GPU,
    raises=(RuntimeError,),
)
swap(
    "stream_scope",
    "does not send work to the stream",
    _BLOCK,
    lambda _, adapter: lambda stream: contextlib.nullcontext(),
    GPU,
)


@wrong("stream_scope", "stays active after an exception", _BLOCK, GPU)
def stream_scope_goes_on_after_an_exception(adapter, patch, suite):
    class Scope:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            self.before = toy().state.streams
            toy().state.streams = {**self.before, self.stream.place: self.stream}

        def __exit__(self, *error):
            if error[0] is None:
                toy().state.streams = self.before

    patch.setattr(toy().state, "streams", {})
    patch.setattr(adapter, "stream_scope", Scope)


swap(
    "stream_wait", "does not wait", _ORDERED, lambda _, adapter: lambda stream, event: None, GPU
)
swap(
    "stream_wait",
    "leaves prefetched batches unfinished",
    "prefetched_batches_can_be_computed_with",
    lambda _, adapter: lambda stream, event: None,
    GPU,
)
swap(
    "stream_wait",
    "leaves results of tasks unfinished",
    "parallel_gives_results_that_are_ready",
    lambda _, adapter: lambda stream, event: None,
    GPU,
)
swap(
    "new_event",
    "belongs to another GPU",
    _HAPPENS,
    lambda new, adapter: lambda device: new(devices.of("gpu", 1 - device.index)),
    GPU,
    raises=(RuntimeError,),
)
swap(
    "record",
    "marks a point in the past",
    _HAPPENS,
    lambda record, adapter: (
        lambda event, stream: (
            record(event, stream),
            setattr(event, "mark", (stream, 0)),
            setattr(event, "seconds", 0.0),
        )
    ),
    GPU,
)
swap(
    "record",
    "marks the default stream",
    _ORDERED,
    lambda record, adapter: (
        lambda event, stream: record(event, toy()._defaults.get(stream.place, stream))
    ),
    GPU,
)
swap(
    "require_events",
    "requires nothing",
    "events_are_there_or_refused",
    lambda _, adapter: lambda device: None,
    HOMES[:1],
)
swap(
    "require_events", "refuses all devices", "events_are_there_or_refused", _refusing("events")
)
child(
    "require_events",
    "starts the GPU",
    "loading_is_light_locked_and_safe_to_fork",
    "cls.require_events = lambda self, device: toyframe.current_stream(self.to_native(device))",
)
swap("wait_event", "does not wait", _HAPPENS, lambda _, adapter: lambda event: None, GPU)
swap(
    "elapsed",
    "returns milliseconds",
    _HAPPENS,
    lambda elapsed, adapter: lambda a, b: elapsed(a, b) * 1000,
    GPU,
)
swap(
    "elapsed",
    "goes backwards",
    _HAPPENS,
    lambda elapsed, adapter: lambda a, b: elapsed(b, a),
    GPU,
)
swap(
    "elapsed",
    "reads the host's clock",
    _HAPPENS,
    lambda elapsed, adapter: lambda a, b: 0.0,
    GPU,
)
swap(
    "keep_for",
    "keeps nothing",
    "kept_memory_is_not_given_away",
    lambda _, adapter: lambda x, stream: None,
    GPU,
)


@wrong("stream_reach", "says that streams belong to the process", _BLOCK, GPU)
def stream_reach_says_that_streams_are_the_process_s(adapter, patch, suite):
    patch.setattr(adapter, "stream_reach", "process")


@wrong(
    "stream_reach",
    "says that streams belong to the thread, although they belong to the process",
    _BLOCK,
    GPU,
)
def stream_reach_says_that_streams_are_the_thread_s_and_they_are_the_process_s(
    adapter, patch, suite
):
    held = {}

    @contextlib.contextmanager
    def scope(stream):
        before = held.get(stream.place)
        held[stream.place] = stream
        yield
        held[stream.place] = before

    current = adapter.current_stream
    patch.setattr(adapter, "stream_scope", scope)
    patch.setattr(
        adapter,
        "current_stream",
        lambda device: held.get(native(adapter, device)) or current(device),
    )
