"""Virtual GPUs on PaddlePaddle, which lists its devices at its import: each part runs in a fresh process."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import textwrap

import pytest
from helpers.environment import python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None, reason="Paddle is not installed"
)

START = """
import faulthandler
faulthandler.dump_traceback_later(100, exit=True)
import xdevice
xdevice.virtual_gpus(4)
xdevice.set_backend("paddle")
import numpy as np, paddle
"""


def run(code: str, *, start: str = START, **variables: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "ignore", "-c", start + textwrap.dedent(code), bare=True, **variables)


def assert_done(done: subprocess.CompletedProcess[str], printed: str = "done") -> None:
    assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr[-3000:]


@pytest.mark.long
def test_training_on_a_virtual_gpu_equals_training_on_the_cpu_also_after_tensorflow():
    code = """
        def trained(device):
            paddle.seed(0)
            nn = paddle.nn
            convolutions = nn.Conv2D(1, 4, 3, padding=1), nn.BatchNorm2D(4), nn.ReLU(), nn.MaxPool2D(2)
            net = xdevice.to_device(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64, 10)), device)
            adam = paddle.optimizer.Adam(0.01, parameters=net.parameters())
            rng = np.random.default_rng(0)
            x = xdevice.tensor(rng.normal(size=(8, 1, 8, 8)).astype("float32"), device=device)
            y = xdevice.tensor(rng.integers(0, 10, size=8), device=device)
            losses = []
            for _ in range(30):
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                adam.step()
                adam.clear_grad()
                losses.append(float(loss))
            assert losses[-1] < losses[0] / 2
            assert xdevice.device_of([loss, net]) is xdevice.device(device)
            return [value.numpy().tobytes() for value in net.state_dict().values()]

        assert trained("gpu:1") == trained("cpu") == trained("gpu:3")
        print("done")
    """
    assert_done(run(code, start="import tensorflow" + START))


@pytest.mark.slow
def test_what_has_no_elements_is_where_its_operand_is():
    done = run("""
        x = xdevice.tensor([1.0, 2.0], device="gpu:1")
        x.stop_gradient = False
        none = x[2:]
        made = [none, paddle.abs(none), none.astype("int64"), x[x > 5], paddle.split(none.reshape([3, 0]), 3)[1]]
        made += [paddle.copysign(none, none), none.clone(), paddle.nonzero(x * 0), paddle.ones_like(none)]
        written = paddle.abs(none).detach()
        written[:] = 1.0
        made.append(written)
        made += [paddle.matmul(none.reshape([0, 1]), x.reshape([1, 2]))]
        assert {str(xdevice.device_of(one)) for one in made} == {"gpu:1"}
        (paddle.abs(none).sum() + x.sum()).backward()
        assert x.grad.tolist() == [1.0, 1.0]
        print("done")
    """)
    assert_done(done)


@pytest.mark.slow
def test_the_cpu_stays_the_default_device_and_paddle_says_nothing_of_plugins():
    done = run("""
        import threading
        found = [paddle.ones([1]).place, paddle.to_tensor([1.0]).place, paddle.nn.Linear(2, 2).weight.place]
        thread = threading.Thread(target=lambda: found.append(paddle.ones([1]).place))
        thread.start()
        thread.join()
        assert all(place.is_cpu_place() for place in found), found
        with xdevice.gpu(2) as gpu:
            assert xdevice.device_of(paddle.nn.Linear(2, 2)) is gpu
            assert xdevice.device_of(paddle.rand([2])) is gpu
        print(paddle.get_device())
    """)
    assert_done(done, "cpu")
    assert done.stderr == ""


@pytest.mark.slow
def test_paddles_own_names_are_taken_and_mixed_devices_are_found():
    done = run("""
        gpu = xdevice.gpu(1)
        assert xdevice.num_gpus() == 4
        assert paddle.device.get_available_custom_device() == ["vgpu:0", "vgpu:1", "vgpu:2", "vgpu:3"]
        assert str(gpu.native) == "Place(vgpu:1)"
        x = paddle.to_tensor([1.0, 1.0], place=gpu.native)
        assert xdevice.device_of(x) is xdevice.device(x.place) is gpu
        assert xdevice.to_device(x, x.place) is x
        with gpu:
            assert xdevice.device(paddle.get_device()) is gpu
        assert xdevice.device_of(x.clone().to("vgpu:2")) is xdevice.gpu(2)
        assert (x[1:] + 1).tolist() == [2]
        for made in (xdevice.ones(0, 3, device=gpu), xdevice.random.uniform(0, device=gpu)):
            assert xdevice.device_of(made) is gpu
        other = x.to("vgpu:2")
        assert (x + x.cpu()).tolist() == [2, 2]  # Paddle copies in silence, on hardware too, so that only we see it
        for mix in (
            lambda: x + other, lambda: x < other, lambda: paddle.matmul(x, other), lambda: paddle.concat([x, other]),
            lambda: x.add_(other), lambda: paddle.nn.functional.linear(x.reshape([1, 2]), other.reshape([2, 1])),
            lambda: paddle.add(x, y=other), lambda: x[other.astype("int32")],
            lambda: paddle.matmul(x=x, y=other), lambda: paddle.add(x, x, out=other),
        ):
            try:
                raise AssertionError(mix())
            except xdevice.errors.DeviceMismatchError as error:
                assert "expects tensors on one GPU, got tensors on gpu:1 and gpu:2" in str(error), error
        assert xdevice.device_of(x) is gpu
        assert xdevice.device_of(other) is xdevice.gpu(2)
        assert paddle.add(x, x, out=x).tolist() == x.tolist() == [2, 2]
        assert xdevice.device_of(paddle.assign(x, other)) is gpu
        try:
            xdevice.check_same_device(x, x.cpu())
        except xdevice.errors.DeviceMismatchError as error:
            print(error)
    """)
    assert_done(
        done,
        "argument 1 is on cpu:0, but argument 0 is on gpu:1; move it with xdevice.to_device(..., 'gpu:1')",
    )


@pytest.mark.slow
def test_an_optimizer_moves_with_its_learning_rate():
    done = run("""
        net = paddle.nn.Linear(2, 1)
        sgd = paddle.optimizer.SGD(0.1, parameters=net.parameters())
        for device in map(xdevice.device, ("gpu:0", "gpu:1", "cpu", "gpu:2")):
            with device:
                xdevice.to_device([net, sgd], device)
                net(xdevice.ones(3, 2, device=device)).sum().backward()
                sgd.step()  # Paddle would compute with a rate on another GPU
        print("done")
    """)
    assert_done(done)


@pytest.mark.slow
def test_threads_that_copy_at_once_do_not_wait_for_each_other_for_ever():
    done = run("""
        import threading
        def work(i):
            x = xdevice.tensor(np.full(1000, i, "float32"), device=xdevice.gpu(i))
            for k in range(200):
                x = xdevice.to_device(xdevice.to_device(x * 1.0, xdevice.gpu((i + k) % 4)), "cpu")
                x = xdevice.to_device(x, xdevice.gpu(i))
            results[i] = float(x.mean())
        results = {}
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert results == {i: float(i) for i in range(4)}
        print("done")
    """)
    assert_done(done)


@pytest.mark.slow
def test_forked_workers_of_a_loader_compute_on_virtual_gpus():
    done = run("""
        class Doubled(paddle.io.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return (xdevice.tensor([float(i)], device="gpu:1") * 2).numpy()

        xdevice.ones(64, 64, device="gpu:1") @ xdevice.ones(64, 64, device="gpu:1")
        for epoch in range(2):
            loader = paddle.io.DataLoader(Doubled(), batch_size=2, num_workers=2)
            batches = [xdevice.to_device(batch, "gpu:2") for batch in loader]
        assert xdevice.device_of(batches) is xdevice.gpu(2)
        print(paddle.concat([part for batch in batches for part in batch]).flatten().tolist())
    """)
    assert_done(done, "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]")


@pytest.mark.slow
def test_child_processes_inherit_them():
    # from a parent that has imported Paddle they inherit an empty folder of plugins too
    code = """
        import os, subprocess, sys, paddle
        assert os.environ["CUSTOM_DEVICE_ROOT"] == ""
        child = "import xdevice; xdevice.set_backend('paddle'); print(xdevice.ones(2, device='gpu:3').place)"
        print(subprocess.check_output([sys.executable, "-c", child], text=True).strip())
    """
    assert_done(run(code, start="", XDEVICE_VIRTUAL_GPUS="4"), "Place(vgpu:3)")


@pytest.mark.slow
def test_streams_events_and_rmsprop_are_refused_and_the_rest_works():
    done = run("""
        def refuses(error, call):
            try:
                call()
            except error:
                return True

        assert refuses(xdevice.errors.UnsupportedError, lambda: xdevice.accelerator.Stream("gpu:1"))
        with xdevice.gpu(1):
            assert refuses(xdevice.errors.UnsupportedError, lambda: xdevice.accelerator.Event().record())
        net = xdevice.to_device(paddle.nn.Linear(2, 2), "gpu:1")
        before = net.weight.numpy()
        rms = paddle.optimizer.RMSProp(0.1, parameters=net.parameters())
        net(xdevice.ones(1, 2, device="gpu:1")).sum().backward()
        assert refuses(xdevice.errors.UnsupportedError, rms.step)
        assert (net.weight.numpy() == before).all()

        x = xdevice.ones(1000, device="gpu:1")
        batches = xdevice.prefetch([x, np.ones(3)], device="gpu:3")
        assert [xdevice.device_of(batch) for batch in batches] == [xdevice.gpu(3)] * 2
        tasks = [lambda i=i: xdevice.ones(2, device=f"gpu:{i}") * i for i in range(4)]
        assert [float(y[0]) for y in xdevice.parallel.run(*tasks)] == [0, 1, 2, 3]
        with xdevice.transfers() as seen:
            x.clone().to("vgpu:2")  # without the clone Paddle 2.6 moves x itself
            float(x.sum())
        found = [(transfer.kind, str(transfer.source), str(transfer.destination)) for transfer in seen]
        assert found == [("move", "gpu:1", "gpu:2"), ("read", "gpu:1", "cpu:0")], found
        with xdevice.accelerator.blocking():
            x * 2
        xdevice.sync()
        xdevice.sync("gpu:1", x)
        allocated = xdevice.memory("gpu:1").allocated
        assert allocated is None or allocated >= x.size * 4  # Paddle 2.6 does not count
        print("done")
    """)
    assert_done(done)


LATE = """
import xdevice
try:
    xdevice.backend("paddle")
    xdevice.virtual_gpus(2)
except xdevice.errors.UnsupportedError as error:
    print(error)
print([backend.count("gpu") for backend in xdevice.core.registry.list_loaded()])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "wanted", "loaded"), [("import paddle", "2", "[]"), ("", "", "[0]")]
)
def test_asked_for_too_late_is_an_error_that_says_so(start, wanted, loaded):
    done = run(LATE, start=start, XDEVICE_VIRTUAL_GPUS=wanted)
    assert "Paddle is already imported" in done.stdout, done.stderr
    assert "set XDEVICE_VIRTUAL_GPUS and move `import xdevice` above" in done.stdout
    assert done.stdout.splitlines()[-1] == loaded


