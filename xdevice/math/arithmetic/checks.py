"""`Checks`: the checks of tensors, dtypes, devices, shapes and axes that all functions of a
namespace use."""

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
from xdevice.tensors.refusals import operators_compute_elsewhere, traced

from . import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

NUMBERS = (bool, int, float, complex)
"""The types of Python numbers. NumPy scalars are not among them: `type(x) in NUMBERS` does not
count subclasses."""


class AxisError(ShapeError, IndexError):
    """An axis that a tensor does not have. It is an `IndexError` because the standard requires
    that."""


def _with_defaults(kernels: Any) -> Any:
    """Returns an object with the kernels of an adapter, and the default of each name in `OPTIONAL` that the adapter
    does not define. The kernels in `WIDER` are wrapped, so that they compute dtypes that the framework lacks in wider
    ones."""
    own = {name: getattr(kernels, name) for name in dir(kernels)}
    # the names of the adapter replace the defaults
    completed = SimpleNamespace(**OPTIONAL | own)
    for name, wider in completed.WIDER.items():
        setattr(completed, name, _widening(kernels, name, wider))
    return completed


def _widening(kernels: Any, function: str, wider: Mapping[str, str]) -> Callable[..., Any]:
    """Returns a wrapper of the kernel `function` in an adapter's `kernels`. `wider` maps dtypes that the kernel lacks
    to the dtypes in which the wrapper computes them, or to `HOST` if it computes them on the host. The result is cast
    back to the narrow dtype, unless it consists of indices or bools."""
    kernel = getattr(kernels, function)
    # the index of the first operand, whose dtype decides: 1 for `where`, because its argument 0
    # is the condition
    first = int(function == "where")

    def computed(*arguments: Any) -> Any:
        dtype = arguments[first].dtype
        name = dtype_name(dtype)
        wide_dtype = wider.get(name)
        # the framework computes this dtype itself
        if wide_dtype is None:
            return kernel(*arguments)
        if wide_dtype == HOST:
            return _on_host(kernels, function, arguments)
        # only the operands have this dtype, and are cast: numbers and axes have no dtype, and
        # the condition of `where` is bool
        result = kernel(
            *[
                kernels.astype(x, wide_dtype) if getattr(x, "dtype", None) == dtype else x
                for x in arguments
            ]
        )
        # bools and indices do not have the dtype of the operands, and are not cast. Indices may
        # happen to have the wide dtype, so the name of the function is tested, too
        is_wide = function not in PLACES and dtype_name(result.dtype) == wide_dtype
        return kernels.astype(result, name) if is_wide else result

    return computed


def _on_host(kernels: Any, function: str, arguments: Sequence[Any]) -> Any:
    """Returns the result of NumPy's kernel `function` for `arguments`, which are tensors of the
    adapter with these `kernels`, numbers and axes. The result is a tensor on the device of the
    first argument."""
    import numpy as np

    host = registry.load(HOST).namespace()
    values = [to_numpy(x) if hasattr(x, "dtype") else x for x in arguments]
    result = getattr(host, function)(*values)
    # contiguous, as adapters need it; `ascontiguousarray` would give a 0-d array an axis
    return kernels.constant(np.asarray(result, order="C"), arguments[0])


