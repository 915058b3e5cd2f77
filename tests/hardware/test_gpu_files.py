"""Files and launchers on real GPUs."""

from __future__ import annotations

import numpy as np
import pytest

import xdevice
from xdevice.base.dtypes import host_dtype

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "tensorflow", "paddle", "jax"])
def backend(request):
    if request.param not in xdevice.backends():
        pytest.skip(f"{request.param} is not installed")
    with xdevice.use_backend(request.param):
        if not xdevice.num_gpus():
            pytest.skip(f"{request.param} sees no GPU")
        yield xdevice.backend()


def test_a_file_goes_from_a_gpu_to_every_device(backend, tmp_path):
    rng = np.random.default_rng(0)
    dtypes = [
        "bool",
        "uint8",
        "int32",
        "float16",
        "bfloat16",
        "float32",
        *sorted(backend.short_floats),
    ]
    for size in (3, 30_000):  # small ones are copied, large ones staged
        raw = {name: rng.integers(0, 2, (size, 4)).astype(host_dtype(name)) for name in dtypes}
        placed = {name: backend.stage(array, xdevice.gpu()) for name, array in raw.items()}
        xdevice.save(tmp_path / "file", placed)
        for device in [*xdevice.try_all_gpus(), xdevice.cpu()]:
            for name, x in xdevice.load(tmp_path / "file", device=device).items():
                assert xdevice.device_of(x) is device
                assert backend.to_numpy(x).tobytes() == raw[name].tobytes(), (name, device)


def test_a_model_on_a_gpu_is_saved_and_written_into(backend, tmp_path):
    models = backend.samples().models()
    if not models:
        pytest.skip(f"{backend.name} has no models")
    for name in {"buffers", "sequential"} & set(models):
        first = models[name]()
        xdevice.save(tmp_path / "file", first)
        second = xdevice.to_device(models[name](), "gpu")
        xdevice.load(tmp_path / "file", into=second)
        assert xdevice.device_of(second) is xdevice.gpu()
        for (key, a), (_, b) in zip(
            backend.variables(first), backend.variables(second), strict=True
        ):
            assert backend.to_numpy(a).tobytes() == backend.to_numpy(b).tobytes(), key


def test_each_rank_has_a_gpu_of_its_own(backend, monkeypatch):
    for rank in range(xdevice.num_gpus()):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert xdevice.distributed.local_device() is xdevice.gpu(rank)
        assert xdevice.device_of(
            xdevice.tensor([1.0], device=xdevice.distributed.local_device())
        ) is xdevice.gpu(rank)
