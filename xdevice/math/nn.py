"""Neural-network functions: the frameworks' own fast functions, with the same arguments, results and errors on every
backend.

Experimental: it may change in a minor version.

Images have the shape (N, C, H, W): batch, channels, height, width. Kernels of convolutions have the shape (O, C,
height, width), where O is the number of filters. `size`, `stride` and `padding` are each an int, which applies to
both height and width, or a pair (height, width). Padding is the same on both sides.

All tensors in a call must have the same backend, device and float dtype, and the result has them too. float32 and
float64 work on every backend; float16 and bfloat16 work if the framework supports them. The framework computes the
gradients; there are none on NumPy.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from xdevice.base import floats, spellings
from xdevice.base.dtypes import FLOATS, dtype_name
from xdevice.contract.patching import unreported
from xdevice.core import registry
from xdevice.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from xdevice.math.arithmetic import by_hand
from xdevice.math.arithmetic.checks import shape_of
from xdevice.math.arithmetic.dtypes import BOOL, REAL_FLOATING
from xdevice.math.arithmetic.lookup import Functions, Lookup
from xdevice.math.arithmetic.namespace import array_namespace
from xdevice.tensors.creation import as_tuple
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


# the dtypes allowed for labels and indices
_INDICES: Final = ("int32", "int64")
# the names of the axes of images, and of the kernels of convolutions, in error messages
_IMAGES: Final = ("batch", "channels", "height", "width")
_KERNELS: Final = ("filters", "channels", "height", "width")


def _without_scopes(function: F) -> F:
    """A decorator. While the decorated function runs, the open scopes of devices (`with device:`) are removed from the
    framework of the function's first argument. Open scopes would only cost time: PyTorch runs their code at every
    operation, but the functions of this module name the device of each tensor that they create."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        # `layers` is None if the first argument is passed by keyword, or if no function of this
        # module was called with its type before. The scopes then stay open, which only costs
        # time
        layers = _layers_by_type.get(type(args[0])) if args else None
        scopes = None if layers is None else layers.scopes
        # without an open scope, there is nothing to remove
        if scopes is None or not scopes.are_open():
            return function(*args, **kwargs)
        removed = scopes.set_aside()
        try:
            return function(*args, **kwargs)
        finally:
            scopes.put_back(removed)

    return cast("F", run)


# elementwise functions


@_without_scopes
def relu(x: Any) -> Any:
    """Returns max(x, 0) for each element x; the gradient at 0 is 0.

    Raises:
        DTypeError: `x` does not contain floats. NotATensorError: `x` is not a tensor.
        UnsupportedError: a third-party adapter has no neural-network functions.

    Costs as much as the framework's own function, plus 1 us.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.relu(xdevice.tensor([-1.0, 0.0, 2.0]))).tolist()
        [0.0, 0.0, 2.0]
    """
    layers, x = _layers_and_tensor(x, "relu")
    return layers.kernels.relu(x)


@_without_scopes
def leaky_relu(x: Any, *, slope: float = 0.01) -> Any:
    """Returns x for each element x above 0, and `slope * x` for all other elements. The gradient at 0 is the slope.

    Raises the errors of `relu`. Costs as much as three functions of `array_namespace`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.leaky_relu(xdevice.tensor([-1.0, 2.0]), slope=0.25)).tolist()
        [-0.25, 2.0]
    """
    _, x = _layers_and_tensor(x, "leaky_relu")
    xp = array_namespace(x)
    return xp.where(xp.greater(x, 0.0), x, xp.multiply(x, slope))


@_without_scopes
def sigmoid(x: Any) -> Any:
    """Returns 1 / (1 + exp(-x)) for each element x, without overflow.

    The errors and the cost are the same as for `relu`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.sigmoid(xdevice.tensor([-1000.0, 0.0, 1000.0]))).tolist()
        [0.0, 0.5, 1.0]
    """
    layers, x = _layers_and_tensor(x, "sigmoid")
    return layers.kernels.sigmoid(x)


@_without_scopes
def gelu(x: Any, *, approximate: bool = False) -> Any:
    """Returns x * P(Z < x) for each element x, where Z is a standard normal random variable.

    Args:
        approximate: whether to use tanh instead of erf, the error function. With tanh, the result is computed faster,
            but has an error of up to 5e-4. By default, JAX uses tanh, and PyTorch uses erf.

    Raises the errors of `relu`, and UnsupportedError if `approximate` is False and the adapter has no error function.

    Costs as much as the framework's own function, plus 1 us; on NumPy, 100 ns per element.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.gelu(xdevice.tensor([0.0, 100.0]))).tolist()
        [0.0, 100.0]
    """
    layers, x = _layers_and_tensor(x, "gelu")
    if not (approximate or layers.has_erf):
        raise layers.backend.unsupported(
            "the error function",
            "use gelu(x, approximate=True), which does not need the error function",
        )
    return layers.run_kernel("gelu", x, approximate=bool(approximate))


