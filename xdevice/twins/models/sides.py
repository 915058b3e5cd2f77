"""Reads what `convert_state` is given, a model or a flat dict of tensors, as layers whose parameters are known."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import Backend, layouts
from xdevice.contract.layouts import Layer, Part
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, UnsupportedError, shown
from xdevice.twins.weights.adapted import advice
from xdevice.twins.weights.format import Entry, Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device

_MOST_LAYERS: Final = 32


class Side(NamedTuple):
    """One side of a conversion, the source or the target: a model or a flat dict of tensors, read as a list of
    layers."""

    backend: Backend
    layers: list[Layer]
    variables: dict[str, Any]
    unknown: list[str]
    """The variables that belong to no known layer, each by one of its names."""
    sequence: list[Layer] | None = None
    """All layers of a model, also those without parameters, in the order in which the model defines them. None for a
    dict, or if the backend cannot list them."""
    model: Any = None
    bare: tuple[Layer, ...] = ()
    """Those of `unknown` that `views` has listed as layers of the kind "same"."""

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """A variable's values. One on meta has none: then an array of its shape that takes no memory."""
        value = self.variables[name]
        if isinstance(value, Entry | Held):
            return value.read()
        if self.place_of(name).kind == "meta":
            return np.broadcast_to(np.zeros((), host_dtype(dtype_name(value.dtype))), tuple(value.shape))
        return self.backend.peek(value)

    def place_of(self, name: str) -> Device:
        value = self.variables[name]
        return devices.CPU if isinstance(value, Entry | Held) else self.backend.device_of(value)


def check_kinds(kinds: Mapping[str, str]) -> None:
    for path, kind in kinds.items():
        if kind not in layouts.KINDS:
            raise StateError(
                f"kinds says that {shown(path)} is a {shown(kind)}; expected one of {', '.join(layouts.KINDS)}"
            )


def model_of(like: Any, target: Backend) -> tuple[Backend, Any]:
    found = registry.backend_of_model(like)
    if found is not target:
        kind = type(like).__qualname__
        came = f"this {kind} is one of {found.name}" if found else f"got {shown(like, 60)} of type {kind}"
        raise NotATensorError(f"like= must be a built model of {target.name}; {came}")
    return target, like


def model_side(of: tuple[Backend, Any], kinds: Mapping[str, str]) -> Side:
    backend, model = of
    variables = dict(backend.variables(model))
    known = list(backend.layers(model))
    paths = {layer.path for layer in known}
    rest = _rest(variables, known)
    sequence = _sequence(backend, model)
    told = [
        layer
        for path, kind in _spelled_out(kinds, rest, sequence).items()
        if _with_dots(path) not in paths and (layer := declared_layer(backend, path, kind, rest))
    ]
    return Side(backend, known + told, variables, list(_rest(variables, known + told)), sequence, model)


def check_told(kinds: Mapping[str, str], renamed: Mapping[str, str], source: Side, target: Side | None) -> None:
    """Raises `StateError` if the user's `kinds` gives a layer a kind that the layer has neither in the source nor in
    the target."""
    for path, kind in kinds.items():
        ways = ((source, path),) if target is None else ((source, path), (target, renamed.get(path, path)))
        found = [
            (side.backend.name, layer.kind)
            for side, way in ways
            for layer in side.layers
            if _is_meant(layer.path, _classes(side.sequence), _with_dots(way))
        ]
        if any(known == kind for _, known in found):
            continue
        if found:
            by_class = " and ".join(f"{known} in {name}" for name, known in found)
            raise StateError(f"kinds says that {shown(path)} is a {kind}, but its class says {by_class}: leave it out")
        left = [name for side, _ in ways for name in side.unknown]
        raise StateError(
            f"kinds says {kind} of {shown(path)}, where there are no parameters of a layer that is not known by its "
            f"class; it can be said of {some_of(left)}"
        )


def _spelled_out(kinds: Mapping[str, str], names: Iterable[str], sequence: Iterable[Layer] | None) -> dict[str, str]:
    """`kinds` with the path of each module, or of each tensor if the kind is "same", that a pattern or the name of a
    class stands for. `names` are those of the variables that no known layer has."""
    found: dict[str, str] = {}
    classes = _classes(sequence)
    owners = dict.fromkeys(name[: max(name.rfind("."), name.rfind("/"), 0)] for name in names)
    for path, kind in kinds.items():
        paths = names if kind == "same" else owners
        meant = [one for one in paths if one and _is_meant(_with_dots(one), classes, _with_dots(path))]
        found |= dict.fromkeys(meant or [path], kind)
    return found


