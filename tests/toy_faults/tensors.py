"""Faults of where tensors are, and of moving, copying and waiting for them."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

import xdevice
from xdevice.base import devices
from xdevice.contract import Way
from xdevice.core import registry

from .planting import (
    HOMES,
    LARGE,
    ask_for_gradients,
    double_floats,
    flat,
    flush_denormals,
    forget_nans,
    native,
    on_inputs,
    swap,
    through,
    toy,
    transpose_memory,
    with_values,
    wrong,
)


def forget_signs(x):
    x.wait()
    values = x._values
    return with_values(x, np.where(values == 0, np.zeros_like(values), values))


def unordered(x, place):
    """A copy that does not wait for the stream that makes its source."""
    t = toy()
    out = t.empty(x.shape, place, x.dtype)
    values, target = x._values, out._values
    t._launch(lambda: np.copyto(target, values), out._block, place)
    return out


@wrong(
    "device_of",
    "always says cpu:0",
    "device_of_and_same_device_see_where_tensors_are",
    HOMES[1:],
)
def device_of_always_says_cpu_0(adapter, patch, suite):
    _probe(adapter, patch, lambda x: devices.CPU)


@wrong("device_of", "mistakes every GPU for the first one", "every_device_works", HOMES[:1])
def device_of_takes_every_gpu_for_the_first(adapter, patch, suite):
    _probe(adapter, patch, lambda x: devices.of(x.place.kind))


@wrong(
    "device_of",
    "returns the device of the scope, not of the tensor",
    "device_of_and_same_device_see_where_tensors_are",
    HOMES[1:],
)
def device_of_gives_the_scope_s_device_not_the_tensor_s(adapter, patch, suite):
    _probe(adapter, patch, lambda x: adapter.from_native(toy().state.place))


def _probe(adapter, patch, look):
    patch.setattr(adapter, "device_of", look)
    for cls in (toy().ToyArray, toy().Parameter):
        patch.setitem(registry.probes, cls, look)


@wrong(
    "probe", "always says cpu:0", "device_of_and_same_device_see_where_tensors_are", HOMES[1:]
)
def probe_always_says_cpu_0(adapter, patch, suite):
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
    "returns only the device of the first tensor",
    "a_mismatch_is_found_and_named",
    lambda _, adapter: lambda cls, tensors: {adapter.device_of(tensors[0])},
)

_MOVES = "to_device_moves_and_leaves_the_source"
_COPIES = "copy_to_is_new_storage_on_the_same_device"
for _method, _check in (("move", _MOVES), ("copy", _COPIES)):
    swap(_method, "converts through float32", _check, on_inputs(through("float32")))
    swap(
        _method,
        "converts through float64, which cannot hold all 64-bit ints",
        _check,
        on_inputs(through("float64")),
    )
    swap(_method, "loses the sign of zeros", _check, on_inputs(forget_signs))
    swap(_method, "turns all NaNs into the same NaN", _check, on_inputs(forget_nans))
    swap(_method, "flushes denormal numbers to zero", _check, on_inputs(flush_denormals))
    swap(
        _method,
        "copies the memory of a transposed tensor without its strides",
        _check,
        on_inputs(transpose_memory),
    )
    swap(_method, "turns a 0-d tensor into a vector", _check, on_inputs(flat))
    swap(_method, "widens float32", _check, on_inputs(double_floats))
    swap(
        _method,
        "does not wait for the computation of its source",
        "a_move_waits_for_what_is_computed",
        lambda _, adapter: lambda x, device: unordered(x, native(adapter, device)),
    )
swap("move", "does not move", _MOVES, lambda _, adapter: lambda x, device: x.clone())
swap(
    "move",
    "always moves to the first GPU",
    "every_device_reaches_every_other",
    lambda move, adapter: lambda x, device: move(x, devices.of(device.kind)),
)
swap(
    "move",
    "moves through another device and stays there",
    _MOVES,
    lambda move, adapter: (
        lambda x, device: move(x, devices.of("gpu", 1) if device.index == 0 else devices.CPU)
    ),
)

_BATCHES = "a_batch_moves_as_its_tensors_do"
swap(
    "move_all",
    "does not move",
    _BATCHES,
    lambda _, adapter: lambda tensors, device: [x.clone() for x in tensors],
)
swap(
    "move_all",
    "returns them in another order",
    _BATCHES,
    lambda move_all, adapter: lambda tensors, device: move_all(tensors, device)[::-1],
)
swap(
    "move_all",
    "does not keep requires_grad",
    _BATCHES,
    lambda move_all, adapter: (
        lambda tensors, device: move_all([x.detach() for x in tensors], device)
    ),
)


@wrong("move", "returns the same memory", "a_move_is_in_memory_of_its_own")
def move_hands_the_same_memory_over(adapter, patch, suite):
    move = adapter.move

    def relabelled(x, device):
        if device == suite.home:  # the way back makes a copy: what is there is asked as well
            return move(x, device)
        x.wait()
        return toy().ToyArray(x._block, x._values, x._owner, adapter.to_native(device))

    patch.setattr(adapter, "move", relabelled)


@wrong("move", "empties its source", _MOVES)
def move_empties_its_source(adapter, patch, suite):
    move = adapter.move

    def emptied(x, device):
        moved = move(x, device)
        moved.wait()
        x._values[...] = 0
        return moved

    patch.setattr(adapter, "move", emptied)


@wrong("move", "loses the sign of zeros on the way back", "a_tensor_comes_back_as_it_went")
def move_loses_the_sign_of_zeros_on_the_way_back(adapter, patch, suite):
    move = adapter.move
    patch.setattr(
        adapter,
        "move",
        lambda x, device: move(forget_signs(x) if device == suite.home else x, device),
    )


def _cut(original, adapter):
    return lambda x, device: original(x.detach(), device)


def _doubled(original, adapter):
    def wrong_gradient(x, device):
        moved = original(x, device)
        if moved._from:
            moved._from = [
                (source, lambda g, back=back: back(g * 2)) for source, back in moved._from
            ]
        return moved

    return wrong_gradient


def _leaves_the_gradient(original, adapter):
    def moved_one_way(x, device):
        moved = original(x, device)
        if moved._from:
            moved._from = [
                (source, lambda g, back=back: back(g).to(moved.place))
                for source, back in moved._from
            ]
        return moved

    return moved_one_way


for _method in ("move", "copy"):
    swap(
        _method,
        "leaves the gradient on the target's device",
        "gradients_arrive_where_the_source_is",
        _leaves_the_gradient,
    )
swap("move", "stops the gradient", "gradients_flow_there_and_back", _cut)
swap("move", "doubles the gradient", "gradients_flow_there_and_back", _doubled)
swap("move", "does not keep requires_grad", "requires_grad_stays", _cut)
swap(
    "move",
    "requires gradients that were not required",
    "requires_grad_stays",
    ask_for_gradients,
)
swap("copy", "returns the tensor itself", _COPIES, lambda _, adapter: lambda x, device: x)
swap("copy", "returns an alias", _COPIES, lambda _, adapter: lambda x, device: x.detach())
swap(
    "copy",
    "leaves the copy on the tensor's device",
    "copy_to_another_device",
    lambda _, adapter: lambda x, device: x.clone(),
)
swap(
    "copy",
    "returns an alias if the tensor is already on the device",
    _COPIES,
    lambda _, adapter: lambda x, device: x.to(native(adapter, device)),
)
swap("copy", "stops the gradient", "gradients_flow_through_a_copy_on_the_same_device", _cut)
swap(
    "copy", "doubles the gradient", "gradients_flow_through_a_copy_on_the_same_device", _doubled
)
swap("copy", "does not keep requires_grad", "requires_grad_stays", _cut)
_EARLY = "what_is_not_waited_for_cannot_be_read_early"


def _loses_the_end(move, adapter):
    def cut_short(x, device):
        moved = move(x, device)
        moved.wait()
        if moved._values.nbytes > 1 << 24:
            moved._values[-1, -1000:] = 0
        return moved

    return cut_short


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
    swap(_method, "loses the end of large tensors", LARGE, _loses_the_end)
swap(
    "start_move",
    "returns values that have not arrived yet",
    _EARLY,
    lambda start, adapter: _not_waited_for(adapter.move, adapter),
)
swap("start_move", "does not move", _EARLY, lambda _, adapter: lambda x, device: x.clone())
swap("start_move", "converts through float32", _EARLY, on_inputs(through("float32")))

_WAITS = "sync_waits_for_work_under_way"
swap("synchronize", "waits for nothing", _WAITS, lambda _, adapter: lambda device: None)
swap(
    "synchronize",
    "waits only for the CPU when it should wait for all devices",
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
    "does not raise the errors of the work",
    "errors_of_asynchronous_work_surface_at_sync",
    lambda synchronize, adapter: _swallowed(synchronize),
    HOMES[:1],
)
swap("wait", "waits for nothing", _WAITS, lambda _, adapter: lambda x: None)
swap(
    "wait",
    "does not raise the error of the computation",
    "errors_of_asynchronous_work_surface_at_sync",
    lambda wait, adapter: _swallowed(wait),
    HOMES[:1],
)


def _swallowed(function):
    def quiet(*given):
        with contextlib.suppress(toy().ToyError):
            return function(*given)

    return quiet


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
    "finds none",
    _KNOWN,
    lambda _, adapter: lambda x: None,
    raises=(xdevice.errors.ContainerError, xdevice.errors.NotATensorError),
)
swap(
    "container_way",
    "treats every object as a container",
    _KNOWN,
    lambda _, adapter: lambda x: Way(),
)
swap("container_way", "returns the old object", _KNOWN, _padded(rebuild=lambda x, inside: x))
swap(
    "container_way",
    "drops the other attributes",
    _KNOWN,
    _padded(rebuild=lambda x, inside: toy().Padded(inside[0], None)),
)
swap(
    "container_way",
    "returns another type",
    _KNOWN,
    _padded(rebuild=lambda x, inside: list(inside)),
)


def _refill(x, inside):
    x.rows = inside[0]
    return x


swap("container_way", "changes the original object", _KNOWN, _padded(rebuild=_refill))
_TOLD = "what_moves_itself_is_told_a_native_device"


@wrong("moves_by", "names a method that no tensor has", _TOLD)
def moves_by_names_a_method_that_no_tensor_has(adapter, patch, suite):
    patch.setattr(adapter, "moves_by", "to_place")


@wrong("moves_by", "names a method that moves nothing", _TOLD)
def moves_by_names_a_method_that_moves_nothing(adapter, patch, suite):
    patch.setattr(toy().ToyArray, "stay", lambda self, place: self, raising=False)
    patch.setattr(adapter, "moves_by", "stay")


swap(
    "is_dense",
    "mistakes dense tensors for sparse ones",
    "ordinary_tensors_are_dense",
    lambda _, adapter: lambda x: False,
)
swap(
    "is_dense",
    "mistakes a tensor without elements for a sparse one",
    "ordinary_tensors_are_dense",
    lambda _, adapter: lambda x: 0 not in x.shape,
)
swap(
    "is_host_bound",
    "treats tensors of numbers as bound to the host",
    "ordinary_tensors_are_dense",
    lambda _, adapter: lambda x: True,
)
