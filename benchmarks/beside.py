"""What other libraries do where xdevice does something: the programs behind docs/explanation/comparison.md.

    python benchmarks/beside.py accelerate
    python benchmarks/beside.py array-api-compat
    python benchmarks/beside.py einops
    python benchmarks/beside.py ivy
    python benchmarks/beside.py xdevice

Each line of the output is one small program on PyTorch: what came of it, or the error that it raised. No GPU is needed:
the other device is PyTorch's "meta", or what the library has instead.
"""

from __future__ import annotations

import os
import sys
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

Pair = namedtuple("Pair", "x y")
Programs = dict[str, Callable[[], object]]


@dataclass
class Sample:
    x: Any


class Own:
    def __init__(self, x: Any) -> None:
        self.x = x


def moves(move: Callable[[Any], Any], where: Callable[[Any], object]) -> Programs:
    """Where the tensor of a batch is after a move of the batch."""
    x = torch.ones(2)
    return {
        "a dict of a list": lambda: where(move({"x": [x], "label": "cat"})["x"][0]),
        "a namedtuple": lambda: where(move(Pair(x, x)).x),
        "a deque": lambda: where(move(deque([x]))[0]),
        "a dataclass": lambda: where(move(Sample(x)).x),
        "an unknown class": lambda: where(move(Own(x)).x),
    }


def of_accelerate() -> Programs:
    from accelerate.utils import find_device, send_to_device

    x = torch.ones(2)
    return {
        "a tensor": lambda: send_to_device(x, "meta").device,
        "back": lambda: send_to_device(x, "cpu") is x,
        **moves(lambda batch: send_to_device(batch, "meta"), lambda x: x.device),
        "a GPU that is missing": lambda: send_to_device(x, "cuda:9"),
        "on two devices": lambda: find_device([x, x.to("meta")]),
        "an array of NumPy": lambda: type(send_to_device(np.ones(2), "meta")).__name__,
    }


def of_array_api_compat() -> Programs:
    import array_api_compat as compat

    x, ints = torch.ones(2), [1, 2]
    return {
        "a tensor": lambda: compat.to_device(x, "meta").device,
        "back": lambda: compat.to_device(x, "cpu") is x,
        **moves(lambda batch: compat.to_device(batch, "meta"), lambda x: x.device),
        "a GPU that is missing": lambda: compat.to_device(x, "cuda:9"),
        "two libraries at once": lambda: [
            compat.array_namespace(one).__name__ for one in (x, np.ones(2))
        ],
        "two in one call": lambda: compat.array_namespace(x, np.ones(2)),
        "mean of ints, torch": lambda: compat.array_namespace(x).mean(torch.tensor(ints)),
        "mean of ints, NumPy": lambda: compat.array_namespace(np.ones(2)).mean(np.array(ints)),
        "linalg.inv": lambda: tuple(compat.array_namespace(x).linalg.inv(torch.eye(2)).shape),
    }


def of_einops() -> Programs:
    from einops import rearrange

    formula = "a (b c) -> c a b"
    return {
        "on torch": lambda: tuple(rearrange(torch.ones(2, 6), formula, b=2).shape),
        "on NumPy": lambda: rearrange(np.ones((2, 6)), formula, b=2).shape,
        "a size that is wrong": lambda: rearrange(torch.ones(2, 6), formula, b=4),
    }


def of_ivy() -> Programs:
    import ivy

    ivy.set_backend("torch")
    x = ivy.array([1.0, 2.0])

    def moved(batch: Any, device: str = "cpu") -> Any:
        return ivy.nested_map(lambda x: ivy.to_device(x, device), batch)

    def summed(backend: str) -> float:
        ivy.set_backend(backend)
        return float(ivy.sum(ivy.square(ivy.array([1.0, 2.0]))))

    return {
        "a tensor": lambda: ivy.to_device(x, "cpu").device,
        # there is no second device for it here, and the error says that the tensor was found
        "to meta": lambda: ivy.to_device(x, "meta").device,
        **moves(lambda batch: moved(batch, "meta"), lambda x: x.device),
        "a GPU that is missing": lambda: ivy.to_device(x, "gpu:9"),
        "copied": lambda: ivy.copy_array(x) is not x,
        "one program on two": lambda: [summed(backend) for backend in ("torch", "numpy")],
        "a GPU on NumPy": lambda: ivy.to_device(ivy.array([1.0]), "gpu:9").device,
    }


def of_xdevice() -> Programs:
    os.environ |= {"XDEVICE_BACKEND": "torch", "XDEVICE_VIRTUAL_GPUS": "2"}
    import xdevice

    x = xdevice.ones(2)
    return {
        "a tensor": lambda: xdevice.device_of(xdevice.to_device(x, "gpu:1")),
        "back": lambda: xdevice.to_device(x, "cpu") is x,
        **moves(lambda batch: xdevice.to_device(batch, "gpu:1"), xdevice.device_of),
        "a GPU that is missing": lambda: xdevice.to_device(x, "gpu:9"),
        "on two devices": lambda: xdevice.device_of([x, xdevice.to_device(x, "gpu:1")]),
        "two in one call": lambda: xdevice.array_namespace().add(x, np.ones(2)),
    }


LIBRARIES = {
    "accelerate": of_accelerate,
    "array-api-compat": of_array_api_compat,
    "einops": of_einops,
    "ivy": of_ivy,
    "xdevice": of_xdevice,
}


def main(library: str) -> None:
    distribution = "xdevice-dl" if library == "xdevice" else library
    programs = LIBRARIES[library]()
    print(library, version(distribution), "on torch", torch.__version__)
    for name, program in programs.items():
        try:
            found = str(program())
        except Exception as error:
            (first, *_) = str(error).strip().splitlines() or [""]
            found = f"{type(error).__name__}: {first:.70}"
        print(f"  {name:22} {found}")


if __name__ == "__main__":
    main(sys.argv[1])
