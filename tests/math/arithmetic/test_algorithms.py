"""Algorithms as SciPy and scikit-learn have them, written once with the namespace: float64 on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import SHIMS, sampled, with_64_bit

import xdevice

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(2.0, 3.0, size=(12, 5)), DRAW.normal(size=(4, 5))


@pytest.fixture(
    params=sampled(xdevice.backends(), each_time=("numpy", "torch"), slow=SHIMS, others="long")
)
def xp(request):
    """The namespace of a backend, with 64 bits in JAX."""
    with xdevice.use_backend(request.param), with_64_bit(request.param):
        yield xdevice.array_namespace()


def softmax(xp, x):
    e = xp.exp(xp.subtract(x, xp.max(x, axis=1, keepdims=True)))
    return xp.divide(e, xp.sum(e, axis=1, keepdims=True))


def logsumexp(xp, x):
    top = xp.max(x, axis=1, keepdims=True)
    return xp.add(xp.squeeze(top, axis=1), xp.log(xp.sum(xp.exp(xp.subtract(x, top)), axis=1)))


def standardized(xp, x):
    return xp.divide(xp.subtract(x, xp.mean(x, axis=0)), xp.std(x, axis=0))


def first_component(xp, x):
    """The eigenvector of the covariance with the greatest eigenvalue, by power iteration."""
    centred = xp.subtract(x, xp.mean(x, axis=0))
    covariance = xp.divide(xp.matmul(xp.matrix_transpose(centred), centred), x.shape[0] - 1)
    v = xp.ones(x.shape[1], dtype=xp.float64)
    for _ in range(300):
        v = xp.matmul(covariance, v)
        v = xp.divide(v, xp.sqrt(xp.vecdot(v, v)))
    return v


def squared_distances(xp, x, y):
    parts = xp.expand_dims(xp.sum(xp.square(x), axis=1), axis=1), xp.sum(xp.square(y), axis=1)
    products = xp.matmul(x, xp.matrix_transpose(y))
    return xp.maximum(xp.subtract(xp.add(*parts), xp.multiply(products, 2)), 0)


def r2_score(xp, x):
    truth, guess = xp.take(x, xp.asarray([0]), axis=1), xp.take(x, xp.asarray([-1]), axis=1)
    off = xp.sum(xp.square(xp.subtract(truth, guess)))
    return xp.subtract(1, xp.divide(off, xp.sum(xp.square(xp.subtract(truth, xp.mean(truth))))))


def entropy(xp, x):
    p = softmax(xp, x)
    safe = xp.where(xp.greater(p, 0.0), p, 1.0)
    return xp.negative(xp.sum(xp.multiply(p, xp.log(safe)), axis=1))


def kmeans_step(xp, x, centres):
    labels = xp.argmin(squared_distances(xp, x, centres), axis=1)
    members = xp.equal(xp.expand_dims(labels, axis=1), xp.arange(centres.shape[0]))
    weights = xp.astype(members, xp.float64)
    counts = xp.expand_dims(xp.sum(weights, axis=0), axis=1)
    means = xp.divide(xp.matmul(xp.matrix_transpose(weights), x), xp.maximum(counts, 1))
    return xp.where(xp.greater(counts, 0), means, centres)


def by_numpy():
    """What each gives, by formulas of NumPy's own."""
    e = np.exp(X - X.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    vector = np.linalg.eigh(np.cov(X.T))[1][:, -1]
    apart = ((X[:, None] - Y) ** 2).sum(-1)
    labels = apart.argmin(1)
    centres = [X[labels == k].mean(0) if (labels == k).any() else Y[k] for k in range(len(Y))]
    return {
        softmax: p,
        logsumexp: np.log(np.exp(X).sum(1)),
        standardized: (X - X.mean(0)) / X.std(0),
        first_component: vector * np.sign(vector.sum()),
        squared_distances: apart,
        r2_score: 1
        - ((X[:, 0] - X[:, -1]) ** 2).sum() / ((X[:, 0] - X[:, 0].mean()) ** 2).sum(),
        entropy: -(p * np.log(p)).sum(1),
        kmeans_step: np.stack(centres),
    }


def test_each_gives_what_numpy_gives(xp):
    x, y = xp.asarray(X, dtype=xp.float64), xp.asarray(Y, dtype=xp.float64)
    for algorithm, wanted in by_numpy().items():
        found = (
            algorithm(xp, x, y)
            if algorithm in (squared_distances, kmeans_step)
            else algorithm(xp, x)
        )
        values = xdevice.to_numpy(found)
        if algorithm is first_component:
            values = values * np.sign(values.sum())
        assert values.dtype == "float64"
        assert values.shape == wanted.shape
        np.testing.assert_allclose(
            values, wanted, rtol=1e-11, atol=1e-12, err_msg=algorithm.__name__
        )
