"""Comparing: planted faults are found where they are, and equal values are equal, across frameworks."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
import signal
import subprocess
import sys
import time
import timeit
from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest
from helpers.environment import ROOT, python, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

import xdevice
from xdevice.twins.parity import host_leaves
from xdevice.twins.parity.comparing import compare_leaves
from xdevice.twins.parity.elements import ulp_distance
from xdevice.twins.parity.parity_report import compare_recordings
from xdevice.twins.parity.record_files import Recording
from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.tolerances import TOLERANCES, Strictness

EXAMPLE = ROOT / "examples" / "parity_mlp.py"
FRAMEWORKS = [name for name in xdevice.backends() if name != "numpy"]


def difference(actual, expected, **how):
    with pytest.raises(xdevice.errors.ParityError) as caught:
        xdevice.assert_parity(actual, expected, **how)
    assert str(caught.value) == caught.value.comparison.text
    return caught.value.comparison


# across frameworks


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(xdevice.backends(), 2)))
def test_equal_values_of_two_frameworks_are_equal_and_one_wrong_element_is_named(one, other):
    host = np.random.default_rng(0).random((4, 5), dtype=np.float32)
    wrong = host.copy()
    wrong[2, 3] += 1e-3
    with xdevice.use_backend(one) as first:
        x, y = xdevice.tensor(host), xdevice.tensor(wrong)
    with xdevice.use_backend(other) as second:
        z = xdevice.tensor(host)
    xdevice.assert_parity({"w": [x]}, {"w": [z]})
    found = difference({"w": [x, y]}, {"w": [z, z]})
    assert (found.problem, found.leaf, found.worst) == ("values", "['w'][1]", (2, 3))
    assert (found.off, found.total) == (1, 20)
    assert found.actual == wrong[2, 3]
    assert found.expected == host[2, 3]
    assert found.abs == pytest.approx(1e-3, rel=1e-3)
    assert found.rel == pytest.approx(1e-3 / host[2, 3], rel=1e-3)
    assert found.ulp == pytest.approx(found.abs / np.spacing(host[2, 3]), rel=1)
    for backend in (first, second):
        assert f"{backend.name} {backend.version}" in found.text
    for figure in (
        f"{wrong[2, 3]:.9g}",
        f"{host[2, 3]:.9g}",
        f"{found.ulp} ULP",
        "1 of 20 elements is off",
    ):
        assert figure in found.text


def test_models_of_one_framework_are_compared_by_the_names_of_their_variables():
    with xdevice.use_backend("torch"):
        net, other = (xdevice.backend().samples().network(3, 3) for _ in range(2))
    xdevice.assert_parity(net, net)
    xdevice.assert_parity({"net": net, "n": 1}, {"net": xdevice.copy_to(net, "cpu"), "n": 1})
    assert difference(net, other).leaf in ("0.weight", "0.bias")
    assert difference({"net": net}, {"net": other}).leaf in (
        "['net'].0.weight",
        "['net'].0.bias",
    )


# the order of the checks


def test_the_structure_comes_first_then_shape_dtype_device_and_values():
    ones = np.ones((2, 3), "float32")
    expected = {"a": ones, "b": ones}
    assert difference({"a": ones.T * 2, "c": ones}, expected).problem == "structure"
    assert (
        difference({"a": ones * 2, "b": ones.T.astype("float64")}, expected).problem == "shape"
    )
    assert difference({"a": ones * 2, "b": ones.astype("float64")}, expected).problem == "dtype"
    assert (
        difference({"a": ones * 2, "b": ones}, expected, check_device=True).problem == "values"
    )
    xdevice.assert_parity({"a": ones, "b": ones.astype("float64")}, expected, check_dtype=False)


def test_a_leaf_that_one_side_has_not_is_named():
    found = difference({"w": 1.0, "extra": 2.0}, {"w": 1.0, "b": 2.0})
    assert "actual has no ['b']" in found.text
    assert "expected has no ['extra']" in found.text
    assert "tensor by itself" in difference(np.ones(2), {"w": np.ones(2)}).text
    assert (
        "; expected is a container of numbers; convert a list to one array"
        in difference(np.ones(2), [1.0, 1.0]).text
    )
    assert (
        "; actual is a container of numbers; convert" in difference([1.0, 1.0], np.ones(2)).text
    )
    assert "np.asarray" not in difference(np.ones(2), [np.ones(2)]).text
    assert difference("text", 3).problem == "structure"


def test_devices_are_compared_only_if_asked():
    with xdevice.use_backend("mxnet"):
        here, there = xdevice.ones(2), xdevice.ones(2, device="cpu:1")
    xdevice.assert_parity(here, there)
    found = difference(here, there, check_device=True)
    assert (found.problem, found.actual, found.expected) == ("device", "cpu:0", "cpu:1")


def test_containers_of_other_types_with_the_same_ways_in_are_equal():
    xdevice.assert_parity([1, 2.0], (1, 2.0))
    xdevice.assert_parity([], ())
    point = namedtuple("point", "x y")
    xdevice.assert_parity(point(1, 2), point(1, 2))


# values


def test_python_numbers_take_the_dtype_that_they_meet():
    xdevice.assert_parity({"loss": 0.1}, {"loss": np.float32(0.1)})
    xdevice.assert_parity({"loss": 0.1}, {"loss": 0.1 + 1e-7})
    xdevice.assert_parity(3, np.array(3, "int32"))
    assert difference(0.1, np.array(0.1 + 1e-7, "float64")).problem == "values"
    assert difference(0.1, 0.101).problem == "values"
    assert difference(3, 4).abs == 1
    assert difference(3, np.float32(3)).problem == "dtype"
    assert difference(True, 1).problem == "dtype"
    assert difference({"mode": "train"}, {"mode": "eval"}).problem == "values"
    assert difference(None, 0).problem == "structure"


def test_ints_and_bools_are_exact_and_do_not_overflow():
    low, high = np.iinfo("int64").min, np.iinfo("int64").max
    assert difference(np.array([high]), np.array([low])).abs == high - low
    assert difference(np.array([0, 255], "uint8"), np.array([0, 0], "uint8")).abs == 255
    found = difference(np.array([2**63 + 1], "uint64"), np.array([-(2**63)]), check_dtype=False)
    assert found.abs == 2**64 + 1
    assert (
        difference(
            np.array([2**53 + 1], "int64"), np.array([2**53], "int64"), rtol=1, atol=1
        ).abs
        == 1
    )
    assert difference(np.array([2**63 + 1], "uint64"), np.array([2**63], "uint64")).ulp is None
    xdevice.assert_parity(
        np.array([2**63 - 1], "uint64"), np.array([2**63 - 1], "int64"), check_dtype=False
    )
    assert difference(2**70, 2**70 + 1).abs == 1
    found = difference(np.array([True, False]), np.array([True, True]))
    assert (found.worst, found.actual, found.expected, found.off) == ((1,), False, True, 1)


def test_nan_equals_nan_by_choice_and_infinities_only_themselves():
    values = np.array([1.0, math.nan, math.inf, -math.inf], "float32")
    found = difference(values, values)
    assert (found.worst, found.off) == ((1,), 1)
    xdevice.assert_parity(values, values, equal_nan=True)
    found = difference(values, values[[0, 1, 3, 2]], equal_nan=True)
    assert (found.off, found.total, found.abs) == (2, 4, math.inf)
    assert difference(np.array([math.nan]), np.array([1.0]), equal_nan=True).off == 1
    assert difference(np.array([3e38]), np.array([math.inf]), rtol=1, atol=math.inf).off == 1
    assert difference(np.array([1.7e308]), np.array([-1.7e308])).abs == math.inf
    assert difference(np.array([1.0, math.inf]), np.array([2.0, math.inf])).worst == (0,), (
        "the largest is infinite"
    )


def test_a_complex_number_is_as_exact_as_its_parts():
    ones = np.ones(3, "complex64")
    xdevice.assert_parity(ones + 1e-6j, ones)
    assert difference(ones + 1e-4j, ones).abs == pytest.approx(1e-4, rel=1e-3)
    assert difference(ones.astype("complex128") + 1e-6j, ones.astype("complex128")).off == 3


@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize(
    ("dtype", "relative", "absolute", "least"),
    [
        ("float64", 1e-10, 1e-12, 1),
        ("float32", 1e-5, 1e-6, 1),
        ("float16", 8e-3, 2e-3, 0),
        ("bfloat16", 6e-2, 1.6e-2, 0),
    ],
)
def test_the_tolerance_follows_the_coarser_dtype(dtype, relative, absolute, least, size):
    expected = np.array(
        [size, size / 4, 0], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )
    limit = relative * size / 4 + absolute * max(least, size)
    for share, is_equal in ((0.99, True), (1.01, False)):
        actual = expected.astype("float64")
        actual[1] += share * limit
        found = xdevice.parity.compare(actual, expected, check_dtype=False)
        assert found.ok is is_equal
        assert xdevice.parity.compare(
            expected, actual, check_dtype=False, rtol=relative
        ).problem in (None, "values")
        assert found.allowed == pytest.approx(limit)
        assert found.excess == pytest.approx(share, rel=1e-3)


def test_a_given_tolerance_is_the_whole_of_it():
    assert difference(np.float32(1.0), np.float32(1 + 2**-23), rtol=0, atol=0).ulp == 1
    xdevice.assert_parity(np.float32(1.0), np.float32(1.5), atol=0.5, rtol=0)
    assert difference(np.float32(1.0), np.float32(1.5), atol=0.49, rtol=0).allowed == 0.49
    xdevice.assert_parity(np.float32(1.0), np.float32(1.5), rtol=0.34)
    for wrong in (-1, True, "1", math.nan):
        with pytest.raises(xdevice.errors.ArgumentError, match="a non-negative number"):
            xdevice.assert_parity(1, 1, rtol=wrong)


def test_a_tolerance_may_be_a_number_of_numpy_and_an_infinite_one_lets_nothing_pass_at_zero():
    xdevice.assert_parity(
        np.float32(1.0), np.float32(1.5), atol=np.float32(0.5), rtol=np.int64(0)
    )
    assert difference(np.ones(2), np.array([1.0, 0.0]), rtol=math.inf).worst == (1,)


def test_a_mask_is_not_ignored():
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    for read in (
        lambda: xdevice.parity.compare(masked, np.ones(2)),
        lambda: xdevice.to_numpy(masked),
    ):
        with pytest.raises(xdevice.errors.UnsupportedError, match=r"x\.filled\(\)"):
            read()


def test_keys_that_look_the_same_are_leaves_of_their_own():
    class Key:
        def __repr__(self):
            return "key"

    one, other = Key(), Key()
    assert difference({one: 1.0, other: 2.0}, {one: 2.0, other: 2.0}).off == 1
    assert (
        "actual has no [key] (number 2)" in difference({one: 1.0}, {one: 1.0, other: 1.0}).text
    )


def test_where_nothing_is_allowed_the_largest_error_is_the_worst():
    found = difference(np.array([1.0, 2.0, 5.0]), np.array([0.0, 0.0, 0.0]), rtol=0, atol=0)
    assert found.worst == (2,)


@settings(max_examples=100)
@given(
    st.sampled_from(list(TOLERANCES)),
    st.lists(st.floats(-1000, 1000, width=16), min_size=1, max_size=8),
    st.integers(0, 7),
    st.floats(0, 3).filter(lambda share: abs(share - 1) > 1e-3),
    st.sampled_from([-1, 1]),
)
def test_a_value_within_the_tolerance_passes_and_one_beyond_fails(
    dtype, values, place, share, sign
):
    expected = np.array(values, "float64").astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )
    actual, place = expected.astype("float64"), place % len(values)
    rule = TOLERANCES[dtype]
    size = max(abs(actual).max(), rule.least)
    limit = float(rule.relative * abs(actual[place]) + rule.absolute * size)
    actual[place] += sign * share * limit
    found = xdevice.parity.compare(actual, expected, check_dtype=False)
    assert found.ok is (share <= 1 or limit == 0)
    assert found.ok or (found.worst, found.off) == ((place,), 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_ulp_are_steps_to_the_next_number(dtype):
    host = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for start in (0.0, -0.0, 1.0, -1.5, 3e-5, 6e4):
        x = y = np.array(start, host)
        for steps in range(1, 6):
            y = np.nextafter(y, np.array(-math.inf, host))
            assert ulp_distance(x, y, dtype) == ulp_distance(y, x, dtype) == steps
    assert ulp_distance(0.0, -0.0, dtype) == 0
    assert ulp_distance(math.nan, 1.0, dtype) is None
    assert ulp_distance(math.inf, 1.0, dtype) is None
    assert ulp_distance(1 + 1j, 1 + 1.0j, dtype) == 0


def test_ulp_agree_with_the_spacing_of_numpy():
    rng = np.random.default_rng(0)
    for x in rng.normal(0, 100, 50).astype("float32"):
        y = np.float32(x + 7 * np.spacing(x))
        assert ulp_distance(x, y, "float32") == round(
            float(abs(y - x)) / abs(float(np.spacing(x)))
        )
    assert ulp_distance(-1.7e308, 1.7e308, "float64") > 2**63


def test_a_symbol_and_an_unknown_dtype_are_refused():
    jax = xdevice.backend("jax").framework
    with pytest.raises(xdevice.errors.UnsupportedError, match="traces a function"):
        jax.jit(lambda x: xdevice.assert_parity(x, x) or x)(jax.numpy.ones(2))
    x = np.ones(2, ml_dtypes.float8_e4m3fn)
    with pytest.raises(xdevice.errors.DTypeError, match="no rule for comparing float8_e4m3fn"):
        xdevice.parity.compare(x, x)


# recordings


def test_a_recording_holds_what_was_recorded(tmp_path):
    value = {
        "w": np.arange(6.0).reshape(2, 3).T, "b": np.ones(3, ml_dtypes.bfloat16), "none": np.zeros((0, 3)),
        "plain": [1, 2.5, math.nan, True, None, "text", 1 + 2j, 2**70], "zero-d": np.array(3, "int8"),
    }  # fmt: skip
    with recording_to(tmp_path / "a"):
        for step in range(3):
            value["w"] += 1
            xdevice.parity.log("all", value)
            xdevice.parity.log("step", step)
    entries = Recording(tmp_path / "a").entries
    assert [(entry.name, entry.step) for entry in entries[:4]] == [
        ("all", 0),
        ("step", 0),
        ("all", 1),
        ("step", 1),
    ]
    rule = Strictness(rtol=0, atol=0, equal_nan=True, check_device=True)
    assert compare_leaves(entries[4].read(), host_leaves.read_leaves(value), rule).ok
    assert not compare_leaves(entries[2].read(), host_leaves.read_leaves(value), rule).ok
    assert entries[5].read()[0].value == 2


@pytest.mark.parametrize("backend", xdevice.backends())
def test_a_recording_is_a_copy_of_each_frameworks_tensor(backend, tmp_path):
    with xdevice.use_backend(backend) as chosen, recording_to(tmp_path / "a"):
        x = xdevice.tensor([1.0, 2.0])
        xdevice.parity.log("x", {"x": x})
        network = chosen.samples().network(2, 1)
        if network is not None:
            xdevice.parity.log("network", network)
    recording = Recording(tmp_path / "a")
    leaf = recording.entries[0].read()[0]
    assert (leaf.path, leaf.dtype, leaf.device) == ("['x']", "float32", "cpu:0")
    assert leaf.owner == f"{backend} {chosen.version}"
    assert recording.header["versions"][backend] == chosen.version
    if network is not None:
        # in PyTorch's layouts, as recordings are
        state = xdevice.models.convert_state(network, "numpy")
        values = {reading.path: reading.value for reading in recording.entries[1].read()}
        assert state.keys() == values.keys()
        assert all((values[name] == x).all() for name, x in state.items())


def test_a_line_cut_short_by_a_crash_is_not_read(tmp_path):
    with recording_to(tmp_path / "a"):
        xdevice.parity.log("x", np.ones(3))
        xdevice.parity.log("x", np.ones(3))
    index = tmp_path / "a" / "index.jsonl"
    index.write_text(index.read_text()[:-20])
    assert [entry.step for entry in Recording(tmp_path / "a").entries] == [0]
    index.write_text("{}\n")
    with pytest.raises(
        xdevice.errors.RecordingError, match="comes from another version of xdevice"
    ):
        Recording(tmp_path / "a")


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with recording_to(tmp_path / "a"):
        xdevice.parity.log("x", 1)
        for name in ("", 3):
            with pytest.raises(
                xdevice.errors.RecordingError,
                match=r"the name passed to parity\.log must be a non-empty string, .* got the name",
            ):
                xdevice.parity.log(name, 1)
        with pytest.raises(xdevice.errors.NotATensorError, match=r"cannot record x\['y'\]"):
            xdevice.parity.log("x", {"y": object()})
        with pytest.raises(xdevice.errors.DTypeError, match="float8_e4m3fn"):
            xdevice.parity.log("x", np.ones(2, ml_dtypes.float8_e4m3fn))
    assert len(Recording(tmp_path / "a").entries) == 1
    with (
        pytest.raises(xdevice.errors.RecordingError, match="already contains a recording"),
        recording_to(tmp_path / "a"),
    ):
        pass
    with pytest.raises(xdevice.errors.RecordingError, match="contains no recording"):
        Recording(tmp_path / "b")


def test_a_forked_child_does_not_write_between_the_lines_of_its_parent(tmp_path):
    code = """
