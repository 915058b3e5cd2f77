"""Models as others write them: what changes an output is listed, and what is equal under another name is not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.environment import framework

import xdevice

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
OTHERS = SimpleNamespace()


@pytest.fixture(scope="module", autouse=True)
def _others():
    OTHERS.pn = framework("paddle").nn
    OTHERS.gn = framework("mxnet").gluon.nn
    OTHERS.tf = framework("tensorflow")
    import keras

    OTHERS.keras, OTHERS.kl = keras, keras.layers


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


IMAGES, ROWS, STEPS = numbers(2, 3, 8, 8), numbers(4, 6), numbers(2, 6, 5)


def keras_of(shape, *layers):
    return OTHERS.keras.Sequential([OTHERS.keras.Input(shape), *layers])


def between_convs(layer, other, last=8, kernel=1):
    """A pair of models with a layer between two convolutions."""
    pn = OTHERS.pn
    return (
        nn.Sequential(nn.Conv2d(3, 8, kernel), layer, nn.Conv2d(8, last, 1)),
        pn.Sequential(pn.Conv2D(3, 8, kernel), other, pn.Conv2D(8, last, 1)),
        IMAGES,
    )


def between_denses(layer, *others, first=None):
    kl = OTHERS.kl
    like = keras_of(
        (6,), kl.Dense(8, activation=first, name="one"), *others, kl.Dense(3, name="two")
    )
    return nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3)), like, ROWS


def random_row():
    embedding = nn.Embedding(10, 4, padding_idx=0)
    nn.init.normal_(embedding.weight)
    return embedding


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Plain(nn.Linear):
    """Computes what its base does."""


def doubled(base, method):
    """A class of a user's, derived from one of a framework's."""
    own = {
        "call": lambda self, x: 2 * base.call(self, x),
        "forward": lambda self, x: 2 * base.forward(self, x),
        "hybrid_forward": lambda self, *given, **named: (
            2 * base.hybrid_forward(self, *given, **named)
        ),
    }
    return type("Doubled", (base,), {method: own[method]})


def hooked(layer, register="register_forward_hook"):
    getattr(layer, register)(lambda layer, given, came: 2 * came)
    return layer


def with_strides(model, strides=(1, 1)):
    """With the strides of the first layer set after the model was made, whose graph keeps the shapes of before."""
    model.layers[0].strides = strides
    return model


def gluon_of(*layers):
    net = OTHERS.gn.HybridSequential()
    net.add(*layers)
    net.initialize()
    return net


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, after=lambda x: x, width=16):
        super().__init__()
        self.rnn, self.fc = (
            kind(5, 8, batch_first=True, bidirectional=True),
            nn.Linear(width, 3),
        )
        self.after = after

    def forward(self, x):
        return self.fc(self.after(self.rnn(x)[0]))


LISTED = {
    "a layer that was forgotten": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)),
            o.pn.Sequential(o.pn.Linear(6, 8), o.pn.ReLU(), o.pn.Linear(8, 7), o.pn.Linear(7, 3)),
            ROWS,
        ),
        ["after 2: activation is relu in torch, missing in paddle"],
    ),
    "a layer that was forgotten in Keras": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)),
            keras_of((6,), o.kl.Dense(8, activation="relu"), o.kl.Dense(7, name="x"), o.kl.Dense(3)),
            ROWS,
        ),
        ["after x: activation is relu in torch, missing in tensorflow"],
    ),
    "a layer in another place, in Gluon": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3), nn.Tanh()),
            gluon_of(
                o.gn.Dense(8, activation="relu", in_units=6), o.gn.Dense(7, in_units=8), o.gn.Dense(3, in_units=7),
                o.gn.Activation("tanh"),
            ),
            ROWS,
        ),
        ["0: activation is None in torch, relu in mxnet", "after 1: activation is relu in torch, missing in mxnet"],
    ),
    "groups of a norm without parameters": (
        lambda o: between_convs(
            nn.GroupNorm(4, 8, affine=False), o.pn.GroupNorm(2, 8, weight_attr=False, bias_attr=False)
        ),
        ["1: num_groups is 4 in torch, 2 in paddle"],
    ),
    "axes of a norm without parameters": (
        lambda o: between_convs(
            nn.LayerNorm((8, 8, 8), elementwise_affine=False), o.pn.LayerNorm(8, weight_attr=False, bias_attr=False)
        ),
        ["1: axes is 3 in torch, 1 in paddle"],
    ),
    "threshold": (
        lambda o: between_convs(nn.Softplus(threshold=0.1), o.pn.Softplus()),
        ["1: threshold is 0.1 in torch, 20 in paddle"],
    ),
    "scale": (
        lambda o: between_convs(nn.SELU(), o.pn.SELU(scale=1.2)), ["1: scale is 1.0507 in torch, 1.2 in paddle"],
    ),
    "align_mode": (
        lambda o: between_convs(
            nn.Upsample(scale_factor=2, mode="bilinear"), o.pn.Upsample(scale_factor=2, mode="bilinear", align_mode=1)
        ),
        ["1: align_corners is False in torch, as align_mode=1 in paddle"],
    ),
    "a window behind the image": (
        lambda o: between_convs(nn.MaxPool2d(2, 3, 1, ceil_mode=True), o.pn.MaxPool2D(2, 3, 1, ceil_mode=True)),
        ["1: ceil_mode is True in torch, True, with windows that begin after the end of the image in paddle"],
    ),
    "a class of one's own": (
        lambda o: (
            nn.Sequential(Doubled(6, 8), nn.Linear(8, 3)), o.pn.Sequential(o.pn.Linear(6, 8), o.pn.Linear(8, 3)), ROWS,
        ),
        ["not compared: 1 Doubled(its own code) of torch"],
    ),
    "a class of one's own, without parameters": (
        lambda o: between_convs(doubled(nn.AvgPool2d, "forward")(2), o.pn.AvgPool2D(2)),
        ["not compared: 1 Doubled of torch and 1 avg_pool of paddle"],
    ),
    "a class of one's own in Paddle": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
            o.pn.Sequential(doubled(o.pn.Linear, "forward")(6, 8), o.pn.Linear(8, 3)),
            ROWS,
        ),
        ["not compared: 1 Doubled(its own code) of paddle"],
    ),
    "a class of one's own in Keras": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
            keras_of((6,), doubled(o.kl.Dense, "call")(8), o.kl.Dense(3)),
            ROWS,
        ),
        ["not compared: 1 Doubled(its own code) of tensorflow"],
    ),
    "a class of one's own in Gluon": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
            gluon_of(doubled(o.gn.Dense, "hybrid_forward")(8, in_units=6), o.gn.Dense(3, in_units=8)),
            ROWS,
        ),
        ["not compared: 1 Doubled(its own code) of mxnet"],
    ),
    "a hook": (
        lambda o: (
            nn.Sequential(hooked(nn.Linear(6, 8)), nn.Linear(8, 3)),
            o.pn.Sequential(o.pn.Linear(6, 8), o.pn.Linear(8, 3)),
            ROWS,
        ),
        ["not compared: 1 Linear(a hook) of torch"],
    ),
    "a hook in Paddle": (
        lambda o: (
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
            o.pn.Sequential(hooked(o.pn.Linear(6, 8), "register_forward_post_hook"), o.pn.Linear(8, 3)),
            ROWS,
        ),
        ["not compared: 1 Linear(a hook) of paddle"],
    ),
    "axes of a PReLU": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 16, 1), nn.PReLU(16)),
            keras_of((4, 4, 3), o.kl.Conv2D(16, 1), o.kl.PReLU(shared_axes=[3], name="prelu")),
            IMAGES[:, :, :4, :4],
        ),
        ["prelu: axis is channels in torch, those of (4, 4, 1) in tensorflow"],
    ),
    "padding_idx": (
        lambda o: (
            nn.Sequential(random_row(), nn.Linear(4, 3)),
            o.pn.Sequential(o.pn.Embedding(10, 4, padding_idx=0), o.pn.Linear(4, 3)),
            np.array([[0, 1, 2], [3, 0, 0]]),
        ),
        ["0: output at padding_idx is the row of the weight, which is not zeros in torch, zeros in paddle"],
    ),
    "an image of another size than when the model was built": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)),
            with_strides(
                keras_of((8, 8, 3), o.kl.Conv2D(4, 1, 8, name="one"), o.kl.Conv2D(4, 3, 2, "same", name="two"))
            ),
            IMAGES,
        ),
        ["two: padding is (1, 1) in torch, same in tensorflow"],
    ),
    "SAME with a dilation": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=2, dilation=2)),
            o.pn.Sequential(o.pn.Conv2D(3, 4, 3, padding="SAME", dilation=2)),
            IMAGES,
        ),
        ["0: padding is (2, 2) in torch, (1, 1) in paddle", "0: dilation is (2, 2) in torch, (1, 1) in paddle"],
    ),
    "a layer as an activation": (
        lambda o: between_denses(nn.LeakyReLU(), first=o.kl.LeakyReLU()),
        ["one: slope is 0.01 in torch, 0.3 in tensorflow"],
    ),
    "a function of TensorFlow": (
        lambda o: between_denses(nn.LeakyReLU(), first=o.tf.nn.leaky_relu),
        ["one: slope is 0.01 in torch, 0.2 in tensorflow"],
    ),
    "a function of keras.ops": (
        lambda o: between_denses(nn.GELU(), first=o.keras.ops.gelu),
        ["one: approximate is none in torch, tanh in tensorflow"],
    ),
    "RMSNorm": (
        lambda o: between_denses(nn.RMSNorm(8), o.kl.RMSNormalization(epsilon=0.1, name="norm")),
        ["norm: eps is 1.19209e-07 in torch, 0.1 in tensorflow"],
    ),
    "bicubic": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bicubic")),
            keras_of((8, 8, 3), o.kl.Conv2D(4, 1), o.kl.UpSampling2D(2, interpolation="bicubic", name="up")),
            IMAGES,
        ),
        ["up: mode is bicubic in torch, bicubic of Keys (a = -0.5) in tensorflow"],
    ),
    "the axis of a GroupNormalization": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6)),
            keras_of((8, 8, 3), o.kl.Conv2D(6, 3), o.kl.GroupNormalization(2, axis=1, epsilon=1e-5, name="norm")),
            IMAGES,
        ),
        ["norm: axis is None in torch, 1 in tensorflow"],
    ),
    "an axis of a softmax": (
        lambda o: (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(-1)),
            keras_of((8, 8, 3), o.kl.Conv2D(4, 1, activation="softmax", name="conv")),
            IMAGES,
        ),
        ["conv: axis is -1 in torch, -3 in tensorflow"],
    ),
    "an output that is padded on one side": (
        lambda o: (
            nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)),
            keras_of((8, 8, 3), o.kl.Conv2DTranspose(4, 3, 2, padding="same", name="up")),
            IMAGES,
        ),
        ["up: padding is (1, 1) in torch, same in tensorflow", "up: output_padding is (1, 1) in torch, (0, 0) in"],
    ),
    "the last step of a Bidirectional": (
        lambda o: (
            Recurrent(after=lambda x: x[:, -1]), keras_of((6, 5), o.kl.Bidirectional(o.kl.LSTM(8)), o.kl.Dense(3)),
            STEPS,
        ),
        ["not compared: 1 Bidirectional(merge_mode=concat, return_sequences=False) of tensorflow"],
    ),
}  # fmt: skip


def moved(x):
    return x if x.ndim < 4 else np.moveaxis(x, 1, -1)


def filled(model):
    """With parameters and statistics that nothing has by default."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("running_var"):
                x.uniform_(0.5, 1.5)
            elif not name.endswith("num_batches_tracked") and x.ndim != 2:
                x.uniform_(-1.5, 1.5)
    return model


