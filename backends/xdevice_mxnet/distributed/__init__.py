"""Why MXNet has no engine for several processes, and the hyperparameters of a Trainer."""

from __future__ import annotations

from typing import Any, Final

from mxnet.gluon import Trainer

from xdevice.distributed.contract.processes import Processes
from xdevice.distributed.contract.steps import Steps


class MxnetProcesses(Processes):
    def why_no_engine(self) -> str:
        return (
            "its key-value store sends float64 as float32 and overwrites its input, and its server aborts on "
            "integers while the workers wait forever"
        )


class MxnetSteps(Steps):
    def hyperparameters(self, optimizer: Any) -> str:
        return f"rate {optimizer.learning_rate}" if isinstance(optimizer, Trainer) else ""


MIXINS: Final = (MxnetProcesses, MxnetSteps)
