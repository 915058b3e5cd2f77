"""Shows on a terminal how far `scan`, `port` and `lint` are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Gets a step, the amount of it that is done, and the total: ("reading", 12, 476)."""


def unseen(step: str, done: int, total: int) -> None:
    """Shows nothing."""


@contextmanager
def shown_on_terminal() -> Iterator[Progress]:
    """A bar on the standard error while the block runs; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    # not `is_terminal`: that is True of Jupyter's pipes, where FORCE_COLOR is set
    if not console.file.isatty():
        yield unseen
        return
    with Bars(console=console, transient=True) as bars:
        bar = bars.add_task("", total=None)

        def show(step: str, done: int, total: int) -> None:
            bars.update(bar, description=step, completed=done, total=total)

        yield show
