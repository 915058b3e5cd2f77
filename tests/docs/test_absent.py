"""What CONTRIBUTING.md says of a framework that is not installed: a test that asks for it is skipped by its name."""

from __future__ import annotations

import sys

import pytest
from helpers.environment import ROOT

import xdevice

IMPORT = "import mxnet"
LOAD = "raise xdevice.errors.BackendNotFoundError(\"the backend 'mxnet' is not installed here; known: ...\")"


@pytest.fixture
def said(request, monkeypatch):
    """What conftest.py says of an error, on a machine without MXNet."""
    conftest = str(ROOT / "tests" / "conftest.py")
    rules = next(
        one
        for one in request.config.pluginmanager.get_plugins()
        if getattr(one, "__file__", "") == conftest
    )
    monkeypatch.setattr(rules, "ABSENT", ["mxnet"])
    monkeypatch.setitem(sys.modules, "mxnet", None)
    return lambda raised: rules._absent(request.node, raised)


def of(module, code, name=None):
    """The error of a line of code in a module; a test that gives a name asks for it."""
    with pytest.raises((ModuleNotFoundError, xdevice.errors.BackendNotFoundError)) as raised:
        exec(compile(code, f"{module}.py", "exec"), {"__name__": module, "xdevice": xdevice})
    return raised


def test_what_a_test_asks_for_is_named(said):
    assert said(of("test_something", IMPORT)) == "mxnet"
    assert said(of("xdevice_mxnet.twins.layers", IMPORT)) == "mxnet"
    assert said(of("xdevice.core.registry", LOAD, name="mxnet")) == "mxnet"


def test_what_xdevice_asks_for_by_itself_is_a_failure(said):
    assert said(of("xdevice.tensors.leaves", IMPORT)) is None
    assert said(of("xdevice_torch", IMPORT)) is None
    assert said(of("xdevice.core.registry", LOAD)) is None


def test_any_other_error_is_a_failure(said):
    assert said(of("test_something", "import a_module_that_nobody_has")) is None
    assert said(of("test_something", LOAD.replace("mxnet", "torch"))) is None
