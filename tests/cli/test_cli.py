"""The command line, as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from helpers.environment import python

import xdevice
from xdevice.cli import main


def command(*arguments, **variables):
    done = python("-m", "xdevice", *arguments, **variables)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def reports():
    status, out, _ = command("info", "--json")
    assert status == 0
    return {report["backend"]: report for report in json.loads(out)}


@pytest.mark.long
def test_info_tells_of_every_backend(reports):
    assert list(reports)[:6] == ["torch", "tensorflow", "paddle", "mxnet", "jax", "numpy"]
    for report in reports.values():
        assert report["installed"]
        assert report["imports"], report["error"]
        assert report["version"]
        assert report["devices"][0]["device"] == "cpu:0"
        assert report["why_no_gpu"] or any(
            one["device"] == "gpu:0" for one in report["devices"]
        )
    assert reports["torch"]["install"] == "pip install torch"


def test_info_is_a_table_for_people():
    # as Jupyter's kernel has it
    status, out, err = command("info", "numpy", "np", FORCE_COLOR="1")
    assert status == 0
    assert err == "probing numpy; each probe imports a framework\n"
    assert "numpy" in out
    assert "NumPy computes on the CPU only" in out


@pytest.mark.slow
def test_info_fails_for_a_named_backend_that_does_not_import(tmp_path):
    (tmp_path / "mxnet.py").write_text("raise OSError('libnvrtc is missing')")
    status, out, _ = command("info", "mxnet", "numpy", "--json", PYTHONPATH=str(tmp_path))
    assert status == 1
    mxnet, numpy = json.loads(out)
    assert not mxnet["imports"]
    assert "libnvrtc is missing" in mxnet["error"]
    assert numpy["imports"]


@pytest.mark.long
def test_info_does_not_fail_for_a_backend_that_was_not_named(tmp_path):
    (tmp_path / "mxnet.py").write_text("raise OSError('libnvrtc is missing')")
    status, out, _ = command("info", "--json", PYTHONPATH=str(tmp_path))
    assert status == 0
    assert [report["backend"] for report in json.loads(out) if not report["imports"]] == [
        "mxnet"
    ]


@pytest.mark.long
def test_info_outlives_a_backend_that_crashes_or_hangs(tmp_path):
    (tmp_path / "mxnet.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    )
    (tmp_path / "paddle.py").write_text("import time; time.sleep(1000)")
    environment = {"PYTHONPATH": str(tmp_path)}
    status, out, _ = command(
        "info", "mxnet", "paddle", "numpy", "--json", "--timeout", "40", **environment
    )
    assert status == 1
    mxnet, paddle, numpy = json.loads(out)
    assert "ended by SIGSEGV" in mxnet["error"]
    assert "no answer within 40 s" in paddle["error"]
    assert paddle["imports"] is None
    assert numpy["imports"]


def test_an_unknown_name_is_refused():
    status, _, err = command("info", "troch")
    assert status == 2
    assert "did you mean 'torch'" in err


def test_version_and_help():
    assert xdevice.__version__ in command("--version")[1]
    for arguments in (["--help"], ["info", "-h"]):
        status, out, _ = command(*arguments)
        assert status == 0
        assert "Usage:" in out


def test_help_cuts_no_sentence_and_explains_each_option():
    _, out, _ = command("--help")
    assert "..." not in out.partition("Commands:")[2]
    for name in ("info", "parity", "compare-runs", "launch", "scan", "lint", "port"):
        for option in main.main.commands[name].params:
            assert isinstance(option, click.Argument) or option.help, f"{name} {option.name}"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            ["train.py", "-n", "2"],
            "write options before the script: xdevice launch -n 2 SCRIPT",
        ),
        (["-n", "2", "python", "train.py"], "there is no file python; leave python out"),
        (
            ["-n", "2", "python3.11", "-m", "train"],
            "there is no file python3.11; leave python out",
        ),
    ],
)
def test_launch_says_where_its_options_stand(wrong, words):
    status, _, err = command("launch", *wrong)
    assert status == 2
    assert words in err


def test_a_file_is_no_folder_to_save_a_run_in(tmp_path):
    script, taken = tmp_path / "script.py", tmp_path / "taken"
    script.touch()
    taken.touch()
    status, _, err = command("parity", str(script), "--backends", "numpy", "--save", str(taken))
    assert status == 2, err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_ends_with_2_which_means_no_verdict(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import xdevice; xdevice.parity.log('x', xdevice.ones(2))")
    status, _, err = command("parity", script, "--backends", "numpy,jax", "--json", "/dev/full")
    assert status == 2, err
    assert "No space left" in err
    assert "Traceback" not in err
