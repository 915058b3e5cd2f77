"""Determines the generator from which random numbers are drawn: the generator of the process, of a `seed` block or of a
task.

docs/reference/random.md has a table of the rules.
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
"""The reasons for deriving a generator from another generator: a task, or a forked process."""


class Numbers:
    """A generator of random numbers, created from a seed, or derived from another generator for a task or a forked
    process."""

    def __init__(self, entropy: int, path: tuple[int, ...] = ()) -> None:
        # the seed, or a random number from the system
        self._entropy = entropy
        # how this generator was derived: pairs of _TASK or _FORK and a number; empty if created from a seed
        self._path = path
        # reentrant, because `state` calls `draw` inside the lock
        self._lock = _thread.RLock()
        # how many generators were derived from this one for tasks, and for forks
        self._tasks = 0
        self.forks = 0
        # None until the first draw
        self._generator: np.random.Generator | None = None

    def draw(self, draw: Callable[[Any], Any]) -> Any:
        """Returns `draw(generator)`, where `generator` is the NumPy generator behind this object. Only one thread
        draws at a time."""
        # NumPy's generators are not thread-safe
        with self._lock:
            # created at the first draw, so that `import xdevice` does not import NumPy
            if self._generator is None:
                from numpy.random import Generator, Philox, SeedSequence

                self._generator = Generator(
                    Philox(SeedSequence(self._entropy, spawn_key=self._path))
                )
            return draw(self._generator)

    def for_task(self) -> Numbers:
        """Returns a generator for a task, derived from this one. Each call returns a different generator."""
        with self._lock:
            number, self._tasks = self._tasks, self._tasks + 1
        # the path makes the streams independent, whatever the order of the draws
        return Numbers(self._entropy, (*self._path, _TASK, number))

    def state(self) -> dict[str, Any]:
        """Returns the state on which the next numbers depend, as a dict of plain values, which can be saved. `of_state`
        accepts this dict."""
        with self._lock:
            bits = _plain(self.draw(lambda generator: generator.bit_generator.state))
            return {
                "entropy": self._entropy, "path": self._path, "tasks": self._tasks, "forks": self.forks, "bits": bits,
            }  # fmt: skip

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Numbers:
        """Returns a generator that continues from a state that `state()` returned."""
        numbers = cls(state["entropy"], state["path"])
        numbers._tasks, numbers.forks = state["tasks"], state["forks"]

        def restore(generator: Any) -> None:
            """Sets the state of the NumPy generator to the saved one."""
            generator.bit_generator.state = state["bits"]

        # this call draws no numbers: `draw` creates the NumPy generator, and calls `restore` with it
        numbers.draw(restore)
        return numbers

    def for_fork(self) -> Numbers:
        """Returns a generator for a forked child, derived from this one and from the number of forks so far."""
        return Numbers(self._entropy, (*self._path, _FORK, self.forks))


def _plain(state: Any) -> Any:
    """Returns the state of a bit generator, with each NumPy array replaced by a list, because users compare states with
    `==`, which fails for arrays."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


class NumberSource:
    """The generator that a process, a block or a task uses (`numbers`). `seed(n)` replaces this generator by another
    generator. `key` is the object with which the block was entered; None for a process or task. `owner` is the thread
    and task that created the `NumberSource`."""

    def __init__(self, numbers: Numbers, key: object) -> None:
        self.numbers = numbers
        self.key = key
        self.owner = blocks.thread_and_task()


entered: ContextVar[tuple[NumberSource, ...]] = ContextVar("xdevice_random", default=())
_process: dict[str, NumberSource] = {}
"""The `NumberSource` of the process, under the key "". It is created when it is first needed."""


def current_source() -> NumberSource:
    """Returns the `NumberSource` that supplies the random numbers of this thread or task. It belongs to the innermost
    block or task or, without a block or task, to the process."""
    sources = entered.get()
    if sources:
        return sources[-1]
    # a dict with only one key, because `setdefault` is atomic: two threads that call it at once get the same source
    return _process.get("") or _process.setdefault(
        "", NumberSource(Numbers(_first_seed()), key=None)
    )


def use_derived_generator() -> None:
    """Makes the current context, which belongs to a task, use a new generator, derived from the generator that the task
    uses now. Each call derives a different generator."""
    source = current_source()
    entered.set((*entered.get(), NumberSource(source.numbers.for_task(), key=None)))


@contextmanager
def keep_generator() -> Iterator[None]:
    """Opens a block. After the block, numbers come from the same generator as before, even if `seed(n)` was called
    inside. The generator's state is not restored: the generator continues after the numbers that were drawn from it
    inside."""
    source = current_source()
    before = source.numbers
    try:
        yield
    finally:
        source.numbers = before


def _first_seed() -> int:
    """Returns the seed of the process: the value of XDEVICE_SEED, or a random number if the variable is not set. Raises
    `SettingError` if the value is not a non-negative int."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        # 128 bits, as NumPy itself uses for a generator without a seed
        return int.from_bytes(os.urandom(16), "little")
    # `isdigit` alone also accepts characters such as a superscript 2, which `int` refuses
    if not (text.isascii() and text.isdigit()):
        raise SettingError(
            f"{VARIABLE} must be a non-negative int, not {shown(text)}; set {VARIABLE}=0, or unset it"
        )
    return int(text)


def _sources_of_thread() -> tuple[NumberSource, ...]:
    """Returns the sources from which the current thread can draw. The sources of other threads are irrelevant, because
    these threads do not exist in a forked child."""
    return (*_process.values(), *entered.get())


def _before_fork() -> None:
    """Counts the fork, in the parent, before the child is forked."""
    for source in _sources_of_thread():
        # counted in the parent, so that each child gets a different number
        source.numbers.forks += 1


def _after_fork() -> None:
    """Replaces the generators in a forked child by new ones. Otherwise the child would draw the same numbers as its
    parent and the parent's other children."""
    for source in _sources_of_thread():
        source.numbers = source.numbers.for_fork()


# Windows has no fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
