"""Faults of values that go in and come out, and of tensors that are made."""

from __future__ import annotations

import contextlib
import functools
import threading

import numpy as np

import xdevice
from xdevice.base import devices

from .planting import (
    HOMES,
    LARGE,
    after,
    native,
    swap,
    toy,
    wrong,
)


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


swap(
    "from_numpy",
    "reads large arrays later",
    LARGE,
    lambda _, adapter: (
        lambda array, device: toy()._op(
            lambda: np.array(array), [], array.shape, array.dtype, [], native(adapter, device)
        )
    ),
)
swap(
    "from_numpy",
    "copies large arrays through the memory of another thread",
    "large_moves_of_threads_do_not_meet",
    _one_buffer,
)


def _array(change):
    return lambda original, adapter: lambda array, *given: original(change(array), *given)


def _as(name):
    def narrowed(array):
        with np.errstate(all="ignore"):
            return (
                array.astype(name).astype(array.dtype) if array.dtype.kind in "iuf" else array
            )

    return narrowed


def _by_memory(array):
    return array.ravel("K").reshape(array.shape)


def _canonical_nans(array):
    return (
        np.where(np.isnan(array), np.full_like(array, np.nan), array)
        if array.dtype.kind in "fc"
        else array
    )


_IN = "every_dtype_survives_the_way_in_and_out"
_BUFFER = "memory_is_taken_over_and_read_without_a_change"
swap("from_numpy", "converts through float32", _IN, _array(_as("float32")))
swap("from_numpy", "converts through float64", _IN, _array(_as("float64")))
swap("from_numpy", "turns all NaNs into the same NaN", _IN, _array(_canonical_nans))
swap(
    "from_numpy",
    "reads a transposed array without its strides",
    "odd_sources_go_in_right",
    _array(_by_memory),
)
swap("from_numpy", "turns a 0-d tensor into a vector", _IN, _array(np.atleast_1d))
swap(
    "from_numpy",
    "puts the tensor on the CPU",
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
def from_numpy_reads_its_source_only_later(adapter, patch, suite):
    def later(array, device):
        return toy()._op(
            lambda: array, [], array.shape, array.dtype, [], adapter.to_native(device)
        )

    patch.setattr(adapter, "from_numpy", later)


def _borrowed(array, place):
    x = toy().borrowed(array)
    x.place = place
    return x


swap("from_buffer", "converts through float32", _BUFFER, _array(_as("float32")))
swap("from_buffer", "gives each row a different shape", _BUFFER, _array(np.ravel))
swap(
    "from_buffer",
    "puts the tensor on a GPU",
    _BUFFER,
    lambda _, adapter: lambda array: toy().array(array, toy().Place("gpu", 0)),
    HOMES[:1],
)
swap(
    "from_buffer",
    "mistakes bools for bytes",
    _BUFFER,
    _array(lambda a: a.view("uint8") if a.dtype == bool else a),
)

_OUT = "to_numpy_reads_every_tensor"
for _method in ("to_numpy", "peek"):
    swap(_method, "converts through float32", _OUT, after(_as("float32")))
    swap(
        _method,
        "returns bfloat16 as float32",
        _OUT,
        after(lambda a: a.astype("float32") if a.dtype.name == "bfloat16" else a),
    )
    swap(_method, "reads a transposed tensor without its strides", _OUT, after(_by_memory))
    swap(
        _method,
        "does not wait for the computation",
        "what_is_read_is_computed_first",
        lambda _, adapter: (
            lambda x: np.array((x.value if isinstance(x, toy().Variable) else x)._values)
        ),
    )
    swap(_method, "turns a 0-d tensor into a vector", _OUT, after(np.atleast_1d))


@wrong(
    "to_numpy",
    "shares memory that is reused after the tensor is deleted",
    "what_was_read_outlives_its_tensor",
)
def to_numpy_shares_memory_that_is_given_to_somebody_else_when_the_tensor_goes(
    adapter, patch, suite
):
    def bare(x):
        x.wait()
        return x._values

    patch.setattr(adapter, "to_numpy", bare)
    patch.setattr(xdevice, "to_numpy", bare)


_CREATED = "creators_give_what_they_say"
_FULL = "full_gives_any_value_in_new_memory"
swap(
    "full",
    "always returns ones",
    _CREATED,
    lambda full, adapter: lambda shape, value, *rest: full(shape, 1, *rest),
)
swap(
    "full",
    "rounds all values to whole numbers",
    _FULL,
    lambda full, adapter: (
        lambda shape, value, *rest: full(
            shape, value if value == float("inf") else int(value), *rest
        )
    ),
)
swap(
    "full",
    "always returns float32",
    _CREATED,
    lambda full, adapter: (
        lambda shape, value, device, dtype: full(shape, value, device, "float32")
    ),
)
swap(
    "full",
    "ignores the device",
    "creators_place_where_they_are_told",
    lambda full, adapter: (
        lambda shape, value, device, dtype: full(shape, value, devices.CPU, dtype)
    ),
)
swap(
    "full",
    "leaves the memory uninitialized",
    _CREATED,
    lambda _, adapter: (
        lambda shape, value, device, dtype: toy().empty(
            shape, native(adapter, device), xdevice.base.dtypes.host_dtype(dtype)
        )
    ),
)


swap(
    "full",
    "returns the same tensor twice",
    _FULL,
    lambda full, adapter: functools.cache(full),
)


_SEEDS = "the_frameworks_numbers_repeat_from_a_seed"
swap("seed_generators", "seeds nothing", _SEEDS, lambda seed, adapter: lambda n: None)
swap(
    "seed_generators",
    "always uses the same seed",
    _SEEDS,
    lambda seed, adapter: lambda n: seed(1),
)


_DETERMINISTIC = "deterministic_kernels_are_asked_for_until_the_block_ends"


def _never_undone(deterministic, adapter):
    @contextlib.contextmanager
    def ask():
        toy().is_deterministic = True
        yield []

    return ask


swap(
    "deterministic",
    "requests nothing",
    _DETERMINISTIC,
    lambda ask, adapter: lambda: contextlib.nullcontext([]),
)
swap("deterministic", "is not undone", _DETERMINISTIC, _never_undone)

swap(
    "tracing",
    "reports tracing although nothing is traced",
    "seeded_numbers_are_the_same_everywhere",
    lambda _, adapter: lambda: "toyframe.jit",
    raises=(xdevice.errors.UnsupportedError,),
)
swap(
    "eagerly",
    "calls the function twice",
    "seeded_numbers_are_the_same_everywhere",
    lambda _, adapter: lambda function: (function(), function())[1],
)
swap(
    "dtype_refusal",
    "refuses a dtype that it can hold",
    "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed",
    lambda _, adapter: (
        lambda dtype: "it would be rounded; use float32" if dtype == "float64" else None
    ),
)
swap(
    "dtype_refusal",
    "does not say what to do instead",
    "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed",
    lambda _, adapter: lambda dtype: "no" if dtype == "float64" else None,
)

_FITS = "as_many_axes_and_elements_fit_as_it_says"


@wrong("most_axes", "reports a limit that is too high", _FITS)
def most_axes_says_more_than_fit(adapter, patch, suite):
    patch.setattr(adapter, "most_axes", adapter.most_axes + 1)


@wrong("most_axes", "reports a limit that is too low", _FITS)
def most_axes_says_fewer_than_fit(adapter, patch, suite):
    patch.setattr(adapter, "most_axes", adapter.most_axes - 1)


@wrong("longest_axis", "reports a limit that is too high", _FITS)
def longest_axis_says_more_than_fit(adapter, patch, suite):
    patch.setattr(adapter, "longest_axis", adapter.longest_axis * 2)


@wrong("longest_axis", "reports a limit that is too low", _FITS)
def longest_axis_says_fewer_than_fit(adapter, patch, suite):
    patch.setattr(adapter, "longest_axis", adapter.longest_axis - 1)


_AWAY = "what_is_given_away_is_nobody_elses"
swap(
    "gives_away",
    "gives away memory that the tensor keeps",
    _AWAY,
    lambda _, adapter: lambda x: True,
)
swap(
    "gives_away",
    "gives away memory that the owner of a view keeps",
    _AWAY,
    lambda _, adapter: lambda x: x._values.base is not None,
)


@wrong("gives_away", "returns the same array to every caller", _AWAY)
def gives_away_gives_one_array_to_all_who_ask(adapter, patch, suite):
    made, to_numpy = {}, adapter.to_numpy
    patch.setattr(
        adapter, "to_numpy", lambda x: made.setdefault(id(x), (x, to_numpy(x).copy()))[1]
    )
    patch.setattr(adapter, "gives_away", lambda x: True)
