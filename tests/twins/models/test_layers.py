"""Attention, Transformers, norms of groups, and recurrent layers in stacks: by their outputs, every ordered pair."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from helpers.environment import WITH_MODELS, framework
from helpers.model_pairs import IMAGE, SEQUENCE, outputs, ported, randomised

import xdevice

ALL = list(permutations(WITH_MODELS, 2))
TWO = [("torch", "paddle"), ("paddle", "torch")]
RING = [
    ("torch", "tensorflow"),
    ("tensorflow", "paddle"),
    ("paddle", "mxnet"),
    ("mxnet", "torch"),
]
WITHOUT_GLUON = [pair for pair in ALL if "mxnet" not in pair]


def pairs_of(builds):
    every = [(build, *pair) for build, pairs in builds for pair in sorted(pairs)]
    return [
        pytest.param(*case, id=f"{case[0].__name__}-{'-'.join(case[1:])}") for case in every
    ]


def slow(case):
    return pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)


def nn_of(name):
    return framework(name).nn


def gluon(make):
    mx = framework("mxnet")
    xdevice.backend("mxnet").namespace().enter()
    block = make(mx.gluon)
    block.initialize()
    return block


def apart(came, expected):
    """The largest difference, by the largest number."""
    assert np.abs(expected).max() > 0.01
    return np.abs(came - expected).max() / max(1, np.abs(expected).max())


def legacy(make):
    """A Gluon block that takes no `mx.np` tensors, and what makes it take them."""
    mx = framework("mxnet")
    with mx.util.np_array(False):
        block = make(mx.gluon)
        block.initialize()
    forward = block.forward

    def taking(x):
        with mx.util.np_array(False):
            return forward(x.as_nd_ndarray()).as_np_ndarray()

    block.forward = taking
    return block


def keras(way, *shapes):
    """A functional model of as many inputs."""
    import keras

    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, way(keras.layers, *inputs))


def group_norm(name):
    if name == "torch":
        return nn_of(name).GroupNorm(2, 4)
    if name == "paddle":
        return nn_of(name).GroupNorm(2, 4)
    return keras(lambda kl, x: kl.GroupNormalization(2, epsilon=1e-5)(x), (7, 7, 4))


def instance_norm(name):
    if name == "torch":
        return nn_of(name).InstanceNorm2d(4, affine=True)
    if name == "paddle":
        return nn_of(name).InstanceNorm2D(4)
    if name == "mxnet":
        return legacy(lambda gluon: gluon.nn.InstanceNorm(in_channels=4))
    return keras(lambda kl, x: kl.GroupNormalization(-1, epsilon=1e-5)(x), (7, 7, 4))


def recurrent(kind, layers=1, both=False):
    """A stack of layers in Keras."""

    def build(name):
        if name == "torch":
            return getattr(nn_of(name), kind)(
                4, 4, num_layers=layers, bidirectional=both, batch_first=True
            )
        if name == "paddle":
            cls = getattr(nn_of(name), "SimpleRNN" if kind == "RNN" else kind)
            return cls(4, 4, num_layers=layers, direction="bidirect" if both else "forward")
        if name == "mxnet":
            more = {"activation": "tanh"} if kind == "RNN" else {}
            make = {"bidirectional": both, "input_size": 4, "layout": "NTC", **more}
            return gluon(lambda gluon: getattr(gluon.rnn, kind)(4, layers, **make))

        def stack(kl, x):
            cls = getattr(kl, "SimpleRNN" if kind == "RNN" else kind)
            for _ in range(layers):
                one = cls(4, return_sequences=True)
                x = (kl.Bidirectional(one) if both else one)(x)
            return x

        return keras(stack, (5, 4))

    build.__name__ = f"{kind}_of_{layers}{'_both_ways' * both}"
    return build


RECURRENT = [recurrent("RNN"), recurrent("RNN", both=True)] + [
    recurrent(kind, layers, both)
    for kind in ("RNN", "LSTM", "GRU")
    for layers, both in ((3, False), (2, True))
]


@pytest.mark.parametrize(
    ("build", "here", "there"),
    pairs_of(
        [
            (group_norm, WITHOUT_GLUON),
            (instance_norm, ALL),
            *((build, RING) for build in RECURRENT),
        ]
    )
    + [slow(case) for case in pairs_of((build, set(ALL) - set(RING)) for build in RECURRENT)],
)
def test_a_layer_computes_the_same_elsewhere(build, here, there):
    x = IMAGE if "norm" in build.__name__ else SEQUENCE
    # the weights of seed 0 make three layers of tanh enlarge rounding to 1.01e-6
    source, target, state = ported(
        build, here, there, seed=2 if build.__name__ == "RNN_of_3" else 0
    )
    assert state.differences == []
    expected = outputs(here, source, x)
    assert np.abs(expected).max() > 0.01
    assert apart(outputs(there, target, x), expected) < 1e-6


# attention


def attention(name, bias=True, dims=(4, 4), heads=2, **more):
    """One that is asked for queries, keys and values."""
    if name == "torch":
        return nn_of(name).MultiheadAttention(
            4, heads, bias=bias, kdim=dims[0], vdim=dims[1], batch_first=True, **more
        )
    if name == "paddle":
        return nn_of(name).MultiHeadAttention(
            4, heads, kdim=dims[0], vdim=dims[1], bias_attr=None if bias else False
        )
    way = {"use_bias": bias, "value_dim": 4 // heads, **more}
    return keras(
        lambda kl, q, k, v: kl.MultiHeadAttention(heads, 4 // heads, **way)(q, value=v, key=k),
        (5, 4),
        (5, dims[0]),
        (5, dims[1]),
    )


def attended(name, model, dims=(4, 4)):
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, 5, size)).astype("float32") for size in (4, *dims))
    if name == "torch":
        import torch

        with torch.no_grad():
            return model.eval()(*map(torch.tensor, (q, k, v)))[0].numpy()
    if name == "paddle":
        import paddle

        model.eval()
        return model(*map(paddle.to_tensor, (q, k, v))).numpy()
    return model([q, k, v], training=False).numpy()


@pytest.mark.parametrize(("here", "there"), WITHOUT_GLUON)
@pytest.mark.parametrize(
    "how", [{}, {"bias": False}, {"dims": (3, 4)}, {"dims": (3, 2)}], ids=str
)
def test_an_attention_computes_the_same_elsewhere(here, there, how):
    source, target, state = ported(lambda name: attention(name, **how), here, there)
    assert state.differences == []
    dims = how.get("dims", (4, 4))
    assert apart(attended(there, target, dims), attended(here, source, dims)) < 1e-6
    assert np.abs(attended(here, source, dims)).max() > 0.01


def test_settings_of_an_attention_are_listed():
    source = nn_of("torch").MultiheadAttention(4, 2, dropout=0.1, add_zero_attn=True)
    state = xdevice.models.convert_state(source, "paddle", like=attention("paddle", heads=4))
    assert [text.partition(": ")[2] for text in state.differences] == [
        "num_heads is 2 in torch, 4 in paddle",
        "dropout is 0.1 in torch, 0 in paddle",
        "batch_first is False in torch, True in paddle",
        "add_zero_attn is True in torch, None in paddle",
    ]


def test_a_bias_of_keys_and_values_is_listed_in_an_attention():
    source = attention("torch", add_bias_kv=True)
    for there in ("paddle", "tensorflow"):
        unmapped = xdevice.models.convert_state(source, there, like=attention(there)).unmapped
        assert unmapped == {
            name: f"{there} has no {name} in this multihead_attention layer"
            for name in ("bias_k", "bias_v")
        }


def test_heads_of_another_size_are_no_attention_of_pytorch():
    odd = keras(lambda kl, x: kl.MultiHeadAttention(2, 3, name="a")(x, x), (5, 4))
    state = xdevice.models.convert_state(odd, "torch")
    assert not state
    assert (
        "PyTorch requires head_dim to be embed_dim / num_heads, but it is (3, 3) here"
        in state.unmapped["a.in_proj_weight"]
    )
    with pytest.raises(
        xdevice.errors.StateError, match=r"q_proj\.weight \(6, 4\) and \(4, 4\)"
    ):
        xdevice.models.convert_state(odd, "torch", like=attention("torch"), names={"a": ""})


@pytest.mark.parametrize("name", ["torch", "paddle", "tensorflow"])
def test_a_flat_attention_is_found_by_its_names(name):
    model = randomised(name, attention(name, dims=(3, 4)))
    state = dict(xdevice.backend(name).variables(model))
    path = "multi_head_attention" if name == "tensorflow" else ""
    told = xdevice.models.convert_state(state, "torch", kinds={path: "multihead_attention"})
    known = xdevice.models.convert_state(model, "torch")
    assert {key: value.tolist() for key, value in told.items()} == {
        key: value.tolist() for key, value in known.items()
    }
    assert "q_proj_weight" in {key.rpartition(".")[2] for key in told}
    lost = xdevice.models.convert_state(
        dict(told), "tensorflow", kinds={path: "multihead_attention"}
    )
    assert set(lost.unmapped.values()) == {
        "the number of heads is not known; pass a model as like="
    }


@pytest.mark.parametrize(
    ("sizes", "form"), [((4, 4), "in_proj_weight"), ((3, 4), "q_proj_weight")]
)
@pytest.mark.parametrize("separator", [".", "/"])
def test_shapes_tell_the_form_of_an_attention_in_a_state_of_flax(sizes, form, separator):
    inputs = {"query": 4, "key": sizes[0], "value": sizes[1]}
    state = {
        separator.join(("a", name, "kernel")): np.ones((size, 2, 2))
        for name, size in inputs.items()
    }
    state[separator.join(("a", "out", "kernel"))] = np.ones((2, 2, 4))
    converted = xdevice.models.convert_state(
        state, "torch", kinds={"a": "multihead_attention"}, layout="flax"
    )
    assert f"a.{form}" in converted


# Transformers


def block(kind, **changed):
    """A layer of a Transformer, as PyTorch and Paddle have it."""

    def build(name):
        if name == "torch":
            return getattr(nn_of(name), f"Transformer{kind}Layer")(
                8, 2, 16, dropout=0.0, batch_first=True, **changed
            )
        how = {
            "normalize_before": changed.get("norm_first", False),
            "activation": changed.get("activation", "relu"),
        }
        return getattr(nn_of(name), f"Transformer{kind}Layer")(8, 2, 16, dropout=0.0, **how)

    return build


def run(name, model, *shapes):
    xs = [
        np.random.default_rng(seed).normal(size=shape).astype("float32")
        for seed, shape in enumerate(shapes)
    ]
    model.eval()
    if name == "torch":
        import torch

        with torch.no_grad():
            return model(*map(torch.tensor, xs)).numpy()
    return model(*map(framework("paddle").to_tensor, xs)).numpy()


@pytest.mark.parametrize(("here", "there"), TWO)
@pytest.mark.parametrize("changed", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_a_layer_of_a_transformer_computes_the_same_elsewhere(kind, changed, here, there):
    source, target, state = ported(block(kind, **changed), here, there)
    assert state.differences == []
    shapes = [(2, 5, 8), (2, 3, 8)][: 1 + (kind == "Decoder")]
    assert apart(run(there, target, *shapes), run(here, source, *shapes)) < 5e-7
    plain = run(there, ported(block(kind), here, there)[1], *shapes)
    assert not changed or np.abs(plain - run(here, source, *shapes)).max() > 0.01


def stack_of(name):
    nn = nn_of(name)
    layer = block("Encoder")(name)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8))


def whole(name):
    nn = nn_of(name)
    if name == "torch":
        return nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, norm_first=True, batch_first=True)
    return nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, normalize_before=True)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(("here", "there"), TWO)
@pytest.mark.parametrize("build", [stack_of, whole])
def test_a_transformer_computes_the_same_elsewhere(build, here, there):
    source, target, state = ported(build, here, there)
    assert state.differences == []
    shapes = [(2, 5, 8), (2, 3, 8)][: 1 + (build is whole)]
    assert apart(run(there, target, *shapes), run(here, source, *shapes)) < 1e-6


def test_what_a_layer_of_a_transformer_does_between_is_listed():
    nn, other = nn_of("torch"), nn_of("paddle")
    source = nn.TransformerEncoderLayer(
        8, 2, 16, norm_first=True, activation=nn.GELU(), dropout=0.2
    )
    state = xdevice.models.convert_state(
        source, "paddle", like=other.TransformerEncoderLayer(8, 2, 16)
    )
    assert sorted(state.differences) == [
        "linear1: activation is gelu in torch, relu in paddle",
        "norm1: block_dropout is 0.2 in torch, 0.1 in paddle",
        "norm1: norm_first is True in torch, False in paddle",
        "self_attn: batch_first is False in torch, True in paddle",
        "self_attn: dropout is 0.2 in torch, 0.1 in paddle",
    ]


def keras_block(activation="relu"):
    def way(kl, x):
        y = kl.MultiHeadAttention(2, 4, name="attention")(x, x)
        x = kl.LayerNormalization(epsilon=1e-5, name="after")(kl.Add()([x, y]))
        y = kl.Dense(8, name="down")(kl.Dense(16, activation=activation, name="up")(x))
        return kl.LayerNormalization(epsilon=1e-5, name="last")(kl.Add()([x, y]))

    return keras(way, (5, 8))


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_a_layer_of_a_transformer_is_made_of_four_of_keras(name):
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    model, like = (
        randomised(name, block("Encoder")(name)),
        randomised("tensorflow", keras_block(), 1),
    )
    state = xdevice.models.convert_state(model, "tensorflow", like=like)
    assert state.differences == []
    xdevice.load(state, into=like)
    expected = outputs(name, model, x)
    assert apart(outputs("tensorflow", like, x), expected) < 5e-7
    back = randomised(name, block("Encoder")(name), 2)
    xdevice.load(xdevice.models.convert_state(like, name, like=back), into=back)
    assert np.abs(outputs(name, back, x) - expected).max() == 0
    told = xdevice.models.convert_state(model, "tensorflow", like=keras_block("gelu"))
    assert told.differences == [f"up: activation is relu in {name}, gelu in tensorflow"]


def test_layers_in_a_layer_of_keras_come_in_the_order_of_their_definition():
    import keras
    from keras import layers as kl

    class Pair(kl.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = kl.Dense(4), kl.Dense(4)

        def call(self, x):
            return self.second(keras.activations.relu(self.first(x)))

    nn = nn_of("torch")
    source = randomised("torch", nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    like = keras.Sequential([keras.Input((4,)), Pair()])
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=like), into=like)
    assert (
        apart(outputs("tensorflow", like, SEQUENCE[0]), outputs("torch", source, SEQUENCE[0]))
        < 5e-7
    )


def einsum(kl, x):
    """An attention's way in and out, as keras_hub writes it: heads of 3 numbers."""
    inner = kl.EinsumDense("...a,abc->...bc", output_shape=(2, 3), bias_axes="bc", name="into")(
        x
    )
    return kl.EinsumDense("abcd,cde->abe", output_shape=(None, 4), bias_axes="e", name="out")(
        inner
    )


