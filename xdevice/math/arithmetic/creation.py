"""The functions of the Python Array API standard that create tensors. By default, the tensors have the dtype float32
or int64, and are on the device of the `with device:` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.core import registry
from xdevice.errors import DTypeError, ShapeError, SharingError, shown
from xdevice.tensors import conversion, creation, verbs
from xdevice.tensors.refusals import require_dtype

from . import dtypes
from .checks import NUMBERS, Checks, shape_of, with_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from xdevice.base.devices import Device

    Shape = int | Sequence[int]


# tensors of given values


def asarray(
    checks: Checks,
    obj: Any,
    /,
    *,
    dtype: Any = None,
    device: object = None,
    copy: bool | None = None,
) -> Any:
    """Returns `obj` (a number, nested lists, or a tensor of any framework) as a tensor. If `obj` is a tensor of this
    backend, `obj` itself is returned, unless `dtype`, `device` or `copy=True` requires a new tensor. Raises
    `SharingError` if `copy` is False and a copy is needed, and `DTypeError` for a dtype that the backend does not
    support."""
    # data such as lists, and tensors of another framework, are always copied
    if not _is_of_this_backend(checks, obj):
        if copy is False:
            raise SharingError(
                "asarray(copy=False) accepts only tensors of this backend; omit copy=False to copy any other object"
            )
        return creation.tensor_of(
            checks.backend, obj, device, None if dtype is None else dtype_name(dtype)
        )
    x = checks.checked_tensor(obj, "asarray")
    result = x if dtype is None else checks.cast(x, checks.supported_dtype(dtype_name(dtype)))
    result = result if device is None else verbs.to_device(result, device)
    # both a cast and a move create a copy
    if copy is False and result is not x:
        raise SharingError(
            "asarray(copy=False) cannot change the dtype or device without a copy; omit copy=False"
        )
    return checks.kernels.copy(result) if copy and result is x else result


def _is_of_this_backend(checks: Checks, x: Any) -> bool:
    """Whether `x` is a tensor, symbol or variable of this namespace's backend."""
    owned = registry.owner_and_kind(type(registry.as_array(x)))
    return owned is not None and owned.backend is checks.backend


def from_dlpack(
    checks: Checks, x: Any, /, *, device: object = None, copy: bool | None = None
) -> Any:
    """Returns a tensor of this backend with the values of `x`, which is a tensor of another framework or any object
    with `__dlpack__`. Raises `SharingError` if `copy` is False and the memory of `x` cannot be shared on the
    device."""
    result = conversion.convert(x, checks.backend.name, copy=copy)
    if device is None:
        return result
    moved = verbs.to_device(result, device)
    # a move to another device creates a copy
    if copy is False and moved is not result:
        raise SharingError(
            "from_dlpack(copy=False) cannot change the device without a copy; omit copy=False"
        )
    return moved


# tensors of a given shape


def full(
    checks: Checks,
    shape: Shape,
    fill_value: complex,
    *,
    dtype: Any = None,
    device: object = None,
) -> Any:
    """Returns a tensor of the given shape, filled with the number `fill_value`. If `dtype` is None, the kind of the
    number determines the dtype. Raises `DTypeError` if the number does not fit into the dtype."""
    # a NumPy scalar, or a tensor with one number
    if type(fill_value) not in NUMBERS:
        fill_value = creation.item(fill_value)
    # without `dtype`, the result has the dtype of an operation of the number with a bool tensor
    name = _dtype_for(checks, dtype, dtypes.promoted_with_number("bool", fill_value), device)
    dtypes.require_fits(fill_value, name)
    return _full(checks, shape, fill_value, name, device)


