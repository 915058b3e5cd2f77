"""How far `xdevice parity` has come, on standard error: a line for each backend, with a clock while it runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from .run import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress

    from .run import Ended


@contextmanager
def shown(backends: Sequence[str]) -> Iterator[Watcher]:
    """A watcher that shows what it is told. Where nobody can see a clock run, a line is written at each end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    is_seen = console.file.isatty()  # rich takes a pipe for a terminal under FORCE_COLOR, which Jupyter sets
    with Progress(*columns, console=console, transient=True, disable=not is_seen) as progress:
        yield _Shown(progress, backends)


class _Shown(Watcher):
    def __init__(self, progress: Progress, backends: Sequence[str]) -> None:
        self._progress = progress
        self._tasks = {name: progress.add_task(f"{name}: waiting", start=False, total=None) for name in backends}

    def starts(self, backend: str) -> None:
        self._progress.update(self._tasks[backend], description=f"{backend}: starting")
        self._progress.start_task(self._tasks[backend])

    def counts(self, backend: str, records: int) -> None:
        if records:
            self._progress.update(self._tasks[backend], description=f"{backend}: {records} recorded")

    def ends(self, ended: Ended, records: int) -> None:
        how = ended.error.partition("\n")[0] or f"{records} recorded"
        self._progress.remove_task(self._tasks[ended.backend])
        self._progress.console.print(f"{ended.backend}: {how} in {ended.seconds:.1f} s", markup=False, highlight=False)
