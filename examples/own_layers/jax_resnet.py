"""A small residual network with `jax.example_libraries`, the layers and optimizers that come
with JAX.

A model is a container of its parameters. Its batch normalization keeps no running statistics,
but uses those of the batch, even for predictions.
"""

from __future__ import annotations

from functools import partial
from itertools import count

import jax
from jax import numpy as jnp
from jax.example_libraries import optimizers, stax

from . import CLASSES, MOMENTUM

silu = stax.elementwise(jax.nn.silu)


def convolution(outputs, batch_norm, *, kernel=3, stride=1):
    layer = stax.Conv(outputs, (kernel, kernel), (stride, stride), padding="SAME")
    return stax.serial(layer, stax.BatchNorm()) if batch_norm else layer


def residual(inputs, outputs, batch_norm, stride=1):
    branch = stax.serial(
        convolution(outputs, batch_norm, stride=stride), silu, convolution(outputs, batch_norm)
    )
    changes = (inputs, 1) != (outputs, stride)
    shortcut = (
        convolution(outputs, batch_norm, kernel=1, stride=stride) if changes else stax.Identity
    )
    return stax.serial(stax.FanOut(2), stax.parallel(branch, shortcut), stax.FanInSum, silu)


def build(size, width, batch_norm, rate):
    side = -(-size // 2)
    initialize, apply = stax.serial(
        convolution(16 * width, batch_norm),
        silu,
        residual(16 * width, 16 * width, batch_norm),
        residual(16 * width, 32 * width, batch_norm, stride=2),
        stax.AvgPool((side, side)),
        stax.Flatten,
        stax.Dense(CLASSES),
    )
    with jax.default_device(jax.devices("cpu")[0]):
        _, parameters = initialize(jax.random.key(0), (-1, size, size, 1))
    return parameters, partial(Replica, Functions(apply, rate))


class Functions:
    """Functions that all replicas share, so that each is compiled once for each device, not for
    each replica."""

    def __init__(self, apply, rate):
        self.initialize, update, self.model = optimizers.momentum(rate, MOMENTUM)
        self.update = jax.jit(update)
        self.predict = jax.jit(lambda parameters, x: apply(parameters, jnp.moveaxis(x, 1, -1)))

        def loss(parameters, x, y, examples):
            scores = jax.nn.log_softmax(self.predict(parameters, x))
            total = -jnp.take_along_axis(scores, y[:, None], axis=1).sum()
            return total / examples, total

        self.gradients = jax.jit(jax.grad(loss, has_aux=True))


class Replica:
    def __init__(self, functions, model):
        self.functions = functions
        self.state = functions.initialize(model)
        self.steps = count()

    @property
    def parameters(self):
        return jax.tree.leaves(self._model())

    def _model(self):
        return self.functions.model(self.state)

    def loss_and_gradients(self, x, y, examples):
        gradients, loss = self.functions.gradients(self._model(), x, y, examples)
        return loss, gradients

    def update(self, gradients):
        self.state = self.functions.update(next(self.steps), gradients, self.state)

    def predict(self, x):
        return self.functions.predict(self._model(), x)
