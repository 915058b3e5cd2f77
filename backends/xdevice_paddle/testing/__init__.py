"""Paddle's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import PaddleSamples


class PaddleSampling(Sampling):
    """Provides Paddle's samples for the conformance suite."""

    def samples(self) -> PaddleSamples:
        """Returns Paddle's samples for the conformance suite."""
        # imported only here, because programs other than the suite do not need the samples
        from .samples import PaddleSamples

        return PaddleSamples(self)


MIXINS: Final = (PaddleSampling,)
