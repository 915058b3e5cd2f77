"""What `tensor` makes of numbers, what can be read of odd tensors, and that nothing which was read is an alias."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from helpers.environment import BACKENDS, framework, sampled, with_64_bit
from hypothesis import example, given, settings
from hypothesis import strategies as st

import xdevice
from xdevice.base.dtypes import DTYPES, SHORT_FLOATS, host_dtype
from xdevice.core import registry
from xdevice_numpy import NumpyBackend

REAL = tuple(name for name in DTYPES if not name.startswith("complex"))
WHOLE = tuple(name for name in REAL if "int" in name)
FLOATS = tuple(name for name in REAL if "float" in name)


@pytest.fixture
def backend(xd):
    return xd


# what `tensor` makes of numbers, against exact arithmetic


def expected(number, name):
    """The number in a dtype, by Python's exact arithmetic; None if it does not fit."""
    if name == "bool":
        return number != 0
    if name in WHOLE:
        limits = np.iinfo(name)
        if isinstance(number, float) and not math.isfinite(number):
            return None
        return int(number) if limits.min <= int(number) <= limits.max else None
    return number


def is_nearest(made, number, name):
    """Whether no neighbour in the dtype is nearer to the number. Both ways round a tie are right."""
    if isinstance(number, float) and not math.isfinite(number):
        return made == number or (made != made and number != number)
    kind = host_dtype(name)
    # the neighbour of the greatest is infinity, of which NumPy warns
    with np.errstate(over="ignore"):
        neighbours = [
            made,
            np.nextafter(made, kind.type(np.inf)),
            np.nextafter(made, kind.type(-np.inf)),
        ]
    neighbours = [one for one in neighbours if math.isfinite(float(one))]
    distance = [abs(Fraction(float(one)) - Fraction(number)) for one in neighbours]
    # NumPy and ml_dtypes round to bfloat16 by way of float32, which is off by 2**-16 of a step at most
    slack = (
        abs(Fraction(float(neighbours[1])) - Fraction(float(made))) / 2**15
        if name == "bfloat16"
        else 0
    )
    return distance[0] <= min(distance) + slack


def largest(name):
    return Fraction(float(ml_dtypes.finfo(host_dtype(name)).max))


def check(data, numbers, name):
    """`tensor(data)`, where the data are these numbers."""
    wanted = [expected(number, name) for number in numbers]
    far = name in FLOATS and any(
        math.isfinite(n) and abs(Fraction(n)) > largest(name) * 2 for n in numbers
    )
    if None in wanted or far:
        with pytest.raises(xdevice.errors.DTypeError):
            xdevice.tensor(data, dtype=name)
        return
    try:
        made = xdevice.tensor(data, dtype=name)
    except xdevice.errors.DTypeError:
        # just beyond the largest: NumPy rounds it to that, or to infinity
        assert name in FLOATS
        assert any(math.isfinite(n) and abs(Fraction(n)) > largest(name) for n in numbers)
        return
    assert made.dtype.name == name
    for got, number, exact in zip(made.ravel(), numbers, wanted, strict=True):
        if name in FLOATS:
            assert is_nearest(got, number, name), (got, number)
        else:
            assert got.item() == exact, (got, number)


EDGES = [
    base + near
    for power in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64)
    for base in (2**power, -(2**power))
    for near in (-1, 0, 1)
]
ints = st.one_of(st.sampled_from(EDGES), st.integers(-(2**65), 2**65), st.integers(-300, 300))
floats = st.one_of(
    st.sampled_from([float(edge) for edge in EDGES]), st.floats(width=64), st.floats(-300, 300)
)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(ints, floats, st.booleans()), min_size=1, max_size=4),
    st.sampled_from(REAL),
)
# whose nearest is the greatest that there is
@example([3.402823364973241e38, -3.402823364973241e38], "float32")
@example([3.3895313892515355e38, -3.3895313892515355e38], "bfloat16")
@example([65503.9, -65503.9], "float16")
@example([1.7976931348623157e308], "float64")
def test_numbers_of_python_keep_their_values_or_are_refused(numbers, name):
    with xdevice.use_backend("numpy"):
        check(numbers, numbers, name)
        check([numbers, numbers], numbers * 2, name)
        if len(numbers) == 1:
            check(numbers[0], numbers, name)


