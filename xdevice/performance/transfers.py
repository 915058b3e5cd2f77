"""`transfers`: records every read by the host and every copy between devices in a block of code, with the line that
causes it."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, get_args, overload

from xdevice.contract.patching import listening
from xdevice.core import registry
from xdevice.core.blocks import OpenBlocks
from xdevice.errors import ArgumentError, TransferError, TransferWarning, shown
from xdevice.performance import workers
from xdevice.performance.contract import hooks
from xdevice.performance.contract.transfers import Transfer

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from xdevice.contract import Backend

Mode = Literal["allow", "log", "log_explicit", "disallow", "disallow_explicit"]


class Record(Transfer):
    """One read by the host, or one copy between devices, with the file and line that caused it."""

    __slots__ = ()

    def __str__(self) -> str:
        is_read = self.kind == "read"
        verb = "reads" if is_read else "moves"
        route = f"{self.source}" if is_read else f"{self.source} to {self.destination}"
        return f"{self.file}:{self.line}: {self.how} {verb} {self.nbytes} bytes from {route} ({self.backend})"


class TransferLog(Sequence[Record]):
    """The records of the transfers in a block, in order. It is a sequence: `log[0]`, `len(log)`, `for record in log`.
    The log can be read after the block, too."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        # False after the block: no more records are added then
        self._open = True
        self._records: list[Record] = []

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} transfers, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """The total number of bytes of all records."""
        return sum(record.nbytes for record in self._records)

    def summary(self) -> str:
        """Returns a plain-text table with one row for each call on each line. The row says how often the call was made
        and how many bytes it transferred. The row with the most bytes comes first, and the totals come last. Without
        records, returns "no transfers".

        Example:
            >>> with xdevice.transfers() as log:
            ...     pass
            >>> print(log.summary())
            no transfers
        """
        if not self._records:
            return "no transfers"
        # the number of transfers and of bytes in each row
        sums: dict[Record, tuple[int, int]] = {}
        for record in tuple(self._records):
            # transfers that differ only in their size share a row
            key = record._replace(nbytes=0)
            times, nbytes = sums.get(key, (0, 0))
            sums[key] = times + 1, nbytes + record.nbytes
        rows = [("where", "how", "backend", "kind", "from", "to", "physical", "times", "bytes")]
        # an item is a record with its two sums; `[1][1]` is the number of bytes, and the minus puts the largest first
        for record, (times, nbytes) in sorted(sums.items(), key=lambda item: -item[1][1]):
            rows.append(
                (
                    f"{record.file}:{record.line}",
                    record.how,
                    record.backend,
                    record.kind,
                    str(record.source),
                    str(record.destination),
                    "yes" if record.physical else "no",
                    str(times),
                    str(nbytes),
                )
            )
        rows.append(("total", "", "", "", "", "", "", str(len(self)), str(self.nbytes)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(_cell(text, width) for text, width in zip(row, widths, strict=True))
            for row in rows
        )


def _cell(text: str, width: int) -> str:
    """Returns a cell of the table, padded to `width`. Numbers and their headings are right-aligned; all other strings
    are left-aligned."""
    return (
        text.rjust(width) if text.isdigit() or text in ("times", "bytes") else text.ljust(width)
    )


_logs: ContextVar[tuple[TransferLog, ...]] = ContextVar("xdevice_transfers", default=())
"""The logs of the blocks that this thread or task has entered. The outermost block comes first."""


class transfers:
    """Records transfers inside a block, warns about them, or refuses them: `with xdevice.transfers("disallow"): ...`.

    Experimental: it may change in a minor version.

    A transfer is a read by the host or a copy between devices. Reads of tensors on the CPU are included, with
    `physical` False. A transfer is explicit if the program names it (`to_device`, `item`, `x.cpu()`, `x.numpy()`), and
    otherwise implicit (`float(x)`, `if x`, `print(x)`, `np.asarray(x)`, copies by an operation). A block applies to its
    own thread or task, even across an `await`, and can be nested. docs/reference/async.md describes the limits.

    Args:
        mode: as in `jax.transfer_guard`. "allow" records; "log" also warns about implicit transfers at their line;
            "disallow" refuses implicit transfers; "log_explicit" and "disallow_explicit" apply to all transfers.

    Raises:
        ArgumentError, ScopeError: if `mode` is none of these words; if the block is exited without having been entered.
        TransferError: if "disallow" or "disallow_explicit" refuses a transfer; its file and line are in `record`.
        UnsupportedError: if the transfers of a loaded third-party backend cannot be recorded.

    Inside a block, costs a few us for each transfer, and 7 us (PyTorch) or 25 us (TensorFlow) for each operation.

    Example:
        >>> with xdevice.transfers() as log:
        ...     value = xdevice.item(xdevice.ones(1))
        >>> all(record.how == "item" for record in log)  # NumPy has no transfers
        True
    """

    def __init__(self, mode: Mode = "allow") -> None:
        if mode not in (modes := get_args(Mode)):
            raise ArgumentError(
                f"transfers expects one of {', '.join(map(repr, modes))}, got {shown(mode)}"
            )
        self._mode: Mode = mode
        self._entered = OpenBlocks("transfers()")

    def __enter__(self) -> TransferLog:
        block = _Block(self._mode)
        self._entered.add(block)
        return block.log

    def __exit__(self, *_: object) -> None:
        # the second item, the id of the thread that entered the block, is not needed
        block = self._entered.take()[0]
        block.end()


class _Block:
    """One open block of `transfers`, with its log. From its creation until `end` is called, the block watches all
    backends that are loaded already, or are loaded later in the same thread."""

    def __init__(self, mode: Mode) -> None:
        self.log = TransferLog(mode)
        self._thread = threading.get_ident()
        # the names of the watched backends
        self._watched: set[str] = set()
        # closing this stack ends the watching
        self._watching = ExitStack()
        try:
            for backend in registry.list_loaded():
                self._watch(backend)
        # if one backend cannot be watched, no backend stays watched
        except BaseException:
            self._watching.close()
            raise
        registry.on_load.append(self._watch_loaded)
        _open.append(self)
        self._was_listening = listening.get()
        _logs.set((*_logs.get(), self.log))
        # this comes last, so that nothing above is reported
        listening.set(True)

    def end(self) -> None:
        """Ends the block, and stops watching. Any thread or task may end the block. If another thread or task has
        entered the block, the log stays in the `_logs` of that thread or task, but no more records are added to the
        log. Does nothing if the block has ended already."""
        # `_end_all` has ended the block already, because the program is ending
        if not self.log._open:
            return
        self.log._open = False
        _open.remove(self)
        registry.on_load.remove(self._watch_loaded)
        logs = _logs.get()
        still_open = tuple(log for log in logs if log._open)
        _logs.set(still_open)
        # blocks may be exited in any order: if this one is not the innermost, the innermost one
        # continues to listen
        if logs and logs[-1] is self.log:
            listening.set(self._was_listening and bool(still_open))
        self._watching.close()

    def _watch_loaded(self, backend: Backend) -> None:
        """Watches a backend that was loaded inside the block. Called in the thread that loads the backend."""
        # PyTorch and TensorFlow are watched in one thread only, which must be the thread of the block
        if threading.get_ident() == self._thread:
            self._watch(backend)

    def _watch(self, backend: Backend) -> None:
        """Watches a backend until the block ends. Raises `UnsupportedError` if its adapter
        cannot watch."""
        if backend.refusal is None and backend.name not in self._watched:
            self._watching.enter_context(backend.watch(_report))
            self._watched.add(backend.name)


_open: list[_Block] = []
"""The open blocks of all threads."""


def _end_all() -> None:
    """Ends the open blocks when the program ends, because watching must stop before the frameworks are torn down."""
    for block in tuple(_open):
        block.end()


workers.at_exit(_end_all)


def _report(transfer: Transfer) -> None:
    """Adds a transfer, with the line of the program that caused it, to the logs of the open blocks. Then raises
    `TransferError` or warns, if the mode of a block requires it. The adapters call this for each transfer."""
    # blocks that another thread has ended are still in the list
    logs = [log for log in _logs.get() if log._open]
    if not logs:
        return
    frame, called = _user_frame(sys._getframe(1))
    transfer = transfer._replace(file=frame.f_code.co_filename, line=frame.f_lineno)
    if called is not None:
        # the transfer is explicit, because the program called a function of xdevice. Functions of the arithmetic are an
        # exception: they read values without being asked to if a framework lacks a function
        transfer = transfer._replace(
            how=called.co_name, explicit=not called.co_filename.startswith(_ARITHMETIC)
        )
    record = Record(*transfer)
    # added before the modes are checked, because a refused transfer is recorded, too
    for log in logs:
        log._records.append(record)
    modes = {log._mode for log in logs}
    # the modes of open blocks that refuse this transfer; "disallow" applies to implicit transfers only
    refusing = modes & (
        {"disallow_explicit"} if record.explicit else {"disallow", "disallow_explicit"}
    )
    # if both modes refuse an implicit transfer, `min` names "disallow"
    if refusing:
        hint = (
            ""
            if record.explicit
            else "; if the program needs the value here, make the transfer explicit: xdevice.item(x)"
        )
        raise TransferError(
            f'{record}, inside xdevice.transfers("{min(refusing)}"); keep the value on its device, and read it '
            f"after the block, or only once in many steps{hint}",
            record,
        )
    if modes & ({"log_explicit"} if record.explicit else {"log", "log_explicit"}):
        module_globals = frame.f_globals
        # the warning is attributed to the line of the program, so that Python's warning filters
        # and its "once" apply to that line. The message begins after the file and line, which
        # Python adds to the warning
        warnings.warn_explicit(
            str(record).partition(": ")[2],
            TransferWarning,
            record.file,
            record.line,
            module=module_globals.get("__name__"),
            registry=module_globals.setdefault("__warningregistry__", {}),
        )


# finding the line of the user's code

# the folder of xdevice
_XDEVICE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_ARITHMETIC = os.path.join(_XDEVICE, "math", "arithmetic") + os.sep
_HOOKS_FILE = hooks.__file__
_STDLIB = sysconfig.get_path("stdlib") + os.sep
# installed packages, which are inside the folder of the standard library, are the user's code
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_known_files: dict[str, bool] = {}
"""Maps the name of a source file (`co_filename`) to whether the file belongs to xdevice, a framework or Python, and not
to the user's code."""


def _user_frame(frame: FrameType) -> tuple[FrameType, CodeType | None]:
    """Returns the innermost frame of the user's code at or above `frame`, and the code of the xdevice function that
    this frame called. The code is None if the frame called the framework directly."""
    inner = None
    while _is_library_file(frame.f_code.co_filename) and frame.f_back is not None:
        inner, frame = frame, frame.f_back
    if inner is not None:
        file = inner.f_code.co_filename
        # a hook is treated as the framework's function that it replaces
        if file.startswith(_XDEVICE) and file != _HOOKS_FILE and file != __file__:
            return frame, inner.f_code
    return frame, None


def _is_library_file(file: str) -> bool:
    """Whether a source file belongs to xdevice, a framework or Python, and not to the user's
    code."""
    is_library_file = _known_files.get(file)
    if is_library_file is None:
        is_stdlib = file.startswith(_STDLIB) and not file.startswith(_PACKAGES)
        is_library_file = _known_files[file] = is_stdlib or file.startswith(_library_folders())
    return is_library_file


def _library_folders() -> tuple[str, ...]:
    """Returns the folders of xdevice, of the loaded adapters, and of their frameworks. The code in these folders is not
    the user's."""
    folders = [_XDEVICE]
    for backend in registry.list_loaded():
        for name in (type(backend).__module__.partition(".")[0], *backend.modules):
            folders += [
                str(path) + os.sep for path in getattr(sys.modules.get(name), "__path__", ())
            ]
    return tuple(folders)
