"""Faults of several devices: splits, joins, leaves, writes and sums."""

from __future__ import annotations

import numpy as np

from .planting import (
    ask_for_gradients,
    native,
    on_inputs,
    plain,
    swap,
    through,
    toy,
    wrong,
)

_SPLITS = "a_tensor_splits_and_joins"
_LEAF = "a_leaf_is_a_copy_that_asks_for_gradients"
_WRITES = "write_puts_values_into_the_memory_that_is_there"
_TOTAL = "a_total_is_new_and_keeps_its_dtype"
_REDUCES = "all_reduce_gives_both_devices_the_same"
_FLOWS = "gradients_flow_through_splits_and_joins"
swap(
    "split",
    "drops the last part",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: [*split(x, sizes)[:-1], x[:0]],
)
swap(
    "split",
    "makes all parts equal",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: [x[: max(sizes)] for _ in sizes],
)
swap(
    "split",
    "splits the last axis",
    _SPLITS,
    lambda split, adapter: (
        lambda x, sizes: [p.T for p in split(x.T, [min(s, x.T.shape[0]) for s in sizes])]
    ),
)
swap(
    "split",
    "stops the gradient",
    _FLOWS,
    lambda split, adapter: lambda x, sizes: split(x.detach(), sizes),
)
swap(
    "split",
    "converts through float32",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: split(through("float32")(x), sizes),
)
swap(
    "split",
    "splits on the CPU",
    _SPLITS,
    lambda split, adapter: lambda x, sizes: split(x.to(toy().CPU), sizes),
)
swap(
    "join",
    "joins in reverse order",
    _SPLITS,
    lambda join, adapter: lambda parts: join(parts[::-1]),
)
swap(
    "join",
    "sorts the parts by their lengths",
    _SPLITS,
    lambda join, adapter: lambda parts: join(sorted(parts, key=lambda x: x.shape[:1])),
)
swap(
    "join",
    "returns the part itself if there is only one",
    _SPLITS,
    lambda join, adapter: lambda parts: _lone(join, parts),
)
swap(
    "join",
    "stops the gradient",
    _FLOWS,
    lambda join, adapter: lambda parts: join([x.detach() for x in parts]),
)
swap(
    "join",
    "converts through float32",
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
    "leaf",
    "returns the tensor itself",
    _LEAF,
    lambda _, adapter: lambda x, device: adapter.samples().marked(x),
)
swap(
    "leaf",
    "does not require a gradient",
    _LEAF,
    lambda _, adapter: lambda x, device: x.detach().clone(native(adapter, device)),
)
swap("leaf", "requires a gradient for ints", _LEAF, ask_for_gradients)
swap(
    "leaf",
    "leaves the copy on the tensor's device",
    _LEAF,
    lambda leaf, adapter: lambda x, device: leaf(x, adapter.device_of(x)),
)
swap("leaf", "converts through float32", _LEAF, on_inputs(through("float32")))
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


swap("can_write", "returns False, but writes", _WRITES, lambda _, adapter: lambda x: False)
_WHERE = "where_write_writes_is_known"
swap("memory_of", "finds none", _WHERE, lambda _, adapter: lambda x: None)
swap(
    "memory_of",
    "returns the address of the owner of a view",
    _WHERE,
    lambda _, adapter: lambda x: (_owned(x), x.strides),
)
swap(
    "memory_of",
    "counts strides in elements",
    _WHERE,
    lambda _, adapter: lambda x: (x.address, _steps(x)),
)
swap(
    "memory_of",
    "always returns the strides of C order",
    _WHERE,
    lambda _, adapter: lambda x: (x.address, np.empty(x.shape, x.dtype).strides),
)
swap(
    "memory_of",
    "waits even if the memory exists already",
    _WHERE,
    lambda memory_of, adapter: lambda x: (x.wait(), memory_of(x))[1],
)


@wrong("memory_of", "does not wait if the memory does not exist yet", _WHERE)
def memory_of_does_not_wait_where_there_is_none_yet(adapter, patch, suite):
    patch.setattr(type(adapter.samples()), "makes_memory_first", False)


def _owned(x):
    return x._block.array.__array_interface__["data"][0]


