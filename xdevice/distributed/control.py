"""A rank's side of the control connection: voting, waiting for the engine, and hearing of failures.

Every rank has two connections to rank 0's `hub`; rank 0's own are socket pairs. On the first, the program says what it
is about to call, and waits for the answer. On the second, a thread answers the hub's question whether this process
still works.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import CollectiveMismatchError, PeerError

from .liveness import Liveness
from .peers import Clock, beat_of
from .wire import Conn

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hub import Hub

_EXPLAINED: Final = 1.5
"""How many seconds `raise_reason` waits, after an engine's error, for the hub to name a failed rank as the reason."""
_LONGEST: Final = 300
"""The most characters of a call that the message of a mismatch repeats."""


class Line:
    """A rank's two connections to the hub, the thread in rank 0 that hears all ranks. Made by `joining.join`. `started`
    counts the collectives that this rank has begun."""

    def __init__(self, vote: socket.socket, pulse: socket.socket, host: str, timeout: float, hub: Hub | None) -> None:
        self.host = host
        """The address at which the other ranks reach this process."""
        self.started = 0
        self.is_first_busy = False
        """Whether this rank is rank 0 and runs a block of `World.first`, which may take any time."""
        self.is_in_engine = False
        """Whether this rank is in a call of the engine that takes long, and has told the hub so."""
        self.failure: PeerError | CollectiveMismatchError | None = None
        """The error that every verb raises from now on."""
        self.lost: Callable[[], None] = lambda: None
        """Called in a thread of its own when the hub has ended."""
        self.liveness = Liveness()
        self.hub = hub
        self._vote = Conn(vote)
        self._timeout = timeout
        self._beat = beat_of(timeout)
        self._clock = Clock(4 * self._beat)
        self._heard = 0.0
        self._lock = threading.RLock()
        """Held by the thread that reads the connection: the program's thread, or, while the engine starts, the
        engine's."""
        self._poll = _poller(self._vote)
        self._answers = Conn(pulse)
        thread = threading.Thread(target=self._answer, name="xdevice pulse", daemon=True)
        self.liveness.ours += [thread, *([hub] if hub is not None else [])]
        thread.start()

    def wait_for_all(self, join_timeout: float) -> None:
        """Waits until the hub says that all ranks have joined. Raises `PeerError` if one has not joined in time."""
        self._timeout += join_timeout
        self._heard = self._clock.tick()
        while not any(kind == b"J" for kind, _ in self._frames(self._beat)):
            pass
        self._timeout -= join_timeout

    # what is said

    def vote(self, call: str, payload: str = "") -> list[str]:
        """Tells the hub what this rank is about to call, and waits until all ranks have said the same. Returns the
        payloads of all ranks, by rank, or an empty list if no rank sent one.

        Raises:
            PeerError: a rank has failed or does not come. CollectiveMismatchError: a rank calls something else.
        """
        return self._ask(b"V", call, payload)

    def pair(self, verb: str, other: int, what: str) -> None:
        """Votes with one other rank on a transfer between the two: `verb` is "send" or "recv", `what` the dtypes and
        shapes."""
        self._ask(b"P", f"{verb} {'to' if verb == 'send' else 'from'} rank {other}: {what}", f"{verb} {other} {what}")

    def exchange(self, text: str) -> list[str]:
        """Sends every rank this rank's text. Returns the texts of all ranks, by rank."""
        return [json.loads(payload) for payload in self.vote("exchange", json.dumps(text))]

    def _ask(self, kind: bytes, call: str, payload: str) -> list[str]:
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self._heard = self._clock.tick()
            self._vote.send(kind, f"{self.started}\n{_in_a_line(call)}\n{payload}")
            while True:
                for kind, text in self._frames(self._beat):
                    if kind == b"G":
                        return json.loads(text) if text else []
                    if kind == b"M":
                        raise _mismatch(json.loads(text), "nothing was written, and the world can be used on")

    def fail(self, why: str, text: str) -> None:
        """Tells the hub, and so all ranks, that this rank has failed."""
        if self.failure is None:
            self._vote.send(b"F", json.dumps({"why": why, "text": text}))
            until = time.monotonic() + 1
            while self._vote.out and time.monotonic() < until:
                self._poll(0.05)
                self._vote.flush()

    # what is heard

    def _frames(self, seconds: float) -> list[tuple[bytes, str]]:
        """The messages that the hub sends within `seconds`. Raises if one of them closes the world after a failure, or
        if the hub is gone or silent."""
        ready = self._poll(seconds)
        now = self._clock.tick()
        if not ready and now - self._heard > self._timeout + self._beat:
            text = (
                f"rank 0 has been silent for {self._timeout:g} s: its process is stopped, or its machine out of reach"
            )
            raise self.end(PeerError(text, 0, "silent"))
        if not ready:
            return []
        self._heard = now
        self._vote.flush()
        frames = list(self._vote.frames())
        for kind, text in frames:
            if kind == b"E":
                error = self.end(_error(json.loads(text)))
                if any(kind == b"M" for kind, _ in frames):
                    break  # this call raises the mismatch, which says more; the next call raises `error`
                raise error
        if not self._vote.is_open and not any(kind == b"G" for kind, _ in frames):
            raise self.end(PeerError("rank 0 has died: its process has ended without a word", 0, "died"))
        return frames

    def end(self, error: PeerError | CollectiveMismatchError) -> PeerError | CollectiveMismatchError:
        """Stores the error that every later call raises, unless one is stored already. Returns the stored error."""
        if self.failure is None:
            self.failure = error
        return self.failure

    # while the engine works

    def wait(self, done: Callable[[float], bool], told: Callable[[], tuple[str, float]], is_counted: bool) -> None:
        """Waits until the engine is done, or raises when a rank fails. `done(seconds)` waits at most that long and
        returns whether the engine is done. `told()` returns the text of the call and the seconds that it may take; only
        slow calls need it."""
        if done(0.1):
            return
        call, seconds = told()
        begun = self._heard = self._clock.tick()
        try:
            while not done(0.1):
                if not self._lock.acquire(blocking=False):
                    begun = self._clock.tick()  # a starting engine is exchanging addresses, which has its own deadline
                    continue
                try:
                    now = self._clock.tick()
                    if not self.is_in_engine:
                        self._heard = now
                    self._frames(0)
                    if not self.is_in_engine and now - begun > self._beat:
                        self.is_in_engine = True
                        self._vote.send(b"S", f"{self.started if is_counted else -1}\n{_in_a_line(call)}\n{seconds}")
                finally:
                    self._lock.release()
            if self.is_in_engine and self.failure is None:
                self._vote.send(b"D")
        finally:
            self.is_in_engine = False

    def raise_reason(self) -> None:
        """Called after an engine's error: waits 1.5 s for the hub to name a rank whose failure is the reason, and
        raises that failure. Returns if the hub names none."""
        until = time.monotonic() + _EXPLAINED
        while time.monotonic() < until:
            self._heard = self._clock.tick()
            self._frames(0.05)

    def _answer(self) -> None:
        """Runs in a thread: answers the hub's questions on the second connection, whether this process still works."""
        poll = _poller(self._answers)
        with suppress(OSError, ValueError):  # the connection was closed meanwhile
            while self._answers.is_open:
                poll(None)
                for _ in self._answers.frames():
                    moved = self.liveness.has_engine_moved() if self.is_in_engine else self.liveness.has_moved()
                    moved = moved or self.is_first_busy
                    told = {"moved": moved, "at": self.liveness.at(), "started": self.started}
                    self._answers.send(b"a", json.dumps(told))
        self._answers.close()
        self.lost()

    def close(self) -> None:
        """Closes both connections. Rank 0 first waits until the hub has sent its last frames."""
        self._vote.close()
        if self.hub is not None:
            self.hub.join(3)
        with suppress(OSError):
            self._answers.sock.shutdown(socket.SHUT_RDWR)
        self._answers.is_open = False


