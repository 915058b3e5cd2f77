"""What a training step of several processes costs by `World.averaging`, beside PyTorch's DDP and a step alone.

    xdevice launch -n 2 benchmarks/averaging.py                # on GPUs: ResNet-50 in bfloat16, 64 images a process
    OMP_NUM_THREADS=1 xdevice launch -n 2 benchmarks/averaging.py   # without: a network of four layers
    xdevice launch -n 2 benchmarks/averaging.py verbs          # all_reduce beside torch.distributed's

All ways take turns, in blocks of steps; of each block the slowest rank counts, and of the blocks the median. In the end
the parameters are compared with DDP's.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import xdevice

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS, STEPS = 7, 6


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            *(
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(True),
            ),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.skip = nn.Sequential()
        if inputs != 4 * width:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(True),
    ]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            width = 64 << stage
            layers.append(Bottleneck(inputs, width, 2 if i == 0 and stage else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def small() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()),
        *(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1000)),
    )


class Way:
    """A model of its own, trained in one of the ways."""

    def __init__(self, model: nn.Module, world: Any, kind: str) -> None:
        self.model, self.world, self.kind = copy.deepcopy(model), world, kind
        self.called: nn.Module = self.model
        if kind.startswith("DDP"):
            ids = [torch.cuda.current_device()] if world.device.kind == "gpu" else None
            best = (
                {"gradient_as_bucket_view": True, "static_graph": True}
                if "best" in kind
                else {}
            )
            self.called = DistributedDataParallel(self.model, device_ids=ids, **best)  # type: ignore[arg-type]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.01, momentum=0.9, foreach=True
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if x.is_cuda else nullcontext():
            loss = nn.functional.cross_entropy(self.called(x), y)
        with self.world.averaging(self.model) if self.kind == "averaging" else nullcontext():
            loss.backward()
        if self.kind == "average_gradients":
            self.world.average_gradients(self.model)
        self.optimizer.step()


WAYS = ("no exchange", "DDP", "DDP best", "average_gradients", "averaging")


def steps(world: Any) -> None:
    gpu = world.device.kind == "gpu"
    device = xdevice.backend("torch").to_native(world.device)
    model = (resnet50() if gpu else small()).to(device)
    world.broadcast(model)
    ways = {kind: Way(model, world, kind) for kind in WAYS}
    x = torch.randn((64, 3, 224, 224) if gpu else (64, 1024)).to(device)
    y = torch.randint(1000, (64,)).to(device)
    taken: dict[str, list[float]] = {kind: [] for kind in WAYS}
    for block in range(BLOCKS + 1):
        for kind, way in ways.items():
            xdevice.sync(x)
            world.barrier()
            begun = time.perf_counter()
            for _ in range(STEPS):
                way.step(x, y)
            xdevice.sync(x)
            own = (time.perf_counter() - begun) / STEPS * 1000
            slowest = world.all_reduce(torch.tensor(own, dtype=torch.float64), "max").item()
            if block:
                taken[kind].append(slowest)
    if world.is_first:
        for kind, times in taken.items():
            print(
                f"{kind:20} {statistics.median(times):7.2f} ms a step ({min(times):.2f} to {max(times):.2f})"
            )
    both = [ways[kind].model.parameters() for kind in ("DDP", "averaging")]
    same = [torch.equal(a, b) for a, b in zip(*both, strict=True)]
    print(
        f"rank {world.rank}: {sum(same)} of {len(same)} parameters are DDP's bit for bit",
        flush=True,
    )


def verbs(world: Any) -> None:
    device = xdevice.backend("torch").to_native(world.device)
    for count, calls in ((1 << 10, 50), (1 << 18, 50), (1 << 28, 2))[
        : 3 if world.device.kind == "gpu" else 2
    ]:
        x = torch.zeros(count, device=device)
        ways: dict[str, Callable[[], Any]] = {
            "bare": lambda x=x: (dist.all_reduce(x), xdevice.sync(x)),  # type: ignore[misc]
            "all_reduce": lambda x=x: world.all_reduce(x),  # type: ignore[misc]
            "barrier": world.barrier,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(20):
            for name, call in ways.items():
                for _ in range(calls):
                    begun = time.perf_counter()
                    call()
                    taken[name].append(time.perf_counter() - begun)
        if world.is_first:
            told = [
                f"{name} {min(t) * 1e6:.0f}, {statistics.median(t) * 1e6:.0f}"
                for name, t in taken.items()
            ]
            print(f"{4 * count} bytes, least and median us: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(
            xdevice.backend("torch").to_native(xdevice.distributed.local_device())
        )
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if gpus else "gloo")
    with xdevice.use_backend("torch"), xdevice.distributed.processes() as found:
        verbs(found) if sys.argv[1:] == ["verbs"] else steps(found)
    dist.destroy_process_group()
