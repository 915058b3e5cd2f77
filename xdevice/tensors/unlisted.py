"""The parts of a model that its framework does not list: tensors and layers in plain attributes, or in lists, dicts and
other containers in these attributes.

PyTorch, Paddle and Gluon move the variables and submodels that they list, and leave everything else
where it is. A layer in a Python list does not move. If a move replaces a buffer, a second reference
to the buffer still refers to the old tensor. TensorFlow lists and moves everything. This module
applies one rule to all frameworks: everything in a model is moved and copied with it, and is taken
into account when the model's device is determined.

Objects of unknown types, such as a trainer to which a model refers, are not searched. A model
may also have an attribute that refers to a model which contains it, such as its parent. That
outer model is not regarded as a part of the inner one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
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

_ITERATED = (dict, list, tuple, set, frozenset, deque, partial)
"""The types of containers that are searched, besides objects that are walked by their
attributes. Reading other containers may have side effects: a mapping may read from a file."""


class _Attribute(NamedTuple):
    """An attribute of a model or of one of its submodels."""

    name: str
    """The path from the model to the attribute: "encoder.rest"."""
    owner: dict[str, Any]
    """The `__dict__` in which the attribute is stored under `key`."""
    key: str
    value: Any


class _Holding(NamedTuple):
    """The attributes of one model and its submodels that contain tensors or models. `tree` is the walked list of the
    values of these attributes."""

    attributes: list[_Attribute]
    tree: Tree

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and the value of each leaf in the attributes. The name is the path
        from the model to the leaf."""
        for keys, value in zip(self.tree.paths(), self.tree.leaves, strict=True):
            # the first key is the index of the attribute in the list
            yield self.attributes[keys[0]].name + trees.path_text(keys[1:]), value

    def owned(self) -> Iterator[tuple[str, Any, Owned]]:
        """Yields the name and value of each tensor, symbol and model in the attributes, with
        its backend and kind."""
        for name, value in self.named():
            owned = registry.owner_and_kind(type(value))
            if owned is not None:
                yield name, value, owned


