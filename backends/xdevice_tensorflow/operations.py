"""The settings of Keras's layers without parameters.

What must be kept:
- an activation in a Dense or convolution works on what that layer gives, and is a layer of its own here;
- a ReLU may have a slope or a greatest value, and is then another function;
- pools do not count what is padded, and "same" is the only padding;
- axes are counted with the channels last unless `data_format` says otherwise, and in a softmax always as they come.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import keras
from keras import layers as kl

from xdevice.contract import layouts
from xdevice.contract import operations as ops
from xdevice.contract.layers import Operations

from . import names, pixels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xdevice.contract.layouts import Layer

_MAX: Final = {kl.MaxPooling1D: 1, kl.MaxPooling2D: 2, kl.MaxPooling3D: 3}
_AVG: Final = {kl.AveragePooling1D: 1, kl.AveragePooling2D: 2, kl.AveragePooling3D: 3}
_GLOBAL: Final = {
    kl.GlobalAveragePooling1D: ("avg", 1), kl.GlobalAveragePooling2D: ("avg", 2), kl.GlobalAveragePooling3D: ("avg", 3),
    kl.GlobalMaxPooling1D: ("max", 1), kl.GlobalMaxPooling2D: ("max", 2), kl.GlobalMaxPooling3D: ("max", 3),
}  # fmt: skip
_PADS: Final = (kl.ZeroPadding1D, kl.ZeroPadding2D, kl.ZeroPadding3D)
_UPSAMPLES: Final = (kl.UpSampling1D, kl.UpSampling2D, kl.UpSampling3D)
_SPATIAL: Final = (kl.SpatialDropout1D, kl.SpatialDropout2D, kl.SpatialDropout3D)
_INTERPOLATIONS: Final = {"bicubic": "bicubic of Keys (a = -0.5)"}
"""Elsewhere a is -0.75."""
_NOTHING: Final = (
    kl.InputLayer, kl.Flatten, kl.Reshape, kl.Identity, kl.Add, kl.Subtract, kl.Multiply, kl.Average,
    kl.Maximum, kl.Minimum, kl.Concatenate, kl.Dot, keras.Sequential, keras.Model,
)  # fmt: skip
"""What has no settings, or is a function elsewhere."""
_CONTAINERS: Final = (*_NOTHING, kl.Wrapper, kl.RNN)
"""Layers that only call what is in them, or of which it is known what they add."""
_TAKES: Final = {"negative_slope": "slope", "alpha": "alpha", "axis": "axis"}
"""What functions of activation take, by their names there."""
_PACKAGES: Final = ("keras", "tensorflow")
"""Whose functions are what they are called; of one name, `keras.ops.gelu` approximates and `keras.activations.gelu`
does not."""


def _lines(model: Any) -> dict[int, str]:
    """The row of a functional model in which each layer stands, by its id: all that take what one other gives, which
    nothing else takes."""
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
    """Whether a node is a layer that is called once, and no function."""
    return isinstance(op, keras.Layer) and len(op._inbound_nodes) == 1


def _operations(model: Any, backend: Operations) -> Iterator[Layer]:
    layers = {layer.path: layer for layer in backend.layers(model)}
    done: set[int] = set()
    for path, layer in names.layers(model):
        if id(layer) in done:
            continue
        if path in layers:
            done |= {id(inner) for inner in layer._flatten_layers()}
            yield layers[path]
            if ops.is_rewritten(layer, "keras", "call"):
                yield ops.own_code(path, layer)
            yield from _both_ways(path, layer)
            yield from _told_by_calls(path, layer)
            function = getattr(layer, "activation", None)  # a Bidirectional has it in the layers inside
            if layers[path].settings.get("activation") is not None and callable(function):
                yield _with_axis(_by_function(f"{path}.activation", function), layer)
        elif not (layer.weights or list(layer._layers) or isinstance(layer, _NOTHING)):
            found = _operation(path, layer)
            if found is not None:
                yield _with_axis(found, layer)
            yield from _told_by_calls(path, layer)
        elif list(layer._layers) and not isinstance(layer, _CONTAINERS) and _own_config(layer):
            yield ops.other(path, layer, _own_config(layer))


def _both_ways(path: str, layer: Any) -> Iterator[Layer]:
    """An entry for a Bidirectional that joins its outputs in another way than by default: elsewhere that is code."""
    if not isinstance(layer, kl.Bidirectional):
        return
    told = {"merge_mode": layer.merge_mode, "return_sequences": layer.return_sequences}
    usual = {"merge_mode": "concat", "return_sequences": True}
    if told != usual:
        yield ops.other(f"{path}()", layer, ", ".join(f"{name}={told[name]}" for name in told))


def _told_by_calls(path: str, layer: Any) -> Iterator[Layer]:
    """The arguments beside inputs with which a functional model calls a layer: a causal mask, training=True."""
    told = {
        f"{name}={value}" if not hasattr(value, "shape") else f"{name}=..."
        for node in getattr(layer, "_inbound_nodes", ())
        for name, value in node.arguments.kwargs.items()
        if (("mask" in name or "state" in name) if hasattr(value, "shape") else value)
    }
    if told:
        yield ops.other(f"{path}()", layer, ", ".join(sorted(told)))


def _operation(path: str, layer: Any) -> Layer | None:
    if ops.is_rewritten(layer, "keras", "call"):
        return ops.other(path, layer)
    if isinstance(layer, kl.Activation):
        return _by_function(path, layer.activation) if layer.activation is not keras.activations.linear else None
    found = _activation(path, layer) or _pool(path, layer) or _image(path, layer)
    if found is not None:
        return found
    if isinstance(layer, _SPATIAL):
        return ops.dropout(path, layer.rate, axes="whole channels")
    if isinstance(layer, kl.Dropout):
        axes = "each number" if layer.noise_shape is None else tuple(layer.noise_shape)
        return ops.dropout(path, layer.rate, axes=axes)
    if isinstance(layer, kl.AlphaDropout):
        return ops.plain(path, "alpha_dropout", p=layer.rate)
    if isinstance(layer, kl.Rescaling):
        return ops.plain(path, "rescaling", scale=layer.scale, offset=layer.offset)
    if isinstance(layer, kl.BatchNormalization | kl.LayerNormalization | kl.GroupNormalization):
        return _norm(path, layer)
    return ops.other(path, layer, _own_config(layer))


def _norm(path: str, layer: Any) -> Layer:
    if isinstance(layer, kl.BatchNormalization):
        return ops.plain(path, "batch_norm", eps=layer.epsilon)
    if isinstance(layer, kl.LayerNormalization):
        axes = 1 if isinstance(layer.axis, int) else len(layer.axis)
        return ops.plain(path, "layer_norm", eps=layer.epsilon, axes=axes)
    # Keras writes the number of channels over the -1 that it was given
    if layer.groups in (-1, *(getattr(layer.input_spec, "axes", None) or {}).values()):
        return ops.plain(path, "instance_norm", eps=layer.epsilon)
    return ops.plain(path, "group_norm", eps=layer.epsilon, num_groups=layer.groups)


def _with_axis(found: Layer, layer: Any) -> Layer:
    """The layer with its axis in PyTorch's order, and the number of axes, if a functional model tells it."""
    axis = found.settings.get("axis")
    if not isinstance(axis, int) or len(layer._inbound_nodes) != 1:
        return found
    count = len(layer._inbound_nodes[0].output_tensors[0].shape)
    place = axis % count
    if place and _gives_channels_last(layer):
        place = place % (count - 1) + 1  # rows, columns, channels are channels, rows, columns there
    return found._replace(settings={**found.settings, "axis": place - count, "ndim": count})


