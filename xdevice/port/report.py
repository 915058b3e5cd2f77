"""The report of all sites as JSON. Equal projects give equal bytes, whatever folders they are
in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, get_args

from .engine import Examined
from .sites import GRADES, Site, Verdict, grouped
from .sources import Source
from .summary import summary

# the version of the format, which is increased when a key changes its meaning or is removed
FORMAT: Final = 1
_COPIED_ATTRIBUTES: Final = (
    "code",
    "idiom",
    "framework",
    "verdict",
    "grade",
    "why",
    "before",
    "after",
    "link",
)
"""The attributes of a site that are in the report under the same names. The others are left out,
or written in another form."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


def document(examined: Examined) -> dict[str, Any]:
    """The report as a dict for JSON. Lines and columns count from 1, columns in characters.
    Files are sorted by path, and sites by position."""
    codes = grouped(examined.sites, lambda site: site.code)
    return {
        "tool": "xdevice",
        "version": installed_version(),
        "format": FORMAT,
        # only the name of the folder, so that the report does not depend on where it is
        "root": examined.root.resolve().name,
        "only": examined.only,
        "summary": summary(examined),
        "totals": totals(examined.sites),
        "unsettled": examined.unsettled,
        "codes": {code: totals(sites) for code, sites in sorted(codes.items())},
        "files": [
            _file(examined, source)
            for source in sorted(examined.sources, key=lambda source: source.path)
        ],
        "unreadable": [{"path": path, "why": why} for path, why in sorted(examined.unreadable)],
    }


def installed_version() -> str:
    """The version of xdevice, from the metadata of its package, because this folder does not
    import xdevice; "not installed" if there is no such package."""
    # this folder also works without the package: it needs only click and rich
    try:
        return version("xdevice-dl")
    except PackageNotFoundError:
        return "not installed"


def text(examined: Examined) -> str:
    """The report as the text of a JSON file."""
    # sorted keys, so that equal projects give equal bytes
    return json.dumps(document(examined), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def totals(sites: Iterable[Site]) -> dict[str, int]:
    """The number of all sites ("sites"), of those with each verdict, and of the rewritten ones
    with each grade. The numbers of the verdicts add up to that of the sites."""
    sites = list(sites)
    verdicts = Counter(site.verdict for site in sites)
    grades = Counter(site.grade for site in sites if site.verdict == "rewritten")
    # also the numbers that are 0, so that all reports have the same keys
    total = {"sites": len(sites)}
    total.update((verdict, verdicts[verdict]) for verdict in VERDICTS)
    total.update((grade, grades[grade]) for grade in GRADES)
    return total


def share_ported(total: dict[str, int]) -> float | None:
    """The share of the sites that `port` rewrites among those that must change, from 0 to 1.
    None if no site must change. `total` is a result of `totals`."""
    # the other verdicts, "neutral" and "not a device", need no change
    must_change = total["rewritten"] + total["open"]
    return total["rewritten"] / must_change if must_change else None


def _file(examined: Examined, source: Source) -> dict[str, Any]:
    """The entry of one file, with its sites in the order of the text."""
    sites = sorted(examined.sites_of(source))
    return {
        "path": source.path,
        "frameworks": sorted({site.framework for site in sites if site.framework}),
        "sites": [_site(source, site) for site in sites],
        "totals": totals(sites),
    }


def _site(source: Source, site: Site) -> dict[str, Any]:
    """The entry of one site, with its place in the file; `cell` is None unless the file is a
    notebook."""
    line, cell = source.line_and_cell(site.line)
    end, _ = source.line_and_cell(site.end[0])
    return {
        "line": line,
        "col": column(source, site.line, site.col),
        "end": [end, column(source, *site.end)],
        "cell": cell,
        **{name: getattr(site, name) for name in _COPIED_ATTRIBUTES},
    }


def column(source: Source, line: int, col: int) -> int:
    """Converts a column of a line of `Source.text`, in bytes from 0, to a column as editors
    show it: in characters from 1."""
    return len(source.line_text(line).encode()[:col].decode()) + 1
