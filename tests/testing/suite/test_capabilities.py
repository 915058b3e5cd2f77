"""What an adapter lacks is skipped by the capability's name, and listed; the guide adds one capability at a time."""

from __future__ import annotations

import re

import pytest
from helpers.environment import ROOT, python

from xdevice.testing.suite.capabilities import CAPABILITIES, lacking, needs

PAGE = ROOT / "docs" / "guides" / "add_a_backend.md"
SINGLE = ("nn", "memory")
"""Hooks of no capability, or not the needed one of theirs, whose defaults refuse."""
ALL = (*(part.__name__ for part in CAPABILITIES), *SINGLE)
LACKS = {
    "torch": [],
    "tensorflow": ["Streams", "Graphs", "Steps", "Files"],
    "paddle": ["Graphs", "Compiling", "Files"],
    "mxnet": ["Processes", "Streams", "Graphs", "Compiling", "Steps", "Files"],
    "jax": ["Operations", "Streams", "Graphs", "Steps"],
    "numpy": [
        *(
            "Gradients",
            "Models",
            "Layers",
            "Operations",
            "Calls",
            "Optimizers",
            "Streams",
            "Graphs",
            "Compiling",
        ),
        "Parallel",
        "Processes",
        "Steps",
        "Files",
    ],
}


def test_our_adapters_lack_nothing_that_they_should_have(backend):
    @needs(*ALL)
    def check():
        pass

    assert set(lacking(backend, check)) == set(LACKS[backend.name])


def test_a_check_cannot_need_what_the_contract_does_not_have():
    with pytest.raises(AssertionError, match="the contract has no Steams"):
        needs("Streams", "Steams")


@pytest.fixture
def guide(tmp_path):
    """The files of the guide, with an installed adapter, and what runs its suite."""
    cells = re.findall(r"```\{code-cell\}\n(.*?)\n```", PAGE.read_text(), re.S)
    for cell in cells:
        written = re.match(r"%%writefile (\S+)\n", cell)
        if written:
            (tmp_path / written[1]).write_text(cell[written.end() :] + "\n")
    folder = tmp_path / "xdevice_tinyframe-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: xdevice-tinyframe\nVersion: 1.0\n"
    )
    (folder / "entry_points.txt").write_text(
        "[xdevice.backends]\ntinyframe = xdevice_tinyframe:TinyBackend\n"
    )

    def suite(checks):
        """The outcomes, and the names of what is lacking."""
        options = (
            "--color=no",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "-k",
            checks,
        )
        printed = python(
            "-m",
            "pytest",
            *options,
            "test_tinyframe.py",
            cwd=tmp_path,
            PYTHONPATH=str(tmp_path),
        ).stdout
        return printed.splitlines()[-1], re.findall(r"^tinyframe lacks (\w+)", printed, re.M)

    def add(name, file):
        adapter = tmp_path / "xdevice_tinyframe.py"
        text = adapter.read_text().replace("class TinyBackend(", f"class TinyBackend({name}, ")
        adapter.write_text(f"from {file} import {name}\n{text}")

    return suite, add


QUICK = "not (process or fork or loading or virtual)"
"""What starts no process; the site runs all."""


def test_the_core_alone_passes_and_what_is_lacking_is_listed(guide):
    suite, _ = guide
    outcome, lacks = suite(QUICK)
    assert "failed" not in outcome
    assert "passed" in outcome
    # the first two start processes, the third is needed where there is state, the suite's own samples it has, and no
    # check needs the last two
    elsewhere = {"Processes", "VirtualGpus", "Parallel", "Sampling", "Steps", "Files"}
    assert sorted(lacks) == sorted(set(ALL) - elsewhere), outcome


def test_capabilities_are_added_one_at_a_time(guide):
    suite, add = guide
    checks = "total or splits or reads_are_seen or stage or memory_is_told or blocking"
    _, lacks = suite(checks)
    assert {"Replicas", "Transfers", "Prefetch", "memory", "Blocking"} <= set(lacks)
    for name, file, added in (
        ("TinyReplicas", "tiny_replicas", {"Replicas"}),
        ("TinySeeing", "tiny_seeing", {"Transfers", "Prefetch", "memory", "Blocking"}),
    ):
        add(name, file)
        outcome, fewer = suite(checks)
        assert "failed" not in outcome
        assert set(lacks) - set(fewer) == added
        lacks = fewer
