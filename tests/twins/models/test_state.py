"""Parameters of one framework in the layout of another: every kind of layer, every ordered pair, by its outputs."""

from __future__ import annotations

import pickle
import re
from itertools import permutations

import numpy as np
import pytest
from helpers.environment import ROOT, WITH_MODELS, framework, python, sampled
from helpers.model_pairs import IMAGE, SEQUENCE, VECTORS, error, outputs, ported, randomised

import xdevice
from xdevice.core import registry
from xdevice.twins.contract import dialects, layouts

INDICES = np.array([[0, 2, 4], [1, 1, 3]])


@pytest.fixture(scope="module", autouse=True)
def _frameworks():
    for name in WITH_MODELS:
        xdevice.backend(name)


# the same layers, as each framework's users write them; an image goes into Keras with its channels last


def _torch():
    import torch

    return torch.nn


def _paddle():
    import paddle

    return paddle.nn


@pytest.fixture(autouse=True)
def _gluon_takes_tensors(request):
    """Layers remember whether they were built with NumPy's semantics."""
    if "mxnet" in request.node.name:
        xdevice.backend("mxnet").namespace().enter()


def _gluon(block):
    block.initialize()
    return block


def _keras(*layers, shape):
    import keras

    return keras.Sequential([keras.Input(shape), *layers])


def linear(name):
    if name in ("torch", "paddle"):
        nn = _torch() if name == "torch" else _paddle()
        return nn.Linear(4, 4)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Dense(4, in_units=4))
    from keras import layers

    return _keras(layers.Dense(4), shape=(4,))


def conv(name):
    """A stride, and no padding."""
    if name in ("torch", "paddle"):
        nn = _torch() if name == "torch" else _paddle()
        return nn.Conv2d(4, 4, 3, stride=2) if name == "torch" else nn.Conv2D(4, 4, 3, stride=2)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Conv2D(4, 3, strides=2, in_channels=4))
    from keras import layers

    return _keras(layers.Conv2D(4, 3, strides=2), shape=(7, 7, 4))


def grouped_conv(name):
    """In two groups, padded."""
    if name == "torch":
        return _torch().Conv2d(4, 6, 3, padding=1, groups=2)
    if name == "paddle":
        return _paddle().Conv2D(4, 6, 3, padding=1, groups=2)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Conv2D(6, 3, padding=1, groups=2, in_channels=4))
    from keras import layers

    return _keras(layers.Conv2D(6, 3, padding="same", groups=2), shape=(7, 7, 4))


def depthwise_conv(name):
    if name == "torch":
        return _torch().Conv2d(4, 8, 3, groups=4)
    if name == "paddle":
        return _paddle().Conv2D(4, 8, 3, groups=4)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Conv2D(8, 3, groups=4, in_channels=4))
    from keras import layers

    return _keras(layers.DepthwiseConv2D(3, depth_multiplier=2), shape=(7, 7, 4))


def conv_transpose(name):
    if name == "torch":
        return _torch().ConvTranspose2d(4, 3, 3, stride=2)
    if name == "paddle":
        return _paddle().Conv2DTranspose(4, 3, 3, stride=2)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Conv2DTranspose(3, 3, strides=2, in_channels=4))
    from keras import layers

    return _keras(layers.Conv2DTranspose(3, 3, strides=2), shape=(7, 7, 4))


def batch_norm(name):
    if name == "torch":
        return _torch().BatchNorm2d(4)
    if name == "paddle":
        return _paddle().BatchNorm2D(4)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.BatchNorm(in_channels=4))
    from keras import layers

    return _keras(layers.BatchNormalization(epsilon=1e-5, momentum=0.9), shape=(7, 7, 4))


def prelu(name):
    if name in ("torch", "paddle"):
        return (_torch() if name == "torch" else _paddle()).PReLU(4)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.PReLU(in_channels=4))
    from keras import layers

    return _keras(layers.PReLU(shared_axes=[1, 2]), shape=(7, 7, 4))


def layer_norm(name):
    if name in ("torch", "paddle"):
        return (_torch() if name == "torch" else _paddle()).LayerNorm(4)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.LayerNorm(in_channels=4))
    from keras import layers

    return _keras(layers.LayerNormalization(epsilon=1e-5), shape=(4,))


def embedding(name):
    if name in ("torch", "paddle"):
        return (_torch() if name == "torch" else _paddle()).Embedding(5, 5)
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        return _gluon(gluon.Embedding(5, 5))
    from keras import layers

    return _keras(layers.Embedding(5, 5), shape=(3,))


def _recurrent(kind, name, layers=1, both=False):
    if name == "torch":
        return getattr(_torch(), kind)(
            4, 4, num_layers=layers, bidirectional=both, batch_first=True
        )
    if name == "paddle":
        return getattr(_paddle(), kind)(
            4, 4, num_layers=layers, direction="bidirect" if both else "forward"
        )
    if name == "mxnet":
        from mxnet.gluon import rnn

        return _gluon(
            getattr(rnn, kind)(4, layers, layout="NTC", bidirectional=both, input_size=4)
        )
    import keras

    layer = getattr(keras.layers, kind)(4, return_sequences=True)
    return _keras(keras.layers.Bidirectional(layer) if both else layer, shape=(5, 4))


def lstm(name):
    return _recurrent("LSTM", name)


def gru(name):
    return _recurrent("GRU", name)


def bidirectional_lstm(name):
    return _recurrent("LSTM", name, both=True)


def bidirectional_gru(name):
    return _recurrent("GRU", name, both=True)


def deep_lstm(name):
    return _recurrent("LSTM", name, layers=2, both=True)


LAYERS = {
    linear: VECTORS, conv: IMAGE, grouped_conv: IMAGE, depthwise_conv: IMAGE, conv_transpose: IMAGE, batch_norm: IMAGE,
    prelu: IMAGE, layer_norm: VECTORS, embedding: INDICES, lstm: SEQUENCE, gru: SEQUENCE,
    bidirectional_lstm: SEQUENCE, bidirectional_gru: SEQUENCE,
}  # fmt: skip


FROM_AND_TO_THE_FIRST = [
    pair for pair in permutations(WITH_MODELS, 2) if WITH_MODELS[0] in pair
]

# every kind, every pair


@pytest.mark.parametrize("build", LAYERS, ids=lambda build: build.__name__)
@pytest.mark.parametrize(
    ("here", "there"), sampled(permutations(WITH_MODELS, 2), each_time=FROM_AND_TO_THE_FIRST)
)
def test_a_layer_computes_the_same_elsewhere(build, here, there):
    assert error(build, here, there, LAYERS[build]) < 1e-5


@pytest.mark.parametrize(("here", "there"), list(permutations(WITH_MODELS[:3], 2)))
def test_two_layers_in_both_directions_compute_the_same_elsewhere(here, there):
    assert error(deep_lstm, here, there, SEQUENCE) < 1e-5


def test_a_kernel_of_keras_is_the_same_with_its_channels_first():
    from keras import layers

    source = randomised("torch", conv("torch"))
    like = _keras(layers.Conv2D(4, 3, strides=2, data_format="channels_first"), shape=(4, 7, 7))
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=like), into=like)
    # without oneDNN the CPU computes no convolution whose channels come first
    twin = _keras(layers.Conv2D(4, 3, strides=2), shape=(7, 7, 4))
    twin.set_weights(like.get_weights())
    assert (
        np.abs(outputs("tensorflow", twin, IMAGE) - outputs("torch", source, IMAGE)).max()
        < 1e-5
    )


