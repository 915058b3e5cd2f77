"""What the abstraction costs: each neutral call against the framework's own, on the same tensors, in one run.

    python benchmarks/overhead.py                       # every installed backend
    python benchmarks/overhead.py --backend torch --json
    python benchmarks/overhead.py --batches             # dicts of 3, 1,000 and 100,000 tensors of PyTorch

The two calls of a row take turns, so that the noise of the machine meets both; a row shows the medians and their ratio.
`array_api_compat` and `accelerate` are shown where they are installed and take the tensor.

`--batches` compares with accelerate's `send_to_device` and `optree.tree_map` of `x.to`, where they are installed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

import xdevice

sys.path.insert(0, str(Path(__file__).parent))
import native_calls

Row = dict[str, Any]


@click.command()
@click.option("--backend", "names", multiple=True, metavar="NAME", help="Only these backends.")
@click.option(
    "--rounds", default=15, show_default=True, help="How often each pair takes turns."
)
@click.option(
    "--batches", "with_batches", is_flag=True, help="Batches of PyTorch's tensors instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(names: tuple[str, ...], rounds: int, with_batches: bool, as_json: bool) -> None:
    if with_batches:
        rows = batch_rows(rounds)
    else:
        rows = [import_row(rounds)]
        console = Console(stderr=True)
        for name in track(
            names or xdevice.backends(),
            "measuring",
            console=console,
            disable=not console.is_terminal,
        ):
            rows += measure(name, rounds)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)


def measure(name: str, rounds: int) -> list[Row]:
    """The rows of one backend. Its second device has to be made before it is used."""
    backend = xdevice.backend(name)
    second = backend.samples().other_device()
    with xdevice.use_backend(name):
        here = xdevice.try_gpu()
        there = second if here.kind == "cpu" else xdevice.cpu()
        x = xdevice.tensor([[1.0, 2.0], [3.0, 4.0]], device=here)
        xs = [xdevice.copy_to(x, here) for _ in range(10)]
        calls = getattr(native_calls, name)(x, xs, here.native, there.native if there else None)
        to_device, device_of, same_device = (
            xdevice.to_device,
            xdevice.device_of,
            xdevice.same_device,
        )
        wanted: list[tuple[str, Callable[[], Any], Callable[[], Any] | None]] = [
            (
                f"to_device, there already; {calls.to_device_says}",
                lambda: to_device(x, here),
                calls.to_device,
            ),
            ("device_of", lambda: device_of(x), calls.device_of),
            ("same_device of ten tensors", lambda: same_device(*xs), calls.same_device),
            ("try_gpu", xdevice.try_gpu, None),
            (
                "copy_to the same device, 16 bytes",
                lambda: xdevice.copy_to(x, here),
                calls.copy_to,
            ),
        ]
        wanted += [
            (f"to_device by {other}", call, calls.to_device) for other, call in others(x, here)
        ]
        rows = [pair(name, what, mine, theirs, rounds) for what, mine, theirs in wanted]
        if there is not None and there.kind != "meta":
            rows.append(large_move(name, here, there, rounds))
    return rows


def large_move(name: str, here: xdevice.Device, there: xdevice.Device, rounds: int) -> Row:
    """64 MB that really move, waited for; a fresh tensor each time, because TensorFlow keeps the copies it has made."""
    source = xdevice.random.uniform(4096, 4096, device=here)
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for seen, mine in zip(times, (True, False), strict=True):
            x = xdevice.copy_to(source, here)
            calls = getattr(native_calls, name)(x, [x], here.native, there.native)
            xdevice.sync()
            start = time.perf_counter_ns()
            xdevice.sync(xdevice.to_device(x, there) if mine else calls.move())
            seen.append(time.perf_counter_ns() - start)
    return row(name, f"to_device, 64 MB from {here} to {there}", *times)


def others(x: Any, here: xdevice.Device) -> list[tuple[str, Callable[[], Any]]]:
    """The no-op of other libraries, where they are installed and take this tensor."""
    found: list[tuple[str, Callable[[], Any]]] = []
    try:
        from array_api_compat import to_device

        native = here.native
        to_device(x, native)
        found.append(("array_api_compat", lambda: to_device(x, native)))
    except (ImportError, ValueError, AttributeError, TypeError):
        pass
    try:
        import torch
        from accelerate.utils import send_to_device

        if isinstance(x, torch.Tensor):
            found.append(("accelerate", lambda: send_to_device(x, here.native)))
    except ImportError:
        pass
    return found


def batch_rows(rounds: int) -> list[Row]:
    """`to_device` of batches, there already or moved, by other libraries, and what asks where they are."""
    rows = []
    with xdevice.use_backend("torch"):
        here = xdevice.try_gpu()
        ways = [("there already", here, here)]
        ways += [("to meta", here, xdevice.device("meta"))] if here.kind == "cpu" else []
        ways += (
            [("host to GPU", xdevice.cpu(), here), ("GPU to host", here, xdevice.cpu())]
            if here.kind == "gpu"
            else []
        )
        for count in (3, 1_000, 100_000):
            turns = rounds if count < 100_000 else 3
            for how, source, target in ways:
                for kind, batch in batches(count, source).items():
                    mine = partial(xdevice.to_device, batch, target)
                    for other, theirs in batch_movers(batch, target.native):
                        rows.append(
                            pair(
                                "torch",
                                f"{kind} of {count:,}, {how}; {other}",
                                mine,
                                theirs,
                                turns,
                            )
                        )
            batch = batches(count, here)["dict"]
            moving = partial(xdevice.to_device, batch, here)
            for verb in (xdevice.device_of, xdevice.same_device, xdevice.check_same_device):
                what = f"{verb.__name__} of a dict of {count:,}; to_device"
                rows.append(pair("torch", what, partial(verb, batch), moving, turns))
    return rows


def batches(count: int, place: xdevice.Device) -> dict[str, Any]:
    """What a training loop moves at each step, of tensors of 16 bytes."""
    xs = [xdevice.ones(4, device=place) for _ in range(count)]
    nested = {
        f"part {i}": {"x": xs[i : i + 10], "name": "a", "n": 1} for i in range(0, count, 10)
    }
    return {"dict": {f"x{i}": x for i, x in enumerate(xs)}, "list": xs, "nested dict": nested}


def batch_movers(batch: Any, native: Any) -> list[tuple[str, Callable[[], Any]]]:
    found: list[tuple[str, Callable[[], Any]]] = []
    try:
        from accelerate.utils import send_to_device

        found.append(("accelerate", lambda: send_to_device(batch, native)))
    except ImportError:
        pass
    try:
        import optree

        found.append(
            (
                "optree",
                lambda: optree.tree_map(
                    lambda x: x.to(native) if hasattr(x, "to") else x, batch
                ),
            )
        )
    except ImportError:
        pass
    return found


def pair(
    name: str, what: str, mine: Callable[[], Any], theirs: Callable[[], Any] | None, rounds: int
) -> Row:
    """Medians of two calls that take turns, in nanoseconds, and their ratio."""
    calls = [mine] if theirs is None else [mine, theirs]
    timers = [timeit.Timer(call) for call in calls]
    numbers = [max(1, timer.autorange()[0] // 10) for timer in timers]
    times: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, number, seen in zip(timers, numbers, times, strict=True):
            seen.append(timer.timeit(number) / number * 1e9)
    return row(name, what, *times)


def row(name: str, what: str, mine: list[float], theirs: list[float] | None = None) -> Row:
    """The medians of the times, in nanoseconds, and their ratio."""
    ns = statistics.median(mine)
    native_ns = statistics.median(theirs) if theirs else None
    return {
        "backend": name,
        "what": what,
        "ns": ns,
        "native_ns": native_ns,
        "ratio": ns / native_ns if native_ns else None,
    }


def import_row(rounds: int) -> Row:
    """`import xdevice` in a fresh process, without the interpreter's own start."""
    code = "import time; t = time.perf_counter_ns(); import xdevice; print(time.perf_counter_ns() - t)"
    times: list[float] = []
    for _ in range(rounds):
        times.append(
            int(
                subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, check=True
                ).stdout
            )
        )
        time.sleep(0.01)
    return row("-", "import xdevice", times)


def show(rows: list[Row]) -> None:
    table = Table(title="xdevice against the framework's own call")
    for heading in ("backend", "call", "xdevice", "framework", "ratio"):
        table.add_column(heading, justify="left" if heading in ("backend", "call") else "right")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(
            row["backend"], row["what"], readable(row["ns"]), readable(row["native_ns"]), ratio
        )
    Console(width=120).print(table)


def readable(ns: float | None) -> str:
    if ns is None:
        return "-"
    if ns < 1e4:
        return f"{ns:.0f} ns"
    return f"{ns / 1e3:.1f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms"


if __name__ == "__main__":
    main()
