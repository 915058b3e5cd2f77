"""tensordict: a TensorDict is a Mapping with a batch size, names, a device and a lock, which a dict does not have."""

from __future__ import annotations

import warnings

import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensordict import (
        LazyStackedTensorDict,
        NonTensorData,
        NonTensorStack,
        TensorDict,
        TensorDictParams,
        tensorclass,
    )
    from tensordict.nn import TensorDictModule


def flat():
    return TensorDict(
        {"a": torch.arange(12.0).reshape(4, 3), "b": torch.arange(4)},
        batch_size=[4],
        names=["time"],
    )


def no_batch():
    return TensorDict({"a": torch.arange(3.0)}, batch_size=[])


def placed():
    """It says of itself where it is."""
    return TensorDict({"a": torch.arange(12.0).reshape(4, 3)}, batch_size=[4], device="cpu")


def nested():
    inside = TensorDict(
        {"c": torch.arange(24.0).reshape(4, 3, 2)}, batch_size=[4, 3], names=["time", "agent"]
    )
    return TensorDict(
        {"a": torch.ones(4, dtype=torch.bfloat16), "next": inside},
        batch_size=[4],
        names=["time"],
    )


def locked():
    return nested().lock_()


def locked_inside():
    td = nested()
    td["next"].lock_()
    return td


def with_text():
    return TensorDict(
        {"a": torch.arange(4.0), "task": NonTensorData("walk", batch_size=[4])}, batch_size=[4]
    )


def lazy():
    return LazyStackedTensorDict(flat(), flat() + 1, stack_dim=0)


@tensorclass
class Transition:
    observation: torch.Tensor
    label: str
    inner: TensorDict = None


def transition():
    return Transition(
        observation=torch.arange(8.0).reshape(4, 2), label="cat", inner=flat(), batch_size=[4]
    )


def params():
    return TensorDictParams(
        TensorDict({"w": torch.arange(3.0), "in": {"b": torch.zeros(2)}}, batch_size=[])
    )


class Net(torch.nn.Module):
    """A model whose parameters are a TensorDict."""

    def __init__(self):
        super().__init__()
        self.params = params()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))


def policy():
    torch.manual_seed(0)
    return TensorDictModule(torch.nn.Linear(3, 2), in_keys=["a"], out_keys=["action"])


def tensors(td):
    names = sorted(td.keys(include_nested=True, leaves_only=True), key=str)
    found = {str(name): td.get(name) for name in names}
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def from_dict(read, prefix=()):
    """`TensorDict.numpy()` is a dict of arrays, so what to_numpy gives may be one."""
    found = {}
    for key, value in read.items():
        if hasattr(value, "items"):
            found |= from_dict(value, (*prefix, key))
        elif not isinstance(value, str):
            found[str((*prefix, key)) if prefix else key] = value
    return dict(sorted(found.items()))


def facts(td):
    inside = [
        (key, x.batch_size, x.names, x.is_locked)
        for key, x in td.items()
        if hasattr(x, "batch_size")
    ]
    texts = [x for _, x in td.items() if isinstance(x, str)]
    return (
        td.batch_size,
        td.names,
        td.is_locked,
        list(td.keys()),
        inside,
        texts,
        getattr(td, "stack_dim", None),
    )


def lazy_tensors(td):
    return {
        f"{i}.{name}": x
        for i, part in enumerate(td.tensordicts)
        for name, x in tensors(part).items()
    }


def class_tensors(x):
    return {"observation": x.observation, **tensors(x.inner)}


def class_facts(x):
    return x.batch_size, x.label, x.inner.names, x.is_locked, type(x.inner)


def parameters(model):
    return dict(model.named_parameters())


def model_facts(model):
    owned = getattr(model, "params", model)
    return (
        [isinstance(p, torch.nn.Parameter) for p in model.parameters()],
        getattr(owned, "batch_size", None),
        list(model.state_dict()),
    )


def td(make):
    return Peer(make, tensors, facts, numpy=from_dict, splits=True, replicates=False)


class TestTensorDict(Laws):
    peers = {
        "flat": td(flat),
        "placed": td(placed),
        "no_batch": Peer(no_batch, tensors, facts, numpy=from_dict, replicates=False),
        "nested": td(nested),
        "locked": td(locked),
        "locked_inside": td(locked_inside),
        "with_text": Peer(
            with_text, tensors, facts, numpy=from_dict, reads=False, replicates=False
        ),
        "lazy": Peer(lazy, lazy_tensors, facts, reads=False, replicates=False),
        "tensorclass": Peer(
            transition,
            class_tensors,
            class_facts,
            numpy=lambda read: (
                {"observation": read["observation"], **from_dict(read["inner"])}
                if isinstance(read, dict)
                else {"observation": read.observation, **from_dict(read.inner)}
            ),
            reads=False,
            splits=True,
            replicates=False,
        ),
        "params": Peer(params, parameters, model_facts, is_model=True),
        "module_with_params": Peer(
            Net, parameters, model_facts, is_model=True, moves_in_place=True
        ),
        "tensordict_module": Peer(
            policy, parameters, model_facts, is_model=True, moves_in_place=True
        ),
    }


