"""Chooses the accelerator that the name `gpu:i` means if a framework has several accelerators, such as CUDA and another
vendor's plugin."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xdevice.errors import SettingError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VARIABLE: Final = "XDEVICE_ACCELERATOR"


def choose(
    framework: str,
    names: Sequence[str],
    words: Callable[[str], Iterable[str]],
    default: str | None = None,
) -> str | None:
    """Returns the name in `names` of the accelerator that `gpu:i` means; None if `names` is empty.

    Args:
        framework: the name of the framework in error messages.
        names: the names of the framework's accelerators that have devices on this machine.
        words: a function that returns the words for the hardware of an accelerator, such as "cuda" for TensorFlow's
            "GPU".
        default: the accelerator on which the framework itself computes; None if the framework does not report it.

    Raises:
        UnsupportedError: if there are several accelerators, and neither XDEVICE_ACCELERATOR nor `default` names one.
        SettingError: if XDEVICE_ACCELERATOR is set, but names none of these accelerators.
    """
    if not names:
        return None
    wanted = [
        word.strip().lower() for word in os.environ.get(VARIABLE, "").split(",") if word.strip()
    ]
    present = ", ".join(names)
    # the variable lists words for several frameworks, in any order; the first of `names` to which one
    # of these words applies is used
    if wanted:
        for name in names:
            if name.lower() in wanted or any(word in wanted for word in words(name)):
                return name
        raise SettingError(
            f"{VARIABLE}={shown(','.join(wanted))} does not name any accelerator of {framework}, which has {present} "
            f"here; add an accelerator of {framework}: {VARIABLE}={','.join([*wanted, names[0].lower()])}"
        )
    if len(names) == 1:
        return names[0]
    if default in names:
        return default
    raise UnsupportedError(
        f"{framework} has several accelerators here, {present}, but does not report which of these it uses; "
        f"choose one before the program starts, for instance with {VARIABLE}={names[0]}"
    )
