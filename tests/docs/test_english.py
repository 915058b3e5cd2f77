"""Phrases that native readers stumble on, which have plain equivalents. The list grows as texts are edited."""

from __future__ import annotations

import re

import pytest
from helpers.environment import ROOT

PLAIN = {
    r"\b[Ii]nside of\b": "inside",
    r"\b[Oo]utside of\b": "outside",
    r"\b[Mm]end(s|ed|ing)?\b": "fix",
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


IN_TEXTS = {
    r"\bbeside\b(?!\.py)": "with, next to, compared with",
    r"\bstands? (still|in|at|behind|above|there)\b": "hang, is, appears",
    r"\b(tells?|told) of\b": "report",
    r"\bby way of\b": "through",
}


@pytest.mark.parametrize("phrase", IN_TEXTS)
def test_a_page_of_the_docs_has_plain_words(phrase):
    used = [
        f"{path.relative_to(ROOT)}:{number}: write {IN_TEXTS[phrase]}"
        for path in TEXTS
        if "_build" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert not used, "\n".join(used)


def sentences(path):
    """The prose of a page, a paragraph, cell or item each; code and headings are left out."""
    text = re.sub(
        r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n *[-*|] |\n *\d+\. | \| ", text):
        yield " ".join(part.split())


def test_no_sentence_begins_with_what():
    """As a question may: a clause as the subject has to be read twice."""
    statement = re.compile(r"(?:^|[.!?:] )\**(What (?:[^.?!]|\.\S)*\.(?=\s|$))")
    used = [
        f"{path.relative_to(ROOT)}: {found[1]}"
        for path in TEXTS
        if "_build" not in path.parts
        for part in sentences(path)
        if (found := statement.search(part))
        and "differs" not in found[1]
        and len(found[1].split()) > 4
    ]
    assert not used, "\n".join(used)


def test_no_docstring_begins_with_what():
    used = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r'\s*"""What ', line)
    ]
    assert not used, "\n".join(used)
