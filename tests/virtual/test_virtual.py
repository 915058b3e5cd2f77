"""Virtual GPUs: who gets them, when it is too late, and what a framework's own code sees.

What holds for real GPUs too is in test_on_gpus.py. A process has its devices for good, so most of this is asked in
fresh ones.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS, printed, sampled

import xdevice
from xdevice.base import devices, requested
from xdevice.contract import environment
from xdevice.core import registry
from xdevice.virtual import gpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_numpy import NumpyBackend


def python(code, **environment):
    """What a fresh process prints."""
    return printed("-c", code, bare=True, **environment)


class Listed(NumpyBackend):
    """GPUs that are a number, and what was asked of them."""

    name = "listed"
    kinds = ("cpu", "gpu")

    def __init__(self, real=0, why_not=None, most=None):
        self.real, self.why_not, self.most_virtual_gpus = real, why_not, most
        self.made = []

    def count(self, kind):
        return {"cpu": 1, "gpu": self.virtual or self.real}.get(kind, 0)

    def why_no_virtual_gpus(self):
        return self.why_not

    def make_virtual_gpus(self, n):
        self.made.append(n)


@pytest.fixture
def loaded(monkeypatch):
    """The backends that are loaded, none of which has been asked for virtual GPUs."""
    found = {}
    monkeypatch.setattr(registry, "_loaded", found)
    monkeypatch.setattr(registry, "_owners", {})
    probes = dict(registry.probes)
    registry.probes.clear()
    monkeypatch.setattr(requested, "virtual_gpus", "")
    monkeypatch.setattr(gpus, "_hides_real_gpus", False)
    monkeypatch.delenv(requested.VIRTUAL_GPUS, raising=False)
    yield found
    registry.probes.clear()
    registry.probes.update(probes)


# how many


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "4", None])
def test_a_number_that_is_none_is_refused(n, loaded):
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"virtual_gpus\(\) expects a positive int, or .*, got",
    ):
        xdevice.virtual_gpus(n)
    assert environment.virtual_gpus_wanted() == 0


@pytest.mark.parametrize("text", ["four", "-1", "2.0", "0x2", "²", "4 4"])
def test_a_variable_that_is_no_number_is_refused_before_a_framework_is_imported(
    text, loaded, monkeypatch
):
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", text)
    for ask in (
        environment.virtual_gpus_wanted,
        lambda: xdevice.virtual_gpus(2),
        lambda: xdevice.backend("numpy"),
    ):
        with pytest.raises(
            xdevice.errors.SettingError,
            match="XDEVICE_VIRTUAL_GPUS must be a non-negative int, not",
        ):
            ask()


@pytest.mark.parametrize(("text", "n"), [("", 0), ("0", 0), (" 3 ", 3), ("16", 16)])
def test_the_variable_says_how_many(text, n, loaded, monkeypatch):
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", text)
    assert environment.virtual_gpus_wanted() == n


def test_the_same_number_again_changes_nothing_and_another_is_refused(loaded):
    backend = loaded["listed"] = Listed()
    for _ in range(3):
        xdevice.virtual_gpus(2)
    assert (backend.virtual, backend.made) == (2, [2])
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"virtual_gpus\(\) has requested 2 virtual GPUs.*requests 3",
    ):
        xdevice.virtual_gpus(3)
    assert (backend.virtual, environment.virtual_gpus_wanted()) == (2, 2)


def test_a_number_beside_that_of_the_variable_is_refused(loaded, monkeypatch):
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", "4")
    with pytest.raises(
        xdevice.errors.ArgumentError, match="XDEVICE_VIRTUAL_GPUS has requested 4"
    ):
        xdevice.virtual_gpus(3)
    xdevice.virtual_gpus(4)


# who


def test_nothing_has_changed_when_one_backend_refuses(loaded):
    willing, unwilling = Listed(), Listed(why_not="it is too old; use a newer one")
    loaded.update(willing=willing, unwilling=unwilling)
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match="listed cannot have virtual GPUs here: it is too old; use a",
    ):
        xdevice.virtual_gpus(2)
    assert (willing.virtual, willing.made, environment.virtual_gpus_wanted()) == (0, [], 0)


def test_more_than_one_backend_takes_are_refused_before_another_gets_them(loaded):
    willing, small = Listed(), Listed(most=15)
    loaded.update(willing=willing, small=small)
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match="16 virtual GPUs are too many; request at most 15",
    ):
        xdevice.virtual_gpus(16)
    assert (willing.virtual, willing.made, environment.virtual_gpus_wanted()) == (0, [], 0)
    xdevice.virtual_gpus(15)
    assert (willing.made, small.made) == ([15], [15])


def test_real_gpus_are_hidden_only_if_asked(loaded):
    backend = loaded["listed"] = Listed(real=2)
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"listed has 2 real GPUs here.*virtual_gpus\(n, force=True\)",
    ):
        xdevice.virtual_gpus(4)
    assert (backend.virtual, backend.made, environment.virtual_gpus_wanted()) == (0, [], 0)
    xdevice.virtual_gpus(4, force=True)
    assert (backend.virtual, backend.made) == (4, [4])
    later = Listed(real=1)
    later.name = "later"
    environment.set_up(later)
    assert later.virtual == 4


def test_real_gpus_stay_hidden_when_the_same_number_is_asked_for_again(loaded):
    xdevice.virtual_gpus(2, force=True)
    loaded["listed"] = Listed(real=1)
    xdevice.virtual_gpus(2)
    later = Listed(real=1)
    later.name = "later"
    environment.set_up(later)
    assert (loaded["listed"].virtual, later.virtual) == (2, 2)


class Place:
    """A tensor of the backend below, which says where it is."""

    __module__ = "probing"

    def __init__(self, index):
        self.index = index


class Probing(Listed):
    """Its probes know the devices that there were when they were made."""

    modules = ("probing",)

    def classify(self, cls):
        return "tensor" if issubclass(cls, Place) else None

    def device_of(self, x):
        if not 0 <= x.index < self.count("gpu"):
            raise self.unsupported(
                "a real GPU's tensor while its GPUs are virtual", "leave real GPUs alone"
            )
        return xdevice.gpu(x.index)

    def probe(self, cls):
        gpus = [xdevice.gpu(index) for index in range(self.count("gpu"))]
        return lambda x: gpus[x.index] if x.index < len(gpus) else self.device_of(x)


def test_what_knew_the_devices_of_before_is_asked_again(loaded, monkeypatch):
    monkeypatch.setitem(sys.modules, "probing", sys)
    loaded["listed"] = Probing(real=4)
    before = Place(3)
    assert xdevice.device_of(before) is xdevice.gpu(3)
    assert xdevice.to_device({"x": before}, "gpu:3")["x"] is before
    xdevice.virtual_gpus(2, force=True)
    for ask in (xdevice.device_of, xdevice.same_device):
        for x in (before, {"x": before}):
            with pytest.raises(
                xdevice.errors.UnsupportedError, match="while its GPUs are virtual"
            ):
                ask(x)
    assert xdevice.device_of(Place(1)) is xdevice.gpu(1)


def test_a_backend_loaded_later_gets_them_or_refuses(loaded, monkeypatch):
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", "3")
    backend = Listed()
    environment.set_up(backend)
    assert (backend.virtual, backend.made) == (3, [3])
    for unwilling in (Listed(real=1), Listed(why_not="no")):
        with pytest.raises(xdevice.errors.UnsupportedError):
            environment.set_up(unwilling)
        assert (unwilling.virtual, unwilling.made) == (0, [])


def test_an_adapter_without_them_says_so(loaded):
    class Plain(NumpyBackend):
        name = "plain"
        kinds = ("cpu", "gpu")
        why_no_virtual_gpus = VirtualGpus.why_no_virtual_gpus
        make_virtual_gpus = VirtualGpus.make_virtual_gpus

    loaded["plain"] = Plain()
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="does not have make_virtual_gpus"
    ):
        xdevice.virtual_gpus(2)
    with pytest.raises(xdevice.errors.UnsupportedError):
        Plain().make_virtual_gpus(2)


def test_numpy_stays_on_the_cpu(loaded):
    xdevice.virtual_gpus(2)
    with xdevice.use_backend("numpy") as backend:
        assert (xdevice.num_gpus(), xdevice.try_gpu(1), xdevice.try_all_gpus()) == (
            0,
            xdevice.cpu(),
            [xdevice.cpu()],
        )
        assert backend.devices() == (xdevice.cpu(),)
        assert xdevice.device_of(xdevice.ones(2)) is xdevice.cpu()
        with pytest.raises(xdevice.errors.DeviceNotFoundError):
            xdevice.ones(2, device="gpu")
        xdevice.sync()
        assert xdevice.measure(lambda: xdevice.ones(2), repeats=2).clock == "host"
        assert [float(x[0]) for x in xdevice.prefetch([np.ones(2)], device="cpu")] == [1.0]


def test_a_text_can_be_made_a_spelling():
    devices.register_spelling("/ODD:1", xdevice.gpu(7))
    assert xdevice.device("/ODD:1") is xdevice.gpu(7)


# the frameworks

TOO_LATE = """
import xdevice
{used}
try:
    xdevice.virtual_gpus(2)
