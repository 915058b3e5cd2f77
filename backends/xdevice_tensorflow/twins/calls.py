"""Records the calls of Keras's layers while a model runs.

How the calls are recorded:

- Keras has no hooks on layers, but both functional and subclassed models call their layers through `Layer.__call__`.
  This method is replaced while calls are recorded.
- A layer calls its activation as `self.activation`. This attribute is replaced to record the output of the activation.
- Users compute gradients with a `tf.GradientTape`. `GradientTape.gradient` is replaced so that it also computes the
  gradients with respect to the outputs of the layers.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import keras
import tensorflow as tf
from keras import layers as kl

from xdevice.contract.patching import Patches
from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls
from xdevice_tensorflow import names
from xdevice_tensorflow.parts import layers_in
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call

# the layers that apply an activation to their output as the last step
_ACTIVATED: Final = (
    kl.Dense, kl.Conv1D, kl.Conv2D, kl.Conv3D, kl.Conv1DTranspose, kl.Conv2DTranspose, kl.Conv3DTranspose,
    kl.DepthwiseConv1D, kl.DepthwiseConv2D,
)  # fmt: skip
_followed: Final[list[list[tuple[Any, Callable[[Any], None]]]]] = []
"""A list for each open block of `calls` or `operation_calls`. It contains the outputs whose gradients are recorded,
each with a function that is called with the gradient."""


_gradient_listeners: Final[list[Any]] = []
"""The functions `leaf` of the open blocks of `operation_calls`. Each function is called with the source of a gradient
(such as a variable), the gradient, and the name of the source."""


def _gradient_replacement(original: Any) -> Any:
    """Returns the function that replaces `GradientTape.gradient` (`original`). The replacement also computes the
    gradients with respect to the outputs in `_followed`, and passes each gradient to the function that `_followed`
    contains for the output. The replacement passes the gradients with respect to the program's own sources to the
    functions in `_gradient_listeners`."""

    @wraps(original)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients with respect to `sources`, as `GradientTape.gradient` does."""
        # inside a tf.function, gradients have no values
        if not tf.executing_eagerly():
            return original(self, target, sources, *args, **kwargs)
        outputs = [pair for followed in _followed for pair in followed]
        # all gradients are computed in one call, because a tape that is not persistent allows
        # only one call
        gradients, output_gradients = original(
            self, target, [sources, [x for x, _ in outputs]], *args, **kwargs
        )
        # the last operation comes first, as in a backward pass, because `put` needs the
        # gradients of the operations that use an output
        for (_, put), dy in reversed([*zip(outputs, output_gradients, strict=True)]):
            # None if the target does not depend on this output
            if dy is not None:
                put(dy)
        for listener in _gradient_listeners:
            # reversed, because a backward pass begins with the gradient of the last parameter
            pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
            for x, dy in reversed(pairs):
                if dy is not None:
                    # the path of a Keras variable says more than a name, but other variables
                    # have only a name
                    listener(
                        tf.convert_to_tensor(x),
                        tf.convert_to_tensor(dy),
                        getattr(x, "path", getattr(x, "name", "")),
                    )
        return gradients

    return gradient


_add_callback = private["tensorflow.python.framework.op_callbacks.add_op_callback"]
_remove_callback = private["tensorflow.python.framework.op_callbacks.remove_op_callback"]


