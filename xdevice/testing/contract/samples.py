"""The samples that the conformance suite (`xdevice.testing`) needs from an adapter: objects
made by the framework itself, such as networks and gradients, which the rest of the contract
does not make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class Work(NamedTuple):
    """Asynchronous work in progress."""

    result: Any
    """The tensor that the work computes."""
    is_done: Callable[[], bool]
    """Returns, without waiting, whether the work is done."""


if TYPE_CHECKING:
    Modes = Mapping[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], bool]]]
    Step = Callable[[Any, Any], float]


class Samples(ABC):
    """Samples of one framework, each written as the framework's users would write it, without
    xdevice.

    If the framework does not have a sample, the method for that sample returns None, or another
    value that the method's docstring names. The suite then skips the checks that need the
    sample, and says so.
    """

    can_block: bool = False
    """Whether `Backend.blocking` waits for the work that `long_work` and `failing_work`
    start."""
    makes_memory_first: bool = False
    """Whether a tensor has its memory before it is computed, so that `address` need not
    wait."""

    def __init__(self, backend: Any = None) -> None:
        self.backend = backend
        """The adapter under test. Samples may need its devices."""

    @abstractmethod
    def other_device(self) -> Device | None:
        """Returns a second device on this machine for the suite, and creates it at the first call if necessary.
        Returns None if the framework has no devices other than cpu:0 and GPUs, real or virtual. The suite calls this
        method often, and for the first time before it uses the framework."""

    @abstractmethod
    def native_ones(self, *shape: int) -> Any:
        """Returns a tensor of ones with this shape, made by the framework's own function,
        without naming a device."""

    def add(self, x: Any, y: Any) -> Any:
        """Returns `x + y`, computed by the framework."""
        return x + y

    @abstractmethod
    def address(self, x: Any) -> int | None:
        """Returns the address at which the memory of a tensor begins, and waits until the
        tensor is computed if necessary; None if the framework does not tell the address. For a
        view, this is the address of the view's own first element, or of the memory that the
        view shares. The suite does not call this method for a tensor without elements."""

    @abstractmethod
    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Returns the gradient of `sum(function(x))` with respect to `x`; None if the framework
        has no gradients."""

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor is marked as one that gets a gradient; None if the framework does
        not mark tensors."""
        return None

    def marked(self, x: Any) -> Any:
        """Returns a tensor with the values of `x` that is marked as one that gets a gradient;
        `x` itself, unmarked, if the framework does not mark tensors."""
        return x

    def native_devices(self) -> Sequence[Any] | None:
        """Returns the framework's own objects for all its devices, the CPU first; None if the
        framework cannot list its devices."""
        return None

    def floats(self) -> Any:
        """Returns a new tensor of floats in the framework's default dtype, which
        `default_to_float64` changes; None if the framework has no such default."""
        return self.native_ones(2)

    def modes(self) -> Modes:
        """Returns, by name, modes of the framework that each thread sets separately, such as
        "no gradients"; {} if there are none. Each mode is a pair of functions: the first makes
        a context manager that enters the mode, and the second returns whether this thread is in
        the mode."""
        return {}

    def draw(self) -> object:
        """Returns a few Python numbers from the framework's default random generators;
        `NotImplemented` if it has none."""
        return NotImplemented

    def determinism(self) -> object:
        """Returns the values of the framework's settings that `Reproducibility.deterministic`
        changes, which the suite compares with `==`; `NotImplemented` if it changes no settings
        of this framework."""
        return NotImplemented

    def loader(self, items: Iterable[Any]) -> Any:
        """Returns a loader of the framework over `items`, which are NumPy arrays; each array is
        a batch. Returns None if the framework has no loaders."""
        return None

    def network(self, inputs: int, outputs: int) -> Any:
        """Returns a new model of one linear layer with this number of inputs and outputs, in
        the framework's own classes, on cpu:0, with its variables made; None if the framework
        has no models."""
        return None

    def settings(self) -> Any:
        """Returns a new model of the framework's own layers on cpu:0, with its variables made:
        a linear layer of 3 inputs and 4 outputs, a leaky ReLU with a slope of 1/4, and, in a
        block inside the model, a dropout of 3/8 and a max pool of 2 axes with windows of 3 x 2
        at a stride of 1 x 2. The suite calls the model on a tensor of the shape (1, 3, 3, 3).
        Returns None if the framework has no models, or if the adapter does not know the
        settings of layers."""
        return None

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns, by name, a function for every kind of model that the adapter can move; {} if
        there are none. Each call of a function makes a new model on cpu:0, with its variables
        made."""
        return {}

    def variables(self, model: Any) -> Mapping[str, Any]:
        """Returns the variables of a model as tensors, by name, read with the framework's own
        functions."""
        return {}

    def tied(self) -> tuple[Any, Callable[[Any], bool]] | None:
        """Returns a model in which two layers share a parameter, and a function that returns
        whether they still share it in the model that it is called with; None if there is no
        such model."""
        return None

    def sharing(self) -> tuple[Any, Any, Callable[[], bool]] | None:
        """Returns two models that share a tensor, such as a buffer, which a move replaces with
        a new tensor, and a function without arguments that returns whether the models still
        share it; None if there are no such models."""
        return None

    def spread(self, device: Device) -> Any:
        """Returns a model with one part on cpu:0 and another on `device`; None if the framework
        has no models."""
        return None

    def unbuilt(self) -> Any:
        """Returns a model that has no variables yet; None if the framework makes the variables
        of every model at once."""
        return None

    def trainable(self) -> tuple[Any, Step] | None:
        """Returns a model of 4 inputs and 1 output on cpu:0, and a function that trains it for
        one step on `x, y` and returns the loss as a Python number; None if the framework has no
        models.

        The first weights are the same at each call. The step uses an optimizer with state, such
        as momentum.
        """
        training = self.optimized()
        if training is None:
            return None
        model, _, step = training
        return model, step

    def optimized(self) -> tuple[Any, Any, Step] | None:
        """Returns the model of `trainable`, its optimizer, and the function that trains the
        model for one step. Returns None if the adapter does not treat optimizers as models, or
        if optimizers have their state from the start."""
        return None

    def holders(self, x: Any) -> Mapping[str, tuple[Any, Callable[[Any], tuple[Any, object]]]]:
        """Returns, by name, objects of the framework that hold the tensor `x` and are neither
        tensors nor models; {} if there are none. With each object comes a function that takes
        the object, or a moved copy of it, and returns its tensor and another part, which the
        suite compares as text."""
        return {}

    def failing_work(self) -> Any:
        """Returns a tensor whose computation is in progress and will fail; None if the
        framework always raises errors at the line that causes them."""
        return None

    def settle(self) -> None:  # noqa: B027  # most samples have switched nothing on
        """Switches off all settings of the framework that `failing_work` and `long_work` have
        switched on."""

    def long_work(self, device: Device) -> Work | None:
        """Starts work that takes a tenth of a second or more on a device, and returns it; None
        if the framework does not tell whether work is done."""
        return None


class Sampling(Primitives):
    """The capability of being tested by the conformance suite."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)

    def samples(self) -> Samples:
        """Returns the samples of the framework that the conformance suite needs: networks,
        gradients, a second device. The default raises `UnsupportedError`."""
        raise self.unsupported(
            "samples", "override Backend.samples() to run the conformance suite"
        )
