"""PyTorch's default process group, on which DDP, FSDP and DTensor work, for the processes of a
world."""

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
"""The environment variable with the name of the network interface on which gloo listens. If it
is not set, gloo looks up the host's name and listens at the address that it finds."""

_abort: Any = private.get("torch.distributed.distributed_c10d._abort_process_group")
"""PyTorch's function that ends the default group without waiting for other ranks; None if this
version lacks it."""


def start_native_group(group: Group, native: torch.device) -> NativeGroup:
    """Makes PyTorch's default process group, with gloo for tensors on the host, and with NCCL
    if `native`, the device of this process, is a CUDA GPU. All ranks of `group` call it at the
    same time. Returns the functions that end it.

    If the program has made a default group with the same ranks, that group is used, and the
    returned functions leave it as it is. Raises `LaunchError` if the program has made a default
    group with other ranks, or not on every rank."""
    is_initialized = dist.is_initialized()
    own_rank = (
        f"rank {dist.get_rank()} of {dist.get_world_size()}" if is_initialized else "none"
    )
    # all ranks compare all answers, so that they raise together: a rank that went on would wait
    # for the others
    answers = group.exchange(own_rank)
    expected = [f"rank {rank} of {group.size}" for rank in range(group.size)]
    is_cuda = native.type == "cuda"
    # FSDP and DTensor put tensors on the current GPU, and NCCL takes those on `native` only
    scope = torch.cuda.device(native) if is_cuda else nullcontext()
    if is_initialized and answers == expected:
        return NativeGroup(scope, lambda: None, lambda: None)
    if answers != ["none"] * group.size:
        texts = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(answers))
        raise LaunchError(
            f"this program has called init_process_group itself, but not with the ranks of this world ({texts}); "
            f"call it on every rank with the same ranks, or let native_group() call it"
        )
    before = os.environ.get(_INTERFACE)
    # loopback only if all ranks are on one machine: ranks on another machine could not reach it
    if before is None and group.local_size == group.size:
        os.environ.update(
            (_INTERFACE, name) for _, name in socket.if_nameindex() if name in ("lo", "lo0")
        )

    def restore() -> None:
        """Unsets GLOO_SOCKET_IFNAME if it was not set before, because it would also decide
        on which interface the program's later groups listen. Until then the variable
        stays set, because each `new_group` of the program reads it."""
        if before is None:
            os.environ.pop(_INTERFACE, None)

    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=store_of(group),
            rank=group.rank,
            world_size=group.size,
            device_id=native if is_cuda else None,
        )
    except BaseException:
        restore()
        raise

    def close() -> None:
        """Ends the default group. All ranks call this at the same time, after the program has left the world without
        an error."""
        restore()
        if dist.is_initialized():  # the program may have destroyed it
            dist.destroy_process_group()

    def abort() -> None:
        """Aborts the default group on GPUs, if this version of PyTorch can, and does not wait
        for that. Called instead of `close` after a failure, in any thread."""
        restore()
        # PyTorch's function supports NCCL only; gloo's connections end with the process
        if _abort is not None and is_cuda and dist.is_initialized():
            # in a thread, because `abort` must not wait, and NCCL's may do so for ever
            threading.Thread(target=_abort, daemon=True).start()

    return NativeGroup(scope, close, abort)
