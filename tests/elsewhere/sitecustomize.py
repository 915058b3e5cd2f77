"""What Windows and macOS lack, taken away from each Python that starts with this folder on PYTHONPATH.

    LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONPATH=tests/elsewhere pytest tests/twins/weights tests/twins/parity

There is no `os.fork`, no group of processes, no signal that Windows lacks, no /proc and no /dev/shm; xdevice finds none
of the modules that only Unix has; processes of multiprocessing are spawned; SO_REUSEADDR does nothing; and the encoding
is ASCII by the variables above. The name of the system stays, so what asks for that is not tried.
"""

from __future__ import annotations

import builtins
import io
import multiprocessing
import os
import signal
import socket
import sys

UNIX = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"}
GONE = ("/proc", "/dev/shm")
LACKING = ("fork", "forkpty", "getpgid", "mkfifo", "O_NOFOLLOW")
# what is asked for only where the system is called Linux stays: `sched_getaffinity`, and PyTorch's `register_at_fork`

for name in LACKING:
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGQUIT", "SIGPIPE"):
    delattr(signal, name)
multiprocessing.set_start_method("spawn")

_import, _open, _listdir = builtins.__import__, builtins.open, os.listdir


def _import_as_elsewhere(name, globals=None, locals=None, fromlist=(), level=0):
    asking = (globals or {}).get("__name__", "")
    if name in UNIX and not level and asking.partition(".")[0].startswith("xdevice"):
        raise ModuleNotFoundError(f"No module named {name!r}, as on Windows", name=name)
    return _import(name, globals, locals, fromlist, level)


def _is_gone(path) -> bool:
    asking = sys._getframe(2).f_globals.get("__name__", "")
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    return (
        isinstance(text, str)
        and text.startswith(GONE)
        and asking.partition(".")[0].startswith("xdevice")
    )


def _open_as_elsewhere(file, *arguments, **options):
    if _is_gone(file):
        raise FileNotFoundError(2, "No such file or directory, as elsewhere", file)
    return _open(file, *arguments, **options)


def _listdir_as_elsewhere(path="."):
    if _is_gone(path):
        raise FileNotFoundError(2, "No such file or directory, as elsewhere", path)
    return _listdir(path)


builtins.__import__ = _import_as_elsewhere
builtins.open = io.open = _open_as_elsewhere
os.listdir = _listdir_as_elsewhere


class _SocketElsewhere(socket.socket):
    def setsockopt(self, level, option, *value):
        if (level, option) != (socket.SOL_SOCKET, socket.SO_REUSEADDR):
            super().setsockopt(level, option, *value)


socket.socket = _SocketElsewhere
