"""Asks NVML, NVIDIA's management library, how many GPUs a CUDA program will see, and which ones.

The CUDA runtime's own count initialises CUDA, and after that no forked child can use CUDA. NVML makes no CUDA context,
so forked children can still use CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import os


def count() -> int | None:
    """How many GPUs the program sees under CUDA_VISIBLE_DEVICES; None if there is a driver but no NVML to ask."""
    uuids = _uuids()
    return (
        None if uuids is None else len(visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")))
    )


def uuid(index: int) -> str | None:
    """The unique id of the GPU that the program knows by this index; None if NVML does not tell."""
    chosen = visible(_uuids() or (), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return chosen[index] if index < len(chosen) else None


@functools.cache
def visible(uuids: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """The GPUs of the driver that are left by `wanted`, the value of CUDA_VISIBLE_DEVICES: all that it names, in that
    order, up to the first name that is wrong."""
    if wanted is None:
        return uuids
    chosen: list[str] = []
    for name in map(str.strip, wanted.split(",")):
        uuid = _named(uuids, name)
        # CUDA ignores everything from the first wrong name on
        if uuid is None:
            break
        if uuid in chosen:
            return ()  # CUDA sees no GPU at all if one is named twice
        chosen.append(uuid)
    return tuple(chosen)


def _named(uuids: tuple[str, ...], name: str) -> str | None:
    # a part of a GPU, which counts as one
    if name.startswith("MIG-"):
        return name
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    matching = [uuid for uuid in uuids if name.startswith("GPU-") and uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


@functools.cache
def _uuids() -> tuple[str, ...] | None:
    """The unique ids of all GPUs of the driver; None if there is a driver but no NVML."""
    is_windows = hasattr(ctypes, "WinDLL")
    # no device file, no GPU: nothing is loaded
    if not is_windows and not any(
        map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))
    ):
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