@pytest.mark.long
def test_more_than_paddle_takes_are_refused():
    done = run(LATE, start="", XDEVICE_VIRTUAL_GPUS="17")
    assert "Paddle supports at most 16 devices of a plugin, not 17" in done.stdout, done.stderr
    assert_done(
        run(
            "print(xdevice.ones(2, device='gpu:15').place)", start=START.replace("(4)", "(16)")
        ),
        "Place(vgpu:15)",
    )


OTHER_PADDLE = """
import pathlib
read = pathlib.Path.read_text
pathlib.Path.read_text = lambda self, *args, **how: read(self, *args, **how).replace({old!r}, {new!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "RUNTIME_MINOR_VERSION 1",
            "RUNTIME_MINOR_VERSION 2",
            "expected version (0, 1, 1) of Paddle's device interface, got (0, 2, 1)",
        ),
        ("*device_memory_allocate)", "*device_memory_take)", "'device_memory_allocate'"),
    ],
)
def test_a_paddle_with_another_interface_is_refused(old, new, expected):
    done = run(LATE, start=OTHER_PADDLE.format(old=old, new=new), XDEVICE_VIRTUAL_GPUS="2")
    assert (
        "Paddle 2.6.2 and 3.3.1 support virtual GPUs, but this version does not ("
        in done.stdout
    ), done.stderr
    assert expected in done.stdout


def test_without_virtual_gpus_no_machine_code_is_loaded():
    code = """
        import sys
        import xdevice
        xdevice.set_backend("paddle")
        net = xdevice.to_device(xdevice.backend().framework.nn.Linear(2, 2), "cpu")
        xdevice.memory("cpu"), xdevice.num_gpus(), xdevice.backend().samples().other_device()
        xdevice.sync(net(xdevice.ones(1, 2)))
        assert xdevice.backend().why_no_virtual_gpus().startswith("Paddle is already imported")
        own = {name.rpartition(".")[2] for name in sys.modules if name.startswith("xdevice_paddle.")}
        print(own & {"machine_code", "custom_device", "virtual_operations"} or "done")
    """
    assert_done(run(code, start=""))


def test_the_machine_code_calls_what_it_says():
    import xdevice

    xdevice.backend("paddle")
    from xdevice_paddle.virtual.machine_code import Argument, Page, why_not

    if why_not() is not None:
        pytest.skip(str(why_not()))
    page = Page()
    source = page.store_forever(b"0123456789abcdef")
    shifted = page.add_call("memmove", Argument(3), Argument(4), Argument(5))
    read = page.add_call("memcpy", Argument(0), source, 4)
    write = page.add_call("memcpy", source, Argument(0), 4)
    compared = page.add_call("memcmp", Argument(1), Argument(2), 4, is_status=True)
    success = page.add_success()
    page.make_executable()

    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    target = ctypes.create_string_buffer(16)
    address = ctypes.addressof(target)
    copy = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, pointer, pointer, pointer, pointer, ctypes.c_size_t
    )(shifted)
    assert copy(1, 2, 3, address, source, 16) == 0
    assert target.raw == b"0123456789abcdef"
    assert ctypes.CFUNCTYPE(ctypes.c_int, text)(write)(b"WXYZ") == 0
    assert ctypes.CFUNCTYPE(ctypes.c_int, pointer)(read)(address) == 0
    assert target.raw == b"WXYZ456789abcdef"
    compare = ctypes.CFUNCTYPE(ctypes.c_int, pointer, text, text)(compared)
    assert compare(None, b"abcd", b"abcd") == 0
    assert compare(None, b"abcd", b"abce") < 0
    assert ctypes.CFUNCTYPE(ctypes.c_int)(success)() == 0


@pytest.mark.slow
def test_two_threads_with_a_virtual_gpu_each_compute_there_what_the_cpu_does():
    code = """
        import threading
        def net():
            paddle.seed(0)
            nn = paddle.nn
            return nn.Sequential(nn.Conv2D(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10), nn.LayerNorm(10))
        def results(net, x):
            y = net(x)
            y.sum().backward()
            made = [y, *(p.grad for p in net.parameters())]
            net.clear_gradients()
            return made
        image = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype("float32")
        wanted = [one.numpy() for one in results(net(), paddle.to_tensor(image))]
        nets = [xdevice.to_device(net(), gpu) for gpu in ("gpu:0", "gpu:1")]
        right = []
        def work(i):
            x = xdevice.tensor(image, device=f"gpu:{i}")
            for _ in range(100):
                made = results(nets[i], x)
                assert [xdevice.device_of(one) for one in made] == [xdevice.gpu(i)] * len(made)
                assert all(np.array_equal(one.numpy(), right) for one, right in zip(made, wanted))
            right.append(i)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sorted(right))
    """
    assert_done(run(code), "[0, 1]")


def test_scopes_of_threads_that_overlap_leave_the_device_that_was_there():
    code = """
        import threading
        entered, left = threading.Event(), threading.Event()
        def other():
            with xdevice.use_backend("paddle"), xdevice.gpu(1):
                entered.set()
                left.wait(200)
                assert paddle.get_device() == "vgpu:1"
        thread = threading.Thread(target=other)
        with xdevice.gpu(0):
            thread.start()
            assert entered.wait(200)
        left.set()
        thread.join()
        assert paddle.get_device() == "cpu", paddle.get_device()
        print("done")
    """
    assert_done(run(code))
