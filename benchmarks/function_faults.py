"""Whether `xdevice parity --calibrate` finds faults in a training script where one side is a function, and where.

    python benchmarks/function_faults.py                  # every fault, as a table
    python benchmarks/function_faults.py clip "other eps" # those with one of these texts in their name

As faults.py, for the function of JAX in gpt_function.py. The record at which each fault was expected to show first was
written down before it was ever run.
"""

from __future__ import annotations

from pathlib import Path

import faults

WEIGHTS = "params = nested(weights)"
faults.FILE = Path(__file__)
faults.SCRIPT = Path(__file__).with_name("gpt_function.py")
faults.PORT = "jax"
faults.FAULTS = {
    # the first weights
    "one weight off by 1e-5": (WEIGHTS, f"weights['wpe.weight'][1, 2] += 1e-5\n    {WEIGHTS}", ("weights", 0)),
    "a square weight transposed": (
        WEIGHTS, f"weights['blocks.0.out.weight'] = weights['blocks.0.out.weight'].T\n    {WEIGHTS}", ("weights", 0),
    ),
    "query and key exchanged in the weights": (
        WEIGHTS,
        "qkv = weights['blocks.1.qkv.weight'].reshape(3, WIDTH, WIDTH)\n"
        f"    weights['blocks.1.qkv.weight'] = qkv[[1, 0, 2]].reshape(-1, WIDTH)\n    {WEIGHTS}", ("weights", 0),
    ),
    "two blocks exchanged": ("[str(number)]", "[str(1 - number)]", ("attended0", 0)),
    # embeddings
    "positions from 1": ("jnp.arange(LENGTH)]", "(jnp.arange(LENGTH) + 1)]", ("embedded", 0)),
    "words scaled": ("p['wte']['weight'][words]", "WIDTH**0.5 * p['wte']['weight'][words]", ("embedded", 0)),
    "no positions": (" + p['wpe']['weight'][jnp.arange(LENGTH)]", "", ("embedded", 0)),
    # attention
    "scores not scaled": (" / jnp.sqrt(WIDTH // HEADS)", "", ("attended0", 0)),
    "scores scaled by the whole width": ("jnp.sqrt(WIDTH // HEADS)", "jnp.sqrt(WIDTH)", ("attended0", 0)),
    "no mask": ("jnp.tril(jnp.ones((LENGTH, LENGTH), bool))", "jnp.ones((LENGTH, LENGTH), bool)", ("attended0", 0)),
    "mask a position off": ("LENGTH), bool))", "LENGTH), bool), 1)", ("attended0", 0)),
    "a mask of -10": ("scores, -jnp.inf)", "scores, scores - 10.0)", ("attended0", 0)),
    "softmax over queries": (
        "jax.nn.softmax(scores, axis=-1)", "jax.nn.softmax(jnp.maximum(scores, -50.0), axis=-2)", ("attended0", 0),
    ),
    "keys and queries exchanged": ("query, key, value = (", "key, query, value = (", ("attended0", 0)),
    "heads not put together": ("mixed.transpose(0, 2, 1, 3)", "mixed", ("attended0", 0)),
    "heads split the other way": (
        "x.reshape(TEXTS, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)",
        "x.reshape(TEXTS, LENGTH, -1, HEADS).transpose(0, 3, 1, 2)", ("attended0", 0),
    ),
    # the rest of a block
    "no residual around attention": ("x = x + attended", "x = attended", ("widened0", 0)),
    "an exact gelu": ("approximate=True", "approximate=False", ("widened0", 0)),
    "a silu": ("jax.nn.gelu(", "(lambda x, approximate: jax.nn.silu(x))(", ("widened0", 0)),
    "a layer without its bias": (
        "dense(p['up'], norm(p['norm2'], x))", "norm(p['norm2'], x) @ p['up']['weight'].T", ("widened0", 0),
    ),
    "a norm's eps of 1e-6": ("variance + EPS", "variance + 1e-6", ("attended0", 0)),
    "an unbiased variance": ("jnp.sqrt(variance + EPS)", "jnp.sqrt(variance * 16 / 15 + EPS)", ("attended0", 0)),
    "no last norm": ("norm(p['norm'], x) @", "x @", ("scores", 0)),
    # the loss
    "no smoothing": ("return (1 - SMOOTHED) * exact - SMOOTHED * logs.mean()", "return exact", ("loss", 0)),
    "sum for mean": ("[..., None], -1).mean()", "[..., None], -1).sum()", ("loss", 0)),
    # gradients and clipping
    "no gradient through the norm's variance": (
        "variance + EPS", "jax.lax.stop_gradient(variance) + EPS", ("gradients", 0),
    ),
    "clipped by value": ("x * jnp.minimum(1.0, CLIP / (size + 1e-06))", "jnp.clip(x, -CLIP, CLIP)", ("clipped", 0)),
    "clipped at 0.505": ("CLIP / (size", "0.505 / (size", ("clipped", 0)),
    # AdamW
    "decay of every parameter": ("if x.ndim > 1 else x", "", ("weights", 1)),
    "decay in the gradients": (
        "m, v = (first", "g = g + DECAY * x if x.ndim > 1 else g\n            m, v = (first", ("weights", 1),
    ),
    "no bias correction": (" / (1 - first ** (step + 1)) / root", " / root", ("weights", 1)),
    "a second beta of 0.99": ("first, second = BETAS", "first, second = 0.9, 0.99", ("weights", 2)),
    "a schedule one step early": ("(step + 1) / 3", "(step + 2) / 3", ("weights", 1)),
}  # fmt: skip

if __name__ == "__main__":
    faults.main()
