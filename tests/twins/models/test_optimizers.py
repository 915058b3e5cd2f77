"""Optimizers compute what is read of them; what two do differently is listed; a state goes on in another framework."""

from __future__ import annotations

import re

import helpers.optimizer_nets as nets
import helpers.optimizer_runs as runs
import numpy as np
import pytest
from helpers.environment import ROOT, sampled

import xdevice
from xdevice.twins.contract import optimizers as terms

FRAMEWORKS = ("torch", "paddle", "mxnet", "tensorflow")
RATE, DECAY, EPS = 0.05, 0.1, 1e-3

# each by its framework's own names; eps is far from 0, so that where it enters shows
RATES = dict.fromkeys(FRAMEWORKS, "learning_rate") | {"torch": "lr"}
DECAYS = dict.fromkeys(FRAMEWORKS, "weight_decay") | {"mxnet": "wd"}
MOMENTUM = {"momentum": 0.9}
CASES = {
    "torch": [
        ("SGD", {}), ("SGD", MOMENTUM), ("SGD", {**MOMENTUM, "nesterov": True}),
        ("SGD", {**MOMENTUM, "dampening": 0.5, "maximize": True}), ("Adam", {"eps": EPS}),
        ("Adam", {"eps": EPS, "amsgrad": True}), ("Adam", {"eps": EPS, "decoupled_weight_decay": True}),
        ("AdamW", {"eps": EPS}), ("RMSprop", {"eps": EPS}), ("RMSprop", {"eps": EPS, **MOMENTUM}),
        ("RMSprop", {"eps": EPS, **MOMENTUM, "centered": True}), ("Adagrad", {"eps": EPS, "lr_decay": 0.1}),
        ("Adagrad", {"eps": EPS, "initial_accumulator_value": 0.1}),
    ],
    "paddle": [
        ("SGD", {}), ("Momentum", MOMENTUM), ("Momentum", {**MOMENTUM, "use_nesterov": True}),
        ("Adam", {"epsilon": EPS}), ("Adam", {"epsilon": EPS, "amsgrad": True}), ("AdamW", {"epsilon": EPS}),
        ("RMSProp", {"epsilon": EPS}), ("RMSProp", {"epsilon": EPS, **MOMENTUM}),
        ("RMSProp", {"epsilon": EPS, **MOMENTUM, "centered": True}), ("Adagrad", {"epsilon": EPS}),
        ("Adagrad", {"epsilon": EPS, "initial_accumulator_value": 0.1}),
    ],
    "mxnet": [
        ("sgd", {}), ("sgd", {**MOMENTUM, "rescale_grad": 0.5}), ("nag", MOMENTUM), ("nag", {}),
        ("adam", {"epsilon": EPS}), ("rmsprop", {"epsilon": EPS}), ("rmsprop", {"epsilon": EPS, "centered": True}),
        ("adagrad", {"eps": EPS}),
    ],
    "tensorflow": [
        ("SGD", {}), ("SGD", MOMENTUM), ("SGD", {**MOMENTUM, "nesterov": True}), ("Adam", {"epsilon": EPS}),
        ("Adam", {"epsilon": EPS, "amsgrad": True}), ("AdamW", {"epsilon": EPS}), ("RMSprop", {"epsilon": EPS}),
        ("RMSprop", {"epsilon": EPS, **MOMENTUM}), ("RMSprop", {"epsilon": EPS, **MOMENTUM, "centered": True}),
        ("Adagrad", {"epsilon": EPS}), ("Adagrad", {"epsilon": EPS, "initial_accumulator_value": 0.0}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_an_optimizer_computes_what_is_read_of_it(backend, decay):
    for name, settings in CASES[backend]:
        both = {RATES[backend]: RATE, DECAYS[backend]: decay}
        read, weights = runs.run(backend, name, **both, **settings)
        ((_, its, _),) = read.parameters
        assert off(read.kind, its, weights) < 5e-6, f"{name} {settings} is not as it was read"
        for setting, value in others(read.kind, its):
            assert off(read.kind, {**its, setting: value}, weights) > 3e-5, (
                f"{name} {settings} may also be {value}"
            )


def off(kind, settings, weights):
    return np.abs(runs.formula(kind, settings) - weights).max()


def others(kind, its):
    """What where eps enters, decay and Nesterov's step could also be, wherever that changes anything."""
    if "eps_enters" in its:
        there = (
            (terms.ADDED, terms.UNCORRECTED) if kind == "adam" else (terms.ADDED, terms.INSIDE)
        )
        yield "eps_enters", there[its["eps_enters"] == there[0]]
    if its["weight_decay"] and not (kind == "sgd" and not its["momentum"]):
        yield from (
            ("decay", way) for way in (terms.COUPLED, terms.DECOUPLED) if way != its["decay"]
        )
    if its.get("momentum") and "nesterov" in its:
        yield "nesterov", not its["nesterov"]


def optimizer(backend, name, **settings):
    return runs.made(backend, name, **settings)[0]


EQUAL = [
    *((("torch", "SGD", {"lr": 0.05}), (b, n, {RATES[b]: 0.05})) for b, n in
      (("paddle", "SGD"), ("mxnet", "sgd"), ("tensorflow", "SGD"))),
    *((("torch", "SGD", {"lr": 0.05, **MOMENTUM}), (b, n, {RATES[b]: 0.05, **MOMENTUM})) for b, n in
      (("paddle", "Momentum"), ("mxnet", "sgd"), ("tensorflow", "SGD"))),
    *((("torch", "SGD", {"lr": 0.05, **MOMENTUM, "weight_decay": 0.1}),
       (b, n, {RATES[b]: 0.05, **MOMENTUM, DECAYS[b]: 0.1})) for b, n in (("paddle", "Momentum"), ("mxnet", "sgd"))),
    # without momentum, coupled and decoupled decay are one
    (("torch", "SGD", {"lr": 0.05, "weight_decay": 0.1}), ("tensorflow", "SGD", {"learning_rate": 0.05,
     "weight_decay": 0.1})),
    (("torch", "SGD", {"lr": 0.05, **MOMENTUM, "nesterov": True}), ("mxnet", "nag", {"learning_rate": 0.05,
     **MOMENTUM})),
    (("torch", "Adam", {"lr": 0.05}), ("paddle", "Adam", {"learning_rate": 0.05})),
    (("torch", "AdamW", {"lr": 0.05}), ("paddle", "AdamW", {"learning_rate": 0.05})),
    (("tensorflow", "Adam", {"learning_rate": 0.05, "epsilon": 1e-8}), ("mxnet", "adam", {"learning_rate": 0.05})),
    (("tensorflow", "RMSprop", {"learning_rate": 0.05}), ("mxnet", "rmsprop", {"learning_rate": 0.05,
     "epsilon": 1e-7})),
    (("paddle", "RMSProp", {"learning_rate": 0.05, "rho": 0.9}), ("tensorflow", "RMSprop", {"learning_rate": 0.05,
     "epsilon": 1e-6})),
    (("torch", "Adagrad", {"lr": 0.05}), ("paddle", "Adagrad", {"learning_rate": 0.05, "epsilon": 1e-10})),
    (("tensorflow", "Adagrad", {"learning_rate": 0.05, "initial_accumulator_value": 0.0}),
     ("mxnet", "adagrad", {"learning_rate": 0.05})),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_optimizers_without_differences_make_equal_steps(one, other):
    made = [runs.made(backend, name, **settings) for backend, name, settings in (one, other)]
    assert xdevice.models.compare_optimizers(made[0][0], made[1][0]) == []
    for _, _, step in made:
        for gradient in runs.GRADIENTS:
            step(gradient)
    np.testing.assert_allclose(made[0][1](), made[1][1](), atol=1e-5, rtol=0)


DIFFERENT = [
    # planted, as small as no tolerance of outputs could see
    ("SGD", {"lr": 0.1, "momentum": 0.9}, "tensorflow", "SGD", {"learning_rate": 0.1, "momentum": 0.8999},
     ["momentum: 0.9 in torch's SGD, 0.8999 in tensorflow's SGD; momentum=0.9 in tensorflow's SGD makes them equal"]),
    ("Adam", {}, "paddle", "Adam", {"learning_rate": 1e-3, "epsilon": 1.01e-8},
     ["eps: 1e-08 in torch's Adam, 1.01e-08 in paddle's Adam; epsilon=1e-08 in paddle's Adam makes them equal"]),
    ("AdamW", {"weight_decay": 0.01}, "paddle", "Adam", {"learning_rate": 1e-3, "weight_decay": 0.01},
     ["decay: subtracted from the weight, as lr * weight_decay * w in torch's AdamW, added to the gradient in "
      "paddle's Adam; choose paddle.optimizer.Adam (added) or paddle.optimizer.AdamW (subtracted)"]),
    ("AdamW", {"betas": (0.9, 0.999)}, "paddle", "AdamW", {"learning_rate": 1e-3, "beta2": 0.9991}, ["beta2: "]),
    # of defaults
    ("Adam", {}, "tensorflow", "Adam", {}, ["eps_enters: 1e-08 added to the root in torch's Adam, 1e-07 added to "]),
    ("AdamW", {}, "tensorflow", "AdamW", {}, ["eps_enters: ", "weight_decay: 0.01 "]),
    ("RMSprop", {}, "tensorflow", "RMSprop", {}, ["lr: 0.01 in torch's RMSprop, 0.001 ", "alpha: ", "eps_enters: "]),
    ("RMSprop", {}, "paddle", "RMSProp", {"learning_rate": 0.01}, ["alpha: ", "eps_enters: "]),
    ("Adagrad", {}, "tensorflow", "Adagrad", {}, ["lr: ", "eps_enters: ", "initial_accumulator_value: 0 "]),
    ("Adagrad", {}, "mxnet", "adagrad", {}, ["eps_enters: "]),
    ("SGD", {}, "tensorflow", "SGD", {}, ["lr: 0.001 in torch's SGD, 0.01 "]),
    # of forms
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "mxnet", "nag",
     {"learning_rate": 1e-3, "momentum": 0.9, "wd": 0.1}, ["decay: "]),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}, "mxnet", "sgd", {"learning_rate": 1e-3, "momentum": 0.9},
     ["dampening: 0.1 in torch's SGD, 0 in mxnet's SGD; dampening=0 in torch's SGD makes them equal"]),
    ("SGD", {}, "mxnet", "sgd", {"learning_rate": 1e-3, "clip_gradient": 0.5}, ["clip: None in torch's SGD, to "]),
    ("SGD", {}, "mxnet", "sgd", {"learning_rate": 1e-3, "rescale_grad": 0.5}, ["gradient_scale: 1 "]),
    ("Adam", {"amsgrad": True}, "paddle", "Adam", {}, ["amsgrad: True "]),
    ("Adam", {"maximize": True}, "paddle", "Adam", {}, ["maximize: True "]),
    ("SGD", {}, "paddle", "Adam", {}, ["kind: torch's SGD is of the kind sgd, paddle's Adam of the kind adam; "]),
    ("SGD", {}, "tensorflow", "SGD", {"learning_rate": 1e-3, "use_ema": True}, ["moving_average: "]),
    ("SGD", {}, "tensorflow", "SGD", {"learning_rate": 1e-3, "gradient_accumulation_steps": 2}, ["accumulation: 1 "]),
    ("SGD", {}, "tensorflow", "SGD", {"learning_rate": 1e-3, "clipnorm": 1.0}, ["clip: "]),
    ("SGD", {}, "tensorflow", "SGD", {"learning_rate": 1e-3, "loss_scale_factor": 8.0}, ["gradient_scale: 1 in torch"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "backend", "other", "its", "expected"), DIFFERENT)
def test_what_two_optimizers_do_differently_is_listed(
    name, settings, backend, other, its, expected
):
    source, target = optimizer("torch", name, **settings), optimizer(backend, other, **its)
    found = xdevice.models.compare_optimizers(source, target)
    assert len(found) == len(expected), found
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)
    assert len(xdevice.models.compare_optimizers(target, source)) == len(expected), (
        "the other way round there are as many"
    )
    assert (
        xdevice.models.compare_optimizers(source, source)
        == xdevice.models.compare_optimizers(target, target)
        == []
    )


def test_clipping_is_compared_and_comes_before_or_after_the_decay():
    source = optimizer("torch", "SGD", lr=0.05)
    both = {"learning_rate": 0.05, "clip_gradient": 0.5, "wd": 0.1}
    for name, words in (
        ("sgd", "0.5"),
        ("adam", "decay"),
        ("rmsprop", "decay"),
        ("adagrad", "0.5"),
        ("nag", "0.5"),
    ):
        read, weights = runs.run(
            "mxnet", name, **both, **({"momentum": 0.9} if name in ("sgd", "nag") else {})
        )
        ((_, its, _),) = read.parameters
        assert its["clip"].endswith(words)
        assert off(read.kind, its, weights) < 5e-6, f"{name} clips in another order"
    clips = {
        "tensorflow": {"clipvalue": 0.5},
        "paddle": {"grad_clip": paddle_nn().ClipGradByValue(0.5)},
    }
    for backend, clip in clips.items():
        read, weights = runs.run(backend, "SGD", learning_rate=0.05, **clip)
        ((_, its, _),) = read.parameters
        assert off("sgd", its, weights) < 5e-6
        assert xdevice.models.compare_optimizers(
            optimizer(backend, "SGD", learning_rate=0.05, **clip), source
        )[0].startswith("clip: to values from -0.5 to 0.5")
    norms = [
        optimizer(
            "paddle", "SGD", learning_rate=0.05, grad_clip=paddle_nn().ClipGradByGlobalNorm(1.0)
        ),
        optimizer(
            "paddle", "SGD", learning_rate=0.05, grad_clip=paddle_nn().ClipGradByNorm(1.0)
        ),
        optimizer("tensorflow", "SGD", learning_rate=0.05, global_clipnorm=1.0),
        optimizer("tensorflow", "SGD", learning_rate=0.05, clipnorm=1.0),
    ]
    alike = [
        [not xdevice.models.compare_optimizers(one, other) for one in norms] for other in norms
    ]
    assert alike == [[i % 2 == j % 2 for i in range(4)] for j in range(4)]


def paddle_nn():
    return xdevice.backend("paddle").framework.nn


def test_a_schedule_is_listed_and_with_it_what_the_momentum_holds():
    import keras
    import torch

    paddle = xdevice.backend("paddle").framework
    source = optimizer("torch", "SGD", lr=0.1, momentum=0.9)
    assert (
        xdevice.models.compare_optimizers(
            source, optimizer("tensorflow", "SGD", learning_rate=0.1, momentum=0.9)
        )
        == []
    )
    torch.optim.lr_scheduler.StepLR(source, 2)
    steps = optimizer("paddle", "Momentum", learning_rate=paddle.optimizer.lr.StepDecay(0.1, 2))
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    exponential = optimizer("tensorflow", "SGD", learning_rate=decay, momentum=0.9)
    assert [
        text.split(":")[0] for text in xdevice.models.compare_optimizers(source, steps)
    ] == ["schedule"]
    found = xdevice.models.compare_optimizers(source, exponential)
    assert [text.split(":")[0] for text in found] == ["momentum_holds", "schedule"]
    assert "multiply the momentum" in found[0]
    assert "keras.optimizers.schedules.ExponentialDecay in tensorflow's SGD" in found[1]


def test_a_changed_rate_parts_the_two_forms_of_momentum_and_scaling_the_buffer_joins_them():
    """What the sentence about `momentum_holds` says."""
    keras_optimizer, its, go = runs.made("tensorflow", "SGD", learning_rate=0.1, momentum=0.9)
    scaled, theirs, walk = runs.made("tensorflow", "SGD", learning_rate=0.1, momentum=0.9)
    torch_optimizer, mine, run = runs.made("torch", "SGD", lr=0.1, momentum=0.9)
    for number, gradient in enumerate(runs.GRADIENTS):
        if number == 5:
            torch_optimizer.param_groups[0]["lr"] = 0.01
            keras_optimizer.learning_rate = scaled.learning_rate = 0.01
            scaled.momentums[0].assign(scaled.momentums[0] * 0.1)
        go(gradient), walk(gradient), run(gradient)
    assert np.abs(mine() - its()).max() > 1e-2
    np.testing.assert_allclose(theirs(), mine(), atol=1e-6)


def test_a_decay_in_the_loss_is_the_coupled_one():
    """What the sentence about `decay` says."""
    import keras
    import tensorflow as tf

    _, weights, step = runs.made("torch", "SGD", lr=0.05, momentum=0.9, weight_decay=0.1)
    variable = keras.Variable(runs.WEIGHTS)
    decayed = keras.optimizers.SGD(0.05, momentum=0.9)
    decayed.build([variable])
    for gradient in runs.GRADIENTS:
        step(gradient)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable.value * gradient) + keras.regularizers.L2(0.1 / 2)(
                variable.value
            )
        decayed.apply(tape.gradient(loss, [variable.value]))
    np.testing.assert_allclose(variable.numpy(), weights(), atol=1e-6)