def _steps(x):
    return tuple(step // x.dtype.itemsize for step in x.strides)


swap("write", "writes nothing", _WRITES, lambda _, adapter: lambda x, value: None)
swap(
    "write",
    "writes into a new tensor",
    _WRITES,
    lambda _, adapter: lambda x, value: _rebind(x, value.clone()),
)
swap(
    "write",
    "aliases the value",
    "a_written_value_is_not_aliased",
    lambda _, adapter: lambda x, value: _rebind(x, value),
)
swap(
    "write",
    "converts through float32",
    _WRITES,
    lambda write, adapter: lambda x, value: write(x, through("float32")(value)),
)
swap(
    "write",
    "changes requires_grad",
    _WRITES,
    lambda write, adapter: (
        lambda x, value: (write(x, value), setattr(plain(x), "requires_grad", False))
    ),
)
swap(
    "write",
    "adds the value to the old one",
    _WRITES,
    lambda write, adapter: lambda x, value: write(x, toy().compute(_added, plain(x), value)),
)
swap(
    "write",
    "does not write into a variable that is passed alone",
    "a_lone_variable_is_written_in_place",
    lambda write, adapter: (
        lambda x, value: None if isinstance(x, toy().Variable) else write(x, value)
    ),
)


def _added(x, value):
    with np.errstate(all="ignore"):
        return x + value


def _rebind(x, value):
    held = plain(x)
    held._block, held._values, held._owner = value._block, value._values, value._owner


def _total_by(function):
    return lambda _, adapter: (
        lambda tensors, mean: toy().compute(
            lambda *xs: function(xs, mean), *(x.detach() for x in tensors)
        )
    )


_ORDER = "a_total_is_added_in_order_and_rounded_once"
swap(
    "total",
    "returns a sum instead of a mean",
    _TOTAL,
    lambda total, adapter: lambda tensors, mean: total(tensors, False),
)
swap(
    "total",
    "returns a mean instead of a sum",
    _TOTAL,
    lambda total, adapter: (
        lambda tensors, mean: total(
            list(tensors), tensors[0].dtype.kind == "f" if isinstance(tensors, list) else mean
        )
    ),
)
swap(
    "total",
    "adds the first one twice",
    _TOTAL,
    lambda total, adapter: (
        lambda tensors, mean: (lambda xs: total([xs[0], *xs], mean))(list(tensors))
    ),
)
swap(
    "total",
    "adds on the CPU",
    _TOTAL,
    lambda total, adapter: (
        lambda tensors, mean: total([x.to(toy().CPU) for x in tensors], mean)
    ),
)
swap("total", "rounds after each sum", _ORDER, _total_by(lambda xs, mean: _plainly(xs, mean)))
swap(
    "total",
    "adds in another order",
    _ORDER,
    lambda total, adapter: lambda tensors, mean: total([*tensors][::-1], mean),
)
swap(
    "total",
    "adds ints as float64",
    _ORDER,
    _total_by(
        lambda xs, mean: (
            (sum(x.astype("float64") for x in xs) / (len(xs) if mean else 1)).astype(
                xs[0].dtype
            )
            if xs[0].dtype.kind in "iu"
            else _plainly(
                [x.astype("float32") if x.dtype.itemsize == 2 else x for x in xs], mean
            )
        )
    ),
)


def _plainly(xs, mean):
    found = xs[0]
    for x in xs[1:]:
        found = found + x
    return found / len(xs) if mean else found


@wrong("total", "writes into the first one", _TOTAL)
def total_writes_into_the_first_one(adapter, patch, suite):
    def first(tensors, mean):
        tensors = [x.detach() for x in tensors]
        tensors[0].write(toy().compute(lambda *xs: _plainly(xs, mean), *tensors))
        return tensors[0]

    patch.setattr(adapter, "total", first)


def _apart(all_reduce, adapter):
    return lambda xs, mean: all_reduce([x.detach().clone() for x in xs], mean)


swap(
    "all_reduce",
    "returns the sum on the first device only",
    _REDUCES,
    lambda all_reduce, adapter: (
        lambda xs, mean: [all_reduce([x.clone() for x in xs], mean)[0], *xs[1:]]
    ),
)
swap("all_reduce", "returns new tensors although it could write in place", _REDUCES, _apart)
swap(
    "all_reduce",
    "returns a sum instead of a mean",
    _REDUCES,
    lambda all_reduce, adapter: lambda xs, mean: all_reduce(xs, False),
)
swap(
    "all_reduce",
    "adds in a different order on each device",
    _REDUCES,
    lambda _, adapter: lambda xs, mean: _everyone(adapter, xs, mean),
)
swap(
    "all_reduce",
    "leaves the results on the first device",
    _REDUCES,
    lambda all_reduce, adapter: (
        lambda xs, mean: [adapter.total([x.to(xs[0].place) for x in xs], mean)] * len(xs)
    ),
)


def _everyone(adapter, xs, mean):
    totals = [
        adapter.total([y.detach().to(x.place) for y in (*xs[i:], *xs[:i])], mean)
        for i, x in enumerate(xs)
    ]
    for i, (x, total) in enumerate(zip(xs, totals, strict=True)):
        x.write(total if i == 0 or x.dtype.kind not in "fc" else total * (1 + 2**-20))
    return xs
