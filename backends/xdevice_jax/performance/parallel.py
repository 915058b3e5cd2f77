"""Applies JAX's settings of the calling thread, such as the default device, in the threads that run tasks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.experimental

from xdevice.performance.contract.parallel import Parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

# newer versions of JAX have this function as a public name
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class JaxParallel(Parallel):
    """Runs tasks in threads with the settings of the thread that starts the tasks."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads this thread's default device, precision of matrix products, and 64-bit setting. Returns a function that
        creates a context manager. In the block of the context manager, another thread has the same settings."""
        default_device = jax.config.jax_default_device
        precision = jax.config.jax_default_matmul_precision
        is_64_bit = jax.config.jax_enable_x64

        @contextmanager
        def state() -> Iterator[None]:
            """Opens a block in which a thread has the settings that were read."""
            with ExitStack() as stack:
                if jax.config.jax_enable_x64 != is_64_bit:
                    stack.enter_context(enable_x64(is_64_bit))
                stack.enter_context(jax.default_device(default_device))
                stack.enter_context(jax.default_matmul_precision(precision))
                yield

        return state