@pytest.mark.parametrize("build", LAYERS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", WITH_MODELS)
def test_nothing_is_left_over_and_back_is_what_it_was(build, name):
    model = randomised(name, build(name))
    away = xdevice.models.convert_state(model, "numpy")
    assert not away.unmapped
    kinds = {layer.path: layer.kind for layer in xdevice.backend(name).layers(model)}
    twin = build(name)
    back = xdevice.models.convert_state(dict(away), name, like=twin, kinds=kinds)
    for variable, value in xdevice.backend(name).variables(model):
        if variable in back:
            assert (
                xdevice.to_numpy(back[variable]) == xdevice.backend(name).to_numpy(value)
            ).all()
    xdevice.load(back, into=twin)
    x = LAYERS[build]
    assert (outputs(name, twin, x) == outputs(name, model, x)).all()


# a comparison that can fail


def test_a_square_linear_without_its_transpose_is_seen(monkeypatch):
    for rules, there in ((dialects._PADDLE_RULES, "paddle"), (dialects._KERNELS, "tensorflow")):
        monkeypatch.setitem(rules, "linear", {"weight": layouts.SAME})
        assert error(linear, "torch", there, VECTORS) > 0.01


@pytest.mark.parametrize("rule", ["GATES_ZRN", "BIASES_ZRN", "SUMMED", "KERNEL_FIRST"])
def test_a_wrong_rule_is_seen(monkeypatch, rule):
    wrong = {
        "GATES_ZRN": layouts.TRANSPOSED,
        "BIASES_ZRN": layouts.Rule(lambda x: (x[0], x[1]), lambda ih, hh: np.stack([ih, hh])),
        "SUMMED": layouts.Rule(lambda x: (x, x), lambda ih, hh: ih),
        "KERNEL_FIRST": layouts._single(
            lambda x: x.transpose(3, 2, 1, 0), lambda x: x.transpose(3, 2, 1, 0)
        ),
    }[rule]
    monkeypatch.setattr(layouts, rule, wrong)
    monkeypatch.setitem(dialects._KERNELS, "conv", {"weight": layouts.KERNEL_FIRST})
    build = {"GATES_ZRN": gru, "BIASES_ZRN": gru, "SUMMED": lstm, "KERNEL_FIRST": conv}[rule]
    assert error(build, "torch", "tensorflow", LAYERS[build]) > 0.01


# what cannot be kept is listed


def test_another_eps_and_momentum_are_listed():
    from keras import layers

    state = xdevice.models.convert_state(
        batch_norm("torch"), "tensorflow", like=_keras(layers.BatchNormalization(), shape=(4,))
    )
    assert not state.unmapped
    assert state.differences == [
        "batch_normalization: eps is 1e-05 in torch, 0.001 in tensorflow",
        "batch_normalization: momentum is 0.1 in torch, 0.01 in tensorflow",
        "num_batches_tracked: left out, because tensorflow does not count batches",
    ]
    assert state.differences[0] in str(state)


def test_equal_settings_are_not_listed():
    _, _, state = ported(batch_norm, "paddle", "mxnet")
    assert state.differences == []
    _, _, state = ported(grouped_conv, "torch", "tensorflow")  # padding=1 and "same"
    assert state.differences == []


def test_what_changes_the_outputs_of_an_embedding_is_listed():
    nn, other = _torch(), _paddle()
    both = (
        named(nn, e=nn.Embedding(3, 2, padding_idx=-1)),
        named(other, e=other.Embedding(3, 2, padding_idx=2)),
    )
    assert xdevice.models.convert_state(both[0], "paddle", like=both[1]).differences == []
    plain = named(other, e=other.Embedding(3, 2))
    assert xdevice.models.convert_state(both[0], "paddle", like=plain).differences == [
        "e: padding_idx is 2 in torch, None in paddle"
    ]
    normed = named(nn, e=nn.Embedding(3, 2, max_norm=0.1))
    from keras import layers

    like = _keras(layers.Embedding(3, 2, mask_zero=True, name="e"), shape=(4,))
    for state in (
        xdevice.models.convert_state(normed, "tensorflow", like=like),
        xdevice.models.convert_state(like, "torch", like=normed),
    ):
        assert [text.partition(" is")[0] for text in sorted(state.differences)] == [
            "e: mask_zero",
            "e: max_norm",
        ]


def test_the_time_axis_and_the_direction_are_listed():
    from keras import layers
    from mxnet.gluon import rnn

    nn, other = _torch(), _paddle()
    source = nn.LSTM(4, 4)
    told = "batch_first is False in torch, True in paddle"
    assert xdevice.models.convert_state(
        source, "paddle", like=other.LSTM(4, 4)
    ).differences == [f"lstm: {told}"]
    for like in (other.LSTM(4, 4, time_major=True), _gluon(rnn.LSTM(4, input_size=4))):
        assert (
            xdevice.models.convert_state(
                source, registry.owner_and_kind(type(like))[0], like=like
            ).differences
            == []
        )
    like = _keras(layers.LSTM(4, go_backwards=True, name="r"), shape=(5, 4))
    assert xdevice.models.convert_state(lstm("torch"), "tensorflow", like=like).differences == [
        "r: go_backwards is None in torch, True in tensorflow"
    ]


def own_norm():
    """A layer of a class that nobody knows."""
    nn = _torch()
    layer = nn.Module()
    layer.weight, layer.bias = nn.LayerNorm(4).parameters()
    return layer


def test_settings_that_nobody_tells_are_listed_as_not_compared():
    source, like = lstm("torch"), lstm("paddle")
    assert (
        xdevice.models.convert_state(source.state_dict(), "paddle", like=like).differences == []
    )
    norm, like = _torch().Sequential(own_norm()), _paddle().Sequential(_paddle().LayerNorm(4))
    assert xdevice.models.convert_state(
        norm, "paddle", like=like, kinds={"0": "layer_norm"}
    ).differences == [
        "not compared: computation and settings of 0, because the kind is known only from kinds= or shapes"
    ]


def test_an_activation_in_a_norm_is_listed():
    like = _paddle().BatchNorm(4, act="relu")
    state = xdevice.models.convert_state(_torch().BatchNorm2d(4), "paddle", like=like)
    assert "batch_norm: activation is None in torch, relu in paddle" in state.differences


def test_a_norm_over_several_axes_is_flat_in_paddle():
    nn, other = _torch(), _paddle()
    source, like = randomised("torch", nn.LayerNorm([2, 3])), other.LayerNorm([2, 3])
    state = xdevice.models.convert_state(source, "paddle", like=like)
    xdevice.load(state, into=like)
    xdevice.assert_parity(source, like)
    x = VECTORS.reshape(2, 2, 3)
    assert np.abs(outputs("torch", source, x) - outputs("paddle", like, x)).max() < 1e-5
    assert (
        xdevice.models.convert_state(like, "torch", like=nn.LayerNorm([2, 3]))["weight"]
        == source.weight
    ).all()
    assert {
        tuple(value.shape) for value in xdevice.models.convert_state(source, "paddle").values()
    } == {(6,)}


def test_same_padding_at_a_stride_is_no_padding_of_one():
    from keras import layers

    like = _keras(
        layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"), shape=(8, 8, 4)
    )
    state = xdevice.models.convert_state(
        _torch().Conv2d(4, 4, 3, stride=2, padding=1), "tensorflow", like=like
    )
    assert state.differences == [
        "conv2d: padding is (1, 1) in torch, same in tensorflow",
        "conv2d: activation is None in torch, relu in tensorflow",
    ]


def test_groups_in_a_keras_transpose_are_listed():
    source = _torch().ConvTranspose2d(4, 4, 3, groups=2)
    assert set(xdevice.models.convert_state(source, "tensorflow").unmapped) == {
        "kernel",
        "bias",
    }
    from keras import layers

    like = _keras(layers.Conv2DTranspose(4, 3), shape=(7, 7, 4))
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert not state
    assert "groups is 2 in torch, 1 in tensorflow" in state.unmapped["weight"]
    with pytest.raises(xdevice.errors.StateError, match="groups is 2"):
        xdevice.load(state, into=like)


def flattened():
    from keras import layers

    return _keras(
        layers.Conv2D(4, 3, name="conv"),
        layers.Flatten(),
        layers.Dense(4, name="fc"),
        shape=(7, 7, 4),
    )


def flattening():
    nn = _torch()
    source = nn.Sequential()
    source.add_module("conv", nn.Conv2d(4, 4, 3))
    source.add_module("flatten", nn.Flatten())
    source.add_module("fc", nn.Linear(4 * 5 * 5, 4))
    return source


def test_a_dense_after_flatten_is_reordered_both_ways():
    source, like, again = flattening(), flattened(), flattening()
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert [line.partition(" '")[0] for line in state.done] == [
        "fc/kernel: reordered; it follows the Flatten of (5, 5, 4)"
    ]
    xdevice.load(state, into=like)
    xdevice.assert_parity(source, like)
    xdevice.assert_parity(source, like, inputs=IMAGE)
    xdevice.load(xdevice.models.convert_state(like, "torch", like=again), into=again)
    assert again.fc.weight.equal(source.fc.weight)
    assert (
        xdevice.models.convert_state(like, "paddle")["fc.weight"].numpy().T.tolist()
        == source.fc.weight.tolist()
    )
    other = flattened()
    state = xdevice.models.convert_state(like, "tensorflow", like=other)
    assert not state.done
    xdevice.load(state, into=other)
    xdevice.assert_parity(like, other)
    like.get_layer("conv").kernel.assign(like.get_layer("conv").kernel[:, :, ::-1])
    with pytest.raises(xdevice.errors.ParityError, match="differ at conv/kernel"):
        xdevice.assert_parity(source, like)


def test_without_like_the_order_behind_a_flatten_is_in_doubt():
    source, like = flattening(), flattened()
    for there, here in (("tensorflow", True), ("paddle", False), ("numpy", False)):
        lines = xdevice.models.convert_state(source, there).differences
        assert (
            any(line.startswith("fc: without like=, the order of the pixels") for line in lines)
            == here
        )
    assert "fc/kernel" in xdevice.models.convert_state(like, "tensorflow").unmapped
    assert (
        pickle.loads(pickle.dumps(xdevice.models.convert_state(source, "numpy"))).unmapped == {}
    )
    nn = _paddle()
    channels_last = nn.Sequential(
        nn.Conv2D(4, 4, 3, data_format="NHWC"), nn.Flatten(), nn.Linear(100, 4)
    )
    assert (
        "Flatten of"
        in xdevice.models.convert_state(channels_last, "tensorflow", like=like).unmapped[
            "fc/kernel"
        ]
    )
    pooled = _torch().Sequential(
        _torch().Conv2d(4, 4, 3), _torch().AdaptiveAvgPool2d(1), _torch().Linear(4, 4)
    )
    assert not xdevice.models.convert_state(pooled, "tensorflow").differences


def _functional(shape, way):
    """What this function of the input and `keras.layers` gives, as a model."""
    import keras

    x = keras.Input(shape)
    y = way(x, keras.layers)
    return keras.Model(x, y)


def a_relu_of_ops(x, kl):
    import keras

    return kl.Dense(2, name="fc")(kl.Flatten()(keras.ops.relu(kl.Conv2D(4, 3)(x))))


def a_sum_of_scaled_images(x, kl):
    y = kl.Conv2D(4, 3)(x) * 2.0 + kl.Conv2D(4, 3)(x)
    return kl.Dense(2, name="fc")(kl.Flatten()(y))


def a_function_behind_the_flatten(x, kl):
    import keras

    return kl.Dense(2, name="fc")(keras.ops.tanh(kl.Flatten()(kl.Conv2D(4, 3)(x))))


def turned_by_a_function(x, kl):
    import keras

    return kl.Dense(2, name="fc")(
        kl.Flatten()(keras.ops.transpose(kl.Conv2D(4, 3)(x), (0, 2, 1, 3)))
    )


def two_heads(x, kl):
    flat = kl.Flatten()(kl.Conv2D(4, 3)(x))
    return [kl.Dense(2, name="a")(flat), kl.Dense(1, name="v")(flat)]


def a_dense_beside(x, kl):
    other = kl.Dense(3, name="other")(kl.GlobalAveragePooling2D()(x))
    return kl.Concatenate()([other, kl.Dense(3, name="head")(kl.Flatten()(kl.Conv2D(4, 3)(x)))])


def a_norm_between(x, kl):
    flat = kl.PReLU(name="act")(
        kl.BatchNormalization(name="bn")(kl.Flatten()(kl.Conv2D(4, 3)(x)))
    )
    return kl.Dense(3, name="second")(kl.Dense(3, name="first")(flat))


def put_beside_others(x, kl):
    flat = kl.Flatten()(kl.Conv2D(4, 3)(x))
    return kl.Dense(3, name="fc")(
        kl.Concatenate()([kl.Dropout(0.1)(flat), kl.GlobalAveragePooling2D()(x)])
    )


def a_model_in_a_model(x, kl):
    import keras

    body = keras.Sequential([keras.Input((7, 7, 4)), kl.Conv2D(4, 3), kl.Flatten()])
    return keras.Sequential([keras.Input((100,)), kl.Dense(3, name="fc")], name="head")(body(x))


def a_function(x, kl):
    import keras

    return kl.Dense(3, name="fc")(keras.ops.reshape(kl.Conv2D(4, 3)(x), (-1, 100)))


def channels_first(x, kl):
    x = kl.Conv2D(4, 3, data_format="channels_first")(x)
    return [
        kl.Dense(2, name="a")(kl.Flatten()(x)),
        kl.Dense(2, name="b")(kl.Flatten(data_format="channels_first")(x)),
    ]


def rows_of_a_sequence(x, kl):
    x = kl.Conv2D(4, 3)(x)
    folded = kl.LSTM(3, name="folded")(kl.Reshape((5, 20))(x))
    return [folded, kl.LSTM(3, name="kept")(kl.Reshape((25, 4))(x))]


def a_folded_sequence(x, kl):
    x = kl.TimeDistributed(kl.Conv2D(2, 3))(kl.Reshape((2, 7, 7, 2))(x))
    return kl.LSTM(3, name="rnn")(kl.TimeDistributed(kl.Flatten())(x))


def a_folded_sequence_with_attention(x, kl):
    x = kl.TimeDistributed(kl.Conv2D(2, 3))(kl.Reshape((2, 7, 7, 2))(x))
    x = kl.TimeDistributed(kl.Flatten())(x)
    return kl.MultiHeadAttention(2, 25, name="mha")(x, x)


def a_group_norm(x, kl):
    return kl.GroupNormalization(5, name="gn")(kl.Flatten()(kl.Conv2D(4, 3)(x)))


def a_generator(x, kl):
    x = kl.BatchNormalization(name="bn")(kl.Dense(36, name="fc")(kl.Dense(5, name="first")(x)))
    return kl.Conv2DTranspose(2, 3, name="conv")(kl.Reshape((3, 3, 4))(x))


def a_bottleneck(x, kl):
    x = kl.Dense(36, name="fc")(kl.Flatten()(kl.Conv2D(4, 3)(x)))
    return kl.Conv2DTranspose(2, 3)(kl.Reshape((3, 3, 4))(x))


def attention(x, kl):
    import keras

    x = kl.Conv1D(8, 3, padding="same")(x)
    q, k = (kl.Reshape((5, 2, 4))(kl.Dense(8, name=name)(x)) for name in "qk")
    y = keras.ops.reshape(keras.ops.einsum("bthd,bshd->bthd", q, k), (-1, 5, 8))
    return kl.Conv1D(3, 3)(kl.Dense(8, name="out")(y))


def boxes(x, kl):
    squeezed = kl.Reshape((1, 1, 4))(kl.Dense(4, name="se")(kl.GlobalAveragePooling2D()(x)))
    return kl.Dense(2, name="fc")(
        kl.Reshape((49, 2, 6))(kl.Conv2D(12, 1, name="conv")(kl.Multiply()([x, squeezed])))
    )


def a_sequence(x, kl):
    return kl.Dense(3, name="fc")(kl.Flatten()(kl.LSTM(4, return_sequences=True)(x)))


BATCH_NORM = {f"bn/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")}