except xdevice.errors.UnsupportedError as error:
    assert "XDEVICE_VIRTUAL_GPUS" in str(error) and "{name}" in str(error), error
    backend = xdevice.backend("{name}")
    assert backend.virtual == backend.count("gpu") == 0 and xdevice.contract.environment.virtual_gpus_wanted() == 0
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "used"),
    [
        pytest.param(
            "tensorflow",
            "xdevice.set_backend('tensorflow'); xdevice.ones(2)",
            marks=pytest.mark.long,
        ),
        ("jax", "xdevice.set_backend('jax'); xdevice.ones(2)"),
        ("jax", "import jax; jax.devices(); xdevice.backend('jax')"),
    ],
)
def test_it_is_too_late_once_the_framework_has_started(name, used):
    assert python(TOO_LATE.format(name=name, used=used)) == "refused"


@pytest.mark.slow
def test_a_framework_used_without_xdevice_before_is_refused_when_it_is_loaded():
    code = """
import jax, xdevice
jax.numpy.ones(2)
for _ in range(2):
    try:
        xdevice.backend("jax")
    except xdevice.errors.UnsupportedError as error:
        assert "jax cannot have virtual GPUs here: JAX has already been used" in str(error), error
        print("refused")
"""
    assert python(code, XDEVICE_VIRTUAL_GPUS="2") == "refused\nrefused"


