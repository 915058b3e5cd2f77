"""What only hardware can show, on two real GPUs: `pytest -m gpu`. What virtual ones show too is in test_on_gpus.py.

A build of a framework that has no kernels for these GPUs is named in XDEVICE_NO_KERNELS ("paddle,mxnet"): then only
placing, copying, comparing and waiting are tried on it.
"""

from __future__ import annotations

import time

import pytest
from helpers.environment import FRAMEWORKS, NO_KERNELS, needs, printed, python

import xdevice

pytestmark = pytest.mark.gpu


def no_context_after(code: str) -> None:
    """Asserts that a fresh process has no CUDA context on any GPU after it has run the code."""
    ask = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
count = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
for index in range(count.value):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert not active.value, f"GPU {index} has a context"
"""
    done = python("-c", code + ask)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_loading_and_counting_start_no_gpu(name):
    no_context_after(
        f"import xdevice\nxdevice.set_backend({name!r})\n"
        "assert xdevice.num_gpus() >= 1 and xdevice.try_gpu() is xdevice.gpu() and xdevice.sync() is None\n"
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_sync_waits_for_all_gpus(name):
    if name in NO_KERNELS:
        pytest.skip(f"{name} has no kernels for this GPU")
    with xdevice.use_backend(name):
        gpus = xdevice.try_all_gpus()
        xs = [xdevice.random.uniform(8192, 8192, device=gpu) for gpu in gpus]
        for x in xs:
            xdevice.item((x @ x)[0, 0])  # compiles and loads all that is timed below
        start = time.perf_counter()
        products = xs
        for _ in range(60):
            products = [x @ y for x, y in zip(xs, products, strict=True)]
        enqueued = time.perf_counter() - start
        xdevice.sync()
        waited = time.perf_counter() - start
        for product in products:
            xdevice.item(product[0, 0])
        read = time.perf_counter() - start - waited
        assert enqueued < waited / 2, "the work was not asynchronous, so this shows nothing"
        assert read < waited / 2, (
            f"after sync() there was work left: {read:.3f} s of {waited:.3f} s"
        )


def test_integers_that_tensorflow_keeps_on_the_host_are_operands_on_its_gpu():
    with xdevice.use_backend("tensorflow"):
        xp = xdevice.array_namespace(x := xdevice.ones(3, 2, device="gpu:0"))
        indices = xdevice.backend("tensorflow").framework.constant([0, 2])
        assert (indices.device[-5:], indices.backing_device[-5:]) == ("GPU:0", "CPU:0")
        assert xdevice.device_of(indices) is xdevice.cpu()
        assert xdevice.device_of(xp.take(x, indices, axis=0)) is xdevice.gpu(0)
        assert (
            xdevice.item(
                xdevice.nn.cross_entropy(
                    x, xdevice.backend("tensorflow").framework.constant([0, 1, 1])
                )
            )
            > 0
        )
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            xp.take(x, xdevice.tensor([0, 2], dtype="int32", device="cpu"), axis=0)


def test_integers_of_tensorflow_are_where_they_are_said_to_be():
    with xdevice.use_backend("tensorflow"):
        if xdevice.num_gpus() < 2:
            pytest.skip("needs two GPUs")
        for dtype in ("int32", "int64", "bool", "float32"):
            x = xdevice.tensor([1, 0, 1], dtype=dtype)
            moved = xdevice.to_device(x, "gpu:1")
            assert moved.backing_device.endswith("GPU:1"), dtype
            assert xdevice.device_of(moved) is xdevice.gpu(1)


READ_AFTER_A_FAILURE = """
import jax
import jax.numpy as jnp
import xdevice

whole = jax.jit(lambda x: jnp.broadcast_to(x, (1 << 33, 1 << 10)) + 1)(jnp.zeros(1 << 10))
part = jax.jit(lambda x: x[0, 0])(whole)
for read, x in ((xdevice.item, part), (xdevice.to_numpy, part), (xdevice.to_numpy, whole)):
    try:
        read(x)
    except RuntimeError as error:
        print("memory" in str(error))
"""


def test_who_reads_what_failed_on_a_gpu_of_jax_gets_its_error():
    """Without a wait before it, the read of the large one took the host's memory until the process was killed."""
    needs("jax")
    assert printed("-c", READ_AFTER_A_FAILURE, XDEVICE_BACKEND="jax").split() == ["True"] * 3
