"""NumPy's part of the product `virtual`: NumPy cannot have virtual GPUs, and does not interfere
with those of other backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.virtual.contract.virtual_gpus import VirtualGpus

if TYPE_CHECKING:
    from xdevice.virtual.contract.characters import Character


class NumpyVirtualGpus(VirtualGpus):
    """Accepts the settings of virtual GPUs, without making any."""

    def why_no_virtual_gpus(self) -> None:
        """Returns None although NumPy cannot have virtual GPUs: it is loaded together with
        other backends, and must not make their virtual GPUs fail. On NumPy `try_gpu` gives the
        CPU, as on a machine without GPUs."""

    def make_virtual_gpus(self, n: int) -> None:
        """Does nothing, because NumPy has only the CPU."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        """Keeps the characters of the virtual GPUs that other backends have."""
        # no device has them; they are kept because a later setting is compared with them
        self.characters = characters


MIXINS: Final = (NumpyVirtualGpus,)
