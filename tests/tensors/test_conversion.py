"""`convert` between all pairs of frameworks, in one process: values bit for bit, and memory shared where promised."""

from __future__ import annotations

import collections
import gc
import itertools
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from helpers.environment import BACKENDS, framework, python, with_64_bit
from hypothesis import given, settings
from hypothesis import strategies as st

import xdevice
from xdevice import convert
from xdevice.base.dtypes import DTYPES, dtype_name, host_dtype
from xdevice.contract import dlpack
from xdevice.core import registry

PAIRS = list(itertools.permutations(BACKENDS, 2))

TRIED_IN_ALL_LAYOUTS = {"bool", "int64", "bfloat16", "float32", "complex64"}

SHARED_BY = {
    "compact": set(BACKENDS),
    "misaligned": {"torch", "paddle", "mxnet", "numpy"},
    "strided": {"torch", "paddle", "numpy"},
    "backwards": {"numpy"},
    "never": set(),
}
"""Which targets share memory of which layout: the promise of the docs, written again."""

Pair = collections.namedtuple("Pair", ["left", "right"])


def backend(name):
    if name not in xdevice.backends():
        pytest.skip(f"{name} is not installed")
    return xdevice.backend(name)


@pytest.fixture(autouse=True)
def _with_64_bit():
    with with_64_bit("jax"):
        yield


