"""The hub, rank 0's side of the control connection: it knows which ranks have joined, what each calls, and which ranks
have died or are late.

The hub is one thread, which holds no tensor and never blocks. All ranks, rank 0 too, tell it what they are about to
call, and it answers when all have said the same. When a rank has failed, it tells all ranks. While ranks wait for
another rank, the hub asks that one whether its process still works (`liveness`).
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import listed

from . import wire
from .calls import Calls
from .peers import Clock, Peer, Pending, Stranger, Terms, beat_of
from .wire import Conn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

END: Final = "end the world"
"""The text of the call by which a rank says that its engine is closed. It is the last call of all."""

_HANDSHAKE: Final = 10.0
"""Seconds within which a new connection must have completed the handshake."""
_LINGER: Final = 2.0
"""Seconds for which the hub's thread goes on at most after the world has ended, so that all ranks can read its last
frames."""
_log: Final = logging.getLogger("xdevice")


class Hub(threading.Thread):
    """The hub's thread, in rank 0. It is started when the ranks connect, and ends when they have left or one has
    failed."""

    def __init__(self, listener: socket.socket | None, terms: Terms, timeout: float, join_timeout: float) -> None:
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
        self._said = timeout

    def attach(self, rank: int, vote: socket.socket, pulse: socket.socket) -> None:
        """Adds rank 0, which is in the hub's own process and needs no handshake. Called before the thread is
        started."""
        peer = self.peers[rank]
        peer.vote, peer.pulse = Conn(vote), Conn(pulse)
        self._connected += 2
        self._register(peer.vote, lambda: self._hear(peer))
        self._register(peer.pulse, lambda: self._hear_pulse(peer))

    # the loop

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            _log.exception("xdevice: the control connection of rank 0 has failed")
            self._end(0, "died", f"rank 0's control connection has failed: {type(error).__name__}: {error}")
        self._linger()

    def _serve(self) -> None:
        begun = self._clock.tick()
        if self._listener is not None:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        next_beat = 0.0
        self._see_who_has_come()
        while not self.ended:
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

    def _register(self, conn: Conn, heard: Callable[[], None]) -> None:
        self._selector.register(conn, selectors.EVENT_READ, heard)

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
        conns = [peer.vote for peer in self.peers if peer.vote is not None and peer.vote.is_open]
        for one in conns:
            if not one.out:
                wire.finish(one)
        while not all(map(wire.is_delivered, conns)) and time.monotonic() < until:
            for key, events in self._selector.select(0.02):
                conn = key.fileobj
                if not isinstance(conn, Conn) or conn not in conns:
                    self._selector.unregister(key.fileobj)
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush(conn)
                    if not conn.out:
                        wire.finish(conn)
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

    # who comes

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        stranger = Stranger(Conn(sock, wire.MOST_BEFORE), self._clock.now + _HANDSHAKE)
        self._strangers.append(stranger)
        self._register(stranger.conn, lambda: self._hear_stranger(stranger))
        self._send(stranger.conn, b"H", f"{wire.GREETING.decode()}{stranger.nonce}")

    def _hear_stranger(self, stranger: Stranger) -> None:
        for kind, text in stranger.conn.frames():
            self._strangers.remove(stranger)
            hello = wire.parse(text) if kind == b"h" else {}
            try:
                refusal = self._refusal(hello, stranger.nonce)
            except (ValueError, RecursionError):  # a value too deeply nested to be written as JSON again
                refusal = {"why": "token"}
            if refusal is not None:
                self._send(stranger.conn, b"R", json.dumps(refusal))
                self._close(stranger.conn)
                self._note(refusal)
                return
            self._admit(stranger.conn, hello)
            return
        if not stranger.conn.is_open:
            self._strangers.remove(stranger)
            self._close(stranger.conn)

    def _note(self, refusal: dict[str, str]) -> None:
        """Ends the world at once if a process of this run cannot join it: then all never will. One that does not know
        the token may be a stranger's, so it ends nothing."""
        if self._joined:
            return
        if refusal["why"] == "said":
            missing = next(peer.rank for peer in self.peers if not peer.has_come)
            self._end(missing, "never joined", f"a process of this run cannot join: {refusal['text']}")
        elif refusal["why"] == "token":
            self._refused += 1
            _log.warning("xdevice: rank 0 has refused a process: its XDEVICE_TOKEN is another one, or its run is")

    def _refusal(self, hello: dict[str, Any], nonce: str) -> dict[str, str] | None:
        terms = self.terms
        told = [hello.get(name) for name in ("rank", "line", "run", "world", "size", "nonce")]
        if not wire.is_proof(hello.get("proof"), terms.key, nonce, *told):
            return {"why": "token"}
        rank, line, run, world, size, _ = told
        if run != terms.run or world != terms.world:
            return {"why": "run"}
        if type(rank) is not int or type(size) is not int or line not in ("vote", "pulse"):
            return {"why": "said", "text": "it does not say who it is"}
        if size != terms.size or not 0 <= rank < terms.size:
            return {"why": "said", "text": f"it is rank {rank} of {size}, and here are {terms.size} processes"}
        peer = self.peers[rank]
        if (peer.vote if line == "vote" else peer.pulse) is not None or (
            peer.pid and peer.pid != str(hello.get("pid"))
        ):
            text = f"another process is rank {rank} already; each needs a rank of its own, also one that a rank starts"
            return {"why": "said", "text": text}
        return None

    def _admit(self, conn: Conn, hello: dict[str, Any]) -> None:
        peer = self.peers[hello["rank"]]
        conn.most = wire.MOST
        peer.pid = str(hello.get("pid"))
        if hello["line"] == "vote":
            peer.vote = conn
            heard = lambda: self._hear(peer)  # noqa: E731
        else:
            peer.pulse = conn
            heard = lambda: self._hear_pulse(peer)  # noqa: E731
        self._connected += 1
        self._selector.modify(conn, selectors.EVENT_READ, heard)
        self._send(conn, b"K", wire.proof(self.terms.key, hello["nonce"], "hub"))
        self._see_who_has_come()

    def _see_who_has_come(self) -> None:
        if self._joined or self._connected < 2 * len(self.peers):
            return
        self._joined = True
        for peer in self.peers:
            self._send(peer.vote, b"J")

    def _drop_strangers(self, now: float) -> None:
        for stranger in [stranger for stranger in self._strangers if stranger.until < now]:
            self._strangers.remove(stranger)
            self._close(stranger.conn)

    def _end_never_joined(self) -> None:
        missing = [peer.rank for peer in self.peers if not peer.has_come]
        named = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {listed(missing, 8)} have"
        self._end(
            missing[0],
            "never joined",
            f"{named} not joined within {self.join_timeout:g} s; is each process started, and does it reach rank 0?"
            + (f" {self._refused} connections were refused, with another XDEVICE_TOKEN" if self._refused else ""),
        )

    # what they say

    def _hear(self, peer: Peer) -> None:
        if peer.vote is None:
            return
        for kind, text in peer.vote.frames():
            if self.ended:
                return
            if kind == b"F":
                told = wire.parse(text)
                self._end(peer.rank, str(told.get("why")), str(told.get("text")))
            elif kind == b"D":
                self._calls.settle(peer)
            else:
                number, call, payload = text.split("\n", 2)
                self._calls.add(peer, Pending(kind, int(number), call, payload))
                self._decide(peer)
        if not peer.vote.is_open:
            self._end_died(peer)

    def _hear_pulse(self, peer: Peer) -> None:
        if peer.pulse is None:
            return
        for _, text in peer.pulse.frames():
            told = wire.parse(text)
            peer.heard, peer.at = self._clock.now, str(told.get("at", ""))
            if told.get("moved") or (not peer.pending and self._calls.are_past(told.get("started", 0))):
                peer.quiet = self._clock.now
        if not peer.pulse.is_open and not self.ended:
            self._hear(peer)  # its other connection may hold the reason why this one was closed
            self._end_died(peer)

    def _decide(self, came: Peer) -> None:
        """Called after each call of a rank. When all ranks have called, tells them to go on, or that their calls
        differ. Raises an error on all ranks if a call can never be matched. Loops over all ranks only after the last
        call, so that large worlds stay fast."""
        pending = came.pending
        if pending is None:
            return
        if (alone := self._calls.left_alone(self.peers)) is not None:
            left, other, call = alone
            self._end(left, "left", f"rank {left} has left the block, and rank {other} calls {call}")
            return
        if pending.kind == b"P":
            self._decide_pair(came, pending)
        elif self._calls.differ_unvoted():
            self._tell_end({"calls": {peer.rank: peer.pending.call for peer in self.peers if peer.pending}})
            return
        if len(self._calls.waiting) < len(self.peers) or self._calls.slow:
            return
        calls = {(p.pending.kind, p.pending.call) for p in self.peers if p.pending}
        if len(calls) == 1 and pending.kind == b"V":
            self._go(pending.call == END)
        else:
            self._differ(self.peers)

    def _go(self, is_last: bool) -> None:
        payloads = [p.pending.payload for p in self.peers if p.pending]
        text = json.dumps(payloads) if any(payloads) else ""
        for peer in self.peers:
            self._calls.settle(peer)
            self._send(peer.vote, b"G", text)
        self._calls.left = None
        self.ended = is_last
        self._rest()

    def _decide_pair(self, came: Peer, pending: Pending) -> None:
        verb, other, what = pending.payload.split(" ", 2)
        peer = self.peers[int(other)]
        theirs = peer.pending
        if theirs is None or theirs.kind != b"P":
            return
        their_verb, back, their_what = theirs.payload.split(" ", 2)
        if int(back) != came.rank or their_verb == verb:
            return
        if what == their_what:
            for one in (came, peer):
                self._calls.settle(one)
                self._send(one.vote, b"G")
            self._rest()
        else:
            self._differ([came, peer])

    def _differ(self, peers: Iterable[Peer]) -> None:
        peers = sorted(peers, key=lambda peer: peer.rank)
        calls = {peer.rank: peer.pending.call for peer in peers if peer.pending}
        for peer in peers:
            self._calls.settle(peer)
            self._send(peer.vote, b"M", json.dumps(calls))
        self._rest()

    # who does not come

    def _watch(self, now: float) -> None:
        waiting = list(self._calls.waiting.values())
        if not waiting or not self._joined:
            return
        for peer in waiting:  # an empty frame tells them that rank 0 is alive
            self._send(peer.vote, b".")
        if self._waiting_since is None:
            self._waiting_since, self._said = now, self.timeout
        absent = [peer for peer in self.peers if not peer.pending]
        in_engine = [self.peers[rank] for rank in sorted(self._calls.slow)]
        if absent or not in_engine:
            self._all_here = now
        for peer in absent + in_engine:
            if peer.quiet is None:
                peer.quiet = peer.heard = now
            is_late = not peer.pending and now - peer.quiet > self.timeout
            if is_late or now - peer.heard > self.timeout:
                self._end_late(peer, [one for one in waiting if one is not peer], now)
                return
            self._send(peer.pulse, b"p")
        if in_engine and not absent and self._is_stuck(now, in_engine):
            return
        if now - self._waiting_since > self._said and absent:
            self._said *= 2
            places = "; ".join(f"rank {peer.rank} is at {peer.at or 'an unknown line'}" for peer in absent[:4])
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
        since = max([self._all_here, *(peer.quiet for peer in in_engine if peer.quiet is not None)])
        if first.pending is None or now - since < float(first.pending.payload):
            return False
        self._end(
            first.rank,
            "late",
            f"the engine has not done {first.pending.call}, and nothing has moved in it for {now - since:.0f} s on any "
            f"rank; rank {first.rank} is at {first.at}",
        )
        return True

    def _rest(self) -> None:
        self._waiting_since = None
        for peer in self.peers:
            peer.quiet = None

    def _end_late(self, peer: Peer, waiting: list[Peer], now: float) -> None:
        one = waiting[0] if waiting else peer
        calls = f"rank {one.rank} calls {one.pending.call}" if one.pending else ""
        others = f" and {len(waiting) - 1} more wait" if len(waiting) > 1 else ""
        silent = now - peer.heard
        if silent <= 4 * self._beat:
            text = f"rank {peer.rank} has not come in {self.timeout:g} s, while nothing moves in it: it is at"
            self._end(peer.rank, "late", f"{text} {peer.at}; {calls}{others}")
        else:
            text = f"rank {peer.rank} has been silent for {silent:.1f} s: its process is stopped, or holds Python's"
            self._end(peer.rank, "silent", f"{text} lock, or its machine is out of reach; {calls}{others}")

    # the end

    def _end_died(self, peer: Peer) -> None:
        self._end(peer.rank, "died", f"rank {peer.rank} has died: its process has ended without a word")

    def _end(self, rank: int, why: str, text: str) -> None:
        self._tell_end({"rank": rank, "why": why, "text": text})

    def _tell_end(self, told: dict[str, Any]) -> None:
        if self.ended:
            return
        self.ended = True
        for peer in self.peers:
            self._send(peer.vote, b"E", json.dumps(told))
