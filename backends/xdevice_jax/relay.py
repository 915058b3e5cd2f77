"""A relay in this process, by way of which JAX reaches its coordination service in rank 0.

If rank 0 dies, the relay keeps JAX's connection open. Otherwise JAX would end this process at once.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOPBACK: Final = "127.0.0.1"
_CHUNK: Final = 65536


def to(coordinator: str) -> str:
    """Listens on loopback, and returns the address. What is sent there goes to `coordinator`, as "10.0.0.1:1234", and
    the other way round."""
    host, _, port = coordinator.rpartition(":")
    listener = socket.create_server((_LOOPBACK, 0))
    _start(_accept, listener, (host.strip("[]"), int(port)))
    return f"{_LOOPBACK}:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, there: tuple[str, int]) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(there)
        except OSError:  # the service does not listen yet: JAX tries again
            near.close()
            continue
        _start(_send, near, far)
        _start(_receive, near, far)


def _send(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # rank 0 has died, which JAX must not notice
                far.sendall(data)
    for one in (near, far):
        one.close()


def _receive(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _start(function: Callable[..., None], *given: Any) -> None:
    threading.Thread(target=function, args=given, name="xdevice relay", daemon=True).start()
