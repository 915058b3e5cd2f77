"""Creates PyTorch's default process group for the processes of a world. DDP, FSDP and DTensor use this group."""

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

from .processes import open_store

if TYPE_CHECKING:
    from xdevice.distributed.contract.processes import Group

_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
"""The environment variable that contains the name of the network interface on which gloo listens. If it is not set,
gloo looks up the host's name, and listens on the address that it finds."""

_abort: Any = private.get("torch.distributed.distributed_c10d._abort_process_group")
"""PyTorch's function that ends the default group without waiting for other ranks; None if this
version of PyTorch lacks it."""


def start_native_group(group: Group, native: torch.device) -> NativeGroup:
    """Creates PyTorch's default process group. The group uses gloo for tensors on the host. It also uses NCCL if
    `native`, the device of this process, is a CUDA GPU. All ranks of `group` call this at the same time. Returns the
    scope that the program's thread enters for as long as the group exists, and the functions that end the group.

    If the program has already created a default group with the same ranks, that group is used, and the returned
    functions do nothing. Raises `LaunchError` if the program has created a default group with different ranks or on
    only some of the ranks."""
    is_cuda = native.type == "cuda"
    # FSDP and DTensor create tensors on the current GPU, but NCCL accepts only tensors on `native`
    scope = torch.cuda.device(native) if is_cuda else nullcontext()
    if _exists(group):
        return NativeGroup(scope, close=lambda: None, abort=lambda: None)
    is_unset = _INTERFACE not in os.environ
    # listens on loopback (lo on Linux, lo0 on macOS) only if all ranks are on one machine, because
    # ranks on another machine could not reach it
    if is_unset and group.local_size == group.size:
        for _, interface in socket.if_nameindex():
            if interface in ("lo", "lo0"):
                os.environ[_INTERFACE] = interface

    def restore() -> None:
        """Unsets the environment variable GLOO_SOCKET_IFNAME if it was not set before the group was created. Otherwise
        later groups of the program would also listen on the interface in this variable. The variable is not unset
        before the group ends, because each call of `new_group` in the program reads the variable."""
        if is_unset:
            os.environ.pop(_INTERFACE, None)

    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=open_store(group),
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
        """Aborts the default group on GPUs without waiting, if this version of PyTorch can do
        this. Called after a failure instead of `close`, in any thread."""
        restore()
        # PyTorch's function supports NCCL only; gloo's connections end with the process
        if _abort is not None and is_cuda and dist.is_initialized():
            # in a thread, because this function must not wait, and NCCL's abort may wait for ever
            threading.Thread(target=_abort, daemon=True).start()

    return NativeGroup(scope, close, abort)


def _exists(group: Group) -> bool:
    """Whether the program has already created PyTorch's default group with the ranks of `group`, which all call this at
    the same time. Raises `LaunchError` on all ranks if the program has created a default group with different ranks or
    on only some of the ranks."""
    # this rank's place in the default group that the program has created
    own_place = (
        f"rank {dist.get_rank()} of {dist.get_world_size()}"
        if dist.is_initialized()
        else "none"
    )
    # every rank compares the places of all ranks, so that all of them raise the error; a rank
    # that continued would wait for the others
    places = group.exchange(own_place)
    if places == ["none"] * group.size:
        return False
    if places != [f"rank {rank} of {group.size}" for rank in range(group.size)]:
        texts = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(places))
        raise LaunchError(
            f"this program has called init_process_group itself, but not with the ranks of this world ({texts}); "
            f"call init_process_group on every rank with the ranks of this world, or let native_group() call it"
        )
    return True
