# ruff: noqa: N802, N815  # the names of CUDA's driver
"""The ring of page-locked memory, on a driver that does nothing before it is waited for.

Its GPUs' memory is NumPy's, and its streams keep what they are given until an event or a stream is waited for: so
whoever is too early finds what was there before, each time.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict

import numpy as np
import pytest

from xdevice.cuda_driver import ring

STREAM = 7
SLOT = 1 << 14
WHOLE = 3 * SLOT * ring.SLOTS + 12345
"""Each slot is used several times, and the last chunk is a short one."""


class Driver:
    def __init__(self):
        self.lock = threading.RLock()
        self.gpus = {}
        self.kept = []
        self.streams = defaultdict(list)
        self.events = {}
        self.host = {}
        self.current = threading.local()
        self.failing = None
        self.calls = 0
        self.made = 100
        self.kind = 2

    def array(self, nbytes, index=0):
        """Memory of a GPU."""
        made = np.zeros(nbytes, "uint8")
        self.gpus[made.ctypes.data, made.ctypes.data + nbytes] = index
        self.kept.append(made)
        return made

    def finish(self, stream):
        with self.lock:
            while self.streams[stream]:
                self.streams[stream].pop(0)()

    # what the ring calls

    def cuPointerGetAttribute(self, found, which, pointer):
        index = next(
            (i for (start, end), i in self.gpus.items() if start <= pointer.value < end), None
        )
        if index is None:
            return 1
        found._obj.value = self.kind if which == 2 else index
        return 0

    def cuDeviceGet(self, found, index):
        found._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, found, device):
        found._obj.value = 1000 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.current.__dict__.setdefault("stack", []).append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, found):
        found._obj.value = self.current.stack.pop()
        return 0

    def _new(self, found):
        if not self.current.__dict__.get("stack"):
            return 201
        with self.lock:
            self.made += 1
            found._obj.value = self.made
        return 0

    def cuStreamCreate(self, found, flags):
        return self._new(found)

    def cuStreamSynchronize(self, stream):
        self.finish(stream.value)
        return 0

    def cuMemHostAlloc(self, found, nbytes, flags):
        memory = np.full(nbytes.value, 0xEE, "uint8")
        self.host[memory.ctypes.data] = memory
        found._obj.value = memory.ctypes.data
        return 0

    def cuMemFreeHost(self, memory):
        del self.host[memory.value]
        return 0

    def cuEventCreate(self, found, flags):
        status = self._new(found)
        self.events[found._obj.value] = (0, 0)
        return status

    def cuEventDestroy_v2(self, event):
        del self.events[event.value]
        return 0

    def cuEventRecord(self, event, stream):
        with self.lock:
            mark = [False]
            self.streams[stream.value].append(lambda: mark.__setitem__(0, True))
            self.events[event.value] = (stream.value, mark)
        return 0

    def cuEventSynchronize(self, event):
        with self.lock:
            stream, mark = self.events[event.value]
            while mark and not mark[0]:
                self.streams[stream].pop(0)()
        return 0

    def _copy(self, target, source, nbytes, stream):
        with self.lock:
            self.calls += 1
            if self.failing is not None and self.calls >= self.failing:
                return 700
            self.streams[stream.value].append(
                lambda: ctypes.memmove(target.value, source.value, nbytes.value)
            )
        return 0

    cuMemcpyDtoHAsync_v2 = _copy
    cuMemcpyHtoDAsync_v2 = _copy


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(ring, "SLOT", SLOT)
    monkeypatch.setattr(ring, "_driver", driver)
    monkeypatch.setattr(ring, "_ring", None)
    monkeypatch.setattr(ring, "_gpus", {})
    yield driver
    driver.failing = None
    ring.free()
    assert not driver.host, "page-locked memory was left"
    assert not driver.events


def random(seed, nbytes=WHOLE):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "uint8")


def up(array, gpu, stream=STREAM):
    return ring.to_gpu(array, array.ctypes.data, gpu, gpu.ctypes.data, array.nbytes, stream)


def down(gpu, array, stream=STREAM):
    return ring.to_host(gpu, gpu.ctypes.data, array, array.ctypes.data, array.nbytes, stream)


def test_the_source_may_be_written_at_once(driver):
    values, gpu = random(0), driver.array(WHOLE)
    source = values.copy()
    assert up(source, gpu)
    source[:] = 0
    driver.finish(STREAM)
    assert (gpu == values).all()


def test_the_destination_may_be_read_at_once(driver):
    gpu, made = driver.array(WHOLE), np.empty(WHOLE, "uint8")
    gpu[:] = random(1)
    assert down(gpu, made)
    assert (made == gpu).all()


def test_without_a_stream_all_is_there_on_return(driver):
    values, gpu = random(2), driver.array(WHOLE)
    assert up(values, gpu, None)
    assert (gpu == values).all()


def test_a_few_bytes_without_a_stream_come_at_once_and_make_no_ring(driver):
    gpu, made = driver.array(52), np.empty(52, "uint8")
    gpu[:] = random(12, 52)
    place = ring._gpu_of(gpu.ctypes.data)
    driver.streams[place.stream.value].append(
        lambda: pytest.fail("they have waited for a large copy")
    )
    assert down(gpu, made, None)
    assert (made == gpu).all()
    assert ring.pinned_bytes() == 0
    driver.streams[place.stream.value].clear()
    driver.failing = 1
    assert not down(gpu, made, None)
    driver.kind = 1
    assert not down(gpu, made, None)


def test_a_copy_comes_after_the_work_of_its_stream_and_before_what_follows(driver):
    gpu, made, other = driver.array(WHOLE), np.empty(WHOLE, "uint8"), driver.array(WHOLE)
    values = random(3)
    driver.streams[STREAM].append(lambda: gpu.__setitem__(slice(None), values))
    assert down(gpu, made)
    assert (made == values).all()
    later = random(4)
    assert up(later, gpu)
    driver.streams[STREAM].append(lambda: other.__setitem__(slice(None), gpu))
    driver.finish(STREAM)
    assert (other == later).all()


def test_threads_streams_and_gpus_do_not_disturb_each_other(driver):
    wrong = []

    def work(number):
        for turn in range(2):
            values = random(10 * number + turn, 2 * SLOT * ring.SLOTS)
            gpu, made = driver.array(values.nbytes, number % 2), np.empty_like(values)
            source, stream = values.copy(), 50 + number
            assert up(source, gpu, stream)
            source[:] = 0
            assert down(gpu, made, stream)
            if not (made == values).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


@pytest.mark.parametrize("failing", [1, 20])
def test_an_error_half_way_is_told_and_harms_no_later_copy(driver, failing):
    values, gpu, made = random(5), driver.array(WHOLE), np.empty(WHOLE, "uint8")
    driver.failing = failing
    assert not up(values, gpu)
    assert not down(gpu, made)
    driver.failing = None
    assert up(values, gpu)
    assert down(gpu, made)
    assert (made == values).all()
    assert ring._ring._slots.qsize() == ring.SLOTS


def test_after_an_error_without_a_stream_nothing_is_written_any_more(driver):
    """Else the memory could be somebody else's by then."""
    gpu = driver.array(WHOLE)
    driver.failing = 20
    assert not up(random(11), gpu, None)
    before = gpu.copy()
    assert before.any()
    for stream in list(driver.streams):
        driver.finish(stream)
    assert (gpu == before).all()


