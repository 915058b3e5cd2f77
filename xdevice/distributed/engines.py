"""Chooses the engine that moves the tensors: the one asked for, or the best that all ranks have; and starts it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.cuda import nvidia
from xdevice.errors import ArgumentError, LaunchError, SettingError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.contract.processes import Engine, Group


def candidates(asked: str, own: Backend, device: Device) -> list[str]:
    """The engines that this process could start, the best first, as "torch:gloo".

    `auto` takes PyTorch's gloo on the host, wherever PyTorch is installed: at 64 MB it was measured 2 to 5 times as
    fast as JAX's, TensorFlow's and MXNet's own. Paddle's own was as fast there, and twice as fast at 4 KB, but it
    listens on all addresses, and gives up after 30 s. Without PyTorch it takes the framework's own, and on GPUs always.
    `asked` may be "auto", "torch", "torch:gloo".

    Raises:
        LaunchError: `auto` finds none. BackendNotFoundError, UnsupportedError: what was asked for is not there.
    """
    if asked == "auto":
        return _automatic(own, device)
    name, _, kind = asked.partition(":")
    backend = registry.load(name)
    there = _fitting([f"{backend.name}:{one}" for one in backend.engines()], device)
    wanted = f"{backend.name}:{kind}" if kind else (there[0] if there else "")
    if wanted not in there:
        if not there:
            raise backend.unsupported(f"several processes by itself: {backend.why_no_engine()}", "choose engine='auto'")
        raise backend.unsupported(
            f"the engine {kind or name!r} here", f"choose engine='auto' or one of {', '.join(there) or 'none'}"
        )
    return [wanted]


def _automatic(own: Backend, device: Device) -> list[str]:
    names = [own.name]
    if own.name != "torch" and registry.is_installed("torch"):
        names = ["torch", own.name] if device.kind == "cpu" else [own.name, "torch"]
    found = [f"{name}:{kind}" for name in names for kind in registry.load(name).engines()]
    found = _fitting(found, device)
    if not found:
        raise LaunchError(
            f"nothing here moves tensors of {own.name} between processes: install PyTorch, "
            "as pip install 'xdevice-dl[torch]' does, whose gloo does so for every framework"
        )
    return found


def _fitting(names: list[str], device: Device) -> list[str]:
    """The engines that can reach the device: NCCL for GPUs, the others for the host."""
    return names if device.kind != "cpu" else [name for name in names if not name.endswith(":nccl")]


def agree(lists: list[str]) -> str:
    """The first engine of rank 0's list that all ranks have."""
    rows: list[list[str]] = [json.loads(text) for text in lists]
    for name in rows[0]:
        if all(name in row for row in rows):
            return name
    told = "; ".join(f"rank {rank}: {', '.join(row)}" for rank, row in enumerate(rows))
    raise LaunchError(f"no engine is there on all ranks ({told}); install the same everywhere, or name one")


def gpu_of(device: Device) -> str:
    """A text that identifies the GPU of this process, which `require_gpu_each` reads."""
    return json.dumps([str(device), nvidia.uuid(device.index) if device.kind == "gpu" else None])


def require_gpu_each(engine: str, gpus: list[str]) -> None:
    """Raises if two processes have one GPU: PyTorch's NCCL fails then, and JAX's waits for ever."""
    ranks: dict[str, int] = {}
    for rank, text in enumerate(gpus):
        device, uuid = json.loads(text)
        first = ranks.setdefault(uuid, rank) if uuid else rank
        if first != rank:
            raise LaunchError(
                f"ranks {first} and {rank} are both on one GPU, {uuid}, which rank {rank} calls {device}, and {engine} "
                "takes one process for each: start as many as there are GPUs, give each its own XDEVICE_LOCAL_RANK or "
                "CUDA_VISIBLE_DEVICES, or choose engine='torch:gloo', by way of the host"
            )


def start(name: str, group: Group) -> tuple[Backend, Engine]:
    """Starts an engine. Returns the backend whose tensors it takes, and the engine."""
    framework, _, kind = name.partition(":")
    backend = registry.load(framework)
    return backend, backend.start_engine(kind, group)


def setting(value: Any, name: str, default: Any, read: Callable[[str], Any], what: str) -> Any:
    """The argument `value`; if that is None the variable `name`, read by `read`; if that is not set the default."""

    if value is not None:
        return value
    text = (os.environ.get(name) or "").strip()
    if not text:
        return default
    try:
        return read(text)
    except (ValueError, KeyError):
        raise SettingError(f"{name} is {shown(text)}, and should be {what}") from None


def require_seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
        raise ArgumentError(f"{name} is a number of seconds above 0, not {shown(value)}")
    return float(value)
