"""Functions that several adapters use in their engines, which move tensors between processes (NCCL, gloo)."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """Returns the number of a port of the address `host` on which no program is listening. The
    port is not reserved: another program may take it before the caller binds it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # at this very address, because a port that is free on loopback may be taken on another
        # address; for 0 the system chooses a port
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def address(host: str, port: int) -> str:
    """Returns host and port in one text, "host:port". An IPv6 address, which has colons itself,
    is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