def aligned(values):
    """The values in memory that begins at a multiple of 64 bytes."""
    memory = np.empty(values.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def can_share(source, target, kind):
    """Whether the versions here keep the promise: Paddle before 3 copies what it imports, and cannot export a view."""
    if target not in SHARED_BY[kind] or backend(target).takes() is None:
        return False
    return (
        source != "paddle"
        or kind in ("compact", "misaligned")
        or backend("paddle").takes() is not None
    )


def needs_sharing(source, target):
    if not can_share(source, target, "compact"):
        pytest.skip(f"{target} {backend(target).version} copies what it imports")


def bits(dtype, *shape):
    """Values of every kind that a dtype has, not only small ones."""
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    native = host_dtype(dtype)
    raw = rng.integers(0, 256, (*shape, native.itemsize), dtype="uint8")
    return np.ascontiguousarray(raw).view(native).reshape(shape)


def make(name, values):
    if name == "numpy":
        return aligned(values)
    return backend(name).from_numpy(values, xdevice.cpu())


def read(x):
    return registry.owner_and_kind(type(x))[0].to_numpy(x)


def address(name, x):
    return backend(name).samples().address(x)


def odd_ones(shape, strides, dtype):
    """An array with strides, in elements, that nobody steps in."""
    room = aligned(bits(dtype, 64))
    return np.lib.stride_tricks.as_strided(
        room, shape, [step * room.itemsize for step in strides]
    )


def layouts(name, dtype):
    """By layout: what `SHARED_BY` calls it, and a tensor that has it."""
    values = bits(dtype, 4, 6)
    x = make(name, values)
    yield "contiguous", "compact", x
    if dtype not in TRIED_IN_ALL_LAYOUTS:
        return
    yield "0-d", "never" if name == "tensorflow" else "compact", make(name, bits(dtype))
    yield "size 1", "compact", make(name, bits(dtype, 1, 3, 1))
    yield (
        "by rows",
        "misaligned" if name in ("torch", "paddle", "numpy", "mxnet") else "compact",
        x[1:],
    )
    if name in ("torch", "paddle", "numpy"):
        yield "transposed", "strided", x.transpose([1, 0]) if name == "paddle" else x.T
        yield "sliced", "strided", x[:, 1:4]
        yield "stepped", "strided", x[::2]
    if name in ("paddle", "numpy"):
        yield "reversed", "backwards", x[::-1]
    if name == "numpy":
        frozen = x.copy()
        frozen.setflags(write=False)
        yield "read-only", "never", frozen
        yield "broadcast", "never", np.broadcast_to(x[:1], (5, 6))
        yield "repeated", "strided", np.lib.stride_tricks.as_strided(x, (5, 6), (0, x.itemsize))
        yield (
            "overlapping",
            "strided",
            np.lib.stride_tricks.as_strided(x, (5, 4), (x.itemsize, x.itemsize)),
        )
        yield "odd strides of size 1", "compact", odd_ones((1, 6, 1), (50, 1, 9), dtype)
        if values.itemsize > 1 and dtype != "bfloat16":
            yield "other byte order", "never", values.astype(values.dtype.newbyteorder())
            yield (
                "misaligned in itself",
                "never",
                np.frombuffer(bytearray(b"0" + values.tobytes()), "uint8")[1:].view(
                    values.dtype
                ),
            )
    if name == "torch":
        import torch

        yield "expanded", "strided", x[:1].expand(5, 6)
        yield "odd strides of size 1", "compact", torch.as_strided(x, (1, 6, 1), (50, 1, 9))
        if dtype == "complex64":
            yield "conjugate", "never", x.conj()
            yield "negative", "never", x.conj().imag
        if x.is_floating_point() or x.is_complex():
            yield "asking for its gradient", "compact", x.clone().requires_grad_()
            yield "parameter", "compact", torch.nn.Parameter(x.clone())
        with torch.inference_mode():
            yield "inference", "compact", x.clone()
    if name == "paddle":
        yield "odd strides of size 1", "compact", x[:1].transpose([1, 0])
    if name == "paddle" and dtype.startswith(("float", "bfloat")):
        asking = x.clone()
        asking.stop_gradient = False
        yield "asking for its gradient", "compact", asking


def assert_same(actual, expected, what):
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    assert actual.tobytes() == expected.tobytes(), what


def requires_grad(name, x):
    return bool(backend(name).samples().requires_grad(x))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_dtype_and_layout_goes_over_bit_for_bit_and_shares_where_promised(source, target):
    dtypes = backend(source).dtypes & backend(target).dtypes
    for dtype in sorted(dtypes):
        for layout, kind, x in layouts(source, dtype):
            what = f"{dtype} {layout}"
            expected = np.asarray(read(x), host_dtype(dtype_name(x.dtype)))
            place = address(source, x)
            kind = "compact" if kind == "misaligned" and place % 64 == 0 else kind
            shareable = can_share(source, target, kind)
            converted = convert(x, target)
            assert_same(read(converted), expected, what)
            assert (address(target, converted) == place) is shareable, what
            assert not requires_grad(target, converted), what
            copied = convert(x, target, copy=True)
            assert_same(read(copied), expected, what)
            assert address(target, copied) != place, what
            assert not requires_grad(target, copied), what
            if shareable:
                assert address(target, convert(x, target, copy=False)) == place, what
            else:
                with pytest.raises(BufferError) as raised:
                    convert(x, target, copy=False)
                assert isinstance(raised.value, xdevice.errors.SharingError)
                assert raised.value.__cause__ is not None
            assert_same(np.asarray(read(x), expected.dtype), expected, f"the source of {what}")


@pytest.mark.parametrize("target", BACKENDS[1:])
def test_strides_that_nobody_steps_in_stay_those_of_the_source(target):
    needs_sharing("torch", target)
    torch = backend("torch").framework
    x = torch.as_strided(torch.arange(64.0), (1, 6, 1), (50, 1, 9))
    convert(x, target, copy=False)
    assert x.stride() == (50, 1, 9)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_tensors_without_elements_are_made_anew(source, target):
    for shape in [(0,), (2, 0, 3)]:
        for copy in (None, True, False):
            converted = convert(make(source, np.zeros(shape, "float32")), target, copy=copy)
            assert read(converted).shape == shape
            assert dtype_name(converted.dtype) == "float32"


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_large_tensors_are_copied_right_too(source, target):
    values = bits("float32", 1100, 1200)
    x = make(source, values)
    assert_same(read(convert(x, target, copy=True)), values, "contiguous")
    if source in ("torch", "paddle", "numpy"):
        assert_same(read(convert(x.T, target)), np.ascontiguousarray(values.T), "transposed")
        assert_same(
            read(convert(x[1:, 1:], target)), np.ascontiguousarray(values[1:, 1:]), "sliced"
        )


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_source_that_is_gone_leaves_its_memory_behind(source, target):
    values = bits("float32", 3000)
    x = make(source, values)
    converted = convert(x, target)
    del x
    gc.collect()
    for _ in range(20):
        make(source, np.zeros(3000, "float32"))
    assert_same(read(converted), values, "kept")


def is_released(alive):
    """Whether what a weak reference points to goes in the end: Paddle's memory is released by another thread."""
    end = time.monotonic() + 200
    while alive() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return alive() is None


@pytest.mark.parametrize("target", BACKENDS[:-1])
def test_memory_is_given_back_with_the_last_tensor_in_it(target):
    needs_sharing("numpy", target)
    x = make("numpy", bits("float32", 3000))
    alive = weakref.ref(x)
    converted = convert(x, target, copy=False)
    del x
    gc.collect()
    assert alive() is not None
    xdevice.sync(converted)
    del converted
    xdevice.sync(backend(target))
    assert is_released(alive)


CHAINS = """
import gc
import numpy as np
from xdevice import convert

for name in ("torch", "tensorflow", "mxnet", "jax", "numpy"):
    x = convert(np.ones(99, "f"), "torch")
    for _ in range(3):
        x = convert(convert(x, "paddle"), name)
    x = convert(x, "paddle")
    del x
    gc.collect()
    print(name, flush=True)
kept = convert(convert(convert(np.ones(99, "f"), "paddle"), "torch"), "paddle")
"""


def test_an_import_that_fails_holds_nothing():
    x = make("numpy", bits("float32", 99))
    alive = weakref.ref(x)
    lent = dlpack.Lent(backend("numpy").export(x))
    with pytest.raises(ZeroDivisionError):
        lent.hand_over(lambda capsule: 1 / 0)
    del x, lent
    assert is_released(alive)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_was_imported_before_ctrl_c_keeps_its_memory(name):
    needs_sharing("numpy", name)
    taken = []

    def interrupted(lent):
        taken.append(backend(name).adopt(lent, "float32"))
        raise KeyboardInterrupt

    x = make("numpy", np.ones(99, "float32"))
    alive = weakref.ref(x)
    with pytest.raises(KeyboardInterrupt):
        dlpack.Lent(backend("numpy").export(x)).hand_over(interrupted)
    del x
    gc.collect()
    assert alive() is not None
    assert read(taken[0]).tolist() == [1.0] * 99
    taken.clear()
    assert is_released(alive)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_exception_passes_what_is_released_on_its_way(source, target):
    x = make(source, bits("float32", 3000))
    with pytest.raises(ZeroDivisionError):
        [convert(x, target), 1 / 0]


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations(["torch", "paddle", "numpy"], 2))
)
def test_what_is_written_through_one_side_is_seen_on_the_other(source, target):
    needs_sharing(source, target)
    x = make(source, np.zeros((2, 3), "float32"))
    converted = convert(x, target)
    x[1] = 5.0
    assert read(converted).tolist() == [[0, 0, 0], [5, 5, 5]]
    if target != "numpy":
        converted[0] = 7.0
        assert read(x).tolist() == [[7, 7, 7], [5, 5, 5]]


