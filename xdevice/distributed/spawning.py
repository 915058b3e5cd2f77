"""`xdevice launch`: starts this machine's processes of one world, shows their output, and ends them.

Each rank is the leader of its own process group. So the processes that a rank has started can be ended together with
the rank. Ctrl-C in a terminal reaches only the launcher, which passes the signal on to the ranks. If the launcher
itself is killed, a small process, the guard, ends the groups.
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
"""The number of seconds between the signal that asks a process to end and SIGKILL, which kills it."""
_ECHO_SECONDS: Final = 0.25
"""After the first failure, the launcher collects other failures for this many seconds. It may notice a rank that failed
only as a consequence before it notices the rank that failed first."""
_PEER_ERROR_TEXT: Final = "PeerError: "
"""A traceback that contains this text only repeats the failure of another rank."""
_HAS_PROCESS_GROUPS: Final = hasattr(os, "killpg")
"""Whether this system has process groups. Windows has none."""
_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
# Windows has no SIGKILL, and its SIGTERM ends a process at once
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_PR_SET_CHILD_SUBREAPER: Final = 36
"""The constant PR_SET_CHILD_SUBREAPER of linux/prctl.h."""
_NO_SIGNAL: Final = 0
"""Signal 0, which has no effect. Sending it only shows whether a process group still contains a process."""
# the program of the guard. Each line of its input adds or removes a process group. If there are
# still groups when the input ends, the launcher is gone
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
    """Describes a rank that has failed, for the launcher's report."""

    rank: int
    status: int
    """The exit status in the form that `subprocess` uses: -n if signal n ended the process."""
    last_lines: Sequence[str]
    """The traceback of the process; if there is none, the last lines of its standard error."""


class Nodes(NamedTuple):
    """The machines of a run, and the position of this machine among them. All machines have the same number of
    ranks."""

    machines: int
    rank: int
    """The number of this machine, counted from 0."""
    host: str
    """The host on which rank 0 listens."""
    port: int | None
    """The port on which rank 0 listens; torch's `MASTER_PORT` is the next port. None if this is the only machine; two
    free ports are then chosen."""


