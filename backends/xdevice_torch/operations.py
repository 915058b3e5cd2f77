"""The settings of PyTorch's layers without parameters, which are the common ones.

What must be kept: a pool's stride of None is its kernel; a softmax without an axis takes one by the shape of its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.nn.modules import batchnorm, dropout, instancenorm, padding, pooling

from xdevice.contract import operations as ops
from xdevice.contract.layers import Operations

from .layers import is_conv1d, rms_eps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xdevice.contract.layouts import Layer

_PLAIN: Final = (
    nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.SiLU, nn.Mish, nn.SELU, nn.Hardswish, nn.Hardsigmoid, nn.Softsign,
    nn.Tanhshrink, nn.LogSigmoid,
)  # fmt: skip
"""Activation functions that take nothing, under the name of their class."""
_BLOCKS: Final = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""What they do between their layers with parameters is said of these."""
_NOTHING: Final = (nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DROPOUTS: Final = {nn.Dropout: "each number", nn.Dropout1d: "whole channels"}
_PADS: Final = (padding._ConstantPadNd, padding._ReflectionPadNd, padding._ReplicationPadNd, padding._CircularPadNd)


_OBSERVERS: Final = ("torch", "xdevice_torch", "transformers")
"""Packages whose hooks change nothing, or make a weight; those of transformers keep what a layer gives."""


def _children(layer: Any) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in layer._modules.items() if child is not None]


def _is_line(layer: Any) -> bool:
    return isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward


def _operations(model: Any, backend: Operations, layers: Mapping[str, Layer]) -> Iterator[Layer]:
    told: set[str] = set()
    saved = {id(variable) for _, variable in backend.variables(model)}
    for path, module in model.named_modules():
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        yield from ops.hooked(path, module, hooks, *_OBSERVERS)
        if path not in layers:  # layers that are known keep only counters and states of dropouts there
            held = [*module.named_buffers(recurse=False), *vars(module).items()]
            yield from (ops.stateless(path, name) for name, x in held if isinstance(x, Tensor) and id(x) not in saved)
        if path in layers:
            yield layers[path]
            if ops.is_rewritten(module, "torch", "forward") and not is_conv1d(module):
                yield ops.own_code(path, module)
        elif isinstance(module, _BLOCKS):
            told.add(path)
        elif not (_holds(module) or ops.is_inside(path, layers) or path.rpartition(".")[0] in told):
            yield _operation(path, module)


def _holds(module: Any) -> bool:
    """Whether a module has children or parameters, or does nothing to tell, so that it is no layer without
    parameters."""
    is_open = any(True for _ in module.children()) or next(module.parameters(recurse=False), None) is not None
    return is_open or _is_usual(module)


def _is_usual(module: Any) -> bool:
    """Whether a module does what most models do by a function, such as flattening the rows of a batch."""
    return isinstance(module, _NOTHING) or (
        isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    )


def _operation(path: str, module: Any) -> Layer:
    if ops.is_rewritten(module, "torch", "forward"):
        return ops.other(path, module)
    found = _activation(path, module) or _pool(path, module) or _image(path, module) or _norm(path, module)
    if found is not None:
        return found
    if isinstance(module, dropout._DropoutNd) and not isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
        return ops.dropout(path, module.p, axes=_DROPOUTS.get(type(module), "whole channels"))
    if isinstance(module, nn.AlphaDropout):
        return ops.plain(path, "alpha_dropout", p=module.p)
    if isinstance(module, nn.Flatten):
        return ops.plain(path, "flatten", first=module.start_dim, last=module.end_dim)
    if isinstance(module, nn.Unflatten):
        return ops.plain(path, "unflatten", axis=module.dim, size=tuple(module.unflattened_size))
    is_known = type(module).__module__.startswith("torch.")  # the repr of a user's class may raise, or print addresses
    return ops.other(path, module, module.extra_repr() if is_known else "")