def empty(checks: Checks, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor of the given shape, float32 by default. In this implementation its elements are zeros, but
    programs should not rely on this."""
    # zeros, so that a program that reads the elements computes the same numbers on every
    # backend
    return zeros(checks, shape, dtype=dtype, device=device)


def ones(checks: Checks, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor of ones with the given shape, float32 by default."""
    return _full(checks, shape, 1, _dtype_for(checks, dtype, "float32", device), device)


def zeros(checks: Checks, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor of zeros with the given shape, float32 by default."""
    return _full(checks, shape, 0, _dtype_for(checks, dtype, "float32", device), device)


def _dtype_for(checks: Checks, dtype: Any, default: str, device: object) -> str:
    """Returns the name of the dtype of a new tensor: the argument `dtype`, or, if that is None, the dtype that the
    device uses for `default`. Raises `DTypeError` for a dtype that the backend does not support."""
    if dtype is None:
        return checks.supported_dtype(
            creation.default_dtype_on(
                checks.backend, creation.place_for(checks.backend, device), default
            )
        )
    return checks.supported_dtype(dtype_name(dtype))


def _full(checks: Checks, shape: Shape, value: Any, name: str, device: object) -> Any:
    """Returns a tensor of the given shape and of dtype `name`, filled with `value`. `device` is the caller's
    argument."""
    target_device = _device_for(checks, name, device)
    return checks.backend.full(creation.shape_of((shape,), name), value, target_device, name)


def _device_for(checks: Checks, dtype: str, device: object) -> Device:
    """Returns the device of a new tensor: the argument `device`, or, if that is None, the device of the
    `with device:` block. Raises `DTypeError` if the device does not support the dtype."""
    target_device = creation.place_for(checks.backend, device)
    require_dtype(checks.backend, dtype, "the dtype", "use another dtype", place=target_device)
    return target_device


# tensors with the shape of another tensor


def full_like(
    checks: Checks, x: Any, /, fill_value: complex, *, dtype: Any = None, device: object = None
) -> Any:
    """Returns a tensor of the shape of `x`, filled with the number `fill_value`. The dtype and the device are taken
    from `x` unless `dtype` or `device` is given. Raises `DTypeError` if the number does not fit into the dtype."""
    x = checks.checked_tensor(x, "full_like")
    if type(fill_value) not in NUMBERS:
        fill_value = creation.item(fill_value)
    name = checks.supported_dtype(checks.dtype_of(x) if dtype is None else dtype_name(dtype))
    dtypes.require_fits(fill_value, name)
    # if a device is given, all sizes must be known; the kernel below also accepts traced
    # tensors
    if device is not None:
        return _full(checks, checks.known_shape(x, "full_like"), fill_value, name, device)
    return checks.kernels.full_like(x, fill_value, name)


def empty_like(checks: Checks, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor with the shape of `x`. The dtype and the device are taken from `x` unless `dtype` or `device` is
    given. In this implementation the elements are zeros, but programs should not rely on this."""
    return full_like(checks, x, 0, dtype=dtype, device=device)


def ones_like(checks: Checks, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor of ones with the shape of `x`. The dtype and the device are taken from `x` unless `dtype` or
    `device` is given."""
    return full_like(checks, x, 1, dtype=dtype, device=device)


def zeros_like(checks: Checks, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
    """Returns a tensor of zeros with the shape of `x`. The dtype and the device are taken from `x` unless `dtype` or
    `device` is given."""
    return full_like(checks, x, 0, dtype=dtype, device=device)


# tensors whose values follow a rule; NumPy computes the values, so that the bits are the same
# on every backend


def arange(
    checks: Checks,
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: object = None,
) -> Any:
    """Returns a vector of the numbers from `start` up to, but not including, `stop`, in steps of `step`. If `stop` is
    None, the numbers run from 0 up to, but not including, `start`. The default dtype is int64 if all arguments are
    ints, and float32 otherwise. Raises `ShapeError` if `step` is 0, and `DTypeError` for integers that do not fit
    into the dtype."""
    import numpy

    if step == 0:
        raise ShapeError("arange: step must not be 0")
    start, stop, step = _python_number(start), _python_number(stop), _python_number(step)
    first, last = (0, start) if stop is None else (start, stop)
    # the standard says that the result contains integers if all three numbers are ints, and
    # otherwise floats
    default = "int64" if all(isinstance(x, int) for x in (first, last, step)) else "float32"
    name = _dtype_for(checks, dtype, default, device)
    # the number of elements is the quotient (last - first) / step, rounded up; this is exact
    # for ints of any size
    count = max(0, -int((first - last) // step))
    # each float is computed from the first float, so that rounding errors do not accumulate
    if default != "int64":
        return _tensor_of(
            checks, first + step * numpy.arange(count, dtype="float64"), name, device
        )
    # the first and the last integer must fit into the dtype
    if count:
        dtypes.require_fits(first, name)
        dtypes.require_fits(first + step * (count - 1), name)
    return _tensor_of(checks, numpy.arange(first, first + step * count, step), name, device)


def linspace(
    checks: Checks,
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: object = None,
    endpoint: bool = True,
) -> Any:
    """Returns a vector of `num` evenly spaced floats from `start` to `stop`; if `endpoint` is False, `stop` is
    excluded. Raises `DTypeError` if `dtype` is neither a float dtype nor a complex dtype."""
    import numpy

    name = _dtype_for(checks, dtype, "float32", device)
    # integer dtypes are refused, because for most arguments the evenly spaced numbers are not
    # integers
    if dtypes.kind_of(name) not in dtypes.FLOATING:
        raise DTypeError(
            f"linspace returns floats or complex numbers, not {name}; pass a floating-point or complex dtype"
        )
    start, stop = _python_number(start), _python_number(stop)
    return _tensor_of(checks, numpy.linspace(start, stop, num, endpoint=endpoint), name, device)


def eye(
    checks: Checks,
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: object = None,
) -> Any:
    """Returns a matrix with `n_rows` rows and `n_cols` columns, with ones on the diagonal `k` and zeros elsewhere. If
    `n_cols` is None, the matrix is square. `k` is 0 for the main diagonal, and positive for diagonals above the main
    diagonal."""
    import numpy

    name = _dtype_for(checks, dtype, "float32", device)
    # a diagonal below the last row has no elements, so `k` is limited to -n_rows
    return _tensor_of(
        checks,
        numpy.eye(n_rows, n_cols, k=max(-n_rows, k), dtype=host_dtype(name)),
        name,
        device,
    )


def _tensor_of(checks: Checks, values: np.ndarray[Any, Any], name: str, device: object) -> Any:
    """Returns the values of a NumPy array as a tensor of dtype `name`. `device` is the caller's argument."""
    target_device = _device_for(checks, name, device)
    return checks.backend.from_numpy(values.astype(host_dtype(name), copy=False), target_device)


# tensors that are computed from other tensors


def meshgrid(checks: Checks, *arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Returns a tuple with the coordinates of a grid: for each vector in `arrays`, a tensor of the shape of the grid.
    Along one axis, this tensor contains the elements of the vector; along all other axes, it is constant. Raises
    `ShapeError` if a tensor is not a vector or if `indexing` is neither "xy" nor "ij", and `DeviceMismatchError` for
    vectors on several devices."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing must be 'xy' or 'ij', not {shown(indexing)}")
    tensors = [checks.checked_tensor(x, "meshgrid") for x in arrays]
    if any(len(x.shape) != 1 for x in tensors):
        raise ShapeError(
            f"meshgrid expects vectors, not tensors of shapes {[shape_of(x) for x in tensors]}"
        )
    if tensors:
        checks.require_one_device("meshgrid", *tensors)
        tensors = checks.promoted(tensors)
    # for each vector, the axis along which it varies; with "xy", the first two axes are swapped
    axes = list(range(len(tensors)))
    if indexing == "xy":
        axes[:2] = reversed(axes[:2])
    shape = [0] * len(tensors)
    for axis, x in zip(axes, tensors, strict=True):
        # the shape of a vector has one item
        (shape[axis],) = checks.known_shape(x, "meshgrid")
    return tuple(checks.call_fused(_along_axes, tensors, tuple(axes), tuple(shape)))


def _along_axes(checks: Checks, *arguments: Any) -> list[Any]:
    """Returns a list with one tensor for each vector: the vector, placed along its own axis and broadcast to the shape.
    `arguments` are the vectors, followed by a tuple with the axis of each vector, and the shape."""
    *tensors, axes, shape = arguments
    # the shape to which each vector is reshaped, in which all other axes have the length 1
    ones = (1,) * len(shape)
    narrow_shapes = [with_lengths(ones, axis, shape[axis]) for axis in axes]
    return [
        checks.kernels.broadcast_to(checks.kernels.reshape(x, narrow_shape), shape)
        for x, narrow_shape in zip(tensors, narrow_shapes, strict=True)
    ]


def tril(checks: Checks, x: Any, /, *, k: int = 0) -> Any:
    """Returns the matrices in the last two axes of `x`, with zeros above the diagonal `k`."""
    return checks.kernels.tril(_matrices(checks, "tril", x), k)


def triu(checks: Checks, x: Any, /, *, k: int = 0) -> Any:
    """Returns the matrices in the last two axes of `x`, with zeros below the diagonal `k`."""
    return checks.kernels.triu(_matrices(checks, "triu", x), k)


def _matrices(checks: Checks, function: str, x: Any) -> Any:
    """Returns `x` as a tensor. Raises `ShapeError` if `x` has fewer than two dimensions. `function` is the function
    name to show in error messages."""
    x = checks.checked_tensor(x, function)
    shape = checks.known_shape(x, function)
    if len(shape) < 2:
        raise ShapeError(
            f"{function} expects a tensor with at least two dimensions, not a tensor of shape {shape}"
        )
    return x


def _python_number(x: Any) -> Any:
    """Returns `x` as a Python number, so that `isinstance` can distinguish ints from floats. `x` is a NumPy scalar, a
    tensor with one number, or a Python number, which is returned unchanged."""
    return creation.item(x) if hasattr(x, "dtype") else x
