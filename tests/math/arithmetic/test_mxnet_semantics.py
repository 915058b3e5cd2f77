"""Whose semantics a thread of MXNet computes with: NumPy's in neutral programs, MXNet's own in legacy ones."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.environment import printed, python

import xdevice

pytestmark = [
    pytest.mark.skipif("mxnet" not in xdevice.backends(), reason="MXNet is not installed"),
    pytest.mark.slow,  # its processes import MXNet
]

START = """
import threading
import xdevice
mx = xdevice.backend("mxnet").framework
def flags():
    return mx.util.is_np_shape(), mx.util.is_np_array()
ON, OFF = (True, True), (False, False)
"""
"""Sets nothing, and makes no array."""

SERVER = (
    START
    + """
import json, os, sys, tempfile, traceback
for line in sys.stdin:
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            os.dup2(errors.fileno(), 2)
            try:
                exec(json.loads(line), dict(globals()))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        print(json.dumps([os.waitstatus_to_exitcode(status), errors.read().decode()]), flush=True)
"""
)
"""Importing MXNet takes seconds, so each program is a fork of a process that has done so."""


@pytest.fixture(scope="module")
def run():
    """What a program writes to stderr, which must end well."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=-1, stdout=-1, text=True
    ) as server:

        def run(code):
            print(json.dumps(code), file=server.stdin, flush=True)
            status, errors = json.loads(server.stdout.readline())
            assert status == 0, errors
            return errors

        yield run
        server.stdin.close()


# neutral programs


def test_creation_switches_each_thread_that_creates_and_no_other(run):
    code = """
from concurrent.futures import ThreadPoolExecutor
def created(i=1):
    x = xdevice.tensor([1.0, i])
    assert flags() == ON and x[0].shape == () and (x.sum() * 2 > 0).item()
    assert xdevice.zeros(0, 3).shape == (0, 3)
    return x.sum()
def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
total = in_a_thread(created)
assert flags() == OFF
with ThreadPoolExecutor(4) as pool:
    totals = list(pool.map(created, range(20)))
assert flags() == OFF
there = xdevice.copy_to(xdevice.to_device(total, "cpu:1"), "cpu:0")  # without dimensions, in a thread without them
assert xdevice.item(there) == xdevice.item(total) == 2 and xdevice.same_device(there, total)
xdevice.sync(there)
assert flags() == OFF
created()
assert in_a_thread(flags) == OFF
assert in_a_thread(lambda: xdevice.parallel.run(flags)) == [OFF]
assert xdevice.parallel.run(flags) == [ON]
"""
    assert run(code) == ""


def test_the_adapter_leaves_no_block_that_looks_like_the_programs():
    """Not even until the next garbage collection, which comes at no time that a program can rely on."""
    code = """
import gc
gc.disable()
import xdevice, mxnet, xdevice_mxnet.models
x = xdevice.tensor([1.0])
assert xdevice.item(xdevice.array_namespace(x).sum(x)) == 1
assert mxnet.gluon.HybridBlock().name == "hybridblock0"
"""
    assert printed("-c", code, XDEVICE_BACKEND="mxnet") == ""


CHOICES = {
    "set_backend": "xdevice.set_backend('mxnet')",
    "use": "xdevice.use_backend('mx').__enter__()",
    "the variable": "os.environ['XDEVICE_BACKEND'] = 'mx'; xdevice.num_gpus()",
}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_choosing_mxnet_switches_before_anything_is_made(run, choose):
    code = f"""
import os
def train():
    {choose}
    found.append(flags())
    net = mx.gluon.nn.Dense(1, in_units=3)
    net.initialize()
    found.append((net(xdevice.ones(2, 3)).sum() * 2).shape)
found = []
thread = threading.Thread(target=train)
thread.start()
thread.join()
assert found == [ON, ()] and flags() == OFF, found
"""
    assert run(code) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "wanted"), [("MXNet", "True"), ("torch", "False"), ("", "False")]
)
def test_importing_mxnet_by_hand_switches_where_the_variable_names_it(variable, wanted):
    code = "import xdevice, mxnet; print(mxnet.util.is_np_array())"
    assert printed("-W", "error", "-c", code, XDEVICE_BACKEND=variable) == wanted


def test_threads_that_are_the_first_at_once_are_neutral(run):
    code = """
import gc
from concurrent.futures import ThreadPoolExecutor
look, barrier = gc.get_objects, threading.Barrier(4)
def get_objects():  # while the others make and drop arrays
    asked.wait(1)
    return look()
asked, gc.get_objects = threading.Event(), get_objects
def created(_):
    barrier.wait()
    for _ in range(3):
        assert (xdevice.ones(2).sum() * 2).item() == 4
    asked.set()
    return flags()
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(created, range(4))) == [ON] * 4
"""
    run(code)


