"""`Timer`, `Benchmark` and `measure`, which time asynchronous work. All of them wait for the devices before they read a
clock."""

from __future__ import annotations

from itertools import accumulate
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from xdevice.base import devices as spellings
from xdevice.base.devices import Device
from xdevice.core import selection
from xdevice.errors import ArgumentError, DeviceError, TimingError, UnsupportedError, shown

from .calls import refuse_generator_function
from .waiting import sync

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE_WAIT = 2e-4
"""The maximum number of seconds that a wait for an idle device takes, even on a busy machine."""
_MISSED_SHARE = 0.05
"""The largest share of the measured time during which the device may be busy with streams that the events do not cover.
If the share is larger, the host's clock is used instead."""


class Timer:
    """A stopwatch for asynchronous work, which waits for the devices before each reading. A new timer is already
    running.

    Args:
        devices: the work to wait for: a device in any form, or a list of arguments for `xdevice.sync` (devices,
            backends, tensors, streams). The default is all devices of the backend that is selected at the time of the
            reading.

    Raises:
        DeviceNotFoundError, DeviceError: if a device does not exist; if a string names no device.
            Also the framework's own error if the work has failed.

    A reading takes 1 us in addition to the wait.

    Example:
        >>> timer = xdevice.Timer()
        >>> y = xdevice.ones(2, 3)
        >>> timer.stop() == timer.times[-1] == timer.sum()
        True
    """

    def __init__(self, devices: object = None) -> None:
        self.times: list[float] = []
        """The seconds from each `start` to the following `stop`."""
        self._targets = _targets(devices)
        self._started: float | None = None
        self.start()

    def start(self) -> None:
        """Waits for the devices, and starts the timer. Restarts a timer that is already running."""
        sync(*self._targets)
        self._started = perf_counter()

    def stop(self) -> float:
        """Waits for the devices, and records the seconds since `start`. Returns the recorded time.

        Raises:
            TimingError: if the timer is not running, because it was already stopped.
        """
        if self._started is None:
            raise TimingError(
                "this timer is not running; call start() first. The earlier times are in timer.times"
            )
        sync(*self._targets)
        self.times.append(perf_counter() - self._started)
        # a second `stop` raises an error
        self._started = None
        return self.times[-1]

    def avg(self) -> float:
        """Returns the mean of the recorded times, in seconds.

        Raises:
            TimingError: if there are no times yet.
        """
        if not self.times:
            raise TimingError("this timer has recorded no times to average; call stop() first")
        return sum(self.times) / len(self.times)

    def sum(self) -> float:
        """Returns the sum of the recorded times, in seconds."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Returns the running sums of the recorded times, in seconds: the first time, the sum of the first two times,
        and so on."""
        return list(accumulate(self.times))


class Benchmark:
    """Prints how long a block takes, including its asynchronous work: `Run on GPU1: 0.2001 sec`.

    After the block, the time is in the attribute `seconds`. Blocks can be nested, and a benchmark may be entered again.
    If the block raises an error, nothing is printed.

    Args:
        description: the text before the time.
        devices: the work to wait for, as in `Timer`.

    Raises:
        DeviceNotFoundError, DeviceError: if a device does not exist; if a string names no device.
            Also the framework's own error if the work has failed.

    Example:
        >>> with xdevice.Benchmark("Run on CPU"):
        ...     y = xdevice.ones(2, 3)
        Run on CPU: 0... sec
    """

    def __init__(self, description: str = "Done", devices: object = None) -> None:
        self.description = description
        self.seconds: float | None = None
        self._targets = _targets(devices)
        self._running: list[Timer] = []

    def __enter__(self) -> Benchmark:
        # `_running` is a list, because a benchmark may be entered again inside its own block. `or None`,
        # because `Timer` refuses an empty tuple, and None means all devices
        self._running.append(Timer(self._targets or None))
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if not self._running:
            raise TimingError(
                f"the benchmark {self.description!r} is not running; use it as `with Benchmark(...):`"
            )
        timer = self._running.pop()
        # a block that has raised an error has not done all its work
        if exc_type is None:
            self.seconds = timer.stop()
            print(f"{self.description}: {self.seconds:.4f} sec")


