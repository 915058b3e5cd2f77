"""The conformance suite: what every adapter, ours and a third party's, is held to.

A third party's test file is three lines, and pytest does the rest::

    from xdevice.testing import Conformance

    class TestMyBackend(Conformance):
        backend = "mybackend"

The suite runs where tensors begin, `home`, and for all that crosses devices with a second one, `other`: by default on
cpu:0 with the first GPU or what the adapter's samples make, and again on gpu:0 with gpu:1 where there are GPUs, real or
virtual. What an adapter lacks is skipped by the capability's name, and listed at the end of the run with the methods to
write. What its samples do not have is skipped with its name too, so read the skips.
docs/reference/adapters.md says what each method is held to.
"""

from __future__ import annotations

from .arithmetic import Arithmetic
from .asynchrony import Seeing, Side, Streams, Waiting
from .base import Failure
from .creation import Creation
from .devices import Devices
from .models import Models
from .moving import Batch, Moving, Pair
from .nn import FunctionsOfLayers
from .processes import Processes, in_child
from .several import Several
from .worlds import SeveralProcesses

__all__ = ["Batch", "Conformance", "Failure", "Pair", "SeveralProcesses", "in_child"]


class Conformance(
    Processes,
    Seeing,
    Side,
    Streams,
    Waiting,
    Several,
    Models,
    Moving,
    FunctionsOfLayers,
    Arithmetic,
    Creation,
    Devices,
):
    """Subclass it, name the `backend`, and let pytest collect the tests, from the last of these classes to the first:
    what a first adapter needs before what may spoil its process, such as eight threads at once."""
