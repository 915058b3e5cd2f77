"""`xdevice info`: which backends there are, and what each can do on this machine.

Each backend is probed in a process of its own (`python -m xdevice.cli.info NAME`), so that one broken install neither
hides nor breaks the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypedDict

from xdevice.base.statuses import status_text
from xdevice.core import registry, versions
from xdevice.distributed import launchers
from xdevice.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final


class DeviceReport(TypedDict):
    """A device that a backend sees, such as `gpu:0`. `name` is the name of the hardware. `memory` is in bytes, None
    if the framework does not report it. `virtual` is True for a GPU that `xdevice.virtual_gpus` has made of host
    memory."""

    device: str
    name: str
    memory: int | None
    virtual: bool


class Report(TypedDict):
    """One backend, as it is on this machine: an item of `xdevice info --json`.

    `imports` tells whether the framework can be imported, and `error` says why it cannot. `why_no_gpu` says why the
    backend has no GPU, None if it has one. `install` says how to install the backend. `lacking` has a sentence for
    each capability that xdevice refuses, because it needs a private name of the framework that this version lacks.
    `engines` are the framework's own engines for several processes, the best one first. `launcher` describes the
    launcher that started this process as one of several, None if none did.
    """

    backend: str
    installed: bool
    imports: bool | None  # None if it is not known
    version: str | None
    devices: list[DeviceReport]
    why_no_gpu: str | None
    lacking: list[str]
    engines: list[str]
    launcher: str | None
    error: str | None
    install: str


def probe_all(names: Sequence[str], timeout: float) -> list[Report]:
    """Probes these backends and returns their reports, in the order of `names`. Each backend may take `timeout`
    seconds. Shows progress on standard error: a clock for each backend; if standard error is not a terminal, a single
    line at the beginning."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from xdevice.cli.progress import bar

    with bar(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    ) as progress:
        # without a terminal, one line says why nothing seems to happen for a while
        if progress.disable:
            print(
                f"probing {', '.join(names)}; each probe imports a framework",
                file=sys.stderr,
                flush=True,
            )
        tasks = {name: progress.add_task(f"probing {name}", total=1) for name in names}

        def probe(name: str) -> Report:
            """Probes one backend, removes its clock, and returns its report."""
            report = probe_one(name, timeout)
            progress.remove_task(tasks[name])
            return report

        # only two at once: the import of TensorFlow 2.21 kept one core busy for 17 s, and took 760 MB
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(probe, names))


def probe_one(name: str, timeout: float) -> Report:
    """Probes one backend in a new process, and returns its report. If that process crashes, or takes longer than
    `timeout` seconds, `error` in the report says so."""
    if not registry.is_installed(name):
        return _report(name, error="not installed", installed=False)
    command = [sys.executable, "-m", "xdevice.cli.info", name]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout:g} s: the machine is busy, or the import hangs; use a larger --timeout"
        late = _report(name, error=why)
        # not known: the import may only be slow
        late["imports"] = None
        return late
    if process.returncode != 0:
        # the last line of a traceback is the error; after an abort, it is the last message of C++ code
        last = process.stderr.strip().splitlines()[-1:] or ["the process wrote nothing"]
        return _report(
            name, error=f"the process ended {status_text(process.returncode)}: {last[0]}"
        )
    # only the last line is the report, because a framework may print something when it is imported
    report: Report = json.loads(process.stdout.splitlines()[-1])
    return report


def probe_here(name: str) -> Report:
    """Probes one backend in this process, and returns its report. This imports the framework, and may start its
    devices."""
    from xdevice.errors import XDeviceError

    try:
        backend = registry.load(name)
    except XDeviceError as error:
        return _report(name, error=str(error), version=versions.installed_version(name))
    devices: list[DeviceReport] = [
        {
            "device": str(device),
            "name": about.name,
            "memory": about.memory,
            "virtual": device.kind == "gpu" and backend.virtual > 0,
        }
        for device in backend.devices()
        for about in [backend.describe(device)]
    ]
    report = _report(name, version=backend.version)
    report["imports"], report["devices"] = True, devices
    report["lacking"] = backend.private_names.lacking() if backend.private_names else []
    report["engines"] = [f"{name}:{engine}" for engine in backend.engines()]
    report["why_no_gpu"] = (
        None if "gpu" in backend.kinds and backend.count("gpu") else backend.why_no_gpu()
    )
    return report


