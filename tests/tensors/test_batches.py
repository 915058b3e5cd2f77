"""Batches: what is told of dicts, lists and tuples of tensors without a walk is what the walk tells."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xdevice
from xdevice.core import registry
from xdevice.tensors import contents

Point = collections.namedtuple("Point", ["x", "y"])


class Odd:
    """Holds a tensor, and is known to nobody."""

    def __init__(self, x):
        self.x = x


MIXED = [
    np.ones(2),
    np.array([1, None], dtype=object),
    3,
    2.5,
    "text",
    b"bytes",
    None,
    True,
    1j,
]
"""What stands beside tensors."""


def drawn(what, numbers):
    """What `filled` puts something for: Hypothesis cannot print all of it."""
    return numbers.map(lambda i: (what, i))


def nested(inside):
    return st.one_of(
        st.lists(inside, max_size=4),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2) | st.integers() | st.none(), inside, max_size=3),
    )


def rarely(inside):
    """What is not a batch, or not by its keys."""
    return st.one_of(
        st.tuples(inside, inside).map(lambda two: Point(*two)),
        st.lists(inside, max_size=2).map(lambda xs: collections.OrderedDict(enumerate(xs))),
        st.lists(inside, max_size=2).map(lambda xs: {(i, "key"): x for i, x in enumerate(xs)}),
        inside.map(Odd),
    )


TENSORS = drawn("tensor", st.integers(0, 9))
PURE = st.recursive(TENSORS | drawn("mixed", st.integers(2, 8)), nested, max_leaves=12)
ANY = st.recursive(
    TENSORS | drawn("mixed", st.integers(0, len(MIXED) - 1)),
    lambda x: nested(x) | rarely(x),
    max_leaves=8,
)


def tensors(xd):
    """Of several kinds, on two devices where the backend has them, and of all backends that are loaded."""
    here = xdevice.cpu()
    there = xd.samples().other_device() or here
    made = [xdevice.tensor([float(i)], device=here) for i in range(3)]
    made += [xdevice.to_device(xdevice.tensor([5.0], device=here), there)]
    if xd.name == "torch":
        made += [xd.framework.nn.Parameter(made[0])]
    made += [
        other.full((1,), 1.0, here, "float32")
        for other in registry.list_loaded()
        if other is not xd
    ]
    return made, (here, there, xdevice.gpu(7), xdevice.device("npu:0"))


def filled(x, made):
    """A container in which tensors stand for their numbers."""
    if type(x) is tuple and len(x) == 2 and x[0] == "tensor":
        return made[x[1] % len(made)]
    if type(x) is tuple and len(x) == 2 and x[0] == "mixed":
        return MIXED[x[1]]
    if type(x) in (list, tuple):
        return type(x)(filled(one, made) for one in x)
    if isinstance(x, Point):
        return Point(*(filled(one, made) for one in x))
    if type(x) is Odd:
        return Odd(filled(x.x, made))
    if isinstance(x, dict):
        return type(x)(
            (filled(key, made) if type(key) is not tuple else key, filled(x[key], made))
            for key in x
        )
    return x


def seen(x, olds, news):
    """What can be told of a result: types, which objects are old and which the same, and where the tensors are."""
    name = olds.get(id(x))
    if isinstance(x, list | tuple):
        return name, type(x).__name__, [seen(one, olds, news) for one in x]
    if isinstance(x, dict):
        return name, type(x).__name__, list(x), [seen(one, olds, news) for one in x.values()]
    if name is None and type(x) in registry.probes:
        news.append(x)  # kept, so that no other gets its id
        name = f"new {[id(one) for one in news].index(id(x))}"
        return (
            name,
            type(x).__name__,
            xdevice.device_of(x),
            tuple(x.shape),
            getattr(x, "requires_grad", None),
        )
    return name if name is not None or isinstance(x, Odd) else x


def walked(x):
    yield x
    if isinstance(x, list | tuple | dict):
        for one in x.values() if isinstance(x, dict) else x:
            yield from walked(one)


def told(verb, x, *args):
    """What a verb gives or raises."""
    try:
        result = verb(x, *args)
    except xdevice.errors.XDeviceError as error:
        return type(error).__name__, str(error)
    olds = {
        id(one): i
        for i, one in enumerate(walked(x))
        if isinstance(one, list | tuple | dict) or id(one) in KNOWN
    }
    return (
        result if isinstance(result, bool | xdevice.Device | None) else seen(result, olds, [])
    )


KNOWN: dict[int, object] = {}


def both(patch, verb, x, *args):
    quick = told(verb, x, *args)
    with patch.context() as slow:
        slow.setattr(contents, "flatten_batch", lambda _: None)
        return quick, told(verb, x, *args)


VERBS = [
    *(
        lambda x, place, verb=verb: verb(x, place)
        for verb in (xdevice.to_device, xdevice.copy_to)
    ),
    lambda x, place: xdevice.device_of(x),
    lambda x, place: xdevice.same_device(x),
    lambda x, place: xdevice.same_device(3 if type(x) is tuple else [], x),
    lambda x, place: xdevice.check_same_device(x, [x], name=x),
]


@pytest.mark.parametrize("kind", ["batches", "others"])
def test_the_fast_way_gives_what_the_long_way_gives(xd, kind, monkeypatch):
    made, places = tensors(xd)
    KNOWN.clear()
    KNOWN.update((id(one), one) for one in [*made, *MIXED])

    @settings(max_examples=30, deadline=None)
    @given(nested(PURE if kind == "batches" else ANY), st.sampled_from(places))
    def check(x, place):
        x = filled(x, made[:5] if kind == "batches" else made)
        for number, verb in enumerate(VERBS):
            quick, slow = both(monkeypatch, verb, x, place)
            assert quick == slow, number

    check()


def test_lists_that_hold_one_list_twice_are_walked_once_each(xd):
    x = xdevice.tensor([1.0], device="cpu")
    nested = x
    for _ in range(30):
        nested = [nested, nested]
    assert xdevice.to_device(nested, "cpu") is nested
    assert xdevice.device_of(nested) is xdevice.cpu()
    copied = xdevice.copy_to(nested, "cpu")
    for _ in range(30):
        assert copied[0] is copied[1]
        copied = copied[0]
    assert type(copied) is type(x)
    assert copied is not x


@pytest.fixture
def there(xd):
    device = xd.samples().other_device()
    return pytest.skip("one device") if device is None else device


@pytest.fixture
def asked(xd, monkeypatch):
    """How many tensors each call of `move_all` gets."""
    counts = []
    move_all = type(xd).move_all

    def noted(self, tensors, device):
        counts.append(len(tensors))
        return move_all(self, tensors, device)

    monkeypatch.setattr(type(xd), "move_all", noted)
    return counts


@pytest.mark.virtual
def test_every_container_gets_one_wait(there, asked):
    for make in (
        list,
        lambda xs: collections.OrderedDict(enumerate(xs)),
        lambda xs: {"label": np.ones(1), "xs": xs},
    ):
        asked.clear()
        xdevice.to_device(
            make([xdevice.tensor([float(i)], device="cpu") for i in range(3)]), there
        )
        assert asked == [3]


@pytest.mark.virtual
def test_parameters_beside_their_model_leave_nothing_to_move(xd, there, asked):
    for make in xd.samples().models().values():
        model = make()
        for one in list(xd.samples().variables(model).values())[:1]:
            xdevice.to_device({"one": one, "net": model}, there)
    assert 0 not in asked
