"""Objects that are neither tensors nor models nor containers: walked if registered, moved if they can move themselves,
and never left behind without a word. On every backend; where one has a second device, to that and back."""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import itertools
import operator
import threading
import types
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS
from helpers.tensors import ones

import xdevice
from xdevice.containers import strangers, trees
from xdevice.contract import Way


@pytest.fixture(params=FRAMEWORKS)
def backend(request):
    return xdevice.backend(request.param)


class Holder:
    """Holds tensors, and neither moves itself nor is known."""

    def __init__(self, *inside):
        self.inside = list(inside)


class Slotted:
    __slots__ = ("__x", "note")

    def __init__(self, x):
        self.__x = x


class Moving:
    """Moves itself as objects of PyTorch, Paddle and MXNet do."""

    def __init__(self, x, note="kept"):
        self.x = x
        self.note = note

    def to(self, native):
        return Moving(xdevice.to_device(self.x, native), self.note)

    as_in_ctx = to


class Quantity:
    """Its `to` means something else."""

    def __init__(self, x):
        self.x = x

    def to(self, unit):
        raise ValueError(f"{unit} is no unit")

    as_in_ctx = to


@pytest.fixture
def _forgetting():
    """What a test registers is gone after it."""
    from xdevice.containers import ways

    before = dict(ways.registered)
    yield
    ways.registered.clear()
    ways.registered.update(before)
    trees.forget()


def test_what_would_stay_behind_is_named_before_anything_moves(backend, there):
    first = ones(backend)
    batch = {"x": first, "cache": [Holder(3, {"k": ones(backend)})]}
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"\['cache'\]\[0\] is .*Holder.*xdevice.register_container\(Holder\)",
    ):
        xdevice.to_device(batch, there)
    with pytest.raises(xdevice.errors.ContainerError, match="Holder"):
        xdevice.copy_to(batch, there)
    assert batch["x"] is first
    with pytest.raises(
        xdevice.errors.NotATensorError, match=r"xdevice.register_container\(Holder\)"
    ):
        xdevice.to_device(Holder(ones(backend)), there)
    for inside in (Slotted(ones(backend)), Holder((Slotted(ones(backend)),))):
        with pytest.raises(xdevice.errors.ContainerError, match=r"xdevice\.register"):
            xdevice.to_device([inside], there)


def test_an_object_that_is_there_or_holds_nothing_passes(backend, there):
    batch = [Holder(ones(backend)), Holder("text"), Quantity(3), Slotted(None)]
    assert xdevice.to_device(batch, "cpu") is batch
    nothing = [Holder("text"), Quantity(3), ones(backend)]
    moved = xdevice.to_device(nothing, there)
    assert moved[:2] == nothing[:2]
    full = [Holder("text")]
    assert xdevice.to_device(full, there) is full
    # the next one of a type may hold what the first did not
    full[0].inside.append(ones(backend))
    with pytest.raises(xdevice.errors.ContainerError, match="Holder"):
        xdevice.to_device(full, there)


def test_comparing_counts_what_is_in_strangers(backend, there):
    here, far = ones(backend), ones(backend, there)
    assert xdevice.check_same_device({"x": here, "cache": Holder(here)}) is xdevice.cpu()
    assert not xdevice.same_device([far, Holder(here)])
    assert xdevice.same_device([far, Holder(far), Holder()])
    with pytest.raises(xdevice.errors.DeviceMismatchError) as told:
        xdevice.check_same_device(batch={"x": far, "cache": Holder(here)})
    text = str(told.value)
    assert text.startswith("batch['cache'].inside[0] is on cpu:0, but batch['x'] is on ")
    assert "xdevice.register_container(Holder)" in text
    with pytest.raises(xdevice.errors.DeviceMismatchError, match="Holder"):
        xdevice.device_of([far, Holder(here)])
    xdevice.sync([far, Holder(here)])


def test_what_can_move_itself_does(backend, there):
    x = Moving(ones(backend))
    if backend.moves_by is None:
        with pytest.raises(xdevice.errors.ContainerError, match="Moving"):
            xdevice.to_device([x], there)
        return
    moved = xdevice.to_device({"a": x, "b": [x]}, there)
    assert moved["a"] is moved["b"][0]
    assert type(moved["a"]) is Moving
    assert xdevice.device_of(moved) is xdevice.device_of(moved["a"]) is there
    assert xdevice.device_of(x) is xdevice.cpu()
    assert xdevice.to_device(moved["a"], there) is moved["a"]
    if there.kind != "meta":
        assert xdevice.device_of(xdevice.to_device(moved["a"], "cpu")) is xdevice.cpu()
    copied = xdevice.copy_to([x], "cpu")[0]
    assert copied.x is not x.x
    assert (xdevice.to_numpy(copied.x) == xdevice.to_numpy(x.x)).all()


