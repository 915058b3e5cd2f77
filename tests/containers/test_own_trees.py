"""What libraries keep in ways of their own: attributes under numbers, tensors of a class that carries more, schedulers,
objects that know each other, what TensorFlow has loaded."""

from __future__ import annotations

import collections
import functools
import threading

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS
from helpers.tensors import ones

import xdevice


@pytest.fixture(params=FRAMEWORKS)
def backend(request):
    return xdevice.backend(request.param)


@pytest.fixture
def _forgetting():
    from xdevice.containers import trees, ways

    before = dict(ways.registered)
    yield
    ways.registered.clear()
    ways.registered.update(before)
    trees.forget()


def framework(name):
    if name not in FRAMEWORKS:
        pytest.skip(f"{name} is not tested here")
    return xdevice.backend(name).framework


def far_of(name):
    device = xdevice.backend(name).samples().other_device()
    if device is None or device.kind == "meta":
        pytest.skip(f"{name} has one device here")
    return device


# attributes under numbers


class Numbered:
    """Keeps its parts as flax's `nnx.List` does."""

    def __init__(self, *parts):
        vars(self).update(enumerate(parts))
        vars(self)[None, "x"] = parts[0]
        self.device = "cpu"


@pytest.mark.usefixtures("_forgetting")
def test_attributes_keep_keys_that_are_no_texts(backend, there):
    # another one each time: what is registered stays so
    cls = xdevice.register_container(type("Own", (Numbered,), {}))
    numbered = cls(ones(backend), [ones(backend)], 3)
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb({"it": numbered}, there)["it"]
        assert list(vars(moved)) == list(vars(numbered)) == [0, 1, 2, (None, "x"), "device"]
        assert vars(moved)[0] is vars(moved)[None, "x"]
        assert xdevice.device_of(moved) is xdevice.device_of(vars(moved)[1]) is there
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"it\[1\]\[0\] is on"):
        xdevice.check_same_device(it=cls(ones(backend, there), [ones(backend)]))


class DictWithNumbers(dict):
    pass


def test_a_dict_with_attributes_under_numbers_is_named(backend):
    x = DictWithNumbers(a=3)
    vars(x)[0] = ones(backend)
    with pytest.raises(
        xdevice.errors.ContainerError,
        match="DictWithNumbers has an attribute whose name, 0, is not a string",
    ):
        xdevice.copy_to([x], "cpu")


# tensors that carry more


def carrying_torch():
    torch = framework("torch")

    class Carrying(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            result = super().__torch_function__(function, types, args, kwargs or {})
            source = next((x for x in args if isinstance(x, Carrying)), None)
            if isinstance(result, Carrying) and source is not None and result is not source:
                vars(result).update(vars(source))
            return result

    return torch.ones(2).as_subclass(Carrying)


def carrying_numpy():
    class Carrying(np.ndarray):
        def __array_finalize__(self, source):
            if source is not None:
                vars(self).update(getattr(source, "__dict__", {}))

    return np.ones(2).view(Carrying)


@pytest.mark.parametrize("make", [carrying_torch, carrying_numpy])
def test_a_copy_does_not_share_what_a_tensor_carries(make):
    x = make()
    lock = threading.Lock()
    plain = np.ones(3)
    vars(x).update(
        affine=xdevice.copy_to(
            x.view(type(x).__mro__[1]) if make is carrying_numpy else plain, "cpu"
        )
    )
    vars(x).update(
        meta={"names": ["a"], "deep": (plain,)},
        lock=lock,
        count=3,
        call=functools.partial(max, plain),
    )
    for copied in (
        xdevice.copy_to(x, "cpu"),
        xdevice.copy_to([x], "cpu")[0],
        xdevice.parallel.broadcast({"x": x}, ["cpu"])[0]["x"],
        xdevice.parallel.replicate(x, ["cpu"])[0],
    ):
        assert type(copied) is type(x)
        assert copied.affine is not x.affine
        assert copied.affine.tolist() == x.affine.tolist()
        copied.affine[0] = 7
        assert x.affine[0] == 1
        assert copied.meta == {"names": ["a"], "deep": copied.meta["deep"]}
        assert copied.meta["names"] is not x.meta["names"]
        assert copied.meta["deep"][0] is not plain
        assert copied.call.args[0] is not plain
        assert copied.lock is lock
        assert copied.count == 3


# schedulers


def trained(rate):
    torch = framework("torch")
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return net, optimizer


SCHEDULES = {
    "StepLR": lambda schedules, optimizer: schedules.StepLR(optimizer, 1),
    "ReduceLROnPlateau": lambda schedules, optimizer: schedules.ReduceLROnPlateau(optimizer),
    "SequentialLR": lambda schedules, optimizer: schedules.SequentialLR(
        optimizer,
        [schedules.ConstantLR(optimizer), schedules.ExponentialLR(optimizer, 0.5)],
        [1],
    ),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_a_scheduler_moves_with_model_and_optimizer_whatever_the_rate_is(make):
    torch, there = framework("torch"), far_of("torch")
    for rate in (0.1, torch.tensor(0.1)):
        net, optimizer = trained(rate)
        schedule = make(torch.optim.lr_scheduler, optimizer)
        assert xdevice.to_device((net, optimizer, schedule), there)[2] is schedule
        net(xdevice.to_device(torch.ones(1, 2), there)).sum().backward()
        optimizer.step()
        schedule.step(*([1.0] if "Plateau" in type(schedule).__name__ else []))
        assert xdevice.device_of((net, optimizer, schedule)) is there


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_a_scheduler_without_its_model_is_named(make):
    torch, there = framework("torch"), far_of("torch")
    net, optimizer = trained(0.1)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    for batch in ({"s": schedule, "x": torch.ones(2)}, [net, schedule]):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match=r"LR\w*, which xdevice does not know; it contains tensors on cpu:0.*put the object's \.optimizer",
        ):
            xdevice.to_device(batch, there)
    assert not xdevice.same_device(schedule, xdevice.to_device(torch.ones(2), there))
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"LR\w*, which .*new\.load_state_dict"
    ):
        xdevice.copy_to([net, optimizer, schedule], there)
    assert xdevice.device_of(net) is xdevice.cpu()


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_an_optimizer_without_its_model_is_named(name):
    module, there = framework(name), far_of(name)
    with xdevice.cpu():
        net = module.nn.Linear(2, 2)
    if name == "torch":
        optimizer = module.optim.Adam(net.parameters())
    else:
        optimizer = module.optimizer.Adam(parameters=net.parameters())
    assert xdevice.device_of(optimizer) is xdevice.cpu()
    for x in (optimizer, [optimizer], {"o": optimizer, "x": xdevice.ones(2)}):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"moving the optimizer \w+ to \S+ while one of its parameters is on cpu:0",
        ):
            xdevice.to_device(x, there)
    xdevice.to_device([optimizer, net], there)
    assert xdevice.device_of(optimizer) is there


