"""The errors for what no verb takes."""

from __future__ import annotations

from xdevice.base.dtypes import DTYPES, SHORT_FLOATS
from xdevice.errors import DTypeError, NotATensorError, UnsupportedError, shown

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any

    from xdevice.contract import Backend


def refuse_non_container(x: object, verb: str) -> None:
    from xdevice.containers import trees

    if not trees.is_container(x) and trees.stranger(x) is None:
        raise NotATensorError(
            f"cannot {verb} {shown(x)} of type {type(x).__qualname__}: expected a tensor, a model, or a container of "
            f"them; xdevice.tensor(data) makes a tensor of numbers"
        )


def traced(backend: Backend, name: str) -> UnsupportedError:
    """The error for a traced tensor, which only `to_device` and `copy_to` take."""
    return UnsupportedError(
        f"{name} stands for a tensor while {backend.name} traces a function, so it has no values and no device "
        f"yet; do this outside of the traced function. to_device and copy_to work inside, or say why not"
    )


def require_dtype(
    backend: Backend, dtype: str, what: str, instead: str, *, loads: bool = False, may_narrow: bool = False
) -> None:
    """Raises `DTypeError` unless tensors of a backend can have this dtype, as the framework is set up just now.

    Args:
        loads: 8-bit floats will do, which are moved, saved and loaded, and nothing else.
        may_narrow: so will a dtype that the framework narrows; its adapter refuses the values that do not fit then.
    """
    if dtype in backend.dtypes:
        refusal = None if may_narrow else backend.dtype_refusal(dtype)
        if refusal is not None:
            raise DTypeError(f"{what} is {dtype}, which {backend.name} would narrow: {refusal}")
    elif dtype in SHORT_FLOATS and not loads:
        raise DTypeError(f"{what} is {dtype}, which xdevice only moves, saves and loads; {instead}")
    elif not (loads and dtype in backend.short_floats):
        there = ", ".join(name for name in DTYPES if name in backend.dtypes)
        raise DTypeError(f"{what} is {dtype}, and {backend.name} supports {there}; {instead}")


def lack_of_memory(backend: Backend, variable: Any) -> str | None:
    """Why a variable cannot take values, such as being on meta; None if it can."""
    if backend.device_of(variable).kind != "meta":
        return None
    return 'is on meta and has no memory; give it some first: model.to_empty(device="cpu")'