class Batch:
    """Moves itself in place and says nothing, and leaves its bookkeeping on the host, for some objects only."""

    def __init__(self, x, on_host=True):
        self.x = {"deep": x}
        self.slices = {"deep": xdevice.copy_to(x, "cpu")}
        self.on_host = on_host

    def to(self, native):
        self.x = xdevice.to_device(self.x, native)
        if not self.on_host:
            self.slices = xdevice.to_device(self.slices, native)

    as_in_ctx = to


class Renamed:
    """Gives another object, which lacks nothing but the move of one slot."""

    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, native):
        return Renamed(xdevice.to_device(self.x, native), self.y)

    as_in_ctx = to


class Deep:
    """Holds an object whose method forgets a tensor."""

    def __init__(self, inner):
        self.inner = inner

    def to(self, native):
        self.inner.to(native)
        return self

    as_in_ctx = to


FORGETTING = {
    "in place": (Batch, r"\.slices\['deep'\]"),
    "in a new object": (lambda x: Renamed(x, xdevice.copy_to(x, "cpu")), r"\.y"),
    "deep inside": (lambda x: Deep(Batch(x)), r"\.inner\.slices\['deep'\]"),
}


@pytest.mark.parametrize(("make", "path"), FORGETTING.values(), ids=FORGETTING)
def test_what_a_method_of_its_own_forgets_is_named(backend, there, make, path):
    if backend.moves_by is None:
        pytest.skip("nothing around this framework moves itself")
    for verb in (xdevice.to_device, xdevice.copy_to):
        for batch in (make(ones(backend)), {"a": make(ones(backend)), "b": ones(backend)}):
            with pytest.raises(
                xdevice.errors.ContainerError,
                match=rf"\(\) left {path} on cpu:0; call xdevice\.register_container\(",
            ):
                verb(batch, there)
    x = make(ones(backend))
    x = x.to(there) or x
    assert not xdevice.same_device(x)
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xdevice.device_of([x])


def test_what_one_object_does_is_not_believed_of_another(backend, there):
    if backend.moves_by is None:
        pytest.skip("nothing around this framework moves itself")
    first, second = Batch(ones(backend)), Batch(ones(backend), on_host=False)
    first.x = xdevice.to_device(first.x, there)
    second.x = xdevice.to_device(second.x, there)
    assert not xdevice.same_device(first)
    assert xdevice.device_of(xdevice.to_device([second], there)[0].slices) is there
    assert xdevice.device_of(second) is there


@pytest.mark.usefixtures("_forgetting")
def test_a_registration_says_what_stays_on_the_host(backend, there):
    def rebuild(old, inside):
        new = Batch.__new__(Batch)
        new.x, new.slices = inside["x"], old.slices
        return new

    xdevice.register_container(Batch, flatten=lambda batch: {"x": batch.x}, rebuild=rebuild)
    moved = xdevice.to_device({"a": Batch(ones(backend)), "b": ones(backend)}, there)
    assert xdevice.device_of(moved) is there
    assert xdevice.device_of(moved["a"].slices) is xdevice.cpu()


@pytest.mark.parametrize(
    ("name", "counts"), [("slices", False), ("slices_of", True), ("my_slices", True)]
)
def test_only_the_attribute_of_that_name_stays(backend, name, counts):
    """An attribute whose name contains the word decides where the object is, as any other."""
    way = Way(move=lambda x, device: x, stays=("slices",))
    deep = types.SimpleNamespace(**{name: [ones(backend)]})
    found = strangers.find(Holder(deep), way, with_host=True)
    assert [one.path for one in found.parts] == [f".inside[0].{name}[0]"] * counts


@pytest.mark.usefixtures("_forgetting")
def test_a_registered_move_that_forgets_a_tensor_is_named(backend, there):
    xdevice.register_container(
        Renamed, move=lambda x, device: Renamed(xdevice.to_device(x.x, device), x.y)
    )
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"the move of Renamed left \.y on cpu:0"
    ):
        xdevice.to_device([Renamed(ones(backend), ones(backend))], there)


