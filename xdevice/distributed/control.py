"""A rank's side of the control connection: joining, voting, waiting for the engine, and hearing of failures.

Every rank has two connections to rank 0's `hub`; rank 0's own are socket pairs. On the first, the program says what it
is about to call, and waits for the answer. On the second, a thread answers the hub's question whether this process
still works.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import CollectiveMismatchError, LaunchError, PeerError, shown

from . import wire
from .hub import Hub
from .launchers import LOOPBACK, is_loopback
from .peers import Clock, Terms, beat_of
from .signs import Signs
from .wire import Conn

if TYPE_CHECKING:
    from collections.abc import Callable

    from .launchers import Launch

TOKEN: Final = "XDEVICE_TOKEN"
SOCKET: Final = "XDEVICE_SOCKET"
"""The variable with the number of a listening socket that rank 0 inherits from the process that started it."""

_EXPLAINED: Final = 1.5
"""How many seconds `raise_reason` waits, after an engine's error, for the hub to name a failed rank as the reason."""
_listeners: dict[tuple[str, int | None, str], socket.socket] = {}
"""The sockets that rank 0 listens on. They are kept until the process ends, because the next world of this process
uses them too."""
_worlds = 0


class Line:
    """A rank's two connections to the hub, the thread in rank 0 that hears all ranks. Made by `join`. `started` counts
    the collectives that this rank has begun."""

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
        self.signs = Signs()
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
        self.signs.ours += [thread, *([hub] if hub is not None else [])]
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
                    moved = self.signs.has_engine_moved() if self.is_in_engine else self.signs.has_moved()
                    moved = moved or self.is_first_busy
                    told = {"moved": moved, "at": self.signs.at(), "started": self.started}
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


def _short(call: str, calls: list[str], most: int = 300) -> str:
    """The text of a call; a long one is cut to its beginning and the first item that differs from the other calls."""
    if len(call) <= most:
        return call
    items = [one.split("; ") for one in calls]
    first = next((i for i, row in enumerate(zip(*items, strict=False)) if len(set(row)) > 1), min(map(len, items)))
    own = call.split("; ")
    return f"{own[0][:100]} ... {'; '.join(own[first : first + 2])[:most] if first < len(own) else '(no more)'} ..."


# joining


def join(place: Launch, timeout: float, join_timeout: float) -> Line:
    """Opens the control connection of this process, and waits until all ranks have joined.

    Raises:
        PeerError: a process has not joined in time. LaunchError: rank 0's address is not loopback and no token is set,
            or the hub refuses this process.
    """
    global _worlds
    token = (os.environ.get(TOKEN) or "").strip()
    if not token and not is_loopback(place.host):
        raise LaunchError(
            f"rank 0 is on {place.host}, beyond this machine: set {TOKEN} to a secret, the same for all processes, for "
            "instance of python -c 'import secrets; print(secrets.token_hex())'"
        )
    _worlds += 1
    terms = Terms(token, place.run, _worlds, place.size)
    line = (
        _serve(place, terms, timeout, join_timeout) if place.rank == 0 else _reach(place, terms, timeout, join_timeout)
    )
    try:
        line.wait_for_all(join_timeout)
    except BaseException:
        line.close()
        raise
    return line