@_without_scopes
def dropout(x: Any, mask: Any, p: float, **misspelled: NoReturn) -> Any:
    """Returns `x * mask / (1 - p)`. An element of the result is 0 if the mask is False there. If each element of the
    mask is False with probability `p`, the expected value of the result is `x`.

    Args:
        mask: a bool tensor of the same shape as `x`. With `xdevice.random.bernoulli(x.shape, p=1 - p)`, the same
            elements are dropped on every backend.
        p: a number from 0 to 1. If `p` is 1, all elements of the result are 0, regardless of the mask.

    Raises:
        ArgumentError: `p` is not a number from 0 to 1. ShapeError: the shapes of `x` and `mask`
            differ.
        DTypeError: `mask` is not bool. Other errors: as with `relu`.
        DeviceMismatchError: the tensors are on several devices.

    Costs three passes over `x`.

    Example:
        >>> x, mask = xdevice.tensor([1.0, 2.0]), xdevice.tensor([True, False])
        >>> xdevice.to_numpy(xdevice.nn.dropout(x, mask, 0.5)).tolist()
        [2.0, 0.0]
    """
    if misspelled:
        spellings.refuse("nn.dropout", misspelled, "mask=, p=")
    layers, x = _layers_and_tensor(x, "dropout")
    mask = layers.checks.tensor_of_kinds(mask, BOOL, "dropout")
    layers.require_one_device(x=x, mask=mask)
    if not _may_be_equal(shape_of(x), shape_of(mask)):
        raise ShapeError(
            f"dropout: the mask must have the shape of x, {shape_of(x)}, not {shape_of(mask)}"
        )
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p must be a probability from 0 to 1, not {shown(p)}")
    # x * mask / 0 would be NaN, so x is multiplied by 0
    if p == 1:
        return layers.checks.kernels.multiply(
            x, layers.checks.number_as_tensor(0.0, layers.checks.dtype_of(x), x)
        )
    return layers.kernels.dropout(x, mask, 1.0 - p)


# functions along an axis


@_without_scopes
def softmax(x: Any, *, axis: int = -1, **misspelled: NoReturn) -> Any:
    """Returns exp(x) divided by the sum of exp(x) along an axis, without overflow.

    Raises:
        ShapeError: there is no such axis. Other errors: as with `relu`.

    Costs as much as the framework's own function, plus 1 us.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.softmax(xdevice.tensor([[1000.0, 1000.0]]))).tolist()
        [[0.5, 0.5]]
    """
    if misspelled:
        spellings.refuse("nn.softmax", misspelled, "axis=")
    return _along_axis("softmax", x, axis)


@_without_scopes
def log_softmax(x: Any, *, axis: int = -1, **misspelled: NoReturn) -> Any:
    """Returns the logarithm of `softmax`. The result stays finite even if `softmax` itself would be rounded to 0.

    The errors and the cost are the same as for `softmax`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.log_softmax(xdevice.tensor([0.0, -200.0]))).tolist()
        [0.0, -200.0]
    """
    if misspelled:
        spellings.refuse("nn.log_softmax", misspelled, "axis=")
    return _along_axis("log_softmax", x, axis)


@_without_scopes
def logsumexp(x: Any, *, axis: int = -1) -> Any:
    """Returns the logarithm of the sum of exp(x) along an axis, without overflow; the result is -inf if all elements
    are -inf. If the largest element of a row is infinite, the gradient of that row is NaN.

    Raises the errors of `softmax`, and ShapeError if the axis has no elements. Costs as much as seven functions of
    `array_namespace`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.logsumexp(xdevice.tensor([[-1000.0, -1000.0], [3.0, -1000.0]]))).round(2)
        array([-999.31,    3.  ], dtype=float32)
    """
    layers, x = _layers_and_tensor(x, "logsumexp")
    axis = layers.checks.axis_index(axis, len(x.shape), "logsumexp")
    xp = array_namespace(x)
    largest = xp.max(x, axis=axis, keepdims=True)
    is_finite = xp.isfinite(largest)
    # 0 replaces an infinity, because NumPy warns if an infinity is subtracted from an infinity
    shift = xp.where(is_finite, largest, 0.0)
    log_of_sum = xp.log(xp.sum(xp.exp(xp.subtract(x, shift)), axis=axis, keepdims=True))
    return xp.squeeze(xp.where(is_finite, xp.add(log_of_sum, shift), largest), axis=axis)


def _along_axis(function: str, x: Any, axis: int) -> Any:
    """Returns the result of the kernel `function` ("softmax" or "log_softmax") along an axis, or a copy of `x` if `x`
    has no elements. Raises `AxisError` if there is no such axis."""
    layers, x = _layers_and_tensor(x, function)
    axis_index = layers.checks.axis_index(axis, len(x.shape), function)
    # the contract promises that this kernel is never called with an empty tensor
    return (
        getattr(layers.kernels, function)(x, axis_index)
        if 0 not in x.shape
        else layers.checks.kernels.copy(x)
    )


@_without_scopes
def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`, with the mean and the variance over the last axis.

    Args:
        weight: a vector as long as the last axis; None means ones.
        bias: a vector as long as the last axis; None means zeros.

    Raises:
        ShapeError: `weight` or `bias` has the wrong shape, or the last axis has no elements. ArgumentError: `eps` is
            not a number in [0, 1). Other errors: as with `conv2d`.

    Costs as much as the framework's own function, plus 1 us. If the framework has no fused function (TensorFlow,
    NumPy), it costs ten passes over `x`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.layer_norm(xdevice.tensor([[1.0, 3.0]]), eps=0)).tolist()
        [[-1.0, 1.0]]
    """
    layers, x = _layers_and_tensor(x, "layer_norm")
    shape = shape_of(x)
    if not shape or shape[-1] == 0:
        raise ShapeError(
            f"layer_norm normalizes over the last axis, but x of shape {shape} has no elements along that axis"
        )
    return _normalized(
        layers,
        "layer_norm",
        vector_shape=shape[-1:],
        arguments={"x": x, "weight": weight, "bias": bias},
        eps=eps,
    )


@_without_scopes
def batch_norm(
    x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> Any:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias` for each channel; the channels are axis 1 of `x`.

    During training, pass the mean and variance of the batch, `mean, variance = nn.moments(x)`; gradients flow through
    both. After training, pass running averages, which the program must update in each training step: `running = 0.9 *
    running + 0.1 * mean`.

    Args:
        x: floats of the shape (N, C, ...).
        mean: floats of the shape (C,). `variance`, `weight` and `bias` have the same shape. None for `weight` means
            ones, and None for `bias` means zeros.

    Raises:
        ShapeError: the shapes do not match. ArgumentError: `eps` is not a number in [0, 1), or `mean` or `variance`
            is None. Other errors: as with `conv2d`.

    Costs four passes over `x`.

    Example:
        >>> x = xdevice.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> xdevice.to_numpy(xdevice.nn.batch_norm(x, *xdevice.nn.moments(x))).round(3).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    layers, x = _layers_and_tensor(x, "batch_norm")
    shape = _shape_with_channels(x, "batch_norm")
    tensors = {"x": x, "mean": mean, "variance": variance, "weight": weight, "bias": bias}
    if mean is None or variance is None:
        raise ArgumentError(
            "batch_norm requires a mean and a variance; in training, compute both with nn.moments(x)"
        )
    return _normalized(
        layers, "batch_norm", vector_shape=shape[1:2], arguments=tensors, eps=eps
    )


