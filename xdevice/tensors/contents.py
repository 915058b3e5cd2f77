"""Moves, copies and locates the contents of a container, for verbs such as `to_device`. Everything is checked before
anything moves. Models move before the tensors in the same container.

String tensors, and the arrays of frameworks that have only host memory, such as NumPy's, can only be on the host. If a
container also contains tensors that can be on other devices, these host-only values are treated as data, like Python's
numbers: they stay on the host, and their device is not compared. In any other container, they are treated as tensors.

A container is moved in one of two ways. If it contains only tensors, numbers and strings, a move checks only the types
of its leaves. Otherwise, each leaf is classified first (`_Sorted`), which takes longer. For an OrderedDict of 100
tensors that are on the device already, it takes 0.18 ms instead of 0.02 ms.
"""

from __future__ import annotations

from functools import cached_property, partial
from operator import is_
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.devices import CPU, Device
from xdevice.containers import strangers, trees
from xdevice.containers.batches import flatten_batch, rebuild_batch
from xdevice.containers.looks import PLAIN
from xdevice.containers.trees import Tree, flatten, rebuild
from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.errors import DeviceNotFoundError, NotATensorError, UnsupportedError, note, shown

from . import leaves
from .refusals import refuse_lacking
from .unlisted import WholeModel, move_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from xdevice.containers.batches import Batch
    from xdevice.containers.strangers import Stranger
    from xdevice.containers.trees import Walked

    from .leaves import Location

    TransferOne = Callable[[Backend, str, Any, Device], Any]
    """A function of the module `leaves` that moves or copies one tensor or model: `move`, `start_move` or `copy`."""
    Undo = list[Callable[[BaseException], None]]
    """Functions that are called with the error of a later step. Each undoes a move in place, or adds a note about this
    move to the error."""
    _Away = dict[Backend, list[Any]]
    """The tensors that have to move, by backend: those that are not on the target device yet,
    or all tensors if they are copied."""
    _Owned = tuple[int, Any, Backend, str]
    """A leaf that belongs to a backend: its index among the leaves, its value, its backend and
    its kind. It is a plain tuple, which is created in 0.1 us, because one is created for each
    tensor. Creating a NamedTuple takes 1 us."""

_movable = registry.movable


def transfer(x: Any, requested: Device, transfer_one: TransferOne, verb: str) -> Any:
    """Returns the result of `to_device` or `copy_to` for `x`. `requested` is the device as the caller named it, perhaps
    by its hardware (`cuda:1`). `transfer_one` is a function of the module `leaves` that moves or copies one tensor or
    model. Errors name the operation `verb`, which is "move" or "copy"."""
    # the most frequent cases come first: one tensor, a batch, one model, any other container
    try:
        owner = _movable.get(type(x))
    # the type is unhashable because of its metaclass
    except TypeError:
        owner = None
    if owner is not None:
        target = owner.require(requested)
        if target is not CPU and owner.lacks(target):
            refuse_lacking(x, target, (owner,))
        return transfer_one(owner, "tensor", x, target)
    batch = flatten_batch(x)
    # `x` may be a leaf: `walks` contains None for the type of a leaf, and no entry for a type
    # that has not been looked up yet
    if batch is None and trees.walks.get(id(type(x))) is None:
        array = registry.as_array(x)
        owned = registry.owner_and_kind(type(array))
        if owned is not None:
            target = owned.backend.require(requested)
            refuse_lacking(array, target, (owned.backend,))
            # a NumPy scalar needs no copy, because nobody can write into it
            return x if array is not x else transfer_one(*owned, x, target)
    # the general walk, for a container that `flatten_batch` has not accepted
    walk = None
    if batch is None:
        walk = flatten(x, keep_movers=True, once=True)
        batch = _only_tensors(walk)
    # backends check the name `cuda:1`, which is not of the exact class `Device`, but tensors report
    # their device as `gpu:1`
    target = (
        requested if type(requested) is Device else devices.without_hardware_name(requested)
    )
    # the tensors that have to move, by backend
    away = (
        _tensors_to_move(x, batch, requested, target, is_copy=transfer_one is leaves.copy)
        if batch is not None
        else None
    )
    # there are models, objects of unknown types, or tensors that cannot leave the host
    if batch is None or away is None:
        return _Sorted(x, walk).transfer(requested, target, transfer_one, verb)
    # everything is there already: returns the same object, which tells the program that nothing
    # moved
    if not away:
        return x
    for backend in away:
        if target is not CPU and backend.lacks(target):
            refuse_lacking(x, target, (backend,))
    # `walk[1]` and `batch[0]` are the old leaves
    if walk is not None:
        return rebuild(walk, _move(away, target, transfer_one, done={}, old=walk[1]))
    return rebuild_batch(x, batch, _move(away, target, transfer_one, done={}, old=batch[0]))


