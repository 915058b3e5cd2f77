"""The settings of Paddle's layers without parameters.

What must be kept:
- an activation in a `paddle.nn.BatchNorm` works on what that layer gives, and is a layer of its own here;
- a dropout's `mode` may be "downscale_in_infer": it multiplies by 1 - p in evaluation;
- a pool's `exclusive` is the opposite of `count_include_pad`, and its stride of None is its kernel;
- `approximate` of a GELU is a bool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from paddle import Tensor, nn
from paddle.nn.layer import norm

from xdevice.contract import operations as ops
from xdevice.contract.layers import Operations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xdevice.contract.layouts import Layer

_PLAIN: Final = (
    nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.Silu, nn.Swish, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Softsign, nn.Tanhshrink, nn.LogSigmoid,
)  # fmt: skip
"""Activation functions that take nothing, under the name of their class."""
_BLOCKS: Final = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""What they do between their layers with parameters is said of these."""
_NOTHING: Final = (nn.Identity, nn.Sequential, nn.LayerList, nn.LayerDict)
_MAX: Final = {nn.MaxPool1D: 1, nn.MaxPool2D: 2, nn.MaxPool3D: 3}
_AVG: Final = {nn.AvgPool1D: 1, nn.AvgPool2D: 2, nn.AvgPool3D: 3}
_ADAPTIVE_AVG: Final = {nn.AdaptiveAvgPool1D: 1, nn.AdaptiveAvgPool2D: 2, nn.AdaptiveAvgPool3D: 3}
_ADAPTIVE_MAX: Final = {nn.AdaptiveMaxPool1D: 1, nn.AdaptiveMaxPool2D: 2, nn.AdaptiveMaxPool3D: 3}


def _children(layer: Any) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in layer._sub_layers.items() if child is not None]


def _is_line(layer: Any) -> bool:
    return isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward


def _operations(model: Any, backend: Operations, layers: Mapping[str, Layer]) -> Iterator[Layer]:
    told: set[str] = set()
    saved = {id(variable) for _, variable in backend.variables(model)}
    for path, layer in model.named_sublayers(include_self=True):
        hooks = (*layer._forward_pre_hooks.values(), *layer._forward_post_hooks.values())
        yield from ops.hooked(path, layer, hooks, "paddle", "xdevice_paddle")
        if path not in layers:  # layers that are known keep only counters and states of dropouts there
            held = [*layer.named_buffers(include_sublayers=False), *vars(layer).items()]
            yield from (ops.stateless(path, name) for name, x in held if isinstance(x, Tensor) and id(x) not in saved)
        if path in layers:
            yield layers[path]
            if ops.is_rewritten(layer, "paddle", "forward"):
                yield ops.own_code(path, layer)
            if layers[path].settings.get("activation") is not None:
                yield ops.activation(f"{path}.activation", str(layers[path].settings["activation"]))
        elif isinstance(layer, _BLOCKS):
            told.add(path)
        elif not (_holds(layer) or ops.is_inside(path, layers) or path.rpartition(".")[0] in told):
            yield _operation(path, layer)


def _holds(layer: Any) -> bool:
    """Whether a layer has children or parameters, or does nothing to tell, so that it is no layer without
    parameters."""
    return bool(layer._sub_layers) or any(own is not None for own in layer._parameters.values()) or _is_usual(layer)


def _is_usual(layer: Any) -> bool:
    """Whether a layer does what most models do by a function, such as flattening the rows of a batch."""
    return isinstance(layer, _NOTHING) or (
        isinstance(layer, nn.Flatten) and (layer.start_axis, layer.stop_axis) == (1, -1)
    )


def _operation(path: str, layer: Any) -> Layer:
    if ops.is_rewritten(layer, "paddle", "forward"):
        return ops.other(path, layer)
    found = _activation(path, layer) or _pool(path, layer) or _image(path, layer) or _norm(path, layer)
    if found is not None:
        return found
    if isinstance(layer, nn.Dropout):
        axes = "each number" if layer.axis is None else layer.axis
        return ops.dropout(path, layer.p, layer.mode, tuple(axes) if isinstance(axes, list | tuple) else axes)
    if isinstance(layer, nn.Dropout2D | nn.Dropout3D):
        return ops.dropout(path, layer.p, axes="whole channels")
    if isinstance(layer, nn.AlphaDropout):
        return ops.plain(path, "alpha_dropout", p=layer.p)
    if isinstance(layer, nn.Flatten):
        return ops.plain(path, "flatten", first=layer.start_axis, last=layer.stop_axis)
    if isinstance(layer, nn.Unflatten):
        return ops.plain(path, "unflatten", axis=layer.axis, size=tuple(layer.shape))
    is_known = type(layer).__module__.startswith("paddle.")  # the repr of a user's class may raise, or print addresses
    return ops.other(path, layer, layer.extra_repr() if is_known else "")


