"""`torch.Generator("vgpu")`: a generator of the host that says that it is a virtual GPU's.

PyTorch makes the generators of a foreign device in C++ only, by `getNewGenerator` of PrivateUse1HooksInterface. A
virtual GPU draws the same numbers as the host from the same seed, since the host computes for it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from xdevice.errors import UnsupportedError
from xdevice_torch.private import private

_address = private.field("torch.Generator._cdata")
_addresses: set[int] = set()


def belongs_to_gpu(generator: torch.Generator) -> bool:
    """Whether a generator was made for a virtual GPU. An operation gets another Python object for it, so it is
    recognized by its address in C++."""
    return _address(generator) in _addresses


def class_for(own: Any, name: str) -> Any:
    """Returns the class that replaces `torch.Generator`. For devices other than `name` it makes PyTorch's own
    generators."""

    class Kind(type(own)):  # type: ignore[misc]
        def __call__(cls, device: Any = "cpu") -> Any:
            place = torch.device(device)
            if place.type == name or cls is not Generator:
                return super().__call__(place)
            return own(device)

        def __instancecheck__(cls, value: object) -> bool:
            if cls is Generator:
                return isinstance(value, own)  # those of the host as well
            return bool(super().__instancecheck__(value))

    class Generator(own, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, place: torch.device) -> Any:
            if place.type != name:  # a program's subclass
                raise UnsupportedError(
                    f"a subclass of torch.Generator on {place} is not supported with virtual GPUs"
                )
            generator: Any = own.__new__(cls)
            address = _address(generator)
            _addresses.add(address)
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
