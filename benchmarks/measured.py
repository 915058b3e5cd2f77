"""Writes a benchmark's table to benchmarks/results, from where docs/explanation/measurements.md takes it."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import xdevice

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).parent / "results"
TITLES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "paddle": "Paddle",
    "mxnet": "MXNet",
    "jax": "JAX",
}


def machine(backends: Sequence[str]) -> str:
    """Its GPUs, cores, Python and frameworks."""
    with xdevice.use_backend(backends[0]) as backend:
        gpus = [backend.describe(xdevice.gpu(i)).name for i in range(xdevice.num_gpus())]
    versions = [f"{name} {xdevice.backend(name).version}" for name in backends]
    cores = f"{os.cpu_count()} cores"
    return ", ".join([*map(str, gpus), cores, f"Python {platform.python_version()}", *versions])


def write(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], backends: Sequence[str]
) -> None:
    """Writes results/`name`.json, with the command that runs, this machine and today's date, one row on a line."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    today = datetime.now(timezone.utc).date().isoformat()
    head = {
        "benchmark": command,
        "machine": machine(backends),
        "date": today,
        "columns": list(columns),
    }
    lines = [
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},"
        for key, value in head.items()
    ]
    body = ",\n".join(f"    {json.dumps(list(row), ensure_ascii=False)}" for row in rows)
    text = "\n".join(["{", *lines, '  "rows": [', body, "  ]", "}", ""])
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