def _activation(path: str, layer: Any) -> Layer | None:
    name = type(layer).__name__.lower()
    if type(layer) in _PLAIN:
        return ops.activation(path, name)
    if isinstance(layer, nn.LeakyReLU):
        return ops.activation(path, name, slope=layer._negative_slope)
    if isinstance(layer, nn.GELU):
        return ops.activation(path, name, approximate="tanh" if layer._approximate else "none")
    if isinstance(layer, nn.ELU | nn.CELU):
        return ops.activation(path, name, alpha=layer._alpha)
    if isinstance(layer, nn.Softplus):
        return ops.activation(path, name, beta=layer._beta, threshold=layer._threshold)
    if isinstance(layer, nn.SELU):
        return ops.activation(path, name, alpha=layer._alpha, scale=layer._scale)
    if isinstance(layer, nn.Hardtanh):
        return ops.activation(path, name, min=layer._min, max=layer._max)
    if isinstance(layer, nn.Hardshrink | nn.Softshrink):
        return ops.activation(path, name, threshold=layer._threshold)
    if isinstance(layer, nn.Softmax | nn.LogSoftmax | nn.GLU):
        return ops.activation(path, name, axis=layer._axis)
    return ops.activation(path, name, axis=-3) if isinstance(layer, nn.Softmax2D) else None


def _pool(path: str, layer: Any) -> Layer | None:
    kind = type(layer)
    kernel = getattr(layer, "ksize", getattr(layer, "kernel_size", None))
    size = getattr(layer, "_output_size", getattr(layer, "output_size", None))
    ceil = ops.OUTSIDE_TOO if getattr(layer, "ceil_mode", False) else False
    if kind in _MAX:
        return ops.max_pool(path, _MAX[kind], kernel, layer.stride, layer.padding, ceil)
    if kind in _AVG:
        divisor = getattr(layer, "divisor", None)
        return ops.avg_pool(path, _AVG[kind], kernel, layer.stride, layer.padding, ceil, not layer.exclusive, divisor)
    if kind in _ADAPTIVE_AVG:
        return ops.adaptive_pool(path, "avg", _ADAPTIVE_AVG[kind], size)
    return ops.adaptive_pool(path, "max", _ADAPTIVE_MAX[kind], size) if kind in _ADAPTIVE_MAX else None


def _image(path: str, layer: Any) -> Layer | None:
    if isinstance(layer, nn.Upsample):
        corners = "as align_mode=1" if layer.align_mode and not layer.align_corners else layer.align_corners
        return ops.upsample(path, None, layer.size, layer.scale_factor, layer.mode.lower(), corners)
    if isinstance(layer, nn.UpsamplingNearest2D):
        return ops.upsample(path, 2, layer.size, layer.scale_factor, "nearest")
    if isinstance(layer, nn.UpsamplingBilinear2D):
        return ops.upsample(path, 2, layer.size, layer.scale_factor, "bilinear", align_corners=True)
    if isinstance(layer, nn.Pad1D | nn.Pad2D | nn.Pad3D):
        sides = ops.last_axis_first([int(size) for size in layer.padding])
        return ops.pad(path, sides, layer._mode, layer.value)
    if isinstance(layer, nn.PixelShuffle):
        return ops.plain(path, "pixel_shuffle", factor=layer._upscale_factor)
    if isinstance(layer, nn.PixelUnshuffle):
        return ops.plain(path, "pixel_unshuffle", factor=layer._downscale_factor)
    return ops.plain(path, "channel_shuffle", groups=layer._groups) if isinstance(layer, nn.ChannelShuffle) else None


def _norm(path: str, layer: Any) -> Layer | None:
    if isinstance(layer, nn.LocalResponseNorm):
        settings = {"size": layer.size, "alpha": layer.alpha, "beta": layer.beta, "k": float(layer.k)}
        return ops.plain(path, "local_response_norm", **settings)
    if isinstance(layer, norm._InstanceNormBase):
        return ops.plain(path, "instance_norm", eps=layer._epsilon)
    if isinstance(layer, nn.LayerNorm):
        return ops.plain(path, "layer_norm", eps=layer._epsilon, axes=len(layer._normalized_shape))
    if isinstance(layer, nn.GroupNorm):
        return ops.plain(path, "group_norm", eps=layer._epsilon, num_groups=layer._num_groups)
    return None


class PaddleOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        layers = {layer.path: layer for layer in self.layers(model)}
        return ops.in_lines(_operations(model, self, layers), model, layers, _children, _is_line)