@pytest.mark.parametrize("inside", [Holder, Moving])
def test_no_verb_passes_over_what_is_in_strangers(backend, inside):
    batch = {"x": ones(backend), "cache": inside(ones(backend))}
    verbs = [
        lambda x: xdevice.split_batch(x, ["cpu", "cpu"]),
        lambda x: xdevice.parallel.gather([x, x], "cpu"),
        lambda x: xdevice.parallel.replicate(x, ["cpu"]),
        lambda x: xdevice.convert(x, "numpy"),
        lambda x: xdevice.parity.compare(x, x),
        xdevice.to_numpy,
    ]
    for verb in verbs:
        for x in (batch, batch["cache"]):
            with pytest.raises(
                xdevice.errors.ContainerError,
                match=rf"{inside.__name__}.*xdevice.register_container",
            ):
                verb(x)
    with pytest.raises(xdevice.errors.NotATensorError, match="cache"):
        xdevice.parallel.all_reduce([batch, batch])


def test_what_would_stay_behind_is_named_by_prefetch(backend, there):
    if there.kind != "gpu":
        pytest.skip("prefetch needs a device that holds values")
    for batch in (
        {"cache": Holder(ones(backend))},
        {"x": ones(backend), "cache": Holder(ones(backend))},
    ):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"batch\['cache'\] is an object of type Holder, .*xdevice.register_container",
        ):
            list(xdevice.prefetch([batch], there))


@pytest.mark.virtual
def test_a_tensor_in_an_array_of_objects_does_not_stay_behind_in_prefetch(backend):
    array = np.array([ones(backend), None], object)
    for batch in (array, [array, ones(backend)]):
        with pytest.raises(xdevice.errors.ContainerError, match=r"ndarray.*tensors on cpu:0"):
            list(xdevice.prefetch([batch], "gpu:1"))
    (fetched,) = xdevice.prefetch([[np.array(["x", None], object), ones(backend)]], "gpu:1")
    assert fetched[0].tolist() == ["x", None]


def test_namespaces_are_walked(backend, there):
    x = argparse.Namespace(x=ones(backend), inner=types.SimpleNamespace(y=ones(backend)), n=3)
    moved = xdevice.to_device(x, there)
    assert type(moved) is argparse.Namespace
    assert moved.n == 3
    assert xdevice.device_of(moved) is xdevice.device_of(moved.inner.y) is there


def test_a_broadcast_of_arrays_beside_tensors_goes_where_a_copy_does(backend, there):
    import numpy as np

    array = np.arange(3)
    (copied,) = xdevice.parallel.broadcast({"n": array, "x": ones(backend)}, [there])
    assert copied["n"].tolist() == [0, 1, 2]
    assert xdevice.device_of(copied) is there
    with pytest.raises(xdevice.errors.ContainerError, match="Holder"):
        xdevice.parallel.broadcast([Holder(ones(backend))], [there])


def test_what_refuses_to_move_itself_is_named(backend, there):
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"Quantity.*xdevice.register_container\(Quantity"
    ):
        xdevice.to_device([Quantity(ones(backend))], there)


def test_what_only_seems_to_move_itself_is_named(backend, there):
    if backend.moves_by is None:
        pytest.skip("nothing around this framework moves itself")

    class Lazy(Moving):
        def to(self, native):
            return self

        as_in_ctx = to

    with pytest.raises(xdevice.errors.ContainerError, match="left its tensors where they were"):
        xdevice.to_device([Lazy(ones(backend))], there)


class Graph:
    """Moves the tensors among its parts, in place, and leaves what it does not know."""

    def __init__(self, **parts):
        self.parts = parts

    def to(self, native):
        known = {name: x for name, x in self.parts.items() if not isinstance(x, Holder)}
        self.parts.update(xdevice.to_device(known, native))
        return self

    as_in_ctx = to


def test_what_a_method_of_its_own_leaves_beside_what_it_moves_is_named(backend, there):
    if backend.moves_by is None:
        pytest.skip("nothing around this framework moves itself")
    assert xdevice.device_of(xdevice.to_device(Graph(x=ones(backend), n=3), there)) is there
    x = Graph(x=ones(backend), o=Holder(ones(backend)))
    for verb in (xdevice.copy_to, xdevice.to_device):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"left \.parts\['o'\]\.inside\[0\] on cpu:0; .*Graph",
        ):
            verb([x], there)
    if there.kind != "meta":  # from where nothing comes back
        assert xdevice.device_of(x) is xdevice.cpu()


