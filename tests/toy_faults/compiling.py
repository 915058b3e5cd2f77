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


def _elsewhere(adapter, note, made):
    return note, [adapter.copy(x, devices.of("gpu", 1)) for x in made]


swap(
    "compile",
    "repeats its first result",
    _SAME,
    lambda _, adapter: lambda call, device: _once(call),
)
swap(
    "common_device",
    "looks at the first tensor only",
    "a_compiled_function_refuses_tensors_of_two_devices",
    lambda _, adapter: lambda tensors: adapter.device_of(tensors[0]),
    raises=(RuntimeError,),
)
swap(
    "compile",
    "returns results on another device",
    _SAME,
    lambda _, adapter: lambda call, device: lambda xs: _elsewhere(adapter, *call(xs)),
)
