"""`xdevice.math.at`: what NumPy's assignment gives, on every backend, in new memory and with gradients."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import BACKENDS

import xdevice

INDICES = {
    "an int": 1,
    "from the end": (-1, 2),
    "nothing": (),
    "ellipsis": (..., 0),
    "a slice": (slice(None), slice(1, None, 2)),
    "backwards": (slice(None, None, -1), 1),
    "a new axis": (None, 0),
    "an empty slice": slice(2, 2),
    "a list": [2, 0],
    "lists side by side": ([2, 0, 1], [3, 1, 1]),
    "twice": [1, 1, 0, 1],
    "twice in pairs": ([1, 1, 0, 1, 1], [2, 2, 2, 3, 2]),
    "many times": ([0] * 7 + [2] * 4 + [1], [0] * 7 + [2] * 4 + [1]),
    "rows and a slice": ([2, 2], slice(0, 2)),
    "an array": np.array([[1], [0]]),
    "a mask": np.array([True, False, True]),
    "a whole mask": np.arange(12).reshape(3, 4) % 5 == 0,
    "a mask of nothing": np.zeros((3, 4), bool),
}


def read(x):
    return xdevice.to_numpy(x)


def data(shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))) * 7 % 11 - 3).reshape(shape).astype(dtype)


def as_tensor(index):
    return (
        xdevice.tensor(index, dtype=str(index.dtype))
        if isinstance(index, np.ndarray)
        else index
    )


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_it_gives_what_numpy_gives(xd, index):
    for dtype in ("float32", "int32", "bool"):
        before = data((3, 4), dtype)
        x = xdevice.tensor(before, dtype=dtype)
        whole = data(np.shape(before[index]), dtype)
        for values in {
            whole.shape: whole,
            whole.shape[1:]: whole[0] if whole.ndim and len(whole) else whole,
        }.values():
            expected = before.copy()
            expected[index] = values
            made = xdevice.math.at(x)[as_tensor(index)].set(xdevice.tensor(values, dtype=dtype))
            np.testing.assert_array_equal(read(made), expected)
            assert (read(made).dtype, tuple(made.shape)) == (dtype, (3, 4))
            if dtype != "bool":
                expected = before.copy()
                np.add.at(expected, index, values)
                np.testing.assert_array_equal(
                    read(
                        xdevice.math.at(x)[as_tensor(index)].add(
                            xdevice.tensor(values, dtype=dtype)
                        )
                    ),
                    expected,
                )
        np.testing.assert_array_equal(read(x), before)


def test_it_takes_numbers_and_gives_new_memory(xd):
    x = xdevice.tensor([1.0, 2.0])
    assert read(xdevice.math.at(x)[0].set(5)).tolist() == [5.0, 2.0]
    assert read(xdevice.math.at(x)[xdevice.tensor([1, 1])].add(0.5)).tolist() == [1.0, 3.0]
    assert read(xdevice.math.at(xdevice.tensor([True, False]))[1].set(True)).tolist() == [
        True,
        True,
    ]
    assert read(xdevice.math.at(xdevice.tensor(3.0))[()].add(1)).tolist() == 4.0
    assert xdevice.math.at(x)[:0].set(1.0) is not x


def test_what_is_wrong_is_named(xd):
    x, ints = xdevice.zeros(2, 3), xdevice.tensor([1, 2])
    for index in (
        2,
        -3,
        (0, 3),
        [0, 2],
        (0, 0, 0),
        1.0,
        "a",
        np.array([True]),
        xdevice.tensor([0.5]),
        [0.5],
    ):
        for change in (xdevice.math.at(x)[index].set, xdevice.math.at(x)[index].add):
            with pytest.raises(
                IndexError, match=r"at\(x\)\[\.\.\.\]\.(set|add) on a tensor of shape \(2, 3\)"
            ):
                change(1.0)
    with pytest.raises(
        xdevice.errors.ShapeError, match=r"shape \(2,\) cannot be broadcast to \(3,\)"
    ):
        xdevice.math.at(x)[0].set(xdevice.zeros(2))
    with pytest.raises(
        xdevice.errors.DTypeError, match=r"0\.5 does not fit in a tensor of dtype int"
    ):
        xdevice.math.at(ints)[0].set(0.5)
    with pytest.raises(
        xdevice.errors.DTypeError, match="float32 do not fit in a tensor of dtype int"
    ):
        xdevice.math.at(ints)[0].set(xdevice.tensor(1.0))
    with pytest.raises(xdevice.errors.DTypeError, match="accepts numbers, not bool"):
        xdevice.math.at(xdevice.tensor([True]))[0].add(True)
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.math.at([1.0])[0].set(1.0)
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.math.at(x)[0].set([1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_gradients_flow_to_both_compiled_too(name):
    with xdevice.use_backend(name):
        xp = xdevice.array_namespace()
        x, v = xdevice.tensor([1.0, 2.0, 3.0]), xdevice.tensor([4.0, 5.0, 6.0])
        weights = xdevice.tensor([1.0, 10.0, 100.0])

        def loss(params, change):
            made = getattr(xdevice.math.at(params[0])[[1, 0, 1]], change)(params[1])
            return xp.sum(made * made * weights)

        for change, expected in (
            ("set", [[0.0, 0.0, 600.0], [0.0, 10.0, 120.0]]),
            ("add", [[12.0, 240.0, 600.0], [240.0, 12.0, 240.0]]),
        ):
            for step in (
                xdevice.math.grad(loss),
                xdevice.compile(lambda *given: xdevice.math.grad(loss)(*given)),
            ):
                assert [read(g).tolist() for g in step([x, v], change)] == expected


@pytest.mark.parametrize(
    "name", [name for name in ("jax", "tensorflow", "torch") if name in BACKENDS]
)
def test_an_index_that_is_traced_is_refused(name):
    with xdevice.use_backend(name):
        step = xdevice.compile(lambda x, i: xdevice.math.at(x)[i].set(1.0))
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"values of the index are unknown while .* traces the function; compute the index outside",
        ):
            step(xdevice.zeros(3), xdevice.tensor([1]))


@pytest.mark.virtual
def test_it_stays_on_its_device(xd):
    if xd.name == "numpy" or not xdevice.num_gpus():
        pytest.skip("no GPU")
    x = xdevice.zeros(2, device="gpu:0")
    for change in (xdevice.math.at(x)[[0, 0]].set, xdevice.math.at(x)[[0, 0]].add):
        for values in (1.0, xdevice.ones(2, device="gpu:0")):
            assert xdevice.device_of(change(values)) == xdevice.gpu(0)
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            change(xdevice.ones(2))


@pytest.mark.skipif("torch" not in BACKENDS, reason="PyTorch is not installed")
def test_torch_compile_takes_it_with_the_functions_beside_it():
    import torch

    @torch.compile(backend="eager")
    def computed(x):
        changed = xdevice.math.at(x)[[0, 0]].add(2.0) * xdevice.math.stop_gradient(x)
        return changed + xdevice.math.einsum("i,i", x, x) + xdevice.math.top_k(x, 1)[0]

    assert computed(torch.tensor([1.0, 2.0, 3.0])).tolist() == [22.0, 21.0, 26.0]


class Own(np.matrix):
    pass


@pytest.mark.parametrize("cls", [np.matrix, Own])
def test_a_matrix_of_numpy_is_refused_where_its_rules_would_count(cls):
    """It keeps two dimensions: `at(x)[0, 0]` would be a row of it."""
    with xdevice.use_backend("numpy"):
        x, xp = np.ones((2, 2), "float32").view(cls), xdevice.array_namespace(np.ones(2))
        for call in (
            lambda: xdevice.math.at(x)[0, 0].set(9.0),
            lambda: xdevice.math.at(np.ones((2, 2), "float32"))[0].set(x),
            lambda: xp.sum(x, axis=0),
            lambda: xp.multiply(x, 2.0),
            lambda: xp.multiply(np.ones((2, 2), "float32"), x),
            lambda: xdevice.nn.softmax(x, axis=1),
            lambda: xdevice.nn.cross_entropy(x, np.array([0, 1])),
        ):
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=r"dimensions .*numpy.asarray\(x\)",
            ):
                call()
        assert type(xdevice.copy_to(x, "cpu")) is cls
