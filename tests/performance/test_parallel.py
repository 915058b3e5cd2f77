"""`parallel.run`: the results, errors, state and gradients of tasks that run side by side, on every backend."""

from __future__ import annotations

import dataclasses
import sys
import threading
from contextvars import ContextVar

import numpy as np
import pytest
from helpers.environment import BACKENDS, framework, python, sampled, with_64_bit

import xdevice
from xdevice.core import scopes
from xdevice.performance import parallel
from xdevice.performance.pool import MAX_RUNNING
from xdevice.testing.contract.samples import Samples

variable: ContextVar[str] = ContextVar("variable", default="not carried")


@pytest.fixture(autouse=True)
def _no_thread_left():
    yield
    xdevice.parallel.close_pool()
    assert not threads_of_the_pool()


def threads_of_the_pool():
    return [thread for thread in threading.enumerate() if thread.name == "xdevice-parallel"]


def samples(backend) -> Samples:
    return backend.samples()


@pytest.mark.parametrize(
    "backend", sampled(BACKENDS, each_time=["numpy", "torch"]), indirect=True
)
def test_a_thousand_tasks_give_what_they_give_one_after_another(backend):
    add = samples(backend).add
    x = xdevice.random.uniform(8, 8)

    def task(i):
        y = add(x, xdevice.tensor(np.full((8, 8), i, "float32")))
        return {"i": i, "y": [add(y, y)]}

    together = xdevice.parallel.run(*(lambda i=i: task(i) for i in range(1000)))
    assert [result["i"] for result in together] == list(range(1000))
    for i in range(0, 1000, 7):
        np.testing.assert_array_equal(
            xdevice.to_numpy(together[i]["y"][0]), xdevice.to_numpy(task(i)["y"][0])
        )


def test_large_products_are_the_same_to_the_bit(backend):
    xs = [xdevice.random.uniform(160, 160) for _ in range(4)]
    product = (lambda x: x.dot(x)) if backend.name == "mxnet" else (lambda x: x @ x)
    expected = [xdevice.to_numpy(product(x)) for x in xs]
    for _ in range(20):
        for got, wanted in zip(
            xdevice.parallel.run(*(lambda x=x: product(x) for x in xs)), expected, strict=True
        ):
            np.testing.assert_array_equal(xdevice.to_numpy(got), wanted)


def test_tasks_run_at_the_same_time_where_the_framework_allows_it(backend):
    if backend.threads == "one":
        threads = xdevice.parallel.run(*[threading.get_ident] * 5)
        assert set(threads) == {threading.get_ident()}
        return
    # broken, and so an error, unless all five are there at once
    meeting = threading.Barrier(5, timeout=200)
    assert sorted(xdevice.parallel.run(*[meeting.wait] * 5)) == [0, 1, 2, 3, 4]


def test_nested_calls_end(backend):
    def deep(level):
        if level == 0:
            return xdevice.item(xdevice.ones(1))
        return sum(xdevice.parallel.run(lambda: deep(level - 1), lambda: deep(level - 1)))

    assert deep(5) == 32


def test_calls_from_several_threads_at_once_keep_their_results_apart(backend):
    found = {}

    def call(number):
        with xdevice.use_backend(backend):
            found[number] = xdevice.parallel.run(*(lambda i=i: (number, i) for i in range(20)))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [(number, i) for i in range(20)] for number in range(8)}


def test_nothing_and_one():
    assert xdevice.parallel.run() == []
    assert xdevice.parallel.run(lambda: 7) == [7]


def test_what_is_no_task_is_named_before_any_has_started(backend):
    started = []
    with pytest.raises(
        xdevice.errors.ArgumentError, match=r"task 1 .* expected a function .* 3 of type int"
    ):
        xdevice.parallel.run(lambda: started.append(1), 3)
    assert not started


# errors


class _OddError(Exception):
    """An exception that could not be made anew from its text."""

    def __init__(self, one, two):
        super().__init__(one, two)


async def awaits():
    return xdevice.ones(2)


def test_a_task_whose_body_would_not_run_is_refused_before_any_has_started():
    started = []
    with (
        xdevice.use_backend("numpy"),
        pytest.raises(
            xdevice.errors.ArgumentError,
            match=r"task 1 of xdevice\.parallel\.run: .* does not run when it is called",
        ),
    ):
        xdevice.parallel.run(lambda: started.append(1), awaits)
    assert not started


