"""The pytest plugin, by running pytest on small projects. NumPy and PyTorch stand for all, and one run has three."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.environment import ROOT

import xdevice
from xdevice import transfers
from xdevice.core import registry
from xdevice.performance.contract import hooks
from xdevice.testing import pytest_plugin
from xdevice.testing.pytest_plugin import recordings as pytest_recording
from xdevice.testing.pytest_plugin.markers import MARKERS
from xdevice.twins.parity import comparing as parity

TWO = "--xd-backends=numpy,torch"

# pytester drops the modules that a run in this process has imported, and PyTorch cannot be imported twice
IMPORTED = [hooks, parity, pytest_plugin, pytest_recording, transfers]


@pytest.fixture(scope="module", autouse=True)
def _pytorch_is_imported_before():
    for name in ("numpy", "torch"):
        xdevice.backend(name).samples()


@pytest.fixture
def project(pytester, monkeypatch):
    """A project whose own warnings are errors. Its `run` runs pytest here, its `spawn` in a process of its own."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Hypothesis would be imported anew by every run
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    arguments = [
        "-W",
        "error",
        "-p",
        "xdevice.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-rsx",
    ]
    pytester.makeini("[pytest]\naddopts = --strict-markers\n")
    pytester.run_here = lambda *more: pytester.runpytest_inprocess(*arguments, *more)
    pytester.spawn = lambda *more: pytester.runpytest_subprocess(*arguments, *more, timeout=800)
    return pytester


def write(project, code, name="test_project"):
    project.makepyfile(**{name: "import numpy as np\nimport pytest\nimport xdevice\n" + code})


def closing(result):
    """The closing line, without versions."""
    lines = [line for line in result.outlines if line.startswith("xdevice: ")]
    return re.sub(r"(?<=[a-z]) \d+\.\d+[^ ]*", "", lines[-1]) if lines else None


# what a test gets


def test_a_test_runs_on_every_backend_which_is_selected_in_all_its_threads(project):
    write(
        project,
        """
from concurrent.futures import ThreadPoolExecutor

@pytest.fixture(scope="module")
def made(xd):
    return xd.name, xdevice.ones(1)

@pytest.fixture
def cleared():
    xdevice.set_backend(None)

def test_it(cleared, xd, made):
    assert xdevice.backend() is xd is xdevice.backend(xd.name)
    assert made[0] == xd.name == type(made[1]).__module__
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(xdevice.backend).result() is xd

def test_without(request):
    assert "xd" not in request.fixturenames
""",
    )
    xdevice.set_backend("numpy")
    result = project.run_here(TWO, "-v")  # which ends with torch
    assert xdevice.backend().name == "numpy", "what was selected before comes back"
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*::test_it?numpy? PASSED*", "*::test_it?torch? PASSED*"])
    assert closing(result) == "xdevice: torch (1 passed), numpy (1 passed); not run: gpu"


def test_devices_are_what_the_option_says(project):
    write(
        project,
        """
def test_device(xd, xd_device, xd_devices):
    assert xd_devices[0] is xd_device
    assert xdevice.device_of(xdevice.ones(1, device=xd_device)) is xd_device

def test_other(xd_device, xd_other_device):
    assert xd_other_device is not xd_device
""",
    )
    result = project.run_here(TWO, "--xd-device=cpu")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(
        ["SKIPPED*numpy has only one device here that holds values: cpu:0"]
    )
    result = project.run_here(TWO, "--xd-device=gpu:63")
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(
        ["--xd-device=gpu:63: gpu:63 does not exist on torch, which has cpu:0*"]
    )


def test_a_device_that_is_not_there_is_a_skip_under_auto_and_a_run_of_skips_fails(project):
    write(project, "def test_it(xd_device): pass\n")
    hide_all_but_numpy(project)
    result = project.run_here("--xd-device=gpu")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert closing(result).startswith(
        "xdevice: no backend was run, which is a failure; not run: gpu, torch (not inst"
    )


