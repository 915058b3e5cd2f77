"""`xdevice launch`: starts the processes of one world on this machine, shows what they print, and ends them.

Each rank leads a process group of its own, so that the processes that it has started end with it. A terminal's Ctrl-C
reaches only the launcher, which passes it on. If the launcher itself is killed, a guard, which is a process of ten
lines, ends the groups.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from xdevice.base.statuses import status_text
from xdevice.distributed.contract.collectives import address

from . import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PATIENCE: Final = 3.0
"""Seconds between the signal that asks a process to end, and SIGKILL, which ends it."""
_ECHO: Final = 0.25
"""Seconds after the first failure in which further failures are collected: a rank that failed because of another rank
may be noticed before that rank."""
_DERIVED: Final = "PeerError: "
"""The text in the error of a rank that ends only because another rank has failed."""
_HAS_GROUPS: Final = hasattr(os, "killpg")
_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_PR_SET_CHILD_SUBREAPER: Final = 36
"""The constant PR_SET_CHILD_SUBREAPER of linux/prctl.h."""
_NOTHING: Final = 0
"""Signal 0, which does nothing: sending it only tells whether a process group still has a process."""
_GUARD: Final = f"""
import os, signal, sys, time
def end(number):
    for group in groups:
        try: os.killpg(group, number)
        except OSError: pass
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
if groups:
    end(signal.SIGTERM)
    time.sleep({PATIENCE})
    end(signal.SIGKILL)
"""


class Failure(NamedTuple):
    """A process that has failed; `_Ranks` reports the one that failed first."""

    rank: int
    status: int
    """The exit status as `subprocess` gives it: -n if signal n ended the process."""
    last_lines: Sequence[str]
    """The traceback of the process, or the last lines that the process wrote to standard error."""


class Nodes(NamedTuple):
    """The machines of a run, with the same number of ranks each, and which of them this one is."""

    machines: int
    rank: int
    host: str
    """Where rank 0 listens."""
    port: int | None
    """The port of rank 0; torch's `MASTER_PORT` is the one after it. None if this is the only machine: then two free
    ports are taken."""


def launch(
    command: Sequence[str],
    size: int,
    nodes: Nodes,
    variables: Mapping[str, str],
    restarts: int,
    folder: Path | None,
) -> int:
    """Runs `command` once for each of the `size` ranks of this machine, and returns the exit status: 0 if all ranks
    ended with 0.

    When a rank fails, the others are ended: SIGTERM to each rank's process group, SIGKILL three seconds later. `launch`
    returns the status of the rank that failed first, 128 + n if signal n ended it, and shows its traceback last. If the
    launcher receives SIGINT, SIGTERM or SIGHUP, it passes the signal on to the ranks, ends them in the same way and
    returns 128 + n; a second such signal kills the ranks at once.

    The ranks find each other by `XDEVICE_ADDRESS`, or torch's `MASTER_ADDR` and `MASTER_PORT`; both ports stay reserved
    until the end. `variables` are added to the environment of each rank. After a failure all ranks are started again,
    at most `restarts` times. `folder` receives a file for each rank with all that it prints.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    secret = {"XDEVICE_TOKEN": new_token()}
    with ExitStack() as stack:
        ports = (
            # on several machines both ports have to be known beforehand
            [nodes.port, nodes.port + 1]
            if nodes.port
            else [stack.enter_context(reserve(nodes.host)) for _ in "ab"]
        )
        guard = stack.enter_context(_guard())
        attempt = 0
        while True:
            # new for each attempt: events of the last one must not count
            ranks = _Ranks(guard, size * nodes.rank, folder)
            with ranks.listening():
                for rank in range(size):
                    environment = {
                        # in this order, so that variables the user gives win over xdevice's, and the secret over both
                        **os.environ,
                        **environment_of(rank, size, nodes, ports),
                        **variables,
                        **secret,
                    }
                    ranks.start(command, environment, rank)
                status = ranks.run()
            if status == 0 or ranks.was_signalled or attempt == restarts:
                return status
            attempt += 1
            output.say(f"all ranks are started again, {attempt} of {restarts}")


def environment_of(local: int, size: int, nodes: Nodes, ports: Sequence[int]) -> dict[str, str]:
    """The environment variables that tell a process its rank, under xdevice's names and torch's. `local` is its number
    among the `size` ranks of this machine."""
    rank, total = nodes.rank * size + local, nodes.machines * size
    own = {"RANK": rank, "LOCAL_RANK": local, "SIZE": total, "LOCAL_SIZE": size}
    torch = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": total, "LOCAL_WORLD_SIZE": size}
    return {
        **_usual(size),
        **{f"XDEVICE_{name}": str(value) for name, value in own.items()},
        **{name: str(value) for name, value in torch.items()},
        "XDEVICE_ADDRESS": address(nodes.host, ports[0]),
        "MASTER_ADDR": nodes.host,
        "MASTER_PORT": str(ports[1]),
    }


