"""Chooses and starts the engine that moves tensors between processes (NCCL, gloo, ...): the
engine that the user names, or the best engine that all ranks have."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.cuda_driver import nvidia
from xdevice.errors import ArgumentError, LaunchError, SettingError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.distributed.contract.processes import Engine, Group


def candidates(request: str, own: Backend, device: Device) -> list[str]:
    """Returns the names of the engines that this process can start, such as "torch:gloo", with
    the best first. `own` is the backend in use, and `device` is the device of this process.

    `request` may be "auto", a framework ("torch") or an engine ("torch:gloo"). On the host, "auto" prefers PyTorch's
    gloo if PyTorch is installed: in measurements with 64 MB it was 2 to 5 times as fast as the engines of JAX,
    TensorFlow and MXNet. Paddle's engine was as fast as gloo with 64 MB, and twice as fast with 4 KB, but it listens on
    all addresses, and gives up after 30 s. On GPUs, or if PyTorch is not installed, "auto" prefers the engine of `own`.

    Raises:
        LaunchError: "auto" finds no engine.
        BackendNotFoundError, UnsupportedError: the framework or engine in `request` is not
        available here.
    """
    if request == "auto":
        return _automatic(own, device)
    # "torch:gloo", or "torch" for the best engine of PyTorch
    name, _, kind = request.partition(":")
    backend = registry.load(name)
    engines = _fitting(
        [f"{backend.name}:{engine}" for engine in backend.engines()], own, device
    )
    if not engines:
        raise backend.unsupported(
            f"several processes by itself: {backend.why_no_engine()}", "choose engine='auto'"
        )
    # the first engine of a framework is its best
    wanted = f"{backend.name}:{kind}" if kind else engines[0]
    if wanted not in engines:
        raise backend.unsupported(
            f"the engine {kind!r} here",
            f"choose engine='auto' or one of {', '.join(engines)}",
        )
    return [wanted]


def _automatic(own: Backend, device: Device) -> list[str]:
    """Returns the names of the engines that `engine='auto'` may choose, with the best first.
    The docstring of `candidates` explains the order."""
    names = [own.name]
    if own.name != "torch" and registry.is_installed("torch"):
        # on GPUs, PyTorch comes second, because its gloo would copy through the host
        names = ["torch", own.name] if device.kind == "cpu" else [own.name, "torch"]
    names = [f"{name}:{kind}" for name in names for kind in registry.load(name).engines()]
    names = _fitting(names, own, device)
    if not names:
        raise LaunchError(
            f"no engine here can move tensors of {own.name} between processes; install PyTorch, "
            "whose engine gloo supports every framework: pip install 'xdevice-dl[torch]'"
        )
    return names


def _fitting(names: list[str], own: Backend, device: Device) -> list[str]:
    """Returns the engines in `names` that can send tensors on `device`. NCCL sends tensors on real GPUs. The other
    engines send tensors in host memory, which includes tensors on virtual GPUs. PyTorch's gloo can send tensors of both
    kinds, because it copies tensors from a GPU to the host."""
    is_on_gpu = device.kind == "gpu" and not own.virtual
    # on a real GPU only NCCL, elsewhere every engine but NCCL, and gloo everywhere
    return [
        name for name in names if name.endswith(":nccl") == is_on_gpu or name == "torch:gloo"
    ]


def choose_common(lists: list[str]) -> str:
    """Returns the name of the engine that all ranks use: the first engine in rank 0's list that is in the lists of all
    ranks. `lists` contains, for each rank, the JSON text of the list that `candidates` returned on that rank. Raises
    `LaunchError` if no engine is in all lists."""
    rows: list[list[str]] = [json.loads(text) for text in lists]
    # in the order of rank 0 on every rank, so that all ranks choose the same engine
    for name in rows[0]:
        if all(name in row for row in rows):
            return name
    texts = "; ".join(f"rank {rank}: {', '.join(row)}" for rank, row in enumerate(rows))
    raise LaunchError(
        f"no engine is available on all ranks ({texts}); install the same engine on every rank, or choose one with "
        "engine=..."
    )


def gpu_identity(device: Device) -> str:
    """Returns a list of two items as JSON text: the name of `device`, which is the device of this process, and the UUID
    of this GPU. The UUID is null if the GPU has none, or if the device is a CPU. The ranks exchange these texts and
    pass them to `require_distinct_gpus`."""
    return json.dumps(
        [str(device), nvidia.uuid(device.index) if device.kind == "gpu" else None]
    )


def require_distinct_gpus(engine: str, gpus: list[str]) -> None:
    """Raises `LaunchError` if two processes use the same GPU: NCCL would then fail in PyTorch,
    and wait for ever in JAX. `gpus` contains the text that `gpu_identity` returned on each rank, and
    `engine` is the engine's name."""
    # maps each UUID to the first rank with that GPU
    first_ranks: dict[str, int] = {}
    for rank, text in enumerate(gpus):
        device, uuid = json.loads(text)
        # GPUs without a UUID cannot be told apart, so no error is raised for them
        if not uuid:
            continue
        first_rank = first_ranks.setdefault(uuid, rank)
        if first_rank != rank:
            raise LaunchError(
                f"ranks {first_rank} and {rank} both use the GPU {uuid} ({device} on rank {rank}), but {engine} allows "
                "only one process for each GPU; start one process for each GPU, set XDEVICE_LOCAL_RANK or "
                "CUDA_VISIBLE_DEVICES to a different value in each process, or choose engine='torch:gloo', which "
                "copies through the host"
            )


def start(name: str, group: Group) -> tuple[Backend, Engine]:
    """Starts the engine with this name, such as "torch:gloo". Returns a backend and the engine; the engine accepts the
    tensors of this backend.
    """
    framework, _, kind = name.partition(":")
    backend = registry.load(framework)
    return backend, backend.start_engine(kind, group)


def argument_or_variable(
    value: Any, name: str, default: Any, read: Callable[[str], Any], expected: str
) -> Any:
    """Returns `value`, an argument of `processes`, if it is not None. Otherwise returns the value of the environment
    variable `name`, parsed by `read`, or `default` if the variable is not set or is empty. Raises `SettingError` if
    `read` raises ValueError or KeyError; `expected` describes the expected value in the message."""
    if value is not None:
        return value
    text = (os.environ.get(name) or "").strip()
    if not text:
        return default
    try:
        return read(text)
    # KeyError, because `read` may be the lookup in a dict
    except (ValueError, KeyError):
        raise SettingError(f"{name} must be {expected}, not {shown(text)}") from None


def require_seconds(value: object, name: str) -> float:
    """Returns the argument `name` of `processes` as a float. Raises `ArgumentError` if it is
    not a number of seconds above 0."""
    # the limit of 116 days also excludes infinity, which the system's functions for waiting do not accept
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
        raise ArgumentError(f"{name} must be a positive number of seconds, not {shown(value)}")
    return float(value)
