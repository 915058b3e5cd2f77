"""Neural-network functions: the frameworks' own fast functions, with the same arguments, numbers and errors on each.

Experimental: it may change in a minor version.

Images are (N, C, H, W): batch, channels, height, width. Kernels of convolutions are (O, C, height, width). `size`,
`stride` and `padding` are an int for height and width, or a pair (height, width); padding is the same on both sides.

The tensors of one call have the same backend, device and float dtype, and so do the results. float32 and float64 work
on every backend, float16 and bfloat16 where the framework has them. Gradients are the framework's; NumPy's tensors have
none.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from xdevice.base import floats, spellings
from xdevice.base.dtypes import FLOATS, dtype_name
from xdevice.contract.patching import unseen
from xdevice.core import registry
from xdevice.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from xdevice.math.arithmetic import by_hand
from xdevice.math.arithmetic.checks import shape_of
from xdevice.math.arithmetic.dtypes import BOOL, REAL_FLOATING
from xdevice.math.arithmetic.lookup import Functions, Lookup
from xdevice.math.arithmetic.namespace import array_namespace
from xdevice.tensors.creation import listed
from xdevice.tensors.verbs import check_same_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, Literal, NoReturn

    from xdevice.math.arithmetic.checks import Checks

    Lengths = int | tuple[int, int]
    Reduction = Literal["mean", "sum", "none"]

F = TypeVar("F", bound="Callable[..., Any]")

__all__ = [
    "attention",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "logsumexp",
    "max_pool2d",
    "moments",
    "mse_loss",
    "one_hot",
    "relu",
    "sigmoid",
    "softmax",
]


def __dir__() -> list[str]:
    return __all__


_INDICES: Final = ("int32", "int64")
_IMAGES: Final = ("batch", "channels", "height", "width")
_KERNELS: Final = ("filters", "channels", "height", "width")


def _without_scopes(function: F) -> F:
    """The function, called while device scopes are set aside: those that the framework of its first tensor would call
    for each operation."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        on = _seen.get(type(args[0])) if args else None
        scopes = None if on is None else on.scopes
        # without an open scope there is nothing to set aside
        if scopes is None or not scopes.are_open():
            return function(*args, **kwargs)
        taken = scopes.set_aside()
        try:
            return function(*args, **kwargs)
        finally:
            scopes.put_back(taken)

    return cast("F", run)


# of each element


@_without_scopes
def relu(x: Any) -> Any:
    """max(x, 0) for each element; the gradient at 0 is 0.

    Raises:
        DTypeError: `x` does not hold floats. NotATensorError: `x` is not a tensor.
        UnsupportedError: the backend is a third party's, and its adapter has no such functions.

    Costs the time of the framework's own function, and 1 us.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.relu(xdevice.tensor([-1.0, 0.0, 2.0]))).tolist()
        [0.0, 0.0, 2.0]
    """
    on, x = _begin(x, "relu")
    return on.kernels.relu(x)


@_without_scopes
def leaky_relu(x: Any, *, slope: float = 0.01) -> Any:
    """x for each element above 0, and `slope * x` for the others; the gradient at 0 is the slope.

    Errors are those of `relu`. Costs three functions of the namespace.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.leaky_relu(xdevice.tensor([-1.0, 2.0]), slope=0.25)).tolist()
        [-0.25, 2.0]
    """
    xp, x = array_namespace(x), _begin(x, "leaky_relu")[1]
    return xp.where(xp.greater(x, 0.0), x, xp.multiply(x, slope))


