"""NumPy's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import NumpySamples


class NumpySampling(Sampling):
    """Gives the conformance suite the samples of NumPy."""

    def samples(self) -> NumpySamples:
        """Returns the samples, for the adapter that is tested."""
        from .samples import NumpySamples

        return NumpySamples()


MIXINS: Final = (NumpySampling,)
