"""A world of one process refuses what a world of two refuses, so that a program is tested before it is launched."""

from __future__ import annotations

import warnings

import pytest
from helpers.environment import BACKENDS, needs

import xdevice


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_two_processes_refuse_are_refused_by_one(backend):
    with xdevice.use_backend(backend), xdevice.distributed.processes() as world:
        good = {"w": xdevice.ones(2)}
        assert world.average_gradients(good) is good
        with pytest.raises(xdevice.errors.NotATensorError, match="3"):
            world.average_gradients(3)
        with pytest.raises(xdevice.errors.XDeviceError, match="int"):
            world.average_gradients({"w": xdevice.tensor([1, 2])})


def test_sparse_gradients_are_refused_by_one_process():
    needs("torch")
    torch = xdevice.backend("torch").framework
    net = torch.nn.Embedding(4, 2, sparse=True)
    net(torch.tensor([1])).sum().backward()
    with (
        xdevice.distributed.processes() as world,
        pytest.raises(xdevice.errors.XDeviceError, match="not dense"),
    ):
        world.average_gradients(net)


@pytest.mark.parametrize("engine", ["nobody", "torch:nobody"])
def test_an_engine_that_is_not_there_is_refused_by_one_process(engine):
    needs("torch")
    with (
        pytest.raises(xdevice.errors.XDeviceError, match="nobody"),
        xdevice.distributed.processes(engine=engine),
    ):
        pass


