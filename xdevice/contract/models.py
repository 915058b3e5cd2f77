"""Models: which variables they have, on which devices these are, and how a model is moved and
copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Models(Primitives):
    """The capability of handling models, optimizers and single variables: everything that `classify` calls a model.

    - A model is moved in place and as a whole: if a user has references to its variables and
      submodels, these are still parts of the model after the move.
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
    """The framework's container whose layers and parameters are listed as parts of a model,
    unlike those in a Python list; an error suggests it to users. Empty if there is none."""

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each variable that decides on which device a model is. Raises
        `NotBuiltError` if the model has not been built yet."""
        raise self._no_models()

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` if a variable of the model has no values yet: each copy of the
        model would draw its own initial values."""
        # `model_devices` raises the error while it is iterated over
        for _ in self.model_devices(model):
            pass

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether the whole model is on `device`, so `move_model` has nothing to do. Override
        it if a model may own more than the variables that `model_devices` lists, such as
        metrics. Returns False for a model without variables, because it may have tensors that
        the framework does not list."""
        places = [place for _, place in self.model_devices(model)]
        # devices are interned, so `is` compares them
        return bool(places) and all(place is device for place in places)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yields the name and the value of each variable, as the framework's own state dict
        lists them: with running statistics, but without unsaved buffers, and without an
        optimizer that the model owns. A shared variable is yielded under each of its names, as
        the same object. The variables of an optimizer are its state. A model that is itself one
        variable is yielded under the name "". Names are unique, and models that are built in
        the same way have the same names. Each value is a tensor or a `tf.Variable`, which
        `device_of` and `to_numpy` must accept. Raises `NotBuiltError` if the model has not been
        built yet."""
        raise self._no_models()

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves every variable of a model in place, and the state of an optimizer that the model owns. Returns None, or
        an object that takes the place of the model."""
        raise self._no_models()

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a new model on `device` that shares no storage with this one."""
        raise self._no_models()

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Yields three things for the model and for each of its submodels: its name ("" for the
        model itself), the object, and the keys of its `__dict__` whose values belong to the
        framework or are computed at each call. The core searches the values of the other keys
        for tensors and models that the framework does not list, and moves them together with
        the model. Yields nothing if the framework itself moves them."""
        return ()

    def parameters_of(self, model: Any) -> Iterable[Any]:
        """Yields the variables of other models that an optimizer updates; a move of the
        optimizer does not move them. Yields nothing for a model that is not an optimizer."""
        return ()

    def move_held(self, x: Any, device: Device) -> Any:
        """Returns `x`, a tensor in an attribute of a model that the framework does not list, on
        a device. If the framework moves variables in place, `x` itself is moved and returned,
        because an optimizer may refer to it."""
        return self.move(x, device)

    def is_parameter(self, x: Any) -> bool:
        """Whether a tensor is of the type that models list as their parameters."""
        return False

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns the parts of a model to which a user may have references: its variables, as
        the objects that the model returns to users, and its submodels. For a copy of the model
        it returns as many parts in the same order, so `copy_to` can pair them."""
        return ()

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces tensors of the model: `new` has the new tensor by the `id` of the old one.
        If two models shared a tensor, and a move has made a new tensor for each, the core calls
        this method so that they share one tensor again."""
        raise self.unsupported(
            "models that share tensors", "its adapter must override Backend.rebind()"
        )

    def tensor_of(self, model: Any) -> Any | None:
        """Returns the tensor from which the values of a model can be read if the model is
        itself one variable (a `tf.Variable`, a Gluon `Parameter`); None for any other model."""
        return None

    def gradients(self, model: Any) -> Iterable[tuple[str, Any, Any | None]]:
        """Yields the name, the tensor and the gradient of each trainable variable of a model.
        The order is the same in each process; if possible, it is that of the model's layers.
        The gradient is None if the variable has none yet. Raises `UnsupportedError` if the
        framework does not keep gradients in its models."""
        raise self.unsupported(
            "gradients that a model keeps",
            "pass the gradients to average_gradients, as a list or a dict",
        )

    def no_copy_of_optimizer(self, instead: str) -> UnsupportedError:
        """Returns the error that `copy_model` raises for an optimizer. `instead` is the advice
        at its end."""
        return self.unsupported(
            "copying an optimizer, which belongs to its parameters", instead
        )

    def _no_models(self) -> UnsupportedError:
        """Returns the error that the methods raise if the adapter lacks this capability."""
        return self.unsupported(
            "models", "put the parameters in a dict, which moves as a container"
        )
