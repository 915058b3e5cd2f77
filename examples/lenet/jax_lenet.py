"""LeNet from scratch on JAX. Its arrays cannot be written into, so `update` makes new ones."""

from __future__ import annotations

import jax
from jax import lax
from jax import numpy as jnp


def pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4


def lenet(parameters, x):
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h = x
    for w, b in ((w1, b1), (w2, b2)):
        h = pool(jnp.tanh(lax.conv(h, w, (1, 1), "SAME") + b[:, None, None]))
    h = jnp.tanh(h.reshape(h.shape[0], -1) @ w3 + b3)
    return h @ w4 + b4


@jax.jit
@jax.value_and_grad
def loss_and_gradients(parameters, x, y):
    scores = jax.nn.log_softmax(lenet(parameters, x))
    return -jnp.take_along_axis(scores, y[:, None], axis=1).sum()


@jax.jit
def update(parameters, gradients, rate):
    return [parameter - rate * gradient for parameter, gradient in zip(parameters, gradients, strict=True)]


predict = jax.jit(lenet)
