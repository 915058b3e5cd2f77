"""The chapters on several GPUs: any number of devices trains as one does, and both scripts run as people run them.

What trains in this process takes the GPUs that are there, real ones (`pytest -m gpu`) or virtual ones:

    XDEVICE_VIRTUAL_GPUS=4 pytest -m virtual tests/replicas/test_multiple_gpus.py
"""

from __future__ import annotations

import io
import re
import sys
from functools import partial
from importlib import import_module
from itertools import cycle, islice, product

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS, NO_KERNELS, ROOT, needs, python, sampled

import xdevice
from xdevice.containers.trees import Tree

EXAMPLES = ROOT / "examples"
ONE_AND_MORE = sampled(FRAMEWORKS, each_time=(), slow=["torch"], others="long")
RATE = 0.05
KINDS = ["mlp", "lenet", "resnet", "own layers"]
NEUTRAL = KINDS[:-1]
WITHOUT_JAX = [(name, kind) for name, kind in product(FRAMEWORKS, KINDS) if name != "jax"]
"""JAX compiles every operation for every device: the larger networks take it minutes."""

SAMPLE = [(name, kind) for name, kind in WITHOUT_JAX if name == "torch" or kind != "resnet"]
"""What JAX does is seen in one uneven step, and in its losses."""


# training, in this process


@pytest.fixture(scope="module", autouse=True)
def _examples_can_be_imported():
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(params=FRAMEWORKS)
def backend(request, monkeypatch):
    if request.param in NO_KERNELS:
        pytest.skip(f"{request.param} has no kernels for this GPU")
    with xdevice.use_backend(request.param) as chosen:
        if chosen.virtual:
            yield chosen
            return
        full, usual = FULL_PRECISION[chosen.name]
        full()
        yield chosen
        usual()


def _cudnn_of_torch(used):
    import_module("torch").backends.cudnn.enabled = used


def _tf32_of_tensorflow(allowed):
    import_module("tensorflow").config.experimental.enable_tensor_float_32_execution(allowed)


def _precision_of_jax(name):
    import_module("jax").config.update("jax_default_matmul_precision", name)


FULL_PRECISION = {
    "torch": (partial(_cudnn_of_torch, False), partial(_cudnn_of_torch, True)),
    "tensorflow": (partial(_tf32_of_tensorflow, False), partial(_tf32_of_tensorflow, True)),
    "jax": (partial(_precision_of_jax, "highest"), partial(_precision_of_jax, None)),
}
"""How to have float32 products in float32 on a real GPU, where they have 10 bits otherwise; and how to go back.

PyTorch's cuDNN has them in 10 bits too, and without these two equal runs on one H200 differed by 6 times the rule.
"""


def starter(kind, name, batch_norm=False):
    """The function of a chapter that makes its networks on any devices, always from the same parameters."""
    if kind == "own layers":
        chapter = import_module("multiple_gpus_own_layers")
        model, replica = import_module("own_layers").of(name).build(8, 1, batch_norm, RATE)
        return lambda devices: chapter.DataParallel(model, replica, devices)
    with xdevice.random.seed(0):
        if kind == "resnet":
            chapter = import_module("multiple_gpus_concise")
            parameters = chapter.resnet_parameters(width=1)
            return lambda devices: chapter.DataParallel(parameters, devices, RATE)
        chapter = import_module("multiple_gpus")
        begin, network = chapter.NETWORKS[kind]
        parameters = begin(size=8, width=1)
        return lambda devices: chapter.DataParallel(network, parameters, devices, RATE)


def parameters_of(trainee):
    """The parameters of each replica, as NumPy arrays of their own."""
    lists = [
        Tree(getattr(replica, "parameters", replica)).leaves for replica in trainee.replicas
    ]
    return [
        [np.array(xdevice.to_numpy(parameter)) for parameter in parameters]
        for parameters in lists
    ]


def several():
    """The numbers of GPUs to compare with one."""
    counts = [count for count in (2, 4) if count <= xdevice.num_gpus()]
    if not counts:
        pytest.skip("one GPU is here, and the test needs two")
    return counts


def trained(start, count, batches):
    """The networks after a step on each batch, on some devices."""
    place = xdevice.try_all_gpus()[:count]
    trainee = start(place)
    for batch in batches:
        trainee.step(xdevice.split_batch(batch, place, even=False))
    return trainee


