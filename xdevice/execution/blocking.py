"""`blocking`: a mode in which every operation completes before the next line runs, so that an error appears at the line
that caused it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from xdevice.core import selection
from xdevice.core.blocks import OpenBlocks
from xdevice.errors import ScopeError

if TYPE_CHECKING:
    from xdevice.contract import Backend


class blocking:
    """Every operation inside the block completes before the next line runs: `with xdevice.accelerator.blocking(): ...`.

    An error of asynchronous work then appears at the line that caused it, and a clock around a line measures that line.
    Work no longer overlaps, so use this only to find a fault. Blocks can be nested, and end even after an exception.

    Args:
        backends: the backends, or their names. Without arguments, the selected backend, as with `sync`.

    XDEVICE_BLOCKING=1 does the same for every backend, from the time when xdevice loads the backend until the process
    ends. If the framework has a setting that works only before the framework is imported or started, XDEVICE_BLOCKING=1
    uses it.

    | backend | blocks by |
    |---|---|
    | torch | a wait after each operation of this thread, if a GPU is in use; the CPU computes synchronously |
    | tensorflow | this thread's `set_synchronous_execution(True)`, and a wait after each operation with a GPU |
    | mxnet | a wait after each call of its library, in all threads |
    | paddle | `FLAGS_benchmark`, in all threads, if there is a GPU; the CPU computes synchronously |
    | jax | a wait after each compiled call, in all threads, by JAX's private API |
    | numpy | nothing, because NumPy computes synchronously |

    Raises:
        ScopeError: if the block is exited in a different thread from the one that entered it (docs/reference/async.md).
        SettingError: when a backend is loaded, if XDEVICE_BLOCKING has a value other than 1 or 0.
        UnsupportedError: if this version of JAX lacks a private function that the block needs. Set XDEVICE_BLOCKING=1
            at the start instead.
        BackendNotFoundError, BackendImportError: as for `backend`.

    Example:
        >>> with xdevice.accelerator.blocking():
        ...     x = xdevice.ones(2) + 1
    """

    def __init__(self, *backends: str | Backend) -> None:
        self._backends = backends
        self._entered = OpenBlocks("blocking()")

    def __enter__(self) -> None:
        # the backends are looked up when the block is entered, not when the object is created
        chosen = [selection.backend(name) for name in self._backends] or [selection.current()]
        # if a later backend refuses, the stack ends the blocking mode of the backends entered before it
        with ExitStack() as stack:
            for backend in chosen:
                stack.enter_context(backend.blocking())
            self._entered.add(stack.pop_all())

    def __exit__(self, *_: object) -> None:
        block, thread = self._entered.take()
        # also in a different thread, because a mode that applies to all threads can be ended there
        block.close()
        if thread != threading.get_ident():
            raise ScopeError(
                "blocking() was exited in a different thread from the one that entered it; a framework's per-thread "
                "state can be restored only in that thread, so enter and exit the block in the same thread"
            )
