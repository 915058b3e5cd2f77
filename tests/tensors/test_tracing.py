"""xdevice inside what the frameworks trace: errors arrive as they are, and tracing our code prints nothing."""

from __future__ import annotations

import json
import re

import pytest
from helpers.environment import python, sampled

import xdevice

SCRIPT = """
import json
import sys

import xdevice

HOW = sys.argv[1]
backend = xdevice.backend(HOW.partition(" ")[0])
xdevice.set_backend(backend)
xdevice.to_numpy(xdevice.ones(1))


def traced(function):
    if backend.name == "tensorflow":
        return backend.framework.function(function, jit_compile="XLA" in HOW or None)
    if backend.name == "jax":
        return backend.framework.jit(function)
    if backend.name == "torch":
        return backend.framework.compile(function, backend="eager")
    if backend.name == "paddle":
        return backend.framework.jit.to_static(function, full_graph="graph" in HOW)

    class Block(backend.framework.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return function(x)

    block = Block()
    block.hybridize()
    return block


def copies(x):
    return xdevice.copy_to(x, "cpu") + 1


def moves(x):
    return xdevice.to_device(x, "cpu") + 1


def copies_a_container(x):
    return xdevice.copy_to({"x": [x]}, "cpu")["x"][0] + 1


def catches(x):
    try:
        xdevice.device_of(x)
    except xdevice.errors.UnsupportedError:
        return x + 1
    return x + 1


def asks(x):
    xdevice.device_of(x)
    return x


def waits(x):
    xdevice.sync(x)
    return x


def reads(x):
    xdevice.to_numpy(x)
    return x


def goes_nowhere(x):
    return xdevice.to_device(x, "gpu:7")


def misspells(x):
    return xdevice.to_device(x, "gqu")


def numbers(function):
    return xdevice.to_numpy(function(xdevice.ones(3))).tolist()


said = {}
for function in (copies, moves, copies_a_container, catches, asks, waits, reads, goes_nowhere, misspells):
    print("now", file=sys.stderr, flush=True)
    try:
        said[function.__name__] = numbers(traced(function))
    except xdevice.errors.XDeviceError as error:
        said[function.__name__] = type(error).__name__
print(json.dumps(said))
"""
SYMBOLS = dict.fromkeys(("asks", "waits", "reads"), "UnsupportedError")
VALUES = dict.fromkeys(SYMBOLS, [1.0] * 3)  # what cannot be traced runs outside the graph
MOVES = dict.fromkeys(("copies", "moves", "copies_a_container"), [2.0] * 3)
NO_MOVES = dict.fromkeys(MOVES, "UnsupportedError")
ALL = {
    "tensorflow": {**SYMBOLS, **MOVES},
    "tensorflow by XLA": {**SYMBOLS, **MOVES},
    "jax": {**SYMBOLS, **MOVES},
    "torch": {**VALUES, **MOVES},
    "paddle": {**VALUES, **MOVES},
    "paddle as one graph": {**SYMBOLS, **MOVES},
    "mxnet": {**SYMBOLS, **NO_MOVES},
}
INSTALLED = [how for how in ALL if how.partition(" ")[0] in xdevice.backends()]


@pytest.mark.parametrize("how", sampled(INSTALLED, each_time=(), slow=["jax"], others="long"))
def test_a_traced_function_meets_our_own_errors_and_prints_nothing(how, tmp_path):
    path = tmp_path / "script.py"  # tracers read the source
    path.write_text(SCRIPT)
    done = python(str(path), how)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        **ALL[how],
        "catches": [2.0] * 3,
        "goes_nowhere": "DeviceNotFoundError",
        "misspells": "DeviceError",
    }
    printed = done.stderr.partition("now\n")[2].splitlines()
    assert [line for line in printed if line != "now" and not re.match(r"I\d{4} ", line)] == []
