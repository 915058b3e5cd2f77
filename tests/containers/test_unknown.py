"""What is on no list: mappings with several values of a key, sequences in C, objects too large to search, proxies, what
shares. It survives whole, or is refused by name; it is never left behind without a word. On every backend."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import queue
import sys
import weakref

import pytest
from helpers.environment import FRAMEWORKS
from helpers.tensors import ones

import xdevice


@pytest.fixture(params=FRAMEWORKS)
def backend(request):
    return xdevice.backend(request.param)


def network(backend):
    with xdevice.use_backend(backend.name):
        net = backend.samples().network(2, 2)
    if net is None:
        pytest.skip(f"{backend.name} has no models")
    return net


class Holder:
    def __init__(self, **inside):
        vars(self).update(inside)


def assert_refused(x, there, match):
    """Everywhere, and nothing passes for being where it is not."""
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(xdevice.errors.ContainerError, match=match):
            verb(x, there)
    with pytest.raises(xdevice.errors.ContainerError, match=match):
        xdevice.to_numpy(x)


def assert_seen(x, backend, there):
    assert not xdevice.same_device(x, ones(backend, there))
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xdevice.check_same_device(x, ones(backend, there))


# too large


def large(**inside):
    return Holder(rows=[Holder(n=n) for n in range(11_000)], **inside)


@pytest.mark.parametrize("with_tensor", [False, True])
def test_what_is_too_large_to_search_is_named(backend, there, with_tensor):
    batch = {"x": ones(backend), "deep": [large(x=[ones(backend)]) if with_tensor else large()]}
    verbs = [
        lambda: xdevice.to_device(batch, there),
        lambda: xdevice.copy_to(batch, there),
        lambda: xdevice.device_of(batch),
        lambda: xdevice.same_device(batch, ones(backend, there)),
        lambda: xdevice.check_same_device(batch),
        lambda: xdevice.sync(batch),
        lambda: xdevice.to_numpy(batch),
        lambda: list(xdevice.prefetch([batch], "cpu")),
    ]
    for verb in verbs:
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"Holder contains more than 10,000 .*xdevice.register_container\(Holder",
        ):
            verb()
    with pytest.raises(xdevice.errors.ContainerError, match=r"^\['deep'\]\[0\]: .*Holder"):
        xdevice.device_of(batch)
    assert xdevice.device_of(batch["x"]) is xdevice.cpu()


def test_the_line_that_it_names_makes_it_pass(backend, there):
    table = type("Table", (Holder,), {})  # another one each time: what is registered stays so
    batch = [table(rows=large()), ones(backend)]
    with pytest.raises(xdevice.errors.ContainerError) as told:
        xdevice.to_device(batch, there)
    line = str(told.value).partition("To move none of its contents, call ")[2]
    eval(line, {"xdevice": xdevice, "Table": table})
    moved = xdevice.to_device(batch, there)
    assert moved[0] is batch[0]
    assert xdevice.device_of(moved) is there


def test_a_tokenizer_is_searched_to_its_end(backend, there):
    ranks = {(str(n), str(n + 1)): n for n in range(30_000)}
    tokenizer = Holder(
        ranks=ranks,
        vocabulary=dict(enumerate(map(str, range(30_000)))),
        rows=[[{"a": (1,)}]] * 20_000,
    )
    batch = {"tokenizer": tokenizer, "x": ones(backend)}
    moved = xdevice.to_device(batch, there)
    assert moved["tokenizer"] is tokenizer
    assert xdevice.device_of(moved) is there
    tokenizer.late = [ones(backend)]  # behind all that
    assert_refused(
        batch,
        there,
        r"\['tokenizer'\] is .*type Holder.* contains tensors",
    )
    ranks["a", "b"] = [[ones(backend)]]
    del tokenizer.late
    assert_refused(
        batch,
        there,
        r"\['tokenizer'\] is .*type Holder.* contains tensors",
    )


def test_what_contains_itself_in_an_object_is_searched_to_its_end(backend, there):
    inside = []
    inside += [inside, {"x": inside}, 3]
    batch = [Holder(inside=inside), ones(backend)]
    assert xdevice.to_device(batch, there)[0] is batch[0]
    inside.append(ones(backend))
    assert_refused(batch, there, "Holder")


# mappings


class Multi(dict):
    """Shows the first of several values, as those of werkzeug and Django do."""

    def __init__(self, pairs=()):
        for key, value in pairs:
            dict.setdefault(self, key, []).append(value)

    def __getitem__(self, key):
        return dict.__getitem__(self, key)[0]

    def __setitem__(self, key, value):
        dict.__setitem__(self, key, [value])

    def items(self, multi=False):
        return [
            (key, value)
            for key, values in dict.items(self)
            for value in (values if multi else values[:1])
        ]

    def pairs(self):
        return self.items(multi=True)


class FrozenMulti(Multi):
    def __setitem__(self, key, value):
        raise TypeError("immutable")

    def __copy__(self):
        return self


class OrderedMulti(Multi, collections.OrderedDict):
    pass


class Pairs(collections.abc.Mapping):
    """Shows all of several values, as multidict's do."""

    def __init__(self, pairs=()):
        self.held = pairs.items() if hasattr(pairs, "items") else pairs
        self.held = [(key, value) for key, value in self.held]

    def __getitem__(self, key):
        return next(value for other, value in self.held if other == key)

    def __iter__(self):
        return (key for key, _ in self.held)

    def __len__(self):
        return len(self.held)

    def items(self):
        return list(self.held)

    pairs = items


