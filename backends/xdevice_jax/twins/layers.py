"""Lists the layers with parameters in modules of Flax (nnx, linen) and Equinox, and describes how the layouts of their
weights differ from PyTorch's.

Facts that the code depends on:
- nnx and linen have the layouts of Keras. Kernels are (inputs, outputs), but those of convolutions have the window axes
  first, and those of an attention are (inputs, heads, size of a head). In these libraries, `momentum` is the weight of
  the old value.
- Equinox has PyTorch's layouts, but the bias of a convolution has an axis of length 1 for each axis of the window.
- nnx's OptimizedLSTMCell has one bias where PyTorch has two, and its LSTMCell has an array for each gate.
- All GRU cells have PyTorch's formula, in which r multiplies the state's part of n, including its bias. In nnx, that
  part has no bias.
- The batch norm of Equinox stores its statistics outside the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract.layers import Layers
from xdevice.twins.contract.layouts import Layer, Part, Rule, Settings

from . import linen
from .modules import equinox, is_equinox, is_nnx, nnx, variables, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_Description = tuple[str, tuple[Part, ...], Settings]
"""The kind, the parts and the settings of a layer with parameters."""


def _describe_nnx(module: Any) -> _Description | None:
    """Returns the kind, parts and settings of a layer of nnx. Returns None for a module that is not a layer with
    parameters, and for a module of an unknown class."""
    library: Any = nnx()
    settings: Settings
    # compares the exact class, because a subclass may compute something else. A setting that is None states that the
    # layer lacks what such layers may have in other frameworks
    match type(module):
        case library.Linear:
            kind, settings = "linear", {"activation": None}
        case library.Conv:
            kind, settings = "conv", _conv_settings(module)
        case library.ConvTranspose:
            kind, settings = "conv_transpose", _transposed_settings(module)
            return (
                kind,
                dialects.flax(kind, {"transpose_kernel": module.transpose_kernel}),
                settings,
            )
        # PyTorch's momentum is the weight of the new value, and Flax's momentum is the weight of the old value
        case library.BatchNorm:
            kind, settings = (
                "batch_norm",
                {"eps": module.epsilon, "momentum": 1 - module.momentum},
            )
        case library.LayerNorm:
            kind, settings = "layer_norm", {"eps": module.epsilon}
        case library.RMSNorm:
            kind, settings = "rms_norm", {"eps": module.epsilon}
        case library.GroupNorm:
            kind, settings = (
                "group_norm",
                {"eps": module.epsilon, "num_groups": module.num_groups},
            )
        case library.Embed:
            kind, settings = "embedding", {"padding_idx": None, "max_norm": None}
        case library.MultiHeadAttention:
            return (
                layouts.ATTENTION,
                dialects.projections(module.num_heads, module.head_dim, output="out"),
                _attention_settings(module),
            )
        # a bare cell has no loop over time, and is treated as code of the model
        case library.RNN if type(module.cell) is library.OptimizedLSTMCell:
            return "lstm", dialects.flax("lstm", {}), _recurrent_settings(module)
        case library.RNN if type(module.cell) is library.GRUCell:
            return "gru", dialects.flax("gru", {}), _recurrent_settings(module)
        case _:
            return None
    return kind, dialects.flax(kind, settings), settings


def _transposed_settings(module: Any) -> dict[str, object]:
    """Returns the settings of a ConvTranspose in PyTorch's terms. JAX's padding is the number of zeros that are added
    to each end of the input after the stride has spread the input. PyTorch adds dilation * (kernel - 1) - padding
    zeros."""
    stride, dilation = _stride_and_dilation(module)
    settings: dict[str, object] = {
        "stride": stride,
        "dilation": dilation,
        "groups": 1,  # a ConvTranspose of nnx has no groups
        "padding_mode": "zeros",
    }
    settings |= _mask_setting(module)
    # with padding=0, PyTorch adds this many zeros to each end
    sizes = [step * (size - 1) for size, step in zip(module.kernel_size, dilation, strict=True)]
    added = _added_zeros(module.padding, sizes, stride)
    # an unknown word is stated as it is, and then differs from every setting of PyTorch
    if added is None:
        return settings | {"padding": str(module.padding).lower()}
    # with `pads`, PyTorch adds as many zeros before the input as JAX does, and with output_padding also after it
    pads = tuple(size - first for size, (first, _) in zip(sizes, added, strict=True))
    return settings | {
        "padding": pads,
        "output_padding": tuple(last - first for first, last in added),
    }


def _stride_and_dilation(module: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the stride and the dilation of a convolution of nnx, each with a number for each axis."""
    axes = len(module.kernel_size)
    return layouts.per_axis(module.strides or 1, axes), layouts.per_axis(
        module.kernel_dilation or 1, axes
    )


