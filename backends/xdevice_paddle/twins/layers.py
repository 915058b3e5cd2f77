"""Reads the layers of Paddle's models. Describes how the layouts of their weights differ from PyTorch's, and describes
the computations of all layers in PyTorch's terms.

Facts about Paddle on which the code depends:
- A LayerNorm over several axes has a flat weight and a flat bias.
- The weight of a Linear is the transpose of PyTorch's weight, but the weight of a `paddle.compat.nn.Linear` is not
  transposed. The weight of a convolution is laid out as in PyTorch, whatever the data format.
- An RNN, LSTM or GRU lists each of its parameters twice: under the layer's own name for it, and in the layer's cells.
  With `proj_size`, the layer's own names refer to the wrong parameters (3.3.1), so the names in the cells are used.
- A MultiHeadAttention contains four Linears. They are treated here as its parts, and not as layers.
- Paddle's `momentum` is the weight of the old value, whereas PyTorch's `momentum` is the weight of the new value.
- A `paddle.nn.BatchNorm` may contain an activation. The activation gets a separate entry, as in frameworks in which it
  is a layer.
- The `mode` of a dropout may be "downscale_in_infer". The dropout then multiplies by 1 - p in evaluation.
- The `exclusive` of a pool is the opposite of PyTorch's `count_include_pad`. A stride of None means that the stride is
  the size of the window.
- The `approximate` of a GELU is a bool; in PyTorch it is "tanh" or "none".
"""

from __future__ import annotations

import re
from ast import literal_eval
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import paddle
from paddle import nn
from paddle.nn.utils import spectral_norm_hook, weight_norm_hook

from xdevice.errors import UnsupportedError
from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from xdevice.twins.contract.layouts import Settings

data_format = private.field("paddle.nn.Conv2D._data_format")
_dilation = private.field("paddle.nn.Conv2D._dilation")
_groups = private.field("paddle.nn.Conv2D._groups")
_raw_padding = private.field("paddle.nn.Conv2D._padding")
_padding_mode = private.field("paddle.nn.Conv2D._padding_mode")
_stride = private.field("paddle.nn.Conv2D._stride")
_epsilon = private.field("paddle.nn.BatchNorm2D._epsilon")
_momentum = private.field("paddle.nn.BatchNorm2D._momentum")
use_global_stats = private.field("paddle.nn.BatchNorm2D._use_global_stats")
_act = private.field("paddle.nn.BatchNorm._act")
_raw_padding_idx = private.field("paddle.nn.Embedding._padding_idx")
_max_norm = private.field("paddle.nn.Embedding._max_norm")
_HAS_MAX_NORM: Final = "max_norm" in signature(nn.Embedding).parameters  # from 3.3 on
_pre_hooks = private.field("paddle.nn.Layer._forward_pre_hooks")
_post_hooks = private.field("paddle.nn.Layer._forward_post_hooks")
_sub_layers = private.field("paddle.nn.Layer._sub_layers")

_TRANSPOSED: Final = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
CONVS: Final = (nn.Conv1D, nn.Conv2D, nn.Conv3D, *_TRANSPOSED)
_NEWER_BATCH_NORMS: Final = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
BATCH_NORMS: Final = (*_NEWER_BATCH_NORMS, nn.BatchNorm)
_INSTANCE_NORMS: Final = (nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)
_NORMS: Final = (*_NEWER_BATCH_NORMS, *_INSTANCE_NORMS, nn.GroupNorm, nn.PReLU)
_COMPAT: Any = getattr(getattr(paddle, "compat", None), "nn", None)  # from 3.3 on
_COMPAT_LINEAR: Final = () if _COMPAT is None else (_COMPAT.Linear,)
"""The class of Paddle's Linear whose weight is laid out as in PyTorch; empty before Paddle 3.3."""
_BLOCKS: Final = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def _setting(layer: Any, name: str) -> Any:
    """Returns the setting `name` of a layer, read from the result of `extra_repr`, which contains all digits of a
    number. The result is a Python value, or a string if the text is not a literal. Raises `UnsupportedError` if
    `extra_repr` does not state the setting."""
    # the nearest class of Paddle itself, because a user's subclass may have an `extra_repr` that states no settings
    cls: Any = next(
        cls for cls in type(layer).__mro__ if cls.__module__.partition(".")[0] == "paddle"
    )
    # matches a whole list or tuple, or anything else up to the next comma
    stated = re.search(rf"(?:^|, ){name}=(\[.*?\]|\(.*?\)|[^,]*)", cls.extra_repr(layer))
    if stated is None:
        raise UnsupportedError(
            f"reading the {name} of paddle.nn.{cls.__name__} is not supported: in paddle {paddle.__version__}, the "
            f"layer's extra_repr() does not contain it; install paddle {private.tested}, or a newer xdevice"
        )
    try:
        # a string is stated without quotes, so it is not a literal
        return literal_eval(stated[1])
    except (ValueError, SyntaxError):
        return stated[1]


