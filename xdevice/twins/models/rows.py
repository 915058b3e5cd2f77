"""A part of a layer's rows, as `names=` asks for it: `{"positions[2:]": "wpe"}` leaves out the first two."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xdevice.contract import layouts
from xdevice.errors import StateError, shown

from .sides import Side, shapes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.contract.layouts import Layer

_ASKED: Final = re.compile(r"(?P<path>.*)\[(?P<first>-?\d*):(?P<last>-?\d*)\]")
_KINDS: Final = ("embedding", "linear", "same")
Asked = dict[str, slice]
"""Which rows are asked for, by the path of the layer."""


def asked(names: Mapping[str, str]) -> tuple[dict[str, str], Asked, Asked]:
    """`names` without the rows, and the rows that are asked for of the source and of the target."""
    found: tuple[Asked, Asked] = ({}, {})
    plain = {_split(here, found[0]): _split(there, found[1]) for here, there in names.items()}
    return plain, *found


def _split(name: str, found: Asked) -> str:
    match = _ASKED.fullmatch(name)
    if match is None:
        return name
    first, last = (int(match[end]) if match[end] else None for end in ("first", "last"))
    found[match["path"]] = slice(first, last)
    return match["path"]


def cut(side: Side, wanted: Asked, done: list[str], is_target: bool) -> Side:
    """The side with only the rows that are asked for of each layer. `done` gets a line for each.

    Raises:
        StateError: there is no such layer, its kind does not have rows, or it does not have these.
    """
    if not wanted:
        return side
    lacking = [path for path in wanted if not any(_has(layer, path) for layer in (*side.layers, *side.bare))]
    if lacking:
        raise StateError(
            f"names= asks for rows of {shown(lacking[0])}; {side.backend.name} has no embedding, linear layer or "
            "single tensor there"
        )
    layers, bare = (
        [_cut(side, layer, wanted[layer.path], done, is_target) if layer.path in wanted else layer for layer in every]
        for every in (side.layers, side.bare)
    )
    return side._replace(layers=layers, bare=tuple(bare))


def _has(layer: Layer, path: str) -> bool:
    return layer.path == path and layer.kind in _KINDS


def _cut(side: Side, layer: Layer, wanted: slice, done: list[str], is_target: bool) -> Layer:
    total = next(iter(shapes_of(side.variables, layer).values()))[0]
    first, last, _ = wanted.indices(total)
    if first >= last:
        raise StateError(f"names= asks for rows {first} to {last} of {layer.path}, which has {total}")
    rest = "the others are zeros" if is_target else "the others are left out"
    done.append(f"rows {first} to {last - 1} of the {total} of {layer.path}, as names= says; {rest}")
    return layer._replace(
        parts=tuple(part._replace(rule=layouts.rows(part.rule, first, last, total)) for part in layer.parts)
    )
