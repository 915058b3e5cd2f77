"""Most tests are written as a program is: at most a third of their files import what may change at any time."""

from __future__ import annotations

import ast

import pytest
from helpers.environment import ROOT

import xdevice

PUBLIC = {*dir(xdevice), "contract", "base", "errors", "testing"}
"""What CONTRIBUTING.md calls stable or experimental, and what adapters are written on and tested by."""


def imported(code):
    """The modules, and for `from xdevice import ...` the names."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "xdevice":
            yield from (f"xdevice.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def is_internal(module):
    root, _, rest = module.partition(".")
    if root == "xdevice":
        return bool(rest) and rest.partition(".")[0] not in PUBLIC
    return root.startswith("xdevice_") and root != "xdevice_toyframe"


@pytest.mark.parametrize(
    ("code", "internal"),
    [
        (
            "import xdevice\nfrom xdevice import nn, to_device\nfrom xdevice.contract.streams import Streams",
            False,
        ),
        ("from xdevice import core", True),
        ("def test():\n    from xdevice.core.registry import load", True),
        ("import xdevice_torch", True),
    ],
)
def test_an_internal_import_is_seen(code, internal):
    assert any(map(is_internal, imported(code))) is internal


def test_at_most_a_third_of_the_files_import_internals():
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    internal = [
        str(file)
        for file in files
        if any(map(is_internal, imported(file.read_text(encoding="utf-8"))))
    ]
    assert len(internal) <= len(files) / 3, internal
