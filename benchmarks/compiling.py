"""A training step compiled by `xdevice.compile`, beside the step itself and a native program: each backend by itself.

    XDEVICE_BACKEND=jax python benchmarks/compiling.py          # on the CPU, or on gpu:0 if there is one

The net has layers of 64 and 10 on 128 inputs of 64. `native` is the same step in the framework's own words, compiled
by its own compiler (`jax.jit`, `tf.function`, `torch.compile`). The three take turns; a figure is the least of ten
means of 100 steps, in ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import xdevice
from xdevice import nn

STEPS, TURNS = 100, 10
Step = Callable[[dict[str, Any], Any, Any], tuple[dict[str, Any], Any]]


def step(params: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    xp = xdevice.array_namespace(x)

    def loss(p: dict[str, Any]) -> Any:
        hidden = nn.relu(xp.add(xp.matmul(x, p["w1"]), p["b1"]))
        return nn.cross_entropy(xp.add(xp.matmul(hidden, p["w2"]), p["b2"]), y)

    value, grads = xdevice.math.value_and_grad(loss)(params)
    return xdevice.math.update(params, grads, lambda p, g: p - 0.1 * g), value


def of_jax() -> Step:
    import jax
    import jax.numpy as jnp

    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        logits = jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    @jax.jit
    def native(params: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return native


def of_tensorflow() -> Step:
    import tensorflow as tf

    @tf.function
    def native(params: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
        with tf.GradientTape() as tape:
            tape.watch(params)
            logits = tf.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
            value = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            )
        grads = tape.gradient(value, params)
        return {key: params[key] - 0.1 * grads[key] for key in params}, value

    return native


def of_torch() -> Step:
    import torch

    @torch.compile
    def loss(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.relu(x @ w1 + b1) @ w2 + b2, y)

    def native(params: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
        leaves = {key: p.detach().requires_grad_() for key, p in params.items()}
        value = loss(*(leaves[key] for key in ("w1", "b1", "w2", "b2")), x, y)
        grads = torch.autograd.grad(value, list(leaves.values()))
        with torch.no_grad():
            return {
                key: p - 0.1 * g for (key, p), g in zip(leaves.items(), grads, strict=True)
            }, value

    return native


NATIVE = {"jax": of_jax, "tensorflow": of_tensorflow, "torch": of_torch}


def mean(step: Step, params: dict[str, Any], x: Any, y: Any) -> float:
    """ms a step."""
    value = None
    begin = time.perf_counter()
    for _ in range(STEPS):
        params, value = step(params, x, y)
    xdevice.item(value)
    return (time.perf_counter() - begin) / STEPS * 1e3


def main() -> None:
    backend, gpu = xdevice.backend(), xdevice.try_gpu()
    with gpu, xdevice.random.seed(0):
        params = {
            "w1": xdevice.random.normal(64, 64, scale=0.1),
            "w2": xdevice.random.normal(64, 10, scale=0.1),
        }
        x = xdevice.random.normal(128, 64)
    params |= {"b1": xdevice.zeros(64, device=gpu), "b2": xdevice.zeros(10, device=gpu)}
    y = xdevice.tensor([i % 10 for i in range(128)], device=gpu)
    steps: dict[str, Step] = {"the step itself": step, "compiled": xdevice.compile(step)}
    if backend.name in NATIVE:
        steps["native, compiled"] = NATIVE[backend.name]()
    best = {}
    for name, one in steps.items():
        begin = time.perf_counter()
        mean(one, params, x, y)
        print(
            f"{name}: the first {STEPS} steps took {time.perf_counter() - begin:.2f} s",
            flush=True,
        )
    for _ in range(TURNS):
        for name, one in steps.items():
            best[name] = min(best.get(name, 1e9), mean(one, params, x, y))
    for name, ms in best.items():
        print(f"{backend.name} {backend.version} on {gpu}, {name}: {ms:.3f} ms")


if __name__ == "__main__":
    main()
