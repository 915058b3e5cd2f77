"""Functions that several adapters use in their engines, which move tensors between processes (NCCL, gloo)."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """Returns the number of a port at the address `host` on which no program is listening. The port is not reserved, so
    another program may bind it before the caller does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # binds `host` itself, because a port that is free on loopback may be in use on another
        # address; with port 0 the system chooses a free port
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def address(host: str, port: int) -> str:
    """Returns the host and the port as one string, "host:port". An IPv6 address is enclosed in
    brackets, because it contains colons itself."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
