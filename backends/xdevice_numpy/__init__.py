"""The adapter for NumPy, for machines without any other framework. It implements xdevice's hooks (the methods that
xdevice's core calls) with NumPy's functions. NumPy has one device, computes synchronously, and has no models.

The adapter must follow these rules:

- Every function that promises a copy passes `copy=True`, because `asarray` may return an alias.
- A masked array is not treated as dense, because most of NumPy's functions silently drop its
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
    """NumPy as a backend. `xdevice.contract` describes each hook in more detail."""

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
        """Returns a description of the CPU: its name, and None for its memory, which NumPy does not report."""
        return DeviceInfo("cpu", memory=None)

    def to_native(self, device: Device) -> str:
        """Returns "cpu", NumPy's name for its only device."""
        return "cpu"  # the value that NumPy's own functions accept as `device=`

    def from_native(self, native: Any) -> Device | None:
        """Returns None, because NumPy has no class of devices."""
        return None

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager that has no effect, because NumPy creates all arrays on the CPU."""
        return nullcontext()

    # tensors

    def device_of(self, x: np.ndarray[Any, Any]) -> Device:
        return _CPU

    def move(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Raises AssertionError. The core never calls this method, because it moves an array only to another
        device."""
        raise AssertionError("NumPy has only one device, so no array can be moved")

    def copy(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Returns a copy of `x`, as an array of the same subclass. Python objects in `x` are deep-copied. `device` is
        ignored."""
        # `np.array` would copy only the references in an array of Python objects, and not the
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
        """Returns an array of the given shape and dtype, filled with `value`. `device` is ignored."""
        # `zeros` is much faster, but cannot be used for a float, which may be -0.0
        if type(value) is int and not value:
            return np.zeros(shape, host_dtype(dtype))
        return np.full(shape, value, dtype=host_dtype(dtype))

    # containers

    def container_way(self, x: Any) -> Way | None:
        """Returns a `Way` that lists the objects in `x` if `x` is an array of Python objects, and otherwise None."""
        if not isinstance(x, np.ndarray) or not x.dtype.hasobject:
            return None
        # `tolist` is not used for a 0-d array, because it would return the single
        # object instead of a list
        return Way(lambda x: x.tolist() if x.ndim else [x.item()])

    # how a tensor is stored

    def is_dense(self, x: np.ndarray[Any, Any]) -> bool:
        """Whether `x` is dense. Every array is dense except a masked array, because its mask is stored elsewhere."""
        return not isinstance(x, np.ma.MaskedArray)

    # asynchrony

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager that has no effect, because NumPy computes synchronously."""
        return nullcontext()

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns a `Memory` in which all numbers are None, because NumPy does not report any."""
        return Memory()

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Does nothing, because NumPy's default dtype is already float64."""

    # answers to users' questions

    def why_no_gpu(self) -> str:
        """Returns the reason why NumPy has no GPU, for an error message."""
        return "NumPy computes on the CPU only"
