"""`__array_namespace_info__`: the devices, dtypes and capabilities that a backend currently has on this machine."""

from __future__ import annotations

from typing import Any, Final

from xdevice.base.devices import Device
from xdevice.tensors import creation

from . import dtypes
from .checks import Checks

STANDARD: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip
"""The dtypes of the standard."""


class Info:
    """The object that the standard's `__array_namespace_info__` returns."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._backend = checks.backend

    def capabilities(self) -> dict[str, Any]:
        """Returns the standard's dict of capabilities: whether a mask may be an index, whether shapes may depend on
        values, and the largest number of dimensions."""
        # "data-dependent shapes" is True because `nonzero` and the `unique` functions work;
        # NumPy computes their indices on the host
        return {
            "boolean indexing": self._checks.kernels.TAKES_MASKS,
            "data-dependent shapes": True,
            "max dimensions": self._backend.most_axes,
        }

    def devices(self) -> tuple[Device, ...]:
        """Returns the devices of the backend, except "meta", because tensors on that device have no values."""
        # tensors on the device "meta" have no values
        return tuple(device for device in self._backend.devices() if device.kind != "meta")

    def default_device(self) -> Device:
        """Returns the device of new tensors: the device of the `with device:` block, or `cpu:0` outside a block."""
        return creation.place_for(self._backend, device=None)

    def default_dtypes(self, *, device: object = None) -> dict[str, Any]:
        """Returns a dict with the default dtype for each kind of the standard, such as "integral". Kinds that
        `device` does not support are omitted. None means the default device."""
        target_device = creation.place_for(self._backend, device)
        defaults = {
            "real floating": "float32",
            "complex floating": "complex64",
            "integral": "int64",
            "indexing": "int64",
        }
        # `default_dtype_on` returns the dtype that the device uses for this default, and
        # `supported_dtype` returns the dtype that the framework currently uses for it: int32
        # instead of int64 on JAX without 64-bit
        names = {
            kind: self._checks.supported_dtype(
                creation.default_dtype_on(self._backend, target_device, name)
            )
            for kind, name in defaults.items()
            # `supported_dtype` would raise an error for a dtype that the framework does not
            # support at all, such as complex64 on MXNet
            if name in self._backend.dtypes
        }
        # a kind that has no dtype on this device is omitted
        available = self._names_on(device)
        return {
            kind: self._checks.kernels.dtype(name)
            for kind, name in names.items()
            if name in available
        }

    def dtypes(
        self, *, device: object = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """Returns a dict with the dtypes of the given kinds that the device supports, by name. If `kind` is None, the
        dict contains all kinds; if `device` is None, the default device is used."""
        # these two kinds together include every dtype of the standard
        kinds = ("bool", "numeric") if kind is None else kind
        if isinstance(kinds, str):
            kinds = (kinds,)
        names = [
            name
            for name in self._names_on(device)
            if any(dtypes.is_dtype(name, item) for item in kinds)
        ]
        return {name: self._checks.kernels.dtype(name) for name in names}

    def _names_on(self, device: object) -> list[str]:
        """Returns the names of the standard's dtypes that a device of this backend currently supports."""
        target_device = creation.place_for(self._backend, device)
        lacks = self._backend.lacks(target_device)
        return [
            name
            for name in STANDARD
            if name in self._backend.dtypes
            and name not in lacks
            and self._backend.dtype_refusal(name) is None
        ]
