"""The control connection: over it the ranks vote on each call before its tensors travel, and learn that a rank has
failed.

Every rank has two connections to rank 0's hub, "vote" and "pulse"; rank 0's own are socket pairs. This file has the
frames, the handshake and a rank's side of them (`Line`); `hub` has rank 0's side. Tensors never travel here.

    a rank (Line)                                                     rank 0 (Hub)

    joining, on each of the two connections
      <---- GREETING: a nonce ------------------------------------------
      ----- HELLO: rank, run, world, size, proof of the secret -------->  wrong: REFUSED, here LaunchError
      <---- WELCOME: proof of the secret -------------------------------  wrong: LaunchError here
      <---- JOINED, when all have come ---------------------------------  not in join_timeout: CLOSED "never joined"

    a collective, on "vote"
      ----- VOTE: number, call, payload ------------------------------->  waits for the votes of all ranks
      <---- GO: the payloads of all ------------------------------------  all calls are equal
      <---- MISMATCH: the call of each rank ----------------------------  CollectiveMismatchError; the world stays open
      ----- PAIR: instead of VOTE, for send and recv ------------------>  waits for the other rank of the pair
      ... the engine moves the tensors, from rank to rank
      ----- SLOW: number, call, seconds; only if that takes long ------>  calls that were not voted on differ: CLOSED
      ----- DONE, after SLOW ------------------------------------------>  nothing moves on any rank: CLOSED "late"

    while a rank waits for another, four times a second
      <---- ALIVE, on "vote", to those that wait -----------------------  silence for `timeout`: PeerError "silent" here
      <---- ASK, on "pulse", to those that they wait for ---------------
      ----- ANSWER: has it moved, at which line ----------------------->  nothing moves for `timeout`: CLOSED "late";
                                                                          no answer for `timeout`: CLOSED "silent"
    the end
      ----- VOTE: LEAVE ----------------------------------------------->  another rank calls something: CLOSED "left"
      ----- VOTE: GOODBYE, when the engine is closed ------------------>  the hub ends after its GO
      ----- FAILED: the text of the error ----------------------------->  CLOSED "raised"
      x     a connection ends ----------------------------------------->  CLOSED "died"
      <---- CLOSED: rank, why, text; to all ranks ----------------------  PeerError here, at this and each later call
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

GREETING, HELLO, REFUSED, WELCOME, JOINED = b"H", b"h", b"R", b"K", b"J"
VOTE, PAIR, SLOW, DONE, FAILED = b"V", b"P", b"S", b"D", b"F"
GO, MISMATCH, CLOSED, ALIVE, ASK, ANSWER = b"G", b"M", b"E", b".", b"p", b"a"

LEAVE: Final = "leave the block"
"""The text of the vote by which a rank says that it leaves the block of `processes` without an error."""
GOODBYE: Final = "end the world"
"""The text of the vote by which a rank says that its engine is closed. It is the last one."""

PROTOCOL: Final = "xdevice control 1 "
"""The text before the nonce in a greeting: a sender of any other text is not a hub."""
MOST: Final = 64 * 2**20
"""The most bytes that a frame may have."""
MOST_BEFORE: Final = 4096
"""The most bytes that a frame may have before the other side has proved that it knows the token."""
_EXPLAINED: Final = 1.5
"""How many seconds `raise_reason` waits, after an engine's error, for the hub to name a failed rank as the reason."""
_LONGEST: Final = 300
"""The most characters of a call that the message of a mismatch repeats."""
_HEAD: Final = struct.Struct("!Ic")
_open: weakref.WeakSet[Conn] = weakref.WeakSet()


# frames


