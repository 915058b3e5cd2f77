"""The layers of models: which layers with parameters there are, what all layers compute, and how their calls are
recorded.

The kinds of layers with parameters are in the module `layouts`, layers without parameters and all settings in
`operations`. The code with which all adapters record calls is in `calls`.
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
    """The capability of listing the layers of a model that have parameters, in PyTorch's terms.
    Without this capability, users must pass the kinds of a model's layers to `convert_state`,
    as its argument `kinds`."""

    needs: ClassVar[tuple[str, ...]] = ("layers",)
    dialects: ClassVar[tuple[str, ...]] = ()
    """The names, in `dialects.DIALECTS`, of further layouts that parameters of this framework may have, besides that of
    `parts`."""

    def layers(self, model: Any) -> Iterable[Layer]:
        """Returns the layers of a model whose kind is one of `layouts.KINDS`, each once, in the order of their
        definition. The parts (parameter arrays) of a layer have the names that `variables` gives them. Layers without
        parameters, or of another kind, are left out."""
        raise self.unsupported(
            "layers of models", "pass the parameters as a dict, and their kinds as kinds="
        )

    def has_layers(self, x: object) -> bool:
        """Whether `x` is a model for `layers`, `variables` and the capabilities built on them, although `classify`
        does not return "model" for its type, as for the modules of Flax and Equinox. Such an object still moves as a
        container."""
        return False

    def write_layers(self, model: Any, values: Mapping[str, Any]) -> None:
        """Writes `values` into a model for which `has_layers` is true. The keys of `values` are
        the names of the model's variables, and each value is on the device of its variable."""
        raise self.unsupported(
            f"writing into {type(model).__qualname__} objects", "pass a model"
        )

    def parts(self, kind: str, settings: Settings) -> Sequence[Part]:
        """Returns the parts (parameter arrays, each with its conversion to PyTorch's
        parameters) that a layer of this kind may have in this framework: those of PyTorch's own
        layer, unless overridden. `settings` are those of a layer of any framework, and may be
        incomplete."""

        from . import layouts  # needs NumPy

        return layouts.parts(kind, settings)


class Operations(Layers):
    """The capability of reading what each layer of a model computes, including the layers without parameters. Layers
    have the same paths as in `layers`. Without this capability, differences between the settings of layers are not
    noticed."""

    needs: ClassVar[tuple[str, ...]] = ("operations",)

    def operations(self, model: Any, layers: Iterable[Layer]) -> Iterable[Layer]:
        """Returns all layers of a model, each once, in the order of their definition: `layers`,
        which are the result of the method `layers`, and the layers without parameters, which
        have no parts. Their kinds and settings are those that
        `xdevice.twins.contract.operations` lists, and paths are those of `calls`. `Layer.line`
        says between which layers nothing else is called. Calls of plain functions are not
        noticed. A layer whose class is not the framework's own and has its own code for calls
        is listed with the kind "other"; if it has parameters, an entry of that kind follows
        it."""
        raise self.unsupported(
            "settings of layers without parameters", "compare the settings yourself"
        )


class Calls(Layers, Conversion):
    """The capability of calling models, and of recording the calls of their layers, which have the same paths as in
    `layers`. The inputs and outputs of layers are copied without their gradients, which needs the method
    `detached`."""

    needs: ClassVar[tuple[str, ...]] = ("calls", "outermost", "infer")

    def calls(self, model: Any) -> AbstractContextManager[list[Call]]:
        """Returns a context manager that yields a list. While the block is open, each call of a layer of the model is
        appended when it ends, in this thread or task and in those that `xdevice.parallel.run` starts. A layer with
        parameters that `layers` lists is recorded whatever layers it contains, any other layer only if it contains
        none. Raises `UnsupportedError` for a model whose layers a compiler has hidden, and `NotBuiltError` for a model
        that has not been built yet. Afterwards the model is unchanged."""
        raise self.unsupported(
            "tracing the calls of layers", "compare the outputs of the model"
        )

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """Returns a context manager. While the block is open, calls of models in all threads are replaced by
        `around(model, arguments, call)`, except those made inside the call of another model. `call()` makes the
        original call, and `around` returns the result for the program. A layer or a loss that is called by itself
        counts as a model."""
        raise self.unsupported("tracing the calls of models", "pass the model")

    def infer(self, model: Any, inputs: tuple[Any, ...], /, **named: Any) -> Any:
        """Returns the result of a model for these arguments in evaluation mode, not recorded for gradients. Afterwards
        the model is in its former mode. Raises `UnsupportedError` if keywords are passed to a model of a framework
        whose models take none."""
        raise self.unsupported("calling models", "call the model yourself")

    def operation_calls(self, run: Run, leaf: Leaf) -> AbstractContextManager[None]:
        """Returns a context manager. While the block is open, each operation of this thread on tensors with values is
        passed to `run(name, arguments, go, follow, is_backward)`, which returns the result of `go()`. `go` makes the
        call. `follow(result, put)` makes sure that `put(number, gradient)` is called for each gradient that reaches an
        output, where `number` is the index of the output. `leaf(x, gradient, name)` is called for each gradient of a
        parameter or input `x` that the program computes, in the order of the backward pass. Functions that a compiler
        has made are not passed to `run`."""
        raise self.unsupported(
            "tracing operations", "compare layers, or the values that the program records"
        )

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        """While the block is open, the model is in evaluation mode, if it has a mode; afterwards it has its former
        mode."""
        yield

    def is_training(self, model: Any) -> bool | None:
        """Whether a model is in training mode; None if the model has no mode."""
        return None

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether a model takes images whose channels are the last axis, after rows and columns; None if that is not
        known."""
        return None
