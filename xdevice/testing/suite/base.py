"""`Suite`, the base class of all checks: chooses devices, and creates and compares tensors."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import xdevice
from xdevice.base import devices
from xdevice.base.dtypes import host_dtype
from xdevice.core import scopes  # noqa: F401  # this import makes `with device:` work if a check runs alone

from . import values
from .capabilities import describe_capability, lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.testing.contract.samples import Samples, Work

    from .values import Array

HOMES = ("cpu:0", "gpu:0")
"""The home devices on which the suite runs if a subclass does not set `home`."""


class PlannedFailure(Exception):  # noqa: N818  # an exception of the tests, and not an error of the package
    """The exception that a check raises on purpose."""


def refusal_of(ask: Callable[[], object]) -> str | None:
    """Returns the message of the `UnsupportedError` that `ask()` raises; None if `ask()` does not raise this error.
    Fails the check if the message does not say what to use instead."""
    try:
        ask()
    except xdevice.errors.UnsupportedError as error:
        return _whole_text(error)
    return None


@contextmanager
def skipping_what_is_refused() -> Iterator[None]:
    """A block in which an `UnsupportedError` skips the check. The reason is the message of the error."""
    try:
        yield
    except xdevice.errors.UnsupportedError as error:
        pytest.skip(_whole_text(error))


def _whole_text(error: Exception) -> str:
    """Returns the message of an `UnsupportedError`. Fails the check if the message does not say what to use instead."""
    # in xdevice's own errors, this advice follows a semicolon
    text = str(error)
    assert "; " in text, f"the message must say what to use instead: {text}"
    return text


def _skip(reason: str, **_: Any) -> None:
    """Skips the check. pytest calls this function instead of the check, and passes the check's fixtures as keywords."""
    pytest.skip(reason)


