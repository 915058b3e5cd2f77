"""Decides when NumPy's semantics are enabled in a thread. This is a setting that MXNet stores separately for each
thread, and that is disabled at first.

The setting changes the meaning of shapes and the type of arrays (`mx.npx.set_np()` enables it):

| | disabled, as in a legacy program | enabled | upstream |
|---|---|---|---|
| the shape `()` | an unknown shape, so a 0-d array may end the process | a 0-d array | apache/mxnet#18271 |
| a length of 0 | an unknown length, which is inferred | an array without elements | apache/mxnet#14661, #15096 |
| Gluon's blocks | accept `mx.nd` arrays, and refuse `mx.np` arrays | the reverse | no upstream issue known |
| a loss recorded while enabled | differentiating it may crash the process | works | no upstream issue known |

The following calls enable it, once and permanently in the calling thread:

| call | effect if the setting is disabled |
|---|---|
| loading, moving, copying, waiting, reading a device | no effect, ever |
| `enable_on_choice`: the program selects MXNet through xdevice | enables the setting |
| `enable_for_creation`: xdevice creates a tensor | enables the setting; in a legacy program, only warns, once |
| `enter`, `require`: xdevice computes | enables the setting; in a legacy program, raises `UnsupportedError` |

- A legacy program has created `mx.nd` arrays, symbols or Gluon blocks without the setting. These
  may not work with the setting, so `enable_on_choice` and `enable_for_creation` leave it disabled in such a program.
  XDEVICE_MXNET_NP=0 leaves it disabled in any program.
- If the program itself has called `set_np` or `reset_np`, only arithmetic, which needs the
  setting, calls `set_np` again.
- The setting is never enabled for only a part of a computation. Otherwise, differentiating a loss could crash the
  process (see the last row of the first table).
- In a new thread, the setting is disabled, so this module decides for each thread separately
  (apache/mxnet#14661).

This module changes two things in MXNet. `mxnet.util._set_np_array_logged` becomes an object that notices calls of
`set_np` (`_SetNp`). In addition, `_announce_shapes` suppresses MXNet's message that the setting is enabled. Logging the
message would configure the root logger, and the program's `logging.basicConfig` would then have no effect
(apache/mxnet#16413).
"""

from __future__ import annotations

import gc
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import mxnet as mx

from xdevice.contract.environment import is_enabled
from xdevice.errors import UnsupportedError

from .library import library
from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "XDEVICE_MXNET_NP"

_log = logging.getLogger("xdevice")
# `set_np` enables two settings; this function returns the setting for shapes
_is_on = mx.util.is_np_shape


_IS_ALLOWED: Final = is_enabled(VARIABLE, default=True)
"""Whether xdevice may enable NumPy's semantics. This is True unless XDEVICE_MXNET_NP=0."""


class _Thread:
    """The decisions of this module about NumPy's semantics in one thread. Each thread has one such object."""

    def __init__(self, is_decided: bool = False) -> None:
        self.is_decided = is_decided
        """Whether `enable_for_creation` has nothing left to do in this thread. The reason is that the program or
        xdevice has called `set_np` here, or that xdevice must not call it."""
        self.is_ours = False
        """Whether xdevice has called `set_np` in this thread."""
        self.has_entered = False
        """Whether this thread has called `enter` before, which means that it has used xdevice's arithmetic."""


class _Here(threading.local):
    """Contains the `_Thread` of the thread that reads the attribute `thread`."""

    def __init__(self) -> None:
        self.thread = _Thread()


class _SetNp:
    """Replaces the flag in which MXNet's `set_np` stores that it has logged a message. `set_np` reads the flag at
    each call, so this object notices the call. The flag is always true, so MXNet logs nothing. `has_logged` is the
    original value of the flag, which says whether `set_np` was called earlier."""

    def __init__(self, has_logged: bool) -> None:
        self.was_called = has_logged
        _here.thread.is_decided = has_logged

    def __bool__(self) -> bool:
        """Returns True, and records that `set_np` was called in this thread."""
        self.was_called = _here.thread.is_decided = True
        return True


