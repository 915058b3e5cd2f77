"""Finds the axis over which a norm layer of Keras works. In other frameworks, this is always the second axis, the axis
of the channels.

How the axis of the channels is found:
- Next to a convolution, it is the channel axis of the convolution.
- Elsewhere, the model does not show which axis contains the channels, because the same model in another framework may
  permute the axes before the norm. The norm is assumed to work over the channels if its axis is the second or the last,
  and if the sizes of these two axes differ. If the sizes differ, the number of parameters shows whether the norm
  matches the norm in the other framework.
- A Flatten, Reshape or Permute changes the axes, so a convolution before it says nothing about a norm after it.
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
# the names of the classes of layers that permute axes, and of the classes that represent such functions of `keras.ops`
_MOVES: Final = ("Permute", "Transpose", "Swapaxes", "Moveaxis")


def axis_settings(model: Any) -> Mapping[int, Settings]:
    """Returns the axis of each norm layer whose axis is not, or may not be, the axis of the channels. The result maps
    the `id` of such a layer to a dict with one setting, `axis` or `layouts.AXIS_IN_DOUBT`. Layers that have not been
    built are left out."""
    layers = list(pixels.all_layers(model))
    # if there are only two axes, batch and features, the axis is certain; the shape of a layer that has not been built
    # is ()
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
    """Returns the axis of a norm layer as a dict with one setting. The setting is `axis` if the axis is certainly not
    the axis of the channels, and `layouts.AXIS_IN_DOUBT` if this is uncertain. Returns {} if `neighbours` or the size
    of the axis shows that it is the axis of the channels. Also returns {} for a PReLU with slopes along several axes.
    `neighbours` is the result of `_neighbours`."""
    shape, axis = _shape(layer), _axis(layer)
    if axis is None:
        return {}
    # the channels are either on the second or on the last axis
    ends = second, last = 1, len(shape) - 1
    # whether `axis` is certainly not the axis of the channels
    is_other = axis not in ends
    # next to convolutions, the axis of the channels is that of the first convolution
    are_convs = bool(neighbours) and all(isinstance(op, pixels.CONVS) for op in neighbours)
    if are_convs:
        is_other = axis != (second if pixels.has_channels_first(neighbours[0]) else last)
    # not for a PReLU, because its setting `axis` already describes its slopes (`_describe` in `layers`)
    if is_other and not isinstance(layer, kl.PReLU):
        return {"axis": axis}
    # with 64 channels and 50 steps, the number of parameters shows which axis it is. With 50 of both, or if one size is
    # not known (None), nothing shows it
    sizes = {shape[end] for end in ends}
    if not is_other and (are_convs or (len(sizes) == 2 and None not in sizes)):
        return {}
    return {layouts.AXIS_IN_DOUBT: f"axis {axis} of {shape}"}


def _shape(layer: Any) -> tuple[int | None, ...]:
    """Returns the shape of a layer's input, or () if the layer has not been built."""
    return tuple((layer.get_build_config() or {}).get("input_shape") or ())


def _axis(layer: Any) -> int | None:
    """Returns the axis over which a norm layer works, counted from the front. If the layer has a list of axes, returns
    the first. Returns None only for a PReLU with slopes along no axis or along several axes. The layer must be
    built."""
    rank = len(_shape(layer))
    if isinstance(layer, kl.PReLU):
        # the slopes differ along the axes that are not shared
        unshared = [axis for axis in range(1, rank) if axis not in (layer.shared_axes or ())]
        return unshared[0] if len(unshared) == 1 else None
    axis = layer.axis[0] if isinstance(layer.axis, list | tuple) else layer.axis
    return int(axis) % rank


def _neighbours(layer: Any, layers: Sequence[Any], graph: pixels.Graph) -> list[Any]:
    """Returns the nearest layers before `layer` that compute new features, such as convolutions and Dense layers. If
    there are none, returns the nearest such layers after it."""
    if any(op is layer for op in graph.ops):
        # the search ends at these ops, because the axes beyond them do not correspond to those
        # of `layer`
        stops = {
            id(op) for op in graph.ops if pixels.is_reshape(op) or type(op).__name__ in _MOVES
        }
        sides = (pixels.reached(layer, side, stops) for side in (graph.before, graph.after))
    # a layer of a subclassed model is in no graph, so the order of definition is used
    else:
        index = next(number for number, other in enumerate(layers) if other is layer)
        # the layers before are reversed, so that the nearest comes first
        sides = (_nearest(part) for part in (layers[:index][::-1], layers[index + 1 :]))
    # first the layers before `layer`, then the layers after it
    for side in sides:
        makers = [op for op in map(pixels.unwrapped, side) if isinstance(op, pixels.MAKERS)]
        if makers:
            return makers
    return []


def _nearest(layers: Sequence[Any]) -> list[Any]:
    """Returns a list with the first layer in `layers` that computes new features, or an empty list if there is no such
    layer."""
    return [layer for layer in layers if isinstance(layer, pixels.MAKERS)][:1]