@_without_scopes
def moments(x: Any) -> tuple[Any, Any]:
    """Returns two vectors for `batch_norm`: the mean and the variance of each channel (axis 1 of `x`).

    The divisor of the variance is n, the number of elements, as normalization requires. The divisor of PyTorch's
    running variance is n - 1.

    Raises:
        ShapeError: `x` has fewer than two axes, or `x` has no elements. Other errors: as with `relu`.

    Costs three passes over `x`.

    Example:
        >>> mean, variance = xdevice.nn.moments(xdevice.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> xdevice.to_numpy(mean).tolist(), xdevice.to_numpy(variance).tolist()
        ([2.0, 5.0], [1.0, 0.0])
    """
    _, x = _layers_and_tensor(x, "moments")
    shape = _shape_with_channels(x, "moments")
    if 0 in shape:
        raise ShapeError(f"moments needs at least one element, but x has the shape {shape}")
    xp, axes = array_namespace(x), (0, *range(2, len(shape)))
    return xp.mean(x, axis=axes), xp.var(x, axis=axes)


@_without_scopes
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    """Returns `softmax(q @ k.T / sqrt(features)) @ v`. This is a weighted mean of the values for each query; the
    weight of a value says how well its key matches the query.

    Args:
        q: the queries, of the shape (..., queries, features). The batch and the heads come first, as in PyTorch.
        k: the keys, of the shape (..., keys, features), with the same leading axes as `q`.
        v: the values, of the shape (..., keys, any size), with the same leading axes as `q`.
        mask: a bool tensor of the shape (..., queries, keys), or of a shape that broadcasts to it. A query uses only
            the keys for which the mask is True; if there are no such keys, the query's result is zeros.
        causal: whether to hide all keys after the i-th from query i, in addition to the keys that the mask hides.

    Raises:
        ShapeError: the shapes do not match. DTypeError: `mask` is not bool. Other errors: as with `conv2d`.

    On PyTorch, it costs as much as PyTorch's own attention. On the CPU, PyTorch's attention has no second gradient for
    tensors with four axes; since PyTorch 2.14, the same is true of tensors with three axes. On the other frameworks,
    attention needs memory for the weight of each pair of a query and a key.

    Example:
        >>> x = xdevice.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> xdevice.to_numpy(xdevice.nn.attention(x, x, x, causal=True)).astype(float).round(2).tolist()
        [[1.0, 0.0], [0.33, 0.67]]
    """
    layers, q = _layers_and_tensor(q, "attention")
    k, v = (layers.checks.tensor_of_kinds(part, REAL_FLOATING, "attention") for part in (k, v))
    shapes = q_shape, k_shape, v_shape = shape_of(q), shape_of(k), shape_of(v)
    # the leading axes, the numbers of keys and the numbers of features must match. No size may
    # be 0, because the contract promises that this kernel is never called with empty tensors
    if min(map(len, shapes)) < 2 or not (
        _may_be_equal(q_shape[:-2], k_shape[:-2])
        and _may_be_equal(k_shape[:-1], v_shape[:-1])
        and _may_be_equal(q_shape[-1:], k_shape[-1:])
        and 0 not in (*q_shape, *k_shape, *v_shape)
    ):
        raise ShapeError(
            f"attention expects q, k and v of shapes (..., queries, features), (..., keys, features) and "
            f"(..., keys, any size), not {q_shape}, {k_shape} and {v_shape}"
        )
    layers.require_one_dtype_and_device(q=q, k=k, v=v)
    if mask is not None:
        mask = layers.checks.tensor_of_kinds(mask, BOOL, "attention")
        # compared with `q` only, because `k` and `v` are on the device of `q`
        layers.require_one_device(q=q, mask=mask)
        scores_shape = (*q_shape[:-1], k_shape[-2])
        if not _broadcasts_to(shape_of(mask), scores_shape):
            raise ShapeError(
                f"attention requires a mask that can be broadcast to {scores_shape}; got the shape {shape_of(mask)}"
            )
    return layers.kernels.attention(q, k, v, mask, bool(causal))


# loss functions


