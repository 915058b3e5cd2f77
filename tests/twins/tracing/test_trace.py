"""`capture_intermediates`: which calls are seen, what is kept of them, and that nothing stays behind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import xdevice
from xdevice.errors import NotATensorError, NotBuiltError, UnsupportedError
from xdevice.twins.contract import calls

IMAGE = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")


def torch_net():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(144, 5),
    ).eval()


def paddle_net():
    from paddle import nn

    net = nn.Sequential(
        nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )
    net.eval()
    return net


def mxnet_net():
    # gives this thread NumPy's semantics, which blocks have from the first on
    xdevice.convert(np.ones(1), "mxnet")
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=3, activation="relu"),
        nn.BatchNorm(in_channels=4),
        nn.Flatten(),
    )
    net.add(nn.Dense(5, in_units=144))
    net.initialize()
    return net


def keras_net():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(),
         layers.Dense(5)]
    )  # fmt: skip


NETS = {"torch": torch_net, "paddle": paddle_net, "mxnet": mxnet_net, "tensorflow": keras_net}
PATHS = {
    "torch": ["0", "1", "2", "3", "4"],
    "paddle": ["0", "1", "2", "3", "4"],
    "mxnet": ["0", "0.act", "1", "2", "3"],
    "tensorflow": ["conv2d", "conv2d.activation", "batch_normalization", "flatten", "dense"],
}


@pytest.fixture(params=list(NETS))
def net(request):
    xdevice.backend(request.param)
    return request.param, NETS[request.param]()


def image(name):
    host = IMAGE if name != "tensorflow" else np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1))
    return xdevice.convert(host, name)


def loss_backward(name, model, x):
    """The sum of what a model returns, and its gradients."""
    if name == "mxnet":
        from mxnet import autograd

        with autograd.record():
            loss = model(x).sum()
        loss.backward()
    elif name == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        assert len(tape.gradient(loss, model.trainable_variables)) == 6
    else:
        model(x).sum().backward()


def call_of(name):
    from importlib import import_module

    home, cls = {
        "torch": ("torch.nn", "Module"), "paddle": ("paddle.nn", "Layer"), "mxnet": ("mxnet.gluon", "Block"),
        "tensorflow": ("keras", "Layer"),
    }[name]  # fmt: skip
    return getattr(import_module(home), cls).__call__


def test_calls_come_in_order_with_values_and_gradients(net):
    name, model = net
    x = image(name)
    with xdevice.parity.capture_intermediates(model) as traced:
        loss_backward(name, model, x)
    calls = traced.calls
    assert [call.path for call in calls] == PATHS[name]
    for before, after in pairwise(calls):
        np.testing.assert_array_equal(before.outputs[0], after.inputs[0])
    np.testing.assert_array_equal(calls[0].inputs[0], xdevice.to_numpy(x))
    assert calls[-1].outputs[0].shape == (2, 5)
    np.testing.assert_array_equal(calls[-1].gradients[0], np.ones((2, 5)))
    assert all(call.gradients[0].shape == call.outputs[0].shape for call in calls)
    weight = next(value for path, value in xdevice.backend(name).variables(model) if list(value.shape)[::-1] == [144, 5]
                  or list(value.shape) == [144, 5])  # fmt: skip
    host = xdevice.backend(name).to_numpy(weight)
    rows = host if host.shape == (5, 144) else host.T
    np.testing.assert_allclose(
        calls[-2].gradients[0].reshape(2, -1), np.stack([rows.sum(0)] * 2), rtol=1e-4, atol=1e-5
    )


def test_paths_are_those_of_layers(net):
    name, model = net
    with xdevice.parity.capture_intermediates(model) as traced:
        model(image(name))
    assert {layer.path for layer in xdevice.backend(name).layers(model)} <= {
        call.path for call in traced.calls
    }


def test_what_works_in_place_changes_nothing_that_was_kept():
    import torch

    model = torch_net()
    with xdevice.parity.capture_intermediates(model) as traced:
        model(torch.tensor(IMAGE))
    assert traced.calls[1].outputs[0].min() < 0, (
        "the output of the batch norm, before the ReLU wrote into it"
    )
    assert traced.calls[2].inputs[0].min() < 0 <= traced.calls[2].outputs[0].min()


@dataclass
class Pair:
    first: Any
    second: Any
    name: str = "pair"


def test_tensors_in_dataclasses_are_seen_and_stand_in_for_others():
    from torch import nn

    class Splits(nn.Module):
        def forward(self, x):
            return Pair(x + 1, {"twice": x * 2})

    class Adds(nn.Module):
        def forward(self, pair):
            return pair.first + pair.second["twice"]

    net = nn.Sequential(Splits(), Adds())
    x = xdevice.convert(np.ones((1, 2), "float32"), "torch")
    with xdevice.parity.capture_intermediates(net) as seen:
        net(x)
    splits, adds = seen.calls
    assert (
        [y.tolist() for y in splits.outputs]
        == [[[2, 2]], [[2, 2]]]
        == [y.tolist() for y in adds.inputs]
    )
    pair = Pair(x, {"twice": [x, 3]})
    other = calls.replace_tensors(xdevice.backend("torch"), pair, iter([1.5, 2.5]))
    assert other == Pair(1.5, {"twice": [2.5, 3]})
    assert pair.first is x


def test_every_tensor_that_is_recorded_is_replaced():
    """NumPy arrays and mappings other than dicts, too: later tensors would get the values of earlier ones."""
    backend = xdevice.backend("torch")
    x = backend.from_numpy(np.ones(1), xdevice.cpu())
    value = (np.zeros(2), MappingProxyType({"a": [np.zeros(3), x]}), "text", x)
    assert len([*calls.tensors(backend, value)]) == 4
    new = calls.replace_tensors(backend, value, iter("abcd"))
    assert new == ("a", {"a": ["b", "c"]}, "text", "d")


def test_a_layer_that_is_used_twice_has_two_calls():
    import torch

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.relu = torch.nn.Linear(3, 3), torch.nn.ReLU()

        def forward(self, x):
            return self.relu(self.fc(self.relu(self.fc(x))))

    model = Twice()
    with xdevice.parity.capture_intermediates(model) as traced:
        model(torch.ones(1, 3))
    assert [(call.path, call.number) for call in traced.calls] == [
        ("fc", 0),
        ("relu", 0),
        ("fc", 1),
        ("relu", 1),
    ]
    assert "fc #2" in str(traced)


def test_an_error_leaves_nothing_behind(net):
    name, model = net
    before = call_of(name)
    x = image(name)
    with xdevice.parity.capture_intermediates(model) as traced:
        model(x)
        with pytest.raises(Exception):  # noqa: B017  # each framework's own
            model(x[:, :2])
        model(x)
    assert call_of(name) is before
    count = len(traced)
    model(x)
    assert len(traced) == count == 2 * len(PATHS[name])
    with xdevice.parity.capture_intermediates(model) as again:
        model(x)
    assert [call.path for call in again.calls] == PATHS[name]


def test_traces_may_be_nested(net):
    name, model = net
    before, x = call_of(name), image(name)
    with xdevice.parity.capture_intermediates(model) as outer:
        with xdevice.parity.capture_intermediates(model) as inner:
            model(x)
        model(x)
    assert call_of(name) is before
    assert [call.path for call in inner.calls] == PATHS[name]
    assert [call.path for call in outer.calls] == PATHS[name] * 2
    with xdevice.parity.capture_intermediates(model) as last:
        model(x)
    assert len(last) == len(PATHS[name])


def test_the_calls_of_other_threads_are_not_seen():
    model = torch_net()
    import torch

    with xdevice.parity.capture_intermediates(model) as traced:
        thread = threading.Thread(target=lambda: model(torch.tensor(IMAGE)))
        thread.start()
        thread.join()
    assert len(traced) == 0
    assert "no layer was called in this thread" in str(traced)


def test_a_table_is_short():
    import torch

    model = torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(90)], torch.nn.Linear(2, 2))
    with xdevice.parity.capture_intermediates(model) as traced:
        model(torch.ones(1, 2))
    text = str(traced)
    assert text.startswith("Sequential of torch: 91 calls of layers\nlayer  type")
    assert len(text.splitlines()) == 2 + 61


# what hides layers


def test_a_transformer_computes_by_its_layers_while_it_is_traced():
    import torch

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad(), xdevice.parity.capture_intermediates(layer) as traced:
        layer(torch.ones(1, 3, 8))
    assert {"linear1", "linear2", "norm1", "norm2"} <= {call.path for call in traced.calls}
    assert not any(module._forward_pre_hooks for module in layer.modules())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, that TorchScript is old
def test_compiled_layers_are_refused_by_name():
    import torch

    model = torch_net()
    for hidden in (
        torch.compile(model, backend="eager"),
        torch.jit.trace(model, torch.tensor(IMAGE)),
    ):
        with (
            pytest.raises(UnsupportedError, match="tracing the layers of"),
            xdevice.parity.capture_intermediates(hidden),
        ):
            pass
    model.compile(backend="eager")
    with (
        pytest.raises(UnsupportedError, match=r"torch\.compile has compiled"),
        xdevice.parity.capture_intermediates(model),
    ):
        pass


def test_hybridized_blocks_are_refused_until_they_are_not():
    model = mxnet_net()
    model.hybridize()
    with (
        pytest.raises(UnsupportedError, match="hybridize"),
        xdevice.parity.capture_intermediates(model),
    ):
        pass
    model.hybridize(False)
    with xdevice.parity.capture_intermediates(model) as traced:
        model(image("mxnet"))
    assert len(traced) == 5


def test_gradients_reach_all_outputs_of_a_block_that_returns_a_container():
    xdevice.backend("mxnet")
    from mxnet import autograd, gluon

    class Pair(NamedTuple):
        double: Any
        rest: dict[str, Any]

    class Split(gluon.Block):
        def forward(self, x):
            return Pair(2 * x, {"triple": 3 * x, "host": np.ones(1), "name": "x"})

    block = Split()
    x = xdevice.convert(np.ones((2, 3), "float32"), "mxnet")
    x.attach_grad()
    with xdevice.parity.capture_intermediates(block) as traced:
        with autograd.record():
            pair = block(x)
            loss = (pair.double + 5 * pair.rest["triple"]).sum()
        loss.backward()
    assert type(pair) is Pair
    assert (x.grad.asnumpy() == 17).all()
    [call] = traced.calls
    assert [float(call.gradients[number].max()) for number in (0, 1)] == [1, 5]


def test_static_layers_of_paddle_are_refused():
    import paddle

    with (
        pytest.raises(UnsupportedError, match=r"paddle\.jit\.to_static"),
        xdevice.parity.capture_intermediates(paddle.jit.to_static(paddle_net())),
    ):
        pass


def test_layers_inside_of_a_tf_function_are_refused():
    import tensorflow as tf

    model = keras_net()
    with (
        pytest.raises(UnsupportedError, match=r"inside tf\.function"),
        xdevice.parity.capture_intermediates(model),
    ):
        tf.function(lambda x: model(x))(image("tensorflow"))


def test_a_keras_model_of_its_own_class_is_seen():
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                keras.layers.Dense(4, activation="tanh"),
                keras.layers.Dense(2),
            )

        def call(self, x):
            return self.second(self.first(x))

    model = Own()
    with pytest.raises(NotBuiltError), xdevice.parity.capture_intermediates(model):
        pass
    model(np.ones((1, 3), "float32"))
    with xdevice.parity.capture_intermediates(model) as traced:
        model(np.ones((1, 3), "float32"))
    assert [(call.path, call.type) for call in traced.calls] == [
        ("dense", "Dense"), ("dense.activation", "tanh"), ("dense_1", "Dense")
    ]  # fmt: skip


def test_what_is_no_model_is_refused():
    for thing in (xdevice.ones(2), [1], None):
        with (
            pytest.raises(NotATensorError, match="capture_intermediates expects a model"),
            xdevice.parity.capture_intermediates(thing),
        ):
            pass


def test_two_keras_models_are_traced_one_inside_the_other():
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    outer, inner = (
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for _ in range(2)
    )
    x = np.ones((2, 4), "float32")
    # both have then recorded one output, and lists of as many tensors can be taken for one another
    with (
        xdevice.parity.capture_intermediates(outer) as of_outer,
        xdevice.parity.capture_intermediates(inner) as of_inner,
        tf.GradientTape() as tape,
    ):
        loss = tf.reduce_sum(outer(x)) + tf.reduce_sum(inner(x))
        tape.gradient(loss, [model.trainable_variables[0] for model in (outer, inner)])
    assert len(of_outer) == len(of_inner) == 1
