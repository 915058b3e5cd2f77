"""Rank 0's side of the control connection: the hub, which compares the calls of all ranks, and detects a rank that
fails.

The hub is one thread, which never blocks and never handles tensors. Before a collective, each rank, including rank 0,
sends the hub a string that describes the call. The hub answers when all strings are the same. When a rank has failed,
the hub informs all ranks. While ranks wait for another rank, the hub asks that rank whether its process is still
working. The docstring of `control` contains a drawing of the protocol.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base import forks
from xdevice.errors import LaunchError, listed

from . import control
from .control import (
    ALIVE,
    ASK,
    CLOSED,
    DONE,
    FAILED,
    GO,
    GOODBYE,
    GREETING,
    HELLO,
    JOINED,
    LEAVE,
    MISMATCH,
    PAIR,
    PROVEN,
    REFUSED,
    SLOW,
    TOKEN,
    VOTE,
    WELCOME,
    Clock,
    Conn,
    Line,
    Terms,
    beat_seconds,
)
from .launchers import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .launchers import Launch

_HANDSHAKE: Final = 10.0
"""The number of seconds within which a new connection must complete the handshake."""
_LINGER: Final = 2.0
"""The maximum number of seconds for which the hub's thread continues after the world has ended,
so that all ranks can read its last frames."""
_log: Final = logging.getLogger("xdevice")


_listeners: dict[tuple[str, int | None, str], socket.socket] = {}
"""The sockets on which rank 0 listens, by host, port and run. They stay open until the process ends, because later
worlds of this process use them again."""
_worlds = 0
"""The number of worlds that this process has joined."""


def join_world(launch: Launch, timeout: float, join_timeout: float) -> Line:
    """Opens the control connection of this process, and waits until all ranks have joined. Returns this rank's side of
    the connection. `launch` contains this process's rank and the address of rank 0. `timeout` is the number of seconds
    after which a rank is late, and `join_timeout` is the number of seconds within which all ranks must join.

    Raises:
        PeerError: a rank has not joined in time, or has failed.
        LaunchError: rank 0's address is not loopback and no token is set; the hub refuses this
            process; rank 0 cannot listen, or is not allowed to open enough files.
    """
    global _worlds
    token = (os.environ.get(TOKEN) or "").strip()
    if not token and not is_loopback(launch.host):
        raise LaunchError(
            f"rank 0 listens on {launch.host}, which other machines may reach: set {TOKEN} to the same secret in all "
            "processes, for example to the output of `python -c 'import secrets; print(secrets.token_hex())'`"
        )
    _worlds += 1
    terms = Terms(key=token, run=launch.run, world=_worlds, size=launch.size)
    line = (
        _start_hub(launch, terms, timeout, join_timeout)
        if launch.rank == 0
        else control.connect_to_hub(launch, terms, timeout, join_timeout)
    )
    try:
        line.wait_until_all_joined(join_timeout)
    except BaseException:
        line.close()
        raise
    return line


def _start_hub(launch: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    """Starts the hub in rank 0, and returns rank 0's own `Line` to the hub."""
    # two connections for each rank, and 256 for the program's own files
    _raise_file_limit(2 * launch.size + 256)
    hub = Hub(_listener(launch, terms), terms, timeout, join_timeout)
    (vote, hubs_vote), (pulse, hubs_pulse) = socket.socketpair(), socket.socketpair()
    hub.add_rank_0(hubs_vote, hubs_pulse)
    line = Line(vote, pulse, launch.host, timeout, hub)
    hub.start()
    return line