def test_the_eps_that_is_advised_makes_adam_nearly_equal():
    advice = xdevice.models.compare_optimizers(
        optimizer("torch", "Adam", lr=1e-3), optimizer("tensorflow", "Adam")
    )[0]
    advised = float(advice.split("epsilon=")[1].split()[0])
    apart = []
    for eps in (advised, 1e-7):
        step_by = (
            runs.made("torch", "Adam", lr=1e-3),
            runs.made("tensorflow", "Adam", epsilon=eps),
        )
        for _ in range(10):
            for _, _, step in step_by:
                step(np.full(16, 1e-4, "float32"))
        moved = np.abs(runs.WEIGHTS - step_by[0][1]()).max()
        apart.append(np.abs(step_by[0][1]() - step_by[1][1]()).max() / moved)
    assert apart[0] < 1e-3 < 1e-2 < apart[1]


def test_the_rates_of_paddles_layers_count():
    paddle = xdevice.backend("paddle").framework
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.AdamW(0.1, parameters=layer.parameters())
    # the CPU refuses the argument `lr_ratio`
    optimizer._lr_ratio = lambda p: 0.5
    first = xdevice.backend("paddle").optimizer(optimizer).parameters[0]
    assert first.settings["lr"] == 0.05


def test_groups_are_compared_in_their_order():
    import torch

    ps = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    groups = [{"params": ps[:1]}, {"params": ps[1:], "weight_decay": 0.1}]
    source, plain = torch.optim.AdamW(groups, lr=0.1), torch.optim.AdamW(ps, lr=0.1)
    assert xdevice.models.compare_optimizers(source, torch.optim.AdamW(groups, lr=0.1)) == []
    changed = torch.optim.AdamW([groups[0], {**groups[1], "betas": (0.9, 0.99)}], lr=0.1)
    found = xdevice.models.compare_optimizers(source, changed)
    assert len(found) == 1
    assert found[0].startswith("group 2: beta2: 0.999 in torch's AdamW, 0.99 ")
    assert xdevice.models.compare_optimizers(source, plain) == [
        "groups: torch's AdamW has 2 groups of settings, but torch's AdamW has 1; each group is compared "
        "with the single group",
        "group 2: weight_decay: 0.1 in torch's AdamW, 0.01 in torch's AdamW; weight_decay=0.1 in torch's AdamW makes "
        "them equal",
    ]


