"""`xdevice.math.einsum` gives what NumPy's gives, on every backend and with gradients, and refuses the same."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import BACKENDS

import xdevice

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ba", (2, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)),
    ("i,j->ij", (2,), (3,)),
    ("...ij,...jk", (5, 2, 3), (5, 3, 4)),
    ("...ij,jk->...ik", (5, 6, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("i...->...", (2, 3, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ij, jk, kl -> il", (2, 3), (3, 4), (4, 5)),
    ("iJ,JK->Ki", (2, 3), (3, 4)),
    ("ij,kl->", (2, 3), (4, 5)),
    (",i->i", (), (3,)),
    (",->", (), ()),
    ("", ()),
    ("ij,jk->ik", (2, 0), (0, 3)),
]


def numbers(shapes):
    draw = np.random.default_rng(0)
    return [draw.normal(size=shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {len(case)}")
def test_it_gives_what_numpy_gives(xd, case):
    arrays = numbers(case[1:])
    made = xdevice.to_numpy(xdevice.math.einsum(case[0], *map(xdevice.tensor, arrays)))
    expected = np.asarray(np.einsum(case[0].replace(" ", ""), *arrays))
    assert (made.shape, made.dtype) == (expected.shape, "float32")
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_gradients_are_those_of_a_product(name):
    with xdevice.use_backend(name):
        xp = xdevice.array_namespace()
        for text, *shapes in CASES[:-1]:
            arrays = numbers(shapes)
            texts = text.replace(" ", "")
            weights = numbers([np.einsum(texts, *arrays).shape])[0]
            slopes = []
            # it is linear in each: its slope is its value at each unit
            for i, array in enumerate(arrays):
                units = np.eye(array.size, dtype="float32").reshape(array.size, *array.shape)
                at_units = [
                    np.einsum(texts, *arrays[:i], unit, *arrays[i + 1 :]) for unit in units
                ]
                slopes.append(
                    np.reshape([np.sum(one * weights) for one in at_units], array.shape)
                )

            def loss(given, weights, text=text):
                return xp.sum(xp.multiply(xdevice.math.einsum(text, *given), weights))

            for step in (xdevice.math.grad(loss), xdevice.compile(xdevice.math.grad(loss))):
                for g, slope in zip(
                    step(list(map(xdevice.tensor, arrays)), xdevice.tensor(weights)),
                    slopes,
                    strict=True,
                ):
                    np.testing.assert_allclose(
                        xdevice.to_numpy(g), slope, rtol=1e-4, atol=1e-4, err_msg=text
                    )


@pytest.mark.parametrize(
    ("text", "shapes", "error", "said"),
    [
        ("ij;jk", [(2, 3), (3, 4)], xdevice.errors.ArgumentError, "expects subscripts such as"),
        ("i..->i", [(2, 3)], xdevice.errors.ArgumentError, "expects subscripts such as"),
        (3, [(2, 3)], xdevice.errors.ArgumentError, "expects subscripts such as"),
        (
            "ij,jk->ik",
            [(2, 3)],
            xdevice.errors.ArgumentError,
            "describes 2 tensors, but the call has 1",
        ),
        (
            "ij->ik",
            [(2, 3)],
            xdevice.errors.ArgumentError,
            "contains a letter twice, or a letter that no term on the left contains",
        ),
        (
            "ij->ijj",
            [(2, 3)],
            xdevice.errors.ArgumentError,
            "contains a letter twice, or a letter that no term on the left contains",
        ),
        (
            "...i->i",
            [(2, 3)],
            xdevice.errors.ArgumentError,
            "must contain '...', because a term on the left contains '...'",
        ),
        (
            "ij",
            [(2,)],
            xdevice.errors.ShapeError,
            "does not match the axes of a tensor of shape (2,)",
        ),
        (
            "i",
            [(2, 3)],
            xdevice.errors.ShapeError,
            "does not match the axes of a tensor of shape (2, 3)",
        ),
        (
            "ij,jk->ik",
            [(2, 3), (4, 4)],
            xdevice.errors.ShapeError,
            "'j' in 'ij,jk->ik' has the lengths 3 and 4",
        ),
        (
            "ij,j->ij",
            [(2, 3), (1,)],
            xdevice.errors.ShapeError,
            "'j' in 'ij,j->ij' has the lengths 3 and 1",
        ),
        (
            "...i,...i->...",
            [(2, 3), (4, 3)],
            xdevice.errors.ShapeError,
            "... in '...i,...i->...' has the lengths 2 and 4",
        ),
    ],
)
def test_what_is_wrong_is_named(xd, text, shapes, error, said):
    with pytest.raises(error) as raised:
        xdevice.math.einsum(text, *(xdevice.zeros(shape) for shape in shapes))
    assert said in str(raised.value)


def test_only_floats_of_one_backend_are_taken(xd):
    with pytest.raises(xdevice.errors.DTypeError, match="einsum accepts real floats, not int"):
        xdevice.math.einsum("i,i", xdevice.tensor([1, 2]), xdevice.tensor([1, 2]))
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.math.einsum("i")
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.math.einsum("i,", xdevice.ones(2), 2.0)
    other = next(name for name in BACKENDS if name != xd.name)
    with xdevice.use_backend(other):
        y = xdevice.ones(2)
    with pytest.raises(xdevice.errors.ArgumentError, match="convert"):
        xdevice.math.einsum("i,i", xdevice.ones(2), y)


@pytest.mark.virtual
def test_two_devices_are_refused(xd):
    if xd.name == "numpy" or not xdevice.num_gpus():
        pytest.skip("no GPU")
    x = xdevice.ones(2, device="gpu:0")
    assert xdevice.device_of(xdevice.math.einsum("i,i", x, x)) == xdevice.gpu(0)
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xdevice.math.einsum("i,i", x, xdevice.ones(2))


def test_the_greatest_come_first_and_equal_ones_in_order(xd):
    x = np.float32([[1, 3, 2, 3], [-1, -2, -np.inf, -2]])
    values, indices = xdevice.math.top_k(xdevice.tensor(x), 3)
    assert xdevice.to_numpy(values).tolist() == [[3, 3, 2], [-1, -2, -2]]
    assert xdevice.to_numpy(indices).tolist() == [[1, 3, 2], [0, 1, 3]]
    values, indices = xdevice.math.top_k(xdevice.tensor([1.0, float("nan"), 2.0]), 2)
    assert (
        np.isnan(xdevice.to_numpy(values)).tolist(),
        xdevice.to_numpy(indices).tolist(),
    ) == ([True, False], [1, 2])
    values, indices = xdevice.math.top_k(xdevice.tensor([3, 5, 5, -1]), 4)
    assert (xdevice.to_numpy(values).tolist(), xdevice.to_numpy(indices).tolist()) == (
        [5, 5, 3, -1],
        [1, 2, 0, 3],
    )
    for k in (0, 5, 1.0, True):
        with pytest.raises(xdevice.errors.ArgumentError, match="k must be an int from 1 to 4"):
            xdevice.math.top_k(xdevice.tensor(x), k)
    with pytest.raises(xdevice.errors.ShapeError):
        xdevice.math.top_k(xdevice.tensor(1.0), 1)
    with pytest.raises(xdevice.errors.DTypeError):
        xdevice.math.top_k(xdevice.tensor([True]), 1)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_gradients_flow_to_the_greatest(name):
    with xdevice.use_backend(name):
        xp = xdevice.array_namespace()

        def loss(x):
            return xp.sum(xdevice.math.top_k(x, 2)[0] * xdevice.tensor([10.0, 1.0]))

        x = xdevice.tensor([1.0, 3.0, 2.0, 3.0])
        assert xdevice.to_numpy(xdevice.math.grad(loss)(x)).tolist() == [0.0, 10.0, 0.0, 1.0]
