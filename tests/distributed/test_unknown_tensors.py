"""Tensors that no adapter knows, and what is not sent: the verbs of a world refuse them before the vote."""

from __future__ import annotations

from textwrap import dedent

import pytest
from helpers.environment import printed

_PROGRAM = """
    import enum
    import xdevice
    torch = xdevice.backend("torch").framework
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.two_tensor import TwoTensor

    class Mode(enum.Enum):
        ZERO = 0
        ONE = 1

    class Own:
        pass

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    odd = [distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]), TwoTensor(torch.ones(4, 2), torch.zeros(4, 2))]
    odd.append(torch.nn.Parameter(odd[0]))
    net = torch.nn.Linear(2, 2, bias=False)
    net.weight = torch.nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]))
    net(odd[0]).to_local().sum().backward()
    assert type(net.weight.grad).__name__ == "DTensor"
    with xdevice.distributed.processes() as world:
        verbs = [
            lambda x: world.all_reduce(x), lambda x: world.all_reduce([x]), lambda x: world.all_gather(x),
            lambda x: world.broadcast(x), lambda x: world.reduce_scatter(x), lambda x: world.split_batch(x),
            lambda x: world.average_gradients([x]), lambda x: world.average_gradients(net),
        ]
        for x in odd:
            for verb in verbs:
                try:
                    verb(x)
                except xdevice.errors.UnsupportedError as error:
                    assert "DTensor" in str(error) or "TwoTensor" in str(error), error
                else:
                    raise AssertionError("it was taken for memory")
        assert world.all_reduce(torch.ones(2)).tolist() == [2, 2]  # no rank was left waiting
        things = [None, 0] if world.rank else [0, None], [Mode(world.rank)], [Own() if world.rank else 1]
        for thing in things:
            try:
                world.broadcast({"x": torch.ones(1), "thing": thing})
            except xdevice.errors.CollectiveMismatchError as error:
                assert "thing" in str(error), error
            else:
                raise AssertionError("the ranks go on with different things")
        world.broadcast({"x": torch.ones(1), "things": [Own(), Mode.ONE, None]})
        print("refused")
"""


def test_what_is_not_known_to_be_plain_memory_is_refused_before_the_vote(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "odd.py"
    script.write_text(dedent(_PROGRAM), encoding="utf-8")
    assert (
        printed("-m", "xdevice", "launch", "-n", "2", "--backend", "torch", script).count(
            "refused"
        )
        == 2
    )
