"""`set_default_device` beyond what the suite checks on every adapter: how threads and programs end, and what is put
back."""

from __future__ import annotations

import threading

import pytest
from helpers.environment import FRAMEWORKS, python, sampled

import xdevice
from xdevice.core import scopes

ENDS = """
import threading
import xdevice

def place():
    return xdevice.device_of(xdevice.backend().samples().native_ones(1))

before = place()
def work():
    xdevice.set_default_device("gpu:1")
    print(place(), xdevice.device())

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(place() is before, xdevice.device())
xdevice.set_default_device("gpu:1")
print(place(), xdevice.num_gpus())
xdevice.compile(lambda x: x)(xdevice.ones(1))  # changes the order in which the interpreter clears modules at its end
"""


@pytest.mark.parametrize("name", sampled(FRAMEWORKS, slow=("torch", "paddle"), others="long"))
def test_it_ends_with_its_thread_and_the_program_ends_quietly(name):
    done = python("-c", ENDS, XDEVICE_BACKEND=name, XDEVICE_VIRTUAL_GPUS="2")
    assert done.stdout.splitlines() == ["gpu:1 gpu:1", "True cpu:0", "gpu:1 2"]
    assert "Exception ignored" not in done.stderr


def test_a_wrong_device_changes_nothing(xd):
    xdevice.set_default_device("cpu")
    try:
        for wrong in (0, "gqu", "gpu:99"):
            with pytest.raises(
                (xdevice.errors.DeviceError, xdevice.errors.DeviceNotFoundError)
            ):
                xdevice.set_default_device(wrong)
            assert scopes._threads.device is xdevice.cpu()
        with (
            xdevice.cpu(),
            pytest.raises(
                xdevice.errors.ScopeError,
                match=r"inside `with cpu:0:` would end that block; call it before the block$",
            ),
        ):
            xdevice.set_default_device(None)
        assert scopes._threads.device is xdevice.cpu()
    finally:
        xdevice.set_default_device(None)
    assert scopes._threads.device is None


def test_it_is_of_the_thread_and_not_of_a_context():
    """A notebook loses context variables between its cells, and a thread of a pool takes them along."""
    import contextvars

    xdevice.set_default_device("cpu")
    try:
        assert contextvars.Context().run(scopes.current) is xdevice.cpu()
        found = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(scopes.current)))
        thread.start()
        thread.join()
        assert found == [None]
    finally:
        xdevice.set_default_device(None)
