"""Keras's layers and layouts.

What must be kept:
- a kernel has its inputs and outputs behind the window, also with `data_format="channels_first"`;
- a variable of Keras goes by the name that `names` gives it, so it is found by itself, not by a name;
- an LSTM has one bias for PyTorch's two; a GRU has its gates in the order z, r, n, and PyTorch's formula only with
  `reset_after=True`, its default;
- `momentum` is the weight of the old value, PyTorch's that of the new one;
- beside a Flatten or Reshape of an image features go by rows, columns, channels, elsewhere by channels first: `pixels`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import keras
from keras import layers as kl

from xdevice.contract import layouts
from xdevice.contract.layouts import Layer, Part

from . import pixels

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from xdevice.contract import Backend

_NORM: Final = {"weight": "gamma", "bias": "beta"}
_NAMES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "linear": {"weight": "kernel"},
    "conv": {"weight": "kernel"},
    "conv_transpose": {"weight": "kernel"},
    "batch_norm": {
        **_NORM, "running_mean": "moving_mean", "running_var": "moving_variance", layouts.COUNTER: None,
    },
    "embedding": {"weight": "embeddings"},
    "layer_norm": _NORM,
    "prelu": {"weight": "alpha"},
}  # fmt: skip
_RULES: Final = {
    "linear": {"weight": layouts.TRANSPOSED},
    "conv": {"weight": layouts.KERNEL_FIRST},
    "conv_transpose": {"weight": layouts.KERNEL_FIRST},
}
_CONVS: Final = (kl.Conv1D, kl.Conv2D, kl.Conv3D)
_TRANSPOSED: Final = (kl.Conv1DTranspose, kl.Conv2DTranspose, kl.Conv3DTranspose)
_DEPTHWISE: Final = (kl.DepthwiseConv1D, kl.DepthwiseConv2D)


def parts(kind: str, settings: Mapping[str, object]) -> tuple[Part, ...]:
    if kind in layouts.RECURRENT:
        return _of_cell(kind, settings)
    own = layouts.parts(kind, settings, _NAMES, _RULES)
    if kind == "conv_transpose" and settings.get("groups", 1) != 1:
        return _refused(own, "Keras has no groups in a ConvTranspose; use one for each group")
    return own


def layers(model: Any, backend: Backend) -> Iterator[Layer]:
    if not isinstance(model, keras.Layer):
        raise backend.unsupported(f"layers in a {type(model).__qualname__}", "give the Keras model itself")
    names = {id(variable): name for name, variable in reversed(list(backend.variables(model)))}
    done: set[int] = set()
    orders = pixels.orders(model)
    for layer in model._flatten_layers():
        if id(layer) in done:
            continue
        found = _kind(layer)
        if found is None:
            continue
        kind, own, settings = found
        if id(layer) in orders:
            own = _out_of_order(kind, own, orders[id(layer)])
        if isinstance(layer, kl.Bidirectional):
            done |= {id(inner) for inner in layer._flatten_layers()}
        bound = _bound(layer, kind, own, names, settings)
        if bound is not None:
            yield bound


def _bound(
    layer: Any, kind: str, own: Sequence[Part], names: Mapping[int, str], settings: Mapping[str, object]
) -> Layer | None:
    there = []
    for part in own:
        variable = _variable(layer, part.name)
        if variable is not None:
            there.append(part._replace(name=names[id(variable._value)]))
    if not there:
        return None
    # what a recurrent layer holds is its cell's
    way = there[0].name.split("/")
    inside = 1 + (kind in layouts.RECURRENT) + isinstance(layer, kl.Bidirectional)
    return Layer(".".join(way[:-inside]), kind, tuple(there), settings)


def _variable(layer: Any, name: str) -> Any:
    for attribute in name.split("/"):
        layer = getattr(layer, attribute, None)
    return layer


def _kind(layer: Any) -> tuple[str, tuple[Part, ...], Mapping[str, object]] | None:
    settings: dict[str, object]
    if isinstance(layer, kl.Dense):
        settings = {"activation": _activation(layer)}
        return "linear", parts("linear", settings), settings
    if isinstance(layer, _DEPTHWISE):
        return "conv", _of_depthwise(layer), _of_conv(layer) | {"groups": int(layer.kernel.shape[-2])}
    if isinstance(layer, _CONVS):
        settings = _of_conv(layer) | {"groups": layer.groups}
        return "conv", parts("conv", settings), settings
    if isinstance(layer, _TRANSPOSED):
        settings = _of_conv(layer) | {"groups": 1, "output_padding": _output_padding(layer)}
        return "conv_transpose", parts("conv_transpose", settings), settings
    if isinstance(layer, kl.BatchNormalization):
        settings = {"eps": layer.epsilon, "momentum": 1 - layer.momentum}
        return "batch_norm", parts("batch_norm", settings), settings
    if isinstance(layer, kl.Embedding):
        settings = {"padding_idx": None, "max_norm": None}
        settings |= {"mask_zero": True} if layer.mask_zero else {}
        return "embedding", parts("embedding", {}), settings
    if isinstance(layer, kl.LayerNormalization):
        settings = {"eps": layer.epsilon}
        return "layer_norm", parts("layer_norm", settings), settings
    if isinstance(layer, kl.PReLU):
        return "prelu", (Part("alpha", ("weight",), layouts.shaped(tuple(layer.alpha.shape))),), {}
    return _recurrent(layer)


def _refused(own: Sequence[Part], why: str, only: Container[str] | None = None) -> tuple[Part, ...]:
    return tuple(
        part._replace(rule=layouts.refused(part.rule, why)) if only is None or part.of[0] in only else part
        for part in own
    )


def _out_of_order(kind: str, own: Sequence[Part], order: pixels.Order) -> tuple[Part, ...]:
    """Refuses what would have to be reordered: all that there is for each output, or the weights of the inputs."""
    if order.outputs or kind in ("batch_norm", "layer_norm", "prelu"):
        return _refused(own, order.why)
    only = () if kind == "embedding" else ("weight", "weight_ih_l0", "weight_ih_l0_reverse")
    return _refused(own, order.why, only)


# settings


def _of_conv(layer: Any) -> dict[str, object]:
    axes = layer.rank
    stride = tuple(layouts.per_axis(layer.strides, axes))
    dilation = tuple(layouts.per_axis(layer.dilation_rate, axes))
    padding: object = layer.padding
    if padding == "valid":
        padding = (0,) * axes
    elif padding == "same":
        padding = layouts.same_padding(layer.kernel_size, stride, dilation)
    return {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "padding_mode": "zeros",
        "activation": _activation(layer),
    }


def _output_padding(layer: Any) -> object:
    return layouts.per_axis(getattr(layer, "output_padding", None) or 0, layer.rank)


def _activation(layer: Any) -> str | None:
    name = getattr(layer.activation, "__name__", str(layer.activation))
    return None if name == "linear" else name


def _of_depthwise(layer: Any) -> tuple[Part, ...]:
    rule = layouts.depthwise(int(layer.kernel.shape[-1]))
    return Part("kernel", ("weight",), rule), Part("bias", ("bias",), layouts.SAME)


# recurrent layers


def _recurrent(layer: Any) -> tuple[str, tuple[Part, ...], Mapping[str, object]] | None:
    if isinstance(layer, kl.Bidirectional):
        return _both_ways(layer)
    if not isinstance(layer, kl.LSTM | kl.GRU):
        return None
    kind = "lstm" if isinstance(layer, kl.LSTM) else "gru"
    settings: dict[str, object] = {"layers": 1, "bidirectional": False, "batch_first": True}
    own = tuple(part._replace(name=f"cell/{part.name}") for part in _cell(kind, "l0"))
    if kind == "gru" and not layer.reset_after:
        return kind, _refused(own, "with reset_after=False it computes otherwise than a GRU elsewhere"), settings
    return kind, own, settings | _of_recurrent(layer)


def _both_ways(layer: Any) -> tuple[str, tuple[Part, ...], Mapping[str, object]] | None:
    one = _recurrent(layer.forward_layer)
    two = _recurrent(layer.backward_layer)
    if one is None or two is None or layer.merge_mode != "concat":
        return None
    kind, forward, settings = one
    backward = tuple(
        part._replace(name=f"backward_layer/{part.name}", of=tuple(f"{name}_reverse" for name in part.of))
        for part in two[1]
    )
    ahead = tuple(part._replace(name=f"forward_layer/{part.name}") for part in forward)
    return kind, tuple(chain(ahead, backward)), {**settings, "bidirectional": True}


def _of_recurrent(layer: Any) -> dict[str, object]:
    """What is not as PyTorch's is."""
    own = {
        "activation": getattr(layer.activation, "__name__", str(layer.activation)),
        "recurrent_activation": getattr(layer.recurrent_activation, "__name__", str(layer.recurrent_activation)),
    }
    usual = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    changed: dict[str, object] = {name: value for name, value in own.items() if value != usual[name]}
    return changed | ({"go_backwards": True} if layer.go_backwards else {})


def _of_cell(kind: str, settings: Mapping[str, object]) -> tuple[Part, ...]:
    own = _cell(kind, "l0")
    if settings.get("layers", 1) != 1 or settings.get("bidirectional"):
        return _refused(own, "a Keras LSTM or GRU has one layer in one direction; give like=, a model of them")
    return own


def _cell(kind: str, suffix: str) -> tuple[Part, ...]:
    biases = (f"bias_ih_{suffix}", f"bias_hh_{suffix}")
    weight, bias = layouts.TRANSPOSED, layouts.SUMMED
    if kind == "gru":
        weight, bias = layouts.GATES_ZRN, layouts.BIASES_ZRN
    return (
        Part("kernel", (f"weight_ih_{suffix}",), weight),
        Part("recurrent_kernel", (f"weight_hh_{suffix}",), weight),
        Part("bias", biases, bias),
    )
