"""MXNet's flags are per thread and off at first: asking for arithmetic turns them on, or says why not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import xdevice

pytestmark = pytest.mark.skipif("mxnet" not in xdevice.backends(), reason="MXNet is not installed")


def run(code):
    code = f"import xdevice\nxdevice.set_backend('mxnet')\nimport mxnet as mx\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=False)


def test_each_thread_that_asks_gets_the_semantics_and_one_notice():
    code = """
import threading
def work():
    xp = xdevice.array_namespace()
    x = xp.asarray([1.0, 2.0])
    assert xdevice.item(xp.sum(x) * 2) == 6.0
    assert xp.zeros((0, 3)).shape == (0, 3)
    assert xp.where(xp.zeros((0, 3), dtype=xp.bool), xp.zeros((0, 3)), 1.0).shape == (0, 3)
work()
xp = xdevice.array_namespace()
thread = threading.Thread(target=work)
thread.start()
thread.join()
def given():
    assert xdevice.item(xp.sum(xp.ones(2))) == 2.0
xdevice.parallel(given, given)
print("done")
"""
    done = run(code)
    assert done.stdout.strip() == "done", done.stderr
    assert 1 <= done.stderr.count("npx.set_np()") <= 2


@pytest.mark.parametrize("made", ["mx.nd.ones(2)", "mx.gluon.nn.Dense(1)"])
def test_a_program_of_legacy_arrays_or_blocks_keeps_its_semantics(made):
    code = f"""
legacy = {made}
try:
    xdevice.array_namespace()
except xdevice.UnsupportedError as error:
    print(error)
print(mx.util.is_np_shape(), mx.util.is_np_array())
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "call mxnet.npx.set_np() first" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_loss_can_be_recorded_and_differentiated():
    code = """
xp = xdevice.array_namespace()
x = xp.asarray([1.0, -2.0])
x.attach_grad()
with mx.autograd.record():
    loss = xp.sum(xp.square(xp.maximum(x, 0.0)))
loss.backward()
assert x.grad.tolist() == [2.0, 0.0]
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
