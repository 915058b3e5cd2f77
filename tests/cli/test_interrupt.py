"""Ctrl-C: the exit status is 130, nothing that was started stays behind, and no report is half written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from helpers.environment import NEEDS_PROC, family, sampled, wait_for

import xdevice
from xdevice.cli import main as cli
from xdevice.twins.parity import run_folders, script_runs

pytestmark = NEEDS_PROC
SCRIPT = """
import pathlib, subprocess, sys, time
import xdevice

xdevice.parity.log("first", xdevice.ones(3))
name = xdevice.backend().name
if name == sys.argv[2]:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    pathlib.Path(sys.argv[1], name).touch()
    time.sleep(1000)
"""


# a shell starts what it runs in the background, this suite maybe, with SIGINT ignored, and children inherit that
MAIN = """
import signal
from xdevice.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


class Running:
    """A command, and every process that has come of it."""

    def __init__(self, *arguments):
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "XDEVICE_TEST_MARK": self.mark},
        )  # fmt: skip

    def family(self):
        return family(self.mark, self.process.pid)

    def interrupt(self):
        """Only this process, as `kill` and a CI do; a terminal tells its children, too."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=800)
        assert self.process.returncode == 130, out + err
        assert "interrupted" in err
        assert "Traceback" not in err
        wait_for(lambda: not self.family(), f"no process is left of {self.process.args}")
        return out


@contextmanager
def running(*arguments):
    command = Running(*arguments)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()
        for pid in command.family():
            os.kill(pid, signal.SIGKILL)


def hanging(folder, *options, at="jax", backends="numpy,jax"):
    (folder / "script.py").write_text(SCRIPT)
    (folder / "old.html").write_text("the report of the run before")
    named = (
        "--html",
        folder / "old.html",
        "--json",
        folder / "new.json",
        "--save",
        folder / "saved",
    )
    return running(
        "parity",
        folder / "script.py",
        "--backends",
        backends,
        *named,
        *options,
        "--",
        folder,
        at,
    )


def assert_no_report(folder):
    assert (folder / "old.html").read_text() == "the report of the run before"
    assert not (folder / "new.json").exists()
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_parity_while_a_process_starts(tmp_path):
    with hanging(tmp_path) as command:
        wait_for(command.family, "a process starts")
        command.interrupt()
    assert_no_report(tmp_path)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", sampled(["numpy", "jax"], each_time=["numpy"]))
def test_parity_while_a_script_runs(tmp_path, at, jobs):
    with hanging(tmp_path, "--jobs", jobs, at=at) as command:
        wait_for((tmp_path / at).exists, f"{at} runs")
        command.interrupt()
    assert_no_report(tmp_path)
    about = json.loads((tmp_path / "saved" / script_runs.RUN).read_text())
    how = {one["backend"]: one["error"] for one in about["backends"]}
    assert list(how) == ["numpy", "jax"]
    assert how[at] == "was interrupted"
    done = CliRunner().invoke(cli.main, ["compare-runs", *[str(tmp_path / "saved")] * 2])
    assert done.exit_code == 2, "what was cut off is not taken for a whole run"


def test_a_process_that_would_start_after_the_interrupt_does_not(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'made')!r}, 'w')")
    plan = script_runs.RunPlan(
        script, (), ("numpy",), "numpy", {"numpy": sys.executable}, timeout=60
    )
    processes = script_runs._RunningScripts(plan, tmp_path, script_runs.Watcher())
    processes.stop()
    processes.run(plan.scripts()[0])
    assert processes.ended["numpy"].error == "was interrupted"
    assert not (tmp_path / "made").exists()


def test_compare_leaves_the_old_report(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folders, "report_of_two", interrupted)
    (tmp_path / "old.html").write_text("the report of the run before")
    where = (
        str(tmp_path),
        str(tmp_path),
        "--html",
        str(tmp_path / "old.html"),
        "--json",
        str(tmp_path / "new.json"),
    )
    done = CliRunner().invoke(cli.main, ["compare-runs", *where])
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")
    assert_no_report(tmp_path)


@pytest.mark.parametrize("command", [["info"], ["parity", __file__, "--backends"]])
def test_a_wrong_name_has_one_exit_status_and_a_suggestion(command):
    for wrong, right in (("jxa", "jax"), ("troch", "torch"), ("numpi", "numpy")):
        done = CliRunner().invoke(cli.main, [*command, wrong])
        assert done.exit_code == 2
        assert f"did you mean {right!r}" in done.stderr
    assert xdevice.backends()
