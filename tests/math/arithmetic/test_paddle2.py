"""The kernels for Paddle 2, which are not used with Paddle 3 but work there too, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import framework

paddle = framework("paddle")

from xdevice_paddle.math import paddle2  # noqa: E402  # xdevice imports Paddle first

FLOATS = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, -np.nan])
INTS = np.array([0, 3, -3, 127, -128])


def test_the_sign_of_a_half_is_that_of_numpy():
    x = FLOATS.astype("float16")
    np.testing.assert_array_equal(paddle2.signbit(paddle.to_tensor(x)).numpy(), np.signbit(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_floats_are_those_of_numpy(dtype):
    x, y = FLOATS.astype(dtype), FLOATS[::-1].astype(dtype)
    np.testing.assert_array_equal(paddle2.signbit(paddle.to_tensor(x)).numpy(), np.signbit(x))
    signed = paddle2.copysign(paddle.to_tensor(x), paddle.to_tensor(y)).numpy()
    assert signed.dtype == x.dtype
    np.testing.assert_array_equal(signed, np.copysign(x, y))
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(signed[is_number]), np.signbit(y[is_number]))


def test_a_gradient_flows_through_copysign():
    x = paddle.to_tensor([2.0, -3.0], stop_gradient=False)
    paddle2.copysign(x, paddle.to_tensor([-1.0, -0.0])).sum().backward()
    assert x.grad.tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_signs_and_shifts_of_integers_are_those_of_numpy(dtype):
    x, y = INTS.astype(dtype), np.array([1, 2, 3, 0, 1]).astype(dtype)
    tensors = paddle.to_tensor(x), paddle.to_tensor(y)
    np.testing.assert_array_equal(paddle2.signbit(tensors[0]).numpy(), x < 0)
    for ours, theirs in (
        (paddle2.bitwise_left_shift, np.left_shift),
        (paddle2.bitwise_right_shift, np.right_shift),
    ):
        shifted = ours(*tensors).numpy()
        assert shifted.dtype == x.dtype
        np.testing.assert_array_equal(shifted, theirs(x, y))
