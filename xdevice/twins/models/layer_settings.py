"""Finds the settings in which the layers of two models differ. Layers without parameters are in `plain_layers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.contract.private import AbsentNameError
from xdevice.errors import UnsupportedError
from xdevice.twins.contract import layouts

from .twin import SHAPING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer


class SettingDifference(NamedTuple):
    """One setting in which two paired layers differ."""

    where: str
    """The layer that has the setting, by its path, or by its kind if the path is empty."""
    name: str
    ours: object
    theirs: object

    @property
    def is_on_one_side(self) -> bool:
        return None in (self.ours, self.theirs)

    def line(self, source: str, target: str) -> str:
        ours, theirs = _text(self.ours), _text(self.theirs)
        return f"{self.where}: {self.name} is {ours} in {source}, {theirs} in {target}"


def of_pair(
    one: Layer, other: Layer, ours: Mapping[str, object], theirs: Mapping[str, object], activated: Collection[str]
) -> Iterator[SettingDifference]:
    """The settings in which two paired layers with parameters differ: `ours` and `theirs`. `activated` are the paths of
    layers whose activation was compared as a layer of its own."""
    # where only `kinds=` or a name says what a layer is, the settings that its shapes do not show are unknown
    is_read = all(set(settings).difference(SHAPING, layouts.TOLD) for settings in (ours, theirs))
    for name in dict.fromkeys((*ours, *theirs)):
        is_stated = name in ours and name in theirs
        # a setting of one layer alone is a difference only where the other was read at all
        if not (is_stated if name in (*SHAPING, *layouts.TOLD) else is_read):
            continue
        if name == "activation" and (one.path in activated or other.path in activated):
            continue
        mine, its = ours.get(name), theirs.get(name)
        if not layouts.same_setting(mine, its):
            yield SettingDifference(other.path or other.kind, name, mine, its)


def between(backend: Backend, actual: Any, expected: Any) -> list[str]:
    """A line for each setting that differs between two models of one framework, whose layers are paired by path."""
    try:
        ours, theirs = ({layer.path: layer for layer in backend.operations(model)} for model in (actual, expected))
    except AbsentNameError:
        raise
    except UnsupportedError:
        return []
    lines = []
    for path in dict.fromkeys((*theirs, *ours)):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None or one.kind != other.kind:
            mine, its = (name_of(layer) if layer else "nothing" for layer in (one, other))
            if mine != its:
                lines.append(f"{path or 'the model'}: it is {mine}, expected {its}")
            continue
        lines += [
            f"{path or other.kind}: {name} is {_text(one.settings[name])}, expected {_text(value)}"
            for name, value in other.settings.items()
            if name in one.settings and not layouts.same_setting(one.settings[name], value)
        ]
    return lines


def name_of(layer: Layer) -> str:
    return str(layer.settings.get("function", layer.settings.get("type", layer.kind)))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
