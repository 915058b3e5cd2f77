"""MXNet's part of the product `distributed`: the reason why MXNet has no engine for several processes, and the
hyperparameters of a Trainer."""

from __future__ import annotations

from typing import Any, Final

from mxnet.gluon import Trainer

from xdevice.distributed.contract.processes import Processes
from xdevice.distributed.contract.steps import Steps


class MxnetProcesses(Processes):
    """Provides no engine. MXNet can use several processes only through the engines of other frameworks."""

    def why_no_engine(self) -> str:
        """Returns the reason why xdevice does not use MXNet's own key-value store as an engine."""
        return (
            "MXNet's key-value store sends float64 as float32 and overwrites the input, and the store's server aborts "
            "on integers while the workers wait forever"
        )


class MxnetSteps(Steps):
    """Supports training steps over several processes, for MXNet."""

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns the learning rate of a Trainer, as a string that ranks can compare. Returns "" for any other
        object."""
        return f"rate {optimizer.learning_rate}" if isinstance(optimizer, Trainer) else ""


MIXINS: Final = (MxnetProcesses, MxnetSteps)
