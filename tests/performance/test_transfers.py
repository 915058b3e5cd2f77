"""Hidden transfers on the real frameworks: what is seen, where, once; and that nothing stays in place."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest
from helpers.environment import BACKENDS, FRAMEWORKS, any_framework, python

import xdevice
from xdevice import transfers
from xdevice.performance.contract import hooks

READS = {
    "item": lambda x: x.item(),
    "numpy": lambda x: x.numpy(),
    "asnumpy": lambda x: x.asnumpy(),
    "tolist": lambda x: x.tolist(),
    "float": lambda x: float(x),
    "int": lambda x: int(x),
    "bool": lambda x: bool(x),
    "print": lambda x: print(x, file=io.StringIO()),
    "format": lambda x: f"{x}",
}
LACKING = {
    "torch": {"asnumpy"},
    "paddle": {"asnumpy"},
    "tensorflow": {"item", "tolist", "asnumpy"},
    "mxnet": {"numpy"},
    "jax": {"numpy", "asnumpy"},
}


_others = {}


def other_device(name):
    """The second device of a backend, which has to be asked for before the framework is used."""
    if name not in _others:
        _others[name] = xdevice.backend(name).samples().other_device()
    other = _others[name]
    if other is None or other not in xdevice.backend(name).devices():
        pytest.skip(f"{name} has one device here")
    return other


@pytest.fixture(scope="module", autouse=True)
def _two_devices():
    for name in FRAMEWORKS:
        with suppress(pytest.skip.Exception):
            other_device(name)


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    with xdevice.use_backend(request.param):
        yield request.param


def here():
    return inspect.currentframe().f_back.f_lineno


@pytest.mark.parametrize("how", READS)
def test_a_read_is_recorded_once_with_its_line(framework, how):
    if how in LACKING[framework]:
        assert not hasattr(xdevice.tensor(2.0), how)
        return
    x = xdevice.tensor(2.0)
    with transfers("allow") as log:
        READS[how](x)
    assert [(r.backend, r.kind, r.how, r.nbytes, r.physical) for r in log] == [
        (framework, "read", how, 4, False)
    ]
    assert (log[0].source, log[0].destination) == (xdevice.cpu(), xdevice.cpu())
    assert (log[0].file, log[0].line) == (__file__, READS[how].__code__.co_firstlineno)


def test_one_print_of_many_numbers_is_one_read(framework):
    x = xdevice.random.uniform(20, 3)
    with transfers() as log:
        print(x, file=io.StringIO())
    assert [(r.how, r.nbytes) for r in log] == [("print", 240)]


def test_numpy_itself_is_seen(framework):
    x = xdevice.random.uniform(2, 3)
    with transfers() as log:
        np.asarray(x)
        np.array(x)
    assert [(r.kind, r.nbytes) for r in log] == [("read", 24)] * 2


def test_what_goes_through_xdevice_is_recorded_once_by_the_verb(framework):
    x = xdevice.tensor([1.0])
    with transfers() as log:
        xdevice.item(x)
        xdevice.to_numpy({"x": x})
        xdevice.to_device(x, "cpu")
        xdevice.copy_to(x, "cpu")
    line = here()
    assert [(r.how, r.kind, r.line - line) for r in log] == [
        ("item", "read", -4),
        ("to_numpy", "read", -3),
    ]
    assert {r.file for r in log} == {__file__}


def test_moves_between_devices(framework):
    other = other_device(framework)
    x = xdevice.tensor([1.0, 2.0])
    with transfers() as log:
        y = xdevice.to_device({"x": x}, other)
    assert [(r.how, r.kind, r.source, r.destination, r.nbytes) for r in log] == [
        ("to_device", "move", xdevice.cpu(), other, 8)
    ]
    if other.kind == "meta":
        return  # it holds no numbers that could be copied back
    with transfers() as log:
        xdevice.copy_to(y, "cpu")
    assert [(r.how, r.kind, r.source, r.destination, r.nbytes) for r in log] == [
        ("copy_to", "move", other, xdevice.cpu(), 8)
    ]


def test_operations_are_no_transfers(framework):
    x = xdevice.random.uniform(4, 4)
    with transfers("disallow_explicit") as log:
        y = x + x @ x
    assert len(log) == 0
    assert xdevice.item(y.sum() if hasattr(y, "sum") else y[0, 0]) > 0


def train(x, steps=3):
    """The loop of every tutorial."""
    loss = x
    for step in range(steps):
        loss = loss * 0.5
        if step == 1:
            print(f"loss {float(loss):.3f}", file=io.StringIO())
    return loss


PRINTS = train.__code__.co_firstlineno + 6


def test_disallow_stops_a_training_loop_at_the_line_that_prints_the_loss(framework):
    x = xdevice.tensor(8.0)
    expected = f"{PRINTS}: float reads 4 bytes from cpu:0"
    with (
        pytest.raises(xdevice.errors.TransferError, match=expected) as caught,
        transfers("disallow") as log,
    ):
        train(x)
    assert (caught.value.record.file, caught.value.record.line) == (__file__, PRINTS)
    assert list(log) == [caught.value.record]
    assert xdevice.item(train(x)) == 1.0  # nothing is forbidden any more


def test_log_warns_at_the_line(framework):
    x = xdevice.tensor(8.0)
    with warnings.catch_warnings(record=True) as caught, transfers("log") as log:
        warnings.simplefilter("always")
        train(x)
    assert [(w.category, w.filename, w.lineno) for w in caught] == [
        (xdevice.errors.TransferWarning, __file__, PRINTS)
    ]
    assert "float reads 4 bytes from cpu:0" in str(caught[0].message)
    assert len(log) == 1


BY_NAME = ("item", "numpy", "tolist", "asnumpy", "cpu")
IN_PASSING = {
    "float": float,
    "bool": bool,
    "if": lambda x: 1 if x else 0,
    "asarray": lambda x: np.asarray(x),  # the function that is there while the block runs
    "print": lambda x: print(x, file=io.StringIO()),
    "format": lambda x: f"{x}",
}


def test_what_a_program_asks_for_by_name_is_explicit_and_passes(framework):
    other = other_device(framework)
    x, y = xdevice.tensor(2.0), xdevice.tensor([1.0, 2.0])
    names = [name for name in BY_NAME if hasattr(x, name)]
    with transfers("disallow") as log, warnings.catch_warnings():
        warnings.simplefilter("error")
        (
            xdevice.to_device(y, other),
            xdevice.copy_to({"y": y}, other),
            xdevice.item(x),
            xdevice.to_numpy(y),
        )
        for name in names:
            getattr(x, name)()
        with transfers("log"):
            xdevice.item(x)
    assert len(log) >= 5
    assert all(record.explicit for record in log), log.summary()
    with pytest.raises(xdevice.errors.TransferError), transfers("disallow_explicit"):
        xdevice.item(x)


@pytest.mark.parametrize("how", IN_PASSING)
def test_what_happens_in_passing_is_implicit_and_refused(framework, how):
    x = xdevice.tensor(2.0)
    hint = r"make the transfer explicit: xdevice.item\(x\)"
    with pytest.raises(xdevice.errors.TransferError, match=hint), transfers("disallow") as log:
        IN_PASSING[how](x)
    assert [record.explicit for record in log] == [False]
    with pytest.warns(xdevice.errors.TransferWarning), transfers("log"):
        IN_PASSING[how](x)


def test_what_arithmetic_reads_where_a_framework_lacks_a_function_is_implicit(framework):
    y = xdevice.tensor([2.0, 1.0, 2.0])
    xp = xdevice.array_namespace(y)
    with transfers() as log:
        xp.unique_counts(y)
        float(y[0])
    assert not any(record.explicit for record in log), log.summary()


def attributes():
    """Everything that a hook could have replaced."""
    found = {}
    loaded = [xdevice.backend(name) for name in BACKENDS if f"xdevice_{name}" in sys.modules]
    for backend in loaded:
        with xdevice.use_backend(backend):
            for cls in type(xdevice.ones(1)).__mro__:
                if cls is not object:
                    found[cls] = dict(vars(cls))
        found[backend.name, "instance"] = {
            k: v for k, v in vars(backend).items() if callable(v)
        }
        if backend.name == "jax":
            found["device_put"] = {"": backend.framework.device_put}
        if backend.name == "tensorflow":
            from tensorflow.python.eager import execute

            found["execute"] = {"": execute.execute}
        if backend.name == "torch":
            found["modes"] = {"": backend.framework._C._len_torch_dispatch_stack()}
    found["numpy"] = {"asarray": np.asarray, "array": np.array}
    return found


def test_no_hook_stays_in_place(framework):
    before = attributes()
    functions = [
        value
        for found in before.values()
        for value in found.values()
        if hasattr(value, "__code__")
    ]
    left = [f for f in functions if f.__code__.co_filename == hooks.__file__]
    assert not left, "an earlier test has left hooks"
    with transfers(), transfers("log_explicit"):
        during = attributes()
    assert during != before, "there was no hook, so this shows nothing"
    with pytest.raises(ZeroDivisionError), transfers("disallow_explicit"):
        raise ZeroDivisionError
    assert attributes() == before


def test_blocks_nest_and_each_has_its_own_log(framework):
    x = xdevice.tensor(1.0)
    with transfers() as outer:
        float(x)
        with transfers() as inner:
            float(x)
        float(x)
    assert (len(outer), len(inner)) == (3, 1)


def test_overlapping_blocks_in_threads_see_their_own(framework):
    x = xdevice.tensor(1.0)
    before = attributes()
    lines, logs, failed = threading.Barrier(4), {}, []

    def work(number):
        try:
            with xdevice.use_backend(framework):
                lines.wait(200)
                with transfers() as log:
                    for _ in range(number * 5):
                        float(x)
                logs[number] = log
                lines.wait(200)
                with transfers() as log:
                    lines.wait(200)
                    float(x)
                assert len(log) == 1
        except BaseException as error:
            failed.append(error)
            lines.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert {number: len(log) for number, log in logs.items()} == {0: 0, 1: 5, 2: 10, 3: 15}
    assert attributes() == before


def test_another_thread_is_not_forbidden_what_this_one_is(framework):
    x = xdevice.tensor(1.0)
    read = []
    with transfers("disallow_explicit") as log:
        thread = threading.Thread(target=lambda: read.append(float(x)))
        thread.start()
        thread.join()
    assert read == [1.0]
    assert len(log) == 0


def test_frameworks_are_seen_side_by_side():
    xs = []
    for name in FRAMEWORKS:
        with xdevice.use_backend(name):
            xs.append(xdevice.tensor(1.0))
    with transfers() as log:
        for x in xs:
            float(x)
    assert [r.backend for r in log] == list(FRAMEWORKS)


def test_the_summary_is_a_table():
    name = any_framework()
    with xdevice.use_backend(name):
        x, y = xdevice.tensor(1.0), xdevice.ones(100)
        with transfers() as log:
            for _ in range(3):
                float(x)
            xdevice.to_numpy(y)
    rows = [line.split() for line in log.summary().splitlines()]
    assert rows[0] == [
        "where",
        "how",
        "backend",
        "kind",
        "from",
        "to",
        "physical",
        "times",
        "bytes",
    ]
    assert rows[1][1:] == ["to_numpy", name, "read", "cpu:0", "cpu:0", "no", "1", "400"]
    assert rows[2][1:] == ["float", name, "read", "cpu:0", "cpu:0", "no", "3", "12"]
    assert rows[3] == ["total", "4", "412"]
    assert len(log) == 4
    assert log[1:3] == [log[1], log[2]]
    assert repr(log) == "<4 transfers, 412 bytes>"


def test_numpy_has_nothing_to_report():
    with xdevice.use_backend("numpy"), transfers("disallow_explicit") as log:
        assert xdevice.item(xdevice.ones(1)) == 1.0
    assert len(log) == 0


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match="got 'record it'"):
        transfers("record it")


@pytest.mark.skipif("tensorflow" not in FRAMEWORKS, reason="tensorflow is not installed")
class TestTensorflow:
    def test_the_axes_that_a_gradient_reads_are_no_transfers(self):
        import tensorflow as tf

        table = tf.ones((3, 2))
        losses = (
            lambda x: tf.reduce_mean(x, axis=1)[0],
            lambda x: tf.reduce_sum(tf.gather(x, [0, 2])),
            lambda x: tf.reduce_sum(tf.transpose(tf.reshape(x, (2, 3)))),
        )
        for loss in losses:
            with transfers("disallow_explicit"), tf.GradientTape() as tape:
                tape.watch(table)
                value = loss(table)
                tape.gradient(value, table)

    def test_what_a_programs_own_gradient_reads_is_one(self):
        import tensorflow as tf

        @tf.custom_gradient
        def twice(x):
            return 2 * x, lambda g: g * int(tf.constant(2))

        x = tf.constant(1.0)
        with transfers() as log, tf.GradientTape() as tape:
            tape.watch(x)
            value = twice(x)
            tape.gradient(value, x)
        assert [r.how for r in log] == ["int"]


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
class TestTorch:
    def test_reads_from_cpp_are_seen(self):
        import torch

        x = torch.ones(3)
        with transfers() as log:
            x.masked_select(x > 0)
            torch.equal(x, x)
            torch.ops.aten._local_scalar_dense(x[0])
        assert [(r.how, r.kind) for r in log] == [
            ("aten.masked_select", "read"), ("aten.equal", "read"), ("aten._local_scalar_dense", "read"),
        ]  # fmt: skip
        assert {r.file for r in log} == {__file__}

    def test_a_copy_into_a_tensor_is_explicit_and_an_assignment_is_not(self):
        import torch

        x, there = torch.ones(3), torch.empty(3, device="meta")
        with transfers() as log:
            there.copy_(x)
            there[:2] = x[:2]
        assert [(r.how, r.explicit) for r in log] == [("copy", True), ("aten.copy_", False)]

    @pytest.mark.parametrize(
        "kind",
        [
            "Adam",
            "AdamW",
            "NAdam",
            "RAdam",
            "Adamax",
            "Adagrad",
            "ASGD",
            "Adadelta",
            "RMSprop",
            "SGD",
        ],
    )
    def test_an_optimizers_own_numbers_are_no_transfers(self, kind):
        import torch

        model = torch.nn.Linear(2, 2)
        optimizer = getattr(torch.optim, kind)(model.parameters())
        for _ in range(2):  # the state is made in the first step
            with transfers() as log:
                loss = model(torch.ones(1, 2)).sum()
                loss.backward()
                optimizer.step()
                loss.item()
            assert [r.how for r in log] == ["item"]

    def test_an_optimizer_that_reads_the_loss_is_seen(self):
        import torch

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(1, 2)) ** 2).sum()
            loss.backward()
            return loss

        with transfers() as log:
            optimizer.step(closure)
        assert "float" in [r.how for r in log]

    def test_a_deepcopy_is_no_transfer(self):
        import torch

        with transfers("disallow_explicit"):
            copy.deepcopy(torch.nn.Linear(2, 2))

    def test_a_copy_is_no_transfer_and_a_pickle_is(self):
        import torch

        x = torch.ones(3)
        with transfers("disallow_explicit"):
            assert copy.copy(x).data_ptr() == x.data_ptr()
        with transfers() as log:
            pickle.dumps(x)
        assert [(r.how, r.kind) for r in log] == [("reduce_ex", "read")]

    def test_a_model_moves_by_its_parameters(self):
        import torch

        model = torch.nn.Linear(2, 3)
        with transfers() as log:
            xdevice.to_device(model, "meta")
        assert [(r.how, r.nbytes) for r in log] == [("to_device", 24), ("to_device", 12)]


@pytest.mark.skipif("tensorflow" not in FRAMEWORKS, reason="tensorflow is not installed")
def test_an_operand_that_tensorflow_copies_in_silence_is_seen():
    with xdevice.use_backend("tensorflow") as backend:
        other = other_device("tensorflow")
        tf = backend.framework
        x = xdevice.ones(3)
        with transfers() as log, other:
            tf.identity(x)
        assert [(r.how, r.source, r.destination, r.nbytes) for r in log] == [
            ("Identity", xdevice.cpu(), other, 12)
        ]


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_compiled_function_that_is_first_called_inside_is_compiled_and_seen():
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(lambda x: x * 2, backend=counter)
    with xdevice.transfers() as log:
        float(compiled(torch.ones(1)))
    assert counter.frame_count == 1
    assert [record.how for record in log] == ["float"]


@pytest.mark.slow
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_backend_loaded_inside_of_the_block_is_seen():

    code = (
        "import xdevice\n"
        "with xdevice.transfers() as log:\n    xdevice.backend('torch')\n    import torch\n    float(torch.ones(1))\n"
        "assert [r.how for r in log] == ['float'], list(log)\nassert '__float__' not in vars(torch.Tensor)\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


# MXNet asks SciPy for a name that has moved
@pytest.mark.filterwarnings(
    "ignore:Please import `csr_matrix` from the `scipy.sparse` namespace:DeprecationWarning"
)
@pytest.mark.parametrize("kind", ["csr", "row_sparse"])
@pytest.mark.parametrize("read", [lambda x: x.asnumpy(), repr, str])
def test_a_sparse_array_of_mxnet_is_read_as_a_dense_one(kind, read):
    if "mxnet" not in FRAMEWORKS:
        pytest.skip("no mxnet")
    with xdevice.use_backend("mxnet") as backend:
        x = backend.framework.nd.array([[1, 0, 3], [0, 2, 0]]).tostype(kind)
        with xdevice.transfers() as seen:
            read(x)
        assert [transfer.nbytes for transfer in seen] == [24]
