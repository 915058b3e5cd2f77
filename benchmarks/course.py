"""What a step of each chapter of the course costs: ours, natively, and as a model of Keras 3.

    python benchmarks/course.py [backend ...] [chapter ...] [--write]

The programs are the cells of the chapters' own texts, so this measures what they show: `xdevice.compile(step)`. Beside
it stands the same loss in the framework's own words with its own optimizer (native.py), compiled by `jax.jit` and
`tf.function`, and a model of Keras's layers with `train_on_batch` (course_keras.py), where Keras has the framework.
All begin with the same weights, and the losses of three steps must agree before anything is timed. Each step reads its
loss. The three take turns; a figure is the least of many means, in ms. Each backend has a process of its own. It
computes on gpu:0 if there is one.

Printed is a table: ours / native / Keras; two figures where there is no model of Keras.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measured
import native
import numpy

import xdevice

COURSE = Path(__file__).parents[1] / "docs" / "tutorials" / "course"
CELLS = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE)
KERAS = ("torch", "tensorflow", "jax")
"""Keras 3 runs on these."""
NOT_IN_KERAS = {("attention", "tensorflow")}
"""There its Adam updates the table of an embedding by rows, with the square of each one of a row's gradients."""
ROUNDS, SECONDS = 20, 0.02
"""How often each side has a turn, and about how long that is."""

# The losses of the chapters, in the words `on` of a framework. `p` are weights.


def linear_regression(on: Any, p: Any, _: Any, x: Any, y: Any) -> Any:
    return on.mse_loss(on.matmul(x, p["w"]) + p["b"], y)


def weight_decay(on: Any, p: Any, _: Any, x: Any, y: Any, decay: Any) -> Any:
    return on.mse_loss(on.matmul(x, p["w"]) + p["b"], y) + decay * on.sum(p["w"] * p["w"]) / 2


def softmax_regression(on: Any, p: Any, _: Any, x: Any, truth: Any) -> Any:
    return on.soft_cross_entropy(on.matmul(x, p["W"]) + p["b"], truth)


def mlp(on: Any, p: Any, _: Any, x: Any, truth: Any) -> Any:
    hidden = on.relu(on.matmul(x, p["W1"]) + p["b1"])
    return on.soft_cross_entropy(on.matmul(hidden, p["W2"]) + p["b2"], truth)


def dropout(on: Any, p: Any, _: Any, x: Any, truth: Any, kept: Any) -> Any:
    hidden = on.relu(on.matmul(x, p["W1"]) + p["b1"])
    hidden = on.where(kept, hidden, 0.0 * hidden) / 0.5
    return on.soft_cross_entropy(on.matmul(hidden, p["W2"]) + p["b2"], truth)


def lenet(on: Any, p: Any, _: Any, x: Any, truth: Any) -> Any:
    for number in (1, 2):
        x = on.max_pool2d(on.relu(on.conv2d(x, p[f"K{number}"], p[f"b{number}"])))
    hidden = on.relu(on.matmul(on.reshape(x, (-1, 64)), p["W3"]) + p["b3"])
    return on.soft_cross_entropy(on.matmul(hidden, p["W4"]) + p["b4"], truth)


def batch_norm(on: Any, p: Any, running: Any, x: Any, y: Any) -> Any:
    for layer, averages in zip(p[:-1], running, strict=True):
        x = on.matmul(x, layer["W"]) + layer["b"]
        x = on.relu(on.batch_norm(x, layer["gamma"], layer["beta"], averages))
    return on.cross_entropy(on.matmul(x, p[-1]["W"]) + p[-1]["b"], y)


def optimizers(on: Any, p: Any, _: Any, x: Any, y: Any) -> Any:
    return on.cross_entropy(
        on.matmul(on.tanh(on.matmul(x, p["W1"]) + p["b1"]), p["W2"]) + p["b2"], y
    )


def rnn(on: Any, p: Any, _: Any, x: Any, y: Any) -> Any:
    h, states = 0.0, []
    for letters in on.unstack(on.one_hot(x, p["bo"].shape[0])):
        h = on.tanh(
            on.matmul(letters, p["Wx"]) + (on.matmul(h, p["Wh"]) if states else 0.0) + p["b"]
        )
        states.append(h)
    return scored(on, p, states, y)


