"""Seeing the calls of Paddle's layers.

What must be kept: `paddle.jit.to_static` replaces a layer's `forward` with what runs a program.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import paddle
from paddle.nn import Layer

from xdevice.contract import calls as common

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.contract import Backend
    from xdevice.contract.calls import Around, Call


@contextmanager
def calls(model: Any, backend: Backend) -> Iterator[list[Call]]:
    known = {layer.path for layer in backend.layers(model)}
    paths = {}
    for path, layer in model.named_sublayers(include_self=True):
        if hasattr(type(layer.forward), "concrete_program"):
            name = f"{path or 'the model'}, a {type(layer).__name__}"
            raise backend.unsupported(
                f"seeing the layers of {name} that paddle.jit.to_static has compiled",
                "trace it before, or a second one",
            )
        if path in known or next(iter(layer.children()), None) is None:
            paths[id(layer)] = path
    with ExitStack() as stack:

        def follow(result: Any, put: Callable[[int, Any], None]) -> Any:
            for number, x in enumerate(common.tensors(backend, result)):
                if not getattr(x, "stop_gradient", True):
                    stack.callback(x.register_hook(partial(put, number)).remove)
            return result

        watch = common.Watch(backend, paths, follow=follow)
        stack.enter_context(common.watching(watch, Layer))
        yield watch.calls


def outermost(around: Around) -> AbstractContextManager[None]:
    return common.outermost(Layer, around)


def infer(model: Layer, inputs: tuple[Any, ...]) -> Any:
    training = [layer for layer in model.sublayers(include_self=True) if layer.training]
    # a BatchNorm with use_global_stats=False updates its averages in evaluation mode too
    kept = [
        (x, x.clone())
        for layer in model.sublayers(include_self=True)
        if getattr(layer, "_use_global_stats", None) is False
        for x in (layer._mean, layer._variance)
    ]
    model.eval()
    try:
        with paddle.no_grad():
            return model(*inputs)
    finally:
        for layer in training:
            layer.training = True
        with paddle.no_grad():
            for x, own in kept:
                x.copy_(own, True)


def has_channels_last(model: Layer) -> bool | None:
    formats = (getattr(layer, "_data_format", None) for layer in model.sublayers(include_self=True))
    return next((not name.startswith("NC") for name in formats if isinstance(name, str)), None)