def test_what_else_is_done_at_each_step_is_listed():
    import keras
    import torch

    p = torch.nn.Parameter(torch.zeros(2))
    plain, hooked = torch.optim.SGD([p], lr=0.1), torch.optim.SGD([p], lr=0.1)
    hooked.register_step_pre_hook(lambda *given: None)
    (told,) = xdevice.models.compare_optimizers(plain, hooked)
    assert told.startswith("hooks: None in torch's SGD, 1 from register_step_pre_hook and ")
    other = torch.optim.SGD([p], lr=0.1)
    other.register_step_post_hook(lambda *given: None)
    assert len(xdevice.models.compare_optimizers(other, hooked)) == 1, (
        "two hooks are not known to be one"
    )
    bounded = keras.Variable(np.ones(2, "float32"))
    bounded.constraint = keras.constraints.MaxNorm(2.0)
    its = keras.optimizers.SGD(0.1)
    its.build([bounded])
    (told,) = xdevice.models.compare_optimizers(plain, its)
    assert told.startswith(
        "constraint: None in torch's SGD, MaxNorm(axis=0, max_value=2.0) in tensorflow's SGD; no "
    )


@pytest.mark.parametrize("changes", [
    [{"weight_decay": 0.2, "learning_rate": 0.5, "momentum": 0.5}, {}],
    [{}, {"weight_decay": 0.2, "momentum": 0.5}],
])  # fmt: skip
def test_paddles_groups_are_read_as_they_are_used(changes):
    paddle = xdevice.backend("paddle").framework
    ps = [paddle.create_parameter([16], "float32") for _ in range(2)]
    for p in ps:
        p.set_value(runs.WEIGHTS)
    groups = [{"params": [p], **change} for p, change in zip(ps, changes, strict=True)]
    momentum = paddle.optimizer.Momentum(0.05, parameters=groups, weight_decay=0.1)
    read = xdevice.backend("paddle").optimizer(momentum)
    for gradient in runs.GRADIENTS:
        sum((p * paddle.to_tensor(gradient)).sum() for p in ps).backward()
        momentum.step()
        momentum.clear_grad()
    for p, its in zip(ps, read.parameters, strict=True):
        assert off("sgd", its.settings, p.numpy()) < 5e-6
    after = xdevice.backend("paddle").optimizer(momentum).parameters
    assert [one.settings for one in after] == [one.settings for one in read.parameters]


