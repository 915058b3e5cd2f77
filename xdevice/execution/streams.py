"""`Stream` and `Event`: say which work on a device waits for which other work, and how long work took on the device.

The device and the backend with which a stream or an event is used are checked here. The
frameworks do not check them; with a wrong one they report wrong times, or do not wait.
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
    """A queue of work on one device. Its work runs in order, and concurrently with that of the device's other streams.

    `with stream:` sends this thread's work on the stream's device to the stream. You must order everything else
    yourself. Before a stream reads a tensor that another stream writes, call `wait`. Before you drop your last
    reference to a tensor that a stream still uses, call `keep`. Costs about 10 us on a GPU that is in use.

    | backend | a stream is | the block `with stream:` applies to |
    |---|---|---|
    | torch | `torch.cuda.Stream`, `torch.xpu.Stream` | this thread |
    | paddle | `paddle.device.Stream` | all threads: Paddle keeps one stream per GPU |
    | tensorflow, mxnet, jax | none: the framework orders its work itself | |
    | numpy | none: NumPy computes synchronously | |

    Args:
        device: any spelling that `xdevice.device` takes; by default that of `with device:`,
            else the first GPU.

    Raises:
        UnsupportedError: if the backend has no streams, or none on that device; the error names what to use instead.
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
        # without a name, the first GPU comes before cpu:0, which has no streams
        place = _default_device(backend) if device is None else devices.parse(device)
        place = backend.require(place)
        self._set_attributes(backend, place, backend.new_stream(place))

    @classmethod
    def current(cls, device: object = None) -> Stream:
        """Returns the stream to which this thread's work on a device goes now. Arguments and
        errors are those of `Stream`."""
        backend = selection.current()
        return cls._current(
            backend, device_of_work(backend) if device is None else devices.parse(device)
        )

    @classmethod
    def _current(cls, backend: Backend, device: Device) -> Stream:
        """Returns a `Stream` for the framework's stream to which this thread's work on `device`
        goes now."""
        place = backend.require(device)
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
            ScopeError: if the block is exited in another thread or task, or if its task has waited inside it.
            UnsupportedError: if another backend is selected, whose work cannot go to this stream.
            DeviceMismatchError: if the `with device:` around the block names another device.
        """
        # the block has an effect only on work of the stream's own backend
        chosen = selection.current()
        if chosen is not self.backend:
            raise UnsupportedError(
                f"{self} cannot hold the work of {chosen.name}, which is selected here; make the stream inside the "
                f"same xdevice.use_backend({chosen.name!r}), or enter it inside "
                f"xdevice.use_backend({self.backend.name!r})"
            )
        outer = scopes.current()
        if outer is not None and outer is not self.device:
            raise DeviceMismatchError(
                f"{self} was entered inside `with {outer}:`, but work on {outer} does not go to a stream of "
                f"{self.device}; make one with xdevice.accelerator.Stream({str(outer)!r}), or end that block first"
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
        """Makes later work of this stream wait for the work that is in another stream now, or
        for an event.

        The host does not wait. `other` may be of another device.

        Raises:
            TimingError: if `other` is an event that was not recorded.
            DeviceError: if `other` is neither a stream nor an event. UnsupportedError: if it is of another backend.
        """
        if not isinstance(other, Stream | Event):
            raise DeviceError(
                f"a stream waits for a Stream or an Event of xdevice.accelerator, not for {shown(other)} of type "
                f"{type(other).__qualname__}; to make the host wait, call xdevice.sync(x)"
            )
        _check_same_backend(self, other)
        # frameworks let streams wait for events only, so a new event marks the end of the other
        # stream's work
        event = (
            other._mark() if isinstance(other, Stream) else other._recorded_event("wait for")
        )
        self.backend.stream_wait(self.native, event)

    def sync(self) -> None:
        """Makes the host wait until the work that is in this stream now is done.
        `xdevice.sync(stream)` is the same."""
        self.backend.wait_event(self._mark())

    def _mark(self) -> Any:
        """Returns a new event of the framework, recorded after the work that is in this stream
        now."""
        event = self.backend.new_event(self.device)
        self.backend.record(event, self.native)
        return event

    def keep(self, x: object) -> None:
        """Keeps the memory of tensors from being reused while this stream still uses them.

        Call it for tensors that another stream made and this stream reads. The memory becomes free once nothing refers
        to the tensors any more and the stream's work is done.

        Args:
            x: a tensor, or a container of tensors.

        Raises:
            DeviceMismatchError: if a tensor is not on the stream's device.
            UnsupportedError: if a tensor is of another backend. NotATensorError: if `x` holds no tensor.
        """
        if registry.kind_of(type(x)) is None:
            trees.searched(x).refuse_strangers()
        tensors = [leaf for leaf in trees.leaves(x) if _is_tensor(leaf.value)]
        if not tensors:
            raise NotATensorError(
                f"{shown(x)} of type {type(x).__qualname__} holds no tensor to keep; pass a tensor or a container"
            )
        # all are checked before the first one is kept, so an error changes nothing
        for leaf in tensors:
            self._check(leaf.value, f"x{leaf.path}")
        for leaf in tensors:
            self.backend.keep_for(leaf.value, self.native)

    def _check(self, x: Any, name: str) -> None:
        """Raises `UnsupportedError` if the tensor `x` belongs to another backend than this
        stream, and `DeviceMismatchError` if it is on another device. `name` is what the error
        calls the tensor."""
        owner = registry.owner_of(type(x))
        assert owner is not None
        if owner is not self.backend:
            raise UnsupportedError(
                f"{name} is a tensor of {owner.name}, but {self} takes only tensors of its own backend; convert it"
            )
        place = owner.device_of(x)
        if place is not self.device:
            raise DeviceMismatchError(
                f"{name} is on {place}, but {self} belongs to {self.device}; move the tensor with "
                f"xdevice.to_device(..., {str(self.device)!r}), "
                f"or make the stream with xdevice.accelerator.Stream({str(place)!r})"
            )

    def __repr__(self) -> str:
        return f"<xdevice stream of {self.backend.name} on {self.device}>"


class Event:
    """A point in a stream's work that can be waited for; the device's own clock measures the time between two events.

    | backend | an event is |
    |---|---|
    | torch | `torch.cuda.Event(enable_timing=True)`, `torch.xpu.Event` |
    | paddle | a CUDA event of the driver: Paddle's own are made on whatever GPU is current |
    | tensorflow, mxnet, jax, numpy | none: `xdevice.Timer` waits and reads the host's clock |

    Args:
        device: where the event will be recorded; by default the device of the first stream on
            which it is recorded.

    Raises:
        UnsupportedError: if the backend has no events, or none on that device, such as a virtual GPU; the error names
            an alternative. Raised when the event is made, even if no device is given.

    Costs about 2 us to record.

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
        # CUDA treats an event that was never recorded as one that has happened, so a wait would
        # return at once
        self._recorded = False
        if device is not None:
            self._make(self.backend.require(devices.parse(device)))
        else:
            # raises the error if there are no events; the event gets its device when it is
            # recorded
            self.backend.require_events(devices.of("gpu") if self.backend.count("gpu") else CPU)

    def _make(self, device: Device) -> None:
        """Makes the framework's own event, which belongs to one device."""
        self._native = self.backend.new_event(device)
        self.device = device

    def record(self, stream: Stream | None = None) -> Event:
        """Marks the point that the work of a stream has reached, and returns the event. Recording it again moves the
        mark.

        Args:
            stream: by default the stream to which this thread's work goes now, on the event's
                device; if it has none yet, on the device of the innermost `with stream:`, else
                of `with device:`, else on the only GPU.

        Raises:
            DeviceMismatchError: if the event belongs to a different device than the stream.
            DeviceError: if `stream` is not a `Stream`, or is None while several GPUs could be meant.
            UnsupportedError: if the stream is of another backend.
        """
        # the stream to which the next operation of this thread would go
        if stream is None:
            stream = Stream._current(self.backend, self.device or device_of_work(self.backend))
        elif not isinstance(stream, Stream):
            raise DeviceError(
                f"record() takes an xdevice.accelerator.Stream, not {shown(stream)} of type "
                f"{type(stream).__qualname__}; without an argument, it uses this thread's current stream"
            )
        _check_same_backend(self, stream)
        if self._native is None:
            # no device was named, so the event gets the device of the first stream
            self._make(stream.device)
        elif self.device is not stream.device:
            raise DeviceMismatchError(
                f"{self} belongs to {self.device} and cannot be recorded on {stream}; make a new "
                "xdevice.accelerator.Event()"
            )
        self.backend.record(self._native, stream.native)
        self._recorded = True
        return self

    def sync(self) -> None:
        """Makes the host wait until the event has happened. `xdevice.sync(event)` is the same.

        Raises:
            TimingError: if the event was not recorded.
        """
        self.backend.wait_event(self._recorded_event("wait for"))

    def elapsed(self, other: Event) -> float:
        """Returns the seconds of device time from this event to the other one. Waits until both
        have happened.

        Raises:
            TimingError, DeviceError: if an event was not recorded; if `other` is not an `Event`.
            DeviceMismatchError: if the events are on two devices, whose clocks differ.
            UnsupportedError: if the events are of two backends.
        """
        if not isinstance(other, Event):
            raise DeviceError(
                f"elapsed() takes the later Event, not {shown(other)} of type {type(other).__qualname__}"
            )
        start, end = self._recorded_event("time from"), other._recorded_event("time to")
        _check_same_backend(self, other)
        if self.device is not other.device:
            raise DeviceMismatchError(
                f"the events belong to {self.device} and {other.device}, whose clocks differ; record both on streams "
                f"of one device, or time several devices with xdevice.Timer"
            )
        # CUDA raises an error if one of the events has not happened yet
        self.backend.wait_event(start)
        self.backend.wait_event(end)
        return self.backend.elapsed(start, end)

    def _recorded_event(self, verb: str) -> Any:
        """Returns the framework's own event. Raises `TimingError` if the event was not
        recorded; `verb` names the attempted call in the error."""
        if not self._recorded:
            raise TimingError(
                f"cannot {verb} {self}, because it has not been recorded; call its record() first"
            )
        return self._native

    def __repr__(self) -> str:
        where = f" on {self.device}" if self.device is not None else ""
        return f"<xdevice event of {self.backend.name}{where}>"