@pytest.mark.usefixtures("_forgetting")
def test_registered_types_are_walked(backend, there):
    class Game:
        def __init__(self, board):
            self.board = board
            self.moves = 3

    class Chess(Game):
        pass

    games = [Game(ones(backend)), Chess({"x": ones(backend)})]
    # seen before it is registered
    with pytest.raises(xdevice.errors.ContainerError, match="Game"):
        xdevice.to_device(games, there)
    assert xdevice.register_container(Game) is Game
    moved = xdevice.to_device(games, there)
    assert [type(game) for game in moved] == [Game, Chess]
    assert [game.moves for game in moved] == [3, 3]
    assert xdevice.device_of(moved) is xdevice.device_of(moved[1]) is there
    assert xdevice.device_of(games) is xdevice.cpu()
    assert [leaf.path for leaf in trees.leaves(games)][::2] == ["[0].board", "[1].board['x']"]
    assert xdevice.to_device(games, "cpu") is games


@pytest.mark.usefixtures("_forgetting")
def test_types_are_registered_by_functions(backend, there):
    class Pair:
        def __init__(self, a, b):
            self.hidden = lambda: (a, b)

    xdevice.register_container(
        Pair,
        flatten=lambda pair: list(pair.hidden()),
        rebuild=lambda pair, inside: Pair(*inside),
    )
    pair = Pair(ones(backend), "b")
    moved = xdevice.to_device({"pair": pair}, there)["pair"]
    assert moved.hidden()[1] == "b"
    assert xdevice.device_of(moved) is xdevice.device_of(moved.hidden()[0]) is there

    xdevice.register_container(
        Pair,
        flatten=lambda x: {"a": x.hidden()[0]},
        rebuild=lambda x, new: Pair(new["a"], "new"),
    )
    assert [leaf.path for leaf in trees.leaves([pair])] == ["[0]['a']"]
    assert xdevice.copy_to(pair, "cpu").hidden()[1] == "new"


@pytest.mark.usefixtures("_forgetting")
def test_types_are_registered_with_a_move(backend, there):
    asked = []

    def move(x, device):
        asked.append(device)
        return Holder(*xdevice.to_device(x.inside, device))

    xdevice.register_container(Holder, move=move)
    holder = Holder(ones(backend))
    moved = xdevice.to_device([holder, holder], there)
    assert moved[0] is moved[1]
    assert asked == [there]
    assert xdevice.device_of(moved) is there
    copied = xdevice.copy_to(holder, "cpu")
    assert copied.inside[0] is not holder.inside[0]


@pytest.mark.usefixtures("_forgetting")
def test_wrong_registrations_are_named():
    cases = [
        ((3,), {}, "expects a type"),
        ((Holder("x"),), {}, r"xdevice.register_container\(Holder\)"),
        ((dict,), {}, "a built-in type"),
        ((type(ones(xdevice.backend("numpy"))),), {}, "tensor in numpy"),
        ((Holder,), {"flatten": list}, "both flatten and rebuild"),
        ((Holder,), {"rebuild": list}, "both flatten and rebuild"),
        ((Holder,), {"flatten": list, "rebuild": list, "move": list}, "not both"),
        ((Holder,), {"move": 3}, "a function as move"),
    ]
    for args, kwargs, match in cases:
        with pytest.raises(xdevice.errors.ContainerError, match=match):
            xdevice.register_container(*args, **kwargs)

    xdevice.register_container(Holder, flatten=lambda x: 3, rebuild=lambda x, inside: x)
    with pytest.raises(
        xdevice.errors.ContainerError, match="flatten function for Holder returned 3"
    ):
        xdevice.to_device([Holder()], "cpu")


@pytest.mark.slow
def test_dead_types_are_forgotten():
    from dataclasses import make_dataclass

    def use_one(number):
        cls = make_dataclass(f"Row{number}", ["x"])
        plain = type(f"Plain{number}", (), {})
        things = [cls(ones(xdevice.backend("numpy"))), plain()]
        xdevice.copy_to(things, "cpu")
        xdevice.same_device(things)
        return weakref.ref(cls), weakref.ref(plain)

    seen = [use_one(number) for number in range(500)]
    gc.collect()
    assert not [1 for pair in seen for ref in pair if ref() is not None]


def test_devices_of_absurd_indexes_are_forgotten():
    far = xdevice.gpu(10**6)
    assert xdevice.gpu(10**6) is far
    gone = weakref.ref(xdevice.gpu(10**6 + 1))
    gc.collect()
    assert gone() is None


