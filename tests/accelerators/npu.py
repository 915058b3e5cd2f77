"""PyTorch with another vendor's accelerator: xdevice's own virtual devices, registered as a plugin would be, as "npu".

`pytest -p npu` with this folder in PYTHONPATH gives it to a run of tests; a child process calls `register`. Its work is
late where `late` says so: it is done, and `synchronize` waits before it says so.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

NAME = os.environ.get("SIMULATED_NAME", "npu")
COUNT = int(os.environ.get("SIMULATED_COUNT", "2"))
seen = SimpleNamespace(waits=[], late=0.0)
"""The devices that were waited for, and how many seconds the work under way still takes."""


def register(name: str = NAME, count: int = COUNT) -> None:
    """Before the adapter is loaded, as an import of the vendor's package would."""
    from xdevice_torch import virtual_gpus, virtual_operations

    virtual_operations.NAME = virtual_gpus.NAME = name
    virtual_gpus.install(count)
    import torch

    module = getattr(torch, name)
    check = module._index

    def synchronize(device: object = None) -> None:
        seen.waits.append(check(device))
        late, seen.late = seen.late, 0.0
        time.sleep(late)

    module.synchronize = synchronize


if os.environ.get("SIMULATED_ACCELERATOR"):
    register()
