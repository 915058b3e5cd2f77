"""The modules that have public names, and those names."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import xdevice


def faces() -> list[ModuleType]:
    """`xdevice`, and each module below it whose public names are imported when they are used."""
    root = Path(xdevice.__file__).parent
    stubs = sorted(root.rglob("*.pyi"))
    names = [
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in stubs
    ]
    return [importlib.import_module(name) for name in names]


def names_of(face: ModuleType) -> dict[str, Any]:
    """The functions and classes of a face; its modules are faces of their own, or have none."""
    values = {name: getattr(face, name) for name in dir(face) if not name.startswith("_")}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}