def test_arrays_of_the_host_are_data_beside_tensors(backend, there):
    import numpy as np

    array = np.arange(3)
    batch = {"n": array, "x": ones(backend), "deep": [array]}
    moved = xdevice.to_device(batch, there)
    assert moved["n"] is moved["deep"][0] is array
    assert xdevice.device_of(moved) is xdevice.check_same_device(moved) is there
    assert xdevice.same_device(moved, moved["x"])
    copied = xdevice.copy_to(batch, there)
    assert copied["n"] is not array
    assert (copied["n"] == array).all()
    assert not xdevice.same_device(array, moved["x"])
    assert xdevice.device_of([array]) is xdevice.cpu()


def test_arrays_alone_do_not_go_to_a_gpu():
    import numpy as np

    with pytest.raises(
        xdevice.errors.DeviceNotFoundError,
        match=r"\['a'\]\[0\] .*xdevice.tensor\(x, device='gpu:0'\)",
    ):
        xdevice.to_device({"a": [np.ones(1)]}, "gpu:0")
    with pytest.raises(xdevice.errors.DeviceNotFoundError, match=r"xdevice.convert"):
        xdevice.to_device(np.ones(1), "gpu:0")


def test_a_method_of_the_same_name_that_gives_something_else_is_named(backend):
    if backend.moves_by is None:
        pytest.skip("nothing around this framework moves itself")

    class Table:
        def __init__(self, x):
            self.x = x

        def to(self, form):
            return f"as {form}"

        as_in_ctx = to

    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"returned an object of type str without tensors.*xdevice.register_container\(",
    ):
        xdevice.copy_to([Table(ones(backend))], "cpu")


def test_a_list_of_linked_objects_is_looked_through(backend, there):
    class Node:
        def __init__(self, next):
            self.next = next

    x = ones(backend)
    empty = full = None
    for _ in range(3000):
        empty, full = Node(empty), Node(full or x)
    assert xdevice.device_of([empty, full]) is xdevice.cpu()
    with pytest.raises(xdevice.errors.ContainerError, match="would stay behind"):
        xdevice.to_device([full], there)
    batch = [empty, ones(backend, there)]
    assert xdevice.to_device(batch, there) is batch


def test_what_stands_for_something_else_is_told_by_that(backend, there):
    wrapt = pytest.importorskip("wrapt")
    number, table, tensor = (
        wrapt.ObjectProxy(x) for x in (3, {"x": ones(backend)}, ones(backend))
    )
    for inside in (table, tensor, table):  # one type, of several natures
        assert xdevice.device_of([inside]) is xdevice.cpu()
        with pytest.raises(xdevice.errors.ContainerError):
            xdevice.to_device([inside, number], there)
    batch = [number, ones(backend, there)]
    assert xdevice.to_device(batch, there) is batch


def test_a_mock_is_of_no_class_that_it_says(backend, there):
    class Row:
        def __init__(self):
            self.mocks = [Mock(spec=dict), Mock(spec=list)]

    batch = [
        Row(),
        Mock(spec=dict),
        Mock(spec=tuple),
        Mock(spec=type(ones(backend))),
        ones(backend, there),
    ]
    assert xdevice.to_device(batch, there) is batch
    assert xdevice.device_of(batch) is there


def test_the_wrapped_dicts_and_the_variables_of_tensorflow_are_seen():
    import tensorflow as tf

    class Step:
        def __init__(self):
            with tf.device("CPU:0"):
                self.count = tf.Variable(1.0)

    there = xdevice.backend("tensorflow").samples().other_device()
    if there is None:
        pytest.skip("TensorFlow has one device here")
    step = Step()
    for inside in (step, tf.train.Checkpoint(count=step.count)):
        assert xdevice.device_of([inside]) is xdevice.cpu()
        with pytest.raises(xdevice.errors.ContainerError, match="would stay behind"):
            xdevice.to_device([inside], there)
    far = xdevice.to_device(ones(xdevice.backend("tensorflow")), there)
    with pytest.raises(
        xdevice.errors.DeviceMismatchError, match=r"\[0\]\.count\S* is on cpu:0"
    ):
        xdevice.check_same_device(batch=[step, far])


def test_the_lists_and_tuples_of_tensorflows_modules_are_rebuilt(tmp_path):
    import tensorflow as tf

    there = xdevice.backend("tensorflow").samples().other_device()
    if there is None:
        pytest.skip("TensorFlow has one device here")
    pair = collections.namedtuple("pair", ["x", "y"])
    x = ones(xdevice.backend("tensorflow"))
    module = tf.Module()
    module.listed, module.tuple, module.pair = [x, [x]], (x, [x]), pair(x, [x])
    for held in (module.listed, module.tuple, module.pair):
        for verb in (xdevice.to_device, xdevice.copy_to):
            moved = verb([held], there)[0]
            assert type(moved) is type(held)
            assert xdevice.device_of(moved) is there
            assert moved[1][0].shape == (2,)
        assert xdevice.device_of(held) is xdevice.cpu()
        assert xdevice.to_numpy(held)[0].tolist() == [1, 1]
    assert xdevice.to_device(module.pair, there).x.shape == (2,)
    module.listed = xdevice.to_device(module.listed, there)
    # TensorFlow refuses lists that were written into
    tf.train.Checkpoint(module=module).save(tmp_path / "module")


