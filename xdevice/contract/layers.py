"""The layers of models: what they are, what they compute, and how their calls are seen.

The kinds of layers with parameters are in the module `layouts`; layers without parameters, and all settings, in
`operations`; the code by which all adapters see calls in `calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .conversion import Conversion
from .models import Models

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .calls import Around, Call
    from .layouts import Layer, Part


class Layers(Models):
    """The layers of a model that have parameters, in PyTorch's terms. Without it a state is converted by `kinds=`."""

    needs: ClassVar[tuple[str, ...]] = ("layers",)

    def layers(self, model: Any) -> Iterable[Layer]:
        """The layers of a model whose kind `layouts` knows, each once, in the order of their definition: their
        parts have the names of `variables`. Layers without parameters, or of another kind, are left out."""
        raise self.unsupported("layers of models", "give the parameters as a dict, and their kinds")

    def parts(self, kind: str, settings: Mapping[str, object]) -> Sequence[Part]:
        """The parts that a layer of a kind may have: PyTorch's own, unless said otherwise. `settings` are those of a
        layer of any framework, and may be incomplete."""

        from . import layouts  # needs NumPy

        return layouts.parts(kind, settings)


class Operations(Layers):
    """What all layers of a model compute. They are named as `layers` names them. Without it differences between
    settings are not seen."""

    needs: ClassVar[tuple[str, ...]] = ("operations",)

    def operations(self, model: Any) -> Iterable[Layer]:
        """The layers without parameters, which have no parts, among those of `layers`, each once, in the order of their
        definition: kinds and settings are those that `xdevice.contract.operations` lists, paths those of `calls`, and
        `line` says between which of them nothing else is called. What a function does is not seen. A layer whose class
        is from outside of the framework and has its own code for calls is of kind "other", or is followed by one."""
        raise self.unsupported("settings of layers without parameters", "compare them yourself")


class Calls(Layers, Conversion):
    """Calling models, and seeing the calls of their layers, which are named as `layers` names them.
    Inputs and outputs of layers are copied without their gradients, for which `detached` is needed."""

    needs: ClassVar[tuple[str, ...]] = ("calls", "outermost", "infer")

    def calls(self, model: Any) -> AbstractContextManager[list[Call]]:
        """A list that gets each call of a layer of a model as it ends, while the block is open, in this thread or task
        and in those that `xdevice.parallel` starts. Layers with the parameters that `layers` knows are seen whatever
        children they have, other layers only if they have none. Raises `UnsupportedError` for a model whose layers a
        compiler has hidden, `NotBuiltError` if it has not been built yet. Afterwards nothing is left on the model."""
        raise self.unsupported("seeing the calls of layers", "compare what the model returns")

    def outermost(self, around: Around) -> AbstractContextManager[Any]:
        """While the block is open, each call of a model that is not made inside of another one's call is
        `around(model, arguments, call)`, in any thread: `call` makes it, `around` returns what it is to return. A layer
        or a loss that is called by itself is a model too."""
        raise self.unsupported("seeing the calls of models", "name the model")

    def infer(self, model: Any, inputs: tuple[Any, ...]) -> Any:
        """What a model returns in evaluation mode, not recorded for gradients. It keeps its own mode."""
        raise self.unsupported("calling models", "call the model")

    def has_channels_last(self, model: Any) -> bool | None:
        """Whether the images that a model takes have their channels behind rows and columns; None if the model does not
        tell."""
        return None
