"""JAX's samples for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import JaxSamples


class JaxSampling(Sampling):
    """Gives the conformance suite the samples of JAX."""

    def samples(self) -> JaxSamples:
        """Returns the samples, for the adapter that is tested."""
        from .samples import JaxSamples

        return JaxSamples(self)


MIXINS: Final = (JaxSampling,)
