"""Checks of several processes: every verb in every dtype between two of them, and a step that equals that of one.

They run in two fresh processes, as a launcher starts them, and so beside the suite and not in it::

    from xdevice.testing import SeveralProcesses

    class TestMyBackendInSeveralProcesses(SeveralProcesses):
        backend = "mybackend"
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any, ClassVar


class SeveralProcesses:
    """Subclass it, name the `backend`, and let pytest collect the tests."""

    backend: ClassVar[str] = ""
    """The backend under test."""
    engine: ClassVar[str] = "auto"
    """What moves the tensors."""
    size: ClassVar[int] = 2
    """How many processes there are."""
    patience: ClassVar[float] = 240
    """Seconds after which what never takes so long has failed."""

    def test_every_verb_in_every_dtype_and_a_step_that_equals_that_of_one_process(self) -> None:
        told = ranks(self.backend, self.engine, self.size, self.patience)
        found = [f"rank {one['rank']}, {one['engine']}: {fault}" for one in told for fault in one["faults"]]
        assert not found, "\n".join(found)


def ranks(backend: str, engine: str = "auto", size: int = 2, patience: float = 240) -> list[dict[str, Any]]:
    """What each rank has found: `faults`, and what the engine has `refused` by name."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    processes = []
    for rank in range(size):
        place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "ADDRESS": f"127.0.0.1:{port}"}
        told = {f"XDEVICE_{name}": str(value) for name, value in place.items()}
        environment = {**os.environ, **told, "XDEVICE_BACKEND": backend, "XDEVICE_ENGINE": engine}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "xdevice.testing.ranks"],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    found = []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
                other.communicate()
            raise AssertionError(f"rank {rank} did not end within {patience:g} s") from None
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{err[-3000:]}"
        found.append(json.loads(out.splitlines()[-1]))
    return found
