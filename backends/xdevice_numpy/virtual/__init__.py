"""NumPy's part of the product `virtual`. NumPy cannot have virtual GPUs, and does not interfere with the virtual GPUs
of other backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.virtual.contract.virtual_gpus import VirtualGpus

if TYPE_CHECKING:
    from xdevice.virtual.contract.characters import Character


class NumpyVirtualGpus(VirtualGpus):
    """Accepts the settings of virtual GPUs, without creating virtual GPUs."""

    def why_no_virtual_gpus(self) -> None:
        """Returns None, although NumPy cannot have virtual GPUs. NumPy is loaded together with other backends, and a
        reason would make their virtual GPUs fail. On NumPy, `try_gpu` returns the CPU, as on a machine without GPUs."""

    def make_virtual_gpus(self, n: int) -> None:
        """Does nothing, because NumPy has only the CPU."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        """Stores `characters`, the properties of the virtual GPUs of other backends."""
        # they apply to no device of NumPy; they are stored because a later setting is compared with them
        self.characters = characters


MIXINS: Final = (NumpyVirtualGpus,)
