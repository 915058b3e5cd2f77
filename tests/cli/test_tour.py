"""The tour's lines are what a learner pastes: taken off the screen, they run in a fresh Python."""

from __future__ import annotations

import re

import pytest
from support import BACKENDS, python, sampled

import xdevice

FEW = sampled(BACKENDS, each_time=["numpy"], others="long")
PUBLIC = "|".join(xdevice.__all__)
WITHIN = rf"\bbackend\(|samples|\bxdevice\.(?!(?:{PUBLIC})\b)|\._|\bimport (?!xdevice$|time$|os, tempfile$)"
"""What a learner should not have to copy: what is not public, and what belongs to one framework."""


def shown(screen):
    """The code of each part: a part begins with `import xdevice`."""
    lines = re.findall(r"^  (?:>>>|\.\.\.) ?(.*)$", screen, re.MULTILINE)
    starts = [number for number, line in enumerate(lines) if line == "import xdevice"]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_the_code_of_the_tour_runs_when_it_is_pasted(name):
    done = python("-m", "xdevice", "tour", "--backend", name, bare=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for exercise in (1, 2, 3, 4):
        assert f"Exercise {exercise}: " in done.stdout
    first, second = shown(done.stdout)
    assert not re.findall(WITHIN, "\n".join(first + second), re.MULTILINE)
    for part in (first, second):
        pasted = python("-c", "\n".join(part), bare=True)
        assert pasted.returncode == 0, pasted.stderr
    # as it is typed: a prompt shows an expression's value, and goes on after an error
    typed = python("-i", "-q", typed="\n".join(first) + "\n")
    assert typed.returncode == 0, typed.stderr
    assert "Error" not in typed.stderr, typed.stderr


def test_both_halves_of_exercise_3_have_the_same_norms():
    screen = python("-m", "xdevice", "tour", "--backend", "numpy", bare=True).stdout
    norms = re.findall(r">>> timed\((?:one_by_one|kept)\).*\n  \([\d.e-]+, ([\d.]+)\)", screen)
    assert len(norms) == 2
    assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-4)


def test_the_end_of_a_tour_of_all_says_what_ran_and_what_did_not(monkeypatch):
    from xdevice.cli import tour_summary

    monkeypatch.setattr(tour_summary.selection, "backends", lambda: ("torch", "numpy"))
    right = {"backend": "numpy", "version": "2.0", "devices": ["cpu:0"], "failed": []}
    wrong = {"backend": "torch", "version": "?", "devices": [], "failed": ["the process ended by SIGSEGV"]}
    said = tour_summary.words([wrong, right])
    assert "As the chapter says: numpy." in said
    assert "Not as the chapter says, or broken off: torch." in said
    assert "Left out, as not installed: tensorflow (pip install tensorflow); " in said
    assert tour_summary.line(right, 2.4) == "numpy 2.0: 21 steps in 2 s, all as the chapter says"
    assert tour_summary.line(wrong, 2.4).endswith("1 FAILED, as shown above")


def test_a_tour_that_is_quiet_is_shown_where_a_step_fails(monkeypatch, capfd):
    from xdevice.cli import tours

    broken_off = tours.subprocess.CompletedProcess([], -11, "the lines so far")
    monkeypatch.setattr(tours, "run_child", lambda *_, **__: broken_off)
    outcome = tours._in_child("numpy", is_quiet=True)
    assert outcome["failed"] == ["the process ended by SIGSEGV"]
    assert "the lines so far" in capfd.readouterr().out