def test_tensorflows_dataclasses_are_walked():
    import tensorflow as tf

    class Batch(tf.experimental.ExtensionType):
        # no texts
        __annotations__ = {"x": tf.Tensor, "more": tuple[tf.Tensor, ...], "name": str}

        def total(self):
            return tf.reduce_sum(self.x) + sum(map(tf.reduce_sum, self.more))

    there = xdevice.backend("tensorflow").samples().other_device()
    if there is None:
        pytest.skip("TensorFlow has one device here")
    x = ones(xdevice.backend("tensorflow"))
    batch = Batch(x, (x, x), "mine")
    assert xdevice.to_device(batch, "cpu") is batch
    for verb in (xdevice.to_device, xdevice.copy_to):
        for moved in (verb(batch, there), verb([batch], there)[0]):
            assert type(moved) is Batch
            assert xdevice.device_of(moved) is there
            assert moved.name == "mine"
            assert xdevice.item(moved.total()) == 6
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"batch\.more\[0\] is on"):
        xdevice.check_same_device(batch=Batch(xdevice.to_device(x, there), (x,), ""))


def test_a_model_of_paddles_goes_with_its_network_and_optimizer(there_of_paddle):
    paddle = xdevice.backend("paddle").framework
    x = ones(xdevice.backend("paddle"))
    with xdevice.cpu():
        net = paddle.nn.Linear(2, 2)
    model = paddle.Model(net)
    model.prepare(paddle.optimizer.Adam(parameters=net.parameters()), paddle.nn.MSELoss())
    rows = np.ones((1, 2), "float32")
    model.train_batch([rows], [rows])
    assert xdevice.device_of(model) is xdevice.cpu()
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"copying a paddle\.Model.*create paddle\.Model"
    ):
        xdevice.copy_to([model, x], "cpu")
    for given, there in ((model, there_of_paddle), ([model, x], "cpu")):
        assert xdevice.device_of(xdevice.to_device(given, there)) is xdevice.device(there)
        assert xdevice.device_of(net) is xdevice.device(there)
        assert xdevice.device_of(model._optimizer) is xdevice.device(there)


@pytest.mark.filterwarnings("ignore:The program will return to single-card operation")
def test_a_layer_of_paddles_is_copied_or_named(there_of_paddle):
    paddle = xdevice.backend("paddle").framework
    net = paddle.nn.Sequential(paddle.DataParallel(paddle.nn.Linear(2, 2)))
    copied = xdevice.copy_to([net, 3], there_of_paddle)[0]
    assert xdevice.device_of(copied) is there_of_paddle
    assert copied[0]._layers.weight.shape == [2, 2]
    assert copied[0]._layers.weight is not net[0]._layers.weight
    net.lock = threading.Lock()
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"copying this Sequential \(cannot pickle .*lock.*set_state_dict",
    ):
        xdevice.copy_to(net, "cpu")


@pytest.fixture
def there_of_paddle():
    if "paddle" not in xdevice.backends():
        pytest.skip("Paddle is not installed")
    return xdevice.backend("paddle").samples().other_device() or xdevice.cpu()


# what Python itself keeps tensors in


def taking(*inside, **named):
    return inside, named


class Owner:
    def __init__(self, x):
        self.x = x

    def method(self):
        return self.x


UNSEEN = {
    "a bound method": lambda x: Owner(x).method,
    "a built-in bound method": lambda x: [x].append,
    "an iterator": lambda x: iter([x]),
    "a reversed iterator": lambda x: reversed([x]),
    "an iterator over values": lambda x: iter({"x": x}.values()),
    "zip": lambda x: zip([1], (x,), strict=True),
    "enumerate": lambda x: enumerate([x]),
    "itertools": lambda x: itertools.chain([1], [x]),
    "a call of a method": lambda x: operator.methodcaller("add", x),
    "an array of objects": lambda x: object_array(x),
    "a partial in an object": lambda x: Holder(functools.partial(taking, x)),
    "a slice in an object": lambda x: Holder(slice(Owner(x))),
    "an array of objects in an object": lambda x: Holder(object_array(x)),
    "a mapping proxy in an object": lambda x: Holder(types.MappingProxyType({"x": x})),
}


