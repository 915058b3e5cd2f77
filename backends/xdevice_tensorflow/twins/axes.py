"""Finds the axis that a norm layer of Keras works over. In other frameworks that is always the second axis, which
holds the channels.

How the axis of the channels is found:
- Next to a convolution, it is the axis on which the convolution has its channels.
- Elsewhere the model does not show it, because the same model in another framework may permute the axes before the
  norm. The norm is taken to work over the channels if its axis is the second or the last, and these two differ in
  size: then the number of its parameters shows whether it fits the other framework's norm.
- A Flatten, Reshape or Permute makes new axes, so a convolution before it says nothing about a norm after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from keras import layers as kl

from xdevice.twins.contract import layouts

from . import pixels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.layouts import Settings

_NORMS: Final = (kl.BatchNormalization, kl.GroupNormalization, kl.PReLU)
# the class names of layers that permute axes, and of the objects that represent such functions of `keras.ops`
_MOVES: Final = ("Permute", "Transpose", "Swapaxes", "Moveaxis")


def axis_settings(model: Any) -> Mapping[int, Settings]:
    """Returns the axis of each norm layer that works, or may work, over an axis other than that of the channels: a
    dict with one setting, `axis` or `layouts.AXIS`, by the `id` of the layer. Layers that have not been built are left
    out."""
    layers = list(pixels.all_layers(model))
    # with two axes, batch and features, there is no question; a layer that is not built has the shape ()
    norms = [layer for layer in layers if isinstance(layer, _NORMS) and len(_shape(layer)) > 2]
    if not norms:
        return {}
    graph = pixels.graph_of(layers)
    return {
        id(layer): setting
        for layer in norms
        if (setting := _axis_setting(layer, _neighbours(layer, layers, graph)))
    }


def _axis_setting(layer: Any, neighbours: Sequence[Any]) -> Settings:
    """Returns the axis of a norm layer as a setting: `axis` if it is certainly not that of the channels, and
    `layouts.AXIS` if that is in doubt. {} if `neighbours` or the size of the axis show that it is the axis of the
    channels, or for a PReLU with slopes along several axes. `neighbours` is the result of `_neighbours`."""
    shape, axis = _shape(layer), _axis(layer)
    if axis is None:
        return {}
    # the channels are on the second axis or the last
    ends = (1, len(shape) - 1)
    are_convs = bool(neighbours) and all(isinstance(op, pixels.CONVS) for op in neighbours)
    # next to convolutions, the channels are on the axis where the first of these has them: ends[0] or ends[1]
    is_other = axis not in ends or (
        are_convs and axis != ends[not pixels.has_channels_first(neighbours[0])]
    )
    # not for a PReLU, whose setting `axis` already describes its slopes (`_describe` in `layers`)
    if is_other and not isinstance(layer, kl.PReLU):
        return {"axis": axis}
    # with 64 channels and 50 steps, the number of parameters tells the axis; with 50 and 50 nothing does, nor if one
    # size is None, and so not known
    sizes = {shape[end] for end in ends}
    if not is_other and (are_convs or (len(sizes) == 2 and None not in sizes)):
        return {}
    return {layouts.AXIS: f"axis {axis} of {shape}"}


def _shape(layer: Any) -> tuple[int | None, ...]:
    """Returns the shape of a layer's input; () if the layer has not been built."""
    return tuple((layer.get_build_config() or {}).get("input_shape") or ())


def _axis(layer: Any) -> int | None:
    """Returns the axis that a norm layer works over, counted from the front. None only for a PReLU that does not have
    its slopes along exactly one axis. If a layer states a list of axes, the first counts. The layer must be built."""
    rank = len(_shape(layer))
    if isinstance(layer, kl.PReLU):
        # its slopes differ along the axes that are not shared
        unshared = [axis for axis in range(1, rank) if axis not in (layer.shared_axes or ())]
        return unshared[0] if len(unshared) == 1 else None
    axis = layer.axis[0] if isinstance(layer.axis, list | tuple) else layer.axis
    return int(axis) % rank


def _neighbours(layer: Any, layers: Sequence[Any], graph: pixels.Graph) -> list[Any]:
    """Returns the nearest layers before `layer` that make new features, such as convolutions and Dense layers; if
    there are none, the nearest ones after it."""
    if any(op is layer for op in graph.ops):
        # the axes beyond these do not correspond to those of `layer`, so the search ends there
        stops = {
            id(op) for op in graph.ops if pixels.is_reshape(op) or type(op).__name__ in _MOVES
        }
        sides = (pixels.reached(layer, side, stops) for side in (graph.before, graph.after))
    # a layer of a subclassed model is in no graph, so the order of definition counts
    else:
        index = next(number for number, other in enumerate(layers) if other is layer)
        sides = (_nearest(part) for part in (layers[:index][::-1], layers[index + 1 :]))
    makers = (
        [maker for maker in map(pixels.unwrapped, side) if isinstance(maker, pixels.MAKERS)]
        for side in sides
    )
    # `makers` has two lists, that of the layers before and that of the layers after: the first that is not empty
    return next(filter(None, makers), [])


def _nearest(layers: Sequence[Any]) -> list[Any]:
    """Returns the first of the layers that makes new features, in a list; empty if none
    does."""
    return [layer for layer in layers if isinstance(layer, pixels.MAKERS)][:1]
