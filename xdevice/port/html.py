"""Writes the report as one HTML page that loads nothing: no scripts, fonts or pictures."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Final

from .report import VERDICTS, by_code, share_ported, totals
from .sites import CODES, splice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .engine import Examined
    from .sites import Site
    from .sources import Source

_NAMES: Final = {"rewritten": "done", "neutral": "same", "open": "todo", "not a device": "none"}
"""The class of each verdict in the style sheet."""
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5b6675; --page: #fff; --card: #f5f7fa; --line: #d9dee6;
  --done: #1a7f4e; --same: #3567b0; --todo: #b25b00; --none: #7a8494; --del: #fdeceb; --add: #e6f6ec }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ef; --dim: #9aa5b4; --page: #14181f; --card: #1d232c;
  --line: #333c48; --done: #4cc38a; --same: #7aa7ee; --todo: #f0a14b; --none: #8b96a5; --del: #3b1f20;
  --add: #16321f } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--page) }
h1 { margin: 0; overflow-wrap: anywhere } h2 { margin: 2.2rem 0 .6rem } .dim, small { color: var(--dim) }
a { color: var(--same) } code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.2rem 0 }
.tile { flex: 1 1 8rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .9rem }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums }
.bar { display: flex; height: .7rem; border-radius: 5px; overflow: hidden; background: var(--line) }
i.done { background: var(--done) } i.same { background: var(--same) } i.todo { background: var(--todo) }
i.none { background: var(--none) } b.done { color: var(--done) } b.same { color: var(--same) }
b.todo { color: var(--todo) } b.none { color: var(--none) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left }
th { color: var(--dim); font-weight: 600 } .number { text-align: right; font-variant-numeric: tabular-nums }
details { border: 1px solid var(--line); border-radius: 8px; margin: .6rem 0; background: var(--card) }
summary { cursor: pointer; padding: .5rem .9rem; overflow-wrap: anywhere } summary span { float: right }
.site { border-top: 1px solid var(--line); padding: .5rem .9rem; background: var(--page) }
.site:last-child { border-radius: 0 0 8px 8px } .site p { margin: .1rem 0; overflow-wrap: anywhere }
.chip { border: 1px solid; border-radius: 4px; padding: 0 .4rem; font-size: 12px; font-weight: 600;
  white-space: nowrap }
pre { margin: .4rem 0; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .3rem 0 }
pre span { display: block; padding: 0 .7rem; min-width: max-content } .del { background: var(--del) }
.add { background: var(--add) }
@media (max-width: 640px) { summary span { float: none; display: block } body { margin: 1rem auto } }
@media print { details { break-inside: avoid } }
"""


def page(examined: Examined) -> str:
    """The whole page: the totals, the sites by code, and each site with its new text."""
    name = escape(examined.root.resolve().name)
    total = totals(examined.sites)
    files = sorted((source for source in examined.sources if examined.of(source)), key=lambda source: source.path)
    left = [source for source in files if any(site.verdict == "open" for site in examined.of(source))]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Device code of {name}</title><style>{_STYLE}</style></head>",
        f"<body><header><h1>Device code of {name}</h1>"
        f'<p class="dim">{_count(len(examined.sources), "file")} read, {len(files)} of them with device code; '
        f"rewritten where that is {escape(_level(examined))}.</p></header>",
        _tiles(total),
        _bar(total),
        _unreadable(examined.unreadable),
        "<h2>By code</h2>",
        _codes(examined.sites),
        "<h2>By file</h2>",
        f'<p class="dim">{_count(len(left), "file")} with open sites.</p>' if files else "<p>No device code.</p>",
        *(_file(source, sorted(examined.of(source))) for source in files),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _level(examined: Examined) -> str:
    return {
        "proven": "proven to be right",
        "safe": "proven to be right, or a wrong guess would raise at once",
        "likely": "likely to be right by the names in use",
    }[examined.only]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _tiles(total: dict[str, int]) -> str:
    share = share_ported(total)
    tiles = [("sites", f"{total['sites']:,}", "ink")]
    tiles += [(verdict, f"{total[verdict]:,}", _NAMES[verdict]) for verdict in VERDICTS]
    tiles += [("of what calls for a change is rewritten", f"{share:.1%}", "ink")] if share is not None else []
    made = (
        f'<div class="tile"><b class="{kind}">{number}</b><small>{what}</small></div>' for what, number, kind in tiles
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def _bar(total: dict[str, int]) -> str:
    parts = [
        f'<i class="{_NAMES[verdict]}" style="flex:{total[verdict]}" title="{verdict}: {total[verdict]}"></i>'
        for verdict in VERDICTS
        if total[verdict]
    ]
    return f'<div class="bar">{"".join(parts)}</div>' if parts else ""


def _unreadable(unreadable: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<li><code>{escape(path)}</code>: {escape(why)}</li>" for path, why in sorted(unreadable))
    return f"<h2>Not read</h2><ul>{items}</ul>" if items else ""


def _codes(sites: Iterable[Site]) -> str:
    heads = "".join(f'<th class="number">{verdict}</th>' for verdict in VERDICTS)
    rows = [f'<tr><th>code</th><th>what</th><th class="number">sites</th>{heads}</tr>']
    for code, found in by_code(sites):
        total = totals(found)
        numbers = "".join(f'<td class="number">{total[key] or ""}</td>' for key in ("sites", *VERDICTS))
        rows.append(f"<tr><td><code>{code}</code></td><td>{escape(CODES[code])}</td>{numbers}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _file(source: Source, sites: list[Site]) -> str:
    total = totals(sites)
    shown = ", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS if total[verdict])
    is_open = " open" if total["open"] else ""
    summary = f'<summary><span class="dim">{shown}</span><code>{escape(source.path)}</code></summary>'
    return f"<details{is_open}>{summary}{''.join(_site(source, site) for site in sites)}</details>"


def _site(source: Source, site: Site) -> str:
    line, cell = source.place(site.line)
    where = f"line {line}" if cell is None else f"cell {cell}, line {line}"
    grade = f" ({site.grade})" if site.grade and site.verdict == "rewritten" else ""
    link = _link(site.link) if site.link else ""
    return (
        f'<div class="site"><p><b class="chip {_NAMES[site.verdict]}">{site.verdict}{grade}</b> '
        f"<code>{escape(site.code)} {escape(site.idiom)}</code> <small>{where}</small></p>"
        f"<p>{escape(site.why)}{link}</p>{_diff(source, site)}</div>"
    )


def _link(link: str) -> str:
    """A link to a page with an address; a page of the docs is only named, because the report has no address for it."""
    shown = escape(link)
    return f' <a href="{shown}">what to write</a>' if link.startswith("https://") else f" See <code>{shown}</code>."


def _diff(source: Source, site: Site) -> str:
    """The lines of a site before and after its own edits."""
    start = source.offset(site.line, 0)
    end = source.offset(site.end[0], 0) + len(source.line_text(site.end[0]).encode())
    before = source.text[start:end]
    inside = (edit for edit in site.edits if start <= edit.start and edit.end <= end)
    edits = [replace(edit, start=edit.start - start, end=edit.end - start) for edit in inside]
    after = splice(before, edits) if site.verdict == "rewritten" else before
    if after == before:
        return f"<pre>{_lines('', ' ', before)}</pre>"
    return f"<pre>{_lines('del', '-', before)}{_lines('add', '+', after)}</pre>"


def _lines(kind: str, sign: str, text: bytes) -> str:
    lines = text.decode().splitlines()
    return "".join(f'<span class="{kind}">{escape(f"{sign} {line}")}</span>' for line in lines)
