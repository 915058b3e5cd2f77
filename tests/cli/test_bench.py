"""`xdevice bench`, as people run it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support import BACKENDS, FRAMEWORKS, python, sampled

import xdevice
from xdevice.cli import bench as experiments
from xdevice.cli import main as cli

EXPERIMENTS = ["timing", "blocking", "two devices", "three tasks", "repeated task", "overlap", "norms", "bandwidth"]
FEW = sampled(BACKENDS, each_time=["numpy"], slow=["jax"], others="long")


def run(*arguments, **variables):
    done = python(*arguments, **variables)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", FEW)
def test_every_experiment_gives_figures_or_says_why_not(name):
    status, out, err = run("-m", "xdevice", "bench", "--backend", name, "--quick", "--json")
    assert status == 0, err
    rows = json.loads(out)
    assert list(dict.fromkeys(row["experiment"] for row in rows)) == EXPERIMENTS
    for row in rows:
        assert row["backend"] == name
        assert (row["value"] is None) == bool(row["why_not"])
        assert row["value"] is None or row["value"] > 0


@pytest.mark.parametrize("name", sampled(FRAMEWORKS, each_time=(), others="long"))
def test_virtual_gpus_are_named_and_show_nothing_of_what_is_possible(name):
    arguments = ("-m", "xdevice", "bench", "--backend", name, "--quick")
    status, out, err = run(*arguments, "--json", XDEVICE_VIRTUAL_GPUS="2")
    if "cannot have virtual GPUs here" in err:
        pytest.skip(err)
    assert status == 0, err
    rows = json.loads(out)
    assert list(dict.fromkeys(row["experiment"] for row in rows)) == EXPERIMENTS
    for row in rows:
        assert row["virtual"]
        assert row["best"] is None
        assert "pinned" not in row["case"]
    status, out, err = run(*arguments, XDEVICE_VIRTUAL_GPUS="2")
    assert status == 0, err
    assert "virtual" in out
    assert "share its cores" in " ".join(out.split())


@pytest.mark.slow
def test_the_table_and_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.png"
    status, out, err = run("-m", "xdevice", "bench", "--backend", "numpy", "--quick", "--plot", str(picture))
    assert status == 0, err
    assert "bandwidth" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_experiment_that_fails_says_so_and_the_others_go_on(monkeypatch):
    def broken(bench):
        yield bench.row("broken", "half", 1.0)
        raise RuntimeError("no kernel image\nfor this GPU")

    monkeypatch.setattr(experiments, "EXPERIMENTS", (broken, experiments.timing))
    rows = experiments.run(xdevice.backend("numpy"), quick=True)
    assert [(row["experiment"], row["failed"]) for row in rows] == [("broken", True)] + [("timing", False)] * 2
    assert rows[0]["why_not"] == "FAILED: RuntimeError: no kernel image"
    monkeypatch.setattr(cli, "_bench", lambda name, quick: rows)
    assert CliRunner().invoke(cli.main, ["bench", "--backend", "numpy"]).exit_code == 1


def test_a_wrong_name_is_refused():
    status, _, err = run("-m", "xdevice", "bench", "--backend", "troch")
    assert status == 2
    assert "did you mean 'torch'" in err
    assert run("-m", "xdevice", "bench", "--all", "--backend", "torch")[0] == 2
