"""Signs of life: which threads of a process say that its program works."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from xdevice.distributed.liveness import Liveness

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc to find threads")


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


def looks(name):
    """What a look says while the program's thread waits beside a thread of this name."""
    said = []
    still, done = threading.Event(), threading.Event()

    def program():
        liveness.thread = threading.current_thread()
        still.set()
        done.wait()

    liveness = Liveness()
    waiting = threading.Thread(target=program)
    liveness.ours = [threading.current_thread()]
    waiting.start()
    still.wait()
    with working_beside(name):
        liveness.has_moved()
        for _ in range(3):
            time.sleep(0.3)
            said.append(liveness.has_moved())
    done.set()
    waiting.join()
    return said


@pytest.mark.parametrize("name", ["cuda-EvtHandlr", "cuda00001400006"])
def test_the_threads_of_a_gpus_driver_are_no_sign_of_life(name):
    assert looks(name) == [False] * 3


@pytest.mark.parametrize("name", ["python3", "data loader", "tf_data_private"])
def test_other_threads_are_a_sign_of_life(name):
    assert looks(name) == [True] * 3