def moved_by_hand(x, kl):
    return kl.Dense(3, name="fc")(kl.Flatten()(kl.Permute((3, 1, 2))(kl.Conv2D(4, 3)(x))))


def turned_by_its_own_code(x, kl):
    class Turned(kl.Dropout):
        def call(self, x, training=None):
            return x[:, ::-1]

    return kl.Dense(3, name="fc")(Turned(0.1)(kl.Flatten()(kl.Conv2D(4, 3)(x))))


def folded_twice(x, kl):
    rows = kl.Permute((2, 1))(kl.Reshape((4, 25))(kl.Flatten()(kl.Conv2D(4, 3)(x))))
    return kl.Dense(3, name="fc")(kl.Flatten()(rows))


def shared(x, kl):
    flat, conv = kl.Flatten(), kl.Conv2D(4, 3)
    return [kl.Dense(2, name=name)(flat(conv(x))) for name in "ab"]


def beside_the_image(x, kl):
    return kl.Dense(3, name="fc")(
        kl.Flatten()(kl.Concatenate()([kl.Conv2D(4, 3, padding="same")(x), x]))
    )


def a_small_network(x, kl):
    x = kl.MaxPooling2D(2)(kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(4, 3)(x))))
    return kl.Dense(3, name="fc")(kl.Dropout(0.1)(kl.Flatten()(x)))


