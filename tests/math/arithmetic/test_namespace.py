"""Every name of the namespace, on every backend, against NumPy: dtype, shape and values, at the edges too."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from helpers.environment import SHIMS, sampled, with_64_bit
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import xdevice

BACKENDS = sampled(
    xdevice.backends(), each_time=("numpy", "torch"), slow=SHIMS, others="long"
)  # JAX compiles each shape
FLOATS = ("float32", "float64")
INTS = ("int32", "int64")
REAL = (*FLOATS, *INTS)
ALL = (*REAL, "bool")
EXAMPLES = [5, pytest.param(200, marks=pytest.mark.long)]


@pytest.fixture(params=BACKENDS, scope="module")
def name(request):
    return request.param


@pytest.fixture
def xp(name):
    """The namespace of a backend, with 64 bits in JAX."""
    with xdevice.use_backend(name), with_64_bit(name):
        yield xdevice.array_namespace()


def test_a_wrong_keyword_is_told_by_the_functions_name(xp):
    with pytest.raises(
        TypeError, match=r"^matmul\(\) got an unexpected keyword argument 'dim'"
    ):
        xp.matmul(xp.ones(2), xp.ones(2), dim=0)
    for name in ("sum", "max", "concat"):
        with pytest.raises(TypeError, match=rf"^xp\.{name} has no argument 'dim': write axis="):
            getattr(xp, name)(xp.ones(2), dim=0)


# values


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 2.0**-10, 2.0**-99, 80.0,
    0.10000000149011612, math.inf, -math.inf, math.nan,
]  # fmt: skip  # the third last is 0.1 in float32
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def elements(dtype):
    if dtype in FLOATS:
        return st.sampled_from(SPECIAL) | st.floats(-5, 5, width=32, allow_subnormal=False)
    return st.booleans() if dtype == "bool" else st.integers(-6, 6)


def arrays(dtypes, shapes=SHAPES):
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: hnp.arrays(dtype, shapes, elements=elements(dtype))
    )


@st.composite
def pairs(draw, dtypes, mixed=True):
    """Two arrays that broadcast, of one dtype or of two of one kind."""
    shapes = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)
    ).input_shapes
    first = draw(st.sampled_from(dtypes))
    kinds = [dtype for dtype in dtypes if np.dtype(dtype).kind == np.dtype(first).kind]
    second = draw(st.sampled_from(kinds)) if mixed else first
    return [
        draw(hnp.arrays(dtype, shape, elements=elements(dtype)))
        for dtype, shape in zip((first, second), shapes, strict=True)
    ]


def close(got, wanted, dtype=None):
    """The same dtype, shape and values; rounding may differ in the last bits."""
    wanted = np.asarray(wanted)
    got = xdevice.to_numpy(got)
    assert got.dtype == (wanted.dtype if dtype is None else dtype), (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape
    if got.dtype.kind == "f":
        rtol = 3e-5 if got.dtype == "float32" else 1e-12
        np.testing.assert_allclose(got, wanted.astype(got.dtype), rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(got, wanted)


def silently(function, *args, **kwargs):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def each(strategy, examples):
    """Runs a check over examples, the same ones each time."""

    def run(check):
        settings(max_examples=examples, deadline=None, derandomize=True, database=None)(
            given(strategy)(check)
        )()

    return run


UNARY = {
    "abs": REAL, "acos": FLOATS, "acosh": FLOATS, "asin": FLOATS, "asinh": FLOATS, "atan": FLOATS, "atanh": FLOATS,
    "ceil": REAL, "cos": FLOATS, "cosh": FLOATS, "exp": FLOATS, "expm1": FLOATS, "floor": REAL, "isfinite": REAL,
    "isinf": REAL, "isnan": REAL, "log": FLOATS, "log10": FLOATS, "log1p": FLOATS, "log2": FLOATS,
    "logical_not": ["bool"], "negative": REAL, "positive": REAL, "reciprocal": FLOATS, "round": REAL, "sign": REAL,
    "sin": FLOATS, "sinh": FLOATS, "sqrt": FLOATS, "square": REAL, "tan": FLOATS, "tanh": FLOATS, "trunc": REAL,
}  # fmt: skip
BINARY = {
    "add": REAL, "atan2": FLOATS, "divide": FLOATS, "equal": ALL, "floor_divide": REAL, "greater": REAL,
    "greater_equal": REAL, "less": REAL, "less_equal": REAL, "logical_and": ["bool"], "logical_or": ["bool"],
    "logical_xor": ["bool"], "maximum": REAL, "minimum": REAL, "multiply": REAL, "not_equal": ALL, "pow": REAL,
    "remainder": REAL, "subtract": REAL,
}  # fmt: skip
NUMPYS = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
    "atan2": "arctan2", "pow": "power",
}  # fmt: skip


def of_numpy(function):
    return getattr(np, NUMPYS.get(function, function))


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("function", UNARY)
def test_functions_of_one(xp, function, examples):
    wholes = function in ("ceil", "floor", "round", "trunc")

    @each(arrays(UNARY[function]), examples)
    def _(x):
        wanted = x if wholes and x.dtype.kind == "i" else silently(of_numpy(function), x)
        close(getattr(xp, function)(xp.asarray(x, dtype=x.dtype)), wanted)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("function", BINARY)
def test_functions_of_two(xp, function, examples):
    @each(pairs(BINARY[function]), examples)
    def _(xs):
        x1, x2 = xs
        if x1.dtype.kind == "i":
            if function in ("floor_divide", "remainder"):
                x2[x2 == 0] = 2  # which the standard leaves open
            if function == "pow":
                x2 = np.abs(x2)
        common = np.promote_types(x1.dtype, x2.dtype)
        wanted = silently(of_numpy(function), x1.astype(common), x2.astype(common))
        close(
            getattr(xp, function)(
                xp.asarray(x1, dtype=x1.dtype), xp.asarray(x2, dtype=x2.dtype)
            ),
            wanted,
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_elements_are_as_one(xp, dtype):
    """Vector registers have code of their own: there Paddle's sqrt of infinity is NaN."""
    x1, x2 = (half.ravel() for half in np.meshgrid(*[np.asarray(SPECIAL, dtype)] * 2))
    y1, y2 = (xp.asarray(x, dtype=x.dtype) for x in (x1, x2))
    for function in UNARY:
        if dtype in UNARY[function]:
            close(silently(getattr(xp, function), y1), silently(of_numpy(function), x1))
    for function in BINARY:
        if dtype in BINARY[function]:
            close(silently(getattr(xp, function), y1, y2), silently(of_numpy(function), x1, x2))


