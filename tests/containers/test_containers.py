"""The verbs on containers, against one reference of what they mean: on every backend, in containers made by hypothesis;
then, on NumPy, what single containers keep.

A plan says how a container is nested: a key stands for a leaf, a pair of a kind and further plans for a container of
that kind. Built with tensors it is what a verb is given; built with what should have become of them, what it must give.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.environment import BACKENDS, NO_KERNELS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xdevice
from xdevice.containers import trees

Point = collections.namedtuple("Point", ["x", "y"])


class Checked(collections.namedtuple("Base", ["x", "y"])):
    """A namedtuple with a constructor of its own, and attributes."""

    def __new__(cls, *, both):
        return super().__new__(cls, *both)


class SlottedBase:
    __slots__ = ("x",)


@dataclasses.dataclass
class Plain(SlottedBase):
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = dataclasses.field(init=False)


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x", "y")
    x: Any
    y: Any


class MyTuple(tuple):
    __slots__ = ()


class MyDict(dict):
    pass


class MyList(list):
    pass


class Lying(list):
    def __len__(self):
        return 10**9


@xdevice.register_container
class Registered:
    def __init__(self, x: Any, y: Any) -> None:
        self.both = (x, y)


class Kind(NamedTuple):
    """One kind of container: how it is made of its two children, and how they are read again."""

    make: Callable[[Any, Any], Any]
    read: Callable[[Any], tuple[Any, Any]]


def _frozen(x: Any, y: Any) -> Frozen:
    new = Frozen(x)
    object.__setattr__(new, "y", y)
    return new


def _with_attribute(new: Any, y: Any) -> Any:
    new.y = y
    return new


def _by_key(x: Any) -> tuple[Any, Any]:
    return x["x"], x["y"]


def _by_index(x: Any) -> tuple[Any, Any]:
    one, two = x
    return one, two


def _by_attribute(x: Any) -> tuple[Any, Any]:
    return x.x, x.y


KINDS = {
    "dict": Kind(lambda x, y: {"x": x, "y": y}, _by_key),
    "OrderedDict": Kind(lambda x, y: collections.OrderedDict(x=x, y=y), _by_key),
    "defaultdict": Kind(lambda x, y: collections.defaultdict(list, x=x, y=y), _by_key),
    "UserDict": Kind(lambda x, y: collections.UserDict(x=x, y=y), _by_key),
    "MappingProxyType": Kind(lambda x, y: types.MappingProxyType({"x": x, "y": y}), _by_key),
    "ChainMap": Kind(lambda x, y: collections.ChainMap({"x": x}, {"x": 0, "y": y}), _by_key),
    "dict with an attribute": Kind(
        lambda x, y: _with_attribute(MyDict(x=x), y),
        lambda d: (d["x"], d.y),
    ),
    "list": Kind(lambda x, y: [x, y], _by_index),
    "list with an attribute": Kind(
        lambda x, y: _with_attribute(MyList([x]), y), lambda d: (d[0], d.y)
    ),
    "UserList": Kind(lambda x, y: collections.UserList([x, y]), _by_index),
    "deque": Kind(lambda x, y: collections.deque([x, y], maxlen=2), _by_index),
    "tuple": Kind(lambda x, y: (x, y), _by_index),
    "tuple of its own": Kind(lambda x, y: MyTuple((x, y)), _by_index),
    "namedtuple": Kind(Point, _by_index),
    "namedtuple of its own": Kind(lambda x, y: Checked(both=(x, y)), _by_index),
    "dataclass": Kind(Plain, _by_attribute),
    "frozen dataclass": Kind(_frozen, _by_attribute),
    "dataclass of slots": Kind(Slotted, _by_attribute),
    "SimpleNamespace": Kind(lambda x, y: types.SimpleNamespace(x=x, y=y), _by_attribute),
    "partial": Kind(
        lambda x, y: functools.partial(Plain, x, y=y), lambda p: (p.args[0], p.keywords["y"])
    ),
    "slice": Kind(lambda x, y: slice(x, None, y), lambda s: (s.start, s.step)),
    "list whose length lies": Kind(lambda x, y: Lying([x, y]), _by_index),
    "registered": Kind(Registered, lambda r: r.both),
}


class Unknown:
    """Nobody said how it is walked, and it holds a tensor."""

    def __init__(self, x: Any) -> None:
        self.x = x


UNSEEN = {
    "u0": Unknown,
    "u1": lambda x: Unknown(x).__eq__,
    "u2": lambda x: iter([x]),
    "u3": lambda x: types.MappingProxyType({Unknown(x): 3}),
}
"""What holds a tensor that nothing can replace: an unknown object, its method, an iterator, keys."""

OTHERS = {"number": 3, "text": "cat", "nothing": None, "class": Plain, "stranger": object()}
TENSORS = ("t0", "t1", "t2")
MODELS = ("m0",)
UNKNOWN = ("u0", "u1", "u2", "u3")
ARRAYS = ("a0",)
"""NumPy arrays beside the tensors of another backend: data, as numbers are."""


def plans(keys: tuple[str, ...]) -> st.SearchStrategy[Any]:
    leaf = st.sampled_from(keys)
    return st.recursive(
        leaf, lambda inner: st.tuples(st.sampled_from(list(KINDS)), inner, inner), max_leaves=8
    ).filter(lambda plan: not isinstance(plan, str))


# the reference


def built(plan: Any, leaves: dict[str, Any]) -> Any:
    """The container of a plan, with these leaves."""
    if isinstance(plan, str):
        return leaves[plan]
    kind, x, y = plan
    return KINDS[kind].make(built(x, leaves), built(y, leaves))


def held(plan: Any, x: Any, like: Any) -> list[tuple[str, Any]]:
    """Key and value of every leaf in a container, which has to have the types of `like`."""
    if isinstance(plan, str):
        return [(plan, x)]
    assert type(x) is type(like)
    kind = KINDS[plan[0]]
    ways = zip(plan[1:], kind.read(x), kind.read(like), strict=True)
    return [leaf for inner, value, was in ways for leaf in held(inner, value, was)]


def keys_of(plan: Any) -> set[str]:
    return {plan} if isinstance(plan, str) else keys_of(plan[1]) | keys_of(plan[2])


class World:
    """The leaves that a plan's keys stand for, and where each of them is."""

    def __init__(self, places: dict[str, xdevice.Device]) -> None:
        self.places = places
        self.values = {
            key: np.array([i + 0.5, -i, 2.0**20 + i], "float32")
            for i, key in enumerate(TENSORS)
        }
        self.leaves: dict[str, Any] = {**OTHERS, "a0": np.arange(3.0)}
        self.backend = xdevice.backend()
        self.makers = {
            "t": self.tensor,
            "m": self.model,
            "u": lambda key, place: UNSEEN[key](self.tensor("t0", place)),
        }
        for key, place in places.items():
            self.leaves[key] = self.makers[key[0]](key, place)

    def tensor(self, key: str, place: xdevice.Device) -> Any:
        return xdevice.tensor(self.values[key], device=place)

    def model(self, key: str, place: xdevice.Device) -> Any:
        return xdevice.to_device(self.backend.samples().network(3, 1), place)

    def where(self, plan: Any) -> set[xdevice.Device]:
        """The places that count: those of the arrays only where nothing else has one."""
        places = {self.places[key] for key in keys_of(plan) if key in self.places}
        return places or ({xdevice.cpu()} if keys_of(plan) & set(ARRAYS) else set())

    def is_right(self, key: str, value: Any, place: xdevice.Device) -> bool:
        """Whether a leaf is on a device with the values of its key, or is no tensor and the very same object."""
        if key not in TENSORS + MODELS:
            return value is self.leaves[key]
        if xdevice.device_of(value) is not place:
            return False
        return key in MODELS or xdevice.to_numpy(value).tolist() == self.values[key].tolist()

    def refusal(
        self, plan: Any, target: xdevice.Device, is_copy: bool
    ) -> type[Exception] | None:
        """The error of what cannot be moved there whole."""
        keys = keys_of(plan)
        if any(is_copy or self.places[key] is not target for key in keys & set(UNKNOWN)):
            return xdevice.errors.ContainerError
        if keys & set(ARRAYS) and not keys & set(self.places) and target is not xdevice.cpu():
            return xdevice.errors.DeviceNotFoundError
        return None