def test_an_array_that_numpy_shares_is_not_writable_and_a_copy_is():
    x = make("torch", np.zeros(3, "float32"))
    assert not convert(x, "numpy").flags.writeable
    assert convert(x, "numpy", copy=True).flags.writeable


def test_constants_of_tensorflow_stay_what_they_are():
    tf = backend("tensorflow").framework
    for target in ("torch", "paddle"):
        converted = convert(tf.constant(3.0), target)
        converted.fill_(9.0)
        assert float(tf.constant(3.0)) == 3.0


@pytest.mark.parametrize("source", ["mxnet", "jax"])
@pytest.mark.parametrize("target", BACKENDS)
def test_pending_work_is_waited_for(source, target):
    if source == target:
        return
    needs_sharing(source, target)
    with xdevice.use_backend(source):
        x = xdevice.ones(700, 700)
        x = x / 700
        for _ in range(10):
            x = x @ xdevice.ones(700, 700) / 700
        converted = convert(x, target, copy=False)
        seen = np.array(read(converted))
    assert np.allclose(seen, 1 / 700)


READS = {
    f"convert {copy}": lambda x, copy=copy: convert(x, "numpy", copy=copy)
    for copy in (None, True, False)
} | {
    "to_numpy": xdevice.to_numpy,
    "compare": lambda x: xdevice.parity.compare(x, x),
    "save": lambda x: xdevice.save("never.safetensors", x),
    "tensor": xdevice.tensor,
}


