"""Strangers: objects that hold tensors, but are neither tensors nor models nor containers. Some strangers can move
themselves.

An object can move itself in two cases. In the first case, its type was registered with `move`. In the second case, all
tensors in the object belong to one framework, and its type has the method that libraries based on this framework use to
move objects (`Backend.moves_by`, such as `to`). No other stranger can be moved. Its tensors would stay behind, so
moving a container with such an object raises an error.

If the object's own method leaves a tensor behind, an error names the method, because xdevice cannot determine whether
the method forgot the tensor or leaves it on the host on purpose. The tensors that stay on purpose are listed in the
type's `Way`, for all objects of the type. They are never inferred from a single object.
"""

from __future__ import annotations

import copy
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xdevice.core import registry
from xdevice.errors import ContainerError, NotBuiltError, UnsupportedError

from . import looks
from .attributes import attributes, put
from .looks import PLAIN

if TYPE_CHECKING:
    from collections.abc import Collection

    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Way

    from .looks import Inner


class Stranger:
    """An object `x` that is neither a tensor nor a model nor a container. `way` is the way in which its type was
    registered (None if it was not registered), and `parts` are the tensors and models that were found in the object."""

    def __init__(self, x: Any, way: Way | None, parts: list[Inner]) -> None:
        self.x = x
        self.way = way
        self.parts = parts
        # a registered way takes precedence over the object's own method
        self.mover = None if way is not None else _mover(x, parts)
        """The backend whose method for moving (`moves_by`, such as `to`) the object has; None if the object has no such
        method, or its type is registered."""

    @property
    def moves(self) -> bool:
        """Whether the object can move itself, by its own method or by a registered function."""
        return self.mover is not None or (self.way is not None and self.way.move is not None)

    def places(self) -> list[tuple[str, Device]]:
        """Returns the path and the device of each tensor in the object, of each variable of its models, and of each
        parameter that an optimizer in the object updates. Symbols, and models that are not built, are left out. Raises
        `UnsupportedError` for a tensor that is on several devices or on an unknown device."""
        places = []
        for path, value, backend, kind in self.parts:
            # symbols have no device
            if kind == "tensor":
                places.append((path, backend.device_of(value)))
            elif kind == "model":
                # a model that is not built has no device, because its variables are created when the model is first
                # used
                with suppress(NotBuiltError):
                    places += [
                        (f"{path}.{name}".rstrip("."), place)
                        for name, place in backend.model_devices(value)
                    ]
                    # an optimizer has to be on the device of the parameters that it updates
                    parameters = enumerate(backend.parameters_of(value))
                    places += [
                        (f"{path}.parameters[{i}]", backend.device_of(parameter))
                        for i, parameter in parameters
                    ]
        return places

    def is_on(self, target: Device) -> bool:
        """Whether all tensors in the object, and all variables of its models, are on the device `target`. True if the
        object has neither tensors nor variables; False if a tensor is on several devices or on an unknown device."""
        try:
            return all(place is target for _, place in self.places())
        except UnsupportedError:
            # a tensor in the object is on several devices, or on a device that its backend does not know
            return False

    def without(self, models: Collection[int]) -> Stranger:
        """Returns a `Stranger` for the same object, but without the models that are moved separately. `models` contains
        the `id`s of these models."""
        return Stranger(
            self.x, self.way, [part for part in self.parts if id(part.value) not in models]
        )

    def has_tensors(self) -> bool:
        """Whether the object can move itself, or holds a tensor. A model that is itself one variable counts as a tensor
        here; other models do not."""
        return self.moves or any(
            part.kind != "model" or _is_variable(part.backend, part.value)
            for part in self.parts
        )

    def require(self, target: Device) -> None:
        """Raises `DeviceNotFoundError` if the framework of a tensor or model in the object does not have this
        device."""
        for backend in {part.backend for part in self.parts}:
            backend.require(target)

    def refusal(self, path: str, target: Device, is_copy: bool = False) -> ContainerError:
        """Returns the error for an object that cannot be moved to `target` or, if `is_copy` is True, copied to
        `target`. The error says that the object's tensors would stay behind, and how to fix this. `path` is the path to
        the object in its container."""
        places = [place for _, place in self.places()]
        # models that are not built, or have no variables, are nowhere
        contents = "tensors" if places else "models"
        # if there is a tensor on another device, the error names that device
        contents = next(
            (f"tensors on {place}" for place in places if place is not target), contents
        )
        return ContainerError(
            f"{path} is an object of type {type(self.x).__qualname__}, which xdevice does not know; it contains "
            f"{contents}, which would stay behind; "
            + self.remedy("or pass move=... to move it yourself", is_move=not is_copy)
        )

    def remedy(self, other: str, is_move: bool) -> str:
        """Returns advice, for the end of an error, on how to move the object's tensors. If the type can be registered,
        the advice is the call that registers the type, followed by the text `other`. Otherwise, the advice names an
        alternative. `is_move` is False for a copy. A move also moves the models to which the object refers, if these
        models are in the container; a copy does not."""
        cls = type(self.x)
        if self.way is not None and self.way.instead:
            return self.way.instead
        if is_move and self.parts and all(part.kind == "model" for part in self.parts):
            path, model, _, _ = self.parts[0]
            return (
                f"models are moved in place: put the object's {path} ({type(model).__qualname__}) into the container, "
                "or move that model first"
            )
        inside = "put its contents in a list or dict, and pass this list or dict instead"
        # the object is a gradient scaler of PyTorch, for example
        if registry.owner_of(cls) is not None and looks.has_method(cls, "load_state_dict"):
            return "create a new object for that device, and load the state: new.load_state_dict(old.state_dict())"
        # a user cannot register built-in types, and xdevice's own type for the keys of a mapping, which are
        # never replaced; and a user should not register a type of a framework
        if (
            cls.__module__ == "builtins"
            or cls is looks.MappingKeys
            or registry.owner_of(cls) is not None
        ):
            return inside
        # the path to a tensor does not begin with an attribute, but without functions only attributes can
        # be walked
        if not all(part.path.startswith(".") for part in self.parts):
            return f"{inside}, or call xdevice.register_container({cls.__qualname__}, flatten=..., rebuild=...)"
        return f"call xdevice.register_container({cls.__qualname__}) to have its attributes searched, {other}"

    def move_to(self, target: Device) -> Any:
        """Moves the object to the device `target`, with its own method or the registered function, and returns the
        result. Both may move the object in place. Returns the object itself if it is already on the device. Raises
        `ContainerError` if the move fails or leaves tensors behind."""
        # an object in which no tensors are found is always moved, because its device is unknown
        if self.is_on(target) and self.parts:
            return self.x
        return self._move(self.x, target)

    def copy_to(self, target: Device) -> Any:
        """Returns a copy of the object on the device `target`. Raises `ContainerError` if the
        object cannot be copied or moved, or if a move leaves tensors of the copy behind."""
        # if the type has a copy function, it is used; other objects are copied and then moved
        if self.way is not None and self.way.copy is not None:
            return self.way.copy(self.x, target)
        try:
            # copied before it is moved, because the move may work in place
            twin = _duplicate(self.x, self.parts)
        except Exception as error:
            name = type(self.x).__qualname__
            raise ContainerError(
                f"an object of type {name} cannot be copied ({type(error).__name__}: {error}); register functions that "
                f"read and rebuild it: xdevice.register_container({name}, "
                "flatten=..., rebuild=...)"
            ) from error
        return self._move(twin, target)

    def _move(self, x: Any, target: Device) -> Any:
        """Moves `x`, which is this object or a copy of it, with the registered function or the object's own method, and
        returns the result. Raises `ContainerError` if the move fails or leaves tensors behind. If an object that moves
        in place leaves tensors behind, it is moved back before the error is raised, provided that all its tensors were
        on the same device."""
        homes: set[Device] = set()
        # a tensor in the object may be on several devices
        with suppress(UnsupportedError):
            homes = {place for _, place in self.places()}
        try:
            # this runs code of the user, which may raise any error
            moved = self._call_move(x, target)
        except Exception as error:
            name = type(x).__qualname__
            raise ContainerError(
                f"an object of type {name} cannot move itself to {target} ({type(error).__name__}: {error}); register "
                f"a function that moves it, xdevice.register_container({name}, move=...), or call "
                f"xdevice.register_container({name}) to have its attributes searched"
            ) from error
        try:
            self._refuse_left_behind(moved, target)
        except ContainerError:
            if moved is x and len(homes) == 1:
                # if the move back fails too, the first error is enough: it already says that the object has not
                # moved as a whole
                with suppress(Exception):
                    self._call_move(x, homes.pop())
            raise
        return moved

    def _refuse_left_behind(self, moved: Any, target: Device) -> None:
        """Raises `ContainerError` if a tensor in `moved`, the result of the object's move, is not on the device
        `target`, or if `moved` holds no tensors although the object did. Does nothing if `moved` itself is a tensor or
        a model."""
        name = type(self.x).__qualname__
        method = (
            f"{name}.{self.mover.moves_by}()"
            if self.mover is not None
            else f"the move of {name}"
        )
        # the method may have turned the object into a tensor or a model
        if registry.owner_and_kind(type(moved)) is not None:
            return
        # searched again, because the method may have returned another object with other tensors
        arrived = find(moved, self.way if type(moved) is type(self.x) else None)
        if self.parts and (arrived is None or not arrived.parts):
            raise ContainerError(
                f"{method} returned an object of type {type(moved).__qualname__} without tensors; register a function "
                f"that moves the object, xdevice.register_container({name}, move=...), or call "
                f"xdevice.register_container({name}) to have its attributes searched"
            )
        places = arrived.places() if arrived is not None else []
        left = [(path, place) for path, place in places if place is not target]
        if left:
            remainder = (
                "its tensors where they were"
                if len(left) == len(places)
                else f"{left[0][0]} on {left[0][1]}"
            )
            raise ContainerError(
                f"{method} left {remainder}; call xdevice.register_container({name}) to have its attributes searched "
                f"instead, or xdevice.register_container({name}, flatten=..., rebuild=...) to choose which of its "
                "tensors move"
            )

    def _call_move(self, x: Any, target: Device) -> Any:
        """Moves `x`, this object or a copy of it, to `target` with the registered function or, if there is none, with
        the object's own method. Returns the result, or `x` itself if the method returns None, as methods that work in
        place do."""
        if self.mover is None:
            assert self.way is not None
            assert self.way.move is not None
            return self.way.move(x, target)
        moved = getattr(x, str(self.mover.moves_by))(self.mover.to_native(target))
        return x if moved is None else moved