def check_copies(x: Any, places: Iterable[Device]) -> None:
    """Raises the error that `copy_to` would raise if `x` cannot be copied to one of the devices
    `places`. Copies nothing."""
    content = _Sorted(x)
    for requested in places:
        # backends check the name `cuda:1`, but tensors report their device as `gpu:1`
        content.check(requested, devices.without_hardware_name(requested), is_copy=True)


def device_set(x: Any) -> set[Device] | None:
    """Returns the set of the devices of all tensors in a container. Returns None in the cases that only `places`
    handles: if `x` is not a container, or contains a model, a symbol, an array that can only be on the host, an object
    of an unknown type, or a tensor on several devices."""
    batch = flatten_batch(x) or _only_tensors(flatten(x, keep_movers=True, once=True))
    if batch is None:
        return None
    tensors, backends, _ = batch
    distinct: set[Device] = set()
    try:
        for cls, backend in backends.items():
            distinct |= backend.devices_of(
                cls, tensors if len(backends) == 1 else _of_type(cls, tensors)
            )
    except UnsupportedError:
        return None
    return distinct


def places(x: Any, name: str) -> Iterator[Location]:
    """Yields a `Location` for every tensor in a container, and for every variable of the models in it. If the container
    has tensors that can be on other devices than the host, the values that can only be on the host are left out. Errors
    refer to the container as `name`. Raises `UnsupportedError` for a symbol."""
    content = _Sorted(x)
    for i, value, backend, kind in content.owned:
        # data stays on the host when the container moves, so its device is ignored
        if id(value) not in content.data:
            yield from leaves.places(
                backend, kind, value, partial(_name, name, content.tree, i)
            )
    for i, stranger in content.strangers:
        type_name = type(stranger.x).__qualname__
        remedy = stranger.remedy("or pass move=... to move it yourself", is_move=True)
        hint = f"xdevice does not know the type {type_name}, so the object stays where it is: {remedy}"
        for inner, place in stranger.places():
            yield (
                partial(_name, name, content.tree, i, inner),
                place,
                "" if stranger.moves else hint,
            )
        # an object that moves itself also moves the tensors below
        if stranger.moves:
            continue
        # models in the object may hold tensors that their frameworks do not list
        for part in stranger.parts:
            if part.kind == "model":
                for inner, place in WholeModel(part.backend, part.value).unlisted_places():
                    yield (
                        partial(_name, name, content.tree, i, f"{part.path}.{inner}"),
                        place,
                        hint,
                    )


def _name(name: str, tree: Tree, i: int, inner: str = "") -> str:
    """Returns the name of a tensor for errors, such as "batch['x'][1]". `inner` is the path of the
    tensor within leaf number `i` of the container `tree`, which errors refer to as `name`."""
    return name + tree.path(i) + inner


def owned(x: Any) -> Iterator[tuple[Backend, str, Any]]:
    """Yields the backend, the kind and the value of every tensor, symbol and model in a container. Objects of unknown
    types in the container are searched, too."""
    content = _Sorted(x)
    yield from ((backend, kind, value) for _, value, backend, kind in content.owned)
    for _, stranger in content.strangers:
        yield from ((part.backend, part.kind, part.value) for part in stranger.parts)


# sorting the leaves of a container


def _only_tensors(walk: Walked) -> Batch | None:
    """Returns the tensors of a walked container as a `Batch`, if each of its other leaves is a
    number, a string or None. Returns None if it has leaves of other types, or if the walked
    object is not a container."""
    root, leaves, kinds = walk
    if root is None:
        return None
    try:
        backends = {
            cls: _movable[cls] for type_id, cls in kinds.items() if type_id not in PLAIN
        }
    # `_movable` lacks models, symbols, host-only arrays and unknown types; or a type is
    # unhashable
    except Exception:
        return None
    return (
        # if there are no plain leaves, the list need not be copied
        leaves if len(backends) == len(kinds) else [x for x in leaves if type(x) in backends],
        backends,
        {},
    )


