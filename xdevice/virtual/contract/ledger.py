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
    """The bytes that each virtual GPU has allocated, their peak, and its limit. Methods may be called in any thread.

    Args:
        limits: the bytes that each GPU has; None for no limit.
        error: makes the framework's own error for a lack of memory from a text.
    """

    def __init__(self, limits: Sequence[int | None], error: Callable[[str], Exception]) -> None:
        self._limits = limits
        self._error = error
        self._allocated = [0] * len(limits)
        self._peaks = [0] * len(limits)
        self._lock = forks.renewed(threading.RLock())
        # memory is given back by finalizers, which may interrupt a method anywhere
        self._given_back: deque[tuple[int, int]] = deque()
        self._dropped: deque[Any] = deque()
        self._blocks: dict[Any, tuple[tuple[int, Any], int]] = {}
        """For each tensor, by its key: the index and the address of its memory, and the bytes."""
        self._users: dict[tuple[int, Any], int] = {}

    def take(self, index: int, nbytes: int) -> None:
        """Counts memory that is allocated on a GPU. Raises the framework's error if the GPU has too little."""
        with self._lock:
            self._settle()
            self._set(index, self._allocated[index] + nbytes, nbytes)

    def give_back(self, index: int, nbytes: int) -> None:
        """Counts memory that is free again. Finalizers may call it."""
        self._given_back.append((index, nbytes))

    def hold(self, key: Any, index: int, address: Any, nbytes: int) -> None:
        """Counts the memory of a tensor until `drop(key)`. Tensors at one address share their memory."""
        with self._lock:
            self._settle()
            place = index, address
            if place not in self._users:
                self.take(index, nbytes)
            self._users[place] = self._users.get(place, 0) + 1
            self._blocks[key] = place, nbytes

    def drop(self, key: Any) -> None:
        """Notes that the tensor `key` is gone. Finalizers may call it, also for tensors that are not held."""
        self._dropped.append(key)

    def see(self, index: int, allocated: int) -> None:
        """Notes how many bytes a GPU has allocated, for a framework that knows. Raises as `take` does."""
        with self._lock:
            self._set(index, allocated, allocated - self._allocated[index])

    def memory(self, index: int) -> Memory:
        """Returns what is known of the memory of a GPU."""
        with self._lock:
            self._settle()
            total, used = self._limits[index], self._allocated[index]
            return Memory(
                total, None if total is None else total - used, used, self._peaks[index]
            )

    def reset_peak(self, index: int) -> None:
        """Sets the peak of a GPU to the bytes that are allocated now."""
        with self._lock:
            self._settle()
            self._peaks[index] = self._allocated[index]

    def _set(self, index: int, allocated: int, more: int) -> None:
        limit = self._limits[index]
        if limit is not None and allocated > limit:
            raise self._error(out_of_memory(index, more, limit, self._allocated[index]))
        self._allocated[index] = allocated
        self._peaks[index] = max(self._peaks[index], allocated)

    def _settle(self) -> None:
        while self._dropped:
            self._forget(self._dropped.popleft())
        while self._given_back:
            index, nbytes = self._given_back.popleft()
            self._allocated[index] -= nbytes

    def _forget(self, key: Any) -> None:
        if key not in self._blocks:
            return
        place, nbytes = self._blocks.pop(key)
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.give_back(place[0], nbytes)


def out_of_memory(index: int, more: int, limit: int, used: int) -> str:
    """The text of an error for a lack of memory."""
    return (
        f"out of memory on the virtual gpu:{index}: tried to allocate {more:,} bytes, and of its {limit:,} "
        f"{limit - used:,} are free; XDEVICE_VIRTUAL_GPUS says how many it has"
    )