def assert_refused(
    verb: Callable[[Any, Any], Any], world: World, plan: Any, target: xdevice.Device
) -> bool:
    """Whether a verb has to refuse; then it names the error, and has changed nothing."""
    error = world.refusal(plan, target, verb is xdevice.copy_to)
    if error is None:
        return False
    x = built(plan, world.leaves)
    with pytest.raises(error):
        verb(x, target)
    for key, value in held(plan, x, x):
        assert value is world.leaves[key]
        assert (
            key not in world.places
            or key in UNKNOWN
            or world.is_right(key, value, world.places[key])
        )
    return True


def check_to_device(world: World, plan: Any, target: xdevice.Device) -> None:
    if assert_refused(xdevice.to_device, world, plan, target):
        return
    x = built(plan, world.leaves)
    before = held(plan, x, x)
    moved = xdevice.to_device(x, target)
    after = held(plan, moved, x)
    assert all(world.is_right(key, value, target) for key, value in after)
    for key in keys_of(plan):
        assert len({id(value) for other, value in after if other == key}) == 1, (
            f"{key} has come apart"
        )
        if key in MODELS or world.places.get(key, target) is target:
            assert dict(after)[key] is world.leaves[key]
    if world.where(plan) <= {target}:
        assert moved is x
    assert all(
        old is new for (_, old), (_, new) in zip(before, held(plan, x, x), strict=True)
    ), "the source has changed"
    assert all(
        world.is_right(key, value, world.places[key]) for key, value in before if key in TENSORS
    )


