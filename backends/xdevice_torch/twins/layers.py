"""Reads the layers with parameters out of PyTorch's models. `contract.layouts` describes all weights in PyTorch's
layouts, so only the settings of the layers are stated here.

Facts about PyTorch that the code depends on:
- In a batch norm `momentum` is the weight of the new value, unlike in all other frameworks; None gives all batches the
  same weight.
- The `out_proj` of a MultiheadAttention does not count as a layer by itself: its `forward` is never called.
- The Conv1D of the library transformers is a Linear with its weight transposed, not a convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from xdevice.twins.contract import layouts
from xdevice.twins.contract.layers import Layers
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS: Final = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_WeightNorm = private["torch.nn.utils.parametrizations._WeightNorm"]
_RECURRENT: Final = {nn.RNN: "rnn", nn.LSTM: "lstm", nn.GRU: "gru"}
_CONV1D: Final = (Part("weight", ("weight",), layouts.TRANSPOSED), Part("bias", ("bias",), layouts.SAME))


def _layers(model: Any, names: Mapping[str, Any], blocks: dict[str, tuple[str, ...]]) -> Iterator[Layer]:
    """Yields the layers of a model. Also fills `blocks`: for the path of each Transformer layer, the names of the
    layers inside it in the order in which they are called, which is not the order of their definition."""
    owned: set[int] = set()
    told: dict[int, Mapping[str, object]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            told |= _of_block(module)
            blocks[path] = _order(module)
        found = _kind(module)
        if found is None or id(module) in owned:
            continue
        kind, settings = found
        if kind == layouts.ATTENTION:
            owned.add(id(module.out_proj))
        own = _CONV1D if is_conv1d(module) else layouts.parts(kind, settings)
        norm = _norm_of(module)
        if norm is not None:  # g is a number if the norm is over all axes
            g, v = (names[layouts.join(path, name)] for name in norm)
            own = layouts.normed(own, norm, g.shape or (1,) * v.ndim, g.shape)
        layer = layouts.bound(path, kind, own, names, {**settings, **told.get(id(module), {})})
        if layer is not None:
            yield layer


def _norm_of(module: Any) -> tuple[str, str] | None:
    """Returns the names of the parameters g (magnitude) and v (direction) of a module with a weight norm, either the
    one that PyTorch has since 2.0 or the older one; None for a module without."""
    ways: Any = getattr(getattr(module, "parametrizations", None), "weight", ())
    if len(ways) == 1 and isinstance(ways[0], _WeightNorm):
        return "parametrizations.weight.original0", "parametrizations.weight.original1"
    return layouts.NORMED if hasattr(module, "weight_g") else None


def is_conv1d(module: Any) -> bool:
    """Whether a module is the Conv1D of the library transformers. Works if that library is not installed."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def _kind(module: Any) -> tuple[str, Mapping[str, object]] | None:
    if isinstance(module, nn.Linear) or is_conv1d(module):
        return "linear", {"activation": None}
    if isinstance(module, _CONVOLUTIONS + _TRANSPOSED):
        return ("conv_transpose" if isinstance(module, _TRANSPOSED) else "conv"), _of_conv(module)
    if isinstance(module, INSTANCE_NORMS):
        return "instance_norm", {"eps": module.eps, "running_stats": module.track_running_stats}
    if isinstance(module, BATCH_NORMS):
        return "batch_norm", {"eps": module.eps, "momentum": module.momentum}
    if isinstance(module, nn.Embedding):
        return "embedding", {"padding_idx": module.padding_idx, "max_norm": module.max_norm, **_padded(module)}
    if isinstance(module, nn.LayerNorm):
        return "layer_norm", {"eps": module.eps}
    if isinstance(module, nn.RMSNorm):
        return "rms_norm", {"eps": rms_eps(module)}
    if isinstance(module, nn.GroupNorm):
        return "group_norm", {"eps": module.eps, "num_groups": module.num_groups}
    if isinstance(module, nn.PReLU):
        return "prelu", {"axis": "channels"}
    if isinstance(module, nn.MultiheadAttention):
        return layouts.ATTENTION, _of_attention(module)
    kind = next((kind for cls, kind in _RECURRENT.items() if isinstance(module, cls)), None)
    return None if kind is None else (kind, _of_recurrent(module))


def rms_eps(module: Any) -> float:
    """Returns the eps of an RMSNorm; if it was given as None, the machine epsilon of the weight's dtype."""
    dtype = torch.get_default_dtype() if module.weight is None else module.weight.dtype
    return float(torch.finfo(dtype).eps if module.eps is None else module.eps)


def _padded(module: Any) -> dict[str, object]:
    """Returns the setting that says whether an embedding's row for `padding_idx` is zeros, as PyTorch creates it, or
    has been overwritten; an empty dict for an embedding without `padding_idx` or without values."""
    if module.padding_idx is None or module.weight.is_meta:
        return {}
    return {layouts.PADDED: layouts.ROW if module.weight[module.padding_idx].any() else layouts.ZEROS}


def _of_recurrent(module: Any) -> dict[str, object]:
    settings: dict[str, object] = {
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "projection": module.proj_size,
        "batch_first": module.batch_first,
        "dropout": layouts.between(module.num_layers, module.dropout),
    }
    return settings | ({"nonlinearity": module.nonlinearity} if isinstance(module, nn.RNN) else {})


def _of_attention(module: Any) -> dict[str, object]:
    settings: dict[str, object] = {
        "num_heads": module.num_heads,
        "packed": module.in_proj_weight is not None,
        "dropout": float(module.dropout),
        "batch_first": module.batch_first,
    }
    return settings | ({"add_zero_attn": True} if module.add_zero_attn else {})


def _order(module: Any) -> tuple[str, ...]:
    between = ("multihead_attn",) if isinstance(module, nn.TransformerDecoderLayer) else ()
    return layouts.order_of_block(module.norm_first, "self_attn", *between)


def _of_block(module: Any) -> dict[int, Mapping[str, object]]:
    """Returns settings of a whole Transformer layer, by the `id` of the layer inside it under which they are listed."""
    return {
        id(module.norm1): {"norm_first": module.norm_first, "block_dropout": float(module.dropout1.p)},
        id(module.linear1): {"activation": _activation(module.activation)},
    }


def _activation(way: Any) -> str:
    if isinstance(way, nn.GELU) and way.approximate == "tanh":
        return "gelu_tanh"
    return type(way).__name__.lower() if isinstance(way, nn.Module) else getattr(way, "__name__", str(way))


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


class TorchLayers(Layers):
    def layers(self, model: Any) -> Iterable[Layer]:
        if not isinstance(model, nn.Module):
            raise self.unsupported(f"layers in a {type(model).__qualname__}", "give the model itself")
        blocks: dict[str, tuple[str, ...]] = {}
        found = list(_layers(model, dict(self.variables(model)), blocks))
        return iter(layouts.in_order(found, blocks))
