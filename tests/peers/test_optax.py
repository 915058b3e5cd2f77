"""optax's optimizers compute what docs/reference/optimizers.md says of them."""

from __future__ import annotations

import helpers.optimizer_runs as runs
import numpy as np
import pytest

import xdevice
from xdevice.twins.contract import optimizers as terms

optax = pytest.importorskip("optax")

CASES = [
    ("sgd", {"momentum": 0.9}, "sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}, "sgd", {"momentum": 0.9, "nesterov": True}),
    ("adam", {"eps": 1e-3}, "adam", {"eps": 1e-3, "beta1": 0.9, "beta2": 0.999}),
    (
        "adamw",
        {"eps": 1e-3},
        "adam",
        {"eps": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-4, "decay": terms.DECOUPLED},
    ),
    ("rmsprop", {"eps": 1e-3}, "rmsprop", {"eps": 1e-3, "alpha": 0.9, "eps_enters": terms.INSIDE}),
    ("rmsprop", {"eps": 1e-3, "eps_in_sqrt": False}, "rmsprop", {"eps": 1e-3, "alpha": 0.9}),
    ("rmsprop", {"eps": 1e-3, "momentum": 0.9}, "rmsprop",
     {"eps": 1e-3, "alpha": 0.9, "momentum": 0.9, "eps_enters": terms.INSIDE}),
    ("adagrad", {"eps": 1e-3}, "adagrad",
     {"eps": 1e-3, "initial_accumulator_value": 0.1, "eps_enters": terms.INSIDE}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "kind", "expected"), CASES)
def test_optax_computes_what_the_page_says(name, settings, kind, expected):
    import jax

    transform = getattr(optax, name)(0.05, **settings)
    weights = jax.numpy.asarray(runs.WEIGHTS)
    state = transform.init(weights)
    for gradient in runs.GRADIENTS:
        updates, state = transform.update(jax.numpy.asarray(gradient), state, weights)
        weights = optax.apply_updates(weights, updates)
    wanted = runs.formula(kind, terms.settings(kind, lr=0.05, **expected))
    assert np.abs(wanted - np.asarray(weights)).max() < 5e-6


@pytest.mark.parametrize(("name", "settings", "kind", "expected"), CASES)
def test_the_closures_tell_the_formula_that_was_computed(name, settings, kind, expected):
    with xdevice.use_backend("jax") as backend:
        found = backend.optimizer(getattr(optax, name)(0.05, **settings))
    wanted = terms.settings(kind, lr=0.05, **expected)
    if kind == "rmsprop" and "momentum" in expected:
        wanted["momentum_holds"] = terms.STEPS
    told = {name: value for name, value in found.settings.items() if value != wanted[name]}
    assert found.kind == kind
    assert told == (
        {"decay": terms.COUPLED} if not wanted["weight_decay"] and "decay" in told else {}
    )


def test_an_optimizer_of_pytorch_beside_one_of_optax():
    torch = pytest.importorskip("torch")
    weights = [torch.nn.Parameter(torch.zeros(2))]
    assert (
        xdevice.models.compare_optimizers(torch.optim.Adam(weights, 0.1), optax.adam(0.1)) == []
    )
    (line,) = xdevice.models.compare_optimizers(
        torch.optim.AdamW(weights, 0.1), optax.adamw(0.1)
    )
    assert line.startswith("weight_decay: 0.01 in torch's AdamW, 0.0001 in jax's")
    clipped = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 10))
    )
    clip, schedule = xdevice.models.compare_optimizers(torch.optim.Adam(weights, 0.1), clipped)
    assert "all gradients to a norm of 1 in jax" in clip
    assert schedule.startswith("schedule: None in torch's Adam")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: optax.lion(0.1), "scale_by_lion"),
        (lambda: optax.nadam(0.1), "nesterov=True"),
        (lambda: optax.adamw(0.1, mask={"w": True}), "masked"),
        (lambda: optax.inject_hyperparams(optax.sgd)(0.1), "inject_hyperparams"),
        (lambda: optax.scale_by_adam(), "no learning rate"),
        (lambda: optax.chain(optax.sgd(0.1), optax.sgd(0.1)), "a second time"),
    ],
)
def test_what_is_no_known_formula_is_refused_by_name(make, what):
    with pytest.raises(xdevice.errors.UnsupportedError, match=what):
        xdevice.models.compare_optimizers(make(), optax.sgd(0.1))