@_without_scopes
def cross_entropy(
    logits: Any, labels: Any, *, reduction: Reduction = "mean", **misspelled: NoReturn
) -> Any:
    """Returns `-log_softmax(logits)` at each row's label, averaged over the batch, as a 0-d tensor.

    Args:
        logits: floats of the shape (n, classes).
        labels: the classes, ints from 0 to classes - 1, of the shape (n,) and the dtype int32 or int64. Probabilities
            are not accepted; for probabilities p, the loss is
            `-xp.mean(xp.sum(p * xdevice.nn.log_softmax(logits), axis=1))`.
        reduction: "mean", "sum" or "none"; "none" means that the loss of each row is returned, in the shape (n,).

    Raises:
        IndexError: a label is not a class. On a GPU and in a traced function, the framework reports the wrong label
            later and in its own way; docs/reference/nn.md has a table.
        ShapeError: the shapes do not match, or there are no rows or no classes. ArgumentError: `reduction` has any
            other value.
        DTypeError: `labels` are not int32 or int64. Other errors: as with `relu`.
        DeviceMismatchError: the tensors are on several devices.

    Costs as much as the framework's own function, plus 1 us. On all backends except PyTorch, labels on the CPU are
    also read, to check them. On Paddle and MXNet, labels on a GPU are read too, so the call waits for the GPU.

    Example:
        >>> logits, labels = xdevice.tensor([[0.0, 0.0], [0.0, 200.0]]), xdevice.tensor([1, 0])
        >>> round(xdevice.item(xdevice.nn.cross_entropy(logits, labels)), 4)
        100.3466
    """
    if misspelled:
        spellings.refuse("nn.cross_entropy", misspelled, "logits=, labels=, reduction=")
    layers, logits = _layers_and_tensor(logits, "cross_entropy")
    labels = layers.require_indices(labels, "cross_entropy")
    shape, labels_shape = shape_of(logits), shape_of(labels)
    # equal lengths, the usual case, save the call of `_may_be_equal`
    if (
        len(shape) != 2
        or len(labels_shape) != 1
        or not (labels_shape == shape[:1] or _may_be_equal(shape[:1], labels_shape))
    ):
        raise ShapeError(
            f"cross_entropy expects logits of shape (n, classes) and labels of shape (n,); got the shapes "
            f"{shape} and {labels_shape}"
        )
    if 0 in shape:
        raise ShapeError(
            f"cross_entropy needs at least one row and one class, but the logits have the shape {shape}"
        )
    tensors = {"logits": logits, "labels": labels}
    # frameworks compute the mean loss with a single kernel, and its gradient with another
    # kernel. For the other reductions, `cross_entropies` computes the loss of each row
    if reduction == "mean":
        return layers.run_with_indices(
            "cross_entropy",
            name="cross_entropy",
            indices=labels,
            n=shape[1],
            tensors=tensors,
        )
    _checked_reduction(reduction, "cross_entropy")
    return _reduced(
        layers.run_with_indices(
            "cross_entropy",
            name="cross_entropies",
            indices=labels,
            n=shape[1],
            tensors=tensors,
        ),
        reduction,
    )


@_without_scopes
def binary_cross_entropy_with_logits(
    logits: Any, labels: Any, *, reduction: Reduction = "mean"
) -> Any:
    """Returns the mean of `-y * log(sigmoid(x)) - (1 - y) * log(1 - sigmoid(x))` over all logits x and their labels y,
    without overflow.

    Args:
        logits: floats of any shape.
        labels: floats from 0 to 1, of the same shape and dtype.
        reduction: "mean", "sum" or "none"; "none" means that the loss of each element is returned.

    Raises:
        ShapeError: the shapes differ, or `reduction` is "mean" and there are no elements. ArgumentError: `reduction`
            has any other value.
        DTypeError, DeviceMismatchError, NotATensorError, UnsupportedError: as with `conv2d`.

    Costs as much as the framework's own function, plus 1 us. If the framework has no fused function (MXNet, NumPy),
    it costs eight passes.

    Example:
        >>> loss = xdevice.nn.binary_cross_entropy_with_logits
        >>> made = loss(xdevice.tensor([0.0, 200.0]), xdevice.tensor([1.0, 0.0]), reduction="none")
        >>> xdevice.to_numpy(made).round(0).tolist()
        [1.0, 200.0]
    """
    layers, logits, labels = _checked_pair(
        logits, labels, reduction, "binary_cross_entropy_with_logits"
    )
    return _reduced(layers.kernels.binary_cross_entropies(logits, labels), reduction)


@_without_scopes
def mse_loss(x: Any, y: Any, *, reduction: Reduction = "mean") -> Any:
    """Returns the mean of the squares of `x - y`. `x` and `y` must have the same shape; they are not broadcast.

    The argument `reduction` and the errors are the same as for `binary_cross_entropy_with_logits`. Costs three passes
    over the tensors.

    Example:
        >>> xdevice.item(xdevice.nn.mse_loss(xdevice.tensor([1.0, 2.0]), xdevice.tensor([1.0, 4.0])))
        2.0
    """
    layers, x, y = _checked_pair(x, y, reduction, "mse_loss")
    difference = layers.checks.kernels.subtract(x, y)
    return _reduced(layers.checks.kernels.multiply(difference, difference), reduction)


# functions of indices


@_without_scopes
def embedding(indices: Any, table: Any) -> Any:
    """Returns the rows of a table at the given indices. The result has the axes of `indices`, followed by an axis for
    the elements of a row.

    Args:
        indices: a tensor of int32 or int64, of any shape, with numbers from 0 to rows - 1.
        table: floats of the shape (rows, features).

    Raises:
        IndexError: an index is out of range. Devices other than the CPU report such an index in their own way, like a
            wrong label of `cross_entropy`.
        ShapeError: `table` has the wrong shape, or no elements. Other errors: as with `cross_entropy`.

    Costs as much as `cross_entropy`.

    Example:
        >>> table = xdevice.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> xdevice.to_numpy(xdevice.nn.embedding(xdevice.tensor([1, 1, 0]), table)).tolist()
        [[2.0, 3.0], [2.0, 3.0], [0.0, 1.0]]
    """
    layers, table = _layers_and_tensor(table, "embedding")
    indices = layers.require_indices(indices, "embedding")
    shape = shape_of(table)
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(
            f"embedding expects a table of shape (rows, features) with at least one row and one feature, not one of "
            f"shape {shape}"
        )
    return layers.run_with_indices(
        "embedding",
        name="embedding",
        indices=indices,
        n=shape[0],
        tensors={"indices": indices, "table": table},
    )


