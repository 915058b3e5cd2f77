"""Reads the layers with parameters out of modules of Flax (nnx, linen) and Equinox, and states how their weights are
laid out compared with PyTorch's.

Facts that the code depends on:
- nnx and linen have the layouts of Keras: kernels are (inputs, outputs), those of convolutions have the window first,
  and an attention's are (inputs, heads, numbers of a head). Their `momentum` is the weight of the old value.
- Equinox has PyTorch's layouts, but the bias of a convolution has an axis of length 1 for each axis of the window.
- nnx's OptimizedLSTMCell has one bias where PyTorch has two. Its GRUCell has none for the state, and its LSTMCell has
  an array for each gate.
- The batch norm of Equinox keeps its statistics outside the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.twins.contract import layouts
from xdevice.twins.contract.layers import Layers
from xdevice.twins.contract.layouts import Layer, Part, Settings

from . import linen
from .modules import equinox, is_equinox, is_nnx, nnx, variables, walk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

_NORM: Final = {"weight": "scale", "bias": "bias"}
_NAMES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "linear": {"weight": "kernel"},
    "conv": {"weight": "kernel"},
    "conv_transpose": {"weight": "kernel"},
    "batch_norm": {**_NORM, layouts.MEAN: "mean", layouts.VARIANCE: "var", layouts.COUNTER: None},
    "embedding": {"weight": "embedding"},
    "layer_norm": _NORM,
    "rms_norm": {"weight": "scale"},
    "group_norm": _NORM,
}
_RULES: Final = {
    "linear": {"weight": layouts.TRANSPOSED},
    "conv": {"weight": layouts.KERNEL_FIRST},
    "conv_transpose": {"weight": layouts.KERNEL_FIRST},
}
_PROJECTIONS: Final = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
_Kind = tuple[str, tuple[Part, ...], Settings]


def _of_nnx(module: Any) -> _Kind | None:
    """Kind, parts and settings of a layer of nnx; None if it is not one that has parameters and a counterpart."""
    library: Any = nnx()
    settings: Settings
    match type(module):
        case library.Linear:
            kind, settings = "linear", {"activation": None}
        case library.Conv:
            kind, settings = "conv", _of_conv(module)
        case library.ConvTranspose:
            # without transpose_kernel nnx does not turn the window, and PyTorch does
            return "conv_transpose", _refused("conv_transpose", "nnx turns the window the other way"), {}
        case library.BatchNorm:
            kind, settings = "batch_norm", {"eps": module.epsilon, "momentum": 1 - module.momentum}
        case library.LayerNorm:
            kind, settings = "layer_norm", {"eps": module.epsilon}
        case library.RMSNorm:
            kind, settings = "rms_norm", {"eps": module.epsilon}
        case library.GroupNorm:
            kind, settings = "group_norm", {"eps": module.epsilon, "num_groups": module.num_groups}
        case library.Embed:
            kind, settings = "embedding", {"padding_idx": None, "max_norm": None}
        case library.MultiHeadAttention:
            return layouts.ATTENTION, tuple(_attention(module.num_heads, module.head_dim)), _of_attention(module)
        case library.RNN if isinstance(module.cell, library.OptimizedLSTMCell):
            return "lstm", _CELL, _of_recurrent(module)
        case _:
            return None
    return kind, layouts.parts(kind, settings, _NAMES, _RULES), settings


_CELL: Final = (
    Part("cell.dense_i.kernel", ("weight_ih_l0",), layouts.TRANSPOSED),
    Part("cell.dense_h.kernel", ("weight_hh_l0",), layouts.TRANSPOSED),
    Part("cell.dense_h.bias", ("bias_ih_l0", "bias_hh_l0"), layouts.SUMMED),
)


def _refused(kind: str, why: str) -> tuple[Part, ...]:
    own = layouts.parts(kind, {}, _NAMES, _RULES)
    return tuple(part._replace(rule=layouts.refused(part.rule, why)) for part in own)


def _of_conv(module: Any) -> dict[str, object]:
    axes = len(module.kernel_size)
    stride, dilation = (layouts.per_axis(one or 1, axes) for one in (module.strides, module.kernel_dilation))
    padding = module.padding
    if padding == "SAME":
        padding = layouts.same_padding(module.kernel_size, stride, dilation)
    elif padding == "VALID":
        padding = (0,) * axes
    return {
        "stride": stride,
        "padding": _padding(padding, axes),
        "dilation": dilation,
        "groups": module.feature_group_count,
        "padding_mode": "zeros",
    }


def _padding(padding: Any, axes: int) -> object:
    """A padding in PyTorch's terms; for each axis it is a number, or a pair of numbers for its two sides."""
    each = layouts.per_axis(padding, axes)
    if isinstance(each, str):
        return each
    return layouts.sides([side for one in each for side in (one if isinstance(one, tuple) else (one, one))], axes)


