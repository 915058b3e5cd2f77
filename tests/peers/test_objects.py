"""Objects of Python's own and of attrs and pydantic: their attributes are walked, and no constructor runs again."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import types
import warnings
from typing import Any, ClassVar, NamedTuple

import pytest
from peer_laws import Laws, Peer, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import attrs
    import pydantic

made: collections.Counter[str] = collections.Counter()


def x():
    return torch.arange(6.0).reshape(3, 2)


def y():
    return torch.arange(3)


# attrs


@attrs.define
class Slotted:
    x: Any
    y: Any
    note: str = "kept"

    def __attrs_post_init__(self):
        made["Slotted"] += 1


@attrs.frozen
class Frozen:
    x: Any
    _y: Any
    note: str = "kept"


@attrs.define(slots=False)
class Open:
    x: Any
    y: Any = attrs.field(init=False)
    note: str = attrs.field(default="kept", kw_only=True)


@attrs.define
class Checked:
    """Its converter would make a list of any new value, its validator takes none but tensors."""

    x: Any = attrs.field(
        converter=lambda value: value + 1, validator=attrs.validators.instance_of(torch.Tensor)
    )
    y: Any = attrs.field(on_setattr=attrs.setters.frozen)
    note: str = "kept"


@attrs.define
class Derived(Slotted):
    extra: Any = attrs.field(factory=dict)


def open_attrs():
    made = Open(x())
    made.y = y()
    made.late = "not a field"
    return made


def checked():
    return Checked(x() - 1, y())


# pydantic


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    x: torch.Tensor
    y: Any
    note: str = "kept"
    _private: Any = pydantic.PrivateAttr(default=None)

    def model_post_init(self, context):
        made["Model"] += 1


class FrozenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        arbitrary_types_allowed=True, frozen=True, extra="forbid"
    )

    x: torch.Tensor
    y: torch.Tensor
    note: str = "kept"


class ExtraModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        arbitrary_types_allowed=True, extra="allow", validate_assignment=True
    )

    x: torch.Tensor
    note: str = "kept"

    @pydantic.field_validator("x")
    @classmethod
    def _on_the_host(cls, value):
        assert value.device.type == "cpu", "a constructor or a validator ran on what has moved"
        return value


class OuterModel(pydantic.BaseModel):
    inner: Model
    parts: list[Model]


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(arbitrary_types_allowed=True))
class PydanticDataclass:
    x: torch.Tensor
    y: torch.Tensor
    note: str = "kept"


def model():
    made = Model(x=x(), y={"deep": y()})
    made._private = torch.ones(2)
    return made


# dataclasses


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any
    note: str = "kept"
    version: ClassVar[int] = 2

    def __post_init__(self):
        made["Plain"] += 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    x: Any
    y: Any
    note: str = "kept"


@dataclasses.dataclass(slots=True)
class SlottedBase:
    x: Any


@dataclasses.dataclass
class OnSlots(SlottedBase):
    y: Any
    note: str = "kept"


class BareSlots:
    __slots__ = ("y",)


@dataclasses.dataclass
class OnBareSlots(BareSlots):
    """`y` is an attribute of the base, and not a field."""

    x: Any
    note: str = "kept"


@dataclasses.dataclass
class Seeded:
    x: Any
    seed: dataclasses.InitVar[int]
    y: Any = dataclasses.field(init=False)
    note: str = dataclasses.field(default="kept", repr=False)

    def __post_init__(self, seed):
        self.y = y() + seed - 1


@dataclasses.dataclass
class Unset:
    """Its second field has no value yet."""

    x: Any
    y: Any
    late: Any = dataclasses.field(init=False)
    note: str = "kept"


def on_bare_slots():
    made = OnBareSlots(x())
    made.y = y()
    return made


def with_more():
    made = Plain(x(), y())
    made.late = {"deep": "not a field"}
    return made


# namespaces and tuples


class Pair(NamedTuple):
    x: Any
    y: Any
    note: str = "kept"


class PairWithMore(collections.namedtuple("PairWithMore", ["x", "y", "note"])):
    """A subclass without __slots__ has attributes."""


class PairOfItsOwn(collections.namedtuple("PairOfItsOwn", ["x", "y", "note"])):
    __slots__ = ()

    def __new__(cls, both):
        return super().__new__(cls, both[0], both[1], "kept")


def pair_with_more():
    made = PairWithMore(x(), y(), "kept")
    made.late = "an attribute"
    return made


class DictWithMore(dict):
    """As a config that is a dict with attributes."""


class ListWithMore(list):
    pass


def dict_with_more():
    made = DictWithMore(x=x())
    made.y = y()
    made.note = "kept"
    return made


def list_with_more():
    made = ListWithMore([x()])
    made.y = y()
    made.note = "kept"
    return made


def both(thing):
    return {
        "x": thing.x,
        "y": getattr(thing, "_y", None) if isinstance(thing, Frozen) else thing.y,
    }


def notes(thing):
    return thing.note, getattr(thing, "late", None), made.total()


def peer(make, tensors=both, facts=notes, **more):
    return Peer(make, tensors, facts, **more)


def silently(make):
    """What the constructors of the tests' own objects count does not count."""

    def made_without_counting():
        before = collections.Counter(made)
        thing = make()
        made.clear()
        made.update(before)
        return thing

    return made_without_counting


