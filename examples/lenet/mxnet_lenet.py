"""LeNet from scratch on MXNet."""

from __future__ import annotations

from mxnet import autograd, np, npx


def convolution(x, weight, bias, pad):
    kernel = weight.shape[2:]
    return npx.convolution(x, weight, bias, kernel=kernel, pad=(pad, pad), num_filter=weight.shape[0])


def pool(x):
    return npx.pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg")


def lenet(parameters, x):
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h = pool(np.tanh(convolution(x, w1, b1, 1)))
    h = pool(np.tanh(convolution(h, w2, b2, 2)))
    h = np.tanh(np.dot(h.reshape(h.shape[0], -1), w3) + b3)
    return np.dot(h, w4) + b4


def loss_and_gradients(parameters, x, y):
    with autograd.record():
        loss = -npx.pick(npx.log_softmax(lenet(parameters, x)), y).sum()
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in parameters]


def update(parameters, gradients, rate):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter -= rate * gradient
    return parameters


def predict(parameters, x):
    return lenet(parameters, x)
