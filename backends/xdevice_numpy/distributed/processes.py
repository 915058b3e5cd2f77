"""Moves arrays between the processes that `mpirun` has started, with MPI's collectives, by the library mpi4py.

Facts about MPI that the code depends on (measured on mpi4py 4.1.2 with MPICH 5.0.2):

- Importing `mpi4py.MPI` starts MPI, so it is imported only when an engine is made.
- MPI cannot add bool or bfloat16, so these are added in another dtype. Arrays that are only sent are sent as bytes.
- MPI knows only the processes that `mpirun` has started. Under another launcher each process would be alone.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.distributed.contract.collectives import own_part, refusal_of_order
from xdevice.distributed.contract.processes import Engine, Processes
from xdevice.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.distributed.contract.processes import Group

    Array = np.ndarray[Any, Any]

_LAUNCHED: Final = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""Environment variables of MPI launchers: at least one is set if such a launcher has started this process."""
_REDUCED_AS: Final = {"bool": "uint8", "float16": "float32", "bfloat16": "float32"}


class NumpyProcesses(Processes):
    def engines(self) -> Sequence[str]:
        if not any(name in os.environ for name in _LAUNCHED):
            return ()
        return ("mpi",) if importlib.util.find_spec("mpi4py") is not None else ()

    def start_engine(self, name: str, group: Group) -> Engine:
        return MpiEngine(group)

    def why_no_engine(self) -> str:
        return "it has MPI's alone, for processes of mpirun with mpi4py (pip install 'xdevice-dl[mpi]')"


class MpiEngine(Engine):
    name = "numpy:mpi"

    def __init__(self, group: Group) -> None:
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]

        found = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        said = group.exchange(f"{int(found == (group.rank, group.size))} {found}")
        if not all(text.startswith("1") for text in said):
            raise LaunchError(
                f"MPI counts rank {found[0]} of {found[1]} here, and this is rank {group.rank} of {group.size}: start "
                "all processes by one mpirun, or choose engine='torch:gloo'"
            )
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._rank, self._size = group.rank, group.size
        self._all = MPI.COMM_WORLD.Dup()  # a duplicate, so that its messages are never mixed up with the program's own

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        return refusal_of_order(verb, op, dtype)

    def all_reduce(self, x: Array, op: str) -> Array:
        wide = _REDUCED_AS.get(x.dtype.name)
        sent = np.ascontiguousarray(x if wide is None else x.astype(wide)).reshape(x.shape)
        found = np.empty_like(sent)
        self._all.Allreduce(sent, found, self._ops[op])
        return found if wide is None else found.astype(x.dtype)

    def broadcast(self, x: Array, root: int) -> Array:
        found = _bytes(x).copy() if self._rank == root else np.empty(x.nbytes, "uint8")
        self._all.Bcast(found, root)
        return _from_bytes(found, x)

    def all_gather(self, x: Array) -> list[Array]:
        found = np.empty((self._size, x.nbytes), "uint8")
        self._all.Allgather(_bytes(x), found)
        return [_from_bytes(one, x) for one in found]

    def reduce_scatter(self, x: Array, op: str) -> Array:
        if x.dtype.name in _REDUCED_AS:
            part: Array = own_part(self.all_reduce(x, op), self._rank, self._size)
            return part.copy()
        found = np.empty((x.shape[0] // self._size, *x.shape[1:]), x.dtype)
        self._all.Reduce_scatter_block(np.ascontiguousarray(x), found, self._ops[op])
        return found

    def send(self, x: Array, to: int) -> None:
        self._all.Send(_bytes(x), to)

    def recv(self, like: Array, source: int) -> Array:
        found = np.empty(like.nbytes, "uint8")
        self._all.Recv(found, source)
        return _from_bytes(found, like)

    # single tensors

    def cast(self, x: Array, dtype: str) -> Array:
        return x.astype(host_dtype(dtype))

    # the end

    def close(self) -> None:
        self._all.Free()


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _from_bytes(found: Array, x: Array) -> Array:
    like: Array = found.view(x.dtype)
    return like.reshape(x.shape)
