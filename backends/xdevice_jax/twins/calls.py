"""Calls modules of Flax (nnx, linen) and Equinox, and records the calls of Flax's layers.

An Equinox module is called under `vmap` over the batch. Inside `vmap`, its layers have no concrete values to record, so
only the outputs of such a model are compared.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.patching import Patches
from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls
from xdevice_jax.private import private

from . import linen
from .modules import MODES, equinox, is_nnx, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


class JaxCalls(Calls):
    """The hooks that call the modules of JAX's libraries and record their calls. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Yields a list to which the calls of Flax's layers are added. The list stays empty for an Equinox module (see
        the module's docstring)."""
        layer_paths = {layer.path for layer in self.layers(model)}
        if linen.is_linen(model):
            # {} because linen creates its layers anew in each call, so that they are recognized by their paths and not
            # by their `id`
            watch = common.Watch(self, {})
            with linen.intercepting(layer_paths, watch.run):
                yield watch.calls
            return
        modules = list(walk(model))
        paths = {
            id(module): path
            for path, module in modules
            if path in layer_paths and is_nnx(module)
        }
        # modules have no common base class with a `__call__`, so this method is patched in the class of each layer
        classes = {_owner(type(module)) for _, module in modules if id(module) in paths}
        watch = common.Watch(self, paths)
        with ExitStack() as stack:
            stack.enter_context(common.recording(watch, *classes))
            yield watch.calls

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Raises `UnsupportedError`, because modules have no common base class whose `__call__` could be replaced."""
        raise self.unsupported(
            "tracing the calls of all models in a program",
            "pass the model: xdevice.parity.capture_intermediates(model)",
        )

    @contextmanager
    def operation_calls(self, run: common.Run, leaf: common.Leaf) -> Iterator[None]:
        """Opens a block in which each primitive (one of JAX's smallest operations) is evaluated through `run`. The
        gradients that `jax.grad` and `jax.value_and_grad` return in the block are passed to `leaf`."""
        private.require_names_for("operations")

        def replaced(original: Any) -> Any:
            """Returns the replacement for JAX's function that evaluates a primitive with values."""

            @wraps(original)
            def process(trace: Any, primitive: Any, args: Any, params: Any) -> Any:
                """Evaluates a primitive through `run`."""
                # JAX arrays have no hooks, so their gradients cannot be followed
                follow = None
                is_backward = common.is_called("backward_pass")
                return run(
                    str(primitive),
                    tuple(args),
                    lambda: original(trace, primitive, args, params),
                    follow,
                    is_backward,
                )

            return process

        # with jit disabled, JAX evaluates each primitive of a compiled function with its values
        with jax.disable_jit(), Patches() as patches:
            # False and True say whether the function that JAX creates also returns its value
            patches.replace(jax, "grad", partial(_with_gradients_passed, leaf, False))
            patches.replace(jax, "value_and_grad", partial(_with_gradients_passed, leaf, True))
            patches.replace(
                *private.place("jax._src.core.EvalTrace.process_primitive"), replaced
            )
            yield

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a module in evaluation mode. An Equinox module is called for each example of the batch,
        under `vmap`. A linen module is called unchanged, because its arguments determine the mode."""
        if linen.is_linen(model):
            # linen has no modes: the arguments of a call say whether the module is in training
            return linen.copied(model)(*inputs, **named)
        if not is_nnx(model):
            library: Any = equinox()
            return jax.vmap(library.nn.inference_mode(model))(*inputs, **named)
        # the modes of all modules, which are restored afterwards
        modes = [
            (module, name, getattr(module, name))
            for _, module in walk(model)
            for name in MODES
            if hasattr(module, name)
        ]
        model.eval()
        try:
            return model(*inputs, **named)
        finally:
            for module, name, value in modes:
                setattr(module, name, value)

    def has_channels_last(self, model: Any) -> bool | None:
        """Returns True for every module of Flax, and False for a module of Equinox, which expects the channels
        first."""
        return is_nnx(model) or linen.is_linen(model)


def _with_gradients_passed(leaf: common.Leaf, returns_value: bool, original: Any) -> Any:
    """Returns the replacement for `original`, which is `jax.grad` or `jax.value_and_grad`. The functions that the
    replacement creates report their gradients: for each array `x` in their arguments, they call
    `leaf(x, gradient, path)`. `returns_value` is true for `value_and_grad`."""

    @wraps(original)
    def transform(fun: Any, argnums: Any = 0, has_aux: bool = False, **options: Any) -> Any:
        """Returns the function that JAX creates from `fun`, wrapped so that its gradients are passed to `leaf`."""
        compute = original(fun, argnums, has_aux, **options)

        @wraps(fun)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            """Returns the result of JAX's function, and passes each gradient in the result to `leaf`."""
            result = compute(*args, **kwargs)
            # the result is (value, gradients), (gradients, auxiliary output), or gradients alone
            gradients = result
            if returns_value or has_aux:
                gradients = result[1 if returns_value else 0]
            values = (
                args[argnums]
                if isinstance(argnums, int)
                else tuple(args[number] for number in argnums)
            )
            pairs = zip(
                jax.tree_util.tree_leaves_with_path(values),
                jax.tree.leaves(gradients),
                strict=True,
            )
            # reversed, because gradients are computed from the last layer to the first
            for (path, x), gradient in reversed(list(pairs)):
                # inside `jit` or `vmap`, a gradient is a tracer, which has no values
                if not isinstance(gradient, jax.core.Tracer):
                    leaf(x, gradient, jax.tree_util.keystr(path))
            return result

        return differentiated

    return transform


def _owner(cls: type) -> type:
    """Returns the class that defines the `__call__` of a class of modules: the class itself or one of its bases."""
    return next(base for base in cls.__mro__ if "__call__" in vars(base))
