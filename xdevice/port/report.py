"""The report of all sites as JSON. The reports of identical projects are identical, byte for byte,
even if the projects are in different folders."""

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

# the version of the format. It is increased when the meaning of a key changes, or a key is
# removed
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
"""The attributes of a site that the report contains under the same names. Other attributes are left out, or are written
in a different form."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


def document(examined: Examined) -> dict[str, Any]:
    """Returns the report as a dict for JSON. Lines and columns count from 1, and columns are in
    characters. Files are sorted by path, and sites by position."""
    codes = grouped(examined.sites, lambda site: site.code)
    return {
        "tool": "xdevice",
        "version": installed_version(),
        "format": FORMAT,
        # only the name of the folder, so that the report does not depend on the folder's
        # location
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
    """Returns the version of xdevice; "not installed" if the package is not installed. The
    version comes from the metadata of the package, because the modules of this folder do not
    import xdevice."""
    # the modules of this folder also work without the package: they need only click and rich
    try:
        return version("xdevice-dl")
    except PackageNotFoundError:
        return "not installed"


def text(examined: Examined) -> str:
    """Returns the report as the text of a JSON file."""
    # sorted keys, so that equal projects have reports with equal bytes
    return json.dumps(document(examined), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def totals(sites: Iterable[Site]) -> dict[str, int]:
    """Returns the number of all sites ("sites"), the number of sites with each verdict, and the
    number of rewritten sites with each grade. The numbers for the verdicts add up to the number
    of all sites."""
    sites = list(sites)
    verdicts = Counter(site.verdict for site in sites)
    grades = Counter(site.grade for site in sites if site.verdict == "rewritten")
    # including numbers that are 0, so that all reports have the same keys
    total = {"sites": len(sites)}
    total.update((verdict, verdicts[verdict]) for verdict in VERDICTS)
    total.update((grade, grades[grade]) for grade in GRADES)
    return total


def share_ported(total: dict[str, int]) -> float | None:
    """Returns the number of sites that `port` rewrites, divided by the number of sites that must change; None if no
    site must change. `total` is a result of `totals`.
    """
    # sites with the other verdicts, "neutral" and "not a device", need no change
    must_change = total["rewritten"] + total["open"]
    return total["rewritten"] / must_change if must_change else None


def _file(examined: Examined, source: Source) -> dict[str, Any]:
    """Returns the entry of one file, with its sites in the order in which they occur."""
    sites = sorted(examined.sites_of(source))
    return {
        "path": source.path,
        "frameworks": sorted({site.framework for site in sites if site.framework}),
        "sites": [_site(source, site) for site in sites],
        "totals": totals(sites),
    }


def _site(source: Source, site: Site) -> dict[str, Any]:
    """Returns the entry of one site, with its position in the file. `cell` is None unless the
    file is a notebook."""
    line, cell = source.line_and_cell(site.line)
    end, _ = source.line_and_cell(site.end[0])
    return {
        "line": line,
        "col": editor_column(source, site.line, site.col),
        "end": [end, editor_column(source, *site.end)],
        "cell": cell,
        **{name: getattr(site, name) for name in _COPIED_ATTRIBUTES},
    }


def editor_column(source: Source, line: int, col: int) -> int:
    """Converts a column in a line of `Source.text` to the column that editors show. The argument `col` is in bytes and
    counts from 0; the result is in characters and counts from 1.
    """
    return len(source.line_text(line).encode()[:col].decode()) + 1