@settings(max_examples=300)
@given(st.data(), st.sampled_from([*REAL, *SHORT_FLOATS, "longdouble"]), st.sampled_from(REAL))
def test_arrays_of_each_dtype_keep_their_values_or_are_refused(data, source, name):
    kind = np.dtype(source) if source == "longdouble" else host_dtype(source)
    if source == "bool":
        array = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=4)))
    elif source in WHOLE:
        limits = np.iinfo(source)
        near = st.sampled_from([edge for edge in EDGES if limits.min <= edge <= limits.max])
        array = np.array(
            data.draw(
                st.lists(st.one_of(near, st.integers(limits.min, limits.max)), min_size=1)
            ),
            source,
        )
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.array(data.draw(st.lists(floats, min_size=1, max_size=4))).astype(kind)
    numbers = (
        array.tolist()
        if source in (*WHOLE, "bool", "longdouble")
        else [float(x) for x in array]
    )
    if source == "longdouble":  # no number of Python's: the tests's own are all doubles
        numbers = [float(x) for x in array]
    with xdevice.use_backend("numpy"):
        check(array, numbers, name)


EXTREME = [
    (2.0**63, "int64"), (-(2.0**63) * 1.5, "int64"), (2.0**64, "uint64"), (np.float32(2.0**31), "int32"),
    (np.array([1000], ml_dtypes.bfloat16), "uint8"), (np.array([300, np.nan], ml_dtypes.bfloat16), "int8"),
    (np.array([2**63], "uint64"), "int64"), (np.array([np.inf], "float16"), "int32"), ([2**63, 0.5], "int64"),
    (np.array([300], ml_dtypes.float8_e5m2), "int8"), (np.array([-1], "int8"), "uint8"), (70000, "float16"),
    (np.longdouble(2) ** 200, "float32"), (1 + 0j, "float32"), (np.array([1], object), "float32"),
    (np.array(["1"]), "float32"), (np.zeros(2, "i4,f4"), "float32"), (np.zeros(2, "M8[s]"), "int64"), ("1", "int32"),
    ([np.ma.array([1, 2], mask=[0, 1])], "float32"), ([[np.ma.array([1, 2], mask=[0, 1])]], "int32"),
    (2**1100, "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "dtype"), EXTREME)
def test_no_backend_makes_what_does_not_fit(backend, data, dtype):
    with pytest.raises(xdevice.errors.DTypeError):
        xdevice.tensor(data, dtype=dtype)


def test_every_pair_of_dtypes_on_every_backend(backend):
    with with_64_bit(backend.name):
        for source in (*DTYPES, *SHORT_FLOATS):
            array = np.array([1, 1 if source == "bool" else 64]).astype(host_dtype(source))
            for name in DTYPES:
                if name not in backend.dtypes or (
                    "complex" in source and "complex" not in name
                ):
                    continue
                made = xdevice.to_numpy(xdevice.tensor(array, dtype=name))
                assert made.dtype.name == name
                assert [complex(x) for x in made] == [
                    complex(bool(x) if name == "bool" else x) for x in array
                ], source


def test_large_ints_beside_a_float_stay_exact(backend):
    if backend.name == "jax":
        pytest.skip("no int64 without 64-bit")
    made = xdevice.to_numpy(xdevice.tensor([2**53 + 1, 0.5, -(2**62) - 1], dtype="int64"))
    assert made.tolist() == [2**53 + 1, 0, -(2**62) - 1]


def test_lists_of_tensors_are_stacked(backend):
    there = backend.samples().other_device()
    for device in ("cpu", "cpu" if there is None or there.kind == "meta" else there):
        pair, zero = (
            xdevice.tensor([1, 2], device=device, dtype="float32"),
            xdevice.tensor(3, device=device, dtype="float32"),
        )
        for data, numbers in (
            ([pair, pair], [[1, 2], [1, 2]]),
            ([[pair, [5, 6]], (pair, np.ones(2))], [[[1, 2], [5, 6]], [[1, 2], [1, 1]]]),
            ([zero, zero], [3, 3]),
            (([zero, 1.5], [2, zero]), [[3, 1.5], [2, 3]]),
        ):
            made = xdevice.to_numpy(xdevice.tensor(data))
            assert made.dtype == "float32"
            assert made.tolist() == numbers
        for ragged in ([pair, zero], [pair, xdevice.ones(3)]):
            with pytest.raises(xdevice.errors.DTypeError, match="cannot make a tensor from"):
                xdevice.tensor(ragged)
    for dtype in sorted(name for name in backend.dtypes if backend.dtype_refusal(name) is None):
        x = xdevice.tensor([1, 0], dtype=dtype)
        expected = xdevice.to_numpy(x)
        made = xdevice.to_numpy(xdevice.tensor([x, x], dtype=dtype))
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, [expected, expected])


def test_a_list_of_tensors_with_gradients_is_stacked():
    torch = framework("torch")
    x = torch.ones(2, requires_grad=True)
    with xdevice.use_backend("torch"):
        assert xdevice.tensor([x, x]).tolist() == [[1, 1], [1, 1]]
        nested: list = []
        nested.append(nested)
        with pytest.raises(xdevice.errors.DTypeError):
            xdevice.tensor(nested)


def test_a_shape_that_nothing_can_hold_is_refused(backend):
    for make in (xdevice.ones, xdevice.zeros, xdevice.random.uniform):
        for shape in ((2**62, 8), (2**61, 4), (2**70,), (2**64, 0), (2**62, 8, 0)):
            with pytest.raises(
                xdevice.errors.ShapeError, match=r"would need 2\*\*63 bytes or more"
            ):
                make(*shape)


@pytest.mark.skipif("mxnet" not in xdevice.backends(), reason="no MXNet")
def test_mxnet_gives_no_other_shape_than_asked_for():
    with xdevice.use_backend("mxnet"):
        for shape in ((2**40, 0), (2**31,), (2**16, 2**16)):
            for make in (xdevice.ones, xdevice.zeros):
                with pytest.raises(xdevice.errors.ShapeError, match=r"sizes up to 2\*\*31 - 1"):
                    make(*shape)
        for shape in ((2**40, 0), (2**31,)):
            with pytest.raises(
                xdevice.errors.ShapeError, match="64 axes of at most 2,147,483,647"
            ):
                xdevice.random.uniform(*shape)
        with pytest.raises(xdevice.errors.ShapeError):
            xdevice.tensor(np.empty((2**40, 0), "float32"))


# odd tensors


def torch_oddities():
    torch = framework("torch")
    parts = [torch.ones(2), torch.ones(3)]
    yield torch.nested.nested_tensor(parts, layout=torch.jagged), "x.unbind()"
    yield torch.nested.nested_tensor(parts), "x.unbind()"
    yield (
        torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8),
        "x.dequantize()",
    )
    yield torch.ones(2, dtype=torch.complex32), "x.to(torch.complex64)"
    yield torch.empty(2, dtype=torch.uint4), "the bytes, x.view(torch.uint8)"
    yield torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])), "x.get_mask()"


