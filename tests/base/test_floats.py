"""What XDEVICE_FLOATS asks of a process."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import floats_asked_for, python

import xdevice
from xdevice.base import floats


def test_what_would_be_float32_is_float64(xd):
    if xd.name == "jax":
        pytest.skip("JAX has float64 where a process of its own asks for it")
    xp = xdevice.array_namespace()
    with xdevice.random.seed(0):
        usual = xdevice.to_numpy(xdevice.random.normal(3))
    with floats_asked_for("float64"), xdevice.random.seed(0):
        same = xdevice.to_numpy(xdevice.random.normal(3))
        made = [
            xdevice.tensor(0.1), xdevice.tensor(np.ones(2, "float32")), xdevice.ones(2), xdevice.zeros(2),
            xdevice.random.uniform(2), xdevice.random.uniform(2), xp.linspace(0, 1, 3), xp.eye(2), xp.ones(2),
            xp.full((2,), 0.5), xp.arange(0.5, 3), xp.add(xp.asarray(1), 0.5), xdevice.tensor(1, dtype=float),
            xdevice.nn.one_hot(xdevice.tensor([1]), 2),
        ]  # fmt: skip
        said = [
            xdevice.tensor(0.1, dtype="float32"),
            xdevice.random.normal(2, dtype="float32"),
            xdevice.tensor([1]),
        ]
        named = [xdevice.to_numpy(x).dtype.name for x in said]
    assert {xdevice.to_numpy(x).dtype.name for x in made} == {"float64"}
    assert named == ["float32", "float32", "int64"]
    assert same.dtype == "float64"
    assert (same == usual).all(), "the numbers are those of the usual run"


def test_numbers_that_are_not_whole_are_moved_by_an_ulp():
    values = np.array([0.1, 1, 0, -2.5, np.inf, np.nan], "float32")
    with xdevice.use_backend("numpy"):
        runs = []
        for number in (1, 1, 2, 3, 4):
            with floats_asked_for(f"jitter:{number}"):
                runs.append(xdevice.tensor(values))
    assert (runs[0][:4] == runs[1][:4]).all()
    assert len({run.tobytes() for run in runs}) > 1
    for run in runs:
        assert (run[[1, 2, 4]] == values[[1, 2, 4]]).all()
        for place in (0, 3):
            assert abs(run[place] - values[place]) == np.spacing(np.abs(values[place]))
    with floats_asked_for("jitter:1"):
        assert floats.take(np.array([0.1], "float16"))[0] == np.float16(0.1)
        moved = floats.take(np.array([0.1 + 0.2j], "complex64"))
        assert moved.real != np.float32(0.1)
        assert moved.imag != np.float32(0.2)


def test_what_is_tied_stays_equal_and_nothing_is_written_into():
    given = np.full(5, 0.1, "float32")
    with floats_asked_for("jitter:1"):
        one, two = floats.take(given), floats.take(given.copy())
    assert (one == two).all()
    assert (given == np.float32(0.1)).all()


def test_files_and_states_come_in_as_asked(tmp_path):
    with xdevice.use_backend("numpy"):
        path = tmp_path / "w.safetensors"
        xdevice.save(path, {"w": np.full(3, 0.1, "float32")})
        with floats_asked_for("float64"):
            assert xdevice.load(path)["w"].dtype == "float64"
            into = {"w": np.zeros(3)}
            assert xdevice.load(path, into=into)["w"][0] == np.float32(0.1)
            state = xdevice.models.convert_state(
                {"a.weight": np.ones((2, 2), "float32")}, "numpy", kinds={"a": "linear"}
            )
            assert state["a.weight"].dtype == "float64"
        with floats_asked_for("jitter:1"):
            assert xdevice.load(path)["w"][0] != np.float32(0.1)


CHILD = """
import {framework}, xdevice
made = {made}
print(xdevice.to_numpy(made).dtype.name)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "framework", "made"),
    [
        ("torch", "torch", "torch.nn.Linear(2, 2).weight"),
        ("paddle", "paddle", "paddle.nn.Linear(2, 2).weight"),
        ("tensorflow", "keras", "keras.random.normal((2,))"),
        ("jax", "jax.numpy", "jax.numpy.ones(2)"),
    ],
)
def test_a_frameworks_own_default_is_another_one(backend, framework, made):
    code = CHILD.format(framework=framework, made=made)
    done = python("-c", code, XDEVICE_FLOATS="float64", XDEVICE_BACKEND=backend)
    assert done.stdout.split()[-1:] == ["float64"], done.stderr


def test_another_value_is_refused():
    done = python("-c", "import xdevice", XDEVICE_FLOATS="float16")
    assert "XDEVICE_FLOATS must be float64 or jitter:1, not 'float16'" in done.stderr


def test_an_adapter_without_a_default_refuses_by_name():
    class Plain:
        name = "plain"
        unsupported = xdevice.contract.Backend.unsupported
        default_to_float64 = xdevice.contract.Backend.default_to_float64

    with pytest.raises(
        xdevice.errors.UnsupportedError, match="plain does not support runs in float64"
    ):
        Plain().default_to_float64()
