"""MXNet's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import MxnetSamples


class MxnetSampling(Sampling):
    def samples(self) -> MxnetSamples:
        from .samples import MxnetSamples

        return MxnetSamples(self)


MIXINS: Final = (MxnetSampling,)
