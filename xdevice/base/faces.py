"""Imports public names when they are first used. A face is a module that only gives access to public names, such as
`xdevice` itself or `xdevice.parallel`. It lists them in a stub (`.pyi`) next to it, which type checkers read too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def names_in(file: str) -> dict[str, str]:
    """Returns the public names of the face whose module is the path `file`, each with the
    module from which the stub imports the name."""
    names = {}
    with open(os.path.splitext(file)[0] + ".pyi", encoding="utf-8") as stub:
        for line in stub:
            # "from .core.selection import backend as backend": words 2 and 4
            if line.startswith("from "):
                _, module, _, name = line.split()[:4]
                names[name] = module
    return names


def read(face: str, package: str, module: str, name: str) -> Any:
    """Returns `name`, imported from `module`, which is written as in a stub of the package `package`. Also stores the
    value in the module `face`, so that Python finds it there at the next use."""
    from importlib import import_module

    # `from . import math` imports a module, every other line a value of a module
    value = (
        import_module(f".{name}", package)
        if module == "."
        else getattr(import_module(module, package), name)
    )
    # help, pickles and tracebacks of a function then show its public module
    if type(value) is type(read):
        value.__module__ = face
    setattr(sys.modules[face], name, value)
    return value


def lazy(face: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the functions `__getattr__` and `__dir__` of a face below `xdevice`, whose module
    is `file` and contains only `__getattr__, __dir__ = lazy(__name__, __file__)`. `__getattr__`
    raises `AttributeError` for a name that the stub does not have."""
    names = names_in(file)
    # relative imports in the stub start at the package
    package = face if os.path.basename(file) == "__init__.py" else face.rpartition(".")[0]

    def attribute(name: str) -> Any:
        """The `__getattr__` of the face."""
        if name not in names:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return read(face, package, names[name], name)

    return attribute, lambda: sorted(names)
