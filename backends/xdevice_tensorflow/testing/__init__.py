"""TensorFlow's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import TensorflowSamples


class TensorflowSampling(Sampling):
    """The capability of being tested by the conformance suite."""

    def samples(self) -> TensorflowSamples:
        """Returns the samples, for the adapter that is tested."""
        # imported only here, because programs other than the suite do not need it
        from .samples import TensorflowSamples

        return TensorflowSamples(self)


MIXINS: Final = (TensorflowSampling,)
