"""`sync`: waits until asynchronous work is done."""

from __future__ import annotations

from typing import Any

from xdevice.base import devices
from xdevice.base.devices import Device
from xdevice.containers import trees
from xdevice.contract import Backend
from xdevice.core import registry, selection
from xdevice.tensors.contents import owned
from xdevice.tensors.refusals import refuse_non_container, symbol_error
from xdevice.tensors.unlisted import WholeModel


def sync(*targets: object) -> None:
    """Waits until work is done, and raises the errors of asynchronous work.

    Args:
        targets: the objects to wait for. Without arguments, `sync` waits for all work on all devices of the selected
            backend. For a backend, it waits for all work of that backend. For a device in any form, it waits for
            the selected backend's work on that device. For a `Stream`, it waits for the work that is now in the stream;
            for an `Event`, for the work before the event. For tensors, models and containers, it waits until their own
            backends have computed their values.

    | backend | waits by |
    |---|---|
    | torch | `torch.cuda.synchronize(i)` of each GPU in use; the CPU computes synchronously |
    | tensorflow | `tf.test.experimental.sync_devices()`, which is all devices |
    | mxnet | `mx.nd.waitall()`; `x.wait_to_read()` for a tensor; the CPU is asynchronous too |
    | paddle | `paddle.device.synchronize`; the CPU computes synchronously |
    | jax | a fence on each device and all live arrays; `block_until_ready` for a tensor |
    | numpy | computes synchronously: returns at once |

    Raises:
        DeviceNotFoundError, DeviceError: if a device does not exist; if a string does not name a device.
        NotATensorError, TimingError: if a target is of an unsupported type; if a target is an event that was not
            recorded.
        UnsupportedError: if a tensor is on a device that the backend does not know. Also the framework's own error, if
            the work has failed.

    Example:
        >>> xdevice.sync()
    """
    if not targets:
        # None: all devices, here and below
        selection.current().synchronize(None)
    for target in targets:
        _sync_one(target)


def _sync_one(target: Any) -> None:
    """Waits for `target`, one argument of `sync`. Raises the errors of `sync`."""
    # not `isinstance`, because an abstract class would hash the target's type, which a metaclass may
    # make unhashable. The backend is loaded by name, because `load` raises the error of a backend that
    # cannot work in a forked child
    if Backend in type(target).__mro__:
        registry.load(target.name).synchronize(None)
        return
    # a NumPy scalar is treated as an array, and any other object stays the same
    target = registry.as_array(target)
    backend_and_kind = registry.owner_and_kind(type(target))
    if backend_and_kind is not None:
        _sync_owned(*backend_and_kind, target)
        return
    is_named = isinstance(target, Device | str)
    # a framework's object that is neither a tensor nor a model nor a container can only be a device
    # object
    if is_named or (
        registry.owner_of(type(target)) is not None and not trees.is_container(target)
    ):
        backend = selection.current()
        backend.synchronize(backend.require(devices.parse(target)))
        return
    # imported here, because most programs use no streams
    from .streams import Event, Stream

    if isinstance(target, Stream | Event):
        target.sync()
        return
    # the target is a container, so each tensor and model in it is waited for
    refuse_non_container(target, "wait for")
    for backend, kind, x in owned(target):
        _sync_owned(backend, kind, x)


def _sync_owned(backend: Backend, kind: str, x: Any) -> None:
    """Waits until `x`, a tensor or a model, is computed. If the computation has failed, raises its error. Raises
    `UnsupportedError` for a symbol, which stands for a tensor while a function is traced, and has no values. `kind` is
    "tensor", "model" or "symbol"."""
    if kind == "symbol":
        raise symbol_error(backend, type(x).__qualname__)
    if kind == "tensor":
        backend.wait(x)
        return
    # waits for all work on the devices of the model, which is faster than a wait for each of its
    # variables
    for place in {place for _, place in WholeModel(backend, x).places()}:
        backend.synchronize(place)
