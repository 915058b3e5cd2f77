"""The whole standard: its names, dtypes and extensions on every backend, against NumPy, and gradients through them."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from helpers.environment import ROOT, SHIMS, sampled, with_64_bit

import xdevice
from xdevice.math.arithmetic import elementwise
from xdevice.math.arithmetic.dtypes import kind_of
from xdevice.math.contract import arithmetic

BACKENDS = sampled(xdevice.backends(), each_time=("numpy", "torch"), slow=SHIMS, others="long")
PAGE = (ROOT / "docs" / "reference" / "arithmetic.md").read_text(encoding="utf-8")
STANDARD = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
LACKING = {
    "mxnet": {"int16", "uint16", "uint32", "uint64", "complex64", "complex128", "fft"},
    "paddle": {"uint16", "uint32", "uint64"},
}
NUMPYS = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "pow": "power",
}  # fmt: skip


@pytest.fixture(params=BACKENDS, scope="module")
def name(request):
    return request.param


@pytest.fixture
def xp(name):
    with xdevice.use_backend(name), with_64_bit(name):
        yield xdevice.array_namespace()


def close(got, wanted, rtol=1e-4):
    got, wanted = xdevice.to_numpy(got), np.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol)


# names and dtypes


def test_154_names_and_two_extensions_but_for_what_a_framework_lacks(xp, name):
    lacking = LACKING.get(name, set())
    assert all(hasattr(xdevice.backend().namespace(), kernel) for kernel in arithmetic.KERNELS)
    listed = re.findall(
        r"`(\w+)`", PAGE.partition("## The functions")[2].partition("These are the 154")[0]
    )
    assert sorted(listed) == sorted(
        {*dir(xp), *lacking, "__array_namespace_info__"} - {"fft", "linalg"}
    )
    assert (
        len([one for one in dir(xp) if one not in ("fft", "linalg")])
        + len(lacking - {"fft"})
        + 1
        == 154
    )
    assert len(vars(xp.linalg)) == 25
    assert "fft" in lacking or len(vars(xp.fft)) == 14
    for one in (*STANDARD, "fft", "linalg"):
        assert hasattr(xp, one) != (one in lacking)
    for one in lacking:
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=f"{name} does not support {one}; convert the tensors to another",
        ):
            getattr(xp, one)
    with pytest.raises(AttributeError, match="does not define it"):
        xp.reduce_sum  # noqa: B018


def test_what_the_namespace_tells_of_itself(xp, name):
    info = xp.__array_namespace_info__()
    assert list(info.dtypes()) == [one for one in STANDARD if one not in LACKING.get(name, ())]
    assert list(info.dtypes(kind=("bool", "real floating"))) == ["bool", "float32", "float64"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["integral"] == xp.int64
    has_complex = "complex64" not in LACKING.get(name, ())
    kinds = [
        "real floating",
        "integral",
        "indexing",
        *(["complex floating"] if has_complex else []),
    ]
    assert sorted(info.default_dtypes()) == sorted(kinds)
    able = info.capabilities()
    assert able["data-dependent shapes"]
    assert able["boolean indexing"] == (name != "tensorflow")
    if able["boolean indexing"]:
        x = xp.asarray([1.0, 2.0, 3.0])
        assert xdevice.to_numpy(x[xp.greater(x, 1.0)]).tolist() == [2.0, 3.0]
    assert len(xp.reshape(xp.zeros(1), (1,) * min(able["max dimensions"], 9)).shape) == min(
        able["max dimensions"], 9
    )


def of(dtype):
    """Two arrays of a dtype, the first with values that narrower ones, or floats, do not hold."""
    kind = kind_of(dtype)
    first = {"b": [0, 1, 1], "i": [3, -5, 7], "f": [0.5, -0.25, 3], "c": [0.5 + 1j, -2, 3]}.get(
        kind
    )
    first = first or [3, np.iinfo(dtype).max - 1, 7]
    return np.array(first, dtype), np.array([2, 1, 3], dtype)


@pytest.mark.parametrize("dtype", STANDARD)
def test_each_function_of_elements_in_each_dtype(xp, name, dtype):
    if dtype in LACKING.get(name, ()):
        pytest.skip(f"{name} does not have {dtype}")
    x, y = of(dtype)
    here, there = xp.asarray(x, dtype=dtype), xp.asarray(y, dtype=dtype)
    with np.errstate(all="ignore"):
        for table, given, tensors in (
            (elementwise.UNARY, (x,), (here,)),
            (elementwise.BINARY, (x, y), (here, there)),
        ):
            for function, kinds in table.items():
                if kind_of(dtype) not in kinds or (
                    function == "sign" and kind_of(dtype) == "c"
                ):  # NumPy 1's is another
                    continue
                wanted = getattr(np, NUMPYS.get(function, function))(*given)
                close(getattr(xp, function)(*tensors), wanted)


@pytest.mark.parametrize("dtype", STANDARD)
def test_elements_are_moved_in_each_dtype(xp, name, dtype):
    if dtype in LACKING.get(name, ()):
        pytest.skip(f"{name} does not have {dtype}")
    x = np.arange(6).reshape(2, 3).astype(dtype)
    x[0, 0] = of(dtype)[0][1]
    here = xp.asarray(x, dtype=dtype)
    for made, wanted in (
        (xp.take(here, xp.asarray([2, 0]), axis=1), x[:, [2, 0]]),
        (xp.take_along_axis(here, xp.asarray([[2], [0]]), axis=1), x[[0, 1], [2, 0]][:, None]),
        (
            xp.where(xp.asarray([True, False, True]), here, xp.flip(here)),
            np.where([True, False, True], x, np.flip(x)),
        ),
        (xp.roll(here, 1), np.roll(x, 1)),
        (xp.tril(here), np.tril(x)),
        (xp.concat([here, here]), np.concatenate([x, x])),
        (xp.unstack(here, axis=1)[2], x[:, 2]),
        (xp.repeat(here, 2), np.repeat(x, 2)),
        (xp.linalg.diagonal(here, offset=1), x.diagonal(1)),
    ):
        close(made, wanted)


# functions


def test_complex_numbers(xp, name):
    if "complex64" in LACKING.get(name, ()):
        with pytest.raises(
            xdevice.errors.DTypeError, match="imag accepts complex numbers, not float32"
        ):
            xp.imag(xp.ones(1))
        close(xp.real(xp.asarray([1.0])), np.ones(1, "float32"))
        return
    x = np.array([3 + 4j, -2j, 0], "complex64")
    here = xp.asarray(x)
    for function in ("conj", "imag", "real", "abs", "isfinite", "sum", "prod", "mean"):
        close(getattr(xp, function)(here), getattr(np, function)(x))
    close(xp.sign(here), np.array([0.6 + 0.8j, -1j, 0], "complex64"))
    close(xp.vecdot(here, here), np.vdot(x, x))
    assert xp.result_type(xp.complex64, xp.float64) == xp.complex128
    assert xp.finfo(xp.complex128).dtype == xp.float64
    close(
        xp.pow(xp.asarray([1 + 1j], dtype=xp.complex64), -1),
        np.array([0.5 - 0.5j], "complex64"),
    )


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_only_integers_and_bools_have_no_powers_below_zero(xp, dtype):
    x = xp.ones(2, dtype=getattr(xp, dtype))
    with pytest.raises(xdevice.errors.DTypeError, match="power of -1 are not integers"):
        xp.pow(x, -1)
    close(xp.pow(xp.asarray([2.0]), -1), np.array([0.5], "float32"))


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int64", "float32"]
)
def test_places_of_what_is_not_zero(name, xp, dtype):
    if dtype not in xdevice.backend().dtypes:
        pytest.skip(f"{name} has no {dtype}")
    x = xp.asarray(np.array([[0, 3], [1, 0], [0, 2]], dtype))
    for places, wanted in zip(xp.nonzero(x), ([0, 1, 2], [1, 0, 1]), strict=True):
        assert xdevice.to_numpy(places).tolist() == wanted
        assert xdevice.to_numpy(places).dtype == "int64"
    assert xdevice.to_numpy(xp.count_nonzero(x, axis=0)).tolist() == [1, 2]


def test_what_is_rounded_to_zero_keeps_its_sign(xp):
    x = np.array(
        [-0.5, -0.2, -0.0, 0.0, 0.5, 1.5, 2.5, -1.5, -2.5, np.inf, -np.inf, np.nan], "float32"
    )
    rounded = xdevice.to_numpy(xp.round(xp.asarray(x)))
    np.testing.assert_array_equal(rounded, np.round(x))
    np.testing.assert_array_equal(np.signbit(rounded[:-1]), np.signbit(np.round(x[:-1])))


def test_sets_and_places(xp):
    x = np.array([[3, 1, 3], [0, 1, 7]])
    here = xp.asarray(x)
    for places, wanted in zip(xp.nonzero(here), np.nonzero(x), strict=True):
        close(places, wanted)
    made = xp.unique_all(here)
    for part, wanted in zip(made, np.unique(x, True, True, True), strict=True):
        close(xp.reshape(part, (-1,)), wanted.ravel())
    assert tuple(made.inverse_indices.shape) == x.shape
    assert xdevice.to_numpy(xp.unique_counts(here).counts).tolist() == [1, 2, 2, 1]
    assert len(xp.unique_values(xp.asarray([math.nan, math.nan])).shape) == 1
    close(
        xp.unique_values(xp.asarray([math.nan, math.nan])), np.array([math.nan] * 2, "float32")
    )
    close(xp.unique_inverse(here).values, np.unique(x))
    with pytest.raises(
        xdevice.errors.ShapeError, match="nonzero expects a tensor with at least one dimension"
    ):
        xp.nonzero(xp.asarray(1))
    line, wanted = (
        np.array([1.0, 2.0, 2.0, 5.0], "float32"),
        np.array([[2.0, 0.0], [9.0, 2.5]], "float32"),
    )
    for side in ("left", "right"):
        close(
            xp.searchsorted(xp.asarray(line), xp.asarray(wanted), side=side),
            np.searchsorted(line, wanted, side),
        )
    sorter = xp.asarray([3, 1, 2, 0])
    close(
        xp.searchsorted(xp.asarray(line[::-1].copy()), xp.asarray([2.0]), sorter=sorter),
        np.array([1]),
    )


def test_differences_and_products(xp):
    x = np.array([[1.0, 4.0, 9.0], [2.0, 0.5, 3.0]], "float32")
    here = xp.asarray(x)
    for n in range(5):
        close(xp.diff(here, n=n), np.diff(x, n=n))
    close(
        xp.diff(here, axis=0, prepend=here, append=here),
        np.diff(x, axis=0, prepend=x, append=x),
    )
    close(xp.cumulative_prod(here, axis=1), np.cumprod(x, 1))
    close(xp.cumulative_prod(xp.asarray([2, 3]), include_initial=True), np.array([1, 2, 6]))
    with pytest.raises(xdevice.errors.ArgumentError, match="diff: n must be at least 0"):
        xp.diff(here, n=-1)


MATRIX = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], "float32")


def test_linear_algebra(xp, name):
    stack = np.stack([MATRIX, 2 * MATRIX])
    x, tall = xp.asarray(stack), xp.asarray(stack[:, :, :2])
    at = xp.linalg
    close(at.cholesky(x), np.linalg.cholesky(stack))
    close(at.cholesky(x, upper=True), np.swapaxes(np.linalg.cholesky(stack), 1, 2))
    for function in ("det", "inv", "eigvalsh"):
        close(getattr(at, function)(x), getattr(np.linalg, function)(stack))
    close(at.solve(x, tall), np.linalg.solve(stack, stack[:, :, :2]))
    close(
        at.solve(x, xp.asarray(MATRIX[0])),
        np.linalg.solve(stack, np.stack([MATRIX[0]] * 2)[..., None])[..., 0],
    )
    sign, logarithm = at.slogdet(x)
    close(xp.multiply(sign, xp.exp(logarithm)), np.linalg.det(stack))
    values, vectors = at.eigh(x)
    close(
        xp.matmul(
            vectors, xp.multiply(xp.expand_dims(values, axis=-1), xp.matrix_transpose(vectors))
        ),
        stack,
    )
    for given, array in (
        (tall, stack[:, :, :2]),
        (xp.matrix_transpose(tall), np.swapaxes(stack[:, :, :2], 1, 2)),
    ):
        u, values, vh = at.svd(given, full_matrices=False)
        close(xp.matmul(xp.multiply(u, xp.expand_dims(values, axis=-2)), vh), array)
        close(at.svdvals(given), np.linalg.svd(array, compute_uv=False))
        close(at.pinv(given), np.linalg.pinv(array))
    close(at.matrix_rank(x), np.array([3, 3]))
    for n in (-2, 0, 1, 5):
        close(at.matrix_power(x, n), np.linalg.matrix_power(stack, n), 1e-3)
    for order in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        close(at.matrix_norm(x, ord=order), np.linalg.norm(stack, ord=order, axis=(1, 2)))
    for order in (0, 1, 2, 3.5, math.inf, -math.inf):
        close(at.vector_norm(x, axis=1, ord=order), np.linalg.norm(stack, ord=order, axis=1))
    close(at.cross(xp.asarray(MATRIX), xp.asarray(MATRIX[0])), np.cross(MATRIX, MATRIX[0]))
    close(at.outer(xp.asarray([1, 2]), xp.asarray([3, 4])), np.outer([1, 2], [3, 4]))
    close(at.trace(x, offset=-1), np.trace(stack, -1, 1, 2))
    if name == "mxnet":
        with pytest.raises(
            xdevice.errors.UnsupportedError, match=r"mxnet does not support linalg\.qr; compute"
        ):
            at.qr(x)
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match="with full matrices; pass full_matrices=False",
        ):
            at.svd(tall)
        return
    q, r = at.qr(tall)
    close(xp.matmul(q, r), stack[:, :, :2])
    assert tuple(at.svd(tall).U.shape) == (2, 3, 3)
    assert tuple(at.qr(tall, mode="complete").Q.shape) == (2, 3, 3)


def test_linear_algebra_refuses_by_name(xp):
    at = xp.linalg
    for error, call, said in (
        (
            xdevice.errors.ShapeError,
            lambda: at.inv(xp.ones((2, 3))),
            "linalg.inv accepts square matrices",
        ),
        (
            xdevice.errors.DTypeError,
            lambda: at.det(xp.ones((2, 2), dtype=xp.int64)),
            "linalg.det accepts floats, not int64",
        ),
        (
            xdevice.errors.ShapeError,
            lambda: at.cross(xp.ones(2), xp.ones(2)),
            "linalg.cross needs an axis of length 3",
        ),
        (
            xdevice.errors.ArgumentError,
            lambda: at.matrix_norm(xp.ones((2, 2)), ord=7),
            "ord must be 'fro'",
        ),
        (
            xdevice.errors.ShapeError,
            lambda: at.solve(xp.ones((2, 2)), xp.ones(3)),
            "x2 with as many rows as x1, but x2 has shape",
        ),
        (
            xdevice.errors.DTypeError,
            lambda: at.det(xp.astype(xp.ones((2, 2)), "float16")),
            "not float16",
        ),
    ):
        with pytest.raises(error, match=said):
            call()


def test_fourier(xp, name):
    if name == "mxnet":
        pytest.skip("MXNet does not have it")
    x = np.linspace(-1, 2, 20, dtype="float32").reshape(4, 5)
    z = (x + 1j * x[::-1]).astype("complex64")
    for norm in ("backward", "ortho", "forward"):
        for function, array in (
            ("fft", z),
            ("ifft", z),
            ("rfft", x),
            ("irfft", z),
            ("hfft", z),
            ("ihfft", x),
        ):
            for n, axis in ((None, -1), (3, 0), (7, 1)):
                wanted = getattr(np.fft, function)(array, n, axis, norm)
                made = getattr(xp.fft, function)(xp.asarray(array), n=n, axis=axis, norm=norm)
                close(
                    made,
                    wanted.astype("complex64" if wanted.dtype.kind == "c" else "float32"),
                    1e-3,
                )
    for function, array in (("fftn", z), ("ifftn", z), ("rfftn", x), ("irfftn", z)):
        for s, axes in ((None, None), ((6, 3), (0, 1)), (None, (1,))):
            wanted = getattr(np.fft, function)(array, s, axes)
            made = getattr(xp.fft, function)(xp.asarray(array), s=s, axes=axes)
            close(
                made,
                wanted.astype("complex64" if wanted.dtype.kind == "c" else "float32"),
                1e-3,
            )
    close(xp.fft.fftshift(xp.asarray(x)), np.fft.fftshift(x))
    close(xp.fft.ifftshift(xp.asarray(x), axes=1), np.fft.ifftshift(x, 1))
    close(xp.fft.fftfreq(5, d=0.5), np.fft.fftfreq(5, 0.5).astype("float32"))
    close(xp.fft.rfftfreq(5, dtype=xp.float64), np.fft.rfftfreq(5))
    with pytest.raises(
        xdevice.errors.ShapeError,
        match=r"requires at least 1 element along each axis, but the lengths are \(0,\)",
    ):
        xp.fft.fft(xp.asarray(z), n=0)
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match="norm must be one of backward, ortho, forward, not 'half'",
    ):
        xp.fft.fft(xp.asarray(z), norm="half")


# gradients

SLOPES = {
    "copysign": lambda xp, x: xp.sum(xp.copysign(x, xp.flip(x))),
    "cumulative_prod": lambda xp, x: xp.sum(xp.cumulative_prod(x, axis=1)),
    "diff": lambda xp, x: xp.sum(xp.square(xp.diff(x, n=2))),
    "hypot": lambda xp, x: xp.sum(xp.hypot(x, xp.flip(x))),
    "logaddexp": lambda xp, x: xp.sum(xp.logaddexp(x, xp.flip(x))),
    "unique_values": lambda xp, x: xp.sum(xp.square(xp.unique_values(x))),
    "unstack": lambda xp, x: xp.sum(xp.square(xp.unstack(x)[1])),
    "linalg.cholesky": lambda xp, x: xp.sum(
        xp.linalg.cholesky(xp.add(x, xp.matrix_transpose(x)))
    ),
    "linalg.cross": lambda xp, x: xp.sum(xp.linalg.cross(x, xp.square(x))),
    "linalg.eigh": lambda xp, x: (
        xp.sum(x) + xp.linalg.eigh(xp.add(x, xp.matrix_transpose(x)))[0][0]
    ),
    "linalg.eigvalsh": lambda xp, x: xp.linalg.eigvalsh(xp.add(x, xp.matrix_transpose(x)))[-1],
    "linalg.det": lambda xp, x: xp.linalg.det(x),
    "linalg.inv": lambda xp, x: xp.sum(xp.linalg.inv(x)),
    "linalg.solve": lambda xp, x: xp.sum(xp.linalg.solve(x, x[:, 0])),
    "linalg.svdvals": lambda xp, x: xp.sum(xp.linalg.svdvals(x)),
    "linalg.vector_norm": lambda xp, x: xp.linalg.vector_norm(x, ord=3),
    "fft.rfft": lambda xp, x: xp.sum(xp.abs(xp.fft.rfft(x))),
    "fft.ifftn": lambda xp, x: xp.sum(xp.square(xp.imag(xp.fft.ifftn(x)))),
}
NO_SLOPE = {
    "numpy": set(SLOPES),
    "mxnet": {"cumulative_prod", "linalg.eigh", "linalg.eigvalsh", "fft.rfft", "fft.ifftn"},
}


@pytest.mark.parametrize("function", SLOPES)
def test_gradients_are_those_of_small_steps(xp, name, function):
    def loss(x):
        return SLOPES[function](xp, x)

    x = MATRIX.astype("float64") + np.arange(9).reshape(3, 3) / 50
    if function in NO_SLOPE.get(name, ()):  # an error in place of zeros
        with pytest.raises(xdevice.errors.UnsupportedError):
            xdevice.math.grad(loss)(xp.asarray(x, dtype=xp.float64))
        return
    found = xdevice.to_numpy(xdevice.math.grad(loss)(xp.asarray(x, dtype=xp.float64)))
    wanted = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        ends = [
            xdevice.item(loss(xp.asarray(x + sign * step, dtype=xp.float64)))
            for sign in (1, -1)
        ]
        wanted[place] = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# what version 2025.12 added


def test_shapes_are_broadcast_without_tensors(xp):
    assert xp.broadcast_shapes((3, 1), (2,), ()) == (3, 2)
    assert xp.broadcast_shapes() == ()
    assert xp.broadcast_shapes([0, 1], (1, 4)) == (0, 4)
    with pytest.raises(xdevice.errors.ShapeError):
        xp.broadcast_shapes((2,), (3,))


def test_several_axes_of_length_one_are_added_at_once(xp):
    x = xp.ones((2, 3))
    for axis in ((0, 2), (2, 0), (-1, 0), (-4, -2), (), (1,)):
        assert (
            tuple(xp.expand_dims(x, axis).shape) == np.expand_dims(np.ones((2, 3)), axis).shape
        )
    for axis in ((0, 0), (0, -4), (4, 0)):
        with pytest.raises(xdevice.errors.XDeviceError):
            xp.expand_dims(x, axis)


@pytest.mark.parametrize("invert", [False, True])
def test_each_element_is_looked_for_among_others(xp, invert):
    x, among = xp.asarray([[1, 5], [2**31 - 1, -7]]), xp.asarray([5, 3, -7, 5])
    close(xp.isin(x, among, invert=invert), [[invert, not invert], [invert, not invert]])
    close(xp.isin(5, among, invert=invert), not invert)
    close(xp.isin(x, 1, invert=invert), [[not invert, invert], [invert, invert]])
    close(xp.isin(x, among[:0], invert=invert), np.full((2, 2), invert))
    close(xp.isin(x[:0], among, invert=invert), np.zeros((0, 2), bool))
    with pytest.raises(xdevice.errors.NotATensorError):
        xp.isin(1, 2)


def test_a_number_may_be_searched_for(xp):
    x = xp.asarray([1.0, 2.0, 4.0])
    for number in (0, 2, 2.5, 9.0):
        for side in ("left", "right"):
            place = xp.searchsorted(x, number, side=side)
            assert tuple(place.shape) == ()
            assert xdevice.item(place) == np.searchsorted([1.0, 2.0, 4.0], number, side=side)


def test_what_were_lists_are_tuples(xp):
    x = xp.ones(2)
    for several in (
        xp.broadcast_arrays(x, x),
        xp.meshgrid(x, x),
        xp.__array_namespace_info__().devices(),
    ):
        assert type(several) is tuple


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_eigenvalues_of_any_square_matrix_are_complex(xp, name, dtype):
    if name == "mxnet":
        with pytest.raises(xdevice.errors.UnsupportedError, match=r"linalg\.eig"):
            xp.linalg.eigvals(xp.eye(2))
        return
    matrices = np.asarray([[[0.0, 1.0], [-1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]]], dtype)
    x = xp.asarray(matrices, dtype=getattr(xp, dtype))
    values, vectors = xp.linalg.eig(x)
    assert values.dtype == vectors.dtype == xp.complex64
    wide = xp.astype(x, xp.complex64)
    close(
        xp.matmul(wide, vectors),
        xdevice.to_numpy(xp.multiply(vectors, xp.expand_dims(values, axis=-2))),
    )
    found = xdevice.to_numpy(xp.linalg.eigvals(x))
    assert found.dtype == "complex64"
    found, expected = (
        np.sort_complex(np.round(one, 4)) for one in (found, np.linalg.eigvals(matrices))
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(xdevice.errors.ShapeError, match="square"):
        xp.linalg.eig(xp.ones((2, 3)))
