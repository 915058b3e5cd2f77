"""What only POSIX systems have is used nowhere that a user of Windows comes by.

Children run with all of that gone, and their own children too. It is a stand-in: Windows itself is seen in CI only.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
from helpers.environment import BACKENDS, ROOT, python, sampled

# what Python's own modules and the frameworks, built for this system, need of it stays: uname, register_at_fork, ...
GONE = '''
import asyncio, concurrent.futures, ctypes, logging, multiprocessing, os, random, shutil, signal, subprocess, sys
import contextlib, tempfile, threading
with contextlib.suppress(ImportError):
    import cuda.pathfinder  # which PyTorch's build for CUDA imports: it is another one for Windows
kill, flags = signal.SIGKILL, os.O_DIRECTORY
subprocess.Popen.kill = lambda self: self.send_signal(kill)
for name in """
    RTLD_DEEPBIND RTLD_GLOBAL RTLD_LAZY RTLD_LOCAL RTLD_NODELETE RTLD_NOLOAD RTLD_NOW O_DIRECTORY O_NOCTTY O_SYNC
    chown chroot confstr ctermid eventfd fchdir fchmod fchown
    fork forkpty getgroups getloadavg getpgid getpgrp getpriority getresuid getrlimit getsid killpg lchown lockf
    memfd_create mkfifo mknod nice openpty pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn pread preadv
    pwrite pwritev readv sched_getaffinity sched_getparam sched_setaffinity sched_yield
    sendfile setpgid setpriority setsid setuid splice statvfs sync sysconf tcgetpgrp ttyname wait3 wait4 waitid writev
""".split():
    if hasattr(os, name):
        delattr(os, name)
for name in dir(signal):
    if name in {"alarm", "setitimer", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "sigwait"} or (
        name.startswith("SIG") and not name.startswith("SIG_")
        and name not in {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
    ):
        delattr(signal, name)
del sys.getdlopenflags, sys.setdlopenflags
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "spwd", "nis"):
    sys.modules[name] = None
load = ctypes.PyDLL.__init__
def named_only(self, name, *arguments, **more):
    if name is None:
        raise TypeError("bad argument type for built-in operation")  # as on Windows
    load(self, name, *arguments, **more)
ctypes.PyDLL.__init__ = named_only
open_any = os.open
def files_only(path, *arguments, **more):
    if not more and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)  # as on Windows
    return open_any(path, *arguments, **more)
'''
# shutil and filelock open folders by what this system has: only xdevice's own way is looked at
FILES = """
import os, sys, numpy as np, xdevice
from xdevice.twins.weights import disk
disk.os = type(os)("os")
disk.os.__dict__.update({**os.__dict__, "open": sys.files_only})
path = os.path.join(sys.argv[1], "file")
name = sys.argv[2]
xdevice.set_backend(name)
x = xdevice.ones(2, 3)
for _ in range(2):
    xdevice.save(path, {"a": x, "b": x})
assert xdevice.load(path)["a"].shape[1] == 3
assert [one for one in os.listdir(sys.argv[1]) if one != "file"] == []
y = xdevice.copy_to(xdevice.to_device(x, xdevice.try_gpu()), "cpu")
xdevice.sync()
assert xdevice.same_device(x, y) and xdevice.item(y[0, 0]) == 1
assert type(xdevice.convert(x, "numpy")) is np.ndarray
assert xdevice.backend("numpy").name == "numpy"
xdevice.assert_parity(x, np.ones((2, 3), "float32"))
assert list(xdevice.prefetch([x], "cpu")) and xdevice.parallel.run(lambda: 1) == [1]
assert xdevice.backend().samples() is not None
"""
TEST = "def test_it(xd):\n    assert xd.name\n"
SCRIPT = "import xdevice\nxdevice.parity.log('x', xdevice.ones(2))\n"
SLOW = "import time\ntime.sleep(600)\n"


@pytest.fixture
def run(tmp_path):
    own = tmp_path / "site"
    own.mkdir()
    (own / "sitecustomize.py").write_text(GONE + "sys.files_only = files_only\n")
    ours = os.environ.get("PYTHONPATH", "")
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(own), ours))), "PYTHONIOENCODING": "cp1252",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    return partial(python, cwd=tmp_path, encoding="cp1252", **environment)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_what_is_gone_is_gone(run):
    done = run(
        "-c",
        "import os, signal; print(hasattr(os, 'fork'), hasattr(signal, 'SIGKILL')); import fcntl",
    )
    assert done.stdout == "False False\n"
    assert "import of fcntl halted" in done.stderr


@pytest.mark.parametrize(
    "backend", sampled(BACKENDS, each_time=["numpy"], slow=["torch"], others="long")
)
def test_verbs_files_and_conversion_need_nothing_of_posix(run, folder, backend):
    done = run("-c", FILES, folder, backend)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_line_and_parity_need_nothing_of_posix(run, folder):
    (folder / "script.py").write_text(SCRIPT)
    (folder / "slow.py").write_text(SLOW)
    done = run("-m", "xdevice", "info", "numpy", "torch")
    assert done.returncode == 0, done.stderr
    assert "numpy" in done.stdout
    done = run(
        "-m",
        "xdevice",
        "parity",
        folder / "script.py",
        "--backends",
        "numpy,torch",
        "--html",
        folder / "page.html",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<html" in (folder / "page.html").read_text(encoding="utf-8")
    done = run(
        "-m",
        "xdevice",
        "parity",
        folder / "slow.py",
        "--backends",
        "numpy,torch",
        "--timeout",
        "1",
    )
    assert "was killed after 1 s" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_pytest_plugin_needs_nothing_of_posix(run, folder):
    (folder / "test_it.py").write_text(TEST)
    done = run("-m", "pytest", "-p", "no:cacheprovider", "--xd-backends=numpy,jax", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_texts_are_read_and_written_in_an_encoding_that_is_said_or_in_ascii():
    """A system's own encoding is another on Windows; JSON as Python writes it is ASCII."""
    for path in [
        *ROOT.glob("xdevice/**/*.py"),
        *ROOT.glob("backends/*/*.py"),
        *ROOT.glob("examples/*.py"),
    ]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if ".read_text(" in line or ".write_text(" in line:
                assert "encoding=" in line or "json." in line or "errors=" in line, (
                    f"{path.name}: {line}"
                )