class Conn:
    """One end of a socket connection that never blocks: it buffers outgoing frames until they can be sent, and incoming
    ones until they are complete."""

    def __init__(self, sock: socket.socket, most: int = MOST) -> None:
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            # Nagle's algorithm would hold a small frame back until the last one is acknowledged, which may take 40 ms
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.most = most
        self.out = bytearray()
        self.is_open = True
        self._in = bytearray()
        _open.add(self)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: bytes, text: str = "") -> None:
        """Sends a frame; bytes that the socket does not take now are kept for `flush`. Never raises: a lost connection
        shows in `frames`."""
        body = text.encode("utf-8", "backslashreplace")
        frame = _HEAD.pack(len(body), kind) + body
        if self.out:
            self.out += frame
            return
        try:
            sent = self.sock.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        # the connection is lost, which `frames` will report
        except OSError:
            return
        if sent < len(frame):
            self.out += memoryview(frame)[sent:]

    def flush(self) -> None:
        while self.out:
            try:
                sent = self.sock.send(self.out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.out.clear()
                return
            del self.out[:sent]

    def frames(self) -> Iterator[tuple[bytes, str]]:
        """Yields the frames that have arrived completely. Sets `is_open` to False if the other end has closed the
        connection."""
        while True:
            try:
                data = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.is_open = False
                break
            self._in += data
            # fewer bytes than requested: nothing more has arrived, so another call would return nothing
            if len(data) < 65536:
                break
        while len(self._in) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._in)
            # not a frame of this protocol, or an attempt to fill the memory: the connection is given up
            if length > self.most:
                self.is_open = False
                return
            if len(self._in) < _HEAD.size + length:
                return
            body = bytes(self._in[_HEAD.size : _HEAD.size + length])
            del self._in[: _HEAD.size + length]
            yield kind, body.decode("utf-8", "replace")

    def close(self) -> None:
        self.is_open = False
        self.sock.close()

    def finish(self) -> None:
        """Closes the sending direction: the other side reads the last frame, and then the end of the stream."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_open = False

    def is_delivered(self) -> bool:
        """Whether the other machine's system has acknowledged everything sent; it keeps that until the program reads
        it."""
        if self.out:
            return False
        try:
            import fcntl
            import termios

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
    """Closes all connections in a forked child: open in the child, they would hide the parent's death from the other
    ranks."""
    for conn in list(_open):
        conn.close()


class Clock:
    """A clock that does not run while this process is stopped or its machine sleeps. With an ordinary clock, the other
    ranks would seem late afterwards."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self._step = step
        self._last = time.monotonic()

    def tick(self) -> float:
        now = time.monotonic()
        # a longer gap than a step means that this process was stopped, and could not have answered anyone
        self.now += min(now - self._last, self._step)
        self._last = now
        return self.now


def beat_of(timeout: float) -> float:
    """The seconds between two questions of the hub to a rank that others wait for."""
    # eight questions within the timeout, so that a single lost beat never decides
    return min(0.25, timeout / 8)


# a rank's side


