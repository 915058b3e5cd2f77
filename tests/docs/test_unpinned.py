"""What CI says of a framework whose newest release takes something away: its name, the version and the capability."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
from helpers.environment import ROOT

SCRIPT = ROOT / ".ci" / "unpinned.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="the sdist does not bring it"),
]


@pytest.fixture
def unpinned(monkeypatch):
    spec = importlib.util.spec_from_file_location("unpinned", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ONE_IN", 1)
    return module


def sabotage(code, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(f"import os\nimport numpy.random\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))


def test_a_name_that_is_gone_is_reported_by_capability(unpinned, tmp_path, monkeypatch, capsys):
    sabotage("del numpy.random.random_sample", tmp_path, monkeypatch)
    assert unpinned.try_here("numpy", False) == 1
    told, *lines = capsys.readouterr().out.splitlines()
    title, error = f"numpy {np.__version__}", "AttributeError: module 'numpy.random' has no attribute 'random_sample'"
    assert told.startswith(f"{title}, NumPy {np.__version__}, Python 3.")
    [tour] = [line for line in lines if line.startswith(f"{title}: the tour failed: ")]
    assert error in tour
    [random_numbers] = [line for line in lines if line.startswith(f"{title}: random number checks failed: ")]
    assert f"test_random_numbers_are_uniform_below_one[cpu:0] ({error}), and 1 more" in random_numbers


def test_a_crash_is_reported_by_capability(unpinned, tmp_path, monkeypatch):
    sabotage("numpy.random.random_sample = lambda shape: os.abort()", tmp_path, monkeypatch)
    at = "tests/testing/suite/test_conformance.py::TestNumpy"
    [(capability, how)] = unpinned.checks([at, "-k", "random_numbers or test_keeps_the_contract"])
    assert capability == "random number checks"
    assert "crashed" in how


def test_what_works_is_not_reported(unpinned):
    assert unpinned.example("numpy") == unpinned.tour("numpy") == []
