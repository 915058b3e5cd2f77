"""`standard_array`: wraps a tensor of any backend in an array of the Python Array API standard, for libraries that use
operators and methods as well as functions.

The frameworks' own tensor classes are not changed. An `Array` contains a tensor, and each of its operators calls the
function of the namespace that the standard assigns to this operator.
"""

from __future__ import annotations

from functools import partial, wraps
from math import prod
from operator import index as as_int
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.devices import CPU
from xdevice.base.dtypes import dtype_name
from xdevice.contract import dlpack
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    SharingError,
    UnsupportedError,
    shown,
)
from xdevice.math.contract.arithmetic import HOST
from xdevice.tensors import creation, verbs

from .checks import NUMBERS, Checks, shape_of
from .indexing import at, is_basic_index, part_at_index
from .namespace import VERSION, Namespace, array_namespace, checks_of

if TYPE_CHECKING:
    from collections.abc import Callable

VERSIONS: Final = ("2021.12", "2022.12", "2023.12", "2024.12", VERSION)
"""The versions of the standard that a library may request. For each of them, the result is the namespace of the
newest version."""

# Python's operators, by the names of their special methods without underscores, each with its
# function in the namespace
UNARY: Final = {"abs": "abs", "invert": "bitwise_invert", "neg": "negative", "pos": "positive"}

COMPARING: Final = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
}

COMPUTING: Final = {
    "add": "add",
    "and": "bitwise_and",
    "floordiv": "floor_divide",
    "lshift": "bitwise_left_shift",
    "matmul": "matmul",
    "mod": "remainder",
    "mul": "multiply",
    "or": "bitwise_or",
    "pow": "pow",
    "rshift": "bitwise_right_shift",
    "sub": "subtract",
    "truediv": "divide",
    "xor": "bitwise_xor",
}
"""The operators that also have a reflected form, such as `__radd__`, and an in-place form, such as `__iadd__`."""


def standard_array(x: Any) -> Any:
    """Returns `x` as an array of the Python Array API standard, with its operators, methods and
    attributes.

    Experimental: it may change in a minor version.

    Pass the array to scikit-learn, SciPy, einops or array-api-extra, which do not accept tensors of TensorFlow, Paddle
    or MXNet. These libraries return arrays of the same type; the attribute `tensor` of an array is its tensor, on the
    same device. Operators, indexing and dtypes follow the rules of `array_namespace`. `a[i] = v` and `a += v` replace
    the tensor in `a`, and never write into a tensor. As in NumPy, `a[1:]` and `a[0]` are views, but parts without
    dimensions and the results of functions are not views.

    Raises:
        NotATensorError: `x` is not a tensor. Functions and operators of the array later raise the errors of the
            namespace's functions.
        DTypeError: raised later, if NumPy reads an array that is not on a CPU.

    Indexing with slices and ints costs a kernel for each axis. Any other index costs 1 ns on the host for each
    element of the array. An assignment costs as much as `at`.

    Example:
        >>> x = xdevice.math.standard_array(xdevice.tensor([[1, 2], [3, 4]]))
        >>> xdevice.to_numpy((x[:, 0] + 1.5).tensor).tolist()
        [2.5, 4.5]
    """
    if isinstance(x, Array):
        return x
    x = registry.as_array(x)
    checks = checks_of(x, "standard_array")
    return Array(checks, checks.checked_tensor(x, "standard_array"))