class Line:
    """A rank's two connections to the hub, the thread in rank 0 that hears all ranks. Made by `hub.join`. `started`
    counts the collectives that this rank has begun."""

    def __init__(
        self,
        vote: socket.socket,
        pulse: socket.socket,
        host: str,
        timeout: float,
        hub: threading.Thread | None,
    ) -> None:
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
        self._last_frame = 0.0
        self._lock = threading.RLock()
        """Held by the thread that reads the connection: the program's thread, or, while the engine starts, the
        engine's."""
        self._poll = _poller(self._vote)
        self._pulse = Conn(pulse)
        thread = threading.Thread(target=self._answer, name="xdevice pulse", daemon=True)
        self.liveness.own_threads += [thread, *([hub] if hub is not None else [])]
        thread.start()

    def wait_for_all(self, join_timeout: float) -> None:
        """Waits until the hub says that all ranks have joined. Raises `PeerError` if one has not joined in time."""
        # the hub sends no ALIVE before all have joined, so that its silence is no sign of a failure yet
        self._timeout += join_timeout
        self._last_frame = self._clock.tick()
        while not any(kind == JOINED for kind, _ in self._frames(self._beat)):
            pass
        self._timeout -= join_timeout

    # sending

    def vote(self, call: str, payload: str = "") -> list[str]:
        """Tells the hub what this rank is about to call, and waits until all ranks have said the same. Returns the
        payloads of all ranks, by rank, or an empty list if no rank sent one.

        Raises:
            PeerError: a rank has failed or does not arrive. CollectiveMismatchError: a rank calls something else.
        """
        return self._ask(VOTE, call, payload)

    def pair(self, verb: str, other: int, what: str) -> None:
        """Votes with one other rank on a transfer between the two: `verb` is "send" or "recv", `what` the dtypes and
        shapes."""
        self._ask(
            PAIR,
            f"{verb} {'to' if verb == 'send' else 'from'} rank {other}: {what}",
            f"{verb} {other} {what}",
        )

    def exchange(self, text: str) -> list[str]:
        """Sends every rank this rank's text. Returns the texts of all ranks, by rank."""
        return [json.loads(payload) for payload in self.vote("exchange", json.dumps(text))]

    def _ask(self, kind: bytes, call: str, payload: str) -> list[str]:
        """Sends a call to the hub, and waits for its GO. Returns the payloads that came with it; raises if the calls
        differ."""
        # a closed world answers nothing more
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self._last_frame = self._clock.tick()
            self._vote.send(kind, f"{self.started}\n{_in_a_line(call)}\n{payload}")
            while True:
                for kind, text in self._frames(self._beat):
                    if kind == GO:
                        return json.loads(text) if text else []
                    # the vote failed before anything was sent, so the world can be used again
                    if kind == MISMATCH:
                        raise _mismatch(
                            json.loads(text),
                            "nothing was written, and the world is still usable",
                        )

    def fail(self, why: str, text: str) -> None:
        """Tells the hub, and so all ranks, that this rank has failed."""
        if self.failure is None:
            # the process may end right after this: the frame is to be out by then
            self._vote.send(FAILED, json.dumps({"why": why, "text": text}))
            until = time.monotonic() + 1
            while self._vote.out and time.monotonic() < until:
                self._poll(0.05)
                self._vote.flush()

    # receiving

    def _frames(self, seconds: float) -> list[tuple[bytes, str]]:
        """The messages that the hub sends within `seconds`. Raises if one of them closes the world after a failure, or
        if the hub is gone or silent."""
        ready = self._poll(seconds)
        now = self._clock.tick()
        # rank 0 sends ALIVE at each beat, so one beat more than the timeout is silence
        if not ready and now - self._last_frame > self._timeout + self._beat:
            text = (
                f"rank 0 has been silent for {self._timeout:g} s: "
                "its process is stopped, or its machine out of reach"
            )
            raise self.end(PeerError(text, 0, "silent"))
        if not ready:
            return []
        self._last_frame = now
        self._vote.flush()
        frames = list(self._vote.frames())
        for kind, text in frames:
            if kind == CLOSED:
                error = self.end(_error(json.loads(text)))
                if any(kind == MISMATCH for kind, _ in frames):
                    break  # this call raises the mismatch, which says more; the next call raises `error`
                raise error
        # a GO may be the last frame before the hub ends as it should
        if not self._vote.is_open and not any(kind == GO for kind, _ in frames):
            raise self.end(
                PeerError(
                    "rank 0 has died: its process ended without reporting an error", 0, "died"
                )
            )
        return frames

    def end(
        self, error: PeerError | CollectiveMismatchError
    ) -> PeerError | CollectiveMismatchError:
        """Stores the error that every later call raises, unless one is stored already. Returns the stored error."""
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
        """Waits until the engine is done, or raises when a rank fails. `done(seconds)` waits at most that long and
        returns whether the engine is done. `describe_call()` returns the text of the call and the seconds that it may
        take; only slow calls need it."""
        if done(0.1):  # a call that ends soon costs no message and no text
            return
        call, seconds = describe_call()
        begun = self._last_frame = self._clock.tick()
        try:
            while not done(0.1):
                if not self._lock.acquire(blocking=False):
                    # a starting engine is exchanging addresses, which has its own deadline
                    begun = self._clock.tick()
                    continue
                try:
                    now = self._clock.tick()
                    if not self.is_in_engine:
                        self._last_frame = now  # the hub does not know that this rank waits, and sends it no ALIVE
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

    def raise_reason(self) -> None:
        """Called after an engine's error: waits 1.5 s for the hub to name a rank whose failure is the reason, and
        raises that failure. Returns normally if the hub names none."""
        until = time.monotonic() + _EXPLAINED
        while time.monotonic() < until:
            self._last_frame = self._clock.tick()
            self._frames(0.05)

    def _answer(self) -> None:
        """Runs in a thread: answers the hub's questions on the second connection, whether this process still works."""
        poll = _poller(self._pulse)
        with suppress(OSError, ValueError):  # the connection was closed meanwhile
            # sleeps in the system until the hub asks, so that it costs the program nothing
            while self._pulse.is_open:
                poll(None)
                for _ in self._pulse.frames():
                    moved = (
                        self.liveness.has_engine_moved()
                        if self.is_in_engine
                        else self.liveness.has_moved()
                    )
                    moved = moved or self.is_first_busy
                    answer = {
                        "moved": moved,
                        "at": self.liveness.program_line(),
                        "started": self.started,
                    }
                    self._pulse.send(ANSWER, json.dumps(answer))
        self._pulse.close()
        self.lost()

    def close(self) -> None:
        """Closes both connections. Rank 0 first waits until the hub has sent its last frames."""
        self._vote.close()
        if self.hub is not None:
            self.hub.join(3)
        # wakes the thread in `_answer`, which closes the socket itself: closed here, its number could be another file's
        with suppress(OSError):
            self._pulse.sock.shutdown(socket.SHUT_RDWR)
        self._pulse.is_open = False


