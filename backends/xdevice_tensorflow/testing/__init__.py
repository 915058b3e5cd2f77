"""TensorFlow's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import TensorflowSamples


class TensorflowSampling(Sampling):
    def samples(self) -> TensorflowSamples:
        from .samples import TensorflowSamples

        return TensorflowSamples(self)


MIXINS: Final = (TensorflowSampling,)
