"""Uses NVML, NVIDIA's management library, to count and identify the GPUs that are visible to a CUDA program.

The CUDA runtime initializes CUDA when it counts GPUs, and after that no forked child can use CUDA. NVML creates no CUDA
context, so forked children can still use CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import os


def count() -> int | None:
    """Returns the number of GPUs that CUDA_VISIBLE_DEVICES makes visible to the program; None if there is a driver, but
    NVML is missing or fails."""
    uuids = _uuids()
    return (
        None if uuids is None else len(visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")))
    )


def uuid(index: int) -> str | None:
    """Returns the unique id of the GPU that has this index in the program; None if the id is unknown."""
    chosen = visible(_uuids() or (), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return chosen[index] if index < len(chosen) else None


@functools.cache
def visible(uuids: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """Returns the unique ids of the GPUs that are visible to a program if CUDA_VISIBLE_DEVICES is `wanted`. These are
    the GPUs that the variable names, in the order of the variable, up to the first invalid name. None means that the
    variable is not set, so all GPUs are visible. `uuids` are the ids of all GPUs of the driver."""
    if wanted is None:
        return uuids
    chosen: list[str] = []
    for name in map(str.strip, wanted.split(",")):
        uuid = _uuid_named(uuids, name)
        # CUDA ignores the first invalid name and everything after it
        if uuid is None:
            break
        # if a GPU is named twice, CUDA finds no GPU at all
        if uuid in chosen:
            return ()
        chosen.append(uuid)
    return tuple(chosen)


def _uuid_named(uuids: tuple[str, ...], name: str) -> str | None:
    """Returns the unique id of the GPU to which a name in CUDA_VISIBLE_DEVICES refers; None for an invalid name. A name
    is an index into `uuids`, the ids of the driver's GPUs, or the beginning of an id."""
    # a MIG device, which is a part of a GPU, is treated as a GPU
    if name.startswith("MIG-"):
        return name
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    matching = [uuid for uuid in uuids if name.startswith("GPU-") and uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


@functools.cache
def _uuids() -> tuple[str, ...] | None:
    """Returns the unique ids of all GPUs of the driver. Returns an empty tuple if there is no driver, and None if there
    is a driver, but NVML is missing or fails."""
    is_windows = hasattr(ctypes, "WinDLL")
    # without these device files (the last one is WSL's) there is no GPU, so the library is not loaded
    if not is_windows and not any(
        map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))
    ):
        return ()
    try:
        nvml = ctypes.CDLL("nvml.dll" if is_windows else "libnvidia-ml.so.1")
    # on Windows, NVML is part of the driver, so without NVML there is no driver either
    except OSError:
        return () if is_windows else None
    # NVML's functions return 0 for success
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
    """Returns the unique id of the driver's GPU with this index. `nvml` is the NVML library, already initialized."""
    # 96 is NVML's NVML_DEVICE_UUID_V2_BUFFER_SIZE
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetUUID(handle, text, len(text))
    return text.value.decode()
