"""The engines of each framework's own: what they have, refuse, and are chosen by."""

from __future__ import annotations

import json
import socket
import threading
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.environment import needs, printed, python

import xdevice
from xdevice.base import devices
from xdevice.cuda_driver import nvidia
from xdevice.distributed import engines
from xdevice.distributed.contract.collectives import free_port

SCRIPT = Path(__file__).with_name("own_engine.py")
OWN = {"torch": "gloo", "paddle": "gloo", "jax": "gloo", "tensorflow": "ring"}
CPU, GPU = devices.CPU, devices.of("gpu", 0)


def test_a_pytorch_built_without_distributed_has_no_engine():
    """Such a build lacks `torch._C._c10d_init`, and then `torch.distributed` has no ReduceOp."""
    needs("torch")
    code = """
import torch
del torch._C._c10d_init, torch.distributed.ReduceOp
import xdevice
print(xdevice.backend("torch").engines())
"""
    assert printed("-c", code) == "()"


def test_a_free_port_can_be_listened_at():
    assert 1024 <= free_port("127.0.0.1") < 65536


@pytest.mark.parametrize(
    "name",
    ["numpy", *(pytest.param(name, marks=pytest.mark.slow) for name in OWN)],
)
def test_asking_which_engines_there_are_starts_nothing(name):
    """In a process of its own, for what another test has started counts as started."""
    code = f"""
import sys, xdevice
backend = xdevice.backend({name!r})
names = backend.engines()
if backend.name == "jax":
    from jax._src import xla_bridge
    assert not xla_bridge._backends
if backend.name == "tensorflow":
    from tensorflow.python.eager import context
    assert not context.context()._initialized
print(*names)
"""
    assert printed("-c", code).split("\n")[-1:] == ([OWN[name]] if name in OWN else [""])


@pytest.mark.slow
def test_mxnet_says_why_it_has_none():
    with pytest.raises(xdevice.errors.UnsupportedError, match="sends float64 as float32"):
        engines.candidates("mxnet", xdevice.backend("mxnet"), CPU)


def test_numpy_has_none():
    with pytest.raises(xdevice.errors.UnsupportedError, match="it has no engine here"):
        engines.candidates("numpy:mpi", xdevice.backend("numpy"), CPU)


@pytest.fixture
def has(monkeypatch):
    """Makes NumPy's adapter, under these names, one that has these engines."""
    backend = xdevice.backend("numpy")

    def make(**there):
        def load(name):
            other = type(backend)()
            other.name = name
            other.engines = lambda: there[name]
            return other

        monkeypatch.setattr(engines.registry, "load", load)
        monkeypatch.setattr(engines.registry, "is_installed", lambda name: name in there)
        return load("paddle")

    return make


def test_auto_takes_pytorchs_on_the_host_and_then_its_own(has):
    assert engines.candidates("auto", has(torch=("nccl", "gloo"), paddle=("gloo",)), CPU) == [
        "torch:gloo",
        "paddle:gloo",
    ]
    assert engines.candidates("auto", has(paddle=("nccl", "gloo")), CPU) == ["paddle:gloo"]
    with pytest.raises(xdevice.errors.LaunchError, match="install PyTorch"):
        engines.candidates("auto", has(paddle=()), CPU)


def test_auto_takes_the_frameworks_own_on_gpus(has):
    own = has(torch=("nccl", "gloo"), paddle=("nccl", "gloo"))
    assert engines.candidates("auto", own, GPU)[0] == "paddle:nccl"
    assert engines.candidates("paddle", own, GPU) == ["paddle:nccl"]


def test_on_a_gpu_no_gloo_but_pytorchs_is_taken(has):
    own = has(torch=("nccl", "gloo"), paddle=("nccl", "gloo"))
    assert engines.candidates("torch:gloo", own, GPU) == ["torch:gloo"]
    with pytest.raises(xdevice.errors.UnsupportedError, match="the engine 'gloo' here"):
        engines.candidates("paddle:gloo", own, GPU)


def test_nccl_is_none_for_the_host(has):
    own = has(paddle=("nccl", "gloo"))
    assert engines.candidates("paddle", own, CPU) == ["paddle:gloo"]
    with pytest.raises(xdevice.errors.UnsupportedError, match="the engine 'nccl' here"):
        engines.candidates("paddle:nccl", own, CPU)


def test_two_processes_on_one_gpu_are_named():
    def on(*uuids):
        return [json.dumps([f"gpu:{i}", uuid]) for i, uuid in enumerate(uuids)]

    engines.require_distinct_gpus("torch:nccl", on("GPU-a", "GPU-b", None, None))
    with pytest.raises(
        xdevice.errors.LaunchError,
        match=r"ranks 1 and 2 both use the GPU GPU-b \(gpu:2 on rank 2\)",
    ):
        engines.require_distinct_gpus("torch:nccl", on("GPU-a", "GPU-b", "GPU-b"))


