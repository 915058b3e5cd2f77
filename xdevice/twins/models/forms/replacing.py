"""Replaces layers of a `Twin`, also in its sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Twin


def with_layers(twin: Twin, layers: Iterable[Layer]) -> Twin:
    """The twin with these layers in place of its own, also in its sequence, where they have the same variables."""
    every = list(layers)
    sequence = twin.sequence and list(_in_step(twin.sequence, every))
    return twin._replace(layers=every, sequence=sequence)


def _in_step(sequence: Iterable[Layer], layers: Iterable[Layer]) -> Iterator[Layer]:
    """The sequence with `layers` in place of the layers that they were made of, each where its first parameter comes.
    Layers without parameters stay."""
    owners = {part.name: layer for layer in layers for part in layer.parts}
    done: set[int] = set()
    for layer in sequence:
        owner = owners.get(layer.parts[0].name) if layer.parts else layer
        # a stack of three comes once, where its first layer was
        if owner is not None and id(owner) not in done:
            done.add(id(owner))
            yield owner._replace(line=layer.line)


def joined(twin: Twin, joins: Iterable[tuple[Sequence[Layer], Layer]]) -> Twin:
    """The twin with one layer in place of each group of its layers, where the first of the group was."""
    whole_of = {id(layer): whole for group, whole in joins for layer in group}
    if not whole_of:
        return twin
    layers = [whole_of.get(id(layer), layer) for layer in twin.layers]
    return with_layers(twin, {id(layer): layer for layer in layers}.values())
