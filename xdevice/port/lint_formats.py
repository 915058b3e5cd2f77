"""Writes findings for people, for GitHub, as JSON, and as SARIF."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from .lint_rules import RULES
from .report import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .lint import Finding


def text(found: Sequence[Finding]) -> str:
    lines = [
        f"{one.path}:{one.line}:{one.col}: {one.code} {one.message}{f' (cell {one.cell})' if one.cell else ''}"
        for one in found
    ]
    counts = Counter(one.code for one in found)
    told = ", ".join(f"{number} {code}" for code, number in sorted(counts.items()))
    return "\n".join([*lines, f"{len(found)} found: {told}" if found else "nothing found"]) + "\n"


def github(found: Sequence[Finding]) -> str:
    """The findings as commands of GitHub's workflows, which annotate the lines."""
    return "".join(
        f"::error file={_escape(one.path)},line={one.line},col={one.col},endLine={one.end[0]},"
        f"title={one.code}::{_escape(one.message, is_value=False)}\n"
        for one in found
    )


def _escape(text: str, is_value: bool = True) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_value else text


def as_json(found: Sequence[Finding]) -> str:
    rows = [
        {
            "path": one.path,
            "line": one.line,
            "col": one.col,
            "end": one.end,
            "cell": one.cell,
            "code": one.code,
            "message": one.message,
        }
        for one in found
    ]
    return _write({"tool": "xdevice", "version": installed_version(), "findings": rows})


def sarif(found: Sequence[Finding]) -> str:
    """SARIF 2.1.0; a fix is what `port` would write."""
    names = sorted({one.code for one in found})
    rules = [{"id": code, "shortDescription": {"text": RULES[code].text}} for code in names]
    driver = {"name": "xdevice", "version": installed_version(), "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(one) for one in found]}
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return _write(document)


def _write(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _result(one: Finding) -> dict[str, Any]:
    region = {"startLine": one.line, "startColumn": one.col, "endLine": one.end[0], "endColumn": one.end[1]}
    place = {"artifactLocation": {"uri": one.path}, "region": region}
    result: dict[str, Any] = {
        "ruleId": one.code,
        "level": "warning",
        "message": {"text": one.message},
        "locations": [{"physicalLocation": place}],
    }
    if one.fix:
        changes = [
            {
                "deletedRegion": {
                    "startLine": start[0],
                    "startColumn": start[1],
                    "endLine": end[0],
                    "endColumn": end[1],
                },
                "insertedContent": {"text": text},
            }
            for start, end, text in one.fix
        ]
        change = {"artifactLocation": {"uri": one.path}, "replacements": changes}
        result["fixes"] = [{"description": {"text": "as xdevice port rewrites it"}, "artifactChanges": [change]}]
    return result


FORMATS: Final[dict[str, Callable[[Sequence[Finding]], str]]] = {
    "text": text,
    "github": github,
    "json": as_json,
    "sarif": sarif,
}
