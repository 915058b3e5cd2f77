"""What xdevice.distributed.processes costs beside the bare engine, and which engine is the fastest, in one run.

    python benchmarks/processes.py                  # all that is installed; about two minutes on two quiet cores
    python benchmarks/processes.py --only jax --json

Two processes on this machine call all_reduce on float32 by turns: a block of calls by the one way, then a block by the
other. The least time of each counts: on a few cores the others say how the system wakes processes. `bare` is
`torch.distributed.all_reduce`; JAX's and TensorFlow's own are their engines of xdevice without votes, which add some
10 us to 100 ms; MXNet's is its key-value store.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import timeit
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

import xdevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL, LARGE = 1 << 10, 1 << 24  # elements: 4 KB and 64 MB
OWN = {"jax": "jax:gloo", "tensorflow": "tensorflow:ring", "paddle": "paddle:gloo"}
ALL = ("one", "torch", "jax", "tensorflow", "mxnet", "paddle", "numpy")
GOALS = {"jax": 2.0, "tensorflow": 3.5, "mxnet": 4.0}
"""How many times as fast as its own a framework should be by the engine that auto chooses, at 64 MB."""

SERVER = "import xdevice; xdevice.backend('mxnet').framework"
"""Importing MXNet in this role serves until it is killed."""


class Row(NamedTuple):
    """Two times of one thing, in seconds, and what was to be reached."""

    what: str
    reference: float
    ours: float
    found: str
    goal: str
    is_reached: bool | None


# what the processes do


def least(ways: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """The least time of a call, by the turns of all ways."""
    found = dict.fromkeys(ways, float("inf"))
    for number in range(rounds + 1):
        for name, call in ways.items():
            for _ in range(calls):
                begun = time.perf_counter()
                call()
                taken = time.perf_counter() - begun
                if number:  # the first round compiles and connects
                    found[name] = min(found[name], taken)
    return found


def both_sizes(
    ways: Callable[[Any], dict[str, Callable[[], Any]]], quick: bool
) -> dict[str, dict[str, float]]:
    found = {}
    for label, count, rounds, calls in (("4 KB", SMALL, 30, 50), ("64 MB", LARGE, 10, 2)):
        x = xdevice.zeros(count)
        found[label] = least(ways(x), rounds // 10 if quick else rounds, calls)
    return found


def of_torch(quick: bool) -> dict[str, Any]:
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    found = {}
    for name, check in (("unchecked", False), ("checked", True)):
        with xdevice.distributed.processes(engine="torch:gloo", check=check) as world:
            found[name] = both_sizes(
                lambda x, world=world: {
                    "bare": lambda: torch.distributed.all_reduce(x),
                    "ours": lambda: world.all_reduce(x),
                },
                quick,
            )
    torch.distributed.destroy_process_group()
    return found


def of_another(quick: bool) -> dict[str, Any]:
    """The framework's own engine, and the one that auto chooses."""
    name = xdevice.backend().name
    found: dict[str, Any] = {}
    if name in OWN:
        with xdevice.distributed.processes(engine=OWN[name], check=False) as world:
            found["own"] = both_sizes(
                lambda x: {"bare": lambda: finished(world.all_reduce(x))}, quick
            )
    if name == "mxnet":
        found["own"] = both_sizes(kvstore(), quick)
    with xdevice.distributed.processes() as world:
        found["engine"] = world.engine
        found["auto"] = both_sizes(
            lambda x: {"ours": lambda: finished(world.all_reduce(x))}, quick
        )
    return found


def finished(x: Any) -> None:
    xdevice.sync(x)


def kvstore() -> Callable[[Any], dict[str, Callable[[], Any]]]:
    """MXNet's own sum: each process pushes, and pulls what the server has added."""
    import mxnet

    store = mxnet.kv.create("dist_sync")

    def ways(x: Any) -> dict[str, Callable[[], Any]]:
        key = str(x.shape[0])
        store.init(key, x)

        def call() -> None:
            store.push(key, x)
            store.pull(key, out=x)
            finished(x)

        return {"bare": call}

    return ways


# what is measured


