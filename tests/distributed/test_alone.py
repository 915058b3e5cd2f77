"""A world of one process refuses what a world of two refuses, so that a program is tested before it is launched."""

from __future__ import annotations

import pytest
from helpers.environment import BACKENDS, needs

import xdevice


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_two_processes_refuse_are_refused_by_one(backend):
    with xdevice.use_backend(backend), xdevice.distributed.processes() as world:
        good = {"w": xdevice.ones(2)}
        assert world.average_gradients(good) is good
        with pytest.raises(xdevice.errors.NotATensorError, match="3"):
            world.average_gradients(3)
        with pytest.raises(xdevice.errors.XDeviceError, match="int"):
            world.average_gradients({"w": xdevice.tensor([1, 2])})


def test_sparse_gradients_are_refused_by_one_process():
    needs("torch")
    torch = xdevice.backend("torch").framework
    net = torch.nn.Embedding(4, 2, sparse=True)
    net(torch.tensor([1])).sum().backward()
    with xdevice.distributed.processes() as world, pytest.raises(xdevice.errors.XDeviceError, match="not dense"):
        world.average_gradients(net)


@pytest.mark.parametrize("engine", ["nobody", "torch:nobody"])
def test_an_engine_that_is_not_there_is_refused_by_one_process(engine):
    needs("torch")
    with pytest.raises(xdevice.errors.XDeviceError, match="nobody"), xdevice.distributed.processes(engine=engine):
        pass
