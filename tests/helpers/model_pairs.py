"""For tests that run one model in two frameworks: random weights, outputs as arrays, and the way between."""

from __future__ import annotations

import warnings

import numpy as np

import xdevice
from xdevice.twins.contract import layouts

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 7, 7)).astype("float32")
SEQUENCE = np.random.default_rng(1).normal(size=(2, 5, 4)).astype("float32")
VECTORS = np.random.default_rng(2).normal(size=(3, 4)).astype("float32")


def randomised(name, model, seed=0):
    """Every variable random, and none like another; running variances positive."""
    backend, rng, done = xdevice.backend(name), np.random.default_rng(seed), set()
    for variable_name, variable in backend.variables(model):
        if id(variable) in done or variable_name.endswith(layouts.COUNTER):
            continue
        done.add(id(variable))
        value = rng.uniform(0.3, 0.9, tuple(variable.shape)).astype("float32")
        value *= (
            1 if "var" in variable_name else rng.choice([-1, 1], value.shape).astype("float32")
        )
        backend.write(variable, backend.from_numpy(value, xdevice.cpu()))
    return model


def outputs(name, model, x):
    """Of the model in eval mode; the channels of an image come second."""
    if name == "torch":
        import torch

        with torch.no_grad():
            y = model.eval()(torch.tensor(x))
    elif name == "paddle":
        import paddle

        model.eval()
        y = model(paddle.to_tensor(x))
    elif name == "mxnet":
        x = xdevice.backend("mxnet").from_numpy(x, xdevice.cpu())
        with warnings.catch_warnings():  # Gluon's own recurrent layers still say `x.context`
            warnings.simplefilter("ignore", DeprecationWarning)
            y = model(x)
    else:
        import tensorflow as tf

        image = x.ndim == 4
        y = model(tf.constant(np.moveaxis(x, 1, -1) if image else x), training=False)
        return np.moveaxis(y.numpy(), -1, 1) if image else y.numpy()
    return xdevice.to_numpy(y[0] if isinstance(y, tuple) else y)


def ported(build, here, there, seed=0):
    source, target = (
        randomised(here, build(here), seed),
        randomised(there, build(there), seed + 1),
    )
    state = xdevice.models.convert_state(source, there, like=target)
    xdevice.load(state, into=target)
    return source, target, state


def error(build, here, there, x):
    source, target, _ = ported(build, here, there)
    expected = outputs(here, source, x)
    assert np.abs(expected).max() > 0.01
    return np.abs(outputs(there, target, x) - expected).max()
