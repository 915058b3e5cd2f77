"""PyTorch on an accelerator of another vendor, a renamed virtual device, and beside its lazy device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from accelerators import npu
from helpers.environment import ROOT, needs, printed

HERE = Path(__file__).parent
TOOLS = """
import time
import npu
npu.register()
import torch
import xdevice
xdevice.set_backend("torch")

def refused(error, *tasks):
    said = []
    for number, task in enumerate(tasks):
        try:
            task()
        except error as found:
            said.append(str(found))
        else:
            raise AssertionError(f"task {number} was not refused")
    return said
"""


@pytest.fixture(autouse=True)
def _torch():
    needs("torch")


def on_npu(script: str, *arguments: str, **variables: str) -> None:
    found = printed(
        "-c",
        TOOLS + dedent(script) + '\nprint("done")',
        *arguments,
        cwd=HERE,
        bare=True,
        **variables,
    )
    assert found.endswith("done")


def test_it_is_the_gpu_and_its_own_word_names_it():
    on_npu("""
    assert xdevice.try_all_gpus() == [xdevice.gpu(0), xdevice.gpu(1)]
    x = xdevice.ones(2, 3, device="gpu:1")
    assert x.device == torch.device("npu:1") == xdevice.gpu(1).native == xdevice.device("npu:1").native
    assert xdevice.device_of(x) is xdevice.gpu(1) == xdevice.device(x.device) == xdevice.device("npu:1")
    for there in ("gpu:1", "npu:1", x.device, xdevice.device("npu:1")):
        assert xdevice.to_device(x, there) is x
        assert xdevice.to_device({"x": [x]}, there)["x"][0] is x
        assert xdevice.copy_to(x, there) is not x
        assert xdevice.device_of(xdevice.ones(2, device=there)) is xdevice.gpu(1)
        with xdevice.device(there):
            assert torch.ones(1).device == x.device
    net = xdevice.to_device(torch.nn.Linear(2, 2), "npu")
    assert xdevice.device_of([net, *xdevice.parallel.replicate([net.weight], ["npu:0"])]) is xdevice.gpu(0)
    assert xdevice.backend().describe(xdevice.gpu(0)).name == "npu"
    assert xdevice.memory("gpu:0").total is None
    """)


def test_other_hardware_is_refused_by_each_word_before_anything_moves():
    on_npu("""
    x, net = xdevice.ones(2), torch.nn.Linear(2, 2)
    words = [f"{word}:1" for word in ("cuda", "rocm", "hip", "mps", "xpu", "hpu", "mtia", "mlu", "musa")]
    for bad in (*words, "tpu:1", torch.device("cuda:1"), torch.device("xpu:1")):
        said = refused(
            xdevice.errors.DeviceNotFoundError,
            lambda: xdevice.to_device(x, bad), lambda: xdevice.to_device([x], bad), lambda: xdevice.to_device(net, bad),
            lambda: xdevice.to_device({"x": x, "net": net}, bad), lambda: xdevice.copy_to(x, bad),
            lambda: xdevice.ones(2, device=bad), lambda: xdevice.tensor([1.0], device=bad), lambda: xdevice.sync(bad),
            lambda: xdevice.device(bad).native, lambda: xdevice.device(bad).__enter__(),
            lambda: xdevice.native.device(bad), lambda: xdevice.set_default_device(bad), lambda: xdevice.memory(bad),
            lambda: xdevice.Timer(bad), lambda: xdevice.accelerator.Stream(bad), lambda: xdevice.accelerator.Event(bad),
            lambda: xdevice.split_batch(x, [bad], even=False), lambda: xdevice.parallel.gather([x], bad),
            lambda: xdevice.parallel.replicate(net, [bad]), lambda: xdevice.parallel.broadcast(x, [bad]),
            lambda: xdevice.prefetch([x], bad), lambda: xdevice.accelerator.reset_peak_memory_stats(bad),
        )
        if str(bad) != "tpu:1":
            assert all(f"{bad} does not exist on torch" in one and "gpu:i is npu" in one for one in said), said
    assert xdevice.device_of([x, net]) is xdevice.cpu()
    there = xdevice.ones(2, device="gpu:1")
    refused(xdevice.errors.DeviceNotFoundError, lambda: xdevice.to_device([there], "cuda:1"))
    """)


def test_a_word_that_was_answered_to_is_not_asked_for_again():
    on_npu("""
    x, asked = xdevice.ones(2, device="gpu:1"), []
    hardware, require = type(xdevice.backend()).hardware, type(xdevice.backend()).require
    type(xdevice.backend()).hardware = lambda self: asked.append("word") or hardware(self)
    type(xdevice.backend()).require = lambda self, device: asked.append("device") or require(self, device)
    for there in ("npu:1", "npu:1", xdevice.device("npu:1")):
        assert xdevice.to_device(x, there) is x
    assert asked == ["device", "word"], asked
    assert xdevice.to_device([x], "npu:1")[0] is x and asked == ["device", "word", "device"], asked
    for _ in range(2):
        refused(xdevice.errors.DeviceNotFoundError, lambda: xdevice.to_device(x, "cuda:1"))
        assert xdevice.device_of(xdevice.to_device(x, "npu:0")) is xdevice.gpu(0)
    assert asked.count("word") >= 3, asked
    """)


def test_what_waits_waits_for_the_vendors_own_synchronize():
    on_npu("""
    x = xdevice.ones(2, device="gpu:1")
    for waits, wait in (
        ([0, 1], lambda: xdevice.sync()), ([1], lambda: xdevice.sync(x)), ([0], lambda: xdevice.sync("gpu:0")),
        ([1], lambda: xdevice.sync("npu:1")), ([0, 1], lambda: xdevice.sync(xdevice.backend())),
    ):
        npu.seen.waits.clear()
        npu.seen.late = 0.2
        started = time.perf_counter()
        wait()
        assert time.perf_counter() - started >= 0.2
        assert sorted(set(npu.seen.waits)) == waits, npu.seen.waits

    def work():
        npu.seen.late = 0.1
        return x + 1

    found = xdevice.measure(work, warmup=1, repeats=2)
    assert found.median >= 0.1 and found.clock == "host"
    found = xdevice.measure(work, warmup=1, repeats=2, devices="gpu:1")
    assert found.median >= 0.1 and found.clock == "host"
    timer = xdevice.Timer()
    work()
    assert timer.stop() >= 0.1
    npu.seen.waits.clear()
    with xdevice.accelerator.blocking():
        work()
    assert npu.seen.late == 0 and npu.seen.waits
    stream, event = xdevice.accelerator.Stream, xdevice.accelerator.Event
    said = refused(xdevice.errors.UnsupportedError, lambda: stream("gpu:1"), lambda: event("gpu:1"))
    assert all("xdevice.Timer" in one for one in said)
    assert not xdevice.backend().shares(xdevice.gpu(1))
    assert xdevice.to_numpy(x).tolist() == [1, 1]
    """)


def test_where_nothing_waits_it_is_refused_by_name():
    on_npu("""
    backend = xdevice.backend()
    x = xdevice.ones(2, device="gpu:1")
    backend._synchronize = None
    said = refused(
        xdevice.errors.UnsupportedError, lambda: xdevice.sync(), lambda: xdevice.sync(x), lambda: xdevice.Timer(),
        lambda: xdevice.measure(lambda: x + 1),
    )
    assert all("npu:" in one for one in said)
    """)


def test_a_vendors_module_without_synchronize_is_waited_for_by_pytorch():
    on_npu("""
    from xdevice_torch import accelerators
    waits = []
    torch.npu.__dict__.pop("synchronize")
    type(torch.npu).synchronize, own = None, type(torch.npu).synchronize
    torch.accelerator.synchronize = lambda index: waits.append(index)
    accelerators.waiter("npu")(1)
    assert waits == [1]
    assert accelerators.waiter("hpu") is None  # PyTorch waits for the current type alone
    """)


def test_a_plugin_that_is_registered_without_devices_hides_nothing():
    on_npu(
        """
    assert torch.accelerator.current_accelerator().type == "npu"
    assert xdevice.try_gpu() is xdevice.cpu()
    from xdevice_torch import accelerators
    torch.cuda.device_count = lambda: 3
    assert accelerators.detect() == ("cuda", 3)
    """,
        SIMULATED_COUNT="0",
    )


def test_pytorchs_choice_is_ours_and_a_variable_overrides_it():
    on_npu("""
    import os
    from xdevice_torch import accelerators
    torch.cuda.device_count = lambda: 3
    assert accelerators.detect() == ("npu", 2)
    os.environ["XDEVICE_ACCELERATOR"] = "CUDA"
    assert accelerators.detect() == ("cuda", 3)
    os.environ["XDEVICE_ACCELERATOR"] = "xpu"
    [said] = refused(xdevice.errors.SettingError, accelerators.detect)
    assert "npu, cuda" in said
    """)


def test_a_lazy_device_that_was_started_cannot_be_waited_for():
    on_npu("""
    import torch._lazy.ts_backend
    xdevice.sync()
    torch._lazy.ts_backend.init()
    y = torch.ones(3, device="lazy") + 1
    said = refused(
        xdevice.errors.UnsupportedError, lambda: xdevice.sync(), lambda: xdevice.Timer(),
        lambda: xdevice.measure(lambda: y + 1), lambda: xdevice.accelerator.blocking().__enter__(),
        lambda: xdevice.sync(xdevice.backend()), lambda: xdevice.Benchmark().__enter__(),
        lambda: xdevice.sync(y), lambda: xdevice.device_of(y), lambda: xdevice.device(y.device),
    )
    assert all("'lazy'" in one for one in said), said
    xdevice.sync("gpu:0")
    xdevice.sync(xdevice.ones(2))
    assert xdevice.to_device(y, "gpu:1").tolist() == [2, 2, 2]
    """)


LACKING = "float64 complex128"


def test_a_dtype_that_it_lacks_is_refused_before_anything_moves(tmp_path):
    on_npu(
        """
    import os
    import numpy as np
    supports = xdevice.accelerator.is_dtype_supported
    assert not supports("float64", "npu:1") and not supports(torch.complex128, "npu:1")
    assert all(supports(dtype, "npu:1") for dtype in (float, "int64", "bfloat16"))
    from xdevice_torch import accelerators
    assert accelerators.lacks("npu", 1) and not accelerators.lacks("xpu", 0)  # PyTorch tells of the current one only
    assert supports("float64", "cpu") and supports("float8_e5m2", "gpu:0")
    refused(xdevice.errors.DeviceNotFoundError, lambda: supports("float32", "gpu:7"))
    refused(xdevice.errors.DTypeError, lambda: supports("floaty", "cpu"))
    x, wide = torch.ones(4), torch.ones(4, dtype=torch.float64)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    wider, layer = torch.nn.Sequential(torch.nn.Linear(2, 2)).double(), xdevice.to_device(torch.nn.Linear(2, 2), "gpu")
    class Unsaved(torch.nn.Linear):
        def get_extra_state(self): return "text, which no file can hold"
    unsaved = Unsaved(2, 2)
    unsaved.register_buffer("steps", wide, persistent=False)
    stepped = torch.optim.SGD([wide.requires_grad_()], 0.1, momentum=0.9)
    (wide * wide).sum().backward()
    stepped.step()
    class Box:
        def __init__(self): self.inside = wide
        def to(self, device): raise AssertionError("it has moved")
    path = os.environ["TMPDIR"] + "/wide.safetensors"
    xdevice.save(path, {"x": wide})
    places = ["gpu:0", "gpu:1"]
    for name, task in {
        "the Tensor": lambda: xdevice.to_device(wide, "npu"),
        "the Tensor ": lambda: xdevice.copy_to(wide, "gpu:1"),
        "[1]['y']": lambda: xdevice.to_device([x, {"y": wide}], "gpu"),
        "[1]['y'] ": lambda: xdevice.copy_to([x, {"y": wide}], "gpu"),
        "[1].inside": lambda: xdevice.to_device([x, Box()], "gpu"),
        "[0].1.weight": lambda: xdevice.to_device([net, x], "gpu"),
        "1.weight": lambda: xdevice.to_device(net, "gpu"),
        "1.weight ": lambda: xdevice.copy_to(net, "gpu"),
        "['1.weight']": lambda: xdevice.to_device(net.state_dict(), "gpu"),
        "0.weight": lambda: xdevice.models.convert_state(wider, "torch", like=wider, device="gpu"),
        "inputs=": lambda: xdevice.parity.compare(layer, layer, inputs=np.ones((1, 2))),
        "the Unsaved": lambda: xdevice.to_device(unsaved, "gpu"),
        "0.momentum_buffer": lambda: xdevice.to_device(stepped, "gpu"),
        "x['a']": lambda: xdevice.split_batch({"a": wide}, places),
        "parts[0]": lambda: xdevice.parallel.gather([wide, wide], "gpu"),
        "params.1.weight": lambda: xdevice.parallel.replicate(net, places),
        "[0]": lambda: xdevice.parallel.broadcast([wide], places),
        "batch['x']": lambda: next(iter(xdevice.prefetch([{"x": wide}], "gpu"))),
        "batch.inside": lambda: next(iter(xdevice.prefetch([Box()], "gpu"))),
        "x": lambda: xdevice.load(path, device="gpu"),
        "the dtype": lambda: xdevice.ones(2, device="gpu", dtype="float64"),
        "the dtype ": lambda: xdevice.tensor([1.0], device="gpu", dtype="float64"),
        "the dtype  ": lambda: xdevice.random.uniform(2, device="gpu", dtype="float64"),
        "the dtype   ": lambda: xdevice.random.normal(2, device="gpu", dtype="float64"),
        "the dtype    ": lambda: xdevice.array_namespace().ones(2, device="gpu", dtype="float64"),
        "the dtype     ": lambda: xdevice.array_namespace().arange(2, device="gpu", dtype="float64"),
        "the tensor": lambda: xdevice.tensor(np.ones(2, "complex128"), device="gpu"),
    }.items():
        [said] = refused(xdevice.errors.DTypeError, task)
        assert "which gpu:" in said and "of torch (npu) does not support; " in said, said
        assert "or keep it on cpu:0" in said, said
        assert "32" in said.partition("; ")[2] or "complex64" in said, said
        if name != "the tensor":
            assert said.startswith(f"{name.strip()} is float64"), (name, said)
        assert xdevice.device_of([x, wide, net, unsaved]) is xdevice.cpu()
    assert xdevice.to_device([x, np.ones(2)], "gpu")[0].device.type == "npu"
    assert xdevice.to_device(net.float(), "gpu")[0].weight.device.type == "npu"
    """,
        SIMULATED_LACKS=LACKING,
        TMPDIR=str(tmp_path),
    )


def test_a_test_that_needs_what_it_lacks_is_skipped_on_it_and_not_on_the_cpu(tmp_path):
    (tmp_path / "test_wide.py").write_text("""
