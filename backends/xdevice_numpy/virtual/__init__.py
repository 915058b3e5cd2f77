"""Lets other backends have virtual GPUs in a process that also uses NumPy, which has only the
CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.virtual.contract.virtual_gpus import VirtualGpus

if TYPE_CHECKING:
    from xdevice.virtual.contract.characters import Character


class NumpyVirtualGpus(VirtualGpus):
    """Accepts a request for virtual GPUs, and makes none."""

    def why_no_virtual_gpus(self) -> None:
        """Returns None although NumPy cannot have virtual GPUs: a reason would make
        `virtual_gpus` raise an error for the other backends too. On NumPy `try_gpu` returns the
        CPU, as on a machine without GPUs."""

    def make_virtual_gpus(self, n: int) -> None:
        """Does nothing, because NumPy has only the CPU."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        # the default would raise an error for virtual GPUs with limits
        self.characters = characters


MIXINS: Final = (NumpyVirtualGpus,)
