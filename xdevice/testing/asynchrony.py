"""Checks of waiting, streams, graphs, parallel tasks, prefetching, transfers, blocking and memory."""

from __future__ import annotations

import gc
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices

from .base import Suite, assert_same, in_thread, need
from .capabilities import needs
from .values import plain, telling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device


class Planned(Exception):  # noqa: N818  # a test's own, and no error of the package
    """The exception that a check raises on purpose."""


def refusal_of(ask: Callable[[], object]) -> str | None:
    """The text of the `UnsupportedError` that a call raises; None if it raises none."""
    said = None
    try:
        ask()
    except xdevice.UnsupportedError as error:
        said = str(error)
    assert said is None or "; " in said, f"say what to use instead: {said}"
    return said


class Waiting(Suite):
    def test_sync_takes_every_target(self) -> None:
        x = self.make()
        xdevice.sync()
        xdevice.sync(self.home, self.here(), self.here().native, x, [x, {"x": x, "n": 1}], self.adapter)
        with pytest.raises(xdevice.NotATensorError):
            xdevice.sync(object())

    def test_sync_waits_for_work_under_way(self) -> None:
        self.needs_kernels()
        for how in ("all", "device", "tensor", "wait", "synchronize"):
            work = need(self.samples.long_work(self.here()), "work that can be asked whether it is done")
            assert not work.is_done(), "the work was done before anybody waited: make the sample longer"
            if how == "wait":
                self.adapter.wait(work.result)
            elif how == "synchronize":
                self.adapter.synchronize(None)
            else:
                xdevice.sync(*{"all": (), "device": (self.here(),), "tensor": (work.result,)}[how])
            assert work.is_done(), how

    def test_sync_waits_on_every_device(self) -> None:
        self.needs_kernels()
        works = [self.samples.long_work(place) for place in self.places()]
        found = [need(work, "work that can be asked whether it is done") for work in works]
        xdevice.sync()
        assert all(work.is_done() for work in found)

    def test_errors_of_asynchronous_work_surface_at_sync(self) -> None:
        for how in ("all", "device", "tensor", "container"):
            x = need(self.samples.failing_work(), "work that fails asynchronously")
            targets = {"all": (), "device": ("cpu:0",), "tensor": (x,), "container": ({"x": [x]},)}[how]
            with pytest.raises(Exception) as raised:
                xdevice.sync(*targets)
            assert not isinstance(raised.value, xdevice.XDeviceError)
            del x, raised  # their traceback keeps the work alive: every later sync() would raise its error

    # blocking

    def blocks(self) -> None:
        """Skips the check if the adapter refuses blocking; the refusal must say what to use instead."""
        refusal = refusal_of(self.block)
        if refusal is not None:
            pytest.skip(refusal)

    def block(self) -> None:
        with self.adapter.blocking():
            pass

    @needs("Blocking")
    def test_blocking_leaves_nothing_under_way(self) -> None:
        self.needs_kernels()
        self.blocks()
        with xdevice.blocking(), xdevice.blocking():
            x, expected = self.pending()
            assert_same(xdevice.to_numpy(x), expected)
        work = need(self.samples.long_work(self.here()), "work that can be asked whether it is done")
        xdevice.sync()
        assert work.is_done()
        if not self.samples.can_block:
            pytest.skip("the samples do not have: work that blocking mode waits for")
        with xdevice.blocking():
            with xdevice.blocking():
                assert self.work().is_done(), "the work is under way inside of blocking mode"
            assert self.work().is_done(), "an inner block has ended the outer one"
        with pytest.raises(Planned), xdevice.blocking():
            raise Planned
        work = self.work()
        assert not work.is_done(), "blocking mode has stayed"
        xdevice.sync()

    def work(self) -> Any:
        return self.samples.long_work(self.here())

    @needs("Blocking")
    def test_blocking_raises_errors_at_their_line(self) -> None:
        self.blocks()
        if not self.samples.can_block:
            pytest.skip("the samples do not have: work that blocking mode waits for")
        with xdevice.blocking(), pytest.raises(Exception, match=r".+"):
            self.samples.failing_work()
        xdevice.sync()


