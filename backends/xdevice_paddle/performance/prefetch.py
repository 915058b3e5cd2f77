"""Copies for `xdevice.prefetch`, and iterates over Paddle's `DataLoader` so that the exceptions of its dataset are
raised in the loop over it.

Without workers, Paddle's loop would hang forever after an exception, so the loader's dataset,
sampler and collation are called here. With workers, a thread of the loader gets the exception
and prints it, and Paddle's loop raises a SystemError without its text. So the exception is
kept, and raised instead. The threads and processes of a loader do not end when the program
leaves the loop, but only when `close` is called.
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
    """Yields the batches of a loader without workers, as tensors on the CPU. Errors of the
    dataset, the sampler and the collation are raised unchanged."""
    # Paddle's own defaults
    collate = loader.collate_fn or (
        default_collate_fn if loader.auto_collate_batch else default_convert_fn
    )
    for samples in _samples(loader):
        yield _as_tensors(collate(samples))


def _samples(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yields the input of the loader's collation at each step: a list of samples, or one sample
    if the loader does not make batches."""
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
        # an IterableDataset has ended: its sampler's indices never end, and only their number
        # counts
        if not batch or (loader.drop_last and len(batch) < len(indices)):
            return
        yield batch


def _as_tensors(batch: Any) -> Any:
    """Returns a batch with its NumPy arrays as tensors on the CPU, as Paddle's own loop does:
    mappings become dicts, and other sequences lists. Anything else is returned unchanged."""
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
    """The loader's own iterator, changed so that it keeps the exception that stopped its
    thread, and raises it in the loop instead of Paddle's SystemError."""

    _error: Exception | None = None
    # whether Paddle has called `_exit_thread_unexpectedly`, because the loader's thread has
    # failed
    _is_broken = False

    def __next__(self) -> Any:
        """Returns the next batch, or raises the kept exception."""
        try:
            return super().__next__()
        except SystemError as error:
            # None if the SystemError has another cause
            if self._error is None:
                raise
            raise self._error from error

    def close(self) -> None:
        """Ends the loader's threads and processes."""
        _shut_down(self)

    def _thread_loop(self, place: Any) -> None:
        """Replaces Paddle's method, which the loader's thread runs: keeps the exception, and
        then makes the loop raise it."""
        try:
            _thread_loop(self, place)
        # otherwise the thread would print it
        except Exception as error:
            self._error = error
        finally:
            if self._is_broken:
                _exit(self)

    def _exit_thread_unexpectedly(self) -> None:
        """Replaces Paddle's method, which the loader's thread calls before it raises the
        exception: notes the call and ends the thread's loop, but does not close the queue of
        batches."""
        # Paddle's own method also closes the queue, and then the program's loop raises a
        # SystemError at once, before `_error` is set. So `_thread_loop` calls Paddle's method,
        # once it has the exception
        self._is_broken = True
        _done(self).set()


class PaddlePrefetch(Prefetch):
    """Batches that are copied to a device while it computes."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def stage(self, x: Any, device: Device) -> paddle.Tensor:
        """Begins to copy a tensor or a NumPy array to a device, and returns the new tensor. A
        copy from the host to CUDA goes through the ring of pinned memory, or through Paddle's
        own pinned memory."""
        # only copies from the host to a CUDA GPU go through pinned memory
        goes_to_cuda = self._gpu == "gpu" and device is not devices.CPU
        if isinstance(x, paddle.Tensor):
            if not (
                goes_to_cuda
                and self.device_of(x) is devices.CPU
                and x.is_dense()
                # otherwise gradients must flow through the copy
                and x.stop_gradient
            ):
                return self.copy(x, device)
            # None if xdevice's ring of pinned memory does not take the tensor, such as a small
            # one: then Paddle copies it to pinned memory
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
            # Paddle takes an array of uint16 for bfloat16
            bits = x.view("uint16") if x.dtype.name == "bfloat16" else x
            pinned = paddle.to_tensor(bits, place=paddle.CUDAPinnedPlace())
        # not blocking: Paddle keeps the pinned memory until the copy is done
        return copying.copy_to(pinned, self.to_native(device), is_blocking=False)

    def iterate(self, source: Any) -> Iterator[Any]:
        """Returns an iterator over `source`. If that is a `DataLoader`, the iterator raises the
        errors of the user's code unchanged."""
        if not isinstance(source, paddle.io.DataLoader):
            return iter(source)
        if source.num_workers == 0:
            return _in_this_thread(source)
        private.require("data loaders")
        return _Workers(source)
