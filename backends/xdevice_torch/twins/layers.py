"""Reads the layers of PyTorch models: the layers with parameters, and the computations of all layers. The other
adapters express the settings of their layers in PyTorch's terms, and `contract.layouts` describes all weights relative
to PyTorch's layouts.

Facts about PyTorch that the code depends on:
- In a batch norm, `momentum` is the weight of the new value, unlike in all other frameworks. None means that all
  batches have the same weight.
- The `out_proj` of a MultiheadAttention is not treated as a separate layer, because its `forward` is never called.
- The Conv1D of the library transformers is not a convolution, but a Linear whose weight is transposed.
- If the stride of a pool is None, the pool uses the size of its kernel as the stride. A softmax without a `dim` chooses
  the axis according to the number of axes of its input.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from xdevice.twins.contract import layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.twins.contract.layouts import Settings


_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS: Final = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_WeightNorm = private["torch.nn.utils.parametrizations._WeightNorm"]
_SpectralNorm = private["torch.nn.utils.parametrizations._SpectralNorm"]
_pre_hooks = private.field("torch.nn.Module._forward_pre_hooks")
# identified by its name, so that transformers need not be imported
_CONV1D: Final = "transformers.pytorch_utils.Conv1D"
_CONV1D_PARTS: Final = (
    Part("weight", ("weight",), layouts.TRANSPOSED),
    Part("bias", ("bias",), layouts.SAME),
)


def _layers(
    model: Any, variables: Mapping[str, Any], blocks: dict[str, tuple[str, ...]]
) -> Iterator[Layer]:
    """Yields the layers of a model. The `parts` of a layer are empty if the layer has PyTorch's usual parts.
    `variables` contains the model's tensors by name. Also fills `blocks`, which maps the path of each Transformer layer
    to the names of the layers inside it. The names are in the order of the calls, which differs from the order of
    definition."""
    # the `id`s of layers that are listed as parts of another layer
    owned: set[int] = set()
    settings_by_id: dict[int, Settings] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            settings_by_id |= _block_settings(module)
            blocks[path] = _call_order(module)
    for module, layer in ops.read_each(_ROWS, model.named_modules()):
        if id(module) in owned:
            continue
        if layer.kind == layouts.ATTENTION:
            # the attention layer reads the weight of this Linear itself, and never calls the Linear
            owned.add(id(module.out_proj))
        # empty parts mean the usual parts
        parts, settings = layer.parts, {**layer.settings, **settings_by_id.get(id(module), {})}
        norm_names, spectral = _weight_norm_names(module), _spectral_norm_of(module)
        # a norm changes some of the parts, so the usual parts must be written out
        if norm_names or spectral:
            parts = parts or layouts.parts(layer.kind, settings)
        if norm_names is not None:
            # g has length 1 along each axis over which |v| is computed, and is a scalar if these are all axes
            g, v = (variables[layouts.join(layer.path, name)] for name in norm_names)
            parts = layouts.with_weight_norm(
                parts, norm_names, shape=g.shape or (1,) * v.ndim, own=g.shape
            )
        if spectral is not None:
            names, axis = spectral
            # the weight of a Conv1D is transposed, so its two axes are swapped
            settings[layouts.SPECTRAL_AXIS] = 1 - axis if parts is _CONV1D_PARTS else axis
            parts = layouts.with_spectral_norm(parts, names)
        yield Layer(layer.path, layer.kind, parts, settings)


def _weight_norm_names(module: Any) -> tuple[str, str] | None:
    """Returns the names of the parameters g (magnitude) and v (direction) of a module with a weight norm. Recognizes
    both of PyTorch's implementations, the newer (since 2.0) and the older. Returns None for a module without a weight
    norm."""
    # `WEIGHT_NORM_NAMES` contains the older names first, and then the newer names
    if _only_parametrization(module, _WeightNorm) is not None:
        return layouts.WEIGHT_NORM_NAMES[1]
    # the older torch.nn.utils.weight_norm
    return layouts.WEIGHT_NORM_NAMES[0] if hasattr(module, "weight_g") else None


def _spectral_norm_of(module: Any) -> tuple[Sequence[str], int] | None:
    """Returns the names of the three tensors of a module whose weight has a spectral norm, and the axis of the weight's
    rows. Recognizes both of PyTorch's implementations, the newer (since 1.9) and the older. Returns None for a module
    without a spectral norm."""
    norm = _only_parametrization(module, _SpectralNorm)
    if norm is not None:
        return layouts.SPECTRAL_NORM_NAMES[1], norm.dim
    # the older torch.nn.utils.spectral_norm registers this buffer with its hook
    if not hasattr(module, "weight_u"):
        return None
    # only the hook stores the axis
    hooks = [hook for hook in _pre_hooks(module).values() if isinstance(hook, SpectralNorm)]
    dims = [hook.dim for hook in hooks if hook.name == "weight"]
    return (layouts.SPECTRAL_NORM_NAMES[0], dims[0]) if dims else None


def _only_parametrization(module: Any, cls: type) -> Any:
    """Returns the object that parametrizes the weight of a module, if there is only one such object and its class is
    `cls`. Otherwise returns None."""
    # if there is a second parametrization, the norm alone does not determine the weight
    objects: Any = getattr(getattr(module, "parametrizations", None), "weight", ())
    return objects[0] if len(objects) == 1 and isinstance(objects[0], cls) else None


def _rms_eps(module: Any) -> float:
    """Returns the eps of an RMSNorm. If its argument `eps` was None, this is the machine epsilon of the weight's dtype,
    or, without a weight, of PyTorch's default dtype."""
    dtype = torch.get_default_dtype() if module.weight is None else module.weight.dtype
    return float(torch.finfo(dtype).eps if module.eps is None else module.eps)


