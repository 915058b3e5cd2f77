"""Two processes, one of which fails inside calls of many bytes, on each engine of the CPU: it is named in time."""

from __future__ import annotations

import os

import pytest
from helpers.environment import needs, python
from helpers.long_collectives import WHY, run, told_of

LATE = 3.0
ENGINES = ("torch", "jax", "tensorflow", "paddle", "mxnet", "numpy")
OWN = ("jax:gloo", "tensorflow:ring", "paddle:gloo")
ELEMENTS = int(os.environ.get("XDEVICE_TEST_ELEMENTS", 1 << 28))
"""Of float32 in each call; two processes with a gigabyte each take 8 to 11 GB of memory."""


@pytest.mark.long
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("how", ["is stopped", "stands still", "is cut off"])
@pytest.mark.parametrize("name", [*ENGINES, *OWN])
def test_a_rank_that_fails_inside_a_long_call_is_named(name, how, failing):
    backend, _, own = name.partition(":")
    needs(backend, *([] if own else ["torch"]))
    variables = {"XDEVICE_ENGINE": name if own else "auto", "OMP_NUM_THREADS": "1"}
    printed, statuses = run(backend, how, failing, LATE, 1.0, ELEMENTS, **variables)
    told, (why, times) = told_of(printed, failing), WHY[how]
    print(name, how, f"rank {failing}:", told)
    assert told["engine"] == (name if own else "torch:gloo")
    assert (told["rank"], told["why"]) == (failing, why), told
    assert told["seconds"] <= times * LATE + 1, told
    assert statuses[1 - failing] == 1, printed[1 - failing][-3000:]


SLOW_TO_MEET = """
import os, time
import jax
import xdevice

initialize = jax.distributed.initialize

def slowly(*args, **options):
    end = time.monotonic() + 12
    while time.monotonic() < end:  # busy: a rank in which nothing moves is named
        sum(range(1000))
    initialize(*args, **options)

if os.environ["XDEVICE_RANK"] == "1":
    jax.distributed.initialize = slowly
with xdevice.distributed.processes() as world:
    assert xdevice.to_numpy(world.all_reduce(xdevice.ones(2))).tolist() == [2, 2]
"""


@pytest.mark.long
def test_a_rank_that_is_slow_to_start_jax_is_waited_for(tmp_path):
    """JAX ended the process of the other rank by SIGABRT, once the world's timeout was over."""
    needs("jax")
    script = tmp_path / "slow.py"
    script.write_text(SLOW_TO_MEET)
    done = python(
        *("-m", "xdevice", "launch", "-n", "2", "--timeout", "2", script),
        XDEVICE_BACKEND="jax", XDEVICE_ENGINE="jax:gloo",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
