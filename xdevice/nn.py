"""Neural-network functions: the frameworks' own fast functions, with the same arguments, numbers and errors on each.

Young: it may change in a minor version.

Images are (N, C, H, W): batch, channels, height, width. Kernels of convolutions are (O, C, height, width). `size`,
`stride` and `padding` are an int for height and width, or a pair (height, width); padding is the same on both sides.

The tensors of one call have the same backend, device and float dtype, and so do the results. float32 and float64 work
on every backend, float16 and bfloat16 where the framework has them. Gradients are the framework's; NumPy's tensors have
none.
"""

from __future__ import annotations

from xdevice.arithmetic.doors import Door, Doors
from xdevice.arithmetic.dtypes import BOOL, REAL_FLOATING
from xdevice.arithmetic.ground import shape_of
from xdevice.base import floats
from xdevice.contract.nn import ENDS, REFUSES
from xdevice.core import registry
from xdevice.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from xdevice.tensors.creation import listed
from xdevice.tensors.verbs import check_same_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from xdevice.arithmetic.ground import Ground

    Lengths = int | tuple[int, int]

__all__ = [
    "avg_pool2d",
    "conv2d",
    "cross_entropy",
    "dropout",
    "log_softmax",
    "max_pool2d",
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


# of each element


def relu(x: Any) -> Any:
    """max(x, 0) for each element; the gradient at 0 is 0.

    Raises:
        DTypeError: `x` is not of floats. NotATensorError: `x` is not a tensor.
        UnsupportedError: the backend is a third party's, and its adapter has no such functions.

    Costs what the framework's own function does, and 1 us.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.relu(xdevice.tensor([-1.0, 0.0, 2.0]))).tolist()
        [0.0, 0.0, 2.0]
    """
    on, x = _begin(x, "relu")
    return on.kernels.relu(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for each element, without overflow.

    Errors and cost are those of `relu`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.sigmoid(xdevice.tensor([-1000.0, 0.0, 1000.0]))).tolist()
        [0.0, 0.5, 1.0]
    """
    on, x = _begin(x, "sigmoid")
    return on.kernels.sigmoid(x)


def dropout(x: Any, mask: Any, p: float) -> Any:
    """`x * mask / (1 - p)`: elements that the mask drops are 0, and if it drops with probability `p` the mean is kept.

    Args:
        mask: bool, of the shape of `x`: `xdevice.random.bernoulli(x.shape, p=1 - p)` drops the same elements on every
            backend.
        p: a number from 0 to 1; with 1 all elements are 0, whatever the mask.

    Raises:
        ArgumentError: `p` is not such a number. ShapeError: shapes that differ.
        DTypeError: a mask that is not bool. The others are those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Costs three passes over `x`.

    Example:
        >>> x, mask = xdevice.tensor([1.0, 2.0]), xdevice.tensor([True, False])
        >>> xdevice.to_numpy(xdevice.nn.dropout(x, mask, 0.5)).tolist()
        [2.0, 0.0]
    """
    on, x = _begin(x, "dropout")
    mask = on.ground.require(mask, BOOL, "dropout")
    on.require_one_device(x=x, mask=mask)
    if not _fit(shape_of(x), shape_of(mask)):
        raise ShapeError(f"dropout takes a mask of the shape of x, {shape_of(x)}, not {shape_of(mask)}")
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout takes a probability from 0 to 1, and p is {shown(p)}")
    if p == 1:
        return on.ground.kernels.multiply(x, on.ground.number(0.0, on.ground.name(x), x))
    return on.kernels.dropout(x, mask, 1.0 - p)


# along an axis


def softmax(x: Any, *, axis: int = -1) -> Any:
    """exp(x) divided by its sum along an axis, without overflow.

    Raises:
        ShapeError: there is no such axis. The others are those of `relu`.

    Cost is that of `relu`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.softmax(xdevice.tensor([[1000.0, 1000.0]]))).tolist()
        [[0.5, 0.5]]
    """
    return _along("softmax", x, axis)


def log_softmax(x: Any, *, axis: int = -1) -> Any:
    """The logarithm of `softmax`, which stays finite where `softmax` itself would be rounded to 0.

    Errors and cost are those of `softmax`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.log_softmax(xdevice.tensor([0.0, -200.0]))).tolist()
        [0.0, -200.0]
    """
    return _along("log_softmax", x, axis)


def _along(function: str, x: Any, axis: int) -> Any:
    on, x = _begin(x, function)
    place = on.ground.axis(axis, len(x.shape), function)
    return getattr(on.kernels, function)(x, place) if 0 not in x.shape else on.ground.kernels.copy(x)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over the batch of `-log_softmax(logits)` at each row's label: a tensor without dimensions.

    Args:
        logits: floats of the shape (n, classes).
        labels: the classes, from 0 to classes - 1, of the shape (n,), int32 or int64. Probabilities are refused: for
            those, `-xp.mean(xp.sum(p * xdevice.nn.log_softmax(logits), axis=1))` is the loss.

    Raises:
        IndexError: a label is not a class. While a function is traced this cannot be checked: JAX gives NaN then, and
            the other frameworks do what their own function does.
        ShapeError: other shapes, or no rows, whose mean does not exist.
        DTypeError: labels that are not int32 or int64. The others are those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Cost is that of `relu`, and a read of the labels by the host, which waits until a GPU has computed them.

    Example:
        >>> logits, labels = xdevice.tensor([[0.0, 0.0], [0.0, 200.0]]), xdevice.tensor([1, 0])
        >>> round(xdevice.item(xdevice.nn.cross_entropy(logits, labels)), 4)
        100.3466
    """
    on, logits = _begin(logits, "cross_entropy")
    labels = on.indices(labels, "cross_entropy")
    shape = shape_of(logits)
    if len(shape) != 2 or len(labels.shape) != 1 or not _fit(shape[:1], shape_of(labels)):
        raise ShapeError(
            f"cross_entropy takes logits of a shape (n, classes) and labels of the shape (n,), not {shape} and "
            f"{shape_of(labels)}"
        )
    if 0 in shape:
        raise ShapeError(f"cross_entropy is a mean over rows of classes, and logits of the shape {shape} have none")
    on.require_one_device(logits=logits, labels=labels)
    if on.refuses is None or not on.refuses(labels):
        on.require_range(labels, shape[1], "cross_entropy")
        return on.kernels.cross_entropy(logits, labels)
    try:
        return on.kernels.cross_entropy(logits, labels)
    except IndexError:
        on.require_range(labels, shape[1], "cross_entropy")  # raises the same error on every backend
        raise