def _added_zeros(
    padding: Any, sizes: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Returns a pair for each axis: the numbers of zeros that `jax.lax.conv_transpose` adds before and after the input.
    Returns None if `padding` is an unknown word. `sizes` is dilation * (kernel - 1) for each axis."""
    if not isinstance(padding, str):
        per_axis = layouts.per_axis(padding, len(sizes))
        return [(pad, pad) if isinstance(pad, int) else (pad[0], pad[1]) for pad in per_axis]
    # the padding that jax.lax.conv_transpose computes for these two words
    if padding == "VALID":
        return [(size, max(size, step - 1)) for size, step in zip(sizes, stride, strict=True)]
    if padding != "SAME":
        return None
    # with "SAME", the length of the output is the length of the input times the stride. `-(-total // 2)` is half of
    # `total`, rounded up
    totals = [size + step - 1 for size, step in zip(sizes, stride, strict=True)]
    firsts = [
        size if step > size else -(-total // 2)
        for size, step, total in zip(sizes, stride, totals, strict=True)
    ]
    return [(first, total - first) for first, total in zip(firsts, totals, strict=True)]


def _conv_settings(module: Any) -> dict[str, object]:
    """Returns the settings of a Conv of nnx in PyTorch's terms."""
    axes = len(module.kernel_size)
    stride, dilation = _stride_and_dilation(module)
    padding = module.padding
    # any other word, such as "CIRCULAR", stays unchanged, and then differs from every setting of PyTorch
    if padding == "SAME":
        padding = layouts.same_padding(module.kernel_size, stride, dilation)
    # "VALID" means no padding
    elif padding == "VALID":
        padding = (0,) * axes
    return {
        "stride": stride,
        "padding": _padding(padding, axes),
        "dilation": dilation,
        "groups": module.feature_group_count,
        "padding_mode": "zeros",
        **_mask_setting(module),
    }


def _mask_setting(module: Any) -> dict[str, object]:
    """Returns the setting for a convolution with a mask on its kernel, or an empty dict if there is no mask."""
    return {} if getattr(module, "mask", None) is None else {"mask": "of the kernel"}


def _padding(padding: Any, axes: int) -> object:
    """Returns a padding in PyTorch's terms. `padding` is a string (which is returned unchanged), a number, or a
    sequence. A sequence contains, for each axis, a number or a pair of numbers for the two sides."""
    per_axis = layouts.per_axis(padding, axes)
    if isinstance(per_axis, str):
        return per_axis
    pairs = [pad if isinstance(pad, tuple) else (pad, pad) for pad in per_axis]
    return layouts.padding_per_axis([side for pair in pairs for side in pair], axes)


def _attention_settings(module: Any) -> dict[str, object]:
    """Returns the settings of a MultiHeadAttention of nnx."""
    return {
        "num_heads": module.num_heads,
        "dropout": float(module.dropout_rate),
        "batch_first": True,
    }


def _recurrent_settings(module: Any) -> dict[str, object]:
    """Returns the settings of an RNN of nnx around one cell. The functions of the cell are included only if they differ
    from PyTorch's. `reverse` is included only if the RNN reads the sequence from its end, which no unidirectional layer
    of PyTorch does."""
    cell = module.cell
    settings = {**layouts.ONE_CELL, "batch_first": not module.time_major}
    for key, function, of_pytorch in (
        ("activation", cell.activation_fn, "tanh"),
        ("recurrent_activation", cell.gate_fn, "sigmoid"),
    ):
        name = getattr(function, "__name__", str(function))
        if name != of_pytorch:
            settings[key] = name
    if module.reverse:
        settings["reverse"] = True
    return settings


def _describe_equinox(module: Any) -> _Description | None:
    """Returns the kind, parts and settings of a layer of Equinox. Returns None for a module that is not a layer with
    parameters, and for a module of an unknown class. A subclass is treated like its base, because Conv1d to Conv3d are
    subclasses of Conv."""
    library: Any = equinox()
    library = library.nn
    settings: Settings
    # a setting that is None states that the layer lacks what such layers may have in other frameworks
    if isinstance(module, library.Linear):
        kind, settings = "linear", {"activation": None}
    elif isinstance(module, library.Conv):
        settings = {
            "stride": module.stride, "padding": _padding(module.padding, module.num_spatial_dims),
            "dilation": module.dilation, "groups": module.groups, "padding_mode": module.padding_mode.lower(),
        }  # fmt: skip
        # Equinox adds the bias by broadcasting to a single example of the shape (C, *image)
        bias = layouts.flat_in_torch((-1,) + (1,) * module.num_spatial_dims)
        # the names are PyTorch's, and only the rule for the bias differs from PyTorch's
        return "conv", layouts.parts("conv", settings, rules={"conv": {"bias": bias}}), settings
    elif isinstance(module, library.LayerNorm | library.RMSNorm):
        kind, settings = (
            "layer_norm" if isinstance(module, library.LayerNorm) else "rms_norm",
            {"eps": module.eps},
        )
    elif isinstance(module, library.GroupNorm):
        kind, settings = "group_norm", {"eps": module.eps, "num_groups": module.groups}
    elif isinstance(module, library.Embedding):
        kind, settings = "embedding", {"padding_idx": None, "max_norm": None}
    elif isinstance(module, library.LSTMCell | library.GRUCell):
        # an LSTM cell has one bias, and a GRU cell has four (see `modules._with_one_bias`)
        is_gru = isinstance(module, library.GRUCell)
        bias = layouts.BIASES_OF_GRU if is_gru else layouts.SUMMED
        return "gru" if is_gru else "lstm", _cell_parts(bias), layouts.ONE_CELL
    else:
        return None
    return kind, layouts.parts(kind, settings), settings


def _cell_parts(bias: Rule) -> tuple[Part, ...]:
    """Returns the parts of a cell of Equinox. `bias` is the rule for its biases."""
    return (
        Part("weight_ih", ("weight_ih_l0",), layouts.SAME),
        Part("weight_hh", ("weight_hh_l0",), layouts.SAME),
        Part("bias", ("bias_ih_l0", "bias_hh_l0"), bias),
    )


def _layers(model: Any) -> Iterator[Layer]:
    """Yields the layers with parameters of a module of nnx or Equinox. Each layer has all parts that a layer of its
    kind may have."""
    # the prefix of the paths inside the cell of the last recurrent layer; None before the first recurrent layer
    cell_prefix = None
    for path, module in walk(model):
        description = _describe_nnx(module) if is_nnx(module) else _describe_equinox(module)
        if description is None or (cell_prefix is not None and path.startswith(cell_prefix)):
            continue  # the linear layers of a cell belong to the recurrent layer
        # `walk` yields a module's contents directly after it, so the modules of the cell come next
        cell_prefix = f"{path}.cell." if description[0] in layouts.RECURRENT else cell_prefix
        kind, parts, settings = description
        # nnx converts the parameters to `dtype` before it computes; modules of Equinox have neither of these attributes
        dtype, stored_dtype = (getattr(module, name, None) for name in ("dtype", "param_dtype"))
        if None not in (dtype, stored_dtype) and jax.numpy.dtype(dtype) != jax.numpy.dtype(
            stored_dtype
        ):
            settings = {**settings, layouts.COMPUTES_IN: jax.numpy.dtype(dtype).name}
        yield Layer(path, kind, parts, settings)


class JaxLayers(Layers):
    """The hooks that list the layers of Flax and Equinox. `Layers` describes each hook."""

    dialects = ("flax", "haiku")

    def has_layers(self, x: object) -> bool:
        """Whether `x` is a module of Flax or Equinox."""
        return is_nnx(x) or is_equinox(x) or linen.is_linen(x)

    def write_layers(self, model: Any, values: Mapping[str, Any]) -> None:
        """Writes each of `values` into the module's variable of the same name; values with other names are ignored.
        Raises `UnsupportedError` for a linen module with frozen variables."""
        if linen.is_linen(model) and linen.is_frozen(model):
            raise self.unsupported(
                "writing into the frozen variables of a linen module",
                "bind the module to flax.core.unfreeze(variables)",
            )
        # a list, because writing replaces values over which the loop would iterate
        for variable in list(variables(model)):
            if variable.name in values:
                variable.write(values[variable.name])

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers with parameters of a module. Raises `UnsupportedError` for anything else."""
        if not self.has_layers(model):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects",
                "pass a module of nnx or Equinox, a linen module that is bound to its variables, or a dict",
            )
        # the bias of a layer without a bias is None, which is not a variable
        names = {variable.name for variable in variables(model)}
        layers = linen.layers(model) if linen.is_linen(model) else _layers(model)
        # mixed precision sets the dtype for every layer, so only the first layer states it, with the number of the
        # other layers
        return layouts.stated_once(layouts.present_layers(layers, names), layouts.COMPUTES_IN)