def of_one() -> Iterator[Row]:
    """A world of one, in this process."""
    before = set(sys.modules)
    with xdevice.use_backend("numpy"), xdevice.distributed.processes() as world:
        x = xdevice.zeros(SMALL)
        verbs = {
            "all_reduce": lambda: world.all_reduce(x),
            "broadcast": lambda: world.broadcast(x),
            "all_gather": lambda: world.all_gather(x),
            "barrier": world.barrier,
        }
        for name, call in verbs.items():
            taken = min(timeit.repeat(call, number=10000, repeat=5)) / 10000
            yield Row(
                f"a world of one: {name}",
                0.0,
                taken,
                f"{taken * 1e6:.2f} us",
                "2 us",
                taken <= 2e-6,
            )
    engines = [
        name
        for name in set(sys.modules) - before
        if name in ("torch", "paddle", "jax", "tensorflow")
    ]
    yield Row(
        "a world of one: imports",
        0.0,
        0.0,
        ", ".join(engines) or "no engine",
        "no engine",
        not engines,
    )


def launched(name: str, quick: bool) -> dict[str, Any]:
    """What rank 0 of two processes has found."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "found.json"
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if name == "mxnet":
            environment.update(stack.enter_context(servers()))
        command = [
            sys.executable,
            "-m",
            "xdevice",
            "launch",
            "-n",
            "2",
            "--backend",
            name,
            __file__,
        ]
        done = subprocess.run(
            [*command, "--into", str(path), *["--quick"] * quick],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise click.ClickException(
                f"{name} ended with status {done.returncode}\n{done.stderr[-3000:]}"
            )
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """A scheduler and a server for MXNet's store, and what its workers have to be told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER], env={**os.environ, **told, "DMLC_ROLE": role}
        )
        for role in ("scheduler", "server")
    ]  # fmt: skip
    try:
        yield {**told, "DMLC_ROLE": "worker"}
    finally:
        for process in running:
            process.kill()
            process.wait()


def rows_of(name: str, quick: bool) -> Iterator[Row]:
    if name == "one":
        yield from of_one()
        return
    found = launched(name, quick)
    if name == "torch":
        for kind, goal in (("unchecked", 30e-6), ("checked", 250e-6)):
            bare, ours = found[kind]["4 KB"]["bare"], found[kind]["4 KB"]["ours"]
            over = ours - bare
            yield Row(
                f"torch, 4 KB, {kind}",
                bare,
                ours,
                f"+{over * 1e6:.0f} us",
                f"+{goal * 1e6:.0f} us",
                over <= goal,
            )
        for kind in ("unchecked", "checked"):
            bare, ours = found[kind]["64 MB"]["bare"], found[kind]["64 MB"]["ours"]
            yield Row(
                f"torch, 64 MB, {kind}",
                bare,
                ours,
                f"{ours / bare - 1:+.1%}",
                "+5 %",
                ours <= 1.05 * bare,
            )
        return
    for size, times in found["auto"].items():
        ours, own = times["ours"], found["own"][size]["bare"] if "own" in found else 0.0
        goal = GOALS.get(name) if size == "64 MB" else None
        yield Row(
            f"{name}, {size}, by {found['engine']}", own, ours,
            f"x{own / ours:.2f}" if own else "",
            f"x{goal:g}" if goal else "",
            own / ours >= goal if goal else None,
        )  # fmt: skip


def worker(into: Path, quick: bool) -> None:
    found = of_torch(quick) if xdevice.backend().name == "torch" else of_another(quick)
    if os.environ["XDEVICE_RANK"] == "0":
        into.write_text(json.dumps(found))


def show(rows: list[Row]) -> None:
    table = Table(title="all_reduce of float32 by two processes, the least time")
    for heading in ("what", "bare or own", "by xdevice", "ratio", "goal", ""):
        table.add_column(
            heading, justify="left" if heading == "what" else "right", no_wrap=True
        )
    for row in rows:
        reached = {True: "reached", False: "MISSED", None: ""}[row.is_reached]
        table.add_row(
            row.what, _text(row.reference), _text(row.ours), row.found, row.goal, reached
        )
    Console(width=120).print(table)


def _text(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


@click.command()
@click.option(
    "--only",
    type=click.Choice(ALL),
    multiple=True,
    help="What to measure; repeatable; else all installed.",
)
@click.option("--quick", is_flag=True, help="Less work: to see that it runs, not to be quoted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    hidden=True,
    help="Where a process writes what it found.",
)
def main(only: tuple[str, ...], quick: bool, as_json: bool, into: Path | None) -> None:
    """Prints times, ratios and the goals."""
    if into is not None:
        worker(into, quick)
        return
    console = Console(stderr=True)
    rows = []
    for name in only or [name for name in ALL if name == "one" or name in xdevice.backends()]:
        console.print(f"measuring {name} ...")
        for row in rows_of(name, quick):
            rows.append(row)
            console.print(f"{row.what}: {_text(row.reference)} {_text(row.ours)} {row.found}")
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