def _of_type(cls: type, tensors: list[Any]) -> list[Any]:
    """Returns the tensors whose type is exactly `cls`."""
    return [x for x in tensors if type(x) is cls]


class _Sorted:
    """The leaves of a container, sorted into `owned` (tensors, symbols and models, with their
    backends), `strangers` (objects of unknown types that contain tensors, each with its index), and
    all others."""

    def __init__(self, x: Any, walk: Walked | None = None) -> None:
        self.x = x
        self.tree = tree = trees.tree_with_strangers(x, keep_movers=True, walk=walk)
        self.owned: list[_Owned] = []
        self.strangers: list[tuple[int, Stranger]] = tree.strangers
        self._kept: list[Any] = []
        """The parts that models had before they moved. This list keeps the parts alive, because
        they are looked up by their `id`s even after the move has replaced them in their
        models."""
        for i, value in enumerate(tree.leaves):
            owned = tree.owners[id(type(value))]
            if owned is not None:
                self.owned.append((i, value, owned.backend, owned.kind))
        # for its backend, a NumPy array of Python objects is a tensor; here it is a container
        if any(backend.is_host_only for _, _, backend, _ in self.owned):
            self._reclassify_object_arrays()
        data = {
            id(value)
            for _, value, backend, kind in self.owned
            if backend.is_host_only or (kind == "tensor" and backend.is_host_bound(value))
        }
        # without other tensors, these values are the ones that the caller wants to move
        has_only_data = not self.strangers and all(
            id(value) in data for _, value, _, _ in self.owned
        )
        self.data = set() if has_only_data else data
        """The `id`s of the values that are treated as data, such as NumPy arrays and tensors of
        strings. These values can only be on the host, and stay there while the tensors of the
        container move. Empty if the container has no tensors that can be on other devices."""

    def transfer(
        self, requested: Device, target: Device, transfer_one: TransferOne, verb: str
    ) -> Any:
        """Returns the container with its leaves moved or copied: models first, then tensors, then objects that move
        themselves. If a leaf raises an error, models that have moved in place are moved back. `target` is the device
        `requested` under its plain name, `gpu:1` for `cuda:1`. `transfer_one` moves or copies one tensor or model.
        Errors name the operation `verb`, which is "move" or "copy"."""
        self._require_container(verb)
        is_copy = transfer_one is leaves.copy
        away = self.check(requested, target, is_copy=is_copy)
        # functions that undo the moves so far, in the order of the moves
        undo: Undo = []
        try:
            done = self._move_before_tensors(target, transfer_one, undo)
            _move(away, target, transfer_one, done)
            self._move_strangers(target, is_copy, done, undo)
            return self.tree.rebuilt([done.get(id(leaf), leaf) for leaf in self.tree.leaves])
        except BaseException as error:
            # the last move first, because it may depend on earlier ones
            for step in reversed(undo):
                step(error)
            raise

    def _reclassify_object_arrays(self) -> None:
        """Transfers arrays of Python objects from `owned` to `strangers` if the arrays contain tensors that can be on
        other devices than the host."""
        for leaf in tuple(self.owned):
            i, value, backend, _ = leaf
            # `container_way` is None for an array of numbers
            if not backend.is_host_only or backend.container_way(value) is None:
                continue
            # None if the array holds nothing that can leave the host
            stranger = strangers.find(value, way=None)
            if stranger is not None:
                self.owned.remove(leaf)
                self.strangers.append((i, stranger))

    def _require_container(self, verb: str) -> None:
        """Raises `NotATensorError` if the object is not a container and cannot move itself.
        `verb` names the attempted call in the error, such as "move"."""
        if self.tree.root is not None or any(stranger.moves for _, stranger in self.strangers):
            return
        [x] = self.tree.leaves
        hint = "to make a tensor from numbers, call xdevice.tensor(data)"
        # there is at most one, because there is only one leaf
        if self.strangers:
            hint = "it contains tensors: " + self.strangers[0][1].remedy(
                "or pass move=... to move it yourself", is_move=verb == "move"
            )
        raise NotATensorError(
            f"cannot {verb} {shown(x)} of type {type(x).__qualname__}: expected a tensor, a model, or a container of "
            f"them; {hint}"
        )

    @cached_property
    def _models(self) -> list[_Owned]:
        """The models in the container. A model comes before the models that are parts of it,
        and optimizers come last."""
        # `leaf[3]` is the kind
        models = [leaf for leaf in self.owned if leaf[3] == "model"]
        if len(models) > 1:
            # a model has more parts than any model inside it
            models.sort(key=lambda leaf: len(_parts(leaf)), reverse=True)
        return models

    def check(self, requested: Device, target: Device, *, is_copy: bool) -> _Away:
        """Returns the tensors that have to move to `requested`. If `is_copy` is True, these are all tensors. `target`
        is the same device under its plain name. Both are needed: a backend refuses `cuda:1` if its GPUs are of another
        kind, but tensors report `gpu:1` as their device. Raises an error if a leaf cannot be on the device, if tensors
        in an object of an unknown type would not move, or if the container cannot be rebuilt or copied."""
        tree = self.tree
        tensors = [
            (value, backend)
            for _, value, backend, kind in self.owned
            if kind == "tensor" and id(value) not in self.data
        ]
        backends = {type(value): backend for value, backend in tensors}
        batch: Batch = [value for value, _ in tensors], backends, {}
        # tensors that can only be on the host were left out above, so no tensor here is bound
        # to it. `or {}` is for type checkers: with may_be_bound=False, the result is never None
        away = (
            _tensors_to_move(self.x, batch, requested, target, is_copy, may_be_bound=False)
            or {}
        )
        for _, value, backend, kind in self.owned:
            # tensors were checked above, and data stays on the host
            if kind == "tensor" or id(value) in self.data:
                continue
            _require_device(backend, requested, self.x, value)
            # iterating raises the error of a model that has no variables yet
            if kind == "model":
                list(backend.model_devices(value))
        # objects of unknown types that hold tensors
        for i, stranger in self.strangers:
            # the object is moved by a method of its type, or by a function that was registered
            # for the type
            if stranger.moves:
                _require_device(stranger, requested, self.x, stranger.x)
            # nothing says how to copy it, so it is refused even if it is on the device already
            elif is_copy:
                raise stranger.refusal(tree.path(i) or "it", target, is_copy)
            # an object that is on the device already does not have to move, whatever its type
            elif not stranger.is_on(target):
                # models in this object that are also elsewhere in the container move in place,
                # so only the rest would stay behind. `leaf[1]` is the model itself
                moving = {
                    id(part) for leaf in self._models for part in (leaf[1], *_parts(leaf))
                }
                left = stranger.without(moving)
                if not left.is_on(target):
                    raise left.refusal(tree.path(i) or "it", target)
        of_strangers = {
            part.backend for _, stranger in self.strangers for part in stranger.parts
        }
        of_leaves = {backend for _, _, backend, _ in self.owned}
        refuse_lacking(self.x, target, of_strangers | of_leaves)
        if is_copy:
            self._refuse_shared()
            tree.refuse_shared()
        # models move in place before the container is rebuilt, so a container that cannot be
        # rebuilt must be refused before they move
        elif away and self._models:
            tree.check_rebuilding({id(x) for tensors in away.values() for x in tensors})
        return away

    def _refuse_shared(self) -> None:
        """Raises `UnsupportedError` if two models share a part. Each model is copied separately, so
        the copies would not share the part."""
        # a single model shares nothing, so its parts need not be listed
        if len(self._models) < 2:
            return
        # the index of the model to which each part belongs
        owners: dict[int, int] = {}
        for leaf in self._models:
            i, model, _, _ = leaf
            # this model is part of an earlier one, and is copied together with it
            if id(model) in owners:
                continue
            parts = _parts(leaf)
            for part in parts:
                if part is not model and id(part) in owners:
                    first, second = (
                        self.tree.path(index) for index in sorted((owners[id(part)], i))
                    )
                    raise UnsupportedError(
                        f"{first} and {second} share an object of type {type(part).__qualname__}, which their copies "
                        "would not share; put both in the same model"
                    )
            owners.update((id(part), i) for part in (model, *parts))

    def _move_before_tensors(
        self, target: Device, transfer_one: TransferOne, undo: Undo
    ) -> dict[int, Any]:
        """Moves or copies, with the function `transfer_one`, all leaves in `owned` that must come before the tensors:
        first models, then symbolic tensors and data. Data goes to the host, the other leaves to the device `target`.
        Returns the results, by the `id`s of the old leaves. Models come first: a parameter that is also in the
        container outside its model then remains a parameter of the new model. For each model that is moved in place, a
        function that moves the model back is added to `undo`."""
        done: dict[int, Any] = {}
        # `leaf[3]` is the kind
        others = (leaf for leaf in self.owned if leaf[3] != "model")
        for _, value, backend, kind in (*self._models, *others):
            is_data = id(value) in self.data
            if id(value) in done or (kind == "tensor" and not is_data):
                continue
            # data goes to its backend's only device
            place = backend.devices()[0] if is_data else target
            if kind != "model":
                done[id(value)] = transfer_one(backend, kind, value, place)
                continue
            whole = WholeModel(backend, value)
            if transfer_one is not leaves.copy and whole.is_all_on(place):
                done[id(value)] = value
                continue
            # the parts are listed before the move, which may replace them; they are needed only
            # if the container has other leaves
            parts = whole.parts() if len(self.owned) > 1 else []
            self._kept += parts
            if transfer_one is leaves.copy:
                done[id(value)] = transfer_one(backend, kind, value, place)
            else:
                undo.append(partial(move_back, backend, value, list(whole.places())))
                done[id(value)] = whole.move(place)
            if parts:
                _pair_parts(backend, parts, twin=done[id(value)], done=done)
        return done

    def _move_strangers(
        self, target: Device, is_copy: bool, done: dict[int, Any], undo: Undo
    ) -> None:
        """Moves the `strangers` that can move themselves to the device `target`, or copies them if `is_copy`. Adds the
        results to `done`, by the `id`s of the old objects. If a later step fails, a move in place is not undone.
        Instead, a function is added to `undo` that adds a note to the error. The note says where the object is now."""
        for _, stranger in self.strangers:
            # an object that the container holds twice moves once
            if stranger.moves and id(stranger.x) not in done:
                done[id(stranger.x)] = moved = (
                    stranger.copy_to(target) if is_copy else stranger.move_to(target)
                )
                if moved is stranger.x:
                    text = f"an object of type {type(moved).__qualname__} that moves itself is now on {target}"
                    undo.append(partial(note, text=text))


