"""`assert_parity(inputs=)`: equal models agree, and the first layer that differs is named, or the gap."""

from __future__ import annotations

import numpy as np
import pytest

import xdevice
from xdevice.errors import ArgumentError, NotATensorError, ParityError

IMAGE = np.random.default_rng(0).normal(size=(2, 3, 17, 17)).astype("float32")


def torch_net(eps=1e-5, padding=1, activation=None, ceil=False, dropout=0.5):
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=padding), nn.BatchNorm2d(4, eps=eps), activation or nn.ReLU(inplace=True),
        nn.MaxPool2d(2, ceil_mode=ceil), nn.Dropout(dropout), nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 5),
    )  # fmt: skip
    net[1].running_var.uniform_(0.5, 1.5)
    return net


def paddle_net(eps=1e-5, padding=1, activation=None, ceil=False, mode="upscale_in_train"):
    from paddle import nn

    return nn.Sequential(
        nn.Conv2D(3, 4, 3, padding=padding), nn.BatchNorm2D(4, epsilon=eps), activation or nn.ReLU(),
        nn.MaxPool2D(2, ceil_mode=ceil), nn.Dropout(0.5, mode=mode), nn.Conv2D(4, 6, 3), nn.AdaptiveAvgPool2D(1),
        nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


def mxnet_net(eps=1e-5):
    # gives this thread NumPy's semantics, which blocks have from the first on
    xdevice.convert(np.ones(1), "mxnet")
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=4, epsilon=eps), nn.Activation("relu"),
        nn.MaxPool2D(2), nn.Dropout(0.5), nn.Conv2D(6, 3, in_channels=4), nn.GlobalAvgPool2D(), nn.Flatten(),
        nn.Dense(5, in_units=6),
    )  # fmt: skip
    net.initialize()
    return net


def keras_net(eps=1e-5):
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((17, 17, 3)), layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(epsilon=eps, momentum=0.9), layers.ReLU(), layers.MaxPooling2D(2),
            layers.Dropout(0.5), layers.Conv2D(6, 3),
            layers.GlobalAveragePooling2D(), layers.Dense(5),
        ]
    )  # fmt: skip


OTHERS = {"paddle": paddle_net, "mxnet": mxnet_net, "tensorflow": keras_net}


@pytest.fixture(autouse=True)
def _frameworks():
    for name in ("torch", *OTHERS):
        xdevice.backend(name)


def pair(name, ours=None, **theirs):
    """A network of PyTorch's, and one with its weights."""
    here, there = torch_net(**(ours or {})), OTHERS[name](**theirs)
    xdevice.load(xdevice.models.convert_state(here, name, like=there), into=there, strict=False)
    return here, there


def told(here, there):
    with pytest.raises(ParityError) as caught:
        xdevice.assert_parity(here, there, inputs=IMAGE)
    return str(caught.value).partition("allowed")[2].partition("\n")[2]


@pytest.mark.parametrize("name", OTHERS)
def test_equal_models_agree_and_keep_their_mode(name):
    here, there = pair(name)
    here[4].eval()
    before = call_of(here)
    xdevice.assert_parity(here, there, inputs=IMAGE)
    xdevice.assert_parity(here, there, inputs=(xdevice.convert(IMAGE, "torch"),))
    assert [layer.training for layer in here] == [True] * 4 + [False] + [True] * 4
    assert call_of(here) is before


def call_of(model):
    return type(model).__mro__[1].__call__


@pytest.mark.parametrize("name", OTHERS)
def test_an_eps_is_named_at_its_layer(name):
    text = told(*pair(name, eps=1e-3))
    assert text.startswith("the first layer that differs is 1 (BatchNorm2d) of torch with "), (
        text
    )
    assert f"eps is 1e-05 in torch, 0.001 in {name}" in text


def test_a_fault_of_the_other_side_is_named_too():
    there, here = pair("tensorflow", ours={"eps": 1e-3})
    with pytest.raises(
        ParityError,
        match=r"first layer that differs is batch_normalization\w* \(BatchNormalization\)",
    ):
        xdevice.assert_parity(
            here, there, inputs=np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1))
        )