def _is_tensor(x: object) -> bool:
    """Whether `x` is a tensor, not a symbol or a model."""
    owned = registry.kind_of(type(x))
    return owned is not None and owned.kind == "tensor"


def _check_same_backend(first: Stream | Event, second: Stream | Event) -> None:
    """Raises `UnsupportedError` if `first` and `second`, each a stream or an event, belong to
    different backends."""
    if first.backend is not second.backend:
        raise UnsupportedError(
            f"{first} and {second} belong to different backends, so neither can use the other; make the host wait with "
            f"xdevice.sync(...)"
        )


def _default_device(backend: Backend) -> Device:
    """Returns the device of a new stream if the program names none: that of the innermost `with
    device:`, else the first GPU, else the CPU."""
    return scopes.current() or (devices.of("gpu") if backend.count("gpu") else CPU)


def device_of_work(backend: Backend) -> Device:
    """Returns the device to which this thread's work on the backend goes: that of the innermost
    `with stream:`, else of `with device:`, else the only GPU, else the CPU. Raises
    `DeviceError` if there are several GPUs and no block names one of them."""
    entered: list[Device] = [
        block.key.device for block in _entered.get() if block.key.backend is backend
    ]
    if entered:
        return entered[-1]
    outer = scopes.current()
    if outer is not None:
        return outer
    gpus = backend.count("gpu")
    # virtual GPUs have no streams, and the caller's next call raises the better error
    if gpus > 1 and not backend.virtual:
        raise DeviceError(
            f"there are {gpus} GPUs, but none was chosen; do this inside a block such as `with xdevice.gpu(1):`"
        )
    return devices.of("gpu") if gpus else CPU