@_without_scopes
def one_hot(indices: Any, n: int, *, dtype: object = None, **misspelled: NoReturn) -> Any:
    """Returns a vector of length `n` for each index, along a new last axis: 1 at the index and 0 elsewhere. The dtype
    is float32 unless `dtype` is given.

    Args:
        indices: a tensor of int32 or int64, of any shape, with numbers from 0 to n - 1.
        n: a positive int.
        dtype: any dtype that the backend supports, in any framework's form.

    Raises:
        IndexError: an index is below 0, or is `n` or more. Devices other than the CPU report such an index in their own
            way, like a wrong label of `cross_entropy`. If `dtype` is an integer dtype or bool, all devices raise this
            error, but a traced function does not check the indices.
        ArgumentError: `n` is not a positive int.
        DTypeError: `indices` are not int32 or int64, or the backend does not support the dtype here.
        NotATensorError, UnsupportedError: as with `relu`.

    Costs as much as `cross_entropy`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.one_hot(xdevice.tensor([2, 0]), 3)).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if misspelled:
        spellings.refuse("nn.one_hot", misspelled, "n=, dtype=")
    layers = _layers_of(indices, "one_hot")
    indices = layers.require_indices(indices, "one_hot")
    (classes,) = _ints("one_hot", "n", n, least=1, count=1)
    # `effective_dtype` is float32, or float64 in a run with `--float64`
    name = (
        floats.effective_dtype()
        if dtype is None
        else layers.checks.supported_dtype(dtype_name(dtype))
    )
    operands = indices, classes, name
    if name in FLOATS:
        return layers.call_with_checked_indices(
            "one_hot", layers.kernels.one_hot, indices, n=classes, operands=operands
        )
    # an integer result cannot contain a NaN that would mark a wrong index, so the indices are
    # checked first
    layers.require_range(indices, classes, "one_hot")
    return layers.kernels.one_hot(*operands)


# functions of images


@_without_scopes
def conv2d(
    x: Any, kernel: Any, bias: Any = None, *, stride: Lengths = 1, padding: Lengths = 0
) -> Any:
    """Returns the convolution of images with a kernel. As in convolutional layers, the kernel is not flipped. Images
    of the shape (N, C, H, W) become (N, O, rows, columns).

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        kernel: a tensor of the shape (O, C, height, width).
        bias: a tensor of the shape (O,), added to each filter's result.
        stride: at least 1. A window that would exceed the padded image is left out, so rows = (H + 2 * padding -
            height) // stride + 1.
        padding: the number of zeros that are added at each end of every row and column, at least 0.

    Raises:
        ShapeError: the shapes do not match. ArgumentError: `stride` or `padding` is invalid.
        DTypeError: the tensors are not floats, or have several dtypes. Other errors: as with `relu`.
        DeviceMismatchError: the tensors are on several devices.

    Costs as much as the framework's own function, plus 4 us; on TensorFlow also three transpositions.

    Example:
        >>> x, kernel = xdevice.ones(1, 1, 3, 3), xdevice.ones(1, 1, 2, 2)
        >>> xdevice.to_numpy(xdevice.nn.conv2d(x, kernel, stride=2, padding=1)).tolist()
        [[[[1.0, 2.0], [2.0, 4.0]]]]
    """
    layers, x = _layers_and_tensor(x, "conv2d")
    kernel = layers.checks.tensor_of_kinds(kernel, REAL_FLOATING, "conv2d")
    strides = _ints("conv2d", "stride", stride, least=1)
    paddings = _ints("conv2d", "padding", padding, least=0)
    # the shapes of the images and of the kernel
    images = _shape_with_axes("x", x, _IMAGES, "conv2d")
    filters = _shape_with_axes("kernel", kernel, _KERNELS, "conv2d")
    if not _may_be_equal(images[1:2], filters[1:2]):
        raise ShapeError(
            f"conv2d: x has {images[1]} channels in its shape {images}, but the kernel of shape {filters} expects "
            f"{filters[1]}; channels are the second axis: (N, C, H, W)"
        )
    tensors = {"x": x, "kernel": kernel}
    if bias is not None:
        tensors["bias"] = bias = layers.checks.tensor_of_kinds(bias, REAL_FLOATING, "conv2d")
        if len(bias.shape) != 1 or not _may_be_equal(shape_of(bias), filters[:1]):
            raise ShapeError(
                f"conv2d: the bias must have the shape ({filters[0]},), not {shape_of(bias)}"
            )
    _require_window_fits("conv2d", images, filters[2:], paddings)
    layers.require_one_dtype_and_device(**tensors)
    return layers.kernels.conv2d(x, kernel, bias, strides, paddings)


@_without_scopes
def max_pool2d(
    x: Any, size: Lengths, *, stride: Lengths | None = None, padding: Lengths = 0
) -> Any:
    """Returns the greatest element of each window of each channel. Images of the shape (N, C, H, W) become (N, C,
    rows, columns).

    If several elements of a window are equally great, the gradient flows only to the first of these elements.

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        size: the size of a window, at least 1.
        stride: at least 1; None means `size`. Windows that would exceed the padded image are left out, as in `conv2d`.
        padding: from 0 to half of `size`. Padding is never chosen as the greatest element.

    Raises:
        ShapeError: `x` has the wrong shape, or no window fits. ArgumentError: any other argument is invalid.
        DTypeError, NotATensorError, UnsupportedError: as with `relu`.

    Costs as much as the framework's own function, plus 3 us.

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
    """Returns the mean of each window of each channel. Images of the shape (N, C, H, W) become (N, C, rows, columns).
    Padding consists of zeros, which are included in the mean.

    The arguments, the errors and the cost are the same as for `max_pool2d`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.avg_pool2d(xdevice.ones(1, 1, 2, 2), 2, padding=1)).tolist()
        [[[[0.25, 0.25], [0.25, 0.25]]]]
    """
    return _pool("avg_pool2d", x, size, stride, padding)


