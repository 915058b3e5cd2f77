"""Errors show the start of what came, however long it is."""

from __future__ import annotations

import pytest

import xdevice

LONG = "c" * 10**6

CALLS = {
    "device": lambda: xdevice.device(LONG),
    "index": lambda: xdevice.device("cpu:" + "1" * 10**6),
    "backend": lambda: xdevice.backend(LONG),
    "use": lambda: xdevice.use_backend(LONG).__enter__(),
    "set_backend": lambda: xdevice.set_backend(10**5000),
    "dtype": lambda: xdevice.ones(2, dtype=LONG),
    "load": lambda: xdevice.load(LONG),
    "save": lambda: xdevice.save(LONG, xdevice.ones(2)),
    "load an int": lambda: xdevice.load(10**5000),
    "convert": lambda: xdevice.convert(xdevice.ones(2), "numpy", copy=LONG),
    "transfers": lambda: xdevice.transfers(LONG),
    "virtual_gpus": lambda: xdevice.virtual_gpus(LONG),
    "bernoulli": lambda: xdevice.random.bernoulli(2, p=10**5000),
    "prefetch": lambda: xdevice.prefetch([], "cpu", depth=LONG),
    "measure": lambda: xdevice.measure(print, repeats=LONG),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_error_is_short(call):
    with xdevice.use_backend("numpy"), pytest.raises(xdevice.errors.XDeviceError) as caught:
        call()
    assert len(str(caught.value)) < 2500
    assert "Error" not in str(caught.value)[:50]


def test_an_int_is_no_path():
    with pytest.raises(
        xdevice.errors.ArgumentError, match="load expects the path of a file, got 3 of type int"
    ):
        xdevice.load(3)
    with pytest.raises(
        xdevice.errors.ArgumentError, match="save expects the path of a file, got 3 of type int"
    ):
        xdevice.save(3, [])


@pytest.mark.parametrize("name", ["nn", "random", "native"])
def test_dir_lists_what_is_public(name):
    assert all(
        not shown.startswith("_") and shown not in ("registry", "verbs")
        for shown in dir(getattr(xdevice, name))
    )