def test_an_exception_is_raised_once_the_others_have_ended(backend):
    ended = []
    failed = threading.Event()

    def failing():
        failed.set()
        raise _OddError("boom", 2)

    def slow():
        failed.wait(200)
        ended.append(xdevice.item(xdevice.ones(1)))

    with pytest.raises(_OddError, match="boom") as caught:
        xdevice.parallel.run(failing, slow)
    assert ended == [1.0]
    assert "raised by task 0 of xdevice.parallel.run: " in caught.value.__notes__[0]
    assert "failing" in caught.value.__notes__[0]
    assert caught.value.other_errors == []


def test_of_several_exceptions_the_first_by_order_is_raised(backend):
    def fail(error):
        raise error

    late = threading.Event()
    tasks = [
        lambda: "fine",
        lambda: (backend.threads == "one" or late.wait(200), fail(KeyError("first"))),
        lambda: (late.set(), fail(ValueError("second"))),
        lambda: fail(SystemExit(3)),
    ]
    with pytest.raises(KeyError, match="first") as caught:
        xdevice.parallel.run(*tasks)
    assert [type(error) for error in caught.value.other_errors] == [ValueError, SystemExit]
    notes = "\n".join(caught.value.__notes__)
    assert "task 1" in notes
    assert "ValueError: second" in notes
    assert xdevice.parallel.run(lambda: 1) == [1], "the pool is of use after errors"


@dataclasses.dataclass(frozen=True)
class _FrozenError(Exception):
    why: str = "frozen"


class _NotelessError(Exception):
    add_note = None


class _RefusingError(Exception):
    def add_note(self, text):
        raise OSError("no notes")

    def __str__(self):
        raise OSError("no text")


class _PropertyError(Exception):
    __notes__ = other_errors = property(lambda self: None)


@pytest.mark.parametrize("cls", [_FrozenError, _NotelessError, _RefusingError, _PropertyError])
def test_an_exception_that_takes_no_notes_is_itself(backend, cls):
    raised = cls()

    def fail(error=raised):
        raise error

    def source():
        yield 1
        fail()

    def inside():
        with xdevice.cpu():
            fail()

    for call in (
        lambda: xdevice.parallel.run(fail),
        lambda: [*xdevice.prefetch(source(), "cpu")],
        inside,
    ):
        with pytest.raises(cls) as caught:
            call()
        assert caught.value is raised
    if cls is not _PropertyError:
        assert "raised by task 0" in raised.__notes__[0]
    other = ValueError("other")
    with pytest.raises(cls) as caught:
        xdevice.parallel.run(fail, lambda: fail(other))
    if cls is not _PropertyError:
        assert caught.value.other_errors == [other]
        assert "task 1 also failed" in raised.__notes__[-1]
    with pytest.raises(ValueError, match="other") as caught:
        xdevice.parallel.run(lambda: fail(other), fail)
    assert caught.value.other_errors == [raised]
    assert cls.__qualname__ in other.__notes__[-1]


def test_an_exception_does_not_keep_the_results_of_the_others_alive():
    import gc
    import weakref

    class Result:
        pass

    seen = []

    def good():
        result = Result()
        seen.append(weakref.ref(result))
        return result

    def bad():
        raise ValueError

    with pytest.raises(ValueError), xdevice.use_backend("numpy"):
        xdevice.parallel.run(good, bad)
    gc.collect()
    assert seen[0]() is None


# what carries into the tasks


def test_context_scopes_and_backend_carry(backend):
    variable.set("carried")
    other = samples(backend).other_device() or xdevice.cpu()

    def task():
        variable.set("changed")
        place = (
            xdevice.device_of(xdevice.ones(1)),
            xdevice.device_of(samples(backend).native_ones(1)),
        )
        with xdevice.cpu():
            inner = xdevice.device_of(samples(backend).native_ones(1))
        return xdevice.backend(), scopes.current(), place, inner

    with other:
        for found in xdevice.parallel.run(task, task):
            assert found == (backend, other, (other, other), xdevice.cpu())
        assert scopes.current() is other
    assert variable.get() == "carried"


def test_the_state_of_torch_carries():
    torch = framework("torch")

    def state():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            str(torch.get_default_device()),
        )

    with xdevice.use_backend("torch"):
        plain = state()
        assert xdevice.parallel.run(state) == [plain]
        with torch.no_grad(), torch.device("meta"):
            assert xdevice.parallel.run(state) == [state()] != [plain]
        with torch.inference_mode():
            assert xdevice.parallel.run(state) == [state()] != [plain]
        with torch.autocast("cpu", dtype=torch.float16):
            assert xdevice.parallel.run(state) == [state()] != [plain]
        assert xdevice.parallel.run(state) == [plain], "a thread of the pool keeps nothing"


