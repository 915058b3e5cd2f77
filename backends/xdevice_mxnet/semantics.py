"""Decides when a thread gets NumPy's semantics, a setting that MXNet keeps for each thread and
that is off at first.

The setting replaces the meaning of shapes and the type of arrays (`mx.npx.set_np()` switches it
on):

| | off, as in a legacy program | on | upstream |
|---|---|---|---|
| the shape `()` | an unknown shape, so a 0-d array may end the process | a 0-d array | apache/mxnet#18271 |
| a length of 0 | an unknown length, which is inferred | an array without elements | apache/mxnet#14661, #15096 |
| Gluon's blocks | take `mx.nd` arrays, and refuse `mx.np`'s | the reverse | no upstream issue known |
| a loss recorded with it on | differentiating it may crash the process | works | no upstream issue known |

Who switches it on, once and for good in the calling thread:

| call | what it does where the setting is off |
|---|---|
| loading, moving, copying, waiting, asking for a device | nothing, ever |
| `chosen`: the program selects MXNet by xdevice | switches on |
| `creating`: xdevice makes a tensor | switches on; a legacy program gets a warning instead, once |
| `enter`, `require`: xdevice computes | switches on; a legacy program gets `UnsupportedError` |

- A legacy program has made `mx.nd` arrays, symbols or Gluon blocks without the setting. These
  may not work with it, so `chosen` and `creating` leave the setting off in such a program.
  XDEVICE_MXNET_NP=0 leaves it off in any program.
- If the program itself has called `set_np` or `reset_np`, only arithmetic, which needs the
  setting, calls `set_np` again.
- The setting is never on for only a part of a computation: see the last row of the first table.
- A new thread begins with the setting off, so this module decides for each thread
  (apache/mxnet#14661).

This module changes two things in MXNet. `mxnet.util._set_np_array_logged` becomes an object
that notices calls of `set_np` (`_SetNp`). And MXNet's message that the setting is on is
suppressed (`_announce_shapes`), because logging it configures the root logger, after which the
program's `logging.basicConfig` does nothing (apache/mxnet#16413).
"""

from __future__ import annotations

import gc
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import mxnet as mx

from xdevice.contract.environment import is_set
from xdevice.errors import UnsupportedError

from .library import library
from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "XDEVICE_MXNET_NP"

_log = logging.getLogger("xdevice")
# of the two settings that `set_np` switches on, that of shapes
_is_on = mx.util.is_np_shape


_IS_ALLOWED: Final = is_set(VARIABLE, default=True)
"""Whether xdevice may switch NumPy's semantics on: unless XDEVICE_MXNET_NP=0."""


class _Thread:
    """The decisions of this module about NumPy's semantics in one thread. Each thread has one
    such object."""

    def __init__(self, is_decided: bool = False) -> None:
        self.is_decided = is_decided
        """Whether `creating` has nothing more to do in this thread, because the program or
        xdevice has called `set_np` here, or because xdevice must not call it."""
        self.is_ours = False
        """Whether xdevice has called `set_np` in this thread."""
        self.has_entered = False
        """Whether this thread has asked xdevice for arithmetic before."""


class _Here(threading.local):
    """Holds the `_Thread` of the thread that reads it."""

    def __init__(self) -> None:
        self.thread = _Thread()


class _SetNp:
    """Replaces the flag by which MXNet's `set_np` remembers that it has logged a message.
    `set_np` reads the flag each time, and so this object notices the call. The flag is always
    true, so MXNet logs nothing. `has_logged` is the value of the flag before: whether `set_np`
    was called earlier."""

    def __init__(self, has_logged: bool) -> None:
        self.was_called = has_logged
        _here.thread.is_decided = has_logged

    def __bool__(self) -> bool:
        """Returns True, and notes that `set_np` was called in this thread."""
        self.was_called = _here.thread.is_decided = True
        return True