def _poller(conn: Conn) -> Callable[[float | None], bool]:
    """Returns a function that waits until the connection can be read, or written if frames wait to be sent, and says
    whether it can. The function's argument is the most seconds to wait."""
    if not hasattr(select, "poll"):
        return lambda seconds: bool(
            select.select([conn], [conn] if conn.out else [], [], seconds)[0]
        )
    reading, both = select.poll(), select.poll()
    reading.register(conn, select.POLLIN)
    both.register(conn, select.POLLIN | select.POLLOUT)

    def poll(seconds: float | None) -> bool:
        waiting = both if conn.out else reading
        return bool(waiting.poll(None if seconds is None else seconds * 1000))

    return poll


# texts of errors


def _error(message: dict[str, Any]) -> PeerError | CollectiveMismatchError:
    if "calls" in message:
        return _mismatch(
            message["calls"],
            "they were not voted on (check=False), so that the world is closed",
        )
    return PeerError(message["text"], message["rank"], message["why"])


def _mismatch(calls: dict[str, str], then: str) -> CollectiveMismatchError:
    by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        by_call.setdefault(call, []).append(int(rank))
    texts = [
        f"{_name_ranks(ranks)} {_short(call, list(by_call))}" for call, ranks in by_call.items()
    ]
    return CollectiveMismatchError(
        f"the calls differ: {'; '.join(texts)}; {then}", tuple(calls.values())
    )


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
    first = next(
        (i for i, row in enumerate(zip(*items, strict=False)) if len(set(row)) > 1),
        min(map(len, items)),
    )
    own = call.split("; ")
    return f"{own[0][:100]} ... {'; '.join(own[first : first + 2])[:_LONGEST] if first < len(own) else '(no more)'} ..."


def describe(error: BaseException) -> str:
    """A text for an error, for the other ranks: its type and message, and the file and line that raised it."""
    # the last frame of a traceback is where the error was raised
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = (
        f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    )
    try:
        text = str(error)[:2000]
    except Exception as unsaid:  # an error whose str() fails must be reported nevertheless
        text = f"its text cannot be had: {type(unsaid).__name__}"
    return f"{type(error).__name__}: {text}{place}"


# the handshake: either side proves that it knows the token, without sending it


PROVEN: Final = ("rank", "line", "run", "world", "size", "nonce")
"""The facts that a rank gives about itself in its HELLO, and proves by the token, in this order."""


class Terms(NamedTuple):
    """The values that must be equal in all processes of a world. The hub checks them when a process connects."""

    key: str
    """The secret in the variable XDEVICE_TOKEN; empty if none was set, which is allowed if rank 0 listens on
    loopback."""
    run: str
    world: int
    """The number of this world, from 1: the processes can make several worlds, one after the other."""
    size: int


def nonce() -> str:
    """A random text that the other side has to include in its proof, so that an old proof is worth nothing."""
    return os.urandom(16).hex()