def tensorflow_oddities():
    tf = framework("tensorflow")
    yield tf.ragged.constant([[1.0], [2.0, 3.0]]), "x.to_tensor()"
    yield tf.sparse.eye(2), "tf.sparse.to_dense(x)"
    yield (
        tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([3, 2])),
        "tf.convert_to_tensor(x)",
    )
    yield tf.data.Dataset.range(2)._variant_tensor, "the object to which the tensor refers"


def jax_oddities():
    jax = framework("jax")
    yield jax.random.key(0), "jax.random.key_data(x)"
    yield jax.random.split(jax.random.key(0), 2), "jax.random.key_data(x)"


def numpy_oddities():
    yield np.ma.array([1, 2], mask=[0, 1]), "x.filled()"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "oddities", [torch_oddities, tensorflow_oddities, jax_oddities, numpy_oddities]
)
def test_what_numpy_has_no_array_for_is_named_and_says_what_to_read(oddities):
    for x, instead in oddities():
        for read in (
            xdevice.to_numpy,
            xdevice.item,
            xdevice.tensor,
            lambda x: xdevice.to_numpy([x]),
            lambda x: xdevice.parity.compare(x, x),
        ):
            with pytest.raises(xdevice.errors.UnsupportedError) as caught:
                read(x)
            assert instead in str(caught.value), x
        assert xdevice.device_of(x) is xdevice.cpu()
        with pytest.raises((xdevice.errors.UnsupportedError, xdevice.errors.DTypeError)):
            xdevice.convert(x, "torch" if isinstance(x, np.ndarray) else "numpy")


