"""The operations of a program on each framework: the first from which two programs part, forward and backward."""

from __future__ import annotations

import json
import os
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.environment import BACKENDS, python

import xdevice
from xdevice.twins.tracing.operations import (
    Errors,
    Log,
    LogWriter,
    Operation,
    TwoPrograms,
    errors,
    program_line,
)

NAMES = [name for name in ("torch", "jax", "tensorflow", "paddle") if name in BACKENDS]
PAIRS = [
    (one, other) for one in NAMES for other in NAMES if one != other and "torch" in (one, other)
]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)).astype("float32"), RNG.normal(size=(6, 3)).astype("float32")
WEIGHTS = {
    name: RNG.normal(size=shape).astype("float32") * 0.5
    for name, shape in {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}.items()
}


def loss_on(name, p, x, y, fault):
    """A loss in the framework's own words, with one of the faults."""
    if name == "torch":
        import torch as xp

        mean, stop = (lambda x: x.mean(-1, keepdim=True)), lambda x: x.detach()
    elif name == "paddle":
        import paddle as xp

        mean, stop = (lambda x: x.mean(-1, keepdim=True)), lambda x: x.detach()
    elif name == "jax":
        import jax
        import jax.numpy as xp

        mean, stop = (lambda x: x.mean(-1, keepdims=True)), jax.lax.stop_gradient
    else:
        import tensorflow as xp

        mean, stop = (lambda x: xp.reduce_mean(x, -1, keepdims=True)), xp.stop_gradient
    h = x @ p["w1"] + p["b1"]
    h = h - mean(h)
    size = xp.sqrt(mean(h * h) + (1e-2 if fault == "eps" else 1e-5))
    h = xp.tanh(h / (stop(size) if fault == "stop" else size))
    out = (h * 1.01 if fault == "scaled" else h) @ p["w2"] + p["b2"]
    off = (out - y) ** 2
    return xp.reduce_mean(off) if name == "tensorflow" else off.mean()


def step(name, fault=""):
    """The log of one step."""
    backend = xdevice.backend(name)
    log = Log(name)
    writer = LogWriter(backend, log)
    p = {key: backend.from_numpy(value.copy(), xdevice.cpu()) for key, value in WEIGHTS.items()}
    x, y = (backend.from_numpy(array.copy(), xdevice.cpu()) for array in (X, Y))
    with backend.operation_calls(writer.run, writer.add_gradient):
        if name == "jax":
            import jax

            loss, _ = jax.value_and_grad(lambda p: loss_on(name, p, x, y, fault))(p)
        elif name == "tensorflow":
            import tensorflow as tf

            variables = {key: tf.Variable(value, name=key) for key, value in p.items()}

            @tf.function
            def run():
                with tf.GradientTape() as tape:
                    loss = loss_on(name, variables, x, y, fault)
                tape.gradient(loss, variables)
                return loss

            loss = run()
        else:
            for value in p.values():
                if name == "torch":
                    value.requires_grad_()
                else:
                    value.stop_gradient = False
            loss = loss_on(name, p, x, y, fault)
            loss.backward()
    writer.add_roots("loss", loss)
    return log


@pytest.fixture(scope="module")
def honest():
    return {name: step(name) for name in NAMES}


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_honest_programs_do_not_part(honest, one, other):
    two = TwoPrograms(honest[one], honest[other])
    assert two.first_parting() is None
    assert two.first_parting(is_backward=True) is None
    rows = two.gradients()
    assert len(rows) == 4
    assert all(
        off.share < 1e-5 and off.cosine > 0.99999 and off.within > 0.9 for _, off in rows
    )


@pytest.mark.skipif("torch" not in NAMES, reason="needs torch")
def test_what_has_no_name_is_called_by_the_operation_that_takes_it(honest):
    first, *_ = honest["torch"].gradients
    assert first.name.startswith(f"input of add ({__file__}:")
    assert first.name.endswith("), (3,)")


