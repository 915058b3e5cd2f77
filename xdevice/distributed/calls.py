"""The calls of the ranks that the hub has not answered yet, and which of them can never be matched."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .peers import Peer, Pending

LEAVE: Final = "leave the block"
"""The text of the call by which a rank says that it leaves the block of `processes` without an error."""


class Calls:
    """The calls that wait in the hub. Most are compared by counts, so that large worlds stay fast."""

    def __init__(self) -> None:
        self.waiting: dict[int, Peer] = {}
        """The ranks whose call the hub has not answered yet."""
        self.slow: set[int] = set()
        """Those of the waiting ranks that have reported a call of the engine that takes long."""
        self.left: Peer | None = None
        self._unvoted: Counter[tuple[int, str]] = Counter()
        """How many of them are in each numbered call, by its number and text."""
        self._voting: Counter[int] = Counter()
        """How many ranks wait in a vote, by the number of the call."""

    def add(self, peer: Peer, pending: Pending) -> None:
        self.settle(peer)
        peer.pending, peer.quiet = pending, None
        self.waiting[peer.rank] = peer
        if pending.kind == b"S":
            self.slow.add(peer.rank)
        self._count(pending, 1)
        if pending.call == LEAVE:
            self.left = peer

    def settle(self, peer: Peer) -> None:
        """Forgets the call of a rank, which has been answered, or has ended by itself."""
        if peer.pending is not None:
            self._count(peer.pending, -1)
        peer.pending = None
        self.waiting.pop(peer.rank, None)
        self.slow.discard(peer.rank)

    def _count(self, pending: Pending, change: int) -> None:
        if pending.kind == b"P" or pending.number < 0:  # a matter of two ranks only
            return
        is_vote = pending.kind == b"V"
        counts: Counter[Any] = self._voting if is_vote else self._unvoted
        key = pending.number if is_vote else (pending.number, pending.call)
        counts[key] += change
        if not counts[key]:
            del counts[key]

    def are_past(self, started: int) -> bool:
        """Whether a rank that has begun so many calls has begun all those in which others are, so that they do not wait
        for it."""
        latest = max((number for number, _ in self._unvoted), default=-1)
        return len(self.slow) == len(self.waiting) > 0 and latest <= started

    def left_alone(self, peers: Iterable[Peer]) -> tuple[int, int, str] | None:
        """The rank that has left the block, and a rank with its call that needs it; None if there are none."""
        left = self.left
        if left is None or left.pending is None:
            return None
        for peer in peers:
            pending = peer.pending
            if pending is None or pending.call == LEAVE:
                continue
            if pending.kind == b"S" and pending.number <= left.pending.number:
                continue  # this call began on all ranks before the one left
            if pending.kind == b"P" and int(pending.payload.split(" ", 2)[1]) != left.rank:
                continue
            return left.rank, peer.rank, pending.call
        return None

    def differ_unvoted(self) -> bool:
        """Whether a rank is in a call of the engine on which there was no vote (`check=False`), and another rank makes
        a different call."""
        numbers = {number for number, _ in self._unvoted}
        is_behind = bool(self._voting and numbers) and min(self._voting) < max(numbers)
        return is_behind or len(numbers) < len(self._unvoted)