def _raise_file_limit(count: int) -> None:
    """Ensures that this process may open `count` files, because rank 0 needs two connections
    for each rank: increases the system's soft limit if necessary. Raises `LaunchError` if the
    hard limit is lower than `count`."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= count:
        return
    if hard not in (-1, resource.RLIM_INFINITY) and hard < count:
        raise LaunchError(
            f"rank 0 may open only {hard} files, but needs {count} to connect to all ranks; run `ulimit -Hn {count}`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@forks.in_child
def _after_fork() -> None:
    """Closes the listening sockets in a forked child. If the child outlived rank 0, open
    sockets would keep the port in use."""
    for listener in _listeners.values():
        listener.close()
    _listeners.clear()


def _listener(launch: Launch, terms: Terms) -> socket.socket:
    """Returns the socket on which rank 0 listens. The first world of this process opens the
    socket, and later worlds with the same host, port and run use the same socket."""
    key = launch.host, launch.port, launch.run
    if key not in _listeners:
        _listeners[key] = _bind(launch, terms)
    return _listeners[key]


def _bind(launch: Launch, terms: Terms) -> socket.socket:
    """Opens the socket on which rank 0 listens, at the first free port of `launch.ports()`. Raises `LaunchError` if no
    port is free, or if another process is already rank 0 of this run. A handshake with `terms` detects such a process.
    """
    failure: OSError | None = None
    for port in launch.ports():
        for family, kind, protocol, _, address in control.resolve(
            launch.host, port, passive=True
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                # on Windows this option would let another process listen on the same port
                if os.name == "posix":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                # the queue is long, because all ranks may connect at the same time
                sock.listen(1024)
                return sock
            except OSError as error:
                failure = error
                sock.close()
        # the port is in use. If another rank 0 of this run is listening on it, this call raises
        # `LaunchError`, because that rank 0 refuses a second rank 0
        control.open_connection(launch, port, terms, line="vote")
    raise LaunchError(
        f"rank 0 cannot listen on {launch.host}, port {', '.join(map(str, launch.ports()))}: {failure}; choose a free "
        "port on rank 0's machine with XDEVICE_ADDRESS=host:port"
    )


# the state of the ranks


class Pending(NamedTuple):
    """The call of one rank, which is pending until the other ranks have made the same call."""

    kind: bytes
    """VOTE, PAIR or SLOW."""
    number: int
    """The number of collectives that the rank had begun when it sent the frame. For SLOW, this includes the current
    call. The number is -1 for a slow `send` or `recv`."""
    call: str
    """The string that describes the call. It must be the same on all ranks."""
    payload: str
    """The string that the hub forwards to all ranks. For PAIR, it names the partner and
    describes the tensors. For SLOW, it is the number of seconds that the call may take."""


class Peer:
    """The hub's information about one rank: its two connections, its pending call, and its signs of life."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.vote: Conn | None = None
        self.pulse: Conn | None = None
        self.pending: Pending | None = None
        self.still_since: float | None = None
        """The rank has made no progress since this time. During a slow call, this applies to the rank's engine. None
        while no other rank is waiting for this rank."""
        self.answered_at = 0.0
        """The time of the rank's last answer to a question from the hub; before the first
        answer, the time of the first question."""
        self.program_line = ""
        """The line of the program that was named in the rank's last answer; "" before the first answer."""
        self.pid = ""
        """The host name and the id of the rank's process; "" for rank 0, and before the handshake."""

    @property
    def has_joined(self) -> bool:
        """Whether both connections of the rank exist."""
        return self.vote is not None and self.pulse is not None


class UnprovenConn:
    """A new connection. The process at the other end has not yet proved, in the handshake, that it belongs to this run.
    The process must prove this before the time `until` on the hub's clock.
    """

    def __init__(self, conn: Conn, until: float) -> None:
        self.conn = conn
        self.until = until
        self.nonce = control.new_nonce()


