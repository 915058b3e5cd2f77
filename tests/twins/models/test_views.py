"""The same architecture, written otherwise: tensors of no layer, layers that are joined, parameters of other shapes."""

import json
import pickle

import numpy as np
import pytest

import xdevice

RANDOM = np.random.default_rng(0)


def words(torch, width=8):
    return torch.tensor(RANDOM.standard_normal((2, 3, width)).astype("float32"))


def scattered(torch, model):
    """With values that tell its parameters apart."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor(RANDOM.standard_normal(parameter.shape) / 2))
    return model.eval()


def attentions(torch):
    """An attention with its layers in four forms."""
    nn = torch.nn

    class Base(nn.Module):
        def forward(self, x):
            q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.three(x))
            y = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
            return self.proj(y.transpose(1, 2).flatten(2))

    class Fused(Base):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

        def three(self, x):
            return self.qkv(x).chunk(3, -1)

    class Half(Base):
        def __init__(self):
            super().__init__()
            self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)

        def three(self, x):
            return self.q(x), *self.kv(x).chunk(2, -1)

    class Split(Base):
        def __init__(self):
            super().__init__()
            self.key, self.query, self.value, self.proj = (nn.Linear(8, 8) for _ in range(4))

        def three(self, x):
            return self.query(x), self.key(x), self.value(x)

    class Beside(Base):
        """As timm has it: the key has no bias, and the others are no layer's."""

        def __init__(self):
            super().__init__()
            self.q_bias, self.v_bias = (nn.Parameter(torch.ones(8)) for _ in range(2))
            self.qkv, self.proj = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)

        def three(self, x):
            bias = torch.cat([self.q_bias, torch.zeros(8), self.v_bias])
            return (self.qkv(x) + bias).chunk(3, -1)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    return {"fused": Fused, "half": Half, "split": Split, "whole": Whole, "beside": Beside}


@pytest.mark.parametrize("ours", ["fused", "half", "split", "whole"])
@pytest.mark.parametrize("theirs", ["fused", "half", "split", "whole"])
def test_query_key_and_value_are_joined_or_taken_apart(ours, theirs):
    torch = pytest.importorskip("torch")
    forms = attentions(torch)
    source, target = scattered(torch, forms[ours]()), scattered(torch, forms[theirs]())
    state = xdevice.models.convert_state(source, "torch", like=target)
    assert not state.unmapped
    xdevice.load(state, into=target)
    x = words(torch)
    xdevice.assert_parity(target(x), source(x))
    if {ours, theirs} == {"fused", "split"}:
        assert (
            "one linear layer is assumed to contain the rows of query, key and value in this order"
            in str(state)
        )
    if (ours, theirs) == ("fused", "split"):
        assert "from qkv.weight, a part of it" in str(state)


@pytest.mark.parametrize("form", ["fused", "split", "whole"])
def test_biases_of_query_and_value_may_be_tensors_of_no_layer(form):
    """The bias of the key changes no softmax: zeros stand for it, and what is left out of it is listed."""
    torch = pytest.importorskip("torch")
    forms = attentions(torch)
    source, other = (scattered(torch, forms[name]()) for name in ("beside", form))
    x = words(torch)
    state = xdevice.models.convert_state(source, "torch", like=other)
    if form == "split":
        assert [*state.unmapped] == ["key.bias"]  # the whole of a variable is left to the user
        state["key.bias"] = torch.zeros(8)
    else:
        assert any(
            "has no k_proj.bias, so it is set to zeros" in line for line in state.differences
        )
    xdevice.load(state, into=other)
    xdevice.assert_parity(other(x), source(x))

    other, again = scattered(torch, other), forms["beside"]()
    state = xdevice.models.convert_state(other, "torch", like=again)
    ((left, why),) = state.unmapped.items()
    assert "a bias can be left out only if it is zero" in why
    state.settle(left)
    xdevice.load(state, into=again)
    xdevice.assert_parity(again(x), other(x))
    with torch.no_grad():
        dict(other.named_parameters())[left][-16 : -8 or None].zero_()
    if form != "split":
        assert not xdevice.models.convert_state(other, "torch", like=again).unmapped


def named_parts(torch, parts, calls):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x):
            for name in calls:
                x = getattr(self, name)(x)
            return x

    return scattered(torch, Model())


