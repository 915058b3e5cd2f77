"""`try_gpu` and `try_all_gpus` that give the framework's own device objects: a drop-in for those of d2l.ai."""

from __future__ import annotations

from .tensors import verbs

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any


def __dir__() -> list[str]:
    return ["try_all_gpus", "try_gpu"]


def try_gpu(i: int = 0) -> Any:
    """The selected backend's own object for `gpu:i` if it exists, else for `cpu:0`.

    `torch.device("cuda:0")`, `"/GPU:0"`, `mx.gpu(0)`, `paddle.CUDAPlace(0)`, `jax.devices("gpu")[0]`; on a machine
    without a GPU `torch.device("cpu")`, `"/CPU:0"`, `mx.cpu(0)`, `paddle.CPUPlace()`, `jax.devices("cpu")[0]`;
    `"cpu"` on NumPy.

    Raises:
        DeviceError: as `xdevice.try_gpu`.

    Example:
        >>> with xdevice.use("numpy"):
        ...     xdevice.native.try_gpu()
        'cpu'
    """
    return verbs.try_gpu(i).native


def try_all_gpus() -> list[Any]:
    """The selected backend's own objects for all its GPUs, else for `cpu:0`: a list that is never empty.

    Example:
        >>> with xdevice.use("numpy"):
        ...     xdevice.native.try_all_gpus()
        ['cpu']
    """
    return [device.native for device in verbs.try_all_gpus()]
