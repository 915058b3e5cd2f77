"""Carries the state that PyTorch keeps for each thread, such as `no_grad` and autocast, into
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
    """Tasks in threads, with the state of the thread that starts them."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads this thread's gradient mode, autocast, default device and current GPU. Returns
        a function that makes a context manager, in whose block another thread has the same
        state."""
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        casts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", self._gpu)
            if torch.is_autocast_enabled(kind)
        ]
        place = torch.get_default_device()
        module: Any = getattr(torch, self._gpu, None)
        # CUDA has a current device per thread, and asking for it starts CUDA; Apple's MPS has
        # one device only
        is_started = (
            hasattr(module, "device") and getattr(module, "is_initialized", lambda: True)()
        )
        index = module.current_device() if is_started else None

        @contextmanager
        def state() -> Iterator[None]:
            """A block in which a thread has the state that was read."""
            with ExitStack() as stack:
                if index is not None:
                    stack.enter_context(module.device(index))
                # before the gradient mode, which inference mode changes too
                if inference:
                    stack.enter_context(torch.inference_mode())
                stack.enter_context(torch.set_grad_enabled(grad))
                for kind, dtype, cache in casts:
                    stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
                # the CPU is the default anyway, and a scope costs some microseconds at every
                # call
                if place.type != "cpu":
                    stack.enter_context(place)
                yield

        return state
