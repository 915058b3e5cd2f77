"""The conformance suite that every adapter must pass (`suite`), and the pytest plugin (`pytest_plugin`).

The classes and functions of the suite are imported only when they are first used, because pytest imports this package
in every run, to load the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import Batch, Conformance, Pair, SeveralProcesses, in_child

__all__ = ["Batch", "Conformance", "Pair", "SeveralProcesses", "in_child"]


def __getattr__(name: str) -> Any:
    """Imports the suite, and returns its class or function `name`. Raises `AttributeError` if the name is not in
    `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import suite

    return getattr(suite, name)
