"""What calling MXNet's operators by its library must leave as it is, and the gradients of sums, which are products."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import xdevice

pytestmark = pytest.mark.skipif(
    "mxnet" not in xdevice.backends(), reason="MXNet is not installed"
)


@pytest.fixture
def mx():
    with xdevice.use_backend("mxnet") as backend:
        backend.framework.npx.set_np()
        yield backend.framework
        backend.framework.npx.reset_np()


@pytest.fixture
def xp(mx):
    return xdevice.array_namespace()


@pytest.mark.parametrize("shape", [(3,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 3, 2)])
def test_sums_over_any_axes_have_gradients(xp, shape):
    random = np.random.default_rng(0)
    values = random.normal(size=shape)
    x = xdevice.tensor(values)
    for axes in (
        axes for n in range(1, len(shape) + 1) for axes in combinations(range(len(shape)), n)
    ):
        total = values.sum(axes)
        weights = random.normal(size=total.shape)
        loss = xdevice.math.value_and_grad(
            lambda x, weights, axes: xp.sum(xp.sum(x, axis=axes) * weights)
        )
        value, gradient = loss(x, xdevice.tensor(weights), axes)
        assert np.allclose(xdevice.item(value), (total * weights).sum(), atol=1e-5), axes
        expected = np.broadcast_to(np.expand_dims(weights, axes), shape)
        assert np.allclose(xdevice.to_numpy(gradient), expected), axes


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_with_infinities_are_infinite_where_they_are_recorded_too(xp, dtype):
    x = xdevice.tensor([[np.inf, 1.0], [2.0, 3.0]], dtype=dtype)
    value, gradient = xdevice.math.value_and_grad(lambda x: xp.sum(xp.sum(x, axis=0)))(x)
    assert xdevice.item(value) == np.inf
    assert xdevice.to_numpy(gradient).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_sum_longer_than_the_ones_that_are_kept(xp):
    value, gradient = xdevice.math.value_and_grad(xp.sum)(xdevice.ones(2**16 + 1))
    assert xdevice.item(value) == 2**16 + 1
    assert xdevice.to_numpy(gradient).tolist() == [1.0] * (2**16 + 1)


@pytest.mark.parametrize(
    "function", ["add", "divide", "greater", "less_equal", "multiply", "subtract"]
)
def test_numbers_arrive_as_in_functions_of_mxnet(mx, xp, function):
    x = xdevice.tensor([1.5, -2.0, 0.0, float("inf")])
    for number in (0.1, -0.0, 1e-45, 1e300, np.inf, np.nan):
        made, own = (getattr(module, function)(x, number).asnumpy() for module in (xp, mx.np))
        assert made.tobytes() == own.tobytes(), number


def test_legacy_arrays_are_refused(mx, xp):
    x = mx.nd.ones((2, 2))
    for function in (xp.exp, xp.sum, xdevice.nn.relu, xdevice.nn.softmax):
        with pytest.raises(TypeError, match="legacy"):
            function(x)


def test_a_sparse_gradient_is_refused(mx, xp):
    rows = xdevice.tensor([1, 2])
    with pytest.raises(xdevice.errors.UnsupportedError, match="sparse_grad"):
        xdevice.math.grad(
            lambda table: xp.sum(mx.npx.embedding(rows, table, 3, 2, sparse_grad=True))
        )(xdevice.ones(3, 2))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_backward_within_a_function_that_is_differentiated_raises_and_leaves_the_rest(
    mx, xp, shape
):
    x = xdevice.ones(*shape)

    def loss(x):
        with pytest.raises(mx.MXNetError):
            xp.sum(x * x).backward()
        return xp.sum(2.0 * x)

    assert xdevice.to_numpy(xdevice.math.grad(loss)(x)).ravel().tolist() == [2.0] * x.size


def test_writes_within_a_function_that_is_differentiated_do_not_reach_the_parameters(mx, xp):
    x = xdevice.ones(2)

    def paused(p):
        with mx.autograd.pause():
            p *= 3.0
            p.detach()[:] = 4.0
        return xp.sum(p * p)

    def recorded(p):
        p += 1.0
        return xp.sum(p)

    assert xdevice.to_numpy(xdevice.math.grad(paused)(x)).tolist() == [8.0, 8.0]
    with pytest.raises(mx.MXNetError, match="already in a computational graph"):
        xdevice.math.grad(recorded)(x)
    assert xdevice.to_numpy(x).tolist() == [1.0, 1.0]
