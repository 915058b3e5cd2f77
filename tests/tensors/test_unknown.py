"""What is on no list of ours: tensors, devices and optimizers of kinds that no adapter knows are refused by name."""

from __future__ import annotations

import copy
import warnings
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.environment import framework, printed

import xdevice
from xdevice.errors import UnsupportedError


@pytest.fixture(scope="module")
def torch():
    return framework("torch")


# tensors


def wrapper(torch):
    """Made of another tensor, as a DTensor and many quantized ones are; its own memory is none."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device
            )

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = torch.utils._pytree.tree_map_only(
                cls, lambda x: x.inner, (args, kwargs or {})
            )
            found = func(*plain[0], **plain[1])
            return torch.utils._pytree.tree_map_only(torch.Tensor, cls, found)

    return Wrapper(torch.ones(2, 2))


VERBS = {
    "to_numpy": xdevice.to_numpy,
    "item": lambda x: xdevice.item(x[0, 0]),
    "convert": lambda x: xdevice.convert(x, "numpy"),
    "convert with a copy": lambda x: xdevice.convert(x, "numpy", copy=True),
    "convert to its own": lambda x: xdevice.convert(x, "torch"),
    "compare": lambda x: xdevice.parity.compare(x, x),
    "all_reduce": lambda x: xdevice.parallel.all_reduce([x, x]),
    "gather": lambda x: xdevice.parallel.gather([x, x], "cpu"),
    "split_batch": lambda x: xdevice.split_batch(x, ["cpu", "cpu"]),
    "replicate": lambda x: xdevice.parallel.replicate(x, ["cpu"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_memory_of_a_tensor_that_is_made_of_others_is_not_taken_for_its_values(torch, verb):
    with pytest.raises(UnsupportedError, match="Wrapper"):
        VERBS[verb](wrapper(torch))


def test_files_of_tensors_that_are_made_of_others_are_neither_written_nor_read_into(
    torch, tmp_path
):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UnsupportedError, match="made up of other tensors"):
        xdevice.save(path, {"x": wrapper(torch)})
    xdevice.save(path, {"x": torch.zeros(2, 2)})
    held = wrapper(torch)
    with pytest.raises(UnsupportedError, match="made up of other tensors"):
        xdevice.load(path, into={"x": held})
    assert held.inner.tolist() == [[1, 1], [1, 1]]


def test_it_is_moved_and_copied_as_its_class_says(torch):
    x = wrapper(torch)
    assert xdevice.device_of(x) is xdevice.cpu()
    assert xdevice.to_device(x, "meta").inner.is_meta
    assert xdevice.copy_to(x, "cpu").inner is not x.inner


def test_a_subclass_that_leaves_the_operations_to_torch_is_a_tensor_as_any(torch):
    class Labelled(torch.Tensor):
        pass

    x = torch.ones(2, 2).as_subclass(Labelled)
    for verb in VERBS.values():
        verb(x)


def test_what_is_on_its_way_to_the_host_is_a_tensor_as_any(torch):
    from xdevice_torch import staging

    def coming():
        return staging.arriving(torch.ones(2), lambda: None)

    assert [x.tolist() for x in xdevice.parallel.all_reduce([coming(), coming()])] == [
        [2, 2],
        [2, 2],
    ]
    assert xdevice.convert(coming(), "numpy").tolist() == [1, 1]
    assert xdevice.parallel.replicate(coming(), ["cpu"])[0].tolist() == [1, 1]


# copies that are none


def own_copies(torch):
    """Tensors and models whose classes say of themselves that they are their own copies."""

    class OwnCopy(torch.Tensor):
        def to(self, *args, **kwargs):
            return self

        detach = clone = to

    class SameMemory(torch.Tensor):
        def to(self, *args, **kwargs):
            return self.view_as(self)

    class OwnModel(torch.nn.Linear):
        def __deepcopy__(self, memo):
            return self

    tensors = [torch.ones(2).as_subclass(cls) for cls in (OwnCopy, SameMemory)]
    return [*tensors, OwnModel(1, 1), torch.nn.Sequential(OwnModel(1, 1))]


def test_a_copy_that_is_no_copy_is_refused(torch):
    for x in own_copies(torch):
        for copied in (
            lambda x: xdevice.copy_to(x, "cpu"),
            lambda x: xdevice.copy_to({"x": [x]}, "cpu"),
            lambda x: xdevice.parallel.replicate(x, ["cpu"]),
            lambda x: xdevice.parallel.broadcast(x, ["cpu"]),
        ):
            with pytest.raises(UnsupportedError, match=r"Own|SameMemory|Sequential"):
                copied(x)
    for x in own_copies(torch)[:2]:
        with pytest.raises(UnsupportedError, match=r"OwnCopy|SameMemory"):
            list(xdevice.prefetch([x], "cpu"))


def test_a_move_that_is_no_move_is_refused(torch):
    x = own_copies(torch)[0]
    for non_blocking in (False, True):
        with pytest.raises(UnsupportedError, match="OwnCopy"):
            xdevice.to_device(x, "meta", non_blocking)


# devices


def test_a_device_of_a_type_that_xdevice_does_not_know_is_refused_by_name(torch):
    """PyTorch's own deferred device, which every build has: to return at once would be to say that its work is done."""
    assert printed(
        "-c",
        dedent("""
        import torch, torch._lazy.ts_backend
        import xdevice
        from xdevice.errors import UnsupportedError
        torch._lazy.ts_backend.init()
        x = torch.ones(3, device="lazy") + 1
        net = torch.nn.Linear(1, 1).to("lazy")
        cpu = torch.ones(3)
        for ask in (
            lambda: xdevice.device_of(x), lambda: xdevice.device_of([x]), lambda: xdevice.device_of(net),
            lambda: xdevice.same_device(x, cpu), lambda: xdevice.same_device(x, x),
            lambda: xdevice.check_same_device(x, x),
            lambda: xdevice.sync(x), lambda: xdevice.sync([x]), lambda: xdevice.sync(net),
            lambda: xdevice.sync(x.device),
            lambda: xdevice.Timer(x).stop(), lambda: xdevice.measure(lambda: x + 1, devices=x),
            lambda: xdevice.parallel.all_reduce([x, x]), lambda: xdevice.convert(x, "numpy"),
            lambda: xdevice.to_device(net, "cpu"),
        ):
            try:
                ask()
            except UnsupportedError as error:
                assert "of the type 'lazy'" in str(error), error
            else:
                raise AssertionError("it was taken")
        # PyTorch brings the values itself, and waits for them
        assert xdevice.to_device(x, "cpu").tolist() == xdevice.copy_to([x], "cpu")[0].tolist() == [2, 2, 2]
        assert xdevice.to_numpy(x).tolist() == [2, 2, 2]
        assert not xdevice.parity.compare(x, cpu + 1, check_device=True).ok
        assert xdevice.parity.compare(x, cpu + 1).ok
        with xdevice.transfers() as log:
            x.cpu()
        assert [(str(one.source), str(one.destination)) for one in log] == [("lazy:0", "cpu:0")], log
        print("refused")
    """),
    ).endswith("refused")


