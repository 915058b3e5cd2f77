"""`parallel.run` on two real GPUs by the frameworks that schedule by themselves: `pytest -m gpu`."""

from __future__ import annotations

import numpy as np
import pytest

import xdevice

pytestmark = pytest.mark.gpu

SIZE, STEPS = 2048, 20


@pytest.fixture(autouse=True)
def _closed_pool():
    yield
    xdevice.parallel.close_pool()


def needs(name):
    try:
        backend = xdevice.backend(name)
    except (xdevice.errors.BackendNotFoundError, xdevice.errors.BackendImportError) as error:
        pytest.skip(str(error))
    if backend.count("gpu") < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_tasks_on_two_gpus_give_what_they_give_one_after_the_other(name):
    needs(name)
    with xdevice.use_backend(name):
        rng = np.random.default_rng(0)
        host = rng.random((SIZE, SIZE), dtype="float32") / SIZE
        xs = [
            xdevice.tensor(host * (i + 1), device=gpu)
            for i, gpu in enumerate(xdevice.try_all_gpus()[:2])
        ]

        def work(x):
            y = x
            with xdevice.device_of(x):  # else TensorFlow computes on the first GPU
                for _ in range(STEPS):
                    y = (y @ x) * 2
            return y

        alone = [work(x) for x in xs]
        for _ in range(5):
            together = xdevice.parallel.run(lambda: work(xs[0]), lambda: work(xs[1]))
            for x, y, z in zip(xs, alone, together, strict=True):
                assert xdevice.same_device(x, z)
                np.testing.assert_array_equal(xdevice.to_numpy(z), xdevice.to_numpy(y))
