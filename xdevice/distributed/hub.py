"""Rank 0's side of the control connection: the hub compares the calls of all ranks, and notices a rank that fails.

The hub is one thread, which holds no tensor and never blocks. All ranks, rank 0 too, tell it what they are about to
call, and it answers when all have said the same. When a rank has failed, it tells all ranks. While ranks wait for
another rank, the hub asks that one whether its process still works. `control` draws the protocol.
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
    beat_of,
)
from .launchers import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .launchers import Launch

_HANDSHAKE: Final = 10.0
"""Seconds within which a new connection must have completed the handshake."""
_LINGER: Final = 2.0
"""Seconds for which the hub's thread goes on at most after the world has ended, so that all ranks can read its last
frames."""
_log: Final = logging.getLogger("xdevice")


_listeners: dict[tuple[str, int | None, str], socket.socket] = {}
"""The sockets that rank 0 listens on. They are kept until the process ends, because the next world of this process
uses them too."""
_worlds = 0


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
        _serve(place, terms, timeout, join_timeout)
        if place.rank == 0
        else control.reach(place, terms, timeout, join_timeout)
    )
    try:
        line.wait_for_all(join_timeout)
    except BaseException:
        line.close()
        raise
    return line


def _serve(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    # two connections for each rank, and the program's own files
    _allow_files(2 * place.size + 256)
    hub = Hub(_listener(place, terms), terms, timeout, join_timeout)
    (vote, hubs_vote), (pulse, hubs_pulse) = socket.socketpair(), socket.socketpair()
    hub.attach(hubs_vote, hubs_pulse)
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
        raise LaunchError(
            f"rank 0 may open {hard} files here, and needs {count} to hear of all: ulimit -Hn {count}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@forks.in_child
def _after_fork() -> None:
    """Closes the listening sockets in a forked child: they would keep the port in use if the child outlived rank 0."""
    for listener in _listeners.values():
        listener.close()
    _listeners.clear()


def _listener(place: Launch, terms: Terms) -> socket.socket:
    key = place.host, place.port, place.run
    if key not in _listeners:
        _listeners[key] = _bind(place, terms)
    return _listeners[key]


def _bind(place: Launch, terms: Terms) -> socket.socket:
    """Opens the socket that rank 0 listens on, at the first of the launch's ports that is free."""
    refused: OSError | None = None
    for port in place.ports():
        for family, kind, protocol, _, address in control.addresses(
            place.host, port, passive=True
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                # on Windows the option would let another process listen on the same port
                if os.name == "posix":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                # all ranks may connect at once
                sock.listen(1024)
                return sock
            except OSError as error:
                refused = error
                sock.close()
        # raises if another rank 0 of this run listens on the port
        control.connect(place, port, terms, "vote")
    raise LaunchError(
        f"rank 0 cannot listen on {place.host}, port {', '.join(map(str, place.ports()))}: {refused}; name a free port "
        "of its machine by XDEVICE_ADDRESS=host:port"
    )


# the state of the ranks


class Pending(NamedTuple):
    """The call of one rank, which waits in the hub for the calls of the other ranks."""

    kind: bytes
    """VOTE, PAIR or SLOW."""
    number: int
    call: str
    payload: str


class Peer:
    """The state of one rank, as the hub knows it: its two connections, its pending call, and its signs of life."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.vote: Conn | None = None
        self.pulse: Conn | None = None
        self.pending: Pending | None = None
        self.still_since: float | None = None
        """The time since which nothing has moved in this rank, or in its engine while it is in a call of it; None while
        no other rank waits for it."""
        self.answered = 0.0
        """The time of its last answer to a question of the hub, or of the first question."""
        self.at = ""
        self.pid = ""

    @property
    def has_joined(self) -> bool:
        return self.vote is not None and self.pulse is not None


class Stranger:
    """A connection whose other side has not yet proved in the handshake that it belongs to this run."""

    def __init__(self, conn: Conn, until: float) -> None:
        self.conn = conn
        self.until = until
        self.nonce = control.nonce()


class Calls:
    """The calls that wait in the hub. Most are compared by counts, so that large worlds stay fast."""

    def __init__(self) -> None:
        self.waiting: dict[int, Peer] = {}
        """The ranks whose call the hub has not answered yet."""
        self.slow: set[int] = set()
        """Those of the waiting ranks that have reported a call of the engine that takes long."""
        self.left: Peer | None = None
        self._unvoted: Counter[tuple[int, str]] = Counter()
        """How many of the slow ranks are in each call, by its number and text."""
        self._voting: Counter[int] = Counter()
        """How many ranks wait in a vote, by the number of the call."""

    def add(self, peer: Peer, pending: Pending) -> None:
        self.settle(peer)
        peer.pending, peer.still_since = pending, None
        self.waiting[peer.rank] = peer
        if pending.kind == SLOW:
            self.slow.add(peer.rank)
        self._count(pending, 1)
        if pending.call == LEAVE:
            self.left = peer

    def settle(self, peer: Peer) -> None:
        """Forgets the call of a rank, once the hub has answered the call or the call has ended by itself."""
        if peer.pending is not None:
            self._count(peer.pending, -1)
        peer.pending = None
        self.waiting.pop(peer.rank, None)
        self.slow.discard(peer.rank)

    def _count(self, pending: Pending, change: int) -> None:
        """Adds `change` to the number of ranks that are in a call, which tells without a loop whether ranks differ."""
        # a send or recv, voted on or in the engine: it concerns two ranks only, and has no number that all ranks share
        if pending.kind == PAIR or pending.number < 0:
            return
        is_vote = pending.kind == VOTE
        counts: Counter[Any] = self._voting if is_vote else self._unvoted
        key = pending.number if is_vote else (pending.number, pending.call)
        counts[key] += change
        if not counts[key]:
            del counts[key]

    def has_begun_all(self, started: int) -> bool:
        """Whether a rank that has begun so many calls has begun all those in which the other ranks are, so that they do
        not wait for it."""
        latest = max((number for number, _ in self._unvoted), default=-1)
        return len(self.slow) == len(self.waiting) > 0 and latest <= started

    def left_while_needed(self, peers: Iterable[Peer]) -> tuple[int, int, str] | None:
        """The rank that has left the block, and a rank with its call that needs it; None if there are none."""
        left = self.left
        if left is None or left.pending is None:
            return None
        for peer in peers:
            pending = peer.pending
            if pending is None or pending.call == LEAVE:
                continue
            if pending.kind == SLOW and pending.number <= left.pending.number:
                continue  # this call began on all ranks before the one left
            if pending.kind == PAIR and int(pending.payload.split(" ", 2)[1]) != left.rank:
                continue
            return left.rank, peer.rank, pending.call
        return None

    def do_unvoted_differ(self) -> bool:
        """Whether a rank is in a call of the engine on which there was no vote (`check=False`), and another rank makes
        a different call."""
        numbers = {number for number, _ in self._unvoted}
        # a rank votes on a call, and another rank has begun that number with a call that needs no vote, or is past it
        votes_behind = bool(self._voting and numbers) and min(self._voting) < max(numbers)
        has_two_texts_for_a_number = len(numbers) < len(self._unvoted)
        return votes_behind or has_two_texts_for_a_number


class Hub(threading.Thread):
    """The hub's thread, in rank 0. It is started when the ranks connect, and ends when they have left or one has
    failed."""

    def __init__(
        self, listener: socket.socket | None, terms: Terms, timeout: float, join_timeout: float
    ) -> None:
        super().__init__(name="xdevice control", daemon=True)
        self.terms = terms
        self.timeout = timeout
        self.join_timeout = join_timeout
        self.peers = [Peer(rank) for rank in range(terms.size)]
        self.ended = False
        self._beat = beat_of(timeout)
        self._clock = Clock(4 * self._beat)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._strangers: list[Stranger] = []
        self._joined = False
        self._connected = 0
        """How many connections of ranks there are: two for each rank."""
        self._refused = 0
        """How many processes were refused because they did not prove that they know the token."""
        self._calls = Calls()
        self._all_here = 0.0
        """The time since which all ranks are in a call, at least one of them in a slow call of the engine."""
        self._waiting_since: float | None = None
        self._log_after = timeout

    def attach(self, vote: socket.socket, pulse: socket.socket) -> None:
        """Adds rank 0, which is in the hub's own process and needs no handshake. Called before the thread is
        started."""
        peer = self.peers[0]
        peer.vote, peer.pulse = Conn(vote), Conn(pulse)
        self._connected += 2
        self._register(peer.vote, lambda: self._read_calls(peer))
        self._register(peer.pulse, lambda: self._read_answers(peer))

    # the loop

    def run(self) -> None:
        """The thread: serves the ranks until the world ends. An error in the hub itself ends it too, because otherwise
        all ranks would wait for ever."""
        try:
            self._serve()
        except Exception as error:
            _log.exception("xdevice: the control connection of rank 0 has failed")
            self._end(
                0,
                "died",
                f"rank 0's control connection has failed: {type(error).__name__}: {error}",
            )
        self._linger()

    def _serve(self) -> None:
        """The loop: waits for frames, reads them, and at each beat looks for ranks that are late, silent or missing."""
        begun = self._clock.tick()
        if self._listener is not None:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        next_beat = 0.0
        self._tell_if_all_joined()
        while not self.ended:
            # while nobody waits, the thread sleeps until a frame comes, and costs nothing
            ready = self._selector.select(self._beat if self._needs_time() else None)
            now = self._clock.tick()
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    self._flush(key.fileobj)  # type: ignore[arg-type]
                if events & selectors.EVENT_READ and not self.ended:
                    key.data()
            self._drop_strangers(now)
            if not self._joined and now - begun > self.join_timeout and not self.ended:
                self._end_never_joined()
            if now >= next_beat and not self.ended:
                next_beat = now + self._beat
                self._watch(now)

    def _needs_time(self) -> bool:
        return not self._joined or bool(self._calls.waiting) or bool(self._strangers)

    def _register(self, conn: Conn, on_frame: Callable[[], None]) -> None:
        self._selector.register(conn, selectors.EVENT_READ, on_frame)

    def _send(self, conn: Conn | None, kind: bytes, text: str = "") -> None:
        if conn is None or not conn.is_open:
            return
        conn.send(kind, text)
        if conn.out:
            key = self._selector.get_key(conn)
            self._selector.modify(conn, selectors.EVENT_READ | selectors.EVENT_WRITE, key.data)

    def _flush(self, conn: Conn) -> None:
        conn.flush()
        if not conn.out and conn.is_open:
            self._selector.modify(conn, selectors.EVENT_READ, self._selector.get_key(conn).data)

    def _close(self, conn: Conn) -> None:
        if conn.sock.fileno() >= 0:
            self._selector.unregister(conn)
        conn.close()

    def _linger(self) -> None:
        """Waits until every rank has received its last frame or has gone, two seconds at most, and closes all
        connections."""
        until = time.monotonic() + _LINGER
        conns = [
            peer.vote for peer in self.peers if peer.vote is not None and peer.vote.is_open
        ]
        for one in conns:
            if not one.out:
                one.finish()
        while not all(map(Conn.is_delivered, conns)) and time.monotonic() < until:
            # often, because no event tells that a frame has been acknowledged
            for key, events in self._selector.select(0.02):
                conn = key.fileobj
                if not isinstance(conn, Conn) or conn not in conns:
                    self._selector.unregister(key.fileobj)
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush(conn)
                    if not conn.out:
                        conn.finish()
                for _ in conn.frames():
                    pass
                if not conn.is_open:
                    conns.remove(conn)
                    self._close(conn)
        for stranger in self._strangers:
            stranger.conn.close()
        for peer in self.peers:
            for either in (peer.vote, peer.pulse):
                if either is not None:
                    either.close()
        self._selector.close()

    # joining

    def _accept(self) -> None:
        """Takes a new connection, and greets it with the nonce that its proof has to include."""
        if self._listener is None:
            return
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        stranger = Stranger(Conn(sock, control.MOST_BEFORE), self._clock.now + _HANDSHAKE)
        self._strangers.append(stranger)
        self._register(stranger.conn, lambda: self._read_hello(stranger))
        self._send(stranger.conn, GREETING, control.PROTOCOL + stranger.nonce)

    def _read_hello(self, stranger: Stranger) -> None:
        """Reads what a new connection says about itself, and admits or refuses it."""
        for kind, text in stranger.conn.frames():
            self._strangers.remove(stranger)
            hello = control.parse(text) if kind == HELLO else {}
            try:
                refusal = self._refusal(hello, stranger.nonce)
            except (ValueError, RecursionError):
                # the proof covers values as JSON, and one is nested too deeply to be written: nothing is proven, as
                # with a wrong token
                refusal = {"why": "token"}
            if refusal is not None:
                self._send(stranger.conn, REFUSED, json.dumps(refusal))
                self._close(stranger.conn)
                self._end_if_one_cannot_join(refusal)
                return
            self._admit(stranger.conn, hello)
            return
        if not stranger.conn.is_open:
            self._strangers.remove(stranger)
            self._close(stranger.conn)

    def _end_if_one_cannot_join(self, refusal: dict[str, str]) -> None:
        """Ends the world at once if a process of this run cannot join it, because then it will never be complete. A
        process that does not know the token may be a stranger's, so it ends nothing."""
        if self._joined:
            return
        if refusal["why"] == "said":
            missing = next(peer.rank for peer in self.peers if not peer.has_joined)
            self._end(
                missing, "never joined", f"a process of this run cannot join: {refusal['text']}"
            )
        elif refusal["why"] == "token":
            self._refused += 1
            _log.warning(
                "xdevice: rank 0 has refused a process: its XDEVICE_TOKEN is another one, or its run is"
            )

    def _refusal(self, hello: dict[str, Any], nonce: str) -> dict[str, str] | None:
        """Why a process cannot be the rank that it says it is, for REFUSED; None if it can. The proof comes first: a
        stranger learns nothing else."""
        terms = self.terms
        proven = [hello.get(name) for name in PROVEN]
        if not control.is_proof(hello.get("proof"), terms.key, nonce, *proven):
            return {"why": "token"}
        rank, line, run, world, size, _ = proven
        if run != terms.run or world != terms.world:
            return {"why": "run"}
        if type(rank) is not int or type(size) is not int or line not in ("vote", "pulse"):
            return {"why": "said", "text": "it does not identify itself"}
        if size != terms.size or not 0 <= rank < terms.size:
            return {
                "why": "said",
                "text": f"it is rank {rank} of {size}, and here are {terms.size} processes",
            }
        peer = self.peers[rank]
        # a child that a rank starts has the variables of the rank, and would pass for it
        if (peer.vote if line == "vote" else peer.pulse) is not None or (
            peer.pid and peer.pid != str(hello.get("pid"))
        ):
            text = f"another process is rank {rank} already; each needs a rank of its own, also one that a rank starts"
            return {"why": "said", "text": text}
        return None

    def _admit(self, conn: Conn, hello: dict[str, Any]) -> None:
        """Makes a connection one of a rank's two, and proves to it that this is the hub of its run."""
        peer = self.peers[hello["rank"]]
        conn.most = control.MOST  # only now: a stranger could fill the memory
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
        if self._joined or self._connected < 2 * len(self.peers):
            return
        self._joined = True
        for peer in self.peers:
            self._send(peer.vote, JOINED)

    def _drop_strangers(self, now: float) -> None:
        for stranger in [stranger for stranger in self._strangers if stranger.until < now]:
            self._strangers.remove(stranger)
            self._close(stranger.conn)

    def _end_never_joined(self) -> None:
        """Ends the world because ranks are missing after `join_timeout`, and names them."""
        missing = [peer.rank for peer in self.peers if not peer.has_joined]
        named = (
            f"rank {missing[0]} has"
            if len(missing) == 1
            else f"ranks {listed(missing, 8)} have"
        )
        self._end(
            missing[0],
            "never joined",
            f"{named} not joined within {self.join_timeout:g} s; is each process started, and does it reach rank 0?"
            + (
                f" {self._refused} connections were refused, with another XDEVICE_TOKEN"
                if self._refused
                else ""
            ),
        )

    # calls, and answers about signs of life

    def _read_calls(self, peer: Peer) -> None:
        """Reads what a rank has sent on "vote": its calls, the end of a slow one, or its failure."""
        if peer.vote is None:
            return
        for kind, text in peer.vote.frames():
            if self.ended:
                return
            if kind == FAILED:
                failure = control.parse(text)
                self._end(peer.rank, str(failure.get("why")), str(failure.get("text")))
            # the rank has left a slow call of the engine by itself, so the hub owes it no answer
            elif kind == DONE:
                self._calls.settle(peer)
            else:
                # two splits only: the payload may contain line breaks, the call cannot
                number, call, payload = text.split("\n", 2)
                self._calls.add(peer, Pending(kind, int(number), call, payload))
                self._decide(peer)
        if not peer.vote.is_open:
            self._end_died(peer)

    def _read_answers(self, peer: Peer) -> None:
        """Reads a rank's answers on "pulse", and notes when it last worked."""
        if peer.pulse is None:
            return
        for _, text in peer.pulse.frames():
            answer = control.parse(text)
            peer.answered, peer.at = self._clock.now, str(answer.get("at", ""))
            # a rank that has begun every call in which the others wait is not what they wait for: the engine is
            if answer.get("moved") or (
                not peer.pending and self._calls.has_begun_all(answer.get("started", 0))
            ):
                peer.still_since = self._clock.now
        if not peer.pulse.is_open and not self.ended:
            self._read_calls(
                peer
            )  # its other connection may hold the reason why this one was closed
            self._end_died(peer)

    def _decide(self, caller: Peer) -> None:
        """Called after each call of a rank. When all ranks have called, tells them to go on, or that their calls
        differ. Raises an error on all ranks if a call can never be matched. Loops over all ranks only after the last
        call, so that large worlds stay fast."""
        pending = caller.pending
        if pending is None:
            return
        # first, because a rank that has left will never vote, and the others would wait until the timeout
        if (alone := self._calls.left_while_needed(self.peers)) is not None:
            left, other, call = alone
            self._end(
                left, "left", f"rank {left} has left the block, and rank {other} calls {call}"
            )
            return
        if pending.kind == PAIR:
            self._decide_pair(caller, pending)
        # without a vote the engines are at work already, so the mismatch cannot be undone, and the world ends
        elif self._calls.do_unvoted_differ():
            self._close_world(
                {"calls": {peer.rank: peer.pending.call for peer in self.peers if peer.pending}}
            )
            return
        # a slow call was not voted on, or its vote is over: nobody waits for a GO
        if len(self._calls.waiting) < len(self.peers) or self._calls.slow:
            return
        calls = {(p.pending.kind, p.pending.call) for p in self.peers if p.pending}
        if len(calls) == 1 and pending.kind == VOTE:
            self._go(pending.call == GOODBYE)
        else:
            self._report_mismatch(self.peers)

    def _go(self, is_last: bool) -> None:
        payloads = [p.pending.payload for p in self.peers if p.pending]
        # most votes carry no payload, and cost no JSON then
        text = json.dumps(payloads) if any(payloads) else ""
        for peer in self.peers:
            self._calls.settle(peer)
            self._send(peer.vote, GO, text)
        # all ranks have left together, which is no failure
        self._calls.left = None
        self.ended = is_last
        self._reset_waiting()

    def _decide_pair(self, caller: Peer, pending: Pending) -> None:
        """Called for a `send` or `recv`. If the other rank of the pair waits with its part, tells both to go on, or
        that their tensors differ; if not, the caller waits for it."""
        verb, other, what = pending.payload.split(" ", 2)
        peer = self.peers[int(other)]
        theirs = peer.pending
        if theirs is None or theirs.kind != PAIR:
            return
        their_verb, back, their_what = theirs.payload.split(" ", 2)
        # the other rank waits for a third one, or both send: its own partner's call will decide that
        if int(back) != caller.rank or their_verb == verb:
            return
        if what == their_what:
            for one in (caller, peer):
                self._calls.settle(one)
                self._send(one.vote, GO)
            self._reset_waiting()
        else:
            self._report_mismatch([caller, peer])

    def _report_mismatch(self, peers: Iterable[Peer]) -> None:
        peers = sorted(peers, key=lambda peer: peer.rank)
        calls = {peer.rank: peer.pending.call for peer in peers if peer.pending}
        for peer in peers:
            self._calls.settle(peer)
            self._send(peer.vote, MISMATCH, json.dumps(calls))
        self._reset_waiting()

    # ranks that are late or stuck

    def _watch(self, now: float) -> None:
        """Called at each beat. Tells the waiting ranks that rank 0 is alive, asks those that they wait for whether they
        work, and ends the world if one of these has been late or silent for `timeout`."""
        waiting = list(self._calls.waiting.values())
        if not waiting or not self._joined:
            return
        for peer in waiting:  # an empty frame tells them that rank 0 is alive
            self._send(peer.vote, ALIVE)
        if self._waiting_since is None:
            self._waiting_since, self._log_after = now, self.timeout
        absent = [peer for peer in self.peers if not peer.pending]
        in_engine = [self.peers[rank] for rank in sorted(self._calls.slow)]
        if absent or not in_engine:
            self._all_here = now
        for peer in absent + in_engine:
            # the count begins when another rank starts to wait, not when this one last voted
            if peer.still_since is None:
                peer.still_since = peer.answered = now
            # a rank in a call of the engine is not late by itself: `_is_stuck` looks at all of them
            is_late = not peer.pending and now - peer.still_since > self.timeout
            # both are measured from the last sign of life, so that a rank that works for hours is never late
            if is_late or now - peer.answered > self.timeout:
                self._end_late(peer, [one for one in waiting if one is not peer], now)
                return
            self._send(peer.pulse, ASK)
        # only when all have come: otherwise the engine waits for the absent rank, which is judged above
        if in_engine and not absent and self._is_stuck(now, in_engine):
            return
        if now - self._waiting_since > self._log_after and absent:
            self._log_after *= 2  # logged after 1, 2, 4 ... timeouts
            places = "; ".join(
                f"rank {peer.rank} is at {peer.at or 'an unknown line'}" for peer in absent[:4]
            )
            _log.warning(
                "xdevice: rank %d waits for %d s with %s: %s",
                waiting[0].rank,
                now - self._waiting_since,
                waiting[0].pending.call if waiting[0].pending else "",
                places,
            )

    def _is_stuck(self, now: float, in_engine: list[Peer]) -> bool:
        """Raises an error on all ranks, which ends the world, if all have called the engine, and nothing has moved in
        the engine of any of them in the time that the whole call may take. Returns whether it has."""
        first = in_engine[0]
        since = max(
            [
                self._all_here,
                *(peer.still_since for peer in in_engine if peer.still_since is not None),
            ]
        )
        if first.pending is None or now - since < float(first.pending.payload):
            return False
        self._end(
            first.rank,
            "late",
            f"the engine has not done {first.pending.call}, and nothing has moved in it for {now - since:.0f} s on any "
            f"rank; rank {first.rank} is at {first.at}",
        )
        return True

    def _reset_waiting(self) -> None:
        self._waiting_since = None
        for peer in self.peers:
            peer.still_since = None

    def _end_late(self, peer: Peer, waiting: list[Peer], now: float) -> None:
        """Ends the world because of a rank that others wait for: "late" if its process still answers, "silent" if
        not."""
        # one waiting rank is named as an example; the message counts the others
        one = waiting[0] if waiting else peer
        calls = f"rank {one.rank} calls {one.pending.call}" if one.pending else ""
        others = f" and {len(waiting) - 1} more wait" if len(waiting) > 1 else ""
        silent = now - peer.answered
        # its process has answered recently, so only its program is stuck
        if silent <= 4 * self._beat:
            text = f"rank {peer.rank} has not come in {self.timeout:g} s, while nothing moves in it: it is at"
            self._end(peer.rank, "late", f"{text} {peer.at}; {calls}{others}")
        else:
            text = f"rank {peer.rank} has been silent for {silent:.1f} s: its process is stopped, or holds Python's"
            self._end(
                peer.rank,
                "silent",
                f"{text} lock, or its machine is out of reach; {calls}{others}",
            )

    # the end

    def _end_died(self, peer: Peer) -> None:
        self._end(
            peer.rank,
            "died",
            f"rank {peer.rank} has died: its process ended without reporting an error",
        )

    def _end(self, rank: int, why: str, text: str) -> None:
        self._close_world({"rank": rank, "why": why, "text": text})

    def _close_world(self, reason: dict[str, Any]) -> None:
        # only the first reason counts: later failures follow from it
        if self.ended:
            return
        self.ended = True
        for peer in self.peers:
            self._send(peer.vote, CLOSED, json.dumps(reason))