def _poller(conn: Conn) -> Callable[[float | None], bool]:
    """Returns a function that waits until the connection can be read, or written if frames wait to be sent, and says
    whether it can. The function's argument is the most seconds to wait."""
    if not hasattr(select, "poll"):
        return lambda seconds: bool(select.select([conn], [conn] if conn.out else [], [], seconds)[0])
    reading, both = select.poll(), select.poll()
    reading.register(conn, select.POLLIN)
    both.register(conn, select.POLLIN | select.POLLOUT)

    def poll(seconds: float | None) -> bool:
        waiting = both if conn.out else reading
        return bool(waiting.poll(None if seconds is None else seconds * 1000))

    return poll


def _error(told: dict[str, Any]) -> PeerError | CollectiveMismatchError:
    if "calls" in told:
        return _mismatch(told["calls"], "they were not voted on (check=False), so that the world is closed")
    return PeerError(told["text"], told["rank"], told["why"])


def _mismatch(calls: dict[str, str], then: str) -> CollectiveMismatchError:
    listed = [(int(rank), call) for rank, call in calls.items()]
    by_call: dict[str, list[int]] = {}
    for rank, call in listed:
        by_call.setdefault(call, []).append(rank)
    told = "; ".join(f"{_name_ranks(ranks)} {_short(call, list(by_call))}" for call, ranks in by_call.items())
    return CollectiveMismatchError(f"the calls differ: {told}; {then}", tuple(call for _, call in listed))


def _in_a_line(call: str) -> str:
    """The text of a call without line breaks, which the names of tensors may contain: in a frame, a line break ends the
    call."""
    return call.replace("\n", "\\n")


def _name_ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{' and more' * (len(ranks) > 8)}"


def _short(call: str, calls: list[str]) -> str:
    """The text of a call; a long one is cut to its beginning and the first item that differs from the other calls."""
    if len(call) <= _LONGEST:
        return call
    items = [one.split("; ") for one in calls]
    first = next((i for i, row in enumerate(zip(*items, strict=False)) if len(set(row)) > 1), min(map(len, items)))
    own = call.split("; ")
    return f"{own[0][:100]} ... {'; '.join(own[first : first + 2])[:_LONGEST] if first < len(own) else '(no more)'} ..."
