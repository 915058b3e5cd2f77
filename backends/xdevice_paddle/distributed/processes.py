"""Moves tensors between processes with Paddle's collectives: with gloo on the CPU, and with NCCL on
GPUs.

Facts about Paddle on which the code depends (measured on 3.3.1 with gloo, on 2.6.2 with NCCL):

- A dtype that gloo does not support (int16, complex64) ends the process with status 255. So tensors that need no
  arithmetic are sent as bytes, and tensors that are reduced are converted to a dtype that gloo supports.
- In 2.6.2, `view` to a dtype with larger elements ends the process with SIGFPE. So bytes cannot
  be converted back to a tensor, and all_gather does not work in this version.
- gloo does not have reduce_scatter.
- Each rank separately counts its calls in a group. After a send between two of four ranks, the counts differ, and the
  next collective of all four hangs until it times out. So each pair of ranks that send to each other has its own group.
- gloo gives up after 30 s, and no setting changes this.
- If a rank connects to the store (where the ranks find each other) before rank 0 has opened it,
  the rank sleeps for 3 s.
- `init_parallel_env` keeps one store for the whole process, so a process could join other
  processes only once. So this module creates the groups itself, with the classes that
  `init_parallel_env` uses. These classes read the rank from the environment.
- NCCL's calls create their results on the current GPU, and fail if the tensor is on another GPU.
  So this module makes the rank's GPU the current GPU of the whole process, as
  `init_parallel_env` does.
- The store listens on all addresses, and accepts any connection.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import paddle
import paddle.distributed as dist
from paddle.distributed.communication.group import Group as Members

from xdevice.base.dtypes import dtype_name
from xdevice.base.floats import PARTS
from xdevice.distributed.contract.collectives import (
    free_port,
)
from xdevice.distributed.contract.processes import Engine, Processes
from xdevice_paddle import virtual_devices
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xdevice.distributed.contract.processes import Group

_Store: Any = private["paddle.base.core.TCPStore"]
_KINDS: Final = {
    "nccl": private.get("paddle.base.core.ProcessGroupNCCL"), "gloo": private.get("paddle.base.core.ProcessGroupGloo")
}  # fmt: skip
"""Paddle's class for each engine, the best engine first. A build of Paddle has only the classes
for the devices that it supports."""
_OPS: Final = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
"""Paddle's name for each reduction."""
_REDUCED_AS: Final = {"int16": "int32", "bool": "uint8"}
"""Maps dtypes that gloo does not support to the dtypes in which such tensors are reduced."""
_GLOO_GIVES_UP: Final = 30.0
"""The seconds after which gloo stops waiting for another rank."""


class PaddleProcesses(Processes):
    """Provides Paddle's engines: gloo on the CPU, and NCCL on GPUs."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that this process can use, the best engine first."""
        has_gpus = self._gpu == "gpu" and self.count("gpu") > 0
        return tuple(
            name
            for name, kind in _KINDS.items()
            if kind is not None and (has_gpus or name != "nccl")
        )

    def start_engine(self, name: str, group: Group) -> Engine:
        """Returns the engine for the ranks of a group. Waits until all ranks of the group have
        called this method."""
        return PaddleEngine(name, group, self.to_native(group.device))