def excess(actual, expected):
    """How far two lists of float32 arrays differ at most, in units of what the float rule allows."""
    return max(
        float(np.max(np.abs(a - b) / (1e-5 * np.abs(b) + 1e-6 * max(1, np.abs(b).max()))))
        for a, b in zip(actual, expected, strict=True)
    )


def batches(count, largest):
    return list(islice(cycle(import_module("training").digits().batches(largest)), count))


@pytest.mark.parametrize("count", sampled([8, 50], each_time=[8], others="long"))
@pytest.mark.parametrize(
    ("backend", "kind"),
    sampled(product(FRAMEWORKS, KINDS), each_time=SAMPLE, others="long"),
    indirect=["backend"],
)
@pytest.mark.gpu
@pytest.mark.virtual
def test_steps_on_several_devices_are_those_on_one(backend, kind, count):
    start = starter(kind, backend.name)
    steps = batches(count, 64)
    (first,) = parameters_of(start([xdevice.gpu()]))
    (one,) = parameters_of(trained(start, 1, steps))
    assert excess(one, first) > 1000, "nothing was learnt"
    for count in several():
        replicas = parameters_of(trained(start, count, steps))
        assert excess(replicas[0], one) <= 1
        for replica in replicas[1:]:
            for parameter, same in zip(replica, replicas[0], strict=True):
                np.testing.assert_array_equal(parameter, same)


@pytest.mark.parametrize("kind", sampled(KINDS, each_time=["mlp"], others="long"))
@pytest.mark.gpu
@pytest.mark.virtual
def test_uneven_shares_weigh_what_they_should(backend, kind):
    start = starter(kind, backend.name)
    ((x, y),) = batches(1, 64)
    step = [(x[:7], y[:7])]  # 4 and 3 over two, 2, 2, 2 and 1 over four
    (one,) = parameters_of(trained(start, 1, step))
    assert excess(parameters_of(trained(start, several()[-1], step))[0], one) <= 1


@pytest.mark.parametrize(
    "backend",
    sampled(
        FRAMEWORKS, each_time=[name for name in FRAMEWORKS if name != "jax"], others="long"
    ),
    indirect=True,
)
@pytest.mark.gpu
@pytest.mark.virtual
# Paddle, in each first step
@pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")
def test_with_batch_normalization_the_replicas_stay_equal(backend):
    start = starter("own layers", backend.name, batch_norm=True)
    one, other = parameters_of(trained(start, several()[0], batches(3, 64)))
    for parameter, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(parameter, same)


# one text


@pytest.mark.parametrize(
    ("backend", "kind"),
    sampled(
        product(FRAMEWORKS, NEUTRAL), each_time=[*WITHOUT_JAX, ("jax", "mlp")], others="long"
    ),
    indirect=["backend"],
)
@pytest.mark.gpu
@pytest.mark.virtual
def test_every_framework_has_the_same_losses(backend, kind):
    place = xdevice.try_all_gpus()[: several()[0]]
    trainee = starter(kind, backend.name)(place)
    found = []
    for x, y in batches(10, 64):
        shares = trainee.step(xdevice.split_batch((x, y), place, even=False))
        found.append(sum(xdevice.item(loss) for loss in shares) / len(y))
    np.testing.assert_allclose(found[::3], LOSSES[kind], rtol=1e-6)


LOSSES = {
    "mlp": [2.4405266, 2.1163439, 2.0363598, 1.6922195],
    "lenet": [2.3293765, 2.2516378, 2.2101518, 2.1485442],
    "resnet": [2.4353753, 2.2384408, 2.2653514, 2.0484416],
}
"""Of steps 0, 3, 6 and 9 on PyTorch 2.13, on two CPU devices: one process may see one framework only."""


# the scripts


def run(chapter, name, *flags, **environment):
    needs(name)
    if name in NO_KERNELS:
        pytest.skip(f"{name} has no kernels for this GPU")
    done = python(
        EXAMPLES / f"{chapter}.py", *flags, **{"XDEVICE_BACKEND": name, **environment}
    )
    return done.returncode, done.stdout, done.stderr


