"""Faults of graphs of recorded work."""

from __future__ import annotations

import contextlib

import xdevice
from xdevice.base import devices

from .planting import (
    GPU,
    swap,
    toy,
    wrong,
)

_GRAPH = "a_graph_does_the_work_again"
swap(
    "capture",
    "runs the work instead of recording it",
    _GRAPH,
    lambda _, adapter: lambda graph, stream, task: task(),
    GPU,
)
swap(
    "capture",
    "returns results that require gradients",
    _GRAPH,
    lambda capture, adapter: (
        lambda graph, stream, task: adapter.samples().marked(capture(graph, stream, task))
    ),
    GPU,
)


@wrong(
    "capture", "continues to record after an error", "a_graph_holds_the_work_of_one_device", GPU
)
def capture_goes_on_recording_after_an_error(adapter, patch, suite):
    patch.setattr(toy().state, "graph", None)

    def capture(graph, stream, task):
        toy().state.graph = graph
        result = task()
        toy().state.graph = None
        return result

    calls = []

    def fails(graph, stream, task):
        calls.append(1)
        return capture(graph, stream, task)

    patch.setattr(adapter, "capture", fails)
    patch.setattr(xdevice.performance.graphs, "_rehearse", lambda task, stream: None)


swap("replay", "does nothing", _GRAPH, lambda _, adapter: lambda graph: None, GPU)
swap(
    "replay",
    "runs on the default stream",
    _GRAPH,
    lambda _, adapter: lambda graph: _replay_on(graph, toy()._defaults),
    GPU,
)
swap(
    "only_on",
    "accepts work on any device",
    "a_graph_holds_the_work_of_one_device",
    lambda _, adapter: lambda device: contextlib.nullcontext(),
    GPU,
)
swap(
    "only_on",
    "refuses all work",
    _GRAPH,
    lambda only_on, adapter: lambda device: only_on(devices.CPU),
    GPU,
    raises=(xdevice.errors.DeviceMismatchError,),
)
swap(
    "new_graph",
    "belongs to another GPU",
    _GRAPH,
    lambda new, adapter: lambda device: new(devices.of("gpu", 1)),
    GPU,
)


def _replay_on(graph, streams):
    for work, out in graph.ops:
        streams[graph.place].give(work, out)