def _pool(
    function: str, x: Any, size: Lengths, stride: Lengths | None, padding: Lengths
) -> Any:
    """Checks the arguments of `function` ("max_pool2d" or "avg_pool2d"), and returns the result of the kernel with
    that name. Raises the errors that `max_pool2d` lists."""
    layers, x = _layers_and_tensor(x, function)
    sizes = _ints(function, "size", size, least=1)
    strides = sizes if stride is None else _ints(function, "stride", stride, least=1)
    paddings = _ints(function, "padding", padding, least=0)
    if 2 * paddings[0] > sizes[0] or 2 * paddings[1] > sizes[1]:
        raise ArgumentError(
            f"{function}: padding must be at most half of the size {size}, not {padding}"
        )
    _require_window_fits(function, _shape_with_axes("x", x, _IMAGES, function), sizes, paddings)
    return getattr(layers.kernels, function)(x, sizes, strides, paddings)


# the kernels of a backend


class _Layers(Functions):
    """The neural-network kernels of one backend (functions of its adapter), and the checks of the kernels'
    arguments."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        adapter = self.backend.nn()
        self.kernels = by_hand.with_missing_kernels(adapter)
        # an adapter that has its own `gelu` does not need the kernel `erf`
        self.has_erf = hasattr(adapter, "gelu") or hasattr(adapter, "erf")
        self.read_extremes = self.kernels.ends
        """The adapter's kernel that reads the least and the greatest index; None if the adapter has no such
        kernel."""
        self.guards = self.kernels.guards
        """The adapter's function `guards(indices, kind)`, which returns whether the kernels themselves detect that
        some of these indices are out of range. None if the kernels never detect this."""

    def run_kernel(self, name: str, *arguments: Any, **settings: Any) -> Any:
        """Returns the result of the adapter's kernel `name`, called with these arguments. If the kernel returns
        NotImplemented because it cannot compute these arguments, the function of the same name in `by_hand` computes
        the result."""
        result = getattr(self.kernels, name)(*arguments, **settings)
        return (
            getattr(by_hand, name)(self.kernels, *arguments, **settings)
            if result is NotImplemented
            else result
        )

    def run_with_indices(
        self, function: str, name: str, indices: Any, n: int | None, tensors: dict[str, Any]
    ) -> Any:
        """Returns the result of the kernel `name` for `tensors`, a dict that maps the names of the arguments to the
        tensors. One of these tensors is `indices`. The valid indices are 0 to n - 1; `n` is None if this number is
        unknown while a function is traced. `function` is the function name to show in error messages. Raises
        `IndexError` for an index out of range, and `DeviceMismatchError` for tensors on several devices."""
        operands = (*tensors.values(),)
        if not self.checks.are_on_one_device(operands):
            self.require_one_device(**tensors)
        return self.call_with_checked_indices(
            function, getattr(self.kernels, name), indices, n, operands
        )

    def call_with_checked_indices(
        self,
        function: str,
        kernel: Callable[..., Any],
        indices: Any,
        n: int | None,
        operands: tuple[Any, ...],
    ) -> Any:
        """Returns `kernel(*operands)`. One of the operands is `indices`. The valid indices are 0 to n - 1; `n` is
        None if this number is unknown while a function is traced. If the kernel does not detect indices out of range
        itself, this method reads and checks the indices before the call, and must wait for the device. Otherwise the
        indices are checked only after the kernel has raised an error, so that the error is the same `IndexError` on
        every backend."""
        if not self.detects_out_of_range(indices):
            self.require_range(indices, n, function)
            return kernel(*operands)
        try:
            return kernel(*operands)
        except Exception:
            self.require_range(indices, n, function)
            raise

    def detects_out_of_range(self, indices: Any) -> bool:
        """Whether the adapter's kernels detect an index out of range themselves. See `guards` in
        `xdevice.math.contract.nn`."""
        # None for a symbol, which has no device
        device_of = registry.probes.get(type(indices))
        return (
            self.guards is not None
            and device_of is not None
            and self.guards(indices, device_of(indices).kind)
        )

    def require_indices(self, x: Any, function: str) -> Any:
        """Returns `x` as a tensor of labels or indices. Raises `DTypeError` if its dtype is not int32 or int64, and
        `NotATensorError` or `ArgumentError` if it is not a tensor of this backend. `function` is the function name to
        show in error messages."""
        cls, checks = type(x), self.checks
        # only a tensor of an unknown type, or a sparse tensor, needs all checks
        if cls not in checks.tensor_types or (
            cls in checks.may_be_sparse and not self.backend.is_dense(x)
        ):
            x = checks.checked_tensor(x, function)
        name = dtype_name(x.dtype)
        if name not in _INDICES:
            raise DTypeError(
                f"{function} expects labels or indices of dtype int32 or int64, not {name}; cast them with "
                "xp.astype(x, xp.int64), or turn probabilities into labels with xp.argmax(x, axis=1)"
            )
        return x

    def require_range(self, indices: Any, n: int | None, function: str) -> None:
        """Raises `IndexError` for indices below 0 or above n - 1. For such indices, frameworks raise different
        errors, or return zeros, NaN or wrong rows. Does nothing if `n` is None, or while a function is traced, because
        there are then no values to read. `function` is the function name to show in the error message."""
        # nothing can be checked if `n` is unknown, if the indices are a symbol, or if reading a
        # tensor of indices would become part of the graph that is being traced
        if n is None or not _holds_values(indices) or self.backend.tracing() is not None:
            return
        check = partial(self._read_and_require_range, indices, n, function)
        if self.guards is None or self.backend.device_of(indices).kind != "cpu":
            self.backend.eagerly(check)
            return
        # `unreported`: this read is not reported as a transfer, because the same program does not
        # read the indices on a GPU, where the kernels check them themselves
        with unreported():
            self.backend.eagerly(check)

    def _read_and_require_range(self, indices: Any, n: int, function: str) -> None:
        """Reads the indices, and raises `IndexError` if one is below 0 or above n - 1."""
        if 0 in indices.shape:
            return
        # reading two numbers is faster than reading all indices
        least, most = (
            self.read_extremes(indices)
            if self.read_extremes is not None
            else _extremes(self.backend.to_numpy(indices), n)
        )
        # an index below 0 is an error here, and is not counted from the end, because frameworks
        # treat such indices differently
        if least < 0 or most >= n:
            raise IndexError(
                f"{function}: index {least if least < 0 else most} is out of range; expected 0 to {n - 1}"
            )

    def require_one_dtype_and_device(self, **tensors: Any) -> None:
        """Raises `DTypeError` if the tensors have several dtypes, and `DeviceMismatchError` if they are on several
        devices. The keyword of each tensor is the name to show in error messages."""
        dtypes = [x.dtype for x in tensors.values()]
        # looking up the name of a dtype takes a microsecond, so the dtypes themselves are
        # compared first
        if (
            dtypes.count(dtypes[0]) < len(dtypes)
            and len(names := {*map(dtype_name, dtypes)}) > 1
        ):
            raise DTypeError(
                f"{' and '.join(tensors)} have the dtypes {' and '.join(sorted(names))}; cast them to the same dtype"
            )
        self.require_one_device(**tensors)

    def require_one_device(self, **tensors: Any) -> None:
        """Raises `DeviceMismatchError` if the tensors are on several devices. The keyword of each tensor is the name to
        show in the error message. Traced tensors are not checked, because they have no device. A tensor that is itself
        spread over several devices is not checked here, but by the framework."""
        operands = (*tensors.values(),)
        try:
            if self.checks.are_on_one_device(operands) or not all(map(_holds_values, operands)):
                return
            # the error of `check_same_device` names the arguments
            if len(set(map(self.backend.operand_device, operands))) > 1:
                check_same_device(**tensors)
        # a tensor that is spread over several devices has no device of its own
        except UnsupportedError:
            return


_lookup: Final = Lookup(_Layers)
_layers_by_type: Final = _lookup.by_type
"""The `_Layers` for each type of tensor that a function of this module has been called with."""


def _layers_of(x: Any, function: str) -> _Layers:
    """Returns the `_Layers` of the backend of the tensor `x`. Also prepares this thread to run the backend's kernels,
    as MXNet requires. Raises `NotATensorError` if `x` is not a tensor. `function` is the function name to show in the
    error message."""
    layers = _layers_by_type.get(type(x))
    # the type is new, or the backend can no longer be used here, for example in a forked
    # process; in that case `find` raises an error
    if layers is None or layers.backend.refusal is not None:
        layers = _lookup.find(x, function)
    if layers.prepare_thread is not None:
        layers.prepare_thread()
    return layers


def _layers_and_tensor(x: Any, function: str) -> tuple[_Layers, Any]:
    """Returns the `_Layers` for `x`, and `x` itself as a tensor. Raises `DTypeError` if the dtype of `x` is not a
    real floating-point dtype, and the errors of `Checks.checked_tensor`, such as `NotATensorError`. `function` is the
    function name to show in error messages."""
    layers = _layers_by_type.get(type(x))
    # the usual case: a known type, of a backend that needs no preparation of the thread
    # (`prepare_thread`)
    if (
        layers is None
        or layers.prepare_thread is not None
        or layers.backend.refusal is not None
    ):
        layers = _layers_of(x, function)
    return layers, layers.checks.tensor_of_kinds(x, REAL_FLOATING, function)


# checks of arguments


def _checked_reduction(reduction: str, function: str) -> str:
    """Returns the argument `reduction`. Raises `ArgumentError` unless it is "mean", "sum" or
    "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(
            f'{function}: reduction must be "mean", "sum" or "none", not {shown(reduction)}'
        )
    return reduction


