"""Reads the settings of Keras's layers without parameters, such as activations and pools, in PyTorch's terms. Each
layer becomes an entry: a `Layer` of `xdevice.contract.layouts`.

Rules for this module:
- The activation of a Dense or a convolution gets an entry of its own, as in frameworks where it is a layer.
- A ReLU with a slope or a greatest value gets the name of the function that it computes, such as "leaky_relu".
- An average pool leaves padded values out of the mean, and "same" is the only padding that it has.
- In Keras the channels are the last axis unless `data_format` says otherwise. The axis of a softmax is counted in the
  tensor as it is.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import keras
from keras import layers as kl

from xdevice.twins.contract import layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice_tensorflow import names, parts

from . import pixels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xdevice.twins.contract.layouts import Layer

_INTERPOLATIONS: Final = {"bicubic": "bicubic of Keys (a = -0.5)"}
"""The names for interpolations of Keras that differ from PyTorch's of the same name: PyTorch's bicubic has a =
-0.75."""
_NOTHING: Final = (
    kl.InputLayer, kl.Flatten, kl.Reshape, kl.Identity, kl.Add, kl.Subtract, kl.Multiply, kl.Average,
    kl.Maximum, kl.Minimum, kl.Concatenate, kl.Dot, keras.Sequential, keras.Model,
)  # fmt: skip
"""Layers that are not listed, because they have no settings, or because other frameworks have functions instead."""
_CONTAINERS: Final = (*_NOTHING, kl.Wrapper, kl.RNN)
"""Layers around other layers. They get no entry of their own, because they only call the layers inside them, or because
what they add is in the entries of `_both_ways` and of the recurrent layers."""
_TAKES: Final = {"negative_slope": "slope", "alpha": "alpha", "axis": "axis"}
"""Parameters of Keras's activation functions, and the setting that each stands for."""
_PACKAGES: Final = ("keras", "tensorflow")
"""Packages whose functions compute what their names say. The defaults may still differ: `keras.ops.gelu` approximates,
`keras.activations.gelu` does not."""


def _lines(model: Any) -> dict[int, str]:
    """Returns the name of the row, such as "row 2", to which each layer of a functional model belongs, by the `id` of
    the layer. A row is a chain of layers, each of which takes the output of the one before, while nothing else takes
    that output."""
    graph = pixels.graph_of(list(pixels.in_order(model)))
    followers = {id(op): after[0] for op in graph.ops if len(after := list(graph.after(op))) == 1}
    rows: list[list[Any]] = []
    for op in graph.ops:
        before = list(graph.before(op))
        if len(before) == 1 and followers.get(id(before[0])) is op and _is_layer(op) and _is_layer(before[0]):
            continue
        row = [op]
        while _is_layer(row[-1]) and (follower := followers.get(id(row[-1]))) is not None:
            if not _is_layer(follower) or len(list(graph.before(follower))) != 1:
                break
            row.append(follower)
        rows.append(row)
    whole = len(rows) == 1
    return {id(op): ops.WHOLE if whole else f"row {number}" for number, row in enumerate(rows) for op in row}


def _is_layer(op: Any) -> bool:
    """Whether `op`, a node in the graph of a functional model, is a layer and not a function, and is called once."""
    return isinstance(op, keras.Layer) and len(parts.nodes_of(op)) == 1


def _operations(model: Any, backend: Operations) -> Iterator[Layer]:
    layers = {layer.path: layer for layer in backend.layers(model)}
    done: set[int] = set()
    for path, layer in names.layers(model):
        if id(layer) in done:
            continue
        has_layers = bool(parts.layers_in(layer))
        if path in layers:
            done |= {id(inner) for inner in pixels.in_order(layer)}
            yield layers[path]
            if ops.is_rewritten(layer, "keras", "call"):
                yield ops.own_code(path, layer)
            yield from _both_ways(path, layer)
            yield from _told_by_calls(path, layer)
            function = getattr(layer, "activation", None)  # a Bidirectional has none: its layers have
            if layers[path].settings.get("activation") is not None and callable(function):
                yield _with_axis(_by_function(f"{path}.activation", function), layer)
        elif not layer.weights and not has_layers:
            found = _TABLE.read(path, layer)
            if found is not None:
                yield _with_axis(found, layer)
            yield from _told_by_calls(path, layer)
        elif has_layers and not isinstance(layer, _CONTAINERS) and type(layer).__module__.startswith("keras."):
            yield ops.other(path, layer, _own_config(layer))