def test_contexts_of_mxnet_that_are_of_no_known_type_are_not_the_host():
    mx = framework("mxnet")
    assert xdevice.device(mx.cpu_pinned(0)) is xdevice.cpu()
    assert xdevice.device(mx.Context("cpu_shared", 0)) is xdevice.cpu()
    odd = mx.cpu()
    odd.device_typeid = 9
    mx.Context.devtype2str[9] = "npu"
    try:
        with pytest.raises(UnsupportedError, match="npu"):
            xdevice.device(odd)
    finally:
        del mx.Context.devtype2str[9]


def test_a_tensor_of_paddle_that_is_spread_over_processes_is_named():
    paddle = framework("paddle")
    mesh = paddle.distributed.ProcessMesh([0], dim_names=["x"])
    x = paddle.distributed.shard_tensor(
        paddle.ones([2, 2]), mesh, [paddle.distributed.Replicate()]
    )
    for verb in (
        xdevice.to_numpy,
        lambda x: xdevice.copy_to(x, "cpu"),
        lambda x: xdevice.convert(x, "numpy"),
    ):
        with pytest.raises(UnsupportedError, match="spread over processes"):
            verb(x)


def test_arrays_on_several_devices_are_told_apart_by_which():
    framework("jax")
    assert printed(
        "-c",
        dedent("""
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, xdevice
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        def spread(x, devices):
            return jax.device_put(x, NamedSharding(Mesh(np.array(devices), ("a",)), PartitionSpec("a")))
        xdevice.backend("jax")
        x = jax.numpy.ones(4)
        with xdevice.transfers() as log:
            one = spread(x, jax.devices()[:2])
        assert [(str(r.source), str(r.destination)) for r in log] == [("cpu:0", "cpu:1")], log
        other = spread(x, jax.devices()[2:])
        assert xdevice.parity.compare(one, one, check_device=True).ok
        assert xdevice.parity.compare(one, other).ok
        assert not xdevice.parity.compare(one, other, check_device=True).ok
        print("apart")
    """),
    ).endswith("apart")


