"""A small residual network with each framework's own layers and optimizer.

Each `*_resnet.py` has one function:

    build(size, width, batch_norm, rate)     returns a model on cpu:0 with its initial weights, and `Replica`

`Replica(model)` wraps a copy of the model on a device, with its own optimizer (SGD with
momentum):

    .loss_and_gradients(x, y, examples)      returns the loss sum of a share, and the gradients of that sum / examples
    .update(gradients)                       takes one step of the optimizer
    .predict(x)                              returns a score for each image and class
    .parameters                              the trained parameters, in order

`x` has the shape (n, 1, size, size) and the dtype float32. `y` has the shape (n,) and holds
integers. `examples` is the number of examples in the whole batch. The gradients of all shares
add up to the gradient of the batch's mean loss, even if the shares differ in size. No method
waits for a device.

The activation is silu, which is smooth: see `multiple_gpus`.

Batch normalization uses the mean and variance of each device's share, as the frameworks' own
data parallelism does unless it is configured to synchronize. So training on two devices differs
slightly from training on one; without batch normalization it does not. Each replica has the
running statistics of its own shares. Predictions use those of the first replica.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

CLASSES = 10
MOMENTUM = 0.9


def of(backend: str) -> ModuleType:
    """Returns the module for a framework."""
    return import_module(f"own_layers.{backend}_resnet")
