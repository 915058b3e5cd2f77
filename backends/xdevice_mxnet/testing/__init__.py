"""MXNet's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import MxnetSamples


class MxnetSampling(Sampling):
    """Provides MXNet's samples for the conformance suite."""

    def samples(self) -> MxnetSamples:
        """Returns the samples for this adapter."""
        # imported only here, because only the suite needs this module
        from .samples import MxnetSamples

        return MxnetSamples(self)


MIXINS: Final = (MxnetSampling,)
