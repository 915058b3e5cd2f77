"""The capabilities of listing the layers of a model, of reading what each layer computes, and of recording the calls of
layers.

The module `layouts` describes the kinds of layers with parameters. The module `operations` describes layers without
parameters, and the settings of all layers. The module `calls` contains the code with which all adapters record calls.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.conversion import Conversion
from xdevice.contract.models import Models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .calls import Around, Call, Leaf, Run
    from .layouts import Layer, Part, Settings


class Layers(Models):
    """The capability of listing the layers with parameters of a model, in PyTorch's terms. Without this capability,
    users must pass the kinds of a model's layers to `convert_state`, as its argument `kinds`."""

    needs: ClassVar[tuple[str, ...]] = ("layers",)
    dialects: ClassVar[tuple[str, ...]] = ()
    """The names of additional layouts that the parameters of this framework may have, besides the layout that `parts`
    describes. Each is a key of `dialects.DIALECTS`."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers of a model, each once, in the order in which they are defined. Layers without parameters,
        and layers of a kind that is not in `layouts.KINDS`, are left out. The parts (parameter arrays) of a layer have
        the same names as in `variables`."""
        raise self.unsupported(
            "listing the layers of models",
            "pass the parameters as a dict, and the kinds of the layers as kinds=",
        )

    def has_layers(self, x: object) -> bool:
        """Whether `x` is a model for `layers`, `variables` and the capabilities built on them, although `classify` does
        not return "model" for the type of `x`. This is the case for the modules of Flax and Equinox. Such an object is
        still moved as a container."""
        return False

    def write_layers(self, model: Any, values: Mapping[str, Any]) -> None:
        """Writes `values` into a model for which `has_layers` returns True. The keys of `values` are the names of the
        model's variables, and each value is on the same device as its variable."""
        raise self.unsupported(
            f"writing into {type(model).__qualname__} objects", "pass a model"
        )

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parts that a layer of this kind may have in this framework. A part is a parameter array, with
        its conversion to PyTorch's parameters. Unless overridden, the method returns the parts of PyTorch's own layer.
        `settings` are the settings of a layer of any framework, and may be incomplete."""

        from . import layouts  # needs NumPy

        return layouts.parts(kind, settings)


class Operations(Layers):
    """The capability of reading what each layer of a model computes, including the layers without parameters. A layer
    has the same path as in `layers`. Without this capability, differences between the settings of layers are not
    detected."""

    needs: ClassVar[tuple[str, ...]] = ("operations",)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns all layers of a model, each once, in the order in which they are defined. The argument `layers` is
        the result of the method `layers`. Returns these layers together with the layers without parameters, which have
        no parts. The module `xdevice.twins.contract.operations` lists the possible kinds and settings. The paths are
        the same as in `calls`, and `Layer.line` says which layers are called in sequence, with nothing between them.
        Calls of plain functions are not detected.

        The code of a class from outside the framework may compute anything. If such a class has its own code for calls,
        its layer is listed with the kind "other". A layer with parameters instead keeps its kind, and is followed by an
        entry of the kind "other".

        If the framework knows which layers use the outputs of which others, entries of the kind `WIRING` may follow."""
        raise self.unsupported(
            "reading the settings of layers without parameters", "compare the settings yourself"
        )


class Calls(Layers, Conversion):
    """The capability of calling models and of recording the calls of their layers. A layer has the same path as in
    `layers`. The backend must also have the method `detached`, because the inputs and outputs of layers are copied
    without their gradients."""

    needs: ClassVar[tuple[str, ...]] = ("calls", "outermost", "infer")

    def calls(self, model: Any) -> AbstractContextManager[list[Call]]:
        """Returns a context manager that yields a list. While the block is open, each call of a layer of the model is
        appended to the list when the call ends. Calls are recorded in this thread or task, and in the threads and tasks
        that `xdevice.parallel.run` starts from it. A layer that `layers` lists is always recorded; any other layer is
        recorded only if it contains no layers itself. After the block, the model is unchanged. Raises
        `UnsupportedError` if a compiler has hidden the model's layers, and `NotBuiltError` if the model has not been
        built yet."""
        raise self.unsupported(
            "recording the calls of layers", "compare the outputs of the model"
        )

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Returns a context manager. While the block is open, each call of a model in any thread is replaced by
        `around(model, arguments, call)`, except a call made inside the call of another model. `call()` makes the
        original call, and the program receives the value that `around` returns. A layer or a loss that is called
        outside any model is treated as a model."""
        raise self.unsupported("tracing the calls of models", "pass the model")

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of calling a model in evaluation mode with these arguments. The framework records no
        gradients for the call. Afterwards, the model returns to its former mode. Raises `UnsupportedError` if `named`
        is not empty and the framework's models do not accept keyword arguments."""
        raise self.unsupported("calling models", "call the model yourself")

    def operation_calls(self, run: Run, leaf: Leaf) -> AbstractContextManager[None]:
        """Returns a context manager. While the block is open, each operation that this thread runs on tensors with
        values is passed to `run(name, arguments, go, follow, is_backward)`. `go()` runs the operation, and `run`
        returns its result. `follow(result, put)` arranges that `put(number, gradient)` is called for each gradient that
        reaches an output, where `number` is the index of the output. `leaf(x, gradient, name)` is called for each
        gradient that the program computes for a parameter or input `x`, in the order of the backward pass. Functions
        that a compiler has produced are not passed to `run`."""
        raise self.unsupported(
            "tracing operations", "compare layers, or the values that the program records"
        )

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """While the block is open, the model is in evaluation mode; afterwards it returns to its former mode. A model
        without modes is not changed."""
        yield

    def is_training(self, model: Any) -> bool | None:
        """Whether a model is in training mode; None if the model has no modes."""
        return None

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether a model expects images with the channels as the last axis, after rows and columns; None if this is
        not known."""
        return None
