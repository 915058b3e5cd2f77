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

from . import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.contract import Backend
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
_NOTHING: Final = (
    kl.InputLayer, kl.Flatten, kl.Reshape, kl.Identity, kl.Add, kl.Subtract, kl.Multiply, kl.Average,
    kl.Maximum, kl.Minimum, kl.Concatenate, kl.Dot, kl.Masking, keras.Sequential, keras.Model,
)  # fmt: skip
"""What has no settings, or is a function elsewhere."""
_TAKES: Final = {"negative_slope": "slope", "alpha": "alpha", "axis": "axis", "threshold": "threshold"}
"""What the functions of `keras.activations` take, by their names there."""


def operations(model: Any, backend: Backend) -> Iterator[Layer]:
    layers = {layer.path: layer for layer in backend.layers(model)}
    done: set[int] = set()
    for path, layer in names.layers(model):
        if id(layer) in done:
            continue
        if path in layers:
            done |= {id(inner) for inner in layer._flatten_layers()}
            yield layers[path]
            yield from _told_by_calls(path, layer)
            function = getattr(layer, "activation", None)  # a Bidirectional has it in the layers inside
            if layers[path].settings.get("activation") is not None and callable(function):
                yield _by_function(f"{path}.activation", function)
        elif not (layer.weights or list(layer._layers) or isinstance(layer, _NOTHING)):
            found = _operation(path, layer)
            if found is not None:
                yield found
            yield from _told_by_calls(path, layer)


def _told_by_calls(path: str, layer: Any) -> Iterator[Layer]:
    """What a functional model calls a layer with besides inputs: a causal mask, training=True."""
    told = {
        f"{name}={value}" if not hasattr(value, "shape") else f"{name}=..."
        for node in getattr(layer, "_inbound_nodes", ())
        for name, value in node.arguments.kwargs.items()
        if (("mask" in name or "state" in name) if hasattr(value, "shape") else value)
    }
    if told:
        yield ops.other(f"{path}()", layer, ", ".join(sorted(told)))


def _operation(path: str, layer: Any) -> Layer | None:
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
        kind = {"B": "batch_norm", "L": "layer_norm", "G": "group_norm"}[type(layer).__name__[0]]
        return ops.plain(path, kind, eps=layer.epsilon)
    return ops.other(path, layer, _own_config(layer))


def _own_config(layer: Any) -> str:
    """What a layer of Keras's own that nobody knows here is set to."""
    if not type(layer).__module__.startswith("keras.") or isinstance(layer, kl.Lambda):  # whose code is in it
        return ""
    config = layer.get_config()
    return ", ".join(f"{name}={config[name]}" for name in sorted(config) if name not in ("name", "trainable", "dtype"))


def _by_function(path: str, function: Any) -> Layer:
    """A function of `keras.activations` with what it takes when nobody says otherwise."""
    name = getattr(function, "__name__", type(function).__name__)
    own = getattr(keras.activations, name, None)
    if not callable(own) or own is not function:
        return ops.activation(path, name)
    known = inspect.signature(own).parameters
    taken = {to: known[name].default for name, to in _TAKES.items() if name in known and name != "threshold"}
    if ops.function_name(name) in ("relu", "relu6"):
        taken = {}
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
        return ops.max_pool(path, _MAX[kind], layer.pool_size, layer.strides, layer.padding)
    if kind in _AVG:
        return ops.avg_pool(path, _AVG[kind], layer.pool_size, layer.strides, layer.padding, count_include_pad=False)
    if kind in _GLOBAL:
        return ops.adaptive_pool(path, *_GLOBAL[kind], 1)
    size = getattr(layer, "output_size", None)
    if kind.__name__.startswith("Adaptive") and size is not None:
        return ops.adaptive_pool(path, "avg" if "Average" in kind.__name__ else "max", len(size), size)
    return None


def _image(path: str, layer: Any) -> Layer | None:
    if isinstance(layer, _UPSAMPLES):
        axes = int(type(layer).__name__[-2])
        return ops.upsample(
            path, axes, None, layouts.per_axis(layer.size, axes), getattr(layer, "interpolation", "nearest")
        )
    if isinstance(layer, _PADS):
        given: Any = layer.padding if isinstance(layer.padding[0], tuple | list) else (layer.padding,)
        return ops.pad(path, [(one, two) for one, two in given])
    return None
