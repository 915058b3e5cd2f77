"""Adds JAX's samples for the conformance suite to the adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.testing.contract.samples import Sampling

if TYPE_CHECKING:
    from .samples import JaxSamples


class JaxSampling(Sampling):
    """Provides JAX's samples for the conformance suite."""

    def samples(self) -> JaxSamples:
        """Returns the samples for the adapter that is being tested."""
        from .samples import JaxSamples

        return JaxSamples(self)


MIXINS: Final = (JaxSampling,)
