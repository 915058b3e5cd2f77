"""A variational autoencoder, written in the style of PyTorch, Paddle and Keras, that computes
the same in all three.

    python examples/port_vae.py                          # compares each port with PyTorch: docs/guides/port_a_script.md
    XDEVICE_BACKEND=paddle python examples/port_vae.py   # trains with one framework
    xdevice parity examples/port_vae.py --backends torch,paddle,tensorflow

The images are the 8x8 digits that come with scikit-learn. The original PyTorch script draws the
noise and shuffles the batches with PyTorch's generators. Here NumPy does that, because no two
frameworks draw the same numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

import xdevice

PIXELS, HIDDEN, LATENT, BATCH, STEPS = 64, 32, 4, 32, 10
LAYERS = {
    "enc": (HIDDEN, PIXELS),
    "mean": (LATENT, HIDDEN),
    "log_var": (LATENT, HIDDEN),
    "dec": (HIDDEN, LATENT),
    "out": (PIXELS, HIDDEN),
}
RATE, EPS, BETA2 = 1e-3, 1e-8, 0.999


def first_weights():
    """Returns weights in PyTorch's layout and under its names, which `convert_state` converts
    to any framework."""
    rng = np.random.default_rng(0)
    weights = {}
    for name, (outputs, inputs) in LAYERS.items():
        weights[f"{name}.weight"] = rng.uniform(-1, 1, (outputs, inputs)).astype(
            "float32"
        ) / np.sqrt(inputs)
        weights[f"{name}.bias"] = np.zeros(outputs, "float32")
    return {name: value.astype("float32") for name, value in weights.items()}


def batches():
    """Yields the images and the noise of each step."""
    rng = np.random.default_rng(1)
    images = (load_digits().data / 16).astype("float32")
    for _ in range(STEPS):
        picked = rng.integers(0, len(images), BATCH)
        yield images[picked], rng.standard_normal((BATCH, LATENT)).astype("float32")


class Run(NamedTuple):
    """The parts of a script: a net, its optimizer, and functions for the loss of a batch and
    for a training step."""

    net: Any
    optimizer: Any
    loss_of: Callable[[Any, Any], Any]
    step: Callable[[Any, Any], Any]


def torch_run():
    import torch
    from torch import nn
    from torch.nn import functional

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(PIXELS, HIDDEN)
            self.mean = nn.Linear(HIDDEN, LATENT)
            self.log_var = nn.Linear(HIDDEN, LATENT)
            self.dec = nn.Linear(LATENT, HIDDEN)
            self.out = nn.Linear(HIDDEN, PIXELS)

        def forward(self, x, noise):
            hidden = torch.relu(self.enc(x))
            mean, log_var = self.mean(hidden), self.log_var(hidden)
            code = mean + noise * torch.exp(0.5 * log_var)
            return torch.sigmoid(self.out(torch.relu(self.dec(code)))), mean, log_var

    net = VAE()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def loss_of(images, noise):
        x = torch.from_numpy(images)
        pixels, mean, log_var = net(x, torch.from_numpy(noise))
        likelihood = functional.binary_cross_entropy(pixels, x, reduction="sum")
        return likelihood - 0.5 * torch.sum(1 + log_var - mean.square() - log_var.exp())

    def step(images, noise):
        optimizer.zero_grad()
        loss = loss_of(images, noise)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Run(net, optimizer, loss_of, step)


def paddle_run():
    paddle = xdevice.backend("paddle").framework
    nn, functional = paddle.nn, paddle.nn.functional

    class VAE(nn.Layer):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(PIXELS, HIDDEN)
            self.mean = nn.Linear(HIDDEN, LATENT)
            self.log_var = nn.Linear(HIDDEN, LATENT)
            self.dec = nn.Linear(LATENT, HIDDEN)
            self.out = nn.Linear(HIDDEN, PIXELS)

        def forward(self, x, noise):
            hidden = functional.relu(self.enc(x))
            mean, log_var = self.mean(hidden), self.log_var(hidden)
            code = mean + noise * paddle.exp(0.5 * log_var)
            return functional.sigmoid(self.out(functional.relu(self.dec(code)))), mean, log_var

    net = VAE()
    optimizer = paddle.optimizer.Adam(RATE, parameters=net.parameters())

    def loss_of(images, noise):
        x = paddle.to_tensor(images)
        pixels, mean, log_var = net(x, paddle.to_tensor(noise))
        likelihood = functional.binary_cross_entropy(pixels, x, reduction="sum")
        return likelihood - 0.5 * paddle.sum(1 + log_var - mean.square() - log_var.exp())

    def step(images, noise):
        loss = loss_of(images, noise)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return loss.detach()

    return Run(net, optimizer, loss_of, step)


def tensorflow_run():
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class VAE(keras.Model):
        def __init__(self):
            super().__init__()
            self.enc = layers.Dense(HIDDEN, activation="relu", name="enc")
            self.mean = layers.Dense(LATENT, name="mean")
            self.log_var = layers.Dense(LATENT, name="log_var")
            self.dec = layers.Dense(HIDDEN, activation="relu", name="dec")
            self.out = layers.Dense(PIXELS, activation="sigmoid", name="out")

        def call(self, x, noise):
            hidden = self.enc(x)
            mean, log_var = self.mean(hidden), self.log_var(hidden)
            return self.out(self.dec(mean + noise * ops.exp(0.5 * log_var))), mean, log_var

    net = VAE()
    net(np.zeros((1, PIXELS), "float32"), np.zeros((1, LATENT), "float32"))  # builds it
    # the epsilon that compare_optimizers suggests
    optimizer = keras.optimizers.Adam(RATE, epsilon=EPS * (1 - BETA2) ** 0.5)
    optimizer.build(net.trainable_variables)

    def loss_of(images, noise):
        pixels, mean, log_var = net(images, noise)
        likelihood = ops.sum(ops.binary_crossentropy(images, pixels))
        return likelihood - 0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var))

    def step(images, noise):
        with tf.GradientTape() as tape:
            loss = loss_of(images, noise)
        optimizer.apply(tape.gradient(loss, net.trainable_variables))
        return loss

    return Run(net, optimizer, loss_of, step)


RUNS = {"torch": torch_run, "paddle": paddle_run, "tensorflow": tensorflow_run}


def begun(name):
    """Returns a framework's script with the initial weights from `first_weights`."""
    run = RUNS[name]()
    state = xdevice.models.convert_state(
        first_weights(), name, like=run.net, kinds=dict.fromkeys(LAYERS, "linear")
    )
    xdevice.load(state, into=run.net)
    return run