def test_the_state_of_paddle_carries():
    paddle = framework("paddle")
    with xdevice.use_backend("paddle"):
        from paddle.base.framework import _dygraph_tracer, core

        def state():
            tracer = _dygraph_tracer()
            return paddle.is_grad_enabled(), tracer._amp_level, tracer._amp_dtype

        plain = state()
        with paddle.no_grad():
            assert xdevice.parallel.run(state) == [state()] != [plain]
        tracer = _dygraph_tracer()
        # auto_cast does nothing on a CPU
        tracer._amp_level, tracer._amp_dtype = core.AmpLevel.O1, "float16"
        try:
            assert xdevice.parallel.run(state) == [state()] != [plain]
        finally:
            tracer._amp_level, tracer._amp_dtype = plain[1:]
        assert xdevice.parallel.run(state) == [plain]


def test_the_state_of_mxnet_carries():
    pytest.importorskip("numpy", "1.24")
    if "mxnet" not in BACKENDS:
        pytest.skip("no mxnet")
    with xdevice.use_backend("mxnet") as chosen:
        mx = chosen.framework

        def state():
            flags = mx.util.is_np_shape(), mx.util.is_np_array()
            return (
                mx.autograd.is_recording(),
                mx.autograd.is_training(),
                flags,
                mx.current_context(),
            )

        plain = state()
        with mx.autograd.record(), mx.util.np_shape(True), mx.util.np_array(True), mx.cpu(2):
            assert xdevice.parallel.run(state) == [state()] != [plain]
        with mx.autograd.train_mode():
            assert xdevice.parallel.run(state) == [state()] != [plain]
        assert xdevice.parallel.run(state) == [plain]


def test_the_state_of_jax_carries():
    jax = framework("jax")

    def state():
        return (
            jax.config.jax_default_device,
            jax.config.jax_default_matmul_precision,
            jax.config.jax_enable_x64,
        )

    with xdevice.use_backend("jax"):
        plain = state()
        scope = jax.default_device(jax.devices()[-1])
        with scope, jax.default_matmul_precision("highest"), with_64_bit("jax", not plain[2]):
            assert xdevice.parallel.run(state) == [state()] != [plain]
        assert xdevice.parallel.run(state) == [plain]


def test_the_device_scope_of_tensorflow_carries():
    tf = framework("tensorflow")
    from tensorflow.python.eager import context

    def name():
        return context.context().device_name

    with xdevice.use_backend("tensorflow"):
        with tf.device("/CPU:0"):
            assert xdevice.parallel.run(name, name) == [name()] * 2 != ["", ""]
        assert xdevice.parallel.run(name) == [name()]


# gradients


def test_gradients_carry_out_of_torch():
    torch = framework("torch")
    with xdevice.use_backend("torch"):
        x = torch.ones(3, requires_grad=True)
        first, second = xdevice.parallel.run(lambda: (x * 2).sum(), lambda: (x * x * 5).sum())
        (first + second).backward()
        assert x.grad.tolist() == [12, 12, 12]


def test_gradients_carry_out_of_paddle():
    paddle = framework("paddle")
    with xdevice.use_backend("paddle"):
        x = paddle.ones([3])
        x.stop_gradient = False
        first, second = xdevice.parallel.run(lambda: (x * 2).sum(), lambda: (x * x * 5).sum())
        (first + second).backward()
        assert x.grad.tolist() == [12, 12, 12]


def test_gradients_carry_out_of_mxnet():
    if "mxnet" not in BACKENDS:
        pytest.skip("no mxnet")
    with xdevice.use_backend("mxnet") as chosen:
        mx = chosen.framework
        with mx.util.np_shape(True), mx.util.np_array(True):
            x = mx.np.ones(3)
            x.attach_grad()
            with mx.autograd.record():
                first, second = xdevice.parallel.run(
                    lambda: (x * 2).sum(), lambda: (x * x * 5).sum()
                )
                total = first + second
            total.backward()
            assert x.grad.tolist() == [12, 12, 12]


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_gradients_inside_of_tasks_are_right_under_load(name):
    with xdevice.use_backend(name) as chosen:
        gradient = samples(chosen).gradient
        xs = [xdevice.tensor(np.full(4, i, "float32")) for i in range(40)]
        for _ in range(3):
            found = xdevice.parallel.run(
                *(lambda x=x: gradient(lambda v: v * v, x) for x in xs)
            )
            for i, g in enumerate(found):
                assert xdevice.to_numpy(g).tolist() == [2 * i] * 4


