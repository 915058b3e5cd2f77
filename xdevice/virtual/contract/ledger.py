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
    """Counts the bytes that are allocated on each virtual GPU, and records their peak. Raises an error if a GPU's limit
    would be exceeded. Methods may be called in any thread. The argument `index` is the index of a GPU.

    Args:
        limits: the size of each GPU's memory in bytes; None if the memory is not limited.
        error: a function that accepts a message and returns the framework's own out-of-memory error with this message.
    """

    def __init__(self, limits: Sequence[int | None], error: Callable[[str], Exception]) -> None:
        self._limits = limits
        self._error = error
        self._allocated = [0] * len(limits)
        self._peaks = [0] * len(limits)
        # reentrant, because `hold` calls `take`
        self._lock = forks.unlocked_in_child(threading.RLock())
        # a finalizer may run in the middle of any method, in the thread that holds the lock. Therefore
        # finalizers only append to these two queues, which is atomic, and `_apply_releases` subtracts the
        # bytes later
        self._released: deque[tuple[int, int]] = deque()
        self._dropped: deque[Any] = deque()
        self._blocks: dict[Any, tuple[tuple[int, Any], int]] = {}
        """The index of the GPU, the address and the size in bytes of each tensor's memory, by the tensor's key."""
        self._users: dict[tuple[int, Any], int] = {}
        """The number of tensors that share the memory at an address, by the GPU's index and the address."""

    def take(self, index: int, nbytes: int) -> None:
        """Counts `nbytes` as allocated on a GPU. Raises the framework's error if fewer bytes are free."""
        with self._lock:
            self._apply_releases()
            self._set(index, self._allocated[index] + nbytes, requested=nbytes)

    def give_back(self, index: int, nbytes: int) -> None:
        """Records that `nbytes` on a GPU are free again. Finalizers may call this method."""
        self._released.append((index, nbytes))

    def hold(self, key: Any, index: int, address: Any, nbytes: int) -> None:
        """Counts the `nbytes` at `address` on a GPU as the memory of the tensor `key`, until `drop(key)` is called.
        Tensors at the same address share their memory, which is counted only once. Raises the framework's error if the
        GPU does not have enough free memory."""
        with self._lock:
            # called first, because a new tensor may have the key or the address of a tensor that no longer
            # exists
            self._apply_releases()
            place = index, address
            if place not in self._users:
                self.take(index, nbytes)
            self._users[place] = self._users.get(place, 0) + 1
            self._blocks[key] = place, nbytes

    def drop(self, key: Any) -> None:
        """Records that the tensor `key` no longer exists. Finalizers may call this method, even for a tensor that
        `hold` did not count."""
        self._dropped.append(key)

    def set_allocated(self, index: int, allocated: int) -> None:
        """Sets the number of bytes that are now allocated on a GPU, for an adapter that computes this number itself.
        Raises the framework's error if this number exceeds the size of the GPU's memory."""
        with self._lock:
            self._set(index, allocated, requested=allocated - self._allocated[index])

    def memory(self, index: int) -> Memory:
        """Returns the size of a GPU's memory, its free and allocated bytes, and the peak of the allocated bytes.
        Without a limit, the size and the free bytes are None."""
        with self._lock:
            self._apply_releases()
            total, used = self._limits[index], self._allocated[index]
            return Memory(
                total, None if total is None else total - used, used, self._peaks[index]
            )

    def reset_peak(self, index: int) -> None:
        """Sets the peak of a GPU to the number of bytes that are allocated now."""
        with self._lock:
            self._apply_releases()
            self._peaks[index] = self._allocated[index]

    def _set(self, index: int, allocated: int, requested: int) -> None:
        """Sets the number of bytes that are allocated on a GPU, and updates the peak. If the number exceeds the limit,
        changes nothing, and raises the framework's error for a request of `requested` bytes."""
        limit = self._limits[index]
        if limit is not None and allocated > limit:
            raise self._error(out_of_memory(index, requested, limit, self._allocated[index]))
        self._allocated[index] = allocated
        self._peaks[index] = max(self._peaks[index], allocated)

    def _apply_releases(self) -> None:
        """Subtracts the bytes that finalizers recorded as free. The caller must hold the lock."""
        # processed before the other queue, because `_remove_tensor` adds to the other queue
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
        # the memory may still be in use by a view that has outlived the tensor whose memory it shares
        if not self._users[place]:
            del self._users[place]
            self.give_back(place[0], nbytes)


def out_of_memory(index: int, requested: int, limit: int, used: int) -> str:
    """Returns the message of an out-of-memory error. The GPU with this index has `limit` bytes, of which `used` are
    allocated, so it cannot allocate `requested` bytes."""
    return (
        f"out of memory on the virtual gpu:{index}: tried to allocate {requested:,} bytes, but only "
        f"{limit - used:,} of its {limit:,} bytes are free; XDEVICE_VIRTUAL_GPUS sets the size of its memory"
    )
