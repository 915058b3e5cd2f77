"""Large copies between the host and real GPUs, through the ring of page-locked memory: `pytest -m gpu`."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest
from helpers.environment import NO_KERNELS, python

import xdevice
from xdevice.cuda_driver import ring

pytestmark = pytest.mark.gpu

STAGED = [
    name
    for name in xdevice.backends()
    if name in ("torch", "jax", "tensorflow", "paddle", "mxnet")
]
COMPUTING = [name for name in STAGED if name not in NO_KERNELS]
GPU = xdevice.gpu()
SIZE = (64 << 20) + 52


@pytest.fixture(params=STAGED)
def framework(request):
    with (
        suppress(xdevice.errors.BackendImportError),
        xdevice.use_backend(request.param) as backend,
    ):
        yield backend


@pytest.fixture(params=COMPUTING)
def computing(request):
    with (
        suppress(xdevice.errors.BackendImportError),
        xdevice.use_backend(request.param) as backend,
    ):
        yield backend


@pytest.fixture
def torch():
    pytest.importorskip("torch")
    with xdevice.use_backend("torch") as backend:
        yield backend.framework


@pytest.fixture(autouse=True)
def staged(monkeypatch):
    """The copies that went through the ring."""
    seen = []
    done = ring._make_copy

    def watched(copy):
        seen.append(copy.nbytes)
        assert done(copy), "the ring did not do it"
        return True

    monkeypatch.setattr(ring, "_make_copy", watched)
    if not ring.is_usable():
        pytest.skip("no ring on this machine")
    return seen


def numbers(seed, dtype="float32"):
    return (
        np.random.default_rng(seed)
        .integers(0, 100, SIZE // np.dtype(dtype).itemsize)
        .astype(dtype)
    )


def on_gpu(array, backend):
    """By the framework's own call."""
    native, framework = backend.to_native(GPU), backend.framework
    if backend.name == "tensorflow":
        with framework.device(native):
            return framework.constant(array)
    ways = {
        "torch": lambda: framework.from_numpy(array.copy()).to(native),
        "jax": lambda: framework.device_put(array.copy(), native).block_until_ready(),
        "paddle": lambda: framework.to_tensor(array, place=native),
        "mxnet": lambda: framework.np.array(array, dtype=array.dtype, ctx=native),
    }
    return ways[backend.name]()


def read(x, backend):
    """By the framework's own call."""
    ways = {
        "torch": lambda: x.cpu().numpy(),
        "jax": lambda: np.asarray(x),
        "tensorflow": lambda: x.numpy(),
        "paddle": lambda: x.numpy(),
        "mxnet": lambda: x.asnumpy(),
    }
    return ways[backend.name]()


def again(x, backend):
    """A copy on the same GPU, under way, that needs no kernel built for it."""
    if backend.name == "tensorflow":
        with backend.framework.device(x.device):
            return backend.framework.raw_ops.DeepCopy(x=x)
    ways = {
        "torch": lambda: x.clone(),
        "jax": lambda: backend.framework.numpy.copy(x),
        "paddle": lambda: x._copy_to(x.place, False),
        "mxnet": lambda: x.copyto(x.ctx),
    }
    return ways[backend.name]()


def comes_back_by_the_ring(backend):
    """Whether a tensor does; TensorFlow's own copy is no slower."""
    return backend.name != "tensorflow"


def keep_busy(backend):
    """Gives the GPU some 50 ms of copies to do."""
    x = on_gpu(np.full(SIZE, 255, "uint8"), backend)
    for _ in range(800):
        again(x, backend)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "float16", "bool"])
def test_values_come_through(framework, staged, dtype):
    array = numbers(0, dtype)
    for _ in range(2):  # JAX's own way is taken for a shape that is new
        x = xdevice.tensor(array, device=GPU)
        assert xdevice.device_of(x) is GPU
        assert (read(x, framework) == array).all()
    assert staged == [SIZE] * len(staged)
    # which TensorFlow makes no room for on a GPU
    assert staged or (framework.name, dtype) == ("tensorflow", "bool")
    before = len(staged)
    for host in (
        xdevice.to_numpy(x),
        xdevice.to_numpy(xdevice.to_device(x, "cpu")),
        read(xdevice.copy_to(x, "cpu"), framework),
    ):
        assert host.dtype == array.dtype
        assert (host == array).all()
    assert len(staged) == before + 1 + 2 * comes_back_by_the_ring(framework)


