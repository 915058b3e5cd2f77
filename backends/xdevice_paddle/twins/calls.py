"""Records the calls of Paddle's layers while a model runs.

`paddle.jit.to_static` replaces the `forward` of a layer by an object that runs a compiled program. The calls that such
a program makes are not visible to Python. So a model with such a layer is refused.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import paddle
from paddle.jit.dy2static.program_translator import ProgramTranslator
from paddle.nn import Layer

from xdevice.contract.patching import Patches
from xdevice.twins.contract import calls as common
from xdevice.twins.contract.dialects import AVERAGES
from xdevice.twins.contract.layers import Calls
from xdevice_paddle.private import CHECKED, private

from .layers import BATCH_NORMS, data_format, use_global_stats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


_operators: Any = private["paddle._C_ops"]


def _requires_gradient(x: Any) -> bool:
    """Whether an object is a tensor that requires a gradient."""
    # Paddle's tensors have this attribute, the opposite of `requires_grad`; other objects do not
    # have it
    return not getattr(x, "stop_gradient", True)


class PaddleCalls(Calls):
    """The hooks that call Paddle's layers and record their calls. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Records the calls of a model's layers, and the gradients of their outputs, while the block is open. Raises
        `UnsupportedError` for a model with a layer that `paddle.jit.to_static` has compiled."""
        private.require_names_for("layers' calls")
        # a layer that contains other layers is recorded only if `layers` lists it as a single layer, like an attention
        layer_paths = {layer.path for layer in self.layers(model)}
        paths = {}
        for path, layer in model.named_sublayers(include_self=True):
            # only the object with which to_static replaces `forward` has this attribute
            if hasattr(type(layer.forward), "concrete_program"):
                name = f"{path or 'the model'} (of type {type(layer).__name__})"
                raise self.unsupported(
                    f"tracing the layers of {name}, which paddle.jit.to_static has compiled",
                    "trace the layer before compiling it, or trace a second model that is not compiled",
                )
            if path in layer_paths or next(iter(layer.children()), None) is None:
                paths[id(layer)] = path
        with ExitStack() as stack:
            watch = common.Watch(
                self, paths, follow=common.GradientHooks(self, stack, _requires_gradient).follow
            )
            stack.enter_context(common.recording(watch, Layer))
            yield watch.calls

    @contextmanager
    def operation_calls(self, run: common.Run, leaf: common.Leaf) -> Iterator[None]:
        """While the block is open, passes each call of one of Paddle's operators to `run`, which makes the call. Also
        passes the gradients of parameters and inputs to `leaf`. `run` also receives `hooks.follow`, which sets hooks on
        the result for the gradients that reach it."""
        private.require_names_for("operations")
        functions = [(_operators, name) for name, x in vars(_operators).items() if callable(x)]
        # the methods of tensors that compute without calling these functions
        methods = [(paddle.Tensor, name) for name in CHECKED]
        with ExitStack() as stack:
            hooks = common.GradientHooks(self, stack, _requires_gradient)

            def replaced(name: str, original: Any) -> Any:
                """Returns the function that replaces the operator `original`. The function passes each call to `run`,
                and the gradient of each parameter or input to `leaf`."""

                @wraps(original)
                def compute(*args: Any, **kwargs: Any) -> Any:
                    """Calls the operator through `run`, and returns the result."""
                    # passes the gradients of those arguments that are parameters or inputs to `leaf`
                    hooks.follow_leaves((args, kwargs), leaf)
                    return run(
                        name, (args, kwargs), lambda: original(*args, **kwargs), hooks.follow
                    )

                return compute

            # compiling is disabled, because the operators that a compiled program calls are not visible to Python
            was_enabled = ProgramTranslator().enable_to_static
            paddle.jit.enable_to_static(False)
            stack.callback(paddle.jit.enable_to_static, was_enabled)
            patches = stack.enter_context(Patches())
            for owner, name in functions + methods:
                patches.replace(owner, name, partial(replaced, name))
            yield

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """While the block is open, passes each call of a layer to `around`, unless another layer makes the call.
        `around` returns the result for the program."""
        private.require_names_for("layers' calls")
        return common.outermost(Layer, around)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of calling a layer in evaluation mode. The call is not recorded for gradients."""
        with self.evaluating(model), paddle.no_grad():
            return model(*inputs, **named)

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """While the block is open, a model is in evaluation mode. Afterwards, restores the modes of all its layers, and
        the averages that changed in evaluation mode."""
        layers = model.sublayers(include_self=True)
        training = [layer for layer in layers if layer.training]
        # a BatchNorm with use_global_stats=False uses the batch's statistics even in evaluation mode
        # (https://github.com/PaddlePaddle/Paddle/issues/56046), and updates its averages, which are restored below
        averages = []
        for layer in layers:
            if isinstance(layer, BATCH_NORMS) and use_global_stats(layer) is False:
                own_state = layer.state_dict(include_sublayers=False)
                averages += [(own_state[name], own_state[name].clone()) for name in AVERAGES]
        model.eval()
        try:
            yield
        finally:
            for layer in training:
                layer.training = True
            with paddle.no_grad():
                for x, saved in averages:
                    x.copy_(saved, True)  # True: returns after the copy

    def is_training(self, model: Any) -> bool | None:
        """Whether the layer itself is in training mode; layers inside it may be in another mode."""
        return bool(model.training)

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the model's first layer with a data format has its channels last; None if no layer has a data
        format."""
        private.require_names_for("layers")
        formats = (data_format.get(layer) for layer in model.sublayers(include_self=True))
        return next(
            (not name.startswith("NC") for name in formats if isinstance(name, str)), None
        )
