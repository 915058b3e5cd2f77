"""How many NVIDIA GPUs a CUDA program will see, and which ones, asked of NVML.

The CUDA runtime's own count initialises CUDA, and no child of a fork can use CUDA after that. NVML makes no CUDA
context and leaves forks free.
"""

from __future__ import annotations

import ctypes
import functools
import os


def count() -> int | None:
    """How many GPUs CUDA_VISIBLE_DEVICES leaves; None if there is a driver but no NVML to ask."""
    uuids = _uuids()
    return None if uuids is None else len(visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")))


def uuid(index: int) -> str | None:
    """The unique id of a program's GPU; None if it cannot be told."""
    chosen = visible(_uuids() or (), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return chosen[index] if index < len(chosen) else None


@functools.cache
def visible(uuids: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """The driver's GPUs that CUDA_VISIBLE_DEVICES leaves: those named before the first wrong name."""
    if wanted is None:
        return uuids
    seen: list[str] = []
    for name in map(str.strip, wanted.split(",")):
        found = _named(uuids, name)
        if found is None:
            break
        if found in seen:
            return ()  # CUDA sees no GPU at all if one is named twice
        seen.append(found)
    return tuple(seen)


def _named(uuids: tuple[str, ...], name: str) -> str | None:
    if name.startswith("MIG-"):
        return name
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    matching = [uuid for uuid in uuids if name.startswith("GPU-") and uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


@functools.cache
def _uuids() -> tuple[str, ...] | None:
    """The ids of the driver's GPUs; None if there is a driver but no NVML."""
    is_windows = hasattr(ctypes, "WinDLL")
    if not is_windows and not any(map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))):
        return ()
    try:
        nvml = ctypes.CDLL("nvml.dll" if is_windows else "libnvidia-ml.so.1")
    except OSError:
        return () if is_windows else None  # on Windows, NVML comes with the driver
    if nvml.nvmlInit_v2():
        return None
    try:
        total = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(total)):
            return None
        return tuple(_uuid(nvml, index) for index in range(total.value))
    finally:
        nvml.nvmlShutdown()


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetUUID(handle, text, len(text))
    return text.value.decode()
