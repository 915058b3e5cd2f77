"""What a model holds that its framework does not list: layers in a list, a second reference to a buffer, a tensor as a
plain attribute. It moves with the model, is copied with it, and counts where the model's device is asked for."""

from __future__ import annotations

import collections
import dataclasses
import functools

import pytest
from helpers.environment import FRAMEWORKS

import xdevice

pytestmark = [
    pytest.mark.virtual,
    # Gluon's own word about it
    pytest.mark.filterwarnings("ignore:.*is an unregistered container with Blocks"),
]

BASES = {
    "torch": "nn.Module",
    "paddle": "nn.Layer",
    "mxnet": "gluon.Block",
    "tensorflow": "Module",
}


@pytest.fixture(params=[name for name in BASES if name in FRAMEWORKS])
def backend(request):
    return xdevice.backend(request.param)


@pytest.fixture
def there(backend):
    device = backend.samples().other_device()
    if device is None or device.kind == "meta":
        pytest.skip(f"{backend.name} has one device here")
    return device


def base(backend):
    cls = backend.framework
    for name in BASES[backend.name].split("."):
        cls = getattr(cls, name)
    return cls


def ones(backend, device="cpu"):
    with xdevice.use_backend(backend.name):
        return xdevice.ones(2, device=device)


def layer(backend):
    with xdevice.use_backend(backend.name), xdevice.cpu():
        return backend.samples().network(2, 2)


@dataclasses.dataclass
class Parts:
    inner: object
    names: list


HOLDERS = {
    "itself": lambda x: x,
    "a list": lambda x: [x],
    "a dict": lambda x: {"x": x},
    "a tuple": lambda x: (x, 3),
    "a list in a dict": lambda x: {"a": [x, "text"]},
    "a dataclass": lambda x: Parts(x, ["a"]),
    "a deque": lambda x: collections.deque([x], 3),
    "a partial": lambda x: functools.partial(print, x),
    "an ordered dict in a tuple": lambda x: (collections.OrderedDict(x=x),),
}


def inside(held):
    """The thing in one of these."""
    while True:
        if isinstance(held, Parts):
            held = held.inner
        elif isinstance(held, dict):
            held = next(iter(held.values()))
        elif isinstance(held, list | tuple | collections.deque):
            held = held[0]
        elif isinstance(held, functools.partial):
            held = held.args[0]
        else:
            return held


def model(backend, **attributes):
    """A model with one layer, and attributes in which the framework does not look."""
    cls = type("Net", (base(backend),), {})
    net = cls()
    net.one = layer(backend)
    for name, value in attributes.items():
        if backend.name == "tensorflow":
            setattr(net, name, value)
        else:
            vars(net)[name] = value
    return net


def as_held(backend, form, make):
    x = make(backend)
    return HOLDERS[form](x)


@pytest.mark.parametrize("form", HOLDERS)
@pytest.mark.parametrize("make", [ones, layer], ids=["tensor", "layer"])
def test_what_is_in_an_attribute_goes_with_its_model(backend, there, form, make):
    net = model(backend, rest=as_held(backend, form, make))
    copied = xdevice.copy_to(net, there)
    assert xdevice.device_of(net) is xdevice.device_of(inside(net.rest)) is xdevice.cpu()
    for moved in (
        copied,
        xdevice.parallel.replicate(net, [there])[0],
        xdevice.to_device(net, there),
    ):
        assert xdevice.device_of(inside(moved.rest)) is there
        assert xdevice.device_of(moved) is xdevice.check_same_device(moved) is there
        assert xdevice.same_device(moved, ones(backend, there))
    assert inside(copied.rest) is not inside(net.rest)
    assert xdevice.to_device(net, there) is net
    back = xdevice.to_device({"net": net, "x": ones(backend, there)}, "cpu")
    assert (
        xdevice.device_of(inside(back["net"].rest)) is xdevice.device_of(back) is xdevice.cpu()
    )


@pytest.mark.parametrize("make", [ones, layer], ids=["tensor", "layer"])
def test_what_lies_elsewhere_counts(backend, there, make):
    if backend.name == "tensorflow" and make is layer:
        pytest.skip("its variables count, as those of any layer")
    net = xdevice.to_device(model(backend), there)
    vars(net)["rest"] = [make(backend)]
    assert not xdevice.same_device(net)
    assert not xdevice.same_device({"net": net}, ones(backend, there))
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"rest|0"):
        xdevice.device_of(net)
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"rest|0"):
        xdevice.check_same_device(net=net)
    assert xdevice.device_of(xdevice.to_device(net, there)) is there