def _layers(model: Any, blocks: dict[str, tuple[str, ...]]) -> Iterator[Layer]:
    """Yields the layers of a model in the order in which they are defined. Also fills the dict `blocks`: for the path
    of each Transformer layer, adds the names of the layers inside it, in the order of their calls."""
    # the `id`s of layers that are listed as parts of another layer
    owned: set[int] = set()
    # settings that do not follow from a layer alone but from the model around it, by the `id` of the layer
    settings_by_id = _axes_of_norms(model)
    for path, layer in model.named_sublayers(include_self=True):
        if isinstance(layer, _BLOCKS):
            settings_by_id |= _block_settings(layer)
            blocks[path] = _call_order(layer)
    for layer, described in ops.read_each(_ROWS, model.named_sublayers(include_self=True)):
        if id(layer) in owned:
            continue
        kind, settings = described.kind, described.settings
        # the layers inside these (Linears or cells) have the same parameters
        if kind in (layouts.ATTENTION, *layouts.RECURRENT):
            owned |= {id(inner) for inner in layer.sublayers()}
        # most functions in `_ROWS` leave the parts empty: these layers have the parts that are usual in Paddle
        parts = described.parts or dialects.paddle(kind, settings)
        # Paddle stores both parameters as flat arrays, whatever the number of normalized axes
        if kind == "layer_norm":
            parts = tuple(
                part._replace(
                    rule=layouts.flat_in_framework(_setting(layer, "normalized_shape"))
                )
                for part in parts
            )
        weight_norm = _hook_of_weight(layer, weight_norm_hook.WeightNorm)
        if weight_norm is not None:
            # |v| is computed over all axes except `dim`. Paddle's g (`weight_g`) omits these axes, whereas PyTorch's g
            # keeps them with length 1. `shape` is that shape, but with the axes in Paddle's order.
            # `WEIGHT_NORM_NAMES[0]` contains the names of g and v
            axes = range(layer.weight_v.ndim)
            shape = [
                layer.weight_v.shape[axis] if axis == weight_norm.dim else 1 for axis in axes
            ]
            parts = layouts.with_weight_norm(
                parts, layouts.WEIGHT_NORM_NAMES[0], shape, own=layer.weight_g.shape
            )
        spectral_norm = _hook_of_weight(layer, spectral_norm_hook.SpectralNorm)
        if spectral_norm is not None:
            parts = layouts.with_spectral_norm(parts, layouts.SPECTRAL_NORM_NAMES[0])
            # the weight of a Linear is the transpose of PyTorch's weight, so its two axes are exchanged
            axis = 1 - spectral_norm.dim if kind == "linear" else spectral_norm.dim
            settings = {**settings, layouts.SPECTRAL_AXIS: axis}
        yield Layer(
            described.path, kind, parts, {**settings, **settings_by_id.get(id(layer), {})}
        )


