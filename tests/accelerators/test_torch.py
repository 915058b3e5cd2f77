"""PyTorch on an accelerator of another vendor, a renamed virtual device, and beside its lazy device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from support import needs, printed

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


def on_npu(script: str, **variables: str) -> None:
    found = printed("-c", TOOLS + dedent(script) + '\nprint("done")', cwd=HERE, bare=True, **variables)
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
    assert xdevice.device_of([net, *xdevice.replicate([net.weight], ["npu:0"])]) is xdevice.gpu(0)
    assert xdevice.backend().describe(xdevice.gpu(0)).name == "npu"
    assert xdevice.memory("gpu:0").total is None
    """)


def test_other_hardware_is_refused_by_each_word_before_anything_moves():
    on_npu("""
    x, net = xdevice.ones(2), torch.nn.Linear(2, 2)
    words = [f"{word}:1" for word in ("cuda", "rocm", "hip", "mps", "xpu", "hpu", "mtia", "mlu", "musa")]
    for bad in (*words, "tpu:1", torch.device("cuda:1"), torch.device("xpu:1")):
        said = refused(
            xdevice.DeviceNotFoundError,
            lambda: xdevice.to_device(x, bad), lambda: xdevice.to_device([x], bad), lambda: xdevice.to_device(net, bad),
            lambda: xdevice.to_device({"x": x, "net": net}, bad), lambda: xdevice.copy_to(x, bad),
            lambda: xdevice.ones(2, device=bad), lambda: xdevice.tensor([1.0], device=bad), lambda: xdevice.sync(bad),
            lambda: xdevice.device(bad).native, lambda: xdevice.device(bad).__enter__(),
            lambda: xdevice.native.device(bad), lambda: xdevice.set_device(bad), lambda: xdevice.memory(bad),
            lambda: xdevice.Timer(bad), lambda: xdevice.Stream(bad), lambda: xdevice.Event(bad),
            lambda: xdevice.split_batch(x, [bad], even=False), lambda: xdevice.gather([x], bad),
            lambda: xdevice.replicate(net, [bad]), lambda: xdevice.broadcast(x, [bad]),
            lambda: xdevice.prefetch([x], bad), lambda: xdevice.reset_peak(bad),
        )
        if str(bad) != "tpu:1":
            assert all(f"{bad} does not exist on torch" in one and "gpu:i is npu" in one for one in said), said
    assert xdevice.device_of([x, net]) is xdevice.cpu()
    there = xdevice.ones(2, device="gpu:1")
    refused(xdevice.DeviceNotFoundError, lambda: xdevice.to_device([there], "cuda:1"))
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
        refused(xdevice.DeviceNotFoundError, lambda: xdevice.to_device(x, "cuda:1"))
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
    with xdevice.blocking():
        work()
    assert npu.seen.late == 0 and npu.seen.waits
    said = refused(xdevice.UnsupportedError, lambda: xdevice.Stream("gpu:1"), lambda: xdevice.Event("gpu:1"))
    assert all("Timer waits" in one for one in said)
    assert not xdevice.backend().shares(xdevice.gpu(1))
    assert xdevice.to_numpy(x).tolist() == [1, 1]
    """)


def test_where_nothing_waits_it_is_refused_by_name():
    on_npu("""
    backend = xdevice.backend()
    x = xdevice.ones(2, device="gpu:1")
    backend._synchronize = None
    said = refused(xdevice.UnsupportedError, lambda: xdevice.sync(), lambda: xdevice.sync(x), lambda: xdevice.Timer(),
                   lambda: xdevice.measure(lambda: x + 1))
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
        xdevice.UnsupportedError, lambda: xdevice.sync(), lambda: xdevice.Timer(),
        lambda: xdevice.measure(lambda: y + 1), lambda: xdevice.blocking().__enter__(),
        lambda: xdevice.sync(xdevice.backend()), lambda: xdevice.Benchmark().__enter__(),
        lambda: xdevice.sync(y), lambda: xdevice.device_of(y), lambda: xdevice.device(y.device),
    )
    assert all("'lazy'" in one for one in said), said
    xdevice.sync("gpu:0")
    xdevice.sync(xdevice.ones(2))
    assert xdevice.to_device(y, "gpu:1").tolist() == [2, 2, 2]
    """)


def test_a_plugin_that_does_not_load_is_left_out_by_a_variable(tmp_path):
    about = tmp_path / "torch_broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\ntorch_broken = torch_broken:load\n")
    (tmp_path / "torch_broken.py").write_text("raise OSError('libbroken.so is not here')\n")
    script = dedent("""
        import xdevice
        try:
            xdevice.backend("torch")
        except xdevice.BackendImportError as error:
            print(error)
    """)
    said = printed("-c", script, bare=True, PYTHONPATH=str(tmp_path))
    assert "torch_broken" in said
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in said
    assert "pip install" not in said
    assert not printed("-c", script, bare=True, PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
