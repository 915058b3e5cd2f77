"""Functions that create tensors and read their values: the minimum that device-neutral teaching
code needs, with the same dtypes on every backend."""

from __future__ import annotations

from xdevice.base import devices, floats, spellings
from xdevice.base.devices import CPU, Device
from xdevice.base.dtypes import DTYPES, NARROWER, SHORT_FLOATS, dtype_name, host_dtype, name_of
from xdevice.core import registry, scopes, selection
from xdevice.errors import DTypeError, NotATensorError, ShapeError, shown

from .refusals import require_dtype, symbol_error

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, NoReturn

    import numpy as np

    from xdevice.contract import Backend
    from xdevice.contract.backend import Owned

_KEPT_DTYPES = frozenset(DTYPES) - {"float64"}
"""The dtypes that an array keeps if no dtype is passed. (Float64 becomes float32.)"""
_EXTENDED = ("bfloat16", *SHORT_FLOATS)
"""The float dtypes that the package ml_dtypes adds to NumPy. For some of these, NumPy's
`dtype.kind` is "V" instead of "f"."""
# the limit of the 64-bit sizes in frameworks
_MOST_BYTES = 2**63 - 1
# from this number on, float64 cannot represent every whole number
_EXACT_IN_FLOAT64 = 2.0**53


def tensor(
    data: Any, *, device: object = None, dtype: object = None, **misspelled: NoReturn
) -> Any:
    """Returns a new tensor of the selected backend, which never shares memory with `data`.

    Args:
        data: numbers, a NumPy array, a tensor of any backend, which is copied through the host, or nested lists of
            these, which are stacked as NumPy stacks arrays.
        device: any form that `xdevice.device` accepts; by default the device of the `with device:` block, or
            `cpu:0` outside such blocks, even if there is a GPU.
        dtype: "float32", `np.float32`, `torch.float32`, `float`, ... By default, Python ints become int64 (int32 on JAX
            without 64-bit), Python floats and float64 arrays become float32, Python complex numbers become complex64,
            and other arrays keep their dtype.

    docs/reference/api/creation.md says how `dtype` changes a number, and which numbers do not fit.

    Raises:
        DTypeError: if the backend or the device lacks the dtype, if `data` is not numbers, or if a value does not fit.
        DeviceNotFoundError, DeviceError: as with `to_device`.
        UnsupportedError: if `data` is a masked array, or a tensor that `to_numpy` refuses.

    Costs one copy on the host and one to the device.

    Example:
        >>> xdevice.to_numpy(xdevice.tensor([[1, 2], [3, 4]]))
        array([[1, 2],
               [3, 4]])
    """
    if misspelled:
        spellings.refuse("tensor", misspelled, "device=, dtype=")
    return tensor_of(selection.current(), data, device, dtype)


def tensor_of(backend: Backend, data: Any, device: object, dtype: object) -> Any:
    """Returns a new tensor of `backend` with the numbers `data`. `device` and `dtype` are any spellings, or None for
    the defaults. Raises the errors of `tensor`."""
    place = place_for(backend, device)
    # the most frequent case, for which the steps below are unnecessary: an array of float32 or
    # of ints
    if dtype is None and not floats.setting() and (name := _dtype_without_cast(data)):
        _require_dtype(backend, name, place)
        return backend.from_numpy(data, place)
    # NumPy cannot read every tensor in a list
    data = _with_arrays(data)
    array = _host_array(data)
    wanted = (
        dtype_name(dtype) if dtype is not None else _dtype_of_data(backend, place, data, array)
    )
    _require_dtype(backend, wanted, place)
    numbers = _cast(_with_exact_ints(data, array, wanted), wanted)
    # `jitter_if_requested` changes the numbers only if XDEVICE_FLOATS requests that
    return backend.from_numpy(floats.jitter_if_requested(numbers), place)


