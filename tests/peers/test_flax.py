"""Modules of Flax and Equinox are converted to and from other frameworks' models, and compared with them."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest
from helpers.environment import printed

import xdevice

nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")
torch = pytest.importorskip("torch")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax.core import freeze  # noqa: E402

WIDTH, HEADS, WORDS, TOKENS = 16, 4, 20, 6


class TorchResidual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(8)
        self.short = torch.nn.Conv2d(3, 8, 1)
        self.fc = torch.nn.Linear(8, 5)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.relu(y + self.short(x)).mean((2, 3)))


class NnxResidual(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(8, 8, (3, 3), use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.short = nnx.Conv(3, 8, (1, 1), rngs=rngs)
        self.fc = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        y = self.bn2(self.conv2(nnx.relu(self.bn1(self.conv1(x)))))
        return self.fc(nnx.relu(y + self.short(x)).mean((1, 2)))


class TorchDecoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(TOKENS, WIDTH)
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.linear1 = torch.nn.Linear(WIDTH, 32)
        self.linear2 = torch.nn.Linear(32, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        y = self.words(ids) + self.places(torch.arange(TOKENS))
        n = self.norm1(y)
        later = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
        y = y + self.attention(n, n, n, attn_mask=later, need_weights=False)[0]
        return self.head(
            y + self.linear2(torch.nn.functional.gelu(self.linear1(self.norm2(y))))
        )


class NnxDecoder(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.places = nnx.Embed(TOKENS, WIDTH, rngs=rngs)
        self.norm1 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.linear1 = nnx.Linear(WIDTH, 32, rngs=rngs)
        self.linear2 = nnx.Linear(32, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, WORDS, rngs=rngs)

    def __call__(self, ids):
        y = self.words(ids) + self.places(jnp.arange(TOKENS))
        y = y + self.attention(self.norm1(y), mask=jnp.tril(jnp.ones((TOKENS, TOKENS), bool)))
        return self.head(
            y + self.linear2(nnx.gelu(self.linear1(self.norm2(y)), approximate=False))
        )


class TorchPatches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = torch.nn.Conv2d(3, WIDTH, 4, 4)
        self.token = torch.nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, 7)

    def forward(self, x):
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1)
        return self.head(self.attention(y, y, y, need_weights=False)[0][:, 0])


class NnxPatches(nnx.Module):
    def __init__(self, rngs):
        self.patch = nnx.Conv(3, WIDTH, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, WIDTH)))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 7, rngs=rngs)

    def __call__(self, x):
        y = self.patch(x).reshape(x.shape[0], -1, WIDTH)
        y = jnp.concatenate([jnp.broadcast_to(self.token.value, (len(y), 1, WIDTH)), y], 1)
        return self.head(self.attention(y)[:, 0])


class TorchSequence(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(4, 6, batch_first=True)
        self.fc = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.rnn(x)[0])


class NnxSequence(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(4, 6, rngs=rngs))
        self.fc = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.rnn(x))


class LinenResidual(linen.Module):
    @linen.compact
    def __call__(self, x):
        y = linen.Conv(8, (3, 3), use_bias=False, name="conv1")(x)
        y = linen.relu(linen.BatchNorm(use_running_average=True, name="bn1")(y))
        y = linen.Conv(8, (3, 3), use_bias=False, name="conv2")(y)
        y = linen.BatchNorm(use_running_average=True, name="bn2")(y)
        y = linen.relu(y + linen.Conv(8, (1, 1), name="short")(x))
        return linen.Dense(5, name="fc")(y.mean((1, 2)))


class LinenDecoder(linen.Module):
    @linen.compact
    def __call__(self, ids):
        y = linen.Embed(WORDS, WIDTH, name="words")(ids) + linen.Embed(
            TOKENS, WIDTH, name="places"
        )(jnp.arange(TOKENS))
        n = linen.LayerNorm(epsilon=1e-5, name="norm1")(y)
        earlier = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
        y = y + linen.MultiHeadDotProductAttention(HEADS, name="attention")(n, mask=earlier)
        n = linen.LayerNorm(epsilon=1e-5, name="norm2")(y)
        n = linen.Dense(WIDTH, name="linear2")(
            linen.gelu(linen.Dense(32, name="linear1")(n), approximate=False)
        )
        return linen.Dense(WORDS, name="head")(y + n)


class LinenPatches(linen.Module):
    def setup(self):
        self.patch = linen.Conv(WIDTH, (4, 4), strides=(4, 4), padding="VALID")
        self.token = self.param("token", linen.initializers.zeros, (1, 1, WIDTH))
        self.attention = linen.MultiHeadDotProductAttention(HEADS)
        self.head = linen.Dense(7)

    def __call__(self, x):
        y = self.patch(x).reshape(x.shape[0], -1, WIDTH)
        y = jnp.concatenate([jnp.broadcast_to(self.token, (len(y), 1, WIDTH)), y], 1)
        return self.head(self.attention(y)[:, 0])


class LinenSequence(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.RNN(linen.OptimizedLSTMCell(6))(x))


class LinenGru(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.RNN(linen.GRUCell(6))(x))


class TorchGru(TorchSequence):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(4, 6, batch_first=True)


class NnxGru(NnxSequence):
    def __init__(self, rngs, **functions):
        super().__init__(rngs)
        self.rnn = nnx.RNN(nnx.GRUCell(4, 6, rngs=rngs, **functions))


class EquinoxGru(eqx.Module):
    cell: eqx.nn.GRUCell
    fc: eqx.nn.Linear

    def __init__(self, key):
        self.cell = eqx.nn.GRUCell(4, 6, key=key)
        self.fc = eqx.nn.Linear(6, 3, key=key)

    def __call__(self, x):
        steps = jax.lax.scan(lambda h, step: (self.cell(step, h),) * 2, jnp.zeros(6), x)[1]
        return jax.vmap(self.fc)(steps)


def bound(module, shape, dtype="float32"):
    return module.bind(module.init(jax.random.key(0), jnp.zeros(shape, dtype)))


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    fc: eqx.nn.Linear

    def __init__(self, key):
        self.conv = eqx.nn.Conv2d(3, 8, 3, padding=1, key=key)
        self.norm = eqx.nn.GroupNorm(2, 8)
        self.fc = eqx.nn.Linear(8, 4, key=key)

    def __call__(self, x):
        return self.fc(jax.nn.relu(self.norm(self.conv(x))).mean((1, 2)))


class TorchTwin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(2 * TOKENS, dtype=torch.int32).reshape(2, TOKENS)
PAIRS = {
    "residual": (TorchResidual, lambda: NnxResidual(nnx.Rngs(0)), IMAGES, {}),
    "decoder": (TorchDecoder, lambda: NnxDecoder(nnx.Rngs(0)), IDS, {}),
    "patches": (TorchPatches, lambda: NnxPatches(nnx.Rngs(0)), IMAGES, {"token": "same"}),
    "sequence": (TorchSequence, lambda: NnxSequence(nnx.Rngs(0)), torch.ones(2, 5, 4), {}),
    "linen residual": (TorchResidual, lambda: bound(LinenResidual(), (1, 8, 8, 3)), IMAGES, {}),
    "linen decoder": (TorchDecoder, lambda: bound(LinenDecoder(), IDS.shape, "int32"), IDS, {}),
    "linen patches": (
        TorchPatches,
        lambda: bound(LinenPatches(), (1, 8, 8, 3)),
        IMAGES,
        {"token": "same"},
    ),
    "linen sequence": (
        TorchSequence,
        lambda: bound(LinenSequence(), (1, 5, 4)),
        torch.ones(2, 5, 4),
        {},
    ),
    "linen gru": (
        TorchGru,
        lambda: bound(LinenGru(), (1, 5, 4)),
        torch.ones(2, 5, 4),
        {},
    ),
    "equinox": (TorchTwin, lambda: EquinoxNet(jax.random.key(0)), IMAGES, {}),
    "equinox gru": (
        TorchGru,
        lambda: EquinoxGru(jax.random.key(0)),
        torch.ones(2, 5, 4),
        {},
    ),
}


@pytest.fixture(params=list(PAIRS))
def pair(request):
    make, twin, inputs, kinds = PAIRS[request.param]
    source = make().eval()
    generator = torch.Generator().manual_seed(1)
    for variable in (*source.parameters(), *source.buffers()):
        if variable.is_floating_point():
            variable.data.uniform_(0.1, 0.6, generator=generator)
    return source, twin(), inputs, kinds


def test_a_model_goes_there_and_back_and_computes_the_same(pair):
    source, twin, inputs, kinds = pair
    state = xdevice.models.convert_state(source, "jax", like=twin, inputs=inputs, kinds=kinds)
    assert state.unmapped == {}
    assert not [line for line in state.differences if "outputs" in line and "apart" in line]
    xdevice.load(state, into=twin)
    xdevice.assert_parity(source, twin, inputs=inputs)
    before = {name: value.clone() for name, value in source.state_dict().items()}
    back = xdevice.models.convert_state(twin, "torch", like=source, kinds=kinds)
    for variable in source.parameters():
        variable.data.zero_()
    xdevice.load(
        back, into=source, strict=not any("rnn" in name for name in before)
    )  # PyTorch has two biases for the one
    if not any("rnn" in name for name in before):
        xdevice.assert_parity(source.state_dict(), before)
    xdevice.assert_parity(source, twin, inputs=inputs)


def test_a_fault_in_one_layer_is_named(pair):
    source, twin, inputs, kinds = pair
    xdevice.load(xdevice.models.convert_state(source, "jax", like=twin, kinds=kinds), into=twin)
    next(value for name, value in source.named_parameters() if name.endswith("weight")).data[
        ..., 0
    ] += 0.5
    with pytest.raises(xdevice.errors.ParityError) as caught:
        xdevice.assert_parity(source, twin, inputs=inputs)
    if not isinstance(twin, eqx.Module):  # which vmap calls, and layers have no values there
        assert "the first layer that differs is" in str(caught.value)


def test_settings_that_differ_are_listed():
    source = TorchResidual()
    state = xdevice.models.convert_state(source, "jax", like=NnxResidual(nnx.Rngs(0)))
    assert not any("momentum" in line for line in state.differences)
    source.bn1.eps, source.bn2.momentum, source.conv2.stride = 1e-3, 0.5, (2, 2)
    state = xdevice.models.convert_state(source, "jax", like=NnxResidual(nnx.Rngs(0)))
    told = [
        line
        for line in state.differences
        if line.startswith(("bn", "conv")) and "batches" not in line
    ]
    assert [line.partition(" is ")[0] for line in told] == [
        "bn1: eps",
        "conv2: stride",
        "bn2: momentum",
    ]


def test_evaluation_leaves_the_mode_as_it_was():
    twin = NnxResidual(nnx.Rngs(0))
    twin.bn1.use_running_average = False
    source = TorchResidual().eval()
    xdevice.load(xdevice.models.convert_state(source, "jax", like=twin), into=twin)
    mean = np.asarray(twin.bn1.mean.value)
    xdevice.assert_parity(source, twin, inputs=IMAGES)
    assert (twin.bn1.use_running_average, twin.bn2.use_running_average) == (False, False)
    assert (np.asarray(twin.bn1.mean.value) == mean).all(), "evaluation does not train"


def test_a_wrong_state_changes_nothing():
    twin = NnxSequence(nnx.Rngs(0))
    before = np.asarray(twin.fc.kernel.value)
    values = {"fc.kernel": jnp.zeros((6, 3)), "fc.bias": jnp.zeros(4)}
    with pytest.raises(
        xdevice.errors.StateError, match=r"fc.bias: got float32 \(4,\), expected float32 \(3,\)"
    ):
        xdevice.load(values, into=twin, strict=False)
    assert (np.asarray(twin.fc.kernel.value) == before).all()


def test_calls_of_all_models_are_not_seen():
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="tracing the calls of all models"
    ):
        xdevice.backend("jax").outermost(lambda *_: None)


SPREAD = [
    (stride, size, padding, turned)
    for stride, size in ((1, 3), (2, 3), (2, 4), (3, 2))
    for padding in ("SAME", "VALID", 1)
    for turned in (False, True)
]


@pytest.mark.parametrize(("stride", "size", "padding", "turned"), SPREAD)
def test_a_transposed_convolution_computes_the_same_elsewhere(stride, size, padding, turned):
    """All but those that PyTorch does not have, whose output is cut off at the far end."""
    channels = (4, 3) if turned else (3, 4)
    twin = nnx.ConvTranspose(
        *channels[:: -1 if turned else 1], (size, size), strides=(stride, stride), padding=padding,
        transpose_kernel=turned, rngs=nnx.Rngs(0),
    )  # fmt: skip
    known = torch.nn.ConvTranspose2d(3, 4, size, stride)
    differences = xdevice.models.convert_state(twin, "torch", like=known).differences
    lines = dict(
        re.findall(
            r"conv_transpose: (padding|output_padding) is (\(.*?\)) in jax",
            "\n".join(differences),
        )
    )
    added = {name: ast.literal_eval(text) for name, text in lines.items()}
    if min(added.get("output_padding", (0,))) < 0:
        return
    net = torch.nn.ConvTranspose2d(3, 4, size, stride, **added)
    state = xdevice.models.convert_state(twin, "torch", like=net)
    assert not any("padding" in line for line in state.differences)
    xdevice.load(state, into=net)
    xdevice.assert_parity(
        twin, net, inputs=jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6, 3)))
    )


def test_a_cell_of_pytorch_is_one_of_equinox():
    source, like = torch.nn.LSTMCell(3, 4), eqx.nn.LSTMCell(3, 4, key=jax.random.key(0))
    xdevice.load(xdevice.models.convert_state(source, "jax", like=like), into=like)
    x, h = np.random.default_rng(0).random((2, 4), "float32")
    expected = source(
        torch.from_numpy(x[None, :3]), (torch.from_numpy(h[None]), torch.from_numpy(h[None]))
    )
    xdevice.assert_parity(
        like(jnp.asarray(x[:3]), (jnp.asarray(h), jnp.asarray(h)))[0],
        expected[0][0],
        check_device=False,
    )


def test_a_gru_of_nnx_has_no_bias_for_the_state():
    source, twin, x = TorchGru(), NnxGru(nnx.Rngs(0)), torch.ones(2, 5, 4)
    state = xdevice.models.convert_state(source, "jax", like=twin)
    (why,) = state.unmapped.values()
    assert "has no bias for the state" in why
    source.rnn.bias_hh_l0.data[12:] = 0
    state = xdevice.models.convert_state(source, "jax", like=twin, inputs=x)
    assert not state.unmapped
    assert not any("outputs" in line for line in state.differences)
    xdevice.load(state, into=twin)
    source.rnn.bias_hh_l0.data[:12] = 0.5
    back = xdevice.models.convert_state(twin, "torch", like=source)
    assert not back.unmapped
    xdevice.load(back, into=source)
    xdevice.assert_parity(source, twin, inputs=x)


def test_a_reversed_rnn_of_nnx_is_listed():
    model = NnxGru(nnx.Rngs(0))
    model.rnn.reverse = True
    lines = xdevice.models.convert_state(model, "torch", like=TorchGru()).differences
    assert "rnn: reverse is True in jax, None in torch" in lines


def test_a_cell_of_an_own_class_is_not_taken_for_its_base():
    class Constant(nnx.GRUCell):
        def __call__(self, carry, inputs):
            return carry, 0 * carry

    model = NnxGru(nnx.Rngs(0))
    assert [layer.path for layer in xdevice.backend("jax").layers(model)] == ["rnn", "fc"]
    model.rnn.cell = Constant(4, 6, rngs=nnx.Rngs(0))
    assert "rnn" not in [layer.path for layer in xdevice.backend("jax").layers(model)]


def test_other_functions_in_a_cell_of_nnx_are_listed():
    twin = NnxGru(nnx.Rngs(0), gate_fn=jax.nn.hard_sigmoid, activation_fn=jax.nn.relu)
    lines = xdevice.models.convert_state(twin, "torch", like=TorchGru()).differences
    assert "rnn: activation is relu in jax, None in torch" in lines
    assert "rnn: recurrent_activation is hard_sigmoid in jax, None in torch" in lines


@pytest.mark.parametrize(
    ("module", "make"), [(LinenGru(), TorchGru), (LinenSequence(), TorchSequence)]
)
def test_the_gates_of_linen_are_read_from_a_dict(module, make):
    x, like = torch.ones(2, 5, 4), make()
    variables = module.init(jax.random.key(0), jnp.asarray(x))
    bias = jax.random.normal(jax.random.key(1), (6,))
    for layer in variables["params"].values():
        for gate in layer.values():
            if "bias" in gate:
                gate["bias"] = bias
    state = xdevice.models.convert_state(variables, "torch", like=like)
    assert not state.unmapped
    assert any("joined the gates" in line for line in state.done)
    xdevice.load(state, into=like)
    xdevice.assert_parity(like, module.bind(variables), inputs=x)


class Own(nnx.Variable):
    pass


class Parts(nnx.Module):
    """Arrays in every place in which nnx keeps them."""

    def __init__(self, rngs):
        self.layers = nnx.Sequential(
            nnx.Linear(2, 3, rngs=rngs), nnx.relu, nnx.Dropout(0.5, rngs=rngs)
        )
        self.several = nnx.List([nnx.Linear(3, 2, rngs=rngs), nnx.Param(jnp.ones(2))])
        self.own, self._hidden, self.array = (
            Own(jnp.ones(3)),
            nnx.Param(jnp.ones(4)),
            jnp.ones(5),
        )
        self.count = nnx.Variable(0)


class Fields(eqx.Module):
    several: list
    named: dict
    pair: tuple
    _hidden: jax.Array


def test_no_array_of_a_module_is_left_out():
    net = torch.nn.Linear(1, 1)
    state = xdevice.models.convert_state(
        Parts(nnx.Rngs(0)), "torch", like=net, skip=["weight", "bias"]
    )
    layers = {
        f"{path}.{name}"
        for path in ("layers.layers.0", "several.0")
        for name in ("kernel", "bias")
    }
    assert state.unmapped.keys() == layers | {"several.1", "own", "_hidden", "array", "count"}
    fields = Fields([jnp.ones(2)], {"a": jnp.ones(3)}, (jnp.ones(4), jnp.ones(5)), jnp.ones(6))
    state = xdevice.models.convert_state(fields, "torch", like=net, skip=["weight", "bias"])
    assert state.unmapped.keys() == {"several.0", "named.a", "pair.0", "pair.1", "_hidden"}


def test_an_array_in_any_place_is_written():
    target, source = Parts(nnx.Rngs(0)), Parts(nnx.Rngs(1))
    source.own.value = source.own.value * 3
    source.array = source.array * 3
    xdevice.load(xdevice.models.convert_state(source, "jax", like=target), into=target)
    xdevice.assert_parity(target, source)
    assert float(target.own.value[0]) == float(target.array[0]) == 3
    fields = Fields([jnp.ones(2)], {"a": jnp.ones(3)}, (jnp.ones(4), jnp.ones(5)), jnp.ones(6))
    zeros = jax.tree.map(jnp.zeros_like, fields)
    xdevice.load(xdevice.models.convert_state(zeros, "jax", like=fields), into=fields)
    assert not any(x.any() for x in jax.tree.leaves(fields))


class Pair(eqx.Module):
    one: eqx.nn.Linear
    several: list


def test_a_module_is_saved_and_loaded_back(tmp_path):
    nets = [Parts(nnx.Rngs(seed)) for seed in (0, 1)]
    pairs = [
        Pair(eqx.nn.Linear(2, 3, key=jax.random.key(seed)), [jnp.full(2, float(seed))])
        for seed in (0, 1)
    ]
    xdevice.save(tmp_path / "x", {"net": nets[0], "pair": [pairs[0]], "x": jnp.ones(2)})
    assert "net.layers.layers.0.kernel" in xdevice.load(tmp_path / "x", backend="numpy")
    xdevice.load(
        tmp_path / "x", into={"net": nets[1], "pair": [pairs[1]], "x": np.zeros(2, "float32")}
    )
    xdevice.assert_parity(nets[1], nets[0])
    assert all(
        (one == two).all() for one, two in zip(*map(jax.tree.leaves, pairs), strict=True)
    )
    xdevice.save(tmp_path / "x", nets[0])
    other = Parts(nnx.Rngs(2))
    xdevice.load(xdevice.models.convert_state(tmp_path / "x", "jax", like=other), into=other)
    xdevice.assert_parity(other, nets[0])


def test_what_nnx_computes_with_beside_its_weights_is_listed():
    net = torch.nn.Linear(3, 3)
    half = nnx.Linear(3, 3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    lines = xdevice.models.convert_state(net, "jax", like=half).differences
    assert "linear: compute_dtype is None in torch, bfloat16 in jax" in lines
    masked = nnx.Conv(3, 3, (1,), mask=jnp.zeros((1, 3, 3)), rngs=nnx.Rngs(0))
    assert any(
        "mask" in line
        for line in xdevice.models.convert_state(
            torch.nn.Conv1d(3, 3, 1), "jax", like=masked
        ).differences
    )


class LinenTwin(linen.Module):
    @linen.compact
    def __call__(self, x):
        y = linen.BatchNorm(use_running_average=True)(linen.Conv(8, (3, 3))(x))
        return linen.Dense(5)(linen.relu(y).mean((1, 2)))


@pytest.mark.parametrize("library", ["nnx", "linen"])
@pytest.mark.parametrize("name", ["keras", "paddle"])
def test_keras_and_paddle_too(name, library):
    class NnxTwin(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
            self.bn = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
            self.fc = nnx.Linear(8, 5, rngs=rngs)

        def __call__(self, x):
            return self.fc(nnx.relu(self.bn(self.conv(x))).mean((1, 2)))

    if name == "keras":
        keras = pytest.importorskip("keras")
        layers = keras.layers
        model = keras.Sequential([
            keras.Input((8, 8, 3)), layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(momentum=0.9, epsilon=1e-5), layers.ReLU(), layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ])  # fmt: skip
        inputs = IMAGES.permute(0, 2, 3, 1)
    else:
        net = pytest.importorskip("paddle").nn
        model = net.Sequential(
            net.Conv2D(3, 8, 3, padding=1), net.BatchNorm2D(8, momentum=0.9), net.ReLU(), net.AdaptiveAvgPool2D(1),
            net.Flatten(), net.Linear(8, 5),
        )  # fmt: skip
        model.eval()
        inputs = IMAGES
    twin, other = (
        NnxTwin() if library == "nnx" else bound(LinenTwin(), (1, 8, 8, 3)) for _ in range(2)
    )
    xdevice.load(
        xdevice.models.convert_state(model, "jax", like=twin, inputs=inputs), into=twin
    )
    xdevice.assert_parity(model, twin, inputs=inputs)
    if library == "nnx":
        other.fc.kernel.value = other.fc.kernel.value + 1.0
    else:
        other.variables["params"]["Dense_0"]["kernel"] += 1.0
    back = xdevice.models.convert_state(
        other, "tensorflow" if name == "keras" else name, like=model
    )
    xdevice.load(back, into=model)
    xdevice.assert_parity(other, model, inputs=IMAGES.permute(0, 2, 3, 1))


# linen


def test_the_dict_that_was_bound_is_written():
    module, ids = LinenDecoder(), jnp.asarray(IDS.numpy())
    variables = module.init(jax.random.key(0), ids)
    source = TorchDecoder()
    xdevice.load(
        xdevice.models.convert_state(source, "jax", like=module.bind(variables)),
        into=module.bind(variables),
    )
    xdevice.assert_parity(module.apply(variables, ids), source(IDS), check_device=False)


def test_what_linen_does_not_tell_is_listed():
    state = xdevice.models.convert_state(
        TorchResidual(), "jax", like=bound(LinenResidual(), (1, 8, 8, 3))
    )
    assert any(
        "computation and settings of conv1, bn1, conv2, bn2, short, fc" in line
        for line in state.differences
    )


class LinenUnknown(linen.Module):
    @linen.compact
    def __call__(self, x):
        table = self.variable("tables", "scale", jnp.ones, (3,))
        return linen.RNN(linen.GRUCell(3))(linen.ConvTranspose(4, (3,))(x)) * table.value


def test_what_is_not_known_is_not_taken_for_linear_layers_and_convolutions():
    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.gru = torch.nn.Conv1d(4, 4, 3), torch.nn.GRU(4, 3)

    state = xdevice.models.convert_state(Twin(), "jax", like=bound(LinenUnknown(), (1, 5, 4)))
    unknown = [
        name
        for name, why in state.unmapped.items()
        if why.startswith("it belongs to no layer that xdevice knows")
    ]
    assert unknown == ["tables.scale"]
    assert not any("ConvTranspose" in name for name in state)


class LinenNamed(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.GroupNorm(2, name="norm1")(linen.ConvTranspose(4, (3, 3), name="up")(x))


@pytest.mark.parametrize(
    "told", [{}, {"kinds": {"up": "conv_transpose", "norm1": "group_norm"}}]
)
def test_a_name_of_linen_that_misleads_is_told_by_the_other_model_or_by_kinds(told):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm1 = (
                torch.nn.ConvTranspose2d(2, 4, 3, padding=1),
                torch.nn.GroupNorm(2, 4, eps=1e-6),
            )

        def forward(self, x):
            return self.norm1(self.up(x))

    twin, net = bound(LinenNamed(), (1, 4, 4, 2)), Named()
    state = xdevice.models.convert_state(twin, "torch", like=net, **told)
    assert any("computation and settings of up, norm1" in line for line in state.differences)
    xdevice.load(state, into=net)
    xdevice.assert_parity(
        twin, net, inputs=jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6, 2)))
    )


def test_a_module_without_variables_is_refused():
    with pytest.raises(xdevice.errors.NotBuiltError, match=r"pass module\.bind\(variables\)"):
        xdevice.models.convert_state(TorchResidual(), "jax", like=LinenResidual())


def test_frozen_variables_are_read_and_not_written():
    module, source = LinenSequence(), TorchSequence()
    frozen = module.bind(freeze(module.init(jax.random.key(0), jnp.ones((1, 5, 4)))))
    state = xdevice.models.convert_state(source, "jax", like=frozen)
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"bind the module to flax\.core\.unfreeze\(variables\)",
    ):
        xdevice.load(state, into=frozen)


@pytest.mark.parametrize(
    "model",
    ["nnx.Linear(3, 2, rngs=nnx.Rngs(0))", "eqx.nn.Linear(3, 2, key=jax.random.key(0))"],
)
def test_a_module_may_be_the_first_that_a_process_shows(model):
    run = (
        "import equinox as eqx, jax, xdevice; from flax import nnx; "
        f"print(*xdevice.models.convert_state({model}, 'numpy'))"
    )
    assert printed("-c", run, bare=True) == "weight bias"
