"""The kernels (functions on tensors) that `Backend.namespace()` returns, and from which
`xdevice.array_namespace` is built.

A kernel has the name of its function in the Python Array API standard and has less to do,
because the core promises that

- tensors are dense and of this backend, and all operands of one call have one dtype, which the
  standard allows for that function; only conditions (bool) and indices (integers) have another
  dtype;
- a Python number comes only as the second operand of a kernel that `TAKE_NUMBERS` names, as a
  float next to a tensor of floats;
- `axis` is counted from the front and exists; `axes` is a tuple of such axes, ascending and not
  empty. For `sum` it may be None, which means all axes; for `permute_dims` it is the new order
  of all axes;
- a shape is a tuple with the right number of elements; it contains -1 only if a size is not
  known while a function is traced;
- `max`, `min`, `argmax` and `argmin` get tensors with elements, `sort` and `argsort` tensors
  with elements and at least one dimension;
- indices are int32 or int64, in range and counted from the front. Those of `take` are a vector;
  those of `take_along_axis` have the shape of `x`, except along the axis.

A kernel returns the values that the standard prescribes: NaN propagates, tensors without
dimensions or without elements are treated like any others, and the result is on the device of
the operands. Gradients flow if the framework has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.base.devices import Device

CONSTANT: Final = ("TAKE_NUMBERS", "RESHAPE_IS_VIEW", "TAKES_MASKS")
"""The constants that each adapter's module of kernels must have. `TAKE_NUMBERS` is a frozenset
of the kernels of two tensors whose second operand may be a Python float. `RESHAPE_IS_VIEW` is
True if `reshape` makes a view wherever the strides allow it. `TAKES_MASKS` is True if a tensor
of bool may be an index of a tensor."""

# the kernels that each adapter must have are in five groups: MAKING, ELEMENTWISE, REDUCING,
# ALONG and SHAPING
MAKING: Final = (
    "dtype",  # dtype(name): the framework's own dtype
    "astype",  # astype(x, name): a new tensor of a dtype
    # constant(array, like): the values of a NumPy array where `like` is; it may keep the
    # array's memory
    "constant",
    "copy",  # copy(x): new storage
    "full_like",  # full_like(x, value, name): a tensor of the shape of `x` where `x` is
    "number",  # number(value, name, like): a tensor without dimensions where `like` is
)

# by their names in the standard, which says what each computes; a kernel has only the
# positional arguments
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
    "argsort",  # argsort(x, axis, descending): stable
    "cumulative_prod",  # cumulative_prod(x, axis)
    "cumulative_sum",  # cumulative_sum(x, axis)
    # searchsorted(x1, x2, side): indices into the sorted vector `x1`; neither of the two is
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
    # matmul(x1, x2): matrices, or stacks of them; for vectors and for shapes that do not fit it
    # may raise
    "matmul",
    "permute_dims",  # permute_dims(x, axes)
    "reshape",  # reshape(x, shape)
    # roll(x, shifts, axes): each shift is less than the length of its axis; the axes may be in
    # any order
    "roll",
    "squeeze",  # squeeze(x, axes)
    "stack",  # stack(tensors, axis)
    "unstack",  # unstack(x, axis)
    "view",  # view(x, shape): reshape that raises ValueError where it must copy
)

COMPLEX: Final = ("conj", "imag", "real")
"""Further kernels, for complex tensors; only a backend with complex dtypes needs them."""

HOST: Final = "numpy"
"""The name of the backend that computes on the host what a framework cannot. It is used as a
value in `WIDER` (see `OPTIONAL`)."""

PLACES: Final = frozenset(["argmax", "argmin", "argsort", "searchsorted"])
"""The kernels whose results are indices, whatever the dtype of their operands is."""

COMPOSED: Final = (
    "cross",  # cross(x1, x2, axis): both have the same shape, with 3 elements along the axis
    # diagonal(x, k): of the matrices in the last two axes, as with `tril` and `triu`
    "diagonal",
    "hypot",  # hypot(x1, x2): without overflow
    # logaddexp(x1, x2): without overflow, and with gradients where both are one infinity
    "logaddexp",
    # nonzero(x): a tuple with the indices of the nonzero elements along each axis, as int64
    "nonzero",
    # norm(x, axes, keepdims): the root of the sum of squares, of floats or complex numbers
    "norm",
    "repeat",  # repeat(x, times, axis)
    "tril",  # tril(x, k)
    "triu",  # triu(x, k)
)
"""Optional kernels, which the core builds from others if they are missing."""

OPTIONAL: Final = {
    # if the tensors of one type may be sparse or dense, and kernels take both: the name of an
    # attribute of tensors, and its value in dense tensors, which is compared with `is`
    "DENSE": ("", None),
    # if True, a kernel raises for tensors on several devices, and the core compares their devices only after a kernel
    # has failed; otherwise each time
    "ONE_DEVICE": False,
    # if True, `argmax` and `argmin` may pass over NaN, and the core looks for it
    "SKIPS_NAN": False,
    # by the name of a kernel, a dict of the dtypes that the framework does not support there.
    # Each is mapped to the wider dtype in which the core computes it instead, or to `HOST` if
    # NumPy computes it on the host
    "WIDER": {},
    # clip(x, min, max): of real numbers; the bounds are Python numbers that fit, or None
    "clip": None,
    # einsum(subscripts, *tensors): of tensors of floats with at least one axis each. The
    # subscripts are letters and end in "->" and those of the result; no operand has a letter
    # twice, and axes with the same letter are equally long
    "einsum": None,
    # enter(): called when a program gets the namespace; prepares the calling thread for the
    # kernels
    "enter": None,
    # an object with the Fourier transforms along one axis: `fft`, `ifft`, `irfft` and `rfft`, each with the arguments
    # (x, n, axis, norm). All but `rfft` and `rfftn` get complex tensors; they may give another precision. It may have
    # `fftn`, `ifftn`, `irfftn` and `rfftn` with (x, lengths, axes, norm); else the core goes axis by axis
    "fft": None,
    # fused(function): returns a function that computes the same as one program. Its arguments
    # are a tuple of the tensors, and then the settings, which are hashable. Without it the core
    # calls the kernels one by one
    "fused": None,
    # leave(): called at the end of a pytest test for every backend; undoes `enter` in the calling thread
    "leave": None,
    # an object with factorizations, of matrices or stacks of them, in floats of 32 and 64 bits and complex:
    # `cholesky(x)`, `det(x)`, `eig(x)` of a complex one, `eigh(x)`, `eigvalsh(x)`, `inv(x)`, `qr(x, mode)`,
    # `slogdet(x)`, `solve(x1, x2)`, `svd(x, full_matrices)` and `svdvals(x)`, as the standard has them. Those that are
    # missing are refused by name
    "linalg": None,
    # put(x, indices, values): a copy of the vector `x` with other values at some indices, none
    # of which occurs twice; differentiable in `x` and `values`
    "put": None,
    # require(x): raises for a tensor of a type that the kernels do not take; called with the
    # first tensor of each type
    "require": None,
    # settled(result): returns the result of an elementwise kernel of two tensors as a tensor,
    # for a framework whose kernels may return something else, as NumPy's return scalars
    "settled": None,
}
"""Other names that a namespace may have, each with its default value."""

OF_NUMBERS: Final = (
    *ELEMENTWISE, *REDUCING, *PLACES, "cumulative_prod", "cumulative_sum", "flip", "matmul", "roll", "sort", "take",
    "take_along_axis",
)  # fmt: skip
"""The kernels that `WIDER` may name, in addition to `put`, `clip` and those in `COMPOSED`."""

KERNELS: Final = (*MAKING, *ELEMENTWISE, *REDUCING, *ALONG, *SHAPING)


class Scopes(NamedTuple):
    """Functions that remove the scopes of devices (`with device:`) for a while, because the
    framework runs code of each open scope at every operation and every attribute of a
    tensor."""

    are_open: Callable[[], object]
    """Returns a true value if this thread is inside any scope. It is the framework's own
    function, because each call of the namespace runs it."""
    set_aside: Callable[[], Sequence[Any]]
    """Removes the scopes from this thread and returns them. If something else in the program
    also watches each operation, removes none and returns an empty sequence."""
    put_back: Callable[[Sequence[Any]], None]
    """Opens again the scopes that `set_aside` returned, in their former order."""


class Arithmetic(Primitives):
    """The capability of computing with tensors: kernels (functions on tensors) for arithmetic
    and for neural networks. The core calls them only with arguments that keep the promises
    written in this module and in the module `nn`."""

    needs: ClassVar[tuple[str, ...]] = ("namespace",)
    scopes: ClassVar[Scopes | None] = None
    """The functions with which the core removes the framework's scopes of devices for a while;
    None if these scopes do not slow down calls inside them."""

    def namespace(self) -> Any:
        """Returns the kernels that `xdevice.array_namespace` is built from, as attributes of a
        module or object. The docstring of `xdevice.math.contract.arithmetic` says what the core
        promises a kernel, and what a kernel must return."""
        raise self.unsupported("array namespaces", "use the framework's own functions")

    def operand_device(self, x: Any) -> Device:
        """Returns the device of `x` for the check that all operands are on one device. It
        differs from `device_of(x)` if the framework itself copies such a tensor to the device
        of the other operands."""
        return self.device_of(x)

    def nn(self) -> Any:
        """Returns the kernels that `xdevice.nn` is built from, as attributes of a module or
        object. The docstring of `xdevice.math.contract.nn` says what the core promises a
        kernel, and what a kernel must return. Only called on a backend that also implements
        `namespace`."""
        raise self.unsupported("neural-network functions", "use the framework's own functions")
