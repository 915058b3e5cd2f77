"""Transfers the state that PyTorch stores for each thread, such as `no_grad` and autocast, to
the threads of tasks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from xdevice.performance.contract.parallel import Parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class TorchParallel(Parallel):
    """The hook for tasks in threads. Each task runs with the state of the thread that starts the task."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads this thread's gradient mode, autocast settings, default device and current GPU. Returns a function
        without arguments. In another thread, this function returns a context manager that applies the same state to
        that thread."""
        is_recording, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        # the arguments of each `torch.autocast` block that is active in this thread
        autocasts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", self._gpu)
            if torch.is_autocast_enabled(kind)
        ]
        default_device = torch.get_default_device()
        module: Any = getattr(torch, self._gpu, None)
        # each thread has a current GPU of its own. It is not read before CUDA is started, because
        # reading would start CUDA. A module without `is_initialized` is read in any case. Apple's
        # MPS has only one device, and its module has no `device`
        is_started = (
            hasattr(module, "device") and getattr(module, "is_initialized", lambda: True)()
        )
        index = module.current_device() if is_started else None

        @contextmanager
        def state() -> Iterator[None]:
            """A block in which a thread has the state that `thread_state` has read."""
            with ExitStack() as stack:
                if index is not None:
                    stack.enter_context(module.device(index))
                # entered before the gradient mode is set, because inference mode changes the
                # gradient mode too
                if is_inference:
                    stack.enter_context(torch.inference_mode())
                stack.enter_context(torch.set_grad_enabled(is_recording))
                for kind, dtype, cache in autocasts:
                    stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
                # the CPU is the default anyway, and a scope costs a few microseconds at every call
                if default_device.type != "cpu":
                    stack.enter_context(default_device)
                yield

        return state
