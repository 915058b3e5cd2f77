"""The same bits on every backend, and nothing drawn where an argument is wrong."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import numpy as np
import pytest
from helpers.environment import with_64_bit

import xdevice
from xdevice import random

SUMS = [
    ("uniform", {}, "float16", "84421fce9311353f"),
    ("uniform", {"low": -3, "high": 0.1}, "float16", "fbaa1e27a57b2b48"),
    ("normal", {}, "float16", "53f01aeb0c6e2c29"),
    ("normal", {"loc": 1, "scale": 0.01}, "float16", "7fa66bce5282bc54"),
    ("uniform", {}, "bfloat16", "12bab90b62ef5d6c"),
    ("uniform", {"low": -3, "high": 0.1}, "bfloat16", "a5ed15d80ef82ecc"),
    ("normal", {}, "bfloat16", "d8c448464070274f"),
    ("normal", {"loc": 1, "scale": 0.01}, "bfloat16", "7add616b8ef82f6d"),
    ("uniform", {}, "float32", "d16cce74f57b61f9"),
    ("uniform", {"low": -3, "high": 0.1}, "float32", "3c37905742518336"),
    ("normal", {}, "float32", "200a5059ab19724a"),
    ("normal", {"loc": 1, "scale": 0.01}, "float32", "5c54ca27831132b7"),
    ("uniform", {}, "float64", "d9ed48e129dd9d7a"),
    ("uniform", {"low": -3, "high": 0.1}, "float64", "38fc058e708e7627"),
    ("normal", {}, "float64", "6453881c7df46a0d"),
    ("normal", {"loc": 1, "scale": 0.01}, "float64", "e61712e74bb5f369"),
    ("integers", {"low": -5, "high": 100}, "int8", "c34cdd6e0887ef38"),
    ("integers", {"low": -5, "high": 100}, "int16", "3c0128b0423a8724"),
    ("integers", {"low": -5, "high": 100}, "int32", "74ac54393eafcab0"),
    ("integers", {"low": -5, "high": 100}, "int64", "956fce7e4425343e"),
    ("integers", {"high": 100}, "uint8", "310e869bbaaada41"),
    ("choice", {"p": [0.2, 0.0, 0.5, 0.3]}, "int64", "cb83b5dc9dee138b"),
    ("choice", {"p": np.float32([0.2, 0.0, 0.5, 0.3])}, "int8", "b696072b250bb1a6"),
    ("bernoulli", {"p": 0.3}, "bool", "71841f65ae18b7cf"),
    ("bernoulli", {"p": 0.3}, "float32", "ecd0f12184d480d8"),
    ("bernoulli", {"p": 0.3}, "int32", "a52553bc3ce97cc1"),
]
"""What seed 7 gives in the shape (7, 11): the start of the SHA-256 of the bytes, under NumPy 1.26 and 2.5."""


def digest(x, dtype):
    """Of the bytes in this dtype: JAX without 64-bit has int32 for int64."""
    return hashlib.sha256(xdevice.to_numpy(x).astype(dtype, copy=False).tobytes()).hexdigest()[
        :16
    ]


@pytest.mark.parametrize(("name", "arguments", "dtype", "expected"), SUMS)
def test_the_bits_are_the_same_on_every_backend(
    xd, xd_device, name, arguments, dtype, expected
):
    if dtype not in xd.dtypes:
        pytest.skip(f"{xd.name} has no {dtype}")
    host = xdevice.base.dtypes.host_dtype(dtype)
    draw = getattr(random, name)
    with with_64_bit(xd.name) if dtype == "float64" else nullcontext():
        with random.seed(7):
            x = draw(7, 11, **arguments, device=xd_device, dtype=dtype)
        with random.seed(7), xd_device:
            again = draw(
                (7, 11), **arguments, dtype=xdevice.backend("numpy").framework.dtype(host)
            )
        assert digest(x, host) == digest(again, host) == expected
    assert tuple(x.shape) == (7, 11)
    assert xdevice.device_of(x) == xdevice.device_of(again) == xd_device
    if not (xd.name == "jax" and dtype == "int64"):
        assert xdevice.to_numpy(x).dtype == host


def test_the_order_is_the_same_on_every_backend(xd):
    random.seed(7)
    assert digest(random.permutation(1000), "int64") == "1af032befb100c5d"
    random.seed(7)
    assert digest(random.permutation(1000, dtype="int32"), "int64") == "1af032befb100c5d"


def test_dtypes_are_those_of_the_docstrings(xd):
    made = [
        random.uniform(2),
        random.normal(2),
        random.integers((2,), high=3),
        random.permutation(2),
        random.bernoulli(2),
    ]
    whole = "int32" if xd.name == "jax" else "int64"
    assert [xdevice.to_numpy(x).dtype.name for x in made] == [
        "float32",
        "float32",
        whole,
        whole,
        "bool",
    ]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 1, 3)])
def test_every_shape_is_drawn(xd, shape):
    for draw in (
        random.uniform,
        random.normal,
        lambda *s: random.integers(*s, low=0, high=3),
        random.bernoulli,
    ):
        assert xdevice.to_numpy(draw(shape)).shape == shape
        assert xdevice.to_numpy(draw(*shape)).shape == shape
    assert xdevice.to_numpy(random.permutation(0)).shape == (0,)


def test_numbers_are_those_of_numpys_philox(xd):
    random.seed(12345678901234567890)
    host = np.random.Generator(np.random.Philox(12345678901234567890))
    np.testing.assert_array_equal(
        xdevice.to_numpy(random.uniform(5)), host.random(5, "float32")
    )
    np.testing.assert_array_equal(
        xdevice.to_numpy(random.normal(5)), host.standard_normal(5, "float32")
    )
    np.testing.assert_array_equal(
        xdevice.to_numpy(random.integers(5, low=-2, high=9)), host.integers(-2, 9, 5)
    )
    np.testing.assert_array_equal(xdevice.to_numpy(random.permutation(9)), host.permutation(9))


def test_a_tensor_is_nobody_elses(xd):
    random.seed(0)
    first, second = random.uniform(3), random.uniform(3)
    assert not np.array_equal(xdevice.to_numpy(first), xdevice.to_numpy(second))


# statistics, on NumPy: the bits are the same everywhere


@pytest.fixture
def _numpy():
    with xdevice.use_backend("numpy"), random.seed(3):
        yield


@pytest.mark.usefixtures("_numpy")
def test_numbers_are_spread_as_they_say():
    n = 200_000
    for dtype in ("float32", "float64"):
        x = random.uniform(n, low=-1, high=3, dtype=dtype)
        assert abs(x.mean() - 1) < 0.01
        assert abs(x.var() - 16 / 12) < 0.01
        counts = np.histogram(x, 50, (-1, 3))[0]
        assert (
            (counts - n / 50) ** 2 / (n / 50)
        ).sum() < 100  # chi-square of 49 degrees: 1 in 10,000
        z = random.normal(n, loc=2, scale=3, dtype=dtype)
        assert abs(z.mean() - 2) < 0.03
        assert abs(z.std() - 3) < 0.02
        assert abs((abs(z - 2) < 3).mean() - 0.6827) < 0.005
    k = random.integers(n, low=-2, high=4)
    assert np.unique(k).tolist() == [-2, -1, 0, 1, 2, 3]
    assert abs(np.bincount(k + 2) - n / 6).max() < 700
    assert abs(random.bernoulli(n, p=0.8).mean() - 0.8) < 0.005
    firsts = [random.permutation(4).tolist() for _ in range(2400)]
    assert len({tuple(first) for first in firsts}) == 24
    assert abs(np.bincount([first[0] for first in firsts]) - 600).max() < 100


@pytest.mark.usefixtures("_numpy")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (1, 1.1), (-1, 0), (-3, 0.1), (1000, 1008), (-3e4, 3e4)]
)
def test_the_upper_bound_is_never_drawn(dtype, low, high):
    x = random.uniform(100_000, low=low, high=high, dtype=dtype)
    least, most = x.dtype.type(low), x.dtype.type(high)
    assert (x >= least).all()
    assert (x < most).all()
    assert x.min() < (least + most) / x.dtype.type(2) <= x.max()


@pytest.mark.usefixtures("_numpy")
def test_certain_masks():
    assert random.bernoulli(1000, p=1).all()
    assert not random.bernoulli(1000, p=0).any()
    ones = random.bernoulli(1000, p=0.5, dtype="float32")
    assert np.unique(ones).tolist() == [0, 1]


@pytest.mark.usefixtures("_numpy")
def test_whole_ranges_are_drawn():
    for dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        x = random.integers(20_000, low=limits.min, high=limits.max + 1, dtype=dtype)
        assert (x.min(), x.max()) == (limits.min, limits.max)
    assert random.integers((100,), high=2**64, dtype="uint64").max() > 2**63
    assert (random.normal(100, loc=5, scale=0) == 5).all()


# wrong arguments


WRONG = [
    (
        lambda: random.uniform(2, low=1, high=1),
        xdevice.errors.ArgumentError,
        "low=1 is not below high=1",
    ),
    (
        lambda: random.uniform(2, low=1, high=1 + 1e-9),
        xdevice.errors.ArgumentError,
        "not below high",
    ),
    (
        lambda: random.uniform(2, low="0"),
        xdevice.errors.ArgumentError,
        "low must be a number, not '0' of type str",
    ),
    (
        lambda: random.uniform(2, high=None),
        xdevice.errors.ArgumentError,
        "high must be a number, not None",
    ),
    (
        lambda: random.uniform(2, high=float("inf")),
        xdevice.errors.ArgumentError,
        "high must be a number that fits in float32",
    ),
    (
        lambda: random.uniform(2, high=float("nan")),
        xdevice.errors.ArgumentError,
        "high must be a number that fits in float32",
    ),
    (
        lambda: random.uniform(2, high=1e39),
        xdevice.errors.ArgumentError,
        "fits in float32, not 1e",
    ),
    (
        lambda: random.uniform(2, low=-3e38, high=3e38),
        xdevice.errors.ArgumentError,
        "too wide for float32",
    ),
    (
        lambda: random.uniform(2, dtype="int32"),
        xdevice.errors.DTypeError,
        "cannot draw numbers of dtype int32",
    ),
    (lambda: random.uniform(2, dtype="floaty"), xdevice.errors.DTypeError, "floaty"),
    (lambda: random.uniform(-1, 1), xdevice.errors.ShapeError, "shape"),
    (lambda: random.uniform(0.0, 1.0, (3,)), xdevice.errors.ShapeError, "shape"),
    (lambda: random.uniform(2**62, 2**62), xdevice.errors.ShapeError, "2\\*\\*63 bytes"),
    (lambda: random.uniform(*[1] * 65), xdevice.errors.ShapeError, "axes"),
    (lambda: random.uniform(2, device="gpu:77"), xdevice.errors.DeviceNotFoundError, "gpu:77"),
    (lambda: random.uniform(2, device="gqu"), xdevice.errors.DeviceError, "gqu"),
    (
        lambda: random.normal(2, scale=-1),
        xdevice.errors.ArgumentError,
        "must be at least 0, not -1",
    ),
    (
        lambda: random.normal(2, scale=1e38),
        xdevice.errors.ArgumentError,
        "do not fit in float32",
    ),
    (
        lambda: random.normal(2, loc=3.4e38, scale=1e36),
        xdevice.errors.ArgumentError,
        "do not fit in float32",
    ),
    (lambda: random.normal(2, loc="0"), xdevice.errors.ArgumentError, "loc must be a number"),
    (
        lambda: random.normal(2, dtype="bool"),
        xdevice.errors.DTypeError,
        "cannot draw numbers of dtype bool",
    ),
    (
        lambda: random.integers((2,), high=0),
        xdevice.errors.ArgumentError,
        "low=0 is not below high=0",
    ),
    (
        lambda: random.integers((2,), high=2.0),
        xdevice.errors.ArgumentError,
        "high must be an int, not 2.0 of type float",
    ),
    (
        lambda: random.integers((2,), high=True),
        xdevice.errors.ArgumentError,
        "high must be an int, not True",
    ),
    (
        lambda: random.integers((2,), high=129, dtype="int8"),
        xdevice.errors.DTypeError,
        "integers from 0 to 128 do not fit in int8",
    ),
    (
        lambda: random.integers(2, low=-1, high=2, dtype="uint8"),
        xdevice.errors.DTypeError,
        "do not fit in uint8",
    ),
    (
        lambda: random.integers((2,), high=2**70),
        xdevice.errors.DTypeError,
        "do not fit in int",
    ),
    (
        lambda: random.integers((2,), high=2, dtype="float32"),
        xdevice.errors.DTypeError,
        "cannot draw numbers of dtype float32",
    ),
    (lambda: random.permutation(-1), xdevice.errors.ArgumentError, "not -1"),
    (lambda: random.permutation([1, 2]), xdevice.errors.ArgumentError, "n must be an int"),
    (lambda: random.permutation(2**61), xdevice.errors.ShapeError, "shape"),
    (
        lambda: random.permutation(300, dtype="int8"),
        xdevice.errors.DTypeError,
        "do not fit in int8",
    ),
    (lambda: random.bernoulli(2, p=1.5), xdevice.errors.ArgumentError, "not 1.5"),
    (
        lambda: random.bernoulli(2, p=float("nan")),
        xdevice.errors.ArgumentError,
        "p must be a number",
    ),
    (lambda: random.bernoulli(2, p="x"), xdevice.errors.ArgumentError, "p must be a number"),
    (lambda: random.bernoulli(2, dtype="no"), xdevice.errors.DTypeError, "no"),
    (
        lambda: random.seed(-1),
        xdevice.errors.ArgumentError,
        "a seed must be a non-negative int, not -1",
    ),
    (
        lambda: random.seed(1.0),
        xdevice.errors.ArgumentError,
        "a seed must be an int, not 1.0 of type float",
    ),
    (
        lambda: random.seed(None),
        xdevice.errors.ArgumentError,
        "a seed must be an int, not None",
    ),
    (
        lambda: random.seed(False),
        xdevice.errors.ArgumentError,
        "a seed must be an int, not False",
    ),
]


def test_what_is_wrong_is_refused_by_name_and_nothing_is_drawn(xd):
    random.seed(5)
    expected = xdevice.to_numpy(random.uniform(4))
    random.seed(5)
    for draw, error, text in WRONG:
        with pytest.raises(error, match=text):
            draw()
    np.testing.assert_array_equal(xdevice.to_numpy(random.uniform(4)), expected)


@pytest.mark.xd_only("jax")
def test_what_jax_would_narrow_is_refused_whatever_would_be_drawn(xd):
    random.seed(5)
    expected = xdevice.to_numpy(random.uniform(4))
    random.seed(5)
    for draw in (random.uniform, random.normal, random.bernoulli):
        with pytest.raises(
            xdevice.errors.DTypeError,
            match=r"float64, which jax would narrow; ",
        ):
            draw(2, dtype="float64")
    for shape in ((0,), (1,)):
        with pytest.raises(
            xdevice.errors.DTypeError,
            match="do not fit in int32, which replaces int64 here",
        ):
            random.integers(shape, high=2**31 + 1)
    np.testing.assert_array_equal(xdevice.to_numpy(random.uniform(4)), expected)
    with with_64_bit(xd.name):
        assert xdevice.to_numpy(random.integers((100,), high=2**40)).max() > 2**31


@pytest.mark.xd_only("mxnet")
def test_an_axis_that_mxnet_has_not_is_refused_before_it_is_drawn(xd):
    with pytest.raises(xdevice.errors.ShapeError, match="mxnet supports"):
        random.bernoulli(2**31)


@pytest.mark.usefixtures("_numpy")
def test_indices_are_drawn_with_their_probabilities():
    p = [0.0, 0.1, 0.6, 0.0, 0.3, 0.0]
    counts = np.bincount(random.choice(100_000, p=p), minlength=6) / 100_000
    assert abs(counts - p).max() < 0.01
    assert not counts[[0, 3, 5]].any()
    assert not random.choice(2, 3, p=[1]).any()
    assert not random.choice(100_000, p=[0.9991]).any()


def test_probabilities_may_be_a_tensor_that_is_not_quite_exact(xd):
    with random.seed(1):
        given = xdevice.to_numpy(
            random.choice(50, p=xdevice.tensor([0.1, 0.2, 0.7004]))
        ).tolist()
    with random.seed(1):
        assert (
            xdevice.to_numpy(random.choice(50, p=np.float32([0.1, 0.2, 0.7004]))).tolist()
            == given
        )
    assert set(given) == {0, 1, 2}


@pytest.mark.parametrize(
    ("p", "said"),
    [
        ([], "a vector with at least one probability, but its shape is (0,)"),
        ([[0.5, 0.5]], "but its shape is (1, 2)"),
        (1.0, "but its shape is ()"),
        ("half", "p must be a sequence of probabilities, not 'half'"),
        ([0.5, [0.5]], "p must be a sequence of probabilities"),
        ([0.5, -0.5, 1.0], "p[1] is -0.5"),
        ([0.5, 0.5, float("nan")], "p[2] is nan"),
        ([0.5, 0.4], "the sum of p must be 1, but it is 0.9"),
        ([float("inf")], "the sum of p must be 1, but it is inf"),
    ],
)
@pytest.mark.usefixtures("_numpy")
def test_wrong_probabilities_are_named_and_nothing_is_drawn(p, said):
    with random.seed(0):
        expected = random.uniform(1)[0]
    with random.seed(0):
        with pytest.raises(xdevice.errors.ArgumentError) as raised:
            random.choice(3, p=p)
        assert said in str(raised.value)
        assert random.uniform(1)[0] == expected


@pytest.mark.usefixtures("_numpy")
@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (random.xavier_uniform, lambda inputs, outputs: 2 / (inputs + outputs)),
        (random.xavier_normal, lambda inputs, outputs: 2 / (inputs + outputs)),
        (random.kaiming_uniform, lambda inputs, outputs: 2 / inputs),
        (random.kaiming_normal, lambda inputs, outputs: 2 / inputs),
    ],
)
def test_first_weights_have_the_variance_of_their_fans(draw, expected):
    for shape, inputs, outputs in (((300, 100), 300, 100), ((40, 20, 5, 3), 20 * 15, 40 * 15)):
        x = draw(*shape)
        assert (x.shape, x.dtype) == (shape, "float32")
        assert abs(x.var() / expected(inputs, outputs) - 1) < 0.05
        # sqrt(3) for uniform numbers
        assert bool(abs(x).max() < 1.8 * x.std()) is draw.__name__.endswith("uniform")
    assert draw((0, 0), dtype="float64").dtype == "float64"
    for shape in ((), (3,), (3, 3, 3), (1, 2, 3, 4, 5)):
        with pytest.raises(
            xdevice.errors.ShapeError, match=f"random.{draw.__name__} expects the shape"
        ):
            draw(shape)


def test_first_weights_have_the_same_bits_on_every_backend(xd, xd_device):
    with random.seed(3):
        made = [
            getattr(random, name)(3, 2, device=xd_device)
            for name in random.__all__
            if name[:2] in ("xa", "ka")
        ]
    assert {xdevice.device_of(x) for x in made} == {xd_device}
    assert (
        digest(xdevice.array_namespace(made[0]).concat(made), "float32") == "54fe054ea69b1cf3"
    )
