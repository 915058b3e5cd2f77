"""Replaces a file as a whole, and turns the operating system's errors into `FilePathError`s.

The new file is first written in a temporary folder next to the old file. The folder is locked while the process uses
it, so that the next save can tell a folder that a killed process left behind from the folder of a process that is
writing.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from xdevice.errors import ArgumentError, FilePathError, MissingFileError, XDeviceError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = ".xdevice-"
_SUFFIX: Final = ".saving"
"""How the name of a temporary folder begins and ends, by which leftovers are found."""
_PROBE: Final = "probe"
"""The name of an empty file in that folder, which has the permissions that the system gives a new file."""
_LOCK: Final = "lock"
"""The name of the file in that folder that is locked while the process uses the folder."""


@contextmanager
def path_errors(what: str) -> Iterator[None]:
    """Turns errors of the system and of safetensors, and every `ValueError`, in the block into `FilePathError`s. Their
    message begins with `what`, which names the user's path, because the system's message may name a temporary file.
    xdevice's own errors pass unchanged."""
    from safetensors import SafetensorError

    try:
        yield
    # some of xdevice's errors are a `ValueError` too, and need no change
    except XDeviceError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise FilePathError(f"{what}: {getattr(error, 'strerror', None) or error}") from error


def path_text(path: object, verb: str) -> str:
    """The path as a string. Raises `ArgumentError`, whose message begins with `verb`, if it is neither a string, nor
    bytes, nor an `os.PathLike`: also for an int, which `open` would take for a file descriptor and then close."""
    try:
        return os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{verb} expects the path of a file, got {shown(path)} of type {type(path).__qualname__}"
        ) from None


def require_plain_file(path: str) -> None:
    """Raises `MissingFileError` if there is no file at the path, and `FilePathError` if it is a folder or something
    else that is not a regular file."""
    with path_errors(f"{path!r:.1000} cannot be read"):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(
                f"there is no file {path!r:.1000}; the current folder is {os.getcwd()}"
            ) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FilePathError(f"{path!r:.1000} is {what}; name the file with the weights")


def target_of(path: str | os.PathLike[str]) -> str:
    """The path of the file that `save(path)` replaces. If `path` is a symbolic link, that is the file that the link
    points to. Raises `MissingFileError` if the folder does not exist, and `FilePathError` if something that is not a
    file has this name."""
    name = path_text(path, "save")
    with path_errors(f"{name!r:.1000} cannot be written"):
        target = os.path.realpath(name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise MissingFileError(
                f"there is no folder {folder!r:.1000}; make it first: os.makedirs(...)"
            )
        mode = _mode(target)
    # a slash or a dot at the end means a folder, and `realpath` has dropped it
    is_folder = stat.S_ISDIR(mode or 0) or os.path.basename(name) in ("", os.curdir)
    if is_folder or (mode is not None and not stat.S_ISREG(mode)):
        what = "names a folder" if is_folder else "is not a regular file"
        raise FilePathError(
            f"{name!r:.1000} {what}, which cannot be replaced by a file; name a file"
        )
    return target


def _mode(path: str) -> int | None:
    """The mode of a file (its type and permissions); None if there is no such file. Other errors of the system, such as
    a folder that may not be read, are raised."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def replacing(target: str) -> Iterator[str]:
    """Yields a path to write the new file to. When the block ends, that file takes the place of `target`; after an
    error the target is unchanged, and nothing is left of the new file."""
    folder = os.path.dirname(target)
    with path_errors(f"{target!r:.1000} cannot be written, and the file is as it was"):
        # before anything is written, because they take up space on the disk
        _remove_leftovers(folder)
        with _own_folder(folder) as own:
            new = os.path.join(own, "new")
            yield new
            # before the renaming: a crash of the system could otherwise leave an empty file of this name
            _flush(new)
            # before the renaming: the file must never be seen with wider permissions
            os.chmod(new, _permissions(target, own))
            os.replace(new, target)
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        with path_errors(f"{target!r:.1000} is written, but may not be on the disk"):
            # the name is part of the folder, so the folder must be on the disk as well
            _flush(folder, os.O_RDONLY)


def _permissions(target: str, own: str) -> int:
    """The permissions for the new file: those of the old file `target`, or if there is none, those that the system
    gives a new file. The latter are read from the file `_PROBE` in the folder `own`: the umask can only be read by
    changing it for all threads."""
    old = _mode(target)
    return stat.S_IMODE(os.stat(os.path.join(own, _PROBE)).st_mode if old is None else old)


def _flush(path: str, flags: int = os.O_RDWR) -> None:
    """Waits until the content of a file or folder is on the disk. On Windows this works only for a file that is open
    for writing, so `flags` opens it for writing by default."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _own_folder(folder: str) -> Iterator[str]:
    """Makes a new temporary folder in `folder`, and yields its path. The folder stays locked during the block, unless
    the file system has no locks, and is removed at its end with all that is in it."""
    import shutil
    import tempfile

    # tried again if another process has removed the new folder, as a leftover, before it was
    # locked
    while True:
        new_folder = tempfile.mkdtemp(_SUFFIX, _PREFIX, folder)
        probe = os.path.join(new_folder, _PROBE)
        try:
            with suppress(FileNotFoundError):  # another process has just removed the folder
                os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
            with _lock(new_folder) as is_ours:
                # two checks, because before the lock another process may have taken the folder for a leftover: it still
                # holds the lock to remove it (False), or has removed it, and the probe is gone. None, from a file
                # system without locks, is good enough
                if is_ours is not False and os.path.exists(probe):
                    yield new_folder
                    return
        finally:
            shutil.rmtree(new_folder, ignore_errors=True)


def _remove_leftovers(folder: str) -> None:
    """Removes the temporary folders in `folder` that killed processes have left behind: those that no living process
    has locked. Leaves all of them if the file system has no locks."""
    import shutil

    for entry in os.scandir(folder):
        if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
            continue
        with _lock(entry.path) as is_ours:
            # not for None: without locks it is unknown whether the folder is still used
            if is_ours:
                shutil.rmtree(entry.path, ignore_errors=True)
        # again, because on Windows and NFS the lock's own file cannot be removed while it is open
        if is_ours:
            shutil.rmtree(entry.path, ignore_errors=True)


@contextmanager
def _lock(folder: str) -> Iterator[bool | None]:
    """Tries once, without waiting, to lock a folder for the block. Yields True if this process has the lock, and False
    if another has it. Yields None after any other error, which includes every `OSError`: the file system has no locks,
    the folder is missing or not writable. A lock that was obtained is released at the end of the block."""
    from filelock import FileLock, Timeout

    lock = FileLock(os.path.join(folder, _LOCK), timeout=0)
    is_ours: bool | None = True
    try:
        lock.acquire()
    except Timeout:
        is_ours = False
    except (OSError, NotImplementedError):
        is_ours = None
    try:
        yield is_ours
    finally:
        # does nothing if the lock was not obtained
        lock.release()
