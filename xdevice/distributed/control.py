"""The control connection: the ranks use it to vote on each call before any tensors are sent, and to learn that a rank
has failed.

Every rank has two connections, "vote" and "pulse", to the hub in rank 0. Rank 0's own
connections are socket pairs. This module contains the frames (messages with a kind and a text),
the handshake, and a rank's side of the connections (`Line`). The module `hub` contains the
hub's side. Tensors are never sent over these connections.

    a rank (Line)                                                     rank 0 (Hub)

    joining, on each of the two connections
      <---- GREETING: a nonce ------------------------------------------
      ----- HELLO: rank, run, world, size, proof of the secret -------->  wrong: REFUSED, here LaunchError
      <---- WELCOME: proof of the secret -------------------------------  wrong: LaunchError here
      <---- JOINED, when all ranks have joined -------------------------  after join_timeout: CLOSED "never joined"

    a collective, on "vote"
      ----- VOTE: number, call, payload ------------------------------->  waits for the votes of all ranks
      <---- GO: the payloads of all ranks ------------------------------  all calls are equal
      <---- MISMATCH: the call of each rank ----------------------------  CollectiveMismatchError; the world stays open
      ----- PAIR, for send and recv instead of VOTE ------------------->  waits for the other rank of the pair
      ... the engine moves the tensors from rank to rank
      ----- SLOW, if the call takes long: number, call, seconds ------->  calls that were not voted on differ: CLOSED
      ----- DONE, after SLOW ------------------------------------------>  no progress on any rank: CLOSED "late"

    while a rank waits for another, four times a second
      <---- ALIVE, on "vote", to the waiting ranks ---------------------  silence for `timeout`: PeerError "silent" here
      <---- ASK, on "pulse", to the ranks for which they wait ----------
      ----- ANSWER: whether it has moved, at which line --------------->  no progress for `timeout`: CLOSED "late";
                                                                          no answer for `timeout`: CLOSED "silent"
    the end
      ----- VOTE: LEAVE ----------------------------------------------->  another rank makes a call: CLOSED "left"
      ----- VOTE: GOODBYE, when the engine is closed ------------------>  the hub ends after its GO
      ----- FAILED: the text of the error ----------------------------->  CLOSED "raised"
      x     a connection ends ----------------------------------------->  CLOSED "died"
      <---- CLOSED: rank, why, text; to all ranks ----------------------  PeerError here, in this and each later call
      <---- a connection ends ------------------------------------------  PeerError "died" of rank 0 here
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base import forks
from xdevice.errors import CollectiveMismatchError, LaunchError, PeerError, shown

from .launchers import LOOPBACK, is_loopback
from .liveness import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .launchers import Launch

TOKEN: Final = "XDEVICE_TOKEN"
"""The environment variable that contains the secret shared by all processes of a run."""

# the kinds of frames, in the order of the drawing
GREETING, HELLO, REFUSED, WELCOME, JOINED = b"H", b"h", b"R", b"K", b"J"
VOTE, PAIR, SLOW, DONE, FAILED = b"V", b"P", b"S", b"D", b"F"
GO, MISMATCH, CLOSED, ALIVE, ASK, ANSWER = b"G", b"M", b"E", b".", b"p", b"a"

LEAVE: Final = "leave the block"
"""The text of a rank's vote when the rank leaves the block of `processes` without an error."""
GOODBYE: Final = "end the world"
"""The text of a rank's last vote, after the rank has closed its engine."""

PROTOCOL: Final = "xdevice control 1 "
"""The text that precedes the nonce in a greeting. A server that sends any other text is not a hub."""
MAX_FRAME: Final = 64 * 2**20
"""The maximum size of a frame, in bytes."""
MAX_FRAME_BEFORE_PROOF: Final = 4096
"""The maximum size of a frame, in bytes, before the other side has proved that it knows the token."""
_REASON_SECONDS: Final = 1.5
"""After an engine's error, `raise_if_a_rank_failed` waits this many seconds for the hub to name a failed rank."""
_LONGEST_CALL: Final = 300
"""The message about a mismatch shortens any description of a call that has more characters than this."""
_HEADER: Final = struct.Struct("!Ic")
"""The header of a frame: the length of the text in bytes, and the kind."""
_open_conns: weakref.WeakSet[Conn] = weakref.WeakSet()
"""The open connections of this process, which a forked child closes."""