def _may_be_bound(backend: Backend) -> bool:
    """Whether a backend has tensors that cannot leave the host. Few backends do. For all other
    backends, `is_host_bound` is not called for each tensor, which would take a tenth of the time of
    a move."""
    return type(backend).is_host_bound is not Backend.is_host_bound


def _parts(leaf: _Owned) -> list[Any]:
    """Returns the parts of a leaf that is a model; see `WholeModel.parts`."""
    _, model, backend, _ = leaf
    return WholeModel(backend, model).parts()


# finding and moving the tensors of a container


def _tensors_to_move(
    x: Any,
    batch: Batch,
    requested: Device,
    target: Device,
    is_copy: bool,
    may_be_bound: bool = True,
) -> _Away | None:
    """Returns the tensors of `batch` that have to move, in a dict by backend. These are the tensors that are not on
    `target` or, if `is_copy` is True, all tensors. `batch` contains the tensors of the container `x`; `x` itself is
    only used for errors. `target` is the device `requested` under its plain name, `gpu:1` for `cuda:1`. If
    `may_be_bound` is True, returns None if one of these tensors cannot leave the host. Raises `DeviceNotFoundError` if
    the backend of a tensor lacks `requested`."""
    tensors, backends, _ = batch
    away: _Away = {}
    for cls, backend in backends.items():
        candidates = tensors if len(backends) == 1 else _of_type(cls, tensors)
        # the error names this tensor if the device is missing
        leaf = candidates[0]
        # every tensor is copied, wherever it is
        if not is_copy:
            try:
                current_devices: set[Any] = backend.devices_of(cls, candidates)
            except UnsupportedError:
                # a tensor is on several devices, or on an unknown one: with this set, the code
                # below checks each tensor
                current_devices = {target, None}
            # at least one tensor is on the device already; unless all are, each tensor is
            # checked
            if target in current_devices:
                # nothing moves, and a plain name such as `gpu:1` needs no check
                if len(current_devices) == 1 and target is requested:
                    continue
                candidates = (
                    []
                    if len(current_devices) == 1
                    else [
                        tensor
                        for tensor in candidates
                        if not leaves.is_on(backend, tensor, target)
                    ]
                )
        if (
            may_be_bound
            and _may_be_bound(backend)
            and any(map(backend.is_host_bound, candidates))
        ):
            return None
        # `cuda:1` is checked even if nothing moves: `gpu:1` may be other hardware
        if candidates or target is not requested:
            _require_device(backend, requested, x, leaf)
        if candidates:
            away[backend] = [*away[backend], *candidates] if backend in away else candidates
    return away


