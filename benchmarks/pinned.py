"""Copies between a GPU and page-locked memory that is there already, in each framework's own words: no copy of ordinary
memory can beat them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Copy = Callable[[], object]


def pinned_copies(name: str, framework: Any, x: Any) -> tuple[Copy, Copy] | None:
    """One function that copies pinned memory to the GPU of `x`, and one that copies `x` to pinned memory; None for a
    framework without pinned memory."""
    if name == "torch":
        host, there = (
            framework.empty_like(x, device="cpu", pin_memory=True),
            framework.empty_like(x),
        )
        return lambda: there.copy_(host, non_blocking=True), lambda: host.copy_(
            x, non_blocking=True
        )
    if name == "jax":
        pinned = x.sharding.with_memory_kind("pinned_host")
        host = framework.device_put(x, pinned)
        return lambda: framework.device_put(host, x.sharding), lambda: framework.device_put(
            x, pinned
        )
    if name == "paddle":
        pinned = framework.CUDAPinnedPlace()
        host = x._copy_to(pinned, True)
        return lambda: host._copy_to(x.place, False), lambda: x._copy_to(pinned, False)
    if name == "mxnet":
        host, there = x.copyto(framework.cpu_pinned(x.ctx.device_id)), x.copyto(x.ctx)
        return lambda: host.copyto(there), lambda: x.copyto(host)
    return None
