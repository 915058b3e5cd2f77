"""Moves tensors between processes with TensorFlow's collectives. They use its "ring" on the
CPU, and NCCL on GPUs.

Facts about TensorFlow that the code depends on (measured on 2.21):

- The cluster (the list of processes) must be configured before TensorFlow has run anything, and cannot be changed
  afterwards. So a process has the same rank in all groups that it joins later.
- After a collective has failed, all later collectives fail. So this module calls no collective that could fail. Tensors
  of an unsupported dtype are sent as another dtype that preserves their values.
- NCCL's collectives do not support int32: "Collective all-reduce does not support datatype
  DT_INT32 on DEVICE_GPU" (https://github.com/tensorflow/tensorflow/issues/56184).
- `CollectiveReduceScatterV2` is not implemented for the CPU, so each process extracts its part
  from an all-reduce. There are no collectives to send and receive, so a group of two processes
  broadcasts.
- TensorFlow rounds the mean of integers down, so this module computes only sums, and no means.
- TensorFlow matches the calls of different processes by the argument `instance_key`, a number that this module
  increments at each call.
- `MultiWorkerMirroredStrategy` also starts a service that ends processes whose peers have died. So this module does not
  use the strategy itself, but the functions that the strategy calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from xdevice.distributed.contract.collectives import (
    address,
    free_port,
)
from xdevice.distributed.contract.processes import Engine, Processes
from xdevice.errors import LaunchError
from xdevice_tensorflow import accelerators
from xdevice_tensorflow.private import private
from xdevice_tensorflow.runtime import is_started

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.distributed.contract.processes import Group

_context = private["tensorflow.python.eager.context.context"]
_configure = private["tensorflow.python.eager.context.Context.configure_collective_ops"]
_enable = private["tensorflow.python.eager.context.Context.enable_collective_ops"]
_OPS: Final = {"sum": "Add", "max": "Max", "min": "Min"}
"""TensorFlow's name for each reduction."""
_KEY_OF_ALL: Final = 1000
"""TensorFlow's key for the group of all processes. The groups of two processes have greater
keys. The keys of TensorFlow's own strategies begin at 1."""

Encoding = tuple[str | None, str | None]
"""How tensors of a dtype are sent or reduced. First, the bits of a tensor are interpreted as the first dtype; then, the
result is cast to the second dtype. If a dtype is None, its step is left out."""
_UNCHANGED: Final[Encoding] = (None, None)
_CAST_TO_INT32: Final[dict[str, Encoding]] = dict.fromkeys(
    ("bool", "int8", "int16", "uint8", "uint16"), (None, "int32")
)
# how dtypes that TensorFlow cannot add are reduced. 16-bit floats are not listed, because the
# core casts them before a reduction
_REDUCED_AS: Final[dict[str, Encoding]] = {
    **_CAST_TO_INT32,
    "uint32": (None, "int64"),
    # a sum has the same bits in int64; max and min may have other bits, so `refusal` excludes
    # them
    "uint64": ("int64", None),
    "complex64": ("float32", None),
    "complex128": ("float64", None),
}
# how dtypes that TensorFlow cannot send are sent to other ranks
_MOVED_AS: Final[dict[str, Encoding]] = {
    **_CAST_TO_INT32,
    "bfloat16": ("uint16", "int32"),
    "uint32": ("int32", None),
    "uint64": ("int64", None),
    "complex64": ("int64", None),
    "complex128": ("int64", None),
}

_cluster: list[tuple[int, int]] = []
"""Contains one pair after TensorFlow has joined a cluster: the rank of this process, and the number of processes. The
list is empty before that."""
_calls: Counter[int] = Counter()
"""Maps the key of each group to the number of collectives that this process has called in the
group."""


def engine_names(gpus: int) -> tuple[str, ...]:
    """Returns TensorFlow's engines for a process with this many GPUs, the best engine first."""
    return ("nccl", "ring") if gpus else ("ring",)