def lstm(on: Any, p: Any, _: Any, x: Any, y: Any) -> Any:
    h, c, states = 0.0, 0.0, []
    for letters in on.unstack(on.one_hot(x, p["bo"].shape[0])):
        z = on.matmul(letters, p["Wx"]) + (on.matmul(h, p["Wh"]) if states else 0.0) + p["b"]
        i, f, o, new = on.split(z, 4)
        c = on.sigmoid(f) * c + on.sigmoid(i) * on.tanh(new)
        h = on.sigmoid(o) * on.tanh(c)
        states.append(h)
    return scored(on, p, states, y)


def scored(on: Any, p: Any, states: list[Any], y: Any) -> Any:
    scores = on.matmul(on.stack(states), p["Wo"]) + p["bo"]
    return on.cross_entropy(on.reshape(scores, (-1, p["bo"].shape[0])), on.reshape(y, (-1,)))


def attention(
    on: Any, p: Any, _: Any, letters: Any, digits: Any, question: Any, seen: Any, answer: Any
) -> Any:
    pairs = on.embedding(letters, p["letters"]) + on.embedding(digits, p["digits"])
    query = on.matmul(on.embedding(question, p["letters"]), p["query"])
    found = on.attention(query, on.matmul(pairs, p["key"]), on.matmul(pairs, p["value"]), seen)
    return on.cross_entropy(on.matmul(found[:, 0], p["out"]), answer)