def test_a_gpu_is_known_whatever_it_is_called():
    gpus = ("GPU-aa", "GPU-ab", "GPU-c")
    assert nvidia.visible(gpus, None) == gpus
    assert nvidia.visible(gpus, "2,GPU-ab,7,0") == ("GPU-c", "GPU-ab")
    assert (
        nvidia.visible(gpus, "GPU-a")
        == nvidia.visible(gpus, "1,1")
        == nvidia.visible(gpus, "")
        == ()
    )


def test_a_call_that_ends_just_after_the_wait_for_it_is_done():
    """Of 64 processes one ended by this."""
    pytest.importorskip("torch")
    from xdevice_torch.distributed.processes import ends_within_step

    class Work:
        def __init__(self, completes, error=None):
            self.is_completed = lambda: completes
            self.error = error

        def wait(self, timeout=None):
            if timeout is not None or self.error:
                raise RuntimeError(self.error or "Operation timed out!")

    assert ends_within_step(Work(True))
    assert not ends_within_step(Work(False))
    with pytest.raises(RuntimeError, match="Connection closed"):
        ends_within_step(Work(True, "Connection closed by peer"))


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", OWN)
def test_each_verb_with_each_dtype(name, size):
    engine = f"{name}:{OWN[name]}"
    done = python("-m", "xdevice", "launch", "-n", size, SCRIPT, engine, size)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.count("all right") == size


@pytest.mark.slow
def test_paddles_engine_sends_what_is_on_virtual_gpus():
    """There Paddle has no kernel for `view`, by which tensors become bytes elsewhere."""
    needs("paddle")
    engine = ("paddle:gloo", "2")
    done = python("-m", "xdevice", "launch", "-n", 2, SCRIPT, *engine, XDEVICE_VIRTUAL_GPUS="2")
    assert done.stdout.count("all right") == 2, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


LATE = """
import {0}, xdevice
with xdevice.use_backend({1!r}):
    x = xdevice.ones(3)
    with xdevice.distributed.processes(engine={2!r}) as world:
        raise SystemExit("it started")
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_what_is_started_too_late_says_so(name, tmp_path):
    path = tmp_path / "late.py"
    path.write_text(LATE.format(name, name, f"{name}:{OWN[name]}"))
    done = python("-m", "xdevice", "launch", "-n", 2, path)
    assert done.returncode == 1
    assert "has already been used on rank 0, 1" in done.stdout + done.stderr


LEAVES = """
import time
import xdevice
from jax._src import distributed

with xdevice.distributed.processes(engine="jax") as world:
    leave, service = distributed.State.shutdown, distributed.global_state.service
    def slowly(self):
        if self.client is not None:
            leave(self)
            time.sleep(0.5 * world.rank)
            print("left", time.time())
    distributed.State.shutdown = slowly
    class Service:
        def shutdown(self):
            print("served until", time.time())
            service.shutdown()
    if world.is_first:
        distributed.global_state.service = Service()
"""


ELSEWHERE = """
import xdevice

with xdevice.distributed.processes(engine="jax") as world:
    x = xdevice.tensor([world.rank + 1.0, 2.0], device="cpu:1")
    assert xdevice.to_numpy(world.all_gather(x)).tolist() == [1, 2, 2, 2]
    total = world.all_reduce(x)
    assert xdevice.to_numpy(total).tolist() == [3, 4]
    assert xdevice.device_of(total) == xdevice.cpu(1)
"""


@pytest.mark.slow
def test_jax_sends_what_is_not_on_the_device_of_its_engine(tmp_path):
    """With NCCL that is an array of the host; here, one of the other CPU device."""
    path = tmp_path / "elsewhere.py"
    path.write_text(ELSEWHERE)
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = python("-m", "xdevice", "launch", "-n", 2, "--backend", "jax", path, **two)
    assert done.returncode == 0, done.stdout + done.stderr


SLICES = """
import numpy as np
import paddle
import xdevice