class WholeModel:
    """A model with all its contents, whether its framework lists them or not."""

    def __init__(self, backend: Backend, model: Any) -> None:
        self._backend = backend
        self._model = model
        self.models: list[tuple[str, Backend, Any]] = [("", backend, model)]
        """The model itself, with the name "", and the models that were found in attributes,
        each with its name and its backend."""
        self._holdings: list[_Holding] = []
        # `_search` adds the models that it finds to this list, so the loop searches them, too
        for name, owner, inner in self.models:
            self._search(name, owner, inner)

    @cached_property
    def _listed(self) -> list[Any]:
        """The parts of all models that their frameworks list. This list is computed only if a model contains something
        that its framework does not list. Listing the parts of a model of 200 layers takes as long as finding its
        devices."""
        return list(self._backend.model_parts(self._model))

    @cached_property
    def _listed_ids(self) -> set[int]:
        """The `id`s of the model, the models found in its attributes, and the listed parts of all these models."""
        return {id(self._model), *map(id, self._listed)}

    def _add(self, name: str, backend: Backend, model: Any) -> None:
        """Adds a model that was found in an attribute, and its listed parts. `name` is the path
        to the model."""
        self.models.append((name, backend, model))
        parts = list(backend.model_parts(model))
        self._listed.extend(parts)
        self._listed_ids.update(map(id, (model, *parts)))

    def _search(self, name: str, backend: Backend, model: Any) -> None:
        """Adds a `_Holding` for the attributes of a model that contain tensors or models, if there are any. Models in
        the attributes are added to `models`, unless they are listed already or contain the whole model. `name` is the
        path to the model that is searched."""
        # `filter` leaves out the empty names of the model itself
        attributes = [
            _Attribute(".".join(filter(None, (name, path, key))), vars(part), key, value)
            for path, part, framework_keys in backend.attributes_of(model)
            for key, value in _readable(part).items()
            if key not in framework_keys
            and id(type(value)) not in PLAIN
            and not _is_flat(value)
        ]
        # in a second step, because `_holds` takes longer than the tests above
        attributes = [attribute for attribute in attributes if _holds(attribute)]
        if not attributes:
            return
        values = [attribute.value for attribute in attributes]
        holding = _Holding(attributes, Tree(values, keep_movers=True, once=True))
        self._holdings.append(holding)
        # computed before anything moves, because a move may replace listed parts
        listed_ids = self._listed_ids
        for inner, value, owned in holding.owned():
            if (
                owned.kind == "model"
                and id(value) not in listed_ids
                and not self._is_owner(owned.backend, value)
            ):
                self._add(inner, owned.backend, value)

    def _is_owner(self, backend: Backend, model: Any) -> bool:
        """Whether `model`, which was found in an attribute, contains the model of this object.
        A layer may refer to its parent, for example."""
        return any(part is self._model for part in backend.model_parts(model))

    def tensors(self) -> list[tuple[str, Any, Backend]]:
        """Returns the name, the tensor and the backend of each tensor in the model that no
        framework lists. Tensors that can only be on the host are left out."""
        return [
            (name, value, owned.backend)
            for holding in self._holdings
            for name, value, owned in holding.owned()
            if id(value) not in self._listed_ids and _moves(owned, value)
        ]

    def parts(self) -> list[Any]:
        """Returns all parts of the model that a user may refer to: its variables and submodels, and the tensors that no
        framework lists. A copy of the model has the same number of parts, in the same order."""
        return [*self._listed, *(value for _, value, _ in self.tensors())]

    def places(self) -> Iterator[tuple[str, Device]]:
        """Yields the name and device of each tensor in the model: first the variables, then all other tensors."""
        yield from self._backend.model_devices(self._model)
        yield from self.unlisted_places()

    def unlisted_places(self) -> Iterator[tuple[str, Device]]:
        """Yields the name and device of each tensor that the model's framework does not list. These are tensors in
        attributes and in objects that move themselves, and variables of models in attributes. For an optimizer, they
        include the parameters that it updates."""
        for name, value, backend in self.tensors():
            yield name, backend.device_of(value)
        for number, parameter in enumerate(self._backend.parameters_of(self._model)):
            yield f"parameters[{number}]", self._backend.device_of(parameter)
        # objects that can move themselves
        for holding in self._holdings:
            for name, value in holding.named():
                mover = trees.mover(value)
                if mover is not None:
                    yield from ((name + path, place) for path, place in mover.places())
        for name, backend, model in self.models[1:]:
            # a model that is not built has no device: its variables are created when it is
            # first used
            with suppress(NotBuiltError):
                yield from (
                    (f"{name}.{inner}".rstrip("."), place)
                    for inner, place in backend.model_devices(model)
                )

    def is_all_on(self, target: Device) -> bool:
        """Whether the whole contents of the model are on the device `target`. False if a tensor is
        on several devices."""
        if not self._backend.is_all_on(self._model, target):
            return False
        try:
            return all(place is target for _, place in self.unlisted_places())
        # a tensor in it is on several devices
        except UnsupportedError:
            return False

    def move(self, target: Device) -> Any:
        """Moves the model to the device `target` in place, with all its contents. Returns the model, or the object that
        the framework's own move returns instead."""
        self._check_move(target)
        moved = self._backend.move_model(self._model, target)
        moved = self._model if moved is None else moved
        self._move_unlisted(moved, target, is_copy=False)
        return moved

    def copy(self, target: Device) -> Any:
        """Returns a copy of the model, with all its contents, on the device `target`."""
        twin = self._backend.copy_model(self._model, target)
        # checked after the copy, because for an optimizer, the error from `copy_model` is better
        self._check_move(target)
        # `leaves.copy` raises the error if the model returns itself
        if twin is not self._model:
            self._move_unlisted(twin, target, is_copy=True)
        return twin

    def _check_move(self, target: Device) -> None:
        """Checks that the model can be moved to the device `target`, without moving anything. Raises
        `DeviceNotFoundError` if a framework lacks the device, and `ContainerError` if tensors that must move are in a
        container that cannot be rebuilt. Raises `UnsupportedError` if the model is an optimizer and one of its
        parameters is on another device."""
        backend, model = self._backend, self._model
        parameters = backend.parameters_of(model)
        misplaced = next((x for x in parameters if backend.device_of(x) is not target), None)
        if misplaced is not None:
            raise backend.unsupported(
                f"moving the optimizer {type(model).__qualname__} to {target} while one of its parameters is on "
                f"{backend.device_of(misplaced)}",
                "move both together: xdevice.to_device((model, optimizer), device)",
            )
        # the `id`s of the tensors that are going to move
        away = set()
        for _, value, owner in self.tensors():
            owner.require(target)
            # a tensor on several devices moves too
            with suppress(UnsupportedError):
                if owner.device_of(value) is target:
                    continue
            away.add(id(value))
        if not away:
            return
        for holding in self._holdings:
            holding.tree.check_rebuilding(away)

    def _move_unlisted(self, moved: Any, target: Device, is_copy: bool) -> None:
        """Moves everything that the framework does not list to the device `target`. The framework itself must have
        moved or copied the model beforehand. `moved` is the result of that move or copy: the model itself if it was
        moved in place, otherwise a new model."""
        if not self._holdings:
            return
        backend = self._backend
        # after a move in place, the parts outside the framework's lists are the same as before
        new_whole = WholeModel(backend, moved) if is_copy or moved is not self._model else self
        # the listed parts as they are now; the framework may have replaced some
        new_parts = list(backend.model_parts(moved))
        # the first of `models` is `moved` itself; the others were found in its attributes
        for _, owner, inner in new_whole.models[1:]:
            if not owner.is_all_on(inner, target):
                owner.move_model(inner, target)
            new_parts += owner.model_parts(inner)
        old_parts = self._listed
        # the new part for each old part, by the `id` of the old one; empty if the parts cannot
        # be paired
        new_by_old = (
            {id(old): new for old, new in zip(old_parts, new_parts, strict=False)}
            if len(new_parts) == len(old_parts)
            else {}
        )
        # the results of `_moved_leaf`, so that a tensor in two places stays one tensor
        done: dict[int, Any] = {}
        # not strict, because the copy of a model may hold other things than the model
        for old, new in zip(self._holdings, new_whole._holdings, strict=False):
            # `new_by_old` is searched for the leaves of the old model; if the new model does
            # not have the same number of leaves, for its own leaves
            old_leaves = (
                old.tree.leaves
                if len(old.tree.leaves) == len(new.tree.leaves)
                else new.tree.leaves
            )
            leaves = [
                new_by_old[id(old_leaf)]
                if id(old_leaf) in new_by_old
                else _moved_leaf(value, target, done)
                for old_leaf, value in zip(old_leaves, new.tree.leaves, strict=True)
            ]
            for attribute, value in zip(new.attributes, new.tree.rebuilt(leaves), strict=True):
                merged = _update_in_place(attribute.value, value)
                # written directly into the `__dict__`, to bypass the framework's `__setattr__`
                if merged is not attribute.value:
                    attribute.owner[attribute.key] = merged


