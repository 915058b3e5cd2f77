"""Reads the layers of Gluon's models. Lists the layers with parameters, and describes the computations of all layers in
PyTorch's terms. The weights have PyTorch's layouts, but other names.

The code depends on these facts about Gluon:
- The parameters of an LSTM or GRU have the names that they would have in single cells, as in `save_parameters`.
- Gluon's `momentum` is the weight of the old value, and PyTorch's is the weight of the new value.
- A BatchNorm with `scale=False` has a gamma, but computes as if gamma were 1.
- A GroupNorm has one gamma and one beta for each group, while other frameworks have one of each for each channel. The
  layer does not store the number of channels.
- An LSTM with a projection cannot run on the CPU, and is not listed. MXNet 1.9.1 has no attention layer.
- The activation of a Dense or a convolution is a child of that layer, and is listed after it.
- A global pool has an output of size 1, whatever its kernel is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mxnet.gluon import Block, Parameter, nn, rnn
from mxnet.gluon.contrib import nn as extra

from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_mxnet.private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.twins.contract.layouts import Settings

_TRANSPOSED: Final = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
CONVOLUTIONS: Final = (nn.Conv1D, nn.Conv2D, nn.Conv3D, *_TRANSPOSED)
POOLS: Final = (
    nn.MaxPool1D, nn.MaxPool2D, nn.MaxPool3D, nn.GlobalMaxPool1D, nn.GlobalMaxPool2D, nn.GlobalMaxPool3D,
    nn.AvgPool1D, nn.AvgPool2D, nn.AvgPool3D, nn.GlobalAvgPool1D, nn.GlobalAvgPool2D, nn.GlobalAvgPool3D,
)  # fmt: skip

children: Final = private.field("mxnet.gluon.Block._children")
_act_type: Final = private.field("mxnet.gluon.nn.Activation._act_type")
options: Final = private.field("mxnet.gluon.nn.Conv2D._kwargs")
_dropout_between = private.field("mxnet.gluon.rnn.LSTM._dropout")
_layout = private.field("mxnet.gluon.rnn.LSTM._layout")
_mode = private.field("mxnet.gluon.rnn.LSTM._mode")
_rate = private.field("mxnet.gluon.nn.Dropout._rate")
_axes = private.field("mxnet.gluon.nn.Dropout._axes")
_alpha = private.field("mxnet.gluon.nn.LeakyReLU._alpha")
_beta = private.field("mxnet.gluon.nn.Swish._beta")
_padding = private.field("mxnet.gluon.nn.ReflectionPad2D._padding")
_factor = private.field("mxnet.gluon.contrib.nn.PixelShuffle1D._factor")
_factors = private.field("mxnet.gluon.contrib.nn.PixelShuffle2D._factors")


def blocks(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields a pair (path, block) for each block in a model, beginning with the model itself. Each block is yielded
    once."""
    return _blocks(model, path="", visited=set())


