"""How frameworks and libraries name and lay out the parameters of layers, compared with PyTorch. With these tables, a
file or dict of a framework can be read even if the framework is not installed. The adapters use the same tables to read
their models. O is the number of outputs, and I the number of inputs.

| dialect | used by | weight of a linear layer |
|---|---|---|
| torch | PyTorch, Equinox, plain dicts of NumPy | `weight` (O, I) |
| paddle | Paddle | `weight` (I, O) |
| mxnet | Gluon | `weight` (O, I) |
| tensorflow | Keras | `kernel` (I, O) |
| flax | Flax (nnx and linen) | `kernel` (I, O) |
| haiku | Haiku, and dicts with weights for `x @ w` | `w` (I, O) |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from . import layouts
from .layouts import Part, Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Mapping

    Names = Mapping[str, Mapping[str, str | None]]

PartsOf: TypeAlias = Callable[[str, Settings], Sequence[Part]]
"""A function that returns the parts that a layer may have. It is called with the layer's kind and settings."""
# queries, keys and values
_FIRST: Final = ("q", "k", "v")
_WITH_KERNEL: Final = ("linear", "conv", "conv_transpose")
# the rules of Keras, which Flax and Haiku share except for transposed convolutions: the first two axes of PyTorch's
# weight are exchanged, and come after the axes of the window
_KERNELS: Final = {
    **{kind: {"weight": layouts.KERNEL_FIRST} for kind in _WITH_KERNEL},
    "linear": {"weight": layouts.TRANSPOSED},
}
_NO_STATISTICS: Final = dict.fromkeys((layouts.MEAN, layouts.VARIANCE, layouts.COUNTER))
"""The names of the statistics of an instance norm. Only PyTorch has these statistics. Each name therefore maps to None,
which `layouts.parts` reads as a parameter that the framework lacks."""


def refused_parts(
    own_parts: Sequence[Part], why: str, only: Container[str] | None = None
) -> tuple[Part, ...]:
    """Returns `own_parts` with some parts marked as not convertible, for the reason `why`. A part is marked if its
    first PyTorch parameter is in `only`; if `only` is None, every part is marked."""
    return tuple(
        part._replace(rule=layouts.refused(part.rule, why))
        if only is None or part.of[0] in only
        else part
        for part in own_parts
    )


# Paddle

AVERAGES: Final = ("_mean", "_variance")
"""The names of the running mean and variance of a batch norm in Paddle's states."""
_PADDLE: Final[Names] = {
    "batch_norm": {
        "running_mean": AVERAGES[0],
        "running_var": AVERAGES[1],
        layouts.COUNTER: None,
    },
    "instance_norm": {"weight": "scale", **_NO_STATISTICS},
    "prelu": {"weight": "_weight"},
    layouts.ATTENTION: {"bias_k": None, "bias_v": None},
}
_PADDLE_RULES: Final = {
    "linear": {"weight": layouts.TRANSPOSED},
    "layer_norm": {"weight": layouts.FLAT, "bias": layouts.FLAT},
    layouts.ATTENTION: {f"{name}_proj.weight": layouts.TRANSPOSED for name in (*_FIRST, "out")},
}
# Paddle uses PyTorch's names, except for the projection of an LSTM
_PADDLE_CELL: Final = {name: name for name in layouts.KINDS["lstm"]} | {
    "weight_hr": "weight_ho"
}