def launch(
    command: Sequence[str],
    size: int,
    nodes: Nodes,
    variables: Mapping[str, str],
    restarts: int,
    folder: Path | None,
) -> int:
    """Runs `command` once for each of the `size` ranks of this machine, and returns the exit status of the launcher: 0
    if all ranks ended with status 0.

    When a rank fails, the other ranks are ended: each rank's process group receives SIGTERM, and three seconds later
    SIGKILL. `launch` then shows the traceback of the rank that failed first. It returns that rank's status, or 128 + n
    if signal n ended the rank. If the launcher receives SIGINT, SIGTERM or SIGHUP, it passes the signal on to the
    ranks. It kills the ranks that are still running three seconds later, and returns 128 + n, where n is the number of
    the signal. A second such signal kills the ranks at once.

    The ranks find each other through `XDEVICE_ADDRESS`, or through torch's `MASTER_ADDR` and
    `MASTER_PORT`. If the launcher has chosen the two ports, they stay reserved until the end.
    `variables` are added to the environment of each rank. After a failure all ranks are started
    again, at most `restarts` times. If `folder` is not None, the output of each rank is also
    written to a file in that folder.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    secret = {"XDEVICE_TOKEN": new_token()}
    with ExitStack() as stack:
        # one port for xdevice, and one for torch. On several machines all launchers must use the same ports
        ports = (
            [nodes.port, nodes.port + 1]
            if nodes.port
            else [stack.enter_context(reserve(nodes.host)) for _ in range(2)]
        )
        guard = stack.enter_context(_guard())
        attempt = 0
        while True:
            # a new object for each attempt, because it must not handle events of the previous attempt
            ranks = _Ranks(guard, first=size * nodes.rank, folder=folder)
            with ranks.handling_signals():
                for rank in range(size):
                    environment = {
                        # later entries override earlier ones: the user's `variables` override
                        # xdevice's, and the secret overrides both
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
            output.say(f"all ranks are restarted: restart {attempt} of {restarts}")


def environment_of(local: int, size: int, nodes: Nodes, ports: Sequence[int]) -> dict[str, str]:
    """Returns the environment variables of one rank, both the variables that xdevice reads and the variables that torch
    reads. `local` is the rank's number on this machine, which has `size` ranks. `ports` contains xdevice's port and
    torch's port.
    """
    rank, total = nodes.rank * size + local, nodes.machines * size
    of_xdevice = {"RANK": rank, "LOCAL_RANK": local, "SIZE": total, "LOCAL_SIZE": size}
    of_torch = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": total,
        "LOCAL_WORLD_SIZE": size,
    }
    return {
        **_default_variables(size),
        **{f"XDEVICE_{name}": str(value) for name, value in of_xdevice.items()},
        **{name: str(value) for name, value in of_torch.items()},
        "XDEVICE_ADDRESS": address(nodes.host, ports[0]),
        "MASTER_ADDR": nodes.host,
        "MASTER_PORT": str(ports[1]),
    }


def _default_variables(size: int) -> dict[str, str]:
    """Returns environment variables that are suitable for `size` processes on one machine. Variables that the user has
    set are left out.
    """
    defaults = {
        # otherwise output would appear late, and would be lost if a rank is killed
        "PYTHONUNBUFFERED": "1",
        # prints the current line of the Python program if there is a segmentation fault
        "PYTHONFAULTHANDLER": "1",
        # otherwise each rank could loop over a set of strings in a different order, and call
        # collectives in a different order
        "PYTHONHASHSEED": "0",
        # otherwise each rank would start one thread for every core
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size)),
    }
    return {name: text for name, text in defaults.items() if name not in os.environ}


def new_token() -> str:
    """Returns the secret in the environment variable `XDEVICE_TOKEN`, or a new secret if the
    variable is not set."""
    return os.environ.get("XDEVICE_TOKEN") or secrets.token_hex(16)


@contextmanager
def reserve(host: str) -> Iterator[int]:
    """Yields a free port of `host`. Until the end of the block, the system does not assign this
    port to any other program, but a child process can listen on it.

    Linux allows two sockets to be bound to one port if both set SO_REUSEADDR, as servers do, and neither is listening
    yet. Linux does not assign such a port to a program that requests any free port. On a system that does not allow two
    such sockets, the port cannot be reserved: if another program uses the port before rank 0 listens, rank 0 raises an
    error.
    """
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as keeper:
        # on Windows this option would let any program listen on the port
        if _HAS_PROCESS_GROUPS:
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host, 0))
        port = keeper.getsockname()[1]
        try:
            # checks whether rank 0 can listen on the port while `keeper` is open
            socket.create_server((host, port), family=family).close()
        # this system does not allow two sockets, but rank 0 must be able to listen, so the port
        # is not reserved
        except OSError:
            keeper.close()
        yield port


class _Ranks:
    """Starts, watches and ends the ranks of this machine for one `xdevice launch`. Arguments identify a rank by its
    number on this machine; the output shows the rank's number among all ranks.

    Args:
        guard: the input pipe of the guard, the process that ends the ranks if this launcher is killed; None on
            Windows, which has no guard.
        first: the number, among all ranks, of the first rank on this machine.
        folder: the folder in which the output of each rank is also written to a file (`rank_0.log` and so on); None to
            write no files.
    """

    def __init__(self, guard: IO[bytes] | None, first: int, folder: Path | None) -> None:
        self._guard = guard
        self._first_rank = first
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        """The processes of the ranks, in the order of the ranks' numbers on this machine."""
        self._outputs: list[output.RankOutput] = []
        """The output of each of these ranks, in the same order."""
        self._waiting: list[threading.Thread] = []
        """The threads that wait for the ranks to end."""
        self._alive: set[int] = set()
        """The ranks that have not ended, according to the events handled so far."""
        self._failed: dict[int, int] = {}
        """The exit status of each rank that has failed, in the order in which the failures were noticed."""
        self._signal = 0
        """The signal that this process has received; 0 if none."""
        self._events: SimpleQueue[tuple[str, int, int]] = SimpleQueue()
        """The events to handle: ("ended", rank, status) for a rank that has ended, and ("signal", number, 0) for a
        signal that this process has received."""

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """A block in which signals to this process are queued as events for `run`. When the
        block ends, all ranks are ended."""
        _adopt_orphans()
        # the handlers are restored at the end, because a program may call `launch` as a function
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in previous.items():
            # a signal that is ignored, for example because of nohup, stays ignored
            if handler is signal.SIG_IGN:
                continue
            signal.signal(number, lambda number, frame: self._events.put(("signal", number, 0)))
        try:
            yield
        finally:
            # an error in this process must not leave ranks behind
            if self._alive:
                self._end_all(signal.SIGTERM)
            for number, handler in previous.items():
                # None stands for a handler that was not installed by Python, and cannot be restored
                signal.signal(number, handler or signal.SIG_DFL)

    def start(self, command: Sequence[str], environment: Mapping[str, str], rank: int) -> None:
        """Starts one rank in its own process group, and the threads that read its output and
        wait for its end."""
        # only one rank may read the input, because otherwise it would be split among the ranks.
        # A terminal must not be read at all, because a terminal stops a background process
        # group that reads from it
        has_input = rank == 0 and not output.must_not_be_read(sys.stdin)
        process = subprocess.Popen(
            command,
            stdin=None if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=_HAS_PROCESS_GROUPS,
        )
        # notified at once, so that the guard ends this process group even if the launcher is
        # killed a moment later
        self._notify_guard(f"+{process.pid}")
        self._processes.append(process)
        self._alive.add(rank)
        self._outputs.append(output.RankOutput(self._first_rank + rank, process, self._folder))
        thread = threading.Thread(target=self._wait, args=(rank,), daemon=True)
        self._waiting.append(thread)
        thread.start()

    def _notify_guard(self, line: str) -> None:
        """Sends a line to the guard: "+123" adds the process group 123, and "-123" removes it."""
        if self._guard is not None:
            # writing fails if the guard has been killed
            with suppress(OSError):
                self._guard.write(f"{line}\n".encode())

    def _wait(self, rank: int) -> None:
        """Runs in a thread: waits for a rank to end, and then ends the processes that the rank has left behind in its
        process group."""
        process = self._processes[rank]
        status = process.wait()
        # queued before the clean-up below, which may take seconds
        self._events.put(("ended", rank, status))
        if not _HAS_PROCESS_GROUPS:
            return
        deadline = time.monotonic() + PATIENCE
        # processes may be left, such as the workers of a DataLoader, which outlive a rank that was killed
        is_left = _send_signal(process.pid, signal.SIGTERM)
        while is_left and time.monotonic() < deadline:
            time.sleep(0.02)
            _reap(process.pid)
            is_left = _send_signal(process.pid, _NO_SIGNAL)
        if is_left:
            _send_signal(process.pid, _KILL)
        self._notify_guard(f"-{process.pid}")

    def run(self) -> int:
        """Waits until the last rank has ended, or ends all ranks after a failure or a signal.
        Returns the exit status of the launcher."""
        # the first failure or signal ends all ranks
        while self._alive and not self._failed and not self._signal:
            self._handle_event(timeout=None)
        if self._signal:
            output.say(
                f"{signal.Signals(self._signal).name} is passed on to the ranks; processes that do not end are killed"
            )
        # a rank that failed because of another rank may be noticed shortly before that other rank
        if self._failed:
            self._handle_events_until(time.monotonic() + _ECHO_SECONDS)
        # read before the ranks are ended, because the report tells whether some ranks were still running
        is_cut_off = bool(self._alive)
        self._end_all(self._signal or signal.SIGTERM)
        if self._signal:
            return 128 + self._signal
        if not self._failed:
            return 0
        failure = self._first_failure()
        _print_failure(failure, is_cut_off)
        # -n means that signal n ended the rank, for which shells report 128 + n
        return failure.status if failure.status > 0 else 128 - failure.status

    @property
    def was_signalled(self) -> bool:
        """Whether a signal has asked this launcher to end."""
        return bool(self._signal)

    def _handle_event(self, timeout: float | None) -> None:
        """Waits for the next event, either the end of a rank or a signal, and handles it.
        Raises `Empty` if there is no event within `timeout` seconds; None means no limit."""
        event, number, status = self._events.get(timeout=timeout)
        if event == "signal":
            is_first = not self._signal
            self._signal = number
            # a second signal means that the user does not want to wait
            if not is_first:
                self._send_signal_to_all(_KILL)
            return
        # a rank has ended, and `number` is the rank
        self._alive.discard(number)
        self._outputs[number].close()
        # after a signal all ranks end with a nonzero status, which is not reported
        if status != 0 and not self._signal:
            self._failed.setdefault(number, status)

    def _handle_events_until(self, deadline: float) -> None:
        """Handles events until all ranks have ended, or until `time.monotonic` has reached the deadline."""
        with suppress(Empty):
            while self._alive:
                self._handle_event(max(0.0, deadline - time.monotonic()))

    def _end_all(self, number: int) -> None:
        """Ends all ranks: sends the signal `number` to all ranks, and three seconds later kills the ranks that have not
        ended.
        """
        # a copy, because the ranks that end because of the signal are added to `_failed` too
        failed = dict(self._failed)
        self._send_signal_to_all(number)
        self._handle_events_until(time.monotonic() + PATIENCE)
        self._send_signal_to_all(_KILL)
        self._handle_events_until(time.monotonic() + PATIENCE)
        # the report must not name ranks that failed only because of the signal
        if failed:
            self._failed = failed
        # a thread may wait `PATIENCE` seconds for processes that its rank has left behind
        for thread in self._waiting:
            thread.join(2 * PATIENCE)

    def _send_signal_to_all(self, number: int) -> None:
        """Sends a signal to the process groups of all ranks that are running."""
        for rank in self._alive:
            _send_signal(self._processes[rank].pid, number)

    def _first_failure(self) -> Failure:
        """Returns the failure to report: the first failure on this machine that is not a `PeerError`. If all failures
        are `PeerError`s, returns the first one. At least one rank must have failed."""
        failures = [
            Failure(self._first_rank + rank, status, self._outputs[rank].last_lines())
            for rank, status in self._failed.items()
        ]
        # a PeerError only repeats another rank's failure
        own_failures = [
            failure
            for failure in failures
            if not any(_PEER_ERROR_TEXT in line for line in failure.last_lines)
        ]
        # if the rank that failed first is on another machine, all ranks of this machine fail
        # with a PeerError
        return (own_failures or failures)[0]


