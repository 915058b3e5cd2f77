"""What no verb takes, said once."""

from __future__ import annotations

from xdevice.errors import NotATensorError, UnsupportedError, shown

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from xdevice.contract import Backend


def refuse_non_container(x: object, verb: str) -> None:
    from xdevice.containers import trees

    if not trees.is_container(x) and trees.stranger(x) is None:
        raise NotATensorError(
            f"cannot {verb} {shown(x)} of type {type(x).__qualname__}: expected a tensor, a model, or a container of "
            f"them; xdevice.tensor(data) makes a tensor of numbers"
        )


def traced(backend: Backend, name: str) -> UnsupportedError:
    """The error for a symbol, which only `to_device` and `copy_to` take."""
    return UnsupportedError(
        f"{name} stands for a tensor while {backend.name} traces a function, so it has no values and no device yet; "
        f"do this outside of the traced function. to_device and copy_to work inside, or say why not"
    )