def _blocks(block: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields a pair (path, block) for the block at `path`, and for each block in it. `visited` contains the `id`s of
    the blocks that were already yielded, so a shared block is yielded only with its first path."""
    if id(block) in visited:
        return
    visited.add(id(block))
    yield path, block
    for name, child in children(block).items():
        yield from _blocks(child, layouts.join(path, name), visited)


def _norm(kind: str, usual_axis: int, path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a norm of the kind `kind`. The settings include the axis of the
    norm only if it differs from `usual_axis`, the axis that other frameworks use. The parts are left empty; `_layers`
    adds them."""
    kwargs = options(block)
    settings = {name: kwargs[name] for name in ("eps", "num_groups") if name in kwargs}
    if kwargs.get("axis", usual_axis) != usual_axis:
        settings["axis"] = kwargs["axis"]
    if kind == "instance_norm":
        # Gluon's instance norms have no running statistics
        settings["running_stats"] = False
    if kind == "batch_norm":
        # PyTorch's momentum is the weight of the new value, and Gluon's is the weight of the
        # old value
        settings["momentum"] = 1 - kwargs["momentum"]
        # set by Gluon's argument scale=False, with which gamma exists but is not used
        if kwargs["fix_gamma"]:
            settings["weight"] = "1, whatever gamma is"
    return Layer(path, kind, (), settings)


def _recurrent(kind: str, path: str, block: Any) -> Layer | None:
    """Returns the description of the layer at `path`, an RNN, LSTM or GRU. Returns None for an LSTM with a
    projection, which cannot run on the CPU. The parts are left empty; `_layers` adds them."""
    if hasattr(block, "l0_h2r_weight"):  # with a projection
        return None
    # the names of the parameters of the reverse direction begin with r; a layer in one
    # direction has no such parameters
    is_bidirectional = hasattr(block, "r0_i2h_weight")
    # the first axis of the state is the number of layers times the number of directions
    layers = block.state_info()[0]["shape"][0] // (2 if is_bidirectional else 1)
    settings: dict[str, object] = {
        "layers": layers,
        "bidirectional": is_bidirectional,
        "projection": 0,
        "batch_first": _layout(block) == "NTC",
        "dropout": layouts.dropout_between(layers, _dropout_between(block)),
    }
    if kind == "rnn":
        settings["nonlinearity"] = _mode(block).removeprefix("rnn_")  # rnn_relu or rnn_tanh
    return Layer(path, kind, (), settings)


def _conv(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a convolution or a transposed convolution. The parts are left
    empty; `_layers` adds them."""
    kwargs = options(block)
    settings: dict[str, object] = {
        "stride": tuple(kwargs["stride"]),
        "padding": tuple(kwargs["pad"]),
        "dilation": tuple(kwargs["dilate"]),
        "groups": kwargs["num_group"],
        "padding_mode": "zeros",
        "activation": _activation(block),
    }
    if not isinstance(block, _TRANSPOSED):
        return Layer(path, "conv", (), settings)
    settings["output_padding"] = tuple(kwargs["adj"])
    return Layer(path, "conv_transpose", (), settings)


def _activation(block: Any) -> str | None:
    """Returns the name of the activation inside a Dense or a convolution, or None if the layer has no activation."""
    return _act_type(block.act) if block.act is not None else None


_ROWS: Final[Mapping[type | str, ops.Row]] = {
    nn.Dense: ops.row("linear", activation=_activation),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    nn.BatchNorm: partial(_norm, "batch_norm", 1),
    nn.Embedding: ops.row("embedding", {"padding_idx": None, "max_norm": None}),
    nn.LayerNorm: partial(_norm, "layer_norm", -1),
    nn.PReLU: ops.row("prelu", {"axis": "channels"}),
    nn.GroupNorm: partial(_norm, "group_norm", 1),
    nn.InstanceNorm: partial(_norm, "instance_norm", 1),
    rnn.RNN: partial(_recurrent, "rnn"),
    rnn.LSTM: partial(_recurrent, "lstm"),
    rnn.GRU: partial(_recurrent, "gru"),
}
"""For each class of layers with parameters, the function that returns the description of such a layer."""


# what layers compute


def _dropout(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a Dropout. Without axes, a Dropout drops each number
    independently."""
    return ops.dropout(path, _rate(block), axes=tuple(_axes(block)) or "each number")


def _pool(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a pool of any kind. One function is enough, because Gluon's
    classes of pools differ only in their arguments."""
    kwargs = options(block)
    axes, kind = len(kwargs["kernel"]), kwargs["pool_type"]
    if kwargs["global_pool"]:
        return ops.global_pool(kind, axes, path, block)
    # unlike PyTorch, MXNet includes a last window that begins outside the image
    ceil = ops.OUTSIDE_TOO if kwargs["pooling_convention"] == "full" else False
    window = (axes, kwargs["kernel"], kwargs["stride"], kwargs["pad"], ceil)
    if kind == "max":
        return ops.max_pool(path, *window)
    return ops.avg_pool(path, *window, count_include_pad=kwargs.get("count_include_pad", True))


def _pad(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a ReflectionPad2D."""
    # `_padding` returns (batch, batch, channels, channels, top, bottom, left, right), of which
    # the first four are 0, or one number for all four sides of the image
    width = _padding(block)
    sides = (width,) * 4 if isinstance(width, int) else tuple(width)[4:]
    return ops.pad(path, list(zip(sides[::2], sides[1::2], strict=True)), "reflect")


def _pixel_shuffle(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a PixelShuffle2D or PixelShuffle3D."""
    # Gluon has a factor for each axis; equal factors are described by one number, as in PyTorch
    factors = set(_factors(block))
    return ops.plain(
        path, "pixel_shuffle", factor=factors.pop() if len(factors) == 1 else _factors(block)
    )


_TABLE: Final = ops.Table(
    "mxnet",
    {
        **dict.fromkeys((nn.Sequential, nn.HybridSequential, nn.Flatten, extra.Identity)),
        nn.Activation: lambda path, block: ops.activation(path, _act_type(block)),
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
    # the methods with which a block computes
    ("forward", "hybrid_forward"),
    lines=(nn.Sequential, nn.HybridSequential),
    # the activation of a Dense or a convolution is a block inside it
    lists_inside=True,
)  # fmt: skip


def _module(path: str, block: Any) -> ops.Module:
    """Returns the description of a block, from which `ops.read` determines whether the block's computation is
    known."""
    has_parameters = any(isinstance(value, Parameter) for value in vars(block).values())
    return ops.Module(path, block, list(children(block).values()), has_parameters)


class MxnetLayers(Operations):
    """The hooks that list the layers of Gluon's models. `Layers` and `Operations` describe each hook."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers of a model that have parameters. Raises `UnsupportedError` for any object other than a
        `Block`."""
        if not isinstance(model, Block):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects", "pass the Block itself"
            )
        return layouts.present_layers(list(self._layers(model)), dict(self.variables(model)))

    def _layers(self, model: Any) -> Iterator[Layer]:
        """Yields the layers of a model with their parts. The names of the parts in Gluon differ from PyTorch's
        names."""
        for block, layer in ops.read_each(_ROWS, blocks(model)):
            parts = self.parts(layer.kind, layer.settings)
            # only for a convolution does the weight depend on a layout; "NC" is the beginning
            # of PyTorch's layouts
            layout = options(block)["layout"] if layer.kind.startswith("conv") else "NC"
            # the axes of the weight follow the layout of the images, so for other layouts, the
            # values are refused
            if not layout.startswith("NC"):
                why = f"a Gluon convolution in {layout} orders its weight differently; use a layout such as NCHW"
                parts = dialects.refused_parts(parts, why)
            yield layer._replace(parts=tuple(parts))

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns all layers of a model, including the layers without parameters, with their settings."""
        return ops.read([_module(path, block) for path, block in blocks(model)], layers, _TABLE)

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parameters that a layer of the kind `kind` may have, under Gluon's names."""
        return dialects.mxnet(kind, settings)
