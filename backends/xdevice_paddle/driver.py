"""Which GPUs have a context, asked of the CUDA driver: waiting for one without would make a context there (500 MB)."""

from __future__ import annotations

import ctypes
from functools import cache


def is_started(index: int) -> bool:
    """Whether this process has a context on a GPU. True where that cannot be asked, as on ROCm."""
    driver = _driver()
    if driver is None:
        return True
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return True
    failed = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return bool(failed or active.value)


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
