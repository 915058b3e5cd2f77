"""Errors for arguments that none of the verbs (`to_device`, `copy_to`, `device_of`, ...)
accepts, and the checks that raise them."""

from __future__ import annotations

from contextlib import suppress

from xdevice.base.devices import CPU
from xdevice.base.dtypes import DTYPES, NARROWER, SHORT_FLOATS, dtype_name
from xdevice.core import registry
from xdevice.errors import DTypeError, NotATensorError, NotBuiltError, UnsupportedError, shown

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from xdevice.base.devices import Device
    from xdevice.containers.trees import Tree
    from xdevice.contract import Backend


def refuse_non_container(x: object, verb: str) -> None:
    """Raises `NotATensorError` if `x` is not a container and contains no tensors. The caller has
    checked that `x` is neither a tensor nor a model. `verb` names the attempted call in the error,
    such as "compare"."""
    from xdevice.containers import trees

    if not trees.is_container(x) and trees.stranger(x) is None:
        raise NotATensorError(
            f"cannot {verb} {shown(x)} of type {type(x).__qualname__}: expected a tensor, a model, or a container of "
            f"them; to make a tensor from numbers, call xdevice.tensor(data)"
        )


def symbol_error(backend: Backend, name: str) -> UnsupportedError:
    """Returns the error for a symbol, which stands for a tensor while a function is traced.
    Only `to_device` and `copy_to` accept symbols. The error refers to the symbol as `name`."""
    return UnsupportedError(
        f"{name} is a symbol while {backend.name} traces a function, so it has no values and no device yet; make this "
        "call outside the traced function. Inside it, only to_device and copy_to accept symbols"
    )


def operators_hint(backend: Backend) -> str:
    """Returns the end of an error about tensors on two devices. It explains that an operator of the framework may have
    created one of the tensors on another device than its operands. Returns "" for frameworks that run each operator on
    the device of its operands."""
    if backend.computes_on == "operands":
        return ""
    return (
        f". Note that {backend.name} computes +, *, -x and x[i] on its default device, wherever the operands are; run "
        f"these operations in a `with device:` block, or use functions such as xp.add"
    )


def require_dtype(
    backend: Backend,
    dtype: str,
    what: str,
    instead: str,
    *,
    place: Device = CPU,
    loads: bool = False,
    may_narrow: bool = False,
) -> None:
    """Raises `DTypeError` unless tensors of a backend can have this dtype, with the framework's
    present settings.

    Args:
        what: the subject of the error: "the tensor".
        instead: the advice at the end of the error: "cast it first".
        place: the device of the tensors. It may lack a dtype that the framework has.
        loads: whether 8-bit floats are accepted. xdevice can only move, save and load them.
        may_narrow: whether to accept a dtype that the framework narrows. The adapter then
            refuses values that do not fit.
    """
    if dtype in backend.dtypes:
        refusal = None if may_narrow else backend.dtype_refusal(dtype)
        if refusal is not None:
            raise DTypeError(
                f"{what} is {dtype}, which {backend.name} would narrow; {instead}. {refusal}"
            )
    elif dtype in SHORT_FLOATS and not loads:
        raise DTypeError(
            f"{what} is {dtype}, which xdevice only moves, saves and loads; {instead}"
        )
    elif not (loads and dtype in backend.short_floats):
        supported = ", ".join(name for name in DTYPES if name in backend.dtypes)
        raise DTypeError(
            f"{what} is {dtype}, but {backend.name} supports only {supported}; {instead}"
        )
    if place is not CPU and dtype in backend.lacks(place):
        raise _lacking_dtype(backend, dtype, place, what, write="use {}")


