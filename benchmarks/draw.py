"""Draws the figures of docs/explanation from the tables in benchmarks/results: GB/s of copies by their size, steps
that `prefetch` feeds, a step fed in five ways, and what threads and graphs gain. They are narrow, so that a phone need
not shrink them much."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
FOLDER = Path(__file__).parents[1] / "docs" / "explanation"
BYTES = {"KB": 2**10, "MB": 2**20, "GB": 2**30}
OURS, OWN, OTHER = "#b0410e", "#1d4f91", "#7a8494"
COPIES = {
    "ours": (OURS, "-", "xdevice"),
    "own": (OWN, "--", "the framework's own"),
    "pinned": (OTHER, ":", "page-locked already"),
}
GAINS = {"by one thread": (OTHER, "s"), "threads": (OWN, "o"), "captured": (OURS, "D")}


def table(name: str) -> list[tuple[str, list[str]]]:
    """The heading and the rows of a result: the first cell of each, and the others."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [(first, cells) for first, *cells in (result["columns"], *result["rows"])]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def copies() -> Figure:
    """For each kind of copy and each way, GB/s by the size in bytes."""
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = {}
    sizes: list[float] = []
    kind = ""
    tables = map(table, ("transfers_torch_jax", "transfers_tensorflow", "transfers_others"))
    for first, cells in chain(*tables):
        if not first:
            sizes = [float(cell.split()[0]) * BYTES[cell.split()[1]] for cell in cells]
        elif first.endswith(", ours"):
            kind = first.removesuffix(", ours")
            drawn[kind] = {"ours": list(zip(sizes, map(float, cells), strict=True))}
        elif first in COPIES and kind:
            drawn[kind][first] = list(zip(sizes, map(float, cells), strict=True))
    figure, axes = pyplot.subplots(
        len(drawn) // 2, 2, figsize=(5.4, 1.7 * len(drawn) / 2), sharex=True, sharey=True
    )
    for axis, (kind, ways) in zip(axes.flat, drawn.items(), strict=True):
        for way, (color, line, label) in COPIES.items():
            if way in ways:
                axis.loglog(
                    *zip(*ways[way], strict=True),
                    color=color,
                    linestyle=line,
                    marker=".",
                    label=label,
                )
        axis.set_title(kind)
        axis.set_xticks(
            [size * unit for unit, size in ((2**16, 1), (2**20, 1), (2**24, 1), (2**30, 1))]
        )
        axis.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        axis.set_xticklabels(["64 KB", "1 MB", "16 MB", "1 GB"])
        axis.minorticks_off()
    figure.supylabel("GB/s", fontsize=10)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    return figure


def feeding() -> Figure:
    """The whole time of steps that `prefetch` feeds, over the larger of computing and the bus, by what they compute."""
    figure, axis = pyplot.subplots(figsize=(5.4, 2.8))
    for name, color, marker in (("torch", OURS, "o"), ("jax", OWN, "s")):
        (_, times), (framework, ratios) = table(f"prefetch_{name}")
        axis.plot(
            *(list(map(float, cells)) for cells in (times, ratios)),
            color=color,
            marker=marker,
            label=framework,
        )
    axis.axhline(1, color=OTHER, linestyle=":")
    axis.text(0.34, 0.8, "the larger of the two alone", ha="right", color="#4d5663")
    axis.set_ylim(0, None)
    axis.set_xlabel("seconds of computing for 1 GB")
    axis.set_ylabel("times as long")
    axis.legend()
    figure.tight_layout()
    return figure


def ways() -> Figure:
    """Milliseconds of a training step by the way its batch comes to the GPU."""
    _, *rows = table("feeding")
    names = [name.strip("`").replace("().to", "()\n.to") for name, _ in reversed(rows)]
    times = [float(cells[0]) for _, cells in reversed(rows)]
    figure, axis = pyplot.subplots(figsize=(5.4, 2))
    colors = [
        OURS if name.startswith("xdevice") else OTHER if "there" in name else OWN
        for name in names
    ]
    axis.bar_label(axis.barh(names, times, color=colors), fmt="%.1f", padding=3)
    axis.set_xlim(0, 1.2 * max(times))
    axis.set_xlabel("milliseconds of a step")
    axis.grid(visible=False, axis="y")
    figure.tight_layout()
    return figure


def gains() -> Figure:
    """How many times as fast tasks are side by side as one after another, each run a point."""
    rows = [row for row in table("parallel") if numbers(row[1][0])]
    figure, axes = pyplot.subplots(
        len(rows), 1, figsize=(5.4, 0.85 * len(rows) + 0.9), sharex=True
    )
    for axis, (what, cells) in zip(axes, rows, strict=True):
        for height, (way, (color, marker)) in enumerate(GAINS.items()):
            column = {"threads": 0, "captured": 1, "by one thread": 2}[way]
            points = numbers(cells[column])
            axis.plot(
                points,
                [height] * len(points),
                color=color,
                marker=marker,
                linestyle="",
                alpha=0.8,
            )
        axis.axvline(1, color=OTHER, linestyle=":")
        axis.set_title(what)
        axis.set_yticks(range(len(GAINS)), list(GAINS))
        axis.set_ylim(-0.6, len(GAINS) - 0.4)
        axis.set_xlim(0, None)
    axes[-1].set_xlabel("times as fast as one after another")
    figure.tight_layout()
    return figure


def main() -> None:
    pyplot.rcParams.update(
        {"svg.hashsalt": "figures", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9}
    )
    pyplot.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "axes.titlelocation": "left"})
    for draw in (copies, feeding, ways, gains):
        draw().savefig(FOLDER / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
