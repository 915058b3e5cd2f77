"""A small residual network with `paddle.nn`."""

from __future__ import annotations

from functools import partial

import paddle
from paddle import nn
from paddle.nn import functional

from . import CLASSES, MOMENTUM


def convolution(inputs, outputs, batch_norm, *, kernel=3, stride=1):
    layer = nn.Conv2D(inputs, outputs, kernel, stride, padding=kernel // 2)
    return nn.Sequential(layer, nn.BatchNorm2D(outputs)) if batch_norm else layer


class Residual(nn.Layer):
    def __init__(self, inputs, outputs, batch_norm, stride=1):
        super().__init__()
        self.first = convolution(inputs, outputs, batch_norm, stride=stride)
        self.second = convolution(outputs, outputs, batch_norm)
        changes = (inputs, 1) != (outputs, stride)
        self.shortcut = (
            convolution(inputs, outputs, batch_norm, kernel=1, stride=stride)
            if changes
            else nn.Identity()
        )

    def forward(self, x):
        return functional.silu(self.second(functional.silu(self.first(x))) + self.shortcut(x))


def build(size, width, batch_norm, rate):
    paddle.seed(0)
    model = nn.Sequential(
        convolution(1, 16 * width, batch_norm),
        nn.Silu(),
        Residual(16 * width, 16 * width, batch_norm),
        Residual(16 * width, 32 * width, batch_norm, stride=2),
        nn.AdaptiveAvgPool2D(1),
        nn.Flatten(),
        nn.Linear(32 * width, CLASSES),
    )
    return model, partial(Replica, rate=rate)


class Replica:
    def __init__(self, model, rate):
        self.model = model
        # in Paddle, parameters() also returns the running statistics, which are not trained
        self.parameters = [
            parameter for parameter in model.parameters() if not parameter.stop_gradient
        ]
        self.optimizer = paddle.optimizer.Momentum(rate, MOMENTUM, parameters=self.parameters)

    def loss_and_gradients(self, x, y, examples):
        self.model.train()
        self.optimizer.clear_grad(set_to_zero=False)
        loss = functional.cross_entropy(self.model(x), y, reduction="sum")
        (loss / examples).backward()
        return loss.detach(), [parameter.grad for parameter in self.parameters]

    def update(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @paddle.no_grad()
    def predict(self, x):
        self.model.eval()
        return self.model(x)
