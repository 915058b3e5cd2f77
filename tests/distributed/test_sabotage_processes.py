"""The tests of several processes bite: one fault at a time is planted, and noticed; without it all is well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from helpers.environment import BACKENDS, NEEDS_PROC, ROOT, family
from helpers.process_failures import FAILURES, Zygote, fault

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or "torch" not in BACKENDS, reason="needs fork and gloo"
)
PATIENCE = 12.0


def path():
    return os.pathsep.join(
        [str(ROOT / "tests" / "distributed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


@pytest.fixture(scope="module")
def zygote():
    with Zygote(
        "numpy",
        "xdevice_torch.distributed.processes",
        "world_cases",
        "process_faults",
        "averaging_cases",
        PYTHONPATH=path(),
    ) as found:
        yield found


# what is wrong with how the ranks of a case ended; nothing where all is well


def good(outcomes):
    return (
        ""
        if all(one.said.get("good") and one.status == 0 for one in outcomes)
        else f"{outcomes}"
    )


def first_is_good(outcomes):
    return "" if outcomes[0].said.get("good") else f"{outcomes[0]}"


def both_say(words):
    return lambda outcomes: (
        ""
        if all(words in one.said.get("text", one.printed) for one in outcomes)
        else "not said"
    )


def ended(outcomes):
    return "" if all(one.status == 1 for one in outcomes) else "still there"


def nobody_in(outcomes):
    return "entered" if any(one.said.get("good") for one in outcomes) else ""


def in_turn(outcomes):
    first, second = (one.said["at"] for one in outcomes)
    return "" if first <= second else "side by side"


def in_the_pass(outcomes):
    return (
        ""
        if all(0 < one.said.get("early", 0) < one.said["in_all"] for one in outcomes)
        else "after it"
    )


CASES = {
    **{name: (name, lambda outcomes, name=name: fault(name, outcomes)) for name in FAILURES},
    "verbs": ("helpers.world_verbs:verbs", good),
    "what takes long": ("world_cases:waits_for_a_child", good),
    "exit hooks that hang": ("world_cases:hanging_hooks", ended),
    "closed for good": ("world_cases:closed_for_good", first_is_good),
    "an engine that fails": ("process_faults:engine_fails", both_say("the cable is cut")),
    "secrets differ": ("process_faults:secrets_differ", nobody_in),
    "another world": ("process_faults:a_late_comer_of_another_world", nobody_in),
    "first": ("process_faults:waits_in_first", in_turn),
    "float64": ("process_faults:float64_is_kept", good),
    "16-bit floats": ("process_faults:halves_are_added_as_float32", good),
    "inputs": ("process_faults:inputs_stay", good),
    "gradients": ("averaging_cases:equals_what_comes_after_it", good),
    "gradients travel": ("averaging_cases:travels_during_the_pass", in_the_pass),
    "a gradient is None": ("averaging_cases:none_on_one", both_say("first.weight None")),
    "a gradient cannot be written": ("averaging_cases:a_gradient_that_cannot_be_written", good),
    "a model changes": ("averaging_cases:a_model_that_changes", good),
}
"""What runs, and what has to come of it."""
FAULTS = {
    "no_vote": "shapes differ",
    "no_operation": "operations differ",
    "no_verb": "order differs",
    "no_dtype": "dtypes differ",
    "no_shape": "shapes differ",
    "no_weight": "verbs",
    "narrow": "float64",
    "half": "16-bit floats",
    "root_is_0": "verbs",
    "padded": "verbs",
    "inputs_are_lost": "inputs",
    "deaf": "killed",
    "nobody_is_told": "raises",
    "nobody_is_late": "stuck",
    "at_once_late": "what takes long",
    "exit_hooks_run": "exit hooks that hang",
    "errors_are_swallowed": "an engine that fails",
    "open_again": "closed for good",
    "first_waits_for_nobody": "first",
    "not_divided": "gradients",
    "after_the_pass": "gradients travel",
    "nobody_asks_for_nones": "a gradient is None",
    "old_plans_are_kept": "a model changes",
    "means_are_lost": "a gradient cannot be written",
    "no_secret": "secrets differ",
    "one_world_is_as_good_as_another": "another world",
}
"""A function of `process_faults.py`, and which case notices it."""
IN_CI = {"no_operation", "no_weight", "deaf"}


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.long)
        for name in FAULTS
    ],
)
def test_a_fault_is_noticed(zygote, planted):
    job, wrong = CASES[FAULTS[planted]]
    honest = zygote.run(job, patience=PATIENCE)
    assert wrong(honest) == ""
    assert wrong(zygote.run(job, setup=f"process_faults:{planted}", patience=PATIENCE)) != ""


def test_each_fault_can_be_planted(zygote):
    # a rank that fails while a fault is planted, for a name that has gone, would count as one that notices it
    outcomes = {
        name: zygote.run("process_faults:only_planted", size=1, setup=f"process_faults:{name}")
        for name in FAULTS
    }
    assert {name: said for name, ranks in outcomes.items() if (said := good(ranks))} == {}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_a_failure_is_noticed_without_faults(zygote, name):
    job, wrong = CASES[name]
    assert wrong(zygote.run(job)) == ""


# the launcher


SCRIPT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
print("started", flush=True)
if os.environ["XDEVICE_RANK"] == "1" and sys.argv[1] == "raises":
    raise ValueError("a bug in rank 1")
time.sleep(1000)
"""
MAIN = "from xdevice.cli.main import main\nfrom xdevice.distributed import spawning\n{}\nmain()"
LAUNCHER_FAULTS = {
    "the children are left alive": (
        "raises",
        "spawning._Ranks._send_signal_to_all = lambda *_: None\nspawning._GUARD = ''",
    ),
    "what they started is left alive": (
        "raises",
        "spawning._GUARD = ''\nimport os\n"
        "spawning._send_signal = lambda pid, number: bool(number) and os.kill(pid, number)",
    ),
    "nobody guards a launcher that is killed": ("killed", "spawning._GUARD = ''"),
    "the exit status is lost": (
        "raises",
        "run = spawning._Ranks.run\nspawning._Ranks.run = lambda self: run(self) * 0",
    ),
}


def launcher_fault(script, how, plant):
    """What is wrong with how a launcher ends."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", MAIN.format(plant), "launch", "-n", "2", str(script), how]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDEVICE_TEST_MARK": mark},
    )
    for _ in range(2):
        process.stdout.readline()
    if how == "killed":
        process.kill()
    status = process.wait(60)
    process.stdout.close()
    until = time.monotonic() + 5
    while family(mark) and time.monotonic() < until:
        time.sleep(0.05)
    left = family(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if left:
        return f"{len(left)} are left"
    return "" if how == "killed" or status == 1 else f"the status is {status}"


@pytest.mark.long
@NEEDS_PROC
@pytest.mark.parametrize("does", LAUNCHER_FAULTS)
def test_a_fault_of_the_launcher_is_noticed(tmp_path, does):
    how, plant = LAUNCHER_FAULTS[does]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert launcher_fault(script, how, "") == ""
    assert launcher_fault(script, how, plant) != ""
