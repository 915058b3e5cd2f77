"""`average_gradients` and `averaging` of models: what a backward pass left in their parameters is averaged there."""

from __future__ import annotations

from textwrap import dedent

import pytest
from helpers.environment import BACKENDS, printed

_FRAMEWORKS = {
    "torch": """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        model[0].bias.requires_grad_(False)
        def backward(x):
            for p in model.parameters(): p.grad = None
            model(torch.tensor(x)).sum().backward()
        def gradients():
            return [p.grad.numpy() for p in model.parameters() if p.requires_grad]
    """,
    "paddle": """
        import paddle
        model = paddle.nn.Sequential(paddle.nn.Linear(3, 2), paddle.nn.ReLU(), paddle.nn.Linear(2, 2))
        model[0].bias.stop_gradient = True
        def backward(x):
            model.clear_gradients()
            model(paddle.to_tensor(x)).sum().backward()
        def gradients():
            return [p.grad.numpy() for p in model.parameters() if not p.stop_gradient]
    """,
    "mxnet": """
        import mxnet
        from mxnet.gluon import nn
        mxnet.npx.set_np()
        model = nn.HybridSequential()
        model.add(nn.Dense(2, in_units=3, activation="relu"), nn.Dense(2, in_units=2))
        model[0].bias.grad_req = "null"
        model.initialize()
        def backward(x):
            with mxnet.autograd.record():
                loss = model(xdevice.tensor(x)).sum()
            loss.backward()
        def gradients():
            return [p.grad().asnumpy() for p in model.collect_params().values() if p.grad_req != "null"]
    """,
}
_PROGRAM = """
    batches = [np.ones((2, 3), "float32"), np.arange(12, dtype="float32").reshape(4, 3)]
    with xdevice.distributed.processes() as world:
        world.broadcast(model)
        each = []
        for batch in batches:
            backward(batch)
            each.append([np.array(gradient) for gradient in gradients()])
        weight = len(batches[world.rank])
        backward(batches[world.rank])
        assert world.average_gradients(model, weight=weight) is model
        averaged = [np.array(gradient) for gradient in gradients()]
        backward(batches[1 - world.rank])
        for _ in range(2):
            with world.averaging(model, weight=weight):
                backward(batches[world.rank])
        assert len(averaged) == 3
        for got, again, first, second in zip(averaged, gradients(), *each):
            np.testing.assert_allclose(got, (2 * first + 4 * second) / 6, rtol=1e-6)
            np.testing.assert_array_equal(again, got)
        assert any(np.abs(first - second).max() > 0 for first, second in zip(*each))
        print("averaged")
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in _FRAMEWORKS if name in BACKENDS])
def test_the_gradients_of_a_model_are_averaged_where_they_are(backend, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "step.py"
    start = "import numpy as np\nimport xdevice\nxdevice.backend().framework"
    parts = start, dedent(_FRAMEWORKS[backend]), dedent(_PROGRAM)
    script.write_text("\n".join(parts), encoding="utf-8")
    assert (
        printed("-m", "xdevice", "launch", "-n", "2", "--backend", backend, script).count(
            "averaged"
        )
        == 2
    )