def one_hot(indices: Any, n: int, *, dtype: object = None) -> Any:
    """1 at the index and 0 elsewhere, along a new last axis of the length `n`; float32 unless `dtype` says otherwise.

    Args:
        indices: int32 or int64, of any shape, from 0 to n - 1.
        n: an int of 1 or more.
        dtype: any dtype that the backend has, in any framework's form.

    Raises:
        IndexError: an index is below 0 or not below `n`. While a function is traced this cannot be checked: the
            framework's own function then gives zeros or an error.
        ArgumentError: `n` is not an int of 1 or more.
        DTypeError: indices that are not int32 or int64, or a dtype that the backend does not have here.
        NotATensorError, UnsupportedError: as with `relu`.

    Cost is that of `relu`, and a read of the indices by the host, which waits until a GPU has computed them.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.one_hot(xdevice.tensor([2, 0]), 3)).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    on = _of(indices, "one_hot")
    indices = on.indices(indices, "one_hot")
    (classes,) = _whole("n", n, 1, 1, "one_hot")
    name = floats.usual() if dtype is None else on.ground.held(on.ground.dtype(dtype))
    on.require_range(indices, classes, "one_hot")
    return on.kernels.one_hot(indices, classes, name)


# of images


def conv2d(x: Any, kernel: Any, bias: Any = None, *, stride: Lengths = 1, padding: Lengths = 0) -> Any:
    """The convolution of images as layers compute it, the kernel not flipped: (N, C, H, W) to (N, O, rows, columns).

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        kernel: a tensor of the shape (O, C, height, width).
        bias: a tensor of the shape (O,), added to each filter's result.
        stride: 1 or more. Steps that do not fit are left out: rows = (H + 2 * padding - height) // stride + 1.
        padding: zeros on both sides of height and width, 0 or more.

    Raises:
        ShapeError: shapes that do not fit each other. ArgumentError: `stride` or `padding` is not as said above.
        DTypeError: not floats, or of several dtypes. The others are those of `relu`.
        DeviceMismatchError: tensors on several devices.

    Cost is that of `relu`, with 3 us for the checks; on TensorFlow also three transpositions.

    Example:
        >>> x, kernel = xdevice.ones(1, 1, 3, 3), xdevice.ones(1, 1, 2, 2)
        >>> xdevice.to_numpy(xdevice.nn.conv2d(x, kernel, stride=2, padding=1)).tolist()
        [[[[1.0, 2.0], [2.0, 4.0]]]]
    """
    on, x = _begin(x, "conv2d")
    kernel = on.ground.require(kernel, REAL_FLOATING, "conv2d")
    strides, paddings = _whole("stride", stride, 2, 1, "conv2d"), _whole("padding", padding, 2, 0, "conv2d")
    images, filters = _sizes("x", x, _IMAGES, "conv2d"), _sizes("kernel", kernel, _KERNELS, "conv2d")
    if not _fit(images[1:2], filters[1:2]):
        raise ShapeError(f"conv2d: x of the shape {images} has {images[1]} channels, the kernel {filters} {filters[1]}")
    given = {"x": x, "kernel": kernel}
    if bias is not None:
        given["bias"] = bias = on.ground.require(bias, REAL_FLOATING, "conv2d")
        if len(bias.shape) != 1 or not _fit(shape_of(bias), filters[:1]):
            raise ShapeError(f"conv2d takes a bias of the shape ({filters[0]},), not {shape_of(bias)}")
    _require_room("conv2d", images, filters[2:], paddings)
    on.require_together(**given)
    return on.kernels.conv2d(x, kernel, bias, strides, paddings)


def max_pool2d(x: Any, size: Lengths, *, stride: Lengths | None = None, padding: Lengths = 0) -> Any:
    """The greatest element of each window of each channel: (N, C, H, W) to (N, C, rows, columns).

    If several elements of a window are equally great, the first gets the gradient.

    Args:
        x: images of the shape (N, C, H, W); N may be 0.
        size: the size of a window, 1 or more.
        stride: 1 or more, `size` if left out. Windows that do not fit are left out, as in `conv2d`.
        padding: from 0 to half of `size`; padding is never the greatest element.

    Raises:
        ShapeError: `x` is not images, or no window fits. ArgumentError: another argument is not as said above.
        DTypeError, NotATensorError, UnsupportedError: as with `relu`.

    Cost is that of `relu`, with 2 us for the checks.

    Example:
        >>> x = xdevice.tensor([[[[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]]])
        >>> xdevice.to_numpy(xdevice.nn.max_pool2d(x, 2)).tolist()
        [[[[4.0]]]]
    """
    return _pool("max_pool2d", x, size, stride, padding)


def avg_pool2d(x: Any, size: Lengths, *, stride: Lengths | None = None, padding: Lengths = 0) -> Any:
    """The mean of each window of each channel: (N, C, H, W) to (N, C, rows, columns). Padding counts as zeros.

    Arguments, errors and costs are those of `max_pool2d`.

    Example:
        >>> xdevice.to_numpy(xdevice.nn.avg_pool2d(xdevice.ones(1, 1, 2, 2), 2, padding=1)).tolist()
        [[[[0.25, 0.25], [0.25, 0.25]]]]
    """
    return _pool("avg_pool2d", x, size, stride, padding)


def _pool(function: str, x: Any, size: Lengths, stride: Lengths | None, padding: Lengths) -> Any:
    on, x = _begin(x, function)
    sizes = _whole("size", size, 2, 1, function)
    strides = sizes if stride is None else _whole("stride", stride, 2, 1, function)
    paddings = _whole("padding", padding, 2, 0, function)
    if 2 * paddings[0] > sizes[0] or 2 * paddings[1] > sizes[1]:
        raise ArgumentError(f"{function} takes a padding of half of the size {size} at most, not {padding}")
    _require_room(function, _sizes("x", x, _IMAGES, function), sizes, paddings)
    return getattr(on.kernels, function)(x, sizes, strides, paddings)


# the backend


class _On(Door):
    """One backend's kernels for neural networks (functions of its adapter), and the checks of the kernels'
    arguments."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.kernels = self.backend.nn()
        self.ends = getattr(self.kernels, ENDS, None)
        self.refuses = getattr(self.kernels, REFUSES, None)

    def indices(self, x: Any, function: str) -> Any:
        """Returns `x` as a tensor. Raises `DTypeError` if its dtype is not int32 or int64."""
        x = self.ground.tensor(x, function)
        if self.ground.name(x) not in _INDICES:
            raise DTypeError(
                f"{function} takes classes as int32 or int64, not {self.ground.name(x)}; xp.astype(x, xp.int64) casts "
                "them, and xp.argmax(x, axis=1) makes classes of probabilities"
            )
        return x

    def require_range(self, indices: Any, n: int | None, function: str) -> None:
        """Raises `IndexError` for indices below 0 or above n - 1: frameworks raise, or give zeros, NaN or wrong rows.
        While a function is traced there are no values to check."""
        if n is None or not _holds_values(indices) or self.backend.tracing() is not None:
            return
        self.backend.eagerly(lambda: self._require_range(indices, n, function))

    def _require_range(self, indices: Any, n: int, function: str) -> None:
        if 0 in indices.shape:
            return
        least, most = self.ends(indices) if self.ends is not None else _ends(self.backend.to_numpy(indices), n)
        if least < 0 or most >= n:
            raise IndexError(f"{function}: there is no index {least if least < 0 else most}; expected 0 to {n - 1}")

    def require_together(self, **tensors: Any) -> None:
        """Raises `DTypeError` for floats of several dtypes, and `DeviceMismatchError` for tensors on several
        devices."""
        names = {self.ground.name(x) for x in tensors.values()}
        if len(names) > 1:
            raise DTypeError(f"{' and '.join(tensors)} are of {' and '.join(sorted(names))}; cast them to one dtype")
        self.require_one_device(**tensors)

    def require_one_device(self, **tensors: Any) -> None:
        """Raises `DeviceMismatchError` for tensors on several devices. Traced tensors have no device, and tensors that
        are spread over several devices are left to the framework."""
        given = tensors.values()
        if not all(map(_holds_values, given)):
            return
        try:
            if len(set(map(self.backend.operand_device, given))) > 1:
                check_same_device(**tensors)
        except UnsupportedError:
            return


_doors: Final = Doors(_On)
_seen: Final = _doors.seen


def _of(x: Any, function: str) -> _On:
    """The `_On` of the backend that the tensor `x` belongs to. Prepares this thread for the backend's kernels where
    they need it."""
    on = _seen.get(type(x))
    if on is None or on.backend.refusal is not None:
        on = _doors.find(x, function)
    if on.enter is not None:
        on.enter()
    return on


def _begin(x: Any, function: str) -> tuple[_On, Any]:
    on = _of(x, function)
    return on, on.ground.require(x, REAL_FLOATING, function)


# arguments


def _ends(values: Any, n: int) -> tuple[int, int]:
    """The least and the greatest of the indices. If all are from 0 to n - 1, 0 is given for the least."""
    most = int(values.view(f"u{values.itemsize}").max())  # as unsigned, a negative number is larger than all others
    return (0, most) if most < min(n, 2**31) else (int(values.min()), int(values.max()))


def _holds_values(x: Any) -> bool:
    return type(x) in registry.probes  # asking the registry would make torch.compile trace the registry


def _fit(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes are equal in every size that is known in both; an unknown size is None."""
    return shape == other or (
        len(shape) == len(other)
        and all(one is None or two is None or one == two for one, two in zip(shape, other, strict=True))
    )


def _sizes(what: str, x: Any, names: tuple[str, ...], function: str) -> tuple[int | None, ...]:
    """The shape of `x`, images or a kernel. Raises `ShapeError` unless it has one size for each of `names`; only a size
    called batch may be 0."""
    shape = shape_of(x)
    if len(shape) != len(names) or 0 in shape[names[0] == "batch" :]:
        raise ShapeError(f"{function} takes {what} of the shape ({', '.join(names)}), not {shape}")
    return shape


def _require_room(function: str, images: Any, window: Any, padding: tuple[int, ...]) -> None:
    for length, size, more in zip(images[2:], window, padding, strict=True):
        if length is not None and size is not None and length + 2 * more < size:
            raise ShapeError(f"{function}: a window of {tuple(window)} does not fit into {images}, padded by {padding}")


def _whole(what: str, value: Any, number: int, least: int, function: str) -> tuple[int, ...]:
    """The argument `value` as `number` ints of at least `least`; one int stands for all of them. Raises
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
