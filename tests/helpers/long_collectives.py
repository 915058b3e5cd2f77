"""Processes of which one fails inside collectives of many bytes: `run` starts them, and tells what they print."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

RANK = """
import json, os, signal, socket, sys, threading, time
import xdevice

def fail():
    if how == "stands still":
        stand_still.set()
    elif how == "is cut off":
        print(time.monotonic(), flush=True)
        socket.create_connection(("127.0.0.1", int(sys.argv[5]))).close()
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
WHY = {
    "is killed": ("died", 0),
    "is stopped": ("silent", 1),
    "stands still": ("late", 1),
    "is cut off": ("silent", 1),
}
"""What the others say, and after how many times the timeout, and a second."""


class Cable:
    """Leads to the port of rank 0 until somebody connects to `cutter`: then nothing passes, and nothing is closed."""

    def __init__(self, port):
        self._port, self._is_cut, self._ends = port, threading.Event(), []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._cutter = socket.create_server(("127.0.0.1", 0))
        self.port, self.cutter = (one.getsockname()[1] for one in (self._server, self._cutter))
        for target in (self._accept, self._cut):
            threading.Thread(target=target, daemon=True).start()

    def _cut(self):
        self._cutter.accept()[0].close()
        self._is_cut.set()

    def _accept(self):
        while True:
            near = self._server.accept()[0]
            far = self._connected()
            self._ends += near, far
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _connected(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", self._port))
            time.sleep(0.05)
        raise TimeoutError("rank 0 does not listen")

    def _pass_on(self, end, other):
        while data := end.recv(1 << 16):
            if not self._is_cut.is_set():
                other.sendall(data)
        if not self._is_cut.is_set():
            other.shutdown(socket.SHUT_WR)


def run(name, how, failing, late, after, elements=1 << 28, size=2, **variables):
    """What all ranks have printed, and their statuses; the one that fails is killed when the others have ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cable = Cable(port) if how == "is cut off" else None
    told = {"XDEVICE_SIZE": str(size), "XDEVICE_LOCAL_SIZE": str(size)}
    told["XDEVICE_TIMEOUT"] = str(late)
    ranks = []
    for rank in range(size):
        is_by_cable = cable is not None and rank > 0 and failing in (0, rank)
        own = {
            "XDEVICE_ADDRESS": f"127.0.0.1:{cable.port if is_by_cable else port}",
            "XDEVICE_RANK": str(rank),
            "XDEVICE_LOCAL_RANK": str(rank),
            "XDEVICE_BACKEND": name,
        }
        command = [sys.executable, "-c", RANK, how, str(failing), str(after), str(elements)]
        command.append(str(cable.cutter if cable else 0))
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
