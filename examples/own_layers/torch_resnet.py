"""A small residual network with `torch.nn`."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from . import CLASSES, MOMENTUM


def convolution(inputs, outputs, batch_norm, *, kernel=3, stride=1):
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)]
    return nn.Sequential(*layers, nn.BatchNorm2d(outputs)) if batch_norm else layers[0]


class Residual(nn.Module):
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
    torch.manual_seed(0)
    model = nn.Sequential(
        convolution(1, 16 * width, batch_norm),
        nn.SiLU(),
        Residual(16 * width, 16 * width, batch_norm),
        Residual(16 * width, 32 * width, batch_norm, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32 * width, CLASSES),
    )
    return model, partial(Replica, rate=rate)


class Replica:
    def __init__(self, model, rate):
        self.model = model
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=rate, momentum=MOMENTUM)

    def loss_and_gradients(self, x, y, examples):
        self.model.train()
        loss = functional.cross_entropy(self.model(x), y, reduction="sum")
        return loss.detach(), list(torch.autograd.grad(loss / examples, self.parameters))

    def update(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @torch.no_grad()
    def predict(self, x):
        return self.model.eval()(x)