@pytest.mark.parametrize(
    "name", sampled(["torch", "mxnet"], each_time=(), slow=["torch"], others="long")
)
def test_it_is_not_too_late_after_use(name):
    code = f"""
import xdevice
with xdevice.use_backend({name!r}) as backend:
    x = xdevice.ones(2)
    assert xdevice.num_gpus() == 0 and xdevice.try_all_gpus() == [xdevice.cpu()]
    assert xdevice.device_of(x) is xdevice.cpu()
    xdevice.virtual_gpus(3)
    assert xdevice.num_gpus() == 3 and backend.count("cpu") == 1
    moved = xdevice.to_device(x, "gpu:2")
    print(xdevice.device_of(x), xdevice.device_of(moved), xdevice.to_numpy(moved).tolist())
"""
    assert python(code) == "cpu:0 gpu:2 [1.0, 1.0]"


@pytest.mark.parametrize(
    ("name", "most"), sampled([("mxnet", 15), ("torch", 128)], each_time=(), others="long")
)
def test_some_frameworks_have_a_limit_and_the_last_device_works(name, most):
    code = f"""
import xdevice
try:
    xdevice.virtual_gpus({most + 1})
    xdevice.backend("{name}")
except xdevice.errors.UnsupportedError as error:
    print(error)
xdevice.base.requested.virtual_gpus = ""
xdevice.virtual_gpus({most})
with xdevice.use_backend("{name}"):
    x = xdevice.ones(2, device="gpu:{most - 1}")
    print(xdevice.device_of(x + x))
"""
    refused, last = python(code).splitlines()
    assert f"ask for {most} at most" in refused
    assert last == f"gpu:{most - 1}"


@pytest.mark.slow
def test_a_foreign_device_of_torch_is_refused_by_name():
    code = """
import torch, xdevice
torch.utils.rename_privateuse1_backend("mine")
try:
    xdevice.backend("torch")
except xdevice.errors.UnsupportedError as error:
    print(error)
"""
    assert (
        "torch supports only one additional device type in a process, and mine is already"
        in python(code, XDEVICE_VIRTUAL_GPUS="2")
    )


