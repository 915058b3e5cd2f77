"""The settings that the program or an environment variable has requested for every framework that is loaded: virtual
GPUs, blocking mode, and the floats of XDEVICE_FLOATS.

`import xdevice` imports this module, because xdevice's import hook must not import it later
(`xdevice.core.importing`). So this module must not import anything that takes time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VIRTUAL_GPUS: Final = "XDEVICE_VIRTUAL_GPUS"
BLOCKING: Final = "XDEVICE_BLOCKING"
FLOATS: Final = "XDEVICE_FLOATS"

virtual_gpus = ""
"""The virtual GPUs that the program has requested with `xdevice.virtual_gpus`, in the format of XDEVICE_VIRTUAL_GPUS;
empty if the program has requested none."""


def anything() -> bool:
    """Whether the program or an environment variable requests virtual GPUs, blocking mode or the floats of
    XDEVICE_FLOATS. Returns True for a variable with an invalid value; `xdevice.contract.environment.check` reports this
    error later."""
    return bool(virtual_gpus) or any(
        os.environ.get(name, "").strip() not in ("", "0")
        for name in (VIRTUAL_GPUS, BLOCKING, FLOATS)
    )
