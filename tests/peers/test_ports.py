"""Models of transformers, with random weights, written again for Paddle and Keras from ordinary layers: one output."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import xdevice

torch = xdevice.backend("torch").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

IDS = np.array([[3, 7, 1, 9, 4], [2, 2, 8, 5, 6]])
LAYERS, WIDTH, HEADS, INNER = 2, 8, 2, 16


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, initializer_range=0.5,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def apart(came, expected):
    assert np.abs(expected).max() > 0.1
    return np.abs(came - expected).max() / max(1, np.abs(expected).max())


# Paddle


def paddle_bert():
    paddle = xdevice.backend("paddle").framework
    nn = paddle.nn

    class Bert(nn.Layer):
        def __init__(self):
            super().__init__()
            self.word, self.position, self.kind = (
                nn.Embedding(20, WIDTH),
                nn.Embedding(16, WIDTH),
                nn.Embedding(2, WIDTH),
            )
            self.norm = nn.LayerNorm(WIDTH, epsilon=1e-12)
            block = nn.TransformerEncoderLayer(
                WIDTH, HEADS, INNER, activation="gelu", layer_norm_eps=1e-12
            )
            self.encoder = nn.TransformerEncoder(block, LAYERS)
            self.pooler = nn.Linear(WIDTH, WIDTH)

        def forward(self, ids):
            places = paddle.arange(ids.shape[1])
            x = self.word(ids) + self.position(places) + self.kind(paddle.zeros_like(ids))
            x = self.encoder(self.norm(x))
            return x, paddle.tanh(self.pooler(x[:, 0]))

    return Bert()


def paddle_gpt2():
    paddle = xdevice.backend("paddle").framework
    nn, functional = paddle.nn, paddle.nn.functional

    class Block(nn.Layer):
        def __init__(self):
            super().__init__()
            self.ln_1, self.c_attn, self.attn_proj = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 3 * WIDTH),
                nn.Linear(WIDTH, WIDTH),
            )
            self.ln_2, self.c_fc, self.mlp_proj = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.Linear(4 * WIDTH, WIDTH),
            )

        def forward(self, x):
            batch, time, _ = x.shape
            q, k, v = (
                part.reshape([batch, time, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])
                for part in self.c_attn(self.ln_1(x)).split(3, -1)
            )
            scores = q @ k.transpose([0, 1, 3, 2]) / (WIDTH // HEADS) ** 0.5
            scores = scores + paddle.triu(paddle.full([time, time], -1e9), 1)
            y = (
                (functional.softmax(scores, -1) @ v)
                .transpose([0, 2, 1, 3])
                .reshape([batch, time, WIDTH])
            )
            x = x + self.attn_proj(y)
            return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate=True))

    class Gpt2(nn.Layer):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(20, WIDTH), nn.Embedding(16, WIDTH)
            self.h = nn.LayerList([Block() for _ in range(LAYERS)])
            self.ln_f = nn.LayerNorm(WIDTH)

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(paddle.arange(ids.shape[1]))
            for block in self.h:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.T

    return Gpt2()


# Keras


def keras_bert():
    keras = xdevice.backend("tensorflow").framework.keras
    kl = keras.layers
    ids = keras.Input((5,), dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(ids), 1) - 1
    word, position, kind = (
        kl.Embedding(20, WIDTH),
        kl.Embedding(16, WIDTH),
        kl.Embedding(2, WIDTH),
    )
    x = word(ids) + position(places) + kind(keras.ops.zeros_like(ids))
    x = kl.LayerNormalization(epsilon=1e-12)(x)
    for number in range(LAYERS):
        y = kl.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"attention_of_{number}")(x, x)
        x = kl.LayerNormalization(epsilon=1e-12)(x + y)
        y = kl.Dense(WIDTH)(kl.Dense(INNER, activation="gelu")(x))
        x = kl.LayerNormalization(epsilon=1e-12)(x + y)
    return keras.Model(ids, [x, kl.Dense(WIDTH, activation="tanh")(x[:, 0])])


def keras_gpt2():
    keras = xdevice.backend("tensorflow").framework.keras
    kl, ops = keras.layers, keras.ops

    class Attention(kl.Layer):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = kl.Dense(3 * WIDTH), kl.Dense(WIDTH)

        def call(self, x):
            split = [
                ops.reshape(part, (-1, 5, HEADS, WIDTH // HEADS))
                for part in ops.split(self.c_attn(x), 3, -1)
            ]
            return self.c_proj(
                ops.reshape(ops.dot_product_attention(*split, is_causal=True), (-1, 5, WIDTH))
            )

    class Gpt2(keras.Model):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = kl.Embedding(20, WIDTH), kl.Embedding(16, WIDTH)
            self.h = [
                [kl.LayerNormalization(epsilon=1e-5), Attention(), kl.LayerNormalization(epsilon=1e-5),
                 kl.Dense(4 * WIDTH, activation=lambda x: keras.activations.gelu(x, approximate=True)), kl.Dense(WIDTH)]
                for _ in range(LAYERS)
            ]  # fmt: skip
            self.ln_f = kl.LayerNormalization(epsilon=1e-5)

        def call(self, ids):
            x = self.wte(ids) + self.wpe(ops.arange(5))
            for first, attend, second, wide, narrow in self.h:
                x = x + attend(first(x))
                x = x + narrow(wide(second(x)))
            return ops.matmul(self.ln_f(x), ops.transpose(self.wte.embeddings))

    model = Gpt2()
    model(IDS)
    return model


# one output


def in_torch(model):
    with torch.no_grad():
        found = model(input_ids=torch.tensor(IDS))
    if "logits" in found:
        return [found.logits.numpy()]
    return [found.last_hidden_state.numpy(), found.pooler_output.numpy()]


def elsewhere(name, model):
    if name == "paddle":
        model.eval()
        found = model(xdevice.backend(name).framework.to_tensor(IDS))
    else:
        found = model(IDS, training=False)
    return [one.numpy() for one in (found if isinstance(found, list | tuple) else [found])]


PORTS = pytest.mark.parametrize(
    ("make", "there", "like", "settings"),
    [
        (bert, "paddle", paddle_bert, {"padding_idx", "activation"}),
        (bert, "tensorflow", keras_bert, {"padding_idx", "activation"}),
        (gpt2, "paddle", paddle_gpt2, set()),
        (gpt2, "tensorflow", keras_gpt2, {"activation"}),
    ],
)


@PORTS
def test_a_model_computes_the_same_elsewhere_and_back(make, there, like, settings):
    source, target = make(), like()
    state = xdevice.models.convert_state(source, there, like=target)
    assert not state.unmapped
    heads = [text for text in state.differences if "heads, scale and masks of" in text]
    assert len(heads) == (make is bert)
    beside_nothing = [
        text
        for text in state.differences
        if text.startswith("not compared: ") and text not in heads
    ]
    # no dropout is a layer of a port, but in Paddle's blocks, which are one layer; transformers' GELUs are its own
    alone = "GELUActivation" if make is bert else "NewGELUActivation"
    alone += ", 1 tanh" if like is paddle_bert else ""  # which calls it as a function
    # buffers that its state leaves out
    buffers = (
        "1 tensor position_ids (in no state), 1 tensor token_type_ids (in no state), "
        if make is bert
        else ""
    )
    told = f"not compared: {buffers}7 dropout, 2 {alone} of torch"
    assert [text.partition(", which")[0] for text in beside_nothing] == [told]
    settled = [text for text in state.differences if text not in (*heads, *beside_nothing)]
    assert {text.partition(": ")[2].partition(" is")[0] for text in settled} == settings
    xdevice.load(state, into=target)
    expected = in_torch(source)
    for came, wanted in zip(elsewhere(there, target), expected, strict=True):
        assert apart(came, wanted) < 2e-6
    # whose port trains the row of the padding too
    padding = "padding_idx is" if make is bert else ""
    for pair in ((source, target), (target, source)):
        with pytest.raises(
            xdevice.errors.ParityError,
            match=rf"(?s)the parameters agree, .*{padding}.*not compared: .*7 dropout",
        ):
            xdevice.assert_parity(*pair)
    xdevice.assert_parity(state, target)

    again = make()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.fill_(0.5)
    xdevice.load(xdevice.models.convert_state(target, "torch", like=again), into=again)
    for came, wanted in zip(in_torch(again), expected, strict=True):
        assert (came == wanted).all()


def test_its_conv1d_is_a_linear_with_its_weight_transposed():
    source = transformers.pytorch_utils.Conv1D(3, 2)
    state = xdevice.models.convert_state(source, "numpy")
    assert (state["weight"] == source.weight.detach().numpy().T).all()
    assert [layer.kind for layer in xdevice.backend("torch").layers(source)] == ["linear"]