class Array:
    """The standard's array object: a tensor with the operators and methods of the standard. An array with a `base` is
    a view of the part of the base at `index`. The part is computed again after the tensor in the base has been
    replaced."""

    __slots__ = ("_base", "_base_tensor", "_checks", "_index", "_tensor")

    # None makes NumPy's arrays and scalars use the operators of this class
    __array_ufunc__ = None
    # not hashable, because `==` returns an array
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, checks: Checks, tensor: Any, base: Array | None = None, index: Any = None
    ) -> None:
        self._checks = checks
        self._tensor = tensor
        self._base = base
        self._index = index
        # the tensor of the base from which `_tensor` was computed
        self._base_tensor = None if base is None else base.tensor

    @property
    def tensor(self) -> Any:
        """The backend's tensor. For a view, this is the part of the current tensor of its base."""
        # the tensor in the base was replaced, because something was written into the base, so
        # the view has new elements
        if self._base is not None and self._base_tensor is not self._base.tensor:
            self._base_tensor = self._base.tensor
            self._tensor = part_at_index(self._checks, self._base_tensor, self._index)
        return self._tensor

    def _write(self, tensor: Any) -> None:
        """Replaces the tensor in this array by `tensor`. If the array is a view, replaces the tensor in its base by a
        copy that contains the elements of `tensor` at the view's index."""
        if self._base is None:
            self._tensor = tensor
        else:
            self._base._write(at(self._base.tensor)[self._index].set(tensor))

    def __repr__(self) -> str:
        return f"standard_array({self.tensor!r})"

    # attributes of the standard

    @property
    def dtype(self) -> Any:
        """The framework's own dtype."""
        return self._checks.kernels.dtype(self._checks.dtype_of(self.tensor))

    @property
    def device(self) -> Any:
        """The device, as an `xdevice.Device`."""
        return self._checks.backend.device_of(self.tensor)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The lengths of the axes. A length that is unknown while a function is traced is None."""
        return shape_of(self.tensor)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.tensor.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, or None if it is unknown while a function is traced."""
        return None if None in self.shape else prod(self.shape)

    @property
    def mT(self) -> Array:  # noqa: N802
        """The array with its last two axes swapped."""
        return self.__array_namespace__().matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def T(self) -> Array:  # noqa: N802
        """The transposed matrix. Raises `ShapeError` unless the array has two dimensions."""
        # the standard defines this attribute only for matrices
        if self.ndim != 2:
            raise ShapeError(
                f"T needs exactly two dimensions, but the shape is {self.shape}; use mT or xp.permute_dims"
            )
        return self.mT

    # how other libraries use an array: its namespace, its device, DLPack

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Returns the namespace whose functions accept and return `Array`s. Raises `ArgumentError` for an unknown
        version of the standard."""
        # an unknown version is refused, because the library that requests it relies on its
        # rules
        if api_version not in (None, *VERSIONS):
            raise ArgumentError(
                f"version {shown(api_version)} of the array API is not supported; expected one of {', '.join(VERSIONS)}"
            )
        inner = array_namespace(self.tensor)
        wrapped = _namespaces.get(inner)
        if wrapped is None:
            result = Wrapped(self._checks, inner, f"{inner.__name__} for standard arrays")
            # there is only one object for each namespace, because libraries compare namespaces
            # by identity
            wrapped = _namespaces.setdefault(inner, result)
        return wrapped

    def to_device(self, device: object, /, *, stream: None = None) -> Array:
        """Returns the array, moved to the given device. A device in any form is accepted. Raises
        `UnsupportedError` if a stream is given."""
        if stream is not None:
            raise UnsupportedError(
                "to_device does not support stream=; use xdevice.accelerator.Stream"
            )
        return Array(self._checks, verbs.to_device(self.tensor, device))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a DLPack capsule of the array's memory. Raises `SharingError` if the memory cannot be shared as
        requested."""
        x = self
        # the caller requests the array on the CPU, and allows a copy
        if dl_device == (dlpack.CPU, 0) and copy is not False:
            x = self.to_device(CPU)
        elif dl_device is not None and dl_device != self.__dlpack_device__():
            raise SharingError(
                f"memory on {self.device} cannot be shared as memory on the DLPack device {dl_device}; "
                "move the array with to_device first"
            )
        return x._capsule(copy=bool(copy))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the array's device in DLPack's form: its type and its number. Raises `SharingError` if the memory of
        the device cannot be shared."""
        return (
            (dlpack.CPU, 0)
            if self.device is CPU
            else dlpack.Lent(self._capsule(copy=False)).device
        )

    def _capsule(self, copy: bool) -> Any:
        """Returns the DLPack capsule of the tensor, or of a copy of it. Raises `SharingError`
        if the memory of the device cannot be shared."""
        backend = self._checks.backend
        if not backend.shares(self.device):
            raise SharingError(
                f"other frameworks cannot use {backend.name} memory on {self.device}; first call to_device('cpu')"
            )
        x = backend.detached(self.tensor)
        x = backend.copy(x, self.device) if copy else x
        # waits until the values are computed, because the reader might not wait
        backend.finish(x)
        # `lending` makes the GPU of `x` PyTorch's current GPU
        with backend.lending(x):
            return backend.export(x)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Returns a copy of the array as a NumPy array. Raises `DTypeError` if the array is not on a CPU, and
        `SharingError` if `copy` is False."""
        import numpy

        # arrays on other devices are refused, so that no copy from a GPU happens unnoticed
        if self.device is not CPU:
            raise DTypeError(
                f"NumPy cannot read an array on {self.device}; copy it with x.to_device('cpu'), or read it with "
                "xdevice.to_numpy(x.tensor)"
            )
        # the result is always a copy, because programs may write into a NumPy array, but must
        # never write into the tensor of an `Array`
        if copy is False:
            raise SharingError("NumPy always receives a copy of this array; omit copy=False")
        return numpy.asarray(creation.to_numpy(self.tensor), dtype)

    # conversions to a Python number

    def __bool__(self) -> bool:
        return bool(creation.item(self.tensor))

    def __complex__(self) -> complex:
        return complex(creation.item(self.tensor))

    def __float__(self) -> float:
        return float(creation.item(self.tensor))

    def __int__(self) -> int:
        return int(creation.item(self.tensor))

    def __index__(self) -> int:
        # the standard allows only 0-d integer arrays as indices
        if self.ndim:
            raise ShapeError(
                f"an array used as an index must be 0-dimensional, but its shape is {self.shape}"
            )
        return as_int(creation.item(self.tensor))

    # indexing

    def __getitem__(self, index: Any) -> Array:
        """Returns the part of the array at `index`, by NumPy's rules: a view for slices and ints, and a new array for
        other indices."""
        index = _unwrapped(index)
        part = part_at_index(self._checks, self.tensor, index)
        # as in NumPy, an index of slices and ints returns a view, but a single element is not a
        # view
        if not is_basic_index(index) or not len(part.shape):
            return Array(self._checks, part)
        return Array(self._checks, part, base=self, index=index)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Replaces the tensor in the array, and for a view also the tensor in its base, by a copy with `values` at
        the index."""
        self._write(at(self.tensor)[_unwrapped(index)].set(_unwrapped(values)))

    def _take_tensor_of(self, result: Array) -> Array:
        """Replaces the tensor in this array by the tensor in `result`, the result of an in-place operator such as
        `+=`, and returns this array. Raises `DTypeError` if `result` has a different shape or dtype."""
        # dtype and shape are compared as the strings that the error shows
        old, new = (
            f"{self._checks.dtype_of(x.tensor)} of shape {x.shape}" for x in (self, result)
        )
        # the standard says that an in-place operator may change neither the shape nor the dtype
        if old != new:
            raise DTypeError(
                f"an in-place operator would turn {old} into {new}; write x = x + y instead of x += y"
            )
        self._write(result.tensor)
        return self


def _unary_operator(function: str) -> Callable[[Array], Any]:
    """Returns a unary operator that calls the namespace's function `function`."""

    def operator(self: Array) -> Any:
        return getattr(self.__array_namespace__(), function)(self)

    return operator


