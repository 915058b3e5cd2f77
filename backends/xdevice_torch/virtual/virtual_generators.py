"""`torch.Generator("vgpu")`: a generator of the host whose `device` is a virtual GPU.

PyTorch makes the generators of a foreign device in C++ only, by `getNewGenerator` of
PrivateUse1HooksInterface. A virtual GPU draws the same numbers as the host from the same seed,
since the host computes for it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from xdevice.errors import UnsupportedError
from xdevice_torch.private import private

_address = private.field("torch.Generator._cdata")
_addresses: set[int] = set()
"""The addresses, in C++, of the living generators of virtual GPUs."""


def belongs_to_gpu(generator: torch.Generator) -> bool:
    """Whether a generator was made for a virtual GPU. PyTorch passes an operation a new Python
    object for the same generator, so the generator is recognized by its address in C++."""
    return _address(generator) in _addresses


def class_for(own: Any, name: str) -> Any:
    """Returns the class that replaces PyTorch's `torch.Generator`, which is `own`. It makes the
    generators of virtual GPUs (devices of the type `name`), and for other devices generators of
    `own`."""

    class Kind(type(own)):  # type: ignore[misc]
        """The metaclass, which decides what a call of the class returns and what counts as its
        instance."""

        def __call__(cls, device: Any = "cpu") -> Any:
            """Makes a generator of a virtual GPU, or PyTorch's own for another device."""
            place = torch.device(device)
            # a program's subclass makes objects of itself, whatever the device
            if place.type == name or cls is not Generator:
                return super().__call__(place)
            return own(device)

        def __instancecheck__(cls, value: object) -> bool:
            """Whether `isinstance(value, cls)` is True."""
            # programs check `isinstance(x, torch.Generator)` also for generators that PyTorch
            # has made
            if cls is Generator:
                return isinstance(value, own)
            return bool(super().__instancecheck__(value))

    class Generator(own, metaclass=Kind):  # type: ignore[misc]
        """A generator of a virtual GPU. It draws by the algorithm of the host's generator."""

        def __new__(cls, place: torch.device) -> Any:
            """Makes a generator of the host, and notes its address as that of a virtual GPU's
            generator."""
            # only a program's subclass comes here with another device
            if place.type != name:
                raise UnsupportedError(
                    f"a subclass of torch.Generator on {place} is not supported with virtual GPUs; "
                    "use torch.Generator itself"
                )
            generator: Any = own.__new__(cls)
            address = _address(generator)
            _addresses.add(address)
            # a later generator of the host may have the same address
            weakref.finalize(generator, _addresses.discard, address)
            return generator

        def __init__(self, place: torch.device) -> None:
            index = (
                getattr(torch, name).current_device() if place.index is None else place.index
            )
            self._place = torch.device(name, index)

        # instead of the CPU, which PyTorch's own property would return
        @property
        def device(self) -> torch.device:
            return self._place

    return Generator
