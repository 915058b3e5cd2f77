"""What one text costs: a training step of a chapter, neutral and as each framework is used directly, interleaved.

    python benchmarks/chapters.py [backend ...] [--write]

All train eagerly, by gradient descent, on gpu:0 if there is one, inside its block and without it: `value_and_grad` and
`update` on one side, the framework's own gradients and its own update in place on the other. Trained are perceptrons of
two layers with relu, and a decoder with learned positions, attention, gelu and layer norms. Printed are microseconds of
a step of the framework and of ours, the best of many rounds, and their ratio; on JAX also how many programs the first
step of each compiles. `--write` keeps the table in benchmarks/results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import measured
import numpy
from native import WORDS, Step, leaves, mapped

import xdevice
from xdevice import nn

RATE = 0.01
SIZES = ((64, 64, 10, 128), (256, 512, 10, 1024))
"""Inputs, units, classes, batch."""
BATCH, TOKENS, WIDTH, HEADS, BLOCKS, LETTERS = 8, 32, 64, 4, 2, 64
"""The decoder's sizes."""
ROUNDS, SECONDS = 60, 0.02
"""How often each side has a turn, and about how long that is."""

Loss = Callable[..., Any]


def perceptron(on: Any) -> Loss:
    """The loss of a perceptron in the words of `on`."""

    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        hidden = on.relu(on.add(on.matmul(x, p["w1"]), p["b1"]))
        return on.cross_entropy(on.add(on.matmul(hidden, p["w2"]), p["b2"]), y)

    return loss