def ones(
    *shape: int | Sequence[int],
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns a tensor of ones, created on the device: `ones(2, 3)` or `ones((2, 3))`. The default `dtype` is float32.

    Arguments and errors are those of `tensor`. Also raises `ShapeError` if `shape` is not a shape, or if the tensor
    would need 2**63 bytes or more.

    Example:
        >>> tuple(xdevice.ones(2, 3).shape)
        (2, 3)
    """
    if misspelled:
        spellings.refuse("ones", misspelled, "device=, dtype=")
    return _full(shape, 1, device, dtype)


def zeros(
    *shape: int | Sequence[int],
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns a tensor of zeros, created on the device: `zeros(2, 3)` or `zeros((2, 3))`. The default `dtype` is
    float32.

    Arguments and errors are those of `ones`.

    Example:
        >>> xdevice.item(xdevice.zeros(1))
        0.0
    """
    if misspelled:
        spellings.refuse("zeros", misspelled, "device=, dtype=")
    return _full(shape, 0, device, dtype)


def is_dtype_supported(dtype: object, device: object = None) -> bool:
    """Whether tensors of a dtype can be on a device of the selected backend, with its present settings. For example,
    float64 tensors cannot be on MPS.

    Experimental: it may change in a minor version. Arguments are those of `tensor`. The result is True even for 8-bit
        floats, although tensors of these can only be moved. It does not show which operations support the dtype.

    Raises:
        DTypeError: if `dtype` is not a dtype.
        DeviceError, DeviceNotFoundError: if `device` is not a device, or the backend does not have it.

    Costs 1 us. Does not start the device, except on JAX, which cannot answer without starting it.

    Example:
        >>> xdevice.accelerator.is_dtype_supported("float32", "cpu")
        True
    """
    backend = selection.current()
    place, name = place_for(backend, device), dtype_name(dtype)
    if name in backend.lacks(place):
        return False
    return name in backend.short_floats or (
        name in backend.dtypes and backend.dtype_refusal(name) is None
    )


def to_numpy(x: Any) -> Any:
    """Returns a new NumPy array with the values and dtype of a tensor or variable. The array never shares memory.

    Waits for the tensor, copies it to the host, and raises the error of its computation if there was one. bfloat16
    becomes `ml_dtypes.bfloat16`, and a sparse tensor of PyTorch, MXNet or Paddle becomes a dense array. A container is
    returned with arrays in place of its tensors. A variable is a `tf.Variable`, a `keras.Variable` or a Gluon
    `Parameter`. A NumPy scalar, such as the result of `x.sum()`, becomes a 0-d array. A TensorDict
    becomes a dict, because it cannot hold arrays.

    Raises:
        NotATensorError: if `x` is neither a tensor nor a container.
        ContainerError: if an object of an unknown type contains tensors.
        UnsupportedError: for a tensor that no array can represent; the error says what to read instead. These are
            nested, quantized and masked tensors, complex32 and bits on PyTorch; sparse and ragged tensors, variants and
            resources on TensorFlow; keys on JAX; masked arrays of NumPy; and symbolic tensors in a traced function.
        NotBuiltError: for a parameter that has no shape yet.

    Costs one copy, and a second copy on the host if the framework keeps the memory that it returns
    (`Backend.gives_away`).

    Example:
        >>> xdevice.to_numpy(xdevice.ones(2))
        array([1., 1.], dtype=float32)
    """
    try:
        owner = registry.movable.get(type(x))
    # the type may be unhashable because of its metaclass
    except TypeError:
        owner = None
    if owner is not None:
        return _read(owner, x)
    x = registry.as_array(x)
    owned = registry.owner_and_kind(type(x))
    if owned is not None and owned.kind == "tensor":
        return _read(owned.backend, x)
    # a variable, such as a `tf.Variable`, has the kind "model"
    inner = _tensor_of(x)
    if owned is not None and inner is not None:
        return _read(owned.backend, inner)
    from xdevice.containers import trees

    if owned is not None or not (trees.is_container(x) or trees.stranger(x)):
        raise NotATensorError(
            f"cannot read {shown(x)} of type {type(x).__qualname__} as numbers; pass a tensor or a container of tensors"
        )
    return trees.map_leaves(
        x, lambda values: [_read_leaf(value) for value in values], copies=True
    )


def item(x: Any) -> Any:
    """Returns the value of a tensor with one element, and any number of axes, as a Python bool, int, float or complex.

    Waits for the tensor, like `to_numpy`.

    Raises:
        NotATensorError: if `x` is not a tensor. ShapeError: if `x` does not have exactly one element.
        DTypeError: if the element is not a number.
        UnsupportedError, NotBuiltError: as with `to_numpy`.

    Example:
        >>> xdevice.item(xdevice.ones(1, 1))
        1.0
    """
    x = registry.as_array(x)
    owned = registry.owner_and_kind(type(x))
    inner = _tensor_of(x)
    if owned is None or inner is None:
        raise NotATensorError(
            f"item expects one tensor, not {shown(x)} of type {type(x).__qualname__}; call item for each tensor"
        )
    array = owned.backend.to_numpy(inner)
    if array.size != 1:
        raise ShapeError(
            f"item expects a tensor with one element, not of shape {tuple(array.shape)}; use xdevice.to_numpy(x)"
        )
    value = array.item()
    # `array.item()` returns a Python number for all dtypes of numbers except long doubles
    if isinstance(value, bool | int | float | complex):
        return value
    if array.dtype.kind != "f":
        raise DTypeError(
            f"item returns a number, but the element of {shown(x)} is of dtype {array.dtype}; use xdevice.to_numpy(x)"
        )
    # `array.item()` has returned a longdouble, which is not a Python float
    return float(value)


def as_default_dtype(
    backend: Backend, array: np.ndarray[Any, Any], place: Device
) -> np.ndarray[Any, Any] | None:
    """Returns `array`, cast to the dtype that `tensor` would choose for it on the device `place`. Returns None if the
    array contains other objects than numbers, or 8-bit floats. Raises `DTypeError` if tensors on `place` cannot have
    that dtype, or if a value does not fit into it."""
    # strings, dates and objects are not numbers, and xdevice does not compute with 8-bit floats
    if not _is_numbers(array) or array.dtype.name in SHORT_FLOATS:
        return None
    # passed twice: `array` is the data, and also the array that is created from the data
    wanted = _default_dtype(array, array)
    _require_dtype(backend, wanted, place)
    return _cast(_host_array(array), wanted)


def _read(backend: Backend, x: Any) -> np.ndarray[Any, Any]:
    """Returns the values of a tensor as a new array in C order, which shares no memory."""
    import copy

    import numpy

    host = backend.to_numpy(x)
    # an array of Python objects: a copy by NumPy would share these objects
    if host.dtype.hasobject:
        return copy.deepcopy(host)
    # nobody else uses the memory of this array, so it need not be copied
    if host.flags.writeable and backend.gives_away(x):
        return numpy.asarray(host, order="C")
    return numpy.array(host, copy=True, order="C")


def _read_leaf(value: Any) -> Any:
    """Returns a leaf of a container as an array if the leaf is a tensor or a variable. Returns any other leaf
    unchanged. Raises `UnsupportedError` for a symbol."""
    owned = registry.owner_and_kind(type(value))
    inner = _tensor_of(value)
    return value if owned is None or inner is None else _read(owned.backend, inner)


def _tensor_of(x: Any) -> Any | None:
    """Returns `x` if it is a tensor. If `x` is a variable, such as a `tf.Variable`, returns the tensor with its values.
    Returns None for anything else. Raises `UnsupportedError` for a symbolic tensor in a traced function."""
    owned = registry.owner_and_kind(type(x))
    if owned is None:
        return None
    _refuse_symbol(owned, type(x))
    return x if owned.kind == "tensor" else owned.backend.tensor_of(x)


def _full(
    shape: tuple[int | Sequence[int], ...], value: float, device: object, dtype: object
) -> Any:
    """Returns a tensor filled with `value`. `shape` contains the positional arguments of `ones`; `device` and `dtype`
    are any spellings, or None for the defaults. Raises the errors of `ones`."""
    backend = selection.current()
    place = place_for(backend, device)
    wanted = dtype_name(dtype) if dtype is not None else default_dtype_on(backend, place)
    _require_dtype(backend, wanted, place)
    return backend.full(shape_of(shape, wanted), value, place, wanted)


def place_for(backend: Backend, device: object) -> Device:
    """Returns the device on which a function such as `ones` creates a tensor: the device that
    the spelling `device` names. If `device` is None, this is the device of the `with device:`
    block or of `set_default_device`, or `cpu:0` if neither is used. Raises
    `DeviceNotFoundError` if the backend lacks the device, and `DeviceError` if `device` is not
    a spelling of a device."""
    if device is None:
        return backend.require(scopes.current() or CPU)
    return backend.require(devices.parse(device))


def default_dtype_on(backend: Backend, place: Device, name: str = "float32") -> str:
    """Returns the dtype of tensors on the device `place` if the default dtype is `name` and the program does not pass a
    dtype. With XDEVICE_FLOATS=float64, the result is a wider dtype, except on devices whose floats are always float32.
    If the device lacks the dtype, the result is the next narrower dtype."""
    # the host lacks no dtype, and its floats always follow XDEVICE_FLOATS
    if place is CPU:
        return floats.effective_dtype(name)
    wanted = name if backend.is_float32_default(place) else floats.effective_dtype(name)
    return NARROWER.get(wanted, wanted) if wanted in backend.lacks(place) else wanted


def shape_of(shape: tuple[int | Sequence[int], ...], dtype: str) -> tuple[int, ...]:
    """Returns the shape that the positional arguments of a function such as `ones` describe:
    (2, 3) for `(2, 3)` and for `((2, 3),)`. Raises `ShapeError` if the arguments are not a shape,
    or if a tensor of this shape and dtype is too large to be addressed."""
    sizes: Any = as_tuple(shape[0]) if len(shape) == 1 else shape
    is_wrong = [
        # NumPy ints and 0-d int tensors are accepted as ints, but True is not
        isinstance(size, bool) or not hasattr(type(size), "__index__") or size < 0
        for size in sizes
    ]
    if any(is_wrong):
        raise ShapeError(
            f"a shape must consist of non-negative ints, such as 2, 3 or (2, 3), not {shown(sizes)}"
        )
    # Python ints, because they cannot overflow in the product below
    lengths = tuple([size.__index__() for size in sizes])
    nbytes = host_dtype(dtype).itemsize
    for size in lengths:
        # a size of 0 is replaced by 1, because frameworks overflow or raise an error even if
        # there are no elements
        nbytes *= size or 1
    if nbytes > _MOST_BYTES:
        raise ShapeError(
            f"a tensor of dtype {dtype} and shape {shown(lengths)} would need 2**63 bytes or more; use a smaller shape"
        )
    return lengths


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Returns a shape, or axes, as a tuple. `value` is an int, or an iterable of ints, such as
    a shape object of a framework or a tensor."""
    if not hasattr(value, "__iter__"):
        return (value,)
    try:
        return tuple(value)
    # a 0-d tensor has `__iter__`, but represents a single int
    except TypeError:
        return (value,)


def _with_arrays(data: Any, levels: int = 64) -> Any:
    """Returns `data` with a NumPy array in place of each tensor in its nested lists and tuples. Lists that are nested
    deeper than `levels` are not searched, because no NumPy array has more than 64 axes. NumPy itself would read MXNet
    tensors one element at a time, and cannot read tensors that are on a GPU, require a gradient, or are bfloat16.
    Raises `UnsupportedError` for a symbol."""
    if not isinstance(data, list | tuple) or not levels:
        return data
    # the set shows whether a long list contains only numbers, without a loop in Python
    try:
        classes = set(map(type, data))
    # a type is unhashable because of its metaclass; NumPy itself refuses such an object
    except TypeError:
        return data
    if not any(issubclass(cls, list | tuple) or _read_by_backend(cls) for cls in classes):
        return data
    return [
        owned.backend.to_numpy(x)
        if (owned := _read_by_backend(type(x)))
        else _with_arrays(x, levels - 1)
        for x in data
    ]


def _dtype_without_cast(data: Any) -> str | None:
    """Returns the name of the dtype of `data` if `data` is a NumPy array that can become a
    tensor without a cast; None otherwise."""
    import numpy

    # a subclass may be a masked array, and in another byte order the bytes must be swapped
    if type(data) is not numpy.ndarray or not data.dtype.isnative:
        return None
    name = name_of(data.dtype)
    return name if name in _KEPT_DTYPES else None


def _read_by_backend(cls: type) -> Owned | None:
    """Returns the backend and kind of `cls` if `cls` is a type of tensors that NumPy cannot read. The backend must then
    read their values. Returns None for any other type, including NumPy's arrays. Raises `UnsupportedError` for a type
    of symbols."""
    owned = registry.owner_and_kind(cls)
    if owned is None:
        return None
    _refuse_symbol(owned, cls)
    return owned if owned.kind == "tensor" and not owned.backend.is_host_only else None


def _refuse_symbol(owned: Owned, cls: type) -> None:
    """Raises `UnsupportedError` if `cls` is a type of symbols, because symbols have no values.
    `owned` is the backend and the kind of `cls`."""
    if owned.kind == "symbol":
        raise symbol_error(owned.backend, f"this {cls.__qualname__}")


def _host_array(data: Any) -> np.ndarray[Any, Any]:
    """Returns `data` (numbers, a tensor, or nested lists of these) as a NumPy array of numbers in
    the host's byte order. If no NumPy dtype can hold the ints, the elements are Python ints and
    floats. Raises `DTypeError` if `data` is not numbers, or if a mask would be lost, and
    `UnsupportedError` for a symbol."""
    import numpy

    owned = registry.owner_and_kind(type(data))
    if owned is not None:
        _refuse_symbol(owned, type(data))
    try:
        array = (
            owned.backend.to_numpy(data)
            if owned is not None and owned.kind == "tensor"
            else numpy.asarray(data)
        )
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"cannot make a tensor from {shown(data)}: {error}; pass numbers"
        ) from error
    # NumPy drops the mask of a masked array in a list. The array has more axes than there are nested
    # lists only if the lists contain arrays; only then are all elements tested, which takes longer
    if array.ndim > _list_depth(data) and any(map(_is_masked, _flat(data))):
        raise DTypeError(
            f"cannot make a tensor from {shown(data)}: its mask would be lost; pass x.filled(...) instead"
        )
    # numbers that were read from a file may be in the opposite byte order
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # Python ints of more than 64 bits
    if array.dtype.kind == "O" and all(isinstance(x, int | float) for x in _flat(data)):
        return numpy.asarray(data, "object")
    if not _is_numbers(array):
        raise DTypeError(
            f"cannot make a tensor from {shown(data)}: NumPy reads it as {array.dtype}; "
            f"expected numbers, or nested lists of equal lengths"
        )
    return array


def _is_numbers(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array contains bools, ints, floats or complex numbers, including the dtypes of
    ml_dtypes."""
    return array.dtype.kind in "biufc" or name_of(array.dtype) in _EXTENDED


def _dtype_of_data(
    backend: Backend, place: Device, data: Any, array: np.ndarray[Any, Any]
) -> str:
    """Returns the dtype that a tensor of `data` has on the device `place` if the program does
    not pass a dtype. `array` is the result of `_host_array(data)`. Raises the errors of
    `_default_dtype`."""
    name = _default_dtype(data, array)
    # if the device lacks the dtype of an array, an error is raised later: the dtype is not
    # narrowed
    return (
        floats.effective_dtype(name)
        if hasattr(data, "dtype")
        else default_dtype_on(backend, place, name)
    )


def _default_dtype(data: Any, array: np.ndarray[Any, Any]) -> str:
    """Returns the dtype that a tensor of `data` has if the program does not pass a dtype and
    every dtype is available. `array` is the result of `_host_array(data)`. Raises `DTypeError`
    for Python ints that do not fit in int64."""
    name = name_of(array.dtype)
    # NumPy turns ints into floats if neither int64 nor uint64 can hold all of these ints
    is_huge = name == "float64" and array.size and abs(array).max() >= 2.0**63
    if name == "object" or (is_huge and all(isinstance(x, int) for x in _flat(data))):
        raise DTypeError(
            f"Python ints become int64, but {shown(data)} does not fit in int64; pass dtype='float64'"
        )
    # float32 is the usual dtype in deep learning; NumPy turns Python floats into float64
    if name == "float64":
        return "float32"
    # an array keeps its dtype, and so do complex numbers if there are arrays in the list;
    # Python numbers become the usual dtype
    if hasattr(data, "dtype") or (array.dtype.kind == "c" and _holds_arrays(data)):
        return name
    if name == "complex128":
        return "complex64"
    if name == "uint64" and not _holds_arrays(data):
        raise DTypeError(
            f"Python ints become int64, but {shown(data)} does not fit in int64; pass dtype='uint64'"
        )
    return name


def _flat(data: Any) -> Iterator[Any]:
    """Yields the innermost items of nested lists and tuples; `data` itself if it is neither a
    list nor a tuple."""
    if isinstance(data, list | tuple):
        for x in data:
            yield from _flat(x)
    else:
        yield data


def _holds_arrays(data: Any) -> bool:
    """Whether `data` is an array or a tensor, or consists of nested lists and tuples that
    contain one."""
    return any(hasattr(x, "dtype") for x in _flat(data))


def _list_depth(data: Any) -> int:
    """Returns the number of levels of lists and tuples in `data`, along their first items; 0 if `data` is neither a
    list nor a tuple. If the NumPy array that is created from `data` has more axes than this number, the lists contain
    arrays."""
    return 1 + _list_depth(data[0]) if isinstance(data, list | tuple) and data else 0


def _is_masked(x: Any) -> bool:
    """Whether `x` is a masked array, whose mask NumPy would drop."""
    mask = getattr(type(x), "mask", None)
    # in a pandas object, `mask` is a method; in a masked array, it is a property
    return mask is not None and not callable(mask) and hasattr(x, "dtype")


def _require_dtype(backend: Backend, dtype: str, place: Device) -> None:
    """Raises `DTypeError` if tensors of the backend cannot have this dtype on the device."""
    # if an adapter narrows a dtype, the adapter itself refuses the values that do not fit
    require_dtype(
        backend,
        dtype,
        what="the dtype",
        instead="use another dtype",
        place=place,
        may_narrow=True,
    )


def _with_exact_ints(data: Any, array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Returns an array of the numbers in `data` that can be cast to the dtype `name`. This is usually `array`, which
    NumPy has created from `data`. However, NumPy turns ints into float64 if there is a float among them, which rounds
    large ints. If this may have happened, and `name` is an integer dtype, the result is an array of the Python objects
    in `data`."""
    if not (
        isinstance(data, list | tuple)
        and array.dtype.name == "float64"
        and host_dtype(name).kind in "iu"
    ):
        return array
    import numpy

    return numpy.asarray(data, "object") if (abs(array) >= _EXACT_IN_FLOAT64).any() else array


def _cast(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Returns an array, cast to the dtype `name`. Raises `DTypeError` if a value would become
    infinite, lose its imaginary part, or exceed the range of an integer dtype. Also raises it if
    NaN would be cast to an integer dtype."""
    import numpy

    if name_of(array.dtype) == name:
        return array
    target = host_dtype(name)
    # every number except 0 becomes True
    if target.kind == "b":
        return array.astype(bool)
    # NumPy would drop the imaginary part and only warn
    if array.dtype.kind == "c" and target.kind != "c":
        raise DTypeError(f"complex numbers do not fit in {name}; pass their real parts")
    # float32 can represent all values of these dtypes, and NumPy can compute with float32 below
    if array.dtype.name in _EXTENDED:
        array = array.astype("float32")
    if target.kind in "iu":
        return _as_ints(array, target)
    # NumPy's warnings are suppressed, because values that do not fit raise an error below
    with numpy.errstate(over="ignore", invalid="ignore"):
        try:
            # ml_dtypes cannot cast Python ints of more than 64 bits
            if array.dtype.kind == "O" and name == "bfloat16":
                array = array.astype("float64")
            cast = array.astype(target)
        # raised for a Python int that even float64 cannot hold
        except OverflowError as error:
            raise DTypeError(
                f"a value in {shown(array)} does not fit in {name}: {error}"
            ) from error
        # values that were infinite before may remain infinite
        was_infinite = numpy.isinf(
            array.astype("float64") if array.dtype.kind == "O" else array
        )
        if (numpy.isinf(cast) & ~was_infinite).any():
            raise DTypeError(
                f"a value in {shown(array)} does not fit in {name}; use a wider dtype"
            )
    return cast


def _as_ints(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the numbers as ints of the dtype `target`, rounded toward 0. Raises `DTypeError`
    if a number is NaN or out of range."""
    import numpy

    if array.dtype.kind == "f":
        # the dtype is at least float64, which can represent the limits of the range for the
        # comparison
        array = numpy.trunc(array.astype(numpy.promote_types(array.dtype, "float64")))
    # Python ints and floats: for infinity or NaN, `int` raises the error
    elif array.dtype.kind == "O":
        try:
            array = numpy.asarray(numpy.frompyfunc(int, 1, 1)(array), "object")
        except (ValueError, OverflowError) as error:
            raise DTypeError(
                f"a value in {shown(array)} does not fit in {target}: {error}; use a float dtype"
            ) from error
    if array.size and array.dtype.kind != "b":
        # the range is checked here, because NumPy's cast wraps around without an error
        limits = numpy.iinfo(target)
        least, most = array.min(), array.max()
        if array.dtype.kind != "f":
            fits = limits.min <= int(least) and int(most) <= limits.max
        # for int64, numbers must be less than 2**63, because 2**63 - 1 is not a float64; if
        # there is a NaN, the comparison is False
        else:
            fits = bool(
                least >= array.dtype.type(limits.min)
                and most < array.dtype.type(2.0) ** _bits_of_largest(limits)
            )
        if not fits:
            values = f"{least}" if array.size == 1 else f"a value between {least} and {most}"
            raise DTypeError(f"{values} does not fit in {target}; use another dtype")
    return array.astype(target)


def _bits_of_largest(limits: np.iinfo[Any]) -> int:
    """Returns the number of bits of the largest int within `limits`: 63 for int64, 64 for
    uint64."""
    return int(limits.max).bit_length()