class MutablePairs(Pairs, collections.abc.MutableMapping):
    def __setitem__(self, key, value):
        self.held = [(other, value if other == key else old) for other, old in self.held]

    def __delitem__(self, key):
        self.held = [(other, old) for other, old in self.held if other != key]


class Latest(Pairs):
    """Shows the last of several values, and keeps all, as starlette's do."""

    def items(self):
        return list(dict(self.held).items())

    def __iter__(self):
        return iter(dict(self.held))

    def __len__(self):
        return len(dict(self.held))

    def pairs(self):
        return self.held


SEVERAL = {
    Multi: "returns items that differ from its stored items",
    FrozenMulti: "returns items that differ from its stored items",
    OrderedMulti: "returns items that differ from its stored items",
    Pairs: "has several values for one key",
    MutablePairs: "has several values for one key",
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_values_of_a_key_are_named_with_the_line_that_registers_them(
    backend, there, kind
):
    multi = kind([("a", ones(backend)), ("b", ones(backend)), ("a", ones(backend)), ("n", 3)])
    before = multi.pairs()
    why = rf"{kind.__name__} {SEVERAL[kind]}; .*register_container\({kind.__name__}, flatten"
    for batch in (multi, {"in": multi}):
        for verb in (xdevice.to_device, xdevice.copy_to):
            with pytest.raises(xdevice.errors.ContainerError, match=why):
                verb(batch, there)
        with pytest.raises(xdevice.errors.ContainerError, match=why):
            xdevice.device_of(batch)
    assert multi.pairs() == before


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_texts_of_a_key_pass_beside_tensors(backend, there, kind):
    multi = kind([("a", "one"), ("a", "two"), ("n", 3)])
    moved = xdevice.to_device([multi, ones(backend)], there)
    assert moved[0].pairs() == multi.pairs()
    assert xdevice.device_of(moved) is there


def test_a_mapping_that_keeps_more_values_than_it_shows_keeps_all(backend, there):
    x = [ones(backend) for _ in range(3)]
    latest = Latest([("a", x[0]), ("b", x[1]), ("a", x[2]), ("n", 3)])
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb([latest], there)[0]
        assert [key for key, _ in moved.pairs()] == ["a", "b", "a", "n"]
        assert {xdevice.device_of(value) for key, value in moved.pairs() if key != "n"} == {
            there
        }
    assert latest.pairs()[0][1] is x[0]


def test_a_mapping_that_gives_what_it_does_not_hold_is_named(backend, there):
    class Lazy(dict):
        def items(self):
            return [(key, ones(backend)) for key in self]

    assert_refused([Lazy(a=1)], there, "Lazy returns items that differ from its stored items")


def test_a_mutable_mapping_without_a_copy_of_its_own_is_not_written_into(backend, there):
    multi = MutablePairs([("a", ones(backend))])
    held = multi["a"]
    for moved in (xdevice.to_device(multi, there), xdevice.copy_to(multi, "cpu")):
        assert moved["a"] is not held
        assert multi["a"] is held


def test_a_mapping_in_c_is_named(backend, there):
    variable = contextvars.ContextVar("variable")
    context = contextvars.Context()
    context.run(variable.set, ones(backend))
    assert_seen([context], backend, there)
    assert_refused([context], there, r"\[0\] is .*type Context")


def test_what_is_held_weakly_is_named_and_not_lost(backend, there):
    class Value:
        def __init__(self, x):
            self.x = x

    x = ones(backend)
    try:
        weak = [weakref.WeakValueDictionary(a=x), weakref.WeakSet([x])]
    except (TypeError, NotImplementedError):  # MXNet's arrays refuse to be hashed so
        pytest.skip(f"no weak references to tensors of {backend.name}")
    for inside in weak:
        for batch in (inside, [inside, x]):
            with pytest.raises(
                xdevice.errors.ContainerError,
                match=r"cannot rebuild an object of type Weak.*something else refers",
            ):
                xdevice.to_device(batch, there)
        assert xdevice.device_of(inside) is xdevice.cpu()
        assert xdevice.to_device(inside, "cpu") is inside
        assert len(inside) == 1
    key = Value(3)
    moved = xdevice.to_device(weakref.WeakKeyDictionary({key: x}), there)
    assert xdevice.device_of(moved[key]) is there


# sequences and other objects in C


def in_a_queue(x):
    made = queue.SimpleQueue()
    made.put(x)
    return made


@pytest.mark.parametrize(
    "make", [in_a_queue, ValueError, lambda x: Holder(queue=in_a_queue([x]))]
)
def test_what_is_kept_in_c_is_seen_though_no_list_has_its_type(backend, there, make):
    inside = make(ones(backend))
    assert_seen([inside], backend, there)
    assert_refused([inside, ones(backend)], there, type(inside).__qualname__)
    assert xdevice.device_of([inside]) is xdevice.cpu()
    batch = [make(3), ones(backend)]
    assert xdevice.to_device(batch, there)[0] is batch[0]


class Rows(collections.abc.Sequence):
    """A sequence that is no list."""

    def __init__(self, *rows):
        self.rows = rows

    def __getitem__(self, i):
        return self.rows[i]

    def __len__(self):
        return len(self.rows)


def test_a_sequence_that_nobody_knows_is_named(backend, there):
    assert_seen([Rows(ones(backend))], backend, there)
    assert_refused([Rows(ones(backend))], there, r"\[0\] is .*type Rows")


# objects that hold models


def test_an_object_that_holds_a_model_is_named_unless_that_moves_too(backend, there):
    net = network(backend)
    inside = Holder(model=net, name="trainer")
    batch = {"trainer": inside, "x": ones(backend)}
    assert_seen(batch, backend, there)
    # only a move takes the model along if it is in the container too
    for verb, advice in (
        (xdevice.to_device, r"put the object's \.model \(.*\) into the container"),
        (xdevice.copy_to, r"call xdevice.register_container\(Holder\)"),
    ):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=rf"\['trainer'\] is an object of type Holder.*{advice}",
        ):
            verb(batch, there)
    with pytest.raises(xdevice.errors.NotATensorError, match=r"object's \.model \("):
        xdevice.to_device(inside, there)
    for x in (inside, [inside, ones(backend)]):
        with pytest.raises(
            xdevice.errors.ContainerError, match=r"register_container\(Holder\)"
        ):
            xdevice.parallel.replicate(x, [there, "cpu"])
    assert xdevice.device_of(net) is xdevice.cpu()
    assert xdevice.to_numpy(batch)["trainer"] is inside  # a model is not among what is read
    moved = xdevice.to_device([inside, net, ones(backend)], there)  # as it says
    assert moved[0] is inside
    assert moved[1] is inside.model is net
    assert xdevice.device_of(moved) is there
    assert xdevice.to_device(batch | {"x": moved[2]}, there)["trainer"] is inside


