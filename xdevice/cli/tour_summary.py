"""What `xdevice tour` says at its end: a line for each backend, a table of times, and in words what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.core import registry, selection

from .tour import LARGE, PRODUCTS, SMALL, STEPS
from .tour_several import STEPS as SEVERAL

if TYPE_CHECKING:
    from collections.abc import Sequence


def line(outcome: dict[str, Any], seconds: float) -> str:
    """What `xdevice tour --all` prints of one backend when it is done."""
    failed = len(outcome["failed"])
    how = f"{failed} FAILED, as shown above" if failed else "all as the chapter says"
    return f"{outcome['backend']} {outcome['version']}: {len(STEPS) + len(SEVERAL)} steps in {seconds:.0f} s, {how}"


def words(outcomes: Sequence[dict[str, Any]]) -> str:
    """What ran, what was left out, and why, of a tour of every installed backend."""
    right = [outcome["backend"] for outcome in outcomes if not outcome["failed"]]
    wrong = [outcome["backend"] for outcome in outcomes if outcome["failed"]]
    lines = [
        f"Ran: {len(STEPS)} steps of the GPU chapter, and {len(SEVERAL)} on several devices, on each backend.",
        f"As the chapter says: {', '.join(right) or 'none'}.",
    ]
    if wrong:
        lines.append(f"Not as the chapter says, or broken off: {', '.join(wrong)}.")
    gpus = [outcome["backend"] for outcome in outcomes if any(place[:3] == "gpu" for place in outcome["devices"])]
    lines.append(
        f"On GPUs: {', '.join(gpus)}; the others on the CPU, and on several devices on virtual GPUs, but for NumPy."
        if gpus
        else "No framework sees a GPU here: all ran on the CPU, and on several devices on virtual GPUs, but for NumPy."
    )
    installed = selection.backends()
    left_out = [f"{name} ({registry.install_hint(name)})" for name in registry.names() if name not in installed]
    lines.append(f"Left out, as not installed: {'; '.join(left_out) or 'none'}.")
    lines.append("The lines that ran: xdevice tour --backend NAME, or xdevice tour --all --steps.")
    return "\n".join(lines)


def show_table(outcomes: Sequence[dict[str, Any]]) -> None:
    """Prints the closing table: the steps that failed and the times, with a row for each backend."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="What came out")
    table.add_column("backend", no_wrap=True)
    table.add_column("steps", overflow="fold")
    table.add_column("device")
    for heading in (
        f"{LARGE}² product",
        f"{SMALL}² product",
        f"{PRODUCTS} norms read one by one",
        "kept on the device",
    ):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        table.add_row(
            f"{outcome['backend']} {outcome['version']}",
            "[green]all[/]" if not outcome["failed"] else f"[red]not {escape('; '.join(outcome['failed']))}[/]",
            "\n".join(outcome.get("large", {})),
            _milliseconds(outcome.get("large")),
            _milliseconds(outcome.get("small")),
            _seconds(outcome.get("one by one")),
            _seconds(outcome.get("on the device")),
        )
    Console().print(table)


def _milliseconds(times: dict[str, float] | None) -> str:
    return "\n".join(f"{1000 * t:.2f} ms" for t in (times or {}).values())


def _seconds(t: float | None) -> str:
    return f"{t:.3f} s" if t is not None else "-"
