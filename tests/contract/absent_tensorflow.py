"""Steps of programs for TensorFlow and Keras alone; see absent_names.py."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from xdevice.distributed.contract.processes import Group


def moved_trace(xd: Any) -> Any:
    """A function that was traced before its model moved, and that has captured something of its own."""
    net = functional()
    scale = tf.Variable(2.0)
    call = tf.function(lambda x: net(x) * scale, autograph=False)
    before = numbers(call(ones()))
    xd.to_device(net, xd.try_all_gpus()[-1])
    net.layers[-1].bias.assign([1.0, 1.0])
    return before, numbers(call(ones()))


def read_by_a_pipeline(xd: Any) -> Any:
    weight = tf.Variable(2.0)
    batches = iter(tf.data.Dataset.from_tensors(1.0).map(lambda x: x * weight))
    xd.to_device(weight, xd.try_all_gpus()[-1])
    return numbers(next(batches))


class Traced(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = functional()
        self.flip = keras.layers.RandomFlip(seed=0)
        self.items = [keras.layers.Dense(2, kernel_initializer="ones")]
        self.twice = tf.function(lambda x: self.inner(x) * 2, autograph=False)

    def call(self, x: Any) -> Any:
        y = self.twice(x)
        self.add_loss(tf.reduce_sum(y))
        return self.items[0](y)


def copied(xd: Any) -> Any:
    """A copy of a trained model goes on with its own variables, and with those of its optimizer."""
    net = Traced()
    net.compile(optimizer="adam", loss="mse")
    net.fit(ones(), ones(), verbose=0)
    twin = xd.copy_to(net, xd.try_all_gpus()[-1])
    before = numbers(net(ones()))
    twin.train_on_batch(ones(), ones())
    config = xd.copy_to(net.inner, "cpu").get_config()
    return (
        before == numbers(net(ones())), numbers(twin(ones())), len(twin.layers), len(net.layers),
        [layer["inbound_nodes"] != [] for layer in config["layers"]],
    )  # fmt: skip


def of_images(xd: Any) -> Any:
    x = keras.Input((4, 4, 2))
    y = keras.layers.Conv2D(3, 2, activation="relu")(x)
    y = keras.layers.Softmax()(keras.layers.Dense(2)(keras.layers.Flatten()(y)))
    net = keras.Model(x, y)
    state = xd.models.convert_state(net, "tensorflow", like=net)
    with xd.parity.capture_intermediates(net) as traced:
        net(tf.ones((1, 4, 4, 2)))
    return sorted(state), [str(line) for line in state.differences], len(list(traced.calls))


def in_a_function(xd: Any) -> Any:
    @tf.function
    def step(x: Any) -> Any:
        return xd.copy_to(x, "cpu") + xd.ones(2, 2)

    return numbers(step(ones()))


def several_processes(xd: Any) -> Any:
    group = Group(0, 1, 0, 1, xd.cpu(), "127.0.0.1", 30, lambda text: [text])
    return xd.backend().start_engine("ring", group).name


def functional() -> Any:
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(2, kernel_initializer="ones")(x))


def ones() -> Any:
    return tf.ones((2, 2))


def numbers(x: Any) -> Any:
    return [round(float(value), 4) for value in x.numpy().ravel()]


STEPS = {
    "moved trace": ("models", moved_trace), "pipeline": ("models", read_by_a_pipeline), "copy": ("models", copied),
    "images": ("layers", of_images), "in a function": ("tensors", in_a_function),
    "several processes": ("several processes", several_processes),
}  # fmt: skip