def check_copy_to(world: World, plan: Any, target: xdevice.Device) -> None:
    if assert_refused(xdevice.copy_to, world, plan, target):
        return
    x = built(plan, world.leaves)
    copied = xdevice.copy_to(x, target)
    after = held(plan, copied, x)
    assert all(key in ARRAYS or world.is_right(key, value, target) for key, value in after)
    address = world.backend.samples().address
    for key in keys_of(plan) - set(OTHERS):
        assert len({id(value) for other, value in after if other == key}) == 1, (
            f"{key} has come apart"
        )
        new = dict(after)[key]
        assert new is not world.leaves[key]
        if key in ARRAYS:
            assert not np.shares_memory(new, world.leaves[key])
            assert new.tolist() == world.leaves[key].tolist()
        if key in TENSORS:
            assert address(new) is None or address(new) != address(world.leaves[key])
    assert all(
        world.is_right(key, value, world.places.get(key, target))
        for key, value in held(plan, x, x)
    )


def check_paths(world: World, plan: Any) -> None:
    x = built(plan, world.leaves)
    for leaf in trees.leaves(x) if not keys_of(plan) & set(UNKNOWN) else ():
        assert eval(f"x{leaf.path}", {"x": x}) is leaf.value


def check_comparing(world: World, plan: Any) -> None:
    x = built(plan, world.leaves)
    places = world.where(plan)
    assert xdevice.same_device(x) is (len(places) <= 1)
    if len(places) > 1:
        with pytest.raises(xdevice.errors.DeviceMismatchError):
            xdevice.device_of(x)
        with pytest.raises(xdevice.errors.DeviceMismatchError) as refused:
            xdevice.check_same_device(x=x)
        path, _, rest = str(refused.value).partition(" is on ")
        if not keys_of(plan) & {*MODELS, *UNKNOWN}:
            assert str(xdevice.device_of(eval(path, {"x": x}))) == rest.split(",")[0], (
                "it names another tensor"
            )
    elif places:
        assert {xdevice.device_of(x)} == {xdevice.check_same_device(x)} == places
    else:
        assert xdevice.check_same_device(x) is None
        with pytest.raises(xdevice.errors.NotATensorError):
            xdevice.device_of(x)
    assert xdevice.sync(x) is None


# the runs


def places_of(names: list[str]) -> st.SearchStrategy[dict[str, xdevice.Device]]:
    place = st.sampled_from([xdevice.device(name) for name in names])
    return st.fixed_dictionaries(dict.fromkeys((*TENSORS, *MODELS, *UNKNOWN), place))


def run(backend: str, names: list[str], data: st.DataObject) -> None:
    with xdevice.use_backend(backend) as adapter:
        has_models = adapter.samples().network(3, 1) is not None
        # NumPy's arrays in an unknown object are data that can be nowhere else
        more = () if backend == "numpy" else ARRAYS + UNKNOWN
        plan = data.draw(plans((*TENSORS, *OTHERS, *more, *(MODELS if has_models else ()))))
        places = {
            key: place
            for key, place in data.draw(places_of(names)).items()
            if key in keys_of(plan)
        }
        target = data.draw(st.sampled_from([xdevice.device(name) for name in names]))
        check_paths(World(places), plan)
        check_comparing(World(places), plan)
        check_copy_to(World(places), plan, target)
        check_to_device(World(places), plan, target)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_containers_on_the_cpu(backend: str, data: st.DataObject) -> None:
    run(backend, ["cpu:0"], data)