import os, sys, xdevice
xdevice.parity.log("x", 1)
child = os.fork()
if not child:
    try:
        xdevice.parity.log("x", 2)
    except xdevice.errors.RecordingError:
        os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python("-c", code, XDEVICE_RECORD=str(tmp_path / "a"))
    assert done.returncode == 7
    assert len(Recording(tmp_path / "a").entries) == 1


def test_a_spawned_worker_that_records_nothing_is_unharmed(tmp_path):
    (tmp_path / "script.py").write_text(
        """
import multiprocessing
from xdevice.errors import RecordingError
from xdevice.parity import log

def double(x):
    return 2 * x

def recorded(x):
    try:
        log("y", x)
    except RecordingError as error:
        return str(error)

if __name__ == "__main__":
    log("x", 1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        log("x", pool.map(double, [1, 2]))
        assert "already contains a recording" in pool.apply(recorded, (1,))
"""
    )
    # in a group of its own: a pool whose workers fail at their start makes new ones for ever
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], env={**os.environ, "XDEVICE_RECORD": str(tmp_path / "a")},
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.wait(timeout=800) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert [(entry.name, entry.step) for entry in Recording(tmp_path / "a").entries] == [
        ("x", 0),
        ("x", 1),
    ]


def test_record_outside_of_a_run_costs_next_to_nothing_and_imports_nothing():
    xdevice.parity.log("loss", 1.0)
    times = timeit.repeat(
        lambda: xdevice.parity.log("loss", 1.0),
        timer=time.thread_time,
        number=10_000,
        repeat=20,
    )
    assert min(times) / 10_000 < 1e-6
    code = "import sys, xdevice; xdevice.parity.log('loss', 1); sys.exit(bool({'numpy', 'optree'} & set(sys.modules)))"
    assert python("-c", code, bare=True).returncode == 0


