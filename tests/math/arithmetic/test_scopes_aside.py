"""Inside `with torch.device(...)`, PyTorch calls the scope for each operation and attribute: xdevice's own functions
go past it, and the program's functions do not."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import xdevice
from xdevice import nn, optim

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def backend():
    with xdevice.use_backend("torch") as backend:
        yield backend


@contextmanager
def scope(device="cpu"):
    """The scope of a device, which keeps the names of what it is called for."""
    called = []
    with torch.device(device):
        (mode,) = torch.overrides._get_current_function_mode_stack()
        cls = type(mode)
        own = cls.__torch_function__

        def watched(self, function, types, args=(), kwargs=None):
            called.append(getattr(function, "__name__", str(function)))
            return own(self, function, types, args, kwargs)

        cls.__torch_function__ = watched
        try:
            yield called
        finally:
            cls.__torch_function__ = own
        assert torch.overrides._get_current_function_mode_stack() == [mode]


def functions():
    xp = xdevice.array_namespace()
    x, row, labels = xdevice.ones(3, 3), xdevice.ones(3), xdevice.tensor([0, 1, 2])
    return {
        "add": lambda: xp.add(x, x),
        "concat": lambda: xp.concat([x, x]),
        "cross_entropy": lambda: nn.cross_entropy(x, labels),
        "embedding": lambda: nn.embedding(labels, x),
        "layer_norm": lambda: nn.layer_norm(x, row, row),
        "matmul": lambda: xp.matmul(x, x),
        "reshape": lambda: xp.reshape(x, (9,)),
    }


@pytest.mark.parametrize("name", functions())
def test_a_function_does_not_call_the_scope(name):
    function = functions()[name]
    expected = xdevice.to_numpy(function())
    with scope() as called:
        result = function()
        assert called == []
    assert (xdevice.to_numpy(result) == expected).all()


def test_a_function_that_raises_leaves_the_scope_on():
    with scope(), pytest.raises(IndexError, match="index 7 is out of range"):
        nn.cross_entropy(xdevice.ones(1, 3), xdevice.tensor([7]))


def test_the_programs_own_functions_are_inside_of_the_scope():
    made = []

    def loss(p):
        made.append(torch.zeros(1).device.type)
        return nn.relu(p).sum()

    def rule(p, g):
        made.append(torch.zeros(1).device.type)
        return p

    p = xdevice.ones(2, device="cpu")
    for _ in range(2):  # a type is new the first time
        with torch.device("meta"):
            _, g = xdevice.math.value_and_grad(loss)(p)
            xdevice.math.update(p, g, rule)
            made.append(torch.zeros(1).device.type)
    assert made == ["meta"] * 6


def test_a_step_calls_the_scope_for_the_rule_alone():
    params = {"w": xdevice.ones(2, 2)}
    state = optim.init(optim.adam, params)
    gradients = xdevice.math.value_and_grad(
        lambda p, x: nn.mse_loss(xdevice.array_namespace(x).matmul(x, p["w"]), x)
    )
    x = xdevice.ones(2, 2)
    gradients(params, x)
    with scope() as called:
        _, grads = gradients(params, x)
        optim.adam(params, grads, state)
        optim.clip_by_global_norm(grads, 1.0)
        assert called == []
        xdevice.math.update(params, grads, lambda p, g: p - 0.1 * g)
        assert sorted(called) == ["mul", "sub"]


def test_what_else_looks_at_operations_goes_on_looking():
    class Looking(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    called = []
    x = xdevice.ones(2, 2)
    with torch.device("cpu"), Looking():
        nn.relu(x)
    assert "relu" in called
