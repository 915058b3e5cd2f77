"""A world of several processes: its verbs, what is late and what only takes long, and how it ends.

What ranks do is in `world_cases.py`, its verbs in `helpers/world_verbs.py`. The framework is NumPy, the engine
gloo.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import needs, sampled
from helpers.process_failures import LATE, Zygote, fault, took
from helpers.world_verbs import CHECKS

from xdevice.distributed import signatures

DAMP = 1.5
"""Seconds beyond a promise that a loaded machine may take."""


@pytest.fixture(scope="module")
def zygote():
    needs("torch")  # whose engine NumPy takes
    with Zygote("numpy", "torch", "world_cases", PYTHONPATH=_path()) as found:
        yield found


def _path():
    here = Path(__file__).parent
    return os.pathsep.join(
        [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


@pytest.fixture
def run(zygote):
    return lambda case, size=2, **variables: zygote.run(
        f"world_cases:{case}", size, **variables
    )


def is_good(outcomes):
    return all(one.status == 0 and one.said.get("good") for one in outcomes), [
        one.printed[-2000:] for one in outcomes
    ]


def assert_good(outcomes):
    good, printed = is_good(outcomes)
    assert good, "\n".join(printed)


def assert_told(outcome, error, why=None, peer=None, words=""):
    said = outcome.said
    assert (said.get("error"), said.get("why"), said.get("peer")) == (error, why, peer), (
        outcome.printed[-2000:]
    )
    assert words in said["text"], said["text"]
    assert outcome.status == 1


@pytest.fixture(scope="module")
def verbs(zygote):
    return zygote.run("helpers.world_verbs:verbs")


@pytest.mark.parametrize("name", CHECKS)
def test_a_verb_on_two_ranks(verbs, name):
    for one in verbs:
        assert name in one.said.get("ran", ()), one.printed[-2000:]
        assert name not in one.said["failed"], one.said["failed"][name]


@pytest.mark.slow
def test_what_is_refused_on_one_rank_is_not_the_others_business(run):
    assert_good(run("errors_before_anything_is_said"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param("none_on_one", "gradients['b'] None", marks=pytest.mark.slow),
        ("keys_differ", "x['b'] float64 [2]"),
        ("twice_on_one", "x[1] float64 [2] is tensor 0"),
        pytest.param("shared_on_one", "x[0] and x[1] share memory", marks=pytest.mark.slow),
        pytest.param("numbers_differ", "x['epoch'] is 6", marks=pytest.mark.slow),
        pytest.param("line_breaks_in_names", r"x[a\nb] int64 [2]", marks=pytest.mark.slow),
    ],
)
def test_calls_that_look_alike_and_are_not(run, case, words):
    outcomes = run(case)
    assert [one.status for one in outcomes] == [0, 0], outcomes[0].printed
    assert all(words in one.said["text"] for one in outcomes), outcomes[0].said


@pytest.mark.parametrize(
    "case",
    sampled(
        [
            "two_worlds",
            "weights_of_nothing",
            "verb_in_first",
            "all_exit_with_0",
            "two_threads",
            "many_small_tensors",
        ],
        each_time=["two_worlds", "many_small_tensors"],
        slow=["weights_of_nothing", "all_exit_with_0"],
        others="long",
    ),
)  # fmt: skip
def test_what_leaves_a_world_in_order(run, case):
    outcomes = run(case)
    if case == "two_threads":
        outcomes = outcomes[:1]
    assert_good(outcomes)


def test_the_error_of_the_first_reaches_all(run):
    first, second = run("first_raises")
    assert (first.said["error"], second.said["error"]) == ("OSError", "PeerError")
    assert "rank 0 raised OSError: the disk is full" in second.said["text"]


def test_many_numbers_are_compared_by_digests_that_name_the_place():
    """A frame of the control connection has a largest size."""
    numbers = [10**50 + i for i in range(25_000)]
    text = signatures.non_tensors_text({"n": numbers})
    assert len(text) < 4000
    numbers[12_345] += 1
    items, others = text.split("; "), signatures.non_tensors_text({"n": numbers}).split("; ")
    assert len(items) == len(others)
    assert sum(map(str.__ne__, items, others)) == 1


@pytest.mark.slow
def test_the_error_of_the_first_is_its_own_also_where_another_rank_ends_by_it(run):
    first, second = run("first_raises_and_all_end")
    assert first.said["error"] == "OSError", first.printed
    assert_told(second, "PeerError", "raised", 0, "the disk is full")


def test_indices_are_each_on_one_rank_and_objects_on_all(run):
    assert_good(run("indices_and_objects", 3))


@pytest.mark.slow
def test_an_error_whose_text_raises_reaches_all(run):
    assert_told(
        run("error_without_a_text")[0], "PeerError", "raised", 1, "rank 1 raised UnsaidError"
    )


@pytest.mark.slow
def test_a_child_of_a_rank_is_refused_at_once(run):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = run("child_of_a_rank", XDEVICE_ADDRESS=f"127.0.0.1:{port}")
    assert (first.status, second.status) == (0, 0), second.printed
    assert "another process already has rank 1" in second.said["text"]


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(),
    reason="the system does not tell what others started with",
)
def test_without_an_address_a_child_of_a_rank_is_refused_at_once():
    """As mpirun says it; the ranks are started by a script each, which is no launcher."""
    code = "import world_cases; world_cases.first_child()"
    own = {
        **os.environ,
        "PYTHONPATH": _path(),
        "XDEVICE_BACKEND": "numpy",
        "XDEVICE_SIZE": "2",
        "XDEVICE_LOCAL_SIZE": "2",
    }
    command = ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", code]
    ranks = [
        subprocess.Popen(
            command, env={**own, "XDEVICE_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert "another process already has rank 0" in said[0]


@pytest.mark.slow
def test_max_and_min_with_nan_are_those_of_numpy(run):
    assert_good(run("not_a_number_in_max_and_min", 3))


@pytest.mark.slow
def test_tensors_of_torch_that_a_backward_pass_needs_and_odd_ones(run):
    assert_good(run("tensors_of_torch"))


@pytest.mark.parametrize(
    "case",
    sampled(
        ["computes", "loads_slowly", "waits_for_a_child", "long_first"],
        each_time=(),
        slow=["loads_slowly"],
        others="long",
    ),
)
def test_what_takes_long_is_not_late(run, case):
    assert_good(run(case))


@pytest.mark.parametrize(
    ("case", "why", "words"),
    [
        ("stopped", "silent", "rank 1 has been silent"),
        pytest.param(
            "holds_pythons_lock", "silent", "holds Python's lock", marks=pytest.mark.slow
        ),
        pytest.param(
            "stands_still_and_is_stopped",
            "silent",
            "rank 1 has been silent",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "stopped_in_the_engine", "silent", "rank 1 has been silent", marks=pytest.mark.long
        ),
        pytest.param(
            "stopped_while_another_copies",
            "silent",
            "rank 1 has been silent",
            marks=pytest.mark.slow,
        ),
        pytest.param("stuck_unchecked", "late", "world_cases.py", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_does_not_come_is_told_in_time(run, case, why, words):
    outcomes = run(case)
    assert_told(outcomes[0], "PeerError", why, 1, words)
    assert took(outcomes[:1]) <= LATE + 1 + DAMP


@pytest.mark.slow
def test_a_rank_that_is_stopped_in_a_long_call_is_told_in_time(zygote):
    assert fault("stopped in the middle", zygote.run("stopped in the middle")) == ""


@pytest.mark.long
def test_rank_0_that_is_stopped_is_told(run):
    outcomes = run("first_rank_stopped")
    assert_told(outcomes[1], "PeerError", "silent", 0)
    assert took(outcomes[::-1]) <= LATE + 1 + DAMP


@pytest.mark.parametrize(
    ("case", "rank", "why", "words"),
    sampled(
        [
            ("first_rank_killed", 1, "died", "rank 0 has died"),
            ("leaves", 0, "left", "rank 1 has left the block"),
            ("exits_with_0", 0, "left", "rank 1 has left the block"),
            ("exits_with_3", 0, "raised", "SystemExit: 3"),
            ("ends_without_a_word", 0, "died", "rank 1 has died"),
            ("interrupted", 0, "raised", "KeyboardInterrupt"),
            ("forks", 0, "died", "rank 1 has died"),
        ],
        each_time=[
            ("exits_with_0", 0, "left", "rank 1 has left the block"),
            ("forks", 0, "died", "rank 1 has died"),
        ],
        slow=[
            ("first_rank_killed", 1, "died", "rank 0 has died"),
            ("leaves", 0, "left", "rank 1 has left the block"),
        ],
        others="long",
    ),
)
def test_a_rank_that_goes_is_told_at_once(run, case, rank, why, words):
    outcomes = run(case)
    assert_told(outcomes[rank], "PeerError", why, 1 - rank, words)
    assert took([outcomes[rank], *outcomes]) <= 1 + DAMP
    if case == "leaves":
        assert outcomes[1].status == 1
        assert "rank 1 has left the block, but rank 0 calls all_reduce" in outcomes[1].printed
    if case == "forks":
        assert "forked child" in outcomes[1].said["child"]
    if case == "exits_with_3":
        assert outcomes[1].status == 3


@pytest.mark.slow
def test_an_interrupt_ends_the_wait_and_is_told(run):
    first, second = run("interrupted_while_waiting")
    assert first.status in (130, -2), first.printed
    assert_told(second, "PeerError", "raised", 0, "KeyboardInterrupt")


@pytest.mark.slow
def test_what_was_not_voted_on_is_seen_to_differ_and_ends_the_world(run):
    for outcome in run("order_unchecked"):
        assert_told(outcome, "CollectiveMismatchError", words="check=False")


@pytest.mark.slow
def test_a_failed_world_says_the_same_each_time(run):
    first, _ = run("closed_for_good")
    assert first.said["good"], first.printed
    assert first.said["again"], "and there is no second one"
    assert first.status == 0


@pytest.mark.slow
def test_arguments_differ(run):
    for outcome in run("options_differ"):
        assert_told(outcome, "CollectiveMismatchError", words="check=True")


@pytest.mark.slow
def test_exit_hooks_that_hang_do_not_hang(run):
    for outcome in run("hanging_hooks"):
        assert outcome.status == 1, outcome.printed
        assert "a bug in rank 1" in outcome.printed, "the traceback comes first"


@pytest.mark.long
def test_exit_hooks_that_hang_end_where_the_error_was_caught(run):
    first, _ = run("hanging_hooks_and_caught")
    assert first.said["good"]
    assert first.status == -14, json.dumps(first.said)