def _announce_shapes() -> None:
    """Makes MXNet log its message that NumPy's shapes are enabled. During this call, a filter rejects every record.
    MXNet logs this message only once. Without this call, MXNet would log it later, which would show the message and
    configure the root logger."""
    root, silent = logging.getLogger(), logging.NullHandler()
    # MXNet calls `logging.info`, which configures the root logger if that has no handlers
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
"""Detects whether the program has called `set_np` in this process, even if the call was made before this module was
imported. A program that has called it is not a legacy program."""
# if MXNet does not have the flag, a call of `set_np` is not noticed
if private.has("mxnet.util._set_np_array_logged"):
    setattr(*private.place("mxnet.util._set_np_array_logged"), _set_np)
_announce_shapes()

_lock = threading.Lock()
_legacy: str | None = None
"""A description of the legacy objects (arrays, blocks or symbols) that the program had created when `_legacy_things`
was first called, or None if there were none."""
_has_looked = False
"""Whether `_look_for_legacy_things` has been called. After that call, `_legacy` does not change."""
_logged: set[str] = set()
"""The messages that have been logged. Each message is logged only once."""


# for the adapter


def enter() -> None:
    """Called when the program obtains the kernels of `arithmetic`. Calls `require` at the first call in each thread.
    Later, each kernel itself calls `require` if the semantics are disabled. Raises the errors of `require`."""
    if not _here.thread.has_entered:
        require()
        _here.thread.has_entered = True


def require() -> None:
    """Enables NumPy's semantics in this thread, if they are disabled. Called before xdevice computes or records
    anything.

    Raises:
        UnsupportedError: the program has already created legacy arrays or blocks, or XDEVICE_MXNET_NP=0 forbids it.
    """
    if _is_on():
        return
    why_not = _enable()
    if why_not is not None:
        raise UnsupportedError(
            f"arithmetic with xdevice on mxnet requires NumPy semantics, which are disabled in this thread, because "
            f"{why_not}; if the program works with NumPy semantics, call mxnet.npx.set_np() first"
        )


def enable_on_choice() -> None:
    """Called when the program selects MXNet through xdevice. Enables NumPy's semantics in this thread. Does nothing in
    a legacy program, or if the program itself or XDEVICE_MXNET_NP=0 has decided otherwise."""
    # `_enable` would refuse a legacy program too, but it sets `is_decided` first, and
    # `enable_for_creation` would then not log its warning. If the setting is enabled while `is_decided` is
    # False, it is enabled only for a `with` block of the program
    if (
        _IS_ALLOWED
        and not _here.thread.is_decided
        and not _is_on()
        and _legacy_things() is None
    ):
        _enable()


def enable_for_creation() -> None:
    """Called before xdevice creates a tensor. Enables NumPy's semantics in this thread. In a legacy program, logs a
    warning instead. Does nothing if the program itself or XDEVICE_MXNET_NP=0 has decided otherwise."""
    if _here.thread.is_decided:
        return
    # the setting is enabled only for a `with` block of the program, because `set_np` would have
    # set `is_decided`. Legacy objects are searched for now, before xdevice creates arrays that
    # might be mistaken for the program's arrays
    if _is_on():
        _legacy_things()
        return
    why_not = _enable()
    if why_not is not None and _IS_ALLOWED:
        _log_once(
            logging.WARNING,
            f"xdevice creates mxnet.np arrays, but does not call mxnet.npx.set_np(), because {why_not}. Gluon "
            f"therefore refuses these arrays, and operations on 0-d arrays fail; if the program works with NumPy "
            f"semantics, call set_np() first",
        )


def leave() -> None:
    """Disables NumPy's semantics in this thread again, if a function of this module enabled them."""
    if _here.thread.is_ours and mx.util.is_np_array():
        mx.npx.reset_np()
    _here.thread = _Thread()


