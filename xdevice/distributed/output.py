"""Shows the output of all ranks for `xdevice launch`, line by line. Each line begins with the
number of its rank."""

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

_UPDATE_SECONDS: Final = 1.0
"""The number of seconds after which a line that a program overwrites, such as a progress bar,
is shown again."""
_KEPT_LINES: Final = 400
"""The number of lines that are stored from the end of a rank's standard error. The lines are shown again if the rank
fails."""
_SHOWN_LINES: Final = 5
"""The number of stored lines that are shown if they contain no traceback."""
_MAX_LINE: Final = 2**16
"""The maximum length of a line, in bytes. Output without line breaks, such as a dump of bytes,
is shown in pieces when it exceeds this length."""
_TRACEBACK: Final = "Traceback (most recent call last)"

# reentrant, because `write` may call `say`, which writes too
_printing = threading.RLock()


def say(text: str) -> None:
    """Prints a message of the launcher itself to standard error."""
    write(sys.stderr, f"xdevice launch: {text}\n".encode())


def write(stream: TextIO | None, lines: bytes) -> None:
    """Writes `lines`, the bytes of whole lines, to `stream`, one of the launcher's own streams.
    If this fails, these lines and all later lines are lost, and the launcher continues. Does
    nothing if `stream` is None."""
    # Python sets a stream to None if it was closed when the launcher started
    if stream is None:
        return
    with _printing:
        try:
            stream.buffer.write(lines)
            stream.flush()
        except (OSError, ValueError) as error:
            _mute(stream)
            # a closed pipe, as after `| head`, is what the user wanted, and stderr cannot
            # report its own failure
            if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
                say(f"the output can no longer be shown, but the ranks continue: {error}")


def _mute(stream: TextIO) -> None:
    """Discards everything that is written to a stream from now on. Otherwise, every later write would try again to
    flush the bytes that are left in the stream's buffer, and would fail again."""
    # replaces the file descriptor and not the stream, because other code refers to the stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def must_not_be_read(stream: TextIO | None) -> bool:
    """Whether a rank must not read its input from this stream of the launcher. Returns True if the stream is a
    terminal, is closed, or is None."""
    return stream is None or stream.closed or stream.isatty()


class RankOutput:
    """Shows the output of one rank: two threads read its standard output and its standard
    error. If `folder` is not None, both are also written to a file in that folder."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], folder: Path | None
    ) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._threads = []
        self._log = _Log(folder / f"rank_{rank}.log") if folder is not None else None
        # only the lines of standard error are kept, because they contain the traceback
        for source, target, kept in (
            (process.stdout, sys.stdout, None),
            (process.stderr, sys.stderr, self._kept),
        ):
            # never None, because the launcher starts each rank with pipes for both streams
            if source is not None:
                lines = Lines(f"[{rank}] ".encode(), target, kept, self._log)
                # one thread for each stream, because a rank that writes to a full pipe stops
                # until the pipe is read
                thread = threading.Thread(target=_read, args=(source, lines), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Waits for the last output of the rank, then closes the file. Waits at most half a second for each stream,
        because a process that the rank has left behind may keep the streams open."""
        for thread in self._threads:
            thread.join(0.5)
        if self._log is not None and not any(thread.is_alive() for thread in self._threads):
            self._log.close()

    def last_lines(self) -> Sequence[str]:
        """Returns the lines of the rank's standard error from its last traceback on. If there
        is no traceback, returns the last five lines."""
        lines = list(self._kept)
        # the error in the last traceback has ended the process; the earlier ones are its
        # causes, or were handled
        starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        return lines[starts[-1] :] if starts else lines[-_SHOWN_LINES:]


def _read(source: IO[bytes], lines: Lines) -> None:
    """Runs in a thread: passes the output of a rank to `lines`, until the stream ends."""
    with source:
        while data := os.read(source.fileno(), 65536):
            lines.take(data)
    lines.end()


class _Log:
    """A file for the output of one rank. The lines of the rank's standard output and standard error are appended to the
    file. If the file cannot be written, the lines are lost, and a message is printed once.
    """

    def __init__(self, path: Path) -> None:
        # unbuffered, so that the file is complete if the launcher is killed
        self._file = path.open("ab", buffering=0)
        self._has_failed = False

    def write(self, lines: bytes) -> None:
        """Appends whole lines to the file."""
        try:
            self._file.write(lines)
        except OSError as error:
            if not self._has_failed:
                say(f"{self._file.name} cannot be written, but the ranks continue: {error}")
            self._has_failed = True

    def close(self) -> None:
        self._file.close()


class Lines:
    """Receives a program's output as bytes, in pieces of any length, and writes whole lines with a prefix.

    A line that the program overwrites with carriage returns, as progress bars do, is shown once
    a second, in its latest state. Colours are preserved, and reset at the end of the line.

    Args:
        prefix: the bytes in front of each line.
        target: the stream to which the lines are written; None to write nothing.
        kept: if not None, the lines are appended to it as strings, without the prefix.
        log: if not None, the file to which the lines are also written, without the prefix.
    """

    def __init__(
        self,
        prefix: bytes,
        target: TextIO | None,
        kept: deque[str] | None = None,
        log: _Log | None = None,
    ) -> None:
        self._prefix, self._target, self._kept, self._log = prefix, target, kept, log
        # the bytes of the last line, which is not complete yet
        self._rest = b""
        # the time at which an incomplete line was last shown
        self._updated = 0.0

    def take(self, data: bytes) -> None:
        """Receives the next bytes, and shows the lines that are complete. A line that is being
        overwritten is shown once a second."""
        # the bytes may end in the middle of a line; this part is stored until the next bytes arrive
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._show(*map(_last_state, lines))
        # output without line breaks is shown in pieces
        if len(self._rest) > _MAX_LINE:
            self._show(_last_state(self._rest))
            self._rest = b""
        # a program overwrites a line by writing a carriage return and the next state of the line. The states before
        # the last carriage return are complete; the state after it may be incomplete
        *states, current = self._rest.split(b"\r")
        latest = next((state for state in reversed(states) if state), b"")
        # no state is complete yet
        if not latest:
            return
        # only the latest complete state is stored, and only until the next state begins
        self._rest = current or latest + b"\r"
        now = time.monotonic()
        if now - self._updated >= _UPDATE_SECONDS:
            self._updated = now
            self._show(latest)
            # the complete state must not be shown again
            self._rest = current

    def end(self) -> None:
        """Shows the last line, if the output has ended without a line break."""
        if self._rest:
            self._show(_last_state(self._rest))

    def _show(self, *lines: bytes) -> None:
        """Writes the lines to `target` with the prefix, and to `kept` and `log` without the prefix."""
        if self._kept is not None:
            self._kept.extend(line.decode(errors="replace") for line in lines)
        if self._log is not None:
            self._log.write(b"".join(line + b"\n" for line in lines))
        write(
            self._target, b"".join(self._prefix + line + _reset(line) + b"\n" for line in lines)
        )


def _reset(line: bytes) -> bytes:
    """Returns the escape sequence that resets a terminal's colours if the line may have changed the colours, and
    otherwise b""."""
    return b"\x1b[0m" if b"\x1b[" in line else b""


def _last_state(line: bytes) -> bytes:
    """Returns the part of a line with carriage returns that a terminal shows: the last part
    that is not empty. A carriage return at the end of the line changes nothing."""
    return next((state for state in reversed(line.split(b"\r")) if state), b"")
