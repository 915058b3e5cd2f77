"""Reads the layers of Keras's models. Lists the layers with parameters, and describes how the layouts of their weights
differ from PyTorch's. Describes the computations of all layers in PyTorch's terms.

Facts about Keras that the code depends on:
- The kernel of a convolution has the axes of the window first, followed by the axes of inputs and outputs, even with
  `data_format="channels_first"`.
- Keras's own names of variables are not unique. So the module `names` assigns a name to each variable, and this module
  looks the name up by the `id` of the variable.
- An LSTM or RNN has one bias; PyTorch has two. The order of the gates in a GRU is z, r, n. A GRU computes PyTorch's
  formula only with `reset_after=True`, which is the default.
- An EinsumDense that sums over the first axes of its kernel is a Linear whose features are spread over several axes.
- A MultiHeadAttention contains four EinsumDense layers, whose kernels have a separate axis for the heads. The heads may
  have any size.
- Keras's `momentum` is the weight of the old value, but PyTorch's is the weight of the new
  value.
- Next to a Flatten or Reshape of an image, Keras orders features by rows, columns, channels. Other frameworks order
  them by channels, rows, columns (see the module `pixels`).

Rules for the layers without parameters:
- The activation of a Dense or a convolution gets a separate entry, as in frameworks in which it is a layer.
- A ReLU with a slope or a maximum is listed under the name of the function that it computes, such as "leaky_relu".
- An average pool leaves padded values out of the mean, and "same" is the only padding that it
  supports.
- In Keras, the channels are the last axis unless `data_format` says otherwise. The axis of a softmax is an axis of the
  tensor in Keras's order.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import keras
from keras import layers as kl

from xdevice.twins.contract import dialects, layouts
from xdevice.twins.contract import operations as ops
from xdevice.twins.contract.layers import Operations
from xdevice.twins.contract.layouts import Layer, Part
from xdevice_tensorflow import names as _names
from xdevice_tensorflow.parts import layers_in, nodes_of, tf_variable

from . import pixels, wiring
from .axes import axis_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.twins.contract.layouts import Settings

    _Description = tuple[str, tuple[Part, ...], Settings]
    """The kind, the parts and the settings of a layer with parameters."""

_CONVS: Final = (kl.Conv1D, kl.Conv2D, kl.Conv3D)
_TRANSPOSED: Final = (kl.Conv1DTranspose, kl.Conv2DTranspose, kl.Conv3DTranspose)
_DEPTHWISE: Final = (kl.DepthwiseConv1D, kl.DepthwiseConv2D)


_RECURRENT: Final = {kl.SimpleRNN: "rnn", kl.LSTM: "lstm", kl.GRU: "gru"}


def _with_variable_names(
    layer: Any, kind: str, parts: Sequence[Part], names: Mapping[int, str], settings: Settings
) -> Layer | None:
    """Returns the description of a layer. The description contains each part in `parts` that the layer has, under the
    name of the part's variable. `names` maps the `id` of a variable to its name. Returns None if the layer has no
    parameters, or if one of its weights is computed from other variables."""
    present = []
    for part in parts:
        variable = _variable(layer, part.name)
        if variable is None:
            continue
        # with LoRA, or if the weights are packed into int4, `kernel` is not a variable, but is
        # computed
        name = names.get(id(tf_variable(variable)))
        if name is None:
            return None
        present.append(part._replace(name=name))
    if not present:
        return None
    # the name of a variable is the path of its layer, followed by `own_names` more names
    own_names = 1  # the variable's own name
    if kind in (*layouts.RECURRENT, layouts.ATTENTION):
        own_names += 1  # the cell of a recurrent layer, or the projection of an attention
    if isinstance(layer, kl.Bidirectional):
        own_names += 1  # the direction
    segments = present[0].name.split("/")
    return Layer(".".join(segments[:-own_names]), kind, tuple(present), settings)


def _variable(layer: Any, name: str) -> Any:
    """Returns the variable of a layer at `name`, which consists of names of attributes, separated by slashes, such as
    "cell/kernel". Returns None if there is no such variable."""
    value = layer
    for attribute in name.split("/"):
        value = getattr(value, attribute, None)
    return value


def _with_usual_parts(kind: str, **settings: object) -> _Description:
    """Returns the description of a layer of this kind with these settings. The parts in the description are the
    parameters of Keras's own layer of this kind."""
    return kind, dialects.tensorflow(kind, settings), settings