@pytest.mark.parametrize("what", LISTED)
def test_what_changes_an_output_is_listed(what):
    build, expected = LISTED[what]
    source, like, x = build(OTHERS)
    state = xdevice.models.convert_state(filled(source), _name(like), like=like)
    assert not state.unmapped
    assert len(state.differences) == len(expected), state.differences
    for line, start in zip(state.differences, expected, strict=True):
        assert line.startswith(start)
    xdevice.load(state, into=like)
    if _name(like) != "mxnet":  # whose block is made without NumPy's semantics
        with pytest.raises(xdevice.errors.ParityError):
            xdevice.assert_parity(
                like, source, inputs=x if _name(like) != "tensorflow" else moved(x)
            )


def _name(model):
    return next(
        name for name in ("torch", "paddle", "mxnet", "keras") if _is_of(model, name)
    ).replace("keras", "tensorflow")


def _is_of(model, package):
    return any(base.__module__.partition(".")[0] == package for base in type(model).__mro__)


EQUAL = {
    "a class that adds nothing": lambda o: (
        nn.Sequential(Plain(6, 8), nn.ReLU(), Plain(8, 3)),
        o.pn.Sequential(o.pn.Linear(6, 8), o.pn.ReLU(), o.pn.Linear(8, 3)),
        ROWS,
    ),
    "one ReLU used twice": lambda o: (
        (lambda relu: nn.Sequential(nn.Linear(6, 8), relu, nn.Linear(8, 4), relu, nn.Linear(4, 3)))(nn.ReLU()),
        o.pn.Sequential(
            o.pn.Linear(6, 8), o.pn.ReLU(), o.pn.Linear(8, 4), o.pn.ReLU(), o.pn.Linear(4, 3)
        ),
        ROWS,
    ),
    "a row of zeros": lambda o: (
        nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 3)),
        o.pn.Sequential(o.pn.Embedding(10, 4, padding_idx=0), o.pn.Linear(4, 3)),
        np.array([[0, 1, 2], [3, 0, 0]]),
    ),
    "a padding of each side": lambda o: (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=(1, 2))),
        o.pn.Sequential(
            o.pn.Conv2D(3, 4, 3, padding=[1, 1, 1, 1]), o.pn.Conv2D(4, 4, 3, padding=[[0, 0], [0, 0], [1, 1], [2, 2]])
        ),
        IMAGES,
    ),
    "transposed convolutions": lambda o: (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.ConvTranspose2d(4, 2, 3)),
        keras_of(
            (8, 8, 3), o.kl.Conv2DTranspose(4, 2, 2, padding="same"), o.kl.Conv2DTranspose(4, 4, 2, padding="same"),
            o.kl.Conv2DTranspose(2, 3),
        ),
        IMAGES,
    ),
    "a transposed convolution with a gap": lambda o: (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 3, 0, 1), nn.ConvTranspose2d(4, 2, 3, 2, 0, 1)),
        keras_of((8, 8, 3), o.kl.Conv2DTranspose(4, 2, 3), o.kl.Conv2DTranspose(2, 3, 2, output_padding=1)),
        IMAGES,
    ),
    "a norm over a whole image": lambda o: (
        nn.Sequential(nn.Conv2d(3, 5, 1), nn.LayerNorm((5, 8, 8))),
        keras_of((8, 8, 3), o.kl.Conv2D(5, 1), o.kl.LayerNormalization(axis=[1, 2, 3], epsilon=1e-5)),
        IMAGES,
    ),
    "a norm over an image of one size": lambda o: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.LayerNorm((8, 8, 8))),
        keras_of((8, 8, 3), o.kl.Conv2D(8, 1), o.kl.LayerNormalization(axis=[1, 2, 3], epsilon=1e-5)),
        IMAGES,
    ),
    "same at a stride, of a known size": lambda o: (
        nn.Sequential(nn.Conv2d(3, 4, 4, 2, 1), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1, 2)),
        keras_of(
            (8, 8, 3), o.kl.Conv2D(4, 4, 2, padding="same"), o.kl.MaxPooling2D(2, padding="same"),
            o.kl.Conv2D(2, 1, 2, padding="same"),
        ),
        IMAGES,
    ),
    "a softmax over channels": lambda o: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(dim=1)),
        keras_of((8, 8, 3), o.kl.Conv2D(4, 1, activation="softmax")),
        IMAGES,
    ),
    "a softmax over classes": lambda o: (
        nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1)), keras_of((6,), o.kl.Dense(4), o.kl.Softmax()), ROWS,
    ),
    "RMSNorm": lambda o: between_denses(nn.RMSNorm(8, eps=1e-3), o.kl.RMSNormalization(epsilon=1e-3)),
    "a norm of instances without parameters": lambda o: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 1)),
        keras_of(
            (8, 8, 3), o.kl.Conv2D(4, 1), o.kl.GroupNormalization(-1, epsilon=1e-5, scale=False, center=False),
            o.kl.Conv2D(2, 1),
        ),
        IMAGES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EQUAL)