@pytest.mark.parametrize(
    "function", ["sum", "mean", "std", "prod", "max", "min", "argmax", "argmin"]
)
def test_special_values_among_many(xp, function):
    """MXNet's sum of an infinity and a number is NaN, as it carries what rounding took away."""
    for special in (
        [math.inf],
        [math.inf] * 3,
        [math.inf, -math.inf],
        [math.nan, math.inf],
        [math.nan] * 2,
    ):
        for length in (3, 8, 19):
            x = np.linspace(-1, 1, length, dtype="float32")
            x[: len(special)] = special
            close(
                silently(getattr(xp, function), xp.asarray(x)), silently(of_numpy(function), x)
            )


# no float32 holds the first, no float64 the others
WHOLE = {
    "int32": [2**24 + 1, 2**31 - 1, -(2**31), 7, -3],
    "int64": [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 7],
}


@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_are_not_rounded(xp, dtype):
    x = np.asarray(WHOLE[dtype], dtype)
    here, held = xp.asarray(x, dtype=x.dtype), getattr(xp, dtype)
    x2, many = np.broadcast_arrays(x[:, None], x)
    y2 = xp.reshape(here, (-1, 1))
    for function in (
        "equal",
        "greater",
        "less_equal",
        "maximum",
        "minimum",
        "add",
        "subtract",
        "multiply",
    ):
        close(getattr(xp, function)(here, y2), silently(getattr(np, function), many, x2))
    for function in ("floor_divide", "remainder"):
        close(
            getattr(xp, function)(here, xp.asarray(7, dtype=held)),
            getattr(np, function)(x, np.asarray(7, dtype)),
        )
    least = x != np.iinfo(dtype).min
    close(xp.abs(xp.asarray(x[least], dtype=x.dtype)), np.abs(x[least]))
    for base, exponents in (
        (3, [0, 1, 20, 39 if dtype == "int64" else 19]),
        (-1, [63, 64, 101]),
        (WHOLE[dtype][0], [1]),
    ):
        powers = np.asarray([base**exponent for exponent in exponents], "int64")
        if dtype == "int64" or abs(powers).max() < 2**31:
            close(
                xp.pow(xp.full((), base, dtype=held), xp.asarray(exponents, dtype=held)),
                powers.astype(dtype),
            )
    for function in (
        "max",
        "min",
        "argmax",
        "argmin",
        "sort",
        "argsort",
        "flip",
        "positive",
        "sum",
        "cumulative_sum",
    ):
        wanted = getattr(np, {"cumulative_sum": "cumsum"}.get(function, function))(x)
        close(getattr(xp, function)(here), wanted, "int64" if "sum" in function else None)
    root = math.isqrt(np.iinfo(dtype).max)
    close(xp.square(xp.asarray([root], dtype=held)), np.asarray([root * root], dtype))
    places = xp.asarray([0, 3, -1])
    for made, wanted in (
        (xp.take(here, places), x[[0, 3, -1]]),
        (xp.take_along_axis(here, places), x[[0, 3, -1]]),
        (xp.where(xp.less(here, 0), here, x.item(0)), np.where(x < 0, x, x[0])),
        (xp.concat([here, here]), np.tile(x, 2)),
        (xp.full((1,), x.item(0), dtype=held), x[:1]),
        (xp.full_like(here, x.item(0)), np.full_like(x, x[0])),
        (xp.clip(here, None, x.item(0)), np.minimum(x, x[0])),
        (xp.matmul(here, xp.ones_like(here)), x.sum(dtype=dtype)),
        (xp.astype(here, xp.float64), x.astype("float64")),
    ):
        close(made, wanted)


