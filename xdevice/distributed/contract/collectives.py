"""Functions that several adapters use in their engines, which move tensors between processes (NCCL, gloo)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives


def require_fit(backend: Primitives, name: str, device: Device) -> None:
    """Raises `UnsupportedError` if the engine `name` cannot take tensors on `device`: NCCL takes tensors on real GPUs
    only, every other engine only tensors in host memory, where those of virtual GPUs are too."""
    if (name == "nccl") != (device.kind == "gpu" and not backend.virtual):
        raise backend.unsupported(
            f"the engine {name} for what is on {device}", "choose engine='auto'"
        )


def refusal_of_order(verb: str, op: str | None, dtype: str) -> str | None:
    """Returns why no framework can reduce tensors of this dtype by `op`: complex numbers have no order, and bools are
    not added. Returns None if neither is the reason."""
    if verb not in ("all_reduce", "reduce_scatter"):
        return None
    if op != "sum" and dtype.startswith("complex"):
        return "complex numbers have no order"
    if op == "sum" and dtype == "bool":
        return "truth values have no sum; count them as int64"
    return None


def own_part(x: Any, rank: int, size: int) -> Any:
    """Returns the part of `x` that belongs to `rank` if `x` is cut into `size` equal parts along its first axis, as a
    view."""
    length = x.shape[0] // size
    return x[rank * length : (rank + 1) * length]


def free_port(host: str) -> int:
    """Returns a port of `host` on which no program listens now. The caller binds it later, and until then another
    program could take it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def address(host: str, port: int) -> str:
    """Returns host and port in one text, as gRPC and others spell it: an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