def _reduced(losses: Any, reduction: Reduction) -> Any:
    """Returns the mean or the sum of all losses, or the losses themselves if `reduction` is
    "none"."""
    return (
        losses if reduction == "none" else getattr(array_namespace(losses), reduction)(losses)
    )


def _checked_pair(
    x: Any, y: Any, reduction: Reduction, function: str
) -> tuple[_Layers, Any, Any]:
    """Checks the arguments of the loss `function`, and returns the `_Layers` and the tensors `x` and `y`. Raises
    `ShapeError` if the shapes differ or if the mean of empty tensors is requested, `ArgumentError` for an unknown
    `reduction`, and `DTypeError` or `DeviceMismatchError` if the tensors differ in dtype or device."""
    layers, x = _layers_and_tensor(x, function)
    y = layers.checks.tensor_of_kinds(y, REAL_FLOATING, function)
    # the tensors are not broadcast, which would hide a mistake such as (n,) and (n, 1)
    if not _may_be_equal(shape_of(x), shape_of(y)):
        raise ShapeError(
            f"{function} expects two tensors of the same shape, but their shapes are {shape_of(x)} and {shape_of(y)}"
        )
    # for the mean of an empty tensor, frameworks return NaN or 0, or raise an error
    if _checked_reduction(reduction, function) == "mean" and 0 in x.shape:
        raise ShapeError(
            f"{function}: tensors of shape {shape_of(x)} have no elements, so their mean loss is undefined; pass "
            "reduction='sum'"
        )
    layers.require_one_dtype_and_device(x=x, y=y)
    return layers, x, y


