"""The verbs for several devices on two real GPUs: `pytest -m gpu`. Sums by NCCL, and device to device.

A build of a framework that has no kernels for these GPUs is named in XDEVICE_NO_KERNELS ("paddle,mxnet").
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.environment import NO_KERNELS

import xdevice

pytestmark = pytest.mark.gpu

NCCL = ["torch", "tensorflow", "jax"]
KERNELS = [*NCCL, "paddle"]
SIZE = 1 << 22


@pytest.fixture
def gpus(request):
    name = request.getfixturevalue("name")
    if name not in xdevice.backends():
        pytest.skip(f"no {name}")
    if name in NO_KERNELS:
        pytest.skip(f"{name} has no kernels for this GPU")
    with xdevice.use_backend(name) as backend:
        if backend.count("gpu") < 2:
            pytest.skip(f"{name} sees no two GPUs")
        yield xdevice.try_all_gpus()[:2]


def pair(gpus, size=SIZE, dtype="float32"):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype(dtype) for _ in gpus]
    return arrays, [
        xdevice.tensor(array, device=gpu, dtype=dtype)
        for array, gpu in zip(arrays, gpus, strict=True)
    ]


def goes_by_nccl(name, xs):
    backend = xdevice.backend()
    if name == "torch":
        from xdevice_torch import replicas

        return replicas.is_for_nccl(xs)
    if name == "jax":
        from xdevice_jax import replicas

        return replicas.is_for_collectives(
            xs[0], tuple(backend.to_native(backend.device_of(x)) for x in xs)
        )
    from xdevice_tensorflow import replicas

    return replicas.is_for_nccl(xs[0], [backend.device_of(x) for x in xs], backend)


@pytest.mark.parametrize("name", NCCL)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_nccl_gives_the_same_bits_on_both(name, op, gpus):
    arrays, xs = pair(gpus)
    assert goes_by_nccl(name, xs)
    expected = (arrays[0] + arrays[1]) / (2 if op == "mean" else 1)
    first, second = xdevice.parallel.all_reduce(xs, op)
    assert [xdevice.device_of(x) for x in (first, second)] == gpus
    assert (
        xdevice.to_numpy(first).tobytes()
        == xdevice.to_numpy(second).tobytes()
        == expected.tobytes()
    )
    if name == "torch":
        assert first is xs[0]


@pytest.mark.parametrize("name", NCCL)
def test_nccl_takes_one_number_and_many_shapes_one_after_the_other(name, gpus):
    for shape in ((), (1,), (3, 5), (2, 0), (7, 1, 2)):
        xs = [xdevice.tensor(np.full(shape, i + 1.0), device=gpu) for i, gpu in enumerate(gpus)]
        results = xdevice.parallel.all_reduce(xs)
        assert all((xdevice.to_numpy(x) == np.full(shape, 3.0)).all() for x in results)
        assert [tuple(x.shape) for x in results] == [shape] * 2


@pytest.mark.parametrize("name", KERNELS)
def test_every_dtype_and_its_total(name, gpus):
    for dtype in sorted(xdevice.backend().dtypes - {"bool"}):
        try:
            xs = [xdevice.tensor([[1, 2]], device=gpu, dtype=dtype) for gpu in gpus]
        except xdevice.errors.DTypeError:
            continue
        if any(xdevice.device_of(x) is not gpu for x, gpu in zip(xs, gpus, strict=True)):
            continue
        results = xdevice.parallel.all_reduce(xs)
        assert [xdevice.to_numpy(x).tolist() for x in results] == [[[2, 4]]] * 2, dtype


@pytest.mark.parametrize("name", KERNELS)
def test_the_books_case(name, gpus):
    backend = xdevice.backend()
    replicas = xdevice.parallel.replicate(xdevice.tensor([5.0, 7.0]), gpus)
    grads = []
    for replica, gpu in zip(replicas, gpus, strict=True):
        weights = xdevice.tensor([1.0, 2.0], device=gpu)
        with gpu:
            if name in ("torch", "paddle"):
                (replica * weights).sum().backward()
                grads.append(replica.grad)
            elif name == "tensorflow":
                with backend.framework.GradientTape() as tape:
                    loss = backend.framework.reduce_sum(replica * weights)
                grads.append(tape.gradient(loss, replica))
            else:
                grads.append(
                    backend.framework.grad(lambda p, w=weights: (p * w).sum())(replica)
                )
    results = xdevice.parallel.all_reduce(grads)
    assert [xdevice.to_numpy(x).tolist() for x in results] == [[2.0, 4.0]] * 2
    assert [xdevice.device_of(x) for x in results] == gpus


@pytest.mark.parametrize("name", KERNELS)
def test_split_and_gather_across_gpus(name, gpus):
    x = xdevice.tensor(np.arange(10, dtype="float32").reshape(5, 2), device=gpus[0])
    parts = xdevice.split_batch(x, gpus, even=False)
    assert [xdevice.device_of(part) for part in parts] == gpus
    assert [tuple(part.shape) for part in parts] == [(3, 2), (2, 2)]
    whole = xdevice.parallel.gather(parts, gpus[1])
    assert xdevice.device_of(whole) is gpus[1]
    assert xdevice.to_numpy(whole).tolist() == xdevice.to_numpy(x).tolist()


@pytest.mark.parametrize("name", KERNELS)
def test_replicas_on_two_gpus_are_independent(name, gpus):
    backend = xdevice.backend()
    net = (
        xdevice.to_device(backend.samples().network(3, 2), gpus[0])
        if name != "jax"
        else {"w": xdevice.ones(2)}
    )
    replicas = xdevice.parallel.replicate(net, [*gpus, gpus[0]])
    assert [xdevice.device_of(replica) for replica in replicas] == [*gpus, gpus[0]]
    assert len({id(replica) for replica in (net, *replicas)}) == 4


@pytest.mark.parametrize("name", KERNELS)
def test_two_on_one_gpu_go_device_to_device(name, gpus):
    places = [gpus[0], gpus[1], gpus[1]]
    xs = [xdevice.tensor([i + 1.0], device=place) for i, place in enumerate(places)]
    results = xdevice.parallel.all_reduce(xs)
    assert [xdevice.to_numpy(x).tolist() for x in results] == [[6.0]] * 3
    assert [xdevice.device_of(x) for x in results] == places


@pytest.mark.parametrize("name", ["torch"])
def test_a_reduced_gradient_comes_after_the_work_before_it(name, gpus):
    torch = xdevice.backend().framework
    size = 4096
    for value in range(1, 6):
        xs = [torch.full((size, size), 1.0, device=gpu.native) for gpu in gpus]
        for _ in range(20):
            xs = [x @ torch.full_like(x, 1 / size) for x in xs]
        xs = [x * value for x in xs]
        # enqueued behind the products, without a wait by the host
        for x in xdevice.parallel.all_reduce(xs):
            assert float(x.min()) == pytest.approx(2 * value, rel=1e-3)


@pytest.mark.parametrize("name", ["torch"])
def test_tensors_that_are_not_contiguous_are_summed_too(name, gpus):
    xs = [xdevice.tensor(np.arange(6.0).reshape(2, 3), device=gpu).T for gpu in gpus]
    assert not goes_by_nccl(name, xs)
    results = xdevice.parallel.all_reduce(xs)
    assert all(x is y for x, y in zip(xs, results, strict=True))
    assert results[1].cpu().tolist() == (2 * np.arange(6.0).reshape(2, 3).T).tolist()