def port(name):
    """Compares the port to a framework with the PyTorch script, following the steps of the
    guide."""
    began = time.perf_counter()
    theirs, ours = begun("torch"), RUNS[name]()
    print(f"PyTorch to {name}")

    state = xdevice.models.convert_state(theirs.net, name, like=ours.net)
    xdevice.load(state, into=ours.net)
    xdevice.assert_parity(state, ours.net)
    print(f"1. weights: {len(state)} tensors are equal; differences:", end="\n   ")
    print(*state.differences or ["none"], sep="\n   ")

    (images, noise), *_ = data = list(batches())
    xdevice.assert_parity(ours.loss_of(images, noise), theirs.loss_of(images, noise))
    print("2. the loss of a batch is equal")

    found = xdevice.models.compare_optimizers(theirs.optimizer, ours.optimizer)
    print("3. optimizers; differences:", *found or ["none"], sep="\n   ")

    half = STEPS // 2
    apart = [together(ours, theirs, batch) for batch in data[:half]]
    print(f"4. {half} steps: the weights are at most {max(apart):.1e} apart")

    fresh = RUNS[name]()
    state = xdevice.models.convert_state(theirs.net, name, like=fresh.net)
    xdevice.load(state, into=fresh.net)
    xdevice.models.convert_optimizer(
        theirs.optimizer, fresh.optimizer, state, models=(theirs.net, fresh.net)
    )
    apart = [together(fresh, theirs, batch) for batch in data[half:]]
    print(
        f"5. {half} steps more, from PyTorch's weights and moments: at most {max(apart):.1e} apart"
    )
    print(f"   in {time.perf_counter() - began:.1f} s")


def together(ours, theirs, batch):
    """Takes the same step in both scripts, and returns the largest difference between their
    weights."""
    ours.step(*batch)
    theirs.step(*batch)
    return float(
        xdevice.parity.compare(
            xdevice.models.convert_state(ours.net, "torch", like=theirs.net), theirs.net
        ).abs
    )


def train(name):
    """Trains with one framework, and records values for `xdevice parity`, causes before
    effects."""
    run = begun(name)
    for images, noise in batches():
        # in PyTorch's layout and under its names, whichever framework the net is from
        xdevice.parity.log("weights", dict(xdevice.models.convert_state(run.net, "numpy")))
        loss = run.step(images, noise)
        xdevice.parity.log("loss", loss)
    print(f"{name}: the loss after {STEPS} steps is {xdevice.item(loss):.3f}")


if __name__ == "__main__":
    if "XDEVICE_BACKEND" in os.environ:
        train(xdevice.backend().name)
    else:
        for name in ("paddle", "tensorflow"):
            port(name)
