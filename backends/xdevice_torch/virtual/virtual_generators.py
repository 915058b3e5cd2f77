"""`torch.Generator("vgpu")`: a generator of the host whose `device` is a virtual GPU.

PyTorch creates the generators of a foreign device only in C++, with `getNewGenerator` of
PrivateUse1HooksInterface. With the same seed, a virtual GPU draws the same numbers as the host,
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
"""The C++ addresses of all existing generators of virtual GPUs."""


def belongs_to_gpu(generator: torch.Generator) -> bool:
    """Whether a generator was created for a virtual GPU. PyTorch passes a new Python object for
    the same generator to an operation, so the generator is recognized by its C++ address."""
    return _address(generator) in _addresses


def class_for(original: Any, name: str) -> Any:
    """Returns the class that replaces `original`, PyTorch's `torch.Generator`. The class creates the
    generators of virtual GPUs (devices of the type `name`), and for other devices it creates
    generators of the class `original`."""

    class GeneratorMeta(type(original)):  # type: ignore[misc]
        """The metaclass, which determines what a call of the class returns, and which objects
        are its instances."""

        def __call__(cls, device: Any = "cpu") -> Any:
            """Creates a generator of a virtual GPU, or, for another device, a generator of
            PyTorch's own class."""
            place = torch.device(device)
            # a program's subclass creates its own instances, whatever the device
            if place.type == name or cls is not Generator:
                return super().__call__(place)
            return original(device)

        def __instancecheck__(cls, value: object) -> bool:
            """Whether `isinstance(value, cls)` is True."""
            # programs also check `isinstance(x, torch.Generator)` for generators that PyTorch has created
            if cls is Generator:
                return isinstance(value, original)
            return bool(super().__instancecheck__(value))

    class Generator(original, metaclass=GeneratorMeta):  # type: ignore[misc]
        """A generator of a virtual GPU. It uses the algorithm of the host's generator."""

        def __new__(cls, place: torch.device) -> Any:
            """Creates a generator of the host, and records its C++ address, so that `belongs_to_gpu` recognizes the
            generator."""
            # the device can be another one only if the class is a program's subclass
            if place.type != name:
                raise UnsupportedError(
                    f"a subclass of torch.Generator on {place} is not supported with virtual GPUs; "
                    "use torch.Generator itself"
                )
            generator: Any = original.__new__(cls)
            address = _address(generator)
            _addresses.add(address)
            # removed at the end, because a later generator of the host may have the same address
            weakref.finalize(generator, _addresses.discard, address)
            return generator

        def __init__(self, place: torch.device) -> None:
            index = (
                getattr(torch, name).current_device() if place.index is None else place.index
            )
            self._place = torch.device(name, index)

        # PyTorch's own property would return the CPU
        @property
        def device(self) -> torch.device:
            return self._place

    return Generator