@pytest.mark.parametrize(
    ("way", "shape", "done", "unmapped"),
    [
        (two_heads, (7, 7, 4), {"a/kernel", "v/kernel"}, set()),
        (a_small_network, (7, 7, 4), {"fc/kernel"}, set()),
        (a_dense_beside, (7, 7, 4), {"head/kernel"}, set()),
        (a_norm_between, (7, 7, 4), {"first/kernel", "act/alpha", *BATCH_NORM}, set()),
        (put_beside_others, (7, 7, 4), set(), {"fc/kernel"}),
        (beside_the_image, (7, 7, 4), set(), {"fc/kernel"}),
        (moved_by_hand, (7, 7, 4), set(), {"fc/kernel"}),
        (turned_by_its_own_code, (7, 7, 4), set(), {"fc/kernel"}),
        (folded_twice, (7, 7, 4), set(), {"fc/kernel"}),
        (shared, (7, 7, 4), set(), {"a/kernel", "b/kernel"}),
        (a_model_in_a_model, (7, 7, 4), {"head/fc/kernel"}, set()),
        (a_function, (7, 7, 4), {"fc/kernel"}, set()),
        (a_relu_of_ops, (7, 7, 4), {"fc/kernel"}, set()),
        (a_sum_of_scaled_images, (7, 7, 4), {"fc/kernel"}, set()),
        (a_function_behind_the_flatten, (7, 7, 4), {"fc/kernel"}, set()),
        (turned_by_a_function, (7, 7, 4), set(), {"fc/kernel"}),
        (channels_first, (4, 7, 7), {"b/kernel"}, set()),
        (rows_of_a_sequence, (7, 7, 4), set(), {"folded/lstm_cell/kernel"}),
        (a_folded_sequence, (7, 7, 4), set(), {"rnn/lstm_cell/kernel"}),
        (
            a_folded_sequence_with_attention,
            (7, 7, 4),
            set(),
            {f"mha/{name}/kernel" for name in ("query", "key", "value")},
        ),
        (a_group_norm, (7, 7, 4), set(), {"gn/gamma", "gn/beta"}),
        (a_generator, (4,), set(), {"fc/kernel", "fc/bias", *BATCH_NORM}),
        (a_bottleneck, (7, 7, 4), set(), {"fc/kernel", "fc/bias"}),
        (attention, (5, 4), set(), set()),
        (boxes, (7, 7, 4), set(), set()),
        (a_sequence, (5, 4), set(), set()),
    ],
)
def test_what_keras_counts_by_pixels_is_reordered_or_listed_and_nothing_else(
    way, shape, done, unmapped
):
    state = xdevice.models.convert_state(_functional(shape, way), "torch")
    assert {line.partition(":")[0] for line in state.done} == done
    assert set(state.unmapped) == unmapped


def test_the_message_names_what_comes_between():
    state = xdevice.models.convert_state(_functional((7, 7, 4), turned_by_a_function), "torch")
    assert "Transpose 'transpose" in state.unmapped["fc/kernel"]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("flat_first", [True, False])
def test_models_that_begin_with_one_input_are_all_followed(first, flat_first):
    import keras
    from keras import layers as kl

    begin = keras.Input((8,))
    one, other = (
        keras.Model(begin, kl.Dense(4, name=name)(begin), name=f"of_{name}")
        for name in ("flat", "plain")
    )
    image, row = keras.Input((2, 2, 2)), keras.Input((8,))
    calls = [lambda: one(kl.Flatten()(image)), lambda: other(row)]
    outputs = [call() for call in (calls if first else reversed(calls))]
    model = keras.Model([image, row] if flat_first else [row, image], outputs)
    assert "of_flat/flat/kernel" in xdevice.models.convert_state(model, "torch").unmapped


def test_a_generator_is_no_other_one_in_either_direction():
    nn = _torch()
    source = named(
        nn,
        fc=nn.Linear(4, 36),
        shape=nn.Unflatten(1, (4, 3, 3)),
        conv=nn.ConvTranspose2d(4, 2, 3),
    )
    from keras import layers

    like = _keras(
        layers.Dense(36, name="fc"),
        layers.Reshape((3, 3, 4)),
        layers.Conv2DTranspose(2, 3, name="conv"),
        shape=(4,),
    )
    for state in (
        xdevice.models.convert_state(source, "tensorflow", like=like),
        xdevice.models.convert_state(like, "torch", like=source),
    ):
        assert {name.replace("/", ".").replace("kernel", "weight") for name in state.unmapped} == {
            "fc.weight", "fc.bias",
        }  # fmt: skip
        assert any("Reshape of (3, 3, 4)" in why for why in state.unmapped.values())
    with pytest.raises(xdevice.errors.ParityError, match="goes into the Reshape"):
        xdevice.assert_parity(source, like)