@pytest.mark.filterwarnings("ignore")
def test_what_can_be_copied_is_and_what_cannot_is_named():
    for oddities in (torch_oddities, tensorflow_oddities, jax_oddities, numpy_oddities):
        for x, _ in oddities():
            with suppress(xdevice.errors.UnsupportedError):
                assert type(xdevice.copy_to(x, "cpu")) is type(x)


@pytest.mark.filterwarnings("ignore")
def test_sparse_tensors_are_read_dense():
    eye = np.eye(3, dtype="float32")
    torch, mxnet, paddle = (
        xdevice.backend(name).framework for name in ("torch", "mxnet", "paddle")
    )
    x = torch.eye(3)
    found = [
        x.to_sparse(),
        x.to_sparse_csr(),
        x.to_sparse_csc(),
        torch.eye(3).to_sparse_bsr((1, 1)),
    ]
    found += [mxnet.nd.array(eye).tostype(kind) for kind in ("csr", "row_sparse")]
    found += [paddle.to_tensor(eye).to_sparse_coo(2), paddle.to_tensor(eye).to_sparse_csr()]
    for x in found:
        assert xdevice.to_numpy(x).tolist() == eye.tolist()
        assert xdevice.device_of(x) is xdevice.cpu()


def test_what_is_of_a_type_that_cannot_be_hashed_is_named():
    class Unhashable(type):
        __hash__ = None

    class Batch(dict, metaclass=Unhashable):
        pass

    batch = Batch(x=framework("torch").ones(2))
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"the object is of type .*Batch and contains tensors",
    ):
        xdevice.to_numpy(batch)
    for use in (lambda x: xdevice.to_device(x, "cpu"), lambda x: xdevice.copy_to(x, "cpu")):
        with pytest.raises(
            xdevice.errors.NotATensorError, match=r"of type .*Batch: .* it contains tensors"
        ):
            use(batch)
    # these search objects of unknown types too
    assert xdevice.device_of(batch) is xdevice.check_same_device(batch) is xdevice.cpu()
    assert xdevice.same_device(batch, batch["x"])
    xdevice.sync(batch)
    for use in (
        xdevice.device_of,
        xdevice.same_device,
        xdevice.check_same_device,
        xdevice.sync,
    ):
        with pytest.raises(
            xdevice.errors.NotATensorError, match="of type Hostile: expected a tensor"
        ):
            use(Unhashable("Hostile", (), {})())
    with pytest.raises(xdevice.errors.DTypeError, match="NumPy reads it as object"):
        xdevice.tensor([Unhashable("Hostile", (), {})()])


