"""TensorFlow's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import TensorflowSamples


class TensorflowSampling(Sampling):
    """Provides TensorFlow's samples for the conformance suite."""

    def samples(self) -> TensorflowSamples:
        """Returns the samples for this adapter, which the suite tests."""
        # imported only here, because only the suite needs this module
        from .samples import TensorflowSamples

        return TensorflowSamples(self)


MIXINS: Final = (TensorflowSampling,)
