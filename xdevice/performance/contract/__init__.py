"""What `performance` adds to the contract of an adapter: graphs, tasks side by side, and seeing transfers."""

from __future__ import annotations

from typing import Final

from .graphs import Graphs
from .parallel import Parallel
from .transfers import Transfers

CAPABILITIES: Final = (Graphs, Parallel, Transfers)
