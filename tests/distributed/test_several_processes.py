"""The chapter on several processes: by any number of them, on every backend, the parameters are those of one process.

The processes fork from one that has imported the framework, and PyTorch, whose gloo moves the tensors.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from helpers.environment import BACKENDS, ROOT, needs, python
from helpers.process_failures import Zygote

import xdevice

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or "torch" not in BACKENDS, reason="needs fork and gloo"
)
STEPS = ("--epochs", "1", "--examples", "660", "--batch", "33")
"""Twenty of 33, which neither two nor four divide."""
TOLERANCE = {"": 2e-7, "float64": 1e-15}


def train():
    """Runs in a rank: the chapter, with the arguments that the environment has."""
    import several_processes

    several_processes.main(os.environ["ARGUMENTS"].split(), standalone_mode=False)


@pytest.fixture
def trained(request, tmp_path):
    """The state after training by so many processes, and what rank 0 printed."""
    backend, floats = request.param
    needs(backend, "torch")
    modules = ("xdevice_torch.distributed.processes", "sklearn.datasets", "several_processes")
    with Zygote(backend, *modules, PYTHONPATH=path(), XDEVICE_FLOATS=floats) as zygote:

        def run(size, *arguments, checkpoint=None):
            file = tmp_path / (checkpoint or f"{size}.safetensors")
            told = " ".join([*STEPS, *arguments, "--checkpoint", str(file)])
            outcomes = zygote.run("test_several_processes:train", size, ARGUMENTS=told)
            assert [one.status for one in outcomes] == [0] * size, outcomes[0].printed[-2000:]
            assert [one.printed for one in outcomes[1:] if "epoch" in one.printed] == []
            return xdevice.load(file, backend="numpy"), outcomes[0].printed

        run.tolerance = TOLERANCE[floats]
        yield run


def path():
    return os.pathsep.join(
        [
            str(ROOT / "tests" / "distributed"),
            str(EXAMPLES),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    )


def assert_equal(state, expected, tolerance):
    assert set(state) == {"epoch", "W1", "b1", "W2", "b2"}
    for name, array in expected.items():
        assert state[name].dtype == array.dtype
        np.testing.assert_allclose(state[name], array, rtol=0, atol=tolerance, err_msg=name)


EACH = [(backend, floats) for backend in BACKENDS for floats in TOLERANCE]


def by_backend(function):
    values = [
        pytest.param(
            value, marks=pytest.mark.slow if value == ("numpy", "") else pytest.mark.long
        )
        for value in EACH
    ]
    return pytest.mark.parametrize("trained", values, ids="-".join, indirect=True)(function)


@by_backend
def test_two_and_four_train_as_one(trained):
    one, said = trained(1)
    assert "engine: none" in said
    for size in (2, 4):
        state, said = trained(size)
        assert f"by {size} processes; engine: torch:gloo" in said
        assert_equal(state, one, trained.tolerance)


@by_backend
def test_another_number_of_processes_goes_on_from_the_checkpoint(trained):
    whole, _ = trained(1, "--epochs", "3")
    trained(2, "--epochs", "1", checkpoint="some.safetensors")
    state, said = trained(4, "--epochs", "3", checkpoint="some.safetensors")
    assert re.findall(r"epoch (\d)", said) == ["2", "3"]
    assert_equal(state, whole, 3 * trained.tolerance)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_chapter_runs_as_people_start_it(backend):
    done = python(
        "-m",
        "xdevice",
        "launch",
        "-n",
        2,
        "--backend",
        backend,
        EXAMPLES / "several_processes.py",
        *STEPS,
    )
    assert done.returncode == 0, done.stderr
    assert f"[0] This is {backend}, by 2 processes; engine: torch:gloo." in done.stdout
    assert "[1]" not in done.stdout