def _classes(sequence: Iterable[Layer] | None) -> dict[str, object]:
    """The classes of the modules whose code is not read, by their paths."""
    return {layer.path: layer.settings["type"] for layer in sequence or () if "type" in layer.settings}


def _is_meant(path: str, classes: Mapping[str, object], key: str) -> bool:
    return path == key or ("*" in key and fnmatchcase(path, key)) or classes.get(path) == key


def _with_dots(path: str) -> str:
    return path.replace("/", ".")


def _sequence(backend: Backend, model: Any) -> list[Layer] | None:
    try:
        return list(backend.operations(model))
    except UnsupportedError:
        return None


def flat_side(source: Any, kinds: Mapping[str, str], skip: Sequence[str] = ()) -> Side:
    if not isinstance(source, dict):
        raise NotATensorError(
            f"expected a model, or a flat dict of named tensors, not {shown(source, 60)} of type "
            f"{type(source).__qualname__}"
        )
    owners = {
        name: registry.kind_of(type(value)) for name, value in source.items() if not isinstance(value, Entry | Held)
    }
    for name, owner in owners.items():
        if owner is None or owner.kind == "symbol" or not isinstance(name, str):
            raise NotATensorError(
                f"{shown(name)} is a {type(source[name]).__qualname__}, not a named tensor: expected a flat dict"
            )
    backends = {owner.backend.name: owner.backend for owner in owners.values() if owner is not None}
    if len(backends) > 1:
        raise NotATensorError(f"the tensors of one state are of one framework, not of {', '.join(backends)}")
    backend = next(iter(backends.values()), None) or registry.load("numpy")
    variables = {name: _tensor(backend, value) for name, value in source.items()}
    layers = []
    for path, kind in _spelled_out(kinds, variables, None).items():
        if is_skipped(path, skip):
            continue
        layer = declared_layer(backend, path, kind, variables)
        if layer is None:
            raise StateError(
                f"kinds says that {shown(path)} is a {kind}, and the state has no {_names_of(backend, path, kind)}; "
                f"it has {some_of(variables)}"
            )
        layers.append(layer)
    unknown = [name for name in _rest(variables, layers) if not is_skipped(name, skip)]
    if unknown:
        instead = advice(unknown) or (
            "give the model instead of its state, a model of the target as like=, or "
            "kinds={'path.to.layer': 'linear'}, 'same' for a single tensor; skip= leaves them out"
        )
        raise StateError(f"nothing says what these parameters are: {some_of(unknown)}; {instead}")
    return Side(backend, layers, variables, [], None)


def _tensor(backend: Backend, value: Any) -> Any:
    """The tensor in `value`, which is a tensor or a single variable. A variable counts as a model, and its tensor has
    the name "" there."""
    found = registry.kind_of(type(value))
    return dict(backend.variables(value))[""] if found is not None and found.kind == "model" else value


def _names_of(backend: Backend, path: str, kind: str) -> str:
    return " or ".join(layouts.join(path, part.name) for part in backend.parts(kind, {}))


def kinds_with(kinds: dict[str, str], wanted: Side | None, renamed: Mapping[str, str]) -> dict[str, str]:
    """The kind of each layer by its path in the source: from the user's `kinds`, or else from the target's layer at the
    same path."""
    if wanted is None:
        return kinds
    back = {there: here for here, there in renamed.items()}
    return {back.get(layer.path, layer.path): layer.kind for layer in wanted.layers} | kinds


def declared_layer(backend: Backend, path: str, kind: str, variables: Mapping[str, Any]) -> Layer | None:
    """The layer that the user's `kinds` says is at `path`; None if `variables` has none of its parameters."""
    for settings in _possible(kind):
        for separator in (".", "/"):
            prefix = path + separator if path else ""
            named = (
                part._replace(name=prefix + part.name.replace(".", separator) if part.name else path)
                for part in backend.parts(kind, settings)
            )
            parts = tuple(named)
            there = tuple(part for part in parts if part.name in variables)
            if there and (kind not in (*layouts.RECURRENT, layouts.ATTENTION) or _weights(there) == _weights(parts)):
                layer = Layer(_with_dots(path), kind, there, settings)
                _check_shapes(layer, variables)
                return _measure(layer, variables)
    return None


def _measure(layer: Layer, variables: Mapping[str, Any]) -> Layer:
    """The layer, with the settings that the shapes of its parameters tell. Only an attention has such a setting."""
    if layer.kind != layouts.ATTENTION:
        return layer
    return layer._replace(settings={"packed": layouts.is_packed(shapes_of(variables, layer))})


