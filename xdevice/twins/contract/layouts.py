"""How each framework lays out the parameters of layers, compared with PyTorch, whose names and layouts are the common
form here.

An adapter states the `Part`s of each kind of layer: an array of its framework, the PyTorch parameters that it
corresponds to, and the `Rule` (a pair of functions) that converts one into the other and back. A rule that several
frameworks need is written here once. The kinds, and PyTorch's names:

| kind | parameters |
|---|---|
| linear, conv, conv_transpose | `weight` (O, I), (O, I/groups, *kernel), (I, O/groups, *kernel); `bias` |
| batch_norm | `weight`, `bias`, `running_mean`, `running_var`, `num_batches_tracked` |
| embedding, prelu, rms_norm | `weight` |
| layer_norm, group_norm | `weight`, `bias` |
| instance_norm | `weight`, `bias`, `running_mean`, `running_var`, `num_batches_tracked` |
| rnn, lstm, gru | `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, then `_l0_reverse`, `_l1`, ... |
| multihead_attention | `q_proj.weight` (E, I), `k_proj`, `v_proj`, `out_proj`, `bias_k`, `bias_v` |
| same | one array, in one layout everywhere |

The gates are in PyTorch's order: i, f, g, o for an LSTM, r, z, n for a GRU. An LSTM with a projection has
`weight_hr_l0` too. The projections of an attention layer are listed one by one here; PyTorch's `in_proj_weight` joins
three of them.
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
"""PyTorch's names of the statistics that a norm keeps of its batches: their mean and variance."""
COUNTER: Final = "num_batches_tracked"
"""PyTorch's count of batches, which no other framework keeps, and which changes no output."""
# of one cell of a recurrent layer; the suffixes of `suffixes` follow: weight_ih_l0
_CELL: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
ATTENTION: Final = "multihead_attention"
# the projections of queries, keys and values
_IN: Final = ("q_proj", "k_proj", "v_proj")
# PyTorch's add_bias_kv: one more key and one more value, with the shape (1, 1, E)
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
"""The parameters that each kind of layer has in PyTorch; for a recurrent layer, the parameters of one cell."""