@pytest.mark.parametrize(("fault", "text"), [("eps", "1e-2 if fault"), ("scaled", "h * 1.01")])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_the_first_operation_that_differs_is_named_with_its_line(
    honest, one, other, fault, text
):
    place = TwoPrograms(step(one, fault), honest[other]).first_parting()
    lines = Path(__file__).read_text().splitlines()
    assert place is not None
    assert place.actual is not None
    file, _, number = place.actual.line.rpartition(":")
    assert file == __file__
    # frameworks add the constant in one operation or in two
    assert any(text in line for line in lines[int(number) - 1 : int(number) + 1]), str(place)


# JAX's backward pass is made of operations that also take values of the forward pass
@pytest.mark.parametrize("name", [name for name in NAMES if name != "jax"])
def test_a_gradient_comes_after_those_that_it_is_computed_from(honest, name):
    backward = [one for one in honest[name].operations if one.is_backward]
    earlier = set()
    for one in backward:
        assert {*one.inputs} <= earlier, one
        earlier |= {*one.outputs}
    assert sum(bool(one.inputs) for one in backward) > len(backward) / 2, backward


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_gradient_that_differs_where_outputs_agree_is_named(honest, one, other):
    two = TwoPrograms(step(one, "stop"), honest[other])
    assert two.first_parting() is None
    place = two.first_parting(is_backward=True)
    assert place is not None
    assert (place.expected or place.actual).is_backward
    off = {name: errors.share > 1e-3 for name, errors in two.gradients() if errors is not None}
    assert sum(off.values()) == 2, off  # the two behind the norm, going backward


def test_the_columns():
    found = errors(np.float32([1, 2, 4.4]), np.float32([1, 2, 4]))
    assert found.abs == pytest.approx(0.4, rel=1e-5)
    assert found.rel == pytest.approx(0.1, rel=1e-5)
    assert found.share == pytest.approx(0.1, rel=1e-5)
    assert found.within == pytest.approx(2 / 3)
    assert errors(np.zeros(3, "float32"), np.zeros(3, "float32")) == Errors(
        0.0, 0.0, 0.0, 1.0, 1.0
    )
    assert errors(-np.ones(3, "float32"), np.ones(3, "float32")).cosine == pytest.approx(-1)


@pytest.mark.skipif("torch" not in NAMES, reason="the tensors are PyTorch's")
def test_gradients_are_those_of_their_output_if_one_before_it_has_no_numbers():
    import torch

    log = Log("torch")
    writer = LogWriter(xdevice.backend("torch"), log)
    empty, x = torch.ones(2, device="meta"), torch.arange(3.0)
    puts = []

    def follow(result, put):
        puts.append(put)
        return result

    writer.run("two", (), lambda: (empty, x), follow)
    writer.run("uses", (x,), lambda: x * 2, follow)
    two, uses = puts
    uses(0, torch.full((3,), 5.0))
    two(0, torch.ones(2))  # nobody knows which operations took the tensor on meta
    two(1, torch.full((3,), 10.0))
    first, second = [one for one in log.operations if one.is_backward]
    assert (first.name, second.name) == ("uses", "two")
    assert second.inputs == first.outputs
    assert log.arrays[second.outputs[0]].tolist() == [10, 10, 10]