class Streams(Suite):
    def streams(self) -> None:
        """Skips the check if the adapter has no streams or events here, or no kernels to run in them."""
        self.needs_kernels()
        for make in (self.adapter.new_stream, self.adapter.new_event):
            self.skips_without(make)

    def skips_without(self, make: Callable[[Device], object]) -> None:
        """Skips the check if the adapter refuses to `make` a stream, event or graph, saying what to use instead."""

        refusal = refusal_of(lambda: make(self.here()))
        if refusal is not None:
            pytest.skip(refusal)

    @needs("Streams")
    def test_a_stream_holds_the_work_of_its_block(self) -> None:
        self.streams()
        here = self.here()
        default = self.adapter.current_stream(here)
        side = self.adapter.new_stream(here)
        assert side != default
        assert self.adapter.new_stream(here) != side
        with self.adapter.stream_scope(side):
            assert self.adapter.current_stream(here) == side
            with self.adapter.stream_scope(default):
                assert self.adapter.current_stream(here) == default
            assert self.adapter.current_stream(here) == side
            elsewhere = in_thread(lambda: self.adapter.current_stream(here), self.patience)
            assert (elsewhere == side) is (self.adapter.stream_reach == "process")
        assert self.adapter.current_stream(here) == default
        with pytest.raises(Planned), self.adapter.stream_scope(side):
            raise Planned
        assert self.adapter.current_stream(here) == default

    @needs("Streams")
    def test_streams_wait_for_each_other(self) -> None:
        self.streams()
        for way in ("stream", "event"):
            side = xdevice.Stream(self.here())
            work = self.samples.long_work(self.here())
            x, expected = self.pending()
            mark = xdevice.Event(self.here()).record() if way == "event" else xdevice.Stream.current(self.here())
            side.wait(mark)
            with side, self.here():
                y = self.samples.add(x, x)
            side.keep(x)
            xdevice.Stream.current(self.here()).wait(side)
            with self.here():
                z = self.samples.add(y, y)
            side.sync()
            assert work is None or work.is_done(), f"by {way}: the side stream did not wait"
            assert_same(xdevice.to_numpy(y), expected + expected, way)
            assert_same(xdevice.to_numpy(z), expected * 4, way)

    def test_events_are_there_or_refused(self) -> None:
        for place in self.places():
            there_is_none = refusal_of(lambda place=place: self.adapter.new_event(place))  # type: ignore[misc]
            asked = refusal_of(lambda place=place: self.adapter.require_events(place))  # type: ignore[misc]
            assert (asked is None) is (there_is_none is None), f"{place}: {asked!r}, and new_event: {there_is_none!r}"

    @needs("Streams")
    def test_an_event_happens_when_the_work_before_it_is_done(self) -> None:
        self.streams()
        start, middle, end = (xdevice.Event(self.here()) for _ in range(3))
        before = time.perf_counter()
        start.record()
        work = need(self.samples.long_work(self.here()), "work that can be asked whether it is done")
        middle.record()
        end.record()
        assert not work.is_done()
        middle.sync()
        assert work.is_done(), "the event has happened before the work"
        whole, tail = start.elapsed(end), middle.elapsed(end)
        took = time.perf_counter() - before
        assert 0.05 <= whole <= took + 0.01, f"{whole} s of device time in {took} s"
        assert 0 <= tail < whole
        assert start.elapsed(middle) + tail == pytest.approx(whole, abs=0.01)

    @needs("Streams")
    def test_kept_memory_is_not_given_away(self) -> None:
        self.streams()
        x, expected = self.pending()
        side = xdevice.Stream(self.here())
        side.wait(xdevice.Stream.current(self.here()))
        with side, self.here():
            y = self.samples.add(x, x)
        side.keep(x)
        del x
        more = [self.make(np.zeros_like(expected)) for _ in range(8)]
        xdevice.sync(self.here())
        xdevice.sync(more)
        assert_same(xdevice.to_numpy(y), expected + expected)

    # graphs

    def graphs(self) -> None:
        self.streams()
        self.skips_without(self.adapter.new_graph)

    @needs("Streams", "Graphs")
    def test_a_graph_does_the_work_again(self) -> None:
        self.graphs()
        x = xdevice.copy_to(self.make(plain("float32")), self.home)
        calls = []

        def task() -> Any:
            calls.append(1)
            return self.samples.add(x, x)

        step = xdevice.capture(task, self.here())
        for factor in (1, 3, -2):
            self.adapter.write(x, self.make(plain("float32") * factor))
            assert_same(xdevice.to_numpy(step()), plain("float32") * factor * 2, "a replay")
        assert len(calls) == 2, "the task is called twice, and not again"
        assert self.samples.requires_grad(step()) in (None, False)
        side = xdevice.Stream(self.here())
        self.adapter.write(x, self.make(plain("float32") * 5))
        side.wait(xdevice.Stream.current(self.here()))
        with side, self.here():
            y = step()
            z = self.samples.add(y, y)
        side.sync()
        assert_same(xdevice.to_numpy(z), plain("float32") * 20, "a replay on another stream")

    @needs("Streams", "Graphs")
    def test_a_graph_holds_the_work_of_one_device(self) -> None:
        self.graphs()
        there = self.there_with_values()
        far = xdevice.to_device(self.make(), there)
        with pytest.raises(xdevice.DeviceMismatchError):
            xdevice.capture(lambda: self.samples.add(far, far), self.here())
        with pytest.raises(Planned):
            xdevice.capture(self.fail, self.here())
        x, expected = self.pending()
        assert_same(xdevice.to_numpy(x), expected, "after a capture that failed")

    def fail(self) -> None:
        raise Planned

    # compiled functions

    @needs("Compiling")
    def test_a_compiled_function_gives_what_the_function_gives(self) -> None:
        @xdevice.compile
        def double(x: Any) -> list[Any]:
            return [self.samples.add(x, x), "and", x]

        for place in (xdevice.device(self.home), self.here()):
            for factor in (1, 3):
                x = xdevice.to_device(self.make(plain("float32") * factor), place)
                made = double(x)
                assert_same(xdevice.to_numpy(made[0]), plain("float32") * factor * 2)
                assert [xdevice.device_of(y) for y in (made[0], made[2])] == [place, place]

    @needs("Compiling")
    def test_a_compiled_function_refuses_tensors_of_two_devices(self) -> None:
        @xdevice.compile
        def add(x: Any, y: Any) -> Any:
            return self.samples.add(x, y)

        near, far = self.make(), xdevice.to_device(self.make(), self.there_with_values())
        for x, y in ((near, far), (near, near), (near, far)):
            if y is far:
                with pytest.raises(xdevice.DeviceMismatchError, match="compile takes tensors on one device"):
                    add(x, y)
            else:
                assert xdevice.device_of(add(x, y)) is self.here()