def test_with_virtual_gpus_numpy_is_tested_on_the_cpu(project, monkeypatch):
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", "2")
    write(
        project,
        """
def test_device(xd_device, xd_devices):
    assert xd_devices == [xd_device] == [xdevice.cpu()]

@pytest.mark.xd_needs_gpu
def test_gpu(xd): raise AssertionError
""",
    )
    hide_all_but_numpy(project)
    result = project.spawn()
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs 1 GPU, but numpy finds 0: *"])
    project.spawn("--xd-device=gpu:1").assert_outcomes(skipped=2)


def test_a_difference_is_red_and_named(project):
    write(
        project,
        """
def test_it(xd, assert_parity):
    weights = xdevice.ones((2, 3))
    assert_parity({"w": weights}, {"w": np.ones((2, 3), "float32")})
    wrong = np.ones((2, 3), "float32")
    wrong[1, 2] += 1e-3
    assert_parity({"w": weights}, {"w": wrong})

def test_without_the_fixture():
    xdevice.assert_parity(2.0, 1.0)

def test_tol(xd, assert_parity):
    assert_parity(2.0, 1.0, tol=1)
""",
    )
    result = project.run_here("--xd-backends=torch")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [">*assert_parity(2.0, 1.0, tol=1)", "E*assert_parity() got an unexpected * 'tol'*"]
    )
    result.stdout.fnmatch_lines(
        [">*assert_parity({*wrong*", "E*the values differ at ?'w'?: 1 of 6 elements is off"]
    )
    result.stdout.fnmatch_lines(
        [">*xdevice.assert_parity(2.0, 1.0)", "E*the values differ: 1 of 1 element is off"]
    )
    result.stdout.no_fnmatch_line("*def assert_parity*")


def test_the_body_of_a_test_may_be_kept_from_reading(project):
    write(
        project,
        """
@pytest.fixture
def made(no_transfer, xd):
    return xdevice.item(xdevice.ones(1))

def test_fails(made):
    xdevice.item(xdevice.ones(1))

def test_passes(made, assert_parity):
    assert_parity(xdevice.ones(1) * 2, np.full(1, 2, "float32"))
    xdevice.parity.log("one", xdevice.ones(1))
""",
    )
    result = project.run_here("--xd-backends=torch", f"--xd-record={project.path / 'kept'}")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E*TransferError: *test_project.py:10: item reads 4 bytes from cpu:0 (torch)*"]
    )


def test_what_cannot_be_parametrised_is_told_so(project):
    write(
        project,
        """
import unittest

def test_asks_late(request):
    request.getfixturevalue("xd")

@pytest.mark.usefixtures("xd")
class TestCase(unittest.TestCase):
    def test_it(self): pass
""",
    )
    result = project.run_here(TWO)
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*xd is a parametrized fixture, so it must be an argument of the test or of one of its fixtures*"
        ]
        * 2
    )


@pytest.mark.parametrize(
    "code",
    [
        "@pytest.fixture\ndef xd(): return 3\ndef test_it(xd): assert xd == 3\n",
        "@pytest.mark.parametrize('xd', [3])\ndef test_it(xd): assert xd == 3\n",
        "@pytest.fixture(params=[3])\ndef xd(request): return request.param\ndef test_it(xd): assert xd == 3\n",
    ],
)
def test_an_xd_of_the_project_s_own_is_left_alone(project, code):
    write(project, code)
    result = project.run_here()
    result.assert_outcomes(passed=1)
    assert closing(result) is None


def test_an_xd_made_of_ours_runs_on_every_backend(project):
    write(
        project,
        "@pytest.fixture\ndef xd(xd): return xd.name\ndef test_it(xd): assert xd in ('numpy', 'torch')\n",
    )
    project.run_here(TWO).assert_outcomes(passed=2)


# markers


