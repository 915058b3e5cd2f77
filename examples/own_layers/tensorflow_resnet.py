"""A small residual network with Keras, on TensorFlow."""

from __future__ import annotations

from functools import partial

import keras
import tensorflow as tf
from keras import layers

from . import CLASSES, MOMENTUM


def convolution(x, outputs, batch_norm, *, kernel=3, stride=1):
    h = layers.Conv2D(outputs, kernel, stride, padding="same")(x)
    return layers.BatchNormalization(momentum=0.9)(h) if batch_norm else h


def residual(x, outputs, batch_norm, stride=1):
    h = layers.Activation("silu")(convolution(x, outputs, batch_norm, stride=stride))
    h = convolution(h, outputs, batch_norm)
    if (x.shape[-1], 1) != (outputs, stride):
        x = convolution(x, outputs, batch_norm, kernel=1, stride=stride)
    return layers.Activation("silu")(layers.Add()([h, x]))


def build(size, width, batch_norm, rate):
    keras.utils.set_random_seed(0)
    with tf.device("/CPU:0"):
        x = keras.Input((1, size, size))
        h = layers.Permute((2, 3, 1))(x)  # on a CPU, Keras supports only channels last
        h = layers.Activation("silu")(convolution(h, 16 * width, batch_norm))
        h = residual(h, 16 * width, batch_norm)
        h = residual(h, 32 * width, batch_norm, stride=2)
        h = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(h))
        return keras.Model(x, h), partial(Replica, rate=rate)


class Replica:
    """One copy of the model. TensorFlow runs operations on the first device by default, so each
    method names its own."""

    def __init__(self, model, rate):
        self.model = model
        self.parameters = [variable.value for variable in model.trainable_variables]
        self.device = self.parameters[0].device
        self.optimizer = keras.optimizers.SGD(rate, momentum=MOMENTUM)
        with tf.device(self.device):
            self.optimizer.build(model.trainable_variables)
        self._loss_and_gradients = tf.function(self._tape)
        self._update = tf.function(self._apply)

    def loss_and_gradients(self, x, y, examples):
        with tf.device(self.device):
            return self._loss_and_gradients(x, y, tf.constant(examples, tf.float32))

    def _tape(self, x, y, examples):
        with tf.GradientTape() as tape:
            scores = self.model(x, training=True)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
            mean = loss / examples
        return loss, tape.gradient(mean, self.model.trainable_variables)

    def update(self, gradients):
        with tf.device(self.device):
            self._update(gradients)

    def _apply(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def predict(self, x):
        with tf.device(self.device):
            return self.model(x, training=False)
