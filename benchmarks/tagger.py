"""A tagger of words with attention, an LSTM, clipping and AdamW, written for PyTorch and ported to Paddle.

    xdevice parity benchmarks/tagger.py --backends torch,paddle --calibrate

`faults.py` plants faults in copies of it.
"""

from __future__ import annotations

import numpy as np

import xdevice

WORDS, LENGTH, TEXTS, WIDTH, HEADS, STATE, TAGS, STEPS = 30, 7, 6, 16, 4, 12, 5, 4
PADDING, DROPPED, EPS = 0, 0.25, 1e-5
RATE, DECAY, CLIP = 1e-2, 0.1, 0.5

SHAPES = {
    "words.weight": (WORDS, WIDTH),
    "places.weight": (LENGTH, WIDTH),
    **{f"{name}.weight": (WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
    **{f"{name}.bias": (WIDTH,) for name in ("query", "key", "value", "out", "norm1")},
    "norm1.weight": (WIDTH,),
    "rnn.weight_ih_l0": (4 * STATE, WIDTH),
    "rnn.weight_hh_l0": (4 * STATE, STATE),
    "rnn.bias_ih_l0": (4 * STATE,),
    "rnn.bias_hh_l0": (4 * STATE,),
    "norm2.weight": (STATE,),
    "norm2.bias": (STATE,),
    "head.weight": (TAGS, STATE),
    "head.bias": (TAGS,),
}


def first_weights():
    with xdevice.random.seed(0):
        weights = {
            name: xdevice.random.normal(*shape, scale=0.3) for name, shape in SHAPES.items()
        }
    held = {name: xdevice.to_numpy(x).copy() for name, x in weights.items()}
    held["words.weight"][PADDING] = 0
    return held


def batch(step):
    """Words, their tags, and what dropout keeps."""
    with xdevice.random.seed(step + 1):
        words = xdevice.random.integers(TEXTS, LENGTH, low=1, high=WORDS)
        tags = xdevice.random.integers(TEXTS, LENGTH, low=1, high=TAGS)
        kept = xdevice.random.bernoulli(TEXTS, LENGTH, STATE, p=1 - DROPPED)
    words, tags = (xdevice.to_numpy(x).astype("int64").copy() for x in (words, tags))
    for text, length in enumerate((7, 5, 7, 4, 6, 3)):
        words[text, length:] = tags[text, length:] = PADDING
    return words, tags, xdevice.to_numpy(kept)


def on_torch():
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.query, self.key, self.value, self.out = (
                nn.Linear(WIDTH, WIDTH) for _ in range(4)
            )
            self.norm1 = nn.LayerNorm(WIDTH, eps=EPS)
            self.rnn = nn.LSTM(WIDTH, STATE, batch_first=True)
            self.norm2 = nn.LayerNorm(STATE, eps=EPS)
            self.head = nn.Linear(STATE, TAGS)

        def attend(self, x, allowed):
            query, key, value = (
                layer(x).view(TEXTS, LENGTH, HEADS, -1).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            scores = query @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
            scores = scores.masked_fill(~allowed, -torch.inf)
            mixed = torch.softmax(scores, dim=-1) @ value
            return self.out(mixed.transpose(1, 2).reshape(TEXTS, LENGTH, WIDTH))

        def forward(self, words, kept, state):
            x = self.words(words) * WIDTH**0.5 + self.places(torch.arange(LENGTH))
            xdevice.parity.log("embedded", x)
            earlier = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))
            y = self.attend(x, earlier & (words != PADDING)[:, None, None])
            xdevice.parity.log("attended", y)
            x = self.norm1(x + y)
            xdevice.parity.log("normed", x)
            x, state = self.rnn(x, state)
            xdevice.parity.log("states", x)
            x = self.norm2(torch.where(kept, x / (1 - DROPPED), 0.0))
            xdevice.parity.log("dropped", x)
            return self.head(x), state

    net = Tagger()
    xdevice.load({name: torch.tensor(x) for name, x in first_weights().items()}, into=net)
    decayed = [x for x in net.parameters() if x.ndim > 1]
    others = [x for x in net.parameters() if x.ndim == 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 3)
    )

    def gradients():
        return {name: x.grad for name, x in net.named_parameters()}

    state = None
    for step in range(STEPS):
        xdevice.parity.log("weights", net)
        words, tags, kept = (torch.tensor(x) for x in batch(step))
        optimizer.zero_grad()
        scores, state = net(words, kept, state)
        state = tuple(x.detach() for x in state)
        xdevice.parity.log("scores", scores)
        loss = nn.functional.cross_entropy(
            scores.view(-1, TAGS), tags.view(-1), ignore_index=PADDING
        )
        xdevice.parity.log("loss", loss)
        loss.backward()
        xdevice.parity.log("gradients", gradients())
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        xdevice.parity.log("clipped", gradients())
        optimizer.step()
        schedule.step()
    xdevice.parity.log("weights", net)


