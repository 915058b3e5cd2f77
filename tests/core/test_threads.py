"""Frameworks that are first used by several threads at once, in fresh processes, because the fault is a crash."""

from __future__ import annotations

import threading

import pytest
from helpers.environment import BACKENDS, FRAMEWORKS, QUICK, printed, python, sampled

from xdevice.core import frameworks, importing

PADDLE_WAITS = """
import threading, time
import xdevice
from xdevice.contract import loader

with loader.import_lock:
    thread = threading.Thread(target=xdevice.backend, args=("paddle",))
    thread.start()
    time.sleep(1)  # it waits for the lock by now; if it does not yet, the order is the usual one
    xdevice.backend("tensorflow")
thread.join()
for name in ("paddle", "tensorflow"):
    with xdevice.use_backend(name):
        x = xdevice.random.uniform(64, 64)
        xdevice.to_numpy(x @ x)
print("all work")
"""

EIGHT = """
import random, sys, threading, traceback
import xdevice

names = sys.argv[2].split(",")
chance = random.Random(int(sys.argv[1]))
gate = threading.Barrier(8, timeout=200)
failed = []


def first_use(order):
    try:
        gate.wait()
        for name in order:
            with xdevice.use_backend(name):
                x = xdevice.tensor([[1.0] * 64] * 64)
                y = xdevice.copy_to(x, "cpu")
                xdevice.sync()
                assert float(xdevice.to_numpy(y).sum()) == 64 * 64
    except BaseException:
        failed.append(traceback.format_exc())


threads = [threading.Thread(target=first_use, args=(chance.sample(names, len(names)),)) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all work" if not failed else failed)
"""

WHILE_MXNET_WORKS = """
import threading
import xdevice

stop, at_work = threading.Event(), threading.Event()
mx = xdevice.backend("mxnet").framework


def work():
    with xdevice.use_backend("mxnet"):
        while not stop.is_set():
            x = xdevice.random.uniform(64, 64)
            xdevice.to_numpy(mx.np.dot(x, x))
            at_work.set()


threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
assert at_work.wait(200)
with xdevice.use_backend("paddle"):
    xdevice.to_numpy(xdevice.ones(3) + 1)
stop.set()
for thread in threads:
    thread.join()
print("all work")
"""


def assert_works(code, *arguments):
    done = python("-W", "ignore", "-c", code, *map(str, arguments))
    assert (done.returncode, done.stdout.strip()) == (0, "all work"), done.stderr[-3000:]


@pytest.mark.long
@pytest.mark.skipif(not {"paddle", "tensorflow"} <= set(FRAMEWORKS), reason="needs both")
def test_paddle_that_waits_for_the_import_of_tensorflow():
    assert_works(PADDLE_WAITS)


def test_eight_threads_first_use_what_is_quick():
    assert_works(EIGHT, 0, ",".join(name for name in QUICK if name in BACKENDS))


@pytest.mark.parametrize("seed", sampled(range(50), each_time=(), slow=[0], others="long"))
def test_eight_threads_first_use_all_frameworks(seed):
    assert_works(EIGHT, seed, ",".join(FRAMEWORKS))


@pytest.mark.skipif(not {"paddle", "mxnet"} <= set(FRAMEWORKS), reason="needs both")
@pytest.mark.parametrize("run", sampled(range(20), each_time=(), others="long"))
def test_paddle_is_imported_while_mxnet_works_in_other_threads(run):
    assert_works(WHILE_MXNET_WORKS)


def test_the_import_hook_imports_nothing_while_python_asks_it_for_a_module():
    code = """
import sys
import xdevice
from xdevice.core import importing
sys.modules.pop("importlib.util", None)
before = set(sys.modules)
importing._finder.find_spec("json")
importing._finder.find_spec("jax")
print(*sorted(set(sys.modules) - before))
"""
    assert printed("-c", code) == ""


def test_an_import_waits_for_other_threads_and_not_for_its_own(monkeypatch):
    loader = importing._Loader(None, frameworks.find("tensorflow"))
    own = (threading.get_ident(), frameworks.find("jax"))
    monkeypatch.setattr(importing, "_being_handed_over", [own])
    loader._wait_for_brought_frameworks()  # would not return
    another = threading.Thread(target=loader._wait_for_brought_frameworks, daemon=True)
    another.start()
    another.join(0.1)
    assert another.is_alive()
    importing._being_handed_over.clear()
    another.join(5)
    assert not another.is_alive()