def _describe(layer: Any) -> _Description | None:
    """Returns the kind, the parts and the settings of a layer if layers of its kind may have parameters. Returns None
    for any other layer."""
    # a user's subclass is described like its base; `operations` lists that it has its own code
    if isinstance(layer, kl.Dense):
        return _with_usual_parts("linear", activation=_activation(layer))
    if isinstance(layer, _DEPTHWISE):
        return (
            "conv",
            _depthwise_parts(layer),
            # one group for each channel of the input; the last two axes of the kernel are the
            # channels, and the outputs for each channel
            _conv_settings(layer) | {"groups": int(layer.kernel.shape[-2])},
        )
    if isinstance(layer, _CONVS):
        return _with_usual_parts("conv", **_conv_settings(layer), groups=layer.groups)
    if isinstance(layer, _TRANSPOSED):
        # the padding of `_transposed_padding` replaces that of `_conv_settings`
        return _with_usual_parts(
            "conv_transpose",
            **{**_conv_settings(layer), "groups": 1, **_transposed_padding(layer)},
        )
    if isinstance(layer, kl.BatchNormalization):
        # PyTorch's momentum is the weight of the new value, but Keras's is the weight of the
        # old value
        return _with_usual_parts("batch_norm", eps=layer.epsilon, momentum=1 - layer.momentum)
    if isinstance(layer, kl.Embedding):
        # later layers of Keras skip the masked steps, which no other framework does
        masks = {"mask_zero": True} if layer.mask_zero else {}
        # None, because Keras has neither of these two settings of PyTorch
        return _with_usual_parts("embedding", padding_idx=None, max_norm=None, **masks)
    if isinstance(layer, kl.LayerNormalization):
        # with rms_scaling, which Keras has deprecated, the layer has a different formula
        scales = {"rms_scaling": True} if getattr(layer, "rms_scaling", False) else {}
        return _with_usual_parts(
            "layer_norm", eps=layer.epsilon, **_axes_of_norm(layer), **scales
        )
    if isinstance(layer, pixels.RMS_NORMS):
        return _with_usual_parts("rms_norm", eps=layer.epsilon, **_axes_of_norm(layer))
    if isinstance(layer, kl.GroupNormalization):
        return _describe_group_norm(layer)
    if isinstance(layer, kl.PReLU):
        shape = tuple(layer.alpha.shape)
        # PyTorch's PReLU has one slope for each channel, or a single slope; Keras's may also have a slope for each
        # pixel
        axis = "channels" if all(size == 1 for size in shape[:-1]) else f"those of {shape}"
        return (
            "prelu",
            (Part("alpha", ("weight",), layouts.flat_in_torch(shape)),),
            {"axis": axis},
        )
    if isinstance(layer, kl.EinsumDense):
        return _describe_einsum(layer)
    if isinstance(layer, kl.MultiHeadAttention):
        return _describe_attention(layer)
    return _describe_recurrent(layer)


def _out_of_order(kind: str, parts: Sequence[Part], order: pixels.Order) -> tuple[Part, ...]:
    """Returns the parts (parameters) of a layer whose features are in Keras's order. If the outputs of the layer are in
    this order, all parts are marked as refused, because `pixels.orders` is never certain about outputs. If the inputs
    are in this order, only some parts are affected: all parts of a norm or PReLU, no part of an embedding, and the
    weights that multiply the inputs of any other layer. If the order of the pixels is certain, the affected parts get a
    rule that reorders their numbers. Otherwise, the affected parts are marked as refused."""
    # PyTorch's names of the affected parameters; None for all parameters
    only: tuple[str, ...] | None = (
        "weight", "weight_ih_l0", "weight_ih_l0_reverse", "q_proj.weight", "k_proj.weight", "v_proj.weight",
    )  # fmt: skip
    # every parameter of a norm or PReLU has one number for each feature
    if order.outputs or kind.endswith("norm") or kind == "prelu":
        only = None
    # the inputs of an embedding are indices, not features
    elif kind == "embedding":
        only = ()
    # `image` is empty for outputs, and for inputs if it is not certain which number is which pixel (see
    # `pixels.orders`)
    if not order.image:
        return dialects.refused_parts(parts, f"{order.why}; {layouts.BY_HAND}", only)
    return tuple(
        part._replace(rule=layouts.with_pixels_reordered(part.rule, order.image, order.why))
        # a part has a second name only if it is a bias, and `only` contains no biases
        if only is None or part.of[0] in only
        else part
        for part in parts
    )


# the settings and parts of layers with parameters


def _conv_settings(layer: Any) -> dict[str, object]:
    """Returns the settings that all kinds of convolutions have, in PyTorch's terms. If `layouts.same_padding` returns
    the string "same", this string is the padding."""
    axes = layer.rank
    stride = tuple(layouts.per_axis(layer.strides, axes))
    dilation = tuple(layouts.per_axis(layer.dilation_rate, axes))
    padding: object = layer.padding
    # "valid" means no padding
    if padding == "valid":
        padding = (0,) * axes
    elif padding == "same":
        padding = layouts.same_padding(
            layer.kernel_size, stride, dilation, pixels.size_of_image(layer)
        )
    # only Conv1D, whose images have one axis, has this padding: the zeros are all before the first step of the sequence
    elif padding == "causal":
        padding = layouts.padding_per_axis(
            [dilation[0] * (layer.kernel_size[0] - 1), 0], axes=1
        )
    return {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "padding_mode": "zeros",
        "activation": _activation(layer),
    }