def test_a_parameter_without_a_shape_is_not_built_yet():
    torch = framework("torch")
    weight = torch.nn.LazyLinear(2).weight
    for use in (
        xdevice.to_numpy,
        xdevice.item,
        lambda x: xdevice.copy_to(x, "cpu"),
        lambda x: xdevice.convert(x, "numpy"),
        lambda x: xdevice.parallel.replicate([x], ["cpu"]),
    ):
        with pytest.raises(xdevice.errors.NotBuiltError, match="call it once on data"):
            use(weight)


# what was read is no alias


class Sharing(NumpyBackend):
    """A GPU whose memory the host can read, as that of an integrated one: `to_numpy` need not copy then."""

    name = "sharing"
    kinds = ("cpu", "gpu")

    def count(self, kind):
        return 1

    def device_of(self, x):
        return xdevice.gpu()


def test_a_legal_adapter_that_shares_memory_gives_no_alias(monkeypatch):
    monkeypatch.setattr(registry, "_owners", {np.ndarray: (Sharing(), "tensor")})
    monkeypatch.setattr(registry, "probes", {})
    x = np.ones(3)
    for read in (xdevice.to_numpy(x), xdevice.to_numpy([x])[0]):
        read[:] = 7
        assert x.tolist() == [1, 1, 1]


def test_what_an_adapter_gives_away_is_its_own(backend):
    """Where a second copy is spared, the first is one."""
    for dtype in sorted(backend.dtypes - {"int64", "uint64", "float64", "complex128"}):
        x = xdevice.tensor([[1, 0, 1]], dtype=dtype)
        for y in (x, x[:, 1:]):
            before = xdevice.to_numpy(y).copy()
            first, second = backend.to_numpy(y), backend.to_numpy(y)
            if backend.gives_away(y):
                assert not np.shares_memory(first, second)
                if first.flags.writeable:
                    first[...] = 0
            xdevice.to_numpy(y)[...] = 0
            assert xdevice.to_numpy(y).tobytes() == before.tobytes()


# NumPy's scalars


SCALARS = [
    np.float32(3),
    np.float64(0.5),
    np.int64(-2),
    np.uint8(7),
    np.bool_(True),
    np.float16(1),
    np.complex64(1j),
    ml_dtypes.bfloat16(3),
]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda x: x.dtype.name)
def test_a_scalar_of_numpy_is_a_tensor_on_its_own(scalar):
    read = xdevice.to_numpy(scalar)
    assert type(read) is np.ndarray
    assert (read.shape, read.dtype, read.item()) == ((), scalar.dtype, scalar.item())
    assert xdevice.device_of(scalar) is xdevice.cpu()
    assert xdevice.same_device(scalar, np.ones(2))
    assert xdevice.check_same_device(x=scalar) is xdevice.cpu()
    assert xdevice.to_device(scalar, "cpu") is scalar
    assert xdevice.copy_to(scalar, "cpu") == scalar
    assert xdevice.item(scalar) == scalar.item()
    assert xdevice.parity.compare(scalar, read).ok
    xdevice.sync(scalar)
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(xdevice.errors.DeviceNotFoundError, match="numpy"):
            verb(scalar, "gpu:0")
    for name in BACKENDS:
        if (
            name not in xdevice.backends()
            or name in ("numpy", "mxnet")
            or scalar.dtype.name in ("float64", "int64")
        ):
            continue
        x, (_, z) = (
            xdevice.convert(scalar, name),
            xdevice.convert([np.ones(2, "float32"), scalar], name),
        )
        assert (
            registry.owner_and_kind(type(x))[0].name
            == registry.owner_and_kind(type(z))[0].name
            == name
        )
        assert xdevice.item(x) == xdevice.item(z) == xdevice.item(scalar)
    assert xdevice.convert([scalar], "numpy")[0] is scalar
    with pytest.raises(BufferError, match="no memory to share"):
        xdevice.convert(scalar, "torch", copy=False)


