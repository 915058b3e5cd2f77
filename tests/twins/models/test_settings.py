"""Layers without parameters, which change outputs as well: what two models set differently is listed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import xdevice
from xdevice.errors import ArgumentError
from xdevice.twins.models.unpairable import MOST


def named(nn, **layers):
    """A model with these layers under their names, which is never called."""
    base = getattr(nn, "Module", None) or nn.Layer

    class Model(base):
        def __init__(self):
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer)

    return Model()


def _torch():
    xdevice.backend("torch")
    from torch import nn

    return nn


def _paddle():
    xdevice.backend("paddle")
    from paddle import nn

    return nn


def _keras():
    xdevice.backend("tensorflow")
    import keras

    return keras


def _gluon():
    xdevice.backend("mxnet")
    from mxnet.gluon import nn

    return nn


def _differences(source, backend, like):
    state = xdevice.models.convert_state(source, backend, like=like)
    assert not state.unmapped
    assert state.differences == state.settings
    return state.differences


PLANTED = {
    "mode of a dropout": (
        lambda nn: nn.Dropout(0.5),
        lambda nn: nn.Dropout(0.5, mode="downscale_in_infer"),
        "mode",
    ),
    "p": (lambda nn: nn.Dropout(0.5), lambda nn: nn.Dropout(0.4), "p"),
    "ceil_mode": (
        lambda nn: nn.MaxPool2d(3, 2, ceil_mode=True),
        lambda nn: nn.MaxPool2D(3, 2),
        "ceil_mode",
    ),
    "count_include_pad": (
        lambda nn: nn.AvgPool2d(3, 1, 1),
        lambda nn: nn.AvgPool2D(3, 1, 1),
        "count_include_pad",
    ),
    "pool": (lambda nn: nn.MaxPool2d(2), lambda nn: nn.MaxPool2D(2, 1), "stride"),
    "slope": (lambda nn: nn.LeakyReLU(0.2), lambda nn: nn.LeakyReLU(), "slope"),
    "alpha": (lambda nn: nn.ELU(), lambda nn: nn.ELU(0.5), "alpha"),
    "approximate": (lambda nn: nn.GELU(), lambda nn: nn.GELU(approximate=True), "approximate"),
    "axis": (lambda nn: nn.Softmax(-2), lambda nn: nn.Softmax(), "axis"),
    "align_corners": (
        lambda nn: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        lambda nn: nn.Upsample(scale_factor=2, mode="bilinear"),
        "align_corners",
    ),
    "kind of activation": (lambda nn: nn.ReLU(), lambda nn: nn.ReLU6(), "activation"),
    "pad": (lambda nn: nn.ReflectionPad2d(1), lambda nn: nn.Pad2D(1, mode="replicate"), "mode"),
    "output_size": (
        lambda nn: nn.AdaptiveAvgPool2d(2),
        lambda nn: nn.AdaptiveAvgPool2D(1),
        "output_size",
    ),
    "size": (lambda nn: nn.LocalResponseNorm(5), lambda nn: nn.LocalResponseNorm(3), "size"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_each_setting_is_listed_by_name_and_no_other(what):
    here, there, name = PLANTED[what]
    nn, other = _torch(), _paddle()
    source = nn.Sequential(nn.Conv2d(3, 3, 1), here(nn), nn.Conv2d(3, 3, 1))
    like = other.Sequential(other.Conv2D(3, 3, 1), there(other), other.Conv2D(3, 3, 1))
    found = _differences(source, "paddle", like)
    assert [line.partition(" is ")[0] for line in found] == [f"1: {name}"]
    xdevice.load(xdevice.models.convert_state(source, "paddle", like=like), into=like)
    with pytest.raises(
        xdevice.errors.ParityError, match=rf"settings differ .*:\n  1: {name} is"
    ):
        xdevice.assert_parity(like, source)


def test_the_same_settings_in_four_frameworks_are_not_listed():
    nn, other, gluon, kl = _torch(), _paddle(), _gluon(), _keras().layers
    source = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.AvgPool2d(2), nn.Dropout(0.3), nn.LeakyReLU(0.1),
        nn.ELU(), nn.Conv2d(4, 4, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    paddle = other.Sequential(
        other.Conv2D(3, 4, 3), other.ReLU(), other.MaxPool2D(3, 2), other.AvgPool2D(2), other.Dropout(0.3),
        other.LeakyReLU(0.1), other.ELU(), other.Conv2D(4, 4, 1), other.GELU(), other.AdaptiveAvgPool2D(1),
    )  # fmt: skip
    block = gluon.HybridSequential()
    block.add(
        gluon.Conv2D(4, 3, activation="relu", in_channels=3), gluon.MaxPool2D(3, 2), gluon.AvgPool2D(2),
        gluon.Dropout(0.3), gluon.LeakyReLU(0.1), gluon.ELU(), gluon.Conv2D(4, 1, in_channels=4), gluon.GELU(),
        gluon.GlobalAvgPool2D(),
    )  # fmt: skip
    block.initialize()
    keras = _keras().Sequential(
        [
            kl.Input((9, 9, 3)), kl.Conv2D(4, 3, activation="relu"), kl.MaxPooling2D(3, 2), kl.AveragePooling2D(2),
            kl.Dropout(0.3), kl.LeakyReLU(0.1), kl.ELU(), kl.Conv2D(4, 1), kl.Activation("gelu"),
            kl.GlobalAveragePooling2D(),
        ]
    )  # fmt: skip
    for backend, like in (("paddle", paddle), ("mxnet", block), ("tensorflow", keras)):
        assert _differences(source, backend, like) == []
    assert _differences(keras, "mxnet", block) == []
    assert _differences(block, "torch", source) == []


def test_zeros_put_around_an_image_are_padding():
    nn, keras = _torch(), _keras()
    kl = keras.layers
    like = keras.Sequential(
        [kl.Input((8, 8, 3)), kl.ZeroPadding2D(1), kl.Conv2D(4, 3, strides=2)]
    )
    assert (
        _differences(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1)), "tensorflow", like)
        == []
    )
    uneven = keras.Sequential(
        [kl.Input((8, 8, 3)), kl.ZeroPadding2D(((0, 1), (0, 1))), kl.Conv2D(4, 3, strides=2)]
    )
    assert _differences(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1)), "tensorflow", uneven
    ) == ["conv2d: padding is (1, 1) in torch, ((0, 1), (0, 1)) in tensorflow"]


def test_zeros_are_those_of_their_own_branch():
    nn, keras = _torch(), _keras()
    kl = keras.layers

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.short = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.first(x) + self.short(x)

    image = keras.Input((8, 8, 3))
    padded = kl.ZeroPadding2D(1)(image)
    short = kl.Conv2D(4, 1, name="short")(image)
    whole = kl.Add()([kl.Conv2D(4, 3, name="first")(padded), short])
    assert _differences(Net(), "tensorflow", keras.Model(image, whole)) == []


def test_what_stands_beside_nothing_is_counted():
    nn, other = _torch(), _paddle()

    class Plain(other.Layer):
        def __init__(self):
            super().__init__()
            self.fc = other.Linear(4, 4)

        def forward(self, x):
            return other.functional.relu(self.fc(x))

    source = named(nn, fc=nn.Linear(4, 4), act=nn.ReLU())
    source.forward = lambda x: source.act(source.fc(x))
    found = _differences(source, "paddle", like := Plain())
    assert len(found) == 1
    assert found[0].startswith("not compared: 1 relu of torch")
    xdevice.assert_parity(
        xdevice.models.convert_state(source, "paddle", like=like),
        xdevice.models.convert_state(source, "paddle"),
    )
    x = np.ones((2, 4), "float32")
    assert xdevice.models.convert_state(source, "paddle", like=like, inputs=x).differences == []


def test_functions_that_never_stand_in_one_place_are_not_compared():
    nn, other = _torch(), _paddle()
    source = named(nn, a=nn.Linear(4, 4), b=nn.Linear(4, 4), tanh=nn.Tanh())
    like = named(other, a=other.Linear(4, 4), gelu=other.GELU(), b=other.Linear(4, 4))
    (told,) = _differences(source, "paddle", like)
    assert told.startswith(
        "not compared: 1 tanh of torch and 1 gelu of paddle, which have no counterpart"
    )


def test_an_activation_of_one_side_is_listed_and_asks_for_inputs():
    nn, kl = _torch(), _keras().layers
    source = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    like = _keras().Sequential([kl.Input((4,)), kl.Dense(4, activation="relu"), kl.Dense(2)])
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert state.differences == ["dense: activation is None in torch, relu in tensorflow"]
    xdevice.load(state, into=like)
    xdevice.assert_parity(xdevice.models.convert_state(source, "tensorflow", like=like), like)
    for pair in ((source, like), (like, source)):
        with pytest.raises(
            xdevice.errors.ParityError, match=r"(?s): activation is .*inputs=x runs both"
        ):
            xdevice.assert_parity(*pair)
    x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    with pytest.raises(xdevice.errors.ParityError):
        xdevice.assert_parity(source, like, inputs=x)


def test_two_models_of_one_framework_that_are_set_differently_are_told_apart():
    nn = _torch()
    one = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.1))
    two = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2))
    two.load_state_dict(one.state_dict())
    with pytest.raises(xdevice.errors.ParityError, match=r"1: slope is 0\.1, expected 0\.2"):
        xdevice.assert_parity(one, two)
    two[1].negative_slope = 0.1
    xdevice.assert_parity(one, two)


def test_a_setting_that_only_one_model_of_one_framework_states_is_a_difference():
    nn = _torch()

    class Attention(nn.Module):
        def __init__(self, **settings):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, **settings)

    class Upsample(nn.Module):
        def __init__(self, **settings):
            super().__init__()
            self.up = nn.Upsample(scale_factor=1.7, mode="bilinear", **settings)

    for cls, setting in ((Attention, "add_zero_attn"), (Upsample, "recompute_scale_factor")):
        usual, other = cls(), cls(**{setting: True})
        other.load_state_dict(usual.state_dict())
        xdevice.assert_parity(usual, usual)
        for pair, line in (
            ((usual, other), f"{setting} is not set, expected True"),
            ((other, usual), f"{setting} is True, expected not set"),
        ):
            with pytest.raises(xdevice.errors.ParityError, match=line):
                xdevice.assert_parity(*pair)


def test_recurrent_layers_and_norms_of_keras_with_other_settings_are_told_apart():
    layers = pytest.importorskip("keras").layers
    for cls, settings, name in (
        (layers.LSTM, {"recurrent_activation": "hard_sigmoid"}, "recurrent_activation"),
        (layers.GRU, {"go_backwards": True}, "go_backwards"),
        (layers.LayerNormalization, {"axis": 1}, "axis"),
    ):
        arguments = (8,) if cls is not layers.LayerNormalization else ()
        with pytest.raises(xdevice.errors.ParityError, match=f"{name} is not set, expected"):
            xdevice.assert_parity(
                *_with_equal_weights(cls(*arguments), cls(*arguments, **settings))
            )


def test_layers_of_keras_with_parameters_of_an_unknown_kind_are_told_apart():
    layers = pytest.importorskip("keras").layers
    for one, other in (
        (layers.SeparableConv1D(8, 3), layers.SeparableConv1D(8, 3, padding="same")),
        (layers.RNN(layers.LSTMCell(8)), layers.RNN(layers.LSTMCell(8, activation="relu"))),
        (layers.RNN(layers.GRUCell(8)), layers.RNN(layers.GRUCell(8), go_backwards=True)),
    ):
        with pytest.raises(xdevice.errors.ParityError, match="these settings differ"):
            xdevice.assert_parity(*_with_equal_weights(one, other))
    xdevice.assert_parity(
        *_with_equal_weights(
            layers.SeparableConv1D(8, 3),
            layers.SeparableConv1D(8, 3, pointwise_initializer="he_normal"),
        )
    )


def test_functional_models_of_keras_with_other_wiring_are_told_apart():
    keras = pytest.importorskip("keras")
    layers, calls_elsewhere = keras.layers, []

    def models(*wirings):
        made = []
        for wire in wirings:
            inputs = [keras.Input((4,)), keras.Input((4,))]
            made.append(keras.Model(inputs, wire(inputs)))
            made[-1].set_weights(made[0].get_weights())
        return made

    def of_inner_model(inputs):
        one = keras.Input((4,))
        inner = keras.Model(one, layers.Add()([one, layers.Dense(4)(one)]))
        return layers.Subtract()(list(map(inner, inputs)))

    def called_elsewhere(inputs):
        dense = layers.Dense(4)
        outputs = dense(inputs[0])
        other = keras.Input((4,))
        calls_elsewhere.append(keras.Model(other, dense(dense(other))))
        return outputs

    for one, other in (
        (lambda both: layers.Add()(both), lambda both: layers.Maximum()(both)),
        (lambda both: layers.Subtract()(both), lambda both: layers.Subtract()(both[::-1])),
        (lambda both: both[0] - both[1], lambda both: both[1] - both[0]),
        (
            lambda both: layers.Dense(4)(layers.Concatenate()(both)),
            lambda both: layers.Dense(4)(layers.Concatenate()(both[::-1])),
        ),
        (
            lambda both: layers.Dot(axes=1)(both),
            lambda both: layers.Dot(axes=1, normalize=True)(both),
        ),
        (lambda both: both, lambda both: both[::-1]),
        # the outputs of one layer, in another order
        (
            lambda both: layers.LSTM(2, return_state=True)(layers.Reshape((2, 2))(both[0]))[1:],
            lambda both: layers.LSTM(2, return_state=True)(layers.Reshape((2, 2))(both[0]))[
                :0:-1
            ],
        ),
    ):
        with pytest.raises(xdevice.errors.ParityError, match="these settings differ"):
            xdevice.assert_parity(*models(one, other))
    for one, other in (
        (
            lambda both: layers.Add(name="sum")(both),
            lambda both: layers.Add(name="total")(both[::-1]),
        ),
        (of_inner_model, of_inner_model),
        (lambda both: layers.Dense(4)(both[0]), called_elsewhere),
    ):
        xdevice.assert_parity(*models(one, other))


def _with_equal_weights(*layers):
    """Returns a functional model of Keras for each layer; all have the weights of the first."""
    import keras

    models = []
    for layer in layers:
        inputs = keras.Input((8, 8))
        models.append(keras.Model(inputs, layer(inputs)))
        models[-1].set_weights(models[0].get_weights())
    return models


# inputs=


def _attention(backend, order=("q_proj", "k_proj", "v_proj"), out="o_proj"):
    """One head: query, key and value have one shape and one input."""
    library = _torch() if backend == "torch" else _paddle()
    base = library.Module if backend == "torch" else library.Layer

    class Attention(base):
        def __init__(self):
            super().__init__()
            for name in (*sorted(order), out):
                setattr(self, name, library.Linear(6, 6))

        def forward(self, x):
            q, k, v = (getattr(self, name)(x) for name in order)
            turned = k.transpose(-1, -2) if backend == "torch" else k.transpose([0, 2, 1])
            return getattr(self, out)(library.functional.softmax(q @ turned, -1) @ v)

    return Attention()


NUMBERS = np.random.default_rng(3).standard_normal((2, 5, 6)).astype("float32")


@pytest.mark.parametrize("order", [("query", "key", "value"), ("c", "a", "b"), ("b", "c", "a")])
def test_layers_of_one_shape_and_input_are_told_apart_by_what_comes_of_them(order):
    source, like = _attention("torch"), _attention("paddle", order)
    state = xdevice.models.convert_state(source, "paddle", like=like, inputs=NUMBERS)
    assert {name.partition(".")[0]: origin[0][0] for name, origin in state.origins.items()} == {
        **dict(zip(order, "qkv", strict=True)), "o_proj": "o",
    }  # fmt: skip
    assert state.differences == []
    before = {name: np.array(value.numpy()) for name, value in like.state_dict().items()}
    assert all((before[name] != state[name].numpy()).any() for name in before), (
        "like= was written to"
    )


ABBREVIATED = [
    (("q_proj", "k_proj"), ("key", "query")),
    (("enc", "dec"), ("decoder", "encoder")),
    (("fc1", "fc2"), ("dense_2", "dense_1")),
    (("query", "key", "value"), ("v", "k", "q")),
    (("tok_emb", "pos_emb"), ("position_embedding", "token_embedding")),
    (("src_attn", "tgt_attn"), ("target_attention", "source_attention")),
    (("left", "right"), ("rhs", "lhs")),
    (("toQuery", "toKey"), ("key", "query")),
    (("mu", "logvar"), ("log_var", "mean")),
]


@pytest.mark.parametrize(("ours", "theirs"), ABBREVIATED)
def test_names_that_speak_against_the_order_are_seen(ours, theirs):
    nn, other = _torch(), _paddle()
    source = named(nn, **{name: nn.Linear(4, 4) for name in ours})
    crossings = named(other, **{name: other.Linear(4, 4) for name in theirs})
    with pytest.raises(xdevice.errors.StateError, match="names contradict their order"):
        xdevice.models.convert_state(source, "paddle", like=crossings)
    straight = named(other, **{name: other.Linear(4, 4) for name in reversed(theirs)})
    assert not xdevice.models.convert_state(source, "paddle", like=straight).unmapped


HONEST = [
    (("fc1", "fc2", "fc3"), ("dense", "dense_1", "dense_2")),
    (("layer1.conv", "layer2.conv"), ("block_a.body_conv", "block_b.conv")),
    (("q", "k", "o"), ("one", "two", "three")),
    (("features_conv", "head_conv"), ("stem_conv1", "top_conv2")),
]


@pytest.mark.parametrize(("ours", "theirs"), HONEST)
def test_names_that_say_nothing_are_no_objection(ours, theirs):
    from xdevice.twins.models.name_likeness import crossings

    assert crossings(ours, theirs) == []


def test_a_refusal_says_where_the_order_breaks_and_is_short():
    nn, other = _torch(), _paddle()
    source = named(nn, **{f"layer{n}": nn.Linear(4, 4 if n % 3 else 5) for n in range(60)})
    like = named(
        other, **{f"part{n}": other.Linear(4, 4 if (n + 1) % 3 else 5) for n in range(60)}
    )
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"59 of 60 layers of torch and 60 of paddle come in the same order",
    ) as told:
        xdevice.models.convert_state(source, "paddle", like=like)
    assert "a guess from the names" in str(told.value)
    assert len(str(told.value)) <= MOST
    lacking = named(other, **{f"part{n}": other.Linear(4, 4) for n in range(30)})
    with pytest.raises(
        xdevice.errors.StateError,
        match="different architectures: paddle lacks 30 linear of torch",
    ) as told:
        xdevice.models.convert_state(source, "paddle", like=lacking)
    assert len(str(told.value)) <= MOST


def _block(backend, gelu=False):
    """A layer without parameters that is a function on one side."""
    library = _torch() if backend == "torch" else _paddle()
    base = library.Module if backend == "torch" else library.Layer

    class Block(base):
        def __init__(self):
            super().__init__()
            self.a, self.b = library.Linear(6, 6), library.Linear(6, 3)

        def forward(self, x):
            function = library.functional.gelu if gelu else library.functional.relu
            return self.b(function(self.a(x)))

    return Block()


def test_what_was_not_compared_asks_for_inputs_only_where_there_are_none():
    source, like = (
        _block("torch"),
        _paddle().Sequential(*map(_paddle().Linear, (6, 6), (6, 3)), _paddle().GELU()),
    )
    (told,) = xdevice.models.convert_state(source, "paddle", like=like).differences
    assert told.endswith(
        "functions are not traced; inputs= runs both models and compares their outputs"
    )
    outputs, told = xdevice.models.convert_state(
        source, "paddle", like=like, inputs=NUMBERS
    ).differences
    assert re.match(
        r"the outputs on inputs= are off by [\d.e+]+ of their largest value, or of their spread",
        outputs,
    )
    assert told.endswith("functions are not traced")


def test_a_difference_without_a_listed_cause_is_listed_with_where_it_begins():
    source, like = _block("torch"), _block("paddle", gelu=True)
    # functions are not traced
    assert xdevice.models.convert_state(source, "paddle", like=like).differences == []
    (told,) = xdevice.models.convert_state(
        source, "paddle", like=like, inputs=NUMBERS
    ).differences
    assert told.startswith("the outputs on inputs= are ")
    assert "the first difference is after a (Linear)" in told
    assert (
        xdevice.models.convert_state(
            source, "paddle", like=_block("paddle"), inputs=NUMBERS
        ).differences
        == []
    )


def test_a_layer_that_computes_otherwise_is_named():
    nn, other = _torch(), _paddle()
    source = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, eps=0.1), nn.Linear(6, 2))
    like = other.Sequential(other.Linear(6, 6), other.LayerNorm(6), other.Linear(6, 2))
    told = xdevice.models.convert_state(source, "paddle", like=like, inputs=NUMBERS).differences
    assert told[0] == "1: eps is 0.1 in torch, 1e-05 in paddle"
    assert "the first layer that differs is 1 (" in told[1]


def test_images_come_with_their_channels_where_keras_has_them():
    nn, keras = _torch(), _keras()
    kl = keras.layers
    source = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1),
    )
    image = keras.Input((8, 8, 3))
    layers = [kl.Conv2D(4, 3, padding="same", name=name) for name in ("x", "y", "z")]
    like = keras.Model(image, layers[2](layers[1](kl.ReLU()(layers[0](image)))))
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")
    assert (
        xdevice.models.convert_state(source, "tensorflow", like=like, inputs=x).differences
        == []
    )
    back = xdevice.models.convert_state(
        like, "torch", like=source, inputs=np.moveaxis(x, 1, -1)
    )
    assert back.differences == []


def test_inputs_that_cannot_be_used_are_an_error():
    nn, source, like = _torch(), _block("torch"), _block("paddle")
    with pytest.raises(
        xdevice.errors.StateError,
        match="inputs= requires two models; pass one model as the source",
    ):
        xdevice.models.convert_state(source, "paddle", inputs=NUMBERS)
    with pytest.raises(
        ArgumentError, match=r"torch failed in a on inputs= of the shape \(2, 5\)"
    ):
        xdevice.models.convert_state(source, "paddle", like=like, inputs=NUMBERS[..., 0])
    with pytest.raises(xdevice.errors.NotATensorError, match="inputs= expects a tensor"):
        xdevice.models.convert_state(source, "paddle", like=like, inputs="x")
    source.train()
    xdevice.models.convert_state(source, "paddle", like=like, inputs=NUMBERS)
    assert source.training
    assert nn.Linear(1, 1).training