with xdevice.distributed.processes(engine="paddle:gloo") as world:
    for dtype in ("float32", "complex64", "bool"):
        host = np.arange(12).reshape(4, 3).astype(dtype)
        for rows in (slice(1, None), slice(3, None), slice(None, None, 2)):
            ours, both = host[rows] * (world.rank + 1), [host[rows], host[rows] * 2]
            x = paddle.to_tensor(host * (world.rank + 1))
            gathered = world.all_gather(x[rows]).numpy()
            assert np.array_equal(gathered, np.concatenate(both)), (dtype, rows, gathered)
            if world.is_first:
                world.send(x[rows], 1)
            else:
                received = world.recv(paddle.zeros_like(x)[rows], 0).numpy()
                assert np.array_equal(received, both[0]), (dtype, rows, received)
            if dtype != "bool":
                total = world.all_reduce(paddle.to_tensor(x.numpy())[rows]).numpy()
                assert np.array_equal(total, both[0] + both[1]), (dtype, rows, total)
            world.broadcast(x[rows], 1)
            assert np.array_equal(x.numpy()[rows], both[1]), (dtype, rows, x)
    print("all right")
"""


@pytest.mark.slow
def test_paddle_sends_the_values_of_a_slice(tmp_path):
    """Paddle's `view` to a dtype of another size reads other numbers where a slice begins later than its memory."""
    needs("paddle")
    path = tmp_path / "slices.py"
    path.write_text(SLICES)
    done = python("-m", "xdevice", "launch", "-n", 2, path)
    assert done.stdout.count("all right") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("size", [1, 2, 129, 1024])
def test_the_groups_of_paddle_and_their_pairs_have_numbers_of_their_own(size, monkeypatch):
    needs("paddle")
    from xdevice_paddle.distributed import processes

    monkeypatch.setattr(processes, "_Store", lambda *args: None)
    group = SimpleNamespace(
        host="127.0.0.1", rank=0, size=size, timeout=30, exchange=lambda text: [text]
    )
    firsts = sorted({processes._open_store(group)[1] for _ in range(300)})
    engine = object.__new__(processes.PaddleEngine)
    engine.size, engine._number, engine._pairs = size, 0, {}
    engine._new_group = lambda number, ranks: number
    last = engine._group_of_pair(size - 1, max(size - 2, 0))
    assert firsts[0] > 0
    assert firsts[-1] + last < 2**31
    assert all(after - before > last for before, after in pairwise(firsts))


@pytest.mark.slow
def test_jaxs_service_ends_after_all_ranks_have_left_it(tmp_path):
    """Where it ended before, they printed connection errors."""
    path = tmp_path / "leaves.py"
    path.write_text(LEAVES)
    done = python("-m", "xdevice", "launch", "-n", 2, "--backend", "jax", path)
    assert done.returncode == 0, done.stderr
    times = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in done.stdout.splitlines()
    }
    assert times["[0] served until"] > times["[1] left"] > times["[0] left"]


LINGERS = """
import sys, time
import xdevice
from jax._src import distributed

with xdevice.distributed.processes(engine="jax", timeout=5) as world:
    leave = distributed.State.shutdown
    def slowly(self):
        if self.client is not None:
            time.sleep(8 * (world.rank == int(sys.argv[1])))
            leave(self)
    distributed.State.shutdown = slowly
"""


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_leaves_jaxs_service_late_ends_well(rank, tmp_path):
    """JAX's own exit hook left the service a second time, which ended the process by SIGABRT."""
    path = tmp_path / "lingers.py"
    path.write_text(LINGERS)
    done = python("-m", "xdevice", "launch", "-n", 2, "--backend", "jax", path, rank)
    assert done.returncode == 0, done.stderr


def test_only_the_service_sees_that_jax_has_left(monkeypatch):
    """On GPUs JAX 0.11 still asks after that: its connection stays, and the service ends without waiting for it."""
    if "jax" not in xdevice.backends():
        pytest.skip("no jax")
    xdevice.backend("jax")
    relay = import_module("xdevice_jax.distributed.relay")
    monkeypatch.setattr(relay, "_has_left", threading.Event())
    monkeypatch.setattr(relay, "_to_service", [])
    with socket.create_server(("127.0.0.1", 0)) as service:
        host, _, port = relay.start(f"127.0.0.1:{service.getsockname()[1]}").rpartition(":")
        with socket.create_connection((host, int(port))) as before, service.accept()[0] as far:
            before.sendall(b"x")
            assert far.recv(1) == b"x"
            relay.leave_service()
            far.settimeout(10)
            assert far.recv(1) == b""
            with socket.create_connection((host, int(port))) as after:
                for near in (before, after):
                    near.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        near.recv(1)


TWICE = """
import xdevice, numpy
with xdevice.use_backend({0!r}):
    for i in range(2):
        with xdevice.distributed.processes(engine={1!r}) as world:
            total = world.all_reduce(xdevice.tensor([1.0 + i], device=world.device))
            print("total", float(xdevice.to_numpy(total)[0]))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_a_second_world_follows_the_first(name, tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(TWICE.format(name, f"{name}:{OWN[name]}"))
    done = python("-m", "xdevice", "launch", "-n", 2, path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("total 2.0") == done.stdout.count("total 4.0") == 2