WITH_NUMBER = [
    ("bool", True, "bool"), ("bool", 2, "int64"), ("bool", 1.5, "float32"), ("int32", 2, "int32"),
    ("int32", 1.5, "float32"), ("int64", 2, "int64"), ("int64", 1.5, "float32"), ("float32", 2, "float32"),
    ("float32", 1.5, "float32"), ("float64", 2, "float64"), ("float64", 1.5, "float64"),
    ("float32", True, "float32"), ("float32", math.nan, "float32"), ("float64", -math.inf, "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "number", "result"), WITH_NUMBER)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_numbers_of_python(xp, dtype, number, result, shape):
    x = np.full(shape, 1, dtype)
    here = xp.asarray(x, dtype=dtype)
    for function in ("equal", "maximum", "add", "multiply", "subtract", "less"):
        if result == "bool" and function != "equal":
            continue
        for order in (1, -1):
            wanted = silently(
                of_numpy(function), *(x.astype(result), np.asarray(number, result))[::order]
            )
            close(getattr(xp, function)(*(here, number)[::order]), wanted)
    close(
        xp.where(xp.asarray(np.full(shape, False)), here, number),
        np.full(shape, number, result),
    )
    assert xp.result_type(here, number) == getattr(xp, result)


@pytest.mark.parametrize("first", ALL)
@pytest.mark.parametrize("second", ALL)
def test_dtypes_together(xp, first, second):
    result = max(first, second, key=["bool", "int32", "int64", "float32", "float64"].index)
    x1, x2 = xp.ones((2,), dtype=getattr(xp, first)), xp.ones((), dtype=getattr(xp, second))
    if result != "bool":
        close(xp.add(x1, x2), np.full(2, 2, result))
    close(xp.concat([x1, xp.reshape(x2, (1,))]), np.ones(3, result))
    assert xp.result_type(x1, x2) == getattr(xp, result)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_clip(xp, examples):
    number = st.none() | st.integers(-3, 3)

    @each(st.tuples(arrays(REAL), number, number), examples)
    def _(drawn):
        x, low, high = drawn
        if low is None and high is None:
            return
        close(
            xp.clip(xp.asarray(x, dtype=x.dtype), low, high),
            silently(np.clip, x, low, high).astype(x.dtype),
        )


# of many elements


@st.composite
def with_axes(draw, dtypes, one=False):
    x = draw(arrays(dtypes))
    axes = st.none() | st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.none()
    if not one:
        axes |= st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim).map(
            tuple
        )
    return x, draw(axes), draw(st.booleans())


REDUCING = {"all": ALL, "any": ALL, "count_nonzero": ALL, "max": REAL, "mean": FLOATS, "min": REAL, "prod": REAL,
            "std": FLOATS, "sum": ALL, "var": FLOATS}  # fmt: skip


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("function", REDUCING)
def test_reductions(xp, function, examples):
    @each(with_axes(REDUCING[function]), examples)
    def _(drawn):
        x, axis, keepdims = drawn
        if axis is not None and not isinstance(axis, tuple) and x.ndim == 0:
            return
        here = xp.asarray(x, dtype=x.dtype)
        reduced = (
            x.shape
            if axis is None
            else [x.shape[i] for i in (axis if isinstance(axis, tuple) else (axis,))]
        )
        if function in ("max", "min") and 0 in reduced:
            with pytest.raises(xdevice.errors.ShapeError, match="of an empty tensor"):
                getattr(xp, function)(here, axis=axis, keepdims=keepdims)
            return
        wanted = silently(of_numpy(function), x, axis=axis, keepdims=keepdims)
        if x.dtype.kind in "bi" and function in ("sum", "prod", "count_nonzero"):
            wanted = np.asarray(wanted, "int64")
        close(silently(getattr(xp, function), here, axis=axis, keepdims=keepdims), wanted)


@pytest.mark.parametrize("correction", [0, 1, 1.5, 9])
def test_correction(xp, correction):
    x = np.arange(6, dtype="float32").reshape(2, 3)
    left = max(3 - correction, 0)
    wanted = silently(
        np.divide, np.square(x - x.mean(1, keepdims=True)).sum(1), np.float32(left)
    )
    close(xp.var(xp.asarray(x), axis=1, correction=correction), wanted)
    close(xp.std(xp.asarray(x), axis=1, correction=correction), np.sqrt(wanted))


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("function", ["argmax", "argmin"])
def test_places_of_extremes(xp, function, examples):
    @each(with_axes(REAL, one=True), examples)
    def _(drawn):
        x, axis, keepdims = drawn
        here = xp.asarray(x, dtype=x.dtype)
        if x.size == 0 if axis is None else x.shape[axis] == 0:
            with pytest.raises(xdevice.errors.ShapeError, match="of an empty tensor"):
                getattr(xp, function)(here, axis=axis, keepdims=keepdims)
            return
        close(
            getattr(xp, function)(here, axis=axis, keepdims=keepdims),
            of_numpy(function)(x, axis, keepdims=keepdims),
        )


@pytest.mark.parametrize("examples", EXAMPLES)
def test_order(xp, examples):
    @each(st.tuples(with_axes(REAL, one=True), st.booleans()), examples)
    def _(drawn):
        (x, axis, _), descending = drawn
        axis = -1 if axis is None else axis
        here = xp.asarray(x, dtype=x.dtype)
        if not x.ndim:
            close(xp.sort(here), x)
            close(xp.argsort(here), np.zeros((), "int64"))
            return
        places = np.argsort(x, axis, kind="stable")
        if descending:
            mirrored = np.argsort(np.flip(x, axis), axis, kind="stable")
            places = x.shape[axis] - 1 - np.flip(mirrored, axis)
        close(xp.argsort(here, axis=axis, descending=descending), places)
        close(
            xp.sort(here, axis=axis, descending=descending), np.take_along_axis(x, places, axis)
        )


@pytest.mark.parametrize("examples", EXAMPLES)
def test_cumulative_sum(xp, examples):
    @each(st.tuples(with_axes(REAL, one=True), st.booleans()), examples)
    def _(drawn):
        (x, axis, _), initial = drawn
        if not x.ndim:
            return
        axis = 0 if axis is None else axis
        wanted = silently(
            np.cumsum, x, axis=axis, dtype="int64" if x.dtype.kind == "i" else x.dtype
        )
        if initial:
            first = list(x.shape)
            first[axis] = 1
            wanted = np.concatenate([np.zeros(first, wanted.dtype), wanted], axis)
        close(
            xp.cumulative_sum(xp.asarray(x, dtype=x.dtype), axis=axis, include_initial=initial),
            wanted,
        )


@pytest.mark.parametrize("examples", EXAMPLES)
def test_taking(xp, examples):
    filled = hnp.array_shapes(min_dims=1, max_dims=3, max_side=3)
    counts = st.lists(st.integers(-3, 2), max_size=4)

    @each(
        st.tuples(arrays(ALL, filled), st.integers(-3, 2), counts, st.sampled_from(INTS)),
        examples,
    )
    def _(drawn):
        x, axis, places, dtype = drawn
        axis = axis % x.ndim
        length = x.shape[axis]
        indices = np.asarray([place % (2 * length) - length for place in places], dtype)
        here, there = xp.asarray(x, dtype=x.dtype), xp.asarray(indices, dtype=indices.dtype)
        close(xp.take(here, there, axis=axis), np.take(x, indices, axis))
        shape = [1] * x.ndim
        shape[axis] = len(indices)
        wide = np.broadcast_to(
            indices.reshape(shape), (*x.shape[:axis], len(indices), *x.shape[axis + 1 :])
        )
        wanted = np.take_along_axis(x, wide.astype("int64"), axis)
        close(xp.take_along_axis(here, xp.reshape(there, tuple(shape)), axis=axis), wanted)
        close(
            xp.where(xp.asarray(x == x.flat[0]), here, xp.flip(here)),
            np.where(x == x.flat[0], x, np.flip(x)),
        )


# of shapes


@pytest.mark.parametrize("examples", EXAMPLES)
def test_shapes(xp, examples):
    @each(arrays(ALL), examples)
    def _(x):
        here = xp.asarray(x, dtype=x.dtype)
        close(xp.reshape(here, (-1,) if x.size else (0,)), x.reshape(-1))
        close(xp.reshape(here, x.shape[::-1], copy=True), x.reshape(x.shape[::-1]))
        close(xp.permute_dims(here, tuple(range(x.ndim))[::-1]), x.transpose())
        close(xp.flip(here), np.flip(x))
        close(xp.roll(here, 2), np.roll(x, 2))
        close(xp.repeat(here, 2), np.repeat(x, 2))
        close(xp.tile(here, (2, 1)), np.tile(x, (2, 1)))
        close(xp.broadcast_to(here, (2, *x.shape)), np.broadcast_to(x, (2, *x.shape)))
        close(xp.expand_dims(here, axis=-1), np.expand_dims(x, -1))
        close(xp.squeeze(xp.expand_dims(here, axis=0), axis=0), x)
        close(xp.stack([here, here], axis=-1), np.stack([x, x], -1))
        close(xp.concat([here, here], axis=None), np.concatenate([x, x], None))
        close(xp.zeros_like(here), np.zeros_like(x))
        close(xp.ones_like(here), np.ones_like(x))
        close(xp.full_like(here, 1), np.full_like(x, 1))
        assert tuple(xp.empty_like(here).shape) == x.shape
        close(xp.astype(here, xp.bool), silently(x.astype, "bool"))
        close(
            xp.astype(xp.astype(here, xp.bool), xp.float64),
            silently(x.astype, "bool").astype("float64"),
        )
        for axis in range(x.ndim):
            close(xp.flip(here, axis=axis), np.flip(x, axis))
            close(xp.roll(here, -1, axis=axis), np.roll(x, -1, axis))
            close(xp.repeat(here, 3, axis=axis), np.repeat(x, 3, axis))
            close(xp.concat([here, here], axis=axis - x.ndim), np.concatenate([x, x], axis))
            close(xp.moveaxis(here, axis, 0), np.moveaxis(x, axis, 0))
        if x.ndim > 1:
            close(xp.matrix_transpose(here), np.swapaxes(x, -1, -2))
            for k in (-1, 0, 2):
                close(xp.tril(here, k=k), np.tril(x, k))
                close(xp.triu(here, k=k), np.triu(x, k))


def test_shapes_of_several(xp):
    x, y = xp.asarray([1, 2, 3]), xp.asarray([[1.0], [2.0]])
    for one, other in zip(
        xp.broadcast_arrays(x, y), ([[1, 2, 3]] * 2, [[1.0] * 3, [2.0] * 3]), strict=True
    ):
        np.testing.assert_array_equal(xdevice.to_numpy(one), other)
    for indexing in ("xy", "ij"):
        wanted = np.meshgrid([1, 2, 3], [4, 5], indexing=indexing)
        for one, other in zip(
            xp.meshgrid(x, xp.asarray([4, 5]), indexing=indexing), wanted, strict=True
        ):
            close(one, other)
    close(xp.repeat(x, xp.asarray([0, 2, 1])), np.asarray([2, 2, 3]))
    close(xp.roll(y, (1, 2), axis=(0, 1)), np.asarray([[2.0], [1.0]], "float32"))
    close(xp.moveaxis(xp.zeros((2, 3, 4)), (0, 1), (-1, 0)), np.zeros((3, 4, 2), "float32"))


SHAPES_OF_PRODUCTS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)),
    ((0, 3), (3, 2)), ((2, 0), (0, 2)), ((0,), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shapes", SHAPES_OF_PRODUCTS)
def test_products(xp, shapes, dtype):
    # the next goes the fast way
    xp.matmul(xp.eye(2, dtype=getattr(xp, dtype)), xp.eye(2, dtype=getattr(xp, dtype)))
    x1, x2 = (np.arange(math.prod(shape)).reshape(shape).astype(dtype) for shape in shapes)
    y1, y2 = (xp.asarray(x, dtype=x.dtype) for x in (x1, x2))
    close(xp.matmul(y1, y2), np.matmul(x1, x2))
    close(xp.tensordot(y1, y2, axes=0), np.tensordot(x1, x2, axes=0).astype(dtype))
    if len(shapes[1]) < 3:
        axes = ((len(shapes[0]) - 1,), (0,))
        close(xp.tensordot(y1, y2, axes=axes), np.tensordot(x1, x2, axes=axes))
    close(xp.vecdot(y1, y1), (x1 * x1).sum(-1, dtype=dtype))


@pytest.mark.parametrize("axes", [-1, 3])
def test_tensordot_of_a_number_of_axes_that_is_not_there(xp, axes):
    with pytest.raises(xdevice.errors.ShapeError, match="axes must be from 0 to"):
        xp.tensordot(xp.ones((2, 2)), xp.ones((2, 2)), axes=axes)


@pytest.mark.parametrize("axes", [1.5, None, True, "ab", (1, 0), [[1]], np.array([1, 0])])
def test_tensordot_of_axes_that_are_neither_a_number_nor_a_pair(xp, axes):
    with pytest.raises(
        xdevice.errors.ShapeError, match=r"or two sequences such as \(\[1\], \[0\]\)"
    ):
        xp.tensordot(xp.ones((2, 2)), xp.ones((2, 2)), axes=axes)


def test_tensordot_counts_its_axes_with_numpys_ints_too(xp):
    assert xp.tensordot(xp.ones((2, 3)), xp.ones((3, 4)), axes=np.int64(1)).shape == (2, 4)


# making


def test_making(xp, name):
    close(xp.arange(5), np.arange(5))
    close(xp.arange(5, 0, -2), np.arange(5, 0, -2))
    close(xp.arange(3, 1), np.arange(0))
    close(xp.arange(0.0, 1.0, 0.25), np.arange(0, 1, 0.25, "float32"))
    close(xp.arange(2, dtype=xp.float64), np.arange(2.0))
    close(xp.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype="float32"))
    close(
        xp.linspace(0, 1, 4, endpoint=False, dtype=xp.float64),
        np.linspace(0, 1, 4, endpoint=False),
    )
    close(xp.eye(2, 3, k=1), np.eye(2, 3, 1, "float32"))
    close(xp.eye(2, dtype=xp.bool), np.eye(2, dtype="bool"))
    close(xp.zeros(()), np.zeros((), "float32"))
    close(xp.ones((0, 2), dtype=xp.int64), np.ones((0, 2), "int64"))
    assert tuple(xp.empty(3).shape) == (3,)
    for value, dtype in (
        (2**40 + 1, "int64"),
        (1.5, "float32"),
        (True, "bool"),
        (math.inf, "float32"),
    ):
        close(xp.full((2,), value), np.full(2, value, dtype))
    exact = 16777217.0  # float32 does not hold it
    for made in (
        xp.full((), exact, dtype=xp.float64),
        xp.full_like(xp.ones(1, dtype=xp.float64), exact),
    ):
        assert xdevice.item(made) == exact
    close(xp.asarray([1, 2]), np.asarray([1, 2]))
    close(xp.asarray([1.5]), np.asarray([1.5], "float32"))
    x = xp.asarray([1, 2])
    assert xp.asarray(x) is xp.positive(x) is xp.conj(x) is xp.real(x) is x
    copied = xp.asarray(x, copy=True)
    close(copied, np.asarray([1, 2]))
    close(xp.from_dlpack(xp.asarray([1.0, 2.0])), np.asarray([1.0, 2.0], "float32"))
    assert xdevice.device_of(xp.zeros(2, device="cpu:0")) is xdevice.cpu()


