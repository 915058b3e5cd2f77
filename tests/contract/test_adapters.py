"""Third-party adapters, and installs that are broken: each in a fresh process, with a distribution made for it."""

from __future__ import annotations

import pytest
from helpers.environment import FRAMEWORKS, printed, python

from xdevice.contract.backend import extend
from xdevice.contract.primitives import Primitives
from xdevice.testing.suite.capabilities import CAPABILITIES

GOOD = """
import types
from contextlib import nullcontext
import numpy as np
from xdevice.base import devices
from xdevice.contract import Backend, DeviceInfo
from xdevice.contract.loader import importing

with importing():
    import toyframe

class ToyBackend(Backend):
    name = "toyframe"
    modules = ("toyframe",)
    minimum = (1, 0)
    dtypes = frozenset(["float32", "int64"])
    framework = property(lambda self: toyframe)
    def classify(self, cls): return "tensor" if cls is toyframe.Toy else None
    def count(self, kind): return 2 if kind == "gpu" else 1
    def describe(self, device): return DeviceInfo("toy", None)
    def to_native(self, device): return toyframe.Place(str(device))
    def from_native(self, native): return devices.parse(native.text) if isinstance(native, toyframe.Place) else None
    def scope(self, device): return nullcontext()
    def device_of(self, x): return devices.parse(x.place)
    def move(self, x, device): return toyframe.Toy(x.data.copy(), str(device))
    def copy(self, x, device): return toyframe.Toy(x.data.copy(), str(device))
    def synchronize(self, device): pass
    def wait(self, x): pass
    def from_numpy(self, array, device): return toyframe.Toy(array.copy(), str(device))
    def to_numpy(self, x): return x.data
    def full(self, shape, value, device, dtype): return toyframe.Toy(np.full(shape, value, dtype), str(device))
    def rand(self, shape, device, dtype): return toyframe.Toy(np.random.rand(*shape), str(device))
"""
FRAMEWORK = """
__version__ = "1.2"
class Toy:
    def __init__(self, data, place):
        self.data, self.place, self.shape, self.dtype = data, place, data.shape, data.dtype
class Place:
    def __init__(self, text): self.text = text
    def __eq__(self, other): return self.text == other.text
    def __hash__(self): return hash(self.text)
"""


@pytest.fixture
def machine(tmp_path):
    """A place where distributions can be installed, and a Python that sees them."""
    return Machine(tmp_path)


class Machine:
    def __init__(self, folder):
        self.folder = folder

    def install(self, distribution, backend, target, **modules):
        """A distribution with one adapter in its entry points, and modules of this source."""
        info = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[xdevice.backends]\n{backend} = {target}\n")
        self.write(**modules)

    def write(self, **modules):
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(source)

    def run(self, code):
        done = python("-c", code, PYTHONPATH=str(self.folder))
        return (done.stdout + done.stderr).strip()


def test_a_third_party_adapter_works_like_a_built_in_one(machine):
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=GOOD,
        toyframe=FRAMEWORK,
    )
    code = """
import xdevice
print(xdevice.backends()[-1])
with xdevice.use_backend("toyframe"):
    x = xdevice.tensor([1.0, 2.0], device="gpu:1")
    print(type(x).__name__, xdevice.device_of(x), xdevice.try_all_gpus())
import toyframe, numpy as np
y = toyframe.Toy(np.ones(2), "cpu:0")
print(xdevice.device_of(xdevice.to_device({"y": y}, toyframe.Place("gpu:0"))), xdevice.to_device(y, "cpu") is y)
"""
    assert machine.run(code).splitlines() == [
        "toyframe",
        "Toy gpu:1 [Device('gpu:0'), Device('gpu:1')]",
        "gpu:0 True",
    ]


def test_its_tensors_are_known_before_its_adapter_is_loaded(machine):
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=GOOD,
        toyframe=FRAMEWORK,
    )
    code = "import toyframe, xdevice, numpy as np; print(xdevice.device_of(toyframe.Toy(np.ones(2), 'gpu:1')))"
    assert machine.run(code) == "gpu:1"


