"""`Checks`: the checks of tensors, dtypes, devices, shapes and axes that all functions of an array namespace use."""

from __future__ import annotations

from functools import partial, reduce
from operator import index
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.base import spellings
from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    DeviceMismatchError,
    DTypeError,
    NotATensorError,
    ShapeError,
    UnsupportedError,
    shown,
)
from xdevice.math.contract.arithmetic import HOST, OPTIONAL, PLACES
from xdevice.math.contract.gradients import Gradients
from xdevice.tensors.creation import as_tuple, to_numpy
from xdevice.tensors.refusals import operators_hint, symbol_error

from . import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

NUMBERS = (bool, int, float, complex)
"""The types of Python numbers. `type(x) in NUMBERS` is False for NumPy scalars, even if their types are subclasses of
these types."""


class AxisError(ShapeError, IndexError):
    """Raised for an axis that a tensor does not have. It is also an `IndexError`, because the standard requires
    that."""


def _with_defaults(kernels: Any) -> Any:
    """Returns an object with the kernels of an adapter, and the default for each name in `OPTIONAL` that the adapter
    does not define. The kernels in `WIDER` are wrapped: for a dtype that the framework does not support, they compute
    in a wider dtype."""
    defined = {name: getattr(kernels, name) for name in dir(kernels)}
    # the names that the adapter defines override the defaults
    completed = SimpleNamespace(**OPTIONAL | defined)
    for name, wider in completed.WIDER.items():
        setattr(completed, name, _widening(kernels, name, wider))
    return completed


def _widening(kernels: Any, function: str, wider: Mapping[str, str]) -> Callable[..., Any]:
    """Returns a wrapper of the kernel `function` in an adapter's `kernels`. `wider` is a dict whose keys are the dtypes
    that the kernel does not support. Each value is the wider dtype in which the wrapper computes instead, or `HOST`,
    which means that it computes on the host. The result is cast back to the narrow dtype, unless it consists of indices
    or bools."""
    kernel = getattr(kernels, function)
    # the index of the argument whose dtype is looked up, the first operand: 1 for `where`,
    # because its argument 0 is the condition
    first_operand = 1 if function == "where" else 0

    def computed(*arguments: Any) -> Any:
        dtype = arguments[first_operand].dtype
        name = dtype_name(dtype)
        wide_dtype = wider.get(name)
        # the framework supports this dtype itself
        if wide_dtype is None:
            return kernel(*arguments)
        if wide_dtype == HOST:
            return _on_host(kernels, function, arguments)
        # this casts the operands and nothing else: numbers and axes have no dtype, and the
        # condition of `where` is bool
        result = kernel(
            *[
                kernels.astype(x, wide_dtype) if getattr(x, "dtype", None) == dtype else x
                for x in arguments
            ]
        )
        # results that are bools or indices do not have the dtype of the operands, and are not
        # cast. Indices may happen to have the wide dtype, so the name of the function is tested
        # too
        is_wide = function not in PLACES and dtype_name(result.dtype) == wide_dtype
        return kernels.astype(result, name) if is_wide else result

    return computed


def _on_host(kernels: Any, function: str, arguments: Sequence[Any]) -> Any:
    """Returns the result of NumPy's kernel `function`. `arguments` are tensors, numbers and axes; the tensors belong
    to the adapter with these `kernels`. The result is a tensor on the device of the first argument."""
    import numpy as np

    host = registry.load(HOST).namespace()
    values = [to_numpy(x) if hasattr(x, "dtype") else x for x in arguments]
    result = getattr(host, function)(*values)
    # the array must be contiguous for adapters; `ascontiguousarray` is not used, because it
    # would add an axis to a 0-d array
    return kernels.constant(np.asarray(result, order="C"), arguments[0])


