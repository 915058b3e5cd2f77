"""One small net in each framework, and an optimizer of each kind for it.

The kernel of its convolution lies otherwise in Keras, the weight of its linear layer in Paddle and Keras.
"""

from __future__ import annotations

import numpy as np

import xdevice

_RNG = np.random.default_rng(1)
IMAGES = _RNG.normal(size=(10, 8, 3, 5, 5)).astype("float32")
WANTED = _RNG.normal(size=(10, 8, 2)).astype("float32")
EPS = 1e-12  # where eps enters differs by framework: docs/reference/optimizers.md

KINDS = {
    "momentum": {
        "torch": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
        "paddle": ("Momentum", {"learning_rate": 0.1, "momentum": 0.9}),
        "mxnet": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        "tensorflow": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    },
    "adam": {
        "torch": ("Adam", {"lr": 0.01, "eps": EPS}),
        "paddle": ("Adam", {"learning_rate": 0.01, "epsilon": EPS}),
        "mxnet": ("adam", {"learning_rate": 0.01, "epsilon": EPS}),
        "tensorflow": ("Adam", {"learning_rate": 0.01, "epsilon": EPS}),
    },
    "rmsprop": {
        "torch": ("RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": EPS, "momentum": 0.9, "centered": True}),
        "paddle": (
            "RMSProp", {"learning_rate": 0.01, "rho": 0.9, "epsilon": EPS, "momentum": 0.9, "centered": True},
        ),
        "mxnet": ("rmsprop", {"learning_rate": 0.01, "gamma1": 0.9, "gamma2": 0.9, "epsilon": EPS, "centered": True}),
        "tensorflow": (
            "RMSprop", {"learning_rate": 0.01, "rho": 0.9, "epsilon": EPS, "momentum": 0.9, "centered": True},
        ),
    },
    "adagrad": {
        "torch": ("Adagrad", {"lr": 0.01, "eps": EPS}),
        "paddle": ("Adagrad", {"learning_rate": 0.01, "epsilon": EPS}),
        "mxnet": ("adagrad", {"learning_rate": 0.01, "eps": EPS}),
        "tensorflow": ("Adagrad", {"learning_rate": 0.01, "epsilon": EPS, "initial_accumulator_value": 0.0}),
    },
}  # fmt: skip


def made(backend, kind, **changed):
    """A net, its optimizer, and a step on a batch."""
    name, settings = KINDS[kind][backend]
    return _MAKERS[backend](name, settings | changed)


def _torch(name, settings):
    import torch

    torch.manual_seed(0)
    conv, fc = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = conv, fc

        def forward(self, x):
            return self.fc(self.conv(x).relu().mean((2, 3)))

    net = Net()
    optimizer = getattr(torch.optim, name)(net.parameters(), **settings)

    def step(x, y):
        optimizer.zero_grad()
        (net(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
        optimizer.step()

    return net, optimizer, step


def _paddle(name, settings):
    paddle = xdevice.backend("paddle").framework
    conv, fc = paddle.nn.Conv2D(3, 4, 3), paddle.nn.Linear(4, 2)

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = conv, fc

        def forward(self, x):
            return self.fc(paddle.nn.functional.relu(self.conv(x)).mean([2, 3]))

    net = Net()
    optimizer = getattr(paddle.optimizer, name)(parameters=net.parameters(), **settings)

    def step(x, y):
        (net(paddle.to_tensor(x)) - paddle.to_tensor(y)).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    return net, optimizer, step


def _mxnet(name, settings):
    mx = xdevice.backend("mxnet").framework
    tensor = mx.util.use_np(mx.np.array)

    @mx.util.use_np
    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = (
                mx.gluon.nn.Conv2D(4, 3, in_channels=3),
                mx.gluon.nn.Dense(2, in_units=4),
            )

        def forward(self, x):
            return self.fc(mx.npx.relu(self.conv(x)).mean(axis=(2, 3)))

    @mx.util.use_np
    def step(x, y):
        with mx.autograd.record():
            loss = ((net(tensor(x)) - tensor(y)) ** 2).mean()
        loss.backward()
        trainer.step(1)

    @mx.util.use_np
    def built():
        net = Net()
        net.initialize()
        return net, mx.gluon.Trainer(net.collect_params(), name, settings)

    net, trainer = built()
    return net, trainer, step


def _tensorflow(name, settings):
    import keras
    import tensorflow as tf

    images = keras.Input((5, 5, 3))
    x = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(images)
    x = keras.layers.Dense(2, name="fc")(keras.layers.GlobalAveragePooling2D()(x))
    net = keras.Model(images, x)
    optimizer = getattr(keras.optimizers, name)(**settings)
    optimizer.build(net.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(np.moveaxis(x, 1, -1)) - y) ** 2)
        optimizer.apply(tape.gradient(loss, net.trainable_variables))

    return net, optimizer, step


_MAKERS = {"torch": _torch, "paddle": _paddle, "mxnet": _mxnet, "tensorflow": _tensorflow}


def handed_on(source, target, kind, **options):
    """The nets after 10 steps in one framework, and after 5 there and 5 in another."""
    net, optimizer, step = made(source, kind)
    other, its, go_on = made(target, kind)
    for x, y in zip(IMAGES[:5], WANTED[:5], strict=True):
        step(x, y)
    state = xdevice.models.convert_state(net, target, like=other)
    xdevice.load(state, into=other)
    xdevice.models.convert_optimizer(optimizer, its, state, models=(net, other), **options)
    for x, y in zip(IMAGES[5:], WANTED[5:], strict=True):
        step(x, y)
        go_on(x, y)
    return net, other


def furthest(net, other, target):
    """How far the weights of two nets are apart."""
    there = dict(xdevice.backend(target).variables(other))
    state = xdevice.models.convert_state(net, target, like=other)
    return max(
        float(np.abs(xdevice.to_numpy(there[name]) - xdevice.to_numpy(x)).max())
        for name, x in state.items()
    )