def _verbs(world, x):
    return {
        "barrier": world.barrier,
        "all_reduce": lambda: world.all_reduce(x),
        "broadcast": lambda: world.broadcast(x),
        "all_gather": lambda: world.all_gather(x),
        "reduce_scatter": lambda: world.reduce_scatter(x),
        "split_range": lambda: world.split_range(4),
        "all_gather_object": lambda: world.all_gather_object(1),
        "average_gradients": lambda: world.average_gradients([x]),
        "first": lambda: world.first().__enter__(),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_verb_works_in_first_or_after_the_block(backend):
    with xdevice.use_backend(backend):
        with xdevice.distributed.processes() as world:
            verbs = _verbs(world, xdevice.ones(2))
            for verb, call in verbs.items():
                if verb != "first":
                    call()  # what is known of a tensor's type lets none through
                with (
                    world.first(),
                    pytest.raises(
                        xdevice.errors.ScopeError, match=f"{verb} was called inside first"
                    ),
                ):
                    call()
            world.barrier()
        verbs["split_batch"] = lambda: world.split_batch(xdevice.ones(2))
        for verb, call in verbs.items():
            with pytest.raises(
                xdevice.errors.LaunchError, match=f"{verb} was called outside the block"
            ):
                call()


def test_tensors_that_two_processes_refuse_are_refused_by_one():
    needs("torch")
    torch = xdevice.backend("torch").framework
    with xdevice.use_backend("torch"), xdevice.distributed.processes() as world:
        x = torch.arange(4.0)
        for verb in (world.all_reduce, world.broadcast, world.all_gather, world.reduce_scatter):
            assert verb(x) is x
            with pytest.raises(xdevice.errors.XDeviceError, match="not dense"):
                verb(torch.eye(2).to_sparse())
            with pytest.raises(xdevice.errors.DTypeError, match="float8_e5m2"):
                verb(x.to(torch.float8_e5m2))
            for mapped in (torch.func.grad, torch.vmap):
                with pytest.raises(
                    xdevice.errors.UnsupportedError,
                    match="stands for a tensor while torch traces",
                ):
                    mapped(lambda x, verb=verb: verb(x * 1).sum())(torch.ones(2, 2))
        with pytest.raises(xdevice.errors.ContainerError, match="share memory"):
            world.all_reduce([x, x[2:]])
        with pytest.raises(xdevice.errors.ArgumentError, match="not \\['sum'\\]"):
            world.all_reduce(x, ["sum"])


def test_only_one_backward_pass_belongs_in_averaging_of_one_process():
    needs("torch")
    torch = xdevice.backend("torch").framework
    net = torch.nn.Linear(2, 2)
    clip, step = torch.nn.utils.clip_grad_norm_, torch.optim.SGD(net.parameters(), 0.1).step

    def backward():
        net(torch.ones(1, 2)).sum().backward()

    def step_of(act):
        with world.averaging(net):
            backward()
            act()

    with xdevice.use_backend("torch"), xdevice.distributed.processes() as world:
        for error, act in (
            (xdevice.errors.ScopeError, backward),
            (xdevice.errors.ScopeError, world.barrier),
            (xdevice.errors.ArgumentError, step),
            (xdevice.errors.ArgumentError, lambda: clip(net.parameters(), 1e-3)),
        ):
            net.zero_grad()
            with pytest.raises(error):
                step_of(act)
        net.zero_grad()
        with world.averaging(net, weight=3):
            backward()
        assert net.bias.grad.tolist() == [1, 1]
        with (
            pytest.raises(xdevice.errors.ArgumentError, match="weights of all ranks are 0"),
            world.averaging(net, 0),
        ):
            pass


def _nets():
    """For each framework that keeps gradients in its models: a linear layer, its backward pass, and the steps of some
    optimizers."""

    def of_torch(torch):
        net = torch.nn.Linear(2, 2)
        kinds = torch.optim.SGD, torch.optim.AdamW
        return (
            net,
            lambda net: net(torch.ones(1, 2)).sum().backward(),
            [o(net.parameters(), 0.1).step for o in kinds],
        )

    def of_paddle(paddle):
        net = paddle.nn.Linear(2, 2)
        kinds = (
            paddle.optimizer.SGD,
            paddle.optimizer.AdamW,
            paddle.optimizer.Lamb,
            paddle.optimizer.RMSProp,
        )
        steps = [o(parameters=net.parameters(), learning_rate=0.1).step for o in kinds]
        return net, lambda net: net(paddle.ones([1, 2])).sum().backward(), steps

    def of_mxnet(mxnet):
        net = mxnet.gluon.nn.Dense(2, in_units=2)
        net.initialize()

        def backward(net):
            with mxnet.autograd.record():
                loss = net(xdevice.ones(1, 2)).sum()
            loss.backward()

        return net, backward, []

    return {"torch": of_torch, "paddle": of_paddle, "mxnet": of_mxnet}


@pytest.mark.parametrize("backend", ["torch", "paddle", "mxnet"])
def test_steps_in_averaging_and_layers_in_lists_are_errors(backend):
    needs(backend)
    with xdevice.use_backend(backend) as own, xdevice.distributed.processes() as world:
        net, backward, steps = _nets()[backend](own.framework)

        def step_of(step):
            with world.averaging(net):
                backward(net)
                step()

        for step in steps:
            with pytest.raises(xdevice.errors.ArgumentError, match="was changed in the block"):
                step_of(step)
            step()  # outside the block
            step.__self__.clear_grad() if backend == "paddle" else step.__self__.zero_grad()
        for hide in (lambda x: [x], lambda x: {"a": (x,)}, lambda x: [[x]]):
            outer, inner = (_nets()[backend](own.framework)[0] for _ in range(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Gluon warns
                outer.rest = hide(inner)
                for call in (world.average_gradients, lambda x: world.averaging(x).__enter__()):
                    with pytest.raises(
                        xdevice.errors.UnsupportedError, match=r"of rest.*put it in"
                    ):
                        call(outer)


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "paddle", "torch"])
def test_no_verb_works_while_a_compiler_traces(backend):
    """It would be called once, and not when the compiled function is."""
    needs(backend)
    with xdevice.use_backend(backend) as own, xdevice.distributed.processes() as world:
        framework, x = own.framework, xdevice.ones(2)
        traced = {
            "jax": lambda call: framework.jit(call)(x),
            "tensorflow": lambda call: framework.function(call)(x),
            "paddle": lambda call: framework.jit.to_static(call, full_graph=True)(x),
            "torch": lambda call: framework.jit.trace(call, (x,)),
        }[backend]

        def waits(x):
            world.barrier()
            return x * 2

        def is_first(x):
            with world.first():
                return x * 2

        def splits(x):
            return x * len(world.split_range(4))

        def gathers(x):
            return x * world.all_gather_object(1)[0]

        for call in (waits, is_first, splits, gathers):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch deprecates its older tracer
                with pytest.raises(
                    xdevice.errors.UnsupportedError,
                    match="where it would run only during tracing",
                ):
                    traced(call)
            assert xdevice.to_numpy(call(x)).shape == (2,)
