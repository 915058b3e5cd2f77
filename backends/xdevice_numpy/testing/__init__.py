"""NumPy's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import NumpySamples


class NumpySampling(Sampling):
    """Provides NumPy's samples for the conformance suite."""

    def samples(self) -> NumpySamples:
        """Returns the samples for this adapter."""
        from .samples import NumpySamples

        return NumpySamples()


MIXINS: Final = (NumpySampling,)
