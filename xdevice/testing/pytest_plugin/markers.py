"""The plugin's markers, and the check of their arguments. (PYTEST_DONT_REWRITE: this module contains no assertions.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.base.dtypes import DTYPES, SHORT_FLOATS
from xdevice.errors import BackendNotFoundError

from .choice import backends_in_marker

if TYPE_CHECKING:
    import pytest

MARKERS: Final = {
    "xd_only": "xd_only(*backends): run this test on these backends only",
    "xd_skip": "xd_skip(*backends, reason): skip this test on these backends",
    "xd_xfail": "xd_xfail(*backends, reason, raises=None, strict=False, run=True): expect it to fail on these backends",
    "xd_needs_gpu": "xd_needs_gpu(n=1): skip this test if the backend finds fewer than n GPUs",
    "xd_needs_dtype": "xd_needs_dtype(*dtypes): skip this test if xd_device does not support one of these dtypes",
    "xd_tol": "xd_tol(*backends, rtol=, atol=, ...): arguments for assert_parity, on these backends or on all",
}
"""The markers of this plugin, with the descriptions that `pytest --markers` shows."""
_KEYWORDS: Final = {
    "xd_only": (),
    "xd_skip": ("reason",),
    "xd_xfail": ("reason", "raises", "strict", "run"),
    "xd_needs_gpu": (),
    "xd_needs_dtype": (),
    "xd_tol": ("rtol", "atol", "check_device", "check_dtype", "equal_nan"),
}
"""The keywords that each marker accepts."""


def fault_of(mark: pytest.Mark) -> str | None:
    """Returns a message that says what is wrong with the arguments of one of this plugin's markers; None if the
    arguments are right."""
    # checked here, because pytest would ignore a misspelled keyword
    unknown = sorted(set(mark.kwargs) - set(_KEYWORDS[mark.name]))
    if unknown:
        return f"{mark.name} has no argument {', '.join(unknown)}; {MARKERS[mark.name]}"
    if mark.name == "xd_needs_gpu":
        wanted = mark.args or (1,)
        # compares the type, because in Python True is an instance of int
        is_count = len(wanted) == 1 and type(wanted[0]) is int and wanted[0] > 0
        return (
            None
            if is_count
            else f"xd_needs_gpu expects a positive number of GPUs, got {wanted!r:.100}"
        )
    if mark.name == "xd_needs_dtype":
        no_dtypes = [name for name in mark.args if name not in (*DTYPES, *SHORT_FLOATS)]
        is_right = mark.args and not no_dtypes
        return (
            None
            if is_right
            else f'xd_needs_dtype expects names of dtypes such as "float64", got {no_dtypes or "nothing"!r:.100}'
        )
    try:
        backends_in_marker(mark)
    except BackendNotFoundError as error:
        return f"{mark.name}: {error}"
    if not mark.args and mark.name != "xd_tol":
        more = ", ..." if _KEYWORDS[mark.name] else ""
        return f'{mark.name} names no backend; write {mark.name}("mxnet"{more})'
    reason = mark.kwargs.get("reason")
    # pytest itself accepts an empty reason
    has_reason = isinstance(reason, str) and reason.strip()
    if "reason" in _KEYWORDS[mark.name] and not has_reason:
        return f'{mark.name} needs a reason; write {mark.name}({mark.args[0]!r}, reason="...")'
    if mark.name == "xd_tol" and not mark.kwargs:
        return "xd_tol sets nothing; write xd_tol(rtol=1e-4)"
    return None
