"""States that do not fit as a whole: other heads, prefixes, nested ones, other dtypes, adapters."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import xdevice

torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
nn = torch.nn


class Net(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fc = nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


class Other(paddle.nn.Layer):
    def __init__(self, classes=5):
        super().__init__()
        self.body = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4))
        self.fc = paddle.nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean([2, 3]))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = Net().eval()
    made.body[1].running_mean.normal_()
    return made


IMAGES = np.linspace(-1, 1, 2 * 3 * 36, dtype="float32").reshape(2, 3, 6, 6)


def assert_ported(source, net, *done, **options):
    like = Other()
    state = xdevice.models.convert_state(source, "paddle", like=like, **options)
    assert state.done == list(done)
    xdevice.load(state, into=like)
    xdevice.assert_parity(like, net, inputs=IMAGES)
    return state


# prefixes and nesting


def test_prefixes_are_taken_off_and_said(net):
    state = net.state_dict()
    assert_ported(
        {f"module.{k}": x for k, x in state.items()}, net, "removed 'module.' from 9 names"
    )
    assert_ported(
        {f"_orig_mod.{k}": x for k, x in state.items()}, net, "removed _orig_mod from 9 names"
    )
    assert_ported(
        {f"model.module.{k}": x for k, x in state.items()},
        net,
        "removed 'model.module.' from 9 names",
    )
    inner = {k.replace("body.", "body._orig_mod."): x for k, x in state.items()}
    assert_ported(inner, net, "removed _orig_mod from 7 names")
    one = {k.replace("body.0.weight", "body._orig_mod.0.weight"): x for k, x in state.items()}
    assert_ported(one, net, "removed _orig_mod from 1 name")


def test_a_state_is_taken_out_of_what_a_training_program_saves(net, tmp_path):
    whole = {
        "epoch": 3,
        "state_dict": {f"model.{k}": x for k, x in net.state_dict().items()},
        "optimizer": {"state": {}},
    }
    done = (
        "read only the state under 'state_dict'",
        "removed 'model.' from 9 names",
    )
    assert_ported(whole, net, *done)
    torch.save(whole, tmp_path / "last.ckpt")
    assert_ported(tmp_path / "last.ckpt", net, *done)


def test_a_backbone_finds_its_place_in_a_model(net):
    class Whole(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.net, self.head = Other(), paddle.nn.Linear(5, 2)

    like = Whole()
    state = xdevice.models.convert_state(net.state_dict(), "paddle", like=like, skip=["head"])
    assert state.done == [
        "added 'net.' in front of 9 names",
        "head.weight, head.bias of paddle stay as they are, because of skip=",
    ]
    before = like.head.weight.numpy().copy()
    xdevice.load(state, into=like)
    xdevice.assert_parity(like.net, net, inputs=IMAGES)
    assert (like.head.weight.numpy() == before).all()


# heads


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_head_of_another_size_is_left_out(net, is_flat):
    source, like = Net(10), Other()
    given = source.state_dict() if is_flat else source
    with pytest.raises(xdevice.errors.StateError, match=r"skip=\['fc'\]"):
        xdevice.models.convert_state(given, "paddle", like=like)
    state = xdevice.models.convert_state(given, "paddle", like=like, skip=["fc"])
    assert state.unmapped == {}
    assert state.skipped == ["fc.weight", "fc.bias"]
    assert "fc.weight" not in state
    before = like.fc.weight.numpy().copy()
    xdevice.load(state, into=like)
    assert (like.fc.weight.numpy() == before).all()
    xdevice.assert_parity(like.body.state_dict()["0.weight"], source.body[0].weight)


def test_skip_is_checked(net):
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"'head', but neither model has parameters there; the layers are body\.0",
    ):
        xdevice.models.convert_state(net, "paddle", like=Other(), skip=["head"])
    with pytest.raises(xdevice.errors.ArgumentError, match="a list of paths"):
        xdevice.models.convert_state(net, "paddle", like=Other(), skip="fc")


# dtypes


def test_another_dtype_is_one_line_and_one_argument(net):
    half = {
        k: x.to(torch.bfloat16) if x.is_floating_point() else x
        for k, x in net.state_dict().items()
    }
    like = Other()
    state = xdevice.models.convert_state(half, "paddle", like=like)
    assert (
        "8 tensors are bfloat16, but float32 in paddle; pass dtype='like' to cast first"
        in state.differences
    )
    with pytest.raises(
        xdevice.errors.StateError,
        match="nothing was written:\n  8 tensors are bfloat16, expected float32",
    ) as raised:
        xdevice.load(state, into=like)
    assert len(str(raised.value)) < 300
    xdevice.load(
        xdevice.models.convert_state(half, "paddle", like=like, dtype="like"), into=like
    )
    assert like.fc.weight.numpy().T.tolist() == half["fc.weight"].float().tolist()
    state = xdevice.models.convert_state(net, "torch", dtype="bfloat16")
    assert state["fc.weight"].dtype is torch.bfloat16
    assert state["body.1.num_batches_tracked"].dtype is torch.int64


# adapters and quantised models


def test_what_adapters_and_quantisers_add_is_known():
    ours = {
        "fc.base_layer.weight": np.ones((2, 2)),
        "fc.lora_A.weight": np.ones((1, 2)),
        "fc.lora_B.weight": np.ones((2, 1)),
    }
    with pytest.raises(
        xdevice.errors.StateError,
        match="are parameters of LoRA; merge them into the weights first",
    ):
        xdevice.models.convert_state(ours, "numpy", kinds={})
    with pytest.raises(
        xdevice.errors.StateError,
        match="are parameters of a quantized model; convert the original checkpoint",
    ):
        xdevice.models.convert_state(
            {"fc.qweight": np.ones((2, 2), "int32")}, "numpy", kinds={}
        )


def test_lora_on_one_side_is_refused_and_told_how_to_merge(net):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer, self.lora_A, self.lora_B = (
                nn.Linear(4, 5),
                nn.Linear(4, 2),
                nn.Linear(2, 5),
            )

    source = Net()
    source.fc = Adapted()
    for adapted in (source, source.state_dict(), {"fc.lora_A.weight": torch.ones(2, 4)}):
        with pytest.raises(
            xdevice.errors.StateError,
            match=r"are parameters of LoRA; merge them into the weights first: with peft, call model\.",
        ):
            xdevice.models.convert_state(adapted, "paddle", like=Other())
    with pytest.raises(
        xdevice.errors.StateError, match="the source has none; pass a model without LoRA"
    ):
        xdevice.models.convert_state(net, "torch", like=source)
    both = xdevice.models.convert_state(source, "torch", like=copy.deepcopy(source))
    assert both.unmapped == {}


def test_a_file_of_adapters_does_not_load_into_a_model_without(net, tmp_path):
    xdevice.save(
        tmp_path / "adapter.safetensors",
        {"base_model.model.fc.lora_A.weight": torch.ones(2, 4)},
    )
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"does not fit into=: .* are parameters of LoRA; merge them into the weights first: with peft, call",
    ):
        xdevice.load(tmp_path / "adapter.safetensors", into=net)


# meta


def test_a_model_on_meta_takes_values_from_a_file(net, tmp_path):
    xdevice.save(tmp_path / "a.safetensors", net)
    with torch.device("meta"):
        like = Net().eval()
    state = xdevice.models.convert_state(tmp_path / "a.safetensors", "torch", like=like)
    assert {str(xdevice.device_of(x)) for x in state.values()} == {"cpu:0"}
    like.load_state_dict(state, assign=True)
    xdevice.assert_parity(like, net, inputs=IMAGES)
    with pytest.raises(xdevice.errors.DeviceNotFoundError, match="meta"):
        xdevice.models.convert_state(Net().to("meta"), "paddle", like=Other())