def move(backend: Backend, model: Any, target: Device) -> Any:
    """Moves a model to the device `target` in place, with all its contents. Returns the model, or the object that the
    framework's own move returns instead. Does nothing if the whole model is on the device already. If the move fails,
    the model is moved back."""
    whole = WholeModel(backend, model)
    if whole.is_all_on(target):
        return model
    before = list(whole.places())
    try:
        return whole.move(target)
    except BaseException as error:
        move_back(backend, model, before, error)
        raise


def move_back(
    backend: Backend, model: Any, before: list[tuple[str, Device]], error: BaseException
) -> None:
    """Moves a model back after a move that failed with `error`. `before` lists the names and
    devices that the model's variables had before the move. If some variables cannot be moved
    back, a note that names them is added to the error."""
    homes = {place for _, place in before}
    try:
        whole = WholeModel(backend, model)
        # a model that was spread over several devices cannot be moved back as a whole
        if len(homes) == 1 and list(whole.places()) != before:
            whole.move(homes.pop())
    # the caller raises the first error, which matters more than this one
    except Exception:
        pass
    name = type(model).__qualname__
    try:
        after = dict(WholeModel(backend, model).places())
        moved = [variable for variable, place in before if after.get(variable) is not place]
        if moved:
            note(
                error,
                f"{len(moved)} of the {len(before)} variables of {name} have moved and were not moved back: "
                f"{listed(moved, limit=3)}",
            )
    except Exception:
        note(error, f"some of the variables of {name} may have moved")