def _axes_of_norms(model: Any) -> dict[int, Settings]:
    """Returns a dict that maps the `id` of each norm layer to its setting `layouts.AXIS_IN_DOUBT` if its axis may
    differ from the axis of the channels. A norm is left out if all convolutions of the model have their channels on the
    axis of the norm. In a model without convolutions, a norm is left out if its axis is the second axis."""
    layers = model.sublayers(include_self=True)
    # False without convolutions, because the channels are then assumed to be the second axis
    formats_of_convs = {
        _has_channels_last(layer) for layer in layers if isinstance(layer, CONVS)
    } or {False}
    return {
        id(layer): {
            layouts.AXIS_IN_DOUBT: "the last" if _has_channels_last(layer) else "the second"
        }
        for layer in layers
        if isinstance(layer, _NORMS) and formats_of_convs != {_has_channels_last(layer)}
    }


def _has_channels_last(layer: Any) -> bool:
    """Whether the data format of a layer, such as "NHWC", has the channels last; False for a layer without a data
    format."""
    return not (data_format.get(layer) or "NC").startswith("NC")


def _hook_of_weight(layer: Any, cls: Any) -> Any:
    """Returns the hook of a layer that applies a norm to the parameter `weight`, or None if there is no such hook.
    `cls` is Paddle's class of the hooks that apply this norm."""
    hooks = _pre_hooks(layer).values()
    return next(
        (hook for hook in hooks if isinstance(hook, cls) and hook.name == "weight"), None
    )