# one end of a connection that sends and receives frames


class Conn:
    """One end of a socket connection that never blocks: it stores outgoing frames until they
    can be sent, and incoming frames until they are complete. If an incoming frame has more than
    `max_frame` bytes, `is_open` becomes False."""

    def __init__(self, sock: socket.socket, max_frame: int = MAX_FRAME) -> None:
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            # Nagle's algorithm would delay a small frame until the previous frame is acknowledged, which may take 40 ms
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.max_frame = max_frame
        # bytes that `send` has stored, because the socket did not accept them
        self.unsent = bytearray()
        self.is_open = True
        self._in = bytearray()
        _open_conns.add(self)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: bytes, text: str = "") -> None:
        """Sends a frame. Bytes that the socket does not accept now are stored for `flush`.
        Never raises an error: `frames` detects that a connection is lost."""
        # a text may contain an unpaired surrogate, which UTF-8 cannot encode
        body = text.encode("utf-8", "backslashreplace")
        frame = _HEADER.pack(len(body), kind) + body
        # frames must arrive in order, so this frame is stored behind those that are already waiting
        if self.unsent:
            self.unsent += frame
            return
        try:
            sent = self.sock.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        # the connection is lost, which `frames` will detect
        except OSError:
            return
        if sent < len(frame):
            self.unsent += memoryview(frame)[sent:]

    def flush(self) -> None:
        """Sends as many of the stored bytes as the socket accepts now."""
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent)
            except (BlockingIOError, InterruptedError):
                return
            # the connection is lost, which `frames` will detect
            except OSError:
                self.unsent.clear()
                return
            del self.unsent[:sent]

    def frames(self) -> Iterator[tuple[bytes, str]]:
        """Yields the kind and text of each frame that has arrived completely. Sets `is_open` to False if the other end
        has closed the connection, or if a frame is too long."""
        while True:
            try:
                data = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            # a lost connection is treated as one that the other end has closed
            except OSError:
                data = b""
            if not data:
                self.is_open = False
                break
            self._in += data
            # if fewer bytes arrived than were requested, no more bytes are available yet
            if len(data) < 65536:
                break
        while len(self._in) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._in)
            # this is not a frame of the protocol, or it is an attempt to fill the memory; the
            # caller closes the connection
            if length > self.max_frame:
                self.is_open = False
                return
            # the rest of this frame has not arrived yet
            if len(self._in) < _HEADER.size + length:
                return
            body = bytes(self._in[_HEADER.size : _HEADER.size + length])
            del self._in[: _HEADER.size + length]
            yield kind, body.decode("utf-8", "replace")

    def close(self) -> None:
        self.is_open = False
        self.sock.close()

    def close_for_sending(self) -> None:
        """Closes the connection for sending only. The other side can still read the last frame, and then the end of the
        stream."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_open = False

    def is_delivered(self) -> bool:
        """Whether the operating system on the other side has acknowledged all bytes. That system then stores the bytes
        until its program reads them. Returns False if this operating system does not report it.
        """
        if self.unsent:
            return False
        try:
            import fcntl
            import termios

            # TIOCOUTQ returns the number of bytes that are not acknowledged
            return (
                int.from_bytes(
                    fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder
                )
                == 0
            )
        except (ImportError, OSError):
            return False


@forks.in_child
def _after_fork() -> None:
    """Closes all connections in a forked child. If the connections stayed open there, the other
    ranks would not notice the death of the parent."""
    for conn in list(_open_conns):
        conn.close()


class Clock:
    """A clock that does not advance while this process is stopped or its machine sleeps.
    With an ordinary clock, the other ranks would seem to be late afterwards. Between two calls of `tick` the clock
    advances by at most `max_step` seconds."""

    def __init__(self, max_step: float) -> None:
        self.now = 0.0
        self._max_step = max_step
        self._last = time.monotonic()

    def tick(self) -> float:
        """Advances the clock, and returns its time in seconds."""
        now = time.monotonic()
        # a gap longer than a step means that this process was stopped, and could not answer any rank
        self.now += min(now - self._last, self._max_step)
        self._last = now
        return self.now


def beat_seconds(timeout: float) -> float:
    """Returns the length of a beat, in seconds. While ranks wait for another rank, the hub asks that rank a question
    once per beat. `timeout` is the number of seconds after which a rank is late.
    """
    # the hub asks at least eight times within the timeout, so that a single slow answer is not decisive
    return min(0.25, timeout / 8)


# a rank's side


class Line:
    """A rank's side of its two connections to the hub, the thread in rank 0 that receives the
    messages of all ranks. `hub.join_world` creates it.

    Args:
        vote: the socket of the connection for votes.
        pulse: the socket of the connection on which the hub asks for signs of life.
        host: the address at which the other ranks reach this process.
        timeout: the number of seconds after which a rank is late.
        hub: the hub's thread if this is rank 0, and otherwise None.
    """

    def __init__(
        self,
        vote: socket.socket,
        pulse: socket.socket,
        host: str,
        timeout: float,
        hub: threading.Thread | None,
    ) -> None:
        self.host = host
        self.started = 0
        """The number of collectives that this rank has begun."""
        self.is_first_busy = False
        """Whether this rank is rank 0 and runs a block of `World.first`, which may take any length of time."""
        self.is_in_engine = False
        """Whether this rank is in a slow call of the engine, and has reported that to the hub."""
        self.failure: PeerError | CollectiveMismatchError | None = None
        """The error that has closed the world, and that every collective raises from then on;
        None while the world is open."""
        self.on_lost_hub: Callable[[], None] = lambda: None
        """A function to call when the hub has ended. It is called in the thread of `_answer`."""
        self.liveness = Liveness()
        self.hub = hub
        self._vote = Conn(vote)
        self._timeout = timeout
        self._beat = beat_seconds(timeout)
        self._clock = Clock(max_step=4 * self._beat)
        # the time since when the hub has been silent, although it had to send: that of its last frame, or a later one
        self._last_frame = 0.0
        self._lock = threading.RLock()
        """The lock of the thread that reads the connection for votes. This is usually the program's thread, but the
        engine's thread while the engine starts."""
        self._poll = _poller(self._vote)
        self._pulse = Conn(pulse)
        thread = threading.Thread(target=self._answer, name="xdevice pulse", daemon=True)
        # their work must not make a program that is stuck seem to be working
        self.liveness.own_threads += [thread, *([hub] if hub is not None else [])]
        thread.start()

    def wait_until_all_joined(self, join_timeout: float) -> None:
        """Waits until the hub reports that all ranks have joined. Raises `PeerError` if a rank
        has not joined in time."""
        # the hub sends no ALIVE before all ranks have joined, so until then silence does not
        # mean that the hub has failed
        self._timeout += join_timeout
        self._last_frame = self._clock.tick()
        while not any(kind == JOINED for kind, _ in self._frames(self._beat)):
            pass
        self._timeout -= join_timeout

    # sending to the hub

    def vote(self, call: str, payload: str = "") -> list[str]:
        """Sends the string `call` to the hub, and waits until all ranks have sent the same string. `call` describes the
        collective that this rank is about to call. Returns the payloads of all ranks, in the order of the ranks, or an
        empty list if no rank has sent a payload.

        Raises:
            PeerError: a rank has failed, or is late.
            CollectiveMismatchError: another rank makes a different call.
        """
        return self._ask(VOTE, call, payload)

    def vote_on_pair(self, verb: str, partner: int, contents: str) -> None:
        """Votes on a `send` or `recv` with the rank `partner`; no third rank takes part. `verb` is "send" or "recv",
        and `contents` is a string that contains the dtypes and shapes of the tensors. Raises the errors of `vote`."""
        self._ask(
            PAIR,
            f"{verb} {'to' if verb == 'send' else 'from'} rank {partner}: {contents}",
            # the hub splits this payload again, in `_react_to_pair`
            f"{verb} {partner} {contents}",
        )

    def exchange(self, text: str) -> list[str]:
        """Sends `text` to every rank, and returns the texts of all ranks, in the order of the
        ranks. All ranks must call this. Raises the errors of `vote`."""
        # the text is sent as JSON, because an empty payload is treated as no payload
        return [json.loads(payload) for payload in self.vote("exchange", json.dumps(text))]

    def _ask(self, kind: bytes, call: str, payload: str) -> list[str]:
        """Sends a call to the hub in a frame of the kind `kind`, VOTE or PAIR, and waits for
        the hub's GO. `call` is the string that all ranks must send, and `payload` is the string
        that the hub forwards. Returns the payloads that came with the GO. Raises
        `CollectiveMismatchError` if the calls differ, and `PeerError` if a rank fails."""
        # the hub of a closed world does not answer votes
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self._last_frame = self._clock.tick()
            self._vote.send(kind, f"{self.started}\n{_in_a_line(call)}\n{payload}")
            while True:
                for kind, text in self._frames(self._beat):
                    if kind == GO:
                        return json.loads(text) if text else []
                    # the vote failed before any tensor was sent, so the world remains usable
                    if kind == MISMATCH:
                        raise _mismatch_error(
                            json.loads(text),
                            "nothing was written, and the world can still be used",
                        )

    def fail(self, why: str, text: str) -> None:
        """Reports to the hub, and thereby to all ranks, that this rank has failed. `why` is the reason in one word
        ("raised"), and `text` is the message of the error. Does nothing in a world that has already failed."""
        if self.failure is None:
            # waits up to a second until the frame is sent, because the process may end right
            # after this call
            self._vote.send(FAILED, json.dumps({"why": why, "text": text}))
            until = time.monotonic() + 1
            while self._vote.unsent and time.monotonic() < until:
                self._poll(0.05)
                self._vote.flush()

    # receiving from the hub

    def _frames(self, seconds: float) -> list[tuple[bytes, str]]:
        """Waits for frames from the hub for up to `seconds`, and returns the frames that have arrived, as pairs of a
        kind and a text. Raises `PeerError` if a frame closes the world after a failure, or if the hub is gone or
        silent. Raises `CollectiveMismatchError` if a frame reports that the ranks have made different calls without a
        vote.
        """
        ready = self._poll(seconds)
        now = self._clock.tick()
        # rank 0 sends ALIVE at each beat, so it is silent if nothing comes for the timeout plus one beat
        if not ready and now - self._last_frame > self._timeout + self._beat:
            text = (
                f"rank 0 has been silent for {self._timeout:g} s: "
                "its process is stopped, or its machine cannot be reached"
            )
            raise self.record_failure(PeerError(text, rank=0, why="silent"))
        if not ready:
            return []
        self._last_frame = now
        self._vote.flush()
        frames = list(self._vote.frames())
        for kind, text in frames:
            if kind == CLOSED:
                error = self.record_failure(_closing_error(json.loads(text)))
                # the caller raises the mismatch, which is more informative, and the next call raises `error`
                if any(kind == MISMATCH for kind, _ in frames):
                    break
                raise error
        # GO may be the last frame before the hub ends normally, so it is no failure if the
        # connection ends after a GO
        if not self._vote.is_open and not any(kind == GO for kind, _ in frames):
            raise self.record_failure(
                PeerError(
                    "rank 0 has died: its process ended without reporting an error",
                    rank=0,
                    why="died",
                )
            )
        return frames

    def record_failure(
        self, error: PeerError | CollectiveMismatchError
    ) -> PeerError | CollectiveMismatchError:
        """Stores `error`, unless an error is already stored. Every later call raises the stored
        error. Returns the stored error."""
        if self.failure is None:
            self.failure = error
        return self.failure

    # while the engine works

    def wait(
        self,
        done: Callable[[float], bool],
        describe_call: Callable[[], tuple[str, float]],
        is_counted: bool,
    ) -> None:
        """Waits until a call of the engine has ended. Raises `PeerError` if a rank fails in the meantime, and
        `CollectiveMismatchError` if the ranks have made different calls without a vote.

        Args:
            done: called with a number of seconds; waits for at most that time, and returns
                whether the call has ended.
            describe_call: returns the string that describes the call, and the number of seconds
                that the call may take. It is called only for slow calls.
            is_counted: whether all ranks make this call; only such a call has a number.
        """
        # a call that ends within this time needs neither a frame nor a description
        if done(0.1):
            return
        call, seconds = describe_call()
        begun = self._last_frame = self._clock.tick()
        try:
            while not done(0.1):
                # the engine is starting: its thread exchanges addresses, and has its own deadline
                if not self._lock.acquire(blocking=False):
                    begun = self._clock.tick()
                    continue
                try:
                    now = self._clock.tick()
                    # before the frame SLOW, the hub does not know that this rank is waiting,
                    # and sends it no ALIVE
                    if not self.is_in_engine:
                        self._last_frame = now
                    # raises the failure of another rank, if a frame reports one
                    self._frames(0)
                    if not self.is_in_engine and now - begun > self._beat:
                        self.is_in_engine = True
                        self._vote.send(
                            SLOW,
                            f"{self.started if is_counted else -1}\n{_in_a_line(call)}\n{seconds}",
                        )
                finally:
                    self._lock.release()
            if self.is_in_engine and self.failure is None:
                self._vote.send(DONE)
        finally:
            self.is_in_engine = False

    def raise_if_a_rank_failed(self) -> None:
        """Waits up to 1.5 s for the hub to name a failed rank, and raises the error for this rank. Returns normally if
        the hub names no rank. This method is called after an error of the engine, because the failure of another rank
        may be the reason for the error.
        """
        until = time.monotonic() + _REASON_SECONDS
        while time.monotonic() < until:
            # the hub sends ALIVE only to ranks that wait in a call, so here its silence is no failure
            self._last_frame = self._clock.tick()
            self._frames(0.05)

    def _answer(self) -> None:
        """Runs in its own thread until the connection "pulse" ends. Whenever the hub asks on this connection, answers
        whether this process is still working."""
        poll = _poller(self._pulse)
        # another thread may close the connection in the meantime, which raises one of these errors here
        with suppress(OSError, ValueError):
            # the thread sleeps in a system call until the hub asks, so it costs the program no time
            while self._pulse.is_open:
                poll(None)
                for _ in self._pulse.frames():
                    moved = (
                        self.liveness.has_engine_moved()
                        if self.is_in_engine
                        else self.liveness.has_moved()
                    )
                    # a block of `World.first` may take any length of time
                    moved = moved or self.is_first_busy
                    answer = {
                        "moved": moved,
                        "at": self.liveness.program_line(),
                        "started": self.started,
                    }
                    self._pulse.send(ANSWER, json.dumps(answer))
        self._pulse.close()
        self.on_lost_hub()

    def close(self) -> None:
        """Closes the connection for votes, and makes the thread of `_answer` close the other connection. In between,
        rank 0 waits up to three seconds until the hub has sent its last frames and its thread has ended."""
        self._vote.close()
        if self.hub is not None:
            self.hub.join(3)
        # wakes the thread in `_answer`, which closes the socket. If the socket were closed
        # here, another file could get its number while that thread still uses the number
        with suppress(OSError):
            self._pulse.sock.shutdown(socket.SHUT_RDWR)
        self._pulse.is_open = False


