"""The suite bites: a third party's adapter with one fault at a time must fail it, at each home, by the check named.

The toy in `tests/toy` is honest and passes everything (test_conformance_toy.py). Each function here plants one fault
in it. The list is the table of docs/reference/adapters.md: what a wrong method would do, and which check notices.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from support import ROOT

import xdevice
from xdevice.base import devices, dtypes
from xdevice.containers import trees
from xdevice.contract import Backend, DeviceInfo, Memory, Takes, Way, layouts
from xdevice.contract import calls as common
from xdevice.contract.backend import CAPABILITIES, HOOKS
from xdevice.contract.primitives import Primitives
from xdevice.core import registry
from xdevice.errors import NotBuiltError
from xdevice.testing import Conformance

HOMES = ("cpu:0", "gpu:0")
DOCS = ROOT / "docs" / "reference" / "adapters.md"
FAULTS = []


@pytest.fixture(scope="module", autouse=True)
def _installed(toy_installed):
    """Without an installation there is no such backend."""


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
        suite.child_setup = _in_child(code)

    wrong(method, does, check, ("cpu:0",))(plant)


def _in_child(code):
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


# faults that many methods can have, in what they give


def through(name):
    """Values that went through a narrower dtype."""

    def narrowed(x):
        values = x._values
        with np.errstate(all="ignore"):
            return _with_values(x, values.astype(name).astype(values.dtype) if values.dtype.kind in "iuf" else values)

    return narrowed


def _with_values(x, values):
    x.wait()
    return toy().array(values, x.place)


def forget_signs(x):
    x.wait()
    values = x._values
    return _with_values(x, np.where(values == 0, np.zeros_like(values), values))


def forget_nans(x):
    x.wait()
    values = x._values
    if values.dtype.kind not in "fc":
        return x
    return _with_values(x, np.where(np.isnan(values), np.full_like(values, np.nan), values))


def flush_denormals(x):
    x.wait()
    if x.dtype.name != "float32":
        return x
    values = x._values
    return _with_values(x, np.where(abs(values) < np.finfo("float32").tiny, np.float32(0), values))


def transpose_memory(x):
    x.wait()
    values = x._values
    return _with_values(x, values.ravel("K").reshape(values.shape))


def flat(x):
    x.wait()
    return _with_values(x, np.atleast_1d(x._values))


def after(change):
    return lambda original, adapter: lambda *given: change(original(*given))


def on_inputs(change):
    return lambda original, adapter: lambda x, *given: original(change(x), *given)


def double_floats(x):
    x.wait()
    return _with_values(x, x._values.astype("float64")) if x.dtype.name == "float32" else x


def unordered(x, place):
    """A copy that does not wait for the stream that makes its source."""
    t = toy()
    out = t.empty(x.shape, place, x.dtype)
    values, target = x._values, out._values
    t._launch(lambda: np.copyto(target, values), out._block, place)
    return out


def native(adapter, device):
    return adapter.to_native(device)


# the framework


@wrong("classify", "takes lists for tensors", "types_are_told_apart")
def _(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(adapter, "classify", lambda cls: "tensor" if cls is list else classify(cls))


@wrong("classify", "takes models for tensors", "types_are_told_apart")
def _(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(adapter, "classify", lambda cls: "tensor" if classify(cls) else None)


@wrong("classify", "takes devices for models", "types_are_told_apart")
def _(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(adapter, "classify", lambda cls: "model" if cls is toy().Place else classify(cls))


@wrong("dtype_names", "gives a name that is none of its dtypes", "keeps_the_contract", HOMES[:1])
def _(adapter, patch, suite):
    patch.setattr(type(adapter), "dtype_names", {np.dtype("float16"): "half"})


@wrong("dtype_names", "takes one dtype for another", "dtypes_are_the_same_everywhere")
def _(adapter, patch, suite):
    patch.setattr(dtypes, "_stated", {np.dtype("int32"): "int64"})


@wrong("version", "gives a text that is not a version", "keeps_the_contract", HOMES[:1])
def _(adapter, patch, suite):
    patch.setattr(type(adapter), "version", property(lambda self: "newest"))


@wrong("framework", "gives another module", "keeps_the_contract", HOMES[:1])
def _(adapter, patch, suite):
    patch.setattr(type(adapter), "framework", property(lambda self: np))


@wrong("dtypes", "names dtypes as no other framework does", "keeps_the_contract", HOMES[:1])
def _(adapter, patch, suite):
    patch.setattr(adapter, "dtypes", adapter.dtypes | {"half"})


@wrong("dtypes", "names a dtype that its tensors do not keep", "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed")
def _(adapter, patch, suite):
    from_numpy = adapter.from_numpy
    patch.setattr(adapter, "from_numpy", lambda array, device: from_numpy(_narrow(array), device))


def _narrow(array):
    with np.errstate(all="ignore"):
        return array.astype("float32") if array.dtype.name == "float64" else array


# devices

swap(
    "count",
    "counts a GPU too many",
    "every_device_works",
    lambda count, adapter: lambda kind: count(kind) + (kind == "gpu"),
    HOMES[:1],
    raises=(RuntimeError,),
)
swap(
    "count",
    "misses the last GPU",
    "the_devices_are_those_of_the_framework",
    lambda count, adapter: lambda kind: count(kind) - (kind == "gpu"),
    HOMES[:1],
)
swap(
    "count",
    "has devices of any kind",
    "the_devices_are_those_of_the_framework",
    lambda count, adapter: lambda kind: count(kind) or 1,
    HOMES[:1],
)
child(
    "count",
    "starts the GPUs",
    "loading_is_light_locked_and_safe_to_fork",
    """
count = cls.count
def starting(self, kind):
    for place in toyframe.places():
        toyframe.current_stream(place)
    return count(self, kind)
