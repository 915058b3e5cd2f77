"""The kernels (functions on tensors) that `Backend.namespace()` returns. The functions of `xdevice.array_namespace` are
built from these kernels.

A kernel has the same name as a function of the Python Array API standard, but needs fewer checks
than that function, because the core makes the following promises:

- tensors are dense and belong to this backend; all operands of a call have the same dtype, which the standard allows
  for that function; only conditions (bool) and indices (integers) may have a different dtype;
- a Python number occurs only as the second operand of a kernel that `TAKE_NUMBERS` names; the
  number is a float, and the first operand is a tensor of floats;
- `axis` is the non-negative index of an axis that exists; `axes` is a non-empty tuple of such
  indices in ascending order. For `sum`, `axes` may be None, which means all axes; for
  `permute_dims`, it is the new order of all axes;
- a shape is a tuple with the right number of elements; it contains -1 only if a size is unknown
  while a function is traced;
- `max`, `min`, `argmax` and `argmin` are called with non-empty tensors, and `sort` and `argsort` with non-empty tensors
  of at least one dimension;
- indices are int32 or int64, non-negative and in range. The indices of `take` are a vector; the indices of
  `take_along_axis` have the shape of `x`, except along the axis.

A kernel returns the values that the standard prescribes: NaN propagates, tensors without
dimensions or without elements are treated like all other tensors, and the result is on the device
of the operands. If the framework has gradients, they flow through the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.base.devices import Device

CONSTANT: Final = ("TAKE_NUMBERS", "RESHAPE_IS_VIEW", "TAKES_MASKS")
"""The constants that each adapter's module of kernels must have. `TAKE_NUMBERS` is a frozenset with the names of
those kernels of two operands whose second operand may be a Python float. `RESHAPE_IS_VIEW` is True if `reshape`
returns a view whenever the strides allow it. `TAKES_MASKS` is True if a bool tensor may be used as an index of a
tensor."""

# the kernels that each adapter must have are in five groups: MAKING, ELEMENTWISE, REDUCING,
# ALONG and SHAPING
MAKING: Final = (
    "dtype",  # dtype(name): the framework's own dtype
    "astype",  # astype(x, name): a new tensor of the dtype `name`
    # constant(array, like): the values of a NumPy array as a tensor on the device of `like`,
    # which may share the array's memory
    "constant",
    "copy",  # copy(x): a copy in new storage
    "full_like",  # full_like(x, value, name): a tensor with the shape and device of `x`
    # number(value, name, like): a 0-d tensor on the device of `like`
    "number",
)

# these kernels have their names in the standard, which says what each function computes; a
# kernel has only the positional arguments of that function
ELEMENTWISE: Final = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "copysign", "cos", "cosh",
    "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "isfinite", "isinf",
    "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal", "pow", "reciprocal",
    "remainder", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
    "where",
)  # fmt: skip

REDUCING: Final = ("all", "any", "max", "mean", "min", "prod", "sum")
"""The kernels with the arguments `(x, axes, keepdims)`."""

# kernels that work along one axis
ALONG: Final = (
    "argmax",  # argmax(x, axis)
    "argmin",  # argmin(x, axis)
    "argsort",  # argsort(x, axis, descending): the sort is stable
    "cumulative_prod",  # cumulative_prod(x, axis)
    "cumulative_sum",  # cumulative_sum(x, axis)
    # searchsorted(x1, x2, side): indices into the sorted vector `x1`; neither `x1` nor `x2` is
    # empty
    "searchsorted",
    "sliced",  # sliced(x, axis, start, stop)
    "sort",  # sort(x, axis, descending)
    "take",  # take(x, indices, axis)
    "take_along_axis",  # take_along_axis(x, indices, axis)
)

SHAPING: Final = (
    "broadcast_to",  # broadcast_to(x, shape)
    "concat",  # concat(tensors, axis)
    "expand_dims",  # expand_dims(x, axis)
    "flip",  # flip(x, axes)
    # matmul(x1, x2): the product of matrices or of stacks of matrices; may raise for vectors,
    # and for shapes that do not match
    "matmul",
    "permute_dims",  # permute_dims(x, axes)
    "reshape",  # reshape(x, shape)
    # roll(x, shifts, axes): each shift is less than the length of its axis; the axes may be in
    # any order
    "roll",
    "squeeze",  # squeeze(x, axes)
    "stack",  # stack(tensors, axis)
    "unstack",  # unstack(x, axis)
    "view",  # view(x, shape): `reshape`, but raises ValueError if it must copy
)

COMPLEX: Final = ("conj", "imag", "real")
"""Additional kernels, for complex tensors. Only a backend with complex dtypes needs these kernels."""

HOST: Final = "numpy"
"""The name of the backend that computes on the host if a framework does not support a dtype. The name is used as a
value in `WIDER` (see `OPTIONAL`)."""

PLACES: Final = frozenset(["argmax", "argmin", "argsort", "searchsorted"])
"""The kernels that return indices, regardless of the dtype of their operands."""

COMPOSED: Final = (
    "cross",  # cross(x1, x2, axis): both have the same shape, with 3 elements along the axis
    # diagonal(x, k): the diagonals of the matrices in the last two axes, which `tril` and
    # `triu` also use
    "diagonal",
    "hypot",  # hypot(x1, x2): without overflow
    # logaddexp(x1, x2): without overflow, and with gradients even if both are the same infinity
    "logaddexp",
    # nonzero(x): a tuple with the indices of the nonzero elements along each axis, as int64
    "nonzero",
    # norm(x, axes, keepdims): the root of the sum of squares of floats or complex numbers
    "norm",
    "repeat",  # repeat(x, times, axis)
    "tril",  # tril(x, k)
    "triu",  # triu(x, k)
)
"""Optional kernels, which the core builds from other kernels if an adapter lacks them."""

OPTIONAL: Final = {
    # needed if tensors of the same type may be sparse or dense, and kernels accept both: the
    # name of an attribute of tensors, and the value of the attribute in dense tensors, which is
    # compared with `is`
    "DENSE": ("", None),
    # if True, every kernel raises for tensors on several devices, and the core compares the
    # devices only after a kernel has failed; if False, the core compares the devices before
    # each call
    "ONE_DEVICE": False,
    # if True, `argmax` and `argmin` may ignore NaN, so the core searches for NaN itself
    "SKIPS_NAN": False,
    # maps the name of a kernel to a dict of those dtypes that the framework does not support
    # for that kernel. The dict maps each of these dtypes to the wider dtype in which the core
    # computes instead, or to `HOST` if NumPy computes on the host
    "WIDER": {},
    # clip(x, min, max): clips real numbers; the bounds are None, or Python numbers that fit
    # into the dtype
    "clip": None,
    # einsum(subscripts, *tensors): the tensors contain floats, and have at least one axis each.
    # The subscripts consist of the letters of the operands, "->" and the letters of the result.
    # No letter occurs twice in an operand, and axes with the same letter are equally long
    "einsum": None,
    # enter(): prepares the calling thread for the kernels; called when a program obtains the
    # namespace
    "enter": None,
    # an object with the Fourier transforms along one axis: `fft`, `ifft`, `irfft` and `rfft`,
    # each with the arguments (x, n, axis, norm). All except `rfft` and `rfftn` are called with
    # complex tensors. The precision of a result may differ from that of `x`. The object may
    # also have `fftn`, `ifftn`, `irfftn` and `rfftn`, with the arguments (x, lengths, axes,
    # norm); if it lacks them, the core transforms along one axis after another
    "fft": None,
    # fused(function): returns a function that runs `function(*tensors, *settings)` as one
    # compiled program, with the same result. It is called with a tuple of the tensors, followed
    # by the settings, which are hashable. If this is None, the core calls the kernels one by one
    "fused": None,
    # leave(): undoes `enter` in the calling thread; called for every backend at the end of a
    # pytest test
    "leave": None,
    # an object with the standard's functions for matrices and stacks of matrices, of floats of
    # 32 and 64 bits and complex numbers: `cholesky(x)`, `det(x)`, `eig(x)` (called only with
    # complex matrices), `eigh(x)`, `eigvalsh(x)`, `inv(x)`, `qr(x, mode)`, `slogdet(x)`,
    # `solve(x1, x2)`, `svd(x, full_matrices)` and `svdvals(x)`. If a function is missing, a
    # call of that function raises an error that names it
    "linalg": None,
    # put(x, indices, values): a copy of the vector `x`, with `values` at the given indices,
    # none of which occurs twice; differentiable in `x` and `values`
    "put": None,
    # require(x): raises an error if the kernels do not accept tensors of the type of `x`;
    # called with the first tensor of each type
    "require": None,
    # settled(result): converts the result of an elementwise kernel of two tensors to a tensor,
    # for a framework whose kernels may return another type; for example, NumPy's kernels may
    # return scalars
    "settled": None,
}
"""Other attributes that an adapter's namespace may have, each with its default value."""