def test_attentions_whose_names_contradict_their_right_order():
    torch = pytest.importorskip("torch")
    forms = attentions(torch)
    source = named_parts(
        torch,
        {name: forms["fused"]() for name in ("encoder", "decoder")},
        ["encoder", "decoder"],
    )
    target = named_parts(
        torch, {name: forms["split"]() for name in ("dec", "enc")}, ["dec", "enc"]
    )
    with pytest.raises(xdevice.errors.StateError, match="the names contradict their order"):
        xdevice.models.convert_state(source, "torch", like=target)
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=words(torch))
    assert state.pairs == {"encoder": "dec", "decoder": "enc"}


def test_attentions_that_only_one_model_calls_are_paired_beside_layers_that_inputs_tell():
    """The norms are neither in one order nor rightly named."""
    torch = pytest.importorskip("torch")
    forms, norm = attentions(torch), torch.nn.LayerNorm
    source = named_parts(
        torch,
        {
            "one": forms["split"](),
            "two": forms["split"](),
            "encoder": norm(8),
            "decoder": norm(8),
            "other": norm(8),
        },
        ["encoder", "one", "decoder", "two", "other"],
    )
    target = named_parts(
        torch,
        {
            "decoder": norm(8),
            "middle": norm(8),
            "encoder": norm(8),
            "a": forms["whole"](),
            "b": forms["whole"](),
        },
        ["middle", "a", "encoder", "b", "decoder"],
    )
    x = words(torch)
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=x)
    told = {
        "encoder": "middle",
        "one": "a.attention",
        "decoder": "encoder",
        "two": "b.attention",
        "other": "decoder",
    }
    assert state.pairs == told
    xdevice.load(state, into=target)
    xdevice.assert_parity(target(x), source(x))


def test_an_attention_of_fused_rows_goes_to_keras_and_back():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = scattered(torch, attentions(torch)["fused"]())
    x = keras.Input((3, 8))
    target = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    state = xdevice.models.convert_state(source, "tensorflow", like=target)
    assert "from qkv.weight, a part of it" in str(state)
    xdevice.load(state, into=target)
    again = attentions(torch)["fused"]()
    xdevice.load(xdevice.models.convert_state(target, "torch", like=again), into=again)
    xdevice.assert_parity(again, source)