def test_dtypes(xp):
    assert xp.isdtype(xp.float32, "real floating")
    assert xp.isdtype(xp.int64, ("bool", "integral"))
    assert not xp.isdtype(xp.bool, "numeric")
    assert xp.can_cast(xp.int32, xp.int64)
    assert not xp.can_cast(xp.int64, xp.int32)
    assert xp.can_cast(xp.int64, xp.float32)
    assert not xp.can_cast(xp.float32, xp.int64)
    assert xp.result_type(xp.int32, xp.float32) == xp.float32
    assert xp.finfo(xp.float32).eps == np.finfo("float32").eps
    assert xp.finfo(xp.float64).bits == 64
    assert (xp.iinfo(xp.int32).min, xp.iinfo(xp.int32).max) == (-(2**31), 2**31 - 1)
    assert xp.zeros(1).dtype == xp.float32
    assert (xp.e, xp.pi, xp.inf, xp.newaxis) == (math.e, math.pi, math.inf, None)
    assert math.isnan(xp.nan)


# refusals


@pytest.mark.parametrize("function", ["floor_divide", "remainder"])
@pytest.mark.parametrize("divisors", [[-1, -2, 2], [-1, 0, 2]], ids=["range", "zero"])
def test_integers_divided_by_0_or_beyond_their_range_do_not_end_the_process(
    xp, name, function, divisors
):
    if 0 in divisors and name in ("torch", "tensorflow"):
        pytest.skip("an error of the framework")
    found = getattr(xp, function)(xp.asarray([-(2**63), 7, -7]), xp.asarray(divisors))
    assert (
        xdevice.to_numpy(found).tolist()[-1] == {"floor_divide": -4, "remainder": 1}[function]
    )


