"""Blocking mode on the real frameworks: off, an asynchronous error surfaces at `sync`; on, at the line."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from helpers.environment import ROOT, python, sampled

import xdevice

ASYNCHRONOUS = [name for name in xdevice.backends() if name in ("mxnet", "jax")]


def fails(backend):
    """Starts work that fails, and gives its result."""
    if backend.name == "mxnet":
        np = backend.framework.np
        return np.linalg.cholesky(-np.eye(3))
    np = backend.framework.numpy
    size = 20_000_000
    return np.ones((size, 1)) @ np.ones((1, size))


def error_of(backend):
    return (
        backend.framework.MXNetError
        if backend.name == "mxnet"
        else backend.framework.errors.JaxRuntimeError
    )


def surfaces_at_sync(backend):
    result = fails(backend)  # nothing is raised here
    with pytest.raises(error_of(backend)):
        xdevice.sync(result)
    return True


def surfaces_at_the_line(backend):
    with pytest.raises(error_of(backend)):
        fails(backend)
    xdevice.sync()
    return True


@pytest.fixture(params=ASYNCHRONOUS)
def backend(request):
    with xdevice.use_backend(request.param) as chosen:
        if request.param == "jax":
            chosen.framework.config.update("jax_cpu_enable_async_dispatch", True)
        yield chosen


def test_an_error_appears_at_its_line_inside_and_at_sync_outside(backend):
    assert surfaces_at_sync(backend)
    with xdevice.accelerator.blocking():
        assert surfaces_at_the_line(backend)
        assert surfaces_at_the_line(backend)
    assert surfaces_at_sync(backend)


def test_it_ends_after_an_exception(backend):
    with pytest.raises(error_of(backend)), xdevice.accelerator.blocking():
        fails(backend)
    assert surfaces_at_sync(backend)


def test_it_nests(backend):
    with xdevice.accelerator.blocking():
        with xdevice.accelerator.blocking(backend.name):
            assert surfaces_at_the_line(backend)
        assert surfaces_at_the_line(backend)
    assert surfaces_at_sync(backend)


def test_it_holds_in_other_threads(backend):
    found = []

    def work():
        with xdevice.use_backend(backend):
            found.append(surfaces_at_the_line(backend))

    with xdevice.accelerator.blocking():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [True]


def test_another_backend_goes_on(backend):
    with xdevice.accelerator.blocking("numpy"):
        assert surfaces_at_sync(backend)


@pytest.mark.skipif("jax" not in ASYNCHRONOUS, reason="jax is not installed")
def test_a_jax_function_called_before_blocks_too_and_is_not_traced_anew():
    with xdevice.use_backend("jax") as backend:
        jax = backend.framework
        traced = []

        @jax.jit
        def product(x, y):
            traced.append(x)
            return x @ y

        small = jax.numpy.ones((1, 1))
        for _ in range(3):
            product(small, small).block_until_ready()
        size = 20_000_000
        x, y = jax.numpy.ones((size, 1)), jax.numpy.ones((1, size))
        for _ in range(2):
            with pytest.raises(error_of(backend)):
                product(x, y).block_until_ready()
        with xdevice.accelerator.blocking():
            product(small, small)
            with pytest.raises(error_of(backend)):
                product(x, y)
        product(small, small)
        assert len(traced) == 2


@pytest.mark.skipif("jax" not in ASYNCHRONOUS, reason="jax is not installed")
def test_a_jax_without_the_private_api_is_refused_with_what_to_do(monkeypatch):
    backend = xdevice.backend("jax")
    monkeypatch.setitem(
        backend.private_names._lacking, ("blocking", ""), ["jax._src.pjit._gone"]
    )
    with (
        pytest.raises(xdevice.errors.UnsupportedError, match=r"jax\._src\.pjit\._gone"),
        xdevice.accelerator.blocking(backend),
    ):
        pass


@pytest.mark.parametrize("name", xdevice.backends())
def test_results_are_those_without(name):
    with xdevice.use_backend(name):
        x = xdevice.tensor([[1.0, 2.0], [3.0, 4.0]])
        with xdevice.accelerator.blocking() as nothing:
            y = x @ x + 1
        assert nothing is None
        assert xdevice.to_numpy(y).tolist() == [[8, 11], [16, 23]]


@pytest.mark.skipif("torch" not in xdevice.backends(), reason="torch is not installed")
def test_pytorch_waits_after_each_operation_also_in_a_build_without_cuda(monkeypatch):
    backend = xdevice.backend("torch")
    from xdevice_torch import blocking

    waits = []
    monkeypatch.setattr(backend, "_gpu", "mps")  # whose builds have no torch.cuda to ask
    monkeypatch.setattr(backend, "_gpus", backend.virtual + 1)
    monkeypatch.setattr(backend, "synchronize", waits.append)
    x = backend.framework.ones(3)
    with backend.blocking():
        assert blocking.is_blocking()
        (x + 1) * 2
    assert not blocking.is_blocking()
    assert waits == [None, None]


@pytest.mark.skipif(
    "tensorflow" not in xdevice.backends(), reason="tensorflow is not installed"
)
def test_asynchronous_execution_of_tensorflow_is_off_inside_and_on_again_after():
    with xdevice.use_backend("tensorflow") as backend:
        config = backend.framework.config.experimental
        before = config.get_synchronous_execution()
        config.set_synchronous_execution(False)
        try:
            with xdevice.accelerator.blocking():
                assert config.get_synchronous_execution()
            assert not config.get_synchronous_execution()
        finally:
            config.set_synchronous_execution(before)


@pytest.mark.skipif(
    "tensorflow" not in xdevice.backends(), reason="tensorflow is not installed"
)
def test_the_wait_of_tensorflow_does_not_wait_for_itself():
    with xdevice.use_backend("tensorflow"):
        from xdevice_tensorflow import blocking

        x = xdevice.ones(2, 2)
        with blocking.blocking(waits=True):  # what the backend does where there is a GPU
            assert xdevice.to_numpy(x @ x).tolist() == [[2, 2], [2, 2]]


@pytest.mark.skipif("paddle" not in xdevice.backends(), reason="paddle is not installed")
def test_the_flag_of_paddle_is_set_inside_only(monkeypatch):
    with xdevice.use_backend("paddle") as backend:
        paddle = backend.framework
        monkeypatch.setattr(backend, "_gpus", 1)
        monkeypatch.setattr(backend, "virtual", 0)
        with xdevice.accelerator.blocking():
            assert paddle.get_flags("FLAGS_benchmark") == {"FLAGS_benchmark": True}
        assert paddle.get_flags("FLAGS_benchmark") == {"FLAGS_benchmark": False}


def run(code, **variables):
    return python("-W", "ignore", "-c", code, **variables)


@pytest.mark.parametrize(
    ("name", "imported_before"),
    sampled(
        itertools.product(ASYNCHRONOUS, [False, True]),
        each_time=(),
        slow=[("jax", False), ("jax", True)],
        others="long",
    ),
)
def test_the_variable_holds_from_the_loading_on(name, imported_before):
    if name == "mxnet" and imported_before:
        pytest.skip("MXNet 1.9.1 does not import by itself beside this NumPy")
    code = f"import {name}\n" if imported_before else ""
    folders = [str(ROOT / "tests"), str(Path(__file__).parent)]
    code += f"import os, sys\nsys.path[:0] = {folders!r}\n"
    code += "import xdevice\nfrom test_blocking import error_of, fails\n"
    code += f"backend = xdevice.backend({name!r})\n"
    code += "try:\n    fails(backend)\nexcept error_of(backend):\n    print('at the line')\n"
    assert "at the line" not in run(code, XDEVICE_BLOCKING="0").stdout
    done = run(code + "print(os.environ['CUDA_LAUNCH_BLOCKING'])", XDEVICE_BLOCKING="1")
    assert done.stdout.split() == ["at", "the", "line", "1"], done.stderr


def test_another_value_of_the_variable_is_refused():
    done = run("import xdevice\nxdevice.backend('numpy')", XDEVICE_BLOCKING="yes")
    assert "XDEVICE_BLOCKING must be 1 or 0, not 'yes'" in done.stderr
