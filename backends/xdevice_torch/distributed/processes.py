"""Moves tensors between processes: by gloo if they are on the host, by NCCL if they are on
GPUs.

`TorchEngine` makes process groups of its own, without `init_process_group`, so that a program
can use `torch.distributed` as well; the module `native_group` makes the default one. gloo is
told the address to listen on, because otherwise it would look up the name of the host. The
store, in which the ranks find each other's addresses, gets a socket that already listens on
that address.

gloo sums eight dtypes. Tensors of other dtypes are converted to one of these before they are
summed, and tensors that are only moved are sent as bytes. torch 2.13 deprecates the flat
`reduce_scatter_tensor`, so the form with lists is used, which all versions have.
"""

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
"""The field of gloo's options with the timeout; NCCL's options have a field of the same
name."""
_copy_each = private.get("torch._foreach_copy_")
"""Copies many tensors in one kernel; None if this version of PyTorch lacks it."""
_STEP: Final = timedelta(seconds=0.1)
"""How long `is_done` waits at most, before the core checks whether a rank has failed."""
_DEADLINE: Final = timedelta(days=7)
"""The timeout that PyTorch is given. It is long, because xdevice's own control connection
notices lost ranks."""

_SUMMED_AS: Final = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
"""For each dtype that gloo or NCCL does not sum: the dtype in which its tensors are summed. A
sum of wider integers has the same low bits; a complex number is summed as a pair of floats. For
gloo this is reported in https://github.com/pytorch/pytorch/issues/89197 (bool),
https://github.com/pytorch/pytorch/issues/156632 (complex)."""
# PyTorch's names for the operations, not `ReduceOp.SUM` itself: a build of PyTorch without
# distributed has no ReduceOp
_OPS: Final = {"sum": "SUM", "mean": "AVG", "max": "MAX", "min": "MIN"}


def engine_names(has_gpus: bool) -> tuple[str, ...]:
    """Returns the names of the engines ("nccl", "gloo") that this build of PyTorch has, the
    best first."""
    if not dist.is_available():
        return ()
    nccl = ("nccl",) if has_gpus and dist.is_nccl_available() else ()
    return (*nccl, "gloo") if dist.is_gloo_available() else nccl