def patches(torch, *, names=("cls", "positions"), scales=("scale1", "scale2")):
    """A model with tensors that are in no layer, under these names."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
            for name in scales:
                setattr(self, name, nn.Parameter(torch.ones(8)))

        def forward(self, x):
            one, two = (getattr(self, name) for name in scales)
            return x + two * self.down(torch.tanh(self.up(x * one)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            setattr(self, names[0], nn.Parameter(torch.ones(1, 1, 8)))
            setattr(self, names[1], nn.Parameter(torch.ones(1, 4, 8)))
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            first, positions = (getattr(self, name) for name in names)
            x = torch.cat([first.expand(len(x), 1, 8), x], 1) + positions
            for block in self.blocks:
                x = block(x)
            return x

    return scattered(torch, Model())


def test_tensors_of_no_layer_are_paired_and_listed():
    torch = pytest.importorskip("torch")
    source = patches(torch)
    target = patches(torch, names=("class_token", "embedding"), scales=("gamma_a", "gamma_b"))
    state = xdevice.models.convert_state(source, "torch", like=target)
    assert not state.unmapped
    assert state.pairs["cls"] == "class_token"
    assert state.pairs["blocks.1.scale2"] == "blocks.1.gamma_b"
    assert any("which belong to no known layer" in line for line in state.settings)
    xdevice.load(state, into=target)
    x = words(torch)
    xdevice.assert_parity(target(x), source(x))
    assert not xdevice.models.convert_state(source, "torch", like=target, inputs=x).settings


def test_a_pairing_is_a_dict_that_names_takes_again():
    torch = pytest.importorskip("torch")
    source, target = (
        patches(torch),
        patches(torch, names=("token", "place"), scales=("gamma_a", "gamma_b")),
    )
    state = xdevice.models.convert_state(source, "torch", like=target)
    told = json.loads(json.dumps(state.pairs))
    assert (
        xdevice.models.convert_state(source, "torch", like=target, names=told).pairs
        == state.pairs
    )
    assert pickle.loads(pickle.dumps(state)).pairs == state.pairs


def test_names_that_contradict_the_order_of_tensors_are_settled_by_inputs():
    torch = pytest.importorskip("torch")
    source = patches(torch, scales=("input_scale", "output_scale"))
    target = patches(torch, scales=("output", "input"))  # the first one is what enters
    state = xdevice.models.convert_state(source, "torch", like=target)
    assert (
        "a guess is names={'blocks.0.input_scale': 'blocks.0.input'}"
        in state.unmapped["blocks.0.input_scale"]
    )
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=words(torch))
    assert not state.unmapped
    assert state.pairs["blocks.0.input_scale"] == "blocks.0.output"
    state = xdevice.models.convert_state(
        source, "torch", like=target, names={"blocks.*.input_scale": "blocks.*.output"}
    )
    assert state.pairs["blocks.1.input_scale"] == "blocks.1.output"


def own_norm(torch):
    class OwnNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight

    return OwnNorm


@pytest.mark.parametrize("told", [None, {"*.norm": "rms_norm"}, {"OwnNorm": "rms_norm"}])
def test_a_norm_of_ones_own_is_a_norm(told):
    torch = pytest.importorskip("torch")
    blocks = [torch.nn.Sequential(*(torch.nn.Sequential() for _ in range(3))) for _ in range(2)]
    for block in blocks[0]:
        block.add_module("norm", own_norm(torch)())
    for block in blocks[1]:
        block.add_module("rms", torch.nn.RMSNorm(8, eps=1e-6))
    source, target = (scattered(torch, model) for model in blocks)
    state = xdevice.models.convert_state(source, "torch", like=target, kinds=told)
    assert not state.unmapped
    assert any(
        "computation and settings of 0.rms, 1.rms, 2.rms" in line for line in state.settings
    )
    xdevice.load(state, into=target)
    x = words(torch)
    xdevice.assert_parity(target(x), source(x))
    assert not xdevice.models.convert_state(source, "torch", like=target, inputs=x).settings


def own_linear(torch, is_transposed):
    class Product(torch.nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            sizes = (inputs, outputs) if is_transposed else (outputs, inputs)
            self.weight = torch.nn.Parameter(torch.ones(sizes))

        def forward(self, x):
            return x @ (self.weight if is_transposed else self.weight.T)

    return Product


def graph_net(torch, make):
    """Three graph convolutions over a ring, with the bias behind the sum over the neighbours."""

    class Convolution(torch.nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.lin = make(inputs, outputs)
            self.bias = torch.nn.Parameter(torch.ones(outputs))

        def forward(self, x):
            y = self.lin(x)
            return y + y.roll(1, 1) + self.bias

    return torch.nn.Sequential(Convolution(4, 8), Convolution(8, 8), Convolution(8, 3))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_linear_layers_of_ones_own_and_biases_that_the_code_adds(is_transposed):
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    nn = paddle.nn

    class Twin(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            for fc in (self.fc1, self.fc2, self.fc3):
                y = x @ fc.weight
                x = y + y.roll(1, 1) + fc.bias
            return x

    net = scattered(torch, graph_net(torch, own_linear(torch, is_transposed)))
    twin, x = Twin(), torch.tensor(RANDOM.standard_normal((2, 5, 4)).astype("float32"))
    state = xdevice.models.convert_state(net, "paddle", like=twin)
    assert not state.unmapped
    told = "\n".join(state.settings)
    assert "computation and settings of fc1, fc2, fc3" in told
    assert "where the bias of fc1, fc2, fc3 is added" in told
    xdevice.load(state, into=twin)
    xdevice.assert_parity(net, twin, inputs=x)
    assert not xdevice.models.convert_state(net, "paddle", like=twin, inputs=x).settings
    back = graph_net(torch, own_linear(torch, is_transposed))
    xdevice.load(xdevice.models.convert_state(twin, "torch", like=back), into=back)
    xdevice.assert_parity(back, net)


def test_square_weights_of_an_unknown_class_are_not_taken_for_linear_layers():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    net = torch.nn.Sequential(own_linear(torch, is_transposed=True)(8, 8))
    like = paddle.nn.Sequential(paddle.nn.Linear(8, 8, bias_attr=False))
    assert xdevice.models.convert_state(net, "paddle", like=like).unmapped


def test_linear_layers_of_ones_own_on_both_sides():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    class Product(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

        def call(self, x):
            return x @ self.kernel

    twin = keras.Sequential([keras.Input((4,)), Product()])
    net = scattered(torch, torch.nn.Sequential(own_linear(torch, is_transposed=False)(4, 3)))
    x = torch.ones(2, 4)
    state = xdevice.models.convert_state(net, "tensorflow", like=twin, inputs=x)
    assert not state.unmapped
    xdevice.load(state, into=twin)
    xdevice.assert_parity(net, twin, inputs=x)


def test_a_frozen_batch_norm_of_ones_own_is_a_batch_norm():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")

    class Frozen(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            for name in ("weight", "bias", "running_mean", "running_var"):
                self.register_buffer(name, torch.rand(size) + 0.5)

        def forward(self, x):
            y = (x - self.running_mean[:, None]) * (self.running_var[:, None] + 1e-5).rsqrt()
            return y * self.weight[:, None] + self.bias[:, None]

    nn = torch.nn
    net = nn.Sequential(nn.Conv1d(3, 4, 1), Frozen(4))
    nn = paddle.nn
    twin = nn.Sequential(nn.Conv1D(3, 4, 1), nn.BatchNorm1D(4))
    x = torch.rand(2, 3, 5)
    state = xdevice.models.convert_state(net, "paddle", like=twin, inputs=x)
    assert not state.unmapped
    assert not state.differences
    xdevice.load(state, into=twin)
    back = nn.Sequential(nn.Conv1D(3, 4, 1), nn.BatchNorm1D(4))
    xdevice.load(xdevice.models.convert_state(twin, "paddle", like=back), into=back)
    xdevice.load(xdevice.models.convert_state(back, "torch", like=net), into=net)
    xdevice.assert_parity(net, twin, inputs=x)


def test_pixels_along_one_axis_are_those_of_an_image():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.b, self.a = torch.nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4)
            self.conv = torch.nn.Conv2d(4, 4, 3)

        def forward(self, x):
            y = self.conv(self.a(x.flatten(2)).view(x.shape))
            return self.b(y.flatten(2)).view(y.shape)

    class Twin(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            nn = paddle.nn
            self.x, self.y = nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)
            self.conv = nn.Conv2D(4, 4, 3)

        def forward(self, x):
            return self.y(self.conv(self.x(x)))

    net, twin = scattered(torch, Net()), Twin()
    x = torch.tensor(RANDOM.standard_normal((2, 4, 6, 6)).astype("float32"))
    state = xdevice.models.convert_state(net, "paddle", like=twin, inputs=x)
    assert state.pairs == {"b": "y", "a": "x", "conv": "conv"}
    xdevice.load(state, into=twin)
    xdevice.assert_parity(net, twin, inputs=x)
    state = xdevice.models.convert_state(twin, "torch", like=net, inputs=x)
    assert state.pairs == {"x": "a", "y": "b", "conv": "conv"}


def test_a_kind_of_a_class_that_is_not_there_is_an_error():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        xdevice.errors.StateError, match="kinds= gives 'OtherNorm' the kind rms_norm"
    ):
        xdevice.models.convert_state(
            own_norm(torch)(), "torch", like=own_norm(torch)(), kinds={"OtherNorm": "rms_norm"}
        )


def test_names_with_a_pattern_of_nothing_are_an_error():
    torch = pytest.importorskip("torch")
    with pytest.raises(xdevice.errors.StateError, match="It matches 0 layers of torch"):
        xdevice.models.convert_state(
            patches(torch),
            "torch",
            like=patches(torch),
            names={"layer.*.scale": "blocks.*.scale1"},
        )


def test_a_1x1_convolution_on_a_pooled_image_is_a_linear_layer():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    stem = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)
    source = scattered(
        torch, nn.Sequential(*stem, nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(6, 2))
    )
    target = scattered(
        torch, nn.Sequential(*stem, nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 2))
    )
    x = torch.tensor(RANDOM.standard_normal((2, 3, 5, 5)).astype("float32"))
    for one, other in ((source, target), (target, source)):
        state = xdevice.models.convert_state(one, "torch", like=other, inputs=x)
        assert not state.unmapped
        assert ", reshaped" in str(state)
        xdevice.load(state, into=other)
        xdevice.assert_parity(other(x), one(x))


def test_a_convolution_over_the_whole_image_is_a_linear_layer_and_listed():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    source = scattered(
        torch,
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6, 2)),
    )
    target = scattered(
        torch,
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 6), nn.Linear(6, 2)),
    )
    x = torch.tensor(RANDOM.standard_normal((2, 3, 5, 5)).astype("float32"))
    for one, other in ((source, target), (target, source)):
        state = xdevice.models.convert_state(one, "torch", like=other)
        assert not state.unmapped
        assert ", reshaped" in str(state)
        assert any(
            "the order in which the image is flattened" in line for line in state.settings
        )
        xdevice.load(state, into=other)
        xdevice.assert_parity(other(x), one(x))
        assert not xdevice.models.convert_state(one, "torch", like=other, inputs=x).settings


def test_layers_in_one_order_for_each_kind_are_paired_and_listed():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def model(*names):
        every = {
            "up": nn.Linear(8, 8),
            "down": nn.Linear(8, 8),
            "before": nn.LayerNorm(8),
            "after": nn.LayerNorm(8),
        }
        return scattered(torch, nn.ModuleDict({name + "_": every[name] for name in names}))

    source, target = (
        model("before", "up", "down", "after"),
        model("up", "down", "before", "after"),
    )
    target = nn.Sequential(*target.values())
    state = xdevice.models.convert_state(source, "torch", like=target)
    assert state.pairs == {"before_": "2", "up_": "0", "down_": "1", "after_": "3"}
    assert any(
        "layers of the same kind are paired in their order" in line for line in state.settings
    )


# inputs= settles what it can


def test_a_target_that_does_not_run_is_listed_with_the_layer_that_failed():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    source = nn.Sequential(nn.Flatten(), nn.Linear(24, 4))
    target = nn.Sequential(nn.Linear(24, 4))
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=words(torch))
    assert not state.unmapped
    (line,) = [
        line
        for line in state.settings
        if "inputs= does not show which layers correspond" in line
    ]
    assert "failed in 0 on inputs=" in line
    assert "cannot be multiplied" in line


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interruption_is_no_fault_of_the_model(error):
    torch = pytest.importorskip("torch")

    class Slow(torch.nn.Linear):
        def forward(self, x):
            raise error

    with pytest.raises(error):
        xdevice.models.convert_state(Slow(8, 8), "torch", like=Slow(8, 8), inputs=words(torch))


def test_inputs_that_tell_no_function_from_another_are_listed():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    class Mlp(torch.nn.Module):
        def __init__(self, form):
            super().__init__()
            self.form = form
            self.up, self.down = (
                torch.nn.Linear(*sizes, bias=False) for sizes in ((8, 16), (16, 8))
            )

        def forward(self, x):
            return self.down(functional.gelu(self.up(x), approximate=self.form))

    source, target = Mlp("none"), Mlp("tanh")
    small, large = words(torch) / 10, words(torch) * 3
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=small)
    assert any(
        line.startswith("not compared: the functions after up; ") for line in state.differences
    )
    state = xdevice.models.convert_state(source, "torch", like=Mlp("none"), inputs=large)
    assert not any("the functions after" in line for line in state.differences)
    state = xdevice.models.convert_state(source, "torch", like=target, inputs=large)
    assert any("the outputs on inputs= are" in line for line in state.differences)


def test_a_refusal_has_all_of_its_guess():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    source = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)), nn.Linear(8, 9))
    target = nn.Sequential(nn.Linear(8, 9), *(nn.Linear(8, 8) for _ in range(12)))
    source, target = nn.ModuleDict({f"a{n}": x for n, x in enumerate(source)}), target
    with pytest.raises(
        xdevice.errors.StateError, match="the error's attribute `pairs` has the whole dict"
    ) as refusal:
        xdevice.models.convert_state(source, "torch", like=target)
    assert len(refusal.value.pairs) == 13
    state = xdevice.models.convert_state(
        source, "torch", like=target, names=refusal.value.pairs
    )
    assert state.pairs == refusal.value.pairs