class Side(Suite):
    """Checks of tasks that run side by side (`xdevice.parallel`) and of prefetching."""

    def test_parallel_gives_results_that_are_ready(self) -> None:
        self.needs_kernels()
        x, expected = self.pending()
        y, _ = self.pending()

        def add() -> Any:
            with self.here():
                return self.samples.add(x, y)

        for _ in range(3):
            results = xdevice.parallel(add, lambda: 7, add, add)
            assert results[1] == 7
            for result in (results[0], *results[2:]):
                with self.here():
                    again = self.samples.add(result, result)
                assert_same(xdevice.to_numpy(again), expected * 4)
                assert xdevice.device_of(result) is self.here()

    def test_parallel_carries_the_callers_state(self) -> None:
        self.needs_kernels()
        for device in self.places():
            with device:
                found = xdevice.parallel(*[lambda: xdevice.device_of(self.samples.native_ones(2))] * 3)
            assert found == [device] * 3, "`with device:` does not carry into tasks: thread_state()"
        before = xdevice.device_of(self.samples.native_ones(2))
        assert xdevice.parallel(lambda: xdevice.device_of(self.samples.native_ones(2))) == [before]
        assert xdevice.parallel(lambda: xdevice.backend().name) == [self.backend]

    def test_parallel_carries_the_frameworks_modes(self) -> None:
        modes = self.samples.modes()
        if not modes:
            pytest.skip("the samples do not have: modes of a thread")
        for name, (enter, is_on) in modes.items():
            assert xdevice.parallel(is_on, is_on) == [False, False], name
            with enter():
                assert is_on(), name
                assert xdevice.parallel(is_on, is_on, is_on) == [True] * 3, f"{name} does not carry into tasks"
                state = self.adapter.thread_state()
            assert in_thread(partial(_inside, state, is_on), self.patience) == (True, False), (
                f"{name} is what it was where the state was read, and only inside"
            )
            assert not is_on(), name
            assert xdevice.parallel(is_on, is_on) == [False, False], f"{name} has stayed in a thread"

    def test_tasks_run_side_by_side(self) -> None:
        if self.adapter.threads == "one":
            pytest.skip(f"{self.backend} runs tasks one after another")
        meeting = threading.Barrier(3)

        def task() -> int:
            return meeting.wait(self.patience)

        assert sorted(xdevice.parallel(task, task, task)) == [0, 1, 2]

    def test_tasks_of_many_threads_work(self) -> None:
        self.needs_kernels()
        array = plain("float32")

        def task(number: int) -> Any:
            found = []
            for i in range(5):
                x = self.make(array + number * i)
                with self.here():
                    found.append(xdevice.to_numpy(self.samples.add(x, xdevice.copy_to(x, self.home))))
            return found

        found = xdevice.parallel(*[partial(task, number) for number in range(8)])
        for number, arrays in enumerate(found):
            for i, result in enumerate(arrays):
                assert_same(result, (array + number * i) * np.float32(2))

    def test_what_a_task_raises_is_raised(self) -> None:
        def fails() -> None:
            raise Planned("in a task")

        with pytest.raises(Planned, match="in a task"):
            xdevice.parallel(lambda: 1, fails)
        assert xdevice.parallel(lambda: xdevice.parallel(lambda: 1, lambda: 2), lambda: 3) == [[1, 2], 3]

    # prefetch

    @needs("Prefetch")
    def test_prefetch_gives_every_batch_as_it_was(self) -> None:
        arrays = self.odd_arrays()
        for target in self.places():
            batches = [{"x": self.make(array, array.dtype.name), "name": name} for name, array in arrays.items()]
            if isinstance(batches[0]["x"], np.ndarray):  # prefetch makes tensors of arrays, and float32 of float64
                batches = [batch for batch in batches if batch["name"] != "float64"]
                arrays.pop("float64", None)
            got = list(xdevice.prefetch(batches, target))
            assert [batch["name"] for batch in got] == list(arrays)
            for batch, (name, array) in zip(got, arrays.items(), strict=True):
                assert xdevice.device_of(batch["x"]) is target
                self.assert_holds(batch["x"], array, f"{name} to {target}")
            hosts = list(xdevice.prefetch([telling(name) for name in self.dtypes() if name != "float64"], target))
            for x, name in zip(hosts, [name for name in self.dtypes() if name != "float64"], strict=True):
                assert xdevice.device_of(x) is target
                self.assert_holds(x, telling(name), f"NumPy's {name} to {target}")

    @needs("Prefetch")
    def test_prefetched_batches_can_be_computed_with(self) -> None:
        self.needs_kernels()
        array = plain("float32")
        for target in self.places():
            found = []
            for x in xdevice.prefetch((array * np.float32(i) for i in range(6)), target, depth=3):
                with target:
                    found.append(self.samples.add(x, x))
                del x
            for i, x in enumerate(found):
                assert_same(xdevice.to_numpy(x), array * np.float32(2 * i), f"batch {i} on {target}")

    @needs("Prefetch")
    def test_prefetch_has_read_its_source_when_it_goes_on(self) -> None:
        for target in self.places():
            buffer = np.zeros((64, 65), "float32")
            shared = self.make(buffer) if self.can_be_written() else None

            def fill(buffer: Any = buffer, shared: Any = shared) -> Iterator[Any]:
                for i in range(6):
                    buffer[...] = i
                    if shared is not None:
                        self.adapter.write(shared, self.make(buffer))
                        xdevice.sync(shared)
                    yield {"host": buffer, "tensor": shared}

            for i, batch in enumerate(xdevice.prefetch(fill(), target)):
                self.assert_holds(batch["host"], np.full((64, 65), i, "float32"), f"batch {i} on {target}")
                if shared is not None:
                    self.assert_holds(batch["tensor"], np.full((64, 65), i, "float32"), f"batch {i} on {target}")

    def can_be_written(self) -> bool:
        return self.computes and self.adapter.can_write(self.make())

    @needs("Prefetch")
    def test_staged_memory_is_nobody_elses(self) -> None:
        for target in self.places():
            source = np.full((64, 65), 2.0, "float32")
            tensor = xdevice.to_device(self.make(source), "cpu")
            staged = [self.adapter.stage(source, target), self.adapter.stage(tensor, target)]
            source[...] = -1
            for x in staged:
                assert self.adapter.device_of(x) is target
                self.assert_holds(x, np.full((64, 65), 2.0, "float32"), f"on {target}")
            if target is devices.CPU and self.can_be_written():
                self.assert_apart(staged[1], tensor)

    @needs("Prefetch")
    def test_prefetch_raises_what_its_source_raises(self) -> None:
        def source() -> Iterator[Any]:
            yield plain("float32")
            raise Planned("in the source")

        batches = xdevice.prefetch(source(), self.home)
        self.assert_holds(next(batches), plain("float32"))
        with pytest.raises(Planned, match="in the source"):
            next(batches)

    @needs("Prefetch")
    def test_a_prefetch_that_is_broken_off_ends_its_thread(self) -> None:
        before = threading.active_count()
        batches = xdevice.prefetch((plain("float32") for _ in range(1000)), self.home)
        next(batches)
        batches.close()
        self.assert_threads(before)

    def assert_threads(self, before: int) -> None:
        """Fails if there are still more than `before` threads after `patience` seconds."""
        deadline = time.monotonic() + self.patience
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.005)
        assert threading.active_count() <= before, f"threads are left: {threading.enumerate()}"

    @needs("Prefetch")
    def test_a_loader_of_the_framework_is_iterated(self) -> None:
        arrays = [plain("float32") + i for i in range(5)]
        before = threading.active_count()
        loader = need(self.samples.loader(arrays), "a loader")
        got = [xdevice.to_numpy(x) for x in xdevice.prefetch(loader, self.home)]
        assert len(got) == len(arrays)
        for actual, expected in zip(got, arrays, strict=True):
            assert_same(actual.reshape(3, 4), expected)
        self.assert_threads(before)
        batches = xdevice.prefetch(self.samples.loader(arrays), self.home)
        next(batches)
        batches.close()
        self.assert_threads(before)

        def source() -> Iterator[Any]:
            yield arrays[0]
            raise Planned("in the loader")

        with pytest.raises(Planned, match="in the loader"):
            list(xdevice.prefetch(self.samples.loader(source()), self.home))
        self.assert_threads(before)


