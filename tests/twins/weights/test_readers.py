"""Files of Keras, Paddle, Gluon, Flax and Orbax are read as they are, without their model."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from helpers.environment import framework

import xdevice

torch = framework("torch")
nn = torch.nn


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-3)
        self.fc, self.out = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(torch.relu(self.fc(self.bn(self.stem(x)).mean((2, 3)))))


def in_keras():
    framework("tensorflow")
    import keras

    layers = keras.layers
    model = keras.Sequential([
        keras.Input((6, 6, 3)), layers.Conv2D(4, 3, name="stem"), layers.BatchNormalization(momentum=0.9),
        layers.GlobalAveragePooling2D(), layers.Dense(5, activation="relu"), layers.Dense(2, name="head"),
    ])  # fmt: skip
    random = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(random.random(variable.shape))
    return model


@pytest.mark.parametrize("ending", [".weights.h5", ".keras", ".h5"])
def test_a_file_of_keras_goes_to_both(ending, tmp_path):
    model, like, twin = in_keras(), in_keras(), Twin().eval()
    path = tmp_path / f"model{ending}"
    (model.save_weights if ending == ".weights.h5" else model.save)(path)
    for variable in like.variables:
        variable.assign(variable * 0)
    xdevice.load(xdevice.models.convert_state(path, "tensorflow", like=like), into=like)
    xdevice.assert_parity(model, like)
    xdevice.load(xdevice.models.convert_state(path, "torch", like=twin), into=twin)
    xdevice.assert_parity(
        model, twin, inputs=np.random.default_rng(1).random((2, 6, 6, 3), "float32")
    )


@pytest.mark.parametrize("ending", [".weights.h5", ".keras", ".h5"])
def test_both_directions_and_a_depthwise_convolution_are_read_of_keras(ending, tmp_path):
    framework("tensorflow")
    import keras

    layers = keras.layers
    both = [
        layers.Bidirectional(cell(4, return_sequences=True))
        for cell in (layers.LSTM, layers.GRU)
    ]
    deep = keras.Sequential(
        [keras.Input((4, 3, 6)), layers.DepthwiseConv2D(3, depth_multiplier=2, name="deep")]
    )
    model = keras.Sequential([keras.Input((4, 3, 6)), deep, layers.Reshape((2, 12)), *both])
    random = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(random.normal(size=variable.shape))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = nn.Conv2d(6, 12, 3, groups=6)
            self.lstm = nn.LSTM(12, 4, batch_first=True, bidirectional=True)
            self.gru = nn.GRU(8, 4, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.gru(self.lstm(self.deep(x).squeeze(3).mT)[0])[0]

    path = tmp_path / f"model{ending}"
    (model.save_weights if ending == ".weights.h5" else model.save)(path)
    twin = Tagger()
    xdevice.load(xdevice.models.convert_state(path, "torch", like=twin), into=twin)
    batch = random.random((2, 4, 3, 6), "float32")
    with torch.no_grad():
        ours = twin(torch.tensor(batch).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(ours, model.predict(batch, verbose=0), atol=1e-5)


def test_a_recurrent_layer_and_an_attention_are_read_of_keras(tmp_path):
    framework("tensorflow")
    import keras

    layers = keras.layers
    ids = keras.Input((5,))
    x = layers.LSTM(4, return_sequences=True)(layers.Embedding(7, 4)(ids))
    x = layers.GRU(4, return_sequences=True)(layers.MultiHeadAttention(2, 2)(x, x))
    model = keras.Model(ids, layers.LayerNormalization()(x))

    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.lstm = nn.Embedding(7, 4), nn.LSTM(4, 4, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.gru, self.norm = nn.GRU(4, 4, batch_first=True), nn.LayerNorm(4, eps=1e-3)

        def forward(self, ids):
            x = self.lstm(self.words(ids))[0]
            return self.norm(self.gru(self.attention(x, x, x, need_weights=False)[0])[0])

    model.save_weights(tmp_path / "m.weights.h5")
    twin = Sequence()
    xdevice.load(
        xdevice.models.convert_state(tmp_path / "m.weights.h5", "torch", like=twin), into=twin
    )
    batch = np.arange(10).reshape(2, 5) % 7
    xdevice.assert_parity(twin(torch.from_numpy(batch)), model(batch), check_device=False)


def test_a_norm_without_one_of_its_parameters_is_not_guessed(tmp_path):
    framework("tensorflow")
    import keras

    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization(scale=False, name="bn")]
    )
    model.save_weights(tmp_path / "m.weights.h5")
    state = xdevice.load(tmp_path / "m.weights.h5", backend="numpy")
    assert sorted(state) == [f"bn/{number}" for number in range(3)]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_of_paddle_goes_to_both(dtype, is_nested, tmp_path):
    paddle = framework("paddle")
    pn = paddle.nn
    models = [pn.Sequential(pn.Linear(4, 4), pn.BatchNorm1D(4)) for _ in range(2)]
    for model in models:
        model.to(dtype=dtype)
    source, like = models
    state = source.state_dict()
    paddle.save(
        {"model": state, "epoch": 3} if is_nested else state, str(tmp_path / "m.pdparams")
    )
    xdevice.load(
        xdevice.models.convert_state(tmp_path / "m.pdparams", "paddle", like=like), into=like
    )
    xdevice.assert_parity(source, like)
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(getattr(torch, dtype))
    xdevice.load(
        xdevice.models.convert_state(tmp_path / "m.pdparams", "torch", like=twin), into=twin
    )
    xdevice.assert_parity(source, twin)


class _Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_asks_for_code_is_refused(protocol, tmp_path):
    (tmp_path / "m.pdparams").write_bytes(
        pickle.dumps({"a": np.ones(2), "b": _Evil()}, protocol)
    )
    with pytest.raises(xdevice.errors.FileFormatError, match="which may run code"):
        xdevice.load(tmp_path / "m.pdparams")


@pytest.mark.parametrize("is_numpy", [True, False])
def test_a_file_of_gluon_goes_to_both(is_numpy, tmp_path):
    mx = framework("mxnet")
    xdevice.backend("mxnet").namespace().enter()
    gluon = mx.gluon

    def build():
        block = gluon.nn.HybridSequential()
        block.add(
            gluon.nn.Dense(3, in_units=4, flatten=False),
            gluon.rnn.LSTM(2, input_size=3, layout="NTC"),
        )
        block.initialize(mx.init.Normal(1.0))
        return block

    source, like = build(), build()
    path = str(tmp_path / "m.params")
    source.save_parameters(path)
    if not is_numpy:  # as MXNet writes it without NumPy's shapes: these are the same where no axis is of length 0
        content = (tmp_path / "m.params").read_bytes()
        (tmp_path / "m.params").write_bytes(
            content.replace(b"\xca\xfa\x93\xf9", b"\xc9\xfa\x93\xf9")
        )
    xdevice.load(xdevice.models.convert_state(path, "mxnet", like=like), into=like)
    xdevice.assert_parity(source, like)

    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.rnn = nn.Linear(4, 3), nn.LSTM(3, 2, batch_first=True)

    twin = Sequence()
    xdevice.load(xdevice.models.convert_state(path, "torch", like=twin), into=twin)
    xdevice.assert_parity(source, twin)


@pytest.mark.parametrize("library", ["flax", "orbax"])
def test_a_file_of_jax_goes_to_pytorch(library, tmp_path):
    framework("jax")
    source, like = nn.Linear(4, 3), nn.Linear(4, 3)
    tree = {
        "params": {
            "fc": {
                "kernel": source.weight.detach().numpy().T,
                "bias": source.bias.detach().numpy(),
            }
        }
    }
    if library == "flax":
        serialization = pytest.importorskip("flax.serialization")
        path = tmp_path / "m.msgpack"
        path.write_bytes(serialization.msgpack_serialize(tree))
    else:
        checkpoint = pytest.importorskip("orbax.checkpoint")
        path = tmp_path / "m"
        checkpoint.PyTreeCheckpointer().save(path.absolute(), tree)
    twin = nn.ModuleDict({"fc": like})
    xdevice.load(xdevice.models.convert_state(path, "torch", like=twin), into=twin)
    assert torch.equal(like.weight, source.weight)


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_sparse_tensor_of_pytorch_is_named(tmp_path):
    torch.save({"a": torch.ones(2), "w": torch.eye(3).to_sparse()}, tmp_path / "m.pt")
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"w in .* is sparse"):
        xdevice.load(tmp_path / "m.pt")


def test_a_tied_weight_of_pytorchs_file_goes_where_it_is_tied(tmp_path):
    one, other = (
        nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)) for _ in range(2)
    )
    for model in (one, other):
        model[1].weight = model[0].weight
    torch.save(one.state_dict(), tmp_path / "m.pt")
    xdevice.load(tmp_path / "m.pt", into=other)
    assert torch.equal(one[0].weight, other[1].weight)