def test_dtypes_go_by_the_names_that_the_adapter_states(machine):
    adapter = GOOD.replace(
        "    framework = ", '    dtype_names = {toyframe.int: "int32"}\n    framework = '
    )
    framework = FRAMEWORK + "\nclass DType:\n    name = 'int'\nint = DType()\n"
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=adapter,
        toyframe=framework,
    )
    code = """
import toyframe, xdevice
from xdevice.base.dtypes import dtype_name
xdevice.backend("toyframe")
print(dtype_name(toyframe.int), dtype_name("float32"))
try:
    dtype_name([])
except xdevice.errors.DTypeError:
    print("refused")
"""
    assert machine.run(code).splitlines() == ["int32 float32", "refused"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    def move(self, x, device)",
            "    def mvoe(self, x, device)",
            "lacks the method move(self, x: 'Any', device",
        ),
        (
            "    def count(self, kind)",
            "    def count(self)",
            "defines count(self), expected count(self, kind: 'str')",
        ),
        (
            "    framework = property",
            "    framewrok = property",
            "lacks the method framework (a property)",
        ),
        ("    dtypes = ", "    dtpyes = ", "does not set the class attribute 'dtypes'"),
        ('    name = "toyframe"', '    name = "other"', "calls itself 'other'"),
        (
            "class ToyBackend(Backend)",
            "class ToyBackend",
            "is not a subclass of xdevice.contract.Backend",
        ),
        (
            "    def move(self, x, device)",
            "    def new_graph(self, device): pass\n    def move(self, x, device)",
            "has the method new_graph of Graphs, but lacks only_on(self, device: 'Device')",
        ),
    ],
)
def test_an_adapter_that_breaks_the_contract_is_named(machine, old, new, said):
    assert GOOD.count(old) == 1
    source = GOOD.replace(old, new)
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=source,
        toyframe=FRAMEWORK,
    )
    text = machine.run("import xdevice; xdevice.backend('toyframe')").splitlines()[-1]
    assert text.startswith("xdevice.errors.ContractError")
    assert "toy_adapter:ToyBackend of xdevice-toy 1.0" in text
    assert said in text


def test_the_class_of_a_capability_is_held_to_the_contract_too(machine):
    base = "class ToyBackend(Backend)"
    source = GOOD.replace(
        base,
        "class ToyGraphs:\n    def new_graph(self): pass\n\n\nclass ToyBackend(ToyGraphs, Backend)",
    )
    assert source.count("ToyGraphs") == 2
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=source,
        toyframe=FRAMEWORK,
    )
    text = machine.run("import xdevice; xdevice.backend('toyframe')").splitlines()[-1]
    assert "defines new_graph(self), expected new_graph(self, device: 'Device')" in text
    assert "has the method new_graph of Graphs, but lacks only_on" in text


def test_no_two_capabilities_have_a_method_of_one_name():
    names = [
        name
        for part in (Primitives, *CAPABILITIES)
        for name in vars(part)
        if not name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == {"needs"}
    assert all(set(vars(part)["needs"]) <= vars(part).keys() for part in CAPABILITIES)


def test_two_adapters_of_one_name_are_refused(machine):
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=GOOD,
        toyframe=FRAMEWORK,
    )
    machine.install("xdevice-other-toy", "toyframe", "other_adapter:ToyBackend")
    text = machine.run("import xdevice; xdevice.backend('toyframe')").splitlines()[-1]
    assert text.startswith("xdevice.errors.ContractError")
    assert "xdevice-toy 1.0" in text
    assert "xdevice-other-toy 1.0" in text


@pytest.mark.parametrize(
    ("name", "said"), [("torch", "xdevice-dl"), ("tf", "alias of the built-in 'tensorflow'")]
)
def test_a_built_in_name_cannot_be_claimed(machine, name, said):
    machine.install("xdevice-thief", name, "thief:Backend")
    text = machine.run("import xdevice; xdevice.backend('torch')").splitlines()[-1]
    assert text.startswith("xdevice.errors.ContractError")
    assert "xdevice-thief 1.0" in text
    assert said in text