def test_an_einsum_dense_that_is_a_linear_is_one():
    nn = nn_of("torch")
    source, like = (
        randomised("torch", nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))),
        keras(einsum, (5, 4)),
    )
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=like), into=like)
    assert (
        apart(outputs("tensorflow", like, SEQUENCE), outputs("torch", source, SEQUENCE)) < 1e-6
    )
    back = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    xdevice.load(xdevice.models.convert_state(like, "torch", like=back), into=back)
    xdevice.assert_parity(back, source)


@pytest.mark.parametrize(
    "way",
    [
        {"equation": "abc,cde->abed", "output_shape": (None, 3, 2), "bias_axes": "ed"},
        {"equation": "abc,dc->abd", "output_shape": (None, 4)},
        {"equation": "abc,bcd->abd", "output_shape": (5, 4)},
        {"equation": "abc,cde->abde", "output_shape": (None, 2, 3), "bias_axes": "e"},
    ],
    ids=str,
)
def test_an_einsum_dense_that_is_no_linear_is_listed(way):
    like = keras(lambda kl, x: kl.EinsumDense(**way, name="one")(x), (5, 4))
    assert "one/kernel" in xdevice.models.convert_state(like, "torch").unmapped


# norms of groups in Gluon


def gluon_groups():
    return legacy(lambda gluon: gluon.nn.GroupNorm(2))


