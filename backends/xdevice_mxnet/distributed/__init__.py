"""Why MXNet has no engine for several processes."""

from __future__ import annotations

from typing import Final

from xdevice.distributed.contract.processes import Processes


class MxnetProcesses(Processes):
    def why_no_engine(self) -> str:
        return (
            "its key-value store sends float64 through float32, overwrites what it is given, and its server aborts on "
            "integers while the workers wait forever"
        )


MIXINS: Final = (MxnetProcesses,)
