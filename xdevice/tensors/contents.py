"""What the verbs do with a container: everything is checked first, then moved, models before what stands beside them.

Arrays of a framework that has only host memory, such as NumPy's, and tensors of texts are data like numbers where a
container also holds tensors that can be elsewhere: they stay on the host, and are not compared. In a container of their
own they count.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.containers import strangers, trees
from xdevice.containers.batches import PLAIN
from xdevice.core import registry
from xdevice.errors import DeviceNotFoundError, NotATensorError, UnsupportedError, note, shown

from . import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xdevice.base.devices import Device
    from xdevice.containers.strangers import Stranger
    from xdevice.containers.trees import Tree
    from xdevice.contract import Backend
    from xdevice.contract.backend import Owned

    from .leaves import Location

    One = Callable[[Backend, str, Any, Device], Any]
    _Owned = tuple[int, Any, Backend, str]
    """Number, value, backend and kind of a leaf: one is made for each tensor, and a NamedTuple takes 1 us, not 0.1."""


class _Contents:
    """The leaves of a container, each with what it is."""

    def __init__(self, x: Any) -> None:
        self.tree: Tree = trees.Tree(x, whole=True)
        self.owned: list[_Owned] = []
        self.strangers: list[tuple[int, Stranger]] = []
        kinds: dict[int, Owned | None] = {}
        for i, value in enumerate(self.tree.leaves):
            cls = id(type(value))  # some types cannot be hashed
            if cls not in kinds:
                kinds[cls] = registry.kind_of(type(value))
            found = kinds[cls]
            if found is not None:
                self.owned.append((i, value, found.backend, found.kind))
                continue
            stranger = self.tree.stranger(i) if cls not in PLAIN else None
            if stranger is not None:
                self.strangers.append((i, stranger))
        if any(backend.is_host_only for backend in {backend for _, _, backend, _ in self.owned}):
            self._set_objects_apart()
        data = {id(value) for _, value, backend, kind in self.owned if _is_data(value, backend, kind)}
        is_alone = not self.strangers and all(id(value) in data for _, value, _, _ in self.owned)
        self.data = set() if is_alone else data
        """The `id`s of what can only be on the host, and stands beside tensors that can be elsewhere."""

    def models(self) -> set[int]:
        """The `id`s of the models, which move in place, and of the models in them."""
        found = [(model, backend) for _, model, backend, kind in self.owned if kind == "model"]
        return {id(one) for model, backend in found for one in (model, *backend.model_parts(model))}

    def _set_objects_apart(self) -> None:
        """An array of objects that hold tensors is not a tensor but a stranger."""
        for leaf in tuple(self.owned):
            i, value, backend, _ = leaf
            if not backend.is_host_only or backend.container_way(value) is None:
                continue
            stranger = strangers.find(value, None)
            if stranger is not None:
                self.owned.remove(leaf)
                self.strangers.append((i, stranger))


def _is_data(x: Any, backend: Backend, kind: str) -> bool:
    return backend.is_host_only or (kind == "tensor" and backend.is_host_bound(x))


def transfer(x: Any, target: Device, one: One, verb: str) -> Any:
    """`to_device` and `copy_to` of what is neither a tensor nor a model."""
    contents = _Contents(x)
    tree = contents.tree
    if not tree.is_container and not any(stranger.moves for _, stranger in contents.strangers):
        raise _no_container(x, verb, contents)
    is_copy = one is leaves.copy
    _check(contents, target, is_copy)
    undo: list[Callable[[BaseException], None]] = []
    try:
        return tree.rebuilt(_moved(contents, devices.plain(target), one, undo))
    except BaseException as error:
        for step in reversed(undo):
            step(error)
        raise


def _moved(contents: _Contents, target: Device, one: One, undo: list[Callable[[BaseException], None]]) -> list[Any]:
    """The leaves where they are to be; `undo` gets what takes back what moves in place, or tells of it."""
    is_copy = one is leaves.copy
    done: dict[int, Any] = {}
    parts: list[Any] = []  # kept, because `done` knows them by their ids
    # models first: a parameter that also stands beside its model then stays that model's parameter
    for _, value, backend, kind in _models_first(contents.owned):
        if id(value) in done:
            continue
        place = backend.devices()[0] if id(value) in contents.data else target
        if kind == "model" and not is_copy:
            undo.append(partial(leaves.take_back, backend, value, list(backend.model_devices(value))))
        if kind == "model" and not is_copy and backend.is_all_on(value, place):
            done[id(value)] = value
        elif kind == "model" and len(contents.owned) > 1:
            own = list(backend.model_parts(value))
            parts += own
            done[id(value)] = one(backend, kind, value, place)
            _pair(backend, own, done[id(value)], done)
        else:
            done[id(value)] = one(backend, kind, value, place)
    for _, stranger in contents.strangers:
        if stranger.moves and id(stranger.x) not in done:
            done[id(stranger.x)] = moved = stranger.copied(target) if is_copy else stranger.moved(target)
            if moved is stranger.x:
                said = f"a {type(moved).__qualname__} that moves itself is on {target} now"
                undo.append(partial(note, text=said))
    return [done.get(id(value), value) for value in contents.tree.leaves]


def _models_first(owned: list[_Owned]) -> list[_Owned]:
    models = [leaf for leaf in owned if _is_model(leaf)]
    if not models:
        return owned
    if len(models) > 1:  # a model before those that are parts of it, and optimizers after both
        models.sort(key=_number_of_parts, reverse=True)
    return models + [leaf for leaf in owned if not _is_model(leaf)]


def _is_model(leaf: _Owned) -> bool:
    _, _, _, kind = leaf
    return kind == "model"


def _number_of_parts(leaf: _Owned) -> int:
    _, model, backend, _ = leaf
    return len(list(backend.model_parts(model)))


def _check(contents: _Contents, target: Device, is_copy: bool) -> None:
    """Raises before anything has moved."""
    place = devices.plain(target)
    models = 0
    required = set()
    touched = set()
    for i, value, backend, kind in contents.owned:
        if id(value) in contents.data:
            continue
        if backend not in required:
            _require(backend, target, contents, i)
            required.add(backend)
        if kind == "model":
            models += 1
            list(backend.model_devices(value))  # raises for one that cannot move
        elif not is_copy and kind == "tensor" and not leaves.is_on(backend, value, place):
            touched.add(id(value))
    for i, stranger in contents.strangers:
        if stranger.moves:
            _require(stranger, target, contents, i)
        elif is_copy:
            raise stranger.refusal(contents.tree.path(i) or "it", place)
        elif not stranger.is_on(place):
            left = stranger.without(contents.models())
            if not left.is_on(place):
                raise left.refusal(contents.tree.path(i) or "it", place)
    if is_copy and models > 1:
        _refuse_shared(contents)
    if models and touched:
        contents.tree.check_rebuilding(touched)


def check_copies(x: Any, places: Iterable[Device]) -> None:
    """Raises if `x` cannot be copied to one of these places."""
    contents = _Contents(x)
    for place in places:
        _check(contents, place, True)


def _require(owner: Backend | Stranger, target: Device, contents: _Contents, i: int) -> None:
    try:
        owner.require(target)
    except DeviceNotFoundError as error:
        path = contents.tree.path(i)
        raise DeviceNotFoundError(f"{path} cannot be there: {error}" if path else str(error)) from None


def _pair(backend: Backend, own: list[Any], twin: Any, done: dict[int, Any]) -> None:
    """The parts of a model that was moved or copied stand for its own wherever those are in the container."""
    new = list(backend.model_parts(twin))
    if len(own) != len(new):
        return
    apart = {}
    for before, after in zip(own, new, strict=True):
        if done.setdefault(id(before), after) is not after:
            apart[id(after)] = done[id(before)]
    if apart:
        backend.rebind(twin, apart)


def _refuse_shared(contents: _Contents) -> None:
    """Raises for two models that share something: copied one by one, they would no longer share it."""
    owners: dict[int, int] = {}
    for i, model, backend, kind in _models_first(contents.owned):
        if kind != "model":
            return
        if id(model) in owners:
            continue
        for part in backend.model_parts(model):
            if part is not model and id(part) in owners:
                one, other = (contents.tree.path(index) for index in sorted((owners[id(part)], i)))
                raise UnsupportedError(
                    f"{one} and {other} share a {type(part).__qualname__}, which copies of them would not; "
                    "put them into one model"
                )
        owners.update((id(part), i) for part in (model, *backend.model_parts(model)))


def _no_container(x: Any, verb: str, contents: _Contents) -> NotATensorError:
    hint = "xdevice.tensor(data) makes a tensor of numbers"
    if contents.strangers:
        hint = "it holds tensors: " + contents.strangers[0][1].remedy("or give it a way of its own: move=...")
    return NotATensorError(
        f"cannot {verb} {shown(x)} of type {type(x).__qualname__}: expected a tensor, a model, or a container of them; "
        + hint
    )


def places(x: Any, name: str) -> Iterator[Location]:
    """Where every tensor and every variable of a model is in a container, as `leaves.places` says it."""
    contents = _Contents(x)
    tree = contents.tree
    for i, value, backend, kind in contents.owned:
        if id(value) not in contents.data:
            yield from leaves.places(backend, kind, value, partial(_name, name, tree, i))
    for i, stranger in contents.strangers:
        type_name = type(stranger.x).__qualname__
        remedy = stranger.remedy("or give it a way of its own: move=...")
        hint = f"xdevice does not know a {type_name}, so it stays where it is: {remedy}"
        for inner, place in stranger.places():
            yield partial(_name, name, tree, i, inner), place, "" if stranger.moves else hint


def _name(name: str, tree: Tree, i: int, inner: str = "") -> str:
    return name + tree.path(i) + inner


def owned(x: Any) -> Iterator[tuple[Backend, str, Any]]:
    """Every tensor and model in a container, and in the objects in it."""
    contents = _Contents(x)
    yield from ((backend, kind, value) for _, value, backend, kind in contents.owned)
    for _, stranger in contents.strangers:
        yield from ((held.backend, held.kind, held.value) for held in stranger.held)
