"""In a traced function, where numbers would be the same at each call, a draw is refused; elsewhere it draws anew."""

from __future__ import annotations

import warnings

import pytest

import xdevice
from xdevice import random

DRAWS = {
    "uniform": lambda: random.uniform(3),
    "normal": lambda: random.normal(3),
    "integers": lambda: random.integers((3,), high=9, dtype="int32"),
    "permutation": lambda: random.permutation(3, dtype="int32"),
    "bernoulli": lambda: random.bernoulli(3, dtype="float32"),
}


def ways(xd):
    """What freezes what is drawn while it traces, by what the error calls it."""
    framework = xd.framework
    if xd.name == "tensorflow":
        yield "tf.function", framework.function
        yield "tf.function", lambda f: framework.function(f, jit_compile=True)
        yield (
            "tf.function",
            lambda f: lambda x: next(iter(framework.data.Dataset.from_tensors(x).map(f))),
        )
    elif xd.name == "jax":
        yield "jax.jit", framework.jit
        yield "jax.jit", framework.checkpoint
        yield (
            "jax.jit",
            lambda f: (
                lambda x: framework.lax.scan(lambda carry, y: (carry, f(y)), 0.0, x[None])[1]
            ),
        )
    elif xd.name == "paddle":
        yield "paddle.jit.to_static", lambda f: framework.jit.to_static(f, full_graph=True)
    elif xd.name == "mxnet":
        yield "a hybridized Gluon block", hybridized
    elif xd.name == "torch":
        from torch.fx.experimental.proxy_tensor import make_fx

        yield "torch.jit.trace", lambda f: lambda x: framework.jit.trace(f, x)(x)
        yield "torch.fx", lambda f: framework.fx.symbolic_trace(f)
        yield "torch.fx", make_fx
        yield (
            "torch.export",
            lambda f: lambda x: framework.export.export(module(f), (x,), strict=False),
        )


def hybridized(function):
    from mxnet import gluon

    class Block(gluon.HybridBlock):
        def hybrid_forward(self, F, x):  # noqa: N803  # MXNet's own name
            return function(x)

    block = Block()
    block.hybridize()
    return block


def module(function):
    import torch

    class Module(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return Module()


def outside(xd):
    """What calls Python each time, or traces each time."""
    framework = xd.framework
    if xd.name == "tensorflow":
        yield lambda f: framework.function(
            lambda x: framework.py_function(f, [x], framework.float32)
        )
    elif xd.name == "jax":
        yield lambda f: lambda x: framework.grad(lambda y: f(y).sum())(x) + f(x)
        yield lambda f: lambda x: framework.vmap(f)(x[None])[0]
        like = framework.ShapeDtypeStruct((3,), "float32")
        yield lambda f: framework.jit(
            lambda x: framework.pure_callback(lambda y: xdevice.to_numpy(f(y)), like, x)
        )
    elif xd.name == "paddle":
        yield lambda f: framework.jit.to_static(f, full_graph=False)
    elif xd.name == "torch":
        yield lambda f: framework.compile(f, backend="eager")
        yield lambda f: lambda x: framework.vmap(f)(x[None])[0]
    elif xd.name == "mxnet":
        from mxnet import autograd

        def recorded(f):
            def run(x):
                with autograd.record():
                    return f(x)

            return run

        yield recorded


@pytest.mark.xd_skip("numpy", reason="it traces nothing")
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_that_would_be_frozen_is_refused(xd, name):
    draw = DRAWS[name]
    random.seed(1)
    x = xdevice.ones(3)

    def adds(y):  # Paddle reads the source, and of no lambda
        return draw() + y

    for by, trace in ways(xd):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracers
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=f"random.{name} inside a function that .*{by}.* traces",
            ):
                trace(adds)(x)
    assert xdevice.to_numpy(random.uniform(3)).tolist() == first(1), "nothing was drawn"


@pytest.mark.xd_skip("numpy", reason="it traces nothing")
def test_a_draw_that_is_not_frozen_draws_at_each_call(xd):
    x = xdevice.zeros(3)
    for trace in outside(xd):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = trace(lambda y: random.uniform(3) + y)
            drawn = [tuple(xdevice.to_numpy(traced(x)).tolist()) for _ in range(3)]
        assert len(set(drawn)) == 3


def first(n):
    with random.seed(n):
        return xdevice.to_numpy(random.uniform(3)).tolist()


@pytest.mark.xd_only("torch")
def test_bits_under_torch_compile_are_the_same(xd):
    def draws(y):
        return random.uniform(1000, low=-0.3, high=0.7) + y, random.normal(
            1000, loc=0.1, scale=0.3
        ) + y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = xd.framework.compile(draws, backend="eager")
        for _ in range(2):
            with random.seed(1):
                found = compiled(xdevice.zeros(1000))
            with random.seed(1):
                expected = draws(xdevice.zeros(1000))
            assert all(
                xd.framework.equal(one, other)
                for one, other in zip(found, expected, strict=True)
            )
