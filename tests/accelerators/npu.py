"""PyTorch with another vendor's accelerator: xdevice's own virtual devices, registered as a plugin would be, as "npu".

`pytest -p npu` with this folder in PYTHONPATH gives it to a run of tests; a child process calls `register`. Its work is
late where `late` says so: it is done, and `synchronize` waits before it says so. `plugin` installs it as a vendor does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

NAME = os.environ.get("SIMULATED_NAME", "npu")
COUNT = int(os.environ.get("SIMULATED_COUNT", "2"))
LACKS = os.environ.get("SIMULATED_LACKS", "").split()
"""The dtypes that it cannot hold, and says so."""
seen = SimpleNamespace(waits=[], late=0.0)
"""The devices that were waited for, and how many seconds the work under way still takes."""


def register(name: str = NAME, count: int = COUNT) -> None:
    """Before the adapter is loaded, as an import of the vendor's package would."""
    from xdevice.virtual.contract.ledger import Ledger
    from xdevice_torch.virtual import virtual_gpus, virtual_operations

    virtual_operations.NAME = virtual_gpus.NAME = name
    virtual_gpus.install(count)
    ledger = Ledger([None] * count, MemoryError)
    virtual_operations.limits = SimpleNamespace(
        ledger=ledger, refuse_lacking=lambda index, dtypes: None
    )
    import torch

    module = getattr(torch, name)
    check = module._index

    def synchronize(device: object = None) -> None:
        seen.waits.append(check(device))
        late, seen.late = seen.late, 0.0
        time.sleep(late)

    module.synchronize = synchronize
    if LACKS:
        _lack({getattr(torch, dtype) for dtype in LACKS})


def _lack(dtypes: set) -> None:
    """As MPS does: nothing of these dtypes can be there, and the error is PyTorch's."""
    import torch

    from xdevice_torch.virtual import virtual_operations

    listed = {one for one in vars(torch).values() if isinstance(one, torch.dtype)} - dtypes
    torch._C._accelerator_getDeviceCapability = lambda index: {"supported_dtypes": listed}
    make = virtual_operations._template

    def template(device: object, dtype: object) -> object:
        if dtype in dtypes:
            raise TypeError(f"Cannot convert a tensor to {dtype}: this is PyTorch's own error")
        return make(device, dtype)

    virtual_operations._template = template


def plugin(folder: Path, name: str, **entry_points: str) -> dict[str, str]:
    """What a vendor's package tells the frameworks that load plugins, installed in a folder: the environment of a
    process that has it."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [
        f"[{group.replace('__', '.')}]\n{name} = {value}\n"
        for group, value in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(groups))
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)]),
        "SIMULATED_NAME": name,
    }


if os.environ.get("SIMULATED_ACCELERATOR"):
    register()
