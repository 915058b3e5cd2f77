"""Moves tensors between processes: with gloo if they are on the host, with NCCL if they are on GPUs.

`TorchEngine` creates its own process groups, without `init_process_group`, so that a program can also use
`torch.distributed`. The module `native_group` creates the default group. xdevice gives gloo the address to listen on,
because gloo would otherwise look up the host's name. The ranks find each other's addresses in a store. The store
receives a socket that already listens on the right address.

gloo can sum eight dtypes. Tensors of other dtypes are converted to one of these dtypes before they are summed. Tensors
that are not summed are sent as bytes. `reduce_scatter_tensor`, which works on flat tensors, is deprecated since torch
2.13. So this module uses the function for lists of tensors, which all versions have."""

from __future__ import annotations

import select
import socket
import threading
import time
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from xdevice.distributed.contract.processes import Engine
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.distributed.contract.processes import Group

_c10d: Any = dist
"""`torch.distributed`, typed as `Any`, because PyTorch's type hints lack some of its names."""
_Options: Any = private["torch.distributed.ProcessGroupGloo._Options"]
_devices = private.field("torch.distributed.ProcessGroupGloo._Options._devices")
_timeout = private.field("torch.distributed.ProcessGroupGloo._Options._timeout")
"""The field of gloo's options that contains the timeout; NCCL's options have a field of the same name."""
_copy_each = private.get("torch._foreach_copy_")
"""Copies many tensors in one kernel; None if this version of PyTorch lacks it."""
_WAIT_STEP: Final = timedelta(seconds=0.1)
"""The maximum time that `ends_within_step` waits before the core checks whether a rank has failed."""
_DEADLINE: Final = timedelta(days=7)
"""The timeout that is set in PyTorch. It is long, because xdevice's own control connection
detects lost ranks."""

_SUMMED_AS: Final = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
"""Maps each dtype that gloo or NCCL cannot sum to the dtype that is used for the sum instead. If integers are summed as
wider integers, the low bits of the sum are the same. A complex number is summed as a pair of floats. For gloo the
missing dtypes are reported in https://github.com/pytorch/pytorch/issues/89197 (bool) and
https://github.com/pytorch/pytorch/issues/156632 (complex)."""
# the names of PyTorch's operations instead of `ReduceOp.SUM` itself, because a build of PyTorch
# without torch.distributed has no ReduceOp
_OPS: Final = {"sum": "SUM", "mean": "AVG", "max": "MAX", "min": "MIN"}


def engine_names(has_gpus: bool) -> tuple[str, ...]:
    """Returns the names of the engines ("nccl", "gloo") that this build of PyTorch has, with
    the best first."""
    if not dist.is_available():
        return ()
    nccl = ("nccl",) if has_gpus and dist.is_nccl_available() else ()
    return (*nccl, "gloo") if dist.is_gloo_available() else nccl