# what shares


@dataclasses.dataclass(eq=False)
class Layer:
    weight: object
    inner: object = None


def test_what_stands_in_two_places_stays_one(backend, there):
    layer, listed = Layer(ones(backend)), [ones(backend)]
    for verb in (xdevice.to_device, xdevice.copy_to):
        whole = verb(
            Layer([layer, listed], {"again": layer, "deep": (Layer(3, layer), listed)}), there
        )
        assert (
            whole.weight[0] is whole.inner["again"] is whole.inner["deep"][0].inner is not layer
        )
        assert whole.weight[1] is whole.inner["deep"][1] is not listed
        one, other, deep = verb([listed, listed, {"deep": listed}], there)  # a batch
        assert one is other is deep["deep"] is not listed
        assert xdevice.device_of(one) is there


# deep


def nested(x, depth):
    for _ in range(depth):
        x = [x]
    return x


@pytest.mark.parametrize("depth", [200, 485, 495, 700, 985, 3000])
def test_no_depth_gives_a_raw_error(backend, depth, tmp_path):
    x = nested(ones(backend), depth)
    verbs = [
        lambda: xdevice.to_device(x, backend.samples().other_device() or "cpu"),
        lambda: xdevice.copy_to(x, "cpu"),
        lambda: xdevice.device_of(x),
        lambda: xdevice.same_device(x),
        lambda: xdevice.check_same_device(x),
        lambda: xdevice.sync(x),
        lambda: xdevice.to_numpy(x),
        lambda: xdevice.convert(x, "numpy"),
        lambda: xdevice.parity.compare(x, x),
        lambda: xdevice.parallel.broadcast(x, ["cpu"]),
        lambda: xdevice.split_batch(x, ["cpu", "cpu"]),
        lambda: xdevice.parallel.gather([x, x], "cpu"),
        lambda: xdevice.parallel.replicate(x, ["cpu"]),
        lambda: xdevice.parallel.all_reduce([x, x]),
        lambda: xdevice.save(tmp_path / "file", {"x": x}),
        lambda: list(xdevice.prefetch([x], "cpu")),
    ]
    refused = sum(map(is_refused, verbs))
    if depth == 200:
        assert refused == 0
    if depth > sys.getrecursionlimit():  # which some frameworks raise
        assert refused > len(verbs) // 2


