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
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
    )


def test_names_that_are_gone_are_reported_by_capability(
    unpinned, tmp_path, monkeypatch, capsys
):
    sabotage("del numpy.full, numpy.random.seed", tmp_path, monkeypatch)
    assert unpinned.try_here("numpy", False) == 1
    told, *lines = capsys.readouterr().out.splitlines()
    title = f"numpy {np.__version__}"
    assert told.startswith(f"{title}, NumPy {np.__version__}, Python 3.")
    [tour] = [line for line in lines if line.startswith(f"{title}: the tour failed: ")]
    assert "AttributeError: module 'numpy' has no attribute 'full'" in tour
    [seeds] = [line for line in lines if line.startswith(f"{title}: reproducibility failed: ")]
    error = "AttributeError: module 'numpy.random' has no attribute 'seed'"
    assert seeds.endswith(f": test_the_frameworks_numbers_repeat_from_a_seed[cpu:0] ({error})")


def test_a_crash_is_reported_by_capability(unpinned, tmp_path, monkeypatch):
    sabotage("numpy.random.seed = lambda n: os.abort()", tmp_path, monkeypatch)
    at = "tests/testing/suite/test_conformance.py::TestNumpy"
    [(capability, how)] = unpinned.checks(
        [at, "-k", "numbers_repeat or test_keeps_the_contract"]
    )
    assert capability == "reproducibility"
    assert "crashed" in how


def test_what_works_is_not_reported(unpinned):
    assert unpinned.example("numpy") == unpinned.tour("numpy") == []
