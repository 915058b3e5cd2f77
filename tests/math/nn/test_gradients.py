"""Gradients of every framework's own kind, against differences of NumPy's float64, and as they are defined at kinks."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import SHIMS, sampled, with_64_bit

import xdevice
from xdevice import nn

BACKENDS = [name for name in xdevice.backends() if name != "numpy"]


@pytest.fixture(
    params=sampled(BACKENDS, each_time=("torch", "mxnet"), slow=SHIMS, others="long"),
    scope="module",
)
def gradients(request):
    """`gradients(function, *arrays)`: of the sum of what a function gives, for each array, by the framework's own."""
    name = request.param
    with xdevice.use_backend(name) as backend:
        if name == "mxnet":
            backend.framework.npx.set_np()
            yield _of_mxnet
            backend.framework.npx.reset_np()
        elif name == "jax":
            with with_64_bit(name):
                yield _of_jax
        else:
            yield {"torch": _of_torch, "paddle": _of_paddle, "tensorflow": _of_tensorflow}[name]


def _sum(x):
    return xdevice.array_namespace(x).sum(x)


def _tensors(arrays):
    return [xdevice.tensor(array, dtype=array.dtype) for array in arrays]


def _of_torch(function, *arrays):
    leaves = [x.requires_grad_() for x in _tensors(arrays)]
    _sum(function(*leaves)).backward()
    return [xdevice.to_numpy(x.grad) for x in leaves]


def _of_paddle(function, *arrays):
    leaves = _tensors(arrays)
    for x in leaves:
        x.stop_gradient = False
    _sum(function(*leaves)).backward()
    return [xdevice.to_numpy(x.grad) for x in leaves]


def _of_mxnet(function, *arrays):
    leaves = _tensors(arrays)
    for x in leaves:
        x.attach_grad()
    with xdevice.backend("mxnet").framework.autograd.record():
        loss = _sum(function(*leaves))
    loss.backward()
    return [xdevice.to_numpy(x.grad) for x in leaves]


def _of_tensorflow(function, *arrays):
    import tensorflow as tf

    leaves = _tensors(arrays)
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        loss = _sum(function(*leaves))
    return [xdevice.to_numpy(tf.convert_to_tensor(x)) for x in tape.gradient(loss, leaves)]


def _of_jax(function, *arrays):
    import jax

    found = jax.grad(lambda leaves: _sum(function(*leaves)))(_tensors(arrays))
    return [xdevice.to_numpy(x) for x in found]


def differences(function, *arrays, step=1e-5):
    """The same by NumPy's adapter, one element after the other, from both sides."""
    with xdevice.use_backend("numpy"):

        def value():
            return float(np.sum(function(*arrays)))

        found = []
        for array in arrays:
            slopes = np.zeros(array.size)
            flat = array.reshape(-1)
            for i, here in enumerate(flat.copy()):
                flat[i] = here + step
                above = value()
                flat[i] = here - step
                slopes[i] = (above - value()) / (2 * step)
                flat[i] = here
            found.append(slopes.reshape(array.shape))
    return found


def weighted(made):
    """Each element with a weight of its own, as the sum of a softmax says nothing."""
    xp = xdevice.array_namespace(made)
    weights = np.cos(np.arange(np.prod(tuple(made.shape), dtype=int))).reshape(
        tuple(made.shape)
    )
    return xp.multiply(made, xp.astype(xdevice.tensor(weights), made.dtype))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


MASK = np.random.default_rng(5).random((3, 4)) < 0.5


def some_mask():
    return xdevice.tensor(np.asarray([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]]), dtype="bool")


