"""The words of CONTRIBUTING.md are the only ones for their things: no file and no hook has one of those beside them."""

from __future__ import annotations

import re

from helpers.environment import ROOT

from xdevice.testing.suite.capabilities import HOOKS

SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The words")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", SECTION, re.MULTILINE)[1:]
AVOIDED = {word for _, avoided in ROWS for word in re.split(r",\s*", avoided.strip()) if word}


def test_the_glossary_is_short():
    words = [word for row, _ in ROWS for word in row.split(", ")]
    assert 20 <= len(words) <= 40
    assert not AVOIDED & set(words)


def test_no_file_and_no_method_of_the_contract_has_another_word():
    files = [path for folder in ("xdevice", "backends") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    assert {path.stem for path in files} & AVOIDED == set()
    assert HOOKS.keys() & AVOIDED == set()


def test_the_files_of_the_adapters_are_those_of_the_contract():
    """The same capability has the same name in all adapters, which the contract has too, or the list of an adapter's
    files in the docs."""
    told = set(re.findall(r"`(\w+)\.py`", (ROOT / "docs/reference/adapters.md").read_text(encoding="utf-8")))
    contract = {path.stem for path in (ROOT / "xdevice" / "contract").glob("*.py")}
    stems = [path.stem for path in (ROOT / "backends").glob("*/*.py")]
    assert {stem for stem in stems if stems.count(stem) > 1} - told - contract == set()