def refuse_lacking(x: Any, place: Device, backends: Iterable[Backend], name: str = "") -> None:
    """Raises `DTypeError` if the device `place` lacks the dtype of a tensor in `x`, or of a variable of a model in `x`.
    The error names the first such tensor or variable.

    Args:
        backends: the backends of all tensors and models in `x`. `x` is walked only if the device
            lacks one of their dtypes.
        name: the name of `x` in the error; may be empty.
    """
    if place is CPU or not any(backend.lacks(place) for backend in backends):
        return
    from xdevice.containers.trees import Tree

    tree = Tree(x, keep_movers=True, once=True)
    for i in range(len(tree.leaves)):
        for path, value, backend, kind in _parts_of_leaf(tree, i):
            # only this tensor's backend matters: another backend may have the dtype on the same
            # device
            lacks = backend.lacks(place)
            # a tensor is its own only part
            parts = _variables(backend, value) if kind == "model" else [("", value)]
            for inner, part in parts:
                dtype = _dtype_of_part(part)
                if dtype in lacks:
                    subject = (
                        f"{name}{tree.path(i)}{path}.{inner}".strip(".")
                        or f"the {type(value).__qualname__}"
                    )
                    # the f-string turns `{{!r}}` into `{!r}`, where `_lacking_dtype` inserts the narrower dtype
                    advice = f"write xdevice.tensor(x, device={str(place)!r}, dtype={{!r}})"
                    raise _lacking_dtype(
                        backend,
                        dtype,
                        place,
                        subject,
                        "cast the model to {} first" if kind == "model" else advice,
                    )


def _parts_of_leaf(tree: Tree, i: int) -> Iterable[tuple[str, Any, Backend, str]]:
    """Returns the tensors, symbols and models in the leaf with the index `i`: the leaf itself,
    or the contents of an object of an unknown type. Returns nothing for any other leaf. Each
    item is a path within the leaf, the value, its backend and its kind."""
    leaf = tree.leaves[i]
    owned = registry.owner_and_kind(type(leaf))
    if owned is not None:
        return [("", leaf, owned.backend, owned.kind)]
    stranger = tree.stranger(i)
    return () if stranger is None else stranger.parts


def _variables(backend: Backend, model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each variable of a model, and then each part of the model,
    with "" as its name. Variables that cannot be listed are left out."""
    # a model whose variables cannot be listed may still be moved
    with suppress(NotBuiltError, UnsupportedError):
        yield from backend.variables(model)
    # the parts include variables that are not saved, such as PyTorch buffers with
    # persistent=False
    yield from (("", part) for part in backend.model_parts(model))


def _dtype_of_part(x: Any) -> str | None:
    """Returns the name of the dtype of a part of a model. Returns None if the part has no
    dtype, or a dtype that xdevice does not know."""
    try:
        return dtype_name(x.dtype)
    # submodels have no dtype; random keys, strings and quantized numbers have unknown ones
    except (AttributeError, DTypeError):
        return None


def _lacking_dtype(
    backend: Backend, dtype: str, place: Device, what: str, write: str
) -> DTypeError:
    """Returns the error for a dtype that a device does not support. `what` is the subject of the
    error, such as "the tensor". `write` is advice on how to get a narrower dtype; the name of that
    dtype replaces the `{}` in `write`."""
    # the error names the hardware, because its reader must learn which kind of GPU lacks the
    # dtype
    hardware = ("virtual",) if backend.virtual else sorted(backend.hardware())
    words = f" ({'/'.join(hardware)})" if place.kind == "gpu" else ""
    narrower = NARROWER.get(dtype)
    # no advice if there is no narrower dtype, or if the device lacks that dtype too
    has_narrower = narrower is not None and narrower not in backend.lacks(place)
    instead = f"{write.format(narrower)}, or " if has_narrower else ""
    return DTypeError(
        f"{what} is {dtype}, which {place} of {backend.name}{words} does not support; {instead}keep it on cpu:0"
    )


def why_not_writable(backend: Backend, variable: Any) -> str | None:
    """Returns the part of an error that says why values cannot be written into a variable: the
    variable is on the meta device. Returns None if values can be written."""
    if backend.device_of(variable).kind != "meta":
        return None
    return 'is on the meta device and has no memory; allocate it first with model.to_empty(device="cpu")'
