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

from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice_paddle.private import private

from .layers import INSTANCE_NORMS, forward_pre_hooks, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xdevice.twins.contract.layouts import Layer


_sub_layers = private.field("paddle.nn.Layer._sub_layers")
_forward_post_hooks = private.field("paddle.nn.Layer._forward_post_hooks")


def _told(*names: str, **renamed: str) -> dict[str, Callable[[Any], Any]]:
    """Returns how settings are read that `extra_repr` states, by their common names."""
    return {name: partial(setting, name=own) for name, own in (*zip(names, names, strict=True), *renamed.items())}


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
    return ops.adaptive_pool(path, kind, axes, setting(pool, "output_size"))


def _upsample(path: str, layer: Any) -> Layer:
    corners = "as align_mode=1" if layer.align_mode and not layer.align_corners else layer.align_corners
    return ops.upsample(path, None, layer.size, layer.scale_factor, layer.mode.lower(), corners)


def _upsample_image(mode: str, path: str, layer: Any) -> Layer:
    return ops.upsample(path, 2, layer.size, layer.scale_factor, mode, align_corners=mode != "nearest")


def _pad(path: str, layer: Any) -> Layer:
    return ops.pad(
        path, ops.last_axis_first([int(size) for size in layer.padding]), setting(layer, "mode"), layer.value
    )


def _gelu(path: str, layer: Any) -> Layer:
    return ops.activation(path, "gelu", approximate="tanh" if setting(layer, "approximate") else "none")


def _dropout(path: str, layer: Any) -> Layer:
    axes = "each number" if layer.axis is None else layer.axis
    return ops.dropout(path, layer.p, layer.mode, tuple(axes) if isinstance(axes, list | tuple) else axes)


def _layer_norm(path: str, layer: Any) -> Layer:
    return ops.plain(path, "layer_norm", eps=setting(layer, "epsilon"), axes=len(setting(layer, "normalized_shape")))


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
            nn.LeakyReLU: _told(slope="negative_slope"), nn.ELU: _told("alpha"), nn.CELU: _told("alpha"),
            nn.Softplus: _told("beta", "threshold"),
            nn.SELU: _told("alpha", "scale"), nn.Hardtanh: _told("min", "max"),
            nn.Hardshrink: _told("threshold"), nn.Softshrink: _told("threshold"),
            nn.Softmax: _told("axis"), nn.LogSoftmax: _told("axis"), nn.GLU: _told("axis"),
        }),
        nn.GELU: _gelu,
        nn.Softmax2D: lambda path, _: ops.activation(path, "softmax", axis=-3),
        **ops.over_axes(nn, "MaxPool{}D", _max_pool),
        **ops.over_axes(nn, "AvgPool{}D", _avg_pool),
        **ops.over_axes(nn, "AdaptiveAvgPool{}D", partial(_adaptive_pool, "avg")),
        **ops.over_axes(nn, "AdaptiveMaxPool{}D", partial(_adaptive_pool, "max")),
        nn.Upsample: _upsample,
        nn.UpsamplingNearest2D: partial(_upsample_image, "nearest"),
        nn.UpsamplingBilinear2D: partial(_upsample_image, "bilinear"),
        **dict.fromkeys((nn.Pad1D, nn.Pad2D, nn.Pad3D), _pad),
        nn.PixelShuffle: ops.row("pixel_shuffle", **_told(factor="upscale_factor")),
        nn.PixelUnshuffle: ops.row("pixel_unshuffle", **_told(factor="downscale_factor")),
        nn.ChannelShuffle: ops.row("channel_shuffle", **_told("groups")),
        nn.LocalResponseNorm: ops.row("local_response_norm", size="size", alpha="alpha", beta="beta", k="k"),
        **dict.fromkeys(INSTANCE_NORMS, ops.row("instance_norm", **_told(eps="epsilon"))),
        nn.LayerNorm: _layer_norm,
        nn.GroupNorm: ops.row("group_norm", **_told("num_groups", eps="epsilon")),
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
    children=lambda layer: [(name, child) for name, child in _sub_layers(layer).items() if child is not None],
    parameters=lambda layer: layer.parameters(include_sublayers=False),
    lines=(nn.Sequential,),
    blocks=(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    follow=_activation_behind,
    hooks=lambda layer: (*forward_pre_hooks(layer).values(), *_forward_post_hooks(layer).values()),
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
