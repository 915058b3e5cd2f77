"""What says where it goes does so inside `with device:` too: what an adapter makes for itself names its device.

On real GPUs (`pytest -m gpu`) or on virtual ones:

    XDEVICE_VIRTUAL_GPUS=2 pytest -m virtual tests/core/test_inside_of_scopes.py
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from helpers.environment import NO_KERNELS

import xdevice
from xdevice.base import dtypes
from xdevice.containers import trees
from xdevice.core import registry

pytestmark = [pytest.mark.gpu, pytest.mark.virtual]

BACKENDS = [
    name for name in ("torch", "tensorflow", "paddle", "mxnet", "jax") if name not in NO_KERNELS
]
NUMBERS = np.arange(12, dtype="float32").reshape(4, 3) / 8
DTYPES = ("float32", "float16", "int64", "uint8", "bool", "bfloat16")


@pytest.fixture(params=BACKENDS)
def backend(request):
    if not registry.is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    with xdevice.use_backend(request.param) as chosen:
        if chosen.count("gpu") < 2:
            pytest.skip(f"{request.param} has fewer than two GPUs here")
        yield chosen


def sources(backend):
    """Tensors of each dtype, on the host and on the first GPU."""
    for dtype in DTYPES:
        if dtype in backend.dtypes:
            for place in ("cpu", "gpu:0"):
                yield xdevice.tensor(NUMBERS, device=place, dtype=dtype)


def network(backend):
    return xdevice.to_device(backend.samples().network(3, 2), "cpu")


def moved(backend, folder):
    for x in sources(backend):
        for place in ("cpu", "gpu:0", "gpu:1"):
            yield xdevice.to_device(x, place)
            yield xdevice.copy_to(x, place)


def read(backend, folder):
    for x in sources(backend):
        yield xdevice.to_numpy(x)
        yield backend.peek(x)
        yield xdevice.item(x[1:2, 1:2])


def made(backend, folder):
    for dtype in DTYPES:
        if dtype in backend.dtypes:
            for place in ("cpu", "gpu:0"):
                yield xdevice.ones(2, 3, device=place, dtype=dtype)
                yield xdevice.zeros(0, 3, device=place, dtype=dtype)
                yield backend.from_numpy(
                    NUMBERS.astype(dtypes.host_dtype(dtype)), xdevice.device(place)
                )
    for dtype in {"float32", "float16", "bfloat16"} & backend.dtypes:
        drawn = xdevice.random.uniform(3, device="gpu:0", dtype=dtype)
        yield [str(xdevice.device_of(drawn)), (xdevice.to_numpy(drawn) < 1).all()]


def spread(backend, folder):
    places = ["gpu:0", "cpu"]
    for x in sources(backend):
        yield xdevice.split_batch(x, places)
        yield xdevice.parallel.gather([x, x], "gpu:0")
        yield xdevice.parallel.broadcast(x, places)
        yield [
            (str(xdevice.device_of(one)), xdevice.to_numpy(one["x"]))
            for one in xdevice.parallel.replicate({"x": x}, places)
        ]


def reduced(backend, folder):
    for x in sources(backend):
        if "bool" in str(x.dtype):
            continue
        yield xdevice.parallel.all_reduce(
            [xdevice.copy_to(x, place) for place in ("gpu:0", "cpu", "cpu")]
        )
        if "float" in str(x.dtype):
            yield xdevice.parallel.all_reduce(
                [xdevice.copy_to(x, place) for place in ("gpu:0", "cpu")], "mean"
            )


def converted(backend, folder):
    for x in sources(backend):
        if xdevice.device_of(x) is xdevice.cpu():
            yield xdevice.convert(x, "numpy")
            yield xdevice.convert(x, "numpy", copy=True)
            yield xdevice.convert(xdevice.to_numpy(x), backend.name)
            yield xdevice.convert(xdevice.to_numpy(x), backend.name, copy=True)
            yield xdevice.convert(xdevice.to_numpy(x)[1, 1], backend.name)


def prefetched(backend, folder):
    batches = [
        {"x": NUMBERS, "n": NUMBERS.astype("int64")},
        {"x": NUMBERS[:2], "n": NUMBERS[:2] > 1},
    ]
    yield list(xdevice.prefetch(batches, "gpu:0"))
    yield list(xdevice.prefetch([[x] for x in sources(backend)], "gpu:0"))
    yield list(xdevice.prefetch(batches, "cpu"))


def saved(backend, folder):
    path = folder / "x.safetensors"
    for x in sources(backend):
        xdevice.save(path, {"x": x})
        for place in ("cpu", "gpu:0"):
            yield xdevice.load(path, place)


def modelled(backend, folder):
    if backend.name == "jax":
        return
    with xdevice.cpu():  # a GPU draws other weights from a seed
        net = network(backend)
    for place in ("cpu", "gpu:0", "gpu:1", "cpu"):
        yield weights(backend, xdevice.to_device(net, place))
        yield weights(backend, xdevice.copy_to(net, place))
    yield [weights(backend, one) for one in xdevice.parallel.replicate(net, ["gpu:0", "cpu"])]
    yield dict(xdevice.models.convert_state(net, "numpy"))
    xdevice.save(folder / "net.safetensors", net)
    with xdevice.cpu():
        other = network(backend)
    xdevice.to_device(other, "gpu:0")
    xdevice.load(folder / "net.safetensors", into=other)
    yield weights(backend, other)
    yield dict(xdevice.models.convert_state(net, backend.name))


def weights(backend, net):
    return [(str(xdevice.device_of(x)), xdevice.to_numpy(x)) for _, x in backend.variables(net)]


def seen(results):
    """Where each tensor is, and what it holds, as what can be compared."""
    found = []
    for result in results:
        for leaf in trees.leaves([result]):
            kind = registry.owner_and_kind(type(leaf.value))
            place = str(xdevice.device_of(leaf.value)) if kind else ""
            value = np.asarray(xdevice.to_numpy(leaf.value) if kind else leaf.value)
            found.append((leaf.path, place, value.dtype.name, value.shape, value.tobytes()))
    return found


@pytest.mark.parametrize(
    "work", [moved, read, made, spread, reduced, converted, prefetched, saved, modelled]
)
def test_a_scope_changes_nothing_that_names_its_device(backend, work, tmp_path):
    results = []
    for scope in (nullcontext(), xdevice.gpu(1), xdevice.gpu(0)):
        with scope:
            seed(backend)
            results.append(seen(list(work(backend, tmp_path))))
    assert results[0] or backend.name == "jax"
    assert results[1] == results[0]
    assert results[2] == results[0]


def seed(backend):
    """Networks draw their weights."""
    framework = backend.framework
    seeds = {
        "torch": lambda: framework.manual_seed(1),
        "tensorflow": lambda: framework.keras.utils.set_random_seed(1),
        "paddle": lambda: framework.seed(1),
        "mxnet": lambda: framework.random.seed(1),
        "jax": lambda: None,
    }
    seeds[backend.name]()