def test_gluons_multipliers_and_keras_exclusions_make_groups():
    import keras

    mx = xdevice.backend("mxnet").framework
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    net.bias.wd_mult, net.bias.lr_mult = 0.0, 2.0
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1})
    read = {
        id(one.variable): one.settings
        for one in xdevice.backend("mxnet").optimizer(trainer).parameters
    }
    assert [read[id(p.data())][name] for p in (net.weight, net.bias) for name in ("lr", "weight_decay")] == [
        0.1, 0.1, 0.2, 0.0,
    ]  # fmt: skip
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    adam = keras.optimizers.AdamW(weight_decay=0.1)
    adam.exclude_from_weight_decay(var_names=["bias"])
    adam.build(dense.trainable_variables)
    parameters = xdevice.backend("tensorflow").optimizer(adam).parameters
    assert [one.settings["weight_decay"] for one in parameters] == [0.1, 0.0]


def test_what_gluon_divides_gradients_by_is_seen_after_a_step():
    source = optimizer("torch", "SGD", lr=0.1)
    trainer, _, _ = runs.made("mxnet", "sgd", learning_rate=0.1)
    assert xdevice.models.compare_optimizers(source, trainer) == []
    p = trainer._params[0]
    with xdevice.backend("mxnet").framework.autograd.record():
        loss = p.data().sum()
    loss.backward()
    trainer.step(16)
    (text,) = xdevice.models.compare_optimizers(source, trainer)
    assert text.startswith(
        "gradient_scale: 1 in torch's SGD, 0.0625 in mxnet's SGD; call step(1), as step(n) divides gradients by n"
    )