def _shape_with_channels(x: Any, function: str) -> tuple[int | None, ...]:
    """Returns the shape of `x`. Raises `ShapeError` if `x` has no axis 1, which is the axis of the channels."""
    shape = shape_of(x)
    if len(shape) < 2:
        raise ShapeError(
            f"{function}: x must have the shape (batch, channels, ...), not {shape}"
        )
    return shape


def _normalized(
    layers: _Layers,
    function: str,
    vector_shape: tuple[int | None, ...],
    arguments: dict[str, Any],
    eps: float,
) -> Any:
    """Returns the result of the kernel `function` ("layer_norm" or "batch_norm"), or a copy of `x` if `x` has no
    elements. `arguments` maps the name of each argument, in the order of the kernel's arguments, to its tensor, or to
    None if the argument was left out. All tensors except `x` are vectors, and must have the shape
    `vector_shape`. Raises `ShapeError`, `ArgumentError`, `DTypeError` or `DeviceMismatchError` for wrong arguments."""
    # a larger value is usually another argument that was passed by mistake as eps
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ArgumentError(
            f"{function}: eps must be at least 0 and less than 1, not {shown(eps)}"
        )
    tensors = {}
    for name, argument in arguments.items():
        # an argument that was left out
        if argument is None:
            continue
        # `x` was checked by the caller; the kernel gets the others as checked tensors too
        if name != "x":
            arguments[name] = argument = layers.checks.tensor_of_kinds(
                argument, REAL_FLOATING, function
            )
            shape = shape_of(argument)
            # equal shapes, the usual case, save the call of `_may_be_equal`
            if shape != vector_shape and not _may_be_equal(shape, vector_shape):
                raise ShapeError(
                    f"{function}: {name} must have the shape {vector_shape}, not {shape}"
                )
        tensors[name] = argument
    layers.require_one_dtype_and_device(**tensors)
    # the contract promises that this kernel is never called with empty tensors
    if 0 in arguments["x"].shape:
        return layers.checks.kernels.copy(arguments["x"])
    return layers.run_kernel(function, *arguments.values(), eps=float(eps))


def _broadcasts_to(shape: tuple[int | None, ...], target: tuple[int | None, ...]) -> bool:
    """Whether a tensor of shape `shape` can be broadcast to exactly the shape `target`. An unknown size is None, and
    matches any size."""
    # sizes are compared from the last axis to the first, because broadcasting aligns shapes at
    # the last axis
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(
        size is None or target_size is None or size in (1, target_size)
        for size, target_size in pairs
    )


def _extremes(values: Any, n: int) -> tuple[int, int]:
    """Returns the least and the greatest index in the NumPy array `values`. If all indices are in `range(n)`, the
    least index is not computed, and 0 is returned instead."""
    # read as unsigned integers, negative numbers are larger than all other numbers (for int32,
    # at least 2**31), so one pass finds indices that are too small or too large. The bound
    # includes 2**31 because `n` may be larger than that
    most = int(values.view(f"u{values.itemsize}").max())
    return (0, most) if most < min(n, 2**31) else (int(values.min()), int(values.max()))


def _holds_values(x: Any) -> bool:
    """Whether `x` is a tensor that has values, rather than a symbol of a traced function."""
    # `probes` contains the types of tensors, but not those of symbols. A dict is used because
    # torch.compile would trace a call of the registry
    return type(x) in registry.probes


def _may_be_equal(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes have the same length and agree in every size that is known in both. An unknown size is
    None."""
    return shape == other or (
        len(shape) == len(other)
        and all(
            size is None or other_size is None or size == other_size
            for size, other_size in zip(shape, other, strict=True)
        )
    )


def _shape_with_axes(
    what: str, x: Any, names: tuple[str, ...], function: str
) -> tuple[int | None, ...]:
    """Returns the shape of `x`, which contains images or a kernel. `names` are the names of the axes of `x`. Raises
    `ShapeError` if `x` has a different number of axes, or if an axis other than the batch has the length 0. `what` and
    `function` are the names of the argument `x` and of the function to show in the error message."""
    shape = shape_of(x)
    # only a batch may be empty
    not_empty = shape[1:] if names[0] == "batch" else shape
    if len(shape) != len(names) or 0 in not_empty:
        raise ShapeError(
            f"{function}: {what} must have the shape ({', '.join(names)}), not {shape}"
        )
    return shape


def _require_window_fits(
    function: str, images: Any, window: Any, padding: tuple[int, ...]
) -> None:
    """Raises `ShapeError` if `window`, a pair (height, width), is larger than the padded images. `images` is the
    shape of the images. A length is None if it is unknown while a function is traced; such a length is not checked."""
    for length, size, pad in zip(images[2:], window, padding, strict=True):
        if length is not None and size is not None and length + 2 * pad < size:
            raise ShapeError(
                f"{function}: a window of size {tuple(window)} does not fit into images of shape {images} with the "
                f"padding {padding}"
            )


def _ints(function: str, what: str, value: Any, least: int, count: int = 2) -> tuple[int, ...]:
    """Returns the argument `value` as a tuple of `count` ints, each at least `least`; a single int is repeated.
    Raises `ArgumentError` for any other value. `function` and `what` are the function name and the argument name to
    show in the error message."""
    lengths = as_tuple(value) if count > 1 else (value,)
    # `as_tuple` turns a single value into a tuple. Only such a value is repeated; a sequence
    # with one int is refused
    lengths = lengths * count if len(lengths) == 1 and lengths[0] is value else lengths
    if len(lengths) != count or any(
        isinstance(length, bool) or not hasattr(type(length), "__index__") for length in lengths
    ):
        pair = " or a pair of ints" if count > 1 else ""
        raise ArgumentError(f"{function}: {what} must be an int{pair}, not {shown(value)}")
    ints = tuple(length.__index__() for length in lengths)
    if min(ints) < least:
        raise ArgumentError(f"{function}: {what} must be at least {least}, not {shown(value)}")
    return ints