class Checks:
    """The kernels of one backend (functions of its adapter), and the checks that all functions of the backend's
    namespace use."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.kernels: Any = _with_defaults(backend.namespace())
        self.tensor_types: set[type] = set()
        """Those types of tensors and symbols of this backend that the method `checked_tensor` has accepted so far."""
        self.compares_devices = not self.kernels.ONE_DEVICE
        """Whether the devices of the tensors must be compared before each call of a kernel, because the kernel itself
        would not raise an error for tensors on two devices."""
        self.layout_attribute: str
        self.dense_layout: Any
        self.layout_attribute, self.dense_layout = self.kernels.DENSE
        """The name of the attribute that shows whether a tensor is dense, and its value in a
        dense tensor. The name is "" if a fast call need not check it."""
        self.may_be_sparse: set[type] = set()
        """Those types in `tensor_types` whose tensors may be sparse, so that each tensor must be checked."""
        # an adapter without gradients inherits the default method of the contract, which raises
        method = getattr(backend.value_and_grad, "__func__", None)
        self.has_gradients = method is not Gradients.value_and_grad
        self.xp: Any = None
        """The namespace that consists of these kernels, for functions that call other functions of the namespace,
        such as those of `linalg`. `Namespace` sets this attribute."""
        self._programs: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Maps each function that `call_fused` has been called with to its compiled function."""

    def kernel(self, name: str, dtype: Any) -> Callable[..., Any]:
        """Returns the kernel `name` for tensors of the framework's dtype `dtype`. If the kernel computes tensors of
        that dtype in a wider dtype, this is the wrapped kernel. Otherwise it is the adapter's own function, or the
        default in `OPTIONAL` if the adapter has no such function."""
        # for other dtypes, the wrapped kernel is not used, because it would look up the dtype
        # at each call
        completed = getattr(self.kernels, name)
        is_widened = dtype_name(dtype) in self.kernels.WIDER.get(name, ())
        return completed if is_widened else getattr(self.backend.namespace(), name, completed)  # type: ignore[no-any-return]

    # checks of tensors and dtypes

    def checked_tensor(self, x: Any, function: str) -> Any:
        """Returns `x` if it is a dense tensor or a symbol of this backend. If `x` is a variable, returns the tensor
        in the variable. Raises `ArgumentError` for a tensor of another backend, `UnsupportedError` for a tensor that
        is not dense, and `NotATensorError` for any other object. `function` is the function name to show in the error
        message."""
        if type(x) in self.tensor_types:
            if type(x) in self.may_be_sparse and not self.backend.is_dense(x):
                raise self._not_dense_error(x)
            return x
        # NumPy's scalars of float64 and complex128 are instances of float and complex, but are
        # treated as arrays
        if isinstance(x, NUMBERS) and not hasattr(x, "dtype"):
            raise NotATensorError(
                f"{function} accepts {self.backend.name} tensors, not the number {shown(x)}; call xp.asarray first"
            )
        x = registry.as_array(x)
        owned = registry.owner_and_kind(type(x))
        if owned is None:
            raise NotATensorError(
                f"{function} accepts {self.backend.name} tensors, not {shown(x)} of type {type(x).__qualname__}; "
                "to create a tensor from numbers or lists, call xp.asarray"
            )
        # a tensor of another framework is not converted automatically, so that the programmer
        # notices the mistake
        if owned.backend is not self.backend:
            raise ArgumentError(
                f"{function} of the {self.backend.name} namespace accepts only {self.backend.name} tensors, not "
                f"{owned.backend.name} tensors; convert them with xdevice.convert(x, {self.backend.name!r}), or, if "
                "you have called set_backend, call array_namespace again"
            )
        if owned.kind == "model":
            return self._tensor_of_variable(x, function)
        if owned.kind == "tensor":
            self._require_supported(x)
        # from now on, tensors and symbols of this type are accepted without these checks
        self.tensor_types.add(type(x))
        return x

    def _tensor_of_variable(self, x: Any, function: str) -> Any:
        """Returns the tensor in a variable, such as a `tf.Variable`. Raises `NotATensorError`
        for any other model."""
        tensor = self.backend.tensor_of(x)
        if tensor is None:
            raise NotATensorError(
                f"{function} accepts tensors, not models such as this object of type {type(x).__qualname__}"
            )
        return tensor

    def _require_supported(self, x: Any) -> None:
        """Raises `UnsupportedError` if the kernels do not support `x`, the first tensor of its type. Adds the type to
        `may_be_sparse` if other tensors of the type must also be checked."""
        if not self.backend.is_dense(x):
            raise self._not_dense_error(x)
        if self.kernels.require is not None:
            self.kernels.require(x)
        # an adapter whose framework has sparse tensors overrides `is_dense`
        if type(self.backend).is_dense is not Backend.is_dense:
            self.may_be_sparse.add(type(x))

    def needs_no_check(self, x: Any) -> bool:
        """Whether `x` can be passed to the kernel without further checks. This is the case if the type of `x` is known
        as a tensor type of this backend. If there is a `layout_attribute`, this attribute of `x` must also show that
        `x` is dense."""
        return type(x) in self.tensor_types and (
            not self.layout_attribute or getattr(x, self.layout_attribute) is self.dense_layout
        )

    def _not_dense_error(self, x: Any) -> UnsupportedError:
        """Returns the error for `x`, a tensor that is not dense."""
        return self.backend.unsupported(
            f"arithmetic on an object of type {type(x).__name__} that is not dense",
            "convert this object to a dense tensor first",
        )

    def dtype_of(self, x: Any) -> str:
        """Returns the name of a tensor's dtype, such as "float32"."""
        return dtype_name(x.dtype)

    def supported_dtype(self, name: str) -> str:
        """Returns the dtype that this backend currently uses for the dtype `name`: `name` itself, or int32 instead of
        int64 on JAX without 64-bit types. Raises `DTypeError` if the backend has no such dtype."""
        if name not in self.backend.dtypes:
            raise DTypeError(
                f"{self.backend.name} does not support {name}; it supports {', '.join(sorted(self.backend.dtypes))}"
            )
        refusal = self.backend.dtype_refusal(name)
        if refusal is None:
            return name
        # JAX without 64-bit uses int32 wherever the standard uses int64, such as for indices
        if name == "int64":
            return "int32"
        raise DTypeError(f"{self.backend.name} cannot use {name} here: {refusal}")

    def tensor_of_kinds(self, x: Any, kinds: str, function: str) -> Any:
        """Returns `x` as a tensor, like the method `checked_tensor`. `kinds` is a string with the letters of the kinds
        of dtypes that `function` accepts. Raises `DTypeError` for a dtype of another kind, and the errors of
        `checked_tensor`."""
        cls = type(x)
        # the first test of `checked_tensor` is repeated here, because this saves a call for most
        # tensors
        if cls not in self.tensor_types or (
            cls in self.may_be_sparse and not self.backend.is_dense(x)
        ):
            x = self.checked_tensor(x, function)
        name = dtype_name(x.dtype)
        if dtypes.kind_of(name) not in kinds:
            raise self.kind_error(function, kinds, name)
        return x

    def kind_error(self, function: str, kinds: str, *names: str) -> DTypeError:
        """Returns the error for a call of `function` with tensors of the dtypes `names`, at least one of which is not
        accepted. `kinds` are the kinds of dtypes that the function accepts. The error proposes a dtype to which the
        tensor can be cast."""
        to = {dtypes.BOOL: "xp.bool", dtypes.INTEGER: "xp.int64"}.get(kinds, "xp.float32")
        # for bool, int64 is proposed rather than a float dtype, unless the function accepts
        # only floats
        if set(names) == {"bool"} and kinds not in (dtypes.FLOATING, dtypes.REAL_FLOATING):
            to = "xp.int64"
        refused = " and ".join(dict.fromkeys(names))
        return DTypeError(
            f"{function} accepts {dtypes.WORDS[kinds]}, not {refused}; cast the tensor with xp.astype(x, {to})"
        )

    def cast(self, x: Any, name: str) -> Any:
        """Returns `x` cast to the dtype `name`, or `x` itself if it already has that dtype."""
        return (
            x
            if self.dtype_of(x) == name
            else self.kernels.astype(x, self.supported_dtype(name))
        )

    def operands(self, function: str, kinds: str, values: Sequence[Any]) -> list[Any]:
        """Returns the operands `values` as tensors of their common dtype. Each value is a tensor or a Python number,
        and at least one value must be a tensor. Raises `DTypeError` if there is no common dtype, or if its kind is not
        in `kinds`. If `compares_devices` is True, raises `DeviceMismatchError` for tensors on several devices. Also
        raises the errors of `checked_tensor`."""
        # tensors are checked, and Python numbers remain unchanged
        tensors = [
            x if type(x) in NUMBERS else self.checked_tensor(x, function) for x in values
        ]
        # numbers become tensors on the device of the first tensor
        first = next((x for x in tensors if type(x) not in NUMBERS), None)
        if first is None:
            raise NotATensorError(
                f"{function} needs at least one tensor, but there is none in {shown(tuple(values))}; create one with "
                f"xp.asarray"
            )
        if self.compares_devices:
            self.require_one_device(function, *[x for x in tensors if type(x) not in NUMBERS])
        dtype = first.dtype
        # False if there is a Python number, which has no dtype
        is_uniform = all([getattr(x, "dtype", None) is dtype for x in tensors])  # noqa: C419  # a list takes half as long as a generator
        name = dtype_name(dtype)
        if not is_uniform:
            names = [self.dtype_of(x) for x in tensors if type(x) not in NUMBERS]
            name = self.common_dtype(names, [x for x in tensors if type(x) in NUMBERS])
        if dtypes.kind_of(name) not in kinds:
            raise self.kind_error(
                function, kinds, *[self.dtype_of(x) for x in tensors if type(x) not in NUMBERS]
            )
        if is_uniform:
            return tensors
        return [
            self.number_as_tensor(x, name, first) if type(x) in NUMBERS else self.cast(x, name)
            for x in tensors
        ]

    def operands_on_one_device(self, function: str, kinds: str, *values: Any) -> list[Any]:
        """Returns the result of `operands`, but always raises `DeviceMismatchError` for tensors on several devices.
        On backends with `ONE_DEVICE`, `operands` relies on the kernel to raise this error. This method is for functions
        with kernels that might not raise it."""
        tensors = self.operands(function, kinds, values)
        self.require_one_device(function, *tensors)
        return tensors

    def promoted(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns a list of the tensors, cast to their common dtype. There must be at least one tensor."""
        dtype = tensors[0].dtype
        if all([x.dtype is dtype for x in tensors]):  # noqa: C419  # a list takes half as long
            return list(tensors)
        name = self.common_dtype(map(self.dtype_of, tensors))
        return [self.cast(x, name) for x in tensors]

    def common_dtype(self, names: Iterable[str], numbers: Iterable[complex] = ()) -> str:
        """Returns the name of the common dtype of tensors with the dtypes `names` and the Python numbers `numbers`.
        Raises `DTypeError` if there is no common dtype."""
        name = reduce(dtypes.promoted, names)
        # numbers are processed after all tensors, because a number matters only if its kind is
        # higher than the kind of the tensors' dtype
        for number in numbers:
            name = self.supported_dtype(dtypes.promoted_with_number(name, number))
        return name

    def number_as_tensor(self, value: complex, name: str, like: Any) -> Any:
        """Returns the Python number `value` as a 0-d tensor, of dtype `name`, on the device of `like`.
        Raises `DTypeError` if the number does not fit into the dtype."""
        dtypes.require_fits(value, name)
        # PyTorch cannot create a tensor from an int with more than 64 bits
        if type(value) is int and dtypes.kind_of(name) == "f":
            value = float(value)
        return self.kernels.number(value, name, like)

    def array_as_tensor(self, array: np.ndarray[Any, Any], like: Any) -> Any:
        """Returns the values of a NumPy array as a tensor on the device of `like`. The array must not be changed
        afterwards, because the tensor may share its memory."""
        # indices that NumPy computed are int64, which the backend may not support
        if array.dtype == "int64":
            array = array.astype(self.supported_dtype("int64"), copy=False)
        return self.kernels.constant(array, like)

    def take_flat(self, x: Any, positions: np.ndarray[Any, Any]) -> Any:
        """Returns the elements of the flattened `x` at the indices in `positions`, as a tensor of the shape of
        `positions`."""
        flat = self.kernels.reshape(x, (-1,))
        # the contract promises that the kernel `take` is called with at least one index
        if positions.size:
            elements = self.kernels.take(flat, self.array_as_tensor(positions.ravel(), x), 0)
        # the elements along axis 0 from 0 up to, but not including, 0: none
        else:
            elements = self.kernels.sliced(flat, 0, 0, 0)
        return self.kernels.reshape(elements, positions.shape)

    def call_fused(
        self, function: Callable[..., Any], tensors: Sequence[Any], *settings: Any
    ) -> Any:
        """Returns `function(self, *tensors, *settings)`. On JAX, the call runs as a single compiled program, and so
        does the gradient of the call; without this method, each small kernel would be a separate program. There is one
        program for each combination of settings. The settings must be hashable, because they are the key of the
        program."""
        fuse = self.kernels.fused
        # frameworks other than JAX would not become faster
        if fuse is None:
            return function(self, *tensors, *settings)
        program = self._programs.get(function)
        if program is None:
            program = self._programs[function] = fuse(partial(function, self))
        return program(tuple(tensors), *settings)

    # checks of values

    def has_values(self, x: Any) -> bool:
        """Whether `x` is a tensor that has values, rather than a symbol of a traced function."""
        owned = registry.owner_and_kind(type(x))
        return owned is not None and owned.kind == "tensor"

    def require_values(self, x: Any, words: str) -> None:
        """Raises `UnsupportedError` if `x` is a symbol. `words` describes `x` in the error, such as "the argument of
        nonzero"."""
        if not self.has_values(x):
            raise symbol_error(self.backend, words)

    # checks of devices

    def require_one_device(self, function: str, *values: Any) -> None:
        """Raises `DeviceMismatchError` if the tensors are on several devices. Traced tensors are not checked, because
        they have no device. A tensor that is itself spread over several devices is not checked here, but by the
        framework."""
        # a backend that computes only on the host has a single device
        if self.backend.is_host_only:
            return
        try:
            if self.are_on_one_device(values):
                return
            # symbols are ignored
            tensors = [x for x in values if type(x) in registry.probes]
            devices = [self.backend.operand_device(x) for x in tensors]
        # a tensor that is spread over several devices has no device of its own
        except UnsupportedError:
            return
        for device, x in zip(devices, tensors, strict=True):
            if device is not devices[0]:
                raise DeviceMismatchError(
                    f"{function}: a tensor of shape {shape_of(x)} is on {device}, but the first tensor, of shape "
                    f"{shape_of(tensors[0])}, is on {devices[0]}; move all tensors to one device: xdevice.to_device(x, "
                    f"{str(devices[0])!r}){operators_hint(self.backend)}"
                )

    def are_on_one_device(self, values: Sequence[Any]) -> bool:
        """Whether `values` are tensors of the same type and on the same device. This is a quick test: even if it
        returns False, the values may be usable together, such as a variable and a tensor."""
        cls = type(values[0])
        device_of = registry.probes.get(cls)
        if device_of is None:
            return False
        first = device_of(values[0])
        for x in values[1:]:  # noqa: SIM110  # a third of the time of all(...)
            if type(x) is not cls or device_of(x) is not first:
                return False
        return True

    def raise_if_misfit(self, function: str, *values: Any) -> None:
        """Raises xdevice's own error if the tensors among `values` are on several devices, do not broadcast together,
        or are not dense; returns None otherwise. It is called only after a kernel has raised an error, to find the
        reason for the error. It is not called before the kernel, because these checks take as long as a small
        operation."""
        tensors = [self.checked_tensor(x, function) for x in values if hasattr(x, "shape")]
        if tensors:
            self.require_one_device(function, *tensors)
        require_broadcast(function, *tensors)

    # checks of shapes and axes

    def known_shape(self, x: Any, function: str) -> tuple[int, ...]:
        """Returns the shape of `x` for a function that needs all sizes. Raises `UnsupportedError` if a size is
        unknown while a function is traced."""
        return self.require_known_lengths(shape_of(x), function)

    def require_known_lengths(self, shape: tuple[Any, ...], function: str) -> tuple[int, ...]:
        """Returns `shape`. Raises `UnsupportedError` if a size in `shape` is None, which means that the size is
        unknown."""
        if None in shape:
            raise self.backend.unsupported(
                f"{function} on the shape {shape}, which has a size that is unknown while the function is traced",
                "trace the function with a shape in which every size is known",
            )
        return shape

    def element_count(self, x: Any, axes: Sequence[int], name: str) -> Any:
        """Returns the number of elements of `x` along `axes`, as a tensor of dtype `name`. The backend computes the
        number, because a length may be unknown while a function is traced."""
        # the counts are sums of ones along these axes, which the result does not keep (False)
        ones = self.kernels.full_like(x, 1, name)
        counts = self.cast(self.kernels.sum(ones, tuple(axes), False), name)
        remaining_axes = len(x.shape) - len(axes)
        # all of these counts are equal, so their maximum is the number of elements
        return (
            self.kernels.max(counts, tuple(range(remaining_axes)), False)
            if remaining_axes
            else counts
        )

    def axis_index(self, axis: Any, ndim: int, function: str) -> int:
        """Returns the axis as an index from 0 to `ndim` - 1. Raises `AxisError` if a tensor of `ndim` dimensions has
        no such axis, and `ShapeError` if `axis` is not an int."""
        if type(axis) is int and 0 <= axis < ndim:
            return axis
        try:
            number = index(axis)
        except TypeError:
            raise ShapeError(f"{function}: an axis must be an int, not {shown(axis)}") from None
        if not -ndim <= number < ndim:
            raise AxisError(
                f"{function}: axis {number} is out of range for a {ndim}-dimensional tensor"
            )
        return number % ndim

    def axis_indices(self, axis: Any, ndim: int, function: str) -> tuple[int, ...]:
        """Returns the axes as a tuple of indices from 0 to `ndim` - 1, in ascending order. If `axis` is None, returns
        all axes of a tensor of `ndim` dimensions. Raises `ShapeError` if an axis occurs twice, and the errors of the
        method `axis_index`."""
        if axis is None:
            return tuple(range(ndim))
        if type(axis) is int:
            return (self.axis_index(axis, ndim, function),)
        axes = [self.axis_index(item, ndim, function) for item in as_tuple(axis)]
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{function}: the same axis appears twice in {shown(axis)}")
        # the contract promises that kernels are called with axes in ascending order
        return tuple(sorted(axes))


def reduction(
    function: str, compute: Callable[[Checks, str, Any, Any, bool], Any]
) -> Callable[..., Any]:
    """Returns the standard's function with the name `function`. That function has the arguments `x`, `axis` and
    `keepdims`, and returns `compute(checks, function, x, axis, keepdims)`. An argument with another name, such as
    `dim`, raises an error that lists the valid names."""

    def reduction(
        checks: Checks,
        x: Any,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        **misspelled: NoReturn,
    ) -> Any:
        if misspelled:
            spellings.refuse(f"xp.{function}", misspelled, "axis=, keepdims=")
        return compute(checks, function, x, axis, keepdims)

    return reduction


def shape_of(x: Any) -> tuple[Any, ...]:
    """Returns the shape of `x` as a tuple. A size that is unknown while a function is traced is None."""
    shape = x.shape
    # some frameworks have their own types for shapes, and Paddle uses -1 for an unknown size
    if isinstance(shape, tuple) and -1 not in shape:
        return tuple(shape)
    return tuple([None if length is None or length < 0 else length for length in shape])


def with_lengths(shape: tuple[Any, ...], axis: int, *lengths: int | None) -> tuple[Any, ...]:
    """Returns the shape with one axis replaced by new axes of the given lengths. Without lengths, the axis is removed;
    with two lengths, the axis is split."""
    return (*shape[:axis], *lengths, *shape[axis + 1 :])


def broadcast_shape(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the common shape of tensors of the given shapes after broadcasting. Raises `ShapeError` if the shapes
    cannot be broadcast together."""
    if len({*shapes}) == 1:
        return shapes[0]
    # written with lists, which torch.compile can trace
    ndim = max([0, *[len(shape) for shape in shapes]])
    rows = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*rows, strict=True):
        # the lengths other than 1 must be equal; None is an unknown length, which matches any
        # length
        others = {length for length in sizes if length != 1}
        known_lengths = others - {None}
        if len(known_lengths) > 1:
            raise ShapeError(
                f"the shapes {', '.join(map(str, shapes))} cannot be broadcast together; counted from the end, lengths "
                "must be equal or 1"
            )
        # the first of these: the known length, None, or, if all lengths are 1, the 1 at the end
        result.append([*known_lengths, *others, 1][0])
    return tuple(result)


def require_broadcast(function: str, *values: Any) -> None:
    """Raises `ShapeError` if the tensors cannot be broadcast together. The message begins with the function's name."""
    shapes = [shape_of(x) for x in values]
    try:
        broadcast_shape(*shapes)
    except ShapeError as error:
        raise ShapeError(f"{function}: {error}") from None
