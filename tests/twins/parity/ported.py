"""Training scripts as each framework's users write them, ported from PyTorch, with faults in the ports if asked.

    xdevice parity tests/twins/parity/ported.py --backends torch,paddle --float64 -- siamese "eps of 1.01e-5"

`SCRIPTS` says which there are, and for each fault the record that shows it first; "" is for what only
`compare_optimizers` can find. PyTorch, the reference, has no fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import xdevice

STEPS = 4
RECORDS = ["weights", "outputs", "loss"]
"""In the order of a step."""


class Run(NamedTuple):
    """What a script has made: `step` trains on a batch, and gives the outputs before that and the loss."""

    net: Any
    optimizer: Any
    step: Callable[..., Any]


class Script(NamedTuple):
    kinds: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    batch: Callable[[], tuple[Any, ...]]
    runs: dict[str, Callable[[str], Run]]
    faults: dict[str, tuple[str, int] | str]


EVERYWHERE = {
    "one weight off by 5e-7": ("weights", 0),
    "scale of 1.000001": ("loss", 0),
    "sum for mean": ("loss", 0),
}


def given(fault, setting, usual):
    """What a setting is: the number of a fault such as "eps of 1e-3", or the usual one."""
    name, _, number = fault.partition(" of ")
    return float(number) if name == setting else usual


def reduction(fault):
    return "sum" if fault == "sum for mean" else "mean"


# how each framework's users train


def torch_run(net, optimizer, forward, clip=None):
    import torch

    def step(*batch):
        optimizer.zero_grad()
        outputs, loss = forward(*batch)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        return outputs, loss

    return Run(net, optimizer, step)


def paddle_run(net, optimizer, forward, fault):
    def step(*batch):
        outputs, loss = forward(*batch)
        loss = loss * given(fault, "scale", 1.0)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return outputs, loss

    return Run(net, optimizer, step)


def keras_run(net, optimizer, forward, fault):
    import tensorflow as tf

    def step(*batch):
        with tf.GradientTape() as tape:
            outputs, loss = forward(*batch)
            loss = loss * given(fault, "scale", 1.0)
        gradients = tape.gradient(loss, net.trainable_variables)
        # an embedding's rows are added first, else Keras clips by the norm of the rows of each word apart
        optimizer.apply([tf.convert_to_tensor(x) for x in gradients], net.trainable_variables)
        return outputs, loss

    return Run(net, optimizer, step)


def gluon_run(net, forward, fault, **settings):
    import mxnet as mx

    optimizer = mx.gluon.Trainer(net.collect_params(), "sgd", settings)

    def step(*batch):
        with mx.autograd.record():
            outputs, losses = forward(*batch)
            loss = (losses.sum() if fault == "sum for mean" else losses.mean()) * given(
                fault, "scale", 1.0
            )
        loss.backward()
        optimizer.step(1)
        return outputs, loss

    return Run(net, optimizer, step)


def main(name, *faults):
    """Trains once for each fault, "" for none; a fault is in the names of what is recorded then."""
    for fault in faults or [""]:
        train(SCRIPTS[name], fault, f"{fault}: " if fault else "")


def train(script, fault, prefix):
    backend = xdevice.backend().name
    fault = "" if backend == "torch" else fault
    run = script.runs[backend](fault)
    first_weights(script, backend, run.net, fault)
    for number in range(STEPS):
        xdevice.parity.log(f"{prefix}weights", weights(run.net))
        with xdevice.random.seed(number):
            batch = script.batch()
        outputs, loss = run.step(*batch)
        xdevice.parity.log(f"{prefix}outputs", outputs)
        xdevice.parity.log(f"{prefix}loss", loss)
    xdevice.parity.log(f"{prefix}weights", weights(run.net))


def first_weights(script, backend, net, fault):
    rng = np.random.default_rng(0)
    state = {
        name: rng.normal(0, 0.3, shape).astype("float32")
        for name, shape in script.shapes.items()
    }
    state |= {name: np.zeros_like(x) for name, x in state.items() if "bias_hh" in name}
    state |= {
        name: np.ones_like(x) for name, x in state.items() if name.endswith("running_var")
    }
    if fault == "one weight off by 5e-7":
        next(iter(state.values())).flat[3] += 5e-7
    xdevice.load(
        xdevice.models.convert_state(state, backend, like=net, kinds=script.kinds),
        into=net,
        strict=False,
    )


def weights(net):
    """In PyTorch's layout and by its names. Statistics differ: PyTorch's running variance is unbiased."""
    every = xdevice.models.convert_state(net, "numpy").items()
    return {
        name: x
        for name, x in every
        if "running" not in name and "bias_hh" not in name and "batches" not in name
    }


# a variational autoencoder

PIXELS, HIDDEN, LATENT = 36, 20, 4
VAE_FAULTS = {
    **EVERYWHERE,
    "spread of 0.500001": ("outputs", 0),
    "mean left out": ("outputs", 0),
    "eps of 1.01e-8": "",
}


def vae_batch():
    return xdevice.random.uniform(16, PIXELS), xdevice.random.normal(16, LATENT)


def torch_vae(fault):
    import torch
    from torch import nn
    from torch.nn import functional

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(PIXELS, HIDDEN)
            self.fc21 = nn.Linear(HIDDEN, LATENT)
            self.fc22 = nn.Linear(HIDDEN, LATENT)
            self.fc3 = nn.Linear(LATENT, HIDDEN)
            self.fc4 = nn.Linear(HIDDEN, PIXELS)

        def forward(self, x, noise):
            hidden = functional.relu(self.fc1(x))
            mean, log_var = self.fc21(hidden), self.fc22(hidden)
            code = mean + noise * torch.exp(0.5 * log_var)
            return torch.sigmoid(self.fc4(functional.relu(self.fc3(code)))), mean, log_var

    net = VAE()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def forward(images, noise):
        pixels, mean, log_var = net(images, noise)
        loss = functional.binary_cross_entropy(pixels, images)
        return pixels, loss - 0.5 * torch.mean(1 + log_var - mean.pow(2) - log_var.exp())

    return torch_run(net, optimizer, forward)


def paddle_vae(fault):
    import paddle
    from paddle import nn
    from paddle.nn import functional

    spread, shift = given(fault, "spread", 0.5), (0 if fault == "mean left out" else 1)
    reduced = paddle.sum if fault == "sum for mean" else paddle.mean

    class VAE(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(PIXELS, HIDDEN)
            self.fc21 = nn.Linear(HIDDEN, LATENT)
            self.fc22 = nn.Linear(HIDDEN, LATENT)
            self.fc3 = nn.Linear(LATENT, HIDDEN)
            self.fc4 = nn.Linear(HIDDEN, PIXELS)

        def forward(self, x, noise):
            hidden = functional.relu(self.fc1(x))
            mean, log_var = self.fc21(hidden), self.fc22(hidden)
            code = shift * mean + noise * paddle.exp(spread * log_var)
            return functional.sigmoid(self.fc4(functional.relu(self.fc3(code)))), mean, log_var

    net = VAE()
    optimizer = paddle.optimizer.Adam(
        1e-3, epsilon=given(fault, "eps", 1e-8), parameters=net.parameters()
    )

    def forward(images, noise):
        pixels, mean, log_var = net(images, noise)
        loss = functional.binary_cross_entropy(pixels, images)
        return pixels, loss - 0.5 * reduced(1 + log_var - mean.pow(2) - log_var.exp())

    return paddle_run(net, optimizer, forward, fault)


def keras_vae(fault):
    import keras
    from keras import layers, ops

    spread, shift = given(fault, "spread", 0.5), (0 if fault == "mean left out" else 1)
    reduced = ops.sum if fault == "sum for mean" else ops.mean

    class VAE(keras.Model):
        def __init__(self):
            super().__init__()
            self.fc1 = layers.Dense(HIDDEN, activation="relu", name="fc1")
            self.fc21 = layers.Dense(LATENT, name="fc21")
            self.fc22 = layers.Dense(LATENT, name="fc22")
            self.fc3 = layers.Dense(HIDDEN, activation="relu", name="fc3")
            self.fc4 = layers.Dense(PIXELS, activation="sigmoid", name="fc4")

        def call(self, x, noise):
            hidden = self.fc1(x)
            mean, log_var = self.fc21(hidden), self.fc22(hidden)
            return (
                self.fc4(self.fc3(shift * mean + noise * ops.exp(spread * log_var))),
                mean,
                log_var,
            )

    net = VAE()
    net(ops.zeros((1, PIXELS)), ops.zeros((1, LATENT)))
    optimizer = keras.optimizers.Adam(1e-3, epsilon=given(fault, "eps", 1e-8) * 0.001**0.5)

    def forward(images, noise):
        pixels, mean, log_var = net(images, noise)
        loss = ops.mean(keras.losses.binary_crossentropy(images, pixels))
        loss = loss - 0.5 * reduced(1 + log_var - ops.square(mean) - ops.exp(log_var))
        return pixels, loss

    return keras_run(net, optimizer, forward, fault)


# a language model of words

WORDS, WIDTH, STATE, TEXTS, LENGTH, CLIP = 40, 12, 16, 8, 6, 0.1
LM_FAULTS = {
    **EVERYWHERE,
    "state not carried": ("outputs", 1),
    "clip of 0.101": ("weights", 1),
    "rate of 2.001": "",
}


def lm_batch():
    return tuple(xdevice.random.integers(TEXTS, LENGTH, high=WORDS) for _ in range(2))


def torch_lm(fault):
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(WORDS, WIDTH)
            self.rnn = nn.LSTM(WIDTH, STATE, batch_first=True)
            self.rnn.bias_hh_l0.requires_grad_(False)  # Keras has one bias for the two
            self.decoder = nn.Linear(STATE, WORDS)

        def forward(self, words, state):
            hidden, state = self.rnn(self.encoder(words), state)
            return self.decoder(hidden), state

    net = Model()
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0)
    criterion, carried = nn.CrossEntropyLoss(), [None]

    def forward(words, following):
        scores, state = net(words.long(), carried[0])
        carried[0] = tuple(x.detach() for x in state)
        return scores, criterion(scores.view(-1, WORDS), following.long().view(-1))

    return torch_run(net, optimizer, forward, CLIP)


def paddle_lm(fault):
    import paddle
    from paddle import nn

    class Model(nn.Layer):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(WORDS, WIDTH)
            self.rnn = nn.LSTM(WIDTH, STATE)
            self.decoder = nn.Linear(STATE, WORDS)

        def forward(self, words, state):
            hidden, state = self.rnn(self.encoder(words), state)
            return self.decoder(hidden), state

    net = Model()
    trained = [parameter for name, parameter in net.named_parameters() if "bias_hh" not in name]
    clip = nn.ClipGradByGlobalNorm(given(fault, "clip", CLIP))
    optimizer = paddle.optimizer.SGD(
        given(fault, "rate", 2.0), parameters=trained, grad_clip=clip
    )
    criterion, carried = nn.CrossEntropyLoss(reduction=reduction(fault)), [None]

    def forward(words, following):
        scores, state = net(words, carried[0])
        carried[0] = None if fault == "state not carried" else tuple(x.detach() for x in state)
        return scores, criterion(scores.reshape([-1, WORDS]), following.reshape([-1]))

    return paddle_run(net, optimizer, forward, fault)


def keras_lm(fault):
    import keras
    from keras import layers, ops

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = layers.Embedding(WORDS, WIDTH, name="encoder")
            self.rnn = layers.LSTM(STATE, return_sequences=True, return_state=True, name="rnn")
            self.decoder = layers.Dense(WORDS, name="decoder")

        def call(self, words, state):
            hidden, *state = self.rnn(self.encoder(words), initial_state=state)
            return self.decoder(hidden), state

    net = Model()
    zeros = [ops.zeros((TEXTS, STATE)) for _ in range(2)]
    net(ops.zeros((TEXTS, LENGTH), "int32"), zeros)
    optimizer = keras.optimizers.SGD(
        given(fault, "rate", 2.0), global_clipnorm=given(fault, "clip", CLIP)
    )
    criterion = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction(fault)
    )
    carried = [zeros]

    def forward(words, following):
        scores, state = net(words, carried[0])
        loss = criterion(following, scores)
        carried[0] = zeros if fault == "state not carried" else state
        return scores, loss

    return keras_run(net, optimizer, forward, fault)


# a siamese network

SIZE, FILTERS, MORE, EMBEDDED = 12, 6, 8, 5
SIAMESE_FAULTS = {**EVERYWHERE, "eps of 1.01e-5": ("outputs", 0), "largest for mean": ("outputs", 0),
                  "momentum of 0.8999": ""}  # fmt: skip


def siamese_batch():
    draw = xdevice.random
    images = [draw.normal(8, 1, SIZE, SIZE) for _ in range(2)]
    xp = xdevice.array_namespace()
    return *images, xp.astype(draw.bernoulli(8, 1), images[0].dtype)


def torch_siamese(fault):
    import torch
    from torch import nn

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, FILTERS, 3)
            self.bn1 = nn.BatchNorm2d(FILTERS)
            self.conv2 = nn.Conv2d(FILTERS, MORE, 3)
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(MORE, EMBEDDED)
            self.head = nn.Linear(EMBEDDED, 1)

        def embed(self, x):
            x = torch.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
            return self.fc(self.pool(torch.relu(self.conv2(x))).flatten(1))

        def forward(self, one, other):
            return self.head(torch.abs(self.embed(one) - self.embed(other)))

    net = Siamese()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()

    def forward(one, other, labels):
        scores = net(one, other)
        return scores, criterion(scores, labels)

    return torch_run(net, optimizer, forward)


def paddle_siamese(fault):
    import paddle
    from paddle import nn
    from paddle.nn import functional

    class Siamese(nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2D(1, FILTERS, 3)
            self.bn1 = nn.BatchNorm2D(FILTERS, epsilon=given(fault, "eps", 1e-5))
            self.conv2 = nn.Conv2D(FILTERS, MORE, 3)
            self.pool = (
                nn.AdaptiveMaxPool2D(1)
                if fault == "largest for mean"
                else nn.AdaptiveAvgPool2D(1)
            )
            self.fc = nn.Linear(MORE, EMBEDDED)
            self.head = nn.Linear(EMBEDDED, 1)

        def embed(self, x):
            x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 2)
            return self.fc(self.pool(functional.relu(self.conv2(x))).flatten(1))

        def forward(self, one, other):
            return self.head(paddle.abs(self.embed(one) - self.embed(other)))

    net = Siamese()
    optimizer = paddle.optimizer.Momentum(
        0.05, given(fault, "momentum", 0.9), parameters=net.parameters()
    )
    criterion = nn.BCEWithLogitsLoss(reduction=reduction(fault))

    def forward(one, other, labels):
        scores = net(one, other)
        return scores, criterion(scores, labels)

    return paddle_run(net, optimizer, forward, fault)


def keras_siamese(fault):
    import keras
    from keras import layers, ops

    class Siamese(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv1 = layers.Conv2D(FILTERS, 3, name="conv1")
            self.bn1 = layers.BatchNormalization(epsilon=given(fault, "eps", 1e-5), name="bn1")
            self.halved = layers.MaxPooling2D(2)
            self.conv2 = layers.Conv2D(MORE, 3, activation="relu", name="conv2")
            self.pool = (
                layers.GlobalMaxPooling2D()
                if fault == "largest for mean"
                else layers.GlobalAveragePooling2D()
            )
            self.fc = layers.Dense(EMBEDDED, name="fc")
            self.head = layers.Dense(1, name="head")

        def embed(self, x, training):
            x = self.halved(ops.relu(self.bn1(self.conv1(x), training=training)))
            return self.fc(self.pool(self.conv2(x)))

        def call(self, one, other, training=False):
            return self.head(ops.abs(self.embed(one, training) - self.embed(other, training)))

    net = Siamese()
    net(*[ops.zeros((1, SIZE, SIZE, 1))] * 2)
    optimizer = keras.optimizers.SGD(0.05, momentum=given(fault, "momentum", 0.9))
    criterion = keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction(fault))

    def forward(one, other, labels):
        images = [ops.transpose(x, (0, 2, 3, 1)) for x in (one, other)]
        scores = net(*images, training=True)
        return scores, criterion(labels, scores)

    return keras_run(net, optimizer, forward, fault)


def gluon_siamese(fault):
    import mxnet as mx
    from mxnet.gluon import nn

    mx.npx.set_np()

    class Siamese(nn.Block):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2D(FILTERS, 3, in_channels=1)
            self.bn1 = nn.BatchNorm(epsilon=given(fault, "eps", 1e-5), in_channels=FILTERS)
            self.halved = nn.MaxPool2D(2)
            self.conv2 = nn.Conv2D(MORE, 3, in_channels=FILTERS, activation="relu")
            self.pool = (
                nn.GlobalMaxPool2D() if fault == "largest for mean" else nn.GlobalAvgPool2D()
            )
            self.fc = nn.Dense(EMBEDDED, in_units=MORE)
            self.head = nn.Dense(1, in_units=EMBEDDED)

        def embed(self, x):
            x = self.halved(mx.npx.relu(self.bn1(self.conv1(x))))
            return self.fc(self.pool(self.conv2(x)))

        def forward(self, one, other):
            return self.head(mx.np.abs(self.embed(one) - self.embed(other)))

    net = Siamese()
    net.initialize()
    net.cast(xdevice.random.uniform(1).dtype)
    criterion = mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()

    def forward(one, other, labels):
        scores = net(one, other)
        return scores, criterion(scores, labels)

    return gluon_run(
        net, forward, fault, learning_rate=0.05, momentum=given(fault, "momentum", 0.9)
    )


# a regression

DEGREE = 4
REGRESSION_FAULTS = {**EVERYWHERE, "delta of 1.000001": ("loss", 0), "squares for cubes": ("outputs", 0),
                     "momentum of 0.8999": ""}  # fmt: skip


def regression_batch():
    x = xdevice.random.normal(32, 1)
    xp = xdevice.array_namespace()
    targets = 2 * x - 3 * x**2 + xdevice.random.normal(32, 1, scale=0.1)
    return xp.concat([x**power for power in range(1, DEGREE + 1)], axis=1), targets


def powers(x, fault, concat):
    """With the fault, the third of the powers is the second once more."""
    return concat([x[:, :2], x[:, 1:2], x[:, 3:]], 1) if fault == "squares for cubes" else x


def torch_regression(fault):
    import torch
    from torch import nn
    from torch.nn import functional

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(DEGREE, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def forward(x, targets):
        outputs = net(x)
        return outputs, functional.smooth_l1_loss(outputs, targets)

    return torch_run(net, optimizer, forward)


def paddle_regression(fault):
    import paddle
    from paddle import nn
    from paddle.nn import functional

    net = nn.Sequential(("fc", nn.Linear(DEGREE, 1)))
    optimizer = paddle.optimizer.Momentum(
        0.01, given(fault, "momentum", 0.9), parameters=net.parameters()
    )
    delta = given(fault, "delta", 1.0)

    def forward(x, targets):
        outputs = net(powers(x, fault, paddle.concat))
        loss = functional.smooth_l1_loss(
            outputs, targets, delta=delta, reduction=reduction(fault)
        )
        return outputs, loss

    return paddle_run(net, optimizer, forward, fault)


def keras_regression(fault):
    import keras

    net = keras.Sequential([keras.Input((DEGREE,)), keras.layers.Dense(1, name="fc")])
    optimizer = keras.optimizers.SGD(0.01, momentum=given(fault, "momentum", 0.9))
    criterion = keras.losses.Huber(delta=given(fault, "delta", 1.0), reduction=reduction(fault))

    def forward(x, targets):
        outputs = net(powers(x, fault, keras.ops.concatenate))
        return outputs, criterion(targets, outputs)

    return keras_run(net, optimizer, forward, fault)


def gluon_regression(fault):
    import mxnet as mx
    from mxnet.gluon import nn

    mx.npx.set_np()

    class Net(nn.Block):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(1, in_units=DEGREE)

        def forward(self, x):
            return self.fc(x)

    net = Net()
    net.initialize()
    net.cast(xdevice.random.uniform(1).dtype)
    delta = given(fault, "delta", 1)

    def forward(x, targets):
        outputs = net(powers(x, fault, mx.np.concatenate))
        off = mx.np.abs(outputs - targets)  # Gluon's HuberLoss takes legacy arrays only
        return outputs, mx.np.where(off > delta, off - delta / 2, off * off / (2 * delta))

    return gluon_run(
        net, forward, fault, learning_rate=0.01, momentum=given(fault, "momentum", 0.9)
    )


def of_linear(**sizes):
    shapes = {}
    for name, (outputs, inputs) in sizes.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    return shapes


VAE_LAYERS = {
    "fc1": (HIDDEN, PIXELS), "fc21": (LATENT, HIDDEN), "fc22": (LATENT, HIDDEN), "fc3": (HIDDEN, LATENT),
    "fc4": (PIXELS, HIDDEN),
}  # fmt: skip
SCRIPTS = {
    "vae": Script(
        dict.fromkeys(VAE_LAYERS, "linear"),
        of_linear(**VAE_LAYERS),
        vae_batch,
        {"torch": torch_vae, "paddle": paddle_vae, "tensorflow": keras_vae},
        VAE_FAULTS,
    ),
    "lm": Script(
        {"encoder": "embedding", "rnn": "lstm", "decoder": "linear"},
        {
            "encoder.weight": (WORDS, WIDTH), "rnn.weight_ih_l0": (4 * STATE, WIDTH),
            "rnn.weight_hh_l0": (4 * STATE, STATE), "rnn.bias_ih_l0": (4 * STATE,), "rnn.bias_hh_l0": (4 * STATE,),
            **of_linear(decoder=(WORDS, STATE)),
        },
        lm_batch,
        {"torch": torch_lm, "paddle": paddle_lm, "tensorflow": keras_lm},
        LM_FAULTS,
    ),
    "siamese": Script(
        {"conv1": "conv", "bn1": "batch_norm", "conv2": "conv", "fc": "linear", "head": "linear"},
        {
            "conv1.weight": (FILTERS, 1, 3, 3), "conv1.bias": (FILTERS,), "bn1.weight": (FILTERS,),
            "bn1.bias": (FILTERS,), "bn1.running_mean": (FILTERS,), "bn1.running_var": (FILTERS,),
            "conv2.weight": (MORE, FILTERS, 3, 3), "conv2.bias": (MORE,),
            **of_linear(fc=(EMBEDDED, MORE), head=(1, EMBEDDED)),
        },
        siamese_batch,
        {"torch": torch_siamese, "paddle": paddle_siamese, "tensorflow": keras_siamese, "mxnet": gluon_siamese},
        SIAMESE_FAULTS,
    ),
    "regression": Script(
        {"fc": "linear"},
        of_linear(fc=(1, DEGREE)),
        regression_batch,
        {
            "torch": torch_regression, "paddle": paddle_regression, "tensorflow": keras_regression,
            "mxnet": gluon_regression,
        },
        REGRESSION_FAULTS,
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(*sys.argv[1:])
