"""Hooks: functions that replace functions of a framework, so that `Backend.watch` notices each transfer. Hooks are
installed while a block is open, shared by overlapping blocks, and removed afterwards.

A hook is called in all threads, so it first checks whether its own thread or task is listening (`listening`). While a
reported transfer is in progress, the thread is not listening: reads inside a transfer are part of it (a single `print`
causes many reads).
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

_LABELS: Final = {"__repr__": "print", "__str__": "print"}
"""The names that records use for reads by these methods. For any other method, records use the method's name without
underscores."""
_readers: Final[list[Hooks]] = []
"""The `Hooks` of the open blocks that have called `numpy_reads`. These blocks share a hook on `np.asarray`."""


class Hooks(Patches):
    """The hooks of one backend for one block: `with Hooks(backend, report, size) as hooks: hooks.reads(...)`.

    `report` is called with a record of each transfer. `size` returns the size of a tensor in bytes. `place` returns a
    tensor's device, or None if reading the tensor is not a transfer; the default is `backend.device_of`. Overlapping
    blocks share a hook, which calls the `report` of the block that installed it. Therefore, all blocks must pass the
    same `report`. Names that this version of a framework does not have are skipped.
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
        # caches whether a class is a type of tensors, because every call of a hook needs to know this
        self._tensors: dict[type, bool] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        with lock:
            if self in _readers:
                _readers.remove(self)

    def reads(self, owner: Any, *names: str, how: str | None = None) -> None:
        """Sets hooks on methods and properties of `owner`, such as "item", with which the host reads a tensor. Records
        call the read by `how` or, without this argument, by the name of the method. A read by a method whose name
        begins with an underscore, such as `__float__`, is implicit."""
        for name in names:
            label = how or _LABELS.get(name) or name.strip("_")
            # this method is called both by pickling and by `copy.copy`
            describe = (
                self._describe_pickling if name == "__reduce_ex__" else self._describe_read
            )
            is_explicit = not name.startswith("_")
            self.calls(owner, name, partial(describe, label, is_explicit))

    def moves(
        self,
        owner: Any,
        name: str,
        target: Callable[..., Device | None],
        how: str | None = None,
        at: int = 0,
    ) -> None:
        """Sets a hook on the function `name` of `owner`. This function explicitly moves its positional argument with
        the index `at` to another device. `target` is called with the function's arguments and returns that device, or
        None if the call moves nothing. Records call the move by `how` or, without this argument, by the name of the
        function."""
        label = how or name.strip("_")

        def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transfer | None:
            """Returns the record of a call of the function; None if the call moves nothing."""
            # a call with too few arguments moves nothing: the framework raises its own error
            return (
                self.move(label, args[at], target(*args, **kwargs), explicit=True)
                if at < len(args)
                else None
            )

        self.calls(owner, name, describe)

    def verbs(self) -> None:
        """Sets hooks on the backend's own methods `move`, `copy` and `to_numpy`, so that transfers by xdevice's
        functions are reported, too, under the names of these functions."""
        self.moves(self._backend, "move", lambda x, device: device, how="to_device")
        self.moves(self._backend, "copy", lambda x, device: device, how="copy_to")
        self.reads(self._backend, "to_numpy")

    def numpy_reads(self) -> None:
        """Sets hooks on `np.asarray` and `np.array`, for frameworks whose tensors NumPy reads
        without calling a method of the tensor."""
        import numpy

        # locked, because blocks may be opened in several threads
        with lock:
            _readers.append(self)
        for name in ("asarray", "array"):
            self.calls(numpy, name, partial(_describe_numpy_read, name))

    def read(self, how: str, x: Any, *, explicit: bool = False) -> Transfer | None:
        """Returns a record of a read of `x` by the host. `how` is the name of the call that causes the read. `explicit`
        is True if the name of the call says that the call reads values; see `Transfer.explicit`. Returns None if `x` is
        not a tensor with values on one device, or if reading `x` is not a transfer."""
        source = self._source(x)
        return (
            None
            if source is None
            else self.transfer("read", how, source, CPU, self._size(x), explicit)
        )

    def move(
        self, how: str, x: Any, target: Device | None, *, explicit: bool = False
    ) -> Transfer | None:
        """Returns a record of a move of `x` to the device `target`. `how` is the name of the call that causes the move.
        `explicit` is True if the name of the call says that the call moves a tensor; see `Transfer.explicit`. Returns
        None if `x` is not a tensor on one device, if `x` is on `target` already, or if `target` is None."""
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
        """Returns a record of a transfer of `nbytes` by this backend from `source` to `destination`. `kind` is "read"
        or "move", and `how` is the name of the call that causes the transfer. `explicit` is True if the name of the
        call says that the call transfers values; see `Transfer.explicit`."""
        # nothing is moved if source and destination are both the CPU
        physical = source.kind != "cpu" or destination.kind != "cpu"
        return Transfer(
            self._backend.name, kind, how, source, destination, nbytes, physical, explicit
        )

    def report(self, transfer: Transfer | None) -> None:
        """Reports a transfer that an adapter has noticed without a hook, if this thread or task
        is listening. Does nothing for None."""
        if transfer is not None and listening.get():
            self._report(transfer)

    def _describe_pickling(
        self, how: str, explicit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Transfer | None:
        """Describes a call of `__reduce_ex__`. Returns a record if pickle reads the tensor. Returns None for
        `copy.copy`, which calls the same method but reads no values. `explicit` is ignored, because pickle reads the
        tensor implicitly; it exists so that this method is called like `_describe_read`."""
        # frame 0 is this function, frame 1 the hook, and frame 2 the code that called the
        # method
        return (
            None if sys._getframe(2).f_code is copy.copy.__code__ else self.read(how, args[0])
        )

    def _describe_read(
        self, how: str, explicit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Transfer | None:
        """Describes a call of a method that reads its tensor. Returns a record, or None if the read is not a
        transfer."""
        return self.read(how, args[0], explicit=explicit)

    def _source(self, x: Any) -> Device | None:
        """Returns the device from which `x` is transferred. Returns None if `x` is not a tensor of this backend, or if
        reading `x` is not a transfer."""
        if not self._is_tensor(type(x)):
            return None
        try:
            return self._place(x)
        # `x` is a symbol, or a tensor on several devices
        except UnsupportedError:
            return None

    def _is_tensor(self, cls: type) -> bool:
        """Whether the objects of a class are tensors of this backend."""
        is_tensor = self._tensors.get(cls)
        if is_tensor is None:
            # the backend need not classify a class that inherits nothing from the framework's
            # modules
            roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
            is_ours = not roots.isdisjoint(self._backend.modules)
            is_tensor = self._tensors[cls] = is_ours and self._backend.classify(cls) == "tensor"
        return is_tensor

    def calls(self, owner: Any, name: str, describe: Describe) -> None:
        """Sets a hook on the function or property `name` of `owner`. `describe` is called with the positional and the
        keyword arguments of each call. It returns a record of the transfer that the call causes, or None if the call
        transfers nothing."""
        # this version of the framework lacks the function or property
        if not hasattr(owner, name):
            return

        def make(original: Any) -> Any:
            """Returns the replacement of `original`, a function or a property."""
            # a property, such as JAX's `_value`
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
        """Returns the function that replaces `original`. In a thread or task that is listening, the function reports
        the transfer before it calls `original`; in others, it only calls `original`. If `report` raises an error,
        `original` is not called."""
        report = self._report

        @wraps(original)
        def hook(*args: Any, **kwargs: Any) -> Any:
            """Replaces `original`: reports the transfer, and then calls `original`."""
            if not listening.get():
                return original(*args, **kwargs)
            # `describe` uses the tensor, which must not be recorded as a transfer
            token = listening.set(False)
            try:
                transfer = describe(args, kwargs)
            finally:
                listening.reset(token)
            if transfer is None:
                return original(*args, **kwargs)
            report(transfer)
            # the framework's own reads and copies inside the call are part of this transfer
            token = listening.set(False)
            try:
                return original(*args, **kwargs)
            finally:
                listening.reset(token)

        return hook


def _describe_numpy_read(
    how: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Transfer | None:
    """Describes a call of `numpy.asarray` or `numpy.array`. Returns a record of the read if the argument is a tensor of
    a backend in `_readers`, and otherwise None."""
    # without arguments, NumPy itself raises an error
    if not args:
        return None
    for reader in tuple(_readers):
        transfer = reader.read(how, args[0])
        if transfer is not None:
            return transfer
    return None
