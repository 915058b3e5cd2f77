"""The chapters of the course as models of Keras 3: `step(chapter, weights, batch, optimizer)` trains one on a batch.

A chapter's function makes the model, and names its weights in Keras's order, its inputs and what it is to give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy
from keras import layers, losses, ops

import xdevice

Model = tuple[Any, list[Any], Any, Any]
"""A model, its weights as arrays, what goes in and what is to come out."""


def sequential(x: Any, *parts: Any) -> Any:
    return keras.Sequential([keras.Input(x.shape[1:], batch_size=x.shape[0]), *parts])


def linear_regression(w: Any, x: Any, y: Any) -> Model:
    return sequential(x, layers.Dense(1)), [w["w"], w["b"]], x, y


def weight_decay(w: Any, x: Any, y: Any, decay: Any) -> Model:
    dense = layers.Dense(1, kernel_regularizer=keras.regularizers.L2(float(decay) / 2))
    return sequential(x, dense), [w["w"], w["b"]], x, y


def softmax_regression(w: Any, x: Any, truth: Any) -> Model:
    return sequential(x, layers.Dense(10)), [w["W"], w["b"]], x, truth


def mlp(w: Any, x: Any, truth: Any) -> Model:
    return perceptron(w, x, truth, "relu")


def optimizers(w: Any, x: Any, y: Any) -> Model:
    return perceptron(w, x, y, "tanh")


def perceptron(w: Any, x: Any, y: Any, activation: str) -> Model:
    (units, classes), names = w["W2"].shape, ("W1", "b1", "W2", "b2")
    dense = layers.Dense(units, activation), layers.Dense(classes)
    return sequential(x, *dense), [w[name] for name in names], x, y


def dropout(w: Any, x: Any, truth: Any, kept: Any) -> Model:
    """The layer `Dropout` draws its own mask: here the mask comes in, as in the chapter."""
    inputs = [keras.Input(one.shape[1:], batch_size=one.shape[0]) for one in (x, kept)]
    hidden = layers.Multiply()([layers.Dense(128, "relu")(inputs[0]), inputs[1]])
    model = keras.Model(inputs, layers.Dense(10)(hidden))
    return (
        model,
        [w[name] for name in ("W1", "b1", "W2", "b2")],
        [x, kept / numpy.float32(0.5)],
        truth,
    )


def lenet(w: Any, x: Any, truth: Any) -> Model:
    parts: list[Any] = []
    for channels in (8, 16):
        parts += [
            layers.Conv2D(channels, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
        ]
    model = sequential(x, *parts, layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(10))
    return (
        model,
        [w[name] for name in ("K1", "b1", "K2", "b2", "W3", "b3", "W4", "b4")],
        x,
        truth,
    )


def batch_norm(w: Any, x: Any, y: Any) -> Model:
    parts: list[Any] = []
    arrays: list[Any] = []
    for layer in w[:-1]:
        parts += [
            layers.Dense(32),
            layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
            layers.ReLU(),
        ]
        arrays += [layer[name] for name in ("W", "b", "gamma", "beta")]
        arrays += [numpy.zeros(32), numpy.ones(32)]
    return sequential(x, *parts, layers.Dense(10)), [*arrays, w[-1]["W"], w[-1]["b"]], x, y


def rnn(w: Any, x: Any, y: Any) -> Model:
    return recurrent(
        layers.SimpleRNN(w["Wh"].shape[0], return_sequences=True),
        [w["Wx"], w["Wh"], w["b"]],
        w,
        x,
        y,
    )


def lstm(w: Any, x: Any, y: Any) -> Model:
    """Keras has the gate for the output last."""
    arrays = []
    for name in ("Wx", "Wh", "b"):
        i, f, o, new = numpy.split(w[name], 4, -1)
        arrays.append(numpy.concatenate([i, f, new, o], -1))
    return recurrent(layers.LSTM(w["Wh"].shape[0], return_sequences=True), arrays, w, x, y)


def recurrent(layer: Any, arrays: list[Any], w: Any, x: Any, y: Any) -> Model:
    """Keras has the batch first, and the places second."""
    size = w["bo"].shape[0]
    one_hot = layers.Lambda(lambda x: ops.one_hot(x, size))
    x, y = (numpy.ascontiguousarray(one.T) for one in (x, y))
    given = keras.Input(x.shape[1:], batch_size=x.shape[0], dtype="int32")
    return (
        keras.Sequential([given, one_hot, layer, layers.Dense(size)]),
        [*arrays, w["Wo"], w["bo"]],
        x,
        y,
    )


def attention(
    w: Any, letters: Any, digits: Any, question: Any, seen: Any, answer: Any
) -> Model:
    given = [letters, digits, question, seen]
    inputs = [
        keras.Input(x.shape[1:], batch_size=x.shape[0], dtype=str(x.dtype)) for x in given
    ]
    of_letters, of_digits = (
        layers.Embedding(*w["letters"].shape),
        layers.Embedding(*w["digits"].shape),
    )
    pairs = of_letters(inputs[0]) + of_digits(inputs[1])
    width, classes = w["out"].shape
    heads = layers.MultiHeadAttention(1, width, use_bias=False, output_shape=classes)
    scores = heads(of_letters(inputs[2]), pairs, attention_mask=inputs[3])
    arrays = [
        w["letters"],
        w["digits"],
        *(w[name][:, None] for name in ("query", "key", "value")),
        w["out"][None],
    ]
    return keras.Model(inputs, scores[:, 0]), arrays, given, answer


class Places(layers.Layer):
    """Adds a learned row for each place."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=shape[1:])

    def call(self, x: Any) -> Any:
        return x + self.rows


