"""`make_graphed_callable`: what it refuses, and the order in which it does things. Real graphs are in
test_gpu_graphs.py."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from helpers.environment import framework

import xdevice
from xdevice.core import registry
from xdevice_numpy import NumpyBackend


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("torch", "torch.compile"),
        ("tensorflow", "tf.function"),
        ("mxnet", "net.hybridize()"),
        ("paddle", "paddle.jit.to_static"),
        ("jax", "jax.jit"),
        ("numpy", "call the function itself"),
    ],
)
def test_a_backend_without_graphs_names_its_own_way(name, instead):
    calls = []
    with (
        xdevice.use_backend(name),
        pytest.raises(
            xdevice.errors.UnsupportedError, match="does not support graphs"
        ) as caught,
    ):
        xdevice.accelerator.make_graphed_callable(lambda: calls.append(1), "cpu")
    assert instead in str(caught.value)
    assert not calls


@pytest.mark.parametrize("task", [None, 3, [len]])
def test_no_task(task):
    with (
        xdevice.use_backend("numpy"),
        pytest.raises(xdevice.errors.ArgumentError, match="function without arguments"),
    ):
        xdevice.accelerator.make_graphed_callable(task)


def test_a_device_that_is_not_there():
    with xdevice.use_backend("numpy"), pytest.raises(xdevice.errors.DeviceNotFoundError):
        xdevice.accelerator.make_graphed_callable(lambda: 1, "gpu:7")


# the core's rules, on an adapter whose graphs are the tasks themselves


class Recording(NumpyBackend):
    name = "recording"
    kinds = ("cpu", "gpu")
    gpus = 1

    def __init__(self):
        self.log = []

    def count(self, kind):
        return {"cpu": 1, "gpu": self.gpus}[kind]

    def new_stream(self, device):
        return f"stream of {device}"

    def current_stream(self, device):
        return f"caller on {device}"

    def stream_scope(self, stream):
        return nullcontext()

    def new_event(self, device):
        return []

    def record(self, event, stream):
        event.append(stream)

    def stream_wait(self, stream, event):
        self.log.append(f"{stream} waits for {event[0]}")

    def new_graph(self, device):
        return [device] if device.kind == "gpu" else super().new_graph(device)

    @contextmanager
    def only_on(self, device):
        self.log.append(f"only on {device}")
        yield

    def capture(self, graph, stream, task):
        self.log.append(f"records on {stream}")
        graph.append(task)
        return task()

    def replay(self, graph):
        self.log.append("replays")
        graph[1]()


@pytest.fixture
def torch():
    return framework("torch")


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setitem(registry._loaded, "recording", Recording())
    monkeypatch.setattr(registry, "canonical", lambda name: name)
    with xdevice.use_backend("recording") as chosen:
        yield chosen


def test_a_task_runs_once_then_is_recorded_and_then_replayed(backend):
    result = np.zeros(1)

    def task():
        backend.log.append("task")
        result[0] += 1
        return result

    graph = xdevice.accelerator.make_graphed_callable(task)
    assert backend.log == [
        "stream of gpu:0 waits for caller on gpu:0",
        "only on gpu:0",
        "task",
        "caller on gpu:0 waits for stream of gpu:0",
        "records on stream of gpu:0",
        "task",
    ]
    assert graph() is graph() is result
    assert backend.log[6:] == ["replays", "task"] * 2
    assert repr(graph) == "<xdevice graph of recording on gpu:0>"


def test_which_device(backend):
    backend.gpus = 2
    with pytest.raises(xdevice.errors.DeviceError, match="there are 2 GPUs"):
        xdevice.accelerator.make_graphed_callable(lambda: 1)
    assert xdevice.accelerator.make_graphed_callable(lambda: 1, "gpu:1").device is xdevice.gpu(
        1
    )
    with xdevice.gpu(1):
        assert xdevice.accelerator.make_graphed_callable(lambda: 1).device is xdevice.gpu(1)
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            xdevice.accelerator.make_graphed_callable(lambda: 1, "gpu:0")


def test_a_read_is_named_and_nothing_is_recorded(torch, backend):
    x = torch.ones(1)
    with pytest.raises(xdevice.errors.CaptureError, match=r":\d+: item reads 4 bytes"):
        xdevice.accelerator.make_graphed_callable(lambda: x.item())
    assert not any("records" in entry for entry in backend.log)


def test_an_error_of_the_task_is_its_own(backend):
    def task():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        xdevice.accelerator.make_graphed_callable(task)
    assert xdevice.accelerator.make_graphed_callable(lambda: 5)() == 5


def test_an_error_of_the_recording_is_named(backend, monkeypatch):
    def refuse(graph, stream, task):
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(backend, "capture", refuse)
    with pytest.raises(
        xdevice.errors.CaptureError,
        match="gpu:0: RuntimeError: operation not permitted; the task must not wait",
    ):
        xdevice.accelerator.make_graphed_callable(lambda: 1)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("parallel.run", lambda: xdevice.parallel.run(lambda: 1)),
        ("prefetch", lambda: xdevice.prefetch([1], "cpu")),
        (
            "accelerator.make_graphed_callable",
            lambda: xdevice.accelerator.make_graphed_callable(lambda: 1),
        ),
    ],
)
def test_what_works_in_other_threads_is_refused_inside_and_fine_after(backend, verb, call):
    with pytest.raises(
        xdevice.errors.CaptureError,
        match=f"xdevice.{verb} cannot be called in a task that is being captured",
    ):
        xdevice.accelerator.make_graphed_callable(call)
    call()


def test_tasks_of_parallel_may_capture(backend):
    graphs = xdevice.parallel.run(
        lambda: xdevice.accelerator.make_graphed_callable(lambda: 1),
        lambda: xdevice.accelerator.make_graphed_callable(lambda: 2),
    )
    assert [graph() for graph in graphs] == [1, 2]
    xdevice.parallel.close_pool()


# what PyTorch's graphs keep and refuse


def storage(x):
    return id(x.untyped_storage())


def test_what_a_task_reads_is_kept_and_what_it_makes_is_not(torch):
    from xdevice_torch.performance.graphs import Inputs

    w, b, mask = torch.ones(3, 3, requires_grad=True), torch.ones(3), torch.ones(3).to_sparse()
    with Inputs() as inputs:
        h = (w[1:] @ w.T + b) * 2.0
        h += 1
        loss = torch.where(h > 0, h, 0.0).sum() + torch.sparse.sum(mask)
        (grad,) = torch.autograd.grad(loss, w)
        w.data.sub_(grad)
    kept = set(inputs.memories)
    assert {storage(w), storage(b), id(mask)} <= kept
    assert not kept & {storage(h), storage(loss), storage(grad)}


def test_what_is_kept_outlives_its_names(torch):
    from xdevice_torch.performance.graphs import Inputs

    x = torch.ones(3)
    memory = weakref.ref(x)
    inputs = Inputs()
    with inputs:
        x.view(3, 1) + 1
    address = x.data_ptr()
    del x
    gc.collect()
    assert memory() is None
    (kept,) = inputs.memories.values()
    assert kept.data_ptr() == address
    assert kept.nbytes() == 12


def test_work_on_another_device_is_refused_before_it_is_done(torch):
    from xdevice_torch.performance.graphs import OnlyOn

    x, w = torch.ones(3, device="meta"), torch.ones(3, 3, device="meta", requires_grad=True)
    counter, rate = torch.zeros(()), torch.tensor(0.1)
    elsewhere = [
        lambda: torch._foreach_add_([counter], 1.0),
        lambda: counter.add_(1),
        lambda: x * rate,
        lambda: torch.ones(3),
        lambda: torch.tensor(0.1),
    ]
    with OnlyOn(torch.device("meta")):
        ((x + 1) @ w * 0.5).sum().backward()
        for work in elsewhere:
            with pytest.raises(
                xdevice.errors.DeviceMismatchError,
                match=r"on cpu .*its graph is for meta.*capturable=True",
            ):
                work()
    assert counter == 0


def test_what_an_operation_makes_elsewhere_beside_its_result_is_its_own(torch):
    from xdevice_torch.performance.graphs import OnlyOn

    x = torch.ones(3, device="meta")
    with OnlyOn(torch.device("meta")):
        seed = x.new_zeros(1, device="cpu")
        seed + 1
        torch.nn.LSTM(3, 2, device="meta")(x[None])


def test_optimizers_want_to_be_capturable(torch):
    from xdevice_torch.performance.graphs import OnlyOn

    w = torch.nn.Parameter(torch.ones(3, device="meta"))
    w.grad = torch.ones_like(w)
    with OnlyOn(torch.device("meta")):
        torch.optim.SGD([w], momentum=0.9).step()
        with pytest.raises(xdevice.errors.DeviceMismatchError, match="capturable=True"):
            torch.optim.Adam([w]).step()


def test_a_compiled_function_stays_compiled(torch):
    from torch._dynamo.testing import CompileCounter

    from xdevice_torch.performance.graphs import Inputs

    counter = CompileCounter()
    compiled = torch.compile(lambda x: x * 2 + 1, backend=counter)
    with Inputs():
        compiled(torch.ones(3))
    assert counter.frame_count == 1


def test_an_input_is_kept_also_if_it_has_the_key_of_memory_that_was_freed(torch):
    from xdevice_torch.performance.graphs import Inputs

    for _ in range(100):
        x, inputs = torch.ones(4), Inputs()
        with inputs:
            made = torch.ones(4) + 1
            # its storage is freed, and the next one may get its `id`
            del made
            x * 2
        assert x.data_ptr() in [memory.data_ptr() for memory in inputs.memories.values()]
