"""The parts of a model that its framework does not list: tensors and layers in plain attributes, and in the lists,
dicts and other containers there.

PyTorch, Paddle and Gluon move the variables and submodels that they list, and leave the rest: a layer in a Python list
stays behind, and where a buffer is replaced by its moved twin, a second reference to it keeps the old tensor.
TensorFlow takes such things along. Here all frameworks have one rule: everything that a model holds moves with it, is
copied with it, and counts where its device is asked for.

Objects of unknown types, such as a trainer that a model refers to, are not searched. A model that contains the model in
question owns it, and is not held by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.containers import looks, trees
from xdevice.containers.attributes import slots
from xdevice.containers.items import ATTRIBUTES
from xdevice.containers.looks import PLAIN
from xdevice.containers.trees import Tree
from xdevice.core import registry
from xdevice.errors import ContainerError, NotBuiltError, UnsupportedError, listed, note

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.contract.backend import Owned

_ITERATED = (dict, list, tuple, set, frozenset, deque)
"""Reading other containers may have effects: a mapping may read from a file."""


class _Attribute(NamedTuple):
    name: str
    """Such as "encoder.rest"."""
    owner: dict[str, Any]
    key: str
    value: Any


class _Holding(NamedTuple):
    """The attributes of one model that hold tensors or models, and all of them as one container."""

    attributes: list[_Attribute]
    tree: Tree

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields the leaves, with their names."""
        for keys, value in zip(self.tree.paths(), self.tree.leaves, strict=True):
            yield self.attributes[keys[0]].name + trees.written(keys[1:]), value

    def owned(self) -> Iterator[tuple[str, Any, Owned]]:
        """Yields the tensors and models, with their names, backends and kinds."""
        for name, value in self.named():
            owned = registry.kind_of(type(value))
            if owned is not None:
                yield name, value, owned