@pytest.mark.parametrize("source", ["tensorflow", "mxnet", "jax"])
@pytest.mark.parametrize("how", READS)
def test_the_error_of_failed_work_comes_out(source, how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = backend(source).samples()
    failing = None
    try:
        with pytest.raises(Exception) as raised:  # noqa: PT012  # the error may come as early as the work
            failing = samples.failing_work()
            READS[how](failing)
        assert not isinstance(raised.value, AssertionError)
        assert not any(tmp_path.iterdir())
    finally:
        # its traceback would keep the work alive, and fail every sync() of the tests to come
        del failing, raised
        with suppress(Exception):
            xdevice.sync(backend(source))
        samples.settle()


# what cannot be converted


@pytest.mark.parametrize("name", BACKENDS)
def test_a_tensor_of_the_target_itself_is_returned(name):
    x = make(name, bits("float32", 2, 3))
    assert convert(x, name) is x
    assert convert(x, name, copy=False) is x
    copied = convert(x, name, copy=True)
    assert address(name, copied) != address(name, x)
    assert_same(read(copied), read(x), name)


@pytest.mark.parametrize("name", ["torch", "paddle", "mxnet"])
def test_a_tensor_of_the_target_loses_its_gradient_only(name):
    x = backend(name).samples().marked(make(name, bits("float32", 2)))
    for copy in (None, False):
        converted = convert(x, name, copy=copy)
        assert not requires_grad(name, converted)
        assert address(name, converted) == address(name, x)
    assert not requires_grad(name, convert(x, name, copy=True))
    assert requires_grad(name, x)


def test_jax_without_64_bit_is_refused_and_never_narrows():
    for dtype in ("int64", "uint64", "float64", "complex128"):
        x = make("torch", bits(dtype, 3))
        with (
            with_64_bit("jax", False),
            pytest.raises(xdevice.errors.DTypeError, match=f"{dtype}.*64-bit"),
        ):
            convert(x, "jax")
        assert dtype_name(convert(x, "jax").dtype) == dtype


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_dtype_that_the_target_lacks_is_refused(source, target):
    for dtype in backend(source).dtypes - backend(target).dtypes:
        for copy in (None, True, False):
            with pytest.raises(
                xdevice.errors.DTypeError, match=f"is {dtype}, but {target} supports"
            ):
                convert(make(source, bits(dtype, 2)), target, copy=copy)


def test_what_is_no_number_is_refused():
    tf = backend("tensorflow").framework
    for x in (
        np.array(["text"]),
        np.array([object()]),
        tf.constant("text"),
        np.zeros(2, "datetime64[s]"),
    ):
        with pytest.raises(xdevice.errors.DTypeError):
            convert(x, "torch")


def test_what_is_not_dense_is_refused():
    torch, tf, paddle, mx = (
        backend(name).framework for name in ("torch", "tensorflow", "paddle", "mxnet")
    )
    sparse = [
        torch.eye(2).to_sparse(),
        tf.sparse.from_dense([[1.0, 0.0]]),
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        paddle.sparse.sparse_coo_tensor([[0], [1]], [1.0], [2, 2]),
        mx.nd.ones((2, 2)).tostype("row_sparse"),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    ]
    for x in sparse:
        for copy in (None, True, False):
            with pytest.raises(xdevice.errors.UnsupportedError, match="convert"):
                convert(x, "jax", copy=copy)


def test_an_8_bit_float_is_refused_as_what_it_is():
    x = backend("torch").framework.ones(2).to(backend("torch").framework.float8_e4m3fn)
    with pytest.raises(
        xdevice.errors.DTypeError,
        match="is float8_e4m3fn, which xdevice only moves, saves and loads; cast it",
    ):
        convert(x, "jax")
    with pytest.raises(
        xdevice.errors.DTypeError,
        match="is float8_e4m3fn, which xdevice only moves, saves and loads; cast the model",
    ):
        xdevice.models.convert_state({"x": x}, "jax", kinds={"x": "same"})


def test_a_model_is_refused_and_told_how_it_goes():
    torch, tf = backend("torch").framework, backend("tensorflow").framework
    import keras

    for variable in (tf.Variable([1.0]), keras.Variable([1.0])):
        with pytest.raises(xdevice.errors.NotATensorError, match=r"tf\.convert_to_tensor"):
            convert(variable, "numpy")
        assert convert(tf.convert_to_tensor(variable), "numpy") == 1
    for model in (torch.nn.Linear(2, 2), tf.Variable([1.0])):
        for x in (model, {"model": model}):
            with pytest.raises(xdevice.errors.NotATensorError, match="convert_state"):
                convert(x, "numpy")


@pytest.mark.parametrize("x", [3, "text", None, np.str_("text")])
def test_what_is_no_tensor_is_refused_alone(x):
    with pytest.raises(xdevice.errors.NotATensorError, match="expected a tensor"):
        convert(x, "numpy")


def test_what_stands_for_a_tensor_of_torch_is_refused():
    torch = framework("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    def refused(x):
        for read in (
            lambda: xdevice.convert(x, "numpy"),
            lambda: xdevice.convert(x, "numpy", copy=False),
            lambda: xdevice.convert(x, "torch"),
            lambda: xdevice.to_numpy(x),
        ):
            with pytest.raises(xdevice.errors.UnsupportedError, match="outside that function"):
                read()
        return x.sum()

    refused(FakeTensorMode().from_tensor(torch.ones(3)))
    torch.vmap(refused)(torch.ones(2, 3))
    torch.func.grad(refused)(torch.ones(3))
    assert xdevice.convert(torch.ones(3), "numpy").sum() == 3


def test_a_symbol_is_refused():
    jax = backend("jax").framework
    with pytest.raises(xdevice.errors.UnsupportedError, match="outside the traced function"):
        jax.jit(lambda x: convert(x, "numpy"))(jax.numpy.ones(2))


def test_another_copy_or_backend_is_refused():
    x = np.ones(2)
    for copy in (1, "yes", np.True_):
        with pytest.raises(TypeError, match="copy must be None"):
            convert(x, "torch", copy=copy)
    with pytest.raises(xdevice.errors.BackendNotFoundError, match="did you mean 'torch'"):
        convert(x, "torhc")
    assert convert(x, "pytorch").tolist() == [1, 1]
    assert convert(x, xdevice.backend("torch")).tolist() == [1, 1]


# devices


def test_a_device_that_the_target_lacks_is_refused():
    torch = backend("torch").framework
    with pytest.raises(
        xdevice.errors.DeviceNotFoundError, match=r"meta:0 does not exist on numpy.*move"
    ):
        convert(torch.empty(2, device="meta"), "numpy")
    with pytest.raises(xdevice.errors.DeviceNotFoundError, match="cpu:1"):
        convert(backend("mxnet").from_numpy(np.ones(2), xdevice.cpu(1)), "torch")


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations(["tensorflow", "mxnet", "jax"], 2))
)
def test_a_device_that_is_not_one_memory_for_both_is_reached_by_a_copy(source, target):
    for name in (source, target):
        if backend(name).samples().other_device() is None:
            pytest.skip(f"{name} was started with one device")
    values = bits("float32", 3, 4)
    x = backend(source).from_numpy(values, xdevice.cpu(1))
    converted = convert(x, target)
    assert xdevice.device_of(converted) is xdevice.cpu(1)
    assert_same(read(converted), values, "cpu:1")
    with pytest.raises(xdevice.errors.SharingError, match="cpu:1"):
        convert(x, target, copy=False)