def on_one_device(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a check that does not depend on the home device, and therefore runs on one device
    only."""
    test.runs_once = True  # type: ignore[attr-defined]
    return test


class Suite:
    """The base class of all checks. A subclass names the `backend`, and pytest collects the
    subclass's tests."""

    backend: ClassVar[str] = ""
    """The backend under test."""
    home: str = ""
    """The device on which the checks create their tensors. If this is "", the suite runs on cpu:0, and again on gpu:0
    if that exists."""
    other: str | None = None
    """The second device, for checks that need two. If this is None, the second device is another GPU, else the device
    that the adapter's samples create, else cpu:0."""
    computes: ClassVar[bool] = True
    """Whether the framework has kernels for the GPU. If not, it can only place tensors on the GPU and copy them."""
    child_setup: ClassVar[str] = ""
    """Python code that child processes run before anything else."""
    patience: ClassVar[float] = 60
    """The number of seconds after which a check stops waiting, for example for a thread, and
    fails."""

    # the devices that checks run on

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Turns each check into one test for each home device."""
        if "place" in metafunc.fixturenames:
            metafunc.parametrize(
                "place", homes_of(type(self), metafunc.function), scope="function"
            )

    @pytest.fixture(autouse=True)
    def _select(self, place: str, request: pytest.FixtureRequest) -> Iterator[None]:
        """Prepares a check on the home device `place`. Skips the check if the adapter lacks a capability that the check
        needs, or if this machine does not have the device."""
        # pytest creates a new object for each test, so this changes no other check
        self.home = place
        absent = lacking(self.adapter, request.function)
        request.node.user_properties += [
            ("xdevice lacks", f"{self.backend} lacks {describe_capability(name)}")
            for name in absent
        ]
        if absent or not self.has_home():
            # `_skip` skips the check, because pytest's summary groups skips that come from the
            # same line of code, but lists skips in fixtures individually
            reason = f"lacks {', '.join(absent)}" if absent else f"has no {place} here"
            request.node.obj = partial(_skip, f"{self.backend} {reason}")
            yield
            return
        with self.select():
            yield

    def has_home(self) -> bool:
        """Whether this machine has the home device."""
        # the second device is created first, because some frameworks can create one only before
        # they are used
        self.samples.other_device()
        return self.adapter.has(self.home_device)

    @contextmanager
    def select(self) -> Iterator[None]:
        """A block around every check. It creates the second device, and selects the backend."""
        self.home = self.home or HOMES[0]
        self.second_device_or_none()
        with xdevice.use_backend(self.backend):
            # errors of earlier work are ignored, because the device has no kernels for this work
            if not self.computes:
                with suppress(Exception):
                    xdevice.sync()
            try:
                yield
            finally:
                # errors of asynchronous work must not surface in the next check
                self.samples.settle()

    @property
    def adapter(self) -> Backend:
        """The adapter under test."""
        return xdevice.backend(self.backend)

    @property
    def samples(self) -> Samples:
        """The adapter's samples of its framework."""
        samples: Samples = self.adapter.samples()
        return samples

    def second_device_or_none(self) -> Device | None:
        """Returns `other` if the class sets it. Otherwise returns the first of these devices that exists and is not the
        home device: a GPU, a device that the samples create, cpu:0. Returns None if there is no such device."""
        if self.other:
            return devices.parse(self.other)
        # called before GPUs are counted, because counting uses the framework, and some frameworks can create a second
        # device only before they are used
        other = self.samples.other_device()
        gpus = [devices.of("gpu", i) for i in range(self.adapter.count("gpu"))]
        choice = [*gpus, other, devices.CPU]
        return next(
            (device for device in choice if device not in (None, self.home_device)), None
        )

    def second_device(self) -> Device:
        """Returns the second device: see `second_device_or_none`. Skips the check if there is no second device."""
        device: Device = skip_if_none(self.second_device_or_none(), "a second device")
        return device

    @property
    def home_device(self) -> Device:
        """The home device, on which the checks create their tensors: `home` as a `Device`."""
        # parsed at each use, because `home` may name a device that the samples create later
        return devices.parse(self.home)

    def devices_with_values(self) -> list[Device]:
        """Returns the home device, and the second device if it exists and its tensors have values."""
        return [
            place
            for place in self.all_devices()
            if place is self.home_device or self.holds_values(place)
        ]

    def all_devices(self) -> list[Device]:
        """Returns the home device, and the second device if there is one."""
        second = self.second_device_or_none()
        return [self.home_device] if second is None else [self.home_device, second]

    def second_device_with_values(self) -> Device:
        """Returns the second device. Skips the check if there is no second device, or if its tensors have no values."""
        there = self.second_device()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        return there

    def holds_values(self, device: Device) -> bool:
        """Whether tensors on a device have values. On PyTorch's "meta" device, they have none."""
        return device.kind != "meta"

    def skip_without_kernels(self) -> None:
        """Skips the check if the framework cannot compute on the GPU."""
        if not self.computes:
            pytest.skip(f"{self.backend} has no kernels for this GPU")

    # tensors for the checks

    def make(
        self, data: Any = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), dtype: str | None = None
    ) -> Any:
        """Returns a tensor with the values of `data` on the home device. `dtype` is the name of its dtype; if it is
        None, `xdevice.tensor` chooses the dtype."""
        return xdevice.tensor(data, device=self.home, dtype=dtype)

    def dtypes(self) -> list[str]:
        """Returns the dtypes that the framework can create and that the devices of the checks can hold. For example,
        JAX without 64-bit does not support int64 and float64."""
        lacked = {
            name for place in self.devices_with_values() for name in self.adapter.lacks(place)
        }
        return [
            name
            for name in sorted(self.adapter.dtypes - lacked)
            if self.adapter.dtype_refusal(name) is None
        ]

    def odd_arrays(self) -> dict[str, Array]:
        """Returns, by name, the NumPy arrays that `odd_tensors` converts to tensors."""
        arrays = {name: values.extreme_values(name) for name in self.dtypes()}
        # a number that float32 rounds, so that a detour through another dtype is detected
        arrays["0-d"] = np.array(-1 / 3, "float32")
        arrays["empty"] = np.zeros((2, 0), dtype="float32")
        # larger than a page of memory, and with an odd number of elements, so that the pieces
        # of a copy end inside a row
        arrays["long"] = np.random.default_rng(0).normal(size=(33, 1025)).astype("float32")
        return arrays | self._views(arrays["float32"])

    def odd_tensors(self) -> dict[str, Any]:
        """Returns, by name, tensors of every dtype with extreme values, and tensors of shapes
        that copies easily get wrong."""
        tensors = {
            name: self.make(array, array.dtype.name)
            for name, array in self.odd_arrays().items()
        }
        # inside a block, because TensorFlow would slice on a GPU if there is one
        with self.home_device:
            return tensors | self._views(tensors["float32"])

    def odd_tensors_and_arrays(self) -> Iterator[tuple[str, Any, Array]]:
        """Yields, for each of the `odd_tensors`, the name, the tensor, and the array from which the tensor was
        created."""
        arrays = self.odd_arrays()
        for name, x in self.odd_tensors().items():
            yield name, x, arrays[name]

    def _views(self, x: Any) -> dict[str, Any]:
        """Returns, by name, a slice and the transpose of `x`, an array or a tensor. Leaves out the slice if the
        framework's tensors cannot be sliced, and the transpose if they have no `T`. Leaves out both if the framework
        cannot compute on the GPU."""
        views = {}
        # `x` may be an array, but only what the framework's tensors can do counts
        tensor = self.make()
        # neither is contiguous, so a copy of bytes that ignores strides gets the values wrong
        if self.computes and hasattr(tensor, "__getitem__"):
            views["sliced"] = x[:, 1:]
        if self.computes and hasattr(tensor, "T"):
            views["transposed"] = x.T
        return views

    def plain_tensors(self) -> dict[str, Any]:
        """Returns, by name, tensors of every dtype with exact sums and means, a 0-d tensor, and a tensor
        without elements."""
        tensors = {
            name: self.make(values.small_numbers(name), dtype=name) for name in self.dtypes()
        }
        return {
            **tensors,
            "0-d": self.make(-1.5),
            "empty": self.make(np.zeros((2, 0), dtype="float32")),
        }

    def pending(self) -> tuple[Any, Array]:
        """Returns a tensor whose computation may still be in progress, and the array that the tensor will equal. Skips
        the check if the framework cannot compute on the GPU."""
        self.skip_without_kernels()
        array = values.small_numbers("float32")
        x = self.make(array)
        return self.add(x, x), array + array

    def add(self, x: Any, y: Any) -> Any:
        """Returns `x + y`, computed by the framework on the home device."""
        with self.home_device:
            return self.samples.add(x, y)

    def long_work(self, device: Device) -> Work:
        """Returns work that has just begun on a device. Skips the check if the samples have no such work."""
        work: Work = skip_if_none(
            self.samples.long_work(device), "work whose completion can be checked"
        )
        return work

    def address(self, x: Any) -> int | None:
        """Returns the start address of a tensor's memory; None if the tensor has no elements, or if the framework does
        not reveal the address."""
        # a tensor without elements may have any address
        return None if 0 in tuple(x.shape) else self.samples.address(x)

    def arrays_of(self, model: Any) -> dict[str, Array]:
        """Returns, by name, copies of the values of a model's or an optimizer's variables, as
        the adapter reads them."""
        return {
            name: self.adapter.to_numpy(x).copy() for name, x in self.adapter.variables(model)
        }

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor is marked as requiring a gradient; None if the framework does not mark tensors."""
        return self.samples.requires_grad(x)

    # calling a function in another thread

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in a new thread, and returns its result or raises its error. Fails the check if the call
        takes longer than `patience` seconds."""
        results: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            """Calls the function, and stores its result or its error."""
            try:
                results.append(function(*arguments))
            except BaseException as error:
                # the calling thread raises the error below, because pytest does not notice
                # errors in other threads
                errors.append(error)

        # a pool of threads would wait for a thread that hangs
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.patience)
        assert not thread.is_alive(), f"a thread did not end within {self.patience} s"
        if errors:
            raise errors[0]
        return results[0]

    # comparing tensors and arrays

    def assert_holds(self, x: Any, array: Array, name: str = "") -> None:
        """Checks that a tensor has the dtype, shape and values of an array, bit for bit. On a device without values,
        checks only the shape. Here and in the methods below, `name` is the name of the tensor in errors."""
        assert tuple(x.shape) == array.shape, (
            f"{name}: shape {tuple(x.shape)}, expected {array.shape}"
        )
        # `x` may be a variable of TensorFlow, which is classified as a model
        tensor = self.adapter.tensor_of(x) if self.adapter.classify(type(x)) == "model" else x
        if self.holds_values(self.adapter.device_of(tensor)):
            assert_same(self.adapter.to_numpy(tensor), array, name)

    def assert_reads(self, x: Any, array: Array, name: str = "") -> None:
        """Checks that `to_numpy(x)` returns an array with the dtype, shape and values of
        `array`, bit for bit."""
        assert_same(xdevice.to_numpy(x), array, name)

    def assert_on(self, place: Device, x: Any, array: Array, name: str = "") -> None:
        """Checks that a tensor is on the device `place`, and that it equals an array as in
        `assert_holds`."""
        device = xdevice.device_of(x)
        assert device is place, f"{name}: on {device}, expected {place}"
        self.assert_holds(x, array, name)

    def assert_equal(self, actual: Any, expected: Any, name: str = "") -> None:
        """Checks that two tensors have the same dtype, shape and values, bit for bit. On a device without values,
        checks only the dtype and the shape."""
        have_values = self.holds_values(xdevice.device_of(actual)) and self.holds_values(
            xdevice.device_of(expected)
        )
        assert tuple(actual.shape) == tuple(expected.shape), name
        assert str(actual.dtype) == str(expected.dtype), name
        if have_values:
            assert_same(xdevice.to_numpy(actual), xdevice.to_numpy(expected), name)

    def assert_gradient(self, function: Callable[[Any], Any]) -> None:
        """Checks the gradient of the sum of `function(x)` with respect to `x`, a tensor on the home device. The
        gradient must be on the home device, and must be -2.5 everywhere. Therefore, `function` must return `x` times
        -2.5, moved or copied in some way. Skips the check if the framework has no gradients."""
        self.skip_without_kernels()
        x = self.make()
        # inside a block, because TensorFlow would compute on a GPU if there is one
        with self.home_device:
            # a framework without gradients returns None for any function
            skip_if_none(self.samples.gradient(lambda x: x * 3, x), "gradients")
            gradient = self.samples.gradient(function, x)
        # frameworks return None instead of raising an error if a copy has cut the graph
        assert gradient is not None, "the gradient does not reach x"
        self.assert_on(xdevice.device_of(x), gradient, np.full((2, 3), -2.5, "float32"))

    def assert_different_memory(self, x: Any, y: Any, name: str = "") -> None:
        """Checks that the memory of two tensors does not begin at the same address. Tensors without elements pass.
        Skips the check if the samples do not return addresses."""
        if 0 not in tuple(x.shape):
            assert self.address(x) != skip_if_none(self.samples.address(y), "addresses"), (
                f"{name}: both tensors have the same memory"
            )


