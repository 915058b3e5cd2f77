"""LeNet from scratch on TensorFlow.

Its convolutions want channels last, on the CPU always, so kernels and images are turned: the parameters are those of
the other frameworks. An operation goes to the first device unless it is told where, wherever its arguments are. The
tape is inside the function, because a tape outside of it sees nothing of another thread.
"""

from __future__ import annotations

import tensorflow as tf


def lenet(parameters, x):
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h = tf.transpose(x, (0, 2, 3, 1))
    for w, b in ((w1, b1), (w2, b2)):
        h = tf.tanh(tf.nn.conv2d(h, tf.transpose(w, (2, 3, 1, 0)), 1, "SAME") + b)
        h = tf.nn.avg_pool2d(h, 2, 2, "VALID")
    h = tf.reshape(tf.transpose(h, (0, 3, 1, 2)), (-1, w3.shape[0]))
    h = tf.tanh(h @ w3 + b3)
    return h @ w4 + b4


def loss_and_gradients(parameters, x, y):
    with tf.device(x.device):
        return _loss_and_gradients(parameters, x, y)


@tf.function
def _loss_and_gradients(parameters, x, y):
    with tf.GradientTape() as tape:
        scores = lenet(parameters, x)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
    return loss, tape.gradient(loss, parameters)


def update(parameters, gradients, rate):
    with tf.device(gradients[0].device):
        _update(parameters, gradients, tf.constant(rate, tf.float32))
    return parameters


@tf.function
def _update(parameters, gradients, rate):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.assign_sub(rate * gradient)


def predict(parameters, x):
    with tf.device(x.device):
        return lenet(parameters, x)
