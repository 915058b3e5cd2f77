"""Models: their variables, where these are, and moving, copying and calling a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Models(Primitives):
    """Models, optimizers and lone variables: what `classify` calls a model.

    - A move is in place, and leaves nothing behind: what a user holds of the model is part of it afterwards too.
    - A copy shares no storage with the model, and what was one variable in it stays one.
    - What was not built has no place; it raises `NotBuiltError` before anything has moved.
    """

    needs: ClassVar[tuple[str, ...]] = ("model_devices", "variables", "move_model", "copy_model")

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Name and device of each variable that says where a model is; raises `NotBuiltError` if the
        model has not been built yet."""
        raise self._no_models()

    def require_built(self, model: Any) -> None:
        """Raises `NotBuiltError` for a model with a variable that has no values yet: each copy would draw its own."""
        for _ in self.model_devices(model):
            pass

    def is_all_on(self, model: Any, device: Device) -> bool:
        """Whether `move_model` has nothing to do. A model may own more than the variables that say where it is,
        metrics for instance, and one without variables may hold tensors that its framework does not list."""
        places = [place for _, place in self.model_devices(model)]
        return bool(places) and all(place is device for place in places)

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Name and value of each variable, as the framework's own state dict has them: with running statistics, but
        without unsaved buffers or an optimizer that the model owns; a shared one under each of its names, as one
        object. An optimizer gives its state, a lone variable the name "". Names are unique, and for a model the same
        whenever it is built in the same way. A value is what `device_of` and `to_numpy` take: a tensor, or a
        `tf.Variable`. Raises `NotBuiltError` if the model has not been built yet."""
        raise self._no_models()

    def move_model(self, model: Any, device: Device) -> Any:
        """Moves every variable in place, with the state of an optimizer that the model owns. What it returns, if not
        None, replaces the model."""
        raise self._no_models()

    def copy_model(self, model: Any, device: Device) -> Any:
        """A new model on `device` that shares no storage with this one."""
        raise self._no_models()

    def model_parts(self, model: Any) -> Iterable[Any]:
        """The parts of a model that a user may hold beside it: its variables, as the model hands them out, and its
        submodels. A copy has as many, in the same order, so that `copy_to` can match them."""
        return ()

    def rebind(self, model: Any, new: Mapping[int, Any]) -> None:
        """Replaces the model's tensors that have these `id`s: what two models share stays shared, where a move makes
        new tensors of some."""
        raise self.unsupported("models that share tensors", "override Backend.rebind()")

    def tensor_of(self, model: Any) -> Any | None:
        """The tensor, to be read, of a model that is one variable (`tf.Variable`, a Gluon `Parameter`); else None."""
        return None

    def gradients(self, model: Any) -> Iterable[tuple[str, Any | None]]:
        """Name and gradient of each variable of a model that is trained, in an order that is the same in each process;
        None where it has none yet. Raises `UnsupportedError` where the framework keeps gradients apart from models."""
        raise self.unsupported("gradients that a model keeps", "pass the gradients as a list or a dict")

    def no_copy_of_optimizer(self, instead: str) -> UnsupportedError:
        """The error to raise in `copy_model` for an optimizer."""
        return self.unsupported("copying an optimizer, which belongs to its parameters", instead)

    def _no_models(self) -> UnsupportedError:
        return self.unsupported("models", "put the parameters into a dict: it moves as a container")
