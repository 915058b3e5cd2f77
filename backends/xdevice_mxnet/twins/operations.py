"""Reads the settings of Gluon's layers without parameters, such as activations and pools, in PyTorch's terms.

Facts about Gluon that the code depends on:
- The activation of a Dense or a convolution is a child of that layer, and is listed after it.
- A global pool has an output of size 1, whatever its kernel is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mxnet.gluon import Parameter, nn
from mxnet.gluon.contrib import nn as extra

from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice_mxnet.private import private

from .layers import POOLS, blocks, children, function, options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.twins.contract.layouts import Layer


_rate = private.field("mxnet.gluon.nn.Dropout._rate")
_axes = private.field("mxnet.gluon.nn.Dropout._axes")
_alpha = private.field("mxnet.gluon.nn.LeakyReLU._alpha")
_beta = private.field("mxnet.gluon.nn.Swish._beta")
_padding = private.field("mxnet.gluon.nn.ReflectionPad2D._padding")
_factor = private.field("mxnet.gluon.contrib.nn.PixelShuffle1D._factor")
_factors = private.field("mxnet.gluon.contrib.nn.PixelShuffle2D._factors")


def _dropout(path: str, block: Any) -> Layer:
    return ops.dropout(path, _rate(block), axes=tuple(_axes(block)) or "each number")


def _pool(path: str, block: Any) -> Layer:
    kwargs = options(block)
    axes, kind = len(kwargs["kernel"]), kwargs["pool_type"]
    if kwargs["global_pool"]:
        return ops.adaptive_pool(path, kind, axes, 1)
    ceil = ops.OUTSIDE_TOO if kwargs["pooling_convention"] == "full" else False
    window = (axes, kwargs["kernel"], kwargs["stride"], kwargs["pad"], ceil)
    if kind == "max":
        return ops.max_pool(path, *window)
    return ops.avg_pool(path, *window, count_include_pad=kwargs.get("count_include_pad", True))


def _pad(path: str, block: Any) -> Layer:
    width = _padding(block)  # (batch, batch, channels, channels, top, bottom, left, right), or one number for all
    sides = (width,) * 4 if isinstance(width, int) else tuple(width)[4:]
    return ops.pad(path, list(zip(sides[::2], sides[1::2], strict=True)), "reflect")


def _pixel_shuffle(path: str, block: Any) -> Layer:
    factors = set(_factors(block))
    return ops.plain(path, "pixel_shuffle", factor=factors.pop() if len(factors) == 1 else _factors(block))


_TABLE: Final = ops.Table(
    "mxnet",
    {
        **dict.fromkeys((nn.Sequential, nn.HybridSequential, nn.Flatten, extra.Identity)),
        nn.Activation: lambda path, block: ops.activation(path, function(block)),
        **ops.activations({
            nn.LeakyReLU: {"slope": _alpha}, nn.ELU: {"alpha": _alpha}, nn.SELU: {}, nn.GELU: {},
            nn.Swish: {"beta": _beta},
        }),
        nn.Dropout: _dropout,
        **dict.fromkeys(POOLS, _pool),
        nn.ReflectionPad2D: _pad,
        extra.PixelShuffle1D: ops.row("pixel_shuffle", factor=_factor),
        **dict.fromkeys((extra.PixelShuffle2D, extra.PixelShuffle3D), _pixel_shuffle),
    },
    lambda block: ops.is_rewritten(block, "mxnet", "forward", "hybrid_forward"),
)  # fmt: skip
_TREE: Final = ops.Tree(
    children=lambda block: list(children(block).items()),
    parameters=lambda block: [value for value in vars(block).values() if isinstance(value, Parameter)],
    lines=(nn.Sequential, nn.HybridSequential),
    is_told_inside=True,
)


class MxnetOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        return ops.read(blocks(model), model, self.layers(model), _TABLE, _TREE)
