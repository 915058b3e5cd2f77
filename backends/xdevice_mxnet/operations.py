"""The settings of Gluon's layers without parameters.

What must be kept:
- an activation in a Dense or convolution is a child of it, and works on what that layer gives;
- a global pool is one whose output is of size 1, whatever its kernel is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mxnet.gluon import nn
from mxnet.gluon.contrib import nn as extra
from mxnet.gluon.nn import conv_layers

from xdevice.contract import operations as ops
from xdevice.contract.layers import Operations

from .layers import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xdevice.contract.layouts import Layer

_NOTHING: Final = (nn.Sequential, nn.HybridSequential, nn.Flatten, extra.Identity)


def _children(block: Any) -> list[tuple[str, Any]]:
    return list(block._children.items())


def _is_line(block: Any) -> bool:
    own = (nn.Sequential.forward, nn.HybridSequential.forward, nn.HybridSequential.hybrid_forward)
    return isinstance(block, nn.Sequential | nn.HybridSequential) and all(
        getattr(type(block), name) in own for name in ("forward", "hybrid_forward") if hasattr(type(block), name)
    )


def _operations(model: Any, layers: Mapping[str, Layer]) -> Iterator[Layer]:
    for path, block in blocks(model):
        if path in layers:
            yield layers[path]
            if ops.is_rewritten(block, "mxnet", "forward", "hybrid_forward"):
                yield ops.own_code(path, block)
        elif not (block._children or block._reg_params or isinstance(block, _NOTHING)):
            yield _operation(path, block)


def _operation(path: str, block: Any) -> Layer:
    if ops.is_rewritten(block, "mxnet", "forward", "hybrid_forward"):
        return ops.other(path, block)
    return _activation(path, block) or _window(path, block) or ops.other(path, block)


def _activation(path: str, block: Any) -> Layer | None:
    if isinstance(block, nn.Activation):
        return ops.activation(path, block._act_type)
    if isinstance(block, nn.LeakyReLU):
        return ops.activation(path, "leaky_relu", slope=block._alpha)
    if isinstance(block, nn.ELU):
        return ops.activation(path, "elu", alpha=block._alpha)
    if isinstance(block, nn.SELU):
        return ops.activation(path, "selu")
    if isinstance(block, nn.GELU):
        return ops.activation(path, "gelu")
    return ops.activation(path, "silu", beta=block._beta) if isinstance(block, nn.Swish) else None


def _window(path: str, block: Any) -> Layer | None:
    if isinstance(block, nn.Dropout):
        return ops.dropout(path, block._rate, axes=tuple(block._axes) or "each number")
    if isinstance(block, conv_layers._Pooling):
        return _pool(path, block._kwargs)
    if isinstance(block, nn.ReflectionPad2D):
        width = block._padding  # (batch, batch, channels, channels, top, bottom, left, right), or one number for all
        sides = (width,) * 4 if isinstance(width, int) else tuple(width)[4:]
        return ops.pad(path, list(zip(sides[::2], sides[1::2], strict=True)), "reflect")
    if isinstance(block, extra.PixelShuffle1D | extra.PixelShuffle2D | extra.PixelShuffle3D):
        factor: Any = block._factor if isinstance(block, extra.PixelShuffle1D) else block._factors
        alike = isinstance(factor, tuple) and len(set(factor)) == 1
        return ops.plain(path, "pixel_shuffle", factor=factor[0] if alike else factor)
    return None


def _pool(path: str, kwargs: dict[str, Any]) -> Layer:
    axes, kind = len(kwargs["kernel"]), kwargs["pool_type"]
    if kwargs["global_pool"]:
        return ops.adaptive_pool(path, kind, axes, 1)
    ceil = ops.OUTSIDE_TOO if kwargs["pooling_convention"] == "full" else False
    window = (axes, kwargs["kernel"], kwargs["stride"], kwargs["pad"], ceil)
    if kind == "max":
        return ops.max_pool(path, *window)
    return ops.avg_pool(path, *window, count_include_pad=kwargs.get("count_include_pad", True))


class MxnetOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        layers = {layer.path: layer for layer in self.layers(model)}
        return ops.in_lines(_operations(model, layers), model, layers, _children, _is_line)
