"""Compiles functions by `jax.jit`, which computes where the committed arrays are that a function is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.compiling import Compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device


class JaxCompiling(Compiling):
    def compile(self, call: Callable[[list[Any]], list[Any]], device: Device) -> Callable[[list[Any]], list[Any]]:
        compiled: Callable[[list[Any]], list[Any]] = jax.jit(call)
        return compiled
