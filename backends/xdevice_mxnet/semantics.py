"""NumPy's semantics, which MXNet keeps per thread, off at first: which threads get them, and when.

A thread that chooses MXNet by xdevice, makes tensors by it, or asks for arithmetic, is neutral: it gets them, once and
for good. What this must keep:
- Loading, moving, copying, waiting and asking where something is never switch.
- A program that has made legacy arrays, symbols or Gluon blocks without them keeps what it has: with them layers that
  were built before refuse every array, and 0 no longer stands for a size that is not known yet.
- They are never switched for a part of what a program computes: a loss that is recorded with them and differentiated
  without may end the process, and arrays without dimensions or elements cannot be computed on there.
- What the program itself switches, off too, stays; only arithmetic, which is impossible without, switches on again.
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

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "XDEVICE_MXNET_NP"

_log = logging.getLogger("xdevice")
_is_on = mx.util.is_np_shape


_IS_ALLOWED: Final = is_set(VARIABLE, usual=True)


class _Thread:
    """What has been decided in a thread."""

    def __init__(self, is_settled: bool = False) -> None:
        self.is_settled = is_settled
        """Whether creation need not ask any more: somebody has called `set_np`, or it was found that nobody must."""
        self.is_ours = False
        """Whether xdevice has called it."""
        self.has_entered = False
        """Whether it has asked for arithmetic."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


class _Calls:
    """Stands for "`set_np` has logged what it does", which MXNet asks when it is called. So a call is seen; and it logs
    nothing by the root logger, which MXNet would configure, so that the user's own logging.basicConfig does nothing."""

    def __init__(self, has_logged: bool) -> None:
        self.seen = has_logged
        _here.thread.is_settled = has_logged

    def __bool__(self) -> bool:
        self.seen = _here.thread.is_settled = True
        return True


_here: Final = _Here()
_calls: Final = _Calls(mx.util._set_np_array_logged)
"""Whether anybody has called `set_np` in this process, before this import too: then the program is not a legacy one."""
mx.util._set_np_array_logged = _calls
mx.util._set_np_shape_logged = True

_lock = threading.Lock()
_legacy: str | None = None
"""What the program had made without NumPy's semantics when that was first asked: it is asked once."""
_is_decided = False
_told: set[str] = set()


# for the adapter


def enter() -> None:
    """`require` when this thread asks for arithmetic for the first time: later each kernel does."""
    if not _here.thread.has_entered:
        require()
        _here.thread.has_entered = True


def require() -> None:
    """Gives this thread NumPy's semantics, or leaves them on: before anything is computed or recorded by xdevice.

    Raises:
        UnsupportedError: the program has made legacy arrays or blocks before, or XDEVICE_MXNET_NP=0.
    """
    if _is_on():
        return
    why_not = _switch()
    if why_not is not None:
        raise UnsupportedError(
            f"arithmetic by xdevice needs NumPy's semantics on mxnet, which are off in this thread: {why_not}; call "
            f"mxnet.npx.set_np() first if the program works with them"
        )


def chosen() -> None:
    """Gives this thread NumPy's semantics when the program chooses MXNet by xdevice, unless it is a legacy one."""
    if _IS_ALLOWED and not _here.thread.is_settled and not _is_on() and _legacy_things() is None:
        _switch()


def creating() -> None:
    """Gives this thread NumPy's semantics as soon as it makes a tensor, unless the program is a legacy one."""
    if _here.thread.is_settled:
        return
    if _is_on():  # on for a block only: a lasting choice is noted in `is_settled`
        _legacy_things()
        return
    why_not = _switch()
    if why_not is not None and _IS_ALLOWED:
        _tell(
            logging.WARNING,
            f"xdevice makes mxnet.np arrays, but does not call mxnet.npx.set_np(), because {why_not}. So Gluon refuses "
            f"these arrays, and those without dimensions cannot be computed on; call it first if the program can",
        )


def leave() -> None:
    """Takes away what `require` or `creating` have given this thread."""
    if _here.thread.is_ours and mx.util.is_np_array():
        mx.npx.reset_np()
    _here.thread = _Thread()


def _switch() -> str | None:
    """Switches NumPy's semantics on in this thread; returns why not, if it cannot."""
    _here.thread.is_settled = True
    if not _IS_ALLOWED:
        return f"{VARIABLE}=0 leaves them off"
    made = _legacy_things()
    if made is not None:
        return f"this program has made {made} without NumPy's semantics, and they may not work with them"
    mx.npx.set_np()
    _here.thread.is_ours = True
    _tell(
        logging.INFO,
        f"xdevice calls mxnet.npx.set_np() in threads that make tensors or compute by it; {VARIABLE}=0 forbids that",
    )
    return None


def _tell(level: int, text: str) -> None:
    if text not in _told:
        _told.add(text)
        _log.log(level, text)


# legacy programs


def _legacy_things() -> str | None:
    global _legacy, _is_decided
    if _calls.seen:
        return None
    with _lock:  # other threads wait until the first one has looked
        if not _is_decided:
            _legacy, _is_decided = _found(), True
    return _legacy


def _found() -> str | None:
    """What NumPy's semantics would break, if the program has such arrays or blocks. Looks at every object, in 30 ms."""
    classes = _classes()
    arrays = [cls for cls in classes if issubclass(cls, mx.nd.NDArray)]
    if not all(issubclass(cls, mx.np.ndarray) for cls in arrays):
        return "mx.nd arrays"
    for cls in classes:
        if issubclass(cls, mx.gluon.Block):
            return f"a Gluon block, {cls.__name__},"
        if issubclass(cls, mx.sym.Symbol) and not issubclass(cls, mx.sym.np._Symbol):
            return "symbols of mx.sym"
    # ctypes keeps the functions of a library that have been called. Arrays are freed by one
    return "arrays" if not arrays and "MXNDArrayFree" in vars(mx.base._LIB) else None


def _classes() -> set[type]:
    """The classes that have instances."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:  # else they would be left out
        gc.unfreeze()
    try:
        return set(map(type, gc.get_objects()))
    finally:
        if is_frozen:
            gc.freeze()


# other threads


class Carried:
    """The semantics of the thread that makes this, for another one."""

    def __init__(self) -> None:
        self._is_shape, self._is_array = _is_on(), mx.util.is_np_array()
        self._there = _Thread(_here.thread.is_settled)

    @contextmanager
    def entered(self) -> Iterator[None]:
        thread, _here.thread = _here.thread, self._there
        before = mx.util.set_np_shape(self._is_shape)
        try:
            with mx.util.np_array(self._is_array):
                yield
        finally:
            mx.util.set_np_shape(before)
            _here.thread = thread

    def rejoin(self) -> None:
        """Called in the first thread: gives it NumPy's semantics, without which it cannot compute with what the task
        has made."""
        if self._there.is_ours and not _is_on():
            _switch()
