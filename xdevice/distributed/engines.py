"""Chooses the engine that moves tensors between processes (NCCL, gloo, ...), the one asked for or the best that all
ranks have, and starts it."""

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
    """The names of the engines that this process could start, the best first, such as "torch:gloo".

    `request` may be "auto", a framework ("torch") or an engine ("torch:gloo"). On the host, "auto" prefers PyTorch's
    gloo if PyTorch is installed: at 64 MB it was measured 2 to 5 times as fast as the engines of JAX, TensorFlow and
    MXNet. Paddle's engine was as fast at 64 MB, and twice as fast at 4 KB, but it listens on all addresses, and gives
    up after 30 s. On GPUs, and without PyTorch, "auto" prefers the engine of `own`, the framework in use.

    Raises:
        LaunchError: "auto" finds no engine. BackendNotFoundError, UnsupportedError: the engine asked for is not here.
    """
    if request == "auto":
        return _automatic(own, device)
    name, _, kind = request.partition(":")
    backend = registry.load(name)
    engines = _fitting([f"{backend.name}:{one}" for one in backend.engines()], own, device)
    wanted = f"{backend.name}:{kind}" if kind else (engines[0] if engines else "")
    if wanted not in engines:
        if not engines:
            raise backend.unsupported(
                f"several processes by itself: {backend.why_no_engine()}",
                "choose engine='auto'",
            )
        raise backend.unsupported(
            f"the engine {kind or name!r} here",
            f"choose engine='auto' or one of {', '.join(engines) or 'none'}",
        )
    return [wanted]


def _automatic(own: Backend, device: Device) -> list[str]:
    """The engines that `engine='auto'` may take, the best first; `candidates` says why in this order."""
    names = [own.name]
    if own.name != "torch" and registry.is_installed("torch"):
        # on GPUs, PyTorch's gloo would copy through the host, so it comes second
        names = ["torch", own.name] if device.kind == "cpu" else [own.name, "torch"]
    names = [f"{name}:{kind}" for name in names for kind in registry.load(name).engines()]
    names = _fitting(names, own, device)
    if not names:
        raise LaunchError(
            f"nothing here moves tensors of {own.name} between processes: install PyTorch, "
            "as pip install 'xdevice-dl[torch]' does, whose gloo does so for every framework"
        )
    return names


def _fitting(names: list[str], own: Backend, device: Device) -> list[str]:
    """The engines of `names` that take tensors on the device: NCCL those on real GPUs, any other those in host memory,
    where those of virtual GPUs are too. PyTorch's gloo also takes those on GPUs, by a copy."""
    is_on_gpu = device.kind == "gpu" and not own.virtual
    return [
        name for name in names if name.endswith(":nccl") == is_on_gpu or name == "torch:gloo"
    ]


def agree(lists: list[str]) -> str:
    """The engine that all ranks use: the first in rank 0's list that every rank has. `lists` has a JSON list for each
    rank."""
    rows: list[list[str]] = [json.loads(text) for text in lists]
    for name in rows[0]:  # the order of one rank, so that all choose the same
        if all(name in row for row in rows):
            return name
    texts = "; ".join(f"rank {rank}: {', '.join(row)}" for rank, row in enumerate(rows))
    raise LaunchError(
        f"no engine exists on all ranks ({texts}); install the same engine everywhere, or name one"
    )


def gpu_of(device: Device) -> str:
    """A JSON text that identifies the GPU of this process by its UUID. The ranks exchange it for `require_gpu_each`."""
    return json.dumps(
        [str(device), nvidia.uuid(device.index) if device.kind == "gpu" else None]
    )


def require_gpu_each(engine: str, gpus: list[str]) -> None:
    """Raises `LaunchError` if two processes share a GPU: otherwise PyTorch's NCCL would fail, and JAX's would wait for
    ever."""
    ranks: dict[str, int] = {}
    for rank, text in enumerate(gpus):
        device, uuid = json.loads(text)
        # without a UUID, two GPUs cannot be told apart, and nobody is refused
        first = ranks.setdefault(uuid, rank) if uuid else rank
        if first != rank:
            raise LaunchError(
                f"ranks {first} and {rank} are both on one GPU, {uuid}, which rank {rank} calls {device}, and {engine} "
                "takes one process for each: start as many as there are GPUs, give each its own XDEVICE_LOCAL_RANK or "
                "CUDA_VISIBLE_DEVICES, or choose engine='torch:gloo', which copies through the host"
            )


def start(name: str, group: Group) -> tuple[Backend, Engine]:
    """Starts an engine by its name ("torch:gloo"). Returns the backend whose tensors the engine takes, and the
    engine."""
    framework, _, kind = name.partition(":")
    backend = registry.load(framework)
    return backend, backend.start_engine(kind, group)


def setting(value: Any, name: str, default: Any, read: Callable[[str], Any], what: str) -> Any:
    """Returns the argument `value`; if it is None, the environment variable `name`, parsed by `read`; if that is not
    set, `default`."""

    if value is not None:
        return value
    text = (os.environ.get(name) or "").strip()
    if not text:
        return default
    try:
        return read(text)
    except (ValueError, KeyError):
        raise SettingError(f"{name} is {shown(text)}; it should be {what}") from None


def require_seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
        raise ArgumentError(f"{name} must be a number of seconds above 0, not {shown(value)}")
    return float(value)
