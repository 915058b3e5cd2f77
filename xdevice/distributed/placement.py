"""`local_device`: determines which of the machine's devices this process uses if a launcher has started one process for
each device."""

from __future__ import annotations

import os

from xdevice.base.devices import CPU, of
from xdevice.core import selection
from xdevice.errors import DeviceNotFoundError, SettingError, shown
from xdevice.tensors.verbs import try_gpu

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Final

    from xdevice.base.devices import Device

RANKS: Final = (
    "XDEVICE_LOCAL_RANK",  # xdevice launch, or whoever sets it by hand
    "LOCAL_RANK",  # torchrun, and launchers that imitate it (accelerate, deepspeed)
    "FLAGS_selected_gpus",  # paddle.distributed.launch: the GPU's index, not the rank, if --gpus 2,3 chooses GPUs
    "PADDLE_LOCAL_RANK",  # paddle.distributed.launch, if it has chosen no GPU
    "OMPI_COMM_WORLD_LOCAL_RANK",  # mpirun of Open MPI
    "MPI_LOCALRANKID",  # mpiexec of MPICH and Intel MPI (Hydra)
    "MV2_COMM_WORLD_LOCAL_RANK",  # MVAPICH2
    "SLURM_LOCALID",  # srun; last, because other launchers are often started inside a Slurm job
)
"""The environment variables in which launchers pass a process its local rank. The first one that is set is used. If one
launcher was started by another, this is the variable of the inner launcher."""

_VISIBLE: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
"""The environment variables of NVIDIA, AMD (two) and Intel that show a process only some of the machine's GPUs."""


def local_device() -> Device:
    """Returns the device of this process: `gpu:k` if a launcher has given the process the local rank k on this machine.

    The GPUs are those that the selected backend finds. Without GPUs the device is `cpu:0`, and without a launcher it is
    `try_gpu()`, so a script for many processes also runs as a single process. If the launcher shows each process only
    one GPU (`CUDA_VISIBLE_DEVICES=3`, or Slurm's `--gpus-per-task=1`), that GPU is `gpu:0` in each process. Costs 5 us,
    and does not initialize a GPU.

    docs/reference/processes.md lists each launcher's variables, and explains which variables are used if several
    launchers have set variables.

    Raises:
        DeviceNotFoundError: there are more processes than GPUs. SettingError: the value of the launcher's variable is
            not a non-negative int.

    Example:
        >>> xdevice.distributed.local_device() == xdevice.try_gpu()
        True
    """
    # the first of these variables that is set, and its value
    setting = next(((name, os.environ[name]) for name in RANKS if os.environ.get(name)), None)
    # no launcher has started this process
    if setting is None:
        return try_gpu()
    rank = _rank(*setting)
    count = selection.current().count("gpu")
    # a script for GPUs also runs on a machine without GPUs
    if count == 0:
        return CPU
    if rank < count:
        return of("gpu", rank)
    # the launcher shows each process only its own GPU, which is the first in each process
    if count == 1 and any(_names_one(os.environ.get(name, "")) for name in _VISIBLE):
        return of("gpu", 0)
    raise DeviceNotFoundError(
        f"{setting[0]}={setting[1]} asks for gpu:{rank}, but {selection.current().name} has {count} "
        f"GPU{'s' * (count > 1)} here; start only one process for each GPU on this machine"
    )


def _rank(name: str, text: str) -> int:
    """Returns the local rank in `text`, the value of the environment variable `name`. Raises
    `SettingError` if it is not a non-negative int."""
    # if a process has several GPUs, Paddle's variable lists all of them
    first = text.partition(",")[0].strip()
    if not (first.isascii() and first.isdigit()):
        raise SettingError(
            f"{name} must be the number of this process on its machine (0, 1, 2, ...), not {shown(text)}"
        )
    return int(first)


def _names_one(visible: str) -> bool:
    """Whether the value of a variable such as CUDA_VISIBLE_DEVICES names exactly one GPU."""
    return bool(visible) and "," not in visible
