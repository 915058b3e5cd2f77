"""`--xd-cuda`: test suites of other projects, which know nothing of xdevice, on a virtual GPU that they call "cuda".

The suites here have the shapes of SciPy's, scikit-learn's and array-api-extra's."""

from __future__ import annotations

import pytest
from helpers.environment import needs

LIBRARY = """
import numpy as np

def right(xp, x):
    return x + (xp.ones(2, device=x.device) if hasattr(x, "device") else xp.ones(2))

def on_default_device(xp, x):
    return x + xp.ones(2)

def by_numpy(xp, x):
    return xp.asarray(np.asarray(x) + 1)
"""

LIKE_SCIPY = """
import os
import jax, pytest, torch

jax.config.update("jax_default_device", jax.devices(os.environ["LIKE_SCIPY_DEVICE"])[0])
torch.set_default_device(os.environ["LIKE_SCIPY_DEVICE"])

@pytest.fixture(params=[torch, jax.numpy], ids=["torch", "jax"])
def xp(request):
    return request.param
"""
LIKE_SCIPY_TESTS = """
import jax, pytest, torch
from library import by_numpy, on_default_device, right

@pytest.mark.parametrize("function", [by_numpy, on_default_device, right])
def test_it(xp, function):
    x = function(xp, xp.ones(2))
    assert x.device == (jax.devices("gpu")[0] if xp is jax.numpy else torch.device("vgpu", 1))
"""

LIKE_SKLEARN = """
import pytest, torch
from library import on_default_device, right

@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("function", [on_default_device, right])
def test_it(device, function):
    if device == "cuda" and not torch.backends.cuda.is_built():
        pytest.skip("no CUDA")
    x = torch.asarray([1.0, 2.0], device=device)
    assert function(torch, x).device == x.device == torch.ones(1).to(device).device
    assert (x.device.type == "cpu") == (device == "cpu")
    assert x.cuda().device == torch.device("cuda") or x.cuda().device == torch.device("cuda:0")
    assert torch.empty(1, device="cuda:0").device == x.cuda(0).device == torch.device("cuda:0")
    moved = (torch.nn.Linear(1, 1).cuda().weight, x.cuda(None), x.cuda(device=None))
    assert {y.device for y in moved} == {x.cuda().device}
    image = torch.ones(2, 3, 4, 5).cuda(None, True, memory_format=torch.channels_last)
    assert image.stride() == (60, 1, 15, 3)
    with torch.cuda.device(torch.cuda.current_device()):
        assert torch.cuda.max_memory_allocated(torch.cuda.device_count() - 1) >= 0
"""

LIKE_EXTRA = """
import pytest
from library import by_numpy, on_default_device, right

@pytest.fixture(params=["torch", "torch:gpu"])
def library(request):
    return request.param

@pytest.fixture
def xp(library):
    import torch
    if library == "torch:gpu":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA")
        torch.set_default_device("cuda")
    yield torch
    torch.set_default_device("cpu")

@pytest.fixture
def device(library, xp):
    return xp.device("cpu") if library == "torch:gpu" else xp.empty(0).device

@pytest.mark.parametrize("function", [by_numpy, on_default_device, right])
def test_it(xp, device, function):
    x = xp.asarray([1.0, 2.0], device=device)
    assert function(xp, x).device == device
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A project with a library. Its `run` runs pytest in a process of its own, on two virtual GPUs."""
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", "2")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    arguments = [
        "-W",
        "error",
        "-p",
        "xdevice.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-rf",
    ]
    pytester.makepyfile(library=LIBRARY)
    pytester.run_apart = lambda *more: pytester.runpytest_subprocess(
        *arguments, *more, timeout=800
    )
    pytester.run_here = lambda *more: pytester.runpytest_inprocess(*arguments, *more)
    return pytester


def _failed(result):
    return sorted(line.split(" - ")[0] for line in result.outlines if line.startswith("FAILED"))


@pytest.mark.parametrize(
    "options", [["--xd-cuda=gpu:1"], pytest.param([], marks=pytest.mark.gpu, id="a real GPU")]
)
def test_suites_that_ask_for_cuda_find_on_a_virtual_gpu_what_they_do_on_a_real_one(
    suite, options, monkeypatch
):
    needs("torch")
    if not options:
        monkeypatch.delenv("XDEVICE_VIRTUAL_GPUS")
    suite.makepyfile(test_like_sklearn=LIKE_SKLEARN, test_like_extra=LIKE_EXTRA)
    result = suite.run_apart(*options)
    assert _failed(result) == [
        "FAILED test_like_extra.py::test_it[torch:gpu-by_numpy]",
        "FAILED test_like_extra.py::test_it[torch:gpu-on_default_device]",
        "FAILED test_like_sklearn.py::test_it[on_default_device-cuda]",
    ]
    result.assert_outcomes(passed=7, failed=3)
    if options:
        result.stdout.fnmatch_lines(
            ['xdevice: "cuda" is gpu:1, a virtual GPU*', '*"cuda" was gpu:1 for torch*']
        )


@pytest.mark.slow
def test_a_default_device_can_be_kept_from_the_library_that_is_tested(suite, monkeypatch):
    needs("torch", "jax")
    monkeypatch.setenv("LIKE_SCIPY_DEVICE", "cuda")
    suite.makeconftest(LIKE_SCIPY)
    suite.makepyfile(test_like_scipy=LIKE_SCIPY_TESTS)
    result = suite.run_apart("--xd-cuda=gpu:1")
    assert _failed(result) == ["FAILED test_like_scipy.py::test_it[torch-by_numpy]"]
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(['*"cuda" was gpu:1 for *jax*'])
    result = suite.run_apart("--xd-cuda=gpu:1", "--xd-default-of-tests")
    assert _failed(result) == [
        "FAILED test_like_scipy.py::test_it[torch-by_numpy]",
        "FAILED test_like_scipy.py::test_it[torch-on_default_device]",
    ]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("gpu:2", "the number of virtual GPUs is 2; set *=3"),
        ("cpu", "gpu:0 to gpu:1"),
        ("meta", "gpu:0 to gpu:1"),
        ("gqu", "'gpu'?"),
    ],
)
def test_only_a_virtual_gpu_can_be_cuda(suite, option, words):
    suite.makepyfile("def test_it(): pass\n")
    result = suite.run_here(f"--xd-cuda={option}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --xd-cuda={option}*{words}*"])


def test_virtual_gpus_must_be_asked_for(suite, monkeypatch):
    monkeypatch.delenv("XDEVICE_VIRTUAL_GPUS")
    suite.makepyfile("def test_it(): pass\n")
    result = suite.run_here("--xd-cuda=gpu:1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --xd-cuda=gpu:1*the number of virtual GPUs is 0; set XDEVICE_VIRTUAL_GPUS=2*"]
    )
    result = suite.run_here("--xd-default-of-tests")
    result.stderr.fnmatch_lines(
        ["ERROR: --xd-default-of-tests does nothing without --xd-cuda*"]
    )


def test_a_run_without_a_framework_that_knows_cuda_fails(suite):
    suite.makepyfile("import numpy\ndef test_it(): pass\n")
    result = suite.run_apart("--xd-cuda=gpu:1")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*which is a failure*"])


def test_collecting_alone_is_no_failure(suite):
    suite.makepyfile("import numpy\ndef test_it(): pass\n")
    result = suite.run_apart("--xd-cuda=gpu:1", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*which is a failure*")
