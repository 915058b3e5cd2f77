"""Makes copies for `xdevice.prefetch`. Also iterates over Paddle's `DataLoader`, and raises exceptions of its dataset
in the program's loop.

Without workers, Paddle's loop would hang forever after an exception, so this module itself calls the loader's dataset,
sampler and collation. With workers, a thread of the loader receives the exception and prints it, and Paddle's loop
raises a SystemError without the exception's message. Therefore this module stores the exception, and raises it in place
of the SystemError. When the program leaves the loop, the threads and processes of a loader continue until `close` is
called.
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
_exit_thread = private[
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._exit_thread_unexpectedly"
]
_shut_down = private[
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._try_shutdown_all"
]
_done_event = private.field(
    "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess._thread_done_event"
)


def _in_this_thread(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yields the batches of a loader without workers, as tensors on the CPU. Errors of the dataset, the sampler or the
    collation are raised unchanged."""
    # if the loader has no collation, Paddle's own default is used
    collate = loader.collate_fn or (
        default_collate_fn if loader.auto_collate_batch else default_convert_fn
    )
    for samples in _samples(loader):
        yield _as_tensors(collate(samples))


def _samples(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yields the input of the loader's collation for each step. This is a list of samples, or a single sample if the
    loader does not combine samples into batches."""
    is_iterable = isinstance(loader.dataset, paddle.io.IterableDataset)
    if not loader.auto_collate_batch:
        if is_iterable:
            yield from loader.dataset
        else:
            yield from map(loader.dataset.__getitem__, range(len(loader.dataset)))
        return
    # None for a dataset that is read by indices
    samples = iter(loader.dataset) if is_iterable else None
    sampler: Any = loader.batch_sampler
    for indices in sampler:
        batch = (
            [loader.dataset[i] for i in indices]
            if samples is None
            else list(islice(samples, len(indices)))
        )
        # true at the end of an IterableDataset, whose sampler never ends; of its indices, only
        # their number is used
        if not batch or (loader.drop_last and len(batch) < len(indices)):
            return
        yield batch


def _as_tensors(batch: Any) -> Any:
    """Returns a batch with its NumPy arrays converted to tensors on the CPU, as in Paddle's own
    loop. Mappings become dicts, and other sequences become lists. Any other object is returned
    unchanged."""
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
    """The loader's own iterator, with one change: it stores the exception that stopped the loader's thread. It raises
    this exception in the program's loop in place of Paddle's SystemError."""

    _error: Exception | None = None
    # whether Paddle has called `_exit_thread_unexpectedly`, because the loader's thread has
    # failed
    _is_broken = False

    def __next__(self) -> Any:
        """Returns the next batch, or raises the stored exception."""
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
        """Replaces the method of Paddle that the loader's thread runs. Stores the exception, and then makes the
        program's loop raise it."""
        try:
            _thread_loop(self, place)
        # caught, because otherwise the thread would print the exception
        except Exception as error:
            self._error = error
        finally:
            if self._is_broken:
                _exit_thread(self)

    def _exit_thread_unexpectedly(self) -> None:
        """Replaces a method of Paddle that the loader's thread calls before it raises the exception. Records the call
        and ends the thread's loop, but does not close the queue of batches."""
        # Paddle's own method also closes the queue, and then the program's loop raises a
        # SystemError at once, before `_error` is set. Therefore `_thread_loop` calls Paddle's
        # method after it has stored the exception
        self._is_broken = True
        _done_event(self).set()


class PaddlePrefetch(Prefetch):
    """Copies batches to a device while the device computes."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def stage(self, x: Any, device: Device) -> paddle.Tensor:
        """Starts to copy a tensor or a NumPy array to a device, and returns the new tensor. A copy
        from the host to a CUDA GPU is made through the ring of pinned memory, or through Paddle's
        own pinned memory."""
        # only copies from the host to a CUDA GPU go through pinned memory
        goes_to_cuda = self._gpu == "gpu" and device is not devices.CPU
        if isinstance(x, paddle.Tensor):
            if not (
                goes_to_cuda
                and self.device_of(x) is devices.CPU
                and x.is_dense()
                # without `stop_gradient`, gradients must flow through the copy
                and x.stop_gradient
            ):
                return self.copy(x, device)
            # None if the tensor cannot be copied through the ring, for example because it is small;
            # then Paddle copies it to pinned memory
            staged = staging.to_gpu(x, self.to_native(device))
            if staged is not None:
                return staged
            pinned = copying.copied_without_gradient(x, paddle.CUDAPinnedPlace())
        else:
            if not goes_to_cuda:
                return self.from_numpy(x, device)
            staged = staging.put(x, self.to_native(device), self.dtypes)
            if staged is not None:
                return staged
            # Paddle reads an array of uint16 as bfloat16
            bits = x.view("uint16") if x.dtype.name == "bfloat16" else x
            pinned = paddle.to_tensor(bits, place=paddle.CUDAPinnedPlace())
        # not blocking, because Paddle keeps the pinned memory alive until the copy is done
        return copying.copy_to(pinned, self.to_native(device), is_blocking=False)

    def iterate(self, source: Any) -> Iterator[Any]:
        """Returns an iterator over `source`. If `source` is a `DataLoader`, errors in the user's
        code are raised unchanged in the loop over the iterator."""
        if not isinstance(source, paddle.io.DataLoader):
            return iter(source)
        if source.num_workers == 0:
            return _in_this_thread(source)
        private.require_names_for("data loaders")
        return _Workers(source)