@pytest.mark.gpu
@pytest.mark.virtual
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_containers_on_the_cpu_and_two_gpus(backend: str, data: st.DataObject) -> None:
    with xdevice.use_backend(backend):
        if xdevice.num_gpus() < 2:
            pytest.skip(f"{backend} has {xdevice.num_gpus()} of two GPUs")
    if backend in NO_KERNELS:
        pytest.skip(f"{backend} has no kernels for this GPU")
    run(backend, ["cpu:0", "gpu:0", "gpu:1"], data)


# single containers

SHARED = np.arange(3.0)


def test_sets_are_containers():
    class Token:
        pass

    token = Token()
    moved = trees.map_leaves(
        {"s": {token}, "f": frozenset([token])}, lambda values: [3 for _ in values]
    )
    assert moved == {"s": {3}, "f": frozenset([3])}


def test_attributes_beside_the_fields_are_kept():
    thing = Plain(SHARED)
    thing.note = "added later"
    copied = xdevice.copy_to(thing, "cpu")
    assert copied.note == "added later"
    assert copied.x is not SHARED


def test_a_container_that_cannot_be_rebuilt_is_named():
    class Stubborn(frozenset):
        def __new__(cls, one, two):
            return super().__new__(cls, [one, two])

    stubborn = Stubborn(1, 2)
    assert xdevice.copy_to([stubborn], "cpu")[0] is stubborn
    with pytest.raises(xdevice.errors.ContainerError, match="Stubborn"):
        trees.map_leaves([stubborn], lambda values: [0 for _ in values])


def test_a_tuple_with_a_constructor_of_its_own_is_rebuilt():
    class Twice(tuple):
        def __new__(cls, only):
            return super().__new__(cls, [only, only])

    twice = Twice(SHARED)
    twice.note = "kept"
    copied = xdevice.copy_to([twice], "cpu")[0]
    assert type(copied) is Twice
    assert copied.note == "kept"
    assert copied[0] is copied[1] is not SHARED


def test_other_mappings_are_rebuilt():
    class Frozenish(collections.abc.Mapping):
        def __init__(self, data):
            self.data = dict(data)

        def __getitem__(self, key):
            return self.data[key]

        def __iter__(self):
            return iter(self.data)

        def __len__(self):
            return len(self.data)

    copied = xdevice.copy_to(Frozenish({"x": SHARED}), "cpu")
    assert type(copied) is Frozenish
    assert copied["x"] is not SHARED
    assert (copied["x"] == SHARED).all()


@pytest.mark.parametrize("cycle", ["list", "dict"])
def test_cycles_are_refused(cycle):
    inner = {"list": [], "dict": {}}[cycle]
    if cycle == "list":
        inner.append({"again": inner})
    else:
        inner["again"] = (inner,)
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(xdevice.errors.ContainerError, match="contains itself"):
            verb(inner, "cpu")
    with pytest.raises(xdevice.errors.ContainerError, match="contains itself"):
        xdevice.device_of(inner)
    with pytest.raises(xdevice.errors.ContainerError, match="contains itself"):
        xdevice.to_numpy(inner)


def test_classes_and_generators_pass_through():
    things = [Plain, int, (n for n in range(3)), np.float32, range(3), b"bytes"]
    assert xdevice.to_device(things, "cpu") is things


def test_empty_and_tensorless_containers():
    for container in ([], {}, (), [1, "a", None], {"x": {}}):
        assert xdevice.to_device(container, "cpu") is container
    with pytest.raises(xdevice.errors.NotATensorError, match="contains no tensor"):
        xdevice.device_of([1, 2])
    assert xdevice.same_device([], {})
    assert xdevice.check_same_device([1]) is None


class Base:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class OnSlots(Base):
    x: object


class Row(collections.namedtuple("Row", ["x", "y"])):
    pass


class Sum(collections.namedtuple("Sum", ["x", "total"])):
    __slots__ = ()

    def __new__(cls, x):
        return super().__new__(cls, x, 3)


