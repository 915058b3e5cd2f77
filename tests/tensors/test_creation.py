"""Values that do not fit are refused, never changed. NumPy stands for all: the rules are the core's."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import framework

import xdevice


@pytest.fixture(autouse=True)
def _numpy():
    with xdevice.use_backend("numpy"):
        yield


def test_a_tensor_on_meta_has_no_values(tmp_path):
    torch = framework("torch")
    x = torch.ones(2, device="meta")
    for use in (
        xdevice.to_numpy,
        lambda x: xdevice.to_device(x, "cpu"),
        lambda x: xdevice.copy_to(x, "cpu"),
        lambda x: xdevice.parity.compare(x, x),
        lambda x: xdevice.save(tmp_path / "x.safetensors", x),
    ):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match="torch does not support reading a tensor on the meta device",
        ):
            use(x)
    assert not list(tmp_path.iterdir())
    assert xdevice.copy_to(x, "meta").is_meta


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([-1, 2**63], None),
        (2**63, None),
        (2**70, None),
        ([1e300], None),
        ([1e20, 1.0], "int64"),
        ([float("nan")], "int32"),
        ([-1.5, 300.0], "uint8"),
        ([70000], "float16"),
        ([1e39], "bfloat16"),
        ([1j], "float32"),
        (["a"], None),
        ([[1, 2], [3]], None),
        (None, None),
        ([1], "floaty"),
    ],
)
def test_what_does_not_fit_is_refused(data, dtype):
    with pytest.raises(xdevice.errors.DTypeError):
        xdevice.tensor(data, dtype=dtype)


def test_a_number_that_does_not_fit_is_named():
    with pytest.raises(
        xdevice.errors.DTypeError, match=r"^300 does not fit in uint8; use another dtype$"
    ):
        xdevice.tensor([300], dtype="uint8")
    with pytest.raises(
        xdevice.errors.DTypeError,
        match=r"^a value between 1 and 300 does not fit in uint8; use another dtype$",
    ):
        xdevice.tensor([1, 300], dtype="uint8")


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ([1.5, float("inf")], None, np.array([1.5, np.inf], "float32")),
        ([1.9], "int64", np.array([1], "int64")),
        ([2**63], "uint64", np.array([2**63], "uint64")),
        ([1e300], "float64", np.array([1e300])),
        (3 + 4j, None, np.array(3 + 4j, "complex64")),
        (np.array([1, 2], ">i4"), None, np.array([1, 2], "int32")),
        ([], None, np.array([], "float32")),
    ],
)
def test_what_fits_keeps_its_value(data, dtype, expected):
    made = xdevice.tensor(data, dtype=dtype)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    "shape", [("23",), (2, 3.0), (2.0,), (None,), (True,), (-1,), ([2, -3],)]
)
def test_what_is_no_shape_is_refused(shape):
    for make in (xdevice.ones, xdevice.zeros, xdevice.random.uniform):
        with pytest.raises(xdevice.errors.ShapeError, match="shape"):
            make(*shape)


def test_shapes_in_every_form():
    for shape in ((2, 3), ((2, 3),), ([2, 3],), (np.array([2, 3]),), (np.int64(2), 3)):
        assert xdevice.ones(*shape).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_numbers_stay_below_one(dtype):
    numbers = xdevice.random.uniform(1_000_000, dtype=dtype)
    assert numbers.dtype.name == dtype
    assert 0 <= float(numbers.min()) < float(numbers.max()) < 1
