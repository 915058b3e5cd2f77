"""Joining: rank 0 listens and starts the hub, the other ranks connect to it, and both prove that they belong to this
run."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import LaunchError, PeerError, shown

from . import wire
from .control import Line
from .hub import Hub
from .launchers import LOOPBACK, is_loopback
from .peers import Terms

if TYPE_CHECKING:
    from .launchers import Launch

TOKEN: Final = "XDEVICE_TOKEN"

_listeners: dict[tuple[str, int | None, str], socket.socket] = {}
"""The sockets that rank 0 listens on. They are kept until the process ends, because the next world of this process
uses them too."""
_worlds = 0


def join(place: Launch, timeout: float, join_timeout: float) -> Line:
    """Opens the control connection of this process, and waits until all ranks have joined.

    Raises:
        PeerError: a process has not joined in time. LaunchError: rank 0's address is not loopback and no token is set,
            or the hub refuses this process.
    """
    global _worlds
    token = (os.environ.get(TOKEN) or "").strip()
    if not token and not is_loopback(place.host):
        raise LaunchError(
            f"rank 0 is on {place.host}, beyond this machine: set {TOKEN} to a secret, the same for all processes, for "
            "instance of python -c 'import secrets; print(secrets.token_hex())'"
        )
    _worlds += 1
    terms = Terms(token, place.run, _worlds, place.size)
    line = (
        _serve(place, terms, timeout, join_timeout) if place.rank == 0 else _reach(place, terms, timeout, join_timeout)
    )
    try:
        line.wait_for_all(join_timeout)
    except BaseException:
        line.close()
        raise
    return line


def _serve(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    _allow_files(2 * place.size + 256)
    hub = Hub(_listener(place, terms), terms, timeout, join_timeout)
    (vote, hubs_vote), (pulse, hubs_pulse) = socket.socketpair(), socket.socketpair()
    hub.attach(0, hubs_vote, hubs_pulse)
    line = Line(vote, pulse, place.host, timeout, hub)
    hub.start()
    return line


def _allow_files(count: int) -> None:
    """Raises this process's limit of open files to `count`, because rank 0 needs two connections for each rank."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= count:
        return
    if hard not in (-1, resource.RLIM_INFINITY) and hard < count:
        raise LaunchError(f"rank 0 may open {hard} files here, and needs {count} to hear of all: ulimit -Hn {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _after_fork() -> None:
    """Closes the listening sockets in a forked child: they would keep the port in use if the child outlived rank 0."""
    for listener in _listeners.values():
        listener.close()
    _listeners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _listener(place: Launch, terms: Terms) -> socket.socket:
    key = place.host, place.port, place.run
    if key not in _listeners:
        _listeners[key] = _bind(place, terms)
    return _listeners[key]


def _bind(place: Launch, terms: Terms) -> socket.socket:
    refused: OSError | None = None
    for port in place.ports():
        for family, kind, protocol, _, address in _addresses(place.host, port, passive=True):
            sock = socket.socket(family, kind, protocol)
            try:
                if os.name == "posix":  # on Windows the option would let another process listen on the same port
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                sock.listen(1024)
                return sock
            except OSError as error:
                refused = error
                sock.close()
        _connect(place, port, terms, "vote")  # raises if another rank 0 of this run listens on the port
    raise LaunchError(
        f"rank 0 cannot listen on {place.host}, port {', '.join(map(str, place.ports()))}: {refused}; name a free port "
        "of its machine by XDEVICE_ADDRESS=host:port"
    )


def _addresses(host: str, port: int, passive: bool = False) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE if passive else 0)
    except OSError as error:
        raise LaunchError(f"the host {shown(host)} of rank 0 is not known here: {error}") from None


def _reach(place: Launch, terms: Terms, timeout: float, join_timeout: float) -> Line:
    until = time.monotonic() + join_timeout
    while True:
        for port in place.ports():
            vote = _connect(place, port, terms, "vote")
            if vote is None:
                continue
            pulse = _connect(place, port, terms, "pulse")
            if pulse is not None:
                host = LOOPBACK if is_loopback(place.host) else vote.getsockname()[0]
                return Line(vote, pulse, host, timeout, None)
            vote.close()
        if time.monotonic() > until:
            raise PeerError(
                f"rank 0 has not joined within {join_timeout:g} s: nobody of this run listens on {place.host}, port "
                f"{', '.join(map(str, place.ports()[:4]))}",
                0,
                "never joined",
            )
        time.sleep(0.05)


def _connect(place: Launch, port: int, terms: Terms, line: str) -> socket.socket | None:
    """Opens a connection to this run's hub; returns None if the hub does not listen on this port."""
    try:
        family, kind, protocol, _, address = _addresses(place.host, port)[0]
        sock = socket.socket(family, kind, protocol)
    except (LaunchError, OSError):
        return None  # the host's name may become known later: the caller tries again
    sock.settimeout(5)
    try:
        sock.connect(address)
        refusal = _greet(sock, place, terms, line)
    except (OSError, ValueError):
        sock.close()
        return None
    if refusal is None:
        return sock
    sock.close()
    if refusal.get("why") == "run":
        return None
    if refusal.get("why") == "token":
        text = f"refuses this process: its {TOKEN} is another one, or its run is"
        if place.port is None and is_loopback(place.host):
            return None  # another run listens at this port
    else:
        text = f"refuses this process: {refusal.get('text')}"
    raise LaunchError(f"rank 0 at {place.host}:{port} {text}")


def _greet(sock: socket.socket, place: Launch, terms: Terms, line: str) -> dict[str, Any] | None:
    """Makes the handshake, in which both sides prove that they belong to this run. Returns None, or the reason why the
    hub refuses this process."""
    kind, text = _read(sock)
    greeting = wire.GREETING.decode()
    if kind != b"H" or not text.startswith(greeting):
        return {"why": "run"}
    own = wire.nonce()
    told: list[object] = [place.rank, line, terms.run, terms.world, terms.size, own]
    hello = dict(zip(("rank", "line", "run", "world", "size", "nonce"), told, strict=True))
    pid = f"{socket.gethostname()}/{os.getpid()}"
    hello |= {"proof": wire.proof(terms.key, text[len(greeting) :], *told), "pid": pid}
    body = json.dumps(hello).encode()
    sock.sendall(len(body).to_bytes(4, "big") + b"h" + body)
    kind, text = _read(sock)
    if kind == b"K":
        return None if wire.is_proof(text, terms.key, own, "hub") else {"why": "token"}
    return wire.parse(text) or {"why": "run"}


def _read(sock: socket.socket) -> tuple[bytes, str]:
    """Reads one frame (a message of the control connection), and no byte of the next."""
    head = _exactly(sock, 5)
    length = int.from_bytes(head[:4], "big")
    if length > wire.MOST_BEFORE:
        raise ValueError("another protocol")
    return head[4:], _exactly(sock, length).decode("utf-8", "replace")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
