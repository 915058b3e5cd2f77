"""`xdevice.math.batches`: the same rows on every backend, in order or shuffled, in the container that was given."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import xdevice

Pair = namedtuple("Pair", "x y")


def read(x):
    return xdevice.to_numpy(x).tolist()


@pytest.mark.parametrize(
    ("drop_last", "expected"),
    [(False, [[0, 1, 2], [3, 4, 5], [6]]), (True, [[0, 1, 2], [3, 4, 5]])],
)
def test_rows_come_in_order_in_the_same_container(xd, drop_last, expected):
    y = xdevice.tensor(range(7))
    x = xdevice.array_namespace(y).reshape(
        xdevice.tensor([[float(i), -i] for i in range(7)]), (7, 2)
    )
    made = list(
        xdevice.math.batches(Pair({"x": x, "name": "digits"}, y), 3, drop_last=drop_last)
    )
    assert [read(batch.y) for batch in made] == expected
    assert [read(batch.x["x"]) for batch in made] == [
        [[i, -i] for i in rows] for rows in expected
    ]
    assert all(type(batch) is Pair and batch.x["name"] == "digits" for batch in made)
    assert [read(part) for part in xdevice.math.batches(y, 7, drop_last=True)] == [[*range(7)]]
    assert list(xdevice.math.batches(xdevice.zeros(0, 2), 3)) == []


def test_a_shuffled_order_is_that_of_permutation(xd):
    x, kept = (
        xdevice.tensor([[10.0 * i, i] for i in range(7)]),
        xdevice.tensor([i % 2 == 0 for i in range(7)]),
    )
    with xdevice.random.seed(5):
        order = read(xdevice.random.permutation(7))
    for drop_last, count in ((False, 3), (True, 2)):
        with xdevice.random.seed(5):
            loader = xdevice.math.batches([x, kept], 3, shuffle=True, drop_last=drop_last)
        made = list(loader)
        assert len(made) == count
        rows = [row for batch in made for row in read(batch[0])]
        assert rows == [[10.0 * i, i] for i in order][: 3 * count]
        assert [row for batch in made for row in read(batch[1])] == [i % 2 == 0 for i in order][
            : 3 * count
        ]
        assert {xdevice.device_of(part) for batch in made for part in batch} == {xdevice.cpu()}


def test_prefetch_takes_batches(xd):
    x = xdevice.tensor([1.0, 2.0, 3.0])
    assert [read(part) for part in xdevice.prefetch(xdevice.math.batches(x, 2), "cpu")] == [
        [1.0, 2.0],
        [3.0],
    ]
    with xdevice.random.seed(1):
        expected = [read(part) for part in xdevice.math.batches(x, 2, shuffle=True)]
    with xdevice.random.seed(1):
        assert [
            read(part)
            for part in xdevice.prefetch(xdevice.math.batches(x, 2, shuffle=True), "cpu")
        ] == expected


def test_a_container_that_changes_later_does_not_change_the_batches(xd):
    x = xdevice.tensor([1, 2, 3, 4])
    data = {"inner": [x], "y": x}
    for shuffle in (False, True):
        batches = xdevice.math.batches(data, 2, shuffle=shuffle)
        data["inner"][0] = xdevice.tensor([5, 6, 7, 8])
        data["y"] = data.pop("inner")[0]
        for batch in batches:
            assert list(batch) == ["inner", "y"]
            assert batch["inner"][0].shape == (2,)
            assert xdevice.to_numpy(batch["y"]).max() <= 4
        data = {"inner": [x], "y": x}


def test_each_loop_begins_anew_and_draws_another_order(xd):
    x = xdevice.tensor([float(i) for i in range(20)])
    loader = xdevice.math.batches(x, 10)
    assert len(loader) == 2
    assert [[read(part) for part in loader] for _ in range(2)] == [
        [[*range(10)], [*range(10, 20)]]
    ] * 2
    with xdevice.random.seed(3):
        loader = xdevice.math.batches(x, 10, shuffle=True)
        epochs = [[row for part in loader for row in read(part)] for _ in range(3)]
    with xdevice.random.seed(3):
        assert epochs == [read(xdevice.random.permutation(20)) for _ in range(3)]
    feed = xdevice.prefetch(loader, "cpu")
    assert [sum(len(read(part)) for part in feed) for _ in range(3)] == [20] * 3


def test_rows_in_order_are_views_where_the_framework_has_them():
    with xdevice.use_backend("numpy"):
        x = np.zeros((4, 2), "float32")
        next(iter(xdevice.math.batches(x, 3)))[0, 0] = 1.0
        assert x[0, 0] == 1.0


def test_the_size_may_be_an_int_of_numpy(xd):
    assert [len(batch) for batch in xdevice.math.batches(xdevice.zeros(3, 2), np.int64(2))] == [
        2,
        1,
    ]


def test_what_is_wrong_is_named_at_the_call(xd):
    x = xdevice.zeros(4, 2)
    for size in (0, -1, 2.0, True, "2", np.array([1, 2])):
        with pytest.raises(
            xdevice.errors.ArgumentError, match="batches: size must be a positive int"
        ):
            xdevice.math.batches(x, size)
    with pytest.raises(xdevice.errors.ShapeError, match=r"arrays\['y'\]"):
        xdevice.math.batches({"x": x, "y": xdevice.zeros(3)}, 2)
    with pytest.raises(xdevice.errors.ShapeError, match="no first axis"):
        xdevice.math.batches([xdevice.tensor(1.0)], 2)
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.math.batches({"x": [1, 2]}, 2)


@pytest.mark.virtual
def test_batches_are_where_their_tensors_are(xd):
    if xd.name == "numpy" or not xdevice.num_gpus():
        pytest.skip("no GPU")
    x = xdevice.ones(3, device="gpu:0")
    for shuffle in (False, True):
        assert {
            xdevice.device_of(part) for part in xdevice.math.batches(x, 2, shuffle=shuffle)
        } == {xdevice.gpu(0)}
