"""The samples that the conformance suite (`xdevice.testing`) needs from an adapter: objects that the framework itself
creates, such as networks and gradients. The rest of the contract does not create such objects."""

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
    """Returns, without waiting, whether the work is complete."""


if TYPE_CHECKING:
    Modes = Mapping[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], bool]]]
    Step = Callable[[Any, Any], float]


class Samples(ABC):
    """Samples of one framework, written as the framework's users would write them, without xdevice.

    If the framework lacks a sample, its method returns None, or another value that is named in the method's docstring.
    The suite then skips the checks that need this sample, and says so.
    """

    can_block: bool = False
    """Whether `Backend.blocking` waits for the work that `long_work` and `failing_work`
    start."""
    makes_memory_first: bool = False
    """Whether the memory of a tensor is allocated before the tensor is computed. If so, `address` need not wait."""

    def __init__(self, backend: Any = None) -> None:
        self.backend = backend
        """The adapter under test. Samples may need its devices."""

    @abstractmethod
    def other_device(self) -> Device | None:
        """Returns a second device on this machine for the suite. Creates this device at the first call if necessary.
        Returns None if the framework has no devices other than cpu:0 and GPUs, real or virtual. The suite calls this
        method often, and for the first time before it uses the framework."""

    @abstractmethod
    def native_ones(self, *shape: int) -> Any:
        """Returns a tensor of ones with this shape, created by the framework's own function without naming a device."""

    def add(self, x: Any, y: Any) -> Any:
        """Returns `x + y`, computed by the framework."""
        return x + y

    @abstractmethod
    def address(self, x: Any) -> int | None:
        """Returns the start address of a tensor's memory, and waits until the tensor is computed if necessary. Returns
        None if the framework does not reveal the address. For a view, this is the address of the view's own first
        element, or the address of the memory that the view shares. The suite does not call this method for a tensor
        without elements."""

    @abstractmethod
    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Returns the gradient of `sum(function(x))` with respect to `x`; None if the framework
        has no gradients."""

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor is marked as requiring a gradient; None if the framework does not mark tensors."""
        return None

    def marked(self, x: Any) -> Any:
        """Returns a tensor with the values of `x`, marked as requiring a gradient. If the framework does not mark
        tensors, returns `x` itself."""
        return x

    def native_devices(self) -> Sequence[Any] | None:
        """Returns the framework's own objects for all its devices, beginning with the CPU; None if the framework cannot
        list its devices."""
        return None

    def floats(self) -> Any:
        """Returns a new tensor of floats in the framework's default dtype, which
        `default_to_float64` changes; None if the framework has no such default."""
        return self.native_ones(2)

    def modes(self) -> Modes:
        """Returns, by name, modes of the framework that each thread sets separately, such as "no gradients"; {} if
        there are no such modes. Each mode is a pair of functions: the first creates a context manager that enters the
        mode, and the second returns whether this thread is in the mode."""
        return {}

    def draw(self) -> object:
        """Returns a few Python numbers from the framework's default random generators; `NotImplemented` if the
        framework has no such generators."""
        return NotImplemented

    def determinism(self) -> object:
        """Returns the values of the framework's settings that `Reproducibility.deterministic` changes. The suite
        compares the values with `==`. Returns `NotImplemented` if `deterministic` changes no settings of this
        framework."""
        return NotImplemented

    def loader(self, items: Iterable[Any]) -> Any:
        """Returns a loader of the framework over `items`. Each item is a batch, as a NumPy array. Returns None if the
        framework has no loaders."""
        return None

    def network(self, inputs: int, outputs: int) -> Any:
        """Returns a new model that consists of one linear layer with this number of inputs and outputs. It uses the
        framework's own classes, is on cpu:0, and has its variables already. Returns None if the framework has no
        models."""
        return None

    def settings(self) -> Any:
        """Returns a new model of the framework's own layers on cpu:0, which has its variables already. The layers are a
        linear layer with 3 inputs and 4 outputs, a leaky ReLU with a slope of 1/4, and a block. The block contains a
        dropout of 3/8 and a two-dimensional max pooling with windows of 3 x 2 and strides of 1 x 2. The suite calls the
        model with a tensor of shape (1, 3, 3, 3). Returns None if the framework has no models, or if the adapter cannot
        read the settings of layers."""
        return None

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns, by name, a function for every kind of model that the adapter can move; {} if the framework has no
        models. Each call of a function creates a new model on cpu:0, which has its variables already."""
        return {}

    def variables(self, model: Any) -> Mapping[str, Any]:
        """Returns the variables of a model as tensors, by name, read with the framework's own
        functions."""
        return {}

    def tied(self) -> tuple[Any, Callable[[Any], bool]] | None:
        """Returns a model in which two layers share a parameter, and a function. The function accepts this model or a
        copy of it, and returns whether the two layers still share the parameter. Returns None if there is no such
        model."""
        return None

    def sharing(self) -> tuple[Any, Any, Callable[[], bool]] | None:
        """Returns two models that share a tensor, and a function without arguments that returns whether the models
        still share it. The shared tensor must be one that a move replaces by a new tensor, such as a buffer. Returns
        None if there are no such models."""
        return None

    def spread(self, device: Device) -> Any:
        """Returns a model with one part on cpu:0 and another part on `device`; None if the framework has no models."""
        return None

    def unbuilt(self) -> Any:
        """Returns a model that has no variables yet; None if the framework creates the variables together with the
        model."""
        return None

    def trainable(self) -> tuple[Any, Step] | None:
        """Returns a model with 4 inputs and 1 output on cpu:0, and a function of `x` and `y` that trains the model for
        one step and returns the loss as a Python number. Returns None if the framework has no models.

        The initial weights are the same at each call. The step uses an optimizer with state, such as momentum.
        """
        training = self.optimized()
        if training is None:
            return None
        model, _, step = training
        return model, step

    def optimized(self) -> tuple[Any, Any, Step] | None:
        """Returns the model of `trainable`, its optimizer, and the function that trains the model for one step. Returns
        None if the adapter does not treat optimizers as models, or if optimizers create all their state at the
        start."""
        return None

    def holders(self, x: Any) -> Mapping[str, tuple[Any, Callable[[Any], tuple[Any, object]]]]:
        """Returns, by name, objects of the framework that contain the tensor `x` and are neither tensors nor models; {}
        if there are no such objects. Each object is paired with a function that accepts the object, or a moved copy of
        the object, and returns its tensor and another part. The suite compares the `str` of that part."""
        return {}

    def failing_work(self) -> Any:
        """Returns a tensor whose computation is in progress and will fail; None if the
        framework always raises errors at the line that causes them."""
        return None

    def settle(self) -> None:  # noqa: B027  # most samples have enabled nothing
        """Disables all settings of the framework that `failing_work` and `long_work` have enabled."""

    def long_work(self, device: Device) -> Work | None:
        """Starts work that takes at least a tenth of a second on a device, and returns the work. Returns None if the
        framework does not reveal whether work is complete."""
        return None


class Sampling(Primitives):
    """The capability that the conformance suite needs for testing an adapter."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)

    def samples(self) -> Samples:
        """Returns the samples of the framework that the conformance suite needs: networks,
        gradients, a second device. The default raises `UnsupportedError`."""
        raise self.unsupported(
            "samples", "override Backend.samples() to run the conformance suite"
        )
