"""What one text costs: a training step of the chapter, neutral and as each framework is used directly, interleaved.

    python benchmarks/chapters.py [backend ...]

Both train a perceptron of two layers with relu on one device, eagerly, by gradient descent: `value_and_grad` and
`update` on one side, the framework's own gradients and its own update in place on the other. Printed are microseconds
of a step, the best of many rounds, and their ratio.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import xdevice
from xdevice import nn

RATE = 0.01
SIZES = ((64, 128, 10, 256), (256, 512, 10, 1024))
"""Inputs, units, classes, batch."""
ROUNDS, STEPS = 40, 10

Step = Callable[[Any, Any], object]
"""A step on images and labels; it keeps its parameters."""


def neutral(values: list[Any]) -> Step:
    parameters = [xdevice.tensor(value) for value in values]

    def loss(parameters: list[Any], x: Any, y: Any) -> Any:
        xp = xdevice.array_namespace(x)
        w1, b1, w2, b2 = parameters
        return nn.cross_entropy(xp.add(xp.matmul(nn.relu(xp.add(xp.matmul(x, w1), b1)), w2), b2), y)

    gradients = xdevice.value_and_grad(loss)

    def step(x: Any, y: Any) -> object:
        nonlocal parameters
        value, grads = gradients(parameters, x, y)
        parameters = xdevice.update(parameters, grads, lambda p, g: p - RATE * g)
        return value, parameters

    return step


# as each framework is used directly


def torch(values: list[Any]) -> Step:
    from torch import no_grad, tensor
    from torch.nn import functional

    parameters = [tensor(value, requires_grad=True) for value in values]
    w1, b1, w2, b2 = parameters

    def step(x: Any, y: Any) -> object:
        loss = functional.cross_entropy(functional.relu(x @ w1 + b1) @ w2 + b2, y)
        loss.backward()
        with no_grad():
            for p in parameters:
                p -= RATE * p.grad
                p.grad = None
        return loss

    return step


def tensorflow(values: list[Any]) -> Step:
    import tensorflow as tf

    parameters = [tf.Variable(value) for value in values]
    w1, b1, w2, b2 = parameters

    def step(x: Any, y: Any) -> object:
        with tf.GradientTape() as tape:
            scores = tf.nn.relu(x @ w1 + b1) @ w2 + b2
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        for p, grad in zip(parameters, tape.gradient(loss, parameters), strict=True):
            p.assign_sub(RATE * grad)
        return loss

    return step


def paddle(values: list[Any]) -> Step:
    from paddle import no_grad, to_tensor
    from paddle.nn import functional

    parameters = [to_tensor(value, stop_gradient=False) for value in values]
    w1, b1, w2, b2 = parameters

    def step(x: Any, y: Any) -> object:
        loss = functional.cross_entropy(functional.relu(x @ w1 + b1) @ w2 + b2, y)
        loss.backward()
        with no_grad():
            for p in parameters:
                p.subtract_(RATE * p.grad)
                p.clear_gradient()
        return loss

    return step


def mxnet(values: list[Any]) -> Step:
    from mxnet import autograd, np, npx

    parameters = [np.array(value) for value in values]
    for p in parameters:
        p.attach_grad()
    w1, b1, w2, b2 = parameters

    def step(x: Any, y: Any) -> object:
        with autograd.record():
            scores = npx.log_softmax(np.dot(npx.relu(np.dot(x, w1) + b1), w2) + b2)
            loss = -npx.pick(scores, y).mean()
        loss.backward()
        for p in parameters:
            p -= RATE * p.grad
        return loss

    return step


def jax(values: list[Any]) -> Step:
    from jax import nn as layers
    from jax import numpy as jnp
    from jax import value_and_grad

    parameters = [jnp.asarray(value) for value in values]

    def loss(parameters: list[Any], x: Any, y: Any) -> Any:
        w1, b1, w2, b2 = parameters
        scores = layers.log_softmax(layers.relu(x @ w1 + b1) @ w2 + b2)
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    gradients = value_and_grad(loss)

    def step(x: Any, y: Any) -> object:
        nonlocal parameters
        value, grads = gradients(parameters, x, y)
        parameters = [p - RATE * g for p, g in zip(parameters, grads, strict=True)]
        return value, parameters

    return step


NATIVE = {"torch": torch, "tensorflow": tensorflow, "paddle": paddle, "mxnet": mxnet, "jax": jax}


def microseconds(step: Step, x: Any, y: Any) -> float:
    xdevice.sync()
    start = time.perf_counter()
    for _ in range(STEPS):
        made = step(x, y)
    xdevice.sync(made)
    return (time.perf_counter() - start) / STEPS * 1e6


def measure(name: str, size: tuple[int, ...]) -> tuple[float, float]:
    """A step of the framework and of ours, the best round of each."""
    inputs, units, classes, batch = size
    with xdevice.random.seed(0):
        shapes = ((inputs, units), (units,), (units, classes), (classes,))
        values = [xdevice.to_numpy(xdevice.random.normal(*shape, scale=inputs**-0.5)) for shape in shapes]
        x, y = xdevice.random.normal(batch, inputs), xdevice.random.integers(batch, high=classes)
    steps = NATIVE[name](values), neutral(values)
    rounds = [[microseconds(step, x, y) for step in steps] for _ in range(ROUNDS)]
    native, ours = (min(times) for times in zip(*rounds, strict=True))
    return native, ours


def main() -> None:
    print(f"{'':12}" + "".join(f"{f'{units} units, batch {batch}':>30}" for _, units, _, batch in SIZES))
    for name in sys.argv[1:] or [name for name in xdevice.backends() if name in NATIVE]:
        with xdevice.use(name):
            cells = [measure(name, size) for size in SIZES]
            row = "".join(f"{native:>12.0f}{ours:>10.0f} ({ours / native:.2f})" for native, ours in cells)
            print(f"{name:12}{row}", flush=True)


if __name__ == "__main__":
    main()
