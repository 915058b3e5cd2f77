"""The commands of `xdevice`: `info`, `parity`, `compare-runs`, `launch`, `scan`, `lint` and `port`."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xdevice.base import floats
from xdevice.base.version import __version__
from xdevice.core import registry, selection
from xdevice.errors import XDeviceError
from xdevice.port import commands as port_commands

from . import launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.twins.parity.parity_report import ParityReport
    from xdevice.twins.parity.script_runs import RunPlan
    from xdevice.twins.parity.tolerances import Strictness


class _Commands(click.Group):
    """The group of all commands. The exit status is 130 after Ctrl-C, as in shells, and 2 if a file cannot be read or
    written. Python and Click would exit with 1 in both cases, but here 1 means that a backend diverges or has
    failed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that the command line names, and returns its result."""
        for stream in (sys.stdout, sys.stderr):
            # a program that calls `main` may have replaced the stream by another object
            if isinstance(stream, TextIOWrapper):
                # on Windows, a pipe cannot encode some characters of our tables
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader, such as `head`, has closed the pipe: Click then exits without a message
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)


def _open_report(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """The callback of `--json` and `--html`: turns the name of a report file into an object that writes the file
    (method `write`). The name "-" means the standard output. Returns None if the option is missing.

    The file is opened here, so that a file that cannot be written is reported before a long run.
    """
    if value is None:
        return None
    if value == "-":
        return sys.stdout
    try:
        return _ReportFile(value)
    except OSError as error:
        raise click.BadParameter(f"{value!r}: {error.strerror}", ctx, param) from error


class _ReportFile:
    """A report file that is written completely or not at all. The report is written under another name in the same
    folder, and then renamed, so that an interrupt leaves the report of an earlier run unchanged."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` if the file cannot be written."""
        self.name = path
        self._path = Path(path).resolve()
        # pipes and devices are written directly, because they have no earlier content to keep
        is_special = self._path.exists() and not self._path.is_file()
        # the file into which `write` writes first
        self._written = (
            self._path
            if is_special
            else self._path.with_name(f".{self._path.name}.{os.getpid()}")
        )
        # raises the error now if the file cannot be opened; the mode "a" does not change a file
        # that exists
        self._written.open("a").close()
        # if the command fails, the temporary file is removed
        if not is_special:
            click.get_current_context().call_on_close(
                lambda: self._written.unlink(missing_ok=True)
            )

    def write(self, text: str) -> None:
        """Writes the report, which replaces the report of an earlier run."""
        self._written.write_text(text, encoding="utf-8")
        if self._written != self._path:
            self._written.replace(self._path)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xdevice")
def main() -> None:
    """One device API for PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy."""