def is_refused(verb):
    try:
        verb()
    except xdevice.errors.ContainerError as error:
        return "pass the tensors in a container without cycles" in str(error)
    return False


# moves that fail half way


class FrozenError(Exception):
    """Takes no notes."""

    add_note = None

    def __setattr__(self, name, value):
        if not name.startswith("__"):
            raise AttributeError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize(
    "error", [ValueError("no memory"), FrozenError("no memory"), KeyboardInterrupt()]
)
def test_a_move_that_fails_changes_nothing(backend, there, error, monkeypatch):
    if there.kind == "meta":
        pytest.skip("nothing comes back from there")
    first, second = network(backend), network(backend)
    move, moved = backend.move_model, []

    def failing(model, device):
        move(model, device)
        moved.append(model)
        if model is second and device is there:
            raise error

    monkeypatch.setattr(backend, "move_model", failing)
    for batch in (second, [first, {"x": ones(backend)}, second]):
        with pytest.raises(type(error)) as told:
            xdevice.to_device(batch, there)
        assert told.value is error
        assert xdevice.device_of([first, second]) is xdevice.cpu()
        assert not getattr(error, "__notes__", ())
    assert moved.count(first) == 2


def test_a_move_that_cannot_be_taken_back_says_what_has_moved(backend, there, monkeypatch):
    net, move = network(backend), backend.move_model
    broken = []

    def failing(model, device):
        if not broken:
            move(model, device)
        broken.append(device)
        raise ValueError("no memory")

    monkeypatch.setattr(backend, "move_model", failing)
    with pytest.raises(ValueError, match="no memory") as told:
        xdevice.to_device({"net": net}, there)
    assert broken == [there, xdevice.cpu()]
    (note,) = told.value.__notes__
    assert "of the 2 variables of " in note
    assert "have moved and were not moved back" in note


def test_a_model_with_parameters_on_meta_is_said_to_have_moved_in_part():
    torch = xdevice.backend("torch").framework
    there = xdevice.backend("torch").samples().other_device()
    if there is None or there.kind == "meta":
        pytest.skip("PyTorch has one device here")
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(NotImplementedError) as told:
        xdevice.to_device(net, there)
    assert told.value.__notes__ == [
        "2 of the 4 variables of a Sequential have moved and were not moved back: 0.weight, 0.bias"
    ]