def _binary_operator(function: str, reflected: bool = False) -> Callable[[Array, Any], Any]:
    """Returns a binary operator that calls the namespace's function `function`. If `reflected` is True, the array is
    the second operand, as in `1 - a`."""

    def operator(self: Array, other: Any) -> Any:
        if not isinstance(other, Array):
            other = _unwrapped(other)
            # if the other operand is not a number, NotImplemented makes Python try that
            # operand's own operator
            if type(other) not in NUMBERS:
                return NotImplemented
        computed = getattr(self.__array_namespace__(), function)
        return computed(other, self) if reflected else computed(self, other)

    return operator


def _in_place_operator(function: str) -> Callable[[Array, Any], Any]:
    """Returns an in-place operator such as `__iadd__`. It calls the namespace's function `function`, and replaces the
    tensor in the array by the tensor of the result."""
    compute = _binary_operator(function)

    def operator(self: Array, other: Any) -> Any:
        result = compute(self, other)
        return result if result is NotImplemented else self._take_tensor_of(result)

    return operator


def _define_operators() -> None:
    """Adds the special methods for all of Python's operators to the class `Array`."""
    for name, function in UNARY.items():
        setattr(Array, f"__{name}__", _unary_operator(function))
    for name, function in (COMPARING | COMPUTING).items():
        setattr(Array, f"__{name}__", _binary_operator(function))
    for name, function in COMPUTING.items():
        setattr(Array, f"__r{name}__", _binary_operator(function, reflected=True))
        setattr(Array, f"__i{name}__", _in_place_operator(function))


