"""Functions that several adapters use in their engines, which move tensors between processes (NCCL, gloo)."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """Returns a port of `host` on which no program is listening. The caller binds it later, and until then another
    program could take it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # at this very address: a port that is free on loopback may be taken on another
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def address(host: str, port: int) -> str:
    """Returns host and port in one text, as gRPC and others spell it: an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
