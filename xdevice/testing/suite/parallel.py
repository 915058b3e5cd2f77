"""Checks of parallel tasks (`xdevice.parallel.run`) and of prefetching."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices

from .base import PlannedFailure, Suite, assert_same, skip_if_none
from .capabilities import needs
from .values import extreme_values, small_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device


class ParallelChecks(Suite):
    """Checks of `parallel.run` and `prefetch`."""

    def test_parallel_gives_results_that_are_ready(self) -> None:
        self.skip_without_kernels()
        x, expected = self.pending()
        y, _ = self.pending()

        add = partial(self.add, x, y)
        # repeated, because the threads of the pool are reused, and may have kept state
        for _ in range(3):
            first, number, *others = xdevice.parallel.run(add, lambda: 7, add, add)
            # a result need not be a tensor
            assert number == 7
            for result in (first, *others):
                self.assert_reads(self.add(result, result), expected * 4)
                assert xdevice.device_of(result) is self.home_device

    def test_parallel_carries_the_callers_state(self) -> None:
        self.skip_without_kernels()
        for device in self.devices_with_values():
            with device:
                places = xdevice.parallel.run(*[self.placed_by_the_framework] * 3)
            assert places == [device] * 3, (
                "`with device:` has no effect in tasks: see thread_state"
            )
        assert xdevice.parallel.run(self.placed_by_the_framework) == [
            self.placed_by_the_framework()
        ]
        assert xdevice.parallel.run(lambda: xdevice.backend().name) == [self.backend]

    def placed_by_the_framework(self) -> Device:
        """Returns the device on which the framework's own function creates a tensor if no
        device is named."""
        return xdevice.device_of(self.samples.native_ones(2))

    def test_parallel_carries_the_frameworks_modes(self) -> None:
        modes = self.samples.modes()
        if not modes:
            pytest.skip("the samples do not have: modes of a thread")
        for name, (enter, is_on) in modes.items():
            assert xdevice.parallel.run(is_on, is_on) == [False, False], name
            with enter():
                assert is_on(), name
                assert xdevice.parallel.run(is_on, is_on, is_on) == [True] * 3, (
                    f"{name} has no effect in tasks: see thread_state"
                )
                state = self.adapter.thread_state()
            # tested in a new thread, because this begins with the framework's defaults
            answers = self.in_thread(_is_on_inside_and_after, state, is_on)
            assert answers == (True, False), (
                f"{name} must be enabled in the block of the state, and disabled after it"
            )
            assert not is_on(), name
            assert xdevice.parallel.run(is_on, is_on) == [False, False], (
                f"{name} is still enabled in a thread"
            )

    def test_tasks_of_many_threads_work(self) -> None:
        self.skip_without_kernels()
        array = small_numbers("float32")

        def task(number: int) -> Any:
            # different numbers in each task, so that a tensor of another task is detected
            xs = [self.make(array + number * i) for i in range(5)]
            return [xdevice.to_numpy(self.add(x, xdevice.copy_to(x, self.home))) for x in xs]

        results = xdevice.parallel.run(*[partial(task, number) for number in range(8)])
        for number, arrays in enumerate(results):
            for i, result in enumerate(arrays):
                assert_same(result, (array + number * i) * np.float32(2))

    # copying batches in the background

    @needs("Prefetch")
    def test_prefetch_gives_every_batch_as_it_was(self) -> None:
        arrays = self.odd_arrays()
        for target in self.devices_with_values():
            batches = [
                {"x": self.make(array, array.dtype.name), "name": name}
                for name, array in arrays.items()
            ]
            # the tensors of NumPy are arrays, and `prefetch` turns float64 arrays into float32
            if isinstance(batches[0]["x"], np.ndarray):
                batches = [batch for batch in batches if batch["name"] != "float64"]
                arrays.pop("float64", None)
            prefetched = list(xdevice.prefetch(batches, target))
            assert [batch["name"] for batch in prefetched] == list(arrays)
            for batch, (name, array) in zip(prefetched, arrays.items(), strict=True):
                self.assert_on(target, batch["x"], array, f"{name} to {target}")
            # float64 arrays become float32, as with `xdevice.tensor`
            names = [name for name in self.dtypes() if name != "float64"]
            tensors = list(xdevice.prefetch(map(extreme_values, names), target))
            for x, name in zip(tensors, names, strict=True):
                self.assert_on(target, x, extreme_values(name), f"NumPy's {name} to {target}")

    @needs("Prefetch")
    def test_prefetched_batches_can_be_computed_with(self) -> None:
        self.skip_without_kernels()
        array = small_numbers("float32")
        for target in self.devices_with_values():
            sums = []
            for x in xdevice.prefetch(
                (array * np.float32(i) for i in range(6)), target, depth=3
            ):
                with target:
                    sums.append(self.samples.add(x, x))
                # the memory of `x` may now be used for a later batch, although the sum may not
                # be computed yet
                del x
            for i, x in enumerate(sums):
                self.assert_reads(x, array * np.float32(2 * i), f"batch {i} on {target}")

    @needs("Prefetch")
    def test_prefetch_has_read_its_source_when_it_goes_on(self) -> None:
        for target in self.devices_with_values():
            # an odd number of columns, so that rows are not aligned
            buffer = np.zeros((64, 65), "float32")
            shared = self.make(buffer) if self.can_be_written() else None

            # the defaults of `fill` are the values of this iteration of the loop
            def fill(buffer: Any = buffer, shared: Any = shared) -> Iterator[Any]:
                """Yields six batches that all use the same memory."""
                for i in range(6):
                    buffer[...] = i
                    if shared is not None:
                        # like many loaders, this one fills the same tensor again
                        self.adapter.write(shared, self.make(buffer))
                        xdevice.sync(shared)
                    yield {"host": buffer, "tensor": shared}

            for i, batch in enumerate(xdevice.prefetch(fill(), target)):
                for x in (batch["host"], batch["tensor"]):
                    if x is not None:
                        self.assert_holds(
                            x, np.full((64, 65), i, "float32"), f"batch {i} on {target}"
                        )

    def can_be_written(self) -> bool:
        """Whether tensors on the home device can be written in place."""
        return self.computes and self.adapter.can_write(self.make())

    @needs("Prefetch")
    def test_staged_memory_is_nobody_elses(self) -> None:
        for target in self.devices_with_values():
            source = np.full((64, 65), 2.0, "float32")
            tensor = xdevice.to_device(self.make(source), "cpu")
            staged = [self.adapter.stage(source, target), self.adapter.stage(tensor, target)]
            source[...] = -1
            for x in staged:
                self.assert_on(target, x, np.full((64, 65), 2.0, "float32"), "staged")
            if target is devices.CPU and self.can_be_written():
                self.assert_different_memory(staged[1], tensor)

    def assert_threads(self, before: int) -> None:
        """Checks that this process has at most `before` threads. Waits up to `patience` seconds
        for other threads to end."""
        deadline = time.monotonic() + self.patience
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.005)
        assert threading.active_count() <= before, (
            f"threads have not ended: {threading.enumerate()}"
        )

    @needs("Prefetch")
    def test_a_loader_of_the_framework_is_iterated(self) -> None:
        arrays = [small_numbers("float32") + i for i in range(5)]
        before = threading.active_count()
        loader = skip_if_none(self.samples.loader(arrays), "a loader")
        batches = [xdevice.to_numpy(x) for x in xdevice.prefetch(loader, self.home)]
        assert len(batches) == len(arrays)
        for actual, expected in zip(batches, arrays, strict=True):
            assert_same(actual.reshape(3, 4), expected)
        self.assert_threads(before)
        # leaving a loop early must end the threads of the loader
        broken_off = iter(xdevice.prefetch(self.samples.loader(arrays), self.home))
        next(broken_off)
        broken_off.close()
        self.assert_threads(before)

        def source() -> Iterator[Any]:
            yield arrays[0]
            # an error of the loader must reach the loop instead of blocking it
            raise PlannedFailure("in the loader")

        with pytest.raises(PlannedFailure, match="in the loader"):
            list(xdevice.prefetch(self.samples.loader(source()), self.home))
        self.assert_threads(before)


def _is_on_inside_and_after(
    state: Callable[[], Any], is_on: Callable[[], bool]
) -> tuple[bool, bool]:
    """Returns two bools: whether a mode is enabled inside the block `with state():`, and whether the mode is enabled
    after the block. `state()` applies the state of another thread, and `is_on()` returns whether the mode is
    enabled."""
    with state():
        is_on_inside = is_on()
    return is_on_inside, is_on()
