"""Published architectures: what benchmarks/zoos.py makes of the pairs of the frameworks' own zoos."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "zoos.py"
WANTED = ("agrees", "by inputs", "mended")


def rows_of(*words, file=FILE):
    """In a process of its own: Gluon's zoo computes with legacy arrays."""
    command = [sys.executable, "-W", "ignore", str(file), "--json", *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_a_small_architecture_agrees_once_what_is_listed_is_mended():
    (row,) = rows_of("mxnet", "paddle", "squeezenet1_0")
    assert row["verdict"] == "mended"
    assert "ceil_mode" in row["notes"][0]


@pytest.mark.slow
def test_a_transformer_of_one_library_is_that_of_another():
    """Class token, positions and fused rows of query, key and value."""
    for name in ("timm", "torchvision", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    rows = rows_of("vit", "timm", file=FILE.parent / "families.py")
    assert [row["verdict"] for row in rows] == ["agrees"] * 10


@pytest.mark.long
def test_the_zoos():
    """At least 42 of 47 agree at once or as soon as what is listed is mended; none differs with nothing listed."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    rows = rows_of()
    assert len(rows) == 47
    assert not [row for row in rows if row["verdict"] == "SILENT"]
    others = [row for row in rows if row["verdict"] not in WANTED]
    assert len(others) <= 47 - 42, others