def test_markers_choose_backends(project):
    write(
        project,
        """
@pytest.mark.xd_only("pytorch")
def test_only(xd): assert xd.name == "torch"

@pytest.mark.xd_skip("torch", reason="not there yet")
def test_skip(xd): assert xd.name == "numpy"

@pytest.mark.xd_xfail("numpy", reason="has no meta", raises=xdevice.errors.DeviceNotFoundError, strict=True)
def test_xfail(xd): xdevice.ones(1, device="meta")

@pytest.mark.xd_needs_gpu(64)
def test_gpu(xd): raise AssertionError

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.xd_skip("numpy", reason="one of two"))])
def test_parameter(xd, n): pass
""",
    )
    result = project.run_here(TWO, "-v")
    result.assert_outcomes(passed=6, skipped=4, xfailed=1)
    assert closing(result) == (
        "xdevice: torch (4 passed, 2 skipped), numpy (2 passed, 2 skipped, 1 xfailed); not run: gpu"
    )
    result.stdout.fnmatch_lines_random(
        [
            "*::test_only?torch? PASSED*",
            "SKIPPED*test_project.py:*: not there yet",
            "SKIPPED*test_project.py:*: one of two",
            "SKIPPED*test_project.py:*: needs 64 GPUs, but numpy finds 0: *",
            "XFAIL*test_xfail?numpy? - has no meta",
        ]
    )
    result.stdout.no_fnmatch_line("*test_only?numpy?*")


def test_a_strict_xfail_that_passes_fails(project):
    write(
        project,
        "@pytest.mark.xd_xfail('numpy', reason='odd', strict=True)\ndef test_it(xd): pass\n",
    )
    project.run_here(TWO).assert_outcomes(passed=1, failed=1)


def test_tolerances_are_those_of_the_closest_marker_for_the_backend(project):
    write(
        project,
        """
pytestmark = [pytest.mark.xd_tol(rtol=0.3), pytest.mark.xd_tol("numpy", check_dtype=False)]
far = np.array([1.2], dtype="float32")

def test_module(xd, assert_parity): assert_parity(xdevice.ones(1), far)

@pytest.mark.xd_tol("torch", rtol=1e-6)
def test_closest(xd, assert_parity): assert_parity(xdevice.ones(1), far)

def test_call(xd, assert_parity): assert_parity(xdevice.ones(1), far, rtol=1e-6)

def test_dtype(xd, assert_parity): assert_parity(xdevice.ones(1), far.astype("float64"))
""",
    )
    result = project.run_here(TWO, "-v", "--tb=line")
    result.stdout.fnmatch_lines_random([
        "*::test_module?numpy? PASSED*", "*::test_module?torch? PASSED*",
        "*::test_closest?numpy? PASSED*", "*::test_closest?torch? FAILED*",
        "*::test_call?numpy? FAILED*", "*::test_call?torch? FAILED*",
        "*::test_dtype?numpy? PASSED*", "*::test_dtype?torch? FAILED*",
    ])  # fmt: skip


WRONG_MARKERS = [
    ("xd_only('troch')", "xd_only: there is no backend 'troch' (did you mean 'torch'?)"),
    ("xd_only()", 'xd_only names no backend; write xd_only("mxnet")'),
    ("xd_skip('mx')", "xd_skip needs a reason; write xd_skip('mx', reason=\"...\")"),
    ("xd_skip(reason='odd')", "xd_skip names no backend"),
    ("xd_xfail('mxnet', reason=' ')", "xd_xfail needs a reason"),
    ("xd_xfail('mxnet', why='odd')", "xd_xfail has no argument why"),
    ("xd_needs_gpu('2')", "xd_needs_gpu expects a positive number of GPUs, got ('2',)"),
    ("xd_needs_gpu(0)", "xd_needs_gpu expects a positive number of GPUs, got (0,)"),
    ("xd_needs_dtype()", 'xd_needs_dtype expects names of dtypes such as "float64", got '),
    (
        "xd_needs_dtype('double')",
        "xd_needs_dtype expects names of dtypes such as \"float64\", got ['double']",
    ),
    ("xd_tol('torch')", "xd_tol sets nothing"),
    ("xd_tol('trch', rtol=1)", "xd_tol: there is no backend 'trch'"),
    ("xd_tol(rtool=1)", "xd_tol has no argument rtool"),
]


def test_a_wrong_marker_is_an_error_at_collection(project):
    for number, (marker, _) in enumerate(WRONG_MARKERS):
        write(
            project, f"@pytest.mark.{marker}\ndef test_it(xd): pass\n", f"test_wrong_{number}"
        )
    result = project.run_here(TWO)
    result.assert_outcomes(errors=len(WRONG_MARKERS))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    for number, (_, message) in enumerate(WRONG_MARKERS):
        assert f"test_wrong_{number}.py::test_it: {message}" in result.stdout.str()


