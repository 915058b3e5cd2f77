"""What `testing` adds to the contract of an adapter: the samples of the conformance suite."""

from __future__ import annotations

from typing import Final

from .samples import Sampling

CAPABILITIES: Final = (Sampling,)