def _enable() -> str | None:
    """Enables NumPy's semantics in this thread, and returns None. If that is not allowed, returns the reason as a
    string."""
    # the decision below is final for this thread
    _here.thread.is_decided = True
    if not _IS_ALLOWED:
        return f"{VARIABLE}=0 keeps them disabled"
    legacy = _legacy_things()
    if legacy is not None:
        return f"this program created {legacy} without NumPy semantics, and may fail if they are enabled"
    mx.npx.set_np()
    _here.thread.is_ours = True
    _log_once(
        logging.INFO,
        f"xdevice calls mxnet.npx.set_np() in each thread that uses xdevice to create tensors or to compute; "
        f"{VARIABLE}=0 prevents this",
    )
    return None


def _log_once(level: int, text: str) -> None:
    """Logs the message `text`, unless the same message was logged before."""
    if text not in _logged:
        _logged.add(text)
        _log.log(level, text)


# legacy programs


def _legacy_things() -> str | None:
    """Returns a description of the legacy objects that the program had created when this function was first called.
    Returns None if there were none, or if the program has called `set_np`."""
    global _legacy, _has_looked
    if _set_np.was_called:
        return None
    with _lock:  # other threads wait until the first thread has searched
        if not _has_looked:
            _legacy, _has_looked = _look_for_legacy_things(), True
    return _legacy


def _look_for_legacy_things() -> str | None:
    """Returns a description of the program's objects that NumPy's semantics would break: arrays, blocks or symbols.
    Returns None if there are none. Examines every object of the process, which takes 30 ms."""
    classes = _classes()
    arrays = [cls for cls in classes if issubclass(cls, mx.nd.NDArray)]
    # `mx.np.ndarray` is a subclass of the legacy class
    if not all(issubclass(cls, mx.np.ndarray) for cls in arrays):
        return "mx.nd arrays"
    for cls in classes:
        if issubclass(cls, mx.gluon.Block):
            return f"a Gluon block, {cls.__name__},"
        # symbols with NumPy's semantics belong to a subclass that has no public name
        if issubclass(cls, mx.sym.Symbol) and not issubclass(
            cls, type(mx.sym.var("x").as_np_ndarray())
        ):
            return "mx.sym symbols"
    # MXNet calls MXNDArrayFree when an array is released, and once a function of a library has
    # been called, ctypes stores the function as an attribute of the library. The attribute
    # therefore exists if arrays have been released
    return "arrays" if not arrays and "MXNDArrayFree" in vars(library) else None


def _classes() -> set[type]:
    """Returns the classes of all objects in the process that the garbage collector tracks."""
    is_frozen = gc.get_freeze_count() > 0
    # `gc.get_objects` does not return frozen objects
    if is_frozen:
        gc.unfreeze()
    try:
        return set(map(type, gc.get_objects()))
    finally:
        if is_frozen:
            gc.freeze()


# other threads


class Carried:
    """Carries the semantics of one thread to another thread. The object is created in the first thread. In the second
    thread, a task runs inside the block of `entered`."""

    def __init__(self) -> None:
        self._is_shape, self._is_array = _is_on(), mx.util.is_np_array()
        self._there = _Thread(_here.thread.is_decided)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Opens a block in which the current thread has the carried semantics. At the end of the block, the thread's
        earlier semantics are restored."""
        thread, _here.thread = _here.thread, self._there
        was_shape = mx.util.set_np_shape(self._is_shape)
        try:
            with mx.util.np_array(self._is_array):
                yield
        finally:
            mx.util.set_np_shape(was_shape)
            _here.thread = thread

    def rejoin(self) -> None:
        """Called in the thread that created this object, after the task in the other thread has ended. If xdevice
        has enabled NumPy's semantics for the task, enables them in this thread too. Otherwise, this thread could not
        compute with the task's arrays. The effect of a `set_np` in the task's own code stays in the other thread."""
        if self._there.is_ours and not _is_on():
            _enable()
