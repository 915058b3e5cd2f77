"""The architectures of benchmarks/families.py as one writes them oneself, in PyTorch, Paddle and Keras: with names, an
order of definition and a division into layers of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

WIDTH, HEADS, DEPTH, CLASSES, WORDS, LENGTH = 32, 4, 2, 10, 50, 12
EACH = WIDTH // HEADS


class Ops:
    """What PyTorch and Paddle spell differently."""

    def __init__(self, library: str) -> None:
        self.is_torch = library != "paddle"
        if self.is_torch:
            import torch as lib
        else:
            import paddle as lib
        self.lib, self.nn, self.F = lib, lib.nn, lib.nn.functional
        self.Base = lib.nn.Module if self.is_torch else lib.nn.Layer

    def swap(self, x: Any, *order: int) -> Any:
        return x.permute(*order) if self.is_torch else x.transpose(order)

    def linear(self, into: int, out: int, bias: bool = True) -> Any:
        return (
            self.nn.Linear(into, out, bias=bias)
            if self.is_torch
            else self.nn.Linear(into, out, bias_attr=bias)
        )

    def norm(self, width: int, eps: float) -> Any:
        return (
            self.nn.LayerNorm(width, eps)
            if self.is_torch
            else self.nn.LayerNorm(width, epsilon=eps)
        )

    def parameter(self, owner: Any, *shape: int) -> Any:
        if self.is_torch:
            return self.nn.Parameter(self.lib.ones(shape))
        return owner.create_parameter(
            shape, default_initializer=self.nn.initializer.Constant(1.0)
        )

    def conv(self, into: int, out: int, size: int) -> Any:
        return (self.nn.Conv2d if self.is_torch else self.nn.Conv2D)(
            into, out, size, stride=size
        )

    def gelu(self, x: Any, tanh: bool) -> Any:
        return self.F.gelu(
            x, approximate=("tanh" if tanh else "none") if self.is_torch else tanh
        )

    def cat(self, xs: list[Any], axis: int) -> Any:
        return self.lib.cat(xs, axis) if self.is_torch else self.lib.concat(xs, axis)

    def heads(self, x: Any, count: int = HEADS) -> Any:
        """(batch, time, width) as (batch, head, time, width of a head)."""
        return self.swap(x.reshape((x.shape[0], x.shape[1], count, -1)), 0, 2, 1, 3)

    def attend(self, q: Any, k: Any, v: Any, scale: float, mask: Any = None) -> Any:
        scores = self.lib.matmul(q, self.swap(k, 0, 1, 3, 2)) * scale
        if mask is not None:
            scores = scores + mask
        found = self.swap(self.lib.matmul(self.F.softmax(scores, -1), v), 0, 2, 1, 3)
        return found.reshape((found.shape[0], found.shape[1], -1))

    def constant(self, array: Any) -> Any:
        return self.lib.tensor(array) if self.is_torch else self.lib.to_tensor(array)


def causal() -> Any:
    return np.triu(np.full((LENGTH, LENGTH), -1e9, "float32"), 1)


def rotations() -> tuple[Any, Any]:
    angles = np.outer(np.arange(LENGTH), 10000.0 ** (-np.arange(0, EACH, 2) / EACH)).astype(
        "float32"
    )
    both = np.concatenate([angles, angles], -1)
    return np.cos(both), np.sin(both)


def buckets() -> Any:
    """T5's: 8 of them, both ways, up to a distance of 16."""
    away = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    found = (away > 0) * 4
    size = np.abs(away)
    far = 2 + (np.log(np.maximum(size, 1) / 2) / math.log(16 / 2) * 2).astype("int64")
    return found + np.where(size < 2, size, np.minimum(far, 3))


# vision


def vit(library: str) -> Any:
    return _keras_vit() if library == "keras" else _vit(Ops(library))


