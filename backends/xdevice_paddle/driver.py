"""Calls functions of the CUDA driver, for two purposes for which Paddle has no Python functions.

The first is to find out which GPUs have a context. Waiting for a GPU without a context would create a context, which
takes 500 MB. The second is to set the current GPU of a single thread, whereas Paddle's `set_device` sets the current
GPU of all threads.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_started(index: int) -> bool:
    """Whether this process has a context on the GPU `index`. Also returns True if there is no CUDA driver, as on ROCm,
    or if the driver reports an error."""
    driver = _driver()
    if driver is None:
        return True
    # not with `call`, which would raise an error: the driver reports an error before `cuInit`,
    # and this function must not start CUDA
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return True
    failed = driver.cuDevicePrimaryCtxGetState(
        device, ctypes.byref(flags), ctypes.byref(active)
    )
    return bool(failed or active.value)


class DriverError(RuntimeError):
    """An error that a function of the CUDA driver has reported. `name` is the name of the function,
    `text` describes the error, and `code` is its number. The cause may be earlier asynchronous
    work."""

    def __init__(self, name: str, text: str, code: int) -> None:
        super().__init__(f"{name} of the CUDA driver failed: {text}")
        self.code = code


def is_there() -> bool:
    """Whether this machine has a CUDA driver that can be called. Returns False on ROCm."""
    return _driver() is not None


def call(name: str, *arguments: Any) -> None:
    """Calls the driver's function `name` with these arguments. Raises `DriverError` if the
    function reports an error. May be called only if there is a driver (`is_there`)."""
    driver = _driver()
    assert driver is not None
    failed = getattr(driver, name)(*arguments)
    if failed:
        # stays None for a code that the driver does not know
        text = ctypes.c_char_p()
        driver.cuGetErrorName(failed, ctypes.byref(text))
        raise DriverError(name, (text.value or b"unknown error").decode(), failed)


@contextmanager
def on(index: int) -> Iterator[None]:
    """While the block is open, the GPU `index` is this thread's current GPU for the CUDA
    driver."""
    call("cuCtxPushCurrent_v2", _context(index))
    try:
        yield
    finally:
        # the function writes the context that was current into its argument, which is not read
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def free_and_total(index: int) -> tuple[int, int]:
    """Returns the free and the total memory of a GPU, in bytes."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with on(index):
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


@cache
def _context(index: int) -> ctypes.c_void_p:
    """Returns the context that the CUDA runtime, and therefore Paddle, uses on a GPU. Creates the
    context if it does not exist yet, and never releases it."""
    # does nothing if CUDA has already been started
    call("cuInit", 0)
    device, primary = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), device)
    return primary


@cache
def _driver() -> ctypes.CDLL | None:
    """Returns the CUDA driver's library for this platform, or None if this machine has no CUDA driver."""
    try:
        return ctypes.CDLL("nvcuda.dll" if hasattr(ctypes, "WinDLL") else "libcuda.so.1")
    except OSError:
        return None
