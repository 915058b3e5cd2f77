"""Faults of compiled functions."""

from __future__ import annotations

from xdevice.base import devices

from .planting import swap

_SAME = "a_compiled_function_gives_what_the_function_gives"


def _once(call):
    made = []

    def program(tensors):
        if not made:
            made.append(call(tensors))
        return made[0]

    return program


swap("compile", "repeats its first result", _SAME, lambda _, adapter: lambda call, device: _once(call))
swap(
    "compile",
    "gives results on another device",
    _SAME,
    lambda _, adapter: lambda call, device: lambda xs: [adapter.copy(x, devices.of("gpu", 1)) for x in call(xs)],
)
