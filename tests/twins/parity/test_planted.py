"""Faults that are planted in a training script: each is found, and named at the record that shows it first."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest
from helpers.environment import floats_asked_for, needs, python
from twins.parity import planted

import xdevice
from xdevice.twins.parity.parity_report import BackendRow, compare_recordings
from xdevice.twins.parity.record_files import Recording
from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.tolerances import Strictness

OTHERS = ("paddle", "tensorflow", "mxnet", "jax")
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SAMPLE = list(planted.FAULTS)[::5]


def recorded(folder, backend, fault="", asked=""):
    """What the script records on a backend, in this process."""
    with (
        xdevice.use_backend(backend),
        floats_asked_for(asked),
        wide(backend if asked == "float64" else ""),
        recording_to(folder),
    ):
        planted.train(fault)
    return Recording(folder).entries


@contextlib.contextmanager
def wide(backend):
    """JAX has float64 only where it is told."""
    if backend != "jax":
        yield
        return
    jax = sys.modules["jax"]
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("reference") / "torch", "torch")


@pytest.fixture(scope="module")
def reference64(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("reference64") / "torch", "torch", asked="float64")


def row_of(backend, findings):
    return BackendRow(backend, "agrees", "torch", values=findings)


def require_found(row, where):
    assert row.first is not None
    assert (row.first.value.name, row.first.value.step) == where, str(row.first)
    assert row.first.value.comparison.excess > 10, str(row.first)
    assert "planted.py:" in str(row.first)


@pytest.mark.parametrize("fault", SAMPLE)
def test_a_planted_fault_is_found_and_named(fault, reference, tmp_path):
    findings = compare_recordings(recorded(tmp_path, "paddle", fault), reference, Strictness())
    require_found(row_of("paddle", findings), planted.FAULTS[fault])


@pytest.mark.long
@pytest.mark.parametrize("backend", OTHERS)
def test_every_planted_fault_is_found_on_every_backend(backend, reference, tmp_path):
    assert len(planted.FAULTS) >= 45
    for number, (fault, where) in enumerate(planted.FAULTS.items()):
        findings = compare_recordings(
            recorded(tmp_path / str(number), backend, fault), reference, Strictness()
        )
        require_found(row_of(backend, findings), where)


# in float64


def excesses(findings):
    """The largest of the first steps, which the rule of float64 holds."""
    return max(finding.comparison.excess for finding in findings if finding.step == 0)


@pytest.mark.parametrize("fault", list(planted.SUBTLE)[::3])
def test_a_subtle_fault_is_found_in_float64(fault, reference64, tmp_path):
    require_found_in_float64("paddle", fault, reference64, tmp_path)


def test_an_honest_run_in_float64_is_far_below_what_is_allowed(reference64, tmp_path):
    findings = compare_recordings(
        recorded(tmp_path, "paddle", asked="float64"),
        reference64,
        Strictness(),
        is_float64=True,
    )
    assert row_of("paddle", findings).first is None
    assert excesses(findings) < 0.01


def require_found_in_float64(backend, fault, reference64, folder):
    findings = compare_recordings(
        recorded(folder, backend, fault, "float64"), reference64, Strictness(), is_float64=True
    )
    row = row_of(backend, findings)
    assert row.first is not None
    assert (row.first.value.name, row.first.value.step) == planted.SUBTLE[fault]
    assert row.first.value.comparison.excess > 100


@pytest.mark.long
@pytest.mark.parametrize("backend", OTHERS)
def test_every_subtle_fault_is_found_in_float64_on_every_backend(
    backend, reference64, tmp_path
):
    honest = compare_recordings(
        recorded(tmp_path / "honest", backend, asked="float64"),
        reference64,
        Strictness(),
        is_float64=True,
    )
    assert excesses(honest) < 0.01
    assert row_of(backend, honest).first is None
    for number, fault in enumerate(planted.SUBTLE):
        require_found_in_float64(backend, fault, reference64, tmp_path / str(number))


# calibrated, by the command, in a script with attention, an LSTM, clipping and AdamW


def test_each_fault_fits_its_script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    faults = importlib.import_module("faults")
    for of_others in (None, "function_faults"):
        if of_others:
            importlib.import_module(of_others)  # puts its own script and faults there
        assert len([faults.planted(fault) for fault in faults.FAULTS]) == 33


@pytest.mark.long
def test_each_fault_of_a_tagger_is_found_at_its_place():
    needs("torch", "paddle")
    done = python(BENCHMARKS / "faults.py")
    assert done.returncode == 0, done.stdout + done.stderr