def test_an_integer_of_numpy_is_one_in_arange(xp):
    for number in (np.int64(3), xp.asarray(3)):
        made = xp.arange(number)
        assert xp.isdtype(made.dtype, xp.int64)
        assert xdevice.to_numpy(made).tolist() == [0, 1, 2]


def test_an_int_beyond_64_bits_beside_floats(xp):
    assert xdevice.item(xp.add(xp.asarray([1.0]), 2**70)) == 2.0**70


def test_sums_have_the_dtype_that_is_asked_for(xp):
    for function in (xp.sum, xp.prod, xp.cumulative_sum):
        assert xp.isdtype(function(xp.asarray([1.5, 2.5]), dtype=xp.int32).dtype, xp.int32)
        with pytest.raises(xdevice.errors.DTypeError, match="accepts numbers, not bool"):
            function(xp.asarray([1.5, 2.5]), dtype=xp.bool)


@pytest.mark.parametrize("value", [1.5, math.nan, 1j])
def test_integers_are_not_filled_with_fractions(xp, value):
    with pytest.raises(xdevice.errors.DTypeError, match="is not an integer"):
        xp.full(3, value, dtype=xp.int32)
    with pytest.raises(xdevice.errors.DTypeError, match="is not an integer"):
        xp.full_like(xp.asarray([1, 2]), value)


