"""A small residual network with Gluon."""

from __future__ import annotations

from functools import partial

from mxnet import autograd, gluon, init, np, npx, random
from mxnet.gluon import nn
from mxnet.util import use_np

from . import CLASSES, MOMENTUM


@use_np
class Layers(nn.HybridSequential):
    """A sequence of layers that works on `mx.np` arrays, in every thread."""


def sequence(*layers):
    made = Layers()
    made.add(*layers)
    return made


def convolution(outputs, batch_norm, *, kernel=3, stride=1):
    layer = nn.Conv2D(outputs, kernel, stride, padding=kernel // 2)
    return sequence(layer, nn.BatchNorm()) if batch_norm else layer


@use_np
class Residual(nn.HybridBlock):
    def __init__(self, inputs, outputs, batch_norm, stride=1):
        super().__init__()
        self.silu = nn.Swish()
        self.first = convolution(outputs, batch_norm, stride=stride)
        self.second = convolution(outputs, batch_norm)
        changes = (inputs, 1) != (outputs, stride)
        self.shortcut = (
            convolution(outputs, batch_norm, kernel=1, stride=stride) if changes else None
        )

    def hybrid_forward(self, F, x):  # noqa: N803  # Gluon's own name
        h = self.second(self.silu(self.first(x)))
        return self.silu(h + (x if self.shortcut is None else self.shortcut(x)))


@use_np
def build(size, width, batch_norm, rate):
    random.seed(0)
    model = sequence(
        convolution(16 * width, batch_norm),
        nn.Swish(),
        Residual(16 * width, 16 * width, batch_norm),
        Residual(16 * width, 32 * width, batch_norm, stride=2),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dense(CLASSES),
    )
    model.initialize(init.Xavier())
    model(np.zeros((1, 1, size, size)))  # the first call creates the parameters
    return model, partial(Replica, rate=rate)


class Replica:
    @use_np
    def __init__(self, model, rate):
        self.model = model
        self.trained = [p for p in model.collect_params().values() if p.grad_req != "null"]
        options = {"learning_rate": rate, "momentum": MOMENTUM}
        self.trainer = gluon.Trainer(self.trained, "sgd", options, kvstore=None)

    @property
    def parameters(self):
        return [parameter.data() for parameter in self.trained]

    @use_np
    def loss_and_gradients(self, x, y, examples):
        with autograd.record():
            loss = -npx.pick(npx.log_softmax(self.model(x)), y).sum()
            mean = loss / examples
        mean.backward()
        return loss.detach(), [parameter.grad() for parameter in self.trained]

    @use_np
    def update(self, gradients):
        """Takes a step. `gradients` are the parameters' own gradient arrays, which `all_reduce`
        has updated in place."""
        self.trainer.step(1)

    @use_np
    def predict(self, x):
        return self.model(x)
