"""`xdevice info`: which backends exist, and what each of them can do on this machine.

Each backend is probed in a separate process (`python -m xdevice.cli.info NAME`), so that one broken installation
neither hides nor breaks the other backends.
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
    """A device that a backend finds, such as `gpu:0`. `name` is the name of the hardware. `memory` is its memory in
    bytes; None if the framework does not report it. `virtual` is True for a GPU that `xdevice.virtual_gpus` simulates
    in host memory."""

    device: str
    name: str
    memory: int | None
    virtual: bool


class Report(TypedDict):
    """The state of one backend on this machine: an item of `xdevice info --json`.

    `imports` is True if the framework can be imported; if it cannot, `error` says why. `why_no_gpu` says why the
    backend has no GPU; it is None if the backend has one. `install` says how to install the backend. `lacking` contains
    a sentence for each capability that xdevice refuses. Such a capability needs a private name that this version of the
    framework lacks. `engines` are the framework's own engines for several processes, the best one first. `launcher`
    describes the launcher that started this process as one of several; it is None without a launcher.
    """

    backend: str
    installed: bool
    imports: bool | None  # None if this is unknown
    version: str | None
    devices: list[DeviceReport]
    why_no_gpu: str | None
    lacking: list[str]
    engines: list[str]
    launcher: str | None
    error: str | None
    install: str


def probe_all(names: Sequence[str], timeout: float) -> list[Report]:
    """Probes the backends `names` and returns their reports, in the same order. The probe of a backend may take
    `timeout` seconds. Shows progress on standard error: a clock for each backend. If standard error is not a terminal,
    prints a single line at the beginning."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from xdevice.cli.progress import progress_display

    with progress_display(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    ) as progress:
        # without a terminal, one line explains why nothing seems to happen for a while
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

        # only two at once: the import of TensorFlow 2.21 kept one core busy for 17 s, and used 760 MB of memory
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(probe, names))


def probe_one(name: str, timeout: float) -> Report:
    """Probes one backend in a new process, and returns its report. If that process crashes, or takes longer than
    `timeout` seconds, `error` in the report says so."""
    if not registry.is_installed(name):
        return _empty_report(name, error="not installed", installed=False)
    command = [sys.executable, "-m", "xdevice.cli.info", name]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout:g} s: the machine is busy, or the import hangs; use a larger --timeout"
        late = _empty_report(name, error=why)
        # unknown: the import may only be slow
        late["imports"] = None
        return late
    if process.returncode != 0:
        # the last line is the error of a traceback or, after an abort, the last message of C++ code
        last = process.stderr.strip().splitlines()[-1:] or ["the process wrote nothing"]
        return _empty_report(
            name, error=f"the process ended {status_text(process.returncode)}: {last[0]}"
        )
    # a framework may print something when it is imported, so only the last line is the report
    report: Report = json.loads(process.stdout.splitlines()[-1])
    return report


def probe_here(name: str) -> Report:
    """Probes one backend in this process, and returns its report. This imports the framework, and may start its
    devices."""
    from xdevice.errors import XDeviceError

    try:
        backend = registry.load(name)
    except XDeviceError as error:
        return _empty_report(name, error=str(error), version=versions.installed_version(name))
    devices: list[DeviceReport] = [
        {
            "device": str(device),
            "name": about.name,
            "memory": about.memory,
            "virtual": device.kind == "gpu" and backend.virtual > 0,
        }
        for device in backend.devices()
        # a loop over one item, which only gives the description a name
        for about in [backend.describe(device)]
    ]
    report = _empty_report(name, version=backend.version)
    report["imports"], report["devices"] = True, devices
    report["lacking"] = backend.private_names.lacking() if backend.private_names else []
    report["engines"] = [f"{name}:{engine}" for engine in backend.engines()]
    report["why_no_gpu"] = (
        None if "gpu" in backend.kinds and backend.count("gpu") else backend.why_no_gpu()
    )
    return report


def _empty_report(
    name: str, error: str | None = None, installed: bool = True, version: str | None = None
) -> Report:
    """Returns a report without results. If the backend does not work, `error` is the reason, and this report is
    complete. If the backend works, `error` is None, and the caller adds the results."""
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
    """Returns the name of the launcher that started this process, with the rank of the process. Returns None without a
    launcher. If the launcher's environment variables contradict each other, returns a message that says so."""
    try:
        launch = launchers.find_launch()
    except SettingError as error:
        return f"unknown, because its environment variables contradict each other: {error}"
    if launch is None:
        return None
    return f"{launch.launcher}, rank {launch.rank} of {launch.size}"


# how the column "imports" shows each value, with rich's marks for colours
_STATES: Final = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]?[/]"}


def print_reports(reports: Sequence[Report]) -> None:
    """Prints the reports as a table, and the engines and the launcher below it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="xdevice backends on this machine")
    for heading in ("backend", "version", "imports", "devices", "notes"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        # a backend that is not installed is not a failure, so its cell does not show a red "no"
        state = _STATES[report["imports"]] if report["installed"] else "-"
        devices = "\n".join(_device_lines(report["devices"]))
        table.add_row(
            report["backend"], report["version"] or "-", state, devices, _note(report)
        )
    console = Console()
    console.print(table)
    engines = ", ".join(engine for report in reports for engine in report["engines"])
    # `markup=False`, because rich would interpret brackets in the name of an engine as markup
    console.print(
        f"Engines for several processes: {engines or 'none'}", markup=False, highlight=False
    )
    # all reports have the same launcher, because the probes inherit the variables of this
    # process
    launcher = reports[0]["launcher"] if reports else None
    none = "none; start several processes with xdevice launch -n 2 script.py"
    console.print(f"Launcher: {launcher or none}", markup=False, highlight=False)
    # PyPI has another package named xdevice: if both are installed, they overwrite each other's files
    if (clash := registry.namesake_warning()) is not None:
        console.print(f"Problem: {clash}", style="red", markup=False, highlight=False)


def _device_lines(devices: Sequence[DeviceReport]) -> list[str]:
    """Returns the lines of the table for these devices. Devices with the same name and memory, such as the 16 CPUs of
    MXNet, share a line."""
    lines: dict[tuple[str, str, int | None], list[str]] = {}
    for device in devices:
        kind = device["device"].partition(":")[0]
        lines.setdefault((kind, device["name"], device["memory"]), []).append(device["device"])
    return [_device_line(places, name, memory) for (_, name, memory), places in lines.items()]


def _device_line(places: list[str], name: str, memory: int | None) -> str:
    """Returns the line for one or more devices, such as `gpu:0 to gpu:3 (NVIDIA H100, 79.6 GiB)`. `places` are the
    devices' names in xdevice, `name` is the name of the hardware, and `memory` is in bytes."""
    span = places[0] if len(places) == 1 else f"{places[0]} to {places[-1]}"
    size = f", {memory / 2**30:.1f} GiB" if memory else ""
    # some backends call a CPU just "cpu", which the line already contains
    about = f" ({name}{size})" if name != places[0].partition(":")[0] or size else ""
    return span + about


def _note(report: Report) -> str:
    """Returns the last cell of a row. It says how to install the backend, or why the backend or its GPU does not work.
    Below that, it lists the capabilities that the backend lacks."""
    from rich.markup import escape

    if not report["installed"]:
        return escape(f"not installed: {report['install']}")
    return escape(
        "\n".join(filter(None, [report["error"] or report["why_no_gpu"], *report["lacking"]]))
    )


# this runs in the process that `probe_one` starts
if __name__ == "__main__":
    print(json.dumps(probe_here(sys.argv[1])))
