"""Training with several processes: the chapter of d2l.ai on several GPUs, as one script for
every framework.

    XDEVICE_BACKEND=torch xdevice launch -n 4 examples/several_processes.py
    XDEVICE_BACKEND=jax torchrun --nproc-per-node 4 examples/several_processes.py
    XDEVICE_BACKEND=paddle python examples/several_processes.py

Each process has all parameters and gets a share of each batch. The gradients of the shares are
averaged, weighted by the number of examples, so every process takes the step of the whole
batch. So the result is the same with any number of processes. One process without a launcher is
not a special case.

    xdevice launch -n 4 examples/several_processes.py --checkpoint digits.safetensors --epochs 3
    xdevice launch -n 2 examples/several_processes.py --checkpoint digits.safetensors --epochs 6

The second command continues where the first one ended, with a different number of processes.

The chapter: https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from pathlib import Path

import click
import training

import xdevice
from xdevice import nn

CLASSES = 10


# a network, its loss and its gradients


def first_parameters(pixels, hidden):
    return {
        "W1": xdevice.random.normal(pixels, hidden, scale=pixels**-0.5),
        "b1": xdevice.zeros(hidden),
        "W2": xdevice.random.normal(hidden, CLASSES, scale=hidden**-0.5),
        "b2": xdevice.zeros(CLASSES),
    }


def forward(parameters, images):
    xp = xdevice.array_namespace(images)
    x = xp.reshape(images, (images.shape[0], -1))
    hidden = xp.tanh(xp.matmul(x, parameters["W1"]) + parameters["b1"])
    return x, hidden, xp.matmul(hidden, parameters["W2"]) + parameters["b2"]


def mean_loss(parameters, images, labels):
    return nn.cross_entropy(forward(parameters, images)[-1], labels)


automatic = xdevice.math.value_and_grad(mean_loss)


def by_hand(parameters, images, labels):
    """Returns the same loss and gradients, computed with the chain rule."""
    x, hidden, scores = forward(parameters, images)
    xp = xdevice.array_namespace(scores)
    is_label = xp.arange(CLASSES)[None, :] == labels[:, None]
    of_scores = (
        xp.exp(nn.log_softmax(scores)) - xp.astype(is_label, scores.dtype)
    ) / labels.shape[0]
    of_hidden = xp.matmul(of_scores, parameters["W2"].T) * (1 - hidden * hidden)
    gradients = {
        "W1": xp.matmul(x.T, of_hidden),
        "b1": xp.sum(of_hidden, axis=0),
        "W2": xp.matmul(hidden.T, of_scores),
        "b2": xp.sum(of_scores, axis=0),
    }
    return nn.cross_entropy(scores, labels), gradients


def loss_and_gradients(parameters, images, labels):
    try:
        return automatic(parameters, images, labels)
    except xdevice.errors.UnsupportedError:  # NumPy has no gradients
        return by_hand(parameters, images, labels)


# training with all processes


def train_epoch(world, parameters, batches, rate):
    """Takes a step on each batch. Returns the new parameters and the mean loss of all
    examples."""
    total, count = 0, 0
    for batch in batches:
        images, labels = xdevice.to_device(world.split_batch(batch, even=False), world.device)
        loss, gradients = loss_and_gradients(parameters, images, labels)
        gradients = world.average_gradients(gradients, weight=labels.shape[0])
        parameters = xdevice.math.update(parameters, gradients, lambda p, g: p - rate * g)
        total, count = total + loss * labels.shape[0], count + labels.shape[0]
    return parameters, xdevice.item(world.all_reduce(total / count, "mean", weight=count))


def accuracy(world, parameters, data):
    """Returns the accuracy on the test set, of which each process scores its share."""
    images, labels = world.split_batch(
        (xdevice.tensor(data.test_x), xdevice.tensor(data.test_y)), even=False
    )
    scores = forward(parameters, xdevice.to_device(images, world.device))[-1]
    right = xdevice.to_numpy(scores).argmax(1) == xdevice.to_numpy(labels)
    return xdevice.item(world.all_reduce(xdevice.tensor(float(right.sum())))) / len(data.test_y)


def begin_or_resume(world, checkpoint, parameters):
    """Returns the last epoch and the parameters of rank 0, on all ranks.

    Only rank 0 reads the checkpoint, because the file may be on a disk that the other ranks
    cannot read.
    """
    state = {"epoch": xdevice.tensor(0, dtype="int32"), **parameters}
    if world.is_first and checkpoint is not None and checkpoint.exists():
        saved = xdevice.load(checkpoint)
        state = {name: saved[name] for name in state}  # in the same order as on the other ranks
    state = xdevice.to_device(world.broadcast(state), world.device)
    return xdevice.item(state.pop("epoch")), state


def save(world, checkpoint, epoch, parameters):
    with world.first() as is_first:
        if is_first and checkpoint is not None:
            xdevice.save(
                checkpoint, {"epoch": xdevice.tensor(epoch, dtype="int32"), **parameters}
            )


@click.command()
@click.option("--epochs", default=6, show_default=True, type=click.IntRange(1))
@click.option(
    "--batch", default=64, show_default=True, type=click.IntRange(1), help="Over all processes."
)
@click.option("--rate", default=0.3, show_default=True, help="Learning rate.")
@click.option(
    "--hidden", default=128, show_default=True, type=click.IntRange(1), help="Hidden units."
)
@click.option(
    "--examples",
    type=click.IntRange(1),
    help="Digits to train on, repeated to reach the number.",
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Saved each epoch, and resumed.",
)
def main(epochs, batch, rate, hidden, examples, checkpoint):
    data = training.digits(examples=examples)
    with xdevice.distributed.processes() as world:

        def say(text):
            if world.is_first:
                print(text, flush=True)

        say(
            f"This is {xdevice.backend().name}, by {world.size} processes; engine: {world.engine}."
        )
        with xdevice.random.seed(0):
            parameters = first_parameters(data.x[0].size, hidden)
        done, parameters = begin_or_resume(world, checkpoint, parameters)
        for epoch in range(done + 1, epochs + 1):
            parameters, loss = train_epoch(world, parameters, data.batches(batch), rate)
            say(
                f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy(world, parameters, data):.3f}"
            )
            save(world, checkpoint, epoch, parameters)


if __name__ == "__main__":
    main()