# objects that know each other


class Node:
    def __init__(self, x):
        self.x = x
        self.others = []


@pytest.mark.usefixtures("_forgetting")
def test_objects_that_know_each_other_go_on_doing_so(backend, there):
    cls = xdevice.register_container(type("Own", (Node,), {}))
    first, second = cls(ones(backend)), cls([ones(backend)])
    first.twin, second.twin = second, first
    first.itself = first
    first.others, second.others = {"a": (second, first)}, [first.others]
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved, x = verb([first, first.x], there)
        assert moved is not first
        assert moved.itself is moved.twin.twin is moved.others["a"][1] is moved
        assert moved.others["a"][0] is moved.twin
        assert moved.x is x
        assert (
            xdevice.device_of(x)
            is xdevice.device_of(moved.twin.x)
            is xdevice.device_of(moved)
            is there
        )
    assert first.twin is second
    assert xdevice.to_device(first, "cpu") is first
    loop = collections.deque()
    loop.append([loop, ones(backend)])
    with pytest.raises(xdevice.errors.ContainerError, match="contains itself"):
        xdevice.to_device(loop, there)


@pytest.mark.usefixtures("_forgetting")
def test_transforms_of_pytorch_and_their_inverses_move():
    torch, there = framework("torch"), far_of("torch")
    transforms = torch.distributions.transforms
    xdevice.register_container(transforms.Transform)
    transform = transforms.AffineTransform(torch.zeros(2), torch.ones(2) * 2, cache_size=1)
    y = transform(torch.ones(2))
    transform.inv(y)
    moved = xdevice.to_device([transform], there)[0]
    assert moved.inv.inv is moved
    x = xdevice.to_device(torch.ones(2) * 3, there)
    assert xdevice.to_numpy(moved(x)).tolist() == [6.0, 6.0]
    assert xdevice.to_numpy(moved.inv(x)).tolist() == [1.5, 1.5]


# batches, lists of devices, what was loaded


def test_batches_of_mxnets_iterators_move():
    mx, there = framework("mxnet"), far_of("mxnet")
    batch = mx.io.DataBatch([mx.nd.ones(2)], [mx.nd.zeros(2)], pad=1)
    moved = xdevice.to_device({"batch": batch}, there)["batch"]
    assert type(moved) is mx.io.DataBatch
    assert moved.pad == 1
    assert (
        xdevice.device_of(moved)
        is xdevice.device_of(moved.data[0])
        is xdevice.device_of(moved.label)
        is there
    )


@pytest.mark.parametrize("devices", [["cpu", "cpu"], (xdevice.cpu(),), []])
def test_a_list_of_devices_is_told_which_verb_takes_it(devices):
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(
            xdevice.errors.DeviceError,
            match=r"one device was expected; .*parallel\.replicate\(x, devices\)",
        ):
            verb([np.ones(2)], devices)


def test_what_tensorflow_has_loaded_is_a_model(tmp_path):
    tf, there = framework("tensorflow"), far_of("tensorflow")

    class Saved(tf.Module):
        def __init__(self):
            self.weight = tf.Variable([1.0, 2.0])
            self.rest = [tf.Variable([3.0])]

    source = Saved()
    source.call = tf.function(
        lambda x: x * source.weight + source.rest[0],
        input_signature=[tf.TensorSpec([2])],
        autograph=False,
    )
    tf.saved_model.save(source, str(tmp_path / "model"))
    with tf.device("CPU:0"):
        loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert xdevice.device_of(loaded) is xdevice.cpu()
    assert xdevice.to_device({"model": loaded, "x": tf.ones(2)}, there)["model"] is loaded
    assert xdevice.device_of(loaded) is xdevice.device_of(loaded.rest[0]) is there
    loaded.weight.assign([5.0, 6.0])
    with xdevice.use_backend("tensorflow"), there:
        result = loaded.call(xdevice.to_device(tf.ones(2), there))
    assert xdevice.to_numpy(result).tolist() == [8.0, 9.0]
    xdevice.save(tmp_path / "model.safetensors", loaded)
    assert sorted(xdevice.load(tmp_path / "model.safetensors")) == ["rest/0", "weight"]
    with pytest.raises(xdevice.errors.UnsupportedError, match="load the model again"):
        xdevice.copy_to(loaded, there)