def _padded_row(module: Any) -> dict[str, object]:
    """Returns a dict with one setting. This setting describes whether an embedding's row at `padding_idx` still
    contains only PyTorch's initial zeros or has been overwritten. Returns an empty dict for an embedding without
    `padding_idx` or without values."""
    # a weight on meta has no values
    if module.padding_idx is None or module.weight.is_meta:
        return {}
    return {
        layouts.PADDED: layouts.ROW
        if module.weight[module.padding_idx].any()
        else layouts.ZEROS
    }


def _embedding(path: str, module: Any) -> Layer:
    """Returns the description of the layer at `path`, an embedding. Its `parts` are empty, which means PyTorch's usual
    parts."""
    settings = {"padding_idx": module.padding_idx, "max_norm": module.max_norm}
    return Layer(path, "embedding", (), {**settings, **_padded_row(module)})


def _attention(path: str, module: Any) -> Layer:
    """Returns the description of the layer at `path`, a MultiheadAttention. Its `parts` are empty, which means
    PyTorch's usual parts."""
    settings: dict[str, object] = {
        "num_heads": module.num_heads,
        "packed": module.in_proj_weight is not None,
        "dropout": float(module.dropout),
        "batch_first": module.batch_first,
    }
    # only PyTorch has this setting, so if every attention layer stated it, it would always be listed as a difference
    if module.add_zero_attn:
        settings["add_zero_attn"] = True
    return Layer(path, layouts.ATTENTION, (), settings)


def _call_order(module: Any) -> tuple[str, ...]:
    """Returns the names of the layers inside a Transformer layer, in the order of their calls."""
    between = ("multihead_attn",) if isinstance(module, nn.TransformerDecoderLayer) else ()
    return layouts.order_of_block(module.norm_first, "self_attn", *between)


def _block_settings(module: Any) -> dict[int, Settings]:
    """Returns the settings of a whole Transformer layer, divided among its inner layers. The result maps the `id` of an
    inner layer to a dict of settings."""
    return {
        id(module.norm1): {
            "norm_first": module.norm_first,
            "block_dropout": float(module.dropout1.p),
        },
        id(module.linear1): {"activation": _activation(module.activation)},
    }


def _activation(activation: Any) -> str:
    """Returns the name of an activation of a Transformer layer, which is a module or a function."""
    # a GELU computes one of two functions, depending on its `approximate`; other frameworks
    # have a name for each function
    if isinstance(activation, nn.GELU) and activation.approximate == "tanh":
        return "gelu_tanh"
    return (
        type(activation).__name__.lower()
        if isinstance(activation, nn.Module)
        else getattr(activation, "__name__", str(activation))
    )


def _conv(path: str, module: Any) -> Layer:
    """Returns the description of the layer at `path`, a convolution or a transposed convolution. Its `parts` are empty,
    which means PyTorch's usual parts."""
    padding = module.padding
    if padding == "same":
        padding = layouts.same_padding(module.kernel_size, module.stride, module.dilation)
    elif padding == "valid":
        padding = (0,) * len(module.kernel_size)
    settings: dict[str, object] = {
        "stride": module.stride,
        "padding": padding,
        "dilation": module.dilation,
        "groups": module.groups,
        "padding_mode": module.padding_mode,
    }
    if not isinstance(module, _TRANSPOSED):
        return Layer(path, "conv", (), settings)
    settings["output_padding"] = module.output_padding
    return Layer(path, "conv_transpose", (), settings)


