"""Run by the tests: trains replicas on two virtual GPUs, or one net in several processes, compiled and not."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np

import xdevice

xp = xdevice.array_namespace()
RANGE = range(3)


def loss(params, x, y):
    return xdevice.nn.cross_entropy(xp.add(xp.matmul(x, params["w"]), params["b"]), y)


def gradients(params, x, y):
    return xdevice.math.value_and_grad(loss)(params, x, y)[1]


def descend(params, grads):
    return xdevice.math.update(params, grads, lambda p, g: p - 0.1 * g)


def data(seed):
    with xdevice.random.seed(seed):
        return xdevice.random.normal(8, 4), xdevice.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def of_replicas(gradients, descend):
    devices = xdevice.try_all_gpus()
    assert len(devices) == 2
    replicas = xdevice.parallel.replicate(
        {"w": xdevice.zeros(4, 3), "b": xdevice.zeros(3)}, devices
    )
    parts = xdevice.split_batch(data(0), devices)
    for _ in RANGE:
        tasks = [
            partial(gradients, replica, *part)
            for replica, part in zip(replicas, parts, strict=True)
        ]
        grads = xdevice.parallel.run(*tasks)
        means = {
            name: xdevice.parallel.all_reduce([one[name] for one in grads], "mean")
            for name in ("w", "b")
        }
        grads = [{name: means[name][i] for name in means} for i in (0, 1)]
        replicas = [
            descend(replica, grad) for replica, grad in zip(replicas, grads, strict=True)
        ]
    assert [xdevice.device_of(replica) for replica in replicas] == devices
    return [xdevice.to_numpy(replica["w"]) for replica in replicas]


def of_processes(gradients, descend, world):
    params = {"w": xdevice.zeros(4, 3), "b": xdevice.zeros(3)}
    for _ in RANGE:
        params = descend(params, world.average_gradients(gradients(params, *data(world.rank))))
    return [xdevice.to_numpy(params["w"])]


def compare(train, *more):
    wanted = train(gradients, descend, *more)
    made = train(xdevice.compile(gradients), xdevice.compile(descend), *more)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    print("equal", float(np.abs(made[0]).max()) > 0.01)


def refused(world):
    def step(params, x, y):
        return world.average_gradients(gradients(params, x, y))

    try:
        xdevice.compile(step)({"w": xdevice.zeros(4, 3), "b": xdevice.zeros(3)}, *data(0))
    except xdevice.errors.UnsupportedError as error:
        print(error)


if __name__ == "__main__":
    if sys.argv[1] == "replicas":
        compare(of_replicas)
    else:
        with xdevice.distributed.processes() as world:
            compare(of_processes, world)
            refused(world)