cls.count = starting
""",
)
swap("describe", "has no name", "devices_are_described", lambda _, adapter: lambda device: DeviceInfo("", 1 << 30))
swap(
    "describe", "has no memory at all", "devices_are_described", lambda _, adapter: lambda device: DeviceInfo("toy", 0)
)
swap(
    "describe",
    "gives gigabytes as a float",
    "devices_are_described",
    lambda _, adapter: lambda device: DeviceInfo("toy", 1.5),
)
swap(
    "is_started",
    "never notices a use",
    "a_device_that_was_used_is_started",
    lambda _, adapter: lambda device: False,
)
child(
    "is_started",
    "says so of a GPU that nobody has used",
    "loading_is_light_locked_and_safe_to_fork",
    "cls.is_started = lambda self, device: True",
)
swap(
    "to_native",
    "gives the first GPU for all",
    "every_device_goes_to_its_native_object_and_back",
    lambda to_native, adapter: lambda device: to_native(devices.of(device.kind)),
)
swap(
    "to_native",
    "gives a new object that equals no other",
    "every_device_goes_to_its_native_object_and_back",
    lambda to_native, adapter: lambda device: object(),
)
swap(
    "describe_missing",
    "gives the first GPU for all",
    "a_missing_device_can_be_described_or_is_refused",
    lambda describe, adapter: lambda device: describe(devices.of(device.kind)),
)
swap(
    "describe_missing",
    "gives a text that names it, where devices are objects",
    "a_missing_device_can_be_described_or_is_refused",
    lambda _, adapter: str,
)
swap(
    "from_native",
    "takes any object for cpu:0",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: lambda x: from_native(x) or devices.CPU,
)
swap(
    "from_native",
    "forgets the index",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: lambda x: devices.of(x.kind) if isinstance(x, toy().Place) else None,
)
swap(
    "from_native",
    "knows no native device",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: lambda x: None,
)
swap(
    "scope",
    "does nothing",
    "a_scope_places_what_the_framework_creates",
    lambda _, adapter: lambda device: contextlib.nullcontext(),
)


class _Forgetful:
    """A scope that goes back to the CPU, wherever it was, or stays where it is."""

    def __init__(self, adapter, device, stays=False):
        self.place, self.stays = adapter.to_native(device), stays

    def __enter__(self):
        toy().state.place = self.place

    def __exit__(self, *error):
        toy().state.place = self.place if self.stays else toy().CPU


swap(
    "scope",
    "goes back to the CPU, not to the enclosing scope",
    "a_scope_places_what_the_framework_creates",
    lambda _, adapter: lambda device: _Forgetful(adapter, device),
)


@wrong("scope", "is never left", "a_scope_ends_after_an_exception")
def _(adapter, patch, suite):
    patch.setattr(toy().state, "place", toy().CPU)
    patch.setattr(adapter, "scope", lambda device: _Forgetful(adapter, device, stays=True))


def _of_the_process(adapter, patch, is_left):
    """Scopes that change what is there for all threads."""
    held = SimpleNamespace(place=toy().CPU)
    patch.setattr(type(adapter.samples()), "native_ones", lambda self, *shape: toy().full(shape, 1, held.place))

    @contextlib.contextmanager
    def scope(device):
        before, held.place = held.place, adapter.to_native(device)
        yield
        held.place = before if is_left else held.place

    patch.setattr(adapter, "scope", scope)


@wrong("scope", "changes the default of all threads", "a_scope_holds_for_one_thread")
def _(adapter, patch, suite):
    _of_the_process(adapter, patch, is_left=True)


@wrong("scope", "changes it for good", "scopes_of_threads_leave_each_other_alone")
def _(adapter, patch, suite):
    _of_the_process(adapter, patch, is_left=False)


swap("scope_reach", "says that scopes are the process's", "a_scope_holds_for_one_thread", lambda *_: "process")


@wrong("scope", "does not end", "set_device_holds_until_it_is_told_otherwise")
def _(adapter, patch, suite):
    patch.setattr(toy().state, "place", toy().CPU)
    patch.setattr(adapter, "scope", lambda device: _Staying(adapter, device))


class _Staying(_Forgetful):
    def __exit__(self, *error):
        pass


@wrong("require", "lets a device pass that does not exist", "a_missing_device_is_refused_before_anything_happens")
def _(adapter, patch, suite):
    patch.setattr(adapter, "require", lambda device: None)


# tensors


@wrong("device_of", "always says cpu:0", "device_of_and_same_device_see_where_tensors_are", HOMES[1:])
def _(adapter, patch, suite):
    _probe(adapter, patch, lambda x: devices.CPU)


@wrong("device_of", "takes every GPU for the first", "every_device_works", HOMES[:1])
def _(adapter, patch, suite):
    _probe(adapter, patch, lambda x: devices.of(x.place.kind))


@wrong(
    "device_of",
    "gives the scope's device, not the tensor's",
    "device_of_and_same_device_see_where_tensors_are",
    HOMES[1:],
)
def _(adapter, patch, suite):
    _probe(adapter, patch, lambda x: adapter.from_native(toy().state.place))


def _probe(adapter, patch, look):
    patch.setattr(adapter, "device_of", look)
    for cls in (toy().ToyArray, toy().Parameter):
        patch.setitem(registry.probes, cls, look)


@wrong("probe", "always says cpu:0", "device_of_and_same_device_see_where_tensors_are", HOMES[1:])
def _(adapter, patch, suite):
    patch.setattr(adapter, "probe", lambda cls: lambda x: devices.CPU)
    for cls in (toy().ToyArray, toy().Parameter):
        patch.setitem(registry.probes, cls, adapter.probe(cls))


swap(
    "devices_of",
    "always says cpu:0",
    "device_of_and_same_device_see_where_tensors_are",
    lambda _, adapter: lambda cls, tensors: {devices.CPU},
    HOMES[1:],
)
swap(
    "devices_of",
    "says where the first one is",
    "a_mismatch_is_found_and_named",
    lambda _, adapter: lambda cls, tensors: {adapter.device_of(tensors[0])},
)

_MOVES = "to_device_moves_and_leaves_the_source"
_COPIES = "copy_to_is_new_storage_on_the_same_device"
for _method, _check in (("move", _MOVES), ("copy", _COPIES)):
    swap(_method, "goes through float32", _check, on_inputs(through("float32")))
    swap(_method, "goes through float64, which has no 64-bit ints", _check, on_inputs(through("float64")))
    swap(_method, "loses the sign of zeros", _check, on_inputs(forget_signs))
    swap(_method, "makes all NaNs one", _check, on_inputs(forget_nans))
    swap(_method, "flushes denormal numbers to zero", _check, on_inputs(flush_denormals))
    swap(_method, "copies the memory of a transposed tensor as it lies", _check, on_inputs(transpose_memory))
    swap(_method, "makes a vector of a number", _check, on_inputs(flat))
    swap(_method, "widens float32", _check, on_inputs(double_floats))
    swap(
        _method,
        "does not wait for what computes its source",
        "a_move_waits_for_what_is_computed",
        lambda _, adapter: lambda x, device: unordered(x, native(adapter, device)),
    )
swap("move", "does not move", _MOVES, lambda _, adapter: lambda x, device: x.clone())
swap(
    "move",
    "moves to the first GPU whichever it is told",
    "every_device_reaches_every_other",
    lambda move, adapter: lambda x, device: move(x, devices.of(device.kind)),
)
swap(
    "move",
    "moves by way of another device and stays there",
    _MOVES,
    lambda move, adapter: lambda x, device: move(x, devices.of("gpu", 1) if device.index == 0 else devices.CPU),
)

_BATCHES = "a_batch_moves_as_its_tensors_do"
swap("move_all", "does not move", _BATCHES, lambda _, adapter: lambda tensors, device: [x.clone() for x in tensors])
swap(
    "move_all",
    "gives them in another order",
    _BATCHES,
    lambda move_all, adapter: lambda tensors, device: move_all(tensors, device)[::-1],
)
swap(
    "move_all",
    "forgets requires_grad",
    _BATCHES,
    lambda move_all, adapter: lambda tensors, device: move_all([x.detach() for x in tensors], device),
)


@wrong("move", "hands the same memory over", "a_move_is_in_memory_of_its_own")
def _(adapter, patch, suite):
    def relabelled(x, device):
        x.wait()
        return toy().ToyArray(x._block, x._values, x._owner, adapter.to_native(device))

    patch.setattr(adapter, "move", relabelled)


@wrong("move", "empties its source", _MOVES)
def _(adapter, patch, suite):
    move = adapter.move

    def emptied(x, device):
        moved = move(x, device)
        moved.wait()
        x._values[...] = 0
        return moved

    patch.setattr(adapter, "move", emptied)


def _cut(original, adapter):
    return lambda x, device: original(x.detach(), device)


def _doubled(original, adapter):
    def wrong_gradient(x, device):
        moved = original(x, device)
        if moved._from:
            moved._from = [(source, lambda g, back=back: back(g * 2)) for source, back in moved._from]
        return moved

    return wrong_gradient


def _marked(original, adapter):
    def marked(x, device):
        moved = original(x, device)
        moved.requires_grad = True
        return moved

    return marked


swap("move", "cuts the gradient", "gradients_flow_there_and_back", _cut)
swap("move", "doubles the gradient", "gradients_flow_there_and_back", _doubled)
swap("move", "forgets requires_grad", "requires_grad_stays", _cut)
swap("move", "asks for gradients that nobody wants", "requires_grad_stays", _marked)
swap("copy", "gives the tensor itself", _COPIES, lambda _, adapter: lambda x, device: x)
swap("copy", "gives an alias", _COPIES, lambda _, adapter: lambda x, device: x.detach())
swap("copy", "stays where the tensor is", "copy_to_another_device", lambda _, adapter: lambda x, device: x.clone())
swap(
    "copy", "aliases what is there already", _COPIES, lambda _, adapter: lambda x, device: x.to(native(adapter, device))
)
swap("copy", "cuts the gradient", "gradients_flow_through_a_copy_on_the_same_device", _cut)
swap("copy", "doubles the gradient", "gradients_flow_through_a_copy_on_the_same_device", _doubled)
swap("copy", "forgets requires_grad", "requires_grad_stays", _cut)

_LARGE = "large_tensors_move_whole_and_leave_their_source_free"
_EARLY = "what_is_not_waited_for_cannot_be_read_early"


def _loses_the_end(move, adapter):
    def cut_short(x, device):
        moved = move(x, device)
        moved.wait()
        if moved._values.nbytes > 1 << 24:
            moved._values[-1, -1000:] = 0
        return moved

    return cut_short


def _one_buffer(from_numpy, adapter):
    """Every large array is copied through one buffer, which nobody waits for."""
    buffer = []

    def through_buffer(array, device):
        if array.nbytes < 1 << 24:
            return from_numpy(array, device)
        if not buffer:
            buffer.append(array.copy())
        buffer[0][...] = array
        threading.Event().wait(0.05)
        return from_numpy(buffer[0], device)

    return through_buffer


def _not_waited_for(move, adapter):
    """The result is there, and its values come when nobody waits for them."""

    def started(x, device):
        moved = move(x, device)
        moved.wait()
        values = moved._values.copy()
        moved._values[...] = 0

        def fill():
            threading.Event().wait(0.2)
            moved._values[...] = values

        threading.Thread(target=fill).start()
        return moved

    return lambda x, device: started(x, device)


for _method in ("move", "copy"):
    swap(_method, "loses the end of what is large", _LARGE, _loses_the_end)
swap(
    "from_numpy",
    "reads what is large later",
    _LARGE,
    lambda _, adapter: (
        lambda array, device: toy()._op(
            lambda: np.array(array), [], array.shape, array.dtype, [], native(adapter, device)
        )
    ),
)
swap(
    "from_numpy",
    "copies what is large through memory of another thread",
    "large_moves_of_threads_do_not_meet",
    _one_buffer,
)
swap("start_move", "gives what is not there yet", _EARLY, lambda start, adapter: _not_waited_for(adapter.move, adapter))
swap("start_move", "does not move", _EARLY, lambda _, adapter: lambda x, device: x.clone())
swap("start_move", "moves through float32", _EARLY, on_inputs(through("float32")))

_WAITS = "sync_waits_for_work_under_way"
swap("synchronize", "waits for nothing", _WAITS, lambda _, adapter: lambda device: None)
swap(
    "synchronize",
    "waits for the CPU only when it is to wait for all",
    "sync_waits_on_every_device",
    lambda synchronize, adapter: lambda device: synchronize(device or devices.CPU),
)
swap(
    "synchronize",
    "waits for another device",
    _WAITS,
    lambda synchronize, adapter: lambda device: synchronize(device and devices.of("gpu", 1)),
)
swap(
    "synchronize",
    "swallows the errors of the work",
    "errors_of_asynchronous_work_surface_at_sync",
    lambda synchronize, adapter: _swallowed(synchronize),
    HOMES[:1],
)
swap("wait", "waits for nothing", _WAITS, lambda _, adapter: lambda x: None)
swap(
    "wait",
    "swallows the error of the computation",
    "errors_of_asynchronous_work_surface_at_sync",
    lambda wait, adapter: _swallowed(wait),
    HOMES[:1],
)


def _swallowed(function):
    def quiet(*given):
        with contextlib.suppress(toy().ToyError):
            return function(*given)

    return quiet


# values


def _array(change):
    return lambda original, adapter: lambda array, *given: original(change(array), *given)


def _as(name):
    def narrowed(array):
        with np.errstate(all="ignore"):
            return array.astype(name).astype(array.dtype) if array.dtype.kind in "iuf" else array

    return narrowed


def _by_memory(array):
    return array.ravel("K").reshape(array.shape)


def _canonical_nans(array):
    return np.where(np.isnan(array), np.full_like(array, np.nan), array) if array.dtype.kind in "fc" else array


_IN = "every_dtype_survives_the_way_in_and_out"
_BUFFER = "memory_is_taken_over_and_read_without_a_change"
swap("from_numpy", "goes through float32", _IN, _array(_as("float32")))
swap("from_numpy", "goes through float64", _IN, _array(_as("float64")))
swap("from_numpy", "makes all NaNs one", _IN, _array(_canonical_nans))
swap("from_numpy", "reads a transposed array as it lies in memory", "odd_sources_go_in_right", _array(_by_memory))
swap("from_numpy", "makes a vector of a number", _IN, _array(np.atleast_1d))
swap(
    "from_numpy",
    "places on the CPU",
    "every_device_works",
    lambda original, adapter: lambda array, device: original(array, devices.CPU),
    HOMES[:1],
)
swap(
    "from_numpy",
    "aliases its source",
    "tensor_never_aliases_its_source",
    lambda _, adapter: lambda array, device: _borrowed(array, native(adapter, device)),
)


@wrong("from_numpy", "reads its source only later", "tensor_never_aliases_its_source")
def _(adapter, patch, suite):
    def later(array, device):
        return toy()._op(lambda: array, [], array.shape, array.dtype, [], adapter.to_native(device))

    patch.setattr(adapter, "from_numpy", later)


def _borrowed(array, place):
    x = toy().borrowed(array)
    x.place = place
    return x


swap("from_buffer", "goes through float32", _BUFFER, _array(_as("float32")))
swap("from_buffer", "gives one row after the other a shape of its own", _BUFFER, _array(np.ravel))
swap(
    "from_buffer",
    "places on a GPU",
    _BUFFER,
    lambda _, adapter: lambda array: toy().array(array, toy().Place("gpu", 0)),
    HOMES[:1],
)
swap("from_buffer", "takes bools for bytes", _BUFFER, _array(lambda a: a.view("uint8") if a.dtype == bool else a))

_OUT = "to_numpy_reads_every_tensor"
for _method in ("to_numpy", "peek"):
    swap(_method, "goes through float32", _OUT, after(_as("float32")))
    swap(
        _method,
        "gives bfloat16 as float32",
        _OUT,
        after(lambda a: a.astype("float32") if a.dtype.name == "bfloat16" else a),
    )
    swap(_method, "reads a transposed tensor as it lies in memory", _OUT, after(_by_memory))
    swap(
        _method,
        "does not wait for the computation",
        "what_is_read_is_computed_first",
        lambda _, adapter: lambda x: np.array((x.value if isinstance(x, toy().Variable) else x)._values),
    )
    swap(_method, "makes a vector of a number", _OUT, after(np.atleast_1d))


@wrong(
    "to_numpy", "shares memory that is given to somebody else when the tensor goes", "what_was_read_outlives_its_tensor"
)
def _(adapter, patch, suite):
    def bare(x):
        x.wait()
        return x._values

    patch.setattr(adapter, "to_numpy", bare)
    patch.setattr(xdevice, "to_numpy", bare)


_CREATED = "creators_give_what_they_say"
_FULL = "full_gives_any_value_in_new_memory"
swap("full", "always gives ones", _CREATED, lambda full, adapter: lambda shape, value, *rest: full(shape, 1, *rest))
swap(
    "full",
    "gives whole numbers only",
    _FULL,
    lambda full, adapter: (
        lambda shape, value, *rest: full(shape, value if value == float("inf") else int(value), *rest)
    ),
)
swap(
    "full",
    "always gives float32",
    _CREATED,
    lambda full, adapter: lambda shape, value, device, dtype: full(shape, value, device, "float32"),
)
swap(
    "full",
    "ignores the device",
    "creators_place_where_they_are_told",
    lambda full, adapter: lambda shape, value, device, dtype: full(shape, value, devices.CPU, dtype),
)
swap(
    "full",
    "gives what is in the memory",
    _CREATED,
    lambda _, adapter: (
        lambda shape, value, device, dtype: toy().empty(
            shape, native(adapter, device), xdevice.base.dtypes.host_dtype(dtype)
        )
    ),
)


swap("full", "hands the same tensor out twice", _FULL, lambda full, adapter: functools.cache(full))


_RAND = "random_numbers_are_uniform_below_one"


def _drawn(change):
    def make(_, adapter):
        def rand(shape, device, dtype):
            numbers = np.asarray(change(toy()._generator, shape))
            return toy().array(numbers.astype(xdevice.base.dtypes.host_dtype(dtype)), native(adapter, device))

        return rand

    return make


swap("rand", "draws from the normal distribution", _RAND, _drawn(lambda r, shape: r.normal(size=shape)))
swap("rand", "draws between -1 and 1", _RAND, _drawn(lambda r, shape: r.uniform(-1, 1, size=shape)))
swap("rand", "draws few numbers near 1", _RAND, _drawn(lambda r, shape: r.random_sample(shape) ** 2))
swap("rand", "rounds to 1 in 16 bits", _RAND, _drawn(lambda r, shape: r.random_sample(shape)))
swap(
    "rand",
    "draws the same numbers each time",
    _RAND,
    _drawn(lambda r, shape: np.random.RandomState(1).random_sample(shape)),
)
swap(
    "rand",
    "does not follow the seed",
    "random_numbers_repeat_from_a_seed",
    _drawn(lambda r, shape: np.random.default_rng().random(shape)),
)
swap(
    "rand",
    "ignores the device",
    "creators_place_where_they_are_told",
    lambda rand, adapter: lambda shape, device, dtype: rand(shape, devices.CPU, dtype),
)
swap(
    "rand",
    "always gives float32",
    _RAND,
    lambda rand, adapter: lambda shape, device, dtype: rand(shape, device, "float32"),
)

swap(
    "tracing",
    "says so where nothing is traced",
    "seeded_numbers_are_the_same_everywhere",
    lambda _, adapter: lambda: "toyframe.jit",
    raises=(xdevice.UnsupportedError,),
)
swap(
    "eagerly",
    "calls the function twice",
    "seeded_numbers_are_the_same_everywhere",
    lambda _, adapter: lambda function: (function(), function())[1],
)

# sharing memory with another framework

swap(
    "takes",
    "says what no framework needs",
    "memory_is_adopted_in_place",
    lambda _, adapter: lambda: Takes(strides="all"),
)
swap(
    "takes",
    "forgets how it labels bfloat16",
    "memory_is_adopted_in_place",
    lambda _, adapter: lambda: Takes(),
    HOMES[:1],
    raises=(BufferError,),
)
swap(
    "dtype_refusal",
    "refuses a dtype that it keeps",
    "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed",
    lambda _, adapter: lambda dtype: "it would be rounded; use float32" if dtype == "float64" else None,
)
swap(
    "dtype_refusal",
    "does not say what to do",
    "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed",
    lambda _, adapter: lambda dtype: "no" if dtype == "float64" else None,
)
swap(
    "shares",
    "gives memory of virtual GPUs out as a GPU's",
    "memory_is_shared_only_where_others_can_see_it",
    lambda _, adapter: lambda device: True,
)
swap(
    "detached",
    "copies",
    "detached_is_the_same_memory_without_a_gradient",
    lambda _, adapter: lambda x: x.detach().clone(),
)
swap("detached", "keeps the gradient", "detached_is_the_same_memory_without_a_gradient", lambda _, adapter: lambda x: x)


@wrong("detached", "takes the gradient off its source", "detached_is_the_same_memory_without_a_gradient")
def _(adapter, patch, suite):
    def stripped(x):
        x.requires_grad = False
        return x

    patch.setattr(adapter, "detached", stripped)


@wrong("finish", "waits for nothing, where `export` does not either", "converting_reads_what_is_computed")
def _(adapter, patch, suite):
    patch.setattr(adapter, "finish", lambda x: None)
    patch.setattr(toy().ToyArray, "wait", lambda self: None)


@wrong("namespace", "lacks kernels", "a_namespace_is_whole_or_refused")
def _(adapter, patch, suite):
    patch.setattr(adapter, "namespace", object)


@wrong("nn", "lacks kernels", "functions_of_layers_are_whole_and_right_or_refused")
def _(adapter, patch, suite):
    patch.setattr(adapter, "nn", object)


# gradients


def _differently(does, change, check="gradients_are_right_or_refused", homes=HOMES):
    """A fault in what comes back: `change(loss, grads, rest, leaves)`, of the loss as the function gave it."""

    def make(original, adapter):
        def value_and_grad(leaves, call, nested):
            kept = []

            def keeping(inputs):
                kept.append(call(inputs))
                return kept[0]

            loss, grads, rest = original(leaves, keeping, nested)
            return change(loss, list(grads), rest, leaves, kept[0])

        return value_and_grad

    swap("value_and_grad", does, check, make, homes)


_differently("keeps the graph of the loss", lambda loss, grads, rest, leaves, kept: (kept[0], grads, rest))
_differently("keeps the graph of what is beside it", lambda loss, grads, rest, leaves, kept: (loss, grads, kept[1]))
_differently(
    "has a gradient for what the loss does not depend on",
    lambda loss, grads, rest, leaves, kept: (loss, [*grads[:3], toy().full((1, 2), 1, leaves[0].place)], rest),
)
_differently(
    "gives zeros where the loss depends on nothing",
    lambda loss, grads, rest, leaves, kept: (
        loss,
        [toy().full(x.shape, 0, x.place, x.dtype) if g is None else g for x, g in zip(leaves, grads, strict=True)],
        rest,
    ),
)
_differently(
    "adds up the gradients of one tensor in two places",
    lambda loss, grads, rest, leaves, kept: (loss, [grads[0] + grads[2], grads[1], grads[0] + grads[2], None], rest),
)
_differently(
    "leaves the gradients on the CPU",
    lambda loss, grads, rest, leaves, kept: (loss, [g if g is None else g.to(toy().CPU) for g in grads], rest),
    homes=("gpu:0",),
)
swap(
    "value_and_grad",
    "calls the function twice",
    "gradients_are_right_or_refused",
    lambda original, _: (
        lambda leaves, call, nested: original(leaves, lambda inputs: (call(inputs), call(inputs))[1], nested)
    ),
)
swap(
    "value_and_grad",
    "records nothing where recording is switched off",
    "gradients_are_right_or_refused",
    lambda original, _: lambda leaves, call, nested: original(leaves, _as_around(call), nested),
)
swap(
    "value_and_grad",
    "writes into the gradients of what it computes with",
    "gradients_are_right_or_refused",
    lambda original, _: lambda leaves, call, nested: original(leaves, _with_backward(call), nested),
)
swap(
    "value_and_grad",
    "cuts off what is differentiated again",
    "gradients_nest_or_are_refused",
    lambda original, _: lambda leaves, call, nested: original(leaves, call, False),
)


def _as_around(call):
    was = toy().state.grad

    def calling(inputs):
        with toy()._with(grad=was):
            return call(inputs)

    return calling


def _with_backward(call):
    def calling(inputs):
        loss, rest = call(inputs)
        loss.backward()
        return loss, rest

    return calling


swap(
    "update",
    "gives the rule the parameters themselves",
    "an_update_is_in_memory_of_its_own",
    lambda _, adapter: (
        lambda leaves, grads, rule, nested: [rule(x.detach(), g.detach()) for x, g in zip(leaves, grads, strict=True)]
    ),
)
swap(
    "update",
    "records the step",
    "an_update_is_in_memory_of_its_own",
    lambda original, adapter: lambda leaves, grads, rule, nested: original(leaves, grads, rule, True),
)
swap(
    "update",
    "pairs the first parameter with the last gradient",
    "an_update_is_in_memory_of_its_own",
    lambda original, adapter: lambda leaves, grads, rule, nested: original(leaves, [grads[-1], grads[0]], rule, nested),
)


@wrong("lending", "never lets go", "lending_lets_go")
def _(adapter, patch, suite):
    lock = threading.RLock()

    @contextlib.contextmanager
    def kept(x):
        lock.acquire()
        yield

    patch.setattr(adapter, "lending", kept)


swap(
    "memory_layout",
    "gives the address of a view's owner",
    "memory_is_described_as_it_is",
    lambda layout, adapter: lambda x: (x._block.array.ctypes.data, *layout(x)[1:]),
)
swap(
    "memory_layout",
    "says that all is in C order",
    "memory_is_described_as_it_is",
    lambda layout, adapter: lambda x: (layout(x)[0], True, True),
    HOMES[:1],
)
swap(
    "export",
    "gives the memory of a view's owner",
    "converting_to_numpy_and_back_keeps_every_tensor",
    lambda export, adapter: (
        lambda x: (
            toy().ToyArray(x._block, x._block.array, x._owner, x.place).numpy().__dlpack__()
            if x.dtype.name != "bfloat16"
            else export(x)
        )
    ),
    HOMES[:1],
)
swap(
    "export",
    "copies what it says it shares",
    "converting_shares_memory_only_where_it_says_so",
    lambda export, adapter: lambda x: x.numpy().copy().__dlpack__(),
)
swap(
    "export",
    "does not keep the memory alive",
    "shared_memory_outlives_its_owner",
    lambda export, adapter: lambda x: (x.wait(), x._values.__dlpack__())[1],
)
swap("compact", "gives the tensor itself", "a_compact_copy_is_new_and_in_order", lambda _, adapter: lambda x: x)
swap("compact", "copies memory as it lies", "a_compact_copy_is_new_and_in_order", on_inputs(transpose_memory))
swap(
    "compact",
    "moves to the CPU",
    "a_compact_copy_is_new_and_in_order",
    lambda _, adapter: lambda x: x.clone(toy().CPU),
    HOMES[1:],
)
swap("compact", "goes through float32", "a_compact_copy_is_new_and_in_order", on_inputs(through("float32")))
swap(
    "adopt",
    "copies what it says it shares",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: adopt(lent, dtype).clone(),
)
swap(
    "adopt",
    "leaves bfloat16 as uint16",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: toy().borrowed(np.from_dlpack(lent)),
)
swap(
    "adopt",
    "forgets strides",
    "what_numpy_lends_can_be_worked_in",
    lambda adopt, adapter: lambda lent, dtype: transpose_memory(adopt(lent, dtype)),
    HOMES[:1],
)
swap(
    "adopt",
    "places on a GPU",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: _elsewhere(adopt(lent, dtype)),
    HOMES[:1],
    raises=(BufferError,),
)


def _elsewhere(x):
    x.place = toy().Place("gpu", 1)
    return x


# what fits, what is given away

_FITS = "as_many_axes_and_elements_fit_as_it_says"


@wrong("most_axes", "says more than fit", _FITS)
def _(adapter, patch, suite):
    patch.setattr(adapter, "most_axes", adapter.most_axes + 1)


@wrong("most_axes", "says fewer than fit", _FITS)
def _(adapter, patch, suite):
    patch.setattr(adapter, "most_axes", adapter.most_axes - 1)


@wrong("longest_axis", "says more than fit", _FITS)
def _(adapter, patch, suite):
    patch.setattr(adapter, "longest_axis", adapter.longest_axis * 2)


@wrong("longest_axis", "says fewer than fit", _FITS)
def _(adapter, patch, suite):
    patch.setattr(adapter, "longest_axis", adapter.longest_axis - 1)


_AWAY = "what_is_given_away_is_nobody_elses"
swap("gives_away", "gives what the tensor keeps", _AWAY, lambda _, adapter: lambda x: True)
swap("gives_away", "gives what a view's owner keeps", _AWAY, lambda _, adapter: lambda x: x._values.base is not None)


@wrong("gives_away", "gives one array to all who ask", _AWAY)
def _(adapter, patch, suite):
    made, to_numpy = {}, adapter.to_numpy
    patch.setattr(adapter, "to_numpy", lambda x: made.setdefault(id(x), (x, to_numpy(x).copy()))[1])
    patch.setattr(adapter, "gives_away", lambda x: True)


# models


def _refusing(what):
    """A method that declines."""

    def make(original, adapter):
        def refuse(*given):
            raise adapter.unsupported(what, "use something else")

        return refuse

    return make


_IN_PLACE = "a_model_moves_in_place_with_its_values"
_SHARES_NOTHING = "a_copied_model_shares_nothing"
_STATE = "variables_are_those_of_the_state_dict"
_LINEAR = "a_linear_layer_has_a_weight_and_a_bias"
swap(
    "model_devices",
    "looks at the first variable only",
    "a_spread_model_is_a_named_mismatch",
    lambda look, adapter: lambda model: list(look(model))[:1],
)
swap(
    "model_devices",
    "takes an unbuilt model for an empty one",
    "an_unbuilt_model_is_refused",
    lambda look, adapter: lambda model: [],
    raises=(xdevice.NotATensorError,),
)
swap(
    "model_devices",
    "always says cpu:0",
    "a_model_that_is_there_is_left_alone",
    lambda look, adapter: lambda model: [(name, devices.CPU) for name, _ in look(model)],
    HOMES[1:],
)
swap(
    "variables",
    "gives other values",
    _STATE,
    lambda variables, adapter: lambda model: [(name, _plain(x) + 1) for name, x in variables(model)],
)
swap(
    "variables",
    "leaves the last one out",
    _LINEAR,
    lambda variables, adapter: lambda model: list(variables(model))[:-1],
)
swap(
    "variables",
    "gives one name to all",
    _STATE,
    lambda variables, adapter: lambda model: [("x", x) for _, x in variables(model)],
)
swap(
    "variables",
    "gives new names in each model",
    _STATE,
    lambda variables, adapter: lambda model: [(f"{name}{id(model)}", x) for name, x in variables(model)],
)
swap(
    "variables",
    "gives a shared one once",
    "a_shared_variable_comes_under_both_names",
    lambda variables, adapter: lambda model: list({id(x): (name, x) for name, x in variables(model)}.values()),
)
swap(
    "variables",
    "takes an unbuilt model for an empty one",
    "an_unbuilt_model_is_refused",
    lambda variables, adapter: lambda model: [] if None in _values(model) else variables(model),
    raises=(xdevice.NotATensorError,),
)
swap(
    "variables",
    "gives copies on the CPU",
    _STATE,
    lambda variables, adapter: lambda model: [(name, _plain(x).clone(toy().CPU)) for name, x in variables(model)],
    HOMES[:1],
)
swap(
    "layers",
    "takes a layer for one of another kind",
    "a_layout_says_what_a_layer_computes",
    lambda layers, adapter: lambda model: [layer._replace(kind="conv") for layer in layers(model)],
)
swap(
    "layers",
    "comes twice",
    "a_layout_says_what_a_layer_computes",
    lambda layers, adapter: lambda model: [*layers(model)] * 2,
)


_SETTINGS = "layers_without_parameters_say_what_they_are_set_to"


def _told(does, change):
    """A fault in what each layer without parameters is said to be: `change(layer)`."""
    swap(
        "operations",
        does,
        _SETTINGS,
        lambda operations, adapter: (
            lambda model: [layer if layer.parts else change(layer) for layer in operations(model)]
        ),
        HOMES[:1],
    )


def _set(**settings):
    return lambda layer: layer._replace(
        settings={**layer.settings, **{name: value for name, value in settings.items() if name in layer.settings}}
    )


_told("has the usual slope instead of the layer's", _set(slope=0.01))
_told("tells what a dropout keeps", _set(p=0.625))
_told("has windows side by side", _set(stride=(3, 2)))
_told("turns windows round", _set(kernel=(2, 3)))
_told("leaves settings out", lambda layer: layer._replace(settings={}))
_told("takes a layer for one of another kind", lambda layer: layer._replace(kind="activation"))
_told("has paths of its own", lambda layer: layer._replace(path=layer.path.replace(".", "/")))


def _backwards(layers):
    return [*layers[:2], *reversed(layers[2:])]


for _does, _change in {
    "leaves out those in a block": lambda layers: layers[:2],
    "has those in a block backwards": _backwards,
    "comes twice": lambda layers: [*layers, layers[-1]],
    "leaves out those with parameters": lambda layers: [layer for layer in layers if not layer.parts],
}.items():
    swap("operations", _does, _SETTINGS, after(_change), HOMES[:1])


_CALLS = "a_call_of_a_layer_is_seen_as_it_was"


@wrong("calls", "goes on behind the block", _CALLS)
def _(adapter, patch, suite):
    blocks = []
    original = adapter.calls

    @contextlib.contextmanager
    def calls(model):
        blocks.append(original(model))
        yield blocks[-1].__enter__()

    patch.setattr(adapter, "calls", calls)


@wrong("calls", "keeps what may be overwritten", _CALLS)
def _(adapter, patch, suite):
    patch.setattr(common.Watch, "_copy", lambda self, x: x)


swap(
    "calls",
    "sees no layer with parameters",
    _CALLS,
    lambda calls, adapter: lambda model: contextlib.nullcontext([]),
)
swap(
    "outermost",
    "lets every call pass",
    "the_call_of_a_model_goes_through_one_function",
    lambda outermost, adapter: lambda around: contextlib.nullcontext(),
    raises=(TypeError,),
)
swap(
    "infer",
    "records for gradients",
    "a_model_is_called_without_its_gradients",
    lambda infer, adapter: lambda model, inputs: model(*inputs),
)
swap(
    "has_channels_last",
    "sees images everywhere",
    "a_model_is_called_without_its_gradients",
    lambda has, adapter: lambda model: True,
)


@wrong("parts", "has the weight the other way round", "a_layout_says_what_a_layer_computes")
def _(adapter, patch, suite):
    patch.setattr(adapter, "parts", lambda kind, settings: layouts.parts(kind, settings))


_BUILT = "a_model_is_built_or_refused"
swap("require_built", "refuses nothing", _BUILT, lambda _, adapter: lambda model: None)


@wrong("require_built", "refuses a model without parameters of its own", _BUILT)
def _(adapter, patch, suite):
    def refuse(model):
        if not getattr(model, "own", ()):
            raise NotBuiltError("not built")

    patch.setattr(adapter, "require_built", refuse)


_ALL_ON = "a_model_is_all_on_the_device_where_it_is"
swap("is_all_on", "never is", _ALL_ON, lambda _, adapter: lambda model, device: False)
swap("is_all_on", "always is", "a_model_moves_in_place_with_its_values", lambda _, adapter: lambda model, device: True)
swap(
    "is_all_on",
    "looks at the first variable only",
    _ALL_ON,
    lambda _, adapter: lambda model, device: next(iter(adapter.model_devices(model)))[1] is device,
)
_TAKES_STATE = "an_optimizer_takes_state_that_it_would_make_in_a_step"


def _to_come(change):
    def make(state_to_come, adapter):
        return lambda optimizer, names: {name: change(x) for name, x in state_to_come(optimizer, names).items()}

    return make


swap("state_to_come", "knows none", _TAKES_STATE, lambda _, adapter: lambda optimizer, names: {})
swap(
    "state_to_come",
    "makes state that nobody asks for",
    _TAKES_STATE,
    lambda to_come, adapter: lambda optimizer, names: to_come(optimizer, ["0.speed", "1.speed"]),
)
swap("state_to_come", "makes numbers of all", _TAKES_STATE, _to_come(lambda x: toy().full((), 0, x.place, x.dtype)))
swap("state_to_come", "widens float32", _TAKES_STATE, _to_come(double_floats))


@wrong("state_to_come", "gives the optimizer its state at once", _TAKES_STATE)
def _(adapter, patch, suite):
    state_to_come = adapter.state_to_come

    def at_once(optimizer, names):
        state = state_to_come(optimizer, names)
        adapter.take_state(optimizer, state)
        return state

    patch.setattr(adapter, "state_to_come", at_once)


@wrong("state_to_come", "takes a step", _TAKES_STATE)
def _(adapter, patch, suite):
    state_to_come = adapter.state_to_come

    def stepping(optimizer, names):
        state = state_to_come(optimizer, names)
        for x in getattr(optimizer, "parameters", ()) if state else ():
            x.write(x.detach() * 0.5)
        return state

    patch.setattr(adapter, "state_to_come", stepping)


def _taking(change):
    def make(take_state, adapter):
        return lambda optimizer, state: take_state(optimizer, change(state))

    return make


swap("take_state", "takes nothing", _TAKES_STATE, lambda _, adapter: lambda optimizer, state: None)
swap("take_state", "takes the first only", _TAKES_STATE, _taking(lambda state: dict(list(state.items())[:1])))
swap("take_state", "begins with zeros", _TAKES_STATE, _taking(lambda state: {k: x * 0 for k, x in state.items()}))
_SAYS = "an_optimizer_says_what_it_computes"


def _of_parameters(change):
    def make(optimizer, adapter):
        def changed(x):
            read = optimizer(x)
            return read._replace(parameters=tuple(change(one) for one in read.parameters))

        return changed

    return make


swap(
    "optimizer",
    "takes the rate for another",
    _SAYS,
    _of_parameters(lambda one: one._replace(settings={**one.settings, "lr": 1.01 * one.settings["lr"]})),
)
swap("optimizer", "leaves settings out", _SAYS, _of_parameters(lambda one: one._replace(settings={"lr": 0.05})))
swap(
    "optimizer",
    "takes the momentum for one of steps",
    _SAYS,
    _of_parameters(lambda one: one._replace(state={"lr * momentum_buffer": one.state["momentum_buffer"]})),
)
swap("optimizer", "forgets the state", _SAYS, _of_parameters(lambda one: one._replace(state={})))
swap(
    "optimizer",
    "copies parameters",
    _SAYS,
    _of_parameters(lambda one: one._replace(variable=_plain(one.variable).clone())),
)
_STANDS = "the_parts_of_a_copy_stand_for_those_of_the_model"
swap("model_parts", "knows none", _STANDS, lambda _, adapter: lambda model: [])
swap(
    "model_parts",
    "gives one of them for all",
    _STANDS,
    lambda parts, adapter: lambda model: [*parts(model)][:1] * len([*parts(model)]),
)
swap(
    "model_parts",
    "gives models only",
    _STANDS,
    lambda parts, adapter: lambda model: [x for x in parts(model) if isinstance(x, toy().Module)],
)
swap(
    "model_parts",
    "gives new objects for variables",
    _STANDS,
    lambda parts, adapter: lambda model: [x.detach() if isinstance(x, toy().ToyArray) else x for x in parts(model)],
)


_SHARES_STILL = "models_that_share_a_tensor_share_it_after_a_move"
swap("rebind", "leaves what is there", _SHARES_STILL, lambda rebind, adapter: lambda model, new: None)
swap(
    "rebind",
    "puts copies there",
    _SHARES_STILL,
    lambda rebind, adapter: lambda model, new: rebind(model, {key: x.clone() for key, x in new.items()}),
)


@wrong("rebind", "puts one tensor in the places of all", _SHARES_STILL)
def _(adapter, patch, suite):
    def rebind(model, new):
        for module in adapter.model_parts(model):
            if isinstance(module, toy().Module):
                module.buffers = dict.fromkeys(module.buffers, next(iter(new.values())))

    patch.setattr(adapter, "rebind", rebind)


_KNOWN = "objects_that_the_framework_knows_are_walked"


def _padded(**parts):
    """A way into `Padded` that differs from the honest one in these."""

    def make(container_way, adapter):
        def way(x):
            honest = container_way(x)
            return honest if honest is None else honest._replace(**parts)

        return way

    return make


swap(
    "container_way",
    "knows none",
    _KNOWN,
    lambda _, adapter: lambda x: None,
    raises=(xdevice.ContainerError, xdevice.NotATensorError),
)
swap("container_way", "knows one into everything", _KNOWN, lambda _, adapter: lambda x: Way())
swap("container_way", "gives the old object back", _KNOWN, _padded(rebuild=lambda x, inside: x))
swap(
    "container_way", "forgets what is beside", _KNOWN, _padded(rebuild=lambda x, inside: toy().Padded(inside[0], None))
)
swap("container_way", "gives another type", _KNOWN, _padded(rebuild=lambda x, inside: list(inside)))


def _refill(x, inside):
    x.rows = inside[0]
    return x


swap("container_way", "changes the object that came", _KNOWN, _padded(rebuild=_refill))
_TOLD = "what_moves_itself_is_told_a_native_device"


@wrong("moves_by", "names a method that no tensor has", _TOLD)
def _(adapter, patch, suite):
    patch.setattr(adapter, "moves_by", "to_place")


@wrong("moves_by", "names a method that moves nothing", _TOLD)
def _(adapter, patch, suite):
    patch.setattr(toy().ToyArray, "stay", lambda self, place: self, raising=False)
    patch.setattr(adapter, "moves_by", "stay")


def _plain(x):
    return x.value if isinstance(x, toy().Variable) else x


def _values(model):
    return [model.value] if isinstance(model, toy().Variable) else [x for _, x in model.named()]


def _move_each(change):
    """A move that changes the values on the way."""

    def make(move, adapter):
        def moved(model, device):
            move(model, device)
            for x in map(_plain, _values(model)):
                changed = change(x)
                x._block, x._values, x._owner = changed._block, changed._values, changed._owner

        return moved

    return make


def _copy_each(change):
    def make(copy_model, adapter):
        def copied(model, device):
            twin = copy_model(model, device)
            for x in map(_plain, _values(twin)):
                changed = change(x)
                x._block, x._values, x._owner = changed._block, changed._values, changed._owner
            return twin

        return copied

    return make


swap("move_model", "does nothing", _IN_PLACE, lambda _, adapter: lambda model, device: None)
swap(
    "move_model", "moves a copy", _IN_PLACE, lambda _, adapter: lambda model, device: adapter.copy_model(model, device)
)
swap("move_model", "loses the values", _IN_PLACE, _move_each(lambda x: toy().full(x.shape, 0, x.place, x.dtype)))
swap("move_model", "goes through float32", _IN_PLACE, _move_each(through("float32")))
swap("move_model", "flushes denormal numbers to zero", _IN_PLACE, _move_each(flush_denormals))


@wrong("move_model", "leaves buffers behind", _IN_PLACE)
def _(adapter, patch, suite):
    def parameters_only(model, device):
        place = adapter.to_native(device)
        if isinstance(model, toy().Variable):
            model.value = model.value.to(place)
            return
        for x in model.parameters():
            x.take(x.detach().clone(place))

    patch.setattr(adapter, "move_model", parameters_only)


@wrong("move_model", "puts plain tensors in the place of parameters", _IN_PLACE)
def _(adapter, patch, suite):
    _replace_parameters(adapter, patch, lambda x: x)


@wrong(
    "move_model",
    "puts new parameters into the model, which its optimizer does not know",
    "a_moved_model_trains_on_as_if_it_had_stayed",
    raises=(TypeError,),
)
def _(adapter, patch, suite):
    _replace_parameters(adapter, patch, lambda x: toy().Parameter(x))


@wrong("move_model", "tears shared parameters apart", "shared_parameters_stay_shared")
def _(adapter, patch, suite):
    _replace_parameters(adapter, patch, lambda x: toy().Parameter(x))


def _replace_parameters(adapter, patch, make):
    def replace(model, device):
        place = adapter.to_native(device)
        if isinstance(model, toy().Variable):
            model.value = model.value.to(place)
            return
        if None in _values(model):
            raise NotBuiltError("not built")
        for held in (model.own, model.buffers):
            held.update({name: make(x.detach().clone(place)) for name, x in held.items()})
        for child in model.children.values():
            replace(child, device)

    patch.setattr(adapter, "move_model", replace)


@wrong("copy_model", "shares the storage", _SHARES_NOTHING)
def _(adapter, patch, suite):
    patch.setattr(adapter, "copy_model", lambda model, device: copy.copy(model))


@wrong("copy_model", "copies the tree and shares its tensors", _SHARES_NOTHING)
def _(adapter, patch, suite):
    copy_model, bare = adapter.copy_model, copy.copy

    def shallow(model, device):
        if isinstance(model, toy().Variable):
            return copy_model(model, device)
        adapter.move_model(model, device)
        twin = bare(model)
        twin.own, twin.buffers = dict(model.own), dict(model.buffers)
        return twin

    patch.setattr(adapter, "copy_model", shallow)


swap(
    "copy_model",
    "moves the model",
    _SHARES_NOTHING,
    lambda _, adapter: lambda model, device: (adapter.move_model(model, device), model)[1],
)
swap(
    "copy_model",
    "stays where the model is",
    _SHARES_NOTHING,
    lambda copy_model, adapter: lambda model, device: copy_model(model, adapter.device_of(_plain(_values(model)[0]))),
)
swap(
    "copy_model", "draws new weights", _SHARES_NOTHING, _copy_each(lambda x: toy().full(x.shape, 0.5, x.place, x.dtype))
)
swap("copy_model", "goes through float32", _SHARES_NOTHING, _copy_each(through("float32")))


@wrong("copy_model", "makes parameters of buffers", _SHARES_NOTHING)
def _(adapter, patch, suite):
    patch.setattr(adapter, "_twin", lambda x, place: toy().Parameter(x.detach().clone(place)))


@wrong("copy_model", "tears shared parameters apart", "shared_parameters_stay_shared")
def _(adapter, patch, suite):
    copy_model = adapter.copy_model

    def torn(model, device):
        twin = copy_model(model, device)
        for child in getattr(twin, "children", {}).values():
            child.own = {name: toy().Parameter(x.detach().clone()) for name, x in child.own.items()}
        return twin

    patch.setattr(adapter, "copy_model", torn)


# several devices

_SPLITS = "a_tensor_splits_and_joins"
_LEAF = "a_leaf_is_a_copy_that_asks_for_gradients"
_WRITES = "write_puts_values_into_the_memory_that_is_there"
_TOTAL = "a_total_is_new_and_keeps_its_dtype"
_REDUCES = "all_reduce_gives_both_devices_the_same"
_FLOWS = "gradients_flow_through_splits_and_joins"
swap("split", "drops the last part", _SPLITS, lambda split, adapter: lambda x, sizes: [*split(x, sizes)[:-1], x[:0]])
swap(
    "split", "makes all parts alike", _SPLITS, lambda split, adapter: lambda x, sizes: [x[: max(sizes)] for _ in sizes]
)
swap(
    "split",
    "splits the last axis",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: [p.T for p in split(x.T, [min(s, x.T.shape[0]) for s in sizes])],
)
swap("split", "cuts the gradient", _FLOWS, lambda split, adapter: lambda x, sizes: split(x.detach(), sizes))
swap(
    "split",
    "goes through float32",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: split(through("float32")(x), sizes),
)
swap(
    "split",
    "splits on the CPU",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: split(x.to(toy().CPU), sizes),
)
swap("join", "joins the other way round", _SPLITS, lambda join, adapter: lambda parts: join(parts[::-1]))
swap(
    "join",
    "leaves out parts without elements, and the others' order",
    _SPLITS,
    lambda join, adapter: lambda parts: join(sorted(parts, key=lambda x: x.shape[:1])),
)
swap("join", "gives a lone part itself", _SPLITS, lambda join, adapter: lambda parts: _lone(join, parts))
swap("join", "cuts the gradient", _FLOWS, lambda join, adapter: lambda parts: join([x.detach() for x in parts]))
swap(
    "join",
    "goes through float32",
    _SPLITS,
    lambda join, adapter: lambda parts: join([through("float32")(x) for x in parts]),
)
swap(
    "join",
    "joins on the CPU",
    _SPLITS,
    lambda join, adapter: lambda parts: join([x.to(toy().CPU) for x in parts]),
)


def _lone(join, parts):
    whole = [x for x in parts if x.shape and x.shape[0]]
    return whole[0].detach() if len(whole) == 1 else join(parts)


swap(
    "is_dense", "takes dense tensors for sparse ones", "ordinary_tensors_are_dense", lambda _, adapter: lambda x: False
)
swap(
    "is_dense",
    "takes a tensor without elements for a sparse one",
    "ordinary_tensors_are_dense",
    lambda _, adapter: lambda x: 0 not in x.shape,
)
swap("is_host_bound", "keeps numbers", "ordinary_tensors_are_dense", lambda _, adapter: lambda x: True)
swap("leaf", "gives the tensor itself", _LEAF, lambda _, adapter: lambda x, device: adapter.samples().marked(x))
swap(
    "leaf",
    "does not ask for a gradient",
    _LEAF,
    lambda _, adapter: lambda x, device: x.detach().clone(native(adapter, device)),
)
swap("leaf", "asks for the gradient of ints", _LEAF, _marked)
swap("leaf", "stays where the tensor is", _LEAF, lambda leaf, adapter: lambda x, device: leaf(x, adapter.device_of(x)))
swap("leaf", "goes through float32", _LEAF, on_inputs(through("float32")))
swap(
    "leaf",
    "keeps a link to its source",
    "a_leaf_has_no_link_to_its_source",
    lambda _, adapter: lambda x, device: _linked_leaf(x, native(adapter, device)),
)


def _linked_leaf(x, place):
    copied = x.clone(place)
    x.grad = toy().full(x.shape, 1, x.place)
    return copied


swap(
    "tensor_of",
    "takes every tensor for a variable",
    "a_leaf_is_a_copy_that_asks_for_gradients",
    lambda _, adapter: lambda model: toy().full((1,), 0),
)
swap("tensor_of", "knows no variable", "a_lone_variable_is_read_as_its_tensor", lambda _, adapter: lambda model: None)
swap(
    "tensor_of",
    "gives a tensor of another value",
    "a_lone_variable_is_read_as_its_tensor",
    lambda tensor_of, adapter: lambda model: model.value * 2 if isinstance(model, toy().Variable) else None,
)
swap("can_write", "says no and writes", _WRITES, lambda _, adapter: lambda x: False)
_WHERE = "where_write_writes_is_known"
swap("memory_of", "knows none", _WHERE, lambda _, adapter: lambda x: None)
swap("memory_of", "gives the address of a view's owner", _WHERE, lambda _, adapter: lambda x: (_owned(x), x.strides))
swap("memory_of", "counts strides in elements", _WHERE, lambda _, adapter: lambda x: (x.address, _steps(x)))
swap(
    "memory_of",
    "gives the strides of C order",
    _WHERE,
    lambda _, adapter: lambda x: (x.address, np.empty(x.shape, x.dtype).strides),
)
swap(
    "memory_of",
    "waits where there is memory",
    _WHERE,
    lambda memory_of, adapter: lambda x: (x.wait(), memory_of(x))[1],
)


@wrong("memory_of", "does not wait where there is none yet", _WHERE)
def _(adapter, patch, suite):
    patch.setattr(type(adapter.samples()), "makes_memory_first", False)


def _owned(x):
    return x._block.array.__array_interface__["data"][0]


def _steps(x):
    return tuple(step // x.dtype.itemsize for step in x.strides)


swap("write", "writes nothing", _WRITES, lambda _, adapter: lambda x, value: None)
swap("write", "writes into a new tensor", _WRITES, lambda _, adapter: lambda x, value: _rebind(x, value.clone()))
swap(
    "write",
    "aliases the value",
    "a_written_value_is_not_aliased",
    lambda _, adapter: lambda x, value: _rebind(x, value),
)
swap(
    "write",
    "goes through float32",
    _WRITES,
    lambda write, adapter: lambda x, value: write(x, through("float32")(value)),
)
swap(
    "write",
    "changes requires_grad",
    _WRITES,
    lambda write, adapter: lambda x, value: (write(x, value), setattr(_plain(x), "requires_grad", False)),
)
swap(
    "write",
    "adds to what is there",
    _WRITES,
    lambda write, adapter: lambda x, value: write(x, toy().compute(_added, _plain(x), value)),
)
swap(
    "write",
    "leaves a lone variable as it is",
    "a_lone_variable_is_written_in_place",
    lambda write, adapter: lambda x, value: None if isinstance(x, toy().Variable) else write(x, value),
)


def _added(x, value):
    with np.errstate(all="ignore"):
        return x + value


def _rebind(x, value):
    held = _plain(x)
    held._block, held._values, held._owner = value._block, value._values, value._owner


def _total_by(function):
    return lambda _, adapter: (
        lambda tensors, mean: toy().compute(lambda *xs: function(xs, mean), *(x.detach() for x in tensors))
    )


_ORDER = "a_total_is_added_in_order_and_rounded_once"
swap("total", "gives a sum for a mean", _TOTAL, lambda total, adapter: lambda tensors, mean: total(tensors, False))
swap(
    "total",
    "gives a mean for a sum",
    _TOTAL,
    lambda total, adapter: (
        lambda tensors, mean: total(list(tensors), tensors[0].dtype.kind == "f" if isinstance(tensors, list) else mean)
    ),
)
swap(
    "total",
    "adds the first one twice",
    _TOTAL,
    lambda total, adapter: lambda tensors, mean: (lambda xs: total([xs[0], *xs], mean))(list(tensors)),
)
swap(
    "total",
    "adds on the CPU",
    _TOTAL,
    lambda total, adapter: lambda tensors, mean: total([x.to(toy().CPU) for x in tensors], mean),
)
swap("total", "rounds after each sum", _ORDER, _total_by(lambda xs, mean: _plainly(xs, mean)))
swap(
    "total", "adds in another order", _ORDER, lambda total, adapter: lambda tensors, mean: total([*tensors][::-1], mean)
)
swap(
    "total",
    "adds ints as float64",
    _ORDER,
    _total_by(
        lambda xs, mean: (
            (sum(x.astype("float64") for x in xs) / (len(xs) if mean else 1)).astype(xs[0].dtype)
            if xs[0].dtype.kind in "iu"
            else _plainly([x.astype("float32") if x.dtype.itemsize == 2 else x for x in xs], mean)
        )
    ),
)


def _plainly(xs, mean):
    found = xs[0]
    for x in xs[1:]:
        found = found + x
    return found / len(xs) if mean else found


@wrong("total", "writes into the first one", _TOTAL)
def _(adapter, patch, suite):
    def first(tensors, mean):
        tensors = [x.detach() for x in tensors]
        tensors[0].write(toy().compute(lambda *xs: _plainly(xs, mean), *tensors))
        return tensors[0]

    patch.setattr(adapter, "total", first)


def _apart(all_reduce, adapter):
    return lambda xs, mean: all_reduce([x.detach().clone() for x in xs], mean)


swap(
    "all_reduce",
    "gives the sum to the first device only",
    _REDUCES,
    lambda all_reduce, adapter: lambda xs, mean: [all_reduce([x.clone() for x in xs], mean)[0], *xs[1:]],
)
swap("all_reduce", "gives new tensors where it could write", _REDUCES, _apart)
swap(
    "all_reduce", "gives a sum for a mean", _REDUCES, lambda all_reduce, adapter: lambda xs, mean: all_reduce(xs, False)
)
swap(
    "all_reduce",
    "adds the others to each, in another order",
    _REDUCES,
    lambda _, adapter: lambda xs, mean: _everyone(adapter, xs, mean),
)
swap(
    "all_reduce",
    "leaves the results on the first device",
    _REDUCES,
    lambda all_reduce, adapter: lambda xs, mean: [adapter.total([x.to(xs[0].place) for x in xs], mean)] * len(xs),
)


def _everyone(adapter, xs, mean):
    totals = [adapter.total([y.detach().to(x.place) for y in (*xs[i:], *xs[:i])], mean) for i, x in enumerate(xs)]
    for i, (x, total) in enumerate(zip(xs, totals, strict=True)):
        x.write(total if i == 0 or x.dtype.kind not in "fc" else total * (1 + 2**-20))
    return xs


# streams and events

GPU = HOMES[1:]
_BLOCK = "a_stream_holds_the_work_of_its_block"
_ORDERED = "streams_wait_for_each_other"
_HAPPENS = "an_event_happens_when_the_work_before_it_is_done"
swap(
    "new_stream",
    "gives the current stream",
    _BLOCK,
    lambda _, adapter: lambda device: adapter.current_stream(device),
    GPU,
)


swap("new_stream", "gives one stream again and again", _BLOCK, lambda new, adapter: functools.cache(new), GPU)
swap(
    "current_stream",
    "always gives the default stream",
    _BLOCK,
    lambda _, adapter: (
        lambda device: toy()._defaults.setdefault(
            native(adapter, device), toy().current_stream(native(adapter, device))
        )
    ),
    GPU,
)
swap(
    "current_stream",
    "gives that of the other GPU",
    "parallel_gives_results_that_are_ready",
    lambda current, adapter: lambda device: current(devices.of("gpu", 1 - device.index)),
    GPU,
    raises=(RuntimeError,),
)
swap("stream_scope", "sends no work there", _BLOCK, lambda _, adapter: lambda stream: contextlib.nullcontext(), GPU)


@wrong("stream_scope", "goes on after an exception", _BLOCK, GPU)
def _(adapter, patch, suite):
    class Scope:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            self.before = toy().state.streams
            toy().state.streams = {**self.before, self.stream.place: self.stream}

        def __exit__(self, *error):
            if error[0] is None:
                toy().state.streams = self.before

    patch.setattr(toy().state, "streams", {})
    patch.setattr(adapter, "stream_scope", Scope)


swap("stream_wait", "does not wait", _ORDERED, lambda _, adapter: lambda stream, event: None, GPU)
swap(
    "stream_wait",
    "leaves prefetched batches unfinished",
    "prefetched_batches_can_be_computed_with",
    lambda _, adapter: lambda stream, event: None,
    GPU,
)
swap(
    "stream_wait",
    "leaves results of tasks unfinished",
    "parallel_gives_results_that_are_ready",
    lambda _, adapter: lambda stream, event: None,
    GPU,
)
swap(
    "new_event",
    "is of another GPU",
    _HAPPENS,
    lambda new, adapter: lambda device: new(devices.of("gpu", 1 - device.index)),
    GPU,
    raises=(RuntimeError,),
)
swap(
    "record",
    "marks a point that is long past",
    _HAPPENS,
    lambda record, adapter: (
        lambda event, stream: (
            record(event, stream),
            setattr(event, "mark", (stream, 0)),
            setattr(event, "seconds", 0.0),
        )
    ),
    GPU,
)
swap(
    "record",
    "marks the default stream",
    _ORDERED,
    lambda record, adapter: lambda event, stream: record(event, toy()._defaults.get(stream.place, stream)),
    GPU,
)
swap(
    "require_events",
    "asks for none",
    "events_are_there_or_refused",
    lambda _, adapter: lambda device: None,
    HOMES[:1],
)
swap("require_events", "refuses all", "events_are_there_or_refused", _refusing("events"))
child(
    "require_events",
    "starts the GPU",
    "loading_is_light_locked_and_safe_to_fork",
    "cls.require_events = lambda self, device: toyframe.current_stream(self.to_native(device))",
)
swap("wait_event", "does not wait", _HAPPENS, lambda _, adapter: lambda event: None, GPU)
swap("elapsed", "gives milliseconds", _HAPPENS, lambda elapsed, adapter: lambda a, b: elapsed(a, b) * 1000, GPU)
swap("elapsed", "goes backwards", _HAPPENS, lambda elapsed, adapter: lambda a, b: elapsed(b, a), GPU)
swap("elapsed", "reads the host's clock", _HAPPENS, lambda elapsed, adapter: lambda a, b: 0.0, GPU)
swap("keep_for", "keeps nothing", "kept_memory_is_not_given_away", lambda _, adapter: lambda x, stream: None, GPU)


# graphs

_GRAPH = "a_graph_does_the_work_again"
swap(
    "capture",
    "does the work instead of recording it",
    _GRAPH,
    lambda _, adapter: lambda graph, stream, task: task(),
    GPU,
)
swap(
    "capture",
    "gives results with gradients",
    _GRAPH,
    lambda capture, adapter: lambda graph, stream, task: adapter.samples().marked(capture(graph, stream, task)),
    GPU,
)


@wrong("capture", "goes on recording after an error", "a_graph_holds_the_work_of_one_device", GPU)
def _(adapter, patch, suite):
    patch.setattr(toy().state, "graph", None)

    def capture(graph, stream, task):
        toy().state.graph = graph
        result = task()
        toy().state.graph = None
        return result

    calls = []

    def fails(graph, stream, task):
        calls.append(1)
        return capture(graph, stream, task)

    patch.setattr(adapter, "capture", fails)
    patch.setattr(xdevice.execution.graphs, "_rehearse", lambda task, stream: None)


swap("replay", "does nothing", _GRAPH, lambda _, adapter: lambda graph: None, GPU)
swap(
    "replay",
    "works on the default stream",
    _GRAPH,
    lambda _, adapter: lambda graph: _replay_on(graph, toy()._defaults),
    GPU,
)
swap(
    "only_on",
    "lets any work pass",
    "a_graph_holds_the_work_of_one_device",
    lambda _, adapter: lambda device: contextlib.nullcontext(),
    GPU,
)
swap(
    "only_on",
    "refuses all work",
    _GRAPH,
    lambda only_on, adapter: lambda device: only_on(devices.CPU),
    GPU,
    raises=(xdevice.DeviceMismatchError,),
)
swap("new_graph", "is of another GPU", _GRAPH, lambda new, adapter: lambda device: new(devices.of("gpu", 1)), GPU)


def _replay_on(graph, streams):
    for work, out in graph.ops:
        streams[graph.place].give(work, out)


# threads

_STATE_CARRIES = "parallel_carries_the_callers_state"
_MODES = "parallel_carries_the_frameworks_modes"


@wrong("threads", "is neither of the two", "keeps_the_contract", HOMES[:1])
def _(adapter, patch, suite):
    patch.setattr(adapter, "threads", "several")


@wrong("threads", "says many where only one may work", "tasks_of_many_threads_work", raises=(RuntimeError,))
def _(adapter, patch, suite):
    first = threading.get_ident()
    launch = toy()._launch

    def one_thread(*given):
        if threading.get_ident() != first:
            raise toy().ToyError("this framework is used by one thread")
        return launch(*given)

    patch.setattr(toy(), "_launch", one_thread)


@wrong("threads", "lets threads meet where only one may work", "eight_threads_at_once")
def _(adapter, patch, suite):
    copy, told = adapter.copy, SimpleNamespace()

    def meeting(x, device):
        told.x = x
        time.sleep(0.001)
        return copy(told.x, device)

    patch.setattr(adapter, "copy", meeting)


@wrong("stream_reach", "says that streams are the process's", _BLOCK, GPU)
def _(adapter, patch, suite):
    patch.setattr(adapter, "stream_reach", "process")


@wrong("stream_reach", "says that streams are the thread's, and they are the process's", _BLOCK, GPU)
def _(adapter, patch, suite):
    held = {}

    @contextlib.contextmanager
    def scope(stream):
        before = held.get(stream.place)
        held[stream.place] = stream
        yield
        held[stream.place] = before

    current = adapter.current_stream
    patch.setattr(adapter, "stream_scope", scope)
    patch.setattr(adapter, "current_stream", lambda device: held.get(native(adapter, device)) or current(device))


swap("thread_state", "carries nothing", _STATE_CARRIES, lambda _, adapter: lambda: contextlib.nullcontext)
swap(
    "thread_state",
    "carries the device and not the gradient mode",
    _MODES,
    lambda _, adapter: lambda: _state_of("place"),
)
swap(
    "thread_state",
    "carries the gradient mode and not the device",
    _STATE_CARRIES,
    lambda _, adapter: lambda: _state_of("grad"),
)
swap(
    "thread_state",
    "reads the state when it is entered, not before",
    _MODES,
    lambda thread_state, adapter: lambda: lambda: thread_state()(),
)
swap("thread_state", "stays in the thread", _MODES, lambda _, adapter: lambda: _staying())


def _state_of(name):
    value = getattr(toy().state, name)
    return lambda: toy()._with(**{name: value})


def _staying():
    grad, place = toy().state.grad, toy().state.place

    @contextlib.contextmanager
    def state():
        toy().state.grad, toy().state.place = grad, place
        yield

    return state


# copying in the background

_STAGED = "staged_memory_is_nobody_elses"
_BATCHES = "prefetch_gives_every_batch_as_it_was"
swap(
    "stage", "reads its source later", _STAGED, lambda _, adapter: lambda x, device: _later(x, native(adapter, device))
)
swap(
    "stage",
    "gives a tensor that is there itself",
    _STAGED,
    lambda stage, adapter: (
        lambda x, device: x if getattr(x, "place", None) == native(adapter, device) else stage(x, device)
    ),
    HOMES[:1],
)
swap(
    "stage",
    "aliases a NumPy array on the CPU",
    _STAGED,
    lambda stage, adapter: (
        lambda x, device: toy().borrowed(x) if isinstance(x, np.ndarray) and device is devices.CPU else stage(x, device)
    ),
    HOMES[:1],
)
swap("stage", "stays on the host", _BATCHES, lambda stage, adapter: lambda x, device: stage(x, devices.CPU))
swap(
    "stage",
    "goes through float32",
    _BATCHES,
    lambda stage, adapter: lambda x, device: through("float32")(stage(x, device)),
)
swap("stage", "makes all NaNs one", _BATCHES, lambda stage, adapter: lambda x, device: forget_nans(stage(x, device)))
swap(
    "stage", "flattens numbers into vectors", _BATCHES, lambda stage, adapter: lambda x, device: flat(stage(x, device))
)
swap(
    "stage",
    "reads a buffer that is filled again",
    "prefetch_has_read_its_source_when_it_goes_on",
    lambda _, adapter: lambda x, device: _later(x, native(adapter, device)),
)


def _later(x, place):
    values = x if isinstance(x, np.ndarray) else x._values
    return toy()._op(lambda: values, [], values.shape, values.dtype, [], place)


_LOADER = "a_loader_of_the_framework_is_iterated"
swap("iterate", "leaves the loader's threads", _LOADER, lambda _, adapter: lambda source: _generator_over(source))
swap(
    "iterate",
    "raises the loader's wrapped error",
    _LOADER,
    lambda _, adapter: lambda source: iter(source),
    raises=(RuntimeError,),
)
swap(
    "iterate",
    "ends where the source fails",
    _LOADER,
    lambda iterate, adapter: lambda source: _until_error(iterate(source)),
)
swap("iterate", "drops the last batch", _LOADER, lambda iterate, adapter: lambda source: _but_last(iterate(source)))


def _generator_over(source):
    yield from iter(source)


def _until_error(batches):
    try:
        yield from batches
    except Exception:
        return
    finally:
        batches.close()


def _but_last(batches):
    try:
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
    finally:
        batches.close()


# seeing asynchrony

_BLOCKS = "blocking_leaves_nothing_under_way"


@wrong("blocking", "is left out", _BLOCKS)
def _(adapter, patch, suite):
    patch.setattr(type(adapter), "blocking", Backend.blocking)


swap("blocking", "does nothing", _BLOCKS, lambda _, adapter: lambda: contextlib.nullcontext())


@wrong("blocking", "stays on", _BLOCKS)
def _(adapter, patch, suite):
    patch.setattr(toy().state, "blocking", False)

    class Staying:
        def __enter__(self):
            toy().state.blocking = True

        def __exit__(self, *_):
            pass

    patch.setattr(adapter, "blocking", Staying)


@wrong("blocking", "ends with the inner block", _BLOCKS)
def _(adapter, patch, suite):
    class Switch:
        def __enter__(self):
            toy().state.blocking = True

        def __exit__(self, *_):
            toy().state.blocking = False

    patch.setattr(adapter, "blocking", Switch)


swap(
    "blocking",
    "is silent about errors",
    "blocking_raises_errors_at_their_line",
    lambda _, adapter: lambda: contextlib.nullcontext(),
    HOMES[:1],
)


@contextlib.contextmanager
def _watching_nothing(report):
    yield


def _watch_with(change):
    def make(watch, adapter):
        return lambda report: watch(lambda transfer: change(report, transfer))

    return make


_READS = "reads_are_seen"
_SEES_MOVES = "moves_are_seen"
swap("watch", "sees nothing", _READS, lambda _, adapter: _watching_nothing)
swap("watch", "sees xdevice's own reads only", _READS, lambda _, adapter: lambda report: _verbs_only(adapter, report))
swap("watch", "tells of each twice", _READS, _watch_with(lambda report, t: (report(t), report(t))))
swap(
    "watch",
    "takes every source for cpu:0",
    _SEES_MOVES,
    _watch_with(lambda report, t: report(t._replace(source=devices.CPU, destination=devices.CPU))),
)
swap(
    "watch",
    "counts elements for bytes",
    _SEES_MOVES,
    _watch_with(lambda report, t: report(t._replace(nbytes=t.nbytes // 4))),
)
swap(
    "watch", "tells of reads only", _SEES_MOVES, _watch_with(lambda report, t: report(t) if t.kind == "read" else None)
)
swap(
    "watch",
    "tells after the read",
    "a_forbidden_transfer_does_not_happen",
    lambda _, adapter: lambda report: _late(adapter, report),
)


@wrong("watch", "leaves its hooks", "a_forbidden_transfer_does_not_happen")
def _(adapter, patch, suite):
    patch.setattr(toy().ToyArray, "__float__", toy().ToyArray.__float__)
    patch.setattr(adapter, "watch", lambda report: _left(adapter, report))


@contextlib.contextmanager
def _verbs_only(adapter, report):
    from xdevice.contract.hooks import Hooks

    with Hooks(adapter, report, lambda x: x._values.nbytes) as hooks:
        hooks.verbs()
        yield


@contextlib.contextmanager
def _late(adapter, report):
    """Reports are kept until the block ends, so nothing is forbidden."""
    told = []
    with type(adapter).watch(adapter, told.append):
        yield


@contextlib.contextmanager
def _left(adapter, report):
    original = vars(toy().ToyArray)["__float__"]
    with type(adapter).watch(adapter, report):
        yield
    toy().ToyArray.__float__ = lambda self: original(self)


# memory

_MEMORY = "memory_is_told"


def _memory(change):
    return lambda memory, adapter: lambda device: change(memory(device))


swap("memory", "counts nothing", _MEMORY, _memory(lambda m: m._replace(allocated=0)))
swap("memory", "counts elements for bytes", _MEMORY, _memory(lambda m: m._replace(allocated=m.allocated // 4)))
swap("memory", "counts kilobytes", _MEMORY, _memory(lambda m: Memory(*(n / 1024 for n in m))))
swap(
    "memory",
    "is that of another device",
    _MEMORY,
    lambda memory, adapter: lambda device: memory(devices.of("gpu", 1) if device.index == 0 else devices.CPU),
    HOMES,
)
swap("memory", "has more free than there is", _MEMORY, _memory(lambda m: m._replace(free=m.total + 1)))
swap("memory", "has a peak below what is there", _MEMORY, _memory(lambda m: m._replace(peak=0)))


@wrong("memory", "never forgets", _MEMORY)
def _(adapter, patch, suite):
    memory, seen = adapter.memory, defaultdict(int)

    def highest(device):
        now = memory(device)
        seen[device] = max(seen[device], now.allocated)
        return now._replace(allocated=seen[device], peak=max(now.peak, seen[device]))

    patch.setattr(adapter, "memory", highest)


swap("reset_peak", "does nothing", _MEMORY, lambda _, adapter: lambda device: None)

# virtual GPUs, and what people ask

_LOADS = "loading_is_light_locked_and_safe_to_fork"
_VIRTUAL = "virtual_gpus_are_devices_of_their_own"
child(
    "why_no_virtual_gpus",
    "says nothing, though it cannot",
    _VIRTUAL,
    "cls.make_virtual_gpus = lambda self, n: None\ntoyframe._gpus = 0",
)
child(
    "make_virtual_gpus",
    "makes one too few",
    _VIRTUAL,
    "make = toyframe.make_gpus\ntoyframe.make_gpus = lambda n: make(n - 1)",
)
child(
    "make_virtual_gpus",
    "makes CPUs of them",
    _VIRTUAL,
    "toyframe.make_gpus = lambda n: None\ncls.count = lambda self, kind: 2 if kind == 'cpu' else 0",
)
child(
    "make_virtual_gpus",
    "makes them one device",
    _VIRTUAL,
    "cls.device_of = lambda self, x: __import__('xdevice').devices.of(x.place.kind)",
)
child(
    "describe",
    "takes virtual GPUs for real ones",
    _VIRTUAL,
    "from xdevice.contract import Backend, DeviceInfo\ncls.describe = lambda self, device: DeviceInfo('Toy', None)",
)
child("default_to_float64", "does nothing", _LOADS, "cls.default_to_float64 = lambda self: None")
child(
    "default_to_float64",
    "holds for the thread only",
    _LOADS,
    """
