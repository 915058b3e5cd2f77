"""Runs a relay in this process through which JAX connects to its coordination service in rank 0.

If rank 0 dies, the relay keeps JAX's connection open. Without the relay, JAX would end this process before the process
could raise the error that names rank 0. The reason is that JAX treats the service as vital
(https://github.com/jax-ml/jax/pull/39095 documents this).

On GPUs, JAX 0.11 requests the states of the ranks from the service until the process ends, even after JAX has left the
service. As a result, the service would wait for 5 s when it ends, and JAX would print that the connection is lost. To
prevent this, `leave_service` cuts only the relay's own connection to the service.
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


def start(coordinator: str) -> str:
    """Starts a relay to `coordinator`, the address of the service, such as "10.0.0.1:1234". Returns the address on
    loopback at which the relay listens. The relay forwards all bytes in both directions."""
    host, _, port = coordinator.rpartition(":")
    listener = socket.create_server((_LOOPBACK, 0))
    _start_thread(_accept, listener, (host.strip("[]"), int(port)))
    return f"{_LOOPBACK}:{listener.getsockname()[1]}"


def leave_service() -> None:
    """Ends the relay's connections to the service, which JAX has already left, but keeps the connections to JAX
    open."""
    _has_left.set()
    for connection in _to_service:
        # a connection that the service has already ended cannot be shut down again
        with suppress(OSError):
            # `close` would not wake up the thread that is waiting in `recv`
            connection.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, service: tuple[str, int]) -> None:
    """Accepts JAX's connections in an endless loop, and makes a connection to the service at the address `service` for
    each one. After `leave_service`, keeps JAX's new connections open without connecting them to the service."""
    open_sockets = []
    while True:
        jax_side, _ = listener.accept()
        if _has_left.is_set():
            # Python would close a socket to which nothing refers, and JAX would notice that
            open_sockets.append(jax_side)
            continue
        try:
            service_side = socket.create_connection(service)
        except OSError:  # the service is not listening yet, so JAX will try again
            jax_side.close()
            continue
        _to_service.append(service_side)
        _start_thread(_forward_to_service, jax_side, service_side)
        _start_thread(_forward_to_jax, jax_side, service_side)


def _forward_to_service(jax_side: socket.socket, service_side: socket.socket) -> None:
    """Forwards the bytes from JAX (the connection `jax_side`) to the service (the connection `service_side`) until JAX
    closes `jax_side`. Continues to read after the service has ended."""
    with suppress(OSError):
        while data := jax_side.recv(_CHUNK):
            with suppress(OSError):  # the service has ended, which JAX must not notice
                service_side.sendall(data)
    for connection in (jax_side, service_side):
        connection.close()


def _forward_to_jax(jax_side: socket.socket, service_side: socket.socket) -> None:
    """Forwards the bytes from the service (the connection `service_side`) to JAX (the connection `jax_side`) until the
    service ends."""
    with suppress(OSError):
        # `jax_side` stays open after the service has ended, because JAX would otherwise end this process
        while data := service_side.recv(_CHUNK):
            jax_side.sendall(data)


def _start_thread(function: Callable[..., None], *arguments: Any) -> None:
    """Starts a thread that calls `function` with these arguments."""
    # a daemon thread, because it waits on its socket forever, and would keep the process from ending
    threading.Thread(target=function, args=arguments, name="xdevice relay", daemon=True).start()
