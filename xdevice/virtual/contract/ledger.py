"""Counts the memory of virtual GPUs, for frameworks that do not count it themselves."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from xdevice.base import forks
from xdevice.contract.primitives import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Ledger:
    """Counts the bytes that are allocated on each virtual GPU, keeps their peak, and raises an error at its limit.
    Methods may be called in any thread. A GPU is passed as its index.

    Args:
        limits: the size of each GPU's memory in bytes; None for no limit.
        error: returns the framework's own out-of-memory error with the text that it is called
            with.
    """

    def __init__(self, limits: Sequence[int | None], error: Callable[[str], Exception]) -> None:
        self._limits = limits
        self._error = error
        self._allocated = [0] * len(limits)
        self._peaks = [0] * len(limits)
        # reentrant, because `hold` calls `take`
        self._lock = forks.renewed(threading.RLock())
        # a finalizer may run in the middle of any method, in the thread that has the lock:
        # finalizers only append to these, which is atomic, and `_apply_releases` subtracts later
        self._released: deque[tuple[int, int]] = deque()
        self._dropped: deque[Any] = deque()
        self._blocks: dict[Any, tuple[tuple[int, Any], int]] = {}
        """For each tensor, by its key: the index and the address of its memory, and its size in
        bytes."""
        self._users: dict[tuple[int, Any], int] = {}
        """How many tensors share the memory at an address, by the index of the GPU and the
        address."""

    def take(self, index: int, nbytes: int) -> None:
        """Counts `nbytes` that are allocated on a GPU. Raises the framework's error if fewer
        are free."""
        with self._lock:
            self._apply_releases()
            self._set(index, self._allocated[index] + nbytes, nbytes)

    def give_back(self, index: int, nbytes: int) -> None:
        """Records that `nbytes` on a GPU are free again. Finalizers may call it."""
        self._released.append((index, nbytes))

    def hold(self, key: Any, index: int, address: Any, nbytes: int) -> None:
        """Counts the `nbytes` at `address` on a GPU as the memory of a tensor until `drop(key)`. Tensors at one
        address share their memory, which is counted once. Raises the framework's error if the GPU has too little
        memory."""
        with self._lock:
            # first, because a new tensor may have the key or the address of one that is gone
            self._apply_releases()
            place = index, address
            if place not in self._users:
                self.take(index, nbytes)
            self._users[place] = self._users.get(place, 0) + 1
            self._blocks[key] = place, nbytes

    def drop(self, key: Any) -> None:
        """Records that the tensor `key` no longer exists. Finalizers may call it, even for a tensor that `hold` did
        not count."""
        self._dropped.append(key)

    def set_allocated(self, index: int, allocated: int) -> None:
        """Sets the bytes that are allocated on a GPU now, for an adapter that adds them up
        itself. Raises the framework's error if the memory of the GPU is smaller."""
        with self._lock:
            self._set(index, allocated, allocated - self._allocated[index])

    def memory(self, index: int) -> Memory:
        """Returns the size of a GPU's memory, its free and allocated bytes, and their peak.
        Without a limit, the size and the free bytes are None."""
        with self._lock:
            self._apply_releases()
            total, used = self._limits[index], self._allocated[index]
            return Memory(
                total, None if total is None else total - used, used, self._peaks[index]
            )

    def reset_peak(self, index: int) -> None:
        """Sets the peak of a GPU to the bytes that are allocated now."""
        with self._lock:
            self._apply_releases()
            self._peaks[index] = self._allocated[index]

    def _set(self, index: int, allocated: int, requested: int) -> None:
        """Sets the bytes that are allocated on a GPU, and raises the peak to them. If they
        exceed the limit, it changes nothing, and raises the framework's error, which says that
        `requested` bytes were requested."""
        limit = self._limits[index]
        if limit is not None and allocated > limit:
            raise self._error(out_of_memory(index, requested, limit, self._allocated[index]))
        self._allocated[index] = allocated
        self._peaks[index] = max(self._peaks[index], allocated)

    def _apply_releases(self) -> None:
        """Subtracts the bytes that finalizers have recorded as free. The caller must hold the lock."""
        # before the other queue, because `_remove_tensor` adds to that
        while self._dropped:
            self._remove_tensor(self._dropped.popleft())
        while self._released:
            index, nbytes = self._released.popleft()
            self._allocated[index] -= nbytes

    def _remove_tensor(self, key: Any) -> None:
        """Removes a tensor that no longer exists, and frees its memory if no other tensor shares it. Ignores a key
        that `hold` did not count."""
        if key not in self._blocks:
            return
        place, nbytes = self._blocks.pop(key)
        self._users[place] -= 1
        # a view may have outlived the tensor whose memory it shares
        if not self._users[place]:
            del self._users[place]
            self.give_back(place[0], nbytes)


def out_of_memory(index: int, requested: int, limit: int, used: int) -> str:
    """Returns the text of an out-of-memory error: a GPU with `limit` bytes, of which `used` are
    allocated, cannot allocate `requested`."""
    return (
        f"out of memory on the virtual gpu:{index}: tried to allocate {requested:,} bytes, and {limit - used:,} of its "
        f"{limit:,} bytes are free; XDEVICE_VIRTUAL_GPUS sets its memory"
    )