def _batch_norm(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a batch norm, which may contain an activation. Its parts are
    left empty; `_layers` adds them."""
    # PyTorch's momentum is the weight of the new value, and Paddle's momentum is that of the old value
    settings = {
        "eps": _epsilon(layer),
        "momentum": 1 - _momentum(layer),
        "activation": _act.get(layer),
    }
    always = use_global_stats(layer)
    # not stated if the layer's mode decides, as in other frameworks. This is the case for None and, in the older
    # nn.BatchNorm, also for False
    if always or (always is not None and isinstance(layer, _NEWER_BATCH_NORMS)):
        settings["use_global_stats"] = always
    return Layer(path, "batch_norm", (), settings)


def _embedding(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an embedding. Its parts are left empty; `_layers` adds them."""
    index = _padding_idx(layer)
    settings = {"padding_idx": index, "max_norm": _max_norm(layer) if _HAS_MAX_NORM else None}
    # Paddle returns zeros for padding_idx, whatever that row of the weight contains
    if index is not None:
        settings[layouts.PADDED] = layouts.ZEROS
    return Layer(path, "embedding", (), settings)


def _call_order(layer: Any) -> tuple[str, ...]:
    """Returns the names of the layers inside a Transformer layer, in the order in which the Transformer layer calls
    them."""
    between = ("cross_attn",) if isinstance(layer, nn.TransformerDecoderLayer) else ()
    return layouts.order_of_block(layer.normalize_before, "self_attn", *between)


def _block_settings(layer: Any) -> dict[int, Settings]:
    """Returns the settings of a whole Transformer layer, as a dict. Each key is the `id` of the inner layer to which
    the settings are attached."""
    return {
        id(layer.norm1): {
            "norm_first": layer.normalize_before,
            "block_dropout": float(layer.dropout1.p),
        },
        # the name of `paddle.nn.functional.gelu` is "_gelu" in 3.3
        id(layer.linear1): {"activation": layer.activation.__name__.lstrip("_")},
    }


def _padding_idx(layer: Any) -> int | None:
    """Returns the padding_idx of an embedding, counted from the front, or None if the embedding has none."""
    # before Paddle 3.3, which added max_norm, -1 meant that there is no padding_idx
    index = _raw_padding_idx(layer)
    is_none = index is None or (index == -1 and not _HAS_MAX_NORM)
    return None if is_none else index % layer.weight.shape[0]


def _conv(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a convolution or a transposed convolution. Its parts are left
    empty; `_layers` adds them."""
    # the weight has two axes for channels, followed by the axes of the window
    axes = layer.weight.ndim - 2
    settings: dict[str, object] = {
        "stride": layouts.per_axis(_stride(layer), axes),
        "padding": _padding(layer, axes),
        # Paddle's "SAME" sets the dilation to 1
        "dilation": (1,) * axes
        if _is_same(layer)
        else layouts.per_axis(_dilation(layer), axes),
        "groups": _groups(layer),
        "padding_mode": _padding_mode(layer),
    }
    if not isinstance(layer, _TRANSPOSED):
        return Layer(path, "conv", (), settings)
    settings["output_padding"] = layouts.per_axis(layer.output_padding, axes)
    return Layer(path, "conv_transpose", (), settings)


def _padding(layer: Any, axes: int) -> object:
    """Returns the padding of a convolution in PyTorch's terms, in the form that `layouts.padding_per_axis` returns.
    Returns the string "same" in the same cases as `layouts.same_padding`. `axes` is the number of axes of the
    window."""
    padding = _raw_padding(layer)
    # Paddle accepts "same" and "valid" in upper and lower case
    if isinstance(padding, str):
        padding = padding.lower()
    # "valid" means no padding
    if padding == "valid":
        return (0,) * axes
    if padding == "same":
        # Paddle's "same" sets the dilation to 1
        dilation = (1,) * axes
        stride = layouts.per_axis(_stride(layer), axes)
        return layouts.same_padding(layer.weight.shape[2:], stride, dilation)
    if isinstance(padding, list | tuple) and not isinstance(
        padding[0], int
    ):  # a pair for each axis, including batch and channels
        padding = padding[1:-1] if data_format(layer).endswith("C") else padding[2:]
    return layouts.padding_per_axis(padding, axes)


def _is_same(layer: Any) -> bool:
    """Whether a convolution has the padding "SAME", in upper or lower case."""
    return str(_raw_padding(layer)).lower() == "same"


def _readers(*names: str, **renamed: str) -> dict[str, Callable[[Any], Any]]:
    """Returns a dict that maps PyTorch's name of each setting to a function that reads the setting from the result of
    `extra_repr` (`_setting`). `names` are the settings that have the same name in both frameworks. `renamed` maps
    PyTorch's names of the other settings to Paddle's names."""
    return {
        name: partial(_setting, name=paddle_name)
        for name, paddle_name in (*zip(names, names, strict=True), *renamed.items())
    }


_SEQUENCE_SETTINGS: Final[Mapping[str, ops.Attribute]] = {
    "layers": "num_layers",
    "bidirectional": lambda layer: layer.num_directions == 2,
    "projection": lambda layer: getattr(layer, "proj_size", 0),
    "batch_first": lambda layer: not layer.time_major,
    "dropout": lambda layer: layouts.dropout_between(layer.num_layers, layer.dropout),
}
_ROWS: Final[Mapping[type | str, ops.Row]] = {
    nn.Linear: ops.row("linear", {"activation": None}),
    # the same parts as in PyTorch, because the weight is not transposed
    **dict.fromkeys(
        _COMPAT_LINEAR, lambda path, _: Layer(path, "linear", layouts.parts("linear", {}), {"activation": None})
    ),
    **dict.fromkeys(CONVS, _conv),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    nn.Embedding: _embedding,
    nn.LayerNorm: ops.row("layer_norm", **_readers(eps="epsilon")),
    nn.GroupNorm: ops.row("group_norm", **_readers("num_groups", eps="epsilon")),
    # Paddle's instance norms have no running statistics
    **dict.fromkeys(_INSTANCE_NORMS, ops.row("instance_norm", {"running_stats": False}, **_readers(eps="epsilon"))),
    nn.PReLU: ops.row("prelu", {"axis": "channels"}),
    nn.MultiHeadAttention: ops.row(
        layouts.ATTENTION, {"batch_first": True}, num_heads="num_heads",
        packed=lambda layer: layer.embed_dim == layer.kdim == layer.vdim, dropout=lambda layer: float(layer.dropout),
    ),
    nn.SimpleRNN: ops.row("rnn", **_SEQUENCE_SETTINGS, nonlinearity="activation"),
    nn.LSTM: ops.row("lstm", **_SEQUENCE_SETTINGS),
    nn.GRU: ops.row("gru", **_SEQUENCE_SETTINGS),
    nn.SimpleRNNCell: ops.cell("rnn", nonlinearity="activation"),
    nn.LSTMCell: ops.cell("lstm"),
    nn.GRUCell: ops.cell("gru"),
}  # fmt: skip
"""The rows that describe how layers with parameters are read, by class."""


# the computations of layers


def _ceil_mode(pool: Any) -> object:
    """Returns the ceil_mode of a pool in the form that `ops.max_pool` accepts: False or `ops.OUTSIDE_TOO`."""
    # unlike PyTorch, Paddle computes the last window even if it begins beyond the end of the image
    return ops.OUTSIDE_TOO if getattr(pool, "ceil_mode", False) else False


def _kernel(pool: Any) -> Any:
    """Returns the size of the window of a pool."""
    # the attribute is called ksize in some of Paddle's pools, and kernel_size in the others
    return getattr(pool, "ksize", getattr(pool, "kernel_size", None))


def _max_pool(axes: int, path: str, pool: Any) -> Layer:
    """Returns the description of the layer at `path`, a MaxPool whose window has the given number of axes."""
    return ops.max_pool(path, axes, _kernel(pool), pool.stride, pool.padding, _ceil_mode(pool))


def _avg_pool(axes: int, path: str, pool: Any) -> Layer:
    """Returns the description of the layer at `path`, an AvgPool whose window has the given number of axes."""
    window = (_kernel(pool), pool.stride, pool.padding)
    return ops.avg_pool(
        path,
        axes,
        *window,
        ceil_mode=_ceil_mode(pool),
        count_include_pad=not pool.exclusive,
        divisor=getattr(pool, "divisor", None),
    )


_output_size = partial(_setting, name="output_size")


def _upsample(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an Upsample."""
    # align_mode=1 is a third way of aligning the pixels, which PyTorch does not have
    corners = (
        "as align_mode=1"
        if layer.align_mode and not layer.align_corners
        else layer.align_corners
    )
    return ops.upsample(path, layer.size, layer.scale_factor, layer.mode.lower(), corners)


def _upsample_image(mode: str, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an UpsamplingNearest2D or UpsamplingBilinear2D. `mode` is
    "nearest" or "bilinear"."""
    # Paddle's UpsamplingBilinear2D always aligns the corners, like PyTorch's
    return ops.upsample(
        path, layer.size, layer.scale_factor, mode, align_corners=mode != "nearest"
    )


def _pad(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a Pad1D, Pad2D or Pad3D."""
    return ops.pad(
        path,
        ops.padding_pairs([int(size) for size in layer.padding]),
        _setting(layer, "mode"),
        layer.value,
    )


def _gelu(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a GELU."""
    return ops.activation(
        path, "gelu", approximate="tanh" if _setting(layer, "approximate") else "none"
    )


def _dropout(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a Dropout."""
    axes = "each number" if layer.axis is None else layer.axis
    return ops.dropout(
        path, layer.p, layer.mode, axes=tuple(axes) if isinstance(axes, list | tuple) else axes
    )


def _layer_norm(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a LayerNorm without parameters."""
    return ops.plain(
        path,
        "layer_norm",
        eps=_setting(layer, "epsilon"),
        axes=len(_setting(layer, "normalized_shape")),
    )


def _inner_activation(layer: Layer) -> Iterator[Layer]:
    """Yields a separate entry for the activation that a layer contains, or nothing if it contains no activation."""
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
            nn.LeakyReLU: _readers(slope="negative_slope"), nn.ELU: _readers("alpha"), nn.CELU: _readers("alpha"),
            nn.Softplus: _readers("beta", "threshold"),
            nn.SELU: _readers("alpha", "scale"), nn.Hardtanh: _readers("min", "max"),
            nn.Hardshrink: _readers("threshold"), nn.Softshrink: _readers("threshold"),
            nn.Softmax: _readers("axis"), nn.LogSoftmax: _readers("axis"), nn.GLU: _readers("axis"),
        }),
        nn.GELU: _gelu,
        nn.Softmax2D: lambda path, _: ops.activation(path, "softmax", axis=-3),
        **ops.for_1d_to_3d(nn, "MaxPool{}D", _max_pool),
        **ops.for_1d_to_3d(nn, "AvgPool{}D", _avg_pool),
        **ops.for_1d_to_3d(nn, "AdaptiveAvgPool{}D", partial(ops.adaptive_pool, "avg", _output_size)),
        **ops.for_1d_to_3d(nn, "AdaptiveMaxPool{}D", partial(ops.adaptive_pool, "max", _output_size)),
        nn.Upsample: _upsample,
        nn.UpsamplingNearest2D: partial(_upsample_image, "nearest"),
        nn.UpsamplingBilinear2D: partial(_upsample_image, "bilinear"),
        **dict.fromkeys((nn.Pad1D, nn.Pad2D, nn.Pad3D), _pad),
        nn.PixelShuffle: ops.row("pixel_shuffle", **_readers(factor="upscale_factor")),
        nn.PixelUnshuffle: ops.row("pixel_unshuffle", **_readers(factor="downscale_factor")),
        nn.ChannelShuffle: ops.row("channel_shuffle", **_readers("groups")),
        nn.LocalResponseNorm: ops.row("local_response_norm", size="size", alpha="alpha", beta="beta", k="k"),
        **dict.fromkeys(_INSTANCE_NORMS, ops.row("instance_norm", **_readers(eps="epsilon"))),
        nn.LayerNorm: _layer_norm,
        nn.GroupNorm: ops.row("group_norm", **_readers("num_groups", eps="epsilon")),
        nn.Dropout: _dropout,
        **dict.fromkeys(
            (nn.Dropout2D, nn.Dropout3D), lambda path, layer: ops.dropout(path, layer.p, axes="whole channels")
        ),
        nn.AlphaDropout: ops.row("alpha_dropout", p="p"),
        nn.Flatten: lambda path, x: ops.flatten(path, x.start_axis, x.stop_axis),
        nn.Unflatten: lambda path, x: ops.plain(path, "unflatten", axis=x.axis, size=tuple(x.shape)),
    },
    # the method with which a layer computes, and a function that returns a string with the settings of a layer
    # without a row
    ("forward",),
    lambda layer: layer.extra_repr(),
    lines=(nn.Sequential,),
    blocks=_BLOCKS,
    follow=_inner_activation,
    observers=("paddle", "xdevice_paddle"),
)  # fmt: skip


def _module(path: str, layer: Any) -> ops.Module:
    """Returns the description of a layer that `ops.read` needs to decide whether the layer's computation is known."""
    children = [child for child in _sub_layers(layer).values() if child is not None]
    hooks = *_pre_hooks(layer).values(), *_post_hooks(layer).values()
    # parameters are in neither of the two, because Paddle stores them in a dict of the layer
    attributes = *layer.named_buffers(include_sublayers=False), *vars(layer).items()
    tensors = [(name, x) for name, x in attributes if isinstance(x, paddle.Tensor)]
    has_parameters = any(x is not None for x in layer.parameters(include_sublayers=False))
    return ops.Module(path, layer, children, has_parameters, hooks, tensors)


class PaddleLayers(Operations):
    """The hooks that list the layers of Paddle. `Layers` and `Operations` describe each hook."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers with parameters. Raises `UnsupportedError` for anything other than an `nn.Layer`."""
        if not isinstance(model, nn.Layer):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects", "pass the model itself"
            )
        private.require_names_for("layers")
        # `_layers` fills this dict: the path of each Transformer layer, and the names of the layers inside it in the
        # order of the calls, which differs from the order of definition
        blocks: dict[str, tuple[str, ...]] = {}
        layers = list(_layers(model, blocks))
        return layouts.present_layers(layers, dict(self.variables(model)), blocks)

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parts (parameter arrays) that a layer of this kind may have, under Paddle's names."""
        return dialects.paddle(kind, settings)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns the layers in `layers` and the layers without parameters, all with their settings."""
        private.require_names_for("layers")
        modules = [
            _module(path, layer) for path, layer in model.named_sublayers(include_self=True)
        ]
        # the variables are passed too, because `read` yields an entry for every other tensor of a layer, which says
        # that the tensor is in no state
        return ops.read(modules, layers, _TABLE, [x for _, x in self.variables(model)])
