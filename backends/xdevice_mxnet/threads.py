"""What MXNet keeps for each thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


def thread_state() -> Callable[[], AbstractContextManager[Any]]:
    is_recording, is_training = mx.autograd.is_recording(), mx.autograd.is_training()
    is_shape, is_array = mx.util.is_np_shape(), mx.util.is_np_array()
    here = mx.current_context()

    @contextmanager
    def state() -> Iterator[None]:
        with (
            mx.util.np_shape(is_shape),
            mx.util.np_array(is_array),
            mx.Context(here.device_type, here.device_id),
            mx.autograd._RecordingStateScope(is_recording, is_training),
        ):
            yield

    return state