def _usual(size: int) -> dict[str, str]:
    """Environment variables with which several processes on one machine run better. Those that are set already are left
    out."""
    usual = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a segmentation fault then prints the line of Python
        "PYTHONHASHSEED": "0",  # else each rank loops over a set of names in its own order, and sums others' values
        # else each rank starts a thread for every core
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size)),
    }
    return {name: text for name, text in usual.items() if name not in os.environ}


def new_token() -> str:
    """The secret that `XDEVICE_TOKEN` holds, or a new one for the processes of this launch."""
    return os.environ.get("XDEVICE_TOKEN") or secrets.token_hex(16)


@contextmanager
def reserve(host: str) -> Iterator[int]:
    """Yields a free port, which no other program is given until the end of the block. A child process can listen on it.

    Linux lets two sockets be bound to one port if both set SO_REUSEADDR, as servers do, and neither listens yet; and it
    does not give such a port to a program that asks for any free one. On a system that does not allow two such sockets,
    the port is released before the children start. If another program takes it then, rank 0 raises an error.
    """
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as keeper:
        if _HAS_GROUPS:  # on Windows the option would let any program listen on the port
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host, 0))
        port = keeper.getsockname()[1]
        try:
            socket.create_server((host, port), family=family).close()
        except OSError:
            keeper.close()
        yield port