def test_a_second_reference_stays_a_reference(backend, there):
    if backend.name == "tensorflow":
        pytest.skip("its models list constants by their places")
    net = model(backend)
    buffer = ones(backend)
    if backend.name in ("torch", "paddle"):
        net.register_buffer("mean", buffer)
        listed = lambda net: net.mean  # noqa: E731
    else:
        listed = lambda net: next(iter(net.collect_params().values())).data()  # noqa: E731
    first = listed(net)
    vars(net).update(
        alias=first, all=[first], by_name={"a": (first, [first])}, layers=[net.one]
    )
    other = model(backend)
    vars(net.one)["deep"] = [first]
    vars(other)["none"] = 3
    alls = net.all
    for moved in (xdevice.copy_to(net, there), xdevice.to_device(net, there)):
        now = listed(moved)
        assert xdevice.device_of(now) is there
        held = (
            moved.alias,
            moved.all[0],
            moved.by_name["a"][0],
            moved.by_name["a"][1][0],
            moved.one.deep[0],
        )
        if backend.name == "mxnet":  # each call of data() may make another object
            assert all(xdevice.device_of(x) is there for x in held)
            held[1][:] = 7
            assert [xdevice.to_numpy(x).ravel()[0] for x in (*held, now)] == [7.0] * 6
        else:
            assert all(x is now for x in held)
        assert moved.layers[0] is moved.one
        assert xdevice.same_device(moved)
    assert net.all is alls


def test_what_others_refer_to_is_written_into(backend, there):
    if backend.name == "tensorflow":
        pytest.skip("its models wrap their lists")
    inner, names = {"x": ones(backend)}, ["a"]
    net = model(backend, rest=[inner, names], again=[names])
    rest = net.rest
    xdevice.to_device(net, there)
    assert net.rest is rest
    assert net.rest[0] is inner
    assert net.rest[1] is net.again[0] is names
    assert xdevice.device_of(inner) is there


def test_parameters_in_a_list_stay_those_of_their_optimizer(there, backend):
    if backend.name not in ("torch", "paddle"):
        pytest.skip("it has no parameters outside layers")
    weight = next(iter(dict(layer(backend).named_parameters()).values()))
    net = model(backend, weights=[weight])
    xdevice.to_device(net, there)
    assert net.weights[0] is weight
    assert xdevice.device_of(weight) is there


def test_an_owner_is_not_held(backend, there):
    if backend.name == "tensorflow":
        pytest.skip("TensorFlow moves all that can be reached")
    owner = model(backend)
    owner.two = layer(backend)
    vars(owner.two)["owner"] = [owner]
    vars(owner.one)["other"] = {"way": (owner.two,)}
    xdevice.to_device(owner.two, there)
    assert xdevice.device_of(owner.two) is there
    assert xdevice.device_of(xdevice.to_device(owner.one, "cpu")) is xdevice.cpu()
    assert xdevice.device_of(owner.two) is xdevice.cpu()
    first, second = model(backend), model(backend)
    vars(first)["other"], vars(second)["other"] = [second], [first]
    assert (
        xdevice.device_of(xdevice.to_device(first, there)) is xdevice.device_of(second) is there
    )


def test_odd_attributes_do_not_matter(backend, there):
    if backend.name in ("mxnet", "tensorflow"):
        pytest.skip("the framework itself fails at a list that contains itself")
    chain = []
    chain += [chain, 3]
    net = model(
        backend,
        chain=chain,
        words=dict.fromkeys(map(str, range(20_000)), 1),
        lock=[object()],
        none=[None],
    )
    assert xdevice.device_of(xdevice.to_device(net, there)) is there
    chain.append(ones(backend))
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"chain contains tensors but cannot be searched"
    ):
        xdevice.to_device(net, "cpu")
    del chain[-1]
    assert xdevice.device_of(net) is there