def test_in_a_subclassed_keras_model_what_may_be_behind_a_flatten_is_listed():
    import keras
    from keras import layers as kl

    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.small, self.conv, self.norm = (
                kl.Dense(4),
                kl.Conv2D(4, 3),
                kl.BatchNormalization(),
            )
            self.flatten, self.flat_norm, self.a, self.v = (
                kl.Flatten(), kl.BatchNormalization(), kl.Dense(3), kl.Dense(1)
            )  # fmt: skip

        def call(self, x):
            flat = self.flat_norm(self.flatten(self.norm(self.conv(x))))
            return self.small(self.a(flat)), self.v(flat)

    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.fc, self.shape_, self.conv = (
                kl.Dense(5), kl.Dense(36), kl.Reshape((3, 3, 4)), kl.Conv2DTranspose(2, 3)
            )  # fmt: skip

        def call(self, x):
            return self.conv(self.shape_(self.fc(self.first(x))))

    class Rows(keras.Model):
        def __init__(self, recurrent):
            super().__init__()
            self.conv, self.rows, self.rnn = (
                kl.Conv2D(4, 3),
                kl.Reshape((5, 20)),
                kl.Bidirectional(recurrent(3)),
            )
            self.fc = kl.Dense(2)

        def call(self, x):
            return self.fc(self.rnn(self.rows(self.conv(x))))

    class Wrapped(kl.Layer):
        def __init__(self):
            super().__init__()
            self.flatten = kl.Flatten()

        def call(self, x):
            return self.flatten(x)

    classifier, generator = Classifier(), Generator()
    classifier(IMAGE.swapaxes(1, 3))
    generator(VECTORS)
    listed = set(xdevice.models.convert_state(classifier, "torch").unmapped)
    norm = {f"batch_normalization_1{name[2:]}" for name in BATCH_NORM}
    assert listed == {"dense_1/kernel", "dense_2/kernel"} | norm
    assert set(xdevice.models.convert_state(generator, "torch").unmapped) == {
        "dense_1/kernel",
        "dense_1/bias",
    }
    for recurrent in (kl.LSTM, kl.GRU, kl.SimpleRNN):
        rows = Rows(recurrent)
        rows(IMAGE.swapaxes(1, 3))
        listed = xdevice.models.convert_state(rows, "torch").unmapped
        assert [name.rpartition("/")[2] for name in listed] == ["kernel", "kernel"]
        assert all(
            "_cell" in name and "judging by its size" in why for name, why in listed.items()
        )
    wrapped = _keras(kl.Conv2D(4, 3), Wrapped(), kl.Dense(3, name="fc"), shape=(7, 7, 4))
    assert set(xdevice.models.convert_state(wrapped, "torch").unmapped) == {"fc/kernel"}


@pytest.mark.parametrize(
    ("make", "rows", "names"),
    [
        (lambda kl: kl.EinsumDense("ab,bc->ac", 3, bias_axes="c"), None, {"kernel"}),
        (lambda kl: kl.EinsumDense("abc,cd->abd", (None, 3)), (5, 20), {"kernel"}),
        (lambda kl: kl.GroupNormalization(5), None, {"gamma", "beta"}),
        (lambda kl: kl.RMSNormalization(), None, {"scale"}),
        (lambda kl: kl.MultiHeadAttention(2, 10), (5, 20), {"kernel"}),
        (lambda kl: kl.Conv1D(3, 2), (5, 20), {"kernel"}),
        (lambda kl: kl.Conv1DTranspose(3, 2), (5, 20), {"kernel"}),
        (lambda kl: kl.DepthwiseConv1D(2), (5, 20), {"kernel"}),
    ],
)
def test_in_a_subclassed_keras_model_any_layer_may_be_behind_a_flatten(make, rows, names):
    import keras
    from keras import layers as kl

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv, self.head = kl.Conv2D(4, 3), make(kl)
            self.flat = kl.Reshape(rows) if rows else kl.Flatten()

        def call(self, x):
            flat = self.flat(self.conv(x))
            is_attention = isinstance(self.head, kl.MultiHeadAttention)
            return self.head(flat, flat) if is_attention else self.head(flat)

    model = Model()
    model(IMAGE.swapaxes(1, 3))
    listed = xdevice.models.convert_state(model, "torch").unmapped
    assert {name.rpartition("/")[2] for name in listed} == names
    assert all("judging by its size" in why for why in listed.values())


def test_outputs_of_an_einsum_before_a_reshape_in_a_subclassed_keras_model_are_listed():
    import keras
    from keras import layers as kl

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.fc = kl.Dense(5), kl.EinsumDense("ab,bc->ac", 36)
            self.image, self.conv = kl.Reshape((3, 3, 4)), kl.Conv2DTranspose(2, 3)

        def call(self, x):
            return self.conv(self.image(self.fc(self.first(x))))

    model = Model()
    model(VECTORS)
    assert set(xdevice.models.convert_state(model, "torch").unmapped) == {"einsum_dense/kernel"}


def test_a_missing_bias_is_listed_and_an_error_when_loading():
    source, target = linear("torch"), _paddle().Linear(4, 4, bias_attr=False)
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert state.unmapped == {"bias": "paddle has no bias in this linear layer"}
    before = target.weight.numpy().copy()
    with pytest.raises(xdevice.errors.StateError, match="bias: paddle has no bias"):
        xdevice.load(state, into=target)
    assert (target.weight.numpy() == before).all()
    xdevice.load(state, into=target, strict=False)
    assert (target.weight.numpy() == source.weight.detach().numpy().T).all()
    back = xdevice.models.convert_state(target, "torch", like=linear("torch"))
    assert back.unmapped == {"bias": "paddle has no bias for it"}


def test_a_layer_that_nobody_knows_is_listed():
    nn = _torch()
    model = nn.Sequential(nn.Linear(4, 4), own_norm())
    state = xdevice.models.convert_state(model, "paddle")
    assert set(state) == {"0.weight", "0.bias"}
    assert set(state.unmapped) == {"1.weight", "1.bias"}
    state = xdevice.models.convert_state(model, "paddle", kinds={"1": "layer_norm"})
    assert not state.unmapped
    assert "1.weight" in state


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            {"0": "conv"},
            r"^kinds= gives '0' the kind conv, but by its class it is linear in torch; leave it out of kinds=$",
        ),
        (
            {"0": "same"},
            "^kinds= gives '0' the kind same, but by its class it is linear in torch",
        ),
        (
            {"0.weight": "same"},
            r"^kinds= gives '0\.weight' the kind same, but no layer of an unknown class has",
        ),
        (
            {"norm": "layer_norm"},
            r"'norm' the kind .*; the parameters of such layers are 1\.weight, 1\.bias$",
        ),
    ],
)
def test_what_is_said_of_a_model_is_held_against_its_classes(kinds, message):
    nn = _torch()
    model = nn.Sequential(nn.Linear(4, 4), own_norm())
    with pytest.raises(xdevice.errors.StateError, match=message):
        xdevice.models.convert_state(model, "paddle", kinds=kinds)


