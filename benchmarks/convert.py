"""What `xdevice.convert` takes: against the size where memory is shared, against NumPy where it has to be copied.

    python benchmarks/convert.py                  # 1 KB to 1 GB, all backends that are installed
    python benchmarks/convert.py --max 64M --backends torch,jax
    python benchmarks/convert.py --json

The first table: microseconds of a conversion that shares memory, by size, for every pair. It does not grow with the
size. The second: the time of a conversion that cannot share, for its layout or address, over that of the plain way
through NumPy (`tf.constant(x.numpy())` and the like), by size. At or below 1 is the aim.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import xdevice

NAMES = ("torch", "tensorflow", "paddle", "mxnet", "jax", "numpy")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
COPIED_UP_TO = 64 * 2**20


class Row(NamedTuple):
    """One pair: a number for each size that was tried."""

    source: str
    target: str
    layout: str
    numbers: dict[int, float]


def sizes(largest: int) -> list[int]:
    """Bytes, 1 KB and every 32-fold of it."""
    return [2**10 * 32**step for step in range(5) if 2**10 * 32**step <= largest]


def text(size: int) -> str:
    unit = next(unit for unit in ("G", "M", "K") if size >= UNITS[unit])
    return f"{size // UNITS[unit]} {unit}B"


def fastest(*runs: Callable[[], Any], budget: float = 0.3) -> list[float]:
    """The least seconds of each run; they take turns, so that the noise of the machine meets all of them."""
    found = [math.inf] * len(runs)
    for run in runs:
        run()
    end = time.perf_counter() + budget * len(runs)
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            found[number] = min(found[number], time.perf_counter() - start)
        rounds += 1
    return found


def aligned(size: int) -> Any:
    """A float32 array of `size` bytes at a multiple of 64 bytes, with every page touched."""
    memory = np.ones(size + 64, "uint8")
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view("float32")


def shared(names: list[str], largest: int, step: Callable[[], None]) -> Iterator[Row]:
    for source, target in itertools.permutations(names, 2):
        row = Row(source, target, "contiguous", {})
        for size in sizes(largest):
            x = (
                aligned(size)
                if source == "numpy"
                else xdevice.backend(source).from_numpy(aligned(size), xdevice.cpu())
            )
            x = xdevice.convert(x, source)
            row.numbers[size] = fastest(
                lambda x=x, target=target: xdevice.convert(x, target, copy=False)
            )[0]
            step()
        yield row


def plain_ways(
    names: list[str],
) -> tuple[dict[str, Callable[[Any], Any]], dict[str, Callable[[Any], Any]]]:
    """Out of and into each framework by NumPy, as its own users write it."""
    frameworks = {name: xdevice.backend(name).framework for name in names}
    out = {name: lambda x: x.numpy() for name in names}
    out |= {"mxnet": lambda x: x.asnumpy(), "jax": np.asarray, "numpy": lambda x: x}
    into = {
        "torch": lambda a: frameworks["torch"].tensor(a if a.flags.c_contiguous else a.copy()),
        "tensorflow": lambda a: frameworks["tensorflow"].constant(a),
        "paddle": lambda a: frameworks["paddle"].to_tensor(a),
        "mxnet": lambda a: frameworks["mxnet"].np.array(a, dtype=a.dtype),
        "jax": lambda a: frameworks["jax"].numpy.array(a),
        "numpy": np.array,
    }
    return out, into


def layouts(source: str, size: int) -> Iterator[tuple[str, Any]]:
    side = math.isqrt(size // 4)
    square = aligned(4 * (side + 1) ** 2).reshape(side + 1, side + 1)
    x = (
        square
        if source == "numpy"
        else xdevice.backend(source).from_numpy(square, xdevice.cpu())
    )
    yield "misaligned", x[1:]
    if source in ("torch", "paddle", "numpy"):
        yield "transposed", x[:side, :side].T
        yield "sliced", x[:side, 1:]
    if source in ("paddle", "numpy"):
        yield "reversed", x[:side, :side][::-1]


def copied(names: list[str], largest: int, step: Callable[[], None]) -> Iterator[Row]:
    out, into = plain_ways(names)
    rows: dict[tuple[str, str, str], Row] = {}
    for source, target in itertools.permutations(names, 2):
        for size in sizes(min(largest, COPIED_UP_TO)):
            for layout, x in (
                layouts(source, size) if source in ("torch", "paddle", "numpy") else ()
            ):
                if is_shared(x, target):
                    continue
                ours, plain = fastest(
                    lambda x=x, target=target: done(target, xdevice.convert(x, target)),
                    lambda x=x, source=source, target=target: done(
                        target, into[target](out[source](x))
                    ),
                )
                row = rows.setdefault((source, target, layout), Row(source, target, layout, {}))
                row.numbers[size] = ours / plain
            step()
    yield from rows.values()


def is_shared(x: Any, target: str) -> bool:
    try:
        xdevice.convert(x, target, copy=False)
    except BufferError:
        return False
    return True


def done(name: str, x: Any) -> Any:
    xdevice.backend(name).wait(x)
    return x


def table(title: str, rows: list[Row], number: Callable[[float], str]) -> Table:
    columns = sorted({size for row in rows for size in row.numbers})
    found = Table("from", "to", "layout", *(text(size) for size in columns), title=title)
    for row in rows:
        cells = (number(row.numbers[size]) if size in row.numbers else "" for size in columns)
        found.add_row(row.source, row.target, row.layout, *cells)
    return found


def parsed_size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    unit = UNITS.get(value[-1:].upper(), 0)
    try:
        return int(float(value[:-1]) * unit) if unit else int(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no size; expected 1024, 64K, 256M, 1G"
        ) from None


@click.command()
@click.option(
    "--max",
    "largest",
    default="1G",
    show_default=True,
    callback=parsed_size,
    help="The largest size.",
)
@click.option(
    "--backends",
    default=",".join(NAMES),
    show_default=True,
    help="Which to try; the others are left out.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document instead of the tables."
)
def main(largest: int, backends: str, as_json: bool) -> None:
    """Prints what conversions take between all pairs."""
    names = [name.strip() for name in backends.split(",")]
    missing = [name for name in names if name not in xdevice.backends()]
    if missing:
        raise click.BadParameter(
            f"not installed: {', '.join(missing)}", param_hint="--backends"
        )
    pairs = len(names) * (len(names) - 1)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in names:
            progress.console.print(f"{name} {xdevice.backend(name).version}")
        total = pairs * (len(sizes(largest)) + len(sizes(min(largest, COPIED_UP_TO))))
        task = progress.add_task("converting", total=total)
        flat = list(shared(names, largest, lambda: progress.advance(task)))
        ratios = list(copied(names, largest, lambda: progress.advance(task)))
    if as_json:
        versions = {name: xdevice.backend(name).version for name in names}
        rows = {
            "shared": [row._asdict() for row in flat],
            "copied": [row._asdict() for row in ratios],
        }
        click.echo(json.dumps({"versions": versions, **rows}, indent=2))
        return
    console = Console()
    console.print(table("shared: microseconds", flat, lambda seconds: f"{seconds * 1e6:.1f}"))
    console.print(table("copied: time over NumPy's way", ratios, lambda ratio: f"{ratio:.2f}"))


if __name__ == "__main__":
    main()
