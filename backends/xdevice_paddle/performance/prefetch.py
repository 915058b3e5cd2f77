"""Copies for `xdevice.prefetch`, and iterates over Paddle's `DataLoader` so that the exceptions of its dataset are
raised in the loop over it.

Without workers, Paddle's loop would hang forever after an exception, so the loader's dataset, sampler and collation are
called here. With workers, a thread of the loader gets the exception and prints it, and Paddle's loop raises a
SystemError that says nothing. So the exception is kept, and raised instead. The threads and processes of a loader do
not end when the loop is left, but only when `close` is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn, default_convert_fn

from xdevice.base import devices
from xdevice.performance.contract.prefetch import Prefetch
from xdevice_paddle import copying, staging
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device


_ITERATOR = private["paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess"]
_thread_loop = private[
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._thread_loop"
]
_exit = private[
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._exit_thread_unexpectedly"
]
_shut_down = private[
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._try_shutdown_all"
]
_done = private.field(
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._thread_done_event"
)


def _in_this_thread(loader: paddle.io.DataLoader) -> Iterator[Any]:
    collate = loader.collate_fn or (
        default_collate_fn if loader.auto_collate_batch else default_convert_fn
    )
    for samples in _samples(loader):
        yield _as_tensors(collate(samples))


def _samples(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yields the data that the loader collates at each step: a list of samples, or one sample if it does not make
    batches."""
    is_iterable = isinstance(loader.dataset, paddle.io.IterableDataset)
    if not loader.auto_collate_batch:
        yield from (
            loader.dataset
            if is_iterable
            else map(loader.dataset.__getitem__, range(len(loader.dataset)))
        )
        return
    samples = iter(loader.dataset) if is_iterable else None
    sampler: Any = loader.batch_sampler
    for indices in sampler:
        batch = (
            [loader.dataset[i] for i in indices]
            if samples is None
            else list(islice(samples, len(indices)))
        )
        if not batch or (loader.drop_last and len(batch) < len(indices)):
            return  # an IterableDataset has ended
        yield batch


def _as_tensors(batch: Any) -> Any:
    if isinstance(batch, paddle.Tensor | np.ndarray):
        return (
            batch
            if isinstance(batch, paddle.Tensor)
            else paddle.to_tensor(batch, place=paddle.CPUPlace())
        )
    if isinstance(batch, Mapping):
        return {key: _as_tensors(value) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return [_as_tensors(value) for value in batch]
    return batch


class _Workers(_ITERATOR):  # type: ignore[misc, valid-type]
    """The loader's own iterator, changed so that it keeps the exception that stopped its thread, and raises that."""

    _error: Exception | None = None
    _is_broken = False

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except SystemError as error:
            if self._error is None:
                raise
            raise self._error from error

    def close(self) -> None:
        _shut_down(self)

    def _thread_loop(self, place: Any) -> None:
        try:
            _thread_loop(self, place)
        except Exception as error:  # otherwise the thread would print it
            self._error = error
        finally:
            if self._is_broken:
                _exit(self)

    def _exit_thread_unexpectedly(self) -> None:
        # killing the queue makes the loop raise at once, so `_thread_loop` does it after it has kept the exception
        self._is_broken = True
        _done(self).set()


class PaddlePrefetch(Prefetch):
    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def stage(self, x: Any, device: Device) -> paddle.Tensor:
        # only copies from the host to a CUDA GPU go through pinned memory
        goes_to_cuda = self._gpu == "gpu" and device is not devices.CPU
        if isinstance(x, paddle.Tensor):
            if not (
                goes_to_cuda
                and self.device_of(x) is devices.CPU
                and x.is_dense()
                and x.stop_gradient  # else a gradient has to flow through the copy
            ):
                return self.copy(x, device)
            # None if xdevice's ring of pinned memory does not take it, as a small one: then Paddle pins a copy of it
            staged = staging.to_gpu(x, self.to_native(device))
            if staged is not None:
                return staged
            pinned = copying.plain(x, paddle.CUDAPinnedPlace())
        else:
            if not goes_to_cuda:
                return self.from_numpy(x, device)
            staged = staging.put(x, self.to_native(device), self.dtypes)
            if staged is not None:
                return staged
            bits = x.view("uint16") if x.dtype.name == "bfloat16" else x
            pinned = paddle.to_tensor(bits, place=paddle.CUDAPinnedPlace())
        # not blocking: Paddle keeps the pinned memory until the copy is done
        return copying.copy_to(pinned, self.to_native(device), is_blocking=False)

    def iterate(self, source: Any) -> Iterator[Any]:
        if not isinstance(source, paddle.io.DataLoader):
            return iter(source)
        if source.num_workers == 0:
            return _in_this_thread(source)
        private.require("data loaders")
        return _Workers(source)
