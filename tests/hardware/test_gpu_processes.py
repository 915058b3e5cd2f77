"""Two processes on two real GPUs: one fails inside calls of a gigabyte, and the other names it: `pytest -m gpu`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

import xdevice

pytestmark = pytest.mark.gpu

LATE = 5.0
AFTER = 2.0
"""Seconds of collectives before the failure."""
DAMP = 1.0

RANK = """
import json, os, signal, sys, threading, time
import xdevice

def fail():
    if how == "stands still":
        stand_still.set()
    else:
        os.kill(os.getpid(), signal.SIGKILL if how == "is killed" else signal.SIGSTOP)

how, failing = sys.argv[1], int(sys.argv[2])
stand_still = threading.Event()
with xdevice.processes() as world:
    x = xdevice.ones(3, device=world.device)
    assert xdevice.to_numpy(world.all_reduce(x)).tolist() == [2] * 3
    if how == "ends well":
        print("ends well", world.engine)
    else:
        x = xdevice.zeros(1 << 28, device=world.device)
        begun = time.monotonic()
        if world.rank == failing:
            threading.Timer(float(sys.argv[3]), fail).start()
        try:
            while True:
                x = world.all_reduce(x)
                if stand_still.is_set():
                    time.sleep(1000)
        except xdevice.PeerError as error:
            told = {"rank": error.rank, "why": error.why, "text": str(error), "engine": world.engine}
            print(json.dumps({**told, "seconds": time.monotonic() - begun}), flush=True)
            raise
"""


def run(name, how, failing):
    """What both ranks have printed, and their statuses; the one that fails is killed when the other has ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told = {"XDEVICE_SIZE": "2", "XDEVICE_LOCAL_SIZE": "2", "XDEVICE_ADDRESS": address, "XDEVICE_TIMEOUT": str(LATE)}
    ranks = []
    for rank in range(2):
        own = {"XDEVICE_RANK": str(rank), "XDEVICE_LOCAL_RANK": str(rank), "XDEVICE_BACKEND": name}
        command = [sys.executable, "-c", RANK, how, str(failing), str(AFTER)]
        ranks.append(
            subprocess.Popen(
                command, env={**os.environ, **told, **own, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    printed = ["", ""]
    try:
        for rank in (1 - failing, failing):
            if rank == failing and how != "ends well":
                ranks[rank].kill()
            printed[rank] = ranks[rank].communicate(timeout=120)[0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return printed, [rank.returncode for rank in ranks]


@pytest.fixture(params=["torch", "jax"])
def name(request):
    if request.param not in xdevice.backends():
        pytest.skip(f"no {request.param}")
    if xdevice.backend(request.param).count("gpu") < 2:
        pytest.skip(f"{request.param} sees no two GPUs")
    return request.param


WHY = {"is killed": ("died", 1.0), "is stopped": ("silent", LATE + 1), "stands still": ("late", LATE + 1)}


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("how", WHY)
def test_a_rank_that_fails_inside_a_long_collective_is_named(name, how, failing):
    printed, statuses = run(name, how, failing)
    other = 1 - failing
    lines = [line for line in printed[other].splitlines() if line.startswith("{")]
    assert lines, printed[other][-3000:]
    told, (why, within) = json.loads(lines[0]), WHY[how]
    print(name, how, f"rank {failing}:", told)
    assert told["engine"] == f"{name}:nccl"
    assert (told["rank"], told["why"]) == (failing, why), told
    assert told["seconds"] - AFTER <= within + DAMP, told
    assert statuses[other] == 1, printed[other][-3000:]


def test_a_program_that_ends_well_prints_no_noise(name):
    for _ in range(3):
        printed, statuses = run(name, "ends well", 1)
        assert statuses == [0, 0], printed
        assert printed == [f"ends well {name}:nccl\n"] * 2
