"""The adapter for NumPy, for machines without any other framework: xdevice's hooks (the methods
that its core calls), written with NumPy's functions. NumPy has one device, computes
synchronously, and has no models.

The rules that it must keep:

- Every function that promises a copy passes `copy=True`, because `asarray` may return an alias.
- A masked array does not count as dense, because most of NumPy's functions silently drop its
  mask.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.dtypes import DTYPES, SHORT_FLOATS, host_dtype
from xdevice.contract import Backend, DeviceInfo, Kind, Memory, Way
from xdevice.contract.loader import importing

with importing():
    import numpy as np

from .conversion import NumpyConversion, detached
from .replicas import NumpyReplicas

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from xdevice.base.devices import Device


_CPU = devices.CPU


class NumpyBackend(NumpyConversion, NumpyReplicas, Backend):
    """NumPy as a backend. `xdevice.contract` says more about each hook."""

    name = "numpy"
    modules = ("numpy",)
    minimum = (1, 24)
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(SHORT_FLOATS)
    opaque = (
        np.random.Generator,
        np.random.RandomState,
        np.random.BitGenerator,
        np.random.SeedSequence,
    )
    kinds = ("cpu",)

    # the framework

    @property
    def framework(self) -> ModuleType:
        return np

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" for a class of arrays, and None for any other class."""
        return "tensor" if issubclass(cls, np.ndarray) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns 1 for "cpu", and 0 for any other kind of device."""
        return int(kind == "cpu")

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of the CPU, without its memory, which NumPy does not report."""
        return DeviceInfo("cpu", None)

    def to_native(self, device: Device) -> str:
        """Returns "cpu", NumPy's name for its only device."""
        return "cpu"  # what NumPy's own functions take as `device=`

    def from_native(self, native: Any) -> Device | None:
        """Always returns None, because NumPy has no class of devices."""
        return None  # NumPy has no class of devices

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a block that changes nothing."""
        return nullcontext()  # NumPy makes all arrays on the CPU

    # tensors

    def device_of(self, x: np.ndarray[Any, Any]) -> Device:
        return _CPU

    def move(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Always raises AssertionError. Never called, because the core moves an array only to
        another device."""
        raise AssertionError("NumPy has one device, so nothing moves")

    def copy(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Returns a copy of `x`, an array of the same subclass. Python objects in `x` are
        deep-copied; `device` is ignored."""
        # `np.array` would copy the references of an array of Python objects, and not the
        # objects
        return copy.deepcopy(x) if x.dtype.hasobject else np.array(x, copy=True, subok=True)

    def synchronize(self, device: Device | None) -> None:
        """Does nothing, because NumPy computes synchronously."""

    def wait(self, x: np.ndarray[Any, Any]) -> None:
        """Does nothing, because NumPy computes synchronously."""

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Returns a copy of `array`. `device` is ignored."""
        return np.array(array, copy=True)

    def to_numpy(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the array itself. Raises `UnsupportedError` for a masked array."""
        return detached(x)

    def full(
        self, shape: tuple[int, ...], value: float, device: Device, dtype: str
    ) -> np.ndarray[Any, Any]:
        """Returns an array of this shape and dtype, filled with `value`. `device` is
        ignored."""
        # `zeros` is much faster, but a float may be -0.0
        if type(value) is int and not value:
            return np.zeros(shape, host_dtype(dtype))
        return np.full(shape, value, dtype=host_dtype(dtype))

    # containers

    def container_way(self, x: Any) -> Way | None:
        """Returns how to list the objects in `x`, an array of Python objects; None for any
        other array or object."""
        if not isinstance(x, np.ndarray) or not x.dtype.hasobject:
            return None
        # `tolist` of an array without axes returns its one object
        return Way(lambda x: x.tolist() if x.ndim else [x.item()])

    # what a tensor is made of

    def is_dense(self, x: np.ndarray[Any, Any]) -> bool:
        """Whether `x` is one block of numbers: any array except a masked one."""
        return not isinstance(x, np.ma.MaskedArray)

    # asynchrony

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a block that changes nothing."""
        return nullcontext()  # NumPy computes synchronously

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns a `Memory` in which all numbers are None."""
        return Memory()  # NumPy reports no numbers

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Does nothing, because NumPy makes float64 anyway."""

    # what people ask

    def why_no_gpu(self) -> str:
        """Returns why NumPy has no GPU, for an error message."""
        return "NumPy computes on the CPU only"