class Calls:
    """The calls that wait in the hub. The calls are compared by counters, because a loop over all ranks would make
    large worlds slow."""

    def __init__(self) -> None:
        self.waiting: dict[int, Peer] = {}
        """The ranks whose calls the hub has not answered yet."""
        self.slow: set[int] = set()
        """The waiting ranks that have reported a slow call of the engine."""
        self.left: Peer | None = None
        """The last rank that has voted LEAVE, to leave the block; None if no rank has."""
        self._slow_calls: Counter[tuple[int, str]] = Counter()
        """Maps the number and the string of each call to the number of slow ranks in this call. Calls of `send` and
        `recv` are not included."""
        self._voting: Counter[int] = Counter()
        """Maps a number of calls to the number of waiting ranks that had begun this many calls before they voted."""

    def add(self, peer: Peer, pending: Pending) -> None:
        """Adds the call of a rank, which replaces the rank's previous call."""
        self.remove(peer)
        peer.pending, peer.still_since = pending, None
        self.waiting[peer.rank] = peer
        if pending.kind == SLOW:
            self.slow.add(peer.rank)
        self._count(pending, change=1)
        if pending.call == LEAVE:
            self.left = peer

    def remove(self, peer: Peer) -> None:
        """Removes the call of a rank after the hub has answered it, or after it has ended
        without an answer."""
        if peer.pending is not None:
            self._count(peer.pending, change=-1)
        peer.pending = None
        self.waiting.pop(peer.rank, None)
        self.slow.discard(peer.rank)

    def _count(self, pending: Pending, change: int) -> None:
        """Adds `change`, which is 1 or -1, to the number of ranks that are in the call
        `pending`. Ignores a `send` or `recv`."""
        # a `send` or `recv` concerns only two ranks, and has no number that is the same on all ranks
        if pending.kind == PAIR or pending.number < 0:
            return
        is_vote = pending.kind == VOTE
        counts: Counter[Any] = self._voting if is_vote else self._slow_calls
        key = pending.number if is_vote else (pending.number, pending.call)
        counts[key] += change
        if not counts[key]:
            del counts[key]

    def has_begun_all(self, started: int) -> bool:
        """Whether a rank that has begun `started` calls has begun every call in which other ranks wait. If so, the
        other ranks wait for the engine, and not for this rank. Returns False if any rank waits for an answer to a vote,
        a `send` or a `recv`, because that answer may depend on this rank. Also returns False if no call waits, because
        then there is no engine to wait for.
        """
        latest = max((number for number, _ in self._slow_calls), default=-1)
        return len(self.slow) == len(self.waiting) > 0 and latest <= started

    def left_while_needed(self, peers: Iterable[Peer]) -> tuple[int, int, str] | None:
        """Returns three values: the rank that left the block last, another rank that waits for it in a call, and the
        string that describes this call. Returns None if no rank has left, or if no call needs the rank that left last.
        """
        left = self.left
        if left is None or left.pending is None:
            return None
        for peer in peers:
            pending = peer.pending
            if pending is None or pending.call == LEAVE:
                continue
            # all ranks had begun this call before that rank left. For a slow `send` or `recv`, whose
            # number is -1, the two ranks of the pair have already agreed on the call
            if pending.kind == SLOW and pending.number <= left.pending.number:
                continue
            # a `send` or `recv` with a third rank does not need the rank that left. The payload, such as "send 3
            # float32 [2]", contains the partner's rank as its second word
            if pending.kind == PAIR and int(pending.payload.split(" ", 2)[1]) != left.rank:
                continue
            return left.rank, peer.rank, pending.call
        return None

    def unvoted_calls_differ(self) -> bool:
        """Whether the ranks make different calls, and at least one of these calls has already reached an engine. This
        is possible only for calls without a vote (`check=False`).
        """
        numbers = {number for number, _ in self._slow_calls}
        # one rank still votes on a call, but another rank has begun this call or a later one without a vote. A rank
        # reports the number of calls that it has begun, which includes a slow call, but not a call that is voted on
        is_vote_late = bool(self._voting and numbers) and min(self._voting) < max(numbers)
        # the slow calls with the same number have different strings
        are_strings_different = len(numbers) < len(self._slow_calls)
        return is_vote_late or are_strings_different


