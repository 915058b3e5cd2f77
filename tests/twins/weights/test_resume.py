"""Training that goes on in another process from a file of model and optimizer ends where it would have without a stop.

As a script it is the process that trains and saves, or the one that loads and trains on.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from helpers.environment import ROOT, python, sampled

import xdevice

DATA = np.random.default_rng(0).random((6, 5, 4), dtype="float32")
BEFORE = 3


# each gives, by the optimizer's name, a model, its optimizer, and a step on a batch


def torch_runs():
    import torch

    kinds = {
        "SGD": {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}, "Adam": {"lr": 0.1, "amsgrad": True},
        "AdamW": {"lr": 0.1}, "Adagrad": {"lr": 0.1}, "Adafactor": {"lr": 0.1}, "ASGD": {"lr": 0.01},
        "NAdam": {"lr": 0.1}, "RAdam": {"lr": 0.1}, "Rprop": {"lr": 0.1}, "RMSprop": {"lr": 0.1, "centered": True},
    }  # fmt: skip
    for name, settings in kinds.items():
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
        )
        net[1].requires_grad_(False)  # it has no state
        yield (
            name,
            net,
            *_torch(torch, net, getattr(torch.optim, name)(net.parameters(), **settings)),
        )


def _torch(torch, net, optimizer):
    def step(batch):
        optimizer.zero_grad()
        net(torch.tensor(batch)).square().sum().backward()
        optimizer.step()

    return optimizer, step


def paddle_runs():
    import paddle

    kinds = {
        "SGD": {}, "Momentum": {"momentum": 0.9}, "Adam": {}, "AdamW": {}, "Adagrad": {}, "Adamax": {}, "Lamb": {},
    }  # fmt: skip
    for name, settings in kinds.items():
        net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Linear(3, 1))
        yield (
            name,
            net,
            *_paddle(
                paddle,
                net,
                getattr(paddle.optimizer, name)(0.01, parameters=net.parameters(), **settings),
            ),
        )


def _paddle(paddle, net, optimizer):
    def step(batch):
        net(paddle.to_tensor(batch)).square().sum().backward()
        optimizer.step()
        optimizer.clear_grad()

    return optimizer, step


def mxnet_runs():
    mx = xdevice.backend("mxnet").framework
    kinds = {
        "sgd": {"momentum": 0.9},
        "adam": {},
        "rmsprop": {},
        "adagrad": {},
        "ftrl": {},
        "lamb": {},
    }
    for name, settings in kinds.items():
        net = mx.gluon.nn.Sequential()
        net.add(mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.Dense(1, in_units=3))
        net.initialize()
        # a schedule counts the steps too
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        trainer = mx.gluon.Trainer(
            net.collect_params(),
            name,
            {"lr_scheduler": schedule, "learning_rate": 0.1, **settings},
        )
        yield name, net, *_mxnet(mx, net, trainer)


def _mxnet(mx, net, trainer):
    def step(batch):
        with mx.autograd.record():
            loss = (net(mx.nd.array(batch)) ** 2).sum()
        loss.backward()
        trainer.step(1)

    return trainer, step


def tensorflow_runs():
    import keras

    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Nadam"):
        net = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
        )
        optimizer = getattr(keras.optimizers, name)(
            0.1, **({"momentum": 0.9} if name == "SGD" else {})
        )
        optimizer.build(net.trainable_variables)
        yield name, net, *_tensorflow(net, optimizer)


def _tensorflow(net, optimizer):
    import tensorflow as tf

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(batch) ** 2)
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

    return optimizer, step


RUNS = {
    "torch": torch_runs,
    "tensorflow": tensorflow_runs,
    "paddle": paddle_runs,
    "mxnet": mxnet_runs,
}


def first(backend, folder):
    for name, net, optimizer, step in RUNS[backend]():
        for batch in DATA[:BEFORE]:
            step(batch)
        xdevice.save(f"{folder}/{name}", {"net": net, "optimizer": optimizer})
        for batch in DATA[BEFORE:]:
            step(batch)
        xdevice.save(f"{folder}/{name}.end", net)


def second(backend, folder):
    list(RUNS[backend]())  # names that a framework counts in the process are others now
    for name, net, optimizer, step in RUNS[backend]():
        # the optimizer first, whose state some make of the parameters
        xdevice.load(f"{folder}/{name}", into={"optimizer": optimizer, "net": net})
        for batch in DATA[BEFORE:]:
            step(batch)
        end = xdevice.load(f"{folder}/{name}.end", backend=backend)
        for key, x in dict(xdevice.backend(backend).variables(net)).items():
            np.testing.assert_allclose(
                xdevice.to_numpy(x),
                xdevice.to_numpy(end[key]),
                1e-6,
                0,
                False,
                f"{name}: {key}",
            )
        print("went on with", name)


@pytest.mark.parametrize("backend", sampled(RUNS, each_time=(), slow=["paddle"], others="long"))
def test_training_goes_on_in_another_process_as_if_there_had_been_no_stop(backend, tmp_path):
    seen = {}
    for part in ("first", "second"):
        folders = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        done = python(
            __file__, part, backend, tmp_path, XDEVICE_BACKEND=backend, PYTHONPATH=folders
        )
        assert done.returncode == 0, done.stderr
        seen[part] = done.stdout
    assert (
        len(seen["second"].split("went on with")) - 1 == len(list(tmp_path.glob("*.end"))) >= 5
    )


if __name__ == "__main__":
    {"first": first, "second": second}[sys.argv[1]](*sys.argv[2:])
