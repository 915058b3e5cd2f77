"""Four frameworks in one process, in any order, also from threads that end before anybody else works."""

from __future__ import annotations

import itertools

import pytest
from support import BACKENDS, python, sampled

FOUR = ("torch", "tensorflow", "paddle", "mxnet")
# the orders that crash or fail without the loader: Paddle after TensorFlow, MXNet after all
SAMPLED = (("tensorflow", "paddle", "torch", "mxnet"), ("mxnet", "tensorflow", "torch", "paddle"))
OTHERS = [order for order in itertools.permutations(FOUR) if order not in SAMPLED]

CODE = """
import sys, threading, xdevice
order, threaded = sys.argv[1].split(","), sys.argv[2] == "thread"
for name in order:
    if threaded:
        worker = threading.Thread(target=xdevice.backend, args=(name,))
        worker.start()
        worker.join()
    else:
        xdevice.backend(name)
xs = []
for name in order:
    with xdevice.use(name) as backend:
        x = xdevice.rand(64, 64)
        product = x @ x
        moved = xdevice.copy_to({"x": product}, "cpu")
        gradient = backend.samples().gradient(lambda t: t @ t, xdevice.ones(2, 2))
        assert xdevice.to_numpy(gradient).tolist() == [[4, 4], [4, 4]], name
        net = xdevice.to_device(backend.samples().network(3, 1), "cpu")
        assert xdevice.device_of(net) is xdevice.cpu()
        net(xdevice.ones(2, 3))
        if name == "torch":  # the first optimizer imports triton, where torch brings it
            backend.framework.optim.SGD(net.parameters(), lr=0.1)
        xdevice.sync()
        xs.append(moved)
assert xdevice.same_device(xs)
print("all work")
"""


def assert_works(order, how):
    """Without those that are not installed: MXNet has no wheel for Python 3.13."""
    done = python("-c", CODE, ",".join(name for name in order if name in BACKENDS), how)
    assert (done.returncode, done.stdout.strip()) == (0, "all work"), done.stderr[-2000:]


@pytest.mark.parametrize("how", sampled(["main", "thread"], [], ["main"]))
@pytest.mark.parametrize("order", [SAMPLED[0], pytest.param(SAMPLED[1], marks=pytest.mark.long)], ids=",".join)
def test_the_orders_that_crash_without_the_loader(order, how):
    assert_works(order, how)


@pytest.mark.long
@pytest.mark.parametrize("order", OTHERS, ids=",".join)
def test_every_other_order(order):
    assert_works(order, "main")
