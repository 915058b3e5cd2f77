"""What takes a shape, or axes, takes what `x.shape` gives: a tuple, or the framework's own type."""

from __future__ import annotations

import pytest

import xdevice
from xdevice import nn, random

SHAPED = {
    "xp.zeros": lambda xp, s: xp.zeros(s),
    "xp.ones": lambda xp, s: xp.ones(s),
    "xp.empty": lambda xp, s: xp.empty(s),
    "xp.full": lambda xp, s: xp.full(s, 2),
    "xp.reshape": lambda xp, s: xp.reshape(xdevice.ones(6), s),
    "xp.broadcast_to": lambda xp, s: xp.broadcast_to(xdevice.ones(3), s),
    "zeros": lambda xp, s: xdevice.zeros(s),
    "ones": lambda xp, s: xdevice.ones(s),
    "rand": lambda xp, s: xdevice.random.uniform(s),
    "random.uniform": lambda xp, s: random.uniform(s),
    "random.normal": lambda xp, s: random.normal(s),
    "random.integers": lambda xp, s: random.integers(s, high=5),
    "random.bernoulli": lambda xp, s: random.bernoulli(s),
}
SEVERAL = {
    "broadcast_shapes": (lambda xp, s: xp.ones(xp.broadcast_shapes(s, (1, 1))), (2, 1), (2, 1)),
    "tile": (lambda xp, s: xp.tile(xdevice.ones(1), s), (0, 1), (0, 1)),
    "permute_dims": (lambda xp, s: xp.permute_dims(xdevice.ones(2, 3), s), (1, 0), (3, 2)),
    "sum": (lambda xp, s: xp.sum(xdevice.ones(2, 3), axis=s), (0, 1), ()),
    "flip": (lambda xp, s: xp.flip(xdevice.ones(2, 3), axis=s), (0, 1), (2, 3)),
    "squeeze": (lambda xp, s: xp.squeeze(xdevice.ones(1, 1, 2), axis=s), (0, 1), (2,)),
    "roll": (lambda xp, s: xp.roll(xdevice.ones(2, 3), s, axis=s), (0, 1), (2, 3)),
    "moveaxis": (lambda xp, s: xp.moveaxis(xdevice.ones(2, 3), s, s), (0, 1), (2, 3)),
    "repeat": (lambda xp, s: xp.repeat(xdevice.ones(2, 3), s, axis=0), (0, 1), (1, 3)),
    "tensordot": (
        lambda xp, s: xp.tensordot(xdevice.ones(2, 3), xdevice.ones(2, 3), axes=(s, s)),
        (0, 1),
        (),
    ),
    "max_pool2d": (
        lambda xp, s: nn.max_pool2d(xdevice.ones(1, 1, 4, 4), s),
        (2, 1),
        (1, 1, 2, 4),
    ),
    "conv2d": (
        lambda xp, s: nn.conv2d(
            xdevice.ones(1, 1, 4, 4), xdevice.ones(1, 1, 2, 2), stride=s, padding=s
        ),
        (1, 1),
        (1, 1, 5, 5),
    ),
}
TAKES_NO_SHAPE = """
    abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh bitwise_and
    bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays can_cast ceil clip
    concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide empty_like equal exp
    expand_dims expm1 eye hypot imag isin logaddexp nextafter nonzero real searchsorted signbit unique_all unique_counts
    unique_inverse unique_values unstack
    finfo floor floor_divide from_dlpack full_like greater greater_equal iinfo isdtype isfinite isinf isnan less
    less_equal linspace log log10 log1p log2 logical_and logical_not logical_or logical_xor matmul matrix_transpose max
    maximum mean meshgrid min minimum multiply negative not_equal ones_like positive pow prod reciprocal remainder
    result_type round sign sin sinh sort sqrt square stack std subtract take take_along_axis tan tanh tril triu trunc
    var vecdot where zeros_like
""".split()  # noqa: SIM905  # axes of one function are those of `sum`


@pytest.mark.parametrize("function", SHAPED)
def test_a_shape_is_what_a_tensor_gives(xd, function):
    given = xdevice.ones(2, 3).shape
    made = SHAPED[function](xdevice.array_namespace(), given)
    assert tuple(made.shape) == (2, 3)


@pytest.mark.parametrize("function", SEVERAL)
def test_several_ints_are_what_a_tensor_gives(xd, function):
    call, ints, shape = SEVERAL[function]
    given = xdevice.ones(*ints).shape
    assert tuple(call(xdevice.array_namespace(), given).shape) == shape


@pytest.mark.parametrize("function", SHAPED)
def test_what_is_no_shape_is_refused(xd, function):
    for wrong in ("23", 2.5, [1.5, 2], None, {"a": 1}, object()):
        with pytest.raises(xdevice.errors.ShapeError):
            SHAPED[function](xdevice.array_namespace(), wrong)


def test_no_function_is_forgotten(xd):
    xp = xdevice.array_namespace()
    functions = {name for name in dir(xp) if type(getattr(xp, name)).__name__ == "function"}
    tried = {name.removeprefix("xp.") for name in (*SHAPED, *SEVERAL)}
    assert functions - {"bool"} <= tried | set(TAKES_NO_SHAPE)