def transformer(w: Any, tokens: Any, following: Any) -> Model:
    width, size = w["scores"].shape
    given = keras.Input(tokens.shape[1:], batch_size=tokens.shape[0], dtype="int32")
    x = Places()(layers.Embedding(size, width)(given))
    normal = layers.LayerNormalization(epsilon=1e-5)(x)
    heads = layers.MultiHeadAttention(4, width // 4, use_bias=False)
    x = x + heads(normal, normal, use_causal_mask=True)
    normal = layers.LayerNormalization(epsilon=1e-5)(x)
    x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(normal))
    plain = layers.LayerNormalization(epsilon=1e-5, center=False, scale=False)(x)
    model = keras.Model(given, layers.Dense(size, use_bias=False)(plain))
    qkv = [one.reshape(width, 4, width // 4) for one in numpy.split(w["qkv"], 3, -1)]
    first = [
        w["letters"],
        w["places"],
        w["norm 1"],
        w["shift 1"],
        *qkv,
        w["joined"].reshape(4, width // 4, width),
    ]
    last = [w[name] for name in ("norm 2", "shift 2", "in", "b in", "out", "b out", "scores")]
    return model, first + last, tokens, following


MODELS: dict[str, Callable[..., Model]] = {
    one.__name__: one
    for one in (
        linear_regression, softmax_regression, mlp, weight_decay, dropout, lenet, batch_norm, optimizers, rnn, lstm,
        attention, transformer,
    )
}  # fmt: skip


def step(
    chapter: str, weights: Any, batch: tuple[Any, ...], optimizer: Any
) -> Callable[[], float]:
    model, arrays, x, y = MODELS[chapter](weights, *batch)
    if chapter in ("linear_regression", "weight_decay"):
        loss: Any = losses.MeanSquaredError()
    elif y.dtype.kind == "f":
        loss = losses.CategoricalCrossentropy(from_logits=True)
    else:
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.set_weights(arrays)
    x, y = (
        ([xdevice.tensor(one) for one in x] if isinstance(x, list) else xdevice.tensor(x)),
        xdevice.tensor(y),
    )

    def train() -> float:
        model.reset_metrics()  # or it gives the mean of all losses so far
        return float(model.train_on_batch(x, y))

    return train
