"""Reads the layers of Gluon's models: those with parameters, whose weights are laid out as PyTorch's under other names,
and the computations of all of them, in PyTorch's terms.

Facts about Gluon that the code depends on:
- The parameters of an LSTM or GRU have the names that they would have in single cells, as in `save_parameters`.
- Gluon's `momentum` is the weight of the old value, PyTorch's is that of the new one.
- A BatchNorm with `scale=False` has a gamma, but computes as if gamma were 1.
- A GroupNorm has one gamma and beta for each group, where other frameworks have one for each channel. It does not know
  how many channels there are.
- An LSTM with a projection cannot run on the CPU, and is left out. MXNet 1.9.1 has no attention layer.
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
    """Yields a pair for each block in a model, its path and the block: each block once, beginning with the model."""
    return _blocks(model, "", set())


def _blocks(block: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields such a pair for the block at `path` and for each block in it. `visited` has the `id`s of the blocks that
    were yielded before; a shared block has only its first path."""
    if id(block) in visited:
        return
    visited.add(id(block))
    yield path, block
    for name, child in children(block).items():
        yield from _blocks(child, layouts.join(path, name), visited)


def _norm(kind: str, usual_axis: int, path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a norm of this kind. Its axis is a setting only if it is not
    `usual_axis`, the axis of other frameworks. Its parts are left empty; `_layers` adds them."""
    kwargs = options(block)
    settings = {name: kwargs[name] for name in ("eps", "num_groups") if name in kwargs}
    if kwargs.get("axis", usual_axis) != usual_axis:
        settings["axis"] = kwargs["axis"]
    if kind == "instance_norm":
        # Gluon's instance norms keep no running statistics
        settings["running_stats"] = False
    if kind == "batch_norm":
        # PyTorch's momentum is the weight of the new value, Gluon's that of the old one
        settings["momentum"] = 1 - kwargs["momentum"]
        # Gluon's argument scale=False, with which gamma exists and is not used
        if kwargs["fix_gamma"]:
            settings["weight"] = "1, whatever gamma is"
    return Layer(path, kind, (), settings)


def _recurrent(kind: str, path: str, block: Any) -> Layer | None:
    """Returns the description of the layer at `path`, an RNN, LSTM or GRU; None for an LSTM with a projection, which
    cannot run on the CPU. Its parts are left empty; `_layers` adds them."""
    if hasattr(block, "l0_h2r_weight"):  # with a projection
        return None
    # the parameters of the reverse direction have names that begin with r; a layer in one direction has none
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
    """Returns the description of the layer at `path`, a convolution or a transposed convolution. Its parts are left
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
    """The name of the activation inside a Dense or a convolution; None if it has none."""
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
"""How the layers with parameters are read."""


# what layers compute


def _dropout(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a Dropout, which drops each number independently if it has no
    axes."""
    return ops.dropout(path, _rate(block), axes=tuple(_axes(block)) or "each number")


def _pool(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a pool of any kind: Gluon's classes of pools differ only in their
    arguments."""
    kwargs = options(block)
    axes, kind = len(kwargs["kernel"]), kwargs["pool_type"]
    if kwargs["global_pool"]:
        return ops.global_pool(kind, axes, path, block)
    # unlike PyTorch, MXNet keeps a last window that begins beyond the image
    ceil = ops.OUTSIDE_TOO if kwargs["pooling_convention"] == "full" else False
    window = (axes, kwargs["kernel"], kwargs["stride"], kwargs["pad"], ceil)
    if kind == "max":
        return ops.max_pool(path, *window)
    return ops.avg_pool(path, *window, count_include_pad=kwargs.get("count_include_pad", True))


def _pad(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a ReflectionPad2D."""
    # (batch, batch, channels, channels, top, bottom, left, right), of which the first four are 0; or one number for the
    # four sides of the image
    width = _padding(block)
    sides = (width,) * 4 if isinstance(width, int) else tuple(width)[4:]
    return ops.pad(path, list(zip(sides[::2], sides[1::2], strict=True)), "reflect")


def _pixel_shuffle(path: str, block: Any) -> Layer:
    """Returns the description of the layer at `path`, a PixelShuffle2D or PixelShuffle3D."""
    # Gluon has a factor for each axis; equal factors are one number, as in PyTorch
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
    """Returns the description of a block from which `ops.read` decides whether it is known what the block computes."""
    has_parameters = any(isinstance(value, Parameter) for value in vars(block).values())
    return ops.Module(path, block, list(children(block).values()), has_parameters)


class MxnetLayers(Operations):
    """The hooks that list the layers of Gluon. `Layers` and `Operations` describe each hook."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers with parameters. Raises `UnsupportedError` for anything other than a `Block`."""
        if not isinstance(model, Block):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects", "pass the Block itself"
            )
        return layouts.present_layers(list(self._layers(model)), dict(self.variables(model)))

    def _layers(self, model: Any) -> Iterator[Layer]:
        """Yields the layers of a model with their parts, whose names in Gluon are not PyTorch's."""
        for block, layer in ops.read_each(_ROWS, blocks(model)):
            parts = self.parts(layer.kind, layer.settings)
            # only a convolution has a layout on which its weight depends; "NC" is that of PyTorch
            layout = options(block)["layout"] if layer.kind.startswith("conv") else "NC"
            # the axes of the weight follow the layout of the images; here the values are refused
            if not layout.startswith("NC"):
                why = f"the weight of a Gluon convolution in {layout} has a different layout; build the layer in NCHW"
                parts = dialects.refused(parts, why)
            yield layer._replace(parts=tuple(parts))

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns all layers, with the settings of those without parameters."""
        return ops.read([_module(*each) for each in blocks(model)], layers, _TABLE)

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parameters, under Gluon's names, that a layer of this kind may have."""
        return dialects.mxnet(kind, settings)
