"""`xdevice parity --trace`: a script without a record, whose first layer that differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.environment import BACKENDS, ROOT, python

import xdevice
from xdevice.twins.parity import record_files, traced_calls, tracing_script

SCRIPT = """
import os, sys
import numpy as np
import xdevice

name, fault = os.environ["XDEVICE_BACKEND"], sys.argv[1]
xdevice.backend(name)
rng = np.random.default_rng(0)
kernel, weight = rng.normal(size=(4, 3, 3, 3)) * 0.3, rng.normal(size=(5, 144)) * 0.1
images, labels = rng.normal(size=(6, 2, 3, 8, 8)).astype("float32"), rng.integers(0, 5, size=(6, 2))
if name == "torch":
    import torch
    from torch import nn
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5))
    with torch.no_grad():
        for layer, values in ((net[0], kernel), (net[4], weight)):
            layer.weight.copy_(torch.tensor(values)), layer.bias.zero_()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in zip(images, labels):
        loss = nn.CrossEntropyLoss()(net(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad(), loss.backward(), optimizer.step()
else:
    import paddle
    from paddle import nn
    eps, relu = (1e-3 if fault == "eps" else 1e-5), (nn.LeakyReLU() if fault == "slope" else nn.ReLU())
    net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4, epsilon=eps), relu, nn.Flatten(), nn.Linear(144, 5))
    for layer, values in ((net[0], kernel), (net[4], weight.T)):
        layer.weight.set_value(values.astype("float32")), layer.bias.set_value(np.zeros(layer.bias.shape, "float32"))
    criterion = nn.CrossEntropyLoss(reduction="sum" if fault == "loss" else "mean")
    optimizer = paddle.optimizer.SGD(0.11 if fault == "rate" else 0.1, parameters=net.parameters())
    for x, y in zip(images, labels):
        criterion(net(paddle.to_tensor(x)), paddle.to_tensor(y)).backward()
        optimizer.step(), optimizer.clear_grad()
