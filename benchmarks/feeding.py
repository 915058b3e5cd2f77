"""A training step fed in five ways, in one run: how long it takes with each, beside batches that are there already.

    python benchmarks/feeding.py

PyTorch on gpu:0. A vision transformer (12 blocks of 384 numbers, patches of 16 x 16, bfloat16 by autocast) is trained
on batches of 256 x 3 x 224 x 224 float32, 154 MB each, that lie in ordinary memory of the host. The ways take turns;
printed are the median milliseconds of a step, and images per second.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
import measured
import numpy as np

import xdevice

BATCH, SIDE, PATCH, WIDTH, BLOCKS, HEADS, CLASSES = 256, 224, 16, 384, 12, 6, 100
STEPS, ROUNDS, DIFFERENT = 16, 7, 4


def trained(torch: Any, gpu: Any) -> Callable[[Any], None]:
    """A step of training as people write it: it takes a batch on the GPU."""
    nn = torch.nn
    block = nn.TransformerEncoderLayer(
        WIDTH,
        HEADS,
        4 * WIDTH,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
    blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
    model = nn.ModuleDict(
        {"patches": patches, "blocks": blocks, "head": nn.Linear(WIDTH, CLASSES)}
    )
    model = xdevice.to_device(model, gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    labels = xdevice.to_device(torch.arange(BATCH) % CLASSES, gpu)

    def step(images: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            tokens = model["patches"](images).flatten(2).transpose(1, 2)
            scores = model["head"](model["blocks"](tokens).mean(1))
        loss = nn.functional.cross_entropy(scores.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ways(batches: list[Any], gpu: Any) -> dict[str, Callable[[], Iterable[Any]]]:
    """Each way brings the batches of an epoch to the GPU."""
    there = xdevice.to_device(batches[0], gpu)

    def source() -> Iterator[Any]:
        return (batches[i % len(batches)] for i in range(STEPS))

    return {
        "`x.to(device)`": lambda: (x.to(gpu.native) for x in source()),
        "`x.pin_memory().to(device, non_blocking=True)`": lambda: (
            x.pin_memory().to(gpu.native, non_blocking=True) for x in source()
        ),
        "`xdevice.to_device`": lambda: (xdevice.to_device(x, gpu) for x in source()),
        "`xdevice.prefetch`": lambda: xdevice.prefetch(source(), gpu),
        "there already": lambda: (there for _ in range(STEPS)),
    }


def clock(feed: Callable[[], Iterable[Any]], step: Callable[[Any], None]) -> float:
    """Milliseconds of a step."""
    xdevice.sync()
    start = time.perf_counter()
    for batch in feed():
        step(batch)
    xdevice.sync()
    return (time.perf_counter() - start) / STEPS * 1e3


@click.command()
@click.option("--write", is_flag=True, help="Write the table to benchmarks/results, too.")
def main(write: bool) -> None:
    """Prints a table of the five ways."""
    xdevice.set_backend("torch")
    if not xdevice.num_gpus():
        raise click.ClickException("this needs a GPU: " + xdevice.backend().why_no_gpu())
    gpu, torch = xdevice.gpu(), xdevice.backend().framework
    draw = np.random.default_rng(0)
    shape = (BATCH, 3, SIDE, SIDE)
    batches = [torch.from_numpy(draw.random(shape, dtype=np.float32)) for _ in range(DIFFERENT)]
    step, feeds = trained(torch, gpu), ways(batches, gpu)
    taken: dict[str, list[float]] = {name: [] for name in feeds}
    for _ in range(ROUNDS):
        for name, feed in feeds.items():
            taken[name].append(clock(feed, step))
    print(f"{xdevice.backend().describe(gpu).name}, torch {torch.__version__}\n")
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    rows = [
        [name, f"{median:.1f}", f"{BATCH / median * 1e3:,.0f}"]
        for name, median in medians.items()
    ]
    for row in rows:
        print(*row, sep=" | ")
    if write:
        measured.write("feeding", ["a step fed by", "ms", "images/s"], rows, ["torch"])


if __name__ == "__main__":
    main()
