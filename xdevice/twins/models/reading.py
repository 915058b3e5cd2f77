"""Reads a model as a `Twin`, which consists mainly of a list of layers with known parameters. Applies `kinds=` to
layers that no adapter can read, and leaves out the layers in `skip=`. The module `flat_states` reads dicts of
tensors."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.contract.private import AbsentNameError
from xdevice.errors import ArgumentError, NotATensorError, StateError, UnsupportedError, shown
from xdevice.twins import owners
from xdevice.twins.contract import layouts
from xdevice.twins.contract.dialects import DEPTHWISE, DIALECTS
from xdevice.twins.contract.layouts import Layer, Part
from xdevice.twins.contract.operations import WIRING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.twins.contract.dialects import PartsOf
    from xdevice.twins.contract.layouts import Settings

    Variables = Mapping[str, Any]
    Array = np.ndarray[Any, Any]
    Names = Mapping[str, str]
    """Maps either paths of the source to paths of the target, as in `names=`, or paths to kinds of layers, as in
    `kinds=`."""
    Pairs = Sequence[tuple[Layer, Layer]]
    """Pairs of a layer of the source and its counterpart in the target."""
    Shape = tuple[int, ...]
    Form = tuple[str, tuple[tuple[str, Shape], ...]]
    """The kind of a layer, and the name and shape of each of its parameters, as in PyTorch."""
    Signature = tuple[object, ...]
    """The kind of a layer and the shape of one of its parameters (see `_DISTINGUISHING`). Layers with different
    signatures are not paired."""


class Request(NamedTuple):
    """The arguments of `convert_state` other than the two models."""

    kinds: Names
    names: Names
    device: object
    inputs: object
    dtype: str | None
    skip: Sequence[str]
    layout: str | None


_MOST_LAYERS: Final = 32
"""The maximum number of levels of a recurrent layer in a dict."""
SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings that determine the shapes of a layer's parameters. If two layers differ in one of these settings, their
shapes may differ too."""
_DISTINGUISHING: Final = (
    "running_mean", "weight", layouts.WEIGHT_NORM[1], layouts.SPECTRAL_NORM[0], "weight_ih_l0", "out_proj.weight", "",
)  # fmt: skip
"""PyTorch's names of the parameters whose shapes distinguish layers of the same kind. For each layer, the first of
these parameters that the layer has is used."""
# how many names a message lists
_SOME: Final = 8


class Twin(NamedTuple):
    """One model of a conversion, the source or the target, represented by its layers and variables."""

    backend: Backend
    layers: list[Layer]
    """The layers with parameters whose kind is known."""
    variables: Mapping[str, Any]
    """All parameters and statistics, by name."""
    singles: list[Layer]
    """The variables that belong to no known layer, each one as a layer of the kind "same". A variable with several
    names appears once."""
    sequence: list[Layer] | None = None
    """All layers of a model, including layers without parameters, in the order in which the model defines them. None
    for a dict, or if the backend cannot list the layers without parameters."""
    model: Any = None
    """The model, as the framework's object; None for a dict."""

    @property
    def name(self) -> str:
        """The name of the backend, for messages."""
        return self.backend.name

    @property
    def by_path(self) -> dict[str, Layer]:
        """The layers with parameters, by path."""
        return {layer.path: layer for layer in self.layers}

    @property
    def single_names(self) -> list[str]:
        """The names of the variables in `singles`, in the same order."""
        return [layer.parts[0].name for layer in self.singles]

    def shapes(self, layer: Layer) -> dict[str, Shape]:
        """Returns a dict from PyTorch's names of a layer's parameters to their shapes in PyTorch's layout."""
        return shapes_of(self.variables, layer)

    def forms(self, layers: Iterable[Layer]) -> list[Form]:
        """Returns the kind of each layer and the shapes of all its parameters except counters, in PyTorch's layout."""
        forms = []
        for layer in layers:
            shapes = shapes_of(self.variables, layer)
            # only PyTorch counts batches
            shapes.pop(layouts.COUNTER, None)
            forms.append((layer.kind, tuple(shapes.items())))
        return forms

    def has_forms_of(self, other: Twin) -> bool:
        """Whether both models have the same number of layers of each kind and shape."""
        ours, theirs = (
            Counter(twin.forms([*twin.layers, *twin.singles])) for twin in (self, other)
        )
        return ours == theirs

    def signature(self, layer: Layer) -> Signature:
        """Returns the kind of a layer, and the shape (in PyTorch's layout) of the first parameter in `_DISTINGUISHING`
        that the layer has. Returns only the kind if the layer has none of these parameters. For a convolution, the size
        of the input axis is the total number of input channels of all groups."""
        shapes = self.shapes(layer)
        name = next((name for name in _DISTINGUISHING if name in shapes), None)
        if name is None:
            return (layer.kind,)
        shape = shapes[name]
        groups = layer.settings.get("groups", 1)
        if isinstance(groups, int) and layer.kind.startswith("conv"):
            # a weight has the inputs of one group only; if the number of groups differs, the comparison of settings
            # shows that
            shape = (shape[0], shape[1] * groups, *shape[2:])
        return layer.kind, shape

    def signatures(self, layers: Iterable[Layer] | None = None) -> list[Signature]:
        """Returns the signatures of `layers`, or by default of all layers of the twin."""
        return [self.signature(layer) for layer in (self.layers if layers is None else layers)]

    def with_layers(self, layers: Iterable[Layer]) -> Twin:
        """Returns the twin with these layers in place of its current layers. In `sequence`, each new layer replaces the
        layer that has the same variables."""
        every = list(layers)
        # a `sequence` of None stays None
        sequence = self.sequence and list(_replaced_in(self.sequence, every))
        return self._replace(layers=every, sequence=sequence)

    def joined(self, joins: Iterable[tuple[Sequence[Layer], Layer]]) -> Twin:
        """Returns the twin with one layer in place of each group of layers in `joins`, at the position of the group's
        first layer. Each item of `joins` contains a group and the layer that replaces the group."""
        replacement_of = {
            id(layer): replacement for group, replacement in joins for layer in group
        }
        if not replacement_of:
            return self
        layers = [replacement_of.get(id(layer), layer) for layer in self.layers]
        # `layers` contains a joined layer once for each layer of its group. Duplicates are removed by id, because a
        # Layer contains a dict and has no hash
        return self.with_layers({id(layer): layer for layer in layers}.values())


