"""Two processes on two real GPUs: one fails inside calls of a gigabyte, and the other names it: `pytest -m gpu`."""

from __future__ import annotations

import pytest
from long_calls import WHY, run, told_of

import xdevice

pytestmark = pytest.mark.gpu

LATE = 5.0
AFTER = 2.0
"""Seconds of collectives before the failure."""
DAMP = 1.0
PIECEMEAL = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.fixture(params=["torch", "jax"])
def name(request):
    if request.param not in xdevice.backends():
        pytest.skip(f"no {request.param}")
    if xdevice.backend(request.param).count("gpu") < 2:
        pytest.skip(f"{request.param} sees no two GPUs")
    return request.param


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("how", WHY)
def test_a_rank_that_fails_inside_a_long_collective_is_named(name, how, failing):
    printed, statuses = run(name, how, failing, LATE, AFTER, **PIECEMEAL)
    told, (why, times) = told_of(printed, failing), WHY[how]
    print(name, how, f"rank {failing}:", told)
    assert told["engine"] == f"{name}:nccl"
    assert (told["rank"], told["why"]) == (failing, why), told
    assert told["seconds"] <= times * LATE + 1 + DAMP, told
    assert statuses[1 - failing] == 1, printed[1 - failing][-3000:]


def test_a_program_that_ends_well_prints_no_noise(name):
    for _ in range(3):
        printed, statuses = run(name, "ends well", 1, LATE, AFTER, **PIECEMEAL)
        assert statuses == [0, 0], printed
        assert printed == [f"ends well {name}:nccl\n"] * 2