def test_a_class_that_is_not_known_is_refused_by_name():
    import keras
    import torch

    paddle, mx = (xdevice.backend(name).framework for name in ("paddle", "mxnet"))

    class Own(torch.optim.Adam):
        pass

    p = torch.nn.Parameter(torch.zeros(2))
    known = torch.optim.SGD([p], lr=0.1)
    linear = paddle.nn.Linear(2, 2)
    unknown = [
        torch.optim.NAdam([p]), Own([p]), keras.optimizers.Lion(), mx.optimizer.Nadam(),
        paddle.optimizer.Lamb(0.1, parameters=linear.parameters()), linear,
    ]  # fmt: skip
    for one in unknown:
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=f"reading .*{type(one).__name__}.*; use one of",
        ):
            xdevice.models.compare_optimizers(known, one)
    with pytest.raises(xdevice.errors.UnsupportedError, match="reading ndarray"):
        xdevice.models.compare_optimizers(known, np.zeros(2))
    with pytest.raises(
        xdevice.errors.NotATensorError,
        match="expected an optimizer from a supported framework, not 3 of type int",
    ):
        xdevice.models.compare_optimizers(known, 3)


def test_paddles_own_traps_are_refused_by_name():
    paddle = xdevice.backend("paddle").framework
    attr = paddle.ParamAttr(regularizer=paddle.regularizer.L2Decay(0.1))
    both = paddle.optimizer.AdamW(
        parameters=paddle.nn.Linear(2, 2, weight_attr=attr).parameters()
    )
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"AdamW optimizer whose parameter .* also has a regularizer",
    ):
        xdevice.models.compare_optimizers(both, both)
    halved = paddle.optimizer.Momentum(
        parameters=paddle.nn.Linear(2, 2).parameters(), rescale_grad=0.5
    )
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="rescale_grad, which has no effect on the CPU"
    ):
        xdevice.models.compare_optimizers(halved, halved)
    empty = paddle.optimizer.Adam(parameters=[])
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="the Adam optimizer, which has no parameters"
    ):
        xdevice.models.compare_optimizers(empty, empty)


