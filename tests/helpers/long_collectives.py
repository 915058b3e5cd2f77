"""Processes of which one fails inside collectives of many bytes: `run` starts them, and tells what they print."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

RANK = """
import json, os, signal, sys, threading, time
import xdevice

def fail():
    if how == "stands still":
        stand_still.set()
    else:
        print(time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL if how == "is killed" else signal.SIGSTOP)

how, failing, after, elements = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
stand_still = threading.Event()
with xdevice.distributed.processes() as world:
    x = xdevice.ones(3, device=world.device)
    assert xdevice.to_numpy(world.all_reduce(x)).tolist() == [world.size] * 3
    if how == "ends well":
        print("ends well", world.engine)
    else:
        x = world.all_reduce(xdevice.zeros(elements, device=world.device))
        if world.rank == failing:
            threading.Timer(after, fail).start()
        try:
            while True:
                x = world.all_reduce(x)
                if stand_still.is_set():
                    print(time.monotonic(), flush=True)
                    time.sleep(1000)
        except xdevice.errors.PeerError as error:
            now = time.monotonic()
            told = {"rank": error.rank, "why": error.why, "text": str(error), "engine": world.engine}
            print(json.dumps({**told, "at": now}), flush=True)
            raise
"""
WHY = {"is killed": ("died", 0), "is stopped": ("silent", 1), "stands still": ("late", 1)}
"""What the others say, and after how many times the timeout, and a second."""


def run(name, how, failing, late, after, elements=1 << 28, size=2, **variables):
    """What all ranks have printed, and their statuses; the one that fails is killed when the others have ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told = {"XDEVICE_SIZE": str(size), "XDEVICE_LOCAL_SIZE": str(size)}
    told |= {"XDEVICE_ADDRESS": address, "XDEVICE_TIMEOUT": str(late)}
    ranks = []
    for rank in range(size):
        own = {
            "XDEVICE_RANK": str(rank),
            "XDEVICE_LOCAL_RANK": str(rank),
            "XDEVICE_BACKEND": name,
        }
        command = [sys.executable, "-c", RANK, how, str(failing), str(after), str(elements)]
        ranks.append(
            subprocess.Popen(
                command, env={**os.environ, **told, **own, **variables},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    printed = [""] * size
    try:
        for rank in sorted(range(size), key=failing.__eq__):
            if rank == failing and how != "ends well":
                ranks[rank].kill()
            printed[rank] = ranks[rank].communicate(timeout=300)[0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return printed, [rank.returncode for rank in ranks]


def told_of(printed, failing):
    """What the last of the ranks that go on has said, with the seconds since the other has failed."""
    failed = next(
        float(line) for line in printed[failing].splitlines() if line.replace(".", "").isdigit()
    )
    told = []
    for text in printed[:failing] + printed[failing + 1 :]:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        assert lines, text[-3000:]
        told.append(json.loads(lines[0]))
    assert len({(one["rank"], one["why"]) for one in told}) == 1, told
    last = max(told, key=lambda one: one["at"])
    return {**last, "seconds": last["at"] - failed}