VIRTUAL = """
import numpy as np
import xdevice

values = np.arange(12, dtype="float32").reshape(3, 4)
names = ("torch", "tensorflow", "paddle", "mxnet", "jax")
for source in names:
    x = xdevice.backend(source).from_numpy(values, xdevice.gpu(1))
    for target in names:
        for copy in (None, True):
            y = xdevice.convert(x, target, copy=copy)
            assert xdevice.device_of(y) is xdevice.gpu(1), (source, target, copy)
            assert (xdevice.to_numpy(y) == values).all(), (source, target, copy)
        try:
            xdevice.convert(x, target, copy=False)
            assert source == target, target
        except xdevice.errors.SharingError:
            pass
print("end")
"""


@pytest.mark.long
def test_virtual_gpus_are_reached_by_a_copy_to_the_same_device():
    done = python("-c", VIRTUAL, XDEVICE_VIRTUAL_GPUS="2")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


# containers


def test_containers_keep_their_type_and_their_shared_tensors():
    torch, paddle = backend("torch").framework, backend("paddle").framework
    x = torch.arange(3.0)
    batch = {"x": [x, x], "pair": Pair(paddle.ones([2]), "label"), "n": 3}
    converted = convert(batch, "numpy")
    assert type(converted["pair"]) is Pair
    assert type(converted["pair"].left) is np.ndarray
    assert converted["pair"].right == "label"
    assert converted["x"][0] is converted["x"][1]
    assert converted["x"][0].tolist() == [0, 1, 2]
    assert converted["n"] == 3
    assert convert(converted, "numpy") is converted
    assert convert([], "torch") == []


