"""A summary of what `scan` and `port` have found, for those who decide: how much there is, what `port` does by itself,
and what needs a person. It comes as text and as one page of HTML."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from typing import Any, Final

from .engine import Examined
from .sites import CODES, Site

PARTS: Final = {
    "mixed precision": r"autocast|scaler|amp\b|custom_[fb]wd",
    "several devices and processes": r"parallel|distribut|nccl|process_group|strategy|split_|scatter",
    "streams, events and graphs": r"stream|event|graph|captur",
    "memory": r"memory|cache|mem_|pin",
    "random numbers": r"seed|rng",
    "waiting and timing": r"synchronize|waitall|wait_to_read|block_until|time",
    "reading on the host": r"numpy|item|asscalar|tolist",
    "moving": r"^\w?\.(to|cuda|cpu|xpu|npu)\b|as_in|copyto|device_put",
    "asking what there is": r"available|count|num_gpus|is_compiled|is_built|is_cuda|propert|capabilit|supported|name",
    "choosing and placing": r"device|gpu|cpu|cuda|place|ctx|context|location",
}
"""The parts of a vendor's interface, and how the names of each are recognized; the first that fits counts."""
_REST: Final = "other"
STATES: Final = {
    "ready": "nothing in them has to change",
    "mechanical": "xdevice port does all of it",
    "person": "some of it needs a person",
}


def part_of(site: Site) -> str:
    return next(
        (part for part, names in PARTS.items() if re.search(names, site.idiom, re.IGNORECASE)),
        _REST,
    )


def summary(examined: Examined) -> dict[str, Any]:
    """The figures: every site that must change is mechanical or needs a person, every file with sites is in one
    state."""
    must_change = [site for site in examined.sites if site.verdict in ("rewritten", "open")]
    reasons = Counter(site.code for site in must_change if site.verdict == "open")
    return {
        "files": len(examined.sources),
        "sites": len(examined.sites),
        "must_change": len(must_change),
        **_split(must_change),
        "parts": _parts(must_change),
        "reasons": dict(reasons.most_common()),
        "states": _states(examined),
        "vendors": dict(
            Counter(site.vendor for site in must_change if site.vendor).most_common()
        ),
    }


def _split(sites: list[Site]) -> dict[str, int]:
    mechanical = sum(site.verdict == "rewritten" for site in sites)
    return {"mechanical": mechanical, "person": len(sites) - mechanical}


def _parts(sites: list[Site]) -> dict[str, dict[str, int]]:
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(part_of(site), []).append(site)
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return {part: {"sites": len(group), **_split(group)} for part, group in largest}


def _states(examined: Examined) -> dict[str, list[str]]:
    """The paths of the files that have sites, by state."""
    states: dict[str, list[str]] = {state: [] for state in STATES}
    for source in sorted(examined.sources, key=lambda source: source.path):
        verdicts = {site.verdict for site in examined.of(source)}
        if "open" in verdicts:
            states["person"].append(source.path)
        elif "rewritten" in verdicts:
            states["mechanical"].append(source.path)
        elif verdicts:
            states["ready"].append(source.path)
    return states


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.0f} %)" if whole else f"{part:,}"


def text(examined: Examined) -> str:
    """The summary, and then the files."""
    return "\n".join([*head(examined), "", *_files(examined)]) + "\n"


def head(examined: Examined) -> list[str]:
    """The lines of the summary."""
    figures = summary(examined)
    must_change = figures["must_change"]
    lines = [
        f"{figures['sites']:,} uses of devices in {figures['files']:,} files; {must_change:,} have to change",
        f"  mechanical: {_share(figures['mechanical'], must_change)}, which xdevice port rewrites",
        f"  for a person: {_share(figures['person'], must_change)}",
    ]
    lines += [f"  of {vendor}: {count:,}" for vendor, count in figures["vendors"].items()]
    lines += ["", f"{'part':32}{'sites':>8}{'mechanical':>12}{'person':>8}"]
    for part, counts in figures["parts"].items():
        lines.append(
            f"{part:32}{counts['sites']:>8,}{counts['mechanical']:>12,}{counts['person']:>8,}"
        )
    lines += ["", "why a person is needed"]
    lines += [
        f"{count:>8,}  {code} {CODES.get(code, '')}"
        for code, count in figures["reasons"].items()
    ]
    lines += ["", "files with uses of devices"]
    lines += [
        f"{len(paths):>8,}  {STATES[state]}" for state, paths in figures["states"].items()
    ]
    return lines


def _files(examined: Examined) -> list[str]:
    lines = []
    for source in sorted(examined.sources, key=lambda source: source.path):
        sites = [site for site in examined.of(source) if site.verdict in ("rewritten", "open")]
        if sites:
            counts = _split(sites)
            lines.append(
                f"{source.path}: {counts['mechanical']} mechanical, {counts['person']} for a person"
            )
            lines += [f"  {source.place(site.line)[0]}: {_of_site(site)}" for site in sites]
    return lines


def _of_site(site: Site) -> str:
    before = " ".join(site.before.split())
    if site.verdict == "open":
        return f"{before}  [{site.code}: {site.why}]"
    return f"{before}  ->  {' '.join((site.after or '').split())}"


_STYLE: Final = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:left}"
    ".n{text-align:right}code{font-size:90%}summary{cursor:pointer}"
)


def page(examined: Examined) -> str:
    """One page of HTML without scripts: the summary first, and each file to be opened."""
    figures = summary(examined)
    title = f"Device code in {escape(examined.root.resolve().name)}"
    must_change = figures["must_change"]
    body = [
        f"<h1>{title}</h1>",
        f"<p>{figures['sites']:,} uses of devices in {figures['files']:,} files. <b>{must_change:,}</b> have to "
        f"change: <b>{_share(figures['mechanical'], must_change)}</b> are mechanical, "
        f"<b>{_share(figures['person'], must_change)}</b> need a person.</p>",
        "<h2>By part</h2>",
        _table(
            ("part", "sites", "mechanical", "for a person"),
            [(part, *counts.values()) for part, counts in figures["parts"].items()],
        ),
        "<h2>Why a person is needed</h2>",
        _table(
            ("reason", "sites"),
            [
                (f"{code} {CODES.get(code, '')}", count)
                for code, count in figures["reasons"].items()
            ],
        ),
        "<h2>Files</h2>",
        _table(
            ("state", "files"),
            [(STATES[state], len(paths)) for state, paths in figures["states"].items()],
        ),
        *_opened_files(examined),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in names), "</tr>"]
    for row in rows:
        cells = [
            f'<td class="n">{cell:,}</td>'
            if isinstance(cell, int)
            else f"<td>{escape(cell)}</td>"
            for cell in row
        ]
        lines += ["<tr>", *cells, "</tr>"]
    return "".join([*lines, "</table>"])


def _opened_files(examined: Examined) -> list[str]:
    lines = []
    for source in sorted(examined.sources, key=lambda source: source.path):
        sites = [site for site in examined.of(source) if site.verdict in ("rewritten", "open")]
        if sites:
            counts = _split(sites)
            title = f"{escape(source.path)}: {counts['mechanical']} mechanical, {counts['person']} for a person"
            items = [
                f"<li>{source.place(site.line)[0]}: <code>{escape(_of_site(site))}</code></li>"
                for site in sites
            ]
            lines.append(
                f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>"
            )
    return lines
