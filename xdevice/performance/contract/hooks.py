"""Hooks: functions put in place of a framework's own, through which `Backend.watch` notices each transfer. They are set
while a block is open, shared by overlapping blocks, and removed afterwards.

A hook is called in all threads, so it first checks whether its own thread or task is listening (`listening`). While a
transfer that was reported is in progress, it is not listening: the reads inside it are part of that transfer (a single
print makes many).
"""

from __future__ import annotations

import copy
import sys
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.devices import CPU
from xdevice.contract.patching import Patches, listening, lock
from xdevice.errors import UnsupportedError

from .transfers import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives

    Describe = Callable[[tuple[Any, ...], dict[str, Any]], "Transfer | None"]

_NAMES: Final = {"__repr__": "print", "__str__": "print"}
_readers: Final[list[Hooks]] = []
"""The `Hooks` of open blocks for backends whose tensors NumPy reads by itself. They share one hook on NumPy."""


class Hooks(Patches):
    """The hooks of one backend for one block: `with Hooks(backend, report, size) as hooks: hooks.reads(...)`.

    `size` returns the bytes of a tensor. `place` returns its device, or None if reading the tensor is not a transfer;
    the default is `backend.device_of`. Overlapping blocks share a hook, which calls the `report` of the block that set
    it first, so all blocks have to pass the same `report`. Names that this version of a framework does not have are
    skipped.
    """

    def __init__(
        self,
        backend: Primitives,
        report: Callable[[Transfer], None],
        size: Callable[[Any], int],
        place: Callable[[Any], Device | None] | None = None,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._report = report
        self._size = size
        self._place = place or backend.device_of
        # asked at every call of a hook, and classes are few
        self._tensors: dict[type, bool] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        with lock:
            if self in _readers:
                _readers.remove(self)

    def reads(self, owner: Any, *names: str, how: str | None = None) -> None:
        """Sets hooks on methods and properties of `owner` by which the host reads the tensor that they are called on.
        `how` is what a report calls the read; left out, it is the method's name. A read by a method with an underscore
        in front, as Python calls for `float(x)`, counts as implicit."""
        for name in names:
            label = how or _NAMES.get(name) or name.strip("_")
            describe = self._pickled if name == "__reduce_ex__" else self._read_first
            self.calls(owner, name, partial(describe, label, not name.startswith("_")))

    def moves(
        self,
        owner: Any,
        name: str,
        target: Callable[..., Device | None],
        how: str | None = None,
        at: int = 0,
    ) -> None:
        """Sets a hook on a function that explicitly moves its argument number `at` to another device. `target` gets the
        arguments of the function and returns that device, or None if the call moves nothing."""
        label = how or name.strip("_")

        def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transfer | None:
            return (
                self.move(label, args[at], target(*args, **kwargs), explicit=True)
                if at < len(args)
                else None
            )

        self.calls(owner, name, describe)

    def verbs(self) -> None:
        """Sets hooks on the backend's own `move`, `copy` and `to_numpy`, so that what xdevice does is reported, too."""
        self.moves(self._backend, "move", lambda x, device: device, how="to_device")
        self.moves(self._backend, "copy", lambda x, device: device, how="copy_to")
        self.reads(self._backend, "to_numpy")

    def numpy_reads(self) -> None:
        """Sets hooks on `np.asarray` and `np.array`, which read a tensor on the host without calling any method of
        it."""
        import numpy

        with lock:
            _readers.append(self)
        for name in ("asarray", "array"):
            self.calls(numpy, name, partial(_read_by_numpy, name))

    def read(self, how: str, x: Any, *, explicit: bool = False) -> Transfer | None:
        """Returns a record of the read of a tensor by the host; None if `x` is not a tensor with values."""
        source = self._source(x)
        return (
            None
            if source is None
            else self.transfer("read", how, source, CPU, self._size(x), explicit)
        )

    def move(
        self, how: str, x: Any, target: Device | None, *, explicit: bool = False
    ) -> Transfer | None:
        """Returns a record of the move of a tensor to a device; None if the tensor is on that device already."""
        source = self._source(x)
        if source is None or target is None or source is target:
            return None
        return self.transfer("move", how, source, target, self._size(x), explicit)

    def transfer(
        self,
        kind: Any,
        how: str,
        source: Device,
        destination: Device,
        nbytes: int,
        explicit: bool = False,
    ) -> Transfer:
        physical = source.kind != "cpu" or destination.kind != "cpu"
        return Transfer(
            self._backend.name, kind, how, source, destination, nbytes, physical, explicit
        )

    def report(self, transfer: Transfer | None) -> None:
        """Reports a transfer that was noticed without a hook, if this thread or task is listening."""
        if transfer is not None and listening.get():
            self._report(transfer)

    def _pickled(
        self, how: str, explicit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Transfer | None:
        """Returns a record of pickling a tensor; None for `copy.copy`, which calls the same method and reads no
        values."""
        return (
            None if sys._getframe(2).f_code is copy.copy.__code__ else self.read(how, args[0])
        )

    def _read_first(
        self, how: str, explicit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Transfer | None:
        return self.read(how, args[0], explicit=explicit)

    def _source(self, x: Any) -> Device | None:
        if not self._is_tensor(type(x)):
            return None
        try:
            return self._place(x)
        except UnsupportedError:  # a symbol, or a tensor on several devices
            return None

    def _is_tensor(self, cls: type) -> bool:
        is_tensor = self._tensors.get(cls)
        if is_tensor is None:
            # the name alone tells most classes apart, without importing or asking the backend
            roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
            is_ours = not roots.isdisjoint(self._backend.modules)
            is_tensor = self._tensors[cls] = is_ours and self._backend.classify(cls) == "tensor"
        return is_tensor

    def calls(self, owner: Any, name: str, describe: Describe) -> None:
        """Sets a hook on a function or property. `describe` gets the arguments of each call, and returns a record of
        the transfer that the call makes, or None if it makes none."""
        if not hasattr(owner, name):
            return

        def make(original: Any) -> Any:
            # such as JAX's `_value`
            if isinstance(original, property):
                return property(
                    self._hook(original.fget, describe),
                    original.fset,
                    original.fdel,
                    original.__doc__,
                )
            return self._hook(original, describe)

        self.replace(owner, name, make)

    def _hook(self, original: Any, describe: Describe) -> Any:
        """The function that replaces `original`: in a thread that listens, it reports the transfer and then calls
        `original`."""
        report = self._report

        @wraps(original)
        def hook(*args: Any, **kwargs: Any) -> Any:
            if not listening.get():
                return original(*args, **kwargs)
            token = listening.set(False)  # describing a tensor must not be taken for a transfer
            try:
                transfer = describe(args, kwargs)
            finally:
                listening.reset(token)
            if transfer is None:
                return original(*args, **kwargs)
            report(transfer)
            token = listening.set(False)
            try:
                return original(*args, **kwargs)
            finally:
                listening.reset(token)

        return hook


def _read_by_numpy(how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transfer | None:
    """The record of a read by `numpy.asarray` or `numpy.array`, of the first block to whose backend the tensor
    belongs."""
    if not args:
        return None
    for reader in tuple(_readers):
        transfer = reader.read(how, args[0])
        if transfer is not None:
            return transfer
    return None
