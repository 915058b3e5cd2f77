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
_PROBE: Final = "probe"
_LOCK: Final = "lock"


@contextmanager
def path_errors(what: str) -> Iterator[None]:
    """Turns the system's errors in the block into `FilePathError`s that name the user's path: the system's errors may
    name a temporary file."""
    from safetensors import SafetensorError

    try:
        yield
    except XDeviceError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise FilePathError(f"{what}: {getattr(error, 'strerror', None) or error}") from error


def path_text(path: object, verb: str) -> str:
    """The path as a string. Raises `ArgumentError` for anything else, even an int, which `open` would take for a file
    descriptor and then close."""
    try:
        return os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{verb} takes the path of a file, not {shown(path)} of type {type(path).__qualname__}"
        ) from None


def require_plain_file(path: str) -> None:
    """Raises an error that says what is at the path, if it is not a file."""
    with path_errors(f"{path!r:.1000} cannot be read"):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(
                f"there is no file {path!r:.1000}; is the folder right? {os.getcwd()}"
            ) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FilePathError(f"{path!r:.1000} is {what}; name the file with the weights")


def target_of(path: str | os.PathLike[str]) -> str:
    """The path of the file to replace. If `path` is a symbolic link, that is the file that the link points to."""
    name = path_text(path, "save")
    with path_errors(f"{name!r:.1000} cannot be written"):
        target = os.path.realpath(name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise MissingFileError(
                f"there is no folder {folder!r:.1000}; make it first: os.makedirs(...)"
            )
        mode = _mode(target)
    # `realpath` drops a slash or a dot at the end, by which the user means a folder
    is_folder = stat.S_ISDIR(mode or 0) or os.path.basename(name) in ("", os.curdir)
    if is_folder or (mode is not None and not stat.S_ISREG(mode)):
        what = "names a folder" if is_folder else "is not a regular file"
        raise FilePathError(
            f"{name!r:.1000} {what}, which cannot be replaced by a file; name a file"
        )
    return target


def _mode(path: str) -> int | None:
    """The mode of a file (its type and permissions); None if there is no such file."""
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
        # before anything is written, because they take up the disk
        _remove_leftovers(folder)
        with _own_folder(folder) as own:
            new = os.path.join(own, "new")
            yield new
            # otherwise a crash of the system could leave the new name with an empty file
            _flush(new)
            # before the file gets its name, so that nobody sees it with other permissions
            os.chmod(new, _permissions(target, own))
            os.replace(new, target)
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        with path_errors(f"{target!r:.1000} is written, but may not be on the disk"):
            # the new name is part of the folder, not of the file
            _flush(folder, os.O_RDONLY)


def _permissions(target: str, own: str) -> int:
    """The permissions for the new file: those of the old file, or if there is none, those that the system gives a new
    file. The latter are read from the file `_PROBE`: reading the umask would change it for all threads."""
    old = _mode(target)
    return stat.S_IMODE(os.stat(os.path.join(own, _PROBE)).st_mode if old is None else old)


def _flush(path: str, flags: int = os.O_RDWR) -> None:
    """Waits until the file's content is on the disk. On Windows that works only for a file that is open for writing."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _own_folder(folder: str) -> Iterator[str]:
    """Makes a new temporary folder in `folder`, which stays locked while this process uses it, and removes it at the
    end."""
    import shutil
    import tempfile

    while True:
        own = tempfile.mkdtemp(_SUFFIX, _PREFIX, folder)
        probe = os.path.join(own, _PROBE)
        try:
            with suppress(FileNotFoundError):  # another process has removed it
                os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
            with _lock(own) as is_ours:
                # before the lock was taken, another process may have removed the folder as a leftover
                if is_ours is not False and os.path.exists(probe):
                    yield own
                    return
        finally:
            shutil.rmtree(own, ignore_errors=True)


def _remove_leftovers(folder: str) -> None:
    """Removes the temporary folders that killed processes have left behind: those that no living process has locked."""
    import shutil

    for entry in os.scandir(folder):
        if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
            continue
        with _lock(entry.path) as is_ours:
            if is_ours:
                shutil.rmtree(entry.path, ignore_errors=True)
        if is_ours:  # an open lock stays on Windows, and on NFS under another name
            shutil.rmtree(entry.path, ignore_errors=True)


@contextmanager
def _lock(folder: str) -> Iterator[bool | None]:
    """Tries to lock a folder for the block. Yields whether this process has the lock; None if the file system has no
    locks."""
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
        lock.release()