def proof(key: str, *parts: object) -> str:
    """A text that only somebody who knows the key can compute from these parts (an HMAC)."""
    return hmac.new(key.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_proof(claimed: object, key: str, *parts: object) -> bool:
    # compare_digest takes the same time whatever differs, so that nobody can guess a proof digit by digit
    return isinstance(claimed, str) and hmac.compare_digest(
        claimed.encode("utf-8", "replace"), proof(key, *parts).encode()
    )


def parse(text: str) -> dict[str, Any]:
    """The JSON object in the text of a frame; {} if the text is anything else."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def addresses(host: str, port: int, passive: bool = False) -> list[Any]:
    try:
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE if passive else 0
        )
    except OSError as error:
        raise LaunchError(
            f"the host {shown(host)} of rank 0 is not known here: {error}"
        ) from None


def reach(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    """Connects a rank other than 0 to the hub, on whichever of the launch's ports it listens. Tries for `join_timeout`
    seconds, because rank 0 may start later."""
    until = time.monotonic() + join_timeout
    while True:
        for port in place.ports():
            vote = connect(place, port, terms, "vote")
            if vote is None:
                continue
            pulse = connect(place, port, terms, "pulse")
            if pulse is not None:
                # the address by which this machine reaches rank 0 is one by which rank 0's network reaches this machine
                host = LOOPBACK if is_loopback(place.host) else vote.getsockname()[0]
                return Line(vote, pulse, host, timeout, None)
            vote.close()
        if time.monotonic() > until:
            raise PeerError(
                f"rank 0 has not joined within {join_timeout:g} s: no process of this run listens on {place.host}, "
                f"port {', '.join(map(str, place.ports()[:4]))}",
                0,
                "never joined",
            )
        time.sleep(0.05)


def connect(place: Launch, port: int, terms: Terms, line: str) -> socket.socket | None:
    """Opens a connection to this run's hub; returns None if the hub does not listen on this port."""
    try:
        # the first address, which is also the first that rank 0 tries to listen on
        family, kind, protocol, _, address = addresses(place.host, port)[0]
        sock = socket.socket(family, kind, protocol)
    except (LaunchError, OSError):
        return None  # the host's name may become known later: the caller tries again
    sock.settimeout(5)  # another program may listen there, which accepts and never answers
    try:
        sock.connect(address)
        refusal = _greet(sock, place, terms, line)
    except (OSError, ValueError):
        sock.close()
        return None
    if refusal is None:
        return sock
    sock.close()
    if refusal.get("why") == "run":
        return None
    if refusal.get("why") == "token":
        text = f"refuses this process: its {TOKEN} is another one, or its run is"
        if place.port is None and is_loopback(place.host):
            return None  # another run listens at this port, which is a hash: the caller tries the next one
    else:
        text = f"refuses this process: {refusal.get('text')}"
    raise LaunchError(f"rank 0 at {place.host}:{port} {text}")


def _greet(
    sock: socket.socket, place: Launch, terms: Terms, line: str
) -> dict[str, Any] | None:
    """Makes the handshake, in which both sides prove that they belong to this run. Returns None, or the reason why the
    hub refuses this process."""
    kind, text = _read(sock)
    # another program's server, such as one that speaks HTTP, listens at this port
    if kind != GREETING or not text.startswith(PROTOCOL):
        return {"why": "run"}
    own = nonce()
    proven = [place.rank, line, terms.run, terms.world, terms.size, own]
    hello = {
        **dict(zip(PROVEN, proven, strict=True)),
        "proof": proof(terms.key, text.removeprefix(PROTOCOL), *proven),
        "pid": f"{socket.gethostname()}/{os.getpid()}",
    }
    body = json.dumps(hello).encode()
    sock.sendall(_HEAD.pack(len(body), HELLO) + body)
    kind, text = _read(sock)
    if kind == WELCOME:
        return None if is_proof(text, terms.key, own, "hub") else {"why": "token"}
    return parse(text) or {"why": "run"}


def _read(sock: socket.socket) -> tuple[bytes, str]:
    """Reads one frame (a message of the control connection), and no byte of the next."""
    length, kind = _HEAD.unpack(_exactly(sock, _HEAD.size))
    if length > MOST_BEFORE:
        raise ValueError("another protocol")
    return kind, _exactly(sock, length).decode("utf-8", "replace")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
