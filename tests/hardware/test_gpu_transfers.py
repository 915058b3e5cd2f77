"""Hidden transfers and blocking mode on a real GPU: `pytest -m gpu`."""

from __future__ import annotations

import io
import time
from contextlib import suppress

import numpy as np
import pytest
from helpers.environment import NO_KERNELS

import xdevice
from xdevice import transfers

pytestmark = pytest.mark.gpu

FRAMEWORKS = [
    name
    for name in xdevice.backends()
    if name in ("torch", "tensorflow", "jax") and name not in NO_KERNELS
]
GPU = xdevice.gpu()


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    with suppress(xdevice.errors.BackendImportError), xdevice.use_backend(request.param):
        yield request.param


@pytest.mark.parametrize(
    ("how", "read"),
    [
        ("float", lambda x: float(x)),
        ("bool", lambda x: bool(x)),
        ("print", lambda x: print(x, file=io.StringIO())),
        ("item", xdevice.item),
        ("to_numpy", xdevice.to_numpy),
    ],
)
def test_a_read_is_a_physical_transfer_recorded_once(framework, how, read):
    x = xdevice.tensor(2.0, device=GPU)
    with transfers() as log:
        read(x)
    assert [(r.how, r.kind, r.source, r.destination, r.nbytes, r.physical) for r in log] == [
        (how, "read", GPU, xdevice.cpu(), 4, True)
    ]
    assert log[0].file == __file__


def test_numpy_itself_is_seen(framework):
    if framework == "torch":
        pytest.skip("torch refuses: NumPy cannot read a tensor on a GPU")
    x = xdevice.ones(10, device=GPU)
    with transfers() as log:
        np.asarray(x)
    assert [(r.kind, r.nbytes, r.physical) for r in log] == [("read", 40, True)]


def test_moves_are_recorded_once(framework):
    x = xdevice.ones(10)
    with transfers() as log:
        y = xdevice.to_device(x, GPU)
        xdevice.to_device(y, GPU)
        xdevice.copy_to(y, GPU)
        z = xdevice.copy_to(y, "cpu")
    assert xdevice.device_of(z) is xdevice.cpu()
    assert [(r.how, r.kind, r.source, r.destination, r.nbytes) for r in log] == [
        ("to_device", "move", xdevice.cpu(), GPU, 40),
        ("copy_to", "move", GPU, xdevice.cpu(), 40),
    ]


def train(x, steps=3):
    loss = x
    for step in range(steps):
        loss = loss * 0.5
        if step == 1:
            print(f"loss {float(loss):.3f}", file=io.StringIO())
    return loss


PRINTS = train.__code__.co_firstlineno + 5


def test_disallow_stops_a_training_loop_at_the_line_that_prints_the_loss(framework):
    x = xdevice.tensor(8.0, device=GPU)
    expected = f"{PRINTS}: float reads 4 bytes from gpu:0"
    with (
        pytest.raises(xdevice.errors.TransferError, match=expected) as caught,
        transfers("disallow_explicit"),
    ):
        train(x)
    assert (caught.value.record.file, caught.value.record.line) == (__file__, PRINTS)
    assert xdevice.item(train(x)) == 1.0


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not here")
class TestTorch:
    def test_what_torch_itself_names(self):
        import torch

        x = torch.ones(10, device="cuda")
        with transfers() as log:
            x.cpu()
            x.to("cpu")
            torch.ones(10).cuda()
            x[0].item()
            x.tolist()
        assert [(r.how, r.kind, r.nbytes) for r in log] == [
            ("cpu", "move", 40), ("to", "move", 40), ("cuda", "move", 40), ("item", "read", 4), ("tolist", "read", 40),
        ]  # fmt: skip

    def test_a_copy_into_another_device_is_seen(self):
        import torch

        x = torch.ones(10, device="cuda")
        with transfers() as log:
            x.copy_(torch.zeros(10))
        assert [(r.how, r.source, r.destination) for r in log] == [("copy", xdevice.cpu(), GPU)]


@pytest.mark.skipif("tensorflow" not in FRAMEWORKS, reason="tensorflow is not here")
def test_an_operand_that_tensorflow_copies_in_silence_is_seen():
    with xdevice.use_backend("tensorflow") as backend:
        x = xdevice.ones(10)
        y = xdevice.ones(10, device=GPU)
        with transfers() as log, backend.framework.device("/GPU:0"):
            x + y
        assert [(r.how, r.source, r.destination, r.nbytes) for r in log] == [
            ("AddV2", xdevice.cpu(), GPU, 40)
        ]


def test_work_is_done_when_the_line_is(framework):
    x = xdevice.random.uniform(4096, 4096, device=GPU)
    xdevice.item((x @ x)[0, 0])
    with xdevice.accelerator.blocking():
        y = x @ x
        xdevice.sync()
        start = time.perf_counter()
        for _ in range(20):
            y = x @ y
        computed = time.perf_counter() - start
        xdevice.sync()
        waited = time.perf_counter() - start - computed
    assert waited < computed / 5, f"{waited:.4f} s were left after {computed:.4f} s"


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16", "bool"])
def test_prefetch_of_arrays_inside_of_the_gpus_own_scope(framework, dtype):
    """What is staged on the way is on the host, whatever the scope says."""
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    batches = [np.arange(1000).astype(kind), np.ones((2, 3), kind)]
    with GPU:
        got = list(xdevice.prefetch(batches, GPU))
    assert [xdevice.device_of(x) for x in got] == [GPU, GPU]
    for x, batch in zip(got, batches, strict=True):
        assert (xdevice.to_numpy(x) == batch.astype(xdevice.to_numpy(x).dtype)).all()


def test_what_was_read_can_be_written_into(framework):
    x = xdevice.tensor([1.0, 2.0], device=GPU)
    for _ in range(2):  # JAX keeps what it has read
        read = xdevice.to_numpy(x)
        read[:] = 7
    assert xdevice.to_numpy(x).tolist() == [1, 2]
