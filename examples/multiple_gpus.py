"""Training on several GPUs from scratch: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=torch python examples/multiple_gpus.py --plot curves.png

Each device has a replica of the parameters and gets a share of each batch. The gradients of the shares are summed, so
that all replicas make the step of the whole batch and stay equal: training on any number of devices is the same.
Without a GPU it asks for virtual ones, which are right but not faster. Real ones want more to do than small digits:

    python examples/multiple_gpus.py --size 28 --width 8 --batch 8192 --examples 65536

The chapter: https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from functools import partial

import lenet
import training
from rich.console import Console

import xdevice


class DataParallel:
    """LeNet on several devices. `net` has what is the framework's own business: gradients, update, prediction."""

    def __init__(self, net, parameters, devices, rate):
        self.net = net
        self.rate = rate
        self.replicas = xdevice.replicate(parameters, devices)

    def step(self, shares):
        net, examples = self.net, sum(len(y) for _, y in shares)
        found = xdevice.parallel(
            *(partial(net.loss_and_gradients, replica, *share) for replica, share in self._with(shares))
        )
        # every share's gradients become the sum of all: on any device, those of the whole batch
        gradients = xdevice.all_reduce([gradients for _, gradients in found])
        rate = self.rate / examples
        self.replicas = xdevice.parallel(
            *(partial(net.update, replica, gradient, rate) for replica, gradient in self._with(gradients))
        )
        return [loss for loss, _ in found]

    def _with(self, parts):
        """Each replica with its part."""
        return zip(self.replicas, parts, strict=True)

    def predict(self, x):
        return self.net.predict(self.replicas[0], x)


@training.options(epochs=6, batch=64, rate=0.3)
def main(**flags):
    console = Console(highlight=False, soft_wrap=True)
    settings = training.Settings(**flags)
    places = training.devices(settings.counts, console)
    net = lenet.of(xdevice.backend().name)
    parameters = [xdevice.tensor(p) for p in lenet.initial_parameters(settings.size, settings.width)]
    training.run(lambda devices: DataParallel(net, parameters, devices, settings.rate), places, settings, console)


if __name__ == "__main__":
    main()
