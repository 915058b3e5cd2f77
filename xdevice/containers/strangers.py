"""Strangers: objects that hold tensors but are neither tensors, models nor containers. Some of
them can move themselves.

An object moves itself in two cases: if its type was registered with `move`; or if its type has the method by which
objects of libraries around a framework move themselves (`Backend.moves_by`, such as `to`), and all tensors in the
object are of that framework. Any other object cannot be moved. Its tensors would then stay behind, so moving a
container with such an object raises an error.

If the object's own method leaves a tensor behind, an error names the method, because xdevice
cannot know whether the method forgot the tensor or keeps it on the host on purpose. The type's
`Way` lists the tensors that stay on purpose, for all objects of the type; that is never
inferred from one object.
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
    """An object `x` that is neither a tensor, a model nor a container. `way` says how its type
    was registered (None: not at all), and `parts` are the tensors and models that were found in
    it."""

    def __init__(self, x: Any, way: Way | None, parts: list[Inner]) -> None:
        self.x = x
        self.way = way
        self.parts = parts
        # a registered way comes before the object's own method
        self.mover = None if way is not None else _mover(x, parts)
        """The backend to whose devices the object's own method moves it; None if it has no such
        method."""

    @property
    def moves(self) -> bool:
        """Whether the object can move itself, by its own method or by a registered function."""
        return self.mover is not None or (self.way is not None and self.way.move is not None)

    def places(self) -> list[tuple[str, Device]]:
        """Returns the path and device of each tensor in the object, of each variable of its
        models, and of each parameter that an optimizer in it updates. Symbols, and models that
        are not built, are left out. Raises `UnsupportedError` for a tensor on several or
        unknown devices."""
        places = []
        for path, value, backend, kind in self.parts:
            # symbols have no device
            if kind == "tensor":
                places.append((path, backend.device_of(value)))
            elif kind == "model":
                # a model that is not built has no device: its variables are made when it is
                # first used
                with suppress(NotBuiltError):
                    places += [
                        (f"{path}.{name}".rstrip("."), place)
                        for name, place in backend.model_devices(value)
                    ]
                    # an optimizer has to be where the parameters are that it updates
                    parameters = enumerate(backend.parameters_of(value))
                    places += [
                        (f"{path}.parameters[{i}]", backend.device_of(parameter))
                        for i, parameter in parameters
                    ]
        return places

    def is_on(self, target: Device) -> bool:
        """Whether all tensors in the object, and all variables of its models, are on the device
        `target`. True if the object has none; False if a tensor is on several or unknown
        devices."""
        try:
            return all(place is target for _, place in self.places())
        except UnsupportedError:
            # a tensor in it is on several devices, or on one that its backend does not know
            return False

    def without(self, models: Collection[int]) -> Stranger:
        """Returns a `Stranger` for the same object whose `parts` lack the models with these
        `id`s, because these are moved separately."""
        return Stranger(
            self.x, self.way, [part for part in self.parts if id(part.value) not in models]
        )

    def has_tensors(self) -> bool:
        """Whether the object can move itself, or holds a tensor. A model that is one variable
        counts as a tensor here; other models do not."""
        return self.moves or any(
            part.kind != "model" or _is_variable(part.backend, part.value)
            for part in self.parts
        )

    def require(self, target: Device) -> None:
        """Raises `DeviceNotFoundError` if the framework of a tensor in the object does not have
        this device."""
        for backend in {part.backend for part in self.parts}:
            backend.require(target)

    def refusal(self, path: str, target: Device, is_copy: bool = False) -> ContainerError:
        """Returns the error for an object that cannot move to `target` or, if `is_copy`, be
        copied to it: it says that the object's tensors would stay behind, and how to fix that.
        `path` is the path to the object in its container."""
        places = [place for _, place in self.places()]
        somewhere = "tensors" if places else "models"
        where = next(
            (f"tensors on {place}" for place in places if place is not target), somewhere
        )
        return ContainerError(
            f"{path} is an object of type {type(self.x).__qualname__}, which xdevice does not know; it holds {where}, "
            f"which would stay behind; {self.remedy('or pass move=... to say how it moves', not is_copy)}"
        )

    def remedy(self, other: str, is_move: bool) -> str:
        """Returns advice, for the end of an error, on how to get the object's tensors moved: if
        the type can be registered, the call that registers it, followed by `other`; otherwise
        another way. A move also changes the models that the object refers to, if they are in
        the container; a copy (`is_move` False) does not."""
        cls = type(self.x)
        if self.way is not None and self.way.instead:
            return self.way.instead
        if is_move and self.parts and all(part.kind == "model" for part in self.parts):
            path, model, _, _ = self.parts[0]
            return (
                f"models move in place: put its {path} ({type(model).__qualname__}) into the container, or move it "
                "first"
            )
        inside = "put its contents in a list or dict and pass that"
        # a gradient scaler of PyTorch, for example
        if registry.owner_of(cls) is not None and looks.has_method(cls, "load_state_dict"):
            return "make a new one for that device, and load the old one's state: new.load_state_dict(old.state_dict())"
        # types that a user cannot register: built-in ones, and xdevice's own for the keys of a
        # mapping, which are never replaced; and those of a framework, which a user should not
        if (
            cls.__module__ == "builtins"
            or cls is looks.MappingKeys
            or registry.owner_of(cls) is not None
        ):
            return inside
        # the path to a tensor does not begin with an attribute, and only attributes can be walked
        if not all(part.path.startswith(".") for part in self.parts):
            return f"{inside}, or call xdevice.register_container({cls.__qualname__}, flatten=..., rebuild=...)"
        return f"call xdevice.register_container({cls.__qualname__}) to have its attributes searched, {other}"

    def move_to(self, target: Device) -> Any:
        """Returns the object on the device `target`, moved by its own method or by the
        registered function; both may move it in place. Returns the object itself if it is on
        the device already. Raises `ContainerError` if the move fails or leaves tensors
        behind."""
        # an object in which no tensors are found is always moved, because nothing says where it
        # is
        if self.is_on(target) and self.parts:
            return self.x
        return self._move(self.x, target)

    def copy_to(self, target: Device) -> Any:
        """Returns a copy of the object on the device `target`. Raises `ContainerError` if the
        object cannot be copied or moved, or if a move leaves tensors of the copy behind."""
        # a copy function of the type comes first; other objects are copied and then moved
        if self.way is not None and self.way.copy is not None:
            return self.way.copy(self.x, target)
        try:
            # copied before it is moved, because the move may work in place
            twin = _duplicate(self.x, self.parts)
        except Exception as error:
            name = type(self.x).__qualname__
            raise ContainerError(
                f"an object of type {name} cannot be copied ({type(error).__name__}: {error}); say how with "
                f"xdevice.register_container({name}, "
                "flatten=..., rebuild=...)"
            ) from error
        return self._move(twin, target)

    def _move(self, x: Any, target: Device) -> Any:
        """Returns `x`, which is this object or a copy of it, moved by the registered function
        or by its own method. Raises `ContainerError` if the move fails or leaves tensors
        behind. In the second case, an object that moves in place is first moved back, if all
        its tensors were on one device."""
        homes: set[Device] = set()
        # a tensor in it may be on several devices
        with suppress(UnsupportedError):
            homes = {place for _, place in self.places()}
        try:
            # this runs code of the user, which may raise anything
            moved = self._call_move(x, target)
        except Exception as error:
            name = type(x).__qualname__
            raise ContainerError(
                f"an object of type {name} cannot move itself to {target} ({type(error).__name__}: {error}); say how "
                f"with xdevice.register_container({name}, move=...), or call xdevice.register_container({name}) "
                "to have its attributes searched"
            ) from error
        try:
            self._refuse_left_behind(moved, target)
        except ContainerError:
            if moved is x and len(homes) == 1:
                # if that fails too, the error already says that the object has not moved as a
                # whole
                with suppress(Exception):
                    self._call_move(x, *homes)
            raise
        return moved

    def _refuse_left_behind(self, moved: Any, target: Device) -> None:
        """Raises `ContainerError` if a tensor in `moved`, the result of the object's move, is
        not on the device `target`, or if `moved` holds no tensors although the object did. Does
        nothing if `moved` is itself a tensor or a model."""
        name = type(self.x).__qualname__
        method = (
            f"{name}.{self.mover.moves_by}()"
            if self.mover is not None
            else f"the move of {name}"
        )
        # a method may turn the object into a tensor or a model
        if registry.kind_of(type(moved)) is not None:
            return
        # searched again, because the method may have returned another object with other tensors
        arrived = find(moved, self.way if type(moved) is type(self.x) else None)
        if self.parts and (arrived is None or not arrived.parts):
            raise ContainerError(
                f"{method} returned an object of type {type(moved).__qualname__} without tensors; say how to move "
                f"it with xdevice.register_container({name}, move=...), or call xdevice.register_container({name}) "
                "to have its attributes searched"
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
        """Moves `x`, this object or a copy of it, to `target` by the registered function or, if
        there is none, by its own method. Returns the result; `x` itself if the method returns
        None, as methods that work in place do."""
        if self.mover is None:
            assert self.way is not None
            assert self.way.move is not None
            return self.way.move(x, target)
        moved = getattr(x, str(self.mover.moves_by))(self.mover.to_native(target))
        return x if moved is None else moved


def _duplicate(x: Any, parts: list[Inner]) -> Any:
    """Returns a deep copy of `x`. The tensors among `parts` are copied by their frameworks:
    gradients flow to the old tensors, and the copies share no storage with them."""
    # `deepcopy` regards the objects in this dict as copied already
    memo: dict[int, Any] = {}
    for _, value, backend, kind in parts:
        if kind == "tensor":
            memo[id(value)] = backend.copy(value, backend.device_of(value))
    return copy.deepcopy(x, memo)


def separate(x: Any, new: Any) -> None:
    """Replaces the attributes that `new`, a copy of the tensor `x` of a user's class, shares
    with `x` by deep copies. Frameworks let both tensors share them: PyTorch in `Tensor.to`,
    NumPy in `__array_finalize__`. Raises `ContainerError` if an attribute with tensors cannot
    be copied."""
    before = attributes(x)
    for name, value in attributes(new).items():
        # still shared, and not a number or string, which cannot change
        if before.get(name) is value and id(type(value)) not in PLAIN:
            put(
                new,
                name,
                _copied(
                    value, f"the attribute {name} of an object of type {type(x).__qualname__}"
                ),
            )


def _copied(value: Any, name: str) -> Any:
    """Returns a deep copy of `value`, an attribute of a tensor; `value` itself if it cannot be
    copied and holds no tensors. Raises `ContainerError`, which calls the attribute `name`, if
    it cannot be copied and holds tensors."""
    owned = registry.kind_of(type(value))
    parts = [looks.Inner("", value, *owned)] if owned is not None else looks.search(value)
    try:
        return _duplicate(value, parts)
    except Exception as error:
        # a lock or an open file, for example: it is shared
        if not parts:
            return value
        raise ContainerError(
            f"{name} cannot be copied ({type(error).__name__}: {error}); remove it, and copy it separately"
        ) from error


def find(x: Any, way: Way | None, with_host: bool = False) -> Stranger | None:
    """Returns the `Stranger` for an object that is neither a tensor nor a model. Returns None
    if nothing in it can be moved, unless `way`, which says how its type was registered (None:
    not at all), has a function that moves it. Arrays of a framework that has only host memory
    are ignored unless `with_host` is True: they cannot be moved, but a copy of the object needs
    its own. Raises `ContainerError` if the object contains too much to be searched."""
    if way is not None and way.tensors is not None:
        named = ((name, value, registry.kind_of(type(value))) for name, value in way.tensors(x))
        parts = [looks.Inner(name, value, *owned) for name, value, owned in named if owned]
        return Stranger(x, way, parts) if parts or way.move is not None else None
    stays = set(way.stays) if way is not None else set()
    parts = [
        part
        for part in looks.search(x)
        if (with_host or not part.backend.is_host_only)
        # the attributes in `stays` are left out at any depth
        and stays.isdisjoint(re.findall(r"\.(\w+)", part.path))
    ]
    return Stranger(x, way, parts) if parts or way is not None else None


def _is_variable(backend: Backend, model: Any) -> bool:
    """Whether a model is itself one variable, such as a `tf.Variable`. False if the model has
    not been built, or its variables cannot be listed."""
    try:
        # the only name is then ""; "no" stands for a model without variables
        return next(iter(backend.variables(model)), ("no",))[0] == ""
    except (NotBuiltError, UnsupportedError):
        return False


def _mover(x: Any, parts: list[Inner]) -> Backend | None:
    """Returns the backend by whose convention `x` moves itself: all tensors and models in `x`
    (`parts`) belong to that backend, and `x` has the backend's `moves_by` method, such as `to`.
    Returns None if `x` has no such method, if the parts belong to several backends, or if there
    are no parts."""
    first = parts[0].backend if parts else None
    if (
        first is None
        or first.moves_by is None
        or any(part.backend is not first for part in parts)
    ):
        return None
    return first if looks.has_method(type(x), first.moves_by) else None
