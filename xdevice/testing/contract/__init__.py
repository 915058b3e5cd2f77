"""The part of an adapter's contract that `testing` adds: the samples of the conformance
suite."""

from __future__ import annotations

from typing import Final

from .samples import Sampling

CAPABILITIES: Final = (Sampling,)
