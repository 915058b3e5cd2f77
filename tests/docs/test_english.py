"""Phrases that native readers stumble on, which have plain equivalents. The list grows as texts are edited."""

from __future__ import annotations

import re

import pytest
from helpers.environment import ROOT

PLAIN = {
    r"\b[Ii]nside of\b": "inside",
    r"\b[Oo]utside of\b": "outside",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\btold of\b": "reported",
    r"\bof one vendor\b": "vendor-specific, CUDA-only",
    r"\b(was|were) (not )?seen (to|on|by)\b": "tested",
    r"\bnobody has seen\b": "not yet verified",
}
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
SOURCES = [path for top in ("xdevice", "backends") for path in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize("phrase", PLAIN)
def test_a_phrase_with_a_plain_equivalent_is_not_used(phrase):
    used = [
        f"{path.relative_to(ROOT)}:{number}: write {PLAIN[phrase]}"
        for path in (*TEXTS, *SOURCES)
        if "_build" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(phrase, line)
    ]
    assert not used, "\n".join(used)
