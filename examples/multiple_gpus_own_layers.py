"""Training on several GPUs with each framework's own layers and optimizer, which are in `own_layers`.

    XDEVICE_BACKEND=paddle python examples/multiple_gpus_own_layers.py --plot curves.png

A model is replicated as it is, and each replica has an optimizer of its own. What remains to be done between them is
to sum the gradients. Without a GPU it asks for virtual ones, which are correct but not faster.

Batch normalization takes the statistics of a device's share, so several devices do not train quite as one does.
With `--no-batch-norm` they do.
"""

from functools import partial

import click
import own_layers
import training
from rich.console import Console

import xdevice


class DataParallel:
    """A model on several devices. `replica` makes one of a model: gradients, optimizer, prediction."""

    def __init__(self, model, replica, devices):
        self.replicas = [
            replica(copied) for copied in xdevice.parallel.replicate(model, devices)
        ]

    def step(self, shares):
        examples = sum(len(y) for _, y in shares)
        found = xdevice.parallel.run(
            *(
                partial(replica.loss_and_gradients, *share, examples)
                for replica, share in self._with(shares)
            )
        )
        gradients = xdevice.parallel.all_reduce([gradients for _, gradients in found])
        xdevice.parallel.run(
            *(partial(replica.update, gradient) for replica, gradient in self._with(gradients))
        )
        return [loss for loss, _ in found]

    def _with(self, parts):
        """Each replica with its part."""
        return zip(self.replicas, parts, strict=True)

    def predict(self, x):
        return self.replicas[0].predict(x)


@training.options(epochs=4, batch=64, rate=0.05)
@click.option("--batch-norm/--no-batch-norm", default=True, show_default=True)
def main(**flags):
    console = Console(highlight=False, soft_wrap=True)
    settings = training.Settings(**flags)
    places = training.devices(settings.counts, console)
    net = own_layers.of(xdevice.backend().name)
    model, replica = net.build(
        settings.size, settings.width, settings.batch_norm, settings.rate
    )
    training.run(
        lambda devices: DataParallel(model, replica, devices), places, settings, console
    )


if __name__ == "__main__":
    main()
