"""`try_gpu`, `try_all_gpus` and other functions that return the framework's own device objects:
a drop-in replacement for those of d2l.ai."""

from __future__ import annotations

from .core import selection
from .tensors import verbs

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any


# these are d2l.ai's functions; the others are written into scripts by `xdevice port`
def __dir__() -> list[str]:
    return ["try_all_gpus", "try_gpu"]


def try_gpu(i: int = 0) -> Any:
    """Returns the selected backend's own object for `gpu:i` if that device exists, else for
    `cpu:0`.

    `torch.device("cuda:0")`, `"/GPU:0"`, `mx.gpu(0)`, `paddle.CUDAPlace(0)`, `jax.devices("gpu")[0]`; on a machine
    without a GPU `torch.device("cpu")`, `"/CPU:0"`, `mx.cpu(0)`, `paddle.CPUPlace()`, `jax.devices("cpu")[0]`;
    `"cpu"` on NumPy.

    Raises:
        DeviceError: if `i` is negative, a bool, or not an int.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.try_gpu()
        'cpu'
    """
    return verbs.try_gpu(i).native


def try_all_gpus() -> list[Any]:
    """Returns the selected backend's own objects for all its GPUs, else for `cpu:0`, in a list
    that is never empty.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.try_all_gpus()
        ['cpu']
    """
    return [device.native for device in verbs.try_all_gpus()]


def device(spec: object) -> Any:
    """Returns the selected backend's own object for a device, even if the device does not exist:
    `torch.device("cuda:1")`, for example, can be made on any machine.

    `Device.native` raises an error if the device does not exist; use this function to name
    devices without using them.

    Args:
        spec: any spelling that `xdevice.device` takes.

    Raises:
        DeviceError: if `spec` does not name a device.
        DeviceNotFoundError: if the backend has no devices of this kind: "gpu:1" on NumPy.
        UnsupportedError: if the device does not exist, and the framework can make no object for it: JAX, and Paddle,
            whose `CUDAPlace` would end the process.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.device("cpu")
        'cpu'
    """
    place, backend = verbs.device(spec), selection.current()
    # raises the error: a kind that the backend lacks, or hardware that its GPUs are not
    if place.kind not in backend.kinds or not backend.answers_to(place):
        backend.require(place)
    return backend.to_native(place) if backend.has(place) else backend.describe_missing(place)


def cpu(i: int = 0) -> Any:
    """Returns the selected backend's own object for `cpu:i`.

    Example:
        >>> with xdevice.use_backend("torch"):
        ...     xdevice.native.cpu().type
        'cpu'
    """
    return verbs.cpu(i).native


def gpu(i: int = 0) -> Any:
    """Returns the selected backend's own object for `gpu:i`, whether that device exists or not;
    see `device`.

    Example:
        >>> with xdevice.use_backend("torch"):
        ...     xdevice.native.gpu(1).index
        1
    """
    return device(verbs.gpu(i))