_SEQUENCE_SETTINGS: Final[Mapping[str, ops.Attribute]] = {
    "layers": "num_layers",
    "bidirectional": "bidirectional",
    "projection": "proj_size",
    "batch_first": "batch_first",
    "dropout": lambda module: layouts.dropout_between(module.num_layers, module.dropout),
}
_ROWS: Final[Mapping[type | str, ops.Row]] = {
    nn.Linear: ops.row("linear", {"activation": None}),
    _CONV1D: lambda path, _: Layer(path, "linear", _CONV1D_PARTS, {"activation": None}),
    **dict.fromkeys(_CONVOLUTIONS + _TRANSPOSED, _conv),
    **dict.fromkeys(_INSTANCE_NORMS, ops.row("instance_norm", eps="eps", running_stats="track_running_stats")),
    **dict.fromkeys(_BATCH_NORMS, ops.row("batch_norm", eps="eps", momentum="momentum")),
    nn.Embedding: _embedding,
    nn.LayerNorm: ops.row("layer_norm", eps="eps"),
    nn.RMSNorm: ops.row("rms_norm", eps=_rms_eps),
    nn.GroupNorm: ops.row("group_norm", eps="eps", num_groups="num_groups"),
    nn.PReLU: ops.row("prelu", {"axis": "channels"}),
    nn.MultiheadAttention: _attention,
    nn.RNN: ops.row("rnn", **_SEQUENCE_SETTINGS, nonlinearity="nonlinearity"),
    nn.LSTM: ops.row("lstm", **_SEQUENCE_SETTINGS),
    nn.GRU: ops.row("gru", **_SEQUENCE_SETTINGS),
    nn.RNNCell: ops.cell("rnn", nonlinearity="nonlinearity"),
    nn.LSTMCell: ops.cell("lstm"),
    nn.GRUCell: ops.cell("gru"),
}  # fmt: skip
"""Maps each class of layers with parameters to the function that describes such a layer."""


# the computations of layers


def _max_pool(axes: int, path: str, pool: Any) -> Layer:
    """Returns the description of the layer at `path`, a MaxPool over `axes` axes."""
    window = (pool.kernel_size, pool.stride, pool.padding)
    return ops.max_pool(path, axes, *window, pool.ceil_mode, pool.dilation)


def _avg_pool(axes: int, path: str, pool: Any) -> Layer:
    """Returns the description of the layer at `path`, an AvgPool over `axes` axes."""
    window = (pool.kernel_size, pool.stride, pool.padding)
    # AvgPool1d has no divisor_override
    divisor = getattr(pool, "divisor_override", None)
    return ops.avg_pool(path, axes, *window, pool.ceil_mode, pool.count_include_pad, divisor)