def _serve(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    _allow_files(2 * place.size + 256)
    hub = Hub(_listener(place, terms), terms, timeout, join_timeout)
    (vote, hubs_vote), (pulse, hubs_pulse) = socket.socketpair(), socket.socketpair()
    hub.attach(0, hubs_vote, hubs_pulse)
    line = Line(vote, pulse, place.host, timeout, hub)
    hub.start()
    return line


def _allow_files(count: int) -> None:
    """Raises this process's limit of open files to `count`, because rank 0 needs two connections for each rank."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= count:
        return
    if hard not in (-1, resource.RLIM_INFINITY) and hard < count:
        raise LaunchError(f"rank 0 may open {hard} files here, and needs {count} to hear of all: ulimit -Hn {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _after_fork() -> None:
    """Closes the listening sockets in a forked child: they would keep the port in use if the child outlived rank 0."""
    for listener in _listeners.values():
        listener.close()
    _listeners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _listener(place: Launch, terms: Terms) -> socket.socket:
    key = place.host, place.port, place.run
    if key not in _listeners:
        _listeners[key] = _inherit() or _bind(place, terms)
    return _listeners[key]


def _inherit() -> socket.socket | None:
    number = os.environ.pop(SOCKET, "")
    if not number.isdigit():
        return None
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    sock.listen(1024)
    return sock


def _bind(place: Launch, terms: Terms) -> socket.socket:
    refused: OSError | None = None
    for port in place.ports():
        for family, kind, protocol, _, address in _addresses(place.host, port, passive=True):
            sock = socket.socket(family, kind, protocol)
            try:
                if os.name == "posix":  # on Windows the option would let another process listen on the same port
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                sock.listen(1024)
                return sock
            except OSError as error:
                refused = error
                sock.close()
        _connect(place, port, terms, "vote")  # raises if another rank 0 of this run listens on the port
    raise LaunchError(
        f"rank 0 cannot listen on {place.host}, port {', '.join(map(str, place.ports()))}: {refused}; name a free port "
        "of its machine by XDEVICE_ADDRESS=host:port"
    )


def _addresses(host: str, port: int, passive: bool = False) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE if passive else 0)
    except OSError as error:
        raise LaunchError(f"the host {shown(host)} of rank 0 is not known here: {error}") from None


def _reach(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    until = time.monotonic() + join_timeout
    while True:
        for port in place.ports():
            vote = _connect(place, port, terms, "vote")
            if vote is None:
                continue
            pulse = _connect(place, port, terms, "pulse")
            if pulse is not None:
                host = LOOPBACK if is_loopback(place.host) else vote.getsockname()[0]
                return Line(vote, pulse, host, timeout, None)
            vote.close()
        if time.monotonic() > until:
            raise PeerError(
                f"rank 0 has not joined within {join_timeout:g} s: nobody of this run listens on {place.host}, port "
                f"{', '.join(map(str, place.ports()[:4]))}",
                0,
                "never joined",
            )
        time.sleep(0.05)


def _connect(place: Launch, port: int, terms: Terms, line: str) -> socket.socket | None:
    """Opens a connection to this run's hub; returns None if the hub does not listen on this port."""
    try:
        family, kind, protocol, _, address = _addresses(place.host, port)[0]
        sock = socket.socket(family, kind, protocol)
    except (LaunchError, OSError):
        return None  # the host's name may become known later: the caller tries again
    sock.settimeout(5)
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
            return None  # another run listens at this port
    else:
        text = f"refuses this process: {refusal.get('text')}"
    raise LaunchError(f"rank 0 at {place.host}:{port} {text}")


def _greet(sock: socket.socket, place: Launch, terms: Terms, line: str) -> dict[str, Any] | None:
    """Makes the handshake, in which both sides prove that they belong to this run. Returns None, or the reason why the
    hub refuses this process."""
    kind, text = _read(sock)
    greeting = wire.GREETING.decode()
    if kind != b"H" or not text.startswith(greeting):
        return {"why": "run"}
    own = wire.nonce()
    told: list[object] = [place.rank, line, terms.run, terms.world, terms.size, own]
    hello = dict(zip(("rank", "line", "run", "world", "size", "nonce"), told, strict=True))
    pid = f"{socket.gethostname()}/{os.getpid()}"
    hello |= {"proof": wire.proof(terms.key, text[len(greeting) :], *told), "pid": pid}
    body = json.dumps(hello).encode()
    sock.sendall(len(body).to_bytes(4, "big") + b"h" + body)
    kind, text = _read(sock)
    if kind == b"K":
        return None if wire.is_proof(text, terms.key, own, "hub") else {"why": "token"}
    return wire.parse(text) or {"why": "run"}


def _read(sock: socket.socket) -> tuple[bytes, str]:
    """Reads one frame (a message of the control connection), and no byte of the next."""
    head = _exactly(sock, 5)
    length = int.from_bytes(head[:4], "big")
    if length > wire.MOST_BEFORE:
        raise ValueError("another protocol")
    return head[4:], _exactly(sock, length).decode("utf-8", "replace")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
