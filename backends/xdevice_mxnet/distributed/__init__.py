"""Why MXNet has no engine for several processes, and the hyperparameters of a Trainer."""

from __future__ import annotations

from typing import Any, Final

from mxnet.gluon import Trainer

from xdevice.distributed.contract.processes import Processes
from xdevice.distributed.contract.steps import Steps


class MxnetProcesses(Processes):
    """The capability of several processes, which MXNet has only through the engines of other
    frameworks."""

    def why_no_engine(self) -> str:
        """Returns why xdevice does not use MXNet's own key-value store as an engine."""
        return (
            "its key-value store sends float64 as float32 and overwrites its input, and its server aborts on "
            "integers while the workers wait forever"
        )


class MxnetSteps(Steps):
    """The capability of training steps over several processes, for MXNet."""

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns the learning rate of a Trainer as a text that ranks can compare; "" for any
        other object."""
        return f"rate {optimizer.learning_rate}" if isinstance(optimizer, Trainer) else ""


MIXINS: Final = (MxnetProcesses, MxnetSteps)