def _poller(conn: Conn) -> Callable[[float | None], bool]:
    """Returns a function that waits until the connection can be read or, if frames are waiting
    to be sent, written. The function's argument is the maximum number of seconds to wait; None
    means no limit. The function returns whether the connection is ready; False means that the time ran out first."""
    # Windows has no `poll`; the first list that `select` returns contains the connection if it can be read
    if not hasattr(select, "poll"):
        return lambda seconds: bool(
            select.select([conn], [conn] if conn.unsent else [], [], seconds)[0]
        )
    reading, both = select.poll(), select.poll()
    reading.register(conn, select.POLLIN)
    both.register(conn, select.POLLIN | select.POLLOUT)

    def poll(seconds: float | None) -> bool:
        """Waits up to `seconds`, and returns whether the connection is ready."""
        waiting = both if conn.unsent else reading
        # `poll` expects milliseconds
        return bool(waiting.poll(None if seconds is None else seconds * 1000))

    return poll


# error messages


def _closing_error(message: dict[str, Any]) -> PeerError | CollectiveMismatchError:
    """Returns the error for a CLOSED frame. `message` is the JSON object in the text of the frame."""
    # the calls of the ranks differ, and there was no vote on them
    if "calls" in message:
        return _mismatch_error(
            message["calls"],
            "the calls were not compared beforehand (check=False), so the world is closed",
        )
    return PeerError(message["text"], message["rank"], message["why"])