def refuse(
    backend: Backend, model: Any, verb: str = "saving", only_trained: bool = False
) -> None:
    """Raises `UnsupportedError` for a model with layers or parameters that the framework does not
    list, because an operation such as "saving" (`verb`) would miss them. If `only_trained` is True,
    layers without trainable variables are ignored."""
    whole = WholeModel(backend, model)
    # a state dict helps to save the model, not to train it
    instead = (
        "" if only_trained else "; or use the model's own state dict, which omits that object"
    )
    layers = [
        (name, layer)
        for name, owner, layer in whole.models[1:]
        if not only_trained or list(owner.gradients(layer))
    ]
    parameters = [(name, x) for name, x, owner in whole.tensors() if owner.is_parameter(x)]
    # the error is about the first one, if there is any
    for name, x in (*layers, *parameters):
        raise backend.unsupported(
            f"{verb} {name}, an object of type {type(x).__qualname__} in a plain attribute, list or dict of this "
            f"{type(model).__qualname__}: the framework cannot find it there, so it is neither saved nor trained",
            f"put it in {backend.lists_layers}{instead}",
        )


def _is_flat(value: Any) -> bool:
    """Whether a value is a list or tuple of only numbers, strings and None, such as the sizes of a layer."""
    if type(value) is not tuple and type(value) is not list:
        return False
    for item in value:  # noqa: SIM110  # twice as fast as `all`
        if id(type(item)) not in PLAIN:
            return False
    return True


def _readable(part: Any) -> dict[str, Any]:
    """Returns the `__dict__` of `part`, a model or a submodel. Raises `ContainerError` if a slot of
    `part` contains tensors. Frameworks read only the `__dict__`, so these tensors would be missing
    from a copy that PyTorch or Paddle makes."""
    for key in slots(type(part)):
        value = getattr(part, key, None)
        # the dict that owns the attribute is `{}` here, because `_holds` does not use it
        if _holds(_Attribute(name=key, owner={}, key=key, value=value)):
            name = type(part).__qualname__
            raise ContainerError(
                f"the slot {key} of the class {name} contains tensors, which a move or copy of the model would "
                f"miss; remove {key!r} from __slots__"
            )
    own_dict: dict[str, Any] = vars(part)
    return own_dict


def _holds(attribute: _Attribute) -> bool:
    """Whether an attribute is a tensor, a model, an object that moves itself, or a container
    with one of these. Raises `ContainerError` if tensors are in a container that cannot be
    walked, such as a list that contains itself."""
    value = attribute.value
    if registry.owner_and_kind(type(value)) is not None:
        return True
    way = trees.way_of(value, keep_movers=True)
    if way is None:
        return trees.mover(value) is not None
    # a container that must not be read (see `_ITERATED`), or that contains only numbers and
    # strings
    if not (way is ATTRIBUTES or isinstance(value, _ITERATED)) or looks.is_plain([value]):
        return False
    try:
        tree = Tree(value, keep_movers=True, once=True)
    # a list that contains itself, for example: an error only if there are tensors in it
    except ContainerError as error:
        if not looks.search(value):
            return False
        raise ContainerError(
            f"{attribute.name} contains tensors but cannot be searched: {error}"
        ) from error
    return any(
        registry.owner_and_kind(type(leaf)) is not None or trees.mover(leaf) is not None
        for leaf in tree.leaves
    )


def _moves(owned: Owned, value: Any) -> bool:
    """Whether a value is a tensor that can leave the host. `owned` is the backend and kind of
    its type."""
    return (
        owned.kind == "tensor"
        and not owned.backend.is_host_only
        and not owned.backend.is_host_bound(value)
    )


def _moved_leaf(value: Any, target: Device, done: dict[int, Any]) -> Any:
    """Returns the leaf `value` on the device `target`. For a tensor that can leave the host, returns the moved tensor;
    for an object that moves itself, the result of its move. Returns any other leaf unchanged: models have been moved in
    place already. `done` contains the results of earlier calls, by the `id`s of the old leaves."""
    if id(value) not in done:
        owned, mover = registry.owner_and_kind(type(value)), trees.mover(value)
        if mover is not None:
            done[id(value)] = mover.move_to(target)
        elif owned is not None and _moves(owned, value):
            done[id(value)] = owned.backend.move_held(value, target)
    return done.get(id(value), value)


def _update_in_place(old: Any, new: Any) -> Any:
    """Merges the value `new`, which was rebuilt from `old`, into `old`, and returns the result. If both are lists, or
    both are dicts, the contents of `new` are written into `old`, because other objects may refer to `old`. In this
    case, `old` is returned. Otherwise `new` is returned. The same applies at every level of nesting."""
    if type(old) is not type(new) or type(old) not in (list, dict):
        return new
    for key in range(len(old)) if type(old) is list else list(old):
        merged = _update_in_place(old[key], new[key])
        if merged is not old[key]:
            old[key] = merged
    return old
