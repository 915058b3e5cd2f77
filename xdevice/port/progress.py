"""Shows on a terminal how far `scan`, `port` and `lint` are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""A function that is called with the name of a step, the amount of work done in this step, and
the total amount, as in ("reading", 12, 476)."""


def no_progress(step: str, done: int, total: int) -> None:
    """Does nothing. This is the `Progress` for callers that do not want a progress bar."""


@contextmanager
def shown_on_terminal() -> Iterator[Progress]:
    """Shows a bar on standard error while the block runs, and removes it afterwards.

    Yields the `Progress` that moves the bar. If standard error is not a terminal, it yields a
    `Progress` that does nothing.
    """
    from rich.console import Console
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    # not `console.is_terminal`, which is true of a pipe if FORCE_COLOR is set, as Jupyter does
    if not console.file.isatty():
        yield no_progress
        return
    # transient: the bar is erased at the end, so that only the command's own output stays
    with Bars(console=console, transient=True) as bars:
        # no total yet: until the first step begins, rich shows an animated bar
        bar = bars.add_task("", total=None)

        # all steps use the same bar: only its label and its total change
        def show(step: str, done: int, total: int) -> None:
            """Moves the bar. This function is the `Progress` that the block receives."""
            bars.update(bar, description=step, completed=done, total=total)

        yield show