def epochs(out):
    """Loss and accuracy of each epoch, of each list of devices."""
    found = {}
    for names, rows in re.findall(
        r"^on (gpu.*|cpu.*)\nepoch.*\n((?: +\d.*\n)+)", out, re.MULTILINE
    ):
        found[names] = [tuple(map(float, row.split()[1:3])) for row in rows.splitlines()]
    return found


@pytest.mark.parametrize("name", ONE_AND_MORE)
def test_the_chapter_by_hand_learns_the_digits_and_draws_the_curves(name, tmp_path):
    curves = tmp_path / "curves.png"
    status, out, err = run(
        "multiple_gpus", name, "--devices", "1,2", "--epochs", "5", "--plot", str(curves)
    )
    assert status == 0, err
    assert out.startswith(f"This is {name} ")
    assert "2 GPUs are virtual" in out or xdevice.backend(name).count("gpu")
    found = epochs(out)
    if "Left out: 2 devices" in out:
        pytest.skip("one GPU is here, and the test needs two")
    assert list(found) == ["gpu:0", "gpu:0, gpu:1"]
    one, two = found.values()
    np.testing.assert_allclose(two, one, atol=5e-3)
    losses = [loss for loss, _ in one]
    assert losses == sorted(losses, reverse=True)
    assert one[-1][1] > 0.9
    assert curves.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "chapter",
    sampled(["multiple_gpus_concise", "multiple_gpus_own_layers"], each_time=(), others="long"),
)
@pytest.mark.parametrize(
    "name", sampled(FRAMEWORKS, each_time=(), slow=["torch"], others="long")
)
def test_the_chapter_runs(name, chapter):
    flags = ("--devices", "1,2", "--epochs", "3", "--examples", "704")
    status, out, err = run(chapter, name, *flags)
    assert status == 0, err
    assert [len(rows) for rows in epochs(out).values()] == [3, 3]
    assert all(rows[-1][1] > 0.75 for rows in epochs(out).values())


@pytest.mark.parametrize(
    ("count", "said", "faster"),
    [(1, "says nothing of speed", "-"), (3, "one after the first", "2.00")],
)
def test_one_epoch_alone_compares_no_times(count, said, faster):
    training = import_module("training")
    console = training.Console(width=120, record=True, file=io.StringIO())
    epochs = {
        name: [training.Epoch(1.0, 0.5, seconds)] * count
        for name, seconds in (("gpu:0", 2.0), ("both", 1.0))
    }
    training._compare(epochs, console)
    shown = console.export_text()
    assert said in " ".join(shown.split())
    assert re.search(rf"both .* {re.escape(faster)} │", shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--plot", "nofolder/x.png"), "there is no folder 'nofolder'"),
        pytest.param(
            ("--plot", "curves.xyz"),
            r"'curves\.xyz' has to end in one of .*\.png",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--plot", "curves"), "'curves' has to end in one of", marks=pytest.mark.slow
        ),
        pytest.param(
            ("--devices", "1,2", "--examples", "1"),
            "2 devices need 2 digits or more, not 1; raise --examples",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--devices", "1,2", "--batch", "2", "--examples", "3"),
            "in batches of 2 make one of 1, too small for 2 devices; raise --batch",
            marks=pytest.mark.long,
        ),
    ],
)
def test_flags_that_cannot_be_are_refused_before_training(flags, said):
    status, out, err = run("multiple_gpus", "torch", *flags)
    if "Left out: 2 devices" in out:
        pytest.skip("one GPU is here, and the test needs two")
    assert status == 2
    assert re.search(said, err)
    assert "Traceback" not in err
    assert "epoch" not in out


@pytest.mark.parametrize("devices", ["1", "1,2"])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("XDEVICE_BACKEND", "tourch", "did you mean 'torch'"),
        (
            "XDEVICE_VIRTUAL_GPUS",
            "x",
            "XDEVICE_VIRTUAL_GPUS must be a non-negative int, not 'x'",
        ),
    ],
)
def test_a_variable_that_is_wrong_is_told_in_one_line(variable, value, said, devices):
    status, _, err = run("multiple_gpus", "torch", "--devices", devices, **{variable: value})
    assert status == 1
    assert err.startswith("Error: ")
    assert said in err
    assert err.count("\n") == 1
