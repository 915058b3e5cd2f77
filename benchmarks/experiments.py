"""The experiments of d2l.ai's performance chapters on this machine: each backend's times, and the best possible ones.

    python benchmarks/experiments.py                        # the selected backend
    python benchmarks/experiments.py --backend torch --json
    python benchmarks/experiments.py --quick                # less work: to see that it runs; not figures to quote

Waiting, blocking, two devices side by side, three tasks at once, a captured task, copying while computing, reading
values one by one, and the bandwidth of copies. The figures are of one run; none is checked. The exit status is 1 if an
experiment failed.

The chapters: https://d2l.ai/chapter_computational-performance/async-computation.html and auto-parallelism.html
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, TypedDict

import click
import numpy
from pinned import pinned_copies
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

import xdevice
from xdevice.base.devices import Device
from xdevice.contract import Backend
from xdevice.errors import UnsupportedError

MEGABYTE = 1_000_000


class Row(TypedDict):
    """One measured figure. `best` is the best value possible here, computed from the same run and in the same unit.
    `why_not` says why nothing was measured.

    `virtual` is True if the GPUs are virtual. They share the host's cores, so `best` cannot be known, and is None.
    """

    backend: str
    virtual: bool
    experiment: str
    case: str
    value: float | None
    unit: str
    best: float | None
    why_not: str | None
    failed: bool


class Size:
    """How much work the experiments do: enough to be measured on a GPU, and little enough to end within seconds on a
    CPU."""

    def __init__(self, on_gpu: bool, quick: bool) -> None:
        self.product = 4096 if on_gpu and not quick else 512
        self.products = 20 if not quick else 4
        self.small = 1000 if not quick else 50
        self.batches = 12 if not quick else 4
        self.megabytes = 256 if on_gpu and not quick else 16


class Bench:
    """What the experiments run on: a backend, the device on which it computes, and a second device if the machine has
    one."""

    def __init__(self, backend: Backend, quick: bool = False) -> None:
        self.backend = backend
        second = backend.samples().other_device()
        gpus = [device for device in backend.devices() if device.kind == "gpu"]
        self.device = gpus[0] if gpus else xdevice.cpu()
        if gpus:
            second = gpus[1] if len(gpus) > 1 else None
        self.second = second if second is not None and second.kind != "meta" else None
        self.is_virtual = bool(gpus) and backend.virtual > 0
        self.size = Size(bool(gpus) and not self.is_virtual, quick)

    def row(
        self, experiment: str, case: str, value: float | None, unit: str = "s", best: float | None = None,
        why_not: str | None = None, failed: bool = False,
    ) -> Row:  # fmt: skip
        return {
            "backend": self.backend.name, "virtual": self.is_virtual, "experiment": experiment, "case": case,
            "value": value, "unit": unit, "best": None if self.is_virtual else best, "why_not": why_not,
            "failed": failed,
        }  # fmt: skip

    def square(self, place: Device, size: int | None = None) -> Any:
        n = size or self.size.product
        with place:
            x = xdevice.random.uniform(n, n) * (2 / n)  # its powers neither grow nor vanish
        xdevice.sync(products(x, 1))
        return x


def products(x: Any, count: int) -> Any:
    """Multiplies `x` by itself `count` times in a chain, each product with the result of the last, without waiting in
    between."""
    # TensorFlow would copy inputs from other GPUs to the first one, and compute there
    with xdevice.device_of(x):
        y = x
        for _ in range(count):
            y = x @ y
    return y


def seconds(work: Callable[[], Any], wait: bool = True) -> float:
    xdevice.sync()
    start = perf_counter()
    result = work()
    if wait:
        xdevice.sync()
    taken = perf_counter() - start
    xdevice.sync()
    del result
    return taken


def settled(work: Callable[[], Any]) -> float:
    """The median time of five calls, after three that warm up: on a GPU the first calls take up to ten times as
    long."""
    return median([seconds(work) for _ in range(8)][3:])


# the experiments


def timing(bench: Bench) -> Iterator[Row]:
    """Times a computation twice: with a clock that does not wait for the asynchronous work to end, and with one that
    does."""
    x = bench.square(bench.device)
    for case, wait in (("not waited for", False), ("waited for", True)):
        taken = seconds(lambda: products(x, bench.size.products), wait)
        yield bench.row("timing", case, taken)


def blocking(bench: Bench) -> Iterator[Row]:
    """Times a computation with and without `xdevice.accelerator.blocking()`, in which every operation completes before
    the next line runs."""
    x = bench.square(bench.device, 256)
    free = seconds(lambda: products(x, bench.size.small))
    yield bench.row("blocking", "off", free)
    with xdevice.accelerator.blocking():
        # PyTorch imports its compiler at the first operation, which takes seconds
        products(x, 1)
        yield bench.row(
            "blocking", "on", seconds(lambda: products(x, bench.size.small)), best=free
        )


def two_devices(bench: Bench) -> Iterator[Row]:
    """Times work on two devices, one after the other and side by side."""
    if bench.second is None:
        yield bench.row("two devices", "-", None, why_not="there is one device")
        return
    xs = [bench.square(place) for place in (bench.device, bench.second)]
    alone = [seconds(lambda x=x: products(x, bench.size.products)) for x in xs]  # type: ignore[misc]
    yield bench.row("two devices", "one after the other", sum(alone))
    tasks = [lambda x=x: products(x, bench.size.products) for x in xs]
    xdevice.parallel.run(*tasks)
    yield bench.row(
        "two devices",
        "side by side",
        seconds(lambda: xdevice.parallel.run(*tasks)),
        best=max(alone),
    )


def three_tasks(bench: Bench) -> Iterator[Row]:
    """Times three small tasks on one device, in sequence and in parallel."""
    xs = [bench.square(bench.device, 256) for _ in range(3)]
    alone = settled(lambda: [products(x, bench.size.small // 3) for x in xs])
    yield bench.row("three tasks", "in sequence", alone)
    tasks = [lambda x=x: products(x, bench.size.small // 3) for x in xs]
    yield bench.row(
        "three tasks",
        "in parallel",
        settled(lambda: xdevice.parallel.run(*tasks)),
        best=alone / 3,
    )
    try:
        graphs = [
            xdevice.accelerator.make_graphed_callable(task, bench.device) for task in tasks
        ]
    except UnsupportedError:
        return
    # only the device's time: without graphs, threads also take time to launch operations
    yield bench.row(
        "three tasks", "captured, in parallel", settled(lambda: xdevice.parallel.run(*graphs))
    )


def repeated_task(bench: Bench) -> Iterator[Row]:
    """Times a task of small products, first as a plain call, then captured as a graph and replayed."""
    x = bench.square(bench.device, 100)

    def task() -> Any:
        return products(x, bench.size.small)

    replay = xdevice.accelerator.make_graphed_callable(task, bench.device)
    replay()
    yield bench.row("repeated task", "called", seconds(task))
    yield bench.row("repeated task", "captured and replayed", seconds(replay))


def overlap(bench: Bench) -> Iterator[Row]:
    """Times work on batches from the host: each copied and then computed on, and each copied while the last is computed
    on."""
    n = bench.size.product
    batches = [
        numpy.random.default_rng(i).random((n, n), dtype=numpy.float32)
        for i in range(bench.size.batches)
    ]
    weight = bench.square(bench.device)

    def copied() -> Iterable[Any]:
        return [xdevice.tensor(batch, device=bench.device) for batch in batches]

    def prefetched() -> Iterable[Any]:
        return xdevice.prefetch(batches, bench.device)

    def computed(xs: Iterable[Any]) -> Any:
        return [products(x @ weight, 3) for x in xs]

    computed(prefetched())  # a first run, which makes streams and memory
    copy, compute = seconds(copied), seconds(partial(computed, copied()))
    first, last = copy / len(batches), compute / len(batches)  # these two overlap with nothing
    best = max(copy + last, compute + first)
    naive = seconds(
        lambda: computed(xdevice.tensor(batch, device=bench.device) for batch in batches)
    )
    yield bench.row("overlap", "in turn", naive, best=best)
    yield bench.row("overlap", "prefetched", seconds(lambda: computed(prefetched())), best=best)


def norms(bench: Bench) -> Iterator[Row]:
    """Times norms of products that are read one by one, and norms that are kept on the device and read at the end."""
    x = bench.square(bench.device, 100)
    row, column = (
        xdevice.ones(1, 100, device=bench.device),
        xdevice.ones(100, 1, device=bench.device),
    )

    def norm() -> Any:
        y = x @ x
        return (row @ (y * y) @ column) ** 0.5

    xdevice.item(norm())
    one_by_one = seconds(lambda: [xdevice.item(norm()) for _ in range(bench.size.small)])
    kept = seconds(
        lambda: [xdevice.item(y) for y in [norm() for _ in range(bench.size.small)][-1:]]
    )
    yield bench.row("norms", "one by one", one_by_one, best=kept)
    yield bench.row("norms", "kept on the device", kept)


def bandwidth(bench: Bench) -> Iterator[Row]:
    """Measures copies between host and device, and between devices, in GB (1e9 bytes) a second."""
    count = bench.size.megabytes * MEGABYTE // 4
    host = numpy.random.default_rng(0).random(count, dtype=numpy.float32)
    here = xdevice.tensor(host, device=bench.device)
    ways: list[tuple[str, Callable[[], Any]]] = [
        ("host to device", lambda: xdevice.tensor(host, device=bench.device)),
        ("device to host", lambda: xdevice.to_numpy(here)),
        ("within the device", lambda: xdevice.copy_to(here, bench.device)),
    ]
    has_pinned = bench.device.kind == "gpu" and not bench.is_virtual
    pinned = (
        pinned_copies(bench.backend.name, bench.backend.framework, here) if has_pinned else None
    )
    if pinned is not None:
        ways += [("host to device, pinned", pinned[0]), ("device to host, pinned", pinned[1])]
    if bench.second is not None:
        other = bench.second
        ways.append(("to the other device", lambda: xdevice.copy_to(here, other)))
    for case, work in ways:
        work()
        fastest = min(seconds(work) for _ in range(3))
        yield bench.row("bandwidth", case, host.nbytes / fastest / 1e9, unit="GB/s")


EXPERIMENTS: Sequence[Callable[[Bench], Iterator[Row]]] = (
    timing, blocking, two_devices, three_tasks, repeated_task, overlap, norms, bandwidth,
)  # fmt: skip


@click.command()
@click.option(
    "--backend", "name", metavar="NAME", help="The backend; by default the selected one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--quick", is_flag=True, help="Less work: to see that it runs; not figures to quote."
)
def main(name: str | None, as_json: bool, quick: bool) -> None:
    backend = xdevice.backend(name)
    with xdevice.use_backend(backend):
        bench = Bench(backend, quick)
        console = Console(stderr=True)
        shown = track(
            EXPERIMENTS, backend.name, console=console, disable=not console.is_terminal
        )
        rows = [row for experiment in shown for row in rows_of(experiment, bench)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)
    sys.exit(1 if any(row["failed"] for row in rows) else 0)


def rows_of(experiment: Callable[[Bench], Iterator[Row]], bench: Bench) -> list[Row]:
    name = experiment.__name__.replace("_", " ")
    rows: list[Row] = []
    try:
        rows.extend(experiment(bench))  # those before an error stay
    except UnsupportedError as error:
        rows.append(bench.row(name, "-", None, why_not=str(error)))
    except Exception as error:  # such as a build without kernels for this GPU
        why_not = f"FAILED: {type(error).__name__}: {error}".strip().splitlines()[0][:300]
        rows.append(bench.row(name, "-", None, why_not=why_not, failed=True))
    return rows


VIRTUAL = (
    "Virtual GPUs are memory of the host and share its cores: these figures show that the experiments run, and nothing "
    "about what hardware would do (docs/explanation/virtual.md)."
)


def show(rows: Sequence[Row]) -> None:
    table = Table(
        title="The experiments",
        caption=VIRTUAL if any(row["virtual"] for row in rows) else None,
    )
    for heading in ("backend", "experiment", "case"):
        table.add_column(heading, overflow="fold")
    for heading in ("measured", "best possible here"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = [readable(row[which], row["unit"]) for which in ("value", "best")]
        case = row["case"] if row["value"] is not None else escape(row["why_not"] or "")
        name = f"{row['backend']} (virtual GPUs)" if row["virtual"] else row["backend"]
        table.add_row(name, row["experiment"], case, *figures)
    Console().print(table)


def readable(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f} GB/s" if unit == "GB/s" else f"{1000 * value:.2f} ms"


if __name__ == "__main__":
    main()
