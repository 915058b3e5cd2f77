"""The namespace where little is known: lengths that come while a function runs, types not seen, shapes that differ."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import SHIMS, printed, sampled

import xdevice

BACKENDS = xdevice.backends()
ARRAY = np.arange(12, dtype="float32").reshape(3, 4)
MISMATCHED = {
    "add": lambda xp, x, y: xp.add(x, y),
    "add of two dtypes": lambda xp, x, y: xp.add(x, xp.astype(y, xp.int32)),
    "clip": lambda xp, x, y: xp.clip(x, y),
    "equal": lambda xp, x, y: xp.equal(x, y),
    "less": lambda xp, x, y: xp.less(x, y),
    "where": lambda xp, x, y: xp.where(xp.greater(x, 0.0), x, y),
    "vecdot": lambda xp, x, y: xp.vecdot(
        xp.reshape(x, (2, 6)), xp.reshape(xp.tile(y, (3, 1)), (4, 6))
    ),
}


@pytest.fixture(
    params=sampled(BACKENDS, each_time=("numpy", "torch"), slow=SHIMS, others="long")
)
def xp(request):
    with xdevice.use_backend(request.param):
        yield xdevice.array_namespace()


def test_shapes_that_do_not_broadcast_are_named(xp):
    x, y = xp.asarray(ARRAY), xp.asarray(ARRAY[:2, :4])
    for function in MISMATCHED.values():
        for _ in range(2):  # the second time by the fast way
            with pytest.raises(
                xdevice.errors.ShapeError,
                match=r"shapes \(\d, \d\).*, \(\d, \d\) cannot be broadcast together",
            ):
                function(xp, x, y)


def test_other_errors_of_a_function_stay_what_they_are(xp):
    with pytest.raises(xdevice.errors.DTypeError):
        xp.logical_and(xp.asarray(ARRAY), xp.asarray(ARRAY[:2]))


def test_an_int_beyond_all_floats(xp):
    with pytest.raises(
        xdevice.errors.DTypeError,
        match="an int of 1329 bits does not fit in float32; pass a smaller number",
    ):
        xp.add(xp.asarray(ARRAY), 10**400)
    with pytest.raises(xdevice.errors.DTypeError, match="1329 bits"):
        xp.full((2,), -(10**400), dtype=xp.float32)


def test_permutation_of_a_tensor(xp):
    with pytest.raises(xdevice.errors.ArgumentError, match="n must be an int"):
        xdevice.random.permutation(xp.asarray(ARRAY))


def traced_of_unknown_lengths(function, *arrays):
    import tensorflow as tf

    with xdevice.use_backend("tensorflow"):
        xp = xdevice.array_namespace()
        given = [tf.constant(array) for array in arrays]
        signature = [tf.TensorSpec([None] * x.ndim, x.dtype) for x in given]
        return xdevice.to_numpy(
            tf.function(lambda *xs: function(xp, *xs), input_signature=signature)(*given)
        )


WITHOUT_LENGTHS = {
    "roll": (lambda xp, x: xp.roll(x, 1, axis=0), lambda x: np.roll(x, 1, 0)),
    "roll twice": (
        lambda xp, x: xp.roll(x, (-5, 2), axis=(0, 1)),
        lambda x: np.roll(x, (-5, 2), (0, 1)),
    ),
    "var": (lambda xp, x: xp.var(x, axis=0, correction=1), lambda x: x.var(0, ddof=1)),
    "std": (lambda xp, x: xp.std(x, keepdims=True), lambda x: x.std(keepdims=True)),
    "take": (lambda xp, x: xp.take(x, xp.asarray([-1, 0]), axis=1), lambda x: x[:, [-1, 0]]),
    "vecdot": (lambda xp, x: xp.vecdot(x, x), lambda x: (x * x).sum(1)),
}


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="TensorFlow is not installed")
@pytest.mark.parametrize("name", sampled(WITHOUT_LENGTHS, each_time=("roll", "var")))
def test_lengths_that_are_not_known_while_tracing(name):
    function, wanted = WITHOUT_LENGTHS[name]
    np.testing.assert_allclose(
        traced_of_unknown_lengths(function, ARRAY), wanted(ARRAY), rtol=1e-6
    )


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="TensorFlow is not installed")
def test_a_length_that_is_known_says_what_one_that_is_not_broadcasts_to():
    import tensorflow as tf

    indices = np.array([[3, 0]] * 3)
    with xdevice.use_backend("tensorflow"):
        xp = xdevice.array_namespace()
        x = xp.asarray(ARRAY)
        signature = [tf.TensorSpec((None, 2), tf.int64)]
        taken = tf.function(
            lambda indices: xp.take_along_axis(x, indices, axis=1), input_signature=signature
        )
        for given in (indices, indices[:1]):
            np.testing.assert_array_equal(
                taken(given).numpy(), np.take_along_axis(ARRAY, indices, 1)
            )


NEED_LENGTHS = {
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=0),
    "tile": lambda xp, x: xp.tile(x, (2, 1)),
    "triu": lambda xp, x: xp.triu(x),
    "tensordot": lambda xp, x: xp.tensordot(x, x),
    "meshgrid": lambda xp, x: xp.meshgrid(x[0])[0],
    "roll without axis=": lambda xp, x: xp.roll(x, 1),
    "fft.fftshift": lambda xp, x: xp.fft.fftshift(x, axes=0),
    "take_along_axis": lambda xp, x: xp.take_along_axis(
        xp.asarray(ARRAY), xp.astype(x, xp.int64), axis=1
    ),
}


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="TensorFlow is not installed")
@pytest.mark.parametrize(
    "name", sampled(NEED_LENGTHS, each_time=("tile", "take_along_axis", "fft.fftshift"))
)
def test_what_needs_all_lengths_is_refused_by_name(name):
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=f"does not support {name} on the shape .*unknown while",
    ):
        traced_of_unknown_lengths(NEED_LENGTHS[name], ARRAY)


NEED_VALUES = {
    "asarray": lambda xp, x: xp.asarray([x, x]),
    "repeat": lambda xp, x: xp.repeat(x, xp.astype(x[:, 0], xp.int64), axis=0),
    "linspace": lambda xp, x: xp.linspace(0.0, x[0, 0], 3),
    "full": lambda xp, x: xp.full((2,), x[0, 0]),
    "to_numpy": lambda xp, x: xdevice.to_numpy(x),
    "to_numpy of a container": lambda xp, x: xdevice.to_numpy({"x": x}),
    "item": lambda xp, x: xdevice.item(x[0, 0]),
}


@pytest.mark.skipif("jax" not in BACKENDS, reason="JAX is not installed")
@pytest.mark.parametrize(
    "name", sampled(NEED_VALUES, each_time=("to_numpy", "full", "asarray"))
)
def test_what_needs_values_is_refused_by_name(name):
    import jax

    with xdevice.use_backend("jax"):
        xp = xdevice.array_namespace()
        traced = jax.jit(lambda x: NEED_VALUES[name](xp, x))
        with pytest.raises(xdevice.errors.UnsupportedError, match="is a symbol while"):
            traced(xp.asarray(ARRAY))


@pytest.mark.slow
@pytest.mark.skipif("torch" not in BACKENDS, reason="PyTorch is not installed")
def test_the_first_function_of_a_process_is_a_compiled_one():
    script = (
        "import torch, xdevice\n"
        "xdevice.use_backend('torch').__enter__()\n"
        "def f(x):\n"
        "    xp = xdevice.array_namespace(x)\n"
        "    return xp.add(xp.mean(x), xp.sum(xdevice.nn.relu(x)))\n"
        "print(xdevice.item(torch.compile(f, backend='eager')(xdevice.tensor([1.0, 2.0, -3.0]))))\n"
    )
    assert printed("-c", script) == "3.0"


@pytest.mark.slow
@pytest.mark.skipif("paddle" not in BACKENDS, reason="Paddle is not installed")
def test_to_static_as_it_is_by_default():
    import paddle

    with xdevice.use_backend("paddle"):
        x = xdevice.tensor(ARRAY)

        def f(x):
            xp = xdevice.array_namespace(x)
            return xp.add(xp.mean(x, axis=0), xp.max(xp.reshape(x, (-1,))))

        expected = xdevice.to_numpy(
            f(x)
        ).tolist()  # first: Paddle cannot trace the imports that pytest rewrites
        assert xdevice.to_numpy(paddle.jit.to_static(f)(x)).tolist() == expected
