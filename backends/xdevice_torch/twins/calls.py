"""Records the calls of PyTorch's modules while a model runs.

Two facts about PyTorch that the code depends on:
- In evaluation mode a `TransformerEncoderLayer` computes without calling the modules inside it, unless one of them has
  a hook (https://github.com/pytorch/pytorch/issues/128413). So each gets a hook that does nothing.
- While a model is watched, its modules call functions of xdevice, which torch.compile cannot compile. So calls are not
  recorded while torch.compile compiles.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module

from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


_compiled_call = private.field("torch.nn.Module._compiled_call_impl")


def _refuse_hidden(path: str, module: Module, backend: Calls) -> None:
    name = f"{path or 'the model'}, a {type(module).__name__}"
    if isinstance(module, torch.jit.ScriptModule):
        raise backend.unsupported(f"seeing the layers of {name}", "trace the module that it was made of")
    # the class that torch.compile wraps a module in is told by its name, because importing it takes 3 to 7 s
    if type(module).__name__ == "OptimizedModule" or _compiled_call(module) is not None:
        raise backend.unsupported(
            f"seeing the layers of {name} that torch.compile has compiled", "trace the module before it is compiled"
        )
    if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
        raise backend.unsupported(
            f"seeing the layers of {name} over {len(module.device_ids)} devices, which calls copies of them",
            "trace its .module",
        )


class TorchCalls(Calls):
    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        private.require("layers' calls")
        layer_paths = {layer.path for layer in self.layers(model)}
        for path, module in model.named_modules():
            _refuse_hidden(path, module, self)
        paths = {
            id(module): path
            for path, module in model.named_modules()
            if path in layer_paths or next(module.children(), None) is None
        }
        with ExitStack() as stack:

            def follow(result: Any, put: Callable[[int, Any], None]) -> Any:
                for number, x in enumerate(common.tensors(self, result)):
                    if getattr(x, "requires_grad", False):
                        stack.callback(x.register_hook(partial(put, number)).remove)
                return result

            for module in model.modules():
                if isinstance(module, torch.nn.TransformerEncoder | torch.nn.TransformerEncoderLayer):
                    stack.callback(module.register_forward_pre_hook(lambda *_: None).remove)
            watch = common.Watch(self, paths, follow=follow)
            stack.enter_context(common.recording(watch, Module, is_compiling=torch.compiler.is_compiling))
            yield watch.calls

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        return common.outermost(Module, around, torch.compiler.is_compiling)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with torch.no_grad():
                return model(*inputs, **named)
        finally:
            for module in training:
                module.training = True

    def has_channels_last(self, model: Any) -> bool | None:
        return False
