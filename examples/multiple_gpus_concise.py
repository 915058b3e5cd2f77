"""Training on several GPUs, concisely: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=paddle python examples/multiple_gpus_concise.py --plot curves.png

`replicate`, `split_batch` and `all_reduce` do what the previous chapter does by hand, here for
a residual network and gradient descent with momentum. Without a GPU, the script uses virtual
GPUs, which give the right results but are not faster.

The activation is silu, which is smooth, and each image is normalized separately, not over the
batch. So training on several devices gives the same result as on one device.

The chapter: https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html
"""

from functools import partial

import training
from rich.console import Console

import xdevice
from xdevice import nn

CLASSES, MOMENTUM = 10, 0.9


# a residual network


def layer(inputs, outputs, kernel=3):
    scale = (inputs * kernel * kernel) ** -0.5
    return {
        "kernel": xdevice.random.normal(outputs, inputs, kernel, kernel, scale=scale),
        "gain": xdevice.ones(1, outputs, 1, 1),
        "bias": xdevice.zeros(1, outputs, 1, 1),
    }


def residual(inputs, outputs):
    block = {"first": layer(inputs, outputs), "second": layer(outputs, outputs)}
    return (
        block if inputs == outputs else {**block, "shortcut": layer(inputs, outputs, kernel=1)}
    )


def resnet_parameters(width):
    narrow, wide = 16 * width, 32 * width
    return {
        "stem": layer(1, narrow),
        "blocks": [residual(narrow, narrow), residual(narrow, wide)],
        "scores": xdevice.random.normal(wide, CLASSES, scale=wide**-0.5),
    }


def silu(x):
    return x * nn.sigmoid(x)


def convolve(layer, x, stride=1):
    """Applies a convolution, and then normalizes each image over its channels and pixels."""
    xp = xdevice.array_namespace(x)
    kernel = layer["kernel"]
    x = nn.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    x = x - xp.mean(x, axis=(1, 2, 3), keepdims=True)
    x = x / xp.sqrt(xp.add(xp.mean(x * x, axis=(1, 2, 3), keepdims=True), 1e-5))
    return x * layer["gain"] + layer["bias"]


def resnet(parameters, images):
    xp = xdevice.array_namespace(images)
    x = silu(convolve(parameters["stem"], images))
    for block in parameters["blocks"]:
        stride = 2 if "shortcut" in block else 1
        y = convolve(block["second"], silu(convolve(block["first"], x, stride)))
        x = silu(y + (convolve(block["shortcut"], x, stride) if "shortcut" in block else x))
    return xp.matmul(xp.mean(x, axis=(2, 3)), parameters["scores"])


def loss(parameters, images, labels, examples):
    """Returns the share's part of the mean loss of the batch, so that gradients of shares add
    up to that of the batch."""
    return nn.cross_entropy(resnet(parameters, images), labels) * (labels.shape[0] / examples)


# training on several devices


class DataParallel:
    def __init__(self, parameters, devices, rate):
        self.rate = rate
        self.replicas = xdevice.parallel.replicate(parameters, devices)
        self.velocities = [
            xdevice.math.update(replica, replica, lambda p, _: p * 0.0)
            for replica in self.replicas
        ]

    def step(self, shares):
        examples = sum(labels.shape[0] for _, labels in shares)
        gradients_of = xdevice.math.value_and_grad(loss)
        found = xdevice.parallel.run(
            *(
                partial(gradients_of, replica, *share, examples)
                for replica, share in zip(self.replicas, shares, strict=True)
            )
        )
        gradients = xdevice.parallel.all_reduce([gradients for _, gradients in found])
        self.velocities = [
            xdevice.math.update(velocity, gradient, lambda v, g: MOMENTUM * v + g)
            for velocity, gradient in zip(self.velocities, gradients, strict=True)
        ]
        self.replicas = [
            xdevice.math.update(replica, velocity, lambda p, v: p - self.rate * v)
            for replica, velocity in zip(self.replicas, self.velocities, strict=True)
        ]
        return [value * examples for value, _ in found]

    def predict(self, images):
        return resnet(self.replicas[0], images)


@training.options(epochs=4, batch=64, rate=0.1)
def main(**flags):
    console = Console(highlight=False, soft_wrap=True)
    settings = training.Settings(**flags)
    places = training.devices(settings.counts, console)
    with xdevice.random.seed(0):
        parameters = resnet_parameters(settings.width)
    training.run(
        lambda devices: DataParallel(parameters, devices, settings.rate),
        places,
        settings,
        console,
    )


if __name__ == "__main__":
    main()