class PaddleEngine(Engine):
    """An engine that uses Paddle's collectives. `name` is "nccl" or "gloo", and `native` is Paddle's own object for
    this rank's device, a `Place`."""

    def __init__(self, name: str, group: Group, native: Any) -> None:
        super().__init__(f"paddle:{name}", group)
        self._native = native
        # whether gloo would give up before the timeout that the user has set
        self._is_short_of_time = name == "gloo" and group.timeout > _GLOO_GIVES_UP
        self._is_gloo = name == "gloo"
        # NCCL computes on the current GPU (see the top of this file)
        if not self._is_gloo:
            paddle.set_device(str(group.device))
        self._store, self._number = _open_store(group)
        self._members = self._new_group(self._number, range(group.size))
        # the groups of two ranks in which this rank has sent or received, by their numbers
        self._pairs: dict[int, Members] = {}

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns the reason why every collective is refused, or None if the collectives work."""
        if self._is_short_of_time:
            return (
                "Paddle's gloo always gives up after 30 s, so the timeout must be 30 s or less"
            )
        return None

    def all_reduce(self, x: paddle.Tensor, op: str) -> paddle.Tensor:
        """Returns the reduction of the tensors `x` of all ranks, either in the memory of this
        rank's `x` or as a new tensor. `op` is "sum", "max" or "min"."""
        dtype = dtype_name(x.dtype)
        if dtype in PARTS:
            # the real and imaginary parts form one tensor, because gloo does not support complex
            # dtypes
            return paddle.as_complex(self._reduce_in_place(_compact(paddle.as_real(x)), op))
        if dtype in _REDUCED_AS:
            return self._reduce_in_place(x.astype(_REDUCED_AS[dtype]), op).astype(dtype)
        return self._reduce_in_place(_compact(x), op)

    def broadcast(self, x: paddle.Tensor, root: int) -> paddle.Tensor:
        """Returns the tensor `x` of the rank `root`, either in the memory of this rank's `x` or as a
        new tensor."""
        sent = _bytes(x)
        dist.broadcast(sent, src=root, group=self._members)
        self._wait_for_nccl()
        return _from_bytes(sent, x)

    def all_gather(self, x: paddle.Tensor) -> list[paddle.Tensor]:
        """Returns new tensors with the `x` of each rank, in the order of the ranks."""
        received: list[paddle.Tensor] = []
        dist.all_gather(received, _bytes(x), group=self._members)
        self._wait_for_nccl()
        return [_from_bytes(item, x) for item in received]

    def send(self, x: paddle.Tensor, to: int) -> None:
        """Sends `x` to the rank `to`, which must call `recv` at the same time."""
        pair = self._group_of_pair(self.rank, to)
        with _with_rank_variable(self.rank):
            dist.send(_bytes(x), dst=to, group=pair)
        self._wait_for_nccl()

    def recv(self, like: paddle.Tensor, source: int) -> paddle.Tensor:
        """Returns the tensor that the rank `source` sends, either in the memory of `like` or as a
        new tensor with the shape and dtype of `like`."""
        # the bytes of `like` are overwritten
        received = _bytes(like)
        pair = self._group_of_pair(source, self.rank)
        with _with_rank_variable(self.rank):
            dist.recv(received, src=source, group=pair)
        self._wait_for_nccl()
        return _from_bytes(received, like)

    # the end

    def close(self) -> None:
        """Leaves the groups. Paddle closes a group, and the store, when nothing refers to it any
        more."""
        self._pairs.clear()
        del self._members, self._store

    # the groups

    def _new_group(self, number: int, ranks: Sequence[int]) -> Members:
        """Returns a new Paddle group of `ranks`, which include this rank. All these ranks must call
        this method with the same `number`, which no other group of the process may have."""
        kind = _KINDS["gloo" if self._is_gloo else "nccl"]
        # this rank's own rank in the new group
        rank = ranks.index(self.rank)
        with _with_rank_variable(self.rank):
            process_group = kind.create(self._store, rank, len(ranks), number)
        return Members(rank, number, list(ranks), pg=process_group, name=f"xdevice {number}")

    def _group_of_pair(self, source: int, to: int) -> Members:
        """Returns the group in which the rank `source` sends to the rank `to`. The first call
        creates the group, and waits for the other rank."""
        # at most self._number + size**2 - 1; `_open_store` leaves the numbers up to this one free
        number = self._number + 1 + source * self.size + to
        if number not in self._pairs:
            self._pairs[number] = self._new_group(number, (source, to))
        return self._pairs[number]

    def _reduce_in_place(self, x: paddle.Tensor, op: str) -> paddle.Tensor:
        """Reduces `x` over all ranks in place, and returns it. `x` must be contiguous."""
        dist.all_reduce(x, op=_OPS[op], group=self._members)
        self._wait_for_nccl()
        return x

    def _wait_for_nccl(self) -> None:
        """Waits for NCCL, whose calls return before their work is done. The wait must be in this thread, which xdevice
        abandons if another process has died. The thread polls, because Paddle's own wait would hold Python's lock."""
        if not self._is_gloo:
            stream = paddle.device.current_stream(self._native)
            # 0.1 ms is short compared with most collectives, and lets other threads run
            while not stream.query():
                time.sleep(0.0001)


