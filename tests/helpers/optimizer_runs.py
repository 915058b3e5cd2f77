"""Optimizers of the frameworks, run on 16 numbers with given gradients, and their formulas in float64."""

from __future__ import annotations

import numpy as np

import xdevice
from xdevice.twins.contract import optimizers as terms

STEPS, NUMBERS = 10, 16
_RNG = np.random.default_rng(0)
WEIGHTS = _RNG.uniform(-1, 1, NUMBERS).astype("float32")
GRADIENTS = (
    _RNG.choice([-1, 1], (STEPS, NUMBERS)) * 10.0 ** _RNG.uniform(-4, 0, (STEPS, NUMBERS))
).astype("float32")


def made(backend, name, values=WEIGHTS, **settings):
    """An optimizer for one parameter of these values, the parameter's weights, and a step with a gradient."""
    return _MAKERS[backend](name, values, settings)


def run(backend, name, steps=STEPS, **settings):
    """The optimizer, as it was before its steps, and the weights after them."""
    optimizer, weights, step = made(backend, name, **settings)
    read = xdevice.backend(backend).optimizer(optimizer)
    for gradient in GRADIENTS[:steps]:
        step(gradient)
    return read, np.array(weights(), "float64")


def _torch(name, values, settings):
    import torch

    p = torch.nn.Parameter(torch.tensor(values))
    optimizer = getattr(torch.optim, name)([p], **settings)

    def step(gradient):
        p.grad = torch.tensor(gradient)
        optimizer.step()

    return optimizer, lambda: p.detach().numpy(), step


def _paddle(name, values, settings):
    paddle = xdevice.backend("paddle").framework
    p = paddle.create_parameter([len(values)], "float32")
    p.set_value(values)
    optimizer = getattr(paddle.optimizer, name)(parameters=[p], **settings)

    def step(gradient):
        (p * paddle.to_tensor(gradient)).sum().backward()
        optimizer.step()
        optimizer.clear_grad()

    return optimizer, p.numpy, step


def _mxnet(name, values, settings):
    mx = xdevice.backend("mxnet").framework
    p = mx.gluon.Parameter("weight", shape=(len(values),))
    p.initialize()
    p.set_data(_array(mx, values))
    trainer = mx.gluon.Trainer([p], name, settings)

    def step(gradient):
        with mx.autograd.record():
            loss = (p.data() * _array(mx, gradient)).sum()
        loss.backward()
        trainer.step(1)

    return trainer, lambda: p.data().asnumpy(), step


def _array(mx, values):
    return mx.np.array(
        values
    ).as_nd_ndarray()  # mx.nd.array() asks SciPy for what it has retired


def _tensorflow(name, values, settings):
    import keras

    variable = keras.Variable(values)
    optimizer = getattr(keras.optimizers, name)(**settings)
    optimizer.build([variable])
    return optimizer, variable.numpy, lambda gradient: optimizer.apply([gradient])


_MAKERS = {"torch": _torch, "paddle": _paddle, "mxnet": _mxnet, "tensorflow": _tensorflow}


def formula(kind, settings, weights=WEIGHTS, gradients=GRADIENTS):
    """The weights after these gradients, as `xdevice.twins.contract.optimizers` says they are."""
    s, w = settings, weights.astype("float64")
    rule = _RULES[kind](s)
    for t, gradient in enumerate(gradients.astype("float64"), start=1):
        g = gradient * s["gradient_scale"] * (-1 if s["maximize"] else 1)
        limit, together = _limit(s["clip"])
        g = g if together else np.clip(g, -limit, limit)
        if s["decay"] in (terms.COUPLED, terms.BEHIND):
            g = g + s["weight_decay"] * w
        elif s["decay"] == terms.SIGN:
            g = g + s["weight_decay"] * np.sign(w)
        g = np.clip(g, -limit, limit) if together else g
        decayed = w * (1 - s["lr"] * s["weight_decay"]) if s["decay"] == terms.DECOUPLED else w
        w = decayed - rule(t, g, w)
    return w


def _limit(clip):
    """The value that gradients are clipped to, and whether that is done with the decay."""
    if clip is None:
        return np.inf, False
    words = clip.removeprefix("to values from ").split(",")
    return float(words[0].split(" to ")[1]), len(words) > 1


def _sgd(s):
    lr, mu = s["lr"], s["momentum"]
    held = 0.0

    def rule(t, g, w):
        nonlocal held
        held = mu * held + (1 - s["dampening"] if t > 1 else 1) * g
        move = lr * (g + mu * held if s["nesterov"] else held)
        if s["decay"] == terms.BEHIND:
            held = held - s["weight_decay"] * move
        return move

    return rule


def _adam(s):
    b1, b2 = s["beta1"], s["beta2"]
    m = v = most = 0.0

    def rule(t, g, w):
        nonlocal m, v, most
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        most = np.maximum(most, v)
        squares = most if s["amsgrad"] else v
        root = np.sqrt(1 - b2**t)
        below = np.sqrt(squares) + s["eps"] * (
            1 if s["eps_enters"] == terms.UNCORRECTED else root
        )
        return s["lr"] * m / (1 - b1**t) * root / below

    return rule


def _below(s, squares):
    inside = s["eps_enters"] == terms.INSIDE
    return np.sqrt(squares + s["eps"]) if inside else np.sqrt(squares) + s["eps"]


def _rmsprop(s):
    a = s["alpha"]
    v = mean = held = 0.0

    def rule(t, g, w):
        nonlocal v, mean, held
        v, mean = a * v + (1 - a) * g * g, a * mean + (1 - a) * g
        held = s["momentum"] * held + g / _below(s, v - mean**2 if s["centered"] else v)
        return s["lr"] * held

    return rule


def _adagrad(s):
    h = s["initial_accumulator_value"]

    def rule(t, g, w):
        nonlocal h
        h = h + g * g
        return s["lr"] / (1 + (t - 1) * s["lr_decay"]) * g / _below(s, h)

    return rule


_RULES = {"sgd": _sgd, "adam": _adam, "rmsprop": _rmsprop, "adagrad": _adagrad}
