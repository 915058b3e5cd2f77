"""Draws docs/explanation/copies.svg from the tables of docs/explanation/performance.md: GB/s by the size of copies."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import pyplot

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "performance.md"
BYTES = {"KB": 2**10, "MB": 2**20, "GB": 2**30}
STYLES = {
    "ours": ("#b0410e", "-", "xdevice"),
    "own": ("#1d4f91", "--", "the framework's own"),
    "pinned": ("#7a8494", ":", "page-locked already"),
}


def rows(text: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """For each kind of copy and each way, the sizes in bytes and GB/s."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    sizes: list[float] = []
    kind = ""
    for line in text.splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if all(re.fullmatch(r"\d+ [KMG]B", cell) for cell in cells) and cells:
            sizes = [float(cell.split()[0]) * BYTES[cell.split()[1]] for cell in cells]
        elif first.endswith(", ours"):
            kind, way = first.removesuffix(", ours"), "ours"
            found[kind] = {way: list(zip(sizes, map(float, cells), strict=True))}
        elif first in STYLES and kind:
            found[kind][first] = list(zip(sizes, map(float, cells), strict=True))
    return found


def main() -> None:
    drawn = rows(PAGE.read_text(encoding="utf-8"))
    pyplot.rcParams.update({"svg.hashsalt": "copies", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(len(drawn) // 2, 2, figsize=(8, 2.1 * len(drawn) / 2), sharex=True, sharey=True)
    for axis, (kind, ways) in zip(axes.flat, drawn.items(), strict=True):
        for way, (color, line, label) in STYLES.items():
            if way in ways:
                axis.loglog(*zip(*ways[way], strict=True), color=color, linestyle=line, marker=".", label=label)
        axis.set_title(kind, fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_xticks([size * unit for unit, size in ((2**16, 1), (2**20, 1), (2**24, 1), (2**30, 1))])
        axis.set_xticklabels(["64 KB", "1 MB", "16 MB", "1 GB"])
        axis.minorticks_off()
    axes[0, 0].legend(fontsize=8)
    figure.supylabel("GB/s", fontsize=10)
    figure.tight_layout()
    figure.savefig(PAGE.parent / "copies.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
