"""Virtual GPUs for NumPy, which cannot have them, and stays out of the way of those of others."""

from __future__ import annotations

from typing import Final

from xdevice.virtual.contract.virtual_gpus import VirtualGpus


class NumpyVirtualGpus(VirtualGpus):
    def why_no_virtual_gpus(self) -> None:
        """Returns None although NumPy cannot have virtual GPUs: it is loaded beside other backends, and must not make
        their virtual GPUs fail. `count` raises when NumPy itself is asked for GPUs."""

    def make_virtual_gpus(self, n: int) -> None:
        """Does nothing. The core sets `virtual` after this call, and from then on `count` raises for GPUs."""


MIXINS: Final = (NumpyVirtualGpus,)
