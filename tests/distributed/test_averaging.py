"""`World.averaging`, and PyTorch's own ways on a world: what they give, refuse and say when a rank fails.

What ranks do is in `averaging_cases.py`. The framework is PyTorch, the engine gloo, and a bucket has 1 MB.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from helpers.environment import needs, sampled
from helpers.process_failures import LATE, Zygote, took

DAMP = 1.5


def started(*modules):
    """What runs a case in ranks that fork from a process which has imported the modules."""
    needs("torch")
    here = Path(__file__).parent
    path = os.pathsep.join(
        [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with Zygote("torch", "torch", *modules, "averaging_cases", PYTHONPATH=path) as zygote:
        yield lambda case, size=2, **variables: zygote.run(
            f"averaging_cases:{case}", size, **variables
        )


run = pytest.fixture(lambda: (yield from started()), scope="module")
run_beside = pytest.fixture(
    lambda: (yield from started("torch._dynamo", "torch.distributed.fsdp")),
    scope="module",
    name="run_beside",
)
"""The same beside PyTorch's own, which import for seconds."""


def assert_good(outcomes):
    for one in outcomes:
        assert one.status == 0, one.printed[-3000:]
        assert one.said.get("good"), one.printed[-3000:]


@pytest.mark.parametrize(
    ("case", "size"),
    sampled(
        [
            ("equals_what_comes_after_it", 2),
            ("equals_what_comes_after_it", 3),
            ("a_model_that_changes", 2),
            ("is_refused", 2),
            ("a_gradient_that_cannot_be_written", 2),
            ("begins_with_other_weights", 2),
            ("writes_too_early", 2),
            ("resumes_with_another_rate", 2),
            ("refused_gradients_leave_the_world_open", 2),
            ("lazy_views", 2),
            ("layers_in_a_list", 2),
        ],
        each_time=[("equals_what_comes_after_it", 2), ("begins_with_other_weights", 2)],
        slow=[
            ("a_model_that_changes", 2),
            ("a_gradient_that_cannot_be_written", 2),
            ("writes_too_early", 2),
            ("refused_gradients_leave_the_world_open", 2),
            ("lazy_views", 2),
            ("layers_in_a_list", 2),
        ],
        others="long",
    ),
)
def test_what_leaves_a_world_in_order(run, case, size):
    assert_good(run(case, size))


@pytest.mark.slow
def test_gradients_travel_while_others_are_computed(run):
    for one in run("travels_during_the_pass"):
        assert 0 < one.said["early"] < one.said["within"] < one.said["in_all"], one.said


@pytest.mark.slow
def test_a_gradient_that_is_none_on_one_rank_is_named(run):
    outcomes = run("none_on_one")
    assert_good(outcomes)
    assert all("first.weight None" in one.said["text"] for one in outcomes)


@pytest.mark.parametrize(
    ("case", "own", "words"),
    sampled(
        [
            (
                "raises_in_the_middle",
                "ValueError",
                "rank 1 raised ValueError: a bug in backward",
            ),
            ("two_passes", "ScopeError", "got a gradient twice in one block"),
            ("a_verb_inside", "ScopeError", "barrier was called inside averaging()"),
        ],
        each_time=[
            (
                "raises_in_the_middle",
                "ValueError",
                "rank 1 raised ValueError: a bug in backward",
            )
        ],
        slow=[("two_passes", "ScopeError", "got a gradient twice in one block")],
        others="long",
    ),
)
def test_what_a_rank_raises_in_the_block_is_told(run, case, own, words):
    first, second = run(case)
    assert (first.said["error"], second.said["error"]) == ("PeerError", own), first.printed[
        -2000:
    ]
    assert words in first.said["text"]


@pytest.mark.parametrize(
    ("case", "why", "within"),
    [
        pytest.param("killed_in_the_middle", "died", 1, marks=pytest.mark.slow),
        pytest.param("stuck_in_the_middle", "late", LATE + 1, marks=pytest.mark.long),
    ],
)
def test_a_rank_that_is_lost_is_named(run, case, why, within):
    first, second = run(case)
    assert (first.said.get("error"), first.said.get("why"), first.said.get("peer")) == (
        "PeerError",
        why,
        1,
    ), first
    assert took([first, second]) <= within + DAMP


# beside PyTorch's own


@pytest.mark.slow
@pytest.mark.parametrize("case", ["equals_ddp", "shards"])
def test_what_torch_does_on_a_world(run_beside, case):
    assert_good(run_beside(case))


@pytest.mark.slow
def test_a_rank_that_dies_in_a_step_of_torch_is_named(run_beside):
    first, _ = run_beside("a_rank_dies_in_their_step")
    assert first.status == 1
    assert "PeerError: rank 1 has died" in first.printed, first.printed[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["own_group", "own_group_of_other_ranks"])
def test_a_group_that_the_program_has_made_is_left_or_refused(run, case):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    outcomes = run(case, OWN_PORT=str(port))
    if case == "own_group":
        assert_good(outcomes)
    else:
        assert all(
            "rank 0: rank 1 of 2; rank 1: rank 0 of 2" in one.said["text"] for one in outcomes
        ), outcomes