@pytest.mark.parametrize("function", ["take", "take_along_axis", "repeat"])
@pytest.mark.parametrize("value", [1.0, True])
def test_indices_and_repeats_that_are_no_integers_are_refused_by_name(xp, function, value):
    said = f"{function} accepts integers, not (float32|bool); cast the tensor with xp.astype.x, xp.int64."
    with pytest.raises(xdevice.errors.DTypeError, match=said):
        getattr(xp, function)(xp.asarray([1.0]), xp.asarray([value]))


def test_what_is_refused_by_name(xp, name):
    ints, floats = xp.asarray([1, 2]), xp.asarray([1.0, 2.0])
    other = xdevice.backend("torch" if name == "numpy" else "numpy")
    with xdevice.use_backend(other):
        stranger = xdevice.ones(2)
    refusals = [
        (xdevice.errors.DTypeError, lambda: xp.mean(ints)),
        (xdevice.errors.DTypeError, lambda: xp.sqrt(ints)),
        (xdevice.errors.DTypeError, lambda: xp.divide(ints, 2)),
        (xdevice.errors.DTypeError, lambda: xp.add(xp.asarray([True]), True)),
        (xdevice.errors.DTypeError, lambda: xp.logical_and(ints, ints)),
        (xdevice.errors.DTypeError, lambda: xp.pow(ints, -1)),
        (xdevice.errors.DTypeError, lambda: xp.add(xp.astype(ints, xp.int32), 2**40)),
        (xdevice.errors.NotATensorError, lambda: xp.add(1, 2)),
        (xdevice.errors.NotATensorError, lambda: xp.sum([1.0])),
        (xdevice.errors.ArgumentError, lambda: xp.add(floats, stranger)),
        (xdevice.errors.ArgumentError, lambda: xdevice.array_namespace(floats, stranger)),
        (xdevice.errors.NotATensorError, lambda: xdevice.array_namespace("text")),
        (xdevice.errors.ShapeError, lambda: xp.sum(floats, axis=1)),
        (xdevice.errors.ShapeError, lambda: xp.matmul(floats, xp.ones((3, 2)))),
        (
            xdevice.errors.ShapeError,
            lambda: xp.matmul(xp.matmul(xp.ones((2, 2)), xp.ones((2, 2))), xp.ones((3, 2))),
        ),
        (
            xdevice.errors.ShapeError,
            lambda: xp.matmul(xp.ones((2, 1), dtype=xp.int64), xp.ones((3, 2), dtype=xp.int64)),
        ),
        (xdevice.errors.ShapeError, lambda: xp.matmul(xp.ones(()), xp.ones((3, 2)))),
        (xdevice.errors.ShapeError, lambda: xp.reshape(floats, (3,))),
        (xdevice.errors.ShapeError, lambda: xp.squeeze(floats, axis=0)),
        (IndexError, lambda: xp.take(floats, xp.asarray([2]))),
        (IndexError, lambda: xp.take(floats, xp.asarray([-3]))),
        (IndexError, lambda: xp.take_along_axis(floats, xp.asarray([5]))),
    ]
    for error, call in refusals:
        with pytest.raises(error):
            call()