def object_array(x):
    import numpy as np

    array = np.empty(2, object)
    array[0] = x
    return array


@pytest.mark.parametrize("make", UNSEEN.values(), ids=UNSEEN)
def test_what_python_keeps_in_c_is_seen(backend, there, make):
    inside = make(ones(backend))
    batch = {"x": ones(backend), "it": inside}
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(
            xdevice.errors.ContainerError, match=r"\['it'\] is an? .* would stay behind"
        ):
            verb(batch, there)
    assert xdevice.device_of(batch) is xdevice.cpu()
    assert xdevice.to_device(batch, "cpu") is batch
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"batch\['it'\]"):
        xdevice.check_same_device(batch={"it": inside, "x": ones(backend, there)})
    without = make(3)
    beside = xdevice.to_device([without, ones(backend)], there)
    assert beside[0] is without or isinstance(without, Holder)


def test_what_cannot_be_registered_is_not_told_to_be():
    x = ones(xdevice.backend("torch"))
    for inside in (iter([x]), Owner(x).method, object_array(x), x.untyped_storage(), {x: 3}):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match="put its contents in a list or dict",
        ):
            xdevice.copy_to([inside], "cpu")


def test_partials_and_slices_are_walked(backend, there):
    class Named(functools.partial):
        pass

    x = ones(backend)
    for kind in (functools.partial, Named):
        batch = [kind(taking, x, 3, scale=x), slice(x, None, [x])]
        moved = xdevice.to_device(batch, there)
        assert type(moved[0]) is kind
        (one, three), named = moved[0]()
        assert three == 3
        assert one is named["scale"] is moved[1].start is moved[1].step[0]
        assert xdevice.device_of(moved) is xdevice.device_of(one) is there
        assert batch[0].args[0] is x
    named = Named(taking, 3)
    named.note = ones(backend)
    (moved,) = xdevice.to_device([named], there)
    assert xdevice.device_of(moved.note) is there
    assert named.note is not moved.note
    nothing = [functools.partial(taking, 3), slice(3), x]
    moved = xdevice.to_device(nothing, there)
    assert moved[:2] == nothing[:2]
    assert [leaf.path for leaf in trees.leaves([batch[1]])] == [
        "[0].start",
        "[0].stop",
        "[0].step[0]",
    ]


def test_keys_that_hold_tensors_are_never_replaced(backend, there):
    key = Owner(ones(backend))
    for kind in (
        dict,
        collections.OrderedDict,
        MyDict,
        types.MappingProxyType,
        collections.UserDict,
    ):
        for inside in (key, (3, key)):
            batch = [kind({inside: ones(backend), "x": 3})]
            for verb in (xdevice.to_device, xdevice.copy_to):
                with pytest.raises(
                    xdevice.errors.ContainerError,
                    match=r"\[0\]\.keys\(\) is an object of type tuple of keys, .* contains tensors",
                ):
                    verb(batch, there)
            assert xdevice.device_of(batch) is xdevice.cpu()
            assert xdevice.to_device(batch, "cpu") is batch
            far = [kind({inside: ones(backend, there)})]
            with pytest.raises(
                xdevice.errors.DeviceMismatchError, match=r"batch\[0\]\.keys\(\)"
            ):
                xdevice.check_same_device(batch=far)
            (back,) = xdevice.to_device(far, "cpu") if there.kind == "gpu" else far
            assert type(back) is kind
            assert list(back) == [inside]
    plain = {(1, 2): ones(backend), Holder: 3, None: 4}
    moved = xdevice.to_device(plain, there)
    assert list(moved) == list(plain)
    assert xdevice.device_of(moved) is there


class MyDict(dict):
    pass


class Unhashable(type):
    __hash__ = None


class Unasked(type):
    def __getattr__(cls, name):
        raise RuntimeError(name)


def failing(name):
    def fail(self, *_):
        raise RuntimeError(name)

    return fail


class Closed(type):
    __dict__ = property(failing("__dict__"))


