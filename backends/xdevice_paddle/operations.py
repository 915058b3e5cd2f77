"""Reads the settings of Paddle's layers without parameters, such as activations and pools, in PyTorch's terms.

Facts about Paddle that the code depends on:
- A `paddle.nn.BatchNorm` may contain an activation, which gets an entry of its own, as in frameworks where it is a
  layer.
- The `mode` of a dropout may be "downscale_in_infer". Then the dropout multiplies by 1 - p in evaluation.
- The `exclusive` of a pool is the opposite of PyTorch's `count_include_pad`. A stride of None means the size of the
  window.
- The `approximate` of a GELU is a bool; in PyTorch it is "tanh" or "none".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from paddle import Tensor, nn
from paddle.nn.layer import norm

from xdevice.contract import operations as ops
from xdevice.contract.layers import Operations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xdevice.contract.layouts import Layer


def _ceil_mode(pool: Any) -> object:
    return ops.OUTSIDE_TOO if getattr(pool, "ceil_mode", False) else False


def _kernel(pool: Any) -> Any:
    return getattr(pool, "ksize", getattr(pool, "kernel_size", None))


def _max_pool(axes: int, path: str, pool: Any) -> Layer:
    return ops.max_pool(path, axes, _kernel(pool), pool.stride, pool.padding, _ceil_mode(pool))


def _avg_pool(axes: int, path: str, pool: Any) -> Layer:
    window = (_kernel(pool), pool.stride, pool.padding)
    return ops.avg_pool(path, axes, *window, _ceil_mode(pool), not pool.exclusive, getattr(pool, "divisor", None))


def _adaptive_pool(kind: str, axes: int, path: str, pool: Any) -> Layer:
    return ops.adaptive_pool(path, kind, axes, getattr(pool, "_output_size", getattr(pool, "output_size", None)))


def _upsample(path: str, layer: Any) -> Layer:
    corners = "as align_mode=1" if layer.align_mode and not layer.align_corners else layer.align_corners
    return ops.upsample(path, None, layer.size, layer.scale_factor, layer.mode.lower(), corners)


def _upsample_image(mode: str, path: str, layer: Any) -> Layer:
    return ops.upsample(path, 2, layer.size, layer.scale_factor, mode, align_corners=mode != "nearest")


def _pad(path: str, layer: Any) -> Layer:
    return ops.pad(path, ops.last_axis_first([int(size) for size in layer.padding]), layer._mode, layer.value)


def _dropout(path: str, layer: Any) -> Layer:
    axes = "each number" if layer.axis is None else layer.axis
    return ops.dropout(path, layer.p, layer.mode, tuple(axes) if isinstance(axes, list | tuple) else axes)


def _layer_norm(path: str, layer: Any) -> Layer:
    return ops.plain(path, "layer_norm", eps=layer._epsilon, axes=len(layer._normalized_shape))


def _activation_behind(layer: Layer) -> Iterator[Layer]:
    function = layer.settings.get("activation")
    if function is not None:
        yield ops.activation(f"{layer.path}.activation", str(function))


_TABLE: Final = ops.Table(
    "paddle",
    {
        **dict.fromkeys((nn.Identity, nn.Sequential, nn.LayerList, nn.LayerDict)),
        **ops.activations({
            nn.ReLU: {}, nn.ReLU6: {}, nn.Sigmoid: {}, nn.Tanh: {}, nn.Silu: {}, nn.Swish: {}, nn.Mish: {},
            nn.Hardswish: {}, nn.Hardsigmoid: {}, nn.Softsign: {}, nn.Tanhshrink: {}, nn.LogSigmoid: {},
            nn.LeakyReLU: {"slope": "_negative_slope"}, nn.ELU: {"alpha": "_alpha"}, nn.CELU: {"alpha": "_alpha"},
            nn.Softplus: {"beta": "_beta", "threshold": "_threshold"},
            nn.SELU: {"alpha": "_alpha", "scale": "_scale"}, nn.Hardtanh: {"min": "_min", "max": "_max"},
            nn.Hardshrink: {"threshold": "_threshold"}, nn.Softshrink: {"threshold": "_threshold"},
            nn.Softmax: {"axis": "_axis"}, nn.LogSoftmax: {"axis": "_axis"}, nn.GLU: {"axis": "_axis"},
        }),
        nn.GELU: lambda path, x: ops.activation(path, "gelu", approximate="tanh" if x._approximate else "none"),
        nn.Softmax2D: lambda path, _: ops.activation(path, "softmax", axis=-3),
        **ops.over_axes(nn, "MaxPool{}D", _max_pool),
        **ops.over_axes(nn, "AvgPool{}D", _avg_pool),
        **ops.over_axes(nn, "AdaptiveAvgPool{}D", partial(_adaptive_pool, "avg")),
        **ops.over_axes(nn, "AdaptiveMaxPool{}D", partial(_adaptive_pool, "max")),
        nn.Upsample: _upsample,
        nn.UpsamplingNearest2D: partial(_upsample_image, "nearest"),
        nn.UpsamplingBilinear2D: partial(_upsample_image, "bilinear"),
        **dict.fromkeys((nn.Pad1D, nn.Pad2D, nn.Pad3D), _pad),
        nn.PixelShuffle: ops.row("pixel_shuffle", factor="_upscale_factor"),
        nn.PixelUnshuffle: ops.row("pixel_unshuffle", factor="_downscale_factor"),
        nn.ChannelShuffle: ops.row("channel_shuffle", groups="_groups"),
        nn.LocalResponseNorm: ops.row("local_response_norm", size="size", alpha="alpha", beta="beta", k="k"),
        norm._InstanceNormBase: ops.row("instance_norm", eps="_epsilon"),
        nn.LayerNorm: _layer_norm,
        nn.GroupNorm: ops.row("group_norm", eps="_epsilon", num_groups="_num_groups"),
        nn.Dropout: _dropout,
        **dict.fromkeys(
            (nn.Dropout2D, nn.Dropout3D), lambda path, layer: ops.dropout(path, layer.p, axes="whole channels")
        ),
        nn.AlphaDropout: ops.row("alpha_dropout", p="p"),
        nn.Flatten: lambda path, x: ops.flatten(path, x.start_axis, x.stop_axis),
        nn.Unflatten: lambda path, x: ops.plain(path, "unflatten", axis=x.axis, size=tuple(x.shape)),
    },
    lambda layer: ops.is_rewritten(layer, "paddle", "forward"),
    lambda layer: layer.extra_repr(),
)  # fmt: skip
_TREE: Final = ops.Tree(
    children=lambda layer: [(name, child) for name, child in layer._sub_layers.items() if child is not None],
    parameters=lambda layer: layer._parameters.values(),
    lines=(nn.Sequential,),
    blocks=(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    follow=_activation_behind,
    hooks=lambda layer: (*layer._forward_pre_hooks.values(), *layer._forward_post_hooks.values()),
    observers=("paddle", "xdevice_paddle"),
    tensors=lambda layer: [
        (name, x)
        for name, x in (*layer.named_buffers(include_sublayers=False), *vars(layer).items())
        if isinstance(x, Tensor)
    ],
)


class PaddleOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        saved = (variable for _, variable in self.variables(model))
        modules = model.named_sublayers(include_self=True)
        return ops.read(modules, model, self.layers(model), _TABLE, _TREE, saved)
