"""Every function on every backend, against formulas of one number or one window at a time, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.environment import SHIMS, sampled, with_64_bit

import xdevice
from xdevice import nn

FLOATS = ("float32", "float64")


@pytest.fixture(
    params=sampled(xdevice.backends(), each_time=("numpy", "torch"), slow=SHIMS, others="long"),
    scope="module",
)
def name(request):
    return request.param


@pytest.fixture
def xp(name):
    """The namespace of a backend, with 64 bits in JAX."""
    with xdevice.use_backend(name) as backend:
        if name == "mxnet":
            backend.framework.npx.set_np()
            yield xdevice.array_namespace()
            backend.framework.npx.reset_np()
            return
        with with_64_bit(name):
            yield xdevice.array_namespace()


def numbers(*shape, dtype="float64", seed=0):
    return np.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def close(got, wanted, dtype, rtol=None):
    got = xdevice.to_numpy(got)
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    rtol = rtol or (2e-5 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(got, wanted.astype("float64"), rtol=rtol, atol=rtol / 10)


# formulas


def log_softmax(x, axis=-1):
    wide = x.astype(np.longdouble)
    return wide - np.logaddexp.reduce(wide, axis=axis, keepdims=True)


def padded(x, padding, value):
    (above, left), (n, c, height, width) = padding, x.shape
    wide = np.full((n, c, height + 2 * above, width + 2 * left), value, x.dtype)
    wide[:, :, above : above + height, left : left + width] = x
    return wide


def windows(x, size, stride, padding, value, function):
    """What a function gives of each window, one by one."""
    wide = padded(x, padding, value)
    rows, columns = ((wide.shape[i + 2] - size[i]) // stride[i] + 1 for i in (0, 1))
    places = itertools.product(range(rows), range(columns))
    made = [
        function(
            wide[
                :,
                :,
                i * stride[0] : i * stride[0] + size[0],
                j * stride[1] : j * stride[1] + size[1],
            ]
        )
        for i, j in places
    ]
    return np.stack(made, -1).reshape(*made[0].shape, rows, columns)


def convolved(x, kernel, bias, stride, padding):
    made = windows(
        x,
        kernel.shape[2:],
        stride,
        padding,
        0,
        lambda part: np.einsum("nchw,ochw->no", part, kernel),
    )
    return made if bias is None else made + bias.reshape(1, -1, 1, 1)


# values


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 4, 5), (0,), (2, 0, 3)])
def test_of_each_element(xp, shape, dtype):
    x = np.asarray(4 * numbers(*shape), dtype)
    here = xp.asarray(x, dtype=x.dtype)
    close(nn.relu(here), np.where(x > 0, x, 0), dtype)
    for settings, slope in (({}, 0.01), ({"slope": 0.25}, 0.25), ({"slope": 0}, 0)):
        close(nn.leaky_relu(here, **settings), np.where(x > 0, x, slope * x), dtype)
    close(nn.sigmoid(here), (1 + np.tanh(x.astype(np.longdouble) / 2)) / 2, dtype)
    mask = np.asarray(numbers(*shape, seed=1) > 0)
    for p in (0, 0.3, 1):
        wanted = np.where(mask, x / x.dtype.type(1 - p), 0) if p < 1 else np.zeros_like(x)
        dropped = nn.dropout(here, xp.asarray(mask, dtype=mask.dtype), p)
        np.testing.assert_array_equal(xdevice.to_numpy(dropped), wanted)
        assert xdevice.to_numpy(dropped).dtype == dtype


def test_a_mask_of_random_drops_the_same_on_every_backend(xp):
    with xdevice.random.seed(3):
        x = nn.dropout(xdevice.random.normal(50), xdevice.random.bernoulli(50, p=0.7), 0.3)
    generator = np.random.Generator(np.random.Philox(3))
    drawn = generator.standard_normal(50, "float32")
    kept = generator.random(50) < 0.7
    np.testing.assert_array_equal(
        xdevice.to_numpy(x), np.where(kept, drawn / np.float32(0.7), 0)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5,), -1),
        ((3, 7), -1),
        ((3, 7), 0),
        ((2, 3, 4), 1),
        ((3, 1), 1),
        ((0, 3), 1),
        ((3, 0), 1),
    ],
)
def test_along_an_axis(xp, shape, axis, dtype):
    x = 3 * numbers(*shape, dtype=dtype)
    here = xp.asarray(x, dtype=x.dtype)
    wanted = log_softmax(x, axis) if x.size else x
    close(nn.log_softmax(here, axis=axis), wanted, dtype)
    close(nn.softmax(here, axis=axis), np.exp(wanted), dtype)
    if shape[axis]:
        close(
            nn.logsumexp(here, axis=axis),
            np.logaddexp.reduce(x.astype(np.longdouble), axis=axis),
            dtype,
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_numbers(xp, dtype):
    x = np.asarray([[0, -100, -200], [1000, 0, 999], [-3, -3, -3]], dtype)
    here = xp.asarray(x, dtype=x.dtype)
    close(
        nn.sigmoid(here),
        np.asarray([[0.5, 0, 0], [1, 0.5, 1], [1 / (1 + np.exp(3.0))] * 3]),
        dtype,
    )
    close(nn.log_softmax(here), log_softmax(x), dtype)
    close(nn.logsumexp(here), np.logaddexp.reduce(x, axis=1), dtype)
    far = np.asarray(
        [
            [-np.inf] * 9,
            [np.inf, -np.inf, *[0.0] * 7],
            [np.nan, *[0.0] * 8],
            [-np.inf, *[2.0] * 8],
        ],
        dtype,
    )
    wanted = np.asarray([-np.inf, np.inf, np.nan, 2 + np.log(8)])
    close(nn.logsumexp(xp.asarray(far, dtype=far.dtype)), wanted, dtype)
    close(nn.softmax(here), np.exp(log_softmax(x)), dtype)
    close(
        nn.cross_entropy(here, xp.asarray([2, 1, 0])),
        np.asarray((200 + 1000.3132616875 + np.log(3)) / 3),
        dtype,
        1e-6,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("indices", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 3), (64, 10)])
def test_cross_entropy(xp, shape, indices, dtype):
    x = 3 * numbers(*shape, dtype=dtype)
    labels = np.random.default_rng(1).integers(0, shape[1], shape[0]).astype(indices)
    wanted = -np.mean([log_softmax(row)[label] for row, label in zip(x, labels, strict=True)])
    close(
        nn.cross_entropy(xp.asarray(x, dtype=x.dtype), xp.asarray(labels, dtype=labels.dtype)),
        wanted,
        dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool", None])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_one_hot(xp, shape, dtype):
    indices = np.asarray(np.random.default_rng(0).integers(0, 5, shape))
    for of in ("int32", "int64"):
        made = xdevice.to_numpy(nn.one_hot(xp.asarray(indices, dtype=of), 5, dtype=dtype))
        assert made.dtype == (dtype or "float32")
        np.testing.assert_array_equal(made, np.eye(5)[indices])


# functions that the core has by hand, and the frameworks' own

erf = np.vectorize(math.erf, otypes=["float64"])


def normed(x, mean, variance, weight, bias, eps):
    made = (x - mean) / np.sqrt(variance + eps)
    return made * (1 if weight is None else weight) + (0 if bias is None else bias)


def attended(q, k, v, mask):
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.where(mask, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (0, 3)])
def test_gelu(xp, shape, dtype):
    x = np.asarray(3 * numbers(*shape), dtype)
    here = xp.asarray(x, dtype=x.dtype)
    wide = x.astype("float64")
    close(
        nn.gelu(here),
        wide * (1 + erf(wide / np.sqrt(2))) / 2,
        dtype,
        1e-5 if dtype == "float32" else 1e-12,
    )
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    close(nn.gelu(here, approximate=True), wide * (1 + np.tanh(inner)) / 2, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (4, 1), (0, 3)])
def test_layer_norm(xp, shape, dtype):
    x, weight, bias = (
        numbers(*shape, dtype=dtype) + 3,
        *(numbers(shape[-1], dtype=dtype, seed=i) for i in (1, 2)),
    )
    here, w, b = (xp.asarray(part, dtype=part.dtype) for part in (x, weight, bias))
    for given, eps in (
        ({}, 1e-5),
        ({"weight": w, "bias": b}, 1e-5),
        ({"weight": w}, 0.1),
        ({"bias": b}, 0.1),
    ):
        parts = {"weight": "weight" in given and weight, "bias": "bias" in given and bias}
        parts = {name: None if part is False else part for name, part in parts.items()}
        wanted = normed(
            x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True), **parts, eps=eps
        )
        close(
            nn.layer_norm(here, **given, eps=eps),
            wanted,
            dtype,
            2e-5 if dtype == "float32" else 1e-11,
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5, 2), (2, 1, 4), (0, 3, 2, 2)])
def test_batch_norm(xp, shape, dtype):
    x = numbers(*shape, dtype=dtype) + 2
    mean, weight, bias = (numbers(shape[1], dtype=dtype, seed=i) for i in (1, 2, 3))
    axes, along = (0, *range(2, len(shape))), (1, -1, *(1,) * (len(shape) - 2))
    here, m, w, b = (xp.asarray(part, dtype=part.dtype) for part in (x, mean, weight, bias))
    wanted = normed(
        x,
        mean.reshape(along),
        mean.reshape(along) ** 2,
        weight.reshape(along),
        bias.reshape(along),
        0.1,
    )
    close(nn.batch_norm(here, m, xp.square(m), w, b, eps=0.1), wanted, dtype)
    if not x.size:
        return
    close(nn.moments(here)[0], x.mean(axes), dtype)
    close(nn.moments(here)[1], x.var(axes), dtype)
    wanted = normed(
        x, x.mean(axes, keepdims=True), x.var(axes, keepdims=True), None, None, 1e-5
    )
    close(nn.batch_norm(here, *nn.moments(here)), wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shapes", [((4, 3), (4, 3)), ((2, 3, 4, 5), (2, 3, 6, 5)), ((2, 5, 2), (2, 3, 2))]
)
def test_attention(xp, shapes, dtype):
    queries, keys = shapes
    q, k, v = numbers(*queries), numbers(*keys, seed=1), numbers(*keys[:-1], 3, seed=2)
    q, k, v = (part.astype(dtype) for part in (q, k, v))
    given = [xp.asarray(part, dtype=part.dtype) for part in (q, k, v)]
    before = np.tril(np.ones((queries[-2], keys[-2]), bool))
    mask = np.random.default_rng(3).random(before.shape) < 0.6
    mask[1] = False  # a query without keys
    here = xp.asarray(mask, dtype=mask.dtype)
    for got, seen in (
        (nn.attention(*given), np.ones_like(before)),
        (nn.attention(*given, causal=True), before),
        (nn.attention(*given, mask=here), mask),
        (nn.attention(*given, mask=here[:1]), mask[:1] & np.ones_like(before)),
        (nn.attention(*given, mask=here, causal=True), mask & before),
    ):
        close(got, attended(q, k, v, seen), dtype, 1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("indices", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (2, 0)])
def test_embedding(xp, shape, indices, dtype):
    table, places = (
        numbers(5, 3, dtype=dtype),
        np.asarray(np.random.default_rng(0).integers(0, 5, shape), indices),
    )
    close(
        nn.embedding(xp.asarray(places, dtype=indices), xp.asarray(table, dtype=dtype)),
        table[places],
        dtype,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_losses_and_their_reductions(xp, dtype):
    x, y = 3 * numbers(4, 3, dtype=dtype), np.random.default_rng(1).random((4, 3)).astype(dtype)
    x[0] = (0, 200, -200)
    labels = np.asarray([2, 1, 0, 0])
    here, there, classes = (
        xp.asarray(x, dtype=dtype),
        xp.asarray(y, dtype=dtype),
        xp.asarray(labels),
    )
    wide = x.astype("float64")
    for function, given, losses in (
        (nn.cross_entropy, (here, classes), -log_softmax(x)[range(4), labels]),
        (nn.binary_cross_entropy_with_logits, (here, there), np.logaddexp(0, wide) - wide * y),
        (nn.mse_loss, (here, there), (wide - y) ** 2),
    ):
        rtol = 1e-5 if dtype == "float32" else 1e-12
        close(function(*given, reduction="none"), losses, dtype, rtol)
        close(function(*given, reduction="sum"), losses.sum(), dtype, rtol)
        close(function(*given), losses.mean(), dtype, rtol)


CONVOLUTIONS = [
    ((1, 1, 3, 3), (1, 1, 2, 2), 1, 0), ((2, 3, 7, 5), (4, 3, 3, 2), (2, 1), (1, 2)),
    ((3, 2, 6, 6), (5, 2, 1, 1), 3, 0), ((1, 2, 4, 9), (3, 2, 4, 3), 2, (0, 4)), ((0, 3, 7, 5), (4, 3, 3, 2), 1, 1),
    ((2, 1, 8, 8), (6, 1, 5, 5), 1, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_conv2d(xp, case, dtype):
    images, filters, stride, padding = case
    x, kernel, bias = (
        numbers(*images, dtype=dtype),
        numbers(*filters, dtype=dtype),
        numbers(filters[0], dtype=dtype),
    )
    here, k, b = (xp.asarray(part, dtype=part.dtype) for part in (x, kernel, bias))
    pairs = [
        value if isinstance(value, tuple) else (value, value) for value in (stride, padding)
    ]
    for given, added in ((None, None), (b, bias)):
        made = nn.conv2d(here, k, given, stride=stride, padding=padding)
        close(
            made,
            convolved(x, kernel, added, *pairs),
            dtype,
            1e-4 if dtype == "float32" else 1e-11,
        )


POOLS = [
    ((1, 1, 4, 4), 2, None, 0), ((2, 3, 7, 5), (3, 2), (2, 1), (1, 1)), ((2, 1, 7, 7), 2, 3, 1),
    ((0, 2, 4, 4), 2, None, 0),
    ((1, 2, 5, 9), (1, 3), None, (0, 1)), ((3, 1, 3, 3), 3, 1, 1), ((1, 1, 1, 1), 2, None, 1), ((2, 2, 9, 4), 4, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pools(xp, case, dtype):
    images, size, stride, padding = case
    x = numbers(*images, dtype=dtype) - 5  # padding with zeros would be the greatest
    here = xp.asarray(x, dtype=x.dtype)
    pairs = [
        value if isinstance(value, tuple) else (value, value)
        for value in (size, stride or size, padding)
    ]
    made = nn.max_pool2d(here, size, stride=stride, padding=padding)
    close(made, windows(x, *pairs, -np.inf, lambda part: part.max((2, 3))), dtype)
    made = nn.avg_pool2d(here, size, stride=stride, padding=padding)
    close(
        made,
        windows(
            x,
            *pairs,
            0,
            lambda part: part.sum((2, 3)) / part[0, 0].size if part.size else part[..., 0, 0],
        ),
        dtype,
    )


def test_tensors_that_are_not_in_c_order(xp):
    x, kernel = numbers(2, 7, 5, 3, dtype="float32"), numbers(3, 2, 4, 3, dtype="float32")
    here = xp.permute_dims(xp.asarray(x, dtype=x.dtype), (0, 3, 1, 2))
    there = xp.permute_dims(xp.asarray(kernel, dtype=x.dtype), (2, 3, 0, 1))
    x, kernel = x.transpose(0, 3, 1, 2), kernel.transpose(2, 3, 0, 1)
    close(nn.conv2d(here, there), convolved(x, kernel, None, (1, 1), (0, 0)), "float32", 1e-4)
    close(
        nn.max_pool2d(here, 2),
        windows(x, (2, 2), (2, 2), (0, 0), 0, lambda part: part.max((2, 3))),
        "float32",
    )
    close(nn.relu(here), np.where(x > 0, x, 0), "float32")
    close(nn.log_softmax(here, axis=1), log_softmax(x, 1), "float32")
    close(
        nn.cross_entropy(here[:, :, 0, 0], xp.asarray([1, 2])),
        -log_softmax(x[:, :, 0, 0])[[0, 1], [1, 2]].mean(),
        "float32",
    )


def test_results_are_where_the_tensors_are(xp, name):
    places = [place for place in xdevice.backend().devices() if place.kind in ("cpu", "gpu")]
    other = places[-1]
    x, labels, kernel = (
        xdevice.to_device(xp.asarray(value, dtype=dtype), other)
        for value, dtype in (
            (numbers(2, 3), "float32"),
            ([0, 1], "int64"),
            (numbers(1, 1, 2, 2), "float32"),
        )
    )
    images = xp.reshape(x, (1, 1, 2, 3))
    made = [
        nn.relu(x),
        nn.sigmoid(x),
        nn.softmax(x),
        nn.log_softmax(x),
        nn.cross_entropy(x, labels),
        nn.one_hot(labels, 2),
    ]
    made += [
        nn.conv2d(images, kernel),
        nn.max_pool2d(images, 2),
        nn.avg_pool2d(images, 2),
        nn.dropout(x, xp.greater(x, 0.0), 0.5),
        nn.gelu(x),
        nn.layer_norm(x),
        nn.batch_norm(x, *nn.moments(x)),
        nn.attention(
            x, x, x, mask=xp.greater(xp.matmul(x, xp.matrix_transpose(x)), 0.0), causal=True
        ),
        nn.embedding(labels, x),
        nn.mse_loss(x, x),
        nn.binary_cross_entropy_with_logits(x, x),
        nn.cross_entropy(x, labels, reduction="none"),
    ]
    assert {xdevice.device_of(one) for one in made} == {other}
    if len(places) > 1:
        with pytest.raises(
            xdevice.errors.DeviceMismatchError,
            match=r"labels is on .*, but logits is on .*;",
        ):
            nn.cross_entropy(x, xdevice.to_device(labels, places[0]))
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            nn.conv2d(images, xdevice.to_device(kernel, places[0]))


# refusals


def test_what_is_refused_by_name(xp, name):
    ints, floats, images = xp.asarray([1, 2]), xp.asarray([[1.0, 2.0]]), xp.ones((1, 2, 4, 5))
    kernel = xp.ones((3, 2, 2, 2))
    with xdevice.use_backend("torch" if name == "numpy" else "numpy"):
        stranger = xdevice.ones(1, 2)
    wide = xp.astype(kernel, xp.float64)
    refusals = [
        (
            xdevice.errors.DTypeError,
            "relu accepts real floats, not int64",
            lambda: nn.relu(ints),
        ),
        (
            xdevice.errors.DTypeError,
            "softmax accepts real floats, not bool",
            lambda: nn.softmax(xp.asarray([True])),
        ),
        (
            xdevice.errors.DTypeError,
            "conv2d accepts real floats",
            lambda: nn.conv2d(images, xp.astype(kernel, xp.int32)),
        ),
        (
            xdevice.errors.DTypeError,
            "x and kernel have the dtypes float32 and float64",
            lambda: nn.conv2d(images, wide),
        ),
        (
            xdevice.errors.DTypeError,
            "indices of dtype int32 or int64, not float32",
            lambda: nn.cross_entropy(floats, floats),
        ),
        (
            xdevice.errors.DTypeError,
            "indices of dtype int32 or int64, not bool",
            lambda: nn.one_hot(xp.asarray([True]), 2),
        ),
        (
            xdevice.errors.DTypeError,
            "dropout accepts bool",
            lambda: nn.dropout(floats, floats, 0.5),
        ),
        (xdevice.errors.NotATensorError, "relu expects tensors", lambda: nn.relu(1.5)),
        (xdevice.errors.NotATensorError, "relu expects tensors", lambda: nn.relu([1.5])),
        (xdevice.errors.NotATensorError, "^leaky_relu expects", lambda: nn.leaky_relu([1.5])),
        (xdevice.errors.NotATensorError, "^logsumexp expects", lambda: nn.logsumexp("text")),
        (
            xdevice.errors.ShapeError,
            "^logsumexp: an axis must be an int, not None",
            lambda: nn.logsumexp(xdevice.ones(2, 3), axis=None),
        ),
        (
            xdevice.errors.NotATensorError,
            "cross_entropy accepts .* tensors",
            lambda: nn.cross_entropy(floats, [1]),
        ),
        (
            xdevice.errors.ArgumentError,
            "namespace accepts only [a-z]+ tensors, not",
            lambda: nn.dropout(floats, stranger > 0, 0.5),
        ),
        (
            xdevice.errors.ArgumentError,
            "namespace accepts only [a-z]+ tensors, not",
            lambda: nn.conv2d(images, stranger),
        ),
        (
            xdevice.errors.ArgumentError,
            "from 0 to 1",
            lambda: nn.dropout(floats, floats > 0, 1.5),
        ),
        (
            xdevice.errors.ArgumentError,
            "from 0 to 1",
            lambda: nn.dropout(floats, floats > 0, True),
        ),
        (xdevice.errors.ArgumentError, "an int or a pair", lambda: nn.max_pool2d(images, 1.5)),
        (
            xdevice.errors.ArgumentError,
            "an int or a pair",
            lambda: nn.avg_pool2d(images, (1, 2, 3)),
        ),
        (
            xdevice.errors.ArgumentError,
            "stride must be at least 1",
            lambda: nn.conv2d(images, kernel, stride=0),
        ),
        (
            xdevice.errors.ArgumentError,
            "padding must be at least 0",
            lambda: nn.conv2d(images, kernel, padding=(0, -1)),
        ),
        (
            xdevice.errors.ArgumentError,
            "half of the size",
            lambda: nn.max_pool2d(images, 3, padding=2),
        ),
        (xdevice.errors.ArgumentError, "n must be an int", lambda: nn.one_hot(ints, 2.0)),
        (xdevice.errors.ArgumentError, "n must be at least 1", lambda: nn.one_hot(ints, 0)),
        (
            xdevice.errors.ShapeError,
            "axis 2 is out of range",
            lambda: nn.softmax(floats, axis=2),
        ),
        (
            xdevice.errors.ShapeError,
            "axis -1 is out of range",
            lambda: nn.log_softmax(xp.asarray(1.0)),
        ),
        (xdevice.errors.ShapeError, "x must have the shape", lambda: nn.max_pool2d(floats, 2)),
        (
            xdevice.errors.ShapeError,
            "x must have the shape",
            lambda: nn.conv2d(xp.ones((1, 2, 0, 5)), kernel),
        ),
        (
            xdevice.errors.ShapeError,
            "kernel must have the shape",
            lambda: nn.conv2d(images, floats),
        ),
        (
            xdevice.errors.ShapeError,
            "has 2 channels in its shape",
            lambda: nn.conv2d(images, xp.ones((3, 1, 2, 2))),
        ),
        (
            xdevice.errors.ShapeError,
            "the bias must have the shape",
            lambda: nn.conv2d(images, kernel, xp.ones(2)),
        ),
        (
            xdevice.errors.ShapeError,
            "does not fit in",
            lambda: nn.conv2d(images, xp.ones((3, 2, 5, 5))),
        ),
        (xdevice.errors.ShapeError, "does not fit in", lambda: nn.avg_pool2d(images, 6)),
        (
            xdevice.errors.ShapeError,
            "labels of shape",
            lambda: nn.cross_entropy(floats, ints),
        ),
        (
            xdevice.errors.ShapeError,
            "labels of shape",
            lambda: nn.cross_entropy(images, ints),
        ),
        (
            xdevice.errors.ShapeError,
            "at least one row and one class",
            lambda: nn.cross_entropy(xp.ones((0, 2)), ints[:0]),
        ),
        (
            xdevice.errors.ShapeError,
            "the mask must have the shape",
            lambda: nn.dropout(floats, floats[0] > 0, 0.5),
        ),
        (
            IndexError,
            "index 2 is out of range; expected 0 to 1",
            lambda: nn.cross_entropy(floats, xp.asarray([2])),
        ),
        (
            IndexError,
            "index -1 is out of range",
            lambda: nn.cross_entropy(floats, xp.asarray([-1])),
        ),
        (
            IndexError,
            "index -100 is out of range",
            lambda: nn.cross_entropy(floats, xp.asarray([-100])),
        ),
        (
            xdevice.errors.ShapeError,
            "has no elements along that axis",
            lambda: nn.layer_norm(xp.ones(())),
        ),
        (
            xdevice.errors.ShapeError,
            r"weight must have the shape \(2,\), not \(3,\)",
            lambda: nn.layer_norm(floats, xp.ones(3)),
        ),
        (
            xdevice.errors.ArgumentError,
            "eps must be at least 0 and less than 1",
            lambda: nn.layer_norm(floats, eps=-1),
        ),
        (
            xdevice.errors.DTypeError,
            "x and bias have the dtypes",
            lambda: nn.layer_norm(floats, bias=xp.ones(2, dtype=xp.float64)),
        ),
        (
            xdevice.errors.ArgumentError,
            "compute both with nn.moments",
            lambda: nn.batch_norm(floats, None, None),
        ),
        (
            xdevice.errors.ShapeError,
            r"\(batch, channels, ...\)",
            lambda: nn.moments(xp.ones(3)),
        ),
        (
            xdevice.errors.ShapeError,
            "at least one element",
            lambda: nn.moments(xp.ones((0, 3))),
        ),
        (
            xdevice.errors.ShapeError,
            "attention expects q, k and v",
            lambda: nn.attention(floats, floats[:, :1], floats),
        ),
        (
            xdevice.errors.ShapeError,
            "a mask that can be broadcast to",
            lambda: nn.attention(floats, floats, floats, mask=xp.asarray([True] * 5)),
        ),
        (
            xdevice.errors.DTypeError,
            "attention accepts bool",
            lambda: nn.attention(floats, floats, floats, mask=floats),
        ),
        (
            xdevice.errors.ShapeError,
            "a table of shape",
            lambda: nn.embedding(ints, xp.ones(3)),
        ),
        (
            IndexError,
            "embedding: index 2 is out of range",
            lambda: nn.embedding(ints, xp.ones((2, 3))),
        ),
        (
            IndexError,
            "index -1 is out of range",
            lambda: nn.embedding(xp.asarray([-1]), floats),
        ),
        (
            IndexError,
            "index 2 is out of range",
            lambda: nn.cross_entropy(xp.ones((1, 2)), xp.asarray([2]), reduction="sum"),
        ),
        (
            xdevice.errors.ArgumentError,
            "reduction must be",
            lambda: nn.mse_loss(floats, floats, reduction="max"),
        ),
        (
            xdevice.errors.ShapeError,
            "two tensors of the same shape",
            lambda: nn.mse_loss(floats, xp.ones(3)),
        ),
        (
            xdevice.errors.ShapeError,
            "no elements",
            lambda: nn.mse_loss(xp.ones((0,)), xp.ones((0,))),
        ),
        (IndexError, "index 2 is out of range; expected 0 to 1", lambda: nn.one_hot(ints, 2)),
        (IndexError, "index -1 is out of range", lambda: nn.one_hot(xp.asarray([-1]), 2)),
    ]
    for error, message, call in refusals:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    "label", [-(2**63), -(2**31) - 1, -100, -1, 3, 2**31, 2**32 + 1, 2**40, 2**63 - 1]
)
def test_a_label_that_is_no_class_is_refused_whoever_looks(xp, label):
    labels = xp.asarray([0, label, 2], dtype=xp.int64)
    for call in (
        lambda: nn.cross_entropy(xp.ones((3, 3)), labels),
        lambda: nn.embedding(labels, xp.ones((3, 2))),
    ):
        with pytest.raises(IndexError, match=f"index {label} is out of range; expected 0 to 2"):
            call()


def test_labels_are_read_by_the_host_only_where_no_kernel_guards_them(xp, name):
    x, labels = xp.ones((2, 3)), xp.asarray([0, 2])
    with xdevice.transfers() as seen:
        nn.cross_entropy(x, labels)
        nn.cross_entropy(x, labels, reduction="none")
        nn.embedding(labels, xp.ones((3, 2)))
        nn.one_hot(labels, 3)
    assert len(seen) == (4 if name in ("mxnet", "paddle") else 0)


def test_variables_and_numbers_of_numpy_are_tensors(xp, name):
    if name == "tensorflow":
        import tensorflow as tf

        close(nn.relu(tf.Variable([-1.0, 2.0])), np.asarray([0.0, 2.0]), "float32")
    if name == "numpy":
        close(nn.relu(np.float32(2.5)), np.asarray(2.5), "float32")


def test_16_bit_floats_where_the_framework_has_them(name):
    if name not in ("torch", "tensorflow", "jax", "numpy"):
        pytest.skip(f"{name} has no kernels of them on the CPU")
    with xdevice.use_backend(name):
        x = numbers(2, 3, 4, 4)
        for dtype in ("float16", "bfloat16"):
            here, kernel = (
                xdevice.tensor(part, dtype=dtype) for part in (x, numbers(2, 3, 2, 2))
            )
            for made in (
                nn.relu(here),
                nn.softmax(here),
                nn.conv2d(here, kernel),
                nn.avg_pool2d(here, 2),
            ):
                assert xdevice.to_numpy(made).dtype == dtype
            loss = nn.cross_entropy(here[:, :, 0, 0], xdevice.tensor([0, 2]))
            wanted = -log_softmax(x[:, :, 0, 0])[[0, 1], [0, 2]].mean()
            assert abs(float(xdevice.to_numpy(loss)) - wanted) < 0.02