def test_what_is_equal_is_not_listed(what):
    source, like, x = EQUAL[what](OTHERS)
    state = xdevice.models.convert_state(filled(source), _name(like), like=like)
    assert not state.unmapped
    assert state.differences == []
    xdevice.load(state, into=like)
    xdevice.assert_parity(source, like, inputs=x)


def test_a_causal_convolution_is_one_with_zeros_before():
    kl = OTHERS.kl
    like = keras_of(
        (12, 3),
        kl.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu"),
        kl.Conv1D(4, 1),
    )
    source = nn.Sequential(
        nn.ConstantPad1d((4, 0), 0.0),
        nn.Conv1d(3, 4, 3, dilation=2),
        nn.ReLU(),
        nn.Conv1d(4, 4, 1),
    )
    assert xdevice.models.convert_state(source, "tensorflow", like=like).differences == []


def test_a_gru_of_another_formula_is_not_mapped_and_no_crash():
    kl = OTHERS.kl
    like = keras_of((6, 5), kl.GRU(8, return_sequences=True, reset_after=False), kl.Dense(3))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.fc = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    state = xdevice.models.convert_state(Model(), "tensorflow", like=like)
    assert {why for name, why in state.unmapped.items() if name.startswith("gru/")} == {
        "with reset_after=False, the formula differs from that of other frameworks"
    }


