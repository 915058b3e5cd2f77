"""Paddle's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import PaddleSamples


class PaddleSampling(Sampling):
    def samples(self) -> PaddleSamples:
        from .samples import PaddleSamples

        return PaddleSamples(self)


MIXINS: Final = (PaddleSampling,)