class TorchEngine(Engine):
    """Carries out the collectives of one process: by gloo for tensors on the host, and by NCCL
    for those on GPUs if `kind` is "nccl"."""

    in_steps = frozenset({"all_reduce", "broadcast", "all_gather", "reduce_scatter"})
    """The methods that wait in short steps. `send` and `recv` do not: to wait for them in
    steps, a timeout is needed, which would close gloo's connections."""

    def __init__(self, kind: str, group: Group, native: torch.device) -> None:
        """Connects this process with the others of `group`, which do the same at the same time.
        `kind` is "gloo" or "nccl", and `native` the device of this process."""
        super().__init__(f"torch:{kind}", group)
        # `_wait_until(is_done)` calls `is_done` until it returns True, and raises an error if
        # another rank fails meanwhile
        self._wait_until = group.wait
        options = _listening_at(group.host)
        self._store = store_of(group)
        self._gloo: Any = None
        self._nccl: Any = None
        self._last: Any = None
        """PyTorch's object for the last mean whose function, returned by `start_mean`, was
        called; None before. On a GPU only the stream has waited for that mean."""
        # both groups use the same store; the prefixes keep their addresses apart
        if kind == "nccl":
            torch.cuda.set_device(native)
            prefixed = _c10d.PrefixStore("nccl", self._store)
            nccl_options = dist.ProcessGroupNCCL.Options()
            _timeout.set(nccl_options, _DEADLINE)
            self._nccl = dist.ProcessGroupNCCL(prefixed, group.rank, group.size, nccl_options)
        # gloo is needed besides NCCL, for tensors on the host
        prefixed = _c10d.PrefixStore("gloo", self._store)
        self._gloo = dist.ProcessGroupGloo(prefixed, group.rank, group.size, options)

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why a collective cannot be done; None if it can. `verb` is the name of a
        method of this class, and `op` is "sum", "max", "min" or None."""
        if op in ("max", "min") and dtype == "uint64":
            return "uint64 is reduced as int64, in which values from 2**63 on are negative"
        return None

    def all_reduce(self, x: torch.Tensor, op: str) -> torch.Tensor:
        """Writes the "sum", "max" or "min" of the `x` of all ranks into `x`, and returns it."""
        buffer = self._buffer(x)
        self._wait(
            buffer, lambda group: group.allreduce([buffer], _options(dist.AllreduceOptions, op))
        )
        return _write_into(x, buffer)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        """Writes the `x` of the rank `root` into `x` on all ranks, and returns it."""
        buffer = self._bytes(x)
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._wait(buffer, lambda group: group.broadcast([buffer], options))
        return _write_into(x, buffer)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Returns the `x` of all ranks, in the order of the ranks, as new tensors."""
        buffer = self._bytes(x)
        parts = [torch.empty_like(buffer) for _ in range(self.size)]
        self._wait(buffer, lambda group: group.allgather([parts], [buffer]))
        return [_as_tensor_like(part, x) for part in parts]

    def reduce_scatter(self, x: torch.Tensor, op: str) -> torch.Tensor:
        """Returns this rank's part, along the first axis, of the result of `all_reduce`.
        The length of that axis is a multiple of the number of ranks."""
        buffer = self._buffer(x)
        parts = [part.contiguous() for part in buffer.chunk(self.size)]
        # the collective writes into tensors of the dtype that it sums, not into one like `x`
        new = torch.empty_like(parts[self.rank])
        self._wait(
            buffer,
            lambda group: group.reduce_scatter(
                [new], [parts], _options(dist.ReduceScatterOptions, op)
            ),
        )
        part = torch.empty(
            (x.shape[0] // self.size, *x.shape[1:]), dtype=x.dtype, device=x.device
        )
        return _write_into(part, new)

    def send(self, x: torch.Tensor, to: int) -> None:
        """Sends the bytes of `x` to the rank `to`, which calls `recv` at the same time."""
        buffer = self._bytes(x)
        # False: not in steps, for which `in_steps` gives the reason
        self._wait(buffer, lambda group: group.send([buffer], to, 0), False)

    def recv(self, like: torch.Tensor, source: int) -> torch.Tensor:
        """Writes the tensor that the rank `source` sends into `like`, and returns it."""
        buffer = self._bytes(like)
        # False: not in steps, as in `send`
        self._wait(buffer, lambda group: group.recv([buffer], source, 0), False)
        return _write_into(like, buffer)

    def start_mean(self, x: torch.Tensor, divisor: float) -> Callable[[], torch.Tensor]:
        """Starts to sum the `x` of all ranks. Returns a function that waits for the sum,
        divides it by `divisor` and returns it."""
        buffer = self._buffer(x)
        # NCCL's mean multiplies by 1 / size, which rounds as a division does only if size is a
        # power of two
        is_mean = buffer.is_cuda and divisor == self.size and self.size & (self.size - 1) == 0
        # True: the backward pass goes on while NCCL sums
        options = _options(dist.AllreduceOptions, "mean" if is_mean else "sum", True)
        if buffer.is_cuda:
            with torch.cuda.device(buffer.device):
                work = self._nccl.allreduce([buffer], options)
        else:
            work = self._gloo.allreduce([buffer], options)

        def wait() -> torch.Tensor:
            """Waits for the sum, for a GPU only in the GPU's stream, and returns the mean."""
            if buffer.is_cuda:
                with torch.cuda.device(buffer.device):
                    work.wait()  # only the stream waits, not the host
            else:
                self._wait_until(lambda seconds: is_done(work))
            self._last = work
            total = _write_into(x, buffer)
            return total if is_mean else self.over(total, divisor)

        return wait

    @torch.no_grad()
    def pack(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Returns the elements of the tensors, one tensor after the other, as one new
        vector."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    @torch.no_grad()
    def unpack(self, x: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
        """Writes the elements of `x`, a vector that `pack` has made of such tensors, into
        `tensors`. Returns True."""
        parts = x.split([tensor.numel() for tensor in tensors])
        shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        # one kernel for all tensors; it refuses lazy conjugates and negatives
        if _copy_each is not None and not any(
            tensor.is_conj() or tensor.is_neg() for tensor in tensors
        ):
            _copy_each(tensors, shaped)
            return True
        for tensor, part in zip(tensors, shaped, strict=True):
            tensor.copy_(part)
        return True

    def times(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Multiplies `x` by a number in place, and returns it."""
        return x.mul_(factor)

    def over(self, x: torch.Tensor, divisor: float) -> torch.Tensor:
        """Divides `x` by a number in place, and returns it."""
        return x.div_(divisor)

    def close(self) -> None:
        """Ends the process groups after success, on all ranks at the same time."""
        # otherwise NCCL would end before the last mean has been computed
        while self._last is not None and not self._last.is_completed():
            time.sleep(0.001)
        if self._nccl is not None:
            self._nccl.shutdown()
        self._gloo = self._nccl = None

    def abort(self) -> None:
        """Ends the calls in progress after a failure, without waiting for that."""
        group = self._nccl
        # in a thread, because NCCL's `abort` may wait for a kernel for ever; some versions lack
        # it
        if group is not None and hasattr(group, "abort"):
            threading.Thread(target=group.abort, daemon=True).start()

    # the tensors that gloo or NCCL are given

    def _wait(
        self, buffer: torch.Tensor, call: Callable[[Any], Any], in_steps: bool = True
    ) -> None:
        """Starts a collective by `call`, which gets the process group for `buffer` (NCCL's if
        `buffer` is on a GPU, otherwise gloo's), and waits until the collective has ended. With
        `in_steps`, waits in short steps, between which the core checks the other ranks;
        otherwise without a break, in a thread that may be left behind."""
        if buffer.is_cuda:
            self._wait_on_gpu(buffer, call, in_steps)
            return
        work = call(self._gloo)
        # `seconds` is not used: gloo waits in steps of its own length, `_STEP`
        if in_steps:
            self._wait_until(lambda seconds: is_done(work))
        else:
            work.wait()

    def _wait_on_gpu(
        self, buffer: torch.Tensor, call: Callable[[Any], Any], in_steps: bool
    ) -> None:
        """Does the work of `_wait` for a buffer on a GPU."""
        with torch.cuda.device(buffer.device):
            call(self._nccl).wait()  # only the stream waits; the host does below
            stream = torch.cuda.current_stream()
            if in_steps:
                self._wait_until(lambda seconds: _is_idle(stream, seconds))
            else:
                stream.synchronize()

    def _buffer(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` in a dtype that gloo and NCCL can sum, C-contiguous, without a copy where
        that is possible."""
        if x.dtype in _SUMMED_AS:
            # `view_as_real` raises for a lazy conjugate
            buffer = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
            # the bits of uint64 are read as int64, because a sum of int64 has the same bits
            # (`refusal` excludes max and min)
            if x.dtype is torch.uint64:
                buffer = x.view(torch.int64)
            return self._to_engine_device(buffer.to(_SUMMED_AS[x.dtype])).contiguous()
        return self._to_engine_device(x.resolve_neg()).contiguous()

    def _bytes(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the bytes of `x` in C order as a flat uint8 tensor, without a copy where that
        is possible."""
        # a lazy conjugate or negative is not in the memory, from which the bytes are taken
        if x.is_complex():
            x = x.resolve_conj()
        flat = self._to_engine_device(x.resolve_neg()).contiguous().reshape(-1)
        # a tensor of one element counts as contiguous with any stride, and `view` requires the
        # stride 1
        return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)

    def _to_engine_device(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x`; if `x` is on a GPU and the engine is not NCCL, a copy on the host."""
        return x if x.is_cpu or (x.is_cuda and self._nccl is not None) else x.cpu()


def is_done(work: Any) -> bool:
    """Waits up to 0.1 s for a call of gloo to end, and returns whether it has. Raises the error
    of the call."""
    try:
        work.wait(_STEP)
    except RuntimeError:
        # raised both if the call has failed and if it has not ended within the step
        if not work.is_completed():
            return False
        work.wait()  # the call has ended meanwhile: this raises its own error, if it has one
    return True


def _is_idle(stream: Any, seconds: float) -> bool:
    """Waits up to `seconds` until a stream is idle, and returns whether it is. Checks more
    often in the first millisecond, in which most calls end."""
    until = time.monotonic() + seconds
    while not stream.query():
        now = time.monotonic()
        if now > until:
            return False
        # in the first millisecond
        if until - now > seconds - 0.001:
            # lets other threads run; in Python 3.11 to 3.13 `sleep(0)` takes 65 us
            select.select((), (), (), 0)
        else:
            time.sleep(0.0002)
    return True


def _write_into(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Writes the result in `buffer` into `x`, unless `buffer` is in the memory of `x` already,
    and returns `x`."""
    # the devices are compared too, because memory of two devices may have the same address
    if buffer.data_ptr() == x.data_ptr() and buffer.device == x.device:
        if not x.is_inference():
            # so that a backward pass which needs the old values raises
            torch.autograd.graph.increment_version(x)
        return x
    return x.copy_(_as_tensor_like(buffer, x))


def _as_tensor_like(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the result in `buffer`, which `_buffer` or `_bytes` has made of a tensor like
    `x`, in the shape and dtype and on the device of `x`."""
    # the buffer has the bytes of the elements: it has more items than `x`, or `x` has elements
    # of one byte each
    if buffer.dtype is torch.uint8 and (buffer.numel() != x.numel() or x.itemsize == 1):
        buffer = buffer.view(x.dtype)
    elif x.is_complex():
        buffer = torch.view_as_complex(buffer)
    elif x.dtype is torch.uint64:
        buffer = buffer.view(torch.uint64)
    return buffer.to(x.device, x.dtype).reshape(x.shape)


@cache
def _options(cls: Any, op: str, goes_on: bool = False) -> Any:
    """Returns options of PyTorch's class `cls` for a reduction by `op`, such as "sum". With
    `goes_on`, the collective runs on a stream of NCCL while the current stream goes on
    computing."""
    options = cls()
    options.reduceOp = getattr(dist.ReduceOp, _OPS[op])
    # since 2.8 PyTorch calls NCCL on the current stream unless this is set; older versions lack
    # it
    if goes_on and hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options


def store_of(group: Group) -> Any:
    """Returns PyTorch's key-value store in which the ranks of `group` find each other's
    addresses. Rank 0 serves the store at a free port of its own address, and sends the
    address to the other ranks. All ranks call this at the same time."""
    sock = None
    if group.rank == 0:
        # only IPv6 addresses have colons
        family = socket.AF_INET6 if ":" in group.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.bind((group.host, 0))  # at port 0, which means any free one
        sock.listen(1024)
    # the first text is that of rank 0
    host, port = group.exchange(
        f"{group.host} {sock.getsockname()[1]}" if sock is not None else ""
    )[0].split()
    # False or True: whether this rank serves the store
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
    # in PyTorch 2.6, whose newer server (libuv) cannot take a socket over
    except NotImplementedError:
        return serve(use_libuv=False)


def _listening_at(host: str) -> Any:
    """Returns gloo's options: the address to listen at, and a timeout so long that xdevice's
    own comes first."""
    options = _Options()
    _devices.set(options, [dist.ProcessGroupGloo.create_device(hostname=host)])
    _timeout.set(options, _DEADLINE)
    return options
