"""`memory`, `empty_host_cache` and `reset_peak_memory_stats`: how much memory a device has, and how much of it this process uses."""

from __future__ import annotations

from xdevice.base import devices
from xdevice.core import selection
from xdevice.cuda import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xdevice.contract import Memory


def memory(device: object) -> Memory:
    """The bytes of a device's memory on the selected backend: total, free, allocated and peak, and pinned on the CPU.

    `total` and `free` are of the whole device, for all processes. `allocated` is what this process holds through the
    framework, in live tensors; `peak` is the most that it has held. A number that the framework does not tell is None.
    `pinned`, on the CPU, is the page-locked memory that xdevice keeps for copies to and from GPUs, for all backends
    together: 64 MB from the first large copy on, until `empty_host_cache`.

    | backend | on a GPU | on the CPU |
    |---|---|---|
    | torch | all four | nothing |
    | tensorflow | allocated and peak | allocated and peak, of all CPU devices together, where oneDNN is on |
    | mxnet | total and free | nothing |
    | paddle | all four | allocated and peak |
    | jax | all four; `total` is the share that JAX takes | allocated, of arrays that are alive |
    | numpy | none | nothing |

    On virtual GPUs PyTorch and Paddle have allocated and peak, and JAX has allocated. With
    `XDEVICE_VIRTUAL_GPUS=2:memory=8GB` all five have all four.

    Asynchronous work may still allocate: call `xdevice.sync()` first, if that matters. The call may start the device.

    Args:
        device: any spelling that `xdevice.device` takes.

    Raises:
        DeviceNotFoundError, DeviceError: no such device.

    Costs some 10 us; on JAX's CPU some 2 us for each live array.

    Example:
        >>> xdevice.memory("cpu")._fields
        ('total', 'free', 'allocated', 'peak', 'pinned')
    """
    backend = selection.current()
    place = backend.require(devices.parse(device))
    usage = backend.memory(place)
    return usage._replace(pinned=ring.pinned_bytes()) if place.kind == "cpu" else usage


def free_pinned() -> None:
    """Gives back the page-locked memory that large copies between the host and GPUs go through.

    Young: it may change in a minor version.

    Waits for copies that are under way. The next large copy allocates such memory again.

    Example:
        >>> xdevice.accelerator.empty_host_cache()
        >>> xdevice.memory("cpu").pinned
        0
    """
    ring.free()


def reset_peak(device: object) -> None:
    """Resets `memory(device).peak` to the number of bytes that are allocated now.

    Args:
        device: any spelling that `xdevice.device` takes.

    Raises:
        UnsupportedError: the device's peak is not known or cannot be reset: on NumPy, MXNet and JAX, on PyTorch's CPU,
            and on Paddle before 3.0.
        DeviceNotFoundError, DeviceError: no such device.

    Example:
        >>> try:
        ...     xdevice.accelerator.reset_peak_memory_stats("cpu")
        ... except xdevice.errors.UnsupportedError as error:
        ...     print("xdevice.memory(device).allocated" in str(error))
        True
    """
    backend = selection.current()
    place = backend.require(devices.parse(device))
    backend.reset_peak(place)
