"""The conformance suite: what every adapter, ours and a third party's, is held to.

A third party's test file is three lines, and pytest does the rest::

    from xdevice.testing import Conformance

    class TestMyBackend(Conformance):
        backend = "mybackend"

The suite runs on `home` and, for all that crosses devices, on `other`: by default cpu:0 and the second device that the
adapter's samples make on a machine without a GPU. Set them to "gpu:0" and "gpu:1" for hardware. What the samples of
an adapter do not have is skipped with its name, so read the skips.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import UserDict, defaultdict, namedtuple
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pytest

import xdevice
from xdevice import devices
from xdevice.contract import Backend, check
from xdevice.devices import Device
from xdevice.dtypes import dtype_name, host_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.samples import Samples

Pair = namedtuple("Pair", ["left", "right"])
_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Batch:
    """A container that plain tree libraries take for a leaf."""

    x: Any
    label: str
    extra: Any = field(init=False, default=None)


class Failure(NamedTuple):
    """One check of the suite that did not hold."""

    check: str
    error: BaseException


class Conformance:
    """Subclass it, name the `backend`, and let pytest collect the tests."""

    backend: ClassVar[str] = ""
    """The backend under test."""
    home: ClassVar[str] = "cpu:0"
    """Where tensors begin."""
    other: ClassVar[str | None] = None
    """A second device; None for the one that the samples make."""
    computes: ClassVar[bool] = True
    """False where the framework can place and copy but has no kernels for the GPU."""
    child_setup: ClassVar[str] = ""
    """Code that child processes run before anything else."""

    @pytest.fixture(autouse=True)
    def _selected(self) -> Iterator[None]:
        with self.selected():
            yield

    @contextmanager
    def selected(self) -> Iterator[None]:
        """What every check runs in: the second device made, the backend selected."""
        self.second()
        with xdevice.use(self.backend):
            if not self.computes:
                with suppress(Exception):
                    xdevice.sync()  # what earlier checks have started, for which there are no kernels
            try:
                yield
            finally:
                self.samples.settle()

    @property
    def adapter(self) -> Backend:
        return xdevice.backend(self.backend)

    @property
    def samples(self) -> Samples:
        return self.adapter.samples()

    def second(self) -> Device | None:
        return devices.parse(self.other) if self.other else self.samples.other_device()

    def there(self) -> Device:
        device: Device = _need(self.second(), "a second device")
        return device

    def here(self) -> Device:
        return devices.parse(self.home)

    def holds_values(self, device: Device) -> bool:
        return device.kind != "meta"

    def make(self, data: Any = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), dtype: str | None = None) -> Any:
        return xdevice.tensor(data, device=self.home, dtype=dtype)

    def dtypes(self) -> list[str]:
        """The dtypes that really come out: JAX without 64-bit gives int32 for int64 and refuses float64."""
        held = []
        for name in sorted(self.adapter.dtypes):
            try:
                x = self.make([1, 0, 1], dtype=name)
            except xdevice.DTypeError:
                continue
            if xdevice.to_numpy(x).dtype.name == name:
                held.append(name)
        return held

    def odd_tensors(self) -> dict[str, Any]:
        """Tensors of every dtype, and of the shapes that copies get wrong."""
        found = {name: self.make([[0, 1, 1]], dtype=name) for name in self.dtypes()}
        found["0-d"] = self.make(3.0)
        found["empty"] = self.make(np.zeros((2, 0), dtype="float32"))
        if self.computes:
            with self.here():  # TensorFlow slices on the GPU where there is one
                found["sliced"] = self.make()[:, 1:]
            found.update({"transposed": self.make().T} if hasattr(self.make(), "T") else {})
        return found

    def assert_equal(self, actual: Any, expected: Any, name: str = "") -> None:
        """Same dtype, shape and values, bit for bit; values are not asked of a device without data."""
        there = self.holds_values(xdevice.device_of(actual)) and self.holds_values(xdevice.device_of(expected))
        assert tuple(actual.shape) == tuple(expected.shape), name
        assert str(actual.dtype) == str(expected.dtype), name
        if there:
            a, b = xdevice.to_numpy(actual), xdevice.to_numpy(expected)
            assert a.dtype == b.dtype, name
            assert a.tobytes() == b.tobytes(), f"{name}: {a} is not {b}"

    # the contract

    def test_keeps_the_contract(self) -> None:
        adapter = self.adapter
        assert check(type(adapter), self.backend, "the suite") is type(adapter)
        assert adapter.version
        assert adapter.framework.__name__ == adapter.modules[0]
        assert adapter.name in repr(adapter)

    # devices

    def test_every_device_goes_to_its_native_object_and_back(self) -> None:
        there = self.adapter.devices()
        assert devices.CPU in there
        assert len(set(there)) == len(there)
        for device in there:
            assert xdevice.device(device.native) is device
            assert device.native == self.adapter.to_native(device)

    def test_devices_are_described(self) -> None:
        name, memory = self.adapter.describe(self.here())
        assert name
        assert memory is None or memory > 0

    def test_try_gpu_gives_what_is_there(self) -> None:
        n = xdevice.num_gpus()
        assert [xdevice.try_gpu(i) for i in range(n)] == [xdevice.gpu(i) for i in range(n)]
        assert xdevice.try_gpu(n) is devices.CPU
        assert xdevice.try_all_gpus() == ([xdevice.gpu(i) for i in range(n)] or [xdevice.cpu()])
        assert xdevice.native.try_gpu(n) == xdevice.cpu().native
        assert xdevice.native.try_all_gpus() == [device.native for device in xdevice.try_all_gpus()]

    @pytest.mark.parametrize("missing", ["gpu:999", "cpu:99999", "tpu:77"])
    def test_a_missing_device_is_refused_before_anything_happens(self, missing: str) -> None:
        x = self.make()
        before = xdevice.to_numpy(x)
        tries: list[Callable[[], object]] = [
            lambda: xdevice.to_device(x, missing),
            lambda: xdevice.copy_to(x, missing),
            lambda: xdevice.to_device([1, {"x": x}], missing),
            lambda: xdevice.tensor([1.0], device=missing),
            lambda: xdevice.ones(2, device=missing),
            lambda: xdevice.rand(2, device=missing),
            lambda: xdevice.sync(missing),
            lambda: xdevice.device(missing).native,
            lambda: xdevice.device(missing).__enter__(),
        ]
        tries += [lambda make=make: xdevice.to_device(make(), missing) for make in self.samples.models().values()]  # type: ignore[misc]
        for attempt in tries:
            with pytest.raises(xdevice.DeviceNotFoundError, match=missing):
                attempt()
        assert xdevice.device_of(x) is self.here()
        assert (xdevice.to_numpy(x) == before).all()

    # creation and reading

    def test_dtypes_are_the_same_everywhere(self) -> None:
        wide = xdevice.to_numpy(self.make(np.zeros(1, "int64"))).dtype.name
        assert wide == "int64" or (wide == "int32" and "jax" in self.adapter.modules)
        for data, expected in [
            (1, wide),
            ([1, 2], wide),
            ([True, False], "bool"),
            (1.5, "float32"),
            ([1, 2.5], "float32"),
            (np.ones(2), "float32"),
            (np.ones(2, "float32"), "float32"),
            (np.ones(2, "int32"), "int32"),
            (np.ones(2, ">i4"), "int32"),
            (np.ones(2, "uint8"), "uint8"),
            (np.ones(2, "float16"), "float16"),
        ]:
            assert xdevice.to_numpy(self.make(data)).dtype.name == expected, data
        for name in self.dtypes():
            assert dtype_name(self.make([1], dtype=name).dtype) == name

    def test_every_dtype_survives_the_way_in_and_out(self) -> None:
        rng = np.random.default_rng(0)
        for name in self.dtypes():
            source = rng.integers(0, 2 if name == "bool" else 100, size=(3, 4)).astype(host_dtype(name))
            back = xdevice.to_numpy(xdevice.tensor(source, device=self.home, dtype=name))
            assert back.dtype.name == name
            assert back.tobytes() == source.tobytes(), name

    def test_memory_is_taken_over_and_read_without_a_change(self) -> None:
        for name in (*self.dtypes(), *sorted(self.adapter.short_floats)):
            raw = np.arange(64 * 80 + 64, dtype="uint8") % (2 if name == "bool" else 251)
            begin = -raw.ctypes.data % 64
            source = raw[begin : begin + 64 * 80].view(host_dtype(name)).reshape(-1, 8)
            expected = source.tobytes()
            for x in (self.adapter.from_numpy(source, devices.CPU), self.adapter.from_buffer(source)):
                assert self.adapter.device_of(x) is devices.CPU, name
                for array in (self.adapter.to_numpy(x), self.adapter.peek(x)):
                    assert array.dtype.name == name
                    assert array.shape == source.shape, name
                    assert array.tobytes() == expected, name

    def test_a_dtype_that_is_not_there_is_refused(self) -> None:
        for name in {"float32", "int16", "complex64", "uint16"} - self.adapter.dtypes:
            with pytest.raises(xdevice.DTypeError, match=name):
                self.make([1], dtype=name)
        with pytest.raises(xdevice.DTypeError):
            self.make([1], dtype="floaty")
        with pytest.raises(xdevice.DTypeError):
            self.make(2**70)
        with pytest.raises(xdevice.DTypeError):
            self.make([300], dtype="uint8")

    def test_odd_sources_go_in_right(self) -> None:
        base = np.arange(24, dtype="float32").reshape(4, 6)
        for source in (base.T, base[::-1], base[:, ::-2], base[1:3, 2:4], base[:0], np.float32(3), np.array(2.0, "f")):
            assert (xdevice.to_numpy(self.make(source)) == source).all()
            assert tuple(self.make(source).shape) == np.shape(source)
        frozen = base.copy()
        frozen.setflags(write=False)
        assert (xdevice.to_numpy(self.make(frozen)) == base).all()

    def test_tensor_never_aliases_its_source(self) -> None:
        for source in _aligned_and_not():
            expected = source.copy()
            x = self.make(source)
            xdevice.sync(x)
            source[:] = -1
            assert (xdevice.to_numpy(x) == expected).all()

    def test_to_numpy_never_aliases(self) -> None:
        x = self.make()
        read = xdevice.to_numpy(x)
        read[:] = -1
        assert xdevice.to_numpy(x).ravel().tolist() == [1, 2, 3, 4, 5, 6]

    def test_to_numpy_reads_every_tensor(self) -> None:
        for name, x in self.odd_tensors().items():
            array = xdevice.to_numpy(x)
            assert array.shape == tuple(x.shape), name
            assert array.flags.c_contiguous, name
        if self.computes:
            assert xdevice.to_numpy(self.odd_tensors()["sliced"]).tolist() == [[2, 3], [5, 6]]
        nested = xdevice.to_numpy({"x": [self.make()], "n": 3})
        assert type(nested["x"][0]) is np.ndarray
        assert nested["n"] == 3

    def test_item_gives_a_python_number(self) -> None:
        for data, expected in [(2.5, 2.5), ([[7]], 7), ([True], True)]:
            value = xdevice.item(self.make(data))
            assert value == expected
            assert type(value) is type(expected)
        with pytest.raises(ValueError, match="one element"):
            xdevice.item(self.make())

    def test_converting_to_numpy_and_back_keeps_every_tensor(self) -> None:
        for name, x in self.odd_tensors().items():
            host = xdevice.to_device(x, "cpu")
            for copy in (None, True):
                there = xdevice.convert(host, "numpy", copy=copy)
                assert isinstance(there, np.ndarray), name
                self.assert_equal(xdevice.convert(there, self.backend, copy=copy), host, name)

    def test_converting_shares_memory_only_where_it_says_so(self) -> None:
        x = xdevice.to_device(self.make(), "cpu")
        address = _need(self.samples.address(x), "an address")
        assert xdevice.convert(x, "numpy", copy=True).ctypes.data != address
        with suppress(BufferError):
            assert xdevice.convert(x, "numpy", copy=False).ctypes.data == address

    def test_creators_place_where_they_are_told(self) -> None:
        places = [self.home] + ([str(self.second())] if self.second() else [])
        for place in places:
            for x in self.created(place):
                assert str(xdevice.device_of(x)) == place
                assert tuple(x.shape) == (2, 3)

    def test_creators_place_on_cpu_0_by_default(self) -> None:
        for x in self.created(None):
            assert xdevice.device_of(x) is devices.CPU

    def created(self, place: str | None) -> list[Any]:
        found = [xdevice.tensor(((1, 2, 3), (4, 5, 6)), device=place)]
        if self.computes:
            found += [f(2, 3, device=place) for f in (xdevice.ones, xdevice.zeros, xdevice.rand)]
        return found

    def test_creators_give_what_they_say(self) -> None:
        self.needs_kernels()
        assert xdevice.to_numpy(xdevice.ones((2, 1), device=self.home)).tolist() == [[1], [1]]
        assert xdevice.to_numpy(xdevice.zeros(2, device=self.home, dtype="int32")).tolist() == [0, 0]
        numbers = xdevice.to_numpy(xdevice.rand(1000, device=self.home))
        assert numbers.dtype.name == "float32"
        assert 0 <= numbers.min() < 0.1 < 0.9 < numbers.max() < 1
        assert len(np.unique(numbers)) > 900
        assert tuple(xdevice.ones().shape) == ()
        assert tuple(xdevice.ones(0, 3).shape) == (0, 3)

    # moving

    def test_to_device_gives_the_same_object_where_it_is_there(self) -> None:
        for name, x in self.odd_tensors().items():
            for spelling in (self.here(), self.home, self.here().native):
                assert xdevice.to_device(x, spelling) is x, name
        batch = {"x": [self.make()]}
        assert xdevice.to_device(batch, self.home) is batch

    def test_to_device_moves_and_leaves_the_source(self) -> None:
        for name, x in self.odd_tensors().items():
            before = xdevice.to_numpy(x)
            moved = xdevice.to_device(x, self.there())
            assert moved is not x
            assert xdevice.device_of(moved) is self.there(), name
            self.assert_equal(moved, x, name)
            assert xdevice.device_of(x) is self.here(), name
            assert xdevice.to_numpy(x).tobytes() == before.tobytes(), name

    def test_a_tensor_comes_back_as_it_went(self) -> None:
        there = self.there()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        for name, x in self.odd_tensors().items():
            back = xdevice.to_device(xdevice.to_device(x, there), self.home)
            assert xdevice.device_of(back) is self.here(), name
            self.assert_equal(back, x, name)

    def test_copy_to_is_new_storage_on_the_same_device(self) -> None:
        for name, x in self.odd_tensors().items():
            copied = xdevice.copy_to(x, self.home)
            assert copied is not x, name
            assert xdevice.device_of(copied) is self.here(), name
            self.assert_equal(copied, x, name)
            if 0 not in tuple(x.shape):
                assert self.samples.address(copied) != _need(self.samples.address(x), "addresses"), name

    def test_copy_to_another_device(self) -> None:
        for name, x in self.odd_tensors().items():
            copied = xdevice.copy_to(x, self.there())
            assert xdevice.device_of(copied) is self.there(), name
            assert xdevice.device_of(x) is self.here(), name
            self.assert_equal(copied, x, name)

    def test_requires_grad_stays(self) -> None:
        self.needs_kernels()
        for wanted in (True, False):
            x = self.samples.marked(self.make()) if wanted else self.make()
            if self.samples.requires_grad(x) is None:
                pytest.skip(f"{self.backend} does not mark tensors")
            targets = [self.here(), *filter(None, [self.second()])]
            for target in targets:
                assert self.samples.requires_grad(xdevice.to_device(x, target)) is wanted
                assert self.samples.requires_grad(xdevice.copy_to(x, target)) is wanted
            assert self.samples.requires_grad(x) is wanted

    def test_gradients_flow_through_a_copy_on_the_same_device(self) -> None:
        self.assert_gradient_is_three(lambda x: xdevice.copy_to(x * 3, self.home))

    def test_gradients_flow_through_to_device_that_does_nothing(self) -> None:
        self.assert_gradient_is_three(lambda x: xdevice.to_device(x * 3, self.home))

    def test_gradients_flow_there_and_back(self) -> None:
        there = self.there()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        for verb in (xdevice.to_device, xdevice.copy_to):
            self.assert_gradient_is_three(lambda x, verb=verb: verb(verb(x * 3, there), self.home))  # type: ignore[misc]

    def test_gradients_arrive_where_the_source_is(self) -> None:
        there = self.there()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        self.assert_gradient_is_three(lambda x: xdevice.to_device(x, there) * 3)

    def assert_gradient_is_three(self, function: Callable[[Any], Any]) -> None:
        self.needs_kernels()
        x = self.make()
        with self.here():  # TensorFlow computes on the GPU where there is one
            _need(self.samples.gradient(lambda x: x * 3, x), "gradients")
            gradient = self.samples.gradient(function, x)
        assert gradient is not None, "the gradient does not arrive"
        assert xdevice.to_numpy(gradient).tolist() == [[3, 3, 3], [3, 3, 3]]
        assert xdevice.device_of(gradient) is xdevice.device_of(x)

    def test_what_cannot_move_is_refused(self) -> None:
        for thing in (object(), 3, 2.5, "gpu", None, iter(())):
            for verb in (xdevice.to_device, xdevice.copy_to):
                with pytest.raises(xdevice.NotATensorError, match=type(thing).__qualname__):
                    verb(thing, self.home)

    # comparing

    def test_device_of_and_same_device_see_where_tensors_are(self) -> None:
        x, y = self.make(), self.make()
        assert xdevice.device_of(x) is self.here()
        assert xdevice.device_of([x, {"y": y}]) is self.here()
        assert xdevice.same_device(x, y, [x])
        assert xdevice.same_device()
        assert xdevice.check_same_device(x, y=[y]) is self.here()

    def test_a_mismatch_is_found_and_named(self) -> None:
        x, far = self.make(), xdevice.copy_to(self.make(), self.there())
        assert not xdevice.same_device(x, far)
        assert not xdevice.same_device(x, [x, {"far": far}])
        with pytest.raises(
            xdevice.DeviceMismatchError, match=rf"batch\['x'\]\[1\] is on {self.there()}, expected {self.home}"
        ):
            xdevice.check_same_device(batch={"x": [x, far]})
        with pytest.raises(xdevice.DeviceMismatchError, match="argument 1"):
            xdevice.check_same_device(x, far)
        with pytest.raises(xdevice.DeviceMismatchError):
            xdevice.device_of([x, far])

    # containers

    def test_containers_keep_their_shape_and_types(self) -> None:
        target = self.second() or self.here()
        x = self.make()
        batch = Batch(x, "cat")
        nested: dict[str, Any] = {
            "list": [x, 1],
            "tuple": (x, "text"),
            "named": Pair(x, None),
            "default": defaultdict(list, a=[x]),
            "frozen": batch,
            "user": UserDict(x=x),
            "proxy": MappingProxyType({"x": x}),
        }
        for verb in (xdevice.to_device, xdevice.copy_to):
            moved = verb(nested, target)
            assert list(moved) == list(nested)
            assert [type(value) for value in moved.values()] == [type(value) for value in nested.values()]
            assert moved["frozen"].label == "cat"
            assert moved["named"].right is None
            assert moved["default"].default_factory is list
            tensors = [
                moved["list"][0], moved["tuple"][0], moved["named"].left, moved["default"]["a"][0],
                moved["frozen"].x, moved["user"]["x"], moved["proxy"]["x"],
            ]  # fmt: skip
            assert all(tensor is tensors[0] for tensor in tensors), "one tensor in seven places must stay one"
            assert xdevice.device_of(tensors[0]) is target
            assert nested["list"][0] is x

    def test_a_container_that_contains_itself_is_refused(self) -> None:
        loop: list[Any] = [self.make()]
        loop.append(loop)
        with pytest.raises(xdevice.ContainerError, match="contains itself"):
            xdevice.to_device(loop, self.home)

    # scopes

    def test_a_scope_places_what_the_framework_creates(self) -> None:
        there = self.there()
        with there:
            assert xdevice.device_of(self.native_ones()) is there
            assert xdevice.device_of(xdevice.tensor([1.0])) is there
            with self.here():
                assert xdevice.device_of(self.native_ones()) is self.here()
            assert xdevice.device_of(self.native_ones()) is there
        assert xdevice.device_of(xdevice.tensor([1.0])) is devices.CPU

    def native_ones(self) -> Any:
        self.needs_kernels()
        return self.samples.native_ones(2)

    def test_a_scope_ends_after_an_exception(self) -> None:
        there = self.second() or self.here()
        before = xdevice.device_of(self.native_ones())

        def fails() -> None:
            with there:
                raise KeyError("planned")

        with pytest.raises(KeyError, match="planned"):
            fails()
        assert xdevice.device_of(self.native_ones()) is before
        assert xdevice.device_of(xdevice.tensor([1.0])) is devices.CPU

    def test_a_scope_holds_for_one_thread(self) -> None:
        with self.second() or self.here():
            assert _in_thread(lambda: self.placed_by_default()) is devices.CPU

    def placed_by_default(self) -> Device:
        with xdevice.use(self.backend):
            return xdevice.device_of(xdevice.tensor([1.0]))

    # waiting

    def test_sync_takes_every_target(self) -> None:
        x = self.make()
        xdevice.sync()
        xdevice.sync(self.home, self.here(), self.here().native, x, [x, {"x": x, "n": 1}], self.adapter)
        with pytest.raises(xdevice.NotATensorError):
            xdevice.sync(object())

    def test_sync_waits_for_work_under_way(self) -> None:
        self.needs_kernels()
        for narrow in (False, True):
            work = _need(self.samples.long_work(self.here()), "work that can be asked whether it is done")
            assert not work.is_done(), "the work was done before anybody waited: make the sample longer"
            xdevice.sync(*([work.result] if narrow else []))
            assert work.is_done()

    def test_errors_of_asynchronous_work_surface_at_sync(self) -> None:
        for how in ("all", "device", "tensor", "container"):
            x = _need(self.samples.failing_work(), "work that fails asynchronously")
            targets = {"all": (), "device": ("cpu:0",), "tensor": (x,), "container": ({"x": [x]},)}[how]
            with pytest.raises(Exception) as raised:
                xdevice.sync(*targets)
            assert not isinstance(raised.value, xdevice.XDeviceError)
            del x

    # models

    def built(self) -> Iterator[tuple[str, Any]]:
        models = self.samples.models()
        if not models:
            pytest.skip(f"{self.backend} has no models")
        for name, make in models.items():
            yield name, xdevice.to_device(make(), self.home)

    def test_a_model_that_is_there_is_left_alone(self) -> None:
        for name, model in self.built():
            before = self.addresses(model)
            assert xdevice.device_of(model) is self.here(), name
            assert xdevice.to_device(model, self.home) is model, name
            assert self.addresses(model) == before, name

    def addresses(self, model: Any) -> dict[str, int | None]:
        return {name: self.samples.address(x) for name, x in self.samples.variables(model).items()}

    def test_a_model_moves_in_place_with_its_values(self) -> None:
        there = self.there()
        for name, model in self.built():
            before = {key: xdevice.to_numpy(x) for key, x in self.samples.variables(model).items()}
            assert xdevice.to_device(model, there) is model, name
            assert xdevice.device_of(model) is there, name
            after = self.samples.variables(model)
            for key in before:
                x = after[key]
                assert xdevice.device_of(x) is there, f"{name}.{key}"
                if self.holds_values(there):
                    assert xdevice.to_numpy(x).tobytes() == before[key].tobytes(), f"{name}.{key}"

    def test_a_copied_model_shares_nothing(self) -> None:
        for target in filter(None, (self.here(), self.second())):
            for name, model in self.built():
                copied = xdevice.copy_to(model, target)
                assert copied is not model, name
                assert xdevice.device_of(copied) is target, name
                assert xdevice.device_of(model) is self.here(), name
                old, new = self.samples.variables(model), self.samples.variables(copied)
                assert len(new) >= len(old), name
                for (key, a), b in zip(old.items(), new.values(), strict=False):
                    self.assert_equal(b, a, f"{name}.{key}")
                    if self.holds_values(target):
                        assert self.samples.address(a) != self.samples.address(b), f"{name}.{key}"

    def test_a_parameter_beside_its_model_stays_its_parameter(self) -> None:
        there = self.there()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        for (name, model), (_, twin) in zip(self.built(), self.built(), strict=True):
            if not self.samples.variables(model):
                continue
            alone, one = (next(iter(self.samples.variables(net).values())) for net in (twin, model))
            xdevice.to_device(twin, there)
            is_kept = next(iter(self.samples.variables(twin).values())) is alone  # Gluon's parameters make new arrays
            moved = xdevice.to_device({"one": one, "net": model}, there)
            assert moved["net"] is model, name
            assert xdevice.device_of(moved) is there, name
            assert not is_kept or moved["one"] is one, name

    def test_variables_are_those_of_the_state_dict(self) -> None:
        asked = 0
        for (name, model), (_, twin) in zip(self.built(), self.built(), strict=True):
            with suppress(xdevice.NotBuiltError):  # torch moves a lazy module, but it has no values
                found = list(self.adapter.variables(model))
                keys = [key for key, _ in found]
                assert len(set(keys)) == len(keys), f"{name}: {keys}"
                assert len(keys) == len(list(self.adapter.variables(twin))), name
                values = [self.adapter.to_numpy(value).tobytes() for _, value in found]
                all_values = [xdevice.to_numpy(x).tobytes() for x in self.samples.variables(model).values()]
                assert found, name
                assert not set(values) - set(all_values), name
                target = self.second() or self.here()
                xdevice.to_device(model, target)
                assert {self.adapter.device_of(x) for _, x in self.adapter.variables(model)} == {target}, name
                asked += 1
        assert asked

    def test_a_shared_variable_comes_under_both_names(self) -> None:
        model, _ = _need(self.samples.tied(), "a model with shared parameters")
        found = list(self.adapter.variables(model))
        assert len({name for name, _ in found}) > len({id(value) for _, value in found})

    def test_shared_parameters_stay_shared(self) -> None:
        model, is_shared = _need(self.samples.tied(), "a model with shared parameters")
        assert is_shared(model)
        assert is_shared(xdevice.to_device(model, self.home))
        assert is_shared(xdevice.copy_to(model, self.home))
        there = self.second()
        if there is not None and self.holds_values(there):
            assert is_shared(xdevice.to_device(model, there))
            assert xdevice.device_of(model) is there

    def test_a_spread_model_is_a_named_mismatch(self) -> None:
        model = _need(self.samples.spread(self.there()), "a model spread over two devices")
        for ask in (xdevice.device_of, xdevice.check_same_device):
            with pytest.raises(xdevice.DeviceMismatchError, match=f"{self.there()}"):
                ask(model)
        assert not xdevice.same_device(model)
        xdevice.to_device(model, self.there())
        assert xdevice.device_of(model) is self.there()

    def test_an_unbuilt_model_is_refused(self) -> None:
        model = _need(self.samples.unbuilt(), "models without variables")
        for ask in (
            xdevice.device_of,
            lambda m: xdevice.to_device(m, self.home),
            lambda m: xdevice.copy_to(m, self.home),
            lambda m: list(self.adapter.variables(m)),
        ):
            with pytest.raises(xdevice.NotBuiltError):
                ask(model)

    def test_a_moved_model_trains_on_as_if_it_had_stayed(self) -> None:
        self.needs_kernels()
        (model, step), (stayed, twin_step) = (_need(self.samples.trainable(), "training") for _ in range(2))
        x, y = self.training_data()
        places = [self.here()]
        if (there := self.second()) is not None and self.holds_values(there):
            places += [there, self.here()]
        losses = []
        for place in places:
            xdevice.to_device(model, place)
            for _ in range(3):
                with place:
                    losses.append(step(xdevice.to_device(x, place), xdevice.to_device(y, place)))
                with devices.CPU:
                    expected = twin_step(x, y)
                assert losses[-1] == pytest.approx(expected, rel=1e-4), f"training differs on {place}"
        assert losses[-1] < 0.9 * losses[0], "the model does not learn"
        mine, its = self.samples.variables(model), self.samples.variables(stayed)
        for (name, a), b in zip(mine.items(), its.values(), strict=True):
            np.testing.assert_allclose(xdevice.to_numpy(a), xdevice.to_numpy(b), rtol=1e-4, atol=1e-6, err_msg=name)

    def training_data(self) -> tuple[Any, Any]:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(16, 4)).astype("float32")
        return xdevice.tensor(x), xdevice.tensor(x.sum(axis=1, keepdims=True))

    # several devices

    def test_a_tensor_splits_and_joins(self) -> None:
        self.needs_kernels()
        for name, x in self.odd_tensors().items():
            if name == "0-d":
                joined = self.adapter.join([x, x])
                assert xdevice.to_numpy(joined).tolist() == [xdevice.item(x)] * 2
                continue
            length = x.shape[0]
            parts = self.adapter.split(x, [length, 0])
            assert [tuple(part.shape) for part in parts] == [tuple(x.shape), (0, *x.shape[1:])], name
            parts = self.adapter.split(x, [0, length - 1, 1])
            assert all(xdevice.device_of(part) is self.here() for part in parts), name
            joined = self.adapter.join(parts)
            assert xdevice.device_of(joined) is self.here(), name
            self.assert_equal(joined, x, name)

    def test_a_leaf_is_a_copy_that_asks_for_gradients(self) -> None:
        self.needs_kernels()
        for target in filter(None, (self.here(), self.second())):
            for name, x in self.odd_tensors().items():
                leaf = self.adapter.leaf(x, target)
                held = self.adapter.tensor_of(leaf)
                held = leaf if held is None else held
                assert xdevice.device_of(held) is target, name
                self.assert_equal(held, x, name)
                assert self.samples.requires_grad(leaf) in (None, dtype_name(x.dtype) in _FLOATS), name
                if 0 not in tuple(x.shape) and self.holds_values(target):
                    assert self.samples.address(held) != _need(self.samples.address(x), "addresses"), name

    def test_write_puts_values_into_the_memory_that_is_there(self) -> None:
        self.needs_kernels()
        for name, x in self.odd_tensors().items():
            leaf = self.adapter.leaf(xdevice.copy_to(x, self.home), self.here())
            value = xdevice.to_device(self.make(np.full(tuple(x.shape), 1), dtype=dtype_name(x.dtype)), self.home)
            asks = self.samples.requires_grad(leaf)
            if self.adapter.tensor_of(leaf) is None and not self.adapter.can_write(leaf):
                with pytest.raises(xdevice.UnsupportedError, match="written"):
                    self.adapter.write(leaf, value)
                continue
            has_address = self.adapter.tensor_of(leaf) is None and 0 not in tuple(x.shape)
            before = self.samples.address(leaf) if has_address else None
            self.adapter.write(leaf, value)
            held = self.adapter.tensor_of(leaf)
            self.assert_equal(leaf if held is None else held, value, name)
            assert self.samples.requires_grad(leaf) is asks, name
            assert before is None or self.samples.address(leaf) == before, name

    def test_a_total_is_new_and_keeps_its_dtype(self) -> None:
        self.needs_kernels()
        for name, x in self.odd_tensors().items():
            if name == "bool":
                continue
            before = xdevice.to_numpy(x)
            total = self.adapter.total([x, x, x], False)
            assert xdevice.to_numpy(total).tolist() == (before * 3).tolist(), name
            assert str(total.dtype) == str(x.dtype), name
            assert xdevice.to_numpy(x).tobytes() == before.tobytes(), f"{name}: the first one was written"
            if dtype_name(x.dtype) in _FLOATS:
                self.assert_equal(self.adapter.total([x, x], True), x, name)

    def test_all_reduce_gives_both_devices_the_same(self) -> None:
        self.needs_kernels()
        there = self.second() or self.here()
        if not self.holds_values(there):
            there = self.here()
        for name, x in self.odd_tensors().items():
            if name == "bool":
                continue
            xs = [xdevice.copy_to(x, self.home), xdevice.copy_to(x, there)]
            writable = [self.adapter.can_write(y) for y in xs]
            results = self.adapter.all_reduce(xs, False)
            for y, result, in_place, place in zip(xs, results, writable, (self.here(), there), strict=True):
                assert xdevice.device_of(result) is place, name
                assert (result is y) is in_place, name
                assert xdevice.to_numpy(result).tolist() == (xdevice.to_numpy(x) * 2).tolist(), name

    # threads, forks, loading

    def test_eight_threads_at_once(self) -> None:
        results: list[Any] = []

        def work() -> None:
            with xdevice.use(self.backend):
                for _ in range(20):
                    x = xdevice.tensor([1.0, 2.0], device=self.home)
                    target = self.second() or self.here()
                    moved = xdevice.copy_to(x, target)
                    results.append(
                        (xdevice.device_of(moved) is target, xdevice.same_device(x, xdevice.to_device(x, self.home)))
                    )

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 160
        assert set(results) == {(True, True)}

    def test_loading_is_light_locked_and_safe_to_fork(self) -> None:
        seen = in_child("load", self.backend, self.child_setup)
        assert seen["imported by xdevice"] == [], "import xdevice must import no framework and no NumPy"
        assert seen["imported under a held lock"] is False, "the framework must be imported by xdevice.loader.importing"
        assert seen["loaded in threads"] == 8
        assert seen["other backends"] == []
        assert seen["works in the main thread"] == 2.0, "it must work after the thread that loaded it has ended"
        assert seen["works in a new thread"] == 2.0

    def test_forking_after_loading_and_counting(self) -> None:
        self.needs_kernels()
        if not hasattr(os, "fork"):
            pytest.skip("this system does not fork")
        seen = in_child("fork", self.backend, self.child_setup)
        # TensorFlow can tell what GPUs it has only by initialising CUDA
        allowed = ("2.0", "UnsupportedError") if self.adapter.count("gpu") else ("2.0",)
        assert seen["child after loading"] in allowed, seen
        assert seen["child after use"] in ("2.0", "UnsupportedError"), f"it must work, or say why not: {seen}"

    # what a subclass may need

    def needs_kernels(self) -> None:
        if not self.computes:
            pytest.skip(f"{self.backend} has no kernels for this GPU")

    @classmethod
    def failures(cls, *names: str) -> list[Failure]:
        """Runs the checks of these names, or all, without pytest, and gives what did not hold. A skip holds nothing."""
        suite, failed = cls(), []
        for name in names or [name for name in dir(cls) if name.startswith("test_")]:
            for arguments in _parameters(getattr(cls, name)):
                failed += _failure(suite, name, arguments)
        return failed


def _failure(suite: Conformance, name: str, arguments: tuple[Any, ...]) -> list[Failure]:
    try:
        with suite.selected():
            getattr(suite, name)(*arguments)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        return [Failure(name, error)]
    return []


def _parameters(test: Any) -> list[tuple[Any, ...]]:
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            return [(value,) for value in mark.args[1]]
    return [()]


def _need(value: Any, what: str) -> Any:
    if value is None:
        pytest.skip(f"the samples have not: {what}")
    return value


def _in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0] if found else None


def _aligned_and_not() -> Iterator[np.ndarray[Any, Any]]:
    """NumPy arrays whose memory begins at a multiple of 64 bytes, and elsewhere: JAX shares only the first."""
    raw = np.zeros(64 * 4 + 64, dtype="float32")
    start = (-raw.ctypes.data % 64) // 4
    for offset in (start, start + 1):
        source = raw[offset : offset + 64]
        source[:] = np.arange(64)
        yield source


# child processes: what can be seen only in a fresh one


def in_child(question: str, backend: str, setup: str = "") -> dict[str, Any]:
    """Asks a fresh process a question about a backend: `load` or `fork`."""
    code = f"{setup}\nfrom xdevice import _child\n_child.{question}({backend!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        raise AssertionError(f"the child process ended with {done.returncode}:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