class TensorflowEngine(Engine):
    """TensorFlow's collectives as an engine. `name` is "ring" or "nccl", and `native` is
    TensorFlow's name of this rank's device. `is_started` says whether TensorFlow has already
    run anything."""

    def __init__(self, name: str, group: Group, native: str, is_started: bool) -> None:
        super().__init__(f"tensorflow:{name}", group)
        self._hint, self._native = name, native
        # `dict` only copies the tables
        for_engine = _for_nccl if name == "nccl" else dict
        self._reduced_as: Mapping[str, Encoding] = for_engine(_REDUCED_AS)
        self._moved_as: Mapping[str, Encoding] = for_engine(_MOVED_AS)
        _join_cluster(group, name, is_started)

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why a collective is refused for a dtype, or None if it is supported. `verb` is the name of a method
        of this class, and `op` is "sum", "max", "min" or None."""
        if verb in ("all_reduce", "reduce_scatter") and op != "sum" and dtype == "uint64":
            return "uint64 is reduced as int64, which represents values of 2**63 or more as negative numbers"
        return None

    def all_reduce(self, x: Any, op: str) -> Any:
        """Returns the result of reducing the tensors `x` of all ranks with `op` ("sum", "max"
        or "min"), as a new tensor."""
        with tf.device(self._native):
            sent = _encoded(x, self._reduced_as)
            result = tf.raw_ops.CollectiveReduceV2(
                input=sent,
                merge_op=_OPS[op],
                final_op="Id",
                ordering_token=[],
                **self._arguments(_KEY_OF_ALL, self.size),
            )
            return self._wait_for(_decoded(result, x, self._reduced_as))

    def broadcast(self, x: Any, root: int) -> Any:
        """Returns the tensor `x` of the rank `root`, as a new tensor."""
        return self._broadcast_in(
            x, is_source=self.rank == root, key=_KEY_OF_ALL, size=self.size
        )

    def all_gather(self, x: Any) -> list[Any]:
        """Returns the tensors `x` of all ranks as new tensors, in the order of the ranks."""
        with tf.device(self._native):
            sent = _encoded(x, self._moved_as)[tf.newaxis]
            result = tf.raw_ops.CollectiveGatherV2(
                input=sent, ordering_token=[], **self._arguments(_KEY_OF_ALL, self.size)
            )
            return self._wait_for(
                [_decoded(part, x, self._moved_as) for part in tf.unstack(result)]
            )

    # TensorFlow has no collectives to send and receive, so both are a broadcast in a group of
    # two ranks

    def send(self, x: Any, to: int) -> None:
        """Sends `x` to the rank `to`, which must call `recv` at the same time."""
        self._broadcast_in(x, is_source=True, key=self._key_of_pair(self.rank, to), size=2)

    def recv(self, like: Any, source: int) -> Any:
        """Returns the tensor that the rank `source` sends. It must have the shape and dtype of
        `like`."""
        return self._broadcast_in(
            like, is_source=False, key=self._key_of_pair(source, self.rank), size=2
        )

    # the end

    def close(self) -> None:
        """Does nothing, because the cluster exists until the process ends."""

    def _arguments(self, key: int, size: int) -> dict[str, Any]:
        """Counts one more collective in the group with this key, and returns the arguments that every collective needs.
        `size` is the number of ranks in the group."""
        # counted for the process and not for the engine, because TensorFlow matches calls in
        # the cluster by this number, and the cluster stays when an engine is closed
        _calls[key] += 1
        instance = _calls[key]
        return {
            "group_size": size,
            "group_key": key,
            "instance_key": instance,
            "communication_hint": self._hint,
        }

    def _key_of_pair(self, source: int, to: int) -> int:
        """Returns the key of the group of two processes in which the rank `source` sends to the rank `to`."""
        # each pair of ranks has a different key for each direction
        return _KEY_OF_ALL + 1 + source * self.size + to

    def _broadcast_in(self, x: Any, is_source: bool, key: int, size: int) -> Any:
        """Broadcasts in the group with this key, which has `size` ranks. Returns, on every rank, the tensor of the rank
        that passes True as `is_source`. On the other ranks, only the shape and dtype of `x` are used."""
        with tf.device(self._native):
            sent, arguments = _encoded(x, self._moved_as), self._arguments(key, size)
            if is_source:
                result = tf.raw_ops.CollectiveBcastSendV2(input=sent, **arguments)
            else:
                result = tf.raw_ops.CollectiveBcastRecvV2(
                    shape=sent.shape, T=sent.dtype, **arguments
                )
            return self._wait_for(_decoded(result, x, self._moved_as))

    def _wait_for(self, result: Any) -> Any:
        """Returns the result of a collective. NCCL's calls return immediately, so with NCCL, this method waits until
        the result has been computed. The wait must be in this thread, which xdevice abandons if another process has
        died."""
        if self._hint == "nccl":
            tf.test.experimental.sync_devices()
        return result


def _for_nccl(table: Mapping[str, Encoding]) -> dict[str, Encoding]:
    """Returns a copy of a table of dtypes in which int64 replaces int32, because NCCL does not support int32."""
    wider = {
        dtype: (bits, "int64" if "int32" in (bits, cast_to) else cast_to)
        for dtype, (bits, cast_to) in table.items()
    }
    return {**wider, "int32": (None, "int64")}


def _encoded(x: Any, table: Mapping[str, Encoding]) -> Any:
    """Returns `x` in a dtype that TensorFlow can send or reduce, according to the table."""
    bits, cast_to = table.get(x.dtype.name, _UNCHANGED)
    x = x if bits is None else tf.bitcast(x, bits)
    return x if cast_to is None else tf.cast(x, cast_to)


def _decoded(result: Any, x: Any, table: Mapping[str, Encoding]) -> Any:
    """Returns the result of a collective in the dtype of `x`, by undoing the steps of `_encoded` in reverse order."""
    bits, cast_to = table.get(x.dtype.name, _UNCHANGED)
    result = result if cast_to is None else tf.cast(result, bits or x.dtype)
    return result if bits is None else tf.bitcast(result, x.dtype)


def _join_cluster(group: Group, name: str, is_started: bool) -> None:
    """Connects the ranks of a group to a TensorFlow cluster, unless an earlier group has
    already done so. `name` is "ring" or "nccl", and `is_started` says whether TensorFlow has
    already run anything in this process. Raises `LaunchError` if TensorFlow has already run on any rank."""
    own_address = address(group.host, free_port(group.host))
    is_ready = _cluster == [(group.rank, group.size)]
    answers = [
        text.split()
        for text in group.exchange(f"{int(is_ready)} {int(is_started)} {own_address}")
    ]
    # all ranks get the same answers, so either all return, all raise, or all continue
    if all(ready == "1" for ready, _, _ in answers):
        return
    started_ranks = [
        str(rank) for rank, (_, has_run, _) in enumerate(answers) if has_run == "1"
    ]
    if started_ranks:
        raise LaunchError(
            f"TensorFlow has already been used on rank {', '.join(started_ranks)}, but it can connect to other "
            f"processes only before it creates its first tensor; enter xdevice.distributed.processes() earlier, or "
            f"choose engine='torch:gloo'"
        )
    cluster = tf.train.ClusterSpec(
        {"worker": [rank_address for _, _, rank_address in answers]}
    ).as_cluster_def()
    _configure(
        _context(),
        collective_leader="/job:worker/replica:0/task:0",
        use_nccl_communication=name == "nccl",
        # this rank uses no devices of other ranks, as in MultiWorkerMirroredStrategy
        device_filters=(f"/job:worker/task:{group.rank}",),
    )
    _enable(
        _context(),
        tf.train.ServerDef(
            cluster=cluster,
            job_name="worker",
            task_index=group.rank,
            protocol="grpc",
            # without this configuration, the first collective hangs
            default_session_config=tf.__internal__.eager_context.get_config(),
        ),
    )
    tf.config.list_logical_devices()  # starts the runtime
    _cluster.append((group.rank, group.size))


class TensorflowProcesses(Processes):
    """Provides TensorFlow's engines, with which several processes exchange tensors."""

    _counts: dict[str, int]
    """The backend's cache of the numbers of devices."""

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that this process can use, the best engine first."""
        # the `virtual` GPUs are subtracted, because NCCL cannot use their memory, which is on the host
        return engine_names(
            self.count("gpu") - self.virtual if accelerators.IS_NVIDIA_OR_AMD else 0
        )

    def start_engine(self, name: str, group: Group) -> Engine:
        """Returns the engine for the ranks of a group, after all ranks have called this method. Raises `LaunchError` if
        TensorFlow has run on any rank before the ranks became a cluster. Raises `UnsupportedError` if this version of
        TensorFlow lacks a private name that this method needs."""
        private.require_names_for("several processes")
        engine = TensorflowEngine(name, group, self.to_native(group.device), is_started())
        # in the cluster, TensorFlow may list other GPUs, so they are counted again. The number
        # of virtual GPUs is set by the program
        if not self.virtual:
            self._counts.clear()
        return engine