ARRAY_SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=4).map(tuple)


@st.composite
def arrays(draw):
    """Arrays of any dtype, with axes swapped, cut, stepped and reversed, at any address."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(ARRAY_SHAPES)
    values = bits(dtype, *shape)
    room = aligned(np.zeros(values.size + 16, values.dtype))
    offset = draw(st.integers(0, 15))
    x = room[offset : offset + values.size].reshape(shape)
    x[...] = values
    x = x.transpose(draw(st.permutations(range(x.ndim))))
    cuts = [slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1)]
    return x[(..., *(draw(st.sampled_from(cuts)) for _ in shape))]


def containers(inside):
    return st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inside, max_size=3),
        st.tuples(inside, inside).map(lambda pair: Pair(*pair)),
    )


def assert_equal(old, new):
    if isinstance(old, np.ndarray):
        assert_same(np.asarray(new), old, old.dtype)
    elif isinstance(old, dict):
        assert list(old) == list(new)
        for key in old:
            assert_equal(old[key], new[key])
    else:
        assert type(old) is type(new)
        for one, other in zip(old, new, strict=True):
            assert_equal(one, other)


@settings(max_examples=150)
@given(
    st.recursive(arrays(), containers, max_leaves=4).filter(lambda x: not isinstance(x, str)),
    st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=4),
    st.sampled_from([None, True]),
)
def test_any_way_there_and_back_is_the_same_bit_for_bit(x, way, copy):
    with with_64_bit("jax"):
        there = x
        for name in way:
            held = set(backend(name).dtypes)
            if all(dtype_name(leaf.dtype) in held for leaf in _tensors(there)):
                there = convert(there, name, copy=copy)
        assert_equal(x, convert(there, "numpy", copy=copy))


def _tensors(x):
    from xdevice.containers import trees

    return [x] if registry.owner_and_kind(type(x)) else trees.Tree(x).leaves


def test_four_threads_convert_at_once():
    for name in BACKENDS:
        backend(name)
    values = bits("float32", 40, 50)
    views = [make("torch", values).T, make("numpy", values)[::-1], make("numpy", values)]

    def many_ways(number):
        for turn in range(60):
            x = views[(number + turn) % len(views)]
            there = convert(x, BACKENDS[turn % len(BACKENDS)])
            back = convert(there, BACKENDS[(number + turn // 2) % len(BACKENDS)])
            assert_same(
                np.ascontiguousarray(read(back)),
                np.ascontiguousarray(read(x)),
                f"turn {turn} of {number}",
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many_ways, range(4)))


# what ends the process, or did

DEADLY = """
import numpy as np
from xdevice import backend, convert, cpu