CASES = {
    "relu": (nn.relu, (3, 4)),
    "sigmoid": (nn.sigmoid, (3, 4)),
    "softmax": (nn.softmax, (3, 4)),
    "softmax axis 0": (lambda x: nn.softmax(x, axis=0), (3, 4)),
    "log_softmax": (nn.log_softmax, (3, 4)),
    "log_softmax axis 1": (lambda x: nn.log_softmax(x, axis=1), (2, 3, 2)),
    "logsumexp": (lambda x: nn.logsumexp(x, axis=1), (2, 3, 2)),
    "leaky_relu": (nn.leaky_relu, (3, 4)),
    "cross_entropy": (
        lambda x: nn.cross_entropy(x, xdevice.tensor([1, 0, 3], dtype="int64")),
        (3, 4),
    ),
    "cross_entropy int32": (
        lambda x: nn.cross_entropy(x, xdevice.tensor([1, 0, 3], dtype="int32")),
        (3, 4),
    ),
    "dropout": (lambda x: nn.dropout(x, xdevice.tensor(MASK, dtype="bool"), 0.3), (3, 4)),
    "dropout 1": (lambda x: nn.dropout(x, xdevice.tensor(MASK, dtype="bool"), 1), (3, 4)),
    "gelu": (nn.gelu, (3, 4)),
    "gelu approximate": (lambda x: nn.gelu(x, approximate=True), (3, 4)),
    "layer_norm": (nn.layer_norm, (2, 3, 4), (4,), (4,)),
    "batch_norm": (
        lambda x, w, b: nn.batch_norm(x, *nn.moments(x), w, b),
        (3, 2, 2, 2),
        (2,),
        (2,),
    ),
    "batch_norm given": (lambda x, m, v: nn.batch_norm(x, m, v * v), (3, 2, 2), (2,), (2,)),
    "attention": (nn.attention, (2, 3, 4), (2, 5, 4), (2, 5, 2)),
    "attention masks": (
        lambda *xs: nn.attention(*xs, mask=some_mask(), causal=True),
        (3, 4),
        (4, 4),
        (4, 2),
    ),
    "embedding": (lambda x: nn.embedding(xdevice.tensor([[1, 0], [1, 2]]), x), (4, 3)),
    "mse_loss": (nn.mse_loss, (3, 4), (3, 4)),
    "binary_cross_entropy": (nn.binary_cross_entropy_with_logits, (3, 4), (3, 4)),
    "cross_entropies": (
        lambda x: nn.cross_entropy(x, xdevice.tensor([1, 0, 3]), reduction="none"),
        (3, 4),
    ),
    "conv2d": (nn.conv2d, (2, 2, 4, 3), (3, 2, 2, 3), (3,)),
    "conv2d strides": (
        lambda x, k: nn.conv2d(x, k, stride=(2, 3), padding=(1, 2)),
        (1, 2, 5, 4),
        (2, 2, 3, 2),
    ),
    "max_pool2d": (
        lambda x: nn.max_pool2d(x, (2, 3), stride=(1, 2), padding=(1, 0)),
        (2, 1, 4, 5),
    ),
    "avg_pool2d": (
        lambda x: nn.avg_pool2d(x, (2, 3), stride=(1, 2), padding=(1, 0)),
        (2, 1, 4, 5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_against_differences(gradients, case):
    function, *shapes = CASES[case]
    arrays = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    wanted = differences(lambda *xs: weighted(function(*xs)), *arrays)
    for dtype, rtol in (("float64", 1e-8), ("float32", 1e-4)):
        got = gradients(
            lambda *xs: weighted(function(*xs)), *(array.astype(dtype) for array in arrays)
        )
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype == dtype
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_at_kinks_and_ties(gradients, dtype):
    (found,) = gradients(nn.relu, np.asarray([-1.0, -0.0, 0.0, 1.0], dtype))
    assert found.tolist() == [0, 0, 0, 1]
    (found,) = gradients(
        lambda x: nn.leaky_relu(x, slope=0.5), np.asarray([-1.0, -0.0, 0.0, 1.0], dtype)
    )
    assert found.tolist() == [0.5, 0.5, 0.5, 1]
    (found,) = gradients(lambda x: nn.max_pool2d(x, 2), np.zeros((1, 1, 4, 4), dtype))
    first = [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    assert found[0, 0].tolist() == first
    (found,) = gradients(
        lambda x: nn.max_pool2d(x, 3, stride=2, padding=1), -np.ones((1, 1, 4, 4), dtype)
    )
    assert found[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_out(gradients, dtype):
    (found,) = gradients(nn.sigmoid, np.asarray([-1000.0, 0.0, 1000.0], dtype))
    assert found.tolist() == [0, 0.25, 0]
    x = np.asarray([[0.0, 200.0, 200.0], [0.0, -300.0, -np.inf]], dtype)
    (found,) = gradients(
        lambda x: nn.cross_entropy(x, xdevice.tensor([0, 1], dtype="int64")), x
    )
    np.testing.assert_allclose(found, [[-0.5, 0.25, 0.25], [0.5, -0.5, 0]], atol=5e-6)
    (found,) = gradients(lambda x: nn.log_softmax(x)[:, :1], x)
    np.testing.assert_allclose(found, [[1, -0.5, -0.5], [0, 0, 0]], atol=5e-6)
    (found,) = gradients(nn.logsumexp, x)
    np.testing.assert_allclose(found, [[0, 0.5, 0.5], [1, 0, 0]], atol=5e-6)


def test_binary_cross_entropy_at_zero(gradients):
    x, y = np.zeros(3, "float32"), np.asarray([0, 1, 0.25], "float32")
    found, _ = gradients(
        lambda *xs: nn.binary_cross_entropy_with_logits(*xs, reduction="none"), x, y
    )
    np.testing.assert_allclose(found, 0.5 - y)


def test_of_no_images(gradients):
    none, kernel, bias = np.zeros((0, 2, 4, 4)), numbers(3, 2, 2, 2), numbers(3)
    found = gradients(nn.conv2d, none, kernel, bias)
    assert [part.shape for part in found] == [(0, 2, 4, 4), (3, 2, 2, 2), (3,)]
    assert not any(part.any() for part in found)
    for pool in (nn.max_pool2d, nn.avg_pool2d):
        (found,) = gradients(lambda x, pool=pool: pool(x, 2), none)
        assert found.shape == (0, 2, 4, 4)
