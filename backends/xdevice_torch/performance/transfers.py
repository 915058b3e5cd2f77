"""Reports PyTorch's transfers: reads of tensors by the host, and copies between devices.

The host reads through methods of `torch.Tensor`, most of which are inherited from a C class that cannot be changed. So
the replacements that report a read are set on `torch.Tensor`. A dispatch mode reports copies between devices, and the
reads that C++ code makes, for example in `clip_grad_norm_`, in Adam's steps and for masks. Each thread enters this mode
separately.

A TorchFunctionMode would also receive most reads, but the dispatch mode would still be needed. A TorchFunctionMode
works only in one thread, even if other threads run with a copy of the context. It also makes torch.compile compile
functions again.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from xdevice.base.devices import CPU, of
from xdevice.contract.patching import Shared
from xdevice.errors import UnsupportedError
from xdevice.performance.contract.hooks import Hooks
from xdevice.performance.contract.transfers import Transfers
from xdevice_torch.modes import Mode, enter_mode
from xdevice_torch.private import READS, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives
    from xdevice.performance.contract.transfers import Transfer


_aten = torch.ops.aten
_READ_ONE = private["torch.ops.aten._local_scalar_dense"].default
"""The operation that reads one element, as `x.item()` and `if x:` do."""
_ONE_VALUE = {_READ_ONE, _aten.equal.default}
"""Operations that return one value to the host."""
_A_SIZE = {_aten.nonzero.default, _aten.masked_select.default}
"""Operations with a result whose shape depends on the values of the input. So the host must read the number of
elements."""
_COUNT_BYTES = 8
"""The size of the count that the host reads: an int64."""
_COPIES = {private["torch.ops.aten._to_copy"].default, _aten.copy_.default}
"""Operations that may copy between devices."""


_watched = Shared(per_thread=True)
"""The mode that reports transfers. A thread has only one such mode, even if several blocks are open in the thread,
because each additional mode would report every transfer again."""


class _Watch(Mode):
    """The dispatch mode that reports the transfers among the operations of its thread to `hooks`."""

    def __init__(self, backend: Primitives, hooks: Hooks) -> None:
        super().__init__()
        self._backend = backend
        self._hooks = hooks

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reports an operation if it is a transfer, then calls it."""
        kwargs = kwargs or {}
        if func in _ONE_VALUE or func in _A_SIZE or func in _COPIES:
            self._hooks.report(self._transfer(func, args, kwargs))
        return func(*args, **kwargs)

    def _transfer(self, func: Any, args: Any, kwargs: Any) -> Transfer | None:
        """Returns the record of the transfer that an operation makes, or None if the operation transfers nothing."""
        x = args[0]
        how = str(func).removesuffix(".default")
        # `a.copy_(b)` copies `b`, its second argument, to the device of `a`
        if func is _aten.copy_.default:
            return self._hooks.move(how, args[1], _named(self._backend, x.device))
        if func in _COPIES:
            # without a device, only the dtype or the layout changes
            native = kwargs.get("device")
            return (
                None
                if native is None
                else self._hooks.move(how, x, _named(self._backend, native))
            )
        read = self._hooks.read(how, x)
        if read is None:
            return None
        return read._replace(nbytes=x.element_size() if func is _READ_ONE else _COUNT_BYTES)


def _named(backend: Primitives, native: Any) -> Device | None:
    """Returns the `Device` that represents a `torch.device` in the record of a transfer, even if xdevice does not
    support this type of device. Returns None if `native` is not a device."""
    try:
        return backend.from_native(native)
    except UnsupportedError:
        return of(native.type, native.index or 0)


def _size(x: torch.Tensor) -> int:
    """Returns the size of a tensor's elements in bytes."""
    # not `nbytes`, which raises an error for sparse tensors
    return x.numel() * x.element_size()


_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep
"""The folder of PyTorch's own optimizers."""
_BELOW = ("torch", "xdevice", "xdevice_torch")
"""The packages whose functions may be on the call stack between an optimizer and a read."""


def _is_read_by_its_optimizer(x: torch.Tensor) -> bool:
    """Whether `x` is a number in the state of one of PyTorch's optimizers, and this optimizer is reading it. Such a
    number is the step counter of a parameter. The counter is on the host even if the parameter is on a GPU, so reading
    the counter is not a transfer."""
    # walks up the call stack as long as the code belongs to PyTorch or xdevice
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BELOW:
        if frame.f_code.co_filename.startswith(_OPTIMIZERS):
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.optim.Optimizer):
                return any(
                    x is value for state in owner.state.values() for value in state.values()
                )
        frame = frame.f_back
    return False


class TorchTransfers(Transfers):
    """The hook that reports reads by the host, and copies between devices."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        """A block in which `report` is called for each transfer that this thread makes."""
        private.require_names_for("transfers")

        # if one of these functions returns None, there is no transfer to report
        def source_of(x: torch.Tensor) -> Device | None:
            """Returns the device from which the host reads `x`, or None if the read must not be reported."""
            # a tensor on meta has no values to read
            if x.is_meta or (x.is_cpu and not x.ndim and _is_read_by_its_optimizer(x)):
                return None
            return _named(self, x.device)

        def target_of_to(x: torch.Tensor, *args: Any, **kwargs: Any) -> Device | None:
            """Returns the device to which `x.to(...)` moves `x`."""
            # the argument of `to` is a device (also as an index or a name), a dtype or another
            # tensor; for a dtype `_named` returns None
            argument: Any = args[0] if args else kwargs.get("device", kwargs.get("other"))
            if isinstance(argument, torch.Tensor):
                return _named(self, argument.device)
            return _named(
                self, torch.device(argument) if type(argument) in (int, str) else argument
            )

        def target_of_cuda(
            x: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any
        ) -> Device | None:
            """Returns the device to which `x.cuda(...)`, or the same method for another accelerator, moves `x`."""
            return target_of_to(x, self._gpu if device is None else device)

        with Hooks(self, report, _size, source_of) as hooks:
            # records transfers by xdevice's own functions under the names that the program calls
            hooks.verbs()
            hooks.reads(torch.Tensor, *READS)
            hooks.moves(torch.Tensor, "to", target_of_to)
            # `x.copy_(y)` moves `y`, the argument with the number 1, to the device of `x`
            hooks.moves(
                torch.Tensor, "copy_", lambda x, *args, **kwargs: _named(self, x.device), at=1
            )
            hooks.moves(torch.Tensor, "cpu", lambda x, *args, **kwargs: CPU)
            # every build has `cuda` and `xpu`, which raise an error if there is no such device;
            # an accelerator of another vendor has its own method
            for name in dict.fromkeys(("cuda", "xpu", self._gpu)):
                if hasattr(torch.Tensor, name):
                    hooks.moves(torch.Tensor, name, target_of_cuda)
            with _watched.on(lambda: enter_mode(_Watch(self, hooks))):
                yield