def test_an_item_is_a_number_of_pythons_own():
    for x in (np.array(1.5, ml_dtypes.bfloat16), np.longdouble(1.5)):
        assert type(xdevice.item(x)) is float
        assert xdevice.item(x) == 1.5
    for x in (
        "text",
        np.datetime64("2026-11-28"),
        np.void(b"abc"),
        np.zeros((), [("a", "f4")]),
    ):
        with pytest.raises(
            xdevice.errors.DTypeError,
            match=r"item returns a number, but the element of .* is of dtype ",
        ):
            xdevice.item(np.array(x))


def test_scalars_of_several_devices_are_gathered_and_summed():
    losses = [np.float32(1), np.float32(2)]
    with xdevice.use_backend("numpy"):
        assert xdevice.parallel.gather(losses, "cpu").tolist() == [1, 2]
        assert [x.tolist() for x in xdevice.parallel.all_reduce(losses)] == [3, 3]


def test_in_a_container_a_scalar_of_numpy_is_a_number():
    settings = {
        "rate": np.float64(0.1),
        "steps": np.int64(3),
        "x": np.ones(2),
        "name": np.str_("a"),
    }
    for result in (
        xdevice.to_device(settings, "cpu"),
        xdevice.copy_to(settings, "cpu"),
        xdevice.to_numpy(settings),
    ):
        assert [type(value) for value in result.values()] == [
            np.float64,
            np.int64,
            np.ndarray,
            np.str_,
        ]
    first, second = xdevice.split_batch(
        {"x": np.ones(4), "rate": np.float64(0.1)}, ["cpu", "cpu"]
    )
    assert first["rate"] == second["rate"] == 0.1
    for plain in (3, 0.5, True, 1j, "a", np.str_("a"), np.datetime64("2020")):
        for verb in (
            xdevice.to_numpy,
            xdevice.device_of,
            lambda x: xdevice.to_device(x, "cpu"),
        ):
            with pytest.raises(xdevice.errors.NotATensorError):
                verb(plain)


# XDEVICE_BLOCKING


def test_a_value_that_blocking_does_not_know_is_named(monkeypatch):
    from xdevice.contract.environment import is_blocking_wanted

    monkeypatch.setenv("XDEVICE_BLOCKING", "true")
    with pytest.raises(
        xdevice.errors.SettingError,
        match="XDEVICE_BLOCKING must be 1 or 0, not 'true'; set XDEV",
    ):
        is_blocking_wanted()


# drawing in traced functions


@pytest.mark.slow
def test_jax_draws_no_numbers_that_stay_the_same():
    jax = framework("jax")
    jnp = jax.numpy
    with xdevice.use_backend("jax"):
        before = np.random.get_state()[1].tolist()
        for use in (
            jax.jit(lambda: xdevice.random.uniform(1)),
            lambda: jax.jit(_add)(jnp.zeros(1)),
            lambda: jax.jit(jax.grad(lambda x: _add(x).sum()))(jnp.zeros(1)),
            lambda: jax.lax.scan(lambda c, _: (_add(c), None), jnp.zeros(1), None, length=3),
            lambda: jax.checkpoint(_add)(jnp.zeros(1)),
        ):
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match="draw the numbers outside and pass them in",
            ):
                use()
        assert np.random.get_state()[1].tolist() == before
        assert jax.grad(lambda x: (x * xdevice.random.uniform(1)).sum())(jnp.ones(1)) > 0
        assert len({float(jax.vmap(_add)(jnp.zeros((3, 1)))[0, 0]) for _ in range(3)}) == 3


def draws(name):
    if name == "torch":
        torch = framework("torch")
        compiled = torch.compile(lambda x: x + xdevice.random.uniform(1), backend="eager")
        return lambda: compiled(torch.zeros(1))
    if name == "tensorflow":
        tf = framework("tensorflow")
        return tf.function(lambda: xdevice.random.uniform(1), autograph=False)
    paddle = framework("paddle")
    if not hasattr(paddle.Tensor, "__dlpack__"):
        pytest.skip("before Paddle 3 to_static rewrites xdevice too")
    static = paddle.jit.to_static(_add, full_graph=True)
    return lambda: static(paddle.zeros([1]))


