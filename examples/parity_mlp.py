"""Train an MLP for ten steps, written once for all frameworks, with the same weights and data:
the results agree.

    xdevice parity examples/parity_mlp.py --backends torch,tensorflow,paddle,mxnet

Each framework computes the gradients itself. Without `xdevice parity` the script just trains:

    XDEVICE_BACKEND=paddle python examples/parity_mlp.py
"""

import math

import numpy as np

import xdevice

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 64, 16, 16, 3


def data():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((SAMPLES, INPUTS)).astype("float32")
    targets = np.sin(inputs[:, :OUTPUTS])
    return xdevice.tensor(inputs), xdevice.tensor(targets)


def first_weights():
    rng = np.random.default_rng(1)
    shapes = {
        "w1": (INPUTS, HIDDEN),
        "b1": (1, HIDDEN),
        "w2": (HIDDEN, OUTPUTS),
        "b2": (1, OUTPUTS),
    }
    return {
        name: xdevice.tensor(rng.normal(0, 0.3, shape).astype("float32"))
        for name, shape in shapes.items()
    }


def forward(weights, inputs):
    hidden = 1 / (1 + math.e ** -(inputs @ weights["w1"] + weights["b1"]))
    return hidden @ weights["w2"] + weights["b2"]


def mean_squared_error(outputs, targets):
    errors = (outputs - targets) ** 2
    row, column = xdevice.ones(1, SAMPLES), xdevice.ones(OUTPUTS, 1)
    return row @ errors @ column / (SAMPLES * OUTPUTS)


def gradients(weights, inputs, targets):
    """Returns the gradients by name, from the framework's own automatic differentiation, one
    tensor at a time."""
    gradient = xdevice.backend().samples().gradient

    def loss_of(name):
        return lambda w: mean_squared_error(forward({**weights, name: w}, inputs), targets)

    return {name: gradient(loss_of(name), w) for name, w in weights.items()}


def train(steps=10, rate=0.5):
    inputs, targets = data()
    weights = first_weights()
    for _ in range(steps):
        # The report names the first recorded value that differs, so record causes before
        # effects.
        xdevice.parity.log("weights", weights)
        outputs = forward(weights, inputs)
        xdevice.parity.log("outputs", outputs)
        loss = mean_squared_error(outputs, targets)
        xdevice.parity.log("loss", loss)
        grads = gradients(weights, inputs, targets)
        xdevice.parity.log("gradients", grads)
        weights = {name: w - rate * grads[name] for name, w in weights.items()}
    xdevice.parity.log("weights", weights)
    return xdevice.item(loss)


if __name__ == "__main__":
    print(
        f"{xdevice.backend().name} {xdevice.backend().version}: the loss after ten steps is {train():.6f}"
    )
