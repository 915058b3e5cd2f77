"""Checks of waiting, blocking, streams, graphs and compiled functions."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.errors import DeviceMismatchError, NotATensorError, XDeviceError

from .base import PlannedFailure, Suite, refusal_of, skip_if_none, skipping_what_is_refused
from .capabilities import needs
from .values import small_numbers

if TYPE_CHECKING:
    from collections.abc import Callable


class WaitingChecks(Suite):
    """Checks of `sync`, of waiting for results, and of blocking mode."""

    def test_sync_takes_every_target(self) -> None:
        x = self.make()
        xdevice.sync()
        # a device as a string, as a `Device` and as the framework's own object; a tensor, a
        # container, and a backend
        xdevice.sync(
            self.home,
            self.home_device,
            self.home_device.native,
            x,
            [x, {"x": x, "n": 1}],
            self.adapter,
        )
        with pytest.raises(NotATensorError):
            xdevice.sync(object())

    def test_sync_waits_for_work_under_way(self) -> None:
        self.skip_without_kernels()
        ways: list[Callable[[Any], object]] = [
            lambda result: xdevice.sync(),
            lambda result: xdevice.sync(self.home_device),
            lambda result: xdevice.sync(result),
            lambda result: self.adapter.wait(result),
            lambda result: self.adapter.synchronize(None),
        ]
        # each way of waiting has its own work, because a way that does not wait is detected
        # only while work is in progress
        for number, wait in enumerate(ways):
            work = self.long_work(self.home_device)
            assert not work.is_done(), (
                "the work was complete before anything waited for it; make long_work of the samples longer"
            )
            wait(work.result)
            assert work.is_done(), f"way number {number} of this check does not wait"

    def test_sync_waits_on_every_device(self) -> None:
        self.skip_without_kernels()
        works = [self.long_work(place) for place in self.devices_with_values()]
        xdevice.sync()
        assert all(work.is_done() for work in works)

    def test_errors_of_asynchronous_work_surface_at_sync(self) -> None:
        # each kind of target is tested separately, because the error must be raised whichever
        # targets are named
        for targets_of in (
            lambda x: (),
            lambda x: ("cpu:0",),
            lambda x: (x,),
            lambda x: ({"x": [x]},),
        ):
            x = skip_if_none(self.samples.failing_work(), "work that fails asynchronously")
            with pytest.raises(Exception) as raised:
                xdevice.sync(*targets_of(x))
            assert not isinstance(raised.value, XDeviceError)
            # the traceback keeps the work alive, and every later `sync` would raise the work's
            # error again
            del x, raised

    # blocking mode

    def skip_without_blocking(self) -> None:
        """Skips the check if the adapter does not support blocking mode."""
        with skipping_what_is_refused(), self.adapter.blocking():
            pass

    @needs("Blocking")
    def test_blocking_leaves_nothing_under_way(self) -> None:
        self.skip_without_kernels()
        self.skip_without_blocking()
        # the blocks are nested, because a program in blocking mode may call a library that also
        # enters blocking mode
        with xdevice.accelerator.blocking(), xdevice.accelerator.blocking():
            x, expected = self.pending()
            self.assert_reads(x, expected)
        # also if the adapter's blocking mode does nothing: after the blocks, `sync` must still wait
        work = self.long_work(self.home_device)
        xdevice.sync()
        assert work.is_done()
        if not self.samples.can_block:
            pytest.skip("the samples do not have: work that blocking mode waits for")
        with xdevice.accelerator.blocking():
            with xdevice.accelerator.blocking():
                assert self.long_work(self.home_device).is_done(), (
                    "inside blocking mode, the work is still in progress"
                )
            assert self.long_work(self.home_device).is_done(), (
                "an inner block has ended the outer one"
            )
        with pytest.raises(PlannedFailure), xdevice.accelerator.blocking():
            raise PlannedFailure
        work = self.long_work(self.home_device)
        assert not work.is_done(), "blocking mode is still enabled after its block"
        # so that the work does not slow down the next check
        xdevice.sync()

    @needs("Blocking")
    def test_blocking_raises_errors_at_their_line(self) -> None:
        self.skip_without_blocking()
        if not self.samples.can_block:
            pytest.skip("the samples do not have: work that blocking mode waits for")
        # `pytest.raises` is inside the block, so that it does not catch an error that is raised only at the block's end
        with xdevice.accelerator.blocking(), pytest.raises(Exception, match=r".+"):
            self.samples.failing_work()
        # the error must not be raised a second time, as it would be if the framework or the adapter still kept it
        xdevice.sync()


class StreamChecks(Suite):
    """Checks of streams, events, graphs and compiled functions."""

    def skip_without_streams(self) -> None:
        """Skips the check if the framework cannot compute on the GPU, or if the adapter does not
        support streams or events on the home device."""
        self.skip_without_kernels()
        with skipping_what_is_refused():
            self.adapter.new_stream(self.home_device)
            self.adapter.new_event(self.home_device)

    @needs("Streams")
    def test_a_stream_holds_the_work_of_its_block(self) -> None:
        self.skip_without_streams()
        here = self.home_device
        default = self.adapter.current_stream(here)
        side = self.adapter.new_stream(here)
        assert side != default
        assert self.adapter.new_stream(here) != side
        with self.adapter.stream_scope(side):
            assert self.adapter.current_stream(here) == side
            with self.adapter.stream_scope(default):
                assert self.adapter.current_stream(here) == default
            assert self.adapter.current_stream(here) == side
            # PyTorch has a current stream for each thread, other frameworks have one for the
            # whole process
            elsewhere = self.in_thread(self.adapter.current_stream, here)
            assert (elsewhere == side) is (self.adapter.stream_reach == "process")
        assert self.adapter.current_stream(here) == default
        with pytest.raises(PlannedFailure), self.adapter.stream_scope(side):
            raise PlannedFailure
        assert self.adapter.current_stream(here) == default

    @needs("Streams")
    def test_streams_wait_for_each_other(self) -> None:
        self.skip_without_streams()
        # a stream can wait for all work of another stream, or for the work before an event
        for way in ("stream", "event"):
            side = xdevice.accelerator.Stream(self.home_device)
            work = self.samples.long_work(self.home_device)
            x, expected = self.pending()
            # both represent the work that the current stream contains so far, which includes `work`
            mark = (
                xdevice.accelerator.Event(self.home_device).record()
                if way == "event"
                else xdevice.accelerator.Stream.current(self.home_device)
            )
            side.wait(mark)
            with side:
                y = self.add(x, x)
            # PyTorch's `record_stream`: the allocator must not reuse the memory while the side stream reads it
            side.keep(x)
            xdevice.accelerator.Stream.current(self.home_device).wait(side)
            z = self.add(y, y)
            side.sync()
            assert work is None or work.is_done(), f"by {way}: the side stream did not wait"
            self.assert_reads(y, expected + expected, way)
            self.assert_reads(z, expected * 4, way)

    def test_events_are_there_or_refused(self) -> None:
        """`require_events` must raise an error for exactly the same devices as `new_event`."""
        for place in self.devices_with_values():
            refusal = refusal_of(partial(self.adapter.new_event, place))
            earlier = refusal_of(partial(self.adapter.require_events, place))
            assert (refusal is None) is (earlier is None), (
                f"{place}: require_events raised {earlier!r}, but new_event raised {refusal!r}"
            )

    @needs("Streams")
    def test_an_event_happens_when_the_work_before_it_is_done(self) -> None:
        self.skip_without_streams()
        start, middle, end = (xdevice.accelerator.Event(self.home_device) for _ in range(3))
        before = time.perf_counter()
        start.record()
        work = self.long_work(self.home_device)
        middle.record()
        end.record()
        assert not work.is_done()
        middle.sync()
        assert work.is_done(), "the event has happened before the work"
        whole, tail = start.elapsed(end), middle.elapsed(end)
        took = time.perf_counter() - before
        # the long work of the samples takes at least a tenth of a second; the two clocks may
        # differ by some milliseconds
        assert 0.05 <= whole <= took + 0.01, (
            f"elapsed() returned {whole} s for work that took {took} s"
        )
        # there is no work between the last two events
        assert 0 <= tail < whole
        assert start.elapsed(middle) + tail == pytest.approx(whole, abs=0.01)

    @needs("Streams")
    def test_kept_memory_is_not_given_away(self) -> None:
        self.skip_without_streams()
        x, expected = self.pending()
        side = xdevice.accelerator.Stream(self.home_device)
        side.wait(xdevice.accelerator.Stream.current(self.home_device))
        with side:
            y = self.add(x, x)
        side.keep(x)
        del x
        # without `keep`, the allocator would place these tensors into memory that the side
        # stream still reads
        more = [self.make(np.zeros_like(expected)) for _ in range(8)]
        xdevice.sync(self.home_device)
        xdevice.sync(more)
        self.assert_reads(y, expected + expected)

    # graphs of recorded work

    def skip_without_graphs(self) -> None:
        """Skips the check if the adapter does not support streams, events or graphs on the home
        device."""
        self.skip_without_streams()
        with skipping_what_is_refused():
            self.adapter.new_graph(self.home_device)

    @needs("Streams", "Graphs")
    def test_a_graph_does_the_work_again(self) -> None:
        self.skip_without_graphs()
        x = xdevice.copy_to(self.make(small_numbers("float32")), self.home)
        calls = []

        def task() -> Any:
            calls.append(1)
            return self.samples.add(x, x)

        step = xdevice.accelerator.make_graphed_callable(task, self.home_device)
        # a replay reads the same memory as the recorded work, but with the present values
        for factor in (1, 3, -2):
            self.adapter.write(x, self.make(small_numbers("float32") * factor))
            self.assert_reads(step(), small_numbers("float32") * factor * 2, "a replay")
        # the task is called once before the recording, because the first call may allocate
        # memory, and once for the recording
        assert len(calls) == 2, "the task must be called exactly twice"
        # a replay records no gradients
        assert self.requires_grad(step()) in (None, False)
        side = xdevice.accelerator.Stream(self.home_device)
        self.adapter.write(x, self.make(small_numbers("float32") * 5))
        side.wait(xdevice.accelerator.Stream.current(self.home_device))
        with side, self.home_device:
            y = step()
            z = self.samples.add(y, y)
        side.sync()
        self.assert_reads(z, small_numbers("float32") * 20, "a replay on another stream")

    @needs("Streams", "Graphs")
    def test_a_graph_holds_the_work_of_one_device(self) -> None:
        self.skip_without_graphs()
        there = self.second_device_with_values()
        far = xdevice.to_device(self.make(), there)
        with pytest.raises(DeviceMismatchError):
            xdevice.accelerator.make_graphed_callable(
                lambda: self.samples.add(far, far), self.home_device
            )
        with pytest.raises(PlannedFailure):
            xdevice.accelerator.make_graphed_callable(self.fail, self.home_device)
        x, expected = self.pending()
        # a failed recording must end, because otherwise later work would be recorded instead of
        # being done
        self.assert_reads(x, expected, "after a capture that failed")

    def fail(self) -> None:
        """A task for a graph, which raises an error."""
        raise PlannedFailure

    # compiled functions

    @needs("Compiling")
    def test_a_compiled_function_gives_what_the_function_gives(self) -> None:
        @xdevice.compile
        def double(x: Any) -> list[Any]:
            return [x + x, "and", x]

        # called twice, because the function is compiled only at the first call
        for factor in (1, 3):
            twice, _, same = double(self.make(small_numbers("float32") * factor))
            self.assert_reads(twice, small_numbers("float32") * factor * 2)
            # the tensor that the function returns unchanged is checked, too
            assert [xdevice.device_of(y) for y in (twice, same)] == [self.home_device] * 2

    @needs("Compiling")
    def test_a_compiled_function_refuses_tensors_of_two_devices(self) -> None:
        @xdevice.compile
        def add(x: Any, y: Any) -> Any:
            return x + y

        near, far = (
            self.make(),
            xdevice.to_device(self.make(), self.second_device_with_values()),
        )
        # called twice: the second time, there is a compiled program from the call with `near`
        # only, which must not run
        for _ in range(2):
            with pytest.raises(
                DeviceMismatchError,
                match="a compiled function accepts only tensors on one device",
            ):
                add(near, far)
            assert xdevice.device_of(add(near, near)) is self.home_device
