"""`Suite`, the base of all checks: chooses devices, makes tensors, and compares them."""

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
from xdevice.core import scopes  # noqa: F401  # importing it makes `with device:` work, if a check runs alone

from . import values
from .capabilities import described, lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.testing.contract.samples import Samples, Work

    from .values import Array

HOMES = ("cpu:0", "gpu:0")
"""The devices on which the suite runs if a subclass does not set `home`."""


class Planned(Exception):  # noqa: N818  # a test's own, and no error of the package
    """The exception that a check raises on purpose."""


def refusal_of(ask: Callable[[], object]) -> str | None:
    """The text of the `UnsupportedError` that a call raises; None if it raises none."""
    try:
        ask()
    except xdevice.errors.UnsupportedError as error:
        return _whole_text(error)
    return None


@contextmanager
def skipping_what_is_refused() -> Iterator[None]:
    """A block that skips the check, with the adapter's own words, if the adapter refuses what the block asks for."""
    try:
        yield
    except xdevice.errors.UnsupportedError as error:
        pytest.skip(_whole_text(error))


def _whole_text(error: Exception) -> str:
    """The text of a refusal, which must say what to use instead."""
    text = str(error)
    assert "; " in text, f"say what to use instead: {text}"
    return text


def _skip(reason: str, **_: Any) -> None:
    pytest.skip(reason)


