"""PyTorch's layers. Their layouts are the common ones, so only the settings are said here.

What must be kept: `momentum` is the weight of the new value, here and nowhere else; None is the mean of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.nn.modules import batchnorm, conv

from xdevice.contract import layouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.contract import Backend
    from xdevice.contract.layouts import Layer

_TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def layers(model: Any, backend: Backend) -> Iterator[Layer]:
    if not isinstance(model, nn.Module):
        raise backend.unsupported(f"layers in a {type(model).__qualname__}", "give the model itself")
    names = dict(backend.variables(model))
    for path, module in model.named_modules():
        found = _kind(module)
        if found is None:
            continue
        kind, settings = found
        layer = layouts.bound(path, kind, layouts.parts(kind, settings), names, settings)
        if layer is not None:
            yield layer


def _kind(module: Any) -> tuple[str, Mapping[str, object]] | None:
    if isinstance(module, nn.Linear):
        return "linear", {"activation": None}
    if isinstance(module, conv._ConvNd):
        return ("conv_transpose" if isinstance(module, _TRANSPOSED) else "conv"), _of_conv(module)
    if isinstance(module, batchnorm._BatchNorm):
        return "batch_norm", {"eps": module.eps, "momentum": module.momentum}
    if isinstance(module, nn.Embedding):
        return "embedding", {"padding_idx": module.padding_idx, "max_norm": module.max_norm}
    if isinstance(module, nn.LayerNorm):
        return "layer_norm", {"eps": module.eps}
    if isinstance(module, nn.PReLU):
        return "prelu", {}
    if isinstance(module, nn.LSTM | nn.GRU) and not module.proj_size:
        kind = "lstm" if isinstance(module, nn.LSTM) else "gru"
        shaping = {"layers": module.num_layers, "bidirectional": module.bidirectional}
        return kind, shaping | {"batch_first": module.batch_first}
    return None


def _of_conv(module: Any) -> dict[str, object]:
    padding = module.padding
    if padding == "same":
        padding = layouts.same_padding(module.kernel_size, module.stride, module.dilation)
    axes = len(module.kernel_size)
    settings: dict[str, object] = {
        "stride": module.stride,
        "padding": (0,) * axes if padding == "valid" else padding,
        "dilation": module.dilation,
        "groups": module.groups,
        "padding_mode": module.padding_mode,
    }
    return settings | ({"output_padding": module.output_padding} if isinstance(module, _TRANSPOSED) else {})
