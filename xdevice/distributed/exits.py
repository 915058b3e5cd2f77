"""Ends a process after a failure: prints the traceback, and skips the exit hooks (`atexit`) of other libraries, such as
JAX, which may never return.

The exit hooks of JAX and MXNet wait for the rank that has died, and a thread of gloo that is still waiting can crash
the process. So an uncaught error ends the process with status 1 as soon as the error has been printed.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

PATIENCE: Final = 5
"""The number of seconds that the exit hooks (`atexit`) of other packages may take if the
program has caught the error and ends normally."""

_skipping_in: int | None = None
"""The id of the process in which `skip_exit_hooks` was called; None if it has not been called."""
_status: int | None = None
"""The exit status that the program has passed to `sys.exit`, if the error that ended its world
was a SystemExit; otherwise None."""


def skip_exit_hooks(error: BaseException | None) -> None:
    """Ensures that this process skips its exit hooks (`atexit`) when it ends with an error or with a status from
    `sys.exit`. If the process ends normally, the hooks run for at most `PATIENCE` seconds. This function is called
    after a rank has failed. `error` is the exception that leaves the block of `processes`, or None.
    """
    global _skipping_in, _status
    # as in Python, `sys.exit()` means the status 0, and `sys.exit("text")` the status 1
    if isinstance(error, SystemExit):
        # as in Python, the status is 0 for None, and 1 for any other object that is not an int, such as a message
        _status = error.code if isinstance(error.code, int) else int(error.code is not None)
    # the hooks are already installed. In a forked child, `_skipping_in` is the parent's id, so the
    # hooks do nothing there, because the child does not have the parent's broken engine
    if _skipping_in == os.getpid():
        return
    _skipping_in = os.getpid()
    previous = sys.excepthook

    def uncaught(
        kind: type[BaseException], value: BaseException, where: TracebackType | None
    ) -> Any:
        """Replaces `sys.excepthook`: prints the traceback, and then ends the process, unless
        the session is interactive."""
        # prints the traceback
        previous(kind, value, where)
        # an interactive session continues after an error
        if (
            _skipping_in == os.getpid()
            and not sys.flags.interactive
            and not hasattr(sys, "ps1")
        ):
            # 130 is the exit status of a program that was ended by Ctrl-C: 128 + SIGINT
            _exit(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = uncaught
    # Python calls the functions in reverse order of registration, so this one comes before
    # those registered earlier
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Ends the process with the status that the program has passed to `sys.exit`, before the
    exit hooks of other packages run. If there is no such status, lets these hooks run for at
    most `PATIENCE` seconds."""
    if _skipping_in != os.getpid():
        return
    # Python does not call `sys.excepthook` for `sys.exit`, so the status is applied here
    if _status is not None:
        _exit(_status)
    if hasattr(signal, "alarm") and threading.current_thread() is threading.main_thread():
        # the default action of SIGALRM ends the process even if Python hangs
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)


def _exit(status: int) -> None:
    """Flushes the output, and ends the process with this exit status, without running exit hooks."""
    # `os._exit` itself flushes nothing
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)