import pytest, xdevice
wide = pytest.param("float64", marks=pytest.mark.xd_needs_dtype("float64", "complex128"))

@pytest.mark.parametrize("dtype", ["float32", wide])
def test_it(xd, xd_device, dtype): xdevice.ones(1, device=xd_device, dtype=dtype)
""")
    run = (
        "-m",
        "pytest",
        "-p",
        "npu",
        "-p",
        "no:cacheprovider",
        "-rs",
        "--xd-backends=torch",
        tmp_path,
    )
    variables = {
        "PYTHONPATH": str(HERE),
        "SIMULATED_ACCELERATOR": "1",
        "SIMULATED_LACKS": LACKING,
    }
    said = printed(*run, cwd=tmp_path, bare=True, **variables)
    assert "1 passed, 1 skipped" in said
    assert "needs float64, complex128, which gpu:0 of torch does not support" in said
    assert "2 passed" in printed(*run, "--xd-device=cpu", cwd=tmp_path, bare=True, **variables)


def test_what_the_vendors_documents_say_is_lacking():
    from xdevice_torch import accelerators

    assert accelerators.lacks("mps", 0) > {"float64", "complex128", "float8_e5m2"}
    assert accelerators.lacks("hpu", 0) == {"float64", "complex64", "complex128"}
    assert accelerators.lacks("cuda", 0) == accelerators.lacks("xpu", 0) == frozenset()


def test_a_plugins_registration_is_all_that_a_third_partys_accelerator_takes(tmp_path):
    script = """
    import time
    import xdevice
    assert xdevice.try_all_gpus() == [xdevice.gpu(0), xdevice.gpu(1)]
    import torch, npu
    x = xdevice.ones(2, 3, device="acme:1")
    assert x.device == torch.device("acme:1") and xdevice.device_of(x) is xdevice.gpu(1)
    net = xdevice.to_device(torch.nn.Linear(3, 2), "acme:1")
    assert xdevice.to_device(xdevice.copy_to(x, "acme:0"), "gpu:1").tolist() == [[1, 1, 1], [1, 1, 1]]

    def work():
        npu.seen.late = 0.1
        return net(x)

    started = time.perf_counter()
    xdevice.sync(work())
    assert time.perf_counter() - started >= 0.1 and npu.seen.waits[-1] == 1
    found = xdevice.measure(work, warmup=1, repeats=2)
    assert found.median >= 0.1 and found.clock == "host"
    try:
        xdevice.to_device(x, "npu:1")
    except xdevice.errors.DeviceNotFoundError as error:
        assert "gpu:i is acme" in str(error)
    else:
        raise AssertionError("there is no NPU")
    assert xdevice.backend().describe(xdevice.gpu(0)).name == "acme"
    print("done")
    """
    variables = npu.plugin(tmp_path, "acme", torch__backends="npu:register")
    assert printed(
        "-c", dedent(script), bare=True, XDEVICE_BACKEND="torch", **variables
    ).endswith("done")


def test_the_chapters_train_on_it_as_on_the_cpu():
    """`use_gpu`, and several steps of the two chapters on several GPUs: on one device bit for bit."""
    on_npu(
        """
    import runpy, sys
    import numpy as np
    from xdevice.containers.trees import Tree
    sys.path.insert(0, sys.argv[1])
    printed = runpy.run_path(sys.argv[1] + "/use_gpu.py")
    assert printed["X"].device.type == printed["layer"]["weight"].device.type == "npu"
    with xdevice.random.seed(0):
        layer = {"weight": xdevice.random.normal(3, 1), "bias": xdevice.zeros(1)}
    import multiple_gpus, multiple_gpus_concise
    draw = np.random.default_rng(0)
    batches = [(draw.normal(size=(9, 1, 8, 8)).astype("float32"), draw.integers(0, 10, 9)) for _ in range(4)]

    def trained(start, devices):
        trainee = start([xdevice.device(device) for device in devices])
        losses = []
        for batch in batches:
            shares = xdevice.split_batch([xdevice.tensor(x) for x in batch], devices, even=False)
            losses.append(sum(map(xdevice.item, trainee.step(shares))))
        for replica, device in zip(trainee.replicas, devices):
            assert xdevice.device_of(replica) == xdevice.device(device)
        return losses, [xdevice.to_numpy(x) for x in Tree(trainee.replicas[-1]).leaves]

    with xdevice.random.seed(0):
        mlp, lenet = multiple_gpus.mlp_parameters(8, 1), multiple_gpus.lenet_parameters(8, 1)
        resnet = multiple_gpus_concise.resnet_parameters(1)
    for start in (
        lambda devices: multiple_gpus.DataParallel(multiple_gpus.mlp, mlp, devices, 0.05),
        lambda devices: multiple_gpus.DataParallel(multiple_gpus.lenet, lenet, devices, 0.05),
        lambda devices: multiple_gpus_concise.DataParallel(resnet, devices, 0.05),
    ):
        expected = trained(start, ["cpu"])
        losses, parameters = trained(start, ["npu:0"])
        assert losses == expected[0]
        for x, y in zip(parameters, expected[1]):
            np.testing.assert_array_equal(x, y)
        losses, parameters = trained(start, ["npu:0", "npu:1"])
        xdevice.assert_parity(losses, expected[0])
        xdevice.assert_parity(parameters, expected[1])
    """,
        str(ROOT / "examples"),
    )


def test_a_plugin_that_does_not_load_is_left_out_by_a_variable(tmp_path):
    npu.plugin(tmp_path, "torch_broken", torch__backends="torch_broken:load")
    (tmp_path / "torch_broken.py").write_text("raise OSError('libbroken.so is not here')\n")
    script = dedent("""
        import xdevice
        try:
            xdevice.backend("torch")
        except xdevice.errors.BackendImportError as error:
            print(error)
    """)
    said = printed("-c", script, bare=True, PYTHONPATH=str(tmp_path))
    assert "torch_broken" in said
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in said
    assert "pip install" not in said
    assert not printed(
        "-c", script, bare=True, PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )


def test_gpus_that_a_variable_hides_before_cuda_starts_are_not_counted():
    found = printed(
        "-c",
        dedent("""
        import os, torch
        torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].replace("-1", "").split())
        import xdevice
        xdevice.set_backend("torch")
        counts = [xdevice.num_gpus()]
        for visible in ("1", "-1", "0 1"):
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            counts.append(xdevice.num_gpus())
        print(counts, xdevice.try_gpu())
        """),
        bare=True,
        CUDA_VISIBLE_DEVICES="0 1",
    )
    assert found == "[2, 1, 0, 0] cpu:0"