def _replaced_in(sequence: Iterable[Layer], layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yields the layers of `sequence`, but replaces each layer with parameters by the layer in `layers` that has the
    same parameters. A layer that replaces several layers is yielded once, in place of the first. Layers without
    parameters are kept. A layer with parameters is left out if no layer in `layers` has these parameters."""
    owner_of = {part.name: layer for layer in layers for part in layer.parts}
    done: set[int] = set()
    for layer in sequence:
        owner = owner_of.get(layer.parts[0].name) if layer.parts else layer
        # a layer that replaces several layers of the sequence is yielded only at the place of the first one
        if owner is not None and id(owner) not in done:
            done.add(id(owner))
            yield owner._replace(line=layer.line)


def shapes_of(variables: Mapping[str, Any], layer: Layer) -> dict[str, Shape]:
    """Returns a dict from PyTorch's names of a layer's parameters to their shapes in PyTorch's layout."""
    shapes = {}
    for part in layer.parts:
        shape = tuple(variables[part.name].shape)
        # a shortcut for most parts, because creating a stand-in takes NumPy 10 us
        if part.rule is layouts.SAME:
            shapes[part.of[0]] = shape
            continue
        # the rule is applied to an array of this shape that occupies one byte of memory
        stand_in = np.broadcast_to(np.zeros((), "bool"), shape)
        for name, array in zip(part.of, part.rule.canonical(stand_in), strict=True):
            shapes[name] = array.shape
    return shapes


def parent_of(path: str) -> str:
    """Returns the path of the module that contains the module at `path`; "" is the path of the model itself."""
    return path.rpartition(".")[0]


def last_name(path: str) -> str:
    """Returns the last name in a path."""
    return path.rpartition(".")[2]


def some_of(names: Iterable[str]) -> str:
    """Returns a string with the first eight names, such as "a, b, ... (20 in all)"; "none" if there are no names."""
    every = list(names)
    more = f", ... ({len(every)} in all)" if len(every) > _SOME else ""
    return ", ".join(every[:_SOME]) + more or "none"


# models


def read_model(backend: Backend, model: Any, kinds: Names | None = None) -> Twin:
    """Returns a model of this backend as a `Twin`. `kinds` maps paths, patterns or classes to kinds, and overrides
    kinds that were guessed from names and shapes. Raises `StateError` if a kind does not fit the shapes of a layer, and
    `AbsentNameError` if the installed release of the framework lacks a private name that the backend needs."""
    variables = dict(backend.variables(model))
    layers = list(backend.layers(model))
    try:
        sequence = [
            layer for layer in backend.operations(model, layers) if layer.kind != WIRING
        ]
    # this is an `UnsupportedError` too, but it means that this release of the framework lacks a private name that the
    # adapter needs, and not that the backend lists no operations
    except AbsentNameError:
        raise
    except UnsupportedError:
        # layers with parameters can be paired nevertheless; `differences` reports that other layers were not compared
        sequence = None
    if kinds:
        paths = expand_kinds(kinds, variables, sequence)
        # a kind that the user passes overrides a kind that was guessed from names and shapes
        layers = [
            one
            for one in layers
            if not (has_unknown_settings(one) and paths.get(one.path, one.kind) != one.kind)
        ]
        layers += _declared(backend, variables, layers, sequence, kinds)
    singles = [
        layer_of_single(name, value) for name, value in without_owner(variables, layers).items()
    ]
    return Twin(backend, layers, variables, singles, sequence, model)


def read_like(like: Any, target: Backend, kinds: Names) -> Twin:
    """Returns the argument `like=` as a `Twin`. `kinds` maps paths in `like` to the kinds of layers. Raises
    `NotATensorError` if `like` is not a model of the backend `target`, and `StateError` if a kind does not fit the
    shapes of a layer."""
    owner = owners.backend_of_model(like)
    if owner is not target:
        kind = type(like).__qualname__
        came = (
            f"this {kind} is a model of {owner.name}"
            if owner
            else f"got {shown(like, 60)} of type {kind}; a dict of weights can only be converted into a model"
        )
        raise NotATensorError(f"like= must be a built model of {target.name}; {came}")
    return read_model(target, like, kinds)


def with_kinds_of(twin: Twin, other: Twin, names: Names) -> Twin:
    """Reads some layers as another kind, the kind of the other model's layer at the same path. Returns the changed
    twin. A layer is changed only if its kind was guessed from names and shapes, and if its parameters also fit the
    other kind. `names` maps paths of the twin to paths of the other model if these differ."""
    other_layers = other.by_path
    dialects = dialects_for(twin.backend)
    layers = []
    for layer in twin.layers:
        counterpart = other_layers.get(names.get(layer.path, layer.path))
        if (
            counterpart is None
            or counterpart.kind == layer.kind
            or not has_unknown_settings(layer)
        ):
            layers.append(layer)
            continue
        own = {part.name: twin.variables[part.name] for part in layer.parts}
        try:
            new = declared_layer(dialects, layer.path, counterpart.kind, own)
        except StateError:
            new = None
        # if the new kind lacks a parameter, that parameter would be lost
        is_whole = new is not None and {part.name for part in new.parts} == own.keys()
        layers.append(
            new
            if new is not None and is_whole and _fits(twin, new, other, counterpart)
            else layer
        )
    return twin.with_layers(layers)


def _fits(twin: Twin, layer: Layer, other: Twin, counterpart: Layer) -> bool:
    """Whether a layer and its counterpart in the other model agree in the shapes of their common parameters, in
    PyTorch's layout."""
    ours, theirs = twin.shapes(layer), other.shapes(counterpart)
    return all(theirs.get(name, shape) == shape for name, shape in ours.items())


def has_unknown_settings(layer: Layer) -> bool:
    """Whether the settings of the layer are unknown because its kind is known only from `kinds=`, or from names and
    shapes."""
    return (
        # a layer that was read from an object has other settings too, such as eps or stride. The only exception is an
        # attention that was assembled from linear layers, which `differences` reports separately
        layer.settings.keys() <= {*SHAPING, *layouts.STATED_BY_BOTH}
        and layouts.ASSEMBLED not in layer.settings
    )


def without_owner(variables: Variables, layers: Iterable[Layer]) -> dict[str, Any]:
    """Returns the variables that belong to none of `layers`, by name. A variable with several names is returned under
    its first name."""
    owned = {id(variables[part.name]) for layer in layers for part in layer.parts}
    ownerless = {}
    # a tied weight is one object under several names
    for name, value in variables.items():
        if id(value) not in owned:
            owned.add(id(value))
            ownerless[name] = value
    return ownerless


def layer_of_single(name: str, value: Any) -> Layer:
    """Returns a layer of the kind "same" for a variable that is in no known layer. The shape of the layer in PyTorch's
    layout has no axes of length 1."""
    return Layer(
        with_dots(name),
        "same",
        (Part(name, ("",), layouts.squeezed_in_torch(tuple(value.shape))),),
        {},
    )


def with_dots(path: str) -> str:
    """Returns a path or name with dots in place of the slashes that Keras uses."""
    return path.replace("/", ".")


def module_of(name: str) -> str:
    """Returns the path of the module that contains the variable or module of this name; "" is the path of the model
    itself."""
    # Keras separates the names in a path with slashes, all other frameworks with dots
    return name[: max(name.rfind("."), name.rfind("/"), 0)]


def paths_in(name: str) -> Iterator[str]:
    """Yields a name, and then the paths of the modules around it, starting with the innermost."""
    while name:
        yield name
        name = module_of(name)


# the argument `kinds=`


def check_kinds(kinds: Names) -> None:
    """Raises `StateError` if `kinds` contains a kind that xdevice does not know."""
    for path, kind in kinds.items():
        if kind not in layouts.KINDS:
            raise StateError(
                f"kinds= gives {shown(path)} the kind {shown(kind)}; expected one of {', '.join(layouts.KINDS)}"
            )


def check_kinds_fit(kinds: Names, names: Names, source: Twin, target: Twin | None) -> None:
    """Raises `StateError` if a layer in `kinds` does not have its kind in the source or in the target."""
    for path, kind in kinds.items():
        # the models, each with the key of kinds= in the model's own terms, because names= gives paths that differ
        keys = [(source, path)] + ([] if target is None else [(target, names.get(path, path))])
        # the layers to which the key refers, as pairs of the backend's name and the layer's kind
        matches = [
            (twin.name, layer.kind)
            for twin, key in keys
            for layer in twin.layers
            if _matches_key(layer.path, classes_of(twin.sequence), with_dots(key))
        ]
        # it is enough if the kind fits in one of the two models, because the layer in the other model may have a known
        # class
        if any(own_kind == kind for _, own_kind in matches):
            continue
        if matches:
            actual = " and ".join(f"{own_kind} in {name}" for name, own_kind in matches)
            raise StateError(
                f"kinds= gives {shown(path)} the kind {kind}, but by its class it is {actual}; leave it out of kinds="
            )
        unread = [name for twin, _ in keys for name in twin.single_names]
        raise StateError(
            f"kinds= gives {shown(path)} the kind {kind}, but no layer of an unknown class has parameters there; "
            f"the parameters of such layers are {some_of(unread)}"
        )


def _declared(
    backend: Backend,
    variables: Variables,
    layers: list[Layer],
    sequence: list[Layer] | None,
    kinds: Names,
) -> list[Layer]:
    """Returns the layers to which `kinds=` assigns a kind. They contain only parameters that belong to none of
    `layers`. Raises `StateError` if the shapes of such a layer do not fit its kind."""
    paths = {layer.path for layer in layers}
    ownerless = without_owner(variables, layers)
    kinds = {
        path: kind
        # a pattern may also match layers that the adapter has read already
        for path, kind in expand_kinds(kinds, ownerless, sequence).items()
        if with_dots(path) not in paths
    }
    declared = [
        declared_layer(dialects_for(backend), path, kind, ownerless)
        for path, kind in kinds.items()
    ]
    return [layer for layer in declared if layer is not None]


def expand_kinds(
    kinds: Names, names: Iterable[str], sequence: Iterable[Layer] | None
) -> dict[str, str]:
    """Returns `kinds` with each pattern and class name replaced by the matching paths: paths of modules, or names of
    tensors if the kind is "same". `names` contains the names of the variables that are in no known layer. `sequence` is
    the attribute of a `Twin`, and supplies the classes."""
    kind_of: dict[str, str] = {}
    classes = classes_of(sequence)
    modules = dict.fromkeys(map(module_of, names))
    for key, kind in kinds.items():
        # the kind "same" belongs to a tensor, any other kind to a module with tensors
        paths = names if kind == "same" else modules
        matches = [
            path
            for path in paths
            if path and _matches_key(with_dots(path), classes, with_dots(key))
        ]
        # a key that matches nothing is kept, so that the error can name this key
        kind_of |= dict.fromkeys(matches or [key], kind)
    return kind_of


def classes_of(sequence: Iterable[Layer] | None) -> dict[str, object]:
    """Returns a dict from the path of each module of an unknown class to the name of the class. `sequence` is the
    attribute of a `Twin`."""
    return {
        layer.path: layer.settings["type"]
        for layer in sequence or ()
        if "type" in layer.settings
    }


def _matches_key(path: str, classes: Mapping[str, object], key: str) -> bool:
    """Whether a key of `kinds=` matches a path. The key may be the path itself, a pattern with `*`, or the class of the
    module at the path. `classes` maps paths to class names."""
    return path == key or ("*" in key and fnmatchcase(path, key)) or classes.get(path) == key


def dialects_for(backend: Backend) -> list[PartsOf]:
    """Returns the dialects (conventions for names and layouts) that a backend's parameters may follow, starting with
    the backend's own dialect. Each dialect is a function that returns the parts of a layer."""
    return [backend.parts, *(DIALECTS[name] for name in backend.dialects)]


def declared_layer(
    dialects: Iterable[PartsOf], path: str, kind: str, variables: Variables
) -> Layer | None:
    """Returns the layer of a kind at a path, read in the dialect for which `variables` contains the most parameters.
    Returns None if `variables` contains no parameter of the layer, or if `variables` lacks a weight of a recurrent or
    attention layer.

    Raises:
        StateError: if the shapes do not fit the kind.
    """
    readings = [
        layer
        for parts_of in dialects
        if (layer := layer_in_dialect(parts_of, path, kind, variables)) is not None
    ]
    if not readings:
        return None
    # several dialects use the same name for a bias, so among layers with the same number of parameters, the number of
    # weights decides
    layer = max(
        readings, key=lambda reading: (len(reading.parts), len(_weights(reading.parts)))
    )
    return with_shape_settings(layer, variables)


def layer_in_dialect(
    parts_of: PartsOf, path: str, kind: str, variables: Variables
) -> Layer | None:
    """Returns the layer of a kind at a path, in one dialect. `parts_of` returns the parts of a layer in this dialect.
    If several settings are possible, the layer gets the settings for which `variables` contains the most parameters.
    Returns None if `variables` contains no parameter of the layer, or if `variables` lacks a weight of a recurrent or
    attention layer."""
    has_several_weights = kind in layouts.RECURRENT or kind == layouts.ATTENTION
    readings = []
    # paths in Keras have slashes
    for separator in (".", "/"):
        start = path + separator if path else ""
        for settings in _possible_settings(kind, start, variables):
            expected = _as_stored(parts_of(kind, settings), start, variables)
            if kind in layouts.RECURRENT and any(part.rule.refusal for part in expected):
                continue  # the framework has no recurrent layer with these settings
            parts = _parts_at(expected, path, separator)
            present = tuple(part for part in parts if part.name in variables)
            # with several settings to choose from, all weights must be there: a bias alone does not reveal the numbers
            # of layers and directions
            if present and not (has_several_weights and _weights(present) != _weights(parts)):
                readings.append(Layer(with_dots(path), kind, present, settings))
    return max(readings, key=lambda layer: len(layer.parts), default=None)


def _as_stored(parts: Sequence[Part], start: str, variables: Variables) -> Sequence[Part]:
    """Returns the parts of a layer. The part `weight` is replaced if `variables` contains the weight in another form:
    as a weight norm, a spectral norm, or the kernel of a Keras depthwise convolution. `start` is the common prefix of
    the names of the layer's variables."""
    if start + DEPTHWISE in variables:
        rule = layouts.depthwise(int(variables[start + DEPTHWISE].shape[-1]))
        return [
            part._replace(name=DEPTHWISE, rule=rule) if part.of == ("weight",) else part
            for part in parts
        ]
    for g, v in layouts.WEIGHT_NORM_NAMES:
        if start + g in variables and start + v in variables:
            stored, axes = tuple(variables[start + g].shape), len(variables[start + v].shape)
            # axes of length 1 are appended until g has as many axes as v: a g with fewer axes does not show along which
            # axis the norm was computed, and PyTorch's default is the first axis
            shape = (*stored, *(1,) * (axes - len(stored)))
            return layouts.with_weight_norm(parts, (g, v), shape, own=stored)
    for names in layouts.SPECTRAL_NORM_NAMES:
        if all(start + name in variables for name in names):
            return layouts.with_spectral_norm(parts, names)
    return parts


def _parts_at(parts: Iterable[Part], path: str, separator: str) -> tuple[Part, ...]:
    """Returns the parts with their full names in the model: "weight" at "block.fc" becomes "block.fc.weight".
    `separator` is "." or "/". A part without a name gets the path as its name."""
    prefix = path + separator if path else ""
    return tuple(
        part._replace(name=prefix + part.name.replace(".", separator) if part.name else path)
        for part in parts
    )


def _possible_settings(kind: str, start: str, variables: Variables) -> Iterator[Settings]:
    """Yields the possible settings of a layer of this kind, but only settings that determine which parameters the layer
    has. Yields {} for a kind without such settings. The caller chooses the settings that fit `variables` best. `start`
    is the common prefix of the names of the layer's variables."""
    if kind == layouts.ATTENTION:
        yield {"packed": True}
        yield {"packed": False}
    elif kind in layouts.RECURRENT:
        # each number of levels is tried, because only the names of the parameters reveal that number
        for number in range(1, _MOST_LAYERS + 1):
            yield {"layers": number, "bidirectional": False}
            yield {"layers": number, "bidirectional": True}
    elif kind == "conv" and start + DEPTHWISE in variables:
        # the last two axes of the kernel are input channels and outputs per channel, and each input channel is a group
        yield {"groups": int(variables[start + DEPTHWISE].shape[-2])}
    else:
        yield {}


def _weights(parts: Iterable[Part]) -> list[str]:
    """Returns the names of the parts that are not biases."""
    return [part.name for part in parts if "bias" not in part.name]


def with_shape_settings(layer: Layer, variables: Variables) -> Layer:
    """Returns the layer with the settings that follow from the shapes of its variables.

    Raises:
        StateError: if the shapes do not fit the layer's kind.
    """
    check_shapes(layer, variables)
    # only attentions have a setting that follows from shapes; `layer_in_dialect` has inferred the settings of other
    # kinds from names
    if layer.kind != layouts.ATTENTION:
        return layer
    return layer._replace(
        settings={**layer.settings, "packed": layouts.is_packed(shapes_of(variables, layer))}
    )


def check_shapes(layer: Layer, variables: Variables) -> None:
    """Raises `StateError` if the shapes of a layer do not fit its kind."""
    try:
        wrong = layouts.misfit(layer.kind, shapes_of(variables, layer))
    except (
        ValueError,
        IndexError,
    ) as error:  # raised by NumPy: the shape has too few axes for the rule of the layout
        wrong = str(error)
    if wrong:
        came = ", ".join(
            f"{part.name} {tuple(variables[part.name].shape)}" for part in layer.parts
        )
        raise StateError(
            f"kinds= gives {shown(layer.path)} the kind {layer.kind}, which does not fit {came}: {wrong}"
        )


# the argument `skip=`


def check_skip(skip: Any) -> tuple[str, ...]:
    """Returns the paths in `skip=`, with dots in place of slashes. Raises `ArgumentError` if `skip` is a string, or
    contains an item that is not a string."""
    # a string is iterable too, and each of its characters would be treated as a path
    if isinstance(skip, str) or not all(isinstance(path, str) for path in skip):
        raise ArgumentError(f'skip= expects a list of paths such as ["fc"], got {shown(skip)}')
    return tuple(map(with_dots, skip))


def is_skipped(name: str, skip: Sequence[str]) -> bool:
    """Whether a name or a path is one of the paths in `skip=`, or is inside a module at one of these paths."""
    full_path = with_dots(name)
    return any(full_path == path or full_path.startswith(f"{path}.") for path in skip)


def without_skipped(twin: Twin, skip: Sequence[str]) -> Twin:
    """Returns the twin without the layers and single tensors that have a parameter at one of the paths in `skip`."""

    def kept(layers: Iterable[Layer]) -> list[Layer]:
        """Returns the layers that have no parameter at any of the paths in `skip`."""
        return [
            layer
            for layer in layers
            if not any(is_skipped(part.name, skip) for part in layer.parts)
        ]

    return twin._replace(layers=kept(twin.layers), singles=kept(twin.singles))


def require_skip_used(skip: Sequence[str], twins: Sequence[Twin]) -> None:
    """Raises `StateError` if a path in `skip=` matches no parameters in any of the models."""
    names = [name for twin in twins for name in twin.variables]
    for path in skip:
        if not any(is_skipped(name, (path,)) for name in names):
            every = dict.fromkeys(layer.path for twin in twins for layer in twin.layers)
            raise StateError(
                f"skip= names {path!r}, but neither model has parameters there; the layers are {some_of(every)}"
            )
