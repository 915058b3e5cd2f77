"""What `kinds=` or a name says of a layer leaves the doubt about its code, whatever its kind; and weights that norms,
parametrizations, directions and precisions change are read or listed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import framework

import xdevice

torch = framework("torch")
paddle = framework("paddle")
nn = torch.nn
pn = paddle.nn
COMPUTES = "not compared: computation and settings of {}, because the kind is known only from kinds= or shapes"


class Scaled(nn.Module):
    """A layer of a class that nobody knows, with the parameters of one that is known: what it computes is its own."""

    def __init__(self, known):
        super().__init__()
        self.known = [known]
        for name, parameter in known.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x):
        return 0.5 * self.known[0](x)


class One(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.one = layer

    def forward(self, x):
        return self.one(x)


class PaddleOne(pn.Layer):
    def __init__(self, layer):
        super().__init__()
        self.one = layer

    def forward(self, x):
        return self.one(x)


KNOWN = {
    "linear": (lambda: nn.Linear(4, 4), lambda: pn.Linear(4, 4)),
    "embedding": (lambda: nn.Embedding(4, 4), lambda: pn.Embedding(4, 4)),
    "prelu": (lambda: nn.PReLU(4), lambda: pn.PReLU(4)),
    "conv": (lambda: nn.Conv2d(4, 4, 1), lambda: pn.Conv2D(4, 4, 1)),
    "layer_norm": (lambda: nn.LayerNorm(4), lambda: pn.LayerNorm(4)),
}


@pytest.mark.parametrize("key", ["one", "Scaled", "on*"])
@pytest.mark.parametrize("kind", KNOWN)
def test_the_code_of_a_class_that_kinds_tells_is_not_compared(kind, key):
    theirs, mine = (build() for build in KNOWN[kind])
    source, like = One(Scaled(theirs)), PaddleOne(mine)
    assert (
        COMPUTES.format("one")
        in xdevice.models.convert_state(
            source, "paddle", like=like, kinds={key: kind}
        ).differences
    )


def test_the_code_of_the_target_is_not_compared_beside_a_state():
    source, like = pn.Linear(4, 4), One(Scaled(nn.Linear(4, 4)))
    state = {f"one.{name}": value for name, value in source.state_dict().items()}
    assert xdevice.models.convert_state(
        state, "torch", like=like, kinds={"one": "linear"}
    ).differences == [COMPUTES.format("one")]


def test_a_tensor_that_is_said_to_be_the_same_is_as_much_in_doubt():
    class Gained(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.gain = nn.Parameter(gain)

    class PaddleGained(pn.Layer):
        def __init__(self):
            super().__init__()
            self.gain = self.create_parameter([4])

    source, like = Gained(torch.ones(4)), PaddleGained()
    without = xdevice.models.convert_state(source, "paddle", like=like).differences
    assert without
    assert (
        xdevice.models.convert_state(
            source, "paddle", like=like, kinds={"gain": "same"}
        ).differences
        == without
    )


@pytest.mark.skipif(not hasattr(paddle, "compat"), reason="this Paddle has no compat")
@pytest.mark.parametrize("told", [{}, {"kinds": {"one": "linear"}}])
def test_a_linear_of_paddles_compat_is_laid_out_as_pytorchs(told):
    source, like = One(nn.Linear(4, 4)), PaddleOne(paddle.compat.nn.Linear(4, 4))
    state = xdevice.models.convert_state(source, "paddle", like=like, **told)
    assert state.differences == []
    xdevice.load(state, into=like)
    assert (like.one.weight.numpy() == source.one.weight.detach().numpy()).all()


# what changes a weight


SPECTRAL = {
    "since 1.9": torch.nn.utils.parametrizations.spectral_norm,
    "older": torch.nn.utils.spectral_norm,
}
LAYERS = {
    "square": (lambda: nn.Linear(4, 4), lambda: pn.Linear(4, 4), (2, 4)),
    "oblong": (lambda: nn.Linear(4, 3), lambda: pn.Linear(4, 3), (2, 4)),
    "conv": (lambda: nn.Conv2d(4, 4, 3), lambda: pn.Conv2D(4, 4, 3), (2, 4, 5, 5)),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 4, 3),
        lambda: pn.Conv2DTranspose(4, 4, 3),
        (2, 4, 5, 5),
    ),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("way", SPECTRAL)
def test_a_spectral_norm_goes_to_another_or_to_a_plain_weight(way, layer):
    theirs, mine, shape = LAYERS[layer]
    source = One(SPECTRAL[way](theirs())).eval()
    x = torch.rand(shape)
    normed, plain = PaddleOne(pn.utils.spectral_norm(mine())), PaddleOne(mine())
    state = xdevice.models.convert_state(source, "paddle", like=normed)
    assert state.differences == []
    xdevice.load(state, into=normed)
    xdevice.assert_parity(source, normed, inputs=x)
    state = xdevice.models.convert_state(source, "paddle", like=plain)
    assert state.differences == [
        "one: paddle has no spectral norm here; the norm affects training only"
    ]
    xdevice.load(state, into=plain)
    xdevice.assert_parity(source(x), plain(paddle.to_tensor(x.numpy())), check_device=False)
    back = One(SPECTRAL[way](theirs())).eval()
    xdevice.load(xdevice.models.convert_state(normed, "torch", like=back), into=back)
    xdevice.assert_parity(back(x), source(x))


def test_a_spectral_norm_over_another_axis_is_listed():
    source = One(torch.nn.utils.spectral_norm(nn.Linear(4, 4), dim=1))
    like = PaddleOne(pn.utils.spectral_norm(pn.Linear(4, 4)))
    (line,) = xdevice.models.convert_state(source, "paddle", like=like).differences
    assert "axis of the spectral norm is 1 in torch, 0 in paddle" in line


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_a_single_cell_computes_the_same_elsewhere(kind):
    source, like = (
        getattr(nn, kind)(4, 4),
        getattr(pn, f"Simple{kind}" if kind == "RNNCell" else kind)(4, 4),
    )
    state = xdevice.models.convert_state(source, "paddle", like=like)
    assert state.differences == []
    xdevice.load(state, into=like)
    x, h = np.random.default_rng(0).random((2, 2, 4), "float32")
    states = [torch.from_numpy(h), paddle.to_tensor(h)]
    if kind == "LSTMCell":
        states = [(one, one) for one in states]
    expected, came = (
        source(torch.from_numpy(x), states[0]),
        like(paddle.to_tensor(x), states[1]),
    )
    xdevice.assert_parity(
        came[0], expected[0] if kind == "LSTMCell" else expected, check_device=False
    )
    back = getattr(nn, kind)(4, 4)
    xdevice.load(xdevice.models.convert_state(like, "torch", like=back), into=back)
    xdevice.assert_parity(back, source)


def dropped(layer, name):
    """As weight drop is written: another parameter, and the weight as an attribute."""
    raw = getattr(layer, name)
    del layer._parameters[name]
    layer.register_parameter(f"{name}_raw", raw)
    setattr(layer, name, raw.detach())
    return layer


NORMS = {
    "weight norm": torch.nn.utils.parametrizations.weight_norm,
    "older weight norm": torch.nn.utils.weight_norm,
    "spectral norm": torch.nn.utils.spectral_norm,
    "weight drop": dropped,
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("way", NORMS)
def test_a_norm_of_one_weight_of_a_recurrent_layer_is_listed(way, kind):
    source = nn.Sequential(NORMS[way](getattr(nn, kind)(4, 4), "weight_hh_l0"))
    like = pn.Sequential(getattr(pn, kind)(4, 4))
    state = xdevice.models.convert_state(source, "paddle", like=like)
    assert len(state) == 0
    assert any(
        "remove the norm or parametrization first" in why for why in state.unmapped.values()
    )


# Keras


def keras_model(*layers, shape=(4,)):
    import keras

    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"activation": "relu"}, "activation backwards is None in torch, relu in tensorflow"),
        (
            {"recurrent_activation": "hard_sigmoid"},
            "recurrent_activation backwards is None in torch, hard_sigmoid",
        ),
        (
            {"recurrent_dropout": 0.5},
            "recurrent_dropout backwards is None in torch, 0.5 in tensorflow",
        ),
    ],
)
def test_what_the_second_direction_is_set_to_is_listed(changed, line):
    framework("tensorflow")
    from keras import layers

    backward = layers.LSTM(4, return_sequences=True, go_backwards=True, **changed)
    like = keras_model(
        layers.Bidirectional(layers.LSTM(4, return_sequences=True), backward_layer=backward),
        shape=(5, 4),
    )
    state = xdevice.models.convert_state(
        nn.LSTM(4, 4, bidirectional=True, batch_first=True), "tensorflow", like=like
    )
    assert any(line in difference for difference in state.differences)


def test_two_directions_that_are_set_alike_are_not_listed():
    framework("tensorflow")
    from keras import layers

    backward = layers.GRU(4, return_sequences=True, go_backwards=True)
    like = keras_model(
        layers.Bidirectional(layers.GRU(4, return_sequences=True), backward_layer=backward),
        shape=(5, 4),
    )
    source = nn.GRU(4, 4, bidirectional=True, batch_first=True)
    assert xdevice.models.convert_state(source, "tensorflow", like=like).differences == []


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_precision_of_keras_is_listed_once(policy):
    framework("tensorflow")
    from keras import layers

    one, two = (layers.Dense(4, dtype=policy, name=name) for name in ("one", "two"))
    (line,) = xdevice.models.convert_state(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        "tensorflow",
        like=keras_model(one, two),
    ).differences
    dtype = policy.removeprefix("mixed_")
    assert (
        line
        == f"one: compute_dtype is None in torch, {dtype}, as in 1 more layers in tensorflow"
    )


@pytest.mark.parametrize("layer", ["Dense", "Embedding"])
def test_lora_of_keras_is_named(layer):
    framework("tensorflow")
    from keras import layers

    made, shape = (
        (layers.Dense(4), (4,)) if layer == "Dense" else (layers.Embedding(4, 4), (5,))
    )
    like = keras_model(made, shape=shape)
    made.enable_lora(2)
    source = nn.Sequential(nn.Linear(4, 4) if layer == "Dense" else nn.Embedding(4, 4))
    with pytest.raises(xdevice.errors.StateError, match=r"are parameters of LoRA"):
        xdevice.models.convert_state(source, "tensorflow", like=like)
    with pytest.raises(xdevice.errors.StateError, match=r"with Keras, call save_weights\(\)"):
        xdevice.models.convert_state(like, "torch", like=source)


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_layer_of_keras_that_is_quantised_is_not_mapped(mode):
    framework("tensorflow")
    from keras import layers

    like = keras_model(layers.Dense(4))
    like.layers[0].quantize(mode)
    state = xdevice.models.convert_state(
        nn.Sequential(nn.Linear(4, 4)), "tensorflow", like=like
    )
    assert any("quantized model" in why for why in state.unmapped.values())
    before = [np.array(variable) for variable in like.variables]
    with pytest.raises(xdevice.errors.StateError):
        xdevice.load(state, into=like)
    assert all(
        (np.array(one) == two).all() for one, two in zip(like.variables, before, strict=True)
    )
