"""A relay in this process, through which JAX reaches its coordination service in rank 0.

If rank 0 dies, the relay keeps JAX's connection open. Otherwise JAX would end this process at
once, before it can raise the error that names rank 0: JAX treats the service as vital
(https://github.com/jax-ml/jax/pull/39095 documents that).

On GPUs, JAX 0.11 asks the service for the states of the ranks until the process ends, even
after it has left the service. So the service would wait for 5 s when it ends, and JAX would
print that the connection is lost: the relay cuts only its own connection to the service
(`leave`).
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
"""How many bytes are passed on at once, at most."""
_has_left: Final = threading.Event()
"""Set once this process has left the service."""
_to_service: Final[list[socket.socket]] = []
"""The relay's connections to the service."""


def to(coordinator: str) -> str:
    """Starts a relay to `coordinator`, the address of the service, such as "10.0.0.1:1234".
    Returns the address on loopback at which the relay listens: all bytes that come to it are
    passed on to the service, and back."""
    host, _, port = coordinator.rpartition(":")
    listener = socket.create_server((_LOOPBACK, 0))
    _start(_accept, listener, (host.strip("[]"), int(port)))
    return f"{_LOOPBACK}:{listener.getsockname()[1]}"


def leave() -> None:
    """Ends the connections to the service, and keeps those to JAX, which has left it."""
    _has_left.set()
    for far in _to_service:
        # a connection that the service has ended cannot be shut down again
        with suppress(OSError):
            # `close` would not wake the thread that waits in `recv`
            far.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, service: tuple[str, int]) -> None:
    """Accepts JAX's connections for ever, and connects each to the service, whose address is
    `service`. After `leave`, keeps JAX's new connections open without connecting them."""
    open_sockets = []
    while True:
        near, _ = listener.accept()
        if _has_left.is_set():
            # Python closes a socket that nothing refers to, and JAX would notice that
            open_sockets.append(near)
            continue
        try:
            far = socket.create_connection(service)
        except OSError:  # the service does not listen yet: JAX tries again
            near.close()
            continue
        _to_service.append(far)
        _start(_send, near, far)
        _start(_receive, near, far)


def _send(near: socket.socket, far: socket.socket) -> None:
    """Passes on the bytes from JAX, whose connection is `near`, to the service, at `far`, until
    JAX closes `near`. Goes on reading after the service has ended."""
    with suppress(OSError):
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # the service has ended, which JAX must not notice
                far.sendall(data)
    for connection in (near, far):
        connection.close()


def _receive(near: socket.socket, far: socket.socket) -> None:
    """Passes on the bytes from the service, at `far`, to JAX, whose connection is `near`, until
    the service ends."""
    with suppress(OSError):
        # `near` stays open when the service has ended: JAX would end this process otherwise
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _start(function: Callable[..., None], *arguments: Any) -> None:
    """Starts a thread that calls `function` with these arguments."""
    # a daemon, because it waits on its socket for ever, and would keep the process from ending
    threading.Thread(target=function, args=arguments, name="xdevice relay", daemon=True).start()