def _report(
    name: str, error: str | None = None, installed: bool = True, version: str | None = None
) -> Report:
    """Returns a report without results. If the backend does not work, `error` is the reason, and the report is
    complete. If the backend works, `error` is None, and the caller fills in the results."""
    return {
        "backend": name,
        "installed": installed,
        "imports": False,
        "version": version,
        "devices": [],
        "why_no_gpu": None,
        "lacking": [],
        "engines": [],
        "launcher": _launcher(),
        "error": error,
        "install": registry.install_hint(name),
    }


def _launcher() -> str | None:
    """Returns the name of the launcher that started this process, with the process's rank; None if no launcher did. If
    the launcher's environment variables contradict each other, returns a text that says so."""
    try:
        launch = launchers.find_launch()
    except SettingError as error:
        return f"unknown, because its environment variables contradict each other: {error}"
    return launch and f"{launch.launcher}, rank {launch.rank} of {launch.size}"


# how the column "imports" shows each value, with rich's marks for colors
_STATES: Final = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]?[/]"}


def show(reports: Sequence[Report]) -> None:
    """Prints the reports as a table, and the engines and the launcher below it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="xdevice backends on this machine")
    for heading in ("backend", "version", "imports", "devices", "notes"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        # a backend that is not installed is no failure, so no "no" in red
        state = _STATES[report["imports"]] if report["installed"] else "-"
        devices = "\n".join(_device_lines(report["devices"]))
        table.add_row(
            report["backend"], report["version"] or "-", state, devices, _note(report)
        )
    console = Console()
    console.print(table)
    engines = ", ".join(engine for report in reports for engine in report["engines"])
    # `markup=False`: names of engines may have brackets, which rich would take for markup
    console.print(
        f"Engines for several processes: {engines or 'none'}", markup=False, highlight=False
    )
    # all reports have the same launcher, because the probes inherit this process's variables
    launcher = reports[0]["launcher"] if reports else None
    none = "none; start several processes with xdevice launch -n 2 script.py"
    console.print(f"Launcher: {launcher or none}", markup=False, highlight=False)
    # PyPI has another package named xdevice: if both are installed, they overwrite each other's files
    if (clash := registry.namesake()) is not None:
        console.print(f"Problem: {clash}", style="red", markup=False, highlight=False)


def _device_lines(devices: Sequence[DeviceReport]) -> list[str]:
    """The lines for these devices. Devices with the same name and memory, such as the 16 CPUs of MXNet, share a
    line."""
    lines: dict[tuple[str, str, int | None], list[str]] = {}
    for device in devices:
        kind = device["device"].partition(":")[0]
        lines.setdefault((kind, device["name"], device["memory"]), []).append(device["device"])
    return [_device_line(places, name, memory) for (_, name, memory), places in lines.items()]


def _device_line(places: list[str], name: str, memory: int | None) -> str:
    """The line for one or more devices, such as `gpu:0 to gpu:3 (NVIDIA H100, 79.6 GiB)`. `places` are their names in
    xdevice, and `memory` is in bytes."""
    span = places[0] if len(places) == 1 else f"{places[0]} to {places[-1]}"
    size = f", {memory / 2**30:.1f} GiB" if memory else ""
    # some backends call a CPU just "cpu", which the line says already
    about = f" ({name}{size})" if name != places[0].partition(":")[0] or size else ""
    return span + about


def _note(report: Report) -> str:
    """The last cell of a row: how to install the backend, or why it or its GPU does not work. Below that, the
    capabilities that it lacks."""
    from rich.markup import escape

    if not report["installed"]:
        return escape(f"not installed: {report['install']}")
    return escape(
        "\n".join(filter(None, [report["error"] or report["why_no_gpu"], *report["lacking"]]))
    )


# in the process that `probe_one` starts
if __name__ == "__main__":
    print(json.dumps(probe_here(sys.argv[1])))
