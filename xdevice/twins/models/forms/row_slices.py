"""Selects rows of layers, as `names=` specifies: `{"positions[2:]": "wpe"}` leaves out the first two rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xdevice.errors import StateError, shown
from xdevice.twins.contract import layouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Names, Twin

    Slices = Mapping[str, slice]
    """The rows that `names=` selects, by the path of the layer."""

# matches "wpe[2:]": the path, and the two bounds of a slice, each of which may be missing or negative
_PATH_AND_ROWS: Final = re.compile(r"(.*)\[(-?\d*):(-?\d*)\]")
_KINDS: Final = ("embedding", "linear", "same")
"""The kinds of layers whose rows `names=` can select."""


def split(names: Names) -> tuple[dict[str, str], Slices, Slices]:
    """Returns three dicts: `names` without the row selections in its paths, the rows that `names` selects in layers of
    the source, and the rows that it selects in layers of the target."""
    # `_path_without_rows` fills both dicts
    ours: dict[str, slice] = {}
    theirs: dict[str, slice] = {}
    plain = {
        _path_without_rows(source_name, ours): _path_without_rows(target_name, theirs)
        for source_name, target_name in names.items()
    }
    return plain, ours, theirs


def _path_without_rows(name: str, slices: dict[str, slice]) -> str:
    """Returns the path in `name`. If `name` selects rows, adds them to `slices` under that path. For example, "wpe[2:]"
    adds slice(2, None) under the path "wpe"."""
    match = _PATH_AND_ROWS.fullmatch(name)
    if match is None:
        return name
    path, first, last = match.groups()
    slices[path] = slice(int(first) if first else None, int(last) if last else None)
    return path


def select_rows(twin: Twin, slices: Slices, done: list[str], is_target: bool) -> Twin:
    """Returns the twin with some layers reduced to selected rows. `slices` maps the paths of these layers to their
    rows. Appends a line about each of these layers to `done`. With `is_target` the line says that the other rows are
    zeros, otherwise that the other rows are left out.

    Raises:
        StateError: if a path has no layer of a kind in `_KINDS`, or if a layer has none of the selected rows.
    """
    with_rows = {layer.path for layer in (*twin.layers, *twin.singles) if layer.kind in _KINDS}
    lacking = [path for path in slices if path not in with_rows]
    if lacking:
        raise StateError(
            f"names= selects rows of {shown(lacking[0])}, but the {twin.name} model has nothing at this path with rows "
            f"to select; name an embedding, a linear layer, or a tensor outside all layers"
        )

    def select_all(layers: list[Layer]) -> list[Layer]:
        """Returns the layers, each reduced to the selected rows if its path is in `slices`."""
        return [_with_rows(twin, layer, slices[layer.path], done, is_target) if layer.path in slices else layer
                for layer in layers]  # fmt: skip

    return twin._replace(layers=select_all(twin.layers), singles=select_all(twin.singles))


def _with_rows(
    twin: Twin, layer: Layer, rows: slice, done: list[str], is_target: bool
) -> Layer:
    """Returns the layer reduced to `rows`, and appends a line about it to `done`. The line also says what happens to
    the other rows: with `is_target`, they become zeros. Raises `StateError` if the layer has none of these rows."""
    # the first parameter is the weight, whose first axis in PyTorch's layout has the rows
    total = next(iter(twin.shapes(layer).values()))[0]
    # as for Python's slices, so that [2:] and [:-1] have their usual meaning
    first, last, _ = rows.indices(total)
    if first >= last:
        raise StateError(f"names= selects no rows of {layer.path}, which has only {total} rows")
    rest = "the other rows are zeros" if is_target else "the other rows are left out"
    done.append(
        f"rows {first} to {last - 1} of the {total} rows of {layer.path}, because of names=; {rest}"
    )
    parts = [
        part._replace(rule=layouts.selected_rows(part.rule, first, last, total))
        for part in layer.parts
    ]
    return layer._replace(parts=tuple(parts))