@main.command(short_help="Show the installed backends and their devices.")
@click.argument("names", nargs=-1, metavar="[BACKEND]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    help="The number of seconds to wait for each backend.",
)
def info(names: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """Shows which backends are installed, whether they can be imported, and which devices they find.

    Each backend is imported in a separate process. The exit status is 1 if you name a BACKEND and it fails, else 0.
    """
    # imported under another name, because this function is called `info`
    from . import info as info_module

    reports = info_module.probe_all(_canonical_names(names) or registry.names(), timeout)
    if as_json:
        click.echo(json.dumps(reports, indent=2))
    else:
        info_module.print_reports(reports)
    # if the user named no backend, the command succeeds even if one fails
    if names and not all(report["imports"] for report in reports):
        sys.exit(1)


def _comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds to a command the options that `parity` and `compare-runs` share: how strictly to compare, and where to write
    the report."""
    options = [
        click.option(
            "--rtol",
            type=click.FloatRange(min=0),
            help="The relative tolerance; by default, it depends on the dtype.",
        ),
        click.option(
            "--atol",
            type=click.FloatRange(min=0),
            help="The absolute tolerance; by default, it depends on the dtype.",
        ),
        click.option("--equal-nan", is_flag=True, help="Treat NaN as equal to NaN."),
        click.option("--any-dtype", is_flag=True, help="Do not require equal dtypes."),
        click.option(
            "--json",
            "json_file",
            metavar="FILENAME",
            callback=_open_report,
            help="Write the report as JSON to this file; - is the standard output.",
        ),
        click.option(
            "--html",
            metavar="FILENAME",
            callback=_open_report,
            help="Write an HTML page with plots of the errors to this file.",
        ),
    ]
    # reversed, because the option that is added last comes first in --help
    for option in reversed(options):
        command = option(command)
    return command


@main.command(short_help="Run a script on each backend, and compare the values.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
@click.option(
    "--backends",
    metavar="NAME,NAME",
    help="The backends to run on; by default, all installed backends except NumPy.",
)
@click.option(
    "--reference",
    metavar="NAME",
    help="The backend that the others are compared with; by default, the first one.",
)
# for frameworks that cannot be installed together, or that need another version of Python
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="The Python interpreter for a backend; repeatable.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="The number of seconds to wait for each backend.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many backends run at once.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the recordings in this new folder.",
)
@click.option(
    "--overwrite", is_flag=True, help="Let --save replace an earlier run in its folder."
)
@click.option(
    "--trace",
    "is_traced",
    is_flag=True,
    help="Also compare the outputs of the models' layers, and name the first layer that differs.",
)
@click.option(
    "--operations",
    is_flag=True,
    help="Also name the first operation that differs, in the forward and the backward pass.",
)
@click.option(
    "--backward",
    is_flag=True,
    help="Also compare each gradient, in the order of the backward pass.",
)
@click.option(
    "--float64",
    is_flag=True,
    help="Run everything in float64, so that rounding cannot hide a fault.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Run the reference five more times to measure the effect of rounding.",
)
@_comparison_options
def parity(
    script: Path,
    arguments: tuple[str, ...],
    backends: str | None,
    reference: str | None,
    pythons: tuple[str, ...],
    timeout: float,
    jobs: int,
    save: Path | None,
    overwrite: bool,
    is_traced: bool,
    operations: bool,
    backward: bool,
    float64: bool,
    calibrate: bool,
    **options: Any,
) -> None:
    """Runs a script once on each backend, and compares the values that the script records.

    The script calls xdevice.parity.log("loss", loss) for each value to compare. With --trace it need not record
    anything. The script runs in a separate process for each backend, with XDEVICE_BACKEND set to its name. The exit
    status is 0 if all backends agree, 1 if a backend diverges, and 2 if a backend did not run.
    """
    from xdevice.cli.progress import show_progress
    from xdevice.twins.parity import run_folders, script_runs

    strictness, names = _strictness(options), _backends_to_run(backends)
    # the name of the backend with which all others are compared; `reference` may be an alias
    reference = _canonical_names((reference or names[0],))[0]
    _refuse_two_tolerances(float64, calibrate, strictness)
    # all options are checked before the first process starts, because a run takes minutes
    plan = script_runs.RunPlan(
        script,
        arguments,
        names,
        reference,
        _interpreters(pythons, names),
        timeout,
        jobs,
        is_traced=is_traced,
        floats=floats.FLOAT64 if float64 else "",
        calibrates=calibrate,
        # gradients are saved together with the operations
        keeps_operations=operations or backward,
        keeps_gradients=backward,
    )
    _refuse_useless_run(plan, names, save)
    _refuse_missing_backends(plan)
    if overwrite and save is None:
        raise click.UsageError("--overwrite has an effect only together with --save")
    if save is not None:
        _prepare_folder(save, overwrite)
    # CI sends SIGTERM to cancel a run: treat it like Ctrl-C, which leaves no process behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = [process.name for process in plan.scripts()]
    # explains why the reference is started so often
    if calibrate:
        more = len(runs) - len(names)
        click.echo(
            f"{script.name} runs {len(runs)} times: once on each backend, and {more} more times on {reference} to "
            "measure the effect of rounding",
            err=True,
        )
    # the comparison always reads files, even without --save, so that a saved run gives the same
    # report
    with tempfile.TemporaryDirectory() as scratch, show_progress(runs) as watcher:
        folder = save or Path(scratch)
        script_runs.run(plan, folder, watcher)
        report = _report_or_exit(lambda: run_folders.report_of_run(folder, strictness))
    _publish_and_exit(report, f"xdevice parity {script.name}", options)


@main.command(short_help="Compare the recordings of two parity runs.")
@click.argument(
    "first", metavar="A", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.argument(
    "second", metavar="B", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@_comparison_options
def compare_runs(first: Path, second: Path, **options: Any) -> None:
    """Compares the recordings in the folder B with those in the folder A.

    A and B are each the folder of a run (xdevice parity --save), or of one backend in a run. Each backend in B is
    compared with the same backend in A or, if A lacks it, with the reference of A. The exit status is 0 if all backends
    agree, 1 if a backend diverges, and 2 if a backend did not run.
    """
    from xdevice.twins.parity import run_folders

    report = _report_or_exit(
        lambda: run_folders.report_of_two(first, second, _strictness(options))
    )
    _publish_and_exit(report, f"xdevice compare-runs {first} {second}", options)


main.add_command(launch.launch)
main.add_command(port_commands.scan)
main.add_command(port_commands.port)
main.add_command(port_commands.lint)


def _refuse_two_tolerances(float64: bool, calibrate: bool, strictness: Strictness) -> None:
    """Raises `UsageError` if `--calibrate`, which measures the tolerances, is combined with an option that sets the
    tolerances or makes them unnecessary."""
    if calibrate and float64:
        raise click.UsageError(
            "--calibrate measures the rounding of float32, which --float64 avoids; use only one of these options"
        )
    if calibrate and (strictness.rtol is not None or strictness.atol is not None):
        raise click.UsageError(
            "--calibrate measures the tolerances; use either --calibrate, or --rtol and --atol"
        )


def _refuse_useless_run(plan: RunPlan, names: tuple[str, ...], save: Path | None) -> None:
    """Raises `UsageError` if a run could not compare anything, or if its options exclude each other. `names` are the
    backends that run, and `save` is the value of `--save`."""
    if plan.reference not in names:
        raise click.UsageError(
            f"--reference: {plan.reference} is not among the backends {', '.join(names)}; add it to --backends"
        )
    if plan.is_traced and plan.keeps_operations:
        raise click.UsageError(
            "--trace compares layers, but --operations and --backward compare operations; omit --trace or the others"
        )
    # with --save, one backend is enough, because `compare-runs` can compare its recordings later
    if len(names) == 1 and save is None:
        raise click.UsageError(
            f"{names[0]} has nothing to be compared with; name another in --backends, or "
            "keep the recordings with --save"
        )


def _refuse_missing_backends(plan: RunPlan) -> None:
    """Raises `UsageError` if a backend that is planned to run in this Python interpreter is not installed here."""
    for name, python in plan.pythons.items():
        # it is unknown here which packages another interpreter lacks: a run there fails, and the report says why
        if python == sys.executable and not registry.is_installed(name):
            raise click.UsageError(
                f"{name} is not installed here; {registry.install_hint(name)}, or use --python {name}=PATH to name an "
                f"interpreter in which {name} is installed"
            )


def _prepare_folder(folder: Path, overwrites: bool) -> None:
    """Creates the folder for a run. If `overwrites` (`--overwrite`) is True, an earlier run is first removed from the
    folder. Raises `UsageError` if the folder is still not empty after that, or if it cannot be created."""
    from xdevice.twins.parity import script_runs

    # an empty folder is as good as a new one
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrites:
            raise click.UsageError(
                f"{folder} is not empty; name a new folder, or use --overwrite to replace the earlier run in it"
            )
        try:
            script_runs.remove_run(folder)
        except XDeviceError as error:
            raise click.UsageError(str(error)) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(
            f"cannot create the folder {folder}: {error.strerror}"
        ) from error


def _backends_to_run(backends: str | None) -> tuple[str, ...]:
    """Returns the backends to run on. These are the backends that the option `--backends` names. Without the option,
    these are all installed backends except NumPy, or NumPy if no other backend is installed. Raises `UsageError` for an
    unknown name."""
    if backends:
        return _canonical_names(tuple(backends.split(",")))
    return tuple(name for name in selection.backends() if name != "numpy") or ("numpy",)


def _interpreters(pythons: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Returns the path of each backend's Python interpreter. This is the path in an option `--python NAME=PATH` or,
    without such an option, the path of this interpreter. `pythons` contains the values of these options, and `names`
    the backends that run. Raises `UsageError` if an option has another form, or if it names a backend that does not
    run, or a file that does not exist."""
    interpreters = dict.fromkeys(names, sys.executable)
    for option in pythons:
        name, equals, path = option.partition("=")
        if not equals or not path:
            raise click.UsageError(
                f"--python: expected NAME=PATH, as in mxnet=/opt/old/bin/python, got {option!r}"
            )
        backend = _canonical_names((name,))[0]
        if backend not in names:
            raise click.UsageError(
                f"--python {option}: {backend} is not among the backends {', '.join(names)}; add it to --backends"
            )
        if not Path(path).is_file():
            raise click.UsageError(f"--python {option}: there is no file {path}")
        # `resolve` would follow links, but the python of a virtual environment is a link that works only under its own
        # path
        interpreters[backend] = str(Path(path).absolute())
    return interpreters


def _strictness(options: dict[str, Any]) -> Strictness:
    """Returns how strictly to compare, according to the options that `parity` and `compare-runs` share. Raises
    `UsageError` if a tolerance is NaN."""
    from xdevice.twins.parity.tolerances import Strictness

    try:
        return Strictness(
            options["rtol"],
            options["atol"],
            check_dtype=not options["any_dtype"],
            equal_nan=options["equal_nan"],
        ).check()
    except XDeviceError as error:  # for NaN, which passes Click's check of the range
        raise click.UsageError(str(error)) from error


def _report_or_exit(make: Callable[[], ParityReport]) -> ParityReport:
    """Returns the report that `make()` returns. If `make` raises an error of xdevice, for example because a recording
    is damaged, prints the error and exits with status 2."""
    try:
        return make()
    except XDeviceError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _publish_and_exit(report: ParityReport, title: str, options: dict[str, Any]) -> None:
    """Writes the report to the files that the options name. Also prints the report, unless its JSON is written to the
    standard output. Then exits with the status of the report."""
    from xdevice.twins.parity import parity_report

    if options["json_file"] is not None:
        # `allow_nan=False` makes sure that the output contains no NaN, which is not JSON: `as_json` returns strings
        # instead of NaN
        options["json_file"].write(
            json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n"
        )
    if options["html"] is not None:
        from xdevice.twins.parity.report_page import page

        options["html"].write(page(report, title))
    # with `--json -`, only JSON is printed, because a program reads the output. The name of `sys.stdout` is "<stdout>"
    if options["json_file"] is None or options["json_file"].name != "<stdout>":
        parity_report.show(report)
    sys.exit(report.status)


def _canonical_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns xdevice's own name of each backend, such as "torch" for the alias "pytorch". The names are in the order
    of `names`, without duplicates. Raises `UsageError` for an unknown name."""
    try:
        # a dict, because a set would not keep the order
        return tuple(dict.fromkeys(registry.canonical(name) for name in names))
    except XDeviceError as error:
        raise click.UsageError(str(error)) from error