class TestAttrs(Laws):
    peers = {
        "slotted": peer(silently(lambda: Slotted(x(), y())), splits=True),
        "frozen": peer(lambda: Frozen(x(), y()), splits=True),
        "open": peer(open_attrs),
        "checked": peer(checked),
        "derived": peer(
            silently(lambda: Derived(x(), y(), extra={"z": y()})),
            lambda d: {**both(d), "z": d.extra["z"]},
        ),
    }


class TestPydantic(Laws):
    peers = {
        "model": peer(
            silently(model),
            lambda m: {"x": m.x, "y": m.y["deep"], "private": m._private},
            lambda m: (m.note, m.model_fields_set, made.total()),
        ),
        "frozen": peer(
            lambda: FrozenModel(x=x(), y=y()),
            facts=lambda m: (m.note, m.model_fields_set),
            splits=True,
        ),
        "extra": peer(
            lambda: ExtraModel(x=x(), y=y(), tag="more"),
            facts=lambda m: (m.note, m.tag, list(m.model_extra)),
        ),
        "outer": peer(
            silently(lambda: OuterModel(inner=model(), parts=[model()])),
            lambda m: {"x": m.inner.x, "y": m.parts[0].y["deep"]},
            lambda m: (m.inner.note, made.total()),
        ),
        "dataclass": peer(lambda: PydanticDataclass(x=x(), y=y()), splits=True),
    }


class TestDataclasses(Laws):
    peers = {
        "plain": peer(silently(lambda: Plain(x(), y())), splits=True),
        "more attributes": peer(silently(with_more)),
        "frozen, slots": peer(lambda: Strict(x=x(), y=y()), splits=True),
        "slotted base": peer(lambda: OnSlots(x(), y())),
        "attribute of a slotted base": peer(on_bare_slots),
        "InitVar": peer(lambda: Seeded(x(), 1)),
        "not set": peer(lambda: Unset(x(), y()), facts=lambda u: (u.note, hasattr(u, "late"))),
        "list inside": peer(
            silently(lambda: Plain([x()], y())), lambda p: {"x": p.x[0], "y": p.y}
        ),
    }


class TestNamespaces(Laws):
    peers = {
        "SimpleNamespace": peer(
            lambda: types.SimpleNamespace(
                x=x(), y=y(), note="kept", inner=types.SimpleNamespace(z=y())
            ),
            lambda n: {"x": n.x, "y": n.y, "z": n.inner.z},
            splits=True,
        ),
        "argparse": peer(lambda: argparse.Namespace(x=x(), y=y(), note="kept"), splits=True),
        "NamedTuple": peer(lambda: Pair(x(), y()), splits=True),
        "namedtuple with attributes": peer(pair_with_more),
        "namedtuple with __new__": peer(lambda: PairOfItsOwn((x(), y()))),
        "dict with attributes": peer(dict_with_more, lambda d: {"x": d["x"], "y": d.y}),
        "list with attributes": peer(list_with_more, lambda d: {"x": d[0], "y": d.y}),
    }


def test_frozen_ones_stay_frozen(place):
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            verb(Frozen(x(), y()), place).x = 1
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            verb(FrozenModel(x=x(), y=y()), place).x = x()
        with pytest.raises(dataclasses.FrozenInstanceError):
            verb(Strict(x=x(), y=y()), place).note = 1
    moved = xdevice.to_device(checked(), place)
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        moved.y = 1


def test_they_go_on_as_before(place):
    moved = xdevice.to_device(model(), place)
    assert moved.model_copy().x is moved.x
    assert set(moved.model_dump()) == {"x", "y", "note"}
    assert attrs.evolve(xdevice.to_device(Frozen(x(), y()), place), note="new").note == "new"
    assert (
        place_of(dataclasses.replace(xdevice.to_device(OnSlots(x(), y()), place), note="new").x)
        is place
    )
    assert xdevice.to_device(Pair(x(), y()), place)._asdict()["note"] == "kept"


class Unknown:
    def __init__(self, **inside):
        vars(self).update(inside)


@pytest.mark.parametrize(
    "verb", [xdevice.to_device, xdevice.copy_to, lambda *args: list(xdevice.prefetch(*args))]
)
def test_a_type_that_nobody_knows_does_not_stay_behind_unnoticed(verb):
    """A line would make it known."""
    batch = {"args": Unknown(x=x(), n=3), "x": x()}
    with pytest.raises(xdevice.errors.ContainerError, match=r"args.*Unknown.*register"):
        verb(batch if verb in (xdevice.to_device, xdevice.copy_to) else [batch], "gpu:1")
    assert xdevice.device_of(batch) is xdevice.cpu()
    assert xdevice.to_device({"args": Unknown(n=3), "x": x()}, "gpu:1")["args"].n == 3


def test_dict_views_do_not_stay_behind_unnoticed(place):
    """They cannot be rebuilt: they move as a list, or are refused, or comparing names them."""
    batch = {"values": {"x": x()}.values()}
    try:
        moved = xdevice.to_device(batch, place)
    except xdevice.errors.ContainerError:
        return
    (inside,) = moved["values"]
    if place_of(inside) is not place:
        with pytest.raises(xdevice.errors.DeviceMismatchError, match="values"):
            xdevice.check_same_device(there=xdevice.ones(2, device=place), batch=moved)
