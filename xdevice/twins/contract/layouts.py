"""How each framework lays out the parameters of layers, compared with PyTorch. PyTorch's names and layouts are the
common form into which all others are converted.

An adapter lists the `Part`s of each kind of layer. A part describes one array of the framework: its name, the PyTorch
parameters that it corresponds to, and the `Rule` (a pair of functions) that converts the array into these parameters
and back. This module defines the rules that several frameworks need. The kinds of layers, with PyTorch's names and
shapes of their parameters (O: outputs, I: inputs, E: embedding):

| kind | parameters |
|---|---|
| linear, conv, conv_transpose | `weight` (O, I), (O, I/groups, *kernel), (I, O/groups, *kernel); `bias` |
| batch_norm | `weight`, `bias`, `running_mean`, `running_var`, `num_batches_tracked` |
| embedding, prelu, rms_norm | `weight` |
| layer_norm, group_norm | `weight`, `bias` |
| instance_norm | `weight`, `bias`, `running_mean`, `running_var`, `num_batches_tracked` |
| rnn, lstm, gru | `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, then `_l0_reverse`, `_l1`, ... |
| multihead_attention | `q_proj.weight` (E, I), `k_proj`, `v_proj`, `out_proj`, `bias_k`, `bias_v` |
| same | one array, which has the same layout in every framework |

The gates are in PyTorch's order: i, f, g, o for an LSTM, and r, z, n for a GRU. An LSTM with a projection also has
`weight_hr_l0`. The table lists each projection of an attention layer separately, but PyTorch usually joins the weights
of queries, keys and values in one parameter, `in_proj_weight`.
"""

from __future__ import annotations

import math
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    Array = np.ndarray[Any, Any]

Settings: TypeAlias = "Mapping[str, object]"
"""The settings of a layer or an optimizer, by PyTorch's names."""
# the parameters of a norm without statistics
_NORM: Final = ("weight", "bias")
MEAN: Final = "running_mean"
VARIANCE: Final = "running_var"
"""PyTorch's names of the running mean and variance that a norm computes over its batches."""
COUNTER: Final = "num_batches_tracked"
"""PyTorch's count of the batches that a norm has processed. No other framework has this count, and it changes no
output."""
# the parameters of one cell of a recurrent layer, without the suffix that `suffixes` yields, as in weight_ih_l0
_CELL: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
ATTENTION: Final = "multihead_attention"
# the projections of queries, keys and values
_IN: Final = ("q_proj", "k_proj", "v_proj")
# PyTorch's add_bias_kv adds one key and one value, each of the shape (1, 1, E)
_ADDED: Final = ("bias_k", "bias_v")
_OUT: Final = ("out_proj.weight", "out_proj.bias", *_ADDED)
KINDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "linear": ("weight", "bias"),
        "conv": ("weight", "bias"),
        "conv_transpose": ("weight", "bias"),
        "batch_norm": (*_NORM, MEAN, VARIANCE, COUNTER),
        "embedding": ("weight",),
        "layer_norm": _NORM,
        "rms_norm": ("weight",),
        "group_norm": _NORM,
        "instance_norm": (*_NORM, MEAN, VARIANCE, COUNTER),
        "prelu": ("weight",),
        "rnn": _CELL,
        "lstm": _CELL,
        "gru": _CELL,
        ATTENTION: (
            *(f"{name}.weight" for name in _IN),
            *(f"{name}.bias" for name in _IN),
            *_OUT,
        ),
        "same": ("",),
    }
)
"""The names of the parameters that each kind of layer has in PyTorch; for a recurrent layer, the names of the
parameters of a single cell, without suffixes."""

