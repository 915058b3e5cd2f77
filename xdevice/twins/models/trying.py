"""Pairs the layers of two models by running them on one batch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.dtypes import dtype_name
from xdevice.contract import layouts
from xdevice.errors import StateError

from .pairing import by_name, check_pair, pair_layers, pairs_in_order, signature
from .refusals import MOST
from .sides import some_of, write_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from xdevice.contract.layouts import Layer
    from xdevice.twins.tracing.inference import Run

    from .settling import Runs, Settled
    from .sides import Side

    Pairs = Sequence[tuple[Layer, Layer]]

_NEAR: Final = 0.3
"""Outputs of a wrong pairing are about as far apart as those of two images. Those of the right one, with another eps in
34 norms, were 0.13 of that."""


def pair_by_inputs(
    runs: Runs, renamed: Mapping[str, str], values: Sequence[Callable[[Pairs], Mapping[str, Any]]]
) -> tuple[Pairs, Run, int, str]:
    """Pairs the layers of two models. A pairing without inputs stands if the outputs then agree; otherwise layers of
    one kind, shape and input are paired, and where several have the same, their paths or their order decide. `values`
    are functions that give what the target's variables become by a pairing: each has other pairs of the tensors that
    are in no layer. Returns the pairs; a run of the target, which tells the order of its calls; which of `values` it
    was, the first unless another made the outputs agree; and what the inputs could not settle, if the pairing without
    them had to stand.

    Raises:
        StateError: nothing tells which layer of the source is the counterpart of a layer of the target.
        ArgumentError: the target cannot run with these inputs.
    """
    source, target = runs.sides
    ours, theirs = ({layer.path: layer for layer in side.layers} for side in (source, target))
    refusal = None
    try:
        guesses = [pair_layers(source, target, renamed)]
    except StateError as error:
        if renamed:
            by_name(source, target, renamed)  # raises if names= itself is wrong
        refusal = error
        guesses = [
            [(ours[here], theirs[there]) for here, there in guess.items() if here in ours and there in theirs]
            for guess in (error.pairs, pairs_in_order(source, target, renamed))
        ]
    likely, tried = guesses[0], []
    for guess in guesses[: 1 if guesses[-1] == likely else 2]:
        for number, way in enumerate(values):
            apart, plain = _try(runs, guess, way)
            if apart <= runs.limit:
                return guess, plain, number, ""
            tried.append((apart, guess, plain, number))
    apart, _, plain, _ = tried[0]
    try:
        pairs, computed = _by_forcing(runs, renamed, likely, refusal, values[0])
    except StateError as error:
        if refusal is None:
            return likely, plain, 0, f"inputs= settles nothing, so that layers are paired as without: {error}"
        apart, guess, plain, number = min(tried, key=lambda one: one[0])
        if apart < _NEAR and len(guess) == len(source.layers) == len(target.layers):
            why = str(error).partition(". ")[0]
            return guess, plain, number, f"not compared: which layer is which; the outputs come closest so, but {why}"
        error.pairs = {one.path: other.path for one, other in likely}
        raise
    if refusal is None and _try(runs, pairs, values[0])[0] >= apart:
        return likely, plain, 0, ""
    return pairs, computed, 0, ""


def _try(runs: Runs, pairs: Pairs, values: Callable[[Pairs], Mapping[str, Any]]) -> tuple[float, Run]:
    """How far the outputs are apart if the target has the values that this pairing gives it, and that run."""
    with lend_values(runs.sides[1], values(pairs)):
        computed = runs.plain()
    return runs.outputs_apart(computed), computed


def _by_forcing(
    runs: Runs,
    renamed: Mapping[str, str],
    likely: Pairs,
    refusal: StateError | None,
    values: Callable[[Pairs], Mapping[str, Any]],
) -> tuple[Pairs, Run]:
    source, target = runs.sides
    guess = {} if refusal is not None else {other.path: one.path for one, other in likely}
    fixed = {there: here for here, there in renamed.items()}
    if all(here == there for there, here in guess.items() if there not in fixed):
        fixed = {**guess, **fixed}  # where both models have the same paths, these say which layer is which
    try:
        with lend_values(target, values(likely)):
            settled = runs.settle(source.layers, target.layers, guess, fixed)
    except StateError as error:
        raise StateError(f"{error}. {refusal}"[:MOST] if refusal is not None else str(error)) from error
    ours, theirs = ({layer.path: layer for layer in side.layers} for side in (source, target))
    chosen = {**fixed, **settled.chosen}
    for there, here in guess.items():
        if there not in chosen and here not in chosen.values():
            chosen[there] = here
    for one, other in likely:  # attentions that were put together from linear layers are not called
        is_called = other.path in settled.open and not one.settings.get(layouts.FOLDED)
        if not is_called and other.path not in chosen and one.path not in chosen.values():
            chosen[other.path] = one.path
    if refusal is not None:
        _require_all(runs, settled, chosen, refusal)
    pairs = [(ours[chosen[there]], theirs[there]) for there in theirs if chosen.get(there) in ours]
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs, settled.run


def _require_all(runs: Runs, settled: Settled, chosen: dict[str, str], refusal: StateError) -> None:
    """Pairs in `chosen` layers that are the only ones left of their kind and shape in both models. Then raises
    `StateError` if a layer of the target has no counterpart although the source has a layer of its kind and shape
    left."""
    source, target = runs.sides
    left = {layer.path: signature(source, layer) for layer in source.layers if layer.path not in chosen.values()}
    right = {layer.path: signature(target, layer) for layer in target.layers if layer.path not in chosen}
    for there, wanted in right.items():
        fitting = [here for here, kind in left.items() if kind == wanted]
        if len(fitting) == 1 and list(right.values()).count(wanted) == 1:
            chosen[there] = fitting[0]
    doubtful = [there for there in right if there not in chosen and right[there] in left.values()]
    if doubtful:
        where = f"; the models come apart behind {settled.apart[0][1] or 'the beginning'}" if settled.apart else ""
        text = (
            f"inputs= tells {len(chosen)} of {len(target.layers)} layers, but not {some_of(doubtful)}{where}. "
            f"{str(refusal).replace(', or give one batch as inputs=', '')}"
        )
        raise StateError(text[:MOST]) from refusal


@contextmanager
def lend_values(side: Side, state: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block the model has those values of `state` that fit its variables in name, dtype and shape;
    afterwards it has its own values again."""
    backend = side.backend
    values = {
        name: value for name, value in state.items()
        if name in side.variables and _fits(side.variables[name], value)
    }  # fmt: skip
    variables = side.variables
    kept = {
        name: backend.from_numpy(backend.to_numpy(variables[name]).copy(), backend.device_of(variables[name]))
        for name in values
    }
    try:
        write_variables(backend, side.model, variables, values)
        yield
    finally:
        write_variables(backend, side.model, variables, kept)


def _fits(variable: Any, value: Any) -> bool:
    return dtype_name(variable.dtype) == dtype_name(value.dtype) and tuple(variable.shape) == tuple(value.shape)
