"""The choice of the accelerator that the name `gpu:i` means, if a framework has several, such
as CUDA and another vendor's plugin."""

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
    """Returns the name of the accelerator that `gpu:i` means, out of `names`; None if `names` is empty.

    Args:
        framework: what error messages call the framework.
        names: the framework's accelerators that have devices on this machine.
        words: returns the words that mean the hardware of an accelerator, such as "cuda" for
            TensorFlow's "GPU".
        default: the accelerator on which the framework itself computes; None if it does not
            say.

    Raises:
        UnsupportedError: if there are several accelerators, and neither XDEVICE_ACCELERATOR nor `default` names one.
        SettingError: if XDEVICE_ACCELERATOR is set, and names none of them.
    """
    if not names:
        return None
    wanted = [
        word.strip().lower() for word in os.environ.get(VARIABLE, "").split(",") if word.strip()
    ]
    present = ", ".join(names)
    # the variable lists words for several frameworks, in any order: the first of the
    # framework's own accelerators that one of them means is used
    if wanted:
        for name in names:
            if name.lower() in wanted or any(word in wanted for word in words(name)):
                return name
        raise SettingError(
            f"{VARIABLE}={shown(','.join(wanted))} does not name any accelerator of {framework}, which has {present} "
            f"here; add one of them to the list: {VARIABLE}={','.join([*wanted, names[0].lower()])}"
        )
    if len(names) == 1:
        return names[0]
    if default in names:
        return default
    raise UnsupportedError(
        f"{framework} has several accelerators here, {present}, but does not say on which of them it computes; name "
        f"one of them before the program starts, for instance with {VARIABLE}={names[0]}"
    )
