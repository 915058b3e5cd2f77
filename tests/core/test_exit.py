"""Programs that end in the middle of something end with the exit status that they should."""

from __future__ import annotations

import itertools

import pytest
from helpers.environment import BACKENDS, python, sampled

CODE = """
import sys, threading
import xdevice

name, how = sys.argv[1:]
xdevice.set_backend(name)
add = xdevice.backend().samples().add
at_work = threading.Event()


def work():
    x = xdevice.random.uniform(300, 300)
    for _ in range(10):
        x = add(x, x)
    return x


def source():
    while True:
        yield work()
        at_work.set()


def batches():
    return iter(xdevice.prefetch(source(), "cpu", depth=500))


def in_a_daemon(act):
    threading.Thread(target=act, daemon=True).start()
    assert at_work.wait(200)


def task():
    at_work.set()
    work()


def prefetch_kept():
    global kept
    kept = batches()
    next(kept)


def prefetch_dropped():
    next(batches())


def prefetch_in_a_cycle():
    kept = [batches()]
    next(kept[0])
    kept.append(kept)


def prefetch_in_a_thread():
    def consume():
        for _ in batches():
            pass

    in_a_daemon(consume)


def prefetch_raising():
    for _ in batches():
        raise KeyError("the program's own")


def parallel_in_a_thread():
    def loop():
        while True:
            xdevice.parallel.run(*[task] * 4)

    in_a_daemon(loop)


def parallel_nested_in_a_thread():
    def loop():
        while True:
            xdevice.parallel.run(*[lambda: xdevice.parallel.run(task, task)] * 20)

    in_a_daemon(loop)


def parallel_raising():
    def fail():
        raise KeyError("the program's own")

    xdevice.parallel.run(task, fail)


def transfers_entered():
    xdevice.transfers().__enter__()
    xdevice.item(xdevice.ones(1))


def transfers_raising():
    with xdevice.transfers("log_explicit"):
        raise KeyError("the program's own")


def blocking_entered():
    xdevice.accelerator.blocking().__enter__()
    work()


def device_entered():
    xdevice.cpu().__enter__()
    work()


globals()[how]()
"""
WAYS = [
    line.split()[1].partition("(")[0] for line in CODE.splitlines() if line.startswith("def ")
]
WAYS = WAYS[WAYS.index("prefetch_kept") :]
TIMES = 10
EACH_TIME = [
    ("numpy", how)
    for how in (
        "prefetch_kept",
        "parallel_in_a_thread",
        "prefetch_raising",
        "transfers_entered",
    )
]
IN_CI = [
    ("torch", "prefetch_kept"),
    ("paddle", "prefetch_raising"),
    ("jax", "prefetch_dropped"),
    ("jax", "blocking_entered"),
    ("numpy", "prefetch_in_a_cycle"),
    ("numpy", "parallel_nested_in_a_thread"),
]


def ends_as_it_should(name, how):
    done = python("-W", "ignore", "-c", CODE, name, how)
    assert done.returncode == how.endswith("_raising"), (
        f"{done.returncode}\n{done.stderr[-3000:]}"
    )
    assert ("the program's own" in done.stderr) == how.endswith("_raising")
    assert "Exception in thread" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("name", "how"),
    sampled(itertools.product(BACKENDS, WAYS), each_time=EACH_TIME, slow=IN_CI, others="long"),
)
def test_a_program_that_ends_in_the_middle(name, how):
    ends_as_it_should(name, how)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", BACKENDS)
def test_it_ends_so_each_time(name, how):
    for _ in range(TIMES):
        ends_as_it_should(name, how)


CAPTURE = """
import sys, threading
import xdevice

xdevice.set_backend("torch")
x = xdevice.random.uniform(64, 64, device="gpu:0")
recording = threading.Event()


def task():
    y = x @ x
    import torch

    if torch.cuda.is_current_stream_capturing():
        recording.set()
        if sys.argv[1] == "raising":
            raise KeyError("the program's own")
        if sys.argv[1] == "thread":
            threading.Event().wait()  # the program ends meanwhile
        if sys.argv[1] == "exit":
            sys.exit(3)
    return y


if sys.argv[1] == "thread":
    threading.Thread(target=xdevice.accelerator.make_graphed_callable, args=(task, "gpu:0"), daemon=True).start()
    assert recording.wait(200)
else:
    graph = xdevice.accelerator.make_graphed_callable(task, "gpu:0")
    if sys.argv[1] == "kept":
        graph()  # the program ends before the replay does
"""


@pytest.mark.gpu
@pytest.mark.skipif("torch" not in BACKENDS, reason="torch is not installed")
@pytest.mark.parametrize(
    ("how", "status"), [("raising", 1), ("exit", 3), ("thread", 0), ("kept", 0)]
)
def test_a_program_that_ends_in_the_middle_of_a_capture(how, status):
    for _ in range(TIMES):
        done = python("-W", "ignore", "-c", CAPTURE, how)
        assert done.returncode == status, done.stderr[-3000:]
