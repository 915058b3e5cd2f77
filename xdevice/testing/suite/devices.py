"""Checks of the contract between xdevice and an adapter, of devices, and of blocks such as `with device:`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import xdevice
from xdevice.base import devices
from xdevice.base.dtypes import DTYPES
from xdevice.contract import VIRTUAL_GPU, check
from xdevice.errors import (
    DeviceMismatchError,
    DeviceNotFoundError,
    DTypeError,
    ScopeError,
    UnsupportedError,
)

from .base import Suite, assert_same, on_one_device, skip_if_none
from .values import extreme_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device


class DeviceChecks(Suite):
    """Checks of the contract, of devices, and of blocks that set a device."""

    @on_one_device
    def test_keeps_the_contract(self) -> None:
        adapter = self.adapter
        assert check(type(adapter), claimed=self.backend, source="the suite") is type(adapter)
        assert re.match(r"\d+\.\d+", adapter.version), f"{adapter.version!r} is not a version"
        # importing the first of its modules loads the backend
        assert adapter.framework.__name__ == adapter.modules[0]
        assert adapter.name in repr(adapter)
        # xdevice knows only these values
        assert adapter.threads in ("many", "one")
        assert {adapter.scope_reach, adapter.stream_reach} <= {"thread", "process"}
        assert adapter.dtypes <= frozenset(DTYPES), "dtypes must have NumPy's names"
        assert "float32" in adapter.dtypes
        others = set(adapter.dtype_names.values()) - adapter.dtypes - adapter.short_floats
        assert not others, f"dtype_names has names that are not in dtypes: {others}"

    def test_types_are_told_apart(self) -> None:
        adapter = self.adapter
        assert adapter.classify(type(self.make())) == "tensor"
        # models move in place, while tensors are copied, so the two must not be confused
        for make in self.samples.models().values():
            assert adapter.classify(type(make())) == "model"
        # an object that is mistaken for a tensor would be moved, and one that is mistaken for a
        # model would be searched
        others = [
            object,
            int,
            float,
            str,
            list,
            dict,
            tuple,
            type(None),
            type(self),
            type(adapter),
            Exception,
        ]
        for cls in (*others, type(adapter.to_native(self.home_device))):
            assert adapter.classify(cls) is None, (
                f"{cls.__qualname__} is neither a tensor nor a model"
            )

    def test_every_device_goes_to_its_native_object_and_back(self) -> None:
        listed = self.adapter.devices()
        assert devices.CPU in listed
        assert len(set(listed)) == len(listed)
        natives = [device.native for device in listed]
        for device, native in zip(listed, natives, strict=True):
            # a native device that is a string is parsed without the adapter
            assert isinstance(native, str) or self.adapter.from_native(native) is device
            assert xdevice.device(native) is device
            assert native == self.adapter.to_native(device)
        # comparing two native devices must not raise an error
        assert all(a == b or a != b for a in natives for b in natives)
        assert len({str(native) for native in natives}) == len(natives), (
            f"two devices have the same native object: {natives}"
        )
        # PyTorch and Paddle also accept an int as a device; here it would be ambiguous
        for thing in (object(), 3, 2.5, None, [], self.make()):
            assert self.adapter.from_native(thing) is None, (
                f"from_native mistook {thing!r:.60} for a device"
            )

    @on_one_device
    def test_the_devices_are_those_of_the_framework(self) -> None:
        natives = skip_if_none(
            self.samples.native_devices(), "the framework's own list of devices"
        )
        assert [self.adapter.from_native(native) for native in natives] == list(
            self.adapter.devices()
        )
        assert self.adapter.count("gpu") == sum(
            device.kind == "gpu" for device in self.adapter.devices()
        )
        # counting must not raise an error, because programs also count kinds of devices that
        # only other frameworks have
        assert self.adapter.count("no such kind") == 0

    @on_one_device
    def test_every_device_works(self) -> None:
        array = extreme_values("float32")
        for device in self.adapter.devices():
            x = self.adapter.from_numpy(array, device)
            assert self.adapter.device_of(x) is device
            if self.holds_values(device):
                assert_same(self.adapter.to_numpy(x), array, str(device))

    def test_devices_are_described(self) -> None:
        for device in self.devices_with_values():
            name, memory = self.adapter.describe(device)
            assert isinstance(name, str)
            assert name.strip(), f"{device} has no name"
            assert memory is None or (type(memory) is int and memory > 1 << 20), (
                f"{device}: memory is {memory!r}, expected None or bytes"
            )
            if device.kind == "gpu" and self.adapter.virtual:
                assert (name, memory) == VIRTUAL_GPU

    @on_one_device
    def test_why_there_is_no_gpu_is_said_in_a_few_words(self) -> None:
        why = self.adapter.why_no_gpu()
        assert isinstance(why, str)
        # `xdevice info` shows the reason in a cell of a table
        assert 3 <= len(why.strip()) == len(why) <= 200, (
            f"expected 3 to 200 characters for a table, not {why!r}"
        )
        assert "\n" not in why

    def test_a_device_that_was_used_is_started(self) -> None:
        for device in self.devices_with_values():
            xdevice.sync(self.adapter.from_numpy(extreme_values("float32"), device))
            assert self.adapter.is_started(device) is True, (
                f"is_started must be True for {device}, which was used"
            )

    def test_try_gpu_gives_what_is_there(self) -> None:
        n = xdevice.num_gpus()
        assert [xdevice.try_gpu(i) for i in range(n)] == [xdevice.gpu(i) for i in range(n)]
        assert xdevice.try_gpu(n) is devices.CPU
        assert xdevice.try_all_gpus() == ([xdevice.gpu(i) for i in range(n)] or [xdevice.cpu()])
        assert xdevice.native.try_gpu(n) == xdevice.cpu().native
        assert xdevice.native.try_all_gpus() == [
            device.native for device in xdevice.try_all_gpus()
        ]

    def test_a_missing_device_can_be_described_or_is_refused(self) -> None:
        for device in self.adapter.devices():
            assert xdevice.native.device(device) == device.native
        missing = xdevice.gpu(self.adapter.count("gpu") + 3)
        # NumPy has no native object for a GPU
        if "gpu" not in self.adapter.kinds:
            with pytest.raises(DeviceNotFoundError, match=str(missing)):
                xdevice.native.gpu(missing.index)
            return
        # either a native object that stands for the missing device, or an error that names the device
        native, refusal = None, ""
        try:
            native = xdevice.native.gpu(missing.index)
        except UnsupportedError as error:
            refusal = str(error)
        assert str(missing) in refusal or xdevice.device(native) is missing
        assert refusal or type(native) is type(xdevice.cpu().native)

    @pytest.mark.parametrize("missing", ["gpu:999", "cpu:99999", "tpu:77"])
    def test_a_missing_device_is_refused_before_anything_happens(self, missing: str) -> None:
        # a failed attempt must neither move nor change these objects
        x = self.make()
        before = xdevice.to_numpy(x)
        models = [make() for make in self.samples.models().values()]
        tries: list[Callable[[], object]] = [
            lambda: self.adapter.require(devices.parse(missing)),
            lambda: xdevice.copy_to(x, missing),
            lambda: xdevice.tensor([1.0], device=missing),
            lambda: xdevice.ones(2, device=missing),
            lambda: xdevice.random.uniform(2, device=missing),
            lambda: xdevice.sync(missing),
            lambda: xdevice.device(missing).native,
            lambda: xdevice.device(missing).__enter__(),
            lambda: xdevice.set_default_device(missing),
            *(
                partial(xdevice.to_device, thing, missing)
                for thing in (x, [1, {"x": x}], *models)
            ),
        ]
        for attempt in tries:
            with pytest.raises(DeviceNotFoundError, match=missing):
                attempt()
        assert xdevice.device_of(x) is self.home_device
        assert (xdevice.to_numpy(x) == before).all()

    def test_what_a_device_lacks_is_refused_before_anything_moves_and_the_rest_is_held(
        self,
    ) -> None:
        adapter = self.adapter
        for place in {devices.CPU, *self.devices_with_values()}:
            lacks = adapter.lacks(place)
            assert lacks <= adapter.dtypes | adapter.short_floats, (
                "lacks() must return NumPy's names of dtypes"
            )
            assert "float32" not in lacks
            # conversions copy through the host, so the CPU must not lack a dtype
            assert not lacks or place is not devices.CPU, (
                "cpu:0 must hold all dtypes of the framework"
            )
            for name in sorted(adapter.dtypes):
                is_held = name not in lacks and adapter.dtype_refusal(name) is None
                assert xdevice.accelerator.is_dtype_supported(name, place) is is_held, name
                if is_held:
                    assert_same(
                        adapter.to_numpy(adapter.from_numpy(extreme_values(name), place)),
                        extreme_values(name),
                        name,
                    )
                # dtypes that the framework refuses on every device are checked elsewhere
                elif name in lacks:
                    self.assert_refused(name, place)

    def assert_refused(self, name: str, place: Device) -> None:
        """Checks a device `place` that lacks the dtype `name`: no tensor of this dtype can be created on the device, or
        moved or copied to it. Each attempt must raise `DTypeError`, and must not move anything."""
        with pytest.raises(DTypeError, match=rf"{name}, which {place}.*does not support"):
            xdevice.zeros(2, device=place, dtype=name)
        if not xdevice.accelerator.is_dtype_supported(name, devices.CPU):
            return
        x = xdevice.zeros(2, device=devices.CPU)
        y = xdevice.zeros(2, device=devices.CPU, dtype=name)
        # for a container, the error must be raised before the first tensor has moved
        for thing in (y, [x, {"y": y}]):
            for move in (xdevice.to_device, xdevice.copy_to):
                with pytest.raises(
                    DTypeError, match=rf"{name}, which {place}.*does not support"
                ):
                    move(thing, place)
        assert xdevice.device_of([x, y]) is devices.CPU

    # comparing the devices of tensors

    def test_device_of_and_same_device_see_where_tensors_are(self) -> None:
        x, y = self.make(), self.make()
        assert xdevice.device_of(x) is self.home_device
        assert self.adapter.device_of(x) is self.home_device
        assert xdevice.device_of([x, {"y": y}]) is self.home_device
        assert xdevice.same_device(x, y, [x])
        # without arguments, the result is True, like `all([])`
        assert xdevice.same_device()
        assert xdevice.check_same_device(x, y=[y]) is self.home_device

    def test_a_mismatch_is_found_and_named(self) -> None:
        x, far = self.make(), xdevice.copy_to(self.make(), self.second_device())
        assert not xdevice.same_device(x, far)
        assert not xdevice.same_device(x, [x, {"far": far}])
        message = rf"batch\['x'\]\[1\] is on {self.second_device()}, but .* is on {self.home}"
        with pytest.raises(DeviceMismatchError, match=message):
            xdevice.check_same_device(batch={"x": [x, far]})
        with pytest.raises(DeviceMismatchError, match="argument 1"):
            xdevice.check_same_device(x, far)
        with pytest.raises(DeviceMismatchError):
            xdevice.device_of([x, far])

    # blocks that set a device

    def test_a_scope_places_what_the_framework_creates(self) -> None:
        there = self.second_device()
        with there:
            self.assert_creates_on(there)
            assert self.default_place() is there
            with self.home_device:
                self.assert_creates_on(self.home_device)
                # when this inner block for the device of the outermost block ends, it must
                # restore the device of the middle block
                with there:
                    self.assert_creates_on(there)
                self.assert_creates_on(self.home_device)
            self.assert_creates_on(there)
        assert self.default_place() is devices.CPU

    def native_ones(self) -> Any:
        """Returns a tensor that the framework's own function creates without naming a device. Skips the check if the
        framework cannot compute on the GPU."""
        self.skip_without_kernels()
        return self.samples.native_ones(2)

    def assert_creates_on(
        self, place: Device, name: str = "the framework creates tensors elsewhere"
    ) -> None:
        """Checks that the framework's own function creates a tensor on `place` if no device is named. `name` is the
        message of the error."""
        assert xdevice.device_of(self.native_ones()) is place, name

    def default_place(self) -> Device:
        """Returns the device on which xdevice creates a tensor if no device is named."""
        return xdevice.device_of(xdevice.tensor([1.0]))

    def test_results_are_where_the_adapter_says(self) -> None:
        """`computes_on` must say whether a result is on the device of the operands, or on the device of the block
        (`with device:`)."""
        self.skip_without_kernels()
        here, there = self.home_device, self.second_device_with_values()
        x = xdevice.ones(2, device=here)
        with there:
            place = xdevice.device_of(x + x)
        assert (place is there) is (self.adapter.computes_on == "scope"), (
            f"x is on {here}, and x + x on {place}"
        )

    def test_a_scope_ends_after_an_exception(self) -> None:
        there = self.second_device_or_none() or self.home_device
        before = xdevice.device_of(self.native_ones())

        with pytest.raises(KeyError, match="planned"), there:
            raise KeyError("planned")
        self.assert_creates_on(before)
        assert self.default_place() is devices.CPU

    def test_a_scope_holds_for_one_thread(self) -> None:
        before = xdevice.device_of(self.native_ones())
        with self.second_device_or_none() or self.home_device:
            # xdevice's own scope applies to its thread, even if the framework's scope applies to the process
            assert self.in_thread(self.placed_by_default) is devices.CPU
        # the framework's own default may be set for all threads; if so, the adapter must say so
        other = next((place for place in self.all_devices()[::-1] if place is not before), None)
        there = skip_if_none(other, "another device")
        with there:
            elsewhere = xdevice.device_of(self.in_thread(self.native_ones))
        assert (elsewhere is there) is (self.adapter.scope_reach == "process"), (
            f"another thread creates tensors on {elsewhere}"
        )

    def placed_by_default(self) -> Device:
        """Selects the backend under test, and returns `default_place`. Called in a new thread, in which another backend
        may be the default."""
        with xdevice.use_backend(self.backend):
            return self.default_place()

    def test_scopes_of_threads_leave_each_other_alone(self) -> None:
        self.skip_without_kernels()
        before = xdevice.device_of(self.native_ones())
        for device in self.devices_with_values():
            self.in_thread(self.placed_in, device)
            self.assert_creates_on(before, "a scope of another thread is still active")

    def placed_in(self, device: Device) -> None:
        """Checks that the framework creates tensors on `device` inside `with device:`. Called in a new thread."""
        with xdevice.use_backend(self.backend), device:
            self.assert_creates_on(device)

    def test_the_default_device_holds_until_it_is_set_again(self) -> None:
        here, there = self.home_device, self.second_device()
        before = xdevice.device_of(self.native_ones())
        try:
            for device in (there, here, there):
                xdevice.set_default_device(device)
                assert xdevice.device() is device
                self.assert_creates_on(device)
                assert self.default_place() is device
            with here:
                assert xdevice.device() is here
                self.assert_creates_on(here)
                # this must raise an error, because the end of the block would silently undo the
                # setting
                with pytest.raises(ScopeError, match="set_default_device"):
                    xdevice.set_default_device(there)
            self.assert_creates_on(there)
            assert self.in_thread(self.placed_by_default) is devices.CPU
        finally:
            xdevice.set_default_device(None)
        assert xdevice.device() is devices.CPU
        self.assert_creates_on(before)
