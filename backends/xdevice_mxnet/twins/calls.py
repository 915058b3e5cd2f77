"""Records the calls of Gluon's blocks (its layers) while a model runs.

The code depends on these facts about MXNet:
- If a Dense or a convolution has an activation, the activation is a child of this layer, and the layer returns the
  activation's output.
- A hybridized (compiled) block does not call its children, so a model that contains such a block is refused.
- Without NumPy's semantics, a block accepts only legacy `mx.nd` arrays; with these semantics, only `mx.np` arrays.
- MXNet does not expose the gradients of intermediate results. Each output therefore passes through a `_GradientTap`,
  which does not change the output, and receives its gradient.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.gluon import Block, HybridBlock, nn

from xdevice.twins.contract import calls as common
from xdevice.twins.contract.layers import Calls
from xdevice_mxnet.private import private

from .layers import CONVOLUTIONS, POOLS, blocks, children, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.twins.contract.calls import Around, Call


_is_active = private.field("mxnet.gluon.HybridBlock._active")


class _GradientTap(mx.autograd.Function):  # type: ignore[misc]
    """Returns its input unchanged. In the backward pass, it calls `put` with its number and the gradient of the
    input."""

    def __init__(self, number: int, put: Callable[[int, Any], None]) -> None:
        super().__init__()
        self._number, self._put = number, put

    def forward(self, x: Any) -> Any:
        """Returns the input. MXNet calls this for `tap(x)`."""
        return x.detach()  # another array object with the same memory

    def backward(self, dy: Any) -> Any:
        """Passes the gradient of the output to `put`, and returns it as the gradient of the input."""
        self._put(self._number, dy)
        return dy


class MxnetCalls(Calls):
    """The hooks that call Gluon's blocks, and record the calls of blocks. `Calls` describes each hook."""

    @contextmanager
    def calls(self, model: Any) -> Iterator[list[Call]]:
        """Records the calls of a model's blocks while a `with` block is open. The gradients of their outputs are
        recorded too if the program records operations for gradients. Yields the list of the calls. Raises
        `UnsupportedError` for a model with a hybridized block."""
        private.require_names_for("layers' calls")
        layer_paths = {layer.path for layer in self.layers(model)}
        # the paths of the blocks to record, by their `id`s, and the activations that are children of recorded blocks
        paths, activations = {}, []
        for path, block in blocks(model):
            if isinstance(block, HybridBlock) and _is_active(block):
                raise self.unsupported(
                    f"tracing the layers of {path or 'the model'}, a hybridized {type(block).__name__}",
                    "call model.hybridize(False) first",
                )
            # a block that contains others is recorded only if `layers` lists it as one layer
            if path in layer_paths or not children(block):
                paths[id(block)] = path
            if isinstance(block, (nn.Dense, *CONVOLUTIONS)) and block.act is not None:
                activations.append(block.act)

        def follow(result: Any, put: Callable[[int, Any], None]) -> Any:
            """Returns the result of a block. If the program records operations for gradients, each array in the result
            is first passed through a `_GradientTap`, which calls `put(number, gradient)` in the backward pass."""
            # outside `autograd.record` there is no backward pass
            if not mx.autograd.is_recording():
                return result
            # a NumPy array is counted too, but has no gradient
            taps = (
                _GradientTap(number, put)(x) if isinstance(x, mx.nd.NDArray) else x
                for number, x in enumerate(common.tensors(self, result))
            )
            return common.replace_tensors(self, result, taps)

        watch = common.Watch(self, paths, activations, follow)
        with common.recording(watch, Block):
            yield watch.calls
            mx.nd.waitall()  # MXNet's own threads call the taps, and may not yet have called all of them

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Passes each call of a block to `around`, unless another block makes the call. `around` returns the result
        for the program."""
        return common.outermost(Block, around)

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a block in evaluation mode. The inputs are converted to the kind of arrays that the
        block accepts: `mx.np` arrays or legacy arrays. Raises `UnsupportedError` for keyword arguments."""
        if named:  # `Block.__call__` does not accept keyword arguments
            raise self.unsupported(
                "calling models with keyword arguments", "pass inputs= as a tuple"
            )
        # the first array of any parameter; None for a block without parameters
        first = next(
            (
                array
                for parameter in model.collect_params().values()
                for array in parameter.list_data()
            ),
            None,
        )
        # a block accepts arrays of the same kind as its parameters; without parameters, the
        # program's setting decides
        is_np = mx.util.is_np_array() if first is None else isinstance(first, mx.np.ndarray)
        arrays = [x.as_np_ndarray() if is_np else x.as_nd_ndarray() for x in inputs]
        with mx.autograd.pause(train_mode=False):
            return model(*arrays)

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the first convolution or pool of the model has its channels last. None if the model has neither."""
        # the layouts of convolutions and pools begin with NC if the channels come first
        ordered = (
            block for _, block in blocks(model) if isinstance(block, (*CONVOLUTIONS, *POOLS))
        )
        return next((not options(block)["layout"].startswith("NC") for block in ordered), None)