@contextmanager
def _with_rank_variable(rank: int) -> Iterator[None]:
    """Opens a block in which the environment variable with the rank is set. Paddle reads this variable when a group is
    created, and in 2.6 also at each send and recv with NCCL."""
    value_before = os.environ.get("PADDLE_TRAINER_ID")
    os.environ["PADDLE_TRAINER_ID"] = str(rank)
    try:
        yield
    finally:
        if value_before is None:
            del os.environ["PADDLE_TRAINER_ID"]
        else:
            os.environ["PADDLE_TRAINER_ID"] = value_before


def _open_store(group: Group) -> tuple[Any, int]:
    """Returns Paddle's key-value store and the number of the group of all ranks. The store runs in rank 0, which
    chooses the number at random."""
    port = free_port(group.host) if group.rank == 0 else 0
    # Paddle identifies the groups of a process by signed 32-bit numbers. The numbers after this
    # number, up to the next multiple of size**2, belong to the pairs of ranks (`_group_of_pair`). The number
    # is random, so that a process that joins two worlds one after the other uses different numbers
    # in the second world
    pairs = group.size**2
    number = pairs * (1 + secrets.randbelow(2**31 // pairs - 1))
    answers = group.exchange(f"{group.host} {port} {number}")
    # all ranks use the address and the number of rank 0
    host, first_port, first_number = answers[0].split()
    if group.rank:
        # rank 0 needs a moment before it listens; a rank that connects too early loses 3 s
        time.sleep(0.2)
    seconds = max(1, int(group.timeout))
    is_server = group.rank == 0
    store = _Store(host, int(first_port), is_server, group.size, seconds)
    return store, int(first_number)


def _compact(x: paddle.Tensor) -> paddle.Tensor:
    """Returns `x` itself if it is contiguous and begins at the start of its memory. Otherwise returns a copy that meets
    these two conditions."""
    # if `x` begins later, like the slice y[1:], `view` to a dtype of another size reads the wrong
    # numbers, because it adds the offset twice (2.6.2 and 3.3.1; no upstream issue known)
    return x if x.is_contiguous() and not x.offset else x.clone()


def _bytes(x: paddle.Tensor) -> paddle.Tensor:
    """Returns the bytes of `x` as a vector of uint8. The vector shares the memory of `x` if
    possible; otherwise it is a copy, which is on the host if there are virtual GPUs."""
    # with virtual GPUs, `view` has no kernel, not even for the host
    if virtual_devices.registered_count():
        array = x.numpy().reshape(-1).view("uint8")
        return paddle.to_tensor(array, place=paddle.CPUPlace())
    return _compact(x).reshape([-1]).view("uint8")


def _from_bytes(received: paddle.Tensor, x: paddle.Tensor) -> paddle.Tensor:
    """Returns the bytes `received` as a tensor with the shape and dtype of `x`. The result is `x`
    itself if the bytes are in the memory of `x`."""
    if virtual_devices.registered_count():
        array = received.numpy().view(x.numpy().dtype).reshape(x.shape)
        return paddle.to_tensor(array, place=x.place)
    return x if received.data_ptr() == x.data_ptr() else received.view(x.dtype).reshape(x.shape)
