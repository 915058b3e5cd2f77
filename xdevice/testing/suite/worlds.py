"""Checks of several processes: every collective in every dtype between two processes, a training step that must equal
the step of a single process, and failures.

These checks start fresh processes, as a launcher does. Therefore, they are not part of `Conformance`::

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
import time
from typing import Any, ClassVar, Final, NamedTuple

import pytest

LATE: Final = 2.0
"""The number of seconds that the ranks wait for a late rank in the checks of failures
(XDEVICE_TIMEOUT)."""


class _Promise(NamedTuple):
    """The error that one of two ranks must raise when the other rank fails."""

    error: str
    """The name of the error's type."""
    why: str | None
    """The attribute `why` of a `PeerError`; None for other errors."""
    within: float
    """The number of seconds within which the error must be raised."""
    words: str
    """A part of the error's message."""
    failing: int = 1
    """The rank that fails."""


STOPS_AFTER: Final = 1.5
"""The number of seconds after which rank 1 stops, in the check of a stopped rank."""

FAILURES: Final = {
    "is killed": _Promise("PeerError", "died", 1, "rank 1 has died"),
    "is stopped in a long call": _Promise(
        "PeerError", "silent", STOPS_AFTER + LATE + 1, "rank 1 has been silent"
    ),
    "raises": _Promise("PeerError", "raised", 1, "ValueError: a bug in rank 1"),
    "stands still": _Promise("PeerError", "late", LATE + 1, "rank 1"),
    "leaves": _Promise("PeerError", "left", 1, "rank 1 has left"),
    "never joins": _Promise("PeerError", "never joined", LATE + 1, "rank 1"),
    "has another shape": _Promise("CollectiveMismatchError", None, 1, "[5]"),
    "has another dtype": _Promise("CollectiveMismatchError", None, 1, "int32"),
    "has another operation": _Promise("CollectiveMismatchError", None, 1, "max"),
    "has another order": _Promise("CollectiveMismatchError", None, 1, "broadcast"),
    "is killed as rank 0": _Promise("PeerError", "died", 1, "rank 0 has died", failing=0),
}
"""Maps each way in which one rank can fail to the error that the other rank must raise in `all_reduce`."""


class SeveralProcesses:
    """The checks of an adapter in several processes. Subclass this class, name the `backend`,
    and let pytest collect the tests."""

    backend: ClassVar[str] = ""
    """The backend under test."""
    engine: ClassVar[str] = "auto"
    """The engine that moves the tensors, as in XDEVICE_ENGINE."""
    size: ClassVar[int] = 2
    """The number of processes that the check without failures starts."""
    patience: ClassVar[float] = 240
    """The number of seconds after which a check stops waiting for a process, and kills it."""
    damp: ClassVar[float] = 1.5
    """The number of seconds by which an error may be later than `FAILURES` allows, because the machine may be busy."""

    def test_every_verb_in_every_dtype_and_a_step_that_equals_that_of_one_process(self) -> None:
        port = _port()
        ranks = [
            _Rank(self.backend, self.engine, rank, self.size, port) for rank in range(self.size)
        ]
        reports = [rank.wait_for_report(self.patience) for rank in ranks]
        for rank in ranks:
            assert rank.status == 0, rank.printed[-3000:]
        faults = [
            f"rank {report['rank']}, {report['engine']}: {fault}"
            for report in reports
            for fault in report["faults"]
        ]
        assert not faults, "\n".join(faults)

    @pytest.mark.parametrize("failure", FAILURES)
    def test_a_failure_of_a_rank_is_named_on_the_others(self, failure: str) -> None:
        promise, port = FAILURES[failure], _port()
        timeouts = {"XDEVICE_TIMEOUT": str(LATE)}
        started: tuple[int, ...] = (0, 1)
        if failure == "never joins":
            started = (0,)
            timeouts["XDEVICE_JOIN_TIMEOUT"] = str(LATE)
        ranks = [
            _Rank(
                self.backend, self.engine, rank, size=2, port=port, failure=failure, **timeouts
            )
            for rank in started
        ]
        # the rank that does not fail, which reports the error of its collective
        other = ranks.pop(1 - promise.failing)
        report = other.wait_for_report(self.patience)
        for rank in ranks:
            # a rank that failed may hang, so it is killed after two seconds
            rank.end(2 if promise.error == "PeerError" else self.patience)
        assert (report.get("error"), report.get("why")) == (promise.error, promise.why), (
            other.printed[-3000:]
        )
        assert promise.words in report["text"], report["text"]
        # the report of a rank that never joined contains no time; `damp` allows for a busy machine
        assert report.get("seconds", 0) <= promise.within + self.damp
        if promise.error == "PeerError":
            assert (report["peer"], other.status) == (promise.failing, 1), other.printed[-3000:]
        else:
            assert report["usable"], "the world could no longer be used"
            assert not report["written"], "the tensor was written, although the calls differ"


class _Rank:
    """One rank (process) of a check. Creating the object starts the process with the variables that `xdevice launch`
    sets, and with the additional variables `more`."""

    def __init__(
        self,
        backend: str,
        engine: str,
        rank: int,
        size: int,
        port: int,
        failure: str = "",
        **more: str,
    ):
        # the variables that `xdevice launch` sets
        variables = {
            "RANK": rank,
            "SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_SIZE": size,
            "ADDRESS": f"127.0.0.1:{port}",
        }
        own = {f"XDEVICE_{name}": str(value) for name, value in variables.items()}
        environment = {
            **os.environ,
            **own,
            "XDEVICE_BACKEND": backend,
            "XDEVICE_ENGINE": engine,
            **more,
        }
        command = [
            sys.executable,
            "-m",
            "xdevice.testing.suite.ranks",
            # without an argument, the process runs all checks that do not simulate failures
            *filter(None, [failure]),
        ]
        self.status: int | None = None
        self.printed = ""
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def wait_for_report(self, patience: float) -> dict[str, Any]:
        """Waits for the process to end, and returns the last line of JSON that the process has printed; {} if there is
        no such line. If the process has not ended after `patience` seconds, kills the process."""

        self.end(patience)
        lines = [line for line in self.printed.splitlines() if line.startswith("{")]
        report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return report

    def end(self, patience: float) -> None:
        """Waits for the process to end. If the process has not ended after `patience` seconds, kills the process."""
        begun = time.monotonic()
        try:
            self.printed, _ = self._process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.printed, _ = self._process.communicate()
            self.printed += f"\nkilled after {time.monotonic() - begun:.0f} s"
        self.status = self._process.returncode


def _port() -> int:
    """Returns a port that is free now, for rank 0. Another program might take the port before
    rank 0 does."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
