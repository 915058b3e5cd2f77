"""Which accelerator `gpu:i` is, where a framework has several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xdevice.errors import SettingError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE: Final = "XDEVICE_ACCELERATOR"


def chosen(framework: str, names: Sequence[str], default: str | None = None) -> str | None:
    """Of the accelerators of a framework that have devices, the one that `gpu:i` is; None where there is none.

    Args:
        default: the one on which the framework itself computes, where it tells.

    Raises:
        UnsupportedError: there are several, and nobody says which.
        SettingError: XDEVICE_ACCELERATOR names none of several.
    """
    if len(names) < 2:
        return names[0] if names else None
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    there = ", ".join(names)
    if wanted:
        for name in names:
            if name.lower() == wanted:
                return name
        raise SettingError(f"{VARIABLE}={shown(wanted)}: {framework} has {there} here; set it to one of these")
    if default in names:
        return default
    raise UnsupportedError(
        f"{framework} has several accelerators here, {there}, and does not say which it computes on; "
        f"set {VARIABLE}={names[0]} before the program starts, or another of them"
    )
