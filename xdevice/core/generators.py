"""Which generator random numbers are drawn from: that of the process, of a block of `seed`, or of a task.

docs/reference/random.md has the table.
"""

from __future__ import annotations

import _thread  # importing threading would take a third of the time of `import xdevice`
import os
from contextlib import contextmanager
from contextvars import ContextVar

from xdevice.errors import SettingError, shown

from . import blocks

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

    import numpy as np

VARIABLE: Final = "XDEVICE_SEED"
_TASK, _FORK = 0, 1
"""Why a generator is derived from another one: for a task, or for a forked process."""


class Numbers:
    """A generator of random numbers: made from a seed, or derived from another generator for a task or a forked
    process."""

    def __init__(self, entropy: int, path: tuple[int, ...] = ()) -> None:
        self._entropy = entropy
        self._path = path
        self._lock = _thread.RLock()
        self._tasks = 0
        self._generator: np.random.Generator | None = None
        self.forks = 0

    def draw(self, draw: Callable[[Any], Any]) -> Any:
        # NumPy's generators are not safe for several threads
        with self._lock:
            # made at the first draw, so that `import xdevice` does not import NumPy
            if self._generator is None:
                from numpy.random import Generator, Philox, SeedSequence

                self._generator = Generator(
                    Philox(SeedSequence(self._entropy, spawn_key=self._path))
                )
            return draw(self._generator)

    def for_task(self) -> Numbers:
        with self._lock:
            number, self._tasks = self._tasks, self._tasks + 1
        # the path makes the streams independent, whatever the order of the draws
        return Numbers(self._entropy, (*self._path, _TASK, number))

    def state(self) -> dict[str, Any]:
        """The state on which the next numbers depend, in plain values."""
        with self._lock:
            bits = _plain(self.draw(lambda generator: generator.bit_generator.state))
            return {
                "entropy": self._entropy, "path": self._path, "tasks": self._tasks, "forks": self.forks, "bits": bits,
            }  # fmt: skip

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Numbers:
        numbers = cls(state["entropy"], state["path"])
        numbers._tasks, numbers.forks = state["tasks"], state["forks"]

        def restore(generator: Any) -> None:
            generator.bit_generator.state = state["bits"]

        numbers.draw(restore)
        return numbers

    def for_fork(self) -> Numbers:
        return Numbers(self._entropy, (*self._path, _FORK, self.forks))


def _plain(state: Any) -> Any:
    """The state of a bit generator with lists in place of NumPy's arrays, which `==` does not compare."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


class Place:
    """Holds the generator of the process, of a block or of a task. `seed(n)` puts another generator there."""

    def __init__(self, numbers: Numbers, key: object) -> None:
        self.numbers = numbers
        self.key = key
        self.owner = blocks.owner()


entered: ContextVar[tuple[Place, ...]] = ContextVar("xdevice_random", default=())
_process: dict[str, Place] = {}
"""Under the key "", the place of the process, once it is needed."""


def current_place() -> Place:
    around = entered.get()
    if around:
        return around[-1]
    # `setdefault` is atomic: two threads that come at once get the same place
    return _process.get("") or _process.setdefault("", Place(Numbers(_first_seed()), None))


def branch() -> None:
    """Gives this context (of a task) a generator of its own, derived from the generator that it has now. Each call
    derives a different one."""
    place = current_place()
    entered.set((*entered.get(), Place(place.numbers.for_task(), None)))


@contextmanager
def keep_generator() -> Iterator[None]:
    """A block after which draws come from the same generator as before it, even if `seed(n)` was called inside. What
    was drawn from that generator inside stays drawn."""
    place = current_place()
    before = place.numbers
    try:
        yield
    finally:
        place.numbers = before


def _first_seed() -> int:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        # 128 bits, as NumPy itself takes for a generator without a seed
        return int.from_bytes(os.urandom(16), "little")
    if not (text.isascii() and text.isdigit()):
        raise SettingError(
            f"{VARIABLE} must be an int of 0 or more, not {shown(text)}; set {VARIABLE}=0, or unset it"
        )
    return int(text)


def _reachable() -> tuple[Place, ...]:
    return (*_process.values(), *entered.get())


def _before_fork() -> None:
    for place in _reachable():
        # counted in the parent, so that the next child gets another number
        place.numbers.forks += 1


def _after_fork() -> None:
    """Gives a forked child numbers of its own. Otherwise it would draw the same numbers as its parent and the parent's
    other children."""
    for place in _reachable():
        place.numbers = place.numbers.for_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