def _transposed_padding(layer: Any) -> dict[str, object]:
    """Returns `padding` and `output_padding` of a transposed convolution in PyTorch's terms. Keras determines the size
    of the output, and TensorFlow cuts surplus elements off both ends of each axis. If the number of surplus elements is
    odd, TensorFlow cuts off one more element at the far end."""
    axes = layer.rank
    sizes = layouts.per_axis(layer.output_padding, axes) or (None,) * axes
    stride, dilation = (
        layouts.per_axis(value, axes) for value in (layer.strides, layer.dilation_rate)
    )
    pairs = []
    for arguments in zip(layer.kernel_size, stride, dilation, sizes, strict=True):
        pair = _padding_of_axis(layer.padding, *arguments)
        # None is possible only for "same". PyTorch has no numbers for an uneven cut, or for a cut
        # that depends on the size of the input, so the string itself is the setting
        if pair is None:
            return {
                "padding": layer.padding,
                "output_padding": tuple(size or 0 for size in sizes),
            }
        pairs.append(pair)
    return {
        "padding": tuple(padding for padding, _ in pairs),
        "output_padding": tuple(output_padding for _, output_padding in pairs),
    }


def _padding_of_axis(
    padding: str, kernel: int, stride: int, dilation: int, output_padding: int | None
) -> tuple[int, int] | None:
    """Converts Keras's arguments for one axis to PyTorch's padding and output_padding, and returns both. Returns None
    if PyTorch has no equivalent: if TensorFlow cuts different lengths off the two ends of the axis, or if the cut
    depends on the size of the input."""
    # the length of the kernel, including the gaps of its dilation
    reach = dilation * (kernel - 1) + 1
    if padding == "valid":
        # by default, the output is at least as long as input * stride
        return 0, max(stride - reach, 0) if output_padding is None else output_padding
    # the length of Keras's output is input * stride + extra. By default, extra is 0; with
    # output_padding, the length is (input - 1) * stride + reach % 2 + output_padding
    extra = 0 if output_padding is None else reach % 2 + output_padding - stride
    # without a cut, the length of the output is (input - 1) * stride + reach
    cut = max(reach - stride - extra, 0)
    # an odd cut is uneven, and PyTorch's output_padding must be less than the stride
    if cut % 2 or not -stride < extra <= 0:
        return None
    return cut // 2, stride - reach + extra + cut


def _activation(layer: Any) -> str | None:
    """Returns the name of the activation inside a layer, or None if the activation is the identity."""
    name = getattr(layer.activation, "__name__", str(layer.activation))
    # Keras uses the function `linear`, the identity, if there is no activation
    return None if name == "linear" else name


def _depthwise_parts(layer: Any) -> tuple[Part, ...]:
    """Returns the parts of a depthwise convolution."""
    # the last axis of the kernel is the number of outputs for each input channel
    rule = layouts.depthwise(int(layer.kernel.shape[-1]))
    return Part("kernel", ("weight",), rule), Part("bias", ("bias",), layouts.SAME)


def _axes_of_norm(layer: Any) -> dict[str, object]:
    """Returns a dict with the setting `axis`, which contains the axes over which a LayerNormalization works, counted
    from the end. Returns an empty dict if they are the last axes, as in other frameworks. The layer must be built."""
    rank = len(layer.get_build_config()["input_shape"])
    axes = sorted(
        # counted from the end, like PyTorch's normalized_shape
        axis - rank if axis >= 0 else axis
        for axis in layouts.per_axis(layer.axis, 1)
    )
    return {} if axes == list(range(-len(axes), 0)) else {"axis": tuple(axes)}


