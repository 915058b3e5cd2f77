"""Tensors of one call are on one device, in every function of the namespace that takes several."""

from __future__ import annotations

import pytest

import xdevice

pytestmark = pytest.mark.virtual

OF_TWO = (
    "add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less",
    "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply",
    "nextafter", "not_equal", "pow", "remainder", "searchsorted", "subtract",
)  # fmt: skip
OF_TWO_INTS = (
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
)

PAIRS = [("gpu:0", "gpu:1"), ("gpu:0", "cpu"), ("cpu", "gpu:0")]
FLOATS, INTS, TRUTH = ([1.0, 2.0], "float32"), ([1, 0], "int64"), ([True, False], "bool")


def on(values, device):
    return xdevice.tensor(values[0], device=device, dtype=values[1])


def two(values):
    return lambda p, q: (on(values, p), on(values, q))


CALLS = {
    **{
        name: (two(TRUTH if name.startswith("logical") else FLOATS), lambda f, x, y: f(x, y))
        for name in OF_TWO
    },
    **{name: (two(INTS), lambda f, x, y: f(x, y)) for name in OF_TWO_INTS},
    "diff": (two(FLOATS), lambda f, x, y: f(x, prepend=y)),
    "matmul": (two(FLOATS), lambda f, x, y: f(x, y)),
    "vecdot": (two(FLOATS), lambda f, x, y: f(x, y)),
    "tensordot": (two(FLOATS), lambda f, x, y: f(x, y, axes=1)),
    "concat": (two(FLOATS), lambda f, x, y: f([x, y])),
    "stack": (two(FLOATS), lambda f, x, y: f([x, y])),
    "broadcast_arrays": (two(FLOATS), lambda f, x, y: f(x, y)),
    "isin": (two(INTS), lambda f, x, y: f(x, y)),
    "meshgrid": (two(FLOATS), lambda f, x, y: f(x, y)),
    "clip": (two(FLOATS), lambda f, x, y: f(x, 0.0, y)),
    "where": (lambda p, q: (on(TRUTH, p), on(FLOATS, q)), lambda f, x, y: f(x, y, y)),
    "take": (lambda p, q: (on(FLOATS, p), on(INTS, q)), lambda f, x, y: f(x, y)),
    "take_along_axis": (lambda p, q: (on(FLOATS, p), on(INTS, q)), lambda f, x, y: f(x, y)),
    "repeat": (lambda p, q: (on(FLOATS, p), on(INTS, q)), lambda f, x, y: f(x, y)),
}
OF_ONE = """
    abs acos acosh all any arange argmax argmin argsort asarray asin asinh astype atan atanh bitwise_invert
    broadcast_shapes broadcast_to can_cast ceil conj cos cosh count_nonzero cumulative_prod cumulative_sum empty
    empty_like exp expand_dims expm1 eye finfo flip floor from_dlpack full full_like iinfo imag isdtype isfinite
    isinf isnan linspace log log10 log1p log2 logical_not matrix_transpose max mean min moveaxis negative nonzero
    ones ones_like permute_dims positive prod real reciprocal reshape result_type roll round sign signbit sin sinh
    sort sqrt square squeeze std sum tan tanh tile tril triu trunc unique_all unique_counts unique_inverse
    unique_values unstack var zeros zeros_like
""".split()  # noqa: SIM905  # or they read no values of the others


def namespace():
    """Of the backend that the test runs on; a fixture would be made before that is chosen."""
    if "gpu" not in xdevice.backend().kinds or xdevice.backend().count("gpu") < 2:
        pytest.skip(f"{xdevice.backend().name} has no two GPUs here")
    return xdevice.array_namespace()


def test_no_function_is_forgotten(xd):
    xp = xdevice.array_namespace()
    functions = {name for name in dir(xp) if callable(getattr(xp, name))}
    assert functions == {*CALLS, *OF_ONE}


@pytest.mark.parametrize("places", PAIRS, ids="-".join)
def test_two_devices_are_refused_by_every_function_of_several_tensors(xd, places):
    xp = namespace()
    for name, (make, call) in CALLS.items():
        function = getattr(xp, name)
        for _ in range(2):  # the second time by the fast way
            call(function, *make("gpu:1", "gpu:1"))
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            call(function, *make(*places))


@pytest.mark.parametrize("places", PAIRS, ids="-".join)
def test_they_are_refused_where_dtypes_differ_and_in_every_place(xd, places):
    xp = namespace()
    x, y = on(FLOATS, places[0]), on(FLOATS, places[1])
    is_here, is_there = on(TRUTH, places[0]), on(TRUTH, places[1])
    of_three = [on(([1.0, 2.0, 3.0], "float32"), place) for place in places]
    for call in (
        lambda: xp.add(on(INTS, places[0]), xp.astype(on(INTS, places[1]), xp.int32)),
        lambda: xp.equal(on(INTS, places[0]), xp.astype(on(INTS, places[1]), xp.int32)),
        lambda: xp.where(is_here, x, y),
        lambda: xp.where(is_here, y, x),
        lambda: xp.where(is_there, x, 1.0),
        lambda: xp.where(is_there, x, x),
        lambda: xp.clip(x, y, None),
        lambda: xp.clip(x, x, y),
        lambda: xp.concat([x, x, y]),
        lambda: xp.meshgrid(x, y, indexing="ij"),
        lambda: xp.linalg.cross(*of_three),
        lambda: xp.linalg.outer(x, y),
    ):
        with pytest.raises(
            xdevice.errors.DeviceMismatchError, match=r"is on .*pu:\d.* on .*pu:\d.*to_device"
        ):
            call()


def test_where_operators_compute_on_the_default_device_the_error_says_so(xd):
    xp = namespace()
    x = on(FLOATS, "gpu:1")
    for call in (lambda: xp.add(x, x + x), lambda: xdevice.nn.mse_loss(x + x, x)):
        if xd.name != "tensorflow":
            call()
            continue
        with pytest.raises(
            xdevice.errors.DeviceMismatchError,
            match=r"(use|move all tensors to one device:) xdevice.to_device.* Note that tensorflow computes",
        ):
            call()


def test_numbers_of_python_go_with_every_device(xd):
    xp = namespace()
    x = on(FLOATS, "gpu:1")
    for made in (
        xp.add(x, 1.0),
        xp.multiply(2, x),
        xp.where(on(TRUTH, "gpu:1"), x, 0.0),
        xp.clip(x, 0, 1.5),
    ):
        assert xdevice.device_of(made) is xdevice.device("gpu:1")


def test_a_tensor_without_dimensions_on_the_cpu(xd):
    xp = namespace()
    x, number = on(FLOATS, "gpu:1"), on((2.0, "float32"), "cpu")
    if xdevice.backend().name == "torch":  # as PyTorch has it
        assert xdevice.device_of(xp.multiply(x, number)) is xdevice.device("gpu:1")
        assert xdevice.device_of(xp.multiply(number, x)) is xdevice.device("gpu:1")
    else:
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            xp.multiply(x, number)
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xp.multiply(x, on((2.0, "float32"), "gpu:0"))


def test_what_a_compiled_function_makes_is_on_no_other_device(xd):
    xp = namespace()
    if xdevice.backend().name != "jax":
        pytest.skip("it compiles no function for one device")
    x = on(FLOATS, "gpu:1")
    made = xdevice.backend().framework.jit(lambda x: xp.add(x, xp.ones(2)))(x)
    assert xdevice.device_of(made) is xdevice.device("gpu:1")
    assert xdevice.device_of(xp.ones(2, device="gpu:1")) is xdevice.device("gpu:1")
