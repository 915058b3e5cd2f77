"""Pairs of models that once differed without a word, or were told apart wrongly: by an adversary, each written once."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.environment import framework

import xdevice

SEQUENCE = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
VECTORS = np.random.default_rng(1).normal(size=(4, 6)).astype("float32")
IMAGES = np.random.default_rng(2).normal(size=(2, 3, 6, 6)).astype("float32")


def told(state):
    return "\n".join(
        [
            *state.unmapped,
            *(line for line in state.differences if "num_batches_tracked" not in line),
        ]
    )


@pytest.fixture
def nets():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")

    class Theirs(torch.nn.Module):
        def __init__(self, behind):
            super().__init__()
            self.fc = torch.nn.Linear(5, 4)
            self.behind = behind

        def forward(self, x):
            return self.behind(self.fc(x))

    class Mine(paddle.nn.Layer):
        def __init__(self, behind):
            super().__init__()
            self.fc = paddle.nn.Linear(5, 4)
            self.behind = behind

        def forward(self, x):
            return self.behind(self.fc(x))

    return Theirs, Mine


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (lambda x: x, lambda x: x.transpose([0, 2, 1])),  # square: the shapes agree
        (lambda x: x[:3, :3], lambda x: x[:3, :3].transpose([1, 0, 2])),
        (lambda x: x, lambda x: x.reshape([3, 4, 1, 4]).transpose([0, 3, 1, 2]).squeeze(-1)),
        (lambda x: x[:, :1], lambda x: x[:, 0]),
        (
            lambda x: x.new_zeros(3, 6, 4).index_add(1, x.new_tensor([1, 2, 3, 4]).long(), x),
            lambda x: x,
        ),
    ],
    ids=["last axes", "first axes", "channels", "an axis of one", "zeros around"],
)
def test_outputs_in_another_order_differ(nets, theirs, mine):
    source, target = nets[0](theirs), nets[1](mine)
    state = xdevice.models.convert_state(source, "paddle", like=target, inputs=SEQUENCE)
    assert "the outputs on inputs=" in told(state)
    xdevice.load(state, into=target)
    with pytest.raises(xdevice.errors.ParityError, match="the first difference is after fc"):
        xdevice.assert_parity(target, source, inputs=SEQUENCE)


def test_another_number_of_outputs_is_not_called_rounding(nets):
    source, target = nets[0](lambda x: x), nets[1](lambda x: (x, x))
    xdevice.load(xdevice.models.convert_state(source, "paddle", like=target), into=target)
    with pytest.raises(xdevice.errors.ParityError) as error:
        xdevice.assert_parity(target, source, inputs=SEQUENCE)
    assert "rounding" not in str(error.value)
    assert "return 2 and 1 tensors" in str(error.value)


@pytest.mark.parametrize("returned", [dict, lambda named: tuple(named.values())])
def test_models_of_which_one_returns_more_name_what_both_return(nets, returned):
    source = nets[0](lambda x: x)
    target = nets[1](lambda x: x.tanh())
    xdevice.load(xdevice.models.convert_state(source, "paddle", like=target), into=target)
    source.behind = lambda x: returned({"last": x.tanh(), "extra": x})
    with pytest.raises(xdevice.errors.ParityError) as error:
        xdevice.assert_parity(source, target, inputs=SEQUENCE)
    text = str(error.value)
    key = "['last']" if returned is dict else "[0]"
    assert "the models return 2 and 1 tensors" in text
    assert f"actual    {key} (3, 4, 4), " in text
    assert f"agree     {key} of actual and the tensor of expected" in text
    assert "layer" not in text  # nothing differs in what both return
    advice = re.search(r"assert_parity\(.*", text)[0]
    call = f"xdevice.{advice}".replace("...", "x")
    eval(call, {"xdevice": xdevice, "actual": source, "expected": target, "x": SEQUENCE})
    target.fc.bias.set_value(target.fc.bias + 1)
    with pytest.raises(xdevice.errors.ParityError, match=r"(?s)2 and 1 .*differs is fc"):
        xdevice.assert_parity(source, target, inputs=SEQUENCE)


def test_what_is_not_finite_is_not_called_a_shape(nets):
    source, target = nets[0](lambda x: x), nets[1](lambda x: x / 0.0)
    xdevice.load(xdevice.models.convert_state(source, "paddle", like=target), into=target)
    with pytest.raises(xdevice.errors.ParityError, match="an infinity or an integer differs"):
        xdevice.assert_parity(target, source, inputs=SEQUENCE)


def test_averages_that_paddle_updates_in_evaluation_are_listed_and_kept():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    target = paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4, use_global_stats=False)
    )
    state = xdevice.models.convert_state(source, "paddle", like=target, inputs=IMAGES)
    assert "use_global_stats is None in torch, False in paddle" in told(state)
    assert target[1]._mean.numpy().tolist() == [0.0] * 4
    xdevice.load(state, into=target)
    with pytest.raises(xdevice.errors.ParityError):
        xdevice.assert_parity(target, source, inputs=IMAGES)
    assert target[1]._mean.numpy().tolist() == [0.0] * 4


def test_the_older_batch_norm_of_paddle_goes_by_the_mode():
    paddle, torch = (xdevice.backend(name).framework for name in ("paddle", "torch"))
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    like = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm(4))
    state = xdevice.models.convert_state(
        source, "paddle", like=like, inputs=torch.ones(2, 3, 6, 6)
    )
    assert state.differences == [
        "1.num_batches_tracked: left out, because paddle does not count batches"
    ]


@pytest.mark.parametrize(
    ("theirs", "mine", "line"),
    [
        (
            lambda nn: nn.Flatten(2),
            lambda nn: nn.Flatten(1, 2),
            "first is 2 in torch, 1 in paddle",
        ),
        (
            lambda nn: nn.Unflatten(1, (2, 2)),
            lambda nn: nn.Unflatten(1, (4, 1)),
            "size is (2, 2) in torch, (4, 1)",
        ),
        (
            lambda nn: nn.AdaptiveAvgPool2d(2),
            lambda nn: nn.AdaptiveMaxPool2D(2),
            "1 adaptive_avg_pool of torch and 1 adaptive_max_pool of paddle",
        ),
        (
            lambda nn: nn.MaxPool2d(2),
            lambda nn: nn.AvgPool2D(2),
            "1 max_pool of torch and 1 avg_pool of paddle",
        ),
    ],
    ids=["flatten", "unflatten", "adaptive pool", "pool"],
)
def test_settings_that_were_not_compared(theirs, mine, line):
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), theirs(torch.nn))
    target = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), mine(paddle.nn))
    state = xdevice.models.convert_state(source, "paddle", like=target)
    assert line in told(state)
    xdevice.load(state, into=target)
    with pytest.raises(
        xdevice.errors.ParityError, match="the parameters agree, but these settings differ"
    ):
        xdevice.assert_parity(target, source)


def test_the_usual_flatten_needs_no_counterpart():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
    assert not told(
        xdevice.models.convert_state(
            source, "paddle", like=paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3))
        )
    )


def test_equal_paths_say_which_layer_is_which_whatever_is_computed():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    target = paddle.nn.TransformerEncoderLayer(8, 2, 16)
    x = np.random.default_rng(3).normal(size=(2, 4, 8)).astype("float32")
    state = xdevice.models.convert_state(source, "paddle", like=target, inputs=x)
    assert not state.unmapped
    assert "norm_first is True in torch, False in paddle" in told(state)
    np.testing.assert_array_equal(
        state["norm2.weight"].numpy(), source.norm2.weight.detach().numpy()
    )


def test_a_list_of_many_parameters_stays_readable():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    normed = torch.nn.utils.parametrizations.spectral_norm
    source, target = torch.nn.Sequential(), paddle.nn.Sequential()
    for number in range(24):
        source.extend([normed(torch.nn.Conv1d(2, 2, 3)), torch.nn.Dropout(0.5)])
        target.add_sublayer(str(2 * number), paddle.nn.Conv1D(2, 2, 3))
        target.add_sublayer(str(2 * number + 1), paddle.nn.Dropout(0.4))
    with pytest.raises(xdevice.errors.ParityError) as error:
        xdevice.assert_parity(source, target)
    assert len(str(error.value)) <= 1500
    assert " more\n" in str(error.value)


def test_an_encoder_is_of_the_source_and_a_decoder_of_the_target():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.ModuleDict({name: torch.nn.Embedding(9, 4) for name in ("src", "tgt")})
    target = paddle.nn.LayerDict(
        {f"{name}_embedding": paddle.nn.Embedding(9, 4) for name in ("decoder", "encoder")}
    )
    with pytest.raises(xdevice.errors.StateError, match="encoder_embedding"):
        xdevice.models.convert_state(source, "paddle", like=target)


# Keras


@pytest.mark.parametrize("container", [list, dict])
def test_a_functional_model_takes_several_inputs(container):
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    a, b = keras.Input((6,), name="a"), keras.Input((5,), name="b")
    both = keras.layers.Concatenate()([keras.layers.Dense(3)(a), keras.layers.Dense(2)(b)])
    target = keras.Model([a, b] if container is list else {"a": a, "b": b}, both)

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = torch.nn.Linear(6, 3), torch.nn.Linear(5, 2)

        def forward(self, a, b):
            return torch.cat([self.left(a), self.right(b)], 1)

    given = (VECTORS, SEQUENCE[0])
    source = Two()
    state = xdevice.models.convert_state(source, "tensorflow", like=target, inputs=given)
    assert not told(state)
    xdevice.load(state, into=target)
    xdevice.assert_parity(source, target, inputs=given)


def test_a_norm_over_an_axis_that_is_not_the_last_is_listed():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = torch.nn.LayerNorm(8, eps=1e-3)
    for axis, line in ((1, "axis is None in torch, (-2,) in tensorflow"), (-1, ""), (2, "")):
        target = keras.Sequential(
            [keras.Input((8, 8)), keras.layers.LayerNormalization(axis=axis)]
        )
        assert told(xdevice.models.convert_state(source, "tensorflow", like=target)).endswith(
            line
        )
        assert bool(line) == bool(
            told(xdevice.models.convert_state(source, "tensorflow", like=target))
        )


@pytest.mark.parametrize(
    ("shape", "layers", "theirs", "line"),
    [
        (
            (8, 8),
            lambda kl: [kl.Dense(8), kl.BatchNormalization()],
            "linear",
            "axis 2 of (None, 8, 8) in tensorflow",
        ),
        (
            (8, 8),
            lambda kl: [kl.Dense(8), kl.BatchNormalization(axis=1)],
            "linear",
            "axis 1 of (None, 8, 8)",
        ),
        (
            (None, 8),
            lambda kl: [kl.Dense(8), kl.BatchNormalization()],
            "linear",
            "axis 2 of (None, None, 8)",
        ),
        ((5, 8), lambda kl: [kl.Dense(8), kl.BatchNormalization()], "linear", ""),
        ((8,), lambda kl: [kl.Dense(8), kl.BatchNormalization()], "linear", ""),
        ((8, 3), lambda kl: [kl.Conv1D(8, 1), kl.BatchNormalization()], "conv", ""),
        (
            (8, 3),
            lambda kl: [kl.Conv1D(8, 1), kl.BatchNormalization(axis=1)],
            "conv",
            "axis is None in torch, 1 in",
        ),
        (
            (3, 8),
            lambda kl: [
                kl.Conv1D(8, 1, data_format="channels_first"),
                kl.BatchNormalization(axis=1),
            ],
            "conv",
            "",
        ),
        (
            (3, 8),
            lambda kl: [kl.Conv1D(8, 1, data_format="channels_first"), kl.BatchNormalization()],
            "conv",
            "axis is None in torch, 2 in tensorflow",
        ),
    ],
)
def test_a_batch_norm_that_may_be_over_another_axis_is_listed(shape, layers, theirs, line):
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    first = torch.nn.Linear(8, 8) if theirs == "linear" else torch.nn.Conv1d(3, 8, 1)
    source = torch.nn.Sequential(first, torch.nn.BatchNorm1d(8, eps=1e-3, momentum=0.01))
    target = keras.Sequential([keras.Input(shape), *layers(keras.layers)])
    found = told(xdevice.models.convert_state(source, "tensorflow", like=target))
    assert line in found
    assert bool(line) == bool(found)


@pytest.mark.parametrize("moves", [True, False])
def test_inputs_tell_whether_a_batch_norm_is_over_another_axis(moves):
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.bn = (
                torch.nn.Linear(8, 8),
                torch.nn.BatchNorm1d(8, eps=1e-3, momentum=0.01),
            )
            torch.nn.init.uniform_(self.bn.weight)

        def forward(self, x):
            x = self.fc(x)
            return self.bn(x.transpose(1, 2)).transpose(1, 2) if moves else self.bn(x)

    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.fc, self.bn = (
                keras.layers.Dense(8, name="fc"),
                keras.layers.BatchNormalization(name="bn"),
            )

        def call(self, x):
            return self.bn(self.fc(x))

    given = np.random.default_rng(5).normal(size=(2, 8, 8)).astype("float32")
    source, target = Theirs(), Mine()
    target(given)
    state = xdevice.models.convert_state(source, "tensorflow", like=target)
    assert "the axis of bn, which is axis 2 of (2, 8, 8) in tensorflow" in told(state)
    xdevice.load(state, into=target)
    with pytest.raises(xdevice.errors.ParityError, match="not compared: the axis of bn"):
        xdevice.assert_parity(source, target)
    found = told(xdevice.models.convert_state(source, "tensorflow", like=target, inputs=given))
    assert bool(found) is not moves
    assert moves or "the outputs on inputs=" in found


def test_a_batch_norm_of_paddle_over_the_last_axis_is_listed():
    torch, paddle = pytest.importorskip("torch"), framework("paddle")
    nn = paddle.nn
    source = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    images = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.BatchNorm2d(8))
    for theirs, mine, line in (
        (source, [nn.Linear(8, 8), nn.BatchNorm1D(8)], ""),
        (
            source,
            [nn.Linear(8, 8), nn.BatchNorm1D(8, data_format="NLC")],
            "the axis of 1, which is the last in paddle",
        ),
        (
            images,
            [nn.Conv2D(3, 8, 1, data_format="NHWC"), nn.BatchNorm2D(8, data_format="NHWC")],
            "",
        ),
        (
            images,
            [nn.Conv2D(3, 8, 1, data_format="NHWC"), nn.BatchNorm2D(8)],
            "the axis of 1, which is the second in paddle",
        ),
    ):
        found = told(xdevice.models.convert_state(theirs, "paddle", like=nn.Sequential(*mine)))
        assert line in found
        assert bool(line) == bool(found)


def test_a_norm_of_gluon_over_another_axis_is_listed():
    torch, nn = pytest.importorskip("torch"), framework("mxnet").gluon.nn
    for build, source in (
        (nn.LayerNorm, torch.nn.LayerNorm(8)),
        (nn.BatchNorm, torch.nn.BatchNorm1d(8)),
    ):
        target = build(in_channels=8, epsilon=source.eps, axis=2)
        target.initialize()
        assert "axis is None in torch, 2 in mxnet" in told(
            xdevice.models.convert_state(source, "mxnet", like=target)
        )


def test_zeros_that_a_layer_adds_are_no_difference_of_what_a_convolution_takes():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    kl = keras.layers
    torch.manual_seed(0)  # else all that comes out may be positive, and the same
    source = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 4, 3), torch.nn.LeakyReLU(0.3)
    )
    target = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            kl.ZeroPadding2D(1),
            kl.Conv2D(4, 3, 2),
            kl.Conv2D(4, 3),
            kl.ReLU(),
        ]
    )
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=target), into=target)
    with pytest.raises(
        xdevice.errors.ParityError, match=r"the first difference is after 1 \(Conv2d\)"
    ):
        xdevice.assert_parity(source, target, inputs=IMAGES)


def test_a_layer_that_is_called_before_another_branch_is_named():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    kl = keras.layers

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.after, self.right = (torch.nn.Conv2d(3, 3, 1) for _ in range(3))
            self.pool = torch.nn.MaxPool2d(3, 1, 1)

        def forward(self, x):
            return self.after(self.left(x)) + self.right(self.pool(x))

    image = keras.Input((6, 6, 3))
    pooled = kl.AveragePooling2D(3, 1, "same", name="pool")(image)
    left = kl.Conv2D(3, 1, name="after")(kl.Conv2D(3, 1, name="left")(image))
    target = keras.Model(
        image, kl.Add(name="sum")([left, kl.Conv2D(3, 1, name="right")(pooled)])
    )
    source = Branches()
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=target), into=target)
    with pytest.raises(
        xdevice.errors.ParityError,
        match=r"torch calls pool \(MaxPool2d\), and tensorflow calls pool \(AveragePooling2D\)",
    ):
        xdevice.assert_parity(source, target, inputs=IMAGES)


def test_layers_of_one_input_that_none_fits_are_told_apart_by_their_strides():
    """As the shortcut of a RegNet and the convolution beside it, behind a pool that another setting makes differ."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, *names, counts):
            super().__init__()
            made = {
                "stem": nn.Conv2d(3, 4, 3, padding=1), "x": nn.Conv2d(4, 4, 1), "y": nn.Conv2d(4, 4, 1, stride=2),
                "last": nn.Conv2d(4, 5, 1),
            }  # fmt: skip
            self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=counts)
            self.paths = dict(zip(names, "abcd", strict=True))
            for name, path in self.paths.items():
                setattr(self, path, made[name])

        def forward(self, image):
            stem, x, y, last = (
                getattr(self, self.paths[name]) for name in ("stem", "x", "y", "last")
            )
            image = self.pool(stem(image))
            return last(nn.functional.max_pool2d(x(image).tanh(), 2) + y(image))

    torch.manual_seed(0)
    source = Block("stem", "x", "y", "last", counts=True)
    target = Block("last", "stem", "y", "x", counts=False)
    images = torch.randn(2, 3, 16, 16)
    state = xdevice.models.convert_state(
        source.eval(), "torch", like=target.eval(), inputs=images
    )
    assert state.pairs == {"a": "b", "b": "d", "c": "c", "d": "a"}
    target.pool.count_include_pad = True
    xdevice.load(state, into=target)
    xdevice.assert_parity(target(images), source(images))


