"""Shared code of the chapters on several GPUs: the digits, the devices, the loop over the
epochs, and the output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import xdevice

FRAMEWORKS = ("torch", "tensorflow", "mxnet", "paddle", "jax")
TRAINING = 1408  # of 1,797: 22 batches of 64
Share = tuple[Any, Any]
"""Images and labels of one device's share of a batch."""


class Settings(NamedTuple):
    """The values of the command-line options."""

    counts: tuple[int, ...]
    epochs: int
    batch: int
    rate: float
    size: int
    width: int
    examples: int | None
    plot: Path | None
    batch_norm: bool = False


class Trainee(Protocol):
    """Equal networks on several devices, one network on each device."""

    def step(self, shares: Sequence[Share]) -> list[Any]:
        """Trains on a batch, of which each device gets a share. Does not wait for the devices.

        Returns the sum of the losses of each share, on the device of the share.
        """

    def predict(self, x: Any) -> Any:
        """Returns the scores of images that are on the first device."""


Start = Callable[[Sequence[xdevice.Device]], Trainee]
"""Creates the same untrained networks on the given devices."""


class Epoch(NamedTuple):
    loss: float
    accuracy: float
    seconds: float


# the command line


def _counts(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise click.BadParameter(f"{text!r} is not a list of numbers of devices, such as 1,2,4")
    return counts


def _plot_file(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Returns the path of the plot, or None if there is none. Raises an error if the plot
    cannot be written.

    The check comes before the training, because the training may take long and the plot is
    drawn after it.
    """
    if path is None:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            f"{error}; it draws the curves: pip install matplotlib"
        ) from error
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise click.BadParameter(
            f"there is no folder {str(path.parent)!r} that can be written into"
        )
    endings = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in endings:
        raise click.BadParameter(f"{str(path)!r} has to end in one of .{', .'.join(endings)}")
    return path


def options(
    *, epochs: int, batch: int, rate: float
) -> Callable[[Callable[..., None]], click.Command]:
    """Returns a decorator that adds the command-line options, with the defaults of a
    chapter."""
    flags = (
        click.option(
            "--devices",
            "counts",
            default="1,2,4",
            callback=_counts,
            show_default=True,
            metavar="N,N,...",
        ),
        click.option("--epochs", default=epochs, show_default=True, type=click.IntRange(1)),
        click.option(
            "--batch",
            default=batch,
            show_default=True,
            type=click.IntRange(1),
            help="Over all devices.",
        ),
        click.option("--rate", default=rate, show_default=True, help="Learning rate."),
        click.option(
            "--size",
            default=8,
            show_default=True,
            type=click.IntRange(8),
            help="Pixels of a digit's side.",
        ),
        click.option(
            "--width",
            default=1,
            show_default=True,
            type=click.IntRange(1),
            help="Multiplies the channels.",
        ),
        click.option(
            "--examples",
            type=click.IntRange(1),
            help="Digits to train on, repeated to reach the number.",
        ),
        click.option(
            "--plot",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            callback=_plot_file,
            help="Draws the curves into a file.",
        ),
    )

    def decorate(function: Callable[..., None]) -> click.Command:
        for flag in reversed(flags):
            function = flag(function)
        return click.command()(function)

    return decorate


# the digits


class Digits(NamedTuple):
    """Handwritten digits as NumPy arrays: images (n, 1, size, size) in float32, labels (n,) in
    int64."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def batches(self, largest: int) -> Iterator[Share]:
        """Yields the training examples in batches of tensors on cpu:0.

        The sizes of the batches differ by at most one example, so that no batch is much smaller
        than the others.
        """
        parts = self._parts(largest)
        for x, y in zip(
            np.array_split(self.x, parts), np.array_split(self.y, parts), strict=True
        ):
            yield xdevice.tensor(x), xdevice.tensor(y)

    def smallest(self, largest: int) -> int:
        """Returns the number of examples in the smallest batch."""
        return len(self.y) // self._parts(largest)

    def _parts(self, largest: int) -> int:
        return -(-len(self.y) // largest)


def digits(size: int = 8, examples: int | None = None) -> Digits:
    """Returns the digits that come with scikit-learn, in a fixed random order: 1,408 for
    training, 389 for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise click.ClickException(
            f"{error}; the digits come with it: pip install scikit-learn"
        ) from error
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    nearest = np.arange(size) * 8 // size
    x = found.images[order][:, None, nearest][..., nearest]
    x = ((x - x.mean()) / x.std()).astype("float32")
    y = found.target[order].astype("int64")
    chosen = np.arange(examples or TRAINING) % TRAINING
    return Digits(x[chosen], y[chosen], x[TRAINING:], y[TRAINING:])


# the devices


def devices(counts: Sequence[int], console: Console) -> list[list[xdevice.Device]]:
    """Returns a list of the first GPUs for each count, and prints which devices are used.

    On a machine without GPUs, the GPUs are virtual. Call this before the framework is first
    used.
    """
    try:
        if max(counts) > 1 and not os.environ.get("XDEVICE_VIRTUAL_GPUS") and not _real_gpus():
            xdevice.virtual_gpus(max(counts))
        backend = xdevice.backend()
    except xdevice.errors.UnsupportedError as error:
        raise click.ClickException(f"{error}; --devices 1 trains without them") from error
    except xdevice.errors.XDeviceError as error:
        raise click.ClickException(str(error)) from error
    if backend.name not in FRAMEWORKS:
        raise click.ClickException(
            f"{backend.name} has no gradients; choose a framework: XDEVICE_BACKEND={FRAMEWORKS[0]} python {sys.argv[0]}"
        )
    console.print(f"This is {backend.name} {backend.version}.")
    there = xdevice.try_all_gpus()
    if backend.virtual:
        console.print(
            f"The {len(there)} GPUs are virtual, in place of real ones: they share the cores of this machine, so "
            f"training on several is correct, but slower than on one."
        )
    left_out = [str(count) for count in counts if count > len(there)]
    if left_out:
        console.print(
            f"Left out: {', '.join(left_out)} devices. There are {', '.join(map(str, there))}."
        )
    if len(left_out) == len(counts):
        raise click.UsageError(
            f"--devices asks for more than are there: {', '.join(map(str, there))}"
        )
    return [there[:count] for count in counts if count <= len(there)]


def _real_gpus() -> int:
    """Returns the number of real GPUs.

    A child process counts them, because Paddle accepts virtual GPUs only before it is imported
    in this process.
    """
    code = """
import sys, xdevice
try:
    print(xdevice.num_gpus())
except xdevice.errors.XDeviceError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(
            done.stderr.strip() or f"the count of GPUs ended with status {done.returncode}"
        )
    return int(done.stdout.split()[-1])


# training


def run(
    start: Start,
    places: Sequence[Sequence[xdevice.Device]],
    settings: Settings,
    console: Console,
) -> None:
    """Trains on each list of devices. Prints the loss, accuracy and time of each epoch, and a
    final comparison."""
    data = digits(settings.size, settings.examples)
    _require_shares(data, settings.batch, max(map(len, places)))
    console.print(
        f"{len(data.y)} digits of {settings.size} x {settings.size} to train on, in batches of {settings.batch}; "
        f"{len(data.test_y)} to test on."
    )
    history = {}
    for place in places:
        names = ", ".join(map(str, place))
        console.print(f"\non {names}\nepoch    loss  accuracy  seconds")
        history[names] = []
        for number, epoch in enumerate(train(start(place), place, data, settings, console), 1):
            history[names].append(epoch)
            console.print(
                f"{number:5}  {epoch.loss:6.3f}  {epoch.accuracy:8.3f}  {epoch.seconds:7.3f}"
            )
    _compare(history, console)
    if settings.plot is not None:
        _plot(history, settings.plot)


def _require_shares(data: Digits, batch: int, count: int) -> None:
    """Raises a `UsageError` if a device would get no example of some batch."""
    if len(data.y) < count:
        raise click.UsageError(
            f"{count} devices need {count} digits or more, not {len(data.y)}; raise --examples"
        )
    if data.smallest(batch) < count:
        raise click.UsageError(
            f"{len(data.y)} digits in batches of {batch} make one of {data.smallest(batch)}, too small for {count} "
            f"devices; raise --batch"
        )


def train(
    trainee: Trainee,
    place: Sequence[xdevice.Device],
    data: Digits,
    settings: Settings,
    console: Console,
) -> Iterator[Epoch]:
    """Trains, and yields the result of each epoch.

    All shares are moved to their devices before the clock starts, which is possible because the
    data are small.
    """
    shares = [
        xdevice.split_batch(batch, place, even=False) for batch in data.batches(settings.batch)
    ]
    test_x = xdevice.tensor(data.test_x, device=place[0])
    timer = xdevice.Timer(list(place))
    for _ in range(settings.epochs):
        timer.start()
        losses = [
            trainee.step(batch)
            for batch in track(
                shares,
                "training",
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
        ]
        seconds = timer.stop()
        total = sum(xdevice.item(loss) for step in losses for loss in step)
        scores = xdevice.to_numpy(trainee.predict(test_x))
        yield Epoch(
            total / len(data.y), float((scores.argmax(1) == data.test_y).mean()), seconds
        )


# the output


def _compare(history: dict[str, list[Epoch]], console: Console) -> None:
    is_timed = min(map(len, history.values())) > 1
    title = "\nThe last epoch, and the time of one after the first, which also compiles."
    if not is_timed:
        title = "\nThe only epoch: its time includes compiling, so it says nothing of speed; use --epochs 2"
    table = Table(title=title, title_justify="left", title_style="")
    for column in ("devices", "loss", "accuracy", "seconds", "times as fast"):
        table.add_column(column, justify="left" if column == "devices" else "right")
    first = None
    for names, epochs in history.items():
        seconds = median(epoch.seconds for epoch in epochs[1:] or epochs)
        first = first or seconds
        last = epochs[-1]
        faster = f"{first / seconds:.2f}" if is_timed else "-"
        table.add_row(
            names, f"{last.loss:.3f}", f"{last.accuracy:.3f}", f"{seconds:.3f}", faster
        )
    console.print(table)


def _plot(history: dict[str, list[Epoch]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    axes = figure.subplots(1, len(Epoch._fields))
    for axis, field in zip(axes, Epoch._fields, strict=True):
        for names, epochs in history.items():
            numbers = range(1, len(epochs) + 1)
            axis.plot(
                numbers, [getattr(epoch, field) for epoch in epochs], marker=".", label=names
            )
        axis.set(xlabel="epoch", ylabel=field, ylim=(0, None))
        axis.locator_params(axis="x", integer=True)
    axes[0].legend()
    figure.savefig(path)
