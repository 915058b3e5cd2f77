"""`convert` on two real GPUs: memory is shared there, and what one framework has computed the other one sees.

A build of a framework that has no kernels for these GPUs is named in XDEVICE_NO_KERNELS ("paddle,mxnet"): its data is
made on the host and moved.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.environment import NO_KERNELS

import xdevice
from xdevice import convert

pytestmark = pytest.mark.gpu

NAMES = ("torch", "jax", "tensorflow", "paddle")
PAIRS = list(itertools.permutations(NAMES, 2))
GPUS = ("gpu:0", "gpu:1")


def backend(name):
    if name not in xdevice.backends():
        pytest.skip(f"{name} is not installed")
    found = xdevice.backend(name)
    if found.count("gpu") < 2:
        pytest.skip(f"{name} sees {found.count('gpu')} GPUs")
    return found


def make(name, values, gpu):
    return backend(name).from_numpy(values, xdevice.device(gpu))


def read(x):
    return xdevice.to_numpy(x)


def address(name, x):
    return backend(name).samples().address(x)


def needs_sharing(target):
    if backend(target).takes() is None:
        pytest.skip(f"{target} {backend(target).version} copies what it imports")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_memory_on_a_gpu_is_shared(source, target, gpu):
    needs_sharing(target)
    for dtype in ("float32", "float16", "int32", "uint8", "bool"):
        values = np.random.default_rng(0).integers(0, 2, (64, 48)).astype(dtype)
        x = make(source, values, gpu)
        converted = convert(x, target, copy=False)
        assert xdevice.device_of(converted) is xdevice.device(gpu), dtype
        assert address(target, converted) == address(source, x), dtype
        assert read(converted).tobytes() == values.tobytes(), dtype


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_copy_on_a_gpu_shares_nothing(source, target, gpu):
    values = np.arange(12, dtype="float32").reshape(3, 4)
    x = make(source, values, gpu)
    converted = convert(x, target, copy=True)
    assert xdevice.device_of(converted) is xdevice.device(gpu)
    assert address(target, converted) != address(source, x)
    assert (read(converted) == values).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_finished_writes_are_seen(source, target, gpu):
    if source in NO_KERNELS:
        pytest.skip(f"{source} has no kernels for this GPU")
    needs_sharing(target)
    with xdevice.use_backend(source):
        x = xdevice.ones(4096, 4096, device=gpu)
        factor = xdevice.ones(4096, 4096, device=gpu) / 4096
        for _ in range(50):
            x = x @ factor
        seen = read(convert(x, target, copy=False))
    assert np.allclose(seen, 1, rtol=1e-2)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("target", NAMES[1:])
def test_the_current_device_of_pytorch_does_not_matter(target, gpu, current):
    needs_sharing(target)
    torch = backend("torch").framework
    with torch.cuda.device(current):
        x = torch.arange(1000.0, device=f"cuda:{gpu[-1]}")
        converted = convert(x, target, copy=False)
        assert torch.cuda.current_device() == current
        assert address(target, converted) == x.data_ptr()
        assert read(converted).tolist() == list(range(1000))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("target", NAMES[1:])
def test_what_cannot_be_shared_is_copied_on_the_gpu(target, gpu):
    torch = backend("torch").framework
    x = torch.arange(4000.0, device=f"cuda:{gpu[-1]}").reshape(40, 100)
    for odd in (x.T, x[:, 1:], x[1:], x[:1].expand(5, 100), x.flatten()[1:]):
        converted = convert(odd, target)
        assert xdevice.device_of(converted) is xdevice.device(gpu)
        assert (read(converted) == read(odd)).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_what_is_written_on_a_gpu_is_seen_on_the_other_side(gpu):
    needs_sharing("paddle")
    x = make("torch", np.zeros(1000, "float32"), gpu)
    converted = convert(x, "paddle", copy=False)
    x.fill_(3.0)
    xdevice.sync(x)
    assert (read(converted) == 3).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_source_that_is_gone_leaves_its_memory_behind(source, target, gpu):
    values = np.random.default_rng(0).random(30_000, dtype="float32")
    converted = convert(make(source, values, gpu), target)
    for _ in range(10):
        make(source, np.zeros(30_000, "float32"), gpu)
    assert read(converted).tobytes() == values.tobytes()


def test_numpy_has_no_gpu():
    with pytest.raises(
        xdevice.errors.DeviceNotFoundError, match=r"gpu:0 does not exist on numpy.*move"
    ):
        convert(make("torch", np.ones(2), "gpu:0"), "numpy")


def test_a_number_of_tensorflow_on_a_gpu_is_copied():
    x = make("tensorflow", np.float32(3), "gpu:0")
    converted = convert(x, "torch")
    assert xdevice.device_of(converted) is xdevice.gpu(0)
    assert float(converted) == 3.0
    with pytest.raises(
        xdevice.errors.SharingError,
        match="cannot share the memory of this tensorflow tensor with torch: its memory may belong to a constant",
    ):
        convert(x, "torch", copy=False)


def test_the_cost_of_sharing_does_not_grow_with_the_size_on_a_gpu():
    import time

    def least(x):
        times = []
        for _ in range(30):
            start = time.perf_counter()
            convert(x, "jax", copy=False)
            times.append(time.perf_counter() - start)
        return min(times)

    torch = backend("torch").framework
    small, large = torch.zeros(256, device="cuda:0"), torch.zeros(2**28, device="cuda:0")
    assert least(large) < 3 * least(small) + 20e-6