ALL = """
import xdevice, numpy
xs, wrong = [], []
for name in {order}:
    with xdevice.use_backend(name) as backend:
        assert backend.virtual == xdevice.num_gpus() == 4, name
        assert [str(device) for device in xdevice.try_all_gpus()] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"], name
        assert backend.count("cpu") == 1, name
        assert all(xdevice.device(device.native) is device for device in backend.devices()), name
        about = backend.describe(xdevice.gpu(1))
        assert about.name == "virtual GPU (host memory)" and about.memory is None, name
        memory = xdevice.memory("gpu:1")
        assert memory.free is None, memory
        assert backend.is_started(xdevice.gpu(3)) in (True, False)
        xdevice.sync(), xdevice.sync("gpu:3")
        if name != "paddle":
            try:
                xdevice.accelerator.Stream("gpu:1")
                raise AssertionError(name)
            except xdevice.errors.UnsupportedError:
                pass
        x = xdevice.tensor([1.0, 2.0], device="gpu:1")
        y = xdevice.to_device(x, "gpu:3")
        with xdevice.accelerator.blocking(), xdevice.gpu(3):
            z = backend.samples().add(y, y)
        assert xdevice.device_of(z) is xdevice.gpu(3), name
        assert xdevice.to_numpy(z).tolist() == [2.0, 4.0], name
        assert not xdevice.same_device(x, y), name
        with xdevice.transfers() as log:
            xdevice.to_numpy(z)
        assert [(record.source, record.physical) for record in log] == [(xdevice.gpu(3), True)], (name, log)
        with xdevice.gpu(2):
            places = xdevice.parallel.run(*[lambda: xdevice.device_of(backend.samples().native_ones(2))] * 2)
        assert places == [xdevice.gpu(2)] * 2, (name, places)
        batches = list(xdevice.prefetch([numpy.ones(2, "float32")] * 3, device="gpu:2"))
        assert all(xdevice.device_of(batch) is xdevice.gpu(2) for batch in batches), name
        try:
            backend.samples().add(x, y)
        except Exception:
            wrong.append(name)
        xs.append(x)
assert xdevice.same_device(xs) and xdevice.check_same_device(xs) is xdevice.gpu(1)
print(sorted(wrong))
"""


@pytest.mark.parametrize("first", sampled(["tensorflow", "torch"], each_time=(), others="long"))
def test_all_frameworks_have_them_in_one_process(first):
    order = [first, *(name for name in FRAMEWORKS[::-1] if name != first)]
    # TensorFlow copies operands of two devices in silence, on hardware too; for Paddle see docs/explanation/virtual.md
    refused = python(ALL.format(order=order), XDEVICE_VIRTUAL_GPUS="4")
    assert (
        {"torch", "mxnet", "jax"} <= set(eval(refused)) <= {"torch", "mxnet", "jax", "paddle"}
    )


@pytest.mark.long
def test_info_names_them():
    code = """
import json, xdevice
from xdevice.cli import info
for name in ("numpy", "mxnet"):
    print(json.dumps([one["virtual"] for one in info.probe_here(name)["devices"]]))
"""
    lines = python(code, XDEVICE_VIRTUAL_GPUS="2").splitlines()
    assert [line for line in lines if line.startswith("[")] == [
        "[false]",
        "[false, true, true]",
    ]


FORKED = """
import multiprocessing
import xdevice

xdevice.set_backend(NAME)
data = xdevice.tensor([[float(i)] * 300 for i in range(300)], device="gpu:1")
add = xdevice.backend().samples().add
expected = xdevice.to_numpy(add(data, data))


def read(i):
    try:
        return xdevice.to_numpy(add(data, xdevice.to_device(data, "gpu:1")))[i].tolist()
    except xdevice.errors.UnsupportedError as error:
        return str(error)


with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map_async(read, range(8)).get(200)
if NAME in ("paddle", "mxnet"):
    assert found == expected[:8].tolist(), found
else:
    assert all("before this process was forked" in text and "spawn" in text for text in found), found
print("as it should")
"""


@pytest.mark.parametrize(
    "name",
    sampled(
        (name for name in FRAMEWORKS if name != "torch"),
        each_time=["jax"],
        slow=["paddle"],
        others="long",
    ),
)
def test_a_forked_worker_reads_what_is_on_them_or_is_told_that_it_cannot(name):
    assert python(f"NAME = {name!r}" + FORKED, XDEVICE_VIRTUAL_GPUS="2").endswith(
        "as it should"
    )


@pytest.mark.slow
def test_a_forked_child_has_those_of_torch_unless_its_parent_used_them():
    code = """
import os, xdevice
xdevice.set_backend("torch")
xdevice.virtual_gpus(2)
xdevice.num_gpus()
def child():
    pid = os.fork()
    if pid == 0:
        try:
            x = xdevice.ones(2, device="gpu:1")
            os._exit(int(xdevice.item((x + 1)[0])))
        except RuntimeError as error:
            os._exit(7 if "Cannot re-initialize vgpu in forked subprocess" in str(error) else 8)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
before = child()
xdevice.ones(2, device="gpu:1")
print(before, child())
"""
    assert python(code) == "2 7"