def on_paddle():
    import paddle
    from paddle import nn

    class Tagger(nn.Layer):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.query, self.key, self.value, self.out = (
                nn.Linear(WIDTH, WIDTH) for _ in range(4)
            )
            self.norm1 = nn.LayerNorm(WIDTH, epsilon=EPS)
            self.rnn = nn.LSTM(WIDTH, STATE)
            self.norm2 = nn.LayerNorm(STATE, epsilon=EPS)
            self.head = nn.Linear(STATE, TAGS)

        def attend(self, x, allowed):
            query, key, value = (
                layer(x).reshape([TEXTS, LENGTH, HEADS, -1]).transpose([0, 2, 1, 3])
                for layer in (self.query, self.key, self.value)
            )
            scores = query @ key.transpose([0, 1, 3, 2]) * (WIDTH // HEADS) ** -0.5
            scores = paddle.where(allowed, scores, paddle.full_like(scores, -np.inf))
            mixed = nn.functional.softmax(scores, axis=-1) @ value
            return self.out(mixed.transpose([0, 2, 1, 3]).reshape([TEXTS, LENGTH, WIDTH]))

        def forward(self, words, kept, state):
            x = self.words(words) * WIDTH**0.5 + self.places(paddle.arange(LENGTH))
            xdevice.parity.log("embedded", x)
            earlier = paddle.tril(paddle.ones([LENGTH, LENGTH])).astype("bool")
            y = self.attend(x, paddle.logical_and(earlier, (words != PADDING)[:, None, None]))
            xdevice.parity.log("attended", y)
            x = self.norm1(x + y)
            xdevice.parity.log("normed", x)
            x, state = self.rnn(x, state)
            xdevice.parity.log("states", x)
            x = self.norm2(paddle.where(kept, x / (1 - DROPPED), paddle.zeros_like(x)))
            xdevice.parity.log("dropped", x)
            return self.head(x), state

    net = Tagger()
    xdevice.load(xdevice.models.convert_state(first_weights(), "paddle", like=net), into=net)
    decayed = {x.name for x in net.parameters() if x.ndim > 1}
    schedule = paddle.optimizer.lr.LambdaDecay(RATE, lambda step: min(1.0, (step + 1) / 3))
    optimizer = paddle.optimizer.AdamW(
        schedule,
        parameters=net.parameters(),
        weight_decay=DECAY,
        apply_decay_param_fun=lambda name: name in decayed,
    )

    def gradients():
        """In PyTorch's layout: Paddle's linear layers have theirs transposed."""
        turned = {
            f"{name}.weight"
            for name, layer in net.named_sublayers()
            if isinstance(layer, nn.Linear)
        }
        return {
            name: x.grad.T if name in turned else x.grad for name, x in net.named_parameters()
        }

    state = None
    for step in range(STEPS):
        xdevice.parity.log("weights", net)
        words, tags, kept = (paddle.to_tensor(x) for x in batch(step))
        optimizer.clear_grad()
        scores, state = net(words, kept, state)
        state = tuple(x.detach() for x in state)
        xdevice.parity.log("scores", scores)
        loss = nn.functional.cross_entropy(
            scores.reshape([-1, TAGS]), tags.reshape([-1]), ignore_index=PADDING
        )
        xdevice.parity.log("loss", loss)
        loss.backward()
        xdevice.parity.log("gradients", gradients())
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        xdevice.parity.log("clipped", gradients())
        optimizer.step()
        schedule.step()
    xdevice.parity.log("weights", net)


if __name__ == "__main__":
    {"torch": on_torch, "paddle": on_paddle}[xdevice.backend().name]()
