"""Imports public names when they are first used. A face is a module that contains nothing but public names, such as
`xdevice` itself or `xdevice.parallel`. A stub (`.pyi`) next to the module lists these names, and type checkers read the
stub too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def names_in(file: str) -> dict[str, str]:
    """Returns the public names of a face, as a dict from each name to the module from which the stub imports the name.
    `file` is the path of the face's module."""
    names = {}
    with open(os.path.splitext(file)[0] + ".pyi", encoding="utf-8") as stub:
        for line in stub:
            # in "from .core.selection import backend as backend", these are words 2 and 4
            if line.startswith("from "):
                _, module, _, name = line.split()[:4]
                names[name] = module
    return names


def read(face: str, package: str, module: str, name: str) -> Any:
    """Imports the public name `name` from `module`, and returns its value. `module` is written as in a stub of the
    package `package`: a relative name such as `.core.selection`. Also stores the value in the module `face`, where
    Python finds it at the next use."""
    from importlib import import_module

    # `from . import math` imports a module; every other line of a stub imports a value from a module
    value = (
        import_module(f".{name}", package)
        if module == "."
        else getattr(import_module(module, package), name)
    )
    # `type(read)` is the type of functions: `help`, pickles and tracebacks then name a function's public
    # module
    if type(value) is type(read):
        value.__module__ = face
    setattr(sys.modules[face], name, value)
    return value


def lazy(face: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the functions `__getattr__` and `__dir__` for the face `face`, a module below `xdevice` with the path
    `file`. The module contains only `__getattr__, __dir__ = lazy(__name__, __file__)`. Its `__getattr__` raises
    `AttributeError` for a name that the stub does not list."""
    names = names_in(file)
    # relative imports in the stub start at the package
    package = face if os.path.basename(file) == "__init__.py" else face.rpartition(".")[0]

    def attribute(name: str) -> Any:
        """The `__getattr__` of the face."""
        if name not in names:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return read(face, package, names[name], name)

    return attribute, lambda: sorted(names)
