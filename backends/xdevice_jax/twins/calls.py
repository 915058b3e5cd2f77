"""Calls modules of Flax (nnx, linen) and Equinox, and records the calls of the layers of Flax.

A module of Equinox is called with `vmap` over the batch, and inside it its layers have no values. So of such a model
only the outputs are compared.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import jax

from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls

from . import linen
from .modules import MODES, equinox, is_nnx, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


class JaxCalls(Calls):
    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        layer_paths = {layer.path for layer in self.layers(model)}
        if linen.is_linen(model):
            watch = common.Watch(self, {})
            with linen.intercepting(layer_paths, watch.run):
                yield watch.calls
            return
        inner = list(walk(model))
        paths = {id(module): path for path, module in inner if path in layer_paths and is_nnx(module)}
        # no class is common to all modules that has `__call__`
        classes = {_owner(type(module)) for _, module in inner if id(module) in paths}
        watch = common.Watch(self, paths)
        with ExitStack() as stack:
            stack.enter_context(common.recording(watch, *classes))
            yield watch.calls

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        raise self.unsupported(
            "seeing the calls of all models of a program", "name the model: xdevice.parity.capture_intermediates(model)"
        )

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        if linen.is_linen(model):
            return model(*inputs, **named)
        if not is_nnx(model):
            library: Any = equinox()
            return jax.vmap(library.nn.inference_mode(model))(*inputs, **named)
        before = [(m, name, getattr(m, name)) for _, m in walk(model) for name in MODES if hasattr(m, name)]
        model.eval()
        try:
            return model(*inputs, **named)
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def has_channels_last(self, model: Any) -> bool | None:
        return is_nnx(model) or linen.is_linen(model)


def _owner(cls: type) -> type:
    """The class that defines the `__call__` of a class of modules."""
    return next(base for base in cls.__mro__ if "__call__" in vars(base))
