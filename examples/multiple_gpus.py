"""Training on several GPUs by hand: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=torch python examples/multiple_gpus.py --network lenet --plot curves.png

Each device has a copy of the parameters and gets a share of each batch. The gradients of the
shares are summed, so all copies take the step of the whole batch and stay equal. So the result
is the same on any number of devices. Without a GPU, the script uses virtual GPUs, which give
the right results but are not faster. For real GPUs, use larger images and batches:

    python examples/multiple_gpus.py --network lenet --size 28 --width 8 --batch 8192 --rate 0.05 --examples 65536

The activation is tanh, which is smooth. A sum over two devices is rounded differently from a
sum over the whole batch. With relu, the difference could switch a unit near 0 on or off, and
the two runs would drift apart.

The chapter: https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from functools import partial

import click
import training
from rich.console import Console

import xdevice
from xdevice import nn

CLASSES = 10


# two networks: functions that create their initial parameters, and compute a score for each
# image and class


def weights(*shape, inputs):
    return xdevice.random.normal(*shape, scale=inputs**-0.5)


def mlp_parameters(size, width):
    pixels, hidden = size * size, 128 * width
    return {
        "hidden": {
            "weight": weights(pixels, hidden, inputs=pixels),
            "bias": xdevice.zeros(hidden),
        },
        "scores": {
            "weight": weights(hidden, CLASSES, inputs=hidden),
            "bias": xdevice.zeros(CLASSES),
        },
    }


def linear(layer, x):
    xp = xdevice.array_namespace(x)
    return xp.add(xp.matmul(x, layer["weight"]), layer["bias"])


def mlp(parameters, images):
    xp = xdevice.array_namespace(images)
    x = xp.reshape(images, (images.shape[0], -1))
    return linear(parameters["scores"], xp.tanh(linear(parameters["hidden"], x)))


def lenet_parameters(size, width):
    first, second, hidden = 20 * width, 50 * width, 128 * width
    flat = second * (size // 2 // 2) ** 2
    return {
        "first": {"kernel": weights(first, 1, 3, 3, inputs=9), "bias": xdevice.zeros(first)},
        "second": {
            "kernel": weights(second, first, 5, 5, inputs=first * 25),
            "bias": xdevice.zeros(second),
        },
        "hidden": {"weight": weights(flat, hidden, inputs=flat), "bias": xdevice.zeros(hidden)},
        "scores": {
            "weight": weights(hidden, CLASSES, inputs=hidden),
            "bias": xdevice.zeros(CLASSES),
        },
    }


def lenet(parameters, images):
    xp = xdevice.array_namespace(images)
    first, second = parameters["first"], parameters["second"]
    x = nn.avg_pool2d(xp.tanh(nn.conv2d(images, first["kernel"], first["bias"], padding=1)), 2)
    x = nn.avg_pool2d(xp.tanh(nn.conv2d(x, second["kernel"], second["bias"], padding=2)), 2)
    x = xp.reshape(x, (x.shape[0], -1))
    return linear(parameters["scores"], xp.tanh(linear(parameters["hidden"], x)))


NETWORKS = {"mlp": (mlp_parameters, mlp), "lenet": (lenet_parameters, lenet)}


# training on several devices


def all_reduce(gradients):
    """Returns the sum of the gradients of all devices, on each device.

    The gradients are copied to the first device, added there, and the sum is copied back.
    """
    if isinstance(gradients[0], dict):
        summed = {name: all_reduce([part[name] for part in gradients]) for name in gradients[0]}
        return [
            {name: parts[i] for name, parts in summed.items()} for i in range(len(gradients))
        ]
    total, first = gradients[0], xdevice.device_of(gradients[0])
    xp = xdevice.array_namespace(total)
    for gradient in gradients[1:]:
        total = xp.add(total, xdevice.to_device(gradient, first))
    return [xdevice.to_device(total, xdevice.device_of(gradient)) for gradient in gradients]


class DataParallel:
    """A network on several devices, with a copy of its parameters on each device."""

    def __init__(self, network, parameters, devices, rate):
        self.network = network
        self.rate = rate
        self.replicas = [xdevice.copy_to(parameters, device) for device in devices]
        self.gradients = xdevice.math.value_and_grad(self.loss)

    def loss(self, parameters, images, labels):
        """Returns the sum of the losses in a share, so that the gradients of all shares add up
        to that of the batch."""
        return nn.cross_entropy(self.network(parameters, images), labels) * labels.shape[0]

    def step(self, shares):
        found = xdevice.parallel.run(
            *(
                partial(self.gradients, replica, *share)
                for replica, share in zip(self.replicas, shares, strict=True)
            )
        )
        gradients = all_reduce([gradients for _, gradients in found])
        rate = self.rate / sum(labels.shape[0] for _, labels in shares)
        self.replicas = [
            xdevice.math.update(replica, gradient, lambda p, g: p - rate * g)
            for replica, gradient in zip(self.replicas, gradients, strict=True)
        ]
        return [loss for loss, _ in found]

    def predict(self, images):
        return self.network(self.replicas[0], images)


@training.options(epochs=6, batch=64, rate=0.3)
@click.option(
    "--network", type=click.Choice(sorted(NETWORKS)), default="mlp", show_default=True
)
def main(network, **flags):
    console = Console(highlight=False, soft_wrap=True)
    settings = training.Settings(**flags)
    places = training.devices(settings.counts, console)
    begin, function = NETWORKS[network]
    with xdevice.random.seed(0):
        parameters = begin(settings.size, settings.width)
    training.run(
        lambda devices: DataParallel(function, parameters, devices, settings.rate),
        places,
        settings,
        console,
    )


if __name__ == "__main__":
    main()