def _duplicate(x: Any, parts: list[Inner]) -> Any:
    """Returns a deep copy of `x`. The tensors among `parts` are copied by their frameworks, so that gradients flow to
    the old tensors. The copies share no storage with the old tensors."""
    # `deepcopy` treats the objects in this dict as already copied
    memo: dict[int, Any] = {}
    for _, value, backend, kind in parts:
        if kind == "tensor":
            memo[id(value)] = backend.copy(value, backend.device_of(value))
    return copy.deepcopy(x, memo)


def unshare_attributes(x: Any, new: Any) -> None:
    """Replaces each attribute that `new` shares with `x` by a deep copy. `x` is a tensor of a class that the user has
    defined, and `new` is a copy of `x`. Frameworks let both tensors share attributes: PyTorch in `Tensor.to`, NumPy in
    `__array_finalize__`. Raises `ContainerError` if an attribute that holds tensors cannot be copied."""
    before = attributes(x)
    for name, value in attributes(new).items():
        # the attribute is still shared, and is not a number or string, which cannot change
        if before.get(name) is value and id(type(value)) not in PLAIN:
            put(
                new,
                name,
                _copied(
                    value, f"the attribute {name} of an object of type {type(x).__qualname__}"
                ),
            )


def _copied(value: Any, name: str) -> Any:
    """Returns a deep copy of `value`, an attribute of a tensor, or `value` itself if it cannot be copied but holds no
    tensors. Raises `ContainerError` if `value` cannot be copied and holds tensors; `name` is the text that names the
    attribute in the error."""
    owned = registry.owner_and_kind(type(value))
    parts = [looks.Inner("", value, *owned)] if owned is not None else looks.search(value)
    try:
        return _duplicate(value, parts)
    except Exception as error:
        # a lock or an open file, for example, stays shared
        if not parts:
            return value
        raise ContainerError(
            f"{name} cannot be copied ({type(error).__name__}: {error}); remove it, and copy it separately"
        ) from error