OF_NUMBERS: Final = (
    *ELEMENTWISE, *REDUCING, *PLACES, "cumulative_prod", "cumulative_sum", "flip", "matmul", "roll", "sort", "take",
    "take_along_axis",
)  # fmt: skip
"""The kernels that `WIDER` may name, in addition to `put`, `clip` and the kernels in `COMPOSED`."""

KERNELS: Final = (*MAKING, *ELEMENTWISE, *REDUCING, *ALONG, *SHAPING)


class Scopes(NamedTuple):
    """Functions that temporarily remove the open scopes of devices (`with device:`) from the framework. Scopes cost
    time, because the framework runs code of each open scope at every operation, and whenever an attribute of a tensor
    is read."""

    are_open: Callable[[], object]
    """Returns a true value if this thread is inside any scope. Every call of a namespace's function runs it. To save
    time, it is the framework's own function and not a wrapper."""
    set_aside: Callable[[], Sequence[Any]]
    """Removes the scopes from this thread and returns them. If other code in the program also observes each
    operation, removes no scopes and returns an empty sequence."""
    put_back: Callable[[Sequence[Any]], None]
    """Reopens the scopes that `set_aside` returned, in their former order."""


class Arithmetic(Primitives):
    """The capability to compute with tensors, through kernels (functions on tensors) for arithmetic and for neural
    networks. The core calls kernels only with arguments that satisfy the promises in the docstrings of this module and
    of the module `nn`."""

    needs: ClassVar[tuple[str, ...]] = ("namespace",)
    scopes: ClassVar[Scopes | None] = None
    """The functions with which the core temporarily removes the framework's scopes of devices; None if these scopes
    do not slow down the calls inside them."""

    def namespace(self) -> Any:
        """Returns a module or object with the kernels of `xdevice.array_namespace` as its attributes. The docstring of
        `xdevice.math.contract.arithmetic` lists the core's promises to kernels, and says what a kernel must return."""
        raise self.unsupported("array namespaces", "use the framework's own functions")

    def operand_device(self, x: Any) -> Device:
        """Returns the device of `x`, for the check that all operands are on the same device. The result differs from
        `device_of(x)` if the framework itself copies `x` to the device of the other operands."""
        return self.device_of(x)

    def nn(self) -> Any:
        """Returns a module or object with the kernels of `xdevice.nn` as its attributes. The docstring of
        `xdevice.math.contract.nn` lists the core's promises to kernels, and says what a kernel must return. This method
        is called only on a backend that also implements `namespace`."""
        raise self.unsupported("neural-network functions", "use the framework's own functions")