def once(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a check that does not depend on the home device, and so runs on one device only."""
    test.runs_once = True  # type: ignore[attr-defined]
    return test


class Suite:
    """The base class of all checks. A subclass names the `backend`, and pytest collects its tests."""

    backend: ClassVar[str] = ""
    """The backend under test."""
    home: str = ""
    """The device on which the checks make their tensors. If it is empty, the suite runs on cpu:0, and also on gpu:0 if
    there is one."""
    other: str | None = None
    """The second device of checks that need two: by default another GPU, or else the device that the adapter's samples
    make, or else cpu:0."""
    computes: ClassVar[bool] = True
    """False if the framework can place and copy tensors on the GPU, but has no kernels to compute there."""
    child_setup: ClassVar[str] = ""
    """Code that child processes run before anything else."""
    patience: ClassVar[float] = 60
    """Seconds after which a check gives up waiting for something that should have ended long before."""

    # the devices that checks run on

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        # every check runs once for each home device, as a test of its own
        if "place" in metafunc.fixturenames:
            metafunc.parametrize(
                "place", homes_of(type(self), metafunc.function), scope="function"
            )

    @pytest.fixture(autouse=True)
    def _select(self, place: str, request: pytest.FixtureRequest) -> Iterator[None]:
        # pytest makes an object for each test, so this changes no other check
        self.home = place
        absent = lacking(self.adapter, request.function)
        request.node.user_properties += [
            ("xdevice lacks", f"{self.backend} lacks {described(name)}") for name in absent
        ]
        if absent or not self.has_home():
            # pytest's summary folds skips that come from one line of code, but lists those of fixtures one by one
            reason = f"lacks {', '.join(absent)}" if absent else f"has no {place} here"
            request.node.obj = partial(_skip, f"{self.backend} {reason}")
            yield
            return
        with self.select():
            yield

    def has_home(self) -> bool:
        """Whether this machine has the home device."""
        # some frameworks make a second device only before they are used, and this is the first call
        self.samples.other_device()
        return self.adapter.has(self.here)

    @contextmanager
    def select(self) -> Iterator[None]:
        """A block that every check runs inside: it makes the second device, and selects the backend."""
        self.home = self.home or HOMES[0]
        self.second()
        with xdevice.use_backend(self.backend):
            if not self.computes:
                with suppress(Exception):
                    xdevice.sync()  # waits for the work of earlier checks, for which this device has no kernels
            try:
                yield
            finally:
                # errors of asynchronous work must not surface in the next check
                self.samples.settle()

    @property
    def adapter(self) -> Backend:
        return xdevice.backend(self.backend)

    @property
    def samples(self) -> Samples:
        samples: Samples = self.adapter.samples()
        return samples

    def second(self) -> Device | None:
        """The second device: the one that the class names, or another GPU, or a device of the samples, or cpu:0."""
        if self.other:
            return devices.parse(self.other)
        # called first: some frameworks can make one only before they are used
        other = self.samples.other_device()
        gpus = [devices.of("gpu", i) for i in range(self.adapter.count("gpu"))]
        choice = [*gpus, other, devices.CPU]
        return next((device for device in choice if device not in (None, self.here)), None)

    def there(self) -> Device:
        device: Device = need(self.second(), "a second device")
        return device

    @property
    def here(self) -> Device:
        """The home device, on which the checks make their tensors."""
        # parsed at each use, because the text may name a device that the samples have yet to make
        return devices.parse(self.home)

    def places(self) -> list[Device]:
        """The home device, and the second device if its tensors have values."""
        return [
            place
            for place in self.all_places()
            if place is self.here or self.holds_values(place)
        ]

    def all_places(self) -> list[Device]:
        """The home device, and the second device if there is one."""
        second = self.second()
        return [self.here] if second is None else [self.here, second]

    def there_with_values(self) -> Device:
        there = self.there()
        if not self.holds_values(there):
            pytest.skip(f"{there} holds no values")
        return there

    def holds_values(self, device: Device) -> bool:
        return device.kind != "meta"

    def needs_kernels(self) -> None:
        if not self.computes:
            pytest.skip(f"{self.backend} has no kernels for this GPU")

    # tensors

    def make(
        self, data: Any = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), dtype: str | None = None
    ) -> Any:
        return xdevice.tensor(data, device=self.home, dtype=dtype)

    def dtypes(self) -> list[str]:
        """The dtypes that the framework can make and the devices of the checks can hold: JAX without 64-bit refuses
        int64 and float64."""
        lacked = {name for place in self.places() for name in self.adapter.lacks(place)}
        return [
            name
            for name in sorted(self.adapter.dtypes - lacked)
            if self.adapter.dtype_refusal(name) is None
        ]

    def odd_arrays(self) -> dict[str, Array]:
        """The NumPy arrays from which `odd_tensors` makes tensors, by name."""
        arrays = {name: values.telling(name) for name in self.dtypes()}
        # a number that float32 rounds, so that a detour through another dtype shows
        arrays["0-d"] = np.array(-1 / 3, "float32")
        arrays["empty"] = np.zeros((2, 0), dtype="float32")
        # an odd number of elements that is larger than a page, so that pieces do not end at a row
        arrays["long"] = np.random.default_rng(0).normal(size=(33, 1025)).astype("float32")
        return arrays | self._views(arrays["float32"])

    def odd_tensors(self) -> dict[str, Any]:
        """Tensors of every dtype with extreme values, and of shapes that copies easily get wrong."""
        tensors = {
            name: self.make(array, array.dtype.name)
            for name, array in self.odd_arrays().items()
        }
        with self.here:  # TensorFlow slices on the GPU where there is one
            return tensors | self._views(tensors["float32"])

    def odd(self) -> Iterator[tuple[str, Any, Array]]:
        """The name of each of the `odd_tensors`, the tensor, and the array that it was made from."""
        arrays = self.odd_arrays()
        for name, x in self.odd_tensors().items():
            yield name, x, arrays[name]

    def _views(self, x: Any) -> dict[str, Any]:
        """A slice of an array or a tensor, and its transpose, if the framework's tensors have views."""
        views = {}
        tensor = self.make()
        # not contiguous: a copy of bytes that ignores strides gets it wrong
        if self.computes and hasattr(tensor, "__getitem__"):
            views["sliced"] = x[:, 1:]
        if self.computes and hasattr(tensor, "T"):
            views["transposed"] = x.T
        return views

    def plain_tensors(self) -> dict[str, Any]:
        """Tensors of every dtype whose sums and means are exact, one without axes, and one without elements."""
        tensors = {name: self.make(values.plain(name), dtype=name) for name in self.dtypes()}
        return {
            **tensors,
            "0-d": self.make(-1.5),
            "empty": self.make(np.zeros((2, 0), dtype="float32")),
        }

    def pending(self) -> tuple[Any, Array]:
        """A tensor that may still be computed, and the array that it will equal."""
        self.needs_kernels()
        array = values.plain("float32")
        x = self.make(array)
        return self.add(x, x), array + array

    def add(self, x: Any, y: Any) -> Any:
        """`x + y`, computed by the framework on the home device."""
        with self.here:
            return self.samples.add(x, y)

    def long_work(self, device: Device) -> Work:
        """Work that has just begun on a device."""
        work: Work = need(
            self.samples.long_work(device), "work that can be asked whether it is done"
        )
        return work

    def address(self, x: Any) -> int | None:
        """The address at which the memory of a tensor begins; None if it has no elements, or if the framework does not
        tell."""
        # frameworks give tensors without elements any address, or none
        return None if 0 in tuple(x.shape) else self.samples.address(x)

    def arrays_of(self, model: Any) -> dict[str, Array]:
        """The values of a model's or an optimizer's variables, as the adapter reads them."""
        return {
            name: self.adapter.to_numpy(x).copy() for name, x in self.adapter.variables(model)
        }

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor is marked as one that gets a gradient; None if the framework does not mark tensors so."""
        return self.samples.requires_grad(x)

    # threads

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in a thread of its own, and returns what it returns. Fails if that takes longer than
        `patience` seconds."""
        results: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function(*arguments))
            except BaseException as error:
                # kept for the calling thread: pytest does not see what is raised in another
                errors.append(error)

        # a pool of threads would wait for a thread that hangs
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.patience)
        assert not thread.is_alive(), f"a thread did not end within {self.patience} s"
        if errors:
            raise errors[0]
        return results[0]

    # comparing

    def assert_holds(self, x: Any, array: Array, name: str = "") -> None:
        """Checks that a tensor has the dtype, shape and values of an array, bit for bit; on a device without data only
        the shape."""
        assert tuple(x.shape) == array.shape, (
            f"{name}: shape {tuple(x.shape)}, expected {array.shape}"
        )
        # a leaf may be a lone variable, which is a model
        tensor = self.adapter.tensor_of(x) if self.adapter.classify(type(x)) == "model" else x
        if self.holds_values(self.adapter.device_of(tensor)):
            assert_same(self.adapter.to_numpy(tensor), array, name)

    def assert_reads(self, x: Any, array: Array, name: str = "") -> None:
        """Checks that `to_numpy` gives the dtype, shape and values of an array, bit for bit."""
        assert_same(xdevice.to_numpy(x), array, name)

    def assert_on(self, place: Device, x: Any, array: Array, name: str = "") -> None:
        """Checks that a tensor is on a device, and what `assert_holds` checks."""
        device = xdevice.device_of(x)
        assert device is place, f"{name}: on {device}, expected {place}"
        self.assert_holds(x, array, name)

    def assert_equal(self, actual: Any, expected: Any, name: str = "") -> None:
        """Checks that two tensors have the same dtype, shape and values, bit for bit; on a device without data only
        dtype and shape."""
        there = self.holds_values(xdevice.device_of(actual)) and self.holds_values(
            xdevice.device_of(expected)
        )
        assert tuple(actual.shape) == tuple(expected.shape), name
        assert str(actual.dtype) == str(expected.dtype), name
        if there:
            assert_same(xdevice.to_numpy(actual), xdevice.to_numpy(expected), name)

    def assert_gradient(self, function: Callable[[Any], Any]) -> None:
        """Checks that the gradient of the sum of `function(x)` with respect to `x` is -2.5 everywhere."""
        self.needs_kernels()
        x = self.make()
        with self.here:  # TensorFlow would compute on the GPU where there is one
            need(self.samples.gradient(lambda x: x * 3, x), "gradients")
            gradient = self.samples.gradient(function, x)
        # frameworks give None, not an error, where a copy has cut the graph
        assert gradient is not None, "the gradient does not arrive"
        self.assert_on(xdevice.device_of(x), gradient, np.full((2, 3), -2.5, "float32"))

    def assert_apart(self, x: Any, y: Any, name: str = "") -> None:
        """Checks that two tensors are not in the same memory."""
        if 0 not in tuple(x.shape):
            assert self.address(x) != need(self.samples.address(y), "addresses"), (
                f"{name}: the same memory"
            )


def homes_of(cls: type[Suite], test: Any) -> tuple[str, ...]:
    return ((cls.home,) if cls.home else HOMES)[: 1 if hasattr(test, "runs_once") else None]


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Checks that two arrays have the same dtype and shape, and are equal bit for bit."""
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{name}: shape {actual.shape}, expected {expected.shape}"
    )
    # no `assert`, for which pytest would print the bytes
    if actual.tobytes() != expected.tobytes():
        raise AssertionError(f"{name}: {actual} is not {expected}")


def need(value: Any, what: str) -> Any:
    if value is None:
        pytest.skip(f"the samples do not have: {what}")
    return value


def side_by_side(function: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
    """Calls a function for each argument, in as many threads at the same time, and returns what the calls return."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(function, arguments))


def cast(array: Any, name: str) -> Array:
    """The array in the dtype that xdevice calls `name`, bfloat16 included."""
    return np.asarray(array).astype(host_dtype(name))
