"""Reads a model as a `Twin`, a list of layers whose parameters are known. Applies `kinds=` to layers that no adapter
can read, and leaves out the layers in `skip=`. A dict of tensors is read in `flat_states`."""

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.twins.contract.dialects import PartsOf
    from xdevice.twins.contract.layouts import Settings

    Variables = Mapping[str, Any]
    Array = np.ndarray[Any, Any]
    Names = Mapping[str, str]
    """As in `names=`, paths of the target by paths of the source; or, as in `kinds=`, kinds of layers by path."""
    Pairs = Sequence[tuple[Layer, Layer]]
    """A layer of the source and its counterpart in the target, for each pair."""
    Shape = tuple[int, ...]
    Form = tuple[str, tuple[tuple[str, Shape], ...]]
    """The kind of a layer, and the name and shape of each of its parameters, as in PyTorch."""
    Signature = tuple[object, ...]
    """The kind of a layer and the shape of one of its parameters. Layers with different signatures are not paired."""


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
"""How many levels a recurrent layer in a dict may have."""
SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings that shape a layer's parameters: if they differ between two layers, so may the parameters."""
_TELLING: Final = (
    "running_mean", "weight", layouts.NORMED[1], layouts.SPECTRAL[0], "weight_ih_l0", "out_proj.weight", "",
)  # fmt: skip
"""The parameters, by PyTorch's names, whose shapes distinguish layers of one kind. The first of
these parameters that a layer has is used."""
# how many names a message lists
_SOME: Final = 8


class Twin(NamedTuple):
    """One of the two models of a conversion, the source or the target, as its layers and variables."""

    backend: Backend
    layers: list[Layer]
    """The layers with parameters whose kind is known."""
    variables: Mapping[str, Any]
    """All parameters and statistics, by name."""
    singles: list[Layer]
    """The variables that belong to no known layer, each once and as a layer of the kind "same"."""
    sequence: list[Layer] | None = None
    """All layers of a model, including those without parameters, in the order in which the model defines them. None
    for a dict, or if the backend cannot list them."""
    model: Any = None
    """The framework's own model; None for a dict."""

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
        """The shapes of a layer's parameters in PyTorch's layout, by PyTorch's names."""
        return shapes_of(self.variables, layer)

    def forms(self, layers: Iterable[Layer]) -> list[Form]:
        """The kind of each layer and the shapes of all its parameters except counters, in PyTorch's layout."""
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
        """A layer's kind, and the shape, in PyTorch's layout, of the first parameter in `_TELLING` that the layer has;
        only the kind if it has none of them. The inputs of a convolution's weight are those of all its groups."""
        shapes = self.shapes(layer)
        name = next((name for name in _TELLING if name in shapes), None)
        if name is None:
            return (layer.kind,)
        shape = shapes[name]
        groups = layer.settings.get("groups", 1)
        if isinstance(groups, int) and layer.kind.startswith("conv"):
            # a weight has the inputs of one group only; a different number of groups is found with the settings
            shape = (shape[0], shape[1] * groups, *shape[2:])
        return layer.kind, shape

    def signatures(self, layers: Iterable[Layer] | None = None) -> list[Signature]:
        """The signatures of `layers`, by default of all layers of the twin."""
        return [self.signature(layer) for layer in (self.layers if layers is None else layers)]

    def with_layers(self, layers: Iterable[Layer]) -> Twin:
        """Returns the twin with these layers in place of its own. In its `sequence` they replace the layers that have
        the same variables."""
        every = list(layers)
        sequence = self.sequence and list(_replaced_in(self.sequence, every))
        return self._replace(layers=every, sequence=sequence)

    def joined(self, joins: Iterable[tuple[Sequence[Layer], Layer]]) -> Twin:
        """Returns the twin with one layer in place of each group of its layers, where the group's first layer was.
        `joins` has the groups, each with the layer that replaces it."""
        joint_of = {id(layer): joint for group, joint in joins for layer in group}
        if not joint_of:
            return self
        layers = [joint_of.get(id(layer), layer) for layer in self.layers]
        # `layers` has a joined layer once for each layer of its group. By id, because a Layer has a dict and no hash
        return self.with_layers({id(layer): layer for layer in layers}.values())