def _mismatch_error(calls: dict[str, str], then: str) -> CollectiveMismatchError:
    """Returns the error for calls that differ. `calls` maps each rank to the string that describes its call, and `then`
    is the last part of the error's message, which states the consequences."""
    # ranks that make the same call are named together
    ranks_by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        ranks_by_call.setdefault(call, []).append(int(rank))
    texts = [
        f'{_name_ranks(ranks)} called "{_shortened(call, list(ranks_by_call))}"'
        for call, ranks in ranks_by_call.items()
    ]
    return CollectiveMismatchError(
        f"the calls differ: {'; '.join(texts)}; {then}", tuple(calls.values())
    )


def _in_a_line(call: str) -> str:
    """Escapes the line breaks in a string that describes a call, and returns the string. In a frame, an unescaped line
    break would end the call. The names of tensors may contain line breaks.
    """
    return call.replace("\n", "\\n")


def _name_ranks(ranks: list[int]) -> str:
    """Returns a string such as "rank 3" or "ranks 0, 1", which names at most eight ranks."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{' and more' if len(ranks) > 8 else ''}"


def _shortened(call: str, calls: list[str]) -> str:
    """Returns the description of a call for a message. A long description is shortened to its beginning and the first
    items that differ from rank to rank. `calls` contains the descriptions of all ranks."""
    if len(call) <= _LONGEST_CALL:
        return call
    items_of_calls = [text.split("; ") for text in calls]
    # `zip` groups the items with the same index. `start` is the index of the first item that differs between the
    # calls. If no item differs, one call has more items, and `start` is the length of the shortest call
    start = next(
        (i for i, same in enumerate(zip(*items_of_calls, strict=False)) if len(set(same)) > 1),
        min(map(len, items_of_calls)),
    )
    items = call.split("; ")
    different = (
        "; ".join(items[start : start + 2])[:_LONGEST_CALL]
        if start < len(items)
        else "(no more)"
    )
    return f"{items[0][:100]} ... {different} ..."


def describe_error(error: BaseException) -> str:
    """Returns a string that describes an error for the other ranks: its type, its message, and
    the file and line that raised it."""
    # the error was raised in the last frame of its traceback
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    location = (
        f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    )
    try:
        text = str(error)[:2000]
    # an error must be reported even if its `str` fails
    except Exception as failure:
        text = f"its message could not be read: {type(failure).__name__}"
    return f"{type(error).__name__}: {text}{location}"


# the handshake: each side proves that it knows the token, without sending the token


PROVEN: Final = ("rank", "line", "run", "world", "size", "nonce")
"""The keys of those values in a HELLO frame that the frame's proof covers, in the order in which the proof uses
them."""


class Terms(NamedTuple):
    """The values that must be equal in all processes of a world. The hub checks them when a process connects."""

    key: str
    """The secret in the environment variable XDEVICE_TOKEN. It may be empty if rank 0 listens on loopback."""
    run: str
    """The string that identifies the run: see `Launch.run`."""
    world: int
    """The number of this world, counted from 1: the processes can create several worlds in succession."""
    size: int


def new_nonce() -> str:
    """Returns a new random string. The other side must include this string in its proof, so
    that nobody can use a recorded proof again."""
    return os.urandom(16).hex()


def proof(key: str, *parts: object) -> str:
    """Returns an HMAC of these parts: a string that nobody can compute without the key."""
    return hmac.new(key.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_proof(claimed: object, key: str, *parts: object) -> bool:
    """Whether `claimed`, a value that the other side has sent, equals `proof(key, *parts)`."""
    # `compare_digest` always takes the same time, wherever the strings differ, so nobody can
    # guess a proof digit by digit
    return isinstance(claimed, str) and hmac.compare_digest(
        claimed.encode("utf-8", "replace"), proof(key, *parts).encode()
    )


def parse(text: str) -> dict[str, Any]:
    """Returns the JSON object in the text of a frame, or {} if the text is not a JSON object."""
    try:
        message = json.loads(text)
    # a text with deeply nested lists raises RecursionError
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def resolve(host: str, port: int, passive: bool = False) -> list[Any]:
    """Returns the addresses of a host and port in the format of `socket.getaddrinfo`. If
    `passive` is true, these are the addresses to listen on. Raises `LaunchError` if the host's
    name is unknown."""
    try:
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE if passive else 0
        )
    except OSError as error:
        raise LaunchError(
            f"the host of rank 0, {shown(host)}, cannot be resolved on this machine: {error}"
        ) from None


def connect_to_hub(launch: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    """Connects this rank, which is not rank 0, to the hub, and returns this rank's `Line`. Tries all ports of
    `launch.ports()`, because the hub listens on one of these ports, and retries for `join_timeout` seconds, because
    rank 0 may start later.

    Raises:
        PeerError: no hub of this run has answered in that time.
        LaunchError: the hub refuses this process.
    """
    until = time.monotonic() + join_timeout
    while True:
        for port in launch.ports():
            vote = open_connection(launch, port, terms, "vote")
            if vote is None:
                continue
            pulse = open_connection(launch, port, terms, "pulse")
            if pulse is not None:
                # rank 0's network can reach this machine at the address from which this machine has connected to rank 0
                host = LOOPBACK if is_loopback(launch.host) else vote.getsockname()[0]
                return Line(vote, pulse, host, timeout, hub=None)
            vote.close()
        if time.monotonic() > until:
            raise PeerError(
                f"rank 0 has not joined within {join_timeout:g} s: no process of this run listens on {launch.host}, "
                f"port {', '.join(map(str, launch.ports()[:4]))}",
                rank=0,
                why="never joined",
            )
        time.sleep(0.05)


def open_connection(launch: Launch, port: int, terms: Terms, line: str) -> socket.socket | None:
    """Opens a connection to this run's hub, and performs the handshake. `launch` contains this process's rank and the
    host of the hub. `line` is the name of the connection: "vote" or "pulse". Returns the socket, or None if no hub of
    this run answers on this port. Raises `LaunchError` if the hub refuses this process."""
    try:
        # uses the first address, which is also the first on which rank 0 tries to listen
        family, kind, protocol, _, address = resolve(launch.host, port)[0]
        sock = socket.socket(family, kind, protocol)
    # the host's name may become known later, so the caller tries again
    except (LaunchError, OSError):
        return None
    # another program may be listening on this port, and may never answer
    sock.settimeout(5)
    try:
        sock.connect(address)
        refusal = _shake_hands(sock, launch, terms, line)
    # nobody listens on this port, or the program that does is no hub, or does not answer in time
    except (OSError, ValueError):
        sock.close()
        return None
    if refusal is None:
        return sock
    sock.close()
    # the hub belongs to another run, so the caller tries the next port
    if refusal.get("why") == "run":
        return None
    if refusal.get("why") == "token":
        text = f"refuses this process, because it has a different {TOKEN} or belongs to another run"
        # the port number is a hash, and another run, with another token, may have the same one,
        # so the caller tries the next port
        if launch.port is None and is_loopback(launch.host):
            return None
    else:
        text = f"refuses this process: {refusal.get('text')}"
    raise LaunchError(f"rank 0 at {launch.host}:{port} {text}")


def _shake_hands(
    sock: socket.socket, launch: Launch, terms: Terms, line: str
) -> dict[str, Any] | None:
    """Performs the handshake on `sock`, in which both sides prove that they belong to this run.
    `line` is the name of the connection: "vote" or "pulse". Returns None if the hub has
    admitted this process. Otherwise returns the reason: a dict with the key "why", and in some
    cases the key "text". Raises `OSError` or `ValueError` if the other side does not follow the
    protocol."""
    kind, text = _read_frame(sock)
    # a different program, such as an HTTP server, is listening on this port
    if kind != GREETING or not text.startswith(PROTOCOL):
        return {"why": "run"}
    own_nonce = new_nonce()
    proven = [launch.rank, line, terms.run, terms.world, terms.size, own_nonce]
    hello = {
        **dict(zip(PROVEN, proven, strict=True)),
        "proof": proof(terms.key, text.removeprefix(PROTOCOL), *proven),
        "pid": f"{socket.gethostname()}/{os.getpid()}",
    }
    body = json.dumps(hello).encode()
    sock.sendall(_HEADER.pack(len(body), HELLO) + body)
    kind, text = _read_frame(sock)
    # the hub has admitted this process, but must also prove that it knows the token. With the word "hub", its proof
    # differs from the proofs of all ranks, which another program could send back
    if kind == WELCOME:
        return None if is_proof(text, terms.key, own_nonce, "hub") else {"why": "token"}
    return parse(text) or {"why": "run"}


def _read_frame(sock: socket.socket) -> tuple[bytes, str]:
    """Reads one frame from a blocking socket, without reading any byte of the next frame. Returns the kind and the text
    of the frame. Raises `ValueError` if the frame is too long, and `OSError` if the connection ends before the end of
    the frame, or if nothing arrives in time."""
    length, kind = _HEADER.unpack(_read_exactly(sock, _HEADER.size))
    if length > MAX_FRAME_BEFORE_PROOF:
        raise ValueError("another protocol")
    return kind, _read_exactly(sock, length).decode("utf-8", "replace")


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    """Reads exactly `count` bytes, and returns them. Raises `OSError` if the connection ends before all bytes have
    arrived, or if nothing arrives in time.
    """
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