def test_what_is_said_and_true_is_accepted_on_either_side():
    nn = _torch()
    model, like = (
        nn.Sequential(nn.Linear(4, 4), own_norm()),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    )
    kinds = {"0": "linear", "1": "layer_norm"}
    for source, target in ((model, like), (like, model)):
        assert not xdevice.models.convert_state(
            source, "torch", like=target, kinds=kinds
        ).unmapped
    with pytest.raises(
        xdevice.errors.StateError,
        match="but by its class it is linear in torch and linear in torch",
    ):
        xdevice.models.convert_state(like, "torch", like=like, kinds={"0": "conv"})
    renamed = nn.Sequential(own_norm(), nn.Linear(4, 4))
    state = xdevice.models.convert_state(
        like, "torch", like=renamed, names={"0": "1", "1": "0"}, kinds={"1": "layer_norm"}
    )
    assert not state.unmapped


def test_more_than_one_layer_of_keras_is_refused_by_name():
    state = xdevice.models.convert_state(deep_lstm("torch"), "tensorflow")
    assert set(state.unmapped) >= {"kernel", "recurrent_kernel", "bias"}
    state = xdevice.models.convert_state(
        deep_lstm("torch"), "tensorflow", like=lstm("tensorflow")
    )
    assert "layers is 2 in torch, 1 in tensorflow" in state.unmapped["weight_ih_l1"]
    assert not state


def test_a_gru_of_another_formula_is_listed():
    from keras import layers

    model = _keras(layers.GRU(4, reset_after=False), shape=(5, 4))
    assert (
        "reset_after=False"
        in xdevice.models.convert_state(model, "torch").unmapped["gru/gru_cell/kernel"]
    )


def test_out_of_a_keras_lstm_the_second_bias_is_zero():
    source = randomised("tensorflow", lstm("tensorflow"))
    state = xdevice.models.convert_state(
        source, "torch", like=lstm("torch"), names={"lstm": ""}
    )
    assert not state["bias_hh_l0"].any()
    assert state.origins["bias_hh_l0"] == ("lstm/lstm_cell/bias",)
    assert state.differences == []


def test_the_aliases_of_a_paddle_cell_come_once():
    source = lstm("paddle")
    assert "0.cell.weight_ih" in dict(source.state_dict())
    assert list(xdevice.models.convert_state(source, "torch")) == [
        "weight_ih_l0",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
    ]


# tied weights


def tied():
    nn = _torch()
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("name", ["mxnet", "tensorflow"])
def test_a_layer_used_twice_comes_once(name):
    source = randomised("torch", linear("torch"))
    if name == "mxnet":
        from mxnet.gluon import nn as gluon

        one = gluon.Dense(4, in_units=4)
        target = gluon.Sequential()
        target.add(one, one)
        target.initialize()
    else:
        from keras import layers

        one = layers.Dense(4)
        target = _keras(_keras(one, shape=(4,)), _keras(one, shape=(4,)), shape=(4,))
    assert len(list(xdevice.backend(name).layers(target))) == 1
    xdevice.load(xdevice.models.convert_state(source, name, like=target), into=target)
    twice = outputs("torch", source, outputs("torch", source, VECTORS))
    assert np.abs(outputs(name, target, VECTORS) - twice).max() < 1e-5


def test_tied_weights_that_are_two_elsewhere_are_listed():
    nn = _paddle()
    like = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    state = xdevice.models.convert_state(tied(), "paddle", like=like)
    xdevice.load(state, into=like)
    assert state.differences == [
        "0.weight and 1.weight are one parameter in torch, but two in paddle"
    ]
    assert (like[1].weight.numpy() == like[0].weight.numpy().T).all()


def test_two_values_for_one_tied_weight_are_an_error():
    source = _paddle().Sequential(_paddle().Embedding(5, 4), _paddle().Linear(4, 5))
    with pytest.raises(
        xdevice.errors.StateError, match=r"0\.weight and 1\.weight are the same variable in"
    ):
        xdevice.models.convert_state(source, "torch", like=tied())


def test_a_tied_weight_on_meta_is_refused_like_any_other():
    torch, model = xdevice.backend("torch").framework, tied()
    empty = torch.empty(5, 4, device="meta")
    state = {"0.weight": empty, "1.weight": empty.clone(), "1.bias": torch.ones(5)}
    with pytest.raises(
        xdevice.errors.StateError, match="weight: it is on the meta device"
    ) as error:
        xdevice.load(state, into=model)
    assert str(error.value).count("it is on the meta device") == 2


@pytest.mark.parametrize("is_target", [False, True])
def test_a_layer_whose_kind_is_given_must_have_the_shapes_of_its_counterpart(is_target):
    torch = xdevice.backend("torch").framework

    class OwnConv(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 3, 3, 3))

    models = [
        torch.nn.Sequential(OwnConv()),
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False)),
    ]
    source, target = models[::-1] if is_target else models
    # only the Conv2d states its groups, so no setting explains the other shape
    with pytest.raises(xdevice.errors.StateError, match="they have the shapes weight"):
        xdevice.models.convert_state(source, "torch", like=target, kinds={"0": "conv"})


def test_one_value_with_nan_for_a_tied_weight_is_no_error():
    source = _paddle().Sequential(_paddle().Embedding(5, 4), _paddle().Linear(4, 5))
    values = np.arange(20, dtype="float32").reshape(5, 4)
    values[1, 2] = np.nan
    source[0].weight.set_value(values)
    source[1].weight.set_value(values.T)
    model = tied()
    xdevice.load(xdevice.models.convert_state(source, "torch", like=model), into=model)
    assert np.array_equal(model[1].weight.detach().numpy(), values, equal_nan=True)


def test_a_zero_of_the_other_sign_is_the_same_value_of_a_tied_weight():
    torch, model = xdevice.backend("torch").framework, tied()
    zeros = torch.zeros(5, 4)
    zeros[1, 2] = torch.nan
    xdevice.load({"0.weight": zeros, "1.weight": -zeros, "1.bias": torch.ones(5)}, into=model)
    assert model[1].weight.isnan().sum() == 1
    with pytest.raises(
        xdevice.errors.StateError,
        match="are the same variable in the model, but have different values in the state",
    ):
        xdevice.load(
            {"0.weight": zeros, "1.weight": zeros + 1, "1.bias": torch.ones(5)}, into=model
        )


# pairing


def named(nn, **layers):
    model = nn.Sequential()
    add = model.add_module if hasattr(model, "add_module") else model.add_sublayer
    for name, layer in layers.items():
        add(name, layer)
    return model


def test_layers_pair_by_their_ways_whatever_their_order():
    nn, other = _torch(), _paddle()
    source = named(nn, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    target = named(other, b=other.Linear(4, 4), a=other.Linear(4, 4))
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert state.origins["a.weight"] == ("a.weight",)


def test_layers_pair_in_their_order_where_the_ways_differ():
    nn, other = _torch(), _paddle()
    source = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    )
    target = other.Sequential(other.Linear(4, 4), other.Linear(4, 4), other.Linear(4, 4))
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert [state.origins[f"{number}.weight"] for number in range(3)] == [
        ("0.weight",),
        ("2.weight",),
        ("4.weight",),
    ]


