"""What ranks do in the tests of `test_averaging.py`, with PyTorch; each function runs in every rank."""

from __future__ import annotations

import copy
import os
import re
import signal
import time

import pytest
import torch
from helpers.process_failures import met, report
from torch import nn

import xdevice


class Acts(torch.autograd.Function):
    """The identity, whose backward pass calls a function first."""

    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.act()
        return gradient, None


class Net(nn.Module):
    """Four layers of 1 MB, so that each is a bucket when 1 MB is the most; the second is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last, self.unused = (nn.Linear(512, 512) for _ in range(4))
        self.act = lambda: None

    def forward(self, x):
        return self.last(self.twice(self.twice(Acts.apply(self.first(x), lambda: self.act()))))


def net(world):
    from xdevice.distributed import carrying

    carrying.BUCKET_BYTES = 2**20
    torch.manual_seed(world.rank)
    return world.broadcast(Net())


def batch(world, rank=None):
    rank = world.rank if rank is None else rank
    return torch.randn(4, 512, generator=torch.Generator().manual_seed(rank))


def backward(model, x):
    model(x).square().mean().backward()


def same(a, b):
    return all(
        (p.grad is None) == (q.grad is None) and (p.grad is None or torch.equal(p.grad, q.grad))
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )


def world_of_torch(**options):
    xdevice.set_backend("torch")
    return met(**options)


# what comes out


def equals_what_comes_after_it() -> None:
    """Unused and shared parameters, sums of several batches, weights; and it is what one process computes."""
    with world_of_torch() as world:
        model = net(world)
        after = copy.deepcopy(model)
        for weight in (None, 3 * world.rank):
            for extra in (0, 1):
                model.zero_grad()
                after.zero_grad()
                for x in [batch(world)] * extra:
                    backward(model, x)
                    backward(after, x)
                with world.averaging(model, weight=weight):
                    backward(model, batch(world))
                backward(after, batch(world))
                world.average_gradients(after, weight=weight)
                assert same(model, after), (weight, extra)
                assert model.unused.weight.grad is None
        model.zero_grad()
        after.zero_grad()
        with world.averaging(model):
            backward(model, batch(world))
        losses = [after(batch(world, rank)).square().mean() for rank in range(world.size)]
        (sum(losses) / world.size).backward()
        pairs = list(zip(model.parameters(), after.parameters(), strict=True))
        assert all(
            torch.allclose(p.grad, q.grad, atol=1e-6) for p, q in pairs if q.grad is not None
        )
    report(good=True)


def equals_ddp() -> None:
    with world_of_torch() as world:
        world.native_group()
        model = net(world)
        theirs = copy.deepcopy(model)
        ddp = nn.parallel.DistributedDataParallel(theirs, find_unused_parameters=True)
        for _ in range(3):
            for one, called in ((model, model), (theirs, ddp)):
                one.zero_grad()
                loss = called(batch(world)).square().mean()
                with world.averaging(one) if one is model else torch.enable_grad():
                    loss.backward()
                torch.optim.SGD(one.parameters(), 0.1).step()
            assert same(model, theirs)
        assert all(
            torch.equal(p, q)
            for p, q in zip(model.parameters(), theirs.parameters(), strict=True)
        )
    assert not torch.distributed.is_initialized()
    report(good=True)


def travels_during_the_pass() -> None:
    """When the pass reaches the first layer, the gradients of the last ones have been given to the engine."""
    with world_of_torch() as world:
        model, started = net(world), []
        # after the first step it is known which parameter gets none, and what waits for it
        for _ in range(2):
            with world.averaging(model):
                backward(model, batch(world))
        model.zero_grad()
        engine = world._session._carrier.engine
        start = engine.start_mean
        engine.start_mean = lambda *given: started.append(len(started)) or start(*given)
        model.act = lambda: report(early=len(started))
        with world.averaging(model):
            backward(model, batch(world))
            report(within=len(started))
        report(good=True, in_all=len(started))


def a_model_that_changes() -> None:
    """What is known of a model is no more, once its parameters are others."""
    with world_of_torch() as world:
        model = net(world)
        for change in (
            lambda: None,
            lambda: model.double(),
            lambda: model.first.weight.requires_grad_(False),
            lambda: setattr(model, "last", copy.deepcopy(model.last)),
        ):
            change()
            model.zero_grad()
            x = batch(world).to(model.last.weight.dtype)
            with world.averaging(model):
                backward(model, x)
            rows = world.all_gather(model.last.weight.grad[None])
            assert torch.equal(rows[0], rows[1])
    report(good=True)


def none_on_one() -> None:
    """Nothing is written, and the world goes on."""
    with world_of_torch() as world:
        model = net(world)
        backward(model, batch(world))
        before = copy.deepcopy([p.grad for p in model.last.parameters()])
        if world.rank:
            model.first.weight.grad = None
        try:
            with world.averaging(model):
                model.last(batch(world)).square().mean().backward()
                kept = [p.grad.clone() for p in model.last.parameters()]
        except xdevice.errors.CollectiveMismatchError as error:
            report(text=str(error))
        assert all(
            torch.equal(p.grad, own)
            for p, own in zip(model.last.parameters(), kept, strict=True)
        )
        assert not torch.equal(kept[0], before[0])
        model.zero_grad()
        with world.averaging(model):
            backward(model, batch(world))
    report(good=True)


def a_gradient_that_cannot_be_written() -> None:
    """The mean would be in a new tensor, and the model would train on with its own gradient."""
    with world_of_torch() as world:
        model = nn.Linear(2, 2)
        model.weight.grad, model.bias.grad = torch.ones(2, 1).expand(2, 2), torch.ones(2)
        with pytest.raises(
            xdevice.errors.ArgumentError, match="the gradient of weight cannot be overwritten"
        ):
            world.average_gradients(model)
        world.barrier()
    report(good=True)


def is_refused() -> None:
    """Each before anything was said."""
    with world_of_torch() as world:
        model = net(world)
        wrong = [
            (xdevice.errors.NotATensorError, lambda: world.averaging([torch.ones(2)])),
            (xdevice.errors.NotATensorError, lambda: world.averaging(nn.ReLU())),
            (xdevice.errors.ArgumentError, lambda: world.averaging(model, weight=-1)),
        ]
        for error, call in wrong if world.rank == 0 else ():
            with pytest.raises(error), call():
                pass
        world.barrier()
    report(good=True)


def _closes(error, act) -> None:
    """What `act(world, model)` raises in the block, the others hear."""
    try:
        with world_of_torch() as world:
            model = net(world)
            with world.averaging(model):
                if world.rank == 1:
                    act(world, model)
                backward(model, batch(world))
    except (error, xdevice.errors.PeerError) as found:
        report(error=type(found).__name__, text=str(found))
        raise


def a_verb_inside() -> None:
    _closes(xdevice.errors.ScopeError, lambda world, model: world.barrier())


def two_passes() -> None:
    _closes(xdevice.errors.ScopeError, lambda world, model: backward(model, batch(world)))


def raises_in_the_middle() -> None:
    """After its first gradients have gone."""

    def bug():
        report(failed=time.monotonic())
        raise ValueError("a bug in backward")

    _closes(ValueError, lambda world, model: setattr(model, "act", bug))


def killed_in_the_middle() -> None:
    def die():
        report(failed=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    _closes(ValueError, lambda world, model: setattr(model, "act", die))


def stuck_in_the_middle() -> None:
    def wait():
        report(failed=time.monotonic())
        time.sleep(1000)

    _closes(ValueError, lambda world, model: setattr(model, "act", wait))


# beside PyTorch's own


def shards() -> None:
    """A model that `fully_shard` has taken apart, and what each verb says to its tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with world_of_torch() as world:
        world.native_group()
        mesh = init_device_mesh("cpu", (world.size,))
        model = net(world)
        alone = copy.deepcopy(model)
        fully_shard(model, mesh=mesh)
        with world.averaging(alone):
            backward(alone, batch(world))
        backward(model, batch(world))
        assert torch.allclose(
            model.last.weight.grad.full_tensor(), alone.last.weight.grad, atol=1e-6
        )
        x, other = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]), 1 - world.rank
        for call in (
            lambda: world.all_reduce(x),
            lambda: world.broadcast(x),
            lambda: world.broadcast(model),
            lambda: world.all_gather(x),
            lambda: world.reduce_scatter(x),
            lambda: world.send(x, other),
            lambda: world.recv(x, other),
            lambda: world.split_batch(x),
            lambda: world.average_gradients(model),
            lambda: world.averaging(model).__enter__(),
        ):
            with pytest.raises(xdevice.errors.UnsupportedError, match="DTensor"):
                call()
        world.barrier()
    report(good=not torch.distributed.is_initialized())


