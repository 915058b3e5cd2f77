"""PyTorch's default process group, on which DDP, FSDP and DTensor work, for the processes of a world."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from xdevice.distributed.contract.processes import NativeGroup
from xdevice.errors import LaunchError
from xdevice_torch.private import private

from .processes import store_of

if TYPE_CHECKING:
    from xdevice.distributed.contract.processes import Group

_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
"""The variable that tells gloo on which interface to listen; otherwise it would listen at the address of the host's
name."""


_abort: Any = private.get("torch.distributed.distributed_c10d._abort_process_group")


def start_native_group(group: Group, native: torch.device) -> NativeGroup:
    """Makes PyTorch's default process group, with gloo for tensors on the host, and with NCCL if this process has a
    GPU."""
    is_there = dist.is_initialized()
    own = f"rank {dist.get_rank()} of {dist.get_world_size()}" if is_there else "none"
    answers = group.exchange(own)
    wanted = [f"rank {rank} of {group.size}" for rank in range(group.size)]
    is_cuda = native.type == "cuda"
    # FSDP and DTensor put tensors on the current GPU, and NCCL takes those on `native` only
    scope = torch.cuda.device(native) if is_cuda else nullcontext()
    if is_there and answers == wanted:
        return NativeGroup(scope, lambda: None, lambda: None)
    if answers != ["none"] * group.size:
        texts = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(answers))
        raise LaunchError(
            f"this program has called init_process_group itself, and not with the ranks of this world ({texts}); call "
            "it on every rank, or leave it to native_group()"
        )
    before = os.environ.get(_INTERFACE)
    # loopback only where all ranks are on one machine: others could not reach it
    if before is None and group.local_size == group.size:
        names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        os.environ.update({_INTERFACE: names[0]} if names else {})
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
        store=store_of(group),
        rank=group.rank,
        world_size=group.size,
        device_id=native if is_cuda else None,
    )

    def close() -> None:
        if before is None:
            os.environ.pop(_INTERFACE, None)
        if dist.is_initialized():  # the program may have destroyed it
            dist.destroy_process_group()

    def abort() -> None:
        if _abort is not None and is_cuda and dist.is_initialized():
            # in a thread, because `abort` must not wait, and NCCL's may do so for ever
            threading.Thread(target=_abort, daemon=True).start()

    return NativeGroup(scope, close, abort)