def _announce_shapes() -> None:
    """Makes MXNet log now, while every record is rejected, that NumPy's shapes are on. MXNet logs this message only
    once. Logged later, it would appear, and configure the root logger."""
    root, silent = logging.getLogger(), logging.NullHandler()
    # `logging.info`, which MXNet calls, configures a root logger without handlers
    root.addHandler(silent)
    root.addFilter(_refuse)
    try:
        with mx.util.np_shape(True):
            pass
    finally:
        root.removeFilter(_refuse)
        root.removeHandler(silent)


def _refuse(record: logging.LogRecord) -> bool:
    """A logging filter that rejects every record."""
    return False


_here: Final = _Here()
_set_np: Final = _SetNp(private.get("mxnet.util._set_np_array_logged", False))
"""Notices whether the program has called `set_np` in this process, even before this module was
imported: such a program is not a legacy program."""
# in an MXNet without the flag, a call of `set_np` is not noticed
if private.has("mxnet.util._set_np_array_logged"):
    setattr(*private.place("mxnet.util._set_np_array_logged"), _set_np)
_announce_shapes()

_lock = threading.Lock()
_legacy: str | None = None
"""The legacy objects (arrays or blocks) that the program had made when `_legacy_things` was
first called, in words; None if it had made none."""
_has_looked = False
"""Whether `_look_for_legacy_things` has been called, so that `_legacy` is final."""
_logged: set[str] = set()
"""The messages that were logged, each of which appears only once."""


# for the adapter


def enter() -> None:
    """Called when the program asks for the kernels of `arithmetic`. Calls `require` the first
    time in each thread. Later, each kernel calls `require` itself if the semantics are off.
    Raises what `require` raises."""
    if not _here.thread.has_entered:
        require()
        _here.thread.has_entered = True


def require() -> None:
    """Switches NumPy's semantics on in this thread, if they are off. Called before xdevice
    computes or records anything.

    Raises:
        UnsupportedError: the program has made legacy arrays or blocks before, or
        XDEVICE_MXNET_NP=0 forbids it.
    """
    if _is_on():
        return
    why_not = _switch()
    if why_not is not None:
        raise UnsupportedError(
            f"arithmetic with xdevice needs NumPy semantics on mxnet, which are off in this thread: {why_not}; call "
            f"mxnet.npx.set_np() first if the program works with them"
        )


def chosen() -> None:
    """Called when the program selects MXNet through xdevice. Switches NumPy's semantics on in this
    thread, unless it is a legacy program, or the program or XDEVICE_MXNET_NP=0 has decided
    otherwise."""
    # `_switch` would refuse a legacy program too, but it sets `is_decided` first, and
    # `creating` would then not log its warning. If the setting is on while `is_decided` is
    # False, it is on for a `with` block of the program only
    if (
        _IS_ALLOWED
        and not _here.thread.is_decided
        and not _is_on()
        and _legacy_things() is None
    ):
        _switch()


def creating() -> None:
    """Called before xdevice makes a tensor. Switches NumPy's semantics on in this thread. In a
    legacy program it logs a warning instead; if the program or XDEVICE_MXNET_NP=0 has decided
    otherwise, it does nothing."""
    if _here.thread.is_decided:
        return
    # on in a `with` block of the program only: `set_np` would have set `is_decided`. The legacy
    # objects are looked for now, before xdevice makes arrays that might be taken for the
    # program's
    if _is_on():
        _legacy_things()
        return
    why_not = _switch()
    if why_not is not None and _IS_ALLOWED:
        _log_once(
            logging.WARNING,
            f"xdevice makes mxnet.np arrays, but does not call mxnet.npx.set_np(), because {why_not}. So Gluon refuses "
            f"these arrays, and operations on 0-d arrays fail; call set_np() first if the program works with it",
        )