class TorchEngine(Engine):
    """Carries out the collectives of one process: with NCCL for tensors on GPUs if `kind` is
    "nccl", and otherwise with gloo."""

    in_steps = frozenset({"all_reduce", "broadcast", "all_gather", "reduce_scatter"})
    """The methods that wait in short steps. `send` and `recv` are not among these methods:
    waiting for them in steps would need a timeout, which would close gloo's connections."""

    def __init__(self, kind: str, group: Group, native: torch.device) -> None:
        """Connects this process to the other processes of `group`, which do the same at the
        same time. `kind` is "gloo" or "nccl", and `native` is the device of this process."""
        super().__init__(f"torch:{kind}", group)
        # `_wait_until(ends_within_step)` calls `ends_within_step` until it returns True, and raises an error if
        # another rank fails in the meantime
        self._wait_until = group.wait
        gloo_options = _gloo_options(group.host)
        self._store = open_store(group)
        self._gloo: Any = None
        self._nccl: Any = None
        self._last: Any = None
        """PyTorch's object for the last mean that a function from `start_mean` has returned; None if there is none yet.
        On a GPU, only the stream has waited for this mean."""
        # both groups use the same store, in which the prefixes separate their addresses
        if kind == "nccl":
            torch.cuda.set_device(native)
            prefixed = _c10d.PrefixStore("nccl", self._store)
            nccl_options = dist.ProcessGroupNCCL.Options()
            _timeout.set(nccl_options, _DEADLINE)
            self._nccl = dist.ProcessGroupNCCL(prefixed, group.rank, group.size, nccl_options)
        # gloo is needed in addition to NCCL, for tensors on the host
        prefixed = _c10d.PrefixStore("gloo", self._store)
        self._gloo = dist.ProcessGroupGloo(prefixed, group.rank, group.size, gloo_options)

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why a collective is not supported, or None if it is supported. `verb` is the
        name of a method of this class, and `op` is "sum", "max", "min" or None."""
        if op in ("max", "min") and dtype == "uint64":
            return "uint64 is reduced as int64, which represents values of 2**63 or more as negative numbers"
        return None

    def all_reduce(self, x: torch.Tensor, op: str) -> torch.Tensor:
        """Writes the "sum", "max" or "min" of the tensors `x` of all ranks to `x`, and returns `x`."""
        buffer = self._buffer(x)
        self._run_and_wait(
            buffer,
            lambda group: group.allreduce([buffer], _reduce_options(dist.AllreduceOptions, op)),
        )
        return _write_into(x, buffer)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        """Writes the values of `x` on the rank `root` to `x` on all ranks, and returns `x`."""
        buffer = self._bytes(x)
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._run_and_wait(buffer, lambda group: group.broadcast([buffer], options))
        return _write_into(x, buffer)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensors `x` of all ranks, in the order of the ranks, as new tensors."""
        buffer = self._bytes(x)
        parts = [torch.empty_like(buffer) for _ in range(self.size)]
        self._run_and_wait(buffer, lambda group: group.allgather([parts], [buffer]))
        return [_as_tensor_like(part, x) for part in parts]

    def reduce_scatter(self, x: torch.Tensor, op: str) -> torch.Tensor:
        """Reduces the tensors `x` of all ranks as `all_reduce` does. Splits the result along the first axis into one
        part for each rank, and returns this rank's part. The length of the first axis is a multiple of the number of
        ranks."""
        buffer = self._buffer(x)
        parts = [part.contiguous() for part in buffer.chunk(self.size)]
        # the collective writes to a tensor of the dtype that it sums, which may differ from the
        # dtype of `x`
        reduced = torch.empty_like(parts[self.rank])
        self._run_and_wait(
            buffer,
            lambda group: group.reduce_scatter(
                [reduced], [parts], _reduce_options(dist.ReduceScatterOptions, op)
            ),
        )
        part = torch.empty(
            (x.shape[0] // self.size, *x.shape[1:]), dtype=x.dtype, device=x.device
        )
        return _write_into(part, reduced)

    def send(self, x: torch.Tensor, to: int) -> None:
        """Sends the bytes of `x` to the rank `to`, which calls `recv` at the same time."""
        buffer = self._bytes(x)
        # 0 is a tag, which is the same in `recv`. The docstring of `in_steps` says why this does not wait in
        # steps
        self._run_and_wait(buffer, lambda group: group.send([buffer], to, 0), in_steps=False)

    def recv(self, like: torch.Tensor, source: int) -> torch.Tensor:
        """Writes to `like` the tensor that the rank `source` sends, and returns `like`."""
        buffer = self._bytes(like)
        # the tag and the way of waiting are those of `send`
        self._run_and_wait(
            buffer, lambda group: group.recv([buffer], source, 0), in_steps=False
        )
        return _write_into(like, buffer)

    def start_mean(self, x: torch.Tensor, divisor: float) -> Callable[[], torch.Tensor]:
        """Starts to sum the tensors `x` of all ranks. Returns a function that waits for the
        sum, divides the sum by `divisor`, and returns the result."""
        buffer = self._buffer(x)
        # whether NCCL itself computes the mean. It multiplies by 1 / size, which gives the same
        # result as a division only if size is a power of two
        is_mean = buffer.is_cuda and divisor == self.size and self.size & (self.size - 1) == 0
        options = _reduce_options(dist.AllreduceOptions, "mean" if is_mean else "sum")
        if buffer.is_cuda:
            with torch.cuda.device(buffer.device):
                work = self._nccl.allreduce([buffer], options)
        else:
            work = self._gloo.allreduce([buffer], options)

        def wait() -> torch.Tensor:
            """Waits for the sum, and returns the mean. On a GPU, only the GPU's stream waits, not the host."""
            if buffer.is_cuda:
                with torch.cuda.device(buffer.device):
                    work.wait()  # only the stream waits, and not the host
            else:
                # `seconds` is ignored, as in `_run_and_wait`
                self._wait_until(lambda seconds: ends_within_step(work))
            self._last = work
            total = _write_into(x, buffer)
            return total if is_mean else self.over(total, divisor)

        return wait

    @torch.no_grad()
    def pack(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Returns a new vector with the elements of the tensors, one tensor after the other."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    @torch.no_grad()
    def unpack(self, x: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
        """Writes the elements of `x` to `tensors`. `x` is a vector like the result of `pack(tensors)`. Returns True,
        which tells the caller that all tensors are written."""
        parts = x.split([tensor.numel() for tensor in tensors])
        shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        # `_copy_each` runs one kernel for all tensors, but refuses lazy conjugates and negatives
        if _copy_each is not None and not any(
            tensor.is_conj() or tensor.is_neg() for tensor in tensors
        ):
            _copy_each(tensors, shaped)
            return True
        for tensor, part in zip(tensors, shaped, strict=True):
            tensor.copy_(part)
        return True

    def times(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Multiplies `x` by `factor` in place, and returns `x`."""
        return x.mul_(factor)

    def over(self, x: torch.Tensor, divisor: float) -> torch.Tensor:
        """Divides `x` by `divisor` in place, and returns `x`."""
        return x.div_(divisor)

    def close(self) -> None:
        """Ends the process groups after success, on all ranks at the same time."""
        # otherwise NCCL would be shut down before the last mean has been computed. This wait ends,
        # because after success every rank has started this mean
        while self._last is not None and not self._last.is_completed():
            time.sleep(0.001)
        if self._nccl is not None:
            self._nccl.shutdown()
        self._gloo = self._nccl = None

    def abort(self) -> None:
        """Aborts the calls in progress after a failure, without waiting for them to end."""
        group = self._nccl
        # in a thread, because NCCL's `abort` may wait for a kernel for ever; some versions lack `abort`
        if group is not None and hasattr(group, "abort"):
            threading.Thread(target=group.abort, daemon=True).start()

    # the tensors that are passed to gloo or NCCL

    def _run_and_wait(
        self, buffer: torch.Tensor, call: Callable[[Any], Any], in_steps: bool = True
    ) -> None:
        """Starts a collective and waits until it has ended. `call` starts the collective. Its argument is the process
        group for `buffer`: NCCL's if `buffer` is on a GPU, and otherwise gloo's. With `in_steps`, waits in short steps,
        and the core checks the other ranks after each step. Otherwise waits without interruption, in a thread that may
        be abandoned."""
        if buffer.is_cuda:
            self._run_and_wait_on_gpu(buffer, call, in_steps)
            return
        work = call(self._gloo)
        # `seconds` is ignored: `ends_within_step` waits in steps of a fixed length, `_WAIT_STEP`
        if in_steps:
            self._wait_until(lambda seconds: ends_within_step(work))
        else:
            work.wait()

    def _run_and_wait_on_gpu(
        self, buffer: torch.Tensor, call: Callable[[Any], Any], in_steps: bool
    ) -> None:
        """Does the work of `_run_and_wait` for a buffer on a GPU."""
        with torch.cuda.device(buffer.device):
            call(self._nccl).wait()  # only the stream waits; the host waits below
            stream = torch.cuda.current_stream()
            if in_steps:
                self._wait_until(lambda seconds: _becomes_idle(stream, seconds))
            else:
                stream.synchronize()

    def _buffer(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a C-contiguous tensor with the values of `x`, in a dtype that gloo and NCCL can sum. Copies `x` only
        if necessary."""
        if x.dtype in _SUMMED_AS:
            buffer = x
            if x.is_complex():
                # `view_as_real` raises an error for a lazy conjugate
                buffer = torch.view_as_real(x.resolve_conj())
            elif x.dtype is torch.uint64:
                # the bits of uint64 are interpreted as int64, because a sum of int64 has the same
                # bits (`refusal` excludes max and min)
                buffer = x.view(torch.int64)
            return self._to_engine_device(buffer.to(_SUMMED_AS[x.dtype])).contiguous()
        return self._to_engine_device(x.resolve_neg()).contiguous()

    def _bytes(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the bytes of `x` in C order as a flat uint8 tensor. Copies `x` only if necessary."""
        # the bytes are read from memory, which does not contain a lazy conjugate or negative
        if x.is_complex():
            x = x.resolve_conj()
        flat = self._to_engine_device(x.resolve_neg()).contiguous().reshape(-1)
        # a tensor of one element is considered contiguous with any stride, but `view` requires
        # the stride 1
        return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)

    def _to_engine_device(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x`, or a copy of `x` on the host if `x` is on a GPU and the engine is not NCCL."""
        return x if x.is_cpu or (x.is_cuda and self._nccl is not None) else x.cpu()


def ends_within_step(work: Any) -> bool:
    """Waits up to 0.1 s for a call of gloo to end, and returns whether it has ended. Raises the
    error of the call, if there is one."""
    try:
        work.wait(_WAIT_STEP)
    except RuntimeError:
        # raised if the call has failed, but also if it has not ended within the step
        if not work.is_completed():
            return False
        work.wait()  # the call has ended in the meantime: this raises its own error, if there is one
    return True


def _becomes_idle(stream: Any, seconds: float) -> bool:
    """Waits up to `seconds` until a stream is idle, and returns whether it is idle. Checks more
    often during the first millisecond, because most calls end within this time."""
    until = time.monotonic() + seconds
    while not stream.query():
        now = time.monotonic()
        if now > until:
            return False
        # in the first millisecond
        if until - now > seconds - 0.001:
            # lets other threads run; in Python 3.11 to 3.13, `sleep(0)` would take 65 us
            select.select((), (), (), 0)
        else:
            time.sleep(0.0002)
    return True


def _write_into(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Writes the result in `buffer` to `x`, unless `buffer` already uses the memory of `x`, and returns `x`."""
    # the devices are compared too, because the memory of two devices may have the same address
    if buffer.data_ptr() == x.data_ptr() and buffer.device == x.device:
        if not x.is_inference():
            # so that a backward pass that needs the old values raises an error
            torch.autograd.graph.increment_version(x)
        return x
    return x.copy_(_as_tensor_like(buffer, x))


def _as_tensor_like(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the result in `buffer` with the shape and dtype of `x`, on the device of `x`. `buffer` has the dtype and
    layout that `_buffer` or `_bytes` returns for a tensor like `x`."""
    # a uint8 buffer contains the bytes of the elements if it has more items than `x`, or if
    # each element of `x` is one byte
    if buffer.dtype is torch.uint8 and (buffer.numel() != x.numel() or x.itemsize == 1):
        buffer = buffer.view(x.dtype)
    elif x.is_complex():
        buffer = torch.view_as_complex(buffer)
    elif x.dtype is torch.uint64:
        buffer = buffer.view(torch.uint64)
    return buffer.to(x.device, x.dtype).reshape(x.shape)


@cache
def _reduce_options(cls: Any, op: str) -> Any:
    """Returns options of PyTorch's class `cls` for the reduction `op`, such as "sum". By the defaults of the other
    options, NCCL runs on a stream of its own while the current stream continues to compute."""
    options = cls()
    options.reduceOp = getattr(dist.ReduceOp, _OPS[op])
    return options


def open_store(group: Group) -> Any:
    """Returns PyTorch's key-value store, in which the ranks of `group` find each other's
    addresses. Rank 0 serves the store on a free port of its own address, and sends this address
    to the other ranks. All ranks call this at the same time."""
    sock = None
    if group.rank == 0:
        # only IPv6 addresses have colons
        family = socket.AF_INET6 if ":" in group.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.bind((group.host, 0))  # port 0 means any free port
        sock.listen(1024)  # the most connections that may wait to be accepted
    # the first of the exchanged strings is that of rank 0
    host, port = group.exchange(
        f"{group.host} {sock.getsockname()[1]}" if sock is not None else ""
    )[0].split()
    # the argument False or True tells whether this rank serves the store
    if sock is None:
        return _c10d.TCPStore(
            host, int(port), group.size, False, _DEADLINE, wait_for_workers=False
        )
    serve = partial(
        _c10d.TCPStore, host, int(port), group.size, True, _DEADLINE, wait_for_workers=False,
        master_listen_fd=sock.detach(),
    )  # fmt: skip
    try:
        return serve()
    # raised by PyTorch 2.6, whose newer server (libuv) cannot adopt a socket
    except NotImplementedError:
        return serve(use_libuv=False)


def _gloo_options(host: str) -> Any:
    """Returns gloo's options: the address on which gloo listens, and a timeout that is longer
    than xdevice's own timeout."""
    options = _Options()
    _devices.set(options, [dist.ProcessGroupGloo.create_device(hostname=host)])
    _timeout.set(options, _DEADLINE)
    return options
