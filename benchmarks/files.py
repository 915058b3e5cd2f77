"""How fast `save` and `load` are, against plain files of the same size, for each backend installed, in one run.

    python benchmarks/files.py                   # 1 GB on the CPU, in the system's folder for temporary files
    python benchmarks/files.py --folder /data --gb 4 --tensors 64
    python benchmarks/files.py --device gpu --json

A ratio is the plain file's fastest time over our fastest, so 1 is as fast as a plain file, and 0.9 is to be reached.
Ours and the plain file take turns; beside the ratio are the medians, and the fastest and slowest, in seconds. Disks are
noisy, and memory too where other programs run: the fastest is what the code itself takes.

- save: against one `write` of the bytes and an `fsync`. Both end when the disk has the file, which is most of the time;
  ours gives it its name, too. Tensors on a GPU are copied to the host first.
- load: against one `readinto` of new memory. Both read what lies in the page cache, where the writing has left it, so
  this is the speed of memory and not that of the disk; a file not read before takes longer for both. On a GPU the
  ratio includes the copy to it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import xdevice


class Row(NamedTuple):
    """One line of the table."""

    backend: str
    verb: str
    ours: list[float]
    plain: list[float]

    @property
    def ratio(self) -> float:
        return min(self.plain) / min(self.ours)


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = run()
    xdevice.sync()
    taken = time.perf_counter() - start
    del result  # giving memory back is nobody's reading
    return taken


def write_plain(path: str, data: memoryview) -> None:
    with open(path, "wb", buffering=0) as file:
        rest = data
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def read_plain(path: str) -> np.ndarray:
    buffer = np.empty(os.path.getsize(path), "uint8")
    with open(path, "rb", buffering=0) as file:
        rest = memoryview(buffer)
        while rest:
            rest = rest[file.readinto(rest) :]
    return buffer


def measure(
    backend: str, arrays: dict[str, np.ndarray], device: str, folder: str, repeats: int
) -> list[Row]:
    plain, ours = os.path.join(folder, "plain"), os.path.join(folder, "ours")
    data = memoryview(np.concatenate([array.ravel() for array in arrays.values()])).cast("B")
    saves, loads = Row(backend, "save", [], []), Row(backend, "load", [], [])
    with xdevice.use_backend(backend):
        tensors = {name: xdevice.tensor(array, device=device) for name, array in arrays.items()}
        xdevice.sync()
        for number in range(repeats + 1):
            for path in (plain, ours):
                if os.path.exists(path):
                    os.unlink(path)
            writing = (
                seconds(lambda: write_plain(plain, data)),
                seconds(lambda: xdevice.save(ours, tensors)),
            )
            for path in (plain, ours):
                read_plain(path)  # into the page cache, should it have gone from there
            taken = (
                *writing,
                seconds(lambda: read_plain(plain)),
                seconds(lambda: xdevice.load(ours, device=device)),
            )
            if number:  # the first of each is slower: imports, kernels, memory
                for times, one in zip(
                    (saves.plain, saves.ours, loads.plain, loads.ours), taken, strict=True
                ):
                    times.append(one)
    return [saves, loads]


def span(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


@click.command()
@click.option("--gb", default=1.0, show_default=True, help="Size of the file.")
@click.option("--tensors", default=16, show_default=True, help="How many tensors it holds.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--backends", help="torch,jax; all that are installed if not given.")
@click.option("--device", default="cpu", show_default=True, help="Where the tensors are.")
@click.option(
    "--folder", type=click.Path(exists=True, file_okay=False), help="On the disk in question."
)
@click.option("--json", "as_json", is_flag=True)
def main(
    gb: float,
    tensors: int,
    repeats: int,
    backends: str,
    device: str,
    folder: str,
    as_json: bool,
) -> None:
    """Prints the speed of `save` and `load` as ratios to plain files."""
    size = max(1, int(gb * 1e9 / 4 / tensors))
    arrays = {
        f"layers.{number}.weight": np.full(size, number, "float32") for number in range(tensors)
    }
    rows: list[Row] = []
    names = backends.split(",") if backends else list(xdevice.backends())
    with (
        tempfile.TemporaryDirectory(dir=folder) as inner,
        Progress(console=Console(stderr=True)) as progress,
    ):
        for name in progress.track(names, description="measuring"):
            if device == "cpu" or xdevice.backend(name).count("gpu"):
                rows += measure(name, arrays, device, inner, repeats)
    if as_json:
        click.echo(
            json.dumps([{**row._asdict(), "ratio": row.ratio} for row in rows], indent=2)
        )
        return
    table = Table(
        title=f"{gb:g} GB in {tensors} tensors on {device}: 1 is as fast as a plain file"
    )
    for heading in ("backend", "", "ratio", "seconds", "plain file"):
        table.add_column(heading, justify="left" if heading in ("backend", "") else "right")
    for row in rows:
        table.add_row(
            row.backend, row.verb, f"{row.ratio:.2f}", span(row.ours), span(row.plain)
        )
    Console().print(table)


if __name__ == "__main__":
    main()
