"""What every verb of a world gives on two ranks. All run in one world; each is told, and tested, apart."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import numpy as np
from helpers.process_failures import met, report

import xdevice

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS: dict[str, Callable[[xdevice.distributed.World], None]] = {}


def check(
    function: Callable[[xdevice.distributed.World], None],
) -> Callable[[xdevice.distributed.World], None]:
    CHECKS[function.__name__] = function
    return function


def verbs() -> None:
    failed = {}
    with met() as world:
        for name, function in CHECKS.items():
            try:
                function(world)
            except AssertionError:  # noqa: PERF203  # the others are told too
                failed[name] = traceback.format_exc()
    report(good=not failed, ran=list(CHECKS), failed=failed)


def many(rank: int) -> list[np.ndarray]:
    """x[10] stands before x[2] where names are sorted."""
    return [np.array([10 * i + rank]) for i in range(12)]


def mixed(rank: int) -> dict[str, object]:
    """Of another order on each rank."""
    pairs = [("a", np.array([rank])), ("b", {"y": np.ones(2), "x": np.zeros(3)})]
    return dict(reversed(pairs) if rank else pairs)


# all_reduce


@check
def all_reduce_adds_into_the_array_that_is_given(world):
    x = np.arange(4.0) + world.rank
    given = world.all_reduce(x)
    assert given is x
    assert x.tolist() == [1, 3, 5, 7]


@check
def all_reduce_gives_the_largest(world):
    assert world.all_reduce(np.array([world.rank, 5 - world.rank]), "max").tolist() == [1, 5]


@check
def all_reduce_gives_the_mean_of_what_is_in_a_container(world):
    assert world.all_reduce({"a": [np.array([world.rank], "float32")]}, "mean") == {"a": [0.5]}


@check
def all_reduce_takes_a_number(world):
    assert world.all_reduce(np.float32(world.rank), "mean") == 0.5


@check
def all_reduce_leaves_out_what_has_no_weight(world):
    empty = np.full(2, np.nan) if world.rank else np.array([1.0, 2.0])
    assert world.all_reduce(empty, "mean", weight=0 if world.rank else 7).tolist() == [1, 2]


@check
def all_reduce_weighs(world):
    x = np.ones(2) * world.rank
    assert world.all_reduce(x, "mean", weight=1 + 2 * world.rank).tolist() == [0.75] * 2


@check
def all_reduce_adds_16_bit_floats_as_float32(world):
    half = world.all_reduce(np.full(3, 3e4 + world.rank, "float16"), "mean")
    assert half.tolist() == [30000.0] * 3


@check
def all_reduce_takes_dicts_in_any_order(world):
    assert world.all_reduce(mixed(world.rank))["b"]["y"].tolist() == [2, 2]


# all_gather, reduce_scatter


@check
def all_gather_takes_uneven_parts(world):
    rank = world.rank
    assert world.all_gather(np.full((rank, 2), rank), even=False).tolist() == [[1, 1]]


@check
def all_gather_takes_a_number(world):
    assert world.all_gather(np.float64(world.rank)).tolist() == [0, 1]


@check
def all_gather_takes_dicts_in_any_order(world):
    assert world.all_gather(mixed(world.rank))["a"].tolist() == [0, 1]


@check
def all_gather_keeps_the_order_of_many(world):
    assert [x.tolist() for x in world.all_gather(many(world.rank))] == [
        [10 * i, 10 * i + 1] for i in range(12)
    ]


@check
def reduce_scatter_gives_each_rank_its_part_of_the_sum(world):
    assert world.reduce_scatter(np.arange(4)).tolist() == [[0, 2], [4, 6]][world.rank]


# broadcast, send, recv


@check
def broadcast_writes_what_the_root_has(world):
    source = np.arange(6).reshape(3, 2) * 1j if world.rank == 1 else np.zeros((3, 2), complex)
    given = world.broadcast(source, root=1)
    assert given is source
    assert source[2, 1] == 5j


@check
def broadcast_takes_dicts_in_any_order(world):
    assert world.broadcast(mixed(world.rank), root=1)["a"].tolist() == [1]


@check
def what_is_sent_is_received(world):
    if world.rank == 0:
        world.send([np.arange(3), np.ones(2, "int16")], 1)
    else:
        assert [
            x.tolist() for x in world.recv([np.zeros(3, int), np.zeros(2, "int16")], 0)
        ] == [[0, 1, 2], [1, 1]]


@check
def what_is_sent_keeps_the_order_of_many(world):
    if world.rank:
        world.send(many(1), 0)
    else:
        received = world.recv([np.zeros_like(x) for x in many(0)], 1)
        assert [x.item() for x in received] == [10 * i + 1 for i in range(12)]


# training


@check
def split_batch_gives_each_rank_its_rows(world):
    assert (
        world.split_batch(np.arange(5), even=False).tolist() == [[0, 1, 2], [3, 4]][world.rank]
    )


@check
def average_gradients_weighs_and_writes_and_passes_none_over(world):
    gradients = [np.full(n, float(world.rank)) for n in (3, 1, 4)] + [
        None,
        np.ones((2, 2), "float32"),
    ]
    averaged = world.average_gradients(gradients, weight=3 - 2 * world.rank)
    assert averaged[3] is None
    assert [x.tolist() for x in averaged[:3]] == [[0.25] * n for n in (3, 1, 4)]
    assert all(one is another for one, another in zip(averaged, gradients, strict=True))


@check
def average_gradients_takes_more_than_one_bucket(world):
    big = [np.full(5 * 2**20, world.rank + 1.0, "float32") for _ in range(3)]
    assert all(x.min() == x.max() == 1.5 for x in world.average_gradients(big))


# the world


@check
def first_says_who_it_is(world):
    with world.first() as is_first:
        pass
    assert is_first is (world.rank == 0)


@check
def a_world_says_what_it_is(world):
    assert world.engine == "torch:gloo"
    assert (
        repr(world)
        == f"<world: rank {world.rank} of {world.size} by xdevice launch, engine torch:gloo>"
    )
