"""Copies MXNet's per-thread state, such as recording and NumPy's semantics, to the threads in which tasks run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.performance.contract.parallel import Parallel
from xdevice_mxnet import semantics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class _State:
    """The state of the thread in which this object is created. Calling the object returns a context manager. A thread
    that enters the context manager has that state in its block."""

    def __init__(self) -> None:
        # both functions accept an argument that says whether the network is training, which
        # MXNet stores independently of recording
        self._scope = mx.autograd.record if mx.autograd.is_recording() else mx.autograd.pause
        self._is_training = mx.autograd.is_training()
        self._context = mx.current_context()
        self._semantics = semantics.Carried()
        # the core calls this after the task, in the thread that has created this object
        self.rejoin = self._semantics.rejoin

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Opens a block in which this thread has the state."""
        # a new object, because a Context stores the context that it replaced, so two threads
        # cannot share a Context
        own_context = mx.Context(self._context.device_type, self._context.device_id)
        with self._semantics.entered(), own_context, self._scope(self._is_training):
            yield


class MxnetParallel(Parallel):
    """Runs only one task at a time, with the state of the thread that starts the tasks."""

    # two threads that record operations on the same array crash MXNet
    threads = "one"

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads this thread's recording mode, context and semantics. Returns an object that, when called, returns a
        context manager. In the block of the context manager, another thread has the same state."""
        return _State()