# the state


EACH_TIME = [
    ("torch", "paddle", "adam"), ("torch", "tensorflow", "adam"), ("torch", "mxnet", "adam"),
    ("tensorflow", "torch", "momentum"), ("mxnet", "paddle", "momentum"), ("paddle", "tensorflow", "rmsprop"),
]  # fmt: skip
ALL = [
    (one, other, kind)
    for one in FRAMEWORKS
    for other in FRAMEWORKS
    if one != other
    for kind in nets.KINDS
]


@pytest.mark.parametrize(("source", "target", "kind"), sampled(ALL, each_time=EACH_TIME))
def test_5_steps_here_and_5_there_are_10(source, target, kind):
    net, other = nets.handed_on(source, target, kind)
    assert nets.furthest(net, other, target) < 1e-5


@pytest.mark.slow
def test_without_the_state_the_nets_are_far_apart(monkeypatch):
    monkeypatch.setattr(xdevice.models, "convert_optimizer", lambda *_, **__: None)
    for kind in nets.KINDS:
        net, other = nets.handed_on("torch", "tensorflow", kind)
        assert nets.furthest(net, other, "tensorflow") > 1e-3, kind


def pair(source, target, kind, *, steps=2, ours=None, theirs=None):
    net, one, step = nets.made(source, kind, **(ours or {}))
    other, two, _ = nets.made(target, kind, **(theirs or {}))
    for x, y in zip(nets.IMAGES[:steps], nets.WANTED[:steps], strict=True):
        step(x, y)
    return one, two, xdevice.models.convert_state(net, target, like=other), (net, other)


@pytest.mark.parametrize(("kind", "theirs", "setting"), [
    ("momentum", {"momentum": 0.8999}, "momentum"), ("momentum", {"weight_decay": 0.1}, "weight_decay"),
    ("adam", {"beta_2": 0.99}, "beta2"), ("adam", {"amsgrad": True}, "amsgrad"), ("rmsprop", {"rho": 0.95}, "alpha"),
    ("adagrad", {"initial_accumulator_value": 0.1}, "initial_accumulator_value"),
])  # fmt: skip
def test_a_state_that_would_mean_something_else_is_refused_by_name(kind, theirs, setting):
    one, two, state, models = pair("torch", "tensorflow", kind, theirs=theirs)
    before = {
        name: xdevice.to_numpy(x) for name, x in xdevice.backend("tensorflow").variables(two)
    }
    with pytest.raises(
        xdevice.errors.StateError,
        match=rf"(?s)nothing was written; make the settings equal.*  {setting}: ",
    ):
        xdevice.models.convert_optimizer(one, two, state, models=models)
    for name, x in xdevice.backend("tensorflow").variables(two):
        np.testing.assert_array_equal(xdevice.to_numpy(x), before[name])
    told = xdevice.models.convert_optimizer(one, two, state, models=models, strict=False)
    assert any(text.startswith(f"{setting}: ") for text in told)
    assert two.iterations.numpy() == (0 if kind == "momentum" else 2), (
        "PyTorch's SGD counts no steps"
    )