class Hub(threading.Thread):
    """The hub's thread, in rank 0. It is started before the other ranks connect, and ends when
    all ranks have left or a rank has failed.

    Args:
        listener: the socket to which the other ranks connect.
        terms: the values that are equal in all processes of the world. A process must prove that it has these values
            before it can join.
        timeout: the number of seconds after which a rank is late.
        join_timeout: the number of seconds within which all ranks must join.
    """

    def __init__(
        self, listener: socket.socket, terms: Terms, timeout: float, join_timeout: float
    ) -> None:
        super().__init__(name="xdevice control", daemon=True)
        self.terms = terms
        self.timeout = timeout
        self.join_timeout = join_timeout
        self.peers = [Peer(rank) for rank in range(terms.size)]
        self.ended = False
        self._beat = beat_seconds(timeout)
        self._clock = Clock(max_step=4 * self._beat)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._unproven: list[UnprovenConn] = []
        self._joined = False
        self._connected = 0
        """The number of connections of ranks so far: two for each rank when all ranks have joined."""
        self._refused = 0
        """The number of processes that were refused because they did not prove that they have the token."""
        self._calls = Calls()
        self._all_called_since = 0.0
        """Since this time, every rank has been in a call, and at least one rank in a slow call of the engine."""
        self._waiting_since: float | None = None
        """Since this time, at least one rank has been waiting. None if no rank is waiting."""
        self._log_after = timeout
        """The seconds of waiting after which the next warning is logged."""

    def add_rank_0(self, vote: socket.socket, pulse: socket.socket) -> None:
        """Adds rank 0: `vote` and `pulse` are the hub's ends of rank 0's two connections. Rank
        0 needs no handshake, because it is in the hub's own process. This method must be called
        before the thread is started."""
        peer = self.peers[0]
        peer.vote, peer.pulse = Conn(vote), Conn(pulse)
        self._connected += 2
        self._register(peer.vote, lambda: self._read_calls(peer))
        self._register(peer.pulse, lambda: self._read_answers(peer))

    # the loop of the thread, and the connections

    def run(self) -> None:
        """Runs the thread: handles the frames of all ranks until the world ends. An error in
        the hub itself ends the world too, because otherwise all ranks would wait for ever."""
        try:
            self._serve()
        except Exception as error:
            _log.exception("xdevice: the control connection of rank 0 has failed")
            self._end(
                rank=0,
                why="died",
                text=f"rank 0's control connection has failed: {type(error).__name__}: {error}",
            )
        self._linger()

    def _serve(self) -> None:
        """Runs the loop of the thread: waits for frames, reads them, and at each beat checks
        for ranks that are late, silent or missing."""
        begun = self._clock.tick()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        next_beat = 0.0
        # a world with only rank 0, which `add_rank_0` has added, is complete already
        self._tell_if_all_joined()
        while not self.ended:
            # while no rank waits, the thread sleeps until a frame arrives, and uses no processor time
            ready = self._selector.select(self._beat if self._needs_beats() else None)
            now = self._clock.tick()
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    self._flush(key.fileobj)  # type: ignore[arg-type]
                # `key.data` is the function `on_frame` that was passed to `_register`
                if events & selectors.EVENT_READ and not self.ended:
                    key.data()
            self._drop_unproven(now)
            if not self._joined and now - begun > self.join_timeout and not self.ended:
                self._end_never_joined()
            if now >= next_beat and not self.ended:
                next_beat = now + self._beat
                self._watch(now)

    def _needs_beats(self) -> bool:
        """Whether the loop must wake up even if no frame arrives, because a rank or a new connection may be late."""
        return not self._joined or bool(self._calls.waiting) or bool(self._unproven)

    def _register(self, conn: Conn, on_frame: Callable[[], None]) -> None:
        """Registers a connection with the loop, which calls `on_frame` whenever the connection
        can be read."""
        self._selector.register(conn, selectors.EVENT_READ, on_frame)

    def _send(self, conn: Conn | None, kind: bytes, text: str = "") -> None:
        """Sends a frame on a connection, or does nothing if the connection is closed."""
        if conn is None or not conn.is_open:
            return
        conn.send(kind, text)
        # the socket has not accepted all bytes, so the loop also waits until the socket can be written
        if conn.unsent:
            key = self._selector.get_key(conn)
            self._selector.modify(conn, selectors.EVENT_READ | selectors.EVENT_WRITE, key.data)

    def _flush(self, conn: Conn) -> None:
        """Sends as many of the connection's stored bytes as its socket accepts now."""
        conn.flush()
        # all bytes have been sent, so the loop no longer waits until the socket can be written
        if not conn.unsent and conn.is_open:
            self._selector.modify(conn, selectors.EVENT_READ, self._selector.get_key(conn).data)

    def _close(self, conn: Conn) -> None:
        """Closes a connection, and removes it from the loop."""
        # negative if the socket is already closed
        if conn.sock.fileno() >= 0:
            self._selector.unregister(conn)
        conn.close()

    def _linger(self) -> None:
        """Waits until every rank has received its last frame or is gone, for at most two seconds. Then closes all
        connections."""
        until = time.monotonic() + _LINGER
        # the last frames are sent on the connections for votes
        conns = [
            peer.vote for peer in self.peers if peer.vote is not None and peer.vote.is_open
        ]
        # a connection that has sent all its bytes is closed for sending, so that the rank sees the end of the stream
        for vote in conns:
            if not vote.unsent:
                vote.close_for_sending()
        while not all(map(Conn.is_delivered, conns)) and time.monotonic() < until:
            # polls often, because no event reports that a frame has been acknowledged
            for key, events in self._selector.select(0.02):
                conn = key.fileobj
                # the listening socket, or a connection on which no last frame is sent, no longer matters
                if not isinstance(conn, Conn) or conn not in conns:
                    self._selector.unregister(key.fileobj)
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush(conn)
                    if not conn.unsent:
                        conn.close_for_sending()
                # frames that still arrive are discarded; `frames` also notices when the connection ends
                for _ in conn.frames():
                    pass
                if not conn.is_open:
                    conns.remove(conn)
                    self._close(conn)
        for unproven in self._unproven:
            unproven.conn.close()
        for peer in self.peers:
            for remaining in (peer.vote, peer.pulse):
                if remaining is not None:
                    remaining.close()
        self._selector.close()

    # processes that join

    def _accept(self) -> None:
        """Accepts a new connection, and sends a greeting with the nonce that the other side's
        proof must include."""
        try:
            sock, _ = self._listener.accept()
        # the other side has already given up
        except OSError:
            return
        unproven = UnprovenConn(
            Conn(sock, max_frame=control.MAX_FRAME_BEFORE_PROOF),
            until=self._clock.now + _HANDSHAKE,
        )
        self._unproven.append(unproven)
        self._register(unproven.conn, lambda: self._read_hello(unproven))
        self._send(unproven.conn, GREETING, control.PROTOCOL + unproven.nonce)

    def _read_hello(self, unproven: UnprovenConn) -> None:
        """Reads the HELLO frame of a new connection, and admits or refuses the connection.
        Closes a connection whose other side is gone."""
        # only the first frame is read here: after it, the connection is admitted or closed
        for kind, text in unproven.conn.frames():
            self._unproven.remove(unproven)
            hello = control.parse(text) if kind == HELLO else {}
            try:
                refusal = self._refusal(hello, unproven.nonce)
            except (ValueError, RecursionError):
                # the proof is computed from JSON, and a value in the HELLO frame is nested too
                # deeply for JSON: nothing is proved, as with a wrong token
                refusal = {"why": "token"}
            if refusal is not None:
                self._send(unproven.conn, REFUSED, json.dumps(refusal))
                self._close(unproven.conn)
                self._end_if_one_cannot_join(refusal)
                return
            self._admit(unproven.conn, hello)
            return
        if not unproven.conn.is_open:
            self._unproven.remove(unproven)
            self._close(unproven.conn)

    def _end_if_one_cannot_join(self, refusal: dict[str, str]) -> None:
        """Ends the world at once if a process of this run cannot join, because then the world
        will never be complete. `refusal` is the result of `_refusal`. A process without the
        token may belong to somebody else, so it causes only a warning, and the world continues. Does nothing if all
        ranks have already joined."""
        if self._joined:
            return
        # the process has the token, and belongs to this run
        if refusal["why"] == "said":
            missing = next(peer.rank for peer in self.peers if not peer.has_joined)
            self._end(
                missing, "never joined", f"a process of this run cannot join: {refusal['text']}"
            )
        elif refusal["why"] == "token":
            self._refused += 1
            _log.warning(
                "xdevice: rank 0 has refused a process that has a different XDEVICE_TOKEN or belongs to another run"
            )

    def _refusal(self, hello: dict[str, Any], nonce: str) -> dict[str, str] | None:
        """Returns a dict for the frame REFUSED, which states why a process cannot join as the rank in its HELLO frame.
        The item "why" is "token" if the process has not proved that it knows the token, "run" if it belongs to another
        run or world, and otherwise "said". For "said", the item "text" contains the reason. Returns None if the process
        can join. `nonce` is the nonce in the hub's greeting. The proof is checked first, so that a process without the
        token learns nothing else.
        """
        terms = self.terms
        proven = [hello.get(name) for name in PROVEN]
        if not control.is_proof(hello.get("proof"), terms.key, nonce, *proven):
            return {"why": "token"}
        # in the order of `PROVEN`. The last value, the nonce of the process, is needed only for the
        # hub's own proof, in `_admit`
        rank, line, run, world, size, _ = proven
        if run != terms.run or world != terms.world:
            return {"why": "run"}
        if type(rank) is not int or type(size) is not int or line not in ("vote", "pulse"):
            return {
                "why": "said",
                "text": "it sent no valid rank and size; use the same version of xdevice in all processes",
            }
        if size != terms.size or not 0 <= rank < terms.size:
            return {
                "why": "said",
                "text": f"it is rank {rank} of {size}, but this world has {terms.size} processes",
            }
        peer = self.peers[rank]
        # a process that was started by a rank inherits the rank's environment variables, and
        # could replace the rank
        if (peer.vote if line == "vote" else peer.pulse) is not None or (
            peer.pid and peer.pid != str(hello.get("pid"))
        ):
            text = f"another process already has rank {rank}; each process, even a child of a rank, needs its own rank"
            return {"why": "said", "text": text}
        return None

    def _admit(self, conn: Conn, hello: dict[str, Any]) -> None:
        """Stores a new connection as one of the two connections of its rank, and sends the rank a proof that this is
        the hub of its run."""
        peer = self.peers[hello["rank"]]
        # long frames are accepted only from now on, because a process that does not belong to
        # this run could fill the memory with long frames
        conn.max_frame = control.MAX_FRAME
        peer.pid = str(hello.get("pid"))
        if hello["line"] == "vote":
            peer.vote = conn
            on_frame = lambda: self._read_calls(peer)  # noqa: E731
        else:
            peer.pulse = conn
            on_frame = lambda: self._read_answers(peer)  # noqa: E731
        self._connected += 1
        self._selector.modify(conn, selectors.EVENT_READ, on_frame)
        self._send(conn, WELCOME, control.proof(self.terms.key, hello["nonce"], "hub"))
        self._tell_if_all_joined()

    def _tell_if_all_joined(self) -> None:
        """Sends JOINED to all ranks, only once, when both connections of every rank exist."""
        if self._joined or self._connected < 2 * len(self.peers):
            return
        self._joined = True
        for peer in self.peers:
            self._send(peer.vote, JOINED)

    def _drop_unproven(self, now: float) -> None:
        """Closes the connections that have not completed the handshake in time."""
        for unproven in [unproven for unproven in self._unproven if unproven.until < now]:
            self._unproven.remove(unproven)
            self._close(unproven.conn)

    def _end_never_joined(self) -> None:
        """Ends the world because ranks are missing after `join_timeout` seconds, and names these ranks."""
        missing = [peer.rank for peer in self.peers if not peer.has_joined]
        named = (
            f"rank {missing[0]} has"
            if len(missing) == 1
            else f"ranks {listed(missing, limit=8)} have"
        )
        self._end(
            missing[0],
            "never joined",
            f"{named} not joined within {self.join_timeout:g} s; check that each process was started and can reach "
            f"rank 0"
            + (
                f"; refused connections with a different XDEVICE_TOKEN: {self._refused}"
                if self._refused
                else ""
            ),
        )

    # calls, and answers about signs of life

    def _read_calls(self, peer: Peer) -> None:
        """Reads the frames of a rank from its "vote" connection: the rank's calls, the end of a
        slow call, or the rank's failure. Ends the world if the connection has ended."""
        # while the ranks join, a rank may have only its other connection
        if peer.vote is None:
            return
        for kind, text in peer.vote.frames():
            if self.ended:
                return
            if kind == FAILED:
                failure = control.parse(text)
                self._end(peer.rank, str(failure.get("why")), str(failure.get("text")))
            # the rank has finished a slow call of the engine by itself, so the hub need not answer
            elif kind == DONE:
                self._calls.remove(peer)
            else:
                # only two splits, because the payload may contain line breaks, but the call cannot
                number, call, payload = text.split("\n", 2)
                self._calls.add(peer, Pending(kind, int(number), call, payload))
                self._react_to_call(peer)
        if not peer.vote.is_open:
            self._end_died(peer)

    def _read_answers(self, peer: Peer) -> None:
        """Reads a rank's answers from its "pulse" connection, and records when the rank last answered and last made
        progress, and at which line its program is. Ends the world if the connection has ended."""
        if peer.pulse is None:
            return
        for _, text in peer.pulse.frames():
            answer = control.parse(text)
            peer.answered_at, peer.program_line = self._clock.now, str(answer.get("at", ""))
            # if this rank has begun every call in which other ranks wait, these ranks wait for
            # the engine, and not for this rank. This does not apply to a rank that is in a call
            # itself, because its "moved" tells whether its engine is working
            if answer.get("moved") or (
                not peer.pending and self._calls.has_begun_all(answer.get("started", 0))
            ):
                peer.still_since = self._clock.now
        if not peer.pulse.is_open and not self.ended:
            # a frame on the rank's other connection may contain the reason. `_close_world` keeps the first reason, so
            # `_end_died` then does nothing
            self._read_calls(peer)
            self._end_died(peer)

    def _react_to_call(self, caller: Peer) -> None:
        """Reacts to a new call of the rank `caller`. When all ranks have called, either tells the ranks to continue, or
        reports to the ranks that their calls differ. Ends the world if a call can never be matched. Loops over all
        ranks only after the last call, because otherwise large worlds would be slow.
        """
        pending = caller.pending
        if pending is None:
            return
        # this is checked first, because a rank that has left will never vote on the call of another
        # rank, so the other ranks would wait for ever
        if (conflict := self._calls.left_while_needed(self.peers)) is not None:
            left, other, call = conflict
            self._end(
                left, "left", f"rank {left} has left the block, but rank {other} calls {call}"
            )
            return
        if pending.kind == PAIR:
            self._react_to_pair(caller, pending)
        # without a vote the engines are already working, so the mismatch cannot be undone, and
        # the world must end
        elif self._calls.unvoted_calls_differ():
            self._close_world(
                {"calls": {peer.rank: peer.pending.call for peer in self.peers if peer.pending}}
            )
            return
        # only the last rank's call decides. No rank in a slow call waits for a GO: either there
        # was no vote on that call, or the vote is over
        if len(self._calls.waiting) < len(self.peers) or self._calls.slow:
            return
        calls = {(p.pending.kind, p.pending.call) for p in self.peers if p.pending}
        # if all ranks wait in a `send` or `recv`, and none of these match, no rank could ever
        # continue, even if the strings are equal
        if len(calls) == 1 and pending.kind == VOTE:
            self._send_go(is_last=pending.call == GOODBYE)
        else:
            self._report_mismatch(self.peers)

    def _send_go(self, is_last: bool) -> None:
        """Answers the votes of all ranks with GO. `is_last` is True if the votes were GOODBYE, which ends the world."""
        payloads = [p.pending.payload for p in self.peers if p.pending]
        # most votes have no payload, so JSON is not needed
        text = json.dumps(payloads) if any(payloads) else ""
        for peer in self.peers:
            self._calls.remove(peer)
            self._send(peer.vote, GO, text)
        # all ranks have voted the same, so no rank waits for a rank that has left
        self._calls.left = None
        self.ended = is_last
        self._reset_timers()

    def _react_to_pair(self, caller: Peer, pending: Pending) -> None:
        """Reacts to `pending`, a `send` or `recv` of `caller`. If the other rank of the pair is
        already waiting in the matching call, tells both ranks to continue, or that their
        tensors differ. Otherwise the caller waits."""
        # an example of a payload is "send 3 float32 [2]"
        verb, other, what = pending.payload.split(" ", 2)
        peer = self.peers[int(other)]
        theirs = peer.pending
        if theirs is None or theirs.kind != PAIR:
            return
        their_verb, their_other, their_what = theirs.payload.split(" ", 2)
        # the other rank waits for a third rank, or both ranks send, or both receive: a later
        # call or the timeout decides what happens
        if int(their_other) != caller.rank or their_verb == verb:
            return
        if what == their_what:
            for partner in (caller, peer):
                self._calls.remove(partner)
                self._send(partner.vote, GO)
            self._reset_timers()
        else:
            self._report_mismatch([caller, peer])

    def _report_mismatch(self, peers: Iterable[Peer]) -> None:
        """Answers the vote of each rank in `peers` with MISMATCH and the calls of all ranks in `peers`. The world stays
        open.
        """
        peers = sorted(peers, key=lambda peer: peer.rank)
        calls = {peer.rank: peer.pending.call for peer in peers if peer.pending}
        for peer in peers:
            self._calls.remove(peer)
            self._send(peer.vote, MISMATCH, json.dumps(calls))
        self._reset_timers()

    # ranks that are late or stuck

    def _watch(self, now: float) -> None:
        """Does the work of one beat. Does nothing unless all ranks have joined and at least one rank waits. Tells the
        waiting ranks that rank 0 is alive. Asks each rank that is not waiting, and each rank in a slow call of the
        engine, whether its process is working. Ends the world if one of these ranks has been late or silent for
        `timeout` seconds, or if all ranks are in a call and the engine makes no progress. Logs a warning after a long
        wait. `now` is the time on the hub's clock.
        """
        waiting = list(self._calls.waiting.values())
        if not waiting or not self._joined:
            return
        for peer in waiting:
            self._send(peer.vote, ALIVE)
        if self._waiting_since is None:
            self._waiting_since, self._log_after = now, self.timeout
        absent = [peer for peer in self.peers if not peer.pending]
        in_engine = [self.peers[rank] for rank in sorted(self._calls.slow)]
        if absent or not in_engine:
            self._all_called_since = now
        for peer in absent + in_engine:
            # the time is measured from the moment at which another rank begins to wait, and not
            # from this rank's last vote
            if peer.still_since is None:
                peer.still_since = peer.answered_at = now
            # a rank that is in a call of the engine is not considered late by itself:
            # `_end_if_stuck` considers all such ranks together
            is_late = not peer.pending and now - peer.still_since > self.timeout
            # both times are measured from the last sign of life, so a rank that works for hours
            # is never late
            if is_late or now - peer.answered_at > self.timeout:
                self._end_late(peer, [other for other in waiting if other is not peer], now)
                return
            self._send(peer.pulse, ASK)
        # only if no rank is absent, because otherwise the engine waits for the absent rank,
        # which was checked above
        if in_engine and not absent and self._end_if_stuck(now, in_engine):
            return
        if now - self._waiting_since > self._log_after and absent:
            # the next warning comes when the wait is twice as long. It names one waiting rank, and at
            # most four of the ranks for which it waits
            self._log_after *= 2
            places = "; ".join(
                f"rank {peer.rank} is at {peer.program_line or 'an unknown line'}"
                for peer in absent[:4]
            )
            _log.warning(
                "xdevice: rank %d has waited for %d s in %s: %s",
                waiting[0].rank,
                now - self._waiting_since,
                waiting[0].pending.call if waiting[0].pending else "",
                places,
            )

    def _end_if_stuck(self, now: float, in_engine: list[Peer]) -> bool:
        """Ends the world if the engine has made no progress on any rank for as long as the whole call may take. Returns
        whether the world was ended. All ranks must be in a call; `in_engine` contains the ranks that are in a slow call
        of the engine. `now` is the time on the hub's clock.
        """
        # the error names the lowest of these ranks and its call
        first = in_engine[0]
        since = max(
            [
                self._all_called_since,
                *(peer.still_since for peer in in_engine if peer.still_since is not None),
            ]
        )
        # the payload of a slow call is the number of seconds that the call may take
        if first.pending is None or now - since < float(first.pending.payload):
            return False
        self._end(
            first.rank,
            "late",
            f"the engine has not finished {first.pending.call}, and has made no progress for {now - since:.0f} s on "
            f"any rank; rank {first.rank} is at {first.program_line}",
        )
        return True

    def _reset_timers(self) -> None:
        """Stops the wait timers of all ranks after the hub has answered some ranks. `_watch` restarts the timers at the
        next beat if a rank still waits."""
        self._waiting_since = None
        for peer in self.peers:
            peer.still_since = None

    def _end_late(self, peer: Peer, waiting: list[Peer], now: float) -> None:
        """Ends the world because of the rank `peer`. The ranks in `waiting` wait for this rank. The rank is "late" if
        its process still answers, and otherwise "silent". `now` is the time on the hub's clock.
        """
        # the message contains the call of one waiting rank and, if several ranks wait, their number
        caller = waiting[0] if waiting else peer
        calls = f"rank {caller.rank} calls {caller.pending.call}" if caller.pending else ""
        others = f"; in all, {len(waiting)} ranks are waiting" if len(waiting) > 1 else ""
        silent = now - peer.answered_at
        # the rank's process has answered within the last four beats, so only its program is stuck
        if silent <= 4 * self._beat:
            text = f"rank {peer.rank} has not arrived within {self.timeout:g} s and makes no progress: it is at"
            self._end(peer.rank, "late", f"{text} {peer.program_line}; {calls}{others}")
        else:
            text = f"rank {peer.rank} has been silent for {silent:.1f} s: its process is stopped or holds Python's"
            self._end(
                peer.rank,
                "silent",
                f"{text} lock, or its machine cannot be reached; {calls}{others}",
            )

    # ending the world

    def _end_died(self, peer: Peer) -> None:
        """Ends the world because a connection to the rank `peer` has ended."""
        self._end(
            peer.rank,
            "died",
            f"rank {peer.rank} has died: its process ended without reporting an error",
        )

    def _end(self, rank: int, why: str, text: str) -> None:
        """Ends the world because of `rank`: all ranks raise a `PeerError` with this rank, the
        reason `why` and the message `text`."""
        self._close_world({"rank": rank, "why": why, "text": text})

    def _close_world(self, reason: dict[str, Any]) -> None:
        """Ends the world, unless it has already ended: sends the reason to all ranks, and stops the loop. `reason` has
        the keys "rank", "why" and "text". If the ranks have made different calls without a vote, `reason` has only the
        key "calls", which contains the string of each rank's call.
        """
        # only the first reason is reported, because later failures are caused by the first
        if self.ended:
            return
        self.ended = True
        for peer in self.peers:
            self._send(peer.vote, CLOSED, json.dumps(reason))