# texts of TensorFlow


@pytest.mark.virtual
def test_a_tensor_of_texts_stays_on_the_host_in_a_batch():
    tf = xdevice.backend("tensorflow").framework
    if not xdevice.backend("tensorflow").count("gpu"):
        pytest.skip("tensorflow has no GPU here")
    there = xdevice.gpu()
    with tf.device("CPU:0"):
        batch = {
            "x": tf.ones((2, 2)),
            "text": tf.constant(["a", "b"]),
            "ragged": tf.ragged.constant([["a"], []]),
        }
    for verb in (
        xdevice.to_device,
        xdevice.copy_to,
        lambda x, there: next(iter(xdevice.prefetch([x], there))),
    ):
        moved = verb(batch, there)
        assert moved["text"].numpy().tolist() == [b"a", b"b"]
        assert (
            xdevice.device_of(moved["text"])
            is xdevice.device_of(moved["ragged"])
            is xdevice.cpu()
        )
        assert (
            xdevice.device_of(moved["x"])
            is xdevice.device_of(moved)
            is xdevice.check_same_device(moved)
            is there
        )
        assert xdevice.same_device(moved, moved["x"])
        assert xdevice.to_device(moved, there) is moved
        assert moved["ragged"].to_list() == [[b"a"], []]
    del batch["ragged"]
    parts = xdevice.split_batch(batch, [there, there])
    assert [part["text"].numpy().tolist() for part in parts] == [[b"a"], [b"b"]]
    assert xdevice.device_of(parts) is there
    assert xdevice.device_of([batch["text"]]) is xdevice.cpu()
    for alone in (batch["text"], [batch["text"]]):
        with pytest.raises(xdevice.errors.UnsupportedError, match="string tensors on a GPU"):
            xdevice.to_device(alone, there)


# what the errors advise


@pytest.fixture
def torch():
    return xdevice.backend("torch").framework


@pytest.fixture
def elsewhere():
    return xdevice.backend("torch").samples().other_device() or pytest.skip(
        "PyTorch has one device here"
    )


def test_a_scheduler_goes_with_its_optimizer(torch, elsewhere):
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    far = xdevice.to_device(torch.ones(2), elsewhere)
    assert not xdevice.same_device(scheduler, far)
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"\.optimizer"):
        xdevice.check_same_device([scheduler, far])
    for batch in ([scheduler, far], [net, scheduler]):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"StepLR.*put the object's \.optimizer \(SGD\) into the container",
        ):
            xdevice.to_device(batch, elsewhere)
        assert xdevice.device_of([net, optimizer]) is xdevice.cpu()
    # where PyTorch gives the layer other parameters than those that the optimizer has
    if elsewhere.kind == "meta":
        with pytest.raises(
            xdevice.errors.UnsupportedError, match="while one of its parameters is on cpu:0"
        ):
            xdevice.to_device([net, optimizer, scheduler], elsewhere)
        return
    moved = xdevice.to_device([net, optimizer, scheduler], elsewhere)
    assert moved[2].optimizer is optimizer
    assert xdevice.device_of(moved) is elsewhere


def test_the_advice_on_what_pytorch_keeps_in_objects_of_its_own(torch, elsewhere):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"GradScaler.*new\.load_state_dict\(old\.state_dict\(\)\)",
    ):
        xdevice.to_device([scaler], elsewhere)
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"ExportedProgram.*passes\.move_to_device_pass\(program, dev",
        ):
            verb([program], elsewhere)
    assert xdevice.device_of([program]) is xdevice.cpu()


def test_the_advice_on_a_seed_generator_of_keras():
    backend = xdevice.backend("tensorflow")
    keras = pytest.importorskip("keras")
    there = backend.samples().other_device()
    if there is None:
        pytest.skip("TensorFlow has one device here")
    with backend.framework.device("CPU:0"):
        generator = keras.random.SeedGenerator(3)
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"SeedGenerator.*put the object's \.state \(\w*Variable\) into the container",
    ):
        xdevice.to_device([generator, ones(backend)], there)
    moved = xdevice.to_device([generator, generator.state, ones(backend)], there)
    assert moved[0] is generator
    assert xdevice.device_of(moved) is there