def test_what_the_state_does_not_depend_on_is_told_and_converted():
    one, two, state, models = pair(
        "torch", "paddle", "adam", theirs={"epsilon": 1.01e-12, "learning_rate": 0.02}
    )
    told = xdevice.models.convert_optimizer(one, two, state, models=models)
    assert [text.split(":")[0] for text in told] == ["lr", "eps"]


def test_optimizers_of_two_kinds_have_no_common_state():
    one, _, state, models = pair("torch", "paddle", "adam")
    _, two, _ = nets.made("paddle", "momentum")
    for strict in (True, False):
        with pytest.raises(
            xdevice.errors.StateError,
            match=r"use an optimizer of the same kind:\n  kind: torch's Adam",
        ):
            xdevice.models.convert_optimizer(one, two, state, models=models, strict=strict)


def test_an_optimizer_that_has_taken_no_step_has_nothing_to_give():
    one, two, state, models = pair("torch", "paddle", "adam", steps=0)
    with pytest.raises(xdevice.errors.StateError, match="torch's Adam has no state yet"):
        xdevice.models.convert_optimizer(one, two, state, models=models)


def test_plain_sgd_has_no_state_and_none_is_missed():
    one, two, state, models = pair(
        "torch", "mxnet", "momentum", ours={"momentum": 0}, theirs={"momentum": 0.0}
    )
    assert xdevice.models.convert_optimizer(one, two, state, models=models) == []


def test_a_frozen_parameter_on_one_side_is_an_error_or_left_as_it_is():
    import torch

    net, _, _ = nets.made("torch", "adam")
    one = torch.optim.Adam(net.fc.parameters(), lr=0.01, eps=nets.EPS)
    net(torch.tensor(nets.IMAGES[0])).sum().backward()
    one.step()
    other, two, _ = nets.made("paddle", "adam")
    state = xdevice.models.convert_state(net, "paddle", like=other)
    with pytest.raises(xdevice.errors.StateError) as error:
        xdevice.models.convert_optimizer(one, two, state, models=(net, other))
    assert "conv.weight: torch's Adam does not update conv.weight" in str(error.value)
    assert not two._accumulators
    xdevice.models.convert_optimizer(one, two, state, models=(net, other), strict=False)
    moments = dict(xdevice.backend("paddle").variables(two))
    np.testing.assert_array_equal(
        moments["2.moment1"].numpy(), one.state[net.fc.weight]["exp_avg"].numpy().T
    )
    paddle = xdevice.backend("paddle").framework
    frozen = paddle.optimizer.Adam(0.01, parameters=other.fc.parameters(), epsilon=nets.EPS)
    one, _, _, _ = pair("torch", "paddle", "adam")
    net, one, step = nets.made("torch", "adam")
    step(nets.IMAGES[0], nets.WANTED[0])
    state = xdevice.models.convert_state(net, "paddle", like=other)
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"paddle's Adam updates no parameter that was converted from conv.weight, conv.b",
    ):
        xdevice.models.convert_optimizer(one, frozen, state, models=(net, other))


def test_two_biases_that_are_one_have_no_common_moment():
    import keras
    import torch

    lstm = torch.nn.LSTM(3, 2, batch_first=True)
    one = torch.optim.Adam(lstm.parameters(), eps=nets.EPS)
    lstm(torch.ones(1, 4, 3))[0].sum().backward()
    one.step()
    images = keras.Input((4, 3))
    other = keras.Model(images, keras.layers.LSTM(2, return_sequences=True)(images))
    two = keras.optimizers.Adam(1e-3, epsilon=nets.EPS)
    two.build(other.trainable_variables)
    state = xdevice.models.convert_state(lstm, "tensorflow", like=other)
    with pytest.raises(
        xdevice.errors.StateError, match=r"bias: it is computed from bias_ih_l0 and bias_hh_l0"
    ):
        xdevice.models.convert_optimizer(one, two, state, models=(lstm, other))
    xdevice.models.convert_optimizer(one, two, state, models=(lstm, other), strict=False)
    kernel = next(x for x in two.variables if x.path.endswith("kernel_momentum"))
    np.testing.assert_array_equal(
        kernel.numpy(), one.state[lstm.weight_ih_l0]["exp_avg"].numpy().T
    )


