"""Public names that are imported when they are first used. Each face, such as `xdevice` itself or `xdevice.parallel`,
lists them in a stub (`.pyi`) next to it, where type checkers read the same lines."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def names_in(file: str) -> dict[str, str]:
    """The public names of the face in this file, each with the module that the stub imports it from."""
    names = {}
    with open(os.path.splitext(file)[0] + ".pyi", encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                _, module, _, name = line.split()[:4]
                names[name] = module
    return names


def read(face: str, package: str, module: str, name: str) -> Any:
    """Imports a public name of a face and stores it there, so that its next use takes no time."""
    from importlib import import_module

    value = (
        import_module(f".{name}", package)
        if module == "."
        else getattr(import_module(module, package), name)
    )
    if type(value) is type(read):
        value.__module__ = (
            face  # which help, pickles and tracebacks of a user's program should show
        )
    setattr(sys.modules[face], name, value)
    return value


def lazy(face: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a face below `xdevice`: `__getattr__, __dir__ = lazy(__name__, __file__)`."""
    names = names_in(file)
    package = face if os.path.basename(file) == "__init__.py" else face.rpartition(".")[0]

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return read(face, package, names[name], name)

    return attribute, lambda: sorted(names)