def test_a_framework_that_does_not_import_says_why(machine):
    machine.write(mxnet="raise OSError('libnvrtc.so.11.2: cannot open shared object file')")
    text = machine.run("import xdevice; xdevice.backend('mxnet')")
    last = text.splitlines()[-1]
    assert last.startswith(
        "xdevice.errors.BackendImportError: the backend 'mxnet' is installed but cannot be imported"
    )
    assert "libnvrtc.so.11.2" in last
    assert "pip install" in last


def test_a_framework_that_does_not_import_does_not_hide_the_others(machine):
    machine.write(mxnet="raise OSError('libnvrtc.so.11.2: cannot open shared object file')")
    text = machine.run(
        "import xdevice\ntry: xdevice.backend('mx')\nexcept ImportError: print(xdevice.backend('np').name)"
    )
    assert text == "numpy"


def test_a_framework_that_is_too_old_is_refused(machine):
    source = FRAMEWORK.replace('"1.2"', '"0.9.5"')
    machine.install(
        "xdevice-toy", "toyframe", "toy_adapter:ToyBackend", toy_adapter=GOOD, toyframe=source
    )
    text = machine.run("import xdevice; xdevice.backend('toyframe')").splitlines()[-1]
    assert "BackendImportError: toyframe 0.9.5 is too old: xdevice needs 1.0 or newer" in text


def test_an_uninstalled_framework_is_refused_with_the_command(machine):
    code = "import sys; sys.modules.update(mxnet=None, jax=None); import xdevice; xdevice.backend('mxnet')"
    text = machine.run(code).splitlines()[-1]
    assert text.startswith(
        "xdevice.errors.BackendNotFoundError: the backend 'mxnet' is not installed here"
    )
    assert "pip install 'mxnet<2' 'numpy<2'" in text
    assert "pip install jax" not in text


def test_samples_are_needed_for_the_suite_only(machine):
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=GOOD,
        toyframe=FRAMEWORK,
    )
    text = machine.run("import xdevice; xdevice.backend('toyframe').samples()").splitlines()[-1]
    assert text.startswith(
        "xdevice.errors.UnsupportedError: toyframe does not support samples; override Backend.samples()"
    )


def test_what_an_adapter_leaves_out_is_said(machine):
    machine.install(
        "xdevice-toy",
        "toyframe",
        "toy_adapter:ToyBackend",
        toy_adapter=GOOD,
        toyframe=FRAMEWORK,
    )
    code = """
import inspect, xdevice
from xdevice.testing.suite.capabilities import HOOKS
toy = xdevice.backend("toyframe")
for name, method in HOOKS.items():
    if inspect.isfunction(method) and name not in vars(type(toy)):
        try:
            getattr(toy, name)(*[None] * (len(inspect.signature(method).parameters) - 1))
        except NotImplementedError as error:
            assert str(error).startswith("toyframe does not support ") and "; " in str(error), (name, error)
            print(name)
        except Exception:
            pass  # it is made of other methods, which want more than None
"""
    left_out = machine.run(code).split()
    assert {
        "stage",
        "memory",
        "reset_peak",
        "variables",
        "join",
        "new_stream",
        "new_graph",
    } <= set(left_out)


@pytest.mark.slow
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_loading_pytorch_imports_nothing_that_compiles():
    """Its compiler takes as long to import as all the rest of it; `torch.compiler.disable` as a decorator needs it."""
    code = "import sys, xdevice; xdevice.backend('torch').samples(); print('torch' in sys.modules, {!r} in sys.modules)"
    assert printed("-c", code.format("torch._dynamo")) == "True False"


def test_a_class_is_extended_by_a_product_once(backend):
    extend(backend, "math")
    cls = type(backend)
    extend(backend, "math")
    assert type(backend) is cls
    assert "math" in cls.products
