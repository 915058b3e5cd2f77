"""Types for two lists of each adapter: what it replaces in its framework, and which private names of the framework it
uses.

Each built-in adapter has a `patches.py` with `PATCHES` and `PRIVATE`. The tests compare them with the adapter's source
and with what is replaced at run time, and ask the installed framework for each name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Only = Literal["", "CUDA", "virtual GPUs", "older"]
"""Where the framework has the names: everywhere, in builds with CUDA, with virtual GPUs, in older versions."""


class Patch(NamedTuple):
    """Attributes of a module, a class or an object of a framework that an adapter replaces."""

    owner: str
    names: tuple[str, ...]
    """`("*",)` stands for all functions of the owner."""
    why: str
    until: Literal["block", "process"]
    """When the attributes are put back: at the end of the last block that needs the replacements, or never."""
    only: Only = ""


class Private(NamedTuple):
    """Names that an adapter uses although its framework does not promise to keep them."""

    owner: str
    names: tuple[str, ...]
    why: str
    only: Only = ""
