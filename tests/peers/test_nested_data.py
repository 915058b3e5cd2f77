"""What accelerate, Lightning and Hugging Face's datasets document of moving nested data.

accelerate's `send_to_device` and lightning_utilities' `apply_to_collection`, which Lightning's `move_data_to_device` is
made of, are here themselves: what they move, xdevice moves too, and into the same structure.
"""

from __future__ import annotations

import collections
import dataclasses
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
from peer_laws import host, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets
    import pandas
    from accelerate.utils import find_device, honor_type, send_to_device
    from lightning_utilities.core.apply_func import apply_to_collection

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Example:
    x: Any
    count: int = 3
    kind: ClassVar[str] = "class"
    made: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass
class WithInit:
    """Its InitVar has no default, so that its constructor cannot be called with what the fields hold."""

    x: Any
    number: dataclasses.InitVar[int]

    def __post_init__(self, number):
        self.other = number


class Reads(collections.abc.Mapping):
    """A mapping that is no dict."""

    def __init__(self, items):
        self.held = dict(items)

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


def x():
    return torch.arange(4.0).reshape(2, 2)


NESTED = {
    "tensor": x,
    "list": lambda: [x(), 1, "a", None],
    "tuple": lambda: (x(), (x(),)),
    "dict": lambda: {"a": x(), "b": [x(), {"c": x()}], "n": 2.5},
    "namedtuple": lambda: Pair(x(), {"y": x()}),
    "OrderedDict": lambda: collections.OrderedDict(b=x(), a=x()),
    "defaultdict": lambda: collections.defaultdict(list, {"a": x()}),
    "UserDict": lambda: collections.UserDict(a=x()),
    "Mapping": lambda: Reads({"a": x(), "n": 1}),
    "empty": lambda: {"a": [], "b": {}, "c": ()},
    "numbers": lambda: [1, 2.0, "text", b"bytes", None, True, 1j],
    "dataclass": lambda: [Example(x()), {"in": Example([x()])}],
    "arrays": lambda: {"x": x(), "ids": np.arange(3)},
}


def flat(thing, path=()):
    """Each leaf with the way to it, and with the types on that way."""
    if isinstance(thing, collections.abc.Mapping):
        inside = list(thing.items())
    elif isinstance(thing, (list, tuple)):
        inside = list(enumerate(thing))
    elif dataclasses.is_dataclass(thing):
        inside = [
            (field.name, getattr(thing, field.name)) for field in dataclasses.fields(thing)
        ]
    else:
        return [((*path, type(thing)), thing)]
    found = [((*path, type(thing)), None)]
    for key, value in inside:
        found += flat(value, (*path, type(thing), key))
    return found


def assert_moved_alike(ours, theirs):
    assert [path for path, _ in flat(ours)] == [path for path, _ in flat(theirs)]
    for (path, mine), (_, other) in zip(flat(ours), flat(theirs), strict=True):
        if isinstance(mine, torch.Tensor):
            assert mine.device == other.device, path
            assert host(mine).tolist() == host(other).tolist()
        elif isinstance(mine, np.ndarray):
            assert mine.tolist() == other.tolist()
        else:
            assert mine == other, path


def native(place):
    return xdevice.backend("torch").to_native(place)


@pytest.mark.parametrize(
    "kind", [name for name in NESTED if name not in ("dataclass", "defaultdict")]
)
def test_as_accelerate_sends_it(kind, place):
    assert_moved_alike(
        xdevice.to_device(NESTED[kind](), place), send_to_device(NESTED[kind](), native(place))
    )


@pytest.mark.parametrize(
    "kind", [name for name in NESTED if name not in ("UserDict", "Mapping")]
)
def test_as_lightning_moves_it(kind, place):
    theirs = apply_to_collection(
        NESTED[kind](), torch.Tensor, lambda tensor: tensor.to(native(place))
    )
    assert_moved_alike(xdevice.to_device(NESTED[kind](), place), theirs)


