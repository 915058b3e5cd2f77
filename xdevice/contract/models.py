"""Models: which variables a model has, on which devices the variables are, and how a model is moved and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Models(Primitives):
    """The capability of handling models, optimizers and single variables: everything that `classify` calls a model.

    - A model is moved in place and as a whole. Variables and submodels to which a user has references are still parts
      of the model after the move.
    - A copy shares no storage with the model. A variable that the model has under two names is a single variable in the
      copy too.
    - A model that has not been built yet is on no device, and these methods raise `NotBuiltError` for it before
      anything has moved.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "model_devices",
        "variables",
        "move_model",
        "copy_model",
    )
    lists_layers: ClassVar[str] = ""
    """The names of the framework's container classes for layers and parameters, which an error suggests to users. Their
    contents become parts of a model, unlike the contents of a Python list. Empty if there are no such classes."""

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each variable that determines the device of a model. Raises `NotBuiltError`
        if the model has not been built yet."""
        raise self._no_models()

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` if a variable of the model has no values yet, because each copy of such a model would
        draw its own initial values."""
        # `model_devices` raises the error during the iteration
        for _ in self.model_devices(model):
            pass

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether the whole model is on `device`, so that `move_model` has nothing to do. Override this method if a
        model may own more than the variables that `model_devices` lists, such as metrics. Returns False for a model
        without variables, because such a model may have tensors that the framework does not list."""
        places = [place for _, place in self.model_devices(model)]
        # devices are interned, so `is` compares them
        return bool(places) and all(place is device for place in places)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yields the name and the value of each variable that the framework's own state dict lists. Such a state dict
        includes running statistics, but excludes unsaved buffers and the variables of an optimizer that the model owns.
        A shared variable is yielded under each of its names, as the same object. If `model` is an optimizer, its
        variables are its state. If the model is itself one variable, that variable is yielded under the name "". Names
        are unique, and models that are built in the same way have the same names. Each value is a tensor or a
        `tf.Variable`, which `device_of` and `to_numpy` must accept. Raises `NotBuiltError` if the model has not been
        built yet."""
        raise self._no_models()

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves every variable of a model in place, and the state of an optimizer that the model owns. Returns None, or
        an object that replaces the model."""
        raise self._no_models()

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a new model on `device` that shares no storage with `model`."""
        raise self._no_models()

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Yields three items for the model and for each of its submodels: its name ("" for the model itself), the
        object, and keys of the object's `__dict__`. The values under these keys belong to the framework or are computed
        at each call. The core searches the values under all other keys for tensors and models that the framework does
        not list, and moves these together with the model. Yields nothing if the framework itself moves everything that
        a model holds."""
        return ()

    def parameters_of(self, model: Any) -> Iterable[Any]:
        """Yields the variables of other models that an optimizer updates. A move of the optimizer does not move these
        variables. Yields nothing for a model that is not an optimizer."""
        return ()

    def move_held(self, x: Any, device: Device) -> Any:
        """Moves `x` to a device and returns it. `x` is a tensor in an attribute of a model, and the framework does not
        list it. If the framework moves variables in place, `x` itself is moved and returned, because an optimizer may
        refer to it; otherwise the result is a new tensor."""
        return self.move(x, device)

    def is_parameter(self, x: Any) -> bool:
        """Whether a tensor has a type that the framework uses for the parameters of models."""
        return False

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns the parts of a model that a user may refer to: the submodels and the variables. Each variable is the
        object that the model itself returns to users. For a copy of the model, returns the same number of parts in the
        same order, so that `copy_to` can pair each part with its copy."""
        return ()

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces tensors of the model: `new` maps the `id` of an old tensor to the new tensor. If two models shared a
        tensor, and a move has created a new tensor for each model, the core calls this method to make both models share
        one tensor again."""
        raise self.unsupported(
            "models that share tensors", "its adapter must override Backend.rebind()"
        )

    def tensor_of(self, model: Any) -> Any | None:
        """If the model is itself one variable (a `tf.Variable`, a Gluon `Parameter`), returns a tensor with the values
        of the variable. Returns None for any other model."""
        return None

    def gradients(self, model: Any) -> Iterable[tuple[str, Any, Any | None]]:
        """Yields the name, the tensor and the gradient of each trainable variable of a model.
        The order is the same in each process and, if possible, follows the order of the model's layers. The gradient is
        None if it has not been computed yet. Raises `UnsupportedError` if the framework does not store gradients in its
        models."""
        raise self.unsupported(
            "gradients that a model stores",
            "pass the gradients to average_gradients as a list or a dict",
        )

    def no_copy_of_optimizer(self, instead: str) -> UnsupportedError:
        """Returns the error that `copy_model` raises for an optimizer. `instead` is the advice at the end of the
        message."""
        return self.unsupported(
            "copying an optimizer, because it is tied to its parameters", instead
        )

    def _no_models(self) -> UnsupportedError:
        """Returns the error that the methods raise if the adapter lacks this capability."""
        return self.unsupported(
            "models", "put the parameters in a dict, which is moved as a container"
        )
