"""MXNet's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import MxnetSamples


class MxnetSampling(Sampling):
    def samples(self) -> MxnetSamples:
        from .samples import MxnetSamples

        backend: Any = self  # the class of the backend inherits from this one
        return MxnetSamples(backend)


MIXINS: Final = (MxnetSampling,)
