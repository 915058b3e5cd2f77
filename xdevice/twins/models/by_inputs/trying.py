"""Pairs the layers of two models by running both models on the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.errors import StateError
from xdevice.twins.contract import layouts
from xdevice.twins.models.pairing import check_pair, pair_layers, pairs_in_order, pairs_of_names
from xdevice.twins.models.reading import some_of
from xdevice.twins.models.unpairable import MOST

from .forcing import find_counterparts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xdevice.twins.models.reading import Names, Pairs
    from xdevice.twins.tracing.model_runs import ModelRun

    from .forcing import ForcedRun
    from .runs import Runs

    Values = Callable[[Pairs], Mapping[str, Any]]
    """A function that accepts a pairing of the layers and returns the resulting values of the target's variables."""

_NEAR: Final = 0.3
"""A pairing is accepted if the outputs are closer than this, even if they do not agree. With a wrong pairing, the
outputs differ about as much as the outputs for two different images. With the right pairing but a different eps in 34
norms, they differed 0.13 times as much."""


class ByInputs(NamedTuple):
    """The result of `pair_by_inputs`."""

    pairs: Pairs
    """The pairs of layers."""
    run: ModelRun
    """A run of the target, which shows the order of its calls."""
    with_values: ModelRun | None = None
    """The run of the target with the values that follow from these pairs; None if there was no such run."""
    number: int = 0
    """The index in `values` of the function that was used: 0, unless a later function made the outputs agree."""
    doubt: str = ""
    """A message about the questions that the inputs left open; "" if there are no such questions."""


def pair_by_inputs(runs: Runs, names: Names, values: Sequence[Values]) -> ByInputs:
    """Pairs the layers of two models. A pairing that was found without inputs is accepted if it makes the outputs of
    both models agree. Otherwise layers with the same kind, shape and input are paired. If several layers agree in all
    three, their paths or their order decide. `names` contains the pairs that the caller has fixed, as a dict from paths
    of the source to paths of the target. Each function in `values` accepts a pairing of the layers, and returns the
    resulting values of the target's variables. The functions differ in how they pair the tensors outside layers: the
    first function pairs only tensors with a certain counterpart. The functions are tried in turn until the outputs of
    both models agree.

    Raises:
        StateError: if the counterpart of a layer of the target cannot be determined.
        ArgumentError: if the target cannot run with these inputs.
    """
    source, target = runs.source, runs.target
    # first the pairings that are found without inputs: one, or two guesses if it is not clear which layers correspond.
    # `refusal` is the error that says so, or None
    refusal = None
    try:
        pairings = [pair_layers(source, target, names)]
    except StateError as error:
        # raises the error again if it is about names= itself; otherwise it is about layers that names= does not
        # mention, and the inputs may distinguish them
        if names:
            pairs_of_names(source, target, names)
        refusal = error
        ours, theirs = source.by_path, target.by_path
        # two guesses: the likely pairs of the error, where names may override the order, and the pairs in order
        pairings = [
            [
                (ours[source_path], theirs[target_path])
                for source_path, target_path in paths.items()
                if source_path in ours and target_path in theirs
            ]
            for paths in (error.pairs, pairs_in_order(source, target, names))
        ]
        # each guess costs a run of the target
        if pairings[0] == pairings[1]:
            del pairings[1]
    likely = pairings[0]
    # such a pairing is accepted if the outputs agree with it. `tried` contains the distance between the outputs, and
    # the result, for each pairing with each function
    tried = []
    for pairing in pairings:
        for number, values_of in enumerate(values):
            distance, computed = _try(runs, pairing, values_of)
            # in this run, the target already had the values that follow from the pairing
            result = ByInputs(pairing, run=computed, with_values=computed, number=number)
            if distance <= runs.limit:
                return result
            tried.append((distance, result))
    # if the outputs never agree, the layers are paired by their inputs, and the result is compared with the first
    # pairing, which is `likely` with the sure tensors only
    first_distance, first_result = tried[0]
    try:
        forced = _by_forcing(runs, names, likely, refusal, values[0])
    except StateError as error:
        # without a refusal, the pairing is not a guess, and the inputs were only to confirm it
        if refusal is None:
            return first_result._replace(
                doubt=f"inputs= does not show which layers correspond, so they are paired as without inputs=: {error}"
            )
        least_distance, closest = min(tried, key=lambda attempt: attempt[0])
        # if a setting differs, such as an eps, the distance of the outputs exceeds the limit even for the right pairing
        if least_distance < _NEAR and len(closest.pairs) == len(source.layers) == len(
            target.layers
        ):
            # only the first sentence, because the others are advice
            why = str(error).partition(". ")[0]
            doubt = f"not compared: which layer is which; the outputs are closest with this pairing, but {why}"
            return closest._replace(doubt=doubt)
        error.pairs = {one.path: other.path for one, other in likely}
        raise
    # all other pairings are mere guesses
    if refusal is not None:
        return forced
    # the first pairing is kept unless the forced one is better: the forced one may be wrong about layers with equal
    # inputs
    forced_distance, computed = _try(runs, forced.pairs, values[0])
    return (
        first_result
        if forced_distance >= first_distance
        else forced._replace(with_values=computed)
    )