MADE = {
    "tensor": "xdevice.tensor(1.0)",
    "rand": "xdevice.random.uniform(2)",
    "random": "xdevice.random.bernoulli(2)",
    "convert": "xdevice.convert(numpy.ones(2), 'mxnet')",
    "a long convert": "xdevice.convert(numpy.ones(10**6), 'mxnet')",
    "load": "xdevice.load(path)",
    "arithmetic": "xdevice.array_namespace()",
}


def test_whatever_makes_tensors_switches(run, tmp_path):
    code = f"""
import numpy
path = {str(tmp_path / "x.safetensors")!r}
xdevice.save(path, {{"x": numpy.ones(2)}})
def check(make):
    make()
    found.append(flags())
found = []
for make in ({", ".join(f"lambda: {text}" for text in MADE.values())}):
    thread = threading.Thread(target=check, args=[make])
    thread.start()
    thread.join()
assert found == [ON] * {len(MADE)}, found
"""
    run(code)


def test_a_task_that_creates_makes_its_caller_neutral(run):
    code = """
import numpy
def total():
    x = xdevice.ones(2)
    x.attach_grad()
    with mx.autograd.record():
        return (x * x).sum(), x
def check_tasks():
    (loss, x), other = xdevice.parallel.run(total, total)
    assert flags() == ON
    loss.backward()
    assert x.grad.tolist() == [2, 2] and (loss + other[0]).item() == 4
def check_batches():
    for x in xdevice.prefetch([numpy.ones(2)] * 2, "cpu"):
        assert (x.sum() * 2).item() == 4
def check_legacy_tasks():
    assert xdevice.parallel.run(lambda: mx.nd.ones(2)[0].shape) == [(1,)]
    assert flags() == OFF
for check in (check_tasks, check_batches, check_legacy_tasks):
    failed = []
    def work():
        try:
            check()
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
"""
    run(code)


def test_gluon_takes_tensors_of_xdevice(run):
    code = """
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
images, labels = xdevice.random.normal(8, 1, 12, 12), xdevice.random.integers((8,), high=10)
net = nn.HybridSequential()
net.add(nn.Conv2D(4, 3, activation="relu"), nn.MaxPool2D(2), nn.BatchNorm(), nn.Flatten(), nn.Dropout(0.1))
net.add(nn.Dense(10))
net.initialize()
net.hybridize()
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
seen = []
for _ in range(10):
    for x, y in gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), batch_size=8):
        with autograd.record():
            mean = loss(net(x), y).mean()
        mean.backward()
        trainer.step(1)
        seen.append(xdevice.item(mean))
assert seen[-1] < seen[0], seen
there = xdevice.copy_to(net, "cpu:1")
assert there(xdevice.to_device(images, "cpu:1")).sum().shape == ()
layer = rnn.LSTM(8, 2)
layer.initialize()
assert layer(xdevice.ones(5, 3, 4)).shape == (5, 3, 8)
assert gluon.loss.L2Loss()(xdevice.ones(2, 3), xdevice.zeros(2, 3)).tolist() == [0.5, 0.5]
"""
    run(code)


def test_it_is_told_in_the_log_once(run):
    code = """
import logging
logging.basicConfig(level=logging.INFO)
xdevice.ones(2)
for _ in range(2):
    thread = threading.Thread(target=xdevice.array_namespace)
    thread.start()
    thread.join()
"""
    told = run(code)
    assert told.count("npx.set_np()") == 1
    assert told.startswith("INFO:xdevice:")


# what does not switch


def test_arrays_of_the_programs_own_are_moved_as_they_are(run, tmp_path):
    code = f"""
x, y = mx.np.ones((2, 3)), mx.np.zeros((3,))
mx.np.ones((2,))
xdevice.device_of(xdevice.copy_to({{"x": xdevice.to_device(x, "cpu:1")}}, "cpu:0"))
xdevice.same_device(x, y), xdevice.check_same_device(x, y), xdevice.sync(x), xdevice.sync()
xdevice.to_numpy(x), xdevice.assert_parity(x, x), xdevice.convert(x, "numpy")
parts = xdevice.split_batch(x, ["cpu:0", "cpu:1"])
xdevice.parallel.gather(parts, "cpu:0"), xdevice.parallel.replicate({{"x": x}}, ["cpu:0", "cpu:1"])
xdevice.parallel.all_reduce(xdevice.parallel.broadcast(x, ["cpu:0", "cpu:1"]))
xdevice.save({str(tmp_path / "x.safetensors")!r}, x)
for batch in xdevice.prefetch([x, y], "cpu:1"):
    assert batch[0].ndim
xdevice.parallel.run(lambda: x + 1)
with xdevice.gpu(0) if xdevice.num_gpus() else xdevice.cpu():
    mx.np.ones((2,))
assert flags() == OFF
xdevice.ones(2)
assert flags() == ON
"""
    assert run(code) == ""


