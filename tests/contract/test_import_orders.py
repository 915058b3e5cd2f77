"""Frameworks in one process: loaded by xdevice in any order, or imported by the program below `import xdevice`."""

from __future__ import annotations

import ast
import itertools

import pytest
from helpers.environment import BACKENDS, ROOT, needs, printed, python, sampled

FOUR = ("torch", "tensorflow", "paddle", "mxnet")
# the orders that crash or fail without the loader: Paddle after TensorFlow, MXNet after all
SAMPLED = (
    ("tensorflow", "paddle", "torch", "mxnet"),
    ("mxnet", "tensorflow", "torch", "paddle"),
)
OTHERS = [order for order in itertools.permutations(FOUR) if order not in SAMPLED]

CODE = """
import importlib, sys, threading, xdevice
order, how = sys.argv[1].split(","), sys.argv[2]
load = importlib.import_module if "by hand" in how else xdevice.backend
workers = [threading.Thread(target=load, args=(name,)) for name in order]
if "at once" in how:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
for name, worker in zip(order, workers):
    if "by hand" in how:  # each runs something before xdevice is asked for anything
        module = load(name)
        {"torch": lambda: module.ones(2) + 1, "tensorflow": lambda: module.ones(2) + 1, "jax": lambda: module.devices(),
         "paddle": lambda: module.ones([2]) + 1, "mxnet": lambda: module.nd.waitall(),
         "keras": lambda: module.layers.Dense(1).build((1, 2))}[name]()
    elif "thread" in how:
        worker.start()
        worker.join()
    else:
        load(name)
xs = []
for name in order:
    if name == "keras":
        continue
    with xdevice.use_backend(name) as backend:
        x = xdevice.random.uniform(64, 64)
        product = x @ x
        moved = xdevice.copy_to({"x": product}, "cpu")
        gradient = backend.samples().gradient(lambda t: t @ t, xdevice.ones(2, 2))
        assert xdevice.to_numpy(gradient).tolist() == [[4, 4], [4, 4]], name
        xdevice.sync()
        xs.append(moved)
        if backend.virtual or "virtual" in how:
            assert str(xdevice.device_of(xdevice.copy_to(x, "gpu:1"))) == "gpu:1"
        if name == "jax":
            continue
        net = xdevice.to_device(backend.samples().network(3, 1), "cpu")
        assert xdevice.device_of(net) is xdevice.cpu()
        net(xdevice.ones(2, 3))
        if name == "torch":  # the first optimizer imports triton, where torch brings it
            backend.framework.optim.SGD(net.parameters(), lr=0.1)
assert xdevice.same_device(xs)
print("all work")
"""


def assert_works(order, how, **variables):
    """Without those that are not installed: MXNet has no wheel for Python 3.13."""
    here = [
        name
        for name in order
        if name in BACKENDS or (name == "keras" and "tensorflow" in BACKENDS)
    ]
    if not here:
        needs(*order)
    done = python("-c", CODE, ",".join(here), how, **variables)
    assert (done.returncode, done.stdout.strip()) == (0, "all work"), done.stderr[-2000:]


@pytest.mark.parametrize(
    "how", sampled(["main", "thread", "by hand"], each_time=(), slow=["main"], others="long")
)
@pytest.mark.parametrize(
    "order", [SAMPLED[0], pytest.param(SAMPLED[1], marks=pytest.mark.long)], ids=",".join
)
def test_the_orders_that_crash_without_the_loader(order, how):
    assert_works(order, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["main", "by hand"])
@pytest.mark.parametrize("order", OTHERS, ids=",".join)
def test_every_other_order(order, how):
    assert_works(order, how)


