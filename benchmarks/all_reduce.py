"""The rate of `xdevice.parallel.all_reduce` against NCCL's own through PyTorch, in one run.

    python benchmarks/all_reduce.py              # on the GPUs that are there
    python benchmarks/all_reduce.py --json

One float32 tensor on each GPU is summed in its place. The rate is the bytes of one of them over the median time of a
call, until all GPUs are done; the ratio is that rate over the rate of `torch.cuda.nccl.all_reduce` on PyTorch tensors
of the same size. On a machine with fewer than two GPUs it measures the way device to device between what there is, and
there is no NCCL to compare with.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

import xdevice
from xdevice.base.devices import Device


class Row(NamedTuple):
    """One framework's rate in GB/s, and its ratio to NCCL's where there is one."""

    backend: str
    devices: str
    rate: float
    ratio: float | None


def rate(call: Callable[[], Any], megabytes: float, repeats: int) -> float:
    """GB/s, by the median of single calls. The first three compile, and open NCCL's connections."""
    taken = []
    for number in range(repeats + 3):
        xdevice.sync()
        start = time.perf_counter()
        result = call()
        xdevice.sync(result)
        if number >= 3:
            taken.append(time.perf_counter() - start)
        del result
    return megabytes / 1e3 / statistics.median(taken)


def tensors(places: list[Device], megabytes: float) -> list[Any]:
    return [xdevice.zeros(int(megabytes * 1e6 / 4), device=place) for place in places]


def nccl(places: list[Device], megabytes: float, repeats: int) -> float | None:
    """What NCCL itself reaches, called through PyTorch."""
    with xdevice.use_backend("torch") as backend:
        torch = backend.framework
        if xdevice.num_gpus() < 2:
            return None
        xs = tensors(places, megabytes)
        if not torch.cuda.nccl.is_available(xs):
            return None

        def call() -> list[Any]:
            torch.cuda.nccl.all_reduce(xs)
            return xs

        return rate(call, megabytes, repeats)


def ours(name: str, megabytes: float, repeats: int, reference: float | None) -> Row:
    with xdevice.use_backend(name):
        places = replica_places()
        xs = tensors(places, megabytes)
        found = rate(lambda: xdevice.parallel.all_reduce(xs), megabytes, repeats)
    gc.collect()
    return Row(
        name, ", ".join(map(str, places)), found, found / reference if reference else None
    )


def replica_places() -> list[Device]:
    gpus = xdevice.try_all_gpus()
    return gpus if len(gpus) > 1 else gpus * 2


@click.command()
@click.option(
    "--backends",
    default="torch,jax,tensorflow",
    show_default=True,
    help="Which frameworks are measured.",
)
@click.option(
    "--megabytes",
    default=256.0,
    show_default=True,
    help="The size of each tensor, in 10^6 bytes.",
)
@click.option(
    "--repeats",
    default=15,
    show_default=True,
    help="How often each is timed; the median counts.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(backends: str, megabytes: float, repeats: int, as_json: bool) -> None:
    """Prints rates in GB/s, and ratios to NCCL's."""
    console = Console(stderr=True)
    names = [name for name in backends.split(",") if name in xdevice.backends()]
    with (
        xdevice.use_backend("torch")
        if "torch" in xdevice.backends()
        else xdevice.use_backend(names[0]) as backend
    ):
        places = replica_places()
        about = [backend.describe(place).name for place in places]
    reference = nccl(places, megabytes, repeats) if backend.name == "torch" else None
    if reference is None:
        console.print(
            "no two GPUs with NCCL here: what follows is the way device to device, and no ratio"
        )
    rows = []
    for name in names:
        console.print(f"measuring {name} ...")
        rows.append(ours(name, megabytes, repeats, reference))
    if as_json:
        document = {
            "megabytes": megabytes,
            "devices": about,
            "nccl": reference,
            "rows": [row._asdict() for row in rows],
        }
        click.echo(json.dumps(document, indent=2))
        return
    table = Table(
        "backend",
        "devices",
        "GB/s",
        "of NCCL's",
        title=f"all_reduce of {megabytes:g} MB: {', '.join(about)}",
    )
    if reference is not None:
        table.add_row("NCCL, by PyTorch", ", ".join(map(str, places)), f"{reference:.1f}", "1")
    for row in rows:
        table.add_row(
            row.backend,
            row.devices,
            f"{row.rate:.1f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
