"""A summary of the result of `scan` or `port`, for people who plan the work: the amount of
device code, how much of it `port` rewrites, and how much a person has to check. The summary is
written as text, or as an HTML page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from .engine import Examined
from .sites import CODES, Site, grouped

# the order matters, because the last expressions also match names that belong to parts above
# them: "cuda" is in `torch.cuda.synchronize`
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
"""Maps each part of a vendor's interface to the regular expression that recognizes its idioms.
An idiom belongs to the first part that matches."""
MUST_CHANGE: Final = ("rewritten", "open")
"""The verdicts on code that has to change, because it works only with one vendor or
framework."""
_REST: Final = "other"
# maps each state of a file to its description in the summary
STATES: Final = {
    "ready": "nothing in them has to change",
    "mechanical": "xdevice port does all of it",
    "person": "some of it needs a person",
}


def part_of(site: Site) -> str:
    """Returns the part of a vendor's interface to which a site belongs: a key of `PARTS`, or
    "other"."""
    return next(
        (part for part, names in PARTS.items() if re.search(names, site.idiom, re.IGNORECASE)),
        _REST,
    )


def summary(examined: Examined) -> dict[str, Any]:
    """Returns the figures of the summary as a dict for JSON. Each site that must change is counted as "mechanical" or
    "person" (see `_mechanical_and_person`). Each file with sites has one of the `STATES`."""
    must_change = [site for site in examined.sites if site.verdict in MUST_CHANGE]
    # the code of an open site is the reason why it is open
    reasons = Counter(site.code for site in must_change if site.verdict == "open")
    return {
        "files": len(examined.sources),
        "sites": len(examined.sites),
        "must_change": len(must_change),
        **_mechanical_and_person(must_change),
        "parts": _parts(must_change),
        "reasons": dict(reasons.most_common()),
        "states": _states(examined),
        "vendors": dict(
            Counter(site.vendor for site in must_change if site.vendor).most_common()
        ),
    }


def _mechanical_and_person(sites: list[Site]) -> dict[str, int]:
    """Returns the number of sites that `port` rewrites ("mechanical"), and the number of sites
    that it leaves to a person ("person"). `sites` are sites that must change."""
    mechanical = sum(site.verdict == "rewritten" for site in sites)
    return {"mechanical": mechanical, "person": len(sites) - mechanical}


def _parts(sites: list[Site]) -> dict[str, dict[str, int]]:
    """Returns a dict that maps each part of the interface to the numbers of sites in it. The part with the most sites
    comes first.
    """
    # parts of equal size are sorted by name, so that equal projects have equal summaries
    largest = sorted(grouped(sites, part_of).items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        part: {"sites": len(group), **_mechanical_and_person(group)} for part, group in largest
    }


def _states(examined: Examined) -> dict[str, list[str]]:
    """Returns a dict that maps each state to the paths of the files in this state. Files
    without sites are left out."""
    states: dict[str, list[str]] = {state: [] for state in STATES}
    for source in sorted(examined.sources, key=lambda source: source.path):
        verdicts = {site.verdict for site in examined.sites_of(source)}
        # a person is needed even for a single open site
        if "open" in verdicts:
            states["person"].append(source.path)
        elif "rewritten" in verdicts:
            states["mechanical"].append(source.path)
        # a file without sites has no state
        elif verdicts:
            states["ready"].append(source.path)
    return states


def text(examined: Examined) -> str:
    """Returns the summary as text, followed by the uses that have to change in each file."""
    lines = summary_lines(examined)
    for title, uses in _uses_by_file(examined):
        lines += ["", title, *(f"  {use}" for use in uses)]
    return "\n".join(lines) + "\n"


def summary_lines(examined: Examined) -> list[str]:
    """Returns the lines of the summary: a sentence, and then the tables, each after a blank
    line."""
    figures = summary(examined)
    lines = [_sentence(figures)]
    for table in _tables(figures):
        # labels are aligned left, numbers are aligned right
        width = max(len(str(label)) for label, *_ in table)
        lines.append("")
        for label, *numbers in table:
            lines.append(f"{label:{width}}" + "".join(f"{number:>14}" for number in numbers))
    return lines


_STYLE: Final = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:left}"
    "td+td{text-align:right}tr:first-child{font-weight:bold}code{font-size:90%}summary{cursor:pointer}"
)


def page(examined: Examined) -> str:
    """Returns the same content as `text`, as an HTML page without scripts. The reader can
    unfold the list of uses in each file."""
    figures = summary(examined)
    title = f"Device code in {escape(examined.root.resolve().name)}"
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{_sentence(figures)}</p>",
    ]
    for table in _tables(figures):
        rows = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in table]
        parts.append(f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>")
    for file, uses in _uses_by_file(examined):
        items = "".join(f"<li><code>{escape(use)}</code></li>" for use in uses)
        parts.append(f"<details><summary>{escape(file)}</summary><ul>{items}</ul></details>")
    return "\n".join([*parts, "</body></html>\n"])


def _sentence(figures: dict[str, Any]) -> str:
    """Returns the first sentence of the summary."""
    must_change = figures["must_change"]
    return (
        f"{figures['sites']:,} uses of devices in {figures['files']:,} files; {must_change:,} have to change: "
        f"{_with_percentage(figures['mechanical'], must_change)} mechanically, by xdevice port, and "
        f"{_with_percentage(figures['person'], must_change)} by a person"
    )


def _with_percentage(part: int, whole: int) -> str:
    """Returns the number `part` as text, followed by its percentage of `whole` unless `whole`
    is 0."""
    return f"{part:,} ({100 * part / whole:.0f} %)" if whole else f"{part:,}"


def _tables(figures: dict[str, Any]) -> list[list[tuple[str | int, ...]]]:
    """Returns the tables of the summary. Each table is a list of rows, and each row consists of
    a label and numbers. The first row is the heading."""
    parts, reasons = figures["parts"].items(), figures["reasons"].items()
    # the counts of a part are in the order of the headings
    return [
        [
            ("part", "sites", "mechanical", "for a person"),
            *((part, *counts.values()) for part, counts in parts),
        ],
        [
            ("why a person is needed", "sites"),
            *((f"{code} {CODES.get(code, '')}", count) for code, count in reasons),
        ],
        [("of a vendor", "sites"), *figures["vendors"].items()],
        [
            ("files with uses of devices", "files"),
            *((STATES[state], len(paths)) for state, paths in figures["states"].items()),
        ],
    ]


def _uses_by_file(examined: Examined) -> Iterator[tuple[str, list[str]]]:
    """For each file in which something has to change, yields a title and a list that contains a
    line for each use. The files are sorted by path."""
    for source in sorted(examined.sources, key=lambda source: source.path):
        sites = [site for site in examined.sites_of(source) if site.verdict in MUST_CHANGE]
        if sites:
            counts = _mechanical_and_person(sites)
            title = f"{source.path}: {counts['mechanical']} mechanical, {counts['person']} for a person"
            yield (
                title,
                [f"{source.line_and_cell(site.line)[0]}: {_change(site)}" for site in sites],
            )


def _change(site: Site) -> str:
    """Returns one line with the text of a use, followed by its new text or, if it has none, by
    the reason."""
    # the text may contain line breaks
    before = " ".join(site.before.split())
    if site.verdict == "open":
        return f"{before}  [{site.code}: {site.why}]"
    return f"{before}  ->  {' '.join((site.after or '').split())}"
