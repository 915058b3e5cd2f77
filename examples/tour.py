"""Run the GPU chapter of d2l.ai on every installed framework, each in its own process.

    python examples/tour.py                    prints a line for each framework, the times, and what was left out
    python examples/tour.py --show torch jax   also prints the output of the chapter, on these two frameworks

Each process runs examples/use_gpu.py on the devices of this machine, and again on two virtual
GPUs if it has no real GPUs. The chapter checks its own results. The exit status is 1 if it
failed on any framework.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import xdevice

CHAPTER = Path(__file__).with_name("use_gpu.py")
FRAMEWORKS = ("torch", "tensorflow", "paddle", "mxnet", "jax", "numpy")
TIME = re.compile(r"^(.+): ([\d.]+ (?:ms|sec))$", re.MULTILINE)


def chapter(name, gpus=None):
    """Runs the chapter on one framework. Returns its output and its errors, or "" if there were
    none."""
    variables = {**os.environ, "XDEVICE_BACKEND": name, "PYTHONIOENCODING": "utf-8"}
    if gpus is not None:
        variables["XDEVICE_VIRTUAL_GPUS"] = gpus
    command = [sys.executable, str(CHAPTER)]
    done = subprocess.run(
        command, env=variables, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode == 0:
        return done.stdout, ""
    return done.stdout, done.stderr or f"It ended with the status {done.returncode}."


def visit(name, shows):
    """Runs the chapter on the machine's devices and on two virtual GPUs, and prints a line
    about both runs.

    Returns the times that the first run printed, by their labels, or None if a run failed.
    """
    start = time.monotonic()
    printed, error = chapter(name)
    virtual, virtual_error = chapter(name, gpus="2")
    refused = "UnsupportedError" in virtual_error and "virtual GPUs" in virtual_error
    lacks = refused or (not virtual_error and "gpu:" not in virtual)  # NumPy has only the CPU
    if shows:
        click.echo(
            f"\n{printed}\nOn two virtual GPUs:\n{virtual_error.splitlines()[-1] if refused else virtual}"
        )
    failures = [text for text in (error, "" if lacks else virtual_error) if text]
    both = (
        "as the machine is; it has no virtual GPUs"
        if lacks
        else "as the machine is, and on two GPUs"
    )
    how = "FAILED" if failures else f"all as the chapter says, {both}"
    version = re.search(r"^This is (.+)\.$", printed, re.MULTILINE)
    click.echo(f"{version[1] if version else name}: {how}, in {time.monotonic() - start:.0f} s")
    for text in failures:
        click.echo(text)
    return None if failures else dict(TIME.findall(printed))


def show_times(times):
    columns = list(dict.fromkeys(what for measured in times.values() for what in measured))
    table = Table(title="What the chapter measured here")
    for heading in ("", *columns):
        table.add_column(heading, justify="right" if heading else "left")
    for name, measured in times.items():
        table.add_row(name, *(measured.get(what, "-") for what in columns))
    Console().print(table)


def why_absent(name):
    try:
        return f"{name}: {xdevice.backend(name).version}"
    except xdevice.errors.XDeviceError as error:
        return str(error)


@click.command(help=__doc__.partition("\n")[0])
@click.argument("names", nargs=-1, metavar="[FRAMEWORK]...")
@click.option("--show", is_flag=True, help="Print all that the chapter prints.")
def main(names, show):
    wanted = names or xdevice.backends()
    if unknown := set(wanted) - set(xdevice.backends()):
        raise click.UsageError("; ".join(map(why_absent, sorted(unknown))))
    times = {}
    for number, name in enumerate(wanted, 1):
        with Console(stderr=True).status(f"{name}, {number} of {len(wanted)}"):
            times[name] = visit(name, show)
    ran = {name: measured for name, measured in times.items() if measured is not None}
    if ran:
        show_times(ran)
    click.echo(
        f"As the chapter says: {', '.join(ran) or 'none'}. Failed: {', '.join(times.keys() - ran) or 'none'}."
    )
    absent = [why_absent(name) for name in FRAMEWORKS if name not in xdevice.backends()]
    click.echo("Left out, as not installed: " + ("; ".join(absent) or "none") + ".")
    click.echo(
        "All that the chapter prints: python examples/tour.py --show, and the name of a framework."
    )
    sys.exit(0 if len(ran) == len(times) else 1)


if __name__ == "__main__":
    main()