def find(x: Any, way: Way | None, with_host: bool = False) -> Stranger | None:
    """Returns the `Stranger` for an object that is neither a tensor nor a model, or None if nothing in the object can
    be moved. `way` is the way in which the object's type was registered (None if it was not registered). If `way` names
    a function that moves the object, the result is never None.

    If `way` names a function that lists the object's tensors, the `Stranger` has exactly these tensors as its parts.
    Otherwise the object is searched. The search ignores arrays of a framework that has only host memory, unless
    `with_host` is True. Such arrays cannot be moved, but a copy of the object needs copies of the arrays. Raises
    `ContainerError` if the object contains too much to be searched."""
    if way is not None and way.tensors is not None:
        named = (
            (name, value, registry.owner_and_kind(type(value)))
            for name, value in way.tensors(x)
        )
        parts = [looks.Inner(name, value, *owned) for name, value, owned in named if owned]
        return Stranger(x, way, parts) if parts or way.move is not None else None
    stays = set(way.stays) if way is not None else set()
    parts = [
        part
        for part in looks.search(x)
        if (with_host or not part.backend.is_host_only)
        # attributes in `stays` are left out at any depth
        and stays.isdisjoint(re.findall(r"\.(\w+)", part.path))
    ]
    return Stranger(x, way, parts) if parts or way is not None else None


def _is_variable(backend: Backend, model: Any) -> bool:
    """Whether a model is itself one variable, such as a `tf.Variable`. Returns False if the model has not been built,
    or its variables cannot be listed."""
    try:
        name, _ = next(iter(backend.variables(model)), ("no variables", None))
        # the name of the only variable is "" then
        return name == ""
    except (NotBuiltError, UnsupportedError):
        return False


def _mover(x: Any, parts: list[Inner]) -> Backend | None:
    """Returns the backend whose method for moving (`moves_by`, such as `to`) can move `x`. This is the backend to which
    all `parts`, the tensors and models in `x`, belong. Returns None if `x` has no such method, if the parts belong to
    several backends, or if there are no parts."""
    backend = parts[0].backend if parts else None
    if (
        backend is None
        or backend.moves_by is None
        or any(part.backend is not backend for part in parts)
    ):
        return None
    return backend if looks.has_method(type(x), backend.moves_by) else None
