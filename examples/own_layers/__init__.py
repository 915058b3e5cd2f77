"""A small residual network with each framework's own layers and optimizer.

Each `*_resnet.py` has one function:

    build(size, width, batch_norm, rate)     a model on cpu:0 with its first weights, and `Replica`

`Replica(model)` is a copy of the model on a device, with an optimizer of its own (SGD with momentum):

    .loss_and_gradients(x, y, examples)      the sum of the losses of a share, and the gradients of this sum / examples
    .update(gradients)                       one step of the optimizer
    .predict(x)                              a score for each image and class
    .parameters                              what is trained, in order

`x` is (n, 1, size, size) in float32, `y` is (n,) in integers, `examples` those of the whole batch. The gradients of all
shares add up to those of the batch's mean loss, also where shares differ in size. Nothing in it waits for a device.

The units are silu, which is smooth: see `multiple_gpus`.

Batch normalization takes mean and variance of the share that a device sees, as the frameworks' own data parallelism
does unless it is told to synchronize. So training on two devices is not quite training on one; without it, it is. The
running statistics of each replica are those of its shares; predictions are made with the first one's.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

CLASSES = 10
MOMENTUM = 0.9


def of(backend: str) -> ModuleType:
    """The module of a framework."""
    return import_module(f"own_layers.{backend}_resnet")
