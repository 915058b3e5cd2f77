"""A small GPT: a module of PyTorch, and a function of JAX with its parameters in a nested dict.

    xdevice parity benchmarks/gpt_function.py --backends torch,jax --calibrate

`function_faults.py` plants faults in copies of the function.
"""

from __future__ import annotations

import xdevice

WORDS, LENGTH, TEXTS, WIDTH, HEADS, BLOCKS, STEPS = 24, 6, 4, 16, 4, 2, 4
EPS, RATE, DECAY, CLIP, SMOOTHED = 1e-5, 1e-2, 0.1, 0.5, 0.1
BETAS, SMALL = (0.9, 0.95), 1e-8


def shapes():
    yield "wte.weight", (WORDS, WIDTH)
    yield "wpe.weight", (LENGTH, WIDTH)
    for number in range(BLOCKS):
        for name, outputs, inputs in (
            ("qkv", 3 * WIDTH, WIDTH), ("out", WIDTH, WIDTH), ("up", 4 * WIDTH, WIDTH), ("down", WIDTH, 4 * WIDTH),
        ):  # fmt: skip
            yield f"blocks.{number}.{name}.weight", (outputs, inputs)
            yield f"blocks.{number}.{name}.bias", (outputs,)
        for name in ("norm1", "norm2"):
            yield f"blocks.{number}.{name}.weight", (WIDTH,)
            yield f"blocks.{number}.{name}.bias", (WIDTH,)
    yield "norm.weight", (WIDTH,)
    yield "norm.bias", (WIDTH,)


def first_weights():
    with xdevice.random.seed(0):
        return {
            name: xdevice.to_numpy(xdevice.random.normal(*shape, scale=0.3)).copy()
            for name, shape in shapes()
        }


def batch(step):
    with xdevice.random.seed(step + 1):
        words = xdevice.to_numpy(xdevice.random.integers(TEXTS, LENGTH + 1, high=WORDS)).astype(
            "int32"
        )
    return words[:, :-1].copy(), words[:, 1:].copy()


def on_torch():
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x, name):
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            query, key, value = (
                x.view(TEXTS, LENGTH, HEADS, -1).transpose(1, 2) for x in parts
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            attended = self.out(mixed.transpose(1, 2).reshape(TEXTS, LENGTH, WIDTH))
            xdevice.parity.log("attended" + name, attended)
            x = x + attended
            widened = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
            xdevice.parity.log("widened" + name, widened)
            return x + self.down(widened)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.norm = nn.LayerNorm(WIDTH, EPS)

        def forward(self, words):
            x = self.wte(words) + self.wpe(torch.arange(LENGTH))
            xdevice.parity.log("embedded", x)
            for number, block in enumerate(self.blocks):
                x = block(x, str(number))
            return self.norm(x) @ self.wte.weight.T

    net = GPT()
    xdevice.load({name: torch.tensor(x) for name, x in first_weights().items()}, into=net)
    decayed = [x for x in net.parameters() if x.ndim > 1]
    others = [x for x in net.parameters() if x.ndim == 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=SMALL, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 3)
    )
    for step in range(STEPS):
        xdevice.parity.log("weights", dict(net.named_parameters()))
        words, wanted = (torch.tensor(x).long() for x in batch(step))
        optimizer.zero_grad()
        scores = net(words)
        xdevice.parity.log("scores", scores)
        loss = functional.cross_entropy(
            scores.view(-1, WORDS), wanted.view(-1), label_smoothing=SMOOTHED
        )
        xdevice.parity.log("loss", loss)
        loss.backward()
        xdevice.parity.log("gradients", {name: x.grad for name, x in net.named_parameters()})
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        xdevice.parity.log("clipped", {name: x.grad for name, x in net.named_parameters()})
        optimizer.step()
        schedule.step()
    xdevice.parity.log("weights", dict(net.named_parameters()))


