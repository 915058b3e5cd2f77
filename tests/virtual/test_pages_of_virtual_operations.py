"""The page of each adapter, the docstring above its code, says what is replaced in the framework, and why."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.environment import ROOT

REPLACED = re.compile(
    r'private\.place\("[\w.]*?(\w+)"\)|^ +(?:library|jax)\.(\w+) = ', re.MULTILINE
)
PAGES = {
    page: ast.get_docstring(ast.parse(page.read_text(encoding="utf-8")))
    for page in sorted((ROOT / "backends").glob("*/virtual/*.py"))
}
WITH_A_TABLE = {page: text for page, text in PAGES.items() if "\n|---|---|---|\n" in text}


def test_every_framework_in_which_something_is_replaced_has_a_page():
    frameworks = {page.parent.parent.name.removeprefix("xdevice_") for page in WITH_A_TABLE}
    # NumPy has no virtual GPUs
    assert frameworks == {"jax", "mxnet", "paddle", "tensorflow", "torch"}


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: f"{page.parent.parent.name}-{page.stem}"
)
def test_what_is_replaced_is_on_the_page(page):
    names = {
        name
        for groups in REPLACED.findall(page.read_text(encoding="utf-8"))
        for name in groups
        if name
    }
    assert {name for name in names if name not in PAGES[page]} == set()
    assert not names or page in WITH_A_TABLE


@pytest.mark.parametrize(
    "page", WITH_A_TABLE, ids=lambda page: f"{page.parent.parent.name}-{page.stem}"
)
def test_a_page_links_its_upstream_issues_or_says_that_none_is_known(page):
    text = " ".join(WITH_A_TABLE[page].split())
    is_linked = re.search(r"https://github\.com/[\w-]+/[\w-]+/(?:issues|pull)/\d+", text)
    assert is_linked or "no upstream issue known" in text