def test_it_does_not_say_that_it_is_where_it_was(place):
    for verb in (xdevice.to_device, xdevice.copy_to):
        for make in (flat, placed, nested, locked):
            moved = verb(make(), place)
            assert moved.device in (None, xdevice.backend("torch").to_native(place))
            assert moved["a"].device == xdevice.backend("torch").to_native(place)
        assert verb(placed(), place).device == xdevice.backend("torch").to_native(place)


def test_its_own_operations_go_on(place):
    moved = xdevice.to_device(nested(), place)
    stacked = torch.stack([moved, moved.clone()])
    assert stacked.batch_size == (2, 4)
    assert moved[1:3]["next", "c"].shape == (2, 3, 2)
    assert place_of(moved.reshape(2, 2)["a"]) is place
    assert moved["next"].names == ["time", "agent"]


def test_a_locked_one_stays_locked(place):
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(RuntimeError, match="locked"):
            verb(locked(), place)["new"] = torch.ones(4)


def test_parts_of_a_batch_have_a_batch_size_of_their_own():
    parts = xdevice.split_batch(nested(), ["gpu:0", "gpu:1", "cpu"], even=False)
    assert [part.batch_size for part in parts] == [(2,), (1,), (1,)]
    assert [part["next"].batch_size for part in parts] == [(2, 3), (1, 3), (1, 3)]
    assert [part.names for part in parts] == [["time"]] * 3
    whole = xdevice.parallel.gather(parts, "cpu")
    assert type(whole) is TensorDict
    assert whole.batch_size == (4,)
    assert host(whole["next", "c"]).tolist() == host(nested()["next", "c"]).tolist()


def test_a_module_of_it_computes_where_it_is(place):
    expected = policy()(flat())["action"]
    moved = xdevice.to_device(policy(), place)(xdevice.to_device(flat(), place))["action"]
    assert place_of(moved) is place
    torch.testing.assert_close(moved.cpu(), expected)


@pytest.mark.parametrize("verb", [xdevice.to_device, xdevice.copy_to])
def test_tensors_in_what_is_not_a_tensor_are_not_left_behind(verb):
    x = flat()
    x["next"] = TensorDict({"b": torch.ones(4)}, batch_size=[4])
    x["next"].set_non_tensor("state", {"h": torch.ones(2)})
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"\['next'\]\['state'\]\['h'\] of a TensorDict"
    ):
        verb([x], "gpu:1")
    assert xdevice.device_of(x) is xdevice.cpu()
    assert not xdevice.same_device(x.to(xdevice.backend("torch").to_native(xdevice.gpu(1))))
    assert xdevice.device_of(verb(x, "cpu")) is xdevice.cpu()


def with_texts():
    return TensorDict(
        {"a": torch.arange(4.0), "task": NonTensorStack("walk", "run", "walk", "sit")},
        batch_size=[4],
    )


def test_texts_of_rows_go_with_their_rows(place):
    texts = with_texts()["task"]
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved = verb(with_texts(), place)
        assert place_of(moved["a"]) is place
        assert list(moved["task"]) == list(texts)
    replicas = xdevice.parallel.replicate(with_texts(), ["gpu:0", "gpu:1"])
    assert [list(replica["task"]) for replica in replicas] == [list(texts)] * 2
    assert list(xdevice.to_numpy(with_texts())["task"]) == list(texts)


def test_texts_of_rows_are_split_and_joined_by_the_librarys_methods():
    advice = r"with its own method split, or join the parts with torch.cat"
    with pytest.raises(xdevice.errors.ContainerError, match=advice):
        xdevice.split_batch(with_texts(), ["gpu:0", "gpu:1"])
    parts = with_texts().split(2)
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"\['task'\]\['1'\]\['data'\] is 'sit'"
    ):
        xdevice.parallel.gather(parts, "cpu")
    moved = [xdevice.to_device(part, f"gpu:{i}") for i, part in enumerate(parts)]
    whole = torch.cat([xdevice.to_device(part, "cpu") for part in moved])
    assert list(whole["task"]) == list(with_texts()["task"])
    with pytest.raises(xdevice.errors.ContainerError, match=advice):
        xdevice.parallel.gather([parts[0], parts[0]], "cpu")


def test_parts_with_different_texts_are_not_joined():
    for make in (with_text, transition):
        first, second = make(), make()
        second.set_non_tensor("task" if make is with_text else "label", "fly")
        with pytest.raises(xdevice.errors.ContainerError, match=r"parts\[1\].* is 'fly'"):
            xdevice.parallel.gather([first, second], "cpu")