@pytest.mark.parametrize("form", ["a list", "a dict", "a dataclass"])
def test_a_file_does_not_leave_out_layers_without_a_word(backend, form, tmp_path):
    if backend.name == "tensorflow":
        pytest.skip("TensorFlow lists them")
    net = model(backend, rest=as_held(backend, form, layer))
    for x in (net, {"net": net}):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"saving rest.*, an object of type \w+ in a plain attribute, list or dict of this Net: .* put it in ",
        ):
            xdevice.save(tmp_path / "net.safetensors", x)
    if backend.name != "mxnet":
        weight = next(iter(dict(layer(backend).named_parameters()).values()))
        with pytest.raises(xdevice.errors.UnsupportedError, match=r"saving rest"):
            xdevice.save(
                tmp_path / "net.safetensors", model(backend, rest=HOLDERS[form](weight))
            )
    xdevice.save(tmp_path / "net.safetensors", model(backend, rest=[ones(backend)]))
    refused = pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"loading into rest.*, an object of type \w+ in a plain attribute, list or dict of this Net",
    )
    for into in (net, {"net": net}):
        with refused:
            xdevice.load(tmp_path / "net.safetensors", into=into)
    state = xdevice.load(tmp_path / "net.safetensors", backend=backend.name)
    with refused:
        xdevice.load(state, into=net)
    assert xdevice.load(state, into=net, strict=False) is net
    whole = model(backend, rest=[ones(backend)])
    assert xdevice.load(tmp_path / "net.safetensors", into=whole) is whole


@pytest.mark.parametrize("copies", ["copy_to", "replicate", "alone"])
def test_an_optimizer_is_not_copied_and_the_error_says_so_wherever_its_model_is(
    backend, there, copies
):
    with xdevice.use_backend(backend.name), xdevice.cpu():
        trained = backend.samples().optimized()
    if trained is None or backend.name == "tensorflow":
        pytest.skip(f"an optimizer of {backend.name} is copied, or is no model")
    model, optimizer, _ = trained
    both = optimizer if copies == "alone" else (model, optimizer)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"support copying an? (optimizer|\w*Trainer)"
    ):
        xdevice.parallel.replicate(both, [there]) if copies == "replicate" else xdevice.copy_to(
            both, there
        )


SLOTTED = {
    "a tensor": lambda backend: ones(backend),
    "a layer": layer,
    "a list in a dict": lambda backend: {"a": [ones(backend)]},
}


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("form", SLOTTED)
def test_a_slot_that_holds_tensors_is_refused(backend, there, form, inherited):
    """Frameworks read only the `__dict__`: a copy by PyTorch has nothing in the slot, and a move leaves it behind."""
    cls = type("Slotted", (base(backend),), {"__slots__": ("cache", "note")})
    model = (type("Derived", (cls,), {}) if inherited else cls)()
    model.note = "a text"
    model = xdevice.to_device(model, there)
    model.cache = SLOTTED[form](backend)
    verbs = [
        xdevice.device_of,
        xdevice.same_device,
        lambda x: xdevice.to_device(x, there),
        lambda x: xdevice.copy_to(x, "cpu"),
    ]
    for verb in verbs:
        with pytest.raises(
            xdevice.errors.ContainerError, match=r"the slot cache of .* contains tensors"
        ):
            verb(model)


# MXNet on what it has exported itself
@pytest.mark.filterwarnings("ignore:.*Cannot decide type")
@pytest.mark.parametrize("state", ["values and gradients", "trained"])
def test_a_block_that_mxnet_imports_moves(state, tmp_path, monkeypatch):
    """Under NumPy semantics it has legacy values and gradients of mx.np, which MXNet's `copyto` does not mix."""
    mx = pytest.importorskip("mxnet")
    monkeypatch.chdir(tmp_path)
    with xdevice.use_backend("mxnet"):
        net = mx.gluon.nn.HybridSequential()
        net.add(mx.gluon.nn.Dense(2, in_units=3))
        net.initialize()
        net.hybridize()
        x = xdevice.ones(1, 3, device="cpu")
        expected = net(x).asnumpy().tolist()
        net.export("m")
        block = mx.gluon.SymbolBlock.imports("m-symbol.json", ["data"], "m-0000.params")
        if state == "trained":
            with mx.autograd.record():
                loss = block(x).sum()
            loss.backward()
        there = xdevice.device("gpu:1")
        copied, moved = xdevice.copy_to(block, there), xdevice.to_device(block, there)
        for one in (copied, moved):
            assert xdevice.device_of(one) is there
            assert xdevice.to_numpy(one(xdevice.to_device(x, there))).tolist() == expected
