"""Shows the progress of `xdevice parity` on standard error: a line for each backend, with a clock while its process
runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdevice.twins.parity.script_runs import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress, ProgressColumn

    from xdevice.twins.parity.script_runs import Ended


def progress_display(*columns: ProgressColumn) -> Progress:
    """Returns a progress display with these columns on standard error. It is disabled if standard error is not a
    terminal."""
    # imported here, so that commands without progress do not wait for rich
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # rich's own check mistakes a pipe for a terminal if FORCE_COLOR is set, as Jupyter does
    # (https://github.com/pypa/pip/issues/13354)
    return Progress(
        *columns, console=console, transient=True, disable=not console.file.isatty()
    )


@contextmanager
def show_progress(backends: Sequence[str]) -> Iterator[Watcher]:
    """Yields a `Watcher` that shows the progress of the runs that are named in `backends`. If standard error is not a
    terminal, the `Watcher` only writes a line when a run ends."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with progress_display(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    ) as progress:
        yield _Shown(progress, backends)


class _Shown(Watcher):
    """Shows a line with a clock for each run. When the run ends, another line replaces it."""

    def __init__(self, progress: Progress, backends: Sequence[str]) -> None:
        self._progress = progress
        # `start=False`, because runs that wait for others must not have a running clock yet
        self._tasks = {
            name: progress.add_task(f"{name}: waiting", start=False, total=None)
            for name in backends
        }

    def run_started(self, backend: str) -> None:
        """Starts the clock of the run named `backend`."""
        self._progress.update(self._tasks[backend], description=f"{backend}: starting")
        self._progress.start_task(self._tasks[backend])

    def values_counted(self, backend: str, records: int) -> None:
        """Shows how many values the run has recorded, if there are any."""
        # the line says "starting" until the first value is recorded, because importing a
        # framework takes seconds
        if records:
            self._progress.update(
                self._tasks[backend], description=f"{backend}: {records} recorded"
            )

    def run_ended(self, ended: Ended, records: int) -> None:
        """Replaces the line of the run with a final line. This contains the first line of the run's error or, without
        an error, the number of recorded values."""
        # only the first line of an error is shown; the report contains the whole error
        how = ended.error.partition("\n")[0] or f"{records} recorded"
        self._progress.remove_task(self._tasks[ended.backend])
        # printed above the clocks that are still running; without a terminal, this is the only
        # output
        self._progress.console.print(
            f"{ended.backend}: {how} in {ended.seconds:.1f} s", markup=False, highlight=False
        )