def _both_ways(path: str, layer: Any) -> Iterator[Layer]:
    """Yields an entry for a Bidirectional that does not join the outputs of its two directions in the default way. In
    other frameworks the model's own code does that."""
    if not isinstance(layer, kl.Bidirectional):
        return
    told = {"merge_mode": layer.merge_mode, "return_sequences": layer.return_sequences}
    usual = {"merge_mode": "concat", "return_sequences": True}
    if told != usual:
        yield ops.other(f"{path}()", layer, ", ".join(f"{name}={told[name]}" for name in told))


def _told_by_calls(path: str, layer: Any) -> Iterator[Layer]:
    """Yields an entry for the arguments, other than inputs, with which a functional model calls a layer, such as a mask
    or training=True; nothing if there are none."""
    told = {
        f"{name}={value}" if not hasattr(value, "shape") else f"{name}=..."
        for node in parts.nodes_of(layer)
        for name, value in node.arguments.kwargs.items()
        if (("mask" in name or "state" in name) if hasattr(value, "shape") else value)
    }
    if told:
        yield ops.other(f"{path}()", layer, ", ".join(sorted(told)))


def _max_pool(axes: int, path: str, layer: Any) -> Layer:
    window = (layer.pool_size, layer.strides, layer.padding)
    return ops.max_pool(path, axes, *window, image=pixels.size_of_image(layer))


def _avg_pool(axes: int, path: str, layer: Any) -> Layer:
    window = (layer.pool_size, layer.strides, layer.padding)
    return ops.avg_pool(path, axes, *window, count_include_pad=False, image=pixels.size_of_image(layer))


def _global_pool(kind: str, axes: int, path: str, layer: Any) -> Layer:
    return ops.adaptive_pool(path, kind, axes, 1)


def _adaptive_pool(kind: str, axes: int, path: str, layer: Any) -> Layer:
    return ops.adaptive_pool(path, kind, axes, layer.output_size)


def _upsample(axes: int, path: str, layer: Any) -> Layer:
    mode = getattr(layer, "interpolation", "nearest")
    return ops.upsample(path, axes, None, layouts.per_axis(layer.size, axes), _INTERPOLATIONS.get(mode, mode))


def _pad(path: str, layer: Any) -> Layer:
    given: Any = layer.padding if isinstance(layer.padding[0], tuple | list) else (layer.padding,)
    return ops.pad(path, [(one, two) for one, two in given])


def _dropout(path: str, layer: Any) -> Layer:
    return ops.dropout(path, layer.rate, axes="each number" if layer.noise_shape is None else tuple(layer.noise_shape))


def _layer_norm(path: str, layer: Any) -> Layer:
    axes = 1 if isinstance(layer.axis, int) else len(layer.axis)
    return ops.plain(path, "layer_norm", eps=layer.epsilon, axes=axes)


def _group_norm(path: str, layer: Any) -> Layer:
    # a layer made with groups=-1 has the number of channels as `groups` once it is built
    if layer.groups in (-1, *(getattr(layer.input_spec, "axes", None) or {}).values()):
        return ops.plain(path, "instance_norm", eps=layer.epsilon)
    return ops.plain(path, "group_norm", eps=layer.epsilon, num_groups=layer.groups)


def _with_axis(found: Layer, layer: Any) -> Layer:
    """Returns the entry `found` with its setting `axis` counted in PyTorch's order of axes, and with the number of axes
    as `ndim`. Without `axis`, or outside of a functional model, which knows the shapes, it is returned unchanged."""
    axis = found.settings.get("axis")
    if not isinstance(axis, int) or len(parts.nodes_of(layer)) != 1:
        return found
    count = len(parts.nodes_of(layer)[0].output_tensors[0].shape)
    place = axis % count
    if place and _gives_channels_last(layer):
        place = place % (count - 1) + 1  # PyTorch puts the channels first
    return found._replace(settings={**found.settings, "axis": place - count, "ndim": count})


def _gives_channels_last(layer: Any) -> bool:
    """Whether `layer` is a convolution with the channels last, or directly follows one."""
    before = layer if isinstance(layer, pixels.CONVS) else parts.nodes_of(layer)[0].parent_nodes[0].operation
    return isinstance(before, pixels.CONVS) and before.data_format == "channels_last"


