"""What only JAX does, for `absent_names.py`."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.backend import clear_backends

from xdevice.distributed.contract.processes import Group


def code_for_cuda(xd: Any) -> Any:
    """What --xd-cuda does for code that asks for "cuda"."""
    if not xd.num_gpus():
        return None
    xd.backend().take_for_cuda(xd.gpu(1))
    return str(jax.devices("cuda")[0])


def several_processes(xd: Any) -> Any:
    """A group of one process. JAX meets others only before its start, so this comes last, and undoes the start."""
    clear_backends()
    group = Group(0, 1, 0, 1, xd.cpu(), "127.0.0.1", 20.0, lambda text: [text])
    engine = xd.backend().start_engine("gloo", group)
    engine.close()
    return engine.name


STEPS = {
    "code for CUDA": ("--xd-cuda", code_for_cuda),
    "several processes": ("several processes", several_processes),
}
