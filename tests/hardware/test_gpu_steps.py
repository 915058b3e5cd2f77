"""Eager training steps on a real GPU, which wait for nothing; and what becomes of a wrong label: `pytest -m gpu`."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from helpers.environment import NO_KERNELS, python

import xdevice
from xdevice import nn

pytestmark = pytest.mark.gpu

FRAMEWORKS = [
    name
    for name in xdevice.backends()
    if name in ("torch", "tensorflow", "jax") and name not in NO_KERNELS
]
GPU = xdevice.gpu()


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    with suppress(xdevice.errors.BackendImportError), xdevice.use_backend(request.param):
        yield request.param


def drawn(*shape):
    return xdevice.tensor(np.random.default_rng(0).normal(0, 0.1, shape).astype("float32"))


def perceptron():
    xp = xdevice.array_namespace()
    params = {"w1": drawn(8, 16), "b1": drawn(16), "w2": drawn(16, 3), "b2": drawn(3)}

    def loss(p, x, labels):
        hidden = nn.relu(xp.add(xp.matmul(x, p["w1"]), p["b1"]))
        return nn.cross_entropy(xp.add(xp.matmul(hidden, p["w2"]), p["b2"]), labels)

    return loss, params, (drawn(4, 8), xdevice.tensor([0, 1, 2, 0]))


def lenet():
    xp = xdevice.array_namespace()
    params = {
        "k1": drawn(4, 1, 3, 3),
        "b1": drawn(4),
        "k2": drawn(8, 4, 3, 3),
        "b2": drawn(8),
        "w": drawn(32, 3),
    }

    def loss(p, x, labels):
        x = nn.max_pool2d(nn.relu(nn.conv2d(x, p["k1"], p["b1"], padding=1)), 2)
        x = nn.avg_pool2d(nn.relu(nn.conv2d(x, p["k2"], p["b2"], padding=1)), 2)
        return nn.cross_entropy(xp.matmul(xp.reshape(x, (4, 32)), p["w"]), labels)

    return loss, params, (drawn(4, 1, 8, 8), xdevice.tensor([0, 1, 2, 0]))


def decoder():
    xp = xdevice.array_namespace()
    params = {"words": drawn(5, 8), "qkv": drawn(8, 24), "scale": drawn(8), "out": drawn(8, 5)}

    def loss(p, tokens, following):
        x = nn.layer_norm(nn.embedding(tokens, p["words"]), p["scale"])
        parts = xp.permute_dims(
            xp.reshape(xp.matmul(x, p["qkv"]), (2, 4, 3, 1, 8)), (2, 0, 3, 1, 4)
        )
        seen = nn.attention(parts[0], parts[1], parts[2], causal=True)
        x = nn.gelu(xp.add(x, xp.reshape(seen, (2, 4, 8))), approximate=True)
        return nn.cross_entropy(xp.reshape(xp.matmul(x, p["out"]), (8, 5)), following)

    return (
        loss,
        params,
        (
            xdevice.tensor([[0, 1, 2, 3], [4, 3, 2, 1]]),
            xdevice.tensor([1, 2, 3, 4, 3, 2, 1, 0]),
        ),
    )


@contextmanager
def refusing_waits(framework):
    """PyTorch's own look at waits."""
    if framework != "torch":
        yield
        return
    cuda = xdevice.backend("torch").framework.cuda
    cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("program", [perceptron, lenet, decoder])
@pytest.mark.parametrize("is_inside", [True, False])
def test_an_eager_step_waits_for_nothing(framework, program, is_inside):
    with GPU:
        loss, params, batch = program()

    def step(params):
        value, grads = xdevice.math.value_and_grad(loss)(params, *batch)
        return value, xdevice.math.update(params, grads, lambda p, g: p - 0.1 * g)

    xdevice.set_default_device(GPU if is_inside else None)
    try:
        before, params = step(params)
        with xdevice.transfers("disallow_explicit"), refusing_waits(framework):
            after, params = step(params)
    finally:
        xdevice.set_default_device(None)
    assert xdevice.device_of(params) is GPU
    assert xdevice.item(after) < xdevice.item(before)


def test_the_backward_pass_runs_in_the_callers_thread_on_any_gpus():
    torch = pytest.importorskip("torch")
    threads = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            threads.append(threading.get_ident())
            return g * 2

    other = f"cuda:{torch.cuda.device_count() - 1}"

    def loss(p):
        return (Doubled.apply(p["here"]).to(other) * p["there"]).sum()

    params = {
        "here": torch.full((3,), 5.0, device="cuda"),
        "there": torch.ones(3, device=other),
    }
    value, grads = xdevice.math.value_and_grad(loss)(params)
    assert threads == [threading.get_ident()]
    assert (value.item(), grads["here"].tolist(), grads["there"].tolist()) == (
        30,
        [2, 2, 2],
        [10, 10, 10],
    )
    assert torch._C._is_multithreading_enabled()


def test_a_rule_that_writes_into_its_arguments_changes_neither(framework):
    with GPU:
        params, grads = (
            [xdevice.ones(3), xdevice.ones(2, 2)],
            [xdevice.ones(3), xdevice.ones(2, 2)],
        )

    def rule(p, g):
        p -= g
        g *= 0.0
        return p

    new = xdevice.math.update(params, grads, rule)
    assert [xdevice.to_numpy(x).sum() for x in (*new, *params, *grads)] == [0, 0, 3, 4, 3, 4]


WRONG = """
import math, sys
import xdevice
from xdevice import nn

what, label = sys.argv[1], int(sys.argv[2])
with xdevice.gpu():
    logits, table, labels = xdevice.ones(2, 3), xdevice.ones(3, 2), xdevice.tensor([0, label])
calls = {
    "cross_entropy": lambda: nn.cross_entropy(logits, labels, reduction="none"),
    "embedding": lambda: nn.embedding(labels, table),
    "one_hot": lambda: nn.one_hot(labels, 3),
}
with xdevice.accelerator.blocking():
    try:
        calls[what]()
    except IndexError as error:
        print("at the line:", error)
with xdevice.transfers("disallow_explicit"):
    result = calls[what]()
try:
    wrong = xdevice.to_numpy(result)[1].ravel().tolist()
except Exception as error:
    print("at the wait:", type(error).__name__, error)
else:
    print("NaN" if all(map(math.isnan, wrong)) else wrong)
"""
TOLD = {"torch": "device-side assert", "jax": "NaN", "tensorflow": "NaN"}


@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize("what", ["cross_entropy", "embedding", "one_hot"])
def test_a_wrong_index_is_never_a_finite_number(framework, what, label):
    # in a process of its own, which has no GPU after an assertion
    done = python(
        "-c",
        WRONG,
        what,
        label,
        XDEVICE_BACKEND=framework,
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    assert done.returncode == 0, done.stderr
    assert f"at the line: {what}: index {label} is out of range; expected 0 to 2" in done.stdout
    assert TOLD[framework] in done.stdout
