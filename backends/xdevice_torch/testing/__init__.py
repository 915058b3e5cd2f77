"""PyTorch's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import TorchSamples


class TorchSampling(Sampling):
    """The hook that returns PyTorch's samples for the conformance suite."""

    def samples(self) -> TorchSamples:
        """Returns the samples for the adapter that is tested."""
        from .samples import TorchSamples

        return TorchSamples(self)


MIXINS: Final = (TorchSampling,)