def test_layers_that_pair_in_two_ways_are_an_error_with_their_names():
    nn, other = _torch(), _paddle()
    source = named(nn, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 5))
    target = named(other, c=other.Linear(4, 5), d=other.Linear(4, 4), e=other.Linear(4, 4))
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"a\.weight, a\.bias, b\.weight.*d\.weight.*names=\{'a': 'd'",
    ):
        xdevice.models.convert_state(source, "paddle", like=target)
    state = xdevice.models.convert_state(
        source, "paddle", like=target, names={"a": "e", "b": "d"}
    )
    assert state.origins["e.weight"] == ("a.weight",)
    assert not state.unmapped


@pytest.mark.parametrize("there", ["paddle", "mxnet", "tensorflow"])
def test_an_order_that_the_names_speak_against_is_an_error(there):
    def like(*names):
        if there == "paddle":
            return named(_paddle(), **{name: _paddle().Linear(4, 4) for name in names})
        if there == "tensorflow":
            from keras import layers

            return _keras(*(layers.Dense(4, name=name) for name in names), shape=(4,))
        from mxnet.gluon import nn as gluon

        class Model(gluon.Block):
            def __init__(self):
                super().__init__()
                for name in names:
                    setattr(self, name, gluon.Dense(4, in_units=4))

        return _gluon(Model())

    def source(*names):
        return named(_torch(), **{name: _torch().Linear(4, 4) for name in names})

    swapped = like("k", "q", "out")
    with pytest.raises(
        xdevice.errors.StateError, match=r"q\.weight, .*may correspond to .*names=\{'q': 'q'"
    ):
        xdevice.models.convert_state(source("q", "k", "o"), there, like=swapped)
    with pytest.raises(xdevice.errors.ParityError, match="names="):
        xdevice.assert_parity(source("q", "k", "o"), swapped)
    told = xdevice.models.convert_state(
        source("q", "k", "o"), there, like=swapped, names={"q": "q", "k": "k"}
    )
    assert [
        origin[0][0]
        for name, origin in told.origins.items()
        if "weight" in name or "kernel" in name
    ] == [*"qko"]
    with pytest.raises(xdevice.errors.StateError, match="'user': 'user_tower'"):
        xdevice.models.convert_state(
            source("user", "item"), there, like=like("item", "user_tower")
        )
    with pytest.raises(xdevice.errors.StateError, match="'fc1': 'fc1'"):
        xdevice.models.convert_state(
            source("fc1", "fc2", "fc3"), there, like=like("fc0", "fc1", "fc2")
        )
    for fine in (
        like("q", "k", "out"),
        like("q_proj", "k_proj", "o_proj"),
        like("one", "two", "three"),
    ):
        assert not xdevice.models.convert_state(
            source("q", "k", "o"), there, like=fine
        ).unmapped


def test_a_wrong_pair_is_an_error():
    nn, other = _torch(), _paddle()
    source = named(nn, a=nn.Linear(4, 3), b=nn.LayerNorm(4))
    with pytest.raises(xdevice.errors.StateError, match=r"weight \(3, 4\) and \(5, 4\)"):
        xdevice.models.convert_state(
            source, "paddle", like=named(other, a=other.Linear(4, 5), b=other.LayerNorm(4))
        )
    with pytest.raises(
        xdevice.errors.StateError, match="belong to layers of the kinds linear and layer_norm"
    ):
        xdevice.models.convert_state(
            source, "paddle", like=named(other, a=other.LayerNorm(4), b=other.Linear(4, 3))
        )
    good = named(other, a=other.Linear(4, 3), b=other.LayerNorm(4))
    with pytest.raises(
        xdevice.errors.StateError, match="has no layer at this path; its layers are a, b"
    ):
        xdevice.models.convert_state(source, "paddle", like=good, names={"z": "a"})
    with pytest.raises(
        xdevice.errors.StateError,
        match="names= pairs two layers of the source with the same layer of like=",
    ):
        xdevice.models.convert_state(source, "paddle", like=good, names={"a": "a", "b": "a"})


def test_extra_layers_are_listed_on_either_side():
    nn, other = _torch(), _paddle()
    source = named(nn, body=nn.Linear(4, 4), head=nn.Linear(4, 3))
    target = named(other, body=other.Linear(4, 4), tail=other.LayerNorm(4))
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert set(state) == {"body.weight", "body.bias"}
    assert set(state.unmapped) == {"head.weight", "head.bias", "tail.weight", "tail.bias"}


# flat states


@pytest.mark.parametrize("name", WITH_MODELS)
def test_a_state_alone_needs_to_be_told_what_it_is(name):
    model = randomised(name, linear(name))
    state = dict(xdevice.backend(name).variables(model))
    with pytest.raises(
        xdevice.errors.StateError, match=r"these parameters are unknown: .*(weight|kernel)"
    ):
        xdevice.models.convert_state(state, "numpy")
    path = "dense" if name == "tensorflow" else ""
    told = xdevice.models.convert_state(state, "numpy", kinds={path: "linear"})
    known = xdevice.models.convert_state(model, "numpy")
    assert {key: value.tolist() for key, value in told.items()} == {
        key: v.tolist() for key, v in known.items()
    }


def test_a_target_tells_what_a_state_is():
    source, target = randomised("torch", batch_norm("torch")), batch_norm("paddle")
    state = xdevice.models.convert_state(source.state_dict(), "paddle", like=target)
    assert not state.unmapped
    assert (state["_mean"].numpy() == source.running_mean.numpy()).all()


def test_a_state_of_jax_goes_both_ways():
    jax = framework("jax")
    state = {
        "fc.weight": jax.numpy.ones((2, 3)),
        "fc.bias": jax.numpy.ones(2),
        "scale": jax.numpy.ones(()),
    }
    kinds = {"fc": "linear", "scale": "same"}
    keras_state = xdevice.models.convert_state(state, "tensorflow", kinds=kinds)
    assert {name: tuple(value.shape) for name, value in keras_state.items()} == {
        "fc.kernel": (3, 2), "fc.bias": (2,), "scale": (),
    }  # fmt: skip
    back = xdevice.models.convert_state(dict(keras_state), "jax", kinds=kinds)
    assert {name: value.shape for name, value in back.items()} == {
        name: value.shape for name, value in state.items()
    }


def test_a_flat_deep_lstm_is_found_by_its_names():
    source = randomised("mxnet", deep_lstm("mxnet"))
    state = dict(xdevice.backend("mxnet").variables(source))
    assert len(xdevice.models.convert_state(state, "torch", kinds={"": "lstm"})) == 16


