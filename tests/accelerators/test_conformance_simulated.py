"""The whole conformance suite on a simulated accelerator of another vendor, as gpu:0 with gpu:1 beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.environment import ROOT, needs, python

NAMED = (
    "the samples do not have: ", "torch does not support streams on ", "torch does not support events on ",
    "torch does not support graphs", "holds no values", "torch does not support ",
)  # fmt: skip
"""A check is skipped for a lack that it names, and for nothing else."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "lacks", ["", pytest.param("float64 complex128", marks=pytest.mark.long)]
)
def test_pytorchs_adapter_keeps_every_rule_on_a_renamed_device(lacks):
    needs("torch")
    done = python(
        "-m", "pytest", "-q", "-p", "npu", "-p", "no:cacheprovider", "-rs", "tests/testing/suite/test_conformance.py",
        "-k", "TestTorch", cwd=ROOT, bare=True, SIMULATED_ACCELERATOR="1", SIMULATED_LACKS=lacks,
        PYTHONPATH=str(Path(__file__).parent),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    passed, skipped = (
        int(re.search(rf"(\d+) {word}", done.stdout)[1]) for word in ("passed", "skipped")
    )
    assert passed >= 230, done.stdout[-3000:]
    assert skipped <= 45, done.stdout[-3000:]
    for line in re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", done.stdout, re.MULTILINE):
        assert line.startswith(NAMED) or "holds no values" in line, line