def transformer(on: Any, p: Any, _: Any, tokens: Any, following: Any) -> Any:
    batch, places = tokens.shape
    width, size = p["scores"].shape
    x = on.embedding(tokens, p["letters"]) + p["places"]
    qkv = on.matmul(on.layer_norm(x, p["norm 1"], p["shift 1"]), p["qkv"])
    parts = on.permute_dims(on.reshape(qkv, (batch, places, 3, 4, width // 4)), (2, 0, 3, 1, 4))
    found = on.permute_dims(on.causal_attention(*on.unstack(parts)), (0, 2, 1, 3))
    x = x + on.matmul(on.reshape(found, (batch, places, width)), p["joined"])
    inner = on.gelu(on.matmul(on.layer_norm(x, p["norm 2"], p["shift 2"]), p["in"]) + p["b in"])
    x = x + on.matmul(inner, p["out"]) + p["b out"]
    scores = on.matmul(on.layer_norm(x), p["scores"])
    return on.cross_entropy(on.reshape(scores, (-1, size)), on.reshape(following, (-1,)))


def warmed(steps: int) -> Callable[[Any, Any], Any]:
    return lambda step, on: on.minimum(1.0, (step + 1) / steps)


def warmed_and_cooled(step: Any, on: Any) -> Any:
    return warmed(5)(step, on) * (0.5 + 0.5 * on.cos(math.pi * on.minimum(1.0, step / 100)))


Rule = native.Rule
CHAPTERS: dict[str, tuple[Callable[..., Any], Rule]] = {
    "linear_regression": (linear_regression, Rule("sgd", 0.3)),
    "softmax_regression": (softmax_regression, Rule("sgd", 0.5)),
    "mlp": (mlp, Rule("momentum", 0.1)),
    "weight_decay": (weight_decay, Rule("sgd", 0.05)),
    "dropout": (dropout, Rule("sgd", 0.5)),
    "lenet": (lenet, Rule("adam", 0.01)),
    "batch_norm": (batch_norm, Rule("sgd", 0.2)),
    "optimizers": (optimizers, Rule("adam", 0.05, warmed_and_cooled, clip=1.0)),
    "rnn": (rnn, Rule("adam", 0.01, clip=1.0)),
    "lstm": (lstm, Rule("adam", 0.02, clip=1.0)),
    "attention": (attention, Rule("adam", 0.02)),
    "transformer": (transformer, Rule("adamw", 0.01, warmed(10), clip=1.0)),
}
"""Each chapter's loss, and how it improves its weights."""


def ours(chapter: str) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """The chapter's step, its parameters and its batch: what its cells leave before the one that times."""
    names: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()):
        for options, code in CELLS.findall(
            (COURSE / f"{chapter}.md").read_text(encoding="utf-8")
        ):
            if ":timing:" in options:
                break
            if not options:  # no figure
                exec(compile(code, chapter, "exec"), names)
    return names["step"], names["params"], names["batch"]


def channels_last(weights: Any, batch: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """LeNet as TensorFlow and Keras have it."""
    kernels = {name: weights[name].transpose(2, 3, 1, 0) for name in ("K1", "K2")}
    first = weights["W3"].reshape(16, 2, 2, 32).transpose(1, 2, 0, 3).reshape(64, 32)
    return weights | kernels | {"W3": first}, (batch[0].transpose(0, 2, 3, 1), *batch[1:])


def steps(chapter: str) -> dict[str, Callable[[], float]]:
    """Steps that give their loss as a number, each from the same weights."""
    name = xdevice.backend().name
    step, params, batch = ours(chapter)
    fast = xdevice.compile(step)

    def neutral() -> float:
        nonlocal params
        params, value = fast(params, *batch)
        return float(xdevice.item(value))

    parts = native.mapped(xdevice.to_numpy, params)
    weights = (
        parts.get("weights", parts.get("net", parts)) if isinstance(parts, dict) else parts
    )
    running, arrays = parts.get("running", []), tuple(map(xdevice.to_numpy, batch))
    last = channels_last(weights, arrays) if chapter == "lenet" else (weights, arrays)
    loss, rule = CHAPTERS[chapter]
    on = native.WORDS[name]()
    own, given = last if name == "tensorflow" else (weights, arrays)
    native_step = native.STEPS[name](lambda *each: loss(on, *each), own, running, rule)
    given = tuple(map(xdevice.tensor, given))
    made = {"ours": neutral, "native": lambda: float(native_step(*given))}
    if name in KERAS and (chapter, name) not in NOT_IN_KERAS and find_spec("keras"):
        import course_keras

        made["Keras"] = course_keras.step(chapter, *last, native.keras_optimizer(rule))
    return made


def check(chapter: str, sides: dict[str, Callable[[], float]]) -> None:
    """That three steps cost the same on all sides."""
    losses = {side: [step() for _ in range(3)] for side, step in sides.items()}
    for side, found in losses.items():
        if not numpy.allclose(found, losses["ours"], rtol=1e-3):
            raise SystemExit(f"{chapter} on {xdevice.backend()}, {side}: {losses}")


def mean(step: Callable[[], float], times: int) -> float:
    """ms a step, until all is computed: on MXNet the loss is there before the backward pass."""
    start = time.perf_counter()
    for _ in range(times):
        step()
    xdevice.sync()
    return (time.perf_counter() - start) / times * 1e3


def measure(chapter: str) -> dict[str, float]:
    sides = steps(chapter)
    check(chapter, sides)
    times = {
        side: max(1, round(SECONDS * 1e3 / min(mean(step, 3) for _ in range(3))))
        for side, step in sides.items()
    }
    rounds = [
        {side: mean(step, times[side]) for side, step in sides.items()} for _ in range(ROUNDS)
    ]
    return {side: min(one[side] for one in rounds) for side in sides}


def row(name: str, chapters: list[str]) -> dict[str, str]:
    """The cells of a backend, measured in a process of its own."""
    environment = {**os.environ, "XDEVICE_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"KERAS_BACKEND": name} if name in KERAS else {}
    command = [sys.executable, __file__, "--here", *chapters]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found = map(json.loads, done.stdout.splitlines()[-len(chapters) :])
    cells = (
        " / ".join(f"{ms:.2g}" if ms < 10 else f"{ms:.0f}" for ms in one.values())
        for one in found
    )
    return dict(zip(chapters, cells, strict=True))


def main() -> None:
    asked = sys.argv[1:]
    chapters = [name for name in CHAPTERS if name in asked] or list(CHAPTERS)
    if "--here" in asked:
        with xdevice.try_gpu():
            for chapter in chapters:
                print(json.dumps(measure(chapter)), flush=True)
        return
    backends = [name for name in native.STEPS if name in asked] or list(native.STEPS)
    cells = {name: row(name, chapters) for name in backends}
    print("", *backends, sep=" | ")
    rows = [[chapter, *(cells[name][chapter] for name in backends)] for chapter in chapters]
    for line in rows:
        print(*line, sep=" | ")
    if "--write" in asked:
        place = "gpu" if xdevice.num_gpus() else "cpu"
        measured.write(
            f"course_{place}", ["ms, ours / native / Keras 3", *backends], rows, backends
        )


if __name__ == "__main__":
    main()