@pytest.mark.parametrize(("marker", "message"), WRONG_MARKERS[::5])
def test_a_wrong_marker_of_a_parameter_is_an_error_at_collection(project, marker, message):
    write(
        project,
        f"@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.{marker})])\ndef test_it(xd, n): 1",
    )
    result = project.run_here(TWO)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_a_marker_that_says_nothing_is_an_error(project):
    write(project, "@pytest.mark.xd_only('torch')\ndef test_it(): pass\n")
    result = project.run_here(TWO)
    assert "xd_only does nothing for a test without the fixture xd" in result.stdout.str()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    write(
        project,
        "pytestmark = pytest.mark.xd_only('torch')\ndef test_it(): pass\ndef test_xd(xd): pass\n",
    )
    project.run_here(TWO).assert_outcomes(passed=2)


def test_a_test_draws_as_after_seed_0_and_its_fixtures_as_after_seed_1(project):
    write(
        project,
        """
def drawn():
    return xdevice.to_numpy(xdevice.random.uniform(3)).tolist()

def seeded(n):
    with xdevice.random.seed(n):
        return drawn()

@pytest.fixture
def numbers(xd):
    return drawn()

@pytest.mark.parametrize("time", [1, 2])
def test_it(xd, numbers, time):
    assert numbers == seeded(1)
    assert drawn() == seeded(0)
    xdevice.random.seed(7)
""",
    )
    project.run_here("--xd-backends=numpy").assert_outcomes(passed=2)


# which backends


def hide_all_but_numpy(project):
    hidden = [known.modules[0] for known in pytest_plugin.registry.KNOWN[:-1]]
    project.makeconftest(f"import sys\nfor name in {hidden}: sys.modules[name] = None")


def test_auto_leaves_out_what_is_not_installed(project):
    write(project, "def test_it(xd): pass\n")
    hide_all_but_numpy(project)
    result = project.run_here()
    result.assert_outcomes(passed=1)
    missing = ", ".join(
        f"{known.name} (not installed)" for known in pytest_plugin.registry.KNOWN[:-1]
    )
    assert closing(result) == f"xdevice: numpy (1 passed); not run: gpu, {missing}"


def test_a_module_that_is_skipped_as_a_whole_is_counted_like_any(project):
    write(
        project, "pytest.importorskip('a_framework_that_nobody_installed')", name="test_module"
    )
    write(project, "def test_it(xd): pass")
    result = project.run_here(TWO)
    result.assert_outcomes(passed=2, skipped=1)
    assert closing(result) == "xdevice: torch (1 passed), numpy (1 passed); not run: gpu"


def test_a_named_backend_that_is_not_there_ends_the_run(project):
    write(project, "def test_it(xd): pass\n")
    hide_all_but_numpy(project)
    for option, message in {
        "numpy,mx": "--xd-backends=numpy,mx: mxnet is not installed here; pip install 'mxnet<2' 'numpy<2'",
        "numppy": "--xd-backends=numppy: there is no backend 'numppy' (did you mean 'numpy'?)",
        "numpy,": "--xd-backends=numpy,: there is no backend '': the name is empty (is a variable such as",
        " ": "--xd-backends names no backend; write auto, or names such as torch,paddle",
    }.items():
        result = project.run_here(f"--xd-backends={option}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert message in result.stderr.str()


def test_a_device_that_is_misspelt_ends_the_run_though_no_test_asks_for_it(project):
    write(project, "def test_it(): pass\n")
    result = project.run_here("--xd-backends=np", "--xd-device=gup")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "--xd-device=gup: 'gup' is not a device: there is no kind of device called 'gup' (did you mean 'gpu'?)"
        in result.stderr.str()
    )