class WholeModel:
    """A model with all that it holds, whether its framework lists it or not."""

    def __init__(self, backend: Backend, model: Any) -> None:
        self._backend = backend
        self._model = model
        self.models: list[tuple[str, Backend, Any]] = [("", backend, model)]
        """The model itself, and those that were found in attributes."""
        self._holdings: list[_Holding] = []
        for name, owner, one in self.models:  # grows meanwhile
            self._search(name, owner, one)

    @cached_property
    def _listed(self) -> list[Any]:
        """The parts of all models that their frameworks list. Most models hold nothing else, and are not asked: for a
        model of 200 layers that takes as long as to ask for its devices."""
        return list(self._backend.model_parts(self._model))

    @cached_property
    def _known(self) -> set[int]:
        return {id(self._model), *map(id, self._listed)}

    def _add(self, name: str, backend: Backend, model: Any) -> None:
        self.models.append((name, backend, model))
        parts = list(backend.model_parts(model))
        self._listed.extend(parts)
        self._known.update(map(id, (model, *parts)))

    def _search(self, name: str, backend: Backend, model: Any) -> None:
        """Notes what the attributes of a model hold. Models in them are added to `models`, and so are searched next."""
        attributes = [
            _Attribute(".".join(filter(None, (name, path, key))), vars(part), key, value)
            for path, part, own in backend.attributes_of(model)
            for key, value in _readable(part).items()
            if key not in own and id(type(value)) not in PLAIN and not _is_flat(value)
        ]
        attributes = [attribute for attribute in attributes if _holds(attribute)]
        if not attributes:
            return
        holding = _Holding(
            attributes, Tree([attribute.value for attribute in attributes], True, True)
        )
        self._holdings.append(holding)
        own = self._known  # listed now, because a move may replace what is listed
        for inner, value, owned in holding.owned():
            if (
                owned.kind == "model"
                and id(value) not in own
                and not self._is_owner(owned.backend, value)
            ):
                self._add(inner, owned.backend, value)

    def _is_owner(self, backend: Backend, model: Any) -> bool:
        return any(part is self._model for part in backend.model_parts(model))

    def tensors(self) -> list[tuple[str, Any, Backend]]:
        """Returns name, tensor and backend of each tensor that no framework lists."""
        return [
            (name, value, owned.backend)
            for holding in self._holdings
            for name, value, owned in holding.owned()
            if id(value) not in self._known and _moves(owned, value)
        ]

    def parts(self) -> list[Any]:
        """Returns all parts of the model to which a user may hold references; for a copy as many parts, in the same
        order."""
        return [*self._listed, *(value for _, value, _ in self.tensors())]

    def places(self) -> Iterator[tuple[str, Device]]:
        """Yields the name and device of everything that the model holds: first its variables, then the rest."""
        yield from self._backend.model_devices(self._model)
        yield from self.unlisted_places()

    def unlisted_places(self) -> Iterator[tuple[str, Device]]:
        """Yields name and device of each tensor in the model that its framework does not list, and of the variables of
        submodels that it does not list."""
        for name, value, backend in self.tensors():
            yield name, backend.device_of(value)
        for number, parameter in enumerate(self._backend.parameters_of(self._model)):
            yield f"parameters[{number}]", self._backend.device_of(parameter)
        for holding in self._holdings:
            for name, value in holding.named():
                mover = trees.mover(value)
                if mover is not None:
                    yield from ((name + path, place) for path, place in mover.places())
        for name, backend, model in self.models[1:]:
            with suppress(NotBuiltError):  # its variables will be made where it is used
                yield from (
                    (f"{name}.{inner}".rstrip("."), place)
                    for inner, place in backend.model_devices(model)
                )

    def is_all_on(self, target: Device) -> bool:
        if not self._backend.is_all_on(self._model, target):
            return False
        try:
            return all(place is target for _, place in self.unlisted_places())
        except UnsupportedError:  # a tensor of it is on several devices
            return False

    def move(self, target: Device) -> Any:
        """Moves the model in place, and what it holds; returns the model, or the object that its own method returns
        instead."""
        self._check(target)
        moved = self._backend.move_model(self._model, target)
        moved = self._model if moved is None else moved
        self._follow(moved, target, is_copy=False)
        return moved

    def copy(self, target: Device) -> Any:
        """Returns a copy of the model, and of what it holds, on a device."""
        twin = self._backend.copy_model(self._model, target)
        self._check(target)  # only now: the line above refuses an optimizer in the right words
        if twin is not self._model:
            self._follow(twin, target, is_copy=True)
        return twin

    def _check(self, target: Device) -> None:
        """Raises an error if a framework lacks the device, if a container cannot take the moved tensors, or for an
        optimizer whose parameters are elsewhere."""
        backend, model = self._backend, self._model
        parameters = backend.parameters_of(model)
        left = next((x for x in parameters if backend.device_of(x) is not target), None)
        if left is not None:
            raise backend.unsupported(
                f"moving a {type(model).__qualname__} to {target} while a parameter of it is on "
                f"{backend.device_of(left)}",
                "move the model with it: xdevice.to_device((model, optimizer), device)",
            )
        away = set()
        for _, value, backend in self.tensors():
            backend.require(target)
            with suppress(UnsupportedError):
                if backend.device_of(value) is target:
                    continue
            away.add(id(value))
        for holding in self._holdings if away else ():
            holding.tree.check_rebuilding(away)

    def _follow(self, moved: Any, target: Device, is_copy: bool) -> None:
        """Brings everything after the model, which has been moved in place or to another object, or copied."""
        if not self._holdings:
            return
        backend = self._backend
        other = WholeModel(backend, moved) if is_copy or moved is not self._model else self
        now = list(backend.model_parts(moved))
        for _, owner, one in other.models[1:]:
            if not owner.is_all_on(one, target):
                owner.move_model(one, target)
            now += owner.model_parts(one)
        listed = self._listed
        twins = (
            {id(old): new for old, new in zip(listed, now, strict=False)}
            if len(now) == len(listed)
            else {}
        )
        done: dict[int, Any] = {}
        for old, new in zip(self._holdings, other._holdings, strict=False):
            before = (
                old.tree.leaves
                if len(old.tree.leaves) == len(new.tree.leaves)
                else new.tree.leaves
            )
            leaves = [
                twins[id(was)] if id(was) in twins else _arrived(value, target, done)
                for was, value in zip(before, new.tree.leaves, strict=True)
            ]
            for attribute, value in zip(new.attributes, new.tree.rebuilt(leaves), strict=True):
                kept = _put_back(attribute.value, value)
                if kept is not attribute.value:
                    attribute.owner[attribute.key] = kept


def move(backend: Backend, model: Any, target: Device) -> Any:
    """Moves a model in place, unless it is on the device as a whole. One whose move fails is moved back."""
    whole = WholeModel(backend, model)
    if whole.is_all_on(target):
        return model
    before = list(whole.places())
    try:
        return whole.move(target)
    except BaseException as error:
        take_back(backend, model, before, error)
        raise


