"""Lets MXNet 1.9 work with NumPy 1.24 to 1.26, which lack names that MXNet uses, such as `numpy.bool`.

MXNet reads these names when it is imported, and also later (`x[mask] = 0`). During the import, MXNet's modules use
their own `__import__`. It returns a copy of the module `numpy` to which these names are added. Afterwards, MXNet's
modules continue to use the copy. The real module, which all other code uses, is never changed.
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
    """Opens a block for importing `package` (MXNet). In the block, the package finds the names that NumPy has removed
    (apache/mxnet#21165). Raises ImportError for NumPy 2, with which MXNet cannot work."""
    # NumPy 2 has removed this name
    if not hasattr(numpy, "PZERO"):
        raise ImportError(
            f"{package} 1.9 requires numpy below 2, not {numpy.__version__}; run pip install 'numpy<2'"
        )
    # MXNet imports distutils, which is missing in Python 3.12; setuptools provides it
    if importlib.util.find_spec("distutils") is None:
        importlib.import_module("setuptools")
    _forget_failed_import(package)
    # the first finder that finds a module loads it, so this finder must come first
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.end()


def _forget_failed_import(package: str) -> None:
    """Removes the submodules that remained in `sys.modules` after a failed import of `package` outside `restored`.
    These submodules refer to the real NumPy, and must be imported again with the copy."""
    if package not in sys.modules:
        for name in [name for name in tuple(sys.modules) if name.startswith(f"{package}.")]:
            del sys.modules[name]


class _Finder(MetaPathFinder):
    """Finds the modules of `package` in the same way as Python, but replaces the `__import__` that these modules
    use."""

    def __init__(self, package: str) -> None:
        self._package = package
        copy = ModuleType("numpy", numpy.__doc__)
        vars(copy).update(vars(numpy))
        vars(copy).update(_GONE)

        # Python calls this function for each import statement in the modules. It replaces only
        # the module `numpy`, and not the submodules of `numpy`
        def import_(name: str, *args: Any, **kwargs: Any) -> ModuleType:
            """Python's `__import__`, which returns the copy instead of `numpy`."""
            module = builtins.__import__(name, *args, **kwargs)
            return copy if module is numpy else module

        self._builtins = {**vars(builtins), "__import__": import_}

    def end(self) -> None:
        """Restores Python's own `__import__` in the modules. This method is called after the import of the package,
        when the modules already refer to the copy. Most of MXNet's functions import modules when they are called. The
        replaced `__import__` is a Python function, and would slow down each of these calls."""
        self._builtins["__import__"] = builtins.__import__

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec with which Python loads the module `name`, or None if the module does not belong to the
        package."""
        if name.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(name, path, target)
        # only modules that are written in Python use the `__import__` of their builtins
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._builtins)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module from its source file, with `names` as the module's builtins."""

    def __init__(self, name: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code with `names` as its builtins."""
        # Python looks up `__import__` and all other builtins of a module in this dict
        vars(module)["__builtins__"] = self._names
        super().exec_module(module)