@pytest.mark.parametrize("slip", ["gpu1", "gpu-1", "gpu 1"])
def test_a_slip_in_a_device_imports_no_framework(project, monkeypatch, slip):
    write(project, "def test_it(): pass\n")
    monkeypatch.setattr(registry, "load", pytest.fail)
    result = project.run_here(TWO, f"--xd-device={slip}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--xd-device={slip}: '{slip}' is not a device" in result.stderr.str()


@pytest.mark.parametrize(
    "call",
    ["xdevice.zeros(-1)", "xdevice.array_namespace().mean(3)", "xdevice.to_device(3, 'gup')"],
)
def test_an_error_by_name_shows_the_line_of_the_test_and_none_of_ours(project, call):
    write(project, f"def test_it(xd):\n    {call}\n")
    out = project.run_here("--xd-backends=numpy").stdout.str()
    assert ">       xdevice." in out
    assert "/xdevice/" not in out
    assert re.search(r"test_project.py:5: [A-Z]\w+Error", out)
    assert "/xdevice/" in project.run_here("--xd-backends=numpy", "--full-trace").stdout.str()


def test_the_ini_file_sets_the_default(project):
    write(project, "def test_it(xd): pass\n")
    project.makeini("[pytest]\nxd_backends = np\n")
    result = project.run_here()
    assert closing(result) == "xdevice: numpy (1 passed); not run: gpu"
    assert re.search(r"^xdevice [\d.]+: numpy \d", result.stdout.str(), re.MULTILINE), (
        "the header names versions"
    )
    assert (
        closing(project.run_here("--xd-backends=torch"))
        == "xdevice: torch (1 passed); not run: gpu"
    )


def test_a_run_that_shows_nothing_fails(project):
    code = "@pytest.mark.xd_only('torch')\ndef test_it(xd): pass\ndef test_plain(): pass\n"
    write(project, code)
    result = project.run_here("--xd-backends=numpy")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (
        closing(result)
        == "xdevice: no backend was run, which is a failure; not run: gpu, numpy"
    )
    result.stdout.fnmatch_lines(
        ["SKIPPED*this test is not for the backends of this run: numpy"]
    )
    assert project.run_here("--xd-backends=numpy", "-k", "plain").ret == pytest.ExitCode.OK
    assert (
        project.run_here("--xd-backends=numpy", "-k", "nothing").ret
        == pytest.ExitCode.NO_TESTS_COLLECTED
    )
    assert project.run_here("--xd-backends=numpy", "--collect-only").ret == pytest.ExitCode.OK


# other processes


PARITY = """
@pytest.mark.parametrize("n", range(3))
def test_it(xd, n, assert_parity):
    assert_parity(xdevice.ones(n + 1) * 2, np.full(n + 1, 2.0 + 0.1 * (n == 2), "float32"))
"""


@pytest.mark.slow
def test_it_works_under_xdist(project):
    write(project, PARITY)
    result = project.spawn("--xd-backends=numpy", "-p", "xdist", "-n2")
    result.assert_outcomes(passed=2, failed=1)
    assert closing(result) == "xdevice: numpy (2 passed, 1 failed); not run: gpu"
    write(
        project,
        "@pytest.mark.xd_only('torch')\ndef test_it(xd): pass\ndef test_plain(): pass\n",
    )
    result = project.spawn("--xd-backends=numpy", "-p", "xdist", "-n2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert closing(result).startswith("xdevice: no backend was run")


@pytest.mark.slow
def test_with_one_worker_a_crash_costs_the_test_that_it_happens_in(project):
    write(
        project,
        """
import os, signal, sys
def test_before(xd): assert "torch" not in sys.modules
def test_crash(xd): os.kill(os.getpid(), signal.SIGKILL)
def test_after(xd): pass
def test_exits(xd): os._exit(0)
""",
    )
    result = project.spawn("--xd-backends=numpy", "-p", "xdist", "-n1")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*crashed while running *test_crash*", "*crashed while running *test_exits*"]
    )
    assert closing(result) == "xdevice: numpy (2 passed); not run: gpu"


# recordings

RECORDED = """
import os

@pytest.mark.parametrize("n", [2, 3])
def test_loss(xd, n, assert_parity):
    for step in range(3):
        fault = float(os.environ.get("FAULT", 0)) * (step == 1)
        xdevice.parity.log("loss", xdevice.ones(n) * step + fault)
    assert_parity(xdevice.ones(n) * 1.2, np.ones(n, "float32"), rtol=0.5)
    for _ in range(int(os.environ.get("MORE", 0))):
        xdevice.parity.log("more", 1)

def test_without_xd(assert_parity):
    assert_parity(1.0, 1.0, skip=())

def test_records_nothing(xd): pass
"""


@pytest.fixture
def kept(project):
    write(project, RECORDED)
    result = project.run_here("--xd-backends=torch", "--xd-record=kept")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["xdevice: 12 values of 3 tests recorded in *kept"])
    return project