def _require_device(owner: Backend | Stranger, requested: Device, x: Any, leaf: Any) -> None:
    """Raises `DeviceNotFoundError`, with the path of `leaf` in `x`, if the leaf cannot be on the device `requested`.
    `owner` is the backend of the leaf, and this backend must have the device. For an object of an unknown type, `owner`
    is a `Stranger`, and the backends of all its tensors must have the device."""
    try:
        owner.require(requested)
    except DeviceNotFoundError as error:
        # `x` is walked again only for an error, because computing the paths takes longer than
        # the move
        tree = Tree(x, keep_movers=True, once=True)
        path = tree.path(next(i for i, value in enumerate(tree.leaves) if value is leaf))
        raise DeviceNotFoundError(
            f"{path} cannot be placed on that device: {error}" if path else str(error)
        ) from None


def _move(
    away: _Away,
    target: Device,
    transfer_one: TransferOne,
    done: dict[int, Any],
    old: Sequence[Any] = (),
) -> list[Any]:
    """Moves or copies each tensor of `away` to the device `target` with the function `transfer_one`. Adds each new
    tensor to `done`, by the `id` of the old one. A tensor that occurs several times moves once. Tensors that are in
    `done` already are skipped. Returns the leaves `old`, with the old tensors replaced by the new ones."""
    for backend, tensors in away.items():
        unmoved = tensors
        # a tensor in two places moves once, and is one tensor afterwards
        if done or len(set(map(id, tensors))) < len(tensors):
            unmoved = list({id(x): x for x in tensors if id(x) not in done}.values())
            # all these tensors are parts of models that have moved
            if not unmoved:
                continue
        if transfer_one is not leaves.move:
            moved = [transfer_one(backend, "tensor", x, target) for x in unmoved]
        else:
            moved = backend.move_all(unmoved, target)
            # a framework, or a user's class, has returned the old tensor instead of a new one: `require_new` raises the
            # error
            if any(map(is_, moved, unmoved)):
                moved = [
                    leaves.require_new(backend, x, new, verb="moving")
                    for x, new in zip(unmoved, moved, strict=True)
                ]
        # all leaves have moved: looking each of them up in `done` would take 10 % longer
        if unmoved is old:
            return moved
        done.update(zip(map(id, unmoved), moved, strict=True))
    return [done.get(id(leaf), leaf) for leaf in old]


def _pair_parts(backend: Backend, old: list[Any], twin: Any, done: dict[int, Any]) -> None:
    """Adds the parts of `twin`, the moved or copied model, to `done`. They replace the parts of the original model
    (`old`) everywhere in the container. If an old part has a replacement already, because another model shares the
    part, this replacement is put into `twin`, too. Does nothing if `twin` has a different number of parts."""
    new = WholeModel(backend, twin).parts()
    # the new model has a different structure, so its parts cannot be paired with the old ones
    if len(old) != len(new):
        return
    # the parts of the new model to replace, by their `id`s
    replacements = {}
    for before, after in zip(old, new, strict=True):
        # `setdefault` stores `after`, unless the old part has a replacement already
        if done.setdefault(id(before), after) is not after:
            replacements[id(after)] = done[id(before)]
    if replacements:
        backend.rebind(twin, replacements)
