"""The part of an adapter's contract that `performance` adds: graphs, parallel tasks, copies in the background, and
recording transfers."""

from __future__ import annotations

from typing import Final

from .graphs import Graphs
from .parallel import Parallel
from .prefetch import Prefetch
from .transfers import Transfers

CAPABILITIES: Final = (Graphs, Parallel, Prefetch, Transfers)