def test_a_device_that_an_object_notes_goes_along(backend, there):
    @dataclasses.dataclass
    class Cache:
        keys: object
        device: object
        key_device: object
        other_device: object

    def note(place):
        return backend.to_native(place)

    # texts stay
    forms = (
        [lambda place: place] if isinstance(note(there), str) else [note, lambda place: place]
    )
    for noted in forms:
        cache = Cache(
            ones(backend), noted(xdevice.cpu()), noted(xdevice.cpu()), noted(xdevice.cpu())
        )
        for verb in (xdevice.to_device, xdevice.copy_to):
            moved = verb([cache], there)[0]
            assert moved.device == moved.key_device == noted(there)
            assert moved.other_device == cache.device == noted(xdevice.cpu())
        assert xdevice.to_numpy(cache).device == noted(xdevice.cpu())


# the packages themselves


def test_the_multidicts_of_werkzeug_and_multidict(there_of_torch):
    werkzeug = pytest.importorskip("werkzeug.datastructures")
    multidict = pytest.importorskip("multidict")
    pairs = [
        ("a", ones(xdevice.backend("torch"))),
        ("b", 3),
        ("a", ones(xdevice.backend("torch"))),
    ]
    for made in (
        werkzeug.MultiDict,
        werkzeug.ImmutableMultiDict,
        multidict.MultiDict,
        multidict.CIMultiDict,
    ):
        with pytest.raises(
            xdevice.errors.ContainerError, match=rf"{made.__name__} .*register_container"
        ):
            xdevice.to_device([made(pairs)], there_of_torch)
    assert_refused(
        [multidict.MultiDictProxy(multidict.MultiDict(pairs))], there_of_torch, "MultiDictProxy"
    )


def test_the_maps_and_vectors_of_pyrsistent_and_frozendict(there_of_torch):
    pyrsistent = pytest.importorskip("pyrsistent")
    frozendict = pytest.importorskip("frozendict")
    x = ones(xdevice.backend("torch"))
    frozen = frozendict.frozendict(a=x, n=3)
    hash(frozen)
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb([frozen], there_of_torch)[0]
        assert type(moved) is type(frozen)
        assert moved["n"] == 3
        assert hash(moved) != hash(frozen)
        assert xdevice.device_of(moved["a"]) is there_of_torch
    assert frozen["a"] is x
    named = [
        made([x])
        for made in (pyrsistent.pset, pyrsistent.pvector, pyrsistent.plist, pyrsistent.pbag)
    ]
    for persistent in (*named, pyrsistent.pdeque([x]), pyrsistent.pmap({"a": x})):
        assert_seen([persistent], xdevice.backend("torch"), there_of_torch)
        assert_refused([persistent], there_of_torch, r"xdevice\.register")


def test_structs_of_msgspec(there_of_torch):
    msgspec = pytest.importorskip("msgspec")

    class Row(msgspec.Struct):
        x: object
        n: int = 3

    class FrozenRow(msgspec.Struct, frozen=True):
        x: object
        n: int = 3

    for row in (
        Row(ones(xdevice.backend("torch"))),
        FrozenRow([ones(xdevice.backend("torch"))]),
    ):
        for verb in (xdevice.to_device, xdevice.copy_to):
            moved = verb([row], there_of_torch)[0]
            assert type(moved) is type(row)
            assert moved.n == 3
            assert xdevice.device_of([moved.x]) is xdevice.device_of(moved) is there_of_torch
        assert xdevice.device_of([row.x]) is xdevice.cpu()
        assert xdevice.to_device(row, "cpu") is row


def test_a_proxy_of_a_model(there_of_torch):
    wrapt = pytest.importorskip("wrapt")
    net = xdevice.backend("torch").framework.nn.Linear(1, 1)
    proxy = wrapt.ObjectProxy(net)
    assert_seen([proxy], xdevice.backend("torch"), there_of_torch)
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"ObjectProxy.*the object's \.__wrapped__ \(Linear\) into the container",
    ):
        xdevice.to_device([proxy], there_of_torch)
    assert xdevice.device_of(xdevice.to_device([proxy, net], there_of_torch)) is there_of_torch


@pytest.fixture
def there_of_torch():
    return xdevice.backend("torch").samples().other_device() or pytest.skip(
        "PyTorch has one device here"
    )