def _activation(path: str, module: Any) -> Layer | None:
    name = type(module).__name__.lower()
    if type(module) in _PLAIN:
        return ops.activation(path, name)
    if isinstance(module, nn.LeakyReLU):
        return ops.activation(path, name, slope=module.negative_slope)
    if isinstance(module, nn.GELU):
        return ops.activation(path, name, approximate=module.approximate)
    if isinstance(module, nn.ELU | nn.CELU):
        return ops.activation(path, name, alpha=module.alpha)
    if isinstance(module, nn.Softplus):
        return ops.activation(path, name, beta=module.beta, threshold=module.threshold)
    if isinstance(module, nn.Hardtanh) and type(module) is nn.Hardtanh:
        return ops.activation(path, name, min=module.min_val, max=module.max_val)
    if isinstance(module, nn.Hardshrink | nn.Softshrink):
        return ops.activation(path, name, threshold=module.lambd)
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.GLU):
        return ops.activation(path, name, axis=module.dim)
    return ops.activation(path, name, axis=-3) if isinstance(module, nn.Softmax2d) else None


def _pool(path: str, module: Any) -> Layer | None:
    axes = _axes(module)
    if isinstance(module, pooling._MaxPoolNd):
        return ops.max_pool(
            path, axes, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.dilation
        )
    if isinstance(module, pooling._AvgPoolNd):
        divisor = getattr(module, "divisor_override", None)
        return ops.avg_pool(
            path, axes, module.kernel_size, module.stride, module.padding, module.ceil_mode,
            module.count_include_pad, divisor,
        )  # fmt: skip
    if isinstance(module, pooling._AdaptiveAvgPoolNd):
        return ops.adaptive_pool(path, "avg", axes, module.output_size)
    if isinstance(module, pooling._AdaptiveMaxPoolNd):
        return ops.adaptive_pool(path, "max", axes, module.output_size)
    return None


def _axes(module: Any) -> int:
    """The number of axes of a layer's window: two for MaxPool2d."""
    digit = type(module).__name__[-2:-1]
    known = next((base.__name__[-2] for base in type(module).__mro__ if base.__name__[-2:-1].isdigit()), "0")
    return int(digit if digit.isdigit() else known)


def _image(path: str, module: Any) -> Layer | None:
    if isinstance(module, nn.Upsample):
        return ops.upsample(path, None, module.size, module.scale_factor, module.mode, module.align_corners)
    if isinstance(module, _PADS):
        mode = type(module).__name__.partition("Pad")[0].lower()
        known = {"reflection": "reflect", "replication": "replicate", "circular": "circular"}
        sides = ops.last_axis_first(module.padding)
        return ops.pad(path, sides, known.get(mode, "constant"), getattr(module, "value", None))
    if isinstance(module, nn.PixelShuffle):
        return ops.plain(path, "pixel_shuffle", factor=module.upscale_factor)
    if isinstance(module, nn.PixelUnshuffle):
        return ops.plain(path, "pixel_unshuffle", factor=module.downscale_factor)
    if isinstance(module, nn.ChannelShuffle):
        return ops.plain(path, "channel_shuffle", groups=module.groups)
    return None


def _norm(path: str, module: Any) -> Layer | None:
    if isinstance(module, nn.LocalResponseNorm):
        settings = {"size": module.size, "alpha": module.alpha, "beta": module.beta, "k": float(module.k)}
        return ops.plain(path, "local_response_norm", **settings)
    if isinstance(module, instancenorm._InstanceNorm):
        return ops.plain(path, "instance_norm", eps=module.eps)
    if isinstance(module, batchnorm._BatchNorm):
        return ops.plain(path, "batch_norm", eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        return ops.plain(path, "layer_norm", eps=module.eps, axes=len(module.normalized_shape))
    if isinstance(module, nn.RMSNorm):
        return ops.plain(path, "rms_norm", eps=rms_eps(module), axes=len(module.normalized_shape))
    if isinstance(module, nn.GroupNorm):
        return ops.plain(path, "group_norm", eps=module.eps, num_groups=module.num_groups)
    return None


class TorchOperations(Operations):
    def operations(self, model: Any) -> Iterable[Layer]:
        layers = {layer.path: layer for layer in self.layers(model)}
        return ops.in_lines(_operations(model, self, layers), model, layers, _children, _is_line)