@_without_scopes
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for each element, without overflow.

    Errors and cost are those of `relu`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.sigmoid(xdevice.tensor([-1000.0, 0.0, 1000.0]))).tolist()
        [0.0, 0.5, 1.0]
    """
    on, x = _begin(x, "sigmoid")
    return on.kernels.sigmoid(x)


@_without_scopes
def gelu(x: Any, *, approximate: bool = False) -> Any:
    """x times the probability that a standard normal number is below x, for each element.

    Args:
        approximate: use tanh instead of erf, which is faster and off by up to 5e-4: JAX's default, not PyTorch's.

    Raises the errors of `relu`, and without `approximate` also UnsupportedError: a third party's adapter has no erf.

    Costs as much as `relu`; on NumPy 100 ns an element.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.gelu(xdevice.tensor([0.0, 100.0]))).tolist()
        [0.0, 100.0]
    """
    on, x = _begin(x, "gelu")
    if not (approximate or on.has_erf):
        raise on.backend.unsupported(
            "the error function", "gelu(x, approximate=True) does without it"
        )
    return on.run("gelu", x, approximate=bool(approximate))


@_without_scopes
def dropout(x: Any, mask: Any, p: float, **spelling: NoReturn) -> Any:
    """`x * mask / (1 - p)`: elements that the mask drops are 0, and if it drops with probability `p`, the mean is kept.

    Args:
        mask: bool, of the shape of `x`: `xdevice.random.bernoulli(x.shape, p=1 - p)` drops the same elements on every
            backend.
        p: a number from 0 to 1; with 1 all elements are 0, whatever the mask.

    Raises:
        ArgumentError: `p` is not such a number. ShapeError: shapes that differ.
        DTypeError: a mask that is not bool. Other errors: those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Costs three passes over `x`.

    Example:
        >>> x, mask = xdevice.tensor([1.0, 2.0]), xdevice.tensor([True, False])
        >>> xdevice.to_numpy(xdevice.nn.dropout(x, mask, 0.5)).tolist()
        [2.0, 0.0]
    """
    if spelling:
        spellings.refuse("nn.dropout", spelling, "mask=, p=")
    on, x = _begin(x, "dropout")
    mask = on.checks.require(mask, BOOL, "dropout")
    on.require_one_device(x=x, mask=mask)
    if not _fit(shape_of(x), shape_of(mask)):
        raise ShapeError(
            f"dropout takes a mask of the shape of x, {shape_of(x)}, not {shape_of(mask)}"
        )
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout takes a probability from 0 to 1, and p is {shown(p)}")
    # x * mask / 0 would be NaN
    if p == 1:
        return on.checks.kernels.multiply(x, on.checks.number(0.0, on.checks.name(x), x))
    return on.kernels.dropout(x, mask, 1.0 - p)


# along an axis


@_without_scopes
def softmax(x: Any, *, axis: int = -1, **spelling: NoReturn) -> Any:
    """exp(x) divided by its sum along an axis, without overflow.

    Raises:
        ShapeError: there is no such axis. Other errors: those of `relu`.

    Costs as much as `relu`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.softmax(xdevice.tensor([[1000.0, 1000.0]]))).tolist()
        [[0.5, 0.5]]
    """
    if spelling:
        spellings.refuse("nn.softmax", spelling, "axis=")
    return _along("softmax", x, axis)


@_without_scopes
def log_softmax(x: Any, *, axis: int = -1, **spelling: NoReturn) -> Any:
    """The logarithm of `softmax`, which stays finite if `softmax` itself would be rounded to 0.

    Errors and cost are those of `softmax`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.log_softmax(xdevice.tensor([0.0, -200.0]))).tolist()
        [0.0, -200.0]
    """
    if spelling:
        spellings.refuse("nn.log_softmax", spelling, "axis=")
    return _along("log_softmax", x, axis)


@_without_scopes
def logsumexp(x: Any, *, axis: int = -1) -> Any:
    """The logarithm of the sum of exp(x) along an axis, without overflow; -inf where all elements are -inf. The
    gradient has NaN in a row whose largest element is infinite.

    Errors are those of `softmax`; a tensor without elements raises ShapeError, too. Costs seven functions of the
    namespace.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.logsumexp(xdevice.tensor([[-1000.0, -1000.0], [3.0, -1000.0]]))).round(2)
        array([-999.31,    3.  ], dtype=float32)
    """
    xp, x = array_namespace(x), _begin(x, "logsumexp")[1]
    most = xp.max(x, axis=axis, keepdims=True)
    is_finite = xp.isfinite(most)
    shift = xp.where(is_finite, most, 0.0)  # NumPy warns of a difference of infinities
    total = xp.log(xp.sum(xp.exp(xp.subtract(x, shift)), axis=axis, keepdims=True))
    return xp.squeeze(xp.where(is_finite, xp.add(total, shift), most), axis=axis)


def _along(function: str, x: Any, axis: int) -> Any:
    """Runs a kernel along an axis."""
    on, x = _begin(x, function)
    place = on.checks.axis(axis, len(x.shape), function)
    # kernels are promised elements
    return (
        getattr(on.kernels, function)(x, place)
        if 0 not in x.shape
        else on.checks.kernels.copy(x)
    )


@_without_scopes
def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, with mean and variance over the last axis.

    Args:
        weight: with the shape of the last axis; None means ones.
        bias: likewise; None means zeros.

    Raises:
        ShapeError: shapes that do not fit, or a last axis without elements. Other errors: those of `conv2d`.

    Costs as much as `relu`, or ten passes over `x` if the framework has no fused function (TensorFlow, NumPy).

    Example:
        >>> xdevice.to_numpy(xdevice.nn.layer_norm(xdevice.tensor([[1.0, 3.0]]), eps=0)).tolist()
        [[-1.0, 1.0]]
    """
    on, x = _begin(x, "layer_norm")
    shape = shape_of(x)
    if not shape or shape[-1] == 0:
        raise ShapeError(
            f"layer_norm is over the last axis, and x of the shape {shape} has no elements there"
        )
    return _normed(on, "layer_norm", shape[-1:], {"x": x, "weight": weight, "bias": bias}, eps)