class Measurement(NamedTuple):
    """The result of `measure`, with all times in seconds."""

    median: float
    spread: float
    """The interquartile range of the times, which contains the middle half of the times. 0 if there is only one
    time."""
    times: tuple[float, ...]
    """The time of each repeat, in order."""
    clock: Literal["device", "host"]
    """The clock that was used: the device's clock, which events read, or the host's clock."""

    def __str__(self) -> str:
        count = f"{len(self.times)} time" + "s" * (len(self.times) > 1)
        return (
            f"{self.median:.4g} sec, spread {self.spread:.2g} sec ({count}, {self.clock} clock)"
        )

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks, with rounded times."""
        rows = {
            "median": self.median,
            "spread": self.spread,
            "least": min(self.times),
            "most": max(self.times),
        }
        cells = "".join(
            f"<tr><th>{name}</th><td>{seconds:.4g} s</td></tr>"
            for name, seconds in rows.items()
        )
        return f"<table>{cells}</table><p>{len(self.times)} times, {self.clock} clock</p>"


def measure(
    fn: Callable[..., Any],
    *args: Any,
    warmup: int = 3,
    repeats: int = 10,
    devices: object = None,
) -> Measurement:
    """Measures how long `fn(*args)` takes, including asynchronous work. Returns the median and spread of the repeats.

    Experimental: it may change in a minor version.

    If a single GPU is timed and the backend has events, each repeat consists of these steps: wait, record an event,
    call `fn(*args)`, record another event, wait. The GPU's own clock then measures the time between the two events.
    Otherwise the steps are: wait, read the host's clock, call `fn(*args)`, wait, read the host's clock again. A single
    GPU is timed if `devices` names only that GPU, or if `devices` is omitted and there is only one GPU. Events cover
    only one stream: if `fn` leaves work on other streams, everything is measured again with the host's clock.

    Args:
        fn: called with `args`: `warmup` times, then `repeats` times. Its result is kept alive until the clock is read.
        warmup: the number of calls that are not measured. The first calls load kernels and fill caches.
        repeats: the number of calls that are measured.
        devices: the work to wait for, as in `Timer`.

    Raises:
        ArgumentError: if `fn` is not callable, or uses `yield` or `async`; if `warmup` is not an int of at least 0; if
            `repeats` is not an int of at least 1. Also `DeviceNotFoundError` and `DeviceError` as in `sync`, and the
            errors of `fn` and its work.

    Example:
        >>> found = xdevice.measure(lambda: xdevice.ones(2, 3), repeats=5)
        >>> len(found.times), found.median >= 0
        (5, True)
    """
    if not callable(fn):
        raise ArgumentError(
            f"measure() expects a function to call, not {fn!r:.100}: write measure(f, x), not measure(f(x))"
        )
    refuse_generator_function("measure", fn)
    _check_count("warmup", warmup, least=0)
    _check_count("repeats", repeats, least=1)
    targets = _targets(devices)
    # these calls wait like the repeats, because the first wait is slow too
    for _ in range(warmup):
        _time_once(fn, args, targets)
    # an event belongs to a single GPU, so the host's clock is read if several devices are timed
    gpu = _only_gpu(targets)
    measured = _measure_by_events(fn, args, targets, repeats, gpu) if gpu is not None else None
    if measured is not None:
        return measured
    sync(*targets)
    return _summary([_time_once(fn, args, targets) for _ in range(repeats)], clock="host")


def _time_once(
    fn: Callable[..., Any], args: tuple[Any, ...], targets: tuple[object, ...]
) -> float:
    """Returns the number of seconds that one call of `fn` and its asynchronous work take, measured with the host's
    clock. `targets` are the arguments with which `sync` waits for that work. The device must be idle before the
    call."""
    started = perf_counter()
    # kept alive until the wait is over, because JAX cannot wait for an array to which nothing refers
    result = fn(*args)
    sync(*targets)
    seconds = perf_counter() - started
    # deleted after the clock was read, because freeing a large result takes time too
    del result
    return seconds


def _measure_by_events(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    targets: tuple[object, ...],
    repeats: int,
    gpu: Device,
) -> Measurement | None:
    """Measures `repeats` calls of `fn` with events of `gpu`, and returns the times. `targets` are the arguments with
    which `sync` waits for the work of the calls. Returns None if events cannot measure the calls, because the backend
    has no events, or because `fn` also uses other streams."""
    # imported here, because most programs use no events
    from .streams import Event

    try:
        start, end = Event(gpu), Event(gpu)
    except UnsupportedError:
        return None
    times = []
    for _ in range(repeats):
        # the device must be idle before the first event
        sync(*targets)
        start.record()
        result = fn(*args)
        end.record()
        times.append(start.elapsed(end))
        # both events have happened, so if the device is still busy, it is busy with other streams
        before = perf_counter()
        sync(*targets)
        waited = perf_counter() - before
        # deleted after the clock was read, as in `_time_once`
        del result
        if waited > _IDLE_WAIT + _MISSED_SHARE * times[-1]:
            return None
    return _summary(times, clock="device")


def _summary(times: list[float], clock: Literal["device", "host"]) -> Measurement:
    """Returns the `Measurement` of these times, which were measured by `clock`."""
    # `quantiles` needs two times; a single time is used as all three quartiles
    low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return Measurement(median(times), spread=high - low, times=tuple(times), clock=clock)


def _only_gpu(targets: tuple[object, ...]) -> Device | None:
    """Returns the single GPU that is timed: the GPU that is the only item of `targets` or, if `targets` is empty, the
    only GPU of the selected backend. Returns None in all other cases."""
    backend = selection.current()
    if not targets:
        return (
            spellings.of("gpu")
            if "gpu" in backend.kinds and backend.count("gpu") == 1
            else None
        )
    only, *others = targets
    # one pair of events cannot cover several targets
    if others:
        return None
    try:
        place = spellings.parse(only)
    # the target is a tensor, a stream, a backend or a container
    except DeviceError:
        return None
    return place if place.kind == "gpu" else None


def _targets(devices: object) -> tuple[object, ...]:
    """Converts `devices`, the argument of `Timer`, to a tuple of arguments for `sync`. If `devices` is None, the tuple
    is empty, which means all devices of the selected backend. Raises `DeviceError` for an empty list."""
    if devices is None:
        return ()
    if not isinstance(devices, list | tuple):
        return (devices,)
    if not devices:
        raise DeviceError(
            "devices is an empty list, so there is nothing to wait for; omit the argument to wait for all devices"
        )
    return tuple(devices)


def _check_count(name: str, count: object, least: int) -> None:
    """Raises `ArgumentError` unless `count` is an int and at least `least`. `name` is the name of this argument of
    `measure`."""
    # True and False are ints in Python
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise ArgumentError(
            f"measure(): {name} must be an int that is at least {least}, not {shown(count)}"
        )