@pytest.mark.parametrize(
    ("name", "kind", "shapes", "message"),
    [
        (
            "torch",
            "linear",
            {"x.weight": (2, 3, 3)},
            r"x\.weight \(2, 3, 3\).* must have 2 axes",
        ),
        ("torch", "linear", {"x.weight": (2, 3, 3, 3)}, "must have 2 axes"),
        ("tensorflow", "conv", {"x/kernel": (2, 3)}, "must have 3 or 4 or 5 axes"),
        (
            "torch",
            "conv",
            {"x.weight": (2, 3, 3, 3), "x.bias": (2, 1)},
            r"bias has the shape \(2, 1\)",
        ),
        (
            "torch",
            "batch_norm",
            {"x.running_mean": (2, 2)},
            r"running_mean has the shape \(2, 2\)",
        ),
        (
            "torch",
            "gru",
            {"x.weight_ih_l0": (12, 2), "x.weight_hh_l0": (12, 3)},
            "12 rows .* must have 9",
        ),
        (
            "torch",
            "lstm",
            {"x.weight_ih_l0": (9, 2), "x.weight_hh_l0": (12, 3)},
            "weight_ih_l0 has 9 rows .* must have 12",
        ),
        (
            "tensorflow",
            "gru",
            {"x/kernel": (3, 8), "x/recurrent_kernel": (2, 8)},
            "equal division",
        ),
        (
            "tensorflow",
            "gru",
            {"x/kernel": (3, 6), "x/recurrent_kernel": (2, 6), "x/bias": (6,)},
            "out of range",
        ),
    ],
)
def test_what_is_said_is_held_against_the_shapes(name, kind, shapes, message):
    backend = xdevice.backend(name)
    state = {
        key: backend.from_numpy(np.ones(shape, "float32"), xdevice.cpu())
        for key, shape in shapes.items()
    }
    with pytest.raises(
        xdevice.errors.StateError,
        match=f"kinds= gives 'x' the kind {kind}, which does not fit.*{message}",
    ):
        xdevice.models.convert_state(state, "paddle", kinds={"x": kind})


def test_wrong_sources_are_refused():
    with pytest.raises(
        xdevice.errors.StateError, match="'dense'; expected one of linear, conv"
    ):
        xdevice.models.convert_state({}, "torch", kinds={"fc": "dense"})
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"'fc' the kind linear, but the state has no fc\.weight or fc\.bias",
    ):
        xdevice.models.convert_state({"a": np.ones(2)}, "torch", kinds={"fc": "linear"})
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"contains no layer of like=: like= contains weight, bias, and the state contains none",
    ):
        xdevice.models.convert_state({}, "torch", like=linear("torch"))
    with pytest.raises(
        xdevice.errors.NotATensorError, match="expected a dict of tensors by name"
    ):
        xdevice.models.convert_state({"a": {"b": {"c": 2}}}, "torch")
    with pytest.raises(
        xdevice.errors.NotATensorError,
        match="belong to the same framework, but these belong to",
    ):
        xdevice.models.convert_state({"a": np.ones(2), "b": linear("torch").weight}, "torch")
    with pytest.raises(
        xdevice.errors.NotATensorError,
        match="must be a built model of paddle; this Dense is a model of mxnet",
    ):
        xdevice.models.convert_state(linear("torch"), "paddle", like=linear("mxnet"))
    with pytest.raises(
        xdevice.errors.NotATensorError,
        match="must be a built model of paddle; got 3 of type int",
    ):
        xdevice.models.convert_state(linear("torch"), "paddle", like=3)
    with pytest.raises(xdevice.errors.StateError, match="pass a model of the target as like="):
        xdevice.models.convert_state(linear("torch"), "paddle", names={"": "fc"})
    with pytest.raises(xdevice.errors.DTypeError, match="float64"):
        xdevice.models.convert_state(linear("torch").double(), "jax")


# loading


@pytest.mark.parametrize("name", WITH_MODELS)
def test_a_state_that_does_not_fit_writes_nothing(name):
    backend = xdevice.backend(name)
    model = randomised(name, linear(name))
    before = {key: backend.to_numpy(value).copy() for key, value in backend.variables(model)}
    first, second = before
    good = backend.from_numpy(np.zeros((4, 4), "float32"), xdevice.cpu())
    for value, message in (
        (np.zeros((4, 3), "float32"), r"got float32 \(4, 3\), expected float32 \(4,\)"),
        (np.zeros(4, "float16"), "it is float16, expected float32"),
    ):
        with pytest.raises(xdevice.errors.StateError, match=message):
            xdevice.load(
                {first: good, second: backend.from_numpy(value, xdevice.cpu())}, into=model
            )
    with pytest.raises(
        xdevice.errors.StateError, match=f"{second}: the state has no value for it"
    ):
        xdevice.load({first: good}, into=model)
    with pytest.raises(xdevice.errors.StateError, match="no such variable; it has"):
        xdevice.load({first: good, "other": good}, into=model, strict=False)
    with pytest.raises(xdevice.errors.StateError, match="use convert_state"):
        xdevice.load({first: np.zeros((4, 4), "float32")}, into=model, strict=False)
    assert all(
        (backend.to_numpy(value) == before[key]).all()
        for key, value in backend.variables(model)
    )
    xdevice.load({first: good}, into=model, strict=False)
    after = dict(backend.variables(model))
    assert not backend.to_numpy(after[first]).any()
    assert (backend.to_numpy(after[second]) == before[second]).all()


def test_a_state_without_like_that_does_not_fit_says_so_once():
    state = xdevice.models.convert_state(flattening(), "tensorflow")
    with pytest.raises(
        xdevice.errors.StateError, match="the model has no such variable"
    ) as caught:
        xdevice.load(state, into=flattened())
    _, names, why = str(caught.value).splitlines()
    assert "conv.kernel, conv.bias, fc.kernel, fc.bias" in names
    assert (
        why.strip()
        == "the state was converted without like=; pass this model as like= to get its names"
    )


def test_a_state_on_meta_is_refused_before_anything_is_written():
    torch = xdevice.backend("torch").framework
    model = torch.nn.Linear(2, 1)
    before = model.bias.tolist()
    state = {"bias": torch.full((1,), 9.0), "weight": torch.ones(1, 2, device="meta")}
    with pytest.raises(
        xdevice.errors.StateError,
        match="weight: it is on the meta device, where it has no values",
    ):
        xdevice.load(state, into=model)
    assert model.bias.tolist() == before


def test_another_dtype_is_listed_and_refused():
    target = linear("paddle")
    state = xdevice.models.convert_state(linear("torch").double(), "paddle", like=target)
    assert (
        "2 tensors are float64, but float32 in paddle; pass dtype='like' to cast first"
        in state.differences
    )
    with pytest.raises(xdevice.errors.StateError, match="float64"):
        xdevice.load(state, into=target)


def test_a_loaded_model_still_trains():
    import torch

    _, target, _ = ported(linear, "mxnet", "torch")
    assert target.weight.requires_grad
    assert isinstance(target.weight, torch.nn.Parameter)
    target(torch.ones(1, 4)).sum().backward()
    assert target.weight.grad is not None


def test_an_optimizer_has_no_layers():
    import torch

    with pytest.raises(xdevice.errors.UnsupportedError, match="listing layers of SGD objects"):
        xdevice.models.convert_state(torch.optim.SGD(linear("torch").parameters()), "paddle")


@pytest.mark.long
def test_the_example_ports_a_block_to_the_other_three():
    script = ROOT / "examples" / "port_resnet_block.py"
    done = python(script)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(\w+): 15 tensors, the largest difference is (\S+),", done.stdout, re.MULTILINE
    )
    assert [name for name, _ in found] == ["paddle", "mxnet", "tensorflow"]
    assert all(float(difference) < 1e-5 for _, difference in found)


def test_a_model_as_the_target_says_like(xd):
    if xd.name not in ("torch", "paddle", "mxnet", "tensorflow"):
        pytest.skip("has no models")
    net = xd.samples().network(3, 1)
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=rf"write convert_state\(source, '{xd.name}', like=\.\.\.\)",
    ):
        xdevice.models.convert_state(net, net)
