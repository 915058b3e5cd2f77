"""Describes which layers and functions of a functional Keras model use the outputs of which others.

Two models of Keras with the same layers may still differ in their wiring: one subtracts in the other order, or
multiplies where the other one adds. A subclassed model has no wiring that could be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from keras import layers as kl

from xdevice.twins.contract import operations as ops
from xdevice_tensorflow import names
from xdevice_tensorflow.parts import nodes_of

from .pixels import all_layers, history_of, is_functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xdevice.twins.contract.layouts import Layer

_SYMMETRIC: Final = (kl.Add, kl.Multiply, kl.Average, kl.Maximum, kl.Minimum)
"""Layers that return the same result for their inputs in any order."""


def entries(
    model: Any, unlisted: tuple[type, ...], config: Callable[[Any], str]
) -> Iterator[Layer]:
    """Yields an entry for each layer and function of the functional models in `model`, with the names of those whose
    outputs it uses, and an entry for the outputs of each of these models. `unlisted` contains the classes of layers
    that have no other entry, and whose settings, which `config` returns, are therefore part of these entries."""
    models = [layer for layer in all_layers(model) if is_functional(layer)]
    calls = _calls(models)
    name_of = _names(model, models, calls, unlisted)
    for op, nodes in calls:
        inputs = [_sources(node.input_tensors, name_of) for node in nodes]
        if isinstance(op, _SYMMETRIC):
            inputs = [sorted(of_call) for of_call in inputs]
        settings = config(op) if isinstance(op, unlisted) and not is_functional(op) else ""
        yield ops.plain(
            f"the call of {name_of[id(op)]}",
            ops.WIRING,
            type=type(op).__name__,
            inputs=inputs,
            settings=settings,
        )
    for one in models:
        outputs = _sources(one.outputs, name_of)
        yield ops.plain(f"the outputs of {name_of[id(one)]}", ops.WIRING, outputs=outputs)


def _calls(models: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
    """Returns each layer and function on which the outputs of functional models depend, with the nodes of its calls.
    The inputs of these models, and calls for other models, are left out. The order follows the outputs, so it is the
    same for two models with the same wiring."""
    nodes_by_op: dict[int, tuple[Any, dict[int, Any]]] = {}
    inputs = {id(history_of(tensor).operation) for model in models for tensor in model.inputs}
    waiting = [tensor for model in models for tensor in model.outputs]
    while waiting:
        history = history_of(waiting.pop())
        op, index = history.operation, history.node_index
        _, nodes = nodes_by_op.setdefault(id(op), (op, {}))
        if index not in nodes and id(op) not in inputs:
            nodes[index] = nodes_of(op)[index]
            waiting += nodes[index].input_tensors
    # in the order of the calls, which is not the order of the walk
    return [
        (op, [nodes[index] for index in sorted(nodes)])
        for op, nodes in nodes_by_op.values()
        if id(op) not in inputs
    ]


def _names(
    model: Any,
    models: Iterable[Any],
    calls: Iterable[tuple[Any, list[Any]]],
    unlisted: tuple[type, ...],
) -> dict[int, str]:
    """Returns a dict from the `id` of each layer and function to its name. An input is named by its position in its
    model. Functions and layers without another entry are numbered, because users may name such layers as they like."""
    paths = {id(layer): path or "the model" for path, layer in names.layers(model)}
    name_of = {}
    for one in models:
        name_of[id(one)] = paths[id(one)]
        for number, tensor in enumerate(one.inputs):
            name_of[id(history_of(tensor).operation)] = f"input {number} of {paths[id(one)]}"
    for number, (op, _) in enumerate(calls):
        is_named = id(op) in paths and not isinstance(op, unlisted)
        name_of.setdefault(
            id(op), paths[id(op)] if is_named else f"{type(op).__name__} {number}"
        )
    return name_of


def _sources(tensors: Iterable[Any], name_of: dict[int, str]) -> list[str]:
    """Returns the names of the layers and functions that return these symbolic tensors. The name of one that returns
    several tensors is followed by the index of the tensor, such as "lstm[1]"."""
    sources = []
    for tensor in tensors:
        op, _, index = history_of(tensor)
        sources.append(f"{name_of[id(op)]}[{index}]" if index else name_of[id(op)])
    return sources