_define_operators()


# the namespace of arrays


class Wrapped:
    """A namespace whose functions accept and return `Array`s. `inner` is a namespace of tensors, or one of its
    extensions such as `linalg`. Both namespaces contain the same names."""

    def __init__(self, checks: Checks, inner: Any, name: str) -> None:
        self.__name__ = name
        self._checks = checks
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        # Python calls this method only at the first use of a name, because the value is then
        # stored as an attribute
        value = getattr(self._inner, name)
        # extensions and functions are wrapped; dtypes and constants remain unchanged
        if isinstance(value, SimpleNamespace):
            value = Wrapped(self._checks, value, f"{self.__name__}.{name}")
        elif isinstance(value, FunctionType | partial) and not name.startswith("_"):
            value = _wrapped_function(self._checks, value)
            value = _keeping_arrays_and_dtypes(value) if name == "asarray" else value
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._inner) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


_namespaces: dict[Namespace, Wrapped] = {}
"""Maps each namespace of tensors to the namespace of `Array`s."""


def _wrapped_function(checks: Checks, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that accepts and returns `Array`s, and calls `function`, a function of tensors."""

    @wraps(function)
    def computed(*args: Any, **settings: Any) -> Any:
        result = function(
            *map(_unwrapped, args),
            **{name: _unwrapped(value) for name, value in settings.items()},
        )
        return _wrapped_result(checks, result)

    return computed


def _keeping_arrays_and_dtypes(asarray: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a variant of the function `asarray`. If the argument is an `Array` and nothing needs to change, the
    variant returns the argument itself. The variant also keeps the dtype of NumPy arrays, because libraries compute on
    the host in dtypes such as float64."""

    @wraps(asarray)
    def kept(obj: Any, /, *, dtype: Any = None, **settings: Any) -> Any:
        if isinstance(obj, Array):
            result = asarray(obj, dtype=dtype, **settings)
            return obj if result.tensor is obj.tensor else result
        owned = registry.owner_and_kind(type(obj))
        # a NumPy array
        if dtype is None and owned is not None and owned.backend.name == HOST:
            name = dtype_name(obj.dtype)
            # if the device does not support this dtype, None selects the default dtype
            dtype = name if creation.is_dtype_supported(name, settings.get("device")) else None
        return asarray(obj, dtype=dtype, **settings)

    return kept


def _unwrapped(value: Any) -> Any:
    """Returns an argument in the form that the namespace of tensors accepts. An `Array` is replaced by its tensor. A
    NumPy scalar is replaced by a Python number, so that its dtype has no effect. In lists and tuples, the items are
    replaced in the same way. Other values are returned unchanged."""
    if isinstance(value, Array):
        return value.tensor
    if type(value) in (list, tuple):
        return type(value)(map(_unwrapped, value))
    # `as_array` returns another object only for a NumPy scalar
    return value if registry.as_array(value) is value else value.item()


def _wrapped_result(checks: Checks, result: Any) -> Any:
    """Returns the result of a function, with each tensor replaced by an `Array`, including tensors inside tuples and
    lists."""
    if isinstance(result, tuple | list):
        # the class of a named tuple requires separate arguments, so its method `_make` is used
        # instead
        make: Any = getattr(result, "_make", type(result))
        return make([_wrapped_result(checks, part) for part in result])
    # NumPy's scalars are treated as arrays
    result = registry.as_array(result)
    owned = registry.owner_and_kind(type(result))
    # `owned` is None for a value that is not a tensor, such as a dtype
    return result if owned is None else Array(checks, result)