def test_what_a_model_of_ones_own_makes_of_an_image_is_not_asked():
    keras, kl = OTHERS.keras, OTHERS.kl

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = kl.Conv2D(4, 1)

        def call(self, x, times):
            return self.conv(x) * times

    image = keras.Input((7, 7, 3))
    like = keras.Model(
        image, kl.Conv2D(4, 3, 2, "same", name="last")(Scaled()(image, times=2.0))
    )
    state = xdevice.models.convert_state(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)), "tensorflow", like=like
    )
    assert "last: padding is (1, 1) in torch, same in tensorflow" in state.differences


def test_both_directions_may_be_added_up():
    kl = OTHERS.kl
    source = Recurrent(after=lambda x: x[..., :8] + x[..., 8:], width=8)
    like = keras_of(
        (6, 5),
        kl.Bidirectional(kl.LSTM(8, return_sequences=True), merge_mode="sum", name="both"),
        kl.Dense(3),
    )
    state = xdevice.models.convert_state(source, "tensorflow", like=like)
    assert not state.unmapped
    assert [line[:69] for line in state.differences] == [
        "not compared: 1 Bidirectional(merge_mode=sum, return_sequences=True) "
    ]
    assert (
        xdevice.models.convert_state(source, "tensorflow", like=like, inputs=STEPS).differences
        == []
    )


