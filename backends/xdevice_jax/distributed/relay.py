"""Runs a relay in this process through which JAX connects to its coordination service in rank 0.

If rank 0 dies, the relay keeps JAX's connection open. Without the relay, JAX would end this process before the process
could raise the error that names rank 0. The reason is that JAX treats the service as vital
(https://github.com/jax-ml/jax/pull/39095 documents this).

On GPUs, JAX 0.11 requests the states of the ranks from the service until the process ends, even after JAX has left the
service. As a result, the service would wait for 5 s when it ends, and JAX would print that the connection is lost. To
prevent this, `leave` cuts only the relay's own connection to the service.
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
"""The maximum number of bytes that are forwarded at once."""
_has_left: Final = threading.Event()
"""Set once this process has left the service."""
_to_service: Final[list[socket.socket]] = []
"""The relay's connections to the service."""


def to(coordinator: str) -> str:
    """Starts a relay to `coordinator`, the address of the service, such as "10.0.0.1:1234". Returns the address on
    loopback at which the relay listens. The relay forwards all bytes in both directions."""
    host, _, port = coordinator.rpartition(":")
    listener = socket.create_server((_LOOPBACK, 0))
    _start(_accept, listener, (host.strip("[]"), int(port)))
    return f"{_LOOPBACK}:{listener.getsockname()[1]}"


def leave() -> None:
    """Ends the relay's connections to the service, which JAX has already left, but keeps the connections to JAX
    open."""
    _has_left.set()
    for far in _to_service:
        # a connection that the service has already ended cannot be shut down again
        with suppress(OSError):
            # `close` would not wake up the thread that is waiting in `recv`
            far.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, service: tuple[str, int]) -> None:
    """Accepts JAX's connections in an endless loop, and connects each one to the service at the address `service`.
    After `leave`, keeps JAX's new connections open without connecting them to the service."""
    open_sockets = []
    while True:
        near, _ = listener.accept()
        if _has_left.is_set():
            # Python would close a socket to which nothing refers, and JAX would notice that
            open_sockets.append(near)
            continue
        try:
            far = socket.create_connection(service)
        except OSError:  # the service is not listening yet, so JAX will try again
            near.close()
            continue
        _to_service.append(far)
        _start(_send, near, far)
        _start(_receive, near, far)


def _send(near: socket.socket, far: socket.socket) -> None:
    """Forwards the bytes from JAX (the connection `near`) to the service (the connection `far`) until JAX closes
    `near`. Continues to read after the service has ended."""
    with suppress(OSError):
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # the service has ended, which JAX must not notice
                far.sendall(data)
    for connection in (near, far):
        connection.close()


def _receive(near: socket.socket, far: socket.socket) -> None:
    """Forwards the bytes from the service (the connection `far`) to JAX (the connection `near`) until the service
    ends."""
    with suppress(OSError):
        # `near` stays open after the service has ended, because JAX would otherwise end this process
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _start(function: Callable[..., None], *arguments: Any) -> None:
    """Starts a thread that calls `function` with these arguments."""
    # a daemon thread, because it waits on its socket forever, and would keep the process from ending
    threading.Thread(target=function, args=arguments, name="xdevice relay", daemon=True).start()
