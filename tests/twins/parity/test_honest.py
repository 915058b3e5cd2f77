"""Honest runs raise no alarm where the reference's own rounding was measured, and three are alarms without that."""

from __future__ import annotations

import pytest
from helpers.environment import floats_asked_for
from twins.parity import honest, planted

import xdevice
from xdevice.twins.parity import noise
from xdevice.twins.parity.parity_report import compare_recordings
from xdevice.twins.parity.record_files import Recording
from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.tolerances import Strictness

OTHERS = ("paddle", "tensorflow", "jax", "mxnet")


class Calibrated:
    """A program's run on PyTorch, with what rounding does to it."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.reference = self.recorded("torch")
        self.noise = noise.measure_noise(
            self.reference, {asked: self.recorded("torch", asked) for asked in noise.VARIANTS}
        )

    def recorded(self, backend, asked=""):
        folder = self.folder / f"{backend}{asked.replace(':', '')}"
        with xdevice.use_backend(backend), floats_asked_for(asked), recording_to(folder):
            self.program(backend)
        return Recording(folder).entries

    def held(self, backend):
        """The findings by the usual rule, and by the measured one; a framework that lacks a function is left out."""
        entries = self.recorded(backend)
        return (
            compare_recordings(entries, self.reference, Strictness(), is_complete=False),
            compare_recordings(
                entries, self.reference, Strictness(), is_complete=False, noise=self.noise
            ),
        )


def alarms(findings):
    return {finding.name for finding in findings if not finding.comparison.ok}


@pytest.mark.long
def test_a_hundred_equivalents_raise_no_alarm(tmp_path):
    calibrated = Calibrated(honest.equivalents, tmp_path)
    number = 0
    for backend in OTHERS:
        usual, measured = calibrated.held(backend)
        number += len(measured)
        assert alarms(measured) == {
            name for other, name in honest.OTHERWISE if other == backend
        }
        assert "layer_norm, far" in alarms(usual)
    assert number >= 100


@pytest.mark.long
# Paddle's, of any batch norm
@pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")
def test_a_deep_network_alarms_by_the_usual_rule_alone(tmp_path):
    usual, measured = Calibrated(honest.vgg11_bn, tmp_path).held("paddle")
    assert alarms(usual) == {"outputs"}
    assert "may be rounding alone" in usual[0].comparison.text
    assert alarms(measured) == set()
    assert 0 < measured[0].comparison.excess < 0.8


@pytest.mark.long
def test_a_training_by_adam_raises_no_alarm(tmp_path):
    usual, measured = Calibrated(honest.vae, tmp_path).held("paddle")
    assert "gradients" in alarms(usual)
    assert "may be rounding alone" in next(
        one.comparison.text for one in usual if not one.comparison.ok
    )
    assert alarms(measured) == set()


@pytest.mark.long
@pytest.mark.parametrize("backend", OTHERS)
def test_faults_are_found_where_rounding_was_measured(backend, tmp_path):
    """So the measured rule finds what the usual one does, and an honest training by the namespace is none."""
    calibrated = Calibrated(lambda _: planted.train(), tmp_path)
    _, measured = calibrated.held(backend)
    assert alarms(measured) == set()
    for number, (fault, where) in enumerate(planted.FAULTS.items()):
        folder = tmp_path / str(number)
        with xdevice.use_backend(backend), recording_to(folder):
            planted.train(fault)
        found = compare_recordings(
            Recording(folder).entries,
            calibrated.reference,
            Strictness(),
            noise=calibrated.noise,
        )
        first = min((one for one in found if not one.comparison.ok), key=lambda one: one.order)
        assert (first.name, first.step) == where, fault


def recorded_twice(values, others):
    """Entries of a name's steps, and of a run of the same."""
    return [[Recorded(step, x) for step, x in enumerate(side)] for side in (values, others)]


class Recorded:
    def __init__(self, step, x):
        self.name, self.step, self.key, self.where = "loss", step, ("loss", step), ""
        self._x = x

    def read(self):
        from xdevice.twins.parity import host_leaves

        return host_leaves.read_leaves(self._x)


def test_what_rounding_does_is_the_largest_share_so_far_times_the_steps():
    values, others = recorded_twice([2.0, 4.0, 1.0], [2.0, 4.5, 1.0])
    found = noise.measure_noise(values, {"jitter:1": others, "float64": values})
    assert [found["loss", step][""] for step in range(3)] == [0.0, 1.0, 0.375]
    assert not noise.jitter_changes_nothing(values, {"jitter:1": others})
    assert noise.jitter_changes_nothing(values, {"jitter:1": values, "float64": others})


def test_runs_whose_shapes_depend_on_rounding_are_refused():
    values, others = recorded_twice([[1.0, 2.0]], [[1.0]])
    with pytest.raises(xdevice.errors.RecordingError, match="cannot calibrate: loss, step 0"):
        noise.measure_noise(values, {"jitter:1": others})


def test_an_infinity_is_no_noise():
    values, others = recorded_twice([float("inf"), 1.0], [1.0, float("nan")])
    found = noise.measure_noise(values, {"float64": others})
    assert [found["loss", step][""] for step in range(2)] == [0.0, 0.0]


def test_numbers_that_are_drawn_anew_in_float64_are_not_taken_for_rounding():
    values, others = recorded_twice([2.0, 4.0], [-1.0, 0.5])
    with pytest.raises(
        xdevice.errors.RecordingError,
        match=r"cannot calibrate: loss, step 0, is off by 3 in the reference's run in float64",
    ):
        noise.measure_noise(values, {"float64": others, "jitter:1": values})
    # zero except for rounding
    assert noise.measure_noise(values, {"float64": others, "jitter:1": others})
