"""Defines `convert_state`, which converts a model's parameters to another framework in these steps:

- read both models, each as a `Twin` (`reading`; `flat_states` for a dict or a file);
- rewrite the layers that the two models have in different forms (`forms`);
- pair the layers (`pairing`; with `inputs=` also by running both models, in `by_inputs`);
- write the parameters into a `State` (`state`);
- report the differences that the values do not show (`differences`).

The meaning of a parameter follows from its layer in the source or in the target, or from `kinds`. For a source that is
a state without its module, the meaning may have to be inferred by comparing names and shapes with those of a target
(`recognition`). In that case, the `State` lists the parameter as uncertain.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.errors import ArgumentError, StateError
from xdevice.twins import owners
from xdevice.twins.weights.added_parameters import require_merged_lora

from . import differences, flat_states, reading
from .by_inputs.runs import Runs
from .by_inputs.trying import pair_by_inputs
from .differences import DifferenceLister, Pairing
from .forms import pixel_order, row_slices, single_tensors
from .forms.alike import refuse_unknown_channels, with_same_forms
from .pairing import doubts_about_order, expand_names, pair_layers
from .reading import Request, some_of
from .state import LIKE, State, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .reading import Names, Pairs, Twin


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
    layout: str | None = None,
) -> State:
    """Converts the parameters and running statistics of a model to the layouts of another framework.

    Experimental: it may change in a minor version. Returns a `State`, which also lists what could not be converted or
    compared (docs/reference/models.md). Copies every tensor and, with `inputs=`, runs both models.

    Args:
        source: a built model; tensors in dicts and lists (NumPy arrays as in PyTorch); or the path of a checkpoint.
        backend: the target: "torch", "paddle", "mxnet", "tensorflow" (Keras), "jax", "numpy", or a `Backend`.
        like: a built model of the target; the result gets its names and devices instead of the source's.
        kinds: kinds of layers in a dict or of your own classes, by path, `*` or class name: `{"MyNorm": "rms_norm"}`.
        names: counterparts in `like` of layers (or rows) of the source: `{"h.*.fc1": "b.*.up", "wpe[2:]": "pos"}`.
        device: the device of the tensors; by default the device of `like`'s variables or of the source's variables.
        inputs: a batch for the source (keyword arguments in a dict), to distinguish layers and to compare the outputs.
        dtype: the dtype for floats, such as "bfloat16", or "like" for the dtypes of `like`.
        skip: paths of layers, in either model, that are left out with all layers inside them.
        layout: for a dict or a file that does not name its framework: "torch", "paddle", "flax", ...

    Raises:
        StateError: if it is not clear which layers correspond, or if the kind of a tensor is unknown or does not fit.
        DTypeError, DeviceNotFoundError: if the target lacks the dtype or the device.
        NotATensorError, NotBuiltError, UnsupportedError, ArgumentError: if an argument is invalid.

    Example:
        >>> list(xdevice.models.convert_state({"fc.weight": xdevice.zeros(2, 3)}, "numpy", kinds={"fc": "linear"}))
        ['fc.weight']
    """
    if dtype is not None and dtype != LIKE:
        dtype = dtype_name(dtype)
    request = Request(
        kinds or {},
        names or {},
        device,
        inputs,
        dtype,  # pyright: ignore[reportArgumentType]  # a string by now
        reading.check_skip(skip),
        layout,
    )
    target = _target_of(backend)
    state = State(target.name)
    if isinstance(source, str | os.PathLike):
        # a value is read only when it is written into the state, so the file stays open until the end
        with flat_states.opened(source, state.done) as header:
            _convert(header, target, like, request, state)
    else:
        _convert(source, target, like, request, state)
    return state


def _target_of(backend: str | Backend) -> Backend:
    """Returns the backend to convert to, and loads it if necessary. Raises `ArgumentError` if the argument is a model
    instead of a name. Raises the errors of `registry.load` if the backend is unknown, not installed or not usable."""
    model = (
        None if isinstance(backend, str | Backend) else registry.owner_and_kind(type(backend))
    )
    if model is not None:
        raise ArgumentError(
            f"the second argument must be the name of the target framework, not an object of type "
            f"{type(backend).__qualname__}; to convert the weights for that object, write "
            f"convert_state(source, {model.backend.name!r}, like=...)"
        )
    return registry.load(backend.name if isinstance(backend, Backend) else backend)


def _convert(source: Any, target: Backend, like: Any, request: Request, state: State) -> None:
    """Converts the source, a model or a dict of tensors, and puts the results into `state`. `like` is the target's
    model, or None. Raises the errors that `convert_state` lists."""
    names, source_rows, target_rows = row_slices.split(request.names)
    # `names` without the rows, because all steps below look up layers by path, and "wpe[2:]" is
    # not a path
    request = request._replace(names=names)
    source_twin, target_twin = _read(source, target, like, request, state)
    if target_twin is None:
        _write_without_like(source_twin, target, request, state)
        return
    # before the forms are compared, because an embedding may match its counterpart only after it was cut
    if source_rows or target_rows:
        source_twin = row_slices.select_rows(
            source_twin, source_rows, state.done, is_target=False
        )
        target_twin = row_slices.select_rows(
            target_twin, target_rows, state.done, is_target=True
        )
    # models whose layers have the same forms are not rewritten, so their names and their order stay unchanged
    if not source_twin.has_forms_of(target_twin):
        source_twin, target_twin = with_same_forms(source_twin, target_twin)
    # after `with_same_forms`, and before pairing, so that an error about a missing device comes first
    writer = Writer(source_twin, target, target_twin, state, request)
    pairing = _pair(
        source_twin, target_twin, request._replace(names=expand_names(names, source_twin))
    )
    lister = DifferenceLister(source_twin, target_twin, pairing, state)
    for one, other in (*pairing.pairs, *pairing.singles):
        # before `put`, so that `state` also has the pairs of layers whose values do not fit
        state.pairs[one.path] = other.path
        lister.list_pair(one, other)
        writer.put(one, other, target_twin)
    lister.list_rest(request.inputs is not None)
    writer.finish()


def _read(
    source: Any, target: Backend, like: Any, request: Request, state: State
) -> tuple[Twin, Twin | None]:
    """Reads both models, and returns them without the layers that `skip=` leaves out. The second model is None without
    `like`. Raises the errors that `convert_state` lists for invalid arguments and for arguments that do not fit the
    models."""
    kinds, names = request.kinds, request.names
    reading.check_kinds(kinds)
    target_twin = None
    if like is not None:
        # kinds= has paths of the source; names= gives the paths that differ in `like`
        target_twin = reading.read_like(
            like, target, {names.get(path, path): kind for path, kind in kinds.items()}
        )
    owner = owners.backend_of_model(source)
    # not a model: a dict, a list or a file's header
    if owner is None:
        source_twin = flat_states.read_state(source, target_twin, request, state)
    else:
        source_twin = reading.read_model(owner, source, kinds)
        if target_twin is not None:
            # the layers of linen are described by names and shapes only, so the other model can correct their kinds
            source_path_of = {
                target_path: source_path for source_path, target_path in names.items()
            }
            source_twin, target_twin = (
                reading.with_kinds_of(source_twin, target_twin, names),
                reading.with_kinds_of(target_twin, source_twin, source_path_of),
            )
            if not source_twin.has_forms_of(target_twin):
                # low-rank adapters (LoRA) would change the layers; models with equal layers have no adapters, or the
                # same ones
                require_merged_lora(source_twin.variables, target_twin.variables)
    if request.skip:
        source_twin, target_twin = _without_skipped(
            source_twin, target_twin, request.skip, state
        )
    reading.check_kinds_fit(kinds, names, source_twin, target_twin)
    if request.inputs is not None and (target_twin is None or source_twin.model is None):
        raise StateError(
            "inputs= requires two models; pass one model as the source, and the other as like="
        )
    if target_twin is None and names:
        raise StateError(
            "names= pairs layers of the source with layers of like=, which was not passed; pass a model of the target "
            "as like="
        )
    if target_twin is None and request.dtype == LIKE:
        raise ArgumentError(
            "dtype='like' means the dtypes of like=, which was not passed; pass a model as like=, or the name of a "
            "dtype as dtype="
        )
    return source_twin, target_twin


def _without_skipped(
    source_twin: Twin, target_twin: Twin | None, skip: Sequence[str], state: State
) -> tuple[Twin, Twin | None]:
    """Returns both models without the layers that `skip=` names, and lists these layers in `state`. Raises `StateError`
    if neither model has parameters at one of the paths."""
    # a misspelled path would otherwise be ignored, and nobody would notice
    reading.require_skip_used(
        skip, [source_twin] if target_twin is None else [source_twin, target_twin]
    )
    names = [name for name in source_twin.variables if reading.is_skipped(name, skip)]
    if names:
        state.done.append(f"{some_of(names)} of {source_twin.name} left out, because of skip=")
    source_twin = reading.without_skipped(source_twin, skip)
    if target_twin is not None:
        state.skipped = [
            name for name in target_twin.variables if reading.is_skipped(name, skip)
        ]
        if state.skipped:
            state.done.append(
                f"{some_of(state.skipped)} of {target_twin.name} stay as they are, because of skip="
            )
        target_twin = reading.without_skipped(target_twin, skip)
    return source_twin, target_twin


def _write_without_like(
    source_twin: Twin, target: Backend, request: Request, state: State
) -> None:
    """Converts without `like`: writes all layers of `source_twin` into `state` in the layouts of `target`, with their
    names unchanged. Lists tensors outside any layer as unmapped, and layers with an uncertain pixel order as
    differences."""
    # there is no other model from which the number of channels of a group norm could be read
    source_twin = refuse_unknown_channels(source_twin)
    writer = Writer(source_twin, target, like=None, state=state, request=request)
    for layer in source_twin.layers:
        writer.put_without_like(layer)
    state.differences += pixel_order.doubts(source_twin, target)
    for name in source_twin.single_names:
        state.unmapped[name] = (
            f"it belongs to no layer that xdevice knows; pass kinds={{{name!r}: 'same'}} to convert it unchanged, or "
            f"call settle({name!r}) if it is not needed"
        )
    writer.finish()


def _pair(source: Twin, target: Twin, request: Request) -> Pairing:
    """Returns the pairs of layers, together with a comparison of the layers without parameters. If there are inputs,
    both models run to find the pairs. Raises `StateError` if it is unclear which layers correspond."""
    names = request.names
    # the possible pairings of the tensors outside layers, of which one is used in the end; without such tensors, one
    # empty pairing
    singles: list[Pairs] = [[]]
    likely: Names = {}
    if source.singles and target.singles:
        paths = single_tensors.pair_singles(source, target, names)
        singles = [single_tensors.pairs_of(source, target, pairs) for pairs in paths]
        # the last pairing is by names if any tensors are in doubt, or else it is the sure pairs; messages show it as a
        # guess
        likely = paths[-1]
    runs = None if request.inputs is None else Runs(source, target, request.inputs)
    doubts = []
    try:
        # with the inputs, if there are any; without them, or if the target cannot run with them, by names and order
        if runs is not None:
            try:
                # one function for each pairing of the tensors outside layers. It is called with each pairing of the
                # layers that is tried
                values_of = [
                    partial(_values, source, target, request, pairs) for pairs in singles
                ]
                # `number` is the index in `singles` of the pairing that was used
                pairs, run, with_values, number, doubt = pair_by_inputs(runs, names, values_of)
                plain = differences.compare_by_calls(source, runs.expected, target, run, pairs)
                # if the inputs left no question open, the order of the layers is not in doubt
                doubts = [doubt, *doubts_about_order(source, target, pairs)] if doubt else []
                return Pairing(pairs, singles[number], plain, likely, doubts, runs, with_values)
            except ArgumentError as error:  # the target cannot run with these inputs
                doubts = [f"inputs= does not show which layers correspond: {error}"]
        pairs = pair_layers(source, target, names)
    except StateError as error:
        # users pass `error.pairs` as names= in their next call, so it must contain the single tensors too
        if error.pairs:
            error.pairs = {**likely, **error.pairs}
        raise
    doubts += doubts_about_order(source, target, pairs)
    plain = differences.compare_by_definition(source, target, pairs)
    return Pairing(pairs, singles[0], plain, likely, doubts)


def _values(
    source: Twin, target: Twin, request: Request, singles: Pairs, pairs: Pairs
) -> State:
    """Returns the values that the target's variables would get if the layers in `pairs` and the single tensors in
    `singles` correspond. Returns an empty state if a variable would get two values."""
    state = State(target.name)
    writer = Writer(source, target.backend, target, state, request)
    try:
        for one, other in (*pairs, *singles):
            writer.put(one, other, target)
    except StateError:
        return State(target.name)
    return state