def paddle(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a layer in Paddle, given the layer's kind and settings."""
    # with proj_size, the names in the LSTM itself refer to the wrong parameters in Paddle 3.3.1; the names in its
    # cells are right
    if settings.get("projection"):
        paths = "{}.cell", "{}.cell_fw", "{}.cell_bw"
        return tuple(_cells(settings, paths, _PADDLE_CELL, {"weight_hr": layouts.TRANSPOSED}))
    return layouts.parts(kind, settings, _PADDLE, _PADDLE_RULES)


def _cells(
    settings: Settings,
    paths: tuple[str, str, str],
    names: Mapping[str, str],
    rules: Mapping[str, layouts.Rule] = MappingProxyType({}),
) -> Iterator[Part]:
    """Yields the parts of all cells of a recurrent layer. `paths` contains three patterns for the path of a cell, each
    with a placeholder for the number of the cell's level. The first is for a layer with one direction; the other two
    are for the forward and the backward cells of a bidirectional layer. `names` maps PyTorch's names of a cell's
    parameters to the framework's names. `rules` maps PyTorch's names to the rules of the parameters."""
    of_one_direction, *of_both = paths
    for suffix in layouts.suffixes(settings):
        # a suffix such as "l0_reverse" contains the number, and then "reverse" or nothing
        number, _, reverse = suffix[1:].partition("_")
        # the pattern at index 1 of `of_both` is for the backward direction
        path = of_both[bool(reverse)] if settings.get("bidirectional") else of_one_direction
        for name, own_name in names.items():
            rule = rules.get(name, layouts.SAME)
            yield Part(f"{path.format(number)}.{own_name}", (f"{name}_{suffix}",), rule)


# Gluon

_GAMMA: Final = {"weight": "gamma", "bias": "beta"}
_MXNET: Final[Names] = {
    "batch_norm": {**_GAMMA, layouts.COUNTER: None},
    "layer_norm": _GAMMA,
    "group_norm": _GAMMA,
    "instance_norm": {**_GAMMA, **_NO_STATISTICS},
    "prelu": {"weight": "alpha"},
}
_MXNET_CELL: Final = {
    "weight_ih": "i2h_weight", "weight_hh": "h2h_weight", "bias_ih": "i2h_bias", "bias_hh": "h2h_bias",
}  # fmt: skip


def mxnet(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a layer in Gluon, given the layer's kind and settings. Gluon has no attention layer, so the
    values of an attention layer are marked as not convertible."""
    if kind in layouts.RECURRENT:
        # Gluon still saves recurrent layers under the names of an older format, in which they consisted of cells
        paths = "_unfused.{}", "_unfused.{}.l_cell", "_unfused.{}.r_cell"
        return tuple(_cells(settings, paths, _MXNET_CELL))
    own_parts = layouts.parts(kind, settings, _MXNET)
    if kind == layouts.ATTENTION:
        return refused_parts(
            own_parts, "Gluon has no attention layer; build one from Dense layers"
        )
    # Gluon's group norm has one gamma for each group, and does not store the number of channels
    groups = settings.get("num_groups")
    if kind != "group_norm" or not isinstance(groups, int):
        return own_parts
    return tuple(part._replace(rule=layouts.per_group(groups)) for part in own_parts)


# Keras

_KERAS: Final[Names] = {
    **{kind: {"weight": "kernel"} for kind in _WITH_KERNEL},
    "batch_norm": {
        **_GAMMA, "running_mean": "moving_mean", "running_var": "moving_variance", layouts.COUNTER: None,
    },
    "embedding": {"weight": "embeddings"},
    "layer_norm": _GAMMA,
    "rms_norm": {"weight": "scale"},
    "group_norm": _GAMMA,
    "instance_norm": {**_GAMMA, **_NO_STATISTICS},
    "prelu": {"weight": "alpha"},
}  # fmt: skip
DEPTHWISE: Final = "depthwise_kernel"
"""The name of the kernel of a depthwise convolution in Keras files."""
_PROJECTIONS: Final = {"q": "query", "k": "key", "v": "value"}


def tensorflow(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a layer in Keras, given the layer's kind and settings. If Keras has no such layer, as for a
    ConvTranspose with groups, the values are marked as not convertible."""
    if kind in layouts.RECURRENT:
        return _keras_layer(kind, settings)
    if kind == layouts.ATTENTION:
        return keras_attention(settings)
    own_parts = layouts.parts(kind, settings, _KERAS, _KERNELS)
    if kind == "conv_transpose" and settings.get("groups", 1) != 1:
        return refused_parts(
            own_parts, "a Keras ConvTranspose supports no groups; use one layer for each group"
        )
    return own_parts


def keras_attention(settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of Keras's MultiHeadAttention. If `settings` lacks `num_heads`, the rules of the parts raise
    `layouts.UnfitError` when they convert from PyTorch."""
    # 0 means that the number of heads is not known. `str` is there only for type checkers, to which a setting is an
    # `object`. The size of a head is -1 (any size), because it follows from the weight
    heads = int(str(settings.get("num_heads", 0)))
    own_parts = projections(heads, size=-1, output="attention_output")
    if heads:
        return own_parts
    why = "the number of heads is not known; pass a model as like="
    return tuple(
        part
        if part.rule is layouts.SAME
        else part._replace(rule=layouts.refused_from_torch(part.rule, why))
        for part in own_parts
    )


def projections(heads: int, size: int, output: str) -> tuple[Part, ...]:
    """Returns the parts of an attention layer of Keras or Flax. Where PyTorch's weights have a single axis, the kernels
    of these layers have two: one for the heads, and one for the elements of each head. `heads` is the number of heads,
    and `size` the size of a head. Either may be -1, which means any size. Conversion from PyTorch is possible only if
    at most one of `heads` and `size` is -1. `output` is the framework's name for the output projection."""
    # the axes of the heads come last in the kernels of queries, keys and values, and first in the output's kernel
    head_axes = (heads, size)
    own_parts = []
    for short, name in _PROJECTIONS.items():
        weight = layouts.kernel((-1,), head_axes)
        own_parts.append(Part(f"{name}.kernel", (f"{short}_proj.weight",), weight))
        own_parts.append(
            Part(f"{name}.bias", (f"{short}_proj.bias",), layouts.flat_in_torch(head_axes))
        )
    weight = layouts.kernel(head_axes, (-1,))
    own_parts.append(Part(f"{output}.kernel", ("out_proj.weight",), weight))
    own_parts.append(Part(f"{output}.bias", ("out_proj.bias",), layouts.SAME))
    return tuple(own_parts)


def _keras_layer(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a recurrent Keras layer, which always has a single level and a single direction. If
    `settings` describe any other recurrent layer, the values are marked as not convertible."""
    own_parts = keras_cell(kind, "l0")
    if settings.get("projection"):
        return refused_parts(own_parts, "Keras has no LSTM with a projection")
    if settings.get("layers", 1) != 1 or settings.get("bidirectional"):
        return refused_parts(
            own_parts,
            "a Keras RNN, LSTM or GRU has one layer in one direction; pass a model with several layers as like=",
        )
    return own_parts


def _keras_file(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts that a layer has in a Keras file. The parts are the same as in `tensorflow`, except that a
    bidirectional layer has the parts of its forward and backward layers."""
    # exactly the settings that `reading` tries for a file. A layer of a model has more settings, and its parts come
    # from `tensorflow`
    if kind in layouts.RECURRENT and settings == {"layers": 1, "bidirectional": True}:
        sides = {"forward_layer": "l0", "backward_layer": "l0_reverse"}
        return tuple(
            part._replace(name=f"{side}.cell.{part.name}")
            for side, suffix in sides.items()
            for part in keras_cell(kind, suffix)
        )
    return tensorflow(kind, settings)


def keras_cell(kind: str, suffix: str) -> tuple[Part, ...]:
    """Returns the parts of one cell of a recurrent Keras layer. `suffix`, such as "l0", is the suffix of PyTorch's
    names for the cell's parameters."""
    # Keras has one array for PyTorch's two biases: their sum or, in a GRU, two rows with one bias each
    biases = (f"bias_ih_{suffix}", f"bias_hh_{suffix}")
    weight, bias = layouts.TRANSPOSED, layouts.SUMMED
    if kind == "gru":
        weight, bias = layouts.GATES_ZRN, layouts.BIASES_ZRN
    return (
        Part("kernel", (f"weight_ih_{suffix}",), weight),
        Part("recurrent_kernel", (f"weight_hh_{suffix}",), weight),
        Part("bias", biases, bias),
    )


# Flax

_SCALE: Final = {"weight": "scale", "bias": "bias"}
_FLAX: Final[Names] = {
    **{kind: {"weight": "kernel"} for kind in _WITH_KERNEL},
    "batch_norm": {
        **_SCALE,
        layouts.MEAN: "mean",
        layouts.VARIANCE: "var",
        layouts.COUNTER: None,
    },
    "embedding": {"weight": "embedding"},
    "layer_norm": _SCALE,
    "rms_norm": {"weight": "scale"},
    "group_norm": _SCALE,
}
# without transpose_kernel, the kernel of a ConvTranspose has the shape (*kernel, I, O), and its window is reversed
_FLAX_RULES: Final = _KERNELS | {"conv_transpose": {"weight": layouts.FLIPPED_KERNEL}}
_FLAX_KERNELS: Final = (
    Part("cell.dense_i.kernel", ("weight_ih_l0",), layouts.TRANSPOSED),
    Part("cell.dense_h.kernel", ("weight_hh_l0",), layouts.TRANSPOSED),
)
_BIASES: Final = ("bias_ih_l0", "bias_hh_l0")
FLAX_CELLS: Final[Mapping[str, tuple[Part, ...]]] = MappingProxyType(
    {
        "lstm": (*_FLAX_KERNELS, Part("cell.dense_h.bias", _BIASES, layouts.SUMMED)),
        "gru": (
            *_FLAX_KERNELS,
            Part("cell.dense_i.bias", _BIASES, layouts.BIAS_OF_INPUT),  # in nnx
            Part("cell.bias", _BIASES, layouts.BIASES_OF_GRU),  # in linen
        ),
    }
)
"""The parts of a Flax RNN with a single cell, by the kind of the cell. A GRU has only one of its two bias parts: the
first in nnx, the second in linen."""
LINEN_CELLS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "lstm": {
            "dense_i.kernel": ("ii.kernel", "if.kernel", "ig.kernel", "io.kernel"),
            "dense_h.kernel": ("hi.kernel", "hf.kernel", "hg.kernel", "ho.kernel"),
            "dense_h.bias": ("hi.bias", "hf.bias", "hg.bias", "ho.bias"),
        },
        "gru": {
            "dense_i.kernel": ("ir.kernel", "iz.kernel", "in.kernel"),
            "dense_h.kernel": ("hr.kernel", "hz.kernel", "hn.kernel"),
            "bias": ("ir.bias", "iz.bias", "in.bias", "hn.bias"),
        },
    }
)
"""The names of the arrays in a linen cell, which has a separate array for each gate. The outer keys are the kinds of
cells. An inner key is the name of the array that results from joining the listed arrays along their last axis."""


def linen_cells(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields a pair of the path and the kind ("lstm" or "gru") for each linen cell. A cell is yielded only if `names`
    contains the names of all its arrays."""
    # the name of an array consists of the path of the cell and two more names, as in "path.ii.kernel"
    for path in dict.fromkeys(name.rpartition(".")[0].rpartition(".")[0] for name in names):
        for kind, joined in LINEN_CELLS.items():
            if all(
                layouts.join(path, name) in names
                for of_gates in joined.values()
                for name in of_gates
            ):
                yield path, kind


def flax(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a layer in Flax, given the layer's kind and settings."""
    if kind in FLAX_CELLS:
        return FLAX_CELLS[kind]
    if kind == layouts.ATTENTION:
        # `str` is there only for type checkers, to which a setting is an `object`. -1 means any size, which is enough
        # for reading kernels
        heads = int(str(settings.get("num_heads", -1)))
        return projections(heads, size=-1, output="out")
    # with transpose_kernel, the kernel of a ConvTranspose is as in Keras: its shape is (*kernel, O, I), and its window
    # is not reversed
    return layouts.parts(
        kind, settings, _FLAX, _KERNELS if settings.get("transpose_kernel") else _FLAX_RULES
    )


# Haiku

_OFFSET: Final = {"weight": "scale", "bias": "offset"}
_HAIKU: Final[Names] = {
    **{kind: {"weight": "w", "bias": "b"} for kind in _WITH_KERNEL},
    "batch_norm": {
        **_OFFSET, layouts.MEAN: "mean_ema.average", layouts.VARIANCE: "var_ema.average", layouts.COUNTER: None,
    },
    "embedding": {"weight": "embeddings"},
    "layer_norm": _OFFSET,
    "rms_norm": _OFFSET,
    "group_norm": _OFFSET,
    "instance_norm": {**_OFFSET, **_NO_STATISTICS},
}  # fmt: skip
_HAIKU_RULES: Final = _KERNELS | {"conv_transpose": {"weight": layouts.FLIPPED_KERNEL}}


def haiku(kind: str, settings: Settings) -> tuple[Part, ...]:
    """Returns the parts of a layer in Haiku, given the layer's kind and settings."""
    return layouts.parts(kind, settings, _HAIKU, _HAIKU_RULES)


DIALECTS: Final[Mapping[str, PartsOf]] = MappingProxyType(
    {
        "torch": layouts.parts, "paddle": paddle, "mxnet": mxnet, "flax": flax, "tensorflow": _keras_file,
        "haiku": haiku,
    }
)  # fmt: skip
"""For each dialect, the function that returns the parts of a layer."""