def _image_norm_parts(layer: Any, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Returns the parts (parameters) of a LayerNormalization. If the layer works over the rows, columns and channels of
    an image, the parts get the conversion rule that moves the channels to the front, as in other frameworks."""
    weights = [variable for variable in (layer.gamma, layer.beta) if variable is not None]
    rank = len(layer.get_build_config()["input_shape"])
    # a batch of images has at least four axes, and only a norm over all axes except the batch has a parameter for each
    # pixel
    if rank < 4 or not weights or weights[0].ndim != rank - 1:
        return parts
    return tuple(part._replace(rule=layouts.CHANNELS_LAST) for part in parts)


def _describe_group_norm(layer: Any) -> _Description:
    """Returns the kind, the parts and the settings of a GroupNormalization. If each channel is a group, it is called an
    instance norm in other frameworks."""
    # a layer created with groups=-1 has the number of channels as `groups` after it is built
    channels = layer.weights[0].shape[0] if layer.weights else None
    if layer.groups in (-1, channels):
        return _with_usual_parts("instance_norm", eps=layer.epsilon, running_stats=False)
    return _with_usual_parts("group_norm", eps=layer.epsilon, num_groups=layer.groups)


# dense layers of several axes


def _describe_einsum(layer: Any) -> _Description | None:
    """Returns the kind, the parts and the settings of an EinsumDense, which is described as a Linear. Returns None if
    the layer has not been built, if its kernel is not a matrix of inputs by outputs, or if its bias does not have one
    number for each output."""
    # such as "...c,cd->...d": the axes of the input, the kernel and the output, as one letter for
    # each axis. "..." stands for any number of axes of the input, which the output has too
    operands, _, result = layer.equation.replace("...", "").partition("->")
    inputs, _, kernel = operands.partition(",")
    # in "abc,cd->abd", c is summed, and d is an axis of the outputs
    summed_axes = "".join(axis for axis in kernel if axis not in result)
    output_axes = kernel[len(summed_axes) :]
    # the kernel has first the axes of inputs, then the axes of outputs, and no axis that both the input and the output
    # have
    is_matrix = (
        bool(summed_axes and output_axes)
        and kernel.startswith(summed_axes)
        and not set(output_axes) & set(inputs)
    )
    # as in a Linear, the features are the last axes of the input and of the output
    is_last = inputs.endswith(summed_axes) and result.endswith(output_axes)
    if not (is_matrix and is_last and layer.built) or (
        layer.bias is not None and layer.bias_axes != output_axes
    ):
        return None
    shape = tuple(layer.kernel.shape)
    count = len(summed_axes)
    parts = (
        Part("kernel", ("weight",), layouts.kernel(shape[:count], shape[count:])),
        Part("bias", ("bias",), layouts.flat_in_torch(shape[count:])),
    )
    return "linear", parts, {"activation": _activation(layer)}


def _describe_attention(layer: Any) -> _Description:
    """Returns the kind, the parts and the settings of a MultiHeadAttention. A setting that only Keras has is included
    if its value differs from the usual value."""
    settings: dict[str, object] = {
        "num_heads": layer.num_heads,
        "packed": _is_packed(layer),
        "dropout": float(layer.dropout),
        "batch_first": True,
    }
    # in PyTorch, the size of the input, the sum of the sizes of all heads, and the size of the
    # output are the same
    sizes = {layer.num_heads * layer.key_dim, layer.num_heads * layer.value_dim}
    if layer.built and sizes | {layer.output_dense.kernel.shape[-1]} != {
        layer.query_dense.kernel.shape[0]
    }:
        settings["head_dim"] = (layer.key_dim, layer.value_dim)
    axes = layer.attention_axes
    # the usual axis, that of the sequence (1), is left out, because other frameworks have no such setting
    if axes is not None and tuple(axes) != (1,):
        settings["attention_axes"] = tuple(axes)
    config = layer.get_config()
    for name in ("use_gate", "sliding_window"):  # Keras 3.0 does not have these settings yet
        if config.get(name):
            settings[name] = config[name]
    parts = []
    for part in dialects.keras_attention(settings):
        # "attention_output.kernel", the name in files, is "output_dense/kernel" in the layer
        name, _, last = part.name.rpartition(".")
        parts.append(
            part._replace(name=f"{'output' if 'output' in name else name}_dense/{last}")
        )
    return layouts.ATTENTION, tuple(parts), settings


def _is_packed(layer: Any) -> bool:
    """Whether the weights of queries, keys and values have the same shape. If so, PyTorch joins them into one array."""
    dense = (layer.query_dense, layer.key_dense, layer.value_dense)
    return layer.built and len({tuple(part.kernel.shape) for part in dense}) == 1


# recurrent layers


def _describe_recurrent(layer: Any) -> _Description | None:
    """Returns the kind, the parts and the settings of a SimpleRNN, an LSTM, a GRU, or a Bidirectional of two such
    layers. Returns None for any other layer."""
    if isinstance(layer, kl.Bidirectional):
        return _describe_bidirectional(layer)
    kind = next((kind for cls, kind in _RECURRENT.items() if isinstance(layer, cls)), None)
    if kind is None:
        return None
    settings: dict[str, object] = {
        "layers": 1, "bidirectional": False, "projection": 0, "batch_first": True, "dropout": 0.0,
    }  # fmt: skip
    parts = tuple(
        part._replace(name=f"cell/{part.name}") for part in dialects.keras_cell(kind, "l0")
    )
    # with reset_after=False, a GRU has only one bias for each gate, like an LSTM, and a different formula, so only its
    # shapes can be compared. The part that corresponds to two parameters of PyTorch is the bias
    if kind == "gru" and not layer.reset_after:
        parts = tuple(
            part._replace(rule=layouts.SUMMED) if len(part.of) == 2 else part for part in parts
        )
        return (
            kind,
            dialects.refused_parts(
                parts,
                "with reset_after=False, the formula differs from that of other frameworks",
            ),
            settings,
        )
    return kind, parts, settings | _recurrent_settings(layer)


def _describe_bidirectional(layer: Any) -> _Description | None:
    """Returns the kind, the parts and the settings of a Bidirectional. Returns None if `_describe_recurrent` cannot
    describe both of its layers, or if they are of different kinds."""
    forward = _describe_recurrent(layer.forward_layer)
    backward = _describe_recurrent(layer.backward_layer)
    # the first item of a description is the kind
    if forward is None or backward is None or forward[0] != backward[0]:
        return None
    kind, forward_parts, settings = forward
    _, backward_parts, backward_settings = backward
    parts = [part._replace(name=f"forward_layer/{part.name}") for part in forward_parts]
    for part in backward_parts:
        reverse_names = tuple(f"{name}_reverse" for name in part.of)
        parts.append(part._replace(name=f"backward_layer/{part.name}", of=reverse_names))
    # in other frameworks, both directions have the same settings, so a setting of the second direction is listed only
    # if it differs. `go_backwards` is left out, because Keras's second layer always has it
    differing = {}
    for name in dict.fromkeys((*settings, *backward_settings)):
        value = None if name == "go_backwards" else backward_settings.get(name)
        if not layouts.same_setting(settings.get(name), value):
            differing[f"{name} backwards"] = value
    return kind, tuple(parts), {**settings, **differing, "bidirectional": True}


def _recurrent_settings(layer: Any) -> dict[str, object]:
    """Returns the settings of a recurrent layer that differ from PyTorch's defaults. For a SimpleRNN, also returns the
    `nonlinearity`, which PyTorch's RNN always lists. A setting that PyTorch also has is listed under PyTorch's name,
    because layers of different frameworks are compared by these names."""
    activation = getattr(layer.activation, "__name__", str(layer.activation))
    changed: dict[str, object] = {}
    if isinstance(layer, kl.SimpleRNN):
        changed["nonlinearity"] = activation
    else:
        gate = getattr(layer.recurrent_activation, "__name__", str(layer.recurrent_activation))
        if activation != "tanh":
            changed["activation"] = activation
        if gate != "sigmoid":
            changed["recurrent_activation"] = gate
    # Keras drops inputs and states with the same mask for all steps, but PyTorch's `dropout` works between layers
    dropped = {"dropout_of_inputs": layer.dropout, "recurrent_dropout": layer.recurrent_dropout}
    changed |= {name: value for name, value in dropped.items() if value}
    # with stateful=True, each batch begins with the state at the end of the previous batch
    changed |= {name: True for name in ("stateful", "go_backwards") if getattr(layer, name)}
    return changed


# the computations of layers

_INTERPOLATIONS: Final = {"bicubic": "bicubic of Keys (a = -0.5)"}
"""Names for the interpolations of Keras that differ from PyTorch's interpolation of the same name. PyTorch's bicubic
interpolation has a = -0.75."""
_UNLISTED: Final = (
    kl.InputLayer, kl.Flatten, kl.Reshape, kl.Identity, kl.Add, kl.Subtract, kl.Multiply, kl.Average,
    kl.Maximum, kl.Minimum, kl.Concatenate, kl.Dot, keras.Sequential, keras.Model,
)  # fmt: skip
"""Layers that are not listed, because they have no settings, or because they are functions in other frameworks."""
_CONTAINERS: Final = (*_UNLISTED, kl.Wrapper, kl.RNN)
"""Layers that get no separate entry: unlisted layers, and layers that contain other layers. Some containers only call
the layers inside them. If a container does more, other entries describe this (those of recurrent layers, or from
`_merge_entry`)."""
_ARGUMENT_SETTINGS: Final = {"negative_slope": "slope", "alpha": "alpha", "axis": "axis"}
"""Maps parameters of Keras's activation functions to the corresponding settings."""
_PACKAGES: Final = ("keras", "tensorflow")
"""Packages whose functions compute what their names say. Their defaults may still differ: `keras.ops.gelu`
approximates, but `keras.activations.gelu` does not."""


def _lines(model: Any) -> dict[int, str]:
    """Returns a dict that maps the `id` of each layer of a functional model to the name of the layer's line, such as
    "line 2". Returns {} for a subclassed model. A line is a chain of layers in which the output of each layer is used
    only by the next layer. A function, or a layer that is called more than once, is a separate line."""
    # the graph of a functional model shows which layer uses which output
    graph = pixels.graph_of(list(pixels.all_layers(model)))
    # maps the `id` of each layer to the next layer of its line; the last layer of a line has no entry
    followers: dict[int, Any] = {}
    for op in graph.ops:
        after = list(graph.after(op))
        # only one op uses the output of `op`, and this op uses no other output
        is_followed = len(after) == 1 and len(list(graph.before(after[0]))) == 1
        if is_followed and _is_layer(op) and _is_layer(after[0]):
            followers[id(op)] = after[0]
    ids_of_followers = set(map(id, followers.values()))
    lines: list[list[Any]] = []
    for op in graph.ops:
        # not the first op of its line: the loop below reaches it from the first op
        if id(op) in ids_of_followers:
            continue
        line = [op]
        while (follower := followers.get(id(line[-1]))) is not None:
            line.append(follower)
        lines.append(line)
    # whether the model is a single chain from the input to the output
    is_chain = len(lines) == 1
    return {
        id(op): ops.WHOLE if is_chain else f"line {number}"
        for number, line in enumerate(lines)
        for op in line
    }


def _is_layer(op: Any) -> bool:
    """Whether `op` in the graph of a functional model is a layer (not a function) that is called only once."""
    return isinstance(op, keras.Layer) and len(nodes_of(op)) == 1


def _operations(model: Any, layers: Mapping[str, Layer]) -> Iterator[Layer]:
    """Yields entries for the layers of a model in the order of definition. For a layer with parameters, yields the
    entry in `layers`, followed by an entry for the activation. For any other layer, yields a new entry."""
    # the `id`s of layers that the entry of another layer includes
    included: set[int] = set()
    for path, layer in _names.layers(model):
        if id(layer) in included:
            continue
        has_layers = bool(layers_in(layer))
        # a layer with parameters
        if path in layers:
            # the entry includes the layers inside, such as the four dense layers of an
            # attention
            included |= {id(inner) for inner in pixels.all_layers(layer)}
            yield layers[path]
            if _TABLE.is_rewritten(layer):
                yield ops.entry_for_own_code(path, layer)
            yield from _merge_entry(path, layer)
            yield from _arguments_entry(path, layer)
            # a Bidirectional has no attribute `activation`, although its settings are those of
            # its layers
            function = getattr(layer, "activation", None)
            if layers[path].settings.get("activation") is not None and callable(function):
                yield _with_axis(_function_entry(f"{path}.activation", function), layer)
        # a layer that only computes, or that has parameters of its own and is of an unknown kind, such as a
        # SeparableConv2D; the code of the model itself is not read
        elif not has_layers and (path or not layer.weights):
            operation = _TABLE.read(path, layer)
            if operation is not None:
                yield _with_axis(operation, layer)
            yield from _arguments_entry(path, layer)
        # a loop over a cell, whose settings are listed for the cell itself
        elif isinstance(layer, kl.RNN):
            yield ops.plain(f"{path}()", ops.OTHER, **_loop_settings(layer))
        # one of Keras's own layers that does more than only call the layers inside it
        elif (
            has_layers
            and not isinstance(layer, _CONTAINERS)
            and type(layer).__module__.startswith("keras.")
        ):
            yield ops.unknown_layer(path, layer, _own_config(layer))


def _merge_entry(path: str, layer: Any) -> Iterator[Layer]:
    """Yields an entry for a Bidirectional that does not join the outputs of its two directions in PyTorch's way, or
    does not return all steps. Yields nothing for any other layer. In other frameworks, the code of the model would have
    to join the outputs or select the steps in this way."""
    if not isinstance(layer, kl.Bidirectional):
        return
    arguments = {"merge_mode": layer.merge_mode, "return_sequences": layer.return_sequences}
    # a bidirectional layer of PyTorch always has these settings
    default = {"merge_mode": "concat", "return_sequences": True}
    if arguments != default:
        yield ops.unknown_layer(
            f"{path}()", layer, ", ".join(f"{name}={arguments[name]}" for name in arguments)
        )


def _loop_settings(layer: Any) -> Settings:
    """Returns the settings of an RNN that are not those of its cell."""
    settings = {
        name: getattr(layer, name) for name in ("go_backwards", "return_sequences", "stateful")
    }
    return {"type": type(layer).__name__, **settings}


def _arguments_entry(path: str, layer: Any) -> Iterator[Layer]:
    """Yields an entry that lists the keyword arguments with which a functional model calls a layer, such as a mask or
    training=True. Yields nothing if there are no keyword arguments."""
    arguments = set()
    for node in nodes_of(layer):
        for name, value in node.arguments.kwargs.items():
            is_tensor = hasattr(value, "shape")
            # a tensor is listed only if it is a mask or a state, because all other tensors are inputs; any other
            # argument is listed unless it is false
            is_listed = ("mask" in name or "state" in name) if is_tensor else value
            if is_listed:
                arguments.add(f"{name}={'...' if is_tensor else value}")
    if arguments:
        yield ops.unknown_layer(f"{path}()", layer, ", ".join(sorted(arguments)))


def _max_pool(axes: int, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a MaxPooling over this number of axes."""
    window = (layer.pool_size, layer.strides, layer.padding)
    return ops.max_pool(path, axes, *window, image=pixels.size_of_image(layer))


def _avg_pool(axes: int, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an AveragePooling over this number of axes."""
    window = (layer.pool_size, layer.strides, layer.padding)
    return ops.avg_pool(
        path, axes, *window, count_include_pad=False, image=pixels.size_of_image(layer)
    )


def _upsample(_axes: int, path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, an UpSampling, which is the same for any number of axes."""
    mode = getattr(layer, "interpolation", "nearest")
    # Keras's `size` is the factor by which the layer multiplies the size; the size itself cannot be set
    return ops.upsample(
        path, size=None, scale_factor=layer.size, mode=_INTERPOLATIONS.get(mode, mode)
    )


def _pad(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a zero padding."""
    # ZeroPadding1D has only one pair; the other layers have a pair for each axis
    sides: Any = (
        layer.padding if isinstance(layer.padding[0], tuple | list) else (layer.padding,)
    )
    return ops.pad(path, [(first, last) for first, last in sides])


def _dropout(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a Dropout."""
    return ops.dropout(
        path,
        layer.rate,
        axes="each number" if layer.noise_shape is None else tuple(layer.noise_shape),
    )


def _layer_norm(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a LayerNormalization without parameters."""
    axes = 1 if isinstance(layer.axis, int) else len(layer.axis)
    return ops.plain(path, "layer_norm", eps=layer.epsilon, axes=axes)


def _group_norm(path: str, layer: Any) -> Layer:
    """Returns the description of the layer at `path`, a GroupNormalization without parameters."""
    # a layer that was created with groups=-1 has the number of channels as `groups` after it has been built;
    # `input_spec` contains this number
    if layer.groups in (-1, *(getattr(layer.input_spec, "axes", None) or {}).values()):
        return ops.plain(path, "instance_norm", eps=layer.epsilon)
    return ops.plain(path, "group_norm", eps=layer.epsilon, num_groups=layer.groups)


def _with_axis(operation: Layer, layer: Any) -> Layer:
    """Returns an entry with its setting `axis` converted to PyTorch's order of axes, and with the number of axes as
    `ndim`. Returns the entry unchanged if its `axis` is not a number. If the layer is not called exactly once in a
    functional model, also returns the entry unchanged, because the shapes are then unknown."""
    axis = operation.settings.get("axis")
    if not isinstance(axis, int) or len(nodes_of(layer)) != 1:
        return operation
    rank = len(nodes_of(layer)[0].output_tensors[0].shape)
    # Keras allows negative axes
    from_front = axis % rank
    # axis 0, the batch, is the first axis in both orders
    if from_front and _follows_channels_last(layer):
        # in PyTorch, the channels are on axis 1, and the number of each axis of the image is
        # greater by one
        from_front = from_front % (rank - 1) + 1
    return operation._replace(
        settings={**operation.settings, "axis": from_front - rank, "ndim": rank}
    )


def _follows_channels_last(layer: Any) -> bool:
    """Whether `layer` in a functional model is a convolution with the channels last, or takes the output of such a
    convolution as its first input."""
    source = (
        layer
        if isinstance(layer, pixels.CONVS)
        else nodes_of(layer)[0].parent_nodes[0].operation
    )
    return isinstance(source, pixels.CONVS) and source.data_format == "channels_last"


def _own_config(layer: Any) -> str:
    """Returns the settings of one of Keras's own layers as a string "name=value, ...", or "" for a Lambda. The
    initializers are left out: they only choose the values with which parameters begin."""
    if isinstance(layer, kl.Lambda):  # its config contains the user's code
        return ""
    config = layer.get_config()
    return ", ".join(
        f"{name}={config[name]}"
        for name in sorted(config)
        if name not in ("name", "trainable", "dtype") and not name.endswith("_initializer")
    )


def _function_entry(path: str, function: Any) -> Layer:
    """Returns the entry for an activation function. A function of Keras or TensorFlow is described with the defaults of
    its arguments. A user's function is described only by its name, because its computation is not known."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, keras.Layer):  # a layer may be the activation of a Dense
        # `read` returns None for a layer that computes nothing, but the caller needs an entry
        return _TABLE.read(path, function) or ops.activation(path, "linear")
    if str(getattr(function, "__module__", "")).partition(".")[0] not in _PACKAGES:
        return ops.plain(path, ops.OTHER, type=name)
    # the function is called with only one argument, so the defaults of the others decide what
    # it computes
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }
    settings: dict[str, object] = {
        setting: defaults[name]
        for name, setting in _ARGUMENT_SETTINGS.items()
        if name in defaults
    }
    # the slope of a leaky relu has different names in Keras and TensorFlow
    if ops.function_name(name) == "leaky_relu":
        settings = {"slope": settings.get("slope", settings.get("alpha"))}
    elif "approximate" in defaults:
        settings["approximate"] = "tanh" if defaults["approximate"] else "none"
    # the names of these functions are sufficient, because their other arguments have the usual values
    if ops.function_name(name) in ("relu", "relu6", "silu"):
        settings = {}
    # TensorFlow's default None means the last axis
    if settings.get("axis", -1) is None:
        settings["axis"] = -1
    return ops.activation(path, name, **settings)


def _activation_layer(path: str, layer: Any) -> Layer | None:
    """Returns the entry for an `Activation` layer, or None if the function of this layer is the identity."""
    return (
        None
        if layer.activation is keras.activations.linear
        else _function_entry(path, layer.activation)
    )


def _relu(path: str, layer: Any) -> Layer:
    """Returns the entry for a ReLU. The settings of the layer determine its function, and the entry has the name of
    this function."""
    greatest, slope, threshold = (
        layer.max_value,
        float(layer.negative_slope),
        float(layer.threshold),
    )
    # no other framework has this combination
    if threshold or (slope and greatest is not None):
        return ops.activation(
            path, "thresholded_relu", slope=slope, max=greatest, threshold=threshold
        )
    if slope:
        return ops.activation(path, "leaky_relu", slope=slope)
    return (
        ops.activation(path, "relu")
        if greatest is None
        else ops.activation(path, "hardtanh", min=0.0, max=float(greatest))
    )


_TABLE: Final = ops.Table(
    "keras",
    {
        **dict.fromkeys(_UNLISTED),
        kl.Activation: _activation_layer,
        kl.ReLU: _relu,
        **ops.activations({
            kl.LeakyReLU: {"slope": "negative_slope"}, kl.ELU: {"alpha": "alpha"}, kl.Softmax: {"axis": "axis"},
        }),
        **ops.for_1d_to_3d(kl, "MaxPooling{}D", _max_pool),
        **ops.for_1d_to_3d(kl, "AveragePooling{}D", _avg_pool),
        **ops.for_1d_to_3d(kl, "GlobalAveragePooling{}D", partial(ops.global_pool, "avg")),
        **ops.for_1d_to_3d(kl, "GlobalMaxPooling{}D", partial(ops.global_pool, "max")),
        **ops.for_1d_to_3d(kl, "AdaptiveAveragePooling{}D", partial(ops.adaptive_pool, "avg", "output_size")),
        **ops.for_1d_to_3d(kl, "AdaptiveMaxPooling{}D", partial(ops.adaptive_pool, "max", "output_size")),
        **ops.for_1d_to_3d(kl, "UpSampling{}D", _upsample),
        **dict.fromkeys((kl.ZeroPadding1D, kl.ZeroPadding2D, kl.ZeroPadding3D), _pad),
        kl.Dropout: _dropout,
        **dict.fromkeys(
            (kl.SpatialDropout1D, kl.SpatialDropout2D, kl.SpatialDropout3D),
            lambda path, layer: ops.dropout(path, layer.rate, axes="whole channels"),
        ),
        kl.AlphaDropout: ops.row("alpha_dropout", p="rate"),
        kl.Rescaling: ops.row("rescaling", scale="scale", offset="offset"),
        kl.BatchNormalization: ops.row("batch_norm", eps="epsilon"),
        kl.LayerNormalization: _layer_norm,
        kl.GroupNormalization: _group_norm,
    },
    # the method with which a layer computes, and the function that returns the settings of a layer without a row as a
    # string
    ("call",),
    _own_config,
)  # fmt: skip


class TensorflowLayers(Operations):
    """The hooks that list the layers of Keras. `Layers` and `Operations` describe each hook."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers with parameters. Raises `UnsupportedError` for anything other than a Keras layer or
        model."""
        if not isinstance(model, keras.Layer):
            raise self.unsupported(
                f"listing layers of {type(model).__qualname__} objects", "pass the Keras model"
            )
        # mixed precision sets `COMPUTES_IN` on every layer, so only the first layer lists it,
        # together with the number of the other layers
        return layouts.stated_once(self._layers(model), layouts.COMPUTES_IN)

    def _layers(self, model: Any) -> Iterator[Layer]:
        """Yields the layers of a model that have parameters, in the order in which the model
        defines them."""
        # reversed, so that a shared variable keeps its first name
        names = {id(variable): name for name, variable in reversed(list(self.variables(model)))}
        # the `id`s of layers that the description of another layer includes
        included: set[int] = set()
        orders, norms = pixels.orders(model), axis_settings(model)
        has_images = any(isinstance(layer, pixels.CONVS) for layer in pixels.all_layers(model))
        for layer in pixels.all_layers(model):
            if id(layer) in included:
                continue
            description = _describe(layer)
            if description is None:
                continue
            kind, parts, settings = description
            settings = {**settings, **norms.get(id(layer), {})}
            if layer.compute_dtype != layer.variable_dtype:
                settings[layouts.COMPUTES_IN] = layer.compute_dtype
            # a norm over several axes is treated as a norm of images only if the model contains convolutions
            if has_images and kind == "layer_norm":
                parts = _image_norm_parts(layer, parts)
            if id(layer) in orders:
                parts = _out_of_order(kind, parts, orders[id(layer)])
            # the descriptions of these layers include the layers inside them
            if isinstance(layer, kl.Bidirectional | kl.MultiHeadAttention):
                included |= {id(inner) for inner in pixels.all_layers(layer)}
            bound = _with_variable_names(layer, kind, parts, names, settings)
            if bound is not None:
                yield bound

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parameters that a layer of this kind may have, under Keras's names."""
        return dialects.tensorflow(kind, settings)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Yields the entries of all layers. For layers without parameters, an entry contains the settings. In a
        functional model, each entry has the name of the line (chain of layers) to which the layer belongs."""
        lines = _lines(model)
        ids = {path: id(layer) for path, layer in _names.layers(model)}
        for layer in _operations(model, {layer.path: layer for layer in layers}):
            # the path of an entry for a layer's own code, arguments or merge mode is the layer's path and "()". Such
            # an entry, like one for a layer's activation, belongs to the line of the layer
            path = layer.path.removesuffix("()")
            # for the path of no layer, the default is 0, which is never the `id` of an object
            line = lines.get(ids.get(path, 0)) or lines.get(
                ids.get(path.removesuffix(".activation"), 0)
            )
            yield layer._replace(line=line or "")
        yield from wiring.entries(model, _UNLISTED, _own_config)
