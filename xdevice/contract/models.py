"""Models: their variables, the devices of these, and moving and copying a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Models(Primitives):
    """The capability of handling models, optimizers and single variables: everything that `classify` calls a model.

    - A model is moved in place and as a whole: variables and submodels of it that a user holds are still parts of the
      model after the move.
    - A copy shares no storage with the model. A variable that the model has under two names is one variable in the
      copy, too.
    - A model that has not been built yet is on no device: it raises `NotBuiltError` before anything has moved.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "model_devices",
        "variables",
        "move_model",
        "copy_model",
    )
    lists_layers: ClassVar[str] = ""
    """The container that lists layers and parameters if a user puts them into it; the end of an error."""

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each variable that decides on which device a model is. Raises
        `NotBuiltError` if the model has not been built yet."""
        raise self._no_models()

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` if a variable of the model has no values yet, because each copy of the model would
        draw its own."""
        for _ in self.model_devices(model):
            pass

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether the whole model is on `device`, so that `move_model` has nothing to do. Override it if a model may
        own more than the variables that `model_devices` lists, metrics for instance. For a model without variables it
        is False, because such a model may hold tensors that the framework does not list."""
        places = [place for _, place in self.model_devices(model)]
        return bool(places) and all(place is device for place in places)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yields the name and the value of each variable, as the framework's own state dict lists them: with running
        statistics, but without unsaved buffers, and without an optimizer that the model owns. A shared variable comes
        under each of its names, as the same object. For an optimizer the variables are its state; a single variable has
        the name "". Names are unique, and a model has the same names whenever it is built in the same way. A value is
        what `device_of` and `to_numpy` take: a tensor, or a `tf.Variable`. Raises `NotBuiltError` if the model has not
        been built yet."""
        raise self._no_models()

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves every variable of a model in place, and the state of an optimizer that the model owns. Returns None, or
        an object that takes the place of the model."""
        raise self._no_models()

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a new model on `device` that shares no storage with this one."""
        raise self._no_models()

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Yields for the model and for each of its submodels: its name, "" for the model itself; the object; and the
        keys of its `__dict__` whose values are the framework's own, or computed anew at each call. Under the other
        keys, the core looks for tensors and models that the framework does not list, and takes them along with the
        model. Yields nothing if the framework does so by itself."""
        return ()

    def parameters_of(self, model: Any) -> Iterable[Any]:
        """Yields the variables of other models that an optimizer updates: they do not move with it."""
        return ()

    def move_held(self, x: Any, device: Device) -> Any:
        """Returns, on a device, a tensor that a model holds without listing it. It is the same object if the
        framework's own move of a variable keeps it the same object, because optimizers refer to it."""
        return self.move(x, device)

    def is_parameter(self, x: Any) -> bool:
        """Whether a tensor is of the kind that models list as their parameters."""
        return False

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns the parts of a model to which a user may hold references: its variables, as the model hands them out,
        and its submodels. For a copy it returns as many parts, in the same order, so that `copy_to` can match them."""
        return ()

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces those tensors of the model whose `id`s are the keys of `new` by the values of `new`. The core calls
        it after a move that made a new tensor for each of two models that shared one, so that they share one again."""
        raise self.unsupported("models that share tensors", "override Backend.rebind()")

    def tensor_of(self, model: Any) -> Any | None:
        """Returns, for reading, the tensor of a model that is one variable (`tf.Variable`, a Gluon `Parameter`); None
        for any other."""
        return None

    def gradients(self, model: Any) -> Iterable[tuple[str, Any, Any | None]]:
        """Yields the name, the tensor and the gradient of each variable of a model that is trained, in an order that is
        the same in each process, that of the model's layers if possible. The gradient is None if the variable has none
        yet. Raises `UnsupportedError` if the framework does not keep gradients in its models."""
        raise self.unsupported(
            "gradients that a model keeps",
            "pass the gradients to average_gradients, as a list or a dict",
        )

    def no_copy_of_optimizer(self, instead: str) -> UnsupportedError:
        """Returns the error to raise in `copy_model` for an optimizer."""
        return self.unsupported(
            "copying an optimizer, which belongs to its parameters", instead
        )

    def _no_models(self) -> UnsupportedError:
        return self.unsupported(
            "models", "put the parameters into a dict: it moves as a container"
        )