# the number of gates: a weight or bias of a cell has this many rows for each number of the cell's state
_GATES: Final = {"rnn": 1, "lstm": 4, "gru": 3}
RECURRENT: Final = tuple(_GATES)
_AXES: Final = {
    "linear": (2,), "conv": (3, 4, 5), "conv_transpose": (3, 4, 5), "batch_norm": (1,), "embedding": (2,),
    "rnn": (2,), "lstm": (2,), "gru": (2,), ATTENTION: (2,),
}  # fmt: skip
"""How many axes the weight of each kind of layer may have in PyTorch's layout. A bias always has one axis."""
WEIGHT_NORM: Final = ("weight_g", "weight_v")
"""The names of the parameters g and v of a layer with a weight norm, which replace its weight. The layer computes the
weight as `v * g / |v|`. g has the length 1 along each axis over which |v| is summed."""
SPECTRAL_NORM: Final = ("weight_orig", "spectral_u", "spectral_v")
"""The names of the parameters of a layer with a spectral norm, which replace its weight. The layer computes the weight
as `weight_orig / (u W v)`. W is `weight_orig` reshaped to a matrix, with one row for each element of u."""
WEIGHT_NORM_NAMES: Final = (
    WEIGHT_NORM,
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
"""The names of g and v in PyTorch's older weight norm, which Paddle uses too, and in PyTorch's newer weight norm."""
SPECTRAL_NORM_NAMES: Final = (
    ("weight_orig", "weight_u", "weight_v"),
    (
        "parametrizations.weight.original",
        "parametrizations.weight.0._u",
        "parametrizations.weight.0._v",
    ),
)
"""The names of the weight, u and v in PyTorch's older spectral norm, and in its newer spectral norm."""
SPECTRAL_AXIS: Final = "axis of the spectral norm"
"""The setting that says which axis of PyTorch's weight becomes the rows of the matrix W in `SPECTRAL_NORM`."""
COMPUTES_IN: Final = "compute_dtype"
"""The setting with the dtype to which a layer casts its weights before it computes, as mixed precision does."""
ASSEMBLED: Final = "assembled"
"""The setting that marks an attention layer that a model builds from linear layers. The model's own code computes
everything between these layers, and this code is not read."""
PADDED: Final = "output at padding_idx"
"""The setting that says which vector an embedding returns for padding_idx. Its value is `ZEROS` or `ROW`."""
ZEROS: Final = "zeros"
ROW: Final = "the row of the weight, which is not zeros"
FLATTENS: Final = "flattens"
"""The setting that marks a convolution over a whole image. The convolution is described as a linear layer, because the
other model flattens the image and passes it to a linear layer."""
BIAS_ADDED: Final = "bias_added"
"""The setting that marks a layer whose bias is a tensor outside all layers. The model's own code adds this tensor."""
AXIS_IN_DOUBT: Final = "axis_in_doubt"
"""The setting that names the axis of a norm, along which its weight extends. A norm states this setting only if the
corresponding norm of the other model may have another axis."""
STATED_BY_BOTH: Final = (
    "norm_first",
    "block_dropout",
    ASSEMBLED,
    FLATTENS,
    BIAS_ADDED,
    AXIS_IN_DOUBT,
    PADDED,
    SPECTRAL_AXIS,
)
"""Settings that are compared only if both layers state them. The first two, `norm_first` and `block_dropout`, describe
a whole Transformer layer; the first norm inside the Transformer layer states them."""


BY_HAND: Final = "reorder them yourself (docs/reference/models.md)"
"""The advice in messages about an array whose numbers are in an unknown order."""


class UnfitError(ValueError):
    """Raised by a `Rule` if the framework's layout cannot represent the values."""


class Rule(NamedTuple):
    """A pair of functions: `canonical` converts an array of a framework into PyTorch's arrays, and `native` converts
    PyTorch's arrays, passed as separate arguments, back into the framework's array."""

    canonical: Callable[[Array], tuple[Array, ...]]
    native: Callable[..., Array]
    refusal: str | None = None
    """The reason why this rule can convert only shapes, not values; None if it can convert both."""
    is_lossy: bool = False
    """True if `canonical` cannot restore all values after `native` has converted them."""
    order: str = ""
    """The reason why the array stores the numbers of a flattened image with the channels last. The rule changes this
    order to channels first. "" if the rule does not change the order. Between two frameworks with the channels last,
    the order need not change."""


class Part(NamedTuple):
    """One parameter array of a layer, as its framework stores it."""

    name: str
    """The framework's name of the array within its layer. If the part belongs to a `Layer` of a model, this is the
    array's full name, a key of `Backend.variables`."""
    of: tuple[str, ...]
    """The names of the PyTorch parameters into which the array is converted."""
    rule: Rule


class Layer(NamedTuple):
    """A description of one layer of a model, or of a layer whose parameters are given in a plain dict."""

    path: str
    """The dotted path from the model to the layer; "" for the model itself."""
    kind: str
    parts: tuple[Part, ...]
    settings: Settings
    """The settings that affect the layer's output, by PyTorch's names: eps, momentum, groups, padding, ..."""
    line: str = ""
    """The name of the line to which the layer belongs. A line is a group of layers that are called in sequence, in the
    order of `Backend.operations`, with nothing between them. "" if the model's own code decides when the layer is
    called."""


# rules


def _single(canonical: Callable[[Array], Array], native: Callable[[Array], Array]) -> Rule:
    """Returns the rule for an array that corresponds to a single PyTorch parameter. `canonical` converts the array to
    PyTorch's layout, and `native` converts PyTorch's array to the framework's layout."""
    return Rule(lambda x: (canonical(x),), native)


def _unchanged(x: Array) -> Array:
    """Returns `x` itself."""
    return x


def _kernel_last(x: Array) -> Array:
    """Converts a kernel (*kernel, I, O) to PyTorch's layout (O, I, *kernel)."""
    # written for any number of axes, because convolutions have one to three
    return np.transpose(x, (x.ndim - 1, x.ndim - 2, *range(x.ndim - 2)))


def _kernel_first(x: Array) -> Array:
    """Converts a kernel of PyTorch (O, I, *kernel) to the layout (*kernel, I, O)."""
    return np.transpose(x, (*range(2, x.ndim), 1, 0))


def _swapped_gates(x: Array) -> Array:
    """Returns the array with its first two gates exchanged: r, z, n becomes z, r, n, and vice versa. The three gates
    are along the first axis."""
    first, second, third = np.split(x, 3)
    return np.concatenate([second, first, third])


def _flattened(x: Array) -> Array:
    """Returns the array reshaped to one axis."""
    return x.reshape(-1)


def _thirds(x: Array) -> tuple[Array, ...]:
    """Splits an array along its first axis into three arrays of the same shape."""
    return tuple(np.split(x, 3))


def _joined(*parts: Array) -> Array:
    """Joins three arrays along their first axis: the inverse of `_thirds`. Raises `UnfitError` if their shapes
    differ."""
    # three arrays of different sizes cannot be split into thirds again
    if len({part.shape for part in parts}) > 1:
        raise UnfitError(
            f"PyTorch joins three arrays of the same shape, but these arrays have the shapes {[*map(np.shape, parts)]}"
        )
    return np.concatenate(parts)


SAME: Final = _single(_unchanged, _unchanged)
FLAT: Final = _single(_unchanged, _flattened)
"""The rule for an array that has one axis in the framework and any shape in PyTorch. `canonical` cannot restore
PyTorch's shape: it returns the flat array."""
TRANSPOSED: Final = _single(np.transpose, np.transpose)
KERNEL_FIRST: Final = _single(_kernel_last, _kernel_first)
"""The rule for an array of the shape (*kernel, I, O) in the framework and (O, I, *kernel) in PyTorch."""


def _flipped_window(x: Array) -> Array:
    """Reverses every axis of a kernel (*kernel, I, O) except the last two."""
    return np.flip(x, tuple(range(x.ndim - 2)))


FLIPPED_KERNEL: Final = _single(
    lambda x: np.moveaxis(_flipped_window(x), (-2, -1), (0, 1)),
    # contiguous, because `np.flip` returns a view with negative strides, which some frameworks do not accept
    lambda x: np.ascontiguousarray(_flipped_window(np.moveaxis(x, (0, 1), (-2, -1)))),
)
"""The rule for the kernel of a transposed convolution. In the framework, its shape is (*kernel, I, O), and its window
is reversed; in PyTorch, its shape is (I, O, *kernel)."""
CHANNELS_LAST: Final = _single(lambda x: np.moveaxis(x, -1, 0), lambda x: np.moveaxis(x, 0, -1))
"""The rule for an array of the shape (rows, columns, C) in the framework and (C, rows, columns) in PyTorch, with any
number of axes in place of rows and columns."""
SUMMED: Final = Rule(lambda x: (x, np.zeros_like(x)), lambda ih, hh: ih + hh, is_lossy=True)
"""The rule for a framework with a single bias, which is the sum of PyTorch's bias_ih and bias_hh. Converted to PyTorch,
the single bias becomes bias_ih, and bias_hh is 0."""


def _gru_biases_to_torch(x: Array) -> tuple[Array, Array]:
    """Converts the biases of a GRU from one array to PyTorch's bias_ih and bias_hh. The array contains, in this order,
    the biases of r and z, the bias of n for the inputs, and the bias of n for the state. PyTorch adds its two biases of
    r, and its two biases of z, so the biases of r and z in bias_hh become 0."""
    # each of these four biases has a quarter of the numbers
    r_and_z, new, of_state = np.split(x, (len(x) // 4 * 2, len(x) // 4 * 3))
    return np.concatenate([r_and_z, new]), np.concatenate([np.zeros_like(r_and_z), of_state])


def _gru_biases_from_torch(ih: Array, hh: Array) -> Array:
    """Converts PyTorch's bias_ih and bias_hh to one array: the inverse of `_gru_biases_to_torch`."""
    # r and z are the first two of PyTorch's three gates
    start_of_n = len(ih) // 3 * 2
    return np.concatenate([(ih + hh)[:start_of_n], ih[start_of_n:], hh[start_of_n:]])


BIASES_OF_GRU: Final = Rule(_gru_biases_to_torch, _gru_biases_from_torch, is_lossy=True)
"""The rule for the biases of a GRU that has one bias for r, one for z, and two for n: one for the inputs and one for
the state. The gate r multiplies only the bias of n for the state."""


def _input_bias_from_torch(ih: Array, hh: Array) -> Array:
    """Converts PyTorch's bias_ih and bias_hh to the single bias of a GRU whose biases are for the inputs only. Raises
    `UnfitError` if PyTorch's bias of n for the state is not 0. That bias cannot be added to the bias for the inputs,
    because r multiplies only the bias for the state."""
    biases = _gru_biases_from_torch(ih, hh)
    if biases[len(ih) :].any():
        raise UnfitError(
            "the gate n of Flax's nnx GRU has no bias for the state, but this gate n has a nonzero bias for the state"
        )
    return biases[: len(ih)]


BIAS_OF_INPUT: Final = Rule(
    lambda x: (x, np.zeros_like(x)), _input_bias_from_torch, is_lossy=True
)
"""The rule for the biases of a GRU that has biases for the inputs only."""
GATES_ZRN: Final = _single(lambda x: _swapped_gates(x.T), lambda x: _swapped_gates(x).T)
BIASES_ZRN: Final = Rule(
    lambda x: (_swapped_gates(x[0]), _swapped_gates(x[1])),
    lambda ih, hh: np.stack([_swapped_gates(ih), _swapped_gates(hh)]),
)
"""The rules for a weight and for the biases of a GRU whose gates are in the order z, r, n, as in Keras. The weight is
also transposed. The biases form one array with two rows: the first for the inputs, the second for the state."""


def packed(rows: Sequence[int], rule: Rule = SAME) -> Rule:
    """Returns the rule for one array that joins several PyTorch parameters along their first axis. `rows` contains the
    number of rows of each parameter. `rule` converts the layout of the whole joined array: to PyTorch's layout before
    the array is split, and back after the parameters are joined."""
    # `np.split` accepts the ends of all parts except the last
    ends = [sum(rows[: number + 1]) for number in range(len(rows) - 1)]

    def canonical(x: Array) -> tuple[Array, ...]:
        """Splits the array into PyTorch's parameters."""
        return tuple(np.split(rule.canonical(x)[0], ends))

    return rule._replace(
        canonical=canonical, native=lambda *parts: rule.native(np.concatenate(parts))
    )


PACKED: Final = Rule(_thirds, _joined)
"""The rule for an array that joins three PyTorch parameters of the same shape along their first axis."""


def kernel(inputs: Sequence[int], outputs: Sequence[int]) -> Rule:
    """Returns the rule for a weight that has the shape (*inputs, *outputs) in the framework, and is a matrix (O, I) in
    PyTorch. O is the product of `outputs`, and I is the product of `inputs`. One size in `inputs` and one in `outputs`
    may be -1, which means any size."""

    def canonical(x: Array) -> Array:
        """Converts the weight to PyTorch's matrix (O, I)."""
        # the sizes come from the array's shape, because `inputs` may contain -1
        return x.reshape(math.prod(x.shape[: len(inputs)]), -1).T

    def native(x: Array) -> Array:
        """Converts PyTorch's matrix to the shape (*inputs, *outputs)."""
        # in two steps, because `inputs` and `outputs` may each contain a -1, and `reshape` accepts only one -1
        rows = x.T.reshape(*inputs, x.shape[0])
        return rows.reshape(*rows.shape[:-1], *outputs)

    return _single(canonical, native)


def per_group(groups: int, channels: int | None = None) -> Rule:
    """Returns the rule for a weight that has one number per group in the framework, and one number per channel in
    PyTorch. Conversion from PyTorch raises `UnfitError` if the numbers within a group differ. `channels` is the number
    of channels, or None if the framework does not report it. If `channels` is None, the numbers are not repeated for
    PyTorch, so the rule is lossy."""

    def canonical(x: Array) -> tuple[Array, ...]:
        """Repeats the number of each group, once for each channel of the group."""
        # if the number of channels is not known, each group is treated as one channel
        return (np.repeat(x, (channels or groups) // groups),)

    def native(x: Array) -> Array:
        """Returns one number for each group: the number that all channels of the group share."""
        rows = x.reshape(groups, -1)
        # the framework would apply the first number of a group to all of its channels
        if (rows != rows[:, :1]).any():
            raise UnfitError(
                "Gluon stores one value per group of channels, but the channels of a group have different values here"
            )
        return rows[:, 0]

    return Rule(canonical, native, is_lossy=channels is None)


def flat_in_torch(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that has the given shape in the framework, and is flat (one axis) in PyTorch."""
    return _single(_flattened, lambda x: x.reshape(shape))


def flat_in_framework(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that is flat (one axis) in the framework, and has the given shape in PyTorch."""
    return _single(lambda x: x.reshape(shape), _flattened)


def squeezed_in_torch(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that has the given shape in the framework; in PyTorch, the axes of length 1 are
    removed from that shape."""
    return _single(np.squeeze, lambda x: x.reshape(shape))


def with_torch_shape(rule: Rule, shape: Sequence[int], own: Sequence[int]) -> Rule:
    """Returns a rule that converts like `rule`, but with another shape for PyTorch's arrays. In `rule`, their shape is
    `own`; in the returned rule, it is `shape`."""
    return rule._replace(
        canonical=lambda x: tuple(array.reshape(shape) for array in rule.canonical(x)),
        native=lambda x: rule.native(x.reshape(own)),
    )


def selected_rows(rule: Rule, first: int, last: int, total: int) -> Rule:
    """Returns the rule for an array of `total` rows in the framework. PyTorch's array contains only the rows
    `first:last`. In the conversion from PyTorch, the other rows are filled with zeros. `rule` is the rule for the array
    with all of its rows."""

    def native(x: Array) -> Array:
        """Adds the missing rows to `x`, filled with zeros, and converts the array of `total` rows to the framework's
        layout."""
        # the rows before `first`, and the rows from `last` on
        zeros = [
            np.zeros_like(x, shape=(count, *x.shape[1:])) for count in (first, total - last)
        ]
        return rule.native(np.concatenate([zeros[0], x, zeros[1]]))

    # a refusal and the order of the pixels, which are not along the rows, stay the same
    return rule._replace(
        canonical=lambda x: tuple(array[first:last] for array in rule.canonical(x)),
        native=native,
        is_lossy=True,
    )


def depthwise(multiplier: int) -> Rule:
    """Returns the rule for a depthwise kernel. Its shape is (*kernel, I, multiplier) in the framework, and
    (I * multiplier, 1, *kernel) in PyTorch."""

    def canonical(x: Array) -> Array:
        """Converts the kernel to the shape (I * multiplier, 1, *kernel)."""
        return np.moveaxis(x, (-2, -1), (0, 1)).reshape(-1, 1, *x.shape[:-2])

    def native(x: Array) -> Array:
        """Converts PyTorch's kernel to the shape (*kernel, I, multiplier)."""
        return np.moveaxis(x.reshape(-1, multiplier, *x.shape[2:]), (0, 1), (-2, -1))

    return _single(canonical, native)


def with_pixels_reordered(rule: Rule, image: Sequence[int], why: str) -> Rule:
    """Returns a rule for an array with an axis for the numbers of a flattened image. The rule converts like `rule`, and
    also reorders the numbers along this axis: the image's channels come last in the framework, and first in PyTorch.
    `image` contains the sizes of the image in the framework: rows, columns, channels. In PyTorch's layout, the
    flattened image is the array's last axis. `why` becomes the attribute `order` of the returned rule."""
    # -1 is the place of the channels in `image`, and -len(image) is the place of the first axis
    channels_first = image[-1], *image[:-1]

    def canonical(x: Array) -> tuple[Array, ...]:
        """Converts the array to PyTorch's layout, in which the channels come first in the flattened image."""
        return tuple(
            _pixels_reordered(array, image, source=-1, target=-len(image))
            for array in rule.canonical(x)
        )

    def native(*arrays: Array) -> Array:
        """Converts PyTorch's arrays to the framework's array, with the channels last in the flattened image."""
        return rule.native(
            *(
                _pixels_reordered(array, channels_first, source=-len(image), target=-1)
                for array in arrays
            )
        )

    return rule._replace(canonical=canonical, native=native, order=why)


def _pixels_reordered(x: Array, image: Sequence[int], source: int, target: int) -> Array:
    """Returns the array with the numbers along its last axis reordered. The last axis is a flattened image with the
    sizes `image`. The function moves the image's axis `source` to the position `target`, and flattens the image
    again."""
    return np.moveaxis(x.reshape((*x.shape[:-1], *image)), source, target).reshape(x.shape)


def refused_from_torch(rule: Rule, why: str) -> Rule:
    """Returns a rule that converts to PyTorch like `rule`. Conversion from PyTorch raises `UnfitError` with the reason
    `why`, because the framework cannot represent PyTorch's values."""

    def native(*arrays: Array) -> Array:
        """Raises `UnfitError`."""
        raise UnfitError(why)

    return rule._replace(native=native)


def refused(rule: Rule, why: str) -> Rule:
    """Returns `rule`, marked as usable for shapes only: values are not converted, and the reason `why` is reported."""
    return rule._replace(refusal=why)


# parts


def with_weight_norm(
    parts: Iterable[Part], names: Sequence[str], shape: Sequence[int], own: Sequence[int]
) -> tuple[Part, ...]:
    """Returns the parts of a layer with a weight norm: `parts`, but with two parts, g and v, in place of the part for
    `weight`. `names` are the framework's names of g and v. In PyTorch, g has the shape `shape`, with as many axes as v.
    The framework stores g in the shape `own`, which may omit axes of length 1."""
    return _with_weight_as(
        parts, names, WEIGHT_NORM, lambda rule: (_with_own_shape(rule, shape, own), rule)
    )


def with_spectral_norm(parts: Iterable[Part], names: Sequence[str]) -> tuple[Part, ...]:
    """Returns the parts of a layer whose weight is divided by its spectral norm: `parts`, but with three parts in place
    of the part for `weight`. `names` are the framework's names of these three parts."""
    return _with_weight_as(parts, names, SPECTRAL_NORM, lambda rule: (rule, SAME, SAME))


def _with_weight_as(
    parts: Iterable[Part],
    names: Sequence[str],
    of: Sequence[str],
    rules: Callable[[Rule], Sequence[Rule]],
) -> tuple[Part, ...]:
    """Returns `parts` with several new parts in place of the part for the weight. `names` are the framework's names of
    the new parts, and `of` are the corresponding PyTorch parameters. `rules` is called with the rule of the weight, and
    returns the rules of the new parts. `names`, `of` and the returned rules have the same length."""
    new_parts: list[Part] = []
    for part in parts:
        if part.of == ("weight",):
            replacements = zip(names, of, rules(part.rule), strict=True)
            # inserted at the place of the weight, so that the parameters stay in PyTorch's order
            new_parts += [
                Part(name, (parameter,), rule) for name, parameter, rule in replacements
            ]
        else:
            new_parts.append(part)
    return tuple(new_parts)


def _with_own_shape(rule: Rule, shape: Sequence[int], own: Sequence[int]) -> Rule:
    """Returns a rule like `rule`, for an array that the framework stores in the shape `own`. `rule` itself expects an
    array of the shape `shape`."""
    return Rule(
        lambda x: rule.canonical(x.reshape(shape)), lambda x: rule.native(x).reshape(own)
    )


def weight_of_spectral(original: Array, u: Array, v: Array, axis: int | None) -> Array:
    """Returns the weight that a spectral norm computes in evaluation mode, from the parameters in `SPECTRAL_NORM`.
    `axis` is the axis of `original` that becomes the rows of the matrix W, or None if it is not known. If it is not
    known, the function tries each axis that is as long as u. It chooses the axis for which the direction of W v is
    closest to the direction of u. Raises `UnfitError` if no axis is as long as u."""
    # in float64, so that the comparison of axes below is not decided by rounding
    left, right = u.astype("float64"), v.astype("float64")
    axes = (
        [axis]
        if axis is not None
        else [
            axis_of_rows for axis_of_rows, size in enumerate(original.shape) if size == len(u)
        ]
    )
    matrices = [
        np.moveaxis(original, axis_of_rows, 0).reshape(len(u), -1).astype("float64")
        for axis_of_rows in axes
    ]
    if not matrices:
        raise UnfitError(
            f"the vector u of the spectral norm has {len(u)} numbers, but no axis of the weight has "
            f"that length: its shape is {original.shape}"
        )

    def error(matrix: Array) -> float:
        """Returns how far u is from the direction of W v; `matrix` is W."""
        product = matrix @ right
        return float(np.abs(product - left * np.linalg.norm(product)).max())

    # each step of the norm sets u to W v divided by the length of W v, so the right matrix has the smallest error
    matrix = min(matrices, key=error)
    weight: Array = (original / (left @ matrix @ right)).astype(original.dtype)
    return weight


def weight_of_norm(g: Array, v: Array) -> Array:
    """Returns the weight that a weight norm computes from its parameters g and v."""
    weight: Array = (v * (g / _norm(v, g.shape))).astype(v.dtype)
    return weight


def norm_of_weight(weight: Array, shape: Sequence[int]) -> tuple[Array, Array]:
    """Returns parameters g and v from which a weight norm computes `weight`. g has the given shape, and v is `weight`
    itself."""
    # with g = |v| the weight is v
    return _norm(weight, shape).astype(weight.dtype), weight


def _norm(v: Array, shape: Sequence[int]) -> Array:
    """Returns |v| in float64. `shape` is the shape of g, which has the length 1 along each axis over which |v| is
    summed."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    # in float64, because a sum of squares in float16 overflows
    norm: Array = np.sqrt(np.square(v.astype("float64")).sum(axes, keepdims=True))
    return norm


def parts(
    kind: str,
    settings: Settings,
    names: Mapping[str, Mapping[str, str | None]] = MappingProxyType({}),
    rules: Mapping[str, Mapping[str, Rule]] = MappingProxyType({}),
) -> tuple[Part, ...]:
    """Returns the parts of a layer of the given kind, in a framework that differs from PyTorch only in the names and
    rules of some parameters. `names` and `rules` have the form `{kind: {PyTorch's parameter: ...}}`. A value of `names`
    is the framework's name of the parameter, or None if the framework lacks it. A value of `rules` is the parameter's
    `Rule`. A parameter that is in neither dict has the same name and layout as in PyTorch."""
    own_names, own_rules = names.get(kind, {}), rules.get(kind, {})
    # if neither has an entry for attention layers, the parts are those of PyTorch's own attention,
    # which joins some projections in one array
    if kind == ATTENTION and not own_names and not own_rules:
        # a layer states head_dim only if it differs from the size that PyTorch computes
        why = f"PyTorch requires head_dim to be embed_dim / num_heads, but it is {settings.get('head_dim')} here"
        own_parts = tuple(_attention(settings))
        return (
            tuple(part._replace(rule=refused_from_torch(part.rule, why)) for part in own_parts)
            if "head_dim" in settings
            else own_parts
        )
    # a recurrent layer has a set of parameters for each of its cells
    wanted = cells(kind, settings) if kind in RECURRENT else KINDS[kind]
    named = ((own_names.get(name, name), name) for name in wanted)
    return tuple(
        Part(own_name, (name,), own_rules.get(name, SAME))
        for own_name, name in named
        if own_name is not None
    )


def _attention(settings: Settings) -> Iterator[Part]:
    """Yields the parts of PyTorch's own attention layer, which stores the weights of queries, keys and values in one
    array if these weights have the same shape."""
    # the names of the three weights and of the three biases: `_NORM` contains "weight" and "bias". PyTorch
    # always stores the biases in one array, even if the weights are separate
    weights, biases = (tuple(f"{name}.{suffix}" for name in _IN) for suffix in _NORM)
    rest = [Part("in_proj_bias", biases, PACKED), *(Part(name, (name,), SAME) for name in _OUT)]
    # PyTorch joins the three weights unless kdim or vdim differ from embed_dim
    if settings.get("packed", True):
        yield Part("in_proj_weight", weights, PACKED)
    else:
        yield from (Part(name.replace(".", "_"), (name,), SAME) for name in weights)
    yield from rest


def is_packed(shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether PyTorch stores the weights of queries, keys and values in one array. `shapes` gives the shape of each
    parameter of the layer by PyTorch's name. The result is False if `shapes` contains none of these weights."""
    return (
        len({tuple(shapes[f"{name}.weight"]) for name in _IN if f"{name}.weight" in shapes})
        == 1
    )


def cells(kind: str, settings: Settings) -> Iterator[str]:
    """Yields PyTorch's names for the parameters of all cells of a recurrent layer."""
    for suffix in suffixes(settings):
        yield from (f"{name}_{suffix}" for name in KINDS[kind])
        if settings.get("projection"):
            # in PyTorch only an LSTM can have a projection
            yield f"weight_hr_{suffix}"


def parts_of_single_cell(kind: str) -> tuple[Part, ...]:
    """Returns the parts of a recurrent layer that is a single cell, such as `LSTMCell`. In PyTorch and Paddle, the
    names of these parts lack the suffix "_l0"."""
    return tuple(Part(name, (f"{name}_l0",), SAME) for name in KINDS[kind])


ONE_CELL: Final[Settings] = MappingProxyType(
    {"layers": 1, "bidirectional": False, "projection": 0, "dropout": 0.0}
)
"""The settings of a recurrent layer that is a single cell, such as `LSTMCell`."""


def suffixes(settings: Settings) -> Iterator[str]:
    """Yields the suffixes "l0", "l0_reverse", "l1", ... that PyTorch appends to the parameter names of a recurrent
    layer's cells: one suffix for each level and direction."""
    # `str` is there only for type checkers, to which a setting is an `object`
    for number in range(int(str(settings.get("layers", 1)))):
        yield f"l{number}"
        if settings.get("bidirectional"):
            yield f"l{number}_reverse"


def present_layer(
    path: str, kind: str, parts: Sequence[Part], names: Container[str], settings: Settings
) -> Layer | None:
    """Returns the layer at `path`, without the parts in `parts` that the model lacks. `names` contains the names of the
    model's variables; the model has a part if `names` contains the part's full name. Returns None if the model has none
    of the parts, or if the layer is recurrent and the model lacks one of its weights."""
    # the names of the parts in their layer become names in the model
    prefixed = tuple(part._replace(name=join(path, part.name)) for part in parts)
    present = tuple(part for part in prefixed if part.name in names)
    # a weight can be missing if, for example, a norm on some of the weights replaces them by other variables: the
    # parameters are then listed as tensors that belong to no layer
    if kind in RECURRENT and any(
        part not in present and "bias" not in part.of[0] for part in prefixed
    ):
        return None
    # a missing bias is allowed: many layers have none
    return Layer(path, kind, present, settings) if present else None


def present_layers(
    layers: Iterable[Layer],
    names: Container[str],
    blocks: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Layer]:
    """Returns the layers that a model has, each with only the parts that the model has. `names` contains the names of
    the model's variables. A layer that is passed without parts first gets the parts of PyTorch's own layer of its kind.
    The layers keep their order, except inside a block, which is a module that calls its layers in another order.
    `blocks` gives, by the path of each block, the names of the layers in the order in which the block calls them."""
    with_parts = ((layer, layer.parts or parts(layer.kind, layer.settings)) for layer in layers)
    present = (
        present_layer(layer.path, layer.kind, its_parts, names, layer.settings)
        for layer, its_parts in with_parts
    )
    return in_order([layer for layer in present if layer is not None], blocks)


def in_order(layers: Iterable[Layer], blocks: Mapping[str, Sequence[str]]) -> list[Layer]:
    """Returns the layers in the given order, except the layers directly inside a block. These are sorted by the order
    in which the block calls them, and placed where the block's first layer was. `blocks` gives, by the path of each
    block, the names of the layers in the order of the calls."""
    in_given_order = list(layers)
    # by the path of each module, the index of the first layer inside the module
    first_index: dict[str, int] = {}
    for index, layer in enumerate(in_given_order):
        first_index.setdefault(_parent(layer), index)

    def key(numbered: tuple[int, Layer]) -> tuple[int, int, int]:
        """Returns the key for sorting a layer. `numbered` is a pair of the layer's index and the layer. The key of a
        layer in a block begins with the index of the block's first layer, followed by the layer's position in the
        block's calls. The key of any other layer begins with its own index."""
        index, layer = numbered
        # a module need not define its layers in the order in which it calls them
        names = blocks.get(_parent(layer), ())
        name = layer.path.rpartition(".")[2]
        return (
            (first_index[_parent(layer)], names.index(name), index)
            if name in names
            else (index, 0, index)
        )

    return [layer for _, layer in sorted(enumerate(in_given_order), key=key)]


def _parent(layer: Layer) -> str:
    """Returns the path of the module that contains the layer; "" for the model itself."""
    return layer.path.rpartition(".")[0]


def order_of_block(norm_first: bool, *attentions: str) -> tuple[str, ...]:
    """Returns the names of the layers inside a Transformer layer, in the order in which the Transformer layer calls
    them. `norm_first` says whether the norm of each step (attention or feed-forward) is called before the step.
    `attentions` are the names of the attention layers: one in an encoder, two in a decoder."""
    # one norm for each attention layer, and one for the pair of linear layers
    norms = [f"norm{number}" for number in range(1, len(attentions) + 2)]
    steps = [*((name,) for name in attentions), ("linear1", "linear2")]
    # each step has its own norm, before or after the step
    with_norms = [
        (norm, *step) if norm_first else (*step, norm)
        for norm, step in zip(norms, steps, strict=True)
    ]
    return tuple(chain.from_iterable(with_norms))


def same_setting(one: object, other: object) -> bool:
    """Whether two settings are equal. Floats are compared with a relative tolerance of 1e-6, because some frameworks
    store their settings in float32."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def join(path: str, name: str) -> str:
    """Returns the full name of a part: the path of its layer, a dot, and its name in the layer. Leaves out the dot if
    either is ""."""
    return f"{path}.{name}" if path and name else path or name


def _axes_of(kind: str, name: str) -> tuple[int, ...]:
    """Returns the possible numbers of axes of a layer's parameter in PyTorch's layout. `name` is PyTorch's name of the
    parameter."""
    # the number of axes of a weight depends on the kind of the layer
    if "weight" in name:
        return _AXES[kind]
    # the count of batches is a scalar or an array of one number
    if name == COUNTER:
        return (0, 1)
    # `bias_k` and `bias_v` are (1, 1, E); any other bias has one axis
    return (3,) if name in _ADDED else (1,)


def misfit(kind: str, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns the reason why a layer with parameters of these shapes cannot be of this kind; "" if it can. `shapes`
    gives the shapes in PyTorch's layout, by PyTorch's names."""
    # the weight of a kind without an entry, such as a layer norm, may have any number of axes
    for name, shape in shapes.items() if kind in _AXES else ():
        axes = _axes_of(kind, name)
        if len(shape) not in axes:
            return (
                f"{name} has the shape {tuple(shape)} in PyTorch's layout, but must have "
                f"{' or '.join(map(str, axes))} axes"
            )
    if kind not in RECURRENT:
        return ""
    # the size of the state is the number of columns of weight_hh. In an LSTM with a projection, it is the number
    # of columns of weight_hr, because weight_hh multiplies the projected state, which is shorter. Every recurrent
    # layer has weight_hh, because `present_layer` returns None if a weight is missing
    rows = _GATES[kind] * shapes.get("weight_hr_l0", shapes["weight_hh_l0"])[1]
    gated = {name: shape for name, shape in shapes.items() if not name.startswith("weight_hr")}
    # the message about the first parameter with a wrong number of rows
    wrong = next(
        (f"{name} has {shape[0]} rows" for name, shape in gated.items() if shape[0] != rows), ""
    )
    if not wrong:
        return ""
    return f"{wrong} in PyTorch's layout, but must have {rows} rows: {_GATES[kind]} for each element of the state"


# settings


def stated_once(layers: Iterable[Layer], name: str) -> Iterator[Layer]:
    """Yields all layers. Only the first layer with the setting `name` keeps this setting; all other layers lose it. In
    the first layer, the value of the setting becomes a string. If other layers had the setting too, the string also
    says how many."""
    every = list(layers)
    having = [layer for layer in every if name in layer.settings]
    for layer in every:
        # if no layer has the setting (`having` is empty), every layer is yielded unchanged
        if not having or name not in layer.settings:
            yield layer
            continue
        settings = {key: value for key, value in layer.settings.items() if key != name}
        if layer is having[0]:
            # mixed precision sets it on every layer, and a line for each layer would hide the other differences
            more = f", as in {len(having) - 1} more layers" if len(having) > 1 else ""
            settings[name] = f"{layer.settings[name]}{more}"
        yield layer._replace(settings=settings)


def per_axis(value: Any, axes: int) -> Any:
    """Returns a setting as a tuple with one size for each axis. `axes` is the number of axes. A single int applies to
    all axes. A list becomes a tuple of its items, even if their number differs from `axes`. Any other value is returned
    unchanged."""
    if isinstance(value, int):
        # frameworks read kernel_size=3 as (3, 3)
        return (value,) * axes
    return tuple(value) if isinstance(value, list | tuple) else value


def padding_per_axis(value: Any, axes: int) -> Any:
    """Returns a padding as a tuple. The tuple has one number per axis if both sides of every axis are padded equally,
    and otherwise one pair per axis. `value` is one of these:

    - a number for all axes,
    - a list with a number or a pair for each axis,
    - a flat list with two numbers for each axis, one for each side,
    - a string, such as "same", which is returned unchanged.
    """
    around = per_axis(value, axes)
    # Paddle's flat list: both sides of the first axis, then both sides of the next
    if isinstance(around, tuple) and len(around) == 2 * axes:
        around = tuple(zip(around[::2], around[1::2], strict=True))
    if isinstance(around, tuple) and all(isinstance(side, tuple | list) for side in around):
        pairs = tuple((int(start), int(end)) for start, end in around)
        return (
            tuple(start for start, _ in pairs)
            if all(start == end for start, end in pairs)
            else pairs
        )
    return around


def dropout_between(layers: int, dropout: float) -> float:
    """Returns the dropout that a recurrent layer actually applies: `dropout` if it has several levels, and 0 if it has
    only one, because dropout is applied only between levels. `layers` is the number of levels."""
    return float(dropout) if layers > 1 else 0.0


def same_padding(
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    image: Sequence[int | None] = (),
) -> object:
    """Returns, as a tuple, how many pixels padding="same" adds on each side of each axis. Returns "same" if the two
    sides of an axis are padded differently, or if the padding is not known. With a stride above 1, the padding depends
    on the sizes of the image. `image` contains these sizes, with None for an unknown size; it is empty if no size is
    known."""
    # with a dilation, the kernel covers more pixels than it has numbers
    sizes = [step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True)]
    each = zip(sizes, stride, image or [None] * len(sizes), strict=True)
    # with a stride of 1, the padding does not depend on the size of the image
    totals = [
        size - 1 if step == 1 else _same_padding_of_axis(size, step, length)
        for size, step, length in each
    ]
    added = [number for number in totals if number is not None and number % 2 == 0]
    # `added` lacks unknown totals, and odd totals, which add one pixel more on one side
    if len(added) < len(totals):
        return "same"
    return tuple(size // 2 for size in added)


def _same_padding_of_axis(kernel: int, stride: int, size: int | None) -> int | None:
    """Returns the total number of pixels that padding="same" adds on both sides of an axis of the given size. The
    padded axis has room for ceil(size / stride) windows. Returns None if the size is None (not known)."""
    return (
        None
        if size is None
        else max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    )
