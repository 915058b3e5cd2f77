"""What only a GPU can show of timing, streams, events and memory: `pytest -m gpu`.

Paddle's GPU build of this machine has no kernels for its GPUs, so Paddle's streams are tried with copies.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from time import perf_counter

import pytest

import xdevice
from xdevice.errors import DeviceMismatchError, UnsupportedError

pytestmark = pytest.mark.gpu

CYCLES = 500_000_000  # some 0.25 seconds of a GPU
PAGES = 1 << 18


def gpus(name, wanted=1):
    backend = xdevice.backend(name)
    if backend.count("gpu") < wanted:
        pytest.skip(f"{name} sees {backend.count('gpu')} GPUs here, {wanted} are needed")
    return backend


@pytest.fixture
def torch():
    with xdevice.use_backend(gpus("torch")) as backend:
        yield backend.framework
        xdevice.sync()


@pytest.fixture
def paddle():
    with xdevice.use_backend(gpus("paddle")) as backend:
        yield backend.framework
        xdevice.sync()


def products(torch, count=60, size=8192):
    """A function that enqueues products for a second or less, warmed up."""
    x = torch.full((size, size), 1 / size, device="cuda:0")
    out = torch.empty_like(x)

    def work():
        for _ in range(count):
            torch.mm(x, x, out=out)

    torch.mm(x, x, out=out)
    xdevice.sync()
    return work


# timing


def test_without_a_wait_the_time_is_ten_times_too_small_and_ours_is_not(torch):
    work = products(torch)
    timer, start, end = (
        xdevice.Timer(),
        xdevice.accelerator.Event("gpu:0"),
        xdevice.accelerator.Event("gpu:0"),
    )
    begun = perf_counter()
    start.record()
    work()
    end.record()
    unsynced = perf_counter() - begun
    ours = timer.stop()
    device = start.elapsed(end)
    assert unsynced < device / 10
    assert ours == pytest.approx(device, rel=0.05)


def test_measure_agrees_with_the_timer(torch):
    """In the same runs: from one run to the next the work may take longer, beside other processes on this GPU."""
    work, inside, around = products(torch), xdevice.Timer(), xdevice.Timer()

    def timed():
        inside.start()
        work()
        inside.stop()

    by_events = xdevice.measure(timed, warmup=0, repeats=3, devices="gpu:0")
    around.stop()
    assert by_events.clock == "device"
    for time, within in zip(by_events.times, inside.times, strict=True):
        assert time > 0.99 * within, "the clocks of host and GPU differ by less"
    assert sum(by_events.times) < 1.01 * around.sum()


def test_measure_sees_work_that_was_left_on_another_stream(torch):
    side = xdevice.accelerator.Stream("gpu:0")

    def work():
        with side:
            torch.cuda._sleep(CYCLES)

    found = xdevice.measure(work, warmup=1, repeats=2, devices="gpu:0")
    assert found.clock == "host"
    start, end = xdevice.accelerator.Event().record(side), xdevice.accelerator.Event()
    work()
    end.record(side)
    assert found.median == pytest.approx(start.elapsed(end), rel=0.1)


def test_the_default_waits_for_every_gpu(torch):
    gpus("torch", 2)
    ends = []
    for index in range(2):
        torch.cuda.synchronize(index)
    with xdevice.Benchmark("both"):
        for index in range(2):
            with torch.cuda.device(index):
                torch.cuda._sleep(CYCLES)
            ends.append(torch.cuda.current_stream(index))
    assert all(stream.query() for stream in ends)


# streams of PyTorch


def test_two_streams_overlap_and_one_does_not(torch):
    def is_side_by_side(first, second):
        end_of_first, start_of_second = (
            xdevice.accelerator.Event("gpu:0"),
            xdevice.accelerator.Event("gpu:0"),
        )
        xdevice.sync()
        with first:
            torch.cuda._sleep(CYCLES)
        end_of_first.record(first)
        start_of_second.record(second)
        with second:
            torch.cuda._sleep(CYCLES)
        return start_of_second.elapsed(end_of_first) > 0

    one, two = xdevice.accelerator.Stream("gpu:0"), xdevice.accelerator.Stream("gpu:0")
    assert is_side_by_side(one, two)
    assert not is_side_by_side(one, one)


@pytest.mark.parametrize("by", ["stream", "event", None])
def test_a_stream_that_waits_reads_what_the_other_writes(torch, by):
    writer, reader = xdevice.accelerator.Stream("gpu:0"), xdevice.accelerator.Stream("gpu:0")
    x, seen = torch.zeros(1024, device="cuda:0"), torch.full((1024,), 7.0, device="cuda:0")
    x.fill_(0)
    seen.copy_(x)  # the first call of a kernel may wait for the GPU
    xdevice.sync()
    with writer:
        torch.cuda._sleep(CYCLES)
        x.fill_(1)
    if by == "stream":
        reader.wait(writer)
    if by == "event":
        reader.wait(xdevice.accelerator.Event().record(writer))
    with reader:
        seen.copy_(x)
    reader.sync()
    assert seen.sum().item() == (0 if by is None else 1024)


def test_sync_of_a_stream_waits_for_it_and_not_for_the_other(torch):
    short, long = xdevice.accelerator.Stream("gpu:0"), xdevice.accelerator.Stream("gpu:0")
    xdevice.sync()
    with long:
        torch.cuda._sleep(4 * CYCLES)
    with short:
        torch.cuda._sleep(CYCLES // 10)
    xdevice.sync(short)
    assert short.native.query()
    assert not long.native.query()
    xdevice.sync(long)
    assert long.native.query()


def test_the_scope_gives_the_stream_and_the_device_back(torch):
    gpus("torch", 2)
    stream = xdevice.accelerator.Stream("gpu:1")
    before = (
        torch.cuda.current_device(),
        torch.cuda.current_stream(0),
        torch.cuda.current_stream(1),
    )
    with stream:
        assert torch.cuda.current_stream(1) == stream.native
        assert xdevice.accelerator.Stream.current("gpu:1").native == stream.native
    assert (
        torch.cuda.current_device(),
        torch.cuda.current_stream(0),
        torch.cuda.current_stream(1),
    ) == before


def test_a_stream_of_one_gpu_waits_for_one_of_another(torch):
    gpus("torch", 2)
    first, second = xdevice.accelerator.Stream("gpu:0"), xdevice.accelerator.Stream("gpu:1")
    xdevice.sync()
    with first:
        torch.cuda._sleep(CYCLES)
    second.wait(first)
    xdevice.sync(second)
    assert first.native.query()


@pytest.mark.parametrize("kept", [True, False])
def test_memory_that_is_kept_is_not_given_away(torch, kept):
    side = xdevice.accelerator.Stream("gpu:0")
    torch.cuda.empty_cache()
    x = torch.ones(1 << 20, device="cuda:0")
    x.sum()  # the first call of a kernel may wait for the GPU
    xdevice.sync()
    with side:
        torch.cuda._sleep(CYCLES)
        total = x.sum()
    if kept:
        side.keep(x)
    address = x.data_ptr()
    del x
    again = torch.zeros(1 << 20, device="cuda:0")
    assert (again.data_ptr() == address) is not kept
    side.sync()
    if kept:
        assert total.item() == 1 << 20


def test_events_and_streams_of_another_device(torch):
    gpus("torch", 2)
    event, stream = (
        xdevice.accelerator.Event("gpu:0").record(),
        xdevice.accelerator.Stream("gpu:1"),
    )
    with pytest.raises(DeviceMismatchError):
        event.record(stream)
    with pytest.raises(DeviceMismatchError):
        event.elapsed(xdevice.accelerator.Event().record(stream))
    with pytest.raises(DeviceMismatchError):
        stream.keep(torch.ones(2, device="cuda:0"))


# streams of Paddle, with copies


def pages(paddle, index=0):
    host = paddle.to_tensor([1.0] * 1024, place=paddle.CPUPlace()).tile([PAGES])
    return host._copy_to(paddle.CUDAPlace(index), True)


def copies(paddle, x, count=400, index=0):
    place = paddle.CUDAPlace(index)
    for _ in range(count):
        y = x._copy_to(place, False)
    return y


@pytest.mark.parametrize("index", [0, 1])
def test_paddle_copies_on_a_stream_and_the_host_waits_for_it(paddle, index):
    gpus("paddle", index + 1)
    x = pages(paddle, index)
    stream = xdevice.accelerator.Stream(f"gpu:{index}")
    start, end = xdevice.accelerator.Event(), xdevice.accelerator.Event()
    xdevice.sync()
    stream.wait(xdevice.accelerator.Stream.current(f"gpu:{index}"))
    with stream:
        start.record()
        y = copies(paddle, x, index=index)
        end.record()
    assert not stream.native.query()
    xdevice.sync(stream)
    assert stream.native.query()
    assert 0 < start.elapsed(end) < 60
    assert y._copy_to(paddle.CPUPlace(), True).numpy()[-1] == 1


def test_paddle_has_its_stream_back_and_a_stream_waits(paddle):
    x = pages(paddle)
    one, two = xdevice.accelerator.Stream("gpu:0"), xdevice.accelerator.Stream("gpu:0")
    before = xdevice.accelerator.Stream.current("gpu:0").native.stream_base.cuda_stream
    xdevice.sync()
    with one:
        copies(paddle, x)
    assert xdevice.accelerator.Stream.current("gpu:0").native.stream_base.cuda_stream == before
    two.wait(one)
    assert not one.native.query()
    two.sync()
    assert one.native.query()


def test_paddle_keeps_what_a_stream_uses_until_it_has_done_it(paddle):
    from xdevice_paddle import streams

    side, x = xdevice.accelerator.Stream("gpu:0"), pages(paddle)
    xdevice.sync()
    side.keep(x)
    with side:
        copies(paddle, x, count=20)
    del x
    small = paddle.to_tensor([1.0], place=paddle.CUDAPlace(0))
    side.keep(small)
    assert len(streams._ending) == 1
    side.sync()
    side.keep(small)
    assert not streams._ending


# where there are none


@pytest.mark.parametrize("name", ["tensorflow", "mxnet", "jax"])
def test_a_gpu_of_a_framework_that_schedules_by_itself_has_no_streams(name):
    with xdevice.use_backend(gpus(name)):
        with pytest.raises(UnsupportedError, match=r"xdevice\.parallel"):
            xdevice.accelerator.Stream("gpu:0")
        with pytest.raises(UnsupportedError, match=r"xdevice\.Timer"):
            xdevice.accelerator.Event("gpu:0")
        with suppress(Exception):
            xdevice.sync()  # what other tests have started on a build without kernels
        assert (
            xdevice.measure(lambda: None, warmup=0, repeats=1, devices="gpu:0").clock == "host"
        )


# memory


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_memory_of_a_gpu_follows_what_is_allocated(name):
    with xdevice.use_backend(gpus(name)):
        xdevice.to_device(xdevice.ones(2, device="cpu"), "gpu:0")
        before = xdevice.memory("gpu:0")
        host = xdevice.ones(1 << 26, device="cpu")
        x = xdevice.to_device(host, "gpu:0")
        during = xdevice.memory("gpu:0")
        assert during.allocated >= before.allocated + (1 << 28)
        assert during.peak >= during.allocated
        assert 0 < during.free < during.total
        assert during.total > 2**30
        del x
        assert xdevice.memory("gpu:0").allocated < during.allocated
        assert xdevice.memory("gpu:0").peak >= during.allocated


def test_the_peak_of_a_gpu_begins_anew(torch):
    x = torch.ones(1 << 26, device="cuda:0")
    del x
    high = xdevice.memory("gpu:0").peak
    xdevice.accelerator.reset_peak_memory_stats("gpu:0")
    after = xdevice.memory("gpu:0")
    assert after.peak == after.allocated <= high - (1 << 28)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tensorflow", ("allocated", "peak")),
        ("mxnet", ("total", "free")),
        ("jax", ("total", "free", "allocated", "peak")),
    ],
)
def test_what_the_others_tell_of_a_gpu(name, told):
    with xdevice.use_backend(gpus(name)):
        x = xdevice.to_device(xdevice.ones(1 << 20, device="cpu"), "gpu:0")
        xdevice.sync(x)
        found = xdevice.memory("gpu:0")._asdict()
        assert found.pop("pinned") == 0, "it is of the CPU"
        assert found.pop("name")
        assert {field for field, value in found.items() if value is not None} == set(told)
        assert all(found[field] >= 0 for field in told)


@pytest.mark.parametrize("name", ["torch", "tensorflow", "paddle", "mxnet", "jax"])
def test_the_cache_is_given_back_or_refused_by_name(name):
    with xdevice.use_backend(gpus(name)):
        x = xdevice.to_device(xdevice.ones(1 << 28, device="cpu"), "gpu:0")
        xdevice.sync(x)
        del x
        gc.collect()
        if name in ("tensorflow", "jax"):
            with pytest.raises(xdevice.errors.UnsupportedError, match="releasing memory"):
                xdevice.accelerator.empty_cache("gpu:0")
            return
        before = xdevice.memory("gpu:0").free
        xdevice.accelerator.empty_cache("gpu:0")
        assert xdevice.memory("gpu:0").free - before > 900e6