def _vit(ops: Ops) -> Any:
    """PyTorch's with three layers for query, key and value, Paddle's with one."""

    class Attention(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            if ops.is_torch:
                self.to_q, self.to_k, self.to_v = (ops.linear(WIDTH, WIDTH) for _ in range(3))
            else:
                self.qkv = ops.linear(WIDTH, 3 * WIDTH)
            self.to_out = ops.linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            if ops.is_torch:
                q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
            else:
                q, k, v = self.qkv(x).chunk(3, axis=-1)
            return self.to_out(ops.attend(ops.heads(q), ops.heads(k), ops.heads(v), EACH**-0.5))

    class Block(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.pre_attention, self.pre_mlp = ops.norm(WIDTH, 1e-6), ops.norm(WIDTH, 1e-6)
            self.attention = Attention()
            self.up, self.down = ops.linear(WIDTH, 2 * WIDTH), ops.linear(2 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.pre_attention(x))
            return x + self.down(ops.gelu(self.up(self.pre_mlp(x)), False))

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.cls, self.positions = (
                ops.parameter(self, 1, 1, WIDTH),
                ops.parameter(self, 1, 17, WIDTH),
            )
            self.patches = ops.conv(3, WIDTH, 8)
            self.blocks = (ops.nn.ModuleList if ops.is_torch else ops.nn.LayerList)(
                [Block() for _ in range(DEPTH)]
            )
            self.norm = ops.norm(WIDTH, 1e-6)
            self.head = ops.linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            x = ops.swap(self.patches(x).flatten(2), 0, 2, 1)
            x = ops.cat([self.cls.expand((x.shape[0], 1, WIDTH)), x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    return Model()


def _keras_vit() -> Any:
    import keras

    kl = keras.layers

    class Tokens(kl.Layer):
        def build(self, shape: Any) -> None:
            self.cls = self.add_weight(shape=(1, 1, WIDTH), name="cls")
            self.positions = self.add_weight(shape=(1, 17, WIDTH), name="positions")

        def call(self, x: Any) -> Any:
            first = keras.ops.broadcast_to(self.cls, (keras.ops.shape(x)[0], 1, WIDTH))
            return keras.ops.concatenate([first, x], 1) + self.positions

    image = keras.Input((32, 32, 3))
    x = kl.Conv2D(WIDTH, 8, strides=8, name="patches")(image)
    x = Tokens(name="tokens")(kl.Reshape((16, WIDTH))(x))
    for number in range(DEPTH):
        y = kl.LayerNormalization(epsilon=1e-6, name=f"block{number}_norm1")(x)
        x = kl.Add()(
            [x, kl.MultiHeadAttention(HEADS, EACH, name=f"block{number}_attention")(y, y)]
        )
        y = kl.LayerNormalization(epsilon=1e-6, name=f"block{number}_norm2")(x)
        y = kl.Dense(2 * WIDTH, activation="gelu", name=f"block{number}_dense1")(y)
        x = kl.Add()([x, kl.Dense(WIDTH, name=f"block{number}_dense2")(y)])
    x = kl.LayerNormalization(epsilon=1e-6, name="norm")(x)
    return keras.Model(image, kl.Dense(CLASSES, name="head")(x[:, 0]))


# text


def bert(library: str, segments: int = 1) -> Any:
    return _keras_bert(segments) if library == "keras" else _bert(Ops(library), segments)


def _bert(ops: Ops, segments: int) -> Any:
    """By the frameworks' own encoders."""

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = (
                ops.nn.Embedding(WORDS, WIDTH),
                ops.nn.Embedding(LENGTH, WIDTH),
            )
            if segments:
                self.segments = ops.nn.Embedding(segments, WIDTH)
            self.norm = ops.norm(WIDTH, 1e-12)
            own = {"batch_first": True, "layer_norm_eps": 1e-12} if ops.is_torch else {}
            layer = ops.nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, activation="gelu", dropout=0.1, **own
            )
            extra = {"enable_nested_tensor": False} if ops.is_torch else {}
            self.encoder = ops.nn.TransformerEncoder(layer, DEPTH, **extra)

        def forward(self, words: Any) -> Any:
            places = ops.constant(np.arange(LENGTH)[None])
            x = self.tokens(words) + self.positions(places)
            return self.encoder(
                self.norm(x + self.segments(ops.lib.zeros_like(words)) if segments else x)
            )

    return Model()


def _keras_bert(segments: int) -> Any:
    import keras

    kl = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    x = kl.Embedding(WORDS, WIDTH, name="tokens")(words)
    x = x + kl.Embedding(LENGTH, WIDTH, name="positions")(
        keras.ops.arange(LENGTH)[None] + 0 * words
    )
    if segments:
        x = x + kl.Embedding(segments, WIDTH, name="segments")(0 * words)
    x = kl.LayerNormalization(epsilon=1e-12, name="norm")(x)
    for number in range(DEPTH):
        y = kl.MultiHeadAttention(HEADS, EACH, name=f"attention_{number}")(x, x)
        x = kl.LayerNormalization(epsilon=1e-12, name=f"norm1_{number}")(x + y)
        y = kl.Dense(WIDTH, name=f"down_{number}")(
            kl.Dense(2 * WIDTH, activation="gelu", name=f"up_{number}")(x)
        )
        x = kl.LayerNormalization(epsilon=1e-12, name=f"norm2_{number}")(x + y)
    return keras.Model(words, x)


def gpt2(library: str) -> Any:
    return (
        _keras_gpt2()
        if library == "keras"
        else _gpt2(Ops(library), is_split=library == "torch")
    )


def _gpt2(ops: Ops, is_split: bool) -> Any:
    class Attention(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            if is_split:
                self.key, self.query, self.value = (ops.linear(WIDTH, WIDTH) for _ in range(3))
            else:
                self.c_attn = ops.linear(WIDTH, 3 * WIDTH)
            self.c_proj = ops.linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            if is_split:
                q, k, v = self.query(x), self.key(x), self.value(x)
            else:
                q, k, v = self.c_attn(x).chunk(3, -1)
            mask = ops.constant(causal())
            return self.c_proj(
                ops.attend(ops.heads(q), ops.heads(k), ops.heads(v), EACH**-0.5, mask)
            )

    class Block(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = ops.norm(WIDTH, 1e-5), ops.norm(WIDTH, 1e-5)
            self.attn = Attention()
            self.up, self.down = ops.linear(WIDTH, 4 * WIDTH), ops.linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln1(x))
            return x + self.down(ops.gelu(self.up(self.ln2(x)), True))

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.tok_emb, self.pos_emb = (
                ops.nn.Embedding(WORDS, WIDTH),
                ops.parameter(self, 1, LENGTH, WIDTH),
            )
            self.blocks = ops.nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.ln_f = ops.norm(WIDTH, 1e-5)

        def forward(self, words: Any) -> Any:
            x = self.ln_f(self.blocks(self.tok_emb(words) + self.pos_emb))
            return ops.lib.matmul(x, ops.swap(self.tok_emb.weight, 1, 0))

    return Model()


def _keras_gpt2() -> Any:
    import keras

    kl = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    table = kl.Embedding(WORDS, WIDTH, name="wte")
    x = table(words) + kl.Embedding(LENGTH, WIDTH, name="wpe")(
        keras.ops.arange(LENGTH)[None] + 0 * words
    )
    for number in range(DEPTH):
        y = kl.LayerNormalization(epsilon=1e-5, name=f"h{number}_ln1")(x)
        x = x + kl.MultiHeadAttention(HEADS, EACH, name=f"h{number}_attn")(
            y, y, use_causal_mask=True
        )
        y = kl.LayerNormalization(epsilon=1e-5, name=f"h{number}_ln2")(x)
        y = kl.Dense(4 * WIDTH, name=f"h{number}_up")(y)
        x = x + kl.Dense(WIDTH, name=f"h{number}_down")(keras.ops.gelu(y, approximate=True))
    x = kl.LayerNormalization(epsilon=1e-5, name="ln_f")(x)

    class Logits(kl.Layer):
        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, keras.ops.transpose(table.embeddings))

    return keras.Model(words, Logits(name="logits")(x))


def _rms(ops: Ops, eps: float) -> Any:
    class RMSNorm(ops.Base):
        def __init__(self, width: int = WIDTH) -> None:
            super().__init__()
            self.weight = ops.parameter(self, width)

        def forward(self, x: Any) -> Any:
            return x * ops.lib.rsqrt((x * x).mean(-1, keepdim=True) + eps) * self.weight

    return RMSNorm


def llama(library: str, bias: bool = False) -> Any:
    """`bias`: of query, key and value."""
    return _keras_llama(bias) if library == "keras" else _llama(Ops(library), bias)


def _turned(x: Any, cos: Any, sin: Any, cat: Any) -> Any:
    half = EACH // 2
    return x * cos + cat([-x[..., half:], x[..., :half]], -1) * sin


def _llama(ops: Ops, bias: bool) -> Any:
    norm = _rms(ops, 1e-6)

    class Block(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk = ops.linear(WIDTH, WIDTH, bias), ops.linear(WIDTH, 2 * EACH, bias)
            self.wv, self.wo = (
                ops.linear(WIDTH, 2 * EACH, bias),
                ops.linear(WIDTH, WIDTH, False),
            )
            self.w1, self.w2 = (
                ops.linear(WIDTH, 2 * WIDTH, False),
                ops.linear(2 * WIDTH, WIDTH, False),
            )
            self.w3 = ops.linear(WIDTH, 2 * WIDTH, False)
            self.attention_norm, self.ffn_norm = norm(), norm()

        def forward(self, x: Any) -> Any:
            y = self.attention_norm(x)
            cos, sin = (ops.constant(array) for array in rotations())
            q, k, v = ops.heads(self.wq(y)), ops.heads(self.wk(y), 2), ops.heads(self.wv(y), 2)
            q, k = (_turned(one, cos, sin, ops.cat) for one in (q, k))
            k, v = (one.repeat_interleave(2, 1) for one in (k, v))
            x = x + self.wo(ops.attend(q, k, v, EACH**-0.5, ops.constant(causal())))
            y = self.ffn_norm(x)
            return x + self.w2(ops.F.silu(self.w1(y)) * self.w3(y))

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.tok_embeddings = ops.nn.Embedding(WORDS, WIDTH)
            self.layers = ops.nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = norm()
            self.output = ops.linear(WIDTH, WORDS, False)

        def forward(self, words: Any) -> Any:
            return self.output(self.norm(self.layers(self.tok_embeddings(words))))

    return Model()


def _keras_llama(bias: bool) -> Any:
    import keras

    kl, xp = keras.layers, keras.ops
    words = keras.Input((LENGTH,), dtype="int32")
    cos, sin = rotations()

    def dense(x: Any, width: int, name: str) -> Any:
        return kl.Dense(width, use_bias=bias and name[0] in "qkv", name=name)(x)

    def heads(x: Any, count: int) -> Any:
        return xp.transpose(xp.reshape(x, (-1, LENGTH, count, EACH)), (0, 2, 1, 3))

    x = kl.Embedding(WORDS, WIDTH, name="embedding")(words)
    for number in range(DEPTH):
        y = kl.RMSNormalization(epsilon=1e-6, name=f"norm_a_{number}")(x)
        q, k = (
            heads(dense(y, WIDTH, f"q_{number}"), HEADS),
            heads(dense(y, 2 * EACH, f"k_{number}"), 2),
        )
        v = heads(dense(y, 2 * EACH, f"v_{number}"), 2)
        q, k = (_turned(one, cos, sin, xp.concatenate) for one in (q, k))
        k, v = (xp.repeat(one, 2, axis=1) for one in (k, v))
        scores = xp.softmax(xp.matmul(q, xp.transpose(k, (0, 1, 3, 2))) * EACH**-0.5 + causal())
        y = xp.reshape(xp.transpose(xp.matmul(scores, v), (0, 2, 1, 3)), (-1, LENGTH, WIDTH))
        x = x + dense(y, WIDTH, f"o_{number}")
        y = kl.RMSNormalization(epsilon=1e-6, name=f"norm_m_{number}")(x)
        gate = dense(y, 2 * WIDTH, f"gate_{number}")
        x = x + dense(
            xp.silu(gate) * dense(y, 2 * WIDTH, f"up_{number}"), WIDTH, f"down_{number}"
        )
    x = kl.RMSNormalization(epsilon=1e-6, name="norm")(x)
    return keras.Model(words, dense(x, WORDS, "head"))


def t5(library: str) -> Any:
    return _keras_t5() if library == "keras" else _t5(Ops(library))


def _t5(ops: Ops) -> Any:
    norm = _rms(ops, 1e-6)

    class Block(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (ops.linear(WIDTH, WIDTH, False) for _ in range(4))
            self.wi, self.wo = (
                ops.linear(WIDTH, 2 * WIDTH, False),
                ops.linear(2 * WIDTH, WIDTH, False),
            )
            self.norm1, self.norm2 = norm(), norm()

        def forward(self, x: Any, bias: Any) -> Any:
            y = self.norm1(x)
            x = x + self.o(
                ops.attend(
                    ops.heads(self.q(y)), ops.heads(self.k(y)), ops.heads(self.v(y)), 1.0, bias
                )
            )
            return x + self.wo(ops.F.relu(self.wi(self.norm2(x))))

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.relative = (
                ops.nn.Embedding(WORDS, WIDTH),
                ops.nn.Embedding(8, HEADS),
            )
            self.blocks = (ops.nn.ModuleList if ops.is_torch else ops.nn.LayerList)(
                [Block() for _ in range(DEPTH)]
            )
            self.norm = norm()

        def forward(self, words: Any) -> Any:
            x = self.shared(words)
            bias = ops.swap(self.relative(ops.constant(buckets())), 2, 0, 1)
            for block in self.blocks:
                x = block(x, bias)
            return self.norm(x)

    return Model()


def _keras_t5() -> Any:
    import keras

    kl, xp = keras.layers, keras.ops
    words = keras.Input((LENGTH,), dtype="int32")

    class Relative(kl.Layer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.table = kl.Embedding(8, HEADS, name="table")

        def build(self, shape: Any) -> None:
            self.table.build((LENGTH, LENGTH))

        def call(self, words: Any) -> Any:
            return xp.transpose(self.table(xp.convert_to_tensor(buckets())), (2, 0, 1))

    def heads(x: Any) -> Any:
        return xp.transpose(xp.reshape(x, (-1, LENGTH, HEADS, EACH)), (0, 2, 1, 3))

    x = kl.Embedding(WORDS, WIDTH, name="shared")(words)
    bias = Relative(name="relative")(words)
    for number in range(DEPTH):
        y = kl.RMSNormalization(epsilon=1e-6, name=f"norm_a_{number}")(x)
        q, k, v = (
            heads(kl.Dense(WIDTH, use_bias=False, name=f"{name}_{number}")(y)) for name in "qkv"
        )
        scores = xp.softmax(xp.matmul(q, xp.transpose(k, (0, 1, 3, 2))) + bias)
        y = xp.reshape(xp.transpose(xp.matmul(scores, v), (0, 2, 1, 3)), (-1, LENGTH, WIDTH))
        x = x + kl.Dense(WIDTH, use_bias=False, name=f"o_{number}")(y)
        y = kl.RMSNormalization(epsilon=1e-6, name=f"norm_m_{number}")(x)
        y = kl.Dense(2 * WIDTH, use_bias=False, activation="relu", name=f"up_{number}")(y)
        x = x + kl.Dense(WIDTH, use_bias=False, name=f"down_{number}")(y)
    return keras.Model(words, kl.RMSNormalization(epsilon=1e-6, name="norm")(x))


def bart(library: str) -> Any:
    """An encoder and a decoder, by the framework's own layers, which read the same words."""
    ops = Ops(library)
    nn = ops.nn

    def layer(name: str) -> Any:
        own = {"batch_first": True} if ops.is_torch else {}
        return getattr(nn, f"Transformer{name}Layer")(
            WIDTH, HEADS, 2 * WIDTH, activation="gelu", **own
        )

    class Model(ops.Base):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Embedding(WORDS, WIDTH)
            extra = {"enable_nested_tensor": False} if ops.is_torch else {}
            self.encoder_positions, self.encoder_norm = (
                nn.Embedding(LENGTH, WIDTH),
                ops.norm(WIDTH, 1e-5),
            )
            self.encoder = nn.TransformerEncoder(layer("Encoder"), DEPTH, **extra)
            self.decoder_positions, self.decoder_norm = (
                nn.Embedding(LENGTH, WIDTH),
                ops.norm(WIDTH, 1e-5),
            )
            self.decoder = nn.TransformerDecoder(layer("Decoder"), DEPTH)

        def forward(self, words: Any) -> Any:
            places = ops.constant(np.arange(LENGTH)[None])
            moved = ops.lib.concat([ops.lib.full_like(words[:, :1], 2), words[:, :-1]], 1)
            read = self.encoder(
                self.encoder_norm(self.shared(words) + self.encoder_positions(places))
            )
            x = self.decoder_norm(self.shared(moved) + self.decoder_positions(places))
            return self.decoder(x, read, ops.constant(causal()))

    return Model()
