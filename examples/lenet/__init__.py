"""LeNet from scratch: the parameters here, the same for all; forward pass, gradients and update once per framework.

Each `*_lenet.py` has these functions, on tensors of one device. `parameters` is a list as of `initial_parameters`.

    loss_and_gradients(parameters, x, y)     the sum of the losses of a share of the batch, and its gradients, in order
    update(parameters, gradients, rate)      the parameters after one step of gradient descent: use the result
    predict(parameters, x)                   a score for each example and class

`x` is (n, 1, size, size) in float32, `y` is (n,) in integers. Nothing in them waits for a device.

The units are tanh, as LeNet's first ones were, because it is smooth. A sum over two devices is rounded otherwise than
one over the whole batch, and with relu that switches a unit near 0 on or off: here within the first hundred steps, and
then parameters differ by a thousand times as much.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np

CLASSES = 10


def of(backend: str) -> ModuleType:
    """The module of a framework."""
    return import_module(f"lenet.{backend}_lenet")


def initial_parameters(size: int, width: int, seed: int = 0) -> list[np.ndarray]:
    """Weights and biases of two convolutions and two linear layers, for images of `size` x `size`, as NumPy arrays.

    Kernels are (out, in, height, width). `width` multiplies the channels.
    """
    random = np.random.default_rng(seed)
    first, second, hidden = 20 * width, 50 * width, 128 * width
    flat = second * (size // 2 // 2) ** 2
    shapes = [(first, 1, 3, 3), (second, first, 5, 5), (flat, hidden), (hidden, CLASSES)]
    parameters = []
    for shape in shapes:
        is_kernel = len(shape) == 4
        inputs = np.prod(shape[1:]) if is_kernel else shape[0]
        weight = random.normal(0, np.sqrt(1 / inputs), shape)
        bias = np.zeros(shape[0] if is_kernel else shape[1])
        parameters += [weight.astype("float32"), bias.astype("float32")]
    return parameters
