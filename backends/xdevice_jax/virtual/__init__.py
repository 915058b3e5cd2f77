"""Virtual GPUs for JAX: further CPU devices, which JAX makes itself (`jax_num_cpu_devices`) and keeps apart itself.

| in place of | stands | because |
|---|---|---|
| `jax.devices`, for `--xd-cuda` only | `devices` | test suites ask it for "cuda" or "gpu", which JAX does \
not have here (no upstream issue known) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import jax

from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_jax import unstarted
from xdevice_jax.private import private

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xdevice.base.devices import Device


class JaxVirtualGpus(VirtualGpus):
    def why_no_virtual_gpus(self) -> str | None:
        if not unstarted.is_started():
            return None
        return (
            "JAX has run something, and its devices are fixed after that; move `import xdevice`, with "
            "XDEVICE_VIRTUAL_GPUS set, above `import jax`, or xdevice.virtual_gpus(n) above what JAX runs"
        )

    def make_virtual_gpus(self, n: int) -> None:
        # JAX would take a real GPU for its default, and start it
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", n + 1)

    def take_for_cuda(self, device: Device, has_default: Callable[[FrameType], bool] | None = None) -> bool:
        private.require("--xd-cuda")
        find, chosen = jax.devices, self.to_native(device)

        def devices(backend: Any = None) -> list[Any]:
            if backend not in ("cuda", "gpu"):
                return find(backend)
            others = [native for native in map(self.to_native, self.devices()[1:]) if native != chosen]
            return [chosen, *others]

        jax.devices = devices
        return True


MIXINS: Final = (JaxVirtualGpus,)