def test_the_source_may_be_written_at_once(framework, staged):
    for turn in range(4):
        array = numbers(turn)
        source = array.copy()
        x = xdevice.tensor(source, device=GPU)
        source[:] = -1
        assert (read(x, framework) == array).all()
        batches = iter([source.__setitem__(slice(None), array) or source])
        for y in xdevice.prefetch(batches, GPU):
            source[:] = -1
            assert (read(y, framework) == array).all()
    assert len(staged) >= 7


def test_what_is_being_computed_is_waited_for(computing, staged):
    array = numbers(0)
    z = on_gpu(array, computing)
    for _ in range(200):
        z = z + 1
    assert (xdevice.to_numpy(z) == array + 200).all()
    for _ in range(200):
        z = z - 1
    assert (read(xdevice.to_device(z, "cpu"), computing) == array).all()
    assert len(staged) == 1 + comes_back_by_the_ring(computing)


def test_what_is_being_copied_is_waited_for(framework, staged):
    arrays = [numbers(0), numbers(1)]
    xs = [on_gpu(array, framework) for array in arrays]
    keep_busy(framework)
    assert (xdevice.to_numpy(again(xs[0], framework)) == arrays[0]).all()
    keep_busy(framework)
    assert (
        read(xdevice.to_device(again(xs[1], framework), "cpu"), framework) == arrays[1]
    ).all()
    assert len(staged) == 1 + comes_back_by_the_ring(framework)