ALONG_AN_AXIS = (
    "all", "argmax", "argsort", "cumulative_sum", "expand_dims", "flip", "max", "mean", "sort", "squeeze", "sum", "var",
)  # fmt: skip


@pytest.mark.parametrize("axis", [3, -4, "0", 1.0])
def test_an_axis_that_is_not_there_is_the_same_error_everywhere(xp, axis):
    x, places = xp.ones((2, 3)), xp.asarray([[0]])
    calls = [
        lambda function=function: getattr(xp, function)(x, axis=axis)
        for function in ALONG_AN_AXIS
    ]
    calls += [
        lambda: xp.concat([x, x], axis=axis),
        lambda: xp.moveaxis(x, axis, 0),
        lambda: xp.permute_dims(x, (0, axis)),
        lambda: xp.repeat(x, 2, axis=axis),
        lambda: xp.roll(x, 1, axis=axis),
        lambda: xp.stack([x, x], axis=axis),
        lambda: xp.take(x, places[0], axis=axis),
        lambda: xp.take_along_axis(x, places, axis=axis),
        lambda: xp.tensordot(x, x, axes=((axis,), (0,))),
        lambda: xp.vecdot(x, x, axis=axis),
    ]
    for call in calls:
        with pytest.raises(xdevice.errors.ShapeError, match="axis") as raised:
            call()
        assert isinstance(raised.value, IndexError) == isinstance(axis, int)


# compiled


def compiled(name, function):
    framework = xdevice.backend().framework
    if name == "torch":
        return framework.compile(function, backend="eager", fullgraph=True)
    if name == "paddle":
        return framework.jit.to_static(function, full_graph=True)
    return framework.function(function) if name == "tensorflow" else framework.jit(function)


def test_a_function_of_several_calls_compiles_and_gives_the_same(xp, name):
    if name in ("mxnet", "numpy"):
        pytest.skip("it does not compile functions of arrays")

    def function(x, y):
        z = xp.maximum(xp.add(xp.matmul(x, y), 0.5), 0.0)
        z = xp.where(xp.less(z, 1.0), z, xp.sqrt(xp.square(z)))
        z = xp.concat([z, xp.reshape(xp.permute_dims(z, (1, 0)), (3, 3))], axis=1)
        return xp.sum(z), xp.argmax(z, axis=1), xp.mean(z, axis=0), xp.std(xp.clip(z, 0, 2))

    x = xp.reshape(xp.linspace(-1, 1, 9), (3, 3))
    for made, wanted in zip(compiled(name, function)(x, x), function(x, x), strict=True):
        close(made, xdevice.to_numpy(wanted))


def test_pytorch_compiles_where_the_dtypes_of_tensorflow_are_known():
    torch, _ = (pytest.importorskip(framework) for framework in ("torch", "tensorflow"))
    # on PyTorch the last dtype is another than the compiled one
    for framework in ("tensorflow", "torch"):
        with xdevice.use_backend(framework):
            xp, x = xdevice.array_namespace(), xdevice.tensor([1, 2])
            xp.maximum(x, x)
    made = torch.compile(lambda x: xp.maximum(x, 0.0), backend="eager", fullgraph=True)(
        torch.tensor([-1.0, 1.0])
    )
    assert made.tolist() == [0.0, 1.0]


