"""`parallel.run` and `prefetch` on two real GPUs: `pytest -m gpu`. Results that come too early would be wrong
numbers."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import xdevice

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
SIZE = 4096
STEPS = 20


@pytest.fixture(autouse=True)
def _torch():
    with xdevice.use_backend("torch"):
        if xdevice.num_gpus() < 2:
            pytest.skip("needs two GPUs")
        yield
        xdevice.parallel.close_pool()


def work(x):
    """Some 20 ms of an H200's time; the result is `x`, as long as its rows are all one."""
    for _ in range(STEPS):
        x = x @ torch.full_like(x, 1 / SIZE)
    return x


def rows(value, gpu):
    return torch.full((SIZE, SIZE), float(value), device=gpu.native)


def test_results_on_two_gpus_are_ready_for_the_callers_stream():
    gpus = xdevice.try_all_gpus()[:2]
    xs = [rows(i + 1, gpu) for i, gpu in enumerate(gpus)]
    for _ in range(5):
        first, second = xdevice.parallel.run(lambda: work(xs[0]), lambda: work(xs[1]))
        # enqueued on the callers' streams without any wait by the host
        total = (first * 2).cpu(), (second * 2).cpu()
        assert float(total[0].min()) == pytest.approx(2, rel=1e-3) == float(total[0].max())
        assert float(total[1].min()) == pytest.approx(4, rel=1e-3) == float(total[1].max())


def test_a_task_waits_for_what_the_caller_has_enqueued():
    gpu = xdevice.gpu()
    x = rows(1, gpu)
    for value in range(1, 6):
        work(x)
        # behind 20 ms of work; a task that did not wait would see the value before
        x.fill_(value)
        found = xdevice.parallel.run(*[lambda: x.sum(dtype=torch.float64)] * 3)
        assert [float(y) for y in found] == [value * SIZE * SIZE] * 3


def test_each_task_has_its_own_stream_and_the_callers_device():
    torch.zeros(1, device="cuda:0"), torch.zeros(1, device="cuda:1")
    meeting = threading.Barrier(3, timeout=200)

    def task():
        meeting.wait()
        streams = tuple(torch.cuda.current_stream(i).cuda_stream for i in (0, 1))
        return streams, torch.cuda.current_device()

    with torch.cuda.device(1):
        found = xdevice.parallel.run(*[task] * 3)
    assert {device for _, device in found} == {1}
    mine = {torch.cuda.current_stream(i).cuda_stream for i in (0, 1)}
    assert len({streams[0] for streams, _ in found} | mine) >= 4
    assert len({streams[1] for streams, _ in found} | mine) >= 4


def test_threads_take_short_turns_while_tasks_feed_gpus():
    torch.zeros(1, device="cuda:0")
    before = sys.getswitchinterval()
    seen = xdevice.parallel.run(
        sys.getswitchinterval, lambda: xdevice.parallel.run(sys.getswitchinterval)[0]
    )
    assert seen[0] == seen[1] < before, "tasks take short turns"
    assert sys.getswitchinterval() == before
    with pytest.raises(ZeroDivisionError):
        xdevice.parallel.run(lambda: 1 / 0)
    assert sys.getswitchinterval() == before


def test_memory_of_results_is_not_given_away_while_the_caller_reads_it():
    gpu = xdevice.gpu()
    xs = [rows(i + 1, gpu) for i in range(3)]
    sums = []
    for _ in range(30):
        found = xdevice.parallel.run(*(lambda x=x: x * 2 for x in xs))
        work(xs[0])  # the caller is late
        sums.append([y.sum(dtype=torch.float64) for y in found])
        del found
    for total in sums:
        assert [float(y) for y in total] == [2 * (i + 1) * SIZE * SIZE for i in range(3)]


def test_gradients_carry_out_of_tasks_on_two_gpus():
    gpus = xdevice.try_all_gpus()[:2]
    weights = [torch.full((SIZE,), 2.0, device=gpu.native, requires_grad=True) for gpu in gpus]

    def loss(weight):
        return (work(torch.ones(SIZE, SIZE, device=weight.device))[0] * weight).sum()

    losses = xdevice.parallel.run(*(lambda w=w: loss(w) for w in weights))
    (losses[0] + losses[1].to("cuda:0")).backward()
    for weight in weights:
        assert torch.allclose(weight.grad.cpu(), torch.ones(SIZE), rtol=1e-3)


def test_backward_inside_of_tasks():
    gpus = xdevice.try_all_gpus()[:2]
    weights = [torch.full((SIZE,), 2.0, device=gpu.native, requires_grad=True) for gpu in gpus]
    xdevice.parallel.run(*(lambda w=w: (w * w).sum().backward() for w in weights))
    assert [float(weight.grad.sum()) for weight in weights] == [4.0 * SIZE] * 2


@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize("index", [0, 1])
def test_a_source_tensor_that_is_overwritten_after_it_was_yielded(is_pinned, index):
    gpu = xdevice.gpu(index)
    buffer = torch.empty(SIZE, SIZE, pin_memory=is_pinned)

    def source():
        for i in range(20):
            buffer.fill_(i)
            yield buffer, i
            buffer.fill_(-1)

    x = rows(1, gpu)
    for batch, i in xdevice.prefetch(source(), gpu, depth=3):
        assert xdevice.device_of(batch) is gpu
        work(x)
        assert (float(batch.min()), float(batch.max())) == (i, i)


def test_numpy_arrays_that_are_overwritten():
    buffer = np.empty((SIZE, SIZE), "float32")

    def source():
        for i in range(10):
            buffer[:] = i
            yield {"x": buffer}

    for i, batch in enumerate(xdevice.prefetch(source(), "gpu:1", depth=2)):
        assert (float(batch["x"].min()), float(batch["x"].max())) == (i, i)


def test_batches_are_ready_on_whatever_stream_consumes_them_and_stay_until_it_is_done():
    gpu = xdevice.gpu()
    pinned = [torch.full((SIZE, SIZE), float(i)).pin_memory() for i in range(4)]
    x = rows(1, gpu)
    side = torch.cuda.Stream(gpu.native)
    side.wait_stream(torch.cuda.current_stream(gpu.native))
    sums = []
    with torch.cuda.stream(side):
        for batch in xdevice.prefetch((pinned[i % 4] for i in range(40)), gpu):
            work(x)  # the consumer is late: the next batches are copied meanwhile
            sums.append(batch.sum(dtype=torch.float64))
            del batch
    # the sums were made on a side stream, and are read on the default one
    torch.cuda.synchronize(gpu.native)
    assert [float(total) for total in sums] == [i % 4 * SIZE * SIZE for i in range(40)]


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax", "paddle", "mxnet"])
def test_prefetch_puts_batches_on_the_gpu_on_every_backend(name):
    with xdevice.use_backend(name) as backend:
        if backend.count("gpu") < 2:
            pytest.skip(f"{name} sees no two GPUs")
        arrays = [np.full((64, 64), i, "float32") for i in range(10)]
        tensors = [xdevice.tensor(array) for array in arrays]
        for source in (arrays, tensors):
            for i, batch in enumerate(xdevice.prefetch(source, "gpu:1")):
                assert xdevice.device_of(batch) is xdevice.gpu(1)
                assert set(xdevice.to_numpy(batch).ravel().tolist()) == {float(i)}