def test_steps_of_sequences_may_come_along_one_axis():
    """As in OPT, whose blocks take all steps of all sequences as rows in their second half."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):
        """Three norms and three linear layers, each norm before one of these."""

        def __init__(self, names, calls, shape):
            super().__init__()
            for number, name in enumerate(names):
                setattr(self, name, nn.LayerNorm(4) if number < 3 else nn.Linear(4, 4))
            self.calls, self.shape = calls, shape

        def forward(self, x):
            first, *rest = (getattr(self, path) for path in self.calls)
            x, shape = first(x), x.shape
            for layer in rest:
                x = layer(x.reshape(self.shape))
            return x.reshape(shape)

    torch.manual_seed(0)
    source, target = Block("abcdef", "afbecd", (2, 3, 4)), Block("uvwxyz", "vxwyuz", (-1, 4))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    x = torch.randn(2, 3, 4)
    state = xdevice.models.convert_state(source.eval(), "torch", like=target.eval(), inputs=x)
    assert state.pairs == dict(zip("afbecd", "vxwyuz", strict=True))
    xdevice.load(state, into=target)
    xdevice.assert_parity(target(x), source(x))


def test_a_shared_layer_whose_calls_come_in_another_order():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.left, self.right = (torch.nn.Linear(6, 6) for _ in range(3))
            self.out = torch.nn.Linear(12, 3)

        def forward(self, x):
            a, b = (
                torch.relu(self.left(self.shared(x))),
                torch.tanh(self.right(self.shared(torch.sin(x)))),
            )
            return self.out(torch.cat([a, b], 1))

    x = keras.Input((6,))
    shared = keras.layers.Dense(6, name="d_a")
    left = keras.layers.Dense(6, activation="relu", name="d_b")(shared(x))
    right = keras.layers.Dense(6, activation="tanh", name="d_c")(shared(keras.ops.sin(x)))
    target = keras.Model(
        x, keras.layers.Dense(3, name="d_d")(keras.layers.Concatenate()([left, right]))
    )
    source = Branches()
    state = xdevice.models.convert_state(source, "tensorflow", like=target, inputs=VECTORS)
    assert "the outputs on inputs=" not in told(state)
    xdevice.load(state, into=target)
    xdevice.assert_parity(target, source, inputs=VECTORS)


def test_an_activation_inside_of_a_bidirectional_layer_is_listed():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = torch.nn.LSTM(5, 4, bidirectional=True, batch_first=True)
    inner = keras.layers.LSTM(
        4, return_sequences=True, activation="softsign", recurrent_activation="hard_sigmoid"
    )
    target = keras.Sequential([keras.Input((4, 5)), keras.layers.Bidirectional(inner)])
    state = xdevice.models.convert_state(source, "tensorflow", like=target)
    assert "activation is None in torch, softsign in tensorflow" in told(state)


def test_images_whose_axes_are_of_one_size_are_turned():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    target = keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3)])
    assert not told(
        xdevice.models.convert_state(source, "tensorflow", like=target, inputs=IMAGES)
    )


def test_axes_that_keras_exchanges_are_listed():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    target = keras.Sequential(
        [keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), keras.layers.Permute((2, 1, 3))]
    )
    assert "Permute" in told(xdevice.models.convert_state(source, "tensorflow", like=target))


# green means that all was compared


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (lambda nn: nn.RReLU(), lambda nn: nn.RReLU()),
        (lambda nn: nn.Threshold(0.1, 0.0), lambda nn: nn.ThresholdedReLU(0.1)),
        (lambda nn: nn.Unfold(2), lambda nn: nn.Unfold([2, 2])),
        (lambda nn: nn.Flatten(2), lambda nn: nn.Identity()),
    ],
    ids=["rrelu", "threshold", "unfold", "one side"],
)
def test_models_of_which_something_was_not_compared_ask_for_inputs(theirs, mine):
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), theirs(torch.nn))
    target = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), mine(paddle.nn))
    state = xdevice.models.convert_state(source, "paddle", like=target)
    xdevice.load(state, into=target)
    assert "not compared: " in told(state)
    with pytest.raises(
        xdevice.errors.ParityError, match=r"(?s)not compared: .*inputs=x runs both"
    ):
        xdevice.assert_parity(target, source)


def test_activations_that_one_framework_defines_last_are_not_taken_as_compared():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.act = (
                *(torch.nn.Linear(6, 6) for _ in range(3)),
                torch.nn.ReLU(),
            )

    layers = keras.layers
    target = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(6),
            layers.ELU(),
            layers.Dense(6),
            layers.ELU(),
            layers.Dense(6),
        ]
    )
    source = Theirs()
    state = xdevice.models.convert_state(source, "tensorflow", like=target)
    xdevice.load(state, into=target)
    with pytest.raises(
        xdevice.errors.ParityError,
        match="not compared: 1 relu of torch and 2 elu of tensorflow",
    ):
        xdevice.assert_parity(source, target)


def test_two_models_of_one_framework_are_told_apart_by_layers_nobody_knows():
    nn = pytest.importorskip("torch").nn
    linear = nn.Linear(4, 4)
    xdevice.assert_parity(nn.Sequential(linear, nn.RReLU()), nn.Sequential(linear, nn.RReLU()))
    for one, other, line in (
        (nn.RReLU(0.1), nn.RReLU(0.2), r"type is RReLU\(lower=0.1"),
        (nn.MaxPool1d(2), nn.AvgPool1d(2), "it is max_pool, expected avg_pool"),
        (nn.ReLU(), nn.Identity(), "it is relu, expected nothing"),
    ):
        with pytest.raises(xdevice.errors.ParityError, match=line):
            xdevice.assert_parity(nn.Sequential(linear, one), nn.Sequential(linear, other))


@pytest.mark.parametrize("name", ["torch", "paddle", "mxnet"])
def test_layers_of_one_class_are_told_apart_by_their_attributes(name):
    nn = framework(name).gluon.nn if name == "mxnet" else framework(name).nn
    base = {"torch": "Module", "paddle": "Layer", "mxnet": "HybridBlock"}[name]

    class Scale(getattr(nn, base)):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x

    xdevice.assert_parity(Scale(2.0).eval() if name != "mxnet" else Scale(2.0), Scale(2.0))
    with pytest.raises(xdevice.errors.ParityError, match=r"factor=2.0, expected factor=3.0"):
        xdevice.assert_parity(Scale(2.0), Scale(3.0))


def test_layers_of_keras_of_one_class_are_told_apart_by_their_attributes():
    keras = pytest.importorskip("keras")

    class Scale(keras.layers.Layer):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, x):
            return self.factor * x

    one, same, other = (
        keras.Sequential([keras.Input((2,)), Scale(x)]) for x in (2.0, 2.0, 3.0)
    )
    one.compile("sgd", "mse")
    xdevice.assert_parity(one, same)
    with pytest.raises(
        xdevice.errors.ParityError, match=r"attributes is factor=2.0, expected factor=3.0"
    ):
        xdevice.assert_parity(one, other)


def test_losses_of_one_class_are_told_apart_by_their_attributes():
    nn = pytest.importorskip("torch").nn
    xdevice.assert_parity(nn.HuberLoss(delta=2.0), nn.HuberLoss(delta=2.0))
    with pytest.raises(xdevice.errors.ParityError, match=r"delta=1.0, .*, expected delta=2.0"):
        xdevice.assert_parity(nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0))


def test_what_a_functional_model_calls_a_layer_with_is_listed():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    x = keras.Input((5, 8))
    target = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    source, line = Theirs(), "1 MultiHeadAttention(use_causal_mask=True) of tensorflow"
    assert line in told(xdevice.models.convert_state(source, "tensorflow", like=target))
    given = np.random.default_rng(4).normal(size=(2, 5, 8)).astype("float32")
    assert "the outputs on inputs=" in told(
        xdevice.models.convert_state(source, "tensorflow", like=target, inputs=given)
    )
    plain = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x))
    assert not told(xdevice.models.convert_state(source, "tensorflow", like=plain))
    dropped = keras.Model(
        x, keras.layers.Dropout(0.5)(keras.layers.MultiHeadAttention(2, 4)(x, x), training=True)
    )
    assert "Dropout(training=True)" in told(
        xdevice.models.convert_state(source, "tensorflow", like=dropped)
    )


@pytest.mark.parametrize(
    ("theirs", "most", "line"),
    [
        (lambda nn: nn.Hardtanh(0.0, 6.0), 6, ""),
        (lambda nn: nn.ReLU6(), 6.0, ""),
        (lambda nn: nn.Hardtanh(0.0, 0.5), 0.5, ""),
        (lambda nn: nn.ReLU6(), 0.5, "activation is relu6 in torch, hardtanh in tensorflow"),
        (lambda nn: nn.Hardtanh(0.0, 1.0), 0.5, "max is 1 in torch, 0.5 in tensorflow"),
    ],
)
def test_functions_that_cut_off_are_one_function_with_one_name(theirs, most, line):
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    source = torch.nn.Sequential(torch.nn.Linear(4, 4), theirs(torch.nn))
    target = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(4), keras.layers.ReLU(max_value=most)]
    )
    found = told(xdevice.models.convert_state(source, "tensorflow", like=target))
    assert line in found
    assert bool(found) is bool(line)


def test_tensors_that_no_state_holds_are_listed():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(6, 6)
            self.scale = torch.ones(6)
            self.register_buffer("shift", torch.ones(6), persistent=False)

    class Mine(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = paddle.nn.Linear(6, 6)
            self.register_buffer("table", paddle.ones([6]), persistable=False)

    line = told(xdevice.models.convert_state(Theirs(), "paddle", like=Mine()))
    for name in ("scale", "shift", "table"):
        assert f"1 tensor {name} (in no state)" in line


def two_inputs(base, embedding, linear):
    """A model whose second argument nobody gives, as T5 has it."""

    class Net(base):
        def __init__(self):
            super().__init__()
            self.words, self.more = embedding(9, 4), embedding(9, 4)
            self.head = linear(4, 3)

        def forward(self, ids, mask=None, decoder_ids=None):
            found = self.head(self.words(ids) - self.more(decoder_ids))
            return found if mask is None else found * 0

        call = forward

    return Net()


def test_inputs_are_keywords_in_a_dict():
    torch, paddle = pytest.importorskip("torch"), pytest.importorskip("paddle")
    source = two_inputs(torch.nn.Module, torch.nn.Embedding, torch.nn.Linear)
    target = two_inputs(paddle.nn.Layer, paddle.nn.Embedding, paddle.nn.Linear)
    ids = torch.arange(6).reshape(2, 3)
    inputs = {"decoder_ids": ids + 1, "ids": ids}
    state = xdevice.models.convert_state(source, "paddle", like=target, inputs=inputs)
    assert not told(state)
    xdevice.load(state, into=target)
    xdevice.assert_parity(target, source, inputs=inputs)
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"on inputs= of the shape ids \(2, 3\), other_ids \(2, 3\)",
    ):
        xdevice.assert_parity(target, source, inputs={"ids": ids, "other_ids": ids})
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"the keys of a dict passed as inputs= must be the names of the model's arguments, got 0",
    ):
        xdevice.assert_parity(target, source, inputs={0: ids})
    with pytest.raises(
        xdevice.errors.NotATensorError, match="or a dict of keyword arguments, got 'ids'"
    ):
        xdevice.assert_parity(target, source, inputs={"ids": "ids"})


def test_keywords_name_the_inputs_of_a_functional_model():
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")

    one, other = keras.Input((5,), name="one"), keras.Input((5,), name="other")
    target = keras.Model([one, other], keras.layers.Dense(4)(one - 2 * other))

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(5, 4)

        def forward(self, one, other):
            return self.fc(one - 2 * other)

    inputs = {"other": VECTORS[:, 1:], "one": VECTORS[:, :5]}
    state = xdevice.models.convert_state(Theirs(), "tensorflow", like=target, inputs=inputs)
    assert not told(state)


def test_blocks_of_gluon_take_no_keywords():
    mx = framework("mxnet")
    net = mx.gluon.nn.Dense(4, in_units=6)
    net.initialize()
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match="mxnet does not support calling models with keyword arguments; pass",
    ):
        xdevice.assert_parity(net, net, inputs={"x": VECTORS})


def test_outputs_that_do_not_depend_on_the_inputs_tell_nothing(nets):
    """A mobilenet_v2 at initial weights: with a layer more in the target its outputs agreed."""
    torch, paddle = framework("torch"), framework("paddle").nn
    ours, theirs = (
        nets[0](torch.nn.Linear(4, 4)),
        nets[1](paddle.Sequential(paddle.Linear(4, 4), paddle.ReLU())),
    )
    ours.behind.weight.data.abs_()
    ours.fc.bias.data.abs_()
    ours.behind.bias.data.abs_()
    ours.fc.weight.data *= 1e-9
    blind = xdevice.models.convert_state(ours, "paddle", like=theirs, inputs=SEQUENCE)
    assert "are the same as on zeros, so they prove nothing; pass trained weights" in told(
        blind
    )
    ours.fc.weight.data *= 1e9
    assert "are off by" in told(
        xdevice.models.convert_state(ours, "paddle", like=theirs, inputs=SEQUENCE)
    )


def test_layers_of_one_input_are_told_apart_block_after_block():
    """The ties of a block come to light when those before it are exchanged rightly: InceptionV3 of Keras has nine."""
    torch, paddle = framework("torch"), framework("paddle")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (torch.nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            return torch.relu(self.c(torch.sin(self.a(x)))) + torch.cos(
                self.d(torch.sin(self.b(x)))
            )

    class Mine(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.p, self.q, self.r, self.s = (paddle.nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            return paddle.cos(self.q(paddle.sin(self.p(x)))) + paddle.nn.functional.relu(
                self.s(paddle.sin(self.r(x)))
            )

    torch.manual_seed(0)
    source = torch.nn.Sequential(*(Theirs() for _ in range(4)))
    target = paddle.nn.Sequential(*(Mine() for _ in range(4)))
    state = xdevice.models.convert_state(source, "paddle", like=target, inputs=VECTORS)
    assert state.pairs == {
        f"{n}.{one}": f"{n}.{other}"
        for n in range(4)
        for one, other in ("ar", "bp", "cs", "dq")
    }
    assert not told(state)


def test_where_inputs_settle_nothing_the_nearest_pairing_is_taken_and_listed():
    """MobileNetV3 of Paddle for timm: another eps, an activation inside the norms, and names that contradict."""
    torch, paddle = framework("torch"), framework("paddle").nn

    class Activated(torch.nn.BatchNorm1d):
        def forward(self, x):
            return torch.cos(super().forward(x))

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.norm1, self.fc2 = (
                torch.nn.Linear(6, 6),
                Activated(6),
                torch.nn.Linear(6, 6),
            )
            self.norm2, self.fc3 = Activated(6), torch.nn.Linear(6, 6)

        def forward(self, x):
            return self.fc3(self.norm2(self.fc2(self.norm1(self.fc1(x)))))

    class Cosine(paddle.Layer):
        def forward(self, x):
            return x.cos()

    norms = [paddle.BatchNorm1D(6, epsilon=1e-2) for _ in range(2)]
    fcs = [paddle.Linear(6, 6) for _ in range(3)]
    target = paddle.Sequential(
        ("dense_3", fcs[0]), ("norm2", norms[0]), ("cos", Cosine()), ("dense_2", fcs[1]), ("norm1", norms[1]),
        ("cos_1", Cosine()), ("dense_1", fcs[2]),
    )  # fmt: skip
    torch.manual_seed(0)
    state = xdevice.models.convert_state(Theirs(), "paddle", like=target, inputs=VECTORS)
    assert (
        "not compared: which layer is which; the outputs are closest with this pairing"
        in told(state)
    )
    assert state.pairs["fc1"] == "dense_3"
    assert "norm1: eps is 1e-05 in torch, 0.01 in paddle" in state.differences


def test_a_layer_may_return_a_numpy_array_before_its_tensor():
    nn = pytest.importorskip("torch").nn

    class Layer(nn.Linear):
        def forward(self, x):
            return np.ones(1, "float32"), super().forward(x)

    class Net(nn.Module):
        def __init__(self, *names):
            super().__init__()
            for name in names:
                self.add_module(name, Layer(6, 6))

        def forward(self, x):
            for name in sorted(dict(self.named_children())):
                x = self.get_submodule(name)(x)[1]
            return x

    # the order of the definitions pairs a with d, and the order of the calls pairs a with c
    state = xdevice.models.convert_state(
        Net("a", "b"), "torch", like=Net("d", "c"), inputs=VECTORS
    )
    assert state.pairs == {"a": "c", "b": "d"}
    assert not state.differences
