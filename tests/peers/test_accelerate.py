"""accelerate looks for CUDA and other hardware by name, so it sees no virtual GPUs: docs/explanation/virtual.md."""

from __future__ import annotations

import accelerate
import pytest
from accelerate.utils import find_device, send_to_device

import xdevice

torch = xdevice.backend("torch").framework


@pytest.fixture
def accelerator():
    accelerate.state.PartialState._reset_state()
    accelerate.state.AcceleratorState._reset_state()
    yield accelerate.Accelerator()
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.PartialState._reset_state()


def prepared(accelerator):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(
        torch.arange(12.0).reshape(4, 3) / 10, torch.ones(4, 1)
    )
    loader = torch.utils.data.DataLoader(data, 2)
    return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1), loader)


def trained(accelerator, place):
    model, optimizer, loader = prepared(accelerator)
    xdevice.to_device(model, place)
    for batch in loader:
        x, y = xdevice.to_device(batch, place)
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
    assert xdevice.device_of(model) is xdevice.device(place)
    return xdevice.to_numpy(model.weight.detach())


def test_an_accelerator_stays_on_the_cpu_beside_virtual_gpus(accelerator):
    with xdevice.use_backend("torch"):
        assert xdevice.num_gpus() == 2
    assert torch.accelerator.current_accelerator().type == "vgpu"
    assert accelerator.device.type == "cpu"
    model, _, loader = prepared(accelerator)
    assert {str(xdevice.device_of(x)) for x in (model, next(iter(loader)))} == {"cpu:0"}


def test_what_an_accelerator_has_prepared_trains_where_xdevice_moves_it(accelerator, place):
    assert abs(trained(accelerator, place) - trained(accelerator, "cpu:0")).max() < 1e-6


def test_accelerates_own_functions_take_a_virtual_gpu(place):
    batch = {"x": torch.ones(2), "more": [torch.zeros(1)]}
    moved = send_to_device(batch, place.native)
    assert xdevice.device_of(moved) is place
    assert xdevice.device(find_device(moved)) is place