@pytest.mark.parametrize("kind", NESTED)
def test_a_batch_of_any_structure_is_copied_and_fetched(kind, place):
    """Whatever moves on a laptop moves on a GPU, a NumPy array among tensors too."""
    for batch in (
        xdevice.copy_to(NESTED[kind](), place),
        *xdevice.prefetch([NESTED[kind]()], place),
    ):
        for (_, mine), (_, old) in zip(flat(batch), flat(NESTED[kind]()), strict=True):
            if isinstance(old, torch.Tensor):
                assert place_of(mine) is place
            if hasattr(old, "shape"):
                assert host(mine).tolist() == host(old).tolist()


@pytest.mark.parametrize("kind", NESTED)
def test_the_device_is_found_as_accelerate_finds_it(kind):
    moved = xdevice.to_device({"x": NESTED[kind]()}, "gpu:1")
    theirs = find_device(moved)
    if theirs is not None and kind != "arrays":
        assert native(xdevice.device_of(moved)) == theirs
    if kind in ("empty", "numbers"):
        assert theirs is None
        assert xdevice.check_same_device(moved) is None


def test_an_array_beside_tensors_stays_where_arrays_are(place):
    """accelerate and Lightning leave it."""
    moved = xdevice.to_device({"x": x(), "ids": np.arange(3)}, place)
    assert type(moved["ids"]) is np.ndarray
    assert moved["ids"].tolist() == [0, 1, 2]
    assert place_of(moved["x"]) is place


class Movable:
    """Lightning and accelerate: whatever has `.to` moves itself."""

    def __init__(self, held=None):
        self.held = x() if held is None else held

    def to(self, device):
        return type(self)(self.held.to(device))


class TakesMore(Movable):
    def to(self, device, non_blocking=False):
        return type(self)(self.held.to(device, non_blocking=non_blocking))


class TakesAnything(Movable):
    def to(self, *args, **kwargs):
        return type(self)(self.held.to(*args, **kwargs))


class InPlace(Movable):
    def to(self, device):
        self.held = self.held.to(device)
        return self


class Forgetful(Movable):
    """Lightning: a `.to` that forgets to return the object has moved it in place."""

    def to(self, device):
        self.held = self.held.to(device)


@pytest.mark.parametrize("cls", [Movable, TakesMore, TakesAnything, InPlace, Forgetful])
def test_what_has_a_to_of_its_own_moves_itself(cls, place):
    moved = xdevice.to_device({"own": cls(), "list": [cls()], "x": x()}, place)
    for thing in (moved["own"], moved["list"][0], xdevice.to_device(cls(), place)):
        assert type(thing) is cls
        assert place_of(thing.held) is place
        assert host(thing.held).tolist() == x().tolist()
    assert xdevice.check_same_device(batch=moved) is place


@pytest.mark.parametrize("cls", [Movable, TakesMore, TakesAnything, InPlace, Forgetful])
def test_a_copy_of_what_moves_itself_leaves_its_source(cls, place):
    source = cls()
    held = source.held
    copied = xdevice.copy_to({"own": source}, place)["own"]
    assert copied is not source
    assert source.held is held
    assert place_of(held) is xdevice.cpu()
    assert place_of(copied.held) is place
    assert copied.held.data_ptr() != held.data_ptr()


@pytest.mark.parametrize("cls", [Movable, TakesMore, TakesAnything, InPlace, Forgetful])
def test_what_moves_itself_is_fetched(cls, place):
    for batch in xdevice.prefetch([{"own": cls()}, {"own": cls()}], place):
        assert type(batch["own"]) is cls
        assert place_of(batch["own"].held) is place


def test_what_a_to_raises_is_told():
    class Broken:
        def __init__(self):
            self.held = x()

        def to(self, device):
            raise ValueError("not today")

    with pytest.raises((ValueError, xdevice.errors.XDeviceError), match="not today"):
        xdevice.to_device({"x": x(), "broken": Broken()}, "gpu:1")