def even(model):
    """With one number for each group of two channels."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.reshape(2, 2)[:, :1].expand(2, 2).reshape(4))
    return model


def test_a_norm_of_groups_goes_to_gluon_where_its_groups_are_even():
    source, like = randomised("torch", group_norm("torch")), gluon_groups()
    state = xdevice.models.convert_state(source, "mxnet", like=like)
    why = "Gluon stores one value per group of channels, but the channels of a group have different values here"
    assert state.unmapped == {"gamma": why, "beta": why}
    with pytest.raises(xdevice.errors.StateError, match="the channels of a group have"):
        xdevice.load(state, into=like)
    assert xdevice.models.convert_state(source, "mxnet").unmapped == state.unmapped
    xdevice.load(xdevice.models.convert_state(even(source), "mxnet", like=like), into=like)
    assert apart(outputs("mxnet", like, IMAGE), outputs("torch", source, IMAGE)) < 5e-7
    xdevice.assert_parity(source, like)


@pytest.mark.parametrize("there", ["torch", "paddle", "tensorflow"])
def test_a_norm_of_groups_comes_from_gluon_with_the_channels_of_the_other(there):
    source, like = randomised("mxnet", gluon_groups()), randomised(there, group_norm(there), 1)
    unmapped = xdevice.models.convert_state(source, there).unmapped
    assert set(unmapped) >= {"gamma", "beta"}
    assert "does not state the number of channels" in unmapped["gamma"]
    xdevice.load(xdevice.models.convert_state(source, there, like=like), into=like)
    assert apart(outputs(there, like, IMAGE), outputs("mxnet", source, IMAGE)) < 5e-7


def test_another_number_of_groups_is_listed():
    source, like = nn_of("torch").GroupNorm(2, 4), nn_of("paddle").GroupNorm(4, 4, epsilon=1e-3)
    assert xdevice.models.convert_state(source, "paddle", like=like).differences == [
        "group_norm: eps is 1e-05 in torch, 0.001 in paddle",
        "group_norm: num_groups is 2 in torch, 4 in paddle",
    ]


@pytest.mark.parametrize(
    ("here", "there"), [("torch", "tensorflow"), ("tensorflow", "paddle"), ("torch", "mxnet")]
)
def test_a_group_of_one_channel_is_an_instance(here, there):
    def build(name):
        if name != "torch":
            return instance_norm(name)
        return nn_of(name).GroupNorm(4, 4)

    source, target, state = ported(build, here, there)
    assert state.differences == []
    assert apart(outputs(there, target, IMAGE), outputs(here, source, IMAGE)) < 5e-7


def test_running_statistics_of_instances_are_listed():
    source = nn_of("torch").InstanceNorm2d(4, affine=True, track_running_stats=True)
    state = xdevice.models.convert_state(source, "paddle", like=instance_norm("paddle"))
    assert set(state.unmapped) == {"running_mean", "running_var"}
    assert "instance_norm: running_stats is True in torch, False in paddle" in state.differences


def test_a_norm_without_parameters_is_listed_where_the_other_has_them():
    source, like = nn_of("torch").InstanceNorm2d(4), instance_norm("paddle")
    state = xdevice.models.convert_state(source, "paddle", like=like)
    assert set(state.unmapped) == {"scale", "bias"}


# recurrent layers


def test_what_recurrent_layers_do_besides_is_listed():
    nn, other = nn_of("torch"), nn_of("paddle")
    source = nn.RNN(4, 4, 2, nonlinearity="relu", dropout=0.5, batch_first=True)
    like = other.SimpleRNN(4, 4, 2)
    assert xdevice.models.convert_state(source, "paddle", like=like).differences == [
        "rnn: dropout is 0.5 in torch, 0 in paddle",
        "rnn: nonlinearity is relu in torch, tanh in paddle",
    ]
    gluon_default = gluon(lambda gluon: gluon.rnn.RNN(4, input_size=4, layout="NTC"))
    state = xdevice.models.convert_state(
        nn.RNN(4, 4, batch_first=True), "mxnet", like=gluon_default
    )
    assert state.differences == ["rnn: nonlinearity is tanh in torch, relu in mxnet"]


def test_what_layers_of_a_stack_do_besides_is_listed():
    like = keras(
        lambda kl, x: kl.SimpleRNN(4, dropout=0.5)(
            kl.SimpleRNN(4, activation="relu", return_sequences=True)(x)
        ),
        (5, 4),
    )
    state = xdevice.models.convert_state(recurrent("RNN", 2)("torch"), "tensorflow", like=like)
    assert state.differences == [
        "simple_rnn: nonlinearity is tanh in torch, ('relu', 'tanh') in tensorflow",
        "simple_rnn: dropout_of_inputs is None in torch, (None, 0.5) in tensorflow",
    ]


def test_two_stacks_are_two():
    nn = nn_of("torch")

    def two(kl, x):
        for units in (4, 4, 4, 3):
            x = kl.LSTM(units, return_sequences=True)(x)
        return x

    first, second = nn.LSTM(4, 4, 3, batch_first=True), nn.LSTM(4, 3, batch_first=True)
    source, like = randomised("torch", nn.ModuleList([first, second])), keras(two, (5, 4))
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert (state.unmapped, state.differences) == ({}, [])
    xdevice.load(state, into=like)
    import torch

    with torch.no_grad():
        expected = second(first(torch.tensor(SEQUENCE))[0])[0].numpy()
    assert apart(outputs("tensorflow", like, SEQUENCE), expected) < 1e-6
    xdevice.assert_parity(source, like)
    xdevice.assert_parity(like, source)


def test_layers_that_do_not_follow_each_other_are_no_stack():
    source = nn_of("torch").LSTM(4, 3, 2, batch_first=True)
    like = keras(lambda kl, x: [kl.LSTM(3, name="a")(x), kl.LSTM(3, name="b")(x)], (5, 4))
    with pytest.raises(xdevice.errors.StateError, match="fit several parameters of"):
        xdevice.models.convert_state(source, "tensorflow", like=like)
    deep = keras(
        lambda kl, x: kl.LSTM(3, name="b")(kl.LSTM(4, name="a", return_sequences=True)(x)),
        (5, 4),
    )
    assert not xdevice.models.convert_state(source, "tensorflow", like=deep)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("here", "there"), TWO)
def test_an_lstm_with_a_projection_computes_the_same_elsewhere(here, there, both):
    def build(name):
        if name == "torch":
            return nn_of(name).LSTM(4, 6, 2, proj_size=3, bidirectional=both, batch_first=True)
        return nn_of(name).LSTM(
            4, 6, 2, proj_size=3, direction="bidirect" if both else "forward"
        )

    source, target, state = ported(build, here, there)
    assert state.differences == []
    assert apart(outputs(there, target, SEQUENCE), outputs(here, source, SEQUENCE)) < 1e-6


def test_a_projection_that_the_other_lacks_is_refused():
    source = nn_of("torch").LSTM(4, 6, proj_size=3, batch_first=True)
    for there in ("paddle", "mxnet", "tensorflow"):
        names = {"": "lstm"} if there == "tensorflow" else None
        state = xdevice.models.convert_state(
            source, there, like=recurrent("LSTM")(there), names=names
        )
        assert not state
        assert "projection is 3 in torch, 0 in" in state.unmapped["weight_hr_l0"]
    assert (
        "no LSTM with a projection"
        in xdevice.models.convert_state(source, "tensorflow").unmapped["kernel"]
    )


# what is filled in by hand


def test_a_source_that_is_dealt_with_by_hand_can_be_settled():
    nn, other = nn_of("torch"), nn_of("paddle")
    source, like = (
        nn.Sequential(),
        other.Sequential(("q", other.Linear(4, 4)), ("k", other.Linear(4, 4))),
    )
    source.add_module("qk", nn.Linear(4, 8))
    state = xdevice.models.convert_state(source, "paddle", like=like)
    for name, weight, bias in zip(
        "qk", source.qk.weight.chunk(2), source.qk.bias.chunk(2), strict=True
    ):
        state[f"{name}.weight"] = xdevice.convert(weight.T.detach(), "paddle")
        state[f"{name}.bias"] = xdevice.convert(bias.detach(), "paddle")
    assert set(state.unmapped) == {"qk.weight", "qk.bias"}
    with pytest.raises(
        xdevice.errors.StateError, match=r"qk\.weight: only torch has this layer"
    ):
        xdevice.load(state, into=like)
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"'qk' is not in unmapped, which contains qk\.weight, qk\.bias",
    ):
        state.settle("qk.weight", "qk")
    assert set(state.unmapped) == {"qk.weight", "qk.bias"}
    state.settle("qk.weight", "qk.bias")
    xdevice.load(state, into=like)
    assert "not mapped" not in str(state)
    assert (
        apart(outputs("paddle", like[1], SEQUENCE), outputs("torch", source, SEQUENCE)[..., 4:])
        < 5e-7
    )


def test_what_has_no_value_yet_is_missing_though_it_is_settled():
    like = nn_of("paddle").Linear(4, 4)
    state = xdevice.models.convert_state(
        nn_of("torch").Linear(4, 4, bias=False), "paddle", like=like
    )
    state.settle("bias")
    with pytest.raises(xdevice.errors.StateError, match="bias: the state has no value for it"):
        xdevice.load(state, into=like)


# an attention that is linear layers elsewhere


def linears(name, names):
    nn = nn_of(name)
    return (nn.ModuleDict if name == "torch" else nn.LayerDict)(
        {own: nn.Linear(4, 4) for own in names}
    )


@pytest.mark.parametrize(
    "names", [("k", "q", "v", "o"), ("key_dense", "query_dense", "value_dense", "output_dense")]
)
def test_linear_layers_named_like_projections_are_an_attention_where_the_other_has_one(names):
    import torch

    source, like = randomised("torch", linears("torch", names)), attention("tensorflow")
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert state.differences == [
        "not compared: heads, scale and masks of multi_head_attention, because torch has them in the code around "
        "linear layers"
    ]
    xdevice.load(state, into=like)
    inputs = torch.tensor(np.random.default_rng(3).normal(size=(3, 2, 5, 4)).astype("float32"))
    roles = {name[0]: source[name] for name in names}
    with torch.no_grad():
        heads = [
            roles[role](x).reshape(2, 5, 2, 2).transpose(1, 2)
            for role, x in zip("qkv", inputs, strict=True)
        ]
        mixed = (
            torch.nn.functional.scaled_dot_product_attention(*heads)
            .transpose(1, 2)
            .reshape(2, 5, 4)
        )
        expected = roles["o"](mixed).numpy()
    assert apart(attended("tensorflow", like), expected) < 1e-6
    back = linears("paddle", names)
    assert xdevice.models.convert_state(like, "paddle", like=back).differences == [
        "not compared: heads, scale and masks of multi_head_attention, because paddle has them in the code around "
        "linear layers"
    ]


@pytest.mark.parametrize(
    "names",
    [("a", "b", "c", "d"), ("q", "k", "v"), ("qkv", "proj"), ("q", "query", "k", "v", "o")],
)
def test_other_linear_layers_are_no_attention(names):
    state = xdevice.models.convert_state(
        linears("torch", names), "tensorflow", like=attention("tensorflow")
    )
    assert not state
    assert len(state.unmapped) == 2 * len(names) + 8


@pytest.mark.parametrize("there", ["paddle", "tensorflow"])
def test_a_tied_head_is_no_layer_of_its_own_where_the_other_has_none(there):
    nn = nn_of("torch")
    source = nn.ModuleDict(
        {"wte": nn.Embedding(5, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 5, bias=False)}
    )
    source["head"].weight = source["wte"].weight
    if there == "paddle":
        other = nn_of(there)
        like = other.LayerDict({"table": other.Embedding(5, 4), "dense": other.Linear(4, 4)})
    else:
        like = keras(lambda kl, x: kl.Dense(4)(kl.Embedding(5, 4)(x)), (3,))
    state = xdevice.models.convert_state(randomised("torch", source), there, like=like)
    assert (state.unmapped, state.differences) == ({}, [])
    xdevice.load(state, into=like)
    xdevice.load(xdevice.models.convert_state(like, "torch", like=source), into=source)


# weight norm


def normed_nets(torch, paddle, theirs, mine):
    """A convolution, a transposed one and a linear layer, each passed to a function that may add a weight norm."""
    source = torch.nn.Sequential(
        theirs(torch.nn.Conv1d(4, 6, 3)),
        theirs(torch.nn.ConvTranspose1d(6, 5, 3)),
        torch.nn.Flatten(),
        theirs(torch.nn.Linear(60, 3)),
    )
    target = paddle.nn.Sequential(
        mine(paddle.nn.Conv1D(4, 6, 3)),
        mine(paddle.nn.Conv1DTranspose(6, 5, 3)),
        paddle.nn.Flatten(),
        mine(paddle.nn.Linear(60, 3)),
    )
    for name, parameter in source.named_parameters():
        if name.endswith(("_g", "original0")):
            parameter.data *= 1.5
    return source, target


@pytest.mark.parametrize(
    ("theirs", "mine", "axis", "number"),
    [
        ("new", True, 0, 0),
        ("old", True, None, 0),
        ("new", False, None, 3),
        ("old", False, 0, 3),
        ("none", True, 0, 3),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_weight_norm_goes_to_plain_layers_and_to_other_weight_norms(
    theirs, mine, axis, number
):
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    ways = {
        "new": torch.nn.utils.parametrizations.weight_norm,
        "old": torch.nn.utils.weight_norm,
    }

    def normed(layer):
        # the weight of Paddle's linear layer has its axes the other way round
        dim = 1 if axis == 0 and isinstance(layer, paddle.nn.Linear) else axis
        return paddle.nn.utils.weight_norm(layer, dim=dim)

    source, target = normed_nets(
        torch,
        paddle,
        (lambda layer: ways[theirs](layer, dim=axis))
        if theirs in ways
        else (lambda layer: layer),
        normed if mine else (lambda layer: layer),
    )
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert len([line for line in state.differences if "weight norm" in line]) == number
    xdevice.load(state, into=target)
    xdevice.assert_parity(source, target)
    xdevice.assert_parity(target, source)
    x = np.random.default_rng(0).normal(size=(2, 4, 12)).astype("float32")
    np.testing.assert_allclose(
        target(paddle.to_tensor(x)).numpy(),
        source(torch.from_numpy(x)).detach().numpy(),
        rtol=1e-5,
        atol=1e-6,
    )
    xdevice.load(xdevice.models.convert_state(target, "torch", like=source), into=source)
    xdevice.assert_parity(source, target, inputs=x)


def test_weight_norms_over_other_axes_are_not_mapped():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    state = xdevice.models.convert_state(
        source, "paddle", like=paddle.nn.utils.weight_norm(paddle.nn.Linear(4, 3))
    )
    assert (
        "weight_g is (3, 1) in torch, (1, 4) in paddle; build one of the layers with another dim"
        in state.unmapped["weight_g"]
    )
    with pytest.raises(xdevice.errors.ParityError, match="over different axes"):
        xdevice.assert_parity(source, paddle.nn.utils.weight_norm(paddle.nn.Linear(4, 3)))


def test_a_weight_norm_is_one_weight_where_there_is_no_model():
    torch = pytest.importorskip("torch")
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    layer.parametrizations.weight.original0.data *= 2
    state = xdevice.models.convert_state(layer, "numpy")
    assert sorted(state) == ["bias", "weight"]
    assert not state.unmapped
    np.testing.assert_allclose(state["weight"], layer.weight.detach().numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_a_norm_of_a_conv1d_of_transformers_is_over_a_transposed_weight(norm):
    torch = framework("torch")

    class Conv1D(torch.nn.Module):
        """Known by its module and name, as that of transformers, which is not needed here."""

        __module__ = "transformers.pytorch_utils"

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))
            self.bias = torch.nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return x @ self.weight + self.bias

    torch.manual_seed(0)
    source = torch.nn.Sequential(getattr(torch.nn.utils, norm)(Conv1D())).eval()
    like = torch.nn.Sequential(torch.nn.Linear(4, 4))
    x = torch.randn(3, 4)
    expected = source(x).detach()
    xdevice.load(xdevice.models.convert_state(source, "torch", like=like), into=like)
    assert torch.allclose(like(x), expected, rtol=1e-3, atol=1e-4)