@pytest.mark.slow
def test_paddles_gradient_calls_take_turns_and_only_while_tasks_run():
    framework("paddle")
    # a crash would end this process, so another one makes the calls
    code = """
import paddle, xdevice
from paddle.base import core
plain = core.eager.run_partial_grad

def task():
    assert core.eager.run_partial_grad is not plain
    for _ in range(30):
        x = paddle.ones([64])
        x.stop_gradient = False
        y = x
        for _ in range(10):
            y = y * x
        (g,) = paddle.grad(y.sum(), x, create_graph=True)
        (h,) = paddle.grad(g.sum(), x)
        assert float(h[0]) == 110, h
    return True

xdevice.set_backend("paddle")
for _ in range(10):
    assert all(xdevice.parallel.run(*[task] * 4))
assert core.eager.run_partial_grad is plain
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]


# the pool


def test_a_thousand_tasks_start_no_thousand_threads(backend):
    begin, most = threading.Event(), []
    pause = 0 if backend.threads == "one" else 0.01

    def task(i):
        begin.wait(pause)
        most.append(len(threads_of_the_pool()))
        return i

    assert xdevice.parallel.run(*(lambda i=i: task(i) for i in range(1000))) == list(
        range(1000)
    )
    assert max(most) <= MAX_RUNNING


@pytest.mark.parametrize("width", [6, pytest.param(100, marks=pytest.mark.long)])
def test_tasks_that_wait_for_their_own_tasks_end_with_few_threads(backend, width):
    most = []

    def deep(level):
        most.append(len(threads_of_the_pool()))
        return (
            1
            if level == 0
            else sum(
                xdevice.parallel.run(*[lambda: deep(level - 1)] * (width if level == 1 else 6))
            )
        )

    assert deep(3) == 36 * width
    assert max(most) <= MAX_RUNNING + 1


def test_all_tasks_of_a_call_run_at_once_up_to_the_bound(backend):
    if backend.threads == "one":
        pytest.skip("runs its tasks one after another")
    meeting = threading.Barrier(MAX_RUNNING, timeout=200)
    assert sorted(xdevice.parallel.run(*[meeting.wait] * MAX_RUNNING)) == list(
        range(MAX_RUNNING)
    )


def test_a_call_from_a_thread_that_a_task_has_started_ends(backend):
    def task():
        found = []
        thread = threading.Thread(target=lambda: found.extend(in_the_backend()))
        thread.start()
        thread.join()
        return found

    def in_the_backend():
        with xdevice.use_backend("numpy"):  # MXNet's one thread is the one that waits here
            return xdevice.parallel.run(lambda: 1, lambda: 2)

    assert xdevice.parallel.run(*[task] * MAX_RUNNING) == [[1, 2]] * MAX_RUNNING


def test_threads_are_kept_for_the_next_call_and_closed():
    with xdevice.use_backend("numpy"):
        meeting = threading.Barrier(4, timeout=200)
        xdevice.parallel.run(*[meeting.wait] * 4)
        first = set(threads_of_the_pool())
        xdevice.parallel.run(*[meeting.wait] * 4)
        assert set(threads_of_the_pool()) == first
        xdevice.parallel.close_pool()
        assert not threads_of_the_pool()
        assert xdevice.parallel.run(lambda: 1) == [1]


def test_closing_inside_of_a_task_spares_the_threads_at_work(backend):
    assert xdevice.parallel.run(lambda: (xdevice.parallel.close_pool(), 1)[1], lambda: 2) == [
        1,
        2,
    ]


def test_a_forked_child_has_a_pool_of_its_own():
    code = """
import os, xdevice
xdevice.set_backend("numpy")
assert xdevice.parallel.run(lambda: 1, lambda: 2) == [1, 2]
child = os.fork()
if child == 0:
    os._exit(0 if xdevice.parallel.run(lambda: 1, lambda: 2) == [1, 2] else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_threads_take_short_turns_until_the_last_call_has_ended(monkeypatch):
    """As where tasks feed GPUs."""
    monkeypatch.setattr(parallel, "_feeds_gpus", lambda backend: True)
    before = sys.getswitchinterval()

    def task():
        xdevice.parallel.run(lambda: None)
        return sys.getswitchinterval()

    with xdevice.use_backend("numpy"):
        assert xdevice.parallel.run(task) == [pytest.approx(parallel.TURN_SECONDS)]
    assert sys.getswitchinterval() == before
