"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports no framework and no NumPy; the first call that needs one does.
"""

from __future__ import annotations

import os as _os

from .base.version import __version__ as __version__
from .core import importing as _importing

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def _read_names() -> tuple[dict[str, str], list[str]]:
    """Returns the module of each public name, and the names that `dir(xdevice)` shows. Both are read from
    `__init__.pyi`, where each name is written once."""
    places, shown = {}, []
    with open(_os.path.join(_os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as file:
        lines = [line.split() for line in file if line.startswith("from ")]
    for _, module, _, name, _, _, *not_shown in lines:
        places[name] = name if module == "." else module[1:]
        if not not_shown:
            shown.append(name)
    return places, shown


_LAZY, __all__ = _read_names()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xdevice' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"xdevice.{_LAZY[name]}")
    value = globals()[name] = module if _LAZY[name] == name else getattr(module, name)  # this function takes 1 us
    if type(value) is type(__getattr__):
        value.__module__ = "xdevice"  # what help, pickles and tracebacks of a user's program should say
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_importing.install()

if _os.environ.get("XDEVICE_FLOATS"):
    from .base import floats as _floats

    if _floats.is_float64():  # a framework's own default has to change before the program makes its layers
        __getattr__("backend")()
