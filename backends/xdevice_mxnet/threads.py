"""What MXNet keeps for each thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


def thread_state() -> Callable[[], AbstractContextManager[Any]]:
    scope = mx.autograd.record if mx.autograd.is_recording() else mx.autograd.pause
    is_training = mx.autograd.is_training()
    is_shape, is_array = mx.util.is_np_shape(), mx.util.is_np_array()
    here = mx.current_context()

    @contextmanager
    def state() -> Iterator[None]:
        with (
            mx.util.np_shape(is_shape),
            mx.util.np_array(is_array),
            mx.Context(here.device_type, here.device_id),
            scope(is_training),
        ):
            yield

    return state
