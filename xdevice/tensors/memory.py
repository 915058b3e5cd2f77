"""`devices`, `memory`, `empty_cache`, `empty_host_cache` and `reset_peak_memory_stats`: which devices exist, how much
memory each has, and how much of it this process uses."""

from __future__ import annotations

from xdevice.base.devices import parse
from xdevice.core import scopes, selection
from xdevice.cuda_driver import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Memory


def devices() -> list[Device]:
    """Returns all devices of the selected backend: its CPUs, then its GPUs or TPUs, as JAX's `jax.devices()` does.

    `xdevice.memory(device)` returns the name and the memory of a device. Starts no CUDA
    context.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.devices()
        [Device('cpu:0')]
    """
    return list(selection.current().devices())


def memory(device: object = None) -> Memory:
    """Returns the name of a device of the selected backend, and its memory in bytes: total, free, allocated, peak and
    pinned.

    `total` and `free` describe the whole device, with the memory of all processes. `allocated` is the memory of this
    process's live tensors, as the framework reports it; `peak` is the maximum of `allocated`. A number that the
    framework does not report is None. For the CPU, `pinned` is the page-locked memory that xdevice keeps for copies to
    and from GPUs. All backends share this memory: 64 MB from the first large copy until `empty_host_cache` is called.
    For other devices it is 0.

    | backend | reported for a GPU | reported for the CPU |
    |---|---|---|
    | torch | total, free, allocated and peak | nothing |
    | tensorflow | allocated and peak | allocated and peak of all CPU devices together, if oneDNN is enabled |
    | mxnet | total and free | nothing |
    | paddle | total, free, allocated and peak | allocated and peak |
    | jax | total (the share that JAX reserves), free, allocated and peak | allocated, computed from live arrays |
    | numpy | has no GPU | nothing |

    On virtual GPUs, PyTorch and Paddle report `allocated` and `peak`, and JAX reports `allocated`. With
    `XDEVICE_VIRTUAL_GPUS=2:memory=8GB`, all backends but NumPy report all four. Asynchronous work may still allocate
    memory: call `xdevice.sync()` first if that matters. `memory` may initialize the device.

    Args:
        device: any form that `xdevice.device` accepts; by default `xdevice.device()`.

    Raises:
        DeviceNotFoundError, DeviceError: if the backend lacks the device; if `device` is not a device.

    Costs about 10 us, and on JAX's CPU about 2 us for each live array.

    Example:
        >>> xdevice.memory("cpu")._fields
        ('total', 'free', 'allocated', 'peak', 'pinned', 'name')
    """
    backend = selection.current()
    place = _required_device(backend, device)
    usage = backend.memory(place)._replace(name=backend.describe(place).name)
    # page-locked memory is memory of the host, and belongs to no backend
    return usage._replace(pinned=ring.pinned_bytes()) if place.kind == "cpu" else usage


def empty_cache(device: object = None) -> None:
    """Releases the memory of a device that the framework keeps for later tensors, as `torch.accelerator.empty_cache`
    does. Live tensors keep their memory.

    | backend | on a GPU |
    |---|---|
    | torch, paddle | the caches of all GPUs |
    | mxnet | the cache of this GPU |
    | tensorflow, jax | `UnsupportedError`: the framework keeps its memory until the process ends |

    The CPU and virtual GPUs have no cache, so this function does nothing for them. A program can
    call it without a GPU.

    Args:
        device: any form that `xdevice.device` accepts; by default `xdevice.device()`.

    Raises:
        UnsupportedError: on TensorFlow and JAX, as in the table.
        DeviceNotFoundError, DeviceError: if the backend lacks the device; if `device` is not a device.

    Example:
        >>> xdevice.accelerator.empty_cache("cpu")
    """
    backend = selection.current()
    place = _required_device(backend, device)
    # on the CPU and on virtual GPUs there is no cache
    if place.kind != "cpu" and not backend.virtual:
        backend.empty_cache(place)


def empty_host_cache() -> None:
    """Releases the page-locked memory that xdevice uses for large copies between the host and
    GPUs, as `torch.accelerator.empty_host_cache` releases PyTorch's own.

    Experimental: it may change in a minor version.

    Waits for copies that are in progress. The next large copy allocates such memory again.

    Example:
        >>> xdevice.accelerator.empty_host_cache()
        >>> xdevice.memory("cpu").pinned
        0
    """
    ring.free()


def reset_peak_memory_stats(device: object = None) -> None:
    """Resets `memory(device).peak` to the number of bytes that are allocated now, as
    `torch.accelerator.reset_peak_memory_stats` does.

    Args:
        device: any form that `xdevice.device` accepts; by default `xdevice.device()`.

    Raises:
        UnsupportedError: if the peak of the device is unknown or cannot be reset. This is so on NumPy, MXNet and JAX,
            on PyTorch's CPU, and on Paddle before 3.0.
        DeviceNotFoundError, DeviceError: if the backend lacks the device; if `device` is not a device.

    Example:
        >>> try:
        ...     xdevice.accelerator.reset_peak_memory_stats("cpu")
        ... except xdevice.errors.UnsupportedError as error:
        ...     print("xdevice.memory(device).allocated" in str(error))
        True
    """
    backend = selection.current()
    backend.reset_peak(_required_device(backend, device))


def _required_device(backend: Backend, device: object) -> Device:
    """Returns the device that the spelling `device` names, or the default device if `device` is
    None. Raises `DeviceNotFoundError` if the backend lacks the device, and `DeviceError` if
    `device` does not name a device."""
    return backend.require(scopes.current_device() if device is None else parse(device))
