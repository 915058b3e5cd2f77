"""Paddle's layers and layouts.

What must be kept:
- a LayerNorm over several axes has a flat weight and bias;
- a Linear's weight is transposed; a convolution's is PyTorch's, whatever the data format;
- an LSTM or GRU holds each parameter a second time, in its cells: those names are aliases;
- `momentum` is the weight of the old value, PyTorch's that of the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from paddle import nn
from paddle.nn.layer import conv, norm

from xdevice.contract import layouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.contract import Backend
    from xdevice.contract.layouts import Layer, Part

_NAMES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "batch_norm": {"running_mean": "_mean", "running_var": "_variance", layouts.COUNTER: None},
    "prelu": {"weight": "_weight"},
}
_RULES: Final = {
    "linear": {"weight": layouts.TRANSPOSED},
    "layer_norm": {"weight": layouts.FLAT, "bias": layouts.FLAT},
}
_TRANSPOSED: Final = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)


def parts(kind: str, settings: Mapping[str, object]) -> tuple[Part, ...]:
    return layouts.parts(kind, settings, _NAMES, _RULES)


def layers(model: Any, backend: Backend) -> Iterator[Layer]:
    if not isinstance(model, nn.Layer):
        raise backend.unsupported(f"layers in a {type(model).__qualname__}", "give the model itself")
    names = dict(backend.variables(model))
    for path, layer in model.named_sublayers(include_self=True):
        found = _kind(layer)
        if found is None:
            continue
        kind, settings = found
        own = parts(kind, settings)
        if kind == "layer_norm":
            own = tuple(part._replace(rule=layouts.flat(layer._normalized_shape)) for part in own)
        bound = layouts.bound(path, kind, own, names, settings)
        if bound is not None:
            yield bound


def _kind(layer: Any) -> tuple[str, Mapping[str, object]] | None:
    if isinstance(layer, nn.Linear):
        return "linear", {"activation": None}
    if isinstance(layer, conv._ConvNd):
        return ("conv_transpose" if isinstance(layer, _TRANSPOSED) else "conv"), _of_conv(layer)
    if isinstance(layer, norm._BatchNormBase | nn.BatchNorm):
        settings = {"eps": layer._epsilon, "momentum": 1 - layer._momentum, "activation": getattr(layer, "_act", None)}
        return "batch_norm", settings
    if isinstance(layer, nn.Embedding):
        return "embedding", {"padding_idx": _padding_idx(layer), "max_norm": getattr(layer, "_max_norm", None)}
    if isinstance(layer, nn.LayerNorm):
        return "layer_norm", {"eps": layer._epsilon}
    if isinstance(layer, nn.PReLU):
        return "prelu", {}
    if isinstance(layer, nn.LSTM | nn.GRU) and not getattr(layer, "proj_size", 0):
        kind = "lstm" if isinstance(layer, nn.LSTM) else "gru"
        shaping = {"layers": layer.num_layers, "bidirectional": layer.num_directions == 2}
        return kind, shaping | {"batch_first": not layer.time_major}
    return None


def _padding_idx(layer: Any) -> int | None:
    # before Paddle 3.3, which came with max_norm, -1 was for none
    is_none = layer._padding_idx is None or (layer._padding_idx == -1 and not hasattr(layer, "_max_norm"))
    return None if is_none else layer._padding_idx % layer.weight.shape[0]


def _of_conv(layer: Any) -> dict[str, object]:
    axes = len(layer._kernel_size)
    settings: dict[str, object] = {
        "stride": layouts.per_axis(layer._stride, axes),
        "padding": _padding(layer, axes),
        "dilation": layouts.per_axis(layer._dilation, axes),
        "groups": layer._groups,
        "padding_mode": layer._padding_mode,
    }
    if isinstance(layer, _TRANSPOSED):
        settings["output_padding"] = layouts.per_axis(layer.output_padding, axes)
    return settings


def _padding(layer: Any, axes: int) -> object:
    padding = layer._padding.lower() if isinstance(layer._padding, str) else layer._padding
    if padding == "valid":
        return (0,) * axes
    if padding == "same":
        return layouts.same_padding(layer._kernel_size, layer._stride, layer._dilation)
    return layouts.per_axis(padding, axes)
