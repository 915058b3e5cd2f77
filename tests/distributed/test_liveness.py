"""Signs of life: which threads of a process say that its program works."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from xdevice.distributed.liveness import Liveness

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="reads /proc to find threads"
)


@contextmanager
def working_beside(name):
    """A thread of this name, as the operating system has it, that uses some 20 % of a core; this one waits."""
    ended, begun = threading.Event(), threading.Event()

    def work():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        begun.set()
        while not ended.wait(0.02):
            until = time.thread_time() + 0.005
            while time.thread_time() < until:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def watched(waiting=1):
    """The signs of life of a program whose threads all wait."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    liveness = Liveness()
    liveness.thread, liveness.own_threads = threads[0], [threading.current_thread()]
    try:
        yield liveness
    finally:
        done.set()
        for thread in threads:
            thread.join()


def looks(name):
    """What a look says while the program's thread waits beside a thread of this name."""
    said = []
    with watched() as liveness, working_beside(name):
        liveness.has_moved()
        for _ in range(3):
            time.sleep(0.3)
            said.append(liveness.has_moved())
    return said


@pytest.mark.parametrize("waiting", [1, 200])
def test_looking_is_no_sign_of_life(waiting):
    """A process with a GPU has hundreds of threads, and looking at them takes milliseconds."""
    with watched(waiting) as liveness:
        readings = [liveness._read().others for _ in range(20)]
    assert max(readings) - min(readings) < 1e-3


@pytest.mark.parametrize("name", ["cuda-EvtHandlr", "cuda00001400006"])
def test_the_threads_of_a_gpus_driver_are_no_sign_of_life(name):
    assert looks(name) == [False] * 3


@pytest.mark.parametrize("name", ["python3", "data loader", "tf_data_private"])
def test_other_threads_are_a_sign_of_life(name):
    assert looks(name) == [True] * 3


@pytest.mark.parametrize("wait", ["lock", "queue", "child", "future"])
def test_a_line_of_the_program_is_named_where_it_waits_in_pythons_own(wait):
    end, items, future = threading.Event(), queue.Queue(), Future()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def waits_here():
        {"lock": end.wait, "queue": items.get, "child": child.wait, "future": future.result}[
            wait
        ]()

    liveness = Liveness()
    liveness.thread = threading.Thread(target=waits_here)
    liveness.thread.start()
    try:
        time.sleep(0.2)
        assert liveness.program_line().endswith("in waits_here"), liveness.program_line()
    finally:
        end.set()
        items.put(None)
        future.set_result(None)
        child.communicate(b"\n")
        liveness.thread.join()


def test_a_thread_that_has_ended_is_at_an_unknown_line():
    liveness = Liveness()
    liveness.thread = threading.Thread(target=lambda: None)
    liveness.thread.start()
    liveness.thread.join()
    assert liveness.program_line() == "an unknown line"
