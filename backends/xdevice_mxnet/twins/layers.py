"""Reads the layers of Gluon's models: those with parameters, whose weights are laid out as PyTorch's under other names,
and what all of them compute, in PyTorch's terms.

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

from typing import TYPE_CHECKING, Any, Final

from mxnet.gluon import Block, Parameter, nn, rnn
from mxnet.gluon.contrib import nn as extra

from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_mxnet.private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xdevice.twins.contract.layouts import Settings

_RECURRENT: Final = {rnn.RNN: "rnn", rnn.LSTM: "lstm", rnn.GRU: "gru"}
_TRANSPOSED: Final = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
CONVOLUTIONS: Final = (nn.Conv1D, nn.Conv2D, nn.Conv3D, *_TRANSPOSED)
POOLS: Final = (
    nn.MaxPool1D, nn.MaxPool2D, nn.MaxPool3D, nn.GlobalMaxPool1D, nn.GlobalMaxPool2D, nn.GlobalMaxPool3D,
    nn.AvgPool1D, nn.AvgPool2D, nn.AvgPool3D, nn.GlobalAvgPool1D, nn.GlobalAvgPool2D, nn.GlobalAvgPool3D,
)  # fmt: skip

children: Final = private.field("mxnet.gluon.Block._children")
_function: Final = private.field("mxnet.gluon.nn.Activation._act_type")
options: Final = private.field("mxnet.gluon.nn.Conv2D._kwargs")
_between = private.field("mxnet.gluon.rnn.LSTM._dropout")
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
    """Yields path and block of every block in a model, once, beginning with the model itself."""
    return _blocks(model, "", set())


def _blocks(block: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    if id(block) in visited:
        return
    visited.add(id(block))
    yield path, block
    for name, child in children(block).items():
        yield from _blocks(child, layouts.join(path, name), visited)


def _kind(block: Any) -> tuple[str, Settings]:
    """The kind of a block with parameters, and its settings; "" for any other block."""
    if isinstance(block, nn.Dense):
        return "linear", {"activation": _activation(block)}
    if isinstance(block, CONVOLUTIONS):
        return ("conv_transpose" if isinstance(block, _TRANSPOSED) else "conv"), _of_conv(block)
    if isinstance(block, nn.BatchNorm):
        kwargs = options(block)
        settings = {
            "eps": kwargs["eps"],
            "momentum": 1 - kwargs["momentum"],
            **_axis_of_norm(kwargs["axis"], 1),
        }
        return "batch_norm", settings | (
            {"weight": "1, whatever gamma is"} if kwargs["fix_gamma"] else {}
        )
    if isinstance(block, nn.Embedding):
        return "embedding", {"padding_idx": None, "max_norm": None}
    if isinstance(block, nn.LayerNorm):
        return "layer_norm", {
            "eps": options(block)["eps"],
            **_axis_of_norm(options(block)["axis"], -1),
        }
    if isinstance(block, nn.PReLU):
        return "prelu", {"axis": "channels"}
    if isinstance(block, nn.GroupNorm):
        return "group_norm", {name: options(block)[name] for name in ("eps", "num_groups")}
    if isinstance(block, nn.InstanceNorm):
        settings = {"eps": options(block)["eps"], "running_stats": False}
        return "instance_norm", settings | _axis_of_norm(options(block)["axis"], 1)
    kind = next((kind for cls, kind in _RECURRENT.items() if isinstance(block, cls)), "")
    is_known = kind and not hasattr(block, "l0_h2r_weight")
    return (kind, _of_recurrent(block)) if is_known else ("", {})


def _axis_of_norm(axis: int, usual: int) -> dict[str, object]:
    return {} if axis == usual else {"axis": axis}


def _of_recurrent(block: Any) -> dict[str, object]:
    is_twofold = hasattr(block, "r0_i2h_weight")
    layers = block.state_info()[0]["shape"][0] // (2 if is_twofold else 1)
    settings: dict[str, object] = {
        "layers": layers,
        "bidirectional": is_twofold,
        "projection": 0,
        "batch_first": _layout(block) == "NTC",
        "dropout": layouts.between(layers, _between(block)),
    }
    mode = _mode(block).removeprefix("rnn_")  # rnn_relu, rnn_tanh, lstm, gru
    return settings | ({"nonlinearity": mode} if isinstance(block, rnn.RNN) else {})


def _of_conv(block: Any) -> dict[str, object]:
    kwargs = options(block)
    settings: dict[str, object] = {
        "stride": tuple(kwargs["stride"]),
        "padding": tuple(kwargs["pad"]),
        "dilation": tuple(kwargs["dilate"]),
        "groups": kwargs["num_group"],
        "padding_mode": "zeros",
        "activation": _activation(block),
    }
    return settings | (
        {"output_padding": tuple(kwargs["adj"])} if isinstance(block, _TRANSPOSED) else {}
    )


def _activation(block: Any) -> str | None:
    return _function(block.act) if block.act is not None else None


# what layers compute


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
    # (batch, batch, channels, channels, top, bottom, left, right), or one number for all
    width = _padding(block)
    sides = (width,) * 4 if isinstance(width, int) else tuple(width)[4:]
    return ops.pad(path, list(zip(sides[::2], sides[1::2], strict=True)), "reflect")


def _pixel_shuffle(path: str, block: Any) -> Layer:
    factors = set(_factors(block))
    return ops.plain(
        path, "pixel_shuffle", factor=factors.pop() if len(factors) == 1 else _factors(block)
    )


_TABLE: Final = ops.Table(
    "mxnet",
    {
        **dict.fromkeys((nn.Sequential, nn.HybridSequential, nn.Flatten, extra.Identity)),
        nn.Activation: lambda path, block: ops.activation(path, _function(block)),
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
    ("forward", "hybrid_forward"),
    lines=(nn.Sequential, nn.HybridSequential),
    lists_inside=True,
)  # fmt: skip


def _module(path: str, block: Any) -> ops.Module:
    has_parameters = any(isinstance(value, Parameter) for value in vars(block).values())
    return ops.Module(path, block, list(children(block).items()), has_parameters)


class MxnetLayers(Operations):
    def layers(self, model: Any) -> Iterable[Layer]:
        if not isinstance(model, Block):
            raise self.unsupported(
                f"layers in a {type(model).__qualname__}", "give the Block itself"
            )
        return layouts.all_bound(list(self._layers(model)), dict(self.variables(model)))

    def _layers(self, model: Any) -> Iterator[Layer]:
        for path, block in blocks(model):
            kind, settings = _kind(block)
            if not kind:
                continue
            own = self.parts(kind, settings)
            layout = options(block)["layout"] if kind.startswith("conv") else "NC"
            if not layout.startswith("NC"):
                why = f"in {layout} the weight of a Gluon convolution has another layout; build it in NCHW"
                own = dialects.refused(own, why)
            yield Layer(path, kind, tuple(own), settings)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        return ops.read([_module(*each) for each in blocks(model)], layers, _TABLE)

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        return dialects.mxnet(kind, settings)
