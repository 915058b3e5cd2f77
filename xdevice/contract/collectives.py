"""Functions that the adapters' engines for several processes share."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdevice.base.devices import Device

    from .primitives import Primitives


def require_fit(backend: Primitives, name: str, device: Device) -> None:
    """Raises if the engine cannot reach the device: NCCL takes tensors on GPUs, any other engine those on the host,
    where virtual GPUs are too."""
    if (name == "nccl") != (device.kind == "gpu" and not backend.virtual):
        raise backend.unsupported(f"the engine {name} for what is on {device}", "choose engine='auto'")


def refusal_of_order(verb: str, op: str | None, dtype: str) -> str | None:
    """Why no framework can do this: complex numbers have no order, and bools are not added. None if it can."""
    if verb not in ("all_reduce", "reduce_scatter"):
        return None
    if op != "sum" and dtype.startswith("complex"):
        return "complex numbers have no order"
    if op == "sum" and dtype == "bool":
        return "truth values have no sum; count them as int64"
    return None


def own_part(x: Any, rank: int, size: int) -> Any:
    """One rank's part along the first axis, as a view."""
    length = x.shape[0] // size
    return x[rank * length : (rank + 1) * length]


def free_port(host: str) -> int:
    """A port of `host` on which nobody listens now. It is bound later, and until then another program could take it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def address(host: str, port: int) -> str:
    """Host and port in one text, as gRPC and others spell it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
