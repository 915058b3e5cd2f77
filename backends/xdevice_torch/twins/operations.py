"""Reads the settings of PyTorch's layers without parameters, such as activations and pools. The other adapters express
the settings of their layers in PyTorch's terms.

In PyTorch, a pool whose stride is None steps by the size of its kernel, and a softmax without a `dim` chooses the axis
by the number of axes of its input.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice_torch.private import private

from .layers import BATCH_NORMS, INSTANCE_NORMS, is_conv1d, rms_eps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.twins.contract.layouts import Layer


def _is_rewritten(module: Any) -> bool:
    return ops.is_rewritten(module, "torch", "forward") and not is_conv1d(module)


def _max_pool(axes: int, path: str, pool: Any) -> Layer:
    window = (pool.kernel_size, pool.stride, pool.padding)
    return ops.max_pool(path, axes, *window, pool.ceil_mode, pool.dilation)


def _avg_pool(axes: int, path: str, pool: Any) -> Layer:
    window = (pool.kernel_size, pool.stride, pool.padding)
    divisor = getattr(pool, "divisor_override", None)
    return ops.avg_pool(path, axes, *window, pool.ceil_mode, pool.count_include_pad, divisor)


def _adaptive_pool(kind: str, axes: int, path: str, pool: Any) -> Layer:
    return ops.adaptive_pool(path, kind, axes, pool.output_size)


def _upsample(path: str, layer: Any) -> Layer:
    return ops.upsample(path, None, layer.size, layer.scale_factor, layer.mode, layer.align_corners)


def _pad(mode: str, axes: int, path: str, layer: Any) -> Layer:
    return ops.pad(path, ops.last_axis_first(layer.padding), mode, getattr(layer, "value", None))


def _dropout(axes: str, path: str, layer: Any) -> Layer:
    return ops.dropout(path, layer.p, axes=axes)


def _layer_norm(path: str, norm: Any) -> Layer:
    return ops.plain(path, "layer_norm", eps=norm.eps, axes=len(norm.normalized_shape))


def _rms_norm(path: str, norm: Any) -> Layer:
    return ops.plain(path, "rms_norm", eps=rms_eps(norm), axes=len(norm.normalized_shape))


def _children(module: Any) -> list[tuple[str, Any]]:
    """The children of a module by their names, also one that comes twice, which `named_children` leaves out."""
    inside = module.named_modules(remove_duplicate=False)
    return [(name, child) for name, child in inside if name and "." not in name]


_hooks = private.field("torch.nn.Module._forward_hooks")
_pre_hooks = private.field("torch.nn.Module._forward_pre_hooks")
_TABLE: Final = ops.Table(
    "torch",
    {
        **dict.fromkeys((nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict)),
        **ops.activations({
            nn.ReLU: {}, nn.ReLU6: {}, nn.Sigmoid: {}, nn.Tanh: {}, nn.SiLU: {}, nn.Mish: {}, nn.SELU: {},
            nn.Hardswish: {}, nn.Hardsigmoid: {}, nn.Softsign: {}, nn.Tanhshrink: {}, nn.LogSigmoid: {},
            nn.LeakyReLU: {"slope": "negative_slope"}, nn.GELU: {"approximate": "approximate"},
            nn.ELU: {"alpha": "alpha"}, nn.CELU: {"alpha": "alpha"},
            nn.Softplus: {"beta": "beta", "threshold": "threshold"}, nn.Hardtanh: {"min": "min_val", "max": "max_val"},
            nn.Hardshrink: {"threshold": "lambd"}, nn.Softshrink: {"threshold": "lambd"},
            nn.Softmax: {"axis": "dim"}, nn.LogSoftmax: {"axis": "dim"}, nn.GLU: {"axis": "dim"},
        }),
        nn.Softmax2d: lambda path, _: ops.activation(path, "softmax", axis=-3),
        **ops.over_axes(nn, "MaxPool{}d", _max_pool),
        **ops.over_axes(nn, "AvgPool{}d", _avg_pool),
        **ops.over_axes(nn, "AdaptiveAvgPool{}d", partial(_adaptive_pool, "avg")),
        **ops.over_axes(nn, "AdaptiveMaxPool{}d", partial(_adaptive_pool, "max")),
        nn.Upsample: _upsample,
        **ops.over_axes(nn, "ConstantPad{}d", partial(_pad, "constant")),
        **ops.over_axes(nn, "ReflectionPad{}d", partial(_pad, "reflect")),
        **ops.over_axes(nn, "ReplicationPad{}d", partial(_pad, "replicate")),
        **ops.over_axes(nn, "CircularPad{}d", partial(_pad, "circular")),
        nn.PixelShuffle: ops.row("pixel_shuffle", factor="upscale_factor"),
        nn.PixelUnshuffle: ops.row("pixel_unshuffle", factor="downscale_factor"),
        nn.ChannelShuffle: ops.row("channel_shuffle", groups="groups"),
        nn.LocalResponseNorm: ops.row("local_response_norm", size="size", alpha="alpha", beta="beta", k="k"),
        **dict.fromkeys(INSTANCE_NORMS, ops.row("instance_norm", eps="eps")),
        **dict.fromkeys(BATCH_NORMS, ops.row("batch_norm", eps="eps")),
        nn.LayerNorm: _layer_norm,
        nn.RMSNorm: _rms_norm,
        nn.GroupNorm: ops.row("group_norm", eps="eps", num_groups="num_groups"),
        nn.Dropout: partial(_dropout, "each number"),
        **dict.fromkeys((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), partial(_dropout, "whole channels")),
        nn.AlphaDropout: ops.row("alpha_dropout", p="p"),
        nn.Flatten: lambda path, x: ops.flatten(path, x.start_dim, x.end_dim),
        nn.Unflatten: lambda path, x: ops.plain(path, "unflatten", axis=x.dim, size=tuple(x.unflattened_size)),
    },
    _is_rewritten,
    lambda module: module.extra_repr(),
)  # fmt: skip
_TREE: Final = ops.Tree(
    children=_children,
    parameters=lambda module: module.parameters(recurse=False),
    lines=(nn.Sequential,),
    blocks=(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    hooks=lambda module: (*_pre_hooks(module).values(), *_hooks(module).values()),
    observers=("torch", "xdevice_torch", "transformers"),  # hooks of transformers only keep the output of a layer
    tensors=lambda module: [
        (name, x) for name, x in (*module.named_buffers(recurse=False), *vars(module).items()) if isinstance(x, Tensor)
    ],
)


class TorchOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        saved = (variable for _, variable in self.variables(model))
        return ops.read(model.named_modules(), model, self.layers(model), _TABLE, _TREE, saved)
