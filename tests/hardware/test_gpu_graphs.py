"""`make_graphed_callable` on real GPUs, PyTorch's: `pytest -m gpu`."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress

import numpy as np
import pytest
from helpers.environment import python

import xdevice

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _torch():
    with xdevice.use_backend("torch") as backend:
        if not backend.count("gpu"):
            pytest.skip("needs a GPU")
        # a computation of JAX on gpu:1, in another test, changes PyTorch's current GPU
        with torch.cuda.device(0):
            yield
        xdevice.sync()
        xdevice.parallel.close_pool()


@pytest.fixture
def two():
    if xdevice.num_gpus() < 2:
        pytest.skip("needs two GPUs")
    return xdevice.try_all_gpus()[:2]


def full(value, gpu="gpu:0", size=64):
    return torch.full((size, size), float(value), device=xdevice.device(gpu).native)


def value(x):
    """The one value that all elements of a tensor have."""
    low, high = float(x.min()), float(x.max())
    assert low == high
    return low


def test_a_replay_computes_with_what_the_inputs_hold_now():
    x = full(1)
    double = xdevice.accelerator.make_graphed_callable(lambda: x * 2, "gpu:0")
    for number in range(3, 9):
        x.fill_(number)
        result = double()
        assert value(result) == 2 * number
        assert xdevice.device_of(result) is xdevice.gpu(0)


def test_the_result_is_the_same_memory_each_time():
    x = full(1)
    graph = xdevice.accelerator.make_graphed_callable(lambda: {"y": x + 1}, "gpu:0")
    first = graph()
    kept = xdevice.copy_to(first["y"], "gpu:0")
    x.fill_(5)
    assert graph() is first
    assert (value(first["y"]), value(kept)) == (6, 2)


def trained(step, steps):
    for _ in range(steps):
        step()


def test_a_captured_training_step_trains_as_the_step_itself():
    def model():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        ).to("cuda:0")
        x, y = torch.rand(8, 16, device="cuda:0"), torch.rand(8, 4, device="cuda:0")
        parameters = list(net.parameters())

        def step():
            loss = torch.nn.functional.mse_loss(net(x), y)
            with torch.no_grad():
                for parameter, gradient in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    parameter.sub_(gradient, alpha=0.1)
            return loss.detach()

        return parameters, step

    called, step = model()
    trained(step, 20)
    replayed, step = model()
    trained(
        xdevice.accelerator.make_graphed_callable(step, "gpu:0"), 19
    )  # the call that comes before is the first step
    for one, other in zip(called, replayed, strict=True):
        np.testing.assert_array_equal(xdevice.to_numpy(one), xdevice.to_numpy(other))


def test_backward_into_gradients_that_are_there():
    w = full(3).requires_grad_()
    w.grad = torch.zeros_like(w)
    step = xdevice.accelerator.make_graphed_callable(lambda: (w * 2).sum().backward(), "gpu:0")
    w.grad.zero_()
    for _ in range(5):
        step()
    assert value(w.grad) == 10


def test_autocast_casts_the_weights_of_now():
    w, x = full(1).requires_grad_(), full(1)
    with torch.autocast("cuda", torch.bfloat16):
        graph = xdevice.accelerator.make_graphed_callable(lambda: x @ w, "gpu:0")
        assert torch.is_autocast_cache_enabled()
    with torch.no_grad():
        w.fill_(3)
    assert value(graph()) == 3 * 64


def test_adam_trains_if_it_is_capturable():
    def trained_with(steps, capture):
        w = torch.nn.Parameter(torch.ones(8, device="cuda:0"))
        adam = torch.optim.Adam([w], lr=0.1, capturable=True)

        def step():
            adam.zero_grad()
            (w**2).sum().backward()
            adam.step()

        trained(capture(step), steps)
        return xdevice.to_numpy(w)

    called = trained_with(10, lambda step: step)
    replayed = trained_with(
        9, lambda step: xdevice.accelerator.make_graphed_callable(step, "gpu:0")
    )
    np.testing.assert_allclose(replayed, called, rtol=1e-6)


def test_adam_as_it_comes_is_refused():
    w = torch.nn.Parameter(torch.ones(8, device="cuda:0"))
    w.grad = torch.ones_like(w)
    with pytest.raises(xdevice.errors.DeviceMismatchError, match="capturable=True"):
        xdevice.accelerator.make_graphed_callable(torch.optim.Adam([w]).step, "gpu:0")


def test_attention_which_keeps_its_seed_on_the_cpu():
    q = torch.rand(1, 2, 16, 8, device="cuda:0", requires_grad=True)

    def step():
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return y, *torch.autograd.grad(y.sum(), q)

    # a graph of autograd that is still there belongs to another stream
    expected = [x.detach() for x in step()]
    for one, other in zip(
        xdevice.accelerator.make_graphed_callable(step, "gpu:0")(), expected, strict=True
    ):
        np.testing.assert_allclose(
            xdevice.to_numpy(one), xdevice.to_numpy(other), rtol=1e-5, atol=1e-6
        )


def test_a_failed_capture_leaves_the_random_numbers_of_earlier_graphs():
    x = full(1)
    graph = xdevice.accelerator.make_graphed_callable(
        lambda: torch.nn.functional.dropout(x), "gpu:0"
    )

    def drawn():
        torch.manual_seed(0)
        return graph().clone(), torch.rand(3, device="cuda:0"), graph().clone()

    before = drawn()
    assert not torch.equal(before[0], before[2])
    with pytest.raises(xdevice.errors.CaptureError):
        xdevice.accelerator.make_graphed_callable(lambda: wait(x), "gpu:0")
    for one, other in zip(drawn(), before, strict=True):
        assert torch.equal(one, other)


def test_tasks_of_parallel_may_capture_on_one_gpu():
    xs = [full(i, size=256) for i in range(4)]
    for _ in range(5):
        graphs = xdevice.parallel.run(
            *(
                lambda x=x: xdevice.accelerator.make_graphed_callable(
                    lambda: x @ x + x, "gpu:0"
                )
                for x in xs
            )
        )
        found = xdevice.parallel.run(*graphs)
        assert [value(y + 0) for y in found] == [256.0 * i * i + i for i in range(4)]


def test_a_replay_is_waited_for_where_work_blocks():
    x = full(1)

    def task():
        torch.cuda._sleep(20_000_000)
        return x + 1

    with xdevice.accelerator.blocking():
        graph = xdevice.accelerator.make_graphed_callable(task, "gpu:0")
        graph()
        assert torch.cuda.current_stream().query()
    graph()
    assert not torch.cuda.current_stream().query()


def test_no_gradients_flow_through_a_result():
    w = full(3).requires_grad_()
    result = xdevice.accelerator.make_graphed_callable(lambda: [w * 2, {"w": w}], "gpu:0")()
    assert not result[0].requires_grad
    assert not result[1]["w"].requires_grad
    assert (value(result[0]), w.requires_grad) == (6, True)


def test_the_first_work_of_a_process_can_be_captured():
    code = (
        "import torch, xdevice; xdevice.set_backend('torch')\n"
        "task = lambda: torch.ones(3, device='cuda:0') @ torch.ones(3, device='cuda:0')\n"
        "graph = xdevice.accelerator.make_graphed_callable(task, 'gpu:0')\n"
        "print(graph().item())"
    )
    done = python("-c", code)
    assert (done.stdout, done.returncode) == ("3.0\n", 0), done.stderr


def test_graphs_are_tasks_of_parallel(two):
    xs = [full(i + 1, gpu) for i, gpu in enumerate(two)]
    graphs = [
        xdevice.accelerator.make_graphed_callable(lambda x=x: x.mul_(2), gpu)
        for x, gpu in zip(xs, two, strict=True)
    ]
    for number in range(1, 6):  # the call before the recording has doubled them once
        found = xdevice.parallel.run(*graphs)
        assert [value(x + 0) for x in found] == [2.0 ** (number + 1), 2.0 ** (number + 2)]


def test_three_graphs_on_one_gpu():
    xs = [full(i + 1, size=512) for i in range(3)]
    graphs = [
        xdevice.accelerator.make_graphed_callable(
            lambda x=x: [x + n for n in range(100)][-1], "gpu:0"
        )
        for x in xs
    ]
    for _ in range(10):
        assert [value(y * 1) for y in xdevice.parallel.run(*graphs)] == [100, 101, 102]


def test_a_replay_goes_to_the_stream_of_its_block():
    x = full(0)
    graph = xdevice.accelerator.make_graphed_callable(lambda: x.add_(1), "gpu:0")
    value(x)  # CUDA waits for the whole GPU when it first loads a kernel
    stream = xdevice.accelerator.Stream("gpu:0")
    stream.wait(xdevice.accelerator.Stream.current("gpu:0"))
    with stream:
        torch.cuda._sleep(500_000_000)
        graph()
    assert value(x) == 1  # read on another stream, which waits for nothing
    stream.sync()
    assert value(x) == 2


def test_what_is_read_is_kept_alive():
    cell = [full(7)]
    graph = xdevice.accelerator.make_graphed_callable(lambda: cell[0] + 1, "gpu:0")
    cell[0] = None
    gc.collect()
    others = [full(100) for _ in range(200)]
    assert value(graph()) == 8
    del others


def test_random_numbers_differ_from_replay_to_replay():
    graph = xdevice.accelerator.make_graphed_callable(
        lambda: torch.rand(100, device="cuda:0"), "gpu:0"
    )
    first = graph().clone()
    assert not torch.equal(first, graph())


def read(x):
    return x * float(x[0, 0])


def wait(x):
    xdevice.sync("gpu:0")
    return x + 1


HOST = torch.ones(64, 64)


def from_the_host(x):
    return x + HOST.to("cuda:0")


def nested(x):
    return xdevice.parallel.run(lambda: x + 1)


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (read, r"test_gpu_graphs\.py:\d+: float reads"),
        (wait, "cannot be captured on gpu:0"),
        (from_the_host, r"test_gpu_graphs\.py:\d+: to moves"),
        (nested, "xdevice.parallel.run cannot be called in a task"),
    ],
)
def test_what_cannot_be_captured_is_named_and_all_is_as_before(refused, match):
    x = full(1)
    before = torch.cuda.current_stream()
    for _ in range(3):
        with pytest.raises(xdevice.errors.CaptureError, match=match):
            xdevice.accelerator.make_graphed_callable(lambda: refused(x), "gpu:0")
    assert torch.cuda.current_stream() == before
    assert value(x + 1) == 2
    torch.rand(2, device="cuda:0")
    assert value(xdevice.accelerator.make_graphed_callable(lambda: x + 2, "gpu:0")()) == 3
    assert [value(y) for y in xdevice.parallel.run(lambda: x + 3, lambda: x + 4)] == [4, 5]


def test_after_a_failed_capture_memory_is_given_back():
    def task(x):
        y = torch.zeros(1 << 24, device="cuda:0")
        xdevice.sync("gpu:0")
        return x + y

    x = torch.ones(1, device="cuda:0")
    for number in range(4):
        with pytest.raises(xdevice.errors.CaptureError):
            xdevice.accelerator.make_graphed_callable(lambda: task(x), "gpu:0")
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if not number:
            first = torch.cuda.memory_reserved(0)
    assert torch.cuda.memory_reserved(0) <= first


def test_a_graph_that_is_gone_gives_its_memory_back():
    x = torch.ones(1 << 24, device="cuda:0")

    def reserved():
        gc.collect()
        xdevice.sync()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(0)

    del_me = xdevice.accelerator.make_graphed_callable(lambda: x + 1, "gpu:0")
    assert value(del_me()) == 2
    with_graph = reserved()
    del del_me
    assert reserved() <= with_graph - x.nbytes


def test_work_on_another_gpu_is_refused(two):
    x, y = full(1, two[0]), full(1, two[1])
    with pytest.raises(
        xdevice.errors.DeviceMismatchError, match=r"cuda:1 .* its graph is for cuda:0"
    ):
        xdevice.accelerator.make_graphed_callable(lambda: (x + 1, y + 1), two[0])
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xdevice.accelerator.make_graphed_callable(lambda: y + 1, two[0])
    assert value(xdevice.accelerator.make_graphed_callable(lambda: y + 1, two[1])()) == 2
    assert value(xdevice.accelerator.make_graphed_callable(lambda: x + 1, two[0])()) == 2


def test_work_on_the_cpu_is_refused():
    steps = torch.zeros(())
    x = full(1)
    with pytest.raises(xdevice.errors.DeviceMismatchError, match="a tensor on cpu"):
        xdevice.accelerator.make_graphed_callable(lambda: (x + 1, steps.add_(1)), "gpu:0")


def test_other_threads_work_while_a_task_is_captured():
    stop, errors = threading.Event(), []

    def others():
        try:
            while not stop.is_set():
                assert value(full(1, size=256) + 1) == 2
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for number in range(10):
            x = full(number)
            assert (
                value(xdevice.accelerator.make_graphed_callable(lambda x=x: x + 1, "gpu:0")())
                == number + 1
            )
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_the_wait_of_another_thread_breaks_a_capture_and_nothing_else():
    stop, broken = threading.Event(), 0
    x = full(1)

    def waits():
        while not stop.is_set():
            with suppress(RuntimeError):
                xdevice.sync("gpu:0")

    thread = threading.Thread(target=waits)
    thread.start()
    try:
        for _ in range(300):
            try:
                xdevice.accelerator.make_graphed_callable(
                    lambda: [x + n for n in range(50)][-1], "gpu:0"
                )
            except xdevice.errors.CaptureError:
                broken += 1
            if broken == 3:
                break
    finally:
        stop.set()
        thread.join()
    assert broken, "nothing was broken, so this shows nothing"
    xdevice.sync()
    torch.rand(2, device="cuda:0")
    assert value(xdevice.accelerator.make_graphed_callable(lambda: x + 1, "gpu:0")()) == 2


def test_which_gpu(two):
    with pytest.raises(xdevice.errors.DeviceError, match="there are"):
        xdevice.accelerator.make_graphed_callable(lambda: 1)
    x = full(1, two[1])
    with two[1]:
        assert xdevice.accelerator.make_graphed_callable(lambda: x + 1).device is two[1]
