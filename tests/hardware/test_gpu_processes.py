"""Processes on real GPUs: one fails inside calls of a gigabyte, and the others name it: `pytest -m gpu`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.long_collectives import WHY, run, told_of

import xdevice

pytestmark = pytest.mark.gpu

LATE = 5.0
AFTER = 2.0
"""Seconds of collectives before the failure."""
DAMP = 1.0
PIECEMEAL = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.fixture(params=["torch", "jax"])
def name(request):
    if request.param not in xdevice.backends():
        pytest.skip(f"no {request.param}")
    if xdevice.backend(request.param).count("gpu") < 2:
        pytest.skip(f"{request.param} sees no two GPUs")
    return request.param


@pytest.mark.parametrize(("size", "failing"), [(2, 0), (2, 1), (4, 0), (4, 2)])
@pytest.mark.parametrize("how", WHY)
def test_a_rank_that_fails_inside_a_long_collective_is_named(name, how, size, failing):
    if xdevice.backend(name).count("gpu") < size:
        pytest.skip(f"{name} sees fewer than {size} GPUs")
    printed, statuses = run(name, how, failing, LATE, AFTER, size=size, **PIECEMEAL)
    told, (why, times) = told_of(printed, failing), WHY[how]
    print(name, how, f"rank {failing} of {size}:", told)
    assert told["engine"] == f"{name}:nccl"
    assert (told["rank"], told["why"]) == (failing, why), told
    assert told["seconds"] <= times * LATE + 1 + DAMP, told
    assert statuses[:failing] + statuses[failing + 1 :] == [1] * (size - 1), printed


HOST = """
import xdevice

with xdevice.distributed.processes() as world:
    x = xdevice.tensor([world.rank + 1.0, 2.0], device="cpu")
    assert xdevice.to_numpy(world.all_gather(x)).tolist() == [1, 2, 2, 2]
    assert xdevice.to_numpy(world.broadcast(xdevice.tensor(float(world.rank), device="cpu"), 1)) == 1
    total = world.all_reduce(x)
    assert xdevice.to_numpy(total).tolist() == [3, 4]
    assert xdevice.device_of(total) == xdevice.cpu()
"""


def test_tensors_on_the_host_are_sent_too(name, tmp_path):
    (tmp_path / "host.py").write_text(HOST, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "xdevice",
        "launch",
        "-n",
        "2",
        "--backend",
        name,
        str(tmp_path / "host.py"),
    ]
    done = subprocess.run(
        command, env={**os.environ, **PIECEMEAL}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def noise(lines):
    """The kinds of lines that are not the program's: without times, threads, addresses and numbers."""
    return {
        re.sub(r"[\d:.]+", "#", line).strip()
        for line in lines
        if not line.startswith("ends well")
    } - {""}


PLAIN = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

address, rank = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, 2, rank)
ours = [[device for device in jax.devices() if device.process_index == which][which] for which in range(2)]
mesh, spread = Mesh(np.array(ours), ("rank",)), PartitionSpec("rank")
x = jax.device_put(np.ones(3, "float32"), ours[rank])
whole = jax.make_array_from_single_device_arrays((6,), NamedSharding(mesh, spread), [x])
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "rank"), mesh=mesh, in_specs=spread, out_specs=spread))(whole)
assert total.addressable_data(0).tolist() == [2] * 3
jax.distributed.shutdown()
"""


def plain_noise():
    """What JAX prints in a program of two processes that does not use xdevice. JAX 0.11.2 warns on each rank that its
    own shutdown has cancelled a call, and says that it expected other numbers of devices."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    commands = [[sys.executable, "-c", PLAIN, address, str(rank)] for rank in range(2)]
    environment = {**os.environ, **PIECEMEAL}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    return noise(line for text in printed for line in text.splitlines())


def test_a_program_that_ends_well_prints_nothing_of_ours(name):
    allowed = set().union(*(plain_noise() for _ in range(4))) if name == "jax" else set()
    for _ in range(3):
        printed, statuses = run(name, "ends well", 1, LATE, AFTER, **PIECEMEAL)
        assert statuses == [0, 0], "\n---\n".join(printed)
        for text in printed:
            assert text.count(f"ends well {name}:nccl\n") == 1
            assert noise(text.splitlines()) <= allowed, text


def test_the_guide_on_fsdp_computes_the_same_on_two_gpus(tmp_path):
    if "torch" not in xdevice.backends() or xdevice.backend("torch").count("gpu") < 2:
        pytest.skip("PyTorch sees no two GPUs")
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "fsdp.md").read_text(
        encoding="utf-8"
    )
    for file, code in re.findall(r"%%writefile (\w+\.py)\n(.*?)```", guide, re.DOTALL):
        (tmp_path / file).write_text(code, encoding="utf-8")
    for program in ("whole.py", "parts.py"):
        command = [
            sys.executable,
            "-m",
            "xdevice",
            "launch",
            "-n",
            "2",
            "--backend",
            "torch",
            program,
        ]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "0 holds [128, 64] of [256, 64]" in done.stdout
    xdevice.assert_parity(
        xdevice.load(tmp_path / "parts.safetensors"),
        xdevice.load(tmp_path / "whole.safetensors"),
    )