LEGACY = {
    "an array": "made = mx.nd.ones(2)",
    "an array of long ago": "mx.nd.ones(2)",
    "a frozen array": "import gc; made = mx.nd.ones(2); gc.freeze()",
    "a sparse array": "made = mx.nd.sparse.zeros('csr', (2, 2))",
    "a block": "made = mx.gluon.nn.Dense(1)",
    "a symbol": "made = mx.sym.var('data')",
}


@pytest.mark.parametrize("made", LEGACY.values(), ids=LEGACY)
def test_a_legacy_program_keeps_its_semantics_and_is_told_once(run, made):
    code = f"""
{made}
xdevice.set_backend("mxnet")
x = xdevice.ones(2, 3)
xdevice.tensor(1.0), xdevice.random.uniform(2)
thread = threading.Thread(target=xdevice.ones, args=[2])
thread.start()
thread.join()
assert flags() == OFF
for _ in range(2):
    try:
        xdevice.array_namespace(x)
    except xdevice.errors.UnsupportedError as error:
        assert "call mxnet.npx.set_np() first" in str(error)
    else:
        raise AssertionError
mx.gluon.nn.Conv2D(1, 2)
assert mx.nd.ones(2)[0].shape == (1,)
mx.npx.set_np()
assert xdevice.item(xdevice.array_namespace().sum(x)) == 6
xdevice.parallel.run(lambda: xdevice.ones(2).sum() * 2)
"""
    told = run(code)
    assert told.count("but does not call mxnet.npx.set_np()") == 1, told


@pytest.mark.long
def test_what_was_made_before_xdevice_came_is_seen():
    code = """
import numpy
if not hasattr(numpy, "bool"):
    numpy.bool = bool
import mxnet as mx
made = mx.nd.ones(2)
import xdevice
xdevice.set_backend("mxnet")
xdevice.ones(2)
print(mx.util.is_np_shape())
"""
    assert printed("-W", "ignore", "-c", code) == "False"
    assert (
        printed("-W", "ignore", "-c", code.replace("made =", "mx.npx.set_np(); made ="))
        == "True"
    )


PROGRAM = """
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
mx.random.seed(0)
def moved(x):
    if not {uses_xdevice}:
        return x
    xdevice.sync()
    xdevice.random.uniform(2)
    return xdevice.copy_to(xdevice.to_device(x, "cpu:1"), "cpu:0")
def show(x):
    print(x.asnumpy().ravel()[:4].tolist(), x.shape, type(x).__name__)

data = mx.sym.var("data")
hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=4, name="one"), act_type="relu")
out = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="two"), name="softmax")
batches = mx.io.NDArrayIter(moved(nd.random.uniform(shape=(8, 5))), moved(nd.arange(8) % 3), 4)
module = mx.mod.Module(out, context=mx.cpu())
module.fit(batches, num_epoch=2, initializer=mx.init.Uniform(0.1))
show(moved(module.get_params()[0]["one_weight"]))

net = nn.HybridSequential()
net.add(nn.Conv2D(4, 3, activation="relu"), nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(3))
net.initialize()
net.hybridize()
dataset = gluon.data.ArrayDataset(nd.random.uniform(shape=(8, 1, 6, 6)), nd.arange(8) % 3)
trainer = gluon.Trainer(net.collect_params(), "adam")
for x, y in gluon.data.DataLoader(dataset, batch_size=4):
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(moved(x)), moved(y))
    loss.backward()
    trainer.step(4)
    show(loss)
net = moved(net)
show(net(nd.ones((1, 1, 6, 6))))
net.export({path!r})
read = gluon.SymbolBlock.imports({path!r} + "-symbol.json", ["data"], {path!r} + "-0000.params")
show(read(moved(nd.ones((1, 1, 6, 6)))))

layer = rnn.LSTM(3, bidirectional=True)
layer.initialize()
show(layer(moved(nd.random.normal(shape=(2, 3, 4)))))
x = nd.array([[1, 2], [3, 4]])
x.attach_grad()
with autograd.record():
    total = (moved(x)[0] * 2).sum()
total.backward()
show(x.grad), show(total), show(x[0, 0])
print(flags())
"""


def test_legacy_programs_compute_what_they_do_without_xdevice(tmp_path):
    found = [
        printed(
            "-W",
            "ignore",
            "-c",
            START + PROGRAM.format(uses_xdevice=uses, path=str(tmp_path / "net")),
        )
        for uses in (False, True)
    ]
    assert found[0] == found[1]
    assert found[0].endswith("(False, False)")


# who else switches


