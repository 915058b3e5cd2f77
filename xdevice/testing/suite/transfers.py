"""Checks of the transfers that `xdevice.transfers` records, and of the memory that `xdevice.memory` reports."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

import xdevice
from xdevice.base import devices

from .base import Suite, refusal_of
from .capabilities import needs

if TYPE_CHECKING:
    from collections.abc import Callable


class TransferChecks(Suite):
    """Checks of `transfers` and of `memory`."""

    def skip_without_transfers(self) -> None:
        """Skips the check if the adapter has no kind of device other than the CPU."""
        if self.adapter.kinds == ("cpu",):
            pytest.skip(f"{self.backend} has one device, so nothing is transferred")

    def reading_functions(self, x: Any) -> list[Callable[[], object]]:
        """Returns functions without arguments that read the number in `x`. One of these functions calls `float`, if
        `float` accepts the framework's tensors."""
        by_xdevice: list[Callable[[], object]] = [
            lambda: xdevice.item(x),
            lambda: xdevice.to_numpy(x),
        ]
        return [*by_xdevice, lambda: float(x)] if hasattr(x, "__float__") else by_xdevice

    @needs("Transfers")
    def test_reads_are_seen(self) -> None:
        self.skip_without_transfers()
        self.skip_without_kernels()
        x = self.make(2.5)
        reads = self.reading_functions(x)
        # there are several ways of reading, because frameworks implement them with different
        # functions
        with xdevice.transfers() as log:
            for read in reads:
                read()
        # inside a block of the home device, because TensorFlow would otherwise copy `x` to another device
        with xdevice.transfers() as log_without_reads, self.home_device:
            xdevice.device_of(x)
            self.samples.add(x, x)
        assert [record.kind for record in log] == ["read"] * len(reads), list(log)
        for record in log:
            assert (record.backend, record.source, record.destination) == (
                self.backend,
                self.home_device,
                devices.CPU,
            )
            # the size of a float32
            assert record.nbytes == 4
            # a read on the CPU moves nothing, so it is only logged
            assert record.physical is (self.home_device.kind != "cpu")
        assert not list(log_without_reads), (
            "a transfer was recorded, but nothing was read or moved"
        )

    @needs("Transfers")
    def test_moves_are_seen(self) -> None:
        self.skip_without_transfers()
        there = self.second_device_with_values()
        x = self.make()
        # a move; a move to the same device, which is not a transfer; and a copy
        with xdevice.transfers() as log:
            xdevice.to_device(x, there)
            xdevice.to_device(x, self.home)
            xdevice.copy_to({"x": x}, there)
        assert [record.kind for record in log] == ["move", "move"], list(log)
        for record in log:
            assert (record.source, record.destination, record.nbytes) == (
                self.home_device,
                there,
                24,
            )

    @needs("Transfers")
    def test_a_forbidden_transfer_does_not_happen(self) -> None:
        self.skip_without_transfers()
        self.skip_without_kernels()
        x = self.make(2.5)
        reads = self.reading_functions(x)
        for read in reads:
            with (
                pytest.raises(xdevice.errors.TransferError),
                xdevice.transfers("disallow_explicit"),
            ):
                read()
        # a hook that is still installed after the block would slow down or refuse later reads
        before = _attributes(type(x)), _attributes(self.adapter)
        with xdevice.transfers() as log:
            pass
        assert (_attributes(type(x)), _attributes(self.adapter)) == before, (
            "hooks are still installed"
        )
        for read in reads:
            read()
        assert not list(log), "a block that has ended still records transfers"

    @needs("memory")
    def test_memory_is_told(self) -> None:
        self.skip_without_kernels()
        # tensors of 4 MB, which are large compared with the rounding of an allocator
        count = 1 << 20
        for device in self.devices_with_values():
            # garbage is collected first, because memory that is freed during the check would
            # hide what the check allocates
            gc.collect()
            xdevice.sync()
            before = xdevice.memory(device)
            x = xdevice.ones(count, device=device)
            y = xdevice.zeros(count, device=device)
            xdevice.sync(x)
            xdevice.sync(y)
            during = xdevice.memory(device)
            assert during.name
            # all fields except the last, which is `name`
            for number in during[:-1]:
                assert number is None or (type(number) is int and number >= 0), during
            if during.allocated is not None and before.allocated is not None:
                grown = during.allocated - before.allocated
                # the size of two float32 tensors, or up to ten times as much, because the
                # allocator may add memory
                assert 8 * count <= grown < 80 * count, (
                    f"allocated grew by {grown} for {8 * count} bytes on {device}"
                )
                del x, y
                gc.collect()
                xdevice.sync()
                after = xdevice.memory(device).allocated
                assert after is not None
                # the memory of at least one tensor must be free again
                assert after <= during.allocated - 4 * count, (
                    f"memory on {device} is still allocated, although its tensors no longer exist"
                )
            if during.total is not None and during.free is not None:
                assert 0 <= during.free <= during.total
            if during.peak is not None and during.allocated is not None:
                assert during.peak >= during.allocated
                self.assert_peak(device)

    def assert_peak(self, device: Any) -> None:
        """Checks that a reset lowers the peak of a device's memory, but not below the memory that is currently
        allocated. Checks nothing if the framework cannot reset its peak. When this method is called, the peak must be
        higher than the allocated memory."""
        high = xdevice.memory(device).peak
        assert high is not None
        # some frameworks cannot reset their peak
        if refusal_of(lambda: xdevice.accelerator.reset_peak_memory_stats(device)) is not None:
            return
        low = xdevice.memory(device)
        assert low.peak is not None
        assert low.allocated is not None
        assert low.allocated <= low.peak < high, f"the peak of {device} was not reset"


def _attributes(x: Any) -> dict[str, Any]:
    """Returns, by name, the methods and properties that are stored in a class or object itself, without those of its
    bases."""
    return {
        name: value
        for name, value in vars(x).items()
        if callable(value) or isinstance(value, property)
    }
