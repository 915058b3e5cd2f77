"""`convert_state`: converts a model's parameters to another framework.

`contract/layouts.py` says how each framework lays out the parameters of each kind of layer.

All parameters go by way of PyTorch's layout: each parameter of the source becomes the parameters of PyTorch that it
stands for, and these become the parameters of the target. What a parameter means is known from its layer, of the source
or of the target, or from `kinds`; its name or shape alone never decides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.errors import ArgumentError, StateError
from xdevice.twins.weights.adapted import require_merged

from . import folding, given, rows, views
from .pairing import spelled_out
from .sides import check_kinds, check_told, flat_side, is_skipped, kinds_with, model_of, model_side, some_of
from .state import State
from .writing import LIKE, How, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def convert_state(
    source: Any,
    backend: str | Backend,
    *,
    like: Any = None,
    kinds: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    device: object = None,
    inputs: object = None,
    dtype: object = None,
    skip: Iterable[str] = (),
) -> State:
    """The parameters and running statistics of a model, in the layouts of another framework.

    Young: it may change in a minor version. Gives a `State`, whose `unmapped` and `differences` say what could not be
    kept: print it. The tensors share no memory with the source and do not require gradients. docs/reference/models.md
    says how layers are paired and laid out. Costs a copy of every tensor; with `inputs=`, a few runs of both models.

    Args:
        source: a built model; a dict of tensors, those of JAX and NumPy as PyTorch has them; or a checkpoint's path.
        backend: the target: "torch", "paddle", "mxnet", "tensorflow" (Keras), "jax", "numpy", or a `Backend`.
        like: a built model of the target. The result has the names and devices of `like`; without it, the source's.
        kinds: the kind of layers in a dict, or of your own classes, by path, `*` or class: `{"MyNorm": "rms_norm"}`.
        names: which layer of the source is which of `like`, or which rows: `{"h.*.fc1": "b.*.up", "wpe[2:]": "pos"}`.
        device: where to put the tensors; without it, they are where their counterparts in `like` or the source are.
        inputs: a batch, as the source takes it (a dict is keywords): tells layers apart, and compares the outputs.
        dtype: what floats are cast to: "bfloat16", or "like" for the dtypes of `like`.
        skip: paths of layers, of either model, that are left out with all below them: a head of another size.

    Raises:
        StateError: layers that pair in several ways or in none, or tensors whose kind is unknown or does not fit.
        DTypeError, DeviceNotFoundError: the target lacks the dtype or the device, or would narrow the dtype.
        NotATensorError, NotBuiltError, UnsupportedError, ArgumentError: an argument is not what is said above.

    Example:
        >>> list(xdevice.convert_state({"fc.weight": xdevice.zeros(2, 3)}, "numpy", kinds={"fc": "linear"}))
        ['fc.weight']
    """
    done: list[str] = []
    with given.opened(source, done) as whole:
        cast = None if dtype is None else LIKE if dtype == LIKE else dtype_name(dtype)
        how = How(device, inputs, cast, given.check_skip(skip))
        return _convert(whole, backend, like, dict(kinds or {}), dict(names or {}), how, done)


def _convert(
    source: Any,
    backend: str | Backend,
    like: Any,
    kinds: dict[str, str],
    renamed: dict[str, str],
    how: How,
    done: list[str],
) -> State:
    model = registry.kind_of(type(backend))
    if model is not None:
        raise ArgumentError(
            f"the second argument is the target's name, not a {type(backend).__qualname__}; to convert for this one, "
            f"write convert_state(source, {model.backend.name!r}, like=...)"
        )
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    state = State(target.name)
    state.done = done
    check_kinds(kinds)
    renamed, ours, theirs = rows.asked(renamed)
    wanted = None if like is None else model_side(model_of(like, target), {renamed.get(k, k): kinds[k] for k in kinds})
    owner = registry.backend_of_model(source)
    of_like = None if wanted is None else wanted.variables
    if owner is not None:
        origin = model_side((owner, source), kinds)
        require_merged(origin.variables, of_like)
    else:
        declared = kinds_with(kinds, wanted, renamed)
        named = given.state_of(source, declared, state.done)
        require_merged(named if isinstance(named, dict) else (), of_like)
        origin = flat_side(named, declared, how.skip)
    sides = [side for side in (origin, wanted) if side is not None]
    given.require_used(how.skip, sides)
    for side, what in zip(sides, ("left out", "stay as they are"), strict=False):
        names = [name for name in side.variables if is_skipped(name, how.skip)]
        done += [f"{some_of(names)} of {side.backend.name} {what}, as skip= says"] * bool(names)
        state.skipped = names if side is wanted else []
    origin = given.without(origin, how.skip)
    wanted = None if wanted is None else given.without(wanted, how.skip)
    check_told(kinds, renamed, origin, wanted)
    if how.inputs is not None and (wanted is None or origin.model is None):
        raise StateError("inputs= is what two models are called with; give a model, and another one as like=")
    if wanted is None and renamed:
        raise StateError("names= says which layer of like= is meant; give like=, the model")
    if wanted is not None:
        origin = rows.cut(views.with_bare(origin), ours, done, is_target=False)
        wanted = rows.cut(views.with_bare(wanted), theirs, done, is_target=True)
    origin, wanted = folding.alike(origin, wanted)
    renamed = spelled_out(renamed, origin)
    writer = Writer(origin, target, state, how)
    if wanted is None:
        writer.put_freely(origin.layers)
    else:
        writer.put_all(origin, wanted, renamed, how.inputs)
    for name in origin.unknown if wanted is None else ():
        state.unmapped[name] = (
            f"no layer that xdevice knows has it; kinds={{{name!r}: 'same'}} takes it as it is, and "
            f"settle({name!r}) says that it is not needed"
        )
    writer.finish()
    return state