class Checks:
    """One backend with its kernels (the functions of its adapter), and the checks that all
    functions of the namespace use."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.kernels: Any = _with_defaults(backend.namespace())
        self.tensor_types: set[type] = set()
        """The types of tensors and symbols of this backend that `tensor` has accepted so
        far."""
        self.compares_devices = not self.kernels.ONE_DEVICE
        """Whether to compare the devices of the tensors before each call of a kernel, because
        the kernel would not raise for tensors on two devices."""
        self.layout_attribute: str
        self.dense_layout: Any
        self.layout_attribute, self.dense_layout = self.kernels.DENSE
        """The name of the attribute that shows whether a tensor is dense, and its value in a
        dense tensor. The name is "" if a fast call need not check it."""
        self.may_be_sparse: set[type] = set()
        """The types in `tensor_types` whose tensors may be sparse, so that each tensor has to
        be checked."""
        # an adapter without gradients inherits the default method of the contract, which raises
        own = getattr(backend.value_and_grad, "__func__", None)
        self.has_gradients = own is not Gradients.value_and_grad
        self.xp: Any = None
        """The namespace made of these kernels, for functions that call others of the namespace,
        such as those of `linalg`. `Namespace` sets it."""
        self._programs: dict[Callable[..., Any], Callable[..., Any]] = {}
        """The compiled function for each function that `fused` was called with."""

    def kernel(self, name: str, dtype: Any) -> Callable[..., Any]:
        """Returns the kernel `name` for tensors of the framework's dtype `dtype`: the wrapped
        kernel if that dtype is computed in a wider one, otherwise the adapter's own function,
        or the default in `OPTIONAL` if the adapter has none."""
        # the wrapped kernel is left out for other dtypes, because it would look up the dtype at
        # each call
        completed = getattr(self.kernels, name)
        is_widened = dtype_name(dtype) in self.kernels.WIDER.get(name, ())
        return completed if is_widened else getattr(self.backend.namespace(), name, completed)  # type: ignore[no-any-return]

    # checks of tensors and dtypes

    def tensor(self, x: Any, function: str) -> Any:
        """Returns `x` if it is a dense tensor or a symbol of this backend, and the tensor in it
        if `x` is a variable. Raises `NotATensorError`, `ArgumentError` (another backend) or
        `UnsupportedError` (not dense) for anything else; `function` is the name in the
        error."""
        if type(x) in self.tensor_types:
            if type(x) in self.may_be_sparse and not self.backend.is_dense(x):
                raise self._sparse(x)
            return x
        # NumPy's scalars of float64 and complex128 are instances of float and complex, but
        # count as arrays
        if isinstance(x, NUMBERS) and not hasattr(x, "dtype"):
            raise NotATensorError(
                f"{function} takes {self.backend.name} tensors, not the number {shown(x)}; convert it with xp.asarray"
            )
        x = registry.as_array(x)
        owned = registry.kind_of(type(x))
        if owned is None:
            raise NotATensorError(
                f"{function} takes {self.backend.name} tensors, not {shown(x)} of type {type(x).__qualname__}; "
                "to make a tensor from numbers or lists, call xp.asarray"
            )
        # a tensor of another framework is not converted, because a program should notice it
        if owned.backend is not self.backend:
            raise ArgumentError(
                f"{function} of the {self.backend.name} namespace takes only its own tensors, not "
                f"{owned.backend.name} tensors; convert them with xdevice.convert(x, {self.backend.name!r}), or if "
                "you have called set_backend, call array_namespace again"
            )
        if owned.kind == "model":
            return self._tensor_of_variable(x, function)
        if owned.kind == "tensor":
            self._require_known(x)
        # from now on tensors and symbols of this type take the fast path
        self.tensor_types.add(type(x))
        return x

    def _tensor_of_variable(self, x: Any, function: str) -> Any:
        """Returns the tensor in a variable, such as a `tf.Variable`. Raises `NotATensorError`
        for any other model."""
        tensor = self.backend.tensor_of(x)
        if tensor is None:
            raise NotATensorError(
                f"{function} takes tensors, not models such as this object of type {type(x).__qualname__}"
            )
        return tensor

    def _require_known(self, x: Any) -> None:
        """Raises `UnsupportedError` if kernels do not take `x`, the first tensor of its type.
        Notes in `may_be_sparse` whether further tensors of the type have to be checked."""
        if not self.backend.is_dense(x):
            raise self._sparse(x)
        if self.kernels.require is not None:
            self.kernels.require(x)
        # an adapter whose framework has sparse tensors overrides `is_dense`
        if type(self.backend).is_dense is not Backend.is_dense:
            self.may_be_sparse.add(type(x))

    def is_plain(self, x: Any) -> bool:
        """Whether `x` is known to be a tensor of this backend, and dense as far as an attribute
        shows it. Such a tensor goes to the kernel without further checks."""
        return type(x) in self.tensor_types and (
            not self.layout_attribute or getattr(x, self.layout_attribute) is self.dense_layout
        )

    def _sparse(self, x: Any) -> UnsupportedError:
        """Returns the error for a tensor that is not dense."""
        return self.backend.unsupported(
            f"arithmetic on an object of type {type(x).__name__} that is not dense",
            "convert it to a dense tensor first",
        )

    def dtype_of(self, x: Any) -> str:
        """Returns the name of a tensor's dtype, such as "float32"."""
        return dtype_name(x.dtype)

    def supported_dtype(self, name: str) -> str:
        """Returns the dtype that this backend now uses for the dtype `name`: `name` itself, or int32 in place of int64
        on JAX without 64-bit. Raises `DTypeError` if there is none."""
        if name not in self.backend.dtypes:
            raise DTypeError(
                f"{self.backend.name} does not support {name}; it supports {', '.join(sorted(self.backend.dtypes))}"
            )
        refusal = self.backend.dtype_refusal(name)
        if refusal is None:
            return name
        # JAX without 64-bit has int32 wherever the standard has int64, such as for indices
        if name == "int64":
            return "int32"
        raise DTypeError(f"{self.backend.name} cannot use {name} here: {refusal}")

    def tensor_of_kinds(self, x: Any, kinds: str, function: str) -> Any:
        """Returns `x` as a tensor, like `tensor`. Raises `DTypeError` if the kind of its dtype
        is not among `kinds`, the letters of the kinds that the function takes, and the errors
        of `tensor`."""
        cls = type(x)
        # the fast path of `tensor`, repeated here because it saves a call for most tensors
        if cls not in self.tensor_types or (
            cls in self.may_be_sparse and not self.backend.is_dense(x)
        ):
            x = self.tensor(x, function)
        name = dtype_name(x.dtype)
        if dtypes.kind_of(name) not in kinds:
            raise self.kind_error(function, kinds, name)
        return x

    def kind_error(self, function: str, kinds: str, *names: str) -> DTypeError:
        """Returns the error for the dtypes `names`, of which at least one is not of the `kinds`
        that the function takes. The error proposes a dtype to cast to."""
        to = {dtypes.BOOL: "xp.bool", dtypes.INTEGER: "xp.int64"}.get(kinds, "xp.float32")
        # for bool, an integer is nearer than a float, unless the function takes only floats
        if set(names) == {"bool"} and kinds not in (dtypes.FLOATING, dtypes.REAL_FLOATING):
            to = "xp.int64"
        refused = " and ".join(dict.fromkeys(names))
        return DTypeError(
            f"{function} takes {dtypes.WORDS[kinds]}, not {refused}; cast the tensor with xp.astype(x, {to})"
        )

    def cast(self, x: Any, name: str) -> Any:
        """Returns `x` cast to the dtype `name`; `x` itself if it has that dtype."""
        return (
            x
            if self.dtype_of(x) == name
            else self.kernels.astype(x, self.supported_dtype(name))
        )

    def operands(self, function: str, kinds: str, values: Sequence[Any]) -> list[Any]:
        """Returns the operands `values` as tensors of their common dtype. A value is a tensor
        or a Python number; at least one is a tensor. Raises `DTypeError` if there is no common
        dtype or its kind is not among `kinds`, `DeviceMismatchError` for tensors on several
        devices (if `compares_devices`), and the errors of `tensor`."""
        # tensors, and Python numbers as they are
        tensors = [x if type(x) in NUMBERS else self.tensor(x, function) for x in values]
        # the first tensor decides the device of the numbers
        first = next((x for x in tensors if type(x) not in NUMBERS), None)
        if first is None:
            raise NotATensorError(
                f"{function} needs at least one tensor, but there is none in {shown(tuple(values))}; make one with "
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
            self.number(x, name, first) if type(x) in NUMBERS else self.cast(x, name)
            for x in tensors
        ]

    def operands_on_one_device(self, function: str, kinds: str, *values: Any) -> list[Any]:
        """Does the same as `operands`, and always raises `DeviceMismatchError` for tensors on two devices. On backends
        with `ONE_DEVICE`, `operands` leaves this check to the kernel; this method is for functions whose kernel might
        not raise."""
        tensors = self.operands(function, kinds, values)
        self.require_one_device(function, *tensors)
        return tensors

    def promoted(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns a list of the tensors, of which there is at least one, cast to their common
        dtype."""
        dtype = tensors[0].dtype
        if all([x.dtype is dtype for x in tensors]):  # noqa: C419  # a list takes half as long
            return list(tensors)
        name = self.common_dtype(map(self.dtype_of, tensors))
        return [self.cast(x, name) for x in tensors]

    def common_dtype(self, names: Iterable[str], numbers: Iterable[complex] = ()) -> str:
        """Returns the name of the common dtype of tensors with the dtypes `names`, and of
        Python numbers. Raises `DTypeError` if there is none."""
        name = reduce(dtypes.promoted, names)
        # numbers come after all tensors, because only the kind of a number matters, and only if
        # it is higher than that of the tensors
        for number in numbers:
            name = self.supported_dtype(dtypes.with_number(name, number))
        return name

    def number(self, value: complex, name: str, like: Any) -> Any:
        """Returns a Python number as a tensor without dimensions, of dtype `name`, on the
        device of `like`. Raises `DTypeError` if it does not fit into the dtype."""
        dtypes.require_fits(value, name)
        # PyTorch makes no tensor of an int with more than 64 bits
        if type(value) is int and dtypes.kind_of(name) == "f":
            value = float(value)
        return self.kernels.number(value, name, like)

    def constant(self, array: np.ndarray[Any, Any], like: Any) -> Any:
        """Returns the values of a NumPy array as a tensor on the device of `like`. Nothing else
        may write into the array, because the tensor may share its memory."""
        # indices that NumPy has computed are int64, which the backend may not have
        if array.dtype == "int64":
            array = array.astype(self.supported_dtype("int64"), copy=False)
        return self.kernels.constant(array, like)

    def gathered(self, x: Any, positions: np.ndarray[Any, Any]) -> Any:
        """Returns the elements of `x` at these positions in the flattened tensor, in the shape of `positions`."""
        flat = self.kernels.reshape(x, (-1,))
        # kernels are promised at least one index
        if positions.size:
            elements = self.kernels.take(flat, self.constant(positions.ravel(), x), 0)
        else:
            elements = self.kernels.sliced(flat, 0, 0, 0)
        return self.kernels.reshape(elements, positions.shape)

    def fused(
        self, function: Callable[..., Any], tensors: Sequence[Any], *settings: Any
    ) -> Any:
        """Returns `function(self, *tensors, *settings)`. On JAX this runs as one compiled program for each combination
        of settings, and so does its gradient; without this method, each small kernel would be a program of its own.
        The settings have to be hashable, because each combination is the key of a program."""
        fuse = self.kernels.fused
        # frameworks other than JAX gain nothing from it
        if fuse is None:
            return function(self, *tensors, *settings)
        program = self._programs.get(function)
        if program is None:
            program = self._programs[function] = fuse(partial(function, self))
        return program(tuple(tensors), *settings)

    # checks of values

    def has_values(self, x: Any) -> bool:
        """Whether `x` is a tensor, and not a symbol of a traced function."""
        owned = registry.kind_of(type(x))
        return owned is not None and owned.kind == "tensor"

    def require_values(self, x: Any, words: str) -> None:
        """Raises `UnsupportedError` for a symbol; `words` says in the error what it is, such as
        "the argument of nonzero"."""
        if not self.has_values(x):
            raise traced(self.backend, words)

    # checks of devices

    def require_one_device(self, function: str, *values: Any) -> None:
        """Raises `DeviceMismatchError` for tensors on several devices. Traced tensors have no
        device, and tensors that are spread over several devices are left to the framework."""
        # such a backend has one device
        if self.backend.is_host_only:
            return
        try:
            if self.are_together(values):
                return
            # symbols are left out
            tensors = [x for x in values if type(x) in registry.probes]
            devices = [self.backend.operand_device(x) for x in tensors]
        # a tensor that is spread over several devices has no device of its own
        except UnsupportedError:
            return
        for device, x in zip(devices, tensors, strict=True):
            if device is not devices[0]:
                raise DeviceMismatchError(
                    f"{function}: a tensor of shape {shape_of(x)} is on {device}, but the first tensor, of shape "
                    f"{shape_of(tensors[0])}, is on {devices[0]}; move all to one device: xdevice.to_device(x, "
                    f"{str(devices[0])!r}){operators_compute_elsewhere(self.backend)}"
                )

    def are_together(self, values: Sequence[Any]) -> bool:
        """Whether `values` are tensors of one type and on one device. This is a quick test: if
        it is False, they may still fit together, such as a variable and a tensor."""
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
        or are not dense; returns None otherwise. It is called after a kernel has raised an error, to find the reason,
        and not before, because these checks take as long as a small operation."""
        tensors = [self.tensor(x, function) for x in values if hasattr(x, "shape")]
        if tensors:
            self.require_one_device(function, *tensors)
        require_broadcast(function, *tensors)

    # checks of shapes and axes

    def full_shape(self, x: Any, function: str) -> tuple[int, ...]:
        """Returns the shape of `x` for a function that needs all sizes. Raises
        `UnsupportedError` if a size is not known while a function is traced."""
        return self.require_known(shape_of(x), function)

    def require_known(self, shape: tuple[Any, ...], function: str) -> tuple[int, ...]:
        """Returns `shape`. Raises `UnsupportedError` if a size in it is None, which means that
        it is not known."""
        if None in shape:
            raise self.backend.unsupported(
                f"{function} on the shape {shape}, which has a size that is unknown while the function is traced",
                "trace the function with a shape in which every size is known",
            )
        return shape

    def element_count(self, x: Any, axes: Sequence[int], name: str) -> Any:
        """Returns the number of elements along `axes` as a tensor of dtype `name`. The backend computes the number,
        because a length may be unknown while a function is traced."""
        # sums of ones along these axes
        ones = self.kernels.full_like(x, 1, name)
        counts = self.cast(self.kernels.sum(ones, tuple(axes), False), name)
        remaining_axes = len(x.shape) - len(axes)
        # all of these counts are equal, so their maximum is the number
        return (
            self.kernels.max(counts, tuple(range(remaining_axes)), False)
            if remaining_axes
            else counts
        )

    def axis(self, axis: Any, ndim: int, function: str) -> int:
        """Returns the index of the axis, counted from the front. Raises `AxisError` if a tensor of `ndim` dimensions
        has no such axis, and `ShapeError` if `axis` is not an int."""
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

    def axes(self, axis: Any, ndim: int, function: str) -> tuple[int, ...]:
        """Returns the axes of a tensor of `ndim` dimensions, counted from the front, as a tuple
        in ascending order; all axes if `axis` is None. Raises `ShapeError` if an axis is named
        twice, and the errors of `axis`."""
        if axis is None:
            return tuple(range(ndim))
        if type(axis) is int:
            return (self.axis(axis, ndim, function),)
        axes = [self.axis(item, ndim, function) for item in as_tuple(axis)]
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{function}: the same axis appears twice in {shown(axis)}")
        # the contract promises kernels ascending axes
        return tuple(sorted(axes))


def reduction(
    function: str, compute: Callable[[Checks, str, Any, Any, bool], Any]
) -> Callable[..., Any]:
    """Returns the function named `function` of the standard, which takes a tensor, an axis and
    `keepdims`, and calls `compute(checks, function, x, axis, keepdims)`. Arguments of other
    names, such as `dim`, raise an error that says which ones there are."""

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
    """Returns the shape of `x` as a tuple. A size that is not known while a function is traced
    is None."""
    shape = x.shape
    # frameworks have their own types for shapes; Paddle has -1 for a size that is not known
    if isinstance(shape, tuple) and -1 not in shape:
        return tuple(shape)
    return tuple([None if length is None or length < 0 else length for length in shape])


def with_lengths(shape: tuple[Any, ...], axis: int, *lengths: int | None) -> tuple[Any, ...]:
    """Returns the shape with the axis replaced by axes of these lengths: no length removes it,
    two split it."""
    return (*shape[:axis], *lengths, *shape[axis + 1 :])


def broadcast_shape(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the shape that tensors of these shapes broadcast to. Raises `ShapeError` if they
    do not broadcast together."""
    if len({*shapes}) == 1:
        return shapes[0]
    # written with lists, which torch.compile can trace
    ndim = max([0, *[len(shape) for shape in shapes]])
    rows = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*rows, strict=True):
        # the lengths other than 1 have to be equal; None, a length that is not known, may be
        # any
        others = {length for length in sizes if length != 1}
        if len(others - {None}) > 1:
            raise ShapeError(
                f"the shapes {', '.join(map(str, shapes))} cannot be broadcast together; counted from the end, lengths "
                "must be equal or 1"
            )
        # a known length comes before None; without any, the length is 1
        result.append(next(iter(sorted(others, key=lambda length: length is None)), 1))
    return tuple(result)


def require_broadcast(function: str, *values: Any) -> None:
    """Raises `ShapeError`, with the function's name, for tensors that do not broadcast
    together."""
    shapes = [shape_of(x) for x in values]
    try:
        broadcast_shape(*shapes)
    except ShapeError as error:
        raise ShapeError(f"{function}: {error}") from None
