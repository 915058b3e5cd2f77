"""Optimizers against the formulas of torch.optim in float64, on every backend, compiled or not; clipping; schedules."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS, ROOT, sampled

import xdevice
from xdevice import optim

STEPS = 6
SETTINGS = {
    "sgd": (optim.sgd, {"lr": 0.1}),
    "sgd momentum": (optim.sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    "sgd nesterov": (optim.sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.adam, {"lr": 0.05, "weight_decay": 0.1}),
    "adam betas": (optim.adam, {"lr": 0.05, "betas": (0.0, 0.9), "eps": 1e-3}),
    "adamw": (optim.adamw, {"lr": 0.05, "weight_decay": 0.1}),
    "rmsprop": (optim.rmsprop, {"lr": 0.05, "weight_decay": 0.1}),
    "adagrad": (optim.adagrad, {"lr": 0.05, "weight_decay": 0.1}),
}


def begin():
    draw = np.random.default_rng(0)
    return {"b": draw.normal(size=2), "w": [draw.normal(size=(2, 3))]}


def gradients(step):
    draw = np.random.default_rng(step + 1)
    return {"b": draw.normal(size=2), "w": [draw.normal(size=(2, 3)) * 1e-3]}


def expected(
    rule,
    lr,
    momentum=0.0,
    nesterov=False,
    weight_decay=None,
    betas=(0.9, 0.999),
    eps=None,
    alpha=0.99,
):
    """The parameters after all steps, flat."""
    p = np.concatenate([begin()["b"], begin()["w"][0].ravel()])
    m = v = np.zeros_like(p)
    weight_decay = (
        (0.01 if rule is optim.adamw else 0.0) if weight_decay is None else weight_decay
    )
    eps = (1e-10 if rule is optim.adagrad else 1e-8) if eps is None else eps
    for step in range(STEPS):
        found = gradients(step)
        g = np.concatenate([found["b"], found["w"][0].ravel()])
        if rule is optim.adamw:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        if rule is optim.sgd:
            m = momentum * m + g
            p = p - lr * (g + momentum * m if nesterov else m)
        elif rule in (optim.adam, optim.adamw):
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
            ahead, around = m / (1 - betas[0] ** (step + 1)), v / (1 - betas[1] ** (step + 1))
            p = p - lr * ahead / (np.sqrt(around) + eps)
        else:
            v = v + g * g if rule is optim.adagrad else alpha * v + (1 - alpha) * g * g
            p = p - lr * g / (np.sqrt(v) + eps)
    return p


def tensors(values):
    return {
        "b": xdevice.tensor(values["b"], dtype="float32"),
        "w": [xdevice.tensor(values["w"][0], dtype="float32")],
    }


def flat(params):
    return np.concatenate(
        [xdevice.to_numpy(params["b"]), xdevice.to_numpy(params["w"][0]).ravel()]
    )


@pytest.mark.parametrize("case", SETTINGS)
def test_the_formulas_of_every_optimizer(xd, case):
    rule, settings = SETTINGS[case]
    params = tensors(begin())
    state = first = optim.init(rule, params)
    for step in range(STEPS):
        params, state = rule(params, tensors(gradients(step)), state, **settings)
    np.testing.assert_allclose(flat(params), expected(rule, **settings), rtol=2e-5, atol=1e-6)
    assert (xdevice.item(first["step"]), xdevice.item(state["step"])) == (0, STEPS)
    assert state.keys() == first.keys()


@pytest.mark.parametrize("which", ["adam", "adamw"])
def test_a_step_leaves_what_it_is_given_and_takes_any_layout(xd, which):
    rule, xp = getattr(optim, which), xdevice.array_namespace()
    params = [xdevice.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), xdevice.ones(2)]
    flat = [xdevice.tensor([[1.0, 20.0], [3.0, 40.0], [5.0, 60.0]]), xdevice.ones(2)]
    grads = [xp.matrix_transpose(flat[0]), flat[1]]
    state = optim.init(rule, params)
    once, again = (rule(params, grads, state, lr=0.1, eps=1.0) for _ in range(2))
    xdevice.assert_parity(once, again)
    wanted = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) * (
        0.999 if rule is optim.adamw else 1.0
    )
    slopes = np.array([[1.0, 3.0, 5.0], [20.0, 40.0, 60.0]])
    np.testing.assert_allclose(
        xdevice.to_numpy(once[0][0]), wanted - 0.1 * slopes / (slopes + 1), rtol=1e-5
    )
    assert not any(
        xdevice.to_numpy(x).any() for part in ("mean", "square") for x in state[part]
    )
    assert xdevice.to_numpy(params[0]).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "numpy"])
def test_a_step_of_adam_is_differentiated(name):
    with xdevice.use_backend(name):
        xp = xdevice.array_namespace()
        params, g = xdevice.ones(2), xdevice.tensor([1.0, 3.0])
        state = optim.init(optim.adam, params)
        slope = xdevice.math.grad(
            lambda g: xp.sum(optim.adam(params, g, state, lr=0.5, eps=1.0)[0])
        )(g)
        np.testing.assert_allclose(xdevice.to_numpy(slope), [-0.5 / 4, -0.5 / 16], rtol=1e-4)


@pytest.mark.parametrize("case", SETTINGS)
def test_torch_optim_computes_the_same(case):
    torch = pytest.importorskip("torch")
    rule, settings = SETTINGS[case]
    classes = {
        "sgd": "SGD",
        "adam": "Adam",
        "adamw": "AdamW",
        "rmsprop": "RMSprop",
        "adagrad": "Adagrad",
    }
    leaves = [torch.tensor(begin()["b"]), torch.tensor(begin()["w"][0])]
    there = getattr(torch.optim, classes[rule.__name__])(leaves, **settings)
    for step in range(STEPS):
        leaves[0].grad, leaves[1].grad = (
            torch.tensor(gradients(step)["b"]),
            torch.tensor(gradients(step)["w"][0]),
        )
        there.step()
    got = np.concatenate([leaf.numpy().ravel() for leaf in leaves])
    np.testing.assert_allclose(got, expected(rule, **settings), rtol=1e-12)


@pytest.mark.parametrize(
    "name", sampled([name for name in FRAMEWORKS if name in ("jax", "tensorflow")])
)
def test_a_compiled_step_is_traced_once_and_gives_the_same(name):
    traced = []

    def step(params, state, grads):
        traced.append(1)
        rate = 0.05 * optim.warmup(state["step"], 3) * optim.cosine(state["step"], 10)
        return optim.adam(params, optim.clip_by_global_norm(grads, 1.0), state, lr=rate)

    with xdevice.use_backend(name) as backend:
        jit = backend.framework.jit if name == "jax" else backend.framework.function
        ends = []
        for run in (jit(step), step):
            params = tensors(begin())
            state = optim.init(optim.adam, params)
            traced.clear()
            for i in range(STEPS):
                params, state = run(params, state, tensors(gradients(i)))
            ends.append(flat(params))
            assert len(traced) == (1 if run is not step else STEPS)
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)


def test_clipping_by_the_norm_of_all(xd):
    grads = {"a": xdevice.tensor([3.0, 0.0]), "b": [xdevice.tensor([[4.0]])]}
    assert xdevice.item(optim.global_norm(grads)) == pytest.approx(5)
    clipped = optim.clip_by_global_norm(grads, 2.5)
    np.testing.assert_allclose(xdevice.to_numpy(clipped["a"]), [1.5, 0], rtol=1e-6)
    np.testing.assert_allclose(xdevice.to_numpy(clipped["b"][0]), [[2]], rtol=1e-6)
    same = optim.clip_by_global_norm(grads, 10)
    np.testing.assert_array_equal(xdevice.to_numpy(same["a"]), [3, 0])
    zeros = optim.clip_by_global_norm([xdevice.zeros(2)], 1.0)
    assert not xdevice.to_numpy(zeros[0]).any()


def test_schedules_of_numbers_and_of_tensors(xd):
    for step in (0, 1, 5, 10, 20):
        here = xdevice.tensor(step)
        for schedule, wanted in (
            (optim.warmup, min((step + 1) / 10, 1)),
            (optim.cosine, (1 + math.cos(math.pi * min(step / 10, 1))) / 2),
        ):
            assert schedule(step, 10) == pytest.approx(wanted, abs=1e-12)
            assert xdevice.item(schedule(here, 10)) == pytest.approx(wanted, abs=1e-6)


def test_what_is_refused_by_name(xd):
    params = [xdevice.ones(2)]
    state = optim.init(optim.sgd, params)
    with pytest.raises(xdevice.errors.ArgumentError, match="one of the optimizers"):
        optim.init(max, params)
    with pytest.raises(
        xdevice.errors.ArgumentError, match=r"init\(xdevice.optim.adam, params\)"
    ):
        optim.adam(params, params, state)
    with pytest.raises(xdevice.errors.ContainerError, match="differ in structure"):
        optim.sgd(params, params, state | {"momentum": [*params, *params]}, lr=0.1)
    with pytest.raises(
        xdevice.errors.ArgumentError, match="max_norm must be a positive number"
    ):
        optim.clip_by_global_norm(params, 0)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_example_of_the_page_prints_what_it_shows(name, capsys):
    page = (ROOT / "docs" / "reference" / "optim.md").read_text(encoding="utf-8")
    code, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL
    ).groups()
    with xdevice.use_backend(name):
        exec(compile(code, "optim.md", "exec"), {})
    assert capsys.readouterr().out == shown