def _add(x):
    return x + xdevice.random.uniform(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", sampled(["torch", "tensorflow", "paddle"], each_time=["tensorflow"])
)
def test_a_compiled_function_draws_no_numbers_that_stay_the_same(name):
    with xdevice.use_backend(name):
        draw = draws(name)
        if name == "torch":  # torch.compile calls Python each time
            assert len({xdevice.item(draw()) for _ in range(4)}) == 4
            return
        with pytest.raises(
            xdevice.errors.UnsupportedError, match="draw the numbers outside and pass them in"
        ):
            draw()


# models that are not built


def unbuilt_torch():
    torch = framework("torch")
    yield lambda: torch.nn.LazyLinear(2)
    yield lambda: torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.LazyLinear(2))
    )
    yield lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyBatchNorm1d())


def unbuilt_tensorflow():
    tf = framework("tensorflow")
    keras = tf.keras
    yield lambda: keras.Sequential([keras.layers.Dense(2)])
    yield lambda: keras.layers.Dense(2)

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential([keras.layers.Dense(3)])

        def call(self, x):
            return self.inner(x)

    yield Net

    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable([1.0])
            self.dense = [keras.layers.Dense(2)]

    yield Module


def unbuilt_mxnet():
    gluon = framework("mxnet").gluon

    def made(initialize, *layers):
        net = gluon.nn.HybridSequential()
        net.add(*layers)
        if initialize:
            net.initialize()
        return net

    yield lambda: made(True, gluon.nn.Dense(2))
    yield lambda: made(False, gluon.nn.Dense(2, in_units=3))
    yield lambda: made(
        True,
        gluon.nn.Dense(2, in_units=3),
        made(False, gluon.nn.BatchNorm(), gluon.nn.Dense(2)),
    )
    yield lambda: made(True, gluon.nn.Dense(2)).collect_params()


def unbuilt_paddle():
    paddle = framework("paddle")

    def lazy():
        with paddle.LazyGuard():
            return paddle.nn.Linear(3, 2)

    yield lazy
    yield lambda: paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Sequential(lazy()))


@pytest.mark.parametrize(
    "models", [unbuilt_torch, unbuilt_tensorflow, unbuilt_mxnet, unbuilt_paddle]
)
@pytest.mark.parametrize("verb", [xdevice.parallel.replicate, xdevice.parallel.broadcast])
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_not_built_has_no_replicas(models, verb):
    name = models.__name__.partition("_")[2]
    with xdevice.use_backend(name) as backend:
        for make in models():
            net, other = make(), backend.samples().network(3, 2)
            weights = [xdevice.to_numpy(value) for _, value in backend.variables(other)]
            for held in (
                net,
                {"net": net},
                {"other": other, "x": xdevice.ones(2), "nets": [net]},
            ):
                with pytest.raises(xdevice.errors.NotBuiltError):
                    verb(held, ["cpu", "cpu"])
            for before, (_, value) in zip(weights, backend.variables(other), strict=True):
                assert (xdevice.to_numpy(value) == before).all()
            assert len(verb(other, ["cpu", "cpu"])) == 2


# memory that is shared