def leave() -> None:
    """Switches NumPy's semantics off again in this thread, if `require`, `chosen` or `creating`
    has switched them on."""
    if _here.thread.is_ours and mx.util.is_np_array():
        mx.npx.reset_np()
    _here.thread = _Thread()


def _switch() -> str | None:
    """Switches NumPy's semantics on in this thread, and returns None. If that is not allowed,
    returns the reason."""
    # what follows is the decision for the whole life of the thread
    _here.thread.is_decided = True
    if not _IS_ALLOWED:
        return f"{VARIABLE}=0 keeps them off"
    legacy = _legacy_things()
    if legacy is not None:
        return f"this program has made {legacy} without NumPy semantics, and may fail with them"
    mx.npx.set_np()
    _here.thread.is_ours = True
    _log_once(
        logging.INFO,
        f"xdevice calls mxnet.npx.set_np() in threads that make tensors or compute with it; {VARIABLE}=0 prevents this",
    )
    return None


def _log_once(level: int, text: str) -> None:
    """Logs a message, unless the same text was logged before."""
    if text not in _logged:
        _logged.add(text)
        _log.log(level, text)


# legacy programs


def _legacy_things() -> str | None:
    """Returns, in words, the legacy objects that the program had made when this was first
    called; None if there were none, or if the program has called `set_np`."""
    global _legacy, _has_looked
    if _set_np.was_called:
        return None
    with _lock:  # other threads wait until the first one has looked
        if not _has_looked:
            _legacy, _has_looked = _look_for_legacy_things(), True
    return _legacy


def _look_for_legacy_things() -> str | None:
    """Returns, in words, what the program has made that NumPy's semantics would break: arrays,
    blocks or symbols. None if there is nothing. Looks at every object of the process, which
    takes 30 ms."""
    classes = _classes()
    arrays = [cls for cls in classes if issubclass(cls, mx.nd.NDArray)]
    # `mx.np.ndarray` is a subclass of the legacy class
    if not all(issubclass(cls, mx.np.ndarray) for cls in arrays):
        return "mx.nd arrays"
    for cls in classes:
        if issubclass(cls, mx.gluon.Block):
            return f"a Gluon block, {cls.__name__},"
        # NumPy's symbols are of a subclass that MXNet does not name in its public interface
        if issubclass(cls, mx.sym.Symbol) and not issubclass(
            cls, type(mx.sym.var("x").as_np_ndarray())
        ):
            return "mx.sym symbols"
    # MXNet calls MXNDArrayFree for an array that is gone, and ctypes keeps each function of a
    # library that was called as an attribute: so the attribute exists if there were arrays
    return "arrays" if not arrays and "MXNDArrayFree" in vars(library) else None


def _classes() -> set[type]:
    """Returns the classes of all objects in the process that the garbage collector knows."""
    is_frozen = gc.get_freeze_count() > 0
    # `gc.get_objects` leaves out frozen objects
    if is_frozen:
        gc.unfreeze()
    try:
        return set(map(type, gc.get_objects()))
    finally:
        if is_frozen:
            gc.freeze()


# other threads


class Carried:
    """The semantics of the thread in which this object is made, for a task that runs in another
    thread, inside the block `entered`."""

    def __init__(self) -> None:
        self._is_shape, self._is_array = _is_on(), mx.util.is_np_array()
        self._there = _Thread(_here.thread.is_decided)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block in which the current thread has the carried semantics. At the end of the
        block, the thread has its earlier semantics again."""
        thread, _here.thread = _here.thread, self._there
        before = mx.util.set_np_shape(self._is_shape)
        try:
            with mx.util.np_array(self._is_array):
                yield
        finally:
            mx.util.set_np_shape(before)
            _here.thread = thread

    def rejoin(self) -> None:
        """Called in the thread that made this object, after the task in the other thread. If
        the task has switched NumPy's semantics on, switches them on in this thread too, which
        otherwise could not compute with the task's arrays."""
        if self._there.is_ours and not _is_on():
            _switch()
