"""The formats of `lint --format`: text for people, annotations for GitHub, JSON, and SARIF. For
each format, a function returns the whole output for a list of findings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from .lint import Finding
from .lint_rules import RULES
from .report import installed_version


def text(findings: Sequence[Finding]) -> str:
    """Returns a line for each finding, followed by a line with the number of findings for each
    code."""
    lines = [
        f"{finding.path}:{finding.line}:{finding.col}: {finding.code} {finding.message}"
        + (f" (cell {finding.cell})" if finding.cell else "")
        for finding in findings
    ]
    counts = Counter(finding.code for finding in findings)
    total = ", ".join(f"{count} {code}" for code, count in sorted(counts.items()))
    lines.append(f"{len(findings)} found: {total}" if findings else "nothing found")
    return "\n".join(lines) + "\n"


def github(findings: Sequence[Finding]) -> str:
    """Returns a workflow command of GitHub Actions for each finding. In a pull request, GitHub shows the message next
    to the lines of the finding."""
    return "".join(
        f"::error file={_escape(finding.path)},line={finding.line},col={finding.col},endLine={finding.end[0]},"
        f"title={finding.code}::{_escape(finding.message, is_value=False)}\n"
        for finding in findings
    )


def _escape(text: str, is_value: bool = True) -> str:
    """Escapes a string for a workflow command of GitHub Actions. If `is_value` is True, the string is the value of a
    property. Colons and commas are then escaped, too, because a value ends at these characters. Otherwise, the string
    is the message after the properties.
    """
    # like escapeProperty and escapeData in https://github.com/actions/toolkit; % is replaced first, because the other
    # replacements insert it
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_value else text


def as_json(findings: Sequence[Finding]) -> str:
    """Returns a JSON object, as text, that contains the list of findings.
    docs/reference/lint.md documents the keys."""
    names = ("path", "line", "col", "end", "cell", "code", "message")
    rows = [{name: getattr(finding, name) for name in names} for finding in findings]
    return _write({"tool": "xdevice", "version": installed_version(), "findings": rows})


def sarif(findings: Sequence[Finding]) -> str:
    """Returns a SARIF 2.1.0 log with the findings, and with the edits of `port` as fixes."""
    # a log describes only the rules to which its results refer
    codes = sorted({finding.code for finding in findings})
    rules = [{"id": code, "shortDescription": {"text": RULES[code].text}} for code in codes]
    driver = {"name": "xdevice", "version": installed_version(), "rules": rules}
    run = {
        "tool": {"driver": driver},
        # by default, SARIF counts columns in UTF-16 code units
        "columnKind": "unicodeCodePoints",
        "results": list(map(_result, findings)),
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return _write(document)


def _write(document: object) -> str:
    """Returns a document as the text of a JSON file, which ends with a line feed."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _result(finding: Finding) -> dict[str, Any]:
    """Returns the entry of a finding in a SARIF log."""
    artifact = {"artifactLocation": {"uri": finding.path}}
    place = {**artifact, "region": _region((finding.line, finding.col), finding.end)}
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": "warning",
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place}],
    }
    # only findings that `port` can rewrite have a fix
    if finding.fix:
        replacements = [
            {
                "deletedRegion": _region(change.start, change.end),
                "insertedContent": {"text": change.text},
            }
            for change in finding.fix
        ]
        description = {"text": "as xdevice port rewrites it"}
        changes = [{**artifact, "replacements": replacements}]
        result["fixes"] = [{"description": description, "artifactChanges": changes}]
    return result


def _region(start: tuple[int, int], end: tuple[int, int]) -> dict[str, int]:
    """Returns the SARIF region between two positions, which are pairs of a line and a
    column."""
    return {
        "startLine": start[0],
        "startColumn": start[1],
        "endLine": end[0],
        "endColumn": end[1],
    }


# maps the values of --format to the functions
FORMATS: Final[dict[str, Callable[[Sequence[Finding]], str]]] = {
    "text": text,
    "github": github,
    "json": as_json,
    "sarif": sarif,
}