@pytest.mark.parametrize("index", [0, 2, 3])
def test_a_fault_after_flattened_images_is_named_at_its_layer(index):
    """Keras flattens rows, columns and channels, PyTorch channels, rows and columns."""
    import keras
    import torch

    layers, nn = keras.layers, torch.nn
    # as many channels as rows and columns, so that the shapes do not show where the channels are
    of_keras = keras.Sequential(
        [
            keras.Input((5, 5, 3)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(4),
            layers.Dense(5),
        ]
    )  # fmt: skip
    of_torch = nn.Sequential(
        nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(27, 4), nn.Linear(4, 5)
    )
    state = xdevice.models.convert_state(of_keras, "torch", like=of_torch)
    xdevice.load(state, into=of_torch)
    images = np.ascontiguousarray(IMAGE[:, :, :5, :5].transpose(0, 2, 3, 1))
    xdevice.assert_parity(of_keras, of_torch, inputs=images)
    with torch.no_grad():
        of_torch[index].weight *= 1.5
    with pytest.raises(ParityError, match=rf"the first layer that differs is .* with {index} "):
        xdevice.assert_parity(of_keras, of_torch, inputs=images)


def test_a_padding_is_named_at_its_layer():
    here, there = pair("paddle")
    there[5]._padding = there[5]._updated_padding = [1, 1]
    text = told(here, there)
    assert "the first layer that differs is 5 (Conv2D)" in text.replace("Conv2d", "Conv2D"), (
        text
    )
    assert (
        "of the shape (2, 6, 6, 6), expected (2, 6, 8, 8); padding is (0, 0) in torch, (1, 1) in paddle"
        in text
    )


def test_an_activation_a_dropout_and_a_pool_are_named_as_gaps():
    from paddle import nn
    from torch import nn as torch_nn

    text = told(*pair("paddle", activation=nn.LeakyReLU(0.1)))
    assert "in between, torch calls 2 (ReLU), 3 (MaxPool2d), 4 (Dropout)" in text, text
    assert "paddle calls 2 (LeakyReLU), " in text
    text = told(*pair("paddle", mode="downscale_in_infer"))
    assert (
        "the first layer that differs is 4 (Dropout): its inputs agree, but its output is off by 1"
        in text
    ), text
    text = told(*pair("paddle", ceil=True))
    assert (
        "the first layer that differs is 3 (MaxPool2d) of torch with 3 (MaxPool2D)" in text
    ), text
    assert "of the shape (2, 4, 8, 8), expected (2, 4, 9, 9)" in text
    text = told(
        *pair(
            "paddle", ours={"activation": torch_nn.GELU()}, activation=nn.GELU(approximate=True)
        )
    )
    assert "the first layer that differs is 2 (GELU)" in text, text


def scaled(module, linear, dropout, factor):
    """A model that calls a function between a layer with parameters and one without."""

    class Scaled(module):
        def __init__(self):
            super().__init__()
            self.first, self.dropout, self.last = linear(17, 4), dropout(0.5), linear(4, 2)

        def forward(self, x):
            return self.last(self.dropout(self.first(x) * factor))

    return Scaled()


def test_a_function_before_a_layer_without_parameters_is_not_taken_for_it():
    import torch
    from paddle import nn

    here = scaled(torch.nn.Module, torch.nn.Linear, torch.nn.Dropout, 1.0)
    there = scaled(nn.Layer, nn.Linear, nn.Dropout, 0.5)
    xdevice.load(xdevice.models.convert_state(here, "paddle", like=there), into=there)
    text = told(here, there)
    assert "after first (Linear): the input of dropout (Dropout) is off by 1 of" in text, text


def test_an_initial_state_that_one_side_alone_is_given_is_named():
    import torch

    class Begun(torch.nn.Module):
        def __init__(self, state):
            super().__init__()
            self.rnn, self.state = torch.nn.GRU(17, 4, batch_first=True), state

        def forward(self, x):
            return self.rnn(x.flatten(1, 2), self.state)[0]

    here, there = Begun(torch.full((1, 2, 4), 0.5)), Begun(None)
    there.load_state_dict(here.state_dict())
    assert (
        "its first input agrees, but the other run has no input equal to float32 (1, 2, 4) of torch"
        in told(here, there)
    )


def test_a_fault_behind_the_last_layer_is_in_the_last_gap():
    import torch
    from paddle import nn

    here, there = pair("paddle")
    here, there = (
        torch.nn.Sequential(*here, torch.nn.Softmax(-1)),
        nn.Sequential(*there, nn.LogSoftmax(-1)),
    )
    text = told(here, there)
    assert "after 8 (Linear): the output of the model is off" in text, text
    assert "in between, torch calls 9 (Softmax), and paddle calls 9 (LogSoftmax)" in text


def test_rounding_is_called_so():
    here, there = pair("paddle")
    here[8].bias.data += 3e-6
    text = told(here, there)
    assert (
        "no layer is off by more than 0.0001 of its largest value, so rounding alone may be the cause"
        in text
    ), text
    assert "where the error grows most, the first layer that differs is 8 (Linear)" in text


def test_layers_that_do_not_pair_are_told():
    import torch

    one = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    other = torch.nn.Sequential()
    other.first, other.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 5)
    x = np.ones((1, 3), "float32")
    with pytest.raises(ParityError, match="shapes differ"):
        xdevice.assert_parity(one, other, inputs=x)
    twin = torch.nn.Sequential()
    twin.q, twin.k = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    with pytest.raises(
        ParityError, match=r"the first layer that differs is 0 \(Linear\) of torch with q"
    ):
        xdevice.assert_parity(one, twin, inputs=x, names={"0": "q", "1": "k"})