def on_jax():
    import jax
    import jax.numpy as jnp

    def nested(flat):
        tree = {}
        for name, x in flat.items():
            *path, last = name.split(".")
            inner = tree
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = jnp.asarray(x)
        return tree

    def flat(tree, path=""):
        if not isinstance(tree, dict):
            return {path: tree}
        return {
            name: x
            for key, inside in tree.items()
            for name, x in flat(inside, f"{path}.{key}".strip(".")).items()
        }

    def norm(p, x):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + EPS) * p["weight"] + p["bias"]

    def dense(p, x):
        return x @ p["weight"].T + p["bias"]

    def block(p, x, name, record):
        parts = jnp.split(dense(p["qkv"], norm(p["norm1"], x)), 3, axis=-1)
        query, key, value = (
            x.reshape(TEXTS, LENGTH, HEADS, -1).transpose(0, 2, 1, 3) for x in parts
        )
        scores = query @ key.transpose(0, 1, 3, 2) / jnp.sqrt(WIDTH // HEADS)
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
        mixed = jax.nn.softmax(scores, axis=-1) @ value
        attended = dense(p["out"], mixed.transpose(0, 2, 1, 3).reshape(TEXTS, LENGTH, WIDTH))
        record("attended" + name, attended)
        x = x + attended
        widened = jax.nn.gelu(dense(p["up"], norm(p["norm2"], x)), approximate=True)
        record("widened" + name, widened)
        return x + dense(p["down"], widened)

    def apply(p, words, record):
        x = p["wte"]["weight"][words] + p["wpe"]["weight"][jnp.arange(LENGTH)]
        record("embedded", x)
        for number in range(BLOCKS):
            x = block(p["blocks"][str(number)], x, str(number), record)
        return norm(p["norm"], x) @ p["wte"]["weight"].T

    def loss_of(p, words, wanted):
        logs = jax.nn.log_softmax(apply(p, words, lambda *_: None), axis=-1)
        exact = -jnp.take_along_axis(logs, wanted[..., None], -1).mean()
        return (1 - SMOOTHED) * exact - SMOOTHED * logs.mean()

    def clipped(gradients):
        size = jnp.sqrt(sum((x * x).sum() for x in jax.tree.leaves(gradients)))
        return jax.tree.map(lambda x: x * jnp.minimum(1.0, CLIP / (size + 1e-6)), gradients)

    def adamw(p, gradients, state, step):
        rate = RATE * min(1.0, (step + 1) / 3)
        first, second = BETAS

        def one(x, g, m, v):
            m, v = first * m + (1 - first) * g, second * v + (1 - second) * g * g
            x = x * (1 - rate * DECAY) if x.ndim > 1 else x
            root = jnp.sqrt(v / (1 - second ** (step + 1))) + SMALL
            return x - rate * m / (1 - first ** (step + 1)) / root, m, v

        triples = jax.tree.map(one, p, gradients, *state)
        return [
            jax.tree.map(lambda t, n=n: t[n], triples, is_leaf=lambda t: isinstance(t, tuple))
            for n in range(3)
        ]

    weights = first_weights()
    params = nested(weights)
    state = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
    gradient_of = jax.jit(jax.value_and_grad(loss_of))
    for step in range(STEPS):
        xdevice.parity.log("weights", flat(params))
        words, wanted = map(jnp.asarray, batch(step))
        xdevice.parity.log("scores", apply(params, words, xdevice.parity.log))
        loss, gradients = gradient_of(params, words, wanted)
        xdevice.parity.log("loss", loss)
        xdevice.parity.log("gradients", flat(gradients))
        gradients = clipped(gradients)
        xdevice.parity.log("clipped", flat(gradients))
        params, *state = adamw(params, gradients, state, step)
    xdevice.parity.log("weights", flat(params))


if __name__ == "__main__":
    {"torch": on_torch, "jax": on_jax}[xdevice.backend().name]()
