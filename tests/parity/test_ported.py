"""Real training scripts and their ports, by `xdevice parity`: honest ones agree, and each planted fault is found."""

from __future__ import annotations

import json

import pytest
from parity import ported
from support import BACKENDS, ROOT, python

import xdevice

FILE = ROOT / "tests" / "parity" / "ported.py"
PORTS = [
    pytest.param(name, backend, marks=pytest.mark.skipif(backend not in BACKENDS, reason=f"no {backend} here"))
    for name, script in ported.SCRIPTS.items()
    for backend in script.runs
    if backend != "torch"
]


def report_of(tmp_path, name, *options, fault=""):
    """What `xdevice parity` says of a script, and its status."""
    backends = [backend for backend in ported.SCRIPTS[name].runs if backend in BACKENDS]
    path = tmp_path / "report.json"
    command = ("parity", FILE, "--backends", ",".join(backends), *options, "--json", path)
    done = python("-W", "ignore", "-m", "xdevice", *command, "--", name, fault)
    assert path.exists(), done.stderr
    return done.returncode, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("option", ["--float64", "--calibrate"])
@pytest.mark.parametrize("name", ported.SCRIPTS)
def test_an_honest_port_raises_no_alarm(name, option, tmp_path):
    status, report = report_of(tmp_path, name, option)
    assert status == 0, report["first_divergence"]
    firsts = [found["steps"][0]["excess"] for one in report["names"] for found in one["backends"].values()]
    assert len(firsts) >= 3
    assert max(firsts) < (0.05 if option == "--float64" else 0.5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, script in ported.SCRIPTS.items() for fault, where in script.faults.items() if where],
)
def test_a_fault_in_a_port_is_found_in_float64(name, fault, tmp_path):
    """On every framework, at the record that shows it first."""
    status, report = report_of(tmp_path, name, "--float64", fault=fault)
    assert status == 1
    found = [row["first_divergence"] for row in report["backends"][1:]]
    assert [(one["name"], one["step"]) for one in found] == [ported.SCRIPTS[name].faults[fault]] * len(found)
    assert min(one["excess"] for one in found) > 10


@pytest.mark.long
@pytest.mark.parametrize(("name", "backend"), PORTS)
def test_a_fault_of_an_optimizer_is_found_by_comparing_the_optimizers(name, backend):
    script = ported.SCRIPTS[name]
    (fault,) = [fault for fault, where in script.faults.items() if not where]
    with xdevice.use("torch"):
        expected = script.runs["torch"]("").optimizer
    with xdevice.use(backend):
        honest, faulty = (script.runs[backend](planted).optimizer for planted in ("", fault))
    known = xdevice.compare_optimizers(expected, honest)
    found = [line for line in xdevice.compare_optimizers(expected, faulty) if line not in known]
    assert len(found) == 1
    assert fault.partition(" ")[0] in found[0] or "lr" in found[0]