@pytest.mark.parametrize("name", ["torch", "numpy", "mxnet", "paddle"])
def test_overlapping_tensors_are_not_summed_into_each_other(name):
    if name not in xdevice.backends():
        pytest.skip(f"{name} is not installed")
    with xdevice.use_backend(name):
        base = xdevice.tensor([1.0, 2.0, 4.0])
        whole = base.reshape((3, 1))
        if name == "paddle" and not hasattr(base, "strides"):
            pytest.skip("before Paddle 3 a slice is a copy")
        pairs = [[base[:2], base[1:]], [{"a": base[:2]}, {"a": base[1:]}]]
        pairs += [[{"a": base, "b": base[:2]}, {"a": xdevice.ones(3), "b": xdevice.ones(2)}]]
        if name in ("torch", "numpy"):
            pairs += [[base, whole[:, 0]]]
        for tensors in pairs:
            with pytest.raises(
                xdevice.errors.ContainerError, match="share memory but are not the same tensor"
            ):
                xdevice.parallel.all_reduce(tensors)
            assert xdevice.to_numpy(base).tolist() == [1, 2, 4]
        assert [
            xdevice.to_numpy(x).tolist()
            for x in xdevice.parallel.all_reduce([base[:1], base[2:]])
        ] == [[5], [5]]
        assert [
            xdevice.to_numpy(x).tolist() for x in xdevice.parallel.all_reduce([base, base])
        ] == [
            [10, 4, 10],
            [10, 4, 10],
        ]


@pytest.mark.parametrize("name", ["torch", "numpy", "paddle"])
def test_columns_of_one_tensor_are_summed(name):
    """They have no byte in common, though they begin and end between each other."""
    if name not in xdevice.backends():
        pytest.skip(f"{name} is not installed")
    with xdevice.use_backend(name):
        base = xdevice.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
        results = xdevice.parallel.all_reduce([base[:, :2], base[:, 2:]])
        assert [xdevice.to_numpy(x).tolist() for x in results] == [[[4, 6], [12, 14]]] * 2


# events


def test_an_event_is_refused_at_once_where_there_are_none(backend):
    if backend.count("gpu") and not backend.virtual:
        pytest.skip("real GPUs")
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"events.*xdevice\.Timer"):
        xdevice.accelerator.Event()


@pytest.mark.virtual
@pytest.mark.parametrize("name", BACKENDS[:-1])
def test_virtual_gpus_have_no_events_and_no_streams(name):
    with xdevice.use_backend(name) as backend:
        if not backend.virtual:
            pytest.skip("real GPUs, or none")
        for ask in (
            xdevice.accelerator.Event,
            lambda: xdevice.accelerator.Event("gpu:0"),
            xdevice.accelerator.Stream,
            xdevice.accelerator.Stream.current,
        ):
            with pytest.raises(xdevice.errors.UnsupportedError, match=r"(events|streams).*; "):
                ask()


def test_an_array_that_jax_has_deleted_is_named(tmp_path):
    jax = framework("jax")
    with xdevice.use_backend("jax") as backend:
        x = xdevice.ones(4)
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        assert x.is_deleted()
        there = backend.samples().other_device() or xdevice.cpu()
        uses = [
            lambda: xdevice.copy_to(x, "cpu"),
            lambda: xdevice.copy_to([x], there),
            lambda: xdevice.to_numpy(x),
            lambda: xdevice.item(x),
            lambda: xdevice.tensor(x),
            lambda: xdevice.tensor([x]),
            lambda: xdevice.sync({"x": x}),
            lambda: xdevice.convert(x, "numpy"),
            lambda: xdevice.parity.compare(x, x),
            lambda: xdevice.save(tmp_path / "x.safetensors", {"x": x}),
            lambda: xdevice.split_batch(x, ["cpu", "cpu"]),
            lambda: xdevice.parallel.replicate(x, ["cpu", "cpu"]),
            lambda: xdevice.parallel.gather([x, x], "cpu"),
            lambda: xdevice.parallel.all_reduce([x, x]),
            lambda: list(xdevice.prefetch([x], there)),
        ]
        if there is not xdevice.cpu():
            uses += [lambda: xdevice.to_device(x, there), lambda: xdevice.to_device([x], there)]
        for use in uses:
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=r"jax does not support reading this array .*because it was donated",
            ):
                use()
        assert xdevice.device_of(x) is xdevice.cpu()  # as JAX itself says
        jax.jit(lambda x: xdevice.copy_to(x, "cpu"))(xdevice.ones(2))