def test_one_parameter_that_becomes_two_has_no_common_moment():
    import torch

    paddle = xdevice.backend("paddle").framework
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    one = torch.optim.Adam(tied.parameters(), lr=0.01)
    tied(torch.ones(1, 3)).sum().backward()
    one.step()
    untied = paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3))
    two = paddle.optimizer.Adam(0.01, parameters=untied.parameters())
    state = xdevice.models.convert_state(tied, "paddle", like=untied)
    with pytest.raises(xdevice.errors.StateError) as error:
        xdevice.models.convert_optimizer(one, two, state, models=(tied, untied))
    assert all(
        f"{name}: moments are converted only if each element of its source is used by exactly one"
        in str(error.value)
        for name in ("0.weight", "1.weight")
    )
    untied[1].weight = untied[0].weight
    two = paddle.optimizer.Adam(0.01, parameters=untied.parameters())
    state = xdevice.models.convert_state(tied, "paddle", like=untied)
    assert xdevice.models.convert_optimizer(one, two, state, models=(tied, untied)) == []
    moment = dict(xdevice.backend("paddle").variables(two))["0.moment1"]
    np.testing.assert_array_equal(
        moment.numpy(), one.state[tied[0].weight]["exp_avg"].numpy().T
    )


def test_parameters_with_different_counts_of_steps_become_none_with_one():
    import torch

    paddle = xdevice.backend("paddle").framework
    net, other = (
        paddle.nn.MultiHeadAttention(4, 2),
        torch.nn.MultiheadAttention(4, 2, batch_first=True),
    )
    one = paddle.optimizer.Adam(1e-3, parameters=net.parameters(), epsilon=nets.EPS)
    two = torch.optim.Adam(other.parameters(), lr=1e-3, eps=nets.EPS)
    x = paddle.to_tensor(np.random.default_rng(0).random((2, 3, 4), "float32"))
    # the second and third steps train the query's weight too
    for is_frozen in (True, False, False):
        net.q_proj.weight.stop_gradient = is_frozen
        net(x).square().sum().backward()
        one.step()
        one.clear_grad()
    state = xdevice.models.convert_state(net, "torch", like=other)
    with pytest.raises(
        xdevice.errors.StateError,
        match="in_proj_weight: it is computed from parameters with different counts of steps: 2, 3",
    ):
        xdevice.models.convert_optimizer(one, two, state, models=(net, other))
    assert not two.state


def test_models_that_are_not_these_are_refused():
    one, two, state, (net, other) = pair("torch", "paddle", "adam")
    with pytest.raises(
        xdevice.errors.NotATensorError, match="expected a model of torch, not Net"
    ):
        xdevice.models.convert_optimizer(one, two, state, models=(other, net))
    unbuilt, _, _ = nets.made("tensorflow", "adam")
    import keras

    keras_state = xdevice.models.convert_state(net, "tensorflow", like=unbuilt)
    with pytest.raises(xdevice.errors.NotBuiltError, match="build it first"):
        xdevice.models.convert_optimizer(
            one, keras.optimizers.Adam(0.01, epsilon=0.0), keras_state, models=(net, unbuilt)
        )
    double, _, _ = nets.made("torch", "adam")
    with pytest.raises(xdevice.errors.StateError, match=r"does not update conv.weight"):
        xdevice.models.convert_optimizer(one, two, state, models=(double, other))


# docs/reference/optimizers.md

PAGE = (ROOT / "docs" / "reference" / "optimizers.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_print_what_it_shows(capsys):
    shown = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for code, said in shown:
        exec(compile(code, "optimizers.md", "exec"), {})
        assert capsys.readouterr().out == said


DEFAULTS = re.findall(
    r"^\| (SGD|Adam|AdamW|RMSprop|Adagrad) (\w+) \| (.*) \|$", PAGE, re.MULTILINE
)
OWN_NAMES = {"mxnet": {"RMSprop": "rmsprop"}, "paddle": {"RMSprop": "RMSProp"}}


@pytest.mark.parametrize(("name", "setting", "cells"), DEFAULTS)
def test_the_defaults_of_the_page_are_those_of_the_frameworks(name, setting, cells):
    for backend, cell in zip(FRAMEWORKS, cells.split(" | "), strict=True):
        own = OWN_NAMES.get(backend, {}).get(name, name.lower() if backend == "mxnet" else name)
        if cell in ("-", "given"):
            with pytest.raises((ValueError, TypeError)):
                optimizer(backend, own)
            continue
        needs_rate = backend == "paddle" and name in ("RMSprop", "Adagrad")
        read = xdevice.backend(backend).optimizer(
            optimizer(backend, own, **{RATES[backend]: 0.1} if needs_rate else {})
        )
        assert read.settings[setting] == pytest.approx(float(cell), rel=1e-6), backend
    assert len(DEFAULTS) == 10
