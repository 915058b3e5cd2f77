"""The conformance suite on several GPUs, real ones (`pytest -m gpu`) or virtual ones, which every machine has:

    XDEVICE_VIRTUAL_GPUS=4 pytest tests/hardware/test_on_gpus.py

A build of a framework that has no kernels for these GPUs is named in XDEVICE_NO_KERNELS ("paddle,mxnet"): then only
placing, copying, comparing and waiting are tried on it. On virtual GPUs `-m long` has the rest of it.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from helpers.environment import FRAMEWORKS, NO_KERNELS
from helpers.suite_runs import ProcessesAreLong

import xdevice
from xdevice.testing import Conformance

pytestmark = [pytest.mark.gpu, pytest.mark.virtual]


class _OnGpu(ProcessesAreLong, Conformance):
    home = "gpu:0"

    @property
    def other(self):
        return "gpu:1" if self.adapter.count("gpu") > 1 else "cpu:0"

    @pytest.mark.long  # seconds of work; on the CPU it is waited for in every run
    def test_sync_waits_for_work_under_way(self):
        super().test_sync_waits_for_work_under_way()


@pytest.mark.long
class _HostAndGpu(Conformance):
    home = "cpu:0"
    other = "gpu:0"


@pytest.mark.long
class _OnTheLastOfFour(Conformance):
    home = "gpu:2"
    other = "gpu:3"

    @pytest.fixture(autouse=True)
    def _four(self):
        if self.adapter.count("gpu") < 4:
            pytest.skip(f"{self.backend} has fewer than four GPUs here")


def _suites(name: str) -> list[type[Conformance]]:
    stated = {"backend": name, "computes": name not in NO_KERNELS}
    kinds = (_OnGpu, _HostAndGpu, _OnTheLastOfFour)
    return [
        type(f"Test{name.capitalize()}{kind.__name__.strip('_')}", (kind,), stated)
        for kind in kinds
    ]


TestTorchOnGpu, TestTorchHostAndGpu, TestTorchOnTheLastOfFour = _suites("torch")
TestTensorflowOnGpu, TestTensorflowHostAndGpu, TestTensorflowOnTheLastOfFour = _suites(
    "tensorflow"
)
TestPaddleOnGpu, TestPaddleHostAndGpu, TestPaddleOnTheLastOfFour = _suites("paddle")
TestMxnetOnGpu, TestMxnetHostAndGpu, TestMxnetOnTheLastOfFour = _suites("mxnet")
TestJaxOnGpu, TestJaxHostAndGpu, TestJaxOnTheLastOfFour = _suites("jax")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_gpu_is_seen_with_its_name_and_memory(name):
    backend = xdevice.backend(name)
    for index in range(backend.count("gpu")):
        about = backend.describe(xdevice.gpu(index))
        assert about.name
        assert about.memory is None or about.memory > 0


def second_gpu(backend):
    """The first one where there is no other."""
    return xdevice.gpu(min(1, backend.count("gpu") - 1))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_default_tensor_is_on_the_cpu_though_there_is_a_gpu(name):
    with xdevice.use_backend(name) as backend:
        assert xdevice.device_of(xdevice.tensor([1, 2])) is xdevice.cpu()
        with second_gpu(backend) as place:
            assert xdevice.device_of(xdevice.tensor([1, 2])) is place


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_move_is_new_memory(name):
    with xdevice.use_backend(name) as backend:
        address = backend.samples().address
        x = xdevice.tensor([1.0, 2.0])
        there = xdevice.to_device(x, second_gpu(backend))
        further = xdevice.to_device(there, "gpu:0")
        back = xdevice.to_device(further, "cpu")
        moves = [x, there, further, back] if backend.count("gpu") > 1 else [x, there, back]
        assert len(set(map(address, moves))) == len(moves)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_compiled_step_takes_the_state_of_an_optimizer(name):
    """Of which TensorFlow holds the count of steps, an int32, on the host."""
    if name in NO_KERNELS:
        pytest.skip(f"this build of {name} has no kernels for this GPU")
    with xdevice.use_backend(name), xdevice.gpu(0):
        params = {"w": xdevice.tensor([1.0, 2.0])}
        state = xdevice.optim.init(xdevice.optim.adam, params)
        step = xdevice.compile(
            lambda params, state: xdevice.optim.adam(params, params, state, lr=0.5)
        )
        for _ in range(2):
            params, state = step(params, state)
        assert xdevice.device_of(params["w"]) == xdevice.gpu(0)
        assert xdevice.item(state["step"]) == 2
        assert xdevice.to_numpy(params["w"]).tolist() == pytest.approx(
            [0.0339, 1.0087], abs=1e-4
        )


@pytest.mark.skipif("tensorflow" not in xdevice.backends(), reason="no TensorFlow")
def test_strings_of_tensorflow_stay_on_the_host():
    with xdevice.use_backend("tensorflow") as backend:
        words = backend.framework.constant(["a", "b"])
        gpus = [xdevice.gpu(0), second_gpu(backend)]
        moves = (
            xdevice.to_device,
            xdevice.copy_to,
            lambda x, place: xdevice.split_batch(x, gpus),
        )
        for move in moves:
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match="does not support string tensors on a GPU; leave strings on cpu:0",
            ):
                move(words, gpus[1])
        assert xdevice.device_of(xdevice.to_device(words, "cpu")) is xdevice.cpu()


def test_devices_are_one_across_frameworks():
    xs = []
    for name in FRAMEWORKS:
        with (
            suppress(xdevice.errors.BackendNotFoundError, xdevice.errors.BackendImportError),
            xdevice.use_backend(name) as backend,
        ):
            place = second_gpu(backend)
            xs.append(xdevice.tensor([1.0, 2.0], device=place))
    assert len(xs) >= 2
    assert xdevice.same_device(xs)
    assert xdevice.check_same_device(xs=xs) is place
