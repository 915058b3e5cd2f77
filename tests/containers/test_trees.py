"""Containers, on NumPy: structure, types, shared references and non-tensors survive."""

from __future__ import annotations

import collections
import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xdevice
from xdevice.containers import trees

Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Plain:
    x: object
    y: object = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    late: object = dataclasses.field(init=False, default="set")


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: object


class MyList(list):
    pass


class MyDict(dict):
    pass


class MyTuple(tuple):
    __slots__ = ()


SHARED = np.arange(3.0)
LEAVES = st.sampled_from([SHARED]) | st.builds(lambda n: np.full(2, n), st.integers(0, 9))
LEAVES = LEAVES | st.integers() | st.text(max_size=3) | st.none() | st.booleans()


def nested(inside):
    pairs = st.tuples(inside, inside)
    by_name = st.dictionaries(st.text(max_size=3), inside, max_size=3)
    listed = st.lists(inside, max_size=3)
    return st.one_of(
        listed,
        listed.map(tuple),
        listed.map(collections.deque),
        listed.map(MyList),
        listed.map(MyTuple),
        by_name,
        by_name.map(collections.OrderedDict),
        by_name.map(lambda d: collections.defaultdict(list, d)),
        by_name.map(collections.UserDict),
        by_name.map(types.MappingProxyType),
        by_name.map(MyDict),
        pairs.map(lambda p: Point(*p)),
        pairs.map(lambda p: Plain(*p)),
        inside.map(Frozen),
        inside.map(Slotted),
    )


def assert_copied(old, new, copies):
    """`new` is `old` with every array replaced by one equal array of its own, the same wherever it stands."""
    assert type(new) is type(old)
    if isinstance(old, np.ndarray):
        assert new is not old
        assert (new == old).all()
        assert copies.setdefault(id(old), new) is new
    elif dataclasses.is_dataclass(old):
        for field in dataclasses.fields(old):
            assert_copied(getattr(old, field.name), getattr(new, field.name), copies)
    elif isinstance(old, (dict, collections.UserDict, types.MappingProxyType)):
        assert list(old) == list(new)
        for key in old:
            assert_copied(old[key], new[key], copies)
        assert getattr(old, "default_factory", None) is getattr(new, "default_factory", None)
    elif isinstance(old, (list, tuple, collections.deque)):
        assert len(old) == len(new)
        for a, b in zip(old, new, strict=True):
            assert_copied(a, b, copies)
    else:
        assert new is old


@given(nested(st.recursive(LEAVES, nested, max_leaves=12)))
def test_copying_keeps_everything_but_the_tensors(container):
    assert_copied(container, xdevice.copy_to(container, "cpu"), {})


@given(nested(st.recursive(LEAVES, nested, max_leaves=12)))
def test_moving_where_it_is_gives_the_same_container(container):
    assert xdevice.to_device(container, "cpu") is container


@given(nested(st.recursive(LEAVES, nested, max_leaves=12)))
def test_leaves_can_be_reached_by_their_paths(container):
    for leaf in trees.leaves(container):
        assert eval(f"container{leaf.path}", {"container": container}) is leaf.value


def test_sets_are_containers():
    class Token:
        pass

    token = Token()
    moved = trees.map_leaves({"s": {token}, "f": frozenset([token])}, lambda values: [3 for _ in values])
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
    with pytest.raises(xdevice.ContainerError, match="Stubborn"):
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


@pytest.mark.parametrize("cycle", ["list", "dict", "dataclass"])
def test_cycles_are_refused(cycle):
    inner = {"list": [], "dict": {}, "dataclass": Plain(None)}[cycle]
    if cycle == "list":
        inner.append({"again": inner})
    elif cycle == "dict":
        inner["again"] = (inner,)
    else:
        inner.x = [inner]
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(xdevice.ContainerError, match="contains itself"):
            verb(inner, "cpu")
    with pytest.raises(xdevice.ContainerError, match="contains itself"):
        xdevice.device_of(inner)
    with pytest.raises(xdevice.ContainerError, match="contains itself"):
        xdevice.to_numpy(inner)


def test_classes_and_generators_pass_through():
    things = [Plain, int, (n for n in range(3)), np.float32, range(3), b"bytes"]
    assert xdevice.to_device(things, "cpu") is things


def test_empty_and_tensorless_containers():
    for container in ([], {}, (), [1, "a", None], {"x": {}}):
        assert xdevice.to_device(container, "cpu") is container
    with pytest.raises(xdevice.NotATensorError, match="holds no tensor"):
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


class Listed(list):
    pass


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
    named, listed = Named(y=SHARED), Listed([1])
    listed.extra, listed.note = (SHARED,), "kept"
    copied = xdevice.copy_to([named, listed], "cpu")
    assert copied[0].extra is copied[0]["y"] is copied[1].extra[0] is not SHARED
    assert copied[1].note == "kept"
    assert [leaf.path for leaf in trees.leaves([named, listed])] == ["[0]['y']", "[0].extra", "[1][0]", "[1].extra[0]"]


def test_attributes_of_an_ordered_dict_are_kept_and_walked():
    ordered = collections.OrderedDict(x=SHARED)
    ordered.note, ordered.y = "kept", SHARED
    for made in (xdevice.copy_to(ordered, "cpu"), xdevice.to_device([ordered, np.ones(1)], "cpu")[0]):
        assert type(made) is collections.OrderedDict
        assert made.note == "kept"
        assert made.y is made["x"]
    assert xdevice.copy_to(ordered, "cpu").y is not SHARED
    assert xdevice.to_numpy(ordered).note == "kept"
    assert xdevice.split_batch(ordered, ["cpu"])[0].note == "kept"
    assert [leaf.path for leaf in trees.leaves(ordered)] == ["['x']", ".y"]


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
    with pytest.raises(xdevice.ContainerError, match=r"Described .*its size would be lost"):
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
    assert [leaf.path for leaf in trees.leaves(thing)] == ["['a'][0].x", "['a'][0].y.x", "['a'][0].y.y", "[3]['k']"]
    assert trees.Tree(thing).paths()[1] == ("a", 0, "y", "x")
