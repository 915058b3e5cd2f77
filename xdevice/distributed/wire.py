"""The protocol of the control connection between the ranks: framed text messages, and the handshake that proves who
connects. Tensors do not travel on it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

GREETING: Final = b"xdevice control 1 "
NONCE: Final = 32
"""How many hexadecimal digits a nonce has (the random text that the other side must answer in the handshake)."""
MOST: Final = 64 * 2**20
"""The most bytes that a frame (a message on the control connection) may have."""
MOST_BEFORE: Final = 4096
"""The most bytes that a frame may have before the other side has proved that it knows the token."""

_HEAD: Final = struct.Struct("!Ic")
_open: weakref.WeakSet[Conn] = weakref.WeakSet()


class Conn:
    """One end of a socket connection that never blocks: it buffers outgoing frames until they can be sent, and incoming
    ones until they are complete."""

    def __init__(self, sock: socket.socket, most: int = MOST) -> None:
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.most = most
        self.out = bytearray()
        self.is_open = True
        self._in = bytearray()
        _open.add(self)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: bytes, text: str = "") -> None:
        """Sends a frame; what the socket does not take now is kept for `flush`. Never raises: a lost connection shows
        in `frames`."""
        body = text.encode("utf-8", "backslashreplace")
        frame = _HEAD.pack(len(body), kind) + body
        if self.out:
            self.out += frame
            return
        try:
            sent = self.sock.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return
        if sent < len(frame):
            self.out += memoryview(frame)[sent:]

    def flush(self) -> None:
        while self.out:
            try:
                sent = self.sock.send(self.out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.out.clear()
                return
            del self.out[:sent]

    def frames(self) -> Iterator[tuple[bytes, str]]:
        """Yields the frames that have arrived completely. Sets `is_open` to False if the other end has closed the
        connection."""
        while True:
            try:
                data = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.is_open = False
                break
            self._in += data
            if len(data) < 65536:
                break
        while len(self._in) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._in)
            if length > self.most:
                self.is_open = False
                return
            if len(self._in) < _HEAD.size + length:
                return
            body = bytes(self._in[_HEAD.size : _HEAD.size + length])
            del self._in[: _HEAD.size + length]
            yield kind, body.decode("utf-8", "replace")

    def close(self) -> None:
        self.is_open = False
        self.sock.close()


def finish(conn: Conn) -> None:
    """Closes the sending direction of the connection: the other side reads the last frame, and then the end of the
    stream."""
    try:
        conn.sock.shutdown(socket.SHUT_WR)
    except OSError:
        conn.is_open = False


def is_delivered(conn: Conn) -> bool:
    """Whether everything sent has been acknowledged by the other machine's system, which keeps it until the program
    reads it."""
    if conn.out:
        return False
    try:
        import fcntl
        import termios

        return int.from_bytes(fcntl.ioctl(conn.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder) == 0
    except (ImportError, OSError):
        return False


def _after_fork() -> None:
    """Closes all connections in a forked child: open in the child, they would hide the parent's death from the other
    ranks."""
    for conn in list(_open):
        conn.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# the handshake: either side proves that it knows the key, without sending it


def nonce() -> str:
    return os.urandom(NONCE // 2).hex()


def proof(key: str, *parts: object) -> str:
    """A text that only somebody who knows the key can compute from these parts (an HMAC)."""
    return hmac.new(key.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_proof(claimed: object, key: str, *parts: object) -> bool:
    return isinstance(claimed, str) and hmac.compare_digest(
        claimed.encode("utf-8", "replace"), proof(key, *parts).encode()
    )


def parse(text: str) -> dict[str, Any]:
    """The JSON object in the text of a frame; {} if the text is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