def test_the_namespace_of_tensors(xp, name):
    x = xp.ones(2)
    assert xdevice.array_namespace(x) is xdevice.array_namespace(x, 1.5, None) is xp
    with xdevice.use_backend("numpy"):
        assert xdevice.array_namespace(x) is xp


def test_results_are_where_the_operands_are(xp, name):
    other = xdevice.backend().devices()[-1]
    if other.kind not in ("cpu", "gpu"):
        other = [
            place for place in xdevice.backend().devices() if place.kind in ("cpu", "gpu")
        ][-1]
    x = xdevice.to_device(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), other)
    made = [
        xp.add(x, x),
        xp.add(x, 1.0),
        xp.where(xp.less(x, 2.0), x, 0.0),
        xp.sum(x),
        xp.std(x),
        xp.tril(x),
    ]
    made += [
        xp.matmul(x, x),
        xp.argmax(x),
        xp.sort(x),
        xp.zeros_like(x),
        xp.take(x, xp.asarray([0], device=other), axis=0),
    ]
    made += [
        xp.round(x),
        xp.concat([x, x]),
        xp.clip(x, 1.5, 3),
        xp.cumulative_sum(x, axis=0, include_initial=True),
    ]
    assert {xdevice.device_of(one) for one in made} == {other}


@pytest.mark.parametrize(
    "backend", [name for name in ("torch", "paddle") if name in xdevice.backends()]
)
@pytest.mark.parametrize(
    "call",
    [
        "count_nonzero",
        "ones_like",
        "concat",
        "matrix_transpose",
        "isnan",
        "exp",
        "sin",
        "sum",
        "add",
        "matmul",
    ],
)
def test_a_sparse_tensor_after_a_dense_one_of_its_type_is_refused(backend, call):
    with xdevice.use_backend(backend) as chosen:
        xp = xdevice.array_namespace()
        dense = xdevice.ones(2, 2)
        sparse = (
            dense.to_sparse()
            if backend == "torch"
            else chosen.framework.ones([2, 2]).to_sparse_coo(2)
        )
        given = (lambda *xs: [list(xs)]) if call == "concat" else (lambda *xs: xs)
        function, others = getattr(xp, call), [dense] * (call in ("add", "concat", "matmul"))
        function(*given(dense, *others))  # the next calls are fast ones
        for operands in ([sparse, *others], [*others, sparse]):
            with pytest.raises(xdevice.errors.UnsupportedError, match="not dense"):
                function(*given(*operands))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_indices_of_a_dtype_that_is_shorter_than_the_axis(xp, dtype):
    x = xp.arange(300)
    short = xp.asarray([5, 127], dtype=dtype)
    assert xdevice.to_numpy(xp.take(x, short)).tolist() == [5, 127]
    if dtype == "int8":
        last = xp.asarray([-1, -128], dtype=dtype)
        assert xdevice.to_numpy(xp.take(x, last)).tolist() == [299, 172]
        assert xdevice.to_numpy(xp.take(x[:100], xp.asarray([-1], dtype=dtype))).tolist() == [
            99
        ]
        with pytest.raises(IndexError, match="-128 is out of range for an axis of length 100"):
            xp.take(x[:100], last)
    else:
        with pytest.raises(IndexError, match="255 is out of range for an axis of length 200"):
            xp.take(x[:200], xp.asarray([0, 255], dtype=dtype))


def test_clip_at_numbers_of_any_size(xp, name):
    x = xp.asarray([-3.0, 0.5, 3.0])
    assert xdevice.to_numpy(xp.clip(x, -float("inf"), 2)).tolist() == [-3.0, 0.5, 2.0]
    assert xdevice.to_numpy(xp.clip(x, 1, None)).dtype == "float32"
    assert xdevice.to_numpy(xp.clip(x, 2.0, 1.0)).tolist() == [1.0, 1.0, 1.0]
    assert xdevice.item(xp.clip(xp.asarray([3e5]), None, 1e5)[0]) == 1e5
    # above all of float32
    assert xdevice.to_numpy(xp.clip(x, -(10**39), 1e39)).tolist() == [-3.0, 0.5, 3.0]
    assert xdevice.to_numpy(xp.clip(x, 1e39, None)).tolist() == [float("inf")] * 3
    assert xdevice.to_numpy(xp.clip(xp.asarray([float("nan"), 5.0]), 0, 1)).tolist()[1] == 1.0
    if name != "paddle":  # which has no kernel for it on the CPU
        assert xdevice.item(xp.clip(xp.astype(x, "float16"), -1e5, 1e5)[1]) == 0.5
    with pytest.raises(xdevice.errors.DTypeError, match="does not fit"):
        xp.clip(xp.asarray([1, 2], dtype=xp.int8), 0, 300)
