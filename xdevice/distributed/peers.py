"""What rank 0's hub knows of each rank, and the clock by which it finds a rank late."""

from __future__ import annotations

import time
from typing import NamedTuple

from . import wire
from .wire import Conn


class Terms(NamedTuple):
    """The values that must be equal in all processes of a world. The hub checks them when a process connects."""

    key: str
    """The secret in the variable XDEVICE_TOKEN; empty if none was set, which is allowed if rank 0 listens on
    loopback."""
    run: str
    world: int
    """The number of this world, from 1: the processes can make several worlds, one after the other."""
    size: int


class Pending(NamedTuple):
    """The call of one rank, which waits in the hub for the calls of the other ranks."""

    kind: bytes
    """b"V": a vote of all ranks; b"P": a vote of two ranks; b"S": a call of the engine that takes long."""
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
        self.quiet: float | None = None
        """The time since which nothing has moved in this rank, or in its engine while it is in a call of it; None while
        no other rank waits for it."""
        self.heard = 0.0
        """The time of its last answer to a question of the hub, or of the first question."""
        self.at = ""
        self.pid = ""

    @property
    def has_come(self) -> bool:
        return self.vote is not None and self.pulse is not None


class Stranger:
    """A connection whose other side has not yet proved in the handshake that it belongs to this run."""

    def __init__(self, conn: Conn, until: float) -> None:
        self.conn = conn
        self.until = until
        self.nonce = wire.nonce()


class Clock:
    """A clock that stands still while this process is stopped or its machine sleeps. With an ordinary clock, the other
    ranks would seem late afterwards."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self._step = step
        self._last = time.monotonic()

    def tick(self) -> float:
        now = time.monotonic()
        self.now += min(now - self._last, self._step)
        self._last = now
        return self.now


def beat_of(timeout: float) -> float:
    """The seconds between two questions of the hub to a rank that others wait for."""
    return min(0.25, timeout / 8)