def _try(runs: Runs, pairs: Pairs, values_of: Values) -> tuple[float, ModelRun]:
    """Runs the target with the values that `values_of` returns for the pairing `pairs`. Returns the distance between
    the outputs of the two models (0 if the outputs are equal), and the run."""
    computed = runs.run_with(values_of(pairs))
    return runs.distance_of_outputs(computed), computed


def _by_forcing(
    runs: Runs, names: Names, likely: Pairs, refusal: StateError | None, values_of: Values
) -> ByInputs:
    """Pairs the layers by one or more forced runs. `likely` is the pairing that was found without inputs. It supplies
    the counterparts that the runs do not find. If `likely` is only a guess, `refusal` is the error that says why;
    otherwise `refusal` is None. Raises `StateError` if a forced run fails, if paired layers do not fit each other, or
    if `likely` is a guess and a layer remains without a counterpart."""
    source, target = runs.source, runs.target
    # empty if `likely` is only a guess: its pairs must then neither be preferred to layers with similar inputs, nor
    # become `fixed`
    preferred = {} if refusal is not None else {other.path: one.path for one, other in likely}
    # keyed by the target's paths, because a search looks for the counterpart of each layer of the target
    fixed = {target_path: source_path for source_path, target_path in names.items()}
    if all(
        source_path == target_path
        for target_path, source_path in preferred.items()
        if target_path not in fixed
    ):
        # if all preferred pairs of layers that names= does not mention have equal paths, these paths identify the pairs
        fixed = {**preferred, **fixed}
    try:
        with runs.temporary_values(values_of(likely)):
            forced = find_counterparts(runs, preferred, fixed)
    except StateError as error:
        # a message has at most `MOST` characters
        raise StateError(
            f"{error}. {refusal}"[:MOST] if refusal is not None else str(error)
        ) from error
    chosen = {**fixed, **forced.chosen}

    def choose(target_path: str, source_path: str) -> None:
        """Adds a pair to `chosen` unless one of the two layers already has a counterpart."""
        if target_path not in chosen and source_path not in chosen.values():
            chosen[target_path] = source_path

    # pairs that the forced runs found come first; the preferred pairs only add layers for which the runs found no
    # counterpart
    for target_path, source_path in preferred.items():
        choose(target_path, source_path)
    for one, other in likely:
        # even a mere guess decides about layers that were never called; a layer in `open` was called, but the inputs do
        # not contain its counterpart. An attention that was assembled from linear layers is never called itself
        if other.path not in forced.open or one.settings.get(layouts.ASSEMBLED):
            choose(other.path, one.path)
    if refusal is not None:
        _require_all(runs, forced, chosen, refusal)
    ours = source.by_path
    pairs = [
        (ours[chosen[target_path]], layer)
        for target_path, layer in target.by_path.items()
        if chosen.get(target_path) in ours
    ]
    for one, other in pairs:
        check_pair(source, one, target, other)
    return ByInputs(pairs, forced.run)


def _require_all(
    runs: Runs, forced: ForcedRun, chosen: dict[str, str], refusal: StateError
) -> None:
    """Adds to `chosen` each pair of unpaired layers that are the only unpaired layers of their kind and shape in their
    models. Then raises `StateError` if a layer of the target is still unpaired although the source has an unpaired
    layer of its kind and shape. `chosen` maps paths of the target to paths of the source. `forced` is the best forced
    run; the error message says where the values differ in this run. `refusal` is the error that pairing without inputs
    raised."""
    source, target = runs.source, runs.target
    # the kind and the shapes of each unpaired layer, by its path
    in_source = {
        layer.path: source.signature(layer)
        for layer in source.layers
        if layer.path not in chosen.values()
    }
    in_target = {
        layer.path: target.signature(layer)
        for layer in target.layers
        if layer.path not in chosen
    }
    for path, wanted in in_target.items():
        fitting = [other for other, signature in in_source.items() if signature == wanted]
        if len(fitting) == 1 and list(in_target.values()).count(wanted) == 1:
            chosen[path] = fitting[0]
    doubtful = [
        path
        for path in in_target
        if path not in chosen and in_target[path] in in_source.values()
    ]
    if doubtful:
        where = ""
        if forced.mismatches:
            _, last_alike = forced.mismatches[0]
            where = f"; the values differ after {last_alike or 'the inputs'}"
        # the refusal comes from pairing without inputs=; a user who has passed inputs= needs no advice to pass it
        text = (
            f"inputs= identifies {len(chosen)} of {len(target.layers)} layers, but not {some_of(doubtful)}{where}. "
            f"{str(refusal).replace(', or give one batch as inputs=', '')}"
        )
        raise StateError(text[:MOST]) from refusal
