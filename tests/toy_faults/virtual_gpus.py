"""Faults of virtual GPUs."""

from __future__ import annotations

from .planting import (
    VIRTUAL,
    child,
)

_LOADS = "loading_is_light_locked_and_safe_to_fork"
child(
    "why_no_virtual_gpus",
    "returns no reason, although they are not possible",
    VIRTUAL,
    "cls.make_virtual_gpus = lambda self, n: None\ntoyframe._gpus = 0",
)
child(
    "make_virtual_gpus",
    "creates one too few",
    VIRTUAL,
    "make = toyframe.make_gpus\ntoyframe.make_gpus = lambda n: make(n - 1)",
)
child(
    "make_virtual_gpus",
    "creates CPUs instead",
    VIRTUAL,
    "toyframe.make_gpus = lambda n: None\ncls.count = lambda self, kind: 2 if kind == 'cpu' else 0",
)
child(
    "make_virtual_gpus",
    "uses one device for all of them",
    VIRTUAL,
    "cls.device_of = lambda self, x: __import__('xdevice').devices.of(x.place.kind)",
)
child(
    "default_to_float64", "does nothing", _LOADS, "cls.default_to_float64 = lambda self: None"
)
child(
    "default_to_float64",
    "applies only to the current thread",
    _LOADS,
    """
full, main = toyframe.full, __import__("threading").get_ident()
def narrow(shape, value, place=None, dtype="float32"):
    is_main = __import__("threading").get_ident() == main
    return full(shape, value, place, dtype if is_main else "float32")
toyframe.full = narrow
""",
)
