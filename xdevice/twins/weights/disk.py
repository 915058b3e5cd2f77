"""Replaces a file atomically, and converts the operating system's errors into `FilePathError`s.

The new file is first written in a temporary folder next to the old file. The process keeps this folder locked while
writing. The next save can then distinguish a folder that a killed process left behind from the folder of a process that
is still writing.
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
"""The prefix and the suffix of the names of temporary folders, by which leftover folders are recognized."""
_PROBE: Final = "probe"
"""The name of an empty file in the temporary folder. It has the permissions that the system gives a new file."""
_LOCK: Final = "lock"
"""The name of the file in the temporary folder that is locked while the process uses the folder."""


@contextmanager
def path_errors(what: str) -> Iterator[None]:
    """Converts errors of the system and of safetensors, and every `ValueError`, into `FilePathError`s while the block
    is open. Their message begins with `what`, which must name the user's path, because the system's message may name a
    temporary file. xdevice's own errors are not converted."""
    from safetensors import SafetensorError

    try:
        yield
    # some of xdevice's errors are also a `ValueError`, but need no conversion
    except XDeviceError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise FilePathError(f"{what}: {getattr(error, 'strerror', None) or error}") from error


def path_text(path: object, verb: str) -> str:
    """Returns the path as a string. Raises `ArgumentError` unless it is a string, bytes or an `os.PathLike`. An int is
    rejected because `open` would treat it as a file descriptor and close it afterwards. The message of the error begins
    with `verb`."""
    try:
        return os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{verb} expects the path of a file, got {shown(path)} of type {type(path).__qualname__}"
        ) from None


def require_plain_file(path: str) -> None:
    """Raises `MissingFileError` if the path does not exist, and `FilePathError` if it is a folder or anything else that
    is not a regular file."""
    with path_errors(f"{path!r:.1000} cannot be read"):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(
                f"there is no file {path!r:.1000}; the current folder is {os.getcwd()}"
            ) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FilePathError(
            f"{path!r:.1000} is {what}; pass the path of the file with the weights"
        )


def file_to_replace(path: str | os.PathLike[str]) -> str:
    """Returns the path of the file that `save(path)` replaces. If `path` is a symbolic link, returns the path of the
    file to which the link points. Raises `MissingFileError` if the folder of the file does not exist, and
    `FilePathError` if the path exists but is not a regular file."""
    name = path_text(path, "save")
    with path_errors(f"{name!r:.1000} cannot be written"):
        target = os.path.realpath(name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise MissingFileError(
                f"there is no folder {folder!r:.1000}; create it first: os.makedirs(...)"
            )
        mode = _mode(target)
    # a slash or a dot at the end of `name` means a folder; `realpath` has removed it from `target`
    is_folder = stat.S_ISDIR(mode or 0) or os.path.basename(name) in ("", os.curdir)
    if is_folder or (mode is not None and not stat.S_ISREG(mode)):
        what = "names a folder" if is_folder else "is not a regular file"
        raise FilePathError(
            f"{name!r:.1000} {what}, which cannot be replaced by a file; pass the path of a file"
        )
    return target


def _mode(path: str) -> int | None:
    """Returns the mode of a file (its type and permissions); None if there is no such file. Does not catch other errors
    of the system, such as missing permission to read a folder."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def replacing_file(target: str) -> Iterator[str]:
    """Yields the path to which the new file must be written. When the block ends, the new file replaces `target`. After
    an error, `target` is unchanged, and the new file is removed."""
    folder = os.path.dirname(target)
    with path_errors(f"{target!r:.1000} cannot be written, and any existing file is unchanged"):
        # leftovers are removed before anything is written, because they take up space on the disk
        _remove_leftovers(folder)
        with _own_folder(folder) as own:
            new = os.path.join(own, "new")
            yield new
            # before the renaming, because a crash of the system could otherwise leave an empty file of this name
            _flush(new)
            # before the renaming, because the file must never be visible with wider permissions
            os.chmod(new, _permissions(target, own))
            os.replace(new, target)
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        with path_errors(f"{target!r:.1000} has been written, but may not be on the disk yet"):
            # the folder contains the file's name, so the folder must be on the disk as well
            _flush(folder, flags=os.O_RDONLY)


def _permissions(target: str, own: str) -> int:
    """Returns the permissions for the new file: the permissions of the old file `target` or, if there is no old file,
    the system's default permissions. The default permissions are read from the file `_PROBE` in the folder `own`,
    because Python can read the umask only by changing it for all threads."""
    old = _mode(target)
    return stat.S_IMODE(os.stat(os.path.join(own, _PROBE)).st_mode if old is None else old)


def _flush(path: str, flags: int = os.O_RDWR) -> None:
    """Waits until the contents of a file or folder are on the disk. `flags` are the flags for opening the file or
    folder. The default opens it for writing, because Windows can flush only a file that is open for writing."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _own_folder(folder: str) -> Iterator[str]:
    """Creates a new temporary folder in `folder`, and yields its path. The new folder is locked during the block,
    unless the file system does not support locks. The folder is removed with all its contents at the end of the
    block."""
    import shutil
    import tempfile

    # repeated if another process has taken the new folder for a leftover and removed it before it was locked
    while True:
        new_folder = tempfile.mkdtemp(_SUFFIX, _PREFIX, folder)
        probe = os.path.join(new_folder, _PROBE)
        try:
            with suppress(FileNotFoundError):  # another process has just removed the folder
                os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
            with _lock(new_folder) as is_ours:
                # before this process obtained the lock, another process may have taken the folder for a leftover. Then
                # either the other process still has the lock in order to remove the folder (False), or the folder has
                # been removed and the probe is missing. None, from a file system without locks, is accepted
                if is_ours is not False and os.path.exists(probe):
                    yield new_folder
                    return
        finally:
            shutil.rmtree(new_folder, ignore_errors=True)


def _remove_leftovers(folder: str) -> None:
    """Removes the temporary folders in `folder` that killed processes left behind, which are those that no running
    process has locked. Removes no folder if the file system does not support locks."""
    import shutil

    for entry in os.scandir(folder):
        if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
            continue
        with _lock(entry.path) as is_ours:
            # None also means that the folder stays: without locks, it is unknown whether the folder is still in use
            if is_ours:
                shutil.rmtree(entry.path, ignore_errors=True)
        # removed again, because on Windows and NFS the lock file cannot be removed while it is open
        if is_ours:
            shutil.rmtree(entry.path, ignore_errors=True)


@contextmanager
def _lock(folder: str) -> Iterator[bool | None]:
    """Tries once, without waiting, to lock a folder for the block. Yields True if this process obtained the lock, and
    False if another process has it. Yields None if locking fails because the file system does not support locks, or
    because the folder is missing or not writable. If the lock was obtained, it is released at the end of the block."""
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
