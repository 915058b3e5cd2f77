"""Which accelerator `gpu:i` is, where a framework has several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xdevice.errors import SettingError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VARIABLE: Final = "XDEVICE_ACCELERATOR"


def choose(
    framework: str, names: Sequence[str], words: Callable[[str], Iterable[str]], default: str | None = None
) -> str | None:
    """Of the accelerators of a framework that have devices, the one that `gpu:i` is; None where there is none.

    Args:
        words: those for the hardware of a name, as "cuda" of TensorFlow's "GPU".
        default: the one on which the framework itself computes, where it tells.

    Raises:
        UnsupportedError: there are several, and nobody says which.
        SettingError: XDEVICE_ACCELERATOR names none of them.
    """
    if not names:
        return None
    wanted = [word.strip().lower() for word in os.environ.get(VARIABLE, "").split(",") if word.strip()]
    there = ", ".join(names)
    if wanted:
        for name in names:
            if name.lower() in wanted or any(word in wanted for word in words(name)):
                return name
        raise SettingError(
            f"{VARIABLE}={shown(','.join(wanted))}: {framework} has {there} here; name one of these, "
            f"beside those of other frameworks: {VARIABLE}={','.join([*wanted, names[0].lower()])}"
        )
    if len(names) == 1:
        return names[0]
    if default in names:
        return default
    raise UnsupportedError(
        f"{framework} has several accelerators here, {there}, and does not say which it computes on; "
        f"set {VARIABLE}={names[0]} before the program starts, or another of them"
    )