def test_wrong_arguments_are_refused():
    net = torch_net()
    for inputs in ("x", [IMAGE], {"x": [IMAGE]}):
        with pytest.raises(NotATensorError, match="inputs= expects a tensor"):
            xdevice.assert_parity(net, net, inputs=inputs)
    with pytest.raises(NotATensorError, match="both values must be models"):
        xdevice.assert_parity(net, IMAGE, inputs=IMAGE)
    with pytest.raises(ArgumentError, match="names="):
        xdevice.assert_parity(net, net, names={"0": "0"})


def test_images_with_their_channels_at_the_other_end_are_told():
    import keras
    import torch

    net = torch.nn.Conv2d(3, 4, 3)
    with pytest.raises(
        ArgumentError,
        match=r"\(2, 8, 8, 3\) looks like images with the channels last; move .* RuntimeError",
    ):
        xdevice.assert_parity(net, net, inputs=np.ones((2, 8, 8, 3), "float32"))
    with pytest.raises(ArgumentError, match=r"the source, expects: RuntimeError"):
        xdevice.assert_parity(net, net, inputs=np.ones((2, 8, 8, 5), "float32"))
    net = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
    with pytest.raises(
        ArgumentError,
        match=r"\(2, 3, 8, 8\) looks like images with the channels first; move .* ValueError",
    ):
        xdevice.assert_parity(net, net, inputs=np.ones((2, 3, 8, 8), "float32"))


@pytest.mark.virtual
def test_inputs_and_models_may_be_on_gpus():
    source, like = torch_net(eps=1e-3), keras_net(eps=1e-3)
    gpu = xdevice.gpu(0)
    xdevice.load(xdevice.models.convert_state(source, "tensorflow", like=like), into=like)
    xdevice.to_device([source, like], gpu)
    images = xdevice.to_device(xdevice.convert(IMAGE, "torch"), gpu)
    xdevice.assert_parity(source, like, inputs=images)
    xdevice.assert_parity(source, xdevice.copy_to(like, "cpu"), inputs=images)
    like.layers[1].epsilon = 1e-2
    with pytest.raises(ParityError):
        xdevice.assert_parity(source, like, inputs=images)


def test_inputs_that_a_model_does_not_take_are_named():
    here, there = pair("tensorflow")
    with pytest.raises(
        ArgumentError, match=r"before its first layer on inputs= of the shape \(2, 3, 17, 17\)"
    ):
        xdevice.assert_parity(there, here, inputs=IMAGE)
