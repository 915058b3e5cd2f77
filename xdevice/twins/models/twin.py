"""`Twin`: one of two models, or a dict of tensors, as a list of layers whose parameters are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.twins.contract import layouts
from xdevice.twins.weights.format import FileTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer

    Array = np.ndarray[Any, Any]
    Names = Mapping[str, str]
    Pairs = Sequence[tuple[Layer, Layer]]
    """A layer of the source and its counterpart in the target, for each pair."""
    Shape = tuple[int, ...]
    Form = tuple[str, tuple[tuple[str, Shape], ...]]
    Signature = tuple[object, ...]
    """The kind of a layer and the shape of one of its parameters, both the same for its counterpart."""

SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings that shape a layer's parameters: if they differ between two layers, so may the parameters."""
_TELLING: Final = ("running_mean", "weight", layouts.NORMED[1], "weight_ih_l0", "out_proj.weight", "")
"""The parameters, by PyTorch's names, whose shapes tell layers of one kind apart. Of each layer, the first of these
that it has is used."""
_SOME: Final = 8


class Twin(NamedTuple):
    """One of the two: the source or the target of a conversion."""

    backend: Backend
    layers: list[Layer]
    variables: Mapping[str, Any]
    singles: list[Layer]
    """The variables that belong to no known layer, each once and as a layer of the kind "same"."""
    sequence: list[Layer] | None = None
    """All layers of a model, also those without parameters, in the order in which the model defines them. None for a
    dict, or if the backend cannot list them."""
    model: Any = None

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def by_path(self) -> dict[str, Layer]:
        return {layer.path: layer for layer in self.layers}

    @property
    def single_names(self) -> list[str]:
        return [layer.parts[0].name for layer in self.singles]

    def shapes(self, layer: Layer) -> dict[str, Shape]:
        return shapes_of(self.variables, layer)

    def forms(self, layers: Iterable[Layer]) -> list[Form]:
        """The kind of each layer and the shapes of all its parameters but counters."""
        forms = []
        for layer in layers:
            shapes = shapes_of(self.variables, layer)
            shapes.pop(layouts.COUNTER, None)
            forms.append((layer.kind, tuple(shapes.items())))
        return forms

    def signature(self, layer: Layer) -> Signature:
        """A layer's kind, and the shape in PyTorch's layout of a parameter that every layer of the kind has."""
        shapes = self.shapes(layer)
        name = next((name for name in _TELLING if name in shapes), None)
        if name is None:
            return (layer.kind,)
        shape = shapes[name]
        groups = layer.settings.get("groups", 1)
        if isinstance(groups, int) and layer.kind.startswith("conv"):
            shape = (shape[0], shape[1] * groups, *shape[2:])
        return layer.kind, shape

    def signatures(self, layers: Iterable[Layer] | None = None) -> list[Signature]:
        return [self.signature(layer) for layer in (self.layers if layers is None else layers)]

    def read(self, name: str) -> tuple[Array, Device]:
        """The values of a variable, and where it is. On meta it has none: then an array of its shape that takes no
        memory."""
        value = self.variables[name]
        if isinstance(value, FileTensor):
            return value.read(), devices.CPU
        place = self.backend.device_of(value)
        if place.kind == "meta":
            return np.broadcast_to(np.zeros((), host_dtype(dtype_name(value.dtype))), tuple(value.shape)), place
        return self.backend.peek(value), place


def shapes_of(variables: Mapping[str, Any], layer: Layer) -> dict[str, Shape]:
    """The shapes that a layer's parameters have in PyTorch's layout, by PyTorch's names."""
    shapes = {}
    for part in layer.parts:
        shape = tuple(variables[part.name].shape)
        if part.rule is layouts.SAME:  # most are, and NumPy takes 10 us for a stand-in
            shapes[part.of[0]] = shape
            continue
        stand_in = np.broadcast_to(np.zeros((), "bool"), shape)
        for name, array in zip(part.of, part.rule.canonical(stand_in), strict=True):
            shapes[name] = array.shape
    return shapes


def parent_of(path: str) -> str:
    return path.rpartition(".")[0]


def name_in(path: str) -> str:
    """The last name in a path."""
    return path.rpartition(".")[2]


def some_of(names: Iterable[str]) -> str:
    every = list(names)
    more = f", ... ({len(every)} in all)" if len(every) > _SOME else ""
    return ", ".join(every[:_SOME]) + more or "none"
