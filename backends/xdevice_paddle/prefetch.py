"""Copies for `xdevice.prefetch`, and iterates over Paddle's `DataLoader` so that the exceptions of its dataset are
raised in the loop over it.

Without workers, Paddle's loop would hang forever after an exception, so the loader's dataset, sampler and collation are
called here. With workers, a thread of the loader gets the exception and prints it, and Paddle's loop raises a
SystemError that says nothing. So the exception is kept, and raised instead. The threads and processes of a loader do
not end when the loop is left, but only when `close` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle
from paddle.io.dataloader import dataloader_iter as loaders

from xdevice.base import devices
from xdevice.contract.prefetch import Prefetch

from . import copying, staging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device


def _in_this_thread(loader: paddle.io.DataLoader) -> Iterator[Any]:
    plan = loaders._DataLoaderIterBase(loader)  # knows how the loader samples and collates, and starts no thread
    fetcher = loaders._DatasetKind.create_fetcher(
        plan._dataset_kind, plan._dataset, plan._auto_collate_batch, plan._collate_fn, plan._drop_last
    )
    for indices in plan._sampler_iter:
        try:
            batch = fetcher.fetch(indices)
        except StopIteration:  # an IterableDataset has ended
            return
        parts, structure = loaders._flatten_batch(batch)
        yield loaders._restore_batch([_as_tensor(part) for part in parts], structure)


def _as_tensor(part: Any) -> paddle.Tensor:
    return part if isinstance(part, paddle.Tensor) else paddle.to_tensor(part, place=paddle.CPUPlace())


class _Workers(loaders._DataLoaderIterMultiProcess):  # type: ignore[misc]
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
        self._try_shutdown_all()

    def _thread_loop(self, place: Any) -> None:
        try:
            super()._thread_loop(place)
        except Exception as error:  # otherwise the thread would print it
            self._error = error
        finally:
            if self._is_broken:
                super()._exit_thread_unexpectedly()

    def _exit_thread_unexpectedly(self) -> None:
        # killing the queue makes the loop raise at once, so `_thread_loop` does it after it has kept the exception
        self._is_broken = True
        self._thread_done_event.set()


class PaddlePrefetch(Prefetch):
    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def stage(self, x: Any, device: Device) -> paddle.Tensor:
        if self._gpu != "gpu":
            return self.copy(x, device) if isinstance(x, paddle.Tensor) else self.from_numpy(x, device)
        if isinstance(x, paddle.Tensor):
            if device is devices.CPU or self.device_of(x) is not devices.CPU or not x.is_dense() or not x.stop_gradient:
                return self.copy(x, device)
            staged = staging.to_gpu(x, self.to_native(device))
            if staged is not None:
                return staged
            pinned = copying.plain(x, paddle.CUDAPinnedPlace())
        else:
            if device is devices.CPU:
                return self.from_numpy(x, device)
            native = self.to_native(device)
            staged = staging.put(x, native, self.dtypes)
            if staged is not None:
                return staged
            bits = x.view("uint16") if x.dtype.name == "bfloat16" else x
            pinned = paddle.to_tensor(bits, place=paddle.CUDAPinnedPlace())
        # not blocking: Paddle keeps the pinned memory until the copy is done
        return paddle.Tensor._copy_to(pinned, self.to_native(device), False)

    def iterate(self, source: Any) -> Iterator[Any]:
        if not isinstance(source, paddle.io.DataLoader):
            return iter(source)
        return _Workers(source) if source.num_workers > 0 else _in_this_thread(source)