HOSTILE = {
    "a type without a hash": Unhashable("Hostile", (), {}),
    "a type that is not to be asked": Unasked("Hostile", (), {}),
    "a type without a __dict__": Closed("Hostile", (), {}),
    "__class__": type("Hostile", (), {"__class__": property(failing("__class__"))}),
    "__dict__": type("Hostile", (), {"__dict__": property(failing("__dict__"))}),
    "__repr__": type("Hostile", (), {"__repr__": failing("__repr__")}),
    "__getattr__": type(
        "Hostile", (), {"__slots__": ("x",), "__getattr__": failing("__getattr__")}
    ),
    "__getattribute__": type("Hostile", (), {"__getattribute__": failing("__getattribute__")}),
    "__len__": type("Hostile", (list,), {"__len__": failing("__len__")}),
    "a length that lies": type("Hostile", (list,), {"__len__": lambda self: 10**9}),
    "a tuple's length that lies": type("Hostile", (tuple,), {"__len__": lambda self: 10**9}),
}


@pytest.mark.parametrize("cls", HOSTILE.values(), ids=HOSTILE)
def test_hostile_objects_pass_through_if_they_hold_nothing(backend, there, cls):
    x = cls()
    for inside in (
        [x, ones(backend)],
        {"x": x, "y": ones(backend)},
        [Holder(x), ones(backend)],
    ):
        moved = xdevice.to_device(inside, there)
        assert xdevice.device_of(moved) is xdevice.check_same_device(moved) is there
        assert xdevice.same_device(moved)
        xdevice.copy_to(inside, "cpu")
        xdevice.sync(inside)
        xdevice.to_numpy([x, ones(backend)])
        xdevice.convert([x, ones(backend)], "numpy")
        with pytest.raises(
            xdevice.errors.ContainerError
            if there.kind == "gpu"
            else xdevice.errors.XDeviceError
        ):
            xdevice.to_device([*([inside] * 2), Holder(ones(backend))], there)


@pytest.mark.parametrize(
    "name", ["__dict__", "__class__", "a type without a hash", "a type that is not to be asked"]
)
def test_hostile_objects_that_hold_tensors_do_not_stay_behind(backend, there, name):
    cls = HOSTILE[name]
    x = cls()
    object.__setattr__(x, "kept", ones(backend))
    if name == "__dict__":
        x = cls()
        x.kept = ones(backend)
    with pytest.raises(
        xdevice.errors.ContainerError,
        match="Hostile, which xdevice does not know; it contains tensors",
    ):
        xdevice.to_device([x], there)


def test_an_error_is_told_although_repr_fails():
    x = HOSTILE["__repr__"]()
    for verb in (
        lambda: xdevice.to_device(x, "cpu"),
        lambda: xdevice.device_of(x),
        lambda: xdevice.convert(x, "numpy"),
    ):
        with pytest.raises(xdevice.errors.NotATensorError, match=r"<.*Hostile object at 0x"):
            verb()
    assert trees.leaves([{x: 3}])[0].path.startswith("[0][<")


def test_lists_are_read_by_their_iterators(backend, there):
    for name in ("a length that lies", "a tuple's length that lies"):
        moved = xdevice.to_device([HOSTILE[name]([ones(backend), 3])], there)[0]
        assert type(moved) is HOSTILE[name]
        first, second = iter(moved)
        assert second == 3
        assert xdevice.device_of(first) is there


# once in a process that has one
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_and_futures_of_pytorch_are_seen():
    import torch

    there = xdevice.backend("torch").samples().other_device()
    if there is None:
        pytest.skip("PyTorch has one device here")
    pending, full, failed = (
        torch.futures.Future(),
        torch.futures.Future(),
        torch.futures.Future(),
    )
    full.set_result({"x": torch.ones(2)})
    failed.set_exception(ValueError("no"))
    x = torch.ones(2)
    for inside in (
        full,
        x.untyped_storage(),
        torch.storage.TypedStorage(
            wrap_storage=x.untyped_storage(), dtype=x.dtype, _internal=True
        ),
    ):
        assert xdevice.device_of([inside]) is xdevice.cpu()
        with pytest.raises(xdevice.errors.ContainerError, match="would stay behind"):
            xdevice.to_device([inside, x], there)
    batch = [pending, failed, x]
    assert xdevice.to_device(batch, there)[:2] == batch[:2]


def test_tables_of_pandas_are_seen(backend, there):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"n": [1.0, 2.0], "x": object_array(ones(backend))})
    for inside in (table, table["x"], pandas.Index(object_array(Owner(ones(backend))))):
        assert xdevice.device_of([inside]) is xdevice.cpu()
        with pytest.raises(xdevice.errors.ContainerError, match="would stay behind"):
            xdevice.to_device([inside], there)
    plain = [table[["n"]], pandas.Series(["a", "b"]), ones(backend)]
    moved = xdevice.to_device(plain, there)
    assert moved[0] is plain[0]
    assert moved[1] is plain[1]
