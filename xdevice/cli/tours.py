"""The command `xdevice tour`: the chapter on one backend in this process, or on all in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from xdevice.base.statuses import status_text
from xdevice.contract import environment
from xdevice.core import selection
from xdevice.errors import UnsupportedError

from .running import backend_called, run_child


@click.command()
@click.option("--backend", "name", metavar="NAME", help="The backend; by default the selected one.")
@click.option("--all", "every", is_flag=True, help="Every installed backend, each in a process of its own.")
@click.option("--steps", is_flag=True, help="With --all: print each step of each backend, some 1,500 lines.")
@click.option("--several", is_flag=True, hidden=True, help="Only the part on several devices.")
@click.option("--result", type=click.Path(path_type=Path), hidden=True, help="Where to write what came out, as JSON.")
def tour(name: str | None, every: bool, steps: bool, several: bool, result: Path | None) -> None:
    """Runs the GPU chapter of d2l.ai step by step, then a part on several devices, virtual ones if there are no GPUs.

    It prints each step, or with --all a line for each backend and the steps of one that fails. The exit status is 1 if
    a step failed.
    """
    from . import tour_summary as summary

    if every and name:
        raise click.UsageError("--all takes every installed backend, so it goes without --backend")
    here = _several if several else _here
    outcomes = _of_all(steps) if every else [here(name)]
    if result is not None:
        result.write_text(json.dumps(outcomes[0]))
        sys.exit(0)
    summary.show_table(outcomes)
    if every:
        click.echo(summary.words(outcomes))
    sys.exit(0 if all(outcome["failed"] == [] for outcome in outcomes) else 1)


def _here(name: str | None) -> dict[str, Any]:
    from . import tour as chapter

    backend = backend_called(name)
    outcome = chapter.run(backend)
    if "gpu" not in backend.kinds or any(device.kind == "gpu" for device in backend.devices()):
        outcome["failed"] += chapter.run_several(backend)
    else:  # virtual GPUs have to be there from the start
        outcome["failed"] += _in_child(backend.name, "--several", gpus="2")["failed"]
    return outcome


def _several(name: str | None) -> dict[str, Any]:
    from . import tour as chapter

    try:
        backend = selection.backend(name)
    except UnsupportedError as error:
        click.echo(f"No virtual GPUs: {error}")
        del os.environ[environment.VIRTUAL_GPUS]
        backend = selection.backend(name)
    return {"backend": backend.name, "version": backend.version, "failed": chapter.run_several(backend)}


def _of_all(steps: bool) -> list[dict[str, Any]]:
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from xdevice.twins.parity import progress as progresses

    from . import tour_summary as summary

    outcomes = []
    names = selection.backends()
    with progresses.bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        for number, name in enumerate(names, 1):
            task = progress.add_task(f"{name}, {number} of {len(names)}")
            start = time.monotonic()
            outcomes.append(_in_child(name, is_quiet=not steps))
            progress.remove_task(task)
            click.echo(summary.line(outcomes[-1], time.monotonic() - start))
    return outcomes


def _in_child(name: str, *options: str, is_quiet: bool = False, gpus: str | None = None) -> dict[str, Any]:
    """Runs the tour of one backend in a process of its own, so that a crash ends only this backend's tour, and several
    frameworks never have their threads in one process. If it is quiet, its output is shown only if a step failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "xdevice", "tour", "--backend", name, "--result", str(path), *options]
        # with --all, the part on several devices (--several) is a child of a child: it ends with its parent's group
        virtual = {environment.VIRTUAL_GPUS: gpus} if gpus else {}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"} if is_quiet else {}
        done = run_child(command, alone="--several" not in options, env={**os.environ, **virtual}, **output)
        ended = [f"the process ended {status_text(done.returncode)}"]
        outcome: dict[str, Any] = {"backend": name, "version": "?", "devices": [], "failed": ended}
        if path.exists():
            outcome = json.loads(path.read_text())
    if is_quiet and outcome["failed"]:
        click.echo(done.stdout)
    return outcome