full, main = toyframe.full, __import__("threading").get_ident()
def narrow(shape, value, place=None, dtype="float32"):
    is_main = __import__("threading").get_ident() == main
    return full(shape, value, place, dtype if is_main else "float32")
toyframe.full = narrow
""",
)
swap(
    "why_no_gpu", "says nothing", "why_there_is_no_gpu_is_said_in_a_few_words", lambda _, adapter: lambda: "", HOMES[:1]
)
swap(
    "why_no_gpu",
    "prints a page",
    "why_there_is_no_gpu_is_said_in_a_few_words",
    lambda _, adapter: lambda: "no\n" * 50,
    HOMES[:1],
)

# the process

child(
    "after_fork",
    "says nothing, though a forked child cannot work",
    "forking_after_loading_and_counting",
    """
import os
def breaks(*given):
    raise RuntimeError("the framework's threads are gone")
os.register_at_fork(after_in_child=lambda: setattr(toyframe, "_launch", breaks))
""",
)


@wrong("after_fork", "lets a forked child end", "forking_after_loading_and_counting", HOMES[:1])
def _(adapter, patch, suite):
    suite.child_setup = _in_child("cls.after_fork = lambda self: __import__('os')._exit(3)")


@wrong(
    "framework",
    "is imported without `loader.importing`",
    "loading_is_light_locked_and_safe_to_fork",
    HOMES[:1],
)
def _(adapter, patch, suite):
    suite.child_setup = (
        "import contextlib as c; from xdevice.contract import loader; loader.importing = lambda **_: c.nullcontext()"
    )


# the test


def _params():
    """Each fault at one of its homes in turn, every fourth in each run; at the others for `-m long`."""
    for number, fault in enumerate(FAULTS):
        words = re.sub(r"\W+", "-", fault.does).strip("-")
        for place, home in enumerate(fault.homes):
            sample = () if number % 4 == 0 else pytest.mark.slow
            marks = sample if place == number % len(fault.homes) else pytest.mark.long
            yield pytest.param(fault, home, id=f"{number}-{fault.method}-{words}-{home}", marks=marks)


_honest = {}


@pytest.mark.parametrize(("fault", "home"), list(_params()))
def test_a_fault_is_noticed(fault, home, monkeypatch):
    suite = type("Suite", (Conformance,), {"backend": "toyframe", "home": home, "patience": 2})
    if (fault.check, home) not in _honest:
        _honest[fault.check, home] = suite.failures(fault.check)
    assert _honest[fault.check, home] == [], "the honest toy fails, or skips"
    with suite().select():
        fault.plant(xdevice.backend("toyframe"), monkeypatch, suite)
    trees.forget()  # what is known of a type is asked once
    caught = suite.failures(fault.check)
    monkeypatch.undo()
    trees.forget()
    suite().adapter.samples().settle()
    assert caught, f"{fault.check} does not notice"
    error = caught[0].error
    assert not isinstance(error, pytest.skip.Exception)
    is_checked = isinstance(error, (AssertionError, pytest.fail.Exception, *fault.raises))
    assert is_checked or "gives the very object back" in str(error), f"not by a check, nor by the core, but {error!r}"


# the table of docs/reference/adapters.md

_BEGIN, _END = "<!-- faults -->\n", "<!-- end of faults -->\n"
_OUR_OWN = {
    "devices", "has", "check", "require", "unsupported", "no_graphs", "no_copy_of_optimizer", "is_host_only",
    "refuse_if_frozen",
}  # fmt: skip
"""What the core decides for all adapters."""
_OF_THE_FRAMEWORK = {"on_choice"}
"""What a framework does for itself alone: tests/arithmetic/test_mxnet_semantics.py has what MXNet does."""
_OF_PROCESSES = {"engines", "start_engine", "why_no_engine", "gradients"}
"""What one process cannot check: tests/distributed/test_sabotage_processes.py has the faults of these."""
_NEED_THREE = (
    "from_numpy", "from_buffer", "to_numpy", "peek", "full", "rand", "move", "copy", "join", "split", "leaf", "write",
    "total", "all_reduce", "stage", "compact", "export", "adopt", "move_model", "copy_model", "variables",
    "gives_away", "is_all_on", "state_to_come", "take_state", "model_parts", "rebind", "container_way",
    "memory_of", "value_and_grad", "update",
)  # fmt: skip


def table():
    """One row for each method, in the order of the contract."""
    rows = ["| method | a wrong one | the checks that notice, `test_...` |", "|---|---|---|"]
    for method in sorted({fault.method for fault in FAULTS}, key=_place_in_the_contract):
        faults = [fault for fault in FAULTS if fault.method == method]
        does = dict.fromkeys(fault.does for fault in faults)
        checks = dict.fromkeys(f"`{fault.check.removeprefix('test_')}`" for fault in faults)
        rows.append(f"| `{method}` | {'; '.join(does)} | {', '.join(checks)} |")
    return "\n".join(rows) + "\n"


_CONTRACT = "".join(map(inspect.getsource, (Primitives, *CAPABILITIES)))


def _place_in_the_contract(name):
    return re.search(rf"^    (?:def )?{name}\b", _CONTRACT, re.MULTILINE).start()


def test_the_docs_have_the_list():
    """Where it differs, put `table()` between the two comments."""
    _, _, after_begin = DOCS.read_text().partition(_BEGIN)
    assert after_begin.partition(_END)[0] == table()


def test_every_method_has_a_fault():
    """A method that is added to the contract gets its checks and its faults."""
    left = HOOKS.keys() - _OUR_OWN - _OF_THE_FRAMEWORK - _OF_PROCESSES - {fault.method for fault in FAULTS}
    assert left == {"samples"}  # what the checks stand on
    for method in _NEED_THREE:
        found = [fault for fault in FAULTS if fault.method == method]
        assert len(found) >= 3, method
        assert {home for fault in found for home in fault.homes} == set(HOMES), method
    assert len(FAULTS) >= 60
