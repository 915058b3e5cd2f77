"""Copies the state that Paddle keeps for each thread, such as `no_grad` and AMP, into the threads of tasks. Also adds a
lock around `paddle.grad`, the only function that two threads must not call at once."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.performance.contract.parallel import Parallel
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


# the C++ function that `paddle.grad` calls
_GRADIENTS = private.place("paddle.base.core.eager.run_partial_grad")
_dygraph_tracer = private["paddle.base.framework._dygraph_tracer"]
# the settings of `paddle.amp.auto_cast`, which the tracer of each thread stores
_AMP_FIELDS = (
    private.field("paddle.base.dygraph.tracer.Tracer._amp_level"),
    private.field("paddle.base.dygraph.tracer.Tracer._amp_dtype"),
    private.field("paddle.base.dygraph.tracer.Tracer._use_promote"),
)


@contextmanager
def _amp_settings(state: tuple[Any, ...] | None) -> Iterator[None]:
    """While the block is open, this thread has the AMP (automatic mixed precision) settings of another thread. `state`
    contains the values of the settings in the order of `_AMP_FIELDS`, or is None if the other thread has no tracer. The
    lists of operators to cast are not copied, because all threads share the same lists."""
    tracer = _dygraph_tracer()
    # in static mode there is no tracer
    if state is None or tracer is None:
        yield
        return
    values_before = [field(tracer) for field in _AMP_FIELDS]
    for field, value in zip(_AMP_FIELDS, state, strict=True):
        field.set(tracer, value)
    try:
        yield
    finally:
        for field, value in zip(_AMP_FIELDS, values_before, strict=True):
            field.set(tracer, value)


class _InTurn:
    """A context manager for all threads. While it is open in any thread, `paddle.grad` runs in only one thread at a
    time, because two calls at once segfault (3.3.1; no upstream issue known).

    The lock is around the C++ function that `paddle.grad` calls, so that it also applies to programs with
    `from paddle import grad`. The lock is reentrant, because the `backward` of a `PyLayer` may compute a gradient.
    `Tensor.backward` needs no lock.
    """

    def __init__(self) -> None:
        # locked during a call of `paddle.grad`
        self._turn = threading.RLock()
        # locked while the number of open blocks changes
        self._counting = threading.Lock()
        self._open_blocks = 0
        # Paddle's own function
        self._original: Any = None

    def __enter__(self) -> None:
        with self._counting:
            self._open_blocks += 1
            # the first block replaces the function, and the last one restores it
            if self._open_blocks == 1:
                self._original = getattr(*_GRADIENTS)
                setattr(*_GRADIENTS, self._locked(self._original))

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self._open_blocks -= 1
            if self._open_blocks == 0:
                setattr(*_GRADIENTS, self._original)

    def _locked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls `original` in only one thread at a time."""

        def run_partial_grad(*args: Any, **kwargs: Any) -> Any:
            """Replaces Paddle's function: calls it when no other thread does, and returns the result."""
            with self._turn:
                return original(*args, **kwargs)

        return run_partial_grad


_gradients_in_turn = _InTurn()


class PaddleParallel(Parallel):
    """Runs tasks in threads, with the state of the thread that starts the tasks."""

    # because `paddle.set_device` sets the device of all threads
    scope_reach = "process"

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads whether this thread records gradients, and its AMP settings. Returns a function that creates a context
        manager. In the block of the context manager, another thread has the same settings, and `paddle.grad` runs in
        only one thread at a time."""
        private.require_names_for("parallel")
        is_recording = paddle.is_grad_enabled()
        tracer = _dygraph_tracer()
        amp = None if tracer is None else tuple(field(tracer) for field in _AMP_FIELDS)

        @contextmanager
        def state() -> Iterator[None]:
            """While the block is open, this thread has the state that was read."""
            # in a new thread, the current CUDA device is 0 until Paddle's current place is set
            # again
            paddle.set_device(paddle.get_device())
            with _gradients_in_turn, _amp_settings(amp), paddle.set_grad_enabled(is_recording):
                yield

        return state