# state


def test_the_state_of_an_optimizer_moves_whatever_containers_it_is_in(torch):
    p = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.SGD([p], lr=torch.tensor(0.1))
    state = {
        "pair": (torch.ones(1), torch.zeros(1)),
        "inner": {"m": [torch.ones(1)]},
        "step": torch.ones(()),
    }
    optimizer.state[p] = state
    xdevice.to_device(optimizer, "meta")
    found = optimizer.state[p]
    assert [x.is_meta for x in (*found["pair"], found["inner"]["m"][0])] == [True] * 3
    assert not found["step"].is_meta
    assert xdevice.device_of(optimizer) is xdevice.device("meta")


def test_state_of_an_unknown_type_moves_nothing(torch):
    p = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.SGD([p])
    optimizer.state[p] = {"m": torch.ones(1), "factors": SimpleNamespace(left=torch.ones(1))}
    with pytest.raises(UnsupportedError, match="'factors' contains a SimpleNamespace"):
        xdevice.to_device(optimizer, "meta")
    assert not optimizer.state[p]["m"].is_meta


def test_an_optimizer_around_another_one_is_refused(torch):
    p = torch.nn.Parameter(torch.ones(2, device="meta"))
    inner, outer = torch.optim.Adam([p]), torch.optim.SGD([p])
    outer.base_optimizer = inner
    outer.state[p] = {"m": torch.ones(1)}
    with pytest.raises(
        UnsupportedError, match="stores an object of type Adam outside its state"
    ):
        xdevice.to_device(outer, "meta")


def test_an_optimizer_of_paddle_with_a_state_of_its_own_is_neither_moved_nor_saved(tmp_path):
    paddle = framework("paddle")
    net = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.LBFGS(parameters=net.parameters())

    def closure():
        optimizer.clear_grad()
        loss = net(paddle.ones([3, 2])).square().sum()
        loss.backward()
        return loss

    xdevice.to_device(optimizer, "cpu")  # without any state yet
    with warnings.catch_warnings():  # of Paddle's own line
        warnings.simplefilter("ignore")
        optimizer.step(closure)
    for verb in (
        lambda: xdevice.to_device(optimizer, "cpu"),
        lambda: xdevice.save(tmp_path / "o", optimizer),
    ):
        with pytest.raises(
            UnsupportedError,
            match="the optimizer LBFGS, which stores tensors in its attribute state",
        ):
            verb()


def test_what_a_layer_of_paddle_has_in_its_state_beside_tensors_is_named(tmp_path):
    paddle = framework("paddle")

    class Counting(paddle.nn.Linear):
        def state_dict(self, *args, **kwargs):
            return {**super().state_dict(*args, **kwargs), "epoch": 3}

    with pytest.raises(
        UnsupportedError, match="epoch of this model, because it is of type int"
    ):
        xdevice.save(tmp_path / "net", Counting(1, 1))


def test_an_optimizer_of_mxnet_with_a_state_of_its_own_is_neither_moved_nor_saved(tmp_path):
    mx = framework("mxnet")

    class Keeping(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return {"m": mx.nd.zeros(weight.shape, ctx=weight.ctx)}

        def update(self, index, weight, grad, state):
            pass

    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), Keeping())
    with mx.autograd.record():
        loss = net(mx.np.ones((1, 1)) if mx.util.is_np_array() else mx.nd.ones((1, 1))).sum()
    loss.backward()
    trainer.step(1)
    before = copy.copy(net.weight.list_ctx())
    for verb in (
        lambda: xdevice.to_device(net, "cpu:1"),
        lambda: xdevice.save(tmp_path / "t", trainer),
    ):
        with pytest.raises(UnsupportedError, match="keeps state of type dict"):
            verb()
    assert net.weight.list_ctx() == before
    np.testing.assert_array_equal(xdevice.to_numpy(net.bias), [0])
