"""PyTorch's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import TorchSamples


class TorchSampling(Sampling):
    def samples(self) -> TorchSamples:
        from .samples import TorchSamples

        backend: Any = self  # the class of the backend inherits from this one
        return TorchSamples(backend)


MIXINS: Final = (TorchSampling,)
