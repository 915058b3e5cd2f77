"""Settings that apply to every framework that is loaded: virtual GPUs, blocking mode and float64. Environment variables
or a call at the start of the program determine these settings.

Some of the settings must be known before a framework is imported, so adapters call functions of this module while the
adapters are being imported.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from xdevice.base import floats, requested
from xdevice.base.requested import BLOCKING, VIRTUAL_GPUS
from xdevice.errors import SettingError, shown

if TYPE_CHECKING:
    from . import Backend

_PREFIX: Final = "XDEVICE_"
VARIABLES: Final = (
    "ACCELERATOR", "ADDRESS", "BACKEND", "BLOCKING", "CHECK", "ENGINE", "FLOATS", "JOIN_TIMEOUT", "LOCAL_RANK",
    "LOCAL_SIZE", "RANK", "RECORD", "SEED", "SIZE", "TIMEOUT", "TOKEN", "VIRTUAL_GPUS",
)  # fmt: skip
"""The words that follow `XDEVICE_` in the variables that xdevice itself reads. An adapter may read further
variables."""

_forever = ExitStack()
"""The open `blocking()` blocks that XDEVICE_BLOCKING has entered. They are never exited."""


def check() -> None:
    """Checks the environment variables before a framework is imported. If blocking mode is requested, also sets
    CUDA_LAUNCH_BLOCKING, which the CUDA driver reads when it starts.

    Raises:
        SettingError: if XDEVICE_VIRTUAL_GPUS or XDEVICE_BLOCKING has an invalid value, or the name of a variable is
            misspelt.
    """
    # a misspelt variable would be ignored, and the default would apply
    _refuse_misspelt()
    # called only for its error
    virtual_gpus_wanted()
    if is_blocking_wanted():
        os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")


def _refuse_misspelt() -> None:
    """Raises `SettingError` if an environment variable, which xdevice would ignore, has almost the same name as a
    variable that xdevice reads."""
    unread = {
        name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)
    } - set(VARIABLES)
    if not unread:
        return
    import difflib

    for name in sorted(unread):
        # a name whose similarity is less than 0.85 may belong to a variable of the program or of an adapter
        close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)
        if close:
            raise SettingError(
                f"xdevice does not read {_PREFIX}{name}; did you mean {_PREFIX}{close[0]}? If not, unset the variable"
            )


def set_up(backend: Backend) -> None:
    """Sets up a backend that is being loaded, with the settings that the program or the environment requests: virtual
    GPUs, the default dtype float64, or blocking mode."""
    if wanted := requested_gpus():
        # imported by name, and only here and in `parsed`, because the device layer must not depend on the
        # product `virtual`
        import_module("xdevice.virtual.gpus").give_virtual_gpus(backend, wanted)
    if floats.is_float64():
        backend.default_to_float64()
    if is_blocking_wanted():
        # never exited, because the variable applies to the whole process
        _forever.enter_context(backend.blocking())


def is_blocking_wanted() -> bool:
    """Whether XDEVICE_BLOCKING requests blocking mode.

    Raises:
        SettingError: if the variable has a value other than "1", "0" or "".

    Example:
        >>> from xdevice.contract.environment import is_blocking_wanted
        >>> is_blocking_wanted()
        False
    """
    return is_enabled(BLOCKING, default=False)


def is_enabled(variable: str, *, default: bool) -> bool:
    """Returns True if an environment variable is "1", False if it is "0", and `default` if it is unset or empty. Raises
    `SettingError` for any other value."""
    value = os.environ.get(variable, "").strip()
    if value not in ("", "0", "1"):
        raise SettingError(
            f"{variable} must be 1 or 0, not {shown(value)}; set {variable}={int(not default)}, or unset it"
        )
    return value == "1" if value else default


def virtual_gpus_wanted() -> int:
    """Returns the number of virtual GPUs that the program or XDEVICE_VIRTUAL_GPUS requests; 0 if there is no request.

    Raises:
        SettingError: if the value of XDEVICE_VIRTUAL_GPUS does not begin with a non-negative int, or if an unknown
            property of virtual GPUs follows the int. A known property is ":no_float64".

    Example:
        >>> from xdevice.contract.environment import virtual_gpus_wanted
        >>> virtual_gpus_wanted() >= 0
        True
    """
    return len(requested_gpus())


def requested_gpus() -> tuple[Any, ...]:
    """Returns the `Character` of each requested virtual GPU, which lists the limits of that GPU. The tuple is empty if
    no virtual GPUs are requested. Raises `SettingError` as `virtual_gpus_wanted` does."""
    _, text = request()
    try:
        return parse_virtual_gpus(text)
    except ValueError as error:
        raise SettingError(
            f"{VIRTUAL_GPUS} must be a non-negative int, not {shown(text)}; {VIRTUAL_GPUS}=4 creates 4 virtual GPUs, "
            f"and {VIRTUAL_GPUS}=4:no_float64 creates 4 without float64 ({error})"
        ) from None


def request() -> tuple[str, str]:
    """Returns two strings: the name of the call or variable that requests virtual GPUs, and the description of the
    virtual GPUs, which is "" if there is no request. A call takes precedence over the variable."""
    if requested.virtual_gpus:
        return "virtual_gpus()", requested.virtual_gpus
    return VIRTUAL_GPUS, _variable()


def remember_request(text: str) -> None:
    """Stores the program's request for the virtual GPUs that `text` describes, so that backends that are loaded later
    get these virtual GPUs too."""
    requested.virtual_gpus = text


def _variable() -> str:
    """Returns the value of XDEVICE_VIRTUAL_GPUS; "" if it is not set."""
    return os.environ.get(VIRTUAL_GPUS, "").strip()


@cache
def parse_virtual_gpus(text: str) -> tuple[Any, ...]:
    """Returns the `Character` of each virtual GPU that `text` describes. Raises `ValueError` if `text` is not a valid
    description."""
    if text in ("", "0"):
        return ()
    # imported only here, because most programs have no virtual GPUs
    return tuple(import_module("xdevice.virtual.contract.characters").parse(text))


def refuse_too_late(backend: Backend) -> None:
    """Raises `SettingError` if XDEVICE_VIRTUAL_GPUS no longer requests the virtual GPUs with which the backend was
    loaded. Called when a program counts GPUs, or names a GPU that does not exist."""
    text = _variable()
    # a backend that has only the CPU, such as NumPy, never gets virtual GPUs
    if not text or backend.is_host_only:
        return
    # empty if the backend was loaded with its real GPUs
    loaded_with = backend.characters if backend.virtual else ()
    if parse_virtual_gpus(text) != loaded_with:
        raise SettingError(
            f"{VIRTUAL_GPUS}={text} was set after {backend.name} was loaded with {backend.virtual} virtual GPUs; set "
            f"the variable before the program starts, or in the program's first line (in a notebook, restart the "
            f"kernel). Calling xdevice.virtual_gpus({shown(text)}) may still work now"
        )
