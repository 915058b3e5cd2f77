"""Virtual GPUs for TensorFlow: its logical CPUs, which can be made only before TensorFlow has run anything.

TensorFlow copies operands between them by itself, as between real GPUs, so no operation is replaced. One function is:

| in place of | stands | because |
|---|---|---|
| `device_util.canonicalize`, which every `tf.distribute` strategy calls | `refusing` | a strategy that is told \
"/GPU:0", which does not exist while the GPUs are virtual, hangs in `fit` or trains on the CPU (2.21; no upstream \
issue known) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.base import devices
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_tensorflow.private import private
from xdevice_tensorflow.runtime import HERE, is_started

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_STRATEGIES = private.place("tensorflow.python.distribute.device_util.canonicalize")


def _keep_out_of_strategies(backend: VirtualGpus) -> None:
    """Makes `tf.distribute` strategies refuse names such as "/GPU:0", which do not exist while the GPUs are virtual. A
    strategy with such a name would hang in `fit`, or train on the CPU (2.21)."""

    canonicalize = getattr(*_STRATEGIES)

    def refusing(d: Any, default: Any = None) -> str:
        full: str = canonicalize(d, default)
        if ":GPU:" in full:
            raise backend.unsupported(
                f"{getattr(d, 'name', d)} for a tf.distribute strategy, because its GPUs are virtual",
                "write device.native: MirroredStrategy([gpu.native for gpu in xdevice.try_all_gpus()])",
            )
        return full

    setattr(*_STRATEGIES, refusing)


class TensorflowVirtualGpus(VirtualGpus):
    _places: dict[str, Device]
    _natives: dict[Device, str]
    _counts: dict[str, int]

    def why_no_virtual_gpus(self) -> str | None:
        private.require("waiting")
        private.require("virtual GPUs")
        if not is_started():
            return None
        return (
            "TensorFlow has run something, and its devices are fixed after that; move `import xdevice`, with "
            "XDEVICE_VIRTUAL_GPUS set, above `import tensorflow`, or xdevice.virtual_gpus(n) above what TensorFlow runs"
        )

    def make_virtual_gpus(self, n: int) -> None:
        cpus = tf.config.list_physical_devices("CPU")
        # a real GPU that stays visible would be where TensorFlow places operations by itself
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * (n + 1))
        for cached in (self._places, self._natives, self._counts):
            cached.clear()
        self._counts.update(cpu=1, gpu=n)
        for index in range(n):
            # TensorFlow takes both, and gives the first
            for name in (f"CPU:{index + 1}", f"cpu:{index + 1}"):
                for prefix in ("/", "/device:", HERE):
                    devices.spell(prefix + name, devices.of("gpu", index))
        _keep_out_of_strategies(self)