@pytest.mark.parametrize(
    ("order", "how"),
    sampled(
        [
            (("jax",), "by hand"),
            (("tensorflow", "jax", "paddle", "mxnet", "torch"), "by hand"),
            (("keras", "paddle", "torch", "jax", "mxnet"), "by hand"),
            (("tensorflow", "jax", "torch", "paddle", "mxnet"), "by hand at once"),
            *((order, "by hand") for order in OTHERS),
        ],
        each_time=[(("jax",), "by hand")],
        slow=[(("tensorflow", "jax", "paddle", "mxnet", "torch"), "by hand")],
        others="long",
    ),
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_imports_by_hand_with_virtual_gpus(order, how):
    assert_works(order, f"{how}, virtual", XDEVICE_VIRTUAL_GPUS="2")


# what the finder leaves as it is


def test_looking_for_a_framework_imports_nothing_and_finds_what_is_there():
    needs("jax")
    code = """
import importlib.util, sys, xdevice
spec = importlib.util.find_spec("jax")
assert "jax" not in sys.modules and spec.origin.endswith("__init__.py") and spec.loader.get_source("jax")
import jax
assert jax.__spec__.loader is jax.__loader__ and "SourceFileLoader" in str(jax.__loader__), jax.__spec__
importlib.reload(jax)
print([backend.name for backend in xdevice.core.registry.list_loaded()] if hasattr(xdevice.core, "registry") else [])
"""
    # one framework, of which nothing is asked: no adapter
    assert printed("-c", code, bare=True) == "[]"
    assert printed("-c", code, bare=True, XDEVICE_BLOCKING="1") == "['jax']"


@pytest.mark.parametrize("name", ["mxnet", "paddle"])
def test_a_framework_that_does_not_import_raises_its_own_error(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a library is missing')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import xdevice
for _ in range(2):
    try:
        import {name}
    except RuntimeError as error:
        print(error)
try:
    xdevice.backend({name!r})
except xdevice.errors.BackendImportError as error:
    print("cannot be imported" in str(error))
"""
    assert printed("-c", code).splitlines() == ["a library is missing"] * 2 + ["True"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_virtual_gpus_asked_for_too_late_name_the_line_to_move(name):
    if name not in BACKENDS:
        pytest.skip(f"{name} is not installed")
    run = (
        "import tensorflow; tensorflow.ones(2) + 1"
        if name == "tensorflow"
        else "import jax; jax.devices()"
    )
    done = python(
        "-c", f"{run}; import xdevice; xdevice.backend({name!r})", XDEVICE_VIRTUAL_GPUS="2"
    )
    assert (
        f"set XDEVICE_VIRTUAL_GPUS and move `import xdevice` above `import {name}`"
        in done.stderr
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    ["import xdevice, paddle", "import paddle; paddle.enable_compat(); import torch, xdevice"],
)
def test_where_torch_is_paddle_paddle_serves_and_the_cause_is_named(order):
    if not {"paddle", "torch"} <= {*BACKENDS}:
        pytest.skip("needs Paddle and PyTorch")
    code = f"""
{order}
import sys
if not hasattr(paddle, "enable_compat"):
    raise SystemExit(print("paddle this Paddle has none, paddle.disable_compat()"))
if "torch" not in sys.modules:
    paddle.enable_compat()
    import torch
assert torch.ones is paddle.ones
try:
    xdevice.backend("torch")
except xdevice.errors.BackendImportError as error:
    print(xdevice.backend().name, xdevice.ones(2).numpy().sum(), error)
"""
    last = printed("-c", code, bare=True).splitlines()[-1]
    assert last.startswith("paddle"), last
    assert "paddle.disable_compat()" in last


PACKAGES = [*ROOT.glob("xdevice/**/__init__.py"), *ROOT.glob("backends/**/__init__.py")]


@pytest.mark.parametrize(
    "package", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT))
)
def test_no_later_import_replaces_a_name_of_a_package(package):
    """`import math` in a package that has a module `math` means that module as soon as it is imported."""
    modules = {
        path.stem for path in package.parent.glob("*") if path.suffix == ".py" or path.is_dir()
    }
    assert names_from_elsewhere(package.read_text(encoding="utf-8")) & modules == set()


@pytest.mark.parametrize(
    "line",
    ["import math", "import math.more", "import numpy as math", "from numpy import math"],
)
def test_a_name_that_a_later_import_replaces_is_noticed(line):
    assert names_from_elsewhere(line) == {"math"}
    assert (
        names_from_elsewhere(
            "from . import math\nfrom .math import math\ndef f():\n    import math"
        )
        == set()
    )


def names_from_elsewhere(text):
    """The names that a module binds, when it is loaded, to what lies outside its package."""
    names = set()
    for node in outside_functions(ast.parse(text)):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and node.level != 1
        ):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return names


def outside_functions(tree):
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
            yield from outside_functions(node)