def test_a_class_with_a_to_is_no_object_with_one():
    batch = {"class": Movable, "x": x()}
    assert xdevice.to_device(batch, "gpu:1")["class"] is Movable


def test_something_else_called_to_is_left():
    """As the end of an interval, or a recipient."""
    Span = collections.namedtuple("Span", ["start", "to"])
    message = Span("a", "b")
    moved = xdevice.to_device({"x": x(), "message": message}, "gpu:1")
    assert moved["message"] == message


def test_lightnings_dataclasses(place):
    theirs = apply_to_collection(
        WithInit(x(), 7), torch.Tensor, lambda tensor: tensor.to(native(place))
    )
    moved = xdevice.to_device(WithInit(x(), 7), place)
    assert moved.other == theirs.other == 7
    assert place_of(moved.x) is place
    assert xdevice.to_device(Example(x()), place).kind == "class"
    assert honor_type((1,), iter([2])) == (2,)


# datasets


def table():
    made = {
        "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "label": [0, 1, 2],
        "text": ["a", "b", "c"],
    }
    return datasets.Dataset.from_dict(made)


def test_batches_of_a_dataset_in_torchs_format(place):
    batches = list(xdevice.prefetch(table().with_format("torch").iter(batch_size=2), place))
    assert [type(batch) for batch in batches] == [dict, dict]
    assert [xdevice.device_of(batch) for batch in batches] == [place, place]
    assert torch.cat([batch["x"] for batch in batches]).tolist() == table()["x"][:]
    assert batches[0]["text"] == ["a", "b"]


def test_a_loader_over_a_dataset(place):
    loader = torch.utils.data.DataLoader(table().with_format("torch"), batch_size=3)
    (batch,) = xdevice.prefetch(loader, place)
    assert xdevice.device_of(batch) is place
    assert batch["label"].tolist() == [0, 1, 2]


def test_batches_of_a_dataset_in_numpys_format(place):
    with xdevice.use_backend("torch"):
        (batch,) = xdevice.prefetch(table().with_format("numpy").iter(batch_size=3), place)
    assert place_of(batch["x"]) is place
    assert batch["x"].tolist() == table()["x"][:]
    assert list(batch["text"]) == ["a", "b", "c"]


def test_a_format_makes_tensors_on_a_device(place):
    rows = table().with_format("torch", device=str(native(place)))
    assert xdevice.device_of(rows[:2]) is place
    assert xdevice.to_device(rows[:2], "cpu")["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_the_lazy_batches_of_map(place):
    """`map` hands over a mapping that formats its columns when they are read."""

    def doubled(batch):
        moved = xdevice.to_device(batch, place)
        assert place_of(moved["x"]) is place
        assert place_of(batch["x"]) is xdevice.cpu()
        assert batch["text"] == moved["text"]
        return {"double": xdevice.to_numpy(moved["x"] * 2)}

    made = (
        table()
        .with_format("torch")
        .map(doubled, batched=True, batch_size=3, load_from_cache_file=False)
    )
    assert made["double"][:].tolist() == [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]


def test_a_format_of_jax():
    xdevice.backend("jax")
    rows = table().with_format("jax")[:]
    moved = xdevice.to_device({"x": rows["x"], "text": rows["text"]}, "gpu:1")
    assert place_of(moved["x"]) is xdevice.gpu(1)


@pytest.mark.parametrize("name", ["torch", "tensorflow", "paddle", "mxnet", "jax", "numpy"])
def test_a_column_of_pandas_becomes_a_tensor(name):
    with xdevice.use_backend(name):
        assert xdevice.to_numpy(xdevice.tensor(pandas.Series([1.5, 2.0]))).tolist() == [
            1.5,
            2.0,
        ]
        missing = xdevice.to_numpy(xdevice.tensor(pandas.Series([1, None], dtype="Int64")))
        assert missing[0] == 1.0
        assert np.isnan(missing[1])  # as NumPy reads what is missing; never a number
