"""Records the calls of Paddle's layers while a model runs.

`paddle.jit.to_static` replaces the `forward` of a layer by an object that runs a compiled program, which makes no calls
that Python could see. So a model with such a layer is refused.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import paddle
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
    # Paddle's tensors have this attribute, the opposite of `requires_grad`; other objects lack
    # it
    return not getattr(x, "stop_gradient", True)


class PaddleCalls(Calls):
    """The hooks that call Paddle's layers and record their calls. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Records the calls of a model's layers, and the gradients of their outputs. Raises `UnsupportedError` for a
        model with a layer that `paddle.jit.to_static` has compiled."""
        private.require("layers' calls")
        # a layer that contains others is recorded only if `layers` lists it as one layer, such as an attention
        layer_paths = {layer.path for layer in self.layers(model)}
        paths = {}
        for path, layer in model.named_sublayers(include_self=True):
            # only the object that to_static puts in place of `forward` has this attribute
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
        """While the block is open, makes each call of one of Paddle's operators through `run`, and passes the
        gradients of parameters and inputs to `leaf`. With each call, `run` gets `hooks.follow`, which sets hooks on
        the result for the gradients that reach it."""
        private.require("operations")
        functions = [(_operators, name) for name, x in vars(_operators).items() if callable(x)]
        # tensors also have methods that compute without calling these functions
        methods = [(paddle.Tensor, name) for name in CHECKED]
        with ExitStack() as stack:
            hooks = common.GradientHooks(self, stack, _requires_gradient)

            def replaced(name: str, original: Any) -> Any:
                """Returns the function that replaces the operator `original`: it makes each call through `run`, and
                passes the gradient of each parameter or input to `leaf`."""

                @wraps(original)
                def compute(*args: Any, **kwargs: Any) -> Any:
                    """Returns the result of the operator, which `run` calls."""
                    # reports the gradients of the arguments that are parameters or inputs
                    hooks.follow_leaves((args, kwargs), leaf)
                    return run(
                        name, (args, kwargs), lambda: original(*args, **kwargs), hooks.follow
                    )

                return compute

            # a compiled program calls its operators where Python does not see them
            paddle.jit.enable_to_static(False)
            stack.callback(paddle.jit.enable_to_static, True)
            patches = stack.enter_context(Patches())
            for owner, name in functions + methods:
                patches.replace(owner, name, partial(replaced, name))
            yield

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Passes each call of a layer that no other layer makes to `around`, which returns the result for the
        program."""
        private.require("layers' calls")
        return common.outermost(Layer, around)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a layer in evaluation mode, without recording for gradients."""
        with self.evaluating(model), paddle.no_grad():
            return model(*inputs, **named)

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """Sets a model to evaluation mode while the block is open, and restores the modes of all its layers and the
        averages that evaluation would change."""
        layers = model.sublayers(include_self=True)
        training = [layer for layer in layers if layer.training]
        # a BatchNorm with use_global_stats=False takes the batch's statistics even in evaluation mode
        # (https://github.com/PaddlePaddle/Paddle/issues/56046), and updates its averages, which are restored below
        averages = [
            (x, x.clone())
            for layer in layers
            if isinstance(layer, BATCH_NORMS) and use_global_stats(layer) is False
            for x in map(layer.state_dict(include_sublayers=False).get, AVERAGES)
        ]
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
        """Whether the layer itself is in training mode; layers inside it may differ."""
        return bool(model.training)

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the first layer of the model with a data format has its channels last; None if no layer has a data
        format."""
        private.require("layers")
        formats = (data_format.get(layer) for layer in model.sublayers(include_self=True))
        return next(
            (not name.startswith("NC") for name in formats if isinstance(name, str)), None
        )