def _gives_channels_last(layer: Any) -> bool:
    """Whether it is a convolution with its channels last, or stands right behind one."""
    before = layer if isinstance(layer, pixels.CONVS) else layer._inbound_nodes[0].input_tensors[0]._keras_history[0]
    return isinstance(before, pixels.CONVS) and before.data_format == "channels_last"


def _own_config(layer: Any) -> str:
    """The settings of a layer of Keras's own that is not known here."""
    if not type(layer).__module__.startswith("keras.") or isinstance(layer, kl.Lambda):  # of a user's code
        return ""
    config = layer.get_config()
    return ", ".join(f"{name}={config[name]}" for name in sorted(config) if name not in ("name", "trainable", "dtype"))


def _by_function(path: str, function: Any) -> Layer:
    """A function of Keras or TensorFlow with what it takes when nobody says otherwise; nobody can read another's."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, keras.Layer):  # a layer may be the activation of a Dense
        return _operation(path, function) or ops.activation(path, "linear")
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


def _activation(path: str, layer: Any) -> Layer | None:
    if isinstance(layer, kl.ReLU):
        return _of_relu(path, layer)
    if isinstance(layer, kl.LeakyReLU):
        return ops.activation(path, "leaky_relu", slope=float(layer.negative_slope))
    if isinstance(layer, kl.ELU):
        return ops.activation(path, "elu", alpha=float(layer.alpha))
    return ops.activation(path, "softmax", axis=layer.axis) if isinstance(layer, kl.Softmax) else None


def _of_relu(path: str, layer: Any) -> Layer:
    most, slope, threshold = layer.max_value, float(layer.negative_slope), float(layer.threshold)
    if threshold or (slope and most is not None):
        return ops.activation(path, "thresholded_relu", slope=slope, max=most, threshold=threshold)
    if slope:
        return ops.activation(path, "leaky_relu", slope=slope)
    return ops.activation(path, "relu") if most is None else ops.activation(path, "hardtanh", min=0.0, max=float(most))


def _pool(path: str, layer: Any) -> Layer | None:
    kind = type(layer)
    if kind in _MAX:
        image = pixels.size_of_image(layer)
        return ops.max_pool(path, _MAX[kind], layer.pool_size, layer.strides, layer.padding, image=image)
    if kind in _AVG:
        window, image = (layer.pool_size, layer.strides, layer.padding), pixels.size_of_image(layer)
        return ops.avg_pool(path, _AVG[kind], *window, count_include_pad=False, image=image)
    if kind in _GLOBAL:
        return ops.adaptive_pool(path, *_GLOBAL[kind], 1)
    size = getattr(layer, "output_size", None)
    if kind.__name__.startswith("Adaptive") and size is not None:
        return ops.adaptive_pool(path, "avg" if "Average" in kind.__name__ else "max", len(size), size)
    return None


def _image(path: str, layer: Any) -> Layer | None:
    if isinstance(layer, _UPSAMPLES):
        axes = int(type(layer).__name__[-2])
        mode = getattr(layer, "interpolation", "nearest")
        return ops.upsample(path, axes, None, layouts.per_axis(layer.size, axes), _INTERPOLATIONS.get(mode, mode))
    if isinstance(layer, _PADS):
        given: Any = layer.padding if isinstance(layer.padding[0], tuple | list) else (layer.padding,)
        return ops.pad(path, [(one, two) for one, two in given])
    return None


class TensorflowOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        lines = _lines(model)
        own = {path: id(layer) for path, layer in names.layers(model)}
        for layer in _operations(model, self):
            path = layer.path.removesuffix("()")
            line = lines.get(own.get(path, 0)) or lines.get(own.get(path.removesuffix(".activation"), 0))
            yield layer._replace(line=line or "")
