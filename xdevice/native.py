"""`try_gpu`, `try_all_gpus` and other functions that return the framework's own device objects. The first two are
drop-in replacements for the functions of the same names in d2l.ai."""

from __future__ import annotations

from .core import selection
from .tensors import verbs

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any


# `dir` lists only d2l.ai's functions; the others are for `xdevice port`, which writes them into
# scripts
def __dir__() -> list[str]:
    return ["try_all_gpus", "try_gpu"]


def try_gpu(i: int = 0) -> Any:
    """Returns the selected backend's own object for `gpu:i` if that device exists, otherwise for `cpu:0`.

    With a GPU, this is `torch.device("cuda:0")`, `"/GPU:0"`, `mx.gpu(0)`, `paddle.CUDAPlace(0)` or
    `jax.devices("gpu")[0]`. Without one, it is `torch.device("cpu")`, `"/CPU:0"`, `mx.cpu(0)`, `paddle.CPUPlace()` or
    `jax.devices("cpu")[0]`. On NumPy it is always `"cpu"`.

    Raises:
        DeviceError: if `i` is negative, a bool, or not an int.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.try_gpu()
        'cpu'
    """
    return verbs.try_gpu(i).native


def try_all_gpus() -> list[Any]:
    """Returns a list of the selected backend's own objects for all its GPUs. If there are no GPUs, the list contains
    only the object for `cpu:0`.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.try_all_gpus()
        ['cpu']
    """
    return [device.native for device in verbs.try_all_gpus()]


def device(spec: object) -> Any:
    """Returns the selected backend's own object for a device, even if the device does not exist:
    `torch.device("cuda:1")`, for example, can be created on any machine.

    In contrast, `Device.native` raises an error if the device does not exist. Use this function to name devices without
    using them.

    Args:
        spec: any form that `xdevice.device` accepts.

    Raises:
        DeviceError: if `spec` does not name a device.
        DeviceNotFoundError: if the backend has no devices of this kind, as NumPy has no "gpu:1".
        UnsupportedError: if the device does not exist, and the framework cannot create an object for it. This applies
            to JAX, and to Paddle, whose `CUDAPlace` would end the process.

    Example:
        >>> with xdevice.use_backend("numpy"):
        ...     xdevice.native.device("cpu")
        'cpu'
    """
    place, backend = verbs.device(spec), selection.current()
    # `require` raises the error: the backend has no devices of this kind, or its GPUs are different
    # hardware
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
    """Returns the selected backend's own object for `gpu:i`, whether or not that device exists; see `device`.

    Example:
        >>> with xdevice.use_backend("torch"):
        ...     xdevice.native.gpu(1).index
        1
    """
    return device(verbs.gpu(i))