ones = np.ones((9, 2), "f")
print("a reversed array to torch", flush=True)
convert(ones[::-1], "torch").sum()
print("a reversed tensor of paddle to torch", flush=True)
convert(backend("paddle").from_numpy(ones, cpu())[::-1], "torch").sum()
print("a reversed array to paddle", flush=True)
convert(ones[::-1], "paddle").sum()
print("misaligned arrays to tensorflow", flush=True)
[convert(ones[i:], "tensorflow") * 2 for i in range(9)]
print("misaligned tensors to tensorflow", flush=True)
[convert(backend("torch").from_numpy(ones, cpu())[i:], "tensorflow") * 2 for i in range(9)]
print("bools through mxnet", flush=True)
[convert(convert(ones > 0, "mxnet"), "torch").sum() for _ in range(99)]
print("end", flush=True)
"""


@pytest.mark.slow
def test_what_would_end_the_process_or_hang_is_done_right_and_at_exit():
    done = python("-c", DEADLY + CHAINS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.split()[-6:] == ["end", "torch", "tensorflow", "mxnet", "jax", "numpy"]


def test_the_cost_of_sharing_does_not_grow_with_the_size():
    def least(task):
        times = []
        for _ in range(30):
            start = time.thread_time()  # what other programs take does not count
            task()
            times.append(time.thread_time() - start)
        return min(times)

    x = aligned(np.ones(2**24, "float32"))
    assert least(lambda: convert(x, "torch", copy=False)) < least(lambda: x.max()) / 10, (
        "the values were looked at"
    )


# what is still on its way


OTHERS = [name for name in BACKENDS if name != "torch"]
READINGS = {
    "read": xdevice.to_numpy,
    "saved": lambda x: xdevice.backend("torch").peek(x),
    "copied": lambda x: xdevice.to_numpy(xdevice.copy_to(x, "cpu")),
    "where it is": lambda x: (xdevice.backend("torch").memory_of(x), xdevice.to_numpy(x))[1],
    **{
        f"lent to {name}": lambda x, name=name: xdevice.to_numpy(convert(x, name))
        for name in OTHERS
    },
}


@pytest.mark.parametrize("how", READINGS)
@pytest.mark.parametrize("is_watched", [False, True], ids=["", "weakly referred to"])
def test_what_is_still_arriving_is_waited_for(how, is_watched):
    torch = framework("torch")
    from xdevice_torch import staging

    values = torch.zeros(64)
    x = staging.arriving(values, lambda: values.fill_(3))
    kept = weakref.ref(x) if is_watched else None  # then it cannot become an ordinary tensor
    assert READINGS[how](x).tolist() == [3] * 64
    del kept


# to a device, and like another tensor


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a, b in PAIRS if "numpy" not in (a, b)]
)
def test_to_a_device_in_one_call(source, target):
    with xdevice.use_backend(source):
        x = xdevice.tensor([[1.0, 2.0], [3.0, 4.0]])
    there = xdevice.gpu(1)
    backend(target).require(there)
    made = convert({"x": [x, 3]}, target, device="gpu:1")["x"]
    assert made[1] == 3
    assert xdevice.device_of(made[0]) is there
    assert xdevice.to_numpy(made[0]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    back = convert(made[0], like=x)
    assert (type(back), xdevice.device_of(back)) == (type(x), xdevice.cpu())
    assert xdevice.device_of(convert(x, like=made[0])) is there
    assert xdevice.device_of(convert(made[0], "numpy", device="cpu")) is xdevice.cpu()
    with pytest.raises(xdevice.errors.SharingError, match="cannot be shared on gpu:1"):
        convert(x, target, device="gpu:1", copy=False)


def test_on_the_same_device_memory_is_shared():
    x = aligned(np.ones((2, 3), "float32"))
    for made in (
        convert(x, "torch", device="cpu"),
        convert(x, like=xdevice.backend("torch").framework.ones(1)),
    ):
        assert made.data_ptr() == x.ctypes.data


def test_a_target_is_named_once():
    x = np.ones(2, "float32")
    for arguments in ({}, {"backend": "torch", "like": x}, {"like": x, "device": "cpu"}):
        with pytest.raises(
            xdevice.errors.ArgumentError,
            match="expects either a backend and optionally a device",
        ):
            convert(x, **arguments)
    with pytest.raises(xdevice.errors.NotATensorError, match="like= must be a tensor, not 3"):
        convert(x, like=3)
    with pytest.raises(xdevice.errors.DeviceNotFoundError):
        convert(x, "numpy", device="gpu:0")


def test_a_dtype_that_the_target_lacks_is_refused_before_anything_is_moved(monkeypatch):
    there = backend("mxnet")
    for maker in ("adopt", "from_buffer", "from_numpy"):
        monkeypatch.setattr(type(there), maker, lambda *_: pytest.fail("it was converted"))
    with pytest.raises(xdevice.errors.DTypeError, match="complex64"):
        convert([np.ones(2, "float32"), np.ones(2, "complex64")], "mxnet", device="cpu")