def test_what_is_not_the_memory_of_a_gpu_is_left_alone(driver):
    values, gpu = random(6), driver.array(WHOLE)
    driver.kind = 1
    assert not up(values, gpu)
    assert not gpu.any()
    assert ring.pinned_bytes() == 0


def test_a_stream_that_each_thread_has_its_own_of_is_left_to_the_framework(driver):
    values, gpu = random(7), driver.array(WHOLE)
    assert not up(values, gpu, 2)


def test_the_memory_is_as_much_as_is_said():
    assert ring.SLOT * ring.SLOTS == 64 << 20


def test_the_memory_is_one_small_block_and_can_be_given_back(driver):
    assert ring.pinned_bytes() == 0
    values, gpu = random(8), driver.array(WHOLE)
    for _ in range(2):
        assert up(values, gpu)
        assert (
            ring.pinned_bytes()
            == sum(memory.nbytes for memory in driver.host.values())
            == SLOT * ring.SLOTS
        )
        before = {thread.name for thread in threading.enumerate()}
        assert "xdevice-ring" in before
        ring.free()
        assert ring.pinned_bytes() == 0
        assert not driver.host
        assert "xdevice-ring" not in {thread.name for thread in threading.enumerate()}
        driver.finish(STREAM)
        assert (gpu == values).all()


def test_both_sides_live_until_the_threads_have_done_their_part(driver):
    class Interrupted(BaseException):
        pass

    def interrupted(copy):
        raise Interrupted

    copies = []
    begin = ring._Ring.begin

    def and_interrupt(self, copy):
        begin(self, copy)
        copies.append(copy)

    values, gpu = random(9), driver.array(WHOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring._Ring, "begin", and_interrupt)
        patch.setattr(ring._Copy, "wait", interrupted)
        with pytest.raises(Interrupted):
            up(values, gpu)
    assert copies[0].owners[0] is gpu
    assert copies[0].owners[1] is values
    assert up(values, gpu)
    driver.finish(STREAM)
    assert (gpu == values).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
# JAX, where a test has used it before
@pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")
def test_a_child_of_a_fork_begins_without_a_ring(driver):
    values, gpu = random(10), driver.array(WHOLE)
    assert up(values, gpu)
    child = os.fork()
    if child == 0:
        try:
            right = ring.pinned_bytes() == 0 and up(values, gpu)
            driver.finish(STREAM)
            os._exit(0 if right and (gpu == values).all() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert ring.pinned_bytes() == SLOT * ring.SLOTS
