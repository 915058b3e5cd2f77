"""The output that `xdevice launch` prints: that of all ranks, line by line, with the rank in front."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

_UPDATE: Final = 1.0
"""A line that a program keeps overwriting, such as a progress bar, is shown again only after this many seconds."""
_KEPT: Final = 400
"""How many of the last lines of a rank's standard error are kept, to be shown again at the end."""
_SHOWN: Final = 5
"""How many of the kept lines are shown if there is no traceback among them."""
_LONGEST: Final = 2**16
"""The most bytes in a line: output without line breaks, such as a dump of bytes, is shown in pieces of this length."""
_TRACEBACK: Final = "Traceback (most recent call last)"

_printing = threading.RLock()  # reentrant, because `write` calls `say`, which writes too


def say(text: str) -> None:
    write(sys.stderr, f"xdevice launch: {text}\n".encode())


def write(stream: TextIO | None, lines: bytes) -> None:
    """Writes whole lines at once, as the bytes that the program wrote. If that fails, the lines are lost, and the
    program goes on."""
    if stream is None:  # the launcher was started with this stream closed
        return
    with _printing:
        try:
            stream.buffer.write(lines)
            stream.flush()
        except (OSError, ValueError) as error:
            _mute(stream)
            # a closed pipe, as after `| head`, is what the user wanted, and stderr cannot report its own failure
            if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
                say(f"the output can no longer be shown, and the ranks go on: {error}")


def _mute(stream: TextIO) -> None:
    """Discards everything that is written from now on: the bytes that the stream still holds would fail again at each
    write."""
    # the descriptor is replaced, not the stream, because other code holds the stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    return stream is None or stream.closed or stream.isatty()


class RankOutput:
    """Shows what one rank prints: two threads read its standard output and its standard error. With `folder`, both are
    also written into a file there."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], folder: Path | None
    ) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT)
        self._threads = []
        self._log = _Log(folder / f"rank_{rank}.log") if folder is not None else None
        for source, target, kept in (
            (process.stdout, sys.stdout, None),
            (process.stderr, sys.stderr, self._kept),
        ):
            if source is not None:
                lines = Lines(f"[{rank}] ".encode(), target, kept, self._log)
                # a thread for each stream: a rank would stop at a full pipe that nobody reads
                thread = threading.Thread(target=_read, args=(source, lines), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Waits for the last output of the rank, half a second at most: a process that the rank has left behind may
        keep the streams open."""
        for thread in self._threads:
            thread.join(0.5)
        if self._log is not None and not any(thread.is_alive() for thread in self._threads):
            self._log.close()

    def last_lines(self) -> Sequence[str]:
        lines = list(self._kept)
        # the last traceback is the one that ended the process; those before it are its causes or were handled
        starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        return lines[starts[-1] :] if starts else lines[-_SHOWN:]


def _read(source: IO[bytes], lines: Lines) -> None:
    with source:
        while read := os.read(source.fileno(), 65536):
            lines.take(read)
    lines.end()


class _Log:
    """A file to which the lines that a rank prints are appended, output and errors."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._is_full = False

    def write(self, lines: bytes) -> None:
        try:
            self._file.write(lines)
        except OSError as error:
            if not self._is_full:
                say(f"{self._file.name} cannot be written, and the ranks go on: {error}")
            self._is_full = True

    def close(self) -> None:
        self._file.close()


class Lines:
    """Takes a program's output as bytes, in pieces of any length, and writes whole lines with a prefix.

    A line that the program overwrites with carriage returns, as progress bars do, is shown once a second, and in its
    last state. Colours are kept, and reset at the end of the line.
    """

    def __init__(
        self,
        prefix: bytes,
        target: TextIO | None,
        kept: deque[str] | None = None,
        log: _Log | None = None,
    ) -> None:
        self._prefix, self._target, self._kept, self._log = prefix, target, kept, log
        self._rest = b""
        self._updated = 0.0

    def take(self, read: bytes) -> None:
        """Takes the next bytes, shows the lines that are complete, and a line that is being overwritten once a
        second."""
        # a read may end in the middle of a line, which waits for the rest
        *lines, self._rest = (self._rest + read).split(b"\n")
        self._show(*map(_last_state, lines))
        if len(self._rest) > _LONGEST:
            self._show(_last_state(self._rest))
            self._rest = b""
        *states, current = self._rest.split(b"\r")
        state = next((state for state in reversed(states) if state), b"")
        if not state:
            return
        self._rest = current or state + b"\r"
        now = time.monotonic()
        if now - self._updated >= _UPDATE:
            self._updated = now
            self._show(state)
            self._rest = current

    def end(self) -> None:
        # a program may end without a last line break
        if self._rest:
            self._show(_last_state(self._rest))

    def _show(self, *lines: bytes) -> None:
        """Prints the lines with the rank's prefix, and keeps them for the log and for the report of a failure."""
        if self._kept is not None:
            self._kept.extend(line.decode(errors="replace") for line in lines)
        if self._log is not None:
            self._log.write(b"".join(line + b"\n" for line in lines))
        write(
            self._target, b"".join(self._prefix + line + _reset(line) + b"\n" for line in lines)
        )


def _reset(line: bytes) -> bytes:
    return b"\x1b[0m" if b"\x1b[" in line else b""


def _last_state(line: bytes) -> bytes:
    """The text that a terminal shows after a line with carriage returns in it. One before the line break changes
    nothing."""
    return next((state for state in reversed(line.split(b"\r")) if state), b"")
