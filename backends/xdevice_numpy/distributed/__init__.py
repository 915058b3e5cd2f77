"""Why NumPy has no engine for several processes."""

from __future__ import annotations

from typing import Final

from xdevice.distributed.contract.processes import Processes


class NumpyProcesses(Processes):
    def why_no_engine(self) -> str:
        return "NumPy moves nothing between processes"


MIXINS: Final = (NumpyProcesses,)
