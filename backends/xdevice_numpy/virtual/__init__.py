"""Virtual GPUs for NumPy, which cannot have them, and does not interfere with those of other backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.virtual.contract.virtual_gpus import VirtualGpus

if TYPE_CHECKING:
    from xdevice.virtual.contract.characters import Character


class NumpyVirtualGpus(VirtualGpus):
    def why_no_virtual_gpus(self) -> None:
        """Returns None although NumPy cannot have virtual GPUs: it is loaded together with other backends, and must not
        make their virtual GPUs fail. On NumPy `try_gpu` gives the CPU, as on a machine without GPUs."""

    def make_virtual_gpus(self, n: int) -> None:
        """Does nothing."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        self.characters = characters  # of no devices, but a later setting is compared with it


MIXINS: Final = (NumpyVirtualGpus,)