# planted faults, in the training of the example


def example():
    spec = importlib.util.spec_from_file_location("parity_mlp", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(backend, folder, plant=lambda module: None):
    module = example()
    plant(module)
    with xdevice.use_backend(backend), recording_to(folder):
        module.train()
    return Recording(folder).entries


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return recorded("torch", tmp_path_factory.mktemp("reference") / "torch")


def divergences(actual, reference):
    found = [
        finding
        for finding in compare_recordings(actual, reference, Strictness())
        if not finding.comparison.ok
    ]
    return sorted(found, key=lambda finding: finding.order)


def changed_first_weights(module, change):
    original = module.first_weights

    def first_weights():
        return {
            name: xdevice.tensor(change(name, xdevice.to_numpy(w)))
            for name, w in original().items()
        }

    module.first_weights = first_weights


def one_weight_off(module):
    def change(name, w):
        if name == "w2":
            w[5, 1] += 1e-3
        return w

    changed_first_weights(module, change)


def transposed_kernel(module):
    changed_first_weights(module, lambda name, w: w.T.copy() if name == "w1" else w)


def missing_bias(module):
    original = module.forward
    module.forward = lambda weights, inputs: original(
        {**weights, "b1": weights["b1"] * 0}, inputs
    )


def rounded_at_step_7(rounded):
    def plant(module):
        original, calls = module.forward, itertools.count()

        def forward(weights, inputs):
            step = next(calls) // 5  # one call for the outputs, one for each of four gradients
            return original(
                weights,
                xdevice.tensor(rounded(xdevice.to_numpy(inputs))) if step == 7 else inputs,
            )

        module.forward = forward

    return plant


def as_tf32(x):
    return ((x.view("uint32") + 0x1000) & 0xFFFFE000).view("float32")


def as_bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype("float32")


@pytest.mark.parametrize(
    "backend", sampled(FRAMEWORKS, each_time=[name for name in FRAMEWORKS if name != "jax"])
)
def test_honest_training_reports_nothing(backend, reference, tmp_path):
    findings = compare_recordings(recorded(backend, tmp_path / "a"), reference, Strictness())
    assert len(findings) == 41
    assert [finding for finding in findings if not finding.comparison.ok] == []


@pytest.mark.parametrize(
    "backend", sampled(FRAMEWORKS, each_time=[name for name in FRAMEWORKS if name != "jax"])
)
def test_one_weight_off_by_a_thousandth_is_named(backend, reference, tmp_path):
    found = divergences(recorded(backend, tmp_path / "a", one_weight_off), reference)
    first = found[0].comparison
    assert (found[0].name, found[0].step, first.leaf, first.worst, first.off) == (
        "weights",
        0,
        "['w2']",
        (5, 1),
        1,
    )
    last = next(
        finding for finding in found if (finding.name, finding.step) == ("weights", 10)
    ).comparison
    assert (last.leaf, last.worst) == ("['w2']", (5, 1))


@pytest.mark.parametrize("backend", sampled(FRAMEWORKS, each_time=["torch", "mxnet"]))
def test_a_transposed_kernel_is_named(backend, reference, tmp_path):
    first = divergences(recorded(backend, tmp_path / "a", transposed_kernel), reference)[0]
    assert (first.name, first.step, first.comparison.leaf) == ("weights", 0, "['w1']")
    assert "equal if one is transposed" in first.comparison.text


@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_a_missing_bias_is_found_where_it_is_missing(backend, reference, tmp_path):
    found = divergences(recorded(backend, tmp_path / "a", missing_bias), reference)
    assert (found[0].name, found[0].step) == ("outputs", 0)
    gradients = next(finding for finding in found if finding.name == "gradients").comparison
    assert gradients.leaf == "['b1']"
    assert gradients.actual == 0
    without = {name: np.ones(2) for name in ("w1", "w2", "b2")}
    assert "actual has no ['b1']" in difference(without, {**without, "b1": np.ones(2)}).text


@pytest.mark.parametrize("rounded", [as_tf32, as_bfloat16])
@pytest.mark.parametrize("backend", sampled(FRAMEWORKS, each_time=["torch", "mxnet"]))
def test_an_op_that_rounds_its_inputs_at_step_7_is_found_there(
    backend, rounded, reference, tmp_path
):
    found = divergences(
        recorded(backend, tmp_path / "a", rounded_at_step_7(rounded)), reference
    )
    assert (found[0].name, found[0].step) == ("outputs", 7)
