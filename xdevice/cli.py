"""The command line: `xdevice info`, `xdevice tour` and `xdevice bench`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__, registry, selection
from .errors import UnsupportedError, XDeviceError

if TYPE_CHECKING:
    from .bench import Row


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xdevice")
def main() -> None:
    """One device API for PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy."""


@main.command()
@click.argument("names", nargs=-1, metavar="[BACKEND]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds that one backend may take.")
def info(names: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """Which backends are here, whether they import, and which devices they see.

    Each is probed in a process of its own. The exit status is 0, or 1 if a BACKEND named here fails.
    """
    from . import info as reports

    wanted = _canonical(names) or registry.names()
    found = reports.probe_all(wanted, timeout)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        reports.show(found)
    if names and not all(report["imports"] for report in found):
        sys.exit(1)


@main.command()
@click.option("--backend", "name", metavar="NAME", help="The backend; else the selected one.")
@click.option("--all", "every", is_flag=True, help="Every installed backend, each in a process of its own.")
@click.option("--several", is_flag=True, hidden=True, help="Only the part on several devices.")
@click.option("--result", type=click.Path(path_type=Path), hidden=True, help="Where to write what came out, as JSON.")
def tour(name: str | None, every: bool, several: bool, result: Path | None) -> None:
    """The GPU chapter of d2l.ai, end to end, on real tensors; then several devices, virtual ones if need be.

    The exit status is 1 if a step failed.
    """
    from . import tour as chapter

    if every and name:
        raise click.UsageError("--all takes every installed backend, so it goes without --backend")
    here = _tour_several if several else _tour_here
    outcomes = [_tour_in_child(one) for one in selection.backends()] if every else [here(name)]
    if result is not None:
        result.write_text(json.dumps(outcomes[0]))
        sys.exit(0)
    chapter.show_table(outcomes)
    sys.exit(0 if all(outcome["failed"] == [] for outcome in outcomes) else 1)


@main.command()
@click.option("--backend", "name", metavar="NAME", help="The backend; else the selected one.")
@click.option("--all", "every", is_flag=True, help="Every installed backend, each in a process of its own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Draw the figures into a PNG or SVG file.")
@click.option("--quick", is_flag=True, help="Less work: to see that it runs, not to be quoted.")
def bench(name: str | None, every: bool, as_json: bool, picture: Path | None, quick: bool) -> None:
    """The experiments of the performance chapters, on this machine.

    Waiting, blocking, two devices side by side, three tasks at once, copying while computing, reading values one by
    one, and the bandwidth of copies. Figures of one run; nothing is asserted.
    """
    from . import bench as experiments

    if every and name:
        raise click.UsageError("--all takes every installed backend, so it goes without --backend")
    rows = (
        [row for one in selection.backends() for row in _bench_in_child(one, quick)] if every else _bench(name, quick)
    )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        experiments.show(rows)
    if picture is not None:
        experiments.plot(rows, picture)
    sys.exit(1 if any(row["failed"] for row in rows) else 0)


def _bench(name: str | None, quick: bool) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    from . import bench as experiments

    try:
        backend = selection.backend(name)
    except XDeviceError as error:
        raise click.ClickException(str(error)) from error
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(backend.name, total=len(experiments.EXPERIMENTS))

        def step(what: str) -> None:
            progress.update(task, description=f"{backend.name}: {what}", advance=1)

        return experiments.run(backend, quick, step)


def _bench_in_child(name: str, quick: bool) -> list[Row]:
    command = [sys.executable, "-m", "xdevice", "bench", "--backend", name, "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("["):
        why = f"the process ended with status {done.returncode}"
        nothing: Row = {
            "backend": name,
            "experiment": "-",
            "case": "-",
            "value": None,
            "unit": "s",
            "best": None,
            "why_not": why,
            "failed": True,
        }
        return [nothing]
    rows: list[Row] = json.loads(done.stdout)
    return rows


def _tour_here(name: str | None) -> dict[str, Any]:
    from . import tour as chapter

    try:
        backend = selection.backend(name)
    except XDeviceError as error:
        raise click.ClickException(str(error)) from error
    outcome = chapter.run(backend)
    if any(device.kind == "gpu" for device in backend.devices()):
        outcome["failed"] += chapter.run_several(backend)
    else:  # virtual GPUs have to be there from the start
        outcome["failed"] += _tour_in_child(backend.name, "--several", XDEVICE_VIRTUAL_GPUS="2")["failed"]
    return outcome


def _tour_several(name: str | None) -> dict[str, Any]:
    from . import tour as chapter

    try:
        backend = selection.backend(name)
    except UnsupportedError as error:
        click.echo(f"No virtual GPUs: {error}")
        del os.environ["XDEVICE_VIRTUAL_GPUS"]
        backend = selection.backend(name)
    return {"backend": backend.name, "version": backend.version, "failed": chapter.run_several(backend)}


def _tour_in_child(name: str, *options: str, **variables: str) -> dict[str, Any]:
    """One framework that crashes then costs its own row, and none sees the others' threads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "xdevice", "tour", "--backend", name, "--result", str(path), *options]
        status = subprocess.run(command, check=False, env={**os.environ, **variables}).returncode
        if path.exists():
            outcome: dict[str, Any] = json.loads(path.read_text())
            return outcome
    return {"backend": name, "version": "?", "devices": [], "failed": [f"the process ended with status {status}"]}


def _canonical(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(registry.canonical(name) for name in names))
    except XDeviceError as error:
        raise click.ClickException(str(error)) from error