class _Ranks:
    """Starts, watches and ends the processes of one `xdevice launch`. Ranks are counted within this machine, and shown
    by their number among all, which is `first` or more."""

    def __init__(self, guard: IO[bytes] | None, first: int, folder: Path | None) -> None:
        self._guard = guard
        self._first_rank = first
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._outputs: list[output.RankOutput] = []
        self._waiting: list[threading.Thread] = []
        self._alive: set[int] = set()
        self._failed: dict[int, int] = {}
        self._signal = 0
        self._events: SimpleQueue[tuple[str, int, int]] = SimpleQueue()
        """("ended", rank, status) for a rank that has ended, ("signal", number, 0) for a signal that this process
        received."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A block in which signals are queued as events for `run`. All processes are ended when the block ends."""
        _adopt_orphans()
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        # handlers are restored at the end, because a program may call `launch` as a function
        for number in before:
            if before[number] is signal.SIG_IGN:  # by nohup, for example: it stays ignored
                continue
            signal.signal(number, lambda number, frame: self._events.put(("signal", number, 0)))
        try:
            yield
        finally:
            # an error in this process must not leave ranks behind
            if self._alive:
                self._end(signal.SIGTERM)
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def start(self, command: Sequence[str], environment: Mapping[str, str], rank: int) -> None:
        """Starts one rank in a process group of its own, and the threads that read its output and wait for its end."""
        # input that several processes read at once would be split among them, and a terminal stops background readers
        has_input = rank == 0 and not output.is_terminal(sys.stdin)
        process = subprocess.Popen(
            command,
            stdin=None if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=_HAS_GROUPS,
        )
        # at once: if the launcher is killed in the next moment, the guard knows this group
        self._notify_guard(f"+{process.pid}")
        self._processes.append(process)
        self._alive.add(rank)
        self._outputs.append(output.RankOutput(self._first_rank + rank, process, self._folder))
        thread = threading.Thread(target=self._wait, args=(rank,), daemon=True)
        self._waiting.append(thread)
        thread.start()

    def _notify_guard(self, line: str) -> None:
        if self._guard is not None:
            with suppress(OSError):  # somebody has killed the guard
                self._guard.write(f"{line}\n".encode())

    def _wait(self, rank: int) -> None:
        """Runs in a thread: waits for a rank to end, and then ends the processes that it has left behind in its process
        group."""
        process = self._processes[rank]
        status = process.wait()
        # before the clean-up below, which may take seconds while other ranks wait
        self._events.put(("ended", rank, status))
        if not _HAS_GROUPS:
            return
        deadline = time.monotonic() + PATIENCE
        # for example the workers of a DataLoader, which outlive a rank that was killed
        is_left = _send(process.pid, signal.SIGTERM)
        while is_left and time.monotonic() < deadline:
            time.sleep(0.02)
            _bury(process.pid)
            is_left = _send(process.pid, _NOTHING)
        if is_left:
            _send(process.pid, _KILL)
        self._notify_guard(f"-{process.pid}")

    def run(self) -> int:
        """Waits until the last process has ended, or ends all of them after a failure or a signal. Returns the exit
        status."""
        # one failure or signal is enough to end all
        while self._alive and not self._failed and not self._signal:
            self._take(None)
        if self._signal:
            output.say(
                f"{signal.Signals(self._signal).name}: passed on; processes that do not end are killed"
            )
        # the rank to blame may be noticed a little later than one that failed because of it
        if self._failed:
            self._collect(time.monotonic() + _ECHO)
        # whether ranks were still running, which the report says
        is_cut_off = bool(self._alive)
        self._end(self._signal or signal.SIGTERM)
        if self._signal:
            return 128 + self._signal
        if not self._failed:
            return 0
        failure = self._first()
        _report(failure, is_cut_off)
        return failure.status if failure.status > 0 else 128 - failure.status

    @property
    def was_signalled(self) -> bool:
        """Whether a signal has asked this launcher to end."""
        return bool(self._signal)

    def _take(self, timeout: float | None) -> None:
        """Waits for the next event, a rank that has ended or a signal, and handles it."""
        what, number, status = self._events.get(timeout=timeout)
        if what == "signal":
            self._signal, is_first = number, not self._signal
            # the second signal: somebody does not want to wait
            if not is_first:
                self._send_all(_KILL)
            return
        self._alive.discard(number)
        self._outputs[number].close()
        # after a signal all ranks end with a failure, which is nobody's fault
        if status != 0 and not self._signal:
            self._failed.setdefault(number, status)

    def _collect(self, deadline: float) -> None:
        with suppress(Empty):
            while self._alive:
                self._take(max(0.0, deadline - time.monotonic()))

    def _end(self, number: int) -> None:
        """Sends all processes the signal `number`, and kills those that have not ended three seconds later."""
        # a copy, because the ranks that are ended below fail too
        failed = dict(self._failed)
        self._send_all(number)
        self._collect(time.monotonic() + PATIENCE)
        self._send_all(_KILL)
        self._collect(time.monotonic() + PATIENCE)
        if failed:
            self._failed = failed  # without the processes that the signal has ended
        for thread in self._waiting:
            thread.join(2 * PATIENCE)

    def _send_all(self, number: int) -> None:
        for rank in self._alive:
            _send(self._processes[rank].pid, number)

    def _first(self) -> Failure:
        """The failure to report: the first one that is not merely a `PeerError` caused by another failure."""
        failures = [
            Failure(self._first_rank + rank, status, self._outputs[rank].last_lines())
            for rank, status in self._failed.items()
        ]
        # a PeerError only repeats another rank's failure
        own = [
            failure
            for failure in failures
            if not any(_DERIVED in line for line in failure.last_lines)
        ]
        # all failed by a PeerError if the rank to blame was on another machine
        return (own or failures)[0]


def _send(process: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether the group had any process."""
    try:
        if _HAS_GROUPS:
            os.killpg(process, number)
        else:  # Windows has no process groups, but this command ends the children too
            done = subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(process)], capture_output=True, check=False
            )
            return done.returncode == 0
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError for zombies
        return False
    return True


def _adopt_orphans() -> None:
    """Makes processes that outlive their rank children of the launcher, so that the launcher learns when they end.

    Works on Linux only. Elsewhere such processes become children of process 1, and ending the run may take up to three
    seconds longer.
    """
    if sys.platform == "linux":
        # Python's os module has no function for it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _bury(group: int) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass


@contextmanager
def _guard() -> Iterator[IO[bytes] | None]:
    """Starts the guard, a process that ends the ranks' process groups when its input pipe closes. Yields that pipe,
    through which the launcher tells the guard the groups; None on Windows, which has no process groups."""
    if not _HAS_GROUPS:
        yield None
        return
    with subprocess.Popen(
        # isolated and without site-packages, so that it starts in milliseconds; in a session of its own, so that the
        # signal which kills the launcher does not reach it
        [sys.executable, "-I", "-S", "-c", _GUARD], bufsize=0, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        yield process.stdin


def _report(failure: Failure, is_cut_off: bool) -> None:
    others = "; the others were ended" if is_cut_off else ""
    output.say(f"rank {failure.rank} failed first, {status_text(failure.status)}{others}")
    for line in failure.last_lines:
        output.write(sys.stderr, f"[{failure.rank}] {line}\n".encode())
