"""`Stream` and `Event`, which order the work on a device, and measure how long work takes on the device.

This module checks the device and the backend with which a stream or an event is used. The frameworks do not check them:
with the wrong device, they report wrong times, or do not wait.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.devices import CPU, Device
from xdevice.containers import trees
from xdevice.core import registry, scopes, selection
from xdevice.errors import (
    DeviceError,
    DeviceMismatchError,
    NotATensorError,
    TimingError,
    UnsupportedError,
    shown,
)

if TYPE_CHECKING:
    from types import TracebackType

    from xdevice.contract import Backend

# the open blocks of `with stream:` of this thread or task
_entered: ContextVar[tuple[scopes.Block, ...]] = ContextVar("xdevice_streams", default=())


class Stream:
    """A queue of work on one device. The work in a stream runs in order, and concurrently with the work in the device's
    other streams.

    `with stream:` sends this thread's work on the stream's device to the stream. You must order everything else
    yourself. Call `wait` before a stream reads a tensor that another stream writes. Call `keep` before you drop your
    last reference to a tensor that a stream still uses. Creating a stream takes about 10 us on a GPU that is in use.

    | backend | a stream is | the block `with stream:` applies to |
    |---|---|---|
    | torch | `torch.cuda.Stream`, `torch.xpu.Stream` | this thread |
    | paddle | `paddle.device.Stream` | all threads: Paddle keeps one stream per GPU |
    | tensorflow, mxnet, jax | none: the framework orders its work itself | |
    | numpy | none: NumPy computes synchronously | |

    Args:
        device: any form that `xdevice.device` accepts. The default is the device of `with device:` or, outside such
            a block, the first GPU.

    Raises:
        UnsupportedError: if the backend has no streams, or no streams on that device. The error says what to use
            instead.
        DeviceNotFoundError, DeviceError: if the backend lacks the device; if `device` is not a device.

    Example:
        >>> try:
        ...     xdevice.accelerator.Stream("cpu")
        ... except xdevice.errors.UnsupportedError as error:
        ...     print("xdevice.parallel.run()" in str(error))
        True
    """

    def __init__(self, device: object = None) -> None:
        backend = selection.current()
        # if no device is named, the first GPU is preferred to cpu:0, which has no streams
        place = _default_device(backend) if device is None else devices.parse(device)
        place = backend.require(place)
        self._set_attributes(backend, place, backend.new_stream(place))

    @classmethod
    def current(cls, device: object = None) -> Stream:
        """Returns the stream to which this thread's work on a device goes now. The argument and the errors are the same
        as for `Stream`, except that the default is the device to which this thread's work goes."""
        backend = selection.current()
        return cls._current(
            backend, device_of_work(backend) if device is None else devices.parse(device)
        )

    @classmethod
    def _current(cls, backend: Backend, device: Device) -> Stream:
        """Returns a `Stream` for the framework's stream to which this thread's work on `device`
        goes now."""
        place = backend.require(device)
        # `__init__` would create a new stream
        stream = cls.__new__(cls)
        stream._set_attributes(backend, place, backend.current_stream(place))
        return stream

    def _set_attributes(self, backend: Backend, device: Device, native: Any) -> None:
        """Sets the attributes of a new stream. `native` is the framework's own stream."""
        self.backend = backend
        self.device = device
        self.native = native

    def __enter__(self) -> Stream:
        """Sends this thread's work on the stream's device to the stream. Blocks can be nested, and end even after an
        exception.

        Raises:
            ScopeError: if the block is exited in another thread or task, or if the task has waited (`await`) inside the
                block.
            UnsupportedError: if a different backend is selected, because its work cannot go to this stream.
            DeviceMismatchError: if the `with device:` around the block names another device.
        """
        # the block affects only work of the stream's own backend
        chosen = selection.current()
        if chosen is not self.backend:
            raise UnsupportedError(
                f"{self} cannot run the work of {chosen.name}, which is selected here; create the stream inside the "
                f"same xdevice.use_backend({chosen.name!r}), or enter it inside "
                f"xdevice.use_backend({self.backend.name!r})"
            )
        outer = scopes.current()
        if outer is not None and outer is not self.device:
            raise DeviceMismatchError(
                f"{self} was entered inside `with {outer}:`, but a stream of {self.device} does not run work on "
                f"{outer}; create a stream with xdevice.accelerator.Stream({str(outer)!r}), or end that block "
                f"first"
            )
        scopes.push(
            _entered, scopes.Block(self, lambda: self.backend.stream_scope(self.native))
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scopes.pop(_entered, self, exc)

    def wait(self, other: Stream | Event) -> None:
        """Makes later work of this stream wait for the work that is now in another stream, or for an event.

        The host does not wait. `other` may belong to another device.

        Raises:
            TimingError: if `other` is an event that was not recorded.
            DeviceError: if `other` is neither a stream nor an event. UnsupportedError: if `other` belongs to another
                backend.
        """
        if not isinstance(other, Stream | Event):
            raise DeviceError(
                f"a stream waits for a Stream or an Event of xdevice.accelerator, not for {shown(other)} of type "
                f"{type(other).__qualname__}; to make the host wait, call xdevice.sync(x)"
            )
        _check_same_backend(self, other)
        # in the frameworks, a stream can wait only for an event, so a new event marks the end of the other
        # stream's work
        event = (
            other._mark() if isinstance(other, Stream) else other._recorded_event("wait for")
        )
        self.backend.stream_wait(self.native, event)

    def sync(self) -> None:
        """Makes the host wait until the work that is now in this stream is done. `xdevice.sync(stream)` does the
        same."""
        self.backend.wait_event(self._mark())

    def _mark(self) -> Any:
        """Returns a new event of the framework. The event is recorded after the work that is now in this stream."""
        event = self.backend.new_event(self.device)
        self.backend.record(event, self.native)
        return event

    def keep(self, x: object) -> None:
        """Prevents the memory of tensors from being reused while this stream still uses the tensors.

        Call this method for tensors that were created on another stream and that this stream reads. The memory becomes
        free once nothing refers to the tensors any longer and the stream's work is done.

        Args:
            x: a tensor, or a container of tensors.

        Raises:
            DeviceMismatchError: if a tensor is not on the stream's device.
            UnsupportedError: if a tensor belongs to another backend. NotATensorError: if `x` contains no tensor.
        """
        # the tensors in an object of an unknown type would not be found below, so such an object is refused
        if registry.owner_and_kind(type(x)) is None:
            trees.tree_with_strangers(x).refuse_strangers()
        tensors = [leaf for leaf in trees.leaves(x) if _is_tensor(leaf.value)]
        if not tensors:
            raise NotATensorError(
                f"{shown(x)} of type {type(x).__qualname__} contains no tensor to keep; pass a tensor, or a container "
                f"of tensors"
            )
        # all tensors are checked before the first one is kept, so an error changes nothing
        for leaf in tensors:
            self._check_tensor(leaf.value, f"x{leaf.path}")
        for leaf in tensors:
            self.backend.keep_for(leaf.value, self.native)

    def _check_tensor(self, x: Any, name: str) -> None:
        """Raises `UnsupportedError` if the tensor `x` belongs to another backend than this
        stream, and `DeviceMismatchError` if it is on another device. `name` is the name of the tensor in the error."""
        owner = registry.owner_of(type(x))
        # every tensor belongs to a backend
        assert owner is not None
        if owner is not self.backend:
            raise UnsupportedError(
                f"{name} is a tensor of {owner.name}, but {self} accepts only tensors of its own backend; convert the "
                f"tensor with xdevice.convert(..., {self.backend.name!r})"
            )
        place = owner.device_of(x)
        if place is not self.device:
            raise DeviceMismatchError(
                f"{name} is on {place}, but {self} belongs to {self.device}; move the tensor with "
                f"xdevice.to_device(..., {str(self.device)!r}), "
                f"or create the stream with xdevice.accelerator.Stream({str(place)!r})"
            )

    def __repr__(self) -> str:
        return f"<xdevice stream of {self.backend.name} on {self.device}>"


class Event:
    """A point in a stream's work for which other work or the host can wait. The device's own clock measures the time
    between two events.

    | backend | an event is |
    |---|---|
    | torch | `torch.cuda.Event(enable_timing=True)`, `torch.xpu.Event` |
    | paddle | a CUDA event of the driver: Paddle's own events are made on the current GPU |
    | tensorflow, mxnet, jax, numpy | none: `xdevice.Timer` waits and reads the host's clock |

    Args:
        device: the device on which the event will be recorded. The default is the device of the first stream on which
            the event is recorded.

    Raises:
        UnsupportedError: if the backend has no events, or no events on that device, such as a virtual GPU. The error
            names an alternative. Raised when the event is created, even if no device is passed.

    Recording an event takes about 2 us.

    Example:
        >>> try:
        ...     xdevice.accelerator.Event("cpu")
        ... except xdevice.errors.UnsupportedError as error:
        ...     print("xdevice.Timer" in str(error))
        True
    """

    def __init__(self, device: object = None) -> None:
        self.backend = selection.current()
        self.device: Device | None = None
        self._native: Any = None
        # CUDA treats an event that was never recorded as having happened, so a wait would return at once
        self._recorded = False
        if device is not None:
            self._make(self.backend.require(devices.parse(device)))
        else:
            # raises the error if the backend has no events; the event gets its device when it is recorded
            self.backend.require_events(devices.of("gpu") if self.backend.count("gpu") else CPU)

    def _make(self, device: Device) -> None:
        """Creates the framework's own event, which belongs to one device."""
        self._native = self.backend.new_event(device)
        self.device = device

    def record(self, stream: Stream | None = None) -> Event:
        """Marks the end of the work that is now in a stream, and returns the event. Recording the event again moves the
        mark.

        Args:
            stream: the default is the stream to which this thread's work on the event's device goes now. If the event
                has no device yet, it gets the device of the innermost `with stream:`, else of `with device:`, else the
                only GPU.

        Raises:
            DeviceMismatchError: if the event and the stream belong to different devices.
            DeviceError: if `stream` is not a `Stream`, or is None although there are several GPUs and no block names
                one.
            UnsupportedError: if the stream belongs to another backend.
        """
        # the stream to which the next operation of this thread would go
        if stream is None:
            stream = Stream._current(self.backend, self.device or device_of_work(self.backend))
        elif not isinstance(stream, Stream):
            raise DeviceError(
                f"record() expects an xdevice.accelerator.Stream, not {shown(stream)} of type "
                f"{type(stream).__qualname__}; without an argument, it uses this thread's current stream"
            )
        _check_same_backend(self, stream)
        if self._native is None:
            # no device was named, so the event gets the device of the first stream
            self._make(stream.device)
        elif self.device is not stream.device:
            raise DeviceMismatchError(
                f"{self} belongs to {self.device} and cannot be recorded on {stream}; create a new "
                "xdevice.accelerator.Event()"
            )
        self.backend.record(self._native, stream.native)
        self._recorded = True
        return self

    def sync(self) -> None:
        """Makes the host wait until the event has happened. `xdevice.sync(event)` does the same.

        Raises:
            TimingError: if the event was not recorded.
        """
        self.backend.wait_event(self._recorded_event("wait for"))

    def elapsed(self, other: Event) -> float:
        """Returns the seconds of device time from this event to the event `other`. Waits until both events have
        happened.

        Raises:
            TimingError, DeviceError: if an event was not recorded; if `other` is not an `Event`.
            DeviceMismatchError: if the events are on different devices, whose clocks differ.
            UnsupportedError: if the events belong to different backends.
        """
        if not isinstance(other, Event):
            raise DeviceError(
                f"elapsed() expects the later Event, not {shown(other)} of type {type(other).__qualname__}"
            )
        start, end = self._recorded_event("time from"), other._recorded_event("time to")
        _check_same_backend(self, other)
        if self.device is not other.device:
            raise DeviceMismatchError(
                f"the events belong to {self.device} and {other.device}, whose clocks differ; record both on streams "
                f"of the same device, or time several devices with xdevice.Timer"
            )
        # CUDA raises an error if one of the events has not happened yet
        self.backend.wait_event(start)
        self.backend.wait_event(end)
        return self.backend.elapsed(start, end)

    def _recorded_event(self, verb: str) -> Any:
        """Returns the framework's own event. Raises `TimingError` if the event was not recorded; in the error, `verb`
        describes the attempted call."""
        if not self._recorded:
            raise TimingError(
                f"cannot {verb} {self}, because it has not been recorded; call its record() first"
            )
        return self._native

    def __repr__(self) -> str:
        where = f" on {self.device}" if self.device is not None else ""
        return f"<xdevice event of {self.backend.name}{where}>"


def _is_tensor(x: object) -> bool:
    """Whether `x` is a tensor, and not a symbol or a model."""
    owned = registry.owner_and_kind(type(x))
    return owned is not None and owned.kind == "tensor"


def _check_same_backend(first: Stream | Event, second: Stream | Event) -> None:
    """Raises `UnsupportedError` if `first` and `second`, each a stream or an event, belong to
    different backends."""
    if first.backend is not second.backend:
        raise UnsupportedError(
            f"{first} and {second} belong to different backends, so they cannot be used together; make the host wait "
            f"with xdevice.sync(...)"
        )


def _default_device(backend: Backend) -> Device:
    """Returns the device of a new stream for which the program names no device. This is the device of the innermost
    `with device:`, else the first GPU, else the CPU."""
    return scopes.current() or (devices.of("gpu") if backend.count("gpu") else CPU)


def device_of_work(backend: Backend) -> Device:
    """Returns the device to which this thread's work on the backend goes. This is the device of the innermost
    `with stream:`, else of `with device:`, else the only GPU, else the CPU. Raises `DeviceError` if there are several
    GPUs and no block names one of them."""
    # the key of each block is its stream; the innermost block comes last
    entered: list[Device] = [
        block.key.device for block in _entered.get() if block.key.backend is backend
    ]
    if entered:
        return entered[-1]
    outer = scopes.current()
    if outer is not None:
        return outer
    gpus = backend.count("gpu")
    # virtual GPUs have no streams, and the caller's next call raises an error that says so
    if gpus > 1 and not backend.virtual:
        raise DeviceError(
            f"there are {gpus} GPUs, but no GPU was chosen; call this inside a block such as `with xdevice.gpu(1):`"
        )
    return devices.of("gpu") if gpus else CPU
