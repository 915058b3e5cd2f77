"""Records the calls of PyTorch's modules while a model runs.

Two facts about PyTorch that the code depends on:
- In evaluation mode a `TransformerEncoderLayer` computes without calling the modules inside it, unless one of them has
  a hook (https://github.com/pytorch/pytorch/issues/128413). So each gets a hook that does nothing.
- While a model is watched, its modules call functions of xdevice, which torch.compile cannot compile. So calls are not
  recorded while torch.compile compiles.
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
"""Functions on tensors that compute nothing: they return no tensor, or the same one. They are not recorded."""
_compiled_call = private.field("torch.nn.Module._compiled_call_impl")


def _refuse_hidden(path: str, module: Module, backend: Calls) -> None:
    """Raises `UnsupportedError` for a module whose layers are called where Python does not see the calls, or called as
    copies on several devices."""
    name = f"{path or 'the model'} (of type {type(module).__name__})"
    if isinstance(module, torch.jit.ScriptModule):
        raise backend.unsupported(f"tracing the layers of {name}", "trace the original module")
    # the class that torch.compile wraps a module in is recognized by its name, because importing it takes 3 to 7 s
    if type(module).__name__ == "OptimizedModule" or _compiled_call(module) is not None:
        raise backend.unsupported(
            f"tracing the layers of {name}, which torch.compile has compiled",
            "trace the module before compiling it",
        )
    if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
        raise backend.unsupported(
            f"tracing the layers of {name}, which calls copies of them on {len(module.device_ids)} devices",
            "trace the module inside it, its attribute `module`",
        )


def _requires_gradient(x: Any) -> bool:
    """Whether an object is a tensor that requires a gradient."""
    return bool(getattr(x, "requires_grad", False))


class _Operations(TorchFunctionMode):
    """While the mode is active, makes each call of a PyTorch function with a tensor through `run`, and passes the
    gradients of parameters and inputs to `leaf`. A function mode is above autograd, so it gets the calls of the
    program, with tensors whose gradients can be followed."""

    def __init__(self, run: common.Run, leaf: common.Leaf, hooks: common.GradientHooks) -> None:
        """`run` and `leaf` are the arguments of `operation_calls`; `hooks` sets the hooks that report gradients."""
        super().__init__()
        self._run, self._leaf, self._hooks = run, leaf, hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Makes the call `func(*args, **kwargs)`, through `run` unless the function computes nothing."""
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _NOT_COMPUTED:
            return func(*args, **named)
        # reports the gradients of the arguments that are parameters or inputs
        self._hooks.follow_leaves((args, named), self._leaf)
        return self._run(name, (args, named), lambda: func(*args, **named), self._hooks.follow)


class TorchCalls(Calls):
    """The hooks that call PyTorch modules and record their calls. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Records the calls of a model's modules, and the gradients of their outputs. Raises `UnsupportedError` for a
        TorchScript module, a module that torch.compile has compiled, or a DataParallel on several devices."""
        private.require("layers' calls")
        # a module that contains others is recorded only if `layers` lists it as one layer, such as an attention
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
                    # the hook keeps PyTorch from its fused path (see the top of this file)
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
        """While the block is open, makes each call of one of PyTorch's functions through `run`, and passes the
        gradients of parameters and inputs to `leaf`. Compiled functions run eagerly."""
        with ExitStack() as stack:
            # a compiled function runs kernels directly, so the mode would not see its calls
            if hasattr(torch.compiler, "set_stance"):  # since 2.6
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(
                _Operations(run, leaf, common.GradientHooks(self, stack, _requires_gradient))
            )
            yield

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Passes each call of a module that no other module makes to `around`, which returns the result for the
        program. Calls made while torch.compile compiles are not passed."""
        return common.outermost(Module, around, torch.compiler.is_compiling)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a module in evaluation mode, without recording for
        gradients."""
        with self.evaluating(model), torch.no_grad():
            return model(*inputs, **named)

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """Sets a model to evaluation mode while the block is open, and restores the mode of each of its modules."""
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            yield
        finally:
            # not `train()`, which would also set the modules inside that were in evaluation mode before
            for module in training:
                module.training = True

    def is_training(self, model: Any) -> bool | None:
        """Whether the module itself is in training mode; modules inside it may differ."""
        return bool(model.training)

    def has_channels_last(self, model: Any) -> bool | None:
        """Returns False: every PyTorch model has its channels first."""
        # PyTorch's channels_last is a memory format, which does not change the order of the axes
        return False
