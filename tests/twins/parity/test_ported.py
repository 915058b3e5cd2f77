"""Training scripts and their ports, by `xdevice parity`: honest ones agree, and each planted fault is found."""

from __future__ import annotations

import json

import pytest
from helpers.environment import BACKENDS, ROOT, python
from twins.parity import ported

import xdevice

FILE = ROOT / "tests" / "twins" / "parity" / "ported.py"


def others(name):
    """The frameworks that a script is ported to, as far as they are here."""
    return [
        backend
        for backend in ported.SCRIPTS[name].runs
        if backend in BACKENDS and backend != "torch"
    ]


PORTS = [(name, backend) for name in ported.SCRIPTS for backend in others(name)]


def report_of(folder, option, name, *faults):
    """What `xdevice parity` says of a script: its status, and the steps of each record of each backend."""
    path = folder / "report.json"
    command = (
        "parity",
        FILE,
        "--backends",
        ",".join(["torch", *others(name)]),
        option,
        "--json",
        path,
    )
    done = python("-W", "ignore", "-m", "xdevice", *command, "--", name, *faults)
    assert path.exists(), done.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    steps = {
        (one["name"], backend): found["steps"]
        for one in report["names"]
        for backend, found in one["backends"].items()
    }
    assert {backend for _, backend in steps} == set(others(name))
    return done.returncode, steps


def first_off(steps, fault, backend):
    """The record and step that first diverges, and how far it is off."""
    off = [
        (one["step"], place, record, one["excess"])
        for place, record in enumerate(ported.RECORDS)
        for one in steps[f"{fault}: {record}", backend]
        if not one["ok"]
    ]
    assert off, f"{fault} is not found on {backend}"
    step, _, record, excess = min(off)
    return (record, step), excess


@pytest.mark.long
@pytest.mark.parametrize("name", ported.SCRIPTS)
def test_an_honest_port_raises_no_alarm_where_rounding_was_measured(name, tmp_path):
    status, steps = report_of(tmp_path, "--calibrate", name)
    assert status == 0
    assert max(one["excess"] for of in steps.values() for one in of) < 0.8


@pytest.mark.long
@pytest.mark.parametrize("name", ported.SCRIPTS)
def test_faults_in_ports_are_found_in_float64_and_honest_ports_are_quiet(name, tmp_path):
    """On every framework, at the record that shows it first."""
    faults = {fault: where for fault, where in ported.SCRIPTS[name].faults.items() if where}
    status, steps = report_of(tmp_path, "--float64", name, "", *faults)
    assert status == 1
    for backend in others(name):
        honest = [steps[record, backend] for record in ported.RECORDS]
        assert all(one["ok"] for of in honest for one in of)
        assert max(of[0]["excess"] for of in honest) < 0.01
        found = {fault: first_off(steps, fault, backend) for fault in faults}
        assert {fault: where for fault, (where, _) in found.items()} == faults
        assert min(excess for _, excess in found.values()) > 100


@pytest.mark.long
@pytest.mark.parametrize(("name", "backend"), PORTS)
def test_a_fault_of_an_optimizer_is_found_by_comparing_the_optimizers(name, backend):
    script = ported.SCRIPTS[name]
    (fault,) = [fault for fault, where in script.faults.items() if not where]
    with xdevice.use_backend("torch"):
        expected = script.runs["torch"]("").optimizer
    with xdevice.use_backend(backend):
        honest, faulty = (script.runs[backend](planted).optimizer for planted in ("", fault))
    known = xdevice.models.compare_optimizers(expected, honest)
    found = [
        line
        for line in xdevice.models.compare_optimizers(expected, faulty)
        if line not in known
    ]
    assert len(found) == 1
    assert fault.partition(" ")[0].replace("rate", "lr") in found[0]