def test_what_the_program_switches_off_stays_off_until_it_asks_for_arithmetic(run):
    code = """
x = xdevice.ones(2)
x.attach_grad()
with mx.autograd.record():
    loss = (x * x).sum()
mx.npx.reset_np()
y = xdevice.tensor([1.0, 2.0])
assert flags() == OFF and xdevice.item(loss) == 2
xp = xdevice.array_namespace()
assert flags() == ON
loss.backward()
assert x.grad.tolist() == [2, 2]
mx.npx.set_np(shape=False, array=False)
assert xdevice.item(xp.sum(y)) == 3 and flags() == ON
"""
    run(code)


def test_a_block_of_the_programs_ends_as_it_would(run):
    code = """
with mx.util.np_shape(True):
    xdevice.ones(2)
    assert flags() == (True, False)
assert flags() == OFF
@mx.util.use_np
def decorated():
    x = xdevice.ones(2)
    x.attach_grad()
    with mx.autograd.record():
        loss = (x * x).sum()
    loss.backward()
    return x.grad.tolist()
assert decorated() == [2, 2] and flags() == OFF
xdevice.ones(2)
assert flags() == ON and decorated() == [2, 2] and flags() == ON
"""
    run(code)
    code = """
with mx.util.np_shape(False):
    xdevice.ones(2)
assert flags() == ON
"""
    run(code)


def test_a_program_that_has_called_set_np_is_no_legacy_one(run):
    code = """
mx.npx.set_np()
net = mx.gluon.nn.Dense(1)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "adam")  # has mx.nd arrays inside
with mx.autograd.record():
    loss = net(mx.np.ones((2, 3))).sum()
loss.backward()
trainer.step(1)
found = []
def work():
    found.append(net(xdevice.ones(2, 3)).sum() * 2)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert found[0].shape == ()
mx.npx.reset_np()
xdevice.ones(2)
assert flags() == OFF
"""
    assert run(code) == ""


@pytest.mark.long
def test_the_variable_forbids_it():
    code = """
xdevice.set_backend("mxnet")
x = xdevice.ones(2)
assert flags() == OFF
try:
    xdevice.array_namespace(x)
except xdevice.errors.UnsupportedError as error:
    assert "XDEVICE_MXNET_NP=0" in str(error)
else:
    raise AssertionError
mx.npx.set_np()
assert xdevice.item(xdevice.array_namespace(x).sum(x)) == 2
"""
    assert python("-c", START + code, XDEVICE_MXNET_NP="0").stderr == ""
    wrong = python("-c", START, XDEVICE_MXNET_NP="no")
    assert "SettingError: XDEVICE_MXNET_NP must be 1 or 0, not 'no'" in wrong.stderr


def test_a_test_for_every_backend_is_neutral_and_leaves_its_thread_as_it_was(tmp_path):
    (tmp_path / "test_both.py").write_text(
        """
import xdevice

def flags(mx):
    return mx.util.is_np_shape(), mx.util.is_np_array()

def test_neutral(xd):
    net = xd.framework.gluon.nn.Dense(1)  # before any tensor
    net.initialize()
    assert net(xdevice.ones(2, 3)).sum().shape == ()
    assert flags(xd.framework) == (True, True)

def test_legacy():
    import mxnet as mx
    assert flags(mx) == (False, False)
    mx.gluon.nn.Conv2D(1, 2)

def test_neutral_again(xd):
    assert flags(xd.framework) == (True, True)
"""
    )
    done = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "error", "--xd-backends=mxnet",
        tmp_path, cwd=tmp_path,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout


# arithmetic


def test_each_thread_that_asks_for_arithmetic_gets_the_semantics(run):
    code = """
def work():
    xp = xdevice.array_namespace()
    x = xp.asarray([1.0, 2.0])
    assert xdevice.item(xp.sum(x) * 2) == 6.0
    assert xp.zeros((0, 3)).shape == (0, 3)
    assert xp.where(xp.zeros((0, 3), dtype=xp.bool), xp.zeros((0, 3)), 1.0).shape == (0, 3)
    done.append(flags())
done = []
work()
xp = xdevice.array_namespace()
thread = threading.Thread(target=work)
thread.start()
thread.join()
def given():
    assert xdevice.item(xp.sum(xp.ones(2))) == 2.0
thread = threading.Thread(target=given)
thread.start()
thread.join()
xdevice.parallel.run(given, given)
assert done == [ON, ON]
"""
    assert run(code) == ""


def test_a_loss_can_be_recorded_and_differentiated(run):
    code = """
xp = xdevice.array_namespace()
x = xp.asarray([1.0, -2.0])
x.attach_grad()
with mx.autograd.record():
    loss = xp.sum(xp.square(xp.maximum(x, 0.0)))
loss.backward()
assert x.grad.tolist() == [2.0, 0.0]
"""
    run(code)
