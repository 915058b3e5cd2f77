"""Which backend answers, and what a wrong name gets. NumPy and PyTorch stand for all."""

from __future__ import annotations

import re
import threading
import warnings

import pytest
from helpers.environment import ROOT, printed, python

import xdevice


def test_a_scope_is_stronger_than_the_default_is_stronger_than_the_variable(monkeypatch):
    monkeypatch.setenv("XDEVICE_BACKEND", "NumPy")
    assert xdevice.backend().name == "numpy"
    xdevice.set_backend("pytorch")
    assert xdevice.backend().name == "torch"
    with xdevice.use_backend("np") as chosen:
        assert xdevice.backend() is chosen
        assert chosen.name == "numpy"
        with xdevice.use_backend("torch"):
            assert type(xdevice.ones(1)).__module__ == "torch"
        assert type(xdevice.ones(1)).__module__ == "numpy"
    assert xdevice.backend().name == "torch"
    xdevice.set_backend(None)
    assert xdevice.backend().name == "numpy"


def test_a_tensor_decides_for_itself():
    import numpy as np
    import torch

    with xdevice.use_backend("numpy"):
        assert isinstance(xdevice.to_device(torch.ones(1), "meta"), torch.Tensor)
    with xdevice.use_backend("torch"):
        assert isinstance(xdevice.copy_to(np.ones(1), "cpu"), np.ndarray)


def test_tensors_of_two_frameworks_in_one_container_go_their_own_ways():
    import numpy as np
    import torch

    batch = {"torch": torch.ones(1), "numpy": np.ones(1)}
    copied = xdevice.copy_to(batch, "cpu")
    assert [type(x) for x in copied.values()] == [torch.Tensor, np.ndarray]
    assert xdevice.same_device(batch)
    moved = xdevice.to_device(batch, "meta")
    assert moved["torch"].device.type == "meta"
    assert moved["numpy"] is batch["numpy"]
    assert batch["torch"].device.type == "cpu"


def test_a_scope_holds_for_its_thread_and_ends_after_an_exception():
    seen = []
    with pytest.raises(KeyError), xdevice.use_backend("torch"):  # noqa: PT012
        thread = threading.Thread(target=lambda: seen.append(xdevice.backend().name))
        xdevice.set_backend("numpy")
        thread.start()
        thread.join()
        assert xdevice.backend().name == "torch"
        raise KeyError
    assert seen == ["numpy"]
    assert xdevice.backend().name == "numpy"


def test_a_changed_variable_is_warned_of_once_and_changes_nothing(monkeypatch):
    monkeypatch.setenv("XDEVICE_BACKEND", "numpy")
    assert xdevice.backend().name == "numpy"
    monkeypatch.setenv("XDEVICE_BACKEND", "torch")
    with pytest.warns(RuntimeWarning, match="changed to 'torch', but numpy was chosen"):
        assert xdevice.backend().name == "numpy"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xdevice.backend().name == "numpy"


@pytest.mark.parametrize("thing", [3, True, None.__class__, b"torch", ["torch"], pytest])
def test_what_is_no_name_is_refused(thing):
    for ask in (
        xdevice.backend,
        xdevice.set_backend,
        lambda name: xdevice.use_backend(name).__enter__(),
    ):
        with pytest.raises(
            xdevice.errors.BackendNotFoundError, match="expected the name of a backend"
        ):
            ask(thing)


@pytest.mark.parametrize("name", ["troch", "torch2", "", "  ", "pytoch"])
def test_an_unknown_name_is_refused_with_what_there_is(name):
    for ask in (
        xdevice.backend,
        xdevice.set_backend,
        lambda name: xdevice.use_backend(name).__enter__(),
    ):
        with pytest.raises(
            xdevice.errors.BackendNotFoundError,
            match=r"known: torch, tensorflow, .*installed: ",
        ) as raised:
            ask(name)
        assert repr(name) in str(raised.value)
    assert xdevice.backend("numpy").name == "numpy"


def test_a_typo_in_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv("XDEVICE_BACKEND", "troch")
    for _ in range(2):
        with pytest.raises(
            xdevice.errors.BackendNotFoundError,
            match=r"XDEVICE_BACKEND=troch: .*did you mean 'torch'",
        ):
            xdevice.try_gpu()
    with pytest.raises(
        xdevice.errors.BackendNotFoundError,
        match=r"'keras': .*is called 'tensorflow'; known",
    ):
        xdevice.backend("keras")
    monkeypatch.setenv("XDEVICE_BACKEND", " ")
    assert xdevice.backend().name in xdevice.backends()


@pytest.mark.parametrize("name", ["XDEVICE_BACKENDS", "XDEVICE_VIRTUAL_GPU"])
def test_a_misspelt_variable_is_refused(name):
    done = python(
        "-c",
        "import xdevice; xdevice.backend('numpy')",
        **{name: "0", "XDEVICE_ELSEWHERE": "1"},
    )
    assert f"SettingError: xdevice does not read {name}; did you mean XDEVICE_" in done.stderr


def test_the_variables_that_are_known_are_those_of_the_docs():
    from xdevice.contract.environment import VARIABLES

    text = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    rows = "".join(
        line.split("|")[1] for line in text.splitlines() if line.startswith("| `XDEVICE_")
    )
    of_adapters = {"MXNET_NP"}
    assert set(re.findall(r"`XDEVICE_(\w+)`", rows)) == {*VARIABLES, *of_adapters}


@pytest.mark.long
def test_the_one_imported_framework_is_chosen():
    assert (
        printed("-c", "import torch, numpy, xdevice; print(xdevice.backend().name)") == "torch"
    )
    assert printed("-c", "import jax, xdevice; print(xdevice.backend().name)") == "jax"
    assert (
        printed("-c", "import tensorflow, xdevice; print(xdevice.backend().name)")
        == "tensorflow"
    )  # which imports jax
    assert printed("-c", "import jax, torch, xdevice; print(xdevice.backend().name)") == "torch"


@pytest.mark.slow
def test_without_anything_the_first_installed_is_chosen():
    assert (
        printed("-c", "import xdevice; print(xdevice.backend().name)") == xdevice.backends()[0]
    )


def test_where_nothing_else_is_installed_numpy_is_chosen():
    hidden = "import sys\nfor m in ('torch', 'tensorflow', 'paddle', 'mxnet', 'jax'): sys.modules[m] = None\n"
    assert printed("-c", hidden + "import xdevice; print(xdevice.backend().name)") == "numpy"
    assert (
        printed("-c", "import xdevice; print(xdevice.backend().name)", XDEVICE_BACKEND="NP")
        == "numpy"
    )


def test_another_package_of_the_name_is_told_of(tmp_path):
    there = tmp_path / "xdevice-6.0.dist-info"
    there.mkdir()
    (there / "METADATA").write_text("Metadata-Version: 2.1\nName: xdevice\nVersion: 6.0\n")
    done = python("-c", "import xdevice; print(xdevice.backends())", PYTHONPATH=str(tmp_path))
    assert "RuntimeWarning: another package, xdevice 6.0, is also installed" in done.stderr
    done = python("-m", "xdevice", "info", "numpy", PYTHONPATH=str(tmp_path))
    assert "pip uninstall xdevice" in " ".join(done.stdout.split())