def _own_config(layer: Any) -> str:
    """Returns the settings of one of Keras's own layers as text: "name=value, ..."."""
    if isinstance(layer, kl.Lambda):  # its settings contain the user's code
        return ""
    config = layer.get_config()
    return ", ".join(f"{name}={config[name]}" for name in sorted(config) if name not in ("name", "trainable", "dtype"))


def _by_function(path: str, function: Any) -> Layer:
    """Returns the entry for an activation function. A function of Keras or TensorFlow is described with the defaults of
    its arguments, a user's function only by its name, because nothing says what it computes."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, keras.Layer):  # a layer may be the activation of a Dense
        return _TABLE.read(path, function) or ops.activation(path, "linear")
    if str(getattr(function, "__module__", "")).partition(".")[0] not in _PACKAGES:
        return ops.plain(path, ops.OTHER, type=name)
    given = {name: known.default for name, known in inspect.signature(function).parameters.items()}
    taken: dict[str, object] = {to: given[name] for name, to in _TAKES.items() if name in given}
    if ops.function_name(name) == "leaky_relu":
        taken = {"slope": taken.get("slope", taken.get("alpha"))}
    elif "approximate" in given:
        taken["approximate"] = "tanh" if given["approximate"] else "none"
    if ops.function_name(name) in ("relu", "relu6", "silu"):
        taken = {}
    if taken.get("axis", -1) is None:
        taken["axis"] = -1
    return ops.activation(path, name, **taken)


def _called(path: str, layer: Any) -> Layer | None:
    """Returns the entry for an `Activation` layer; None if its function is the identity."""
    return None if layer.activation is keras.activations.linear else _by_function(path, layer.activation)


def _of_relu(path: str, layer: Any) -> Layer:
    most, slope, threshold = layer.max_value, float(layer.negative_slope), float(layer.threshold)
    if threshold or (slope and most is not None):
        return ops.activation(path, "thresholded_relu", slope=slope, max=most, threshold=threshold)
    if slope:
        return ops.activation(path, "leaky_relu", slope=slope)
    return ops.activation(path, "relu") if most is None else ops.activation(path, "hardtanh", min=0.0, max=float(most))


_TABLE: Final = ops.Table(
    "keras",
    {
        **dict.fromkeys(_NOTHING),
        kl.Activation: _called,
        kl.ReLU: _of_relu,
        **ops.activations({
            kl.LeakyReLU: {"slope": "negative_slope"}, kl.ELU: {"alpha": "alpha"}, kl.Softmax: {"axis": "axis"},
        }),
        **ops.over_axes(kl, "MaxPooling{}D", _max_pool),
        **ops.over_axes(kl, "AveragePooling{}D", _avg_pool),
        **ops.over_axes(kl, "GlobalAveragePooling{}D", partial(_global_pool, "avg")),
        **ops.over_axes(kl, "GlobalMaxPooling{}D", partial(_global_pool, "max")),
        **ops.over_axes(kl, "AdaptiveAveragePooling{}D", partial(_adaptive_pool, "avg")),
        **ops.over_axes(kl, "AdaptiveMaxPooling{}D", partial(_adaptive_pool, "max")),
        **ops.over_axes(kl, "UpSampling{}D", _upsample),
        **dict.fromkeys((kl.ZeroPadding1D, kl.ZeroPadding2D, kl.ZeroPadding3D), _pad),
        kl.Dropout: _dropout,
        **dict.fromkeys(
            (kl.SpatialDropout1D, kl.SpatialDropout2D, kl.SpatialDropout3D),
            lambda path, layer: ops.dropout(path, layer.rate, axes="whole channels"),
        ),
        kl.AlphaDropout: ops.row("alpha_dropout", p="rate"),
        kl.Rescaling: ops.row("rescaling", scale="scale", offset="offset"),
        kl.BatchNormalization: ops.row("batch_norm", eps="epsilon"),
        kl.LayerNormalization: _layer_norm,
        kl.GroupNormalization: _group_norm,
    },
    lambda layer: ops.is_rewritten(layer, "keras", "call"),
    _own_config,
)  # fmt: skip


class TensorflowOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        lines = _lines(model)
        own = {path: id(layer) for path, layer in names.layers(model)}
        for layer in _operations(model, self):
            path = layer.path.removesuffix("()")
            line = lines.get(own.get(path, 0)) or lines.get(own.get(path.removesuffix(".activation"), 0))
            yield layer._replace(line=line or "")