@_without_scopes
def batch_norm(
    x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> Any:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` for each channel, axis 1 of `x`.

    In training, mean and variance are those of the batch, `mean, variance = nn.moments(x)`, through which gradients
    flow; afterwards they are running averages, which the program keeps: `0.9 * running + 0.1 * mean`.

    Args:
        x: floats of the shape (N, C, ...).
        mean: of the shape (C,), like `variance`, `weight` (None means ones) and `bias` (None means zeros).

    Raises:
        ShapeError: shapes that do not fit. Other errors: those of `conv2d`.

    Costs four passes over `x`.

    Example:
        >>> x = xdevice.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> xdevice.to_numpy(xdevice.nn.batch_norm(x, *xdevice.nn.moments(x))).round(3).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    on, x = _begin(x, "batch_norm")
    shape = _channels(x, "batch_norm")
    tensors = {"x": x, "mean": mean, "variance": variance, "weight": weight, "bias": bias}
    if mean is None or variance is None:
        raise ArgumentError(
            "batch_norm takes a mean and a variance; in training those of nn.moments(x)"
        )
    return _normed(on, "batch_norm", shape[1:2], tensors, eps)


@_without_scopes
def moments(x: Any) -> tuple[Any, Any]:
    """Mean and variance of each channel, axis 1 of `x`: two vectors, for `batch_norm`.

    The variance is divided by the number of elements, as normalizing needs; PyTorch's running average takes one less.

    Raises:
        ShapeError: fewer than two axes, or no elements. Other errors: those of `relu`.

    Costs three passes over `x`.

    Example:
        >>> mean, variance = xdevice.nn.moments(xdevice.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> xdevice.to_numpy(mean).tolist(), xdevice.to_numpy(variance).tolist()
        ([2.0, 5.0], [1.0, 0.0])
    """
    _, x = _begin(x, "moments")
    shape = _channels(x, "moments")
    if 0 in shape:
        raise ShapeError(f"moments needs at least one element, and x has the shape {shape}")
    xp, axes = array_namespace(x), (0, *range(2, len(shape)))
    return xp.mean(x, axis=axes), xp.var(x, axis=axes)


@_without_scopes
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    """`softmax(q @ k.T / sqrt(features)) @ v`: for each query a mean of the values, weighted by how it fits their keys.

    Args:
        q: queries of the shape (..., queries, features): batch and heads come first, as in PyTorch.
        k: keys of the shape (..., keys, features), and `v` values of the shape (..., keys, any size), with the same
            leading axes as `q`.
        mask: bool, of the shape (..., queries, keys) or a shape that broadcasts to it; True keeps a key. A query for
            which it keeps no key gives zeros.
        causal: the query i sees no key after the i-th, in addition to the mask.

    Raises:
        ShapeError: shapes that do not fit. DTypeError: a mask that is not bool. Other errors: those of `conv2d`.

    On PyTorch it costs as much as PyTorch's own attention, and on the CPU has no second gradient for tensors with four
    axes, nor for three since 2.14. On the other frameworks it needs memory for all weights.

    Example:
        >>> x = xdevice.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> xdevice.to_numpy(xdevice.nn.attention(x, x, x, causal=True)).astype(float).round(2).tolist()
        [[1.0, 0.0], [0.33, 0.67]]
    """
    on, q = _begin(q, "attention")
    k, v = (on.checks.require(part, REAL_FLOATING, "attention") for part in (k, v))
    shapes = queries, keys, values = shape_of(q), shape_of(k), shape_of(v)
    if min(map(len, shapes)) < 2 or not (
        _fit(queries[:-2], keys[:-2])
        and _fit(keys[:-1], values[:-1])
        and _fit(queries[-1:], keys[-1:])
        and 0 not in (*queries, *keys, *values)
    ):
        raise ShapeError(
            f"attention takes q, k and v of the shapes (..., queries, features), (..., keys, features) and "
            f"(..., keys, any), not {queries}, {keys} and {values}"
        )
    on.require_together(q=q, k=k, v=v)
    if mask is not None:
        mask = on.checks.require(mask, BOOL, "attention")
        on.require_one_device(q=q, mask=mask)
        scores = (*queries[:-1], keys[-2])
        if not _reaches(shape_of(mask), scores):
            raise ShapeError(
                f"attention takes a mask that broadcasts to {scores}, not {shape_of(mask)}"
            )
    return on.kernels.attention(q, k, v, mask, bool(causal))


# losses


@_without_scopes
def cross_entropy(
    logits: Any, labels: Any, *, reduction: Reduction = "mean", **spelling: NoReturn
) -> Any:
    """The mean over the batch of `-log_softmax(logits)` at each row's label: a tensor without dimensions.

    Args:
        logits: floats of the shape (n, classes).
        labels: the classes, from 0 to classes - 1, of the shape (n,), int32 or int64. Probabilities are refused: for
            those, `-xp.mean(xp.sum(p * xdevice.nn.log_softmax(logits), axis=1))` is the loss.
        reduction: "mean", "sum", or "none" for the loss of each row, of the shape (n,).

    Raises:
        IndexError: a label is not a class. On a GPU, and in a traced function, the framework reports it in its own way,
            and later: docs/reference/nn.md has the table.
        ShapeError: other shapes, or no rows, which have no mean. ArgumentError: another reduction.
        DTypeError: labels that are not int32 or int64. Other errors: those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Costs as much as `relu`, and on the CPU a read of the labels; on a GPU with Paddle or MXNet the read waits.

    Example:
        >>> logits, labels = xdevice.tensor([[0.0, 0.0], [0.0, 200.0]]), xdevice.tensor([1, 0])
        >>> round(xdevice.item(xdevice.nn.cross_entropy(logits, labels)), 4)
        100.3466
    """
    if spelling:
        spellings.refuse("nn.cross_entropy", spelling, "logits=, labels=, reduction=")
    on, logits = _begin(logits, "cross_entropy")
    labels = on.indices(labels, "cross_entropy")
    shape, rows = shape_of(logits), shape_of(labels)
    if len(shape) != 2 or len(rows) != 1 or not (rows == shape[:1] or _fit(shape[:1], rows)):
        raise ShapeError(
            f"cross_entropy takes logits of a shape (n, classes) and labels of the shape (n,), not {shape} and {rows}"
        )
    if 0 in shape:
        raise ShapeError(
            f"cross_entropy is a mean over rows of classes, and logits of the shape {shape} have none"
        )
    tensors = {"logits": logits, "labels": labels}
    # in one kernel: frameworks have it, and its gradient is one, too
    if reduction == "mean":
        return on.run_with_indices("cross_entropy", "cross_entropy", labels, shape[1], tensors)
    _reduction(reduction, "cross_entropy")
    return _reduced(
        on.run_with_indices("cross_entropy", "cross_entropies", labels, shape[1], tensors),
        reduction,
    )


@_without_scopes
def binary_cross_entropy_with_logits(
    logits: Any, labels: Any, *, reduction: Reduction = "mean"
) -> Any:
    """The mean of `-y * log(sigmoid(x)) - (1 - y) * log(1 - sigmoid(x))`, without overflow.

    Args:
        logits: floats of any shape.
        labels: floats from 0 to 1, of the same shape and dtype.
        reduction: "mean", "sum", or "none" for the loss of each element.

    Raises:
        ShapeError: shapes that differ, or a mean of no elements. ArgumentError: another reduction.
        DTypeError, DeviceMismatchError, NotATensorError, UnsupportedError: as `conv2d`.

    Costs as much as `relu`, or eight passes if the framework has no fused function (MXNet, NumPy).

    Example:
        >>> loss = xdevice.nn.binary_cross_entropy_with_logits
        >>> made = loss(xdevice.tensor([0.0, 200.0]), xdevice.tensor([1.0, 0.0]), reduction="none")
        >>> xdevice.to_numpy(made).round(0).tolist()
        [1.0, 200.0]
    """
    on, logits, labels = _checked_pair(
        logits, labels, reduction, "binary_cross_entropy_with_logits"
    )
    return _reduced(on.kernels.binary_cross_entropies(logits, labels), reduction)


@_without_scopes
def mse_loss(x: Any, y: Any, *, reduction: Reduction = "mean") -> Any:
    """The mean of the squares of `x - y`, of the same shape: nothing is broadcast.

    Arguments and errors are those of `binary_cross_entropy_with_logits`. Costs three passes.

    Example:
        >>> xdevice.item(xdevice.nn.mse_loss(xdevice.tensor([1.0, 2.0]), xdevice.tensor([1.0, 4.0])))
        2.0
    """
    on, x, y = _checked_pair(x, y, reduction, "mse_loss")
    difference = on.checks.kernels.subtract(x, y)
    return _reduced(on.checks.kernels.multiply(difference, difference), reduction)


# of indices


@_without_scopes
def embedding(indices: Any, table: Any) -> Any:
    """The rows of a table at the indices. The result has the axes of `indices`, and a new last axis as long as a row.

    Args:
        indices: int32 or int64, of any shape, from 0 to rows - 1.
        table: floats of the shape (rows, features).

    Raises:
        IndexError: there is no row for an index. On devices other than the CPU as with `cross_entropy`.
        ShapeError: a table of another shape. Other errors: those of `cross_entropy`.

    Costs as `cross_entropy`.

    Example:
        >>> table = xdevice.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> xdevice.to_numpy(xdevice.nn.embedding(xdevice.tensor([1, 1, 0]), table)).tolist()
        [[2.0, 3.0], [2.0, 3.0], [0.0, 1.0]]
    """
    on, table = _begin(table, "embedding")
    indices = on.indices(indices, "embedding")
    shape = shape_of(table)
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"embedding takes a table of the shape (rows, features), not {shape}")
    return on.run_with_indices(
        "embedding", "embedding", indices, shape[0], {"indices": indices, "table": table}
    )


@_without_scopes
def one_hot(indices: Any, n: int, *, dtype: object = None, **spelling: NoReturn) -> Any:
    """1 at the index and 0 elsewhere, along a new last axis of the length `n`; float32 unless `dtype` says otherwise.

    Args:
        indices: int32 or int64, of any shape, from 0 to n - 1.
        n: an int of 1 or more.
        dtype: any dtype that the backend has, in any framework's form.

    Raises:
        IndexError: an index is below 0 or not below `n`. On devices other than the CPU as with `cross_entropy`, except
            for integer dtypes and bool: those are checked on each device, and not in a traced function.
        ArgumentError: `n` is not an int of 1 or more.
        DTypeError: indices that are not int32 or int64, or a dtype that the backend does not have here.
        NotATensorError, UnsupportedError: as with `relu`.

    Costs as `cross_entropy`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.one_hot(xdevice.tensor([2, 0]), 3)).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if spelling:
        spellings.refuse("nn.one_hot", spelling, "n=, dtype=")
    on = _of(indices, "one_hot")
    indices = on.indices(indices, "one_hot")
    (classes,) = _whole("n", n, 1, 1, "one_hot")
    name = floats.usual() if dtype is None else on.checks.supported(dtype_name(dtype))
    operands = indices, classes, name
    if name in FLOATS:
        return on.guarded("one_hot", on.kernels.one_hot, indices, classes, operands)
    # integers have no NaN
    on.require_range(indices, classes, "one_hot")
    return on.kernels.one_hot(*operands)


# of images


@_without_scopes
def conv2d(
    x: Any, kernel: Any, bias: Any = None, *, stride: Lengths = 1, padding: Lengths = 0
) -> Any:
    """The convolution of images as in layers, without flipping the kernel: (N, C, H, W) to (N, O, rows, columns).

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        kernel: a tensor of the shape (O, C, height, width).
        bias: a tensor of the shape (O,), added to each filter's result.
        stride: 1 or more. Steps that do not fit are left out: rows = (H + 2 * padding - height) // stride + 1.
        padding: zeros on both sides of height and width, 0 or more.

    Raises:
        ShapeError: shapes that do not fit each other. ArgumentError: an invalid `stride` or `padding`.
        DTypeError: not floats, or of several dtypes. Other errors: those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Costs as much as `relu`, and 3 us for the checks; on TensorFlow also three transpositions.

    Example:
        >>> x, kernel = xdevice.ones(1, 1, 3, 3), xdevice.ones(1, 1, 2, 2)
        >>> xdevice.to_numpy(xdevice.nn.conv2d(x, kernel, stride=2, padding=1)).tolist()
        [[[[1.0, 2.0], [2.0, 4.0]]]]
    """
    on, x = _begin(x, "conv2d")
    kernel = on.checks.require(kernel, REAL_FLOATING, "conv2d")
    strides, paddings = (
        _whole("stride", stride, 2, 1, "conv2d"),
        _whole("padding", padding, 2, 0, "conv2d"),
    )
    images, filters = (
        _sizes("x", x, _IMAGES, "conv2d"),
        _sizes("kernel", kernel, _KERNELS, "conv2d"),
    )
    if not _fit(images[1:2], filters[1:2]):
        raise ShapeError(
            f"conv2d: x of the shape {images} has {images[1]} channels, and the kernel {filters} expects {filters[1]}; "
            "channels come second: (N, C, H, W)"
        )
    tensors = {"x": x, "kernel": kernel}
    if bias is not None:
        tensors["bias"] = bias = on.checks.require(bias, REAL_FLOATING, "conv2d")
        if len(bias.shape) != 1 or not _fit(shape_of(bias), filters[:1]):
            raise ShapeError(
                f"conv2d takes a bias of the shape ({filters[0]},), not {shape_of(bias)}"
            )
    _require_window_fits("conv2d", images, filters[2:], paddings)
    on.require_together(**tensors)
    return on.kernels.conv2d(x, kernel, bias, strides, paddings)


@_without_scopes
def max_pool2d(
    x: Any, size: Lengths, *, stride: Lengths | None = None, padding: Lengths = 0
) -> Any:
    """The greatest element of each window of each channel: (N, C, H, W) to (N, C, rows, columns).

    If several elements of a window are equally great, the first gets the gradient.

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        size: the size of a window, 1 or more.
        stride: 1 or more, `size` if left out. Windows that do not fit are left out, as in `conv2d`.
        padding: from 0 to half of `size`; padding is never the greatest element.

    Raises:
        ShapeError: `x` does not hold images, or no window fits. ArgumentError: another invalid argument.
        DTypeError, NotATensorError, UnsupportedError: as with `relu`.

    Costs as much as `relu`, and 2 us for the checks.

    Example:
        >>> x = xdevice.tensor([[[[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]]])
        >>> xdevice.to_numpy(xdevice.nn.max_pool2d(x, 2)).tolist()
        [[[[4.0]]]]
    """
    return _pool("max_pool2d", x, size, stride, padding)


@_without_scopes
def avg_pool2d(
    x: Any, size: Lengths, *, stride: Lengths | None = None, padding: Lengths = 0
) -> Any:
    """The mean of each window of each channel: (N, C, H, W) to (N, C, rows, columns). Padding counts as zeros.

    Arguments, errors and costs are those of `max_pool2d`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.avg_pool2d(xdevice.ones(1, 1, 2, 2), 2, padding=1)).tolist()
        [[[[0.25, 0.25], [0.25, 0.25]]]]
    """
    return _pool("avg_pool2d", x, size, stride, padding)


def _pool(
    function: str, x: Any, size: Lengths, stride: Lengths | None, padding: Lengths
) -> Any:
    """`max_pool2d` or `avg_pool2d`."""
    on, x = _begin(x, function)
    sizes = _whole("size", size, 2, 1, function)
    strides = sizes if stride is None else _whole("stride", stride, 2, 1, function)
    paddings = _whole("padding", padding, 2, 0, function)
    if 2 * paddings[0] > sizes[0] or 2 * paddings[1] > sizes[1]:
        raise ArgumentError(
            f"{function} takes a padding of half of the size {size} at most, not {padding}"
        )
    _require_window_fits(function, _sizes("x", x, _IMAGES, function), sizes, paddings)
    return getattr(on.kernels, function)(x, sizes, strides, paddings)


# the backend


class _Layers(Functions):
    """One backend's kernels for neural networks (functions of its adapter), and the checks of the kernels'
    arguments."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        own = self.backend.nn()
        self.kernels = by_hand.completed(own)
        self.has_erf = hasattr(own, "gelu") or hasattr(own, "erf")
        self.ends = self.kernels.ends
        self.guards = self.kernels.guards

    def run(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Runs the adapter's kernel, or the core's own one where the adapter's cannot."""
        result = getattr(self.kernels, name)(*arguments, **settings)
        return (
            getattr(by_hand, name)(self.kernels, *arguments, **settings)
            if result is NotImplemented
            else result
        )

    def run_with_indices(
        self, function: str, name: str, indices: Any, n: int | None, tensors: dict[str, Any]
    ) -> Any:
        """Runs a kernel on tensors on one device, some of which are indices from 0 to n - 1."""
        operands = (*tensors.values(),)
        if not self.checks.are_together(operands):
            self.require_one_device(**tensors)
        return self.guarded(function, getattr(self.kernels, name), indices, n, operands)

    def guarded(
        self,
        function: str,
        kernel: Callable[..., Any],
        indices: Any,
        n: int | None,
        operands: tuple[Any, ...],
    ) -> Any:
        """The result of a kernel. If the adapter does not guard the indices among its operands, they are read first,
        which waits for the device. If it does, they are read only after the kernel has raised, so that the error is the
        same on every backend."""
        # reading waits for the device, so it is left out where the kernel checks the indices
        if not self.is_guarded(indices):
            self.require_range(indices, n, function)
            return kernel(*operands)
        try:
            return kernel(*operands)
        except Exception:
            self.require_range(indices, n, function)
            raise

    def is_guarded(self, indices: Any) -> bool:
        device_of = registry.probes.get(type(indices))
        return (
            self.guards is not None
            and device_of is not None
            and self.guards(indices, device_of(indices).kind)
        )

    def indices(self, x: Any, function: str) -> Any:
        """Returns `x` as a tensor. Raises `DTypeError` if its dtype is not int32 or int64."""
        cls, checks = type(x), self.checks
        # only unknown types, and those that may be sparse, need the closer look
        if cls not in checks.tensor_types or (
            cls in checks.may_be_sparse and not self.backend.is_dense(x)
        ):
            x = checks.tensor(x, function)
        name = dtype_name(x.dtype)
        if name not in _INDICES:
            raise DTypeError(
                f"{function} takes classes as int32 or int64, not {name}; xp.astype(x, xp.int64) casts them, and "
                "xp.argmax(x, axis=1) makes classes of probabilities"
            )
        return x

    def require_range(self, indices: Any, n: int | None, function: str) -> None:
        """Raises `IndexError` for indices below 0 or above n - 1: frameworks raise, or give zeros, NaN or wrong rows.
        While a function is traced there are no values to check."""
        # a compiler traces: there is nothing to read
        if n is None or not _holds_values(indices) or self.backend.tracing() is not None:
            return
        check = partial(self._require_range, indices, n, function)
        if self.guards is None or self.backend.device_of(indices).kind != "cpu":
            self.backend.eagerly(check)
            return
        # on a GPU there is no such read
        with unseen():
            self.backend.eagerly(check)

    def _require_range(self, indices: Any, n: int, function: str) -> None:
        """Reads the indices, and raises `IndexError` for one that is out of range."""
        if 0 in indices.shape:
            return
        # one read of two numbers is quicker than one of all
        least, most = (
            self.ends(indices)
            if self.ends is not None
            else _ends(self.backend.to_numpy(indices), n)
        )
        # negative indices are no shorthand here: frameworks disagree about them
        if least < 0 or most >= n:
            raise IndexError(
                f"{function}: there is no index {least if least < 0 else most}; expected 0 to {n - 1}"
            )

    def require_together(self, **tensors: Any) -> None:
        """Raises `DTypeError` for floats of several dtypes, and `DeviceMismatchError` for tensors on several
        devices."""
        dtypes = [x.dtype for x in tensors.values()]
        # telling names takes a microsecond each, comparing takes none
        if (
            dtypes.count(dtypes[0]) < len(dtypes)
            and len(names := {*map(dtype_name, dtypes)}) > 1
        ):
            raise DTypeError(
                f"{' and '.join(tensors)} are of {' and '.join(sorted(names))}; cast them to one dtype"
            )
        self.require_one_device(**tensors)

    def require_one_device(self, **tensors: Any) -> None:
        """Raises `DeviceMismatchError` for tensors on several devices. Traced tensors have no device, and tensors that
        are spread over several devices are left to the framework."""
        operands = (*tensors.values(),)
        try:
            if self.checks.are_together(operands) or not all(map(_holds_values, operands)):
                return
            # its error names the arguments
            if len(set(map(self.backend.operand_device, operands))) > 1:
                check_same_device(**tensors)
        except UnsupportedError:
            return


_lookup: Final = Lookup(_Layers)
_seen: Final = _lookup.by_type


def _of(x: Any, function: str) -> _Layers:
    """The `_Layers` of the backend that the tensor `x` belongs to. Prepares this thread for the backend's kernels where
    they need it."""
    on = _seen.get(type(x))
    # a type that was not met before, or a forked child
    if on is None or on.backend.refusal is not None:
        on = _lookup.find(x, function)
    if on.enter is not None:
        on.enter()
    return on


def _begin(x: Any, function: str) -> tuple[_Layers, Any]:
    on = _seen.get(type(x))
    # without a function to enter, one look is enough
    if on is None or on.enter is not None or on.backend.refusal is not None:
        on = _of(x, function)
    return on, on.checks.require(x, REAL_FLOATING, function)


# arguments


def _reduction(reduction: str, function: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(
            f'{function}: reduction must be "mean", "sum" or "none", not {shown(reduction)}'
        )
    return reduction


def _reduced(losses: Any, reduction: Reduction) -> Any:
    return (
        losses if reduction == "none" else getattr(array_namespace(losses), reduction)(losses)
    )


def _checked_pair(
    x: Any, y: Any, reduction: Reduction, function: str
) -> tuple[_Layers, Any, Any]:
    """The checked arguments of an elementwise loss."""
    on, x = _begin(x, function)
    y = on.checks.require(y, REAL_FLOATING, function)
    # broadcasting in a loss mostly hides a mistake, such as (n,) against (n, 1)
    if not _fit(shape_of(x), shape_of(y)):
        raise ShapeError(
            f"{function} takes two tensors of one shape, not {shape_of(x)} and {shape_of(y)}"
        )
    # frameworks give NaN, 0 or an error
    if _reduction(reduction, function) == "mean" and 0 in x.shape:
        raise ShapeError(
            f"{function} is a mean, and tensors of the shape {shape_of(x)} have no elements"
        )
    on.require_together(x=x, y=y)
    return on, x, y


def _channels(x: Any, function: str) -> tuple[int | None, ...]:
    shape = shape_of(x)
    if len(shape) < 2:
        raise ShapeError(f"{function} takes x of the shape (batch, channels, ...), not {shape}")
    return shape


def _normed(
    on: _Layers,
    function: str,
    vector: tuple[int | None, ...],
    parts: dict[str, Any],
    eps: float,
) -> Any:
    """Runs a kernel that normalizes. `parts` has its tensors by name, `x` and those such as a scale, which are checked
    to have the shape `vector`; those left out are None."""
    # a large eps is mostly an argument in the wrong place
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ArgumentError(
            f"{function} takes an eps of 0 or more, well below 1, and eps is {shown(eps)}"
        )
    tensors = {}
    for name, part in parts.items():
        # an argument that was left out
        if part is None:
            continue
        if name != "x":
            parts[name] = part = on.checks.require(part, REAL_FLOATING, function)
            shape = shape_of(part)
            if shape != vector and not _fit(shape, vector):
                raise ShapeError(f"{function}: {name} has the shape {shape}, expected {vector}")
        tensors[name] = part
    on.require_together(**tensors)
    # kernels are promised elements
    if 0 in parts["x"].shape:
        return on.checks.kernels.copy(parts["x"])
    return on.run(function, *parts.values(), eps=float(eps))


def _reaches(shape: tuple[int | None, ...], whole: tuple[int | None, ...]) -> bool:
    """Whether a shape broadcasts to another one, as far as both are known."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(
        one is None or two is None or one in (1, two) for one, two in pairs
    )


def _ends(values: Any, n: int) -> tuple[int, int]:
    """The least and the greatest of the indices. If all are from 0 to n - 1, 0 is given for the least."""
    # as unsigned, a negative number is larger than all others
    most = int(values.view(f"u{values.itemsize}").max())
    return (0, most) if most < min(n, 2**31) else (int(values.min()), int(values.max()))


def _holds_values(x: Any) -> bool:
    # asking the registry would make torch.compile trace the registry
    return type(x) in registry.probes


def _fit(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes are equal in every size that is known in both; an unknown size is None."""
    return shape == other or (
        len(shape) == len(other)
        and all(
            one is None or two is None or one == two
            for one, two in zip(shape, other, strict=True)
        )
    )


def _sizes(what: str, x: Any, names: tuple[str, ...], function: str) -> tuple[int | None, ...]:
    """The shape of `x`, images or a kernel. Raises `ShapeError` unless it has one size for each of `names`; only a size
    called batch may be 0."""
    shape = shape_of(x)
    if len(shape) != len(names) or 0 in shape[names[0] == "batch" :]:
        raise ShapeError(
            f"{function} takes {what} of the shape ({', '.join(names)}), not {shape}"
        )
    return shape


def _require_window_fits(
    function: str, images: Any, window: Any, padding: tuple[int, ...]
) -> None:
    """Raises `ShapeError` for a window that is larger than the padded images, as far as lengths are known."""
    for length, size, more in zip(images[2:], window, padding, strict=True):
        if length is not None and size is not None and length + 2 * more < size:
            raise ShapeError(
                f"{function}: a window of {tuple(window)} does not fit into {images}, padded by {padding}"
            )


def _whole(what: str, value: Any, number: int, least: int, function: str) -> tuple[int, ...]:
    """The argument `value` as `number` ints of at least `least`; a single int is used for all of them. Raises
    `ArgumentError`."""
    lengths = listed(value) if number > 1 else (value,)
    lengths = lengths * number if len(lengths) == 1 and lengths[0] is value else lengths
    if len(lengths) != number or any(
        isinstance(length, bool) or not hasattr(type(length), "__index__") for length in lengths
    ):
        pair = " or a pair of ints" if number > 1 else ""
        raise ArgumentError(f"{function}: {what} must be an int{pair}, not {shown(value)}")
    whole = tuple(length.__index__() for length in lengths)
    if min(whole) < least:
        raise ArgumentError(f"{function}: {what} must be {least} or more, not {shown(value)}")
    return whole