def _send_signal(leader: int, number: int) -> bool:
    """Sends the signal `number` to the process group that the process `leader` leads. Returns False if the group no
    longer contains any process.
    """
    try:
        if _HAS_PROCESS_GROUPS:
            os.killpg(leader, number)
        # Windows has no process groups, but this command also ends the child processes
        else:
            done = subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(leader)], capture_output=True, check=False
            )
            return done.returncode == 0
    # macOS raises PermissionError for processes that have ended
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _adopt_orphans() -> None:
    """Makes the launcher the new parent of processes that outlive their rank, so that `_reap`
    can remove these processes when they have ended.

    This works only on Linux. On other systems such processes become children of process 1, and
    ending the run may take up to three seconds longer.
    """
    if sys.platform == "linux":
        # Python's os module has no function for this system call
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap(group: int) -> None:
    """Removes the ended processes of a group if they are children of this process. Until these processes are removed,
    the system considers them members of the group.
    """
    # `waitpid` raises this error if no process of the group is a child of this process, and returns (0, 0) if all such
    # children are still running
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass


@contextmanager
def _guard() -> Iterator[IO[bytes] | None]:
    """A block in which the guard runs: a process that ends the ranks' process groups when its input pipe closes. Yields
    the pipe, through which the launcher tells the guard which groups exist. On Windows, which has no process groups,
    there is no guard, and None is yielded."""
    if not _HAS_PROCESS_GROUPS:
        yield None
        return
    with subprocess.Popen(
        # the guard runs isolated and without site-packages, so that it starts in milliseconds, and in a session of its
        # own, so that the signal that kills the launcher does not reach it
        [sys.executable, "-I", "-S", "-c", _GUARD], bufsize=0, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        yield process.stdin


def _print_failure(failure: Failure, is_cut_off: bool) -> None:
    """Prints which rank failed first, and the rank's last lines. `is_cut_off` is True if other ranks were still
    running."""
    others = "; the others were stopped" if is_cut_off else ""
    output.say(f"rank {failure.rank} failed first, {status_text(failure.status)}{others}")
    for line in failure.last_lines:
        output.write(sys.stderr, f"[{failure.rank}] {line}\n".encode())