def homes_of(cls: type[Suite], test: Any) -> tuple[str, ...]:
    """Returns the home devices on which the check `test` of the class `cls` runs: the `home` of the class, or all of
    `HOMES` if the class does not set `home`. A check that is marked by `on_one_device` runs only on the first of these
    devices."""
    homes = (cls.home,) if cls.home else HOMES
    return homes[:1] if hasattr(test, "runs_once") else homes


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Checks that two arrays have the same dtype and shape, and are equal bit for bit."""
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{name}: shape {actual.shape}, expected {expected.shape}"
    )
    # raised directly, because for an `assert` pytest would print all bytes
    if actual.tobytes() != expected.tobytes():
        raise AssertionError(f"{name}: got {actual}, expected {expected}")


def skip_if_none(value: Any, what: str) -> Any:
    """Returns `value`, the result of a method of the samples. If `value` is None, the check is skipped, because the
    samples lack an object that the check needs. `what` describes the missing object in the reason for the skip."""
    if value is None:
        pytest.skip(f"the samples do not have: {what}")
    return value


def call_in_threads(function: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
    """Calls a function once for each argument. All calls run at the same time, each in its own thread. Returns the
    results in the order of the arguments."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(function, arguments))


def cast(array: Any, name: str) -> Array:
    """Returns an array, cast to the dtype with this name. The dtype may be one that NumPy lacks, such as "bfloat16"."""
    return np.asarray(array).astype(host_dtype(name))