def own_group(ranks=lambda rank: rank, everywhere=True) -> None:
    """The program has a group of its own."""
    rank = int(os.environ["XDEVICE_RANK"])
    port = int(os.environ["OWN_PORT"])
    if everywhere or rank == 0:
        store = torch.distributed.TCPStore(
            "127.0.0.1", port, 2, ranks(rank) == 0, wait_for_workers=False
        )
        if everywhere:
            torch.distributed.init_process_group(
                "gloo", store=store, rank=ranks(rank), world_size=2
            )
    with world_of_torch() as world:
        try:
            world.native_group()
        except xdevice.errors.LaunchError as error:
            report(text=str(error))
            raise
    assert torch.distributed.is_initialized()
    torch.distributed.destroy_process_group()
    report(good=True)


def own_group_of_other_ranks() -> None:
    own_group(lambda rank: 1 - rank)


def a_rank_dies_in_their_step() -> None:
    with world_of_torch() as world:
        world.native_group()
        ddp = nn.parallel.DistributedDataParallel(net(world), find_unused_parameters=True)
        backward(ddp, batch(world))
        if world.rank == 1:
            report(failed=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        backward(ddp, batch(world))


def begins_with_other_weights():
    """Each rank has made its own: the first vote says so, whichever verb it is of, and a broadcast makes them equal."""
    with world_of_torch() as world:
        torch.manual_seed(world.rank)
        model = nn.Linear(3, 2)
        backward(model, torch.ones(1, 3))
        before = copy.deepcopy(model.weight.grad)
        with pytest.raises(
            xdevice.errors.CollectiveMismatchError,
            match=r"first weights.*world\.broadcast\(model\)",
        ):
            world.average_gradients(model)
        with (
            pytest.raises(xdevice.errors.CollectiveMismatchError, match=r"first weights"),
            world.averaging(model),
        ):
            pass
        assert torch.equal(model.weight.grad, before)
        world.broadcast(model)
        world.average_gradients(model)
        with torch.no_grad():
            # later votes do not read the weights again: it would cost a copy in each step
            model.weight += world.rank
        world.average_gradients(model)
    report(good=True)


def writes_too_early():
    """A step, or a change of gradients that are on their way, inside the block: the ranks would part without a word."""
    with world_of_torch() as world:
        model = world.broadcast(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(1, 3) * (world.rank + 1)

        def averaged(act):
            optimizer.zero_grad()
            with world.averaging(model):
                backward(model, x)
                act()

        with pytest.raises(xdevice.errors.ArgumentError, match=r"0\.weight was changed"):
            averaged(optimizer.step)
        with pytest.raises(
            xdevice.errors.ArgumentError, match=r"the gradient of .* was changed"
        ):
            averaged(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
        averaged(lambda: None)  # the world works on
        means = world.all_gather(model[0].weight.grad)
        assert torch.equal(means[:2], means[2:])
    report(good=True)


def resumes_with_another_rate():
    with world_of_torch() as world:
        model = world.broadcast(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if world.rank else 0.05)
        with pytest.raises(
            xdevice.errors.CollectiveMismatchError, match=r"'lr': 0\.05.*'lr': 0\.1"
        ):
            world.broadcast(optimizer)
        optimizer.param_groups[0]["lr"] = 0.05
        world.broadcast(optimizer)
    report(good=True)


def refused_gradients_leave_the_world_open():
    """What cannot be averaged is refused after the pass, on all ranks."""
    with world_of_torch() as world:
        tables = nn.Embedding(3, 2, sparse=True), nn.EmbeddingBag(3, 2, sparse=True, mode="sum")
        cleared = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(cleared.parameters(), 0.1)

        def clear(parameter):
            parameter.grad = None

        def step(parameter):
            optimizer.step()
            parameter.grad = None

        hook = cleared.weight.register_post_accumulate_grad_hook(clear)
        rows = torch.tensor([[1]])
        for model, x, words in (
            (tables[0], rows, "not dense; make it dense first with x.to_dense()"),
            (tables[1], rows, "not dense"),
            (cleared, torch.ones(1, 2), "a hook has removed the gradient of weight"),
        ):
            world.broadcast(model)
            with (
                pytest.raises(xdevice.errors.XDeviceError, match=re.escape(words)),
                world.averaging(model),
            ):
                backward(model, x)
        hook.remove()
        cleared.weight.register_post_accumulate_grad_hook(step)
        with (
            pytest.raises(xdevice.errors.ArgumentError, match="was changed"),
            world.averaging(cleared),
        ):
            backward(cleared, torch.ones(1, 2))
        world.broadcast(tables[0])
        tables[0].sparse = world.rank == 0
        tables[0].weight.grad = None
        with (
            pytest.raises(
                xdevice.errors.CollectiveMismatchError,
                match=r'rank 0 called "averaging.* not dense',
            ),
            world.averaging(tables[0]),
        ):
            backward(tables[0], rows)
        assert world.all_reduce(torch.ones(1)).item() == world.size
    report(good=True)


def lazy_views():
    """A gradient that is conjugated or negated when it is read."""
    with world_of_torch() as world:
        x = torch.tensor([1 + 2j, 3j]) * (world.rank + 1)
        lazy = {"conj": x.conj(), "imag": x.conj().imag, "plain": x}
        assert (lazy["conj"].is_conj(), lazy["imag"].is_neg()) == (True, True)
        for verb in (world.average_gradients, lambda x: world.all_reduce(x, "mean")):
            means = verb({name: copy.deepcopy(one) for name, one in lazy.items()})
            assert torch.equal(means["conj"], torch.tensor([1.5 - 3j, -4.5j]))
            assert torch.equal(means["imag"], torch.tensor([-3.0, -4.5]))
            assert torch.equal(means["plain"], torch.tensor([1.5 + 3j, 4.5j]))
    report(good=True)


def layers_in_a_list():
    """`broadcast` sends them too, and verbs for gradients refuse what the framework does not list."""
    with world_of_torch() as world:
        torch.manual_seed(world.rank)
        model = nn.Linear(2, 2)
        model.rest = [{"deep": (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),)}]
        world.broadcast(model)
        for one in (model.weight, *model.rest[0]["deep"][0].state_dict().values()):
            rows = world.all_gather(one.detach()[None] if one.ndim else one)
            assert torch.equal(rows[0], rows[1])
    report(good=True)
