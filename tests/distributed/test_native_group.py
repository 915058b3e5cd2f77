"""PyTorch's default process group leaves the environment of the process as it was, however its use ends."""

from __future__ import annotations

import os
import socket

import pytest
from helpers.environment import needs

import xdevice
from xdevice.distributed.contract.processes import Group

INTERFACE = "GLOO_SOCKET_IFNAME"


@pytest.fixture
def start(monkeypatch):
    """A function that makes the default process group of a world of one rank."""
    needs("torch")
    from torch.distributed import distributed_c10d as c10d

    monkeypatch.delenv(INTERFACE, raising=False)
    group = Group(0, 1, 0, 1, xdevice.cpu(), "127.0.0.1", 30.0, lambda text: [text])
    yield lambda: xdevice.backend("torch").start_native_group(group)
    if c10d.is_initialized():
        c10d.destroy_process_group()


def is_set():
    return INTERFACE in os.environ


def has_loopback():
    return any(name in ("lo", "lo0") for _, name in socket.if_nameindex())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_interface_is_set_as_long_as_there_is_the_group(start, end):
    native = start()
    assert is_set() == has_loopback()
    getattr(native, end)()
    assert not is_set()


def test_the_interface_is_not_left_set_by_a_group_that_cannot_be_made(start, monkeypatch):
    import torch.distributed as dist

    def fail(*args, **kwargs):
        assert is_set() == has_loopback()
        raise RuntimeError("no group")

    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(RuntimeError, match="no group"):
        start()
    assert not is_set()