def take_back(
    backend: Backend, model: Any, before: list[tuple[str, Device]], error: BaseException
) -> None:
    """Moves a model back to its device after a move that failed. If that fails too, a note on the error says which
    variables have moved."""
    homes = {place for _, place in before}
    try:
        whole = WholeModel(backend, model)
        if len(homes) == 1 and list(whole.places()) != before:
            whole.move(*homes)
    except Exception:  # the first error says why
        pass
    name = type(model).__qualname__
    try:
        after = dict(WholeModel(backend, model).places())
        moved = [one for one, place in before if after.get(one) is not place]
        if moved:
            note(
                error,
                f"{len(moved)} of the {len(before)} variables of a {name} have moved and stay there: "
                f"{listed(moved, 3)}",
            )
    except Exception:
        note(error, f"some of the variables of a {name} may have moved")


def refuse(
    backend: Backend, model: Any, verb: str = "saving", only_trained: bool = False
) -> None:
    """Raises `UnsupportedError` for a model that holds layers or parameters which the framework does not list, and
    which `verb`, such as "saving", would therefore miss."""
    whole = WholeModel(backend, model)
    instead = (
        ""
        if only_trained
        else "; or take only what is listed, without it: by the model's own state dict"
    )
    layers = [
        (name, one)
        for name, owner, one in whole.models[1:]
        if not only_trained or list(owner.gradients(one))
    ]
    parameters = [(name, x) for name, x, owner in whole.tensors() if owner.is_parameter(x)]
    for name, x in (*layers, *parameters):
        raise backend.unsupported(
            f"{verb} {name}, a {type(x).__qualname__} that this {type(model).__qualname__} holds in a plain attribute, "
            "list or dict, where the framework sees neither its values nor that they are trained",
            f"hold it in {backend.lists_layers}{instead}",
        )


def _is_flat(value: Any) -> bool:
    """Whether a value is a list or tuple of numbers and texts, as the sizes of a layer are."""
    if type(value) is not tuple and type(value) is not list:
        return False
    for one in value:  # noqa: SIM110  # twice as fast as `all`
        if id(type(one)) not in PLAIN:
            return False
    return True


def _readable(part: Any) -> dict[str, Any]:
    """Returns the `__dict__` of a model. Raises `ContainerError` if one of its slots holds tensors: frameworks read
    only the `__dict__`, so that a copy by PyTorch or Paddle lacks them."""
    for key in slots(type(part)):
        value = getattr(part, key, None)
        if _holds(_Attribute(key, {}, key, value)):
            name = type(part).__qualname__
            raise ContainerError(
                f"the slot {key} of a {name} holds tensors, which neither a move nor a copy of a model takes along; "
                f"take {key!r} out of __slots__"
            )
    own: dict[str, Any] = vars(part)
    return own


def _holds(attribute: _Attribute) -> bool:
    """Whether an attribute is a tensor or model, or a container with one in it."""
    value = attribute.value
    if registry.kind_of(type(value)) is not None:
        return True
    way = trees.way_of(value, True)
    if way is None:
        return trees.mover(value) is not None
    if not (way is ATTRIBUTES or isinstance(value, _ITERATED)) or looks.is_plain([value]):
        return False
    try:
        tree = Tree(value, True, True)
    except ContainerError as error:
        if not looks.search(value):
            return False
        raise ContainerError(
            f"{attribute.name} holds tensors, and cannot be walked: {error}"
        ) from error
    return any(
        registry.kind_of(type(leaf)) is not None or trees.mover(leaf) is not None
        for leaf in tree.leaves
    )


def _moves(owned: Owned, value: Any) -> bool:
    return (
        owned.kind == "tensor"
        and not owned.backend.is_host_only
        and not owned.backend.is_host_bound(value)
    )


def _arrived(value: Any, target: Device, done: dict[int, Any]) -> Any:
    """Returns a leaf on a device: a tensor that was moved, or else the leaf itself, because models move in place."""
    if id(value) not in done:
        owned, mover = registry.kind_of(type(value)), trees.mover(value)
        if mover is not None:
            done[id(value)] = mover.move_to(target)
        elif owned is not None and _moves(owned, value):
            done[id(value)] = owned.backend.move_held(value, target)
    return done.get(id(value), value)


def _put_back(old: Any, new: Any) -> Any:
    """Writes what is in a rebuilt list or dict into the old one, which others may refer to, and returns the old one; a
    new object of any other type is returned as it is."""
    if type(old) is not type(new) or type(old) not in (list, dict):
        return new
    for key in range(len(old)) if type(old) is list else list(old):
        kept = _put_back(old[key], new[key])
        if kept is not old[key]:
            old[key] = kept
    return old
