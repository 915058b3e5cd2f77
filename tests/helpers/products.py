"""Tests of the device layer in a copy that has no products (`.ci/core_alone.py`): one that uses a product itself is
skipped, by the product's name. If the device layer uses one, the test fails."""

from __future__ import annotations

import importlib
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import xdevice
from xdevice.contract import Backend

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCTS: Final = (
    "cli",
    "distributed",
    "math",
    "performance",
    "port",
    "testing",
    "twins",
    "virtual",
)
_PARTS: Final = {"testing": "testing.suite"}
"""By which a product is known: the samples of `testing` are there for all tests."""
MISSING: Final = tuple(
    name for name in PRODUCTS if find_spec(f"xdevice.{_PARTS.get(name, name)}") is None
)

_ROOT: Final = Path(xdevice.__file__).parent.parent
_LAYER: Final = tuple(str(_ROOT / name) + os.sep for name in ("xdevice", "backends"))
_DOORS: Final = tuple(
    str(_ROOT / "xdevice" / name)
    for name in ("__init__.py", "__main__.py", "base/faces.py", "contract/backend.py")
)
"""Where a program's own use of a product arrives: `xdevice.nn`, `python -m xdevice`, and `backend.samples()`."""
_IMPORTING: Final = ("<frozen importlib", importlib.__file__)
_NO_MODULE: Final = re.compile(r"No module named 'xdevice\.(\w+)")
_NO_METHOD: Final = re.compile(r"Backend has no attribute '(\w+)'")
_FRAME: Final = re.compile(r'^  File "(.+?)", line ', re.M)


def missing_for(raised: BaseException, frames: Iterable[Any]) -> str | None:
    """Returns what a test lacks that ended with this error, if it is of a missing product, and the test asked for it
    itself; `frames` are those of the traceback, the innermost last."""
    if not MISSING or not isinstance(raised, (ModuleNotFoundError, AttributeError)):
        return None
    if isinstance(raised, AttributeError) and not isinstance(raised.obj, Backend):
        return None
    return _missing(str(raised), [str(frame.code.path) for frame in frames])


def skip_if_missing(stderr: str, variables: dict[str, str]) -> None:
    """Skips the test if its child process ended because the program asked for a missing product, by itself or by a
    variable."""
    if "virtual" in MISSING and variables.get("XDEVICE_VIRTUAL_GPUS"):
        pytest.skip("needs virtual, which this copy does not have")
    match = _find(stderr) if MISSING else None
    lacking = _missing(match[0], _FRAME.findall(stderr[: match.start()])) if match else None
    if lacking is not None:
        pytest.skip(f"needs {lacking}, which this copy does not have")


def _find(text: str) -> re.Match[str] | None:
    return _NO_MODULE.search(text) or _NO_METHOD.search(text)


def _missing(text: str, files: Iterable[str]) -> str | None:
    match = _find(text)
    asking = [file for file in files if file not in _DOORS and not file.startswith(_IMPORTING)]
    if match is None or not asking or asking[-1].startswith(_LAYER):
        return None
    return match[1]
