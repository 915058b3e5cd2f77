"""Standard arrays of every backend: operators, indexing, views, and what is refused."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import xdevice

INDEXES = (
    0, -1, (1, -2), (slice(None), 1), slice(None, None, -1), (..., 0), (None, ..., slice(1, 3)), (0, 0, 0), (), None,
    (slice(0, 2, 2), None, -2), slice(5, 9), [1, 0, 1], ([0, 1], [2, 2]), (slice(None), [0, 2]), (slice(1, 0, -1), 2),
    np.arange(24).reshape(2, 3, 4) % 3 == 0, np.zeros((2, 3), bool), (1, np.asarray([True, False, True])),
)  # fmt: skip
OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
)
VALUES = np.arange(24, dtype="float32").reshape(2, 3, 4)


def array(values):
    return xdevice.math.standard_array(xdevice.tensor(values))


def same(x, wanted):
    got = xdevice.to_numpy(x.tensor)
    assert x.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_an_index_is_numpys_in_reading_and_writing(xd, index):
    x = array(VALUES)
    same(x[index], VALUES[index])
    tensor, wanted = x.tensor, VALUES.copy()
    x[index] = 7
    wanted[index] = 7
    same(x, wanted)
    # the user's tensor is not written into
    np.testing.assert_array_equal(xdevice.to_numpy(tensor), VALUES)


@pytest.mark.parametrize("index", [2, (0, 0, 0, 0), (..., ...), (0, 5), 1.5, [9]], ids=str)
def test_an_index_that_is_none_is_refused(xd, index):
    with pytest.raises(IndexError):
        array(VALUES)[index]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_the_functions_of_the_namespace(xd, name):
    x, values, other = array(VALUES + 1), VALUES + 1, VALUES[0] + 2
    compute = getattr(operator, name)
    for right in (2.0, np.float64(2)):
        same(compute(x, right), compute(values, 2))
        same(compute(right, x), compute(2, values))
    same(compute(x, array(other)), compute(values, other))
    assert compute(x, 2).__array_namespace__() is x.__array_namespace__()


def test_numbers_promote_by_the_standard(xd):
    i = array([1, 2])
    xp = i.__array_namespace__()
    assert (i + 1.5).dtype == xp.float32
    assert (1 + i).dtype == i.dtype
    same(~i & 3, np.asarray([2, 1]))
    same(abs(-i), np.asarray([1, 2]))
    with pytest.raises(
        xdevice.errors.DTypeError, match=r"in-place operator would turn .* into float32"
    ):
        i += 1.5
    with pytest.raises(xdevice.errors.DTypeError):
        i / 2
    same(i, np.asarray([1, 2]))


def test_views_are_numpys(xd):
    values, x = VALUES.copy(), array(VALUES)
    for a in (values, x):
        row, inner = a[0], a[0][1:]
        inner[0, :2] += 5
        a[0, 2] = 1
        row *= 2
        a[:, 0, ::2] -= 3
    same(x, values)
    same(row, values[0])
    same(inner, values[0, 1:])
    first = x[0, 0, 0]
    x[0, 0, 0] = 99
    assert float(first) != 99


def test_functions_take_and_give_arrays(xd):
    x = array([[3.0, 1.0], [2.0, 2.0]])
    assert x.__array_namespace__(api_version="2024.12") is x.__array_namespace__(
        api_version="2025.12"
    )
    xp = x.__array_namespace__(api_version="2025.12")
    same(xp.concat([x, x[:1]], axis=0), np.asarray([[3, 1], [2, 2], [3, 1]]))
    same(xp.unique_all(x).counts, np.asarray([1, 2, 1]))
    same(xp.linalg.matrix_norm(x), np.sqrt(np.asarray(18.0)))
    same(x @ x.T + x.mT, np.asarray([[13, 10], [9, 10]]))
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True) is not x
    assert x.size == 4
    assert [float(row[0]) for row in x] == [3, 2]
    assert xp.sum(x).ndim == 0
    assert bool(xp.sum(x) > 7)
    assert [1, 2, 3][xp.asarray(1)] == 2
    if xdevice.accelerator.is_dtype_supported("float64"):
        assert xp.asarray(np.ones(2)).dtype == xp.float64


def test_what_is_refused(xd):
    x = array([1.0, 2.0])
    for call, error in (
        (lambda: hash(x), TypeError),
        (lambda: bool(x), xdevice.errors.ShapeError),
        (lambda: range(3)[x], xdevice.errors.ShapeError),
        (lambda: x + np.ones(2), TypeError),
        (lambda: np.ones(2) + x, TypeError),
        (lambda: x + "a", TypeError),
        (lambda: x.T, xdevice.errors.ShapeError),
        (lambda: x.__array_namespace__(api_version="1999.1"), xdevice.errors.ArgumentError),
        (lambda: xdevice.math.standard_array([1.0]), xdevice.errors.NotATensorError),
    ):
        with pytest.raises(error):
            call()
    assert (x == "auto") is False
    assert xdevice.math.standard_array(x) is x


def test_numpy_reads_what_is_on_the_cpu(xd):
    x = array(VALUES)
    np.testing.assert_array_equal(np.asarray(x), VALUES)
    np.testing.assert_array_equal(np.from_dlpack(x), VALUES)
    with pytest.raises(xdevice.errors.XDeviceError, match="copy=False"):
        x.__array__(copy=False)


@pytest.mark.virtual
def test_it_stays_on_its_device(xd):
    if xd.name == "numpy" or xdevice.num_gpus() < 2:
        pytest.skip("no two GPUs")
    x = array(VALUES).to_device("gpu:1")
    xp = x.__array_namespace__()
    for made in (
        x + 1,
        x[0, ..., 1],
        x[[0, 0]],
        x[x > 3],
        x[x > 99],
        x[5:],
        xp.sum(x),
        xp.zeros_like(x),
        x.T if x.ndim == 2 else x.mT,
    ):
        assert made.device == xdevice.gpu(1)
    x[:, 0] += 1
    assert x.device == xdevice.gpu(1)
    with pytest.raises(xdevice.errors.DTypeError, match="NumPy cannot read an array on gpu:1"):
        np.asarray(x)
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        x + array(VALUES)