def test_what_tells_nothing_is_no_difference():
    one, other = Log("one"), Log("other")
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[2, 4], [6, 8]])
    for log, constant in ((one, 1.0), (other, 7.0)):
        keys = [log.store(array) for array in (x, np.full(3, constant, "float32"), y)]
        log.add(Operation("full", "", (), (keys[1],)))
        log.add(Operation("double", "", (keys[0], keys[1]), (keys[2],)))
        log.roots = keys[2:]
    assert TwoPrograms(one, other).first_parting() is None
    other.add(Operation("scaled", "a.py:1", (other.roots[0],), (other.store(y * 1.5),)))
    other.roots = list(other.operations[-1].outputs)
    place = TwoPrograms(one, other).first_parting()
    assert (place.actual, place.expected.line) == (None, "a.py:1")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_a_package_in_the_folder_of_the_standard_library_is_no_part_of_that_library(folder):
    # where pip installs without a virtual environment
    inner = os.path.join(sysconfig.get_path("stdlib"), folder, "other", "layers.py")
    names = {"__name__": "other.layers", "program_line": program_line}
    exec(compile("def call(lines):\n    lines.append(program_line())", inner, "exec"), names)
    # a thread of its own has no line of the user
    lines = []
    thread = threading.Thread(target=names["call"], args=(lines,))
    thread.start()
    thread.join()
    assert lines == [f"{inner}:2"]
    # a line of the user comes first
    names["call"](lines)
    assert lines[1].startswith(f"{__file__}:")


SCRIPT = """
import os, sys
import numpy as np
import xdevice
name, fault = os.environ["XDEVICE_BACKEND"], sys.argv[1]
rng = np.random.default_rng(0)
w, x = rng.normal(size=(4, 8)).astype("float32"), rng.normal(size=(16, 4)).astype("float32")
if name == "jax":
    import jax, jax.numpy as jnp
    @jax.jit
    def step(w):
        def loss(w):
            h = jnp.asarray(x) @ w
            size = jnp.sqrt((h * h).mean(-1, keepdims=True))
            h = jnp.tanh(h / (jax.lax.stop_gradient(size) if fault == "stop" else size))
            return (h ** 2).mean()
        return jax.value_and_grad(loss)(w)
    loss, _ = step(jnp.asarray(w))
else:
    import torch
    net = torch.nn.Linear(4, 8, bias=False)
    net.weight.data = torch.tensor(w.T.copy())
    h = net(torch.tensor(x))
    h = torch.tanh(h / torch.sqrt((h * h).mean(-1, keepdim=True)))
    loss = (h ** 2).mean()
    loss.backward()
xdevice.parity.log("loss", loss)
"""


@pytest.mark.skipif(not {"torch", "jax"} <= set(BACKENDS), reason="the script is for both")
@pytest.mark.parametrize("fault", ["none", "stop"])
def test_a_script_with_operations_and_gradients(tmp_path, fault):
    script, report = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    options = ["--operations", "--backward", "--json", str(report), "--backends", "torch,jax"]
    done = python("-m", "xdevice", "parity", str(script), *options, "--", fault)
    assert done.returncode == (1 if fault == "stop" else 0), done.stdout + done.stderr
    about = json.loads(report.read_text())
    _, jax = about["backends"]
    (row,) = jax["gradients"]
    assert row["name"] == "weight"  # PyTorch's name of the parameter
    if fault == "none":
        assert (row["ok"], jax["state"], about["first_divergence"]) == (True, "agrees", None)
        return
    assert (row["ok"], jax["state"]) == (False, "diverges")
    first = about["first_divergence"]
    assert first["name"] == "operations, backward"
    assert "script.py:" in first["text"]


def test_what_is_not_combined_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    done = python("-m", "xdevice", "parity", str(script), "--trace", "--operations")
    assert done.returncode == 2
    assert "omit --trace or" in done.stderr


@pytest.mark.parametrize("is_enabled", [True, False])
def test_paddle_compiles_again_only_if_it_did_before(is_enabled):
    backend = xdevice.backend("paddle")
    import paddle

    traced = []

    @paddle.jit.to_static(full_graph=True)
    def doubled(x):
        traced.append(not paddle.in_dynamic_mode())
        return 2 * x

    paddle.jit.enable_to_static(is_enabled)
    try:
        with backend.operation_calls(lambda name, arguments, call, *_: call(), lambda *_: None):
            doubled(paddle.ones([2]))
        doubled(paddle.ones([2]))
    finally:
        paddle.jit.enable_to_static(True)
    assert traced == [False, is_enabled]
