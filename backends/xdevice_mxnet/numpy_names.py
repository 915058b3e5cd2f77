"""Lets MXNet 1.9 work with NumPy 1.24 to 1.26, which lack names that MXNet uses: `numpy.bool`
and the like.

MXNet reads these names when it is imported and later (`x[mask] = 0`). During the import, only
MXNet's modules get an `__import__` that returns a copy of the module `numpy` with these names
added, and they keep the copy. The real module, which all other code uses, is never changed.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# the names that NumPy 1.24 removed, with the types to which they referred
_GONE = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
}


@contextmanager
def restored(package: str) -> Iterator[None]:
    """A block in which `package` (MXNet) is to be imported, and finds the names that NumPy has
    removed (apache/mxnet#21165). Raises ImportError for NumPy 2, with which MXNet cannot
    work."""
    # a name that NumPy 2 removed
    if not hasattr(numpy, "PZERO"):
        raise ImportError(
            f"{package} 1.9 needs numpy below 2, not {numpy.__version__}; run pip install 'numpy<2'"
        )
    # MXNet imports distutils, which Python 3.12 lacks and setuptools brings along
    if importlib.util.find_spec("distutils") is None:
        importlib.import_module("setuptools")
    _forget_failed_import(package)
    # the first finder that knows a module loads it
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.end()


def _forget_failed_import(package: str) -> None:
    """Removes the submodules that an earlier import of `package`, outside `restored`, left in
    `sys.modules` when it failed. They refer to the real NumPy, and must be imported again with
    the copy."""
    if package not in sys.modules:
        for name in [name for name in tuple(sys.modules) if name.startswith(f"{package}.")]:
            del sys.modules[name]


class _Finder(MetaPathFinder):
    """Finds the modules of `package` as Python does, but replaces the `__import__` that each of
    these modules uses."""

    def __init__(self, package: str) -> None:
        self._package = package
        copy = ModuleType("numpy", numpy.__doc__)
        vars(copy).update(vars(numpy))
        vars(copy).update(_GONE)

        # Python calls it for each import statement in the modules. Only the module `numpy` is
        # replaced, and not its submodules
        def import_(name: str, *args: Any, **kwargs: Any) -> ModuleType:
            """Python's `__import__`, which returns the copy instead of `numpy`."""
            module = builtins.__import__(name, *args, **kwargs)
            return copy if module is numpy else module

        self._builtins = {**vars(builtins), "__import__": import_}

    def end(self) -> None:
        """Gives the modules Python's own `__import__` again. Called after the import of the
        package, when the modules already refer to the copy. MXNet imports modules inside most
        of its functions, and the replaced `__import__`, a Python function, would slow down each
        of their calls."""
        self._builtins["__import__"] = builtins.__import__

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec with which Python loads a module of the package; None for any other
        module."""
        if name.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(name, path, target)
        # only modules written in Python import by `__import__` of their builtins
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._builtins)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module from its source file, and gives it `names` as its builtins."""

    def __init__(self, name: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code with `names` as its builtins."""
        # Python looks up `__import__` and all other builtins of a module here
        vars(module)["__builtins__"] = self._names
        super().exec_module(module)