@pytest.mark.slow
def test_recordings_of_another_environment_agree(kept):
    result = kept.run_here(TWO, "--xd-compare=kept")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(["xdevice: 22 values of 5 tests compared with *kept"])
    result = kept.run_here("--xd-backends=numpy", "--xd-compare=kept", "--xd-record=again")
    result.stdout.fnmatch_lines(
        ["xdevice: 12 values of 3 tests recorded in *again and compared with *kept"]
    )
    kept.run_here("--xd-backends=numpy", "--xd-record=again").assert_outcomes(passed=4)


def test_a_fault_in_another_environment_is_named(kept, monkeypatch):
    monkeypatch.setenv("FAULT", "1e-3")
    result = kept.run_here("--xd-backends=numpy", "--xd-compare=kept")
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(
        ["loss (step 1) differs from *torch: the values differ: 3 of 3 elements are off"]
    )
    monkeypatch.delenv("FAULT")
    monkeypatch.setenv("MORE", "1")
    result = kept.run_here("--xd-backends=numpy", "--xd-compare=kept")
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(["this test recorded *, more (1 times), but *torch contains *"])


def test_a_comparison_with_nothing_fails(kept):
    write(kept, RECORDED, "test_renamed")
    result = kept.run_here("--xd-backends=numpy", "--xd-compare=kept", "test_renamed.py")
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        ["*kept has no recording of this test; record it with --xd-record"]
    )
    result = kept.run_here("--xd-backends=numpy", "--xd-compare=kept", "-k", "nothing")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "0 values of 0 tests compared" in result.stdout.str()
    (kept.path / "linked").symlink_to("kept")  # as KEPT is where upper and lower case are one
    for options in (
        ["--xd-compare=nowhere"],
        ["--xd-record=kept", "--xd-compare=linked"],
        ["--xd-record=."],
    ):
        assert kept.run_here(*options).ret == pytest.ExitCode.USAGE_ERROR


# what it costs those who do not use it


def test_it_is_inert_until_used(project):
    code = """
import sys

def test_it():
    heavy = {"numpy", "optree", "ml_dtypes", "rich", "click", "torch", "tensorflow", "paddle", "mxnet", "jax"}
    assert not heavy & set(sys.modules)
    assert "xdevice.testing.pytest_plugin" in sys.modules
    unused = {"testing.pytest_plugin.recordings", "twins", "execution", "contract", "containers"}
    loaded = {name for name in unused if f"xdevice.{name}" in sys.modules}
    assert not loaded, loaded
"""
    project.makepyfile(test_plain=code)
    result = project.spawn()
    result.assert_outcomes(passed=1)
    assert not [line for line in result.outlines if line.startswith("xdevice")], (
        "neither header nor closing line"
    )


def test_the_entry_point_is_the_plugin():
    text = (ROOT / "pyproject.toml").read_text()
    assert (
        '[project.entry-points.pytest11]\nxdevice = "xdevice.testing.pytest_plugin"\n' in text
    )


# the page


@pytest.mark.slow
def test_the_page_shows_what_happens(project):
    page = (ROOT / "docs" / "reference" / "pytest.md").read_text()
    code, output = (
        re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1]
        for language in ("python", "text")
    )
    project.makepyfile(test_net=code)
    result = project.spawn("--xd-backends=torch,paddle,mxnet")

    def normal(text):
        return re.sub(r"(torch|paddle|mxnet) \d[^ ]*", r"\1", re.sub(r"=+", "=", text)).strip()

    lines = result.outlines
    start = next(number for number, line in enumerate(lines) if line.startswith("xdevice: "))
    assert [normal(line) for line in lines[start : start + 4]] == normal(output).splitlines()
    assert result.ret == pytest.ExitCode.OK


def test_the_page_names_everything():
    page = (ROOT / "docs" / "reference" / "pytest.md").read_text()
    options = re.findall(r'"(--xd-[a-z]+)"', Path(pytest_plugin.__file__).read_text())
    for name in {*MARKERS, *options}:
        assert f"`{name}" in page, name
