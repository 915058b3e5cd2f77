"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports neither a framework nor NumPy; the first call that needs one of them imports it.
"""

from __future__ import annotations

import os as _os

from .base import faces as _faces
from .base.version import __version__ as __version__
from .core import importing as _importing

TYPE_CHECKING = False  # typing takes longer to import than all of the modules below
if TYPE_CHECKING:
    from typing import Any

_names = _faces.names_in(__file__)
__all__ = [name for name in _names if name != "__version__"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used. For any other name, raises an
    `AttributeError` that says what to use instead."""
    if name in _names:
        return _faces.read(__name__, __name__, _names[name], name)
    from .base import guesses

    raise AttributeError(guesses.message_for(name, __all__))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# from here on, xdevice takes over an import of a framework, such as `import tensorflow`, if that is
# necessary
_importing.install()

if _os.environ.get("XDEVICE_FLOATS"):
    from .base import floats as _floats

    # loads the selected backend now, because the framework's default dtype has to change before the
    # program creates its layers
    if _floats.is_float64():
        __getattr__("backend")()
