"""`devices`, `memory`, `empty_cache`, `empty_host_cache` and `reset_peak_memory_stats`: which devices there are, how
much memory each has, and how much of it this process uses."""

from __future__ import annotations

from xdevice.base.devices import parse
from xdevice.core import scopes, selection
from xdevice.cuda_driver import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Memory


def devices() -> list[Device]:
    """All devices of the selected backend: its CPUs, then its GPUs or TPUs, as JAX's `jax.devices()` lists them.

    `xdevice.memory(device)` has the name and the memory of a device. Starts no CUDA context.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.devices()
        [Device('cpu:0')]
    """
    return list(selection.current().devices())


def memory(device: object = None) -> Memory:
    """Returns the name of a device of the selected backend, and the bytes of its memory: total, free, allocated, peak
    and pinned.

    `total` and `free` are of the whole device, for all processes. `allocated` is the memory of this process's live
    tensors, as the framework reports it; `peak` is its maximum. A number that the framework does not report is None.
    For the CPU, `pinned` is the page-locked memory that xdevice keeps for copies to and from GPUs, shared by all
    backends: 64 MB from the first large copy until `empty_host_cache` is called. For other devices it is 0.

    | backend | reported for a GPU | reported for the CPU |
    |---|---|---|
    | torch | total, free, allocated and peak | none of them |
    | tensorflow | allocated and peak | allocated and peak, of all CPU devices together, if oneDNN is on |
    | mxnet | total and free | none of them |
    | paddle | total, free, allocated and peak | allocated and peak |
    | jax | total (the share that JAX takes), free, allocated and peak | allocated, by live arrays |
    | numpy | has no GPU | none of them |

    On virtual GPUs, PyTorch and Paddle report `allocated` and `peak`, and JAX reports `allocated`. With
    `XDEVICE_VIRTUAL_GPUS=2:memory=8GB`, all backends but NumPy report all four. Asynchronous work may still allocate
    memory: call `xdevice.sync()` first if that matters. `memory` may initialize the device.

    Args:
        device: any spelling that `xdevice.device` takes; without it the default device, `xdevice.device()`.

    Raises:
        DeviceNotFoundError, DeviceError: if the backend lacks the device; if `device` is not a device.

    Costs about 10 us; on JAX's CPU about 2 us for each live array.

    Example:
        >>> xdevice.memory("cpu")._fields
        ('total', 'free', 'allocated', 'peak', 'pinned', 'name')
    """
    backend = selection.current()
    place = _required_device(backend, device)
    usage = backend.memory(place)._replace(name=backend.describe(place).name)
    # the page-locked memory is the host's, and belongs to no backend
    return usage._replace(pinned=ring.pinned_bytes()) if place.kind == "cpu" else usage


def empty_cache(device: object = None) -> None:
    """Releases the memory of a device that the framework keeps for later tensors, as `torch.accelerator.empty_cache`
    does. Live tensors keep their memory.

    | backend | on a GPU |
    |---|---|
    | torch, paddle | the caches of all GPUs |
    | mxnet | the cache of this GPU |
    | tensorflow, jax | `UnsupportedError`: they keep the memory that they have taken until the process ends |

    The CPU and virtual GPUs have no cache, so nothing happens there: a program can call this
    without a GPU.

    Args:
        device: any spelling that `xdevice.device` takes; without it the default device, `xdevice.device()`.

    Raises:
        UnsupportedError: as in the table.
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
    """Releases the page-locked memory through which large copies between the host and GPUs go,
    as `torch.accelerator.empty_host_cache` releases PyTorch's.

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
        device: any spelling that `xdevice.device` takes; without it the default device, `xdevice.device()`.

    Raises:
        UnsupportedError: if the device's peak is not known or cannot be reset: on NumPy, MXNet and JAX, on PyTorch's
            CPU, and on Paddle before 3.0.
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
    """Returns the device that a spelling names; for None, the default device. Raises
    `DeviceNotFoundError` if the backend lacks the device, and `DeviceError` if `device` is not
    a spelling."""
    return backend.require(scopes.current_device() if device is None else parse(device))