def _attention(heads: int, size: int) -> Iterator[Part]:
    for theirs, name in _PROJECTIONS.items():
        yield Part(f"{name}.kernel", (f"{theirs}.weight",), layouts.kernel((-1,), (heads, size)))
        yield Part(f"{name}.bias", (f"{theirs}.bias",), layouts.shaped((heads, size)))
    yield Part("out.kernel", ("out_proj.weight",), layouts.kernel((heads, size), (-1,)))
    yield Part("out.bias", ("out_proj.bias",), layouts.SAME)


def _of_attention(module: Any) -> dict[str, object]:
    return {"num_heads": module.num_heads, "dropout": float(module.dropout_rate), "batch_first": True}


def _of_recurrent(module: Any) -> dict[str, object]:
    return {
        "layers": 1, "bidirectional": False, "projection": 0, "batch_first": not module.time_major, "dropout": 0.0,
    }  # fmt: skip


def _of_equinox(module: Any) -> _Kind | None:
    """The same for a layer of Equinox."""
    library: Any = equinox()
    library = library.nn
    settings: Settings
    if isinstance(module, library.Linear):
        kind, settings = "linear", {"activation": None}
    elif isinstance(module, library.Conv):
        settings = {
            "stride": module.stride, "padding": _padding(module.padding, module.num_spatial_dims),
            "dilation": module.dilation, "groups": module.groups, "padding_mode": module.padding_mode.lower(),
        }  # fmt: skip
        bias = layouts.shaped((-1,) + (1,) * module.num_spatial_dims)
        return "conv", layouts.parts("conv", settings, {}, {"conv": {"bias": bias}}), settings
    elif isinstance(module, library.LayerNorm | library.RMSNorm):
        kind, settings = "layer_norm" if isinstance(module, library.LayerNorm) else "rms_norm", {"eps": module.eps}
    elif isinstance(module, library.GroupNorm):
        kind, settings = "group_norm", {"eps": module.eps, "num_groups": module.groups}
    elif isinstance(module, library.Embedding):
        kind, settings = "embedding", {"padding_idx": None, "max_norm": None}
    elif isinstance(module, library.LSTMCell):
        return "lstm", _OF_CELL, {"layers": 1, "bidirectional": False, "projection": 0, "dropout": 0.0}
    else:
        return None
    return kind, layouts.parts(kind, settings), settings


_OF_CELL: Final = (
    Part("weight_ih", ("weight_ih_l0",), layouts.SAME),
    Part("weight_hh", ("weight_hh_l0",), layouts.SAME),
    Part("bias", ("bias_ih_l0", "bias_hh_l0"), layouts.SUMMED),
)


def _of_linen(layer: linen.LinenLayer, names: Container[str]) -> Layer | None:
    """A layer of linen, whose settings are not known."""
    settings: dict[str, object] = {}
    if layer.kind == layouts.ATTENTION:
        own = tuple(_attention(*layer.heads))
    elif layer.kind == "lstm":
        cell = "cell." if layouts.join(layer.path, _CELL[0].name) in names else ""
        own = tuple(part._replace(name=cell + part.name.removeprefix("cell.")) for part in _CELL)
        settings = {"layers": 1, "bidirectional": False, "projection": 0}
    else:
        own = layouts.parts(layer.kind, settings, _NAMES, _RULES)
    return layouts.bound(layer.path, layer.kind, own, names, settings)


class JaxLayers(Layers):
    def has_layers(self, x: object) -> bool:
        return is_nnx(x) or is_equinox(x) or linen.is_linen(x)

    def write_layers(self, model: Any, values: Mapping[str, Any]) -> None:
        if linen.is_linen(model) and linen.is_frozen(model):
            raise self.unsupported("writing into a FrozenDict", "bind flax.core.unfreeze(variables)")
        for one in list(variables(model)):
            if one.name in values:
                one.write(values[one.name])

    def layers(self, model: Any) -> Iterable[Layer]:
        if not self.has_layers(model):
            raise self.unsupported(
                f"layers in a {type(model).__qualname__}",
                "give a module of nnx or Equinox, one of linen that is bound to its variables, or a dict",
            )
        names = {one.name for one in variables(model)}
        if linen.is_linen(model):
            yield from filter(None, (_of_linen(layer, names) for layer in linen.layers(model)))
            return
        for path, module in walk(model):
            description = (_of_nnx if is_nnx(module) else _of_equinox)(module)
            if description is not None:
                kind, own, settings = description
                yield from filter(None, [layouts.bound(path, kind, own, names, settings)])
