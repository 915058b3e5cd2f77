"""First calls: in a forked child, after the framework was used by itself, and inside a traced function."""

from __future__ import annotations

import os

import pytest
from helpers.environment import ROOT, needs, python, sampled

TESTS = str(ROOT / "tests")

LOCKS = """
import os, threading
import xdevice
from xdevice.base import devices
from xdevice.contract import backend, patching
from xdevice.core import blocks
locks = [blocks._lock, devices._lock, backend._extending, patching.lock]
threads = [threading.Thread(target=lock.acquire) for lock in locks]
for thread in threads:
    thread.start()
    thread.join()
child = os.fork()
if child == 0:
    os._exit(sum(not lock.acquire(timeout=0) for lock in locks))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_lock_stays_held_by_a_thread_that_is_not_there():
    done = python("-W", "ignore", "-c", LOCKS)
    assert done.stdout == "0\n", done.stderr


RAW = {
    "jax": "import jax; jax.numpy.ones(1)",
    "tensorflow": "import keras; keras.layers.Dense(2).build((None, 3))",
}


@pytest.mark.parametrize("name", sampled(RAW))
def test_a_second_device_is_there_also_after_a_test_that_uses_the_framework_by_itself(name):
    """conftest.py makes it; where it is missing, the tests of two devices test one."""
    needs(name)
    asks = f"import xdevice; print(xdevice.backend({name!r}).samples().other_device())"
    done = python(
        "-W",
        "ignore",
        "-c",
        f"import sys; sys.path[:0] = [{TESTS!r}]; import conftest; {RAW[name]}; {asks}",
    )
    assert done.stdout.splitlines()[-1:] == ["cpu:1"], done.stderr[-3000:]


FIRST_IN_A_TRACE = """
import tensorflow as tf
import xdevice

@tf.function
def doubled(x):
    return xdevice.to_device(x, "cpu") * xdevice.ones(1)

print(doubled(tf.constant([2.0])).numpy())
"""


@pytest.mark.slow
def test_the_first_call_inside_a_tf_function_is_not_converted_and_does_not_warn(tmp_path):
    needs("tensorflow")
    script = tmp_path / "script.py"  # AutoGraph leaves alone what has no source
    script.write_text(FIRST_IN_A_TRACE)
    done = python(script, XDEVICE_BACKEND="tensorflow")
    assert (done.returncode, done.stdout) == (0, "[2.]\n"), done.stderr
    assert "AutoGraph" not in done.stdout + done.stderr


INSIDE_TORCH_COMPILE = """
import torch
import xdevice
from torch._dynamo.convert_frame import register_bytecode_hook

traced = []
register_bytecode_hook(lambda code, _: traced.append(code.co_filename))
double = torch.compile(lambda x: xdevice.to_device({"x": x}, "cpu")["x"] * 2, backend="eager")
print(double(torch.tensor(9.0)).item())
print(sorted({file for file in traced if "xdevice_torch" in file or "contract" in file}))
"""


@pytest.mark.slow
def test_torch_compile_does_not_trace_the_import_of_the_adapter():
    needs("torch")
    done = python("-c", INSIDE_TORCH_COMPILE)
    assert done.stdout.splitlines() == ["18.0", "[]"], done.stderr
