"""The verbs on containers, against one reference of what they mean: on every backend, in containers made by hypothesis.

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
from helpers.environment import BACKENDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xdevice

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
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = dataclasses.field(init=False)


class MyDict(dict):
    pass


class MyList(list):
    pass


class Lying(list):
    def __len__(self):
        return 10**9


@xdevice.register
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
    "list with an attribute": Kind(lambda x, y: _with_attribute(MyList([x]), y), lambda d: (d[0], d.y)),
    "UserList": Kind(lambda x, y: collections.UserList([x, y]), _by_index),
    "deque": Kind(lambda x, y: collections.deque([x, y], maxlen=2), _by_index),
    "tuple": Kind(lambda x, y: (x, y), _by_index),
    "namedtuple": Kind(Point, _by_index),
    "namedtuple of its own": Kind(lambda x, y: Checked(both=(x, y)), _by_index),
    "dataclass": Kind(Plain, _by_attribute),
    "frozen dataclass": Kind(_frozen, _by_attribute),
    "SimpleNamespace": Kind(lambda x, y: types.SimpleNamespace(x=x, y=y), _by_attribute),
    "partial": Kind(lambda x, y: functools.partial(Plain, x, y=y), lambda p: (p.args[0], p.keywords["y"])),
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
    return st.recursive(leaf, lambda inner: st.tuples(st.sampled_from(list(KINDS)), inner, inner), max_leaves=8).filter(
        lambda plan: not isinstance(plan, str)
    )


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
        self.values = {key: np.array([i + 0.5, -i, 2.0**20 + i], "float32") for i, key in enumerate(TENSORS)}
        self.leaves: dict[str, Any] = {**OTHERS, "a0": np.arange(3.0)}
        self.backend = xdevice.backend()
        self.makers = {"t": self.tensor, "m": self.model, "u": lambda key, place: UNSEEN[key](self.tensor("t0", place))}
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

    def refusal(self, plan: Any, target: xdevice.Device, is_copy: bool) -> type[Exception] | None:
        """The error of what cannot be moved there whole."""
        keys = keys_of(plan)
        if any(is_copy or self.places[key] is not target for key in keys & set(UNKNOWN)):
            return xdevice.ContainerError
        if keys & set(ARRAYS) and not keys & set(self.places) and target is not xdevice.cpu():
            return xdevice.DeviceNotFoundError
        return None


def assert_refused(verb: Callable[[Any, Any], Any], world: World, plan: Any, target: xdevice.Device) -> bool:
    """Whether a verb has to refuse; then it names the error, and has changed nothing."""
    error = world.refusal(plan, target, verb is xdevice.copy_to)
    if error is None:
        return False
    x = built(plan, world.leaves)
    with pytest.raises(error):
        verb(x, target)
    for key, value in held(plan, x, x):
        assert value is world.leaves[key]
        assert key not in world.places or key in UNKNOWN or world.is_right(key, value, world.places[key])
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
        assert len({id(value) for other, value in after if other == key}) == 1, f"{key} has come apart"
        if key in MODELS or world.places.get(key, target) is target:
            assert dict(after)[key] is world.leaves[key]
    if world.where(plan) <= {target}:
        assert moved is x
    assert all(old is new for (_, old), (_, new) in zip(before, held(plan, x, x), strict=True)), (
        "the source has changed"
    )
    assert all(world.is_right(key, value, world.places[key]) for key, value in before if key in TENSORS)


def check_copy_to(world: World, plan: Any, target: xdevice.Device) -> None:
    if assert_refused(xdevice.copy_to, world, plan, target):
        return
    x = built(plan, world.leaves)
    copied = xdevice.copy_to(x, target)
    after = held(plan, copied, x)
    assert all(key in ARRAYS or world.is_right(key, value, target) for key, value in after)
    address = world.backend.samples().address
    for key in keys_of(plan) - set(OTHERS):
        assert len({id(value) for other, value in after if other == key}) == 1, f"{key} has come apart"
        new = dict(after)[key]
        assert new is not world.leaves[key]
        if key in ARRAYS:
            assert not np.shares_memory(new, world.leaves[key])
            assert new.tolist() == world.leaves[key].tolist()
        if key in TENSORS:
            assert address(new) is None or address(new) != address(world.leaves[key])
    assert all(world.is_right(key, value, world.places.get(key, target)) for key, value in held(plan, x, x))


def check_comparing(world: World, plan: Any) -> None:
    x = built(plan, world.leaves)
    places = world.where(plan)
    assert xdevice.same_device(x) is (len(places) <= 1)
    if len(places) > 1:
        with pytest.raises(xdevice.DeviceMismatchError):
            xdevice.device_of(x)
        with pytest.raises(xdevice.DeviceMismatchError) as refused:
            xdevice.check_same_device(x=x)
        path, _, rest = str(refused.value).partition(" is on ")
        if not keys_of(plan) & {*MODELS, *UNKNOWN}:
            assert str(xdevice.device_of(eval(path, {"x": x}))) == rest.split(",")[0], "it names another tensor"
    elif places:
        assert {xdevice.device_of(x)} == {xdevice.check_same_device(x)} == places
    else:
        assert xdevice.check_same_device(x) is None
        with pytest.raises(xdevice.NotATensorError):
            xdevice.device_of(x)
    assert xdevice.sync(x) is None


# the runs


def places_of(names: list[str]) -> st.SearchStrategy[dict[str, xdevice.Device]]:
    place = st.sampled_from([xdevice.device(name) for name in names])
    return st.fixed_dictionaries(dict.fromkeys((*TENSORS, *MODELS, *UNKNOWN), place))


def run(backend: str, names: list[str], data: st.DataObject) -> None:
    with xdevice.use(backend) as adapter:
        has_models = adapter.samples().network(3, 1) is not None
        # NumPy's arrays in an unknown object are data that can be nowhere else
        more = () if backend == "numpy" else ARRAYS + UNKNOWN
        plan = data.draw(plans((*TENSORS, *OTHERS, *more, *(MODELS if has_models else ()))))
        places = {key: place for key, place in data.draw(places_of(names)).items() if key in keys_of(plan)}
        target = data.draw(st.sampled_from([xdevice.device(name) for name in names]))
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
    with xdevice.use(backend):
        if xdevice.num_gpus() < 2:
            pytest.skip(f"{backend} has {xdevice.num_gpus()} of two GPUs")
    run(backend, ["cpu:0", "gpu:0", "gpu:1"], data)