def test_parts_and_sources_in_another_order(framework, staged):
    array = np.random.default_rng(0).random((2, 1024, SIZE // 4096), dtype=np.float32)
    for source in (array, array[1:], array.T, array[:, ::2], array[::-1]):
        x = xdevice.tensor(source, device=GPU)
        assert (xdevice.to_numpy(x) == source).all()
        assert (xdevice.to_numpy(xdevice.to_device(x, "cpu")) == source).all()
        for y in xdevice.prefetch([source], GPU):
            assert (xdevice.to_numpy(y) == source).all()
    whole = xdevice.tensor(array, device=GPU)
    before = len(staged)
    assert (xdevice.to_numpy(whole[1]) == array[1]).all() or framework.name in NO_KERNELS
    host = xdevice.tensor(array, device="cpu")
    assert (xdevice.to_numpy(xdevice.to_device(host[1], GPU)) == array[1]).all()
    assert len(staged) > before


@pytest.mark.skipif("jax" not in STAGED, reason="no JAX")
def test_a_few_values_of_jax_come_by_the_driver(staged, monkeypatch):
    few, seen = ring._few_to_host, []
    monkeypatch.setattr(ring, "_few_to_host", lambda *copy: seen.append(few(*copy)) or seen[-1])
    with xdevice.use_backend("jax") as backend:
        for dtype in ("float32", "bool", "int8", "bfloat16", "complex64"):
            for shape in ((), (3,), (1, 1), (5, 7)):
                array = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3 - 1
                x = xdevice.tensor(array, device=GPU, dtype=dtype)
                host = xdevice.to_numpy(x)
                assert host.dtype.name == dtype
                assert host.shape == shape
                assert (host == read(x, backend)).all()
        assert seen == [True] * 20
        turned = backend.framework.jit(lambda x: x.T + 0)(x)
        assert (xdevice.to_numpy(turned) == read(turned, backend)).all()
        assert xdevice.to_numpy(x[:0]).shape == (0, 7)
        before = on_gpu(np.float32(1), backend)
        for _ in range(3):
            keep_busy(backend)
            after = before + 1
            assert xdevice.item(after) == xdevice.item(before) + 1
            before = after
    assert not staged


def test_threads_do_not_disturb_each_other(framework):
    wrong = []

    def work(number):
        with xdevice.use_backend(framework):
            for turn in range(4):
                array = numbers(10 * number + turn)
                x = xdevice.tensor(array, device=GPU)
                if not (xdevice.to_numpy(x) == array).all():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_two_gpus(framework, staged):
    if xdevice.num_gpus() < 2:
        pytest.skip("one GPU")
    arrays = [numbers(0), numbers(1)]
    for _ in range(2):
        xs = [xdevice.tensor(array, device=xdevice.gpu(i)) for i, array in enumerate(arrays)]
    assert [
        (xdevice.to_numpy(x) == array).all() for x, array in zip(xs, arrays, strict=True)
    ] == [True, True]
    assert len(staged) >= 4


def test_an_error_half_way_is_mended_by_the_framework(framework, monkeypatch):
    array = numbers(0)
    x = on_gpu(array, framework)
    call, calls = ring._call, []

    def failing(name, *arguments):
        if name.startswith("cuMemcpy"):
            calls.append(name)
            if len(calls) == 5:
                raise ring.DriverError(name)
        call(name, *arguments)

    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_call", failing)
        assert (xdevice.to_numpy(x) == array).all()
        assert len(calls) >= 5
        calls.clear()
        for _ in range(2):
            y = xdevice.tensor(array, device=GPU)
        assert (read(y, framework) == array).all()
        assert len(calls) >= 5
    assert (xdevice.to_numpy(xdevice.tensor(array, device=GPU)) == array).all()


def test_the_memory_is_counted_and_given_back(framework):
    xdevice.tensor(numbers(0), device=GPU)
    xdevice.to_numpy(xdevice.tensor(numbers(0), device=GPU))
    assert xdevice.memory("cpu").pinned == 64 << 20
    xdevice.accelerator.empty_host_cache()
    assert xdevice.memory("cpu").pinned == 0
    assert (xdevice.to_numpy(xdevice.tensor(numbers(1), device=GPU)) == numbers(1)).all()


def test_saved_and_loaded(framework, tmp_path):
    array = numbers(0)
    for _ in range(2):
        xdevice.save(tmp_path / "x.safetensors", on_gpu(array, framework))
        x = xdevice.load(tmp_path / "x.safetensors", device=GPU)["tensor"]
    assert (read(x, framework) == array).all()


def test_non_blocking_both_ways(computing):
    framework, array = computing, numbers(0)
    host = xdevice.tensor(array, device="cpu")
    x = xdevice.to_device(host, GPU, non_blocking=True)
    assert (read(x, framework) == array).all()
    for _ in range(4):
        y = x
        for _ in range(50):
            y = y + 1
        back = xdevice.to_device(y, "cpu", non_blocking=True)
        assert xdevice.device_of(back) is xdevice.cpu()
        assert (xdevice.to_numpy(back) == array + 50).all()
    z = xdevice.to_device({"x": [y]}, "cpu", non_blocking=True)["x"][0]
    xdevice.sync()
    assert (xdevice.to_numpy(z) == array + 50).all()


def test_what_is_watched_is_reported_once(framework, staged):
    x = xdevice.tensor(numbers(0), device=GPU)
    with xdevice.transfers() as seen:
        xdevice.to_numpy(x)
        xdevice.to_device(xdevice.to_device(x, "cpu"), GPU)
    assert [(one.source, one.destination, one.nbytes) for one in seen] == [
        (GPU, xdevice.cpu(), SIZE), (GPU, xdevice.cpu(), SIZE), (xdevice.cpu(), GPU, SIZE),
    ]  # fmt: skip


class TestTorch:
    def test_strides_are_those_of_to(self, torch, staged):
        base = torch.arange(2 * 13 * (SIZE // 26), dtype=torch.float32).reshape(2, -1, 13)
        for x in (
            base,
            base.mT,
            base.permute(2, 0, 1),
            base[:, 1:],
            base[..., ::2],
            base[:, :1].expand(-1, 4 * SIZE // 100, -1),
        ):
            moved = xdevice.to_device(x, GPU)
            own = x.to("cuda:0")
            assert moved.stride() == own.stride()
            assert torch.equal(moved, own)
            back, own = xdevice.to_device(moved[:, 1:], "cpu"), moved[:, 1:].to("cpu")
            assert back.stride() == own.stride()
            assert torch.equal(back, own)
        assert staged

    def test_gradients_flow_both_ways_and_twice(self, torch, staged):
        x = torch.rand(SIZE // 4, requires_grad=True)
        y = xdevice.to_device(x, GPU)
        assert y.requires_grad
        z = xdevice.to_device(y * y * y, "cpu")
        (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.allclose(first, 3 * x * x)
        assert torch.allclose(second, 6 * x)
        assert len(staged) >= 6
        with torch.no_grad():
            assert not xdevice.to_device(x, GPU).requires_grad
        p = torch.nn.Parameter(x.detach())
        assert type(xdevice.to_device(p, GPU)) is torch.Tensor
        assert xdevice.to_device(p, GPU).requires_grad

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own use of torch.jit
    def test_what_differentiates_forward_sees_the_move(self, torch, staged):
        from torch.autograd import forward_ad

        x = torch.rand(SIZE // 4)
        with forward_ad.dual_level():
            y = xdevice.to_device(forward_ad.make_dual(x, torch.ones_like(x)), GPU)
            assert forward_ad.unpack_dual(y).tangent is not None
        assert not staged

    def test_what_maps_sees_the_move(self, torch, staged):
        x = torch.rand(4, SIZE // 4)
        assert torch.func.vmap(lambda v: xdevice.to_device(v, GPU))(x).is_cuda
        assert not staged

    @pytest.mark.filterwarnings("ignore")
    def test_what_traces_sees_the_move(self, torch, staged):
        x = torch.rand(SIZE // 4)
        traced = torch.jit.trace(lambda v: xdevice.to_device(v, GPU) + 1, x, check_trace=False)
        assert torch.equal(traced(x + 1).cpu(), x + 1 + 1)
        assert not staged

    def test_each_stream_has_its_order(self, torch, staged):
        side = torch.cuda.Stream()
        host = torch.rand(SIZE // 4)
        for turn in range(3):
            with torch.cuda.stream(side):
                torch.cuda._sleep(50_000_000)
                x = xdevice.to_device(host + turn, GPU) * 2
                back = xdevice.to_device(x, "cpu")
            assert torch.equal(back, (host + turn) * 2)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda._sleep(50_000_000)
        y = x + 1
        assert torch.equal(xdevice.to_device(y, "cpu"), (host + 2) * 2 + 1)
        assert len(staged) == 7

    def test_memory_that_was_freed_is_not_written_too_early(self, torch):
        """The new tensor gets the memory of one that queued work still reads."""
        old = torch.zeros(SIZE // 4, device="cuda")
        torch.cuda._sleep(100_000_000)
        copy = old + 0
        del old
        new = xdevice.to_device(torch.ones(SIZE // 4), GPU)
        assert not copy.any()
        assert new.all()

    def test_a_graph_is_not_recorded_through_the_ring(self, torch, staged):
        host = torch.ones(SIZE // 4)
        with pytest.raises(xdevice.errors.XDeviceError):
            xdevice.accelerator.make_graphed_callable(lambda: xdevice.to_device(host, GPU), GPU)
        assert not staged

    def test_modules_move_through_the_ring(self, torch, staged):
        net = torch.nn.Linear(4096, 4096, bias=False)
        before = net.weight.detach().clone()
        xdevice.to_device(net, GPU)
        assert isinstance(net.weight, torch.nn.Parameter)
        assert net.weight.requires_grad
        assert torch.equal(net.weight.cpu(), before)
        xdevice.to_device(net, "cpu")
        assert torch.equal(net.weight, before)
        assert len(staged) == 2

    def test_nothing_is_read_before_it_is_there(self, torch):
        x = torch.zeros(SIZE // 4, device="cuda")
        reads = {
            "numpy": lambda y: y.numpy(), "add": lambda y: (y + 0).numpy(), "tensor": lambda y: y.clone().numpy(),
            "as_tensor": lambda y: torch.as_tensor(y).numpy(), "asarray": np.asarray, "to_numpy": xdevice.to_numpy,
            "detach": lambda y: y.detach().numpy(), "convert": lambda y: xdevice.convert(y, "numpy"),
        }  # fmt: skip
        # the first one makes the ring, which takes seconds on an H100
        xdevice.to_device(x, "cpu", non_blocking=True)
        for number, (name, read) in enumerate(reads.items(), 1):
            torch.cuda._sleep(100_000_000)
            x += 1
            y = xdevice.to_device(x, "cpu", non_blocking=True)
            assert not torch.cuda.current_stream().query(), "it was waited for"
            assert (read(y) == number).all(), name
        y = xdevice.to_device(x, "cpu", non_blocking=True)
        xdevice.sync(y)
        assert type(y) is torch.Tensor

    def test_a_child_of_a_fork_does_without(self):
        code = """
import os, torch, xdevice
x = torch.rand(1 << 24)
xdevice.to_device(x, "gpu:0")
child = os.fork()
if child == 0:
    ok = bool(torch.equal(xdevice.to_device(x, "cpu"), x)) and xdevice.memory("cpu").pinned == 0
    try:
        xdevice.to_device(x, "gpu:0")
        ok = False
    except RuntimeError as error:
        ok = ok and "fork" in str(error)
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(xdevice.to_device(x, "gpu:0").cpu(), x)
"""
        done = python("-c", code)
        assert done.returncode == 0, done.stderr


class TestTensorflow:
    @pytest.fixture
    def tf(self):
        pytest.importorskip("tensorflow")
        with xdevice.use_backend("tensorflow") as backend:
            yield backend.framework

    def test_gradients_flow_both_ways_and_twice(self, tf, staged):
        x = tf.convert_to_tensor(xdevice.tensor(numbers(0), device="cpu"))
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = xdevice.to_device(x, GPU)
                z = xdevice.to_device(y * y * y, "cpu")
            first = tape.gradient(z, x)
        second = outer.gradient(first, x)
        values = xdevice.to_numpy(x)
        assert xdevice.device_of(first) is xdevice.cpu()
        assert np.allclose(xdevice.to_numpy(first), 3 * values**2)
        assert np.allclose(xdevice.to_numpy(second), 6 * values)
        assert staged

    def test_what_differentiates_forward_sees_the_move(self, tf, staged):
        x = tf.convert_to_tensor(xdevice.tensor(numbers(0), device="cpu"))
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            y = xdevice.to_device(xdevice.to_device(x, GPU) * 2.0, "cpu")
        assert (xdevice.to_numpy(forward.jvp(y)) == 2).all()
        assert staged

    def test_what_is_traced_is_not_staged(self, tf, staged):
        array, read = numbers(0), []
        x = xdevice.tensor(array, device=GPU)
        before = len(staged)

        @tf.function
        def traced():
            read.append(xdevice.to_numpy(x))
            return xdevice.tensor(array, device=GPU) + 1

        assert (traced().numpy() == array + 1).all()
        assert (read[0] == array).all()
        assert len(staged) == before

    def test_memory_that_was_freed_is_not_written_too_early(self, tf):
        """The new tensor gets the memory of one that queued work still reads."""
        old, values = numbers(0), numbers(1)
        with xdevice.use_backend("tensorflow") as backend:
            for _ in range(3):
                x = on_gpu(old, backend)
                keep_busy(backend)
                kept = again(x, backend)
                del x
                new = xdevice.tensor(values, device=GPU)
                assert (kept.numpy() == old).all()
                assert (new.numpy() == values).all()

    def test_what_was_read_may_be_written(self, tf):
        x = xdevice.tensor(numbers(0), device=GPU)
        xdevice.to_numpy(x)[:] = -1
        assert (x.numpy() == numbers(0)).all()
        assert (xdevice.to_numpy(x) == numbers(0)).all()

    @pytest.mark.parametrize(
        "dtype", ["int32", "int64", "float64", "complex64", "bfloat16", "uint16"]
    )
    def test_other_dtypes(self, tf, staged, dtype):
        values = xdevice.to_numpy(xdevice.tensor(numbers(0), device="cpu", dtype=dtype))
        x = xdevice.tensor(values, device=GPU, dtype=dtype)
        assert xdevice.device_of(x) is GPU
        assert x.dtype.name == dtype
        assert (x.numpy() == values).all()
        assert (xdevice.to_numpy(x) == values).all()
        host = xdevice.to_device(x, "cpu")
        assert xdevice.device_of(host) is xdevice.cpu()
        assert (host.numpy() == values).all()
        assert bool(staged) is (dtype != "uint16"), "TensorFlow makes none of it on a GPU"


class TestPaddle:
    @pytest.fixture
    def paddle(self):
        pytest.importorskip("paddle")
        with xdevice.use_backend("paddle") as backend:
            yield backend.framework

    def test_gradients_flow_both_ways(self, paddle, staged):
        x = paddle.to_tensor(numbers(0), place=paddle.CPUPlace(), stop_gradient=False)
        y = xdevice.to_device(xdevice.to_device(x, GPU), "cpu")
        assert not y.stop_gradient
        (y * y).sum().backward()
        assert (x.grad.numpy() == 2 * numbers(0)).all()
        assert len(staged) == 4

    def test_flags_are_those_of_a_copy(self, paddle, staged):
        x = paddle.to_tensor(numbers(0), place=paddle.CPUPlace())
        x.persistable = True
        own = paddle.Tensor._copy_to(x, paddle.CUDAPlace(0), True)
        for moved in (xdevice.to_device(x, GPU), xdevice.to_device(own, "cpu")):
            assert (moved.stop_gradient, moved.persistable, moved.name) == (
                own.stop_gradient,
                True,
                own.name,
            )
        assert len(staged) == 2

    def test_views_are_read_as_they_are(self, paddle, staged):
        array = numbers(0)[:-1].reshape(2, -1)
        host = paddle.to_tensor(array, place=paddle.CPUPlace())
        assert (xdevice.to_device(host.t(), GPU).numpy() == array.T).all()
        assert (xdevice.to_device(host[1], GPU).numpy() == array[1]).all()

    def test_each_stream_has_its_order(self, paddle, staged):
        with xdevice.use_backend("paddle") as backend:
            x = on_gpu(numbers(0), backend)
            side = xdevice.accelerator.Stream(GPU)
            for turn in range(1, 4):
                source = numbers(turn)
                with side:
                    keep_busy(backend)
                    y = xdevice.tensor(source, device=GPU)
                    source[:] = -1
                    back = xdevice.to_numpy(again(y, backend))
                assert (back == numbers(turn)).all()
            assert (xdevice.to_numpy(x) == numbers(0)).all()
        assert len(staged) == 7

    def test_what_is_moved_is_there_for_all_streams(self, paddle, staged):
        with xdevice.use_backend("paddle") as backend:
            host = paddle.to_tensor(numbers(0), place=paddle.CPUPlace())
            side = xdevice.accelerator.Stream(GPU)
            for move in (
                lambda: xdevice.to_device(host, GPU),
                lambda: xdevice.tensor(numbers(0), device=GPU),
            ):
                keep_busy(backend)
                y = move()
                with side:
                    assert (xdevice.to_numpy(again(y, backend)) == numbers(0)).all()
        assert len(staged) == 4


class TestMxnet:
    def test_what_is_recorded_is_not_staged(self, staged):
        mx = pytest.importorskip("mxnet")
        with xdevice.use_backend("mxnet"):
            x = xdevice.tensor(numbers(0), device="cpu")
            x.attach_grad()
            with mx.autograd.record():
                y = xdevice.to_device(xdevice.to_device(x, GPU), "cpu")
                loss = (y * y).sum()
            loss.backward()
            assert (x.grad.asnumpy() == 2 * numbers(0)).all()
        assert not staged

    def test_legacy_arrays_stay_legacy(self, staged):
        mx = pytest.importorskip("mxnet")
        with xdevice.use_backend("mxnet"):
            x = mx.nd.array(numbers(0), ctx=mx.cpu(0))
            there = xdevice.to_device(x, GPU)
            assert type(there) is type(xdevice.to_device(there, "cpu")) is mx.nd.NDArray
            assert (xdevice.to_numpy(there) == numbers(0)).all()
        assert len(staged) == 3


def test_jax_keeps_its_guards_and_traces():
    jax = pytest.importorskip("jax")
    with xdevice.use_backend("jax") as backend:
        array = numbers(0)
        x = on_gpu(array, backend)
        with jax.transfer_guard("disallow"), pytest.raises(Exception, match=r"[Dd]isallowed"):
            xdevice.to_numpy(x)
        traced = jax.jit(lambda y: y + xdevice.to_device(x, "gpu:0")[0])
        assert np.asarray(traced(x))[0] == 2 * array[0]
        host = xdevice.to_device(x, "cpu")
        assert host.committed
        assert xdevice.device_of(host + 1) is xdevice.cpu()
        assert (np.asarray(jax.grad(lambda y: xdevice.to_device(y, "cpu").sum())(x)) == 1).all()