"""

FAULTS = {
    "none": "",
    "eps": "the first layer that differs is 1 (BatchNorm2D) of paddle",
    "slope": "in between, paddle calls 2 (LeakyReLU), 3 (Flatten), and torch calls 2 (ReLU), 3 (Flatten)",
    "loss": "the first gradient that differs is the gradient of the output of 4 (Linear), which is off by 1 of its "
    "largest value; the cause is between this layer and the loss",
    "rate": "step 1",
}


def run(tmp_path, fault):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    report = tmp_path / f"{fault}.json"
    command = [
        "parity",
        "--trace",
        script,
        "--backends",
        "torch,paddle",
        "--json",
        report,
        "--",
        fault,
    ]
    return python("-m", "xdevice", *command, cwd=ROOT), json.loads(report.read_text())


@pytest.mark.long
@pytest.mark.skipif(
    not {"torch", "paddle"} <= set(BACKENDS), reason="the script needs PyTorch and Paddle"
)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_layer_of_a_script_that_differs_is_named(tmp_path, fault):
    done, report = run(tmp_path, fault)
    assert done.returncode == (1 if FAULTS[fault] else 0), done.stdout + done.stderr
    found = report["first_divergence"]
    assert [row["records"] for row in report["backends"]] == [4, 4], "calls 1, 2, 3 and 4"
    if not FAULTS[fault]:
        assert found is None
    elif fault == "rate":
        assert (found["name"], found["step"]) == ("model 1, Sequential", 1)
    else:
        assert (found["name"], found["step"]) == ("model 1, Sequential", 0)
        assert FAULTS[fault] in found["text"]


# in this process


@pytest.fixture
def torch():
    xdevice.backend("torch")
    import torch

    return torch


def traced_by(tmp_path, name, program):
    tracer = tracing_script.Tracer(
        xdevice.backend("torch"), tmp_path / name / tracing_script.FOLDER
    )
    with xdevice.backend("torch").outermost(tracer.around):
        program()
    tracer.close()
    return traced_calls.read(tmp_path / name, "torch")


def network(torch, slope=0.0):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.LeakyReLU(slope), torch.nn.Linear(4, 2)
    )
    return net.eval()


def batches(torch, count=20):
    return [
        torch.tensor(np.random.default_rng(number).normal(size=(2, 3)).astype("float32"))
        for number in range(count)
    ]


def test_the_first_calls_and_powers_of_two_are_kept_with_gradients(tmp_path, torch):
    net = network(torch)
    loss = torch.nn.MSELoss()

    def program():
        for x in batches(torch):
            loss(net(x), x[:, :2]).backward()

    before = torch.nn.Module.__call__
    found = traced_by(tmp_path, "one", program)
    assert torch.nn.Module.__call__ is before
    assert [run.run for run in found.calls] == [0, 1, 2, 3, 7, 15]
    assert {run.model for run in found.calls} == {0}, "a loss is no model"
    one = found.calls[0].as_run("torch")
    assert [call.path for call in one.calls] == ["0", "1", "2"]
    assert all(call.gradients[0].shape == call.outputs[0].shape for call in one.calls)
    np.testing.assert_allclose(
        one.outputs[0], net(batches(torch)[0]).detach().numpy(), rtol=1e-6
    )


@pytest.mark.parametrize(("slope", "is_equal"), [(0.0, True), (0.1, False)])
def test_runs_are_paired_by_their_inputs(tmp_path, torch, slope, is_equal):
    one, other = network(torch), network(torch, slope)
    data = batches(torch, 3)
    expected = traced_by(tmp_path, "one", lambda: [one(x) for x in data])
    actual = traced_by(
        tmp_path, "other", lambda: [other(x) for x in [torch.zeros(2, 3), *data]]
    )
    found = list(traced_calls.compare(actual, expected))
    assert [name for name, _, _ in found] == ["model 1, Sequential"] * len(found)
    assert [one.run for _, one, _ in found] == [0, 1, 2]
    assert [comparison.ok for _, _, comparison in found] == [is_equal] * 3
    if not is_equal:
        assert (
            "the first layer that differs is 1 (LeakyReLU): its inputs agree"
            in found[0][2].text
        )


def test_the_error_of_a_gradient_is_a_multiple_of_its_own_limit(tmp_path, torch):
    net = network(torch)
    (x,) = batches(torch, 1)
    expected, actual = (
        traced_by(
            tmp_path, str(factor), lambda factor=factor: (factor * net(x).sum()).backward()
        )
        for factor in (1.0, 1.005)
    )
    ((_, _, comparison),) = traced_calls.compare(actual, expected)
    assert not comparison.ok
    assert (
        "the first gradient that differs is the gradient of the output of 2" in comparison.text
    )
    assert comparison.abs == pytest.approx(0.005, rel=1e-3)
    # ten times what an output may be off by
    assert comparison.allowed == pytest.approx(1e-3)
    assert comparison.excess == pytest.approx(5, rel=1e-3)


def test_nan_on_one_side_is_no_other_shape(tmp_path, torch):
    one, other = network(torch), network(torch)
    with torch.no_grad():
        other[0].bias[0] = torch.nan
    (x,) = batches(torch, 1)
    expected = traced_by(tmp_path, "one", lambda: one(x))
    actual = traced_by(tmp_path, "other", lambda: other(x))
    ((_, _, comparison),) = traced_calls.compare(actual, expected)
    assert (comparison.ok, comparison.problem, comparison.abs) == (False, "values", None)
    assert "different: a NaN, an infinity or an integer differs" in comparison.text


def test_another_shape_is_called_so(tmp_path, torch):
    class Cut(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x)[:1]

    one = network(torch)
    other = Cut(*one)
    (x,) = batches(torch, 1)
    expected = traced_by(tmp_path, "one", lambda: one(x))
    actual = traced_by(tmp_path, "other", lambda: other(x))
    ((_, _, comparison),) = traced_calls.compare(actual, expected)
    assert (comparison.ok, comparison.problem) == (False, "shape")
    assert "of the shape (1, 2), expected (2, 2)" in comparison.text


def test_other_inputs_are_told(tmp_path, torch):
    net = network(torch)
    expected = traced_by(tmp_path, "one", lambda: net(torch.ones(2, 3)))
    actual = traced_by(tmp_path, "other", lambda: net(torch.zeros(2, 3)))
    ((_, _, comparison),) = traced_calls.compare(actual, expected)
    assert not comparison.ok
    assert "no call has the same inputs as a call of the reference" in comparison.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, while it compiles
def test_what_cannot_be_traced_is_told_and_runs(tmp_path, torch):
    net = network(torch)
    net.compile(backend="eager")
    results = []
    found = traced_by(tmp_path, "one", lambda: results.append(net(torch.ones(2, 3))))
    assert len(results) == 1
    assert found.calls == []
    assert "Sequential was not traced on torch" in found.refusals[0]


def test_a_damaged_trace_is_an_error(tmp_path, torch):
    traced_by(tmp_path, "one", lambda: network(torch)(torch.ones(2, 3)))
    (tmp_path / "one" / tracing_script.FOLDER / record_files.INDEX).write_text("{")
    with pytest.raises(xdevice.errors.RecordingError, match="damaged"):
        traced_calls.read(Path(tmp_path / "one"), "torch")