def _upsample(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an Upsample."""
    entry = ops.upsample(path, layer.size, layer.scale_factor, layer.mode, layer.align_corners)
    # only PyTorch has this setting, which changes where the new pixels lie if the factor is not a whole number
    if not layer.recompute_scale_factor:
        return entry
    return entry._replace(settings={**entry.settings, "recompute_scale_factor": True})


def _pad(mode: str, axes: int, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a padding layer with this mode over `axes` axes."""
    # PyTorch lists the padding of the last axis first; only ConstantPad has a value
    return ops.pad(path, ops.padding_pairs(layer.padding), mode, getattr(layer, "value", None))


def _dropout(axes: str, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a dropout. `axes` determines which numbers are dropped together,
    as in `ops.dropout`."""
    return ops.dropout(path, layer.p, axes=axes)


def _layer_norm(path: str, norm: Any) -> Layer:
    """Returns the description of the layer at `path`, a LayerNorm without parameters."""
    return ops.plain(path, "layer_norm", eps=norm.eps, axes=len(norm.normalized_shape))


def _rms_norm(path: str, norm: Any) -> Layer:
    """Returns the description of the layer at `path`, an RMSNorm without parameters."""
    return ops.plain(path, "rms_norm", eps=_rms_eps(norm), axes=len(norm.normalized_shape))


def _children(module: Any) -> list[Any]:
    """Returns the modules that are directly inside a module, including repetitions, which `named_children` omits."""
    named_modules = module.named_modules(remove_duplicate=False)
    # excludes the module itself, which comes first with an empty name, and modules that are deeper inside
    return [child for name, child in named_modules if name and "." not in name]


_hooks = private.field("torch.nn.Module._forward_hooks")
_TABLE: Final = ops.Table(
    "torch",
    {
        # None: the layer computes nothing that must be described
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
        # computed over the channels of an image, with or without a batch axis
        nn.Softmax2d: lambda path, _: ops.activation(path, "softmax", axis=-3),
        **ops.for_1d_to_3d(nn, "MaxPool{}d", _max_pool),
        **ops.for_1d_to_3d(nn, "AvgPool{}d", _avg_pool),
        **ops.for_1d_to_3d(nn, "AdaptiveAvgPool{}d", partial(ops.adaptive_pool, "avg", "output_size")),
        **ops.for_1d_to_3d(nn, "AdaptiveMaxPool{}d", partial(ops.adaptive_pool, "max", "output_size")),
        nn.Upsample: _upsample,
        **ops.for_1d_to_3d(nn, "ConstantPad{}d", partial(_pad, "constant")),
        **ops.for_1d_to_3d(nn, "ReflectionPad{}d", partial(_pad, "reflect")),
        **ops.for_1d_to_3d(nn, "ReplicationPad{}d", partial(_pad, "replicate")),
        **ops.for_1d_to_3d(nn, "CircularPad{}d", partial(_pad, "circular")),
        nn.PixelShuffle: ops.row("pixel_shuffle", factor="upscale_factor"),
        nn.PixelUnshuffle: ops.row("pixel_unshuffle", factor="downscale_factor"),
        nn.ChannelShuffle: ops.row("channel_shuffle", groups="groups"),
        nn.LocalResponseNorm: ops.row("local_response_norm", size="size", alpha="alpha", beta="beta", k="k"),
        **dict.fromkeys(_INSTANCE_NORMS, ops.row("instance_norm", eps="eps")),
        **dict.fromkeys(_BATCH_NORMS, ops.row("batch_norm", eps="eps")),
        nn.LayerNorm: _layer_norm,
        nn.RMSNorm: _rms_norm,
        nn.GroupNorm: ops.row("group_norm", eps="eps", num_groups="num_groups"),
        nn.Dropout: partial(_dropout, "each number"),
        **dict.fromkeys((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), partial(_dropout, "whole channels")),
        nn.AlphaDropout: ops.row("alpha_dropout", p="p"),
        nn.Flatten: lambda path, x: ops.flatten(path, x.start_dim, x.end_dim),
        nn.Unflatten: lambda path, x: ops.plain(path, "unflatten", axis=x.dim, size=tuple(x.unflattened_size)),
    },
    # the names of the methods with which modules compute, and a function that returns a string with the settings of a
    # module that has no row in the table
    ("forward",),
    lambda module: module.extra_repr(),
    foreign=(_CONV1D,),
    lines=(nn.Sequential,),
    blocks=(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    observers=("torch", "xdevice_torch", "transformers"),  # hooks of transformers only store the output of a layer
)  # fmt: skip


def _module(path: str, module: Any) -> ops.Module:
    """Returns the description of a module. From this description, `ops.read` determines whether the computation of the
    module is known."""
    # only its own parameters, and not those of inner modules
    has_parameters = next(module.parameters(recurse=False), None) is not None
    hooks = *_pre_hooks(module).values(), *_hooks(module).values()
    # parameters are in neither of the two, because PyTorch stores them in a dict of the module
    attributes = *module.named_buffers(recurse=False), *vars(module).items()
    tensors = [(name, x) for name, x in attributes if isinstance(x, torch.Tensor)]
    return ops.Module(path, module, _children(module), has_parameters, hooks, tensors)


class TorchLayers(Operations):
    """The hooks that list the layers of PyTorch. `Layers` and `Operations` describe each hook."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers with parameters. Raises `UnsupportedError` if `model` is not an `nn.Module`."""
        if not isinstance(model, nn.Module):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects", "pass the model itself"
            )
        variables = dict(self.variables(model))
        # `_layers` fills this dict: the path of each Transformer layer, and the names of the layers inside it in the
        # order of the calls, which differs from the order of definition
        blocks: dict[str, tuple[str, ...]] = {}
        layers = list(_layers(model, variables, blocks))
        return layouts.present_layers(layers, variables, blocks)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns all layers, including the settings of the layers without parameters."""
        modules = [_module(path, module) for path, module in model.named_modules()]
        # passes the variables, because every other tensor of a module gets an entry of its own:
        # such a tensor is not part of the state
        return ops.read(modules, layers, _TABLE, [x for _, x in self.variables(model)])
