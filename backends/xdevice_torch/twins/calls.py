"""Records the calls of PyTorch's modules while a model runs.

Two facts about PyTorch that the code depends on:
- In evaluation mode a `TransformerEncoderLayer` computes its result without calling the modules inside it, unless the
  layer or one of these modules has a hook (https://github.com/pytorch/pytorch/issues/128413). So a hook that does
  nothing is added to each encoder and each such layer.
- While a model is watched, its modules call functions of xdevice, which torch.compile cannot compile. So calls are not
  recorded while torch.compile is compiling.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


_NOT_COMPUTED = frozenset(
    ("__get__", "__set__", "size", "dim", "stride", "numel", "item", "tolist", "backward", "register_hook",
     "requires_grad_", "detach", "numpy", "__repr__", "__format__", "is_floating_point", "is_complex")
)  # fmt: skip
"""Functions of tensors that compute nothing: they return no tensor, or the same tensor. Calls of these functions are
not recorded."""
_compiled_call = private.field("torch.nn.Module._compiled_call_impl")


def _refuse_hidden(path: str, module: Module, backend: Calls) -> None:
    """Raises `UnsupportedError` for a module if Python code cannot observe the calls of its layers, or if its layers
    are copied to several devices and called there."""
    name = f"{path or 'the model'} (of type {type(module).__name__})"
    if isinstance(module, torch.jit.ScriptModule):
        raise backend.unsupported(f"tracing the layers of {name}", "trace the original module")
    # the class in which torch.compile wraps a module is recognized by its name, because importing the class takes 3 to
    # 7 s
    if type(module).__name__ == "OptimizedModule" or _compiled_call(module) is not None:
        raise backend.unsupported(
            f"tracing the layers of {name}, which torch.compile has compiled",
            "trace the module before compiling it",
        )
    if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
        raise backend.unsupported(
            f"tracing the layers of {name}, because it runs a copy of each layer on {len(module.device_ids)} devices",
            "trace the wrapped module, which is its attribute `module`",
        )


def _requires_gradient(x: Any) -> bool:
    """Whether an object is a tensor that requires a gradient."""
    return bool(getattr(x, "requires_grad", False))


class _Operations(TorchFunctionMode):
    """A function mode that routes each call of a PyTorch function with a tensor through `run`, and passes the gradients
    of parameters and inputs to `leaf`. PyTorch calls a function mode above autograd, so the mode receives the calls as
    the program makes them, and can follow the gradients of the tensors."""

    def __init__(self, run: common.Run, leaf: common.Leaf, hooks: common.GradientHooks) -> None:
        """`run` and `leaf` are the arguments of `operation_calls`. `hooks` adds the hooks that report gradients."""
        super().__init__()
        self._run, self._leaf, self._hooks = run, leaf, hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `func(*args, **kwargs)`: through `run` if `func` computes something, and otherwise directly."""
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _NOT_COMPUTED:
            return func(*args, **named)
        # reports the gradients of those arguments that are parameters or inputs
        self._hooks.follow_leaves((args, named), self._leaf)
        return self._run(name, (args, named), lambda: func(*args, **named), self._hooks.follow)


class TorchCalls(Calls):
    """The hooks that call PyTorch modules and record their calls. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """A block that records the calls of a model's modules, and the gradients of their outputs. Yields the list of
        these calls. Raises `UnsupportedError` for a TorchScript module, a module that torch.compile has compiled, or a
        DataParallel on several devices."""
        private.require_names_for("layers' calls")
        # a module that contains other modules is recorded only if `layers` lists it as one layer, such as an attention
        # layer
        layer_paths = {layer.path for layer in self.layers(model)}
        for path, module in model.named_modules():
            _refuse_hidden(path, module, self)
        paths = {
            id(module): path
            for path, module in model.named_modules()
            if path in layer_paths or next(module.children(), None) is None
        }
        with ExitStack() as stack:
            for module in model.modules():
                if isinstance(
                    module, torch.nn.TransformerEncoder | torch.nn.TransformerEncoderLayer
                ):
                    # the hook prevents PyTorch from using its fused path (see the top of this file)
                    stack.callback(module.register_forward_pre_hook(lambda *_: None).remove)
            watch = common.Watch(
                self, paths, follow=common.GradientHooks(self, stack, _requires_gradient).follow
            )
            stack.enter_context(
                common.recording(watch, Module, is_compiling=torch.compiler.is_compiling)
            )
            yield watch.calls

    @contextmanager
    def operation_calls(self, run: common.Run, leaf: common.Leaf) -> Iterator[None]:
        """A block that routes each call of a PyTorch function through `run`, and passes the gradients of parameters and
        inputs to `leaf`. Compiled functions run eagerly in the block."""
        with ExitStack() as stack:
            # a compiled function runs kernels directly, so the mode would not receive its calls
            if hasattr(torch.compiler, "set_stance"):  # since 2.6
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(
                _Operations(run, leaf, common.GradientHooks(self, stack, _requires_gradient))
            )
            yield

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Returns a context manager that passes each call of a module to `around`, except calls that another module
        makes. The result of `around` becomes the result of the call. Calls that are made while torch.compile is
        compiling are not passed."""
        return common.outermost(Module, around, is_compiling=torch.compiler.is_compiling)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a module in evaluation mode, without recording anything for gradients."""
        with self.evaluating(model), torch.no_grad():
            return model(*inputs, **named)

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """A block in which a model is in evaluation mode. At the end of the block, restores the mode of each module."""
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            yield
        finally:
            # does not call `train()`, which would also change inner modules that were in evaluation mode before
            for module in training:
                module.training = True

    def is_training(self, model: Any) -> bool | None:
        """Whether the module itself is in training mode. Modules inside it may be in another mode."""
        return bool(model.training)

    def has_channels_last(self, model: Any) -> bool | None:
        """Returns False, because in every PyTorch model the channels come first."""
        # PyTorch's channels_last is a memory format, which does not change the order of the axes
        return False