# a cell's weights and biases have this many rows for each number of its state
_GATES: Final = {"rnn": 1, "lstm": 4, "gru": 3}
RECURRENT: Final = tuple(_GATES)
_AXES: Final = {
    "linear": (2,), "conv": (3, 4, 5), "conv_transpose": (3, 4, 5), "batch_norm": (1,), "embedding": (2,),
    "rnn": (2,), "lstm": (2,), "gru": (2,), ATTENTION: (2,),
}  # fmt: skip
"""The numbers of axes that a weight of each kind may have in PyTorch's layout; a bias has one axis."""
NORMED: Final = ("weight_g", "weight_v")
"""The parameters that a weight norm has in place of a weight, which is `v * g / |v|`.
`weight_g` has the length 1 along each axis that |v| sums over."""
SPECTRAL: Final = ("weight_orig", "spectral_u", "spectral_v")
"""The parameters that a spectral norm has in place of a weight, which is `weight_orig / (u W v)`. W is `weight_orig` as
a matrix, with one row for each number of u."""
NORM_NAMES: Final = (
    NORMED,
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
"""The names of g and v in PyTorch's older weight norm, which Paddle uses too, and in PyTorch's newer one."""
SPECTRAL_NAMES: Final = (
    ("weight_orig", "weight_u", "weight_v"),
    (
        "parametrizations.weight.original",
        "parametrizations.weight.0._u",
        "parametrizations.weight.0._v",
    ),
)
"""The names of the weight, u and v in PyTorch's older spectral norm, and in its newer one."""
SPECTRAL_AXIS: Final = "axis of the spectral norm"
"""The setting that says which axis of PyTorch's weight gives the rows of W."""
COMPUTES_IN: Final = "compute_dtype"
"""The setting of a layer that casts its weights before it computes, as mixed precision does."""
ASSEMBLED: Final = "assembled"
"""The setting of an attention layer that was put together from linear layers. Everything else that this attention
computes is in the model's code, which is not read."""
PADDED: Final = "output at padding_idx"
"""The setting that says what an embedding returns at padding_idx: `ZEROS`, or `ROW` if that row of the weight is not
zeros."""
ZEROS: Final = "zeros"
ROW: Final = "the row of the weight, which is not zeros"
FLATTENS: Final = "flattens"
"""The setting of a convolution over a whole image that is read as a linear layer, because the other model flattens the
image."""
ADDED: Final = "bias_added"
"""The setting of a layer whose bias is a tensor outside all layers, which the model's code adds somewhere."""
AXIS: Final = "axis_in_doubt"
"""The setting that says over which axis a norm works, if its counterpart may work over another axis."""
STATED_BY_BOTH: Final = (
    "norm_first",
    "block_dropout",
    ASSEMBLED,
    FLATTENS,
    ADDED,
    AXIS,
    PADDED,
    SPECTRAL_AXIS,
)
"""Settings that are compared only if both layers state them. The first two describe a whole
Transformer layer, and are stated by the first norm inside that layer."""


BY_HAND: Final = "reorder them yourself (docs/reference/models.md)"
"""The advice for numbers whose order is not known."""


class UnfitError(ValueError):
    """Raised by a `Rule` for values that the framework's layout cannot represent."""


class Rule(NamedTuple):
    """How an array of a framework is converted into PyTorch's arrays (`canonical`) and back (`native`)."""

    canonical: Callable[[Array], tuple[Array, ...]]
    native: Callable[..., Array]
    refusal: str | None = None
    """The reason why values cannot be converted by this rule, although shapes can; None if values can, too."""
    is_lossy: bool = False
    """Whether `canonical` cannot restore the values that `native` has converted."""
    order: str = ""
    """The reason why the array counts the pixels of a flattened image with the channels last, an order that the rule
    changes to channels first; "" if the rule changes no order. Another model that has its channels last may have the
    same order."""


class Part(NamedTuple):
    """One parameter array of a layer, as its framework stores it."""

    name: str
    """The framework's name of the array in its layer; in a `Layer` of a model, the name in `Backend.variables`."""
    of: tuple[str, ...]
    """The names of the PyTorch parameters that the array becomes."""
    rule: Rule


class Layer(NamedTuple):
    """A description of one layer of a model, or of a layer whose parameters are given in a plain dict."""

    path: str
    """The path to the layer from the model, with dots; empty for the model itself."""
    kind: str
    parts: tuple[Part, ...]
    settings: Settings
    """The settings that change the output of the layer, by PyTorch's names: eps, momentum, groups, padding, ..."""
    line: str = ""
    """The name of the line that the layer belongs to. A line is a group of layers that are called one after another,
    in the order of `Backend.operations`, with nothing between them. Empty if the model's own code decides what is
    called."""


# rules


def _single(canonical: Callable[[Array], Array], native: Callable[[Array], Array]) -> Rule:
    """Returns the rule for an array that becomes one PyTorch parameter: `canonical` converts it to PyTorch's layout,
    and `native` converts PyTorch's array to the framework's layout."""
    return Rule(lambda x: (canonical(x),), native)


def _unchanged(x: Array) -> Array:
    """Returns the array itself."""
    return x


def _kernel_last(x: Array) -> Array:
    """Converts a kernel (*kernel, I, O) to PyTorch's layout (O, I, *kernel)."""
    # written for any number of axes, because convolutions have one to three
    return np.transpose(x, (x.ndim - 1, x.ndim - 2, *range(x.ndim - 2)))


def _kernel_first(x: Array) -> Array:
    """Converts a kernel of PyTorch (O, I, *kernel) to the layout (*kernel, I, O)."""
    return np.transpose(x, (*range(2, x.ndim), 1, 0))


def _swapped_gates(x: Array) -> Array:
    """Returns the array with the first two of its three gates exchanged, along the first axis:
    r, z, n become z, r, n, and z, r, n become r, z, n."""
    first, second, third = np.split(x, 3)
    return np.concatenate([second, first, third])


def _flattened(x: Array) -> Array:
    """Returns the array with one axis."""
    return x.reshape(-1)


def _thirds(x: Array) -> tuple[Array, ...]:
    """Splits an array along its first axis into three arrays of the same shape."""
    return tuple(np.split(x, 3))


def _joined(*parts: Array) -> Array:
    """Joins three arrays along their first axis, the reverse of `_thirds`. Raises `UnfitError` if their shapes
    differ."""
    # three arrays of different sizes cannot be split into thirds again
    if len({part.shape for part in parts}) > 1:
        raise UnfitError(
            f"PyTorch joins three arrays of one shape, but these have the shapes {[*map(np.shape, parts)]}"
        )
    return np.concatenate(parts)


SAME: Final = _single(_unchanged, _unchanged)
FLAT: Final = _single(_unchanged, _flattened)
"""The rule for an array that is flat in the framework and of any shape in PyTorch; the flat array does not keep that
shape."""
TRANSPOSED: Final = _single(np.transpose, np.transpose)
KERNEL_FIRST: Final = _single(_kernel_last, _kernel_first)
"""The rule for an array that is (*kernel, I, O) in the framework and (O, I, *kernel) in PyTorch."""


def _flipped_window(x: Array) -> Array:
    """Reverses every axis of a kernel (*kernel, I, O) except the last two."""
    return np.flip(x, tuple(range(x.ndim - 2)))


FLIPPED_KERNEL: Final = _single(
    lambda x: np.moveaxis(_flipped_window(x), (-2, -1), (0, 1)),
    # contiguous, because `np.flip` returns a view with negative strides, which not every framework accepts
    lambda x: np.ascontiguousarray(_flipped_window(np.moveaxis(x, (0, 1), (-2, -1)))),
)
"""The rule for the kernel of a transposed convolution that is (*kernel, I, O) in the framework, with the window
reversed, and (I, O, *kernel) in PyTorch."""
CHANNELS_LAST: Final = _single(lambda x: np.moveaxis(x, -1, 0), lambda x: np.moveaxis(x, 0, -1))
"""The rule for an array that is (*rows and columns, C) in the framework and (C, *rows and columns) in PyTorch."""
SUMMED: Final = Rule(lambda x: (x, np.zeros_like(x)), lambda ih, hh: ih + hh, is_lossy=True)
"""The rule for one bias that is the sum of PyTorch's two. Converted to PyTorch, it becomes the
first of the two, and the second is 0."""


def _gru_biases_to_torch(x: Array) -> tuple[Array, Array]:
    """Converts the biases of a GRU, one array in the order r, z, n of the inputs, n of the state, to PyTorch's bias_ih
    and bias_hh. PyTorch adds its two biases of r and z, so one of each becomes 0."""
    # each of the four has a quarter of the numbers
    r_and_z, new, of_state = np.split(x, (len(x) // 4 * 2, len(x) // 4 * 3))
    return np.concatenate([r_and_z, new]), np.concatenate([np.zeros_like(r_and_z), of_state])


def _gru_biases_from_torch(ih: Array, hh: Array) -> Array:
    """Converts PyTorch's bias_ih and bias_hh to one array in the order r, z, n of the inputs, n of the state: the
    reverse of `_gru_biases_to_torch`."""
    # r and z are the first two of PyTorch's three gates
    start_of_n = len(ih) // 3 * 2
    return np.concatenate([(ih + hh)[:start_of_n], ih[start_of_n:], hh[start_of_n:]])


BIASES_OF_GRU: Final = Rule(_gru_biases_to_torch, _gru_biases_from_torch, is_lossy=True)
"""The rule for the biases of a GRU that has one bias for r, one for z, and two for n: one for the inputs, and one for
the state, which r multiplies."""


def _input_bias_from_torch(ih: Array, hh: Array) -> Array:
    """Converts PyTorch's bias_ih and bias_hh to the one bias of a GRU that has biases for the inputs only. Raises
    `UnfitError` if PyTorch's bias for the state of n is not 0, because that bias cannot be added to the bias for the
    inputs: r multiplies only the bias for the state."""
    biases = _gru_biases_from_torch(ih, hh)
    if biases[len(ih) :].any():
        raise UnfitError(
            "Flax's nnx GRU has no bias for the state in its gate n, but this model's bias there is not 0"
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
transposed; the biases are one array with two rows, for the inputs and for the state."""


def packed(rows: Sequence[int], rule: Rule = SAME) -> Rule:
    """Returns the rule for one array that joins several PyTorch parameters along their first axis. `rows` says how many
    rows each of the parameters has. `rule` converts only the layout of the joined array, as if it were one PyTorch
    parameter: to PyTorch's layout before the array is split, and back after the parameters are joined."""
    # `np.split` takes the ends of all parts except the last
    ends = [sum(rows[: number + 1]) for number in range(len(rows) - 1)]

    def canonical(x: Array) -> tuple[Array, ...]:
        """Splits the array into PyTorch's parameters."""
        return tuple(np.split(rule.canonical(x)[0], ends))

    return Rule(canonical, lambda *parts: rule.native(np.concatenate(parts)))


PACKED: Final = Rule(_thirds, _joined)
"""The rule for an array that joins three PyTorch parameters of the same shape along their first axis."""


def kernel(inputs: Sequence[int], outputs: Sequence[int]) -> Rule:
    """Returns the rule for a weight of the shape (*inputs, *outputs) that is a matrix (O, I) in
    PyTorch: O is the product of `outputs`, I that of `inputs`. One size in `inputs` and one in
    `outputs` may be -1, which means any size."""

    def canonical(x: Array) -> Array:
        """Converts the weight to PyTorch's matrix (O, I)."""
        # from the shape, because a -1 in `inputs` says no size
        return x.reshape(math.prod(x.shape[: len(inputs)]), -1).T

    def native(x: Array) -> Array:
        """Converts PyTorch's matrix to the shape (*inputs, *outputs)."""
        # in two steps, because `inputs` and `outputs` may have a -1 each, and `reshape` takes only one
        rows = x.T.reshape(*inputs, x.shape[0])
        return rows.reshape(*rows.shape[:-1], *outputs)

    return _single(canonical, native)


def per_group(groups: int, channels: int | None = None) -> Rule:
    """Returns the rule for a weight that a framework stores as one number per group, and PyTorch as one per channel.
    Conversion from PyTorch raises `UnfitError` for numbers that differ within a group. `channels` is the number of
    channels, or None if the framework does not have it: then no number is repeated for PyTorch, and the rule is
    lossy."""

    def canonical(x: Array) -> tuple[Array, ...]:
        """Repeats the number of each group for its channels."""
        # without the number of channels, each group counts as one channel
        return (np.repeat(x, (channels or groups) // groups),)

    def native(x: Array) -> Array:
        """Returns one number for each group, which all channels of the group have."""
        rows = x.reshape(groups, -1)
        # the framework would apply the first number of a group to all of its channels
        if (rows != rows[:, :1]).any():
            raise UnfitError(
                "it has one value for each group of channels, but here the channels of one group have different values"
            )
        return rows[:, 0]

    return Rule(canonical, native, is_lossy=channels is None)


def shaped(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that has this shape in the framework, and is flat (one axis) in PyTorch."""
    return _single(_flattened, lambda x: x.reshape(shape))


def flat(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that is flat (one axis) in the framework, and has this shape in PyTorch."""
    return _single(lambda x: x.reshape(shape), _flattened)


def squeezed(shape: Sequence[int]) -> Rule:
    """Returns the rule for an array that has this shape in the framework, and no axes of length 1 in PyTorch's
    layout."""
    return _single(np.squeeze, lambda x: x.reshape(shape))


def reshaped(rule: Rule, shape: Sequence[int], own: Sequence[int]) -> Rule:
    """Returns a rule that converts as `rule` does, but whose result in PyTorch's layout has `shape`, while that of
    `rule` has the shape `own`."""
    return Rule(
        lambda x: tuple(array.reshape(shape) for array in rule.canonical(x)),
        lambda x: rule.native(x.reshape(own)),
    )


def rows(rule: Rule, first: int, last: int, total: int) -> Rule:
    """Returns the rule for an array of `total` rows, of which only the rows `first:last` are converted to PyTorch's
    layout. Converted back, the other rows become zeros. `rule` converts the array with all of its rows."""

    def native(x: Array) -> Array:
        """Returns an array of `total` rows, with zeros in place of those that are not in `x`."""
        # the rows before `first`, and those from `last` on
        zeros = [
            np.zeros_like(x, shape=(count, *x.shape[1:])) for count in (first, total - last)
        ]
        return rule.native(np.concatenate([zeros[0], x, zeros[1]]))

    return Rule(
        lambda x: tuple(array[first:last] for array in rule.canonical(x)),
        native,
        rule.refusal,
        is_lossy=True,
    )


def depthwise(multiplier: int) -> Rule:
    """Returns the rule for a depthwise kernel (*kernel, I, multiplier) that is (I * multiplier, 1, *kernel) in
    PyTorch."""

    def canonical(x: Array) -> Array:
        """Converts the kernel to PyTorch's shape."""
        return np.moveaxis(x, (-2, -1), (0, 1)).reshape(-1, 1, *x.shape[:-2])

    def native(x: Array) -> Array:
        """Converts PyTorch's kernel to the shape (*kernel, I, multiplier)."""
        return np.moveaxis(x.reshape(-1, multiplier, *x.shape[2:]), (0, 1), (-2, -1))

    return _single(canonical, native)


def by_pixels(rule: Rule, image: Sequence[int], why: str) -> Rule:
    """Returns a rule that converts as `rule` does, and reorders an array with a number for each pixel of a flattened
    image. `image` has the sizes of the image's axes: rows, columns, channels. In PyTorch the pixels are the last axis,
    in the order channels, rows, columns. `why` becomes the rule's `order`."""
    # -1 is the place of the channels in `image`, and -len(image) that of its first axis
    channels_first = image[-1], *image[:-1]

    def canonical(x: Array) -> tuple[Array, ...]:
        """Converts the array to PyTorch's layout, with the pixels counted channels first."""
        return tuple(_recounted(array, image, -1, -len(image)) for array in rule.canonical(x))

    def native(*arrays: Array) -> Array:
        """Converts PyTorch's arrays back, with the pixels counted channels last."""
        return rule.native(
            *(_recounted(array, channels_first, -len(image), -1) for array in arrays)
        )

    return rule._replace(canonical=canonical, native=native, order=why)


def _recounted(x: Array, image: Sequence[int], source: int, target: int) -> Array:
    """Returns the array with the numbers of its last axis in another order: that axis is a flattened image with the
    sizes `image`, whose axis `source` moves to the place `target` before the image is flattened again."""
    return np.moveaxis(x.reshape((*x.shape[:-1], *image)), source, target).reshape(x.shape)


def unfit(rule: Rule, why: str) -> Rule:
    """Returns a rule that converts to PyTorch as `rule` does, but raises `UnfitError` with the reason `why` when it
    converts from PyTorch, whose values the framework cannot represent."""

    def native(*arrays: Array) -> Array:
        """Raises `UnfitError`."""
        raise UnfitError(why)

    return rule._replace(native=native)


def refused(rule: Rule, why: str) -> Rule:
    """Returns `rule`, marked as usable for shapes only: the conversion of values is refused with the reason `why`."""
    return rule._replace(refusal=why)


# parts


def normed(
    parts: Iterable[Part], names: Sequence[str], shape: Sequence[int], own: Sequence[int]
) -> tuple[Part, ...]:
    """Returns the parts of a layer with a weight norm: two parts, g and v, take the place of `weight`, and `names` are
    their names in the framework. g has `shape`, with as many axes as v; the framework stores g in the shape `own`,
    which may leave out axes of length 1."""
    return _with_weight_as(
        parts, names, NORMED, lambda rule: (_reshaped(rule, shape, own), rule)
    )


def spectral(parts: Iterable[Part], names: Sequence[str]) -> tuple[Part, ...]:
    """Returns the parts of a layer whose weight is divided by its spectral norm: three parts, with these `names` in the
    framework, take the place of `weight`."""
    return _with_weight_as(parts, names, SPECTRAL, lambda rule: (rule, SAME, SAME))


def _with_weight_as(
    parts: Iterable[Part],
    names: Sequence[str],
    of: Sequence[str],
    rules: Callable[[Rule], Sequence[Rule]],
) -> tuple[Part, ...]:
    """Returns the parts, with several parts in place of the weight's. The new parts have these
    `names`, become PyTorch's parameters `of`, and get the rules that `rules` returns for the
    weight's rule. `names`, `of` and these rules have the same length."""
    every: list[Part] = []
    for part in parts:
        if part.of == ("weight",):
            each = zip(names, of, rules(part.rule), strict=True)
            # at the place of the weight, so that the order of the parameters stays PyTorch's
            every += [Part(name, (parameter,), rule) for name, parameter, rule in each]
        else:
            every.append(part)
    return tuple(every)


def _reshaped(rule: Rule, shape: Sequence[int], own: Sequence[int]) -> Rule:
    """Returns `rule` for an array that the framework stores in the shape `own`, while `rule` takes it in `shape`."""
    return Rule(
        lambda x: rule.canonical(x.reshape(shape)), lambda x: rule.native(x).reshape(own)
    )


def weight_of_spectral(original: Array, u: Array, v: Array, axis: int | None) -> Array:
    """Returns the weight that a spectral norm computes in evaluation, from the parameters in
    `SPECTRAL`. `axis` is the axis of `original` that gives the rows of the matrix W. None means
    that this axis is not known: then the axis is taken for which a step of the norm would turn
    v into u most closely. Raises `UnfitError` if no axis is as long as u."""
    # in float64, so that the comparison of axes below is not decided by rounding
    left, right = u.astype("float64"), v.astype("float64")
    axes = (
        [axis]
        if axis is not None
        else [n for n, size in enumerate(original.shape) if size == len(u)]
    )
    matrices = [np.moveaxis(original, n, 0).reshape(len(u), -1).astype("float64") for n in axes]
    if not matrices:
        raise UnfitError(
            f"the u of its spectral norm has {len(u)} numbers, but the weight of shape {original.shape} has no axis of "
            f"that length"
        )

    def error(matrix: Array) -> float:
        """How far u is from the direction of W v, for this W."""
        image = matrix @ right
        return float(np.abs(image - left * np.linalg.norm(image)).max())

    # each step of the norm sets u to W v over its length
    matrix = min(matrices, key=error)
    weight: Array = (original / (left @ matrix @ right)).astype(original.dtype)
    return weight


def weight_of_norm(g: Array, v: Array) -> Array:
    """Returns the weight that a weight norm computes from its parameters g and v."""
    weight: Array = (v * (g / _norm(v, g.shape))).astype(v.dtype)
    return weight


def norm_of_weight(weight: Array, shape: Sequence[int]) -> tuple[Array, Array]:
    """Returns the parameters g and v with which a weight norm computes `weight`: g has this
    shape, and v is `weight` itself."""
    # with g = |v| the weight is v
    return _norm(weight, shape).astype(weight.dtype), weight


def _norm(v: Array, shape: Sequence[int]) -> Array:
    """Returns |v| in float64. `shape` is that of g, which has the length 1 along each axis that
    |v| sums over."""
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
    """Returns the parts of a layer of this kind, in a framework that differs from PyTorch only by `names` and `rules`.
    Both have the form `{kind: {PyTorch's parameter: ...}}`. `names` gives the framework's name, or None if the
    framework lacks the parameter; `rules` gives the `Rule`. A parameter that they do not mention is as in PyTorch."""
    own_names, own_rules = names.get(kind, {}), rules.get(kind, {})
    # without an entry for attentions, the parts are those of PyTorch's own attention, which
    # joins some projections in one array
    if kind == ATTENTION and not own_names and not own_rules:
        # a layer states head_dim only if it is not the size that PyTorch computes
        why = f"in PyTorch a head has embed_dim / num_heads numbers, but these heads have {settings.get('head_dim')}"
        own_parts = tuple(_attention(settings))
        return (
            tuple(part._replace(rule=unfit(part.rule, why)) for part in own_parts)
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
    """Yields the parts of PyTorch's own attention, which stores the weights of queries, keys
    and values as one array if they have the same shape."""
    # the names of the three weights, and of the three biases: the two names in `_NORM` are "weight" and "bias". The
    # biases are in one array even where the weights are not
    weights, biases = (tuple(f"{name}.{suffix}" for name in _IN) for suffix in _NORM)
    rest = [Part("in_proj_bias", biases, PACKED), *(Part(name, (name,), SAME) for name in _OUT)]
    # PyTorch joins the three weights unless kdim or vdim differ from embed_dim
    if settings.get("packed", True):
        yield Part("in_proj_weight", weights, PACKED)
    else:
        yield from (Part(name.replace(".", "_"), (name,), SAME) for name in weights)
    yield from rest


def is_packed(shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether PyTorch stores the weights of queries, keys and values in one array. `shapes` are the shapes of all
    parameters, by PyTorch's names. False if `shapes` has none of these weights."""
    return (
        len({tuple(shapes[f"{name}.weight"]) for name in _IN if f"{name}.weight" in shapes})
        == 1
    )


def cells(kind: str, settings: Settings) -> Iterator[str]:
    """Yields PyTorch's names of the parameters of all cells of a recurrent layer."""
    for suffix in suffixes(settings):
        yield from (f"{name}_{suffix}" for name in KINDS[kind])
        if settings.get("projection"):
            # only an LSTM of PyTorch has a projection
            yield f"weight_hr_{suffix}"


def of_single_cell(kind: str) -> tuple[Part, ...]:
    """Returns the parts of a recurrent layer that is a single cell, such as `LSTMCell`. PyTorch
    and Paddle name these parts without the suffix "_l0"."""
    return tuple(Part(name, (f"{name}_l0",), SAME) for name in KINDS[kind])


ONE_CELL: Final[Settings] = MappingProxyType(
    {"layers": 1, "bidirectional": False, "projection": 0, "dropout": 0.0}
)
"""The settings of a recurrent layer that is a single cell, such as `LSTMCell`."""


def suffixes(settings: Settings) -> Iterator[str]:
    """Yields the suffixes "l0", "l0_reverse", "l1", ... of a recurrent layer's cells, one for each layer and
    direction."""
    # `str` is for type checkers only, which know a setting as an `object`
    for number in range(int(str(settings.get("layers", 1)))):
        yield f"l{number}"
        if settings.get("bidirectional"):
            yield f"l{number}_reverse"


def present_layer(
    path: str, kind: str, parts: Sequence[Part], names: Container[str], settings: Settings
) -> Layer | None:
    """Returns the layer at `path` with those of `parts` that a model has: those whose full names are among `names`,
    the names of the model's variables. Returns None if the model has none of the parts, or lacks a weight of a
    recurrent layer."""
    # the names of the parts in their layer become names in the model
    prefixed = tuple(part._replace(name=join(path, part.name)) for part in parts)
    present = tuple(part for part in prefixed if part.name in names)
    # a norm on only some of the weights, for example, replaces these by other variables: then the parameters are
    # listed as tensors that belong to no layer
    if kind in RECURRENT and any(
        part not in present and "bias" not in part.of[0] for part in prefixed
    ):
        return None
    # a layer without bias lacks that part, and is still the layer
    return Layer(path, kind, present, settings) if present else None


def present_layers(
    layers: Iterable[Layer],
    names: Container[str],
    blocks: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Layer]:
    """Returns those of the layers that a model has, each with the parts that the model has. `names` are the names of
    the model's variables. A layer that is given without parts first gets those of PyTorch's own layer. The layers stay
    in their order, except inside a block, a module that calls its layers in another order: `blocks` gives the names of
    these layers, in the order of the calls, by the path of the block."""
    with_parts = ((layer, layer.parts or parts(layer.kind, layer.settings)) for layer in layers)
    present = (
        present_layer(layer.path, layer.kind, its_parts, names, layer.settings)
        for layer, its_parts in with_parts
    )
    return in_order([layer for layer in present if layer is not None], blocks)


def in_order(layers: Iterable[Layer], blocks: Mapping[str, Sequence[str]]) -> list[Layer]:
    """Returns the layers in the order given, except for the layers directly inside a block: these come in the order in
    which the block calls them, at the place of the block's first layer. `blocks` gives the names of these layers by the
    path of the block, in the order of the calls."""
    every = list(layers)
    # the index of the first layer inside each module
    firsts: dict[str, int] = {}
    for index, layer in enumerate(every):
        firsts.setdefault(_parent(layer), index)

    def key(numbered: tuple[int, Layer]) -> tuple[int, int, int]:
        """The key by which a layer is sorted, given its index and the layer. For a layer of a block: the index of the
        block's first layer, then the place among the block's calls. For any other layer: its own index."""
        index, layer = numbered
        # a module need not define its layers in the order in which it calls them
        names = blocks.get(_parent(layer), ())
        name = layer.path.rpartition(".")[2]
        return (
            (firsts[_parent(layer)], names.index(name), index)
            if name in names
            else (index, 0, index)
        )

    return [layer for _, layer in sorted(enumerate(every), key=key)]


def _parent(layer: Layer) -> str:
    """The path of the module that contains the layer; "" for the model itself."""
    return layer.path.rpartition(".")[0]


def order_of_block(norm_first: bool, *attentions: str) -> tuple[str, ...]:
    """Returns the names of the layers inside a Transformer layer, in the order in which the Transformer layer calls
    them. `attentions` are the names of its attention layers: one in an encoder, two in a decoder."""
    # one norm for each attention, and one for the pair of linear layers
    norms = [f"norm{number}" for number in range(1, len(attentions) + 2)]
    steps = [*((name,) for name in attentions), ("linear1", "linear2")]
    # each step has a norm of its own, before or after it
    with_norms = [
        (norm, *step) if norm_first else (*step, norm)
        for norm, step in zip(norms, steps, strict=True)
    ]
    return tuple(chain.from_iterable(with_norms))


def same_setting(one: object, other: object) -> bool:
    """Whether two settings are equal. Floats are compared with a relative tolerance of 1e-6, because some frameworks
    keep them in float32."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def join(path: str, name: str) -> str:
    """Returns the full name of a part: the path of its layer, a dot, and its name in the layer."""
    return f"{path}.{name}" if path and name else path or name


def _axes_of(kind: str, name: str) -> tuple[int, ...]:
    """The numbers of axes that a parameter of a layer may have in PyTorch's layout. `name` is PyTorch's name."""
    # the axes of a weight depend on the kind of the layer
    if "weight" in name:
        return _AXES[kind]
    # a count is a scalar or an array of one number
    if name == COUNTER:
        return (0, 1)
    # `bias_k` and `bias_v` are (1, 1, E); any other bias has one axis
    return (3,) if name in _ADDED else (1,)


def misfit(kind: str, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns why a layer cannot be of this kind if its parameters have these shapes in PyTorch's layout; "" if the
    layer can be of this kind."""
    # a kind without an entry, such as a layer norm, may have any number of axes
    for name, shape in shapes.items() if kind in _AXES else ():
        axes = _axes_of(kind, name)
        if len(shape) not in axes:
            return f"{name} is {tuple(shape)} in PyTorch's layout, but must have {' or '.join(map(str, axes))} axes"
    if kind not in RECURRENT:
        return ""
    # the size of the state is the number of columns of weight_hh, or, for an LSTM with a
    # projection, of weight_hr: then weight_hh takes the projected state, which is shorter.
    # Every recurrent layer has weight_hh, because `present_layer` returns none that lacks a
    # weight
    rows = _GATES[kind] * shapes.get("weight_hr_l0", shapes["weight_hh_l0"])[1]
    gated = {name: shape for name, shape in shapes.items() if not name.startswith("weight_hr")}
    # the first one with another number of rows, as a text
    off = next(
        (f"{name} has {shape[0]} rows" for name, shape in gated.items() if shape[0] != rows), ""
    )
    return (
        off
        and f"{off} in PyTorch's layout, but must have {rows}: {_GATES[kind]} for each number of the state"
    )


# settings


def stated_once(layers: Iterable[Layer], name: str) -> Iterator[Layer]:
    """Yields all the layers, but removes the setting `name` from every layer except the first that has it. There, the
    value of the setting becomes a text, which also says how many more layers had the setting, if any."""
    every = list(layers)
    having = [layer for layer in every if name in layer.settings]
    for layer in every:
        # if no layer has the setting (`having` is empty), all layers pass unchanged
        if not having or name not in layer.settings:
            yield layer
            continue
        settings = {key: value for key, value in layer.settings.items() if key != name}
        if layer is having[0]:
            # mixed precision sets it on every layer, and a line for each would hide the others
            more = f", as in {len(having) - 1} more layers" if len(having) > 1 else ""
            settings[name] = f"{layer.settings[name]}{more}"
        yield layer._replace(settings=settings)


def per_axis(value: Any, axes: int) -> Any:
    """Returns a setting as a tuple with one size for each axis; `axes` is the number of axes. One number applies to
    all axes. The items of a list or tuple are kept, even if their number is not `axes`. Any other value is returned as
    it is."""
    if isinstance(value, int):
        # frameworks take kernel_size=3 for (3, 3)
        return (value,) * axes
    return tuple(value) if isinstance(value, list | tuple) else value


def sides(value: Any, axes: int) -> Any:
    """Returns a padding as a tuple: one number per axis if both sides of each axis get the same, otherwise one pair per
    axis. `value` is a number, a list of a number or pair for each axis, or a flat list of both sides of each axis. A
    text, such as "same", is returned as it is."""
    around = per_axis(value, axes)
    # a flat list, as Paddle writes it: both sides of the first axis, then of the next
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
    """Returns the dropout that a recurrent layer of this many levels applies: 0 for one level, because dropout comes
    only between levels."""
    return float(dropout) if layers > 1 else 0.0


def same_padding(
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    image: Sequence[int | None] = (),
) -> object:
    """Returns how much padding="same" adds on each side of each axis, as a tuple; "same" if the
    two sides of an axis differ, or if the padding is not known. With a stride above 1 the
    padding depends on the sizes of the `image`; a size is None if it is not known, and an empty
    `image` means that no size is known."""
    # with a dilation, the kernel covers more pixels than it has numbers
    sizes = [step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True)]
    each = zip(sizes, stride, image or [None] * len(sizes), strict=True)
    # with a stride of 1, as much is added whatever the size of the image
    totals = [
        size - 1 if step == 1 else _same_padding_of_axis(size, step, length)
        for size, step, length in each
    ]
    added = [number for number in totals if number is not None and number % 2 == 0]
    # an odd total adds one pixel more on one side, and an unknown total is missing from `added`
    if len(added) < len(totals):
        return "same"
    return tuple(size // 2 for size in added)


def _same_padding_of_axis(kernel: int, stride: int, size: int | None) -> int | None:
    """How many pixels padding="same" adds to an axis of this size, on both sides together: enough for ceil(size /
    stride) windows. None if the size is not known."""
    return (
        None
        if size is None
        else max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    )
