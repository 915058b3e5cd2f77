"""What `convert_state` takes from PyTorch to Paddle, against a plain copy of the weights, and its memory beside them.

    python benchmarks/models.py             # ResNet-50 and BERT-base
    python benchmarks/models.py resnet50

The plain copy is `{name: x.clone()}` of the state dict, which lays nothing out otherwise. Processor time of one thread,
the least of several, each in memory that is new to the process (a setting of glibc), as at a program's first
conversion. The peak is that of the resident memory (Linux) beyond both models and the state that comes out.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
if "MALLOC_MMAP_THRESHOLD_" not in os.environ:  # which glibc reads when a process starts
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

import click
import paddle
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import xdevice

REPEATS = 9


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv3, self.bn3 = (
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        if inputs != 4 * width:
            short = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(short, nn.BatchNorm2d(4 * width))


class ResNet(nn.Module):
    """The layers of a ResNet-50; it is converted and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for number, (blocks, width) in enumerate(
            ((3, 64), (4, 128), (6, 256), (3, 512)), start=1
        ):
            stage = [
                Bottleneck(4 * width if n else inputs, width, 2 if number > 1 and not n else 1)
                for n in range(blocks)
            ]
            setattr(self, f"layer{number}", nn.Sequential(*stage))
            inputs = 4 * width
        self.fc = nn.Linear(2048, 1000)


def bert(of: Any, embedding: Any, norm: Any, block: Any, stack: Any) -> Any:
    """BERT-base, of the classes of PyTorch or Paddle."""
    return of(
        embedding(30522, 768), embedding(512, 768), embedding(2, 768), norm(768),
        stack(block(768, 12, 3072, dropout=0.1, activation="gelu"), 12),
    )  # fmt: skip


def pairs() -> dict[str, Callable[[], tuple[Any, Any]]]:
    p = paddle.nn
    return {
        "resnet50": lambda: (ResNet(), paddle.vision.models.resnet50()),
        "bert-base": lambda: (
            bert(
                nn.Sequential,
                nn.Embedding,
                nn.LayerNorm,
                nn.TransformerEncoderLayer,
                nn.TransformerEncoder,
            ),
            bert(
                p.Sequential,
                p.Embedding,
                p.LayerNorm,
                p.TransformerEncoderLayer,
                p.TransformerEncoder,
            ),
        ),
    }


def least(run: Callable[[], Any]) -> float:
    """The least seconds of processor time."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        made = run()
        taken.append(time.process_time() - start)
        del made
    return min(taken)


def resident(what: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))


def beside(run: Callable[[], Any], result: int) -> int:
    """The bytes of resident memory at the peak of a run, without what was there before and the result's."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = resident("VmRSS")
    made = run()
    peak = resident("VmHWM")
    del made
    return peak - before - result


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Prints times and memory."""
    torch.set_num_threads(1)
    table = Table(
        "",
        "MB",
        "plain copy",
        "convert_state",
        "times",
        "and load",
        "times",
        "memory beside, MB",
    )
    for name, make in pairs().items():
        if names and not any(text in name for text in names):
            continue
        source, target = make()
        weights = source.state_dict()
        size = sum(x.nbytes for x in weights.values())

        def converted(source: Any = source, target: Any = target) -> Any:
            return xdevice.models.convert_state(source, "paddle", like=target)

        def loaded(target: Any = target, converted: Callable[[], Any] = converted) -> None:
            xdevice.load(converted(), into=target)

        converted()  # imports what it needs
        extra = beside(converted, size)
        plain, ours, whole = (
            least(run)
            for run in (
                lambda w=weights: {n: x.clone() for n, x in w.items()},
                converted,
                loaded,
            )
        )
        table.add_row(
            name, f"{size / 1e6:.0f}", f"{plain:.3f} s", f"{ours:.3f} s", f"{ours / plain:.2f}", f"{whole:.3f} s",
            f"{whole / plain:.2f}", f"{extra / 1e6:.0f}",
        )  # fmt: skip
        del source, target, weights, converted, loaded
    Console().print(table)


if __name__ == "__main__":
    main()
