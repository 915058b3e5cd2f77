"""Objects that the conformance suite (`xdevice.testing`) needs from an adapter besides the contract: the framework's
own networks and gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class Work(NamedTuple):
    """Asynchronous work in progress: its result, and a function that tells, without waiting, whether the work is
    done."""

    result: Any
    is_done: Callable[[], bool]


if TYPE_CHECKING:
    Modes = Mapping[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], bool]]]
    Step = Callable[[Any, Any], float]


class Samples(ABC):
    """One framework's samples, each written as the framework's users would write it, without xdevice.

    A method returns None for a sample that the framework does not have: the suite then says which checks it had to
    skip.
    """

    can_block: bool = False
    """Whether `blocking()` waits for what `long_work` and `failing_work` start."""
    makes_memory_first: bool = False
    """Whether a tensor gets its memory before it is computed, so that `address` works at once."""

    def __init__(self, backend: Any = None) -> None:
        self.backend = backend
        """The adapter under test, which samples may ask for its devices."""

    @abstractmethod
    def other_device(self) -> Device | None:
        """Returns a second device on which the suite can test on this machine, made if need be; None if there is no
        device other than cpu:0 and real or virtual GPUs. Called often, and for the first time before the framework is
        used."""

    @abstractmethod
    def native_ones(self, *shape: int) -> Any:
        """Returns ones of this shape, made by the framework's own function, which is called without naming a device."""

    def add(self, x: Any, y: Any) -> Any:
        """Returns `x + y`, computed by the framework."""
        return x + y

    @abstractmethod
    def address(self, x: Any) -> int | None:
        """Returns the address at which the memory of a tensor begins, once the tensor is computed; None if the
        framework does not tell. For a view, it is the address of the view's own first element, or of the memory that
        the view shares. Not called for a tensor without elements."""

    @abstractmethod
    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Returns the gradient of `sum(function(x))` with respect to `x`; None if the framework has no gradients."""

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor asks for its gradient; None if the framework does not mark tensors so."""
        return None

    def marked(self, x: Any) -> Any:
        """Returns the tensor marked as asking for its gradient; the tensor itself if the framework does not mark
        tensors so."""
        return x

    def native_devices(self) -> Sequence[Any] | None:
        """Returns the framework's own objects for all its devices, the CPU first; None if the framework has no list of
        them."""
        return None

    def floats(self) -> Any:
        """Returns a tensor of floats whose dtype is the framework's default, which `default_to_float64` changes; None
        if the framework has no such default."""
        return self.native_ones(2)

    def modes(self) -> Modes:
        """Returns modes of the framework that each thread has for itself, such as "no gradients". For each name there
        are two functions: one makes a context manager that enters the mode, the other tells whether this thread is in
        it."""
        return {}

    def draw(self) -> object:
        """Returns a few numbers, as Python has them, from the framework's default generators; `NotImplemented` if it
        has none."""
        return NotImplemented

    def determinism(self) -> object:
        """Returns the settings of the framework that `Reproducibility.deterministic` changes, to be compared with `==`;
        `NotImplemented` if it changes none here."""
        return NotImplemented

    def loader(self, items: Iterable[Any]) -> Any:
        """Returns a loader of the framework over NumPy arrays, each of which is a batch; None if the framework has no
        loaders."""
        return None

    def network(self, inputs: int, outputs: int) -> Any:
        """Returns a model of one linear layer in the framework's own classes, built, on cpu:0; None if the framework
        has no models."""
        return None

    def settings(self) -> Any:
        """Returns a model of the framework's own layers, built, on cpu:0: a linear layer of 3 inputs and 4 outputs, a
        leaky ReLU with a slope of 1/4, and in a block of their own a dropout of 3/8 and a max pool of 2 axes, with
        windows of 3 x 2 at a stride of 1 x 2. The suite calls the model on a tensor of the shape (1, 3, 3, 3). None if
        the framework has no models, or the adapter does not know the settings of layers."""
        return None

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns functions by name, one for every kind of model that the adapter can move. Each call makes a new,
        built model on cpu:0."""
        return {}

    def variables(self, model: Any) -> Mapping[str, Any]:
        """Returns the variables of a model as tensors, by name, read with the framework's own functions."""
        return {}

    def tied(self) -> tuple[Any, Callable[[Any], bool]] | None:
        """Returns a model with a shared parameter, and a function that tells whether a model still shares it."""
        return None

    def sharing(self) -> tuple[Any, Any, Callable[[], bool]] | None:
        """Returns two models that share a tensor that a move replaces by a new one (a buffer), and a function that
        tells whether they still share it."""
        return None

    def spread(self, device: Device) -> Any:
        """Returns a model with one part on cpu:0 and one on `device`; None if the framework has no models."""
        return None

    def unbuilt(self) -> Any:
        """Returns a model that has no variables yet; None if the framework builds every model at once."""
        return None

    def trainable(self) -> tuple[Any, Step] | None:
        """Returns a model of 4 inputs and 1 output on cpu:0, and a function that trains it on `x, y` by one step and
        returns the loss.

        The first weights are the same at each call. The step keeps the state of an optimizer (momentum at least).
        """
        training = self.optimized()
        if training is None:
            return None
        model, _, step = training
        return model, step

    def optimized(self) -> tuple[Any, Any, Step] | None:
        """Returns what `trainable` returns, with the optimizer between the two. None if the adapter does not treat
        optimizers as models, or if optimizers have their state from the start."""
        return None

    def holders(self, x: Any) -> Mapping[str, tuple[Any, Callable[[Any], tuple[Any, object]]]]:
        """Returns objects that hold the tensor `x`, and that the framework knows although they are neither tensors nor
        models. For each name there are the object, and a function that reads the tensor and something else from such an
        object."""
        return {}

    def failing_work(self) -> Any:
        """Returns a tensor whose computation is in progress and will fail; None if errors are raised at the line that
        causes them."""
        return None

    def settle(self) -> None:  # noqa: B027  # most have switched nothing
        """Switches off whatever `failing_work` and `long_work` have switched on."""

    def long_work(self, device: Device) -> Work | None:
        """Starts work of a tenth of a second or more on a device, and returns it; None if the framework does not tell
        whether work is done."""
        return None


class Sampling(Primitives):
    """The capability of being tested by the conformance suite."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)

    def samples(self) -> Samples:
        """Returns what the conformance suite needs besides the contract: a network, a gradient, a second device."""
        raise self.unsupported(
            "samples", "override Backend.samples() to run the conformance suite"
        )
