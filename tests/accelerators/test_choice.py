"""Which of several accelerators `gpu:i` is: the variable's, the framework's own, or none without a word."""

from __future__ import annotations

import pytest

import xdevice
from xdevice.contract import accelerators


def choose(framework, names, default=None):
    return accelerators.choose(
        framework, names, lambda name: ("cuda", "rocm") if name == "GPU" else (name,), default
    )


@pytest.fixture
def wanted(monkeypatch):
    monkeypatch.delenv("XDEVICE_ACCELERATOR", raising=False)
    return lambda text: monkeypatch.setenv("XDEVICE_ACCELERATOR", text)


def test_the_only_one_and_the_frameworks_own_need_no_word(wanted):
    assert choose("toy", []) is None
    assert choose("toy", ["npu"]) == "npu"
    assert choose("toy", ["npu", "xpu"], "xpu") == "xpu"


def test_several_without_a_default_are_refused_by_name(wanted):
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"toy has several accelerators here, npu, xpu, .*=npu",
    ):
        choose("toy", ["npu", "xpu"])
    with pytest.raises(xdevice.errors.UnsupportedError, match="npu, xpu"):
        choose("toy", ["npu", "xpu"], "cuda")


@pytest.mark.parametrize("text", ["xpu", " XPU ", "cuda,xpu"])
def test_the_variable_chooses(wanted, text):
    wanted(text)
    assert choose("toy", ["npu", "XPU"], "npu") == "XPU"
    assert choose("toy", []) is None


def test_a_word_for_the_hardware_is_as_good_as_the_frameworks_name(wanted):
    wanted("rocm")
    assert choose("toy", ["GPU"]) == "GPU"
    assert choose("toy", ["XPU", "GPU"], "XPU") == "GPU"


@pytest.mark.parametrize("names", [["cuda"], ["cuda", "xpu"]])
def test_a_word_that_is_none_of_them_is_refused(wanted, names):
    wanted("npu")
    with pytest.raises(
        xdevice.errors.SettingError, match=r"XDEVICE_ACCELERATOR='npu'.*has cuda.*=npu,cuda"
    ):
        choose("toy", names, "cuda")
