"""Rules of the verbs that no framework on a CPU can show, on a framework made for it."""

from __future__ import annotations

import pytest
from helpers.environment import NO_KERNELS

import xdevice
from xdevice.contract.backend import Owned
from xdevice.core import registry


class Param:
    def __init__(self):
        self.place = xdevice.cpu()


class Net:
    def __init__(self):
        self.weight = Param()


class Backend:
    """Moves a parameter of a model in place, and any other tensor to a new object, as PyTorch does on a GPU."""

    name = "made up"
    is_host_only = False

    def require(self, device):
        pass

    def lacks(self, device):
        return frozenset()

    def device_of(self, x):
        return x.place

    def devices_of(self, cls, tensors):
        return {x.place for x in tensors}

    def move_all(self, tensors, device):
        moved = [Param() for _ in tensors]
        for x in moved:
            x.place = device
        return moved

    def model_devices(self, model):
        if model.weight is None:
            raise xdevice.errors.NotBuiltError("build it first")
        return [("weight", model.weight.place)]

    def is_all_on(self, model, device):
        return all(place is device for _, place in self.model_devices(model))

    def is_host_bound(self, x):
        return False

    def attributes_of(self, model):
        return ()

    def parameters_of(self, model):
        return ()

    def model_parts(self, model):
        return [model.weight]

    def move_model(self, model, device):
        model.weight.place = device


@pytest.fixture(autouse=True)
def _made_up(monkeypatch):
    kinds = {Param: "tensor", Net: "model"}
    backend = Backend()
    known = registry.owner_and_kind
    monkeypatch.setattr(
        registry,
        "owner_and_kind",
        lambda cls: Owned(backend, kinds[cls]) if cls in kinds else known(cls),
    )


def test_a_parameter_that_stands_before_its_model_stays_its_parameter():
    net = Net()
    weight = net.weight
    moved = xdevice.to_device({"first": weight, "net": net, "alone": Param()}, "gpu:1")
    assert moved["first"] is net.weight is weight
    assert moved["net"] is net
    assert [str(x.place) for x in (weight, moved["alone"])] == ["gpu:1", "gpu:1"]


def test_a_model_that_cannot_move_keeps_the_others_where_they_are():
    built, unbuilt = Net(), Net()
    unbuilt.weight = None
    with pytest.raises(xdevice.errors.NotBuiltError):
        xdevice.to_device([built, unbuilt], "gpu:1")
    assert built.weight.place is xdevice.cpu()


def test_a_trainer_of_gluon_goes_where_its_parameters_are():
    if "mxnet" not in xdevice.backends():
        pytest.skip("MXNet is not installed")
    backend = xdevice.backend("mxnet")
    mx, there = backend.framework, backend.samples().other_device()
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize(ctx=xdevice.cpu().native if backend.virtual else mx.cpu())
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    step(mx, net, trainer)
    for given in (trainer, [trainer], {"trainer": trainer, "x": mx.nd.ones(2)}):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"its parameter dense\d+_\w+ is on cpu\(0\).*to_device",
        ):
            xdevice.to_device(given, there)
    assert xdevice.device_of([net, trainer]) is xdevice.cpu()
    step(mx, net, trainer)
    for together, place in (([trainer, net], there), ([net, trainer], xdevice.cpu())):
        assert xdevice.to_device(together, place) == together
        assert xdevice.device_of(together) is place
        assert xdevice.to_device(trainer, place) is trainer
        step(mx, net, trainer)


def step(mx, net, trainer):
    with mx.autograd.record():
        loss = net(mx.nd.ones((3, 2), ctx=net.weight.list_ctx()[0])).sum()
    loss.backward()
    trainer.step(3)


def two_backwards_through_a_copy(kind):
    paddle = pytest.importorskip("paddle")
    with xdevice.use_backend("paddle") as backend:
        x = paddle.ones([2])
        x.stop_gradient = False
        copied = xdevice.copy_to(
            x * 2, "cpu" if kind == "cpu" else backend.samples().other_device()
        )
        (copied**2).sum().backward(retain_graph=True)
        (copied**3).sum().backward()
    return x.grad.tolist()


def test_paddle_runs_two_backwards_through_a_copy_on_the_host():
    assert two_backwards_through_a_copy("cpu") == [32, 32]


@pytest.mark.gpu
@pytest.mark.virtual
def test_paddle_refuses_a_second_backward_through_a_copy_to_a_gpu():
    with pytest.raises(
        OSError, match=r"UnsupportedError: paddle cannot run backward\(\) a second time.*copy"
    ):
        two_backwards_through_a_copy("gpu")


HOOKED = {
    "to_device": xdevice.to_device,
    "copy_to": xdevice.copy_to,
    "broadcast": lambda x, place: xdevice.parallel.broadcast(x, [place, place])[1],
    "gather": lambda x, place: xdevice.parallel.gather([x, x], place)[:2],
    "split_batch": lambda x, place: xdevice.split_batch(x, [place])[0],
}


@pytest.mark.parametrize(
    "place", ["cpu:0", pytest.param("gpu:0", marks=(pytest.mark.virtual, pytest.mark.gpu))]
)
@pytest.mark.parametrize("verb", HOOKED)
@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_what_a_hook_on_a_result_gives_is_the_gradient(name, verb, place):
    if name not in xdevice.backends():
        pytest.skip(f"{name} is not installed")
    with xdevice.use_backend(name) as backend:
        if not backend.has(xdevice.device(place)):
            pytest.skip(f"{name} has no {place}")
        if place != "cpu:0" and name in NO_KERNELS:
            pytest.skip(f"{name} has no kernels for this GPU")
        x = backend.samples().marked(xdevice.ones(2, device="cpu"))
        result = HOOKED[verb](x * 2, place)
        result.register_hook(lambda gradient: gradient * 3)
        result.sum().backward()
    assert xdevice.device_of(result) is xdevice.device(place)
    assert xdevice.to_numpy(x.grad).tolist() == [6, 6]
