"""Implements `with device:`, `with stream:` and `set_default_device`.

xdevice stores the current device in a context variable, whose value an `await` does not change. A framework, however,
has one current device for each thread, and Paddle has one for the whole process. During an `await`, that device would
apply to whichever task runs next. Therefore, if an asyncio task waits inside a block, the framework's previous device
is restored at that point, and the end of the block raises a `ScopeError`. Blocks that overlap in one task, as blocks in
generators may, can end in any order.
"""

from __future__ import annotations

import _thread  # importing threading would take a third of the time of `import xdevice`
from contextvars import ContextVar

from xdevice.base import devices
from xdevice.errors import ScopeError

from . import blocks, selection

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from xdevice.base.devices import Device

_entered: ContextVar[tuple[Block, ...]] = ContextVar("xdevice_scopes", default=())


def current() -> Device | None:
    """Returns the device of the innermost `with device:` of this thread or task, else the device that
    `set_default_device` has set, else None."""
    stack = _entered.get()
    return stack[-1].key if stack else _threads.device


def current_device() -> Device:
    """Returns the device on which this thread creates tensors: the device of the innermost `with device:`, else the
    device that `set_default_device` has set, else `cpu:0`."""
    return current() or devices.CPU


def set_default_device(device: object) -> None:
    """Sets the default device in this thread, for the creation functions of xdevice and of the selected framework.

    The setting applies until the thread ends or calls this function again. None restores the device that was in effect
    before the first call. A `with device:` block takes precedence. With Paddle, the setting also affects Paddle's own
    creation functions in other threads, as `paddle.set_device` does.

    Experimental: it may change in a minor version.

    Raises:
        DeviceError: if `device` is neither None nor a device that `xdevice.device` accepts.
        DeviceNotFoundError: if the selected backend lacks the device.
        ScopeError: if a `with device:` or `with stream:` of this thread is open. After any of these errors, nothing has
            changed.

    Example:
        >>> xdevice.set_default_device("cpu")
        >>> xdevice.device()
        Device('cpu:0')
        >>> xdevice.set_default_device(None)
    """
    # parsed before anything is changed
    chosen = None if device is None else devices.parse(device)
    if _threads.open:
        instead = "" if chosen is None else f", or write `with {device}:` instead"
        raise ScopeError(
            f"set_default_device({device}) inside `with {_threads.open[-1].key}:` would end that block; "
            f"call it before the block{instead}"
        )
    native = None
    if chosen is not None:
        backend = selection.current()
        chosen = backend.require(chosen)
        native = backend.scope(chosen)
    before = _threads.native
    _threads.native = _threads.device = None
    # the old block is exited before the new block is entered, because the framework's blocks must nest
    if before is not None:
        before.__exit__(None, None, None)
    if native is not None:
        # without a `with` statement, so that the block stays open until the next call or the end of the
        # thread
        native.__enter__()
        _threads.native, _threads.device = native, chosen


def enter(device: Device) -> None:
    """Enters `with device:`, that is, makes the device current. Raises `DeviceNotFoundError` if the selected backend
    lacks the device."""
    backend = selection.current()
    place = backend.require(device)
    push(_entered, Block(place, lambda: backend.scope(place)))


def leave(device: Device, error: BaseException | None) -> None:
    """Exits `with device:`. `error` is the exception with which the block ends; None if there is none. Raises
    `ScopeError` as `pop` does."""
    # for `cuda:1`, `enter` has put `gpu:1` on the stack
    pop(_entered, devices.without_hardware_name(device), error)


devices.core_functions.enter, devices.core_functions.leave = enter, leave


def push(stack: ContextVar[tuple[Block, ...]], block: Block) -> None:
    """Begins a block and, if that succeeds, puts the block on the stack. Raises any error that the framework's context
    manager raises."""
    block.begin()
    stack.set((*stack.get(), block))


def pop(stack: ContextVar[tuple[Block, ...]], key: object, error: BaseException | None) -> None:
    """Ends the last block that this thread and task entered with the object `key`, and removes the block from the
    stack. `error` is the exception with which the block ends; None if there is none.

    Raises:
        ScopeError: if there is no such block, or if the task has waited inside the block.
    """
    entered = stack.get()
    index = blocks.index_in(entered, key, f"`with {key}:`")
    # the block is removed first, so that it is gone even if `end` raises an error
    stack.set(entered[:index] + entered[index + 1 :])
    entered[index].end(error)


class _Threads(_thread._local):
    """The state of each thread. `open` lists the blocks that are open in the framework, in the order in which they were
    entered. `device` is the device that `set_default_device` has set; it applies outside these blocks."""

    def __init__(self) -> None:
        self.open: list[Block] = []
        self.device: Device | None = None
        # the framework's context manager that `set_default_device` has entered
        self.native: AbstractContextManager[Any] | None = None


_threads = _Threads()


class Block:
    """One `with device:` or `with stream:`. `key` is the device or the stream, and `make` returns a new context manager
    of the framework for this device or stream."""

    def __init__(self, key: Any, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self.key = key
        self.owner = blocks.thread_and_task()
        self._make = make
        # the call of `_undo_at_await` that is scheduled in the event loop; None outside tasks
        self._scheduled_undo: Any = None
        self._has_waited = False

    def begin(self) -> None:
        """Enters the block, and schedules a call that undoes the block if its task waits inside."""
        self._enter_native()
        _threads.open.append(self)
        # only tasks can wait inside a block
        task = self.owner[1]
        if task is not None:
            # if the task waits while the block is open, the event loop calls this before the
            # task continues
            self._scheduled_undo = task.get_loop().call_soon(self._undo_at_await)

    def end(self, error: BaseException | None) -> None:
        """Exits the block. Raises `ScopeError` if the task has waited inside the block, unless the block ends with an
        error anyway."""
        if self._scheduled_undo is not None:
            # if this call is still scheduled, the block ends before its task has waited
            self._scheduled_undo.cancel()
        if not self._has_waited:
            self._exit_native()
        elif error is None:
            raise ScopeError(
                f"`with {self.key}:` contains an `await` or the end of a notebook cell, where other tasks would run on "
                f"{self.key} too, because all tasks of a thread share the framework's current device; end the block "
                f"before the await, pass device= to functions, or do the work in asyncio.to_thread"
            )

    def _enter_native(self) -> None:
        """Enters a context manager of the framework. Creates a new one each time, because a context manager can be
        entered only once."""
        self._native = self._make()
        self._native.__enter__()

    def _exit_native(self) -> None:
        """Exits the framework's context manager of this block. Context managers that were entered later in this thread
        are exited first, and entered again afterwards."""
        # no exception is passed to `__exit__`, because contextlib would set attributes of the exception,
        # which fails if the exception is a frozen dataclass
        index = _threads.open.index(self)
        # blocks in generators may end before blocks that were entered later
        inner = _threads.open[index + 1 :]
        for block in reversed(inner):
            block._native.__exit__(None, None, None)
        # the block is over even if the framework raises an error
        try:
            self._native.__exit__(None, None, None)
        finally:
            del _threads.open[index]
            for block in inner:
                block._enter_native()

    def _undo_at_await(self) -> None:
        """Undoes the block before another task runs. The event loop calls this method if the task waits inside the
        block."""
        self._has_waited = True
        self._exit_native()