def decoder(on: Any) -> Loss:
    """The loss of a decoder in the words of `on`: it predicts each token from those before it."""

    def heads(x: Any) -> Any:
        split = on.reshape(x, (BATCH, TOKENS, HEADS, WIDTH // HEADS))
        return on.permute_dims(split, (0, 2, 1, 3))

    def block(p: dict[str, Any], x: Any) -> Any:
        normal = on.layer_norm(x, p["scale1"], p["shift1"])
        q, k, v = (heads(on.matmul(normal, p[name])) for name in ("query", "key", "value"))
        seen = on.permute_dims(on.causal_attention(q, k, v), (0, 2, 1, 3))
        x = on.add(x, on.matmul(on.reshape(seen, (BATCH, TOKENS, WIDTH)), p["out"]))
        normal = on.layer_norm(x, p["scale2"], p["shift2"])
        inner = on.gelu(on.add(on.matmul(normal, p["w1"]), p["b1"]))
        return on.add(x, on.add(on.matmul(inner, p["w2"]), p["b2"]))

    def loss(p: dict[str, Any], tokens: Any, following: Any) -> Any:
        x = on.add(on.embedding(tokens, p["words"]), p["places"])
        for one in p["blocks"]:
            x = block(one, x)
        scores = on.matmul(on.layer_norm(x, p["scale"], p["shift"]), p["last"])
        return on.cross_entropy(on.reshape(scores, (BATCH * TOKENS, LETTERS)), following)

    return loss


def weights(seed: int = 0) -> dict[str, Any]:
    """The decoder's parameters as arrays."""
    random = numpy.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return random.normal(0, 0.1, shape).astype("float32")

    def norm(number: object = "") -> dict[str, Any]:
        return {
            f"scale{number}": numpy.ones(WIDTH, "float32"),
            f"shift{number}": numpy.zeros(WIDTH, "float32"),
        }

    def block() -> dict[str, Any]:
        square = {name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        wide = {
            "w1": normal(WIDTH, 4 * WIDTH),
            "b1": normal(4 * WIDTH),
            "w2": normal(4 * WIDTH, WIDTH),
        }
        return square | wide | {"b2": normal(WIDTH)} | norm(1) | norm(2)

    ends = {
        "words": normal(LETTERS, WIDTH),
        "places": normal(TOKENS, WIDTH),
        "last": normal(WIDTH, LETTERS),
    }
    return ends | norm() | {"blocks": [block() for _ in range(BLOCKS)]}


def neutral_words() -> SimpleNamespace:
    xp = xdevice.array_namespace()
    on = SimpleNamespace(
        **{name: getattr(xp, name) for name in ("add", "matmul", "permute_dims", "reshape")}
    )
    for name in ("cross_entropy", "embedding", "gelu", "layer_norm", "relu"):
        setattr(on, name, getattr(nn, name))
    on.causal_attention = lambda q, k, v: nn.attention(q, k, v, causal=True)
    return on


def neutral(loss: Loss, values: Any) -> Step:
    params = mapped(xdevice.tensor, values)
    gradients = xdevice.math.value_and_grad(loss)

    def step(*batch: Any) -> object:
        nonlocal params
        value, grads = gradients(params, *batch)
        params = xdevice.math.update(params, grads, lambda p, g: p - RATE * g)
        return value, params

    return step


# as each framework is used directly: gradients and updates in place by hand, as the text does it


def torch(loss: Loss, values: Any) -> Step:
    from torch import no_grad

    params = mapped(lambda value: xdevice.tensor(value).requires_grad_(), values)

    def step(*batch: Any) -> object:
        value = loss(params, *batch)
        value.backward()
        with no_grad():
            for p in leaves(params):
                p -= RATE * p.grad
                p.grad = None
        return value, params

    return step


def tensorflow(loss: Loss, values: Any) -> Step:
    import tensorflow as tf

    params = mapped(tf.Variable, values)

    def step(*batch: Any) -> object:
        with tf.GradientTape() as tape:
            value = loss(params, *batch)
        for p, grad in zip(leaves(params), tape.gradient(value, leaves(params)), strict=True):
            p.assign_sub(RATE * tf.convert_to_tensor(grad))
        return value, params

    return step


def paddle(loss: Loss, values: Any) -> Step:
    from paddle import no_grad, to_tensor

    params = mapped(lambda value: to_tensor(value, stop_gradient=False), values)

    def step(*batch: Any) -> object:
        value = loss(params, *batch)
        value.backward()
        with no_grad():
            for p in leaves(params):
                p.subtract_(RATE * p.grad)
                p.clear_gradient()
        return value, params

    return step


def mxnet(loss: Loss, values: Any) -> Step:
    from mxnet import autograd, np

    params = mapped(np.array, values)
    for p in leaves(params):
        p.attach_grad()

    def step(*batch: Any) -> object:
        with autograd.record():
            value = loss(params, *batch)
        value.backward()
        for p in leaves(params):
            p -= RATE * p.grad
        return value, params  # so that its work is waited for, as that of ours is

    return step


def jax(loss: Loss, values: Any) -> Step:
    from jax import tree, value_and_grad

    params, gradients = mapped(xdevice.tensor, values), value_and_grad(loss)

    def step(*batch: Any) -> object:
        nonlocal params
        value, grads = gradients(params, *batch)
        params = tree.map(lambda p, g: p - RATE * g, params, grads)
        return value, params

    return step


NATIVE = {
    "torch": torch,
    "tensorflow": tensorflow,
    "paddle": paddle,
    "mxnet": mxnet,
    "jax": jax,
}


def microseconds(step: Step, batch: tuple[Any, ...], times: int) -> float:
    xdevice.sync()
    start = time.perf_counter()
    for _ in range(times):
        made = step(*batch)
    xdevice.sync(made)
    return (time.perf_counter() - start) / times * 1e6


def programs_compiled(step: Step, batch: tuple[Any, ...]) -> int:
    """How many programs JAX compiles for the first step."""
    import jax

    jax.clear_caches()
    seen: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: seen.append(event)
    )
    step(*batch)
    return seen.count("/jax/core/compile/backend_compile_duration")


def programs() -> dict[str, tuple[Callable[[Any], Loss], Any, tuple[Any, ...]]]:
    """Each program, its parameters as arrays, and its batch."""
    made: dict[str, tuple[Callable[[Any], Loss], Any, tuple[Any, ...]]] = {}
    for inputs, units, classes, batch in SIZES:
        random = numpy.random.default_rng(0)
        shapes = {
            "w1": (inputs, units),
            "b1": (units,),
            "w2": (units, classes),
            "b2": (classes,),
        }
        values = {
            name: random.normal(0, inputs**-0.5, shape).astype("float32")
            for name, shape in shapes.items()
        }
        digits = (
            random.normal(size=(batch, inputs)).astype("float32"),
            random.integers(0, classes, batch),
        )
        made[f"{units} units, batch {batch}"] = perceptron, values, digits
    tokens = numpy.random.default_rng(0).integers(0, LETTERS, (BATCH, TOKENS + 1))
    made["decoder"] = decoder, weights(), (tokens[:, :-1], tokens[:, 1:].reshape(-1))
    return made


def measure(
    name: str, block: Any, program: Callable[[Any], Loss], values: Any, batch: tuple[Any, ...]
) -> tuple[float, float]:
    """A step of the framework and of ours inside a block, the best round of each."""
    with xdevice.try_gpu():
        given = tuple(map(xdevice.tensor, batch))
        steps = (
            NATIVE[name](program(WORDS[name]()), values),
            neutral(program(neutral_words()), values),
        )
    with block:
        return best(name, steps, given)


def best(name: str, steps: tuple[Step, Step], given: tuple[Any, ...]) -> tuple[float, float]:
    if name == "jax":
        compiled = " and ".join(str(programs_compiled(step, given)) for step in steps)
        print(f"the first step compiled {compiled} programs")
    times = max(
        1,
        round(
            SECONDS
            / min(microseconds(step, given, 5) for step in steps for _ in range(3))
            * 1e6
        ),
    )
    rounds = [[microseconds(step, given, times) for step in steps] for _ in range(ROUNDS)]
    native, ours = (min(times) for times in zip(*rounds, strict=True))
    return native, ours


def rows(name: str) -> list[list[str]]:
    """The cells of one backend: on a GPU inside its block and without it."""
    title = measured.TITLES[name]
    table = []
    with xdevice.use_backend(name):
        gpus = [xdevice.gpu()] if xdevice.num_gpus() else []
        blocks = [(gpu, ", inside") for gpu in gpus]
        for block, how in [*blocks, (nullcontext(), ", without")]:
            cells = []
            for program, values, batch in programs().values():
                native, ours = measure(name, block, program, values, batch)
                cells.append(f"{native:.0f}, {ours:.0f} ({ours / native:.2f})")
            table.append([title + (how if gpus else ""), *cells])
            print(*table[-1], sep="   ", flush=True)
    return table


def main() -> None:
    print(*programs(), sep="   ")
    names = [name for name in sys.argv[1:] if name in NATIVE]
    names = names or [name for name in xdevice.backends() if name in NATIVE]
    table = [row for name in names for row in rows(name)]
    if "--write" in sys.argv:
        kind = "gpu" if "inside" in table[0][0] else "cpu"
        columns = ["", "perceptron, 64 units", "512 units", "decoder"]
        measured.write(f"chapters_{kind}", columns, table, names)


if __name__ == "__main__":
    main()
