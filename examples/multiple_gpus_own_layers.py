"""Training on several GPUs with each framework's own layers and optimizer, which are in
`own_layers`.

    XDEVICE_BACKEND=paddle python examples/multiple_gpus_own_layers.py --plot curves.png

A model is replicated unchanged, and each replica has its own optimizer. The replicas only have
to sum their gradients. Without a GPU, the script uses virtual GPUs, which give the right
results but are not faster.

Batch normalization uses the statistics of each device's share, so training on several devices
differs slightly from training on one. With `--no-batch-norm` the results are the same.
"""

from functools import partial

import click
import own_layers
import training
from rich.console import Console

import xdevice


class DataParallel:
    """A model on several devices. `replica(model)` adds the gradients, the optimizer and the
    prediction to a copy."""

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
        """Returns pairs of a replica and its part."""
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
