"""The page of measurements shows every file in benchmarks/results, as a table below its command, machine and date."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.environment import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
from measurements import PLACE, table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "explanation" / "measurements.md"


def test_the_page_shows_each_result_once():
    shown = PLACE.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.stem for path in RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_a_result_is_a_table(name):
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    about, blank, heading, *_, last = table(name).splitlines()
    assert result["machine"] in about
    assert result["date"] in about
    assert not blank
    assert {len(row) for row in result["rows"]} == {len(result["columns"])}
    assert heading == f"| {' | '.join(result['columns'])} |"
    assert last == f"| {' | '.join(result['rows'][-1])} |"


def test_a_benchmark_writes_what_the_page_reads(tmp_path, monkeypatch):
    script = f"""
import pathlib, measured
measured.FOLDER = pathlib.Path({str(tmp_path)!r})
measured.write("small", ["a step", "ms"], [["ours", "1.0"], ["own", "2.0"]], ["numpy"])
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT / "benchmarks", check=True)
    monkeypatch.setattr("measurements.FOLDER", tmp_path)
    about, _, *lines = table("small").splitlines()
    assert "numpy 1." in about or "numpy 2." in about
    assert lines == ["| a step | ms |", "| --- | --- |", "| ours | 1.0 |", "| own | 2.0 |"]