class TensorflowCalls(Calls):
    """The hooks that call Keras models and record the calls of their layers. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Records the calls of a model's layers, and of the activations in these layers. If a tape computes gradients,
        also records the gradients with respect to the outputs of these calls."""
        private.require_names_for("layers' calls")
        layer_paths = {layer.path for layer in self.layers(model)}
        # `activated` are layers whose activation is a function, which is replaced; `activations` are activations that
        # are themselves layers
        paths, activated, activations = {}, [], []
        for path, layer in names.layers(model):
            # a layer that contains other layers is recorded only if `layers` lists it as one layer, such as an
            # attention
            if path in layer_paths or not layers_in(layer):
                paths[id(layer)] = path
            function = getattr(layer, "activation", None)
            if isinstance(layer, _ACTIVATED) and function is not keras.activations.linear:
                if isinstance(function, FunctionType):
                    activated.append(layer)
                elif function is not None:
                    activations.append(function)
        with self._following() as follow, Patches() as patches:
            watch = common.Watch(self, paths, activations, follow)
            for layer in activated:
                patches.replace(layer, "activation", partial(common.recorded_activation, layer))
            with common.recording(watch, keras.Layer):
                yield watch.calls

    @contextmanager
    def _following(self) -> Iterator[Any]:
        """Yields a function `follow(result, put)`, which returns `result`. When a tape computes gradients in the block,
        `put(number, gradient)` is called for each tensor in `result`; `number` is the index of the tensor."""
        followed: list[tuple[Any, Callable[[Any], None]]] = []

        def follow(result: Any, put: Callable[[int, Any], None]) -> Any:
            """Returns `result`. Records the tensors in it, so that a tape also computes their gradients."""
            for number, x in enumerate(common.tensors(self, result)):
                # a tape computes no gradients of integers
                if isinstance(x, tf.Tensor) and x.dtype.is_floating:
                    followed.append((x, partial(put, number)))
            return result

        with Patches() as patches:
            patches.replace(tf.GradientTape, "gradient", _gradient_replacement)
            _followed.append(followed)
            try:
                yield follow
            finally:
                # by identity, because `remove` would compare the tensors in the lists
                _followed[:] = [other for other in _followed if other is not followed]

    @contextmanager
    def operation_calls(self, run: common.Run, leaf: common.Leaf) -> Iterator[None]:
        """In the block, passes each of TensorFlow's operations to `run`, except operations of a backward pass. Also
        passes each gradient that the program computes with a tape to `leaf`."""
        private.require_names_for("operations")
        ran_eagerly = tf.config.functions_run_eagerly()
        with self._following() as follow:

            def note(
                kind: Any, inputs: Any, attributes: Any, outputs: Any, *_: Any, **named: Any
            ) -> None:
                """Passes to `run` an operation that TensorFlow has reported."""
                # operations of the tape itself are left out, because gradients are recorded for the operations of the
                # program
                if tf.executing_eagerly() and not common.is_called("imperative_grad"):
                    # TensorFlow has already run the operation, so the function that is passed only returns the outputs
                    run(str(kind), tuple(inputs), lambda: list(outputs), follow)

            # functions run eagerly, because the operations of a compiled function have no
            # values
            tf.config.run_functions_eagerly(True)
            _add_callback(note)
            _gradient_listeners.append(leaf)
            try:
                yield
            finally:
                _gradient_listeners.remove(leaf)
                _remove_callback(note)
                tf.config.run_functions_eagerly(ran_eagerly)

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Passes each call of a Keras layer or model to `around`, except calls that another layer makes. The result of
        `around` becomes the result of the call."""
        return common.outermost(keras.Layer, around)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a model in evaluation mode. A functional model is called with one argument. If there
        are keyword arguments, this is a dict of them, and `inputs` is ignored. Otherwise, it is the single input, or
        several inputs in the structure of `model.input`. Any other model is called with the arguments as they are."""
        # a functional model expects its inputs in one container
        is_functional = bool(getattr(model, "inputs", None))
        if named and is_functional:
            return model(named, training=False)
        if len(inputs) > 1 and is_functional:
            return model(keras.tree.pack_sequence_as(model.input, inputs), training=False)
        return model(*inputs, **named, training=False)

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the first layer with a data format has the data format "channels_last". Returns None if no layer of
        the model has a data format."""
        formats = (getattr(layer, "data_format", None) for _, layer in names.layers(model))
        return next(
            (name == "channels_last" for name in formats if isinstance(name, str)), None
        )
