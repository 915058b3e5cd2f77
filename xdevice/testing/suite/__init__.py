"""The conformance suite: the checks that every adapter must pass, whether ours or a third party's.

A third party's test file consists of three lines, and pytest does the rest::

    from xdevice.testing import Conformance

    class TestMyBackend(Conformance):
        backend = "mybackend"

Tensors are created on the device `home`. Checks that need two devices also use `other`. By default, the suite runs with
cpu:0 as `home`; `other` is the first GPU or a device that the adapter's samples create. If there are GPUs, real or
virtual, the suite runs again with gpu:0 and gpu:1. Checks of a capability (an optional part of an adapter) that the
adapter lacks are skipped. These capabilities are listed at the end of the run, with the methods that an adapter must
implement for them. Checks are also skipped if the adapter's samples lack a model or function that they need, so read
the reasons of skipped tests.

docs/reference/adapters.md says what is checked for each method.
"""

from __future__ import annotations

from .arithmetic import ArithmeticChecks
from .asynchrony import StreamChecks, WaitingChecks
from .creation import CreationChecks, RandomNumberChecks
from .devices import DeviceChecks
from .models import ModelChecks
from .moving import Batch, MovingChecks, Pair
from .nn import LayerFunctionChecks
from .parallel import ParallelChecks
from .processes import ProcessChecks, in_child
from .several import ReplicaChecks
from .training import TrainingChecks
from .transfers import TransferChecks
from .worlds import SeveralProcesses

__all__ = ["Batch", "Conformance", "Pair", "SeveralProcesses", "in_child"]


class Conformance(
    ProcessChecks,
    TransferChecks,
    ParallelChecks,
    StreamChecks,
    WaitingChecks,
    ReplicaChecks,
    TrainingChecks,
    ModelChecks,
    MovingChecks,
    LayerFunctionChecks,
    ArithmeticChecks,
    RandomNumberChecks,
    CreationChecks,
    DeviceChecks,
):
    """All checks of an adapter. Subclass this class, name the `backend`, and let pytest collect the tests. The checks
    run from the last of the base classes to the first. Basic checks therefore come before checks that may leave the
    process in a bad state, such as the checks of eight threads."""
