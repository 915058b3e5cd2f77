"""What a fault is, and how one is planted in the toy."""

from __future__ import annotations

import numpy as np

HOMES = ("cpu:0", "gpu:0")
FAULTS = []


class Fault:
    """One way to get a method wrong, and the check that must notice."""

    def __init__(self, method, does, check, homes, raises, plant):
        self.method, self.does, self.check, self.homes = method, does, f"test_{check}", homes
        self.raises, self.plant = raises, plant


def wrong(method, does, check, homes=HOMES, raises=()):
    """Registers a function that plants a fault: `plant(adapter, patch, suite)`. The check fails by an assertion, or
    by what it provokes: one of `raises`."""

    def register(plant):
        FAULTS.append(Fault(method, does, check, homes, raises, plant))
        return plant

    return register


def swap(method, does, check, make, homes=HOMES, raises=()):
    """A fault that is another function in a method's place: `make(original, adapter)`."""

    def plant(adapter, patch, suite):
        patch.setattr(adapter, method, make(getattr(adapter, method), adapter))

    wrong(method, does, check, homes, raises)(plant)


def child(method, does, check, code):
    """A fault planted in the suite's child processes: in the adapter class `cls`, or in the framework `toyframe`."""

    def plant(adapter, patch, suite):
        suite.child_setup = in_child(code)

    wrong(method, does, check, ("cpu:0",))(plant)


def in_child(code):
    lines = "\n    ".join(code.strip().splitlines())
    return f"""
from xdevice.core import registry
def _plant(load, *given):
    import toyframe, xdevice_toyframe
    cls = xdevice_toyframe.ToyBackend
    {lines}
    return load(*given)
_load = registry._load
registry._load = lambda name: _plant(_load, name)
"""


def toy():
    import toyframe

    return toyframe


def through(name):
    """Values that went through a narrower dtype."""

    def narrowed(x):
        values = x._values
        with np.errstate(all="ignore"):
            return with_values(
                x,
                values.astype(name).astype(values.dtype)
                if values.dtype.kind in "iuf"
                else values,
            )

    return narrowed


def with_values(x, values):
    x.wait()
    return toy().array(values, x.place)


def forget_nans(x):
    x.wait()
    values = x._values
    if values.dtype.kind not in "fc":
        return x
    return with_values(x, np.where(np.isnan(values), np.full_like(values, np.nan), values))


def flush_denormals(x):
    x.wait()
    if x.dtype.name != "float32":
        return x
    values = x._values
    return with_values(
        x, np.where(abs(values) < np.finfo("float32").tiny, np.float32(0), values)
    )


def transpose_memory(x):
    x.wait()
    values = x._values
    return with_values(x, values.ravel("K").reshape(values.shape))


def flat(x):
    x.wait()
    return with_values(x, np.atleast_1d(x._values))


def after(change):
    return lambda original, adapter: lambda *given: change(original(*given))


def on_inputs(change):
    return lambda original, adapter: lambda x, *given: original(change(x), *given)


def double_floats(x):
    x.wait()
    return with_values(x, x._values.astype("float64")) if x.dtype.name == "float32" else x


def native(adapter, device):
    return adapter.to_native(device)


def ask_for_gradients(original, adapter):
    def marked(x, device):
        moved = original(x, device)
        moved.requires_grad = True
        return moved

    return marked


LARGE = "large_tensors_move_whole_and_leave_their_source_free"


def plain(x):
    return x.value if isinstance(x, toy().Variable) else x


GPU = HOMES[1:]
VIRTUAL = "virtual_gpus_are_devices_of_their_own"