def test_a_function_in_place_of_an_activation_is_not_listed_where_the_outputs_agree():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.fc2(functional.relu(self.fc1(x)))

    kl, source = OTHERS.kl, Model()
    like = keras_of((6,), kl.Dense(8, activation="relu", name="fc1"), kl.Dense(3, name="fc2"))
    assert xdevice.models.convert_state(source, "tensorflow", like=like).differences == [
        "fc1: activation is None in torch, relu in tensorflow"
    ]
    assert (
        xdevice.models.convert_state(source, "tensorflow", like=like, inputs=ROWS).differences
        == []
    )
    own = keras_of(
        (6,),
        kl.Dense(8, activation=lambda x: OTHERS.keras.ops.relu(x), name="fc1"),
        kl.Dense(3, name="fc2"),
    )
    assert (
        xdevice.models.convert_state(source, "tensorflow", like=own, inputs=ROWS).differences
        == []
    )


@pytest.mark.parametrize("kind", ["LSTM", "MultiHeadAttention"])
def test_a_time_axis_that_comes_first_is_turned_where_a_model_runs_with_the_numbers_of_the_other(
    kind,
):
    pn = OTHERS.pn

    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(4, 4) if kind == "LSTM" else nn.MultiheadAttention(4, 2)
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            turned = x.transpose(0, 1)
            came = self.layer(turned) if kind == "LSTM" else self.layer(turned, turned, turned)
            return self.fc(x + came[0].transpose(0, 1))

    class Mine(pn.Layer):
        def __init__(self):
            super().__init__()
            self.other = pn.LSTM(4, 4) if kind == "LSTM" else pn.MultiHeadAttention(4, 2)
            self.fc = pn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x + (self.other(x)[0] if kind == "LSTM" else self.other(x, x, x)))

    state = xdevice.models.convert_state(
        Theirs(), "paddle", like=Mine(), inputs=numbers(2, 5, 4)
    )
    assert [line.partition(" is ")[0] for line in state.differences] == ["other: batch_first"]


def test_a_class_with_an_activation_of_its_own_is_not_listed_where_the_outputs_agree():
    class Activated(nn.BatchNorm2d):  # as timm's BatchNormAct2d
        def forward(self, x):
            return functional.relu(super().forward(x))

    source, like, x = between_convs(
        Activated(8), OTHERS.pn.Sequential(OTHERS.pn.BatchNorm2D(8), OTHERS.pn.ReLU())
    )
    assert any(
        "Activated" in line
        for line in xdevice.models.convert_state(source, "paddle", like=like).settings
    )
    assert xdevice.models.convert_state(source, "paddle", like=like, inputs=x).settings == []


def test_settings_that_kinds_does_not_tell_are_not_compared():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("weight", "bias", "running_mean", "running_var"):
                self.register_buffer(name, torch.ones(8))

    source, like, _ = between_convs(Frozen(), OTHERS.pn.BatchNorm2D(8, epsilon=0.1))
    state = xdevice.models.convert_state(source, "paddle", like=like, kinds={"1": "batch_norm"})
    assert (
        state.differences[0]
        == "not compared: computation and settings of 1, because the kind is known only from kinds= or shapes"
    )
