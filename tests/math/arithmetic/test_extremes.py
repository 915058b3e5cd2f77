"""Functions of two floats where the plain formula overflows, underflows or subtracts infinities."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import BACKENDS, needs

import xdevice

INF, NAN = float("inf"), float("nan")
MOST = float(np.finfo("float32").max)
LEFT = [3e20, 3e-30, 0.0, INF, -INF, 3.0, -INF, 2.0]
RIGHT = [4e20, 4e-30, 0.0, 1.0, -INF, 4.0, 2.0, NAN]


@pytest.mark.parametrize("function", ["hypot", "logaddexp"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_intermediate_overflows(backend, function):
    with xdevice.use_backend(backend):
        a, b = xdevice.tensor(LEFT), xdevice.tensor(RIGHT)
        actual = xdevice.to_numpy(getattr(xdevice.array_namespace(a), function)(a, b))
    wide = np.float64(LEFT), np.float64(RIGHT)
    with np.errstate(invalid="ignore"):
        expected = getattr(np, function)(*wide).astype("float32")
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
def test_gradients_are_finite_where_the_values_are(backend):
    with xdevice.use_backend(backend):
        pair = [xdevice.tensor([3e15, 3.0, 0.5]), xdevice.tensor([4e15, 4.0, 0.5])]
        xp = xdevice.array_namespace(pair[0])
        _, gradients = xdevice.math.value_and_grad(
            lambda p: xp.sum(xp.hypot(*p) + xp.logaddexp(*p))
        )(pair)
        for gradient in gradients:
            assert np.isfinite(xdevice.to_numpy(gradient)).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "line",
    [
        [1.0, 2.0],
        [1.0, 2.0, NAN],
        [NAN, NAN],
        [1.0, *[NAN] * 5],
        [-INF, 1.0, INF, NAN],
        [-INF, -INF, INF, INF],
        [INF],
        [-INF, -MOST, -MOST, 0.0, MOST, INF],
        [-MOST, MOST],
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_place_of_nan_is_behind_all_numbers_and_infinities_have_theirs(backend, line, side):
    wanted = [NAN, INF, MOST, -INF, -MOST, 0.0, 1.0, 2.0, 9.0]
    with xdevice.use_backend(backend):
        xp = xdevice.array_namespace()
        places = xp.searchsorted(xdevice.tensor(line), xdevice.tensor(wanted), side=side)
    assert xdevice.to_numpy(places).tolist() == np.searchsorted(line, wanted, side).tolist()


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
def test_the_gradient_of_logaddexp_is_a_share_of_each_also_of_equals(backend):
    left, right = np.float32([0.5, 3.0, 1.0, 1000.0]), np.float32([0.5, 2.0, -INF, 1000.0])
    with xdevice.use_backend(backend):
        pair = [xdevice.tensor(left), xdevice.tensor(right)]
        xp = xdevice.array_namespace(pair[0])
        gradients = xdevice.math.grad(lambda p: xp.sum(p[0]) + xp.sum(xp.logaddexp(*p)))(pair)
    share = 1 / (1 + np.exp(right - left))
    np.testing.assert_allclose(xdevice.to_numpy(gradients[0]), 1 + share, rtol=3e-5)
    np.testing.assert_allclose(xdevice.to_numpy(gradients[1]), 1 - share, rtol=3e-5)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
def test_the_gradient_of_hypot_is_a_part_of_each_also_of_equals(backend):
    with xdevice.use_backend(backend):
        pair = [xdevice.tensor([2.0, 3.0, -5.0]), xdevice.tensor([2.0, 4.0, -5.0])]
        xp = xdevice.array_namespace(pair[0])
        gradients = xdevice.math.grad(lambda p: xp.sum(p[0]) + xp.sum(xp.hypot(*p)))(pair)
    half = 0.5**0.5
    np.testing.assert_allclose(
        xdevice.to_numpy(gradients[0]), [1 + half, 1.6, 1 - half], rtol=1e-5
    )
    np.testing.assert_allclose(xdevice.to_numpy(gradients[1]), [half, 0.8, -half], rtol=1e-5)


def test_mxnet_refuses_only_what_would_need_the_gradient_that_it_lacks():
    needs("mxnet")
    with xdevice.use_backend("mxnet") as backend:
        record, xp = backend.framework.autograd.record, xdevice.array_namespace()
        x = xdevice.tensor([[2.0, 1.0], [1.0, 3.0]])
        x.attach_grad()
        calls = [
            xp.linalg.eigvalsh,
            xp.linalg.eigh,
            lambda x: xp.cumulative_prod(x, axis=0),
            lambda x: xp.nextafter(x, x),
        ]
        for call in calls:
            with (
                record(),
                pytest.raises(
                    xdevice.errors.UnsupportedError, match="cannot compute the gradient of"
                ),
            ):
                call(x * 2)
            with record():
                call(xdevice.math.stop_gradient(x * 2))
            call(x * 2)