def _inside(state: Callable[[], Any], is_on: Callable[[], bool]) -> tuple[bool, bool]:
    with state():
        inside = is_on()
    return inside, is_on()


class Seeing(Suite):
    """Checks of the transfers that `xdevice.transfers` sees, and of memory."""

    def require_transfers(self) -> None:
        if self.adapter.kinds == ("cpu",):
            pytest.skip(f"{self.backend} has one device, so nothing is transferred")

    def reads(self, x: Any) -> list[Callable[[], object]]:
        """Functions that read the number in `x`: `float` is among them if the framework's tensors can be given to
        it."""
        by_xdevice: list[Callable[[], object]] = [lambda: xdevice.item(x), lambda: xdevice.to_numpy(x)]
        return [*by_xdevice, lambda: float(x)] if hasattr(x, "__float__") else by_xdevice

    @needs("Transfers")
    def test_reads_are_seen(self) -> None:
        self.require_transfers()
        self.needs_kernels()
        x = self.make(2.5)
        reads = self.reads(x)
        with xdevice.transfers() as log:
            for read in reads:
                read()
        with xdevice.transfers() as none, self.here():  # outside of here() TensorFlow would copy x to add
            xdevice.device_of(x)
            self.samples.add(x, x)
        assert [record.kind for record in log] == ["read"] * len(reads), list(log)
        for record in log:
            assert (record.backend, record.source, record.destination) == (self.backend, self.here(), devices.CPU)
            assert record.nbytes == 4
            assert record.physical is (self.here().kind != "cpu")
        assert not list(none), "nothing is read or moved"

    @needs("Transfers")
    def test_moves_are_seen(self) -> None:
        self.require_transfers()
        there = self.there_with_values()
        x = self.make()
        with xdevice.transfers() as log:
            xdevice.to_device(x, there)
            xdevice.to_device(x, self.home)
            xdevice.copy_to({"x": x}, there)
        assert [record.kind for record in log] == ["move", "move"], list(log)
        for record in log:
            assert (record.source, record.destination, record.nbytes) == (self.here(), there, 24)

    @needs("Transfers")
    def test_a_forbidden_transfer_does_not_happen(self) -> None:
        self.require_transfers()
        self.needs_kernels()
        x = self.make(2.5)
        reads = self.reads(x)
        for read in reads:
            with pytest.raises(xdevice.TransferError), xdevice.transfers("forbid"):
                read()
        before = _attributes(type(x)), _attributes(self.adapter)
        with xdevice.transfers() as log:
            pass
        assert (_attributes(type(x)), _attributes(self.adapter)) == before, "hooks have stayed"
        for read in reads:
            read()
        assert not list(log), "a block that has ended goes on seeing"

    @needs("memory")
    def test_memory_is_told(self) -> None:
        self.needs_kernels()
        count = 1 << 20
        for device in self.places():
            gc.collect()
            xdevice.sync()
            before = xdevice.memory(device)
            x = xdevice.ones(count, device=device)
            y = xdevice.rand(count, device=device)
            xdevice.sync(x)
            xdevice.sync(y)
            during = xdevice.memory(device)
            for number in during:
                assert number is None or (type(number) is int and number >= 0), during
            if during.allocated is not None and before.allocated is not None:
                grown = during.allocated - before.allocated
                assert 8 * count <= grown < 80 * count, f"{grown} bytes more for {8 * count} on {device}"
                del x, y
                gc.collect()
                xdevice.sync()
                after = xdevice.memory(device).allocated
                assert after is not None
                assert after <= during.allocated - 4 * count, f"memory on {device} stays after its tensors have gone"
            if during.total is not None and during.free is not None:
                assert 0 <= during.free <= during.total
            if during.peak is not None and during.allocated is not None:
                assert during.peak >= during.allocated
                self.assert_peak(device)

    def assert_peak(self, device: Any) -> None:
        high = xdevice.memory(device).peak
        assert high is not None
        if refusal_of(lambda: xdevice.reset_peak(device)) is not None:
            return
        low = xdevice.memory(device)
        assert low.peak is not None
        assert low.allocated is not None
        assert low.allocated <= low.peak < high, f"the peak of {device} did not start again"


def _attributes(x: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(x).items() if callable(value) or isinstance(value, property)}
