"""`torch.Generator("vgpu")`: a generator of the host whose `device` is a virtual GPU.

PyTorch makes the generators of a foreign device in C++ only, by `getNewGenerator` of
PrivateUse1HooksInterface. From the same seed, a virtual GPU draws the same numbers as the host,
because the host computes for it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from xdevice.errors import UnsupportedError
from xdevice_torch.private import private

_address = private.field("torch.Generator._cdata")
_addresses: set[int] = set()
"""The addresses in C++ of the generators of virtual GPUs."""


def belongs_to_gpu(generator: torch.Generator) -> bool:
    """Whether a generator was made for a virtual GPU. An operation receives a new Python object
    for the same C++ generator, so the address in C++ is compared."""
    return _address(generator) in _addresses


def class_for(own: Any, name: str) -> Any:
    """Returns the class that replaces `own`, which is `torch.Generator`. Called with a device
    of the kind `name`, it makes a generator of a virtual GPU; with any other device, PyTorch's
    own generator."""

    # a metaclass, because `isinstance(x, torch.Generator)` must stay true for PyTorch's own
    # generators
    class Kind(type(own)):  # type: ignore[misc]
        def __call__(cls, device: Any = "cpu") -> Any:
            place = torch.device(device)
            # a program's subclass comes to `__new__` below, which refuses other devices
            if place.type == name or cls is not Generator:
                return super().__call__(place)
            return own(device)

        def __instancecheck__(cls, value: object) -> bool:
            # a generator of the host is of the class `own`
            if cls is Generator:
                return isinstance(value, own)
            return bool(super().__instancecheck__(value))

    class Generator(own, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, place: torch.device) -> Any:
            # only for a program's subclass
            if place.type != name:
                raise UnsupportedError(
                    f"a subclass of torch.Generator on {place} is not supported with virtual GPUs"
                )
            generator: Any = own.__new__(cls)
            address = _address(generator)
            _addresses.add(address)
            # another generator may get the address later
            weakref.finalize(generator, _addresses.discard, address)
            return generator

        def __init__(self, place: torch.device) -> None:
            index = (
                getattr(torch, name).current_device() if place.index is None else place.index
            )
            self._place = torch.device(name, index)

        @property
        def device(self) -> torch.device:
            return self._place

    return Generator
