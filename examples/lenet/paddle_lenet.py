"""LeNet from scratch on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle.nn import functional


def lenet(parameters, x):
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h = functional.avg_pool2d(functional.tanh(functional.conv2d(x, w1, b1, padding=1)), 2)
    h = functional.avg_pool2d(functional.tanh(functional.conv2d(h, w2, b2, padding=2)), 2)
    h = functional.tanh(h.flatten(1) @ w3 + b3)
    return h @ w4 + b4


def loss_and_gradients(parameters, x, y):
    loss = functional.cross_entropy(lenet(parameters, x), y, reduction="sum")
    return loss.detach(), paddle.grad(loss, parameters)


@paddle.no_grad()
def update(parameters, gradients, rate):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.subtract_(gradient * rate)
    return parameters


@paddle.no_grad()
def predict(parameters, x):
    return lenet(parameters, x)
