"""What the conformance suite needs of a framework beside the contract: its own networks and gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class Work(NamedTuple):
    """Asynchronous work under way: its result, and whether it is done, asked without waiting."""

    result: Any
    is_done: Callable[[], bool]


class Samples(ABC):
    """One framework's samples, each written as its users would write it, without xdevice.

    A sample that a framework does not have is None: the suite then says which checks it had to skip.
    """

    can_block: bool = False
    """Whether `blocking()` waits for what `long_work` and `failing_work` start."""
    makes_memory_first: bool = False
    """Whether a tensor has its memory before it is computed, so that the address can be asked for at once."""

    @abstractmethod
    def other_device(self) -> Device | None:
        """A second device for the tests of this machine, made if need be: called before the framework is used, and
        often. None where there is no other than cpu:0 and real or virtual GPUs."""

    @abstractmethod
    def native_ones(self, *shape: int) -> Any:
        """Ones by the framework's own function, called without naming a device."""

    def add(self, x: Any, y: Any) -> Any:
        """`x + y` by the framework."""
        return x + y

    @abstractmethod
    def address(self, x: Any) -> int | None:
        """Where the memory of a tensor begins, once it is computed; None where the framework does not tell. Of a view
        that is where its own first element is, or where the memory that it shares begins. Not asked of one without
        elements."""

    @abstractmethod
    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """The gradient of `sum(function(x))` with respect to `x`; None if the framework has none."""

    def requires_grad(self, x: Any) -> bool | None:
        """Whether a tensor asks for its gradient; None where tensors are not marked so."""
        return None

    def marked(self, x: Any) -> Any:
        """The tensor, asking for its gradient."""
        return x

    def native_devices(self) -> Sequence[Any] | None:
        """The framework's own objects for all its devices, the CPU first; None if it has no list of them."""
        return None

    def floats(self) -> Any:
        """A tensor of floats whose dtype the framework chooses by the default that `default_to_float64` changes; None
        where it does not have one."""
        return self.native_ones(2)

    def modes(self) -> Mapping[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], bool]]]:
        """Modes of the framework that each thread has for itself, such as "no gradients": by name, how to enter one,
        and whether this thread is in it."""
        return {}

    def seed(self, number: int) -> object:
        """Makes `rand` repeatable by the framework's own means; `NotImplemented` where there are none."""
        return NotImplemented

    def loader(self, items: Iterable[Any]) -> Any:
        """A loader of the framework over NumPy arrays, one a batch; None if it has no loaders."""
        return None

    def network(self, inputs: int, outputs: int) -> Any:
        """One linear layer in the framework's own classes, built, on cpu:0; None if it has no models."""
        return None

    def settings(self) -> Any:
        """Layers in the framework's own classes, built, on cpu:0: a linear layer of 3 inputs and 4 outputs, a leaky
        ReLU with a slope of 1/4, and in a block of their own a dropout of 3/8 and a max pool of 2 axes, with windows
        of 3 x 2 at a stride of 1 x 2. It is called on a tensor of the shape (1, 3, 3, 3). None if it has no models, or
        the adapter does not know their settings."""
        return None

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Built models on cpu:0 of every kind that the adapter moves, made anew at each call: by name."""
        return {}

    def variables(self, model: Any) -> Mapping[str, Any]:
        """The variables of a model as tensors, by name, read by the framework's own means."""
        return {}

    def tied(self) -> tuple[Any, Callable[[Any], bool]] | None:
        """A model with a shared parameter, and whether it is still shared."""
        return None

    def sharing(self) -> tuple[Any, Any, Callable[[], bool]] | None:
        """Two models that share a tensor which a move makes anew (a buffer), and whether they still share it."""
        return None

    def spread(self, device: Device) -> Any:
        """A model with one part on cpu:0 and one on `device`; None if it has no models."""
        return None

    def unbuilt(self) -> Any:
        """A model that has no variables yet; None where there is no such thing."""
        return None

    def trainable(self) -> tuple[Any, Callable[[Any, Any], float]] | None:
        """A model of 4 inputs and 1 output on cpu:0, and one step of training it on `x, y` that returns the loss.

        The first weights are the same at each call. The step keeps the state of an optimizer (momentum at least).
        """
        made = self.optimized()
        return None if made is None else (made[0], made[2])

    def optimized(self) -> tuple[Any, Any, Callable[[Any, Any], float]] | None:
        """As `trainable`, with the optimizer between the two; None where optimizers are not models of the adapter's, or
        have their state from the start."""
        return None

    def holders(self, x: Any) -> Mapping[str, tuple[Any, Callable[[Any], tuple[Any, object]]]]:
        """Objects around a tensor that the framework knows without their being tensors or models: by name, the object,
        and how to read the tensor in it and something beside it."""
        return {}

    def failing_work(self) -> Any:
        """A tensor whose computation is under way and fails; None where errors appear at the line."""
        return None

    def settle(self) -> None:  # noqa: B027  # most have switched nothing
        """Switches off again what `failing_work` and `long_work` have switched on."""

    def pinned_copies(self, x: Any) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
        """For benchmarks: two functions, which copy pinned memory to the GPU of `x`, and `x` to pinned memory. None
        where the framework has no pinned memory."""
        return None

    def long_work(self, device: Device) -> Work | None:
        """Work of a tenth of a second or more on a device; None where it cannot be asked whether it is done."""
        return None
