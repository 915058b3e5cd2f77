"""Compiles functions with `jax.jit`, which computes on the device of the committed arrays among a function's arguments.

Facts about JAX that the code depends on:
- jit traces the function again for new shapes, dtypes and settings, which it compares in C++.
- jit raises a ValueError for committed arrays on different devices, and silently moves uncommitted arrays to the device
  of the committed ones.
- jit stores the keys of dicts in the program, and inserts them into each result.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import jax

from xdevice.errors import DeviceMismatchError
from xdevice.math.contract.compiling import Compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.math.contract.compiling import Traced

# whether an array was put on its device explicitly; JAX moves other arrays to the device where they are needed
_is_committed = attrgetter("committed")


class JaxCompiling(Compiling):
    """Implements the capability `Compiling` for JAX. `xdevice.math.contract.compiling` documents its methods."""

    def compile(self, call: Traced, device: Device) -> Traced:
        """Returns a function that accepts a list of tensors, and returns the note and the tensors that `call` returns
        for this list. The note is a hashable object of the core, which the adapter only passes through. The returned
        function raises `DeviceMismatchError` for committed tensors on several devices."""
        # `call` returns a pair of the note and the tensors. The note becomes the key of a dict, because jit returns the
        # keys of a dict unchanged
        program: Callable[[list[Any]], dict[Any, list[Any]]] = jax.jit(
            lambda tensors: dict([call(tensors)])
        )

        def compiled(tensors: list[Any]) -> tuple[Any, list[Any]]:
            """Returns the note and the results for these tensors. At the first call with tensors of these shapes and
            dtypes, JAX compiles the program that computes the results."""
            try:
                return program(tensors).popitem()
            except ValueError as error:
                # if the tensors are on one device, the user's function has raised this error
                if len(self.devices_of(jax.Array, tensors)) == 1:
                    raise
                raise DeviceMismatchError(str(error)) from None

        return compiled

    def common_device(self, tensors: list[Any]) -> Device | None:
        """Returns the device of the tensors, or None if the core has to check each tensor. If all tensors are
        committed, returns the device of the first one, even if others are on another device."""
        # jit itself raises an error for committed arrays on several devices, so the device of the first array is enough
        if all(map(_is_committed, tensors)):
            return self.device_of(tensors[0])
        return super().common_device(tensors)