@pytest.mark.slow
def test_mxnet_refuses_what_its_gpus_refuse_and_knows_no_more_than_there_are():
    code = """
import xdevice
mx = xdevice.backend("mxnet").framework
mx.npx.set_np()
here, there = xdevice.cpu(), xdevice.gpu(1)
with xdevice.use_backend("mxnet"):
    here, there = here.native, there.native
refused = 0
for add, ones in ((mx.np.add, mx.np.ones), (mx.nd.elemwise_add, mx.nd.ones)):
    x, out = ones((2,), ctx=here), ones((2,), ctx=there)
    try:
        add(x, x, out=out)
    except mx.MXNetError as error:
        refused += "cpu(0) and cpu(2)" in str(error)
    x.copyto(out)
    out[:] = x
    assert out.asnumpy().tolist() == [1, 1] and out.ctx == there
    try:
        out += x
    except mx.MXNetError as error:
        refused += "cpu(0) and cpu(2)" in str(error)
    x.attach_grad()
    for give in (
        lambda y: y.backward(out), lambda y: mx.autograd.backward([y], [out]), lambda y: mx.autograd.grad(y, x, out),
        lambda y: mx.autograd.mark_variables([x], [out]),
    ):
        with mx.autograd.record():
            y = x * x
        try:
            give(y)
        except mx.MXNetError as error:
            refused += "all its arrays on one device" in str(error)
    with mx.autograd.record():
        y, z = x * x, x.copyto(there) * 3
    mx.autograd.backward([y, z], [x, None])
    assert x.grad.asnumpy().tolist() == [5, 5]
try:
    xdevice.device_of(mx.np.ones(2, ctx=mx.cpu(9)))
except xdevice.errors.DeviceNotFoundError as error:
    refused += "with 3 virtual GPUs" in str(error)
print(refused)
"""
    assert python(code, XDEVICE_VIRTUAL_GPUS="3") == "13"


@pytest.mark.virtual
def test_a_strategy_of_tensorflow_on_gpus_that_are_not_there_is_refused():
    with xdevice.use_backend("tensorflow") as backend:
        if backend.virtual < 2:
            pytest.skip("needs XDEVICE_VIRTUAL_GPUS=2")
        strategies, natives = (
            backend.framework.distribute,
            [xdevice.gpu(i).native for i in range(2)],
        )
        for make in (
            lambda: strategies.MirroredStrategy(["/GPU:0", "/GPU:1"]),  # would hang in `fit`
            lambda: strategies.MirroredStrategy(["gpu:0"]),
            lambda: strategies.OneDeviceStrategy("/device:GPU:1"),
        ):
            with pytest.raises(
                xdevice.errors.UnsupportedError, match=r"are virtual; .*device\.native"
            ):
                make()
        strategy = strategies.MirroredStrategy(natives)
        counted = strategy.run(lambda: backend.framework.constant(1.0))
        assert float(strategy.reduce("SUM", counted, axis=None)) == 2


@pytest.mark.slow
def test_a_trainer_of_mxnet_keeps_two_of_them_in_step():
    code = """
import numpy as np, xdevice
mx = xdevice.backend("mxnet").framework
mx.npx.set_np()
x = np.arange(12, dtype="float32").reshape(4, 3) / 10
with xdevice.use_backend("mxnet"):
    natives = [device.native for device in xdevice.try_all_gpus()]
def trained(contexts):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Constant(0.1), ctx=contexts)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    for _ in range(3):
        with mx.autograd.record():
            losses = [((net(part) - 1) ** 2).sum() for part in mx.gluon.utils.split_and_load(mx.np.array(x), contexts)]
        for loss in losses:
            loss.backward()
        trainer.step(4)
    return [[data.asnumpy() for data in p.list_data()] for p in net.collect_params().values()]
for alone, replicas in zip(trained([mx.cpu()]), trained(natives)):
    assert len(replicas) == 2
    for replica in replicas:
        np.testing.assert_allclose(replica, alone[0], rtol=1e-5)
    assert abs(alone[0] - 0.1).max() > 0.05
print("in step")
"""
    assert python(code, XDEVICE_VIRTUAL_GPUS="2") == "in step"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_thread_that_is_not_there():
    code = """
import os, threading
from xdevice.virtual import gpus
threading.Thread(target=gpus._lock.acquire).start()
child = os.fork()
if child == 0:
    os._exit(not gpus._lock.acquire(timeout=0))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    assert python(code).strip() == "0"
