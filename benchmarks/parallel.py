"""What `parallel.run` and `prefetch` gain on GPUs, against one thread, in one run. PyTorch, because it has streams.

    python benchmarks/parallel.py                # needs a GPU; several for the first two rows
    python benchmarks/parallel.py --json

A ratio of `parallel.run` is the sum of the single times over the time of all: 1 is no gain, 2 the most that two tasks
can gain. "naive" is the same work enqueued by one thread, on a stream for each task. "captured" is the same sum over
the time of the tasks as graphs of `make_graphed_callable`, side by side. The ratio of `prefetch` is the whole time over
the larger of copying alone and computing alone: 1 is the least. Every reading waits for all GPUs.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click

import xdevice

Task = Callable[[], Any]


class Row(NamedTuple):
    """One line of the table: a ratio, that of the naive way and of captured tasks, and what is to be reached."""

    what: str
    ratio: float
    naive: float
    captured: float | None
    target: float
    seconds: dict[str, float]


def seconds(run: Task) -> float:
    xdevice.sync()
    start = time.perf_counter()
    run()
    xdevice.sync()
    return time.perf_counter() - start


def medians(repeats: int, **runs: Task) -> dict[str, float]:
    """The runs take turns in random order, so that the noise of the machine, and what ran before, meet all of them."""
    for run in runs.values():
        seconds(run)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name in random.sample(list(runs), len(runs)):
            taken[name].append(seconds(runs[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


def products(size: int, count: int, gpu: Any) -> Task:
    """The chapter's products of one matrix with itself, of which the last one is returned."""
    x = xdevice.random.uniform(size, size, device=gpu)

    def task() -> Any:
        for _ in range(count):
            y = x @ x
        return y

    return task


def side_by_side(what: str, tasks: list[Task], target: float, repeats: int) -> Row:
    singles = {f"task {number}": task for number, task in enumerate(tasks)}
    streams = [
        xdevice.backend().framework.cuda.Stream(i)
        for i in range(xdevice.num_gpus())
        for _ in tasks
    ]
    by_task = [streams[number :: len(tasks)] for number in range(len(tasks))]

    def one_thread() -> None:
        for task, own in zip(tasks, by_task, strict=True):
            with contextlib.ExitStack() as stack:
                for stream in own:
                    stack.enter_context(xdevice.backend().framework.cuda.stream(stream))
                task()

    graphs = [
        xdevice.accelerator.make_graphed_callable(task, xdevice.device_of(task()))
        for task in tasks
    ]
    ways = {
        "together": lambda: xdevice.parallel.run(*tasks),
        "captured": lambda: xdevice.parallel.run(*graphs),
    }
    found = medians(repeats, **singles, **ways, one_thread=one_thread)
    single = sum(found[name] for name in singles)
    ratio, naive, captured = (
        single / found[name] for name in ("together", "one_thread", "captured")
    )
    return Row(what, ratio, naive, captured, target, found)


def overlap(gpu: Any, repeats: int, batches: int = 40, size: int = 4096) -> Row:
    torch = xdevice.backend().framework
    host = [torch.rand(size, size).pin_memory() for _ in range(4)]
    weight = xdevice.random.uniform(size, size, device=gpu)

    def source() -> Iterator[Any]:
        return (host[i % len(host)] for i in range(batches))

    def copy() -> None:
        for batch in source():
            batch.to(gpu.native, non_blocking=True)

    def step(batch: Any, steps: int) -> None:
        for _ in range(steps):
            batch = batch @ weight

    one = medians(3, copy=copy, compute=lambda: [step(weight, 1) for _ in range(batches)])
    # as long as the copy, where overlap gains most
    steps = max(1, round(one["copy"] / one["compute"]))

    def naive() -> None:
        for batch in source():
            step(batch.to(gpu.native), steps)

    def ours() -> None:
        for batch in xdevice.prefetch(source(), gpu):
            step(batch, steps)

    def compute() -> None:
        for _ in range(batches):
            step(weight, steps)

    found = medians(repeats, copy=copy, compute=compute, naive=naive, prefetch=ours)
    least = max(found["copy"], found["compute"])
    return Row(
        f"prefetch, {size}x{size} batches",
        found["prefetch"] / least,
        found["naive"] / least,
        None,
        1.05,
        found,
    )


def rows(repeats: int) -> Iterator[Row]:
    gpus = xdevice.try_all_gpus()
    count = len(gpus)
    if count > 1:
        small = [products(100, 20_000, gpu) for gpu in gpus]
        yield side_by_side(
            f"{count} GPUs, 20,000 products of 100x100 each", small, 0.85 * count, repeats
        )
        large = [products(4096, 200, gpu) for gpu in gpus]
        yield side_by_side(
            f"{count} GPUs, 200 products of 4096x4096 each", large, 0.975 * count, repeats
        )
    for size in (256, 512):
        three = [products(size, 300, gpus[0]) for _ in range(3)]
        # of milliseconds each, so that noise counts
        yield side_by_side(
            f"1 GPU, 3 tasks of 300 products of {size}x{size}", three, 1.6, 5 * repeats
        )
    yield overlap(gpus[0], repeats)


@click.command()
@click.option(
    "--repeats",
    default=7,
    show_default=True,
    help="How often each run is timed; the median counts.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(repeats: int, as_json: bool) -> None:
    """Prints the ratios of `parallel.run` and `prefetch`, beside the naive way's and the targets."""
    xdevice.set_backend("torch")
    if not xdevice.num_gpus():
        raise click.ClickException("this needs a GPU: " + xdevice.backend().why_no_gpu())
    about = [xdevice.backend().describe(gpu).name for gpu in xdevice.try_all_gpus()]
    found = []
    for row in rows(repeats):
        found.append(row)
        if not as_json:
            captured = f"{row.captured:5.2f}" if row.captured else "    -"
            ratios = f"{row.ratio:5.2f}   naive {row.naive:5.2f}   captured {captured}   target {row.target:4.2f}"
            click.echo(f"{row.what:48} {ratios}")
    if as_json:
        document = {
            "torch": xdevice.backend().version,
            "gpus": about,
            "rows": [row._asdict() for row in found],
        }
        click.echo(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