class Named(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = SHARED


class Linked(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Described(collections.abc.Mapping):
    """Has more than its items, which a constructor of the items alone cannot know."""

    def __init__(self, data, size=0):
        self.data, self.size = dict(data), size

    def __getitem__(self, key):
        return self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


def test_slots_of_a_base_are_kept_and_copied():
    thing = OnSlots(SHARED)
    thing.hidden = [SHARED]
    copied = xdevice.copy_to(thing, "cpu")
    assert copied.hidden[0] is copied.x is not SHARED


def test_namedtuples_with_attributes_or_constructors_are_rebuilt():
    row = Row(SHARED, 1)
    row.note = {"x": SHARED}
    copied = xdevice.copy_to(row, "cpu")
    assert type(copied) is Row
    assert copied.note["x"] is copied.x is not SHARED
    total = xdevice.copy_to(Sum(SHARED), "cpu")
    assert type(total) is Sum
    assert total.total == 3
    assert total.x is not SHARED


def test_attributes_of_dicts_and_lists_are_walked():
    named, listed = Named(y=SHARED), MyList([1])
    listed.extra, listed.note = (SHARED,), "kept"
    copied = xdevice.copy_to([named, listed], "cpu")
    assert copied[0].extra is copied[0]["y"] is copied[1].extra[0] is not SHARED
    assert copied[1].note == "kept"
    assert [leaf.path for leaf in trees.leaves([named, listed])] == [
        "[0]['y']",
        "[0].extra",
        "[1][0]",
        "[1].extra[0]",
    ]


def test_attributes_of_an_ordered_dict_are_kept_and_walked():
    ordered = collections.OrderedDict(x=SHARED)
    ordered.note, ordered.y = "kept", SHARED
    for made in (
        xdevice.copy_to(ordered, "cpu"),
        xdevice.to_device([ordered, np.ones(1)], "cpu")[0],
    ):
        assert type(made) is collections.OrderedDict
        assert made.note == "kept"
        assert made.y is made["x"]
    assert xdevice.copy_to(ordered, "cpu").y is not SHARED
    assert xdevice.to_numpy(ordered).note == "kept"
    assert xdevice.split_batch(ordered, ["cpu"])[0].note == "kept"
    assert [leaf.path for leaf in trees.leaves(ordered)] == ["['x']", ".y"]


class Freezable(dict):
    """A dict whose own copies lose its attributes, like those of `addict.Dict`."""

    def __getstate__(self):
        return None


def test_attributes_that_a_dict_loses_in_its_own_copies_are_kept():
    frozen = Freezable(x=SHARED)
    frozen.is_frozen, frozen.y = True, SHARED
    copied = xdevice.copy_to(frozen, "cpu")
    assert copied.is_frozen is True
    assert copied.y is copied["x"] is not SHARED


def test_a_dict_whose_attributes_are_its_items_stays_so():
    linked = Linked(x=SHARED)
    copied = xdevice.copy_to(linked, "cpu")
    assert type(copied) is Linked
    assert copied.x is copied["x"] is not SHARED
    copied.x = 3
    assert copied["x"] == 3
    assert linked.x is SHARED


def test_namespaces_chain_maps_and_views():
    space = types.SimpleNamespace(x=SHARED, n=1)
    copied = xdevice.copy_to(space, "cpu")
    assert type(copied) is types.SimpleNamespace
    assert copied.x is not SHARED
    assert copied.n == 1

    chain = collections.ChainMap({"x": 1}, {"x": SHARED, "y": SHARED})
    copied = xdevice.copy_to(chain, "cpu")
    assert type(copied) is collections.ChainMap
    assert [list(part) for part in copied.maps] == [["x"], ["x", "y"]]
    assert copied["y"] is copied.maps[1]["x"] is not SHARED

    held = {"x": SHARED, "n": 1}
    assert xdevice.device_of(held.values()) is xdevice.cpu()
    copied = xdevice.copy_to(held.values(), "cpu")
    assert type(copied) is list
    assert copied[0] is not SHARED
    assert xdevice.copy_to(held.items(), "cpu")[1] == ("n", 1)
    views = [held.values(), held.keys()]
    assert xdevice.to_device(views, "cpu") is views


def test_a_mapping_that_would_lose_something_is_named():
    assert xdevice.copy_to(Described({"x": SHARED}), "cpu")["x"] is not SHARED
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"Described .*its attribute size would be lost"
    ):
        xdevice.copy_to(Described({"x": SHARED}, 3), "cpu")


def test_return_types_of_c_are_rebuilt():
    import time

    now = time.localtime()
    moved = trees.map_leaves([now], lambda values: [value + 0.5 for value in values])[0]
    assert type(moved) is time.struct_time
    assert moved.tm_hour == now.tm_hour + 0.5
    assert trees.leaves(now)[0].path == ".tm_year"


def test_paths_and_names_of_leaves():
    thing = {"a": [Point(1, Plain(2))], 3: types.MappingProxyType({"k": 4})}
    assert [leaf.path for leaf in trees.leaves(thing)] == [
        "['a'][0].x",
        "['a'][0].y.x",
        "['a'][0].y.y",
        "[3]['k']",
    ]
    assert trees.Tree(thing).paths()[1] == ("a", 0, "y", "x")