def _replaced_in(sequence: Iterable[Layer], layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yields the layers of `sequence`, with `layers` in place of those that have the same parameters. A layer that
    replaces several comes where the first of them was. Layers without parameters stay; layers whose parameters are in
    none of `layers` are left out."""
    owner_of = {part.name: layer for layer in layers for part in layer.parts}
    done: set[int] = set()
    for layer in sequence:
        owner = owner_of.get(layer.parts[0].name) if layer.parts else layer
        # one layer may replace several of the sequence, and comes where the first of them was
        if owner is not None and id(owner) not in done:
            done.add(id(owner))
            yield owner._replace(line=layer.line)


def shapes_of(variables: Mapping[str, Any], layer: Layer) -> dict[str, Shape]:
    """The shapes that a layer's parameters have in PyTorch's layout, by PyTorch's names."""
    shapes = {}
    for part in layer.parts:
        shape = tuple(variables[part.name].shape)
        # a shortcut for most parts, because NumPy takes 10 us for a stand-in
        if part.rule is layouts.SAME:
            shapes[part.of[0]] = shape
            continue
        # the rule is tried on an array of this shape that takes one byte of memory
        stand_in = np.broadcast_to(np.zeros((), "bool"), shape)
        for name, array in zip(part.of, part.rule.canonical(stand_in), strict=True):
            shapes[name] = array.shape
    return shapes


def parent_of(path: str) -> str:
    """The path of the module around the one at `path`; "" for the model itself."""
    return path.rpartition(".")[0]


def last_name(path: str) -> str:
    """The last name in a path."""
    return path.rpartition(".")[2]


def some_of(names: Iterable[str]) -> str:
    """Returns a text with the first eight of the names: "a, b, ... (20 in all)"; "none" for no names."""
    every = list(names)
    more = f", ... ({len(every)} in all)" if len(every) > _SOME else ""
    return ", ".join(every[:_SOME]) + more or "none"


# models


def read_model(backend: Backend, model: Any, kinds: Names | None = None) -> Twin:
    """Returns a model of this backend as a `Twin`. `kinds` gives kinds of layers by path, pattern or class, and
    decides about layers of which only names and shapes are known. Raises `StateError` if a kind does not fit the
    shapes of a layer, and `AbsentNameError` if this release of the framework lacks a private name that the backend
    needs."""
    variables = dict(backend.variables(model))
    layers = list(backend.layers(model))
    try:
        sequence = list(backend.operations(model, layers))
    # this is an `UnsupportedError` too, but says that this release of the framework lacks a private name that the
    # adapter needs: it must not pass for a backend that lists no operations
    except AbsentNameError:
        raise
    except UnsupportedError:
        # layers with parameters can be paired all the same; `differences` reports that the others were not compared
        sequence = None
    if kinds:
        paths = spelled_out(kinds, variables, sequence)
        # a kind that the user gives outranks one that was guessed from names and shapes
        layers = [
            one
            for one in layers
            if not (is_unread(one) and paths.get(one.path, one.kind) != one.kind)
        ]
        layers += _declared(backend, variables, layers, sequence, kinds)
    singles = [
        layer_of_single(name, value) for name, value in without_owner(variables, layers).items()
    ]
    return Twin(backend, layers, variables, singles, sequence, model)


def read_like(like: Any, target: Backend, kinds: Names) -> Twin:
    """Returns the argument `like=` as a `Twin`. `kinds` gives the kinds of layers by their paths in `like`. Raises
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
    """Returns the twin with some layers read as another kind: the kind that the other model has at the same path.
    Only layers whose kind was guessed from names and shapes are changed, and only if their parameters fit that kind
    too. `names` gives paths of the other model by paths of the twin, where they differ."""
    other_layers = other.by_path
    dialects = dialects_for(twin.backend)
    layers = []
    for layer in twin.layers:
        counterpart = other_layers.get(names.get(layer.path, layer.path))
        if counterpart is None or counterpart.kind == layer.kind or not is_unread(layer):
            layers.append(layer)
            continue
        own = {part.name: twin.variables[part.name] for part in layer.parts}
        try:
            new = declared_layer(dialects, layer.path, counterpart.kind, own)
        except StateError:
            new = None
        # otherwise a parameter that the new kind does not have would be lost
        is_whole = new is not None and {part.name for part in new.parts} == own.keys()
        layers.append(
            new
            if new is not None and is_whole and _fits(twin, new, other, counterpart)
            else layer
        )
    return twin.with_layers(layers)


def _fits(twin: Twin, layer: Layer, other: Twin, counterpart: Layer) -> bool:
    """Whether a layer has the shapes of its counterpart in the other model, in PyTorch's layout, for the parameters
    that both have."""
    ours, theirs = twin.shapes(layer), other.shapes(counterpart)
    return all(theirs.get(name, shape) == shape for name, shape in ours.items())


def is_unread(layer: Layer) -> bool:
    """Whether the settings of the layer are unknown, because its kind is known only from `kinds=`, or from names and
    shapes."""
    return (
        # a layer that was read from an object has further settings, such as eps or stride. Only an attention that was
        # put together from linear layers has none: `differences` reports it by itself
        layer.settings.keys() <= {*SHAPING, *layouts.STATED_BY_BOTH}
        and layouts.ASSEMBLED not in layer.settings
    )


def without_owner(variables: Variables, layers: Iterable[Layer]) -> dict[str, Any]:
    """Returns the variables that belong to none of `layers`, by name. A variable that has several names is listed under
    its first name."""
    owned = {id(variables[part.name]) for layer in layers for part in layer.parts}
    rest = {}
    # a tied weight is one object under several names
    for name, value in variables.items():
        if id(value) not in owned:
            owned.add(id(value))
            rest[name] = value
    return rest


def layer_of_single(name: str, value: Any) -> Layer:
    """Returns a variable that is in no known layer as a layer of the kind "same", whose shape in PyTorch's layout has
    no axes of length 1."""
    return Layer(
        with_dots(name), "same", (Part(name, ("",), layouts.squeezed(tuple(value.shape))),), {}
    )


def with_dots(path: str) -> str:
    """Returns a path or name with dots in place of slashes, which Keras uses."""
    return path.replace("/", ".")


def module_of(name: str) -> str:
    """The path of the module that contains the variable or module of this name; "" for the model itself."""
    # Keras separates the names in a path with slashes, all other frameworks with dots
    return name[: max(name.rfind("."), name.rfind("/"), 0)]


def paths_in(name: str) -> Iterator[str]:
    """Yields a name, and the paths of the modules around it, the innermost first."""
    while name:
        yield name
        name = module_of(name)


# what `kinds=` says


def check_kinds(kinds: Names) -> None:
    """Raises `StateError` if `kinds` has a kind that xdevice does not know."""
    for path, kind in kinds.items():
        if kind not in layouts.KINDS:
            raise StateError(
                f"kinds= gives {shown(path)} the kind {shown(kind)}; expected one of {', '.join(layouts.KINDS)}"
            )


def check_kinds_fit(kinds: Names, names: Names, source: Twin, target: Twin | None) -> None:
    """Raises `StateError` if `kinds` gives a layer a kind that the layer has neither in the source nor in the
    target."""
    for path, kind in kinds.items():
        paths = [(source, path)] + ([] if target is None else [(target, names.get(path, path))])
        # the layers that the key means, as pairs of the backend's name and the layer's kind
        of_classes = [
            (twin.name, layer.kind)
            for twin, key in paths
            for layer in twin.layers
            if _matches_key(layer.path, classes_of(twin.sequence), with_dots(key))
        ]
        # it is enough if the kind fits one of the two models: the layer of the other may have a
        # known class
        if any(own == kind for _, own in of_classes):
            continue
        if of_classes:
            by_class = " and ".join(f"{own} in {name}" for name, own in of_classes)
            raise StateError(
                f"kinds= gives {shown(path)} the kind {kind}, but by its class it is {by_class}; leave it out of kinds="
            )
        left = [name for twin, _ in paths for name in twin.single_names]
        raise StateError(
            f"kinds= gives {shown(path)} the kind {kind}, but no layer of an unknown class has parameters there; "
            f"the parameters of such layers are {some_of(left)}"
        )


def _declared(
    backend: Backend,
    variables: Variables,
    layers: list[Layer],
    sequence: list[Layer] | None,
    kinds: Names,
) -> list[Layer]:
    """Returns the layers that `kinds=` describes and that consist of parameters in none of
    `layers`. Raises `StateError` if the shapes of such a layer do not fit its kind."""
    paths = {layer.path for layer in layers}
    rest = without_owner(variables, layers)
    kinds = {
        path: kind
        # a pattern may also match layers that the adapter has read
        for path, kind in spelled_out(kinds, rest, sequence).items()
        if with_dots(path) not in paths
    }
    declared = [
        declared_layer(dialects_for(backend), path, kind, rest) for path, kind in kinds.items()
    ]
    return [layer for layer in declared if layer is not None]


def spelled_out(
    kinds: Names, names: Iterable[str], sequence: Iterable[Layer] | None
) -> dict[str, str]:
    """Returns `kinds` with each pattern and each name of a class replaced by the paths that it matches: paths of
    modules, or names of tensors if the kind is "same". `names` are the names of the variables that are in no known
    layer, and `sequence` is that of a `Twin`, which has the classes."""
    kind_of: dict[str, str] = {}
    classes = classes_of(sequence)
    owners = dict.fromkeys(map(module_of, names))
    for key, kind in kinds.items():
        # the kind "same" is that of a tensor, any other kind that of a module with tensors
        paths = names if kind == "same" else owners
        matches = [
            path
            for path in paths
            if path and _matches_key(with_dots(path), classes, with_dots(key))
        ]
        # a key that matches nothing stays, so that the error about it can name it
        kind_of |= dict.fromkeys(matches or [key], kind)
    return kind_of


def classes_of(sequence: Iterable[Layer] | None) -> dict[str, object]:
    """Returns the class names of the modules whose code is not read, by path. `sequence` is
    that of a `Twin`."""
    return {
        layer.path: layer.settings["type"]
        for layer in sequence or ()
        if "type" in layer.settings
    }


def _matches_key(path: str, classes: Mapping[str, object], key: str) -> bool:
    """Whether a key of `kinds=` matches a path: whether the key is that path, a pattern with `*` that fits it, or the
    class of the module there. `classes` gives the class names by path."""
    return path == key or ("*" in key and fnmatchcase(path, key)) or classes.get(path) == key


def dialects_for(backend: Backend) -> list[PartsOf]:
    """The dialects in which parameters of a backend may be named and laid out, its own first. Each is a function that
    returns the parts of a layer."""
    return [backend.parts, *(DIALECTS[name] for name in backend.dialects)]


def declared_layer(
    dialects: Iterable[PartsOf], path: str, kind: str, variables: Variables
) -> Layer | None:
    """Returns the layer of a kind at a path, laid out in the one of `dialects` for which
    `variables` has the most parameters. None if `variables` has none of the layer's parameters,
    or lacks a weight of a recurrent or attention layer.

    Raises:
        StateError: if the shapes do not fit the kind.
    """
    every = [
        layer
        for parts_of in dialects
        if (layer := laid_out(parts_of, path, kind, variables)) is not None
    ]
    if not every:
        return None
    # several dialects have the same name for a bias, so the weights decide among layers with
    # the same number of parameters
    layer = max(every, key=lambda one: (len(one.parts), len(_weights(one.parts))))
    return with_shape_settings(layer, variables)


def laid_out(parts_of: PartsOf, path: str, kind: str, variables: Variables) -> Layer | None:
    """Returns the layer of a kind at a path, with the parts that `parts_of` returns for one dialect, and with the
    settings for which `variables` has the most parameters. None if `variables` has none of the layer's parameters,
    or lacks a weight of a recurrent or attention layer."""
    has_several = kind in layouts.RECURRENT or kind == layouts.ATTENTION
    every = []
    # Keras writes paths with slashes
    for separator in (".", "/"):
        start = path + separator if path else ""
        for settings in _possible_settings(kind, start, variables):
            own = _with_norm(parts_of(kind, settings), start, variables)
            if kind in layouts.RECURRENT and any(part.rule.refusal for part in own):
                continue  # the framework has no recurrent layer with these settings
            parts = _parts_at(own, path, separator)
            present = tuple(part for part in parts if part.name in variables)
            # a bias alone does not show how many layers and directions there are
            if present and not (has_several and _weights(present) != _weights(parts)):
                every.append(Layer(with_dots(path), kind, present, settings))
    return max(every, key=lambda layer: len(layer.parts), default=None)


def _with_norm(parts: Sequence[Part], start: str, variables: Variables) -> Sequence[Part]:
    """Returns the parts of a layer, with the part `weight` replaced if `variables` has it in another form: as a weight
    norm, as a spectral norm, or as the kernel of a depthwise convolution of Keras. The names of the layer's variables
    begin with `start`."""
    if start + DEPTHWISE in variables:
        rule = layouts.depthwise(int(variables[start + DEPTHWISE].shape[-1]))
        return [
            part._replace(name=DEPTHWISE, rule=rule) if part.of == ("weight",) else part
            for part in parts
        ]
    for g, v in layouts.NORM_NAMES:
        if start + g in variables and start + v in variables:
            stored, axes = tuple(variables[start + g].shape), len(variables[start + v].shape)
            # a g with fewer axes does not show along which axis the norm was taken; PyTorch's
            # default is the first
            shape = (*stored, *(1,) * (axes - len(stored)))
            return layouts.normed(parts, (g, v), shape, stored)
    for names in layouts.SPECTRAL_NAMES:
        if all(start + name in variables for name in names):
            return layouts.spectral(parts, names)
    return parts


def _parts_at(parts: Iterable[Part], path: str, separator: str) -> tuple[Part, ...]:
    """Returns the parts with their names in the whole model: "weight" at "block.fc" becomes "block.fc.weight".
    `separator` is "." or "/"; a part without a name gets the path itself."""
    prefix = path + separator if path else ""
    return tuple(
        part._replace(name=prefix + part.name.replace(".", separator) if part.name else path)
        for part in parts
    )


def _possible_settings(kind: str, start: str, variables: Variables) -> Iterator[Settings]:
    """Yields the settings that a layer of the kind may have been made with, as far as they decide which parameters it
    has; {} for a kind without such settings. The caller uses those that fit `variables` best. The names of the layer's
    variables begin with `start`."""
    if kind == layouts.ATTENTION:
        yield {"packed": True}
        yield {"packed": False}
    elif kind in layouts.RECURRENT:
        # each number of levels is tried, because only the numbers in the names of the
        # parameters show it
        for number in range(1, _MOST_LAYERS + 1):
            yield {"layers": number, "bidirectional": False}
            yield {"layers": number, "bidirectional": True}
    elif kind == "conv" and start + DEPTHWISE in variables:
        # the kernel's last two axes are input channels and outputs per channel, and each input channel is a group
        yield {"groups": int(variables[start + DEPTHWISE].shape[-2])}
    else:
        yield {}


def _weights(parts: Iterable[Part]) -> list[str]:
    """The names of the parts that are not biases."""
    return [part.name for part in parts if "bias" not in part.name]


def with_shape_settings(layer: Layer, variables: Variables) -> Layer:
    """Returns the layer with the settings that follow from the shapes of its variables.

    Raises:
        StateError: if the shapes do not fit the layer's kind.
    """
    check_shapes(layer, variables)
    # only an attention has a setting that shapes decide; `laid_out` has found the settings of other kinds by names
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
    ) as error:  # NumPy's: the shape has too few axes for the rule of the layout
        wrong = str(error)
    if wrong:
        came = ", ".join(
            f"{part.name} {tuple(variables[part.name].shape)}" for part in layer.parts
        )
        raise StateError(
            f"kinds= gives {shown(layer.path)} the kind {layer.kind}, which does not fit {came}: {wrong}"
        )


# what `skip=` says


def check_skip(skip: Any) -> tuple[str, ...]:
    """Returns the paths that `skip=` gives, with dots in place of slashes. Raises `ArgumentError` if `skip` is a text,
    or has an item that is not a text."""
    # a text is iterable too, and each of its characters would be taken for a path
    if isinstance(skip, str) or not all(isinstance(path, str) for path in skip):
        raise ArgumentError(f'skip= expects a list of paths such as ["fc"], got {shown(skip)}')
    return tuple(map(with_dots, skip))


def is_skipped(name: str, skip: Sequence[str]) -> bool:
    """Whether a name or a path is one of the paths of `skip=`, or is inside a module at one of them."""
    full_path = with_dots(name)
    return any(full_path == path or full_path.startswith(f"{path}.") for path in skip)


def without(twin: Twin, skip: Sequence[str]) -> Twin:
    """Returns the twin without the layers and single tensors that have a parameter at one of the paths of `skip`."""

    def kept(layers: Iterable[Layer]) -> list[Layer]:
        """Returns the layers without a parameter at one of the paths."""
        return [
            layer
            for layer in layers
            if not any(is_skipped(part.name, skip) for part in layer.parts)
        ]

    return twin._replace(layers=kept(twin.layers), singles=kept(twin.singles))


def require_used(skip: Sequence[str], twins: Sequence[Twin]) -> None:
    """Raises `StateError` if none of the models has parameters at one of the paths of
    `skip=`."""
    names = [name for twin in twins for name in twin.variables]
    for path in skip:
        if not any(is_skipped(name, (path,)) for name in names):
            every = dict.fromkeys(layer.path for twin in twins for layer in twin.layers)
            raise StateError(
                f"skip= names {path!r}, but neither model has parameters there; the layers are {some_of(every)}"
            )
