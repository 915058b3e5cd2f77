"""Commands of the docs that install xdevice take it from where the project is, as long as it is not on PyPI."""

from __future__ import annotations

import re

from helpers.environment import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_commands_install_xdevice_by_its_address():
    lines = {
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"(pip|uv) (install|add)\b.*\bxdevice-dl\b", line)
        and "xdevice-dl @ " not in line
    }
    by_extra = {line for line in lines if re.search(r"xdevice-dl\[[^]]*\] @ ", line)}
    assert not lines - by_extra


def test_pages_with_such_a_command_say_that_it_is_not_on_pypi():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if "@ $ADDRESS" in text:
            assert "not on PyPI yet" in " ".join(text.split()), page
