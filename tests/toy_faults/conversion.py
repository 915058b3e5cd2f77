"""Faults of memory that is shared with other frameworks."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from xdevice.contract import Takes

from .planting import (
    HOMES,
    on_inputs,
    swap,
    through,
    toy,
    transpose_memory,
    wrong,
)

swap(
    "takes",
    "claims to accept every memory layout",
    "memory_is_adopted_in_place",
    lambda _, adapter: lambda: Takes(strides="all"),
)
swap(
    "takes",
    "does not say how it labels bfloat16",
    "memory_is_adopted_in_place",
    lambda _, adapter: lambda: Takes(),
    HOMES[:1],
    raises=(BufferError,),
)
swap(
    "shares",
    "presents memory of virtual GPUs as memory of a real GPU",
    "memory_is_shared_only_where_others_can_see_it",
    lambda _, adapter: lambda device: True,
)
swap(
    "detached",
    "copies the memory",
    "detached_is_the_same_memory_without_a_gradient",
    lambda _, adapter: lambda x: x.detach().clone(),
)
swap(
    "detached",
    "keeps the gradient",
    "detached_is_the_same_memory_without_a_gradient",
    lambda _, adapter: lambda x: x,
)


@wrong(
    "detached",
    "removes the gradient from its source",
    "detached_is_the_same_memory_without_a_gradient",
)
def detached_takes_the_gradient_off_its_source(adapter, patch, suite):
    def stripped(x):
        x.requires_grad = False
        return x

    patch.setattr(adapter, "detached", stripped)


@wrong(
    "finish",
    "waits for nothing, although `export` does not wait either",
    "converting_reads_what_is_computed",
)
def finish_waits_for_nothing_where_export_does_not_either(adapter, patch, suite):
    patch.setattr(adapter, "finish", lambda x: None)
    patch.setattr(toy().ToyArray, "wait", lambda self: None)


@wrong("lending", "never releases the memory", "lending_lets_go")
def lending_never_lets_go(adapter, patch, suite):
    lock = threading.RLock()

    @contextlib.contextmanager
    def kept(x):
        lock.acquire()
        yield

    patch.setattr(adapter, "lending", kept)


swap(
    "memory_layout",
    "returns the address of the owner of a view",
    "memory_is_described_as_it_is",
    lambda layout, adapter: lambda x: (x._block.array.ctypes.data, *layout(x)[1:]),
)
swap(
    "memory_layout",
    "says that every tensor is in C order",
    "memory_is_described_as_it_is",
    lambda layout, adapter: lambda x: (layout(x)[0], True, True),
    HOMES[:1],
)
swap(
    "export",
    "exports the memory of the owner of a view",
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
    "copies memory that it claims to share",
    "converting_shares_memory_only_where_it_says_so",
    lambda export, adapter: lambda x: x.numpy().copy().__dlpack__(),
)
swap(
    "export",
    "does not keep the memory alive",
    "shared_memory_outlives_its_owner",
    lambda export, adapter: lambda x: (x.wait(), x._values.__dlpack__())[1],
)
swap(
    "compact",
    "returns the tensor itself",
    "a_compact_copy_is_new_and_in_order",
    lambda _, adapter: lambda x: x,
)
swap(
    "compact",
    "copies the memory without its strides",
    "a_compact_copy_is_new_and_in_order",
    on_inputs(transpose_memory),
)
swap(
    "compact",
    "moves to the CPU",
    "a_compact_copy_is_new_and_in_order",
    lambda _, adapter: lambda x: x.clone(toy().CPU),
    HOMES[1:],
)
swap(
    "compact",
    "converts through float32",
    "a_compact_copy_is_new_and_in_order",
    on_inputs(through("float32")),
)
swap(
    "adopt",
    "copies memory that it claims to share",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: adopt(lent, dtype).clone(),
)
swap(
    "adopt",
    "returns bfloat16 as uint16",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: toy().borrowed(np.from_dlpack(lent)),
)
swap(
    "adopt",
    "ignores strides",
    "what_numpy_lends_can_be_worked_in",
    lambda adopt, adapter: lambda lent, dtype: transpose_memory(adopt(lent, dtype)),
    HOMES[:1],
)
swap(
    "adopt",
    "puts the tensor on a GPU",
    "memory_is_adopted_in_place",
    lambda adopt, adapter: lambda lent, dtype: _elsewhere(adopt(lent, dtype)),
    HOMES[:1],
    raises=(BufferError,),
)


def _elsewhere(x):
    x.place = toy().Place("gpu", 1)
    return x