def _check_shapes(layer: Layer, variables: Mapping[str, Any]) -> None:
    """Raises `StateError` if the shapes of the layer's parameters do not fit the kind that the user's `kinds` gives
    it."""
    try:
        wrong = layouts.misfit(layer.kind, shapes_of(variables, layer))
    except (ValueError, IndexError) as error:  # NumPy's: the shape has too few axes for the rule of the layout
        wrong = str(error)
    if wrong:
        came = ", ".join(f"{part.name} {tuple(variables[part.name].shape)}" for part in layer.parts)
        raise StateError(f"{shown(layer.path)} is said to be a {layer.kind}, but cannot be one with {came}: {wrong}")


def _possible(kind: str) -> Iterator[Mapping[str, object]]:
    """The settings that a layer of the kind may have been made with, those with the most parameters first."""
    if kind == layouts.ATTENTION:
        yield from ({"packed": True}, {"packed": False})
    elif kind not in layouts.RECURRENT:
        yield {}
    for number in range(_MOST_LAYERS if kind in layouts.RECURRENT else 0, 0, -1):
        yield {"layers": number, "bidirectional": True}
        yield {"layers": number, "bidirectional": False}


def _weights(parts: tuple[Part, ...]) -> list[str]:
    return [part.name for part in parts if "bias" not in part.name]


def _rest(variables: Mapping[str, Any], layers: Iterable[Layer]) -> dict[str, Any]:
    """The variables that belong to none of `layers`. A variable that has several names is listed under its first
    name."""
    seen = {id(variables[part.name]) for layer in layers for part in layer.parts}
    rest = {}
    for name, value in variables.items():
        if id(value) not in seen:
            seen.add(id(value))
            rest[name] = value
    return rest


def shapes_of(variables: Mapping[str, Any], layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes that a layer's parameters have in PyTorch's layout, by PyTorch's names."""
    found = {}
    for part in layer.parts:
        if part.rule is layouts.SAME:  # most are, and NumPy takes 10 us for a stand-in
            found[part.of[0]] = tuple(variables[part.name].shape)
            continue
        stand_in = np.broadcast_to(np.zeros((), "bool"), tuple(variables[part.name].shape))
        for name, array in zip(part.of, part.rule.canonical(stand_in), strict=True):
            found[name] = array.shape
    return found


def with_layers(side: Side, layers: Iterable[Layer]) -> Side:
    """`side` with these layers in place of its own, also in its sequence, where they hold the same variables."""
    every = list(layers)
    sequence = side.sequence and list(_in_step(side.sequence, every))
    return side._replace(layers=every, sequence=sequence)


def _in_step(sequence: Iterable[Layer], layers: Iterable[Layer]) -> Iterator[Layer]:
    """The sequence with `layers` in place of the layers that they were made of, each where its first parameter comes.
    Layers without parameters stay."""
    owners = {part.name: layer for layer in layers for part in layer.parts}
    done: set[int] = set()
    for layer in sequence:
        owner = owners.get(layer.parts[0].name) if layer.parts else layer
        if owner is not None and id(owner) not in done:
            done.add(id(owner))
            yield owner._replace(line=layer.line)


def with_groups(side: Side, groups: Mapping[int, list[Layer]], way: Callable[[Side, Sequence[Layer]], Layer]) -> Side:
    """`side` with each group of its layers replaced by the one layer that `way` makes of the group, at the place of the
    group's first layer."""
    if not groups:
        return side
    done: set[int] = set()
    layers: list[Any] = []
    for layer in side.layers:
        group = groups.get(id(layer))
        if group is None:
            layers.append(layer)
        elif id(group) not in done:
            done.add(id(group))
            layers.append(way(side, group))
    return with_layers(side, layers)


def is_skipped(name: str, skip: Sequence[str]) -> bool:
    """Whether a name or a path is one of the paths of `skip=`, or below it."""
    whole = _with_dots(name)
    return any(whole == path or whole.startswith(f"{path}.") for path in skip)


def write_variables(backend: Backend, model: Any, variables: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Writes values into `variables` of a model, which `values` names. Each has the dtype and the shape of its
    variable."""

    def there(name: str, value: Any) -> Any:
        place = backend.device_of(variables[name])
        return value if backend.device_of(value) is place else backend.move(value, place)

    if backend.has_layers(model):
        backend.write_layers(model, {name: there(name, value) for name, value in values.items()})
        return
    for name, value in values.items():  # one at a time, so that no second copy of a model is on its device
        backend.write(variables[name], there(name, value))


def some_of(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:8]) + (f", ... ({len(every)} in all)" if len(every) > 8 else "") or "none"
