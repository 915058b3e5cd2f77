"""optax's optimizers compute what docs/reference/optimizers.md says of them."""

from __future__ import annotations

import numpy as np
import optimizer_runs as runs
import pytest

from xdevice.contract import optimizers as terms

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
